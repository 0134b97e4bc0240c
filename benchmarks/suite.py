"""What one session of `pytest benchmarks/` measures, and how pytest-benchmark gets to know it."""

import dataclasses
import functools
import math
from argparse import ArgumentTypeError
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from kvbench import devices
from kvbench.benchmark_json import rows_of
from kvbench.cases import Case
from kvbench.presets import PRESETS
from kvbench.results import Result, RunInfo, Status
from kvbench.sessions import differences, differing_limits
from kvbench.strategies import registry
from kvbench.strategies.base import Strategy
from kvbench.sweep.budget import estimate
from kvbench.sweep.checking import check_case
from kvbench.sweep.measure import UNTIMED_SHARE, repro
from kvbench.sweep.runner import InProcess, Plan, run_info
from kvbench.units import format_seconds

PRESET = PRESETS["regress" if devices.resolve("auto").type == "cpu" else "regress-gpu"]
CASES: Mapping[str, Case] = {case.label(): case for case in PRESET.cases()}
"""The cases by what they are called."""
CALL_BUDGET_S = 1.0
LAYERS = 32
"""As `kvbench run` has them where nothing else is asked."""
FAULTS: frozenset[Status] = frozenset({"incorrect", "failed", "crashed", "hung"})
"""What fails a test; whatever else keeps a strategy from being timed is a reason to skip it."""
_LEAST_SECONDS = 0.001

Cell = tuple[str, str, str]
"""A strategy's name, a phase, and a case's label."""


def cell_id(cell: Cell) -> str:
    """A cell's name in its test's: `-k "write.loop and seq_len:1]"` takes no =."""
    strategy, phase, label = cell
    _, _, where = label.partition(" ")  # the op, which the strategy's name has
    return f"{strategy}-{phase}-{where}".replace("=", ":").replace(" ", "-")


def cells() -> list[Cell]:
    """Every phase of every strategy in every case of its op: what is timed by itself."""
    return [
        (strategy.name, phase, label)
        for label, case in CASES.items()
        for strategy in registry.all_strategies()
        if strategy.op == case.op
        for phase in strategy.phases()
    ]


def seconds(text: str) -> float:
    """A time that sampling can take.

    Raises:
        ArgumentTypeError: It is none.
    """
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value >= _LEAST_SECONDS):
        raise ArgumentTypeError(f"{text!r}: expected a finite number, {_LEAST_SECONDS} or more")
    return value


class RecordedClock:
    """A timer for pytest-benchmark on which a call takes as long as it was measured to take.

    It stands at 0 when a round begins, so that the round's time is the sample to the last bit.
    """

    def __init__(self) -> None:
        self.__name__ = "kvbench_wall_clock"  # what pytest-benchmark's files call it
        self._now_s = 0.0

    def __call__(self) -> float:
        return self._now_s

    def replay(self, benchmark: Any, samples_s: Sequence[float]) -> None:
        """Let each round of a benchmark take one sample, in order.

        Args:
            benchmark: pytest-benchmark's fixture, which has this as its timer.
            samples_s: Seconds per call.
        """
        left = iter(samples_s)

        def rewind() -> None:
            self._now_s = 0.0

        def take() -> None:
            self._now_s = next(left)

        benchmark.pedantic(take, setup=rewind, rounds=len(samples_s), iterations=1)


