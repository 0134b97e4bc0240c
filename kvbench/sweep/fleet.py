"""A sweep over the machines of a cluster: each case on one of them, each kind of machine a run.

Machines of one kind share the sweep, each as a session of one run; another kind of machine measures
the whole sweep for itself, in a run of its own, since times of unlike machines don't compare.
"""

import re
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

import torch

from kvbench.cases import Case
from kvbench.errors import KvbenchError, StoreError
from kvbench.results import Result
from kvbench.sessions import differences
from kvbench.store import Lock, RunWriter, has_run, reserve
from kvbench.strategies.base import Strategy
from kvbench.strategies.registry import file_of
from kvbench.sweep.bench import Machine, Settings
from kvbench.sweep.cluster import Answer, Place
from kvbench.sweep.runner import Plan, missing_cases, refuse_mixing, run_info, session_of
from kvbench.sweep.survive import lost

_MOST_LOSSES = 2
"""Hosts that a case may cost before it is given up: it may be the case that ends them."""
_MOST_FAILURES = 3
"""Times in a row that a host may be lost before its place is left alone."""
_LOOK_EVERY_S = 2.0
"""How often to look for machines that have joined, or come back."""


class Hosts(Protocol):
    """What a cluster offers: see `cluster.Cluster`."""

    def places(self, device: torch.device) -> list[Place]: ...  # noqa: D102 - as there
    def open(  # noqa: D102
        self, place: Place, settings: Settings, strategies: Sequence[Strategy], hang_s: float
    ) -> None: ...
    def close(self, place: Place) -> None: ...  # noqa: D102
    def submit(self, place: Place, case: Case) -> None: ...  # noqa: D102
    def busy(self) -> bool: ...  # noqa: D102
    def answers(self, wait_s: float) -> Iterator[Answer]: ...  # noqa: D102
    def is_open(self, place: Place) -> bool: ...  # noqa: D102


@dataclass(frozen=True, slots=True)
class Told:
    """Who wants to know of a sweep's progress."""

    on_begin: Callable[[int], None] = lambda _: None
    """So many cases are to be measured, on the kinds of machines known so far."""
    on_case: Callable[[Case, Sequence[Result]], None] = lambda *_: None
    """A case is measured, and its rows are on disk."""
    on_note: Callable[[str], None] = lambda _: None
    """A machine joined, was lost, or can't take part; a line."""


@dataclass(frozen=True, slots=True)
class FleetEnded:
    """How a sweep over a cluster ended."""

    folders: tuple[Path, ...]
    """The runs, one for each kind of machine."""
    measured: int
    left: int
    """Cases still to be measured, on all kinds of machines together."""
    why: Literal["complete", "time budget", "no machine left"]


@dataclass(slots=True)
class _Kind:
    """Machines that differ in nothing that matters, and their run."""

    store: RunWriter
    queue: deque[Case]
    losses: Counter[Case] = field(default_factory=Counter)


