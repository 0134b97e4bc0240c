"""How tokens' rows and their slots are cut into programs and addressed, in every kernel."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

LARGEST = {torch.float8_e4m3fn: 448.0, torch.float8_e5m2: 57344.0, torch.int8: 127.0}
"""The largest value of each format of codes."""

_MOST_ELEMENTS = 1024
"""Elements of one program: at 4 warps and 16 bits, 16-byte accesses for each of 128 threads."""
_ACCESS_BYTES = 16
_WARP_THREADS = 32
_MOST_WARPS = 8


def row_block(elements: int) -> tuple[int, int]:
    """The elements of a program (a power of two) and the programs that cover a row."""
    block = min(1 << max(elements - 1, 0).bit_length(), _MOST_ELEMENTS)
    return block, -(-elements // block)


def row_warps(block: int, element_size: int) -> int:
    """The warps of a program: a thread for every 16 bytes, since more would make accesses narrow.

    Args:
        block: Elements of a program, a power of two.
        element_size: Bytes of an element.
    """
    warps = block * element_size // (_ACCESS_BYTES * _WARP_THREADS)
    return min(max(warps, 1), _MOST_WARPS)


@dataclass(frozen=True, slots=True)
class Slots:
    """A pool as a kernel addresses it."""

    dim: int
    """Elements of a head."""
    pack: int
    """Elements of a head that one stride reaches: all of them, but of x-packed K."""
    strides: tuple[int, int, int, int, int]
    """Of blocks, slots, heads, packs and elements."""

    @classmethod
    def of(cls, pool: torch.Tensor) -> "Slots":
        """Of a pool [num_blocks, block_size, num_kv_heads, dim] or [..., dim / x, x]."""
        block, slot, head, *inner = pool.stride()
        dim = _product(pool.shape[3:])
        pack_stride = inner[0] if len(inner) > 1 else 0
        return cls(dim, pool.shape[-1], (block, slot, head, pack_stride, inner[-1]))


def joined(rows: torch.Tensor) -> torch.Tensor:
    """Rows [tokens, num_kv_heads, ...] with a head's elements in one dimension, as a view."""
    return rows.view(*rows.shape[:2], _product(rows.shape[2:]))


def as_bytes(pool: torch.Tensor) -> torch.Tensor:
    """A pool of fp8 as its bytes, as kernels take it; one of int8 as it is."""
    return pool.view(torch.uint8) if pool.is_floating_point() else pool


def scale_strides(scale: torch.Tensor, *, per_token: bool) -> tuple[int, int, int]:
    """Strides of a scale by block, slot and head: 0 where it does not depend on them.

    Args:
        scale: [num_blocks, block_size] if per_token, else [1, 1] or [1, num_kv_heads].
        per_token: Whether each slot has a scale of its own.
    """
    if per_token:
        return (scale.stride(0), scale.stride(1), 0)
    return (0, 0, scale.stride(1) if scale.shape[1] > 1 else 0)


def _product(shape: torch.Size) -> int:
    return torch.Size(shape).numel()


def check_operands(
    key: torch.Tensor,
    value: torch.Tensor,
    key_pool: torch.Tensor,
    value_pool: torch.Tensor,
    slot_mapping: torch.Tensor,
    *,
    quantised: bool = False,
) -> None:
    """Refuse what a kernel would read or write out of bounds, or convert silently.

    Raises:
        ValueError: The message names the argument, what was expected and what was given.
    """
    expected_pool = value_pool.dtype if quantised else key.dtype
    for name, actual, expected in (
        ("value's heads", tuple(value.shape[:2]), tuple(key.shape[:2])),
        ("value_pool's slots", tuple(value_pool.shape[:2]), tuple(key_pool.shape[:2])),
        ("key_pool's row", _row(key_pool), tuple(key.shape[1:])),
        ("value_pool's row", _row(value_pool), tuple(value.shape[1:])),
        ("value's dtype", value.dtype, key.dtype),
        ("key_pool's dtype", key_pool.dtype, expected_pool),
        ("value_pool's dtype", value_pool.dtype, expected_pool),
    ):
        if actual != expected:
            raise ValueError(f"{name} is {actual}; expected {expected}")
    if len(slot_mapping) > len(key):
        raise ValueError(f"slot_mapping has {len(slot_mapping)} slots; expected up to {len(key)}")


def check_scales(
    key_pool: torch.Tensor, scales: Mapping[str, torch.Tensor], *, per_token: bool
) -> None:
    """Refuse scales that a kernel would read or write out of bounds, and pools that hold no codes.

    Raises:
        ValueError: The message names the argument, what was expected and what was given.
    """
    if key_pool.dtype not in LARGEST:
        formats = ", ".join(str(dtype) for dtype in LARGEST)
        raise ValueError(f"key_pool's dtype is {key_pool.dtype}; expected one of {formats}")
    shapes = [tuple(key_pool.shape[:2])] if per_token else [(1, 1), (1, key_pool.shape[2])]
    for name, scale in scales.items():
        if tuple(scale.shape) not in shapes:
            expected = " or ".join(map(str, shapes))
            raise ValueError(f"{name}'s shape is {tuple(scale.shape)}; expected {expected}")
        if scale.dtype is not torch.float32:
            raise ValueError(f"{name}'s dtype is {scale.dtype}; expected torch.float32")


def _row(pool: torch.Tensor) -> tuple[int, int]:
    return pool.shape[2], _product(pool.shape[3:])
