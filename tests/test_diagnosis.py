"""What makes timings untrustworthy: on machines made of files, and GPUs made of a fake NVML."""

import inspect
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import psutil
import pytest
import torch

from kvbench import diagnosis, diagnosis_gpu
from kvbench.diagnosis import Finding, diagnose, gpu_facts, overall

CPUS = 4
THREADS = 2
CPU_DIR = "sys/devices/system/cpu"
GROUP = "sys/fs/cgroup/user.slice/run"
ABOVE = "sys/fs/cgroup/user.slice"
GIB_KB = 1 << 20  # a GiB in the "kB" of /proc/meminfo


def stat(steal: int = 0, idle: int = 1000) -> str:
    return f"cpu  100 0 100 {idle} 0 0 0 {steal} 5 0\ncpu0 25 0 25 250 0 0 0 0 0 0\n"


def meminfo(available: int = 12, swapped: int = 0) -> str:
    return "".join(
        f"{name}: {gib * GIB_KB} kB\n"
        for name, gib in {
            "MemTotal": 16,
            "MemAvailable": available,
            "SwapTotal": 4,
            "SwapFree": 4 - swapped,
        }.items()
    )


def of_each_cpu(name: str, *texts: str) -> dict[str, str]:
    """A file of every CPU; the last text serves the rest."""
    return {f"{CPU_DIR}/cpu{cpu}/{name}": texts[min(cpu, len(texts) - 1)] for cpu in range(CPUS)}


QUIET = {
    f"{CPU_DIR}/online": "0-2,3",
    **of_each_cpu("cpufreq/scaling_governor", "performance"),
    **of_each_cpu("cpufreq/scaling_min_freq", "800000"),
    **of_each_cpu("cpufreq/scaling_max_freq", "3500000"),
    **of_each_cpu("thermal_throttle/core_throttle_count", "0"),
    **of_each_cpu("topology/thread_siblings_list", "0-1", "0-1", "2,3"),
    f"{CPU_DIR}/intel_pstate/no_turbo": "1",
    "proc/cpuinfo": "processor\t: 0\nflags\t\t: fpu vme avx2\n",
    "proc/stat": stat(),
    "proc/loadavg": "0.10 0.20 0.30 1/100 4242",
    "proc/meminfo": meminfo(),
    "proc/self/cgroup": "1:name=systemd:/elsewhere\n0::/user.slice/run\n",
    "sys/fs/cgroup/cgroup.controllers": "cpu memory",
    f"{GROUP}/cpu.max": "max 100000",
    f"{GROUP}/cpu.stat": "usage_usec 5\nnr_periods 0\nnr_throttled 0\nthrottled_usec 0\n",
    f"{GROUP}/memory.max": "max",
    "sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never",
}


