"""What of an NVIDIA GPU makes timings untrustworthy, and what identifies it, read through NVML.

Also how a diagnosis is made (look), which kvbench.diagnosis shares. NVML is nvidia-ml-py's
module pynvml, which need not be installed: what it can't say is unknown, with the reason. What the
readings mean: https://docs.nvidia.com/deploy/nvml-api/. Nothing here sets anything.
"""

import contextlib
import importlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import Any

import psutil

from kvbench.errors import KvbenchError
from kvbench.results import Finding

Reading = tuple[str, str]
"""What a look at the machine gives: the value for people, and the advice, "" where it is fine."""


class UnreadableError(KvbenchError):
    """A reading isn't there; the message says why, `advice` what to do."""

    def __init__(
        self,
        reason: str,
        advice: str = "Find it out from outside, or trust small differences less.",
    ) -> None:
        super().__init__(reason)
        self.advice = advice


def look(subject: str, read: Callable[[], Reading]) -> Finding:
    """The finding of one look: a warning if there is advice, unknown if there is no reading."""
    try:
        value, advice = read()
    except UnreadableError as error:
        return Finding(subject, str(error), "unknown", error.advice)
    return Finding(subject, value, "warning" if advice else "fine", advice)


@dataclass(frozen=True, slots=True)
class _Gpu:
    """One GPU of NVML's."""

    nvml: ModuleType
    handle: object
    uuid: str
    """What torch calls it, with NVML's prefix: "GPU-..." or, for a slice of one, "MIG-..."."""

    def ask(self, *names: str, of: int | None = None) -> Any:  # noqa: ANN401 - int, pair or struct
        """What the first of these NVML functions says that this driver and this binding have.

        Args:
            names: The functions, the one to be preferred first.
            of: Its argument besides the handle, as which clock.

        Raises:
            UnreadableError: None of them is there, or NVML gave an error.
        """
        arguments = (self.handle,) if of is None else (self.handle, of)
        for name in names:
            function = getattr(self.nvml, name, None)
            if function is None:  # an older nvidia-ml-py, or one that dropped a deprecated name
                continue
            try:
                return function(*arguments)
            except self.nvml.NVMLError_FunctionNotFound:
                continue  # an older driver
            except self.nvml.NVMLError as error:
                raise UnreadableError(f"NVML: {error}") from error
        raise UnreadableError(f"this driver and this nvidia-ml-py have no {' or '.join(names)}")


def _kind(device_name: str) -> str:
    return device_name.partition(":")[0]


def _uuid(device_name: str) -> str:
    """The UUID of a CUDA device, without prefix: NVML's order is not torch's.

    CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER number torch's devices, and not NVML's.
    """
    import torch  # noqa: PLC0415 - seconds to import; only a GPU needs it

    if torch.version.hip:
        raise UnreadableError("an AMD GPU: NVML knows NVIDIA's alone")
    try:
        properties = torch.cuda.get_device_properties(torch.device(device_name))
    except (RuntimeError, AssertionError) as error:  # torch raises either for a missing device
        raise UnreadableError(f"torch has no {device_name}: {error}") from error
    uuid = getattr(properties, "uuid", None)
    if uuid is None:
        raise UnreadableError(f"torch {torch.__version__} doesn't tell the UUID of {device_name}")
    return str(uuid)


def _find(nvml: ModuleType, uuid: str) -> _Gpu:
    try:
        return _Gpu(nvml, nvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}"), f"GPU-{uuid}")
    except nvml.NVMLError_NotFound:
        # A slice has a UUID of its own, but the clocks, the power and the heat of the whole GPU.
        part = nvml.nvmlDeviceGetHandleByUUID(f"MIG-{uuid}")
        return _Gpu(nvml, nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(part), f"MIG-{uuid}")


@contextlib.contextmanager
def _opened(device_name: str) -> Iterator[_Gpu]:
    """NVML's view of a CUDA device, for as long as the context lasts.

    Raises:
        UnreadableError: There is no NVML, no driver, or no such GPU.
    """
    if _kind(device_name) != "cuda":
        raise UnreadableError(f"nothing here reads {_kind(device_name)} devices")
    try:
        nvml = importlib.import_module("pynvml")
    except ImportError as error:
        raise UnreadableError(
            f"nvidia-ml-py can't be imported: {error}", "Install it: pip install nvidia-ml-py."
        ) from error
    uuid = _uuid(device_name)
    try:
        nvml.nvmlInit()  # counted: torch's own use of NVML is not disturbed
    except nvml.NVMLError as error:
        raise UnreadableError(f"NVML: {error}", "See whether nvidia-smi works here.") from error
    try:
        try:
            gpu = _find(nvml, uuid)
        except nvml.NVMLError as error:
            raise UnreadableError(f"NVML has no GPU {uuid}: {error}") from error
        yield gpu
    finally:
        with contextlib.suppress(nvml.NVMLError):  # nothing is lost if it won't close
            nvml.nvmlShutdown()


