"""A run as a document: what a report says, and in which order."""

from collections.abc import Callable, Iterator, Sequence

import pandas as pd

from kvbench.analysis.doubt import doubtful
from kvbench.analysis.fit import Fit, fit_run
from kvbench.analysis.speedup import loop_of
from kvbench.cases import OPS, WHOLE_STEPS
from kvbench.report.answer import answer_table, answers, basis, sentences
from kvbench.report.attention import gather_table
from kvbench.report.claims import claims_table
from kvbench.report.document import Chart, ChartKind, Details, Document, Part, Rows, Section, Text
from kvbench.report.explain import crossover_table, fit_table, refusals_table, verdict_table
from kvbench.report.launches import launches_table
from kvbench.report.machine import (
    caveats,
    doubt_table,
    environment_table,
    found_table,
    quality_table,
    warnings_of,
)
from kvbench.report.steps import split_table, throughput_table
from kvbench.report.tables import (
    Table,
    environment_line,
    first_calls_table,
    ranking_table,
    times_table,
    untimed_table,
)
from kvbench.store import Run

_MOVING = ("write", "read", "attend")

_CURVES = """\
Each line is the median time of one call of one strategy, the band its 95 % interval; both axes are
logarithmic. Where a line is flat, a call costs what it takes to get work started, whatever the
number of tokens; where it rises with a slope of one, time goes with the tokens. The dashed line is
the same bytes at the speed of the best plain copy on this device."""
_SPEEDUP = """\
How many times faster than its op's loop each strategy is: the median of the ratios within rounds,
in which all of them met the same machine, with its 95 % interval. Under 1 it is slower."""
_BANDWIDTH = """\
The bytes that any way must move, each read once and written once, over the median time. The dashed
line is the best plain copy on this device; more is expected where the bytes fit a cache."""
_FASTEST = """\
Which strategy makes the cheapest step at each size, and how many times as long the next one takes.
Where both can't be told apart, the cell says so: its interval has 1 in it. What an engine can't use
is taken out of the race by `kvbench report RUN --without PATTERN`."""
_LAYERS = """\
What a strategy prepares once a step (a slot mapping, a table on the device) is paid once, a run in
every layer. The curves are (prepare + L x run) / L: where one falls, the preparing is still to be
spread; two that cross say from how many layers on preparing pays."""
_BREAKDOWN = """\
The time of a call as the fitted model explains it: what a call costs before it launches anything
(a), what its launches add (b each), and its bytes at the fitted bandwidth. What a run can't tell
apart is not told: such strategies have one part of both, or are refused, with the reason."""
_GATHER = """\
An attention over copies pays for its gather first. Beside the fastest that gathers stand those that
read the blocks where they lie."""
_STEPS = """\
One decode step of a model whose every layer writes the new tokens' K and V and attends over the
context: the strategy's part of tokens per second."""
_LAUNCHES = """\
Kernels and copies that one call hands to a GPU, and how often it makes the host wait. On a GPU they
are counted; elsewhere nothing is launched, and what would be is predicted."""
_ROWS = """\
Every strategy, case, phase and clock, with the command that measures it again. All samples are in
the run's `rows.jsonl`."""


def compose(run: Run, frame: pd.DataFrame, layers: int, left_out: Sequence[str] = ()) -> Document:
    """The report of a run.

    Args:
        run: The run.
        frame: Its rows (`analysis.frame.to_frame`).
        layers: Layers of a step, for step costs.
        left_out: The strategies that are not in `run` though they were measured, as patterns.
    """
    doubted = doubtful(frame)
    builders: tuple[Callable[[], Section | None], ...] = (
        lambda: _answer(run, frame, layers, doubted),
        lambda: _charts("curves", "Launch-overhead curves", _CURVES, "launch-overhead", frame, OPS),
        lambda: _charts("speedup", "Speed-up over the loop", _SPEEDUP, "speedup", frame, OPS),
        lambda: _charts("bandwidth", "Bandwidth", _BANDWIDTH, "bandwidth", frame, _MOVING),
        lambda: _crossovers(frame),
        lambda: _charts("layers", "Cost over layers", _LAYERS, "layers", frame, _MOVING),
        lambda: _why(frame),
        lambda: _attention(frame),
        lambda: _steps(frame),
        lambda: _launches(frame),
        lambda: _claims(run, frame),
        lambda: _machine(run, frame, doubted),
        lambda: _untimed(frame),
        lambda: Section("rows", "Every row, and how to measure it again", (Text(_ROWS), Rows())),
    )
    found = [section for build in builders if (section := build()) is not None]
    return Document(
        title=f"kvbench on {run.info.environment.device_name}, {run.info.created[:10]}",
        lead=_lead(run, frame, left_out),
        sections=tuple(found),
    )


def _lead(run: Run, frame: pd.DataFrame, left_out: Sequence[str]) -> str:
    counts = frame["status"].value_counts()
    others = ", ".join(f"{count:,} {status}" for status, count in counts.items() if status != "ok")
    cases = len(dict.fromkeys(row.case for row in run.results))
    return (
        "Which way of writing tokens' K/V into a paged KV cache, and of reading them back, is "
        f"fastest on this machine, and why. {environment_line(run.info)} {cases:,} cases; "
        f"{counts.get('ok', 0):,} times, each of a strategy that was proved correct before and "
        f"after{f'; not timed: {others}' if others else ''}.{_left(left_out)}"
    )


