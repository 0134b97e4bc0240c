"""The command line as a user meets it: what is printed, what is left behind, the exit codes."""

import functools
import gc
import os
import re
import shlex
import subprocess
import sys
import weakref
from pathlib import Path

import pytest
from called import Ended, call, refused
from drawn import KV_OPS
from made import contents, large_rows, result, run_folder, sweep_rows

import kvbench
from kvbench import cli, cli_report
from kvbench.analysis.frame import to_frame
from kvbench.axes import AXES, Axes, expand_all
from kvbench.cases import CACHE_DTYPES, DTYPE_BYTES, KV_SCALES, LAYOUTS
from kvbench.presets import CHECK_GRIDS, EXHAUSTIVE_GRIDS, PRESETS
from kvbench.report import palette, plots, save, style
from kvbench.results import Finding
from kvbench.store import ROWS_FILE, RUN_FILE, load
from kvbench.strategies import registry
from kvbench.sweep import bench, runner
from kvbench.timing import bandwidth

ROOT = Path(__file__).parents[1]
COMMANDS = ("run", "check", "list", "rank", "plot", "generate", "compare", "ab", "predict")
TINY = ("-a", "num_kv_heads=1", "-a", "head_dim=4", "--device", "cpu")
QUICK = (*TINY, "--cell-seconds", "0.005", "--in-process")

WRONG = """
from kvbench.strategies.base import Strategy
from kvbench.strategies.registry import register


@register
class Wrong(Strategy):
    name = "write.wrong"
    op = "write"
    summary = "writes nothing"

    def run(self, workload, prepared):
        pass
"""


@pytest.fixture
def kvbench_(monkeypatch, capsys):
    """Run the command in this process; what it registers is forgotten afterwards."""
    builtin = dict(registry._STRATEGIES)
    # Smaller buffers and pictures, so that a run takes little.
    monkeypatch.setattr(bandwidth, "_CPU_BYTES", 1 << 16)
    monkeypatch.setitem(style._RC, "savefig.dpi", 30)
    monkeypatch.setattr(cli, "missing_for_html", lambda: "the page")  # a second for each run

    def kvbench_(*arguments: object) -> Ended:
        monkeypatch.setattr(registry, "_STRATEGIES", dict(builtin))
        return call(monkeypatch, capsys, *arguments)

    return kvbench_


@pytest.fixture
def wrong_file(tmp_path) -> Path:
    path = tmp_path / "wrong.py"
    path.write_text(WRONG)
    return path


@pytest.fixture
def made_run(tmp_path) -> Path:
    """A run with both ops, and a strategy that was not timed."""
    rows = [
        *sweep_rows(),
        *sweep_rows(op="read"),
        result("write.triton", status="checked", reason="[no] GPU here"),
    ]
    return run_folder(tmp_path / "made", rows)


def test_list_shows_strategies_axes_and_presets(kvbench_):
    ended = kvbench_("list", "--device", "cpu")
    assert (ended.code, ended.err) == (0, "")
    cells = {cell.strip() for cell in re.split("[│┃\n]", ended.out)}
    assert {strategy.name for strategy in registry.all_strategies()} <= cells
    assert {"write.loop", "read.triton", *AXES, *PRESETS} <= cells
    assert {str(len(preset.cases())) for preset in PRESETS.values()} <= cells


def test_list_says_what_the_device_can_not_do(kvbench_, tmp_path):
    path = tmp_path / "picky.py"
    path.write_text(
        WRONG.replace(
            "    def run", "    def supports(self, *_):\n        return 'not [here]'\n\n    def run"
        )
    )
    ended = kvbench_("list", "--device", "cpu", "--load", path)
    (line,) = (line for line in ended.out.splitlines() if "write.wrong" in line)
    assert "not [here]" in line


