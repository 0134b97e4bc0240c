"""The CUDA C++ kernels: their meaning by a C++ compiler, their machine code by NVIDIA's."""

import ctypes
import re
import shutil
import subprocess
from collections import Counter
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch
from drawn import cases
from hypothesis import given, settings
from hypothesis import strategies as st

from kvbench import oracle
from kvbench.axes import expand_all
from kvbench.cases import Case
from kvbench.filling import fill
from kvbench.kernels.cuda import move, nvrtc
from kvbench.presets import CHECK_GRIDS
from kvbench.strategies import registry
from kvbench.sweep.checking import check_case
from kvbench.sweep.launches import predicted
from kvbench.workload import build

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
STRATEGIES = {op: registry.get(f"{op}.cuda") for op in ("write", "read")}
LAYOUTS = ("NHD", "HND", "NHD-KV", "HND-KV", "MLA")


def instances(blocks):
    """Every kernel that there may be, for a GPU that holds so many blocks a multiprocessor."""
    return [
        f"{kernel}<{vector}, {slot}, {blocks}>"
        for kernel in ("scatter_kv", "gather_kv")
        for vector in move.VECTORS.values()
        for slot in move.SLOTS.values()
    ]


INSTANCES = instances(3)

each_op = pytest.mark.parametrize("op", STRATEGIES)


# The kernels as plain C++: threads and blocks are loops. A vector at a place that is no multiple of
# its size, and a product that overflows, end the process.

SHIM = """
#define __global__
#define __device__
#define __launch_bounds__(...)
struct Dim { unsigned x = 1, y = 1; };
static Dim gridDim, blockDim, blockIdx, threadIdx;
struct alignas(16) uint4 { unsigned x, y, z, w; };
struct alignas(8) uint2 { unsigned x, y; };
#include "SOURCE"
template <void (*kernel)(const Move)>
void run(unsigned blocks, unsigned x, unsigned y, const Move& move) {
  gridDim.x = blocks;
  blockDim.x = x;
  blockDim.y = y;
  for (blockIdx.x = 0; blockIdx.x < blocks; blockIdx.x++)
    for (threadIdx.y = 0; threadIdx.y < y; threadIdx.y++)
      for (threadIdx.x = 0; threadIdx.x < x; threadIdx.x++) kernel(move);
}
extern "C" int size_of_move() { return sizeof(Move); }
"""


def symbol(expression):
    return re.sub(r"\W+", "_", expression)


@pytest.fixture(scope="session")
def library(tmp_path_factory):
    """Every instance of the kernels, as a shared library."""
    compiler = shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        pytest.skip("no C++ compiler here (g++ or clang++)")
    folder = tmp_path_factory.mktemp("cuda")
    runs = [
        f'extern "C" void {symbol(each)}(unsigned b, unsigned x, unsigned y, const Move* move)'
        f" {{ run<{each}>(b, x, y, *move); }}"
        for each in INSTANCES
    ]
    source = folder / "move.cpp"
    source.write_text(SHIM.replace("SOURCE", str(move.SOURCE)) + "\n".join(runs))
    target = folder / "move.so"
    flags = (
        "-std=c++17 -O1 -Wall -Wno-maybe-uninitialized -Werror -shared -fPIC "
        "-fsanitize=alignment,signed-integer-overflow -fsanitize-undefined-trap-on-error"
    )
    subprocess.run(
        [compiler, *flags.split(), "-o", target, source],
        check=True,
    )
    return ctypes.CDLL(str(target))


class AsPlainCpp:
    """Stands in for a compiled kernel."""

    def __init__(self, library, expression, launches):
        self.function = getattr(library, symbol(expression))
        self.expression, self.launches = expression, launches

    def bind(self, blocks, threads, given_):
        def call():
            self.launches.append((self.expression, blocks, threads))
            self.function(blocks, *threads, ctypes.byref(given_))

        return call


