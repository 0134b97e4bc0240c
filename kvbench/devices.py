"""Devices through torch's device-neutral API: CUDA, ROCm and XPU alike, and the CPU."""

import functools
from dataclasses import dataclass
from pathlib import Path

import psutil
import torch

from kvbench.errors import InputError

_KINDS = ("cuda", "xpu")
"""Accelerators with the events, profiler and memory figures that are needed; ROCm is "cuda"."""


@dataclass(frozen=True, slots=True)
class _Cgroup:
    """Where Linux tells a container of its memory."""

    limit: Path
    used: Path
    stat: Path
    reclaimable: str
    """What of the used is a cache of files, that makes way for tensors."""


_V2, _V1 = Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/memory")
_CGROUPS = (
    _Cgroup(_V2 / "memory.max", _V2 / "memory.current", _V2 / "memory.stat", "inactive_file"),
    _Cgroup(
        _V1 / "memory.limit_in_bytes",
        _V1 / "memory.usage_in_bytes",
        _V1 / "memory.stat",
        "total_inactive_file",
    ),
)


def _left(group: _Cgroup) -> float:
    """Bytes that a control group leaves; infinity where there is none, or no limit."""
    try:
        limit = group.limit.read_text(encoding="ascii").strip()
        used = int(group.used.read_text(encoding="ascii"))
        lines = group.stat.read_text(encoding="ascii").splitlines()
    except OSError:
        return float("inf")
    if limit == "max":
        return float("inf")
    caches = [int(line.split()[1]) for line in lines if line.startswith(f"{group.reclaimable} ")]
    return max(int(limit) - used + sum(caches), 0)


def available() -> tuple[str, ...]:
    """The devices that tensors can live on here, accelerators first."""
    accelerators: list[str] = []
    kind = torch.accelerator.current_accelerator(check_available=True)
    if kind is not None and kind.type in _KINDS:
        accelerators = [f"{kind.type}:{i}" for i in range(torch.accelerator.device_count())]
    return (*accelerators, "cpu")


def resolve(name: str) -> torch.device:
    """The device of that name; "auto" is the first accelerator, or the CPU where there is none.

    Raises:
        InputError: No such device here.
    """
    known = available()
    if name == "auto":
        return torch.device(known[0])
    wanted = f"{name}:0" if f"{name}:0" in known else name
    if wanted not in known:
        raise InputError(
            f"device {name!r} is not here (torch {torch.__version__}); "
            f"expected one of: {', '.join(known)}"
        )
    device = torch.device(wanted)
    make_current(device)
    return device


def make_current(device: torch.device) -> None:
    """Make a device this process's current one; a process that was started anew has the first.

    Triton, events and graph capture work on the current device, whatever the tensors say.
    """
    if device.type != "cpu" and device.index is not None:
        torch.accelerator.set_device_index(device.index)


def synchronize(device: torch.device) -> None:
    """Wait until the device has done all that was handed to it. A CPU always has."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def free_bytes(device: torch.device) -> int:
    """Memory that new tensors can take on the device; in a container, what that leaves them."""
    if device.type == "cpu":
        available = int(psutil.virtual_memory().available)
        return int(min(available, *(_left(group) for group in _CGROUPS)))
    module = torch.get_device_module(device)
    free, _ = module.mem_get_info(device)
    cached = module.memory_reserved(device) - module.memory_allocated(device)
    return int(free + cached)


@functools.cache
def cpu_cache_bytes() -> int | None:
    """The size of the largest CPU cache, from sysfs; None where the kernel doesn't say."""
    sizes = []
    for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        text = path.read_text(encoding="ascii").strip()
        if text[:-1].isdigit() and text[-1] in "KM":
            sizes.append(int(text[:-1]) << {"K": 10, "M": 20}[text[-1]])
    return max(sizes, default=None)
