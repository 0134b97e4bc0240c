"""The GPU's path on a machine without one: torch's events, profiler, graphs, on a simulated device.

Then whole cases of strategies that are made of torch's ops, by every clock.
"""

import sys

import pytest
import torch
from called import call
from simulated_cuda import DEVICE, simulated_cuda

from kvbench import devices
from kvbench.cases import Case
from kvbench.errors import InputError
from kvbench.store import load
from kvbench.strategies import registry
from kvbench.strategies.base import Strategy
from kvbench.sweep import calibration
from kvbench.sweep.bench import Settings, examine, set_up
from kvbench.sweep.launches import counted, predicted
from kvbench.sweep.measure import measure_case
from kvbench.timing import bandwidth
from kvbench.timing.accelerator import TorchAccelerator
from kvbench.timing.cache import FLUSH_FACTOR, Flush, last_level_cache_bytes
from kvbench.timing.clocks import (
    CALLS_PER_GRAPH,
    ClockError,
    DeviceClock,
    EventClock,
    GraphClock,
    clocks_for,
    empty_launch,
    floors,
)
from kvbench.timing.rounds import StoppingRule
from kvbench.workload import build

SMALL = {"num_heads": 2, "num_kv_heads": 2, "head_dim": 8, "block_size": 4}
WRITE, READ, INDEX = (
    Case(op=op, seq_len=13, **({} if op == "index" else SMALL)) for op in ("write", "read", "index")
)
CASES = {case.op: case for case in (WRITE, READ, INDEX)}


@pytest.fixture
def cuda():
    with simulated_cuda() as gpu:
        yield gpu


@pytest.fixture
def ones(cuda):
    """A tensor of the device that a test's calls change; making it has been forgotten."""
    made = torch.ones(8, device=DEVICE)
    cuda.activities.clear()
    cuda.waits.clear()
    cuda.log.clear()
    return made


# Devices.


def test_the_device_is_found_named_and_made_the_current_one(cuda):
    cuda.count = 2
    assert devices.available() == ("cuda:0", "cuda:1", "cpu")
    assert devices.resolve("auto") == devices.resolve("cuda") == DEVICE
    assert devices.resolve("cuda:1") == torch.device("cuda:1")
    assert cuda.current == 1
    with pytest.raises(InputError, match=r"'cuda:2' is not here .*: cuda:0, cuda:1, cpu$"):
        devices.resolve("cuda:2")


def test_free_memory_is_what_the_driver_has_and_what_torch_holds_unused(cuda):
    assert devices.free_bytes(DEVICE) == cuda.free + (2 << 20)


def test_to_wait_is_to_wait_for_the_device(cuda, cpu):
    devices.synchronize(cpu)
    assert cuda.waits == []
    devices.synchronize(DEVICE)
    TorchAccelerator(DEVICE).synchronize()
    assert [name for name, _ in cuda.waits] == ["cudaDeviceSynchronize"] * 2


# Caches, and the copy.


@pytest.mark.parametrize("l2", [None, 50 << 20])
def test_the_last_level_cache_is_what_the_driver_says(cuda, l2):
    cuda.l2 = l2
    assert last_level_cache_bytes(DEVICE, 1) == l2


def test_a_flush_is_one_kernel_over_more_than_the_cache(cuda):
    flush = Flush(DEVICE, cuda.l2)
    cuda.activities.clear()
    flush()
    assert [name for name, _, _ in cuda.activities] == ["add_"]
    assert flush._buffer.numel() == FLUSH_FACTOR * cuda.l2
    assert flush._buffer.device == DEVICE


@pytest.mark.parametrize("odd", [0, 3])
def test_the_copy_of_a_device_is_the_driver_s_or_a_kernel_s(cuda, monkeypatch, odd):
    monkeypatch.setattr(bandwidth, "_GPU_BYTES", (1 << 12) + odd)
    found = bandwidth.measure_copy_bandwidth(DEVICE)
    assert found.how in {"torch copy_", "an elementwise kernel"}
    assert found.nbytes == 2 << 12
    assert found.bytes_per_s > 0
    assert {"Memcpy DtoD", "add"} <= {name for name, _, _ in cuda.activities}


# Events.


