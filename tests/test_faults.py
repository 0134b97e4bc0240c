"""The faults that KV-cache kernels of real engines had, each by its name.

Every built-in strategy is right where the fault would show, and a strategy that has it is caught.
"""

import numpy as np
import pytest
import torch

from kvbench import oracle
from kvbench.blocks import Placement
from kvbench.cases import Case
from kvbench.filling import fill
from kvbench.pool import flat_slots_view, slot_mapping
from kvbench.quantisation import encode, loads, stores
from kvbench.strategies import registry
from kvbench.strategies.base import Strategy
from kvbench.sweep.checking import check_case
from kvbench.workload import build

CPU = torch.device("cpu")
SMALL = {"block_size": 4, "num_heads": 2, "num_kv_heads": 2, "head_dim": 16}


class Faulty(Strategy):
    """A strategy that is the function it is given."""

    name = "test.faulty"
    summary = "has a fault"

    def __init__(self, op, run):
        self.op = op
        self._run = run

    def run(self, workload, prepared):
        del prepared
        return self._run(workload)


def mapping(workload):
    """The batch's slots as they are, negative ones included."""
    w = workload
    slots = slot_mapping(w.block_tables, w.starts, w.lengths, w.block_size, padding=w.case.padding)
    return torch.from_numpy(slots)


def index(slots, workload):
    """Blocks and offsets in them, as Python's and PyTorch's // and % have them."""
    return slots // workload.block_size, slots % workload.block_size


def store(workload, slots):
    """A write by plain indexing: row i to slot i, whatever the slot."""
    for pool, values in stores(workload, slice(len(slots))):
        pool[index(slots, workload)] = values


def load(workload, slots):
    return loads(workload, lambda pool: pool[index(slots, workload)])


def assert_right(case):
    """Every strategy of the case's op is right in it, or says why it does not do it."""
    right = []
    for strategy in registry.all_strategies():
        if strategy.op == case.op:
            status, reason = check_case(case, strategy, CPU)
            assert status == "checked" or reason == strategy.supports(case, CPU)
            right += [strategy.name] if status == "checked" else []
    assert len(right) >= 3


def assert_caught(case, run, words):
    status, reason = check_case(case, Faulty(case.op, run), CPU)
    assert status in {"incorrect", "failed"}
    assert words in reason


def cases_of(op, **fields):
    return Case(op=op, **{"seq_len": 6, "start_pos": 5, "batch": 2, **SMALL, **fields})


# Offset overflow.

FAR_BLOCK_SIZE = 16
FAR_HEADS, FAR_DIM = 64, 1024
ELEMENTS_OF_A_BLOCK = FAR_BLOCK_SIZE * FAR_HEADS * FAR_DIM
FAR_BLOCKS = 2**31 // ELEMENTS_OF_A_BLOCK + 2
"""The last two blocks lie beyond 2**31 elements."""


@pytest.fixture(scope="module")
def far_pools():
    """K and V of a pool of over 2**31 elements: zeros, in memory that exists where written to."""
    shape = (FAR_BLOCKS, FAR_BLOCK_SIZE, FAR_HEADS, FAR_DIM)
    try:
        return [torch.from_numpy(np.zeros(shape, dtype=np.float16)) for _ in "KV"]
    except MemoryError:
        pytest.skip("the system does not give out 2 x 4 GiB of memory that is not used")


