"""Write K and V rows into the slots of a quantised pool, one launch for both."""

import torch
import triton.language as tl

from kvbench.kernels.codes import encode
from kvbench.kernels.jit import Kernel
from kvbench.kernels.offsets import (
    load_scales,
    pieces_of_row,
    row_pointers,
    slot_pointers,
    slots_of_tokens,
    tile_mask,
    token_scale_pointers,
)
from kvbench.kernels.plan import Plan
from kvbench.kernels.planning import plan


def load_part(
    rows,
    token,
    stored,
    piece,
    NUM_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    STEP: tl.constexpr,
):
    """Pieces of tokens' rows as float32, 0 where there is nothing to move."""
    at = row_pointers(rows, token, piece, DIM, WIDTH, STEP)
    mask = tile_mask(stored, piece, NUM_HEADS, DIM, WIDTH)
    return tl.load(at, mask=mask, other=0.0).to(tl.float32)


def store_part(
    x,
    scale,
    pool,
    block,
    offset,
    stored,
    piece,
    NUM_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    PACK: tl.constexpr,
    WIDTH: tl.constexpr,
    STEP: tl.constexpr,
    LARGEST: tl.constexpr,
    CODE: tl.constexpr,
):
    """Store the codes of x / scale in the slots."""
    at = slot_pointers(pool, block, offset, piece, DIM, PACK, WIDTH, STEP)
    mask = tile_mask(stored, piece, NUM_HEADS, DIM, WIDTH)
    scaled = tl.div_rn(x, tl.full(x.shape, 0.0, tl.float32) + scale)
    tl.store(at, encode(scaled, LARGEST, CODE), mask=mask)


