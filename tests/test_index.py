"""Building the slot mapping of a step: right wherever tokens lie, and caught where it is wrong."""

import dataclasses
import re

import numpy as np
import pytest
import torch
from drawn import cases
from hypothesis import given, settings
from hypothesis import strategies as st

from kvbench import oracle
from kvbench.axes import expand_all
from kvbench.blocks import Placement, place
from kvbench.cases import Case
from kvbench.errors import InputError
from kvbench.pool import map_batch, slot_mapping
from kvbench.presets import CHECK_GRIDS
from kvbench.strategies import registry
from kvbench.strategies.base import Strategy
from kvbench.strategies.index import pinned
from kvbench.sweep.checking import check_case
from kvbench.sweep.launches import predicted
from kvbench.workload import build, required_bytes, resident_tables

CPU = torch.device("cpu")
PLAIN = Case(
    op="index",
    seq_len=5,
    batch=3,
    start_pos=13,
    block_size=4,
    padding=2,
    missing_blocks=1,
)
INDICES = [s for s in registry.select(["index.*"]) if s.supports(PLAIN, CPU) is None]
each_index = pytest.mark.parametrize("strategy", INDICES, ids=lambda s: s.name)


class Toy(Strategy):
    """A strategy that is the function it is given."""

    name = "index.toy"
    op = "index"
    summary = "for tests"

    def __init__(self, run):
        self._run = run

    def run(self, workload, prepared):
        del prepared
        return self._run(workload)


def mapping(workload):
    """The slots as they should be."""
    return torch.from_numpy(workload.slot_mapping())


# What is right.


