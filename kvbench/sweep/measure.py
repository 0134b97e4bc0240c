"""One case, in order: build, check, time what passed in interleaved rounds, check again."""

import dataclasses
import functools
import importlib
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

import torch

from kvbench import oracle
from kvbench.analysis.statistics import CONFIDENCE
from kvbench.buffers import Buffers
from kvbench.cases import Case
from kvbench.devices import free_bytes, synchronize
from kvbench.errors import InputError, KvbenchError, StrategyError
from kvbench.filling import fill
from kvbench.results import CacheState, LaunchCounts, Measurement, Phase, Result, Status
from kvbench.strategies.base import Strategy, why_unsupported, why_untimed
from kvbench.strategies.registry import file_of
from kvbench.sweep.budget import estimate
from kvbench.sweep.first_call import FirstCall
from kvbench.sweep.launches import counted, method_of, predicted
from kvbench.sweep.replay import Replay
from kvbench.timing.accelerator import Accelerator
from kvbench.timing.cache import Flush, copies_to_rotate, rotation
from kvbench.timing.clocks import Clock, ClockError, Floor
from kvbench.timing.rounds import Sampling, StoppingRule, sample_those_that_work
from kvbench.units import format_bytes, format_seconds
from kvbench.workload import Workload, build, needed_bytes

# Unix alone has it.
resource: Any = importlib.import_module("resource") if find_spec("resource") else None

UNTIMED_SHARE = 0.1
"""Of the call budget: what a call may take that is only checked, never timed."""

_OBSERVED_CALLS = 3
_VERSION_AFTER = 2
"""The version of the data for the check after timing; the check before has 0 and 1."""
_VERSION_REPLAYED = 3
"""That for the check of a graph's replay."""


class DeviceLostError(KvbenchError):
    """A strategy left the device in a state in which nothing works: an illegal address, say."""


Call = Callable[[], object]
Subject = tuple[Strategy, Phase]
Outcome = Sampling | tuple[Status, str]
"""A subject's samples, or the status and the reason of its row."""


class Sampler(Protocol):
    """Takes the samples of a case's subjects by one clock."""

    def __call__(
        self,
        clock: Clock,
        calls: Mapping[Subject, Call],
        limits: Mapping[Subject, int | None],
        case: Case,
        bench: "Bench",
    ) -> dict[Subject, Outcome]:
        """Each subject's samples, or the status and reason of its row.

        Args:
            clock: What measures.
            calls: What to measure, by subject.
            limits: By subject, the most calls of a sample; None for any number.
            case: Whose subjects they are.
            bench: What they are measured with.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """What all cases of a run are measured with."""

    device: torch.device
    clocks: tuple[Clock, ...]
    """The first is the one that rows without a measurement name."""
    floors_s: Mapping[str, Floor]
    rule: StoppingRule
    call_budget_s: float
    """A strategy whose one call would take longer is not run."""
    copy_bytes_per_s: float
    cache: CacheState = "hot"
    cache_bytes: int | None = None
    """The device's last-level cache."""
    flush: Flush | None = None
    """Where caches are to be cold."""
    accelerator: Accelerator | None = None
    """What launches are counted with; None on a CPU, where they are predicted."""
    buffers: Buffers = field(default_factory=Buffers)
    """Those of the last case, for the next of its shape."""
    on_step: Callable[[Strategy | None, str], None] = lambda *_: None
    """Told which strategy is about to do what, so that somebody knows if it never comes back."""
    sampler: "Sampler | None" = None
    """Who decides whose turn it is; rounds of this process's subjects alone if None."""

    def options(self) -> tuple[str, ...]:
        """The options of `kvbench run` that give these limits."""
        return options(self.cache, self.rule.cell_seconds, self.call_budget_s)


def options(cache: CacheState, cell_seconds: float, call_budget_s: float) -> tuple[str, ...]:
    """The options of `kvbench run` that give these limits."""
    return (
        *("--cache", cache),
        *("--cell-seconds", f"{cell_seconds:g}"),
        *("--call-budget", f"{call_budget_s:g}"),
    )


