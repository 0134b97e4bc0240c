"""What a sweep leaves behind: Result rows and the run they belong to. Torch-free.

Changing a field's meaning, or removing one, needs a new SCHEMA_VERSION.
"""

import math
from dataclasses import dataclass
from typing import Literal

from kvbench.cases import MOST, Case
from kvbench.errors import InputError

SCHEMA_VERSION = 1

Status = Literal[
    "ok",
    "checked",
    "unsupported",
    "incorrect",
    "failed",
    "crashed",
    "hung",
    "over budget",
    "does not fit",
]
"""ok: correct and timed. checked: correct, and not timed for the reason given. unsupported: the
strategy can't do this case. incorrect: a bit was wrong. failed: it raised. crashed: the process
that it ran in ended. hung: it took longer than anything may, and was ended. over budget: one call
would take too long. does not fit: the case needs more memory than there is."""

RETRIED: frozenset[Status] = frozenset({"failed", "crashed", "hung"})
"""What a resumed run measures again."""

Part = Literal["gather", "write", "attend"]
"""What a run can have as a part that is timed by itself as well."""
Phase = Literal["run", "prepare"] | Part
"""prepare: once per step. run: once per layer. Of an index, which is done once per step: prepare
before the step, run in it. Of a step, run is all of its layers. gather: the part of an attend's run
that copies K and V out of the pools. write, attend: those of a step's run, in all layers."""

Verdict = Literal["fine", "warning", "unknown"]

StoppedBy = Literal["precision", "time", "rounds"]
"""What ended the sampling."""

