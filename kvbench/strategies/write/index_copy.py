"""index_copy_ over flat slots."""

from typing import ClassVar

import torch

from kvbench.cases import Case
from kvbench.pool import flat_slots_view, no_flat_slots
from kvbench.quantisation import Index, as_integers, stores
from kvbench.strategies.base import Strategy
from kvbench.strategies.registry import register
from kvbench.workload import Workload


@register
class WriteIndexCopy(Strategy):
    """A copy of rows along one axis each for K and V; the mapping is built once a step.

    Of two rows for one slot either may stay, as with any of these ops: no slot is given twice.
    """

    name: ClassVar[str] = "write.index_copy"
    op: ClassVar[str] = "write"
    summary: ClassVar[str] = "slot mapping once a step; index_copy_ along the axis of flat slots"

    def supports(self, case: Case, device: torch.device) -> str | None:  # noqa: ARG002
        """Layouts whose slots lie on one axis, and 64-bit slots."""
        if case.slot_dtype != "int64":
            return f"slot_dtype={case.slot_dtype}: index_copy_ takes 64-bit indices alone"
        return no_flat_slots(case)

    def prepare(self, workload: Workload) -> tuple[torch.Tensor, Index]:
        """The slots of the batch on the device, and the rows that go there."""
        return workload.stored_slots()

    def run(self, workload: Workload, prepared: tuple[torch.Tensor, Index]) -> None:
        """Store every token's K and V with flat_pool.index_copy_(0, slots, rows)."""
        slots, rows = prepared
        for pool, values in stores(workload, rows):
            flat = as_integers(flat_slots_view(pool))
            flat.index_copy_(0, slots, as_integers(values))
