"""The commands that say whether something got slower: of two runs, or of two trees in turns.

Exit code 1 is a regression: a cell or a strategy got slower, a cell was lost or failed.
"""

import dataclasses
import fnmatch
import shlex
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from kvbench.cases import Case
from kvbench.console import (
    Interrupted,
    command_line,
    err,
    load_any,
    load_run,
    meter_of,
    new_folder,
    out,
    refuse_unwritable,
    say,
    unwritable,
)
from kvbench.errors import InputError, StoreError, unknown
from kvbench.files import replace_file
from kvbench.options import (
    Finite,
    all_of,
    chosen_sweep,
    given_axes,
    measuring_options,
    sweep_options,
)
from kvbench.presets import PRESETS, get_preset
from kvbench.results import CacheState
from kvbench.sessions import other_machine, other_settings, other_versions
from kvbench.store import Run, has_run

if TYPE_CHECKING:  # imported where needed: `kvbench --help` should not wait for torch and scipy
    from rich.console import Console

    from kvbench.analysis.comparison import Rules
    from kvbench.report.comparison import Compared
    from kvbench.sweep.ab import AbPlan, Ended
    from kvbench.sweep.trees import Tree

F = TypeVar("F", bound=Callable[..., Any])

_A, _B = "a", "b"
"""The folders that `kvbench ab` makes."""
_STDOUT = Path("-")
_FEW_PAIRS = 3


def _judging_options(command: F) -> F:
    """What counts as a difference, what may be gone, and where the report goes."""
    return all_of(
        (
            click.option(
                "--json",
                "json_file",
                type=click.Path(path_type=Path),
                metavar="FILE",
                help='Write everything as JSON; "-" is standard output, which then has nothing '
                "else.",
            ),
            click.option(
                "--markdown",
                "markdown_file",
                type=click.Path(path_type=Path),
                metavar="FILE",
                help='Write the report as Markdown, for a comment on a pull request; "-" is '
                "standard output.",
            ),
            click.option(
                "--allow-lost",
                is_flag=True,
                help="Let cells be gone, or refused, that were timed before. What is wrong or "
                "failed still counts.",
            ),
            click.option(
                "--rename",
                "renames",
                multiple=True,
                metavar="OLD=NEW",
                help="A strategy of the base that has another name now. Repeatable.",
            ),
            click.option(
                "--significance",
                type=Finite(min=0, max=1, min_open=True, max_open=True),
                default=0.01,
                show_default=True,
                help="Share of comparisons of like with like that may call anything different.",
            ),
            click.option(
                "--least-effect",
                type=Finite(min=0, min_open=True),
                default=0.05,
                show_default=True,
                help="The smallest difference that matters, as a share: 0.05 is 5 %.",
            ),
        ),
        command,
    )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """What the options of both commands ask for."""

    rules: "Rules"
    allow_lost: bool
    markdown: Path | None
    json: Path | None

    @property
    def console(self) -> "Console":
        """Where progress goes: standard output is the report's alone where it was asked for."""
        return err if _STDOUT in {self.markdown, self.json} else out


def _asked(
    *,
    least_effect: float,
    significance: float,
    renames: tuple[str, ...],
    clocks: tuple[str, ...] = (),
    allow_lost: bool,
    markdown_file: Path | None,
    json_file: Path | None,
) -> _Asked:
    from kvbench.analysis.comparison import Rules

    if markdown_file == json_file == _STDOUT:
        raise InputError("--markdown - with --json -: expected one of them on standard output")
    files = [file for file in (markdown_file, json_file) if file not in {None, _STDOUT}]
    for file in files:
        refuse_unwritable(file)
    if len(files) != len({file.resolve() for file in files}):
        raise InputError(f"--markdown and --json {str(json_file)!r}: expected a file for each")
    rules = Rules(
        least_effect=least_effect,
        significance=significance,
        clocks=clocks,
        renamed=tuple(_rename(text) for text in renames),
    )
    return _Asked(rules=rules, allow_lost=allow_lost, markdown=markdown_file, json=json_file)