def test_check_proves_strategies_and_times_nothing(kvbench_, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ended = kvbench_("check", "-a", "seq_len=1,20", "-s", "[wr]*.loop", "-s", "read.slot*", *TINY)
    assert (ended.code, ended.err) == (0, "")
    assert "4 cases on cpu, bit for bit" in ended.out
    lines = [re.findall(r"[\w.]+", line) for line in ended.out.splitlines() if "." in line]
    assert lines == [
        ["write.loop", "2", "0", "0", "0"],
        ["read.loop", "2", "0", "0", "0"],
        ["read.slot_mapping", "2", "0", "0", "0"],
    ]
    assert contents(tmp_path) == {}


def test_check_names_a_wrong_strategy_and_how_to_see_it_again(kvbench_, wrong_file):
    ended = kvbench_(
        "check",
        "-a",
        "seq_len=3",
        "-s",
        "write.wrong",
        "-s",
        "write.loop",
        "--load",
        wrong_file,
        *TINY,
    )
    assert ended.code == 1
    assert ended.err == ""
    assert "write.wrong incorrect: key_pool block" in ended.out
    assert "FAILED: 1 of 2 checks" in ended.out


def test_an_exhaustive_check_prints_every_layout_with_every_dtype(kvbench_, monkeypatch):
    grid = (
        "layout=NHD,HND seq_len=3 block_size=2 num_kv_heads=1 head_dim=16 dtype=fp32,fp16,bf16 "
        "cache_dtype=auto,fp8_e4m3,fp8_e5m2,int8"
    )
    monkeypatch.setattr(cli, "EXHAUSTIVE_GRIDS", (Axes.parse(grid.split()),))
    ended = kvbench_("check", "--exhaustive", "-s", "read.[ls]*", "--device", "cpu")
    assert (ended.code, ended.err) == (0, "")
    cells = [[c.strip() for c in line.split("│")[1:-1]] for line in ended.out.splitlines()]
    lines = {tuple(row[:2]): row[2:] for row in cells if len(row) == 8}
    each = [*3 * ["1 pass"], *3 * ["3 pass"]]
    assert lines["read.loop", "NHD"] == lines["read.loop", "HND"] == each
    assert lines["read.slot_mapping", "NHD"] == each
    assert lines["read.slot_mapping", "HND"] == 6 * ["no [1]"]
    assert lines["read.slot_mapping", "MLA"] == 6 * ["not in these cases"]
    assert "\n[1] layout HND: its blocks and slots" in ended.out
    narrowed = kvbench_(
        "check", "--exhaustive", "-a", "layout=HND", "-s", "read.loop", "--device", "cpu"
    )
    assert "12 cases on cpu" in narrowed.out


def test_the_exhaustive_grids_reach_every_layout_with_every_format_and_kind_of_scales():
    cases = expand_all(EXHAUSTIVE_GRIDS)
    moving = [case for case in cases if case.op in {*KV_OPS, "attend"}]
    kinds = {(c.op, c.layout, c.dtype, c.cache_dtype, c.kv_scale) for c in moving}
    assert kinds == {
        (op, layout, dtype, cache_dtype, kv_scale)
        for op in (*KV_OPS, "attend")
        for layout in LAYOUTS
        for dtype in DTYPE_BYTES
        for cache_dtype in CACHE_DTYPES
        for kv_scale in (KV_SCALES if cache_dtype != "auto" else KV_SCALES[:1])
    }
    assert set(expand_all(CHECK_GRIDS)) <= set(cases)


def test_the_command_of_a_failed_check_fails_again(kvbench_, wrong_file):
    ended = kvbench_("check", "-a", "seq_len=3", "-s", "write.wrong", "--load", wrong_file, *TINY)
    (command,) = re.findall(r"^\s*kvbench (check .*)$", ended.out, re.MULTILINE)
    again = kvbench_(*shlex.split(command))
    assert again.code == 1, again.err
    assert "write.wrong incorrect" in again.out


def test_run_measures_ranks_plots_and_says_where(kvbench_, tmp_path, monkeypatch):
    monkeypatch.setattr(cli, "missing_for_html", cli_report.missing_for_html)
    folder = tmp_path / "out" / "run"
    ended = kvbench_(
        *("run", "-a", "seq_len=1,8", "-s", "[wr]*.loop", "-s", "*.slot_mapping"),
        *("-o", folder, *QUICK),
    )
    assert (ended.code, ended.err) == (0, "")
    done = load(folder)
    assert done.warnings == ()
    assert {(row.case.op, row.case.seq_len, row.strategy, row.phase) for row in done.results} == {
        (op, n, f"{op}.{family}", phase)
        for op in ("write", "read")
        for n in (1, 8)
        for family, phase in (
            ("loop", "run"),
            ("slot_mapping", "run"),
            ("slot_mapping", "prepare"),
        )
    }
    assert {row.status for row in done.results} == {"ok"}
    assert len(done.results) == 12
    plots = {
        f"plots/{op}-{kind}.{ending}"
        for op in ("write", "read")
        for kind in ("launch-overhead", "bandwidth", "speedup", "layers")
        for ending in ("png", "svg")
    }
    assert set(contents(folder)) == {RUN_FILE, ROWS_FILE, "report.html", *plots}
    lines = ended.out.splitlines()
    assert f"8 figures (PNG, SVG) in {folder / 'plots'}" in lines
    assert lines[-1] == str(folder / "report.html")
    answer = lines.index("By the cost of a step of 32 layers (prepare once, run 32 times):")
    assert [line.partition(":")[0] for line in lines[answer + 1 : answer + 3]] == [
        "- write",
        "- read",
    ]
    assert lines[0].startswith("4 cases, 8 strategy timings on cpu")
    for title in (
        "write: cost of a step of 32 layers",
        "write: time per call by seq_len",
        "read: cost of a step of 32 layers",
        "read: time per call by seq_len",
        "copy ",
    ):
        assert title in ended.out


def test_a_run_keeps_its_command_and_its_limits(kvbench_, tmp_path):
    arguments = ["run", "-a", "seq_len=1", "-s", "write.loop", "-o", tmp_path / "a b", *QUICK]
    more = ["--layers", "7", "--seed", "3", "--call-budget", "0.5", "--preset", "smoke"]
    ended = kvbench_(*arguments, *more)
    assert (ended.code, ended.err) == (0, "")
    info = load(tmp_path / "a b").info
    assert shlex.split(info.command) == ["kvbench", *map(str, arguments), *more]
    assert (info.layers, info.seed, info.preset) == (7, 3, "smoke")
    assert (info.cell_seconds, info.call_budget_s) == (0.005, 0.5)
    assert {row.case.seed for row in load(tmp_path / "a b").results} == {3}
    assert "a step of 7 layers" in ended.out


def test_a_run_keeps_what_was_found_of_the_machine_before_it(kvbench_, tmp_path):
    assert (
        kvbench_("run", "-a", "seq_len=1", "-s", "write.loop", "-o", tmp_path / "run", *QUICK).code
        == 0
    )
    findings = load(tmp_path / "run").info.findings
    assert findings is not None
    subjects = [finding.subject for finding in findings]
    assert {"Stolen CPU time", "Load of others", "Threads"} <= set(subjects)
    assert len(subjects) == len(set(subjects))
    assert all(bool(f.advice) == (f.verdict != "fine") for f in findings)


def test_axes_replace_those_of_a_preset(kvbench_, tmp_path):
    kvbench_(
        "run",
        "--preset",
        "smoke",
        "-a",
        "op=write",
        "-a",
        "block_size=4",
        "-s",
        "write.loop",
        "-o",
        tmp_path / "run",
        *QUICK,
    )
    done = load(tmp_path / "run")
    assert {(row.case.seq_len, row.case.block_size) for row in done.results} == {
        (1, 4),
        (8, 4),
        (64, 4),
    }


def test_without_a_folder_a_run_makes_one_under_results(kvbench_, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert kvbench_("run", "-a", "seq_len=1", "-s", "write.loop", *QUICK).code == 0
    (folder,) = (tmp_path / "results").iterdir()
    assert folder.name.endswith("-cpu")
    assert len(load(folder).results) == 1


def test_a_single_seq_len_has_no_curve_and_that_is_said(kvbench_, tmp_path):
    ended = kvbench_("run", "-a", "seq_len=4", "-s", "write.loop", "-o", tmp_path / "run", *QUICK)
    assert ended.code == 0
    assert "No plots" in ended.out


@pytest.mark.parametrize(
    "axes",
    [
        ("seq_len=0,1,4",),
        ("seq_len=1,4", "num_heads=1,2"),
        ("seq_len=1,4", "batch=3", "lengths=holes"),
        ("seq_len=1,4", "padding=2", "kv_input=fused_qkv"),
    ],
    ids=" ".join,
)
def test_whatever_can_be_swept_can_be_ranked_and_plotted(kvbench_, tmp_path, axes):
    options = [word for axis in axes for word in ("-a", axis)]
    ended = kvbench_("run", *options, "-s", "write.loop", "-o", tmp_path / "run", *QUICK)
    assert (ended.code, ended.err) == (0, "")
    assert "write: time per call by seq_len" in ended.out
    # Without two sizes that move bytes there is no curve, and that is said.
    drawn = (tmp_path / "run" / "plots" / "write-launch-overhead.png").exists()
    assert drawn == ("No plots" not in ended.out)


def test_an_empty_batch_can_be_swept_and_has_nothing_to_plot(kvbench_, tmp_path):
    options = ("-a", "seq_len=1,4", "-a", "batch=0", "-s", "write.loop")
    ended = kvbench_("run", *options, "-o", tmp_path / "run", *QUICK)
    assert (ended.code, ended.err) == (0, "")
    assert "No plots" in ended.out


def test_a_run_with_a_wrong_strategy_names_it_and_keeps_the_others(kvbench_, wrong_file, tmp_path):
    folder = tmp_path / "run"
    ended = kvbench_(
        "run",
        "-a",
        "seq_len=1,8",
        "-s",
        "write.wrong",
        "-s",
        "write.loop",
        "--load",
        wrong_file,
        "-o",
        folder,
        *QUICK,
    )
    assert (ended.code, ended.err) == (1, "")
    assert "FAILED: 2 rows" in ended.out
    assert "write.wrong incorrect: key_pool block" in ended.out
    statuses = {(row.strategy, row.status) for row in load(folder).results}
    assert statuses == {("write.wrong", "incorrect"), ("write.loop", "ok")}
    assert (folder / "plots" / "write-launch-overhead.svg").exists()


def test_the_documented_strategy_of_a_user_works(kvbench_, tmp_path):
    ended = kvbench_(
        "run",
        "--load",
        ROOT / "docs" / "my_strategy.py",
        "-s",
        "write.mine",
        "-s",
        "write.loop",
        "-a",
        "seq_len=1,8",
        "-o",
        tmp_path / "run",
        *QUICK,
    )
    assert (ended.code, ended.err) == (0, "")
    assert ("write.mine", "ok") in {
        (row.strategy, row.status) for row in load(tmp_path / "run").results
    }


def test_rank_prints_the_ranking_of_a_run(kvbench_, made_run):
    before = contents(made_run)
    ended = kvbench_("rank", made_run)
    assert (ended.code, ended.err) == (0, "")
    for op in ("write", "read"):
        assert f"{op}: cost of a step of 32 layers (prepare + 32 x run)" in ended.out
        assert f"{op}: time per call by seq_len" in ended.out
    assert "[no] GPU here" in ended.out
    assert contents(made_run) == before


def test_rank_takes_another_depth(kvbench_, made_run):
    ended = kvbench_("rank", made_run, "--layers", "3")
    assert "a step of 3 layers (prepare + 3 x run)" in ended.out
    assert "spread over 3 layers" in ended.out
    assert "32 layers" not in ended.out


def test_rank_prints_markdown(kvbench_, made_run):
    ended = kvbench_("rank", made_run, "--markdown")
    assert (ended.code, ended.err) == (0, "")
    lines = ended.out.splitlines()
    assert lines[0] == "**write: cost of a step of 32 layers (prepare + 32 x run)**"
    assert lines[2] == "| strategy | geometric mean | worst | fastest or tied | cases |"
    assert lines[3] == "| --- | ---: | ---: | ---: | ---: |"
    assert sum(line.startswith("| write.") for line in lines) == 3 + 4
    assert sum(line.startswith("| read.") for line in lines) == 3 + 4
    assert "│" not in ended.out


def test_plot_draws_into_the_run(kvbench_, made_run):
    ended = kvbench_("plot", made_run)
    assert (ended.code, ended.err) == (0, "")
    files = [name for name in contents(made_run) if name.startswith("plots/")]
    assert len(files) == 16
    assert ended.out == f"8 figures (PNG, SVG) in {made_run / 'plots'}\n"


def test_another_style_is_drawn_into_a_folder_of_its_own(kvbench_, made_run):
    before = contents(made_run)
    ended = kvbench_("plot", made_run, "--style", "paper")
    assert (ended.code, ended.err) == (0, "")
    after = contents(made_run)
    drawn = {name.removeprefix("plots-paper/") for name in after.keys() - before.keys()}
    names = {
        f"{op}-{kind}"
        for op in ("write", "read")
        for kind in ("launch-overhead", "bandwidth", "speedup", "layers")
    }
    assert drawn == {f"{name}.{end}" for name in names for end in ("png", "svg", "pdf", "txt")}
    assert ended.out == f"8 figures (PNG, SVG, PDF, TXT) in {made_run / 'plots-paper'}\n"
    caption = after["plots-paper/write-bandwidth.txt"].decode()
    assert caption.startswith("Writing K/V into a paged cache: bandwidth\n")
    assert "Made CPU" in caption


def test_plot_draws_into_another_folder_and_leaves_the_run_alone(kvbench_, made_run, tmp_path):
    before = contents(made_run)
    ended = kvbench_("plot", made_run, "-o", tmp_path / "else" / "where")
    assert (ended.code, ended.err) == (0, "")
    assert len(contents(tmp_path / "else" / "where")) == 16
    assert contents(made_run) == before


@pytest.fixture
def large_run(tmp_path):
    sizes = {"seq_lens": (1, 8), "block_sizes": (16,), "kv_heads": (8,)}
    rows = large_rows(48, **sizes, clocks=("wall",), samples=3)
    return run_folder(tmp_path / "run", rows)


@pytest.fixture
def saved(monkeypatch):
    """Names of the figures that would have been saved; each is gone when the next one is."""
    names, figures = [], []

    def keep(figure, folder, name, style):
        assert style in palette.STYLES
        gc.collect()
        assert [ref() for ref in figures if ref() is not None] == []
        figures.append(weakref.ref(figure))
        names.append(name)
        return folder / f"{name}.png", folder / f"{name}.svg"

    monkeypatch.setattr(save, "save_figure", keep)
    return names


def test_figures_of_a_large_run_that_are_left_out_are_said(
    kvbench_, large_run, saved, monkeypatch, tmp_path
):
    few = functools.partial(plots.most_telling, most_panels=18)
    monkeypatch.setattr(plots, "most_telling", few)
    total = len(plots.sketches(to_frame(load(large_run).results), load(large_run).info))
    ended = kvbench_("plot", large_run)
    assert (ended.code, ended.err) == (0, "")
    assert saved == [
        f"{op}-{kind}"
        for op in ("write", "read")
        for kind in ("launch-overhead", "bandwidth", "speedup", "layers")
    ]
    drawn, last = ended.out.splitlines()
    assert drawn.startswith("8 figures")
    assert last == (
        f"{total - 8} of {total} figures are left out, those farthest from a case's defaults; "
        f"`kvbench plot {large_run} --all` draws all"
    )
    asked = ["--layers", "7", "--style", "dark", "-o", tmp_path / "else where"]
    again = f"--all --layers 7 --style dark -o '{tmp_path / 'else where'}'"
    assert (
        f"`kvbench plot {large_run} {again}` draws all" in kvbench_("plot", large_run, *asked).out
    )


def test_all_figures_of_a_large_run_are_drawn_one_at_a_time_when_asked_for(
    kvbench_, large_run, saved, monkeypatch
):
    few = functools.partial(plots.most_telling, most_panels=2)
    monkeypatch.setattr(plots, "most_telling", few)
    ended = kvbench_("plot", large_run, "--all")
    assert (ended.code, ended.err) == (0, "")
    frame = to_frame(load(large_run).results)
    assert saved == [sketch.name for sketch in plots.sketches(frame, load(large_run).info)]
    assert len(set(saved)) == len(saved) == 16
    assert "left out" not in ended.out


BAD_INPUTS = {
    "unknown axis": (("run", "-a", "block_sze=16"), ("'block_sze'", "did you mean 'block_size'?")),
    "axis without values": (("run", "-a", "seq_len"), ("'seq_len'", "name=values")),
    "axis given twice": (
        ("run", "-a", "seq_len=1", "-a", "seq_len=2"),
        ("seq_len is given twice",),
    ),
    "block size 0": (("run", "-a", "block_size=0"), ("block_size=0", "1 or more")),
    "no integer": (("check", "-a", "seq_len=1,many"), ("seq_len", "'many'", "not an integer")),
    "range": (("check", "-a", "seq_len=1:100:*1"), ("'1:100:*1'", "a factor of 2 or more")),
    "brackets": (("check", "-a", "dtype=[bold]"), ("'[bold]'", "bf16")),
    "heads": (
        ("run", "-a", "num_heads=12", "-a", "num_kv_heads=8", "--device", "cpu"),
        ("num_heads=12", "num_kv_heads=8", "a multiple"),
    ),
    "unknown strategy": (("run", "-s", "write.lop"), ("'write.lop'", "did you mean 'write.loop'?")),
    "pattern": (("check", "-s", "wriet.*"), ("strategy 'wriet.*'", "write.loop")),
    "unknown preset": (("run", "--preset", "smoek"), ("'smoek'", "did you mean 'smoke'?")),
    "device": (("run", "--device", "cuda:99"), ("'cuda:99'", "cpu")),
    "device of a check": (("check", "--device", "tpu"), ("'tpu'", "cpu")),
    "device of a list": (("list", "--device", "gpu"), ("'gpu'", "cpu")),
    "unknown option": (("run", "--sed", "3"), ("'--sed'", "--seed")),
    "unknown command": (("rnu",), ("'rnu'",)),
    "layers": (("run", "--layers", "0"), ("--layers", "0")),
    "layers of a rank": (("rank", "x", "--layers", "many"), ("--layers", "'many'")),
    "cell seconds": (("run", "--cell-seconds", "-1"), ("--cell-seconds", "-1")),
    "budget": (("run", "--call-budget", "none"), ("--call-budget", "'none'")),
    "seed": (("run", "--seed", "-1"), ("--seed", "-1")),
    "no run": (("rank",), ("RUN",)),
    "missing run": (("rank", "results/nowhere"), ("'results/nowhere'", RUN_FILE)),
    "style": (("plot", "x", "--style", "drak"), ("--style", "'drak'", "docs", "paper", "dark")),
    "missing run to plot": (("plot", "nowhere:100:"), ("'nowhere:100:'", RUN_FILE)),
    "missing file": (("run", "--load", "mine.py"), ("'mine.py'", "a Python file")),
    "missing file of a check": (("check", "--load", "mine.py"), ("'mine.py'",)),
    "missing file of a list": (("list", "--load", "mine.py"), ("'mine.py'",)),
}


@pytest.mark.parametrize(("arguments", "parts"), BAD_INPUTS.values(), ids=BAD_INPUTS)
def test_a_mistake_is_one_line_that_names_it(kvbench_, tmp_path, monkeypatch, arguments, parts):
    monkeypatch.chdir(tmp_path)
    refused(kvbench_(*arguments), *parts)
    assert contents(tmp_path) == {}


def test_a_check_of_nothing_is_a_mistake(kvbench_):
    ended = kvbench_("check", "-s", "write.loop", "-a", "op=read", "--device", "cpu")
    assert ended.code == 2
    assert ended.err.startswith("error: nothing was checked")


FILES = {
    "raises": ("raise RuntimeError('out of\\nluck')", ("RuntimeError: out of luck",)),
    "no Python": ("def run(:", ("SyntaxError",)),
    "registers nothing": ("x = 1", ("registers nothing",)),
    "a name that is taken": (WRONG.replace("write.wrong", "write.loop"), ("'write.loop'", "twice")),
    "an unknown op": (WRONG.replace('op = "write"', 'op = "wirte"'), ("'wirte'", "'write'")),
}


@pytest.mark.parametrize(("text", "parts"), FILES.values(), ids=FILES)
@pytest.mark.parametrize("command", ["run", "check", "list"])
def test_a_file_of_strategies_that_can_not_be_loaded(kvbench_, tmp_path, command, text, parts):
    path = tmp_path / "mine.py"
    path.write_text(text)
    refused(kvbench_(command, "--load", path), *parts)


def test_a_folder_that_holds_a_run_is_refused_and_left_byte_for_byte(kvbench_, made_run):
    before = contents(made_run)
    ended = kvbench_("run", "-a", "seq_len=1", "-s", "write.loop", "-o", made_run, *QUICK)
    refused(ended, str(made_run), "another run")
    assert contents(made_run) == before


def test_a_folder_below_a_file_is_refused(kvbench_, tmp_path):
    (tmp_path / "file").touch()
    out = tmp_path / "file" / "run"
    refused(kvbench_("run", "-a", "seq_len=1", "-o", out, *QUICK), str(out))


@pytest.mark.parametrize("command", ["rank", "plot"])
def test_plots_and_rankings_of_a_broken_run_name_the_line(kvbench_, made_run, command):
    path = made_run / ROWS_FILE
    lines = path.read_bytes().splitlines(keepends=True)
    lines[3] = lines[3][:50] + b"\n"
    path.write_bytes(b"".join(lines))
    refused(kvbench_(command, made_run), f"{path}: line 4")
    assert not (made_run / "plots").exists()


@pytest.mark.parametrize("command", ["rank", "plot"])
@pytest.mark.parametrize(
    ("name", "data"),
    [
        (RUN_FILE, b'{"schema_version": 1,'),
        (RUN_FILE, b'{"schema_version": 99}'),
        (RUN_FILE, None),
        (ROWS_FILE, None),
    ],
)
def test_a_run_that_is_not_whole_is_refused(kvbench_, made_run, command, name, data):
    (made_run / name).unlink()
    if data is not None:
        (made_run / name).write_bytes(data)
    refused(kvbench_(command, made_run), str(made_run), name)


@pytest.mark.parametrize("command", ["rank", "plot"])
def test_a_torn_last_line_is_a_warning(kvbench_, made_run, command):
    path = made_run / ROWS_FILE
    whole = path.read_bytes()
    path.write_bytes(whole[:-10])
    ended = kvbench_(command, made_run)
    assert ended.code == 0
    (line,) = ended.err.splitlines()
    last = len(whole.splitlines())
    assert line.startswith(f"warning: {path}: line {last} is torn")
    assert ("write: cost of a step" if command == "rank" else "8 figures") in ended.out
    assert path.read_bytes() == whole[:-10]


def test_a_plots_folder_that_can_not_be_made_is_one_line(kvbench_, made_run, tmp_path):
    (tmp_path / "file").touch()
    out = tmp_path / "file" / "plots"
    refused(kvbench_("plot", made_run, "-o", out), str(out))


def test_an_interruption_is_said_and_has_its_code(kvbench_, tmp_path, monkeypatch):
    measure = runner.measure_case
    measured = []

    def interrupted(*arguments):
        if measured:
            raise KeyboardInterrupt
        measured.extend(measure(*arguments))
        return measured

    monkeypatch.setattr(runner, "measure_case", interrupted)
    ended = kvbench_(
        "run", "-a", "seq_len=1,2,3", "-s", "write.loop", "-o", tmp_path / "run", *QUICK
    )
    assert ended.code == 130
    assert load(tmp_path / "run").results == tuple(measured) != ()
    assert kvbench_("rank", tmp_path / "run").code == 0
    # What is said to go on with does.
    said, command = ended.err.strip().split(": ")
    assert said == "interrupted; to go on"
    monkeypatch.setattr(runner, "measure_case", measure)
    resumed = kvbench_(*shlex.split(command)[1:])
    assert (resumed.code, resumed.err) == (0, "")
    assert "2 of 3 cases to measure" in resumed.out
    rows = load(tmp_path / "run").results
    assert {row.case.seq_len: row.session for row in rows} == {
        case.seq_len: int(case != measured[0].case) for case in {row.case for row in rows}
    }
    assert len({row.case for row in rows}) == 3


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        (("--cell-seconds", "0.02"), "cell_seconds 0.005 (here 0.02)"),
        (("--cache", "cold"), "cache 'hot' (here 'cold')"),
        (("--seed", "9"), "seed 0 (here 9)"),
    ],
)
def test_a_run_of_other_settings_is_not_resumed_unless_that_is_allowed(
    kvbench_, tmp_path, changed, named
):
    folder = tmp_path / "run"
    run = ("run", "-s", "write.loop", "-o", folder, *QUICK)
    assert kvbench_(*run, "-a", "seq_len=1,2").code == 0
    before = contents(folder)
    other = kvbench_(*run, *changed, "-a", "seq_len=1,2,3", "--resume")
    assert other.code == 2
    assert named in other.err
    assert "--allow-mixed" in other.err
    assert contents(folder) == before
    mixed = kvbench_(*run, *changed, "-a", "seq_len=1,2,3", "--resume", "--allow-mixed")
    assert mixed.code == 0
    assert load(folder).info.resumptions[0].command.endswith("--resume --allow-mixed")


