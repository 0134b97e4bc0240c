"""Runs that end early and are gone on with: killed, interrupted, cut off, or with failed rows."""

import itertools
import os
import random
import shlex
import signal
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

import psutil
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from made import contents, result, run_folder, run_info
from torch.nn.functional import scaled_dot_product_attention

from kvbench.axes import Axes
from kvbench.cases import Case
from kvbench.pool import flat_slots_view, slot_mapping
from kvbench.results import RETRIED, Result
from kvbench.store import ROWS_FILE, RUN_FILE, Run, load
from kvbench.strategies.base import Strategy
from kvbench.sweep.runner import _MOST_CLOCKS, Ended, Plan, missing_cases, run_sweep
from kvbench.timing import bandwidth

# Runs are shared between tests: xdist is to give them all to one process.
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("resume")]

SEED = 20
CHAINS = 2
"""Chains of killed runs go on side by side."""
KILLS = {"starting": 6, "measuring": 2, "writing": 2}
"""The kills of each chain, by what a run is doing; their order is random."""
START_S = 7.0
"""About what a run takes to start; a kill that comes later than that hits what it hits."""
MEASURING_S = 1.5
"""A part of what measuring takes, so that there is something left to resume."""
CASES = 14
PATIENCE_S = 120
GONE_S = 60
"""A worker that is still importing when its runner ends notices once it has imported."""
MARK = "KVBENCH_TEST_RUN"
"""The environment variable by which all processes of a run are found."""

NO_REPOSITORY = "/no/repository"
"""As GIT_DIR: what is committed between two sessions makes no other machine of this one."""

LOGS = '''
import multiprocessing
import time
from pathlib import Path

from kvbench.pool import flat_slots_view, slot_mapping
from kvbench.strategies.base import Strategy
from kvbench.strategies.registry import register
from kvbench.timing import bandwidth

HERE = Path(__file__).parent
if multiprocessing.parent_process() is not None:
    bandwidth._CPU_BYTES = 1 << 16  # a start then takes little


@register
class Logs(Strategy):
    """Right; notes each case as it is begun, and waits there while a file says so."""

    name = "write.logs"
    op = "write"
    summary = "notes each case"
    begun = 0

    def supports(self, case, device):
        self.begun += 1
        with (HERE / "log").open("a") as log:
            log.write(f"{case.batch}\\n")
        while (HERE / f"hold{self.begun}").exists():
            time.sleep(0.02)

    def run(self, workload, prepared):
        if workload.device.type == "cpu":
            time.sleep(0.001)  # so that there is something to interrupt
        slots = slot_mapping(
            workload.block_tables, workload.starts, workload.lengths, workload.block_size
        )
        flat_slots_view(workload.key_pool)[slots] = workload.key
        flat_slots_view(workload.value_pool)[slots] = workload.value
'''

Key = tuple[Case, str, str, str, str]
Popen = subprocess.Popen[str]


def keys(run: Run) -> Counter[Key]:
    """What two runs of one plan have in common, whatever times they measured."""
    return Counter((r.case, r.strategy, r.phase, r.clock, r.status) for r in run.results)


@dataclass
class Command:
    """`kvbench run` of a sweep, in a scratch folder of its own."""

    scratch: Path
    mark: str = field(default_factory=lambda: str(uuid.uuid4()))

    def __post_init__(self) -> None:
        self.scratch.mkdir(parents=True, exist_ok=True)
        (self.scratch / "logs.py").write_text(LOGS)

    def words(self, *more: object) -> list[str]:
        # Without a second seq_len there is nothing to plot, which would take seconds. More than 32
        # tokens would be tried as smaller cases before, which the log would have as well.
        axes = [f"batch=1:{CASES}:+1", "seq_len=2", "num_kv_heads=1", "head_dim=4", "dtype=fp32"]
        words = ["run", *(word for axis in axes for word in ("-a", axis))]
        words += ["-s", "write.slot_mapping", "-s", "write.logs", "--load", "logs.py"]
        words += ["--device", "cpu", "--cell-seconds", "0.005"]
        return [*words, *map(str, more)]

    def start(self, words: Iterable[str]) -> Popen:
        return subprocess.Popen(
            [sys.executable, "-m", "kvbench", *words],
            cwd=self.scratch,
            env={**os.environ, MARK: self.mark, "COLUMNS": "200", "GIT_DIR": NO_REPOSITORY},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,  # a signal for its group is then for no other
        )

    def begun(self) -> list[int]:
        """The batches of the cases that were begun, in order."""
        log = self.scratch / "log"
        return [int(line) for line in log.read_text().split()] if log.exists() else []

    def processes(self) -> list[int]:
        """All that is left of the runs of this command, whoever their parents are."""
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get(MARK) == self.mark:
                    found.append(process.pid)
            except (psutil.Error, OSError):
                continue  # another user's, or gone
        return found


