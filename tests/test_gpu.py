"""What a GPU alone can show, at sizes that engines have; and the same checks tried without one.

Each check takes a device. The marked tests hand it the GPU; the others a simulated one, or this
CPU, with small cases and with strategies that are made of torch's ops: so that what fails on a GPU
is what is tested, not the test.
"""

import dataclasses
import itertools
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest
import torch
from simulated_cuda import DEVICE, simulated_cuda
from torch._subclasses.fake_tensor import FakeTensor

from kvbench import oracle
from kvbench.axes import Axes
from kvbench.blocks import place
from kvbench.cases import Case
from kvbench.devices import free_bytes
from kvbench.filling import fill
from kvbench.strategies import registry
from kvbench.strategies.base import Strategy
from kvbench.sweep.bench import Settings, examine, set_up
from kvbench.sweep.checking import check_case
from kvbench.sweep.launches import counted, foretold
from kvbench.sweep.measure import measure_case, one_line
from kvbench.sweep.replay import Replay
from kvbench.timing import bandwidth
from kvbench.timing.accelerator import TorchAccelerator
from kvbench.timing.cache import last_level_cache_bytes
from kvbench.units import format_bytes
from kvbench.workload import Workload, build

_HEADS = {"num_heads": 2, "num_kv_heads": 2, "head_dim": 8}
WRITE, READ, INDEX = (
    Case(op=op, seq_len=13, batch=2, lengths="equal", block_size=4, **heads)
    for op, heads in (("write", _HEADS), ("read", _HEADS), ("index", {}))
)
OF_TORCH = registry.select(
    [
        *("write.index_put", "write.index_copy", "write.block_slices", "write.streams"),
        *("write.indexing", "read.gather", "read.index_select", "read.indexing", "index.torch"),
    ]
)
"""Strategies that a simulated device can run."""


def grid(*lines: str) -> tuple[Case, ...]:
    """The cases of several grids."""
    return tuple(case for line in lines for case in Axes.parse(line.split()).expand())


def doing(case: Case, strategies: Iterable[Strategy], device: torch.device) -> list[Strategy]:
    """Those that do the case on the device."""
    return [s for s in strategies if s.op == case.op and s.supports(case, device) is None]


def of(case: Case, *, compiled: bool = False) -> list[Strategy]:
    """All strategies of a case's op; those that take seconds to compile for each only if asked."""
    slow = ("compile", ".flex", "+flex")
    every = [each for each in registry.all_strategies() if each.op == case.op]
    return [each for each in every if compiled or not each.name.endswith(slow)]


class Skips(Strategy):
    """Does nothing at all: every check has to find that."""

    name = "write.skips"
    op = "write"
    summary = "does nothing"

    def run(self, workload, prepared):
        del workload, prepared


# Every strategy against the oracle.

REAL = grid(
    "op=write,read seq_len=1,8192 layout=NHD,HND",
    "op=write,read seq_len=128 batch=64 block_order=churned padding=32 kv_input=fused_qkv",
    "op=write,read seq_len=2048 layout=NHD-KV,HND-KV,x-packed",
    "op=write,read seq_len=4096 cache_dtype=fp8_e4m3,int8 kv_scale=per_head,per_token",
    "op=write,read seq_len=4096 layout=MLA",
    "op=attend seq_len=4096 num_heads=32 lengths=equal",
    "op=attend seq_len=1024 batch=8 num_heads=32 lengths=ragged dtype=fp16",
    "op=attend seq_len=1024 batch=4 num_heads=32 lengths=equal query_len=16",
    "op=index seq_len=8192 batch=8",
    "op=index seq_len=1 batch=1024 start_pos=4096",
    "op=step seq_len=512 batch=8 num_heads=16 num_kv_heads=4 num_layers=2 lengths=equal",
)


def wrong(case: Case, strategies: Sequence[Strategy], device: torch.device) -> list[str]:
    """What is wrong with which strategies in a case."""
    ended = ((each.name, *check_case(case, each, device)) for each in strategies)
    return [
        f"{name} {status}: {reason}"
        for name, status, reason in ended
        if status not in {"checked", "unsupported"}
    ]


