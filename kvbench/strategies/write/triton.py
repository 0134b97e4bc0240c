"""A fused kernel over a slot mapping: one launch for K and V of the whole batch."""

from typing import TYPE_CHECKING, ClassVar

import torch

from kvbench.cases import Case
from kvbench.kernels import availability
from kvbench.strategies.base import Strategy
from kvbench.strategies.registry import register
from kvbench.workload import Workload

if TYPE_CHECKING:
    from kvbench.kernels.plan import Plan


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

    def prepare(self, workload: Workload) -> "Plan":
        """The slot mapping of the batch and its padding, on the device, and the launch it is for.

        The kernel is compiled here; for a kind of row that is new on this machine's GPU its tile is
        measured before.
        """
        w = workload
        slots = torch.from_numpy(w.slot_mapping()).to(w.device)
        if w.key_scale is None or w.value_scale is None:
            from kvbench.kernels.scatter import plan_scatter  # noqa: PLC0415 - needs Triton

            return plan_scatter(w.key, w.value, w.key_pool, w.value_pool, slots, tuned=True)
        from kvbench.kernels.scatter_quantised import plan_scatter_quantised  # noqa: PLC0415

        return plan_scatter_quantised(
            w.key,
            w.value,
            w.key_pool,
            w.value_pool,
            w.key_scale,
            w.value_scale,
            slots,
            per_token=w.case.kv_scale == "per_token",
            tuned=True,
        )

    def run(self, workload: Workload, prepared: "Plan") -> None:
        """Store every token's K and V."""
        w = workload
        if w.key_scale is None or w.value_scale is None:
            prepared.run(w.key, w.value, w.key_pool, w.value_pool)
        else:
            prepared.run(w.key, w.value, w.key_pool, w.value_pool, w.key_scale, w.value_scale)
