"""The processes of `kvbench ab`, as seen by the one that leads them."""

import dataclasses
import os
import select
import shlex
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from kvbench.cases import Case
from kvbench.errors import KvbenchError
from kvbench.results import Result, Status
from kvbench.sweep import messages
from kvbench.sweep.bench import Machine, Settings
from kvbench.sweep.measure import one_line
from kvbench.sweep.survive import lost
from kvbench.sweep.trees import Tree
from kvbench.sweep.worker import how_ended
from kvbench.timing.rounds import Sampling
from kvbench.units import format_duration

_START_S = 300.0
"""The longest that a process may take to start: it imports torch, and measures a copy."""
_LAST_WORDS_S = 5.0
_LAST_WORDS_BYTES = 4096
_LOOK_EVERY_S = 0.2
_READ_BYTES = 1 << 20
_SHOWN_BYTES = 60
_MODULE = "kvbench.sweep.side"


class SideEnded(KvbenchError):  # noqa: N818 - it says what became of the side
    """A side's process ended, or was ended, in the middle of a case."""

    def __init__(self, side: "Side", strategy: str | None, status: Status, reason: str) -> None:
        super().__init__(reason)
        self.side = side
        self.strategy = strategy
        """Whose turn it was; None if it was nobody's."""
        self.status: Status = status


class SubjectFailed(Exception):  # noqa: N818 - internal
    """A subject raised in a side's process, which lives on."""


