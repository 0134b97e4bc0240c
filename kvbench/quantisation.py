"""Codes and scales of quantised pools, in PyTorch ops: what the portable strategies share.

A code is round(row / scale), to the nearest and ties to even, saturated at the format's largest
value; a row is code * scale. All arithmetic is in float32. NaN stays NaN in fp8. A scale per token
is the largest magnitude of the token's row over the format's largest, as in vLLM and LMDeploy.
"""

from collections.abc import Callable, Iterator

import torch

from kvbench.cases import Case
from kvbench.workload import Workload, largest

SMALLEST_SCALE = 2.0**-20
"""Of a token whose row is zero, or next to it: no division by zero. vLLM has 1e-6."""

_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32}

Index = torch.Tensor | slice
"""Which rows of K and V."""


def token_scales(rows: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Each token's scale, float32 [tokens], from its rows [tokens, ...].

    Of a row with NaN or an infinity in it, what comes of it is undefined.
    """
    magnitudes = rows.flatten(1).abs().amax(dim=1).float()
    return (magnitudes / largest(dtype)).clamp(min=SMALLEST_SCALE)


def encode(rows: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The codes of rows.

    Args:
        rows: [tokens, num_kv_heads, ...].
        scale: float32, see `spread`.
        dtype: The format of the codes.
    """
    scaled = rows.float() / spread(scale, rows)
    if dtype is torch.int8:
        return scaled.round().clamp(-128.0, 127.0).to(dtype)
    return scaled.clamp(-largest(dtype), largest(dtype)).to(dtype)


def decode(codes: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The rows of codes, in `dtype`; the arguments are as those of `encode`."""
    return (codes.float() * spread(scale, codes)).to(dtype)


def spread(scale: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """A scale seen in a shape that goes with rows [tokens, num_kv_heads, ...].

    Args:
        scale: [1, 1] of the pool, [1, num_kv_heads] of heads, or [tokens, 1] of tokens.
        rows: What it scales.
    """
    return scale[(..., *[None] * (rows.dim() - 2))]


def as_integers(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor seen as integers of its elements' size, for ops that should only move them.

    On a CPU gather and scatter_ take fp16 and bf16 to float32 and back, scatter_ all of the pool,
    which loses the payloads of NaN; and several ops don't know fp8.
    """
    return tensor.view(_INTEGERS[tensor.element_size()])


def stores(workload: Workload, rows: Index = slice(None)) -> Iterator[tuple[torch.Tensor, ...]]:
    """What a write has to store, and where: pairs of a pool and its values, for K and V in turn.

    Args:
        workload: The workload; its pools have the slots [num_blocks, block_size, ...].
        rows: Which rows of K and V are stored.
    """
    for source, pool, scale in (
        (workload.key, workload.key_pool, workload.key_scale),
        (workload.value, workload.value_pool, workload.value_scale),
    ):
        values = source[rows]
        if scale is None:
            yield pool, values
        elif workload.case.kv_scale == "per_token":
            scales = token_scales(values, pool.dtype)
            yield scale, scales
            yield pool, encode(values, scales[:, None], pool.dtype)
        else:
            yield pool, encode(values, scale, pool.dtype)


def loads(
    workload: Workload, gather: Callable[[torch.Tensor], torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor]:
    """What a read gives, from a way of gathering the slots of a pool [num_blocks, block_size, ...].

    Args:
        workload: The workload; its outputs are not given.
        gather: Gives the slots of every token of a pool, [tokens, ...].
    """
    return loads_into(workload, lambda pool, _: gather(pool))


def loads_into(
    workload: Workload, gather: Callable[[torch.Tensor, torch.Tensor | None], torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor]:
    """What a read gives, as `loads`, from a way of gathering that can fill a tensor of the caller.

    Args:
        workload: The workload.
        gather: Gives the slots of every token of a pool, [tokens, ...], in the tensor that it is
            given with the pool, or in a new one if that is None.
    """

    def load(
        pool: torch.Tensor, scale: torch.Tensor | None, out: torch.Tensor | None
    ) -> torch.Tensor:
        if scale is None:
            return gather(pool, out)
        slots = gather(pool, None)
        scales = gather(scale, None)[:, None] if workload.case.kv_scale == "per_token" else scale
        return decode(slots, scales, workload.dtype)

    key, value = workload.outputs or (None, None)
    return (
        load(workload.key_pool, workload.key_scale, key),
        load(workload.value_pool, workload.value_scale, value),
    )


def no_given_output(case: Case) -> str | None:
    """None if `loads_into` can fill the outputs that a read is given, else why not."""
    if case.output == "allocated" or not case.quantised:
        return None
    return (
        f"output=given with cache_dtype={case.cache_dtype}: codes are gathered into a tensor of "
        "their own, and decoded into another"
    )
