"""`make gpu`, with commands that stand in for its own: everything is run, kept and told of."""

import datetime
import importlib.util
import re
import shlex
import sys
import time
from pathlib import Path

import click
import pytest
from simulated_cuda import DEVICE, simulated_cuda

from kvbench import cli
from kvbench.presets import PRESETS
from kvbench.strategies import registry
from kvbench.sweep.forecast import forecast
from kvbench.sweep.runner import Plan

ROOT = Path(__file__).parents[1]
SPEC = importlib.util.spec_from_file_location("benchmarks_gpu", ROOT / "benchmarks" / "gpu.py")
gpu = importlib.util.module_from_spec(SPEC)
sys.modules[SPEC.name] = gpu  # where its dataclasses look themselves up
SPEC.loader.exec_module(gpu)

H100 = gpu.Gpu("cuda", "NVIDIA H100 80GB HBM3", "sm_90")
AUDITED = {"audit"}
"""Commands of kvbench that this version may not have yet."""


def step(name: str, script: str, limit_s: float = 60.0) -> "gpu.Step":
    return gpu.Step(name, (sys.executable, "-c", script), limit_s)


def commands(steps) -> dict[str, list[str]]:
    return {each.name: list(each.command) for each in steps}


@pytest.fixture
def steps(tmp_path):
    return gpu.plan(tmp_path / "out", H100, Path("bin"))


def test_the_limits_add_up_to_less_than_25_minutes(steps):
    assert sum(each.limit_s + gpu._TO_END_S for each in steps) <= 25 * 60
    assert len({each.file(Path()) for each in steps}) == len(steps)


def test_the_sweep_is_the_gpu_preset_into_the_folder(steps, tmp_path):
    sweep = commands(steps)["sweep"]
    assert sweep[:4] == ["bin/kvbench", "run", "--preset", "gpu"]
    assert "gpu" in PRESETS
    assert sweep[-2:] == ["-o", str(tmp_path / "out" / "run")]
    report = ["bin/kvbench", "report", str(tmp_path / "out" / "run"), "--only", "markdown"]
    assert commands(steps)["report"] == report


def test_the_gpu_preset_samples_for_ten_minutes_at_most():
    # By as many clocks as a GPU has; a simulated one supports what is not compiled for it.
    preset = PRESETS["gpu"]
    with simulated_cuda(free=1 << 40):
        ahead = forecast(
            Plan(
                cases=preset.cases(),
                strategies=registry.all_strategies(),
                device=DEVICE,
                command="",
                preset="gpu",
                seed=0,
                cell_seconds=preset.cell_seconds,
                call_budget_s=10.0,
                layers=1,
                clocks=(),
                cache="hot",
            )
        )
    assert 300 < ahead.at_most_s <= 600


def test_every_command_has_the_options_that_it_is_given(steps):
    for each in steps:
        program, name, *arguments = each.command
        if Path(program).name != "kvbench" or (name in AUDITED and name not in cli.cli.commands):
            continue
        command = cli.cli.commands[name]
        with click.Context(command, info_name=name) as context:
            parsed = command.make_parser(context).parse_args(list(arguments))
        assert parsed


def test_the_guide_names_every_step_with_its_limit_and_no_test_that_is_not_there(steps):
    text = (ROOT / "docs" / "gpu.md").read_text()
    rows = re.findall(
        r"^\| ([a-z, -]+) \| .* \| ([\d.]+) (min|s)(?: each)? \| .* \|$", text, re.MULTILINE
    )
    limits = {
        name: float(limit) * (60 if unit == "min" else 1)
        for names, limit, unit in rows
        for name in names.split(", ")
    }
    assert limits == {each.name: each.limit_s for each in steps}
    named = set(re.findall(r"`(test_\w+\.py)", text))
    assert named
    for each in named:
        assert "mark.gpu" in (ROOT / "tests" / each).read_text(), each


def test_tests_that_time_something_have_the_gpu_to_themselves(steps):
    together, alone = (commands(steps)[name] for name in ("tests", "tests-alone"))
    assert together[1:3] == alone[1:3] == ["-m", "gpu"]
    paths = [each for each in alone if each.endswith(".py")]
    assert paths
    assert "-n" not in alone
    for path in paths:
        assert (ROOT / path).is_file()
        assert f"--ignore={path}" in together


@pytest.mark.parametrize(
    ("device", "architecture", "options"),
    [("cuda", "sm_90", ["--target", "sm_90"]), ("cuda", "sm_75", []), ("xpu", "", [])],
)
def test_the_audit_is_of_this_gpu_where_it_can_be(tmp_path, device, architecture, options):
    made = commands(gpu.plan(tmp_path, gpu.Gpu(device, "A", architecture), Path("bin")))
    assert made["audit"][2:-2] == options
    assert made["doctor"][2:4] == ["--device", device]


