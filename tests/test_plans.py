"""Launches planned once a step: tiles, what a plan refuses, compilations, tiles by measurement."""

import math
import re
import weakref
from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kvbench.cases import Case
from kvbench.kernels.tiles import Tile, default_tile, default_tiles, tiles
from kvbench.presets import PRESETS
from kvbench.strategies import registry
from kvbench.sweep.checking import check_case
from kvbench.workload import build

triton = pytest.importorskip("triton")

from simulated_gpu import simulated_gpu  # noqa: E402 - only where Triton is
from triton.runtime.jit import JITFunction  # noqa: E402

from kvbench.kernels import tuning  # noqa: E402
from kvbench.kernels.gather import plan_gather  # noqa: E402
from kvbench.kernels.report import KERNELS, kernel_lines  # noqa: E402
from kvbench.kernels.scatter import plan_scatter, scatter_kv_kernel  # noqa: E402

CPU = torch.device("cpu")


# How rows are cut into programs.


@pytest.mark.parametrize(
    ("row", "itemsize", "expected"),
    [
        (1, 2, Tile(64, 1, 1)),
        (3, 2, Tile(64, 4, 1)),
        (64, 2, Tile(16, 64, 4)),  # 1 head x 64
        (80, 2, Tile(8, 128, 4)),
        (128, 2, Tile(8, 128, 4)),
        (512, 2, Tile(2, 512, 4)),  # MLA's kv_c
        (513, 2, Tile(1, 1024, 4)),
        (1024, 2, Tile(1, 1024, 4)),  # 8 x 128
        (1025, 2, Tile(1, 1024, 4)),
        (32 * 128, 2, Tile(1, 1024, 4)),
        (1024, 4, Tile(1, 1024, 8)),
        (1024, 1, Tile(1, 1024, 2)),
    ],
)
def test_without_a_measurement_a_row_has_a_tile_of_1024_elements(row, itemsize, expected):
    assert default_tile(row, itemsize) == expected


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        (64, Tile(16, 64, 4)),
        (1024, Tile(1, 1024, 4)),
        (1025, Tile(1, 2048, 8)),
        (4096, Tile(1, 4096, 8)),
        (4097, Tile(1, 4096, 8)),
    ],
)
def test_a_program_that_needs_all_of_a_row_has_it_up_to_4096_elements(row, expected):
    assert default_tile(row, 2, whole_row=True) == expected


@given(st.integers(1, 2**20), st.sampled_from((1, 2, 4)), st.booleans())
def test_tiles_are_powers_of_two_that_waste_less_than_half_a_row(row, itemsize, whole_row):
    found = tiles(row, itemsize, whole_row=whole_row)
    assert found[0] == default_tile(row, itemsize, whole_row=whole_row)
    assert 1 <= len(set(found)) == len(found) <= 4
    for tile in found:
        assert tile.tokens.bit_count() == tile.block.bit_count() == tile.warps.bit_count() == 1
        assert tile.warps <= 8
        assert tile.block < 2 * row
        assert tile.tokens == 1 or tile.block >= row
        assert tile.tokens * tile.block <= 4096


# A plan serves the tensors that it was made for, and no others.


def operands(heads=2, dim=8, tokens=5, dtype=torch.int16):
    return [
        *(
            torch.arange(tokens * heads * dim).to(dtype).view(tokens, heads, dim) + n
            for n in (1, 2)
        ),
        *(torch.zeros(2, 4, heads, dim, dtype=dtype) for _ in "KV"),
    ]


SLOTS = torch.tensor([0, 7, -1, 3, 2])
NAMES = ["key", "value", "key_pool", "value_pool"]


def test_a_plan_serves_every_layer_of_a_step():
    first, second = operands(), operands()
    second[0] += 100
    plan = plan_scatter(*first, SLOTS)
    for layer in (second, first):
        plan.run(*layer)
    for key, value, key_pool, value_pool in (first, second):
        for rows, pool in ((key, key_pool), (value, value_pool)):
            assert torch.equal(pool.view(8, 2, 8)[[0, 7, 3, 2]], rows[[0, 1, 3, 4]])
            assert pool.view(8, 2, 8)[[1, 4, 5, 6]].eq(0).all()


