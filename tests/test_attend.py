"""Every attention that gathers, against the oracle.

Those that read in place have tests of their own: test_attend_flex, _native and _triton.
"""

import dataclasses

import pytest
import torch
from drawn import attends
from hypothesis import given, settings
from hypothesis import strategies as st

from kvbench.axes import expand_all
from kvbench.cases import Case
from kvbench.presets import CHECK_GRIDS
from kvbench.strategies import registry
from kvbench.sweep.checking import check_case

registry.load_builtin()
CPU = torch.device("cpu")
GRID = [case for case in expand_all(CHECK_GRIDS) if case.op == "attend"]
CHUNKS = 8
GATHERING = [
    s
    for s in registry.all_strategies()
    # Compiling takes seconds for each kind, CUDA C++ and streams have no place here.
    if s.name.startswith("attend.sdpa_") and not s.name.endswith(("compile", "cuda", "streams"))
]
WHOLE = [registry.get("attend.sdpa_indexing"), registry.get("attend.enable_gqa")]
"""Those that do the whole grid; other reads do a part of it each, together all of it."""


def each(strategies):
    return pytest.mark.parametrize("strategy", strategies, ids=lambda s: s.name)


def reading(case: Case) -> Case:
    """The read that gathers for an attend."""
    return dataclasses.replace(
        case,
        op="read",
        query_len=1,
        sliding_window=0,
        soft_cap=0,
        query_pre_attn_scalar=0,
        kv_input="contiguous",
    )


def is_plain(case: Case) -> bool:
    """Decode over equal contexts of plain pools."""
    return (
        case.query_len == 1
        and not (case.sliding_window or case.soft_cap or case.quantised)
        and case.layout == "NHD"
        and len(set(case.sequences()[1])) == 1
        and case.seq_len > 0
    )


def is_refused(strategy, case: Case) -> bool:
    if strategy.name == "attend.enable_gqa":
        return not is_plain(case)
    read = registry.get(strategy.name.replace("attend.sdpa_", "read."))
    return case.soft_cap > 0 or read.supports(reading(case), CPU) is not None


def faults(strategies, cases):
    found = []
    for case in cases:
        for strategy in strategies:
            status, why = check_case(case, strategy, CPU)
            if status != ("unsupported" if is_refused(strategy, case) else "checked"):
                found.append((strategy.name, status, why, case.label()))
    return found


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_gathering_and_attending_is_right_in_the_check_grids(chunk):
    assert faults(WHOLE, GRID[chunk::CHUNKS]) == []


@pytest.mark.parametrize("number", range(len(GATHERING)), ids=[s.name for s in GATHERING])
def test_attending_over_each_read_is_right_in_a_part_of_the_grids(number):
    slow = GATHERING[number].name == "attend.sdpa_triton"  # interpreted
    part = GRID[number :: len(GATHERING) * (4 if slow else 1)]
    assert faults([GATHERING[number]], part) == []


@each([registry.get(f"attend.sdpa_{way}") for way in ("indexing", "blocks", "block_slices")])
@settings(max_examples=100)
@given(data=st.data())
def test_attending_over_copies_is_right_in_any_case(strategy, data):
    case = data.draw(attends())
    assert faults([strategy], [case]) == []


@settings(max_examples=60)
@given(
    batch=st.integers(1, 3),
    seq_len=st.integers(1, 50),
    num_kv_heads=st.sampled_from((1, 3)),
    group=st.sampled_from((1, 4)),
    dtype=st.sampled_from(("fp32", "bf16", "fp16")),
)
def test_the_plain_way_is_right_in_what_it_does(batch, seq_len, num_kv_heads, group, dtype):
    case = Case(
        op="attend",
        seq_len=seq_len,
        batch=batch,
        lengths="equal",
        num_heads=num_kv_heads * group,
        num_kv_heads=num_kv_heads,
        head_dim=16,
        dtype=dtype,
    )
    assert check_case(case, registry.get("attend.enable_gqa"), CPU) == ("checked", "")


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"soft_cap": 30}, "scaled_dot_product_attention has no soft cap"),
        ({"layout": "HND"}, "layout HND: "),
        ({"slot_dtype": "int32"}, "slot_dtype=int32: "),
    ],
    ids=str,
)
def test_a_gather_that_cannot_be_had_is_refused_by_its_own_reason(fields, said):
    case = Case(op="attend", seq_len=8, **fields)
    status, why = check_case(case, registry.get("attend.sdpa_gather"), CPU)
    assert status == "unsupported"
    assert why.startswith(said)
