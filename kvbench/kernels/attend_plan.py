"""Attention over a paged cache, planned once a step: one launch a layer, or two."""

import math
from dataclasses import dataclass

import torch
import triton.language as tl

from kvbench.kernels import jit
from kvbench.kernels.attend import attend_kernel
from kvbench.kernels.attend_check import check_attention
from kvbench.kernels.attend_merge import merge_attend_kernel
from kvbench.kernels.attend_tiles import (
    AttendTile,
    Gpu,
    attend_tile,
    best_parts,
    cut,
    padded,
    padded_dim,
)
from kvbench.kernels.codes import MANTISSA_BITS
from kvbench.kernels.jit import Arguments
from kvbench.kernels.plan import Operand, Plan
from kvbench.kernels.rows import Slots, scale_kind, scale_strides

Pair = tuple[torch.Tensor, torch.Tensor]

_OPERANDS = {
    torch.float32: tl.float32,
    torch.float16: tl.float16,
    torch.bfloat16: tl.bfloat16,
}
_LOG2_E = 1.0 / math.log(2.0)
_MOST_STEP = 16
_MERGED_ELEMENTS = 128
"""Of a row, that a program merges."""
_MERGED = 4096
"""Elements of all parts and rows that a program merges at once, at least: 32 of each thread."""
_MERGING_WARPS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Meaning:
    """What an attention computes, besides of which tensors."""

    longest: int
    """Of the contexts."""
    softmax_scale: float
    sliding_window: int = 0
    """Positions that a query sees, its own included; 0: all up to its own."""
    soft_cap: int = 0
    """What no score is beyond, either way; 0: none."""
    latent: bool = False
    """Whether K is [key_pool ; value_pool] and V is key_pool, as in an MLA pool."""


