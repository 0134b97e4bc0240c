"""One case, in order: build, check, time what passed in interleaved rounds, check again."""

import functools
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import get_args

import torch

from kvbench import oracle
from kvbench.analysis.statistics import CONFIDENCE
from kvbench.blocks import place
from kvbench.cases import Case
from kvbench.devices import free_bytes
from kvbench.results import Measurement, Phase, Result, Status
from kvbench.strategies.base import Strategy
from kvbench.sweep.budget import estimate_call_s
from kvbench.timing.clocks import Clock
from kvbench.timing.rounds import Sampling, StoppingRule, sample_rounds
from kvbench.units import format_bytes, format_seconds
from kvbench.workload import Workload, build, fill, required_bytes

UNTIMED_SHARE = 0.1
"""Of the call budget: what a call may take that is only checked, never timed."""

PHASES: tuple[Phase, ...] = get_args(Phase)


@dataclass(frozen=True, slots=True)
class Bench:
    """What all cases of a run are measured with."""

    device: torch.device
    clock: Clock
    floor_s: float
    rule: StoppingRule
    call_budget_s: float
    """A strategy whose one call would take longer is not run."""


def one_line(error: Exception) -> str:
    """An exception's type and message, for a row."""
    return " ".join(f"{type(error).__name__}: {error}".split())


def repro(case: Case, strategy: Strategy, device: torch.device) -> str:
    """The command that measures one strategy in one case again."""
    axes = [word for name, value in case.fields().items() for word in ("-a", f"{name}={value}")]
    return shlex.join(["kvbench", "run", *axes, "-s", strategy.name, "--device", str(device)])


def measure_case(case: Case, strategies: Iterable[Strategy], bench: Bench) -> list[Result]:
    """Every strategy's rows for one case: one per phase if it was timed, else one that says why.

    Args:
        case: The case.
        strategies: Those of the case's op.
        bench: Device, clock and limits.
    """
    rows: list[Result] = []

    def refuse(strategy: Strategy, status: Status, reason: str) -> None:
        rows.append(
            Result(
                case=case,
                strategy=strategy.name,
                phase="run",
                status=status,
                reason=reason,
                repro=repro(case, strategy, bench.device),
            )
        )

    candidates = list(strategies)
    needed = required_bytes(case, place(case))
    free = free_bytes(bench.device)
    if needed > free:
        reason = f"needs {format_bytes(needed)}; {format_bytes(free)} are free on {bench.device}"
        for strategy in candidates:
            refuse(strategy, "does not fit", reason)
        return rows

    workload = build(case, bench.device)
    timed: list[Strategy] = []
    for strategy in candidates:
        try:
            outcome = _examine(strategy, workload, bench)
        except Exception as error:  # noqa: BLE001 - any failure of a strategy is its row
            outcome = ("failed", one_line(error))
        if outcome is None:
            timed.append(strategy)
        else:
            refuse(strategy, *outcome)

    if timed:
        rows += _time(timed, workload, bench)
    return rows


def _examine(strategy: Strategy, workload: Workload, bench: Bench) -> tuple[Status, str] | None:
    """None if the strategy may be timed, else the status and the reason of its row."""
    case = workload.case
    unsupported = strategy.supports(case, bench.device)
    if unsupported is not None:
        return "unsupported", unsupported
    untimed = strategy.untimed(bench.device)
    budget_s = bench.call_budget_s * (1.0 if untimed is None else UNTIMED_SHARE)
    expected_s = estimate_call_s(strategy, case, bench.device)
    if expected_s > budget_s:
        why = f" ({untimed})" if untimed else ""
        return (
            "over budget",
            f"one call would take about {format_seconds(expected_s)}, "
            f"over the {format_seconds(budget_s)} a call may take{why}",
        )
    mismatch = oracle.check(strategy, workload)
    if mismatch:
        return "incorrect", mismatch
    return None if untimed is None else ("checked", untimed)


def _time(strategies: Sequence[Strategy], workload: Workload, bench: Bench) -> list[Result]:
    case = workload.case
    fill(workload)
    subjects = {}
    for strategy in strategies:
        prepared = strategy.prepare(workload)
        subjects[f"{strategy.name} run"] = functools.partial(strategy.run, workload, prepared)
        if strategy.has_prepare():
            subjects[f"{strategy.name} prepare"] = functools.partial(strategy.prepare, workload)
    samplings = sample_rounds(subjects, bench.clock, bench.rule, case.seed)

    rows = []
    for strategy in strategies:
        # A strategy that is right when called once may not be after a thousand calls.
        mismatch = oracle.check(strategy, workload, versions=(2,))
        for phase in PHASES:
            sampling = samplings.get(f"{strategy.name} {phase}")
            if sampling is None:
                continue
            after = f"after timing: {mismatch}" if mismatch else None
            rows.append(
                Result(
                    case=case,
                    strategy=strategy.name,
                    phase=phase,
                    status="incorrect" if mismatch else "ok",
                    reason=after,
                    measurement=None
                    if mismatch
                    else _measurement(sampling, strategy, phase, case, bench),
                    repro=repro(case, strategy, bench.device),
                )
            )
    return rows


def _measurement(
    sampling: Sampling, strategy: Strategy, phase: Phase, case: Case, bench: Bench
) -> Measurement:
    moves = phase == "run"
    return Measurement(
        clock=bench.clock.name,
        samples_s=sampling.samples_s,
        calls_per_sample=sampling.calls_per_sample,
        median_s=sampling.estimate.median,
        low_s=sampling.estimate.low,
        high_s=sampling.estimate.high,
        confidence=CONFIDENCE,
        stopped_by=sampling.stopped_by,
        floor_s=bench.floor_s,
        cache_state="hot",
        allocates=strategy.allocates and moves,
        nbytes=case.nbytes if moves else None,
    )
