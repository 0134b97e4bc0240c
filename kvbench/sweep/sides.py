"""The processes of `kvbench ab`, as seen by the one that leads them."""

import dataclasses
import os
import select
import shlex
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from kvbench.cases import Case
from kvbench.errors import KvbenchError
from kvbench.results import Result, Status
from kvbench.sweep import messages
from kvbench.sweep.bench import Machine, Settings
from kvbench.sweep.trees import Tree
from kvbench.units import format_duration

_START_S = 300.0
"""The longest that a process may take to start: it imports torch, and measures a copy."""
_LAST_WORDS_S = 5.0
_READ_BYTES = 1 << 20


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
        files: The user's files of strategies.
        hang_s: The longest that a step may take.
        machine: What an earlier process of the tree found out; None: find out.
    """

    def __init__(
        self,
        label: str,
        tree: Tree,
        settings: Settings,
        patterns: Sequence[str],
        files: Sequence[Path],
        hang_s: float,
        machine: Machine | None = None,
    ) -> None:
        self.label, self.tree = label, tree
        self._settings, self._patterns, self._hang_s = settings, patterns, hang_s
        self._files = {str(tree.file(file)): str(file) for file in files}
        self._machine = machine
        self._start()

    def _start(self) -> None:
        self._turn: str | None = None
        self._waiting: messages.Sampling | None = None
        self._heard = b""
        self._words = tempfile.TemporaryFile()  # noqa: SIM115 - closed by stop
        self._process = subprocess.Popen(  # noqa: S603 - the interpreter that the user named
            [str(self.tree.python), "-m", "kvbench.sweep.side"],
            cwd=self.tree.folder,
            env=self.tree.environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._words,
            start_new_session=True,  # Ctrl-C is the lead's to hear
        )
        self._say(
            messages.SetUp(
                protocol=messages.PROTOCOL,
                settings=self._settings,
                patterns=tuple(self._patterns),
                files=tuple(self._files),
                machine=self._machine,
            )
        )

    def ready(self) -> messages.Ready:
        """Wait until it can measure.

        Raises:
            KvbenchError: It never will; the message has its last words.
        """
        try:
            answer: messages.Ready = self._hear(max(self._hang_s, _START_S))
        except SideEnded as end:
            self.stop()
            raise KvbenchError(f"{self.tree.name}: {end}") from None
        self._machine = answer.machine
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
        """Let it check a case's strategies; what it then waits for."""
        self._turn = None
        self._say(messages.Measure(case=case, strategies=tuple(strategies)))
        return self.next()

    def next(self) -> messages.Sampling | messages.Rows:
        """What it waits for, or has found."""
        while isinstance(answer := self._hear(self._hang_s), messages.Step):
            self._turn = answer.strategy
        found: messages.Sampling | messages.Rows = answer
        self._waiting = found if isinstance(found, messages.Sampling) else None
        return found

    def sample(self, subject: int, strategy: str, calls: int) -> float:
        """One sample, in seconds per call.

        Raises:
            SubjectFailed: The subject raised.
        """
        self._turn = strategy
        self._say(messages.Sample(subject=subject, calls=calls))
        answer = self._hear(self._hang_s)
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

    def sampled(self, outcomes: Sequence[messages.Samples | None]) -> None:
        """Tell it what its rows are made of."""
        self._turn = self._waiting = None
        self._say(messages.Sampled(outcomes=tuple(outcomes)))

    def give_up(self) -> None:
        """Let it end the case that it has begun, whose rows are of no use."""
        while self._waiting is not None:
            self.sampled([None] * len(self._waiting.subjects))
            self.next()

    def stop(self) -> None:
        """End the process, whatever it is doing."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout, self._words):
            if pipe is not None:
                pipe.close()

    def _say(self, message: messages.ToSide) -> None:
        assert self._process.stdin is not None  # noqa: S101 - a pipe was asked for
        try:
            self._process.stdin.write(messages.encode(message) + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # what became of it is found out by listening

    def _hear(self, limit_s: float) -> Any:  # noqa: ANN401 - a message
        line = self._line(limit_s)
        try:
            answer = messages.decode_from_side(line)
        except msgspec.MsgspecError as error:
            raise SideEnded(
                self,
                self._turn,
                "failed",
                f"its answer can't be read: {error}; expected this protocol",
            ) from error
        if isinstance(answer, messages.Refused):
            status: Status = "crashed" if answer.lost_device else "failed"
            raise SideEnded(self, self._turn, status, answer.error)
        return answer

    def _line(self, limit_s: float) -> bytes:
        assert self._process.stdout is not None  # noqa: S101 - a pipe was asked for
        pipe = self._process.stdout.fileno()
        deadline = time.monotonic() + limit_s
        while b"\n" not in self._heard:
            left_s = deadline - time.monotonic()
            if left_s <= 0 or not select.select([pipe], [], [], left_s)[0]:
                raise SideEnded(
                    self,
                    self._turn,
                    "hung",
                    f"no sign of life for {format_duration(limit_s)}, the longest that a step may "
                    "take; it was ended",
                )
            part = os.read(pipe, _READ_BYTES)
            if not part:
                raise SideEnded(self, self._turn, "crashed", self._epitaph())
            self._heard += part
        line, _, self._heard = self._heard.partition(b"\n")
        return line

    def _epitaph(self) -> str:
        try:
            code = self._process.wait(_LAST_WORDS_S)
        except subprocess.TimeoutExpired:
            return "the process that it ran in no longer answers; it was ended"
        self._words.seek(0)
        words = self._words.read().decode("utf-8", "replace").strip().splitlines()
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        last = f": {words[-1]}" if words else ""
        return f"the process that it ran in ended by {how}{last}"
