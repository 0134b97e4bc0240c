"""The C++ kernels: any strides, exact codes, threads and streaming stores; how they are built."""

import contextlib
import itertools
import multiprocessing
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import torch
from drawn import KV_OPS, cases
from hypothesis import given, settings
from hypothesis import strategies as st

from kvbench import devices
from kvbench.cases import Case
from kvbench.kernels.native import build, launch, library
from kvbench.kernels.native.launch import Plan
from kvbench.kernels.rows import LARGEST
from kvbench.strategies import registry
from kvbench.sweep.checking import check_case
from kvbench.sweep.launches import predicted

CPU = torch.device("cpu")
ROOT = Path(__file__).parent.parent
MAINS = {"native_main.cpp": build.EXACT, "attend_main.cpp": build.FUSED}
"""What tests the kernels in C++, and what the libraries are built with."""

REASON = library.unsupported(CPU)
needs_kernels = pytest.mark.skipif(REASON is not None, reason=str(REASON))


@contextlib.contextmanager
def forced(threads, *, streaming):
    """So many threads for any case of so many tokens, and streaming stores for any or for none."""
    before = torch.get_num_threads()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(launch, "BYTES_PER_THREAD", 1)
        patch.setattr(launch, "STREAMED_SHARE", 0 if streaming else float("inf"))
        torch.set_num_threads(threads)
        try:
            yield
        finally:
            torch.set_num_threads(before)


# What they move.


@needs_kernels
@pytest.mark.parametrize("op", KV_OPS)
@settings(max_examples=150)
@given(data=st.data(), threads=st.integers(1, 3), streaming=st.booleans())
def test_any_case_is_right_with_threads_and_with_streaming_stores(op, data, threads, streaming):
    case = data.draw(cases(op=op))
    with forced(threads, streaming=streaming):
        assert check_case(case, registry.get(f"{op}.native"), CPU) == ("checked", "")


@st.composite
def memory(draw, shape, dtype):
    """A tensor in memory of its own, with dimensions in any order, gaps, and any alignment."""
    order = draw(st.permutations(range(len(shape))))
    sizes = [shape[i] + draw(st.integers(0, 2)) for i in order]
    first = draw(st.integers(0, 70))
    storage = torch.zeros(first + torch.Size(sizes).numel(), dtype=dtype)
    whole = storage[first:].view(sizes)
    part = whole[tuple(slice(shape[i]) for i in order)]
    return storage, part.permute(*(order.index(i) for i in range(len(shape))))


@st.composite
def operands(draw):
    """Rows and pools of K and V in any memory, and slots for some of the rows."""
    dtype = draw(st.sampled_from([torch.int8, torch.int16, torch.int32]))
    tokens, heads = draw(st.integers(1, 20)), draw(st.integers(1, 3))
    blocks, size = draw(st.integers(1, 6)), draw(st.integers(1, 8))
    rows, pools = [], []
    for _ in "KV":
        dim = draw(st.sampled_from([1, 3, 16, 64, 200]))
        rows.append(draw(memory((tokens, heads, dim), dtype)))
        pools.append(draw(memory((blocks, size, heads, dim), dtype)))
    free = draw(st.permutations(range(blocks * size)))
    if draw(st.booleans()):
        free = sorted(free)  # runs
    mapped = draw(st.integers(0, min(tokens, len(free))))
    slots = [slot if draw(st.integers(0, 5)) else -slot - 1 for slot in free[:mapped]]
    integer = draw(st.sampled_from([torch.int32, torch.int64]))
    step = draw(st.integers(1, 3))
    spread = torch.full((len(slots) * step,), -7, dtype=integer)
    mapping = spread[::step]
    mapping.copy_(torch.tensor(slots, dtype=integer))
    return rows, pools, mapping


def fill_apart(storages):
    """Every element another number, of those that its type has."""
    first = 1
    for storage in storages:
        numbers = torch.arange(first, first + len(storage))
        storage.copy_((numbers % torch.iinfo(storage.dtype).max + 1).to(storage.dtype))
        first += len(storage)


