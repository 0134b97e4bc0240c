"""What a quantised pool may hold: the formats by definition, and what rounding may come to."""

import functools
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from kvbench.cases import DTYPE_BYTES, QUANTISED_BYTES
from kvbench.formats import numbers, right_codes, right_rows, right_scales

FP8 = {"fp8_e4m3": torch.float8_e4m3fn, "fp8_e5m2": torch.float8_e5m2}
FORMATS = {**FP8, "int8": torch.int8}
ROWS = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
MANTISSA_BITS = {"fp8_e4m3": 3, "fp8_e5m2": 2}
LARGEST = {"fp8_e4m3": 448.0, "fp8_e5m2": 57344.0, "int8": 127.0}
ALL_CODES = np.arange(256, dtype=np.uint8).view(np.int8)
NAN, INF = float("nan"), float("inf")


def test_the_formats_and_dtypes_tested_here_are_all():
    assert set(FORMATS) == set(QUANTISED_BYTES)
    assert set(ROWS) == set(DTYPE_BYTES)


def one(value, dtype=np.float32):
    return np.full((1, 1, 1), value, dtype)


def as_codes(*codes):
    """Codes from 0 to 255 as bits [tokens, 1, 1]."""
    return np.array(codes, np.uint8).view(np.int8).reshape(-1, 1, 1)


def accepted(row, scale, dtype):
    """All of the 256 codes that may be stored for a row's element, from 0 to 255."""
    codes = ALL_CODES.reshape(-1, 1, 1)
    rows = np.full(codes.shape, row, np.float32)
    right = right_codes(rows, one(scale), codes, dtype) == codes
    return ALL_CODES[right.ravel()].view(np.uint8).tolist()


def accepted_values(row, scale, dtype):
    """As `accepted`, as numbers: the two zeros are one."""
    codes = np.array(accepted(row, scale, dtype), np.uint8).view(np.int8)
    return sorted(set(numbers(codes, dtype).tolist()))


# The formats.


def by_definition(code, mantissa_bits):
    """The number that an 8-bit float stands for, from its sign, exponent and mantissa."""
    exponent_bits = 7 - mantissa_bits
    bias = 2 ** (exponent_bits - 1) - 1
    sign = -1.0 if code & 0x80 else 1.0
    exponent = code >> mantissa_bits & 2**exponent_bits - 1
    mantissa = code & 2**mantissa_bits - 1
    if mantissa_bits == 3 and code & 0x7F == 0x7F:  # e4m3fn has this NaN and no infinity
        return NAN
    if mantissa_bits == 2 and exponent == 31:
        return sign * INF if mantissa == 0 else NAN
    if exponent == 0:
        return sign * mantissa * 2.0 ** (1 - bias - mantissa_bits)
    return sign * (1 + mantissa / 2**mantissa_bits) * 2.0 ** (exponent - bias)


@pytest.mark.parametrize("dtype", FP8)
def test_all_256_codes_stand_for_what_the_format_s_definition_says(dtype):
    expected = [by_definition(code, MANTISSA_BITS[dtype]) for code in range(256)]
    found = numbers(ALL_CODES, dtype)
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, np.array(expected, np.float32))
    assert np.signbit(found).tolist() == [code >= 128 for code in range(256)]


def test_all_256_codes_of_int8_stand_for_themselves():
    assert numbers(ALL_CODES, "int8").tolist() == [*range(128), *range(-128, 0)]


@pytest.mark.parametrize("dtype", FORMATS)
def test_all_256_codes_stand_for_what_torch_says(dtype):
    codes = torch.from_numpy(ALL_CODES.copy()).view(FORMATS[dtype])
    np.testing.assert_array_equal(numbers(ALL_CODES, dtype), codes.float().numpy())