class Fleet:
    """Hands cases out, and takes rows in.

    Args:
        plan: What to measure; its device and clocks are those of each host.
        hosts: The cluster.
        folder: Where to; each kind of machine has a folder in it.
        hang_s: The longest that a step may take.
        told: Whom to tell.
    """

    def __init__(self, plan: Plan, hosts: Hosts, folder: Path, hang_s: float, told: Told) -> None:
        self._plan = plan
        self._hosts = hosts
        self._folder = folder
        self._hang_s = hang_s
        self._told = told
        self._stores = ExitStack()
        self._kinds: list[_Kind] = []
        self._joined: dict[Place, tuple[_Kind, int]] = {}
        """The kind and the session of each host that may be given cases."""
        self._at_work: set[Place] = set()
        self._failures: Counter[Place] = Counter()
        self._measured = 0
        self._looked = -float("inf")

    def run(self, deadline: float) -> FleetEnded:
        """Measure until nothing is missing, nobody is left, or time.monotonic() is `deadline`.

        Raises:
            KvbenchError: No machine can be measured on.
            StoreError: A run can't be written to, or was measured with other limits.
        """
        with self._stores:
            while True:
                in_time = time.monotonic() < deadline
                if in_time:
                    self._look_for_places()
                    self._hand_out()
                if not self._hosts.busy():  # nothing to do, or nobody to do it
                    return self._ended(in_time=in_time)
                for answer in self._hosts.answers(1.0):
                    self._take(answer)

    def _ended(self, *, in_time: bool) -> FleetEnded:
        left = sum(len(kind.queue) for kind in self._kinds)
        if in_time and not self._kinds:
            raise KvbenchError("no machine of the cluster could be measured on; expected one")
        why: Literal["complete", "time budget", "no machine left"] = "complete"
        if left or not self._kinds:
            why = "no machine left" if in_time else "time budget"
            left = left or len(self._plan.cases)
        folders = tuple(kind.store.folder for kind in self._kinds)
        return FleetEnded(folders, self._measured, left, why)

    def _look_for_places(self) -> None:
        now = time.monotonic()
        if now - self._looked < _LOOK_EVERY_S and self._hosts.busy():
            return
        self._looked = now
        if self._kinds and not any(kind.queue for kind in self._kinds) and not self._at_work:
            return  # nothing is left to do
        for place in self._hosts.places(self._plan.device):
            if not self._hosts.is_open(place) and self._failures[place] < _MOST_FAILURES:
                self._hosts.open(place, self._plan.settings(), self._plan.strategies, self._hang_s)

    def _hand_out(self) -> None:
        for place, (kind, _) in self._joined.items():
            if kind.queue and place not in self._at_work:
                self._hosts.submit(place, kind.queue.popleft())
                self._at_work.add(place)

    def _take(self, answer: Answer) -> None:
        place, case, value = answer.place, answer.case, answer.value
        self._at_work.discard(place)
        if isinstance(value, str):
            self._lose(place, case, value)
        elif isinstance(value, Machine):
            self._join(place, value)
        elif case is not None:
            kind, session = self._joined[place]
            self._failures[place] = 0
            self._append(kind, session, case, value)

    def _append(self, kind: _Kind, session: int, case: Case, rows: Sequence[Result]) -> None:
        stored = kind.store.append(*rows, session=session)
        self._measured += 1
        self._told.on_case(case, stored)

    def _lose(self, place: Place, case: Case | None, reason: str) -> None:
        """A host ended, or can do no more: its case goes to another."""
        if self._hosts.is_open(place):  # it said so itself: it would say so again
            self._hosts.close(place)
            self._failures[place] = _MOST_FAILURES
            self._told.on_note(f"{place} takes no part: {reason}")
        else:
            self._failures[place] += 1
            self._told.on_note(f"{place} was lost: {reason}")
        if place not in self._joined:
            return
        kind, session = self._joined.pop(place)
        if case is None:
            return
        kind.losses[case] += 1
        if kind.losses[case] < _MOST_LOSSES:
            kind.queue.appendleft(case)
            return
        settings = self._plan.settings()
        why = f"{_MOST_LOSSES} hosts were lost while they measured this case, the last: {reason}"
        rows = [
            lost(case, strategy.name, file_of(strategy), settings, "crashed", why)
            for strategy in self._plan.strategies_for(case)
        ]
        self._append(kind, session, case, rows)

    def _join(self, place: Place, machine: Machine) -> None:
        """Let a host take part, in the run of its kind."""
        session = session_of(self._plan, machine)
        for kind in self._kinds:
            if not _unlike(kind.store, machine):
                number = kind.store.begin_session(session)
                break
        else:
            kind, number = self._new_kind(machine)
            self._kinds.append(kind)
            self._told.on_begin(sum(len(each.queue) for each in self._kinds) + self._measured)
        self._joined[place] = (kind, number)
        self._told.on_note(f"{place} takes part, into {kind.store.folder}")

    def _new_kind(self, machine: Machine) -> tuple[_Kind, int]:
        """The run of a kind of machine: the one that is there already, or a new one."""
        name = re.sub(r"[^a-z0-9]+", "-", machine.environment.device_name.lower()).strip("-")
        for number in range(1, 1000):
            folder = self._folder / (name if number == 1 else f"{name}-{number}")
            if any(folder == kind.store.folder for kind in self._kinds):
                continue
            if not has_run(folder):
                store = RunWriter(folder, run_info(self._plan, machine))
                self._stores.enter_context(store)
                return _Kind(store, deque(self._plan.in_order())), 0
            store, run = RunWriter.resume(folder)
            self._stores.enter_context(store)
            unlike = _unlike(store, machine)
            if unlike:
                self._told.on_note(f"{folder} is of another kind: {', '.join(unlike)}")
                continue
            refuse_mixing(self._plan, run.info, machine.environment, same_device=False)
            missing = missing_cases(self._plan, run)
            return _Kind(store, deque(missing)), store.begin_session(
                session_of(self._plan, machine)
            )
        raise StoreError(f"{self._folder}: too many kinds of machines named {name!r}")


def _unlike(store: RunWriter, machine: Machine) -> list[str]:
    return differences(store.info.environment, machine.environment, same_device=False)


@contextmanager
def _claimed(folder: Path, *, resume: bool) -> Iterator[None]:
    """A folder of runs that no other process writes to."""
    if not (resume and folder.is_dir()):
        with reserve(folder):
            yield
        return
    if has_run(folder):
        raise StoreError(
            f"output folder {str(folder)!r} holds the run of one machine; expected the folder of a "
            "sweep with --ray, or a new one"
        )
    with Lock(folder):
        yield


def run_fleet(
    plan: Plan,
    hosts: Hosts,
    folder: Path,
    told: Told,
    *,
    resume: bool = False,
    hang_s: float = 300.0,
    time_budget_s: float | None = None,
) -> FleetEnded:
    """Measure every case of a plan on each kind of machine of a cluster.

    Args:
        plan: What to measure.
        hosts: The cluster.
        folder: Where to; empty or new, unless runs are resumed.
        told: Whom to tell of progress.
        resume: Go on with the runs in the folder.
        hang_s: The longest that a step may take.
        time_budget_s: Hand out no case later than this.

    Raises:
        KvbenchError: No machine can be measured on.
        StoreError: The folder holds something else, can't be written, or is another's.
    """
    deadline = float("inf") if time_budget_s is None else time.monotonic() + time_budget_s
    with _claimed(folder, resume=resume):
        return Fleet(plan, hosts, folder, hang_s, told).run(deadline)
