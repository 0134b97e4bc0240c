"""The clocks of an accelerator, on a simulated one whose times are known."""

import itertools
import time

import pytest
import torch

from kvbench.results import LaunchCounts
from kvbench.timing.accelerator import Activity, TorchAccelerator, Trace
from kvbench.timing.clocks import (
    CALLS_PER_GRAPH,
    QUEUE_LAUNCHES,
    ClockError,
    DeviceClock,
    EnqueueClock,
    EventClock,
    GraphClock,
    WallClock,
    _device_clock,
    clocks_for,
    empty_launch,
    floors,
)


def launches(kernels, synchronizations=0):
    return LaunchCounts(
        kernels=kernels, memcpys=0, synchronizations=synchronizations, source="predicted"
    )


class Simulated:
    """A device that runs each call for a known time, and a host that never waits unless told."""

    def __init__(self, busy_s=1e-4, *, captures=True, event_s=None):
        self.busy_s = busy_s
        self.captures = captures
        self.event_s = event_s
        self.calls = 0
        self.synchronizations = 0

    def call(self):
        self.calls += 1

    def synchronize(self):
        self.synchronizations += 1

    def between_events_s(self, call):
        call()
        return self.event_s

    def profile(self, call):
        before = self.calls
        call()
        starts = [n * self.busy_s for n in range(self.calls - before)]
        return Trace(tuple(Activity("kernel", s, s + self.busy_s) for s in starts), 0)

    def capture(self, call):
        return call if self.captures else lambda: None


def test_busy_time_is_the_union_of_intervals():
    trace = Trace(
        (
            Activity("a", 0.0, 2.0),
            Activity("b", 1.0, 3.0),  # overlaps a
            Activity("c", 1.5, 1.7),  # within both
            Activity("Memcpy HtoD", 5.0, 6.0),
        ),
        0,
    )
    assert trace.busy_s() == 4.0
    assert [a.is_memcpy for a in trace.activities] == [False, False, False, True]
    assert Trace((), 0).busy_s() == 0.0


def test_the_device_clock_gives_busy_time_per_call():
    device = Simulated(busy_s=2e-5)
    assert DeviceClock(device).sample(device.call, 7) == pytest.approx(2e-5)
    assert device.calls == 7


def test_the_device_clock_refuses_a_trace_without_work():
    with pytest.raises(ClockError, match="saw no work"):
        DeviceClock(Simulated()).sample(lambda: None, 3)


def test_events_divide_by_the_calls():
    device = Simulated(event_s=3e-4)
    assert EventClock(device).sample(device.call, 3) == pytest.approx(1e-4)


@pytest.mark.parametrize("event_s", [-1e-6, 0.0])
def test_a_negative_event_time_is_refused_not_clamped(event_s):
    device = Simulated(event_s=event_s)
    with pytest.raises(ClockError, match="expected more than 0"):
        EventClock(device).sample(device.call, 1)


def test_the_enqueue_clock_does_not_time_the_wait():
    class Slow(Simulated):
        def synchronize(self):
            time.sleep(0.02)

    device = Slow()
    wall_s = time.perf_counter()
    sample = EnqueueClock(device).sample(device.call, 1)
    assert sample < (time.perf_counter() - wall_s) / 2


def test_a_queue_is_never_filled():
    clock = EnqueueClock(Simulated())
    assert clock.most_calls(launches(7)) * 7 <= QUEUE_LAUNCHES
    assert clock.most_calls(launches(QUEUE_LAUNCHES)) == 1
    assert "would fill the queue" in clock.refuses(launches(1024))
    assert clock.refuses(launches(7)) is None


def test_a_call_that_waits_or_is_not_known_is_enqueued_alone():
    # A second call would wait for the work of the first.
    clock = EnqueueClock(Simulated())
    assert clock.most_calls(launches(7, synchronizations=1)) == 1
    assert clock.most_calls(None) == 1


