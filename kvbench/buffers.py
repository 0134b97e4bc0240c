"""The tensors of one case, kept for the next one of its shape: memory that is mapped and warm."""

import dataclasses

import torch

from kvbench.blocks import place
from kvbench.cases import Case
from kvbench.engine.sizes import model_of
from kvbench.workload import Workload, blocks_of, build


class Buffers:
    """Keeps the workload of the last case, and hands its tensors on where they fit."""

    def __init__(self) -> None:
        self._kept: Workload | None = None

    def keep(self, workload: Workload) -> None:
        """Put a workload's tensors by, in place of those that were."""
        self._kept = workload

    def usable_bytes(self, case: Case, device: torch.device) -> int:
        """Bytes kept that a case can have; if it can't use them they are let go, and it is 0."""
        kept = self._kept
        if kept is None or kept.device != device or kept.case.shape() != case.shape():
            self._kept = None
            return 0
        storages = {t.untyped_storage().data_ptr(): t for t in kept.tensors().values()}
        return sum(tensor.untyped_storage().nbytes() for tensor in storages.values())

    def build(self, case: Case, device: torch.device) -> Workload:
        """As `workload.build`, in the tensors that are kept if they are of the case's shape.

        Raises:
            MemoryError, torch.OutOfMemoryError: The tensors don't fit.
        """
        kept, usable = self._kept, self.usable_bytes(case, device)
        self._kept = None
        if kept is not None and usable:
            at = place(case)
            rows = sum(at.lengths), len(kept.storages[0])
            if rows == (sum(kept.lengths), blocks_of(case, at)):
                return dataclasses.replace(
                    kept,
                    case=case,
                    model=model_of(case, kept.dtype, device) if kept.model is not None else None,
                    starts=at.starts,
                    lengths=at.lengths,
                    block_tables=at.block_tables,
                )
        del kept
        return build(case, device)
