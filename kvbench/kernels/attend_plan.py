"""Attention over a paged cache, planned once a step: the launches that every layer makes."""

import math
from collections.abc import Sequence

import torch
import triton.language as tl

from kvbench.kernels import jit
from kvbench.kernels.attend import attend_kernel
from kvbench.kernels.attend_merge import merge_attend_kernel
from kvbench.kernels.attend_tiles import AttendTile, attend_tile, padded, split
from kvbench.kernels.codes import MANTISSA_BITS
from kvbench.kernels.jit import Arguments
from kvbench.kernels.plan import Operand, Plan
from kvbench.kernels.rows import Slots, scale_kind, scale_strides

_LOG2_E = 1.0 / math.log(2.0)
_MOST_STEP = 16
_MULTIPROCESSORS = 132
"""Of an H100 or H200: where there is no GPU to ask."""


def plan_attend(
    query: torch.Tensor,
    key_pool: torch.Tensor,
    value_pool: torch.Tensor,
    output: torch.Tensor,
    scales: tuple[torch.Tensor, torch.Tensor] | tuple[()],
    block_table: torch.Tensor,
    lengths: torch.Tensor,
    *,
    longest: int,
    softmax_scale: float,
    sliding_window: int = 0,
    soft_cap: int = 0,
    per_token: bool = False,
    tile: AttendTile | None = None,
    parts: int | None = None,
) -> Plan:
    batch = len(lengths)
    num_heads, kv_heads = query.shape[1], key_pool.shape[2]
    query_tokens = len(query) // batch if batch else 0
    group = num_heads // kv_heads
    key, value = Slots.of(key_pool), Slots.of(value_pool)
    rows = query_tokens * group
    names = ("query", "key_pool", "value_pool", "output", "key_scale", "value_scale")
    tensors = (query, key_pool, value_pool, output, *scales)
    operands = tuple(map(Operand.of, names, tensors))
    if rows == 0:
        return Plan(operands, lambda *_: None)
    if tile is None:
        tile = attend_tile(rows, key.dim, value.dim, query.element_size())
    tiles = -(-rows // tile.rows)
    programs = batch * kv_heads * tiles
    reach = min(longest, sliding_window + query_tokens) if sliding_window else longest
    if parts is None:
        splits, part = split(programs, reach, tile.tokens, _MULTIPROCESSORS)
    else:
        part = -(-(-(-reach // tile.tokens) + 1) // parts) * tile.tokens
        splits = parts
    bf16 = query.dtype is torch.bfloat16
    interpreted = jit.is_interpreted(query.device)
    operand = {torch.float32: tl.float32, torch.float16: tl.float16, torch.bfloat16: tl.bfloat16}[
        query.dtype
    ]
    if bf16 and interpreted:
        operand = tl.float32
    scale = softmax_scale / soft_cap if soft_cap else softmax_scale * _LOG2_E
    empty = query.new_empty((1, 1), dtype=torch.float32)
    partial, extent = empty, empty
    if splits > 1:
        partial = query.new_empty((len(query) * num_heads, splits, value.dim), dtype=torch.float32)
        extent = query.new_empty((len(query) * num_heads, splits, 2), dtype=torch.float32)
    scale_strides_ = (
        [s for each in scales for s in scale_strides(each, per_token=per_token)]
        if scales
        else [0] * 6
    )
    placeholders = () if scales else (empty, empty)
    numbers = (
        scale,
        query_tokens,
        sliding_window,
        part,
        splits,
        *query.stride(),
        *output.stride(),
        *key.strides,
        *value.strides,
        *scale_strides_,
        *block_table.stride(),
        lengths.stride(0),
    )
    constants = {
        "KV_HEADS": kv_heads,
        "GROUP": group,
        "KEY_DIM": key.dim,
        "KEY_PACK": key.pack,
        "KEY_PADDED": tile.key_padded,
        "VALUE_DIM": value.dim,
        "VALUE_PACK": value.pack,
        "VALUE_PADDED": tile.value_padded,
        "QUERY_STEP": math.gcd(_MOST_STEP, *query.stride()[:-1]),
        "KEY_POOL_STEP": _step(key.strides),
        "VALUE_POOL_STEP": _step(value.strides),
        "KEY_ADJACENT": _adjacent(key.strides),
        "VALUE_ADJACENT": _adjacent(value.strides),
        "BLOCK_SIZE": key_pool.shape[1],
        "WINDOWED": sliding_window > 0,
        "SOFT_CAP": soft_cap,
        "CODE": MANTISSA_BITS.get(key_pool.dtype),
        "SCALE": scale_kind(scales, per_token=per_token),
        "OPERAND": operand,
        "ROUND_BF16": bf16 and interpreted,
        "RUN": math.gcd(key_pool.shape[1], tile.tokens),
        "SPLIT": splits > 1,
        "ROWS": tile.rows,
        "TOKENS": tile.tokens,
        "PIECE": tile.piece,
    }
    assert list(constants) == list(attend_kernel.constants)
    arguments = Arguments(
        (*tensors, *placeholders, block_table, lengths, partial, extent), numbers, constants
    )
    attend = attend_kernel.bind(
        arguments, (programs * splits, 1), tile.warps, len(tensors), tile.stages
    )
    if splits == 1:
        return Plan(operands, attend)
    block = min(padded(value.dim), 128)
    constants = {
        "NUM_HEADS": num_heads,
        "VALUE_DIM": value.dim,
        "ROUND_BF16": bf16 and interpreted,
        "SPLITS": padded(splits),
        "BLOCK": block,
    }
    merge = merge_attend_kernel.bind(
        Arguments((output, partial, extent), (splits, *output.stride()), constants),
        (len(query) * num_heads, -(-value.dim // block)),
        4,
        1,
    )

    def launch(*own: torch.Tensor) -> None:
        attend(*own)
        merge(own[3])

    return Plan(operands, launch)


def _step(strides):
    return math.gcd(_MOST_STEP, *(each for each in strides if each != 1))


def _adjacent(strides):
    return strides[1] == 1 and strides[4] != 1