@contextmanager
def simulated(library):
    """Kernels on CPU tensors, on a GPU of three blocks; gives what is launched."""
    launches = []
    here = move.unsupported
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(move, "compiled", lambda name, _: AsPlainCpp(library, name, launches))
        patch.setattr(move, "holds", lambda _: (1, 3))
        patch.setattr(nvrtc, "library", lambda: library)
        patch.setattr(move, "unsupported", lambda case, _: here(case, CUDA))
        yield launches


@pytest.fixture
def launches(library):
    """What is launched, as (instance, blocks, threads)."""
    with simulated(library) as found:
        yield found


def test_python_and_cpp_agree_on_the_parameter(library):
    assert library.size_of_move() == ctypes.sizeof(move.Move)


@each_op
@settings(max_examples=150)
@given(data=st.data())
def test_the_kernels_are_right_in_any_case(op, data, library):
    layout = data.draw(st.sampled_from(LAYOUTS))
    case = data.draw(cases(op=op, layout=layout, cache_dtype="auto"))
    with simulated(library):
        assert check_case(case, STRATEGIES[op], CPU) == ("checked", "")


def test_the_kernels_are_right_in_the_check_grids(launches):
    outcomes = Counter()
    for case in (case for case in expand_all(CHECK_GRIDS) if case.op in STRATEGIES):
        status, reason = check_case(case, STRATEGIES[case.op], CPU)
        outcomes[status] += 1
        assert status == "checked" or reason.startswith(("cache_dtype ", "layout x-packed:"))
    assert set(outcomes) == {"checked", "unsupported"}
    assert len({expression for expression, *_ in launches}) > 4


