"""C++ over a slot mapping: one call for K and V of the whole batch, on a CPU."""

from typing import ClassVar

import torch

from kvbench.cases import Case
from kvbench.kernels.native import library
from kvbench.kernels.native.launch import Plan
from kvbench.strategies.base import Strategy
from kvbench.strategies.registry import register
from kvbench.workload import Workload


@register
class WriteNative(Strategy):
    """One call a layer, at the speed of the memory. Padding rows are in the mapping, as -1."""

    name: ClassVar[str] = "write.native"
    op: ClassVar[str] = "write"
    summary: ClassVar[str] = "one C++ call for K and V of the batch over a slot mapping, on a CPU"

    def supports(self, case: Case, device: torch.device) -> str | None:  # noqa: ARG002
        """Any case on a CPU, where the kernels can be built."""
        return library.unsupported(device)

    def prepare(self, workload: Workload) -> Plan:
        """The slot mapping of the batch and its padding, and what layers have in common."""
        w = workload
        return Plan(
            w.key,
            w.value,
            w.key_pool,
            w.value_pool,
            torch.from_numpy(w.slot_mapping()),
            write=True,
            key_scale=w.key_scale,
            value_scale=w.value_scale,
            per_token=w.case.kv_scale == "per_token",
        )

    def run(self, workload: Workload, prepared: Plan) -> None:
        """Store every token's K and V."""
        w = workload
        prepared.run(w.key, w.value, w.key_pool, w.value_pool, w.key_scale, w.value_scale)