@pytest.mark.parametrize(
    ("dtype", "code", "value"),
    [
        ("fp8_e4m3", 0x00, 0.0),
        ("fp8_e4m3", 0x01, 2.0**-9),
        ("fp8_e4m3", 0x07, 7 * 2.0**-9),
        ("fp8_e4m3", 0x08, 2.0**-6),
        ("fp8_e4m3", 0x38, 1.0),
        ("fp8_e4m3", 0x7E, 448.0),
        ("fp8_e4m3", 0x7F, NAN),
        ("fp8_e4m3", 0xFE, -448.0),
        ("fp8_e4m3", 0xFF, NAN),
        ("fp8_e5m2", 0x01, 2.0**-16),
        ("fp8_e5m2", 0x04, 2.0**-14),
        ("fp8_e5m2", 0x3C, 1.0),
        ("fp8_e5m2", 0x7B, 57344.0),
        ("fp8_e5m2", 0x7C, INF),
        ("fp8_e5m2", 0x7D, NAN),
        ("fp8_e5m2", 0x7F, NAN),
        ("fp8_e5m2", 0xFC, -INF),
        ("int8", 0x80, -128.0),
        ("int8", 0xFF, -1.0),
    ],
)
def test_a_code_by_hand(dtype, code, value):
    np.testing.assert_array_equal(numbers(as_codes(code), dtype), one(value))


@pytest.mark.parametrize(
    ("dtype", "integer", "bits", "value"),
    [
        ("bf16", np.uint16, 0x3FC0, 1.5),
        ("bf16", np.uint16, 0x8001, -(2.0**-133)),
        ("fp16", np.uint16, 0x3E00, 1.5),
        ("fp16", np.uint16, 0x0001, 2.0**-24),
        ("fp16", np.uint16, 0xFC00, -INF),
        ("fp32", np.uint32, 0x3FC00000, 1.5),
        ("fp32", np.uint32, 0x7FC00001, NAN),
        # A signalling NaN raises the invalid flag when it is converted: no warning, no error.
        ("bf16", np.uint16, 0x7F81, NAN),
        ("fp16", np.uint16, 0x7C01, NAN),
        ("fp32", np.uint32, 0x7F800001, NAN),
    ],
)
def test_a_number_by_hand(dtype, integer, bits, value):
    np.testing.assert_array_equal(numbers(one(bits, integer), dtype), one(value))


# Codes.

TIES = [
    # Between 16 and 18, whose mantissas are 000 and 001; between 18 and 20; between 20 and 22.
    ("fp8_e4m3", 17.0, 16.0),
    ("fp8_e4m3", 19.0, 20.0),
    ("fp8_e4m3", 21.0, 20.0),
    ("fp8_e4m3", -19.0, -20.0),
    # The last binade, 256 to 448 in steps of 32.
    ("fp8_e4m3", 272.0, 256.0),
    ("fp8_e4m3", 432.0, 448.0),
    # Subnormals, in steps of 2**-9, and their border with normal numbers.
    ("fp8_e4m3", 2.0**-10, 0.0),
    ("fp8_e4m3", 3 * 2.0**-10, 2 * 2.0**-9),
    ("fp8_e4m3", 15 * 2.0**-10, 2.0**-6),
    # Between 16 and 20, in steps of 4.
    ("fp8_e5m2", 18.0, 16.0),
    ("fp8_e5m2", 22.0, 24.0),
    ("fp8_e5m2", -22.0, -24.0),
    ("fp8_e5m2", 53248.0, 49152.0),
    ("fp8_e5m2", 2.0**-17, 0.0),
    ("fp8_e5m2", 3 * 2.0**-17, 2.0**-15),
    ("int8", 0.5, 0.0),
    ("int8", 1.5, 2.0),
    ("int8", 2.5, 2.0),
    ("int8", -0.5, 0.0),
    ("int8", -1.5, -2.0),
    ("int8", 126.5, 126.0),
    ("int8", -126.5, -126.0),
    ("int8", -127.5, -128.0),
]


@pytest.mark.parametrize("exponent", [-3, 0, 3])
@pytest.mark.parametrize(("dtype", "quotient", "code"), TIES)
def test_a_tie_has_one_right_code_where_division_is_exact(dtype, quotient, code, exponent):
    scale = 2.0**exponent
    assert accepted_values(quotient * scale, scale, dtype) == [code]


@pytest.mark.parametrize(("dtype", "quotient", "code"), TIES)
def test_a_tie_may_go_either_way_where_division_is_not_exact(dtype, quotient, code):
    # Three times as much, over three: the quotient is exact, but need not come out so.
    values = accepted_values(quotient * 3, 3.0, dtype)
    assert len(values) == 2
    assert code in values
    assert sum(values) == 2 * quotient