class Machine:
    """A root full of files, that change while somebody watches."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.while_watched = {"proc/stat": stat(idle=1400)}
        self.write(QUIET)

    def write(self, files: dict[str, str | None]) -> None:
        """None removes a file."""
        for name, text in files.items():
            path = self.root / name
            if text is None:
                path.unlink()
            else:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text + "\n", encoding="utf-8")

    def diagnose(self, threads: int = THREADS) -> dict[str, Finding]:
        return {f.subject: f for f in diagnose("cpu", threads, root=self.root)}


@pytest.fixture(autouse=True)
def short_look():
    """Not here, where what happens within a second is written down, and nothing waits."""


@pytest.fixture
def machine(tmp_path, monkeypatch) -> Machine:
    made = Machine(tmp_path)
    monkeypatch.setattr(diagnosis.time, "sleep", lambda _: made.write(made.while_watched))
    monkeypatch.setattr(diagnosis, "_own_load", lambda: 0.0)
    monkeypatch.setattr(diagnosis, "_usable", lambda: frozenset(range(CPUS)))
    monkeypatch.setattr(psutil, "process_iter", lambda: iter(()))
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.delenv("MKL_NUM_THREADS", raising=False)
    return made


def test_a_quiet_machine_is_fine_in_everything(machine):
    found = machine.diagnose()
    assert {subject: finding.value for subject, finding in found.items()} == {
        "CPU governor": "performance on 4 CPUs",
        "CPU turbo": "off",
        "CPU frequencies": "0.80 to 3.50 GHz allowed",
        "Virtual machine": "none seen",
        "Stolen CPU time": "0.0% within 1 s, 0.0% since boot",
        "Load of others": "0.10 on 4 CPUs in the last minute",
        "Busy processes": "none over 10% of a CPU",
        "Container CPU quota": "none",
        "Container throttling": "never",
        "Container memory limit": "none",
        "CPU affinity": "4 of 4 online CPUs",
        "Threads": "torch has 2, usable CPUs: 4",
        "Thread settings": "OMP_NUM_THREADS not set, MKL_NUM_THREADS not set",
        "Thermal throttling": "never since boot",
        "SMT": "on: 2 cores behind 4 usable CPUs",
        "Swap": "0 B in use",
        "Free memory": "12.0 GiB of 16.0 GiB",
        "Transparent huge pages": "madvise",
    }
    assert {(finding.verdict, finding.advice) for finding in found.values()} == {("fine", "")}


@pytest.mark.parametrize(
    ("subject", "files", "value"),
    [
        (
            "CPU governor",
            of_each_cpu("cpufreq/scaling_governor", "powersave", "schedutil", "performance"),
            "powersave, schedutil on 2 of 4 CPUs",
        ),
        ("CPU turbo", {f"{CPU_DIR}/intel_pstate/no_turbo": "0"}, "on"),
        (
            "CPU turbo",
            {f"{CPU_DIR}/intel_pstate/no_turbo": None, f"{CPU_DIR}/cpufreq/boost": "1"},
            "on",
        ),
        (
            "CPU frequencies",
            of_each_cpu("cpufreq/scaling_governor", "performance", "powersave"),
            "0.80 to 3.50 GHz allowed",
        ),
        (
            "CPU frequencies",
            of_each_cpu("cpufreq/scaling_max_freq", "3500000", "2000000"),
            "0.80 to 3.50 GHz allowed, on some CPUs no more than 2.00 GHz",
        ),
        (
            "Virtual machine",
            {"proc/cpuinfo": "flags : fpu hypervisor avx2"},
            "the CPU has the hypervisor flag",
        ),
        ("Load of others", {"proc/loadavg": "0.41 0 0 1/1 1"}, "0.41 on 4 CPUs in the last minute"),
        ("Container CPU quota", {f"{GROUP}/cpu.max": "150000 100000"}, "1.50 CPUs"),
        ("Container CPU quota", {f"{ABOVE}/cpu.max": "50000 100000"}, "0.500 CPUs"),
        (
            "Container CPU quota",
            {f"{GROUP}/cpu.max": "150000 100000", f"{ABOVE}/cpu.max": "300000 100000"},
            "1.50 CPUs",
        ),
        (
            "Container throttling",
            {f"{GROUP}/cpu.stat": "nr_periods 9\nnr_throttled 1234\nthrottled_usec 2500000"},
            "1,234 times, 2.50 s in all",
        ),
        (
            "Container memory limit",
            {
                f"{ABOVE}/memory.max": str(4 << 30),
                f"{ABOVE}/memory.current": str(4 << 30),
                f"{ABOVE}/memory.stat": f"anon 1\ninactive_file {256 << 20}",
                f"{GROUP}/memory.max": str(3 << 30),
                f"{GROUP}/memory.current": str(1 << 30),
                f"{GROUP}/memory.stat": "anon 1",
            },
            "4.00 GiB, 256 MiB of it free",
        ),
        (
            "Thermal throttling",
            of_each_cpu("thermal_throttle/core_throttle_count", "3", "1500", "0"),
            "up to 1,500 times on a core since boot",
        ),
        ("Swap", {"proc/meminfo": meminfo(swapped=1)}, "1.00 GiB in use"),
        ("Free memory", {"proc/meminfo": meminfo(available=1)}, "1.00 GiB of 16.0 GiB"),
    ],
)
def test_what_disturbs_timings_warns(machine, subject, files, value):
    machine.write(files)
    found = machine.diagnose()[subject]
    assert (found.verdict, found.value) == ("warning", value)
    assert found.advice.endswith(".")


@pytest.mark.parametrize(
    ("subject", "files", "value"),
    [
        (
            "CPU turbo",
            {f"{CPU_DIR}/intel_pstate/no_turbo": None, f"{CPU_DIR}/cpufreq/boost": "0"},
            "off",
        ),
        ("Container CPU quota", {f"{GROUP}/cpu.max": "200000 100000"}, "2.00 CPUs"),
        (
            "Container memory limit",
            {
                f"{GROUP}/memory.max": str(4 << 30),
                f"{GROUP}/memory.current": str(4 << 30),
                f"{GROUP}/memory.stat": f"inactive_file {3 << 30}",
            },
            "4.00 GiB, 3.00 GiB of it free",
        ),
        (
            "SMT",
            {f"{CPU_DIR}/cpu{c}/topology/thread_siblings_list": str(c) for c in range(CPUS)},
            "off, or not shown: each CPU is a core",
        ),
        (
            "CPU frequencies",
            {
                **of_each_cpu("cpufreq/scaling_governor", "powersave"),
                **of_each_cpu("cpufreq/scaling_min_freq", "3400000"),
            },
            "3.40 to 3.50 GHz allowed",
        ),
    ],
)
def test_what_does_not_disturb_them_is_only_noted(machine, subject, files, value):
    machine.write(files)
    assert machine.diagnose()[subject] == Finding(subject, value, "fine", "")


@pytest.mark.parametrize(
    ("subject", "files", "reason"),
    [
        (
            "CPU governor",
            {f"{CPU_DIR}/cpu3/cpufreq/scaling_governor": None},
            f"no /{CPU_DIR}/cpu3/cpufreq/scaling_governor; "
            "in a virtual machine the host sets the frequency",
        ),
        (
            "CPU turbo",
            {f"{CPU_DIR}/intel_pstate/no_turbo": None},
            "neither intel_pstate/no_turbo nor cpufreq/boost is here",
        ),
        (
            "CPU frequencies",
            of_each_cpu("cpufreq/scaling_max_freq", "<unknown>"),
            "scaling_max_freq is '<unknown>': expected a whole number",
        ),
        ("CPU affinity", {f"{CPU_DIR}/online": ""}, "online is '': expected a whole number"),
        (
            "Virtual machine",
            {"proc/cpuinfo": "Features : fp asimd"},
            "/proc/cpuinfo has no flags: an architecture that doesn't tell",
        ),
        (
            "Load of others",
            {"proc/loadavg": "much"},
            "/proc/loadavg is 'much': expected a number first",
        ),
        ("Load of others", {"proc/loadavg": ""}, "/proc/loadavg is '': expected a number first"),
        (
            "Container CPU quota",
            {"sys/fs/cgroup/cgroup.controllers": None},
            "no cgroup v2 at /sys/fs/cgroup",
        ),
        (
            "Container CPU quota",
            {"proc/self/cgroup": "0::/../other"},
            "this process's cgroup lies outside of what is mounted here",
        ),
        (
            "Container CPU quota",
            {f"{GROUP}/cpu.max": "some"},
            "cpu.max is 'some': expected a whole number",
        ),
        ("Container throttling", {f"{GROUP}/cpu.stat": "usage_usec 5"}, "no cpu.stat counts it"),
        (
            "Container memory limit",
            {f"{GROUP}/memory.max": "4096"},
            f"no /{GROUP}/memory.current",
        ),
        (
            "Thermal throttling",
            {f"{CPU_DIR}/cpu0/thermal_throttle/core_throttle_count": None},
            f"no /{CPU_DIR}/cpu0/thermal_throttle/core_throttle_count",
        ),
        (
            "SMT",
            of_each_cpu("topology/thread_siblings_list", "0-?"),
            "topology/thread_siblings_list is '?': expected a whole number",
        ),
        ("Swap", {"proc/meminfo": "MemTotal: 1 kB"}, "/proc/meminfo has no SwapTotal, SwapFree"),
        ("Free memory", {"proc/meminfo": None}, "no /proc/meminfo"),
        (
            "Transparent huge pages",
            {"sys/kernel/mm/transparent_hugepage/enabled": "always"},
            "/sys/kernel/mm/transparent_hugepage/enabled marks no choice",
        ),
    ],
)
def test_what_is_not_there_is_unknown_with_the_reason(machine, subject, files, reason):
    machine.write(files)
    found = machine.diagnose()[subject]
    assert (found.verdict, found.value) == ("unknown", reason)
    assert found.advice.endswith(".")


def test_a_file_that_will_not_be_read_is_unknown(machine):
    machine.write({"proc/meminfo": None, "proc/meminfo/folder": "", "proc/stat": None})
    machine.write({"proc/stat/folder": ""})
    machine.while_watched = {}
    found = machine.diagnose()
    assert found["Swap"].value == "/proc/meminfo: Is a directory"
    assert found["Stolen CPU time"].verdict == "unknown"


def test_an_empty_root_leaves_only_what_needs_no_file(machine, tmp_path):
    machine.while_watched = {}
    found = diagnose("cpu", THREADS, root=tmp_path / "nothing")
    known = {finding.subject for finding in found if finding.verdict != "unknown"}
    assert known == {"Busy processes", "Threads", "Thread settings"}


@pytest.mark.parametrize(
    ("after", "verdict", "value"),
    [
        (stat(steal=4, idle=1396), "fine", "1.0% within 1 s, 0.2% since boot"),
        (stat(steal=8, idle=1392), "warning", "2.0% within 1 s, 0.5% since boot"),
        (stat(), "unknown", "/proc/stat didn't move: no time was counted"),
        ("cpu 1 2 3 4", "unknown", "/proc/stat can't be read, or counts no steal"),
        ("cpu 1 2 3 4 5 6 7 x", "unknown", "/proc/stat can't be read, or counts no steal"),
    ],
)
def test_steal_is_what_was_taken_meanwhile(machine, after, verdict, value):
    machine.while_watched = {"proc/stat": after}
    found = machine.diagnose()["Stolen CPU time"]
    assert (found.verdict, found.value) == (verdict, value)


def test_what_this_process_adds_to_the_load_is_taken_off(machine, monkeypatch):
    machine.write({"proc/loadavg": "2.00 0 0 1/1 1"})
    monkeypatch.setattr(diagnosis, "_own_load", lambda: 1.75)
    assert machine.diagnose()["Load of others"].value == "0.25 on 4 CPUs in the last minute"
    monkeypatch.setattr(diagnosis, "_own_load", lambda: 3.0)
    assert machine.diagnose()["Load of others"].value == "0.00 on 4 CPUs in the last minute"


@pytest.mark.parametrize(("age_s", "load"), [(30.0, 0.5), (60.0, 0.5), (300.0, 0.1)])
def test_own_load_is_spread_over_a_minute_at_least(monkeypatch, age_s, load):
    process = SimpleNamespace(
        cpu_times=lambda: SimpleNamespace(user=20.0, system=10.0), create_time=lambda: 1000.0
    )
    monkeypatch.setattr(psutil, "Process", lambda: process)
    monkeypatch.setattr(diagnosis.time, "time", lambda: 1000.0 + age_s)
    assert diagnosis._own_load() == pytest.approx(load)


class Process:
    """A process of psutil's: what it took since the last call, or its end."""

    def __init__(self, pid: int, name: str, percent: float, *, ends: str = "") -> None:
        self.pid, self._name, self._percent, self._ends = pid, name, percent, ends

    def name(self) -> str:
        if self._ends == "name":
            raise psutil.NoSuchProcess(self.pid)
        return self._name

    def cpu_percent(self) -> float:
        if self._ends == "cpu":
            raise psutil.AccessDenied(self.pid)
        return self._percent


