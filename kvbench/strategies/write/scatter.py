"""scatter_ over flat slots, its index expanded to an entry per element."""

from typing import ClassVar

import torch

from kvbench.cases import Case
from kvbench.pool import flat_slots_view, no_flat_slots
from kvbench.quantisation import Index, as_integers, stores
from kvbench.strategies.base import Strategy
from kvbench.strategies.registry import register
from kvbench.workload import Workload


@register
class WriteScatter(Strategy):
    """One scatter_ each for K and V, which looks up a 64-bit slot for each element of a row.

    The expanded index takes no memory (its strides are 0), but it is read 8 bytes an element, out
    of a cache: four times the bytes of a bf16 element.
    """

    name: ClassVar[str] = "write.scatter"
    op: ClassVar[str] = "write"
    summary: ClassVar[str] = "slot mapping once a step; scatter_ reads a 64-bit slot per element"

    def supports(self, case: Case, device: torch.device) -> str | None:  # noqa: ARG002
        """Layouts whose slots lie on one axis, and 64-bit slots."""
        if case.slot_dtype != "int64":
            return (
                f"slot_dtype={case.slot_dtype}: scatter_ converts it in every call to an index of "
                "64 bits an element"
            )
        return no_flat_slots(case)

    def prepare(self, workload: Workload) -> tuple[torch.Tensor, Index]:
        """The slots of the batch on the device, and the rows that go there."""
        return workload.stored_slots()

    def run(self, workload: Workload, prepared: tuple[torch.Tensor, Index]) -> None:
        """Store every token's K and V with flat_pool.scatter_(0, slots, rows)."""
        slots, rows = prepared
        for pool, values in stores(workload, rows):
            index = slots.view(-1, *[1] * (values.dim() - 1)).expand_as(values)
            as_integers(flat_slots_view(pool)).scatter_(0, index, as_integers(values))
