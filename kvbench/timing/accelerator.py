"""What the clocks need of an accelerator, as a seam: a real one, or a simulated one in tests."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from kvbench import devices


@dataclass(frozen=True, slots=True)
class Activity:
    """One interval in which the device worked."""

    name: str
    start_s: float
    end_s: float

    @property
    def is_memcpy(self) -> bool:
        """Whether it is a copy made by the driver rather than a kernel."""
        return self.name.lower().startswith("memcpy")


@dataclass(frozen=True, slots=True)
class Trace:
    """What the profiler saw of a call."""

    activities: tuple[Activity, ...]
    synchronizations: int

    def busy_s(self) -> float:
        """Seconds in which at least one activity ran: the length of the union of intervals."""
        busy, end = 0.0, float("-inf")
        for activity in sorted(self.activities, key=lambda a: a.start_s):
            busy += max(0.0, activity.end_s - max(activity.start_s, end))
            end = max(end, activity.end_s)
        return busy


class Accelerator(Protocol):
    """The operations that clocks are made of."""

    def synchronize(self) -> None:
        """Wait until the device has done all that was handed to it."""
        ...

    def between_events_s(self, call: Callable[[], object]) -> float:
        """Seconds between an event recorded before a call and one after it."""
        ...

    def profile(self, call: Callable[[], object]) -> Trace:
        """What the device did for a call."""
        ...

    def capture(self, call: Callable[[], object]) -> Callable[[], None]:
        """A graph of a call; what is returned replays it."""
        ...


_CALL = "kvbench.call"
_SYNCHRONIZATIONS = ("DeviceSynchronize", "StreamSynchronize", "EventSynchronize")


class TorchAccelerator:
    """A device through torch: CUDA, ROCm (under CUDA's names) and XPU."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._module: Any = torch.get_device_module(device)

    def synchronize(self) -> None:
        """Wait until the device has done all that was handed to it."""
        devices.synchronize(self._device)

    def between_events_s(self, call: Callable[[], object]) -> float:
        """Seconds between an event recorded before a call and one after it."""
        first = self._module.Event(enable_timing=True)
        last = self._module.Event(enable_timing=True)
        first.record()
        call()
        last.record()
        self.synchronize()
        return float(first.elapsed_time(last)) * 1e-3

    def profile(self, call: Callable[[], object]) -> Trace:
        """What the device did for a call, from torch's profiler."""
        kinds = torch.profiler.ProfilerActivity
        accelerator = getattr(kinds, self._device.type.upper())
        self.synchronize()
        with torch.profiler.profile(activities={kinds.CPU, accelerator}) as profiler:
            with torch.profiler.record_function(_CALL):
                call()
            self.synchronize()
        events = profiler.events() or []
        activities = tuple(
            Activity(e.name, e.time_range.start * 1e-6, e.time_range.end * 1e-6)
            for e in events
            if e.device_type.name != "CPU" and not e.is_user_annotation and e.name != _CALL
        )
        on_host = [e for e in events if e.device_type.name == "CPU"]
        spans = [e.time_range for e in on_host if e.name == _CALL]
        # Waits of the call alone: the profiler and this method wait as well.
        waits = sum(
            e.name.endswith(_SYNCHRONIZATIONS)
            and spans[0].start <= e.time_range.start < spans[0].end
            for e in on_host
            if spans
        )
        return Trace(activities, waits)

    def capture(self, call: Callable[[], object]) -> Callable[[], None]:
        """A graph of a call, warmed up on a side stream as torch asks for; returns its replay."""
        stream = self._module.Stream()
        stream.wait_stream(self._module.current_stream())
        with self._module.stream(stream):
            for _ in itertools.repeat(None, 3):
                call()
        self._module.current_stream().wait_stream(stream)
        self.synchronize()
        graph = self._module.CUDAGraph()
        with self._module.graph(graph):
            call()
        replay: Callable[[], None] = graph.replay
        return replay
