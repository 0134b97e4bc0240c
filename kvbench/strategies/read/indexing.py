"""Step 14_2 of the series: one advanced-indexing gather, with the index built in every call."""

from typing import ClassVar

import torch

from kvbench.strategies.base import Strategy
from kvbench.strategies.registry import register
from kvbench.workload import Workload


@register
class ReadIndexing(Strategy):
    """One gather each for K and V, after the launches that build its index from Python lists.

    A batch is indexed sequence by sequence, as an engine that holds one list per sequence would,
    and gathered at once.
    """

    name: ClassVar[str] = "read.indexing"
    op: ClassVar[str] = "read"
    summary: ClassVar[str] = "index built from the Python list in every call, then K = pool[b, s]"

    def run(
        self,
        workload: Workload,
        prepared: None,  # noqa: ARG002
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Gather every sequence's K and V with pool[physical_blocks, slots]."""
        block_size, device = workload.block_size, workload.device
        blocks, slots = [], []
        for table, start, length in zip(
            workload.block_tables, workload.starts, workload.lengths, strict=True
        ):
            if length == 0:
                continue
            positions = torch.arange(start, start + length, device=device)
            block_table = torch.tensor(table, dtype=torch.int64, device=device)
            blocks.append(block_table[positions // block_size])
            slots.append(positions % block_size)
        if not blocks:
            empty = workload.key_pool.new_empty((0, *workload.key_pool.shape[2:]))
            return empty, empty.clone()
        physical_blocks = blocks[0] if len(blocks) == 1 else torch.cat(blocks)
        slot_offsets = slots[0] if len(slots) == 1 else torch.cat(slots)
        return (
            workload.key_pool[physical_blocks, slot_offsets],
            workload.value_pool[physical_blocks, slot_offsets],
        )