@pytest.mark.gpu
@pytest.mark.parametrize("case", REAL, ids=Case.label)
def test_every_strategy_is_right_at_real_sizes_on_a_gpu(case, gpu):
    first = next(each for each in REAL if (each.op, each.tokens > 1) == (case.op, True))
    every = of(case, compiled=case == first)
    assert doing(case, every, gpu)
    assert wrong(case, every, gpu) == []


@pytest.mark.parametrize("case", [WRITE, READ, INDEX], ids=lambda case: case.op)
def test_strategies_are_checked_on_a_simulated_gpu(case):
    with simulated_cuda():
        assert wrong(case, doing(case, OF_TORCH, DEVICE), DEVICE) == []
        found = wrong(case, [Skips()], DEVICE) if case.op == "write" else ["incorrect"]
    assert "incorrect" in found[0]


# Graphs.


def misplayed(case: Case, strategies: Iterable[Strategy], device: torch.device) -> list[str]:
    """What is wrong with the graphs of strategies of which a graph can be had, and whose none can.

    A call that waits is refused by the graph clock. Where it isn't known whether one waits, the
    capture may refuse it.
    """
    found = []
    for strategy in doing(case, strategies, device):
        told = foretold(strategy, case, "run", hip=torch.version.hip is not None).counts
        if told is not None and told.synchronizations:
            continue
        workload = build(case, device)
        fill(workload)
        prepared = strategy.prepare(workload)
        strategy.run(workload, prepared)
        try:
            replay = Replay(strategy, workload, prepared, TorchAccelerator(device))
        except RuntimeError as error:
            if told is not None:
                found.append(f"{strategy.name} can't be captured: {one_line(error)}")
            continue
        for version in (3, 4):
            mismatch = oracle.recheck(replay, workload, prepared, version)
            if mismatch:
                found.append(f"{strategy.name} replayed: {mismatch}")
                break
    return found


GRAPHED = grid(
    "op=write,read seq_len=37,1024 layout=NHD,HND",
    "op=write,read seq_len=1 batch=64",
    "op=write,read seq_len=100 cache_dtype=fp8_e4m3 kv_scale=per_token",
    "op=attend seq_len=512 batch=4 num_heads=32 lengths=equal",
    "op=step seq_len=64 batch=4 num_heads=8 num_kv_heads=2 head_dim=64 num_layers=2 lengths=equal",
)


@pytest.mark.gpu
@pytest.mark.parametrize("case", GRAPHED, ids=Case.label)
def test_a_captured_graph_does_what_its_strategy_does_with_new_data_on_a_gpu(case, gpu):
    if not hasattr(torch.get_device_module(gpu), "CUDAGraph"):
        pytest.skip("this kind of GPU has no graphs")
    assert misplayed(case, of(case), gpu) == []


@pytest.mark.parametrize("case", [WRITE, READ], ids=lambda case: case.op)
def test_graphs_are_checked_on_a_simulated_gpu(case):
    with simulated_cuda() as gpu:
        assert misplayed(case, OF_TORCH, DEVICE) == []
        assert gpu.streams > 1
    with simulated_cuda(forgetful=True):
        assert len(misplayed(case, OF_TORCH, DEVICE)) >= 2
    with simulated_cuda(uncapturable="CUDA error: capture invalidated"):
        found = misplayed(case, OF_TORCH, DEVICE)
    assert len(found) >= 2
    assert all("can't be captured: " in each and "capture invalidated" in each for each in found)


# Streams.


class Late:
    """A strategy on a stream of its own, on which its data arrives late.

    What is launched on another stream comes before the data, and finds zeros.
    """

    _CYCLES = 10**8

    def __init__(self, strategy: Strategy, device: torch.device) -> None:
        self._strategy = strategy
        self._module = torch.get_device_module(device)

    def run(self, workload: Workload, prepared: object) -> object:
        current, side = self._module.current_stream(), self._module.Stream()
        tensors = list(workload.tensors().values())
        kept = [tensor.clone() for tensor in tensors]
        for tensor in tensors:
            tensor.zero_()
        torch.accelerator.synchronize()
        side.wait_stream(current)
        with self._module.stream(side):
            if hasattr(self._module, "_sleep"):
                self._module._sleep(self._CYCLES)
            for tensor, data in zip(tensors, kept, strict=True):
                tensor.copy_(data)
            output = self._strategy.run(workload, prepared)
        current.wait_stream(side)
        return output


