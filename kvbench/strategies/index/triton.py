"""A fused kernel: one launch for the whole batch."""

from typing import ClassVar

import torch

from kvbench.cases import Case
from kvbench.kernels import availability
from kvbench.strategies.base import Strategy
from kvbench.strategies.registry import register
from kvbench.workload import ResidentTables, Workload, resident_tables


@register
class IndexTriton(Strategy):
    """One launch a step, over tables that are on the device already.

    The idea is vLLM's _compute_slot_mapping_kernel. Here a long sequence has several programs.

    Prepared: block table, starts and lengths, as they are there before a step begins (see
    `ResidentTables`).
    """

    name: ClassVar[str] = "index.triton"
    op: ClassVar[str] = "index"
    summary: ClassVar[str] = "one Triton launch for the batch over tables that stay on the device"

    def supports(self, case: Case, device: torch.device) -> str | None:  # noqa: ARG002
        """Any case, where Triton is installed."""
        return availability.unsupported(device)

    def untimed(self, device: torch.device) -> str | None:
        """Triton's interpreter, which stands in where there is no GPU, is never timed."""
        return availability.interpreted(device)

    def prepare(self, workload: Workload) -> ResidentTables:
        """The tables on the device."""
        return resident_tables(workload)

    def run(self, workload: Workload, prepared: ResidentTables) -> torch.Tensor:
        """Map every token and every row of padding."""
        from kvbench.kernels.slot_mapping import map_slots  # noqa: PLC0415 - needs Triton

        w = workload
        slots = torch.empty(w.mapped_rows, dtype=w.slot_dtype, device=w.device)
        map_slots(
            prepared.block_table,
            prepared.starts,
            prepared.lengths,
            slots,
            block_size=w.block_size,
            longest=max(w.lengths, default=0),
            padding=w.case.mapped_padding,
        )
        return slots
