"""The copy that bandwidth is held against, measured on the device in the same run.

On a CPU torch's copy_ is not the limit: past the cache a copy with streaming stores, as the C
library's memmove does for large sizes, leaves out the read of the destination. So several copies
are tried and the best is taken.
"""

import ctypes
import itertools
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import torch

from kvbench import devices
from kvbench.results import CopyBandwidth

_GPU_BYTES = 1 << 30
_CPU_BYTES = 256 << 20
_REPEATS = 7


def _torch_copy(target: torch.Tensor, source: torch.Tensor) -> Callable[[], object]:
    return lambda: target.copy_(source)


def _memmove(
    target: torch.Tensor, source: torch.Tensor, pool: ThreadPoolExecutor, threads: int
) -> Callable[[], object]:
    # ctypes releases the interpreter's lock, so the pieces are copied at the same time.
    size = source.numel()
    edges = [size * i // threads for i in range(threads + 1)]
    pieces = [
        (target.data_ptr() + first, source.data_ptr() + first, last - first)
        for first, last in itertools.pairwise(edges)
    ]

    def copy() -> None:
        for done in [pool.submit(ctypes.memmove, *piece) for piece in pieces]:
            done.result()

    return copy


def _copies(
    target: torch.Tensor, source: torch.Tensor, pool: ThreadPoolExecutor
) -> Iterator[tuple[str, Callable[[], object]]]:
    yield "torch copy_", _torch_copy(target, source)
    if source.device.type != "cpu":
        # A kernel's copy can beat the driver's.
        words, targets = source.view(torch.int64), target.view(torch.int64)
        yield "an elementwise kernel", lambda: torch.add(words, 0, out=targets)
    if source.device.type == "cpu":
        threads = torch.get_num_threads()
        for count in sorted({1, threads}):
            yield (
                f"memmove, {count} thread{'s' * (count > 1)}",
                _memmove(target, source, pool, count),
            )


def measure_copy_bandwidth(device: torch.device) -> CopyBandwidth:
    """The best copy on the device, between buffers far larger than its caches.

    Raises:
        MemoryError, torch.OutOfMemoryError: The two buffers don't fit.
    """
    wanted = _CPU_BYTES if device.type == "cpu" else _GPU_BYTES
    size = min(wanted, devices.free_bytes(device) // 8)
    if device.type != "cpu":
        size -= size % 8  # the kernel copies words
    source = torch.ones(size, dtype=torch.uint8, device=device)
    target = torch.zeros(size, dtype=torch.uint8, device=device)
    best_s, best_how = float("inf"), ""
    with ThreadPoolExecutor(torch.get_num_threads()) as pool:
        for how, copy in _copies(target, source, pool):
            # A GPU's clocks rise under load, and several copies share one wait.
            copies = 1 if device.type == "cpu" else 16
            for _ in range(_REPEATS):
                devices.synchronize(device)
                start = time.perf_counter_ns()
                for _ in range(copies):
                    copy()
                devices.synchronize(device)
                elapsed = (time.perf_counter_ns() - start) * 1e-9 / copies
                if elapsed < best_s:
                    best_s, best_how = elapsed, how
    return CopyBandwidth(bytes_per_s=2 * size / best_s, nbytes=2 * size, how=best_how)
