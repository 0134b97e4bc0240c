"""Codes and scales in PyTorch ops, against the oracle's rules and by hand."""

import numpy as np
import pytest
import torch
from drawn import cases
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from kvbench.blocks import Placement
from kvbench.cases import KV_SCALES, LAYOUTS, QUANTISED_BYTES, Case
from kvbench.filling import fill
from kvbench.formats import numbers, right_codes, right_rows, right_scales
from kvbench.oracle import bits
from kvbench.quantisation import (
    SMALLEST_SCALE,
    decode,
    encode,
    loads,
    spread,
    stores,
    token_scales,
)
from kvbench.workload import CACHE_DTYPES, TORCH_DTYPES, build, largest

CPU = torch.device("cpu")
INF = float("inf")
TOKENS, HEADS, DIM = 3, 2, 4
SCALE_SHAPES = {"per_tensor": (1, 1), "per_head": (1, HEADS), "per_token": (TOKENS, 1)}

each_format = pytest.mark.parametrize("cache_dtype", QUANTISED_BYTES)
each_dtype = pytest.mark.parametrize("dtype", TORCH_DTYPES)

positive = st.one_of(
    st.integers(-20, 20).map(lambda exponent: 2.0**exponent),  # exact: one code is right
    st.floats(2.0**-20, 2.0**20, width=32),
)


def sizes(cache_dtype):
    """Elements of rows for scales up to 2**20, from next to nothing to far too large."""
    small = st.floats(-4.0, 4.0, width=32)
    # int8 has no NaN: what becomes of one is undefined.
    special = st.sampled_from([0.0, -0.0, INF, -INF, *([float("nan")] * (cache_dtype != "int8"))])
    return st.one_of(small, st.floats(-(2.0**40), 2.0**40, width=32), special)


def rows_of(data, cache_dtype, dtype):
    drawn = data.draw(arrays(np.float32, (TOKENS, HEADS, DIM), elements=sizes(cache_dtype)))
    return torch.from_numpy(drawn).to(TORCH_DTYPES[dtype])


def scale_of(data, kv_scale):
    shape = SCALE_SHAPES[kv_scale]
    return torch.from_numpy(data.draw(arrays(np.float32, shape, elements=positive)))


# Codes.


@each_dtype
@each_format
@given(data=st.data(), kv_scale=st.sampled_from(KV_SCALES))
def test_codes_are_those_that_the_oracle_allows(cache_dtype, dtype, data, kv_scale):
    rows, scale = rows_of(data, cache_dtype, dtype), scale_of(data, kv_scale)
    codes = encode(rows, scale, CACHE_DTYPES[cache_dtype])
    assert codes.dtype == CACHE_DTYPES[cache_dtype]
    actual = bits(codes)
    values = rows.float().numpy()
    right = right_codes(values, scale.numpy()[:, :, np.newaxis], actual, cache_dtype)
    assert actual.tolist() == right.tolist()


@pytest.mark.parametrize(
    ("cache_dtype", "quotients", "codes"),
    [
        (
            "fp8_e4m3",
            [17.0, 19.0, -21.0, 449.0, 1e30, -INF, 2.0**-10, 3 * 2.0**-10],
            [16.0, 20.0, -20.0, 448.0, 448.0, -448.0, 0.0, 2.0**-8],
        ),
        (
            "fp8_e5m2",
            [18.0, 22.0, -22.0, 61441.0, 1e30, -INF, 2.0**-17, 3 * 2.0**-17],
            [16.0, 24.0, -24.0, 57344.0, 57344.0, -57344.0, 0.0, 2.0**-15],
        ),
        (
            "int8",
            [0.5, 1.5, -2.5, 127.5, 1e30, -INF, -127.5, -3.7],
            [0.0, 2.0, -2.0, 127.0, 127.0, -128.0, -128.0, -4.0],
        ),
    ],
)
@pytest.mark.parametrize("scale", [0.25, 1.0, 8.0])
def test_codes_by_hand(cache_dtype, quotients, codes, scale):
    rows = (torch.tensor(quotients) * scale).reshape(2, 2, 2)
    found = encode(rows, torch.tensor([[scale]]), CACHE_DTYPES[cache_dtype])
    assert found.float().flatten().tolist() == codes


@pytest.mark.parametrize("cache_dtype", ["fp8_e4m3", "fp8_e5m2"])
def test_nan_stays_nan_in_fp8(cache_dtype):
    rows = torch.tensor([[[1.0, float("nan")]]])
    codes = encode(rows, torch.ones(1, 1), CACHE_DTYPES[cache_dtype])
    assert codes.float().isnan().tolist() == [[[False, True]]]


def test_rows_of_bf16_are_divided_in_float32():
    # 17.05 goes to 18. In bf16 the quotient would be 17, and that go to 16.
    rows = torch.full((1, 1, 1), 18.75, dtype=torch.bfloat16)
    codes = encode(rows, torch.tensor([[1.1]]), torch.float8_e4m3fn)
    assert codes.float().item() == 18.0


