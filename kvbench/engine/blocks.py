"""The blocks of a paged cache: who holds them, and which hold a prefix that others can share."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from kvbench.blocks import BlockAllocator

_Key = tuple[int, tuple[int, ...]]
"""A full block's content: the number of the prefix before it, and its tokens."""


@dataclass(slots=True)
class Table:
    """The blocks of one sequence."""

    blocks: list[int] = field(default_factory=list)
    prefix: int = 0
    """The number of the prefix of its published blocks; 0 is the empty one."""
    published: int = 0
    """Full blocks at its head that others can find."""


class BlockManager:
    """Hands out blocks, and finds those that hold the same tokens after the same tokens.

    A block that nobody holds any more keeps its content until it is handed out again, and can be
    found until then, as in vLLM's prefix cache. Contents are compared, never their hashes alone.

    Args:
        num_blocks: Blocks of the pools.
        block_size: Tokens per block.
        sharing: Whether sequences share full blocks.
    """

    def __init__(self, num_blocks: int, block_size: int, *, sharing: bool = True) -> None:
        self.block_size, self.num_blocks = block_size, num_blocks
        self._allocator = BlockAllocator(num_blocks)
        self._sharing = sharing
        self._found: dict[_Key, tuple[int, int]] = {}
        """Prefix number and block, by content."""
        self._content: dict[int, _Key] = {}
        """What a block can be found by."""
        self._prefixes = 0

    @property
    def free(self) -> int:
        """Blocks that nobody holds."""
        return self._allocator.free

    def blocks_for(self, tokens: int) -> int:
        """Blocks that so many tokens take."""
        return -(-tokens // self.block_size)

    def begin(self, tokens: Sequence[int]) -> Table:
        """A table of the blocks that hold a sequence's first tokens already, held once more.

        At least the last token is left out: its logits have to be worked out.
        """
        table = Table()
        if not self._sharing:
            return table
        for first in range(0, len(tokens) - self.block_size, self.block_size):
            key = (table.prefix, tuple(tokens[first : first + self.block_size]))
            if key not in self._found:
                break
            table.prefix, block = self._found[key]
            self._allocator.hold(block)
            table.blocks.append(block)
            table.published += 1
        return table

    def grow(self, table: Table, tokens: int) -> bool:
        """Give a table room for so many tokens; False, and nothing is changed, if there is none."""
        missing = self.blocks_for(tokens) - len(table.blocks)
        if missing <= 0:
            return True
        if missing > self._allocator.free:
            return False
        for block in self._allocator.allocate(missing):
            key = self._content.pop(block, None)
            if key is not None:
                del self._found[key]  # its content is about to be overwritten
            table.blocks.append(block)
        return True

    def publish(self, table: Table, tokens: Sequence[int], computed: int) -> None:
        """Let others find the blocks that are full and computed.

        Args:
            table: A sequence's.
            tokens: The sequence.
            computed: How many of its tokens are in the cache.
        """
        if not self._sharing:
            return
        while (table.published + 1) * self.block_size <= computed:
            first = table.published * self.block_size
            key = (table.prefix, tuple(tokens[first : first + self.block_size]))
            if key not in self._found:
                block = table.blocks[table.published]
                self._prefixes += 1
                self._found[key] = self._prefixes, block
                self._content[block] = key
            # Of two blocks with the same content the first is the one that others find.
            table.prefix = self._found[key][0]
            table.published += 1

    def end(self, table: Table) -> None:
        """Let go of a table's blocks."""
        self._allocator.release(table.blocks)
        table.blocks, table.prefix, table.published = [], 0, 0
