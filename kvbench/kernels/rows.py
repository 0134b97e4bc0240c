"""How tokens' rows and their slots are addressed, in every kernel, and what is refused."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

LARGEST = {torch.float8_e4m3fn: 448.0, torch.float8_e5m2: 57344.0, torch.int8: 127.0}
"""The largest value of each format of codes."""

_MOST_WIDTH = 16
"""Elements of a piece: of codes it is one 16-byte access, of K and V two or four."""


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


def piece_width(slots: Slots) -> int:
    """Elements of a piece, a power of two: it lies in one head, and in one pack of x-packed K."""
    return math.gcd(slots.dim, slots.pack, _MOST_WIDTH)


def stride_step(tensor: torch.Tensor, width: int) -> int:
    """Elements that every stride but the last is a multiple of, up to a piece's `width`."""
    return math.gcd(width, *tensor.stride()[:-1])


def scale_kind(scales: Sequence[torch.Tensor], *, per_token: bool) -> str | None:
    """What has a scale of its own, as Case.kv_scale says it; None of a plain pool.

    Args:
        scales: Of K and V, as in `scale_strides`; none of a plain pool.
        per_token: Whether each slot has a scale of its own.
    """
    if per_token or not scales:
        return "per_token" if scales else None
    return "per_head" if max(scale.shape[1] for scale in scales) > 1 else "per_tensor"


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