def test_what_fails_is_said_and_the_rest_is_run(tmp_path, capfd):
    steps = [
        step("first", "print('one'); import sys; print('two', file=sys.stderr)"),
        step("second", "print('broke'); raise SystemExit(3)"),
        gpu.Step("third", (str(tmp_path / "none"),), 60.0),
        step("fourth", "print('still run')"),
    ]
    outcomes = list(gpu.run_steps(steps, tmp_path))
    assert [each.code for each in outcomes] == [0, 3, 127, 0]
    assert (tmp_path / "first.txt").read_text() == "one\ntwo\n"
    assert (tmp_path / "second.txt").read_text() == "broke\n"
    assert "No such file" in (tmp_path / "third.txt").read_text()
    shown = capfd.readouterr().out
    assert all(text in shown for text in ("one\n", "broke\n", "still run\n", "exit code 3"))
    text = gpu.summary(H100, "2.13.0", outcomes)
    assert "| second | failed with exit code 3 |" in text
    assert "| fourth | passed |" in text
    assert "[first.txt](first.txt)" in text


FOREVER = "import time\nprint('begun', flush=True)\nwhile True: time.sleep(0.05)"
DEAF = f"import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\n{FOREVER}"
CHILD = (
    "import subprocess, sys\n"
    f"child = subprocess.Popen([sys.executable, '-c', {DEAF!r}])\n"
    "print(child.pid, flush=True)\n"
    "child.wait()"
)


@pytest.mark.parametrize("script", [FOREVER, CHILD], ids=["polite", "deaf child"])
def test_a_step_that_takes_too_long_is_ended_with_all_that_it_started(
    script, tmp_path, monkeypatch
):
    monkeypatch.setattr(gpu, "_TO_END_S", 0.5)
    started = time.monotonic()
    outcome = gpu.run_step(step("endless", script, limit_s=3.0), tmp_path)
    assert outcome.code is None
    assert outcome.said() == "interrupted after 3 s"
    assert time.monotonic() - started < 30
    assert "begun" in (tmp_path / "endless.txt").read_text()


def test_folders_are_new(tmp_path):
    day = datetime.date(2026, 3, 4)
    names = []
    for _ in range(3):
        folder = gpu.new_folder(H100, tmp_path, day)
        folder.mkdir()
        names.append(folder.name)
    first = "gpu-nvidia-h100-80gb-hbm3-2026-03-04"
    assert names == [first, f"{first}-2", f"{first}-3"]


@pytest.fixture
def found(monkeypatch):
    monkeypatch.setattr(gpu, "look", lambda _: (H100, "2.13.0"))


def ended(*arguments: object) -> int:
    try:
        gpu.main(list(map(str, arguments)))
    except SystemExit as end:
        return end.code
    raise AssertionError


def test_without_a_gpu_it_refuses_in_one_line(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(gpu, "look", lambda _: (None, "2.13.0"))
    assert ended("-o", tmp_path / "out") == 2
    said = capsys.readouterr()
    assert said.err == "error: no GPU here (torch 2.13.0): expected one that torch sees\n"
    assert said.out == ""
    assert not (tmp_path / "out").exists()


@pytest.mark.usefixtures("found")
def test_a_folder_that_is_there_is_refused(capsys, tmp_path):
    assert ended("-o", tmp_path) == 2
    assert f"error: {tmp_path} is there already" in capsys.readouterr().err


@pytest.mark.usefixtures("found")
def test_a_dry_run_says_the_commands_and_makes_nothing(capsys, tmp_path):
    assert ended("-o", tmp_path / "out", "--dry-run") == 0
    assert shlex.join(["run", "--preset", "gpu"]) in capsys.readouterr().out
    assert not (tmp_path / "out").exists()


@pytest.mark.usefixtures("found")
@pytest.mark.parametrize(("broken", "code"), [("", 0), ("raise SystemExit(1)", 1)])
def test_one_folder_is_left_and_the_exit_code_says_whether_all_passed(
    broken, code, monkeypatch, capsys, tmp_path
):
    steps = (step("one", broken or "pass"), step("two", "print(2)"))
    monkeypatch.setattr(gpu, "plan", lambda *_: steps)
    assert ended("-o", tmp_path / "out") == code
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == [
        "one.txt",
        "summary.md",
        "two.txt",
    ]
    shown = capsys.readouterr().out
    assert ("FAILED: one failed with exit code 1\n" in shown) == bool(code)


def test_this_machine_is_looked_at_as_it_is():
    import torch  # noqa: PLC0415 - what is asked in another process

    found, version = gpu.look(sys.executable)
    assert version == torch.__version__
    assert (found is not None) == torch.accelerator.is_available()