def early(case: Case, strategies: Iterable[Strategy], device: torch.device) -> list[str]:
    """Strategies that don't follow the current stream, and what came of it."""
    found = []
    for strategy in doing(case, strategies, device):
        workload = build(case, device)
        fill(workload)
        prepared = strategy.prepare(workload)
        strategy.run(workload, prepared)  # it may compile, and measure tiles
        mismatch = oracle.recheck(Late(strategy, device), workload, prepared, 5)
        if mismatch:
            found.append(f"{strategy.name}: {mismatch}")
    return found


STREAMED = grid(
    "op=write,read,index seq_len=64 batch=4 lengths=equal",
    "op=attend seq_len=64 batch=4 num_heads=32 lengths=equal",
    "op=write,read seq_len=64 cache_dtype=int8 kv_scale=per_token",
    "op=step seq_len=64 batch=4 num_heads=8 num_kv_heads=2 head_dim=64 num_layers=2 lengths=equal",
)


@pytest.mark.gpu
@pytest.mark.parametrize("case", STREAMED, ids=Case.label)
def test_every_strategy_works_on_the_current_stream_of_a_gpu(case, gpu):
    assert early(case, of(case), gpu) == []


def test_streams_are_checked_on_a_simulated_gpu():
    class OnFirst(Strategy):
        """Doesn't wait for the data: what it works with is what was there before."""

        name = "write.on_first"
        op = "write"
        summary = "writes zeros"

        def run(self, workload, prepared):
            del prepared
            workload.key.zero_()

    with simulated_cuda() as gpu:
        for case in (WRITE, READ, INDEX):
            assert early(case, OF_TORCH, DEVICE) == []
        assert {stream for name, stream in gpu.log if name.startswith("sleep")} - {0}
        assert len(early(WRITE, [OnFirst()], DEVICE)) == 1


# Offsets of more than 32 bits.


def far_faults(
    case: Case, strategies: Iterable[Strategy], device: torch.device, blocks: int
) -> list[str]:
    """Strategies that do another thing at the end of a pool of so many blocks than in a small one.

    What they do in the small one is right: other tests see to that.
    """
    near_at = place(case)
    moved = blocks - near_at.num_blocks
    tables = [[b + moved if b >= 0 else b for b in table] for table in near_at.block_tables]
    far_at = dataclasses.replace(near_at, num_blocks=blocks, block_tables=tables)
    far = build(case, device, far_at)
    near = build(case, device, near_at)
    found = []
    for strategy in doing(case, strategies, device):
        fill(near)
        for there, here in zip(far.storages, near.storages, strict=True):
            there.zero_()
            there[moved:].copy_(here)
        for name in ("query", "key", "value"):
            getattr(far, name).copy_(getattr(near, name))
        outputs = [strategy.run(each, strategy.prepare(each)) for each in (near, far)]
        if not _alike(*outputs) or not all(
            torch.equal(_bytes(there[moved:]), _bytes(here))
            for there, here in zip(far.storages, near.storages, strict=True)
        ):
            found.append(f"{strategy.name}: not as in a small pool")
        if any(_anything(storage[:moved]) for storage in far.storages):
            found.append(f"{strategy.name}: wrote where no token lives")
    return found


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Bits: NaN equals itself."""
    return tensor.contiguous().view(torch.uint8)


def _anything(tensor: torch.Tensor) -> bool:
    """Whether any byte isn't 0, without a copy as large as the tensor."""
    return any(bool(part.any()) for part in tensor.view(torch.uint8).view(-1).split(1 << 28))


def _alike(one: object, other: object) -> bool:
    if isinstance(one, tuple):
        return all(itertools.starmap(_alike, zip(one, other, strict=True)))
    if one is None:
        return other is None
    # As bits where rows are copied; attention over other blocks may add up in another order.
    return torch.equal(_bytes(one), _bytes(other)) or torch.allclose(
        one.float(), other.float(), rtol=2e-2, atol=2e-2
    )


