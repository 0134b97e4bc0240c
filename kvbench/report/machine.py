"""Where a run was measured and how well that went, as tables."""

from collections.abc import Sequence

import pandas as pd

from kvbench.analysis.doubt import JUMP, LEAST
from kvbench.analysis.frame import CASE_FIELDS
from kvbench.cases import Case
from kvbench.report.doctor import findings_table
from kvbench.report.tables import Table
from kvbench.results import Environment, Finding, RunInfo
from kvbench.units import format_bandwidth, format_bytes, format_seconds, format_share

_SIZES = {"memory_bytes", "last_level_cache_bytes", "device_memory_bytes"}


def environment_table(info: RunInfo) -> Table:
    """The machine, the software and what was found out about them before anything was timed.

    Args:
        info: What holds for every row of the run.
    """
    copy = info.copy_bandwidth
    lines = [
        ("measured", info.created),
        ("command", info.command),
        ("preset", info.preset or "none"),
        *_lines(info.environment),
        ("best copy", f"{format_bandwidth(copy.bytes_per_s)} ({copy.how})"),
        ("caches", info.cache),
        *((f"an empty call, {name}", format_seconds(s)) for name, s in info.floors_s.items()),
        ("an empty launch", format_seconds(info.launch_floor_s)),
        ("seconds for a cell, at most", f"{info.cell_seconds:g}"),
        ("layers of a step", str(info.layers)),
    ]
    for number, later in enumerate(info.resumptions, 2):
        lines.append((f"session {number}", f"{later.created}: {later.command}"))
        # Another machine's may have lines that the first has not, as those of a GPU.
        first = dict(_lines(info.environment))
        lines += [
            (f"session {number}, {name}", value)
            for name, value in _lines(later.environment)
            if first.get(name) != value
        ]
    return Table("The machine and the software", ("what", "is"), tuple(lines))


def _lines(environment: Environment) -> list[tuple[str, str]]:
    lines = []
    for name in environment.__dataclass_fields__:
        value = getattr(environment, name)
        if name == "gpu":
            lines += [(f"GPU {key}", _said(value[key])) for key in sorted(value)]
        elif name in _SIZES:
            said = _said(None) if value is None else format_bytes(value)
            lines.append((name.removesuffix("_bytes").replace("_", " "), said))
        else:
            lines.append((name.replace("_", " "), _said(value)))
    return lines


