"""The oracle: what each op means, and that a strategy that is wrong in any way is caught."""

import dataclasses
import re

import numpy as np
import pytest
import torch
from drawn import cases
from hypothesis import given, settings
from hypothesis import strategies as st

from kvbench.blocks import Placement
from kvbench.cases import DTYPE_BYTES, Case
from kvbench.oracle import bits, check, gathered, token_slots, written
from kvbench.pool import flat_slots_view, slot_mapping
from kvbench.strategies.base import Strategy
from kvbench.workload import build

CPU = torch.device("cpu")

# One sequence in blocks 0 and 1 of four: its three tokens are in slots 2 and 3 of block 0 and in
# slot 0 of block 1, flat slots 2, 3 and 4. fp32, so that no two elements are alike by chance.
SHAPE = {
    "seq_len": 3,
    "start_pos": 2,
    "block_size": 4,
    "num_heads": 2,
    "num_kv_heads": 2,
    "head_dim": 3,
    "dtype": "fp32",
    "block_order": "sequential",
}
WRITE = Case(op="write", padding=2, **SHAPE)
READ = Case(op="read", **SHAPE)

WORD = r"0x[0-9a-f]{8}"


class Toy(Strategy):
    """A strategy that is the function it is given."""

    name = "test.toy"
    summary = "a function"

    def __init__(self, op, run):
        self.op = op
        self._run = run

    def run(self, workload, prepared):
        del prepared
        return self._run(workload)


def mapping(workload, padding=0):
    slots = slot_mapping(
        workload.block_tables,
        workload.starts,
        workload.lengths,
        workload.block_size,
        padding=padding,
    )
    return torch.from_numpy(slots)


def store(workload, slots, key=None, value=None):
    key = workload.key if key is None else key
    value = workload.value if value is None else value
    flat_slots_view(workload.key_pool)[slots] = key[: len(slots)]
    flat_slots_view(workload.value_pool)[slots] = value[: len(slots)]


def load(workload, slots):
    pools = (workload.key_pool, workload.value_pool)
    key, value = (flat_slots_view(pool)[slots] for pool in pools)
    return key, value


def right_write(workload):
    store(workload, mapping(workload))


def right_read(workload):
    return load(workload, mapping(workload))


def words(tensor):
    return tensor.view({2: torch.int16, 4: torch.int32}[tensor.element_size()])


# What the ops mean, by hand.

PLACEMENT = Placement(
    starts=[3, 0, 1], lengths=[3, 0, 2], block_tables=[[5, 2], [4], [0]], num_blocks=6
)
PLACES = [(5, 3), (2, 0), (2, 1), (0, 1), (0, 2)]


def test_token_slots_by_hand():
    case = Case(op="read", seq_len=1, block_size=4)
    assert token_slots(build(case, CPU, PLACEMENT)) == PLACES


def test_a_write_by_hand():
    pool = np.full((6, 4, 1, 2), 9, dtype=np.int16)
    rows = np.array([[[1, -1]], [[2, -2]], [[3, -3]], [[4, -4]], [[5, -5]], [[6, -6]]], np.int16)
    after = written(pool, rows, PLACES)
    assert pool.tolist() == np.full((6, 4, 1, 2), 9).tolist()
    assert after[5, 3].tolist() == [[1, -1]]
    assert after[2, 0].tolist() == [[2, -2]]
    assert after[2, 1].tolist() == [[3, -3]]
    assert after[0, 1].tolist() == [[4, -4]]
    assert after[0, 2].tolist() == [[5, -5]]
    # The sixth row is padding.
    assert np.count_nonzero(after == 9) == (6 * 4 - 5) * 2


def test_a_read_by_hand():
    pool = np.arange(6 * 4, dtype=np.int32).reshape(6, 4, 1, 1)
    assert gathered(pool, PLACES).ravel().tolist() == [23, 8, 9, 1, 2]
    assert gathered(pool, []).shape == (0, 1, 1)


def test_bits_tell_apart_what_comparison_does_not_and_nothing_else():
    assert bits(torch.tensor([1.0, 0.0, -0.0], dtype=torch.bfloat16)).tolist() == [
        0x3F80,
        0,
        -0x8000,
    ]
    nan = torch.tensor([0x7FC1, 0x7FC2], dtype=torch.int16).view(torch.bfloat16)
    assert bits(nan).tolist() == [0x7FC1, 0x7FC2]
    assert bits(torch.tensor([[1.0, 2.0]]).T).tolist() == [[0x3F800000], [0x40000000]]


def test_bits_are_a_copy():
    tensor = torch.zeros(3)
    before = bits(tensor)
    tensor.fill_(1.0)
    assert before.tolist() == [0, 0, 0]


