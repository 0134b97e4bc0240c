"""`kvbench report`: what it writes, and where."""

import functools
import re

import pytest
from called import call, refused
from made import contents, large_rows, result, run_folder, sweep_rows

from kvbench import cli_report
from kvbench.report import style
from kvbench.store import ROWS_FILE, RUN_FILE
from kvbench.timing import bandwidth


@pytest.fixture
def kvbench_(monkeypatch, capsys):
    monkeypatch.setitem(style._RC, "savefig.dpi", 30)  # pictures that take no time
    return functools.partial(call, monkeypatch, capsys)


@pytest.fixture
def made_run(tmp_path):
    return run_folder(tmp_path / "run", sweep_rows(strategies=("loop", "slot_mapping")))


def test_a_report_is_one_html_file_and_markdown_with_its_figures_and_rows(kvbench_, made_run):
    before = contents(made_run)
    ended = kvbench_("report", made_run)
    assert (ended.code, ended.err) == (0, "")
    after = contents(made_run)
    assert {name: after.pop(name) for name in before} == before
    plots = {name for name in after if name.startswith("plots/")}
    assert set(after) == {"report.html", "report.md", "rows.csv", *plots}
    text = after["report.md"].decode()
    shown = re.findall(r"!\[(.+?)\]\((plots/[\w-]+\.png)\)", text)
    assert {address for _, address in shown} == {name for name in plots if name.endswith(".png")}
    assert len({alt for alt, _ in shown}) == len(shown)
    last_lines = [line.rpartition("/")[2] for line in ended.out.splitlines() if "report." in line]
    assert last_lines == ["report.md", "report.html"]


@pytest.mark.parametrize(
    ("only", "files"), [("html", {"report.html"}), ("markdown", {"report.md", "rows.csv"})]
)
def test_one_of_the_two_can_be_asked_for_elsewhere(kvbench_, made_run, tmp_path, only, files):
    before = contents(made_run)
    assert kvbench_("report", made_run, "--only", only, "-o", tmp_path / "to").code == 0
    assert {n for n in contents(tmp_path / "to") if not n.startswith("plots/")} == files
    assert contents(made_run) == before


def test_the_same_run_has_the_same_report(kvbench_, made_run, tmp_path):
    for name in ("a", "b"):
        assert kvbench_("report", made_run, "--only", "html", "-o", tmp_path / name).code == 0
    assert contents(tmp_path / "a") == contents(tmp_path / "b")


def test_steps_of_another_depth_can_be_asked_for(kvbench_, tmp_path):
    """Of tables and figures alike."""
    rows = sweep_rows(block_sizes=(16, 64), strategies=("loop", "slot_mapping"))
    folder = run_folder(tmp_path / "run", rows)
    args = ["report", folder, "--only", "markdown", "-o", tmp_path]
    assert kvbench_(*args, "--layers", "7").code == 0
    text = (tmp_path / "report.md").read_text()
    assert "prepare + 7 x run" in text
    assert "![write: the fastest in a step of 7 layers" in text
    assert "of 32 layers" not in text
    assert "| layers of a step | 32 |" in text  # what was said when it was measured


def test_a_run_without_a_time_has_a_report(kvbench_, tmp_path):
    folder = run_folder(tmp_path / "run", [result("write.a", None, status="unsupported")])
    ended = kvbench_("report", folder)
    assert (ended.code, ended.err) == (0, "")
    assert "No plots" in ended.out
    assert "Nothing was timed" in (folder / "report.md").read_text()
    assert "Nothing was timed" in (folder / "report.html").read_text()


def test_a_run_of_a_gpu_s_clocks_and_many_settings_has_a_report(kvbench_, tmp_path):
    rows = large_rows(24, seq_lens=(1, 64), block_sizes=(16,), kv_heads=(8,), samples=8)
    folder = run_folder(tmp_path / "run", rows)
    assert kvbench_("report", folder).code == 0
    text = (folder / "report.md").read_text()
    shown = dict(re.findall(r"!\[(.+?)\]\(plots/([\w-]+)\.png\)", text))
    by = {name: alt for alt, name in shown.items()}
    assert len(by) == len(shown) == text.count("![")  # no two say the same
    assert by["write-launch-overhead-device"].startswith("By the device clock: Writing")
    assert by["write-launch-overhead-enqueue"].startswith("By the enqueue clock: Writing")
    assert by["write-launch-overhead"].startswith("Writing")


def test_a_report_without_figures_can_go_to_a_new_folder(kvbench_, tmp_path):
    folder = run_folder(tmp_path / "run", sweep_rows(seq_lens=(8,), strategies=("loop",)))
    ended = kvbench_("report", folder, "--only", "markdown", "-o", tmp_path / "new" / "er")
    assert (ended.code, ended.err) == (0, "")
    assert set(contents(tmp_path / "new" / "er")) == {"report.md", "rows.csv"}


