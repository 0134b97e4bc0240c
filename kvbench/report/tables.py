"""Tables: what they say, apart from how they are shown (a terminal, Markdown)."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
from rich.table import Table as RichTable
from rich.text import Text

from kvbench.analysis.frame import CASE_FIELDS, main_group, timed
from kvbench.analysis.ranking import of_shared_cases, standings, step_costs
from kvbench.cases import DTYPE_BYTES, LAYOUTS, ONCE_A_STEP, QUANTISED_BYTES, WHOLE_STEPS
from kvbench.report.setting import describe
from kvbench.results import LaunchCounts, RunInfo
from kvbench.units import format_bandwidth, format_seconds, significant

UNRESOLVED = " (unresolved)"
"""Behind a time of less than twice the clock's floor."""

LONG_FIRST_CALL_S = 1.0
"""A first call as long as this is told of."""

MISSING = "—"
"""How a table shows what was not measured: missing is missing, never 0."""

_MOST_COLUMNS = 6
_LONGEST_NAME = 40
"""Letters of a first cell that is not folded."""
_MOST_REASONS = 5
"""Lines of one strategy, clock and status; the last may stand for all others."""
_MOST_VALUES = 6
_NUMBER = re.compile(r"(?<![\w.])\d[\d.,]*(?: (?:[nµm]?s|[KMGT]?i?B)\b)?")
"""With its unit, as that changes with the number."""