def _said(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "not known" if value is None else str(value)


def warnings_of(info: RunInfo) -> str:
    """What of the machine disturbs timings, in Markdown.

    Args:
        info: What holds for every row of the run.
    """
    sessions = (info.findings, *(later.findings for later in info.resumptions))
    points = []
    for number, findings in enumerate(sessions, 1):
        where = f" (session {number})" if info.resumptions else ""
        points += [
            f"- **{f.subject}**{where}: {f.value}. {f.advice}"
            for f in findings or ()
            if f.verdict == "warning"
        ]
    said = []
    if points:
        listed = "\n".join(points)
        said.append(f"What disturbs timings, and was found when the run began:\n\n{listed}")
    if info.findings is None:
        said.append(
            "What of the machine disturbs timings was not looked at when this run was made; "
            "`kvbench doctor` tells it of a machine now."
        )
    elif not points:
        said.append(_undisturbed([f for findings in sessions for f in findings or ()]))
    environments = (info.environment, *(later.environment for later in info.resumptions))
    if any(environment.git_dirty for environment in environments):
        said.append("The code had changes that no commit has: nobody else can measure the same.")
    return "\n\n".join(said)


def _undisturbed(findings: Sequence[Finding]) -> str:
    """Of findings without a warning: what can't be read disturbs perhaps."""
    unknown = dict.fromkeys(f.subject for f in findings if f.verdict == "unknown")
    if all(f.verdict == "unknown" for f in findings):
        return (
            "Whether anything disturbs timings is not known: nothing could be read of the machine "
            "when the run began."
        )
    fine = "Nothing that was looked at when the run began disturbs timings."
    return f"{fine} Not known: {', '.join(unknown)}." if unknown else fine


_BUSY = {"Busy processes", "Stolen CPU time"}
"""Findings that somebody else had a CPU at that very moment; a load is of the minute before."""


def busy(info: RunInfo) -> str:
    """What to know first of a run that began on a busy machine; "" where it wasn't.

    Args:
        info: What holds for every row of the run.
    """
    warnings = [
        f"{f.subject}: {f.value}"
        for findings in (info.findings, *(later.findings for later in info.resumptions))
        for f in findings or ()
        if f.verdict == "warning" and f.subject in _BUSY
    ]
    if not warnings:
        return ""
    advice = (
        "Strategies that use several threads wait for whoever has a core, and can seem a hundred "
        "times slower than they are"
    )
    again = "measure again once it is idle"
    if info.environment.device == "cpu":
        again += ", or with OMP_NUM_THREADS=1"
    return f"This machine was busy when the run began ({'; '.join(warnings)}). {advice}: {again}."


def found_table(info: RunInfo) -> Table | None:
    """All that was looked at before the run; None if nothing was."""
    return findings_table(info.findings) if info.findings else None


def quality_table(frame: pd.DataFrame) -> Table | None:
    """How precise the times are, a line per op and clock; None if there are none.

    Args:
        frame: Rows of a run.
    """
    ok = frame[frame["status"] == "ok"]
    if ok.empty:
        return None
    lines = [
        (str(op), str(clock), f"{len(rows):,}", *_quality(rows))
        for (op, clock), rows in ok.groupby(["op", "clock"], sort=False)
    ]
    return Table(
        "How precise the times are",
        (
            "op",
            "clock",
            "times",
            "half-width, median",
            "of the worst tenth, over",
            "stopped: precise enough",
            "stopped: out of time or rounds",
            "unresolved",
        ),
        tuple(lines),
        "Half-width: of the median's 95 % interval, as a share of it; sampling stops at 2 % or "
        "when the time for the case is over. Unresolved: under twice the time of an empty call.",
    )


def doubts(doubted: pd.DataFrame, frame: pd.DataFrame) -> str:
    """What to know first of a run with times that contradict each other; "" where there are none.

    Args:
        doubted: As `analysis.doubt.doubtful` gives them.
        frame: All rows of the run.
    """
    if doubted.empty:
        return ""
    count, times = len(doubted), int((frame["status"] == "ok").sum())
    are = "is" if count == 1 else "are"
    return (
        f"{count:,} of {times:,} times {are} to be doubted: others of their line contradict them, "
        "most likely since something else had a core meanwhile. They count in all that is said "
        "here: measure again what it rests on."
    )


def caveats(info: RunInfo, doubted: pd.DataFrame, frame: pd.DataFrame) -> list[str]:
    """All that is to be known before anything is said of a run: see `busy` and `doubts`."""
    return [said for said in (busy(info), doubts(doubted, frame)) if said]


def doubt_table(doubted: pd.DataFrame, most: int | None = None) -> Table | None:
    """Times that others of their line contradict, with the commands; None if there are none.

    Args:
        doubted: As `analysis.doubt.doubtful` gives them.
        most: Lines, of those that are contradicted most; all if None.
    """
    rows = doubted
    if rows.empty:
        return None
    left_out = 0
    if most is not None and len(rows) > most:
        left_out = len(rows) - most
        # Of a time against a smaller size's, only what it has beyond its tokens.
        growth = (rows["seq_len"] / rows["other"]).clip(lower=1)
        limit = growth.where(growth == 1, growth * JUMP).where(growth > 1, LEAST)
        rows = rows.loc[(rows["ratio"] / limit).nlargest(most).index]
    return Table(
        "Times to be doubted",
        ("strategy", "phase", "clock", "case", "took", "but it took", "again"),
        tuple(
            (
                row["strategy"],
                row["phase"],
                row["clock"],
                Case(**{name: row[name] for name in CASE_FIELDS}).label(),
                format_seconds(row["median_s"]),
                f"{format_seconds(row['median_s'] / row['ratio'])} at {row['other']:,}",
                row["repro"],
            )
            for row in rows.to_dict("records")
        ),
        f"At least {LEAST:g} times as long as with more tokens, or {JUMP:g} times as long for each "
        "token as with fewer: most likely another process had a core while these cases "
        "were measured. The rankings have them all the same; measure them again."
        + (f" The report has {left_out:,} more." if left_out else ""),
    )


def _quality(rows: pd.DataFrame) -> Sequence[str]:
    widths = (rows["high_s"] - rows["low_s"]) / 2 / rows["median_s"]
    precise = (rows["stopped_by"] == "precision").mean()
    return (
        format_share(float(widths.median())),
        format_share(float(widths.quantile(0.9))),
        format_share(float(precise)),
        format_share(float(1 - precise)),
        f"{int((~rows['resolved'].astype(bool)).sum()):,}",
    )
