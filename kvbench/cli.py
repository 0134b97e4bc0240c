"""The command line.

A user's mistake is one line on standard error and exit code 2. Exit code 1 means that kvbench did
what was asked and a strategy was wrong, or failed, or got slower.
"""

import shlex
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import kvbench
from kvbench.axes import AXES, Axes, expand_all, override_all
from kvbench.cases import DTYPE_BYTES, LAYOUTS, OPS, Case
from kvbench.cli_audit import audit
from kvbench.cli_compare import ab, compare
from kvbench.cli_predict import predict
from kvbench.cli_report import HTML_FILE, missing_for_html, plot, report, save_plots, write_report
from kvbench.console import (
    Interrupted,
    command_line,
    err,
    load_run,
    meter_of,
    new_folder,
    out,
    output_is_lost,
    print_all_characters,
    say,
    show,
)
from kvbench.errors import InputError, KvbenchError, StrategyError
from kvbench.options import (
    DEVICE_OPTION,
    LAYERS_OF_RUN_OPTION,
    LOAD_OPTION,
    WITHOUT_OPTION,
    Finite,
    chosen_sweep,
    given_axes,
    measuring_options,
    sweep_options,
)
from kvbench.presets import CHECK_GRIDS, EXHAUSTIVE_GRIDS, PRESETS, get_preset
from kvbench.results import RETRIED, CacheState
from kvbench.store import PLOTS_FOLDER, Run, has_run, reserve
from kvbench.units import format_bytes, format_duration

if TYPE_CHECKING:  # imported where needed: `kvbench --help` should not wait for torch
    import pandas as pd
    import torch

    from kvbench.results import Result, RunInfo
    from kvbench.strategies.base import Strategy
    from kvbench.sweep.cluster import Cluster
    from kvbench.sweep.runner import Plan


_MOST_DOUBTS = 8
"""Times to be doubted that a run prints; its report has all."""


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(kvbench.__version__, prog_name="kvbench")
def cli() -> None:
    """Which way of writing and reading a paged KV cache is fastest on this machine, and why."""


