"""torch's flex_attention over the pool in place."""

from typing import ClassVar

import torch

from kvbench.cases import Case
from kvbench.kernels import flex
from kvbench.strategies.base import Strategy
from kvbench.strategies.registry import register
from kvbench.workload import TORCH_DTYPES, Workload, resident_tables


@register
class AttendFlex(Strategy):
    """One compiled kernel that is told which blocks of the pool each sequence sees; none is copied.

    `prepare` makes the lists of blocks on the device; the first that needs it compiles the kernel,
    for all sizes: see `kernels.flex`.
    """

    name: ClassVar[str] = "attend.flex"
    op: ClassVar[str] = "attend"
    summary: ClassVar[str] = "block mask once a step; torch.compile of flex_attention over the pool"

    def supports(self, case: Case, device: torch.device) -> str | None:
        """Pools of the queries' dtype whose slots lie on one axis, and contexts of whole tiles."""
        if case.quantised:
            return f"cache_dtype {case.cache_dtype}: flex_attention takes K and V as they are"
        if case.layout not in {"NHD", "NHD-KV", "MLA"}:
            return f"layout {case.layout}: its slots don't lie on one axis, block after block"
        return (
            flex.no_heads((case.head_dim, case.value_head_dim), device)
            or flex.no_tiles(case.block_size, case.sequences()[1], TORCH_DTYPES[case.dtype], device)
            or flex.unsupported(device)
        )

    def prepare(self, workload: Workload) -> flex.Plan:
        """The tiles of the pool that each sequence sees, on the device."""
        w, case = workload, workload.case
        pools = self._pools(w)
        resident = resident_tables(w)
        planned = flex.plan(
            resident.block_table,
            resident.lengths,
            block_size=w.block_size,
            tile=flex.tile_of(w.block_size, w.lengths, w.device),
            stride=flex.block_stride(pools[0]),
            num_blocks=len(w.key_pool),
            query_len=case.query_len,
            group=case.num_heads // case.num_kv_heads,
            window=case.sliding_window,
        )
        if len(w.query) and len(w.key_pool):
            flex.ready(planned, w.query, *pools, scale=case.softmax_scale, soft_cap=case.soft_cap)
        return planned

    def run(self, workload: Workload, prepared: flex.Plan) -> torch.Tensor:
        """Attend, in place."""
        w, case = workload, workload.case
        return flex.attend(
            prepared, w.query, *self._pools(w), scale=case.softmax_scale, soft_cap=case.soft_cap
        )

    @staticmethod
    def _pools(workload: Workload) -> tuple[torch.Tensor, torch.Tensor]:
        """K and V; of latent rows, all of a row and its first part."""
        w = workload
        if w.case.layout == "MLA":
            return w.storages[0].unsqueeze(2), w.key_pool
        return w.key_pool, w.value_pool
