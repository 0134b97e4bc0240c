"""C++ over a slot mapping: one call gathers K and V of the whole batch, on a CPU."""

from typing import ClassVar

import torch

from kvbench.cases import Case
from kvbench.kernels.native import library
from kvbench.kernels.native.launch import Plan
from kvbench.strategies.base import Strategy
from kvbench.strategies.registry import register
from kvbench.workload import Workload


@register
class ReadNative(Strategy):
    """One call a layer, at the speed of the memory; the mapping is built once a step."""

    name: ClassVar[str] = "read.native"
    op: ClassVar[str] = "read"
    summary: ClassVar[str] = "one C++ call for K and V of the batch over a slot mapping, on a CPU"

    def supports(self, case: Case, device: torch.device) -> str | None:  # noqa: ARG002
        """Any case on a CPU, where the kernels can be built."""
        return library.unsupported(device)

    def prepare(self, workload: Workload) -> Plan:
        """The slot mapping of the batch, and what layers have in common."""
        w = workload
        slots = torch.from_numpy(w.slot_mapping())
        return Plan(
            *(w.outputs or _outputs(w, len(slots), torch.device("meta"))),
            w.key_pool,
            w.value_pool,
            slots,
            write=False,
            key_scale=w.key_scale,
            value_scale=w.value_scale,
            per_token=w.case.kv_scale == "per_token",
        )

    def run(self, workload: Workload, prepared: Plan) -> tuple[torch.Tensor, torch.Tensor]:
        """Gather every sequence's K and V."""
        w = workload
        key, value = w.outputs or _outputs(w, prepared.tokens, w.device)
        prepared.run(key, value, w.key_pool, w.value_pool, w.key_scale, w.value_scale)
        return key, value


def _outputs(
    workload: Workload, tokens: int, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """K and V of every token, their contents undefined."""
    key_slot, value_slot = workload.key_pool.shape[2:], workload.value_pool.shape[2:]
    return (
        torch.empty((tokens, *key_slot), dtype=workload.dtype, device=device),
        torch.empty((tokens, *value_slot), dtype=workload.dtype, device=device),
    )
