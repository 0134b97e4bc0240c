"""A run's folder: run.json, rows.jsonl (append-only, a whole line per row), plots/."""

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from kvbench.errors import InputError, StoreError
from kvbench.results import SCHEMA_VERSION, Result, RunInfo

RUN_FILE = "run.json"
ROWS_FILE = "rows.jsonl"
PLOTS_FOLDER = "plots"


@dataclass(frozen=True, slots=True)
class Run:
    """A run as read back."""

    folder: Path
    info: RunInfo
    results: tuple[Result, ...]
    warnings: tuple[str, ...]
    """What was passed over while reading, a line each."""


def claim(folder: Path) -> None:
    """Make sure that a run can be written to `folder`, before anything is measured.

    Raises:
        StoreError: The folder holds something already, or can't be written to.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        occupied = any(folder.iterdir())
        if not occupied:
            with tempfile.TemporaryFile(dir=folder):
                pass
    except OSError as error:
        raise StoreError(
            f"output folder {str(folder)!r}: {error.strerror}; expected a folder to write to"
        ) from error
    if occupied:
        what = "another run" if (folder / RUN_FILE).exists() else "other files"
        raise StoreError(
            f"output folder {str(folder)!r} holds {what}; expected an empty or a new folder"
        )


class RunWriter:
    """Appends rows to a new run's folder, each on disk before `append` returns.

    Raises:
        StoreError: The folder holds something already, or can't be written to.
    """

    def __init__(self, folder: Path, info: RunInfo) -> None:
        claim(folder)
        self.folder = folder
        encoded = msgspec.json.format(msgspec.json.encode(info), indent=2)
        try:
            (folder / RUN_FILE).write_bytes(encoded + b"\n")
            # Unbuffered and in append mode: a row is one write of one whole line.
            self._rows = (folder / ROWS_FILE).open("ab", buffering=0)
        except OSError as error:
            raise StoreError(
                f"{folder / RUN_FILE}: {error.strerror}; nothing was measured"
            ) from error
        self._encoder = msgspec.json.Encoder()

    def append(self, result: Result) -> None:
        """Write one row.

        Raises:
            StoreError: The disk took no more, or not the whole row.
        """
        line = self._encoder.encode(result) + b"\n"
        try:
            count = self._rows.write(line)
        except OSError as error:
            raise StoreError(f"{ROWS_FILE}: {error.strerror}; earlier rows are kept") from error
        if count != len(line):
            raise StoreError(f"{ROWS_FILE}: the last row was cut short; earlier rows are kept")

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


def load(folder: Path) -> Run:
    """Read a run back.

    A torn last line (a run that was killed while writing) is passed over with a warning.

    Raises:
        StoreError: No run there, a schema of another version, or a line that is no row.
    """
    info = _load_info(folder)
    try:
        data = (folder / ROWS_FILE).read_bytes()
    except OSError as error:
        raise StoreError(f"run {str(folder)!r}: {ROWS_FILE}: {error.strerror}") from error
    lines = data.split(b"\n")
    torn = lines.pop()
    warnings = []
    if torn:
        warnings.append(
            f"{folder / ROWS_FILE}: line {len(lines) + 1} is torn after {len(torn)} bytes; "
            "passed over"
        )
    decoder = msgspec.json.Decoder(Result)
    results = []
    for number, line in enumerate(lines, start=1):
        try:
            results.append(decoder.decode(line))
        except (msgspec.MsgspecError, InputError) as error:
            raise StoreError(
                f"{folder / ROWS_FILE}: line {number} is no row: {error}; "
                f"expected one JSON object of schema version {SCHEMA_VERSION}"
            ) from error
    return Run(folder, info, tuple(results), tuple(warnings))


def _load_info(folder: Path) -> RunInfo:
    path = folder / RUN_FILE
    try:
        data = path.read_bytes()
    except OSError as error:
        raise StoreError(
            f"run {str(folder)!r}: no {RUN_FILE} to read ({error.strerror}); "
            "expected the folder of a run, as `kvbench run` made it"
        ) from error
    try:
        version = msgspec.json.decode(data, type=dict[str, object]).get("schema_version")
        if version != SCHEMA_VERSION:
            raise StoreError(
                f"{path}: schema version {version!r}; this kvbench reads version {SCHEMA_VERSION}"
            )
        return msgspec.json.decode(data, type=RunInfo)
    except (msgspec.MsgspecError, InputError) as error:
        raise StoreError(f"{path} is torn or no run: {error}") from error