def blocks_beyond(case: Case, elements: int) -> int:
    """Blocks of a pool whose last ones begin behind so many elements of K."""
    per_block = case.block_size * case.num_kv_heads * case.head_dim
    return elements // per_block + place(case).num_blocks + 1


FAR = tuple(
    Case(op=op, seq_len=40, batch=2, lengths="equal", layout=layout)
    for op in ("write", "read", "attend")
    for layout in ("NHD", "HND")
)


@pytest.mark.gpu
@pytest.mark.parametrize("case", FAR, ids=lambda case: f"{case.op}-{case.layout}")
def test_every_strategy_reaches_beyond_2_to_the_31_elements_on_a_gpu(case, gpu):
    blocks = blocks_beyond(case, 1 << 31)
    # The pool, and once more what a strategy may gather or convert of it.
    needed = 2 * blocks * case.block_size * case.slot_bytes
    free = free_bytes(gpu)
    if free < needed:
        pytest.skip(f"needs {format_bytes(needed)} of GPU memory; {format_bytes(free)} are free")
    assert far_faults(case, of(case), gpu, blocks) == []


@pytest.mark.parametrize("case", [WRITE, READ], ids=lambda case: case.op)
def test_far_pools_are_checked_on_a_simulated_gpu(case):
    class Wraps(type(registry.get("write.index_put"))):
        """As a kernel whose offsets have too few bits."""

        name = "write.wraps"

        def run(self, workload, prepared):
            pool = workload.key_pool
            super().run(workload, prepared)
            pool[0].copy_(pool[-1])

    with simulated_cuda():
        assert far_faults(case, OF_TORCH, DEVICE, 300) == []
        if case.op == "write":
            found = far_faults(case, [Wraps()], DEVICE, 300)
            assert "write.wraps: wrote where no token lives" in found


@pytest.mark.parametrize("case", FAR, ids=lambda case: f"{case.op}-{case.layout}")
def test_every_strategy_of_a_cpu_does_the_same_at_the_end_of_a_pool(case, cpu):
    small = dataclasses.replace(case, seq_len=9, num_heads=2, num_kv_heads=2, head_dim=16)
    every = of(small)
    assert len(doing(small, every, cpu)) > 3
    assert far_faults(small, every, cpu, place(small).num_blocks + 50) == []


def test_blocks_beyond_a_number_of_elements_begin_behind_it():
    for case in FAR:
        first = blocks_beyond(case, 1 << 31) - place(case).num_blocks
        per_block = case.block_size * case.num_kv_heads * case.head_dim
        assert (1 << 31) < first * per_block < (1 << 31) + 2 * per_block


# Launches.


def miscounted(
    case: Case, strategies: Iterable[Strategy], device: torch.device
) -> tuple[list[str], int]:
    """Where the profiler counts other launches or waits than predicted; and of how many phases.

    Attention is assumed to be one kernel; where it is several, there are more than predicted.
    """
    found, seen = [], 0
    accelerator = TorchAccelerator(device)
    for strategy in doing(case, strategies, device):
        if strategy.name == "index.pinned":
            continue  # how often it waits depends on how far the device is
        workload = build(case, device)
        fill(workload)
        for phase in strategy.phases():
            told = foretold(strategy, case, phase, hip=torch.version.hip is not None)
            if told.counts is None:
                continue
            seen += 1
            real = counted(strategy, workload, phase, accelerator)
            ours = (real.launches, real.synchronizations)
            theirs = (told.counts.launches, told.counts.synchronizations)
            right = ours[0] >= theirs[0] if told.assumption else ours == theirs
            if real.source != "counted" or not right:
                found.append(
                    f"{strategy.name} {phase}: {ours[0]} launches and {ours[1]} waits "
                    f"{real.source}, {theirs[0]} and {theirs[1]} predicted"
                )
    return found, seen


COUNTED = grid(
    "op=write,read seq_len=37,512 layout=NHD,HND",
    "op=write,read seq_len=5 batch=3 lengths=equal",
    "op=read seq_len=37 output=given",
    "op=write,read seq_len=37 cache_dtype=fp8_e4m3 kv_scale=per_head,per_token",
    "op=attend seq_len=128 batch=4 num_heads=32 lengths=equal",
    "op=index seq_len=1,100 batch=1,3",
    "op=step seq_len=64 batch=4 num_heads=8 num_kv_heads=2 head_dim=64 num_layers=2 lengths=equal",
)