# Rows.


@each_dtype
@each_format
@given(scale=positive)
def test_rows_of_all_codes_are_those_that_the_oracle_allows(cache_dtype, dtype, scale):
    every = np.arange(256, dtype=np.uint8).view(np.int8).reshape(64, 1, 4)
    codes = torch.from_numpy(every).view(CACHE_DTYPES[cache_dtype])
    rows = decode(codes, torch.tensor([[scale]]), TORCH_DTYPES[dtype])
    assert rows.dtype == TORCH_DTYPES[dtype]
    actual = bits(rows)
    right = right_rows(every, np.full((1, 1, 1), scale, np.float32), actual, cache_dtype, dtype)
    assert actual.tolist() == right.tolist()


@pytest.mark.parametrize("kv_scale", KV_SCALES)
def test_each_head_and_each_token_has_its_own_scale(kv_scale):
    shape = SCALE_SHAPES[kv_scale]
    scale = torch.exp2(torch.arange(np.prod(shape)).float()).reshape(shape)
    expected = scale.unsqueeze(2).expand(TOKENS, HEADS, DIM)
    codes = torch.ones(TOKENS, HEADS, DIM, dtype=torch.int8)
    assert decode(codes, scale, torch.float32).tolist() == expected.tolist()
    assert encode(expected, scale, torch.int8).tolist() == codes.tolist()


@each_format
@given(exponent=st.integers(-6, 6))
def test_encoding_what_codes_stand_for_gives_the_codes_back(cache_dtype, exponent):
    every = np.arange(256, dtype=np.uint8).view(np.int8).reshape(64, 1, 4)
    codes = every[np.isfinite(numbers(every, cache_dtype)).all(axis=(1, 2))]
    scale = torch.tensor([[2.0**exponent]])
    own = torch.from_numpy(codes).view(CACHE_DTYPES[cache_dtype])
    again = encode(decode(own, scale, torch.float32), scale, own.dtype)
    assert bits(again).tolist() == codes.tolist()
    assert len(codes) >= 60  # but two or so that hold NaN or infinity, all four of each


@pytest.mark.parametrize("scale", [torch.ones(1, 1), torch.ones(1, HEADS), torch.ones(TOKENS, 1)])
@pytest.mark.parametrize("shape", [(TOKENS, HEADS, DIM), (TOKENS, HEADS, DIM, 16)])
def test_a_scale_is_spread_over_the_elements_of_a_head_and_of_x_packed_k(scale, shape):
    rows = torch.zeros(shape)
    seen = spread(scale, rows)
    assert seen.shape == (*scale.shape, *[1] * (len(shape) - 2))
    assert (seen * rows).shape == shape


# Scales of tokens.


@each_dtype
@each_format
@given(data=st.data())
def test_scales_of_tokens_are_those_that_the_oracle_allows(cache_dtype, dtype, data):
    drawn = arrays(np.float32, (TOKENS, HEADS, DIM), elements=st.floats(-60000, 60000, width=32))
    rows = torch.from_numpy(data.draw(drawn)).to(TORCH_DTYPES[dtype])
    scales = token_scales(rows, CACHE_DTYPES[cache_dtype])
    assert scales.dtype == torch.float32
    assert scales.shape == (TOKENS,)
    actual = scales.numpy()
    assert right_scales(rows.float().numpy(), actual, cache_dtype).tolist() == actual.tolist()


def test_scales_of_tokens_by_hand():
    rows = torch.tensor([[[127.0, -254.0]], [[0.0, 0.5]], [[0.0, 0.0]]])
    half = (torch.tensor(0.5) / 127).item()
    assert token_scales(rows, torch.int8).tolist() == [2.0, half, SMALLEST_SCALE]
    # Over all heads, and over the vectors of x-packed K.
    assert token_scales(rows.reshape(1, 3, 1, 2), torch.int8).tolist() == [2.0]
    assert token_scales(torch.zeros(0, 2, 3), torch.int8).shape == (0,)


@each_format
@given(data=st.data())
def test_a_token_s_own_scale_makes_its_largest_element_the_format_s_largest(cache_dtype, data):
    elements = st.floats(-60000, 60000, width=32).filter(lambda x: abs(x) > 0.1)
    rows = torch.from_numpy(data.draw(arrays(np.float32, (TOKENS, HEADS, DIM), elements=elements)))
    dtype = CACHE_DTYPES[cache_dtype]
    codes = encode(rows, token_scales(rows, dtype)[:, None], dtype).float()
    assert codes.flatten(1).abs().amax(dim=1).tolist() == [largest(dtype)] * TOKENS


