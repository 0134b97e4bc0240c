"""`kvbench compare` and `kvbench ab` as a user meets them: every exit code, every form."""

import dataclasses
import errno
import functools
import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from called import call, refused
from made import contents, environment, result, run_folder, sweep_rows
from test_compare_report import ROWS, called, changed, failed, times, without

from kvbench import benchmark_json
from kvbench.store import load
from kvbench.sweep import ab

ROOT = Path(__file__).parents[1]
AB = ("-s", "write.loop", "-a", "seq_len=4", "-a", "num_kv_heads=1", "-a", "head_dim=4")
AB += ("--device", "cpu", "--cell-seconds", "0.02")


@pytest.fixture
def kvbench_(monkeypatch, capsys):
    return functools.partial(call, monkeypatch, capsys)


@pytest.fixture
def base(tmp_path) -> Path:
    return run_folder(tmp_path / "base", ROWS)


@pytest.fixture
def compare(kvbench_, base, tmp_path):
    """Compare the base with a run of these rows."""

    def compare(rows, *options, **info):
        return kvbench_("compare", base, run_folder(tmp_path / "new", rows, **info), *options)

    return compare


def test_a_run_is_not_slower_than_itself(kvbench_, base):
    before = contents(base)
    ended = kvbench_("compare", base, base)
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.splitlines()[0] == "No regression: 12 SAME of 12 cells"
    assert "`kvbench ab` tells more" in ended.out
    assert contents(base) == before


def test_what_got_faster_is_no_regression(compare):
    ended = compare(changed("write.loop", lambda row: times(row, 0.5)))
    assert (ended.code, ended.err) == (0, "")
    assert "3 FASTER" in ended.out


def test_a_slower_cell_is_one(compare):
    ended = compare(changed("write.loop", lambda row: times(row, 2), seq_len=8))
    assert (ended.code, ended.err) == (1, "")
    assert ended.out.startswith("SLOWER: ")
    assert "1 cell of 12" in ended.out.splitlines()[0]
    (line,) = (line for line in ended.out.splitlines() if "seq_len=8 " in line)
    assert "2.00x" in line


def test_a_slower_strategy_is_one_where_no_single_cell_is_sure(kvbench_, tmp_path):
    """Many cells that are each within the noise, all of them a little slower."""
    rows = sweep_rows(range(1, 41), strategies=("loop", "indexing"))
    noisy = [times(row, 1 + 0.08 * math.sin(7 * row.case.seq_len)) for row in rows]
    new = changed("write.loop", lambda row: times(row, 1.12), noisy)
    folders = [run_folder(tmp_path / str(i), each) for i, each in enumerate((rows, new))]
    report = tmp_path / "report.json"
    ended = kvbench_("compare", *folders, "--json", report)
    told = json.loads(report.read_text())
    assert told["counts"]["SLOWER"] == 0
    assert (ended.code, ended.err) == (1, "")
    assert ended.out.startswith("SLOWER: 1 strategy, 0 cells of 80")


def test_a_lost_cell_is_one_unless_that_is_allowed(kvbench_, base, tmp_path):
    new = run_folder(tmp_path / "new", ROWS[:-1])
    ended = kvbench_("compare", base, new)
    assert (ended.code, ended.err) == (1, "")
    assert ended.out.startswith("LOST: 1 cell (1 missing)")
    allowed = kvbench_("compare", base, new, "--allow-lost")
    assert (allowed.code, allowed.err) == (0, "")
    assert "1 cell lost, which is allowed" in allowed.out


@pytest.mark.parametrize("status", ["failed", "incorrect", "crashed", "hung"])
def test_a_failed_cell_is_one_and_nothing_allows_it(compare, status):
    rows = changed("write.loop", lambda row: failed(row, status), seq_len=8)
    ended = compare(rows, "--allow-lost")
    assert (ended.code, ended.err) == (1, "")
    assert ended.out.startswith(f"LOST: 1 cell (1 {status})")
    assert f"write.loop {status}: it [broke]\n  kvbench run\n" in ended.out