# Right strategies pass.


@given(cases())
def test_a_right_strategy_passes(case):
    toy = Toy(case.op, right_write if case.op == "write" else right_read)
    assert check(toy, build(case, CPU)) == ""


def test_a_result_may_have_any_strides():
    def run(workload):
        key, value = right_read(workload)
        return key.transpose(0, 2).contiguous().transpose(0, 2), value

    key, _ = run(build(READ, CPU))
    assert not key.is_contiguous()
    assert check(Toy("read", run), build(READ, CPU)) == ""


# Wrong ones don't, and the message says how.


def nothing(workload):
    del workload


def all_but_the_last_head(workload):
    for pool, rows in (
        (workload.key_pool, workload.key),
        (workload.value_pool, workload.value),
    ):
        flat_slots_view(pool)[mapping(workload), :-1] = rows[:3, :-1]


def k_alone(workload):
    flat_slots_view(workload.key_pool)[mapping(workload)] = workload.key[:3]


def clears_its_input(workload):
    right_write(workload)
    workload.key.zero_()


def clears_the_padding_of_its_input(workload):
    right_write(workload)
    workload.value[-1] = 0


def returns_something(workload):
    right_write(workload)
    return workload.key_pool


WRONG_WRITES = {
    "nothing": (
        nothing,
        f"key_pool block 0, slot 2, head 0, element 0 was not written: expected token 0's {WORD}",
    ),
    "off by one slot": (
        lambda w: store(w, mapping(w) + 1),
        f"key_pool block 0, slot 2, head 0, element 0 was not written: expected token 0's {WORD}",
    ),
    "from position 0": (
        lambda w: store(w, mapping(w) - 2),
        "key_pool block 0, slot 0, head 0, element 0 belongs to no token but was written: "
        f"{WORD}; expected {WORD}",
    ),
    "into the next block": (
        lambda w: store(w, mapping(w) + w.block_size),
        f"key_pool block 0, slot 2, head 0, element 0 was not written: expected token 0's {WORD}",
    ),
    "padding too, where -1 wraps to the last slot": (
        lambda w: store(w, mapping(w, padding=2)),
        "key_pool block 3, slot 3, head 0, element 0 belongs to no token but was written: "
        f"{WORD}; expected {WORD}",
    ),
    "one slot too many": (
        lambda w: store(w, torch.cat([mapping(w), mapping(w)[-1:] + 1])),
        "key_pool block 1, slot 1, head 0, element 0 belongs to no token but was written: "
        f"{WORD}; expected {WORD}",
    ),
    "all but the last token": (
        lambda w: store(w, mapping(w)[:-1]),
        f"key_pool block 1, slot 0, head 0, element 0 was not written: expected token 2's {WORD}",
    ),
    "all but the last head": (
        all_but_the_last_head,
        f"key_pool block 0, slot 2, head 1, element 0 is {WORD}; expected token 0's {WORD}",
    ),
    "the first row everywhere": (
        lambda w: store(w, mapping(w), key=w.key[:1].expand(3, -1, -1)),
        f"key_pool block 0, slot 3, head 0, element 0 is {WORD}; expected token 1's {WORD}",
    ),
    "K and V swapped": (
        lambda w: store(w, mapping(w), key=w.value, value=w.key),
        f"key_pool block 0, slot 2, head 0, element 0 is {WORD}; expected token 0's {WORD}",
    ),
    "K into both pools": (
        lambda w: store(w, mapping(w), value=w.key),
        f"value_pool block 0, slot 2, head 0, element 0 is {WORD}; expected token 0's {WORD}",
    ),
    "K alone": (
        k_alone,
        f"value_pool block 0, slot 2, head 0, element 0 was not written: expected token 0's {WORD}",
    ),
    "and then clears its input": (
        clears_its_input,
        "key was changed; expected it to be read only",
    ),
    "and then clears the padding of its input": (
        clears_the_padding_of_its_input,
        "value was changed; expected it to be read only",
    ),
    "and returns something": (
        returns_something,
        "run returned Tensor; expected None from a write",
    ),
}


def uninitialised(workload):
    shape = (len(mapping(workload)), *workload.key_pool.shape[2:])
    return torch.empty(shape), torch.empty(shape)


def clears_a_pool(workload):
    result = right_read(workload)
    workload.value_pool.zero_()
    return result


def clears_a_slot_of_no_token(workload):
    result = right_read(workload)
    workload.key_pool[3, 3] = 0
    return result