# The bits of nvmlClocksEventReasons, the last two only under their old name (ThrottleReason).
_IDLE, _APPLICATIONS = 0x1, 0x2
_REASONS = {
    _IDLE: "idle",
    _APPLICATIONS: "applications clocks",
    0x4: "power cap (software)",
    0x8: "slowdown (hardware)",
    0x10: "sync boost",
    0x20: "thermal slowdown (software)",
    0x40: "thermal slowdown (hardware)",
    0x80: "power brake (hardware)",
    0x100: "display clocks",
    0x200: "board limit",
    0x400: "reliability",
}
# These two slow no work down: there is none, or somebody has asked for it.
_HARMLESS = _IDLE | _APPLICATIONS

_NEAR_SLOWDOWN_CELSIUS = 10
_BUSY_PERCENT = 5
_LOCK = "Lock them: sudo nvidia-smi -lgc <MHz>,<MHz> (and undo it with -rgc)."


def _reasons(gpu: _Gpu) -> int:
    return int(
        gpu.ask(
            "nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"
        )
    )


def _mhz(gpu: _Gpu, function: str, clock: str) -> int:
    return int(gpu.ask(function, of=getattr(gpu.nvml, clock)))


def _applications_mhz(gpu: _Gpu) -> int | None:
    """What somebody set the applications clock to; None if nobody did, or can any more."""
    try:
        now = _mhz(gpu, "nvmlDeviceGetApplicationsClock", "NVML_CLOCK_GRAPHICS")
        default = _mhz(gpu, "nvmlDeviceGetDefaultApplicationsClock", "NVML_CLOCK_GRAPHICS")
    except UnreadableError:  # going away with CUDA 14
        return None
    return None if now == default else now


def _clocks(gpu: _Gpu) -> Reading:
    """Whether the clocks are held. NVML can set a lock but not read one: judged by its traces."""
    now = _mhz(gpu, "nvmlDeviceGetClockInfo", "NVML_CLOCK_SM")
    most = _mhz(gpu, "nvmlDeviceGetMaxClockInfo", "NVML_CLOCK_SM")
    value = f"SM {now} of at most {most} MHz"
    chosen = _applications_mhz(gpu)
    if chosen is not None:
        return f"{value}, applications clock set to {chosen} MHz", ""
    reasons = _reasons(gpu)
    if reasons & _APPLICATIONS:
        return f"{value}, held by the applications clock", ""
    # A lock holds whether or not anything runs (nvmlDeviceSetGpuLockedClocks), and under one this
    # bit stays off (JuliaGPU/CUDA.jl #2194).
    if reasons & _IDLE:
        return f"{value}, not held: they fall when idle", _LOCK
    raise UnreadableError(f"{value}; NVML can't tell whether they are locked", _LOCK)


def _slowed(gpu: _Gpu) -> Reading:
    reasons = _reasons(gpu)
    bits = [1 << i for i in range(reasons.bit_length()) if reasons >> i & 1]
    value = ", ".join(_REASONS.get(bit, f"bit {bit:#x}") for bit in bits) or "nothing"
    if reasons & ~_HARMLESS:
        return value, "Let the GPU cool down, raise its limits or free it, until this is gone."
    return value, ""


def _power(gpu: _Gpu) -> Reading:
    limit = gpu.ask("nvmlDeviceGetPowerManagementLimit")
    default = gpu.ask("nvmlDeviceGetPowerManagementDefaultLimit")
    value = f"{limit / 1000:.0f} W, by default {default / 1000:.0f} W"
    if limit == default:
        return value, ""
    return value, "Set the default again (nvidia-smi -pl), or compare with this very GPU alone."


def _temperature_celsius(gpu: _Gpu) -> int:
    sensor = gpu.nvml.NVML_TEMPERATURE_GPU
    return int(gpu.ask("nvmlDeviceGetTemperatureV", "nvmlDeviceGetTemperature", of=sensor))


def _margin_celsius(gpu: _Gpu, now: int) -> int:
    """How far from the nearest slowdown."""
    try:
        return int(gpu.ask("nvmlDeviceGetMarginTemperature"))
    except UnreadableError:  # before driver 570: from the threshold, which later ones may lack
        slowdown = gpu.nvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN
        return int(gpu.ask("nvmlDeviceGetTemperatureThreshold", of=slowdown)) - now


def _temperature(gpu: _Gpu) -> Reading:
    now = _temperature_celsius(gpu)
    try:
        margin = _margin_celsius(gpu, now)
    except UnreadableError as error:
        raise UnreadableError(f"{now} °C; where it slows down is unknown ({error})") from error
    value = f"{now} °C, {margin} °C below slowdown"
    if margin < _NEAR_SLOWDOWN_CELSIUS:
        return value, "Let the GPU cool down, and see to its cooling."
    return value, ""


def _on(state: int) -> str:
    return "on" if state else "off"


def _mode(gpu: _Gpu, function: str) -> Reading:
    current, pending = gpu.ask(function)
    later = "" if current == pending else f", {_on(pending)} after a reset"
    return _on(current) + later, ""


