"""Findings as a file: JSON, a finding a line, so that a difference is seen as lines."""

import dataclasses
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvbench.audit.findings import Fault, Finding
from kvbench.errors import StoreError
from kvbench.files import replace_file

_SCHEMA = 1


@dataclass(frozen=True, slots=True)
class Record:
    """What was found, and by what compilers."""

    triton: str
    """The version of Triton, which brings its own."""
    cuda: str
    """What compiled CUDA C++, as "nvcc 13.0"; "" if nothing."""
    findings: tuple[Finding, ...]


def write(record: Record, path: Path) -> None:
    """Write it; what is there is replaced."""
    head = {"schema": _SCHEMA, "triton": record.triton, "cuda": record.cuda}
    lines = ",\n".join(map(_line, record.findings))
    text = json.dumps(head)[:-1] + f', "findings": [\n{lines}\n]}}\n'
    try:
        replace_file(path, text.encode())
    except OSError as error:
        raise StoreError(f"{path}: {error.strerror}") from error


def _line(finding: Finding) -> str:
    told = dataclasses.asdict(finding)
    if not finding.faults:
        del told["faults"]
    return json.dumps(told)


def read(path: Path) -> Record:
    """Read what `write` wrote.

    Raises:
        StoreError: There is no such file, or it is none of `kvbench audit --json`.
    """
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
        if told["schema"] != _SCHEMA:
            raise StoreError(f"{path}: schema {told['schema']}; expected {_SCHEMA}")
        found = tuple(map(_finding, told["findings"]))
        return Record(told["triton"], told["cuda"], found)
    except OSError as error:
        raise StoreError(f"{path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise StoreError(f"{path}: expected a file of kvbench audit --json") from error


def _finding(told: dict[str, Any]) -> Finding:
    widths = {
        name: {int(nbytes): count for nbytes, count in told[name].items()}
        for name in ("loads", "stores")
    }
    faults = tuple(Fault(**each) for each in told.get("faults", ()))
    return Finding(**{**told, **widths, "faults": faults})


def differences(before: Record, after: Record, kernels: Iterable[str]) -> Sequence[str]:
    """Where findings of Triton's kernels differ from those of a record, a line each.

    Those of CUDA C++ depend on whatever compiler a machine has, and are not compared.

    Args:
        before: The record.
        after: What was found now, of some targets and kernels.
        kernels: Those that are compared.
    """
    if before.triton != after.triton:
        return (f"the record is of Triton {before.triton}, and this is {after.triton}",)
    compared, targets = set(kernels), {each.target for each in after.findings}
    old, new = (
        {
            (f.target, f.kernel, f.specialisation): f
            for f in record.findings
            if f.kernel in compared and f.target in targets and not f.is_cuda
        }
        for record in (before, after)
    )
    lines = []
    for key in dict.fromkeys((*old, *new)):
        target, kernel, specialisation = key
        where = f"{kernel} for {target}, {specialisation}"
        if key not in new:
            lines.append(f"{where}: not compiled any more")
        elif key not in old:
            lines.append(f"{where}: not in the record")
        elif old[key] != new[key]:
            changed = ", ".join(
                f"{field.name} {getattr(old[key], field.name)} -> {getattr(new[key], field.name)}"
                for field in dataclasses.fields(Finding)
                if getattr(old[key], field.name) != getattr(new[key], field.name)
            )
            lines.append(f"{where}: {changed}")
    return lines
