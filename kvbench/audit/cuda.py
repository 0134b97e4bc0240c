"""The CUDA C++ kernels of `move.cu`, compiled by nvcc or NVRTC where either is."""

import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch

from kvbench.audit import accesses
from kvbench.audit.accesses import VECTOR_BYTES, Access
from kvbench.audit.elf import code_sections
from kvbench.audit.findings import CUDA_PREFIX, Fault, Finding, Missing
from kvbench.audit.machine import Resources, cuda_resources, disassemble
from kvbench.audit.targets import Target
from kvbench.errors import KvbenchError
from kvbench.kernels.cuda import nvrtc
from kvbench.kernels.cuda.move import SLOTS, SOURCE, THREADS, VECTORS

KERNELS = ("scatter_kv", "gather_kv")
_SLOT = torch.int64
_COMPILERS = "nvcc is not on the PATH, and NVRTC (libnvrtc.so) is not installed"


def compiler() -> str:
    """What compiles CUDA C++ here, as "nvcc 13.0"; "" if nothing does."""
    nvcc = shutil.which("nvcc")
    if nvcc is not None:
        found = re.search(r"release (\d+\.\d+)", _told(nvcc, "--version"))
        return f"nvcc {found[1]}" if found else "nvcc"
    return "NVRTC" if nvrtc.library() is not None else ""


def compile_cuda(target: Target, kernels: tuple[str, ...]) -> tuple[Finding, ...] | Missing:
    """The instances of the kernels that the GPU preset asks for; or why there are none.

    Its rows and slots are all multiples of 16 bytes, and slots are int64: one instance of each.

    Args:
        target: What for.
        kernels: Of `KERNELS`.

    Raises:
        KvbenchError: The compiler refuses them, or machine code can't be read.
    """
    names = ", ".join(CUDA_PREFIX + kernel for kernel in kernels)
    if target.backend != "cuda":
        return Missing(names, target.name, "CUDA C++ is for NVIDIA GPUs alone")
    instances = _instances(kernels, target)
    nvcc = shutil.which("nvcc")
    if nvcc is None and nvrtc.library() is None:
        return Missing(names, target.name, _COMPILERS)
    with tempfile.TemporaryDirectory(prefix="kvbench-audit-") as name:
        folder = Path(name)
        if nvcc is None:
            cubins = list(_by_nvrtc(instances, target, folder))
        elif target.name in _told(nvcc, "--list-gpu-code").split():
            cubins = [_by_nvcc(nvcc, instances, target, folder)]
        else:
            return Missing(names, target.name, f"this nvcc does not know {target.name}")
        return tuple(_read(cubins, instances, target, folder))


def _instances(kernels: tuple[str, ...], target: Target) -> dict[str, str]:
    """As C++ names them, by kernel."""
    blocks = target.warps * target.warp_threads // THREADS
    vector, slot = VECTORS[VECTOR_BYTES], SLOTS[_SLOT]
    return {kernel: f"{kernel}<{vector}, {slot}, {blocks}>" for kernel in kernels}


def _by_nvcc(nvcc: str, instances: dict[str, str], target: Target, folder: Path) -> Path:
    source, cubin = folder / "instances.cu", folder / "instances.cubin"
    lines = [f"template __global__ void {each}(const Move);" for each in instances.values()]
    source.write_text(f'#include "{SOURCE}"\n' + "\n".join(lines), encoding="utf-8")
    options = ("-std=c++17", "-cubin", f"-arch={target.name}", "-o", str(cubin))
    _told(nvcc, *options, str(source))
    return cubin


def _by_nvrtc(instances: dict[str, str], target: Target, folder: Path) -> Iterator[Path]:
    source = SOURCE.read_text(encoding="utf-8")
    for index, expression in enumerate(instances.values()):
        try:
            code, _ = nvrtc.compile_kernel(source, expression, target.name)
        except nvrtc.CompilationError as error:
            raise KvbenchError(f"NVRTC, {expression} for {target.name}: {error}") from error
        path = folder / f"{index}.cubin"
        path.write_bytes(code)
        yield path


def _read(
    cubins: list[Path],
    instances: dict[str, str],
    target: Target,
    folder: Path,
) -> Iterator[Finding]:
    codes = {
        name.removeprefix(".text."): code
        for cubin in cubins
        for name, code in code_sections(cubin.read_bytes()).items()
    }
    resources = {
        name: used for cubin in cubins for name, used in cuda_resources(cubin, target).items()
    }
    read = disassemble(list(codes.values()), target, folder)
    for (name, code), sass in zip(codes.items(), read, strict=True):
        (kernel,) = (each for each in instances if each in name)  # mangled
        used = resources[name]
        used = Resources(
            used.registers,
            used.stack_bytes,
            max(used.local_bytes, sass.local_loads, sass.local_stores),
            used.shared_bytes,
            sass.local_stores,
        )
        # What is no vector's is the slot's.
        moved = _without_slot(sass.accesses)
        yield Finding(
            kernel=CUDA_PREFIX + kernel,
            specialisation=instances[kernel],
            target=target.name,
            registers=used.registers,
            spill_bytes=used.spill_bytes,
            stack_bytes=used.stack_bytes,
            local_bytes=used.local_bytes,
            shared_bytes=used.shared_bytes,
            loads=accesses.widths_of(sass.accesses, "load"),
            stores=accesses.widths_of(sass.accesses, "store"),
            vector_share=accesses.vector_share(moved),
            occupancy=target.occupancy(
                used.registers, used.shared_bytes, THREADS // target.warp_threads
            ),
            code_bytes=len(code),
            faults=(
                *used.faults(target),
                *_width_faults(moved),
            ),
        )


def _without_slot(found: tuple[Access, ...]) -> tuple[Access, ...]:
    """Accesses but for the load of the slot."""
    slot = Access("load", _SLOT.itemsize)
    if slot not in found:
        raise KvbenchError(f"machine code: no load of a slot of {slot.nbytes} bytes")
    at = found.index(slot)
    return (*found[:at], *found[at + 1 :])


def _width_faults(moved: tuple[Access, ...]) -> tuple[Fault, ...]:
    narrow = sorted(each.nbytes for each in moved if each.nbytes != VECTOR_BYTES)
    if not narrow:
        return ()
    widths = ", ".join(map(str, dict.fromkeys(narrow)))
    text = f"{len(narrow)} accesses are {widths} bytes wide; expected {VECTOR_BYTES}"
    return (Fault("widths", text),)


def _told(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - nvcc
    if done.returncode != 0:
        raise KvbenchError(f"nvcc: {(done.stderr or done.stdout).strip()}")
    return done.stdout
