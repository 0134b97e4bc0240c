"""flex_attention over the pool: its lists of tiles, its results in chosen cases, its refusals.

Each kind of heads, dtypes and strides takes seconds to compile, so that the cases are chosen, not
drawn; the lists, for which nothing is compiled, are drawn. `make test-slow` has more kinds.
"""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._dynamo.utils import counters

from kvbench import oracle
from kvbench.blocks import NO_BLOCK
from kvbench.cases import Case
from kvbench.kernels import flex
from kvbench.strategies import registry
from kvbench.sweep.checking import check_case
from kvbench.sweep.launches import predicted
from kvbench.workload import build

CPU, GPU = torch.device("cpu"), torch.device("cuda")
NAME = "attend.flex"
SHAPE = {"op": "attend", "lengths": "equal", "num_heads": 6, "num_kv_heads": 2, "head_dim": 16}

compiles = pytest.mark.skipif(flex.unsupported(CPU) is not None, reason=str(flex.unsupported(CPU)))


def graphs():
    """Graphs compiled by this process so far."""
    return counters["stats"]["unique_graphs"]


def is_right(**fields):
    """Whether a case is done right, and nothing is compiled once it is prepared."""
    case, strategy = Case(**{**SHAPE, **fields}), registry.get(NAME)
    workload = build(case, CPU)
    oracle.fill(workload)
    prepared = strategy.prepare(workload)
    before = graphs()
    strategy.run(workload, prepared)
    assert graphs() == before
    return check_case(case, strategy, CPU) == ("checked", "")


