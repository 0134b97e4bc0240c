"""Write K and V rows into the slots of a quantised pool, one launch for both."""

import torch
import triton.language as tl

from kvbench.kernels.codes import MANTISSA_BITS, encode
from kvbench.kernels.jit import Kernel
from kvbench.kernels.offsets import row_offsets, slot_offsets
from kvbench.kernels.rows import (
    LARGEST,
    Slots,
    as_bytes,
    check_operands,
    check_scales,
    joined,
    row_block,
    row_warps,
    scale_strides,
)


def largest_of_row(
    row,
    head_stride,
    dim_stride,
    NUM_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The largest magnitude of a token's row."""
    most = tl.full((BLOCK,), 0.0, tl.float32)
    for first in range(0, NUM_HEADS * DIM, BLOCK):
        element = first + tl.arange(0, BLOCK)
        x = tl.load(
            row + row_offsets(element, head_stride, dim_stride, DIM),
            mask=element < NUM_HEADS * DIM,
            other=0.0,
        )
        most = tl.maximum(most, tl.abs(x.to(tl.float32)))
    return tl.reduce(most, 0, tl.standard._elementwise_max)  # noqa: SLF001 - tl.max is compiled alone


def store_codes(
    row,
    row_head_stride,
    row_dim_stride,
    slot,
    slot_head_stride,
    slot_pack_stride,
    slot_dim_stride,
    scale,
    scale_head_stride,
    NUM_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    PACK: tl.constexpr,
    LARGEST: tl.constexpr,
    CODE: tl.constexpr,
    PER_TOKEN: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Store the codes of this program's part of a row; of all of it, and its scale, PER_TOKEN."""
    if PER_TOKEN:
        most = largest_of_row(row, row_head_stride, row_dim_stride, NUM_HEADS, DIM, BLOCK)
        own_scale = tl.maximum(tl.div_rn(most, LARGEST), 2.0**-20)
        tl.store(scale, own_scale)
        first = 0
        end = NUM_HEADS * DIM
    else:
        own_scale = 1.0
        first = tl.program_id(1) * BLOCK
        end = min(first + BLOCK, NUM_HEADS * DIM)
    for start in range(first, end, BLOCK):
        element = start + tl.arange(0, BLOCK)
        mask = element < NUM_HEADS * DIM
        at = row_offsets(element, row_head_stride, row_dim_stride, DIM)
        x = tl.load(row + at, mask=mask, other=0.0).to(tl.float32)
        if PER_TOKEN:
            scaled = tl.div_rn(x, tl.full((BLOCK,), 0.0, tl.float32) + own_scale)
        else:
            head = (element // DIM).to(tl.int64)
            scaled = tl.div_rn(x, tl.load(scale + head * scale_head_stride, mask=mask, other=1.0))
        at = slot_offsets(element, slot_head_stride, slot_pack_stride, slot_dim_stride, DIM, PACK)
        tl.store(slot + at, encode(scaled, LARGEST, CODE), mask=mask)


def _scatter_quantised_kv(
    key,
    value,
    key_pool,
    value_pool,
    key_scale,
    value_scale,
    slot_mapping,
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
    slot_mapping_stride,
    block_size,
    NUM_HEADS: tl.constexpr,
    KEY_DIM: tl.constexpr,
    KEY_PACK: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    VALUE_PACK: tl.constexpr,
    LARGEST: tl.constexpr,
    CODE: tl.constexpr,
    PER_TOKEN: tl.constexpr,
    BLOCK: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slot_mapping + token * slot_mapping_stride).to(tl.int64)
    if slot >= 0:  # a negative slot is padding, written nowhere
        block = slot // block_size
        offset = slot % block_size
        store_codes(
            key + token * key_token_stride,
            key_head_stride,
            key_dim_stride,
            key_pool + block * key_pool_block_stride + offset * key_pool_slot_stride,
            key_pool_head_stride,
            key_pool_pack_stride,
            key_pool_dim_stride,
            key_scale + block * key_scale_block_stride + offset * key_scale_slot_stride,
            key_scale_head_stride,
            NUM_HEADS,
            KEY_DIM,
            KEY_PACK,
            LARGEST,
            CODE,
            PER_TOKEN,
            BLOCK,
        )
        store_codes(
            value + token * value_token_stride,
            value_head_stride,
            value_dim_stride,
            value_pool + block * value_pool_block_stride + offset * value_pool_slot_stride,
            value_pool_head_stride,
            value_pool_pack_stride,
            value_pool_dim_stride,
            value_scale + block * value_scale_block_stride + offset * value_scale_slot_stride,
            value_scale_head_stride,
            NUM_HEADS,
            VALUE_DIM,
            VALUE_PACK,
            LARGEST,
            CODE,
            PER_TOKEN,
            BLOCK,
        )


scatter_quantised_kv_kernel = Kernel(
    _scatter_quantised_kv, row_offsets, slot_offsets, encode, largest_of_row, store_codes
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
    scatter_quantised_kv_kernel.on(key.device)[(tokens, 1 if per_token else chunks)](
        key,
        value,
        as_bytes(key_pool),
        as_bytes(value_pool),
        key_scale,
        value_scale,
        slot_mapping,
        *key.stride(),
        *value.stride(),
        *key_slots.strides,
        *value_slots.strides,
        *scale_strides(key_scale, per_token=per_token),
        *scale_strides(value_scale, per_token=per_token),
        slot_mapping.stride(0),
        key_pool.shape[1],
        NUM_HEADS=heads,
        KEY_DIM=key_slots.dim,
        KEY_PACK=key_slots.pack,
        VALUE_DIM=value_slots.dim,
        VALUE_PACK=value_slots.pack,
        LARGEST=LARGEST[key_pool.dtype],
        CODE=MANTISSA_BITS[key_pool.dtype],
        PER_TOKEN=per_token,
        BLOCK=block,
        num_warps=row_warps(block, key.element_size()),
    )
