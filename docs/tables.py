"""What the pages' tables, figures and numbers are made of: the committed reference run, and the
package itself. `make docs` writes them into the pages, each by a line or two of cog.
"""

import ast
import functools
import inspect
import itertools
import os
from pathlib import Path

import click
import cog
import pandas as pd

from kvbench import cli
from kvbench.analysis.crossover import Crossover, crossovers
from kvbench.analysis.fit import fit_run
from kvbench.analysis.frame import CASE_FIELDS, main_group, timed, to_frame
from kvbench.analysis.prediction import premises
from kvbench.analysis.ranking import step_costs
from kvbench.analysis.statistics import ratio_interval
from kvbench.axes import AXES
from kvbench.cases import Case
from kvbench.report import claims, prediction
from kvbench.report.answer import answers, sentences
from kvbench.report.attention import gather_table
from kvbench.report.tables import MISSING, Table, describe_launches, environment_line
from kvbench.store import Run, load, without
from kvbench.strategies import registry
from kvbench.sweep.launches import foretold, predicted
from kvbench.units import (
    format_bandwidth,
    format_bytes,
    format_ratio,
    format_seconds,
    format_seconds_interval,
    significant,
)

DOCS = Path(__file__).parent
ROOT = DOCS.parent
REFERENCE = "results/reference-cpu"
HELP_WIDTH = 100
CLAIMED_TOKENS = 512


@functools.cache
def reference() -> Run:
    return load(ROOT / REFERENCE)


@functools.cache
def frame() -> pd.DataFrame:
    return to_frame(reference().results)


def show(*parts: Table | str | None) -> None:
    """Each with an empty line before it, and one after the last; nothing of what isn't there."""
    for part in parts:
        if part is not None:
            cog.outl(f"\n{part if isinstance(part, str) else part.markdown()}")
    cog.outl()


def machine() -> str:
    """The machine of the reference run, on a line."""
    return environment_line(reference().info)


# Numbers of the reference run, for sentences.


@functools.cache
def _setting(op: str) -> pd.DataFrame:
    """The rows of the setting that most runs of the op have."""
    return main_group(timed(frame()[frame()["op"] == op]), ("seq_len",))[1]


def row(strategy: str, seq_len: int) -> pd.Series:
    rows = _setting(strategy.partition(".")[0])
    (found,) = rows[(rows["strategy"] == strategy) & (rows["seq_len"] == seq_len)].to_dict(
        "records"
    )
    return pd.Series(found)


def time(strategy: str, seq_len: int) -> str:
    """The median time of a call."""
    return format_seconds(row(strategy, seq_len)["median_s"])


def grown(strategy: str, first: int, last: int) -> str:
    """How many times as long a call takes at the second size as at the first."""
    return significant(row(strategy, last)["median_s"] / row(strategy, first)["median_s"])


def times_as_long(strategy: str, other: str, seq_len: int) -> str:
    return significant(row(strategy, seq_len)["median_s"] / row(other, seq_len)["median_s"])


def size(found: pd.Series) -> str:
    """The least bytes of a row's call."""
    return format_bytes(found["least_bytes"])


def rate(found: pd.Series) -> str:
    return format_bandwidth(found["least_bytes"] / found["median_s"])


def copy_rate() -> str:
    return format_bandwidth(reference().info.copy_bandwidth.bytes_per_s)


def crossing(strategy: str, other: str) -> Crossover:
    """Where, by size, the first begins to beat the second."""
    op = strategy.partition(".")[0]
    found = {(each.strategy, each.other): each for each in crossovers(_setting(op))}
    return found[strategy, other]


def faster(strategy: str, other: str, seq_len: int) -> str:
    """How many times faster the first is, within rounds, with the interval."""
    found = ratio_interval(row(other, seq_len)["samples_s"], row(strategy, seq_len)["samples_s"])
    return format_ratio(found.median, found.low, found.high)


def share_of_copy(strategy: str, seq_len: int) -> str:
    return f"{100 * row(strategy, seq_len)['copy_share']:.3g} %"


def prepared(strategy: str, seq_len: int) -> tuple[float, float]:
    """Seconds of prepare and of run."""
    costs = step_costs(frame()[frame()["op"] == strategy.partition(".")[0]], 1)
    own = row(strategy, seq_len)
    same = (costs[[*CASE_FIELDS, "strategy"]] == own[[*CASE_FIELDS, "strategy"]]).all(axis=1)
    (found,) = costs[same].to_dict("records")
    return found["prepare_s"], found["median_s"]


