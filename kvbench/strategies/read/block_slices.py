"""The loop of the series over blocks, each copied to its place instead of concatenated."""

from typing import ClassVar

import torch

from kvbench.quantisation import decode
from kvbench.strategies.base import Strategy
from kvbench.strategies.registry import register
from kvbench.workload import Workload


@register
class ReadBlockSlices(Strategy):
    """A copy per block each for K and V, into outputs that are given or allocated once a call.

    What is quantised is decoded block by block: nothing larger than a block is made on the way.
    """

    name: ClassVar[str] = "read.block_slices"
    op: ClassVar[str] = "read"
    summary: ClassVar[str] = "Python loop over blocks, K[i:j] = pool[b, s:t], for K and V"

    def run(
        self,
        workload: Workload,
        prepared: None,  # noqa: ARG002
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Copy every sequence's K and V, block by block."""
        w = workload
        pieces = []
        token = 0
        for table, start, length in zip(w.block_tables, w.starts, w.lengths, strict=True):
            position, end = start, start + length
            while position < end:
                slot = position % w.block_size
                count = min(w.block_size - slot, end - position)
                block = table[position // w.block_size]
                pieces.append((block, slot, slot + count, token, token + count))
                position += count
                token += count
        key, value = w.outputs or (
            w.key.new_empty((token, *w.key.shape[1:])),
            w.value.new_empty((token, *w.value.shape[1:])),
        )
        per_token = w.case.kv_scale == "per_token"
        for rows, pool, scale in (
            (key, w.key_pool, w.key_scale),
            (value, w.value_pool, w.value_scale),
        ):
            for block, first, last, row, end_row in pieces:
                slots = pool[block, first:last]
                if scale is not None:
                    of_slots = scale[block, first:last, None] if per_token else scale
                    slots = decode(slots, of_slots, w.dtype)
                rows[row:end_row] = slots
        return key, value
