"""Read K and V rows from the slots of a quantised pool, one launch for both."""

import torch
import triton.language as tl

from kvbench.kernels.codes import MANTISSA_BITS, decode, round_to_bf16
from kvbench.kernels.jit import Kernel
from kvbench.kernels.offsets import row_offsets, slot_offsets
from kvbench.kernels.rows import (
    Slots,
    as_bytes,
    check_operands,
    check_scales,
    joined,
    row_block,
    row_warps,
    scale_strides,
)


def load_codes(
    slot,
    slot_head_stride,
    slot_pack_stride,
    slot_dim_stride,
    row,
    row_head_stride,
    row_dim_stride,
    scale,
    scale_head_stride,
    NUM_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    PACK: tl.constexpr,
    CODE: tl.constexpr,
    ROUND_BF16: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Store the numbers of this program's part of a slot in a row."""
    element = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = element < NUM_HEADS * DIM
    at = slot_offsets(element, slot_head_stride, slot_pack_stride, slot_dim_stride, DIM, PACK)
    numbers = decode(tl.load(slot + at, mask=mask, other=0), CODE)
    numbers *= tl.load(
        scale + (element // DIM).to(tl.int64) * scale_head_stride, mask=mask, other=1.0
    )
    at = row_offsets(element, row_head_stride, row_dim_stride, DIM)
    if ROUND_BF16:
        numbers = round_to_bf16(numbers)
    tl.store(row + at, numbers.to(row.dtype.element_ty), mask=mask)


def _gather_quantised_kv(
    key_pool,
    value_pool,
    key_scale,
    value_scale,
    slot_mapping,
    key,
    value,
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
    key_token_stride,
    key_head_stride,
    key_dim_stride,
    value_token_stride,
    value_head_stride,
    value_dim_stride,
    key_scale_block_stride,
    key_scale_slot_stride,
    key_scale_head_stride,
    value_scale_block_stride,
    value_scale_slot_stride,
    value_scale_head_stride,
    slot_mapping_stride,
    block_size,
    NUM_HEADS: tl.constexpr,
    KEY_DIM: tl.constexpr,
    KEY_PACK: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    VALUE_PACK: tl.constexpr,
    CODE: tl.constexpr,
    ROUND_BF16: tl.constexpr,
    BLOCK: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slot_mapping + token * slot_mapping_stride).to(tl.int64)
    if slot >= 0:  # a negative slot is padding: its output row is left alone
        block = slot // block_size
        offset = slot % block_size
        load_codes(
            key_pool + block * key_pool_block_stride + offset * key_pool_slot_stride,
            key_pool_head_stride,
            key_pool_pack_stride,
            key_pool_dim_stride,
            key + token * key_token_stride,
            key_head_stride,
            key_dim_stride,
            key_scale + block * key_scale_block_stride + offset * key_scale_slot_stride,
            key_scale_head_stride,
            NUM_HEADS,
            KEY_DIM,
            KEY_PACK,
            CODE,
            ROUND_BF16,
            BLOCK,
        )
        load_codes(
            value_pool + block * value_pool_block_stride + offset * value_pool_slot_stride,
            value_pool_head_stride,
            value_pool_pack_stride,
            value_pool_dim_stride,
            value + token * value_token_stride,
            value_head_stride,
            value_dim_stride,
            value_scale + block * value_scale_block_stride + offset * value_scale_slot_stride,
            value_scale_head_stride,
            NUM_HEADS,
            VALUE_DIM,
            VALUE_PACK,
            CODE,
            ROUND_BF16,
            BLOCK,
        )


gather_quantised_kv_kernel = Kernel(
    _gather_quantised_kv, row_offsets, slot_offsets, decode, round_to_bf16, load_codes
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
    key, value = joined(key), joined(value)
    check_operands(key, value, key_pool, value_pool, slot_mapping, quantised=True)
    scales = {"key_scale": key_scale, "value_scale": value_scale}
    check_scales(key_pool, scales, per_token=per_token)
    tokens = len(slot_mapping)
    if tokens == 0:
        return
    heads = key.shape[1]
    key_slots, value_slots = Slots.of(key_pool), Slots.of(value_pool)
    block, chunks = row_block(heads * max(key_slots.dim, value_slots.dim))
    gather_quantised_kv_kernel.on(key.device)[(tokens, chunks)](
        as_bytes(key_pool),
        as_bytes(value_pool),
        key_scale,
        value_scale,
        slot_mapping,
        key,
        value,
        *key_slots.strides,
        *value_slots.strides,
        *key.stride(),
        *value.stride(),
        *scale_strides(key_scale, per_token=per_token),
        *scale_strides(value_scale, per_token=per_token),
        slot_mapping.stride(0),
        key_pool.shape[1],
        NUM_HEADS=heads,
        KEY_DIM=key_slots.dim,
        KEY_PACK=key_slots.pack,
        VALUE_DIM=value_slots.dim,
        VALUE_PACK=value_slots.pack,
        CODE=MANTISSA_BITS[key_pool.dtype],
        ROUND_BF16=key.dtype is torch.bfloat16 and key.device.type == "cpu",
        BLOCK=block,
        num_warps=row_warps(block, key.element_size()),
    )
