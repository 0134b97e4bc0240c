"""index_put_ over flat slots, called by its name."""

from typing import ClassVar

import torch

from kvbench.cases import Case
from kvbench.pool import flat_slots_view, no_flat_slots
from kvbench.quantisation import Index, stores
from kvbench.strategies.base import Strategy
from kvbench.strategies.registry import register
from kvbench.workload import Workload


@register
class WriteIndexPut(Strategy):
    """The very op that `pool[slots] = rows` ends in, without what Python's brackets do before it.

    On a device it is the same work; what differs is the host's: brackets unpack and convert an
    index in every call, index_put_ takes a tuple of them that was made once a step.
    """

    name: ClassVar[str] = "write.index_put"
    op: ClassVar[str] = "write"
    summary: ClassVar[str] = "slot mapping once a step; index_put_: slot_mapping without brackets"

    def supports(self, case: Case, device: torch.device) -> str | None:  # noqa: ARG002
        """Layouts whose slots lie on one axis."""
        return no_flat_slots(case)

    def prepare(self, workload: Workload) -> tuple[tuple[torch.Tensor], Index]:
        """The slots of the batch on the device, and the rows that go there."""
        slots, rows = workload.stored_slots()
        return (slots,), rows

    def run(self, workload: Workload, prepared: tuple[tuple[torch.Tensor], Index]) -> None:
        """Store every token's K and V with flat_pool.index_put_((slots,), rows)."""
        slots, rows = prepared
        for pool, values in stores(workload, rows):
            flat_slots_view(pool).index_put_(slots, values)