@pytest.mark.parametrize("which", range(4), ids=NAMES)
@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda t: t[:-1], "shape"),
        (lambda t: t.transpose(0, 1).contiguous().transpose(0, 1), "strides"),
        (lambda t: t.view(torch.float16), "dtype"),
    ],
    ids=["shape", "strides", "dtype"],
)
@pytest.mark.parametrize("make", [plan_scatter, plan_gather])
def test_tensors_unlike_those_that_were_planned_with_are_refused(make, change, what, which):
    layer = operands()
    plan = make(*layer, SLOTS)
    layer[which] = change(layer[which])
    before = [each.clone() for each in layer]
    with pytest.raises(ValueError, match=f"name='{NAMES[which]}'.*; expected one as the") as told:
        plan.run(*layer)
    given_, planned = (
        re.search(rf"{what}=([^=]*)[,)] ?\w*", t)[0] for t in str(told.value).split(";")
    )
    assert given_ != planned
    assert all(map(torch.equal, layer, before))


def test_a_plan_keeps_no_layer_s_tensors():
    layer = operands()
    plan = plan_scatter(*layer, SLOTS)
    kept = [weakref.ref(each) for each in layer]
    layer.clear()
    assert [each() for each in kept] == [None] * 4
    assert plan.operands[0].name == "key"


def test_a_plan_wants_all_of_its_tensors():
    layer = operands()
    with pytest.raises(ValueError, match="argument 2 is shorter"):
        plan_scatter(*layer, SLOTS).run(*layer[:3])


def test_a_plan_for_no_tokens_launches_nothing():
    layer = operands(tokens=1)
    plan_scatter(*layer, torch.zeros(0, dtype=torch.int64)).run(*layer)
    assert layer[2].eq(0).all()


# What is handed to a compiled kernel, on a GPU that only writes it down.


@pytest.fixture
def h100(tmp_path):
    with simulated_gpu(tmp_path, compiling=False) as simulated:
        for kernel in KERNELS:
            kernel.compiled.device_caches.clear()
        yield simulated
    for kernel in KERNELS:
        kernel.compiled.device_caches.clear()


def test_a_planned_launch_passes_what_triton_s_own_launcher_would(h100):
    layer, other = operands(dim=128), operands(dim=128)
    plan = plan_scatter(*layer, SLOTS)
    assert h100.launches == []  # compiled, not launched
    plan.run(*other)
    (launch,) = h100.launches
    names = scatter_kv_kernel.parameters
    assert len(launch.arguments) == len(names)
    told = dict(zip(names, launch.arguments, strict=True))
    assert [told[name] is each for name, each in zip(NAMES, other, strict=True)] == [True] * 4
    assert told["slot_mapping"] is SLOTS
    assert (told["tokens"], told["block_size"], told["TOKENS"], told["BLOCK"]) == (5, 4, 4, 256)
    assert (told["key_token_stride"], told["value_pool_block_stride"]) == (256, 1024)
    assert launch.grid == (2, 1, 1)
    assert scatter_kv_kernel.compilations == 1


@pytest.mark.parametrize("which", range(4), ids=NAMES)
def test_a_tensor_that_begins_at_no_multiple_of_16_bytes_is_refused_where_one_did(h100, which):
    layer = operands()
    plan = plan_scatter(*layer, SLOTS)
    shifted = torch.zeros(layer[which].numel() + 1, dtype=torch.int16)[1:].view(layer[which].shape)
    unlike = [*layer]
    unlike[which] = shifted
    with pytest.raises(
        ValueError, match=r"a tensor begins at 0x.*; expected a multiple of 16 bytes"
    ):
        plan.run(*unlike)
    assert h100.launches == []
    # One made with it takes either.
    either = plan_scatter(*unlike, SLOTS)
    either.run(*unlike)
    either.run(*layer)
    assert len(h100.launches) == 2
    assert scatter_kv_kernel.compilations == 2


