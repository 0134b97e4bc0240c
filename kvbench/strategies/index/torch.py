"""Array arithmetic on the device: some 13 small launches for the whole batch."""

from typing import ClassVar

import torch

from kvbench.pool import PADDING_SLOT
from kvbench.strategies.base import Strategy
from kvbench.strategies.registry import register
from kvbench.workload import ResidentTables, Workload, resident_tables


@register
class IndexTorch(Strategy):
    """PyTorch ops on tables that are on the device already, none of which waits for it.

    The arithmetic is vLLM's: repeat each sequence's number, cumulate, gather blocks, multiply, add.
    On a CPU `repeat_interleave` shares the sequences out to PyTorch's threads however few they are,
    and waits for them: on a busy machine that takes longer than all else.

    Sizes come from the scheduler's lists: an op that has to ask the device for the size of its
    result (`repeat_interleave` without `output_size`) would wait.

    Prepared: block table, starts and lengths, as they are there before a step begins (see
    `ResidentTables`). A step that has a block more uploads that, in whatever way it builds its
    mapping: it is no part of this.
    """

    name: ClassVar[str] = "index.torch"
    op: ClassVar[str] = "index"
    summary: ClassVar[str] = "PyTorch ops on tables that stay on the device, none synchronising"

    def prepare(self, workload: Workload) -> ResidentTables:
        """The tables on the device."""
        return resident_tables(workload)

    def run(self, workload: Workload, prepared: ResidentTables) -> torch.Tensor:
        """Every token's sequence, position, block and slot, each by ops over all tokens."""
        w, tables = workload, prepared
        tokens, rows = sum(w.lengths), w.mapped_rows
        if rows > tokens:
            slots = torch.full((rows,), PADDING_SLOT, dtype=w.slot_dtype, device=w.device)
        else:
            slots = torch.empty(rows, dtype=w.slot_dtype, device=w.device)
        if tokens == 0:
            return slots
        sequences = torch.repeat_interleave(tables.lengths, output_size=tokens)
        # What turns a token's number into its position.
        shifts = (tables.starts + tables.lengths).sub_(tables.lengths.cumsum(0))
        positions = torch.arange(tokens, device=w.device).add_(shifts[sequences])
        blocks = tables.block_table[sequences, positions // w.block_size]
        # In 64 bits whatever slots are: the type of the sum is that of positions.
        torch.add(positions % w.block_size, blocks, alpha=w.block_size, out=slots[:tokens])
        return slots
