"""torch's flex_attention over paged K and V in place, compiled.

flex_attention takes K and V as one sequence of slots, and a mask made of tiles of them: lists of
the tiles that a row of queries sees, and a function that says which of their slots. Here the
sequence is the whole pool, and a tile a block, or a part of one: the lists name physical tiles,
and the function finds a slot's position by a table of where in its sequence each tile begins.

What it reads it reads as whole tiles, and multiplies what is masked by a weight of 0, which leaves
NaN what it is. So no tile may go past a context: see `tile_of`.

What a model fixes (heads, their size, dtypes, strides within a row) is fixed in the compiled code,
and so are the tile, the scale and the soft cap. Batch, contexts, windows and the pool's size are
not, except as `_Sizes` says.
"""

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from kvbench.kernels import compiled

_ONE_ROW = 128
"""Queries that have lists of tiles in common: flex_attention's own default. Code that was compiled
for one such row of queries serves one alone, and code for several serves several."""
_LEAST_TILE = 16
"""Slots that a tensor core's product takes at least."""
_MOST_TILE = 128
"""On a GPU, where a tile must be a multiple of what a program loads at a time."""
_HEAD_DIMS = (16, 256)
"""Least and most elements of a head on a GPU: of fewer there is no product, and of more a program
has no room, as it loads whole heads."""
_NOWHERE = 1 << 30
"""A position behind every context, and a window that no context fills."""


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """What a step's layers have in common. All tensors are int32, on the device.

    The tiles are numbered from the beginning of the pool. Lists of them are as long as there are
    tiles, as flex_attention wants them, and filled up with 0.
    """

    query_len: int
    tile: int
    """Slots."""
    stride: int
    """Slots from a block to the next: more than it has, if V lies between blocks of K."""
    partial: torch.Tensor
    """How many tiles are seen in part, [batch, 1, rows of queries]."""
    partial_tiles: torch.Tensor
    """Which, [batch, 1, rows of queries, tiles + 1]."""
    whole: torch.Tensor
    """How many are seen by every query of the row, all their slots: no mask is worked out."""
    whole_tiles: torch.Tensor
    begins: torch.Tensor
    """The position of each tile's first slot, [batch, tiles + 1], or one that nobody sees."""
    firsts: torch.Tensor
    """The position of each sequence's first query, [batch]; negative if its context is shorter."""
    window: torch.Tensor
    """Positions that a query sees: a number."""

    def tensors(self) -> tuple[torch.Tensor, ...]:
        """In the order in which the compiled function takes them."""
        return (
            self.partial,
            self.partial_tiles,
            self.whole,
            self.whole_tiles,
            self.begins,
            self.firsts,
            self.window,
        )


def tile_of(block_size: int, contexts: Sequence[int], device: torch.device) -> int:
    """The most slots a tile may have so that blocks and contexts are made of whole ones."""
    tile = math.gcd(block_size, *contexts)
    # On a GPU a power of two, as what a program loads is.
    return tile if device.type == "cpu" else min(tile & -tile, _MOST_TILE)


def block_stride(pool: torch.Tensor) -> int:
    """Slots from a block to the next in a pool [num_blocks, block_size, ...].

    Raises:
        ValueError: The blocks don't lie one after the other on the axis of their slots.
    """
    slots, rest = divmod(pool.stride(0), pool.stride(1))
    if rest or slots % pool.shape[1]:
        raise ValueError(
            f"pool of strides {pool.stride()}: expected blocks of {pool.shape[1]} slots, "
            "or gaps as large, one after the other"
        )
    return slots


def unsupported(device: torch.device) -> str | None:
    """None if flex_attention can be compiled for this device, else what is missing."""
    if device.type == "cpu" and not torch.cpu._is_avx2_supported():  # noqa: SLF001 - no other way
        return "flex_attention: this CPU has no AVX2"
    return compiled.unsupported(device)


def no_tiles(
    block_size: int, contexts: Sequence[int], dtype: torch.dtype, device: torch.device
) -> str | None:
    """None if there is a tile for such contexts and K and V of such a dtype, else why not."""
    tile = tile_of(block_size, contexts, device)
    if tile < min(block_size, _LEAST_TILE):
        return (
            "a context ends within a block: flex_attention multiplies the unused slots behind it "
            f"by 0, which leaves NaN what it is, unless tiles of {tile} slots are read"
        )
    if device.type != "cpu" and tile < _LEAST_TILE:
        return f"blocks of {block_size} slots: flex_attention's tiles have {_LEAST_TILE} or more"
    if tile % 2 and dtype.itemsize == 2 and _packs_pairs(device):
        return f"tiles of {tile} slots: with AMX, flex_attention mixes up V of odd ones"
    return None