# Compilations.


def compilations():
    return {kernel.name: kernel.compilations for kernel in KERNELS if kernel.compilations}


def run_preset(cases):
    """Prepare and run the Triton strategy in every case, as if on a GPU; nothing is moved."""
    for case in cases:
        workload = build(case, CPU)
        strategy = registry.get(f"{case.op}.triton")
        strategy.run(workload, strategy.prepare(workload))


@pytest.fixture
def untuned(monkeypatch):
    monkeypatch.setattr(tuning, "fastest", lambda _kernel, candidates, *_: candidates[0])


# bf16 with 1, 8 and 32 heads of 128, and 8 heads of 64 and of 256; 8 x 128 in fp16 and fp32.
SHAPES_OF_THE_GPU_PRESET = 7


def cases_of_the_gpu_preset():
    """Those of ops that Triton does by itself: a step has the kernels of its write and attend."""
    return [case for case in PRESETS["gpu"].cases() if case.op != "step"]


@pytest.mark.usefixtures("untuned")
def test_the_gpu_preset_compiles_a_kernel_once_for_each_shape_of_a_row(h100):
    cases = cases_of_the_gpu_preset()
    assert len({(c.seq_len, c.batch, c.block_size, c.block_order) for c in cases}) > 50
    run_preset(cases)
    launched = Counter(each.kernel for each in h100.launches)
    assert launched.total() - launched["_merge_attend"] == len(cases)
    # An attention has four shapes of decoding, each in one part or in more, and one of a prefill,
    # which is not cut. What merges has a power of two of parts. What maps slots is compiled for
    # numbers of sequences, of their programs and of blocks that are 1, multiples of 16, or neither.
    assert compilations() == {
        **dict.fromkeys(("scatter_kv", "gather_kv"), SHAPES_OF_THE_GPU_PRESET),
        "attend": 2 * 4 + 1,
        "merge_attend": 5,
        "map_slots": 9,
    }


def over_tokens(**fields):
    """One shape over many sizes: of the batch, of blocks, of the pool, of padding."""
    return [
        Case(seq_len=seq_len, batch=batch, block_size=size, **fields)
        for seq_len in (1, 2, 15, 16, 17, 64, 100)
        for batch in (1, 3, 16)
        for size in (1, 8, 16, 17, 64)
    ]


@pytest.mark.usefixtures("h100", "untuned")
@pytest.mark.parametrize("kv_scale", ["per_tensor", "per_head", "per_token"])
@pytest.mark.parametrize("cache_dtype", ["auto", "fp8_e4m3"])
@pytest.mark.parametrize("kv_input", ["contiguous", "head_major", "fused_qkv"])
@pytest.mark.parametrize("head_dim", [128, 72])
def test_one_shape_is_compiled_once_whatever_grows(head_dim, kv_input, cache_dtype, kv_scale):
    shape = {"head_dim": head_dim, "cache_dtype": cache_dtype}
    if cache_dtype != "auto":
        shape["kv_scale"] = kv_scale
    run_preset(over_tokens(op="write", kv_input=kv_input, padding=3, **shape))
    run_preset(over_tokens(op="read", **shape))
    kind = "_kv" if cache_dtype == "auto" else "_quantised_kv"
    assert compilations() == {f"scatter{kind}": 1, f"gather{kind}": 1}


@pytest.mark.usefixtures("h100", "untuned")
@pytest.mark.parametrize("layout", ["NHD", "HND", "NHD-KV", "HND-KV", "x-packed", "MLA"])
def test_layouts_are_compiled_for_apart_and_once_each_unless_a_stride_is_odd(layout):
    heads = {"num_kv_heads": 1, "head_dim": 576} if layout == "MLA" else {}
    run_preset(over_tokens(op="read", layout=layout, **heads))
    # Elements of x-packed V lie a block's size apart: 1, a multiple of 16, or anything.
    assert compilations() == {"gather_kv": 3 if layout == "x-packed" else 1}