@dataclass(frozen=True, slots=True)
class Table:
    """A title, a header and rows of text; columns of numbers are aligned right."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""
    """What a reader has to know of the rows: which part of a run they cover."""

    def rich(self) -> RichTable:
        """For a terminal."""
        table = RichTable(
            title=Text(self.title),
            title_justify="left",
            title_style="bold",
            caption=Text(self.note) if self.note else None,
            caption_justify="left",
            caption_style="",
        )
        for place, (name, numeric) in enumerate(zip(self.header, self.numeric(), strict=True)):
            table.add_column(
                Text(name),
                justify="right" if numeric else "left",
                overflow="fold",  # not cut: a command is to be copied
                # A line is found by its strategy, whole.
                no_wrap=place == 0 and all(len(row[0]) <= _LONGEST_NAME for row in self.rows),
            )
        for row in self.rows:
            table.add_row(*map(Text, row))  # as Text: brackets are no markup
        return table

    def markdown(self) -> str:
        """For a document."""
        rule = ["---:" if numeric else "---" for numeric in self.numeric()]
        escaped = [[_escaped(cell) for cell in row] for row in (self.header, *self.rows)]
        escaped.insert(1, rule)
        lines = [f"| {' | '.join(row)} |" for row in escaped]
        note = ["", self.note] if self.note else []
        return "\n".join([f"**{self.title}**", "", *lines, *note])

    def numeric(self) -> list[bool]:
        """Which columns hold numbers alone."""
        columns = zip(*self.rows, strict=True) if self.rows else [()] * len(self.header)
        return [all(_is_number(cell) for cell in column) for column in columns]


def _is_number(cell: str) -> bool:
    """Also with its unit and interval; no sentence that begins with one."""
    return cell == MISSING or (cell[:1].isdigit() and ";" not in cell)


def _escaped(cell: str) -> str:
    """A cell as it is read in Markdown; what is code already has no markup in it."""
    cell = cell.replace("|", "\\|")
    is_code = cell.startswith("`") and cell.endswith("`")
    return cell if is_code else cell.replace("<", "&lt;").replace("*", "\\*")


def describe_launches(counts: LaunchCounts) -> str:
    """Launches in words: "6 kernels, 1 memcpy, waits once"."""
    parts = []
    if counts.kernels:
        parts.append(f"{counts.kernels:,} kernel{'s' * (counts.kernels > 1)}")
    if counts.memcpys:
        parts.append(f"{counts.memcpys:,} memcpy{'s' * (counts.memcpys > 1)}")
    if counts.synchronizations:
        times = "once" if counts.synchronizations == 1 else f"{counts.synchronizations:,} times"
        parts.append(f"waits {times}")
    return ", ".join(parts) or "nothing"


def ranking_table(frame: pd.DataFrame, op: str, layers: int) -> Table:
    """The strategies of an op, the best first, over all cases of a run that have all of them."""
    costs = step_costs(frame[frame["op"] == op], layers)
    title = f"{op}: cost of a step of {layers} layers (prepare + {layers} x run)"
    if op in ONCE_A_STEP:
        title = f"{op}: cost of a step (one run, without prepare)"
    if op in WHOLE_STEPS:
        title = f"{op}: cost of a step (prepare + run, which has all layers)"
    return Table(
        title,
        ("strategy", "geometric mean", "worst", "fastest or tied", "cases"),
        tuple(
            (
                standing.strategy,
                f"{significant(standing.slowdown)}x the fastest",
                f"{significant(standing.worst)}x",
                str(standing.fastest),
                str(standing.cases),
            )
            for standing in standings(costs)
        ),
        _coverage(costs),
    )


def _coverage(costs: pd.DataFrame) -> str:
    """Which of the cases that were timed a ranking covers; "" if all."""
    keys = list(CASE_FIELDS)
    covered = of_shared_cases(costs)
    cases = len(costs.drop_duplicates(keys))
    shared = len(covered.drop_duplicates(keys))
    if len(covered) < len(costs):
        lost = [
            f"{name} {_some(missing)}"
            for name in keys
            if (missing := sorted(set(costs[name]) - set(covered[name])))
        ]
        among = f", all of {'; '.join(lost)} among them" if lost else ""
        return (
            f"Over the {shared:,} cases in which every strategy was timed; {cases - shared:,} "
            f"cases ({len(costs) - len(covered):,} timed runs) are left out{among}."
        )
    if len(costs) < cases * costs["strategy"].nunique():
        return "No case has a time of every strategy: each is ranked over its own cases."
    return ""


def _some(values: Sequence[object]) -> str:
    text = ", ".join(map(str, values[:_MOST_VALUES]))
    more = len(values) - _MOST_VALUES
    return f"{text} and {more} more" if more > 0 else text


def times_table(frame: pd.DataFrame, op: str, layers: int) -> Table | None:
    """Median times by seq_len in the run's main setting; None if nothing was timed.

    A line per strategy: its run, once a layer, then its share of a step, (prepare + layers * run) /
    layers, where that is another. Of what a step does once, its run alone; of a whole step, its run
    and prepare + run.
    """
    runs = timed(frame[frame["op"] == op])
    if runs.empty:
        return None
    shared, rows = main_group(runs, ("seq_len",))
    costs = step_costs(frame[frame["op"] == op], layers).merge(
        rows[["seq_len", *shared, "strategy"]], on=["seq_len", *shared, "strategy"]
    )
    found = sorted(int(n) for n in costs["seq_len"].unique())
    seq_lens = spaced(found)
    lines = []
    for strategy, own in costs.groupby("strategy", sort=True):
        by_length = own.set_index("seq_len")
        lines.append((str(strategy), *(_time(by_length, "median_s", n) for n in seq_lens)))
        if own["prepare_s"].gt(0).any():
            share = 1 if op in WHOLE_STEPS else layers
            by_length = by_length.assign(layer_s=by_length["step_s"] / share)
            label = f"{strategy}, with prepare"
            lines.append((label, *(_time(by_length, "layer_s", n) for n in seq_lens)))
    calls = f"{describe(shared)}; with prepare: spread over {layers} layers"
    if op in ONCE_A_STEP:
        calls = f"{describe(shared)}; once a step, without prepare"
    if op in WHOLE_STEPS:
        calls = f"{describe(shared)}; all layers"
    notes = []
    if len(rows) < len(runs):
        *others, last = [name for name in shared if runs[name].nunique() > 1]
        fields = f"{', '.join(others)} or {last}" if others else last
        notes.append(
            f"Of the {len(runs):,} runs timed, {len(rows):,} have this setting; "
            f"{len(runs) - len(rows):,} of another {fields} are left out."
        )
    if len(seq_lens) < len(found):
        notes.append(f"{len(seq_lens)} of {len(found)} values of seq_len are shown.")
    return Table(
        f"{op}: time per call by seq_len ({calls})",
        ("strategy", *(f"{n:,}" for n in seq_lens)),
        tuple(lines),
        " ".join(notes),
    )


def _time(by_length: pd.DataFrame, column: str, seq_len: int) -> str:
    if seq_len not in by_length.index:
        return MISSING
    row: Any = by_length.loc[seq_len]
    return format_seconds(row[column]) + ("" if row["resolved"] else UNRESOLVED)


def spaced(values: Sequence[int]) -> list[int]:
    """At most so many values, the ends among them, evenly apart."""
    last = len(values) - 1
    count = min(_MOST_COLUMNS, len(values))
    picked = {round(i * last / max(count - 1, 1)) for i in range(count)}
    return [values[i] for i in sorted(picked)]


_CHECK_COLUMNS = (
    ("correct", "checked"),
    ("unsupported", "unsupported"),
    ("incorrect", "incorrect"),
    ("failed", "failed"),
)


def check_table(
    counts: Mapping[str, Counter[str]],
    cases: int,
    device: str,
    *,
    quantised: bool = False,
    attended: bool = False,
    stepped: bool = False,
) -> Table:
    """What became of the checks, a line per strategy.

    Args:
        counts: By strategy, how many cases ended with each status.
        cases: The cases.
        device: Where they were checked.
        quantised: Whether quantised pools were among them.
        attended: Whether attentions were.
        stepped: Whether whole steps were.
    """
    rounded = ", quantised pools as near as float32 has it" if quantised else ""
    rounded += ", attention within what its dtype can do" if attended else ""
    rounded += ", steps within a measured tolerance" if stepped else ""
    return Table(
        f"{cases} cases on {device}, bit for bit{rounded}",
        ("strategy", *(title for title, _ in _CHECK_COLUMNS)),
        tuple(
            (name, *(str(counter[status]) for _, status in _CHECK_COLUMNS))
            for name, counter in counts.items()
        ),
    )


def forecast_table(cells: Mapping[str, Counter[str]]) -> Table:
    """What a sweep would do: the cells of each strategy, and why others are left out.

    Args:
        cells: By strategy, how many cells are "to do", and how many are not for each reason.
    """
    rows = []
    for strategy, counter in cells.items():
        others = {reason: count for reason, count in counter.items() if reason != "to do"}
        rows.append((strategy, str(counter["to do"]), "", ""))
        rows += [("", "", str(count), reason) for reason, count in others.items()]
    return Table(
        "What would be measured", ("strategy", "cells", "left out", "because"), tuple(rows)
    )


def matrix_table(
    cells: Mapping[tuple[str, str, str], Counter[str]],
) -> tuple[Table, tuple[str, ...]]:
    """Strategy x layout x dtype: how many checks passed, or why there were none.

    Args:
        cells: By strategy, layout and dtype, how many checks ended with each status, those not
            supported by their reason.

    Returns:
        The table, and the reasons that it refers to by number.
    """
    reasons: dict[str, int] = {}

    def cell(counter: Counter[str]) -> str:
        parts: list[str] = []
        for status, count in counter.items():
            if status == "checked":
                parts.insert(0, f"{count} pass")
            elif status in {"incorrect", "failed"}:
                parts.append(f"{count} {status.upper()}")
            else:
                number = reasons.setdefault(status, len(reasons) + 1)
                parts.append(f"no [{number}]")
        return ", ".join(parts) or "not in these cases"

    dtypes = (*DTYPE_BYTES, *QUANTISED_BYTES)
    rows = tuple(
        (name, layout, *(cell(cells.get((name, layout, dtype), Counter())) for dtype in dtypes))
        for name in dict.fromkeys(strategy for strategy, _, _ in cells)
        for layout in LAYOUTS
    )
    title = "Checks passed by strategy, layout and dtype (fp8 and int8 are the pool's)"
    notes = tuple(f"[{number}] {reason}" for reason, number in reasons.items())
    return Table(title, ("strategy", "layout", *dtypes), rows), notes


def environment_line(info: RunInfo) -> str:
    """The machine, the software and the limits of a run, on one line."""
    environment = info.environment
    floors = ", ".join(f"{n} {format_seconds(s)}" for n, s in info.floors_s.items())
    return (
        f"{environment.device_name}, {environment.usable_cpus} CPUs, "
        f"torch {environment.torch}, {info.created[:10]}; "
        f"copy {format_bandwidth(info.copy_bandwidth.bytes_per_s)} ({info.copy_bandwidth.how}); "
        f"an empty call: {floors}."
    )


def first_calls_table(frame: pd.DataFrame) -> Table | None:
    """What took long the first time, and never again; None if nothing did."""
    slow = frame[frame["first_call_s"] >= LONG_FIRST_CALL_S]
    if slow.empty:
        return None
    # A case has the same first call by every clock.
    cases = slow.drop_duplicates([*CASE_FIELDS, "strategy"])
    return Table(
        f"First calls of {format_seconds(LONG_FIRST_CALL_S)} or more (compiling, loading), in no "
        "sample",
        ("strategy", "cases", "longest", "altogether"),
        tuple(
            (
                str(strategy),
                str(len(rows)),
                format_seconds(rows["first_call_s"].max()),
                format_seconds(rows["first_call_s"].sum()),
            )
            for strategy, rows in cases.groupby("strategy")
        ),
    )


def untimed_table(frame: pd.DataFrame) -> Table | None:
    """What was not timed and why, the most frequent reasons first; None if everything was."""
    rest = frame[frame["status"] != "ok"]
    if rest.empty:
        return None
    lines = []
    # A case whose run and prepare have one reason counts once.
    rest = rest.drop_duplicates(["strategy", "clock", "status", "reason", *CASE_FIELDS])
    for (strategy, clock, status), rows in rest.groupby(["strategy", "clock", "status"]):
        shown = _bounded(Counter(rows["reason"]))
        heads = [(str(strategy), str(clock), str(status)), *[("", "", "")] * len(shown)]
        lines += [
            (*head, str(count), reason) for head, (reason, count) in zip(heads, shown, strict=False)
        ]
    return Table("Not timed", ("strategy", "clock", "status", "cases", "reason"), tuple(lines))


def _bounded(reasons: Counter[str]) -> list[tuple[str, int]]:
    """Reasons with their counts, the most frequent first, on so many lines at most.

    Those that differ in their numbers alone are put together.
    """
    alike: dict[str, list[str]] = {}
    for reason in reasons:
        alike.setdefault(_NUMBER.sub("#", reason), []).append(reason)
    found = Counter(
        {
            first + (f" (and {len(more)} alike, of other numbers)" if more else ""): sum(
                reasons[reason] for reason in (first, *more)
            )
            for first, *more in alike.values()
        }
    ).most_common()
    if len(found) <= _MOST_REASONS:
        return found
    shown, others = found[: _MOST_REASONS - 1], found[_MOST_REASONS - 1 :]
    return [*shown, (f"and {len(others):,} more reasons", sum(count for _, count in others))]
