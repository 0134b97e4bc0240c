"""Measuring in a process of its own: whatever a strategy does to it costs that strategy alone."""

import importlib
import os
import shlex
import signal
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest
import torch

from kvbench.axes import Axes
from kvbench.cases import Case
from kvbench.errors import KvbenchError
from kvbench.pool import flat_slots_view, slot_mapping
from kvbench.results import Result
from kvbench.store import Run, load
from kvbench.strategies import registry
from kvbench.strategies.base import Strategy
from kvbench.sweep import measure
from kvbench.sweep.measure import Bench, DeviceLostError, measure_case
from kvbench.sweep.runner import Plan, run_sweep
from kvbench.timing.clocks import Floor, WallClock
from kvbench.timing.rounds import StoppingRule

# Runs are shared between tests: xdist is to give them all to one process.
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("worker")]

HANG_S = 20.0
"""What a strategy's step may take here."""

COMMON = '''
import ctypes
import multiprocessing
import os
import resource
import time
import traceback
from pathlib import Path

import torch

from kvbench.pool import flat_slots_view, slot_mapping
from kvbench.strategies.base import Strategy
from kvbench.strategies.registry import register
from kvbench import buffers
from kvbench.sweep import measure, worker
from kvbench.timing import bandwidth

HERE = Path(__file__).parent
IN_WORKER = multiprocessing.parent_process() is not None
if IN_WORKER:
    bandwidth._CPU_BYTES = 1 << 16  # a start then takes little


def slots(workload):
    return slot_mapping(
        workload.block_tables, workload.starts, workload.lengths, workload.block_size
    )


class Right(Strategy):
    """Right, but for what `misbehave` does in the cases where it does so."""

    op = "write"
    summary = "made to fail"
    bad_at = 3

    def misbehave(self, workload):
        pass

    def bad(self, workload):
        # Predicting launches runs it on fake tensors, which are of no interest here.
        real = workload.device.type == "cpu"
        healed = (HERE / "healed").exists()
        return real and not healed and workload.case.seq_len == self.bad_at

    def run(self, workload, prepared):
        if self.bad(workload):
            self.misbehave(workload)
        where = slots(workload)
        flat_slots_view(workload.key_pool)[where] = workload.key
        flat_slots_view(workload.value_pool)[where] = workload.value
'''

HOSTILE = '''
if IN_WORKER:
    # What the worker has set by itself is noted; with a smaller share a test takes seconds.
    (HERE / "limited").write_text(
        str(resource.getrlimit(resource.RLIMIT_DATA)[0] != resource.RLIM_INFINITY)
    )
    worker._MEMORY_SHARE = 0.05
    worker.limit_memory("cpu")


@register
class Segfaults(Right):
    name = "write.segfaults"

    def misbehave(self, workload):
        ctypes.string_at(0)


@register
class SegfaultsLater(Right):
    name = "write.segfaults_later"
    calls = 0

    def misbehave(self, workload):
        self.calls += 1
        if self.calls > 100:
            frames = [frame.name for frame in traceback.extract_stack()]
            (HERE / "timing").write_text(str("sample_rounds" in frames))
            ctypes.string_at(0)


@register
class Hangs(Right):
    name = "write.hangs"

    def misbehave(self, workload):
        while True:
            time.sleep(1)


@register
class Exits(Right):
    name = "write.exits"

    def misbehave(self, workload):
        os._exit(3)


@register
class Killed(Right):
    """Waits for somebody to kill its process."""

    name = "write.killed"

    def misbehave(self, workload):
        (HERE / "pid.new").write_text(str(os.getpid()))
        (HERE / "pid.new").rename(HERE / "pid")
        time.sleep(120)


@register
class LosesDevice(Right):
    name = "write.loses_device"

    def misbehave(self, workload):
        def synchronize(device):
            raise RuntimeError("the device is lost")

        measure.synchronize = synchronize
        raise RuntimeError("an illegal address")


@register
class Raises(Right):
    name = "write.raises"

    def misbehave(self, workload):
        raise ValueError("nothing fits\\n  together")


@register
class Allocates(Right):
    """Without end; but where nothing ends it, the machine should live on."""

    name = "write.allocates"

    def misbehave(self, workload):
        held = []
        while len(held) < 100:
            held.append(torch.ones(1 << 24))  # 64 MiB, touched
        raise AssertionError("nothing stopped it")


@register
class Corrupts(Right):
    """Writes behind the last slot that it was given."""

    name = "write.corrupts"
    bad_at = 5

    def misbehave(self, workload):
        flat_slots_view(workload.key_pool)[int(slots(workload)[-1]) + 1] = 0


class RightRead(Right):
    op = "read"
    bad_at = 5

    def run(self, workload, prepared):
        if self.bad(workload):
            garbage = self.misbehave(workload)
            if garbage is not None:
                return garbage
        where = slots(workload)
        return flat_slots_view(workload.key_pool)[where], flat_slots_view(workload.value_pool)[
            where
        ]


@register
class Garbage(RightRead):
    name = "read.garbage"

    def misbehave(self, workload):
        return None, "what is this"


@register
class GarbageLater(RightRead):
    name = "read.garbage_later"
    calls = 0

    def misbehave(self, workload):
        self.calls += 1
        return None if self.calls < 100 else "what is this"
'''