@pytest.mark.parametrize("slot_dtype", ["int64", "int32"])
@pytest.mark.parametrize("op", ["write", "read"])
def test_offset_overflow(op, slot_dtype, far_pools):
    case = Case(
        op=op,
        seq_len=3,
        start_pos=14,
        block_size=FAR_BLOCK_SIZE,
        num_heads=FAR_HEADS,
        num_kv_heads=FAR_HEADS,
        head_dim=FAR_DIM,
        dtype="fp16",
        slot_dtype=slot_dtype,
    )
    table = [FAR_BLOCKS - 1, FAR_BLOCKS - 2]
    places = [(table[0], 14), (table[0], 15), (table[1], 0)]
    near = build(case, CPU, Placement([14], [3], [[1, 0]], 2))
    for strategy in registry.all_strategies():
        if strategy.op != op or strategy.supports(case, CPU) is not None:
            continue
        fill(near)
        key_pool, value_pool = far_pools
        far = type(near)(
            **{
                **{name: getattr(near, name) for name in near.__slots__},
                "key_pool": key_pool,
                "value_pool": value_pool,
                "storages": (key_pool, value_pool),
                "block_tables": [table],
            }
        )
        expected = [torch.rand(3, FAR_HEADS, FAR_DIM).half() for _ in "KV"]
        if op == "write":
            far.key.copy_(expected[0])
            far.value.copy_(expected[1])
        else:
            for pool, rows in zip(far_pools, expected, strict=True):
                for place, row in zip(places, rows, strict=True):
                    pool[place] = row
        output = strategy.run(far, strategy.prepare(far))
        for number, pool in enumerate(far_pools):
            found = [pool[place] for place in places] if op == "write" else output[number]
            assert torch.equal(torch.stack(list(found)), expected[number]), strategy.name
            # Where an offset of 32 bits would end, signed or not.
            flat = pool.view(-1, FAR_HEADS * FAR_DIM)
            for block, slot in places:
                row = block * FAR_BLOCK_SIZE + slot
                wrapped = row - 2**31 // (FAR_HEADS * FAR_DIM)
                assert not flat[wrapped].any()
                pool[block, slot] = 0


# -1 wrap.


@pytest.mark.parametrize("padding_slots", ["negative", "absent"])
@pytest.mark.parametrize("missing_blocks", [0, 1, 9])
def test_minus_1_wrap(missing_blocks, padding_slots):
    assert_right(
        cases_of("write", missing_blocks=missing_blocks, padding=3, padding_slots=padding_slots)
    )


@pytest.mark.parametrize("fields", [{"padding": 1}, {"missing_blocks": 1}], ids=str)
def test_minus_1_wrap_is_caught(fields):
    # PyTorch takes -1 for the last slot of the pool.
    assert_caught(
        cases_of("write", **fields),
        lambda w: store(w, mapping(w)),
        "belongs to no token but was written",
    )


# An input longer than the slot mapping.


def test_input_longer_than_slots():
    for kv_input in ("contiguous", "fused_qkv", "head_major"):
        assert_right(cases_of("write", padding=7, padding_slots="absent", kv_input=kv_input))


def test_input_longer_than_slots_is_caught():
    def run(w):  # as many tokens as there are rows of K
        slots = mapping(w)[: w.case.tokens]
        more = torch.arange(1, 1 + len(w.key) - len(slots))
        store(w, torch.cat([slots, slots[-1] + more]))

    case = cases_of("write", batch=1, padding=2, block_order="sequential")
    assert_caught(case, run, "belongs to no token but was written")


# NaN from a slot that was never filled.


@pytest.mark.parametrize("cache_dtype", ["auto", "fp8_e4m3", "fp8_e5m2"])
@pytest.mark.parametrize("layout", ["NHD", "HND", "NHD-KV", "HND-KV", "x-packed", "MLA"])
def test_nan_from_an_unfilled_slot(layout, cache_dtype):
    shape = {"num_heads": 1, "num_kv_heads": 1, "head_dim": 80} if layout == "MLA" else {}
    case = cases_of("read", layout=layout, cache_dtype=cache_dtype, **shape)
    workload = build(case, CPU)
    fill(workload, version=1)
    blocks, slots = zip(*oracle.token_places(workload), strict=True)
    for storage in workload.storages:
        # Not NaN anywhere, then NaN everywhere but in the tokens' slots.
        storage.copy_(torch.full(storage.shape, float("nan")).to(storage.dtype))
    for pool in (workload.key_pool, workload.value_pool):
        pool[list(blocks), list(slots)] = torch.ones(len(slots), *pool.shape[2:]).to(pool.dtype)
    read = 0
    for strategy in registry.all_strategies():
        if strategy.op == "read" and strategy.supports(case, CPU) is None:
            outputs = strategy.run(workload, strategy.prepare(workload))
            assert all(bool(torch.isfinite(rows.float()).all()) for rows in outputs)
            read += 1
    assert read >= 3


def test_nan_from_an_unfilled_slot_is_caught():
    # One token too many, in the place of the last one: in the slot behind it there is poison.
    def run(w):
        slots = mapping(w)
        slots[-1] += 1
        return load(w, slots)

    assert_caught(cases_of("read", batch=1, seq_len=5), run, "of token 4")


