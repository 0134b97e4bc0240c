"""Ways of measuring a call. Each says what it measured by its name."""

import functools
import itertools
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol
from weakref import WeakKeyDictionary

import torch

from kvbench.devices import synchronize
from kvbench.errors import KvbenchError
from kvbench.results import LaunchCounts
from kvbench.timing.accelerator import Accelerator, TorchAccelerator

_DECIMALS = 13
"""A tenth of a picosecond: finer than a nanosecond clock over any number of calls we make."""

QUEUE_LAUNCHES = 512
"""Launches that a queue surely takes without making the host wait; drivers take about 1,024."""

CALLS_PER_GRAPH = 16
_MOST_TRACED = 4096


class ClockError(KvbenchError):
    """A reading that can't be true, or that this clock can't take."""


class Clock(Protocol):
    """One way of measuring a call."""

    name: str
    least_calls: int
    """The fewest calls that a sample has; a power of two."""

    def sample(self, call: Callable[[], object], calls: int) -> float:
        """Seconds per call, as the mean of so many calls in a row."""
        ...

    def refuses(self, launches: LaunchCounts) -> str | None:
        """None if it can measure a call that launches so much, else the reason why not."""
        ...

    def most_calls(self, launches: LaunchCounts | None) -> int | None:
        """The most calls of a sample if each launches so much (None: unknown); None if any."""
        ...


def _repeat(call: Callable[[], object], calls: int) -> Callable[[], None]:
    def repeated() -> None:
        for _ in itertools.repeat(None, calls):
            call()

    return repeated


class WallClock:
    """Host time around the calls and one synchronisation at their end, per call.

    With one call a sample it holds a whole synchronisation; with many, that is shared, and the
    longer of the host's and the device's work remains.
    """

    name = "wall"
    least_calls = 1

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def sample(self, call: Callable[[], object], calls: int) -> float:
        """Seconds per call, as the mean of so many calls in a row."""
        synchronize(self._device)
        rounds = itertools.repeat(None, calls)
        start = time.perf_counter_ns()
        for _ in rounds:
            call()
        synchronize(self._device)
        elapsed_ns = time.perf_counter_ns() - start
        return round(elapsed_ns / calls * 1e-9, _DECIMALS)

    def refuses(self, launches: LaunchCounts) -> str | None:  # noqa: ARG002 - it takes any call
        """Nothing."""
        return None

    def most_calls(self, launches: LaunchCounts | None) -> int | None:  # noqa: ARG002 - any
        """Any number."""
        return None


