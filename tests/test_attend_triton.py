"""Triton's attention: through the interpreter against the oracle, and compiled without a GPU."""

import dataclasses
import functools
import math
import re
from collections import Counter

import pytest
import torch
from drawn import attends
from hypothesis import given, settings
from hypothesis import strategies as st

from kvbench import oracle
from kvbench.cases import Case
from kvbench.filling import fill
from kvbench.strategies import registry
from kvbench.sweep.checking import check_case
from kvbench.sweep.launches import predicted
from kvbench.workload import build, resident_tables

triton = pytest.importorskip("triton")

from simulated_gpu import simulated_gpu  # noqa: E402 - only where Triton is

from kvbench.audit.compiling import compile_all  # noqa: E402
from kvbench.audit.findings import open_faults  # noqa: E402
from kvbench.audit.specialisations import named  # noqa: E402
from kvbench.audit.targets import TARGETS  # noqa: E402
from kvbench.kernels.attend import attend_kernel  # noqa: E402
from kvbench.kernels.attend_merge import merge_attend_kernel  # noqa: E402
from kvbench.kernels.attend_plan import Meaning, plan_attend  # noqa: E402
from kvbench.kernels.attend_tiles import (  # noqa: E402
    AttendTile,
    Gpu,
    attend_tile,
    best_parts,
    cut,
    padded,
)

CPU = torch.device("cpu")
ONE = Case(op="attend", seq_len=40, num_kv_heads=2, num_heads=6, head_dim=16, dtype="fp32")
E4M3, INT8 = torch.float8_e4m3fn, torch.int8


def changed(**fields):
    return dataclasses.replace(ONE, **fields)


def meaning(case, lengths):
    return Meaning(
        longest=max(lengths, default=0),
        softmax_scale=case.softmax_scale,
        sliding_window=case.sliding_window,
        soft_cap=case.soft_cap,
        latent=case.layout == "MLA",
    )


def attended(workload, **cut_as):
    """The output, cut as it is told."""
    w, case = workload, workload.case
    tables = resident_tables(w)
    output = torch.full((*w.query.shape[:2], case.value_head_dim), torch.nan, dtype=w.dtype)
    scales = () if w.key_scale is None else (w.key_scale, w.value_scale)
    plan = plan_attend(
        w.query,
        w.key_pool,
        w.value_pool,
        output,
        scales,
        tables.block_table,
        tables.lengths,
        meaning(case, w.lengths),
        per_token=case.quantised and case.kv_scale == "per_token",
        **cut_as,
    )
    plan.run(w.query, w.key_pool, w.value_pool, output, *scales)
    return output


def wrong(workload, output):
    """How many elements are out of the oracle's tolerance."""
    right = oracle._right_attention(workload, oracle._State(workload))
    return int(right.wrong(output.double().numpy()).sum())


# What it computes.


@pytest.mark.parametrize(
    "case",
    [
        changed(batch=3, lengths="holes", dtype="bf16"),
        changed(batch=2, query_len=3, sliding_window=9, block_size=8, dtype="fp16"),
        changed(seq_len=2, query_len=5, soft_cap=2),
        changed(layout="x-packed", head_dim=32, sliding_window=5, block_size=8, query_len=2),
        changed(layout="MLA", head_dim=48, rope_dim=16, num_kv_heads=1, dtype="bf16"),
        changed(layout="HND-KV", head_dim=33, block_size=5, kv_input="fused_qkv"),
        changed(cache_dtype="fp8_e4m3", kv_scale="per_head", dtype="bf16", head_dim=80),
        changed(cache_dtype="int8", kv_scale="per_token", dtype="fp16", batch=2),
        changed(cache_dtype="fp8_e5m2", kv_scale="per_tensor", query_len=2),
        changed(num_kv_heads=1, num_heads=128, query_len=2, block_size=1024, dtype="bf16"),
        changed(batch=0),
        changed(seq_len=0, query_len=2, batch=2),
    ],
    ids=lambda case: case.label(),
)
def test_a_case_is_right(case):
    assert check_case(case, registry.get("attend.triton"), CPU) == ("checked", "")


