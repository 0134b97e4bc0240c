"""What a launch needs, worked out once a step: operands checked, strides, tile, kernel compiled.

A plan is made of the tensors of one layer and then serves every layer, whose tensors are others of
the same kind.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass

import torch

from kvbench.kernels import tuning
from kvbench.kernels.codes import MANTISSA_BITS
from kvbench.kernels.jit import Arguments, Kernel, is_interpreted
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
from kvbench.kernels.tiles import Tile, default_tile, tiles

Pair = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True, slots=True)
class Operand:
    """What a tensor is like that a plan was made with."""

    name: str
    shape: torch.Size
    strides: tuple[int, ...]
    dtype: torch.dtype

    @classmethod
    def of(cls, name: str, tensor: torch.Tensor) -> "Operand":
        """Of a tensor."""
        return cls(name, tensor.shape, tensor.stride(), tensor.dtype)


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """One launch, but for a layer's own tensors."""

    operands: tuple[Operand, ...]
    """key, value, key_pool, value_pool, and key_scale, value_scale where pools are quantised."""
    tile: Tile
    launch: Callable[..., None]

    def run(self, *tensors: torch.Tensor) -> None:
        """Launch the kernel on a layer's tensors.

        Args:
            tensors: As `operands`: of the shapes, strides and dtypes that the plan was made with.

        Raises:
            ValueError: One is unlike the one that the plan was made with.
        """
        for operand, tensor in zip(self.operands, tensors, strict=True):
            if (
                tensor.stride() != operand.strides
                or tensor.shape != operand.shape
                or tensor.dtype is not operand.dtype
            ):
                now = Operand.of(operand.name, tensor)
                raise ValueError(f"{now}; expected one as the plan was made with, {operand}")
        self.launch(*tensors)


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
        return Plan(operands, tile, lambda *_: None)
    if tuned and pretended(kernel.name) is None and not is_interpreted(slot_mapping.device):

        def probe() -> tuple[Arguments, tuning.Grid]:
            made = tuning.Probe.like(rows, pools, scales, slot_mapping, per_token=per_token)
            given = _arguments(kernel, *made.tensors, per_token=per_token)
            return given, functools.partial(grid, made.tokens)

        tile = tuning.fastest(kernel, tiles(row, itemsize, whole_row=whole_row), arguments, probe)
    constants = {**arguments.constants, "TOKENS": tile.tokens, "BLOCK": tile.block}
    complete = Arguments(arguments.tensors, arguments.numbers, constants)
    programs = grid(tokens, tile.tokens, tile.block)
    return Plan(operands, tile, kernel.bind(complete, programs, tile.warps, len(operands)))


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
