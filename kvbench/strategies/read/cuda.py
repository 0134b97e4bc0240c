"""A fused kernel in CUDA C++ over a slot mapping: a yardstick for what Triton's launches cost."""

from typing import ClassVar

import torch

from kvbench.cases import Case
from kvbench.kernels.cuda import move
from kvbench.kernels.plan import Plan
from kvbench.strategies.base import Strategy
from kvbench.strategies.registry import register
from kvbench.workload import Workload


@register
class ReadCuda(Strategy):
    """One launch a layer, of a kernel compiled by NVRTC; see `write.cuda`."""

    name: ClassVar[str] = "read.cuda"
    op: ClassVar[str] = "read"
    summary: ClassVar[str] = "one CUDA C++ launch for K and V of the batch over a slot mapping"

    def supports(self, case: Case, device: torch.device) -> str | None:
        """NVIDIA GPUs, where heads lie in one piece and nothing is converted."""
        return move.unsupported(case, device)

    def prepare(self, workload: Workload) -> Plan:
        """The slot mapping of the batch, [tokens], on the device, and the launch that it is for."""
        w = workload
        slots = torch.from_numpy(w.slot_mapping()).to(w.device)
        # For what they are like: each call has its own.
        key, value = w.given_or_new_outputs(sum(w.lengths))
        return move.plan_move("gather_kv", key, value, w.key_pool, w.value_pool, slots)

    def run(self, workload: Workload, prepared: Plan) -> tuple[torch.Tensor, torch.Tensor]:
        """Gather every sequence's K and V."""
        key, value = workload.given_or_new_outputs(sum(workload.lengths))
        prepared.run(key, value, workload.key_pool, workload.value_pool)
        return key, value
