"""The seed of the series: a Python loop over blocks, then torch.cat."""

from typing import ClassVar

import torch

from kvbench.strategies.base import Strategy
from kvbench.strategies.registry import register
from kvbench.workload import Workload


@register
class ReadLoop(Strategy):
    """A slice (no launch) per block, and one concatenation each for K and V."""

    name: ClassVar[str] = "read.loop"
    op: ClassVar[str] = "read"
    summary: ClassVar[str] = "Python loop over blocks, then torch.cat, for K and V"

    def run(
        self,
        workload: Workload,
        prepared: None,  # noqa: ARG002
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Gather every sequence's K and V, block by block."""
        block_size = workload.block_size
        keys, values = [], []
        for table, start, length in zip(
            workload.block_tables, workload.starts, workload.lengths, strict=True
        ):
            position, end = start, start + length
            while position < end:
                block = table[position // block_size]
                slot = position % block_size
                count = min(block_size - slot, end - position)
                keys.append(workload.key_pool[block, slot : slot + count])
                values.append(workload.value_pool[block, slot : slot + count])
                position += count
        if not keys:
            empty = workload.key_pool.new_empty((0, *workload.key_pool.shape[2:]))
            return empty, empty.clone()
        return torch.cat(keys), torch.cat(values)