def store_codes(
    rows,
    pool,
    scale,
    token,
    stored,
    block,
    offset,
    NUM_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    PACK: tl.constexpr,
    WIDTH: tl.constexpr,
    STEP: tl.constexpr,
    POOL_STEP: tl.constexpr,
    LARGEST: tl.constexpr,
    CODE: tl.constexpr,
    SCALE: tl.constexpr,
    TOKENS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Store the codes of this program's part of rows; of whole rows, and their scales, per token.

    `rows`, `pool` and `scale` are tensors and their strides.
    """
    if SCALE == "per_token":
        # A row that is one BLOCK is read once: the compiler sees that both loops load the same.
        most = tl.full((TOKENS, BLOCK // WIDTH, WIDTH), 0.0, tl.float32)
        for first in range(0, NUM_HEADS * DIM, BLOCK):
            piece = pieces_of_row(first, BLOCK, WIDTH)
            x = load_part(rows, token, stored, piece, NUM_HEADS, DIM, WIDTH, STEP)
            most = tl.maximum(most, tl.abs(x))
        # tl.max has no interpreted form beside its compiled one, this has.
        most = tl.reduce(most, 2, tl.standard._elementwise_max)  # noqa: SLF001
        most = tl.reduce(most, 1, tl.standard._elementwise_max)  # noqa: SLF001
        own = tl.maximum(tl.div_rn(most, tl.full((TOKENS,), LARGEST, tl.float32)), 2.0**-20)
        for first in range(0, NUM_HEADS * DIM, BLOCK):
            piece = pieces_of_row(first, BLOCK, WIDTH)
            x = load_part(rows, token, stored, piece, NUM_HEADS, DIM, WIDTH, STEP)
            store_part(
                x,
                own[:, None, None],
                pool,
                block,
                offset,
                stored,
                piece,
                NUM_HEADS,
                DIM,
                PACK,
                WIDTH,
                POOL_STEP,
                LARGEST,
                CODE,
            )
        tl.store(token_scale_pointers(scale, block, offset), own, mask=stored)
    else:
        piece = pieces_of_row(tl.program_id(1) * BLOCK, BLOCK, WIDTH)
        given = load_scales(scale, block, offset, stored, piece, NUM_HEADS, DIM, WIDTH, SCALE)
        x = load_part(rows, token, stored, piece, NUM_HEADS, DIM, WIDTH, STEP)
        store_part(
            x,
            given,
            pool,
            block,
            offset,
            stored,
            piece,
            NUM_HEADS,
            DIM,
            PACK,
            WIDTH,
            POOL_STEP,
            LARGEST,
            CODE,
        )


def _scatter_quantised_kv(
    key,
    value,
    key_pool,
    value_pool,
    key_scale,
    value_scale,
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
    key_scale_block_stride,
    key_scale_slot_stride,
    key_scale_head_stride,
    value_scale_block_stride,
    value_scale_slot_stride,
    value_scale_head_stride,
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
    LARGEST: tl.constexpr,
    CODE: tl.constexpr,
    SCALE: tl.constexpr,
    TOKENS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    token, stored, block, offset = slots_of_tokens(
        slot_mapping, slot_mapping_stride, tokens, block_size, TOKENS, NARROW
    )
    store_codes(
        (key, key_token_stride, key_head_stride, key_dim_stride),
        (
            key_pool,
            key_pool_block_stride,
            key_pool_slot_stride,
            key_pool_head_stride,
            key_pool_pack_stride,
            key_pool_dim_stride,
        ),
        (key_scale, key_scale_block_stride, key_scale_slot_stride, key_scale_head_stride),
        token,
        stored,
        block,
        offset,
        NUM_HEADS,
        KEY_DIM,
        KEY_PACK,
        KEY_WIDTH,
        KEY_STEP,
        KEY_POOL_STEP,
        LARGEST,
        CODE,
        SCALE,
        TOKENS,
        BLOCK,
    )
    store_codes(
        (value, value_token_stride, value_head_stride, value_dim_stride),
        (
            value_pool,
            value_pool_block_stride,
            value_pool_slot_stride,
            value_pool_head_stride,
            value_pool_pack_stride,
            value_pool_dim_stride,
        ),
        (value_scale, value_scale_block_stride, value_scale_slot_stride, value_scale_head_stride),
        token,
        stored,
        block,
        offset,
        NUM_HEADS,
        VALUE_DIM,
        VALUE_PACK,
        VALUE_WIDTH,
        VALUE_STEP,
        VALUE_POOL_STEP,
        LARGEST,
        CODE,
        SCALE,
        TOKENS,
        BLOCK,
    )


scatter_quantised_kv_kernel = Kernel(
    _scatter_quantised_kv,
    slots_of_tokens,
    pieces_of_row,
    tile_mask,
    row_pointers,
    slot_pointers,
    token_scale_pointers,
    load_scales,
    encode,
    load_part,
    store_part,
    store_codes,
)


def plan_scatter_quantised(
    key: torch.Tensor,
    value: torch.Tensor,
    key_pool: torch.Tensor,
    value_pool: torch.Tensor,
    key_scale: torch.Tensor,
    value_scale: torch.Tensor,
    slot_mapping: torch.Tensor,
    *,
    per_token: bool,
    tuned: bool = False,
) -> Plan:
    """`scatter_quantised_kv` for a step, as `plan_scatter`; scales follow the pools in `run`.

    Raises:
        ValueError: Shapes or dtypes don't go together.
    """
    return plan(
        scatter_quantised_kv_kernel,
        (key, value),
        (key_pool, value_pool),
        (key_scale, value_scale),
        slot_mapping,
        per_token=per_token,
        whole_row=per_token,
        tuned=tuned,
    )


def scatter_quantised_kv(
    key: torch.Tensor,
    value: torch.Tensor,
    key_pool: torch.Tensor,
    value_pool: torch.Tensor,
    key_scale: torch.Tensor,
    value_scale: torch.Tensor,
    slot_mapping: torch.Tensor,
    *,
    per_token: bool,
) -> None:
    """Store the codes of row i of key and value at slot slot_mapping[i], in one launch.

    Args:
        key: As in `scatter_kv`.
        value: As in `scatter_kv`.
        key_pool: As in `scatter_kv`, of float8_e4m3fn, float8_e5m2 or int8; mutated.
        value_pool: As key_pool, of value's dim; mutated.
        key_scale: float32, any strides: [1, 1] or [1, num_kv_heads], what rows are divided by; or,
            per_token, [num_blocks, block_size], where each token's scale is stored.
        value_scale: As key_scale.
        slot_mapping: As in `scatter_kv`.
        per_token: Whether each token's scale is computed from its row, as in vLLM's
            per-token-head quantisation.

    Raises:
        ValueError: Shapes or dtypes don't go together.
    """
    operands = (key, value, key_pool, value_pool, key_scale, value_scale)
    plan_scatter_quantised(*operands, slot_mapping, per_token=per_token).run(*operands)
