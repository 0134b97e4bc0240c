"""C++ that reads the pool in place: one call attends for the whole batch, on a CPU."""

from typing import ClassVar

import torch

from kvbench.cases import Case
from kvbench.kernels.native import library
from kvbench.kernels.native.attend import Plan
from kvbench.strategies.base import Strategy
from kvbench.strategies.registry import register
from kvbench.workload import Workload, resident_tables


@register
class AttendNative(Strategy):
    """One call a layer; the work is dealt out to threads once a step, by contexts' lengths."""

    name: ClassVar[str] = "attend.native"
    op: ClassVar[str] = "attend"
    summary: ClassVar[str] = "one C++ call that reads K and V where they lie, on a CPU"

    def supports(self, case: Case, device: torch.device) -> str | None:  # noqa: ARG002
        """Any case on a CPU, where the kernel can be built."""
        return library.attention_unsupported(device)

    def prepare(self, workload: Workload) -> Plan:
        """Tables and lengths as arrays, and the plan."""
        w, case = workload, workload.case
        tables = resident_tables(w)
        return Plan(
            w.query,
            w.key_pool,
            w.value_pool,
            tables.block_table,
            tables.lengths,
            query_len=case.query_len,
            scale=case.softmax_scale,
            sliding_window=case.sliding_window,
            soft_cap=case.soft_cap,
            key_scale=w.key_scale,
            value_scale=w.value_scale,
            per_token=case.kv_scale == "per_token",
            latent=case.layout == "MLA",
        )

    def run(self, workload: Workload, prepared: Plan) -> torch.Tensor:
        """Attend."""
        w = workload
        return prepared.run(w.query, w.key_pool, w.value_pool, w.key_scale, w.value_scale)
