"""What attention over a paged cache is made of, as Triton functions: its kernels share them.

A tile is TOKENS positions of a sequence's context, of one KV head, against the ROWS rows of a
program: query tokens times the query heads that share the KV head. Tiles begin at multiples of
TOKENS. RUN says how many tokens of a tile lie in one block at least: where it is all of them the
block table is looked up once, else once for each token.

Scores are kept times log2(e), so that their exponentials are powers of two: what a GPU has.
"""

import triton.language as tl

from kvbench.kernels.codes import decode, round_to_bf16


def slots_of_positions(
    table,
    start,
    inside,
    BLOCK_SIZE: tl.constexpr,
    RUN: tl.constexpr,
    TOKENS: tl.constexpr,
):
    """Block and place in the block of the TOKENS positions from `start` on.

    `start` is a multiple of TOKENS. The block is one number where RUN is all of them. `table` is where the sequence's row of the
    block table lies, and the stride of its entries. An entry is looked up where its position is
    `inside` alone: any other may be that of no block.
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
    """Where the first element of the tokens' heads lies, [TOKENS]; `pool` a tensor, its strides.

    STEP says of how many elements all strides are multiples but that of what lies side by side,
    ADJACENT whether that are a block's slots instead of a head's elements: as in `offsets`, the
    compiler knows with it how wide an access may be.
    """
    base, block_stride, slot_stride, head_stride, _, _ = pool
    head = tl.multiple_of(kv_head * head_stride, STEP)
    if ADJACENT:
        slot = tl.multiple_of(block * block_stride, STEP) + offset * slot_stride
    else:
        slot = tl.multiple_of(block * block_stride + offset * slot_stride, STEP)
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
    """Elements of the heads of a program's rows, [ROWS, elements]; `at` where they begin."""
    return tl.load(
        at[:, None] + element.to(tl.int64)[None, :] * dim_stride,
        mask=real[:, None] & (element < DIM)[None, :],
        other=0.0,
    ).to(OPERAND)


def load_tile(
    at,
    position,
    first,
    end,
    elements,
    RUN: tl.constexpr,
    TOKENS: tl.constexpr,
    ADJACENT: tl.constexpr,
):
    """What tokens' heads hold, [TOKENS, elements], and 0 of positions before `first` or past `end`.

    A load whose mask changes from slot to slot takes one slot at a time. Where a block's slots lie
    side by side it takes all of a run instead, of which some position is between the two, and what
    is no token's is left out afterwards.
    """
    inside = (position >= first) & (position < end)
    if ADJACENT and RUN > 1:
        if RUN == TOKENS:
            codes = tl.load(at, mask=elements[None, :], other=0)
        else:
            run = position // RUN * RUN
            there = (run + RUN > first) & (run < end)
            codes = tl.load(at, mask=there[:, None] & elements[None, :], other=0)
        codes = tl.where(inside[:, None], codes, 0)
    else:
        codes = tl.load(at, mask=inside[:, None] & elements[None, :], other=0)
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


def token_scales(scale, kv_head, block, offset, inside, SCALE: tl.constexpr):
    """The scales of a tile's tokens, [TOKENS], or [1] if all have one."""
    base, block_stride, slot_stride, head_stride = scale
    if SCALE == "per_token":
        at = base + (block * block_stride + offset * slot_stride)
        scales = tl.load(at, mask=inside, other=0.0)
    else:
        scales = tl.load(base + kv_head * head_stride + tl.arange(0, 1))
    return scales


def cap_scores(scores, SOFT_CAP: tl.constexpr):
    """SOFT_CAP * tanh(scores) * log2(e), of scores that were divided by SOFT_CAP."""
    size = tl.abs(scores)
    decay = tl.exp2(-2.8853900817779268 * size)
    square = size * size
    # Near 0 the quotient below would be a difference of numbers that are almost the same.
    series = -0.05396825396825397 + square * 0.021869488536155203
    series = 1.0 + square * (-0.3333333333333333 + square * (0.13333333333333333 + square * series))
    capped = tl.where(size < 0.25, size * series, (1.0 - decay) / (1.0 + decay))
    capped *= SOFT_CAP * 1.4426950408889634
    return tl.where(scores < 0, -capped, capped)


def fold_tile(most, total, scores):
    """Take a tile's scores into the softmax so far.

    Args:
        most: The highest score of each row, [ROWS], -inf where it has seen nothing.
        total: The sum of the powers of two of the scores less `most`, [ROWS].
        scores: [ROWS, TOKENS], -inf of what a row does not see.

    Returns:
        `most` and `total` with the tile; what a sum so far is to be multiplied with, [ROWS]; and
        the tile's weights, [ROWS, TOKENS].
    """
    highest = tl.reduce(scores, 1, tl.standard._elementwise_max)  # noqa: SLF001 - see jit
    after = tl.maximum(most, highest)
    # Of two infinities the difference would be NaN.
    reference = tl.where(after == float("-inf"), 0.0, after)
    kept = tl.exp2(most - reference)
    weights = tl.exp2(scores - reference[:, None])
    added = tl.reduce(weights, 1, tl.standard._sum_combine)  # noqa: SLF001
    return after, total * kept + added, kept, weights
