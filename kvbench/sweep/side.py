"""One side of `kvbench ab`: a process that measures as it is told, sample by sample.

It is started as `python -m kvbench.sweep.side` with the tree that is to be measured first in its
path, and hears and answers `messages` on its standard streams.
"""

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

from kvbench.cases import Case
from kvbench.errors import InputError, KvbenchError
from kvbench.strategies import registry
from kvbench.strategies.base import Strategy
from kvbench.sweep import messages
from kvbench.sweep.bench import examine, set_up
from kvbench.sweep.measure import (
    Bench,
    Call,
    DeviceLostError,
    Outcome,
    Subject,
    measure_case,
    one_line,
    why_not_sampled,
)
from kvbench.sweep.worker import die_with, limit_memory
from kvbench.timing.clocks import Clock
from kvbench.timing.cores import move_to_core
from kvbench.timing.idle import wait_until_idle

_GIVEN_UP: Outcome = ("failed", "its samples were given up")
"""Nobody reads it: of a case that is begun anew since the other side's process ended."""


class Lead:
    """Who tells this process what to do.

    Args:
        hears: What the lead says.
        says: What the lead hears.
    """

    def __init__(self, hears: BinaryIO, says: BinaryIO) -> None:
        self._hears, self._says = hears, says
        self.core = 0
        """The number of the core that samples begin on."""

    def greeting(self) -> messages.SetUp:
        """The first message.

        Raises:
            EOFError: The lead is gone.
            KvbenchError: The lead speaks another protocol.
        """
        line = self._line()
        spoken = messages.protocol_of(line)
        if spoken != messages.PROTOCOL:
            raise KvbenchError(
                f"its kvbench speaks version {messages.PROTOCOL} of the protocol of `kvbench ab`; "
                f"expected {spoken}"
            )
        asked: messages.SetUp = messages.decode_to_side(line)
        self.core = asked.core
        return asked

    def hear(self) -> Any:  # noqa: ANN401 - a message
        """The next message.

        Raises:
            EOFError: The lead is gone, or done.
        """
        return messages.decode_to_side(self._line())

    def _line(self) -> bytes:
        line = self._hears.readline()
        if not line:
            raise EOFError
        return line

    def say(self, message: messages.FromSide) -> None:
        """Answer."""
        self._says.write(messages.encode(message) + b"\n")
        self._says.flush()

    def sample(
        self,
        clock: Clock,
        calls: Mapping[Subject, Call],
        limits: Mapping[Subject, int | None],
        case: Case,  # noqa: ARG002 - a Sampler's
        bench: Bench,
    ) -> dict[Subject, Outcome]:
        """Take samples as the lead asks for them: a `measure.Sampler`."""
        subjects = list(calls)
        # Of a flushed cache a second call would find what the first left.
        most = {subject: 1 if bench.flush else limits[subject] for subject in subjects}
        self.say(
            messages.Sampling(
                clock=clock.name,
                least_calls=clock.least_calls,
                subjects=tuple((s.name, phase, most[s, phase]) for s, phase in subjects),
            )
        )
        failed: dict[Subject, Outcome] = {}
        while isinstance(asked := self.hear(), messages.Sample):
            subject = subjects[asked.subject]
            try:
                move_to_core(self.core)
                if bench.flush is not None:
                    bench.flush()
                else:
                    calls[subject]()  # the other side has used the caches since
                seconds = clock.sample(calls[subject], asked.calls)
                wait_until_idle()  # the next sample may be the other side's
            except Exception as error:  # noqa: BLE001 - any failure of a strategy is its row
                status, reason = why_not_sampled(error, bench)
                failed[subject] = status, reason
                self.say(messages.Failed(status=status, reason=reason))
            else:
                self.say(messages.Took(seconds=seconds))
        return {
            subject: outcome or failed.get(subject, _GIVEN_UP)
            for subject, outcome in zip(subjects, asked.outcomes, strict=True)
        }


def serve(lead: Lead, asked: messages.SetUp) -> None:
    """Measure until the lead is gone.

    Args:
        lead: Who says what.
        asked: What to measure with.

    Raises:
        EOFError: The lead is gone, or done.
        InputError: A file of strategies, or a clock, is none.
        DeviceLostError: A strategy left the device in a state in which nothing works.
    """
    registry.load_builtin()
    for file in asked.files:
        registry.load_file(Path(file))
    strategies, unmatched = _select(asked.patterns)
    machine = asked.machine or examine(asked.settings)

    def on_step(strategy: Strategy | None, step: str) -> None:
        lead.say(messages.Step(strategy=None if strategy is None else strategy.name, step=step))

    bench = set_up(asked.settings, machine, on_step, lead.sample)
    files = {name: registry.file_of(strategy) for name, strategy in strategies.items()}
    lead.say(
        messages.Ready(
            machine=machine,
            strategies=tuple(strategies),
            unmatched=unmatched,
            files={name: str(file) for name, file in files.items() if file is not None},
        )
    )
    while True:
        try:
            next_one = lead.hear()
        except messages.UNREADABLE as error:  # its fields may have values of a later kvbench
            lead.say(messages.Unknown(error=one_line(error)))
            continue
        rows = measure_case(next_one.case, [strategies[s] for s in next_one.strategies], bench)
        lead.say(messages.Rows(rows=tuple(rows)))


def _select(patterns: tuple[str, ...]) -> tuple[dict[str, Strategy], dict[str, str]]:
    """The strategies by name that patterns name, and the patterns that name none here.

    A strategy that one side alone has is no mistake: it is new, or it is gone.
    """
    found: dict[str, Strategy] = {}
    unmatched = {}
    for pattern in patterns:
        try:
            registry.select([pattern])
        except InputError as error:
            unmatched[pattern] = str(error)
    known = [pattern for pattern in patterns if pattern not in unmatched]
    if known or not patterns:
        found = {strategy.name: strategy for strategy in registry.select(known)}
    return found, unmatched


def main() -> None:
    """Serve on the standard streams, of which strategies see nothing."""
    hears, says = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    # What a strategy prints would be taken for an answer, and what it reads for a request.
    os.dup2(2, 1)
    with Path(os.devnull).open("rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    lead = Lead(hears, says)
    die_with(os.getppid())
    try:
        asked = lead.greeting()
        limit_memory(asked.settings.device)
        serve(lead, asked)
    except (EOFError, BrokenPipeError):
        sys.exit()  # the lead is done
    except Exception as error:
        lost = isinstance(error, DeviceLostError)
        said = str(error) if isinstance(error, KvbenchError) else one_line(error)
        lead.say(messages.Refused(error=said, lost_device=lost))
        raise


if __name__ == "__main__":
    main()
