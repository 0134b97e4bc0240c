"""A kernel that reads the blocks of the pool in place, its contexts split between programs."""

from typing import TYPE_CHECKING, ClassVar

import torch

from kvbench.cases import Case
from kvbench.kernels import availability
from kvbench.strategies.base import Strategy
from kvbench.strategies.registry import register
from kvbench.workload import Workload, resident_tables

if TYPE_CHECKING:
    from kvbench.kernels.plan import Plan


@register
class AttendTriton(Strategy):
    """One launch a layer, or two where contexts are split; nothing is copied out of the pool.

    The query heads that share a head of K and V are one program's, so that each row is read once.
    As in flash-decoding, a context that few sequences have is split between programs, and what they
    found is merged.
    """

    name: ClassVar[str] = "attend.triton"
    op: ClassVar[str] = "attend"
    summary: ClassVar[str] = "a Triton kernel over the pool's blocks in place, contexts split"

    def supports(self, case: Case, device: torch.device) -> str | None:  # noqa: ARG002
        """Any case, where Triton is installed."""
        return availability.unsupported(device)

    def untimed(self, device: torch.device) -> str | None:
        """Triton's interpreter, which stands in where there is no GPU, is never timed."""
        return availability.interpreted(device)

    def prepare(self, workload: Workload) -> "Plan":
        """Tables on the device, the split of contexts and its memory, kernels compiled."""
        from kvbench.kernels.attend_plan import Meaning, plan_attend  # noqa: PLC0415 - needs Triton

        w, case = workload, workload.case
        tables = resident_tables(w)
        return plan_attend(
            w.query,
            w.key_pool,
            w.value_pool,
            _output(w),
            _scales(w),
            tables.block_table,
            tables.lengths,
            Meaning(
                longest=max(w.lengths, default=0),
                softmax_scale=case.softmax_scale,
                sliding_window=case.sliding_window,
                soft_cap=case.soft_cap,
                latent=case.layout == "MLA",
            ),
            per_token=case.quantised and case.kv_scale == "per_token",
        )

    def run(self, workload: Workload, prepared: "Plan") -> torch.Tensor:
        """Attend."""
        w = workload
        output = _output(w)
        prepared.run(w.query, w.key_pool, w.value_pool, output, *_scales(w))
        return output


def _output(w: Workload) -> torch.Tensor:
    """[batch * query_len, num_heads, value_head_dim], of undefined contents."""
    return w.query.new_empty((*w.query.shape[:2], w.case.value_head_dim))


def _scales(w: Workload) -> tuple[torch.Tensor, torch.Tensor] | tuple[()]:
    return () if w.key_scale is None or w.value_scale is None else (w.key_scale, w.value_scale)