@pytest.mark.parametrize("name", ["report.md", "report.html", "rows.csv"])
def test_a_file_that_can_not_be_written_is_one_line(kvbench_, made_run, name):
    (made_run / name).mkdir()
    ended = kvbench_("report", made_run)
    assert ended.code == 2
    (line,) = ended.err.splitlines()
    assert name in line
    assert "Is a directory" in line


def test_what_is_no_run_is_refused(kvbench_, tmp_path):
    refused(kvbench_("report", tmp_path), str(tmp_path))
    refused(kvbench_("report", tmp_path / "none"), "none")


def test_a_format_that_there_is_not_is_refused(kvbench_, made_run):
    refused(kvbench_("report", made_run, "--only", "pdf"), "pdf", "html", "markdown")


@pytest.mark.parametrize("name", [ROWS_FILE, RUN_FILE])
def test_a_run_that_is_not_whole_is_refused(kvbench_, made_run, name):
    (made_run / name).write_bytes(b"{}\n")
    refused(kvbench_("report", made_run), name)
    assert not (made_run / "report.html").exists()


def test_a_report_without_some_strategies_says_so_and_has_others_win(kvbench_, made_run, tmp_path):
    args = ["report", made_run, "--only", "markdown", "--layers", "1000"]
    assert kvbench_(*args, "-o", tmp_path / "all").code == 0
    assert kvbench_(*args, "-o", tmp_path / "some", "--without", "*.loop").code == 0
    whole, some = ((tmp_path / name / "report.md").read_text() for name in ("all", "some"))
    assert "write.loop" in whole
    assert "Left out" not in whole
    assert "**Left out of this report, though measured: `*.loop`.**" in some
    assert "write.loop" not in some
    assert "`slot_mapping` is the fastest at every size" in some
    assert "loop" not in (tmp_path / "some" / "rows.csv").read_text()


@pytest.mark.parametrize("command", ["report", "plot", "rank", "fit", "claims"])
def test_what_is_left_out_has_to_be_there_and_not_all(kvbench_, made_run, command):
    refused(kvbench_(command, made_run, "--without", "write.lop"), "write.lop", "write.loop")
    refused(kvbench_(command, made_run, "--without", "*"), "*", "left")


def test_all_that_is_said_of_a_run_can_be_without_a_strategy(kvbench_, made_run):
    assert "write.loop" in kvbench_("rank", made_run).out
    assert "write.loop" not in kvbench_("rank", made_run, "--without", "write.loop").out
    assert "write.loop" in kvbench_("fit", made_run).out
    assert "write.loop" not in kvbench_("fit", made_run, "--without", "write.loop").out
    assert "speedup" not in kvbench_("plot", made_run, "--without", "write.loop").out


@pytest.mark.parametrize("command", ["report", "plot"])
def test_what_is_made_of_a_run_takes_no_place_in_another(kvbench_, made_run, tmp_path, command):
    other = run_folder(tmp_path / "other", sweep_rows())
    before = contents(other)
    refused(kvbench_(command, made_run, "-o", other), f"{str(other)!r}", "is another run's")
    assert contents(other) == before


def test_without_the_plotting_library_html_is_refused_and_markdown_is_not(
    kvbench_, made_run, monkeypatch
):
    monkeypatch.setattr(cli_report, "find_spec", lambda name: None if name == "plotly" else name)
    refused(kvbench_("report", made_run, "--only", "html"), "report.html", "plotly", "markdown")
    assert kvbench_("report", made_run, "--only", "markdown").code == 0


def test_a_run_ends_with_a_report_or_says_why_there_is_none(kvbench_, tmp_path, monkeypatch):
    monkeypatch.setattr(bandwidth, "_CPU_BYTES", 1 << 16)
    small = ["-s", "write.loop", "-a", "seq_len=1,8", "-a", "op=write", "--cell-seconds", "0.005"]
    command = ["run", *small, "--in-process", "--device", "cpu"]
    ended = kvbench_(*command, "-o", tmp_path / "a")
    assert ended.out.splitlines()[-1] == str(tmp_path / "a" / "report.html")
    assert (tmp_path / "a" / "report.html").stat().st_size > 1e6
    monkeypatch.setattr(cli_report, "find_spec", lambda _: None)
    ended = kvbench_(*command, "-o", tmp_path / "b")
    assert ended.code == 0
    assert ended.out.splitlines()[-1] == "No report.html: plotly is not installed."
