"""Specialisations compiled for a target ahead of time, and what is found of each."""

import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import triton

from kvbench.audit import accesses, addresses, ttir, widths
from kvbench.audit.accesses import Access, widths_of
from kvbench.audit.elf import code_sections
from kvbench.audit.findings import Fault, Finding, lost_vectors
from kvbench.audit.machine import (
    Resources,
    amd_resources,
    code_bytes,
    cuda_resources,
    disassemble,
)
from kvbench.audit.simulated import simulated_gpu
from kvbench.audit.specialisations import Specialisation
from kvbench.audit.targets import Target


def compile_all(specialisations: Sequence[Specialisation], target: Target) -> tuple[Finding, ...]:
    """Compile specialisations, and read what became of them.

    Raises:
        KvbenchError: Machine code can't be read.
    """
    with (
        tempfile.TemporaryDirectory(prefix="kvbench-audit-") as name,
        triton.knobs.cache.scope(),
        simulated_gpu(target),
    ):
        folder = Path(name)
        triton.knobs.cache.dir = name  # never what another compiler made
        compiled = [each.wanted.compile(target) for each in specialisations]
        read = _read_amd if target.backend == "hip" else _read_nvidia
        return tuple(read(specialisations, compiled, target, folder))


def _read_nvidia(
    specialisations: Sequence[Specialisation],
    compiled: Sequence[Any],
    target: Target,
    folder: Path,
) -> Iterable[Finding]:
    codes = [b"".join(code_sections(each.asm["cubin"]).values()) for each in compiled]
    for made, kernel, code, sass in zip(
        specialisations, compiled, codes, disassemble(codes, target, folder), strict=True
    ):
        path = folder / "kernel.cubin"
        path.write_bytes(kernel.asm["cubin"])
        (used,) = cuda_resources(path, target).values()
        used = Resources(
            used.registers,
            used.stack_bytes,
            max(used.local_bytes, sass.local_loads, sass.local_stores),
            used.shared_bytes + kernel.metadata.shared,
            sass.local_stores,
        )
        written = accesses.read_ptx(kernel.asm["ptx"])
        lost = [
            *lost_vectors(widths_of(written, "load"), widths_of(sass.accesses, "load"), "loads"),
            *lost_vectors(widths_of(written, "store"), widths_of(sass.accesses, "store"), "stores"),
        ]
        lost += [
            Fault("widths", f"{each} is none of the accesses that are known here")
            for each in sass.others
        ]
        yield _finding(made, kernel, target, used, (written, sass.accesses), lost, len(code))


def _read_amd(
    specialisations: Sequence[Specialisation],
    compiled: Sequence[Any],
    target: Target,
    folder: Path,
) -> Iterable[Finding]:
    del folder
    for made, kernel in zip(specialisations, compiled, strict=True):
        used = amd_resources(kernel.asm["amdgcn"])
        # What Triton asks for when it launches is not in the code.
        shared = max(used.shared_bytes, kernel.metadata.shared)
        used = Resources(
            used.registers, used.stack_bytes, used.local_bytes, shared, used.spill_bytes
        )
        written = accesses.read_amdgcn(kernel.asm["amdgcn"])
        size = code_bytes(kernel.asm["hsaco"])
        yield _finding(made, kernel, target, used, (written, written), [], size)


def _finding(
    made: Specialisation,
    kernel: Any,  # noqa: ANN401 - Triton's
    target: Target,
    used: Resources,
    both: tuple[tuple[Access, ...], tuple[Access, ...]],
    lost: list[Fault],
    size: int,
) -> Finding:
    written, found = both
    seen = ttir.read(kernel.asm["ttir"])
    warps = kernel.metadata.num_warps
    moved = widths.data_accesses(seen, written)
    permitted = {
        name: widths.permitted_bytes(name, made.itemsizes, made.known, warps * target.warp_threads)
        for _, names in moved
        for name in names
    }
    faults = [
        *used.faults(target),
        *widths.width_faults(moved, permitted),
        *lost,
        *(Fault("addresses", text) for text in addresses.address_faults(seen)),
        *(Fault("padding", text) for text in addresses.padding_faults(seen)),
    ]
    return Finding(
        kernel=made.kernel,
        specialisation=made.name,
        target=target.name,
        registers=used.registers,
        spill_bytes=used.spill_bytes,
        stack_bytes=used.stack_bytes,
        local_bytes=used.local_bytes,
        shared_bytes=used.shared_bytes,
        loads=widths_of(found, "load"),
        stores=widths_of(found, "store"),
        vector_share=accesses.vector_share(access for access, _ in moved),
        occupancy=target.occupancy(used.registers, used.shared_bytes, warps),
        code_bytes=size,
        faults=tuple(faults),
    )