WRONG_READS = {
    "nothing": (nothing, r"run returned a NoneType; expected a tuple \(K, V\) from a read"),
    "a list": (
        lambda w: list(right_read(w)),
        r"run returned a list; expected a tuple \(K, V\) from a read",
    ),
    "one tensor of both": (
        lambda w: torch.stack(right_read(w)),
        r"run returned a Tensor; expected a tuple \(K, V\) from a read",
    ),
    "K alone": (
        lambda w: right_read(w)[:1],
        r"run returned a tuple of 1; expected a tuple \(K, V\) from a read",
    ),
    "an array": (
        lambda w: tuple(tensor.numpy() for tensor in right_read(w)),
        "K is ndarray; expected a tensor",
    ),
    "flat rows": (
        lambda w: tuple(tensor.flatten(1) for tensor in right_read(w)),
        r"K is torch.float32 of shape \[3, 6\]; expected torch.float32 of shape \[3, 2, 3\]",
    ),
    "another dtype": (
        lambda w: (right_read(w)[0], right_read(w)[1].double()),
        r"V is torch.float64 of shape \[3, 2, 3\]; expected torch.float32 of shape \[3, 2, 3\]",
    ),
    "all but the last token": (
        lambda w: load(w, mapping(w)[:-1]),
        r"K is torch.float32 of shape \[2, 2, 3\]; expected torch.float32 of shape \[3, 2, 3\]",
    ),
    "whole blocks": (
        lambda w: load(w, torch.arange(8)),
        r"K is torch.float32 of shape \[8, 2, 3\]; expected torch.float32 of shape \[3, 2, 3\]",
    ),
    "off by one slot": (
        lambda w: load(w, mapping(w) + 1),
        rf"K of token 0 \(block 0, slot 2\), head 0, element 0 is {WORD}; expected {WORD}",
    ),
    "the last token twice": (
        lambda w: load(w, torch.tensor([2, 4, 4])),
        rf"K of token 1 \(block 0, slot 3\), head 0, element 0 is {WORD}; expected {WORD}",
    ),
    "K and V swapped": (
        lambda w: right_read(w)[::-1],
        rf"K of token 0 \(block 0, slot 2\), head 0, element 0 is {WORD}; expected {WORD}",
    ),
    "K twice": (
        lambda w: (right_read(w)[0], right_read(w)[0].clone()),
        rf"V of token 0 \(block 0, slot 2\), head 0, element 0 is {WORD}; expected {WORD}",
    ),
    "heads in reverse order": (
        lambda w: (right_read(w)[0].flip(1), right_read(w)[1]),
        rf"K of token 0 \(block 0, slot 2\), head 0, element 0 is {WORD}; expected {WORD}",
    ),
    "memory that it never wrote": (
        uninitialised,
        rf"K of token 0 \(block 0, slot 2\), head 0, element 0 is {WORD}; expected {WORD}",
    ),
    "and then clears a pool": (
        clears_a_pool,
        "value_pool was changed; expected a read to leave it alone",
    ),
    "and then clears a slot of no token": (
        clears_a_slot_of_no_token,
        "key_pool was changed; expected a read to leave it alone",
    ),
}


@pytest.mark.parametrize(("run", "message"), WRONG_WRITES.values(), ids=WRONG_WRITES)
def test_a_wrong_write_is_caught(run, message):
    assert re.fullmatch(message, check(Toy("write", run), build(WRITE, CPU)))


@pytest.mark.parametrize(("run", "message"), WRONG_READS.values(), ids=WRONG_READS)
def test_a_wrong_read_is_caught(run, message):
    assert re.fullmatch(message, check(Toy("read", run), build(READ, CPU)))


def test_a_message_has_the_bits_that_are_and_those_that_should_be():
    def run(workload):
        store(workload, mapping(workload), key=torch.zeros_like(workload.key))

    workload = build(WRITE, CPU)
    message = check(Toy("write", run), workload)
    expected = words(workload.key)[0, 0, 0].item() & 0xFFFFFFFF
    assert message == (
        "key_pool block 0, slot 2, head 0, element 0 is 0x00000000; "
        f"expected token 0's 0x{expected:08x}"
    )


NOT_A_COPY = {
    "NaN to a number": torch.nan_to_num,
    "negative zero to zero": lambda tensor: tensor + 0.0,
    "quiet NaN": lambda tensor: torch.where(tensor.isnan(), torch.nan, tensor).to(tensor.dtype),
}


def through_float(tensor):
    return tensor.float().to(tensor.dtype)


@pytest.mark.parametrize("change", NOT_A_COPY.values(), ids=NOT_A_COPY)
@pytest.mark.parametrize("dtype", DTYPE_BYTES)
@pytest.mark.parametrize("op", ["write", "read"])
def test_values_that_arithmetic_changes_are_caught(op, dtype, change):
    def write(workload):
        store(workload, mapping(workload), key=change(workload.key))

    def read(workload):
        key, value = right_read(workload)
        return change(key), value

    case = Case(op=op, seq_len=16, dtype=dtype)
    message = check(Toy(op, {"write": write, "read": read}[op]), build(case, CPU))
    assert re.match(r"key_pool block|K of token", message)