@pytest.mark.parametrize(
    ("dtype", "most"),
    [(torch.float8_e4m3fn, 448.0), (torch.float8_e5m2, 57344.0), (torch.int8, 127.0)],
)
def test_the_largest_value_of_a_format(dtype, most):
    assert largest(dtype) == most


# What a write stores and a read loads.


@given(cases(op="write"))
def test_a_write_stores_k_then_v_and_each_token_s_scale_before_its_codes(case):
    workload = build(case, CPU)
    fill(workload)
    pairs = list(stores(workload))
    pools = [workload.key_pool, workload.value_pool]
    if case.kv_scale == "per_token":
        pools = [workload.key_scale, pools[0], workload.value_scale, pools[1]]
    assert [pool.data_ptr() for pool, _ in pairs] == [pool.data_ptr() for pool in pools]
    for (pool, values), expected in zip(pairs, pools, strict=True):
        assert pool.shape == expected.shape
        assert values.dtype == pool.dtype
        assert values.shape == (len(workload.key), *pool.shape[2:])


@given(cases(op="write", cache_dtype="auto"))
def test_a_write_that_is_not_quantised_stores_the_rows_themselves(case):
    workload = build(case, CPU)
    fill(workload)
    (_, key), (_, value) = stores(workload)
    assert bits(key).tolist() == bits(workload.key).tolist()
    assert bits(value).tolist() == bits(workload.value).tolist()
    assert key.data_ptr() == workload.key.data_ptr()  # without a copy


@given(cases(op="write"), st.data())
def test_chosen_rows_are_stored_as_they_are_among_all(case, data):
    workload = build(case, CPU)
    fill(workload)
    total = len(workload.key)
    chosen = data.draw(st.lists(st.integers(0, total - 1), max_size=5) if total else st.just([]))
    first = data.draw(st.integers(0, total))
    for index in (torch.tensor(chosen, dtype=torch.int64), slice(first, first + 2)):
        for (_, every), (_, some) in zip(stores(workload), stores(workload, index), strict=True):
            if case.quantised:
                # The sign of a NaN depends on where in a vector torch converted it from fp16.
                pair = some.float().numpy(), every[index].float().numpy()
                assert np.array_equal(*pair, equal_nan=True)
            else:
                assert np.array_equal(bits(some), bits(every[index]))


@given(cases(op="read"))
def test_a_read_loads_rows_of_its_dtype_from_whatever_slots_it_gathers(case):
    workload = build(case, CPU)
    fill(workload)
    gathered = []

    def gather(pool):
        gathered.append(pool)
        return pool[0]  # the slots of one block

    rows = loads(workload, gather)
    pools = [workload.key_pool, workload.value_pool]
    if case.kv_scale == "per_token":
        pools = [pools[0], workload.key_scale, pools[1], workload.value_scale]
    assert [pool.data_ptr() for pool in gathered] == [pool.data_ptr() for pool in pools]
    for found, like in zip(rows, (workload.key, workload.value), strict=True):
        assert found.dtype == workload.dtype
        assert found.shape == (case.block_size, *like.shape[1:])


def exact(workload):
    """Give K and V values that codes have with scales that are powers of two, and the scales."""
    generator = torch.Generator().manual_seed(0)
    dtype = workload.key_pool.dtype
    for rows, scale in (
        (workload.key, workload.key_scale),
        (workload.value, workload.value_scale),
    ):
        codes = torch.randint(-5, 6, rows.shape, generator=generator).float()
        codes[:, 0].flatten(1)[:, 0] = largest(dtype)
        size = torch.randint(-2, 3, scale.shape, generator=generator)
        scale.copy_(torch.exp2(size.float()))
        if workload.case.kv_scale == "per_token":
            own = torch.exp2(torch.arange(len(rows)).float() - 1)[:, None]
        else:
            own = scale
        rows.copy_(codes * spread(own, rows))


@each_format
@pytest.mark.parametrize("kv_scale", KV_SCALES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_is_stored_is_loaded_as_it_was(layout, kv_scale, cache_dtype):
    heads, dim = (1, 48) if layout == "MLA" else (2, 32)
    case = Case(
        op="write",
        seq_len=4,
        block_size=4,
        layout=layout,
        num_heads=heads,
        num_kv_heads=heads,
        head_dim=dim,
        **({"rope_dim": 16} if layout == "MLA" else {}),
        kv_scale=kv_scale,
        cache_dtype=cache_dtype,
        dtype="fp32",
    )
    place = Placement(starts=[0], lengths=[4], block_tables=[[1]], num_blocks=3)
    workload = build(case, CPU, place)
    exact(workload)
    for pool, values in stores(workload):
        pool[1] = values
    key, value = loads(workload, lambda pool: pool[1])
    assert key.tolist() == workload.key.tolist()
    assert value.tolist() == workload.value.tolist()
    assert key.abs().amax() > 2 * key.abs().amin()  # not all alike
