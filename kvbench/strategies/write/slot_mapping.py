"""Advanced indexing with the index hoisted: a slot mapping per step, a scatter per layer."""

from typing import ClassVar

import torch

from kvbench.pool import flat_slots_view, slot_mapping
from kvbench.strategies.base import Strategy
from kvbench.strategies.registry import register
from kvbench.workload import Workload


@register
class WriteSlotMapping(Strategy):
    """One scatter each for K and V over flat slots; the mapping is built and uploaded once a step.

    The idea is vLLM's slot_mapping. Only the tokens' slots are uploaded: plain indexing can't skip
    a padding slot, and -1 would wrap to the pool's last slot.
    """

    name: ClassVar[str] = "write.slot_mapping"
    op: ClassVar[str] = "write"
    summary: ClassVar[str] = "slot mapping built once a step; each layer scatters over flat slots"

    def prepare(self, workload: Workload) -> torch.Tensor:
        """The slot mapping of the batch, int64 [tokens], on the device."""
        slots = slot_mapping(
            workload.block_tables, workload.starts, workload.lengths, workload.block_size
        )
        return torch.from_numpy(slots).to(workload.device)

    def run(self, workload: Workload, prepared: torch.Tensor) -> None:
        """Store every token's K and V with flat_pool[slot_mapping] = rows."""
        tokens = len(prepared)
        flat_slots_view(workload.key_pool)[prepared] = workload.key[:tokens]
        flat_slots_view(workload.value_pool)[prepared] = workload.value[:tokens]
