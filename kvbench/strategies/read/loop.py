"""The seed of the series: a Python loop over blocks, then torch.cat."""

from typing import ClassVar

import torch

from kvbench.cases import Case
from kvbench.quantisation import loads_into, no_given_output
from kvbench.strategies.base import Strategy
from kvbench.strategies.registry import register
from kvbench.workload import Workload


@register
class ReadLoop(Strategy):
    """A slice (no launch) per block, and one concatenation each for K and V."""

    name: ClassVar[str] = "read.loop"
    op: ClassVar[str] = "read"
    summary: ClassVar[str] = "Python loop over blocks, then torch.cat, for K and V"

    def supports(self, case: Case, device: torch.device) -> str | None:  # noqa: ARG002
        """Any case, but the caller's outputs where codes are decoded."""
        return no_given_output(case)

    def run(
        self,
        workload: Workload,
        prepared: None,  # noqa: ARG002
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Gather every sequence's K and V, block by block."""
        block_size = workload.block_size
        pieces = []
        for table, start, length in zip(
            workload.block_tables, workload.starts, workload.lengths, strict=True
        ):
            position, end = start, start + length
            while position < end:
                block = table[position // block_size]
                slot = position % block_size
                count = min(block_size - slot, end - position)
                pieces.append((block, slot, slot + count))
                position += count

        def gather(pool: torch.Tensor, out: torch.Tensor | None) -> torch.Tensor:
            if not pieces:
                return pool.new_empty((0, *pool.shape[2:])) if out is None else out
            return torch.cat([pool[block, first:last] for block, first, last in pieces], out=out)

        return loads_into(workload, gather)
