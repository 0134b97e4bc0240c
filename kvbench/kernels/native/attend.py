"""Attention over a paged pool by the C++ kernel, on a CPU: K and V are read where they lie.

A plan is made once a step: it has checked shapes, dealt out the work, and holds what the layers
share. A call then takes a layer's tensors, and from them addresses alone.
"""

import ctypes

import numpy as np
import numpy.typing as npt
import torch

from kvbench.kernels.native.library import attention
from kvbench.kernels.native.structures import (
    CODE_FORMATS,
    ROW_FORMATS,
    SCALE_BYTES,
    check_memory,
    integers,
)
from kvbench.kernels.rows import Slots, check_scales, scale_strides

WORK_PER_THREAD = 1 << 18
"""Multiplications for which another thread pays: starting a team takes some microseconds."""
CHUNK_TOKENS = 32
"""Tokens of a chunk, up to 64: what a thread keeps of a head changes once for so many."""
TILE_ROWS = 64
"""Query heads of several tokens, but of one KV head, that K and V are read for at once."""
STATE_FLOATS = 1 << 15
"""What a thread keeps of the heads that it works on at once: a second-level cache has room for it,
and for the next chunk."""

_ITEM_FIELDS = ("sequence", "query", "queries", "head", "heads", "first", "last", "chunk")
_ITEM = np.dtype([(name, np.int64) for name in _ITEM_FIELDS])
_LINE = 64


class _Side(ctypes.Structure):
    """As Side in attend.cpp."""

    _fields_ = integers(
        "packs pack block slot head pack_stride element scale_block scale_slot scale_head"
    )


class _Plan(ctypes.Structure):
    """As Plan in attend.cpp."""

    _fields_ = (
        ("key", _Side),
        ("value", _Side),
        ("blocks", ctypes.c_void_p),
        *integers("block_bytes block_sequence block_entry num_blocks block_size"),
        ("lengths", ctypes.c_void_p),
        ("items", ctypes.c_void_p),
        *integers("num_items chunks chunk_tokens"),
        *integers("query_token query_head query_len query_heads group window latent"),
        *integers("row_format code_format threads"),
        ("scale", ctypes.c_float),
        ("soft_cap", ctypes.c_float),
        ("memory", ctypes.c_void_p),
        *integers("share_bytes state_bytes query_floats rows"),
    )