@cli.command()
@sweep_options
@click.option(
    "--preset", help="A named sweep (see `kvbench list`); by default what suits the device."
)
@click.option(
    "-o", "--out", type=click.Path(path_type=Path), help="Folder of the run; new or empty."
)
@measuring_options
@click.option(
    "--resume",
    is_flag=True,
    help="Go on with the run in --out: measure what is missing, and what failed, once more.",
)
@click.option(
    "--allow-mixed",
    "mixed",
    is_flag=True,
    help="Resume even if the machine, the versions or the limits are not the run's.",
)
@click.option(
    "--time-budget",
    "time_budget_s",
    type=Finite(min=0),
    metavar="SECONDS",
    help="Begin no case later than this; --resume measures the rest.",
)
@click.option(
    "--shard",
    metavar="K/N",
    help="Measure only the Kth of N parts of the sweep; `kvbench merge` joins them.",
)
@click.option(
    "--ray",
    "address",
    metavar="ADDRESS",
    help="Measure on the machines of a Ray cluster: its address, as auto or HOST:6379, or local.",
)
@click.option(
    "--dry-run",
    is_flag=True,
    help="Say what would be measured, what is left out and why, and how long it takes at most.",
)
@click.option(
    "--in-process",
    is_flag=True,
    help="Measure in this process, which a strategy's crash then ends: for a debugger.",
)
def run(
    axes: tuple[str, ...],
    ops: str | None,
    patterns: tuple[str, ...],
    device: str,
    files: tuple[Path, ...],
    preset: str | None,
    out: Path | None,
    cell_seconds: float | None,
    call_budget_s: float,
    cache: CacheState,
    clock_names: tuple[str, ...],
    layers: int,
    seed: int,
    time_budget_s: float | None,
    hang_s: float,
    shard: str | None,
    address: str | None,
    *,
    resume: bool,
    mixed: bool,
    in_process: bool,
    dry_run: bool,
) -> None:
    """Check, time, rank and plot strategies over a sweep.

    The sweep is a preset, or the axes given with -a; with both, the axes replace those of the
    preset. With --op alone it is what suits the device, of these ops.
    """
    overrides = given_axes(axes, ops, seed)
    named = get_preset(preset) if preset is not None else None

    from kvbench import devices
    from kvbench.sweep.bench import select_clocks
    from kvbench.sweep.order import shard_of
    from kvbench.sweep.runner import Plan

    strategies = _strategies(patterns, files)
    _refuse_beside_ray(address, mixed=mixed, dry_run=dry_run, in_process=in_process)
    if resume and out is None:
        raise InputError("--resume without --out: expected the folder of the run, as -o results/R")

    def plan_on(target: "torch.device", clocks: tuple[str, ...]) -> Plan:
        suited = PRESETS["cpu" if target.type == "cpu" else "gpu"]
        chosen, cases = chosen_sweep(named, overrides, suited, by_axes=bool(axes))
        done = {strategy.op for strategy in strategies}
        own = [case for case in cases if case.op in done]
        plan = Plan(
            cases=shard_of(own, seed, *_shard(shard, len(own or cases))),
            strategies=strategies,
            device=target,
            command=command_line(),
            preset=chosen.name if chosen else None,
            seed=seed,
            cell_seconds=cell_seconds or (chosen or suited).cell_seconds,
            call_budget_s=call_budget_s,
            layers=layers,
            clocks=clocks,
            cache=cache,
        )
        if not plan.cases:
            raise InputError(
                "nothing to measure: none of these strategies does any of these cases' ops; "
                f"expected strategies of: {', '.join(sorted({case.op for case in cases}))}"
            )
        return plan

    limits: dict[str, Any] = {"hang_s": hang_s, "time_budget_s": time_budget_s, "resume": resume}
    if address is not None:
        from kvbench.sweep.cluster import connect

        with connect(address) as cluster:
            plan = plan_on(cluster.device(device), clock_names)
            folder = out or new_folder(plan.device.type)
            runs = _sweep_fleet(plan, cluster, folder, **limits)
    else:
        target = devices.resolve(device)
        plan = plan_on(target, tuple(clock.name for clock in select_clocks(target, clock_names)))
        if dry_run:
            _forecast(plan)
            return
        folder = out or new_folder(target.type)
        if not (resume and has_run(folder)):
            reserve(folder, plan.most_rows(plan.cases)).release()
        _say_plan(plan, folder)
        _sweep(plan, folder, isolate=not in_process, mixed=mixed, **limits)
        runs = (folder,)
    _report(runs, layers)


def _refuse_beside_ray(address: str | None, **others: bool) -> None:
    for name, given in others.items():
        if address is not None and given:
            option = {"mixed": "--allow-mixed"}.get(name, f"--{name.replace('_', '-')}")
            raise InputError(f"--ray with {option}: expected one of them")


def _say_plan(plan: "Plan", folder: Path) -> None:
    say(
        f"{len(plan.cases)} cases, {plan.rows()} strategy timings on {plan.device}"
        f"{f', preset {plan.preset}' if plan.preset else ''}, into {folder}"
    )


def _shard(text: str | None, cases: int) -> tuple[int, int]:
    """The number of a shard and how many there are, from K/N, of so many cases."""
    if text is None:
        return 1, 1
    number, slash, count = text.partition("/")
    if slash and number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count):
        if int(count) > cases:
            raise InputError(
                f"shard {text!r}: expected N up to {cases}, as many as there are cases"
            )
        return int(number), int(count)
    raise InputError(f"shard {text!r}: expected K/N with K from 1 to N, as 3/8")


def _forecast(plan: "Plan") -> None:
    from kvbench.report.tables import forecast_table
    from kvbench.sweep.forecast import forecast

    found = forecast(plan)
    out.print(forecast_table(found.cells).rich())
    say(
        f"{len(plan.cases)} cases, up to {format_bytes(found.largest_bytes)} of memory, sampling "
        f"for {format_duration(found.at_most_s)} at most, checks and set-up apart"
    )


