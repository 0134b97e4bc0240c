"""The fingerprint of the machine and the software that a run is measured on."""

import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path

import cpuinfo
import psutil
import torch

import kvbench
from kvbench.devices import cpu_cache_bytes
from kvbench.diagnosis_gpu import gpu_facts
from kvbench.results import Environment

_CPU = Path("/sys/devices/system/cpu/cpu0")


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="ascii").strip()
    except OSError:
        return None  # not Linux, or a container without it


def _git(*arguments: str) -> str | None:
    try:
        done = subprocess.run(  # noqa: S603 - fixed arguments
            ["git", *arguments],  # noqa: S607 - whichever git the user has
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            check=True,
            timeout=10,
        )
    except (OSError, subprocess.SubprocessError):
        return None  # no git, or an installed package rather than a checkout
    return done.stdout.strip()


def _installed(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _runtime() -> str:
    if torch.version.hip:
        return f"ROCm {torch.version.hip}"
    return f"CUDA {torch.version.cuda}" if torch.version.cuda else "unknown"


def fingerprint(device: torch.device) -> Environment:
    """The environment of a run on `device`. It names no user, host or path."""
    cpu = str(cpuinfo.get_cpu_info().get("brand_raw") or platform.processor() or "unknown")
    on_cpu = device.type == "cpu"
    properties = None if on_cpu else torch.get_device_module(device).get_device_properties(device)
    # Only if this very file is in it: a package may be installed inside another checkout.
    ours = _git("ls-files", "--error-unmatch", Path(__file__).name) is not None
    commit = _git("rev-parse", "HEAD") if ours else None
    return Environment(
        kvbench=kvbench.__version__,
        git_commit=commit,
        git_dirty=None if commit is None else bool(_git("status", "--porcelain", "--", ":/")),
        python=platform.python_version(),
        torch=str(torch.__version__),  # a str subclass that no encoder knows
        triton=_installed("triton"),
        os=platform.system(),
        architecture=platform.machine(),
        cpu=cpu,
        usable_cpus=len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else psutil.cpu_count() or 1,
        torch_threads=torch.get_num_threads(),
        memory_bytes=int(psutil.virtual_memory().total),
        last_level_cache_bytes=cpu_cache_bytes(),
        cpu_governor=_read(_CPU / "cpufreq" / "scaling_governor"),
        device=str(device),
        device_name=cpu if properties is None else str(properties.name),
        device_memory_bytes=None if properties is None else int(properties.total_memory),
        device_runtime=None if on_cpu else _runtime(),
        gpu=gpu_facts(str(device)),
    )
