"""index_select over a slot mapping with V on a second stream, beside K."""

from typing import ClassVar

import torch

from kvbench.cases import Case
from kvbench.kernels.streams import NO_STREAMS, Side
from kvbench.pool import flat_slots_view, no_flat_slots
from kvbench.strategies.base import Strategy
from kvbench.strategies.registry import register
from kvbench.workload import Workload


@register
class ReadStreams(Strategy):
    """The two gathers of K and V may run at once: what waiting for each other costs them.

    Two events a call are the price, which is more than a small gather takes.
    """

    name: ClassVar[str] = "read.streams"
    op: ClassVar[str] = "read"
    summary: ClassVar[str] = "slot mapping once a step; V is gathered on a second stream"

    def supports(self, case: Case, device: torch.device) -> str | None:
        """A device with streams; pools that are not quantised, with their slots on one axis."""
        if device.type == "cpu":
            return NO_STREAMS
        if case.quantised:
            return f"cache_dtype={case.cache_dtype}: K and V are decoded in tensors of their own"
        return no_flat_slots(case)

    def prepare(self, workload: Workload) -> tuple[torch.Tensor, Side]:
        """The slot mapping of the batch, [tokens], on the device, and the stream."""
        mapping = torch.from_numpy(workload.slot_mapping()).to(workload.device)
        return mapping, Side(workload.value_pool)

    def run(
        self, workload: Workload, prepared: tuple[torch.Tensor, Side]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Gather K on the current stream, V on another, and join them."""
        slots, side = prepared
        # New ones belong to the current stream, which they are used on later.
        key, value = workload.given_or_new_outputs(len(slots))
        with side.beside():
            torch.index_select(flat_slots_view(workload.value_pool), 0, slots, out=value)
        torch.index_select(flat_slots_view(workload.key_pool), 0, slots, out=key)
        side.join()
        return key, value
