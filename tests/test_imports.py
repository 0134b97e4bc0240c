"""Who imports whom, and what works where a package is missing."""

import ast
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from made import contents, run_folder, sweep_rows

ROOT = Path(__file__).parents[1]
HEAVY = {"torch", "triton", "pandas", "matplotlib", "numpy", "scipy"}


def python(code: str, *arguments: object, cwd: Path = ROOT) -> str:
    """What the code prints in a process of its own; a warning there is a failure here."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        cwd=cwd,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


def blocked(*packages: str) -> str:
    """Code after which these packages are not found, as where they are not installed.

    None in sys.modules would say so too, and trips scipy, which looks there for torch.
    """
    return f"""
import sys
from importlib.machinery import PathFinder
found = PathFinder.find_spec
PathFinder.find_spec = lambda name, *more: (
    None if name.partition(".")[0] in {packages!r} else found(name, *more)
)
"""


@pytest.mark.parametrize("package", ["torch", "triton"])
def test_a_blocked_package_is_really_missing(package):
    code = f"""
import importlib.util
print(importlib.util.find_spec({package!r}))
try:
    import {package}
except ModuleNotFoundError as error:
    print(error)
"""
    assert python(blocked(package) + code) == f"None\nNo module named '{package}'\n"


@pytest.fixture
def run(tmp_path) -> Path:
    return run_folder(tmp_path / "run", [*sweep_rows(), *sweep_rows(op="read")])


def test_imports_point_down():
    script = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run(
        [script, "--no-cache"], capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert done.returncode == 0, done.stdout
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    assert f"{len(contracts['contracts'])} kept, 0 broken" in done.stdout


def test_importing_the_package_imports_nothing_large():
    printed = python(f"import sys, kvbench; print(sorted({HEAVY!r} & set(sys.modules)))")
    assert printed == "[]\n"


def test_cases_results_and_the_store_need_nothing_large():
    code = f"""
import sys
import kvbench.cases, kvbench.presets, kvbench.results, kvbench.store, kvbench.blocks
print(sorted({HEAVY!r} & set(sys.modules)))
"""
    assert python(code) == "[]\n"


OPEN = """
import importlib, pkgutil
from pathlib import Path
import kvbench.analysis, kvbench.report
from kvbench.store import load

names = ["cases", "presets", "results", "store", "benchmark_json", "blocks", "units", "errors"]
for package in (kvbench.analysis, kvbench.report):
    names += [m.name.removeprefix("kvbench.")
              for m in pkgutil.iter_modules(package.__path__, package.__name__ + ".")]
for name in names:
    importlib.import_module("kvbench." + name)

from kvbench.analysis.frame import to_frame
from kvbench.analysis.ranking import rank
from kvbench.report.plots import sketches
from kvbench.report.save import save_figure

run = load(Path(sys.argv[1]))
frame = to_frame(run.results)
print([s.strategy for s in rank(frame, "write", run.info.layers)])
for sketch in sketches(frame, run.info):
    print(*(path.name for path in save_figure(sketch.draw(), Path(sys.argv[2]), sketch.name)))
print(sorted({"torch", "triton"} & set(sys.modules)))
"""


def test_a_run_opens_and_is_drawn_without_torch(run, tmp_path):
    printed = python(blocked("torch", "triton") + OPEN, run, tmp_path / "plots").splitlines()
    ranking, *figures, modules = printed
    assert set(ast.literal_eval(ranking)) == {
        "write.loop",
        "write.indexing",
        "write.slot_mapping",
    }
    assert figures == [
        f"{name}.png {name}.svg"
        for name in (
            f"{op}-{kind}"
            for op in ("write", "read")
            for kind in ("launch-overhead", "bandwidth", "speedup", "layers")
        )
    ]
    assert modules == "[]"
    assert len(contents(tmp_path / "plots")) == 16


COMMAND = """
from kvbench.cli import main
sys.argv[0] = "kvbench"
main()
"""


@pytest.mark.parametrize("command", ["rank", "plot"])
def test_runs_are_ranked_and_plotted_without_torch(run, command):
    printed = python(blocked("torch", "triton") + COMMAND, command, run)
    assert ("write.loop" if command == "rank" else "8 figures (PNG, SVG)") in printed


def test_runs_are_compared_without_torch(run):
    printed = python(blocked("torch", "triton") + COMMAND, "compare", run, run)
    assert printed.startswith("No regression: ")


NO_TRITON = "the package triton is not installed"
FEW = ("-s", "*.triton", "-s", "*.loop")
TINY = ("-a", "seq_len=3", "-a", "num_kv_heads=1", "-a", "head_dim=4", "--device", "cpu")

MEASURE = """
import torch
from kvbench.cases import Case
from kvbench.strategies import registry
from kvbench.sweep.measure import Bench, measure_case
from kvbench.timing.clocks import Floor, WallClock
from kvbench.timing.rounds import StoppingRule

registry.load_builtin()
cpu = torch.device("cpu")
bench = Bench(
    device=cpu,
    clocks=(WallClock(cpu),),
    floors_s={"wall": Floor(0.0, 1e-8)},
    rule=StoppingRule(2, 2, 2),
    call_budget_s=1.0,
    copy_bytes_per_s=1e10,
)
rows = []
for strategy in registry.all_strategies():
    rows_of = {} if strategy.op == "index" else {"num_heads": 1, "num_kv_heads": 1, "head_dim": 4}
    case = Case(op=strategy.op, seq_len=3, **rows_of)
    rows += [(r.strategy, r.status, r.reason) for r in measure_case(case, [strategy], bench)]
print(rows)
"""


def test_strategies_that_need_triton_say_so_where_it_is_missing():
    rows = ast.literal_eval(python(blocked("triton") + MEASURE))
    triton = {row for row in rows if row[0].endswith("triton")}
    assert triton == {
        ("write.triton", "unsupported", NO_TRITON),
        ("read.triton", "unsupported", NO_TRITON),
        ("attend.sdpa_triton", "unsupported", NO_TRITON),
        ("attend.triton", "unsupported", NO_TRITON),
        ("index.triton", "unsupported", NO_TRITON),
        ("step.triton+triton", "unsupported", f"write.triton: {NO_TRITON}"),
    }
    # What needs a GPU, or contexts that end with a block.
    elsewhere = ("triton", "cuda", "pinned", "streams", "flex")
    others = {status for name, status, _ in rows if not name.endswith(elsewhere)}
    assert others == {"ok"}


@pytest.mark.parametrize(
    "command", [("list", "--device", "cpu"), ("check", *TINY, *FEW)], ids=lambda c: c[0]
)
def test_commands_work_where_triton_is_missing(command):
    wide = "import os\nos.environ['COLUMNS'] = '200'\n"
    printed = python(wide + blocked("triton") + COMMAND, *command)
    assert NO_TRITON in printed
    assert "write.triton" in printed
    assert "write.loop" in printed


def test_a_run_works_where_triton_is_missing(tmp_path):
    code = f"""
from kvbench.timing import bandwidth
bandwidth._CPU_BYTES = 1 << 16
{COMMAND}"""
    # Another process would find what is blocked in this one.
    arguments = (
        "run",
        *TINY,
        *FEW,
        "--cell-seconds",
        "0.005",
        "--in-process",
        "-o",
        tmp_path / "run",
    )
    printed = python(blocked("triton") + code, *arguments)
    assert "write.triton" in printed
    assert "unsupported" in printed
    rows = (tmp_path / "run" / "rows.jsonl").read_text()
    assert rows.count(NO_TRITON) == 4