@pytest.mark.slow
@settings(max_examples=150)
@given(case=attends())
def test_any_case_is_right(case):
    assert check_case(case, registry.get("attend.triton"), CPU) == ("checked", "")


@pytest.mark.parametrize("parts", [1, 2, 3, 7, 40])
@pytest.mark.parametrize(
    "case",
    [
        changed(batch=3, seq_len=60, lengths="holes"),
        changed(seq_len=70, query_len=3, sliding_window=35, dtype="bf16"),
    ],
    ids=["holes", "window"],
)
def test_a_context_may_be_cut_into_any_number_of_parts(case, parts):
    workload = build(case, CPU)
    fill(workload, 1)
    tile = AttendTile(rows=16, tokens=16, piece=16, warps=4, stages=5)
    assert wrong(workload, attended(workload, parts=parts, tile=tile)) == 0


@pytest.mark.parametrize("layout", ["NHD", "x-packed", "MLA"])
@pytest.mark.parametrize("rows", [1, 4, 8])
@pytest.mark.parametrize("block_size", [1, 6, 8, 32])
def test_tiles_of_any_size_meet_blocks_of_any_size(layout, rows, block_size):
    shape = {"num_kv_heads": 1, "head_dim": 48, "rope_dim": 16} if layout == "MLA" else {}
    case = changed(
        layout=layout, query_len=3, sliding_window=20, block_size=block_size, batch=2, **shape
    )
    workload = build(case, CPU)
    fill(workload, 0)
    tile = AttendTile(rows=rows, tokens=16, piece=16, warps=4, stages=5)
    assert wrong(workload, attended(workload, tile=tile)) == 0


def test_what_is_left_out_or_seen_too_much_is_out_of_tolerance():
    workload = build(changed(dtype="bf16", query_len=2), CPU)
    fill(workload, 1)
    assert wrong(workload, attended(workload)) == 0
    for shift in (-1, 1):  # a query further back, or one further on
        other = dataclasses.replace(workload, lengths=[workload.lengths[0] + shift])
        assert wrong(workload, attended(other)) > 0


@pytest.mark.parametrize("version", [0, 1])
def test_a_query_that_sees_nothing_gives_zeros_however_contexts_are_cut(version):
    workload = build(changed(batch=2, seq_len=2, query_len=5, lengths="holes"), CPU)
    fill(workload, version)
    for parts in (1, 3):
        output = attended(workload, parts=parts, tile=AttendTile(16, 16, 16, 4, 5))
        unseen = [
            row
            for sequence, length in enumerate(workload.lengths)
            for row in range(5 * sequence, 5 * sequence + 5 - length)
        ]
        assert len(unseen) > 0
        assert output[unseen].eq(0).all()
        assert wrong(workload, output) == 0


def spread(tensor, order, gap, filler):
    """A copy with its dimensions in another order in memory, and gaps between elements; and all."""
    sizes = [tensor.shape[dim] for dim in order]
    sizes[-1] *= gap
    memory = torch.full((math.prod(sizes) + 1,), filler, dtype=tensor.dtype)
    memory = memory[1:].view(sizes)
    view = memory[..., ::gap].permute([order.index(dim) for dim in range(len(order))])
    view.copy_(tensor)
    return view, memory


