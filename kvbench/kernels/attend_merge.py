"""Merge what programs found over the parts of a context that was split between them."""

import triton.language as tl

from kvbench.kernels.attend_parts import store_rows
from kvbench.kernels.codes import round_to_bf16
from kvbench.kernels.jit import Kernel


def _merge_attend(
    output,
    partial,
    extent,
    row_tokens,
    splits,
    output_token_stride,
    output_head_stride,
    output_dim_stride,
    NUM_HEADS: tl.constexpr,
    OUT_DIM: tl.constexpr,
    ROUND_BF16: tl.constexpr,
    SPLITS: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    # One program merges BLOCK elements of ROWS rows: a row is a head of a query token.
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    element = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    split = tl.arange(0, SPLITS)
    real = row < row_tokens
    here = real[:, None] & (split < splits)[None, :]
    part = row[:, None] * splits + split[None, :]
    most = tl.load(extent + part * 2, mask=here, other=float("-inf"))
    total = tl.load(extent + part * 2 + 1, mask=here, other=0.0)
    # Parts that saw nothing weigh nothing, and their sums were never stored.
    highest = tl.reduce(most, 1, tl.standard._elementwise_max)  # noqa: SLF001 - see jit
    highest = tl.where(highest == float("-inf"), 0.0, highest)
    weight = tl.exp2(most - highest[:, None])
    there = (total > 0)[:, :, None] & (element < OUT_DIM)[None, None, :]
    at = partial + (part * OUT_DIM)[:, :, None] + element[None, None, :]
    summed = tl.load(at, mask=there, other=0.0) * weight[:, :, None]
    summed = tl.reduce(summed, 1, tl.standard._sum_combine)  # noqa: SLF001
    total = tl.reduce(total * weight, 1, tl.standard._sum_combine)  # noqa: SLF001
    at = (output, output_token_stride, output_head_stride, output_dim_stride)
    here = real[:, None] & (element < OUT_DIM)[None, :]
    store_rows(at, row // NUM_HEADS, row % NUM_HEADS, element, total, summed, here, ROUND_BF16)


merge_attend_kernel = Kernel(_merge_attend, store_rows, round_to_bf16)
