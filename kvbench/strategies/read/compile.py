"""torch.compile of advanced indexing over a slot mapping."""

from typing import ClassVar

import torch

from kvbench.cases import Case
from kvbench.kernels import compiled
from kvbench.pool import flat_slots_view, no_flat_slots
from kvbench.quantisation import as_integers
from kvbench.strategies.base import Strategy
from kvbench.strategies.registry import register
from kvbench.workload import Workload


@register
class ReadCompile(Strategy):
    """One compiled graph for K and V of the batch, with what decodes them in it.

    The first `prepare` that needs it compiles it, for all sizes: see `kernels.compiled`.
    It stores in the outputs it is given: no tensor is made on the way.
    """

    name: ClassVar[str] = "read.compile"
    op: ClassVar[str] = "read"
    summary: ClassVar[str] = "slot mapping once a step; torch.compile of pool[slots] of K and V"

    def supports(self, case: Case, device: torch.device) -> str | None:
        """Layouts whose slots lie on one axis, where there is a compiler."""
        return no_flat_slots(case) or compiled.unsupported(device)

    def prepare(self, workload: Workload) -> torch.Tensor:
        """The slot mapping of the batch, [tokens], on the device."""
        slots = torch.from_numpy(workload.slot_mapping()).to(workload.device)
        if len(slots):
            load = compiled.load_into if workload.key_scale is None else compiled.load_codes_into
            load.ready(*self._operands(workload, slots, workload.given_or_new_outputs(len(slots))))
        return slots

    def run(self, workload: Workload, prepared: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Gather every sequence's K and V."""
        outputs = workload.given_or_new_outputs(len(prepared))
        if len(prepared):
            load = compiled.load_into if workload.key_scale is None else compiled.load_codes_into
            load(*self._operands(workload, prepared, outputs))
        return outputs

    @staticmethod
    def _operands(
        workload: Workload, slots: torch.Tensor, outputs: tuple[torch.Tensor, torch.Tensor]
    ) -> tuple[torch.Tensor, ...]:
        w = workload
        pools = flat_slots_view(w.key_pool), flat_slots_view(w.value_pool)
        if w.key_scale is None or w.value_scale is None:
            return (*map(as_integers, pools), slots, *map(as_integers, outputs))
        scales = (w.key_scale, w.value_scale)
        if w.case.kv_scale == "per_token":
            scales = (w.key_scale.view(-1), w.value_scale.view(-1))
        return *pools, *scales, slots, *outputs