@dataclass
class Suite:
    """The cells of a session, each case measured once, when the first test asks for it.

    It measures in this process: a strategy that ends it ends the session, and a debugger sees all.
    """

    device: torch.device
    cell_seconds: float
    command: str
    selected: list[Cell] = field(default_factory=list)
    """What this session runs; strategies that it leaves out are not measured."""
    _rows: dict[str, list[Result]] = field(default_factory=dict)
    _handed_over: set[Cell] = field(default_factory=set)
    _checked: dict[tuple[str, str], tuple[Status, str]] = field(default_factory=dict)

    @functools.cached_property
    def plan(self) -> Plan:
        """The sweep that this is a selection of, with how it is measured."""
        return Plan(
            cases=tuple(CASES.values()),
            strategies=tuple(registry.all_strategies()),
            device=self.device,
            command=self.command,
            preset=PRESET.name,
            seed=0,
            cell_seconds=self.cell_seconds,
            call_budget_s=CALL_BUDGET_S,
            layers=LAYERS,
            clocks=(),
            cache="hot",
        )

    @functools.cached_property
    def _measurer(self) -> InProcess:
        return InProcess(self.plan.settings())

    @functools.cached_property
    def info(self) -> RunInfo:
        """What holds for every row; to know it, the device is looked at, and a copy measured."""
        return run_info(self.plan, self._measurer.machine)

    def rows(self, cell: Cell) -> list[Result]:
        """A cell's rows, one per clock, or the one that says why its strategy was not timed."""
        name, phase, label = cell
        if label not in self._rows:
            names = dict.fromkeys(s for s, _, where in self.selected if where == label)
            strategies = [registry.get(each) for each in names]
            self._rows[label] = self._measurer.measure(CASES[label], strategies)
        own = [row for row in self._rows[label] if row.strategy == name]
        return [row for row in own if row.phase == phase] or own

    def check(self, cell: Cell) -> tuple[Status, str]:
        """Whether a cell's strategy is right, without timing it: as `check_case`, once a case.

        What would not be timed in any case, and takes long, is not run here either.
        """
        name, _, label = cell
        if (name, label) not in self._checked:
            self._checked[name, label] = self._check(CASES[label], registry.get(name))
        return self._checked[name, label]

    def _check(self, case: Case, strategy: Strategy) -> tuple[Status, str]:
        why = strategy.untimed(self.device)
        if why and strategy.supports(case, self.device) is None:
            call_s = estimate(strategy, case, self.device).call_s
            if call_s > UNTIMED_SHARE * CALL_BUDGET_S:
                return "over budget", f"one call would take about {format_seconds(call_s)} ({why})"
        return check_case(case, strategy, self.device)

    def repro(self, cell: Cell) -> str:
        """The command that checks a cell's strategy again."""
        command = repro(CASES[cell[2]], registry.get(cell[0]), self.device)
        return command.replace(" run ", " check ", 1)

    def hand_over(self, cell: Cell) -> None:
        """Note that a cell's rows are with its benchmark."""
        self._handed_over.add(cell)

    def other_rows(self) -> list[Result]:
        """The rows measured that are with no benchmark: of what failed, or was not timed."""
        return [
            row
            for label, rows in self._rows.items()
            for row in rows
            if (row.strategy, row.phase, label) not in self._handed_over
        ]


def settle(status: Status, reason: str, repro: str) -> None:
    """End a test whose strategy has no time: fail it where that is a fault, else skip it."""
    if status in FAULTS:
        pytest.fail(f"{status}: {reason}\n  {repro}", pytrace=False)
    pytest.skip(f"{status}: {reason}")


def timed(rows: Iterable[Result]) -> Result:
    """A cell's row by the wall clock, which has a measurement; a cell without one ends its test.

    A fault by any clock is a fault of the cell.
    """
    found = list(rows)
    for row in sorted(found, key=lambda row: row.status not in FAULTS):
        if row.status in FAULTS or (row.clock == "wall" and row.measurement is None):
            settle(row.status, str(row.reason), row.repro)
    return next(row for row in found if row.clock == "wall")


def extra_info(rows: Sequence[Result]) -> dict[str, Any]:
    """What a benchmark has beside its times.

    Args:
        rows: A cell's, one of them by the wall clock and with a measurement.
    """
    row = next(row for row in rows if row.clock == "wall")
    measurement, launches = row.measurement, row.launches
    if measurement is None:
        raise ValueError(f"{row.strategy} {row.phase}: expected a row with a measurement")
    medians_s = {
        each.clock: each.measurement.median_s if each.measurement else None for each in rows
    }
    return {
        "strategy": row.strategy,
        "phase": row.phase,
        "case": row.case.fields(),
        "clock": row.clock,
        "launches": None
        if launches is None
        else {
            "kernels": launches.kernels,
            "memcpys": launches.memcpys,
            "synchronizations": launches.synchronizations,
            "source": launches.source,
        },
        "nbytes": measurement.nbytes,
        "copy_share": measurement.copy_share,
        "median_s": measurement.median_s,
        "low_s": measurement.low_s,
        "high_s": measurement.high_s,
        "confidence": measurement.confidence,
        "floor_s": measurement.floor_s,
        "resolved": measurement.resolved,
        "stopped_by": measurement.stopped_by,
        "device_s": medians_s.get("device"),
        "medians_s": medians_s,
        "repro": row.repro,
        "rows": rows_of(rows),
    }


def unlike(saved: RunInfo, info: RunInfo) -> list[str]:
    """What keeps a session's times from being compared with saved ones, each in words.

    Another commit is none of it: that is what they are compared for.
    """
    here = info.environment
    code = {name: getattr(here, name) for name in ("kvbench", "git_commit", "git_dirty")}
    found = differences(dataclasses.replace(saved.environment, **code), here, same_device=True)
    return found + differing_limits(saved, info)
