"""Tensors handed on from case to case: of one shape alone, and no bit of what was there before."""

import dataclasses

import pytest
import torch
from drawn import cases
from hypothesis import given

from kvbench import oracle
from kvbench.axes import Axes
from kvbench.buffers import Buffers
from kvbench.cases import Case
from kvbench.strategies import registry
from kvbench.sweep.runner import Plan
from kvbench.workload import build

registry.load_builtin()
CPU = torch.device("cpu")
CASE = Case(
    op="write", seq_len=40, batch=2, lengths="equal", num_kv_heads=2, num_heads=2, head_dim=16
)


def addresses(workload) -> dict[str, int]:
    return {name: tensor.data_ptr() for name, tensor in workload.tensors().items()}


@pytest.mark.parametrize(
    "fields", [{}, {"seed": 1}, {"block_order": "sequential"}, {"slot_dtype": "int32"}]
)
def test_a_case_of_the_same_shape_has_the_same_tensors_and_lists_of_its_own(fields):
    buffers = Buffers()
    first = buffers.build(CASE, CPU)
    buffers.keep(first)
    other = dataclasses.replace(CASE, **fields)
    again = buffers.build(other, CPU)
    assert addresses(again) == addresses(first)
    assert again.case == other
    alone = build(other, CPU)
    assert (again.starts, again.lengths) == (alone.starts, alone.lengths)
    assert again.block_tables == alone.block_tables


@pytest.mark.parametrize(
    "fields",
    [
        {"seq_len": 41},
        {"dtype": "fp32"},
        {"layout": "HND"},
        {"op": "read"},
        {"kv_input": "fused_qkv"},
        {"cache_dtype": "int8"},
        {"block_size": 8},
    ],
)
def test_another_shape_lets_them_go_and_has_its_own(fields):
    buffers = Buffers()
    kept = buffers.build(CASE, CPU)
    buffers.keep(kept)
    other = dataclasses.replace(CASE, **fields)
    assert buffers.usable_bytes(other, CPU) == 0
    found = buffers.build(other, CPU)
    alone = build(other, CPU)
    assert {n: t.shape for n, t in found.tensors().items()} == {
        n: t.shape for n, t in alone.tensors().items()
    }
    assert not set(addresses(found).values()) & set(addresses(kept).values())


def test_more_blocks_are_not_found_in_a_smaller_pool():
    buffers = Buffers()
    buffers.keep(buffers.build(CASE, CPU))
    far = dataclasses.replace(CASE, start_pos=1000)
    assert len(buffers.build(far, CPU).storages[0]) == len(build(far, CPU).storages[0])


def test_what_is_kept_counts_as_free_for_a_case_that_can_have_it():
    buffers = Buffers()
    buffers.keep(buffers.build(CASE, CPU))
    expected = sum(t.untyped_storage().nbytes() for t in build(CASE, CPU).tensors().values())
    assert buffers.usable_bytes(CASE, CPU) == expected
    assert buffers.usable_bytes(dataclasses.replace(CASE, seq_len=9), CPU) == 0
    assert buffers.usable_bytes(CASE, CPU) == 0, "they were let go"


USUAL = {"cache_dtype": "auto", "layout": "NHD", "output": "allocated"}


@given(cases(**USUAL), cases(**USUAL))
def test_whatever_was_there_before_the_work_is_right(first, second):
    buffers = Buffers()
    for case in (first, dataclasses.replace(first, seed=first.seed + 1), second):
        workload = buffers.build(case, CPU)
        assert oracle.check(registry.get(f"{case.op}.slot_mapping"), workload) == ""
        buffers.keep(workload)


def test_cases_of_one_shape_follow_each_other_in_a_random_order_of_shapes():
    made = Axes.parse(["op=write", "seq_len=1:64:*2", "block_order=sequential,shuffled,strided"])
    plan = Plan(
        cases=made.expand(),
        strategies=(),
        device=CPU,
        command="",
        preset=None,
        seed=3,
        cell_seconds=1,
        call_budget_s=1,
        layers=1,
        clocks=("wall",),
        cache="hot",
    )
    order = plan.in_order()
    assert sorted(map(str, order)) == sorted(map(str, plan.cases))
    sizes = [case.seq_len for case in order]
    assert all(len(set(sizes[i : i + 3])) == 1 for i in range(0, len(sizes), 3))
    assert sizes != sorted(sizes)
    assert len({tuple(c.block_order for c in order[i : i + 3]) for i in range(0, 21, 3)}) > 1