def _sweep(plan: "Plan", folder: Path, **options: Any) -> None:  # noqa: ANN401 - run_sweep's own
    """Measure, with progress; say how it ended and how to go on."""
    from kvbench.analysis.remaining import Remaining
    from kvbench.report.machine import busy
    from kvbench.sweep.runner import run_sweep

    started = time.monotonic()
    remaining = Remaining(())
    with meter_of(len(plan.cases)) as meter:

        def on_case(case: Case, _: Sequence["Result"]) -> None:
            left_s = remaining.done(case)
            meter.advance(f"{case.op} seq_len={case.seq_len} batch={case.batch}", left_s)

        def on_begin(missing: Sequence[Case], info: "RunInfo") -> None:
            nonlocal remaining
            said = busy(info)
            if said:  # before minutes are spent, and once more beside the answer
                say(f"WARNING: {said}")
            if len(missing) < len(plan.cases):
                say(f"{len(missing)} of {len(plan.cases)} cases to measure")
            meter.expect(len(missing))
            remaining = Remaining(missing)  # from now: what came before was no case

        try:
            ended = run_sweep(plan, folder, on_case, on_begin=on_begin, **options)
        except KeyboardInterrupt:
            raise Interrupted(f"interrupted; to go on: {_resume_command(folder)}") from None
    if ended.measured or ended.left:
        say(f"Measured in {format_duration(time.monotonic() - started)}.")
    else:
        say("nothing is missing from this run")
    if ended.left:
        say(f"{ended.left} cases left ({ended.why}); to go on: {_resume_command(folder)}")
    for note in ended.notes:
        say(note)


def _sweep_fleet(
    plan: "Plan",
    cluster: "Cluster",
    folder: Path,
    **options: Any,  # noqa: ANN401 - run_fleet's own
) -> tuple[Path, ...]:
    """Measure on a cluster, with progress; the folders of the runs."""
    from kvbench.sweep.fleet import Told, run_fleet

    started = time.monotonic()
    _say_plan(plan, folder)
    with meter_of(len(plan.cases)) as meter:
        told = Told(
            on_begin=meter.expect,
            on_case=lambda case, _: meter.advance(f"{case.op} seq_len={case.seq_len}"),
            on_note=say,
        )
        try:
            ended = run_fleet(plan, cluster, folder, told, **options)
        except KeyboardInterrupt:
            raise Interrupted(f"interrupted; to go on: {_resume_command(folder)}") from None
    say(f"{ended.measured} cases measured in {format_duration(time.monotonic() - started)}.")
    if ended.left:
        say(f"{ended.left} cases left ({ended.why}); to go on: {_resume_command(folder)}")
    return ended.folders


def _report(folders: Iterable[Path], layers: int) -> None:
    """Tables and plots of runs; exit code 1 if a strategy was wrong or failed."""
    from kvbench.analysis.doubt import doubtful
    from kvbench.report.answer import answers, basis, plain, sentences
    from kvbench.report.machine import doubt_table
    from kvbench.report.tables import environment_line

    wrong = False
    for folder in folders:
        done = load_run(folder)
        frame = _frame(done)
        _print_tables(frame, layers, markdown=False)
        _print_first_calls(frame, markdown=False)
        _print_untimed(frame)
        doubted = doubtful(frame)
        worst = doubt_table(doubted, _MOST_DOUBTS)
        if worst is not None:
            out.print(worst.rich())
        say(environment_line(done.info))
        save_plots(done, frame, folder / PLOTS_FOLDER)
        found = answers(frame, layers)
        say("")
        _warn(done, frame, doubted, markdown=False)
        if found:
            say(f"{basis(found, layers)}:")
            say(f"{plain(sentences(found))}\n")
        missing = missing_for_html()
        if missing:
            say(f"No {HTML_FILE}: {missing} is not installed.")
        else:
            write_report(done, frame, folder, layers, "html")
        wrong |= _say_wrong(frame)
    if wrong:
        sys.exit(1)


