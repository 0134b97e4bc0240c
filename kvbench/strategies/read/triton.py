"""A fused kernel over a slot mapping: one launch gathers K and V of the whole batch."""

from typing import ClassVar

import torch

from kvbench.cases import Case
from kvbench.kernels import availability
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
        """The slot mapping of the batch, [tokens], on the device."""
        return torch.from_numpy(workload.slot_mapping()).to(workload.device)

    def run(self, workload: Workload, prepared: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Gather every sequence's K and V."""
        w = workload
        key, value = w.outputs or (
            w.key.new_empty((len(prepared), *w.key.shape[1:])),
            w.value.new_empty((len(prepared), *w.value.shape[1:])),
        )
        if w.key_scale is None or w.value_scale is None:
            from kvbench.kernels.gather import gather_kv  # noqa: PLC0415 - needs Triton

            gather_kv(w.key_pool, w.value_pool, prepared, key, value)
            return key, value
        from kvbench.kernels.gather_quantised import gather_quantised_kv  # noqa: PLC0415

        gather_quantised_kv(
            w.key_pool,
            w.value_pool,
            w.key_scale,
            w.value_scale,
            prepared,
            key,
            value,
            per_token=w.case.kv_scale == "per_token",
        )
        return key, value