def wait_for(
    what: Callable[[], bool], seconds: float = PATIENCE_S, *, every_s: float = 0.02
) -> bool:
    deadline = time.monotonic() + seconds
    while not what():
        if time.monotonic() > deadline:
            return False
        time.sleep(every_s)
    return True


@dataclass(frozen=True)
class Process:
    code: int
    out: str
    err: str


def ended(process: Popen) -> Process:
    out, err = process.communicate(timeout=PATIENCE_S)
    return Process(process.returncode, out, err)


def completed(command: Command, words: Iterable[str]) -> str:
    """Run it to its end; what it printed."""
    run = ended(command.start(words))
    assert (run.code, run.err, command.processes()) == (0, "", [])
    return run.out


# Killed runs.


@dataclass(frozen=True)
class Kill:
    """What there was after a kill."""

    moment: str
    begun: int
    """Cases that its session had begun."""
    whole: bool
    """No line on disk was torn."""
    lost: set[int]
    """Cases without all of their rows, though a later one was begun."""
    orphans: list[int]


@dataclass
class Chain:
    """Runs of one sweep that are killed and resumed; once complete, a new sweep."""

    base: Path
    undisturbed: Counter[Key]
    rng: random.Random
    kills: list[Kill] = field(default_factory=list)
    complete: list[Counter[Key]] = field(default_factory=list)
    """What the runs that came to their end hold."""

    def go(self) -> "Chain":
        kinds = [kind for kind, count in KILLS.items() for _ in range(count)]
        self.rng.shuffle(kinds)
        while kinds:
            self.sweep(kinds)
        return self

    def sweep(self, kinds: list[str]) -> None:
        """Kill and resume until a session comes to its end."""
        command = Command(self.base / str(len(self.complete)))
        words = command.words("-o", "run", "--resume")
        sure: set[int] = set()
        alive = True
        while kinds:
            before = len(command.begun())
            moment, wait = self.moment(kinds[-1], command)
            with command.start(words) as runner:
                alive = wait(runner)
                runner.kill()
                assert alive or runner.wait() == 0, runner.stderr.read()
            if not alive:
                break  # it was complete before the kill came
            begun = command.begun()[before:]
            sure |= set(begun[:-1])
            self.kills.append(self.after(command, f"{kinds.pop()}, {moment}", len(begun), sure))
        if alive:
            completed(command, words)
        self.complete.append(keys(load(command.scratch / "run")))

    def moment(self, kind: str, command: Command) -> tuple[str, Callable[[Popen], bool]]:
        """A random moment in words, and what waits for it: False if the run ended before."""
        rows = command.scratch / "run" / ROWS_FILE
        begun = len(command.begun())

        def size() -> int:
            return rows.stat().st_size if rows.exists() else 0

        if kind == "starting":
            delay = self.rng.uniform(0.1, START_S)
            return f"{delay:.2f} s after the start", lambda runner: lasts(runner, delay)
        if kind == "measuring":
            delay = self.rng.uniform(0, MEASURING_S)
            return (
                f"{delay:.2f} s after the first case was begun",
                lambda runner: (
                    until(runner, lambda: len(command.begun()) > begun) and lasts(runner, delay)
                ),
            )
        count, sizes = self.rng.randint(1, 3), {size()}

        def written() -> bool:
            sizes.add(size())
            return len(sizes) > count

        return f"as soon as rows were written {count} times", lambda runner: until(runner, written)

    def after(self, command: Command, moment: str, begun: int, sure: set[int]) -> Kill:
        folder = command.scratch / "run"
        rows = folder / ROWS_FILE
        data = rows.read_bytes() if rows.exists() else b""
        found = keys(load(folder)) if rows.exists() else Counter()
        missing = {key[0].batch for key in self.undisturbed - found}
        wait_for(lambda: not command.processes(), GONE_S)
        whole = not data or data.endswith(b"\n")
        return Kill(moment, begun, whole, sure & missing, command.processes())


def lasts(runner: Popen, seconds: float) -> bool:
    """Whether it is still there after some time."""
    try:
        runner.wait(seconds)
    except subprocess.TimeoutExpired:
        return True
    return False