def _ecc(gpu: _Gpu) -> Reading:
    return _mode(gpu, "nvmlDeviceGetEccMode")  # noted: either is fine, but they differ in speed


def _mig(gpu: _Gpu) -> Reading:
    value, _ = _mode(gpu, "nvmlDeviceGetMigMode")
    advice = "Use a whole GPU, or keep the other slices idle: clocks and power are shared."
    return value, advice if value.startswith("on") else ""


def _persistence(gpu: _Gpu) -> Reading:
    if gpu.ask("nvmlDeviceGetPersistenceMode"):
        return "on", ""
    return "off", "Turn it on (sudo nvidia-smi -pm 1), or the driver starts anew with each process."


def _processes(gpu: _Gpu) -> Reading:
    listed = gpu.ask(
        "nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetComputeRunningProcesses_v2"
    )
    pids = {int(process.pid) for process in listed}
    others = pids - {os.getpid()}
    if not others:
        return "none that NVML shows here", ""
    # NVML may give the host's numbers to a container, and then this process is one of the others.
    if os.getpid() in pids or any(map(psutil.pid_exists, others)):
        return f"{len(others)} on this GPU", "End them, or wait until they have ended."
    raise UnreadableError(f"{len(others)} by numbers not known here, perhaps this process itself")


def _utilisation(gpu: _Gpu) -> Reading:
    percent = int(gpu.ask("nvmlDeviceGetUtilizationRates").gpu)
    advice = "Wait until the GPU is free." if percent > _BUSY_PERCENT else ""
    return f"{percent}% before the run", advice


def _display(gpu: _Gpu) -> Reading:
    if gpu.ask("nvmlDeviceGetDisplayActive"):
        return "active", "Measure on a GPU that draws no screen, or switch the screen off."
    return "none", ""


_LOOKS: tuple[tuple[str, Callable[[_Gpu], Reading]], ...] = (
    ("GPU clocks", _clocks),
    ("GPU clock limits", _slowed),
    ("GPU power limit", _power),
    ("GPU temperature", _temperature),
    ("GPU ECC", _ecc),
    ("GPU MIG", _mig),
    ("GPU persistence mode", _persistence),
    ("GPU processes of others", _processes),
    ("GPU utilisation", _utilisation),
    ("GPU display", _display),
)


def gpu_findings(device_name: str) -> tuple[Finding, ...]:
    """What NVML says of a device; () for a CPU, one unknown finding where NVML says nothing.

    Args:
        device_name: As torch names it: "cpu", "cuda:0".
    """
    if _kind(device_name) == "cpu":
        return ()
    try:
        with _opened(device_name) as gpu:
            return tuple(look(subject, partial(read, gpu)) for subject, read in _LOOKS)
    except UnreadableError as error:
        return (Finding("GPU", str(error), "unknown", error.advice),)


def _driver(gpu: _Gpu) -> str:
    try:
        return str(gpu.nvml.nvmlSystemGetDriverVersion())
    except gpu.nvml.NVMLError as error:
        raise UnreadableError(f"NVML: {error}") from error


_FACTS: dict[str, Callable[[_Gpu], str | int | float]] = {
    "driver": _driver,
    "uuid": lambda gpu: gpu.uuid,
    "sm_clock_mhz": partial(_mhz, function="nvmlDeviceGetClockInfo", clock="NVML_CLOCK_SM"),
    "max_sm_clock_mhz": partial(_mhz, function="nvmlDeviceGetMaxClockInfo", clock="NVML_CLOCK_SM"),
    "memory_clock_mhz": partial(_mhz, function="nvmlDeviceGetClockInfo", clock="NVML_CLOCK_MEM"),
    "max_memory_clock_mhz": partial(
        _mhz, function="nvmlDeviceGetMaxClockInfo", clock="NVML_CLOCK_MEM"
    ),
    "power_limit_w": lambda gpu: float(gpu.ask("nvmlDeviceGetPowerManagementLimit")) / 1000,
    "ecc": lambda gpu: _on(gpu.ask("nvmlDeviceGetEccMode")[0]),
    "mig": lambda gpu: _on(gpu.ask("nvmlDeviceGetMigMode")[0]),
}


def gpu_facts(device_name: str) -> dict[str, str | int | float | None]:
    """What identifies a GPU and its settings, for the fingerprint of a run.

    Clocks are in MHz, those without "max" as they are at this moment (idle, before a run); the
    power limit is in W; ECC and MIG are "on" or "off".

    Args:
        device_name: As torch names it: "cpu", "cuda:0".

    Returns:
        {} for anything but a CUDA device; None for what NVML can't say.
    """
    if _kind(device_name) != "cuda":
        return {}
    facts: dict[str, str | int | float | None] = dict.fromkeys(_FACTS)
    with contextlib.suppress(UnreadableError), _opened(device_name) as gpu:
        for name, read in _FACTS.items():
            with contextlib.suppress(UnreadableError):
                facts[name] = read(gpu)
    return facts
