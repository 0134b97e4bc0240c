"""Gather, then attention as models call it: every query head by itself, `enable_gqa` to share."""

from typing import ClassVar

import torch
from torch.nn.functional import scaled_dot_product_attention

from kvbench.cases import Case
from kvbench.pool import flat_slots_view, no_flat_slots
from kvbench.results import Part
from kvbench.strategies.base import Strategy
from kvbench.strategies.registry import register
from kvbench.workload import Workload


@register
class AttendEnableGqa(Strategy):
    """The plain way: contexts of one length, copied out, one call of torch's attention for all."""

    name: ClassVar[str] = "attend.enable_gqa"
    op: ClassVar[str] = "attend"
    summary: ClassVar[str] = "index_select, then scaled_dot_product_attention with enable_gqa=True"

    parts: ClassVar[tuple[Part, ...]] = ("gather",)

    def supports(self, case: Case, device: torch.device) -> str | None:  # noqa: ARG002
        """Decode over equal contexts that are all seen, from a pool of the queries' own dtype."""
        if case.quantised:
            return f"cache_dtype {case.cache_dtype}: it has no codes to decode"
        if case.soft_cap:
            return "scaled_dot_product_attention has no soft cap"
        if case.sliding_window or case.query_len > 1:
            return "more than one query token, or a window: it has no mask"
        if case.layout == "MLA":
            return "layout MLA: K and V have one latent row"
        if len(set(case.sequences()[1])) > 1 or not case.seq_len or not case.batch:
            return "contexts of several lengths, or empty ones: it has no mask"
        return no_flat_slots(case)

    def prepare(self, workload: Workload) -> torch.Tensor:
        """The slot mapping of the contexts, [batch * context], on the device."""
        return torch.from_numpy(workload.slot_mapping()).to(workload.device)

    def gather(
        self, workload: Workload, prepared: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """K and V of every sequence, [batch * context, num_kv_heads, head_dim]."""
        key = flat_slots_view(workload.key_pool).index_select(0, prepared)
        return key, flat_slots_view(workload.value_pool).index_select(0, prepared)

    def run_part(self, part: Part, workload: Workload, prepared: torch.Tensor) -> object:  # noqa: ARG002
        """The gather."""
        return self.gather(workload, prepared)

    def run(self, workload: Workload, prepared: torch.Tensor) -> torch.Tensor:
        """Gather, then attend over copies."""
        case = workload.case
        key, value = (
            rows.view(case.batch, case.seq_len, case.num_kv_heads, case.head_dim).transpose(1, 2)
            for rows in self.gather(workload, prepared)
        )
        query = workload.query.unsqueeze(2)  # [batch, num_heads, 1, head_dim]
        output = scaled_dot_product_attention(
            query, key, value, scale=case.softmax_scale, enable_gqa=True
        )
        return output.squeeze(2).contiguous()
