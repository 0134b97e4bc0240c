"""The seed of the series (step 14): a Python loop over tokens."""

from typing import ClassVar

from kvbench.quantisation import stores
from kvbench.strategies.base import Strategy
from kvbench.strategies.registry import register
from kvbench.workload import Workload


@register
class WriteLoop(Strategy):
    """Two assignments a token, one for K and one for V: 2 x tokens launches."""

    name: ClassVar[str] = "write.loop"
    op: ClassVar[str] = "write"
    summary: ClassVar[str] = "Python loop over tokens, one assignment each for K and V"

    def run(self, workload: Workload, prepared: None) -> None:  # noqa: ARG002
        """Store every token's K and V in its slot, one token at a time."""
        block_size, quantised = workload.block_size, workload.case.quantised
        token = -1
        for table, start, length in zip(
            workload.block_tables, workload.starts, workload.lengths, strict=True
        ):
            for position in range(start, start + length):
                token += 1
                block = table[position // block_size]
                slot = position % block_size
                if block < 0:  # a token without a block; -1 would be the pool's last
                    continue
                if quantised:
                    for pool, values in stores(workload, slice(token, token + 1)):
                        pool[block, slot] = values[0]
                    continue
                workload.key_pool[block, slot] = workload.key[token]
                workload.value_pool[block, slot] = workload.value[token]