@pytest.mark.parametrize(
    ("dtype", "quotient", "code"),
    [
        ("fp8_e4m3", 16.99, 16.0),
        ("fp8_e4m3", 17.01, 18.0),
        ("fp8_e4m3", 18.99, 18.0),
        ("fp8_e4m3", 0.1, 0.1015625),  # 13/128
        ("fp8_e5m2", 18.01, 20.0),
        ("fp8_e5m2", 0.1, 0.09375),  # 3/32
        ("int8", 0.49, 0.0),
        ("int8", 0.51, 1.0),
        ("int8", -99.7, -100.0),
    ],
)
def test_what_is_no_tie_has_one_right_code_however_the_division_is_done(dtype, quotient, code):
    assert accepted_values(quotient, 1.0, dtype) == [code]
    assert accepted_values(quotient * 3, 3.0, dtype) == [code]


@functools.cache
def grid(dtype):
    """The finite numbers of a format with their codes, from the smallest to the largest."""
    values = numbers(ALL_CODES, dtype).tolist()
    # Of the two zeros the one without a sign, whose code is even, as the other's is.
    codes = [c for c in range(256) if values[c] not in (INF, -INF) and values[c] == values[c]]
    codes = [c for c in codes if values[c] or c == 0]
    return sorted((values[code], code) for code in codes)


def around(quotient, dtype):
    """The neighbours in a format of an exact quotient, from below and from above, saturated."""
    values = [value for value, _ in grid(dtype)]
    below = max((v for v in values if v <= quotient), default=values[0])
    above = min((v for v in values if v >= quotient), default=values[-1])
    return below, above


def nearest(quotient, dtype):
    """To the nearest, a tie to the even code, in exact arithmetic."""
    return min(grid(dtype), key=lambda pair: (abs(quotient - Fraction(pair[0])), pair[1] % 2))[0]


@st.composite
def elements(draw, dtype, scale):
    """Elements of a row, in float32: many at, and next to, half-way between two codes."""
    if draw(st.booleans()):
        return draw(st.floats(-(2.0**100), 2.0**100, width=32))
    at = draw(st.integers(0, len(grid(dtype)) - 2))
    middle = (grid(dtype)[at][0] + grid(dtype)[at + 1][0]) / 2
    row = np.float32(middle) * np.float32(scale)
    towards = np.float32(draw(st.sampled_from([-INF, INF])))
    for _ in range(draw(st.integers(0, 3))):
        row = np.nextafter(row, towards)
    return float(row)


powers_of_two = st.integers(-20, 20).map(lambda exponent: 2.0**exponent)
scales = st.floats(2.0**-20, 2.0**20, width=32)
inexact_scales = scales.filter(lambda scale: np.frexp(scale)[0] != 0.5)


@pytest.mark.parametrize("dtype", FORMATS)
@given(data=st.data())
def test_only_the_nearest_code_is_right_where_the_scale_is_a_power_of_two(dtype, data):
    scale = data.draw(powers_of_two)
    row = data.draw(elements(dtype, scale))
    expected = nearest(Fraction(row) / Fraction(scale), dtype)
    assert accepted_values(row, scale, dtype) == [expected]


@pytest.mark.parametrize("dtype", FORMATS)
@given(data=st.data())
def test_a_right_code_is_next_to_the_quotient_and_the_nearest_unless_that_is_close(dtype, data):
    scale = data.draw(inexact_scales)
    row = data.draw(elements(dtype, scale))
    quotient = Fraction(row) / Fraction(scale)
    below, above = around(quotient, dtype)
    values = accepted_values(row, scale, dtype)
    assert nearest(quotient, dtype) in values
    middle = Fraction(below + above) / 2
    if abs(quotient - middle) <= abs(middle) * Fraction(1, 2**24):
        assert values == sorted({below, above})  # less than a unit in the last place away
    elif abs(quotient - middle) > abs(middle) * Fraction(4, 2**23):
        assert values == [nearest(quotient, dtype)]
    else:
        assert set(values) <= {below, above}


