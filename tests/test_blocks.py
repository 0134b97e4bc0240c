"""Where sequences lie in the pool."""

import dataclasses
import itertools
from collections import Counter

import pytest
from drawn import cases
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from kvbench.blocks import NO_BLOCK, BlockAllocator, Placement, place, place_sequences
from kvbench.cases import BLOCK_ORDERS, Case
from kvbench.errors import InputError


class Allocator(RuleBasedStateMachine):
    """An allocator beside a model of it: the free blocks in order, and the holders of the others.

    What an error leaves behind is seen by every rule that follows it.
    """

    @initialize(num_blocks=st.integers(0, 8))
    def start(self, num_blocks):
        self.num_blocks = num_blocks
        self.allocator = BlockAllocator(num_blocks)
        self.free = list(range(num_blocks))
        self.held = Counter()

    @rule(count=st.integers(0, 9))
    def allocate(self, count):
        if count > len(self.free):
            with pytest.raises(InputError, match=f"^{count} blocks: expected up to"):
                self.allocator.allocate(count)
            return
        expected, self.free = self.free[:count], self.free[count:]
        assert self.allocator.allocate(count) == expected
        self.held.update(expected)

    @rule(data=st.data())
    def share(self, data):
        assume(self.held)
        # A block may be named twice, and is held twice more.
        blocks = data.draw(st.lists(st.sampled_from(sorted(self.held)), max_size=6))
        self.allocator.share(iter(blocks))
        self.held.update(blocks)

    @rule(data=st.data())
    def release(self, data):
        holds = sorted(self.held.elements())
        blocks = data.draw(st.permutations(holds))[: data.draw(st.integers(0, len(holds)))]
        self.allocator.release(iter(blocks))
        for block in reversed(blocks):
            self.held[block] -= 1
            if not self.held[block]:
                del self.held[block]
                self.free.append(block)

    @rule(data=st.data(), method=st.sampled_from(["share", "release"]))
    def name_a_free_block(self, data, method):
        assume(self.free)
        free = data.draw(st.sampled_from(self.free))
        blocks = data.draw(st.permutations([free, *self.held]))
        with pytest.raises(InputError, match=f"^block {free} is held 0 times; expected 1"):
            getattr(self.allocator, method)(blocks)

    @rule(block=st.sampled_from((-1, -5, 10**9)), method=st.sampled_from(["share", "release"]))
    def name_no_block(self, block, method):
        with pytest.raises(InputError, match=f"^block {block} is held 0 times; expected 1"):
            getattr(self.allocator, method)([*self.held, block])

    @rule(data=st.data())
    def release_more_often_than_held(self, data):
        assume(self.held)
        block = data.draw(st.sampled_from(sorted(self.held)))
        times = self.held[block] + 1
        with pytest.raises(InputError, match=f"^block {block} is held {times - 1} times; expected"):
            self.allocator.release([*times * [block], *self.held])

    @invariant()
    def every_block_is_either_free_or_held(self):
        assert self.allocator.free == len(self.free)
        assert self.allocator.free + len(self.held) == self.num_blocks

    def teardown(self):
        self.allocator.release(list(self.held.elements()))
        assert sorted(self.allocator.allocate(self.num_blocks)) == list(range(self.num_blocks))


TestAllocator = Allocator.TestCase


def test_what_was_freed_first_is_handed_out_first_and_of_one_release_its_last_block():
    allocator = BlockAllocator(6)
    first, second = allocator.allocate(2), allocator.allocate(3)
    assert (first, second) == ([0, 1], [2, 3, 4])
    allocator.release(second)
    allocator.release(first)
    assert allocator.allocate(6) == [5, 4, 3, 2, 1, 0]


def test_a_shared_block_is_free_when_its_last_holder_has_let_go():
    allocator = BlockAllocator(3)
    blocks = allocator.allocate(2)
    allocator.share(blocks[:1])
    allocator.release(blocks)
    assert allocator.free == 2
    assert allocator.allocate(2) == [2, 1]
    allocator.release([0])
    assert allocator.allocate(1) == [0]


def test_too_many_blocks_are_refused_in_one_line_and_none_is_taken():
    allocator = BlockAllocator(3)
    with pytest.raises(InputError, match=r"^4 blocks: expected up to 3, which are free$"):
        allocator.allocate(4)
    assert allocator.allocate(3) == [0, 1, 2]


