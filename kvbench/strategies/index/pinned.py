"""Array arithmetic into pinned memory, then an upload that the host does not wait for."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy.typing as npt
import torch

from kvbench.cases import Case
from kvbench.pool import map_batch
from kvbench.strategies.base import Strategy
from kvbench.strategies.registry import register
from kvbench.workload import Workload

_BUFFERS = 2
"""So that one step's slots are computed while the last step's are on their way."""


@dataclass(slots=True)
class _Ring:
    """Pinned buffers that steps take turns over."""

    buffers: list[torch.Tensor]
    arrays: list[npt.NDArray[Any]]
    """The same memory, for NumPy."""
    uploaded: list[torch.Event]
    """Recorded behind the upload of each: before it has come to pass, the memory may be read."""
    graphs: bool
    """Whether streams of the device may be captured."""
    turn: int = 0


@register
class IndexPinned(Strategy):
    """The arithmetic of `index.numpy`, an upload that only joins the stream.

    Pinned memory is read while the host goes on. Writing to it too early would change what an
    earlier step uploads: each of two buffers has an event behind its upload, and the step whose
    turn it is waits for that event in the rare case that the device is two uploads behind.

    Prepared: the buffers. A step computes, copies, records.
    """

    name: ClassVar[str] = "index.pinned"
    op: ClassVar[str] = "index"
    summary: ClassVar[str] = "NumPy into pinned buffers, then an upload that does not block"

    def supports(self, case: Case, device: torch.device) -> str | None:  # noqa: ARG002
        """Devices that have memory of their own."""
        if device.type == "cpu":
            return "a CPU has no pinned memory: nothing is uploaded"
        return None

    def prepare(self, workload: Workload) -> _Ring:
        """Allocate the pinned buffers."""
        buffers = [
            torch.empty(workload.mapped_rows, dtype=workload.slot_dtype, pin_memory=True)
            for _ in range(_BUFFERS)
        ]
        return _Ring(
            buffers,
            [buffer.numpy() for buffer in buffers],
            [torch.Event(workload.device) for _ in buffers],
            graphs=torch.cuda.is_available(),
        )

    def run(self, workload: Workload, prepared: _Ring) -> torch.Tensor:
        """Compute the slots in the buffer whose turn it is, and upload them.

        Raises:
            RuntimeError: A graph is being captured: it would replay the upload without the
                arithmetic, which the host does.
        """
        w, ring = workload, prepared
        if ring.graphs and torch.cuda.is_current_stream_capturing():
            raise RuntimeError("a graph would replay the upload alone, not the host's arithmetic")
        turn, ring.turn = ring.turn, (ring.turn + 1) % _BUFFERS
        uploaded = ring.uploaded[turn]
        if not uploaded.query():
            uploaded.synchronize()
        map_batch(w.block_tables, w.starts, w.lengths, w.block_size, ring.arrays[turn])
        slots = ring.buffers[turn].to(w.device, non_blocking=True)
        uploaded.record()
        return slots