@pytest.mark.parametrize("slot", move.SLOTS, ids=str)
@pytest.mark.parametrize("width", move.VECTORS)
def test_every_instance_copies_to_slots_and_back(width, slot, launches):
    # In bytes. Heads of K and V differ in size; beside them in a pool lie other slots and heads.
    heads, dims = 3, (5 * width, 3 * width)
    rows = [torch.randint(1, 256, (40, heads, dim), dtype=torch.uint8) for dim in dims]
    pools = [
        torch.zeros(8, heads, 9, dims[0], dtype=torch.uint8).transpose(1, 2),
        torch.zeros(8, 9, heads, 2 * dims[1], dtype=torch.uint8)[..., : dims[1]],
    ]
    slots = torch.randperm(72, generator=torch.Generator().manual_seed(0))[:40].to(slot)
    slots[7] = -1
    move.plan_move("scatter_kv", *rows, *pools, slots).run(*rows, *pools)
    back = [torch.zeros_like(each) for each in rows]
    move.plan_move("gather_kv", *back, *pools, slots).run(*back, *pools)
    for each, again, pool in zip(rows, back, pools, strict=True):
        each[7] = 0
        assert torch.equal(each, again)
        assert pool[slots[8] // 9, slots[8] % 9].equal(each[8])
        assert pool.count_nonzero() == each.count_nonzero()
    ends = f"<{move.VECTORS[width]}, {move.SLOTS[slot]}, 3>"
    assert [name for name, *_ in launches] == [f"scatter_kv{ends}", f"gather_kv{ends}"]


@each_op
def test_what_prepare_returned_serves_every_layer(op, launches):
    workload = build(Case(op=op, seq_len=37, batch=2), CPU)
    fill(workload, 0)
    prepared = STRATEGIES[op].prepare(workload)
    assert launches == []
    layers = [oracle.recheck(STRATEGIES[op], workload, prepared, layer) for layer in (1, 2)]
    assert layers == ["", ""]


# How wide, how many.


@pytest.mark.parametrize(
    ("fields", "vector", "threads"),
    [
        ({}, "uint4", (128, 2)),  # 8 x 128: 2 KiB of K are 128 vectors
        ({"num_kv_heads": 32}, "uint4", (256, 1)),
        ({"num_kv_heads": 1, "head_dim": 64}, "uint4", (8, 32)),
        ({"num_kv_heads": 3, "head_dim": 80}, "uint4", (32, 8)),
        ({"num_kv_heads": 1, "head_dim": 4}, "uint2", (1, 256)),
        ({"num_kv_heads": 1, "head_dim": 2}, "unsigned int", (1, 256)),
        ({"num_kv_heads": 1, "head_dim": 5}, "unsigned short", (8, 32)),
        # Heads that lie one behind the other are one: 8 x 3 elements are 48 bytes.
        ({"num_kv_heads": 8, "head_dim": 3}, "uint4", (4, 64)),
        ({"num_kv_heads": 8, "head_dim": 3, "layout": "HND"}, "unsigned short", (32, 8)),
        ({"num_kv_heads": 1, "head_dim": 576, "layout": "MLA"}, "uint4", (64, 4)),
        ({"num_kv_heads": 8, "head_dim": 1, "dtype": "fp32"}, "uint4", (2, 128)),
    ],
    ids=str,
)
@each_op
def test_vectors_are_as_wide_as_heads_and_strides_allow(op, fields, vector, threads, launches):
    case = Case(**{"op": op, "seq_len": 1000, "num_heads": fields.get("num_kv_heads", 8), **fields})
    assert check_case(case, STRATEGIES[op], CPU) == ("checked", "")
    kernel = "scatter_kv" if op == "write" else "gather_kv"
    # As many blocks as tokens take, up to what the GPU holds.
    assert set(launches) == {(f"{kernel}<{vector}, long long, 3>", 3, threads)}


@pytest.mark.parametrize(("tokens", "blocks"), [(1, 1), (2, 1), (3, 2), (6, 3), (7, 3), (500, 3)])
def test_there_are_no_more_blocks_than_tokens_take_and_the_gpu_holds(tokens, blocks, launches):
    case = Case(op="write", seq_len=tokens)
    assert check_case(case, STRATEGIES["write"], CPU) == ("checked", "")
    assert {launch[1] for launch in launches} == {blocks}


@each_op
def test_no_token_is_no_launch(op, launches):
    case = Case(op=op, seq_len=0, batch=2)
    assert check_case(case, STRATEGIES[op], CPU) == ("checked", "")
    assert launches == []


@pytest.mark.parametrize("slot_dtype", ["int64", "int32"])
def test_slots_have_the_type_of_the_mapping(slot_dtype, launches):
    case = Case(op="write", seq_len=5, slot_dtype=slot_dtype, padding=3, missing_blocks=1)
    assert check_case(case, STRATEGIES["write"], CPU) == ("checked", "")
    slot = {"int64": "long long", "int32": "int"}[slot_dtype]
    assert {launch[0] for launch in launches} == {f"scatter_kv<uint4, {slot}, 3>"}


# Far offsets.


@pytest.mark.parametrize("dim", range(3), ids=["block", "slot", "head"])
@pytest.mark.usefixtures("launches")
def test_pools_reach_beyond_2_to_the_31_elements(dim, tmp_path):
    path = tmp_path / "sparse"
    memory = torch.from_file(str(path), shared=True, size=2**33, dtype=torch.uint8).view(torch.half)
    strides = [8, 24, 72]
    strides[dim] = 2**30  # its last element is 2**31 from its first
    pools = [memory[at:].as_strided((3, 3, 3, 8), (*strides, 1)) for at in (0, 2**10)]
    rows = [torch.rand(9, 3, 8).half() for _ in "KV"]
    slots = torch.randperm(9, generator=torch.Generator().manual_seed(0))
    move.plan_move("scatter_kv", *rows, *pools, slots).run(*rows, *pools)
    for pool, each in zip(pools, rows, strict=True):
        assert torch.equal(pool[slots // 3, slots % 3], each)
    back = [torch.zeros_like(each) for each in rows]
    move.plan_move("gather_kv", *back, *pools, slots).run(*back, *pools)
    assert all(map(torch.equal, back, rows))
    assert path.stat().st_blocks * 512 < 2**20
    path.unlink()


@pytest.mark.parametrize("blocks", [2**31 // 3, 2**31 // 3 + 1, 2**32 // 3 + 1])
@pytest.mark.usefixtures("launches")
def test_slots_reach_beyond_2_to_the_31(blocks):
    # All blocks are the same memory: a place in its block is all that is left of a slot.
    near = torch.tensor([1, 0, 2, -1])
    far = near + 3 * torch.tensor([blocks - 1, 0, blocks - 1, -(2**33)])
    pools = [torch.zeros(1, 3, 1, 8) for _ in "KV"]
    rows = [torch.rand(4, 1, 8) for _ in "KV"]
    everywhere = [each.expand(blocks, 3, 1, 8) for each in pools]
    move.plan_move("scatter_kv", *rows, *everywhere, far).run(*rows, *everywhere)
    for pool, each in zip(pools, rows, strict=True):
        assert torch.equal(pool[0, near[:3]], each[:3])


# What is refused.


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"cache_dtype": "fp8_e4m3"}, "cache_dtype fp8_e4m3: this kernel copies bytes, it does no"),
        ({"layout": "x-packed"}, "layout x-packed: the elements of a head don't lie side by side"),
    ],
    ids=str,
)
@each_op
def test_what_the_kernels_do_not_do_is_refused_by_name(op, fields, reason, launches):
    status, told = check_case(Case(op=op, seq_len=3, **fields), STRATEGIES[op], CPU)
    assert (status, told[: len(reason)]) == ("unsupported", reason)
    assert launches == []


@each_op
def test_other_devices_and_a_missing_nvrtc_are_said(op, monkeypatch):
    case, strategy = Case(op=op, seq_len=3), STRATEGIES[op]
    assert strategy.supports(case, CPU) == "device cpu: CUDA C++ is for NVIDIA GPUs alone"
    monkeypatch.setattr(nvrtc, "library", lambda: None)
    assert "NVRTC (libnvrtc.so) is not installed" in strategy.supports(case, CUDA)
    with pytest.raises(OSError, match=r"libnvrtc.so is not here; expected version 13 or 12"):
        nvrtc.compile_kernel("", "", "sm_90")
    monkeypatch.setattr(nvrtc, "library", SimpleNamespace)
    assert strategy.supports(case, CUDA) is None
    monkeypatch.setattr(torch.version, "hip", "7.0")
    assert strategy.supports(case, CUDA) == "device cuda: CUDA C++ is for NVIDIA GPUs alone"


@pytest.mark.parametrize("which", range(4), ids=["key", "value", "key_pool", "value_pool"])
def test_heads_whose_elements_lie_apart_are_refused(which, launches):
    layer = [torch.zeros(3, 2, 8) for _ in "KV"] + [torch.zeros(2, 4, 2, 8) for _ in "KV"]
    layer[which] = torch.zeros(*layer[which].shape[:-1], 16)[..., ::2]
    with pytest.raises(ValueError, match="'s last stride is 2; expected 1"):
        move.plan_move("scatter_kv", *layer, torch.arange(3))
    assert launches == []


@pytest.mark.parametrize("which", range(4), ids=["key", "value", "key_pool", "value_pool"])
def test_a_layer_unlike_the_one_that_was_planned_with_is_refused(which, launches):
    layer = [torch.zeros(3, 2, 8) for _ in "KV"] + [torch.zeros(2, 4, 2, 8) for _ in "KV"]
    plan = move.plan_move("scatter_kv", *layer, torch.arange(3))
    for unlike, message in (
        (torch.zeros(layer[which].numel() + 1)[1:].view_as(layer[which]), "multiple of 16 bytes"),
        (layer[which][:1], "expected one as the plan was made with"),
    ):
        changed = [unlike if n == which else each for n, each in enumerate(layer)]
        with pytest.raises(ValueError, match=message):
            plan.run(*changed)
    assert launches == []


# Launches, predicted.


@each_op
def test_it_is_one_launch_and_an_upload_once_a_step(op):
    case = Case(op=op, seq_len=128, batch=3)
    counts = [predicted(STRATEGIES[op], case, phase) for phase in ("run", "prepare")]
    told = [(each.kernels, each.memcpys, each.synchronizations) for each in counts]
    assert told == [(1, 0, 0), (0, 1, 1)]


# The way to the driver, which is not here.


@pytest.fixture
def driver(monkeypatch):
    """A GPU's driver that writes down what it is asked for."""
    asked = []

    def launch(*arguments):
        function, *sizes, shared, stream, parameters, extra = arguments
        given_ = move.Move.from_address(parameters[0])
        asked.append((function, sizes, shared, stream.value, given_.tokens, extra))
        return 0

    monkeypatch.setattr(
        nvrtc, "compile_kernel", lambda source, name, arch: (f"{len(source)} {arch}".encode(), name)
    )
    utils = torch.cuda._utils
    loaded = SimpleNamespace(func="function")
    monkeypatch.setattr(utils, "_cuda_load_module", lambda _, names: {names[0]: loaded})
    library = SimpleNamespace(cuLaunchKernel=launch)
    monkeypatch.setattr(utils, "_get_gpu_runtime_library", lambda: library)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    properties = SimpleNamespace(multi_processor_count=132, max_threads_per_multi_processor=2048)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(cuda_stream=7))
    move.compiled.cache_clear()
    yield SimpleNamespace(asked=asked, library=library)
    move.compiled.cache_clear()


