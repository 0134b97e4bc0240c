"""Layouts and slot arithmetic: the one place, outside the oracle, that knows where a token lives.

Position p of a sequence lives in physical block block_table[p // block_size], at slot
p % block_size of it; its flat slot is physical * block_size + p % block_size, always 64-bit.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from kvbench.cases import Case

PADDING_SLOT = -1
"""The slot of a row that belongs to no token. Any negative slot means the same."""


@dataclass(frozen=True, slots=True, eq=False)
class Pools:
    """The K and V of every block, whatever their layout."""

    storages: tuple[torch.Tensor, ...]
    """What was allocated: contiguous, in the layout's own shape (see Case.layout)."""
    key: torch.Tensor
    """K as a view [num_blocks, block_size, num_kv_heads, key_dim]; of an x-packed pool
    [num_blocks, block_size, num_kv_heads, key_dim / x, x], as no strides make one of the last two.
    """
    value: torch.Tensor
    """V as a view [num_blocks, block_size, num_kv_heads, value_dim]."""

    def cut(self, parts: int) -> tuple["Pools", ...]:
        """The blocks in so many equal parts, as the layers of a model have them."""
        count = len(self.key) // parts
        return tuple(
            Pools(
                tuple(storage[part * count :][:count] for storage in self.storages),
                self.key[part * count :][:count],
                self.value[part * count :][:count],
            )
            for part in range(parts)
        )


def allocate(case: Case, num_blocks: int, dtype: torch.dtype, device: torch.device) -> Pools:
    """A case's pools, their contents undefined.

    Raises:
        MemoryError, torch.OutOfMemoryError: They don't fit.
    """
    n, b, h, d, x = num_blocks, case.block_size, case.num_kv_heads, case.head_dim, case.pack

    def empty(*shape: int) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, device=device)

    match case.layout:
        case "NHD":
            key, value = empty(n, b, h, d), empty(n, b, h, d)
            return Pools((key, value), key, value)
        case "HND":
            key, value = empty(n, h, b, d), empty(n, h, b, d)
            return Pools((key, value), key.transpose(1, 2), value.transpose(1, 2))
        case "NHD-KV":
            both = empty(n, 2, b, h, d)
            return Pools((both,), both[:, 0], both[:, 1])
        case "HND-KV":
            both = empty(n, h, b, 2 * d)
            slots = both.transpose(1, 2)
            return Pools((both,), slots[..., :d], slots[..., d:])
        case "x-packed":
            key, value = empty(n, h, d // x, b, x), empty(n, h, d, b)
            return Pools((key, value), key.permute(0, 3, 1, 2, 4), value.permute(0, 3, 1, 2))
        case "MLA":
            latent = empty(n, b, d)
            rows = latent.unsqueeze(2)
            return Pools((latent,), rows[..., : case.key_dim], rows[..., case.key_dim :])
    raise AssertionError(f"layout {case.layout}")  # a Case has no other


def as_slots(rows: torch.Tensor, pool: torch.Tensor) -> torch.Tensor:
    """Rows [tokens, num_kv_heads, head_dim] seen in the shape of a pool's slots."""
    return rows.view(*rows.shape[:2], *pool.shape[3:])


def slot_mapping(
    block_tables: Sequence[Sequence[int]],
    starts: Sequence[int],
    lengths: Sequence[int],
    block_size: int,
    *,
    padding: int = 0,
) -> npt.NDArray[np.int64]:
    """The flat slots of every token of a batch, sequence after sequence, then the padding.

    A token in a logical block without a physical one (a negative table entry) has a negative slot.

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


def map_batch(
    block_tables: Sequence[Sequence[int]],
    starts: Sequence[int],
    lengths: Sequence[int],
    block_size: int,
    slots: npt.NDArray[np.integer],
) -> None:
    """As `slot_mapping`, by array arithmetic over the whole batch, into an array that is given.

    It makes as many calls of NumPy for a thousand sequences as for one, and looks at those blocks
    of a table alone that tokens fall in: for one sequence `slot_mapping` is quicker.

    Args:
        block_tables: One list of physical blocks per sequence.
        starts: First position of each sequence.
        lengths: Tokens of each sequence.
        block_size: Tokens per block.
        slots: [sum(lengths) + padding], of any integer type that has room; overwritten.
    """
    counts = np.array(lengths, dtype=np.int64)
    first_positions = np.array(starts, dtype=np.int64)
    first_blocks = first_positions // block_size
    last_blocks = (first_positions + counts - 1) // block_size
    needed = [
        table[first : last + 1]
        for table, first, last in zip(
            block_tables, first_blocks.tolist(), last_blocks.tolist(), strict=True
        )
    ]
    blocks = np.array(list(itertools.chain.from_iterable(needed)), dtype=np.int64)
    entries = np.fromiter(map(len, needed), np.int64, len(needed))
    tokens = int(counts.sum())
    # What turns a token's number into its position, and its logical block into an entry of blocks.
    to_position = first_positions - (np.cumsum(counts) - counts)
    to_entry = np.cumsum(entries) - entries - first_blocks
    positions = np.arange(tokens, dtype=np.int64) + np.repeat(to_position, counts)
    logical = positions // block_size
    physical = blocks[logical + np.repeat(to_entry, counts)]
    slots[:tokens] = physical * block_size + (positions - logical * block_size)
    slots[tokens:] = PADDING_SLOT


def stored_rows(slots: npt.NDArray[np.integer]) -> npt.NDArray[np.intp]:
    """The rows of a slot mapping that have a slot: what plain indexing must be cut down to.

    A negative index is valid to PyTorch and NumPy, and counts from the end.
    """
    return np.flatnonzero(slots >= 0)


def flat_slots_view(pool: torch.Tensor) -> torch.Tensor:
    """A pool [num_blocks, block_size, ...] seen as its slots [num_blocks * block_size, ...].

    Raises:
        RuntimeError: The pool's strides don't allow it without a copy (torch's own message).
    """
    return pool.view(-1, *pool.shape[2:])


def no_flat_slots(case: Case) -> str | None:
    """None if `flat_slots_view` works in a case's layout, else why not."""
    if case.layout in {"NHD", "MLA"}:
        return None
    return f"layout {case.layout}: its blocks and slots don't lie on one axis of flat slots"
