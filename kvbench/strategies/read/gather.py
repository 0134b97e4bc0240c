"""gather over flat slots, its index expanded to an entry per element."""

from typing import ClassVar

import torch

from kvbench.cases import Case
from kvbench.pool import flat_slots_view, no_flat_slots
from kvbench.quantisation import as_integers, loads_into, no_given_output
from kvbench.strategies.base import Strategy
from kvbench.strategies.registry import register
from kvbench.workload import Workload


@register
class ReadGather(Strategy):
    """One gather each for K and V, which looks up a 64-bit slot for each element of a row.

    The expanded index takes no memory (its strides are 0), but it is read 8 bytes an element, out
    of a cache. torch.take_along_dim is this op behind a remainder that fills an index in memory.
    """

    name: ClassVar[str] = "read.gather"
    op: ClassVar[str] = "read"
    summary: ClassVar[str] = "slot mapping once a step; gather reads a 64-bit slot per element"

    def supports(self, case: Case, device: torch.device) -> str | None:  # noqa: ARG002
        """Layouts whose slots lie on one axis, and 64-bit slots; no decoding into given outputs."""
        if case.slot_dtype != "int64":
            return (
                f"slot_dtype={case.slot_dtype}: gather converts it in every call to an index of "
                "64 bits an element"
            )
        return no_flat_slots(case) or no_given_output(case)

    def prepare(self, workload: Workload) -> torch.Tensor:
        """The slot mapping of the batch, [tokens], on the device."""
        return torch.from_numpy(workload.slot_mapping()).to(workload.device)

    def run(self, workload: Workload, prepared: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Gather every sequence's K and V with gather(flat_pool, 0, slots)."""

        def gather(pool: torch.Tensor, out: torch.Tensor | None) -> torch.Tensor:
            flat = as_integers(flat_slots_view(pool))
            shape = (len(prepared), *flat.shape[1:])
            index = prepared.view(-1, *[1] * (flat.dim() - 1)).expand(shape)
            into = None if out is None else as_integers(out)
            return torch.gather(flat, 0, index, out=into).view(pool.dtype)

        return loads_into(workload, gather)