# Tiles by measurement.


@pytest.fixture
def timed(h100, monkeypatch):
    """Triton's tuner, with times that are said instead of measured."""
    monkeypatch.setattr(type(h100), "get_benchmarker", lambda _: bench, raising=False)
    benched = []
    best = {"elements": 2048}

    def bench(call, quantiles, warmup, rep):
        assert (quantiles, warmup, rep) == ((0.5, 0.2, 0.8), 5, 25)
        call()
        told = h100.launches.pop()
        names = next(k.parameters for k in KERNELS if k.fn.__name__ == told.kernel)
        values = dict(zip(names, told.arguments, strict=True))
        benched.append((told, values))
        elements = values["TOKENS"] * values["BLOCK"]
        return [1.0 + abs(math.log2(elements / best["elements"]))] * 3

    h100.benched, h100.best = benched, best
    return h100


def prepared(seq_len=1, op="write", **fields):
    workload = build(Case(op=op, seq_len=seq_len, **fields), CPU)
    return registry.get(f"{op}.triton").prepare(workload)


def test_the_fastest_tile_is_taken_and_measured_once_for_a_kind_of_row(timed):
    assert prepared(seq_len=1).tile == Tile(2, 1024, 8)
    first = len(timed.benched)
    assert first == len(tiles(1024, 2)) == 4
    assert prepared(seq_len=4096, block_size=64, batch=2).tile == Tile(2, 1024, 8)
    assert len(timed.benched) == first
    assert prepared(seq_len=1, num_kv_heads=1, num_heads=1).tile == Tile(16, 128, 8)
    assert len(timed.benched) == first + 4
    timed.best["elements"] = 256
    assert prepared(seq_len=1, op="read", num_kv_heads=1, num_heads=1).tile == Tile(2, 128, 1)


