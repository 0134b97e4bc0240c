"""A GPU for Triton that is not there: kernels are compiled for it, and launches written down."""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import pytest
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from kvbench.kernels import jit, planning, tuning

H100 = GPUTarget("cuda", 90, 32)
SHARED_BYTES = {80: 166912, 89: 101376, 90: 232448, 100: 232448, 120: 101376, "gfx942": 65536}
"""Shared memory that a program may have, by the GPU's architecture."""


@dataclass
class Launched:
    """A launch: which kernel, how many programs, with what."""

    kernel: str
    grid: tuple[int, int, int]
    arguments: tuple


@dataclass
class SimulatedGpu:
    """Stands in for Triton's driver."""

    target: GPUTarget
    launches: list[Launched] = field(default_factory=list)
    compiled: list = field(default_factory=list)
    """Triton's compiled kernels."""

    def get_current_target(self) -> GPUTarget:
        return self.target

    def get_current_device(self) -> int:
        return hash(self.target)  # Triton keeps compiled kernels by device

    def get_current_stream(self, device: int) -> int:
        return device

    def launcher_cls(self, source, metadata):
        del metadata

        def launch(x, y, z, stream, function, packed, launch_metadata, enter, leave, *arguments):
            del stream, function, packed, launch_metadata, enter, leave
            self.launches.append(Launched(source.fn.__name__, (x, y, z), arguments))

        return launch

    @property
    def utils(self):
        return SimpleNamespace(
            load_binary=lambda name, *_: (ctypes.c_void_p(), name, 0, 0, 1024),
            get_device_properties=lambda _: {"max_shared_mem": SHARED_BYTES[self.target.arch]},
        )


@contextmanager
def simulated_gpu(
    folder: Path, target: GPUTarget = H100, *, compiling: bool = True
) -> Iterator[SimulatedGpu]:
    """Inside, kernels on CPU tensors are compiled as for a GPU, which only writes launches down.

    Args:
        folder: For what Triton keeps on disk.
        target: The GPU.
        compiling: Whether kernels are really compiled; else their number alone is right.
    """
    if jit.interpreting():
        pytest.skip("TRITON_INTERPRET is set: nothing is compiled")
    gpu = SimulatedGpu(target)

    def do_compile(self, key, signature, device, constants, options, attributes, warmup):
        del warmup
        source = self.ASTSource(self, signature, constants, attributes)
        if compiling:
            kernel = triton.compile(source, target=target, options=options.__dict__)
        else:
            kernel = _Uncompiled(gpu, source)
        gpu.compiled.append(kernel)
        self.device_caches[device][0][key] = kernel
        return kernel

    with pytest.MonkeyPatch.context() as patch, triton.knobs.cache.scope():
        triton.knobs.cache.dir = str(folder)  # never what an earlier run compiled
        patch.setattr(driver, "_active", gpu)
        patch.setattr(JITFunction, "_do_compile", do_compile)
        patch.setattr(
            "triton.compiler.compiler.max_shared_mem", lambda _: SHARED_BYTES[target.arch]
        )
        patch.setattr(jit, "is_interpreted", lambda _: False)
        patch.setattr(planning, "is_interpreted", lambda _: False)
        patch.setattr(tuning, "_choices", {})
        yield gpu


class _Uncompiled:
    def __init__(self, gpu, source) -> None:
        self._gpu, self._source = gpu, source

    def __getitem__(self, grid):
        def launch(*arguments):
            self._gpu.launches.append(Launched(self._source.fn.__name__, grid, arguments))

        return launch

    def launch_metadata(self, *_):
        return None

    def run(self, x, y, z, stream, function, packed, metadata, enter, leave, *arguments):
        del stream, function, packed, metadata, enter, leave
        self._gpu.launches.append(Launched(self._source.fn.__name__, (x, y, z), arguments))

    function = packed_metadata = None
