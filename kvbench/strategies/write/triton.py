"""A fused kernel over a slot mapping: one launch for K and V of the whole batch."""

from typing import ClassVar

import torch

from kvbench.cases import Case
from kvbench.kernels import availability
from kvbench.pool import slot_mapping
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
        """The slot mapping of the batch and its padding, int64 [tokens + padding]."""
        slots = slot_mapping(
            workload.block_tables,
            workload.starts,
            workload.lengths,
            workload.block_size,
            padding=workload.case.padding,
        )
        return torch.from_numpy(slots).to(workload.device)

    def run(self, workload: Workload, prepared: torch.Tensor) -> None:
        """Store every token's K and V."""
        from kvbench.kernels.scatter import scatter_kv  # noqa: PLC0415 - needs Triton

        scatter_kv(workload.key, workload.value, workload.key_pool, workload.value_pool, prepared)