@settings(max_examples=15)
@given(
    st.lists(st.permutations(range(4)), min_size=2, max_size=2),
    st.permutations(range(3)),
    st.permutations(range(3)),
    st.permutations(range(2)),
    st.lists(st.integers(1, 3), min_size=5, max_size=5),
    st.sampled_from([None, "per_head", "per_token"]),
)
def test_operands_have_any_strides(pool_orders, query_order, out_order, flat_order, gaps, scale):
    codes = {} if scale is None else {"cache_dtype": "int8", "kv_scale": scale}
    workload = build(changed(batch=2, seq_len=20, query_len=2, block_size=4, **codes), CPU)
    fill(workload, 1)
    w, tables = workload, resident_tables(workload)
    nan = 127 if w.key_pool.dtype is INT8 else torch.nan
    pools = [
        spread(pool, order, gap, nan)[0]
        for pool, order, gap in zip((w.key_pool, w.value_pool), pool_orders, gaps, strict=False)
    ]
    query, _ = spread(w.query, query_order, gaps[2], torch.nan)
    output, memory = spread(torch.zeros_like(w.query), out_order, gaps[3], 7.0)
    scales = () if scale is None else (w.key_scale, w.value_scale)
    scales = tuple(spread(each, flat_order, gaps[4], torch.nan)[0] for each in scales)
    plan = plan_attend(
        query,
        *pools,
        output,
        scales,
        spread(tables.block_table, flat_order, gaps[4], -1)[0],
        spread(tables.lengths, (0,), gaps[4], -1)[0],
        meaning(w.case, w.lengths),
        per_token=scale == "per_token",
        parts=1,
    )
    plan.run(query, *pools, output, *scales)
    assert wrong(w, output) == 0
    between = torch.ones_like(memory, dtype=torch.bool)
    between[..., :: gaps[3]] = False
    assert memory[between].eq(7.0).all()


@pytest.mark.parametrize("dim", range(4), ids=["block", "slot", "head", "element"])
@pytest.mark.parametrize("of", ["key_pool", "value_pool"])
def test_pools_reach_beyond_2_to_the_31_elements_along(of, dim, tmp_path):
    workload = build(changed(seq_len=7, block_size=4, num_kv_heads=2, num_heads=2), CPU)
    fill(workload, 1)
    pool = getattr(workload, of)
    path = tmp_path / "sparse"
    far = 2**31 // (pool.shape[dim] - 1) + 1
    last = pool.numel() + far * (pool.shape[dim] - 1)
    memory = torch.from_file(str(path), shared=True, size=last + 1, dtype=torch.float32)
    inner = [other for other in range(4) if other != dim]
    strides = [far] * 4
    for place, other in enumerate(inner):
        strides[other] = math.prod(pool.shape[each] for each in inner[place + 1 :])
    view = memory.as_strided(pool.shape, strides)
    view.copy_(pool)
    assert wrong(workload, attended(dataclasses.replace(workload, **{of: view}))) == 0
    path.unlink()


# Soft caps: tanh from exponentials alone.


@pytest.mark.parametrize("version", [0, 1])
@pytest.mark.parametrize("soft_cap", [1, 50])
def test_a_soft_cap_is_right_in_fp32(soft_cap, version):
    workload = build(changed(soft_cap=soft_cap, head_dim=1, seq_len=64), CPU)
    fill(workload, version)
    assert wrong(workload, attended(workload)) == 0


# How contexts are cut.

TILE = attend_tile(4, 128, 2)
TOKEN_BYTES = 2 * 128 * 2


@given(st.integers(0, 10**6), st.sampled_from([16, 32, 64]), st.integers(1, 100))
def test_parts_are_no_more_than_told_and_cover_a_context_that_begins_anywhere(longest, size, most):
    parts, part = cut(longest, size, most)
    assert 1 <= parts <= most
    assert part % size == 0
    # A window may begin at the last token of a tile: the tokens before it are the part's too.
    assert parts * part >= longest + size - 1
    assert (parts - 1) * part < longest + size


@given(st.integers(1, 4096), st.integers(0, 10**6), st.integers(1, 200))
def test_parts_are_worth_their_merging(programs, longest, multiprocessors):
    parts = best_parts(programs, longest, TILE, TOKEN_BYTES, Gpu(multiprocessors))
    assert 1 <= parts <= 64
    if longest <= TILE.tokens:
        assert parts == 1


def test_few_long_contexts_are_cut_and_many_short_ones_are_not():
    def parts(batch, context):
        return best_parts(8 * batch, context, TILE, TOKEN_BYTES, Gpu())

    assert parts(1, 131072) > 32
    assert parts(1, 64) == 1
    assert parts(512, 128) == 1
    assert parts(1, 8192) > parts(16, 8192) > 1


# A tile for each shape.