CacheState = Literal["hot", "cold", "rotated"]
"""hot: every call uses the same buffers. cold: the last-level cache is flushed before each call.
rotated: calls take turns over buffers several times the size of the cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchCounts:
    """What one call hands to a GPU."""

    kernels: int
    memcpys: int
    """Copies in either direction and on the device."""
    synchronizations: int
    """Times that the host waits for the device."""
    source: Literal["counted", "predicted"]
    """"counted" by the profiler on this device; "predicted" from the op stream of fake tensors."""

    @property
    def launches(self) -> int:
        """Kernels and memcpys: everything that is enqueued."""
        return self.kernels + self.memcpys


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """The time of one call, and everything needed to judge it.

    Raises:
        InputError: A time is not a finite positive number, there is none, or the median lies
            outside its interval.
    """

    samples_s: tuple[float, ...]
    """Seconds per call, one sample per round, in the order of the rounds; nothing dropped. Sample
    i of every strategy of a case comes from the same round."""
    calls_per_sample: int
    """Calls that each sample is the mean of."""
    median_s: float
    low_s: float
    """Lower end of the bootstrap interval of the median."""
    high_s: float
    """Upper end of it."""
    confidence: float
    """Confidence of the interval, as 0.95."""
    stopped_by: StoppedBy
    """What ended the sampling: the interval was narrow enough, the time or the rounds ran out."""
    floor_s: float
    """The same clock's time for an empty call: reported, never subtracted."""
    allocates: bool
    """Whether each call allocates its output anew (as seen: two outputs held at once lie apart)."""
    page_faults: float | None
    """Minor page faults of the process in one call, the mean of a few. A large output that is
    allocated anew is mapped page by page, and that can take longer than filling it. None where the
    system doesn't count them."""
    nbytes: int | None
    """The least traffic of one call (see Case.nbytes); None for a prepare, which moves no K/V."""
    copy_share: float | None
    """nbytes / median_s as a share of the run's copy bandwidth: 1 is as fast as the best copy. Over
    1 is expected where the bytes fit a cache, and a fault to explain elsewhere. None without
    nbytes."""

    first_call_s: float | None = None
    """Wall time of the strategy's first prepare and run in this process for this case, before all
    samples and in none of them: what compiles or loads does it then. What an earlier case, or the
    compiler's cache on disk, has left is not done again. None for a prepare, whose time is in it,
    and in rows of before this was recorded."""
    processes: tuple[int, ...] = ()
    """Of a row that several processes measured one after the other (`kvbench ab`): how many of the
    samples are from each, in their order. Empty: all are from one."""

    def __post_init__(self) -> None:
        times = (*self.samples_s, self.median_s, self.low_s, self.high_s, self.floor_s)
        if not self.samples_s:
            raise InputError("samples_s=(): expected at least one sample")
        # A sum has NaN or infinity where a term has: nearly all rows need no look at each time.
        if not (min(times) > 0 and math.isfinite(sum(times))):
            for time in times:
                if not (math.isfinite(time) and time > 0):
                    raise InputError(f"time {time!r} s: expected a finite number above 0")
        if not self.low_s <= self.median_s <= self.high_s:
            raise InputError(
                f"median_s={self.median_s!r}: expected it within its interval, "
                f"{self.low_s!r} to {self.high_s!r}"
            )
        if self.first_call_s is not None and not 0 <= self.first_call_s < math.inf:
            raise InputError(
                f"first_call_s={self.first_call_s!r}: expected a finite number, 0 or more"
            )
        if self.processes and (
            min(self.processes) < 1 or sum(self.processes) != len(self.samples_s)
        ):
            raise InputError(
                f"processes={self.processes!r}: expected the samples of each, "
                f"{len(self.samples_s)} in all"
            )
        if self.calls_per_sample < 1:
            raise InputError(f"calls_per_sample={self.calls_per_sample!r}: expected 1 or more")

    @property
    def resolved(self) -> bool:
        """Whether the time stands out from the clock's own: twice the floor or more."""
        return self.median_s >= 2 * self.floor_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One row: what became of one strategy's phase in one case.

    Raises:
        InputError: An "ok" without a measurement or with a reason, or another status without a
            reason or with a measurement.
    """

    case: Case
    strategy: str
    phase: Phase
    clock: str
    """What was timed. "wall": host time around calls and one synchronisation, per call. "enqueue":
    host time without waiting. "device": time that the device was busy. "events": time between two
    events. "graph": wall time of the replay of a captured graph."""
    cache: CacheState
    status: Status
    reason: str | None = None
    """Why there is no measurement; None if there is one."""
    measurement: Measurement | None = None
    launches: LaunchCounts | None = None
    """What one call launches on a GPU; None if that can't be told."""
    repro: str
    """The command that measures this row again."""
    session: int = 0
    """Which of the run's sessions measured it: 0 the first, 1 the one that resumed it, and so on. A
    case that a later session measured again has the later rows alone when a run is loaded."""

    def __post_init__(self) -> None:
        if (self.status == "ok") != (self.measurement is not None):
            raise InputError(f"status {self.status!r}: expected a measurement if and only if 'ok'")
        if (self.status == "ok") == (self.reason is not None):
            raise InputError(f"status {self.status!r}: expected a reason if and only if not 'ok'")


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """The machine and the software of a run. What can't be read is None, never a guess."""

    kvbench: str
    git_commit: str | None
    git_dirty: bool | None
    python: str
    torch: str
    triton: str | None
    os: str
    architecture: str
    cpu: str
    usable_cpus: int
    torch_threads: int
    memory_bytes: int
    last_level_cache_bytes: int | None
    cpu_governor: str | None
    device: str
    """As torch names it: "cpu", "cuda:0"."""
    device_name: str
    device_memory_bytes: int | None
    device_runtime: str | None
    """The runtime that torch was built for, as "CUDA 13.0"; None on a CPU."""
    gpu: dict[str, str | int | float | None]
    """What NVML says of the GPU: driver, UUID, clocks, power limit, ECC, MIG; empty on a CPU."""
    host: str | None = None
    """Which machine of a cluster; None where it was measured on the machine that asked for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyBandwidth:
    """The best copy found on the device at the start of the run.

    Raises:
        InputError: Its bandwidth is no finite number above 0, though bytes were copied.
    """

    bytes_per_s: float
    """Bytes read plus bytes written, per second."""
    nbytes: int
    """Bytes read plus bytes written by one copy; far more than the caches hold."""
    how: str
    """Which copy it was."""

    def __post_init__(self) -> None:
        nothing = self.bytes_per_s == self.nbytes == 0  # for which a device had no room
        if not (0 < self.bytes_per_s < math.inf or nothing):
            raise InputError(
                f"copy bandwidth {self.bytes_per_s!r} B/s: expected a finite number above 0"
            )


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing about a machine that timings depend on, as `kvbench doctor` tells it."""

    subject: str
    """What was looked at, as "CPU governor"."""
    value: str
    """What was read, for people; where it is unknown, why."""
    verdict: Verdict
    advice: str
    """What to do about it, one sentence; "" where it is fine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumption:
    """A later session of a run, or another machine's part of it."""

    created: str
    """ISO 8601, UTC."""
    command: str
    environment: Environment
    copy_bandwidth: CopyBandwidth | None = None
    """What this session measured, and its rows' copy_share refers to; None in older runs."""
    findings: tuple[Finding, ...] | None = None
    """As RunInfo's, when this session began."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunInfo:
    """What holds for every row of a run: run.json.

    Raises:
        InputError: There is no layer, or more than any machine has, or a floor is no time.
    """

    schema_version: int
    created: str
    """ISO 8601, UTC."""
    command: str
    preset: str | None
    seed: int
    cell_seconds: float
    call_budget_s: float
    layers: int
    """Layers of a step, for step cost = prepare + layers * run, where nothing else is asked."""
    environment: Environment
    copy_bandwidth: CopyBandwidth
    cache: CacheState
    floors_s: dict[str, float]
    """Time of an empty call by each clock, in long samples; of one empty launch by the clocks of a
    device. A row's own floor is for samples as long as its."""
    launch_floor_s: float
    """Wall time of one empty launch, in long samples; on a CPU, of the same op without one."""
    resumptions: tuple[Resumption, ...] = ()
    """The sessions after the first."""
    interleaved: str | None = None
    """What two runs have in common that were measured in turns, sample by sample: samples of one
    number are then from the same round. None: it was measured alone."""
    findings: tuple[Finding, ...] | None = None
    """What of the machine timings depend on, looked at when the run began; None in runs of before
    this was recorded."""
    tree: str | None = None
    """Which code was measured, as its user named it: a revision, a folder, an interpreter. None:
    that of the kvbench that wrote this."""

    def __post_init__(self) -> None:
        if not 1 <= self.layers <= MOST:
            raise InputError(f"layers={self.layers!r}: expected 1 or more, up to {MOST}")
        for name, time_s in (*self.floors_s.items(), ("launch", self.launch_floor_s)):
            if not 0 <= time_s < math.inf:  # a device's clock may be coarser than an empty launch
                raise InputError(f"floor of {name}={time_s!r} s: expected a finite time >= 0")
