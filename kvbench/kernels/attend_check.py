"""What an attention over a paged cache refuses, of its operands."""

import torch

from kvbench.kernels.rows import check_scales

_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
_INDICES = (torch.int32, torch.int64)


def check_attention(
    query: torch.Tensor,
    key_pool: torch.Tensor,
    value_pool: torch.Tensor,
    output: torch.Tensor,
    scales: tuple[torch.Tensor, torch.Tensor] | tuple[()],
    block_table: torch.Tensor,
    lengths: torch.Tensor,
    *,
    per_token: bool,
    latent: bool,
) -> None:
    """Refuse what a kernel would read or write out of bounds, or convert silently.

    Args:
        query: As in `plan_attend`, like all that follow.
        key_pool: Of K, or of the part of K that is V too, if latent.
        value_pool: Of V, or of the rest of K, if latent.
        output: Of the dtype and the heads of query.
        scales: Of K and V.
        block_table: A row for each sequence.
        lengths: One for each sequence.
        per_token: Whether each slot has a scale of its own.
        latent: As in `Meaning`.

    Raises:
        ValueError: The message names the argument, what was expected and what was given.
    """
    key_dim, value_dim = (pool.shape[3:].numel() for pool in (key_pool, value_pool))
    rows, heads, _ = query.shape
    query_dim, out_dim = (key_dim + value_dim, key_dim) if latent else (key_dim, value_dim)
    for name, actual, expected in (
        ("query's head", query.shape[2], query_dim),
        ("output's shape", tuple(output.shape), (rows, heads, out_dim)),
        ("output's dtype", output.dtype, query.dtype),
        ("value_pool's slots", tuple(value_pool.shape[:3]), tuple(key_pool.shape[:3])),
        ("value_pool's dtype", value_pool.dtype, key_pool.dtype),
        ("block_table's rows", len(block_table), len(lengths)),
    ):
        if actual != expected:
            raise ValueError(f"{name} is {actual}; expected {expected}")
    for name, number, divisor in (
        ("query's heads", heads, key_pool.shape[2]),
        ("query's rows", rows, len(lengths)),
    ):
        if number % divisor if divisor else number:
            raise ValueError(f"{name} is {number}; expected a multiple of {divisor}")
    for name, dtype, known in (
        ("query's dtype", query.dtype, _DTYPES),
        ("block_table's dtype", block_table.dtype, _INDICES),
        ("lengths's dtype", lengths.dtype, _INDICES),
    ):
        if dtype not in known:
            raise ValueError(f"{name} is {dtype}; expected one of {', '.join(map(str, known))}")
    if scales:
        named = dict(zip(("key_scale", "value_scale"), scales, strict=True))
        check_scales(key_pool, named, per_token=per_token)
    elif key_pool.dtype != query.dtype:
        raise ValueError(f"key_pool's dtype is {key_pool.dtype}; expected {query.dtype}")