def test_a_trace_is_kept_short():
    clock = DeviceClock(Simulated())
    assert clock.most_calls(launches(7)) * 7 <= QUEUE_LAUNCHES
    assert "32,768 launches" in clock.refuses(launches(32768))
    assert clock.refuses(launches(1024)) is None


def test_a_graph_has_whole_graphs_of_calls():
    assert GraphClock(Simulated()).least_calls == CALLS_PER_GRAPH


def test_where_the_profiler_sees_nothing_events_stand_in(monkeypatch, cpu):
    class Blind(Simulated):
        def profile(self, call):
            call()
            return Trace((), 0)

    assert _device_clock(cpu, Blind()).name == "events"
    seeing = Simulated()
    monkeypatch.setattr("kvbench.timing.clocks.empty_launch", lambda _: seeing.call)
    assert _device_clock(cpu, seeing).name == "device"


def test_a_graph_is_captured_once_per_call_and_replayed_whole():
    device = Simulated()
    clock = GraphClock(device)
    clock.sample(device.call, 1)
    captured = device.calls
    clock.sample(device.call, CALLS_PER_GRAPH + 1)
    assert device.calls - captured == 2 * CALLS_PER_GRAPH


def test_a_graph_that_captured_nothing_is_refused():
    device = Simulated(captures=False)
    with pytest.raises(ClockError, match="holds no work"):
        GraphClock(device).sample(device.call, 1)


def test_a_call_that_cannot_be_captured_is_refused_in_words():
    class Broken(Simulated):
        def capture(self, _):
            raise RuntimeError("operation not permitted when stream is capturing")

    with pytest.raises(ClockError, match="can't be captured: operation not permitted"):
        GraphClock(Broken()).sample(lambda: None, 1)


def test_a_call_that_waits_cannot_be_captured():
    waits = LaunchCounts(kernels=6, memcpys=1, synchronizations=1, source="predicted")
    assert "waits for the device 1 time(s)" in GraphClock(Simulated()).refuses(waits)


def test_a_cpu_has_the_wall_clock_alone(cpu):
    clocks = clocks_for(cpu)
    assert [clock.name for clock in clocks] == ["wall"]
    found = floors(clocks, cpu)
    assert list(found) == ["wall"]
    assert 0 < found["wall"].call_s < found["wall"].at(1)


def test_an_empty_call_measures_as_a_bare_loop_does(cpu):
    # The product's own cost in the timed region: within 100 ns of a bare perf_counter_ns loop, the
    # medians of both taken in turn.
    def nothing():
        pass

    def bare(calls):
        start = time.perf_counter_ns()
        for _ in itertools.repeat(None, calls):
            nothing()
        return (time.perf_counter_ns() - start) * 1e-9 / calls

    clock = WallClock(cpu)
    pairs = [(clock.sample(nothing, 1000), bare(1000)) for _ in range(51)]
    difference = sorted(ours - theirs for ours, theirs in pairs)[25]
    assert abs(difference) < 100e-9


def test_the_least_launch_runs_anywhere(cpu):
    assert torch.equal(empty_launch(cpu)(), torch.ones(1))


@pytest.mark.gpu
def test_the_clocks_of_a_gpu_agree_where_they_must(gpu):
    accelerator = TorchAccelerator(gpu)
    large = torch.zeros(1 << 26, device=gpu)
    call = large.add_
    device_s = DeviceClock(accelerator).sample(lambda: call(1.0), 10)
    wall_s = WallClock(gpu).sample(lambda: call(1.0), 10)
    enqueue_s = EnqueueClock(accelerator).sample(lambda: call(1.0), 10)
    # A large kernel bounds the wall clock; handing it over is far quicker.
    assert 0.5 * wall_s < device_s < 1.1 * wall_s
    assert enqueue_s < wall_s
    for clock in clocks_for(gpu):
        assert clock.sample(empty_launch(gpu), 16) > 0


def test_the_profiler_is_read_on_any_device(cpu):
    # On a CPU there is nothing on a device to see, and nothing to wait for.
    trace = TorchAccelerator(cpu).profile(lambda: torch.ones(3) + 1)
    assert trace == Trace((), 0)
