"""The state of the caches at the start of a sample: hot, or flushed."""

from collections.abc import Callable

import torch

from kvbench.errors import InputError

FLUSH_FACTOR = 2
"""Bytes written to flush a cache, in multiples of its size."""
ROTATION_FACTOR = 4
"""Bytes that calls take turns over, in multiples of the cache."""
_MOST_COPIES = 1024


class Flush:
    """Writes a buffer larger than the last-level cache, so that nothing of a case is left in it.

    Args:
        device: Whose cache.
        cache_bytes: The size of its last-level cache, as the device or the system reports it; never
            a constant.
        buffer_bytes: The buffer's size, FLUSH_FACTOR times the cache by default.

    Raises:
        InputError: The cache's size isn't known, or the buffer is too small for it.
    """

    def __init__(
        self, device: torch.device, cache_bytes: int | None, buffer_bytes: int | None = None
    ) -> None:
        if cache_bytes is None:
            raise InputError(
                f"cold caches on {device}: the system doesn't say how large the last-level cache "
                "is; expected its size, or hot caches"
            )
        size = FLUSH_FACTOR * cache_bytes if buffer_bytes is None else buffer_bytes
        if size < cache_bytes:
            raise InputError(
                f"a flush of {size} bytes for a cache of {cache_bytes}: expected at least as many"
            )
        self._buffer = torch.zeros(size, dtype=torch.uint8, device=device)

    def __call__(self) -> None:
        """Flush: every line of the buffer is read and written."""
        self._buffer.add_(1)


def last_level_cache_bytes(device: torch.device, cpu_cache_bytes: int | None) -> int | None:
    """The last-level cache of a device: a GPU's L2 as its driver reports it, else the CPU's."""
    if device.type == "cpu":
        return cpu_cache_bytes
    properties = torch.get_device_module(device).get_device_properties(device)
    size = getattr(properties, "L2_cache_size", None)  # CUDA's name for it, then XPU's
    size = size or getattr(properties, "last_level_cache_size", None)
    return None if size is None else int(size)


def copies_to_rotate(nbytes: int, cache_bytes: int | None) -> int | str:
    """How many sets of buffers outgrow the cache, or the reason why that can't be had.

    Args:
        nbytes: Bytes that one call touches.
        cache_bytes: The last-level cache.
    """
    if cache_bytes is None:
        return "the system doesn't say how large the last-level cache is"
    if nbytes == 0:
        return "a call that moves nothing finds no cache cold"
    copies = -(-ROTATION_FACTOR * cache_bytes // nbytes) + 1
    if copies > _MOST_COPIES:
        return (
            f"rotating over {ROTATION_FACTOR} times the cache would take {copies:,} sets of "
            f"buffers, at most {_MOST_COPIES:,}; --cache cold has no such limit"
        )
    return copies


def rotation(calls: list[Callable[[], object]]) -> Callable[[], object]:
    """One call that makes the next of several in turn, each with buffers of its own."""
    position = 0

    def rotated() -> object:
        nonlocal position
        position = (position + 1) % len(calls)
        return calls[position]()

    return rotated
