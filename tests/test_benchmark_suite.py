"""`pytest benchmarks/`: kvbench measures, pytest-benchmark saves, compares and fails."""

import json
import math
import os
import re
import statistics
import subprocess
import sys
import time
from argparse import ArgumentTypeError
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec
import pytest
import torch
from made import environment, result, run_info

from kvbench.analysis.frame import to_frame
from kvbench.benchmark_json import builtins_of, info_of, load, rows_of
from kvbench.errors import StoreError
from kvbench.presets import PRESETS
from kvbench.results import SCHEMA_VERSION
from kvbench.strategies import registry
from kvbench.strategies.base import Strategy

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

from suite import (
    CASES,
    RecordedClock,
    Suite,
    cell_id,
    cells,
    extra_info,
    seconds,
    settle,
    timed,
    unlike,
)

ROOT = Path(__file__).parents[1]
LABEL = "op=index seq_len=1024"
SELECTED = "index.numpy-run-seq_len:1024"
FULLNAME = f"benchmarks/test_regress.py::test_time[{SELECTED}]"
WRONG = """
from kvbench.strategies.base import Strategy
from kvbench.strategies.registry import register


@register
class Idle(Strategy):
    name = "write.idle"
    op = "write"
    summary = "writes nothing, in no time"

    def run(self, workload, prepared):
        pass
"""


