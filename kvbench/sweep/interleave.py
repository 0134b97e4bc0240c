"""Two trees measured in turns: every round has a sample of each side's every subject.

What a machine does meanwhile then hits both alike. What a process happens to be like (where its
memory lies, what the caches hold of its code) does not change while it lives, so that there are
several pairs of processes, and a difference is one that pairs agree on (Kalibera and Jones,
"Rigorous benchmarking in reasonable time", 2013).
"""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from kvbench.analysis.statistics import median_interval
from kvbench.cases import Case
from kvbench.results import LaunchCounts, Phase, Result
from kvbench.sweep import messages
from kvbench.sweep.bench import Settings
from kvbench.sweep.sides import Side, SideEnded
from kvbench.sweep.survive import lost
from kvbench.timing.rounds import (
    StoppingRule,
    sample_those_that_work,
)

_CLOCKS = ("wall", "enqueue", "device", "events", "graph")
"""In the order in which a side uses them."""

Key = tuple[str, str, Phase]
"""Side, strategy, phase."""


class RemoteCall:
    """A subject in a side's process."""

    def __init__(self, side: Side, subject: int, strategy: str) -> None:
        self._side, self._subject, self._strategy = side, subject, strategy

    def sample(self, calls: int) -> float:
        """Seconds per call, as the side's clock says."""
        return self._side.sample(self._subject, self._strategy, calls)

    def __call__(self) -> object:
        """One call."""
        return self.sample(1)


class RemoteClock:
    """A clock of the sides' processes."""

    def __init__(self, name: str, least_calls: int) -> None:
        self.name, self.least_calls = name, least_calls

    def sample(self, call: object, calls: int) -> float:
        """Seconds per call, as the mean of so many calls in a row."""
        assert isinstance(call, RemoteCall)  # noqa: S101 - nothing else is given to it
        return call.sample(calls)

    def refuses(self, launches: LaunchCounts) -> str | None:  # noqa: ARG002 - a Clock's
        """Nothing: the side has refused already."""
        return None

    def most_calls(self, launches: LaunchCounts | None) -> int | None:  # noqa: ARG002 - a Clock's
        """Any number: the side has said how many."""
        return None


@dataclass(slots=True)
class Interleaved:
    """What several pairs of processes find, case by case."""

    settings: Settings
    rule: StoppingRule
    rows: dict[str, dict[Case, list[list[Result]]]]
    """By side and case: those of each process, in their order."""
    _calls: dict[tuple[Case, str], dict[Key, int]] = field(default_factory=dict)
    """What the first pair found, so that all samples of a row are alike."""
    _ended: dict[tuple[str, Case], list[Result]] = field(default_factory=dict)
    """Rows of strategies that ended their process, which are not tried again."""

    def measure(
        self, case: Case, sides: Sequence[Side], strategies: Mapping[str, Sequence[str]]
    ) -> None:
        """Measure a case once on both sides, in turns.

        Args:
            case: The case.
            sides: Their processes.
            strategies: By side, the names of those that do the case's op.
        """
        while True:
            left = {
                side.label: [
                    name
                    for name in strategies[side.label]
                    if name not in {row.strategy for row in self._ended_on(side, case)}
                ]
                for side in sides
            }
            try:
                found = self._try(case, sides, left)
            except SideEnded as end:
                for each in (end, *_give_up(side for side in sides if side is not end.side)):
                    self._blame(case, each, left[each.side.label])
                    each.side.renew()
            else:
                break
        for side, rows in zip(sides, found, strict=True):
            of_case = self.rows.setdefault(side.label, {}).setdefault(case, [])
            of_case.append([*self._ended_on(side, case), *rows])

    def _ended_on(self, side: Side, case: Case) -> list[Result]:
        return self._ended.setdefault((side.label, case), [])

    def _blame(self, case: Case, end: SideEnded, left: Sequence[str]) -> None:
        """Leave out whose turn it was: the others are measured anew without it."""
        for name in left if end.strategy is None else [end.strategy]:
            self._ended_on(end.side, case).append(
                lost(case, name, end.side.file_of(name), self.settings, end.status, str(end))
            )

    def _try(
        self, case: Case, sides: Sequence[Side], left: Mapping[str, Sequence[str]]
    ) -> list[list[Result]]:
        at = [side.begin(case, left[side.label]) for side in sides]
        while True:
            waiting = [
                (side, state)
                for side, state in zip(sides, at, strict=True)
                if isinstance(state, messages.Sampling)
            ]
            if not waiting:
                break
            clock = min((state.clock for _, state in waiting), key=_position)
            together = [(side, state) for side, state in waiting if state.clock == clock]
            self._sample(case, together)
            asked = [side for side, _ in together]
            at = [
                side.next() if side in asked else state
                for side, state in zip(sides, at, strict=True)
            ]
        return [
            [_as_asked(side.named(row), case) for row in state.rows]
            for side, state in zip(sides, at, strict=True)
            if isinstance(state, messages.Rows)
        ]

    def _sample(self, case: Case, together: Sequence[tuple[Side, messages.Sampling]]) -> None:
        """Rounds of all subjects of both sides, by the clock that they wait for."""
        clock = together[0][1].clock
        least_calls = max(state.least_calls for _, state in together)
        calls: dict[Key, RemoteCall] = {}
        most: dict[Key, int | None] = {}
        for side, state in together:
            for index, (strategy, phase, limit) in enumerate(state.subjects):
                calls[side.label, strategy, phase] = RemoteCall(side, index, strategy)
                most[side.label, strategy, phase] = limit
        known = self._calls.setdefault((case, clock), {})
        found = sample_those_that_work(
            calls,
            RemoteClock(clock, least_calls),
            self.rule,
            case.seed,
            _let_sides_end,
            most_calls=most,
            calls=known,
            alike=lambda key: key[1:],  # whichever side's
        )
        for key, sampling in found.items():
            known.setdefault(key, sampling.calls_per_sample)
        for side, state in together:
            side.sampled(
                [found.get((side.label, strategy, phase)) for strategy, phase, _ in state.subjects]
            )