@st.composite
def steps(draw):
    """A batch: the tokens of its contexts, its blocks, what queries see."""
    block_size = draw(st.sampled_from((1, 2, 6, 16)))
    tile = draw(st.sampled_from([t for t in range(1, block_size + 1) if block_size % t == 0]))
    tiles = st.integers(0, max(240 // tile, 20))
    lengths = [tile * n for n in draw(st.lists(tiles, min_size=1, max_size=2))]
    query_len = draw(st.sampled_from((1, 2, 3, 7, 128, 129, 300)))
    window = draw(st.sampled_from((0, 1, 5, 23, 150)))
    padding = draw(st.integers(0, 2))
    counts = [-(-length // block_size) for length in lengths]
    num_blocks = sum(counts) + draw(st.integers(1, 3))
    order = draw(st.permutations(range(num_blocks)))
    tables = []
    for length, count in zip(lengths, counts, strict=True):
        seen = max(max(length - query_len, 0) - window + 1, 0) if window else 0
        freed = seen // block_size
        own = [order.pop() for _ in range(count)]
        tables.append([NO_BLOCK] * freed + own[freed:] + [NO_BLOCK] * padding)
    longest = max(map(len, tables))
    table = [row + [NO_BLOCK] * (longest - len(row)) for row in tables]
    stride = block_size * draw(st.integers(1, 2))
    return {
        "block_tables": torch.tensor(table).view(len(lengths), longest),
        "lengths": torch.tensor(lengths),
        "block_size": block_size,
        "tile": tile,
        "stride": stride,
        "num_blocks": num_blocks,
        "query_len": query_len,
        "group": draw(st.sampled_from((1, 3, 200))),
        "window": window,
    }


def seen_slots(step, sequence):
    """What each query of a sequence sees: pairs of slot and position, found one by one."""
    length, table = int(step["lengths"][sequence]), step["block_tables"][sequence].tolist()
    for query in range(step["query_len"]):
        own = length - step["query_len"] + query
        first = max(own - step["window"] + 1, 0) if step["window"] else 0
        yield {
            (table[p // step["block_size"]] * step["stride"] + p % step["block_size"], p)
            for p in range(first, own + 1)
        }


@settings(max_examples=200)
@given(step=steps())
def test_lists_have_each_tile_that_is_seen_once_and_none_else(step):
    planned, tile = flex.plan(**step), step["tile"]
    rows = -(-(step["query_len"] if step["query_len"] > 1 else step["group"]) // 128)
    width = step["num_blocks"] * step["stride"] // tile + 1
    assert planned.whole_tiles.shape == (len(step["lengths"]), 1, rows, width)
    assert planned.partial_tiles.shape == planned.whole_tiles.shape
    assert planned.begins.shape == (len(step["lengths"]), width)
    for sequence in range(len(step["lengths"])):
        queries = list(seen_slots(step, sequence))
        for row in range(rows):
            some = queries[row * 128 : (row + 1) * 128] if step["query_len"] > 1 else queries
            of_any, of_all = set.union(*some), set.intersection(*some)
            counts = [int(c[sequence, 0, row]) for c in (planned.partial, planned.whole)]
            partial, whole = (
                tiles[sequence, 0, row, :count].tolist()
                for tiles, count in zip(
                    (planned.partial_tiles, planned.whole_tiles), counts, strict=True
                )
            )
            assert sorted(partial + whole) == sorted({slot // tile for slot, _ in of_any})
            in_all = [slot // tile for slot, _ in of_all]
            assert sorted(whole) == sorted({t for t in in_all if in_all.count(t) == tile})
            begins = planned.begins[sequence].tolist()
            assert all(begins[slot // tile] + slot % tile == at for slot, at in of_any)
            unused = planned.whole_tiles[sequence, 0, row, counts[1] :]
            assert not unused.any()


@given(
    block_size=st.sampled_from((1, 8, 16, 48, 96, 256)),
    contexts=st.lists(st.integers(0, 4).map(lambda n: n * 16), max_size=3),
)
def test_blocks_and_contexts_are_whole_tiles(block_size, contexts):
    for device in (CPU, GPU):
        tile = flex.tile_of(block_size, contexts, device)
        assert not any(length % tile for length in (block_size, *contexts))
    assert tile <= 128
    assert math.log2(tile).is_integer()


@compiles
def test_decode_is_right_and_compiled_once_for_all_sizes():
    before = graphs()
    assert is_right(seq_len=48, batch=3, dtype="fp32")
    assert is_right(seq_len=96, batch=5, dtype="fp32", sliding_window=20, table_padding=2)
    assert is_right(seq_len=32, batch=4, dtype="fp32", lengths="holes", slot_dtype="int32")
    assert is_right(seq_len=16, batch=2, dtype="fp32", shared_blocks=1, block_size=16)
    assert is_right(seq_len=0, batch=3, dtype="fp32")
    assert is_right(seq_len=16, batch=0, dtype="fp32")
    assert graphs() == before + 1


@compiles
def test_a_prefill_is_right_and_compiled_once_for_all_sizes():
    before, kinds = graphs(), len(flex._ready)
    assert is_right(seq_len=64, batch=2, query_len=7, sliding_window=20)
    assert is_right(seq_len=32, batch=3, query_len=41, kv_input="head_major")
    assert is_right(seq_len=80, batch=4, query_len=100, lengths="holes")
    assert graphs() == before + 1
    assert len(flex._ready) == kinds + 1


@compiles
def test_what_is_masked_gets_in_if_it_is_no_number_so_such_contexts_are_refused():
    case = Case(**{**SHAPE, "seq_len": 30, "batch": 3, "dtype": "fp32"})
    assert "ends within a block" in registry.get(NAME).supports(case, CPU)
    workload = build(case, CPU)
    oracle.fill(workload)
    pools = workload.key_pool, workload.value_pool
    planned = flex.plan(
        torch.tensor(workload.block_tables),
        torch.tensor(workload.lengths),
        block_size=16,
        tile=16,
        stride=16,
        num_blocks=len(pools[0]),
        query_len=1,
        group=3,
        window=0,
    )
    flex.ready(planned, workload.query, *pools, scale=0.25)
    assert flex.attend(planned, workload.query, *pools, scale=0.25).isnan().any()
    for pool in pools:
        pool.nan_to_num_(0)
    assert not flex.attend(planned, workload.query, *pools, scale=0.25).isnan().any()


@compiles
def test_a_prediction_is_not_made_and_spoils_nothing():
    case = Case(**{**SHAPE, "seq_len": 16, "batch": 3, "dtype": "fp32"})
    for phase in ("run", "prepare"):
        assert predicted(registry.get(NAME), case, phase) is None
    assert is_right(seq_len=16, batch=3, dtype="fp32")


@pytest.mark.slow
@compiles
@pytest.mark.parametrize(
    "fields",
    [
        {"query_len": 300, "sliding_window": 70, "batch": 2, "seq_len": 320, "dtype": "fp16"},
        {"query_len": 128, "batch": 2, "seq_len": 256},
        {"batch": 1, "seq_len": 64},
        {"batch": 3, "seq_len": 64},
        {"batch": 1, "seq_len": 64, "query_len": 5, "kv_input": "fused_qkv", "soft_cap": 2},
        {"batch": 3, "seq_len": 64, "layout": "NHD-KV", "query_len": 3},
        {"batch": 2, "seq_len": 32, "layout": "MLA", "head_dim": 576, "num_kv_heads": 1},
        {"batch": 2, "seq_len": 33, "block_size": 3, "query_len": 100, "head_dim": 1},
        {"batch": 3, "seq_len": 7, "block_size": 1, "query_len": 2, "dtype": "fp32"},
        {"batch": 1, "seq_len": 1, "block_size": 1, "num_heads": 2},
        {"batch": 3, "seq_len": 320, "block_size": 256, "query_pre_attn_scalar": 50},
        {"batch": 2, "seq_len": 32, "num_heads": 288, "num_kv_heads": 1, "head_dim": 8},
    ],
    ids=lambda fields: " ".join(f"{name}={value}" for name, value in fields.items()),
)
def test_more_kinds_are_right_and_compiled_once(fields):
    before = graphs()
    assert is_right(**fields)
    assert graphs() <= before + 1


@pytest.mark.parametrize(
    ("fields", "device", "reason"),
    [
        ({"cache_dtype": "int8"}, CPU, "cache_dtype int8"),
        ({"layout": "HND"}, CPU, "layout HND: its slots don't lie on one axis"),
        ({"layout": "HND-KV"}, CPU, "layout HND-KV"),
        ({"layout": "x-packed"}, CPU, "layout x-packed"),
        ({"seq_len": 40}, CPU, "unless tiles of 8 slots are read"),
        ({"batch": 8, "lengths": "ragged"}, CPU, "a context ends within a block"),
        ({"block_size": 8}, GPU, "blocks of 8 slots: flex_attention's tiles have 16 or more"),
        ({"block_size": 24, "seq_len": 48}, GPU, "unless tiles of 8 slots"),
        ({"head_dim": 8}, GPU, "heads of 8 elements: flex_attention on a GPU takes 16 to 256"),
        ({"head_dim": 320}, GPU, "heads of 320 elements"),
        ({"layout": "MLA", "num_kv_heads": 1, "head_dim": 576}, GPU, "heads of 576 elements"),
    ],
)
def test_what_it_cannot_do_is_refused_by_name(fields, device, reason):
    case = Case(**{**SHAPE, "seq_len": 64, "batch": 2, **fields})
    assert reason in registry.get(NAME).supports(case, device)


def test_blocks_that_do_not_follow_each_other_have_no_stride():
    pool = torch.zeros(5, 2, 4, 3)
    assert flex.block_stride(pool) == 2
    assert flex.block_stride(torch.zeros(5, 2, 8, 4, 3)[:, 1]) == 16
    with pytest.raises(ValueError, match="one after the other"):
        flex.block_stride(pool.transpose(0, 1))


def test_the_lists_of_an_empty_batch_are_empty():
    planned = flex.plan(
        torch.zeros((0, 0), dtype=torch.int64),
        torch.zeros(0, dtype=torch.int64),
        block_size=16,
        tile=16,
        stride=16,
        num_blocks=1,
        query_len=1,
        group=2,
        window=0,
    )
    assert [len(t) for t in planned.tensors()[:-1]] == [0] * 6
