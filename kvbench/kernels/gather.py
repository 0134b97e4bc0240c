"""Read K and V rows from their slots, one launch for both."""

import torch
import triton.language as tl

from kvbench.kernels.jit import Kernel
from kvbench.kernels.offsets import row_offsets, slot_offsets
from kvbench.kernels.rows import Slots, check_operands, joined, row_block, row_warps


def _gather_kv(
    key_pool,
    value_pool,
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
    if slot >= 0:  # a negative slot is padding: its output row is left alone
        block = slot // block_size
        offset = slot % block_size
        element = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)

        mask = element < NUM_HEADS * KEY_DIM
        key_slot = key_pool + block * key_pool_block_stride + offset * key_pool_slot_stride
        at = slot_offsets(
            element,
            key_pool_head_stride,
            key_pool_pack_stride,
            key_pool_dim_stride,
            KEY_DIM,
            KEY_PACK,
        )
        k = tl.load(key_slot + at, mask=mask)
        key_row = key + token * key_token_stride
        tl.store(
            key_row + row_offsets(element, key_head_stride, key_dim_stride, KEY_DIM), k, mask=mask
        )

        mask = element < NUM_HEADS * VALUE_DIM
        value_slot = value_pool + block * value_pool_block_stride + offset * value_pool_slot_stride
        at = slot_offsets(
            element,
            value_pool_head_stride,
            value_pool_pack_stride,
            value_pool_dim_stride,
            VALUE_DIM,
            VALUE_PACK,
        )
        v = tl.load(value_slot + at, mask=mask)
        value_row = value + token * value_token_stride
        tl.store(
            value_row + row_offsets(element, value_head_stride, value_dim_stride, VALUE_DIM),
            v,
            mask=mask,
        )


gather_kv_kernel = Kernel(_gather_kv, row_offsets, slot_offsets)


def gather_kv(
    key_pool: torch.Tensor,
    value_pool: torch.Tensor,
    slot_mapping: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
) -> None:
    """Store flat slot slot_mapping[i] of the pools in row i of key and value, in one launch.

    Args:
        key_pool: [num_blocks, block_size, num_kv_heads, key_dim], or x-packed
            [..., key_dim / x, x], any strides.
        value_pool: As key_pool, of value's dim.
        slot_mapping: int32 or int64 [tokens], any stride. Rows of negative slots are skipped.
        key: [tokens, num_kv_heads, key_dim], any strides; mutated.
        value: [tokens, num_kv_heads, value_dim], with strides of its own; mutated.

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
    gather_kv_kernel.on(key.device)[(tokens, chunks)](
        key_pool,
        value_pool,
        slot_mapping,
        key,
        value,
        *key_slots.strides,
        *value_slots.strides,
        *key.stride(),
        *value.stride(),
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