def test_busy_processes_are_named_without_users(machine, monkeypatch):
    processes = [
        Process(os.getpid(), "pytest", 100.0),
        Process(1, "ld", 40.0),
        Process(2, "sshd: somebody@pts/0", 11.0),
        Process(3, "idle", 10.0),
        Process(4, "ld", 90.0),
        Process(5, "gone", 50.0, ends="cpu"),
        Process(6, "gone", 20.0, ends="name"),
    ]
    monkeypatch.setattr(psutil, "process_iter", lambda: iter(processes))
    found = machine.diagnose()["Busy processes"]
    assert (found.verdict, found.value) == ("warning", "ld 130%, (ended) 20%, sshd 11%")


def test_more_threads_than_cpus_or_cores_warn(machine):
    assert machine.diagnose(threads=3)["Threads"].verdict == "fine"
    assert machine.diagnose(threads=3)["SMT"] == Finding(
        "SMT",
        "on: 2 cores behind 4 usable CPUs",
        "warning",
        "Use at most 2 threads, so that no two share a core.",
    )
    assert machine.diagnose(threads=5)["Threads"] == Finding(
        "Threads",
        "torch has 5, usable CPUs: 4",
        "warning",
        "Use at most 4 threads, so that none waits for another.",
    )


def test_affinity_counts_against_threads_and_cores(machine, monkeypatch):
    monkeypatch.setattr(diagnosis, "_usable", lambda: frozenset({2, 3}))
    found = machine.diagnose(threads=2)
    assert found["CPU affinity"].value == "2 of 4 online CPUs"
    assert found["SMT"].value == "on: 1 cores behind 2 usable CPUs"
    assert [found[name].verdict for name in ("CPU affinity", "SMT", "Threads")] == [
        "fine",
        "warning",
        "fine",
    ]