def until(runner: Popen, what: Callable[[], bool]) -> bool:
    """Wait for something; False if the runner ended before."""
    assert wait_for(lambda: what() or runner.poll() is not None, PATIENCE_S, every_s=0.002)
    return runner.poll() is None


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> Run:
    """A run that nobody disturbs."""
    command = Command(tmp_path_factory.mktemp("undisturbed"))
    completed(command, command.words("-o", "run"))
    run = load(command.scratch / "run")
    assert {row.status for row in run.results} == {"ok"}
    assert len(run.results) == CASES * 3
    return run


@pytest.fixture(scope="module")
def chains(undisturbed, tmp_path_factory) -> list[Chain]:
    made = [
        Chain(
            tmp_path_factory.mktemp("killed"),
            keys(undisturbed),
            random.Random(SEED + number),  # noqa: S311 - reproducible, not secret
        )
        for number in range(CHAINS)
    ]
    with ThreadPoolExecutor(CHAINS) as threads:
        done = list(threads.map(Chain.go, made))
    for number, chain in enumerate(done):
        for kill in chain.kills:
            # pytest shows it if a test fails.
            print(f"seed {SEED + number}, {kill.moment}: case {kill.begun}")  # noqa: T201
    return done


@pytest.fixture(scope="module")
def kills(chains) -> list[Kill]:
    return [kill for chain in chains for kill in chain.kills]


def test_kills_come_while_starting_and_while_measuring(kills):
    assert len(kills) == CHAINS * sum(KILLS.values())
    assert {bool(kill.begun) for kill in kills} == {True, False}


def test_a_killed_run_leaves_whole_lines(kills):
    assert [kill for kill in kills if not kill.whole] == []


def test_a_kill_costs_at_most_the_case_under_way(kills):
    assert [kill for kill in kills if kill.lost] == []


def test_a_killed_runner_leaves_no_process_behind(kills):
    assert [kill for kill in kills if kill.orphans] == []


def test_killed_runs_that_are_resumed_end_as_one_that_was_not_disturbed(chains, undisturbed):
    complete = [found for chain in chains for found in chain.complete]
    assert len(complete) >= CHAINS
    for found in complete:
        assert found == keys(undisturbed)


# An interrupted run, after two others wanted its folder.


@dataclass(frozen=True)
class Story:
    """A run that is held in its fourth case, while others try, then interrupted in its eighth."""

    folder: Path
    refused: dict[str, Process]
    before: dict[str, bytes]
    during: dict[str, bytes]
    interrupted: Process
    left: list[int]
    """Processes after the interruption."""
    rows: int
    """After the interruption."""
    resumed: Process
    begun: list[int]


@pytest.fixture(scope="module")
def story(tmp_path_factory) -> Story:
    command = Command(tmp_path_factory.mktemp("interrupted"))
    others = [Command(tmp_path_factory.mktemp("other")) for _ in range(2)]
    holds = [command.scratch / "hold4", command.scratch / "hold8"]
    for hold in holds:
        hold.touch()
    first = command.start(command.words())  # it makes a folder
    assert wait_for(lambda: len(command.begun()) == 4)
    (folder,) = (command.scratch / "results").iterdir()
    before = contents(folder)
    wanted = [others[0].words("-o", folder), others[1].words("-o", folder, "--resume")]
    started = [other.start(words) for other, words in zip(others, wanted, strict=True)]
    refused = dict(zip(("new", "resumed"), map(ended, started), strict=True))
    during = contents(folder)
    holds[0].unlink()
    assert wait_for(lambda: len(command.begun()) == 8)
    os.killpg(first.pid, signal.SIGINT)  # as Ctrl-C does
    interrupted = ended(first)
    left = command.processes()
    holds[1].unlink()
    rows = len(load(folder).results)
    said = shlex.split(interrupted.err.partition("to go on: ")[2])
    resumed = ended(command.start(said[1:]))
    return Story(folder, refused, before, during, interrupted, left, rows, resumed, command.begun())


@pytest.mark.parametrize(
    ("kind", "reason"),
    [("new", "another kvbench is writing to it"), ("resumed", "another kvbench is writing to it")],
)
def test_a_second_runner_in_a_folder_is_refused(story, kind, reason):
    refused = story.refused[kind]
    (line,) = refused.err.splitlines()
    assert (refused.code, line.startswith("error: ")) == (2, True)
    assert str(story.folder) in line
    assert reason in line


