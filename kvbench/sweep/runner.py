"""A sweep: every case in turn, each row on disk as soon as it is known."""

import datetime
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from kvbench.cases import Case
from kvbench.environment import fingerprint
from kvbench.results import SCHEMA_VERSION, Result, RunInfo
from kvbench.store import RunWriter, claim
from kvbench.strategies.base import Strategy
from kvbench.sweep.measure import Bench, measure_case
from kvbench.timing.bandwidth import measure_copy_bandwidth
from kvbench.timing.clocks import WallClock, floor
from kvbench.timing.rounds import StoppingRule


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a sweep measures, and with which limits."""

    cases: tuple[Case, ...]
    strategies: tuple[Strategy, ...]
    device: torch.device
    command: str
    preset: str | None
    seed: int
    cell_seconds: float
    call_budget_s: float
    layers: int

    def strategies_for(self, case: Case) -> list[Strategy]:
        """The strategies that do the case's op."""
        return [s for s in self.strategies if s.op == case.op]

    def rows(self) -> int:
        """The (case, strategy) pairs of the sweep."""
        return sum(len(self.strategies_for(case)) for case in self.cases)


def run_sweep(
    plan: Plan, folder: Path, on_case: Callable[[Case, Sequence[Result]], None]
) -> RunInfo:
    """Measure every case of a plan into a new run folder.

    Args:
        plan: What to measure.
        folder: Where to; empty or new.
        on_case: Called after each case with its rows, which are on disk by then.

    Raises:
        StoreError: The folder holds something, or can't be written.
    """
    claim(folder)
    clock = WallClock(plan.device)
    bench = Bench(
        device=plan.device,
        clock=clock,
        floor_s=floor(clock),
        rule=StoppingRule(cell_seconds=plan.cell_seconds),
        call_budget_s=plan.call_budget_s,
    )
    info = RunInfo(
        schema_version=SCHEMA_VERSION,
        created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        command=plan.command,
        preset=plan.preset,
        seed=plan.seed,
        cell_seconds=plan.cell_seconds,
        call_budget_s=plan.call_budget_s,
        layers=plan.layers,
        environment=fingerprint(plan.device),
        copy_bandwidth=measure_copy_bandwidth(plan.device),
        floors_s={clock.name: bench.floor_s},
    )
    # In random order a drift of the machine doesn't pass for an effect of an axis, and the first
    # cases tell how long the rest will take.
    cases = list(plan.cases)
    random.Random(plan.seed).shuffle(cases)  # noqa: S311 - reproducible, not secret
    with RunWriter(folder, info) as store:
        for case in cases:
            rows = measure_case(case, plan.strategies_for(case), bench)
            for row in rows:
                store.append(row)
            on_case(case, rows)
    return info