def test_nan_payloads_lost_on_the_way_through_float32_are_caught():
    def write(workload):
        store(workload, mapping(workload), value=through_float(workload.value))

    message = check(Toy("write", write), build(Case(op="write", seq_len=16), CPU))
    # Which NaN comes out differs between processors; none has them all.
    assert re.match(r"value_pool block .* is 0x....; expected token \d+'s 0x[7f][8-f]", message)


def test_a_result_kept_from_the_first_call_is_caught():
    kept = []

    def read(workload):
        kept.append(right_read(workload))
        return kept[0]

    message = check(Toy("read", read), build(READ, CPU))
    assert message.startswith("K of token 0 (block 0, slot 2), head 0, element 0 is 0x")
    assert len(kept) == 2


def test_a_result_found_in_a_buffer_of_the_first_call_is_caught():
    buffers = []

    def read(workload):
        if not buffers:
            buffers.extend(right_read(workload))
        return tuple(buffers)

    message = check(Toy("read", read), build(READ, CPU))
    assert message.startswith("K of token 0 (block 0, slot 2), head 0, element 0 is 0x")


def test_rows_kept_from_the_first_call_are_caught():
    kept = []

    def write(workload):
        kept.append(workload.value.clone())
        store(workload, mapping(workload), value=kept[0])

    message = check(Toy("write", write), build(WRITE, CPU))
    assert message.startswith("value_pool block 0, slot 2, head 0, element 0 is 0x")
    assert len(kept) == 2


class WritesInPrepare(Toy):
    def prepare(self, workload):
        right_write(workload)


def test_a_write_done_once_a_step_instead_of_in_every_layer_is_caught():
    # Each layer of a step has K and V of its own: what is written before they are there is stale.
    assert check(WritesInPrepare("write", nothing), build(WRITE, CPU)) != ""


class ReadsInPrepare(Toy):
    def prepare(self, workload):
        return right_read(workload)

    def run(self, workload, prepared):
        del workload
        return prepared


def test_a_read_done_once_a_step_instead_of_in_every_layer_is_caught():
    assert check(ReadsInPrepare("read", None), build(READ, CPU)) != ""


def flip(tensor, data):
    """Flip any one bit of a tensor."""
    view = words(tensor)
    at = tuple(data.draw(st.integers(0, size - 1)) for size in view.shape)
    bit = data.draw(st.integers(0, 8 * view.element_size() - 1))
    sign = 8 * view.element_size() - 1
    view[at] ^= -(1 << bit) if bit == sign else 1 << bit


@settings(max_examples=150)
@given(cases(op="write"), st.data())
def test_any_one_bit_that_a_write_gets_wrong_is_caught(case, data):
    workload = build(case, CPU)
    targets = ["key_pool", "value_pool", *(["key", "value"] if len(workload.key) else [])]
    target = data.draw(st.sampled_from(targets))

    def run(workload):
        right_write(workload)
        flip(getattr(workload, target), data)

    assert check(Toy("write", run), workload).startswith(f"{target} ")


@settings(max_examples=150)
@given(cases(op="read"), st.data())
def test_any_one_bit_that_a_read_gets_wrong_is_caught(case, data):
    workload = build(case, CPU)
    targets = ["key_pool", "value_pool", *(["K", "V"] if case.tokens else [])]
    target = data.draw(st.sampled_from(targets))

    def run(workload):
        key, value = right_read(workload)
        pools = {"key_pool": workload.key_pool, "value_pool": workload.value_pool}
        flip({**pools, "K": key, "V": value}[target], data)
        return key, value

    assert check(Toy("read", run), workload).startswith(f"{target} ")


def test_a_prepare_that_writes_to_the_pool_is_caught():
    class Eager(Toy):
        def prepare(self, workload):
            workload.value_pool[0, 0] = 0

    found = check(Eager("write", nothing), build(WRITE, CPU))
    assert found == "prepare changed value_pool; expected it to leave tensors alone"


def test_a_read_that_returns_the_pool_itself_is_caught():
    # One full block read from its start is a view of the right bits: no byte was moved.
    case = dataclasses.replace(READ, seq_len=4, start_pos=0)

    def view(workload):
        block = workload.block_tables[0][0]
        return workload.key_pool[block], workload.value_pool[block]

    found = check(Toy("read", view), build(case, CPU))
    assert found == "K is a view of key_pool; expected rows of its own from a read"