@cli.command()
@sweep_options
@click.option(
    "--exhaustive",
    is_flag=True,
    help="Every layout with every dtype and every kind of scales; prints what passed, or why not.",
)
def check(
    axes: tuple[str, ...],
    ops: str | None,
    patterns: tuple[str, ...],
    device: str,
    files: tuple[Path, ...],
    *,
    exhaustive: bool,
) -> None:
    """Prove strategies correct against the oracle, without timing anything.

    What copies is compared bit for bit; arithmetic within tolerances that are derived.

    Axes given with -a replace the default grid, or those of the exhaustive one.
    """
    given = given_axes(axes, ops)
    grids = EXHAUSTIVE_GRIDS if exhaustive else CHECK_GRIDS
    if axes and not exhaustive:
        cases = given.expand()
    else:
        cases = override_all(grids, given) if axes or ops else expand_all(grids)
    given.refuse_without_effect(cases)

    from kvbench import devices
    from kvbench.report.tables import check_table, matrix_table
    from kvbench.sweep.checking import check_all

    strategies = _strategies(patterns, files)
    target = devices.resolve(device)
    done = {strategy.op for strategy in strategies}
    cases = tuple(case for case in cases if case.op in done)
    with meter_of(len(cases)) as meter:
        report = check_all(cases, strategies, target, lambda case: meter.advance(case.op))
    if exhaustive:
        matrix, reasons = matrix_table(report.cells)
        out.print(matrix.rich())
        for reason in reasons:
            say(reason)
    quantised = any(case.quantised for case in cases)
    attended = any(case.op == "attend" for case in cases)
    out.print(
        check_table(
            report.counts,
            len(cases),
            str(target),
            quantised=quantised,
            attended=attended,
            stepped=any(case.op == "step" for case in cases),
        ).rich()
    )
    for note in report.notes:
        say(note)
    for fault in report.faults:
        say(fault)
    if report.faults:
        say(f"FAILED: {len(report.faults)} of {report.total()} checks")
        sys.exit(1)
    if not report.count("checked"):
        raise InputError("nothing was checked: none of these strategies does any of these cases")


@cli.command(name="list")
@DEVICE_OPTION
@LOAD_OPTION
def list_(device: str, files: tuple[Path, ...]) -> None:
    """Show strategies, axes and presets, and what this device can't do."""
    from kvbench import devices
    from kvbench.report.tables import MISSING, Table, describe_launches
    from kvbench.strategies.base import why_unsupported, why_untimed
    from kvbench.sweep.launches import predicted

    target = devices.resolve(device)
    rows = []
    for strategy in _strategies((), files):
        case = Axes.parse([f"op={strategy.op}"]).expand()[0]
        unsupported = why_unsupported(strategy, case, target)
        note = unsupported or why_untimed(strategy, target) or "checked and timed"
        counts = predicted(strategy, case, "run")
        launches = MISSING if counts is None else describe_launches(counts)
        rows.append((strategy.name, strategy.summary, launches, note))
    header = ("name", "what it does", "a call on a GPU", f"on {target}")
    title = f"Strategies (launches predicted for seq_len={case.seq_len}, batch 1)"
    out.print(Table(title, header, tuple(rows)).rich())
    axes = tuple((a.name, str(a.default), a.expected) for a in AXES.values())
    out.print(Table("Axes (-a name=values)", ("name", "default", "values"), axes).rich())
    presets = tuple((p.name, p.summary, str(len(p.cases()))) for p in PRESETS.values())
    out.print(Table("Presets (--preset)", ("name", "what it covers", "cases"), presets).rich())


@cli.command()
@click.argument("folder", metavar="RUN", type=click.Path(path_type=Path))
@LAYERS_OF_RUN_OPTION
@WITHOUT_OPTION
@click.option("--markdown", is_flag=True, help="Print the tables as Markdown.")
def rank(folder: Path, layers: int | None, left_out: tuple[str, ...], *, markdown: bool) -> None:
    """Print the ranking of a run: which strategy is fastest, and by how much."""
    from kvbench.analysis.doubt import doubtful

    done = load_run(folder, left_out)
    frame = _frame(done)
    _warn(done, frame, doubtful(frame), markdown=markdown)
    _print_tables(frame, layers or done.info.layers, markdown=markdown)
    _print_first_calls(frame, markdown=markdown)
    if not markdown:
        _print_untimed(frame)


