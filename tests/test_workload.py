"""The tensors of a case."""

import dataclasses
import math
from collections.abc import Iterator

import ml_dtypes
import numpy as np
import pytest
import torch
from drawn import cases
from hypothesis import given
from hypothesis import strategies as st

from kvbench.blocks import Placement, place
from kvbench.cases import KV_SCALES, LAYOUTS, QUANTISED_BYTES, Case
from kvbench.errors import InputError
from kvbench.filling import fill
from kvbench.pool import slot_mapping
from kvbench.workload import (
    CACHE_DTYPES,
    TORCH_DTYPES,
    Workload,
    build,
    largest,
    required_bytes,
)

CPU = torch.device("cpu")
CODES = tuple(QUANTISED_BYTES)
LARGEST = {"fp8_e4m3": 448, "fp8_e5m2": 57344, "int8": 127}
SMALLEST = {"fp8_e4m3": 2.0**-9, "fp8_e5m2": 2.0**-16, "int8": 1.0}
GIVEN_SCALES = ("per_tensor", "per_head")


@st.composite
def quantised_cases(draw, kv_scales: tuple[str, ...] = KV_SCALES) -> Case:
    codes, kv_scale = draw(st.sampled_from(CODES)), draw(st.sampled_from(kv_scales))
    return draw(cases(op="write", cache_dtype=codes, kv_scale=kv_scale))


def integers(tensor: torch.Tensor) -> torch.Tensor:
    sizes = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return tensor.view(sizes[tensor.element_size()])


def contents(workload: Workload) -> dict[str, torch.Tensor]:
    return {name: integers(tensor).clone() for name, tensor in workload.tensors().items()}


def filled(version: int = 0, **fields) -> Workload:
    workload = build(Case(**{"op": "write", "seq_len": 256, **fields}), CPU)
    fill(workload, version)
    return workload


def rows_and_scales(workload: Workload) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """K and V [rows, heads, elements] in float64, each with its scales."""
    for rows, scale in (
        (workload.key, workload.key_scale),
        (workload.value, workload.value_scale),
    ):
        yield rows.double().flatten(2), scale.double()


def quotients(workload: Workload) -> Iterator[np.ndarray]:
    """What of K and of V is finite, over the scale that it is given or gets."""
    for rows, given_scale in rows_and_scales(workload):
        scale = given_scale
        if workload.case.kv_scale == "per_token":
            scale = sizes(rows, workload.case)[:, None]
        quotient = (rows / scale[..., None]).numpy()
        yield quotient[np.isfinite(quotient)]


def sizes(rows: torch.Tensor, case: Case) -> torch.Tensor:
    """The scale of each row of its own."""
    return rows.flatten(1).abs().amax(1) / LARGEST[case.cache_dtype]


def half_way_values(cache_dtype: str) -> np.ndarray:
    """What lies half-way between two neighbouring codes."""
    codes = np.arange(256, dtype=np.uint8).view(
        {
            "fp8_e4m3": ml_dtypes.float8_e4m3fn,
            "fp8_e5m2": ml_dtypes.float8_e5m2,
            "int8": np.int8,
        }[cache_dtype]
    )
    values = codes.astype(np.float64)
    values = np.unique(values[np.isfinite(values)])
    return (values[1:] + values[:-1]) / 2


def is_power_of_two(values: torch.Tensor) -> torch.Tensor:
    return torch.frexp(values).mantissa == 0.5


# Shapes.


