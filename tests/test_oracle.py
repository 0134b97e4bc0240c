"""The oracle: what each op means, and that a strategy that is wrong in any way is caught."""

import dataclasses
import re

import ml_dtypes
import numpy as np
import pytest
import torch
from drawn import KV_OPS, cases
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from kvbench.blocks import Placement
from kvbench.cases import DTYPE_BYTES, KV_SCALES, LAYOUTS, QUANTISED_BYTES, Case
from kvbench.oracle import bits, check, gathered, pools, token_places, written
from kvbench.pool import slot_mapping
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

CACHES = [("auto", "per_tensor"), *((c, s) for c in QUANTISED_BYTES for s in KV_SCALES)]
each_layout = pytest.mark.parametrize("layout", LAYOUTS)
each_cache = pytest.mark.parametrize(("cache_dtype", "kv_scale"), CACHES)


def case_of(op, layout, cache_dtype="auto", kv_scale="per_tensor", **more):
    """One sequence of 7 tokens in flat slots 2 to 8, in any layout and cache dtype.

    It has some 900 elements: ties are few enough for less to miss a rule of rounding.
    """
    heads = {"num_heads": 2, "num_kv_heads": 2, "head_dim": 32}
    if layout == "MLA":  # its K and V are as long as each other, so that they can be mistaken
        heads = {"num_heads": 2, "num_kv_heads": 1, "head_dim": 128, "rope_dim": 64}
    if op == "write":
        more = {"padding": 2, **more}
    return Case(
        op=op,
        seq_len=7,
        start_pos=2,
        block_size=4,
        dtype="bf16",
        block_order="sequential",
        layout=layout,
        cache_dtype=cache_dtype,
        kv_scale=kv_scale,
        **heads,
        **more,
    )


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


# A right write and a right read, of steps that can each be replaced by a wrong one.

LARGEST = {torch.float8_e4m3fn: 448.0, torch.float8_e5m2: 57344.0, torch.int8: 127.0}


def saturated(quotients, dtype):
    least = -128.0 if dtype is torch.int8 else -LARGEST[dtype]
    return quotients.clamp(least, LARGEST[dtype])


def to_nearest(quotients, dtype):
    limited = saturated(quotients, dtype)
    return (limited.round() if dtype is torch.int8 else limited).to(dtype)


def divide(rows, scale):
    return rows.float() / scale


def multiply(codes, scale):
    return codes.float() * scale


def stored_scale(workload, name, rows):
    """What the rows of K or V are divided by: a given scale, or one of each token."""
    if workload.case.kv_scale != "per_token":
        return getattr(workload, f"{name}_scale")
    most = rows.float().flatten(1).abs().amax(1)
    return (most / LARGEST[workload.key_pool.dtype]).clamp(min=2.0**-20)[:, None]


def loaded_scale(workload, name, slots):
    scale = getattr(workload, f"{name}_scale")
    return scale.flatten()[slots][:, None] if workload.case.kv_scale == "per_token" else scale


def over(scale, rows):
    """A scale in a shape that goes with rows, which have a dimension more in x-packed K."""
    return scale[(..., *[None] * (rows.dim() - 2))]


def store(
    workload,
    slots,
    key=None,
    value=None,
    *,
    scale=stored_scale,
    divide=divide,
    encode=to_nearest,
    scale_slots=None,
):
    """Store the first rows in flat slots; a negative one counts from the end, as Python's does."""
    at = slots // workload.block_size, slots % workload.block_size
    for name, given_rows in (("key", key), ("value", value)):
        rows = getattr(workload, name) if given_rows is None else given_rows
        rows = rows[: len(slots)]
        pool = getattr(workload, f"{name}_pool")
        if workload.case.quantised:
            factor = scale(workload, name, rows)
            if workload.case.kv_scale == "per_token":
                flat = getattr(workload, f"{name}_scale").view(-1)
                flat[slots if scale_slots is None else scale_slots] = factor[:, 0]
            rows = encode(divide(rows, over(factor, rows)), pool.dtype)
        pool[at] = rows


def load(workload, slots, *, scale=loaded_scale, decode=None, multiply=multiply, finish=None):
    """The rows of flat slots."""
    at = slots // workload.block_size, slots % workload.block_size
    found = []
    for name in ("key", "value"):
        rows = getattr(workload, f"{name}_pool")[at]
        if workload.case.quantised:
            codes = decode(rows) if decode else rows
            factor = over(scale(workload, name, slots), rows)
            rows = multiply(codes, factor)
            rows = finish(rows) if finish else rows.to(workload.dtype)
        found.append(rows)
    return tuple(found)


def right_write(workload, **steps):
    slots = mapping(workload)
    kept = slots >= 0
    rows = (workload.key[: len(slots)][kept], workload.value[: len(slots)][kept])
    store(workload, slots[kept], *rows, **steps)


def right_read(workload, **steps):
    found = load(workload, mapping(workload), **steps)
    if workload.outputs is None:
        return found
    for target, rows in zip(workload.outputs, found, strict=True):
        target.copy_(rows)
    return workload.outputs


RIGHT = {"write": right_write, "read": right_read}


