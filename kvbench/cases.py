"""Case, one point of a sweep. Torch-free: results open anywhere."""

import dataclasses
import functools
import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from kvbench.errors import InputError, unknown

OPS = ("write", "read", "attend", "index", "step")
ONCE_A_STEP = ("index",)
"""Ops that a step does once, for all of its layers. What they prepare stays on the device from step
to step, so that a step costs their run alone."""
WHOLE_STEPS = ("step",)
"""Ops whose run is that of all layers of a step already."""
OF_NEW_TOKENS = ("write", "index")
"""Ops on tokens that are new: these have slots of their own, or none, and rows of padding."""
OF_CONTEXTS = ("attend", "step")
"""Ops on whole contexts, from position 0 on."""
BLOCK_ORDERS = ("sequential", "shuffled", "strided", "churned")
_PLACING = frozenset(
    {
        *("start_pos", "lengths", "shared_blocks", "missing_blocks", "table_padding"),
        *("padding_slots", "block_order", "slot_dtype", "seed"),
        *("sliding_window", "soft_cap", "query_pre_attn_scalar"),
    }
)
"""Fields that decide where tokens live, or what is computed of them, not which tensors there are.
"""

LENGTHS = ("equal", "ragged", "holes")
KV_INPUTS = ("contiguous", "fused_qkv", "sliced_v", "head_major")
PADDING_SLOTS = ("negative", "absent")
OUTPUTS = ("allocated", "given")
SLOT_BYTES: Mapping[str, int] = {"int64": 8, "int32": 4}
SLOT_DTYPES = tuple(SLOT_BYTES)
LAYOUTS = ("NHD", "HND", "NHD-KV", "HND-KV", "x-packed", "MLA")
DTYPE_BYTES: Mapping[str, int] = {"fp32": 4, "fp16": 2, "bf16": 2}
QUANTISED_BYTES: Mapping[str, int] = {"fp8_e4m3": 1, "fp8_e5m2": 1, "int8": 1}
CACHE_DTYPES = ("auto", *QUANTISED_BYTES)
KV_SCALES = ("per_tensor", "per_head", "per_token")
MOST = 2**48
"""The largest number that a field may have: more than any address."""
MOST_BATCH = 2**20
"""Each sequence has a block table of its own, a list as an engine's scheduler has it."""
MOST_SOFT_CAP = 2**16
"""What a float32 score bounded by more is off by would hide what is wrong with it."""
SCALE_BYTES = 4
"""Of one float32 scale."""
VOCABULARY = 1024
"""Tokens that a step's model knows: few, as the logits are not what is measured."""
_ROUND_TO = 64
"""What the width of a feed-forward network is a multiple of."""
_ENTRY_BYTES = 40
"""Of a number in a Python list."""
_PACK_BYTES = 16
"""Bytes of one vector of x-packed K."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One point of a sweep: everything that decides which bytes move where.

    Raises:
        InputError: A field has a value that no cache could have; the message names it.
    """

    op: str
    """"write" stores new tokens' K/V in the pool; "read" gathers cached tokens' K/V from it;
    "attend" is the attention of the last tokens of each sequence over its context in the pool;
    "index" builds the slot mapping of new tokens, on the device, and moves no K/V; "step" is one
    decode step of a whole model: in every layer the K/V of each sequence's last token are written,
    and it attends over the context, itself included."""
    seq_len: int
    """Tokens written to, read from, mapped or attended over in each sequence (on average, if
    lengths differ): of an attend or a step the context, from position 0 on."""
    batch: int = 1
    """Sequences handled by one call. 0 is an empty batch."""
    start_pos: int = 0
    """Position of the first such token in the first sequence. Not for an attend or a step."""
    query_len: int = 1
    """Query tokens of each sequence, the last of its context, which holds their K and V already: 1
    in decode, more in a prefill with a cached prefix. The one at position p sees the positions up
    to p; one before position 0, where a context is shorter, sees none. Attend only."""
    sliding_window: int = 0
    """Positions that a query sees, its own the last of them; 0 is all. The blocks behind every
    query's window have been freed: their table entry is -1. Attend only."""
    soft_cap: int = 0
    """c of c * tanh(score / c), as Gemma 2 bounds its scores; 0 leaves them alone. Attend only."""
    query_pre_attn_scalar: int = 0
    """A score is the dot product divided by this number's root; 0 is head_dim. Attend only."""
    lengths: str = "ragged"
    """"equal": every sequence starts at start_pos and has seq_len tokens. "ragged": the first
    starts at start_pos, the others up to two blocks later, and pairs of sequences trade tokens,
    so that lengths differ with seq_len as their mean, and none is empty. "holes": as ragged, and
    every second sequence is empty. A batch of one is the same in all three. The total is always
    batch * seq_len. A step has no holes: a sequence without a context has no token to feed."""
    shared_blocks: int = 0
    """Blocks at the head of every table that all sequences have in common: a shared prefix. A
    new token lies behind them, since what is shared is not written. Not for a step."""
    missing_blocks: int = 0
    """Of the blocks that a sequence's new tokens fall in, the first so many have none in the pool
    (behind a sliding window): their table entry is -1, so that their tokens' slots are negative,
    and they are written nowhere. Not for reading."""
    table_padding: int = 0
    """Entries of -1 at the end of every block table, as the rows of an engine's table have."""
    padding: int = 0
    """Rows of K/V past the last token that belong to no token (a CUDA graph's padding), written
    nowhere. Not for reading."""
    padding_slots: str = "negative"
    """What the slot mapping has for the rows of padding: a "negative" slot, or nothing, as it ends
    with the last token ("absent"). Not for reading."""
    kv_input: str = "contiguous"
    """K and V are "contiguous", or slices of one "fused_qkv" projection, whose token stride is
    larger than a row, or V alone is one ("sliced_v": rotary embedding leaves a new K), or they are
    "head_major", the heads outermost. An attend's query is so, too, but never "sliced_v". Not for
    reading."""
    output: str = "allocated"
    """Where a read's K and V go: into tensors that it makes anew in every call ("allocated"), or
    into those that the caller has, as an engine with a workspace does ("given"). Reading only."""
    num_layers: int = 8
    """Layers of the model, each with pools of its own. Step only."""
    block_size: int = 16
    """Tokens per block (a page)."""
    num_heads: int = 8
    """Query heads; a multiple of num_kv_heads."""
    num_kv_heads: int = 8
    """K/V heads, as stored in the pool; 1 in an MLA pool."""
    head_dim: int = 128
    """Elements per head; in an MLA pool those of a latent row, kv_c and k_pe together."""
    rope_dim: int = 64
    """Of an MLA pool's row, the last so many elements are k_pe. MLA only."""
    dtype: str = "bf16"
    """"fp32", "fp16" or "bf16", of K and V; of a step's weights, too."""
    cache_dtype: str = "auto"
    """Of the pool: "auto" is as dtype; "fp8_e4m3" (e4m3fn), "fp8_e5m2" or "int8" are quantised."""
    kv_scale: str = "per_tensor"
    """What has a float32 scale of its own, for K and for V, where the pool is quantised: all of it
    ("per_tensor"), or each head ("per_head"), both given; or each token's row ("per_token"), which
    a write computes from the row and stores beside it. Quantised only."""
    layout: str = "NHD"
    """How the pool's dimensions lie in memory (N blocks, B slots, H heads, D elements): "NHD" two
    pools [N, B, H, D]; "HND" two [N, H, B, D]; "NHD-KV" one [N, 2, B, H, D]; "HND-KV" one
    [N, H, B, 2D]; "x-packed" K [N, H, D/x, B, x] with x elements in 16 bytes, and V [N, H, D, B];
    "MLA" one [N, B, D] of latent rows."""
    block_order: str = "shuffled"
    """How a sequence's blocks lie in the pool: "sequential" one after the other, "shuffled" at
    random, "strided" every second block, "churned" as an allocator hands them out after many
    sequences have come and gone."""
    slot_dtype: str = "int64"
    """Of slot mappings and other indices on the device: "int64" or "int32"."""
    seed: int = 0
    """Decides every random choice: lengths, starts, block order, data."""

    def __post_init__(self) -> None:
        for name, choices in WORDS.items():
            one_of(name, getattr(self, name), choices)
        for name, least in LEAST.items():
            at_least(name, getattr(self, name), least)
        if self.num_heads % self.num_kv_heads:
            raise InputError(
                f"num_heads={self.num_heads} with num_kv_heads={self.num_kv_heads}: "
                "expected num_heads to be a multiple of num_kv_heads"
            )
        for name, why in without_meaning(self.op, self.layout, self.cache_dtype).items():
            if getattr(self, name) != DEFAULTS[name]:
                raise InputError(
                    f"{name}={getattr(self, name)} with {why}: expected {DEFAULTS[name]}"
                )
        if self.soft_cap > MOST_SOFT_CAP:
            raise InputError(
                f"soft_cap={self.soft_cap}: expected {MOST_SOFT_CAP} or less, or 0 for none: a "
                "score in float32 is too coarse for more"
            )
        if self.op == "attend" and self.kv_input == "sliced_v":
            raise InputError(
                "kv_input=sliced_v with op=attend (it takes a query, no V): expected contiguous, "
                "fused_qkv or head_major"
            )
        if self.op == "step" and self.lengths == "holes":
            raise InputError(
                "lengths=holes with op=step (a sequence without a context has no token to feed): "
                "expected equal or ragged"
            )
        self._check_layout()
        prefix = self.shared_blocks * self.block_size
        if self.op in OF_NEW_TOKENS and self.start_pos < prefix:
            raise InputError(
                f"shared_blocks={self.shared_blocks} with op={self.op} and "
                f"start_pos={self.start_pos}: expected start_pos of {prefix} or more, "
                "since a shared block is not written to"
            )

    def _check_layout(self) -> None:
        if self.layout == "x-packed" and self.head_dim % self.pack:
            raise InputError(
                f"head_dim={self.head_dim} with layout=x-packed: expected a multiple of "
                f"{self.pack}, the elements in {_PACK_BYTES} bytes"
            )
        if self.layout == "MLA" and self.num_kv_heads != 1:
            raise InputError(f"num_kv_heads={self.num_kv_heads} with layout=MLA: expected 1")
        if self.layout == "MLA" and self.head_dim <= self.rope_dim:
            raise InputError(
                f"head_dim={self.head_dim} with layout=MLA and rope_dim={self.rope_dim}: "
                f"expected more than rope_dim, the part of a row that is k_pe"
            )

    @property
    def tokens(self) -> int:
        """Tokens that one call is given, over all sequences."""
        return self.batch * self.seq_len

    @property
    def has_pools(self) -> bool:
        """Whether K and V are moved to or from pools; an index knows blocks by their numbers."""
        return self.op != "index"

    @property
    def mapped_padding(self) -> int:
        """Rows of padding that the slot mapping has a slot for, a negative one."""
        return self.padding if self.padding_slots == "negative" else 0

    @property
    def quantised(self) -> bool:
        """Whether the pool holds codes and scales instead of values."""
        return self.cache_dtype in QUANTISED_BYTES

    @property
    def cache_element_bytes(self) -> int:
        """Bytes of one element in the pool."""
        return QUANTISED_BYTES.get(self.cache_dtype, DTYPE_BYTES[self.dtype])

    @property
    def pack(self) -> int:
        """Elements in one vector of x-packed K (vLLM's x)."""
        return _PACK_BYTES // self.cache_element_bytes

    @property
    def key_dim(self) -> int:
        """Elements of one head of K; of kv_c in an MLA pool."""
        return self.head_dim - self.rope_dim if self.layout == "MLA" else self.head_dim

    @property
    def value_dim(self) -> int:
        """Elements of one head of V; of k_pe in an MLA pool."""
        return self.rope_dim if self.layout == "MLA" else self.head_dim

    @property
    def value_head_dim(self) -> int:
        """Elements of one head of an attention's output.

        Over an MLA pool, where V is kv_c, they are fewer than a query's, which are a whole row's.
        """
        return self.key_dim

    @property
    def softmax_scale(self) -> float:
        """What an attention multiplies dot products with."""
        return float((self.query_pre_attn_scalar or self.head_dim) ** -0.5)

    @property
    def query_bytes(self) -> int:
        """Bytes of an attention's queries and of its output together."""
        elements = self.num_heads * (self.head_dim + self.value_head_dim)
        return self.batch * self.query_len * elements * DTYPE_BYTES[self.dtype]

    @property
    def hidden_size(self) -> int:
        """Of a step's model: the width of what goes from layer to layer."""
        return self.num_heads * self.head_dim

    @property
    def intermediate_size(self) -> int:
        """Of a step's model: the feed-forward network's, 8/3 of the hidden size, as in Llama."""
        return -(-8 * self.hidden_size // 3 // _ROUND_TO) * _ROUND_TO

    @property
    def weights(self) -> int:
        """Elements of all weights of a step's model."""
        hidden = self.hidden_size
        projections = 2 * hidden * (hidden + self.num_kv_heads * self.head_dim)
        layer = projections + 3 * hidden * self.intermediate_size + 2 * hidden
        return self.num_layers * layer + VOCABULARY * hidden + hidden

    @property
    def weight_bytes(self) -> int:
        """Of all weights of a step's model."""
        return self.weights * DTYPE_BYTES[self.dtype]

    @property
    def new_rows(self) -> int:
        """Rows of K and V that a step writes in each layer: one for each context there is."""
        return self.batch if self.seq_len else 0

    @property
    def written_bytes(self) -> int:
        """Bytes that the writes of all layers of a step move."""
        return self.num_layers * self.new_rows * (self.row_bytes + self.slot_bytes)

    @property
    def attended_bytes(self) -> int:
        """Bytes that the attentions of all layers of a step move."""
        return self.num_layers * (self.query_bytes + self.tokens * self.slot_bytes)

    def first_visible(self, length: int) -> int:
        """The first position of a context of that length which any of its queries sees."""
        if not self.sliding_window:
            return 0
        first_query = max(length - self.query_len, 0)
        return max(first_query - self.sliding_window + 1, 0)

    @property
    def token_elements(self) -> int:
        """Elements of one token's K and V together."""
        return self.num_kv_heads * (self.key_dim + self.value_dim)

    @property
    def row_bytes(self) -> int:
        """Bytes of one token's K and V together, as a write is given them and a read gives them."""
        return self.token_elements * DTYPE_BYTES[self.dtype]

    @property
    def slot_bytes(self) -> int:
        """Bytes of one token's K and V together in the pool, with the scales it has of its own."""
        scales = 2 * SCALE_BYTES if self.kv_scale == "per_token" else 0
        return self.token_elements * self.cache_element_bytes + scales

    @property
    def nbytes(self) -> int:
        """The least traffic of one call: each source byte read once, each target byte written once.

        Padding and tokens without a block move nothing; what sequences share is read once; indices
        (8 bytes a token at most) and scales given from outside are not counted.

        An index moves slots and table entries, of slot_dtype both: it writes a slot for every token
        and every row of padding in the mapping, and reads the entry of every block that a token
        falls in once. Starts and lengths, 16 bytes a sequence at most, are not counted.

        An attend reads its queries and the slots that any of them sees, and writes its output.

        A step reads every weight and, in every layer, the slots of the contexts that were there
        before it, and writes the new ones; it gives the logits. What goes from one part of a layer
        to the next is not counted.
        """
        if not self.has_pools:
            return _index_elements(self) * SLOT_BYTES[self.slot_dtype]
        if self.op == "attend":
            return self.query_bytes + self.moved()[1] * self.slot_bytes
        if self.op == "step":
            slots = self.num_layers * self.tokens * self.slot_bytes
            logits = self.new_rows * VOCABULARY * DTYPE_BYTES[self.dtype]
            return self.weight_bytes + slots + logits
        return self.gathered_bytes

    @property
    def gathered_bytes(self) -> int:
        """As `nbytes` of a read or a write; of an attend, those of a gather that it begins with."""
        rows, slots = self.moved()
        return rows * self.row_bytes + slots * self.slot_bytes

    @property
    def least_bytes(self) -> int:
        """Memory that the case needs at the very least, on the device or in the scheduler's lists.

        It is known without making any of it.
        """
        blocks = (self.start_pos + self.seq_len) // self.block_size
        lists = self.batch * (2 + blocks + self.table_padding) * _ENTRY_BYTES
        if not self.has_pools:
            mapping = (self.tokens + self.mapped_padding) * SLOT_BYTES[self.slot_dtype]
            return lists + mapping
        if self.op == "attend":
            return lists + self.query_bytes + self._least_context_bytes()
        if self.op == "step":
            contexts = self.batch * (self.seq_len // self.block_size * self.block_size)
            return lists + self.weight_bytes + self.num_layers * contexts * self.slot_bytes
        own = max(blocks - self.shared_blocks - self.missing_blocks, 0)
        pools = self.batch * own * self.block_size * self.slot_bytes
        return pools + lists + (self.tokens + self.padding) * self.row_bytes

    def _least_context_bytes(self) -> int:
        """Bytes of the pools of an attend, at the very least."""
        freed = self.first_visible(self.seq_len) // self.block_size
        own = max(self.seq_len // self.block_size - freed - self.shared_blocks, 0)
        # Of a pair of sequences that trade tokens, one alone may have a whole window.
        whole = self.batch if self.lengths == "equal" else -(-self.batch // 2)
        return (whole if freed else self.batch) * own * self.block_size * self.slot_bytes

    def moved(self) -> tuple[int, int]:
        """Rows of K and V, and different slots of the pool, that one call moves.

        Of an attend, the rows that a gather for it has to make.
        """
        if not self.has_pools:
            return 0, 0
        if not (self.shared_blocks or self.missing_blocks or self.sliding_window):
            return self.tokens, self.tokens
        return _moved(self)

    def sequences(self) -> tuple[list[int], list[int]]:
        """The start position and the length of every sequence, from the seed alone."""
        if self.op == "step" and not self.seq_len:
            return [], []
        starts = [self.start_pos] * self.batch
        lengths = [self.seq_len] * self.batch
        if self.lengths == "equal":
            return starts, lengths
        rng = random.Random(self.seed)  # noqa: S311 - reproducible, not secret
        for i in range(1, self.batch):
            if self.op not in OF_CONTEXTS:  # these begin at position 0
                starts[i] += rng.randint(0, 2 * self.block_size)
        # Pairs trade tokens, so that the mean stays seq_len and bytes compare between cases.
        for i in range(0, self.batch - 1, 2):
            moved = (
                self.seq_len
                if self.lengths == "holes"
                else rng.randint(0, max(self.seq_len - 1, 0))
            )
            lengths[i] += moved
            lengths[i + 1] -= moved
        return starts, lengths

    def shape(self) -> tuple[object, ...]:
        """What cases have in common whose tensors are of one shape, but for the pools' blocks."""
        return tuple(value for name, value in self.fields().items() if name not in _PLACING)

    def axes(self) -> dict[str, int | str]:
        """The fields that have to be named so that a sweep of them is this very case."""
        named = {"op", "seq_len"}
        if self.layout == "MLA":  # where these have other defaults
            named |= {"num_kv_heads", "head_dim"}
        usual = {**DEFAULTS, "num_heads": self.num_kv_heads}
        fields = self.fields()
        return {n: value for n, value in fields.items() if n in named or value != usual[n]}

    def label(self) -> str:
        """The case on one line, for people: op, seq_len and what is unusual."""
        return " ".join(f"{name}={value}" for name, value in self.axes().items())

    def fields(self) -> dict[str, int | str]:
        """Field values by name, in order of declaration."""
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}


@functools.lru_cache(maxsize=4096)
def _moved(case: Case) -> tuple[int, int]:
    starts, lengths = case.sequences()
    if case.op == "write":
        stored = 0
        for start, length in zip(starts, lengths, strict=True):
            # The first token that has a block.
            first = (start // case.block_size + case.missing_blocks) * case.block_size
            stored += max(start + length - max(start, first), 0) if case.missing_blocks else length
        return stored, stored
    if case.op == "attend":
        starts = [case.first_visible(length) for length in lengths]
        lengths = [length - start for start, length in zip(starts, lengths, strict=True)]
    prefix = case.shared_blocks * case.block_size
    slots = covered = 0
    for start, length in sorted(zip(starts, lengths, strict=True)):
        slots += max(start + length - max(start, prefix), 0)
        shared_end = min(start + length, prefix)
        # In order of their starts, so that what earlier sequences cover ends in one place.
        slots += max(shared_end - max(start, covered), 0)
        covered = max(covered, shared_end)
    return sum(lengths), slots


@functools.lru_cache(maxsize=4096)
def _index_elements(case: Case) -> int:
    size = case.block_size
    entries = sum(
        -(-(start + length) // size) - start // size
        for start, length in zip(*case.sequences(), strict=True)
        if length
    )
    return case.tokens + case.mapped_padding + entries


def without_meaning(op: str, layout: str, cache_dtype: str) -> dict[str, str]:
    """The fields that mean nothing where these have these values, each with the reason."""
    found: dict[str, str] = {}
    if op == "index":
        found |= dict.fromkeys(OF_POOLS, f"op={op} (no K or V is moved)")
    if op not in OF_NEW_TOKENS:
        why = "each sequence has one new token" if op == "step" else "its tokens are cached already"
        found |= dict.fromkeys(NEW_TOKENS_ONLY, f"op={op} ({why})")
    if op not in {"write", "attend"}:
        found["kv_input"] = f"op={op} (only a write takes rows of K and V, an attend queries)"
    if op in OF_CONTEXTS:
        found["start_pos"] = f"op={op} (a context begins at position 0)"
    if op == "step":
        found["shared_blocks"] = f"op={op} (its sequences have nothing in common)"
        quantised = f"op={op} (its model's pools hold dtype itself)"
        found |= {"cache_dtype": quantised, "kv_scale": quantised}
    else:
        found["num_layers"] = f"op={op} (only a step is of a whole model)"
    if op != "attend":
        found |= dict.fromkeys(ATTEND_ONLY, f"op={op} (only an attend has queries)")
    if op != "read":
        found["output"] = f"op={op} (only a read gives K and V)"
    if layout != "MLA":
        found["rope_dim"] = f"layout={layout} (only MLA has a k_pe)"
    if cache_dtype not in QUANTISED_BYTES and op != "step":
        found["kv_scale"] = "cache_dtype=auto (only a quantised pool has scales)"
    return found


NEW_TOKENS_ONLY = ("missing_blocks", "padding", "padding_slots")
"""The fields that have a meaning only where tokens are new."""
ATTEND_ONLY = ("query_len", "sliding_window", "soft_cap", "query_pre_attn_scalar")
"""The fields that have a meaning only where there are queries."""
OF_POOLS = (
    *("num_heads", "num_kv_heads", "head_dim", "rope_dim", "dtype", "cache_dtype", "layout"),
    *("kv_input", "output", "kv_scale"),
)
"""The fields that say what K and V are like, in pools and outside: an index knows nothing of it."""

DEFAULTS: Mapping[str, Any] = {f.name: f.default for f in dataclasses.fields(Case)}
"""Every field's default; `dataclasses.MISSING` where it has none."""

WORDS: Mapping[str, tuple[str, ...]] = {
    "op": OPS,
    "lengths": LENGTHS,
    "padding_slots": PADDING_SLOTS,
    "kv_input": KV_INPUTS,
    "output": OUTPUTS,
    "dtype": tuple(DTYPE_BYTES),
    "cache_dtype": CACHE_DTYPES,
    "kv_scale": KV_SCALES,
    "layout": LAYOUTS,
    "block_order": BLOCK_ORDERS,
    "slot_dtype": SLOT_DTYPES,
}
"""The values of every field that is a word."""

LEAST: Mapping[str, int] = {
    "seq_len": 0,
    "batch": 0,
    "start_pos": 0,
    "query_len": 1,
    "sliding_window": 0,
    "soft_cap": 0,
    "query_pre_attn_scalar": 0,
    "shared_blocks": 0,
    "missing_blocks": 0,
    "table_padding": 0,
    "padding": 0,
    "num_layers": 1,
    "block_size": 1,
    "num_heads": 1,
    "num_kv_heads": 1,
    "head_dim": 1,
    "rope_dim": 1,
    "seed": 0,
}
"""The least value of every field that is a number."""


def one_of(name: str, value: str, choices: Iterable[str]) -> None:
    """Refuse a word that is none of the choices.

    Raises:
        InputError: The message names the nearest.
    """
    known = list(choices)
    if value not in known:
        raise unknown(name, str(value), known)


def at_least(name: str, value: int, least: int) -> None:
    """Refuse what is no integer, or one that is too small, or beyond any machine.

    Raises:
        InputError: The message names the value and what was expected.
    """
    # bool is an int to Python and a mistake to a user.
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise InputError(f"{name}={value!r}: expected an integer, {least} or more")
    most = MOST_BATCH if name == "batch" else MOST
    if value > most and name != "seed":  # a seed is no size
        raise InputError(f"{name}={value!r}: expected {most} or less")
