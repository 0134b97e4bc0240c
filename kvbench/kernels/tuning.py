"""Tiles chosen by measurement: by Triton's own tuner, ahead of any timed call.

`triton.autotune` as a decorator would measure inside the first call, on the live tensors, with a
key that has to be made of a kernel's arguments; here that would be in a timed region or a graph's
capture, and a first case of one token would decide for all that follow. Its tuner is used all the
same, for what it does well: it compiles and times each tile with a cold L2 cache, leaves out those
that need more than the GPU has, and keeps the times on disk with the compiled kernels, under a key
of the kernel's source, the GPU's architecture and Triton's version. But it is called once for each
kind of row, from `prepare`, on tensors that are made for it.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import triton
from triton.runtime import driver

from kvbench.kernels.jit import Arguments, Kernel, as_bytes
from kvbench.kernels.tiles import Tile

_PROBE_BYTES = 16 << 20
"""Of K's rows: with V and both pools 64 MiB, so that a GPU is busy for much longer than a launch
takes."""
_MOST_PROBED = 1 << 14
_MILLISECONDS = {"warmup": 5, "rep": 25}
"""Of measuring one tile: a thousand launches."""


@dataclass(frozen=True, slots=True)
class Choice:
    """A tile that was chosen for a kind of row."""

    kernel: str
    rows: str
    """Which: heads, elements, dtypes."""
    tile: Tile
    milliseconds: Mapping[Tile, float]
    """Median time of each tile that was tried; infinity if it needs more than the GPU has."""


_choices: dict[tuple[Any, ...], Choice] = {}


def choices() -> tuple[Choice, ...]:
    """Every choice made in this process, whether measured in it or found on disk."""
    return tuple(_choices.values())


@dataclass(frozen=True, slots=True)
class Probe:
    """Tensors to measure with, like a case's own but for how many tokens there are."""

    rows: tuple[torch.Tensor, torch.Tensor]
    pools: tuple[torch.Tensor, torch.Tensor]
    scales: tuple[torch.Tensor, torch.Tensor] | tuple[()]
    slot_mapping: torch.Tensor

    @property
    def tokens(self) -> int:
        """Tokens that are moved."""
        return len(self.slot_mapping)

    @property
    def tensors(self) -> tuple[Any, ...]:
        """All of them, as a plan is made of them."""
        return self.rows, self.pools, self.scales, self.slot_mapping

    @classmethod
    def like(
        cls,
        rows: tuple[torch.Tensor, torch.Tensor],
        pools: tuple[torch.Tensor, torch.Tensor],
        scales: tuple[torch.Tensor, torch.Tensor] | tuple[()],
        slot_mapping: torch.Tensor,
        *,
        per_token: bool,
    ) -> "Probe":
        """Of the same dtypes and the same order in memory; blocks in random order."""
        row_bytes = max(each[:1].numel() * each.element_size() for each in rows)
        tokens = min(max(_PROBE_BYTES // row_bytes, 1), _MOST_PROBED)
        size = pools[0].shape[1]
        blocks = -(-tokens // size)
        at = torch.randperm(blocks, device=slot_mapping.device)[:, None] * size
        slots = (at + torch.arange(size, device=slot_mapping.device)).flatten()[:tokens]
        key, value = (_like(each, tokens) for each in rows)
        key_pool, value_pool = (_like(each, blocks) for each in pools)
        made = tuple(_like(each, blocks if per_token else 1).fill_(1.0) for each in scales)
        return cls((key, value), (key_pool, value_pool), made, slots.to(slot_mapping.dtype))  # type: ignore[arg-type]


def _like(tensor: torch.Tensor, first: int) -> torch.Tensor:
    """A dense tensor with another first dimension, its dimensions in the same order in memory."""
    order = _order(tensor)
    shape = (first, *tensor.shape[1:])
    dense = torch.empty([shape[dim] for dim in order], dtype=tensor.dtype, device=tensor.device)
    return dense.permute([order.index(dim) for dim in range(tensor.dim())])


Grid = Callable[[int, int], tuple[int, int]]
"""Programs along both axes, by a tile's tokens and its elements."""


def fastest(
    kernel: Kernel,
    tiles: Sequence[Tile],
    arguments: Arguments,
    probe: Callable[[], tuple[Arguments, Grid]],
    do_bench: Callable[..., list[float]] | None = None,
) -> Tile:
    """The tile that a kernel is fastest with: measured once for each kind of arguments.

    Args:
        kernel: The kernel.
        tiles: Those to choose from.
        arguments: What it will be called with, but for the tile.
        probe: Makes what it is measured with.
        do_bench: Measures a call, as triton.testing.do_bench, which it is unless given.
    """
    if len(tiles) == 1:
        return tiles[0]
    kind = _kind(kernel, arguments)
    if kind not in _choices:
        given, grid = probe()
        by_config = {
            triton.Config({"TOKENS": t.tokens, "BLOCK": t.block}, num_warps=t.warps): t
            for t in tiles
        }
        # Of integers those that tell one order in memory from another; the tuner adds dtypes.
        numbers = kernel.parameters[len(given.tensors) :][: len(given.numbers)]
        strides = [name for name in numbers if name.endswith(("head_stride", "dim_stride"))]
        bench = do_bench or driver.active.get_benchmarker()
        tuner = triton.autotune(
            list(by_config),
            key=[*strides, *given.constants],
            do_bench=functools.partial(bench, **_MILLISECONDS),
            cache_results=True,
        )(kernel.compiled)
        tuner.run(
            *map(as_bytes, given.tensors),
            *given.numbers,
            grid=lambda meta: grid(meta["TOKENS"], meta["BLOCK"]),
            warmup=False,
            **given.constants,
        )
        times = {by_config[config]: each[0] for config, each in tuner.configs_timings.items()}
        _choices[kind] = Choice(
            kernel.name, _describe(arguments), by_config[tuner.best_config], times
        )
    return _choices[kind].tile


def _kind(kernel: Kernel, arguments: Arguments) -> tuple[Any, ...]:
    """What arguments that share a tile have in common: no size that grows with the sequence."""
    tensors = arguments.tensors
    return (
        kernel.name,
        tensors[0].device,
        *arguments.constants.values(),
        *(tensor.dtype for tensor in tensors),
        *(tuple(_order(tensor)) for tensor in tensors),
    )


def _order(tensor: torch.Tensor) -> list[int]:
    """A tensor's dimensions, the outermost in memory first.

    Of two with the same stride the inner one has one entry, as the tokens of one head-major row.
    """
    places = zip(tensor.stride(), tensor.shape, range(0, -tensor.dim(), -1), strict=True)
    return [-dim for *_, dim in sorted(places, reverse=True)]


def _describe(arguments: Arguments) -> str:
    constants, (row, _, pool, *_) = arguments.constants, arguments.tensors
    dims = "+".join(str(constants[name]) for name in ("KEY_DIM", "VALUE_DIM"))
    dtypes = dict.fromkeys(str(each.dtype).removeprefix("torch.") for each in (row, pool))
    return f"{constants['NUM_HEADS']} heads x {dims} {' in '.join(dtypes)}"
