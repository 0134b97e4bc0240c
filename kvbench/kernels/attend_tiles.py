"""How attention is cut into programs: rows and tokens of a tile, and parts of a context."""

from dataclasses import dataclass

_TILE_BYTES = 16 << 10
"""Of K, and of V, in a tile: with two stages of both, three programs fit a multiprocessor of 228
KiB, two one of 163 KiB, and one the 99 KiB of the smaller GPUs."""
_LEAST_DIM = 16
"""Elements along which a GPU multiplies matrices at once."""
_MOST_PARTS = 64
_MERGING_TOKENS = 128
"""Tokens that a program could read in the time that merging takes: a launch of some 3 us."""
_STARTING_TOKENS = 32
"""Tokens that a program could read in the time that it takes to begin and end."""
_RESIDENT = 2
"""Programs that a multiprocessor is taken to run at once."""


@dataclass(frozen=True, slots=True)
class AttendTile:
    """What one program has at a time."""

    rows: int
    """Query tokens times query heads of one KV head, a power of two."""
    tokens: int
    """Of the context, a power of two."""
    key_padded: int
    """Elements of a head of K, rounded up to a power of two."""
    value_padded: int
    piece: int
    """Elements of K's head that are multiplied at once."""
    warps: int
    stages: int
    """Tiles that are being loaded or worked on at once."""


def padded(number: int, least: int = 1) -> int:
    """The power of two that is no less than either."""
    return max(1 << max(number - 1, 0).bit_length(), least)


def attend_tile(
    rows: int, key_dim: int, value_dim: int, operand_bytes: int
) -> AttendTile:
    """The tile for a shape.

    Args:
        rows: Query tokens of a sequence times query heads of a KV head.
        key_dim: Elements of a head of K.
        value_dim: Elements of a head of V.
        operand_bytes: Of an element of what is multiplied: of the query's dtype.
    """
    key, value = padded(key_dim, _LEAST_DIM), padded(value_dim, _LEAST_DIM)
    widest = max(key, value)
    tokens = min(max(_TILE_BYTES // (widest * operand_bytes), 16), 64)
    if operand_bytes == 4:  # noqa: PLR2004
        return AttendTile(min(padded(rows), 16), min(tokens, 32), key, value, min(key, 32), 4, 2)
    if rows <= 16:
        return AttendTile(16, tokens, key, value, key, 4, 2)
    return AttendTile(min(padded(rows), 64), tokens, key, value, key, 4 if widest <= 128 else 8, 2)


def split(programs: int, longest: int, tokens: int, multiprocessors: int) -> tuple[int, int]:
    """Into how many parts contexts are split, and how many tokens a part has: a multiple of a tile.

    Programs run in waves, each as long as a part. More parts fill the last wave better, but each
    program takes a while to begin, and parts are to be merged.

    Args:
        programs: There are with one part.
        longest: Tokens that a program would have to read at most with one part.
        tokens: Of a tile.
        multiprocessors: Of the GPU.
    """
    tiles = -(-longest // tokens) + 1  # a window begins anywhere in a tile
    at_once = multiprocessors * _RESIDENT
    best, least = (1, tiles * tokens), None
    for parts in range(1, min(_MOST_PARTS, tiles) + 1):
        part = -(-tiles // parts) * tokens
        cost = -(-programs * parts // at_once) * (part + _STARTING_TOKENS)
        cost += _MERGING_TOKENS if parts > 1 else 0
        if least is None or cost < least:
            best, least = (-(-tiles * tokens // part), part), cost
    return best
