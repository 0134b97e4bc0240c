"""Codes as bit arithmetic, through the interpreter, against ml_dtypes and against exact numbers."""

import math
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

triton = pytest.importorskip("triton")

import triton.language as tl  # noqa: E402 - only where Triton is

from kvbench.kernels.codes import (  # noqa: E402
    MANTISSA_BITS,
    decode,
    encode,
    round_to_bf16,
)
from kvbench.kernels.jit import Kernel  # noqa: E402
from kvbench.kernels.rows import LARGEST  # noqa: E402

CPU = torch.device("cpu")
E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
FP8 = {E4M3: ml_dtypes.float8_e4m3fn, E5M2: ml_dtypes.float8_e5m2}
FORMATS = [*FP8, torch.int8]
BLOCK = 4096

each_format = pytest.mark.parametrize("dtype", FORMATS, ids=str)
each_fp8 = pytest.mark.parametrize("dtype", FP8, ids=str)


# The functions, each in a kernel of its own.


def _encode(numbers, codes, count, LARGEST: tl.constexpr, CODE: tl.constexpr, BLOCK: tl.constexpr):  # noqa: N803
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(numbers + at, mask=at < count)
    tl.store(codes + at, encode(x, LARGEST, CODE), mask=at < count)


def _decode(codes, numbers, count, CODE: tl.constexpr, BLOCK: tl.constexpr):  # noqa: N803
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(codes + at, mask=at < count)
    tl.store(numbers + at, decode(x, CODE), mask=at < count)


def _round(numbers, rounded, count, BLOCK: tl.constexpr):  # noqa: N803
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(numbers + at, mask=at < count)
    tl.store(rounded + at, round_to_bf16(x), mask=at < count)


encode_kernel = Kernel(_encode, encode)
decode_kernel = Kernel(_decode, decode)
round_kernel = Kernel(_round, round_to_bf16)


def launch(kernel, source, target_dtype, device, **constants):
    """What a kernel makes of the elements of a NumPy array, as a NumPy array."""
    source = torch.from_numpy(source).to(device)
    target = torch.zeros(len(source), dtype=target_dtype, device=device)
    grid = (triton.cdiv(len(source), BLOCK),)
    kernel.on(device)[grid](source, target, len(source), **constants, BLOCK=BLOCK)
    return target.cpu().numpy()


def encoded(numbers, dtype, device=CPU):
    """The codes of float32 numbers, as bytes."""
    codes = torch.int8 if dtype is torch.int8 else torch.uint8
    constants = {"LARGEST": LARGEST[dtype], "CODE": MANTISSA_BITS[dtype]}
    return launch(encode_kernel, numbers, codes, device, **constants).view(np.uint8)


def decoded(codes, dtype, device=CPU):
    codes = codes.view(np.int8 if dtype is torch.int8 else np.uint8)
    return launch(decode_kernel, codes, torch.float32, device, CODE=MANTISSA_BITS[dtype])


def rounded(numbers, device=CPU):
    return launch(round_kernel, numbers, torch.float32, device)


# What they should give.


def right_codes(numbers, dtype):
    with np.errstate(all="ignore"):
        if dtype is torch.int8:
            return np.clip(np.rint(numbers), -128, 127).astype(np.int8).view(np.uint8)
        limited = np.clip(numbers, -LARGEST[dtype], LARGEST[dtype])
        return limited.astype(FP8[dtype]).view(np.uint8)


def is_nan(codes, dtype):
    """Which bytes are NaN: all ones in e4m3fn, all ones in the exponent and more in e5m2."""
    return (codes & 0x7F == 0x7F) if dtype is E4M3 else (codes & 0x7F > 0x7C)


def value(code, dtype):
    """The exact number that a byte of fp8 stands for, by the formats' definition; None of none."""
    code = int(code)  # NumPy's bytes would overflow
    bits, bias = MANTISSA_BITS[dtype], 7 if dtype is E4M3 else 15
    exponent, mantissa = (code & 0x7F) >> bits, code & ((1 << bits) - 1)
    if is_nan(code, dtype) or (dtype is E5M2 and exponent == 31):
        return None
    # Without an exponent there is no leading one: the spacing is that of the exponent 1.
    significand = Fraction(mantissa, 1 << bits) + (exponent > 0)
    size = significand * Fraction(2) ** (max(exponent, 1) - bias)
    return -size if code & 0x80 else size


