"""The loop of the series over blocks instead of tokens: a slice assignment for each."""

from typing import ClassVar

from kvbench.quantisation import stores
from kvbench.strategies.base import Strategy
from kvbench.strategies.registry import register
from kvbench.workload import Workload


@register
class WriteBlockSlices(Strategy):
    """Two assignments a block, one for K and one for V, of all the tokens that go into it.

    A block's tokens are neighbours both in the pool and among the rows: their copy needs no index.
    """

    name: ClassVar[str] = "write.block_slices"
    op: ClassVar[str] = "write"
    summary: ClassVar[str] = "Python loop over blocks, pool[b, s:t] = K[i:j], for K and V"

    def run(self, workload: Workload, prepared: None) -> None:  # noqa: ARG002
        """Store every sequence's K and V, block by block."""
        block_size = workload.block_size
        pieces = []
        token = 0
        for table, start, length in zip(
            workload.block_tables, workload.starts, workload.lengths, strict=True
        ):
            position, end = start, start + length
            while position < end:
                block = table[position // block_size]
                slot = position % block_size
                count = min(block_size - slot, end - position)
                if block >= 0:  # else tokens without a block
                    pieces.append((block, slot, slot + count, token, token + count))
                position += count
                token += count
        if not pieces:
            return
        for pool, values in stores(workload, slice(token)):
            for block, first, last, row, end_row in pieces:
                pool[block, first:last] = values[row:end_row]
