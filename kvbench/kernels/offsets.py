"""Where tokens' rows and their slots lie, as Triton functions: what the kernels share.

A program moves a tile of tokens by elements, in three dimensions: [tokens, pieces, WIDTH]. A piece
is WIDTH elements of one head, and of one pack of x-packed K: they lie side by side, and what holds
for a piece (its head, its pack, its scale) is worked out once for all of its elements.

STEP says of how many elements all strides but the last are multiples, up to WIDTH. With it the
compiler knows how wide an access may be; by itself Triton knows of multiples of 16 elements alone,
which the slots of x-packed K in 16 bits are not, and only of those arguments that it compiles a
kernel for.

Every factor of a stride is 64-bit: a pool on a large GPU has more than 2**31 elements, and any
dimension may be the outermost.
"""

import triton.language as tl


def slots_of_tokens(
    slot_mapping,
    slot_mapping_stride,
    tokens,
    block_size,
    TOKENS: tl.constexpr,
    NARROW: tl.constexpr,
):
    """This program's tokens, which of them have a slot, and its block and place in the block.

    A negative slot is padding, and so is every token past the last.
    """
    token = tl.program_id(0).to(tl.int64) * TOKENS + tl.arange(0, TOKENS)
    slot = tl.load(slot_mapping + token * slot_mapping_stride, mask=token < tokens, other=-1)
    stored = slot >= 0
    if NARROW:
        slot = slot.to(tl.int32)  # a GPU divides 32 bits several times faster than 64
    block = (slot // block_size).to(tl.int64)
    offset = (slot % block_size).to(tl.int64)
    return token, stored, block, offset


def pieces_of_row(first, BLOCK: tl.constexpr, WIDTH: tl.constexpr):
    """The numbers of the pieces of the BLOCK elements of a row that begin at `first`."""
    return first // WIDTH + tl.arange(0, BLOCK // WIDTH)


def tile_mask(stored, piece, NUM_HEADS: tl.constexpr, DIM: tl.constexpr, WIDTH: tl.constexpr):
    """What of a tile is there to be moved, [tokens, pieces, 1]."""
    return stored[:, None, None] & (piece < NUM_HEADS * DIM // WIDTH)[None, :, None]


def row_pointers(rows, token, piece, DIM: tl.constexpr, WIDTH: tl.constexpr, STEP: tl.constexpr):
    """Where pieces of tokens' rows [heads, DIM] lie, head after head: [tokens, pieces, WIDTH].

    `rows` is a tensor and its strides.
    """
    base, token_stride, head_stride, dim_stride = rows
    head = (piece // (DIM // WIDTH)).to(tl.int64)
    first = (piece % (DIM // WIDTH) * WIDTH).to(tl.int64)
    within = head * head_stride + first * dim_stride
    element = tl.arange(0, WIDTH).to(tl.int64) * dim_stride
    at = base + tl.multiple_of(token * token_stride, STEP)[:, None, None]
    return at + (tl.multiple_of(within, STEP)[None, :, None] + element[None, None, :])


def slot_pointers(
    pool,
    block,
    offset,
    piece,
    DIM: tl.constexpr,
    PACK: tl.constexpr,
    WIDTH: tl.constexpr,
    STEP: tl.constexpr,
):
    """Where the same pieces lie in slots, whose heads are packs of PACK elements.

    `pool` is a tensor and its strides.
    """
    base, block_stride, slot_stride, head_stride, pack_stride, dim_stride = pool
    head = (piece // (DIM // WIDTH)).to(tl.int64)
    first = (piece % (DIM // WIDTH) * WIDTH).to(tl.int64)
    if PACK == DIM:
        within = head * head_stride + first * dim_stride
    else:
        within = head * head_stride + first // PACK * pack_stride + first % PACK * dim_stride
    element = tl.arange(0, WIDTH).to(tl.int64) * dim_stride
    slot = block * block_stride + offset * slot_stride
    at = base + tl.multiple_of(slot, STEP)[:, None, None]
    return at + (tl.multiple_of(within, STEP)[None, :, None] + element[None, None, :])


def token_scale_pointers(scale, block, offset):
    """Where the scales of tokens lie, [tokens]; `scale` is a tensor and its strides."""
    base, block_stride, slot_stride, _ = scale
    return base + (block * block_stride + offset * slot_stride)


def load_scales(
    scale,
    block,
    offset,
    stored,
    piece,
    NUM_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    SCALE: tl.constexpr,
):
    """The scales of a tile, to be broadcast over it: each is loaded once for all it is for."""
    base, _, _, head_stride = scale
    if SCALE == "per_token":
        at = token_scale_pointers(scale, block, offset)
        scales = tl.load(at, mask=stored, other=1.0)[:, None, None]
    elif SCALE == "per_head":
        at = base + (piece // (DIM // WIDTH)).to(tl.int64) * head_stride
        scales = tl.load(at, mask=piece < NUM_HEADS * DIM // WIDTH, other=1.0)[None, :, None]
    else:
        scales = tl.load(base)
    return scales