def test_where_no_process_can_be_pinned_all_cpus_are_usable(monkeypatch):
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(psutil, "cpu_count", lambda: 3)
    assert diagnosis._usable() == {0, 1, 2}


def test_a_group_that_is_seen_as_the_top_still_limits(machine):
    machine.write({"proc/self/cgroup": "0::/a/path/of/the/host", "sys/fs/cgroup/cpu.max": "1 2"})
    assert machine.diagnose()["Container CPU quota"].value == "0.500 CPUs"


def test_thread_settings_are_shown(machine, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "8")
    assert machine.diagnose()["Thread settings"].value == (
        "OMP_NUM_THREADS 8, MKL_NUM_THREADS not set"
    )


FINE, BAD, ODD = (
    Finding("SMT", "off", "fine", ""),
    Finding("Swap", "1 GiB in use", "warning", "Free memory."),
    Finding("CPU governor", "no file", "unknown", "Ask."),
)


@pytest.mark.parametrize(
    ("findings", "text"),
    [
        (
            (FINE,),
            "Trust differences above the interval; nothing read here disturbs timings.",
        ),
        (
            (FINE, ODD),
            "Trust differences above the interval; nothing read here disturbs timings. "
            "Not known: CPU governor.",
        ),
        (
            (BAD, FINE, ODD, BAD),
            "Do not trust small differences, because of: Swap (1 GiB in use), "
            "Swap (1 GiB in use). Not known: CPU governor.",
        ),
        ((BAD,), "Do not trust small differences, because of: Swap (1 GiB in use)."),
        ((ODD,), "Whether to trust timings is unknown: nothing could be read here."),
        ((), "Whether to trust timings is unknown: nothing could be read here."),
    ],
)
def test_the_verdict_over_all_is_said_in_plain_words(findings, text):
    assert overall(findings) == text


