"""What of this machine makes timings untrustworthy, told before a run rather than after it.

What to look at is gathered from LLVM's "Benchmarking tips", pyperf's `system` command and Google
Benchmark's warnings; where each reading comes from and what it means stands in the kernel's
documentation (admin-guide/pm/cpufreq, admin-guide/cgroup-v2, ABI/testing/sysfs-devices-system-cpu,
proc(5)). Nothing here changes a setting.
"""

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import psutil

from kvbench.diagnosis_gpu import (
    Reading,
    UnreadableError,
    gpu_facts,
    gpu_findings,
    look,
)
from kvbench.results import Finding, Verdict
from kvbench.units import MICROSECONDS_PER_SECOND, format_bytes, format_seconds, significant

__all__ = ["Finding", "Verdict", "diagnose", "gpu_facts", "overall"]

_WINDOW_S = 1.0  # on one CPU a second is 100 ticks, and a single tick of steal no warning
_STEAL_WARNS = 0.01
_BUSY_CPUS = 0.1  # of one CPU: what another process may take
_LOAD_SHARE = 0.1  # of all CPUs: the load that others may make
_LOAD_MINUTE_S = 60.0
_TICK_KINDS = 8  # user to steal; what follows is counted in user already
_SPREAD = 1.1  # highest frequency by lowest; favoured cores differ by less
_MEMORY_SHARE = 0.1  # of the memory: what should be free
_SWAP_SHARE = 0.01  # of the memory: what may lie swapped out, long unused
_CPU_DIR = "sys/devices/system/cpu"
_CGROUPS = "sys/fs/cgroup"


@dataclass(frozen=True, slots=True)
class _Window:
    """What happened within _WINDOW_S."""

    before: tuple[int, ...]
    """The first line of /proc/stat: user, nice, system, idle, iowait, irq, softirq, steal; () if
    it can't be read."""
    after: tuple[int, ...]
    busiest: Mapping[str, float]
    """CPUs that other processes took, by name, those alike together; all over _BUSY_CPUS."""


@dataclass(frozen=True, slots=True)
class _Machine:
    """Where to read, and what is asked of it. Whatever isn't there is an UnreadableError."""

    root: Path
    torch_threads: int
    usable: frozenset[int]
    """CPUs that this process may run on."""
    window: _Window

    def text(self, path: str) -> str:
        """A file's text, stripped."""
        text = _text(self.root, path)
        if text is None:
            raise UnreadableError(f"no /{path}")
        return text

    def fields(self, path: str) -> dict[str, int]:
        """The first number of each line, by the line's name; with or without a colon."""
        lines = [line.split() for line in self.text(path).splitlines()]
        return {line[0].rstrip(":"): _whole(line[1], path) for line in lines if len(line) > 1}

    def online(self) -> frozenset[int]:
        """The CPUs that are online."""
        return _cpu_list(self.text(f"{_CPU_DIR}/online"), "online")

    def of_each_cpu(self, name: str) -> dict[int, str]:
        """A file of every online CPU, by CPU."""
        return {cpu: self.text(f"{_CPU_DIR}/cpu{cpu}/{name}") for cpu in sorted(self.online())}

    def memory_bytes(self, *names: str) -> list[int]:
        """Fields of /proc/meminfo, in bytes. Its "kB" are 1024 bytes."""
        fields = self.fields("proc/meminfo")
        missing = [name for name in names if name not in fields]
        if missing:
            raise UnreadableError(f"/proc/meminfo has no {', '.join(missing)}")
        return [fields[name] * 1024 for name in names]

    def of_cgroups(self, name: str) -> dict[str, str]:
        """A file of this process's cgroup and of those above, by folder; each may set a limit.

        The topmost has no limits, and where a controller is off its files are missing.
        """
        if _text(self.root, f"{_CGROUPS}/cgroup.controllers") is None:
            raise UnreadableError(f"no cgroup v2 at /{_CGROUPS}")
        lines = self.text("proc/self/cgroup").splitlines()
        own = next((line[3:].strip("/") for line in lines if line.startswith("0::")), "")
        steps = own.split("/") if own else []
        if ".." in steps:
            raise UnreadableError("this process's cgroup lies outside of what is mounted here")
        # A container may see its own folder as the top and yet be told the host's path to it:
        # then the folders between are missing here, and the top has the limits.
        folders = ["/".join((_CGROUPS, *steps[:n])) for n in range(len(steps) + 1)]
        found = {folder: _text(self.root, f"{folder}/{name}") for folder in folders}
        return {folder: text for folder, text in found.items() if text is not None}