PICKLED = '''
class Pickled(Right):
    """In no registry: it travels with what it was made with."""

    name = "write.pickled"

    def __init__(self, note):
        self.note = note

    def supports(self, case, device):
        return self.note if case.seq_len == 5 else None
'''

ENDS_EARLY = """
@register
class EndsEarly(Right):
    name = "write.ends_early"


def ends(case, device):
    os._exit(9)


if IN_WORKER:
    buffers.build = ends
"""

ENDED = {
    "write.segfaults": ("crashed", "ended by signal 11 (SIGSEGV)"),
    "write.segfaults_later": ("crashed", "ended by signal 11 (SIGSEGV)"),
    "write.hangs": ("hung", "no sign of life for"),
    "write.exits": ("crashed", "ended by exit code 3"),
    "write.killed": ("crashed", "ended by signal 9 (SIGKILL)"),
    "write.loses_device": ("crashed", "RuntimeError: an illegal address"),
    "write.raises": ("failed", "ValueError: nothing fits together"),
    "write.allocates": ("failed", "can't allocate memory"),
}
"""What is to be said of a strategy in the write of 3 tokens; all others are right there."""
INCORRECT = {
    ("write", "write.corrupts"): "belongs to no token but was written",
    ("read", "read.garbage"): "K is NoneType; expected a tensor",
    ("read", "read.garbage_later"): "after timing: run returned a str",
}
"""What is to be said in cases of 5 tokens."""
NOTE = "only this instance knows"

Rows = dict[tuple[str, int, str], list[Result]]


def plan(strategies: Sequence[Strategy], *axes: str) -> Plan:
    fixed = ("num_kv_heads=1", "head_dim=4", "dtype=fp32")
    return Plan(
        cases=Axes.parse([*axes, *fixed]).expand(),
        strategies=tuple(strategies),
        device=torch.device("cpu"),
        command="kvbench run --made",
        preset=None,
        seed=0,
        cell_seconds=0.005,
        call_budget_s=1.0,
        layers=1,
        clocks=("wall",),
        cache="hot",
    )


@contextmanager
def loaded(path: Path, text: str) -> Iterator[list[Strategy]]:
    """The strategies of a file, forgotten afterwards."""
    path.write_text(COMMON + text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "_STRATEGIES", dict(registry._STRATEGIES))
        patch.setattr(registry, "_FILES", dict(registry._FILES))
        known = set(registry.all_strategies())
        registry.load_file(path)
        yield [s for s in registry.all_strategies() if s not in known]


def kill_once_named(path: Path) -> None:
    """Kill the child of this process whose id appears in a file."""
    for _ in range(12_000):
        with suppress(FileNotFoundError):
            pid = int(path.read_text())
            if psutil.Process(pid).ppid() == os.getpid():
                os.kill(pid, signal.SIGKILL)
            return
        time.sleep(0.05)


def by_strategy(run: Run) -> Rows:
    rows = defaultdict(list)
    for row in run.results:
        rows[row.case.op, row.case.seq_len, row.strategy].append(row)
    return dict(rows)


def workers() -> list[psutil.Process]:
    """Children of this process that were spawned to measure."""
    return [
        child for child in psutil.Process().children() if "spawn_main" in " ".join(child.cmdline())
    ]


