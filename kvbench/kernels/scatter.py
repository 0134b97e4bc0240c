"""Write K and V rows into their slots, one launch for both."""

import torch
import triton.language as tl

from kvbench.kernels.jit import Kernel
from kvbench.kernels.offsets import (
    pieces_of_row,
    row_pointers,
    slot_pointers,
    slots_of_tokens,
    tile_mask,
)
from kvbench.kernels.plan import Plan
from kvbench.kernels.planning import plan


def _scatter_kv(
    key,
    value,
    key_pool,
    value_pool,
    slot_mapping,
    tokens,
    block_size,
    slot_mapping_stride,
    key_token_stride,
    key_head_stride,
    key_dim_stride,
    value_token_stride,
    value_head_stride,
    value_dim_stride,
    key_pool_block_stride,
    key_pool_slot_stride,
    key_pool_head_stride,
    key_pool_pack_stride,
    key_pool_dim_stride,
    value_pool_block_stride,
    value_pool_slot_stride,
    value_pool_head_stride,
    value_pool_pack_stride,
    value_pool_dim_stride,
    NUM_HEADS: tl.constexpr,
    KEY_DIM: tl.constexpr,
    KEY_PACK: tl.constexpr,
    KEY_WIDTH: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    VALUE_PACK: tl.constexpr,
    VALUE_WIDTH: tl.constexpr,
    KEY_STEP: tl.constexpr,
    VALUE_STEP: tl.constexpr,
    KEY_POOL_STEP: tl.constexpr,
    VALUE_POOL_STEP: tl.constexpr,
    NARROW: tl.constexpr,
    TOKENS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    token, stored, block, offset = slots_of_tokens(
        slot_mapping, slot_mapping_stride, tokens, block_size, TOKENS, NARROW
    )
    first = tl.program_id(1) * BLOCK

    piece = pieces_of_row(first, BLOCK, KEY_WIDTH)
    mask = tile_mask(stored, piece, NUM_HEADS, KEY_DIM, KEY_WIDTH)
    row = (key, key_token_stride, key_head_stride, key_dim_stride)
    rows = row_pointers(row, token, piece, KEY_DIM, KEY_WIDTH, KEY_STEP)
    pool = (
        key_pool,
        key_pool_block_stride,
        key_pool_slot_stride,
        key_pool_head_stride,
        key_pool_pack_stride,
        key_pool_dim_stride,
    )
    slots = slot_pointers(pool, block, offset, piece, KEY_DIM, KEY_PACK, KEY_WIDTH, KEY_POOL_STEP)
    tl.store(slots, tl.load(rows, mask=mask), mask=mask)

    piece = pieces_of_row(first, BLOCK, VALUE_WIDTH)
    mask = tile_mask(stored, piece, NUM_HEADS, VALUE_DIM, VALUE_WIDTH)
    row = (value, value_token_stride, value_head_stride, value_dim_stride)
    rows = row_pointers(row, token, piece, VALUE_DIM, VALUE_WIDTH, VALUE_STEP)
    pool = (
        value_pool,
        value_pool_block_stride,
        value_pool_slot_stride,
        value_pool_head_stride,
        value_pool_pack_stride,
        value_pool_dim_stride,
    )
    slots = slot_pointers(
        pool, block, offset, piece, VALUE_DIM, VALUE_PACK, VALUE_WIDTH, VALUE_POOL_STEP
    )
    tl.store(slots, tl.load(rows, mask=mask), mask=mask)


scatter_kv_kernel = Kernel(
    _scatter_kv,
    slots_of_tokens,
    pieces_of_row,
    tile_mask,
    row_pointers,
    slot_pointers,
)


def plan_scatter(
    key: torch.Tensor,
    value: torch.Tensor,
    key_pool: torch.Tensor,
    value_pool: torch.Tensor,
    slot_mapping: torch.Tensor,
    *,
    tuned: bool = False,
) -> Plan:
    """`scatter_kv` for a step: `run(key, value, key_pool, value_pool)` then stores a layer's rows.

    Args:
        key: As in `scatter_kv`, of any layer, like the four that follow.
        value: As in `scatter_kv`.
        key_pool: As in `scatter_kv`.
        value_pool: As in `scatter_kv`.
        slot_mapping: As in `scatter_kv`; the step's, for all layers.
        tuned: Whether the tile is chosen by measurement, on a GPU.

    Raises:
        ValueError: Shapes or dtypes don't go together.
    """
    return plan(
        scatter_kv_kernel, (key, value), (key_pool, value_pool), (), slot_mapping, tuned=tuned
    )


def scatter_kv(
    key: torch.Tensor,
    value: torch.Tensor,
    key_pool: torch.Tensor,
    value_pool: torch.Tensor,
    slot_mapping: torch.Tensor,
) -> None:
    """Store row i of key and value at flat slot slot_mapping[i] of the pools, in one launch.

    Args:
        key: [rows, num_kv_heads, key_dim], rows >= len(slot_mapping), any strides; or seen as the
            slots of an x-packed pool, [rows, num_kv_heads, key_dim / x, x].
        value: [rows, num_kv_heads, value_dim], with strides of its own.
        key_pool: [num_blocks, block_size, num_kv_heads, key_dim], or x-packed
            [..., key_dim / x, x], any strides; mutated.
        value_pool: As key_pool, of value's dim; mutated.
        slot_mapping: int32 or int64 [tokens], any stride. Negative slots are skipped. A slot that
            is there twice ends with either row, or parts of both.

    Raises:
        ValueError: Shapes or dtypes don't go together.
    """
    operands = (key, value, key_pool, value_pool)
    plan_scatter(*operands, slot_mapping).run(*operands)
