"""A JSON file of pytest-benchmark as a run: what `pytest benchmarks/` measured. Torch-free.

Beside pytest-benchmark's own fields, which it compares by, such a file has what a run's folder has:
RunInfo in the machine's facts, and every row with all of its samples, as they were measured.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from kvbench.errors import InputError, StoreError
from kvbench.results import SCHEMA_VERSION, Result, RunInfo
from kvbench.store import Run, decode_info

KEY = "kvbench"
"""Of what is kvbench's: RunInfo in machine_info, and the rows beside the benchmarks."""

_MISSING = msgspec.Raw()


class _ExtraInfo(msgspec.Struct, frozen=True):
    rows: msgspec.Raw = _MISSING


class _Benchmark(msgspec.Struct, frozen=True):
    fullname: str
    extra_info: _ExtraInfo


class _MachineInfo(msgspec.Struct, frozen=True):
    kvbench: msgspec.Raw = _MISSING


class _OtherRows(msgspec.Struct, frozen=True):
    rows: msgspec.Raw = _MISSING


class _File(msgspec.Struct, frozen=True):
    machine_info: _MachineInfo
    benchmarks: list[_Benchmark]
    kvbench: _OtherRows = _OtherRows()


def builtins_of(info: RunInfo) -> Any:  # noqa: ANN401 - JSON
    """What holds for a run, as objects that any JSON writer knows."""
    return msgspec.to_builtins(info)


def rows_of(results: Iterable[Result]) -> list[Any]:
    """Rows, as objects that any JSON writer knows; nothing is rounded."""
    return [msgspec.to_builtins(row) for row in results]


def info_of(machine_info: Mapping[str, Any], path: Path) -> RunInfo | None:
    """What holds for the run in the machine's facts of a file; None if kvbench has none there.

    Args:
        machine_info: As pytest-benchmark read it.
        path: The file, for messages.

    Raises:
        StoreError: It is of another version, or none.
    """
    found = machine_info.get(KEY)
    return None if found is None else decode_info(msgspec.json.encode(found), path)


def load(path: Path) -> Run:
    """The run in a file of pytest-benchmark: of `--benchmark-json`, or a saved one.

    Returns:
        The run, whose folder is the file. Benchmarks that are not kvbench's are passed over with a
        warning.

    Raises:
        StoreError: The file can't be read, is torn or none of pytest-benchmark's, has no rows of
            kvbench's, or has rows of another schema version.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise StoreError(
            f"{str(path)!r}: {error.strerror}; expected a JSON file of pytest-benchmark"
        ) from error
    try:
        file = msgspec.json.decode(data, type=_File)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise StoreError(f"{path} is torn or no JSON file of pytest-benchmark: {error}") from error
    if not bytes(file.machine_info.kvbench):
        raise StoreError(
            f"{path}: a file of pytest-benchmark without kvbench's rows; "
            "expected one that `pytest benchmarks/` wrote"
        )
    info = decode_info(file.machine_info.kvbench, path)
    results: list[Result] = []
    warnings = []
    for benchmark in file.benchmarks:
        if not bytes(benchmark.extra_info.rows):
            warnings.append(f"{path}: {benchmark.fullname} has no rows of kvbench's; passed over")
        else:
            results += _decode(benchmark.extra_info.rows, path, benchmark.fullname)
    if bytes(file.kvbench.rows):
        results += _decode(file.kvbench.rows, path, "the rows without a benchmark")
    if not results:
        raise StoreError(f"{path}: no rows of kvbench's; expected one or more")
    return Run(path, info, tuple(results), tuple(warnings))


def _decode(rows: msgspec.Raw, path: Path, owner: str) -> list[Result]:
    try:
        return msgspec.json.decode(rows, type=list[Result])
    except (msgspec.MsgspecError, InputError, RecursionError) as error:
        raise StoreError(
            f"{path}: {owner}: no rows: {error}; expected those of schema version {SCHEMA_VERSION}"
        ) from error