def test_a_new_strategy_that_is_wrong_is_one(compare):
    ended = compare([*ROWS, result("write.new", status="incorrect")])
    assert (ended.code, ended.err) == (1, "")
    assert ended.out.startswith("FAILED: 1 new cell")


def test_new_cells_are_listed_and_are_none(compare):
    ended = compare([*ROWS, result("write.new")])
    assert (ended.code, ended.err) == (0, "")
    assert "New: timed in the new run alone (1)" in ended.out
    assert "write.new" in ended.out


def test_a_renamed_strategy_is_one_until_its_name_is_given(kvbench_, base, tmp_path):
    new = run_folder(tmp_path / "new", called("write.loop", ROWS, "write.new"))
    ended = kvbench_("compare", base, new)
    assert (ended.code, ended.err) == (1, "")
    assert "LOST: 3 cells" in ended.out
    assert "--rename write.loop=write.new" in ended.out
    named = kvbench_("compare", base, new, "--rename", "write.loop=write.new")
    assert (named.code, named.err) == (0, "")
    assert named.out.startswith("No regression: 12 SAME of 12 cells")


def test_a_clock_alone_can_be_compared(kvbench_, tmp_path):
    rows = [dataclasses.replace(row, clock=clock) for row in ROWS for clock in ("wall", "device")]
    slower = ("write.loop", "device")
    new = [times(row, 2) if (row.strategy, row.clock) == slower else row for row in rows]
    folders = [run_folder(tmp_path / str(i), each) for i, each in enumerate((rows, new))]
    assert kvbench_("compare", *folders).code == 1
    ended = kvbench_("compare", *folders, "--clock", "wall")
    assert (ended.code, ended.err) == (0, "")
    assert "of 12 cells" in ended.out
    refused(kvbench_("compare", *folders, "--clock", "wal"), "'wal'", "wall")


def test_the_least_effect_decides(kvbench_, base, tmp_path):
    new = run_folder(tmp_path / "new", changed("write.loop", lambda row: times(row, 1.2)))
    assert kvbench_("compare", base, new).code == 1
    assert kvbench_("compare", base, new, "--least-effect", "0.3").code == 0


# What is refused.


@pytest.mark.parametrize(
    ("option", "value"),
    [
        *(("--least-effect", value) for value in ("0", "-0.1", "nan", "inf", "much")),
        *(("--significance", value) for value in ("0", "1", "nan")),
        *(("--rename", value) for value in ("write.loop", "=write.loop", "a=b=c")),
    ],
)
def test_rules_that_mean_nothing_are_refused(kvbench_, base, option, value):
    for command in (("compare", base, base), ("ab", ".", ".", *AB)):
        refused(kvbench_(*command, option, value), option)


def test_unknown_strategies_in_a_rename_are_refused(kvbench_, base):
    refused(kvbench_("compare", base, base, "--rename", "write.lop=write.loop"), "'write.loop'")
    refused(kvbench_("compare", base, base, "--rename", "write.loop=x"), "of the new run: 'x'")


def test_what_is_no_run_is_refused(kvbench_, base, tmp_path):
    refused(kvbench_("compare", base, tmp_path / "none"), "none", "run.json")
    refused(kvbench_("compare", base), "base", "a second one")
    refused(kvbench_("compare", tmp_path), str(tmp_path), "no runs a and b")
    (tmp_path / "file.json").write_text("{}")
    refused(kvbench_("compare", base, tmp_path / "file.json"), "file.json")


def test_a_torn_run_is_refused_and_a_torn_last_line_is_a_warning(kvbench_, base, tmp_path):
    new = run_folder(tmp_path / "new", [*ROWS, result("write.new")])
    rows = new / "rows.jsonl"
    whole = rows.read_bytes()
    rows.write_bytes(whole[:-9])
    ended = kvbench_("compare", base, new)
    assert ended.code == 0
    assert ended.err.startswith("warning: ")
    rows.write_bytes(whole[:99] + b"\n" + whole)
    refused(kvbench_("compare", base, new), "rows.jsonl: line 1")


