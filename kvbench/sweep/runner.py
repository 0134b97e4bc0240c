"""A sweep: every case in turn, each row on disk as soon as it is known.

Everything that can end a process happens in the measurer, everything that must survive here.
"""

import datetime
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from kvbench.cases import Case
from kvbench.errors import StoreError
from kvbench.results import (
    RETRIED,
    SCHEMA_VERSION,
    CacheState,
    Environment,
    Result,
    Resumption,
    RunInfo,
)
from kvbench.sessions import differences, differing_limits
from kvbench.store import Run, RunWriter, has_run, require_room, reserve
from kvbench.strategies.base import Strategy
from kvbench.sweep.bench import Machine, Settings, examine, set_up
from kvbench.sweep.checking import kernel_notes
from kvbench.sweep.measure import measure_case
from kvbench.sweep.order import in_order
from kvbench.sweep.survive import Measurer, survive
from kvbench.sweep.worker import Worker

_MOST_CLOCKS = 4
"""That any device has."""


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
    clocks: tuple[str, ...]
    """Names; all that the device has if there are none."""
    cache: CacheState

    def strategies_for(self, case: Case) -> list[Strategy]:
        """The strategies that do the case's op."""
        return [s for s in self.strategies if s.op == case.op]

    def rows(self) -> int:
        """The (case, strategy) pairs of the sweep."""
        return sum(len(self.strategies_for(case)) for case in self.cases)

    def most_rows(self, cases: Sequence[Case]) -> int:
        """The most rows that cases can have: one per strategy, phase and clock."""
        clocks = len(self.clocks) or _MOST_CLOCKS
        return sum(
            clocks * len(strategy.phases())
            for case in cases
            for strategy in self.strategies_for(case)
        )

    def settings(self) -> Settings:
        """How the cases are measured."""
        return Settings(
            device=str(self.device),
            clocks=self.clocks,
            cell_seconds=self.cell_seconds,
            call_budget_s=self.call_budget_s,
            cache=self.cache,
        )

    def in_order(self) -> list[Case]:
        """The cases in the order in which they are measured."""
        return in_order(self.cases, self.seed)


class InProcess:
    """Measures in this process: for a debugger, and for strategies that no other process has."""

    def __init__(self, settings: Settings) -> None:
        self.machine = examine(settings)
        self._bench = set_up(settings, self.machine, lambda *_: None)

    def measure(self, case: Case, strategies: Sequence[Strategy]) -> list[Result]:
        """A case's rows."""
        return measure_case(case, strategies, self._bench)

    def notes(self) -> tuple[str, ...]:
        """What there is to say of the kernels that were compiled."""
        return kernel_notes(self._bench.device)

    def stop(self) -> None:
        """Nothing."""


@dataclass(frozen=True, slots=True)
class Told:
    """Who wants to know of a sweep's progress."""

    on_begin: Callable[[Sequence[Case], RunInfo], None]
    on_case: Callable[[Case, Sequence[Result]], None]


@dataclass(frozen=True, slots=True)
class Ended:
    """How a sweep ended."""

    info: RunInfo
    measured: int
    """Cases that this session measured."""
    left: int
    """Cases that are still to be measured."""
    why: Literal["complete", "time budget"]
    notes: tuple[str, ...] = ()
    """What there is to say of the kernels that were compiled."""


def run_sweep(
    plan: Plan,
    folder: Path,
    on_case: Callable[[Case, Sequence[Result]], None],
    *,
    isolate: bool = False,
    resume: bool = False,
    mixed: bool = False,
    hang_s: float = 300.0,
    time_budget_s: float | None = None,
    on_begin: Callable[[Sequence[Case], RunInfo], None] = lambda *_: None,
) -> Ended:
    """Measure every case of a plan into a run folder.

    Args:
        plan: What to measure.
        folder: Where to; empty or new, unless a run is resumed.
        on_case: Called after each case with its rows, which are on disk by then.
        isolate: Measure in a process of its own, which may end without ending the run.
        resume: Go on with the run in the folder, if there is one: measure the cases it lacks, and
            those in which a strategy failed.
        mixed: Resume even on another machine, or with other versions or limits.
        hang_s: The longest that a step of an isolated process may take.
        time_budget_s: Begin no case later than this.
        on_begin: Called before the first case with all that are to be measured, and what was found
            out of the machine.

    Raises:
        StoreError: The folder holds something, or can't be written, or the run in it is of another
            kind.
        WorkerEnded: The isolated process ended before it had measured anything.
    """
    deadline = None if time_budget_s is None else time.monotonic() + time_budget_s
    told = Told(on_begin, on_case)
    start = _starter(plan, hang_s, isolate=isolate)
    if resume and has_run(folder):
        return _go_on(plan, folder, told, deadline, start, mixed=mixed)
    with reserve(folder, plan.most_rows(plan.cases)) as lock:
        measurer = start()
        try:
            info = run_info(plan, measurer.machine)
            with RunWriter(folder, info, lock) as store:
                return _measure_all(plan, plan.in_order(), store, measurer, told, deadline)
        finally:
            measurer.stop()