def _left(patterns: Sequence[str]) -> str:
    names = ", ".join(f"`{pattern}`" for pattern in patterns)
    return f" **Left out of this report, though measured: {names}.**" if names else ""


def _curved(frame: pd.DataFrame, ops: tuple[str, ...]) -> Iterator[str]:
    """The ops that have a time at two sizes or more."""
    ok = frame[(frame["status"] == "ok") & (frame["tokens"] > 0)]
    for op in ops:
        if ok.loc[ok["op"] == op, "seq_len"].nunique() > 1:
            yield op


def _section(anchor: str, title: str, text: str, parts: list[Part]) -> Section | None:
    return Section(anchor, title, (Text(text), *parts)) if parts else None


def _tables(*found: Table | None) -> list[Part]:
    return [table for table in found if table is not None]


def _folded(summary: str, tables: list[Part]) -> list[Part]:
    return [Details(summary, tuple(tables))] if tables else []


def _charts(
    anchor: str,
    title: str,
    text: str,
    kind: ChartKind,
    frame: pd.DataFrame,
    ops: tuple[str, ...],
) -> Section | None:
    parts: list[Part] = []
    ok = frame[frame["status"] == "ok"]
    for op in _curved(frame, ops):
        own = ok[ok["op"] == op]
        if kind == "launch-overhead" and op == "step":
            continue  # its curves are tokens per second
        if kind == "speedup" and (op in WHOLE_STEPS or loop_of(op, set(own["strategy"])) is None):
            continue
        if kind == "layers" and "prepare" not in set(own["phase"]):
            continue  # where nothing is prepared all lines are flat
        parts.append(Chart(kind, op))
    return _section(anchor, title, text, parts)


def _answer(run: Run, frame: pd.DataFrame, layers: int, doubted: pd.DataFrame) -> Section:
    found = answers(frame, layers)
    if not found:
        return Section("answer", "The answer", (Text("Nothing was timed in this run."),))
    details = [
        part
        for op in found
        for part in _tables(ranking_table(frame, op, layers), times_table(frame, op, layers))
    ]
    return Section(
        "answer",
        "The answer",
        (
            *(Text(f"**{said}**") for said in caveats(run.info, doubted, frame)),
            Text(f"{basis(found, layers)}:"),
            Text(sentences(found)),
            answer_table(found, layers),
            *_folded("Rankings and times of all strategies", details),
        ),
    )


def _crossovers(frame: pd.DataFrame) -> Section | None:
    parts: list[Part] = [Chart("fastest", op) for op in _curved(frame, OPS)]
    tables = _tables(*(crossover_table(frame, op) for op in OPS))
    return _section(
        "crossovers",
        "Where the fastest changes",
        _FASTEST,
        [*parts, *_folded("From which seq_len on one beats another", tables)],
    )


def _why(frame: pd.DataFrame) -> Section | None:
    parts: list[Part] = []
    verdicts: list[Part] = []
    for op in OPS:
        fits = fit_run(frame, op)
        if any(isinstance(fit, Fit) for fit in fits):
            parts.append(Chart("breakdown", op))
        parts += _tables(fit_table(op, fits), refusals_table(op, fits))
        verdicts += _tables(verdict_table(frame, op, fits))
    return _section(
        "why",
        "Why: the fitted model",
        _BREAKDOWN,
        [*parts, *_folded("What bounds a call", verdicts)],
    )


def _attention(frame: pd.DataFrame) -> Section | None:
    table = gather_table(frame)
    if table is None:
        return None
    return _section(
        "attention",
        "What the gather costs attention",
        _GATHER,
        [Chart("gather-share", "attend"), table],
    )


def _steps(frame: pd.DataFrame) -> Section | None:
    rates, parts = throughput_table(frame), split_table(frame)
    found: list[Part] = []
    if rates is not None:
        found += [Chart("tokens-per-second", "step"), rates]
    if parts is not None:
        found += [Chart("amortisation", "step"), *_folded("Where a step's time goes", [parts])]
    return _section("steps", "Whole decode steps", _STEPS, found)


def _launches(frame: pd.DataFrame) -> Section | None:
    return _section(
        "launches", "Launches", _LAUNCHES, _tables(*(launches_table(frame, op) for op in OPS))
    )


def _claims(run: Run, frame: pd.DataFrame) -> Section | None:
    if not {"write", "read"} & set(frame.loc[frame["status"] == "ok", "op"]):
        return None
    return Section("claims", "The claims of the teaching series", (claims_table(frame, run.info),))


def _machine(run: Run, frame: pd.DataFrame, doubted: pd.DataFrame) -> Section:
    more = _tables(environment_table(run.info), found_table(run.info), first_calls_table(frame))
    return Section(
        "machine",
        "The machine, and how far to trust these times",
        (
            Text(warnings_of(run.info)),
            *_tables(quality_table(frame), doubt_table(doubted)),
            *_folded("All that is known of the machine", more),
        ),
    )


def _untimed(frame: pd.DataFrame) -> Section:
    table = untimed_table(frame)
    if table is None:
        said = "Nothing was measured yet." if frame.empty else "Everything was timed."
        return Section("untimed", "Not timed", (Text(said),))
    return Section("untimed", "Not timed, and why", (table,))