class NVMLError(Exception):
    pass


class NotFoundInNvmlError(NVMLError):
    pass


class FunctionNotFoundInNvmlError(NVMLError):
    pass


SM, MEM, GRAPHICS = 1, 2, 0
UUID = "20bed2f5-819b-69ad-8d42-d3e1446080c1"
IDLE, APPLICATIONS, POWER_CAP, THERMAL, UNNAMED = 0x1, 0x2, 0x4, 0x40, 0x10000

CALM = {
    "nvmlDeviceGetClockInfo": {SM: 345, MEM: 2619},
    "nvmlDeviceGetMaxClockInfo": {SM: 1980, MEM: 3201},
    "nvmlDeviceGetApplicationsClock": {GRAPHICS: 1200},
    "nvmlDeviceGetDefaultApplicationsClock": {GRAPHICS: 1980},
    "nvmlDeviceGetCurrentClocksEventReasons": IDLE,
    "nvmlDeviceGetPowerManagementLimit": 700_000,
    "nvmlDeviceGetPowerManagementDefaultLimit": 700_000,
    "nvmlDeviceGetTemperatureV": {0: 41},
    "nvmlDeviceGetMarginTemperature": 46,
    "nvmlDeviceGetEccMode": [1, 1],
    "nvmlDeviceGetMigMode": [0, 0],
    "nvmlDeviceGetPersistenceMode": 1,
    "nvmlDeviceGetComputeRunningProcesses_v3": [],
    "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=0, memory=0),
    "nvmlDeviceGetDisplayActive": 0,
}


class Nvml(ModuleType):
    """A pynvml whose functions give fixed answers, or raise them, for the one GPU that it has."""

    NVML_CLOCK_GRAPHICS, NVML_CLOCK_SM, NVML_CLOCK_MEM = GRAPHICS, SM, MEM
    NVML_TEMPERATURE_GPU, NVML_TEMPERATURE_THRESHOLD_SLOWDOWN = 0, 1
    NVMLError = NVMLError
    NVMLError_NotFound = NotFoundInNvmlError
    NVMLError_FunctionNotFound = FunctionNotFoundInNvmlError

    def __init__(self) -> None:
        super().__init__("pynvml")
        self.handles = {f"GPU-{UUID}": "gpu"}
        self.opened = 0
        self.fails: dict[str, NVMLError] = {}
        self.answers(CALM)

    def answers(self, answers: dict[str, object]) -> None:
        """What functions give; an error is raised, and None takes the function away."""
        for name, answer in answers.items():
            if answer is None:
                delattr(self, name)
            else:
                setattr(self, name, self._function(answer))

    @staticmethod
    def _function(answer):
        def function(handle, *arguments):
            assert handle == "gpu"
            if isinstance(answer, Exception):
                raise answer
            return answer[arguments[0]] if arguments else answer

        return function

    def _may_fail(self, name: str) -> None:
        if name in self.fails:
            raise self.fails[name]

    def nvmlInit(self):  # noqa: N802 - as in pynvml
        self._may_fail("nvmlInit")
        self.opened += 1

    def nvmlShutdown(self):  # noqa: N802
        self._may_fail("nvmlShutdown")
        self.opened -= 1

    def nvmlSystemGetDriverVersion(self):  # noqa: N802
        self._may_fail("nvmlSystemGetDriverVersion")
        return "580.95.05"

    def nvmlDeviceGetHandleByUUID(self, uuid):  # noqa: N802
        if uuid not in self.handles:
            raise NotFoundInNvmlError("Not Found")
        return self.handles[uuid]

    def nvmlDeviceGetDeviceHandleFromMigDeviceHandle(self, handle):  # noqa: N802
        assert handle == "slice"
        return "gpu"


