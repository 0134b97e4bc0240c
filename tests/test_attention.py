"""The oracle of attention: its reference against plain loops, and the faults that it must find."""

import dataclasses
import math
from typing import ClassVar

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvbench import oracle
from kvbench.attention import attend
from kvbench.cases import MOST_SOFT_CAP, Case
from kvbench.filling import fill
from kvbench.strategies.base import Strategy
from kvbench.workload import Workload, build
from tests.drawn import attends

CPU = torch.device("cpu")


def by_loops(query, key, value, case: Case, length: int) -> np.ndarray:
    """Attention written once more, a score at a time; key and value from position 0 on."""
    output = np.zeros((*query.shape[:2], value.shape[2]))
    for t, h in np.ndindex(query.shape[:2]):
        own = length - case.query_len + t
        kv_head = h // (case.num_heads // case.num_kv_heads)
        total = 0.0
        for position in range(length):
            window = case.sliding_window
            if position > own or (window and position <= own - window):
                continue
            score = sum(a * b for a, b in zip(query[t, h], key[position, kv_head], strict=True))
            score /= math.sqrt(case.query_pre_attn_scalar or case.head_dim)
            if case.soft_cap:
                score = case.soft_cap * math.tanh(score / case.soft_cap)
            total += math.exp(score)
            output[t, h] += math.exp(score) * value[position, kv_head]
        if total:
            output[t, h] /= total
    return output


@settings(max_examples=40)
@given(
    length=st.integers(0, 9),
    query_len=st.integers(1, 4),
    kv_heads=st.integers(1, 2),
    group=st.integers(1, 3),
    window=st.integers(0, 5),
    soft_cap=st.integers(0, 3),
    scalar=st.integers(0, 9),
    seed=st.integers(0, 99),
)
def test_the_reference_is_what_plain_loops_give(
    length, query_len, kv_heads, group, window, soft_cap, scalar, seed
):
    case = Case(
        op="attend",
        seq_len=length,
        query_len=query_len,
        num_kv_heads=kv_heads,
        num_heads=kv_heads * group,
        head_dim=5,
        sliding_window=window,
        soft_cap=soft_cap,
        query_pre_attn_scalar=scalar,
        dtype="fp32",
    )
    rng = np.random.default_rng(seed)
    query = rng.standard_normal((query_len, case.num_heads, 5))
    key, value = rng.standard_normal((2, length, kv_heads, 5))
    first = case.first_visible(length)
    right = attend(query, key[first:], value[first:], case, length)
    np.testing.assert_allclose(
        right.output, by_loops(query, key, value, case, length), rtol=1e-12, atol=1e-14
    )
    assert (right.tolerance >= 0).all()
    assert (right.tolerance <= 1e-4).all()  # float32 of a few numbers of about 1