def test_a_tile_is_measured_on_many_tokens_of_the_same_kind_however_few_there_are(timed):
    prepared(seq_len=2, layout="HND", kv_input="head_major")
    for launch, values in timed.benched:
        assert values["tokens"] == 8192  # 16 MiB of K
        assert launch.grid == (8192 // values["TOKENS"], 1024 // values["BLOCK"], 1)
        key, key_pool = values["key"], values["key_pool"]
        assert key.shape == (8192, 8, 128)
        assert key.stride() == (128, 8192 * 128, 1)
        assert key_pool.shape == (512, 16, 8, 128)
        assert key_pool.stride() == (8 * 16 * 128, 128, 16 * 128, 1)
        slots = values["slot_mapping"]
        assert torch.equal(slots.sort().values, torch.arange(8192))


@pytest.mark.usefixtures("timed")
def test_a_tile_that_the_gpu_has_no_room_for_is_not_taken(monkeypatch):
    run = JITFunction.run

    def refuse(self, *args, **kwargs):
        if kwargs["BLOCK"] == 1024 and not kwargs["warmup"]:
            raise triton.runtime.errors.OutOfResources(1, 0, "registers")
        return run(self, *args, **kwargs)

    monkeypatch.setattr(JITFunction, "run", refuse)
    assert prepared().tile == Tile(1, 512, 2)
    (choice,) = tuning.choices()
    assert choice.milliseconds[Tile(1, 1024, 4)] == math.inf


def test_times_are_kept_on_disk_for_later_processes(timed, monkeypatch):
    prepared()
    monkeypatch.setattr(tuning, "_choices", {})  # as in a new process
    measured = len(timed.benched)
    timed.best["elements"] = 256
    assert prepared().tile == Tile(2, 1024, 8)
    assert len(timed.benched) == measured
    (choice,) = tuning.choices()
    assert choice.milliseconds == {
        Tile(1, 1024, 4): 2.0,
        Tile(1, 256, 1): 4.0,
        Tile(1, 512, 2): 3.0,
        Tile(2, 1024, 8): 1.0,
    }


def test_choices_and_compilations_are_reported(timed):
    timed.best["elements"] = 1024
    prepared(num_kv_heads=1, num_heads=1, cache_dtype="int8")
    assert kernel_lines() == (
        "scatter_quantised_kv: 4 compilations",
        "scatter_quantised_kv, 1 heads x 128+128 bfloat16 in int8: "
        "8 tokens x 128 elements, 4 warps (slower: 2 tokens x 128 elements, 1 warps 3.00x, "
        "4 tokens x 128 elements, 2 warps 2.00x, 16 tokens x 128 elements, 8 warps 2.00x)",
    )


def test_the_interpreter_measures_nothing_and_has_nothing_to_report(monkeypatch):
    monkeypatch.setattr(tuning, "fastest", None)
    workload = build(Case(op="write", seq_len=3), CPU)
    assert registry.get("write.triton").prepare(workload).tile == Tile(1, 1024, 4)
    assert kernel_lines() == ()


@pytest.mark.usefixtures("timed")
def test_with_measured_tiles_the_gpu_preset_compiles_each_candidate_once():
    run_preset(case for case in cases_of_the_gpu_preset() if case.op in {"write", "read"})
    shapes = [
        (heads * dim, size)
        for heads, dim, size in (
            (1, 128, 2),
            (8, 128, 2),
            (32, 128, 2),
            (8, 64, 2),
            (8, 256, 2),
            (8, 128, 2),
            (8, 128, 4),
        )
    ]
    most = sum(len(tiles(row, size)) for row, size in shapes)
    assert compilations() == {"scatter_kv": most, "gather_kv": most}
    assert most <= 4 * SHAPES_OF_THE_GPU_PRESET
    assert Counter(choice.kernel for choice in tuning.choices()) == dict.fromkeys(
        ("scatter_kv", "gather_kv"), SHAPES_OF_THE_GPU_PRESET
    )


def test_nothing_is_measured_where_the_default_is_asked_for(timed):
    timed.best["elements"] = 256
    with default_tiles():
        assert prepared().tile == Tile(1, 1024, 4)
    assert timed.benched == []
    assert prepared().tile == Tile(1, 256, 1)


def test_nothing_is_measured_where_there_is_no_choice(timed):
    arguments = (scatter_kv_kernel, [Tile(1, 1, 1)], None, None)
    assert tuning.fastest(*arguments) == Tile(1, 1, 1)
    assert timed.benched == []


def test_quantised_tiles_are_measured_too(timed):
    for scale in ("per_head", "per_token"):
        prepared(cache_dtype="fp8_e4m3", kv_scale=scale, num_kv_heads=32, num_heads=32)
    kinds = Counter(choice.kernel for choice in tuning.choices())
    # Per token the whole row is a program's: there is one tile for it.
    assert kinds == {"scatter_quantised_kv": 1}
    assert {values["SCALE"] for _, values in timed.benched} == {"per_head"}


@pytest.mark.gpu
@pytest.mark.parametrize("op", ["write", "read"])
@pytest.mark.parametrize("cache_dtype", ["auto", "int8"])
def test_on_a_gpu_a_tile_is_measured_and_what_it_moves_is_right(op, cache_dtype, gpu, monkeypatch):
    monkeypatch.setattr(tuning, "_choices", {})
    case = Case(op=op, seq_len=100, num_kv_heads=1, num_heads=1, cache_dtype=cache_dtype)
    assert check_case(case, registry.get(f"{op}.triton"), gpu) == ("checked", "")
    (choice,) = tuning.choices()
    assert set(choice.milliseconds) == set(tiles(128, 2))
    assert all(0 < each < math.inf for each in choice.milliseconds.values())
    assert choice.milliseconds[choice.tile] == min(choice.milliseconds.values())
    assert len(kernel_lines()) >= 2