class Sweep:
    """A sweep with strategies that end their process, from a file and from no registry."""

    def __init__(self, scratch: Path, strategies: Sequence[Strategy]) -> None:
        self.scratch = scratch
        self.plan = plan(strategies, "op=write,read", "seq_len=2,3,5")
        self.told: list[Case] = []

    def session(self, *, resume: bool) -> Run:
        self.told = []
        self.ended = run_sweep(
            self.plan,
            self.scratch / "run",
            lambda case, _: self.told.append(case),
            isolate=True,
            resume=resume,
            hang_s=HANG_S,
        )
        return load(self.scratch / "run")


@pytest.fixture(scope="module")
def sweep(tmp_path_factory) -> Iterator[Sweep]:
    scratch = tmp_path_factory.mktemp("hostile")
    (scratch / "kvbench_pickled.py").write_text(COMMON + PICKLED)
    with (
        pytest.MonkeyPatch.context() as patch,
        loaded(scratch / "hostile.py", HOSTILE) as strategies,
    ):
        patch.syspath_prepend(scratch)  # a spawned process has its parent's path
        # What is committed between the sessions makes no other machine of this one.
        patch.setenv("GIT_DIR", str(scratch / "no-repository"))
        pickled = importlib.import_module("kvbench_pickled").Pickled(NOTE)
        builtin = registry.select(["*.slot_mapping"])
        yield Sweep(scratch, [*builtin, *strategies, pickled])
        del sys.modules["kvbench_pickled"]


@pytest.fixture(scope="module")
def hostile(sweep) -> Run:
    """The run after its first session."""
    killer = threading.Thread(target=kill_once_named, args=(sweep.scratch / "pid",), daemon=True)
    killer.start()
    return sweep.session(resume=False)


@pytest.fixture(scope="module")
def healed(sweep, hostile) -> Run:
    """The run after a second session, in which no strategy misbehaves."""
    del hostile
    (sweep.scratch / "healed").touch()
    return sweep.session(resume=True)


@pytest.mark.parametrize("name", ENDED)
def test_a_strategy_that_ends_its_process_or_fails_has_a_row_that_says_how(hostile, sweep, name):
    status, reason = ENDED[name]
    (row,) = by_strategy(hostile)["write", 3, name]
    assert (row.status, row.phase, row.measurement) == (status, "run", None)
    assert reason in row.reason
    assert len(row.reason.splitlines()) == 1
    words = shlex.split(row.repro)
    assert words[:2] == ["kvbench", "run"]
    assert words[words.index("-s") + 1] == name
    assert words[words.index("--load") + 1] == str(sweep.scratch / "hostile.py")


@pytest.mark.parametrize("key", INCORRECT, ids=lambda key: key[1])
def test_a_strategy_that_spoils_the_pool_or_returns_garbage_is_incorrect(hostile, key):
    op, name = key
    (row,) = by_strategy(hostile)[op, 5, name]
    assert row.status == "incorrect"
    assert INCORRECT[key] in row.reason
    assert name in shlex.split(row.repro)


def test_the_command_of_a_crash_is_that_of_any_other_row(hostile):
    rows = by_strategy(hostile)
    crashed = rows["write", 3, "write.segfaults"][0].repro
    right = rows["write", 3, "write.corrupts"][0].repro
    assert crashed == right.replace("write.corrupts", "write.segfaults")


def test_a_late_crash_was_in_the_middle_of_timing(hostile, sweep):
    del hostile
    assert (sweep.scratch / "timing").read_text() == "True"


def test_every_other_row_is_there_and_ok(hostile, sweep):
    rows = by_strategy(hostile)
    unlike = {("write", 3, name) for name in ENDED} | {(op, 5, name) for op, name in INCORRECT}
    unlike.add(("write", 5, "write.pickled"))
    expected = {
        (case.op, case.seq_len, strategy.name): strategy
        for case in sweep.plan.cases
        for strategy in sweep.plan.strategies_for(case)
    }
    assert set(rows) == set(expected)
    for key in set(expected) - unlike:
        assert {row.status for row in rows[key]} == {"ok"}, key
        phases = {"run", "prepare"} if expected[key].has_prepare() else {"run"}
        assert sorted(row.phase for row in rows[key]) == sorted(phases)


