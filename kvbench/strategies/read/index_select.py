"""index_select over flat slots, into the caller's outputs where they are given."""

from typing import ClassVar

import torch

from kvbench.cases import Case
from kvbench.pool import flat_slots_view, no_flat_slots
from kvbench.quantisation import loads_into, no_given_output
from kvbench.strategies.base import Strategy
from kvbench.strategies.registry import register
from kvbench.workload import Workload


@register
class ReadIndexSelect(Strategy):
    """One selection of rows each for K and V; the mapping is built and uploaded once a step."""

    name: ClassVar[str] = "read.index_select"
    op: ClassVar[str] = "read"
    summary: ClassVar[str] = "slot mapping once a step; index_select of flat slots, with out="

    def supports(self, case: Case, device: torch.device) -> str | None:  # noqa: ARG002
        """Layouts whose slots lie on one axis; no decoding into the caller's outputs."""
        return no_flat_slots(case) or no_given_output(case)

    def prepare(self, workload: Workload) -> torch.Tensor:
        """The slot mapping of the batch, [tokens], on the device."""
        return torch.from_numpy(workload.slot_mapping()).to(workload.device)

    def run(self, workload: Workload, prepared: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Gather every sequence's K and V with index_select(flat_pool, 0, slots)."""
        return loads_into(
            workload,
            lambda pool, out: torch.index_select(flat_slots_view(pool), 0, prepared, out=out),
        )