@given(
    st.integers(1, 20000),
    st.integers(1, 576),
    st.sampled_from((2, 4)),
    st.booleans(),
    st.booleans(),
)
def test_tiles_are_powers_of_two_and_no_larger_than_what_there_is(
    rows, dim, itemsize, quantised, latent
):
    tile = attend_tile(rows, dim, itemsize, quantised=quantised, latent=latent)
    for number in (tile.rows, tile.tokens, tile.piece, tile.warps):
        assert number.bit_count() == 1
    assert tile.rows < 2 * rows or (tile.rows == 16 and itemsize == 2)
    assert tile.piece <= padded(dim, 16)
    assert tile.tokens >= 16


# Launches.


@pytest.mark.parametrize(
    ("fields", "kernels"),
    [
        ({"seq_len": 8192}, 2),  # decode, cut and merged
        ({"seq_len": 8192, "query_len": 4}, 2),
        ({"seq_len": 16}, 1),  # decode in one part
        ({"seq_len": 4096, "query_len": 512}, 1),  # a prefill
        ({"seq_len": 128, "batch": 512}, 1),
        ({"batch": 0}, 0),
    ],
    ids=str,
)
def test_an_attention_is_one_launch_and_a_second_where_contexts_are_cut(fields, kernels):
    case = changed(**({"dtype": "bf16", "head_dim": 128, "lengths": "equal"} | fields))
    found = predicted(registry.get("attend.triton"), case, "run")
    assert (found.kernels, found.memcpys, found.synchronizations) == (kernels, 0, 0)


KERNELS = (attend_kernel, merge_attend_kernel)


@pytest.fixture
def h100(tmp_path):
    with simulated_gpu(tmp_path, compiling=False) as simulated:
        for kernel in KERNELS:
            kernel.compiled.device_caches.clear()
        yield simulated
    for kernel in KERNELS:
        kernel.compiled.device_caches.clear()


def test_a_kernel_is_compiled_once_whatever_grows(h100):
    strategy = registry.get("attend.triton")
    for seq_len in (2000, 4096, 5001):
        for batch in (1, 3):
            for padding in (0, 5):
                case = changed(seq_len=seq_len, batch=batch, table_padding=padding, dtype="bf16")
                workload = build(case, CPU)
                strategy.run(workload, strategy.prepare(workload))
    assert attend_kernel.compilations == 1
    # For how many parts there may be, a power of two.
    assert 1 <= merge_attend_kernel.compilations <= 3
    assert len(h100.launches) == 2 * 12


def test_a_plan_passes_programs_for_every_head_part_and_tile(h100):
    case = changed(seq_len=256, batch=3, query_len=40, dtype="bf16", head_dim=64)
    workload = build(case, CPU)
    attended(workload, parts=1)
    (launch,) = h100.launches
    # 3 sequences, 2 heads of K and V, and 40 x 3 rows in one tile; then 80 x 3 in two.
    assert launch.grid == (6, 1, 1)
    attended(build(dataclasses.replace(case, query_len=80), CPU))
    assert h100.launches[1].grid == (12, 1, 1)
    attended(workload, parts=2)
    assert [each.kernel for each in h100.launches[2:]] == ["_attend", "_merge_attend"]
    assert h100.launches[2].grid == (12, 1, 1)


# Compiled for GPUs that are not here.

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


def decoding(**fields):
    """One of 64 contexts of 8,192 tokens, or a prefill with as much before it."""
    return Case(**({"op": "attend", "seq_len": 8192, "num_heads": 32} | fields))