def one_line(error: BaseException) -> str:
    """An exception's type and message, for a row."""
    try:
        message = str(error)
    except Exception:  # noqa: BLE001 - an exception is somebody's code, too
        message = "(its message can't be had)"
    printable = message.encode("utf-8", "backslashreplace").decode()
    return " ".join(f"{type(error).__name__}: {printable}".split())


def repro(case: Case, strategy: Strategy, device: torch.device, options: Iterable[str] = ()) -> str:
    """The command that measures one strategy in one case again, with further options."""
    return repro_of(case, strategy.name, file_of(strategy), str(device), options)


def repro_of(
    case: Case, name: str, file: Path | None, device: str, options: Iterable[str] = ()
) -> str:
    """The same of a strategy that another process has, by its name and its file."""
    words = [word for axis, value in case.axes().items() for word in ("-a", f"{axis}={value}")]
    words += ["-s", name, "--device", device]
    if file is not None:
        words += ["--load", str(file)]
    words += options
    return shlex.join(["kvbench", "run", *words])


def measure_case(case: Case, strategies: Iterable[Strategy], bench: Bench) -> list[Result]:
    """Every strategy's rows for one case.

    A strategy that was timed has one row per phase and clock, another has one row that says why.

    Args:
        case: The case.
        strategies: Those of the case's op.
        bench: Device, clocks and limits.
    """
    candidates = list(strategies)
    free = bench.buffers.usable_bytes(case, bench.device) + free_bytes(bench.device)
    copies = copies_to_rotate(case.nbytes, bench.cache_bytes) if bench.cache == "rotated" else 1
    needed = needed_bytes(case, free, copies if isinstance(copies, int) else 1)
    if needed > free:
        reason = f"needs {format_bytes(needed)}; {format_bytes(free)} are free on {bench.device}"
        return [_refusal(case, s, bench, "does not fit", reason) for s in candidates]

    try:
        workload = bench.buffers.build(case, bench.device)
    except InputError as error:  # no strategy can do it: its slots have no room
        return [_refusal(case, s, bench, "unsupported", str(error)) for s in candidates]
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        return [_refusal(case, s, bench, "does not fit", one_line(error)) for s in candidates]

    rows: list[Result] = []
    timed: dict[Strategy, float] = {}
    for strategy in candidates:
        bench.on_step(strategy, "check")
        try:
            outcome = _examine(strategy, workload, bench)
        except Exception as error:  # noqa: BLE001 - any failure of a strategy is its row
            _refuse_lost_device(error, bench)
            outcome = ("failed", one_line(error))
        if isinstance(outcome, float):
            timed[strategy] = outcome
        else:
            rows.append(_refusal(case, strategy, bench, *outcome))
    if timed:
        rows += _time(timed, workload, bench)
    bench.buffers.keep(workload)
    return rows


def _refuse_lost_device(error: BaseException, bench: Bench) -> None:
    """Raise DeviceLostError if the device no longer works: every later failure would be a lie."""
    try:
        synchronize(bench.device)
    except RuntimeError:
        raise DeviceLostError(one_line(error)) from error


def _refusal(case: Case, strategy: Strategy, bench: Bench, status: Status, reason: str) -> Result:
    return Result(
        case=case,
        strategy=strategy.name,
        phase="run",
        clock=bench.clocks[0].name,
        cache=bench.cache,
        status=status,
        reason=reason,
        # Predicting runs the strategy: not one that is wrong, or that would take too long.
        launches=predicted(strategy, case, "run") if status == "checked" else None,
        repro=repro(case, strategy, bench.device, bench.options()),
    )


