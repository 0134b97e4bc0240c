"""The C++ kernel of attention: any case, any number of threads, how work is dealt out."""

import contextlib
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from drawn import attends
from hypothesis import given, settings
from hypothesis import strategies as st

from kvbench.cases import Case
from kvbench.kernels.native import attend, build, library
from kvbench.kernels.native.attend import Plan
from kvbench.strategies import registry
from kvbench.sweep.checking import check_case
from kvbench.sweep.launches import predicted

CPU = torch.device("cpu")
ROOT = Path(__file__).parent.parent
REASON = library.attention_unsupported(CPU)
needs_kernel = pytest.mark.skipif(REASON is not None, reason=str(REASON))


@contextlib.contextmanager
def forced(threads, **sizes):
    """So many threads for any case of so many chunks, and other sizes of chunks, tiles or items."""
    before = torch.get_num_threads()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attend, "WORK_PER_THREAD", 1)
        for name, size in sizes.items():
            patch.setattr(attend, name, size)
        torch.set_num_threads(threads)
        try:
            yield
        finally:
            torch.set_num_threads(before)


def checked(case):
    return check_case(case, registry.get("attend.native"), CPU)


# What it computes.


@needs_kernel
@settings(max_examples=200)
@given(
    case=attends(),
    threads=st.integers(1, 4),
    chunk=st.sampled_from((1, 5, 16, 32, 64)),
    tile=st.sampled_from((1, 12, 64)),
    state=st.sampled_from((1, 1 << 15)),
)
def test_any_case_is_right_however_it_is_dealt_out(case, threads, chunk, tile, state):
    with forced(threads, CHUNK_TOKENS=chunk, TILE_ROWS=tile, STATE_FLOATS=state):
        assert checked(case) == ("checked", "")


@needs_kernel
@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize(
    "fields",
    [
        {"batch": 1, "seq_len": 3000},
        {"batch": 5, "seq_len": 700, "lengths": "ragged", "head_dim": 64},
        {"batch": 2, "seq_len": 900, "query_len": 130, "lengths": "ragged"},
        {"batch": 2, "seq_len": 600, "sliding_window": 333, "query_len": 3, "dtype": "fp32"},
        {"batch": 2, "seq_len": 500, "num_heads": 32, "num_kv_heads": 1, "head_dim": 256},
        {"batch": 1, "seq_len": 400, "num_heads": 128, "num_kv_heads": 1, "layout": "MLA"}
        | {"head_dim": 576, "rope_dim": 64},
        {"batch": 3, "seq_len": 400, "layout": "x-packed", "cache_dtype": "fp8_e4m3"}
        | {"kv_scale": "per_token"},
    ],
    ids=str,
)
def test_long_contexts_are_split_between_threads(fields, threads):
    with forced(threads):
        assert checked(Case(op="attend", **fields)) == ("checked", "")


def operands(lengths=(40, 3), query_len=1, dtype=torch.float32, num_blocks=9, **fields):
    """Operands of two sequences, or of as many as there are lengths, in blocks of 16."""
    lengths = torch.as_tensor(lengths)
    pools = [torch.randn(num_blocks, 16, 2, 8, dtype=dtype) for _ in "KV"]
    table = torch.arange(4 * len(lengths)).view(-1, 4)
    query = torch.randn(len(lengths) * query_len, 4, 8, dtype=dtype)
    found = {"query": query, "key_pool": pools[0], "value_pool": pools[1]}
    found |= {"block_table": table, "lengths": lengths, "query_len": query_len, "scale": 0.5}
    return found | fields


def layer(found):
    return found["query"], found["key_pool"], found["value_pool"]


@needs_kernel
def test_a_query_without_a_context_has_zeros():
    found = operands(lengths=(0, 2), query_len=3)
    output = Plan(**found).run(*layer(found))
    assert output.shape == (6, 4, 8)
    assert output[:4].eq(0).all()
    assert output[4:].ne(0).all()


@needs_kernel
@pytest.mark.parametrize("block", [-1, 9, 2**31 - 1, 2**62])
def test_a_block_that_the_pool_does_not_have_is_an_error(block):
    found = operands()
    plan = Plan(**found)
    found["block_table"][1, 0] = block
    with pytest.raises(IndexError, match="sequence 1 sees a block that is not in the pool"):
        plan.run(*layer(found))


@needs_kernel
def test_the_same_plan_gives_the_same_bits_for_each_layer():
    found = operands(lengths=(64, 50, 7), num_blocks=12)
    with forced(3, CHUNK_TOKENS=8):
        plan = Plan(**found)
        assert plan.threads == 3
        first, second = plan.run(*layer(found)), plan.run(*layer(found))
    assert torch.equal(first, second)


# How work is dealt out.


