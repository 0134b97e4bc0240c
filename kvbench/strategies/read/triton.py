"""A fused kernel over a slot mapping: one launch gathers K and V of the whole batch."""

from typing import ClassVar

import torch

from kvbench.cases import Case
from kvbench.kernels import availability
from kvbench.pool import slot_mapping
from kvbench.strategies.base import Strategy
from kvbench.strategies.registry import register
from kvbench.workload import Workload


@register
class ReadTriton(Strategy):
    """One launch a layer; the mapping is built and uploaded once a step."""

    name: ClassVar[str] = "read.triton"
    op: ClassVar[str] = "read"
    summary: ClassVar[str] = "one Triton launch for K and V of the batch over a slot mapping"

    def supports(self, case: Case, device: torch.device) -> str | None:  # noqa: ARG002
        """Any case, where Triton is installed."""
        return availability.unsupported(device)

    def untimed(self, device: torch.device) -> str | None:
        """Triton's interpreter, which stands in where there is no GPU, is never timed."""
        return availability.interpreted(device)

    def prepare(self, workload: Workload) -> torch.Tensor:
        """The slot mapping of the batch, int64 [tokens], on the device."""
        slots = slot_mapping(
            workload.block_tables, workload.starts, workload.lengths, workload.block_size
        )
        return torch.from_numpy(slots).to(workload.device)

    def run(self, workload: Workload, prepared: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Gather every sequence's K and V."""
        from kvbench.kernels.gather import gather_kv  # noqa: PLC0415 - needs Triton

        shape = (len(prepared), *workload.key_pool.shape[2:])
        key = workload.key_pool.new_empty(shape)
        value = workload.value_pool.new_empty(shape)
        gather_kv(workload.key_pool, workload.value_pool, prepared, key, value)
        return key, value
