"""Array arithmetic on the host, then a plain upload."""

from typing import ClassVar

import numpy as np
import torch

from kvbench.pool import map_batch
from kvbench.strategies.base import Strategy
from kvbench.strategies.registry import register
from kvbench.workload import Workload


@register
class IndexNumpy(Strategy):
    """A fixed number of NumPy calls for the whole batch; the upload waits for the device.

    It begins with the scheduler's lists, so that a step pays for making arrays of them: an engine
    that keeps its tables as arrays, as vLLM does, pays less.
    """

    name: ClassVar[str] = "index.numpy"
    op: ClassVar[str] = "index"
    summary: ClassVar[str] = "NumPy over the batch on the host, then an upload that synchronises"

    def run(self, workload: Workload, prepared: None) -> torch.Tensor:  # noqa: ARG002
        """Compute the slots and upload them."""
        w = workload
        slots = np.empty(w.mapped_rows, w.slot_array_dtype)
        map_batch(w.block_tables, w.starts, w.lengths, w.block_size, slots)
        return torch.from_numpy(slots).to(w.device)
