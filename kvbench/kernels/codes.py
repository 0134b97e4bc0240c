"""Codes of quantised pools as bit arithmetic, as Triton functions: what the kernels share.

A pool of fp8 is handed to kernels as bytes. The casts of a GPU would do (from compute capability
8.9 on), but neither an older GPU nor Triton's interpreter has them right: these round the same on
all, and an fp8 pool works on any GPU.

CODE names the format: the bits of its mantissa, 3 of e4m3fn and 2 of e5m2, or 0 for int8.
"""

import torch
import triton.language as tl

MANTISSA_BITS = {torch.float8_e4m3fn: 3, torch.float8_e5m2: 2, torch.int8: 0}
"""CODE of each format."""


def encode(scaled, LARGEST: tl.constexpr, CODE: tl.constexpr):
    """The codes of float32 numbers: to the nearest, ties to even, saturated, NaN a NaN."""
    if CODE == 0:
        limited = tl.minimum(tl.maximum(scaled, -128.0), 127.0)
        # So large a number has no fraction: adding it rounds. Taking it away is exact.
        codes = ((limited + 12582912.0) - 12582912.0).to(tl.int8)
    else:
        bias: tl.constexpr = 7 if CODE == 3 else 15
        size = tl.minimum(tl.abs(scaled), LARGEST)
        bits = size.to(tl.int32, bitcast=True)
        # Normal numbers: round half to even at the last bit kept, by adding just under half.
        last = (bits >> (23 - CODE)) & 1
        normal = ((bits + ((1 << (22 - CODE)) - 1) + last) >> (23 - CODE)) - ((127 - bias) << CODE)
        # Below them the spacing is fixed: a number whose last bit is worth that rounds to it.
        unit: tl.constexpr = 2.0 ** (24 - bias - CODE)
        unit_bits: tl.constexpr = (127 + 24 - bias - CODE) << 23
        below = (size + unit).to(tl.int32, bitcast=True) - unit_bits
        magnitude = tl.where(size < 2.0 ** (1 - bias), below, normal)
        magnitude = tl.where(scaled != scaled, 0x7F, magnitude)
        sign = (scaled.to(tl.int32, bitcast=True) >> 24) & 0x80
        codes = (sign | magnitude).to(tl.uint8)
    return codes


def decode(codes, CODE: tl.constexpr):
    """The float32 numbers that codes stand for."""
    if CODE == 0:
        numbers = codes.to(tl.float32)
    elif CODE == 2:
        # e5m2 is the upper half of fp16.
        numbers = (codes.to(tl.int16) << 8).to(tl.float16, bitcast=True).to(tl.float32)
    else:
        # e4m3 has one exponent bit less than fp16: there its bits stand for 2**-8 times as much.
        wide = codes.to(tl.int16)
        half = ((wide & 0x80) << 8) | ((wide & 0x7F) << 7)
        numbers = half.to(tl.float16, bitcast=True).to(tl.float32) * 256.0
        numbers = tl.where((wide & 0x7F) == 0x7F, float("nan"), numbers)
    return numbers


def round_to_bf16(numbers):
    """Float32 numbers rounded to those of bf16, ties to even.

    For Triton's interpreter, whose cast cuts the lower half off; a GPU's rounds by itself.
    """
    bits = numbers.to(tl.int32, bitcast=True)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) & -0x10000
    return tl.where(numbers != numbers, numbers, rounded.to(tl.float32, bitcast=True))