def test_events_are_recorded_around_the_call(cuda, ones):
    cuda.skew_s = 2.0  # torch gives milliseconds
    accelerator = TorchAccelerator(DEVICE)
    assert 2 < accelerator.between_events_s(lambda: ones.add_(1)) < 20
    assert ones.tolist() == [2.0] * 8


def test_an_event_that_comes_before_the_one_before_it_is_a_fault_of_the_clock(cuda, ones):
    cuda.skew_s = -1.0
    with pytest.raises(ClockError, match="expected more than 0"):
        EventClock(TorchAccelerator(DEVICE)).sample(lambda: ones.add_(1), 2)


# The profiler.


def test_the_profiler_s_trace_has_the_device_s_work_and_the_call_s_own_waits(ones):
    trace = TorchAccelerator(DEVICE).profile(lambda: (ones.add_(1), ones[0].item()))
    assert [each.name for each in trace.activities] == ["add_", "Memcpy DtoH"]
    assert [each.is_memcpy for each in trace.activities] == [False, True]
    # Not what the profiler waits for, before the call and after it.
    assert trace.synchronizations == 1
    assert 0 < trace.busy_s() < 1


def test_a_span_that_the_profiler_shows_on_the_device_is_no_work(ones):
    assert TorchAccelerator(DEVICE).profile(lambda: ones.view(2, 4)).activities == ()


def test_a_blind_profiler_sees_nothing_and_events_stand_in(cuda, ones):
    cuda.blind = True
    accelerator = TorchAccelerator(DEVICE)
    with pytest.raises(ClockError, match="saw no work"):
        DeviceClock(accelerator).sample(lambda: ones.add_(1), 1)
    assert [c.name for c in clocks_for(DEVICE)] == ["wall", "enqueue", "events", "graph"]


def test_a_profiler_that_does_not_start_is_stood_in_for_too(cuda):
    cuda.unprofiled = "CUPTI_ERROR_INSUFFICIENT_PRIVILEGES"
    assert [c.name for c in clocks_for(DEVICE)] == ["wall", "enqueue", "events", "graph"]


# Graphs.


def test_a_call_is_warmed_up_on_a_stream_of_its_own_before_it_is_captured(cuda, ones):
    replay = TorchAccelerator(DEVICE).capture(lambda: ones.add_(1))
    assert ones.tolist() == [4.0] * 8  # warmed up three times; captured, not run
    assert cuda.log == [
        ("1 waits for 0", 0),
        *[("add_", 1)] * 3,
        ("0 waits for 1", 0),
        ("cudaDeviceSynchronize", 0),
        ("add_", 2),
    ]
    replay()
    assert ones.tolist() == [5.0] * 8
    assert cuda.log[-1] == ("add_", 0)


def test_the_graph_clock_replays_whole_graphs(cuda, ones):
    def call():
        return ones.add_(1)

    clock = GraphClock(TorchAccelerator(DEVICE))
    clock.sample(call, 1)
    before = len(cuda.activities)
    assert clock.sample(call, CALLS_PER_GRAPH + 1) > 0
    assert len(cuda.activities) - before == 2 * CALLS_PER_GRAPH


def test_a_graph_that_holds_nothing_is_refused(cuda, ones):
    cuda.forgetful = True
    with pytest.raises(ClockError, match="holds no work"):
        GraphClock(TorchAccelerator(DEVICE)).sample(lambda: ones.add_(1), 1)


def test_a_call_that_waits_is_refused_by_the_capture(ones):
    with pytest.raises(ClockError, match="can't be captured: CUDA error: operation not permitted"):
        GraphClock(TorchAccelerator(DEVICE)).sample(ones[0].item, 1)


def test_a_capture_that_fails_when_it_ends_is_refused_in_its_words(cuda, ones):
    cuda.uncapturable = "CUDA error: capture invalidated"
    with pytest.raises(ClockError, match="can't be captured: CUDA error: capture invalidated"):
        GraphClock(TorchAccelerator(DEVICE)).sample(lambda: ones.add_(1), 1)


def test_a_device_without_graphs_has_no_graph_clock(monkeypatch):
    with simulated_cuda():
        monkeypatch.delattr(torch.cuda, "CUDAGraph")
        assert [clock.name for clock in clocks_for(DEVICE)] == ["wall", "enqueue", "device"]


