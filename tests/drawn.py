"""What Hypothesis draws for more than one test file."""

from hypothesis import strategies as st

from kvbench.cases import (
    BLOCK_ORDERS,
    CACHE_DTYPES,
    DTYPE_BYTES,
    KV_INPUTS,
    KV_SCALES,
    LAYOUTS,
    LENGTHS,
    OF_NEW_TOKENS,
    OF_POOLS,
    OPS,
    OUTPUTS,
    PADDING_SLOTS,
    SLOT_DTYPES,
    Case,
)

KV_OPS = ("write", "read")
"""Ops that move K and V."""
BLOCK_SIZES = (16, 1, 3, 8, 17, 256, 1024)
HEADS = (1, 2, 3, 8, 65)
HEAD_DIMS = (1, 5, 16, 64, 80, 96, 128, 576)
ROPE_DIMS = (1, 4, 64)
_MOST_POOL_ELEMENTS = 1 << 20
"""About the most elements of one pool, so that an example takes milliseconds."""


@st.composite
def cases(  # noqa: C901 - each op has fields of its own
    draw, op: str | None = None, most_tokens: int = 200, ops: tuple[str, ...] = OPS, **fixed
) -> Case:
    """Any valid case of small size; of any op unless one is given.

    Args:
        draw: Hypothesis's own.
        op: The op of every case drawn.
        ops: The ops of cases drawn if none is given.
        most_tokens: Bound on batch * seq_len: a program of Triton's interpreter takes some 4 ms.
        fixed: Fields that every case drawn has, instead of drawn ones; layout, dtype, cache_dtype,
            kv_scale, block_size, slot_dtype and output may be among them.
    """
    if set(fixed) & set(OF_POOLS):
        ops = tuple(each for each in ops if each in KV_OPS)
    op = op or draw(st.sampled_from(ops))
    if op == "step":
        return draw(steps(most_tokens=most_tokens, **fixed))
    fields = {
        "layout": draw(st.sampled_from(LAYOUTS)),
        "dtype": draw(st.sampled_from(tuple(DTYPE_BYTES))),
        "cache_dtype": draw(st.sampled_from(CACHE_DTYPES)),
        "slot_dtype": draw(st.sampled_from(SLOT_DTYPES)),
        **fixed,
    }
    if fields["cache_dtype"] != "auto" and "kv_scale" not in fixed:
        fields["kv_scale"] = draw(st.sampled_from(KV_SCALES))
    num_kv_heads = 1 if fields["layout"] == "MLA" else draw(st.sampled_from(HEADS))
    dims = HEAD_DIMS
    if fields["layout"] == "x-packed":
        # 16 elements of codes are a vector, and twice or four times one of anything wider.
        dims = tuple(dim for dim in HEAD_DIMS if dim % 16 == 0)
    if fields["layout"] == "MLA":
        fields["rope_dim"] = draw(st.sampled_from(ROPE_DIMS))
        dims = tuple(dim for dim in HEAD_DIMS if dim > fields["rope_dim"])
    dims = tuple(dim for dim in dims if dim * num_kv_heads <= 8320)
    head_dim = draw(st.sampled_from(dims))
    batch = draw(st.integers(0, 5))
    # A sequence of 40 tokens from a start of at most 70 and two blocks has few blocks if large.
    blocks = 8 * batch + 2
    fits = [
        size
        for size in BLOCK_SIZES
        if blocks * size * num_kv_heads * head_dim <= _MOST_POOL_ELEMENTS or size == 1
    ]
    block_size = fields.pop("block_size", None) or draw(st.sampled_from(fits))
    start_pos = 0 if op == "attend" else draw(st.integers(0, 70))
    if op == "write":
        fields["kv_input"] = draw(st.sampled_from(KV_INPUTS))
    most_queries = 4
    if op == "attend":
        fields["kv_input"] = draw(st.sampled_from([k for k in KV_INPUTS if k != "sliced_v"]))
        fields["query_len"] = draw(st.sampled_from((1, 1, 2, 5, 41)))
        fields["sliding_window"] = draw(st.sampled_from((0, 0, 1, 7, 30)))
        fields["soft_cap"] = draw(st.sampled_from((0, 0, 2)))
        fields["query_pre_attn_scalar"] = draw(st.sampled_from((0, 0, 50)))
        most_queries = 128 // num_kv_heads if num_kv_heads * head_dim <= 128 else 8
    if op in OF_NEW_TOKENS:
        fields["padding"] = draw(st.integers(0, 4))
        fields["padding_slots"] = draw(st.sampled_from(PADDING_SLOTS))
        fields["missing_blocks"] = draw(st.integers(0, 3))
        fields["shared_blocks"] = draw(st.integers(0, min(3, start_pos // block_size)))
    else:
        fields["shared_blocks"] = draw(st.integers(0, 3))
        if op == "read" and "output" not in fixed:
            fields["output"] = draw(st.sampled_from(OUTPUTS))
    fields["num_heads"] = num_kv_heads * draw(st.integers(1, most_queries))
    fields |= {"num_kv_heads": num_kv_heads, "head_dim": head_dim}
    if op not in KV_OPS:
        fields = {name: value for name, value in fields.items() if name not in OF_POOLS}
    return Case(
        op=op,
        seq_len=draw(st.integers(0, min(40, most_tokens // max(batch, 1)))),
        batch=batch,
        start_pos=start_pos,
        lengths=draw(st.sampled_from(LENGTHS)),
        table_padding=draw(st.integers(0, 2)),
        block_size=block_size,
        block_order=draw(st.sampled_from(BLOCK_ORDERS)),
        seed=draw(st.integers(0, 2**16)),
        **fields,
    )


@st.composite
def steps(draw, most_tokens: int = 200, **fixed) -> Case:
    """Steps of small models: any layout that they can have, contexts that end anywhere.

    Args:
        draw: Hypothesis's own.
        most_tokens: As in `cases`.
        fixed: Fields that every case drawn has.
    """
    num_kv_heads = draw(st.sampled_from((1, 2, 3)))
    batch = draw(st.integers(0, 4))
    drawn = {
        "num_kv_heads": num_kv_heads,
        "num_heads": num_kv_heads * draw(st.integers(1, 3)),
        "head_dim": draw(st.sampled_from((16, 64, 80))),
        "num_layers": draw(st.integers(1, 3)),
        "dtype": draw(st.sampled_from(tuple(DTYPE_BYTES))),
        "layout": draw(st.sampled_from([name for name in LAYOUTS if name != "MLA"])),
        "seq_len": draw(st.integers(1, max(min(40, most_tokens // max(batch, 1)), 1))),
        "batch": batch,
        "lengths": draw(st.sampled_from(("equal", "ragged"))),
        "table_padding": draw(st.integers(0, 2)),
        "block_size": draw(st.sampled_from((16, 1, 3, 8, 17))),
        "slot_dtype": draw(st.sampled_from(SLOT_DTYPES)),
        "block_order": draw(st.sampled_from(BLOCK_ORDERS)),
        "seed": draw(st.integers(0, 2**16)),
    }
    return Case(op="step", **{**drawn, **fixed})


def attends(**fixed: object) -> st.SearchStrategy[Case]:
    """Cases of attention."""
    return cases(op="attend", **fixed)
