"""Functions of the kernels, each with something wrong: NAME__WHAT stands in for NAME.

As Triton functions they see the helpers of the kernel that they are put in.
"""

import triton.language as tl


def slots_of_tokens__narrow(
    slot_mapping,
    slot_mapping_stride,
    tokens,
    block_size,
    TOKENS: tl.constexpr,
    NARROW: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64) * TOKENS + tl.arange(0, TOKENS)
    slot = tl.load(slot_mapping + token * slot_mapping_stride, mask=token < tokens, other=-1)
    narrow = slot.to(tl.int32)
    return token, slot >= 0, narrow // block_size, narrow % block_size


def slots_of_tokens__unpadded(
    slot_mapping,
    slot_mapping_stride,
    tokens,
    block_size,
    TOKENS: tl.constexpr,
    NARROW: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64) * TOKENS + tl.arange(0, TOKENS)
    slot = tl.load(slot_mapping + token * slot_mapping_stride, mask=token < tokens, other=0)
    return token, slot >= 0, slot // block_size, slot % block_size


def slots_of_tokens__shifted(
    slot_mapping,
    slot_mapping_stride,
    tokens,
    block_size,
    TOKENS: tl.constexpr,
    NARROW: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64) * TOKENS + tl.arange(0, TOKENS)
    slot = tl.load(slot_mapping + token * slot_mapping_stride, mask=token < tokens, other=-1)
    return token, slot >= -1, slot // block_size, slot % block_size


def slot_pointers__cut(
    pool,
    block,
    offset,
    piece,
    DIM: tl.constexpr,
    PACK: tl.constexpr,
    WIDTH: tl.constexpr,
    STEP: tl.constexpr,
):
    base, block_stride, slot_stride, _, _, dim_stride = pool
    slot = (block * block_stride + offset * slot_stride).to(tl.int32)
    within = piece * WIDTH * dim_stride
    element = tl.arange(0, WIDTH) * dim_stride
    at = base + tl.multiple_of(slot, STEP)[:, None, None]
    return at + (tl.multiple_of(within, STEP)[None, :, None] + element[None, None, :])


def tile_mask__either(
    stored, piece, NUM_HEADS: tl.constexpr, DIM: tl.constexpr, WIDTH: tl.constexpr
):
    return stored[:, None, None] | (piece < NUM_HEADS * DIM // WIDTH)[None, :, None]


def tile_mask__without(
    stored, piece, NUM_HEADS: tl.constexpr, DIM: tl.constexpr, WIDTH: tl.constexpr
):
    return (piece < NUM_HEADS * DIM // WIDTH)[None, :, None]


def row_pointers__untold(
    rows, token, piece, DIM: tl.constexpr, WIDTH: tl.constexpr, STEP: tl.constexpr
):
    base, token_stride, head_stride, dim_stride = rows
    head = (piece // (DIM // WIDTH)).to(tl.int64)
    first = (piece % (DIM // WIDTH) * WIDTH).to(tl.int64)
    within = head * head_stride + first * dim_stride
    element = tl.arange(0, WIDTH).to(tl.int64) * dim_stride
    at = base + (token * token_stride)[:, None, None]
    return at + (within[None, :, None] + element[None, None, :])


def load_head__unbounded(
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
    block, offset = slots
    at = token_pointers(pool, kv_head, block, offset, STEP, ADJACENT)[:, None]
    at += element_offsets(pool, element, DIM, PACK, STEP, ADJACENT)[None, :]
    return tl.load(at)