def _text(root: Path, path: str) -> str | None:
    """A file's text, stripped; None if there is no such file."""
    try:
        return (root / path).read_text(encoding="utf-8", errors="replace").strip()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:  # not for this user, or a driver that doesn't answer
        raise UnreadableError(f"/{path}: {error.strerror}") from error


def _whole(text: str, what: str) -> int:
    try:
        return int(text)
    except ValueError as error:
        raise UnreadableError(f"{what} is {text!r}: expected a whole number") from error


def _cpu_list(text: str, what: str) -> frozenset[int]:
    """The CPUs of a list as "0-3,8"."""
    cpus: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        cpus.update(range(_whole(first, what), _whole(last or first, what) + 1))
    return frozenset(cpus)


def _governor(machine: _Machine) -> Reading:
    governors = list(_cpufreq(machine, "scaling_governor").values())
    others = [governor for governor in governors if governor != "performance"]
    if not others:
        return f"performance on {len(governors)} CPUs", ""
    value = f"{', '.join(sorted(set(others)))} on {len(others)} of {len(governors)} CPUs"
    return value, "Set it: sudo cpupower frequency-set -g performance."


def _cpufreq(machine: _Machine, name: str) -> dict[int, str]:
    try:
        return machine.of_each_cpu(f"cpufreq/{name}")
    except UnreadableError as error:
        raise UnreadableError(
            f"{error}; in a virtual machine the host sets the frequency", error.advice
        ) from error


def _turbo(machine: _Machine) -> Reading:
    for name, on in (("intel_pstate/no_turbo", "0"), ("cpufreq/boost", "1")):
        path = f"{_CPU_DIR}/{name}"
        state = _text(machine.root, path)
        if state == on:
            switch = f"echo {1 - int(on)} | sudo tee /{path}"
            return "on", f"It varies with load and heat; this switches it off: {switch}."
        if state is not None:
            return "off", ""
    raise UnreadableError("neither intel_pstate/no_turbo nor cpufreq/boost is here")


def _frequencies(machine: _Machine) -> Reading:
    low, high = (
        [_whole(text, name) for text in _cpufreq(machine, name).values()]  # in kHz
        for name in ("scaling_min_freq", "scaling_max_freq")
    )
    value = f"{min(low) / 1e6:.2f} to {max(high) / 1e6:.2f} GHz allowed"
    if max(high) > _SPREAD * min(high):
        value = f"{value}, on some CPUs no more than {min(high) / 1e6:.2f} GHz"
        return value, "Keep to CPUs of one kind, with taskset -c."
    governors = set(_cpufreq(machine, "scaling_governor").values())
    if max(high) > _SPREAD * min(low) and governors != {"performance"}:
        return value, "Set the governor to performance, which stays at the upper end."
    return value, ""


def _virtual(machine: _Machine) -> Reading:
    for line in machine.text("proc/cpuinfo").splitlines():
        name, _, flags = line.partition(":")
        if name.strip() == "flags":
            if "hypervisor" not in flags.split():
                return "none seen", ""
            advice = "Measure on bare metal, or repeat: neighbours can take the CPU and the caches."
            return "the CPU has the hypervisor flag", advice
    raise UnreadableError("/proc/cpuinfo has no flags: an architecture that doesn't tell")


def _steal(machine: _Machine) -> Reading:
    before, after = machine.window.before, machine.window.after
    if not len(before) == len(after) == _TICK_KINDS:
        raise UnreadableError("/proc/stat can't be read, or counts no steal")
    passed = sum(after) - sum(before)
    if passed <= 0:
        raise UnreadableError("/proc/stat didn't move: no time was counted")
    share = (after[-1] - before[-1]) / passed
    value = f"{share:.1%} within {_WINDOW_S:.0f} s, {after[-1] / sum(after):.1%} since boot"
    if share > _STEAL_WARNS:
        return value, "Wait for a quieter time, or move to a machine that isn't shared."
    return value, ""


def _own_load() -> float:
    """About what this process adds to the load average of the last minute."""
    process = psutil.Process()
    spent = process.cpu_times()
    age = time.time() - process.create_time()
    return float((spent.user + spent.system) / max(age, _LOAD_MINUTE_S))


def _load(machine: _Machine) -> Reading:
    text = machine.text("proc/loadavg")
    try:
        load = float(text.split()[0])
    except (ValueError, IndexError) as error:
        raise UnreadableError(f"/proc/loadavg is {text!r}: expected a number first") from error
    others = max(0.0, load - _own_load())
    cpus = len(machine.online())
    value = f"{others:.2f} on {cpus} CPUs in the last minute"
    return value, "Wait until the machine is idle." if others > _LOAD_SHARE * cpus else ""