@pytest.mark.usefixtures("cuda")
def test_every_clock_of_the_device_has_a_floor():
    clocks = clocks_for(DEVICE)
    found = floors(clocks, DEVICE)
    assert list(found) == ["wall", "enqueue", "device", "graph"]
    assert all(each.call_s > 0 for each in found.values())
    for clock in clocks:
        assert clock.sample(empty_launch(DEVICE), 16) > 0


# Launches.

OF_TORCH = (
    *("write.indexing", "write.index_put", "write.index_copy", "write.scatter"),
    *("write.block_slices", "write.loop", "write.streams"),
    *("read.indexing", "read.index_select", "read.gather", "read.blocks", "read.loop"),
    *("read.block_slices", "read.streams"),
    *("index.torch", "index.numpy", "index.loop", "index.pinned"),
)
"""Strategies made of torch's ops alone."""
PHASES = [(name, phase) for name in OF_TORCH for phase in registry.get(name).phases()]


@pytest.mark.usefixtures("cuda")
@pytest.mark.parametrize(("name", "phase"), PHASES)
def test_launches_are_counted_and_are_as_many_as_predicted(name, phase):
    strategy = registry.get(name)
    case = CASES[strategy.op]
    told = predicted(strategy, case, phase)
    seen = counted(strategy, build(case, DEVICE), phase, TorchAccelerator(DEVICE))
    assert (seen.source, told.source) == ("counted", "predicted")
    assert (seen.launches, seen.synchronizations) == (told.launches, told.synchronizations)


def test_where_the_profiler_may_not_look_launches_are_predicted(cuda):
    cuda.blind = True
    strategy = registry.get("write.indexing")
    seen = counted(strategy, build(WRITE, DEVICE), "run", TorchAccelerator(DEVICE))
    assert seen == predicted(strategy, WRITE, "run")


@pytest.mark.usefixtures("cuda")
def test_a_phase_that_launches_nothing_is_counted_as_that():
    class Idle(Strategy):
        name = "write.idle"
        op = "write"
        summary = "does nothing"

        def run(self, workload, prepared):
            del workload, prepared

    seen = counted(Idle(), build(WRITE, DEVICE), "run", TorchAccelerator(DEVICE))
    assert (seen.launches, seen.source) == (0, "counted")


# Whole cases.


@pytest.mark.usefixtures("small_buffers")
def test_a_process_that_measures_has_its_device_as_the_current_one():
    # A worker is started anew: its first device is current, whichever the run has.
    settings = Settings(
        device="cuda:1", clocks=(), cell_seconds=0.005, call_budget_s=5.0, cache="hot"
    )
    with simulated_cuda(count=2) as gpu:
        machine = examine(settings)
        assert gpu.current == 1
        gpu.current = 0
        set_up(settings, machine, lambda *_: None)
        assert gpu.current == 1


def measured(op: str, *names: str, cache: str = "hot", clocks: tuple[str, ...] = ()):
    settings = Settings(
        device=str(DEVICE),
        clocks=clocks,
        cell_seconds=0.005,
        call_budget_s=5.0,
        cache=cache,
    )
    bench = set_up(settings, examine(settings), lambda *_: None)
    rows = measure_case(CASES[op], [registry.get(name) for name in names], bench)
    return {(row.strategy, row.phase, row.clock): row for row in rows}


@pytest.fixture
def small_buffers(monkeypatch):
    monkeypatch.setattr(bandwidth, "_GPU_BYTES", 1 << 12)


@pytest.mark.usefixtures("cuda", "small_buffers")
@pytest.mark.parametrize(
    ("op", "capturable", "waits"),
    [("write", "write.index_put", "write.indexing"), ("read", "read.gather", "read.indexing")],
)
def test_a_case_has_a_row_for_each_clock(op, capturable, waits):
    rows = measured(op, capturable, waits)
    for name in (capturable, waits):
        for clock in ("wall", "enqueue", "device"):
            row = rows[name, "run", clock]
            assert (row.status, row.reason) == ("ok", None)
            assert row.launches.source == "counted"
            assert row.measurement.floor_s > 0
        wall, device = (rows[name, "run", c].measurement for c in ("wall", "device"))
        assert device.median_s <= wall.median_s
        assert rows[name, "run", "enqueue"].measurement.copy_share is None
        assert wall.copy_share > 0
    assert rows[capturable, "run", "graph"].status == "ok"
    row = rows[waits, "run", "graph"]
    assert row.status == "unsupported"
    assert "waits for the device" in row.reason
    row = rows[capturable, "prepare", "graph"]
    assert row.reason == "graph clock: a replay would not read the scheduler's lists again"


