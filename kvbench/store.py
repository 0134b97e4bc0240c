"""A run's folder: run.json, rows.jsonl (append-only, a whole line per row), plots/."""

import dataclasses
import fnmatch
import importlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Any, Self, get_type_hints

import msgspec

from kvbench.cases import Case
from kvbench.errors import InputError, StoreError, unknown
from kvbench.files import replace_file
from kvbench.results import SCHEMA_VERSION, Result, Resumption, RunInfo
from kvbench.units import format_bytes

RUN_FILE = "run.json"
ROWS_FILE = "rows.jsonl"
PLOTS_FOLDER = "plots"
_NEW_RUN_FILE = ".run.json.new"
"""What `replace_file` leaves where it was killed."""
"""run.json while it is written: a run that is killed then has the old one, or none."""

_UNREADABLE = (msgspec.MsgspecError, InputError, RecursionError)
"""What decoding raises: it is no JSON, or none of ours, or nested deeper than any of ours."""

# Unix alone has it.
fcntl: Any = importlib.import_module("fcntl") if find_spec("fcntl") else None


@dataclass(frozen=True, slots=True)
class Run:
    """A run as read back."""

    folder: Path
    info: RunInfo
    results: tuple[Result, ...]
    """Of a strategy that several sessions measured in a case, the last session's rows."""
    warnings: tuple[str, ...]
    """What was passed over while reading, a line each."""


class Lock:
    """A folder that one process writes to. The system lets go of it when the process ends.

    Raises:
        StoreError: Another process writes to it.
    """

    def __init__(self, folder: Path) -> None:
        self._fd = os.open(folder, os.O_RDONLY) if fcntl else None
        if self._fd is None:
            return
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self.release()
            raise StoreError(
                f"output folder {str(folder)!r}: another kvbench is writing to it; "
                "expected a folder of this run's own"
            ) from error

    def release(self) -> None:
        """Let others write."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()


_ROW_BYTES = 4096
"""Of a row on disk, at most: with all of its samples."""


def reserve(folder: Path, rows: int = 0) -> Lock:
    """Claim a folder, before anything is measured, and keep others from it.

    Args:
        folder: Empty, or not there yet.
        rows: How many rows are to be written.

    Raises:
        StoreError: The folder holds something already, can't be written to, has no room, or is
            another's.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = Lock(folder)
    except OSError as error:
        raise _unwritable(folder, error) from error
    try:
        _refuse_occupied(folder)
        require_room(folder, rows)
    except StoreError:
        lock.release()
        raise
    return lock


def _refuse_occupied(folder: Path) -> None:
    try:
        occupied = any(path.name != _NEW_RUN_FILE for path in folder.iterdir())
        if not occupied:
            with tempfile.TemporaryFile(dir=folder):
                pass
    except OSError as error:
        raise _unwritable(folder, error) from error
    if occupied:
        what = "another run" if has_run(folder) else "other files"
        raise StoreError(
            f"output folder {str(folder)!r} holds {what}; expected an empty or a new folder"
        )


def _unwritable(folder: Path, error: OSError) -> StoreError:
    return StoreError(
        f"output folder {str(folder)!r}: {error.strerror}; expected a folder to write to"
    )


def require_room(folder: Path, rows: int) -> None:
    """Refuse to begin what the disk has no room for.

    Raises:
        StoreError: The disk of the folder has less room than so many rows may take.
    """
    free, needed = shutil.disk_usage(folder).free, rows * _ROW_BYTES
    if needed > free:
        raise StoreError(
            f"output folder {str(folder)!r}: {format_bytes(free)} are free on its disk; expected "
            f"room for {rows} rows, up to {format_bytes(needed)}"
        )


def has_run(folder: Path) -> bool:
    """Whether there is a run to resume in `folder`."""
    try:
        return (folder / RUN_FILE).exists()
    except OSError:  # as of a name that is too long: who writes there is told why not
        return False