def test_resume_needs_a_folder_and_begins_a_run_where_there_is_none(kvbench_, tmp_path):
    run = ("run", "-a", "seq_len=1,2", "-s", "write.loop", *QUICK, "--resume")
    refused(kvbench_(*run), "--resume without --out")
    assert kvbench_(*run, "-o", tmp_path / "run").code == 0
    assert len({row.case for row in load(tmp_path / "run").results}) == 2
    again = kvbench_(*run, "-o", tmp_path / "run")
    assert again.code == 0
    assert "nothing is missing" in again.out


def test_a_time_budget_ends_a_run_and_says_how_to_go_on(kvbench_, tmp_path):
    run = ("run", "-a", "seq_len=1,2,3", "-s", "write.loop", *QUICK, "-o", tmp_path / "run")
    ended = kvbench_(*run, "--time-budget", "0")
    assert ended.code == 0
    assert "3 cases left (time budget); to go on: kvbench run" in ended.out
    assert load(tmp_path / "run").results == ()


@pytest.mark.parametrize("option", ["-h", "--help"])
def test_help_names_every_command(kvbench_, option):
    ended = kvbench_(option)
    assert (ended.code, ended.err) == (0, "")
    for command in COMMANDS:
        assert re.search(rf"^  {command} ", ended.out, re.MULTILINE)


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_a_command_explains_its_options(kvbench_, command):
    ended = kvbench_(command, "--help")
    assert (ended.code, ended.err) == (0, "")
    for option in cli.cli.commands[command].params:
        named = option.opts[-1] if option.param_type_name == "option" else option.metavar
        assert named in ended.out


