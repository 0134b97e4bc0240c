"""Sides of `kvbench ab` that need no process of their own, and trees that are a few lines."""

import dataclasses
import sys
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any

from made import environment, measurement, result

from kvbench.cases import Case
from kvbench.errors import KvbenchError
from kvbench.results import CopyBandwidth, Result
from kvbench.sweep import messages
from kvbench.sweep.bench import Machine, Settings
from kvbench.sweep.sides import Side
from kvbench.sweep.trees import Tree
from kvbench.timing.clocks import Floor
from kvbench.timing.rounds import Sampling

SETTINGS = Settings(
    device="cpu", clocks=("wall",), cell_seconds=60.0, call_budget_s=60.0, cache="hot"
)
MACHINE = Machine(
    environment=environment(),
    copy_bandwidth=CopyBandwidth(bytes_per_s=1e9, nbytes=1 << 20, how="torch copy_"),
    cache_bytes=1 << 16,
    floors={"wall": Floor(sample_s=1e-7, call_s=1e-9)},
    launch_floor_s=1e-6,
)
TIMED = ("run", "prepare")
CHECK, PREPARE, SAMPLE, AFTER = "check", "prepare", "sample", "check after timing"


class EndsError(Exception):
    """A simulated process ends."""


@dataclass
class World:
    """What happens to simulated sides, and what they did."""

    strategies: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """By label."""
    files: dict[str, str] = field(default_factory=dict)
    """The user's, by strategy."""
    clocks: dict[str, tuple[str, ...]] = field(default_factory=dict)
    seconds: dict[tuple[str, str], float] = field(default_factory=dict)
    """Of a call, by label and strategy; a millisecond if nothing else is said."""
    fate: Callable[[str, Case, str, str], object] = lambda *_: None
    """Called with label, case, strategy and step, before it; it may raise EndsError or another."""
    samples: list[tuple[str, Case, str, str, str, int]] = field(default_factory=list)
    """Label, case, clock, strategy, phase and calls of each."""
    begun: list[tuple[str, Case, tuple[str, ...]]] = field(default_factory=list)
    starts: Counter[str] = field(default_factory=Counter)
    living: list[str] = field(default_factory=list)

    def side(self, label: str, *arguments: Any, **options: Any) -> "Simulated":
        """A side, as `Side` is made."""
        return Simulated(self, label, *arguments, **options)

    def pair(self) -> list["Simulated"]:
        """Both sides, ready to measure."""
        tree = Tree("tree", Path(sys.executable), Path.cwd(), None)
        sides = [self.side(label, tree, SETTINGS, (), {}, 1.0) for label in ("a", "b")]
        for side in sides:
            side.ready()
        return sides


class Simulated(Side):
    """A side whose process is simulated: what it hears and says are the real messages.

    A side that is listened to when it has nothing to say, or told something out of turn, is an
    error of the test's.
    """

    def __init__(self, world: World, *arguments: Any, **options: Any) -> None:
        self.world = world
        super().__init__(*arguments, **options)

    def _start(self) -> None:
        self._turn, self._busy, self._waiting = None, False, None
        self.inbox: deque[Any] = deque()
        self.life = self._live()
        self.world.starts[self.label] += 1
        self.world.living.append(self.label)
        self.alive = True

    def stop(self) -> None:
        if self.alive:
            self.alive = False
            self.world.living.remove(self.label)

    def _say(self, message: messages.ToSide) -> None:
        self.inbox.append(messages.decode_to_side(messages.encode(message)))

    def _line(self, limit_s: float) -> bytes:
        assert limit_s > 0
        assert self.alive, "it is stopped"
        try:
            return messages.encode(next(self.life))
        except EndsError as error:
            raise self._end("crashed", str(error)) from None

    def _lacks_side(self) -> None:
        return None

    def _live(self) -> Iterator[messages.FromSide]:
        self.world.fate(self.label, Case(op="write", seq_len=1), "", "start")
        names = self.world.strategies[self.label]
        yield ready(strategies=names, files=self.world.files)
        while True:
            asked = self.inbox.popleft()
            assert isinstance(asked, messages.Measure), asked
            assert not self.inbox
            self.world.begun.append((self.label, asked.case, asked.strategies))
            yield from self._case(asked.case, asked.strategies)

    def _case(self, case: Case, strategies: Sequence[str]) -> Iterator[messages.FromSide]:
        rows, subjects = [], []
        self.world.fate(self.label, case, "", "build")
        for name in strategies:
            yield messages.Step(strategy=name, step=CHECK)
            try:
                self.world.fate(self.label, case, name, CHECK)
            except ValueError as error:
                rows.append(_row(case, name, status="failed", reason=str(error)))
            else:
                subjects += [(name, phase) for phase in TIMED]
        for name in dict.fromkeys(name for name, _ in subjects):
            yield messages.Step(strategy=name, step=PREPARE)
            self.world.fate(self.label, case, name, PREPARE)
        outcomes = {}
        for clock in self.world.clocks.get(self.label, ("wall",)) if subjects else ():
            yield from self._sample(case, clock, subjects, outcomes)
        for name in dict.fromkeys(name for name, _ in subjects):
            yield messages.Step(strategy=name, step=AFTER)
            self.world.fate(self.label, case, name, AFTER)
        if subjects:
            yield messages.Step(strategy=None, step="done")
        rows += [_outcome(case, *subject, outcome) for subject, outcome in outcomes.items()]
        yield messages.Rows(rows=tuple(rows))

    def _sample(
        self, case: Case, clock: str, subjects: Sequence[tuple[str, str]], outcomes: dict
    ) -> Iterator[messages.FromSide]:
        yield messages.Sampling(
            clock=clock, least_calls=1, subjects=tuple((*each, None) for each in subjects)
        )
        failed = {}
        while isinstance(asked := self.inbox.popleft(), messages.Sample):
            name, phase = subjects[asked.subject]
            try:
                self.world.fate(self.label, case, name, SAMPLE)
            except ValueError as error:
                failed[name, phase] = str(error)
                yield messages.Failed(status="failed", reason=str(error))
                continue
            self.world.samples.append((self.label, case, clock, name, phase, asked.calls))
            yield messages.Took(seconds=self.world.seconds.get((self.label, name), 1e-3))
        assert isinstance(asked, messages.Sampled), asked
        for subject, samples in zip(subjects, asked.outcomes, strict=True):
            outcomes[(clock, *subject)] = samples or failed.get(subject, "given up")