@pytest.fixture
def nvml(monkeypatch) -> Nvml:
    fake = Nvml()
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    # As with CUDA_VISIBLE_DEVICES=3,0: what torch calls cuda:1 is found by its UUID alone.
    uuids = ["another", UUID]
    monkeypatch.setattr(
        torch.cuda,
        "get_device_properties",
        lambda device: SimpleNamespace(uuid=uuids[device.index]),
    )
    monkeypatch.setattr(torch.version, "hip", None)
    return fake


def gpu_found(device_name: str = "cuda:1") -> dict[str, Finding]:
    return {finding.subject: finding for finding in diagnosis_gpu.gpu_findings(device_name)}


def the_one_unknown(device_name: str = "cuda:1") -> str:
    (finding,) = diagnosis_gpu.gpu_findings(device_name)
    assert (finding.subject, finding.verdict) == ("GPU", "unknown")
    return finding.value


def test_a_calm_gpu_is_fine_in_everything(nvml):
    found = gpu_found()
    assert {subject: finding.value for subject, finding in found.items()} == {
        "GPU clocks": "SM 345 of at most 1980 MHz, applications clock set to 1200 MHz",
        "GPU clock limits": "idle",
        "GPU power limit": "700 W, by default 700 W",
        "GPU temperature": "41 °C, 46 °C below slowdown",
        "GPU ECC": "on",
        "GPU MIG": "off",
        "GPU persistence mode": "on",
        "GPU processes of others": "none that NVML shows here",
        "GPU utilisation": "0% before the run",
        "GPU display": "none",
    }
    assert {(finding.verdict, finding.advice) for finding in found.values()} == {("fine", "")}
    assert nvml.opened == 0


