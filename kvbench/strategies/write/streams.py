"""Advanced indexing over a slot mapping with V on a second stream, beside K."""

from typing import ClassVar

import torch

from kvbench.cases import Case
from kvbench.kernels.streams import NO_STREAMS, Side
from kvbench.pool import flat_slots_view, no_flat_slots
from kvbench.quantisation import Index
from kvbench.strategies.base import Strategy
from kvbench.strategies.registry import register
from kvbench.workload import Workload

Prepared = tuple[torch.Tensor, Index, Side]


@register
class WriteStreams(Strategy):
    """The two scatters of K and V may run at once: what waiting for each other costs them.

    Two events a call are the price, which is more than a small scatter takes.
    """

    name: ClassVar[str] = "write.streams"
    op: ClassVar[str] = "write"
    summary: ClassVar[str] = "slot mapping once a step; V is scattered on a second stream"

    def supports(self, case: Case, device: torch.device) -> str | None:
        """A device with streams; pools that are not quantised, with their slots on one axis."""
        if device.type == "cpu":
            return NO_STREAMS
        if case.quantised:
            return f"cache_dtype={case.cache_dtype}: K and V are encoded in tensors of their own"
        return no_flat_slots(case)

    def prepare(self, workload: Workload) -> Prepared:
        """The slots on the device, the rows that go there, and the stream."""
        return *workload.stored_slots(), Side(workload.value_pool)

    def run(self, workload: Workload, prepared: Prepared) -> None:
        """Store K on the current stream, V on another, and join them."""
        slots, rows, side = prepared
        key, value = workload.key[rows], workload.value[rows]
        with side.beside():
            flat_slots_view(workload.value_pool)[slots] = value
        flat_slots_view(workload.key_pool)[slots] = key
        side.join()
