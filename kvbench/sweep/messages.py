"""What `kvbench ab` and the two processes that it measures say to each other, a JSON line each.

The processes may have other revisions of kvbench, and other Pythons: what is said here may grow by
fields with defaults, and anything else needs a new PROTOCOL.
"""

from typing import Any

import msgspec

from kvbench.cases import Case
from kvbench.errors import InputError
from kvbench.results import Phase, Result, Status
from kvbench.sweep.bench import Machine, Settings
from kvbench.timing import rounds

PROTOCOL = 1


class SetUp(msgspec.Struct, tag=True, frozen=True, kw_only=True):
    """To a side, once: what to measure with."""

    protocol: int
    settings: Settings
    patterns: tuple[str, ...]
    """Of strategies; all if none."""
    files: tuple[str, ...]
    """Python files of the user's, as seen from the side's folder."""
    machine: Machine | None
    """What an earlier process of the side found out; None: find out."""
    core: int = 0
    """The number of the core that its samples begin on, the same as the other side's."""


class Ready(msgspec.Struct, tag=True, frozen=True, kw_only=True):
    """From a side: it can measure."""

    machine: Machine
    strategies: tuple[str, ...]
    """Those that a pattern names."""
    unmatched: dict[str, str]
    """The patterns that name none, each with the error that says so."""
    files: dict[str, str]
    """Of those strategies that are the user's own, the file that each is from, as in SetUp."""


class Measure(msgspec.Struct, tag=True, frozen=True, kw_only=True):
    """To a side: check a case's strategies and be ready to sample them; answered by Rows.

    A side whose kvbench knows no such case answers Unknown.
    """

    case: Case
    strategies: tuple[str, ...]


class Unknown(msgspec.Struct, tag=True, frozen=True, kw_only=True):
    """From a side: its kvbench knows no such case."""

    error: str
    """What it found wrong."""


class Step(msgspec.Struct, tag=True, frozen=True, kw_only=True):
    """From a side: what it is about to do, so that its end can be laid at somebody's door."""

    strategy: str | None
    step: str


class Sampling(msgspec.Struct, tag=True, frozen=True, kw_only=True):
    """From a side: it waits for Sample, and in the end for Sampled, by one clock."""

    clock: str
    least_calls: int
    subjects: tuple[tuple[str, Phase, int | None], ...]
    """Strategy, phase and the most calls of a sample."""


class Sample(msgspec.Struct, tag=True, frozen=True, kw_only=True):
    """To a side: take one sample of a subject; answered by Took or Failed."""

    subject: int
    calls: int


class Took(msgspec.Struct, tag=True, frozen=True, kw_only=True):
    """From a side: seconds per call."""

    seconds: float


class Failed(msgspec.Struct, tag=True, frozen=True, kw_only=True):
    """From a side: the subject raised; what its row says."""

    status: Status
    reason: str


class Sampled(msgspec.Struct, tag=True, frozen=True, kw_only=True):
    """To a side: all samples by that clock, in the order of its subjects."""

    outcomes: tuple[rounds.Sampling | None, ...]
    """None of a subject that failed."""


class Rows(msgspec.Struct, tag=True, frozen=True, kw_only=True):
    """From a side: the case is done."""

    rows: tuple[Result, ...]


class Refused(msgspec.Struct, tag=True, frozen=True, kw_only=True):
    """From a side: it can't go on."""

    error: str
    """One line."""
    lost_device: bool = False
    """Whether a strategy left the device in a state in which nothing works."""


FromSide = Ready | Unknown | Step | Sampling | Took | Failed | Rows | Refused
ToSide = SetUp | Measure | Sample | Sampled

encode = msgspec.json.Encoder().encode
decode_from_side: Any = msgspec.json.Decoder(FromSide).decode
decode_to_side: Any = msgspec.json.Decoder(ToSide).decode

UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, InputError)
"""What decoding raises: it is no JSON, no message, or one of values that a row can't have."""


class _Greeting(msgspec.Struct):
    protocol: int


def protocol_of(line: bytes) -> int:
    """The protocol of a SetUp, whatever else that protocol has it say."""
    return msgspec.json.decode(line, type=_Greeting).protocol
