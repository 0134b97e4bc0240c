"""`make gpu`: all that only a GPU can show, in one folder to commit, in under 25 minutes.

The tests that need a GPU, the trial of the machine, the sweep of the preset `gpu` with its
report, and the audit of the kernels' machine code for this GPU. What each step prints is shown
and kept. A step that fails, or takes longer than it may, doesn't keep the others from being made;
the summary says which did, and the exit code is then 1. Without a GPU it is 2, and nothing is made.
"""

import datetime
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Timer

import click

ROOT = Path(__file__).resolve().parents[1]
_AUDITED = ("sm_80", "sm_89", "sm_90", "sm_100", "sm_120", "gfx942")
_SWEEP_S = 510
"""The sweep begins no case later; what is missing then is measured by `kvbench run --resume`."""
_TO_END_S = 10.0
"""What a step that is interrupted may take to end by itself."""
_WORKERS = 4


@dataclass(frozen=True, slots=True)
class Gpu:
    """The GPU that there is."""

    device: str
    """Its kind, as torch names it: "cuda", "xpu"."""
    name: str
    architecture: str
    """As compilers name it: "sm_90", "gfx942"; "" if torch doesn't say."""


@dataclass(frozen=True, slots=True)
class Step:
    """A command of which everything that it prints is kept."""

    name: str
    command: tuple[str, ...]
    limit_s: float
    """It is interrupted when it has taken so long."""

    def file(self, folder: Path) -> Path:
        """Where its output is kept."""
        return folder / f"{self.name}.txt"


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a step ended."""

    step: Step
    seconds: float
    code: int | None
    """Its exit code; None if it was interrupted."""

    def said(self) -> str:
        """In words."""
        if self.code is None:
            return f"interrupted after {self.step.limit_s:.0f} s"
        return "passed" if self.code == 0 else f"failed with exit code {self.code}"


# In a process of its own, which then leaves the GPU: looking at one takes some of its memory.
_LOOK = """
import json, torch
kind = torch.accelerator.current_accelerator(check_available=True)
found = None
if kind is not None:
    told = torch.get_device_module(kind).get_device_properties(0)
    architecture = getattr(told, "gcnArchName", "").partition(":")[0]
    if kind.type == "cuda" and not torch.version.hip:
        architecture = f"sm_{told.major}{told.minor}"
    found = {"device": kind.type, "name": told.name, "architecture": architecture}