@st.composite
def placements(draw):
    """Any batch: empty sequences, shared and missing blocks, tables of any length."""
    block_size = draw(st.sampled_from((1, 3, 16, 256)))
    batch = draw(st.integers(0, 5))
    longest = draw(st.sampled_from((3, 40, 600)))
    starts, lengths, tables = [], [], []
    for _ in range(batch):
        starts.append(draw(st.integers(0, 70)))
        lengths.append(draw(st.integers(0, longest)))
        entries = -(-(starts[-1] + lengths[-1]) // block_size)
        entry = st.integers(-1, draw(st.sampled_from((9, 2**31 // block_size - 2))))
        seed = draw(st.lists(entry, min_size=1, max_size=8))
        tables.append([seed[i % len(seed)] for i in range(entries + draw(st.integers(0, 2)))])
    case = Case(
        op="index",
        seq_len=0,
        block_size=block_size,
        padding=draw(st.sampled_from((0, 1, 300))),
        padding_slots=draw(st.sampled_from(("negative", "absent"))),
        slot_dtype=draw(st.sampled_from(("int64", "int32"))),
    )
    return case, Placement(starts, lengths, tables, 0)


@each_index
@settings(max_examples=25)
@given(drawn=placements())
def test_every_strategy_is_right_wherever_sequences_lie(strategy, drawn):
    case, placement = drawn
    assert oracle.check(strategy, build(case, CPU, placement)) == ""


@each_index
@settings(max_examples=15)
@given(case=cases(op="index"))
def test_every_strategy_is_right_in_a_case_s_own_placement(strategy, case):
    assert check_case(case, strategy, CPU) == ("checked", "")


@each_index
def test_every_strategy_is_right_in_the_check_grids(strategy):
    grid = [case for case in expand_all(CHECK_GRIDS) if case.op == "index"]
    assert {check_case(case, strategy, CPU) for case in grid} == {("checked", "")}
    assert len(grid) > 40


@each_index
@pytest.mark.parametrize("slot_dtype", ["int64", "int32"])
def test_the_last_slot_of_32_bits_is_mapped(strategy, slot_dtype):
    case = dataclasses.replace(PLAIN, batch=1, slot_dtype=slot_dtype, block_size=16)
    last = Placement([13], [5], [[5, 2**27 - 1]], 0)
    workload = build(case, CPU, last)
    assert oracle.check(strategy, workload) == ""
    slots = strategy.run(workload, strategy.prepare(workload)).tolist()
    assert slots[:5] == [93, 94, 95, 2**31 - 16, 2**31 - 15]


@each_index
def test_slots_beyond_32_bits_are_mapped_in_64(strategy):
    workload = build(dataclasses.replace(PLAIN, batch=1), CPU, Placement([1], [2], [[2**40]], 0))
    assert oracle.check(strategy, workload) == ""


def test_slots_that_32_bits_do_not_hold_are_refused_and_no_strategy_is_blamed():
    case = Case(op="index", seq_len=1, start_pos=2**31, block_size=2**20, slot_dtype="int32")
    with pytest.raises(InputError, match=r"^slot_dtype=int32 with block \d+ of 1048576 slots: "):
        build(case, CPU)
    status, reason = check_case(case, INDICES[0], CPU)
    assert (status, reason.partition(" ")[0]) == ("unsupported", "slot_dtype=int32")


@given(placements())
def test_a_batch_is_mapped_at_once_as_sequence_by_sequence(drawn):
    case, at = drawn
    lists = at.block_tables, at.starts, at.lengths, case.block_size
    slots = np.zeros(sum(at.lengths) + case.padding, dtype=np.int64)
    map_batch(*lists, slots)
    assert slots.tolist() == slot_mapping(*lists, padding=case.padding).tolist()


def test_tables_on_the_device_are_the_scheduler_s_padded_to_the_longest():
    case = dataclasses.replace(PLAIN, slot_dtype="int32")
    tables = resident_tables(build(case, CPU, Placement([0, 5], [3, 0], [[7], [4, -1, 2]], 8)))
    assert tables.block_table.tolist() == [[7, -1, -1], [4, -1, 2]]
    assert tables.block_table.dtype == torch.int32
    assert (tables.starts.tolist(), tables.lengths.tolist()) == ([0, 5], [3, 0])
    empty = resident_tables(build(Case(op="index", seq_len=1, batch=0), CPU))
    assert [list(t.shape) for t in (empty.block_table, empty.starts)] == [[0, 0], [0]]


def test_an_index_needs_room_for_its_mapping_and_none_for_pools():
    small = Case(op="index", seq_len=1000, start_pos=10**6)
    assert 8 * 1000 < required_bytes(small, place(small)) < 10**6
    assert build(small, CPU).key_pool.numel() == 0


# What is wrong is found.


def narrow(workload):
    """A product in 32 bits, which wraps."""
    blocks = [
        table[position // workload.block_size]
        for table, start, length in zip(
            workload.block_tables, workload.starts, workload.lengths, strict=True
        )
        for position in range(start, start + length)
    ]
    wrapped = torch.tensor(blocks, dtype=torch.int32) * workload.block_size
    slots = mapping(workload)
    slots[: len(blocks)] = wrapped + slots[: len(blocks)] % workload.block_size
    return slots


def padded_with(slot):
    def run(workload):
        slots = mapping(workload)
        slots[sum(workload.lengths) :] = slot
        return slots

    return run


def missing_as_last(workload):
    """Negative slots as indexing has them: counted from the end."""
    slots = mapping(workload)
    return torch.where(slots < 0, slots + 640, slots)


def one_more(workload):
    return torch.cat([mapping(workload), torch.tensor([-1])])


def by_first_start(workload):
    """Every sequence as if it began where the first does."""
    w = workload
    starts = w.starts[:1] * len(w.starts)
    slots = slot_mapping(w.block_tables, starts, w.lengths, w.block_size, padding=w.case.padding)
    return torch.from_numpy(slots)


WRONG = {
    "padding as slot 0": (
        padded_with(0),
        r"the slot of row 15, padding, is 0; expected a negative",
    ),
    "missing blocks as the last": (missing_as_last, r"the slot of token 0 without a block is 63\d"),
    "padding that is not wanted": (one_more, r"the slot mapping is torch.int64 of shape \[18\]; "),
    "no padding": (lambda w: mapping(w)[:15], r"the slot mapping is .* of shape \[15\]; expected"),
    "another dtype": (lambda w: mapping(w).int(), r"the slot mapping is torch.int32 of shape"),
    "another shape": (lambda w: mapping(w)[:, None], r"the slot mapping is .* shape \[17, 1\]; "),
    "memory of the host": (
        lambda w: w.slot_mapping(),
        r"run returned a ndarray; expected a tensor",
    ),
    "another device": (
        lambda w: mapping(w).to("meta"),
        r"the slot mapping is on meta; expected cpu",
    ),
    "nothing": (
        lambda _: None,
        r"run returned a NoneType; expected a tensor of slots from an index",
    ),
    "one start for all": (by_first_start, r"the slot of token \d+ .* is -?\d+; expected"),
    "a slot further": (lambda w: mapping(w) + 1, r"the slot of token \d+ .* is -?\d+; expected"),
}


@pytest.mark.parametrize(("run", "message"), WRONG.values(), ids=WRONG)
def test_a_mapping_that_is_wrong_is_said_to_be(run, message):
    status, reason = check_case(PLAIN, Toy(run), CPU)
    assert status == "incorrect"
    assert re.match(message, reason)


def test_the_mapping_as_it_should_be_is_right_and_any_negative_slot_is_padding():
    assert check_case(PLAIN, Toy(mapping), CPU) == ("checked", "")
    assert check_case(PLAIN, Toy(padded_with(-(2**62))), CPU) == ("checked", "")
    absent = dataclasses.replace(PLAIN, padding_slots="absent")
    assert check_case(absent, Toy(mapping), CPU) == ("checked", "")


def test_a_product_in_32_bits_is_found():
    workload = build(PLAIN, CPU, Placement([2], [3], [[2**29, 2**29 + 7]], 0))
    assert "expected 2147483650" in oracle.check(Toy(narrow), workload)
    near = build(PLAIN, CPU, Placement([2], [3], [[2**29 - 8, 2**29 - 1]], 0))
    assert oracle.check(Toy(narrow), near) == ""


def remembering(key):
    """A run that computes once for each key of a workload."""
    known = {}

    def run(workload):
        return known.setdefault(key(workload), mapping(workload)).clone()

    return run


@pytest.mark.parametrize(
    "key",
    [
        lambda w: w.case,
        lambda w: (w.case.seq_len, len(w.block_tables)),
        lambda w: sum(w.lengths),
        lambda w: tuple(map(len, w.block_tables[::-1])) and 0,
    ],
    ids=["case", "shape", "tokens", "nothing"],
)
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"batch": 1, "start_pos": 0, "missing_blocks": 0, "block_order": "sequential"},
        {"lengths": "equal", "start_pos": 0, "block_order": "sequential", "missing_blocks": 0},
    ],
    ids=["batch", "one sequence", "alike sequences"],
)
def test_a_mapping_kept_from_another_step_is_found(key, fields):
    case = dataclasses.replace(PLAIN, **fields)
    status, reason = check_case(case, Toy(remembering(key)), CPU)
    assert status == "incorrect"
    assert re.match(r"the slot of token \d", reason)


@pytest.mark.parametrize("kept", ["starts", "lengths", "block_tables"])
def test_each_of_the_lists_kept_from_another_step_is_found(kept):
    known = {}

    def run(workload):
        lists = known.setdefault(workload.case, getattr(workload, kept))
        return mapping(dataclasses.replace(workload, **{kept: lists}))

    case = dataclasses.replace(PLAIN, missing_blocks=0, table_padding=2, seed=1)
    assert len(set(build(case, CPU).lengths)) == 3
    status, _ = check_case(case, Toy(run), CPU)
    assert status in {"incorrect", "failed"}


def test_what_was_prepared_for_one_step_is_not_right_for_another():
    class Stateful(Strategy):
        name = "index.stateful"
        op = "index"
        summary = "keeps what it prepared last"

        def prepare(self, workload):
            self._slots = mapping(workload)

        def run(self, workload, prepared):
            del workload, prepared
            return self._slots

    assert check_case(PLAIN, Stateful(), CPU)[0] == "incorrect"


@pytest.mark.parametrize("name", ["starts", "lengths", "block_tables"])
def test_a_list_that_is_changed_is_found(name):
    def run(workload):
        slots = mapping(workload)
        lists = getattr(workload, name)
        (lists[0] if name == "block_tables" else lists)[0] += 1
        return slots

    _, reason = check_case(PLAIN, Toy(run), CPU)
    assert reason == f"{name} was changed; expected the scheduler's lists to be left alone"


# Pinned buffers that take turns.


class Upload:
    """Stands in for an event: an upload that is under way until somebody waits for it."""

    def __init__(self, buffer, log):
        self._buffer, self._log = buffer, log
        self._source = None

    def record(self):
        self._source = self._buffer.clone()

    def query(self):
        return self._source is None

    def synchronize(self):
        # What is being uploaded must still be there when it is waited for.
        assert torch.equal(self._buffer, self._source)
        self._source = None
        self._log.append("waited")


def test_a_pinned_buffer_is_written_to_when_its_last_upload_is_over():
    workload = build(PLAIN, CPU)
    log = []
    buffers = [torch.zeros(workload.mapped_rows, dtype=torch.int64) for _ in range(2)]
    arrays = [buffer.numpy() for buffer in buffers]
    uploads = [Upload(buffer, log) for buffer in buffers]
    ring = pinned._Ring(buffers, arrays, uploads, graphs=False)
    strategy = registry.get("index.pinned")
    waits, places = [], []
    for step in range(5):
        moved = dataclasses.replace(workload, starts=[start - step for start in workload.starts])
        slots = strategy.run(moved, ring)
        assert torch.equal(slots.clamp(min=-1), mapping(moved).clamp(min=-1))
        waits.append(len(log))
        places.append(slots.data_ptr())
    assert waits == [0, 0, 1, 2, 3]  # the third step is the first whose buffer is on its way
    assert places == [buffers[step % 2].data_ptr() for step in range(5)]


def test_a_cpu_has_no_pinned_memory():
    reason = registry.get("index.pinned").supports(PLAIN, CPU)
    assert reason == "a CPU has no pinned memory: nothing is uploaded"


@pytest.mark.gpu
@pytest.mark.parametrize("slot_dtype", ["int64", "int32"])
def test_every_strategy_is_right_on_a_gpu(gpu, slot_dtype):
    for fields in ({}, {"batch": 0}, {"lengths": "holes"}, {"seq_len": 700, "padding": 300}):
        case = dataclasses.replace(PLAIN, slot_dtype=slot_dtype, **fields)
        for strategy in registry.select(["index.*"]):
            assert check_case(case, strategy, gpu) == ("checked", ""), strategy.name


@pytest.mark.gpu
def test_pinned_steps_that_follow_each_other_are_each_right_on_a_gpu(gpu):
    strategy = registry.get("index.pinned")
    workload = build(Case(op="index", seq_len=4096, batch=4, start_pos=64), gpu)
    prepared = strategy.prepare(workload)
    steps = [
        dataclasses.replace(workload, starts=[start - step for start in workload.starts])
        for step in range(16)
    ]
    torch.cuda._sleep(10**8)  # so that all uploads wait in the queue
    found = [strategy.run(step, prepared) for step in steps]
    assert all(torch.equal(f.cpu(), mapping(s)) for f, s in zip(found, steps, strict=True))


# Launches.


def counts(strategy, case, phase="run"):
    found = predicted(registry.get(strategy), case, phase)
    return found.kernels, found.memcpys, found.synchronizations


@pytest.mark.parametrize("batch", [1, 3, 64])
@pytest.mark.parametrize("slot_dtype", ["int64", "int32"])
def test_launches_are_those_counted_by_hand(batch, slot_dtype):
    case = Case(op="index", seq_len=128, batch=batch, slot_dtype=slot_dtype)
    # An upload from memory that is not pinned waits.
    assert counts("index.loop", case) == (0, 1, 1)
    assert counts("index.numpy", case) == (0, 1, 1)
    assert counts("index.pinned", case) == (0, 1, 0)
    assert counts("index.triton", case) == (1, 0, 0)
    # cumsum is two; repeat_interleave is a cumsum and a kernel; add, sub_, arange, index, add_,
    # floor divide, index, remainder, add.
    assert counts("index.torch", case) == (2 + 3 + 9, 0, 0)
    # The rows of padding are filled before.
    padded = dataclasses.replace(case, padding=2)
    assert counts("index.torch", padded) == (15, 0, 0)
    assert counts("index.triton", padded) == (1, 0, 0)


@pytest.mark.parametrize("strategy", ["index.torch", "index.triton"])
def test_tables_are_uploaded_before_the_step(strategy):
    assert counts(strategy, PLAIN, "prepare") == (0, 3, 3)


@pytest.mark.parametrize("strategy", ["index.torch", "index.triton"])
def test_a_batch_without_tokens_launches_nothing(strategy):
    assert counts(strategy, Case(op="index", seq_len=0, batch=2)) == (0, 0, 0)


# The kernel.

triton = pytest.importorskip("triton")

from kvbench.kernels import slot_mapping as kernel  # noqa: E402


def strided(tensor):
    """The same numbers, every third of a longer tensor along each dimension."""
    longer = torch.full([3 * size for size in tensor.shape], 77, dtype=tensor.dtype)
    view = longer[tuple(slice(None, None, 3) for _ in tensor.shape)]
    view.copy_(tensor)
    return longer, view


@settings(max_examples=25)
@given(placements())
def test_the_kernel_follows_every_stride_and_writes_its_rows_alone(drawn):
    case, placement = drawn
    workload = build(case, CPU, placement)
    tables = resident_tables(workload)
    memory, slots = strided(torch.zeros(workload.mapped_rows, dtype=workload.slot_dtype))
    kernel.map_slots(
        *(strided(t)[1] for t in (tables.block_table, tables.starts, tables.lengths)),
        slots,
        block_size=case.block_size,
        longest=max(placement.lengths, default=0),
        padding=case.mapped_padding,
    )
    assert slots.tolist() == mapping(workload).clamp(min=-1).tolist()
    slots.fill_(77)
    assert memory.eq(77).all()


def test_more_sequences_than_are_summed_at_once_are_each_mapped_where_they_belong(monkeypatch):
    monkeypatch.setattr(kernel, "_SUMMED", 4)
    case = Case(op="index", seq_len=2, batch=11, lengths="ragged")
    assert check_case(case, registry.get("index.triton"), CPU) == ("checked", "")


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        ({"block_table": torch.zeros(2)}, "block_table's dimensions is 1; expected 2"),
        ({"starts": torch.zeros(3).long()}, "starts' shape is (3,); expected (2,)"),
        ({"lengths": torch.zeros(2, 1).long()}, "lengths' shape is (2, 1); expected (2,)"),
        ({"lengths": torch.zeros(2).int()}, "lengths' dtype is torch.int32; expected torch.int64"),
        (
            {"slot_mapping": torch.zeros(3)},
            "slot_mapping's dtype is torch.float32; expected torch.int32 or torch.int64",
        ),
    ],
    ids=str,
)
def test_operands_that_do_not_go_together_are_refused(broken, message):
    operands = {
        "block_table": torch.zeros(2, 1).long(),
        "starts": torch.zeros(2).long(),
        "lengths": torch.ones(2).long(),
        "slot_mapping": torch.zeros(2).long(),
        **broken,
    }
    with pytest.raises(ValueError, match=re.escape(message)):
        kernel.map_slots(**operands, block_size=4, longest=1, padding=0)


class Launch:
    """Stands in for the kernel: keeps what a launch passes to it."""

    def __getitem__(self, grid):
        self.grid = grid
        return self

    def __call__(self, *arguments, **constants):
        self.arguments, self.constants = arguments, constants


def launch_of(case, monkeypatch):
    launch = Launch()
    workload = build(case, CPU)
    monkeypatch.setattr(kernel.map_slots_kernel, "interpreted", launch)
    strategy = registry.get("index.triton")
    strategy.run(workload, strategy.prepare(workload))
    return launch


@pytest.mark.parametrize(
    ("fields", "programs"),
    [
        ({"seq_len": 1, "batch": 1}, 1),
        ({"seq_len": 256, "batch": 1}, 1),
        ({"seq_len": 257, "batch": 1}, 2),
        ({"seq_len": 257, "batch": 5, "lengths": "equal"}, 10),
        ({"seq_len": 1, "batch": 5, "padding": 3}, 6),
        ({"seq_len": 1, "batch": 5, "padding": 257}, 12),
    ],
    ids=str,
)
def test_the_batch_is_one_launch_of_so_many_programs(fields, programs, monkeypatch):
    assert launch_of(Case(op="index", **fields), monkeypatch).grid == (programs,)


def test_nothing_that_grows_with_a_sequence_is_compiled_in(monkeypatch):
    cases_of = [
        Case(op="index", seq_len=n, batch=batch, start_pos=start, padding=padding)
        for n, batch, start, padding in ((3, 2, 0, 2), (3000, 33, 70000, 900))
    ]
    one, other = (launch_of(case, monkeypatch).constants for case in cases_of)
    assert one == other
    assert set(one) == {"BLOCK_SIZE", "BLOCK", "SUMMED", "num_warps"}