def test_a_second_runner_does_not_disturb_the_first(story):
    assert story.before == story.during
    assert story.rows == 7 * 3  # it went on to its eighth case
    assert story.begun[:8] == list(dict.fromkeys(story.begun))[:8]


def test_an_interrupted_run_says_in_a_line_how_to_go_on(story):
    (line,) = story.interrupted.err.splitlines()
    assert (story.interrupted.code, story.left) == (130, [])
    words = shlex.split(line.partition("interrupted; to go on: ")[2])
    assert words[:2] == ["kvbench", "run"]
    assert words[-3:] == ["-o", str(Path("results") / story.folder.name), "--resume"]


def test_that_command_completes_the_run(story, undisturbed):
    assert (story.resumed.code, story.resumed.err) == (0, "")
    assert f"{CASES - 7} of {CASES} cases to measure" in story.resumed.out
    assert keys(load(story.folder)) == keys(undisturbed)
    # Each once, but for the one under way when it was interrupted.
    assert Counter(Counter(story.begun).values()) == {1: CASES - 1, 2: 1}


def test_the_rows_of_each_session_are_told_apart(story):
    run = load(story.folder)
    assert Counter(row.session for row in run.results) == {0: 7 * 3, 1: (CASES - 7) * 3}
    (resumption,) = run.info.resumptions
    assert resumption.command.endswith("--resume")


# Rows that are cut off or failed: the runner in this process.


class Write(Strategy):
    """Right, with a prepare: two rows a case."""

    name = "write.right"
    op = "write"
    summary = "writes over flat slots"

    def prepare(self, workload):
        return slot_mapping(
            workload.block_tables, workload.starts, workload.lengths, workload.block_size
        )

    def run(self, workload, prepared):
        flat_slots_view(workload.key_pool)[prepared] = workload.key
        flat_slots_view(workload.value_pool)[prepared] = workload.value


class Plain(Write):
    """Without a prepare: one row a case."""

    name = "write.plain"
    prepare = Strategy.prepare

    def run(self, workload, prepared):
        del prepared
        super().run(workload, Write.prepare(self, workload))


class Gathers(Strategy):
    """Right for one sequence, with a prepare and a gather: three rows a case."""

    name = "attend.gathers"
    op = "attend"
    summary = "gathers one sequence, then attends"
    parts = ("gather",)

    def prepare(self, workload):
        return torch.from_numpy(workload.slot_mapping())

    def run_part(self, part, workload, prepared):  # noqa: ARG002
        pools = workload.key_pool, workload.value_pool
        return tuple(flat_slots_view(pool)[prepared].transpose(0, 1) for pool in pools)

    def run(self, workload, prepared):
        key, value = self.run_part("gather", workload, prepared)
        query = workload.query.transpose(0, 1)
        return scaled_dot_product_attention(query, key, value).transpose(0, 1).contiguous()


class FailsWithoutFile(Plain):
    """Raises until there is a file."""

    name = "write.fails_without_file"

    def __init__(self, path: Path) -> None:
        self.path = path

    def run(self, workload, prepared):
        if not self.path.exists():
            raise FileNotFoundError(self.path)
        super().run(workload, prepared)


STRATEGIES = (Write(), Plain())


def plan(*strategies: Strategy, seq_lens: str = "1:5:+1", clocks: tuple[str, ...] = ()) -> Plan:
    return Plan(
        cases=Axes.parse(
            ["op=write", f"seq_len={seq_lens}", "num_kv_heads=1", "head_dim=4", "dtype=fp32"]
        ).expand(),
        strategies=strategies or STRATEGIES,
        device=torch.device("cpu"),
        command="kvbench run --made",
        preset=None,
        seed=0,
        cell_seconds=0.001,
        call_budget_s=1.0,
        layers=1,
        clocks=clocks,
        cache="hot",
    )


@pytest.fixture(autouse=True, scope="module")
def _quick_and_alike() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GIT_DIR", NO_REPOSITORY)
        patch.setattr(bandwidth, "_CPU_BYTES", 1 << 16)
        yield


def session(made: Plan, folder: Path, *, resume: bool = True) -> tuple[Ended, list[Case]]:
    """A session in this process, and the cases that it measured."""
    told: list[Case] = []
    ending = run_sweep(made, folder, lambda case, _: told.append(case), resume=resume)
    return ending, told