def test_a_launch_goes_to_the_driver_with_its_one_parameter(driver):
    layer = [torch.zeros(3, 2, 8) for _ in "KV"] + [torch.zeros(2, 4, 2, 8) for _ in "KV"]
    plan = move.plan_move("scatter_kv", *layer, torch.arange(3))
    assert driver.asked == []
    plan.run(*layer)
    plan.run(*layer)
    # 64 bytes of K are 4 vectors.
    assert driver.asked == [("function", [1, 1, 1, 4, 64, 1], 0, 7, 3, None)] * 2
    assert move.holds(CUDA) == (132, 8)


def test_what_the_driver_refuses_is_an_error(driver, monkeypatch):
    layer = [torch.zeros(3, 2, 8) for _ in "KV"] + [torch.zeros(2, 4, 2, 8) for _ in "KV"]

    def refuse(result):
        raise RuntimeError(f"CUDA error: {result}")

    monkeypatch.setattr(torch.cuda._utils, "_check_cuda", refuse)
    driver.library.cuLaunchKernel = lambda *_: 700
    plan = move.plan_move("scatter_kv", *layer, torch.arange(3))
    with pytest.raises(RuntimeError, match="CUDA error: 700"):
        plan.run(*layer)


# Machine code.


@pytest.fixture(scope="session")
def nvcc():
    path = shutil.which("nvcc")
    if path is None:
        pytest.skip("no nvcc here")
    return path


