"""GPUs that kernels are compiled for, and how many of a kernel's programs run on one at once."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from kvbench.errors import unknown


@dataclass(frozen=True, slots=True)
class Target:
    """An architecture, and what a multiprocessor of it has."""

    name: str
    backend: Literal["cuda", "hip"]
    """Triton's."""
    warp_threads: int
    warps: int
    """That a multiprocessor holds."""
    blocks: int
    """That a multiprocessor holds."""
    shared_bytes: int
    """Of a multiprocessor."""
    block_shared_bytes: int
    """That one block may have of them."""
    reserved_bytes: int
    """Of shared memory, that each block takes besides its own."""
    registers: int
    """Of 32 bits, that a partition of a multiprocessor has for its warps."""
    register_unit: int
    """Registers that a warp has are a multiple of it."""
    dialect: str = ""
    """What NVIDIA's disassembler calls the code that Triton compiles."""

    @property
    def counts_reserved(self) -> bool:
        """Whether compilers count reserved shared memory as a block's own."""
        return isinstance(self.arch, int) and self.arch >= 90  # noqa: PLR2004 - Hopper

    @property
    def arch(self) -> int | str:
        """As Triton's GPUTarget has it."""
        return int(self.name.removeprefix("sm_")) if self.backend == "cuda" else self.name

    def occupancy(self, registers: int, shared_bytes: int, warps: int) -> float:
        """The share of a multiprocessor's warps that a kernel lets run at once: theoretical.

        What limits it is the warps and the blocks that there may be, their registers and their
        shared memory: as in NVIDIA's cuda_occupancy.h, and in LLVM's GCNSubtarget.

        Args:
            registers: Of a thread.
            shared_bytes: Of a block.
            warps: Of a block.
        """
        by_warps = self.warps // warps
        warp_registers = _up(max(registers, 1) * self.warp_threads, self.register_unit)
        by_registers = _PARTITIONS * (self.registers // warp_registers) // warps
        # On an AMD GPU a block of one wavefront needs none of the barriers that limit blocks.
        blocks = self.warps if self.backend == "hip" and warps == 1 else self.blocks
        found = min(by_warps, by_registers, blocks)
        taken = _up(shared_bytes + self.reserved_bytes, _SHARED_UNIT)
        if taken:
            found = min(found, self.shared_bytes // taken)
        return found * warps / self.warps


_PARTITIONS = 4
"""Of a multiprocessor, each with registers of its own: NVIDIA's sub-partitions, AMD's SIMDs."""
_SHARED_UNIT = 128
_KIB = 1024


def _up(number: int, unit: int) -> int:
    return -(-number // unit) * unit


def _nvidia(capability: int, warps: int, blocks: int, shared: int, dialect: str) -> Target:
    return Target(
        name=f"sm_{capability}",
        backend="cuda",
        warp_threads=32,
        warps=warps,
        blocks=blocks,
        shared_bytes=shared * _KIB,
        block_shared_bytes=(shared - 1) * _KIB,
        reserved_bytes=_KIB,
        registers=65536 // _PARTITIONS,
        register_unit=256,
        dialect=dialect,
    )


# NVIDIA: CUDA C++ Programming Guide 13.0, "Technical Specifications per Compute Capability" (warps,
# blocks, registers and KiB of shared memory of a multiprocessor; a block may have 1 KiB less, which
# is the one that is reserved for it), and cuda_occupancy.h of CUDA 13.0 (registers in units of 256
# a warp, shared memory in units of 128 bytes, four sub-partitions).
# AMD: LLVM, User Guide for AMDGPU Backend, and AMDGPUBaseInfo.cpp, for gfx90a and later CDNA: 512
# VGPRs of a lane (64 of them) on each of four SIMDs, in units of 8; 8 wavefronts a SIMD; 16 blocks
# of more than one wavefront. LDS: ROCm documentation, AMD GPU specifications (MI300X: 64 KiB).
TARGETS: Mapping[str, Target] = {
    target.name: target
    for target in (
        _nvidia(80, 64, 32, 164, "SM80"),
        _nvidia(89, 48, 24, 100, "SM89"),
        _nvidia(90, 64, 32, 228, "SM90a"),
        _nvidia(100, 64, 32, 228, "SM100a"),
        _nvidia(120, 48, 24, 100, "SM120a"),
        Target(
            name="gfx942",
            backend="hip",
            warp_threads=64,
            warps=32,
            blocks=16,
            shared_bytes=64 * _KIB,
            block_shared_bytes=64 * _KIB,
            reserved_bytes=0,
            registers=512 * 64,
            register_unit=8 * 64,
        ),
    )
}
"""Every architecture that kernels are compiled for, by name."""


def get_targets(names: Iterable[str]) -> tuple[Target, ...]:
    """The targets of those names, in the order of `TARGETS`; of no names all.

    Raises:
        InputError: There is none of a name; the message names the nearest.
    """
    wanted = tuple(names)
    for name in wanted:
        if name not in TARGETS:
            raise unknown("target", name, TARGETS)
    return tuple(each for each in TARGETS.values() if not wanted or each.name in wanted)