@needs_kernels
@settings(max_examples=300)
@given(drawn=operands(), write=st.booleans(), threads=st.integers(1, 4), streaming=st.booleans())
def test_rows_and_pools_may_have_any_strides_and_alignment(drawn, write, threads, streaming):
    rows, pools, slots = drawn
    storages = [storage for storage, _ in (*rows, *pools)]
    fill_apart(storages)
    right = [storage.clone() for storage in storages]
    for (row_storage, row), (pool_storage, pool), row_right, pool_right in zip(
        rows, pools, right[:2], right[2:], strict=True
    ):
        row_model = row_right.as_strided(row.shape, row.stride(), row.storage_offset())
        pool_model = pool_right.as_strided(pool.shape, pool.stride(), pool.storage_offset())
        for token, slot in enumerate(slots.tolist()):
            if slot >= 0:
                at = divmod(slot, pool.shape[1])
                if write:
                    pool_model[at] = row_model[token]
                else:
                    row_model[token] = pool_model[at]
        del row_storage, pool_storage
    tensors = [tensor for _, tensor in (*rows, *pools)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(launch, "BYTES_PER_THREAD", 1)
        plan = Plan(*tensors, slots, write=write, threads=threads, streaming=streaming)
    assert plan.threads == max(1, min(threads, len(slots)))
    assert plan.streaming == streaming
    plan.run(*tensors)
    assert all(map(torch.equal, storages, right))


@needs_kernels
@given(
    slots=st.lists(st.integers(-1, 40), min_size=1, max_size=60, unique=True),
    threads=st.integers(2, 7),
)
def test_the_slots_of_threads_are_all_slots_and_shares_are_even(slots, threads):
    bounds = launch._bounds(np.array(slots), threads)
    assert bounds[0] == 0
    assert bounds[-1] == np.iinfo(np.int64).max
    stored = np.array([slot for slot in slots if slot >= 0])
    shares = [((stored >= low) & (stored < high)).sum() for low, high in itertools.pairwise(bounds)]
    assert sum(shares) == len(stored)
    assert max(shares) - min(shares) <= 1


# Codes.

FP8 = {
    torch.float8_e4m3fn: ml_dtypes.float8_e4m3fn,
    torch.float8_e5m2: ml_dtypes.float8_e5m2,
}
ROWS = {
    torch.float32: np.float32,
    torch.float16: np.float16,
    torch.bfloat16: ml_dtypes.bfloat16,
}
each_format = pytest.mark.parametrize("pool_dtype", [*FP8, torch.int8], ids=str)
each_row = pytest.mark.parametrize("row_dtype", ROWS, ids=str)


def every_row(row_dtype):
    """Every number of a format of 16 bits; of fp32 those of bf16, with lower halves that tell."""
    if row_dtype is torch.float32:
        upper = np.arange(1 << 16, dtype=np.uint32) << 16
        lower = np.array([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF], dtype=np.uint32)
        return (upper[:, None] | lower).ravel().view(np.float32)
    return np.arange(1 << 16, dtype=np.uint16).view(ROWS[row_dtype])


def as_torch(numbers, dtype):
    integers = {1: np.uint8, 2: np.int16, 4: np.int32}[numbers.dtype.itemsize]
    return torch.from_numpy(numbers.view(integers)).view(dtype)


def convert(row_dtype, pool_dtype, count, scale, *, write, rows=None, codes=None, stride=1):
    """One token of so many elements, of which one of K is looked at, through a plan."""
    key = torch.zeros(count * stride, dtype=row_dtype)[::stride].view(1, 1, count)
    pool = torch.zeros(count * stride, dtype=pool_dtype)[::stride].view(1, 1, 1, count)
    if rows is not None:
        key.copy_(rows.view_as(key))
    if codes is not None:
        pool.copy_(codes.view_as(pool))
    operands = (key, key.clone(), pool, pool.clone())
    scales = torch.tensor([[scale]]), torch.ones(1, 1)
    plan = Plan(
        *operands,
        torch.zeros(1, dtype=torch.int64),
        write=write,
        key_scale=scales[0],
        value_scale=scales[1],
    )
    plan.run(*operands, *scales)
    return (pool if write else key).reshape(-1)


@needs_kernels
@pytest.mark.parametrize("stride", [1, 3])
@pytest.mark.parametrize("scale", [1.0, 0.25, 3.7, 1e-4, 1e30])
@each_row
@each_format
def test_every_number_has_its_code(pool_dtype, row_dtype, scale, stride):
    numbers = every_row(row_dtype)
    if pool_dtype is torch.int8:
        numbers = numbers[~np.isnan(numbers.astype(np.float32))]  # undefined
    with np.errstate(all="ignore"):
        scaled = numbers.astype(np.float32) / np.float32(scale)
        if pool_dtype is torch.int8:
            right = np.clip(np.rint(scaled), -128, 127).astype(np.int8).view(np.uint8)
        else:
            limited = np.clip(scaled, -LARGEST[pool_dtype], LARGEST[pool_dtype])
            right = limited.astype(FP8[pool_dtype]).view(np.uint8)
    codes = (
        convert(
            row_dtype,
            pool_dtype,
            len(numbers),
            scale,
            write=True,
            rows=as_torch(numbers, row_dtype),
            stride=stride,
        )
        .contiguous()
        .view(torch.uint8)
        .numpy()
    )
    nan = np.isnan(scaled)
    assert np.array_equal(codes[~nan], right[~nan])
    assert np.isnan(codes[nan].view(FP8.get(pool_dtype, np.int8)).astype(np.float32)).all()


@needs_kernels
@pytest.mark.parametrize("stride", [1, 3])
@pytest.mark.parametrize("scale", [1.0, 0.25, 3.7, 1e-4, 1e-7, 1e30])
@each_row
@each_format
def test_every_code_has_its_number(pool_dtype, row_dtype, scale, stride):
    codes = np.arange(256, dtype=np.uint8)
    with np.errstate(all="ignore"):
        numbers = codes.view(FP8.get(pool_dtype, np.int8)).astype(np.float32)
        right = (numbers * np.float32(scale)).astype(ROWS[row_dtype])
    found = (
        convert(
            row_dtype,
            pool_dtype,
            len(codes),
            scale,
            write=False,
            codes=as_torch(codes, pool_dtype),
            stride=stride,
        )
        .float()
        .numpy()
    )
    assert np.array_equal(found, right.astype(np.float32), equal_nan=True)
    assert np.array_equal(np.signbit(found), np.signbit(right.astype(np.float32)))


@needs_kernels
@each_row
@settings(max_examples=30)
@given(seed=st.integers(0, 2**32 - 1))
def test_a_product_is_rounded_as_the_format_of_rows_has_it(row_dtype, seed):
    # With these scales products lie anywhere: half-way, below the least normal, past the largest.
    rng = np.random.default_rng(seed)
    codes = rng.integers(-128, 128, 4096).astype(np.int8).view(np.uint8)
    scale = np.float32(2.0 ** rng.uniform(-40, 20))
    with np.errstate(all="ignore"):
        right = (codes.view(np.int8).astype(np.float32) * scale).astype(ROWS[row_dtype])
    found = convert(
        row_dtype,
        torch.int8,
        len(codes),
        float(scale),
        write=False,
        codes=as_torch(codes, torch.int8),
    )
    assert np.array_equal(found.float().numpy(), right.astype(np.float32))


# What is refused.


def plain(tokens=3, blocks=2, size=4, dtype=torch.float32):
    rows = [torch.ones(tokens, 2, 4, dtype=dtype) for _ in "KV"]
    pools = [torch.zeros(blocks, size, 2, 4, dtype=dtype) for _ in "KV"]
    return *rows, *pools


@needs_kernels
@pytest.mark.parametrize("write", [True, False])
def test_a_slot_past_the_pool_is_refused_before_anything_moves(write):
    operands = plain()
    with pytest.raises(ValueError, match=r"slot_mapping has slot 8; expected less than 8"):
        Plan(*operands, torch.tensor([0, 8, 1]), write=write)


@needs_kernels
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("write", [True, False])
def test_a_mapping_that_changes_after_it_was_planned_writes_nothing_past_the_pool(write, threads):
    operands = plain()
    slots = torch.tensor([0, 1, 2])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(launch, "BYTES_PER_THREAD", 1)
        plan = Plan(*operands, slots, write=write, threads=threads)
    slots[1] = 2**62
    with pytest.raises(IndexError, match=rf"slot_mapping\[1\] is {2**62}; expected less than 8"):
        plan.run(*operands)


@needs_kernels
@pytest.mark.parametrize(
    ("broken", "message"),
    [
        ({"slots": torch.arange(4)}, "slot_mapping has 4 slots; expected up to 3"),
        ({"slots": torch.zeros(1)}, "slot_mapping's dtype is torch.float32; expected torch.int32"),
        ({"value": torch.ones(3, 2, 5)}, "value_pool's row is (2, 4); expected (2, 5)"),
        ({"dtype": torch.float64}, "key's elements have 8 bytes; expected 1, 2 or 4"),
    ],
    ids=str,
)
def test_operands_that_do_not_go_together_are_refused(broken, message):
    key, value, key_pool, value_pool = plain(dtype=broken.get("dtype", torch.float32))
    slots = broken.get("slots", torch.arange(3))
    with pytest.raises(ValueError, match=re.escape(message)):
        Plan(key, broken.get("value", value), key_pool, value_pool, slots, write=True)


@needs_kernels
@pytest.mark.parametrize(
    ("scale", "rows", "message"),
    [
        (torch.ones(1, 3), torch.float32, "key_scale's shape is (1, 3); expected (1, 1) or (1, 2)"),
        (torch.ones(1, 1), torch.float64, "key's dtype is torch.float64; expected one of"),
    ],
)
def test_scales_and_rows_that_there_are_no_kernels_for_are_refused(scale, rows, message):
    key, value, *_ = plain(dtype=rows)
    pools = plain(dtype=torch.int8)[2:]
    with pytest.raises(ValueError, match=re.escape(message)):
        Plan(
            key,
            value,
            *pools,
            torch.arange(3),
            write=True,
            key_scale=scale,
            value_scale=torch.ones(1, 1),
        )


@needs_kernels
def test_a_plan_with_scales_does_not_run_without_them():
    key, value, *_ = plain()
    pools = plain(dtype=torch.int8)[2:]
    scales = torch.ones(1, 1), torch.ones(1, 1)
    plan = Plan(
        key, value, *pools, torch.arange(3), write=True, key_scale=scales[0], value_scale=scales[1]
    )
    with pytest.raises(TypeError, match="takes at least 7 arguments"):
        plan.run(key, value, *pools)


# How many threads, and which stores.


@needs_kernels
@pytest.mark.parametrize(("tokens", "threads"), [(1, 1), (128, 1), (256, 2), (512, 2)])
def test_a_small_call_takes_one_thread_whatever_pytorch_has(tokens, threads):
    # A token's K and V are read and written: 2 KiB in all.
    operands = [torch.zeros(tokens, 1, 128), torch.zeros(tokens, 1, 128)]
    operands += [torch.zeros(tokens, 1, 1, 128), torch.zeros(tokens, 1, 1, 128)]
    plan = Plan(*operands, torch.arange(tokens), write=True, threads=2)
    assert plan.threads == threads


@needs_kernels
@pytest.mark.parametrize(
    ("cache", "streaming"), [(None, False), (12 << 10, False), (10 << 10, True)]
)
def test_streaming_stores_are_for_what_does_not_fit_the_cache(cache, streaming, monkeypatch):
    monkeypatch.setattr(launch, "cpu_cache_bytes", lambda: cache)
    operands = [torch.zeros(4, 1, 128), torch.zeros(4, 1, 128)]
    operands += [torch.zeros(1, 4, 1, 128), torch.zeros(1, 4, 1, 128)]
    plan = Plan(*operands, torch.arange(4), write=True)  # 8 KiB are read and written
    assert plan.streaming == streaming


def test_the_cache_is_as_large_as_the_system_says():
    found = sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"))
    sizes = [path.read_text().strip() for path in found]
    devices.cpu_cache_bytes.cache_clear()
    cache = devices.cpu_cache_bytes()
    assert (cache is None) == (not sizes)
    if cache is not None:
        assert f"{cache >> 10}K" in sizes or f"{cache >> 20}M" in sizes


THREADS = """
import os

import torch
from kvbench.kernels.native import launch

torch.set_num_threads(2)
torch.ones(1 << 20).mul_(2)
launch.BYTES_PER_THREAD = 1
rows = [torch.ones(64, 1, 64) for _ in "KV"]
pools = [torch.zeros(64, 1, 1, 64) for _ in "KV"]
plan = launch.Plan(*rows, *pools, torch.arange(64), write=True)
before = len(os.listdir("/proc/self/task"))
plan.run(*rows, *pools)
after = len(os.listdir("/proc/self/task"))
assert all(bool((pool == 1).all()) for pool in pools)
lines = open("/proc/self/maps").read().splitlines()
runtimes = {line.split()[-1] for line in lines if "omp" in line.rpartition("/")[2]}
print(plan.threads, after - before, len(runtimes))
"""


@needs_kernels
def test_threads_are_pytorchs_own_and_there_is_no_second_openmp():
    done = subprocess.run(
        [sys.executable, "-c", THREADS], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert done.stdout.split() == ["2", "0", "1"]


# The strategies.


@pytest.mark.parametrize("op", KV_OPS)
def test_another_device_is_refused_without_a_build(op, monkeypatch):
    monkeypatch.setattr(library, "_library", lambda: pytest.fail("it was built"))
    strategy = registry.get(f"{op}.native")
    case = Case(op=op, seq_len=1)
    assert strategy.supports(case, torch.device("cuda:0")) == "C++ for the CPU's own memory"
    assert predicted(strategy, case, "run") is None


@pytest.mark.parametrize("op", KV_OPS)
def test_without_a_library_the_strategies_say_why(op, monkeypatch):
    monkeypatch.setattr(library, "_library", lambda: "no C++ compiler")
    strategy = registry.get(f"{op}.native")
    case = Case(op=op, seq_len=1)
    assert check_case(case, strategy, CPU) == ("unsupported", "no C++ compiler")
    with pytest.raises(build.BuildError, match="no C\\+\\+ compiler"):
        Plan(*plain(), torch.arange(3), write=True)


# The build. Compilers here are scripts, which take no second.


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("CXX", raising=False)
    return tmp_path / "cache" / "kvbench"


@pytest.fixture
def compiler(tmp_path, monkeypatch):
    """Makes a compiler of a shell script; macros are those that a first argument names."""

    def make(script, macros="echo '#define V 1'"):
        path = tmp_path / "compiler"
        choice = f'case "$*" in *" -dM "*) {macros};;\n*) {script};; esac'
        path.write_text(f"#!/bin/sh\nfor last; do :; done  # the output\n{choice}\n")
        path.chmod(0o755)
        monkeypatch.setenv("CXX", str(path))
        return path

    return make


def opened(path):
    """What stands for opening a library: its text, unless it is no good."""
    text = path.read_text()
    if "bad" in text:
        raise OSError("it is bad")
    return text


def test_without_a_compiler_the_reason_says_what_was_looked_for(cache, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(
        build.BuildError, match=r"no C\+\+ compiler: none of c\+\+, g\+\+, clang\+\+"
    ):
        build.load(opened)
    assert not cache.exists()


@pytest.mark.usefixtures("cache")
def test_a_compiler_that_cxx_names_is_taken_or_missed_by_its_name(monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler -O1")
    with pytest.raises(build.BuildError, match=r"'no-such-compiler' of \$CXX is not here"):
        build.load(opened)


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("echo 'In file included' >&2; echo 'move.cpp:1: error: boom' >&2; exit 1", "error: boom"),
        ("echo 'cannot exec cc1plus' >&2; exit 1", "failed: cannot exec cc1plus"),
        ("exit 3", "failed: exit status 3"),
    ],
)
def test_a_compiler_that_fails_is_the_reason_in_one_line(cache, compiler, script, reason):
    path = compiler(script)
    with pytest.raises(build.BuildError, match=re.escape(reason)) as raised:
        build.load(opened)
    assert str(raised.value).startswith(str(path))
    assert len(str(raised.value).splitlines()) == 1
    assert list(cache.iterdir()) == []


def test_flags_that_a_compiler_does_not_take_are_left_out(cache, compiler):
    compiler('echo "$*" > "$last"', macros='case "$*" in *native*) exit 1;; esac')
    assert build._NATIVE not in build.load(opened)
    compiler('echo "$*" > "$last"')
    assert build._NATIVE in build.load(opened)
    assert len(list(cache.iterdir())) == 2


@pytest.mark.usefixtures("cache")
def test_a_compiler_that_does_not_even_preprocess_is_the_reason(compiler):
    compiler("exit 0", macros="echo 'fatal error: no cc1plus' >&2; exit 1")
    with pytest.raises(build.BuildError, match="fatal error: no cc1plus"):
        build.load(opened)


def test_a_library_is_built_once_and_again_when_what_it_is_made_of_changes(
    cache, compiler, tmp_path, monkeypatch
):
    compiler(f'echo x >> {tmp_path}/builds; cat {tmp_path}/builds > "$last"')
    assert build.load(opened) == build.load(opened) == "x\n"
    compiler(f'echo x >> {tmp_path}/builds; cat {tmp_path}/builds > "$last"', "echo '#define V 2'")
    assert build.load(opened) == "x\nx\n"
    monkeypatch.setattr(build, "_sources", lambda: [b"other"])
    assert build.load(opened) == "x\nx\nx\n"
    assert len(list(cache.iterdir())) == 3


@pytest.mark.parametrize("broken", ["", "goo", "good\nand more"])
def test_a_file_that_is_not_as_it_was_written_is_built_anew(cache, compiler, broken):
    compiler('echo good > "$last"')
    build.load(opened)
    (path,) = cache.iterdir()
    path.write_text(broken)
    assert build.load(opened) == "good\n"
    assert path.read_text() == "good\n"


def test_a_whole_file_that_cannot_be_opened_is_built_anew(cache, compiler, tmp_path):
    (tmp_path / "text").write_text("bad")
    compiler(f'cat {tmp_path}/text > "$last"')
    with pytest.raises(build.BuildError, match="built can't be loaded: it is bad"):
        build.load(opened)
    (tmp_path / "text").write_text("good")
    assert build.load(opened) == "good"
    assert [path.read_text() for path in cache.iterdir()] == ["good"]


def test_a_cache_that_cannot_be_written_is_the_reason(cache, compiler):
    compiler('echo good > "$last"')
    cache.parent.mkdir()
    cache.write_text("a file where a folder should be")
    with pytest.raises(build.BuildError, match=r"no place for .* XDG_CACHE_HOME names another"):
        build.load(opened)


def _load(_: int) -> str:
    return build.load(opened)


def test_processes_may_build_at_the_same_time(cache, compiler):
    compiler('sleep 0.3; echo good > "$last"')
    with multiprocessing.get_context("fork").Pool(4) as pool:
        assert pool.map(_load, range(4), chunksize=1) == ["good\n"] * 4
    assert [path.read_text() for path in cache.iterdir()] == ["good\n"]


@needs_kernels
def test_a_real_library_that_was_cut_short_is_built_anew(cache):
    build.load(library._open)
    (path,) = cache.iterdir()
    short = path.read_bytes()[:5000]
    path.unlink()  # the file that is mapped stays as it is
    path.write_bytes(short)
    assert build.load(library._open).streams in {True, False}
    assert path.stat().st_size > 5000


# The kernels by themselves, as C++.


each_main = pytest.mark.parametrize("main", MAINS)


def run_main(main, tmp_path, command, *emulator):
    program = tmp_path / "main"
    source = Path(__file__).parent / main
    flags = ["-std=c++17", *MAINS[main]]
    subprocess.run([*command, *flags, str(source), "-o", str(program)], check=True)
    done = subprocess.run(
        [*emulator, str(program), "300"], capture_output=True, text=True, check=False
    )
    assert done.stdout == "right\n", done.stderr


@needs_kernels
@each_main
def test_sanitizers_have_nothing_to_say(main, tmp_path):
    sanitized = ["-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    probe = tmp_path / "probe.cpp"
    probe.write_text("int main() {}")
    command = [*build.compiler(), "-march=native", *sanitized]
    if subprocess.run(
        [*command, str(probe), "-o", str(tmp_path / "probe")], check=False
    ).returncode:
        pytest.skip("the compiler has no sanitizers here")
    run_main(main, tmp_path, command)


@needs_kernels
@pytest.mark.parametrize("flags", [["-O3"], ["-O3", "-march=native"]], ids=" ".join)
@each_main
def test_kernels_are_right_with_the_least_and_the_most_of_the_cpu(main, tmp_path, flags):
    run_main(main, tmp_path, [*build.compiler(), *flags, "-Wall", "-Wextra", "-Werror"])


@each_main
def test_kernels_are_right_on_aarch64(main, tmp_path):
    cross, emulator = shutil.which("aarch64-linux-gnu-g++"), shutil.which("qemu-aarch64")
    if cross is None or emulator is None:
        pytest.skip("no cross compiler and emulator: g++-aarch64-linux-gnu and qemu-user")
    run_main(main, tmp_path, [cross, "-O3", "-static", "-Wall", "-Wextra", "-Werror"], emulator)


# The benchmark.


@needs_kernels
def test_the_benchmark_says_of_each_size_whether_the_target_is_met():
    done = subprocess.run(
        [sys.executable, "benchmarks/native.py", "--tokens", "1,5", "--seconds", "0.01"],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
        env={**os.environ, "COLUMNS": "200"},
    )
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in done.stdout.splitlines()]
    sizes = [row for row in rows if row]
    assert [row[0] for row in sizes] == ["1", "5"] * 4
    for row in sizes:
        assert re.fullmatch(r"[\d.]+x \([\d.]+ to [\d.]+\)", row[3])
        one = row[0] == "1"
        assert row[4] == ("at most 1.00x" if one else "—")
        assert row[5] in ({"met", "missed", "unsure"} if one else {"—"})
        assert row[8] in {"met", "missed", "unsure"}