def test_runs_of_other_devices_are_refused_unless_told(kvbench_, base, tmp_path):
    other = environment(device_name="H200", usable_cpus=16)
    new = run_folder(tmp_path / "new", ROWS, environment=other)
    words = ("device_name 'Made CPU' and 'H200'", "usable_cpus 2 and 16", "--allow-mixed")
    refused(kvbench_("compare", base, new), *words)
    ended = kvbench_("compare", base, new, "--allow-mixed")
    assert (ended.code, ended.err) == (0, "")
    assert "Not of one kind: device_name 'Made CPU' and 'H200'" in ended.out


def test_other_versions_and_settings_are_said(compare):
    other = environment(torch="2.14.0", cpu_governor="powersave")
    ended = compare(ROWS, environment=other, cell_seconds=0.1)
    assert (ended.code, ended.err) == (0, "")
    assert "Differs in: torch '2.13.0' and '2.14.0', cell_seconds 0.05 and 0.1." in ended.out
    assert "Warning: the machine was set otherwise: cpu_governor None and 'powersave'" in ended.out


def test_runs_without_a_cell_in_common_are_refused(kvbench_, base, tmp_path):
    other = run_folder(tmp_path / "other", sweep_rows((7,)))
    refused(kvbench_("compare", base, other), str(base), "no timed cell in common")
    loop = [row for row in ROWS if row.strategy == "write.loop"]
    one, two = loop, called("write.loop", loop, "write.new")
    folders = [run_folder(tmp_path / str(i), each) for i, each in enumerate((one, two))]
    refused(kvbench_("compare", *folders), "--rename write.loop=write.new")


# Where the report goes.


def test_reports_are_written_beside_the_text(compare, tmp_path):
    files = tmp_path / "deep" / "r.md", tmp_path / "r.json"
    ended = compare(without("write.loop"), "--markdown", files[0], "--json", files[1])
    assert (ended.code, ended.err) == (1, "")
    first = ended.out.splitlines()[0]
    assert files[0].read_text().startswith(f"### {first}\n")
    assert json.loads(files[1].read_text())["conclusion"] == first


@pytest.mark.parametrize("form", ["--markdown", "--json"])
def test_a_report_on_standard_output_is_alone_there(compare, form):
    ended = compare(without("write.loop"), form, "-")
    assert (ended.code, ended.err) == (1, "")
    if form == "--json":
        assert json.loads(ended.out)["regressed"] is True
    else:
        assert ended.out.startswith("### LOST")
        assert "┃" not in ended.out


def test_a_report_without_a_place_is_refused(kvbench_, base, tmp_path):
    (tmp_path / "file").touch()
    for where in (tmp_path, tmp_path / "file" / "r.md"):
        refused(kvbench_("compare", base, base, "--markdown", where), str(where))
        refused(kvbench_("ab", ".", ".", *AB, "--markdown", where), str(where))
    refused(kvbench_("compare", base, base, "--markdown", "-", "--json", "-"), "one of them")


@pytest.mark.parametrize("form", ["--markdown", "--json"])
def test_a_report_takes_no_runs_place(kvbench_, base, tmp_path, form):
    file = tmp_path / "bench.json"
    file.write_text("{}")
    for where in (base / "rows.jsonl", base / "run.json", base / ".." / "base" / "rows.jsonl"):
        before = contents(tmp_path)
        refused(kvbench_("compare", base, base, form, where), str(where), "a run's own")
        refused(kvbench_("ab", ".", ".", *AB, form, where), str(where), "a run's own")
        refused(kvbench_("compare", base, file, form, file), str(file), "what is compared")
        assert contents(tmp_path) == before
    both = ("--markdown", tmp_path / "r", "--json", tmp_path / "." / "r")
    refused(kvbench_("compare", base, base, *both), str(tmp_path / "r"), "a file for each")
    long = tmp_path / ("r" * 300)
    refused(kvbench_("compare", base, base, form, long), str(long), "too long")


def test_a_report_that_does_not_fit_leaves_the_old_one(kvbench_, base, tmp_path, monkeypatch):
    file = tmp_path / "r.json"
    file.write_text("old")
    write_bytes = Path.write_bytes

    def full(path, data):
        write_bytes(path, data[:10])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    ended = kvbench_("compare", base, base, "--json", file)
    assert (ended.code, "No space left" in ended.err) == (2, True)
    assert file.read_text() == "old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["base", "r.json"]