class Side:
    """A process that measures one tree, and is replaced when it ends.

    Args:
        label: Which side it is.
        tree: What it measures.
        settings: How.
        patterns: Of strategies.
        files: Where the tree has the user's files of strategies, with what the user called them.
        hang_s: The longest that a step may take.
        machine: What an earlier process of the tree found out; None: find out.
        core: The number of the core that its samples begin on.

    Raises:
        KvbenchError: What the tree names as its interpreter can't be started.
    """

    def __init__(
        self,
        label: str,
        tree: Tree,
        settings: Settings,
        patterns: Sequence[str],
        files: Mapping[Path, Path],
        hang_s: float,
        machine: Machine | None = None,
        core: int = 0,
    ) -> None:
        self.label, self.tree = label, tree
        self._settings, self._patterns, self._hang_s = settings, patterns, hang_s
        self._files = {str(where): str(name) for where, name in files.items()}
        self._machine, self._core = machine, core
        self._file_of: dict[str, Path] = {}
        self._start()

    def _start(self) -> None:
        self._turn: str | None = None
        self._busy = False
        self._waiting: messages.Sampling | None = None
        self._heard = b""
        self._words = tempfile.TemporaryFile()  # noqa: SIM115 - closed by stop
        try:
            self._process = subprocess.Popen(  # noqa: S603 - the interpreter that the user named
                [str(self.tree.python), "-m", _MODULE],
                cwd=self.tree.folder,
                env=self.tree.environment(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._words,
                start_new_session=True,  # Ctrl-C is the lead's to hear
            )
        except OSError as error:
            self._words.close()
            raise KvbenchError(
                f"{self.tree.name}: {str(self.tree.python)!r} can't be started: {error.strerror}; "
                "expected a Python interpreter"
            ) from error
        try:
            self._say(
                messages.SetUp(
                    protocol=messages.PROTOCOL,
                    settings=self._settings,
                    patterns=tuple(self._patterns),
                    files=tuple(self._files),
                    machine=self._machine,
                    core=self._core,
                )
            )
        except BaseException:  # nobody has it yet who would stop it
            self.stop()
            raise

    def ready(self) -> messages.Ready:
        """Wait until it can measure.

        Raises:
            KvbenchError: It never will; the message has its last words.
        """
        try:
            answer: messages.Ready = self._hear(max(self._hang_s, _START_S), messages.Ready)
        except SideEnded as end:
            why = self._lacks_side() or str(end)
            self.stop()
            raise KvbenchError(f"{self.tree.name}: {why}") from None
        self._machine = answer.machine
        self._file_of = {
            name: Path(self._files.get(file, file)) for name, file in answer.files.items()
        }
        return answer

    def renew(self) -> None:
        """Replace the process by a fresh one.

        Raises:
            KvbenchError: That can't start.
        """
        self.stop()
        self._start()
        self.ready()

    def begin(self, case: Case, strategies: Sequence[str]) -> messages.Sampling | messages.Rows:
        """Let it check a case's strategies; what it then waits for.

        Without strategies it is not asked: building the case may be what ends it.
        """
        if not strategies:
            return messages.Rows(rows=())
        self._turn, self._busy = None, True
        self._say(messages.Measure(case=case, strategies=tuple(strategies)))
        answer = self._next()
        if isinstance(answer, messages.Unknown):
            reason = f"this tree does not know such a case: {answer.error}"
            rows = [
                lost(case, name, self.file_of(name), self._settings, "unsupported", reason)
                for name in strategies
            ]
            return messages.Rows(rows=tuple(rows))
        return answer

    def next(self) -> messages.Sampling | messages.Rows:
        """What it waits for, or has found."""
        answer = self._next()
        if isinstance(answer, messages.Unknown):
            raise self._end("failed", "it does not know what it is measuring")
        return answer

    def _next(self) -> messages.Sampling | messages.Rows | messages.Unknown:
        expected = (messages.Step, messages.Sampling, messages.Rows, messages.Unknown)
        while isinstance(answer := self._hear(self._hang_s, *expected), messages.Step):
            self._turn = answer.strategy
        found: messages.Sampling | messages.Rows | messages.Unknown = answer
        self._waiting = found if isinstance(found, messages.Sampling) else None
        self._busy = self._waiting is not None
        return found

    def file_of(self, strategy: str) -> Path | None:
        """The user's file that it has a strategy from, as the user named it; None: built in."""
        return self._file_of.get(strategy)

    def sample(self, subject: int, strategy: str, calls: int) -> float:
        """One sample, in seconds per call.

        Raises:
            SubjectFailed: The subject raised.
        """
        self._turn = strategy
        self._say(messages.Sample(subject=subject, calls=calls))
        answer = self._hear(self._hang_s, messages.Took, messages.Failed)
        if isinstance(answer, messages.Failed):
            raise SubjectFailed(answer.reason)
        seconds: float = answer.seconds
        return seconds

    def named(self, row: Result) -> Result:
        """A row of its, the user's files in its command as the user named them."""
        command = row.repro
        for where, name in self._files.items():
            command = command.replace(shlex.quote(where), shlex.quote(name))
        return dataclasses.replace(row, repro=command)

    def sampled(self, outcomes: Sequence[Sampling | None]) -> None:
        """Tell it what its rows are made of."""
        self._turn = self._waiting = None
        self._say(messages.Sampled(outcomes=tuple(outcomes)))

    def give_up(self) -> None:
        """Let it end the case that it has begun, whose rows are of no use."""
        while self._busy:
            if self._waiting is not None:
                self.sampled([None] * len(self._waiting.subjects))
            self.next()

    def stop(self) -> None:
        """End the process and those that it has started, whatever they are doing."""
        if self._words.closed:
            return  # done before
        # macOS has no permission for a group of which nobody lives.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout, self._words):
            if pipe is not None:
                with suppress(BrokenPipeError):  # of what it was told and has not heard
                    pipe.close()

    def _say(self, message: messages.ToSide) -> None:
        assert self._process.stdin is not None  # noqa: S101 - a pipe was asked for
        try:
            self._process.stdin.write(messages.encode(message) + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # what became of it is found out by listening

    def _end(self, status: Status, reason: str) -> SideEnded:
        return SideEnded(self, self._turn, status, reason)

    def _hear(self, limit_s: float, *expected: type) -> Any:  # noqa: ANN401 - one of these
        line = self._line(limit_s)
        try:
            answer = messages.decode_from_side(line)
        except messages.UNREADABLE as error:
            raise self._end(
                "failed",
                f"its process said {line[:_SHOWN_BYTES].decode('utf-8', 'replace')!r}; expected "
                f"an answer in the protocol of `kvbench ab` ({one_line(error)})",
            ) from error
        if isinstance(answer, messages.Refused):
            raise self._end("crashed" if answer.lost_device else "failed", answer.error)
        if not isinstance(answer, expected):
            wanted = ", ".join(each.__name__ for each in expected)
            raise self._end(
                "failed", f"its process answered {type(answer).__name__}; expected {wanted}"
            )
        return answer

    def _line(self, limit_s: float) -> bytes:
        assert self._process.stdout is not None  # noqa: S101 - a pipe was asked for
        pipe = self._process.stdout.fileno()
        deadline = time.monotonic() + limit_s
        while b"\n" not in self._heard:
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise self._end(
                    "hung",
                    f"no sign of life for {format_duration(limit_s)}, the longest that a step may "
                    "take; it was ended",
                )
            if select.select([pipe], [], [], min(left_s, _LOOK_EVERY_S))[0]:
                part = os.read(pipe, _READ_BYTES)
            elif self._process.poll() is None or select.select([pipe], [], [], 0)[0]:
                continue
            else:
                part = b""  # a process that it has started holds the pipe open
            if not part:
                raise self._end("crashed", self._epitaph())
            self._heard += part
        line, _, self._heard = self._heard.partition(b"\n")
        return line

    def _epitaph(self) -> str:
        try:
            code = self._process.wait(_LAST_WORDS_S)
        except subprocess.TimeoutExpired:
            return "the process that it ran in no longer answers; it was ended"
        last = self._last_words()
        return f"the process that it ran in ended by {how_ended(code)}{f': {last}' if last else ''}"

    def _last_words(self) -> str:
        end = self._words.seek(0, os.SEEK_END)
        self._words.seek(max(0, end - _LAST_WORDS_BYTES))
        words = self._words.read().decode("utf-8", "replace").strip().splitlines()
        return words[-1].strip() if words else ""

    def _lacks_side(self) -> str | None:
        """Of a process that could not start: whether its tree has nothing to start."""
        last = self._last_words()
        if _MODULE not in last or "No module named" not in last:
            return None
        if last.endswith("No module named 'kvbench')"):
            return f"no kvbench for {str(self.tree.python)!r}; expected one installed"
        return f"its kvbench is from before `kvbench ab`: expected one that has {_MODULE}"