def _rename(text: str) -> tuple[str, str]:
    old, sign, new = text.partition("=")
    if not (old and sign and new) or "=" in new:
        raise InputError(f"--rename {text!r}: expected OLD=NEW, as write.triton=write.fused")
    return old, new


def _refuse_compared(asked: _Asked, compared: Sequence[Path]) -> None:
    """A report takes no run's place."""
    for file in (asked.markdown, asked.json):
        if file is not None and file.resolve() in [each.resolve() for each in compared]:
            raise InputError(f"report {str(file)!r}: it is what is compared; expected another file")


@click.command()
@click.argument("base", metavar="BASE", type=click.Path(path_type=Path))
@click.argument("new", metavar="[NEW]", required=False, type=click.Path(path_type=Path))
@click.option(
    "--clock", "clocks", multiple=True, metavar="NAME", help="Compare this clock. Repeatable."
)
@click.option(
    "--allow-mixed",
    "mixed",
    is_flag=True,
    help="Compare runs even of other devices, machines or cache states.",
)
@_judging_options
def compare(
    base: Path,
    new: Path | None,
    clocks: tuple[str, ...],
    *,
    mixed: bool,
    **judging: Any,  # noqa: ANN401 - what _judging_options give
) -> None:
    """Say whether a run got slower than another: cell by cell, and by strategy.

    BASE and NEW are folders of runs, or JSON files that `pytest benchmarks/` wrote. BASE alone is
    the folder of a `kvbench ab`.

    A cell is SLOWER or FASTER if the difference is significant, large enough to matter and more
    than the clock's own; SAME if any difference is too small to matter; else UNSURE. Exit code 1 is
    a regression: something is SLOWER, or a cell that was timed is gone, wrong or failed.
    """
    asked = _asked(clocks=clocks, **judging)
    base, new = (base, new) if new is not None else _pair(base)
    _refuse_compared(asked, (base, new))
    compared = _compared(load_any(base), load_any(new), asked, mixed=mixed)
    _report(compared, asked)
    _exit(compared)


def _pair(folder: Path) -> tuple[Path, Path]:
    """The two runs of a `kvbench ab`."""
    pair = folder / _A, folder / _B
    if has_run(folder) or folder.is_file():
        raise InputError(f"run {str(folder)!r} alone: expected a second one to compare it with")
    if not all(map(has_run, pair)):
        raise StoreError(
            f"folder {str(folder)!r}: no runs {_A} and {_B} in it; expected two runs, or the "
            "folder of a `kvbench ab`"
        )
    return pair


def _compared(
    base: Run, new: Run, asked: _Asked, *, mixed: bool, notes: Sequence[str] = ()
) -> "Compared":
    """Judge two runs, unless they have nothing to do with each other."""
    from kvbench.analysis.comparison import compare as judge
    from kvbench.analysis.comparison import controls
    from kvbench.analysis.gate import gate, likely_renames, nothing_compared, refuse_renames
    from kvbench.report.comparison import Compared

    rules = asked.rules
    together = base.info.interleaved is not None and base.info.interleaved == new.info.interleaved
    told = _notes(base, new, mixed=mixed, interleaved=together)
    refuse_renames(rules, *({row.strategy for row in run.results} for run in (base, new)))
    known = {row.clock for run in (base, new) for row in run.results}
    for clock in rules.clocks:
        if clock not in known:
            raise unknown("clock of these runs:", clock, known)
    found = judge(
        base.results,
        new.results,
        rules,
        interleaved=together,
        # What one machine does to both in turns, its controls tell nothing of.
        control=0.0 if together else controls(base.info, new.info),
    )
    compared = gate(found, base.results, new.results, allow_lost=asked.allow_lost)
    if nothing_compared(compared):
        renamed = [f"{old}={name}" for old, name in likely_renames(found)]
        hint = f", or --rename {' --rename '.join(renamed)}" if renamed else ""
        raise InputError(
            f"runs {str(base.folder)!r} and {str(new.folder)!r} have no timed cell in common; "
            f"expected runs of the same cases and strategies{hint}"
        )
    if together and found.processes < _FEW_PAIRS:
        told.append(
            "With fewer than 3 pairs of processes next to nothing is known of how much the next "
            "would differ; give --processes more."
        )
    return Compared(base=base, new=new, gate=compared, notes=(*notes, *told))


