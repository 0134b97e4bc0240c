"""Build the slot mapping of a batch, one launch for all of its sequences and the padding."""

import torch
import triton.language as tl

from kvbench.kernels.jit import Kernel

_BLOCK = 256
"""Tokens of one program: a long sequence has many programs, one of a single token wastes little."""
_SUMMED = 1024
"""Lengths that a program adds up at a time, to know where its sequence begins."""
_WARPS = 4


def _map_slots(
    block_table,
    starts,
    lengths,
    slot_mapping,
    sequences,
    chunks,
    padding,
    block_table_row_stride,
    block_table_entry_stride,
    starts_stride,
    lengths_stride,
    slot_mapping_stride,
    BLOCK_SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    SUMMED: tl.constexpr,
):
    # One program maps BLOCK tokens of one sequence. The padding is one more sequence, whose table
    # has no block.
    sequence = (tl.program_id(0) // chunks).to(tl.int64)
    first = (tl.program_id(0) % chunks).to(tl.int64) * BLOCK
    real = sequence < sequences
    length = tl.load(lengths + sequence * lengths_stride, mask=real, other=padding)
    if first < length:
        before = tl.full((SUMMED,), 0, tl.int64)
        for other in range(0, sequence, SUMMED):
            at = other + tl.arange(0, SUMMED)
            before += tl.load(lengths + at * lengths_stride, mask=at < sequence, other=0)
        row = tl.reduce(before, 0, tl.standard._sum_combine)  # noqa: SLF001 - tl.sum is compiled alone

        token = first + tl.arange(0, BLOCK)
        mask = token < length
        position = tl.load(starts + sequence * starts_stride, mask=real, other=0) + token
        entry = (
            sequence * block_table_row_stride + position // BLOCK_SIZE * block_table_entry_stride
        )
        block = tl.load(block_table + entry, mask=mask & real, other=-1).to(tl.int64)
        slot = tl.where(block < 0, -1, block * BLOCK_SIZE + position % BLOCK_SIZE)
        slot = slot.to(slot_mapping.dtype.element_ty)
        tl.store(slot_mapping + (row + token) * slot_mapping_stride, slot, mask=mask)


map_slots_kernel = Kernel(_map_slots)


def map_slots(
    block_table: torch.Tensor,
    starts: torch.Tensor,
    lengths: torch.Tensor,
    slot_mapping: torch.Tensor,
    *,
    block_size: int,
    longest: int,
    padding: int,
) -> None:
    """Fill a slot mapping, sequence after sequence and the padding last, in one launch.

    Sizes come from the host, which has them: the launch waits for nothing.

    Args:
        block_table: int32 or int64 [batch, entries], any strides; an entry for every token's
            block, negative where there is none.
        starts: int64 [batch], the first position of each sequence.
        lengths: int64 [batch], the tokens of each sequence, 0 for one that is empty.
        slot_mapping: int32 or int64 [sum of lengths + padding], any stride; mutated. Tokens without
            a block and padding have -1.
        block_size: Tokens per block.
        longest: The most tokens of a sequence.
        padding: Rows of padding.

    Raises:
        ValueError: Shapes or dtypes don't go together.
    """
    _check(block_table, starts, lengths, slot_mapping)
    sequences = len(lengths)
    chunks = -(-max(longest, padding) // _BLOCK)
    programs = (sequences + (padding > 0)) * chunks
    if programs == 0:
        return
    map_slots_kernel.on(slot_mapping.device)[(programs,)](
        block_table,
        starts,
        lengths,
        slot_mapping,
        sequences,
        chunks,
        padding,
        *block_table.stride(),
        starts.stride(0),
        lengths.stride(0),
        slot_mapping.stride(0),
        BLOCK_SIZE=block_size,
        BLOCK=_BLOCK,
        SUMMED=_SUMMED,
        num_warps=_WARPS,
    )


def _check(
    block_table: torch.Tensor,
    starts: torch.Tensor,
    lengths: torch.Tensor,
    slot_mapping: torch.Tensor,
) -> None:
    integers = (torch.int32, torch.int64)
    for name, actual, expected in (
        ("block_table's dimensions", block_table.dim(), (2,)),
        ("starts' shape", tuple(starts.shape), ((len(block_table),),)),
        ("lengths' shape", tuple(lengths.shape), ((len(block_table),),)),
        ("slot_mapping's dimensions", slot_mapping.dim(), (1,)),
        ("block_table's dtype", block_table.dtype, integers),
        ("starts' dtype", starts.dtype, (torch.int64,)),
        ("lengths' dtype", lengths.dtype, (torch.int64,)),
        ("slot_mapping's dtype", slot_mapping.dtype, integers),
    ):
        if actual not in expected:
            raise ValueError(f"{name} is {actual}; expected {' or '.join(map(str, expected))}")