def lines(folder: Path) -> list[bytes]:
    return (folder / ROWS_FILE).read_bytes().splitlines(keepends=True)


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> dict[str, bytes]:
    """The files of a complete run."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    session(plan(), folder, resume=False)
    assert len(lines(folder)) == 5 * 3
    return contents(folder)


@pytest.fixture
def folder(whole, tmp_path) -> Path:
    """A copy of the complete run, to be damaged."""
    for name, data in whole.items():
        (tmp_path / name).write_bytes(data)
    return tmp_path


def test_a_complete_run_is_left_as_it_is(folder, whole):
    ending, told = session(plan(), folder)
    assert (ending.why, ending.measured, told) == ("complete", 0, [])
    assert contents(folder) == whole


def test_a_gather_is_among_the_rows_that_make_a_case_whole(tmp_path):
    axes = Axes.parse(["op=attend", "seq_len=2:4:+1", "num_kv_heads=1", "head_dim=4", "dtype=fp32"])
    made = replace(plan(Gathers()), cases=axes.expand())
    assert made.most_rows(made.cases[:1]) == 3 * _MOST_CLOCKS
    session(made, tmp_path, resume=False)
    whole = lines(tmp_path)
    assert len(whole) == 3 * 3
    assert session(made, tmp_path)[1] == []
    (tmp_path / ROWS_FILE).write_bytes(b"".join(whole[:-1]))
    assert [case.seq_len for case in session(made, tmp_path)[1]] == [
        load(tmp_path).results[-1].case.seq_len
    ]


@pytest.mark.parametrize("kept", [1, 40, -1], ids="{} bytes".format)
def test_a_torn_last_line_is_cut_off_and_its_case_measured_again(folder, kept):
    kept_lines = lines(folder)
    torn = load(folder).results[-1].case
    (folder / ROWS_FILE).write_bytes(b"".join([*kept_lines[:-1], kept_lines[-1][:kept]]))
    ending, told = session(plan(), folder)
    assert (told, ending.measured, ending.left) == ([torn], 1, 0)
    # Behind the whole lines there are only new ones.
    assert lines(folder)[:14] == kept_lines[:14]
    run = load(folder)
    assert run.warnings == ()
    assert len(lines(folder)) == 14 + 3
    assert len(run.results) == 5 * 3
    assert {row.session for row in run.results if row.case == torn} == {1}


@pytest.mark.parametrize("count", range(1, 4))
def test_a_case_whose_rows_end_early_is_measured_again_whole(folder, count):
    cut = load(folder).results[-1].case
    (folder / ROWS_FILE).write_bytes(b"".join(lines(folder)[:-count]))
    _, told = session(plan(), folder)
    assert told == [cut]
    run = load(folder)
    assert len(run.results) == 5 * 3
    assert {row.session for row in run.results if row.case == cut} == {1}


def test_rows_cut_off_in_the_middle_of_the_file_are_measured_again(folder):
    rows = load(folder).results
    gone = rows[4].case
    (folder / ROWS_FILE).write_bytes(b"".join(lines(folder)[:4] + lines(folder)[5:]))
    _, told = session(plan(), folder)
    assert told == [gone]
    assert len(load(folder).results) == 5 * 3


def test_a_run_killed_before_its_first_row_is_measured_whole(folder):
    (folder / ROWS_FILE).unlink()
    _, told = session(plan(), folder)
    assert len(told) == 5
    assert len(load(folder).results) == 5 * 3


def test_run_json_that_was_never_finished_is_no_obstacle(tmp_path):
    (tmp_path / f".{RUN_FILE}.new").write_text("{")
    _, told = session(plan(), tmp_path)
    assert len(told) == 5
    assert set(contents(tmp_path)) == {RUN_FILE, ROWS_FILE}


def with_status(row: Result, status: str) -> Result:
    return replace(row, status=status, reason=f"{status} once", measurement=None)


@pytest.mark.parametrize(
    "status",
    ["failed", "crashed", "hung", "incorrect", "unsupported", "checked", "over budget"],
)
def test_what_failed_is_measured_again_and_what_was_decided_is_not(folder, whole, status):
    rows = load(folder).results
    case = rows[0].case
    plain = next(row for row in rows if row.case == case and row.strategy == "write.plain")
    damaged = [with_status(row, status) if row == plain else row for row in rows]
    info = load(folder).info
    for name in whole:
        (folder / name).unlink()
    fields = {name: getattr(info, name) for name in type(info).__dataclass_fields__}
    run_folder(folder, damaged, **fields)
    _, told = session(plan(), folder)
    run = load(folder)
    assert told == ([case] if status in RETRIED else [])
    assert len(run.results) == 5 * 3
    after = {row.status for row in run.results if row.case == case}
    assert after == ({"ok"} if status in RETRIED else {"ok", status})


def test_a_failure_is_superseded_by_a_later_success(tmp_path):
    marker = tmp_path / "here"
    made = plan(Write(), FailsWithoutFile(marker), seq_lens="1,2")
    run = tmp_path / "run"
    session(made, run, resume=False)
    first = load(run).results
    assert Counter((row.strategy, row.status) for row in first) == {
        ("write.right", "ok"): 4,
        ("write.fails_without_file", "failed"): 2,
    }
    # As long as it fails, every session tries again.
    _, told = session(made, run)
    assert len(told) == 2
    assert {row.session for row in load(run).results} == {1}
    marker.touch()
    session(made, run)
    last = load(run).results
    assert {(row.status, row.session) for row in last} == {("ok", 2)}
    assert len(last) == 2 * 3
    assert len(load(run).info.resumptions) == 2
    _, told = session(made, run)
    assert told == []


# What is missing, as a function of rows.

CLOCKS = ("wall", "enqueue")
UNTIMED = ("incorrect", "unsupported", "checked", "over budget", "does not fit")


def measured(strategy: Strategy, case: Case, clocks: int) -> list[Result]:
    fields = {"num_kv_heads": 1, "head_dim": 4, "dtype": "fp32", "num_heads": 1}
    return [
        result(strategy.name, phase=phase, clock=clock, seq_len=case.seq_len, **fields)
        for phase in strategy.phases()
        for clock in CLOCKS[:clocks]
    ]


@st.composite
def rows_of(draw, strategy: Strategy, case: Case, clocks: int) -> tuple[list[Result], bool]:
    """Rows of a strategy in a case, and whether they are all that there is to be had."""
    rows = measured(strategy, case, clocks)
    kind = draw(st.sampled_from(["whole", "cut", "untimed", "retried", "clock refused"]))
    if kind == "cut":
        return rows[: draw(st.integers(0, len(rows) - 1))], False
    if kind == "untimed":
        return [with_status(rows[0], draw(st.sampled_from(UNTIMED)))], True
    if kind == "retried":
        status = draw(st.sampled_from(sorted(RETRIED)))
        at = draw(st.integers(0, len(rows) - 1))
        alone = draw(st.booleans())
        failed = with_status(rows[at], status)
        return [failed] if alone else [*rows[:at], failed, *rows[at + 1 :]], False
    if kind == "clock refused":
        return [*rows[:-1], with_status(rows[-1], "unsupported")], True
    return rows, True


@given(st.data(), st.integers(1, 2))
def test_exactly_the_cases_with_a_strategy_that_lacks_rows_are_missing(data, clocks):
    made = plan(clocks=CLOCKS[:clocks])
    rows: list[Result] = []
    expected = set()
    for case, strategy in itertools.product(made.cases, STRATEGIES):
        drawn, whole = data.draw(rows_of(strategy, case, clocks))
        rows += drawn
        if not whole:
            expected.add(case)
    shuffled = data.draw(st.permutations(rows))
    info = run_info(floors_s=dict.fromkeys(CLOCKS[:clocks], 3e-8))
    missing = missing_cases(made, Run(Path(), info, tuple(shuffled), ()))
    assert set(missing) == expected
    assert missing == [case for case in made.in_order() if case in expected]


def synthetic(made: Plan, **fields) -> list[Result]:
    return [
        replace(row, **fields)
        for case in made.cases
        for strategy in made.strategies_for(case)
        for row in measured(strategy, case, 1)
    ]


def test_rows_of_other_cases_and_strategies_make_nothing_complete():
    made, other = plan(), plan(seq_lens="7:11:+1")
    run = Run(Path(), run_info(), tuple(synthetic(other)), ())
    assert missing_cases(made, run) == made.in_order()
    renamed = [replace(row, strategy=f"{row.strategy}_too") for row in synthetic(made)]
    assert missing_cases(made, Run(Path(), run_info(), tuple(renamed), ())) == made.in_order()


def test_a_strategy_more_makes_every_case_missing():
    made = plan()
    run = Run(Path(), run_info(), tuple(synthetic(made)), ())
    assert missing_cases(made, run) == []
    more = plan(*STRATEGIES, FailsWithoutFile(Path("nowhere")))
    assert missing_cases(more, run) == more.in_order()


def test_a_case_more_is_all_that_is_missing():
    run = Run(Path(), run_info(), tuple(synthetic(plan())), ())
    more = plan(seq_lens="1:6:+1")
    assert [case.seq_len for case in missing_cases(more, run)] == [6]