def test_files_of_pytest_benchmark_are_compared(kvbench_, base, tmp_path):
    run = load(base)
    file = tmp_path / "bench.json"
    told = {
        "machine_info": {benchmark_json.KEY: benchmark_json.builtins_of(run.info)},
        "benchmarks": [
            {"fullname": "x", "extra_info": {"rows": benchmark_json.rows_of(run.results)}}
        ],
    }
    file.write_text(json.dumps(told))
    for pair in ((base, file), (file, base), (file, file)):
        ended = kvbench_("compare", *pair)
        assert (ended.code, ended.err) == (0, "")
        assert "12 SAME of 12 cells" in ended.out


# Trees in turns.


def interleaved(row, count):
    """A row of so many processes of five samples each, none quite like the others."""
    samples = [s * (1 + 0.001 * n) for n in range(count) for s in row.measurement.samples_s]
    timed = dataclasses.replace(times(row, 1).measurement, samples_s=tuple(samples))
    return dataclasses.replace(row, measurement=dataclasses.replace(timed, processes=(5,) * count))


def made_ab(folder, new_rows=ROWS, count=2, why="complete"):
    for name, rows in (("a", ROWS), ("b", new_rows)):
        own = [interleaved(row, count) for row in rows]
        run_folder(folder / name, own, interleaved="same", tree=f"tree of {name}")
    return ab.Ended((folder / "a", folder / "b"), count, why)


def test_the_folder_of_an_ab_is_compared_as_it_was_measured(kvbench_, tmp_path):
    made_ab(tmp_path / "ab")
    alone = kvbench_("compare", tmp_path / "ab")
    both = kvbench_("compare", tmp_path / "ab" / "a", tmp_path / "ab" / "b")
    assert (alone.code, alone.err) == (0, "")
    assert alone == both
    assert "2 took turns" in alone.out
    assert "(tree of a)" in alone.out
    assert "Not measured in turns" not in alone.out


def test_sides_of_two_measurements_are_not_in_turns(kvbench_, tmp_path):
    made_ab(tmp_path / "ab")
    other = run_folder(tmp_path / "other", ROWS, interleaved="another")
    assert "Not measured in turns" in kvbench_("compare", tmp_path / "ab" / "a", other).out


@pytest.fixture
def measured(monkeypatch):
    """Let `kvbench ab` find what a function makes of its folder, and keep its plan."""
    plans = []

    def patch(make):
        def run_ab(plan, _, folder, on_case, on_begin):
            plans.append(plan)
            on_begin(plan.cases, {"a": ("write.loop",), "b": ("write.loop",)})
            for case in plan.cases:
                on_case(0, case)
            return make(folder)

        monkeypatch.setattr(ab, "run_ab", run_ab)
        return plans

    return patch


def test_an_ab_reports_and_says_how_to_look_again(kvbench_, measured, tmp_path):
    slower = changed("write.loop", lambda row: times(row, 2))
    plans = measured(lambda folder: made_ab(folder, slower))
    ended = kvbench_("ab", ".", ".", *AB, "-o", tmp_path / "ab", "--processes", "2", "--seed", "3")
    assert (ended.code, ended.err) == (1, "")
    assert "SLOWER: 1 strategy, 3 cells of 12" in ended.out
    assert ended.out.splitlines()[-1] == f"To look again: kvbench compare {tmp_path / 'ab'}"
    (plan,) = plans
    assert (plan.processes, plan.seed, plan.patterns) == (2, 3, ("write.loop",))
    # A sweep of all ops is one of those that the pattern can name.
    assert [(case.op, case.seq_len, case.seed) for case in plan.cases] == [("write", 4, 3)]


@pytest.mark.parametrize("form", ["--markdown", "--json"])
def test_progress_of_an_ab_is_not_in_a_report_on_standard_output(
    kvbench_, measured, tmp_path, form
):
    measured(made_ab)
    ended = kvbench_("ab", ".", ".", *AB, "-o", tmp_path / "ab", form, "-")
    assert ended.code == 0
    assert ended.out.startswith("### No regression" if form == "--markdown" else "{")
    assert "into" in ended.err
    assert "To look again" in ended.err


