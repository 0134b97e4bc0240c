"""Strategies against the oracle over many cases, without timing."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import torch

from kvbench import oracle
from kvbench.cases import Case
from kvbench.devices import free_bytes
from kvbench.errors import InputError, StrategyError
from kvbench.kernels import availability
from kvbench.kernels.tiles import default_tiles
from kvbench.results import Status
from kvbench.strategies.base import Strategy, why_unsupported, why_untimed
from kvbench.sweep.measure import one_line, repro
from kvbench.units import format_bytes
from kvbench.workload import build, needed_bytes

Cell = tuple[str, str, str]
"""A strategy, a layout, and a dtype: the pool's where it is quantised, else that of K and V."""


@dataclass(frozen=True, slots=True)
class CheckReport:
    """What became of every (strategy, case)."""

    counts: dict[str, Counter[str]]
    """By strategy: how many cases ended with each status."""
    faults: tuple[str, ...]
    """Each incorrect or failed check, with the command that repeats it."""
    notes: tuple[str, ...]
    """What a reader has to know of the strategies: interpreted, unsupported and why."""
    cells: dict[Cell, Counter[str]]
    """The same counts by strategy, layout and dtype, where there are pools that have them; of
    "unsupported", by its reason."""

    def count(self, status: Status) -> int:
        """Checks that ended with this status."""
        return sum(counter[status] for counter in self.counts.values())

    def total(self) -> int:
        """All checks."""
        return sum(counter.total() for counter in self.counts.values())


def check_case(case: Case, strategy: Strategy, device: torch.device) -> tuple[Status, str]:
    """Check one strategy in one case, without timing.

    Returns:
        "checked" and "" if every bit was right, else what was wrong with it and how.
    """
    refused = _refused(case, strategy, device)
    if refused is not None:
        return refused
    try:
        workload = build(case, device)
    except InputError as error:  # no strategy can do it: its slots have no room
        return "unsupported", str(error)
    except (MemoryError, RuntimeError) as error:
        return "failed", one_line(error)
    try:
        mismatch = oracle.check(strategy, workload)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - any failure of a strategy is its result
        return "failed", one_line(error)
    return ("incorrect", mismatch) if mismatch else ("checked", "")


def _refused(case: Case, strategy: Strategy, device: torch.device) -> tuple[Status, str] | None:
    """Why there is nothing to check; None if there is."""
    try:
        reason = why_unsupported(strategy, case, device)
        why_untimed(strategy, device)  # it is asked before it is timed
    except StrategyError as error:
        return "failed", str(error)
    if reason is not None:
        return "unsupported", reason
    free = free_bytes(device)
    needed = needed_bytes(case, free)
    if needed > free:
        return "does not fit", f"needs {format_bytes(needed)}; {format_bytes(free)} are free"
    return None


def kernel_notes(device: torch.device) -> tuple[str, ...]:
    """What became of Triton's kernels in this process: compilations, and tiles chosen."""
    if availability.unsupported(device) is not None:
        return ()
    from kvbench.kernels.report import kernel_lines  # noqa: PLC0415 - needs Triton

    return kernel_lines()


def _untimed(strategies: Sequence[Strategy], device: torch.device) -> list[str]:
    found = []
    for strategy in strategies:
        with suppress(StrategyError):  # which is a fault of each of its checks
            reason = why_untimed(strategy, device)
            found += [f"{strategy.name}: {reason}"] if reason else []
    return found


def check_all(
    cases: Iterable[Case],
    strategies: Sequence[Strategy],
    device: torch.device,
    on_case: Callable[[Case], None],
) -> CheckReport:
    """Check every strategy in every case of its op.

    Args:
        cases: The cases.
        strategies: The strategies.
        device: Where.
        on_case: Called after each case.
    """
    counts: dict[str, Counter[str]] = {s.name: Counter() for s in strategies}
    unsupported: Counter[tuple[str, str]] = Counter()
    cells: dict[Cell, Counter[str]] = defaultdict(Counter)
    faults = []
    for case in cases:
        for strategy in strategies:
            if strategy.op != case.op:
                continue
            with default_tiles():  # of many shapes a few calls each: not worth measuring tiles for
                status, reason = check_case(case, strategy, device)
            counts[strategy.name][status] += 1
            if case.has_pools:
                dtype = case.cache_dtype if case.quantised else case.dtype
                cells[strategy.name, case.layout, dtype][
                    reason if status in {"unsupported", "does not fit"} else status
                ] += 1
            if status in {"unsupported", "does not fit"}:
                unsupported[strategy.name, f"{status}: {reason}"] += 1
            elif status != "checked":
                command = repro(case, strategy, device).replace(" run ", " check ", 1)
                faults.append(f"{strategy.name} {status}: {reason}\n  {command}")
        on_case(case)
    notes = _untimed(strategies, device)
    notes += [f"{name}, {count} cases {why}" for (name, why), count in unsupported.items()]
    notes += kernel_notes(device)
    return CheckReport(counts, tuple(faults), tuple(notes), dict(cells))
