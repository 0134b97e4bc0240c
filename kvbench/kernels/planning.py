"""Plans of Triton's launches: operands checked, strides, tile, kernel compiled."""

import functools

import torch

from kvbench.kernels import tuning
from kvbench.kernels.codes import MANTISSA_BITS
from kvbench.kernels.jit import Arguments, Kernel, is_interpreted
from kvbench.kernels.plan import Operand, Plan
from kvbench.kernels.recording import pretended
from kvbench.kernels.rows import (
    LARGEST,
    Slots,
    check_operands,
    check_scales,
    joined,
    piece_width,
    scale_kind,
    scale_strides,
    stride_step,
)
from kvbench.kernels.tiles import default_tile, tiles

Pair = tuple[torch.Tensor, torch.Tensor]


def plan(
    kernel: Kernel,
    rows: Pair,
    pools: Pair,
    scales: Pair | tuple[()],
    slot_mapping: torch.Tensor,
    *,
    per_token: bool = False,
    whole_row: bool = False,
    tuned: bool = False,
) -> Plan:
    """Plan the launch of a kernel of this package.

    Args:
        kernel: Its parameters are those of `_arguments`, in that order.
        rows: key and value.
        pools: key_pool and value_pool.
        scales: key_scale and value_scale; none of a plain pool.
        slot_mapping: int32 or int64 [tokens].
        per_token: Whether each slot has a scale of its own.
        whole_row: Whether a program must see all of a token's row.
        tuned: Whether the tile is chosen by measurement, where the kernel is compiled.

    Raises:
        ValueError: Shapes or dtypes don't go together.
    """
    key, value = map(joined, rows)
    check_operands(key, value, *pools, slot_mapping, quantised=bool(scales))
    if scales:
        check_scales(
            pools[0],
            dict(zip(("key_scale", "value_scale"), scales, strict=True)),
            per_token=per_token,
        )
    names = ("key", "value", "key_pool", "value_pool", "key_scale", "value_scale")
    operands = tuple(map(Operand.of, names, (*rows, *pools, *scales)))
    arguments = _arguments(kernel, rows, pools, scales, slot_mapping, per_token=per_token)
    heads, *_ = rows[0].shape[1:]
    row = heads * max(arguments.constants[name] for name in ("KEY_DIM", "VALUE_DIM"))
    itemsize = rows[0].element_size()

    def grid(tokens: int, per_program: int, block: int) -> tuple[int, int]:
        return -(-tokens // per_program), 1 if whole_row else -(-row // block)

    tile = default_tile(row, itemsize, whole_row=whole_row)
    tokens = len(slot_mapping)
    if tokens == 0:
        return Plan(operands, lambda *_: None, tile)
    if tuned and pretended(kernel.name) is None and not is_interpreted(slot_mapping.device):

        def probe() -> tuple[Arguments, tuning.Grid]:
            made = tuning.Probe.like(rows, pools, scales, slot_mapping, per_token=per_token)
            given = _arguments(kernel, *made.tensors, per_token=per_token)
            return given, functools.partial(grid, made.tokens)

        tile = tuning.fastest(kernel, tiles(row, itemsize, whole_row=whole_row), arguments, probe)
    constants = {**arguments.constants, "TOKENS": tile.tokens, "BLOCK": tile.block}
    complete = Arguments(arguments.tensors, arguments.numbers, constants)
    programs = grid(tokens, tile.tokens, tile.block)
    launch = kernel.bind(complete, programs, tile.warps, len(operands))
    return Plan(operands, launch, tile)


def _arguments(
    kernel: Kernel,
    rows: Pair,
    pools: Pair,
    scales: Pair | tuple[()],
    slot_mapping: torch.Tensor,
    *,
    per_token: bool,
) -> Arguments:
    """What a kernel is called with, but for the tile."""
    slots = [Slots.of(pool) for pool in pools]
    flat = [joined(each) for each in rows]
    numbers = [len(slot_mapping), pools[0].shape[1], slot_mapping.stride(0)]
    for strides in (
        *(each.stride() for each in flat),
        *(each.strides for each in slots),
        *(scale_strides(each, per_token=per_token) for each in scales),
    ):
        numbers += strides
    known = {
        "NUM_HEADS": flat[0].shape[1],
        **{f"{name}_DIM": each.dim for name, each in zip(_NAMES, slots, strict=True)},
        **{f"{name}_PACK": each.pack for name, each in zip(_NAMES, slots, strict=True)},
        **{f"{name}_WIDTH": piece_width(each) for name, each in zip(_NAMES, slots, strict=True)},
        "KEY_STEP": stride_step(flat[0], piece_width(slots[0])),
        "VALUE_STEP": stride_step(flat[1], piece_width(slots[1])),
        "KEY_POOL_STEP": stride_step(pools[0], piece_width(slots[0])),
        "VALUE_POOL_STEP": stride_step(pools[1], piece_width(slots[1])),
        # Constant over any sweep: it takes a pool of 2**31 slots to change it.
        "NARROW": pools[0].shape[0] * pools[0].shape[1] <= _MOST_NARROW,
        "LARGEST": LARGEST.get(pools[0].dtype),
        "CODE": MANTISSA_BITS.get(pools[0].dtype),
        "SCALE": scale_kind(scales, per_token=per_token),
        # A GPU's own conversion rounds.
        "ROUND_BF16": rows[0].dtype is torch.bfloat16 and is_interpreted(rows[0].device),
    }
    constants = {name: known[name] for name in kernel.constants if name in known}
    return Arguments((*rows, *pools, *scales, slot_mapping), tuple(numbers), constants)


_NAMES = ("KEY", "VALUE")
_MOST_NARROW = 2**31 - 1
