"""Write K and V rows into their slots, one launch for both."""

import torch
import triton.language as tl

from kvbench.kernels.jit import Kernel
from kvbench.kernels.rows import check_operands, row_block, row_warps


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
    key_pool_dim_stride,
    value_pool_block_stride,
    value_pool_slot_stride,
    value_pool_head_stride,
    value_pool_dim_stride,
    slot_mapping_stride,
    block_size,
    NUM_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK: tl.constexpr,
):
    # One program moves BLOCK elements of one token's K and V. Every factor of a stride is 64-bit: a
    # pool on a large GPU has more than 2**31 elements, and any dimension may be the outermost.
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slot_mapping + token * slot_mapping_stride).to(tl.int64)
    if slot >= 0:  # a negative slot is padding, written nowhere
        block = slot // block_size
        offset = slot % block_size
        element = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        head = (element // HEAD_DIM).to(tl.int64)
        dim = (element % HEAD_DIM).to(tl.int64)
        mask = element < NUM_HEADS * HEAD_DIM

        key_row = key + token * key_token_stride
        k = tl.load(key_row + head * key_head_stride + dim * key_dim_stride, mask=mask)
        key_slot = key_pool + block * key_pool_block_stride + offset * key_pool_slot_stride
        tl.store(key_slot + head * key_pool_head_stride + dim * key_pool_dim_stride, k, mask=mask)

        value_row = value + token * value_token_stride
        v = tl.load(value_row + head * value_head_stride + dim * value_dim_stride, mask=mask)
        value_slot = value_pool + block * value_pool_block_stride + offset * value_pool_slot_stride
        tl.store(
            value_slot + head * value_pool_head_stride + dim * value_pool_dim_stride, v, mask=mask
        )


scatter_kv_kernel = Kernel(_scatter_kv)


def scatter_kv(
    key: torch.Tensor,
    value: torch.Tensor,
    key_pool: torch.Tensor,
    value_pool: torch.Tensor,
    slot_mapping: torch.Tensor,
) -> None:
    """Store row i of key and value at flat slot slot_mapping[i] of the pools, in one launch.

    Args:
        key: [rows, num_kv_heads, head_dim], rows >= len(slot_mapping), any strides.
        value: As key, with strides of its own.
        key_pool: [num_blocks, block_size, num_kv_heads, head_dim], any strides; mutated.
        value_pool: As key_pool; mutated.
        slot_mapping: int32 or int64 [tokens], any stride. Negative slots are skipped.

    Raises:
        ValueError: Shapes or dtypes don't go together.
    """
    check_operands(key, value, key_pool, value_pool, slot_mapping)
    tokens = len(slot_mapping)
    if tokens == 0:
        return
    _, num_heads, head_dim = key.shape
    block, chunks = row_block(num_heads * head_dim)
    scatter_kv_kernel.on(key.device)[(tokens, chunks)](
        key,
        value,
        key_pool,
        value_pool,
        slot_mapping,
        *key.stride(),
        *value.stride(),
        *key_pool.stride(),
        *value_pool.stride(),
        slot_mapping.stride(0),
        key_pool.shape[1],
        NUM_HEADS=num_heads,
        HEAD_DIM=head_dim,
        BLOCK=block,
        num_warps=row_warps(block, key.element_size()),
    )
