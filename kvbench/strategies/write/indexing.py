"""Step 14_1 of the series: advanced indexing, with the index built in every call."""

import itertools
from typing import ClassVar

import torch

from kvbench.quantisation import Index, stores
from kvbench.strategies.base import Strategy
from kvbench.strategies.registry import register
from kvbench.workload import Workload


@register
class WriteIndexing(Strategy):
    """One scatter each for K and V, after the launches that build its index from Python lists.

    A batch is indexed sequence by sequence, as an engine that holds one list per sequence would,
    and scattered at once. Tokens without a block are left out on the host, where the lists are.
    """

    name: ClassVar[str] = "write.indexing"
    op: ClassVar[str] = "write"
    summary: ClassVar[str] = "index built from the Python list in every call, then pool[b, s] = K"

    def run(self, workload: Workload, prepared: None) -> None:  # noqa: ARG002
        """Store every token's K and V with pool[physical_blocks, slots] = rows."""
        block_size, device, dtype = workload.block_size, workload.device, workload.slot_dtype
        blocks, slots = [], []
        rows: list[range | list[int]] = []
        tokens = 0
        for table, start, length in zip(
            workload.block_tables, workload.starts, workload.lengths, strict=True
        ):
            end = start + length
            if min(table[start // block_size : -(-end // block_size)], default=0) < 0:
                stored = [p for p in range(start, end) if table[p // block_size] >= 0]
                positions = torch.tensor(stored, dtype=dtype, device=device)
                rows.append([tokens + p - start for p in stored])
            else:
                positions = torch.arange(start, end, dtype=dtype, device=device)
                rows.append(range(tokens, tokens + length))
            tokens += length
            if not len(positions):
                continue
            block_table = torch.tensor(table, dtype=dtype, device=device)
            blocks.append(block_table[positions // block_size])
            slots.append(positions % block_size)
        if not blocks:
            return
        physical_blocks = blocks[0] if len(blocks) == 1 else torch.cat(blocks)
        slot_offsets = slots[0] if len(slots) == 1 else torch.cat(slots)
        if len(physical_blocks) == tokens:
            kept: Index = slice(tokens)
        else:
            kept = torch.tensor(list(itertools.chain(*rows)), device=device)
        for pool, values in stores(workload, kept):
            pool[physical_blocks, slot_offsets] = values
