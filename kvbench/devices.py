"""Devices through torch's device-neutral API: CUDA, ROCm and XPU alike, and the CPU."""

import functools
from pathlib import Path

import psutil
import torch

from kvbench.errors import InputError

_KINDS = ("cuda", "xpu")
"""Accelerators with the events, profiler and memory figures that are needed; ROCm is "cuda"."""


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
    if device.type != "cpu":
        # Triton, events and graph capture work on the current device, whatever the tensors say.
        torch.accelerator.set_device_index(device.index)
    return device


def synchronize(device: torch.device) -> None:
    """Wait until the device has done all that was handed to it. A CPU always has."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def free_bytes(device: torch.device) -> int:
    """Memory that new tensors can take on the device."""
    if device.type == "cpu":
        return int(psutil.virtual_memory().available)
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
