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
class WriteCuda(Strategy):
    """One launch a layer, of a kernel compiled by NVRTC. Padding rows are skipped by the kernel.

    What it takes longer or shorter than write.triton is what Triton's launches and its code for
    this copy cost. The idea is vLLM's reshape_and_cache_flash.
    """

    name: ClassVar[str] = "write.cuda"
    op: ClassVar[str] = "write"
    summary: ClassVar[str] = "one CUDA C++ launch for K and V of the batch over a slot mapping"

    def supports(self, case: Case, device: torch.device) -> str | None:
        """NVIDIA GPUs, where heads lie in one piece and nothing is converted."""
        return move.unsupported(case, device)

    def prepare(self, workload: Workload) -> Plan:
        """The slot mapping of the batch and its padding, on the device, and its launch."""
        w = workload
        slots = torch.from_numpy(w.slot_mapping()).to(w.device)
        return move.plan_move("scatter_kv", w.key, w.value, w.key_pool, w.value_pool, slots)

    def run(self, workload: Workload, prepared: Plan) -> None:
        """Store every token's K and V."""
        w = workload
        prepared.run(w.key, w.value, w.key_pool, w.value_pool)
