"""A fused kernel over a slot mapping: one launch gathers K and V of the whole batch."""

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

    def prepare(self, workload: Workload) -> "Plan":
        """The slot mapping of the batch, [tokens], on the device, and the launch that it is for.

        The kernel is compiled here; for a kind of row that is new on this machine's GPU its tile is
        measured before.
        """
        w = workload
        slots = torch.from_numpy(w.slot_mapping()).to(w.device)
        # For what they are like: each call has its own.
        key, value = w.given_or_new_outputs(sum(w.lengths))
        if w.key_scale is None or w.value_scale is None:
            from kvbench.kernels.gather import plan_gather  # noqa: PLC0415 - needs Triton

            return plan_gather(key, value, w.key_pool, w.value_pool, slots, tuned=True)
        from kvbench.kernels.gather_quantised import plan_gather_quantised  # noqa: PLC0415

        return plan_gather_quantised(
            key,
            value,
            w.key_pool,
            w.value_pool,
            w.key_scale,
            w.value_scale,
            slots,
            per_token=w.case.kv_scale == "per_token",
            tuned=True,
        )

    def run(self, workload: Workload, prepared: "Plan") -> tuple[torch.Tensor, torch.Tensor]:
        """Gather every sequence's K and V."""
        w = workload
        key, value = w.given_or_new_outputs(sum(w.lengths))
        if w.key_scale is None or w.value_scale is None:
            prepared.run(key, value, w.key_pool, w.value_pool)
        else:
            prepared.run(key, value, w.key_pool, w.value_pool, w.key_scale, w.value_scale)
        return key, value