def words(tensor):
    return tensor.view({1: torch.int8, 2: torch.int16, 4: torch.int32}[tensor.element_size()])


# What the ops mean, by hand.

PLACEMENT = Placement(
    starts=[3, 0, 1], lengths=[3, 0, 2], block_tables=[[5, 2], [4], [0]], num_blocks=6
)
PLACES = [(5, 3), (2, 0), (2, 1), (0, 1), (0, 2)]


def test_token_places_by_hand():
    case = Case(op="read", seq_len=1, block_size=4)
    assert token_places(build(case, CPU, PLACEMENT)) == PLACES


def test_a_token_whose_block_is_missing_has_no_place():
    case = Case(op="write", seq_len=1, block_size=4)
    # Positions 6 to 8: the first block is one that they aren't in, the second is missing, and the
    # table goes on behind the third.
    at = Placement(starts=[6], lengths=[3], block_tables=[[3, -1, 1, -1]], num_blocks=4)
    assert token_places(build(case, CPU, at)) == [None, None, (1, 0)]


FLAT = {
    # Where the element d of head h in slot b of block n lies in the first storage, and in the last.
    "NHD": (
        lambda n, b, h, d, s: ((n * s.B + b) * s.H + h) * s.D + d,
        lambda n, b, h, d, s: ((n * s.B + b) * s.H + h) * s.D + d,
    ),
    "HND": (
        lambda n, b, h, d, s: ((n * s.H + h) * s.B + b) * s.D + d,
        lambda n, b, h, d, s: ((n * s.H + h) * s.B + b) * s.D + d,
    ),
    "NHD-KV": (
        lambda n, b, h, d, s: ((2 * n * s.B + b) * s.H + h) * s.D + d,
        lambda n, b, h, d, s: (((2 * n + 1) * s.B + b) * s.H + h) * s.D + d,
    ),
    "HND-KV": (
        lambda n, b, h, d, s: ((n * s.H + h) * s.B + b) * 2 * s.D + d,
        lambda n, b, h, d, s: ((n * s.H + h) * s.B + b) * 2 * s.D + s.D + d,
    ),
    "x-packed": (
        lambda n, b, h, d, s: (((n * s.H + h) * (s.D // s.x) + d // s.x) * s.B + b) * s.x + d % s.x,
        lambda n, b, h, d, s: ((n * s.H + h) * s.D + d) * s.B + b,
    ),
    "MLA": (
        lambda n, b, h, d, s: (n * s.B + b) * s.D + d + h,  # h is 0
        lambda n, b, h, d, s: (n * s.B + b) * s.D + s.D - s.rope + d + h,
    ),
}


@dataclasses.dataclass
class Sizes:
    B: int
    H: int
    D: int
    x: int
    rope: int


@pytest.mark.parametrize("dtype", DTYPE_BYTES)
@pytest.mark.parametrize("cache_dtype", ["auto", "int8"])
@each_layout
def test_every_element_of_a_pool_is_where_its_layout_says(layout, cache_dtype, dtype):
    case = Case(
        op="read",
        seq_len=3,
        block_size=3,
        num_heads=5,
        num_kv_heads=1 if layout == "MLA" else 5,
        head_dim=48,
        layout=layout,
        dtype=dtype,
        cache_dtype=cache_dtype,
        **({"rope_dim": 10} if layout == "MLA" else {}),
    )
    # Vectors of 16 bytes.
    x = 16 if cache_dtype == "int8" else {"fp32": 4, "fp16": 8, "bf16": 8}[dtype]
    sizes = Sizes(3, case.num_kv_heads, 48, x, 10)
    shapes = [tuple(storage.shape) for storage in build(case, CPU).storages]
    numbered = [np.arange(np.prod(shape), dtype=np.int32).reshape(shape) for shape in shapes]
    numbered[-1] += 1 << 20 if len(shapes) == 2 else 0
    found = pools(case, numbered)
    dims = (38, 10) if layout == "MLA" else (48, 48)
    for name, dim, flat in zip(("key_pool", "value_pool"), dims, FLAT[layout], strict=True):
        n, b, h, d = np.indices((len(numbered[0]), 3, case.num_kv_heads, dim))
        expected = flat(n, b, h, d, sizes)
        if name == "value_pool" and len(shapes) == 2:
            expected += 1 << 20
        assert np.array_equal(found[name], expected)


@given(cases())
def test_every_bit_of_the_storages_is_in_one_element_of_k_or_v(case):
    storages = [bits(storage) for storage in build(case, CPU).storages]
    total = sum(storage.size for storage in storages)
    first = 0
    for number, storage in enumerate(storages):
        storages[number] = np.arange(first, first + storage.size).reshape(storage.shape)
        first += storage.size
    seen = np.concatenate([pool.ravel() for pool in pools(case, storages).values()])
    assert np.array_equal(np.sort(seen), np.arange(total))


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
    assert np.array_equal(written(pool, rows, [None] * 5), pool)


def test_a_read_by_hand():
    pool = np.arange(6 * 4, dtype=np.int32).reshape(6, 4, 1, 1)
    assert gathered(pool, PLACES).ravel().tolist() == [23, 8, 9, 1, 2]
    assert gathered(pool, []).shape == (0, 1, 1)
    assert gathered(pool, [None, (5, 3)]).ravel().tolist() == [0, 23]


def test_bits_tell_apart_what_comparison_does_not_and_nothing_else():
    assert bits(torch.tensor([1.0, 0.0, -0.0], dtype=torch.bfloat16)).tolist() == [
        0x3F80,
        0,
        -0x8000,
    ]
    nan = torch.tensor([0x7FC1, 0x7FC2], dtype=torch.int16).view(torch.bfloat16)
    assert bits(nan).tolist() == [0x7FC1, 0x7FC2]
    assert bits(torch.tensor([[1.0, 2.0]]).T).tolist() == [[0x3F800000], [0x40000000]]
    codes = torch.tensor([1.0, -0.0, torch.nan]).to(torch.float8_e4m3fn)
    assert bits(codes).tolist() == [0x38, -0x80, 0x7F]
    assert bits(torch.tensor([-3, 7], dtype=torch.int8)).tolist() == [-3, 7]


def test_bits_are_a_copy():
    tensor = torch.zeros(3)
    before = bits(tensor)
    tensor.fill_(1.0)
    assert before.tolist() == [0, 0, 0]


# Right strategies pass.


@given(cases(ops=KV_OPS))
def test_a_right_strategy_passes(case):
    assert check(Toy(case.op, RIGHT[case.op]), build(case, CPU)) == ""


def most_by_reciprocal(workload, name, rows):
    """As `stored_scale`, by a product with the reciprocal."""
    if workload.case.kv_scale != "per_token":
        return stored_scale(workload, name, rows)
    reciprocal = 1 / torch.tensor(LARGEST[workload.key_pool.dtype])
    most = rows.float().flatten(1).abs().amax(1)
    return (most * reciprocal).clamp(min=2.0**-20)[:, None]


RIGHT_WRITES = {
    "as defined": right_write,
    "by the reciprocal": lambda w: right_write(w, divide=lambda rows, s: rows.float() * (1 / s)),
    "in float64": lambda w: right_write(w, divide=lambda rows, s: (rows.double() / s).float()),
    "a token's scale by the reciprocal": lambda w: right_write(w, scale=most_by_reciprocal),
}
RIGHT_READS = {
    "as defined": right_read,
    "in float64": lambda w: right_read(w, multiply=lambda codes, s: codes.double() * s),
}


@each_cache
@each_layout
@pytest.mark.parametrize(
    ("op", "run"),
    [
        *(pytest.param("write", run, id=f"write {name}") for name, run in RIGHT_WRITES.items()),
        *(pytest.param("read", run, id=f"read {name}") for name, run in RIGHT_READS.items()),
    ],
)
def test_a_strategy_that_is_right_passes_however_it_divides(op, run, layout, cache_dtype, kv_scale):
    workload = build(case_of(op, layout, cache_dtype, kv_scale), CPU)
    assert check(Toy(op, run), workload, versions=(0, 1, 2, 3)) == ""


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


def leaves(workload, part):
    """A right write, but for a part of the tensors, which is as it was."""
    before = [tensor.clone() for tensor in part]
    right_write(workload)
    for tensor, was in zip(part, before, strict=True):
        words(tensor).copy_(words(was))


def all_but_the_last_head(workload):
    leaves(workload, [pool[:, :, -1:] for pool in (workload.key_pool, workload.value_pool)])


def k_alone(workload):
    scales = [workload.value_scale] if workload.case.kv_scale == "per_token" else []
    leaves(workload, [workload.value_pool, *scales])


def k_and_v_swapped(workload):
    key, value = workload.key, workload.value
    store(workload, mapping(workload), key=value.reshape(key.shape), value=key.reshape(value.shape))


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
        lambda w: store(w, mapping(w), key=w.key[:1].expand(w.key.shape)),
        f"key_pool block 0, slot 3, head 0, element 0 is {WORD}; expected token 1's {WORD}",
    ),
    "K and V swapped": (
        k_and_v_swapped,
        f"key_pool block 0, slot 2, head 0, element 0 is {WORD}; expected token 0's {WORD}",
    ),
    "K into both pools": (
        lambda w: store(w, mapping(w), value=w.key.reshape(w.value.shape)),
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


def k_twice(workload):
    key, value = right_read(workload)
    return key, key.clone().reshape(value.shape)


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
        lambda w: torch.cat([tensor.flatten() for tensor in right_read(w)]),
        r"run returned a Tensor; expected a tuple \(K, V\) from a read",
    ),
    "K alone": (
        lambda w: right_read(w)[:1],
        r"run returned a tuple of 1; expected a tuple \(K, V\) from a read",
    ),
    "an array": (
        lambda w: tuple(bits(tensor) for tensor in right_read(w)),
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
        lambda w: load(w, torch.arange(2 * w.block_size)),
        r"K is torch.float32 of shape \[8, 2, 3\]; expected torch.float32 of shape \[3, 2, 3\]",
    ),
    "off by one slot": (
        lambda w: load(w, mapping(w) + 1),
        rf"K of token 0 \(block 0, slot 2\), head 0, element 0 is {WORD}; expected {WORD}",
    ),
    "the last token twice": (
        lambda w: load(w, torch.cat([mapping(w)[:1], mapping(w)[-1:], mapping(w)[2:]])),
        rf"K of token 1 \(block 0, slot 3\), head 0, element 0 is {WORD}; expected {WORD}",
    ),
    "K and V swapped": (
        lambda w: right_read(w)[::-1],
        rf"K of token 0 \(block 0, slot 2\), head 0, element 0 is {WORD}; expected {WORD}",
    ),
    "K twice": (
        k_twice,
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


# What is wrong in one layout or cache dtype alone: each is caught in every one where it is wrong.


def each_rounding(between):
    """A rule of rounding: what it makes of quotients and their neighbours in the format."""

    def encode(quotients, dtype):
        every = torch.arange(256).to(torch.uint8).view(dtype).float()
        values = every[every.isfinite()].unique()  # sorted
        limited = saturated(quotients, dtype).double()
        at = torch.searchsorted(values.double(), limited.nan_to_num(), right=True) - 1
        low, high = values[at].double(), values[(at + 1).clamp(max=len(values) - 1)].double()
        rounded = torch.where(limited == low, low, between(limited, low, high))
        return torch.where(quotients.isnan(), quotients, rounded.float()).to(dtype)

    return encode


def half_to_odd_or_even(limited, low, high):
    """To the nearest, but a tie to either at random."""
    generator = torch.Generator().manual_seed(0)
    coin = torch.rand(limited.shape, generator=generator) < 0.5
    tie = limited - low == high - limited
    return torch.where(tie & coin | (limited - low < high - limited), low, high)


def stochastic(limited, low, high):
    generator = torch.Generator().manual_seed(0)
    share = torch.rand(limited.shape, generator=generator, dtype=torch.float64)
    return torch.where(share < (limited - low) / (high - low), high, low)


WRONG_ROUNDINGS = {
    "cut off": lambda x, low, high: torch.where(x > 0, low, high),
    "away from zero": lambda x, low, high: torch.where(x > 0, high, low),
    "half away from zero": lambda x, low, high: torch.where(
        (x - low > high - x) | ((x - low == high - x) & (x > 0)), high, low
    ),
    "half towards zero": lambda x, low, high: torch.where(
        (x - low > high - x) | ((x - low == high - x) & (x < 0)), high, low
    ),
    "half up": lambda x, low, high: torch.where(x - low >= high - x, high, low),
    "ties at random": half_to_odd_or_even,
    "stochastic": stochastic,
}


def unsaturated(quotients, dtype):
    """Conversion by the letter: what is too large becomes NaN, infinity or another integer."""
    if dtype is torch.int8:
        return quotients.clamp(-1e9, 1e9).round().to(torch.int32).to(dtype)
    own = {torch.float8_e4m3fn: ml_dtypes.float8_e4m3fn, torch.float8_e5m2: ml_dtypes.float8_e5m2}
    with np.errstate(all="ignore"):
        codes = quotients.numpy().astype(own[dtype])
    return torch.from_numpy(codes.view(np.int8)).view(dtype)


def of_another_format(quotients, dtype):
    other = torch.float8_e5m2 if dtype is torch.float8_e4m3fn else torch.float8_e4m3fn
    return to_nearest(quotients, other).view(dtype)


def without_subnormals(quotients, dtype):
    least = torch.finfo(dtype).smallest_normal
    return to_nearest(torch.where(quotients.abs() < least, 0.0, quotients), dtype)


def in_bf16(rows, scale):
    return (rows.bfloat16() / scale.bfloat16()).float()


def one_code_up(workload):
    """One element of the last token of V is the next code."""
    right_write(workload)
    at = divmod(mapping(workload)[-1].item(), workload.block_size)
    row = workload.value_pool[at]
    inner = tuple(row.float().isfinite().nonzero()[0])
    words(row)[inner] += 1


def other_rows(name):
    """The scale of K instead of V's, or the other way round."""

    def scale(workload, own, rows):
        del own
        return stored_scale(workload, name, getattr(workload, name)[: len(rows)])

    return scale


def scale_of(change):
    """A right scale, changed; what is stored per token is changed too."""
    return lambda w, name, rows: change(stored_scale(w, name, rows))


def leaves_scales(workload):
    leaves(workload, [workload.key_scale, workload.value_scale])


def leaves_v_scales(workload):
    leaves(workload, [workload.value_scale])


def one_head_s(workload, name, rows):
    return stored_scale(workload, name, rows[:, -1:])


def doubles_a_scale(run):
    def changed(workload):
        result = run(workload)
        workload.value_scale[-1, -1] *= 2
        return result

    return changed


def as_nhd(workload):
    """The workload with pools as they would be if the storages were in layout NHD."""
    case = workload.case
    dim = case.head_dim
    shape = (-1, case.block_size, case.num_kv_heads)
    first, last = workload.storages[0], workload.storages[-1]
    if case.layout == "NHD-KV":
        key, value = first.view(2, *first.shape[:1], *shape[1:], dim)
    elif case.layout == "HND-KV":
        key, value = first.view(*shape, 2 * dim).split(dim, dim=3)
    else:
        key, value = first.view(*shape, dim), last.view(*shape, dim)
    key = key.unflatten(3, workload.key_pool.shape[3:]) if case.layout == "x-packed" else key
    return dataclasses.replace(workload, key_pool=key, value_pool=value)


def mutants_of_write(case):
    """Writes that are wrong in a case, by what is wrong with them."""
    given = case.quantised and case.kv_scale != "per_token"
    yield from ((name, run) for name, (run, _) in WRONG_WRITES.items())
    yield "one code up", one_code_up
    if case.layout not in {"NHD", "MLA"}:
        yield "flat slots of NHD", lambda w: right_write(as_nhd(w))
    if not case.quantised:
        return
    for name, rule in WRONG_ROUNDINGS.items():
        yield name, lambda w, rule=rule: right_write(w, encode=each_rounding(rule))
    yield "another format's codes", lambda w: right_write(w, encode=of_another_format)
    yield "in bf16", lambda w: right_write(w, divide=in_bf16)
    yield "K's scale", lambda w: right_write(w, scale=other_rows("key"))
    yield "V's scale", lambda w: right_write(w, scale=other_rows("value"))
    yield "not scaled", lambda w: right_write(w, divide=lambda rows, _: rows.float())
    yield "multiplied", lambda w: right_write(w, divide=lambda rows, s: rows.float() * s)
    yield "scaled twice", lambda w: right_write(w, divide=lambda rows, s: rows.float() / s / s)
    if case.cache_dtype != "int8":
        yield "no subnormals", lambda w: right_write(w, encode=without_subnormals)
    if case.kv_scale == "per_head" and case.num_kv_heads > 1:
        yield "another head's scale", lambda w: right_write(w, scale=scale_of(lambda s: s.roll(1)))
        yield (
            "the first head's scale",
            lambda w: right_write(w, scale=scale_of(lambda s: s[:, :1])),
        )
    if given:
        yield "not saturated", lambda w: right_write(w, encode=unsaturated)
        yield "and then doubles a scale", doubles_a_scale(right_write)
        if case.cache_dtype == "int8":
            yield (
                "without -128",
                lambda w: right_write(w, encode=lambda q, t: to_nearest(q.clamp(min=-127), t)),
            )
        else:
            yield (
                "NaN as zero",
                lambda w: right_write(w, encode=lambda q, t: to_nearest(q.nan_to_num(0.0), t)),
            )
        return
    yield "without its scales", leaves_scales
    yield "without V's scales", leaves_v_scales
    yield "scale in the next slot", lambda w: right_write(w, scale_slots=mapping(w) + 1)
    yield "scale in the slots of 0", lambda w: right_write(w, scale_slots=torch.arange(7))
    yield "another token's scale", lambda w: right_write(w, scale=scale_of(lambda s: s.roll(1, 0)))
    yield "one scale", lambda w: right_write(w, scale=scale_of(lambda s: s.amax().expand_as(s)))
    yield "a scale twice as large", lambda w: right_write(w, scale=scale_of(lambda s: 2 * s))
    yield (
        "a scale in bf16",
        lambda w: right_write(w, scale=scale_of(lambda s: s.bfloat16().float())),
    )
    yield "no smallest scale", lambda w: right_write(w, scale=scale_of(without_smallest))
    if case.num_kv_heads > 1:
        yield "the last head's scale", lambda w: right_write(w, scale=one_head_s)
        yield "the first head's scale", from_magnitude(lambda r: r[:, :1].flatten(1).abs().amax(1))
    yield "largest without its sign", from_magnitude(lambda r: r.flatten(1).amax(1))
    yield "the first element's scale", from_magnitude(lambda r: r.flatten(1)[:, 0].abs())
    yield "and then doubles a scale of no token", doubles_a_scale(right_write)


def from_magnitude(magnitude):
    """A write whose scales are from something else than the largest magnitude of a row."""

    def scale(workload, _, rows):
        most = magnitude(rows.float()) / LARGEST[workload.key_pool.dtype]
        return most.clamp(min=2.0**-20)[:, None]

    return lambda workload: right_write(workload, scale=scale)


def without_smallest(scale):
    return torch.where(scale == 2.0**-20, 0.0, scale)


def cut_to_bf16(rows):
    return (rows.view(torch.int32) & -0x10000).view(torch.float32).to(torch.bfloat16)


def one_row_up(workload):
    """One element of the last token of V is the next number."""
    key, value = right_read(workload)
    inner = tuple(value[-1].isfinite().nonzero()[0])
    words(value[-1])[inner] += 1
    return key, value


def codes_of_another_format(codes):
    other = torch.float8_e5m2 if codes.dtype is torch.float8_e4m3fn else torch.float8_e4m3fn
    return codes.view(other)


def mutants_of_read(case):
    """Reads that are wrong in a case, by what is wrong with them."""
    skipped = {"memory that it never wrote"}  # which may be anything
    if case.num_kv_heads == 1:
        skipped.add("heads in reverse order")
    yield from ((name, run) for name, (run, _) in WRONG_READS.items() if name not in skipped)
    yield "one row up", one_row_up
    if case.layout not in {"NHD", "MLA"}:
        yield "flat slots of NHD", lambda w: right_read(as_nhd(w))
    if not case.quantised:
        return
    yield "another format's codes", lambda w: right_read(w, decode=codes_of_another_format)
    yield "in float32", lambda w: right_read(w, finish=lambda rows: rows)
    yield "codes as they are", lambda w: right_read(w, multiply=lambda codes, _: codes.float())
    yield "codes alone", lambda w: right_read(w, finish=lambda rows: to_nearest(rows, torch.int8))
    yield "scaled twice", lambda w: right_read(w, multiply=lambda codes, s: codes.float() * s * s)
    yield "divided", lambda w: right_read(w, multiply=lambda codes, s: codes.float() / s)
    yield "in bf16", lambda w: right_read(w, multiply=lambda c, s: c.bfloat16() * s.bfloat16())
    yield "cut off", lambda w: right_read(w, finish=cut_to_bf16)
    yield "K's scale", lambda w: right_read(w, scale=lambda w, _, at: loaded_scale(w, "key", at))
    yield "V's scale", lambda w: right_read(w, scale=lambda w, _, at: loaded_scale(w, "value", at))
    yield "and then doubles a scale", doubles_a_scale(right_read)
    if case.cache_dtype != "int8":
        yield (
            "NaN as zero",
            lambda w: right_read(w, multiply=lambda c, s: (c.float() * s).nan_to_num(0.0)),
        )
    if case.cache_dtype == "fp8_e5m2":
        yield (
            "infinity saturated",
            lambda w: right_read(w, multiply=lambda c, s: c.float().clamp(-57344.0, 57344.0) * s),
        )
    if case.kv_scale == "per_head" and case.num_kv_heads > 1:
        yield (
            "another head's scale",
            lambda w: right_read(w, scale=lambda *at: loaded_scale(*at).roll(1)),
        )
    if case.kv_scale == "per_token":
        yield (
            "the next slot's scale",
            lambda w: right_read(w, scale=lambda w, name, at: loaded_scale(w, name, at + 1)),
        )
        yield (
            "scales from slot 0 on",
            lambda w: right_read(w, scale=lambda w, name, at: loaded_scale(w, name, at - 2)),
        )


@each_cache
@each_layout
def test_a_wrong_write_is_caught_in_every_layout_and_cache_dtype(layout, cache_dtype, kv_scale):
    case = case_of("write", layout, cache_dtype, kv_scale)
    workload = build(case, CPU)
    assert check(Toy("write", right_write), workload) == ""
    passed = [
        name for name, run in mutants_of_write(case) if not check(Toy("write", run), workload)
    ]
    assert passed == []


@each_cache
@each_layout
def test_a_wrong_read_is_caught_in_every_layout_and_cache_dtype(layout, cache_dtype, kv_scale):
    case = case_of("read", layout, cache_dtype, kv_scale)
    workload = build(case, CPU)
    assert check(Toy("read", right_read), workload) == ""
    passed = [name for name, run in mutants_of_read(case) if not check(Toy("read", run), workload)]
    assert passed == []


ONE_MISSING = Placement(starts=[2], lengths=[7], block_tables=[[-1, 2, 1]], num_blocks=4)


@each_cache
@each_layout
def test_a_slot_of_a_missing_block_that_is_written_is_caught(layout, cache_dtype, kv_scale):
    workload = build(case_of("write", layout, cache_dtype, kv_scale), CPU, ONE_MISSING)
    assert mapping(workload).tolist()[:3] == [-2, -1, 8]
    assert check(Toy("write", right_write), workload) == ""
    # As Python counts, from the end of the pool, and limited to the first slot of all.
    for slots in (mapping(workload), mapping(workload).clamp(min=0)):
        found = check(Toy("write", lambda w, slots=slots: store(w, slots)), workload)
        assert re.match(r"key_pool block \d, slot \d, .* belongs to no token but was writ", found)


@each_cache
@each_layout
def test_a_token_that_is_left_out_behind_a_missing_block_is_caught(layout, cache_dtype, kv_scale):
    workload = build(case_of("write", layout, cache_dtype, kv_scale), CPU, ONE_MISSING)

    def first_rows(workload):
        # The slots that there are, with the rows of the first tokens instead of their own.
        slots = mapping(workload)
        store(workload, slots[slots >= 0])

    assert re.match(r"key_pool block \d, slot \d", check(Toy("write", first_rows), workload))


@pytest.mark.parametrize("op", ["write", "read"])
@pytest.mark.parametrize("kv_scale", ["per_tensor", "per_head"])
@pytest.mark.parametrize("name", ["key_scale", "value_scale"])
def test_a_given_scale_that_is_changed_is_caught(name, kv_scale, op):
    def run(workload):
        result = RIGHT[op](workload)
        words(getattr(workload, name))[0, -1] ^= 1
        return result

    found = check(Toy(op, run), build(case_of(op, "NHD", "int8", kv_scale), CPU))
    assert found == f"{name} was changed; expected it to be read only"


@pytest.mark.parametrize("name", ["key_scale", "value_scale"])
def test_a_token_s_scale_that_a_read_changes_is_caught(name):
    def run(workload):
        result = right_read(workload)
        words(getattr(workload, name))[-1, -1] ^= 1
        return result

    found = check(Toy("read", run), build(case_of("read", "NHD", "int8", "per_token"), CPU))
    assert found == f"{name} was changed; expected a read to leave it alone"


def scales_twice_as_large(workload):
    right_write(workload, scale=scale_of(lambda s: 2 * s))


def v_scales_left(workload):
    # Where V's scales are as they were, its codes may be right by them: V is stored with them.
    own = workload.value_scale.view(-1)[mapping(workload)][:, None].clone()
    right_write(workload, scale=lambda w, n, rows: stored_scale(w, n, rows) if n == "key" else own)


@pytest.mark.parametrize(
    ("run", "message"),
    [
        (scales_twice_as_large, rf"key_scale block 0, slot 2 is {WORD}; expected token 0's {WORD}"),
        (
            v_scales_left,
            f"value_scale block 0, slot 2 was not written: expected token 0's {WORD}",
        ),
        (
            doubles_a_scale(right_write),
            r"value_scale block \d, slot 3 belongs to no token but was written: "
            f"{WORD}; expected {WORD}",
        ),
    ],
)
def test_a_token_s_scale_is_checked_by_itself(run, message):
    # The codes are right by the scales that are stored, which are wrong.
    workload = build(case_of("write", "NHD", "fp8_e4m3", "per_token"), CPU)
    assert re.fullmatch(message, check(Toy("write", run), workload))


def test_a_message_has_the_codes_that_are_and_those_that_should_be():
    def run(workload):
        right_write(workload)
        words(workload.value_pool)[0, 3, 1, 5] = 0x7F

    workload = build(case_of("write", "HND", "fp8_e4m3"), CPU)
    message = check(Toy("write", run), workload)
    quotient = workload.value[1, 1, 5].float() / workload.value_scale[0, 0]
    expected = to_nearest(quotient, torch.float8_e4m3fn).view(torch.uint8).item()
    assert message == (
        "value_pool block 0, slot 3, head 1, element 5 is 0x7f; "
        f"expected token 1's 0x{expected:02x}"
    )


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
    assert len(kept) == 3  # the last to see whether the layer is the reason


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
    assert len(kept) == 3  # the last to see whether the layer is the reason


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


def flip(tensor, data, at=()):
    """Flip any one bit of a tensor, in the part of it that is at an index if there is one."""
    view = words(tensor)
    at = (*at, *(data.draw(st.integers(0, size - 1)) for size in view.shape[len(at) :]))
    sign = 8 * view.element_size() - 1
    bit = data.draw(st.integers(0, sign))
    before = tensor[at].clone()
    view[at] ^= -(1 << bit) if bit == sign else 1 << bit
    return before.float().item(), tensor[at].float().item()


def same_number(before, after):
    return before == after or (before != before and after != after)  # noqa: PLR0124 - NaN


# Where arithmetic has gone into a result, only another number is wrong (a NaN may have any payload,
# and there are two zeros), and only data with exact scales has one right result.
EXACT = {"versions": (1,)}


@settings(max_examples=150)
@given(cases(op="write"), st.data())
def test_any_one_bit_that_a_write_gets_wrong_is_caught(case, data):
    workload = build(case, CPU)
    targets = ["key_pool", "value_pool", *(["key", "value"] if len(workload.key) else [])]
    if case.quantised and case.kv_scale != "per_token":
        targets += ["key_scale", "value_scale"]
    target = data.draw(st.sampled_from(targets))

    def run(workload):
        right_write(workload)
        numbers = flip(getattr(workload, target), data)
        if case.quantised and target.endswith("_pool") and same_number(*numbers):
            reject()

    found = check(Toy("write", run), workload, **EXACT)
    assert found.startswith(f"{target} ")


@settings(max_examples=100)
@given(cases(op="write"), st.data())
def test_any_one_bit_of_an_untouched_slot_that_a_write_changes_is_caught(case, data):
    workload = build(case, CPU)
    targets = ["key_pool", "value_pool"]
    if case.kv_scale == "per_token":
        targets += ["key_scale", "value_scale"]
    target = data.draw(st.sampled_from(targets))
    written_to = set(token_places(workload))
    slots = np.ndindex(*workload.key_pool.shape[:2])
    untouched = [slot for slot in slots if slot not in written_to]
    place = untouched[data.draw(st.integers(0, len(untouched) - 1))]

    def run(workload):
        right_write(workload)
        flip(getattr(workload, target), data, place)

    found = check(Toy("write", run), workload, **EXACT)
    assert re.match(rf"{target} block {place[0]}, slot {place[1]}\b.* belongs to no token", found)


@settings(max_examples=150)
@given(cases(op="read"), st.data())
def test_any_one_bit_that_a_read_gets_wrong_is_caught(case, data):
    workload = build(case, CPU)
    targets = ["key_pool", "value_pool", *(["K", "V"] if case.tokens else [])]
    if case.quantised:
        targets += ["key_scale", "value_scale"]
    target = data.draw(st.sampled_from(targets))

    def run(workload):
        key, value = right_read(workload)
        tensors = {name: getattr(workload, name) for name in targets if "_" in name}
        numbers = flip({**tensors, "K": key, "V": value}[target], data)
        if case.quantised and target in {"K", "V"} and same_number(*numbers):
            reject()
        return key, value

    found = check(Toy("read", run), workload, **EXACT)
    assert found.startswith(f"{target} ")


def test_a_prepare_that_writes_to_the_pool_is_caught():
    class Eager(Toy):
        def prepare(self, workload):
            workload.value_pool[0, 0] = 0

    found = check(Eager("write", nothing), build(WRITE, CPU))
    assert found == "prepare changed storage 1; expected it to leave tensors alone"


@pytest.mark.parametrize("name", ["key_scale", "value_scale"])
@pytest.mark.parametrize("kv_scale", KV_SCALES)
def test_a_prepare_that_changes_a_scale_is_caught(kv_scale, name):
    class Eager(Toy):
        def prepare(self, workload):
            getattr(workload, name)[0, 0] *= 2

    workload = build(case_of("write", "HND", "int8", kv_scale), CPU)
    found = check(Eager("write", right_write), workload)
    assert found == f"prepare changed {name}; expected it to leave tensors alone"


AT = r"at 0x[0-9a-f]+"
GIVEN_READS = {
    "a copy of K": (
        lambda w: (w.outputs[0].clone(), w.outputs[1]),
        rf"K is not the tensor given for it: \[3, 2, 3\] of strides \[6, 3, 1\] {AT}; "
        rf"expected \[3, 2, 3\] of strides \[6, 3, 1\] {AT}",
    ),
    "V on other strides": (
        lambda w: (w.outputs[0], w.outputs[1].as_strided((3, 2, 3), (6, 1, 2))),
        rf"V is not the tensor given for it: \[3, 2, 3\] of strides \[6, 1, 2\] {AT}; "
        rf"expected \[3, 2, 3\] of strides \[6, 3, 1\] {AT}",
    ),
    "V by its first rows": (
        lambda w: (w.outputs[0], w.outputs[1][:2]),
        r"V is torch.float32 of shape \[2, 2, 3\]; expected torch.float32 of shape \[3, 2, 3\]",
    ),
    "each in the other's place": (
        lambda w: w.outputs[::-1],
        rf"K is not the tensor given for it: .* {AT}; expected .* {AT}",
    ),
}


@pytest.mark.parametrize(("result", "message"), GIVEN_READS.values(), ids=GIVEN_READS)
def test_a_read_that_does_not_return_the_tensors_it_is_given_is_caught(result, message):
    case = dataclasses.replace(READ, output="given")

    def run(workload):
        right_read(workload)
        return result(workload)

    assert check(Toy("read", right_read), build(case, CPU)) == ""
    assert re.fullmatch(message, check(Toy("read", run), build(case, CPU)))


def test_given_tensors_that_are_returned_and_not_filled_are_caught():
    case = dataclasses.replace(READ, output="given")
    found = check(Toy("read", lambda w: w.outputs), build(case, CPU))
    assert re.match("K of token 0 .* expected", found)


def test_a_prepare_that_fills_the_given_tensors_is_caught():
    class Eager(Toy):
        def prepare(self, workload):
            workload.outputs[1].fill_(0)

    case = dataclasses.replace(READ, output="given")
    found = check(Eager("read", right_read), build(case, CPU))
    assert found == "prepare changed value_output; expected it to leave tensors alone"


@each_layout
def test_a_read_that_returns_the_pool_itself_is_caught(layout):
    # One full block read from its start is a view of the right bits: no byte was moved.
    case = dataclasses.replace(case_of("read", layout), seq_len=4, start_pos=0)

    def view(workload):
        block = workload.block_tables[0][0]
        return workload.key_pool[block], workload.value_pool[block]

    def copy(workload):
        return tuple(rows.clone() for rows in view(workload))

    assert check(Toy("read", copy), build(case, CPU)) == ""

    def copy_of_k(workload):
        return copy(workload)[0], view(workload)[1]

    found = check(Toy("read", view), build(case, CPU))
    assert found == "K is a view of key_pool; expected rows of its own from a read"
    found = check(Toy("read", copy_of_k), build(case, CPU))
    assert found == "V is a view of value_pool; expected rows of its own from a read"


def test_tensors_kept_from_prepare_are_caught_in_another_layer():
    class Holding(Toy):
        def prepare(self, workload):
            return workload

        def run(self, workload, prepared):
            del workload
            return self._run(prepared)

    def write(workload):
        store(workload, mapping(workload))

    message = check(Holding("write", write), build(WRITE, CPU))
    assert message.startswith("in another layer, whose tensors lie elsewhere: key_pool ")
    message = check(Holding("read", right_read), build(READ, CPU))
    assert message.startswith("in another layer, whose tensors lie elsewhere: K of token 0 ")
