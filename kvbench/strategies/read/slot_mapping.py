"""Advanced indexing with the index hoisted: a slot mapping per step, a gather per layer."""

from typing import ClassVar

import torch

from kvbench.pool import flat_slots_view, slot_mapping
from kvbench.strategies.base import Strategy
from kvbench.strategies.registry import register
from kvbench.workload import Workload


@register
class ReadSlotMapping(Strategy):
    """One gather each for K and V over flat slots; the mapping is built once a step."""

    name: ClassVar[str] = "read.slot_mapping"
    op: ClassVar[str] = "read"
    summary: ClassVar[str] = "slot mapping built once a step; each layer gathers over flat slots"

    def prepare(self, workload: Workload) -> torch.Tensor:
        """The slot mapping of the batch, int64 [tokens], on the device."""
        slots = slot_mapping(
            workload.block_tables, workload.starts, workload.lengths, workload.block_size
        )
        return torch.from_numpy(slots).to(workload.device)

    def run(self, workload: Workload, prepared: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Gather every sequence's K and V with flat_pool[slot_mapping]."""
        return (
            flat_slots_view(workload.key_pool)[prepared],
            flat_slots_view(workload.value_pool)[prepared],
        )