class RunWriter:
    """Appends rows to a run's folder, each on disk before `append` returns.

    Args:
        folder: A new run's folder: empty, or not there yet.
        info: What holds for the run.
        lock: What `reserve` gave for the folder.

    Raises:
        StoreError: The folder holds something already, or can't be written to, or another process
            writes to it.
    """

    def __init__(self, folder: Path, info: RunInfo, lock: Lock | None = None) -> None:
        if lock is None:
            lock = reserve(folder)
        self._lock = lock
        self._open(folder, info, session=0)

    @classmethod
    def resume(cls, folder: Path) -> tuple[Self, Run]:
        """Go on with a run; a torn last line, which a killed run may leave, is cut off.

        Returns:
            The writer, and the run as it is so far. Rows belong to the last session until
            `begin_session` is called.

        Raises:
            StoreError: There is no run, it can't be read or written to, or another process writes
                to it.
        """
        if not has_run(folder):
            raise StoreError(f"run {str(folder)!r}: no {RUN_FILE}; expected a run to resume")
        self = cls.__new__(cls)
        self._lock = Lock(folder)
        try:
            (folder / ROWS_FILE).touch()  # a run killed before its first row has none
            run = load(folder)
            torn = _torn_bytes(folder / ROWS_FILE)
            if torn:
                path = folder / ROWS_FILE
                os.truncate(path, path.stat().st_size - torn)
            self._open(folder, run.info, session=len(run.info.resumptions))
        except OSError as error:
            self._lock.release()
            raise StoreError(f"run {str(folder)!r}: {error.strerror}") from error
        except StoreError:
            self._lock.release()
            raise
        return self, run

    def _open(self, folder: Path, info: RunInfo, *, session: int) -> None:
        self.folder = folder
        self.info = info
        self.session = session
        self._encoder = msgspec.json.Encoder()
        try:
            self._write_info()
            # Unbuffered and in append mode: a case's rows are one write of whole lines.
            self._rows = (folder / ROWS_FILE).open("ab", buffering=0)
        except OSError as error:
            self._lock.release()
            raise StoreError(
                f"{folder / RUN_FILE}: {error.strerror}; nothing was measured"
            ) from error

    def _write_info(self) -> None:
        encoded = msgspec.json.format(msgspec.json.encode(self.info), indent=2)
        replace_file(self.folder / RUN_FILE, encoded + b"\n")

    def begin_session(self, resumption: Resumption) -> int:
        """Let what is appended from now on belong to a new session.

        Returns:
            Its number.

        Raises:
            StoreError: run.json can't be written.
        """
        self.info = dataclasses.replace(self.info, resumptions=(*self.info.resumptions, resumption))
        self.session += 1
        try:
            self._write_info()
        except OSError as error:
            raise StoreError(f"{self.folder / RUN_FILE}: {error.strerror}") from error
        return self.session

    def append(self, *results: Result, session: int | None = None) -> tuple[Result, ...]:
        """Write the rows of a case at once.

        Args:
            results: The rows.
            session: Which session measured them; the last one begun if None.

        Returns:
            The rows as they are on disk.

        Raises:
            StoreError: The disk took no more, or not the whole row.
        """
        number = self.session if session is None else session
        rows = tuple(dataclasses.replace(row, session=number) for row in results)
        lines = b"".join(self._encoder.encode(row) + b"\n" for row in rows)
        try:
            count = self._rows.write(lines)
        except OSError as error:
            raise StoreError(f"{ROWS_FILE}: {error.strerror}; earlier rows are kept") from error
        if count != len(lines):
            raise StoreError(f"{ROWS_FILE}: the last row was cut short; earlier rows are kept")
        return rows

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            with self._rows:
                os.fsync(self._rows.fileno())
        except OSError as fault:
            raise StoreError(f"{ROWS_FILE}: {fault.strerror}; the last rows may be lost") from fault
        finally:
            self._lock.release()


def _torn_bytes(path: Path) -> int:
    """Bytes behind the last whole line."""
    return len(path.read_bytes().rpartition(b"\n")[2])


def _latest(results: Iterable[Result]) -> tuple[Result, ...]:
    """Of each strategy in each case the rows of the last session that measured it."""
    rows = list(results)
    if not any(row.session for row in rows):
        return tuple(rows)
    numbers: dict[tuple[Case, str], int] = {}
    owners = [numbers.setdefault((row.case, row.strategy), len(numbers)) for row in rows]
    last = [0] * len(numbers)
    for owner, row in zip(owners, rows, strict=True):
        last[owner] = max(last[owner], row.session)
    return tuple(row for owner, row in zip(owners, rows, strict=True) if row.session == last[owner])


def load(folder: Path) -> Run:
    """Read a run back.

    A torn last line (a run that was killed while writing) is passed over with a warning.

    Raises:
        StoreError: No run there, a schema of another version, or a line that is no row, or has been
            there before.
    """
    info = _load_info(folder)
    path = folder / ROWS_FILE
    warnings = []
    results: list[Result] = []
    decode = _row_decoder()
    seen: set[int] = set()
    try:
        # A line at a time: of the file no more than that is held beside the rows.
        with path.open("rb") as lines:
            for number, line in enumerate(lines, start=1):
                if not line.endswith(b"\n"):
                    warnings.append(
                        f"{path}: line {number} is torn after {len(line)} bytes; passed over"
                    )
                    break
                try:
                    row = decode(line[:-1])
                except _UNREADABLE as error:
                    raise StoreError(
                        f"{path}: line {number} is no row: {error}; "
                        f"expected one JSON object of schema version {SCHEMA_VERSION}"
                    ) from error
                if row.session > len(info.resumptions):
                    raise StoreError(
                        f"{path}: line {number} is of session {row.session}; expected one of those "
                        f"in {RUN_FILE}, 0 to {len(info.resumptions)}"
                    )
                # Hashes: what they are of would take as much memory as a row.
                if hash(_measured(row)) in seen:
                    _refuse_again(row, results, path)
                seen.add(hash(_measured(row)))
                results.append(row)
    except OSError as error:
        raise StoreError(f"run {str(folder)!r}: {ROWS_FILE}: {error.strerror}") from error
    return Run(folder, info, _latest(results), tuple(warnings))