print(json.dumps({"torch": torch.__version__, "gpu": found}))
"""


def look(python: str) -> tuple[Gpu | None, str]:
    """The GPU, or None; and the version of torch that says so."""
    done = subprocess.run(  # noqa: S603 - fixed arguments
        [python, "-c", _LOOK], capture_output=True, text=True, check=True
    )
    said = json.loads(done.stdout.splitlines()[-1])
    return (Gpu(**said["gpu"]) if said["gpu"] else None), said["torch"]


def plan(folder: Path, gpu: Gpu, programs: Path) -> tuple[Step, ...]:
    """The steps, in order. Their limits add up to less than 25 minutes.

    Args:
        folder: Where all of it goes.
        gpu: The GPU.
        programs: Where `kvbench` and `pytest` are.
    """
    kvbench, pytest = str(programs / "kvbench"), str(programs / "pytest")
    sweep = str(folder / "run")
    marked = (pytest, "-m", "gpu", "--durations=15")
    # Those that time something, or fill the memory, have the GPU to themselves.
    alone = ("tests/test_gpu.py", "tests/test_clocks.py")
    together = tuple(f"--ignore={path}" for path in alone)
    audited = ("--target", gpu.architecture) if gpu.architecture in _AUDITED else ()
    audit = (kvbench, "audit", *audited, "--json", str(folder / "audit.json"))
    on = ("--device", gpu.device)
    return (
        Step("tests", (*marked, "-n", str(_WORKERS), "--dist", "loadgroup", *together), 300),
        Step("tests-alone", (*marked, *alone), 210),
        Step("doctor", (kvbench, "doctor", *on, "--calibrate"), 120),
        Step(
            "sweep",
            (
                *(kvbench, "run", "--preset", "gpu", *on),
                *("--time-budget", str(_SWEEP_S), "-o", sweep),
            ),
            _SWEEP_S + 60,
        ),
        Step("report", (kvbench, "report", sweep, "--only", "markdown"), 75),
        Step("audit", audit, 120),
    )


def run_steps(steps: Sequence[Step], folder: Path) -> Iterator[Outcome]:
    """Run the steps one after the other, whatever becomes of those before."""
    for number, step in enumerate(steps, 1):
        click.secho(f"[{number}/{len(steps)}] {shlex.join(step.command)}", bold=True)
        outcome = run_step(step, folder)
        click.secho(f"{step.name}: {outcome.said()} ({outcome.seconds:.0f} s)\n", bold=True)
        yield outcome


def run_step(step: Step, folder: Path) -> Outcome:
    """Run a step; show what it prints, and keep it."""
    started = time.monotonic()
    with step.file(folder).open("wb") as kept:
        try:
            # A group of its own, whose processes can be ended together.
            process = subprocess.Popen(  # noqa: S603 - the plan's commands
                step.command,
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
            )
        except OSError as error:
            line = f"{step.command[0]}: {error.strerror}\n"
            kept.write(line.encode())
            click.echo(line, nl=False)
            return Outcome(step, time.monotonic() - started, 127)
        with process, _limited(process, step.limit_s) as late:
            for line in process.stdout or ():
                kept.write(line)
                kept.flush()
                click.echo(line, nl=False)
            code = process.wait()
    return Outcome(step, time.monotonic() - started, None if late.is_set() else code)


@contextmanager
def _limited(process: subprocess.Popen[bytes], limit_s: float) -> Iterator[Event]:
    """Inside, a process is interrupted when its time is over, and killed if that is not enough."""
    late = Event()

    def interrupt() -> None:
        late.set()
        _signal(process, signal.SIGINT)

    timers = [
        Timer(limit_s, interrupt),
        Timer(limit_s + _TO_END_S, _signal, (process, signal.SIGKILL)),
    ]
    for timer in timers:
        timer.daemon = True
        timer.start()
    try:
        yield late
    except BaseException:
        _signal(process, signal.SIGKILL)  # else what it started would go on by itself
        raise
    finally:
        for timer in timers:
            timer.cancel()


def _signal(process: subprocess.Popen[bytes], number: int) -> None:
    with suppress(ProcessLookupError):  # it has ended meanwhile
        os.killpg(process.pid, number)


def summary(gpu: Gpu, torch: str, outcomes: Sequence[Outcome]) -> str:
    """What was run, how it ended and where its output is, as Markdown."""
    lines = [
        f"# {gpu.name}",
        "",
        f"torch {torch}, {gpu.architecture or gpu.device}; made by `make gpu`.",
        "",
        "| step | ended | seconds | output |",
        "| --- | --- | ---: | --- |",
        *(
            f"| {o.step.name} | {o.said()} | {o.seconds:.0f} | [{name}]({name}) |"
            for o in outcomes
            for name in [o.step.file(Path()).name]
        ),
    ]
    return "\n".join(lines) + "\n"


def new_folder(gpu: Gpu, results: Path, today: datetime.date) -> Path:
    """A folder that isn't there yet: of this GPU, of this day."""
    slug = re.sub(r"[^a-z0-9]+", "-", gpu.name.lower()).strip("-")
    first = results / f"gpu-{slug}-{today.isoformat()}"
    folder, number = first, 1
    while folder.exists():
        number += 1
        folder = first.with_name(f"{first.name}-{number}")
    return folder


@click.command()
@click.option(
    "-o",
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    help="The folder to make; by default one in results/ with the GPU's name and the day.",
)
@click.option("--dry-run", is_flag=True, help="Say what would be run, and run nothing.")
def main(out: Path | None, *, dry_run: bool) -> None:
    """Run all that only a GPU can show; leave one folder to commit."""
    gpu, torch = look(sys.executable)
    if gpu is None:
        click.echo(f"error: no GPU here (torch {torch}): expected one that torch sees", err=True)
        sys.exit(2)
    folder = new_folder(gpu, ROOT / "results", datetime.date.today()) if out is None else out  # noqa: DTZ011 - the user's day
    steps = plan(folder, gpu, Path(sys.executable).parent)
    if dry_run:
        for step in steps:
            click.echo(f"{step.name}: {shlex.join(step.command)} (at most {step.limit_s:.0f} s)")
        return
    try:
        folder.mkdir(parents=True)
    except FileExistsError:
        click.echo(f"error: {folder} is there already: expected a new folder", err=True)
        sys.exit(2)
    outcomes = []
    for outcome in run_steps(steps, folder):
        outcomes.append(outcome)
        (folder / "summary.md").write_text(summary(gpu, torch, outcomes), encoding="utf-8")
    click.echo(f"{folder}: commit it as it is, failures included")
    failed = [f"{each.step.name} {each.said()}" for each in outcomes if each.code != 0]
    if failed:
        click.echo(f"FAILED: {'; '.join(failed)}")
        sys.exit(1)


if __name__ == "__main__":
    main()