@cli.command()
@click.argument("folder", metavar="OUT", type=click.Path(path_type=Path))
@click.argument("runs", metavar="RUN...", nargs=-1, type=click.Path(path_type=Path))
@click.option(
    "--allow-mixed",
    "mixed",
    is_flag=True,
    help="Merge even what other machines, versions or limits measured.",
)
def merge(folder: Path, runs: tuple[Path, ...], *, mixed: bool) -> None:
    """Join the runs of a sweep's shards in a new run, OUT."""
    from kvbench.sessions import merge as merge_runs

    loaded = [load_run(run) for run in runs]
    merge_runs(folder, loaded, command_line(), mixed=mixed)
    count = sum(len(run.results) for run in loaded)
    say(f"{count} rows of {len(loaded)} runs, into {folder}")


@cli.command()
@click.argument("folder", metavar="RUN", type=click.Path(path_type=Path))
@WITHOUT_OPTION
@click.option("--markdown", is_flag=True, help="Print the tables as Markdown.")
def fit(folder: Path, left_out: tuple[str, ...], *, markdown: bool) -> None:
    """Explain a run: µs per call and per launch, GB/s, what bounds each cell, and crossovers."""
    from kvbench.analysis.doubt import doubtful
    from kvbench.analysis.fit import fit_run
    from kvbench.report.explain import crossover_table, fit_table, refusals_table, verdict_table

    done = load_run(folder, left_out)
    frame = _frame(done)
    _warn(done, frame, doubtful(frame), markdown=markdown)
    for op in OPS:
        fits = fit_run(frame, op)
        for table in (
            fit_table(op, fits),
            refusals_table(op, fits),
            crossover_table(frame, op),
            verdict_table(frame, op, fits),
        ):
            if table is not None:
                show(table, markdown=markdown)


@cli.command()
@click.argument("folder", metavar="RUN", type=click.Path(path_type=Path))
@WITHOUT_OPTION
@click.option("--markdown", is_flag=True, help="Print the table as Markdown.")
def claims(folder: Path, left_out: tuple[str, ...], *, markdown: bool) -> None:
    """Hold the claims of the teaching series against what a run measured."""
    from kvbench.analysis.doubt import doubtful
    from kvbench.report.claims import claims_table

    done = load_run(folder, left_out)
    frame = _frame(done)
    _warn(done, frame, doubtful(frame), markdown=markdown)
    show(claims_table(frame, done.info), markdown=markdown)


@cli.command()
@DEVICE_OPTION
@click.option(
    "--calibrate",
    "cells",
    is_flag=False,
    flag_value=240,
    default=24,
    type=click.IntRange(min=1),
    help="Cells of the A/A trial: 24 by default, 240 with the option alone, or as many as named.",
)
def doctor(device: str, cells: int) -> None:
    """Say what of this machine makes timings untrustworthy, and what to do about it.

    Two copies of one strategy are timed against each other, and against a copy slowed by 10 %.
    """
    import torch

    from kvbench import devices
    from kvbench.diagnosis import diagnose, overall
    from kvbench.report.doctor import calibration_table, findings_table, floors_table
    from kvbench.sweep.calibration import calibrate
    from kvbench.timing.clocks import clocks_for, floors

    target = devices.resolve(device)
    findings = diagnose(str(target), torch.get_num_threads())
    out.print(findings_table(findings).rich())
    clocks = clocks_for(target)
    out.print(floors_table(floors(clocks, target)).rich())
    with meter_of(cells) as meter:
        calibration = calibrate(
            _strategies((), ()), clocks[0], target, cells, lambda t: meter.advance(t.strategy)
        )
    out.print(calibration_table(calibration).rich())
    say(overall(findings))
    faults = calibration.faults()
    if faults:
        say(f"The trial failed: {'; '.join(faults)}. Compare by several runs, or elsewhere.")
        sys.exit(1)