def test_without_a_command_the_help_is_shown_as_it_is(kvbench_):
    ended = kvbench_()
    text = ended.out + ended.err
    assert re.search(r"^  run ", text, re.MULTILINE)
    assert not text.startswith("error")


def test_the_version_is_that_of_the_package(kvbench_):
    ended = kvbench_("--version")
    assert ended.code == 0
    assert kvbench.__version__ in ended.out


# What follows starts the real command.


def start(*arguments: object, **options) -> Ended:
    environment = {**os.environ, "COLUMNS": "200"}
    done = subprocess.run(
        [sys.executable, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
        **options,
    )
    return Ended(done.returncode, done.stdout, done.stderr)


QUICK_HELP = """
import sys
from kvbench.cli import cli
for arguments in [[], *([name] for name in cli.commands)]:
    assert cli.main([*arguments, "--help"], prog_name="kvbench", standalone_mode=False) == 0
print(sorted({"torch", "triton", "pandas", "matplotlib", "scipy", "numpy"} & set(sys.modules)))
"""


def test_help_waits_for_no_large_package():
    ended = start("-c", QUICK_HELP)
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.splitlines()[-1] == "[]"


def test_the_module_runs_as_the_command(wrong_file):
    ended = start(
        "-m",
        "kvbench",
        "check",
        "-a",
        "seq_len=3",
        "--load",
        wrong_file,
        "-s",
        "write.wrong",
        *TINY,
    )
    assert (ended.code, ended.err) == (1, "")
    assert "write.wrong incorrect" in ended.out


def test_the_module_refuses_as_the_command_does(tmp_path):
    refused(start("-m", "kvbench", "rank", tmp_path), str(tmp_path), RUN_FILE)


def test_the_installed_command_works(tmp_path):
    script = Path(sys.executable).with_name("kvbench")
    options = ("-a", "seq_len=3", "-s", "write.loop", *TINY)
    ended = start(script, "check", *options, cwd=tmp_path)
    assert (ended.code, ended.err) == (0, "")
    assert "1 cases on cpu" in ended.out
    assert contents(tmp_path) == {}


def test_a_sweep_of_no_cases_is_refused_and_leaves_nothing(kvbench_, tmp_path):
    folder = tmp_path / "run"
    ended = kvbench_("run", "-a", "op=read", "-s", "write.loop", "-o", folder)
    assert ended.code == 2
    assert "nothing to measure" in ended.err
    assert "expected strategies of: read" in ended.err
    assert not folder.exists()


def test_a_run_is_explained_and_held_against_the_claims(kvbench_, tmp_path):
    folder = tmp_path / "run"
    axes = ("-a", "seq_len=1:64:*2", "-a", "num_kv_heads=1,4", "-a", "op=write")
    options = ("-s", "write.[lt]*", "-s", "write.indexing", "-s", "write.slot_mapping")
    options += ("-o", folder, "--cell-seconds", "0.002")
    assert kvbench_("run", *axes, *options).code == 0
    explained = kvbench_("fit", folder)
    assert (explained.code, explained.err) == (0, "")
    assert "write: time = a + b x launches + bytes / bandwidth" in explained.out
    assert "from which seq_len on the first beats the second" in explained.out
    told = kvbench_("claims", folder, "--markdown")
    assert (told.code, told.err) == (0, "")
    assert "| “no extra copy” |" in told.out


@pytest.mark.parametrize("command", ["rank", "fit", "claims"])
def test_tables_of_a_run_that_began_on_a_busy_machine_say_so_first(kvbench_, tmp_path, command):
    busy = Finding("Busy processes", "make 99%", "warning", "End them.")
    folder = run_folder(tmp_path / "busy", sweep_rows(), findings=(busy,))
    quiet = run_folder(tmp_path / "quiet", sweep_rows())
    said = "This machine was busy when the run began (Busy processes: make 99%)"
    assert kvbench_(command, folder).out.startswith(f"WARNING: {said}")
    assert kvbench_(command, folder, "--markdown").out.startswith(f"**{said}")
    assert said not in kvbench_(command, quiet).out


def test_a_run_says_that_the_machine_is_busy_before_it_measures_and_beside_its_answer(
    kvbench_, tmp_path, monkeypatch
):
    busy = Finding("Busy processes", "make 99%", "warning", "End them.")
    monkeypatch.setattr(bench, "diagnose", lambda *_: (busy,))
    folder = tmp_path / "run"
    told = kvbench_(
        "run", "-a", "op=write", "-a", "seq_len=1,2", "-s", "write.l*", "-o", folder, *QUICK
    )
    begin, measured, end = (told.out.partition("Measured in")[i] for i in range(3))
    assert measured
    warning = "WARNING: This machine was busy when the run began (Busy processes: make 99%)."
    assert warning in begin
    assert end.index(warning) < end.index("By the cost of a step of 32 layers (prepare once")
    assert "━" not in end[end.index(warning) :], "no table is between them"


def test_the_doctor_says_what_it_found_and_runs_the_trial(kvbench_):
    ended = kvbench_("doctor", "--calibrate", "2")
    assert ended.code in {0, 1}  # whether this machine passes is not what is tested
    assert ended.err == ""
    for title in ("This machine", "Floors: an empty call", "A/A trial"):
        assert title in ended.out
    assert "of 2 (" in ended.out


@pytest.mark.parametrize("cache", ["cold", "rotated"])
def test_caches_can_be_cold_and_the_rows_say_so(kvbench_, tmp_path, cache):
    folder = tmp_path / "run"
    # 16 MiB a call: a rotation over four times any cache here needs few copies.
    axes = ("-a", "seq_len=1024", "-a", "num_kv_heads=32", "-a", "op=write")
    options = ("--cache", cache, "-o", folder, "--cell-seconds", "0.002")
    ended = kvbench_("run", *axes, "-s", "write.slot_mapping", *options)
    assert (ended.code, ended.err) == (0, "")
    rows = load(folder).results
    assert {row.cache for row in rows if row.phase == "run"} == {cache}
    assert all(f"--cache {cache}" in row.repro for row in rows)
    if cache == "cold":
        assert {row.measurement.calls_per_sample for row in rows} == {1}


def test_a_clock_that_the_device_does_not_have_is_refused(kvbench_, tmp_path):
    ended = kvbench_("run", "--clock", "grph", "-o", tmp_path / "run", "--device", "cpu")
    assert ended.code == 2
    assert "unknown clock of cpu: 'grph'" in ended.err


@pytest.mark.parametrize("option", ["--dry-run", "--in-process", "--allow-mixed"])
def test_a_cluster_goes_with_no_option_of_one_process(option, kvbench_):
    refused(kvbench_("run", *TINY, "--ray", "auto", option), f"--ray with {option}")


def test_nobody_at_the_address_of_a_cluster_is_said_at_once(kvbench_, tmp_path):
    out = tmp_path / "out"
    refused(kvbench_("run", *TINY, "--ray", "127.0.0.1:1", "-o", out), "Ray at '127.0.0.1:1'")
    assert not out.exists()


def test_more_shards_than_cases_are_refused(kvbench_, tmp_path):
    asked = ("-s", "write.loop", "-a", "seq_len=1,2", *QUICK, "-o", tmp_path / "run")
    for shard in ("1/3", f"1/{10**30}"):
        refused(kvbench_("run", *asked, "--shard", shard), shard, "N up to 2")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("command", ["rank", "report"])
def test_more_layers_than_a_machine_holds_are_refused(kvbench_, tmp_path, command):
    run = run_folder(tmp_path / "run", sweep_rows())
    refused(kvbench_(command, run, "--layers", 10**30), str(10**30), "layers")


def redirected(words: str, **environment: str) -> subprocess.CompletedProcess[bytes]:
    """A command of a shell, with its own redirections."""
    return subprocess.run(
        ["sh", "-c", f"{shlex.quote(sys.executable)} -m kvbench {words}"],  # noqa: S607
        env=os.environ | environment,
        capture_output=True,
        check=False,
    )


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_output_that_can_not_be_written_is_one_line(tmp_path):
    run = shlex.quote(str(run_folder(tmp_path / "run", sweep_rows())))
    full = redirected(f"rank {run} > /dev/full")
    assert full.returncode == 2
    assert full.stderr.startswith(b"error: standard output: No space left on device; expected")
    assert full.stderr.count(b"\n") == 1


def test_output_that_is_closed_or_of_another_encoding_loses_no_result(tmp_path):
    run = shlex.quote(str(run_folder(tmp_path / "run", sweep_rows())))
    closed = redirected(f"rank {run} >&-")
    assert (closed.returncode, closed.stderr) == (0, b"")
    ascii_ = redirected(f"rank {run}", PYTHONIOENCODING="ascii")
    assert (ascii_.returncode, ascii_.stderr) == (0, b"")
    assert rb" \xb5s " in ascii_.stdout


def test_a_path_that_is_no_text_can_be_measured_into(kvbench_, tmp_path):
    folder = tmp_path / os.fsdecode(b"r\xff")
    ended = kvbench_("run", "-s", "write.loop", "-a", "seq_len=1", *QUICK, "-o", folder)
    assert (ended.code, ended.err) == (0, "")
    assert load(folder).info.command.endswith(r"r\udcff'")


def test_shards_are_measured_apart_and_merged(kvbench_, tmp_path):
    run = ("run", "-a", "seq_len=1,2,3", "-s", "write.loop", *QUICK)
    for number in (1, 2):
        assert kvbench_(*run, "--shard", f"{number}/2", "-o", tmp_path / f"{number}").code == 0
    merged = kvbench_("merge", tmp_path / "all", tmp_path / "1", tmp_path / "2")
    assert (merged.code, merged.err) == (0, "")
    assert f"3 rows of 2 runs, into {tmp_path / 'all'}" in merged.out
    assert {row.case.seq_len for row in load(tmp_path / "all").results} == {1, 2, 3}
    refused(kvbench_("merge", tmp_path / "all", tmp_path / "1", tmp_path / "2"), "another run")
    for shard in ("0/2", "3/2", "1", "a/b", "1/2/3"):
        refused(kvbench_(*run, "--shard", shard), repr(shard), "K/N")


def test_a_dry_run_says_what_would_be_measured_and_touches_nothing(kvbench_, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ended = kvbench_(
        "run",
        "-a",
        "layout=NHD,HND",
        "-s",
        "*.slot_mapping",
        *QUICK,
        "--cell-seconds",
        "2",
        "--dry-run",
    )
    assert (ended.code, ended.err) == (0, "")
    cells = [[c.strip() for c in line.split("│")[1:-1]] for line in ended.out.splitlines()]
    reason = "layout HND: its blocks and slots don't lie on one axis of flat slots"
    assert [row for row in cells if len(row) == 4] == [
        ["write.slot_mapping", "1", "", ""],
        ["", "", "1", reason],
        ["read.slot_mapping", "1", "", ""],
        ["", "", "1", reason],
    ]
    # Two cells with a prepare of their own, 2 s each.
    assert "4 cases" in ended.out
    assert "sampling for 8 s at most" in ended.out
    assert contents(tmp_path) == {}


def test_an_index_is_measured_ranked_and_plotted_as_what_a_step_does_once(kvbench_, tmp_path):
    folder = tmp_path / "run"
    run = ("run", "-a", "op=index", "-a", "seq_len=1,8", "-a", "batch=2", "-s", "index.*")
    ended = kvbench_(*run, "-o", folder, "--cell-seconds", "0.005", "--device", "cpu")
    assert (ended.code, ended.err) == (0, "")
    said = " ".join(ended.out.split())
    assert "index: cost of a step (one run, without prepare)" in said
    assert "once a step, without prepare)" in said
    assert "layers" not in said
    timed = {(r.strategy, r.phase) for r in load(folder).results if r.status == "ok"}
    assert timed == {
        *((f"index.{name}", "run") for name in ("loop", "numpy", "torch")),
        ("index.torch", "prepare"),
    }
    assert "a CPU has no pinned memory" in ended.out
    fitted = kvbench_("fit", folder)
    assert (fitted.code, "bandwidth-bound" in fitted.out) == (0, False)


def test_layouts_mean_nothing_to_an_index(kvbench_):
    ended = kvbench_("check", "-a", "op=index", "-a", "layout=HND")
    assert ended.code == 2
    assert "axis layout=HND has no effect with op=index (no K or V is moved)" in ended.err
