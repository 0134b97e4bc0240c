"""Tables of what kernels became in machine code."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby

from kvbench.audit.findings import (
    PROPERTIES,
    Finding,
    Gap,
    Missing,
    known_gaps,
    open_faults,
)
from kvbench.report.tables import MISSING, Table

_HEADER = (
    "registers",
    "spills",
    "stack",
    "local",
    "shared",
    "loads",
    "stores",
    "16-byte share",
    "occupancy",
    "code",
)
_NOTE = (
    "Registers, spills, stack and local memory (bytes) are a thread's, shared memory (bytes) a "
    "block's. Loads and stores: bytes of an access to global memory x instructions, asynchronous "
    "copies among the loads. 16-byte share: of the bytes of K and V that instructions move. "
    "Occupancy is theoretical: it says how many warps fit, not how fast they are. Code: bytes."
)


def worst_table(findings: Sequence[Finding]) -> Table:
    """A line for each kernel and target: the worst of its specialisations in each column.

    Args:
        findings: By target, then by kernel, as `audit` gives them.
    """
    rows = []
    for (target, kernel), group in groupby(findings, key=lambda f: (f.target, f.kernel)):
        every = tuple(group)
        rows.append((target, kernel, str(len(every)), *_worst(every)))
    return Table(
        "Machine code, the worst of each kernel's specialisations",
        ("target", "kernel", "compiled", *_HEADER),
        tuple(rows),
        _NOTE,
    )


def every_table(findings: Sequence[Finding]) -> Table:
    """A line for each specialisation."""
    return Table(
        "Machine code of every specialisation",
        ("target", "kernel", "specialisation", *_HEADER),
        tuple((f.target, f.kernel, f.specialisation, *_worst((f,))) for f in findings),
        _NOTE,
    )


def _worst(findings: Sequence[Finding]) -> tuple[str, ...]:
    shares = [f.vector_share for f in findings if f.vector_share is not None]
    return (
        str(max(f.registers for f in findings)),
        str(max(f.spill_bytes for f in findings)),
        str(max(f.stack_bytes for f in findings)),
        str(max(f.local_bytes for f in findings)),
        f"{max(f.shared_bytes for f in findings):,}",
        _most(f.loads for f in findings),
        _most(f.stores for f in findings),
        _range(shares),
        _percent(min(f.occupancy for f in findings)),
        f"{max(f.code_bytes for f in findings):,}",
    )


def _most(counts: Iterable[Mapping[int, int]]) -> str:
    """The most instructions that any has of each width."""
    most: dict[int, int] = {}
    for each in counts:
        most |= {nbytes: max(count, most.get(nbytes, 0)) for nbytes, count in each.items()}
    return ", ".join(f"{nbytes} x {most[nbytes]}" for nbytes in sorted(most)) or MISSING


def _range(shares: Sequence[float]) -> str:
    if not shares:
        return MISSING
    least, most = min(shares), max(shares)
    return _percent(least) if least == most else f"{least * 100:.3g} to {_percent(most)}"


def _percent(share: float) -> str:
    return f"{share * 100:.3g} %"


def property_lines(findings: Sequence[Finding]) -> tuple[str, ...]:
    """What holds of all findings, and what does not: a line for each property."""
    faults = open_faults(findings)
    lines = []
    for name, meaning in PROPERTIES.items():
        broken = sum(1 for _, fault in faults if fault.property == name)
        state = f"{broken} faults" if broken else "holds"
        gaps = [gap for gap in known_gaps(findings) if gap.property == name]
        but = "; but for " + " and ".join(map(_where, gaps)) if gaps and not broken else ""
        lines.append(f"{meaning}: {state}{but}")
    return tuple(lines)


def gap_lines(findings: Sequence[Finding]) -> tuple[str, ...]:
    """Known gaps that the findings fall in, each with its reason."""
    return tuple(f"Known gap, {_where(gap)}: {gap.reason}." for gap in known_gaps(findings))


def fault_lines(findings: Sequence[Finding]) -> tuple[str, ...]:
    """Faults that no known gap covers: a line each."""
    return tuple(
        f"{finding.kernel} for {finding.target}, {finding.specialisation}: {fault.text}"
        for finding, fault in open_faults(findings)
    )


def missing_lines(missing: Iterable[Missing]) -> tuple[str, ...]:
    """What was not compiled, and why."""
    return tuple(f"{each.kernels} for {each.target}: {each.reason}" for each in missing)


def _where(gap: Gap) -> str:
    return f"{gap.target} ({', '.join(gap.kernels)})"