def parts(strategy: str, seq_len: int) -> tuple[str, str, str, str]:
    """A call's time by the fitted model: the call, its launches, its bytes; and the measured."""
    fits = {fit.name: fit for fit in fit_run(frame(), strategy.partition(".")[0])}
    fit, own = fits[strategy], row(strategy, seq_len)
    launches = fit.per_launch_s.value * own["launches"]
    moving = own["least_bytes"] / fit.bandwidth_bytes_per_s.value
    times = (fit.per_call_s.value, launches, moving, own["median_s"])
    return tuple(map(format_seconds, times))


def gathered() -> tuple[str, ...]:
    """The last line of the table of gathers: the largest batch with the longest context."""
    return gather_table(frame()).rows[-1]


# Tables.


def answer(*left_out: str) -> str:
    """Who is fastest in the reference run, a point per op; without strategies, where it differs."""
    layers = reference().info.layers
    found = answers(frame(), layers)
    if left_out:
        others = answers(to_frame(without(reference(), left_out).results), layers)
        found = {op: bands for op, bands in others.items() if bands != found[op]}
    return sentences(found)


def runs() -> Table:
    """Every committed run."""
    lines = []
    for file in sorted((ROOT / "results").glob("*/run.json")):
        run = load(file.parent)
        at = run.info.environment
        timed_rows = sum(row.status == "ok" for row in run.results)
        lines.append(
            (
                f"[{run.folder.name}]({run.folder.name}/report.md)",
                f"{at.device_name}, {at.usable_cpus} CPUs",
                f"torch {at.torch}, Triton {at.triton}",
                run.info.created[:10],
                run.info.preset or run.info.command,
                f"{len({row.case for row in run.results}):,}",
                f"{timed_rows:,}",
                f"`{(at.git_commit or MISSING)[:12]}`",
            )
        )
    header = ("run", "device", "software", "measured", "preset", "cases", "times", "code")
    return Table("The committed runs", header, tuple(lines))


def copies() -> Table:
    """Every write and read."""
    lines = []
    for s in registry.select(["write.*", "read.*"]):
        counts = predicted(s, Case(op=s.op, seq_len=128), "run")
        if counts is None:
            native = s.name.endswith(".native")
            launches = "for a CPU" if native else "what Inductor makes of it: counted there"
        else:
            launches = describe_launches(counts)
        what = "blocks" if s.name == "read.blocks" else "slot mapping"
        once = f"builds and uploads the {what}" if s.has_prepare() else ""
        lines.append((f"`{s.name}`", s.summary, launches, once))
    header = ("strategy", "what it does", "128 tokens launch on a GPU", "once a step")
    return Table("Writes and reads", header, tuple(lines))


def indices() -> Table:
    """Every index."""
    before = {"index.pinned": "allocates two pinned buffers"}
    lines = []
    for s in registry.select(["index.*"]):
        launches = describe_launches(predicted(s, Case(op="index", seq_len=128), "run"))
        once = before.get(s.name, "tables are on the device") if s.has_prepare() else ""
        lines.append((f"`{s.name}`", s.summary, launches, once))
    header = ("strategy", "what it does", "128 tokens launch on a GPU", "before a step")
    return Table("Indices", header, tuple(lines))


def attentions() -> Table:
    """Every attention; those over a read's copies together."""
    decode = Case(op="attend", seq_len=128, lengths="equal")
    lines = []
    for s in registry.select(["attend.*"]):
        if s.name.startswith("attend.sdpa_") and s.name != "attend.sdpa_index_select":
            continue
        counts = predicted(s, decode, "run")
        unknown = "for a CPU" if s.name == "attend.native" else "counted there"
        launches = describe_launches(counts) if counts else unknown
        name = "attend.sdpa_*" if "gather" in s.parts and "sdpa" in s.name else s.name
        what = s.summary.replace("read.index_select", "each read above")
        lines.append((f"`{name}`", what, launches))
    return Table(
        "Attentions", ("strategy", "what it does", "a decode launches on a GPU"), tuple(lines)
    )


