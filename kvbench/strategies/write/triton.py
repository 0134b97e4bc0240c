"""A fused kernel over a slot mapping: one launch for K and V of the whole batch."""

from typing import ClassVar

import torch

from kvbench.cases import Case
from kvbench.kernels import availability
from kvbench.strategies.base import Strategy
from kvbench.strategies.registry import register
from kvbench.workload import Workload


@register
class WriteTriton(Strategy):
    """One launch a layer. Padding rows are in the mapping, as -1, and skipped by the kernel.

    The idea is vLLM's reshape_and_cache_flash.
    """

    name: ClassVar[str] = "write.triton"
    op: ClassVar[str] = "write"
    summary: ClassVar[str] = "one Triton launch for K and V of the batch over a slot mapping"

    def supports(self, case: Case, device: torch.device) -> str | None:  # noqa: ARG002
        """Any case, where Triton is installed."""
        return availability.unsupported(device)

    def untimed(self, device: torch.device) -> str | None:
        """Triton's interpreter, which stands in where there is no GPU, is never timed."""
        return availability.interpreted(device)

    def prepare(self, workload: Workload) -> torch.Tensor:
        """The slot mapping of the batch and its padding, on the device."""
        return torch.from_numpy(workload.slot_mapping()).to(workload.device)

    def run(self, workload: Workload, prepared: torch.Tensor) -> None:
        """Store every token's K and V."""
        w = workload
        if w.key_scale is None or w.value_scale is None:
            from kvbench.kernels.scatter import scatter_kv  # noqa: PLC0415 - needs Triton

            scatter_kv(w.key, w.value, w.key_pool, w.value_pool, prepared)
            return
        from kvbench.kernels.scatter_quantised import scatter_quantised_kv  # noqa: PLC0415

        scatter_quantised_kv(
            w.key,
            w.value,
            w.key_pool,
            w.value_pool,
            w.key_scale,
            w.value_scale,
            prepared,
            per_token=w.case.kv_scale == "per_token",
        )