def to_codes(quotients, dtype):
    """Torch's own conversion, saturated, as bits."""
    if dtype == "int8":
        return quotients.round().clamp(-128, 127).to(torch.int8).numpy()
    limited = quotients.clamp(-LARGEST[dtype], LARGEST[dtype])
    return limited.to(FORMATS[dtype]).view(torch.int8).numpy()


@pytest.mark.parametrize("dtype", FORMATS)
@given(data=st.data())
def test_division_and_a_product_with_the_reciprocal_are_both_right(dtype, data):
    scale = data.draw(st.lists(scales, min_size=3, max_size=3))
    drawn = [[data.draw(elements(dtype, s)) for _ in range(4)] for s in scale]
    rows = torch.tensor(drawn).T.reshape(4, 3, 1)
    spread = torch.tensor(scale).reshape(1, 3, 1)
    for quotients in (rows / spread, rows * (1 / spread)):
        codes = to_codes(quotients, dtype)
        right = right_codes(rows.numpy(), spread.numpy(), codes, dtype)
        assert right.dtype == np.int8
        assert right.tolist() == codes.tolist()


@pytest.mark.parametrize(
    ("dtype", "row", "scale", "right", "in_bf16"),
    [
        # 17.05 is nearer to 18. In bf16 the scale is 1.1015625 and the quotient 17: a tie.
        ("fp8_e4m3", 18.75, 1.1, 18.0, 16.0),
        # 18.09 is nearer to 20; in bf16 18 is a tie.
        ("fp8_e5m2", 19.875, 1.1, 20.0, 16.0),
        # 64.55 is nearer to 65; in bf16 64.5 is a tie.
        ("int8", 71.0, 1.1, 65.0, 64.0),
    ],
)
def test_arithmetic_in_bf16_is_refused_where_it_gives_another_code(
    dtype, row, scale, right, in_bf16
):
    quotient = torch.tensor(row).bfloat16() / torch.tensor(scale).bfloat16()
    codes = to_codes(quotient.float().reshape(1, 1, 1), dtype)
    assert numbers(codes, dtype).item() == in_bf16
    assert accepted_values(row, scale, dtype) == [right]


@pytest.mark.parametrize("dtype", FORMATS)
def test_a_row_rounded_to_bf16_first_is_refused_where_it_gives_another_code(dtype):
    # A little above a tie, which it is once rounded.
    tie = {"fp8_e4m3": 17.0, "fp8_e5m2": 18.0, "int8": 0.5}[dtype]
    row = np.float32(2 * tie * (1 + 2.0**-12))
    rounded = row.astype(ml_dtypes.bfloat16).astype(np.float32)
    assert rounded == 2 * tie
    lower, upper = around(Fraction(tie), dtype)
    assert accepted_values(row, 2.0, dtype) == [upper]
    assert accepted_values(rounded, 2.0, dtype) == [lower]


@pytest.mark.parametrize("scale", [1.0, 0.3])
@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize(
    ("dtype", "row", "largest"),
    [
        ("fp8_e4m3", 449.0, 0x7E),
        # What would round to 480, the code of which is NaN; and what would to 512.
        ("fp8_e4m3", 465.0, 0x7E),
        ("fp8_e4m3", 512.0, 0x7E),
        ("fp8_e4m3", 1e30, 0x7E),
        ("fp8_e4m3", INF, 0x7E),
        # What would round to infinity.
        ("fp8_e5m2", 61441.0, 0x7B),
        ("fp8_e5m2", 1e30, 0x7B),
        ("fp8_e5m2", INF, 0x7B),
    ],
)
def test_what_is_too_large_becomes_the_largest_and_neither_infinity_nor_nan(
    dtype, row, largest, sign, scale
):
    assert accepted(sign * row * scale, scale, dtype) == [largest if sign > 0 else largest + 128]


@pytest.mark.parametrize("scale", [1.0, 0.3])
@pytest.mark.parametrize(
    ("row", "code"),
    [
        (127.0, 127),
        (127.6, 127),
        (128.0, 127),
        (1e30, 127),
        (INF, 127),
        (-127.0, 0x81),
        (-128.0, 0x80),
        (-129.0, 0x80),
        (-1e30, 0x80),
        (-INF, 0x80),
    ],
)
def test_int8_goes_from_minus_128_to_127(row, code, scale):
    assert accepted(row * scale, scale, "int8") == [code]


