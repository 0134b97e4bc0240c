"""The product's GPU for Triton that is not there, for tensors on a CPU."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import triton

from kvbench.audit.simulated import SimulatedGpu
from kvbench.audit.simulated import simulated_gpu as simulated
from kvbench.audit.targets import TARGETS, Target
from kvbench.kernels import jit, planning, tuning

H100 = TARGETS["sm_90"]


@contextmanager
def simulated_gpu(
    folder: Path, target: Target = H100, *, compiling: bool = True
) -> Iterator[SimulatedGpu]:
    """Inside, kernels on CPU tensors are compiled as for a GPU, which only writes launches down.

    Args:
        folder: For what Triton keeps on disk.
        target: The GPU.
        compiling: Whether kernels are really compiled; else their number alone is right.
    """
    if jit.interpreting():
        pytest.skip("TRITON_INTERPRET is set: nothing is compiled")
    make = (lambda wanted: wanted.compile(target)) if compiling else None
    with (
        pytest.MonkeyPatch.context() as patch,
        triton.knobs.cache.scope(),
        simulated(target, make) as gpu,
    ):
        triton.knobs.cache.dir = str(folder)  # never what an earlier run compiled
        patch.setattr(jit, "is_interpreted", lambda _: False)
        patch.setattr(planning, "is_interpreted", lambda _: False)
        patch.setattr(tuning, "_choices", {})
        yield gpu