def compile_for(target, case, folder, *, compiling=True):
    """The kernels that 64 contexts of a case are compiled to."""
    code = {"auto": DTYPES[case.dtype], "fp8_e4m3": E4M3, "int8": INT8}[case.cache_dtype]
    small = dataclasses.replace(case, seq_len=case.block_size)
    workload = build(small, CPU)
    assert workload.key_pool.dtype is code
    # Tables of long contexts, whose blocks are not there: nothing is run.
    lengths = torch.full((64,), case.seq_len)
    table = torch.zeros(64, -(-case.seq_len // case.block_size), dtype=torch.int64)
    query = workload.query.new_empty((64 * case.query_len, *workload.query.shape[1:]))
    output = query.new_empty((*query.shape[:2], case.value_head_dim))
    scales = () if workload.key_scale is None else (workload.key_scale, workload.value_scale)
    with simulated_gpu(folder, TARGETS[target], compiling=compiling) as gpu:
        for kernel in KERNELS:
            kernel.compiled.device_caches.clear()
        plan_attend(
            query,
            workload.key_pool,
            workload.value_pool,
            output,
            scales,
            table,
            lengths,
            meaning(case, [case.seq_len]),
            per_token=case.quantised and case.kv_scale == "per_token",
        )
    return gpu.compiled


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """A function that gives the kernels of a case and a target; compiled once each."""
    folder = tmp_path_factory.mktemp("triton")

    @functools.cache
    def of(target, case):
        return compile_for(target, case, folder)

    return lambda target, **fields: of(target, decoding(**fields))


def copies(ptx):
    """How many bytes the asynchronous copies from a pool move, and how often."""
    return Counter(re.findall(r"cp\.async\.c[ag]\S+ \[[^]]*\], \[[^]]*\], (0x\w+)", ptx))


def narrow_loads(ptx):
    """Loads of an element at a time."""
    return re.findall(r"\bld\.global\S*\.b(?:8|16)\b", ptx)


MLA = {"layout": "MLA", "num_kv_heads": 1, "head_dim": 576, "num_heads": 16}
MORE_SHAPES = [
    {"head_dim": head_dim, **codes, **rows}
    for head_dim in (64, 128, 256)
    for codes in (
        {"dtype": "bf16"},
        {"dtype": "fp16"},
        {"dtype": "fp32"},
        {"cache_dtype": "fp8_e4m3"},
        {"cache_dtype": "int8", "kv_scale": "per_token"},
    )
    for rows in (
        {},
        {"num_heads": 32, "num_kv_heads": 1},
        {"query_len": 64},
        {"layout": "x-packed"},
    )
] + [{**MLA, "num_heads": heads, "dtype": dtype} for heads in (16, 128) for dtype in DTYPES]


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
def test_machine_code_of_attention_of_any_shape_has_no_fault(target, tmp_path):
    # Too much shared memory is an error by itself.
    wanted = [
        each
        for shape in MORE_SHAPES
        for each in compile_for(target, decoding(**shape), tmp_path, compiling=False)
    ]
    findings = compile_all(tuple(named(wanted)), TARGETS[target])
    assert len(findings) >= len(MORE_SHAPES)
    assert open_faults(findings) == ()


@pytest.mark.parametrize("target", ["sm_80", "sm_90"])
@pytest.mark.parametrize(
    "shape",
    [
        {},
        {"layout": "HND", "head_dim": 80},
        {"layout": "x-packed"},
        {"layout": "x-packed", "block_size": 256},
        {"block_size": 128},
        {"block_size": 1},
        {"dtype": "fp32"},
        MLA,
    ],
    ids=str,
)
def test_compiled_attention_loads_k_and_v_16_bytes_at_a_time_ahead(shape, target, compiled):
    attend, *_ = compiled(target, **shape)
    sizes = copies(attend.asm["ptx"])
    # The others are entries of the block table, which are looked up ahead too.
    assert set(sizes) <= {"0x10", "0x8"}
    case = decoding(**shape)
    # Of three tiles, two before the loop and one in it: V is loaded as K in an MLA pool, whose k_pe
    # is so short that half a vector is each thread's.
    is_latent = case.layout == "MLA"
    rows, itemsize = case.num_heads // case.num_kv_heads, DTYPES[case.dtype].itemsize
    tile = attend_tile(rows, case.key_dim, itemsize, latent=is_latent)
    elements = padded(case.key_dim) + (0 if is_latent else padded(case.value_dim))
    assert sizes["0x10"] * 16 * 32 * tile.warps == 3 * tile.tokens * elements * itemsize
    assert narrow_loads(attend.asm["ptx"]) == []


@pytest.mark.parametrize(("target", "unit"), [("sm_80", "mma.sync"), ("sm_90", "mma.sync")])
@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_compiled_decoding_multiplies_in_matrix_units(dtype, target, unit, compiled):
    attend, merge = compiled(target, dtype=dtype)
    assert attend.asm["ptx"].count(unit) > 0
    assert merge.asm["ptx"].count(unit) == 0


def test_compiled_fp32_is_not_rounded_to_what_matrix_units_take(compiled):
    attend, *_ = compiled("sm_90", dtype="fp32")
    assert "tf32" not in attend.asm["ptx"]
    assert "mma" not in attend.asm["ptx"]


# What is refused.


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        ({"query": (4, 6, 8)}, "query's head is 8; expected 16"),
        ({"query": (4, 5, 16), "output": (4, 5, 16)}, "query's heads is 5; expected a multiple of"),
        ({"query": (3, 6, 16), "output": (3, 6, 16)}, "query's rows is 3; expected a multiple of"),
        ({"output": (4, 6, 8)}, "output's shape is (4, 6, 8); expected (4, 6, 16)"),
        ({"value_pool": (3, 4, 3, 16)}, "value_pool's slots is (3, 4, 3); expected (3, 4, 2)"),
        ({"value_pool": (2, 4, 2, 16)}, "value_pool's slots is (2, 4, 2); expected (3, 4, 2)"),
        ({"block_table": (1, 3)}, "block_table's rows is 1; expected 2"),
    ],
    ids=str,
)
def test_operands_that_do_not_go_together_are_refused(broken, message):
    shapes = {
        "query": (4, 6, 16),
        "key_pool": (3, 4, 2, 16),
        "value_pool": (3, 4, 2, 16),
        "output": (4, 6, 16),
        "block_table": (2, 3),
        "lengths": (2,),
    } | broken
    integers = ("block_table", "lengths")
    given_ = {
        name: torch.zeros(shape, dtype=torch.int64 if name in integers else torch.float32)
        for name, shape in shapes.items()
    }
    with pytest.raises(ValueError, match=re.escape(message)):
        plan_attend(**given_, scales=(), meaning=Meaning(longest=4, softmax_scale=1.0))