def pytest_in(folder: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    """The real suite, with files of pytest-benchmark below a folder."""
    # A process of pytest-xdist's times nothing, and says so by this.
    own = {name: value for name, value in os.environ.items() if "XDIST" not in name}
    return subprocess.run(
        [
            *(sys.executable, "-m", "pytest", ROOT / "benchmarks", "-p", "no:cacheprovider"),
            *map(str, arguments),
        ],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        # As the processes of this suite, so that they don't get in each other's way.
        env={**own, "OMP_NUM_THREADS": "1", "COLUMNS": "200"},
    )


def write_base(path: Path, median_s: float) -> Path:
    """A saved run of pytest-benchmark alone, in which one test took so long."""
    stats = dict.fromkeys(("min", "max", "mean", "median"), median_s)
    stats |= {"stddev": 0, "iqr": 0, "outliers": "0;0", "rounds": 5, "iterations": 1}
    stats |= {"ops": 1 / median_s}
    data = {"machine_info": {}, "benchmarks": [{"fullname": FULLNAME, "stats": stats}]}
    path.write_text(json.dumps(data))
    return path


@dataclass
class Ran:
    folder: Path
    done: subprocess.CompletedProcess[str]
    report: dict = field(init=False)

    def __post_init__(self):
        assert self.done.returncode == 0, self.done.stdout + self.done.stderr
        self.report = json.loads((self.folder / "report.json").read_text())

    def saved(self) -> Path:
        (found,) = self.folder.glob(".benchmarks/cpu-*/*/0001_base.json")
        return found


@pytest.fixture(scope="module")
def ran(tmp_path_factory) -> Ran:
    folder = tmp_path_factory.mktemp("ran")
    done = pytest_in(
        folder,
        *("--benchmark-enable", "--kvbench-device", "cpu", "--kvbench-cell-seconds", "0.01"),
        *("-k", "index.numpy and seq_len:1024] or index.torch and seq_len:1024] or write.cuda"),
        *("--benchmark-json", "report.json", "--benchmark-save", "base"),
        f"--benchmark-compare={write_base(folder / 'slow.json', 3600.0)}",
        "--benchmark-compare-fail=median:10%",
    )
    return Ran(folder, done)


def test_the_suite_runs_and_says_why_something_is_not_timed(ran):
    # numpy's run; torch's run and prepare; CUDA's run and prepare in each case.
    writes = [case for case in CASES.values() if case.op == "write"]
    assert f"3 passed, {2 * len(writes)} skipped" in ran.done.stdout
    assert "unsupported: device cpu: CUDA C++ is for NVIDIA GPUs alone" in ran.done.stdout


def test_a_base_that_was_much_slower_passes(ran):
    assert "Comparing against benchmarks from: " in ran.done.stderr
    assert f"test_time[{SELECTED}] (NOW)" in ran.done.stdout
    assert "regressed" not in ran.done.stderr


def test_a_base_that_is_not_kvbench_s_is_warned_of(ran):
    expected = "Compared with a saved run that is not like this one: no rows of kvbench"
    assert expected in ran.done.stderr


def test_the_statistics_of_pytest_benchmark_are_those_of_the_very_samples(ran):
    for benchmark in ran.report["benchmarks"]:
        (row,) = (row for row in benchmark["extra_info"]["rows"] if row["clock"] == "wall")
        samples_s = row["measurement"]["samples_s"]
        assert benchmark["stats"]["data"] == samples_s
        assert benchmark["stats"]["median"] == statistics.median(samples_s)
        assert benchmark["options"]["timer"] == "kvbench_wall_clock"


def test_a_benchmark_has_the_case_and_what_explains_its_time(ran):
    found = {benchmark["name"]: benchmark for benchmark in ran.report["benchmarks"]}
    benchmark = found[f"test_time[{SELECTED}]"]
    assert benchmark["group"] == f"{LABEL} run"
    assert benchmark["fullname"] == FULLNAME
    assert benchmark["params"] == {"strategy": "index.numpy", "phase": "run", "case": LABEL}
    extra = benchmark["extra_info"]
    assert extra["case"] == CASES[LABEL].fields()
    assert extra["nbytes"] == CASES[LABEL].nbytes
    assert extra["launches"]["source"] == "predicted"
    assert extra["floor_s"] > 0
    assert extra["low_s"] <= extra["median_s"] <= extra["high_s"]
    assert extra["device_s"] is None  # a CPU has no such clock
    assert extra["repro"].startswith("kvbench run -a op=index -a seq_len=1024 -s index.numpy")


def test_files_are_saved_apart_for_each_device_and_have_the_machine(ran):
    name = ran.report["machine_info"]["kvbench"]["environment"]["device_name"]
    folder = ran.saved().parents[1]
    assert folder.name.startswith("cpu-")
    assert folder.name.removeprefix("cpu-") in name.lower().replace(" ", "-")


def test_a_file_is_read_back_as_the_run_that_it_is(ran):
    run = load(ran.folder / "report.json")
    assert run.warnings == ()
    assert run.info.preset == "regress"
    assert run.info.cell_seconds == 0.01
    assert run.info.command.startswith("pytest ")
    ok = {(row.strategy, row.phase): row for row in run.results if row.status == "ok"}
    names = {("index.numpy", "run"), ("index.torch", "run"), ("index.torch", "prepare")}
    assert ok.keys() == names
    by_name = {each["fullname"]: each for each in ran.report["benchmarks"]}
    samples_s = ok["index.numpy", "run"].measurement.samples_s
    assert list(samples_s) == by_name[FULLNAME]["stats"]["data"]
    # What was not timed is in the file, too, though pytest-benchmark has no place for it.
    refused = [row for row in run.results if row.status != "ok"]
    assert {(row.strategy, row.status) for row in refused} == {("write.cuda", "unsupported")}
    assert len(to_frame(run.results)) == len(run.results)
    saved = load(ran.saved())
    assert (saved.info, saved.results) == (run.info, run.results)


def test_pytest_benchmark_s_own_compare_reads_a_saved_run(ran):
    done = subprocess.run(
        [
            *(Path(sys.executable).with_name("pytest-benchmark"), "--storage"),
            *(ran.saved().parents[1], "compare", "0001"),
        ],
        capture_output=True,
        text=True,
        check=False,
        cwd=ran.folder,
    )
    assert done.returncode == 0, done.stderr
    assert SELECTED in done.stdout


def test_a_base_that_was_much_faster_fails(tmp_path):
    done = pytest_in(
        tmp_path,
        *("--benchmark-enable", "--kvbench-device", "cpu", "--kvbench-cell-seconds", "0.01"),
        *("-k", "index.numpy and seq_len:1024]"),
        f"--benchmark-compare={write_base(tmp_path / 'fast.json', 1e-12)}",
        "--benchmark-compare-fail=median:10%",
    )
    assert done.returncode == 1
    assert "Field 'median' has failed PercentageRegressionCheck" in done.stderr
    assert "FAILED" not in done.stdout  # the test itself passed


def test_disabled_it_checks_and_times_nothing(tmp_path):
    wrong = tmp_path / "idle.py"
    wrong.write_text(WRONG)
    done = pytest_in(
        tmp_path,
        *("--kvbench-device", "cpu", "--kvbench-load", wrong, "--benchmark-json", "report.json"),
        *("-k", "index.numpy and seq_len:1024] or write.idle and seq_len:1]"),
    )
    assert done.returncode == 1
    assert "1 failed, 1 passed" in done.stdout
    assert "incorrect: " in done.stdout
    assert f"kvbench check -a op=write -a seq_len=1 -s write.idle --device cpu --load {wrong}" in (
        done.stdout
    )
    assert "Median" not in done.stdout
    assert not (tmp_path / "report.json").exists()


@pytest.fixture
def suite(cpu) -> Suite:
    return Suite(device=cpu, cell_seconds=0.001, command="pytest benchmarks")


class Idle(Strategy):
    name = "write.idle"
    op = "write"
    summary = "writes nothing, in no time"

    def run(self, workload, prepared):
        pass


def test_a_wrong_strategy_fails_with_the_command_and_its_row_is_kept(suite, strategies):
    strategies["write.idle"] = Idle()
    right, wrong = (("write.slot_mapping", "run"), ("write.idle", "run"))
    label = "op=write seq_len=1"
    suite.selected = [(*right, label), (*wrong, label)]
    with pytest.raises(pytest.fail.Exception, match=r"incorrect: .*\n  kvbench run -a op=write"):
        timed(suite.rows((*wrong, label)))
    # Measured together with the other, once.
    rows = suite.rows((*right, label))
    assert timed(rows).measurement is not None
    assert suite.rows((*right, label)) == rows
    suite.hand_over((*right, label))
    left = {(row.strategy, row.phase, row.status) for row in suite.other_rows()}
    assert left == {("write.idle", "run", "incorrect"), ("write.slot_mapping", "prepare", "ok")}


def test_strategies_that_are_not_selected_are_not_measured(suite):
    suite.selected = [("index.numpy", "run", LABEL)]
    assert {row.strategy for row in suite.rows(suite.selected[0])} == {"index.numpy"}


def test_a_strategy_that_is_not_timed_has_one_reason_for_all_of_its_phases(suite):
    label = "op=write seq_len=1"
    suite.selected = [("write.cuda", phase, label) for phase in ("run", "prepare")]
    rows = [suite.rows(cell) for cell in suite.selected]
    assert rows[0] == rows[1]
    with pytest.raises(pytest.skip.Exception, match="unsupported: device cpu"):
        timed(rows[0])


class Slow(Strategy):
    name = "write.slow"
    op = "write"
    summary = "takes 10 ms a token, and is never timed"

    def untimed(self, device):
        return f"it is slow on a {device}"

    def run(self, workload, prepared):
        del prepared
        time.sleep(0.01 * workload.case.tokens)


def test_what_is_never_timed_and_takes_long_is_not_checked(suite, strategies):
    strategies["write.slow"] = Slow()
    status, reason = suite.check(("write.slow", "run", "op=write seq_len=1024"))
    assert status == "over budget"
    assert re.fullmatch(r"one call would take about .* s \(it is slow on a cpu\)", reason)
    status, _ = suite.check(("write.slow", "run", "op=write seq_len=1"))
    assert status == "incorrect"


@pytest.mark.parametrize("status", ["incorrect", "failed", "crashed", "hung"])
def test_a_fault_fails(status):
    with pytest.raises(pytest.fail.Exception, match=f"{status}: why\n  command"):
        settle(status, "why", "command")


@pytest.mark.parametrize("status", ["unsupported", "checked", "over budget", "does not fit"])
def test_a_reason_that_is_no_fault_skips(status):
    with pytest.raises(pytest.skip.Exception, match=f"{status}: why"):
        settle(status, "why", "command")


def test_a_fault_by_another_clock_is_a_fault_and_a_refusal_is_none():
    wall = result("write.triton")
    assert timed([wall, result("write.triton", clock="graph", status="unsupported")]) == wall
    with pytest.raises(pytest.fail.Exception, match="incorrect: replayed"):
        timed([wall, result("write.triton", clock="graph", status="incorrect", reason="replayed")])


def test_the_medians_of_other_clocks_are_told_where_there_are_any():
    rows = [
        result("write.triton", (3e-6, 2e-6, 4e-6)),
        result("write.triton", (1e-6, 1e-6, 1e-6), clock="device"),
        result("write.triton", clock="graph", status="unsupported"),
    ]
    extra = extra_info(rows)
    assert extra["median_s"] == 3e-6
    assert extra["device_s"] == 1e-6
    assert extra["medians_s"] == {"wall": 3e-6, "device": 1e-6, "graph": None}
    assert msgspec.convert(extra["rows"], list[type(rows[0])]) == rows


class Rounds:
    """As pytest-benchmark's pedantic: set up outside of a round's time."""

    def __init__(self, clock):
        self.clock = clock
        self.times_s = []

    def pedantic(self, target, setup, rounds, iterations):
        assert iterations == 1
        for _ in range(rounds):
            setup()
            start = self.clock()
            target()
            self.times_s.append(self.clock() - start)


def test_samples_are_replayed_to_the_last_bit():
    samples_s = (0.1, 1e-9 / 3, 7.000000000000001e3, math.nextafter(0.0, 1.0), 0.1)
    clock = RecordedClock()
    rounds = Rounds(clock)
    clock.replay(rounds, samples_s)
    assert tuple(rounds.times_s) == samples_s


def test_every_cell_of_the_preset_has_a_name_of_its_own():
    found = cells()
    assert {(name, label) for name, _, label in found} == {
        (strategy.name, case.label())
        for case in PRESETS["regress"].cases()
        for strategy in registry.all_strategies()
        if strategy.op == case.op
    }
    assert len({cell_id(cell) for cell in found}) == len(found)


@pytest.mark.parametrize("text", ["0", "-1", "nan", "inf", "soon", "0.0001"])
def test_seconds_that_can_t_be_are_refused(text):
    with pytest.raises(ArgumentTypeError, match=f"'{text}': expected a finite number"):
        seconds(text)


def test_settings_of_the_run_are_those_of_the_preset(suite):
    settings = replace(suite, cell_seconds=PRESETS["regress"].cell_seconds).plan.settings()
    assert settings.device == str(torch.device("cpu"))
    assert settings.cell_seconds == PRESETS["regress"].cell_seconds
    assert settings.clocks == ()


def test_a_saved_run_of_another_commit_is_like_this_one_and_of_another_torch_is_not():
    saved = run_info(environment=environment(git_commit="a" * 40, git_dirty=True, kvbench="0.0.9"))
    assert unlike(saved, run_info()) == []
    saved = run_info(environment=environment(torch="1.0"), cell_seconds=0.1)
    assert unlike(saved, run_info()) == [
        "torch '1.0' (here '2.13.0')",
        "cell_seconds 0.1 (here 0.05)",
    ]


def made_report(rows=None, other=(), **machine) -> dict:
    rows = [result("write.loop"), result("write.loop", phase="prepare")] if rows is None else rows
    return {
        "machine_info": {"node": "here", "kvbench": builtins_of(run_info()), **machine},
        "benchmarks": [
            {"fullname": f"t[{number}]", "stats": {}, "extra_info": {"rows": rows_of([row])}}
            for number, row in enumerate(rows)
        ],
        "kvbench": {"rows": rows_of(other)},
        "version": "5.3.1",
    }


def test_rows_keep_every_bit_and_what_is_missing_stays_missing(tmp_path):
    samples_s = (0.1 + 0.2, 1 / 3, math.nextafter(1.0, 2.0))
    rows = [result("write.loop", samples_s), result("write.triton", clock="device")]
    refused = result("write.cuda", status="unsupported")
    path = tmp_path / "report.json"
    path.write_text(json.dumps(made_report(rows, [refused]), indent=4))
    run = load(path)
    assert run.folder == path
    assert run.info == run_info()
    assert run.results == (*rows, refused)


def test_benchmarks_that_are_not_kvbench_s_are_passed_over_and_said(tmp_path):
    report = made_report()
    report["benchmarks"].append({"fullname": "tests/test_other.py::test_x", "extra_info": {}})
    path = tmp_path / "report.json"
    path.write_text(json.dumps(report))
    run = load(path)
    assert len(run.results) == 2
    assert run.warnings == (
        f"{path}: tests/test_other.py::test_x has no rows of kvbench's; passed over",
    )


def without_rows(report):
    report["machine_info"].pop("kvbench")


def of_another_version(report):
    report["machine_info"]["kvbench"]["schema_version"] = SCHEMA_VERSION + 1


def with_nothing_measured(report):
    report["benchmarks"] = []


def with_nan(report):
    row = report["benchmarks"][0]["extra_info"]["rows"][0]
    row["measurement"]["samples_s"] = [math.nan]


def with_a_negative_time(report):
    row = report["benchmarks"][1]["extra_info"]["rows"][0]
    row["measurement"]["samples_s"] = [-1.0]


def with_an_unknown_status(report):
    report["kvbench"]["rows"] = [{**rows_of([result()])[0], "status": "fine"}]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (without_rows, "without kvbench's rows; expected one that `pytest benchmarks/` wrote"),
        (of_another_version, "schema version 2; this kvbench reads version 1"),
        (with_nothing_measured, "no rows of kvbench's; expected one or more"),
        (with_nan, "is torn or no JSON file of pytest-benchmark: "),
        (with_a_negative_time, r"t\[1\]: no rows: time -1\.0 s: expected a finite number above 0"),
        (with_an_unknown_status, "the rows without a benchmark: no rows: Invalid enum value"),
    ],
)
def test_a_file_without_a_run_is_refused_in_one_line(tmp_path, change, message):
    report = made_report()
    change(report)
    path = tmp_path / "report.json"
    path.write_text(json.dumps(report))
    with pytest.raises(StoreError, match=message) as caught:
        load(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["", "no JSON", "[]", "{}", json.dumps(made_report())[:-40]])
def test_a_file_that_is_torn_or_no_file_of_pytest_benchmark_s_is_refused(tmp_path, text):
    path = tmp_path / "report.json"
    path.write_text(text)
    with pytest.raises(StoreError, match="is torn or no JSON file of pytest-benchmark: "):
        load(path)


def test_a_file_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(StoreError, match=r"gone.json': No such file.*; expected a JSON file of"):
        load(tmp_path / "gone.json")


def test_the_run_in_the_facts_of_a_machine():
    assert info_of({"node": "here"}, Path("machine_info")) is None
    assert info_of({"kvbench": builtins_of(run_info())}, Path("machine_info")) == run_info()
