"""What a quantised pool may hold: the oracle's rules of rounding, with tolerances derived.

A code is defined as round(row / scale) in float32: to the nearest code, ties to even, saturated at
the format's largest value, so that infinities become that too; NaN stays a NaN of any payload in
fp8, and has no meaning in int8. A row read back is code * scale in float32, rounded to its dtype.

The division may be done as a product with the reciprocal, or as a GPU's approximate one: its result
then is up to `_DIVISION_ULPS` away, and the code is that of any value so near. A division by a
power of two is exact however it is done: there one code is right, ties included. The product of
code and scale has one rounding; a dtype narrower than float32 may skip it. What is compared is
values: a zero may have either sign.

ml_dtypes does the conversions: an implementation that PyTorch and Triton don't share.
"""

from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

_DTYPES: dict[str, Any] = {
    "fp32": np.float32,
    "fp16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "fp8_e4m3": ml_dtypes.float8_e4m3fn,
    "fp8_e5m2": ml_dtypes.float8_e5m2,
    "int8": np.int8,
}
_LARGEST = {"fp8_e4m3": 448.0, "fp8_e5m2": 57344.0, "int8": 127.0}
_LEAST_INT8 = -128.0
_SMALLEST_SCALE = 2.0**-20
"""The least scale of a token: its row is next to zero. Of one that is zero any will do."""
_DIVISION_ULPS = 2
"""Half a unit of the reciprocal's rounding is up to a whole one of the product's, which is rounded
itself; Triton's and CUDA's approximate division is within two."""


def numbers(bits: Array, dtype: str) -> Array:
    """Bits as the float32 values that they stand for in a dtype."""
    with np.errstate(invalid="ignore"):
        values: Array = bits.view(_DTYPES[dtype]).astype(np.float32)
    return values


def right_codes(rows: Array, scale: Array, actual: Array, dtype: str) -> Array:
    """The codes to compare with, bit for bit: the actual ones wherever they are within tolerance.

    Args:
        rows: float32 [tokens, num_kv_heads, head_dim].
        scale: float32, of a shape that goes with rows.
        actual: The codes that a strategy stored for them, as bits.
        dtype: The format.
    """
    with np.errstate(all="ignore"):
        quotient = (rows.astype(np.float64) / scale).astype(np.float32)
    ulps = np.where(_is_power_of_two(scale), 0, _DIVISION_ULPS)
    low, high = (_encode(_moved(quotient, sign * ulps), dtype) for sign in (-1, 1))
    return _within(actual, low, high, _encode(quotient, dtype), dtype)


def right_rows(codes: Array, scale: Array, actual: Array, cache_dtype: str, dtype: str) -> Array:
    """The rows of a read to compare with: the actual ones wherever they are within tolerance.

    Args:
        codes: The codes read, as bits, [tokens, num_kv_heads, head_dim].
        scale: float32, of a shape that goes with codes.
        actual: The rows that a strategy gave, as bits.
        cache_dtype: The format of the codes.
        dtype: That of the rows.
    """
    with np.errstate(all="ignore"):
        exact = numbers(codes, cache_dtype).astype(np.float64) * scale
        product = exact.astype(np.float32)
        ulps = np.where((product == exact) | (dtype == "fp32"), 0, 1)
        low, nearest, high = (
            _moved(product, sign * ulps).astype(_DTYPES[dtype]) for sign in (-1, 0, 1)
        )
    return _within(actual, low, high, nearest, dtype)


def right_scales(rows: Array, actual: Array, dtype: str) -> Array:
    """The scales that a write stores per token, wherever within tolerance the actual ones.

    Args:
        rows: float32 [tokens, num_kv_heads, head_dim].
        actual: The scales that a strategy stored, float32 [tokens].
        dtype: The format.
    """
    magnitudes = np.abs(rows).max(axis=(1, 2), initial=0.0)
    exact = np.maximum(magnitudes.astype(np.float64) / _LARGEST[dtype], _SMALLEST_SCALE)
    nearest = exact.astype(np.float32)
    low, high = (_moved(nearest, np.asarray(sign * _DIVISION_ULPS)) for sign in (-1, 1))
    # Any scale gives the codes of a row of zeros.
    free = (magnitudes == 0) & np.isfinite(actual) & (actual > 0)
    scales: Array = np.where(((low <= actual) & (actual <= high)) | free, actual, nearest)
    return scales


def _encode(values: Array, dtype: str) -> Array:
    with np.errstate(all="ignore"):
        if dtype == "int8":
            codes: Array = np.clip(np.rint(values), _LEAST_INT8, _LARGEST[dtype]).astype(np.int8)
        else:
            codes = np.clip(values, -_LARGEST[dtype], _LARGEST[dtype]).astype(_DTYPES[dtype])
    return codes


def _within(actual: Array, low: Array, high: Array, nearest: Array, dtype: str) -> Array:
    """Actual bits where their value is from low to high, or all are NaN; elsewhere the nearest."""
    with np.errstate(all="ignore"):
        found = numbers(actual, dtype)
        first, last = low.astype(np.float32), high.astype(np.float32)
        right = ((first <= found) & (found <= last)) | (np.isnan(found) & np.isnan(first))
    bits: Array = np.where(right, actual, nearest.view(actual.dtype))
    return bits


def _moved(values: Array, ulps: Array) -> Array:
    """Float32 values some units in the last place away."""
    towards = np.where(ulps < 0, -np.inf, np.inf).astype(np.float32)
    moved = values
    for step in range(int(np.abs(ulps).max(initial=0))):
        with np.errstate(over="ignore"):  # beyond the largest there is infinity
            moved = np.where(np.abs(ulps) > step, np.nextafter(moved, towards), moved)
    return moved.astype(np.float32)


def _is_power_of_two(scale: Array) -> Array:
    mantissa: Array = np.frexp(scale)[0]
    return np.asarray(mantissa == 0.5)  # noqa: PLR2004 - frexp's mantissa of a power of two
