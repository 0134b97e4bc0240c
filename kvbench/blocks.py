"""Where a case's sequences lie in the pool: a block allocator, and block tables.

A block table is a Python list of physical block numbers, as an engine's scheduler holds it.
"""

import itertools
import random
from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kvbench.cases import Case
from kvbench.errors import InputError

NO_BLOCK = -1
"""The table entry of a logical block that has no physical one."""

_CHURN = 4
"""Times that every block changes hands before a churned pool is handed out."""


@dataclass(frozen=True, slots=True)
class Placement:
    """The sequences of one call and the blocks that hold them.

    The three lists have one entry per sequence. Sequence i's call covers its positions
    starts[i] to starts[i] + lengths[i] - 1; its table covers positions 0 to that end, and may go on
    with entries of NO_BLOCK.
    """

    starts: list[int]
    lengths: list[int]
    block_tables: list[list[int]]
    num_blocks: int
    """Blocks in the pool; more than the tables use, so that stray writes have room to show."""


class BlockAllocator:
    """Hands out a pool's blocks and takes them back, as an engine's scheduler does.

    A block can be held several times over (a prefix that sequences share), and is free when its
    last holder has let go. What was freed first is handed out first, as in vLLM's block pool.
    """

    def __init__(self, num_blocks: int) -> None:
        self._free = OrderedDict.fromkeys(range(num_blocks))
        self._holders = [0] * num_blocks

    @property
    def free(self) -> int:
        """Blocks that nobody holds."""
        return len(self._free)

    def allocate(self, count: int) -> list[int]:
        """Take that many blocks, each with one holder.

        Raises:
            InputError: So many are not free; none was taken.
        """
        if count > len(self._free):
            raise InputError(f"{count} blocks: expected up to {len(self._free)}, which are free")
        blocks = [self._free.popitem(last=False)[0] for _ in range(count)]
        for block in blocks:
            self._holders[block] = 1
        return blocks

    def share(self, blocks: Iterable[int]) -> None:
        """Hold blocks once more that somebody holds already.

        Raises:
            InputError: A block is held by nobody; nothing was changed.
        """
        held = list(blocks)
        for block in set(held):
            self._refuse_beyond(block, 1)
        for block in held:
            self._holders[block] += 1

    def hold(self, block: int) -> None:
        """Hold a block once more, be it free or not: what it holds is wanted again."""
        self._free.pop(block, None)
        self._holders[block] += 1

    def release(self, blocks: Iterable[int]) -> None:
        """Let go of blocks, the last of them first: a prefix stays in the cache for longest.

        Raises:
            InputError: A block is held by fewer than let go of it; nothing was changed.
        """
        held = list(blocks)
        for block, times in Counter(held).items():
            self._refuse_beyond(block, times)
        for block in reversed(held):
            self._holders[block] -= 1
            if not self._holders[block]:
                self._free[block] = None

    def _refuse_beyond(self, block: int, times: int) -> None:
        holders = self._holders[block] if 0 <= block < len(self._holders) else 0
        if holders < times:
            raise InputError(f"block {block} is held {holders} times; expected {times} or more")


def place(case: Case) -> Placement:
    """The placement of a case, from its seed alone."""
    return place_sequences(case, *case.sequences())


def place_sequences(case: Case, starts: list[int], lengths: list[int]) -> Placement:
    """The placement of given sequences, with the blocks, order and seed of `case`.

    Of the blocks that all sequences share there is one copy. Of the blocks that new tokens fall in,
    the first `case.missing_blocks` have none; of an attend's contexts, the blocks that lie behind
    the window of every query.
    """
    needed = [
        -(-(start + length) // case.block_size)
        for start, length in zip(starts, lengths, strict=True)
    ]
    heads = [min(count, case.shared_blocks) for count in needed]
    firsts = [start // case.block_size for start in starts]
    gaps = [
        _missing(case, first, count, length)
        for first, count, length in zip(firsts, needed, lengths, strict=True)
    ]
    # What is its own: before the gap behind the shared head, and after both.
    own = [
        (max(first - head, 0), count - max(first + gap, head))
        for first, count, head, gap in zip(firsts, needed, heads, gaps, strict=True)
    ]
    shared = _held_of_prefix(case, heads, gaps)
    supply, num_blocks = _supply(case, len(shared) + sum(map(sum, own)))
    blocks = iter(supply)
    prefix = [NO_BLOCK] * shared.start + list(itertools.islice(blocks, len(shared)))
    tables = []
    for first, head, (before, after), gap in zip(firsts, heads, own, gaps, strict=True):
        table = prefix[: min(head, first)] + list(itertools.islice(blocks, before))
        table += [NO_BLOCK] * gap + prefix[first + gap : head]
        table += itertools.islice(blocks, after)
        tables.append(table + [NO_BLOCK] * case.table_padding)
    return Placement(starts, lengths, tables, num_blocks)


def _held_of_prefix(case: Case, heads: list[int], gaps: list[int]) -> range:
    """The logical blocks of the shared prefix that any sequence has not freed."""
    end = max(heads, default=0)
    if case.op != "attend":
        return range(end)
    held = [gap for head, gap in zip(heads, gaps, strict=True) if gap < head]
    return range(min(held, default=end), end)


def _missing(case: Case, first: int, count: int, length: int) -> int:
    """Blocks of a sequence that have none in the pool, from its logical block `first` on."""
    if case.op == "attend":
        return case.first_visible(length) // case.block_size
    return min(case.missing_blocks, count - first) if length else 0


def _supply(case: Case, total: int) -> tuple[Sequence[int], int]:
    """Blocks in the order in which tables take them, `total` or more, and the pool's size."""
    if case.block_order == "strided":
        return range(0, 2 * total, 2), 2 * total + 2
    if case.block_order == "churned":
        num_blocks = 2 * total + 2
        return _churned(num_blocks, case.seed).allocate(total), num_blocks
    num_blocks = total + total // 4 + 2
    order = list(range(num_blocks))
    if case.block_order == "shuffled":
        random.Random(case.seed).shuffle(order)  # noqa: S311 - reproducible, not secret
    return order, num_blocks


def _churned(num_blocks: int, seed: int) -> BlockAllocator:
    """A pool that sequences have come to and gone from until half of it is free again."""
    rng = random.Random(seed)  # noqa: S311 - reproducible, not secret
    allocator = BlockAllocator(num_blocks)
    longest = max(num_blocks // 8, 1)
    live: list[list[int]] = []
    handed_out = 0
    while handed_out < _CHURN * num_blocks:
        wanted = rng.randint(1, longest)
        if wanted <= allocator.free:
            live.append(allocator.allocate(wanted))
            handed_out += wanted
        else:
            _retire(live, allocator, rng)
    while allocator.free < num_blocks // 2:
        _retire(live, allocator, rng)
    return allocator


def _retire(live: list[list[int]], allocator: BlockAllocator, rng: random.Random) -> None:
    """Any of the sequences ends; another takes its place in the list."""
    at = rng.randrange(len(live))
    live[at], live[-1] = live[-1], live[at]
    allocator.release(live.pop())