def _packs_pairs(device: torch.device) -> bool:
    """Whether K and V of 16 bits are packed in pairs of slots, all of the pool in every call."""
    return device.type == "cpu" and bool(torch.cpu._is_amx_tile_supported())  # noqa: SLF001


def no_heads(dims: Sequence[int], device: torch.device) -> str | None:
    """None if heads of K and V may have so many elements, else why not."""
    least, most = _HEAD_DIMS
    if device.type != "cpu" and not least <= min(dims) <= max(dims) <= most:
        return f"heads of {max(dims)} elements: flex_attention on a GPU takes {least} to {most}"
    return None


def plan(
    block_tables: torch.Tensor,
    lengths: torch.Tensor,
    *,
    block_size: int,
    tile: int,
    stride: int,
    num_blocks: int,
    query_len: int,
    group: int,
    window: int,
) -> Plan:
    """Find the tiles that queries see. Nothing on the device is waited for.

    Those that a row of queries sees lie in one stretch of the sequence, and those that all its
    queries see whole in one within.

    Args:
        block_tables: [batch, entries], integers; what no query sees is never looked up, and may be
            negative.
        lengths: Tokens of each context, [batch], integers.
        block_size: Slots of a block.
        tile: Slots of a tile: a divisor of block_size and of `stride`.
        stride: Slots from a block to the next: see `block_stride`.
        num_blocks: Blocks of the pool.
        query_len: Queries of each sequence, the last of its context.
        group: Query heads that share a head of K and V.
        window: Positions that a query sees; 0 is all.
    """
    device, batch = block_tables.device, len(block_tables)
    integers: dict[str, Any] = {"dtype": torch.int32, "device": device}
    width = num_blocks * (stride // tile) + 1
    within = torch.arange(block_size // tile, **integers)
    blocks = block_tables.to(torch.int32).unsqueeze(2)
    tiles = torch.where(blocks < 0, -1, blocks * (stride // tile) + within).flatten(1)
    count = tiles.shape[1]

    begins = torch.full((batch, width), _NOWHERE, **integers)
    positions = torch.arange(0, count * tile, tile, **integers)
    # What has no block goes to a tile behind the pool's last.
    begins.scatter_(
        1, torch.where(tiles < 0, width - 1, tiles).long(), positions.expand(batch, count)
    )

    seen_by_one = window or _NOWHERE
    firsts = lengths.to(torch.int32) - query_len
    if query_len > 1:
        row = torch.arange(0, query_len, _ONE_ROW, **integers)
    else:  # the heads of a group, all of them in one place
        row = torch.zeros(-(-group // _ONE_ROW), **integers)
    lowest = firsts.unsqueeze(1) + row  # [batch, rows of queries]
    highest = torch.minimum(lowest + (_ONE_ROW - 1), firsts.unsqueeze(1) + (query_len - 1))

    begin = (lowest - (seen_by_one - 1)).clamp_min(0) // tile
    end = torch.maximum(torch.div(highest, tile, rounding_mode="floor") + 1, begin)
    whole_begin = ((highest - (seen_by_one - 1)).clamp_min(0) + (tile - 1)) // tile
    whole_begin = torch.minimum(whole_begin, end).clamp_min(begin)
    whole_end = torch.div(lowest + 1, tile, rounding_mode="floor")
    whole_end = torch.maximum(torch.minimum(whole_end, end), whole_begin)

    each = torch.arange(min(count, width), **integers)
    before = (whole_begin - begin).unsqueeze(2)
    partial = before.squeeze(2) + (end - whole_end)
    of_partial = begin.unsqueeze(2) + each
    of_partial += torch.where(each < before, 0, (whole_end - whole_begin).unsqueeze(2))
    whole = whole_end - whole_begin
    of_whole = whole_begin.unsqueeze(2) + each

    def listed(entries: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        lists = torch.zeros((batch, 1, counts.shape[1], width), **integers)
        if count:
            found = tiles.gather(1, entries.clamp_max(count - 1).flatten(1).long())
            shown = each < counts.unsqueeze(2)
            lists[:, 0, :, : len(each)] = torch.where(shown, found.view_as(entries), 0)
        return lists

    return Plan(
        query_len,
        tile,
        stride,
        partial.unsqueeze(1),
        listed(of_partial, partial),
        whole.unsqueeze(1),
        listed(of_whole, whole),
        begins,
        firsts,
        torch.tensor(seen_by_one, **integers),
    )


class _Sizes(NamedTuple):
    """Sizes that code is compiled with, which serves all of their kind."""

    batch: int
    query_len: int
    rows: int
    """Of queries: see `_ONE_ROW`."""
    slots: int
    batch_changes: bool
    queries_change: bool


_MANY_SEQUENCES, _FEW_QUERIES, _MANY_QUERIES, _TILES = 3, 5, _ONE_ROW + 3, 10
"""No two alike, since PyTorch would take those for one, nor 1, which it takes for fixed, nor 2, the
rows of many queries."""

_ready: set[tuple[Any, ...]] = set()


def ready(
    planned: Plan,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    scale: float,
    soft_cap: float = 0,
) -> None:
    """Compile what `attend` needs for such tensors, unless it is there; they are left alone.

    Raises:
        TypeError: Fake tensors, which predict launches: what Inductor makes of a graph is not known
            from its ops, and a graph that was refused once is never compiled.
        RuntimeError: It can't be compiled as one graph. There is no falling back.
    """
    if any(hasattr(tensor, "fake_mode") for tensor in (query, key, value)):
        raise TypeError("torch.compile: what Inductor makes of a graph is not known from its ops")
    operands = _operands(planned, query, key, value)
    function = _function(planned, operands[0], scale, soft_cap)
    sizes = _sizes(planned, *operands[:2])
    rows, keys, values = operands
    # Of many queries the stride from a sequence to the next is theirs, and no more fixed than they.
    strides = rows.stride()[min(planned.query_len, 2) - 1 :]
    heads = *query.shape[1:], keys.shape[1], values.shape[3]
    operand = heads, strides, keys.stride(), values.stride(), query.dtype, query.device
    kind = function, sizes, *operand
    if kind not in _ready:
        with compiled.quiet():
            function(*_stand_ins(planned, sizes, query, *operands[1:]))
        _ready.add(kind)


def attend(
    planned: Plan,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    scale: float,
    soft_cap: float = 0,
) -> torch.Tensor:
    """Attention of a batch, [tokens, num_heads, value_dim], contiguous.

    Args:
        planned: What `plan` found.
        query: [tokens, num_heads, key_dim], sequence after sequence. It is copied first if its
            heads lie outermost.
        key: K of every block, [num_blocks, block_size, num_kv_heads, key_dim], of the query's
            dtype; its blocks lie `planned.stride` slots apart.
        value: V, [num_blocks, block_size, num_kv_heads, value_dim], likewise.
        scale: What a dot product is multiplied by.
        soft_cap: c of c * tanh(score / c), or 0.
    """
    shape = len(query), query.shape[1], value.shape[3]
    if not len(query) or not len(key):
        return query.new_zeros(shape)  # no kernel is made for nothing
    operands = _operands(planned, query, key, value)
    function = _function(planned, operands[0], scale, soft_cap)
    output: torch.Tensor = function(*operands, *planned.tensors())
    if planned.query_len > 1:
        output = output.transpose(1, 2)
    return output.reshape(shape).contiguous()


def _operands(
    planned: Plan, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """As flex_attention takes them, views: see `_rows` and `_slots`."""
    rows = _rows(query, len(planned.firsts), planned.query_len, key.shape[2])
    return rows, _slots(key, planned.stride), _slots(value, planned.stride)


def _rows(query: torch.Tensor, batch: int, query_len: int, kv_heads: int) -> torch.Tensor:
    """Queries [batch, num_heads, query_len, dim]; in decode [batch, num_kv_heads, group, dim].

    So in decode the heads that share one of K and V are its queries, and read it once.
    """
    if _heads_outermost(query):
        query = query.contiguous()
    if query_len == 1:
        return query.view(batch, kv_heads, -1, query.shape[2])
    return query.view(batch, query_len, *query.shape[1:]).transpose(1, 2)


def _heads_outermost(query: torch.Tensor) -> bool:
    return query.stride(0) < query.stride(1)


def _slots(pool: torch.Tensor, stride: int) -> torch.Tensor:
    """A pool as one sequence, [1, num_kv_heads, slots, dim], with what lies between its blocks."""
    slots = (len(pool) - 1) * stride + pool.shape[1]
    _, of_slot, of_head, of_element = pool.stride()
    return pool.as_strided(
        (1, pool.shape[2], slots, pool.shape[3]), (of_head, of_head, of_slot, of_element)
    )


def _sizes(planned: Plan, rows: torch.Tensor, keys: torch.Tensor) -> _Sizes:
    batch, query_len = len(planned.firsts), planned.query_len
    # On a GPU decode has a kernel of its own, which shares out a fixed batch.
    batch_changes = batch > 1 and (rows.device.type == "cpu" or query_len > 1)
    queries_change = query_len not in {1, _ONE_ROW}
    if queries_change:
        query_len = _FEW_QUERIES if query_len < _ONE_ROW else _MANY_QUERIES
    return _Sizes(
        batch=_MANY_SEQUENCES if batch_changes else batch,
        query_len=query_len,
        rows=-(-query_len // _ONE_ROW) if queries_change else planned.partial.shape[2],
        slots=_TILES * planned.tile if keys.shape[2] > 1 else 1,
        batch_changes=batch_changes,
        queries_change=queries_change,
    )


def _stand_ins(
    planned: Plan, sizes: _Sizes, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
) -> list[torch.Tensor]:
    """Operands of other sizes, those that change marked as such: queries that see nothing."""
    import torch._dynamo as dynamo  # noqa: PLC0415 - slow to import

    def like(tensor: torch.Tensor, *shape: int) -> torch.Tensor:
        return torch.empty_strided(
            shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device
        ).zero_()

    batch, query_len = sizes.batch, sizes.query_len
    if _heads_outermost(query):
        query = query.contiguous()
    query = like(query, batch * query_len, *query.shape[1:])
    rows = _rows(query, batch, query_len, keys.shape[1])
    counts = planned.partial.new_zeros((batch, 1, sizes.rows))
    lists = planned.partial.new_zeros((batch, 1, sizes.rows, _TILES + 1))
    made = [
        rows,
        like(keys, 1, keys.shape[1], sizes.slots, keys.shape[3]),
        like(values, 1, values.shape[1], sizes.slots, values.shape[3]),
        *(counts, lists, counts.clone(), lists.clone()),
        planned.begins.new_zeros((batch, _TILES + 1)),
        planned.firsts.new_zeros(batch),
        planned.window.clone(),
    ]
    batches = (0,) if sizes.batch_changes else ()
    per_row = (*batches, 2) if sizes.queries_change else batches
    of_lists = (*per_row, 3)
    changing = (
        *(per_row, (2,), (2,)),
        *(per_row, of_lists, per_row, of_lists),
        *((*batches, 1), batches, ()),
    )
    for tensor, dims in zip(made, changing, strict=True):
        for dim in dims:
            if tensor.shape[dim] > 1:
                dynamo.mark_dynamic(tensor, dim)
    return made


def _function(
    planned: Plan, rows: torch.Tensor, scale: float, soft_cap: float
) -> Callable[..., torch.Tensor]:
    on_cpu = rows.device.type == "cpu"
    options: tuple[tuple[str, Any], ...] = ()
    if not on_cpu:
        most = 32 if rows.dtype is torch.float32 else 64  # slots that a program loads at a time
        # The kernel for few queries shares out their number times that of a group's heads, which
        # has to be fixed and a power of two: it is left to decode, where groups are queries.
        apart = planned.query_len > 1
        options = (("BLOCK_N", min(planned.tile, most)), ("FORCE_USE_FLEX_ATTENTION", apart))
    threads = torch.get_num_threads() if on_cpu else 0
    return _compile(planned.tile, planned.query_len > 1, scale, soft_cap, options, threads)


@functools.cache
def _compile(
    tile: int,
    apart: bool,  # noqa: FBT001 - whether queries stand one after the other, or all in one place
    scale: float,
    soft_cap: float,
    options: tuple[tuple[str, Any], ...],
    threads: int,
) -> Callable[..., torch.Tensor]:
    """The compiled function; what it finds here is fixed in its code."""
    from torch.nn.attention.flex_attention import (  # noqa: PLC0415 - slow to import
        BlockMask,
        flex_attention,
    )

    compiled.configure()
    kernel_options: Any = dict(options) or None

    def cap(score: torch.Tensor, *_: torch.Tensor) -> torch.Tensor:
        return soft_cap * torch.tanh(score / soft_cap)

    def over_tiles(
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        partial: torch.Tensor,
        partial_tiles: torch.Tensor,
        whole: torch.Tensor,
        whole_tiles: torch.Tensor,
        begins: torch.Tensor,
        firsts: torch.Tensor,
        window: torch.Tensor,
    ) -> torch.Tensor:
        def sees(
            sequence: torch.Tensor, _head: torch.Tensor, row: torch.Tensor, slot: torch.Tensor
        ) -> torch.Tensor:
            position = begins[sequence, slot // tile] + slot % tile
            own = firsts[sequence] + row if apart else firsts[sequence]
            return (position <= own) & (position > own - window)

        mask = BlockMask(
            (query.size(2), key.size(2)),
            partial,
            partial_tiles,
            whole,
            whole_tiles,
            # What follows serves gradients.
            *(None, None, None, None),
            BLOCK_SIZE=(_ONE_ROW, tile),
            mask_mod=sees,
        )
        return flex_attention(
            query,
            key,
            value,
            score_mod=cap if soft_cap else None,
            block_mask=mask,
            scale=scale,
            enable_gqa=query.size(1) != key.size(1),
            kernel_options=kernel_options,
        )

    # The threads of a CPU are fixed in the code, so they are part of what it is kept under.
    settings: dict[str, Any] = {"cpp.threads": threads} if threads else {}
    return torch.compile(over_tiles, fullgraph=True, dynamic=False, options=settings)
