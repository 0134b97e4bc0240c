"""Slot arithmetic."""

import numpy as np
import pytest
import torch
from drawn import cases
from hypothesis import given
from hypothesis import strategies as st

from kvbench.blocks import place
from kvbench.pool import PADDING_SLOT, flat_slots_view, slot_mapping


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


@given(cases())
def test_no_two_tokens_share_a_slot_and_every_slot_is_in_the_pool(case):
    at = place(case)
    slots = slot_mapping(at.block_tables, at.starts, at.lengths, case.block_size).tolist()
    assert len(set(slots)) == len(slots)
    assert all(0 <= slot < at.num_blocks * case.block_size for slot in slots)


def test_slots_of_two_sequences_by_hand():
    slots = slot_mapping([[5, 2], [], [0]], [3, 0, 1], [3, 0, 2], 4, padding=2)
    assert slots.tolist() == [23, 8, 9, 1, 2, -1, -1]
    assert PADDING_SLOT == -1


@given(
    st.lists(st.integers(2**27, 2**55), min_size=1, max_size=4),
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


def test_a_pool_whose_slots_have_no_single_stride_is_refused_not_copied():
    hnd = torch.zeros(3, 2, 4, 5)
    with pytest.raises(RuntimeError, match="view size is not compatible"):
        flat_slots_view(hnd.transpose(1, 2))