def plan_attend(
    query: torch.Tensor,
    key_pool: torch.Tensor,
    value_pool: torch.Tensor,
    output: torch.Tensor,
    scales: Pair | tuple[()],
    block_table: torch.Tensor,
    lengths: torch.Tensor,
    meaning: Meaning,
    *,
    per_token: bool = False,
    tile: AttendTile | None = None,
    parts: int | None = None,
) -> Plan:
    """Plan the attention of the last tokens of each sequence over its context.

    `run(query, key_pool, value_pool, output)`, followed by the scales if there are any, then fills
    a layer's output: a row of it is 0 where its query sees nothing. Where the rows of a KV head fit
    one tile, as in decoding, contexts are split between programs if there are few of these; what
    they find is then merged in a second launch, by way of memory that is allocated here.

    Args:
        query: fp32, fp16 or bf16 [batch * query_len, num_heads, head_dim], any strides, of any
            layer, as are the next three and the scales.
        key_pool: Of query's dtype, or codes of float8_e4m3fn, float8_e5m2 or int8: [num_blocks,
            block_size, num_kv_heads, dim], or x-packed [..., dim / x, x], any strides. Slots that
            no query sees may hold anything.
        value_pool: As key_pool, of V's dim.
        output: [batch * query_len, num_heads, value dim], of query's dtype, any strides; mutated.
        scales: Of K and V, float32, any strides: [1, 1] or [1, num_kv_heads]; or, per_token,
            [num_blocks, block_size]. None of pools of query's dtype.
        block_table: int32 or int64 [batch, entries], any strides; the step's, for all layers. An
            entry is read if any query sees one of its positions.
        lengths: int32 or int64 [batch]: tokens in each context, those of the queries included.
        meaning: What is computed.
        per_token: Whether each slot has a scale of its own.
        tile: What a program has at a time, instead of what suits the shape.
        parts: How many contexts are split into at most, instead of what suits the GPU.

    Raises:
        ValueError: Shapes or dtypes don't go together.
    """
    check_attention(
        query,
        key_pool,
        value_pool,
        output,
        scales,
        block_table,
        lengths,
        per_token=per_token,
        latent=meaning.latent,
    )
    names = ("query", "key_pool", "value_pool", "output", "key_scale", "value_scale")
    own = (query, key_pool, value_pool, output, *scales)
    operands = tuple(map(Operand.of, names, own))
    if query.numel() == 0:
        return Plan(operands, lambda *_: None)
    (rows, num_heads, _), (kv_heads, sequences) = query.shape, (key_pool.shape[2], len(lengths))
    key, value = Slots.of(key_pool), Slots.of(value_pool)
    query_tokens, group = rows // sequences, num_heads // kv_heads
    if tile is None:
        tile = attend_tile(
            query_tokens * group,
            max(key.dim, value.dim),
            query.element_size(),
            quantised=bool(scales),
            latent=meaning.latent,
        )
    tiles = -(-query_tokens * group // tile.rows)
    # Queries that share a program see that many positions between them at most.
    reach = meaning.longest
    if meaning.sliding_window:
        reach = min(reach, meaning.sliding_window + query_tokens)
    if parts is None:
        token_bytes = (padded_dim(key.dim) + padded_dim(value.dim)) * key_pool.element_size()
        gpu = _gpu(query.device)
        parts = best_parts(sequences * kv_heads, reach, tile, token_bytes, gpu) if tiles == 1 else 1
    splits, part = cut(reach, tile.tokens, parts)
    # What stands in for what a launch has not is never read.
    nothing = query.new_empty((1, 1), dtype=torch.float32)
    partial = extent = nothing
    if splits > 1:
        out_rows = rows * num_heads
        partial = query.new_empty((out_rows, splits, output.shape[2]), dtype=torch.float32)
        extent = query.new_empty((out_rows, splits, 2), dtype=torch.float32)
    rounding = query.dtype is torch.bfloat16 and jit.is_interpreted(query.device)
    scale = meaning.softmax_scale
    numbers = (
        scale / meaning.soft_cap if meaning.soft_cap else scale * _LOG2_E,
        query_tokens,
        min(meaning.sliding_window, meaning.longest),
        part,
        splits,
        *query.stride(),
        *output.stride(),
        *key.strides,
        *value.strides,
        *(n for each in scales or () for n in scale_strides(each, per_token=per_token)),
        *(() if scales else (0,) * 6),
        *block_table.stride(),
        lengths.stride(0),
    )
    constants = {
        "KV_HEADS": kv_heads,
        "GROUP": group,
        "KEY_DIM": key.dim,
        "KEY_PACK": key.pack,
        "KEY_PADDED": padded_dim(key.dim),
        "VALUE_DIM": value.dim,
        "VALUE_PACK": value.pack,
        "VALUE_PADDED": padded_dim(value.dim),
        "OUT_DIM": output.shape[2],
        "OUT_PADDED": padded_dim(output.shape[2]),
        "LATENT": meaning.latent,
        "QUERY_STEP": _step(query.stride()),
        "KEY_POOL_STEP": _step(key.strides),
        "VALUE_POOL_STEP": _step(value.strides),
        "KEY_ADJACENT": _has_adjacent_slots(key),
        "VALUE_ADJACENT": _has_adjacent_slots(value),
        "BLOCK_SIZE": key_pool.shape[1],
        "WINDOWED": meaning.sliding_window > 0,
        "SOFT_CAP": meaning.soft_cap,
        "CODE": MANTISSA_BITS.get(key_pool.dtype),
        "SCALE": scale_kind(scales, per_token=per_token),
        # The interpreter multiplies no bf16.
        "OPERAND": tl.float32 if rounding else _OPERANDS[query.dtype],
        "ROUND_BF16": rounding,
        "RUN": math.gcd(key_pool.shape[1], tile.tokens),
        "SPLIT": splits > 1,
        "ROWS": tile.rows,
        "TOKENS": tile.tokens,
        "PIECE": min(tile.piece, padded_dim(key.dim)),
    }
    tensors = (*own, *(() if scales else (nothing, nothing)), block_table, lengths, partial, extent)
    attend = attend_kernel.bind(
        Arguments(tensors, numbers, constants),
        (sequences * tiles * splits * kv_heads, 1),
        tile.warps,
        len(own),
        tile.stages,
    )
    if splits == 1:
        return Plan(operands, attend)
    block = min(padded(output.shape[2]), _MERGED_ELEMENTS)
    together = max(_MERGED // (padded(splits) * block), 1)
    merge = merge_attend_kernel.bind(
        Arguments(
            (output, partial, extent),
            (rows * num_heads, splits, *output.stride()),
            {
                "NUM_HEADS": num_heads,
                "OUT_DIM": output.shape[2],
                "ROUND_BF16": rounding,
                "SPLITS": padded(splits),
                "ROWS": together,
                "BLOCK": block,
            },
        ),
        (-(-rows * num_heads // together), -(-output.shape[2] // block)),
        _MERGING_WARPS,
        1,
    )

    def launch(*layer: torch.Tensor) -> None:
        attend(*layer)
        merge(layer[names.index("output")])

    return Plan(operands, launch)


def _step(strides: tuple[int, ...]) -> int:
    """Elements that all strides are multiples of but those of what lies side by side."""
    return math.gcd(_MOST_STEP, *(stride for stride in strides if stride != 1))


def _has_adjacent_slots(pool: Slots) -> bool:
    """Whether a block's slots lie side by side, not a head's elements."""
    _, slot, _, _, dim = pool.strides
    return slot == 1 != dim


def _gpu(device: torch.device) -> Gpu:
    """Of a device; of a CPU, or where there is none, what stands for a GPU."""
    if device.type != "cuda" or not torch.cuda.is_available():
        return Gpu()
    told = torch.cuda.get_device_properties(device)
    return Gpu(told.multi_processor_count, told.shared_memory_per_multiprocessor)