def _examine(strategy: Strategy, workload: Workload, bench: Bench) -> tuple[Status, str] | float:
    """What a first call took if the strategy may be timed, else the status of its row and why."""
    case = workload.case
    try:
        unsupported = why_unsupported(strategy, case, bench.device)
        untimed = why_untimed(strategy, bench.device)
    except StrategyError as error:
        return "failed", str(error)
    if unsupported is not None:
        return "unsupported", unsupported
    if bench.cache == "rotated":
        copies = copies_to_rotate(case.nbytes, bench.cache_bytes)
        if isinstance(copies, str):
            return "unsupported", copies
    budget_s = bench.call_budget_s * (1.0 if untimed is None else UNTIMED_SHARE)
    expected = estimate(strategy, case, bench.device)
    if expected.call_s > budget_s:
        why = f" ({untimed})" if untimed else ""
        return (
            "over budget",
            f"one call would take about {format_seconds(expected.call_s)}, "
            f"over the {format_seconds(budget_s)} a call may take{why}",
        )
    first = FirstCall(strategy, bench.device)
    mismatch = oracle.check(first, workload)
    if mismatch:
        return "incorrect", mismatch
    first_call_s = max(expected.first_call_s, first.seconds)
    return first_call_s if untimed is None else ("checked", untimed)


def _time(strategies: Mapping[Strategy, float], workload: Workload, bench: Bench) -> list[Result]:
    """The rows of strategies, given with what a first call of each took."""
    case = workload.case
    try:
        workloads = _workloads(workload, bench)
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        return [_refusal(case, s, bench, "does not fit", one_line(error)) for s in strategies]
    rows: list[Result] = []
    subjects: dict[Subject, Call] = {}
    launches: dict[Subject, LaunchCounts | None] = {}
    prepared: dict[Strategy, list[object]] = {}
    effects: dict[Subject, Effects] = {}
    for strategy in strategies:
        bench.on_step(strategy, "prepare")
        try:
            prepared[strategy] = [strategy.prepare(each) for each in workloads]
            counts = _launches(strategy, workload, "run", bench)
            calls = _phases(strategy, workloads, prepared[strategy])
            seen = _observe_phases(strategy, workload, prepared[strategy][0])
        except Exception as error:  # noqa: BLE001 - any failure of a strategy is its row
            _refuse_lost_device(error, bench)
            rows.append(_refusal(case, strategy, bench, "failed", one_line(error)))
            continue
        seen["run"] = dataclasses.replace(seen["run"], first_call_s=strategies[strategy])
        for phase, call in calls.items():
            subjects[strategy, phase] = call
            effects[strategy, phase] = seen[phase]
            launches[strategy, phase] = (
                counts if phase == "run" else _launches(strategy, workload, phase, bench)
            )
    sampled = {
        clock.name: _sample(clock, subjects, launches, case, bench) for clock in bench.clocks
    }
    faults = {}
    for strategy in dict.fromkeys(strategy for strategy, _ in subjects):
        bench.on_step(strategy, "check after timing")
        faults[strategy] = _check_after(strategy, workloads, prepared[strategy], bench)
        replayed = sampled.get("graph", {})
        if isinstance(replayed.get((strategy, "run")), Sampling):
            fault = _check_replay(strategy, workload, prepared[strategy][0], bench)
            replayed[strategy, "run"] = fault or replayed[strategy, "run"]
    bench.on_step(None, "done")
    for strategy, phase in subjects:
        for clock, outcomes in sampled.items():
            subject = (strategy, phase)
            outcome = faults[strategy] or outcomes[subject]
            rows.append(
                _row(subject, clock, outcome, launches[subject], effects[subject], case, bench)
            )
    return rows


@dataclass(frozen=True, slots=True)
class Effects:
    """What a call was seen to do beside its work."""

    allocates: bool
    page_faults: float | None = None
    first_call_s: float | None = None
    """What the first prepare and run took together."""


def observe(call: Call) -> Effects:
    """Make a call a few times and look: does it allocate its output, does it fault pages in?"""
    held, other = (_tensors(call()) for _ in range(2))
    allocates = any(
        one.data_ptr() != two.data_ptr()
        for one, two in zip(held, other, strict=True)
        if one.numel()
    )
    del held, other
    if resource is None:
        return Effects(allocates)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(_OBSERVED_CALLS):
        call()
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
    return Effects(allocates, faults / _OBSERVED_CALLS)