def test_the_rows_of_a_case_are_of_one_session_of_sampling(hostile):
    # After a crash the others are sampled anew, together: their rounds match.
    counts = defaultdict(set)
    for row in hostile.results:
        if row.status == "ok":
            counts[row.case].add(len(row.measurement.samples_s))
    assert {len(each) for each in counts.values()} == {1}


def test_a_pickled_instance_reaches_the_worker_as_it_was_made(hostile):
    rows = by_strategy(hostile)
    assert {row.status for row in rows["write", 2, "write.pickled"]} == {"ok"}
    (row,) = rows["write", 5, "write.pickled"]
    assert (row.status, row.reason) == ("unsupported", NOTE)


def test_a_worker_on_a_cpu_limits_its_memory(hostile, sweep):
    del hostile
    assert (sweep.scratch / "limited").read_text() == "True"


def test_no_worker_outlives_its_sweep(hostile):
    del hostile
    assert workers() == []


def test_what_crashed_hung_or_failed_is_measured_again_later(healed, hostile):
    before, after = by_strategy(hostile), by_strategy(healed)
    assert {before["write", 3, name][0].status for name in ENDED} == {"crashed", "hung", "failed"}
    for name in ENDED:
        (row,) = after["write", 3, name]
        assert (row.status, row.session) == ("ok", 1), name


def test_what_was_incorrect_or_unsupported_is_not_measured_again(healed, hostile, sweep):
    # Though each would be right by now.
    assert [(case.op, case.seq_len) for case in sweep.told] == [("write", 3)]
    assert (sweep.ended.measured, sweep.ended.left) == (1, 0)
    before, after = by_strategy(hostile), by_strategy(healed)
    others = {key for key in before if key[:2] != ("write", 3)}
    assert {key: after[key] for key in others} == {key: before[key] for key in others}


def test_workers_that_end_before_any_turn_end_the_run_with_an_error(tmp_path):
    told = []
    with loaded(tmp_path / "ends.py", ENDS_EARLY) as strategies:
        made = plan(strategies, "op=write", "seq_len=1,2,3,4,5")
        with pytest.raises(KvbenchError) as raised:
            run_sweep(made, tmp_path / "run", lambda case, _: told.append(case), isolate=True)
    message = str(raised.value)
    assert message.startswith("3 processes in a row ended before any strategy's turn")
    assert "exit code 9" in message
    assert len(message.splitlines()) == 1
    assert workers() == []
    # Those before it are on disk, and are measured again by a later session.
    rows = load(tmp_path / "run").results
    assert [row.case for row in rows] == told
    assert [row.status for row in rows] == ["crashed", "crashed"]


class FailsAt(Strategy):
    """Right until a call, which raises."""

    name = "write.fails_at"
    op = "write"
    summary = "fails at a call"

    def __init__(self, call: int) -> None:
        self.left = call

    def run(self, workload, prepared):
        del prepared
        if workload.device.type == "cpu":  # not on fake tensors
            self.left -= 1
        if self.left == 0:
            raise RuntimeError("an illegal address")
        where = slot_mapping(
            workload.block_tables, workload.starts, workload.lengths, workload.block_size
        )
        flat_slots_view(workload.key_pool)[where] = workload.key
        flat_slots_view(workload.value_pool)[where] = workload.value


@pytest.fixture
def bench(cpu) -> Bench:
    return Bench(
        device=cpu,
        clocks=(WallClock(cpu),),
        floors_s={"wall": Floor(0.0, 3e-8)},
        rule=StoppingRule(min_rounds=4, max_rounds=4, cell_seconds=1.0, sample_seconds=0.01),
        call_budget_s=1.0,
        copy_bytes_per_s=1e9,
    )


@pytest.mark.parametrize("call", [1, 4, 40], ids=["checked", "observed", "timed"])
def test_a_device_that_is_lost_with_a_strategy_ends_the_case(bench, monkeypatch, call):
    def lost(device):
        raise RuntimeError(f"{device} is lost")

    case = Case(op="write", seq_len=3, num_heads=1, num_kv_heads=1, head_dim=4, dtype="fp32")
    (row,) = measure_case(case, [FailsAt(call)], bench)
    assert (row.status, row.reason) == ("failed", "RuntimeError: an illegal address")
    monkeypatch.setattr(measure, "synchronize", lost)
    with pytest.raises(DeviceLostError, match="RuntimeError: an illegal address"):
        measure_case(case, [FailsAt(call)], bench)
