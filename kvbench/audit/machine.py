"""Compiled kernels as they are read: registers, memory, accesses, of NVIDIA's code and AMD's."""

import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import triton

from kvbench.audit.accesses import Sass, read_sass
from kvbench.audit.elf import code_sections
from kvbench.audit.findings import Fault, memory_faults
from kvbench.audit.targets import Target
from kvbench.errors import KvbenchError

_INSTRUCTION_BYTES = 16
_LINE = re.compile(r"^\s+/\*[0-9a-f]{4,}\*/")


@dataclass(frozen=True, slots=True)
class Resources:
    """What a kernel takes of a GPU."""

    registers: int
    """Of a thread."""
    stack_bytes: int
    """Of a thread; on an AMD GPU with all else that is private to a thread and in memory."""
    local_bytes: int
    """Of a thread, of arrays that are in no register, as the compiler declares them."""
    shared_bytes: int
    """Of a block, that the code itself declares."""
    spill_bytes: int
    """Of a thread, that instructions store in memory for want of registers."""

    def faults(self, target: Target) -> tuple[Fault, ...]:
        """What of it should not be: memory of a thread, or more of a block's than there is."""
        own = (self.spill_bytes, self.stack_bytes, self.local_bytes, self.shared_bytes)
        return memory_faults(*own, target.block_shared_bytes)


def cuda_resources(cubin: Path, target: Target) -> dict[str, Resources]:
    """Of each kernel in a file, by its name there. What is spilled is seen in the code alone.

    Shared memory is without what is reserved for each block, which compilers count as the block's
    own from sm_90 on, if it uses any.

    Raises:
        KvbenchError: cuobjdump refuses it.
    """
    tool = triton.knobs.nvidia.cuobjdump.path
    found = parse_resources(_told(tool, "--dump-resource-usage", str(cubin)))
    return {
        name: replace(used, shared_bytes=max(used.shared_bytes - target.reserved_bytes, 0))
        if target.counts_reserved
        else used
        for name, used in found.items()
    }


def parse_resources(text: str) -> dict[str, Resources]:
    """What `cuobjdump --dump-resource-usage` says."""
    found = re.findall(r"Function (\S+):\s+REG:(\d+) STACK:(\d+) SHARED:(\d+) LOCAL:(\d+)", text)
    return {
        name: Resources(int(registers), int(stack), int(local), int(shared), 0)
        for name, registers, stack, shared, local in found
    }


def disassemble(codes: Sequence[bytes], target: Target, folder: Path) -> tuple[Sass, ...]:
    """What each kernel's machine code does with memory: all of them in one call.

    The disassembler takes a third of a second to start, whatever it is given, and the code of many
    kernels laid end to end is code too.

    Args:
        codes: Sections of code.
        target: What they are for.
        folder: For the file that the disassembler reads.

    Raises:
        KvbenchError: It refuses them, or reads something else than what it was given.
    """
    path = folder / f"{target.name}.bin"
    path.write_bytes(b"".join(codes))
    tool = triton.knobs.nvidia.nvdisasm.path
    text = _told(tool, "--binary", target.dialect, str(path))
    lines = [line for line in text.splitlines() if _LINE.match(line)]
    counts = [len(code) // _INSTRUCTION_BYTES for code in codes]
    if len(lines) != sum(counts):
        raise KvbenchError(f"nvdisasm reads {len(lines)} instructions; expected {sum(counts)}")
    found, begin = [], 0
    for count in counts:
        found.append(read_sass("\n".join(lines[begin : begin + count])))
        begin += count
    return tuple(found)


def amd_resources(amdgcn: str) -> Resources:
    """What a kernel's assembly says of it in its metadata.

    Raises:
        KvbenchError: It says nothing.
    """
    return Resources(
        registers=_metadata(amdgcn, "vgpr_count"),
        stack_bytes=_metadata(amdgcn, "private_segment_fixed_size"),
        local_bytes=0,
        shared_bytes=_metadata(amdgcn, "group_segment_fixed_size"),
        spill_bytes=4 * (_metadata(amdgcn, "vgpr_spill_count")),
    )


def _metadata(amdgcn: str, name: str) -> int:
    found = re.search(rf"^\s+\.{name}: *(\d+)$", amdgcn, re.MULTILINE)
    if found is None:
        raise KvbenchError(f"amdgcn: there is no .{name}; expected a kernel's metadata")
    return int(found[1])


def code_bytes(data: bytes) -> int:
    """Of an object file with one kernel."""
    return sum(map(len, code_sections(data).values()))


def _told(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - ours
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip()
        raise KvbenchError(f"{Path(command[0]).name}: {said}")
    return done.stdout