@pytest.mark.gpu
@pytest.mark.parametrize("case", COUNTED, ids=Case.label)
def test_counted_launches_are_the_predicted_ones_on_a_gpu(case, gpu):
    found, seen = miscounted(case, of(case), gpu)
    assert seen > 0
    assert found == []


@pytest.mark.parametrize("case", [*COUNTED, *GRAPHED], ids=Case.label)
def test_strategies_have_predictions_that_a_gpu_can_be_held_against(case):
    told = [foretold(each, case, "run") for each in of(case)]
    known = [each.counts for each in told if each.counts is not None]
    assert len(known) >= 2
    if case in GRAPHED:
        assert any(counts.synchronizations == 0 for counts in known)


def test_launches_are_held_against_predictions_on_a_simulated_gpu():
    class Surprises(type(registry.get("write.index_put"))):
        """Launches more on a device than is predicted."""

        name = "write.surprises"

        def run(self, workload, prepared):
            super().run(workload, prepared)
            if not isinstance(workload.key, FakeTensor):
                workload.key.add(0)

    with simulated_cuda():
        for case in (WRITE, READ, INDEX):
            found, seen = miscounted(case, OF_TORCH, DEVICE)
            assert (found, seen > 0) == ([], True)
        found, _ = miscounted(WRITE, [Surprises()], DEVICE)
    assert found == ["write.surprises run: 3 launches and 0 waits counted, 2 and 0 predicted"]


# Clocks.


def medians(
    case: Case, names: Sequence[str], device: torch.device, cache: str = "hot"
) -> dict[tuple[str, str], float]:
    """Seconds of a run, by strategy and clock, of those that were measured."""
    settings = Settings(
        device=str(device), clocks=(), cell_seconds=0.05, call_budget_s=5.0, cache=cache
    )
    bench = set_up(settings, examine(settings), lambda *_: None)
    rows = measure_case(case, registry.select(names), bench)
    return {
        (row.strategy, row.clock): row.measurement.median_s
        for row in rows
        if row.phase == "run" and row.measurement is not None
    }


_MORE = 1.25
"""What a clock may read above another that it can't be above: each has noise of its own."""


def disagreements(found: dict[tuple[str, str], float]) -> list[str]:
    """Clocks that read more than the wall clock, which holds what they measure."""
    return [
        f"{strategy}: {clock} {seconds:g} s, wall {found[strategy, 'wall']:g} s"
        for (strategy, clock), seconds in found.items()
        if clock in {"device", "enqueue"} and seconds > _MORE * found[strategy, "wall"]
    ]


@pytest.mark.gpu
@pytest.mark.parametrize("seq_len", [1, 1024, 16384])
@pytest.mark.parametrize("op", ["write", "read"])
def test_device_and_enqueue_are_within_wall_on_a_gpu(op, seq_len, gpu):
    names = [f"{op}.indexing", f"{op}.index_{'put' if op == 'write' else 'select'}", f"{op}.triton"]
    found = medians(Case(op=op, seq_len=seq_len), names, gpu)
    assert {clock for _, clock in found} >= {"wall", "enqueue", "device"}
    assert disagreements(found) == []