@pytest.mark.parametrize("scale", [1.0, 0.3])
@pytest.mark.parametrize(
    ("dtype", "nans"),
    [("fp8_e4m3", [0x7F, 0xFF]), ("fp8_e5m2", [0x7D, 0x7E, 0x7F, 0xFD, 0xFE, 0xFF])],
)
def test_nan_becomes_a_nan_of_any_payload_and_nothing_else(dtype, nans, scale):
    assert accepted(NAN, scale, dtype) == nans


def test_each_head_and_each_token_is_judged_by_its_own_scale():
    # 17, a tie, all three times: only where the scale is a power of two is there one right code.
    rows = np.array([[[34.0], [51.0]]], np.float32)
    scale = np.array([[[2.0], [3.0]]], np.float32)
    upper = np.full((1, 2, 1), 0x59, np.int8)  # 18
    assert right_codes(rows, scale, upper, "fp8_e4m3").ravel().tolist() == [0x58, 0x59]
    tokens = right_codes(
        rows.reshape(2, 1, 1), scale.reshape(2, 1, 1), upper.reshape(2, 1, 1), "fp8_e4m3"
    )
    assert tokens.ravel().tolist() == [0x58, 0x59]


def test_what_is_refused_is_replaced_by_the_nearest_code_and_the_rest_kept():
    rows = np.array([1.0, 17.0, NAN, INF, -0.75], np.float32).reshape(5, 1, 1)
    actual = as_codes(0x38, 0x59, 0x38, 0x7F, 0xB4)
    right = right_codes(rows, one(1.0), actual, "fp8_e4m3").view(np.uint8).ravel().tolist()
    assert (right[:2], right[3:]) == ([0x38, 0x58], [0x7E, 0xB4])
    assert right[2] in {0x7F, 0xFF}


def test_what_is_refused_at_a_tie_is_replaced_by_its_even_code_where_both_are_right():
    # 19 may be 18 or 20 if division is not exact; 20 is the even one.
    assert right_codes(one(57.0), one(3.0), as_codes(0x38), "fp8_e4m3").item() == 0x5A


# Rows.


def row_bits(values, dtype):
    """The bits of float32 values rounded to a dtype, by torch."""
    integer = {2: torch.int16, 4: torch.int32}[DTYPE_BYTES[dtype]]
    return torch.from_numpy(np.asarray(values, np.float32)).to(ROWS[dtype]).view(integer).numpy()


def products(scale, dtype):
    """Every code of a format times a scale, in float32, [256, 1, 1]."""
    codes = torch.from_numpy(ALL_CODES.copy()).view(FORMATS[dtype]).float()
    return (codes * torch.tensor(scale, dtype=torch.float32)).numpy().reshape(-1, 1, 1)


def refused(actual, codes, scale, cache_dtype, dtype):
    return right_rows(codes, one(scale), actual, cache_dtype, dtype) != actual


EVERY_CODE = ALL_CODES.reshape(-1, 1, 1)
each_format = pytest.mark.parametrize("cache_dtype", FORMATS)
each_dtype = pytest.mark.parametrize("dtype", ROWS)


@each_dtype
@each_format
@given(scale=scales)
def test_a_product_in_float32_that_is_rounded_is_right(cache_dtype, dtype, scale):
    actual = row_bits(products(scale, cache_dtype), dtype)
    right = right_rows(EVERY_CODE, one(scale), actual, cache_dtype, dtype)
    assert right.dtype == actual.dtype
    assert right.tolist() == actual.tolist()


# Scales whose product with a code is next to half-way between two rows: rounded to float32 it is
# half-way, and then goes to the even one, which is the other.
TWICE_ROUNDED = [
    ("bf16", 1.125, "0x1.cc71c6p-1", 1.0078125, 1.015625),
    ("bf16", 1.75, "0x1.25b6dcp-1", 1.0078125, 1.0),
    ("fp16", 1.25, "0x1.9a3332p-1", 1.0009765625, 1.001953125),
    ("fp16", 1.875, "0x1.113334p-1", 1.0009765625, 1.0),
]