@cli.command()
@click.option(
    "--model",
    type=click.Path(path_type=Path),
    metavar="FILE.gguf",
    help="A Llama-style model; `make model` fetches a small one.",
)
@click.option(
    "--random",
    is_flag=False,
    flag_value="tiny",
    metavar="[SIZES]",
    help="Instead: random weights of these sizes: tiny (the default), smollm2-135m, llama-3.2-1b.",
)
@click.option(
    "--size",
    "sizes",
    multiple=True,
    metavar="NAME=N",
    help="One of those sizes, as num_layers=4. Repeatable.",
)
@click.option(
    "-p", "--prompt", "prompts", multiple=True, metavar="TEXT", help="Repeatable: all in one batch."
)
@click.option(
    "--raw",
    is_flag=True,
    help="Prompts as they are. Without it the model's chat template, where its file has one, goes "
    "around each.",
)
@click.option(
    "--max-tokens",
    type=click.IntRange(min=1),
    default=64,
    show_default=True,
    help="Most tokens to generate for each prompt.",
)
@click.option(
    "--write", default="write.index_put", show_default=True, metavar="NAME", help="Writes K and V."
)
@click.option(
    "--attend",
    default="attend.sdpa_indexing",
    show_default=True,
    metavar="NAME",
    help="Attends over them; the name of a read, as read.indexing, means to gather by it first.",
)
@click.option(
    "--block-size",
    type=click.IntRange(min=1),
    default=16,
    show_default=True,
    help="Tokens per block.",
)
@click.option(
    "--blocks",
    type=click.IntRange(min=1),
    help="Blocks of the cache; by default enough for all prompts. With fewer, requests give way.",
)
@click.option(
    "--chunk",
    type=click.IntRange(min=1),
    default=256,
    show_default=True,
    help="Most tokens of a prompt in one step.",
)
@click.option(
    "--dtype",
    type=click.Choice(tuple(DTYPE_BYTES)),
    default="fp32",
    show_default=True,
    help="Of weights, K and V.",
)
@click.option(
    "--layout",
    type=click.Choice([layout for layout in LAYOUTS if layout != "MLA"]),
    default="NHD",
    show_default=True,
    help="Of the cache.",
)
@DEVICE_OPTION
@click.option(
    "--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of random weights."
)
@click.option("--no-sharing", is_flag=True, help="No prompt uses the blocks of another's prefix.")
@click.option(
    "--no-warm-up", is_flag=True, help="Begin at once; times then have in them what is compiled."
)
@LOAD_OPTION
def generate(
    model: Path | None,
    random: str | None,
    sizes: tuple[str, ...],
    prompts: tuple[str, ...],
    write: str,
    attend: str,
    device: str,
    files: tuple[Path, ...],
    *,
    raw: bool,
    no_sharing: bool,
    no_warm_up: bool,
    **numbers: Any,  # noqa: ANN401 - the fields of Settings
) -> None:
    """Generate text over a paged cache, with any write strategy and any attention.

    Each token is the likeliest one. Before it is timed, everything is done once up to the third
    token: compilers run then. Then comes the text, and what it took.

    Every second decode step is taken apart; on a GPU that waits for the device around each part,
    which takes time. So times of tokens are of the other steps.
    """
    from kvbench import devices
    from kvbench.engine.prompting import Settings, begin, open_model, random_model
    from kvbench.report.generation import Saying, describe, split_table, times_table
    from kvbench.strategies import registry
    from kvbench.strategies.base import why_untimed

    if (model is None) == (random is None):
        raise InputError("expected a model: one of --model FILE.gguf and --random")
    if not prompts:
        raise InputError("no prompt; expected one or more, as --prompt 'Why is the sky blue?'")
    if model is not None and sizes:
        raise InputError("--size with --model: expected it with --random")
    settings = Settings(chat=not raw, sharing=not no_sharing, warm_up=not no_warm_up, **numbers)
    _strategies((), files)
    writes, attends = registry.find("write", write), registry.find("attend", attend)
    target = devices.resolve(device)
    with err.status("Loading and warming up"):
        source = open_model(model) if model else random_model(random or "tiny", sizes)
        generation = begin(source, settings, writes, attends, prompts, target)
    with Saying(len(prompts)) as saying:
        timeline = generation.run(saying.hear)
    say(f"\n{describe(generation.setting)}")
    untimed = {s.name: why_untimed(s, target) for s in (writes, attends)}
    reasons = [f"{name}: {why}" for name, why in untimed.items() if why is not None]
    if reasons:
        say(f"Times would mean nothing. {'; '.join(reasons)}.")
        return
    out.print(times_table(timeline).rich())
    out.print(split_table(timeline, on_gpu=target.type != "cpu").rich())


