"""The tensors of a case."""

import numpy as np
import pytest
import torch
from drawn import cases
from hypothesis import given

from kvbench.blocks import Placement, place
from kvbench.cases import Case
from kvbench.workload import TORCH_DTYPES, Workload, build, fill, required_bytes

CPU = torch.device("cpu")


def integers(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view({2: torch.int16, 4: torch.int32}[tensor.element_size()])


def contents(workload: Workload) -> list[torch.Tensor]:
    return [integers(tensor).clone() for tensor in workload.tensors()]


@given(cases())
def test_tensors_have_the_shapes_and_the_dtype_of_their_case(case):
    workload = build(case, CPU)
    rows = case.tokens + case.padding if case.op == "write" else 0
    placement = place(case)
    pool = (placement.num_blocks, case.block_size, case.num_kv_heads, case.head_dim)
    assert workload.key.shape == workload.value.shape == (rows, case.num_kv_heads, case.head_dim)
    assert workload.key_pool.shape == workload.value_pool.shape == pool
    assert {tensor.dtype for tensor in workload.tensors()} == {TORCH_DTYPES[case.dtype]}
    assert {tensor.device for tensor in workload.tensors()} == {CPU}
    assert workload.key_pool.is_contiguous()
    assert workload.value_pool.is_contiguous()


@given(cases())
def test_the_lists_are_those_of_the_placement(case):
    workload, placement = build(case, CPU), place(case)
    assert workload.starts == placement.starts
    assert workload.lengths == placement.lengths
    assert workload.block_tables == placement.block_tables
    assert workload.block_size == case.block_size


def test_a_placement_that_is_given_replaces_the_case_s_own():
    case = Case(op="write", seq_len=1, batch=2, block_size=4, padding=1)
    placement = Placement(starts=[0], lengths=[5], block_tables=[[7, 1]], num_blocks=9)
    workload = build(case, CPU, placement)
    assert workload.key.shape == (5 + 1, 8, 128)
    assert workload.key_pool.shape == (9, 4, 8, 128)
    assert workload.block_tables == [[7, 1]]


@given(cases(op="write"))
def test_token_stride_is_that_of_a_row_or_of_a_qkv_projection(case):
    workload = build(case, CPU)
    heads = case.num_kv_heads
    if case.kv_input == "fused_qkv":
        heads += case.num_heads + case.num_kv_heads
    for rows in (workload.key, workload.value):
        assert rows.stride() == (heads * case.head_dim, case.head_dim, 1)


def test_k_and_v_of_a_qkv_projection_are_slices_of_one_tensor_behind_q():
    case = Case(
        op="write",
        seq_len=3,
        kv_input="fused_qkv",
        num_heads=6,
        num_kv_heads=2,
        head_dim=16,
        dtype="fp32",
    )
    workload = build(case, CPU)
    assert workload.key.untyped_storage().data_ptr() == workload.value.untyped_storage().data_ptr()
    assert workload.key.storage_offset() == 6 * 16
    assert workload.value.storage_offset() == (6 + 2) * 16


@given(cases())
def test_no_two_tensors_overlap(case):
    workload = build(case, CPU)
    for number, tensor in enumerate(workload.tensors()):
        integers(tensor).fill_(number)
    for number, tensor in enumerate(workload.tensors()):
        assert integers(tensor).eq(number).all()


@given(cases())
def test_a_fill_depends_on_the_case_and_the_version_alone(case):
    one, other = build(case, CPU), build(case, CPU)
    for tensor in other.tensors():
        integers(tensor).fill_(-1)
    fill(other, 5)  # an earlier fill leaves nothing behind
    fill(one, 1)
    fill(other, 1)
    for tensor, same in zip(contents(one), contents(other), strict=True):
        assert torch.equal(tensor, same)


def test_fills_of_other_versions_and_seeds_differ_in_every_tensor():
    fillings = []
    for seed, version in ((0, 0), (0, 1), (0, 2), (1, 0), (1, 1)):
        workload = build(Case(op="write", seq_len=3, seed=seed, block_order="sequential"), CPU)
        fill(workload, version)
        fillings.append(contents(workload))
    for i, one in enumerate(fillings):
        for other in fillings[:i]:
            for tensor, unlike in zip(one, other, strict=True):
                # Of random 16-bit words, one in 65536 is the same by chance.
                assert tensor.ne(unlike).float().mean() > 0.99


def test_a_fill_makes_every_row_unlike_every_other():
    workload = build(Case(op="write", seq_len=9, padding=2, num_kv_heads=1, num_heads=1), CPU)
    fill(workload)
    rows = torch.cat([integers(tensor).reshape(-1, 128) for tensor in workload.tensors()])
    assert len(rows.unique(dim=0)) == len(rows)


def test_a_fill_leaves_no_bit_of_any_8_bytes_fixed():
    workload = build(Case(op="write", seq_len=64), CPU)
    fill(workload)
    for tensor in workload.tensors():
        words = tensor.flatten().view(torch.int64).numpy()
        assert np.bitwise_or.reduce(words) == -1
        assert np.bitwise_and.reduce(words) == 0


def test_a_fill_holds_what_arithmetic_would_not_keep():
    for dtype in TORCH_DTYPES:
        workload = build(Case(op="read", seq_len=256, dtype=dtype), CPU)
        fill(workload)
        for pool in (workload.key_pool, workload.value_pool):
            nans = integers(pool)[pool.isnan()]
            assert len(nans.unique()) > 100  # payloads and signs
            tiny = torch.finfo(pool.dtype).tiny
            assert ((pool != 0) & (pool.abs() < tiny)).any()  # lost where denormals are flushed
    halves = build(Case(op="read", seq_len=256, dtype="fp16"), CPU)
    fill(halves)
    assert halves.key_pool.isinf().any()


@given(cases())
def test_required_bytes_cover_the_tensors_the_outputs_and_the_copies_of_a_check(case):
    workload = build(case, CPU)
    storages = {s.data_ptr(): s for s in (t.untyped_storage() for t in workload.tensors())}
    allocated = sum(storage.nbytes() for storage in storages.values())
    pools = workload.key_pool.nbytes + workload.value_pool.nbytes
    copies_of_rows = workload.key.nbytes + workload.value.nbytes
    outputs = 2 * case.tokens * case.row_bytes if case.op == "read" else 0
    # A check holds both pools as they were, and one as it is and as it should be.
    needed = allocated + 2 * pools + copies_of_rows + outputs
    assert required_bytes(case, place(case)) >= needed


@pytest.mark.parametrize("seed", [2**31, 2**63, 10**30])
def test_any_seed_that_a_case_takes_fills_its_tensors(seed):
    workload = build(Case(op="write", seq_len=3, seed=seed), CPU)
    fill(workload, 1)
    assert integers(workload.key_pool).unique().numel() > 1000