@pytest.mark.parametrize(("dtype", "code", "scale", "direct", "twice"), TWICE_ROUNDED)
def test_a_product_rounded_once_and_one_rounded_by_way_of_float32_are_right(
    dtype, code, scale, direct, twice
):
    factor = float.fromhex(scale)
    exact = Fraction(code) * Fraction(factor)
    assert abs(exact - Fraction(direct)) < abs(exact - Fraction(twice))
    assert np.float32(code) * np.float32(factor) == np.float32((direct + twice) / 2)
    codes = to_codes(torch.tensor(code).reshape(1, 1, 1), "fp8_e4m3")
    for value in (direct, twice):
        actual = row_bits(one(value), dtype)
        assert not refused(actual, codes, factor, "fp8_e4m3", dtype)
        for neighbour in (actual - 1, actual + 1):
            between = numbers(neighbour, dtype).item() in {direct, twice}
            assert refused(neighbour, codes, factor, "fp8_e4m3", dtype) == (not between)


def test_a_row_cut_off_instead_of_rounded_is_refused():
    code, scale = as_codes(0x38), 1 + 0.75 * 2.0**-7  # 3/4 of a unit in bf16's last place above 1
    truncated, rounded = row_bits(one(1.0), "bf16"), row_bits(one(1 + 2.0**-7), "bf16")
    assert refused(truncated, code, scale, "fp8_e4m3", "bf16").all()
    assert not refused(rounded, code, scale, "fp8_e4m3", "bf16").any()


def test_a_row_half_way_that_goes_to_the_odd_one_is_refused_where_the_scale_is_exact():
    code, scale = as_codes(0x01), 2.0**-9  # 2**-16 times that is half of the smallest fp16
    odd, even = row_bits(one(2.0**-24), "fp16"), row_bits(one(0.0), "fp16")
    assert refused(odd, code, scale, "fp8_e5m2", "fp16").all()
    assert not refused(even, code, scale, "fp8_e5m2", "fp16").any()


@each_format
@given(scale=inexact_scales)
def test_truncation_to_bf16_is_refused_wherever_it_is_not_what_rounding_gives(cache_dtype, scale):
    values = products(scale, cache_dtype)
    truncated = (values.view(np.int32) >> 16).astype(np.int16)
    lower = values.view(np.uint32) & 0xFFFF
    # Next to half-way either is right, and a NaN is one whatever is cut off.
    clear = (lower > 0x8002) & np.isfinite(values)
    assume(clear.any())
    codes = EVERY_CODE[clear[:, 0, 0]]
    assert refused(truncated[clear[:, 0, 0]], codes, scale, cache_dtype, "bf16").all()


@each_dtype
@each_format
@given(scale=powers_of_two)
def test_one_unit_in_the_last_place_is_refused_where_the_scale_is_exact(cache_dtype, dtype, scale):
    values = products(scale, cache_dtype)
    actual = row_bits(values, dtype)
    number = ~np.isnan(values)
    for neighbour in (actual - 1, actual + 1):
        found = refused(neighbour, EVERY_CODE, scale, cache_dtype, dtype)
        assert found[number].all()


@each_format
@given(scale=inexact_scales)
def test_one_unit_in_the_last_place_of_float32_is_refused_whatever_the_scale(cache_dtype, scale):
    values = products(scale, cache_dtype)
    number = ~np.isnan(values)
    for towards in (-INF, INF):
        found = np.nextafter(values, np.float32(towards)).astype(np.float32).view(np.int32)
        # Of zero and of infinity too: the smallest number is not zero, the largest not infinity.
        moved = number & (found != values.view(np.int32))
        assert refused(found, EVERY_CODE, scale, cache_dtype, "fp32")[moved].all()
        assert moved.sum() > 200