def _resume_command(folder: Path) -> str:
    words = sys.argv[1:]
    if not any(word in {"-o", "--out"} or word.startswith("--out=") for word in words):
        words = [*words, "-o", str(folder)]
    if "--resume" not in words:
        words = [*words, "--resume"]
    return shlex.join(["kvbench", *words])


def _print_tables(frame: "pd.DataFrame", layers: int, *, markdown: bool) -> None:
    from kvbench.report.attention import gather_table
    from kvbench.report.steps import split_table, throughput_table
    from kvbench.report.tables import ranking_table, times_table

    for op in OPS:
        times = times_table(frame, op, layers)
        if times is None:
            continue
        for table in (ranking_table(frame, op, layers), times):
            show(table, markdown=markdown)
    beside = gather_table(frame)
    if beside is not None:
        show(beside, markdown=markdown)
    for step in (throughput_table(frame), split_table(frame)):
        if step is not None:
            show(step, markdown=markdown)


def _print_first_calls(frame: "pd.DataFrame", *, markdown: bool) -> None:
    from kvbench.report.tables import first_calls_table

    table = first_calls_table(frame)
    if table is not None:
        show(table, markdown=markdown)


def _print_untimed(frame: "pd.DataFrame") -> None:
    from kvbench.report.tables import untimed_table

    table = untimed_table(frame)
    if table is not None:
        out.print(table.rich())


def _strategies(patterns: Iterable[str], files: Iterable[Path]) -> tuple["Strategy", ...]:
    from kvbench.strategies import registry

    registry.load_builtin()
    for file in files:
        registry.load_file(file)
    return registry.select(patterns)


def _frame(done: Run) -> "pd.DataFrame":
    from kvbench.analysis.frame import to_frame

    return to_frame(done.results)


def _warn(run: Run, frame: "pd.DataFrame", doubted: "pd.DataFrame", *, markdown: bool) -> None:
    """What to know before what is said of a run: that it was disturbed, if it was."""
    from kvbench.report.machine import caveats

    for said in caveats(run.info, doubted, frame):
        say(f"**{said}**\n" if markdown else f"WARNING: {said}")


def _say_wrong(frame: "pd.DataFrame") -> bool:
    """Name the rows that are incorrect or failed; whether there are any."""
    wrong = frame[frame["status"].isin(["incorrect", *RETRIED])]
    if not wrong.empty:
        say(f"FAILED: {len(wrong)} rows are incorrect or failed; each names its command:")
    for _, row in wrong.iterrows():
        say(f"{row['strategy']} {row['status']}: {row['reason']}\n  {row['repro']}")
    return not wrong.empty


cli.add_command(compare)
cli.add_command(ab)
cli.add_command(predict)
cli.add_command(audit)
cli.add_command(plot)
cli.add_command(report)


def main() -> None:
    """The `kvbench` command."""
    print_all_characters()
    try:
        cli.main(prog_name="kvbench", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as help_:
        click.echo(help_.format_message())
    except StrategyError as error:
        _fail(str(error), code=1)
    except KvbenchError as error:
        _fail(str(error))
    except click.ClickException as error:
        _fail(error.format_message())
    except OSError as error:
        if not output_is_lost(error):
            raise
        _fail(f"standard output: {error.strerror}; expected somewhere to write to")
    except Interrupted as interruption:
        err.print(str(interruption), soft_wrap=True, markup=False)
        sys.exit(130)
    except click.Abort:
        err.print("interrupted")
        sys.exit(130)


def _fail(message: str, code: int = 2) -> None:
    err.print(f"error: {' '.join(message.split())}", soft_wrap=True, markup=False)
    sys.exit(code)