@pytest.mark.parametrize(
    ("subject", "answers", "value"),
    [
        (
            "GPU clocks",
            {"nvmlDeviceGetApplicationsClock": {GRAPHICS: 1980}},
            "SM 345 of at most 1980 MHz, not held: they fall when idle",
        ),
        (
            "GPU clocks",
            {"nvmlDeviceGetApplicationsClock": None},
            "SM 345 of at most 1980 MHz, not held: they fall when idle",
        ),
        (
            "GPU clock limits",
            {"nvmlDeviceGetCurrentClocksEventReasons": POWER_CAP | THERMAL | UNNAMED},
            "power cap (software), thermal slowdown (hardware), bit 0x10000",
        ),
        (
            "GPU power limit",
            {"nvmlDeviceGetPowerManagementLimit": 450_000},
            "450 W, by default 700 W",
        ),
        (
            "GPU temperature",
            {"nvmlDeviceGetTemperatureV": {0: 80}, "nvmlDeviceGetMarginTemperature": 7},
            "80 °C, 7 °C below slowdown",
        ),
        ("GPU MIG", {"nvmlDeviceGetMigMode": [1, 0]}, "on, off after a reset"),
        ("GPU persistence mode", {"nvmlDeviceGetPersistenceMode": 0}, "off"),
        (
            "GPU utilisation",
            {"nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=6, memory=0)},
            "6% before the run",
        ),
        ("GPU display", {"nvmlDeviceGetDisplayActive": 1}, "active"),
    ],
)
def test_what_disturbs_a_gpu_warns(nvml, subject, answers, value):
    nvml.answers(answers)
    found = gpu_found()[subject]
    assert (found.verdict, found.value) == ("warning", value)
    assert found.advice.endswith(".")


@pytest.mark.parametrize(
    "name",
    [name for name in CALM if "ApplicationsClock" not in name and "Margin" not in name],
)
def test_what_nvml_can_not_say_is_unknown_with_its_reason(nvml, name):
    nvml.answers({"nvmlDeviceGetApplicationsClock": {GRAPHICS: 1980}})
    nvml.answers({name: NVMLError("Not Supported")})
    unknown = [finding for finding in gpu_found().values() if finding.verdict == "unknown"]
    assert unknown
    assert {finding.value for finding in unknown} == {"NVML: Not Supported"}
    assert all(finding.advice for finding in unknown)


def test_every_clock_event_reason_is_named():
    pynvml = pytest.importorskip("pynvml")
    named = {
        value
        for name, value in vars(pynvml).items()
        if re.fullmatch(r"nvmlClocks(Event|Throttle)Reason(?!All|None)\w+", name)
    }
    assert named == set(diagnosis_gpu._REASONS)


@pytest.mark.parametrize(
    ("reasons", "verdict", "value"),
    [
        (APPLICATIONS, "fine", "SM 345 of at most 1980 MHz, held by the applications clock"),
        (0, "unknown", "SM 345 of at most 1980 MHz; NVML can't tell whether they are locked"),
    ],
)
def test_clocks_are_judged_by_the_traces_of_a_lock(nvml, reasons, verdict, value):
    nvml.answers(
        {
            "nvmlDeviceGetApplicationsClock": {GRAPHICS: 1980},
            "nvmlDeviceGetCurrentClocksEventReasons": reasons,
        }
    )
    found = gpu_found()
    assert (found["GPU clocks"].verdict, found["GPU clocks"].value) == (verdict, value)
    assert found["GPU clock limits"].verdict == "fine"


def test_old_drivers_and_bindings_are_asked_by_the_old_names(nvml):
    nvml.answers(
        {
            "nvmlDeviceGetCurrentClocksEventReasons": FunctionNotFoundInNvmlError(),
            "nvmlDeviceGetCurrentClocksThrottleReasons": POWER_CAP,
            "nvmlDeviceGetTemperatureV": None,
            "nvmlDeviceGetTemperature": {0: 50},
            "nvmlDeviceGetMarginTemperature": FunctionNotFoundInNvmlError(),
            "nvmlDeviceGetTemperatureThreshold": {1: 90},
            "nvmlDeviceGetDisplayActive": None,
        }
    )
    found = gpu_found()
    assert found["GPU clock limits"].value == "power cap (software)"
    assert found["GPU temperature"].value == "50 °C, 40 °C below slowdown"
    assert found["GPU display"].value == (
        "this driver and this nvidia-ml-py have no nvmlDeviceGetDisplayActive"
    )


def test_a_temperature_without_a_margin_is_shown_and_unknown(nvml):
    nvml.answers({"nvmlDeviceGetMarginTemperature": NVMLError("Not Supported")})
    nvml.answers({"nvmlDeviceGetTemperatureThreshold": NVMLError("Not Supported")})
    found = gpu_found()["GPU temperature"]
    assert found.verdict == "unknown"
    assert found.value == "41 °C; where it slows down is unknown (NVML: Not Supported)"


@pytest.mark.parametrize(
    ("pids", "known_here", "expected"),
    [
        ([os.getpid()], {os.getpid()}, ("fine", "none that NVML shows here")),
        ([os.getpid(), 7], {os.getpid()}, ("warning", "1 on this GPU")),
        ([7, 8], {7}, ("warning", "2 on this GPU")),
        ([7], set(), ("unknown", "1 by numbers not known here, perhaps this process itself")),
    ],
)
def test_other_processes_on_the_gpu(nvml, monkeypatch, pids, known_here, expected):
    monkeypatch.setattr(psutil, "pid_exists", known_here.__contains__)
    listed = [SimpleNamespace(pid=pid, usedGpuMemory=None) for pid in pids]
    nvml.answers({"nvmlDeviceGetComputeRunningProcesses_v3": listed})
    found = gpu_found()["GPU processes of others"]
    assert (found.verdict, found.value) == expected


def test_a_gpu_is_found_by_its_uuid_alone(nvml):
    assert the_one_unknown("cuda:0") == "NVML has no GPU another: Not Found"
    assert nvml.opened == 0


def test_a_slice_has_the_clocks_of_its_gpu(nvml):
    nvml.handles = {f"MIG-{UUID}": "slice"}
    assert gpu_found()["GPU power limit"].value == "700 W, by default 700 W"
    assert gpu_facts("cuda:1")["uuid"] == f"MIG-{UUID}"


def test_without_a_driver_or_a_binding_there_is_one_finding_that_says_why(nvml, monkeypatch):
    nvml.fails["nvmlInit"] = NVMLError("Driver Not Loaded")
    assert the_one_unknown() == "NVML: Driver Not Loaded"
    monkeypatch.setitem(sys.modules, "pynvml", None)
    (finding,) = diagnosis_gpu.gpu_findings("cuda:1")
    assert finding.value.startswith("nvidia-ml-py can't be imported: ")
    assert finding.advice == "Install it: pip install nvidia-ml-py."


def test_an_nvml_that_will_not_close_spoils_nothing(nvml):
    nvml.fails["nvmlShutdown"] = NVMLError("Unknown Error")
    assert gpu_found()["GPU display"].verdict == "fine"


@pytest.mark.usefixtures("nvml")
def test_devices_that_nvml_does_not_know(monkeypatch):
    assert diagnosis_gpu.gpu_findings("cpu") == ()
    assert the_one_unknown("xpu:0") == "nothing here reads xpu devices"
    monkeypatch.setattr(torch.version, "hip", "6.4")
    assert the_one_unknown() == "an AMD GPU: NVML knows NVIDIA's alone"


@pytest.mark.usefixtures("nvml")
def test_a_device_that_torch_does_not_have_or_name(monkeypatch):
    assert the_one_unknown("cuda:x").startswith("torch has no cuda:x: ")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace())
    assert the_one_unknown().endswith("doesn't tell the UUID of cuda:1")


