"""The plain way: a Python loop over tokens, then one upload."""

from typing import ClassVar

import torch

from kvbench.pool import PADDING_SLOT
from kvbench.strategies.base import Strategy
from kvbench.strategies.registry import register
from kvbench.workload import Workload


@register
class IndexLoop(Strategy):
    """Each slot is computed by Python, and the list of all becomes a tensor on the device.

    The upload of a list waits for the device: its memory is not pinned.
    """

    name: ClassVar[str] = "index.loop"
    op: ClassVar[str] = "index"
    summary: ClassVar[str] = "a Python loop over tokens, then torch.tensor(list) on the device"

    def run(self, workload: Workload, prepared: None) -> torch.Tensor:  # noqa: ARG002
        """Build the list of slots and upload it."""
        w, block_size = workload, workload.block_size
        slots = [
            table[position // block_size] * block_size + position % block_size
            for table, start, length in zip(w.block_tables, w.starts, w.lengths, strict=True)
            for position in range(start, start + length)
        ]
        slots += [PADDING_SLOT] * w.case.mapped_padding
        return torch.tensor(slots, dtype=w.slot_dtype, device=w.device)
