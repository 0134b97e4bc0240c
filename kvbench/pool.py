"""Slot arithmetic: the one place, outside the oracle, that knows where a position lives.

Position p of a sequence lives in physical block block_table[p // block_size], at slot
p % block_size of it; its flat slot is physical * block_size + p % block_size, always 64-bit.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

PADDING_SLOT = -1
"""The slot of a row that belongs to no token. Any negative slot means the same."""


def slot_mapping(
    block_tables: Sequence[Sequence[int]],
    starts: Sequence[int],
    lengths: Sequence[int],
    block_size: int,
    *,
    padding: int = 0,
) -> npt.NDArray[np.int64]:
    """The flat slots of every token of a batch, sequence after sequence, then the padding.

    Args:
        block_tables: One list of physical blocks per sequence.
        starts: First position of each sequence.
        lengths: Tokens of each sequence.
        block_size: Tokens per block.
        padding: Rows of padding at the end.

    Returns:
        int64 of shape [sum(lengths) + padding], as vLLM's slot_mapping.
    """
    slots = np.full(sum(lengths) + padding, PADDING_SLOT, dtype=np.int64)
    first = 0
    for table, start, length in zip(block_tables, starts, lengths, strict=True):
        positions = np.arange(start, start + length, dtype=np.int64)
        blocks = np.asarray(table, dtype=np.int64)[positions // block_size]
        slots[first : first + length] = blocks * block_size + positions % block_size
        first += length
    return slots


def flat_slots_view(pool: torch.Tensor) -> torch.Tensor:
    """A pool [num_blocks, block_size, H, D] seen as its slots [num_blocks * block_size, H, D].

    Raises:
        RuntimeError: The pool's strides don't allow it without a copy (torch's own message).
    """
    return pool.view(-1, *pool.shape[2:])