@each_dtype
@pytest.mark.parametrize("scale", [1.0, 0.3])
def test_nan_is_read_as_a_nan_of_any_payload_and_infinity_as_infinity(dtype, scale):
    integer = {2: np.int16, 4: np.int32}[DTYPE_BYTES[dtype]]
    exponent = row_bits(one(INF), dtype).item()
    largest = one(exponent - 1, integer)
    for cache_dtype, code in (("fp8_e4m3", 0x7F), ("fp8_e4m3", 0xFF), ("fp8_e5m2", 0x7E)):
        for payload in (exponent + 1, -1):
            actual = one(payload, integer)
            assert not refused(actual, as_codes(code), scale, cache_dtype, dtype).any()
        for number in (one(exponent, integer), largest, one(0, integer)):
            assert refused(number, as_codes(code), scale, cache_dtype, dtype).all()
    infinity = one(exponent, integer)
    assert not refused(infinity, as_codes(0x7C), scale, "fp8_e5m2", dtype).any()
    for wrong in (largest, one(exponent + 1, integer), row_bits(one(-INF), dtype)):
        assert refused(wrong, as_codes(0x7C), scale, "fp8_e5m2", dtype).all()


def test_what_fp16_does_not_reach_is_infinity():
    codes = as_codes(0x7B)  # 57344
    assert not refused(row_bits(one(INF), "fp16"), codes, 2.0, "fp8_e5m2", "fp16").any()
    assert refused(row_bits(one(65504.0), "fp16"), codes, 2.0, "fp8_e5m2", "fp16").all()


# Scales.


@pytest.mark.parametrize(
    ("dtype", "row", "scale"),
    [
        ("fp8_e4m3", [448.0, -3.0], 1.0),
        ("fp8_e4m3", [1.0, -896.0], 2.0),
        ("fp8_e5m2", [0.0, -57344.0 / 8], 0.125),
        ("int8", [127.0, 127.0], 1.0),
        # Not 128: -128 is never used.
        ("int8", [-254.0, 0.0], 2.0),
        ("fp8_e4m3", [1.0, 0.5], np.float32(1 / 448)),
        # Rows of zeros, or next to it.
        ("fp8_e4m3", [0.0, -0.0], 2.0**-20),
        ("fp8_e4m3", [448 * 2.0**-21, 0.0], 2.0**-20),
        ("int8", [0.0, 2.0**-126], 2.0**-20),
        ("fp8_e5m2", [57344 * 2.0**-19, 0.0], 2.0**-19),
    ],
)
def test_a_scale_is_the_largest_magnitude_over_the_format_s_largest(dtype, row, scale):
    # One head of two elements, and two heads of one: a token has one scale over all of them.
    for shape in ((1, 1, 2), (1, 2, 1)):
        rows = np.array(row, np.float32).reshape(shape)
        unlike = np.full(1, NAN, np.float32)
        assert right_scales(rows, unlike, dtype).tolist() == [scale]


def test_tokens_have_scales_of_their_own_and_no_token_has_none():
    rows = np.array([448.0, 1.0, 896.0, 2.0], np.float32).reshape(2, 2, 1)
    assert right_scales(rows, np.zeros(2, np.float32), "fp8_e4m3").tolist() == [1.0, 2.0]
    none = right_scales(np.zeros((0, 2, 3), np.float32), np.zeros(0, np.float32), "int8")
    assert none.shape == (0,)


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("direction", [-INF, INF])
@pytest.mark.parametrize(("units", "right"), [(0, True), (1, True), (2, True), (3, False)])
def test_a_scale_may_be_two_units_in_the_last_place_off_and_no_more(dtype, direction, units, right):
    rows = np.array([3.0, 100.0], np.float32).reshape(2, 1, 1)
    exact = (rows.ravel() / np.float32(LARGEST[dtype])).astype(np.float32)
    actual = exact
    for _ in range(units):
        actual = np.nextafter(actual, np.float32(direction))
    found = right_scales(rows, actual, dtype)
    assert found.dtype == np.float32
    assert found.tolist() == (actual if right else exact).tolist()


@pytest.mark.parametrize("dtype", FORMATS)
@given(rows=arrays(np.float32, (5, 2, 3), elements=st.floats(-(2.0**40), 2.0**40, width=32)))
def test_torch_s_scales_are_right_by_division_and_by_a_product_with_the_reciprocal(dtype, rows):
    most = torch.from_numpy(rows).flatten(1).abs().amax(dim=1)
    reciprocal = torch.tensor(1.0) / LARGEST[dtype]
    for found in (most / LARGEST[dtype], most * reciprocal):
        actual = found.clamp(min=2.0**-20).numpy()
        assert right_scales(rows, actual, dtype).tolist() == actual.tolist()