class Plan:
    """What the layers of a step share, ready to be run for each; by one thread at a time.

    Args:
        query: [sequences * query_len, num_heads, key_dim], sequence after sequence, with any
            strides but of the last dimension, which is contiguous. Of it and of the other tensors,
            apart from tables and lengths, only shapes, strides and dtypes are looked at.
        key_pool: [num_blocks, block_size, num_kv_heads, key_dim], or x-packed
            [..., key_dim / x, x], any strides; of query's dtype, or codes.
        value_pool: As key_pool, of value's dim. If latent it has the last part of each row of K,
            of which key_pool has the first; V is that first part.
        block_table: int32 or int64 [sequences, entries], any strides, on the CPU: physical blocks.
            Entries of blocks that no query sees are not looked at.
        lengths: int64 [sequences], contiguous, on the CPU: tokens of each context, of which the
            last query_len are the queries' own.
        query_len: Tokens of each sequence that there are queries for.
        scale: Of the scores, before soft_cap.
        sliding_window: Tokens that each query sees, its own being the last; 0: all.
        soft_cap: Scores s become soft_cap * tanh(s / soft_cap); 0: they don't.
        key_scale: Of a quantised pool, as in `gather_quantised_kv`.
        value_scale: As key_scale.
        per_token: Whether each slot has a scale of its own.
        latent: Whether a row of K is one of each pool.
        threads: As many at most; those of PyTorch by default. A small call takes fewer.

    Raises:
        ValueError: Shapes or dtypes don't go together, or a context is longer than its table.
        BuildError: There is no library.
    """

    __slots__ = (
        "_address", "_attend", "_blocks", "_items", "_lengths", "_memory", "_output", "_plan",
    )  # fmt: skip

    def __init__(
        self,
        query: torch.Tensor,
        key_pool: torch.Tensor,
        value_pool: torch.Tensor,
        block_table: torch.Tensor,
        lengths: torch.Tensor,
        *,
        query_len: int,
        scale: float,
        sliding_window: int = 0,
        soft_cap: float = 0.0,
        key_scale: torch.Tensor | None = None,
        value_scale: torch.Tensor | None = None,
        per_token: bool = False,
        latent: bool = False,
        threads: int | None = None,
    ) -> None:
        check_memory(query, key_pool, value_pool, block_table, lengths)
        quantised = key_scale is not None and value_scale is not None
        if key_scale is not None and value_scale is not None:
            check_memory(key_scale, value_scale)
            scales = {"key_scale": key_scale, "value_scale": value_scale}
            check_scales(key_pool, scales, per_token=per_token)
        slots = Slots.of(key_pool), Slots.of(value_pool)
        key_dim, value_dim = slots[0].dim, slots[1].dim
        if latent:
            key_dim, value_dim = key_dim + value_dim, key_dim
        _check(query, key_pool, value_pool, quantised=quantised, key_dim=key_dim)
        _check_tables(query, block_table, lengths, query_len, key_pool.shape[1])
        num_heads, num_kv_heads = query.shape[1], key_pool.shape[2]
        group = num_heads // num_kv_heads
        queries = max(1, min(query_len, TILE_ROWS // group))
        head_floats = queries * group * (key_dim + value_dim)
        heads = max(1, min(num_kv_heads, STATE_FLOATS // head_floats))
        self._items = _items(
            lengths.numpy(), query_len, queries, num_kv_heads, heads, sliding_window
        )
        chunks, work = _deal_out(self._items)
        most_threads = torch.get_num_threads() if threads is None else threads
        work *= group * (key_dim + value_dim)
        element = query.element_size()
        found = attention()
        self._attend = found.attend
        self._blocks, self._lengths = block_table, lengths  # whose memory the plan points into
        self._output = (len(query), num_heads, value_dim)
        self._plan = _Plan(
            key=_side(key_pool, slots[0], key_scale, per_token=per_token),
            value=_side(value_pool, slots[1], value_scale, per_token=per_token),
            blocks=block_table.data_ptr(),
            block_bytes=block_table.element_size(),
            block_sequence=block_table.stride(0) * block_table.element_size(),
            block_entry=block_table.stride(1) * block_table.element_size(),
            num_blocks=key_pool.shape[0],
            block_size=key_pool.shape[1],
            lengths=lengths.data_ptr(),
            items=self._items.ctypes.data,
            num_items=len(self._items),
            chunks=chunks,
            chunk_tokens=CHUNK_TOKENS,
            query_token=query.stride(0) * element,
            query_head=query.stride(1) * element,
            query_len=query_len,
            query_heads=num_heads,
            group=group,
            window=sliding_window,
            latent=latent,
            row_format=ROW_FORMATS[query.dtype],
            code_format=CODE_FORMATS[key_pool.dtype] if quantised else -1,
            threads=max(1, min(most_threads, work // WORK_PER_THREAD, chunks)),
            scale=scale,
            soft_cap=soft_cap,
        )
        self._address = ctypes.addressof(self._plan)
        share_bytes = found.plan(self._address)
        self._memory = np.empty(self._plan.threads * share_bytes + _LINE, dtype=np.uint8)
        start = self._memory.ctypes.data
        self._plan.memory = start + -start % _LINE

    @property
    def threads(self) -> int:
        """Threads that a call takes."""
        return int(self._plan.threads)

    def run(
        self,
        query: torch.Tensor,
        key_pool: torch.Tensor,
        value_pool: torch.Tensor,
        key_scale: torch.Tensor | None = None,
        value_scale: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """A layer's attention.

        Args:
            query: Of the shape, strides and dtype that were planned for, on the CPU: only its
                address is looked at. So it is with the others. Nothing is mutated.
            key_pool: As query.
            value_pool: As query.
            key_scale: Of a plan that has scales.
            value_scale: As key_scale.

        Returns:
            [sequences * query_len, num_heads, value_dim] of query's dtype, contiguous. A query that
            sees nothing has zeros.

        Raises:
            IndexError: A sequence sees a block that the pool doesn't have.
        """
        output = torch.empty(self._output, dtype=query.dtype)
        if self._plan.num_items == 0:
            return output
        astray = self._attend(
            self._address,
            query.data_ptr(),
            key_pool.data_ptr(),
            value_pool.data_ptr(),
            None if key_scale is None else key_scale.data_ptr(),
            None if value_scale is None else value_scale.data_ptr(),
            output.data_ptr(),
        )
        if astray >= 0:
            raise IndexError(
                f"sequence {astray} sees a block that is not in the pool; "
                f"expected blocks from 0 up to {self._plan.num_blocks}"
            )
        return output


def _side(
    pool: torch.Tensor, slots: Slots, scale: torch.Tensor | None, *, per_token: bool
) -> _Side:
    scale_of = (0, 0, 0) if scale is None else scale_strides(scale, per_token=per_token)
    size = pool.element_size()
    return _Side(
        slots.dim // slots.pack,
        slots.pack,
        *(stride * size for stride in slots.strides),
        *(stride * SCALE_BYTES for stride in scale_of),
    )


def _items(
    lengths: npt.NDArray[np.int64],
    query_len: int,
    queries: int,
    num_kv_heads: int,
    heads: int,
    window: int,
) -> npt.NDArray[np.void]:
    """The work in pieces, in the order of memory: by sequence, then heads, then tokens."""
    first_queries = np.arange(0, query_len, queries)
    first_heads = np.arange(0, num_kv_heads, heads)
    items = np.empty((len(lengths), len(first_heads), len(first_queries)), dtype=_ITEM)
    items["sequence"] = np.arange(len(lengths))[:, None, None]
    items["query"] = first_queries
    items["queries"] = np.minimum(query_len - first_queries, queries)
    items["head"] = first_heads[:, None]
    items["heads"] = np.minimum(num_kv_heads - first_heads, heads)[:, None]
    positions = (lengths - query_len)[:, None, None] + items["query"]
    items["last"] = np.maximum(positions + items["queries"], 0)
    # Tokens that stand before the context see nothing; the first that does is at 0 or past it.
    first = np.maximum(positions, 0) - window + 1
    items["first"] = np.clip(first, 0, items["last"]) if window else 0
    return items.ravel()


def _deal_out(items: npt.NDArray[np.void]) -> tuple[int, int]:
    """Number the chunks of items; one that sees nothing has one that is empty.

    Returns:
        The chunks of all, and the rows of K that all take, one for each query.
    """
    seen = items["last"] - items["first"]
    chunks = np.maximum(-(-seen // CHUNK_TOKENS), 1)
    ends = np.cumsum(chunks)
    items["chunk"] = ends - chunks
    return int(chunks.sum()), int((seen * items["heads"] * items["queries"]).sum())


def _check(
    query: torch.Tensor,
    key_pool: torch.Tensor,
    value_pool: torch.Tensor,
    *,
    quantised: bool,
    key_dim: int,
) -> None:
    """Refuse what the kernel has no code for, or would read out of bounds."""
    if query.dtype not in ROW_FORMATS:
        formats = ", ".join(map(str, ROW_FORMATS))
        raise ValueError(f"query's dtype is {query.dtype}; expected one of {formats}")
    pool_dtype = value_pool.dtype if quantised else query.dtype
    for name, actual, expected in (
        ("value_pool's slots and heads", tuple(value_pool.shape[:3]), tuple(key_pool.shape[:3])),
        ("key_pool's dtype", key_pool.dtype, pool_dtype),
        ("value_pool's dtype", value_pool.dtype, pool_dtype),
        ("query's dim", query.shape[2], key_dim),
        ("query's last stride", query.stride(2) if query.shape[2] > 1 else 1, 1),
    ):
        if actual != expected:
            raise ValueError(f"{name} is {actual}; expected {expected}")
    if query.shape[1] % key_pool.shape[2]:
        raise ValueError(
            f"query has {query.shape[1]} heads; expected a multiple of {key_pool.shape[2]}"
        )


def _check_tables(
    query: torch.Tensor,
    block_table: torch.Tensor,
    lengths: torch.Tensor,
    query_len: int,
    block_size: int,
) -> None:
    """Refuse tables that don't go with the queries, or would be read out of bounds."""
    if block_table.dtype not in {torch.int32, torch.int64}:
        raise ValueError(
            f"block_table's dtype is {block_table.dtype}; expected torch.int32 or torch.int64"
        )
    sequences = len(lengths)
    for name, actual, expected in (
        ("lengths' dtype", lengths.dtype, torch.int64),
        ("whether lengths are contiguous", lengths.is_contiguous(), True),
        ("block_table's sequences", len(block_table), sequences),
        ("query's tokens", len(query), sequences * query_len),
    ):
        if actual != expected:
            raise ValueError(f"{name} is {actual}; expected {expected}")
    most = int(lengths.numpy().max(initial=0))
    if most > block_table.shape[1] * block_size:
        raise ValueError(
            f"a context has {most} tokens; expected up to {block_table.shape[1] * block_size}, "
            "for which block_table has entries"
        )
