"""Where a case's sequences lie in the pool: start positions, lengths, block tables.

A block table is a Python list of physical block numbers, as an engine's scheduler holds it.
"""

import random
from dataclasses import dataclass

from kvbench.cases import Case


@dataclass(frozen=True, slots=True)
class Placement:
    """The sequences of one call and the blocks that hold them.

    The three lists have one entry per sequence. Sequence i's call covers its positions
    starts[i] to starts[i] + lengths[i] - 1; its table covers positions 0 to that end.
    """

    starts: list[int]
    lengths: list[int]
    block_tables: list[list[int]]
    num_blocks: int
    """Blocks in the pool; more than the tables use, so that stray writes have room to show."""


def sequences(case: Case) -> tuple[list[int], list[int]]:
    """The start position and the length of every sequence of a case, from its seed alone."""
    starts = [case.start_pos] * case.batch
    lengths = [case.seq_len] * case.batch
    if case.lengths == "equal":
        return starts, lengths
    rng = random.Random(case.seed)  # noqa: S311 - reproducible, not secret
    for i in range(1, case.batch):
        starts[i] += rng.randint(0, 2 * case.block_size)
    # Pairs trade tokens, so that the mean stays seq_len and bytes compare between cases.
    for i in range(0, case.batch - 1, 2):
        moved = (
            case.seq_len if case.lengths == "holes" else rng.randint(0, max(case.seq_len - 1, 0))
        )
        lengths[i] += moved
        lengths[i + 1] -= moved
    return starts, lengths


def place(case: Case) -> Placement:
    """The placement of a case, from its seed alone."""
    return place_sequences(case, *sequences(case))


def place_sequences(case: Case, starts: list[int], lengths: list[int]) -> Placement:
    """The placement of given sequences, with the block size, order and seed of `case`."""
    needed = [
        -(-(start + length) // case.block_size)
        for start, length in zip(starts, lengths, strict=True)
    ]
    total = sum(needed)
    if case.block_order == "strided":
        num_blocks = 2 * total + 2
        order = list(range(0, 2 * total, 2))
    else:
        num_blocks = total + total // 4 + 2
        order = list(range(num_blocks))
        if case.block_order == "shuffled":
            random.Random(case.seed).shuffle(order)  # noqa: S311 - reproducible, not secret
    supply = iter(order)
    tables = [[next(supply) for _ in range(count)] for count in needed]
    return Placement(starts, lengths, tables, num_blocks)
