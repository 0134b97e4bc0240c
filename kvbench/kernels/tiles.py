"""How the work of a launch is cut into programs: tiles of tokens by elements of their rows.

A tile never depends on how many tokens there are: it is a constant of the compiled kernel, and a
sweep over tokens compiles a kernel once.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

_ELEMENTS = 1024
"""Of a tile, where nothing was measured: at 16 bits, 4 warps of 16-byte accesses."""
MEASURED_ELEMENTS = (_ELEMENTS, _ELEMENTS // 4, _ELEMENTS // 2, 2 * _ELEMENTS)
"""What is tried where tiles are measured; the first is the one of above."""
_tried: ContextVar[tuple[int, ...]] = ContextVar("tried", default=MEASURED_ELEMENTS)
_MOST_TOKENS = 64
_MOST_WHOLE = 4096
"""The longest row that a program keeps all of, where it needs all of it: 16 elements a thread."""
_ACCESS_BYTES = 16
_WARP_THREADS = 32
_MOST_WARPS = 8


@dataclass(frozen=True, slots=True)
class Tile:
    """What one program moves at a time of K, and of V."""

    tokens: int
    """A power of two."""
    block: int
    """Elements of each token's row, a power of two. Longer rows take more programs."""
    warps: int

    def __str__(self) -> str:
        return f"{self.tokens} tokens x {self.block} elements, {self.warps} warps"


def default_tile(row: int, itemsize: int, *, whole_row: bool = False) -> Tile:
    """The tile for a row where nothing was measured.

    Small rows share a program, so that each of its threads has 16 bytes to move; a row that is
    larger is cut.

    Args:
        row: Elements of a token's K or V, whichever is more.
        itemsize: Bytes of an element, where rows and slots differ that of a row.
        whole_row: Whether a program must see all of a row.
    """
    return _tile(row, itemsize, _ELEMENTS, whole_row=whole_row)


def default_tiles() -> AbstractContextManager[None]:
    """Inside, no tile is chosen by measurement, which takes a kernel for each: for many shapes."""
    return tiles_of(_ELEMENTS)


@contextmanager
def tiles_of(elements: int) -> Iterator[None]:
    """Inside, tiles have so many elements, as far as rows allow: none is chosen by measurement."""
    token = _tried.set((elements,))
    try:
        yield
    finally:
        _tried.reset(token)


def tiles(row: int, itemsize: int, *, whole_row: bool = False) -> tuple[Tile, ...]:
    """The tiles that are worth measuring for a row, the default one first; see `default_tile`."""
    found = (_tile(row, itemsize, n, whole_row=whole_row) for n in _tried.get())
    return tuple(dict.fromkeys(found))


def _tile(row: int, itemsize: int, elements: int, *, whole_row: bool) -> Tile:
    padded = 1 << max(row - 1, 0).bit_length()
    block = min(padded, _MOST_WHOLE if whole_row else elements)
    tokens = min(max(elements // block, 1), _MOST_TOKENS)
    # A thread for every 16 bytes: more would make accesses narrow.
    warps = tokens * block * itemsize // (_ACCESS_BYTES * _WARP_THREADS)
    return Tile(tokens, block, min(max(warps, 1), _MOST_WARPS))