@pytest.mark.parametrize(
    ("dtypes", "message"),
    [
        ({"query": torch.float64}, "output's dtype is torch.float32; expected torch.float64"),
        (
            {"query": torch.float64, "output": torch.float64},
            "query's dtype is torch.float64; expected one of torch.float32",
        ),
        ({"value_pool": torch.float16}, "value_pool's dtype is torch.float16; expected torch.flo"),
        (
            {"key_pool": torch.float16, "value_pool": torch.float16},
            "key_pool's dtype is torch.float16; expected torch.float32",
        ),
        ({"lengths": torch.float32}, "lengths's dtype is torch.float32; expected one of"),
        ({"block_table": torch.int16}, "block_table's dtype is torch.int16; expected one of"),
        ({"scales": torch.float32}, "key_pool's dtype is torch.float32; expected one of torch.fl"),
    ],
    ids=str,
)
def test_dtypes_that_do_not_go_together_are_refused(dtypes, message):
    def made(name, shape, usual):
        return torch.zeros(shape, dtype=dtypes.get(name, usual))

    scales = tuple(torch.ones(1, 1) for _ in "KV") if "scales" in dtypes else ()
    with pytest.raises(ValueError, match=re.escape(message)):
        plan_attend(
            made("query", (4, 6, 16), torch.float32),
            made("key_pool", (3, 4, 2, 16), torch.float32),
            made("value_pool", (3, 4, 2, 16), torch.float32),
            made("output", (4, 6, 16), torch.float32),
            scales,
            made("block_table", (2, 3), torch.int64),
            made("lengths", (2,), torch.int64),
            Meaning(longest=4, softmax_scale=1.0),
        )


def test_tensors_unlike_those_that_were_planned_with_are_refused():
    workload = build(ONE, CPU)
    strategy = registry.get("attend.triton")
    plan = strategy.prepare(workload)
    other = dataclasses.replace(workload, query=workload.query[:, :, :8])
    with pytest.raises(ValueError, match=r"name='query'.*; expected one as the plan was made with"):
        strategy.run(other, plan)