def _busiest(machine: _Machine) -> Reading:
    busiest = sorted(machine.window.busiest.items(), key=lambda item: -item[1])
    if not busiest:
        return f"none over {_BUSY_CPUS:.0%} of a CPU", ""
    return ", ".join(f"{name} {cpus:.0%}" for name, cpus in busiest), "End them, or wait for them."


def _quota(machine: _Machine) -> Reading:
    limits: list[float] = []
    for text in machine.of_cgroups("cpu.max").values():
        quota, _, period = text.partition(" ")  # in microseconds of CPU, and of time
        if quota != "max":
            limits.append(_whole(quota, "cpu.max") / max(1, _whole(period, "cpu.max")))
    if not limits:
        return "none", ""
    value = f"{significant(min(limits))} CPUs"
    if min(limits) < machine.torch_threads:
        return value, f"Raise it, or use no more threads: torch has {machine.torch_threads}."
    return value, ""


def _throttled(machine: _Machine) -> Reading:
    stats = [machine.fields(f"{folder}/cpu.stat") for folder in machine.of_cgroups("cpu.stat")]
    counted = [stat for stat in stats if "nr_throttled" in stat]  # not where there is no control
    if not counted:
        raise UnreadableError("no cpu.stat counts it")
    times = max(stat["nr_throttled"] for stat in counted)
    microseconds = max(stat.get("throttled_usec", 0) for stat in counted)
    if not times:
        return "never", ""
    value = f"{times:,} times, {format_seconds(microseconds / MICROSECONDS_PER_SECOND)} in all"
    return value, "Raise the container's CPU quota; if the count rises in a run, repeat the run."


def _memory_limit(machine: _Machine) -> Reading:
    room: list[tuple[int, int]] = []  # bytes free, bytes of the limit
    for folder, text in machine.of_cgroups("memory.max").items():
        if text != "max":
            used = _whole(machine.text(f"{folder}/memory.current"), "memory.current")
            # Files read once and no longer in use: dropped at once when memory is short.
            idle = machine.fields(f"{folder}/memory.stat").get("inactive_file", 0)
            limit = _whole(text, "memory.max")
            room.append((limit - used + idle, limit))
    if not room:
        return "none", ""
    free, limit = min(room)
    value = f"{format_bytes(limit)}, {format_bytes(free)} of it free"
    if free < _MEMORY_SHARE * limit:
        return value, "Raise it: near the limit the kernel takes pages back in the midst of a run."
    return value, ""


def _affinity(machine: _Machine) -> Reading:
    # Noted: to be pinned is no fault, and whether the threads fit is a finding of its own.
    return f"{len(machine.usable)} of {len(machine.online())} online CPUs", ""


def _threads(machine: _Machine) -> Reading:
    value = f"torch has {machine.torch_threads}, usable CPUs: {len(machine.usable)}"
    if machine.torch_threads > len(machine.usable):
        return value, f"Use at most {len(machine.usable)} threads, so that none waits for another."
    return value, ""


def _thread_settings(machine: _Machine) -> Reading:
    del machine  # noted: torch.set_num_threads overrules both, in its own process
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
    return ", ".join(f"{name} {os.environ.get(name) or 'not set'}" for name in names), ""


def _thermal(machine: _Machine) -> Reading:
    counts = machine.of_each_cpu("thermal_throttle/core_throttle_count")
    most = max(_whole(count, "core_throttle_count") for count in counts.values())
    if not most:
        return "never since boot", ""
    value = f"up to {most:,} times on a core since boot"
    return value, "If the count rises in a run, cool the machine and measure again."


def _siblings(machine: _Machine) -> Reading:
    what = "topology/thread_siblings_list"
    lists = machine.of_each_cpu(what)
    cores = {cpu: _cpu_list(text, what) for cpu, text in lists.items()}
    usable = {core for cpu, core in cores.items() if cpu in machine.usable}
    if max(map(len, cores.values())) == 1:
        return "off, or not shown: each CPU is a core", ""
    value = f"on: {len(usable)} cores behind {len(machine.usable)} usable CPUs"
    if machine.torch_threads > len(usable):
        return value, f"Use at most {len(usable)} threads, so that no two share a core."
    return value, ""


def _swap(machine: _Machine) -> Reading:
    swap, unused, memory = machine.memory_bytes("SwapTotal", "SwapFree", "MemTotal")
    value = f"{format_bytes(swap - unused)} in use"
    if swap - unused > _SWAP_SHARE * memory:
        return value, "Free memory, then switch swap off for the run: sudo swapoff -a."
    return value, ""