@given(cases())
def test_tensors_have_the_shapes_and_the_dtypes_of_their_case(case):
    workload = build(case, CPU)
    rows = {"write": case.tokens + case.padding, "step": case.batch}.get(case.op, 0)
    blocks, heads, x = place(case).num_blocks, case.num_kv_heads, case.pack
    if case.op == "index":
        blocks = 0  # numbers of blocks are all that it needs
    if case.op == "step":
        blocks *= case.num_layers
    of_key, of_value = (heads, case.head_dim), (heads, case.head_dim)
    if case.layout == "x-packed":
        of_key = (heads, case.head_dim // x, x)
    if case.layout == "MLA":
        of_key, of_value = (1, case.head_dim - case.rope_dim), (1, case.rope_dim)
    assert workload.key.shape == (rows, *of_key)
    assert workload.value.shape == (rows, *of_value)
    assert workload.key_pool.shape == (blocks, case.block_size, *of_key)
    assert workload.value_pool.shape == (blocks, case.block_size, *of_value)
    tensors = workload.tensors()
    assert {tensor.device for tensor in tensors.values()} == {CPU}
    assert workload.key.dtype == workload.value.dtype == workload.dtype == TORCH_DTYPES[case.dtype]
    dtype = CACHE_DTYPES.get(case.cache_dtype, workload.dtype)
    pools = (workload.key_pool, workload.value_pool, *workload.storages)
    assert {tensor.dtype for tensor in pools} == {dtype}
    assert [name for name in tensors if name.startswith("storage")] == [
        f"storage {i}" for i in range(len(workload.storages))
    ]


@pytest.mark.parametrize("cache_dtype", CODES)
@pytest.mark.parametrize(
    ("kv_scale", "shape"), [("per_tensor", (1, 1)), ("per_head", (1, 8)), ("per_token", (4, 16))]
)
def test_quantised_pools_have_scales_of_float32_for_k_and_for_v(cache_dtype, kv_scale, shape):
    case = Case(op="write", seq_len=32, cache_dtype=cache_dtype, kv_scale=kv_scale)
    workload = build(case, CPU)
    tensors = workload.tensors()
    for name in ("key_scale", "value_scale"):
        assert tensors[name] is getattr(workload, name)
        assert tuple(tensors[name].shape) == shape
        assert tensors[name].dtype == torch.float32


def test_pools_that_are_not_quantised_have_no_scales():
    workload = build(Case(op="write", seq_len=1), CPU)
    assert workload.key_scale is workload.value_scale is None
    assert list(workload.tensors()) == ["key", "value", "storage 0", "storage 1"]


@given(cases(op="read", output="given"))
def test_given_outputs_are_shaped_as_slots_and_contiguous(case):
    workload = build(case, CPU)
    tensors = workload.tensors()
    pools = (workload.key_pool, workload.value_pool)
    for name, out, pool in zip(("key", "value"), workload.outputs, pools, strict=True):
        assert tensors[f"{name}_output"] is out
        assert out.shape == (case.tokens, *pool.shape[2:])
        assert out.dtype == workload.dtype
        assert out.is_contiguous()


@given(cases(output="allocated"))
def test_there_are_no_outputs_unless_the_case_gives_them(case):
    workload = build(case, CPU)
    assert workload.outputs is None
    assert not [name for name in workload.tensors() if name.endswith("_output")]


@pytest.mark.parametrize("name", CODES)
def test_the_largest_value_of_a_format_of_codes(name):
    assert largest(CACHE_DTYPES[name]) == LARGEST[name]


# Where things lie.


@given(cases())
def test_the_lists_are_those_of_the_placement(case):
    workload, placement = build(case, CPU), place(case)
    assert workload.starts == placement.starts
    assert workload.lengths == placement.lengths
    assert workload.block_tables == placement.block_tables
    assert workload.block_size == case.block_size


@given(cases(op="write"))
def test_the_token_stride_is_that_of_a_row_of_a_projection_or_of_a_head(case):
    workload = build(case, CPU)
    rows, heads = case.tokens + case.padding, case.num_kv_heads
    for tensor, dim in ((workload.key, case.key_dim), (workload.value, case.value_dim)):
        expected = (heads * dim, dim)
        if case.kv_input == "head_major":
            expected = (dim, max(rows, 1) * dim)
        elif case.kv_input == "fused_qkv" and case.layout == "MLA":
            expected = (case.head_dim, case.head_dim)
        elif case.kv_input == "fused_qkv":
            expected = ((case.num_heads + 2 * heads) * dim, dim)
        elif case.kv_input == "sliced_v" and tensor is workload.value:
            expected = (2 * heads * dim, dim)
        x_packed = case.layout == "x-packed" and tensor is workload.key
        expected += (case.pack, 1) if x_packed else (1,)
        for axis, (stride, size) in enumerate(zip(expected, tensor.shape, strict=True)):
            if size > 1:
                assert tensor.stride(axis) == stride


def same_memory(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()


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
    assert same_memory(workload.key, workload.value)
    assert workload.key.storage_offset() == 6 * 16
    assert workload.value.storage_offset() == (6 + 2) * 16


def test_kv_c_and_k_pe_of_one_projection_are_the_halves_of_a_latent_row():
    case = Case(
        op="write",
        seq_len=3,
        kv_input="fused_qkv",
        layout="MLA",
        num_heads=16,
        num_kv_heads=1,
        head_dim=576,
    )
    workload = build(case, CPU)
    assert same_memory(workload.key, workload.value)
    assert (workload.key.storage_offset(), workload.value.storage_offset()) == (0, 512)
    assert workload.key.stride(0) == workload.value.stride(0) == 576
    # Without Q: its heads have a projection of their own.
    assert workload.key.untyped_storage().nbytes() == 3 * 576 * 2


def test_the_heads_of_head_major_rows_are_outermost():
    case = Case(op="write", seq_len=3, kv_input="head_major", num_heads=2, num_kv_heads=2)
    for rows in (build(case, CPU).key, build(case, CPU).value):
        assert rows.stride() == (128, 3 * 128, 1)


@given(cases())
def test_no_two_tensors_overlap_and_the_pools_are_in_their_storages(case):
    workload = build(case, CPU)
    tensors = workload.tensors()
    for number, tensor in enumerate(tensors.values()):
        integers(tensor).fill_(number)
    for number, tensor in enumerate(tensors.values()):
        assert integers(tensor).eq(number).all()
    pools = (workload.key_pool, workload.value_pool)
    assert {pool.untyped_storage().data_ptr() for pool in pools} == {
        storage.untyped_storage().data_ptr() for storage in workload.storages
    }
    assert sum(p.nbytes for p in pools) == sum(s.nbytes for s in workload.storages)


# Placements that are given.


def test_a_placement_that_is_given_replaces_the_case_s_own():
    case = Case(op="write", seq_len=1, batch=2, block_size=4, padding=1)
    placement = Placement(starts=[0], lengths=[5], block_tables=[[7, 1]], num_blocks=9)
    workload = build(case, CPU, placement)
    assert workload.key.shape == (5 + 1, 8, 128)
    assert workload.key_pool.shape == (9, 4, 8, 128)
    assert workload.block_tables == [[7, 1]]


@pytest.mark.parametrize(
    ("placement", "message"),
    [
        # Two sequences write the same positions of one block.
        (
            Placement(starts=[0, 3], lengths=[4, 2], block_tables=[[1], [1, 0]], num_blocks=3),
            "slot 7 would be written twice (block 1); expected every new token in a slot",
        ),
        # One sequence has a block twice.
        (
            Placement(starts=[0], lengths=[8], block_tables=[[2, 2]], num_blocks=3),
            "slot 8 would be written twice (block 2); expected",
        ),
        # Slots of their own, in one block.
        (
            Placement(starts=[0, 2], lengths=[2, 2], block_tables=[[1], [1]], num_blocks=3),
            "block 1 is shared by sequences and would be written; expected",
        ),
        # The other one only reads it: it is full there.
        (
            Placement(starts=[4, 3], lengths=[1, 1], block_tables=[[1, 0], [1]], num_blocks=3),
            "block 1 is shared by sequences and would be written; expected",
        ),
    ],
    ids=["twice", "twice in one", "shared", "shared prefix"],
)
def test_writes_that_would_collide_are_refused_and_the_same_reads_are_not(placement, message):
    case = Case(op="write", seq_len=1, block_size=4, num_heads=1, num_kv_heads=1, head_dim=4)
    with pytest.raises(InputError) as raised:
        build(case, CPU, placement)
    assert str(raised.value).startswith(message)
    assert len(str(raised.value).splitlines()) == 1
    read = build(dataclasses.replace(case, op="read"), CPU, placement)
    assert read.block_tables == placement.block_tables


@pytest.mark.parametrize(
    ("starts", "lengths", "block_tables"),
    [
        # Behind a prefix that is shared.
        ([4, 4], [3, 3], [[1, 0], [1, 2]]),
        # Nothing of the block that is shared is new.
        ([4, 0], [2, 0], [[1, 0], [1]]),
        # What has no block has no slot to collide in, and nor have a table's empty entries.
        ([0, 0], [5, 6], [[-1, 0, -1], [-1, 2, -1]]),
    ],
    ids=["prefix", "empty", "missing"],
)
def test_writes_that_do_not_collide_are_taken(starts, lengths, block_tables):
    case = Case(op="write", seq_len=1, block_size=4, num_heads=1, num_kv_heads=1, head_dim=4)
    placement = Placement(starts, lengths, block_tables, num_blocks=3)
    assert build(case, CPU, placement).block_tables == block_tables


@given(cases(op="write"))
def test_a_case_s_own_placement_has_no_writes_that_collide(case):
    assert build(case, CPU, place(case)).block_tables == place(case).block_tables


# Slot mappings.


@given(cases())
def test_a_slot_mapping_has_every_token_and_padding_where_the_case_wants_it(case):
    slots = build(case, CPU).slot_mapping()
    at = place(case)
    tokens = slot_mapping(at.block_tables, at.starts, at.lengths, case.block_size)
    assert slots[: case.tokens].tolist() == tokens.tolist()
    padding = slots[case.tokens :]
    assert len(padding) == (case.padding if case.padding_slots == "negative" else 0)
    assert (padding < 0).all()
    assert slots.dtype == np.dtype(case.slot_dtype)


def test_padding_that_is_absent_has_rows_and_no_slots():
    case = Case(op="write", seq_len=2, padding=3, padding_slots="absent", head_dim=4)
    workload = build(case, CPU)
    assert workload.slot_mapping().shape == (2,)
    assert workload.key.shape == (5, 8, 4)


def test_tokens_without_a_block_have_negative_slots_in_either_dtype():
    for slot_dtype in ("int64", "int32"):
        case = Case(op="write", seq_len=20, missing_blocks=1, slot_dtype=slot_dtype, head_dim=4)
        slots = build(case, CPU).slot_mapping()
        assert (slots[:16] < 0).all()
        assert (slots[16:] >= 0).all()


def with_table(table: list[int], length: int, slot_dtype: str) -> Workload:
    """A workload whose pool would be too large to allocate."""
    case = Case(op="read", seq_len=length, slot_dtype=slot_dtype, head_dim=4)
    return dataclasses.replace(build(case, CPU), block_tables=[table])


def test_a_slot_too_large_for_int32_is_refused_in_one_line():
    last = with_table([2**27 - 1], 16, "int32").slot_mapping()
    assert last.dtype == np.int32
    assert last[-1] == 2**31 - 1
    with pytest.raises(
        InputError, match=r"^slot_dtype=int32 with slot 2147483648: expected int64$"
    ):
        with_table([2**27], 1, "int32").slot_mapping()
    assert with_table([2**27], 1, "int64").slot_mapping().tolist() == [2**31]


def test_indices_on_the_device_are_of_the_case_s_dtype():
    assert with_table([0], 1, "int32").slot_dtype == torch.int32
    assert with_table([0], 1, "int64").slot_dtype == torch.int64
    assert with_table([], 0, "int32").slot_mapping().shape == (0,)


# Contents.


@given(cases())
def test_a_fill_depends_on_the_case_and_the_version_alone(case):
    one, other = build(case, CPU), build(case, CPU)
    for tensor in other.tensors().values():
        integers(tensor).fill_(-1)
    fill(other, 5)  # an earlier fill leaves nothing behind
    fill(one, 1)
    fill(other, 1)
    left, right = contents(one), contents(other)
    for name, tensor in left.items():
        assert torch.equal(tensor, right[name])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_fills_of_other_versions_and_seeds_differ_in_every_tensor(layout):
    fillings = []
    for seed, version in ((0, 0), (0, 1), (0, 2), (1, 0), (1, 1)):
        workload = filled(
            version,
            seq_len=3,
            seed=seed,
            block_order="sequential",
            layout=layout,
            num_heads=1,
            num_kv_heads=1,
        )
        fillings.append(contents(workload))
    for i, one in enumerate(fillings):
        for other in fillings[:i]:
            for name, tensor in one.items():
                # Of random 16-bit words, one in 65536 is the same by chance.
                assert tensor.ne(other[name]).float().mean() > 0.99


@pytest.mark.parametrize("kv_scale", KV_SCALES)
@pytest.mark.parametrize("cache_dtype", CODES)
def test_quantised_fills_of_other_versions_and_seeds_differ_in_every_tensor(cache_dtype, kv_scale):
    fillings = []
    for seed, version in ((0, 0), (0, 2), (1, 0), (1, 2)):
        workload = filled(
            version,
            seq_len=30,
            seed=seed,
            block_order="sequential",
            cache_dtype=cache_dtype,
            kv_scale=kv_scale,
        )
        fillings.append(contents(workload))
    for i, one in enumerate(fillings):
        for other in fillings[:i]:
            for name, tensor in one.items():
                # Half of codes' bits, and all but the special ones of rows.
                assert tensor.ne(other[name]).float().mean() > 0.9


def test_a_fill_makes_every_row_unlike_every_other():
    workload = filled(seq_len=9, padding=2, num_kv_heads=1, num_heads=1)
    rows = torch.cat([integers(tensor).reshape(-1, 128) for tensor in workload.tensors().values()])
    assert len(rows.unique(dim=0)) == len(rows)


@pytest.mark.parametrize("kv_scale", KV_SCALES)
def test_a_fill_makes_every_slot_of_codes_unlike_every_other(kv_scale):
    workload = filled(seq_len=64, cache_dtype="fp8_e4m3", kv_scale=kv_scale, layout="HND")
    for pool in (workload.key_pool, workload.value_pool):
        slots = integers(pool.contiguous()).flatten(0, 1).flatten(1)
        assert len(slots.unique(dim=0)) == len(slots)


@pytest.mark.parametrize("cache_dtype", ["auto", *CODES])
def test_a_fill_leaves_no_bit_of_any_8_bytes_fixed(cache_dtype):
    workload = filled(seq_len=64, cache_dtype=cache_dtype)
    tensors = workload.tensors()
    poison = [t for name, t in tensors.items() if cache_dtype == "auto" or "storage" in name]
    assert len(poison) == (4 if cache_dtype == "auto" else 2)
    for tensor in poison:
        words = tensor.flatten().view(torch.int64).numpy()
        assert np.bitwise_or.reduce(words) == -1
        assert np.bitwise_and.reduce(words) == 0


def test_a_fill_holds_what_arithmetic_would_not_keep():
    for dtype in TORCH_DTYPES:
        workload = filled(op="read", dtype=dtype)
        for pool in (workload.key_pool, workload.value_pool):
            nans = integers(pool)[pool.isnan()]
            assert len(nans.unique()) > 100  # payloads and signs
            tiny = torch.finfo(pool.dtype).tiny
            assert ((pool != 0) & (pool.abs() < tiny)).any()  # lost where denormals are flushed
    assert filled(op="read", dtype="fp16").key_pool.isinf().any()


@pytest.mark.parametrize("cache_dtype", CODES)
def test_a_fill_of_codes_has_every_code(cache_dtype):
    workload = filled(op="read", cache_dtype=cache_dtype)
    for pool in (workload.key_pool, workload.value_pool):
        assert len(integers(pool).unique()) == 256


@given(quantised_cases(), st.integers(0, 500))
def test_scales_are_powers_of_two_in_odd_versions_and_always_near_1(case, half):
    workload = build(case, CPU)
    for version in (2 * half, 2 * half + 1):
        fill(workload, version)
        for scale in (workload.key_scale, workload.value_scale):
            assert ((scale >= 2.0**-3) & (scale <= 2.0**3)).all()
            if version % 2:
                assert is_power_of_two(scale).all()


@pytest.mark.parametrize("kv_scale", KV_SCALES)
def test_scales_of_even_versions_are_no_powers_of_two_and_those_of_k_are_not_those_of_v(kv_scale):
    for version in (0, 4):
        workload = filled(version, cache_dtype="int8", kv_scale=kv_scale)
        for scale in (workload.key_scale, workload.value_scale):
            assert not is_power_of_two(scale).any()
            assert len(scale.unique()) == scale.numel()
        assert not workload.key_scale.eq(workload.value_scale).any()


def test_scales_of_odd_versions_are_more_than_one_power_of_two():
    workload = filled(1, cache_dtype="int8", kv_scale="per_token")
    for scale in (workload.key_scale, workload.value_scale):
        assert scale.unique().tolist() == [2.0**exponent for exponent in range(-3, 4)]


@given(quantised_cases(("per_token",)), st.integers(0, 500))
def test_rows_that_get_a_scale_of_their_own_have_one_zero_row_and_right_sizes(case, half):
    workload = build(case, CPU)
    for version in (2 * half, 2 * half + 1):
        fill(workload, version)
        for rows, _ in rows_and_scales(workload):
            found = sizes(rows, case)
            assert rows.isfinite().all()
            assert found.eq(0).sum() == int(len(found) > 1)
            found = found[found != 0]
            # A bf16's rounding may go a little beyond what was drawn.
            assert ((found >= 2.0**-3.01) & (found <= 2.0**0.01)).all()
            if version % 2:
                assert is_power_of_two(found).all()


def test_rows_of_even_versions_have_scales_that_are_no_powers_of_two():
    for codes in CODES:
        workload = filled(0, cache_dtype=codes, kv_scale="per_token")
        for rows, _ in rows_and_scales(workload):
            found = sizes(rows, workload.case)
            assert is_power_of_two(found).double().mean() < 0.1
            assert len(found.unique()) > 100


def test_the_zero_row_is_another_for_another_seed():
    found = set()
    for seed in range(5):
        workload = filled(1, seq_len=4, seed=seed, cache_dtype="int8", kv_scale="per_token")
        for rows, _ in rows_and_scales(workload):
            found.add(int(rows.flatten(1).abs().amax(1).argmin()))
    assert found == {0, 1, 2, 3}


def test_scales_of_version_2_have_six_bits():
    for kv_scale in ("per_head", "per_token"):
        workload = filled(2, cache_dtype="int8", kv_scale=kv_scale)
        for scale in (workload.key_scale, workload.value_scale):
            mantissas, _ = torch.frexp(scale)
            assert torch.equal(mantissas * 64, (mantissas * 64).round())
            assert not is_power_of_two(scale).all()


def test_rows_of_even_versions_have_all_the_bits_of_their_dtype():
    for dtype in ("fp32", "fp16"):
        workload = filled(0, cache_dtype="fp8_e4m3", dtype=dtype)
        for rows, _ in rows_and_scales(workload):
            numbers = rows.nan_to_num(0, 0, 0)
            assert (numbers != numbers.bfloat16().double()).float().mean() > 0.5


@given(quantised_cases(), st.sampled_from((1, 3)))
def test_rows_of_odd_versions_have_the_bits_of_bf16_in_every_dtype(case, version):
    workload = build(case, CPU)
    fill(workload, version)
    for rows, _ in rows_and_scales(workload):
        seen = rows if case.dtype != "fp16" else rows[rows.abs() > 2.0**-14]  # its denormals differ
        assert torch.equal(seen.nan_to_num(0), seen.bfloat16().double().nan_to_num(0))


@given(quantised_cases(GIVEN_SCALES), st.integers(0, 3))
def test_rows_have_no_nan_where_the_codes_have_none(case, version):
    workload = build(case, CPU)
    fill(workload, version)
    if case.cache_dtype == "int8":
        assert not workload.key.isnan().any()
        assert not workload.value.isnan().any()


@pytest.mark.parametrize("dtype", TORCH_DTYPES)
@pytest.mark.parametrize("kv_scale", GIVEN_SCALES)
@pytest.mark.parametrize("cache_dtype", CODES)
@pytest.mark.parametrize("version", [0, 1])
def test_rows_with_a_given_scale_hold_what_saturates_and_what_is_special(
    cache_dtype, kv_scale, dtype, version
):
    workload = filled(version, cache_dtype=cache_dtype, kv_scale=kv_scale, dtype=dtype)
    for rows, _ in rows_and_scales(workload):
        assert rows.eq(math.inf).any()
        assert rows.eq(-math.inf).any()
        zeros = rows[rows == 0].signbit()
        assert zeros.any()
        assert not zeros.all()
        assert rows.isnan().any() == (cache_dtype != "int8")
        assert rows.isfinite().float().mean() > 0.8  # specials are few
    for quotient in quotients(workload):
        for signed in (quotient, -quotient):
            # What is finite in fp16 is hardly above the largest code of fp8_e5m2.
            if (dtype, cache_dtype) != ("fp16", "fp8_e5m2"):
                assert (signed > 2 * LARGEST[cache_dtype]).any()
            assert ((signed > 0) & (signed < SMALLEST[cache_dtype])).any()


@pytest.mark.parametrize("kv_scale", KV_SCALES)
@pytest.mark.parametrize("cache_dtype", CODES)
def test_rows_reach_every_code_and_in_odd_versions_many_are_half_way_between_two(
    cache_dtype, kv_scale
):
    for version in (0, 1):
        workload = filled(version, cache_dtype=cache_dtype, kv_scale=kv_scale)
        half_way = half_way_values(cache_dtype)
        for quotient in quotients(workload):
            reached = np.unique(np.searchsorted(half_way, quotient))
            # All but -128, which is below a row that int8 has no scale for.
            assert len(reached) >= len(half_way) + (kv_scale != "per_token")
            if version == 1:
                assert np.isin(quotient, half_way).mean() > 0.02


# Memory.


@given(cases())
def test_required_bytes_cover_the_tensors_the_outputs_and_the_copies_of_a_check(case):
    workload = build(case, CPU)
    tensors = {
        name: tensor
        for name, tensor in workload.tensors().items()
        # A given scale is a few bytes.
        if case.kv_scale == "per_token" or not name.endswith("_scale")
    }
    storages = {s.data_ptr(): s for s in (t.untyped_storage() for t in tensors.values())}
    allocated = sum(storage.nbytes() for storage in storages.values())
    pools = sum(
        t.nbytes
        for name, t in tensors.items()
        if name not in {"key", "value", "key_output", "value_output"}
    )
    copies_of_rows = workload.key.nbytes + workload.value.nbytes
    outputs = case.tokens * case.row_bytes if case.op == "read" else 0
    if case.output == "given":
        outputs *= 2  # the rows as they should be, and a copy of those that are
    # A check holds the pools as they were, as they are and as they should be.
    needed = allocated + 3 * pools + copies_of_rows + outputs
    assert required_bytes(case, place(case)) >= needed


@pytest.mark.parametrize("seed", [2**31, 2**63, 10**30])
def test_any_seed_that_a_case_takes_fills_its_tensors(seed):
    workload = filled(1, seq_len=3, seed=seed)
    assert integers(workload.key_pool).unique().numel() > 1000