# Head counts and sizes.


@pytest.mark.parametrize("op", ["write", "read"])
@pytest.mark.parametrize("heads", [65, 96, 128])
def test_more_than_64_heads(op, heads):
    assert_right(cases_of(op, seq_len=2, num_heads=heads, num_kv_heads=heads))


def test_more_than_64_heads_is_caught():
    def run(w):
        for pool, rows in ((w.key_pool, w.key), (w.value_pool, w.value)):
            pool[*index(mapping(w), w), :64] = rows[:, :64]

    case = cases_of("write", num_heads=65, num_kv_heads=65)
    assert_caught(case, run, "head 64, element 0 is")


@pytest.mark.parametrize("op", ["write", "read"])
@pytest.mark.parametrize("head_dim", [1, 3, 80, 96, 112, 576])
def test_head_sizes_that_are_not_powers_of_two(op, head_dim):
    assert_right(cases_of(op, seq_len=2, head_dim=head_dim))


def test_head_sizes_that_are_not_powers_of_two_are_caught():
    def run(w):
        for pool, rows in ((w.key_pool, w.key), (w.value_pool, w.value)):
            pool[*index(mapping(w), w), :, :64] = rows[:, :, :64]

    assert_caught(cases_of("write", head_dim=80), run, "head 0, element 64 is")


# Layouts.


@pytest.mark.parametrize("op", ["write", "read"])
def test_hnd_strides_assumed_nhd(op):
    assert_right(cases_of(op, layout="HND"))


def test_hnd_strides_assumed_nhd_are_caught():
    def run(w):  # the shape of NHD over memory that is HND
        for storage, rows in zip(w.storages, (w.key, w.value), strict=True):
            n, h, b, d = storage.shape
            storage.view(n, b, h, d)[index(mapping(w), w)] = rows

    assert_caught(cases_of("write", layout="HND"), run, "key_pool block")


# Quantised pools.


@pytest.mark.parametrize("op", ["write", "read"])
@pytest.mark.parametrize("cache_dtype", ["fp8_e4m3", "fp8_e5m2"])
def test_e5m2_stored_as_e4m3(op, cache_dtype):
    assert_right(cases_of(op, cache_dtype=cache_dtype))


@pytest.mark.parametrize(
    ("cache_dtype", "other"),
    [("fp8_e4m3", torch.float8_e5m2), ("fp8_e5m2", torch.float8_e4m3fn)],
)
def test_e5m2_stored_as_e4m3_is_caught(cache_dtype, other):
    def write(w):
        for rows, pool, scale in (
            (w.key, w.key_pool, w.key_scale),
            (w.value, w.value_pool, w.value_scale),
        ):
            pool.view(other)[index(mapping(w), w)] = encode(rows, scale, other)

    def read(w):
        rows = [p.view(other)[index(mapping(w), w)] for p in (w.key_pool, w.value_pool)]
        return tuple((r.float() * w.key_scale[..., None]).to(w.dtype) for r in rows)

    assert_caught(cases_of("write", cache_dtype=cache_dtype), write, "; expected token")
    assert_caught(cases_of("read", cache_dtype=cache_dtype), read, "K of token 0")


@pytest.mark.parametrize("kv_scale", ["per_tensor", "per_head", "per_token"])
@pytest.mark.parametrize("cache_dtype", ["fp8_e4m3", "fp8_e5m2", "int8"])
def test_saturation(cache_dtype, kv_scale):
    assert_right(cases_of("write", cache_dtype=cache_dtype, kv_scale=kv_scale))


@pytest.mark.parametrize("cache_dtype", ["fp8_e4m3", "fp8_e5m2", "int8"])
def test_saturation_is_caught(cache_dtype):
    def run(w):
        for rows, pool, scale in (
            (w.key, w.key_pool, w.key_scale),
            (w.value, w.value_pool, w.value_scale),
        ):
            scaled = rows.float() / scale[..., None]
            if pool.dtype is torch.int8:
                codes = scaled.round().nan_to_num(0, 0, 0).to(torch.int32).to(torch.int8)  # wraps
            else:
                # As a cast without saturation.
                beyond = scaled.abs() > 2 * torch.finfo(pool.dtype).max
                codes = scaled.masked_fill(beyond, float("nan")).to(pool.dtype)
            pool[index(mapping(w), w)] = codes

    assert_caught(cases_of("write", cache_dtype=cache_dtype), run, "expected token")