@pytest.mark.usefixtures("cuda", "small_buffers")
@pytest.mark.parametrize("cache", ["cold", "rotated"])
def test_caches_that_are_not_hot_leave_the_graph_clock_out(cache):
    rows = measured("write", "write.index_put", cache=cache)
    for clock in ("wall", "enqueue", "device"):
        row = rows["write.index_put", "run", clock]
        assert (row.status, row.cache) == ("ok", cache)
        if cache == "cold":
            assert row.measurement.calls_per_sample == 1
    assert "its caches are hot" in rows["write.index_put", "run", "graph"].reason


def test_a_graph_that_replays_nothing_costs_its_own_row_alone(cuda, small_buffers, monkeypatch):
    del small_buffers

    def forgets(settings, machine, on_step, known=set_up):
        cuda.forgetful = True  # from then on: an empty launch has been captured
        return known(settings, machine, on_step)

    monkeypatch.setattr(sys.modules[__name__], "set_up", forgets)
    rows = measured("write", "write.index_put")
    assert rows["write.index_put", "run", "wall"].status == "ok"
    row = rows["write.index_put", "run", "graph"]
    assert row.status == "unsupported"
    assert "holds no work" in row.reason


@pytest.mark.usefixtures("small_buffers")
def test_without_the_right_to_profile_there_are_events_and_predicted_launches():
    with simulated_cuda(blind=True):
        rows = measured("write", "write.index_put", clocks=("events",))
    assert {clock for _, _, clock in rows} == {"wall", "events"}
    assert {row.status for row in rows.values()} == {"ok"}
    assert {row.launches.source for row in rows.values()} == {"predicted"}


@pytest.mark.usefixtures("small_buffers")
def test_a_case_that_does_not_fit_the_device_is_not_begun():
    with simulated_cuda(free=0, reserved=0, allocated=0):
        (row,) = measured("write", "write.index_put").values()
    assert row.status == "does not fit"


# Whole commands.


@pytest.mark.usefixtures("cuda", "small_buffers")
def test_a_run_on_a_gpu_is_measured_ranked_and_plotted_by_all_of_its_clocks(
    monkeypatch, capsys, tmp_path
):
    folder = tmp_path / "run"
    axes = [f"{name}={value}" for name, value in SMALL.items()]
    options = ["--in-process", "--cell-seconds", "0.005", "--device", "cuda", "-o", folder]
    for axis in ("op=write", "seq_len=4,13", *axes):
        options += ["-a", axis]
    for name in ("write.index_put", "write.indexing"):
        options += ["-s", name]
    ended = call(monkeypatch, capsys, "run", *options)
    assert ended.code == 0, ended.err
    run = load(folder)
    assert run.info.environment.device == "cuda:0"
    assert run.info.environment.device_name == "Simulated GPU"
    timed = {(row.clock, row.status) for row in run.results if row.phase == "run"}
    assert timed >= {(clock, "ok") for clock in ("wall", "enqueue", "device", "graph")}
    assert "write.index_put" in ended.out
    assert list((folder / "plots").iterdir())
    for command in ("rank", "fit"):
        assert call(monkeypatch, capsys, command, folder).code == 0


@pytest.mark.usefixtures("cuda")
def test_a_check_on_a_gpu_checks(monkeypatch, capsys):
    options = ["-a", "op=read", "-a", "seq_len=5", "-s", "read.gather", "--device", "cuda"]
    ended = call(monkeypatch, capsys, "check", *options)
    assert ended.code == 0, ended.err
    assert "cuda:0" in ended.out


@pytest.mark.usefixtures("cuda")
def test_the_trial_of_a_gpu_waits_for_the_device_in_each_call(monkeypatch):
    monkeypatch.setattr(
        calibration, "_RULE", StoppingRule(min_rounds=5, max_rounds=5, cell_seconds=1e9)
    )
    found = calibration.trial(registry.get("write.index_put"), WRITE, clocks_for(DEVICE)[0], DEVICE)
    assert found.strategy == "write.index_put"