class Plain(Strategy):
    """Attention in float32, a sequence at a time, with one fault or none."""

    name: ClassVar[str] = "attend.plain"
    op: ClassVar[str] = "attend"
    summary: ClassVar[str] = "of the tests"

    def __init__(self, fault: str = "") -> None:
        self.fault = fault

    def run(self, workload: Workload, prepared: object) -> torch.Tensor:  # noqa: ARG002
        none = workload.query.new_empty((0, *workload.query.shape[1:]))
        outputs = [self.sequence(workload, i) for i in range(len(workload.lengths))]
        return torch.cat([none, *(o.to(workload.dtype) for o in outputs)])

    def sequence(self, w: Workload, sequence: int) -> torch.Tensor:
        case, length, fault = w.case, w.lengths[sequence], self.fault
        count, heads = case.query_len, case.num_heads
        query = w.query[sequence * count : (sequence + 1) * count].float()
        first = case.first_visible(length)
        at = torch.arange(first, length)
        table = torch.tensor(w.block_tables[sequence], dtype=torch.int64)
        places = table[at // case.block_size], at % case.block_size
        if fault == "V of the next slot" and len(at):
            shifted = places[0], places[1].roll(-1)
        else:
            shifted = places
        key = w.key_pool[places].float().flatten(2)
        value = w.value_pool[shifted].float().flatten(2)
        kv_head = torch.arange(heads) // (heads // case.num_kv_heads)
        if fault == "heads by turns":
            kv_head = torch.arange(heads) % case.num_kv_heads
        scale = case.softmax_scale * (1.02 if fault == "scale" else 1)
        scores = torch.einsum("thd,phd->thp", query, key[:, kv_head]) * scale
        if fault == "scores in the dtype":
            scores = scores.to(w.dtype).float()
        if case.soft_cap and fault != "no cap":
            scores = case.soft_cap * torch.tanh(scores / case.soft_cap)
        seen = self.seen(case, at, length)
        weights = scores.masked_fill(~seen[:, None], -torch.inf)
        if fault == "largest not taken off":
            weights = weights.exp() / weights.exp().sum(-1, keepdim=True)
        else:
            weights = weights.softmax(-1)
        if fault != "NaN where nothing is seen":
            weights = weights.nan_to_num(0)
        if fault == "one counted twice":
            weights[..., len(at) // 2] *= 2
        if fault == "weights in the dtype":
            weights = weights.to(w.dtype).float()
        return torch.einsum("thp,phd->thd", weights, value[:, kv_head])

    def seen(self, case: Case, at: torch.Tensor, length: int) -> torch.Tensor:
        """Which of the positions each query sees."""
        fault, count = self.fault, case.query_len
        own = (torch.arange(count) + length - count)[:, None]
        seen = at <= own + {"sees one more": 1, "not itself": -1}.get(fault, 0)
        if fault == "aligned to the first":
            seen = at <= torch.arange(count)[:, None]
        if case.sliding_window:
            wider = {"window too long": 1, "window too short": -1}.get(fault, 0)
            seen &= at > own - case.sliding_window - wider
        if fault == "first left out":
            seen &= at > at[0]
        if fault == "one in the middle left out":
            seen &= at != at[len(at) // 2]
        return seen


RIGHT = Case(
    op="attend",
    seq_len=300,
    batch=2,
    query_len=3,
    num_heads=8,
    num_kv_heads=2,
    head_dim=64,
    sliding_window=250,
    soft_cap=2,
    dtype="bf16",
)


@pytest.mark.parametrize("fault", ["", "weights in the dtype"])
@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
def test_what_is_right_passes(fault, dtype):
    assert not oracle.check(Plain(fault), build(dataclasses.replace(RIGHT, dtype=dtype), CPU))


@pytest.mark.parametrize("seq_len", [300, 1200])
@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize(
    "fault",
    [
        *("V of the next slot", "heads by turns", "scale", "no cap", "sees one more"),
        *("not itself", "aligned to the first", "window too long", "window too short"),
        *("first left out", "one in the middle left out", "one counted twice"),
    ],
)
def test_a_fault_is_found(fault, dtype, seq_len):
    case = dataclasses.replace(RIGHT, dtype=dtype, seq_len=seq_len, sliding_window=seq_len - 50)
    mismatch = oracle.check(Plain(fault), build(case, CPU))
    assert "the output of sequence" in mismatch
    assert "expected" in mismatch


@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
def test_a_softmax_that_overflows_is_found(dtype):
    case = dataclasses.replace(RIGHT, dtype=dtype, soft_cap=0)
    assert not oracle.check(Plain(), build(case, CPU))
    assert "the output of sequence" in oracle.check(
        Plain("largest not taken off"), build(case, CPU)
    )


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_faults_are_found_under_the_largest_cap(dtype):
    case = dataclasses.replace(RIGHT, dtype=dtype, soft_cap=MOST_SOFT_CAP)
    assert not oracle.check(Plain(), build(case, CPU))
    for fault in ("scale", "not itself", "window too long", "first left out", "one counted twice"):
        assert "the output of sequence" in oracle.check(Plain(fault), build(case, CPU))


def test_a_query_that_sees_nothing_gives_zeros():
    case = dataclasses.replace(RIGHT, seq_len=2, lengths="equal", sliding_window=0)
    assert not oracle.check(Plain(), build(case, CPU))
    assert "is nan; expected 0 within" in oracle.check(
        Plain("NaN where nothing is seen"), build(case, CPU)
    )


@settings(max_examples=30)
@given(case=attends(), version=st.integers(0, 3))
def test_what_is_seen_is_a_number_and_what_nobody_holds_is_none(case, version):
    w = build(case, CPU)
    fill(w, version)
    held = set()
    for table, length in zip(w.block_tables, w.lengths, strict=True):
        first = case.first_visible(length) // case.block_size * case.block_size
        held |= {(table[p // case.block_size], p % case.block_size) for p in range(first, length)}
    for pool, scale in ((w.key_pool, w.key_scale), (w.value_pool, w.value_scale)):
        for block, slot in np.ndindex(tuple(pool.shape[:2])):
            row = pool[block, slot]
            broken = bool(row.float().isnan().all())
            if scale is not None and case.kv_scale == "per_token":
                broken = bool(scale[block, slot].isnan())
            if case.cache_dtype == "int8" and case.kv_scale != "per_token":
                continue  # no NaN among its codes, nor one in a scale
            assert broken == ((block, slot) not in held)
            assert broken or not row.float().isnan().any()


@settings(max_examples=40)
@given(case=attends(cache_dtype="auto"))
def test_the_plain_attention_of_the_tests_is_right_on_the_drawn_space(case):
    if case.layout == "MLA":
        return
    assert not oracle.check(Plain(), build(case, CPU))