def steps() -> Table:
    """The pairs that are steps unasked."""
    found = registry.select(["step.*"])
    return Table(
        "Steps", ("strategy", "what it does"), tuple((f"`{s.name}`", s.summary) for s in found)
    )


def axes() -> Table:
    """Every axis, with what the field of a case says of it."""
    told = _docstrings(Case)
    lines = tuple((f"`{a.name}`", a.default, a.expected, told[a.name]) for a in AXES.values())
    return Table("Axes", ("axis", "default", "values", "meaning"), lines)


def _docstrings(cls: type) -> dict[str, str]:
    """What stands below each field of a class."""
    (body,) = (node.body for node in ast.parse(inspect.getsource(cls)).body)  # type: ignore[attr-defined]
    told = {}
    for field, below in itertools.pairwise(body):
        if isinstance(field, ast.AnnAssign) and isinstance(below, ast.Expr):
            told[field.target.id] = " ".join(ast.literal_eval(below.value).split())
    return told


# The claims of the series.


@functools.cache
def _claims() -> tuple[list[tuple[str, ...]], list[tuple[str, ...]]]:
    """Each claim as measured in the reference run, and as predicted."""
    registry.load_builtin()
    ways = [f"write.{way}" for way in ("loop", "indexing", "slot_mapping", "triton")]
    writes = registry.select(ways)
    claimed, beside = (
        [foretold(s, Case(op="write", seq_len=n), "run") for s in writes]
        for n in (prediction.TOKENS, 1)
    )
    told = prediction.claims_table(claimed, beside, premises("h100", None, None))
    return list(claims.claims_table(frame(), reference().info).rows), list(told.rows)


def claims_in_short() -> Table:
    """Each claim beside what was measured, without the correction."""
    rows = tuple(row[:2] for row in _claims()[0])
    return Table("Claims, and what the reference run says", ("claim", "what it says"), rows)


def claim(number: int, *strategies: str, sizes: tuple[int, ...] = (CLAIMED_TOKENS,)) -> None:
    """One claim: what was measured, the correction, the prediction, and the rows behind it."""
    (quote, measured, correction), (other, told, source) = (rows[number] for rows in _claims())
    assert quote == other  # noqa: S101 - both tables have them in one order
    lines = [
        f"The series: **{quote}**",
        f"- **In the reference run**: {measured}.",
        f"- **So**: {correction}.",
        f"- **PREDICTED, not measured, for an H100 SXM**: {told} (from: {source}).",
    ]
    show("\n".join([lines[0], "", *lines[1:]]), *([_rows(strategies, sizes)] if strategies else []))


def _rows(strategies: tuple[str, ...], sizes: tuple[int, ...]) -> Table:
    lines = []
    for strategy in strategies:
        for size in sizes:
            found = row(strategy, size)
            interval = format_seconds_interval(*found[["median_s", "low_s", "high_s"]])
            counted = f"{found['launches']:,.0f} ({found['launches_source']})"
            launches = counted if pd.notna(found["launches"]) else MISSING
            lines.append((f"`{strategy}`", f"{size:,}", interval, found["clock"], launches))
    header = ("strategy", "tokens", "a call, and its 95 % interval", "clock", "launches on a GPU")
    return Table("The rows behind it", header, tuple(lines))


# Figures, files and the command line.


def figure(name: str, alt: str) -> str:
    """A figure of the reference run, as seen from a page in docs/."""
    path = ROOT / REFERENCE / "plots" / f"{name}.png"
    if not path.is_file():
        raise FileNotFoundError(path)
    return f"![{alt}]({os.path.relpath(path, DOCS)})"


def python(name: str) -> None:
    """A file of docs/ as a block of Python."""
    show(f"```python\n{(DOCS / name).read_text(encoding='utf-8')}```")


def commands() -> None:
    """What each command says of itself when it is asked with --help."""
    settings = {**cli.cli.context_settings, "max_content_width": HELP_WIDTH}
    with click.Context(
        cli.cli, info_name="kvbench", terminal_width=HELP_WIDTH, **settings
    ) as group:
        for name, command in sorted(cli.cli.commands.items()):
            context = click.Context(command, info_name=name, parent=group)
            cog.outl(f"\n## kvbench {name}\n\n```text\n{command.get_help(context)}\n```")
    cog.outl()


registry.load_builtin()
