"""The bench of a run, set up on its device: clocks, floors, the speed of a copy."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from kvbench.devices import make_current
from kvbench.diagnosis import diagnose
from kvbench.environment import fingerprint
from kvbench.errors import unknown
from kvbench.results import CacheState, CopyBandwidth, Environment, Finding
from kvbench.strategies.base import Strategy
from kvbench.sweep.measure import Bench, Sampler, options
from kvbench.timing.accelerator import TorchAccelerator
from kvbench.timing.bandwidth import measure_copy_bandwidth
from kvbench.timing.cache import Flush, last_level_cache_bytes
from kvbench.timing.clocks import (
    Clock,
    Floor,
    WallClock,
    clocks_for,
    empty_launch,
    floor,
    floors,
)
from kvbench.timing.rounds import StoppingRule

OnStep = Callable[[Strategy | None, str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How cases are measured. It can be handed to another process."""

    device: str
    clocks: tuple[str, ...]
    cell_seconds: float
    call_budget_s: float
    cache: CacheState

    def options(self) -> tuple[str, ...]:
        """The options of `kvbench run` that give these settings."""
        return options(self.cache, self.cell_seconds, self.call_budget_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What was found out about a device before anything was measured on it."""

    environment: Environment
    copy_bandwidth: CopyBandwidth
    cache_bytes: int | None
    """The last-level cache."""
    floors: dict[str, Floor]
    launch_floor_s: float
    findings: tuple[Finding, ...] | None = None
    """As RunInfo's; None from the code of another tree that knows of none (`kvbench ab`)."""


def select_clocks(device: torch.device, names: tuple[str, ...]) -> tuple[Clock, ...]:
    """The clocks of a device that are named, the wall clock first in any case; all if none is.

    Raises:
        InputError: The device has no clock of that name.
    """
    known = {clock.name: clock for clock in clocks_for(device)}
    for name in names:
        if name not in known:
            raise unknown(f"clock of {device}:", name, known)
    # The wall clock is always there: rankings and comparisons are made of it.
    return tuple(c for name, c in known.items() if not names or name in {"wall", *names})


def examine(settings: Settings) -> Machine:
    """Find out about the device: who it is, how fast it copies, what an empty call takes."""
    device = torch.device(settings.device)
    make_current(device)
    environment = fingerprint(device)
    findings = diagnose(str(device), torch.get_num_threads())  # before this process makes any load
    bandwidth = measure_copy_bandwidth(device)
    return Machine(
        environment=environment,
        copy_bandwidth=bandwidth,
        cache_bytes=last_level_cache_bytes(device, environment.last_level_cache_bytes),
        floors=floors(select_clocks(device, settings.clocks), device),
        launch_floor_s=floor(WallClock(device), empty_launch(device)).call_s,
        findings=findings,
    )


def set_up(
    settings: Settings, machine: Machine, on_step: OnStep, sampler: Sampler | None = None
) -> Bench:
    """The bench that cases are measured with.

    Args:
        settings: How to measure.
        machine: What was found out about the device.
        on_step: Told of each step, before what a strategy does in it.
        sampler: Who decides whose turn it is; rounds of this process's subjects alone if None.
    """
    device = torch.device(settings.device)
    make_current(device)
    return Bench(
        device=device,
        clocks=select_clocks(device, settings.clocks),
        floors_s=machine.floors,
        rule=StoppingRule(cell_seconds=settings.cell_seconds),
        call_budget_s=settings.call_budget_s,
        copy_bytes_per_s=machine.copy_bandwidth.bytes_per_s,
        cache=settings.cache,
        cache_bytes=machine.cache_bytes,
        flush=Flush(device, machine.cache_bytes) if settings.cache == "cold" else None,
        accelerator=None if device.type == "cpu" else TorchAccelerator(device),
        on_step=on_step,
        sampler=sampler,
    )
