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

Prepared = tuple[torch.Tensor, torch.Tensor | None]


@register
class WriteCompile(Strategy):
    """One compiled graph for K and V of the batch, with what quantises them in it.

    The first `prepare` that needs it compiles it, for all sizes: see `kernels.compiled`.
    """

    name: ClassVar[str] = "write.compile"
    op: ClassVar[str] = "write"
    summary: ClassVar[str] = "slot mapping once a step; torch.compile of K's and V's pool[slots] ="

    def supports(self, case: Case, device: torch.device) -> str | None:
        """Layouts whose slots lie on one axis, where there is a compiler."""
        return no_flat_slots(case) or compiled.unsupported(device)

    def prepare(self, workload: Workload) -> Prepared:
        """The slots of the batch on the device, and the rows that go there if not the first."""
        mapping, kept = workload.stored_slots()
        rows = None if isinstance(kept, slice) else kept  # the first, but for padding at the end
        if len(mapping):
            self._store(workload).ready(*self._operands(workload, (mapping, rows)))
        return mapping, rows

    def run(self, workload: Workload, prepared: Prepared) -> None:
        """Store every token's K and V."""
        if len(prepared[0]):
            self._store(workload)(*self._operands(workload, prepared))

    @staticmethod
    def _store(workload: Workload) -> compiled.Compiled:
        return compiled.store if workload.key_scale is None else compiled.store_codes

    @staticmethod
    def _operands(workload: Workload, prepared: Prepared) -> tuple[torch.Tensor | None, ...]:
        w, (slots, rows) = workload, prepared
        key, value = w.key, w.value
        if rows is None:
            key, value = key[: len(slots)], value[: len(slots)]
        pools = flat_slots_view(w.key_pool), flat_slots_view(w.value_pool)
        if w.key_scale is None or w.value_scale is None:
            return (*map(as_integers, (key, value, *pools)), slots, rows)
        scales = (w.key_scale, w.value_scale)
        if w.case.kv_scale == "per_token":
            scales = (w.key_scale.view(-1), w.value_scale.view(-1))
        return key, value, *pools, *scales, slots, rows