# Tables and batches.


@pytest.mark.parametrize("op", ["write", "read"])
def test_padded_table_rows(op):
    assert_right(cases_of(op, batch=3, table_padding=2))


@pytest.mark.parametrize("op", ["write", "read"])
def test_padded_table_rows_are_caught(op):
    def run(w):  # the last entry taken for the last block
        tables = [list(table) for table in w.block_tables]
        for table, start, length in zip(tables, w.starts, w.lengths, strict=True):
            table[(start + length - 1) // w.block_size] = table[-1]
        slots = slot_mapping(tables, w.starts, w.lengths, w.block_size)
        return (store if op == "write" else load)(w, torch.from_numpy(slots))

    words = "key_pool block" if op == "write" else "K of token"
    assert_caught(cases_of(op, batch=1, table_padding=1), run, words)


@pytest.mark.parametrize("op", ["write", "read"])
@pytest.mark.parametrize("fields", [{"batch": 0}, {"seq_len": 0}, {"lengths": "holes"}], ids=str)
@pytest.mark.parametrize("layout", ["NHD", "x-packed"])
def test_empty_batch(op, fields, layout):
    assert_right(cases_of(op, layout=layout, **fields))


def test_empty_batch_is_caught():
    def run(w):  # torch.cat of nothing
        pools = (w.key_pool, w.value_pool)
        return tuple(
            torch.cat([flat_slots_view(pool)[s : s + 1] for s in mapping(w)]) for pool in pools
        )

    assert_caught(cases_of("read", batch=0), run, "non-empty list")


@pytest.mark.parametrize("op", ["write", "read"])
@pytest.mark.parametrize("start_pos", [0, 3, 4, 7, 8])
def test_single_token_at_a_block_boundary(op, start_pos):
    assert_right(cases_of(op, batch=1, seq_len=1, start_pos=start_pos))


@pytest.mark.parametrize("op", ["write", "read"])
def test_single_token_at_a_block_boundary_is_caught(op):
    def run(w):  # the block of the token before
        (table,), (position,) = w.block_tables, w.starts
        slot = table[(position - 1) // w.block_size] * w.block_size + position % w.block_size
        return (store if op == "write" else load)(w, torch.tensor([slot]))

    words = "token 0's" if op == "write" else "K of token 0"
    assert_caught(cases_of(op, batch=1, seq_len=1, start_pos=4), run, words)


# An index that is kept for another step.


class Remembers(Strategy):
    """Right, but for the slots: those of the first step it saw of a case."""

    def __init__(self, *, by: str) -> None:
        self.kept = {}
        self.by = by

    def slots(self, workload):
        key = {"case": workload.case, "pool": workload.key_pool.data_ptr()}[self.by]
        if key not in self.kept:
            self.kept[key] = slot_mapping(
                workload.block_tables, workload.starts, workload.lengths, workload.block_size
            )
        return self.kept[key]


class WriteRemembers(Remembers):
    name = "write.remembers"
    op = "write"
    summary = "keeps its index"

    def run(self, workload, prepared):
        del prepared
        slots = self.slots(workload)
        flat_slots_view(workload.key_pool)[slots] = workload.key
        flat_slots_view(workload.value_pool)[slots] = workload.value


class ReadRemembers(Remembers):
    name = "read.remembers"
    op = "read"
    summary = "keeps its index"

    def run(self, workload, prepared):
        del prepared
        slots = self.slots(workload)
        pools = (workload.key_pool, workload.value_pool)
        return tuple(flat_slots_view(pool)[slots] for pool in pools)


@pytest.mark.parametrize("by", ["case", "pool"])
@pytest.mark.parametrize("strategy", [WriteRemembers, ReadRemembers])
def test_an_index_kept_from_an_earlier_step_is_caught(strategy, by):
    case = Case(op=strategy.op, seq_len=40, num_kv_heads=1, num_heads=1, head_dim=8)
    found = oracle.check(strategy(by=by), build(case, torch.device("cpu")))
    assert found.startswith("in a second step, with other block tables: ")