def _notes(base: Run, new: Run, *, mixed: bool, interleaved: bool) -> list[str]:
    """What a reader has to know of two runs, a sentence each.

    Raises:
        StoreError: They can't be compared.
    """
    notes = []
    machine = other_machine(base, new)
    # Both sides of a `kvbench ab` were on one machine, whatever each made of it.
    if machine and not (mixed or interleaved):
        raise StoreError(
            f"runs {str(base.folder)!r} and {str(new.folder)!r} differ in: {', '.join(machine)}; "
            "expected runs of one device, or --allow-mixed"
        )
    if machine:
        notes.append(f"Not of one kind: {', '.join(machine)}.")
    settings = other_settings(base, new)
    if settings:
        notes.append(f"Warning: the machine was set otherwise: {', '.join(settings)}.")
    versions = other_versions(base, new)
    if versions:
        notes.append(f"Differs in: {', '.join(versions)}.")
    if not interleaved:
        notes.append(
            "Not measured in turns: the noise is estimated from how the cells scatter, and from "
            "what the machine made of a copy and an empty launch meanwhile. On a noisy machine "
            "`kvbench ab` tells more."
        )
    return notes


def _report(compared: "Compared", asked: _Asked) -> None:
    """Say it, in all the ways that are asked for."""
    from kvbench.report import comparison as report
    from kvbench.report.comparison_json import as_json
    from kvbench.report.comparison_markdown import markdown

    if asked.console is out:
        say(report.conclusion(compared.gate))
        say(report.sides(compared))
        for table in report.tables(compared):
            out.print(table.rich())
        for line in (*report.commands(compared), *report.sentences(compared)):
            say(line)
    for file, write in ((asked.markdown, markdown), (asked.json, as_json)):
        if file == _STDOUT:
            click.echo(write(compared), nl=False)
        elif file is not None:
            _write(file, write(compared))


def _exit(compared: "Compared") -> None:
    """End with exit code 1 if there is a regression."""
    if compared.gate.regressed:
        sys.exit(1)


def _write(file: Path, text: str) -> None:
    try:
        replace_file(file, text.encode())
    except OSError as error:
        raise unwritable(file, error) from error


@click.command()
@click.argument("base", metavar="A")
@click.argument("new", metavar="B")
@sweep_options
@click.option(
    "--preset",
    help="A named sweep (see `kvbench list`); by default regress, on a GPU regress-gpu.",
)
@click.option(
    "-o", "--out", "folder", type=click.Path(path_type=Path), help="Folder of both runs; new."
)
@click.option(
    "--processes",
    type=click.IntRange(min=1),
    default=5,
    show_default=True,
    help="Pairs of processes; more of them tell apart what differs from process to process.",
)
@measuring_options
@_judging_options
def ab(
    base: str,
    new: str,
    axes: tuple[str, ...],
    ops: str | None,
    patterns: tuple[str, ...],
    device: str,
    files: tuple[Path, ...],
    preset: str | None,
    folder: Path | None,
    processes: int,
    cell_seconds: float | None,
    call_budget_s: float,
    cache: CacheState,
    clock_names: tuple[str, ...],
    layers: int,
    seed: int,
    hang_s: float,
    **judging: Any,  # noqa: ANN401 - what _judging_options give
) -> None:
    """Measure two trees in turns, sample by sample, and say whether B is slower than A.

    A and B are each a revision of the repository in the current folder, the folder of a tree ("."
    is the working tree), or the Python interpreter of an environment that has kvbench.

    What the machine does meanwhile hits both alike, so that a noisy machine can tell, too. Verdicts
    and exit codes are those of `kvbench compare`, to which OUT can be given again. After Ctrl-C the
    pairs of processes that are done are judged; before the first is, the exit code is 130.
    """
    asked = _asked(**judging)
    given = given_axes(axes, ops, seed)
    named = get_preset(preset) if preset is not None else None

    from kvbench import devices
    from kvbench.sweep.ab import AbPlan
    from kvbench.sweep.bench import Settings, select_clocks
    from kvbench.sweep.trees import refuse_without_code, tree

    target = devices.resolve(device)
    suited = PRESETS["regress" if target.type == "cpu" else "regress-gpu"]
    chosen, cases = chosen_sweep(named, given, suited, by_axes=bool(axes))
    plan = AbPlan(
        cases=_done_by(patterns, cases),
        patterns=patterns,
        files=files,
        settings=Settings(
            device=str(target),
            clocks=tuple(clock.name for clock in select_clocks(target, clock_names)),
            cell_seconds=cell_seconds or (chosen or suited).cell_seconds,
            call_budget_s=call_budget_s,
            cache=cache,
        ),
        processes=processes,
        hang_s=hang_s,
        command=command_line(),
        preset=chosen.name if chosen else None,
        seed=seed,
        layers=layers,
    )
    into = folder or new_folder(f"ab-{target.type}")
    with ExitStack() as stack:
        trees = [stack.enter_context(tree(name)) for name in (base, new)]
        refuse_without_code(trees, files)
        ended = _measure(plan, trees, into, asked)
    runs = [load_run(each) for each in ended.folders]
    notes = []
    if ended.why == "interrupted":
        notes.append(f"Interrupted after {ended.processes} of {processes} pairs of processes.")
    compared = _compared(runs[0], runs[1], asked, mixed=False, notes=notes)
    _report(compared, asked)
    say(f"To look again: {shlex.join(['kvbench', 'compare', str(into)])}", asked.console)
    _exit(compared)


