"""Ways of measuring a call. Each says what it measured by its name."""

import itertools
import time
from collections.abc import Callable
from typing import Protocol

import torch

from kvbench.devices import synchronize

_DECIMALS = 13
"""A tenth of a picosecond: finer than a nanosecond clock over any number of calls we make."""


class Clock(Protocol):
    """One way of measuring a call."""

    name: str

    def sample(self, call: Callable[[], object], calls: int) -> float:
        """Seconds per call, as the mean of so many calls in a row."""
        ...


class WallClock:
    """Host time around the calls and one synchronisation at their end, per call.

    With one call a sample it holds a whole synchronisation; with many, that is shared, and the
    longer of the host's and the device's work remains.
    """

    name = "wall"

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


def nothing() -> None:
    """The empty call whose time is a clock's floor."""


def floor(clock: Clock, *, samples: int = 25, calls: int = 1000) -> float:
    """The clock's time for an empty call, in seconds: the median of several samples."""
    clock.sample(nothing, calls)
    times = sorted(clock.sample(nothing, calls) for _ in range(samples))
    return times[samples // 2]