def _observe_phases(
    strategy: Strategy, workload: Workload, prepared: object
) -> dict[Phase, Effects]:
    """What a call of each phase was seen to do; a prepare has no output to look at."""
    return {
        phase: Effects(allocates=False)
        if phase == "prepare"
        else observe(functools.partial(method_of(strategy, phase), workload, prepared))
        for phase in strategy.phases()
    }


def _tensors(output: object) -> tuple[torch.Tensor, ...]:
    """What a run returns: K and V of a read, the mapping of an index, nothing of a write."""
    if isinstance(output, torch.Tensor):
        return (output,)
    return output if isinstance(output, tuple) else ()


def _workloads(workload: Workload, bench: Bench) -> list[Workload]:
    """The buffers that calls take turns over: one set, unless caches are to be rotated."""
    workloads = [workload]
    if bench.cache == "rotated":
        copies = int(copies_to_rotate(workload.case.nbytes, bench.cache_bytes))
        workloads += [build(workload.case, bench.device) for _ in range(copies - 1)]
    for each in workloads:
        fill(each)
    return workloads


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory ran out: a CPU's allocator raises a plain RuntimeError."""
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or (
        isinstance(error, RuntimeError) and "can't allocate memory" in str(error)
    )


def _phases(
    strategy: Strategy, workloads: Sequence[Workload], prepared: Sequence[object]
) -> dict[Phase, Call]:
    """What is timed of a strategy."""
    return {
        phase: functools.partial(strategy.prepare, workloads[0])
        if phase == "prepare"
        else _turns(method_of(strategy, phase), workloads, prepared)
        for phase in strategy.phases()
    }


def _turns(
    method: Callable[[Workload, Any], object],
    workloads: Sequence[Workload],
    prepared: Sequence[object],
) -> Call:
    """A strategy's method as a call; with several sets of buffers, they take turns."""
    calls: list[Call] = [
        functools.partial(method, workload, once)
        for workload, once in zip(workloads, prepared, strict=True)
    ]
    return calls[0] if len(calls) == 1 else rotation(calls)


def _launches(
    strategy: Strategy, workload: Workload, phase: Phase, bench: Bench
) -> LaunchCounts | None:
    if bench.accelerator is None:
        return predicted(strategy, workload.case, phase)
    return counted(strategy, workload, phase, bench.accelerator)


def _check_after(
    strategy: Strategy, workloads: Sequence[Workload], prepared: Sequence[object], bench: Bench
) -> Outcome | None:
    """None if it is still right, with the very things that it was timed with.

    What is right when called once may not be after a thousand calls. Of buffers that took turns the
    first and the last are looked at.
    """
    pairs = list(zip(workloads, prepared, strict=True))
    for workload, once in {id(pair[0]): pair for pair in (pairs[0], pairs[-1])}.values():
        try:
            mismatch = oracle.recheck(strategy, workload, once, _VERSION_AFTER)
        except Exception as error:  # noqa: BLE001 - any failure of a strategy is its row
            _refuse_lost_device(error, bench)
            return "failed", f"after timing: {one_line(error)}"
        if mismatch:
            return "incorrect", f"after timing: {mismatch}"
    return None


def _check_replay(
    strategy: Strategy, workload: Workload, prepared: object, bench: Bench
) -> Outcome | None:
    """None if a graph of the strategy does what the strategy does, with data it has not seen."""
    if bench.accelerator is None:
        return None
    try:
        replay = Replay(strategy, workload, prepared, bench.accelerator)
        mismatch = oracle.recheck(replay, workload, prepared, _VERSION_REPLAYED)
    except Exception as error:  # noqa: BLE001 - any failure of a strategy is its row
        _refuse_lost_device(error, bench)
        return "failed", f"replayed as a graph: {one_line(error)}"
    return ("incorrect", f"replayed as a graph: {mismatch}") if mismatch else None