def _measured(row: Result) -> tuple[object, ...]:
    """What a run has one row of. Rows of a case share the very object; hashing it takes longest."""
    return (id(row.case), row.strategy, row.phase, row.clock, row.session)


def _refuse_again(row: Result, before: Sequence[Result], path: Path) -> None:
    for number, other in enumerate(before, start=1):
        if _measured(other) == _measured(row):
            raise StoreError(
                f"{path}: line {len(before) + 1} measures what line {number} does "
                f"({row.strategy}, {row.phase}, {row.clock}; {row.case.label()}); "
                "expected one row of each"
            )


def without(run: Run, patterns: Iterable[str]) -> Run:
    """A run without some of its strategies; what is left compares as if they had not been there.

    Args:
        run: The run.
        patterns: Names of strategies, or globs as "*.native".

    Raises:
        InputError: A pattern names no strategy of the run, or nothing is left.
    """
    wanted = tuple(patterns)
    names = {row.strategy for row in run.results}
    left = set(names)
    for pattern in wanted:
        matched = {name for name in names if fnmatch.fnmatchcase(name, pattern)}
        if not matched:
            raise unknown("strategy", pattern, names)
        left -= matched
    if names and not left:
        raise InputError(f"{', '.join(wanted)}: expected some strategy to be left in the run")
    return replace(run, results=tuple(row for row in run.results if row.strategy in left))


def _default(field: "dataclasses.Field[Any]") -> object:
    return msgspec.NODEFAULT if field.default is dataclasses.MISSING else field.default


_RawRow = msgspec.defstruct(
    "_RawRow",
    [
        (f.name, msgspec.Raw if f.name == "case" else get_type_hints(Result)[f.name], _default(f))
        for f in dataclasses.fields(Result)
    ],
    kw_only=True,
    gc=False,
)
"""A row whose case is still JSON."""


def _row_decoder() -> Callable[[bytes], Result]:
    """What decodes a line. Rows of one case share it, and what texts they have in common.

    A case is some 20 numbers and words, decoded and checked once for the 5 to 30 rows that have it.
    """
    whole = msgspec.json.Decoder(Result).decode
    raw = msgspec.json.Decoder(_RawRow).decode
    case_of = msgspec.json.Decoder(Case).decode
    cases: dict[bytes, Case] = {}
    same: dict[Case, Case] = {}
    texts: dict[str, str] = {}

    def decode(line: bytes) -> Result:
        try:
            row = raw(line)
            fields = msgspec.structs.asdict(row)
            encoded = bytes(fields["case"])
            case = cases.get(encoded)
            if case is None:
                case = case_of(encoded)
                case = cases[encoded] = same.setdefault(case, case)  # however it was written
            fields["case"] = case
            for name in ("strategy", "clock", "repro"):
                fields[name] = texts.setdefault(fields[name], fields[name])
            return Result(**fields)
        except _UNREADABLE:
            return whole(line)  # which says where in the row the fault is

    return decode


def _load_info(folder: Path) -> RunInfo:
    path = folder / RUN_FILE
    try:
        data = path.read_bytes()
    except OSError as error:
        inside = _runs_in(folder)
        raise StoreError(
            f"run {str(folder)!r}: no {RUN_FILE} to read ({error.strerror}); "
            f"expected {' or '.join(inside) or 'the folder of a run, as `kvbench run` made it'}"
        ) from error
    return decode_info(data, path)


def _runs_in(folder: Path) -> list[str]:
    try:
        return sorted(str(found.parent) for found in folder.glob(f"*/{RUN_FILE}"))
    except OSError:  # why it can't be read is said anyway
        return []


def decode_info(data: bytes | msgspec.Raw, path: Path) -> RunInfo:
    """What holds for a run, from its JSON.

    Args:
        data: One JSON object.
        path: The file that it is from, for messages.

    Raises:
        StoreError: It is torn, or of another version, or none.
    """
    try:
        version = msgspec.json.decode(data, type=dict[str, object]).get("schema_version")
        if version != SCHEMA_VERSION:
            raise StoreError(
                f"{path}: schema version {version!r}; this kvbench reads version {SCHEMA_VERSION}"
            )
        return msgspec.json.decode(data, type=RunInfo)
    except _UNREADABLE as error:
        raise StoreError(f"{path} is torn or no run: {error}") from error
