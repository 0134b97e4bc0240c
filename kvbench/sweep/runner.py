"""A sweep: every case in turn, each row on disk as soon as it is known."""

import datetime
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from kvbench.cases import Case
from kvbench.environment import fingerprint
from kvbench.results import SCHEMA_VERSION, CacheState, Result, RunInfo
from kvbench.store import RunWriter, claim
from kvbench.strategies.base import Strategy
from kvbench.sweep.measure import Bench, measure_case
from kvbench.timing.accelerator import TorchAccelerator
from kvbench.timing.bandwidth import measure_copy_bandwidth
from kvbench.timing.cache import Flush, last_level_cache_bytes
from kvbench.timing.clocks import Clock, WallClock, empty_launch, floor, floors
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
    clocks: tuple[Clock, ...]
    cache: CacheState

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
    environment = fingerprint(plan.device)
    bandwidth = measure_copy_bandwidth(plan.device)
    cache_bytes = last_level_cache_bytes(plan.device, environment.last_level_cache_bytes)
    cold = plan.cache == "cold"
    bench = Bench(
        device=plan.device,
        clocks=plan.clocks,
        floors_s=floors(plan.clocks, plan.device),
        rule=StoppingRule(cell_seconds=plan.cell_seconds),
        call_budget_s=plan.call_budget_s,
        copy_bytes_per_s=bandwidth.bytes_per_s,
        cache=plan.cache,
        cache_bytes=cache_bytes,
        flush=Flush(plan.device, cache_bytes) if cold else None,
        accelerator=None if plan.device.type == "cpu" else TorchAccelerator(plan.device),
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
        environment=environment,
        copy_bandwidth=bandwidth,
        cache=plan.cache,
        floors_s={name: found.call_s for name, found in bench.floors_s.items()},
        launch_floor_s=floor(WallClock(plan.device), empty_launch(plan.device)).call_s,
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