ALL_CODES = np.arange(256, dtype=np.uint8)
ALL_BF16 = (np.arange(1 << 16, dtype=np.uint32) << 16).view(np.float32)
# Around the half of what lies below bf16, and at its ends.
LOWER_HALVES = [0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF]
UPPER_AND_LOWER = np.concatenate([ALL_BF16.view(np.uint32) | low for low in LOWER_HALVES])
AROUND_BF16 = UPPER_AND_LOWER.view(np.float32)
ANY_BITS = np.random.default_rng(0).integers(0, 1 << 32, 1 << 18, dtype=np.uint32)
SCATTERED = ANY_BITS.view(np.float32)
# Where int8's codes and the normal ones of fp8 are: any bits are nearly always outside.
DENSE = np.random.default_rng(1).uniform(-500, 500, 1 << 17).astype(np.float32)


def check_encode(numbers, dtype, device=CPU):
    codes = encoded(numbers, dtype, device)
    known = ~np.isnan(numbers)
    assert np.array_equal(codes[known], right_codes(numbers[known], dtype))
    if dtype is not torch.int8:  # which has no NaN
        assert is_nan(codes[~known], dtype).all()


@each_format
def test_every_bf16_number_is_encoded_as_ml_dtypes_does(dtype):
    assert np.isnan(ALL_BF16).sum() == 2 * 127
    check_encode(ALL_BF16, dtype)


@each_format
@pytest.mark.parametrize("numbers", [AROUND_BF16, SCATTERED, DENSE], ids=["near", "any", "dense"])
def test_float32_numbers_are_encoded_as_ml_dtypes_does(numbers, dtype):
    check_encode(numbers, dtype)


@given(
    numbers=arrays.arrays(np.float32, st.integers(1, 20), elements=st.floats(width=32)),
    dtype=st.sampled_from(FORMATS),
)
def test_what_hypothesis_thinks_of_is_encoded_as_ml_dtypes_does(numbers, dtype):
    check_encode(numbers, dtype)


@each_fp8
@pytest.mark.parametrize("sign", [0x00, 0x80])
def test_a_tie_goes_to_the_even_code_and_a_step_from_it_to_the_nearer(dtype, sign):
    # No reference but arithmetic: subnormals, the first normal number and each power of two are
    # among these, as are their neighbours on either side.
    last = encoded(np.float32([math.inf]), dtype)[0]
    magnitudes = np.arange(last, dtype=np.uint8)
    below, above = magnitudes | sign, (magnitudes + 1) | sign
    ties = [(value(b, dtype) + value(a, dtype)) / 2 for b, a in zip(below, above, strict=True)]
    assert all(Fraction(float(np.float32(float(tie)))) == tie for tie in ties)
    ties = np.float32([float(tie) for tie in ties])
    inwards, outwards = np.nextafter(ties, np.float32(0)), np.nextafter(ties, ties * 2)
    assert np.array_equal(encoded(ties, dtype), np.where(below % 2 == 0, below, above))
    assert np.array_equal(encoded(inwards, dtype), below)
    assert np.array_equal(encoded(outwards, dtype), above)


def test_a_tie_of_int8_goes_to_the_even_integer_and_a_step_from_it_to_the_nearer():
    lower = np.arange(-128, 127)
    ties = (lower + 0.5).astype(np.float32)
    even = np.where(lower % 2 == 0, lower, lower + 1)
    assert np.array_equal(encoded(ties, torch.int8).view(np.int8), even)
    for towards, expected in ((-math.inf, lower), (math.inf, lower + 1)):
        near = np.nextafter(ties, np.float32(towards))
        assert np.array_equal(encoded(near, torch.int8).view(np.int8), expected)


@pytest.mark.parametrize(
    ("dtype", "number", "code"),
    [
        (E4M3, 0.0, 0x00),
        (E4M3, -0.0, 0x80),
        (E4M3, 2.0**-9, 0x01),
        (E4M3, 2.0**-10, 0x00),
        (E4M3, -(2.0**-10), 0x80),
        (E4M3, 1e-45, 0x00),
        (E4M3, 448.0, 0x7E),
        (E4M3, 480.0, 0x7E),  # a format with infinities would round it away
        (E4M3, -math.inf, 0xFE),
        (E5M2, -0.0, 0x80),
        (E5M2, 2.0**-16, 0x01),
        (E5M2, 2.0**-17, 0x00),
        (E5M2, 57344.0, 0x7B),
        (E5M2, 61440.0, 0x7B),  # a cast that doesn't saturate makes it an infinity
        (E5M2, math.inf, 0x7B),
        (E5M2, -math.inf, 0xFB),
        (torch.int8, -0.0, 0x00),
        (torch.int8, 0.5, 0x00),
        (torch.int8, 1.5, 0x02),
        (torch.int8, 127.5, 0x7F),
        (torch.int8, -128.0, 0x80),
        (torch.int8, -math.inf, 0x80),
        (torch.int8, math.inf, 0x7F),
    ],
    ids=str,
)
def test_known_codes(dtype, number, code):
    assert encoded(np.float32([number]), dtype)[0] == code


