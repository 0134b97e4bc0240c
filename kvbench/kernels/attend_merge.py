"""Merge what programs found over the parts of a context that was split between them."""

import triton.language as tl

from kvbench.kernels.codes import round_to_bf16
from kvbench.kernels.jit import Kernel


def _merge_attend(
    output,
    partial,
    extent,
    splits,
    output_token_stride,
    output_head_stride,
    output_dim_stride,
    NUM_HEADS: tl.constexpr,
    OUT_DIM: tl.constexpr,
    ROUND_BF16: tl.constexpr,
    SPLITS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    # One program merges BLOCK elements of one row: of a query token's head.
    row = tl.program_id(0).to(tl.int64)
    element = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    there = element < OUT_DIM
    split = tl.arange(0, SPLITS)
    part = row * splits + split
    most = tl.load(extent + part * 2, mask=split < splits, other=float("-inf"))
    total = tl.load(extent + part * 2 + 1, mask=split < splits, other=0.0)
    highest = tl.reduce(most, 0, tl.standard._elementwise_max)  # noqa: SLF001 - see jit
    # Parts that saw nothing weigh nothing, and their sums were never stored.
    highest = tl.where(highest == float("-inf"), 0.0, highest)
    weight = tl.exp2(most - highest)
    at = partial + (part * OUT_DIM)[:, None] + element[None, :]
    summed = tl.load(at, mask=(total > 0)[:, None] & there[None, :], other=0.0)
    summed = tl.reduce(summed * weight[:, None], 0, tl.standard._sum_combine)  # noqa: SLF001
    total = tl.reduce(total * weight, 0, tl.standard._sum_combine)  # noqa: SLF001
    numbers = summed / tl.where(total > 0, total, 1.0)
    if ROUND_BF16:
        numbers = round_to_bf16(numbers)
    at = output + row // NUM_HEADS * output_token_stride + row % NUM_HEADS * output_head_stride
    at += element.to(tl.int64) * output_dim_stride
    tl.store(at, numbers.to(output.dtype.element_ty), mask=there)


merge_attend_kernel = Kernel(_merge_attend, round_to_bf16)