def test_without_axes_an_ab_has_its_preset(kvbench_, measured, tmp_path):
    plans = measured(made_ab)
    kvbench_("ab", ".", ".", "--device", "cpu", "-o", tmp_path / "ab")
    kvbench_("ab", ".", ".", "--device", "cpu", "-o", tmp_path / "2", "-s", "read.*")
    assert [plan.preset for plan in plans] == ["regress", "regress"]
    assert {case.op for case in plans[0].cases} > {"read", "write"}
    assert {case.op for case in plans[1].cases} == {"read"}


def test_an_ab_that_was_interrupted_is_judged_by_what_is_there(kvbench_, measured, tmp_path):
    measured(lambda folder: made_ab(folder, count=3, why="interrupted"))
    ended = kvbench_("ab", ".", ".", *AB, "-o", tmp_path / "ab", "--json", tmp_path / "r.json")
    assert (ended.code, ended.err) == (0, "")
    said = "Interrupted after 3 of 5 pairs of processes."
    assert said in ended.out
    assert said in json.loads((tmp_path / "r.json").read_text())["notes"]


@pytest.mark.parametrize(("count", "said"), [(1, True), (2, True), (3, False)])
def test_of_few_pairs_it_is_said_how_little_they_tell(kvbench_, measured, tmp_path, count, said):
    measured(lambda folder: made_ab(folder, count=count))
    ended = kvbench_("ab", ".", ".", *AB, "-o", tmp_path / "ab")
    assert (ended.code, ended.err) == (0, "")
    assert ("fewer than 3 pairs of processes" in ended.out) is said


def test_an_ab_that_was_interrupted_too_soon_has_its_code(kvbench_, measured, tmp_path):
    def interrupted(_):
        raise KeyboardInterrupt

    measured(interrupted)
    ended = kvbench_("ab", ".", ".", *AB, "-o", tmp_path / "ab")
    assert ended.code == 130
    assert ended.err.startswith("interrupted before a pair of processes")


def test_a_rename_of_an_ab_is_looked_at_before_anything_is_measured(kvbench_, measured, tmp_path):
    measured(lambda _: pytest.fail("it was measured"))
    ended = kvbench_("ab", ".", ".", *AB, "-o", tmp_path / "ab", "--rename", "write.lop=write.loop")
    assert ended.code == 2
    assert "unknown strategy of the base: 'write.lop'" in ended.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((".", "no-such-revision"), "no-such-revision"),
        ((".", ".", "-a", "seq_len=0:"), "seq_len"),
        ((".", ".", "--preset", "tiny"), "'tiny'"),
        ((".", ".", "--clock", "grph", "--device", "cpu"), "'grph'"),
        ((".", ".", "--load", "none.py"), "none.py"),
        ((".", ".", "--device", "abacus"), "'abacus'"),
    ],
)
def test_what_an_ab_can_not_measure_is_refused_at_once(kvbench_, tmp_path, arguments, words):
    out = tmp_path / "out"
    ended = kvbench_("ab", *arguments, "-o", out)
    assert ended.code == 2
    assert words in ended.err
    assert not out.exists()


def test_an_ab_takes_an_empty_folder_alone(kvbench_, tmp_path):
    (tmp_path / "file").touch()
    ended = kvbench_("ab", ".", ".", *AB, "-o", tmp_path)
    assert ended.code == 2
    assert f"output folder '{tmp_path}' holds other files" in ended.err


# What follows starts the real command.


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "kvbench", *map(str, arguments)]


def test_the_real_command_has_the_exit_codes(base, tmp_path):
    lost = run_folder(tmp_path / "lost", ROWS[:-1])
    for new, code in ((base, 0), (lost, 1), (tmp_path / "none", 2)):
        done = subprocess.run(
            command("compare", base, new), capture_output=True, text=True, check=False
        )
        assert (done.returncode, "Traceback" in done.stderr) == (code, False)