def _starter(plan: Plan, hang_s: float, *, isolate: bool) -> Callable[[], Measurer]:
    if isolate:
        return lambda: Worker(plan.settings(), plan.strategies, hang_s)
    return lambda: InProcess(plan.settings())


def _go_on(
    plan: Plan,
    folder: Path,
    told: Told,
    deadline: float | None,
    start: Callable[[], Measurer],
    *,
    mixed: bool,
) -> Ended:
    store, run = RunWriter.resume(folder)
    with store:
        missing = missing_cases(plan, run)
        if not missing:
            return Ended(run.info, 0, 0, "complete")
        require_room(folder, plan.most_rows(missing))
        measurer = start()
        try:
            if not mixed:
                refuse_mixing(plan, run.info, measurer.machine.environment)
            store.begin_session(session_of(plan, measurer.machine))
            return _measure_all(plan, missing, store, measurer, told, deadline)
        finally:
            measurer.stop()


def _measure_all(
    plan: Plan,
    cases: Sequence[Case],
    store: RunWriter,
    measurer: Measurer,
    told: Told,
    deadline: float | None,
) -> Ended:
    told.on_begin(cases, store.info)
    settings = plan.settings()
    for number, case in enumerate(cases):
        if deadline is not None and time.monotonic() >= deadline:
            left = len(cases) - number
            return Ended(store.info, number, left, "time budget", measurer.notes())
        rows = store.append(*survive(case, plan.strategies, settings, measurer))
        told.on_case(case, rows)
    return Ended(store.info, len(cases), 0, "complete", measurer.notes())


def missing_cases(plan: Plan, run: Run) -> list[Case]:
    """The cases of a plan that a run lacks, in order: one strategy without its rows is enough.

    All strategies of a case are measured again then, since samples compare within rounds.
    """
    rows: dict[tuple[Case, str], list[Result]] = {}
    for row in run.results:
        rows.setdefault((row.case, row.strategy), []).append(row)
    clocks = len(run.info.floors_s)

    def done(case: Case, strategy: Strategy) -> bool:
        own = rows.get((case, strategy.name), [])
        if not own or any(row.status in RETRIED for row in own):
            return False
        if all(row.measurement is None for row in own):
            return True
        # Killed while they were written, a case's rows may end anywhere.
        return len(own) == clocks * len(strategy.phases())

    def one_session(case: Case) -> bool:
        names = [strategy.name for strategy in plan.strategies_for(case)]
        return len({row.session for name in names for row in rows.get((case, name), [])}) == 1

    return [
        case
        for case in plan.in_order()
        if not all(done(case, strategy) for strategy in plan.strategies_for(case))
        or not one_session(case)
    ]


def refuse_mixing(
    plan: Plan, info: RunInfo, here: Environment, *, same_device: bool = True
) -> None:
    """Refuse to go on with a run elsewhere, or with other versions or limits.

    Raises:
        StoreError: They differ; the message says in what.
    """
    found = differences(info.environment, here, same_device=same_device)
    found += differing_limits(info, plan)
    if plan.clocks and set(info.floors_s) != set(plan.clocks):
        found.append(f"clocks {sorted(info.floors_s)} (here {sorted(plan.clocks)})")
    if found:
        raise StoreError(
            f"the run was measured with {', '.join(found)}; expected the same, or --allow-mixed"
        )


def now() -> str:
    """ISO 8601, UTC."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def session_of(plan: Plan, machine: Machine) -> Resumption:
    """A later session of a run, on a machine."""
    return Resumption(
        created=now(),
        command=plan.command,
        environment=machine.environment,
        copy_bandwidth=machine.copy_bandwidth,
        findings=machine.findings,
    )


def run_info(plan: Plan, machine: Machine) -> RunInfo:
    """What holds for every row of a new run."""
    return info_of(
        plan.settings(),
        machine,
        command=plan.command,
        preset=plan.preset,
        seed=plan.seed,
        layers=plan.layers,
    )


def info_of(
    settings: Settings,
    machine: Machine,
    *,
    command: str,
    preset: str | None,
    seed: int,
    layers: int,
) -> RunInfo:
    """What holds for every row of a new run, by how and where it is measured.

    Args:
        settings: How.
        machine: Where.
        command: As RunInfo has it.
        preset: As there.
        seed: As there.
        layers: As there.
    """
    return RunInfo(
        schema_version=SCHEMA_VERSION,
        created=now(),
        command=command,
        preset=preset,
        seed=seed,
        cell_seconds=settings.cell_seconds,
        call_budget_s=settings.call_budget_s,
        layers=layers,
        environment=machine.environment,
        copy_bandwidth=machine.copy_bandwidth,
        cache=settings.cache,
        floors_s={name: found.call_s for name, found in machine.floors.items()},
        launch_floor_s=machine.launch_floor_s,
        findings=machine.findings,
    )
