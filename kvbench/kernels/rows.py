"""How a token's row of num_kv_heads x head_dim elements is cut into programs."""

import torch

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


def check_operands(
    key: torch.Tensor,
    value: torch.Tensor,
    key_pool: torch.Tensor,
    value_pool: torch.Tensor,
    slot_mapping: torch.Tensor,
) -> None:
    """Refuse what a kernel would read or write out of bounds, or convert silently.

    Raises:
        ValueError: The message names the argument, what was expected and what was given.
    """
    row, pool = tuple(key.shape[1:]), tuple(key_pool.shape)
    for name, actual, expected in (
        ("value's shape", tuple(value.shape), tuple(key.shape)),
        ("value_pool's shape", tuple(value_pool.shape), pool),
        ("key_pool's row", pool[2:], row),
        ("value's dtype", value.dtype, key.dtype),
        ("key_pool's dtype", key_pool.dtype, key.dtype),
        ("value_pool's dtype", value_pool.dtype, key.dtype),
    ):
        if actual != expected:
            raise ValueError(f"{name} is {actual}; expected {expected}")
    if len(slot_mapping) > len(key):
        raise ValueError(f"slot_mapping has {len(slot_mapping)} slots; expected up to {len(key)}")