def cuobjdump():
    """Triton's own, where that is."""
    return pytest.importorskip("triton").knobs.nvidia.cuobjdump.path


def dump(cubin, what):
    return subprocess.run(
        [cuobjdump(), what, cubin], check=True, capture_output=True, text=True
    ).stdout


@pytest.fixture(scope="session")
def cubin(nvcc, tmp_path_factory):
    """A function that compiles instances for an architecture, if nvcc knows it."""
    folder = tmp_path_factory.mktemp("nvcc")
    known = subprocess.run([nvcc, "--list-gpu-code"], check=True, capture_output=True, text=True)

    def compiled(architecture, instances):
        if architecture not in known.stdout.split():
            pytest.skip(f"this nvcc does not know {architecture}")
        name = f"{architecture}-{symbol(instances[0])}-{len(instances)}"
        source, target = folder / f"{name}.cu", folder / f"{name}.cubin"
        lines = [f"template __global__ void {each}(const Move);" for each in instances]
        source.write_text(f'#include "{move.SOURCE}"\n' + "\n".join(lines))
        if not target.exists():
            flags = ["-std=c++17", "-Werror", "all-warnings", "-cubin", f"-arch={architecture}"]
            subprocess.run([nvcc, *flags, "-o", target, source], check=True)
        return target

    return compiled