@given(
    lengths=st.lists(st.integers(0, 200), max_size=6),
    query_len=st.integers(1, 40),
    queries=st.integers(1, 8),
    heads=st.tuples(st.integers(1, 7), st.integers(1, 7)),
    window=st.sampled_from((0, 1, 30)),
)
def test_items_are_all_queries_and_heads_once_with_all_that_they_see(
    lengths, query_len, queries, heads, window
):
    num_kv_heads, at_once = heads
    array = np.array(lengths, dtype=np.int64)
    items = attend._items(array, query_len, queries, num_kv_heads, at_once, window)
    chunks, rows = attend._deal_out(items)
    taken = np.zeros((len(lengths), num_kv_heads, query_len), dtype=int)
    seen = 0
    for item in items:
        own = slice(item["query"], item["query"] + item["queries"])
        taken[item["sequence"], item["head"] : item["head"] + item["heads"], own] += 1
        positions = [lengths[item["sequence"]] - query_len + t for t in range(query_len)[own]]
        visible = [
            position
            for last in positions
            for position in range(max(0, last - window + 1) if window else 0, last + 1)
        ]
        if visible:
            assert (item["first"], item["last"]) == (min(visible), max(visible) + 1)
        else:
            assert item["first"] == item["last"]
        seen += (item["last"] - item["first"]) * item["heads"] * item["queries"]
    assert (taken == 1).all()
    assert rows == seen
    ends = [*items["chunk"][1:], chunks] if len(items) else []
    for item, end in zip(items, ends, strict=True):
        count = -((item["first"] - item["last"]) // attend.CHUNK_TOKENS)
        assert end - item["chunk"] == max(count, 1)


@needs_kernel
@pytest.mark.parametrize(("context", "threads"), [(32, 1), (4096, 1), (1 << 15, 2)])
def test_a_small_call_takes_one_thread_whatever_pytorch_has(context, threads):
    # 16 multiplications for each of a token's two heads, and of its four queries' heads.
    table = torch.zeros(1, context // 16, dtype=torch.int64)
    found = operands(lengths=(context,), block_table=table, threads=2)
    assert Plan(**found).threads == threads


# What is refused.


@needs_kernel
@pytest.mark.parametrize(
    ("broken", "message"),
    [
        ({"query": torch.zeros(2, 4, 7)}, "query's dim is 7; expected 8"),
        ({"query": torch.zeros(2, 8, 4).mT}, "query's last stride is 4; expected 1"),
        ({"query": torch.zeros(2, 3, 8)}, "query has 3 heads; expected a multiple of 2"),
        ({"query": torch.zeros(3, 4, 8)}, "query's tokens is 3; expected 2"),
        ({"query": torch.zeros(2, 4, 8, device="meta").double()}, "query's dtype is torch.float64"),
        ({"key_pool": torch.zeros(9, 16, 2, 8).half()}, "key_pool's dtype is torch.float16"),
        ({"value_pool": torch.zeros(9, 16, 1, 8)}, "value_pool's slots and heads is (9, 16, 1)"),
        ({"lengths": torch.tensor([65, 1])}, "a context has 65 tokens; expected up to 64"),
        ({"lengths": torch.tensor([40, 3]).int()}, "lengths' dtype is torch.int32"),
        ({"block_table": torch.zeros(2, 4)}, "block_table's dtype is torch.float32; expected"),
        ({"block_table": torch.zeros(1, 4).long()}, "block_table's sequences is 1; expected 2"),
    ],
    ids=str,
)
def test_operands_that_do_not_go_together_are_refused(broken, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        Plan(**operands(**broken))


def test_another_device_is_refused_without_a_build(monkeypatch):
    monkeypatch.setattr(library, "_attention", lambda: pytest.fail("it was built"))
    strategy = registry.get("attend.native")
    case = Case(op="attend", seq_len=1)
    assert strategy.supports(case, torch.device("cuda:0")) == "C++ for the CPU's own memory"
    assert predicted(strategy, case, "run") is None


def test_without_a_library_the_strategy_says_why(monkeypatch):
    monkeypatch.setattr(library, "_attention", lambda: "no C++ compiler")
    case = Case(op="attend", seq_len=1)
    assert checked(case) == ("unsupported", "no C++ compiler")
    with pytest.raises(build.BuildError, match="no C\\+\\+ compiler"):
        Plan(**operands())


# The benchmark.


@needs_kernel
def test_the_benchmark_says_whether_the_targets_are_met():
    done = subprocess.run(
        [
            *(sys.executable, "benchmarks/attend.py", "--batch", "1", "--context", "32"),
            *("--seconds", "0.01", "--dtypes", "bf16"),
        ],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
        env={**os.environ, "COLUMNS": "200"},
    )
    lines = [line.split("│")[1:-1] for line in done.stdout.splitlines() if line.startswith("│")]
    rows = {name.strip(): [cell.strip() for cell in cells] for name, *cells in lines}
    assert [name for name in rows if name == "attend.native"] == [next(iter(rows))]
    targets = {cells[3]: cells[4] for cells in rows.values() if cells[3] != "—"}
    assert set(targets) == {"at least 60%", "at least 8x"}
    assert set(targets.values()) <= {"met", "missed", "unsure"}
    assert sum(name.startswith("read by") for name in rows) == 4
    assert sum(name.startswith("attend.") for name in rows) == 4