def covered(case: Case, start: int, length: int) -> int:
    """Blocks from position 0 to a sequence's end."""
    return -(-(start + length) // case.block_size)


def shared(case: Case, placement: Placement) -> list[int]:
    """How many blocks of each table are the shared prefix's."""
    return [
        min(case.shared_blocks, covered(case, start, length))
        for start, length in zip(placement.starts, placement.lengths, strict=True)
    ]


def blocks_in_use(placement: Placement) -> list[int]:
    """The blocks of all tables, each once, in the order of their first appearance."""
    entries = itertools.chain.from_iterable(placement.block_tables)
    return list(dict.fromkeys(entry for entry in entries if entry != NO_BLOCK))


@given(cases())
def test_sequences_have_the_blocks_of_their_prefix_in_common_and_no_other(case):
    placement = place(case)
    heads = shared(case, placement)
    longest = max(zip(heads, placement.block_tables, strict=True), default=(0, []))
    prefix = longest[1][: longest[0]]
    if case.op == "attend":  # sequences have freed different parts of it
        prefix = [
            max((table[at] for table in placement.block_tables if at < len(table)), default=0)
            for at in range(longest[0])
        ]
    own = []
    for head, table, length in zip(heads, placement.block_tables, placement.lengths, strict=True):
        freed = case.first_visible(length) // case.block_size if case.op == "attend" else 0
        assert table[freed:head] == prefix[freed:head]
        own += [entry for entry in table[head:] if entry != NO_BLOCK]
    used = [block for block in prefix if block != NO_BLOCK] + own
    assert len(set(used)) == len(used)
    assert all(0 <= block < placement.num_blocks for block in used)


@given(cases())
def test_a_table_covers_its_sequence_to_the_end_and_goes_on_with_padding_alone(case):
    placement = place(case)
    assert len(placement.block_tables) == case.batch
    for table, start, length in zip(
        placement.block_tables, placement.starts, placement.lengths, strict=True
    ):
        end = covered(case, start, length)
        assert table[end:] == [NO_BLOCK] * case.table_padding


@given(cases(), st.integers(0, 3), st.sampled_from((1, 3, 8)))
def test_the_first_blocks_that_new_tokens_fall_in_are_missing_and_no_others(
    case, missing, block_size
):
    if case.op == "write":
        # Blocks as small as these have more of a sequence's tokens behind the missing ones.
        case = dataclasses.replace(
            case,
            missing_blocks=missing,
            block_size=block_size,
            start_pos=case.start_pos + case.shared_blocks * block_size,
        )
    placement = place(case)
    for table, start, length in zip(
        placement.block_tables, placement.starts, placement.lengths, strict=True
    ):
        new = sorted({position // case.block_size for position in range(start, start + length)})
        if new:
            end = covered(case, start, length)
            gaps = [at for at, entry in enumerate(table[:end]) if entry == NO_BLOCK]
            if case.op == "attend":
                first = case.first_visible(length) // case.block_size
                assert gaps == list(range(first))
            else:
                assert gaps == new[: case.missing_blocks]


@given(cases())
def test_the_pool_has_room_for_stray_writes(case):
    placement = place(case)
    assert placement.num_blocks >= len(blocks_in_use(placement)) + 2


@given(cases())
def test_blocks_are_as_many_whatever_their_order(case):
    # Tables of all orders are the same but for the names of blocks.
    shapes = set()
    for order in BLOCK_ORDERS:
        placement = place(dataclasses.replace(case, block_order=order))
        number = {block: i for i, block in enumerate(blocks_in_use(placement))}
        shapes.add(tuple(tuple(number.get(b, NO_BLOCK) for b in t) for t in placement.block_tables))
    assert len(shapes) == 1


@pytest.mark.parametrize(
    ("block_order", "tables", "num_blocks"),
    [
        # Pinned: a row of a stored run must be rebuilt years later as it was.
        ("sequential", [[0, 1, 2], [3, 4], [5, 6]], 10),
        ("strided", [[0, 2, 4], [6, 8], [10, 12]], 16),
        ("shuffled", [[6, 8, 9], [7, 5], [3, 0]], 10),
        ("churned", [[14, 8, 12], [10, 4], [6, 5]], 16),
    ],
)
def test_a_placement_is_decided_by_the_seed_alone_in_any_process(block_order, tables, num_blocks):
    case = Case(
        op="read", seq_len=5, batch=3, start_pos=2, block_size=4, seed=1, block_order=block_order
    )
    assert place(case) == Placement(
        starts=[2, 4, 3], lengths=[7, 3, 5], block_tables=tables, num_blocks=num_blocks
    )


def test_a_shared_prefix_missing_blocks_and_padding_by_hand():
    case = Case(
        op="write",
        seq_len=9,
        batch=2,
        start_pos=9,
        lengths="equal",
        shared_blocks=2,
        missing_blocks=1,
        table_padding=2,
        block_size=4,
        block_order="sequential",
    )
    # Positions 9 to 17 begin in block 2, which has none; blocks 3 and 4 are each one's own.
    assert place(case).block_tables == [[0, 1, -1, 2, 3, -1, -1], [0, 1, -1, 4, 5, -1, -1]]


def test_a_sequence_shorter_than_the_shared_prefix_has_as_much_of_it_as_it_covers():
    case = Case(
        op="read", seq_len=1, block_size=4, shared_blocks=3, block_order="sequential", batch=3
    )
    placement = place_sequences(case, [0, 0, 4], [5, 0, 12])
    assert placement.block_tables == [[0, 1], [], [0, 1, 2, 3]]


@given(cases())
def test_the_same_case_has_the_same_placement(case):
    assert place(case) == place(Case(**case.fields()))


@pytest.mark.parametrize("block_order", ["shuffled", "churned"])
def test_another_seed_is_another_placement(block_order):
    placements = [
        place(Case(op="read", seq_len=90, batch=4, seed=seed, block_order=block_order))
        for seed in range(5)
    ]
    for one, other in itertools.combinations(placements, 2):
        assert one.starts != other.starts
        assert one.lengths != other.lengths
        assert one.block_tables != other.block_tables


@given(cases())
def test_sequential_blocks_follow_one_another(case):
    placement = place(dataclasses.replace(case, block_order="sequential"))
    used = blocks_in_use(placement)
    # A sequence may have freed the prefix that a later one still holds.
    assert (sorted(used) if case.sliding_window else used) == list(range(len(used)))
    for table in placement.block_tables:
        held = [entry for entry in table if entry != NO_BLOCK]
        assert held == sorted(held)


@given(cases())
def test_strided_blocks_leave_every_second_block_free(case):
    placement = place(dataclasses.replace(case, block_order="strided"))
    used = sorted(blocks_in_use(placement))
    assert used == list(range(0, 2 * len(used), 2))
    assert placement.num_blocks > 2 * len(used)


def test_shuffled_blocks_have_no_order_and_reach_the_whole_pool():
    placement = place(Case(op="read", seq_len=1600, block_order="shuffled"))
    used = blocks_in_use(placement)
    steps = {after - before for before, after in itertools.pairwise(used)}
    assert len(steps) > 50
    assert max(used) >= 0.9 * placement.num_blocks


@pytest.mark.parametrize("seed", range(5))
def test_churned_blocks_are_runs_of_all_lengths_from_the_whole_pool(seed):
    placement = place(Case(op="read", seq_len=16_000, block_order="churned", seed=seed))
    used = blocks_in_use(placement)
    assert placement.num_blocks == 2 * len(used) + 2
    assert max(used) >= 0.9 * placement.num_blocks
    assert min(used) <= 0.1 * placement.num_blocks
    steps = Counter(after - before for before, after in itertools.pairwise(used))
    # Neither in order nor without any: neighbours are often freed together, and in either order,
    # as every release turns a run of blocks around.
    assert len(steps) > 20
    assert steps[1] + steps[-1] < 0.98 * len(used)
    assert steps[1] > 0.1 * len(used)
    assert steps[-1] > 0.1 * len(used)


def test_given_sequences_are_placed_as_they_are():
    case = Case(op="read", seq_len=1, block_size=4, block_order="sequential")
    assert place_sequences(case, [3, 0, 0, 4], [2, 0, 4, 1]) == Placement(
        starts=[3, 0, 0, 4],
        lengths=[2, 0, 4, 1],
        block_tables=[[0, 1], [], [2], [3, 4]],
        num_blocks=5 + 1 + 2,
    )