class EnqueueClock:
    """Host time to hand the work over, without waiting for it at the end.

    A full queue makes the host wait for the device, and the clock would measure that: samples are
    kept shorter than a queue, and a call that alone would fill one is not measured.
    """

    name = "enqueue"
    least_calls = 1

    def __init__(self, accelerator: Accelerator) -> None:
        self._accelerator = accelerator

    def sample(self, call: Callable[[], object], calls: int) -> float:
        """Seconds per call, as the mean of so many calls in a row."""
        self._accelerator.synchronize()
        rounds = itertools.repeat(None, calls)
        start = time.perf_counter_ns()
        for _ in rounds:
            call()
        elapsed_ns = time.perf_counter_ns() - start
        self._accelerator.synchronize()
        return round(elapsed_ns / calls * 1e-9, _DECIMALS)

    def refuses(self, launches: LaunchCounts) -> str | None:
        """A call that would fill the queue."""
        if launches.launches > QUEUE_LAUNCHES:
            return (
                f"enqueue clock: a call makes {launches.launches:,} launches and would fill the "
                f"queue; at most {QUEUE_LAUNCHES} can be told from waiting"
            )
        return None

    def most_calls(self, launches: LaunchCounts | None) -> int | None:
        """As many as a queue takes; one of a call that waits, or whose launches aren't known.

        The second call of one that waits would wait for the first one's work.
        """
        if launches is None or launches.synchronizations:
            return 1
        return max(1, QUEUE_LAUNCHES // max(launches.launches, 1))


class DeviceClock:
    """Time that the device was busy: the union of the profiler's intervals."""

    name = "device"
    least_calls = 1

    def __init__(self, accelerator: Accelerator) -> None:
        self._accelerator = accelerator

    def sample(self, call: Callable[[], object], calls: int) -> float:
        """Seconds per call, as the mean of so many calls in a row.

        Raises:
            ClockError: The profiler saw no work.
        """
        busy_s = self._accelerator.profile(_repeat(call, calls)).busy_s()
        if busy_s <= 0:
            raise ClockError("device clock: the profiler saw no work on the device")
        return round(busy_s / calls, _DECIMALS)

    def refuses(self, launches: LaunchCounts) -> str | None:
        """A call whose trace would take longer to read than the call takes to run."""
        if launches.launches > _MOST_TRACED:
            return (
                f"device clock: a call makes {launches.launches:,} launches; a trace of more than "
                f"{_MOST_TRACED:,} takes too long"
            )
        return None

    def most_calls(self, launches: LaunchCounts | None) -> int | None:
        """What keeps a trace small: each launch is an event in it."""
        return 1 if launches is None else max(1, QUEUE_LAUNCHES // max(launches.launches, 1))


class EventClock:
    """Time between two events around the calls, where the profiler can't be used.

    It includes the gaps between launches, so it is never called device time.
    """

    name = "events"
    least_calls = 1

    def __init__(self, accelerator: Accelerator) -> None:
        self._accelerator = accelerator

    def sample(self, call: Callable[[], object], calls: int) -> float:
        """Seconds per call, as the mean of so many calls in a row.

        Raises:
            ClockError: The second event is not after the first: a fault of the driver's clock.
        """
        self._accelerator.synchronize()
        elapsed_s = self._accelerator.between_events_s(_repeat(call, calls))
        if elapsed_s <= 0:
            raise ClockError(f"events clock: {elapsed_s:g} s between events; expected more than 0")
        return round(elapsed_s / calls, _DECIMALS)

    def refuses(self, launches: LaunchCounts) -> str | None:  # noqa: ARG002 - it takes any call
        """Nothing."""
        return None

    def most_calls(self, launches: LaunchCounts | None) -> int | None:  # noqa: ARG002 - any
        """Any number."""
        return None


class GraphClock:
    """Host time around the replay of a captured graph of several calls, synchronised, per call."""

    name = "graph"
    least_calls = CALLS_PER_GRAPH

    def __init__(self, accelerator: Accelerator) -> None:
        self._accelerator = accelerator
        # Kept as long as the call is: a graph holds a memory pool of its own.
        self._replays: WeakKeyDictionary[Callable[[], object], Callable[[], None]] = (
            WeakKeyDictionary()
        )

    def sample(self, call: Callable[[], object], calls: int) -> float:
        """Seconds per call; calls are rounded up to whole graphs.

        Raises:
            ClockError: The call can't be captured, or the graph holds no work.
        """
        replay = self._replay(call)
        graphs = -(-calls // CALLS_PER_GRAPH)
        self._accelerator.synchronize()
        rounds = itertools.repeat(None, graphs)
        start = time.perf_counter_ns()
        for _ in rounds:
            replay()
        self._accelerator.synchronize()
        elapsed_ns = time.perf_counter_ns() - start
        return round(elapsed_ns / (graphs * CALLS_PER_GRAPH) * 1e-9, _DECIMALS)

    def _replay(self, call: Callable[[], object]) -> Callable[[], None]:
        if call not in self._replays:
            try:
                replay = self._accelerator.capture(_repeat(call, CALLS_PER_GRAPH))
            except RuntimeError as error:
                raise ClockError(f"graph clock: the call can't be captured: {error}") from error
            if not self._accelerator.profile(replay).activities:
                raise ClockError("graph clock: the captured graph holds no work")
            self._replays[call] = replay
        return self._replays[call]

    def refuses(self, launches: LaunchCounts) -> str | None:
        """A call that waits for the device: a graph can't hold that."""
        if launches.synchronizations:
            return (
                f"graph clock: a call waits for the device {launches.synchronizations} time(s); "
                "a graph can't hold that"
            )
        return None

    def most_calls(self, launches: LaunchCounts | None) -> int | None:  # noqa: ARG002 - any
        """Any number."""
        return None


def nothing() -> None:
    """The empty call whose time is a clock's floor."""


@dataclass(frozen=True, slots=True)
class Floor:
    """A clock's time for the least that can be called, in seconds."""

    sample_s: float
    """What a sample takes beyond its calls: the two readings, a synchronisation."""
    call_s: float
    """What each call adds."""

    def at(self, calls: int) -> float:
        """Per call, in samples of so many calls."""
        return self.call_s + self.sample_s / calls


def floor(clock: Clock, call: Callable[[], object] = nothing, *, samples: int = 25) -> Floor:
    """A clock's floor, from samples of one call (or its fewest) and of many: medians of several.

    Args:
        clock: The clock.
        call: Nothing, or one empty launch for a clock that times the device's work alone.
        samples: How many of each.
    """
    few = clock.least_calls
    many = 1000 if clock.most_calls(None) is None else 64 * few
    clock.sample(call, few)
    single, shared = (
        sorted(clock.sample(call, calls) for _ in range(samples))[samples // 2]
        for calls in (few, many)
    )
    # Of one clock reading each: sample + calls * call = calls * time.
    sample_s = max(single - shared, 0.0) * few * many / (many - few)
    return Floor(sample_s, max(shared - sample_s / many, 1e-12))


def empty_launch(device: torch.device) -> Callable[[], object]:
    """The least that can be launched: a kernel that fills one element."""
    element = torch.zeros(1, device=device)
    return functools.partial(element.fill_, 1.0)


def floors(clocks: Iterable[Clock], device: torch.device) -> dict[str, Floor]:
    """The floor of each clock, by name."""
    found = {}
    for clock in clocks:
        if clock.name in {"wall", "enqueue"}:
            found[clock.name] = floor(clock)
        else:
            found[clock.name] = floor(clock, empty_launch(device), samples=5)
    return found


def _device_clock(device: torch.device, accelerator: Accelerator) -> Clock:
    """The device clock; where the profiler sees nothing (no permission), the events clock."""
    clock = DeviceClock(accelerator)
    try:
        clock.sample(empty_launch(device), 1)
    except (ClockError, RuntimeError):
        return EventClock(accelerator)
    return clock


def clocks_for(device: torch.device) -> tuple[Clock, ...]:
    """The clocks that a device has, the wall clock first. A CPU has that alone."""
    wall = WallClock(device)
    if device.type == "cpu":
        return (wall,)
    accelerator = TorchAccelerator(device)
    clocks: list[Clock] = [wall, EnqueueClock(accelerator), _device_clock(device, accelerator)]
    if hasattr(torch.get_device_module(device), "CUDAGraph"):
        clocks.append(GraphClock(accelerator))
    return tuple(clocks)
