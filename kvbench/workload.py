"""The tensors of a case on a device, rebuilt from the case alone."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from kvbench import pool
from kvbench.blocks import NO_BLOCK, Placement, place
from kvbench.cases import OF_CONTEXTS, SLOT_BYTES, VOCABULARY, Case
from kvbench.engine.model import Decoder
from kvbench.engine.sizes import model_of
from kvbench.errors import InputError

TORCH_DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
CACHE_DTYPES = {
    "fp8_e4m3": torch.float8_e4m3fn,
    "fp8_e5m2": torch.float8_e5m2,
    "int8": torch.int8,
}


def largest(dtype: torch.dtype) -> float:
    """The largest finite value of a format of codes."""
    return float((torch.finfo if dtype.is_floating_point else torch.iinfo)(dtype).max)


@dataclass(frozen=True, slots=True, eq=False)
class Workload:
    """What an engine hands to its KV-cache code in one step.

    The three lists are the scheduler's own, one entry per sequence: see `blocks.Placement`.
    """

    case: Case
    device: torch.device
    query: torch.Tensor
    """Queries of an attend, [batch * query_len, num_heads, head_dim], sequence after sequence, with
    the strides of `kv_input`; of a step, those that its attentions have where they are timed alone.
    No rows for other ops."""
    key: torch.Tensor
    """New tokens' K, [tokens + padding, num_kv_heads, key_dim], sequence after sequence, the
    padding last, with the strides of `kv_input`; kv_c of an MLA pool. Seen in the shape of the
    pool's slots: of an x-packed pool [..., key_dim / x, x]. Of a step, what its writes store where
    they are timed alone, [batch, …]. No rows for other ops."""
    value: torch.Tensor
    """New tokens' V, as `key`; k_pe of an MLA pool."""
    key_pool: torch.Tensor
    """K of every block, [num_blocks, block_size, num_kv_heads, key_dim], a view into storage of any
    layout; of an x-packed pool [num_blocks, block_size, num_kv_heads, key_dim / x, x]. No blocks if
    the op is an index; those of all layers of a step, layer after layer."""
    value_pool: torch.Tensor
    """V of every block, [num_blocks, block_size, num_kv_heads, value_dim], as `key_pool`."""
    storages: tuple[torch.Tensor, ...]
    """The memory of the pools, in the layout's own shape (see Case.layout)."""
    key_scale: torch.Tensor | None
    """float32 scales of K: [1, 1] "per_tensor" or [1, num_kv_heads] "per_head", given; or
    [num_blocks, block_size] "per_token", stored by a write. None if the pool is not quantised."""
    value_scale: torch.Tensor | None
    """float32 scales of V, as `key_scale`."""
    outputs: tuple[torch.Tensor, torch.Tensor] | None
    """K and V that a read fills and returns, contiguous, [tokens, *slot] with the slots of
    `key_pool` and `value_pool`, in `dtype`. None where a read allocates them, and for other ops."""
    starts: list[int]
    lengths: list[int]
    block_tables: list[list[int]]
    tokens: torch.Tensor | None = None
    """The last token of each sequence, int64 [batch], which a step feeds; None for other ops."""
    layers: tuple[pool.Pools, ...] = ()
    """Views of each layer's blocks of the pools of a step; the tables' numbers are of these."""
    model: Decoder | None = None
    """Of a step. It is the same for all workloads of a case: building it is no part of anything."""

    @property
    def block_size(self) -> int:
        """Tokens per block."""
        return self.case.block_size

    @property
    def dtype(self) -> torch.dtype:
        """Of K and V outside the pool: what a read gives."""
        return TORCH_DTYPES[self.case.dtype]

    @property
    def slot_dtype(self) -> torch.dtype:
        """Of indices on the device."""
        return torch.int32 if self.case.slot_dtype == "int32" else torch.int64

    def slot_mapping(self) -> npt.NDArray[np.integer]:
        """The flat slots of every token, then those of padding where the case wants them mapped.

        Returns:
            int64 or int32 of shape [tokens] or [tokens + padding]; negative slots are padding.

        Raises:
            InputError: A slot is too large for int32.
        """
        slots = pool.slot_mapping(
            self.block_tables,
            self.starts,
            self.lengths,
            self.block_size,
            padding=self.case.mapped_padding,
        )
        if self.case.slot_dtype == "int64":
            return slots
        if slots.size and slots.max() > np.iinfo(np.int32).max:
            raise InputError(f"slot_dtype=int32 with slot {slots.max()}: expected int64")
        return slots.astype(np.int32)

    @property
    def slot_array_dtype(self) -> type[np.integer]:
        """Of the same indices as NumPy's arrays."""
        return np.int32 if self.case.slot_dtype == "int32" else np.int64

    @property
    def mapped_rows(self) -> int:
        """Rows of the slot mapping: tokens, and the padding that the case wants mapped."""
        return sum(self.lengths) + self.case.mapped_padding

    def stored_slots(self) -> tuple[torch.Tensor, torch.Tensor | slice]:
        """The slots of the tokens that have one, on the device, and the rows of K and V they take.

        What plain indexing needs, which can't skip a row: -1 would be the pool's last slot.
        """
        slots = self.slot_mapping()
        rows = pool.stored_rows(slots)
        mapping = torch.from_numpy(slots[rows]).to(self.device)
        if len(rows) == 0 or rows[-1] == len(rows) - 1:
            return mapping, slice(len(rows))  # padding at the end, if any
        return mapping, torch.from_numpy(rows).to(self.device)

    def given_or_new_outputs(self, tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
        """What a read writes K and V into, [tokens, *slot]; new ones have undefined contents."""
        return self.outputs or (
            self.key.new_empty((tokens, *self.key.shape[1:])),
            self.value.new_empty((tokens, *self.value.shape[1:])),
        )

    def tensors(self) -> dict[str, torch.Tensor]:
        """The tensors that hold this workload's data, each byte of it in one of them."""
        named = {"key": self.key, "value": self.value}
        if self.case.op in OF_CONTEXTS:
            named["query"] = self.query
        if self.tokens is not None:
            named["tokens"] = self.tokens
        named |= {f"storage {i}": storage for i, storage in enumerate(self.storages)}
        if self.key_scale is not None and self.value_scale is not None:
            named |= {"key_scale": self.key_scale, "value_scale": self.value_scale}
        if self.outputs is not None:
            named |= dict(zip(("key_output", "value_output"), self.outputs, strict=True))
        return named


@dataclass(frozen=True, slots=True, eq=False)
class ResidentTables:
    """What an engine has on the device before a step begins, whoever builds its slot mapping.

    A block table grows by a block now and then; starts and lengths are there for the model's
    positions and for attention.
    """

    block_table: torch.Tensor
    """[batch, entries of the longest table], of slot_dtype; shorter ones end with NO_BLOCK."""
    starts: torch.Tensor
    """int64 [batch]."""
    lengths: torch.Tensor
    """int64 [batch]."""


def resident_tables(workload: Workload) -> ResidentTables:
    """Upload the scheduler's lists."""
    tables = workload.block_tables
    padded = np.full(
        (len(tables), max(map(len, tables), default=0)),
        NO_BLOCK,
        dtype=workload.slot_array_dtype,
    )
    for row, table in zip(padded, tables, strict=True):
        row[: len(table)] = table
    return ResidentTables(
        *(
            torch.from_numpy(array).to(workload.device)
            for array in (
                padded,
                np.array(workload.starts, dtype=np.int64),
                np.array(workload.lengths, dtype=np.int64),
            )
        )
    )


_REFERENCES = 32
"""Times the bytes of queries and output that the right outputs of a few calls take, in float64,
with their tolerances."""
_FLOAT64_ARRAYS = 6
"""As large as a sequence's K and V, or its scores, that finding the right output has at once."""
_SCORES_AT_ONCE = 1 << 20
_BETWEEN_BYTES = 16
"""Of an element that a layer has in between: float32 beside the dtype's, twice."""
_INDEX_ARRAYS = 12
"""64-bit numbers a token that building a mapping by array arithmetic has at once, and its check."""


def required_bytes(case: Case, placement: Placement, copies: int = 1) -> int:
    """Bytes that a case's tensors, a read's outputs and the check's copies take at once.

    A read takes no rows in and gives as many: its outputs, whoever allocates them, are counted as
    what a write is given. So are the rows that an attention may gather; to check it, they are
    seen in float64, a sequence at a time.

    Args:
        case: The case.
        placement: Its sequences and blocks.
        copies: Sets of tensors that calls take turns over; the check looks at one at a time.
    """
    if not case.has_pools:
        tables = sum(map(len, placement.block_tables)) * SLOT_BYTES[case.slot_dtype]
        rows = case.tokens + case.mapped_padding
        return copies * tables + _INDEX_ARRAYS * SLOT_BYTES["int64"] * rows
    pools = blocks_of(case, placement) * case.block_size * case.slot_bytes
    if case.op == "step":
        return _step_bytes(case, placement, pools, copies)
    inputs = (case.tokens + case.padding) * case.row_bytes
    if case.kv_input == "fused_qkv":
        inputs += inputs * case.num_heads // (2 * case.num_kv_heads)
    if case.kv_input == "sliced_v":
        inputs *= 2
    if case.op == "attend":
        rights = _REFERENCES * case.query_bytes + _float64_bytes(case, placement)
        return copies * (pools + case.query_bytes) + 4 * pools + 4 * inputs + rights
    # The check holds the pools as they were, as they are and as they should be, another layer's,
    # and one op's outputs; quantised rows are bounded from both sides, in float64.
    return copies * (pools + inputs) + 4 * pools + (12 if case.quantised else 3) * inputs


def _step_bytes(case: Case, placement: Placement, pools: int, copies: int) -> int:
    """Of a step: pools and weights; the check's copies; what a layer has in between.

    Weights are drawn in float32. Whoever copies K and V out of the pools does so one layer at a
    time; the oracle sees one sequence of one layer in float64.
    """
    widest = max(2 * case.intermediate_size + 4 * case.hidden_size, VOCABULARY)
    between = len(placement.lengths) * widest * _BETWEEN_BYTES
    weights = case.weight_bytes + 4 * case.weights
    gathered = 4 * case.tokens * case.row_bytes
    seen = _float64_bytes(case, placement)
    return copies * pools + 4 * pools + weights + gathered + between + seen


def _float64_bytes(case: Case, placement: Placement) -> int:
    """What the oracle has of one sequence's K and V, of one layer, and of its scores."""
    longest = max(placement.lengths, default=0)
    return 8 * _FLOAT64_ARRAYS * (longest * case.token_elements + _SCORES_AT_ONCE)


def needed_bytes(case: Case, free: int, copies: int = 1) -> int:
    """What `required_bytes` says of a case; of one too large to make its tables, a lower bound.

    Args:
        case: The case.
        free: Bytes that there are.
        copies: As in `required_bytes`.
    """
    least = case.least_bytes
    return least if least > free else required_bytes(case, place(case), copies)


def build(case: Case, device: torch.device, placement: Placement | None = None) -> Workload:
    """Allocate a case's tensors. Their contents are undefined until `fill` is called.

    Args:
        case: The case.
        device: Where the tensors go.
        placement: Sequences and blocks to use instead of the case's own.

    Raises:
        InputError: A write would go to a slot twice, or into a block that sequences share; or the
            slots of an index have no room in slot_dtype.
        MemoryError, torch.OutOfMemoryError: The tensors don't fit.
    """
    at = placement if placement is not None else place(case)
    if case.op == "write" and placement is not None:
        _refuse_shared_writes(case, placement)  # a case's own placement has none
    if not case.has_pools:
        _refuse_wide_slots(case, at)
    dtype, is_step = TORCH_DTYPES[case.dtype], case.op == "step"
    num_blocks = blocks_of(case, at)
    pools = pool.allocate(case, num_blocks, CACHE_DTYPES.get(case.cache_dtype, dtype), device)
    rows = {"write": sum(at.lengths) + case.padding, "step": len(at.lengths)}.get(case.op, 0)
    queries = len(at.lengths) * case.query_len if case.op in OF_CONTEXTS else 0
    key, value = _inputs(case, rows, dtype, device)
    scale_shape = {
        "per_tensor": (1, 1),
        "per_head": (1, case.num_kv_heads),
        "per_token": (num_blocks, case.block_size),
    }[case.kv_scale]
    key_scale, value_scale = (
        torch.empty(scale_shape, dtype=torch.float32, device=device) if case.quantised else None
        for _ in range(2)
    )
    return Workload(
        case=case,
        device=device,
        query=_query(case, queries, dtype, device),
        key=pool.as_slots(key, pools.key),
        value=value,
        key_pool=pools.key,
        value_pool=pools.value,
        storages=pools.storages,
        key_scale=key_scale,
        value_scale=value_scale,
        outputs=_outputs(case, sum(at.lengths), pools, dtype),
        starts=at.starts,
        lengths=at.lengths,
        block_tables=at.block_tables,
        tokens=torch.empty(rows, dtype=torch.int64, device=device) if is_step else None,
        layers=pools.cut(case.num_layers) if is_step else (),
        model=model_of(case, dtype, device) if is_step else None,
    )


def blocks_of(case: Case, at: Placement) -> int:
    """Blocks of the pools: of a step those of all layers, of an index none."""
    if not case.has_pools:
        return 0
    return at.num_blocks * case.num_layers if case.op == "step" else at.num_blocks


def _inputs(
    case: Case, rows: int, dtype: torch.dtype, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """K and V of new tokens, [rows, num_kv_heads, key_dim] and [rows, num_kv_heads, value_dim]."""
    heads, dims = case.num_kv_heads, (case.key_dim, case.value_dim)
    if case.kv_input == "fused_qkv" and case.layout == "MLA":
        # One projection gives a token's kv_c and k_pe.
        latent = torch.empty((rows, heads, sum(dims)), dtype=dtype, device=device)
        return latent[..., : dims[0]], latent[..., dims[0] :]
    if case.kv_input == "fused_qkv":
        # Engines project Q, K and V in one matrix product and pass slices of it on.
        split = [case.num_heads, heads, heads]
        qkv = torch.empty((rows, sum(split), case.head_dim), dtype=dtype, device=device)
        _, key, value = torch.split(qkv, split, dim=1)
        return key, value
    shapes = [(heads, rows, d) if case.kv_input == "head_major" else (rows, heads, d) for d in dims]
    key, value = (torch.empty(shape, dtype=dtype, device=device) for shape in shapes)
    if case.kv_input == "sliced_v":
        wider = torch.empty((rows, 2 * heads, dims[1]), dtype=dtype, device=device)
        return key, wider[:, heads:]
    if case.kv_input == "head_major":
        return key.transpose(0, 1), value.transpose(0, 1)
    return key, value


def _query(case: Case, rows: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Queries, [rows, num_heads, head_dim]."""
    heads, dim = case.num_heads, case.head_dim
    if case.op == "attend" and case.kv_input == "fused_qkv":
        qkv = torch.empty((rows, heads + 2 * case.num_kv_heads, dim), dtype=dtype, device=device)
        return qkv[:, :heads]
    if case.op == "attend" and case.kv_input == "head_major":
        return torch.empty((heads, rows, dim), dtype=dtype, device=device).transpose(0, 1)
    return torch.empty((rows, heads, dim), dtype=dtype, device=device)


def _outputs(
    case: Case, tokens: int, pools: pool.Pools, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor] | None:
    if case.output == "allocated":
        return None
    key, value = (
        p.new_empty((tokens, *p.shape[2:]), dtype=dtype) for p in (pools.key, pools.value)
    )
    return key, value


def _refuse_wide_slots(case: Case, at: Placement) -> None:
    """What computes slots on a device can't look whether they fit without waiting for them."""
    block = max((max(table, default=NO_BLOCK) for table in at.block_tables), default=NO_BLOCK)
    largest_slot = (block + 1) * case.block_size - 1
    if case.slot_dtype == "int32" and largest_slot > np.iinfo(np.int32).max:
        raise InputError(
            f"slot_dtype=int32 with block {block} of {case.block_size} slots: expected int64"
        )


def _refuse_shared_writes(case: Case, at: Placement) -> None:
    """Two tokens in one slot: which of them stays is undefined, on a GPU even from run to run."""
    slots = pool.slot_mapping(at.block_tables, at.starts, at.lengths, case.block_size)
    slots = slots[pool.stored_rows(slots)]
    values, counts = np.unique(slots, return_counts=True)
    if (counts > 1).any():
        slot = int(values[counts > 1][0])
        raise InputError(
            f"slot {slot} would be written twice (block {slot // case.block_size}); "
            "expected every new token in a slot of its own"
        )
    holders: dict[int, int] = {}
    for sequence, table in enumerate(at.block_tables):
        for block in set(table):
            holders[block] = sequence if block not in holders else -1
    for block in np.unique(slots // case.block_size).tolist():
        if holders[block] < 0:
            raise InputError(
                f"block {block} is shared by sequences and would be written; "
                "expected writes into blocks of one sequence"
            )
