"""Layouts and slot arithmetic."""

import numpy as np
import pytest
import torch
from drawn import cases
from hypothesis import given
from hypothesis import strategies as st

from kvbench.blocks import place
from kvbench.cases import LAYOUTS, Case
from kvbench.pool import (
    PADDING_SLOT,
    Pools,
    allocate,
    as_slots,
    flat_slots_view,
    no_flat_slots,
    slot_mapping,
    stored_rows,
)

CPU = torch.device("cpu")


@st.composite
def small_pools(draw, layout: str) -> tuple[Case, int]:
    """A case of that layout and a number of blocks, few enough to look at every element."""
    fields = {"layout": layout, "block_size": draw(st.integers(1, 5))}
    heads = 1 if layout == "MLA" else draw(st.integers(1, 3))
    dim = draw(st.integers(1, 9))
    if layout == "MLA":
        fields["rope_dim"] = draw(st.integers(1, 5))
        dim += fields["rope_dim"]
    if layout == "x-packed":
        fields["dtype"] = draw(st.sampled_from(("fp32", "bf16")))
        fields["cache_dtype"] = draw(st.sampled_from(("auto", "int8")))
        x = 16 if fields["cache_dtype"] == "int8" else {"fp32": 4, "bf16": 8}[fields["dtype"]]
        dim = x * draw(st.integers(1, 3))
    case = Case(op="read", seq_len=1, num_heads=heads, num_kv_heads=heads, head_dim=dim, **fields)
    return case, draw(st.integers(0, 4))


def numbered(case: Case, num_blocks: int) -> Pools:
    """Pools of which every element is its place in memory: of the first storage, then the next."""
    pools = allocate(case, num_blocks, torch.int64, CPU)
    first = 0
    for storage in pools.storages:
        storage.view(-1).copy_(torch.arange(first, first + storage.numel()))
        first += storage.numel()
    return pools


