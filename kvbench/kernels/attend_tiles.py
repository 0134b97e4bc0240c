"""How attention is cut into programs: the tile of one program, and the parts of a context."""

from dataclasses import dataclass

_TILE_BYTES = 16 << 10
"""Of K, and of V, in a tile."""
_LEAST_DIM = 16
"""Rows, and elements along which they are multiplied, that a GPU's matrix units take at least."""
_MOST_TOKENS = 64
_FP32_BYTES = 4
_FP32_PIECE = 32
"""Elements of a head that are multiplied at once where there are no matrix units: more of them
would be in registers together."""
_MOST_PARTS = 64
_MERGING_TOKENS = 128
"""Tokens that a program reads in the time that merging takes: a launch of some 3 us."""
_STARTING_TOKENS = 32
"""Tokens that a program reads in the time that it takes to begin and to end."""
_MOST_RESIDENT = 4


@dataclass(frozen=True, slots=True)
class Gpu:
    """What decides how many programs run at once: of an H100 where there is no GPU to ask."""

    multiprocessors: int = 132
    shared_bytes: int = 228 << 10
    """Shared memory of a multiprocessor."""


@dataclass(frozen=True, slots=True)
class AttendTile:
    """What one program has at a time."""

    rows: int
    """Query tokens times the query heads of one KV head, a power of two."""
    tokens: int
    """Of a context, a power of two."""
    piece: int
    """Elements of K's head that are multiplied at once, a power of two."""
    warps: int
    stages: int
    """Turns of the loop over a context that are under way at once. A block is looked up in one, and
    its slots are loaded in another: with 5 two tiles are being loaded while a third is worked on,
    with 3 one."""

    def __str__(self) -> str:
        return f"{self.rows} rows x {self.tokens} tokens, {self.warps} warps, {self.stages} stages"


def padded(number: int, least: int = 1) -> int:
    """The lowest power of two that is no less than either."""
    return max(1 << max(number - 1, 0).bit_length(), least)


def padded_dim(dim: int) -> int:
    """Elements of a head as a kernel has them, a power of two."""
    return padded(dim, _LEAST_DIM)


def attend_tile(
    rows: int, dim: int, itemsize: int, *, quantised: bool = False, latent: bool = False
) -> AttendTile:
    """The tile for a shape. It leaves no register spilled, and fits the smallest GPU's memory.

    Args:
        rows: Query tokens of a sequence times query heads of a KV head.
        dim: Elements of a head of K or V, whichever is more.
        itemsize: Bytes of an element of the queries.
        quantised: Whether the pools hold codes.
        latent: Whether K and V are one row.
    """
    head = padded_dim(dim)
    tokens = min(max(_TILE_BYTES // (head * itemsize), _LEAST_DIM), _MOST_TOKENS)
    if itemsize == _FP32_BYTES:
        return _fp32_tile(rows, head, min(tokens, 32))
    if quantised:  # codes are in registers before they are multiplied
        tokens = min(tokens, 32)
    if head > 256:
        least = rows <= 16 or head > 512
        return AttendTile(16 if least else 32, 16, head, 8, 5 if latent else 3)
    if rows <= 16 or (quantised and head > 128):
        return AttendTile(16, min(tokens, 16) if rows > 16 else tokens, head, 4, 5)
    if head > 128:
        return AttendTile(min(padded(rows), 64), 32, head, 8, 3)
    if rows <= 64:
        return AttendTile(padded(rows), 32, head, 4, 5)
    return AttendTile(64 if quantised and head > 64 else 128, tokens, head, 8, 5)


def _fp32_tile(rows: int, head: int, tokens: int) -> AttendTile:
    rows, piece = min(padded(rows), 16), min(head, _FP32_PIECE)
    if head > 256:
        return AttendTile(rows, 16, piece, 8, 1)
    if rows > 8 and head >= 128:
        return AttendTile(rows, 16, piece, 8, 5)
    return AttendTile(rows, tokens, piece, 4, 5)


def cut(longest: int, tokens: int, parts: int) -> tuple[int, int]:
    """Into how many parts contexts are cut, and the tokens of a part: a multiple of a tile's.

    Args:
        longest: Positions that the queries of a sequence see at most.
        tokens: Of a tile.
        parts: The most that there may be.
    """
    tiles = -(-longest // tokens) + 1  # of the first one they may see but the last position
    part = -(-tiles // parts)
    return -(-tiles // part), part * tokens


def best_parts(programs: int, longest: int, tile: AttendTile, token_bytes: int, gpu: Gpu) -> int:
    """Into how many parts contexts are best cut, between as many programs.

    Programs run in waves, each as long as a part. More parts leave less of the last wave empty, but
    every program takes a while to begin, and what they find has to be merged.

    Args:
        programs: How many there are with one part.
        longest: As in `cut`.
        tile: Of a program.
        token_bytes: Of K and V of one head in shared memory.
        gpu: Where they run.
    """
    buffers = max(tile.stages // 2, 1)
    resident = gpu.shared_bytes // (buffers * tile.tokens * token_bytes)
    at_once = gpu.multiprocessors * min(max(resident, 1), _MOST_RESIDENT)

    def cost(parts: int) -> int:
        found, part = cut(longest, tile.tokens, parts)
        waves = -(-programs * found // at_once)
        return waves * (part + _STARTING_TOKENS) + (_MERGING_TOKENS if found > 1 else 0)

    return min(range(1, _MOST_PARTS + 1), key=cost)
