"""Step 14_2 of the series: one advanced-indexing gather, with the index built in every call."""

from typing import ClassVar

import torch

from kvbench.cases import Case
from kvbench.quantisation import loads
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

    def supports(self, case: Case, device: torch.device) -> str | None:  # noqa: ARG002
        """Any case, but the caller's outputs."""
        if case.output == "given":
            return "output=given: pool[b, s] allocates its result"
        return None

    def run(
        self,
        workload: Workload,
        prepared: None,  # noqa: ARG002
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Gather every sequence's K and V with pool[physical_blocks, slots]."""
        block_size, device, dtype = workload.block_size, workload.device, workload.slot_dtype
        blocks, slots = [], []
        for table, start, length in zip(
            workload.block_tables, workload.starts, workload.lengths, strict=True
        ):
            if length == 0:
                continue
            positions = torch.arange(start, start + length, dtype=dtype, device=device)
            block_table = torch.tensor(table, dtype=dtype, device=device)
            blocks.append(block_table[positions // block_size])
            slots.append(positions % block_size)
        if not blocks:
            return loads(workload, lambda pool: pool.new_empty((0, *pool.shape[2:])))
        physical_blocks = blocks[0] if len(blocks) == 1 else torch.cat(blocks)
        slot_offsets = slots[0] if len(slots) == 1 else torch.cat(slots)
        return loads(workload, lambda pool: pool[physical_blocks, slot_offsets])
