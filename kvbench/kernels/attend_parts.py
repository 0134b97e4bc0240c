"""Where an attention finds its rows, and the K and V of their contexts, as Triton functions.

A tile is TOKENS positions of a sequence's context, of one KV head, against the ROWS rows of a
program: query tokens times the query heads that share the KV head. Tiles begin at multiples of
TOKENS. RUN says how many tokens of a tile lie in one block at least: where it is all of them the
block table is looked up once, else once for each token.

STEP says of how many elements all strides of a tensor are multiples but that of what lies side by
side, and ADJACENT whether that are a block's slots instead of a head's elements: as in `offsets`,
the compiler knows with it how wide an access may be.
"""

import triton.language as tl

from kvbench.kernels.codes import decode, round_to_bf16


def rows_of_program(
    context,
    query_tokens,
    splits,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
):
    """What a program is for.

    Programs that begin together share what they read: first come the heads of a token, whose slots
    lie side by side, then the parts of a context, then the tiles of rows, those that see most
    before the others. `context` is the tensor of the contexts' lengths, and its stride.

    Returns:
        Its KV head, its part of the context and its sequence; the query tokens of its rows, [ROWS],
        of which there are query_tokens; their heads, [ROWS]; the position of query token 0, which
        is negative if the context is shorter; and the first and the last query token.
    """
    lengths, stride = context
    program = tl.program_id(0)
    kv_head = (program % KV_HEADS).to(tl.int64)
    split = program // KV_HEADS % splits
    tiles = (query_tokens * GROUP + ROWS - 1) // ROWS
    tile = tiles - 1 - program // KV_HEADS // splits % tiles
    sequence = (program // KV_HEADS // splits // tiles).to(tl.int64)
    row = tile * ROWS + tl.arange(0, ROWS)
    head = kv_head * GROUP + row % GROUP
    before = tl.load(lengths + sequence * stride).to(tl.int32) - query_tokens
    first = tile * ROWS // GROUP
    last = tl.minimum((tile * ROWS + ROWS - 1) // GROUP, query_tokens - 1)
    return kv_head, split, sequence, row // GROUP, head, before, first, last


def slots_of_positions(
    table,
    start,
    inside,
    BLOCK_SIZE: tl.constexpr,
    RUN: tl.constexpr,
    TOKENS: tl.constexpr,
):
    """Block and place in the block of the TOKENS positions from `start` on.

    `start` is a multiple of TOKENS. The block is one number where RUN is all of them. `table` is
    where the sequence's row of the block table lies, and the stride of its entries. An entry is
    looked up where its position is `inside` alone: any other may be that of no block.
    """
    base, entry_stride = table
    if RUN == TOKENS:
        # Some position of every tile is inside, and so its block is one.
        entry = tl.cast(start // BLOCK_SIZE, tl.int64) * entry_stride
        block = tl.load(base + entry).to(tl.int64)
        offset = tl.multiple_of(tl.cast(start % BLOCK_SIZE, tl.int32), RUN) + tl.arange(0, TOKENS)
    else:
        position = start + tl.arange(0, TOKENS)
        entry = (position // BLOCK_SIZE).to(tl.int64) * entry_stride
        block = tl.load(base + entry, mask=inside, other=0).to(tl.int64)
        block = tl.max_constancy(block, RUN)
        offset = tl.max_contiguous(tl.multiple_of(position % BLOCK_SIZE, RUN), RUN)
    return block, offset.to(tl.int64)


def token_pointers(pool, kv_head, block, offset, STEP: tl.constexpr, ADJACENT: tl.constexpr):
    """Where the first element of the tokens' heads lies, [TOKENS]; `pool` a tensor, its strides."""
    base, block_stride, slot_stride, head_stride, _, _ = pool
    head = tl.multiple_of(kv_head * head_stride, STEP)
    # Told of each product by itself: of a sum it is forgotten where one of its terms is 0.
    slot = tl.multiple_of(block * block_stride, STEP)
    if ADJACENT:
        slot += offset * slot_stride
    else:
        slot += tl.multiple_of(offset * slot_stride, STEP)
    return base + head + slot


def element_offsets(
    pool,
    element,
    DIM: tl.constexpr,
    PACK: tl.constexpr,
    STEP: tl.constexpr,
    ADJACENT: tl.constexpr,
):
    """How far elements of a head lie from its first: its packs have PACK elements."""
    _, _, _, _, pack_stride, dim_stride = pool
    element = element.to(tl.int64)
    if PACK == DIM:
        offsets = element * dim_stride
        if ADJACENT:
            offsets = tl.multiple_of(offsets, STEP)
    else:
        packs = tl.multiple_of(element // PACK * pack_stride, STEP)
        offsets = packs + element % PACK * dim_stride
    return offsets


def load_queries(at, dim_stride, element, real, DIM: tl.constexpr, OPERAND: tl.constexpr):
    """Elements of the heads of a program's rows, [ROWS, elements], as a product's operand.

    `at` is where the heads begin; they have DIM elements. Rows that are not real are 0.
    """
    return tl.load(
        at[:, None] + element.to(tl.int64)[None, :] * dim_stride,
        mask=real[:, None] & (element < DIM)[None, :],
        other=0.0,
    ).to(OPERAND)


def load_head(
    pool,
    kv_head,
    slots,
    span,
    element,
    DIM: tl.constexpr,
    PACK: tl.constexpr,
    STEP: tl.constexpr,
    ADJACENT: tl.constexpr,
    RUN: tl.constexpr,
    TOKENS: tl.constexpr,
):
    """Elements of a tile's tokens in a pool, [TOKENS, elements], and 0 where there are none.

    A load whose mask changes from slot to slot takes one slot at a time. Where a block's slots lie
    side by side it takes all of a run instead, of which some position is in the span, and what is
    not is left out afterwards.

    `pool` is a tensor and its strides, `slots` the tokens' blocks and their places in these, `span`
    the tokens' positions with the first and the end of those that are wanted.
    """
    block, offset = slots
    position, first, end = span
    at = token_pointers(pool, kv_head, block, offset, STEP, ADJACENT)[:, None]
    at += element_offsets(pool, element, DIM, PACK, STEP, ADJACENT)[None, :]
    inside = (position >= first) & (position < end)
    elements = (element < DIM)[None, :]
    if ADJACENT and RUN > 1:
        if RUN == TOKENS:
            codes = tl.load(at, mask=elements, other=0)
        else:
            run = position // RUN * RUN
            there = (run + RUN > first) & (run < end)
            codes = tl.load(at, mask=there[:, None] & elements, other=0)
        codes = tl.where(inside[:, None], codes, 0)
    else:
        codes = tl.load(at, mask=inside[:, None] & elements, other=0)
    return codes


def as_numbers(codes, OPERAND: tl.constexpr, CODE: tl.constexpr):
    """What a pool holds as a product's operand.

    Codes come without their scale: every code is a number of fp16 and of bf16 too.
    """
    return codes.to(OPERAND) if CODE is None else decode(codes, CODE).to(OPERAND)


def as_operand(numbers, OPERAND: tl.constexpr, ROUND_BF16: tl.constexpr):
    """Float32 numbers rounded to a product's operand."""
    if ROUND_BF16:
        numbers = round_to_bf16(numbers)
    return numbers.to(OPERAND)


def head_scale(scale, kv_head):
    """The scale of a head, or of all heads; `scale` is a tensor and its strides."""
    base, _, _, head_stride = scale
    return tl.load(base + kv_head * head_stride)


def token_scales(scale, kv_head, slots, inside, SCALE: tl.constexpr):
    """The scales of a tile's tokens, [TOKENS], or [1] if all have one."""
    base, block_stride, slot_stride, head_stride = scale
    block, offset = slots
    if SCALE == "per_token":
        at = base + (block * block_stride + offset * slot_stride)
        scales = tl.load(at, mask=inside, other=0.0)
    else:
        scales = tl.load(base + kv_head * head_stride + tl.arange(0, 1))
    return scales


def store_rows(output, row, head, element, total, summed, here, ROUND_BF16: tl.constexpr):
    """Store the rows of an output: sums over their total weight, or 0 if there is none.

    `output` is a tensor and its strides, `element` those of a row, `here` which are there.
    """
    base, token_stride, head_stride, dim_stride = output
    numbers = summed / tl.where(total > 0, total, 1.0)[:, None]
    if ROUND_BF16:
        numbers = round_to_bf16(numbers)
    at = base + (row * token_stride + head * head_stride)[:, None]
    at += element.to(tl.int64)[None, :] * dim_stride
    tl.store(at, numbers.to(base.dtype.element_ty), mask=here)


def store_part(
    partial,
    extent,
    part,
    most,
    total,
    summed,
    real,
    here,
    OUT_DIM: tl.constexpr,
    OUT_PADDED: tl.constexpr,
):
    """Store what rows found in their part of a context, to be merged.

    That is in `partial`, float32 [rows and parts, OUT_DIM], the sums, but for those that are 0; and
    in `extent`, float32 [rows and parts, 2], the highest score and the total weight. `part` says
    where in these, `real` which rows there are, and `here` which of their elements.
    """
    at = partial + (part * OUT_DIM)[:, None] + tl.arange(0, OUT_PADDED)[None, :]
    tl.store(at, summed, mask=here & (total > 0)[:, None])
    tl.store(extent + part * 2, most, mask=real)
    tl.store(extent + part * 2 + 1, total, mask=real)
