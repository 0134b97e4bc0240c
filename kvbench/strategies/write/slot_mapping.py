"""Advanced indexing with the index hoisted: a slot mapping per step, a scatter per layer."""

from typing import ClassVar

import torch

from kvbench.cases import Case
from kvbench.pool import flat_slots_view, no_flat_slots
from kvbench.quantisation import Index, stores
from kvbench.strategies.base import Strategy
from kvbench.strategies.registry import register
from kvbench.workload import Workload


@register
class WriteSlotMapping(Strategy):
    """One scatter each for K and V over flat slots; the mapping is built and uploaded once a step.

    The idea is vLLM's slot_mapping. Only slots that exist are uploaded: plain indexing can't skip a
    padding slot, and -1 would be the pool's last.
    """

    name: ClassVar[str] = "write.slot_mapping"
    op: ClassVar[str] = "write"
    summary: ClassVar[str] = "slot mapping built once a step; each layer scatters over flat slots"

    def supports(self, case: Case, device: torch.device) -> str | None:  # noqa: ARG002
        """Layouts whose slots lie on one axis."""
        return no_flat_slots(case)

    def prepare(self, workload: Workload) -> tuple[torch.Tensor, Index]:
        """The slots of the batch on the device, and the rows that go there."""
        return workload.stored_slots()

    def run(self, workload: Workload, prepared: tuple[torch.Tensor, Index]) -> None:
        """Store every token's K and V with flat_pool[slot_mapping] = rows."""
        slots, rows = prepared
        for pool, values in stores(workload, rows):
            flat_slots_view(pool)[slots] = values