def test_two_trees_are_measured_and_compared(kvbench_, monkeypatch, tmp_path):
    monkeypatch.chdir(ROOT)
    out = tmp_path / "ab"
    ended = kvbench_("ab", ".", ".", *AB, "--processes", "1", "-o", out)
    assert ended.err == ""
    runs = [load(out / name) for name in "ab"]
    infos = [run.info for run in runs]
    assert infos[0].interleaved == infos[1].interleaved is not None
    assert [info.tree for info in infos] == [".", "."]
    assert [[row.status for row in run.results] for run in runs] == [["ok"], ["ok"]]
    again = kvbench_("compare", out)
    assert again.code == ended.code  # whatever this machine made of it
    assert set(again.out.splitlines()) < set(ended.out.splitlines())


@pytest.mark.slow
def test_ctrl_c_ends_an_ab_and_leaves_no_process(tmp_path):
    log = tmp_path / "log"
    many = ("-s", "write.*", "-a", "seq_len=1:2000:+1", "-a", "op=write", "--device", "cpu")
    words = command("ab", ".", ".", *many, "-o", tmp_path / "ab")
    with log.open("w") as into, subprocess.Popen(words, stderr=into, stdout=into, cwd=ROOT) as lead:
        deadline = time.monotonic() + 120
        sides: list[psutil.Process] = []
        while len(sides) < 2 and time.monotonic() < deadline:
            time.sleep(0.5)
            sides = psutil.Process(lead.pid).children(recursive=True)
        time.sleep(10)  # in the middle of it
        lead.send_signal(signal.SIGINT)
        assert lead.wait(60) == 130
    assert len(sides) == 2
    _, alive = psutil.wait_procs(sides, timeout=10)
    assert alive == []
    assert "interrupted before a pair of processes had measured everything" in log.read_text()


LARGE = ("--least-effect", "0.5")
"""Whatever else goes on on this machine, sleeping is no slower than that."""

MINE = """
import time

import torch

from kvbench.strategies.base import Strategy
from kvbench.strategies.registry import register


@register
class Mine(Strategy):
    name = "index.NAME"
    op = "index"
    summary = "waits"

    def run(self, workload, prepared):
        time.sleep(SECONDS)
        return torch.from_numpy(workload.slot_mapping())
"""


@pytest.fixture
def repository(tmp_path) -> Path:
    """A repository whose revisions have a strategy that is fast, slow, renamed, or wrong."""
    folder = tmp_path / "repository"
    folder.mkdir()
    versions = {
        "fast": MINE.replace("NAME", "mine").replace("SECONDS", "0.0005"),
        "slow": MINE.replace("NAME", "mine").replace("SECONDS", "0.002"),
        "renamed": MINE.replace("NAME", "ours").replace("SECONDS", "0.0005"),
        "wrong": MINE.replace("NAME", "mine").replace("mapping())", "mapping() + 1)"),
    }
    git = ("git", "-c", "user.name=A", "-c", "user.email=a@example.org", "-C", str(folder))
    subprocess.run([*git, "init", "-q"], check=True)
    for tag, text in versions.items():
        (folder / "mine.py").write_text(text.replace("SECONDS", "0.0005"))
        subprocess.run([*git, "add", "-A"], check=True)
        subprocess.run([*git, "commit", "-q", "-m", tag], check=True)
        subprocess.run([*git, "tag", tag], check=True)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(
    ("new", "options", "code", "words"),
    [
        ("slow", (), 1, "SLOWER: 1 strategy, 2 cells of 2"),
        ("wrong", (), 1, "LOST: 2 cells (2 incorrect)"),
        ("renamed", ("-s", "index.loop"), 1, "LOST: 2 cells (2 missing)"),
        ("renamed", ("--rename", "index.mine=index.ours", *LARGE), 0, "No regression: "),
    ],
)
def test_revisions_of_a_strategy_are_told_apart(repository, tmp_path, new, options, code, words):
    sweep = ("--load", "mine.py", "-s", "index.[mo]*", "-a", "op=index")
    sweep += ("-a", "seq_len=4,8", "--device", "cpu", "--processes", "3", "-o", tmp_path / "ab")
    done = subprocess.run(
        command("ab", "fast", new, *sweep, *options),
        cwd=repository,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (code, ""), done.stdout
    assert words in done.stdout