def places_by_hand(case: Case, num_blocks: int, pool: str) -> torch.Tensor:
    """Where [block, slot, head, element] of K or V lies, from the shapes that Case.layout has."""
    size, heads, dim = case.block_size, case.num_kv_heads, case.head_dim
    x = case.pack
    is_v = pool == "value"
    # Of two pools, the second begins where the first ends.
    v_begins = is_v * num_blocks * size * heads * dim
    of_mla = case.layout == "MLA"
    dims = (case.rope_dim if is_v else dim - case.rope_dim) if of_mla else dim
    b, s, h, d = np.indices((num_blocks, size, heads, dims))
    return torch.from_numpy(
        {
            "NHD": v_begins + ((b * size + s) * heads + h) * dim + d,
            "HND": v_begins + ((b * heads + h) * size + s) * dim + d,
            "NHD-KV": (((2 * b + is_v) * size + s) * heads + h) * dim + d,
            "HND-KV": ((b * heads + h) * size + s) * 2 * dim + is_v * dim + d,
            "x-packed": v_begins + ((b * heads + h) * dim + d) * size + s
            if is_v
            else (((b * heads + h) * (dim // x) + d // x) * size + s) * x + d % x,
            "MLA": (b * size + s) * dim + is_v * (dim - case.rope_dim) + d,
        }[case.layout]
    )


@pytest.mark.parametrize("layout", LAYOUTS)
@given(data=st.data())
def test_a_view_addresses_the_element_that_its_layout_says(layout, data):
    case, num_blocks = data.draw(small_pools(layout))
    pools = numbered(case, num_blocks)
    for pool in ("key", "value"):
        expected = places_by_hand(case, num_blocks, pool)
        view = getattr(pools, pool)
        if layout == "x-packed" and pool == "key":
            assert view.shape[3:] == (case.head_dim // case.pack, case.pack)
            view = view.reshape(expected.shape)
        assert torch.equal(view, expected)


@pytest.mark.parametrize("layout", LAYOUTS)
@given(data=st.data())
def test_every_element_of_memory_is_one_of_k_or_of_v(layout, data):
    case, num_blocks = data.draw(small_pools(layout))
    pools = numbered(case, num_blocks)
    found = torch.cat([pools.key.flatten(), pools.value.flatten()]).sort().values
    assert torch.equal(found, torch.arange(sum(s.numel() for s in pools.storages)))


@pytest.mark.parametrize(
    ("layout", "shapes"),
    [
        ("NHD", [(7, 4, 2, 16), (7, 4, 2, 16)]),
        ("HND", [(7, 2, 4, 16), (7, 2, 4, 16)]),
        ("NHD-KV", [(7, 2, 4, 2, 16)]),
        ("HND-KV", [(7, 2, 4, 32)]),
        ("x-packed", [(7, 2, 2, 4, 8), (7, 2, 16, 4)]),
        ("MLA", [(7, 4, 16)]),
    ],
)
def test_what_is_allocated_has_the_shape_of_its_layout(layout, shapes):
    fields = {"layout": layout, "block_size": 4, "head_dim": 16}
    heads = 1 if layout == "MLA" else 2
    if layout == "MLA":
        fields["rope_dim"] = 6
    case = Case(op="read", seq_len=1, num_heads=heads, num_kv_heads=heads, **fields)
    pools = allocate(case, 7, torch.bfloat16, CPU)
    assert [tuple(storage.shape) for storage in pools.storages] == shapes
    assert all(storage.is_contiguous() for storage in pools.storages)
    assert {t.dtype for t in (*pools.storages, pools.key, pools.value)} == {torch.bfloat16}


@pytest.mark.parametrize("layout", LAYOUTS)
@given(data=st.data())
def test_what_is_written_through_a_view_is_in_memory_and_nowhere_else(layout, data):
    case, num_blocks = data.draw(small_pools(layout))
    pools = allocate(case, num_blocks, torch.int64, CPU)
    for name in ("key", "value"):
        for storage in pools.storages:
            storage.zero_()
        getattr(pools, name).fill_(1)
        memory = torch.cat([storage.flatten() for storage in pools.storages])
        expected = torch.zeros_like(memory)
        expected[places_by_hand(case, num_blocks, name).flatten()] = 1
        assert torch.equal(memory, expected)


@pytest.mark.parametrize("layout", LAYOUTS)
@given(data=st.data())
def test_rows_in_the_shape_of_slots_are_the_same_elements_in_the_same_memory(layout, data):
    case, _ = data.draw(small_pools(layout))
    pools = allocate(case, 1, torch.int64, CPU)
    tokens = data.draw(st.integers(0, 3))
    for pool, dim in ((pools.key, case.key_dim), (pools.value, case.value_dim)):
        # A slice of wider rows, the heads outermost: any strides will do.
        wide = torch.arange(case.num_kv_heads * tokens * 2 * dim)
        rows = wide.view(case.num_kv_heads, tokens, 2 * dim).transpose(0, 1)[..., dim:]
        seen = as_slots(rows, pool)
        assert seen.shape == (tokens, *pool.shape[2:])
        assert torch.equal(seen.reshape(rows.shape), rows)
        if tokens:
            assert seen.data_ptr() == rows.data_ptr()


def in_plain_python(tables, starts, lengths, block_size, padding) -> list[int]:
    slots = [
        table[position // block_size] * block_size + position % block_size
        for table, start, length in zip(tables, starts, lengths, strict=True)
        for position in range(start, start + length)
    ]
    return slots + [-1] * padding


@given(cases(), st.integers(0, 4))
def test_slot_mapping_is_the_plain_python_one(case, padding):
    at = place(case)
    slots = slot_mapping(at.block_tables, at.starts, at.lengths, case.block_size, padding=padding)
    assert slots.dtype == np.int64
    assert slots.shape == (case.tokens + padding,)
    assert slots.tolist() == in_plain_python(
        at.block_tables, at.starts, at.lengths, case.block_size, padding
    )


@given(cases(op="write"))
def test_no_two_tokens_are_written_to_one_slot_and_every_slot_is_in_the_pool(case):
    at = place(case)
    slots = slot_mapping(at.block_tables, at.starts, at.lengths, case.block_size).tolist()
    stored = [slot for slot in slots if slot >= 0]
    assert len(set(stored)) == len(stored)
    assert all(slot < at.num_blocks * case.block_size for slot in stored)


@given(cases(op="read"))
def test_every_token_that_is_read_has_a_slot_in_the_pool(case):
    at = place(case)
    slots = slot_mapping(at.block_tables, at.starts, at.lengths, case.block_size).tolist()
    assert all(0 <= slot < at.num_blocks * case.block_size for slot in slots)


def test_slots_of_two_sequences_by_hand():
    slots = slot_mapping([[5, 2], [], [0]], [3, 0, 1], [3, 0, 2], 4, padding=2)
    assert slots.tolist() == [23, 8, 9, 1, 2, -1, -1]
    assert PADDING_SLOT == -1


def test_tokens_of_a_block_that_is_missing_have_negative_slots():
    # Positions 2 to 9 in blocks of 4: the middle block has none, what is past the end is unused.
    slots = slot_mapping([[5, -1, 1, -1]], [2], [8], 4)
    assert slots[[0, 1, 6, 7]].tolist() == [22, 23, 4, 5]
    assert (slots[2:6] < 0).all()


@given(st.integers(-(2**40), -1), st.integers(1, 9))
def test_any_negative_entry_of_a_table_makes_negative_slots(entry, block_size):
    assert (slot_mapping([[entry]], [0], [block_size], block_size) < 0).all()


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_stored_rows_are_those_whose_slot_is_not_negative(dtype):
    slots = np.array([-1, 0, 7, -16, 3, -1], dtype=dtype)
    assert stored_rows(slots).tolist() == [1, 2, 4]
    assert stored_rows(slots[:0]).tolist() == []


@given(
    st.lists(st.integers(2**27, 2**55 - 1), min_size=1, max_size=4),
    st.integers(1, 256),
    st.data(),
)
def test_slots_beyond_2_to_the_31_are_exact(table, block_size, data):
    start = data.draw(st.integers(0, len(table) * block_size - 1))
    length = len(table) * block_size - start
    slots = slot_mapping([table], [start], [length], block_size)
    assert slots.tolist() == in_plain_python([table], [start], [length], block_size, 0)


def test_the_slot_after_the_last_32_bit_one():
    assert slot_mapping([[2**27]], [0], [2], 16).tolist() == [2**31, 2**31 + 1]


def test_positions_do_not_overflow_when_the_context_is_huge():
    # Position 2**31 of a sequence: its block is looked up far down the table.
    table = range(2**31 // 2**20 + 1)
    assert slot_mapping([table], [2**31], [1], 2**20).tolist() == [2**31]


def test_nothing_to_map_is_an_empty_mapping():
    for empty in (slot_mapping([], [], [], 16), slot_mapping([[3]], [5], [0], 16)):
        assert empty.shape == (0,)
        assert empty.dtype == np.int64


def test_slots_view_shares_the_memory_of_its_pool():
    pool = torch.zeros(3, 4, 2, 5)
    flat = flat_slots_view(pool)
    assert flat.shape == (12, 2, 5)
    flat[2 * 4 + 3] = 1.0
    assert pool[2, 3].eq(1.0).all()
    assert pool.sum() == 10


@pytest.mark.parametrize("layout", LAYOUTS)
@given(data=st.data())
def test_a_layout_has_flat_slots_or_says_why_not(layout, data):
    case, num_blocks = data.draw(small_pools(layout))
    pools = numbered(case, num_blocks)
    reason = no_flat_slots(case)
    assert (reason is None) == (layout in {"NHD", "MLA"})
    if reason is not None:
        assert reason.startswith(f"layout {layout}: ")
        return
    for name in ("key", "value"):
        flat = flat_slots_view(getattr(pools, name))
        assert torch.equal(flat, places_by_hand(case, num_blocks, name).flatten(0, 1))


@pytest.mark.parametrize("layout", ["HND", "NHD-KV", "HND-KV", "x-packed"])
def test_a_layout_that_says_it_has_no_flat_slots_has_none(layout):
    case = Case(op="read", seq_len=1, layout=layout)
    pools = allocate(case, 3, torch.bfloat16, CPU)
    for pool in (pools.key, pools.value):
        with pytest.raises(RuntimeError, match="view size is not compatible"):
            flat_slots_view(pool)


def test_a_pool_whose_slots_have_no_single_stride_is_refused_not_copied():
    hnd = torch.zeros(3, 2, 4, 5)
    with pytest.raises(RuntimeError, match="view size is not compatible"):
        flat_slots_view(hnd.transpose(1, 2))