@pytest.mark.gpu
def test_cold_caches_are_slower_than_hot_ones_on_a_gpu(gpu):
    one = Case(op="read", seq_len=64)
    cache = last_level_cache_bytes(gpu, None)
    if cache is None:
        pytest.skip("this GPU doesn't say how large its last-level cache is")
    # Half of the cache, what is read and what is written: a large part of it can be hot.
    case = dataclasses.replace(one, seq_len=max(64, 64 * cache // (2 * one.nbytes)))
    names = ["read.index_select", "read.triton"]
    hot, cold = (medians(case, names, gpu, state) for state in ("hot", "cold"))
    for name in names:
        assert cold[name, "device"] > hot[name, "device"]


def test_clocks_are_held_against_each_other_on_a_simulated_gpu(monkeypatch):
    monkeypatch.setattr(bandwidth, "_GPU_BYTES", 1 << 12)
    with simulated_cuda():
        found = medians(READ, ["read.gather"], DEVICE)
        cold = medians(READ, ["read.gather"], DEVICE, "cold")
    assert {clock for _, clock in found} == {"wall", "enqueue", "device", "graph"}
    assert {clock for _, clock in cold} == {"wall", "enqueue", "device"}
    assert disagreements({("a", "wall"): 1.0, ("a", "device"): 1.3, ("a", "graph"): 9.0}) == [
        "a: device 1.3 s, wall 1 s"
    ]


# The sanitizer.


def sanitizer() -> str | None:
    """Where compute-sanitizer is, if it is here: on the path, or in the CUDA toolkit."""
    toolkits = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"]
    places = [Path(each) / "bin" for each in toolkits if each]
    return shutil.which("compute-sanitizer") or next(
        (found for each in places if (found := shutil.which("compute-sanitizer", path=each))), None
    )


_ERROR_FOUND = 86
"""The exit code by which it says that it found one: none of kvbench's own."""
TOOLS = {
    # Out of bounds and misaligned accesses, of every kernel of ours.
    "memcheck": "op=write,read,attend",
    # Races in shared memory: of the kernels that have some.
    "racecheck": "op=attend",
}
_TINY = ("seq_len=21", "batch=2", "num_heads=4", "num_kv_heads=2", "block_size=8", "dtype=fp16")


def sanitized(
    program: str, tool: str, device: str, *patterns: str
) -> subprocess.CompletedProcess[str]:
    """A check of a few tiny cases under a tool of compute-sanitizer's."""
    options = itertools.chain.from_iterable(("-a", axis) for axis in (TOOLS[tool], *_TINY))
    chosen = itertools.chain.from_iterable(("-s", pattern) for pattern in patterns)
    command = [
        *(program, "--tool", tool, "--error-exitcode", str(_ERROR_FOUND)),
        *("--target-processes", "application-only", "--print-limit", "20"),
        *(sys.executable, "-m", "kvbench", "check", "--device", device, *options, *chosen),
    ]
    # Each tensor has an allocation of its own: what lies beyond one is not another's.
    alone = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    return subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, **alone}
    )


@pytest.mark.gpu
@pytest.mark.parametrize("tool", TOOLS)
def test_the_sanitizer_finds_nothing_in_our_kernels(tool, gpu):
    if gpu.type != "cuda" or torch.version.hip:
        pytest.skip("compute-sanitizer is for NVIDIA GPUs")
    program = sanitizer()
    if program is None:
        pytest.skip("compute-sanitizer is not installed: it comes with the CUDA toolkit")
    done = sanitized(program, tool, "cuda", "*.triton", "*.cuda")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "SUMMARY: 0 " in done.stdout + done.stderr  # of errors, or of hazards


_STAND_IN = """#!{python}
import os, sys
tool, *options = sys.argv[1:]
at = options.index(sys.executable)
print("========= ERROR SUMMARY: 0 errors", tool, *options[:at], flush=True)
if os.environ.get("FINDS"):
    sys.exit(int(options[options.index("--error-exitcode") + 1]))
os.execv(sys.executable, options[at:])
"""


@pytest.fixture
def stand_in(tmp_path, monkeypatch) -> str:
    """A program that takes the sanitizer's options, and runs what it is given."""
    path = tmp_path / "compute-sanitizer"
    path.write_text(_STAND_IN.format(python=sys.executable))
    path.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    return str(path)


def test_what_the_sanitizer_runs_is_a_check_that_passes(stand_in):
    assert sanitizer() == stand_in
    done = sanitized(stand_in, "memcheck", "cpu", "*.indexing", "*.sdpa_indexing")
    assert done.returncode == 0, done.stderr
    assert "--tool memcheck" in done.stdout
    for op in ("write", "read"):
        assert f"{op}.indexing" in done.stdout


def test_what_the_sanitizer_finds_is_told_from_what_kvbench_finds(stand_in, monkeypatch):
    monkeypatch.setenv("FINDS", "1")
    assert sanitized(stand_in, "racecheck", "cpu").returncode == _ERROR_FOUND
