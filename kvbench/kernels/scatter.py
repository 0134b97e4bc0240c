"""Write K and V rows into their slots, one launch for both."""

import torch
import triton.language as tl

from kvbench.kernels.jit import Kernel
from kvbench.kernels.offsets import row_offsets, slot_offsets
from kvbench.kernels.rows import Slots, check_operands, joined, row_block, row_warps


def _scatter_kv(
    key,
    value,
    key_pool,
    value_pool,
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
    slot_mapping_stride,
    block_size,
    NUM_HEADS: tl.constexpr,
    KEY_DIM: tl.constexpr,
    KEY_PACK: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    VALUE_PACK: tl.constexpr,
    BLOCK: tl.constexpr,
):
    # One program moves BLOCK elements of one token's K and V.
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slot_mapping + token * slot_mapping_stride).to(tl.int64)
    if slot >= 0:  # a negative slot is padding, written nowhere
        block = slot // block_size
        offset = slot % block_size
        element = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)

        mask = element < NUM_HEADS * KEY_DIM
        key_row = key + token * key_token_stride
        k = tl.load(
            key_row + row_offsets(element, key_head_stride, key_dim_stride, KEY_DIM), mask=mask
        )
        key_slot = key_pool + block * key_pool_block_stride + offset * key_pool_slot_stride
        at = slot_offsets(
            element,
            key_pool_head_stride,
            key_pool_pack_stride,
            key_pool_dim_stride,
            KEY_DIM,
            KEY_PACK,
        )
        tl.store(key_slot + at, k, mask=mask)

        mask = element < NUM_HEADS * VALUE_DIM
        value_row = value + token * value_token_stride
        v = tl.load(
            value_row + row_offsets(element, value_head_stride, value_dim_stride, VALUE_DIM),
            mask=mask,
        )
        value_slot = value_pool + block * value_pool_block_stride + offset * value_pool_slot_stride
        at = slot_offsets(
            element,
            value_pool_head_stride,
            value_pool_pack_stride,
            value_pool_dim_stride,
            VALUE_DIM,
            VALUE_PACK,
        )
        tl.store(value_slot + at, v, mask=mask)


scatter_kv_kernel = Kernel(_scatter_kv, row_offsets, slot_offsets)


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
    key, value = joined(key), joined(value)
    check_operands(key, value, key_pool, value_pool, slot_mapping)
    tokens = len(slot_mapping)
    if tokens == 0:
        return
    heads = key.shape[1]
    key_slots, value_slots = Slots.of(key_pool), Slots.of(value_pool)
    block, chunks = row_block(heads * max(key_slots.dim, value_slots.dim))
    scatter_kv_kernel.on(key.device)[(tokens, chunks)](
        key,
        value,
        key_pool,
        value_pool,
        slot_mapping,
        *key.stride(),
        *value.stride(),
        *key_slots.strides,
        *value_slots.strides,
        slot_mapping.stride(0),
        key_pool.shape[1],
        NUM_HEADS=heads,
        KEY_DIM=key_slots.dim,
        KEY_PACK=key_slots.pack,
        VALUE_DIM=value_slots.dim,
        VALUE_PACK=value_slots.pack,
        BLOCK=block,
        num_warps=row_warps(block, key.element_size()),
    )