def _sample(
    clock: Clock,
    subjects: Mapping[Subject, Call],
    launches: Mapping[Subject, LaunchCounts | None],
    case: Case,
    bench: Bench,
) -> dict[Subject, Outcome]:
    """Each subject's samples by one clock, or the reason why there are none."""
    outcomes: dict[Subject, Outcome] = {}
    limits: dict[Subject, int | None] = {}
    for subject in subjects:
        counts = launches[subject]
        refused = clock.refuses(counts) if counts is not None else None
        if clock.name == "graph" and bench.cache != "hot":
            refused = "graph clock: a graph replays the same buffers, so its caches are hot"
        if clock.name == "graph" and subject[1] == "prepare":
            refused = "graph clock: a replay would not read the scheduler's lists again"
        if refused is not None:
            outcomes[subject] = ("unsupported", refused)
        else:
            limits[subject] = clock.most_calls(counts)
    calls = {subject: subjects[subject] for subject in limits}
    if not calls:
        return outcomes
    sampler = bench.sampler or _sample_here
    return outcomes | sampler(clock, calls, limits, case, bench)


def _sample_here(
    clock: Clock,
    calls: Mapping[Subject, Call],
    limits: Mapping[Subject, int | None],
    case: Case,
    bench: Bench,
) -> dict[Subject, Outcome]:
    failed: dict[Subject, Outcome] = {}

    def fail(subject: Subject, cause: BaseException) -> None:
        failed[subject] = why_not_sampled(cause, bench)

    sampled = sample_those_that_work(
        calls,
        clock,
        bench.rule,
        case.seed,
        fail,
        before=bench.flush,
        most_calls=limits,
        on_turn=lambda subject: bench.on_step(subject[0], "time"),
    )
    return failed | sampled


def why_not_sampled(cause: BaseException, bench: Bench) -> tuple[Status, str]:
    """The status and reason of a subject that raised while it was sampled.

    Raises:
        DeviceLostError: The device no longer works.
    """
    _refuse_lost_device(cause, bench)
    return "unsupported" if isinstance(cause, ClockError) else "failed", one_line(cause)


def _row(
    subject: Subject,
    clock: str,
    outcome: Outcome,
    launches: LaunchCounts | None,
    effects: Effects,
    case: Case,
    bench: Bench,
) -> Result:
    strategy, phase = subject
    status: Status = "ok"
    reason = measurement = None
    if isinstance(outcome, Sampling):
        measurement = _measurement(outcome, effects, phase, clock, case, bench)
    else:
        status, reason = outcome
    return Result(
        case=case,
        strategy=strategy.name,
        phase=phase,
        clock=clock,
        # A prepare has no buffers of K and V to take turns over.
        cache="hot" if phase == "prepare" and bench.cache == "rotated" else bench.cache,
        status=status,
        reason=reason,
        measurement=measurement,
        launches=launches,
        repro=repro(case, strategy, bench.device, bench.options()),
    )


def _measurement(
    sampling: Sampling,
    effects: Effects,
    phase: Phase,
    clock: str,
    case: Case,
    bench: Bench,
) -> Measurement:
    nbytes = {
        "prepare": None,
        "run": case.nbytes,
        "gather": case.gathered_bytes,
        "write": case.written_bytes,
        "attend": case.attended_bytes,
    }[phase]
    median_s = sampling.estimate.median
    return Measurement(
        samples_s=sampling.samples_s,
        calls_per_sample=sampling.calls_per_sample,
        median_s=median_s,
        low_s=sampling.estimate.low,
        high_s=sampling.estimate.high,
        confidence=CONFIDENCE,
        stopped_by=sampling.stopped_by,
        floor_s=bench.floors_s[clock].at(sampling.calls_per_sample),
        allocates=effects.allocates,
        page_faults=effects.page_faults,
        first_call_s=effects.first_call_s,
        nbytes=nbytes,
        # Handing work over moves nothing.
        copy_share=nbytes / median_s / bench.copy_bytes_per_s
        if nbytes is not None and clock != "enqueue"
        else None,
    )