@each_fp8
def test_a_nan_keeps_its_sign_and_stays_a_nan_whatever_its_payload(dtype):
    words = np.uint32([0x7F800001, 0x7FC00000, 0x7FFFFFFF, 0xFF800001, 0xFFC00000, 0xFFFFFFFF])
    codes = encoded(words.view(np.float32), dtype)
    assert is_nan(codes, dtype).all()
    assert list(codes >> 7) == [0, 0, 0, 1, 1, 1]


@each_format
def test_every_code_that_is_a_number_is_the_code_of_that_number(dtype):
    numbers = decoded(ALL_CODES, dtype)
    finite = np.isfinite(numbers)
    assert np.array_equal(encoded(numbers[finite], dtype), ALL_CODES[finite])


def check_decode(dtype, device=CPU):
    numbers = decoded(ALL_CODES, dtype, device)
    if dtype is torch.int8:
        assert np.array_equal(numbers, ALL_CODES.view(np.int8).astype(np.float32))
        return
    with np.errstate(invalid="ignore"):  # of the NaN
        expected = ALL_CODES.view(FP8[dtype]).astype(np.float32)
    known = ~np.isnan(expected)
    assert np.array_equal(numbers[known].view(np.uint32), expected[known].view(np.uint32))
    assert np.isnan(numbers[~known]).all()


@each_format
def test_every_code_is_decoded_as_ml_dtypes_does(dtype):
    check_decode(dtype)


@each_fp8
def test_every_code_is_decoded_as_its_format_is_defined(dtype):
    numbers = decoded(ALL_CODES, dtype)
    exact = [value(code, dtype) for code in ALL_CODES]
    assert exact.count(None) == {E4M3: 2, E5M2: 8}[dtype]
    for code, number, right in zip(ALL_CODES, numbers, exact, strict=True):
        if right is None:
            assert not np.isfinite(number)
        else:
            assert Fraction(float(number)) == right
            assert np.signbit(number) == code >> 7  # of zeros too


def check_round(numbers, device=CPU):
    results = rounded(numbers, device)
    known = ~np.isnan(numbers)
    expected = torch.from_numpy(numbers[known]).to(torch.bfloat16).float().numpy()
    assert np.array_equal(results[known].view(np.uint32), expected.view(np.uint32))
    assert np.isnan(results[~known]).all()


@pytest.mark.parametrize("numbers", [AROUND_BF16, SCATTERED], ids=["near", "any"])
def test_float32_is_rounded_to_bf16_as_torch_does(numbers):
    check_round(numbers)


@pytest.mark.parametrize(
    ("word", "upper"),
    [
        (0x3F807FFF, 0x3F80),
        (0x3F808000, 0x3F80),  # a tie: this is even
        (0x3F808001, 0x3F81),
        (0x3F818000, 0x3F82),  # a tie: this is odd
        (0xBF818000, 0xBF82),
        (0x00008000, 0x0000),  # a subnormal
        (0x00018000, 0x0002),
        (0x3FFFFFFF, 0x4000),  # into the exponent
        (0x7F7F7FFF, 0x7F7F),
        (0x7F7FFFFF, 0x7F80),  # beyond the largest is infinity
        (0xFF7F8000, 0xFF80),
        (0xFF800000, 0xFF80),
    ],
    ids=hex,
)
def test_known_roundings_to_bf16(word, upper):
    assert rounded(np.uint32([word]).view(np.float32)).view(np.uint32)[0] == upper << 16


# The same on a GPU, whose forms of the functions are others.


@pytest.mark.gpu
@each_format
def test_on_a_gpu_float32_numbers_are_encoded_as_ml_dtypes_does(dtype, gpu):
    for numbers in (AROUND_BF16, SCATTERED, DENSE):
        check_encode(numbers, dtype, gpu)


@pytest.mark.gpu
@each_format
def test_on_a_gpu_every_code_is_decoded_as_ml_dtypes_does(dtype, gpu):
    check_decode(dtype, gpu)


@pytest.mark.gpu
def test_on_a_gpu_float32_is_rounded_to_bf16_as_torch_does(gpu):
    check_round(AROUND_BF16, gpu)