def _memory(machine: _Machine) -> Reading:
    free, memory = machine.memory_bytes("MemAvailable", "MemTotal")
    value = f"{format_bytes(free)} of {format_bytes(memory)}"
    if free < _MEMORY_SHARE * memory:
        return value, "End what holds it, or the kernel takes pages back in the midst of a run."
    return value, ""


def _huge_pages(machine: _Machine) -> Reading:
    path = "sys/kernel/mm/transparent_hugepage/enabled"
    chosen = [word[1:-1] for word in machine.text(path).split() if word.startswith("[")]
    if not chosen:
        raise UnreadableError(f"/{path} marks no choice")
    return chosen[0], ""  # noted: it decides what a page fault costs, for all strategies alike


_LOOKS: tuple[tuple[str, Callable[[_Machine], Reading]], ...] = (
    ("CPU governor", _governor),
    ("CPU turbo", _turbo),
    ("CPU frequencies", _frequencies),
    ("Virtual machine", _virtual),
    ("Stolen CPU time", _steal),
    ("Load of others", _load),
    ("Busy processes", _busiest),
    ("Container CPU quota", _quota),
    ("Container throttling", _throttled),
    ("Container memory limit", _memory_limit),
    ("CPU affinity", _affinity),
    ("Threads", _threads),
    ("Thread settings", _thread_settings),
    ("Thermal throttling", _thermal),
    ("SMT", _siblings),
    ("Swap", _swap),
    ("Free memory", _memory),
    ("Transparent huge pages", _huge_pages),
)


def _usable() -> frozenset[int]:
    if hasattr(os, "sched_getaffinity"):
        return frozenset(os.sched_getaffinity(0))
    return frozenset(range(psutil.cpu_count() or 1))  # where no process can be pinned


def _ticks(root: Path) -> tuple[int, ...]:
    try:
        line = (_text(root, "proc/stat") or "").partition("\n")[0]
        return tuple(_whole(field, "/proc/stat") for field in line.split()[1 : _TICK_KINDS + 1])
    except UnreadableError:
        return ()


def _watch(root: Path) -> _Window:
    """Let _WINDOW_S pass, and see what happens meanwhile."""
    others = [process for process in psutil.process_iter() if process.pid != os.getpid()]
    for process in others:
        _cpus_taken(process)  # the first call only starts its clock
    before = _ticks(root)
    time.sleep(_WINDOW_S)
    after = _ticks(root)
    busiest: dict[str, float] = {}
    for process in others:
        cpus = _cpus_taken(process)
        if cpus > _BUSY_CPUS:
            name = _name(process)
            busiest[name] = busiest.get(name, 0.0) + cpus
    return _Window(before, after, busiest)


def _cpus_taken(process: psutil.Process) -> float:
    """The CPUs that a process took since the last call."""
    try:
        return float(process.cpu_percent()) / 100
    except psutil.Error:  # it has ended, or isn't ours to see
        return 0.0


def _name(process: psutil.Process) -> str:
    try:
        return str(process.name()).partition(":")[0]  # "sshd: somebody@pts/0" names a user
    except psutil.Error:
        return "(ended)"


def diagnose(
    device_name: str, torch_threads: int, *, root: Path = Path("/")
) -> tuple[Finding, ...]:
    """Everything looked at, in a fixed order; takes about a second, in which it watches.

    Args:
        device_name: As torch names it: "cpu", "cuda:0".
        torch_threads: Threads that torch's operators use.
        root: Where /proc and /sys are.
    """
    machine = _Machine(root, torch_threads, _usable(), _watch(root))
    of_cpu = tuple(look(subject, partial(read, machine)) for subject, read in _LOOKS)
    return of_cpu + gpu_findings(device_name)


def overall(findings: tuple[Finding, ...]) -> str:
    """One or two sentences: whether to trust timings taken now, and what was not to be known."""
    by: dict[Verdict, list[Finding]] = {"fine": [], "warning": [], "unknown": []}
    for finding in findings:
        by[finding.verdict].append(finding)
    if not by["fine"] and not by["warning"]:
        return "Whether to trust timings is unknown: nothing could be read here."
    if by["warning"]:
        reasons = ", ".join(f"{finding.subject} ({finding.value})" for finding in by["warning"])
        verdict = f"Do not trust small differences, because of: {reasons}."
    else:
        verdict = "Trust differences above the interval; nothing read here disturbs timings."
    if not by["unknown"]:
        return verdict
    return f"{verdict} Not known: {', '.join(finding.subject for finding in by['unknown'])}."
