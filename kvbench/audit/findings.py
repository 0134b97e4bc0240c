"""What was found of a compiled kernel, and what of it is a fault."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from kvbench.audit.accesses import VECTOR_BYTES

CUDA_PREFIX = "cuda "
"""Before the names of CUDA C++'s kernels, which are those of Triton's too."""

Property = Literal["spills", "local", "shared", "widths", "addresses", "padding"]
PROPERTIES: Mapping[Property, str] = {
    "spills": "no register is spilled",
    "local": "no stack and no local memory",
    "shared": "a block's shared memory is no more than it may have",
    "widths": "K and V are accessed 16 bytes at a time, or as wide as alignment permits",
    "addresses": "offsets of pools are multiplied in 64 bits",
    "padding": "padding slots are neither read nor written",
}
"""What has to hold of every kernel."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A property that does not hold."""

    property: Property
    text: str


@dataclass(frozen=True, slots=True)
class Finding:
    """One kernel, specialised for some kind of arguments and compiled for a target."""

    kernel: str
    specialisation: str
    target: str
    registers: int
    """Of a thread."""
    spill_bytes: int
    """Of a thread."""
    stack_bytes: int
    """Of a thread."""
    local_bytes: int
    """Of a thread: declared, or moved by instructions on local memory, whichever is more."""
    shared_bytes: int
    """Of a block."""
    loads: Mapping[int, int]
    """Instructions that load from global memory, by their bytes; asynchronous copies are loads."""
    stores: Mapping[int, int]
    """Instructions that store to global memory, by their bytes."""
    vector_share: float | None
    """Of the bytes that instructions on K and V move, those that 16-byte accesses do; None if there
    are none."""
    occupancy: float
    """Theoretical: see `Target.occupancy`."""
    code_bytes: int
    faults: tuple[Fault, ...] = ()

    @property
    def is_cuda(self) -> bool:
        """Whether it is of CUDA C++, not of Triton."""
        return self.kernel.startswith(CUDA_PREFIX)


@dataclass(frozen=True, slots=True)
class Missing:
    """Kernels that were not compiled."""

    kernels: str
    target: str
    reason: str


@dataclass(frozen=True, slots=True)
class Gap:
    """A property that is known not to hold of a target, and why that is left as it is."""

    target: str
    kernels: tuple[str, ...]
    property: Property
    reason: str

    def covers(self, finding: Finding, fault: Fault) -> bool:
        """Whether it is what a fault is about."""
        return (
            finding.target == self.target
            and finding.kernel in self.kernels
            and fault.property == self.property
        )


GAPS = (
    Gap(
        "gfx942",
        (
            "scatter_kv",
            "gather_kv",
            "scatter_quantised_kv",
            "gather_quantised_kv",
            "attend",
        ),
        "widths",
        "Triton makes buffer operations of accesses to tensors under 2 GiB, and these an element "
        "each; without them (AMDGCN_USE_BUFFER_OPS=0) attend takes 16 bytes, and the others 8, as "
        "tiles are sized for warps of 32 threads",
    ),
)
"""Known ones. A gap that is closed is a fault too: see `stale_gaps`."""


def open_faults(findings: Iterable[Finding]) -> tuple[tuple[Finding, Fault], ...]:
    """Faults that no known gap covers."""
    return tuple(
        (finding, fault)
        for finding in findings
        for fault in finding.faults
        if not any(gap.covers(finding, fault) for gap in GAPS)
    )


def known_gaps(findings: Sequence[Finding]) -> tuple[Gap, ...]:
    """The gaps that findings fall in."""
    return tuple(
        gap for gap in GAPS if any(gap.covers(each, f) for each in findings for f in each.faults)
    )


def stale_gaps(findings: Sequence[Finding]) -> tuple[str, ...]:
    """Gaps of kernels that have none: what is known of them is out of date, a line each."""
    lines = []
    for gap in GAPS:
        for kernel in gap.kernels:
            of_both = [f for f in findings if (f.kernel, f.target) == (kernel, gap.target)]
            if of_both and not any(gap.covers(f, fault) for f in of_both for fault in f.faults):
                lines.append(
                    f"{kernel} on {gap.target}: the known gap ({PROPERTIES[gap.property]}) is "
                    "closed; expected it to be taken out of the list"
                )
    return tuple(lines)


def memory_faults(
    spill_bytes: int, stack_bytes: int, local_bytes: int, shared_bytes: int, most_shared: int
) -> tuple[Fault, ...]:
    """Registers that are spilled, what else of a thread is in memory, and too much shared memory.

    Args:
        spill_bytes: As in `Finding`, as are the next three.
        stack_bytes: See above.
        local_bytes: See above.
        shared_bytes: See above.
        most_shared: What a block may have.
    """
    faults = []
    if spill_bytes:
        faults.append(Fault("spills", f"{spill_bytes} bytes of a thread are spilled; expected 0"))
    for name, nbytes in (("stack", stack_bytes), ("local memory", local_bytes)):
        if nbytes:
            faults.append(Fault("local", f"a thread has {nbytes} bytes of {name}; expected 0"))
    if shared_bytes > most_shared:
        text = f"a block has {shared_bytes} bytes of shared memory; expected up to {most_shared}"
        faults.append(Fault("shared", text))
    return tuple(faults)


def lost_vectors(
    written: Mapping[int, int], found: Mapping[int, int], kind: str
) -> tuple[Fault, ...]:
    """16-byte accesses that the assembler made narrower.

    Args:
        written: Instructions by their bytes, in PTX.
        found: As above, in machine code.
        kind: "loads" or "stores".
    """
    before, after = (
        sum(count for nbytes, count in each.items() if nbytes >= VECTOR_BYTES)
        for each in (written, found)
    )
    if after >= before:
        return ()
    text = f"the machine code has {after} {kind} of {VECTOR_BYTES} bytes; expected {before}, as PTX"
    return (Fault("widths", text),)