def _give_up(sides: Iterable[Side]) -> list[SideEnded]:
    """Let sides end the case that they are in; those that end themselves meanwhile."""
    ended = []
    for side in sides:
        try:
            side.give_up()
        except SideEnded as end:
            ended.append(end)
    return ended


def _position(clock: str) -> int:
    """When a side uses a clock; one of a later kvbench comes last."""
    return _CLOCKS.index(clock) if clock in _CLOCKS else len(_CLOCKS)


def _let_sides_end(_: Key, cause: BaseException) -> None:
    """A subject's failure is its row's, which its side has noted; an end is the case's."""
    if isinstance(cause, SideEnded):
        raise cause


def _as_asked(row: Result, case: Case) -> Result:
    """A row, if it is of the case that was asked for; a tree that lacks an axis passes it over."""
    if row.case == case:
        return row
    differing = [name for name, value in case.fields().items() if row.case.fields()[name] != value]
    return dataclasses.replace(
        row,
        case=case,
        status="unsupported",
        reason=f"this tree does not know {', '.join(differing)} as asked",
        measurement=None,
        launches=None,
    )


def joined(processes: Sequence[Sequence[Result]]) -> list[Result]:
    """One row for each that several processes measured, with all of their samples.

    A row that is not timed in one of them is not timed.

    Args:
        processes: The rows of each, in their order.
    """
    by_strategy: dict[str, list[list[Result]]] = {}
    for rows in processes:
        for name in dict.fromkeys(row.strategy for row in rows):
            own = [row for row in rows if row.strategy == name]
            by_strategy.setdefault(name, []).append(own)
    return [row for each in by_strategy.values() for row in _joined_strategy(each)]


def _joined_strategy(processes: Sequence[Sequence[Result]]) -> list[Result]:
    fewest = min(processes, key=len)
    if any(len(rows) != len(fewest) for rows in processes):
        return list(fewest)  # the one row that says why it wasn't timed
    return [_joined_row(rows) for rows in zip(*processes, strict=True)]


def _joined_row(rows: Sequence[Result]) -> Result:
    measurements = [row.measurement for row in rows if row.measurement is not None]
    if len(measurements) < len(rows):
        return next(row for row in rows if row.measurement is None)
    first = measurements[0]
    samples_s = tuple(time for each in measurements for time in each.samples_s)
    estimate = median_interval(samples_s)
    share = first.copy_share
    return dataclasses.replace(
        rows[0],
        measurement=dataclasses.replace(
            first,
            samples_s=samples_s,
            median_s=estimate.median,
            low_s=estimate.low,
            high_s=estimate.high,
            copy_share=None if share is None else share * first.median_s / estimate.median,
            processes=tuple(len(each.samples_s) for each in measurements),
        ),
    )
