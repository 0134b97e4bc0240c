"""The data of a workload, from its case's seed and a version: poison, or numbers to quantise."""

from collections.abc import Iterable

import torch

from kvbench.attention_data import fill_attention, fill_step
from kvbench.cases import Case
from kvbench.workload import CACHE_DTYPES, Workload, largest

_LARGEST_EXPONENT = {"fp8_e4m3": 9, "fp8_e5m2": 16, "int8": 7}
"""The first power of two that a format does not reach."""
_EXPONENTS = {"fp8_e4m3": 22, "fp8_e5m2": 36, "int8": 12}
"""Powers of two that the magnitudes of a quantised case's K and V are spread over: from below a
format's smallest value to above its largest."""
_SCALE_EXPONENT = 3
"""Given scales lie between 2**-3 and 2**3, as calibration gives them."""
_SPECIAL_ONE_IN = 128


def fill(workload: Workload, version: int = 0) -> None:
    """Fill every tensor with data that depends on the case's seed and on `version`.

    Random bits poison: each slot is unlike every other, NaN payloads and infinities included, so
    that a slot that moved, or one that should not have been touched, shows. Only what is quantised,
    and scales, are numbers: see `_fill_rows`. Scales of odd versions are powers of two, by which
    division is exact, so that rounding has one right result; those of version 2 have six bits, so
    that products with codes are exact, and many lie half-way between two numbers of bf16. An attend
    and a step have numbers to compute with: see `fill_attention` and `fill_step`.
    """
    generator = torch.Generator(device=workload.device)
    generator.manual_seed((workload.case.seed * 1009 + version) % 2**63)  # any seed of a case fits
    if workload.case.op == "attend":
        fill_attention(workload, generator, version)
        return
    if workload.case.op == "step":
        fill_step(workload, generator)
        return
    exact = version % 2 == 1
    quantised = workload.case.quantised
    for name, tensor in workload.tensors().items():
        if name.endswith("_scale"):
            _fill_scales(tensor, generator, version)
        elif not (quantised and name in {"key", "value"}):
            _fill_bits(tensor, generator)
    if quantised:
        for rows, scale in (
            (workload.key, workload.key_scale),
            (workload.value, workload.value_scale),
        ):
            _fill_rows(rows, scale, workload.case, generator, exact=exact)


def _fill_bits(tensor: torch.Tensor, generator: torch.Generator) -> None:
    size = tensor.numel() * tensor.element_size()
    words = torch.empty(-(-size // 8), dtype=torch.int64, device=tensor.device)
    words.random_(-(2**63), None, generator=generator)
    bits = words.view(torch.uint8)[:size].view(tensor.dtype)
    tensor.copy_(bits.view(tensor.shape))


def _uniform(shape: Iterable[int], low: float, high: float, g: torch.Generator) -> torch.Tensor:
    return torch.empty(tuple(shape), device=g.device).uniform_(low, high, generator=g)


def _fill_scales(tensor: torch.Tensor, generator: torch.Generator, version: int) -> None:
    exponents = _uniform(tensor.shape, -_SCALE_EXPONENT, _SCALE_EXPONENT, generator)
    scales = torch.exp2(exponents.round() if version % 2 else exponents)
    if version % 4 == 2:  # noqa: PLR2004 - see fill
        mantissas, powers = torch.frexp(scales)
        scales = torch.ldexp((mantissas * 64).round() / 64, powers)
    tensor.copy_(scales)


def _fill_rows(
    tensor: torch.Tensor,
    scale: torch.Tensor | None,
    case: Case,
    generator: torch.Generator,
    *,
    exact: bool,
) -> None:
    """K or V to be quantised: magnitudes from below the format's smallest to above its largest.

    In exact data they have the 8 significant bits of bf16 in every dtype, so that many lie half-way
    between two codes. Given scales have zeros, infinities and, in fp8, NaN among them. Where a
    write computes a token's scale there is none of these (they would be all that's left of the
    row), but one row of zeros; in exact data the scale that results is a power of two.
    """
    if not tensor.numel():
        return
    top = _LARGEST_EXPONENT[case.cache_dtype] + 2
    exponents = _uniform(tensor.shape, top - _EXPONENTS[case.cache_dtype], top, generator)
    signs = _uniform(tensor.shape, -1, 1, generator)
    values = torch.exp2(exponents).copysign_(signs)
    shape = (-1, *[1] * (tensor.dim() - 1))
    if case.kv_scale == "per_token":
        most = largest(CACHE_DTYPES[case.cache_dtype])
        values *= most / 2.0**top  # below it, all of them
        flat = values.flatten(1)
        # Anywhere in the row, and of either sign: a scale from a part of it must show.
        at = _uniform((len(values), 1), 0, flat.shape[1], generator).long()
        at.clamp_(max=flat.shape[1] - 1)  # float32 may round up to the end
        flat.scatter_(1, at, torch.full_like(at, most, dtype=flat.dtype))
        values.copysign_(signs)
        sizes = _uniform((len(values),), -_SCALE_EXPONENT, 0, generator)
        if len(values) > 1:
            flat[(case.seed + len(values) // 2) % len(values)] = 0
        values *= torch.exp2(sizes.round() if exact else sizes).view(shape)
    elif scale is not None:
        values *= scale[(..., *[None] * (tensor.dim() - 2))]
        specials = [0.0, -0.0, float("inf"), -float("inf")]
        if case.cache_dtype != "int8":
            specials.append(float("nan"))  # int8 has no NaN: what becomes of it is undefined
        chosen = _uniform(tensor.shape, 0, _SPECIAL_ONE_IN, generator).floor_()
        for number, special in enumerate(specials):
            values[chosen == number] = special
    tensor.copy_(values.to(torch.bfloat16) if exact else values)
