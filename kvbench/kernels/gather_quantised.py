"""Read K and V rows from the slots of a quantised pool, one launch for both."""

import torch
import triton.language as tl

from kvbench.kernels.codes import decode, round_to_bf16
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


def load_codes(
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
    CODE: tl.constexpr,
    SCALE: tl.constexpr,
    ROUND_BF16: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Store the numbers of this program's part of slots in rows.

    `rows`, `pool` and `scale` are tensors and their strides.
    """
    piece = pieces_of_row(tl.program_id(1) * BLOCK, BLOCK, WIDTH)
    mask = tile_mask(stored, piece, NUM_HEADS, DIM, WIDTH)
    at = slot_pointers(pool, block, offset, piece, DIM, PACK, WIDTH, POOL_STEP)
    numbers = decode(tl.load(at, mask=mask, other=0), CODE)
    numbers *= load_scales(scale, block, offset, stored, piece, NUM_HEADS, DIM, WIDTH, SCALE)
    if ROUND_BF16:
        numbers = round_to_bf16(numbers)
    at = row_pointers(rows, token, piece, DIM, WIDTH, STEP)
    tl.store(at, numbers.to(rows[0].dtype.element_ty), mask=mask)


def _gather_quantised_kv(
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
    CODE: tl.constexpr,
    SCALE: tl.constexpr,
    ROUND_BF16: tl.constexpr,
    TOKENS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    token, stored, block, offset = slots_of_tokens(
        slot_mapping, slot_mapping_stride, tokens, block_size, TOKENS, NARROW
    )
    load_codes(
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
        CODE,
        SCALE,
        ROUND_BF16,
        BLOCK,
    )
    load_codes(
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
        CODE,
        SCALE,
        ROUND_BF16,
        BLOCK,
    )


gather_quantised_kv_kernel = Kernel(
    _gather_quantised_kv,
    slots_of_tokens,
    pieces_of_row,
    tile_mask,
    row_pointers,
    slot_pointers,
    token_scale_pointers,
    load_scales,
    decode,
    round_to_bf16,
    load_codes,
)


def plan_gather_quantised(
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
    """`gather_quantised_kv` for a step, as `plan_gather`; scales follow the pools in `run`.

    Raises:
        ValueError: Shapes or dtypes don't go together.
    """
    return plan(
        gather_quantised_kv_kernel,
        (key, value),
        (key_pool, value_pool),
        (key_scale, value_scale),
        slot_mapping,
        per_token=per_token,
        tuned=tuned,
    )


def gather_quantised_kv(
    key_pool: torch.Tensor,
    value_pool: torch.Tensor,
    key_scale: torch.Tensor,
    value_scale: torch.Tensor,
    slot_mapping: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    per_token: bool,
) -> None:
    """Store the numbers of slot slot_mapping[i] of the pools in row i, in one launch.

    Args:
        key_pool: As in `gather_kv`, of float8_e4m3fn, float8_e5m2 or int8.
        value_pool: As key_pool, of value's dim.
        key_scale: float32, any strides: [1, 1] or [1, num_kv_heads]; or, per_token, [num_blocks,
            block_size].
        value_scale: As key_scale.
        slot_mapping: As in `gather_kv`.
        key: As in `gather_kv`, of fp32, fp16 or bf16; mutated.
        value: As key, of value's dim; mutated.
        per_token: Whether each slot has a scale of its own.

    Raises:
        ValueError: Shapes or dtypes don't go together.
    """
    operands = (key, value, key_pool, value_pool, key_scale, value_scale)
    plan_gather_quantised(*operands, slot_mapping, per_token=per_token).run(*operands)