@pytest.mark.usefixtures("nvml")
def test_the_gpu_is_part_of_the_diagnosis(machine):
    found = diagnose("cuda:1", THREADS, root=machine.root)
    assert [finding.subject for finding in found][-1] == "GPU display"
    assert len(found) == len(diagnosis._LOOKS) + len(diagnosis_gpu._LOOKS)


def test_a_mistake_in_the_program_is_no_reading(nvml):
    nvml.answers({"nvmlDeviceGetEccMode": TypeError("a bug")})
    with pytest.raises(TypeError, match="a bug"):
        diagnosis_gpu.gpu_findings("cuda:1")
    assert nvml.opened == 0


@pytest.mark.usefixtures("nvml")
def test_facts_are_what_the_fingerprint_keeps():
    assert gpu_facts("cuda:1") == {
        "driver": "580.95.05",
        "uuid": f"GPU-{UUID}",
        "sm_clock_mhz": 345,
        "max_sm_clock_mhz": 1980,
        "memory_clock_mhz": 2619,
        "max_memory_clock_mhz": 3201,
        "power_limit_w": 700.0,
        "ecc": "on",
        "mig": "off",
    }


def test_facts_that_nvml_can_not_say_are_none(nvml, monkeypatch):
    nvml.answers({"nvmlDeviceGetMigMode": NVMLError("Not Supported")})
    nvml.fails["nvmlSystemGetDriverVersion"] = NVMLError("Unknown Error")
    missing = {name for name, fact in gpu_facts("cuda:1").items() if fact is None}
    assert missing == {"mig", "driver"}
    assert set(gpu_facts("cuda:0").values()) == {None}
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert set(gpu_facts("cuda:1").values()) == {None}


@pytest.mark.parametrize("device", ["cpu", "xpu:0"])
def test_only_cuda_devices_have_facts(device):
    assert gpu_facts(device) == {}


def test_the_real_nvml_takes_every_call():
    pynvml = pytest.importorskip("pynvml")
    source = inspect.getsource(diagnosis_gpu)
    asked = set(re.findall(r'"(nvmlDevice\w+)"', source))
    assert set(CALM) <= asked
    takes_an_argument = re.compile(r"(Clock|ClockInfo|GetTemperature(V|Threshold)?)$")
    for name in asked:
        arguments = ("handle", 0) if takes_an_argument.search(name) else ("handle",)
        inspect.signature(getattr(pynvml, name)).bind(*arguments)


def test_the_fake_nvml_has_the_real_names_and_constants():
    pynvml = pytest.importorskip("pynvml")
    source = inspect.getsource(diagnosis_gpu)
    used = set(re.findall(r"nvml\.((?:nvml|NVML)\w+)", source))
    used |= set(re.findall(r'"(NVML_\w+)"', source))
    fake = Nvml()
    assert {"nvmlDeviceGetHandleByUUID", "NVMLError_NotFound", "NVML_CLOCK_SM"} <= used
    for name in used:
        assert hasattr(fake, name), name
        real = getattr(pynvml, name)
        assert not isinstance(real, int) or real == getattr(fake, name), name


def test_the_real_nvml_does_not_know_the_fake_gpu(monkeypatch):
    pytest.importorskip("pynvml")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(uuid=UUID))
    assert set(gpu_facts("cuda:0").values()) == {None}


def test_importing_it_needs_no_torch():
    code = "import sys, kvbench.diagnosis; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_this_machine_can_be_diagnosed():
    found = diagnose("cpu", THREADS)
    assert len(found) == len(diagnosis._LOOKS)
    assert all(finding.subject and finding.value for finding in found)
    assert all((finding.verdict == "fine") == (not finding.advice) for finding in found)
    assert overall(found)