def _done_by(patterns: Sequence[str], cases: Sequence[Case]) -> tuple[Case, ...]:
    """The cases of ops that patterns can name; all if that can't be told."""
    ops = [pattern.partition(".")[0] for pattern in patterns if "." in pattern]
    if len(ops) < len(patterns) or not ops:
        return tuple(cases)
    own = tuple(case for case in cases if any(fnmatch.fnmatchcase(case.op, op) for op in ops))
    return own or tuple(cases)


def _measure(plan: "AbPlan", trees: Sequence["Tree"], folder: Path, asked: _Asked) -> "Ended":
    """Measure both, with progress."""
    from kvbench.analysis.gate import refuse_renames
    from kvbench.sweep.ab import run_ab

    console = asked.console
    say(
        f"{len(plan.cases)} cases, {plan.processes} pairs of processes on {plan.settings.device}: "
        f"{trees[0].name} and {trees[1].name}, into {folder}",
        console,
    )
    with meter_of(plan.processes * len(plan.cases), console) as meter:
        left = _Left(plan.processes)

        def on_begin(cases: Sequence[Case], strategies: Mapping[str, Sequence[str]]) -> None:
            refuse_renames(asked.rules, strategies[_A], strategies[_B])
            meter.expect(plan.processes * len(cases))
            left.begin(cases)

        def on_case(number: int, case: Case) -> None:
            words = f"pair {number + 1}: {case.op} seq_len={case.seq_len} batch={case.batch}"
            meter.advance(words, left.done(case))

        try:
            ended = run_ab(plan, trees, folder, on_case, on_begin)
        except KeyboardInterrupt:
            raise Interrupted(
                "interrupted before a pair of processes had measured everything: nothing to compare"
            ) from None
    say(f"Measured in {left.taken()}.", console)
    return ended


class _Left:
    """How long several pairs of processes take yet, from what this pair does."""

    def __init__(self, processes: int) -> None:
        self._pairs_left = processes
        self._started = self._pair_started = time.monotonic()

    def begin(self, cases: Sequence[Case]) -> None:
        """A pair has started, and measures these."""
        from kvbench.analysis.remaining import Remaining

        self._remaining = Remaining(cases)
        self._cases_left = len(cases)
        self._pairs_left -= 1

    def done(self, case: Case) -> float:
        """A case is done; seconds that all the others will take."""
        left_s = self._remaining.done(case)
        now = time.monotonic()
        pair_s = now - self._pair_started + left_s  # with what starting it took
        self._cases_left -= 1
        if not self._cases_left:
            self._pair_started = now
        return left_s + self._pairs_left * pair_s

    def taken(self) -> str:
        """How long it took, for people."""
        from kvbench.units import format_duration

        return format_duration(time.monotonic() - self._started)
