"""index_select of whole blocks, cut down to the tokens afterwards."""

from typing import ClassVar

import torch

from kvbench.cases import Case
from kvbench.quantisation import loads_into, no_given_output
from kvbench.strategies.base import Strategy
from kvbench.strategies.registry import register
from kvbench.workload import Workload

Rows = list[tuple[int, int]]
"""Where the tokens of each sequence lie among the rows of its blocks: first and end."""


@register
class ReadBlocks(Strategy):
    """One index entry a block instead of one a token, for whole blocks: more bytes than the least.

    One sequence's tokens are neighbours in the result, a slice of it. Those of several are not,
    unless they fill their blocks: they are concatenated, and every byte of them moves twice.
    """

    name: ClassVar[str] = "read.blocks"
    op: ClassVar[str] = "read"
    summary: ClassVar[str] = "block tables once a step; index_select of whole blocks, then trimmed"

    def supports(self, case: Case, device: torch.device) -> str | None:  # noqa: ARG002
        """Any case; the caller's outputs only where blocks hold nothing but their tokens."""
        if case.output == "given" and any(
            start % case.block_size or length % case.block_size
            for start, length in zip(*case.sequences(), strict=True)
        ):
            return (
                "output=given: whole blocks don't fit it where they hold more than the tokens "
                f"(block_size={case.block_size})"
            )
        return no_given_output(case)

    def prepare(self, workload: Workload) -> tuple[torch.Tensor, Rows]:
        """Every sequence's blocks, [blocks], on the device, and the rows to keep of them."""
        block_size = workload.block_size
        blocks: list[int] = []
        rows: Rows = []
        for table, start, length in zip(
            workload.block_tables, workload.starts, workload.lengths, strict=True
        ):
            if length == 0:
                continue
            first = len(blocks) * block_size + start % block_size
            if rows and rows[-1][1] == first:
                rows[-1] = (rows[-1][0], first + length)  # no row to leave out in between
            else:
                rows.append((first, first + length))
            blocks += table[start // block_size : -(-(start + length) // block_size)]
        index = torch.tensor(blocks, dtype=workload.slot_dtype)
        return index.to(workload.device), rows

    def run(
        self, workload: Workload, prepared: tuple[torch.Tensor, Rows]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Gather every sequence's blocks of K and V, and keep their tokens."""
        blocks, rows = prepared

        def gather(pool: torch.Tensor, out: torch.Tensor | None) -> torch.Tensor:
            if out is not None:
                into = out.view(len(blocks), *pool.shape[1:])
                torch.index_select(pool, 0, blocks, out=into)
                return out
            gathered = torch.index_select(pool, 0, blocks).view(-1, *pool.shape[2:])
            kept = [gathered[first:end] for first, end in rows]
            return kept[0] if len(kept) == 1 else torch.cat(kept) if kept else gathered

        return loads_into(workload, gather)
