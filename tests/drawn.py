"""What Hypothesis draws for more than one test file."""

from hypothesis import strategies as st

from kvbench.cases import BLOCK_ORDERS, DTYPE_BYTES, KV_INPUTS, LENGTHS, OPS, Case

BLOCK_SIZES = (16, 1, 3, 8, 17, 256)
HEADS = (1, 2, 3, 8)
HEAD_DIMS = (1, 5, 16, 64, 80, 96, 128)
_MOST_POOL_ELEMENTS = 1 << 20
"""About the most elements of one pool, so that an example takes milliseconds."""


@st.composite
def cases(draw, op: str | None = None, most_tokens: int = 200) -> Case:
    """Any valid case of small size; of either op unless one is given.

    Args:
        draw: Hypothesis's own.
        op: The op of every case drawn.
        most_tokens: Bound on batch * seq_len: a program of Triton's interpreter takes some 4 ms.
    """
    op = op or draw(st.sampled_from(OPS))
    num_kv_heads = draw(st.sampled_from(HEADS))
    head_dim = draw(st.sampled_from(HEAD_DIMS))
    batch = draw(st.integers(0, 5))
    # A sequence of 40 tokens from a start of at most 70 and two blocks has few blocks if large.
    fits = [
        size
        for size in BLOCK_SIZES
        if (4 * batch + 2) * size * num_kv_heads * head_dim <= _MOST_POOL_ELEMENTS
    ]
    fields = {}
    if op == "write":
        fields["padding"] = draw(st.integers(0, 4))
        fields["kv_input"] = draw(st.sampled_from(KV_INPUTS))
    return Case(
        op=op,
        seq_len=draw(st.integers(0, min(40, most_tokens // max(batch, 1)))),
        batch=batch,
        start_pos=draw(st.integers(0, 70)),
        lengths=draw(st.sampled_from(LENGTHS)),
        block_size=draw(st.sampled_from(fits)),
        num_heads=num_kv_heads * draw(st.integers(1, 4)),
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        dtype=draw(st.sampled_from(tuple(DTYPE_BYTES))),
        block_order=draw(st.sampled_from(BLOCK_ORDERS)),
        seed=draw(st.integers(0, 2**16)),
        **fields,
    )