def _row(case: Case, name: str, phase: str = "run", clock: str = "wall", **fields: Any) -> Result:
    return dataclasses.replace(result(name, phase=phase, clock=clock, **fields), case=case)


def _outcome(case: Case, clock: str, name: str, phase: str, outcome: Sampling | str) -> Result:
    if isinstance(outcome, str):
        return _row(case, name, phase, clock, status="failed", reason=outcome)
    timed = measurement(
        outcome.samples_s,
        calls_per_sample=outcome.calls_per_sample,
        stopped_by=outcome.stopped_by,
    )
    return dataclasses.replace(_row(case, name, phase, clock), measurement=timed)


def ends(label: str, strategy: str, step: str, *, reason: str = "it ended") -> Callable:
    """A fate: that a side's process ends in a strategy's step."""

    def fate(*happening: object) -> None:
        if happening[0] == label and happening[2:] == (strategy, step):
            raise EndsError(reason)

    return fate


def stub(folder: Path, side: str | None, **files: bytes) -> Tree:
    """A tree whose side is a few lines of Python, with `HERE` as its folder; none if None."""
    package = folder / "kvbench" / "sweep"
    package.mkdir(parents=True)
    for each in (package.parent, package):
        (each / "__init__.py").write_text("")
    if side is not None:
        head = "import json, os, sys, time\nfrom pathlib import Path\n"
        head += "HERE = Path(__file__).parents[2]\n"
        (package / "side.py").write_text(head + side)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return Tree("base", Path(sys.executable), folder, None)


def ready(**fields: Any) -> messages.Ready:
    """That a side can measure."""
    return messages.Ready(
        **{"machine": MACHINE, "strategies": (), "unmatched": {}, "files": {}, **fields}
    )


def refusal(folder: Path, side: str | None, **limits: Any) -> str:
    """What the lead says of a stub that never gets ready; nothing of it is left."""
    tree = stub(folder, side)
    started = start(tree, **limits)
    try:
        started.ready()
    except KvbenchError as error:
        assert started._process.returncode is not None
        assert started._words.closed
        return str(error)
    else:
        raise AssertionError("it is ready")
    finally:
        started.stop()


def start(tree: Tree, patterns: Sequence[str] = (), hang_s: float = 20.0) -> Side:
    """A side's process."""
    return Side("a", tree, SETTINGS, patterns, {}, hang_s)


@dataclass
class Heard:
    """What a real side says to a lead in this process, message by message."""

    thread: threading.Thread
    hears: BytesIO
    says: BytesIO

    def say(self, message: messages.ToSide) -> None:
        self.says.write(messages.encode(message) + b"\n")
        self.says.flush()

    def hear(self) -> Any:
        """The next message but steps."""
        while True:
            answer = messages.decode_from_side(self.hears.readline())
            if not isinstance(answer, messages.Step):
                return answer


def measured(results: Mapping[Case, list[list[Result]]], case: Case) -> list[dict[str, str]]:
    """By process, the status of each strategy's rows."""
    return [{row.strategy: row.status for row in rows} for rows in results[case]]
