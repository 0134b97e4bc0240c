"""Advanced indexing with the index hoisted: a slot mapping per step, a gather per layer."""

from typing import ClassVar

import torch

from kvbench.cases import Case
from kvbench.pool import flat_slots_view, no_flat_slots
from kvbench.quantisation import loads
from kvbench.strategies.base import Strategy
from kvbench.strategies.registry import register
from kvbench.workload import Workload


@register
class ReadSlotMapping(Strategy):
    """One gather each for K and V over flat slots; the mapping is built once a step."""

    name: ClassVar[str] = "read.slot_mapping"
    op: ClassVar[str] = "read"
    summary: ClassVar[str] = "slot mapping built once a step; each layer gathers over flat slots"

    def supports(self, case: Case, device: torch.device) -> str | None:  # noqa: ARG002
        """Layouts whose slots lie on one axis, and outputs that it may allocate."""
        if case.output == "given":
            return "output=given: pool[slots] allocates its result"
        return no_flat_slots(case)

    def prepare(self, workload: Workload) -> torch.Tensor:
        """The slot mapping of the batch, [tokens], on the device."""
        return torch.from_numpy(workload.slot_mapping()).to(workload.device)

    def run(self, workload: Workload, prepared: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Gather every sequence's K and V with flat_pool[slot_mapping]."""
        return loads(workload, lambda pool: flat_slots_view(pool)[prepared])