# 65,536 registers for the threads that a multiprocessor holds.
HOLDS = {"sm_75": 1024, "sm_80": 2048, "sm_89": 1536, "sm_90": 2048, "sm_100": 2048, "sm_120": 1536}


@pytest.mark.parametrize(("architecture", "threads"), HOLDS.items())
def test_nvcc_compiles_every_instance_within_the_registers_of_full_occupancy(
    architecture, threads, cubin
):
    expected = instances(threads // 256)
    used = dump(cubin(architecture, expected), "--dump-resource-usage")
    found = re.findall(r"REG:(\d+) STACK:(\d+) SHARED:(\d+) LOCAL:(\d+)", used)
    assert len(found) == len(expected) == 20
    for registers, *others in found:
        assert int(registers) <= 65536 // threads
        assert others == ["0", "0", "0"]


@pytest.fixture(scope="session")
def needs_nvrtc():
    if nvrtc.library() is None:
        pytest.skip("no NVRTC here (libnvrtc.so)")


@pytest.mark.usefixtures("needs_nvrtc")
@pytest.mark.parametrize("architecture", ["sm_80", "sm_90"])
@pytest.mark.parametrize("expression", instances(8))
def test_nvrtc_compiles_every_instance(expression, architecture):
    source = move.SOURCE.read_text()
    code, name = nvrtc.compile_kernel(source, expression, architecture)
    assert code.startswith(b"\x7fELF")
    assert name.encode() in code
    assert expression.partition("<")[0] in name


@pytest.mark.usefixtures("needs_nvrtc")
@pytest.mark.parametrize(
    ("source", "expression", "architecture", "message"),
    [
        ("nonsense", "x", "sm_90", 'identifier "x" is undefined'),
        (None, "scatter_kv<Nothing, int, 8>", "sm_90", 'identifier "Nothing" is undefined'),
        (None, "scatter_kv<uint4, int, 8>", "sm_9", "invalid value for --gpu-architecture"),
    ],
    ids=str,
)
def test_what_nvrtc_says_is_told(source, expression, architecture, message):
    with pytest.raises(nvrtc.CompilationError, match=message):
        nvrtc.compile_kernel(source or move.SOURCE.read_text(), expression, architecture)


def test_a_packaged_nvrtc_is_found_where_nvidia_s_packages_have_it(tmp_path, monkeypatch):
    for folder in ("cuda_nvrtc", "cu13"):
        (tmp_path / folder / "lib").mkdir(parents=True)
        (tmp_path / folder / "lib" / "libnvrtc.so.13").touch()
    spec = SimpleNamespace(submodule_search_locations=[str(tmp_path)])
    monkeypatch.setattr("importlib.util.find_spec", {"nvidia": spec}.get)
    places = [path.parent.parent.name for path in nvrtc._packaged("libnvrtc.so.13")]
    assert places == ["cu13", "cuda_nvrtc"]
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    assert nvrtc._packaged("libnvrtc.so.13") == []


# On a GPU.


@pytest.mark.gpu
@each_op
@settings(max_examples=30)
@given(data=st.data())
def test_on_a_gpu_the_kernels_are_right_in_any_case(op, data, gpu):
    layout = data.draw(st.sampled_from(LAYOUTS))
    case = data.draw(cases(op=op, layout=layout, cache_dtype="auto"))
    reason = STRATEGIES[op].supports(case, gpu)
    assert check_case(case, STRATEGIES[op], gpu) == (
        ("unsupported", reason) if reason else ("checked", "")
    )


@pytest.mark.gpu
def test_on_a_gpu_a_launch_is_captured_in_a_graph(gpu):
    workload = build(Case(op="write", seq_len=37), gpu)
    strategy = STRATEGIES["write"]
    if strategy.supports(workload.case, gpu):
        pytest.skip(strategy.supports(workload.case, gpu))
    fill(workload, 0)
    prepared = strategy.prepare(workload)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        strategy.run(workload, prepared)
    fill(workload, 1)
    before = workload.key_pool.clone()
    graph.replay()
    assert not torch.equal(workload.key_pool.view(torch.int16), before.view(torch.int16))
