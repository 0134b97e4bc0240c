"""A comparison in words and tables: the conclusion, the strategies, the cells that tell most."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import get_args

from kvbench.analysis.comparison import (
    CONFIDENCE,
    FLOOR_SHARE,
    Change,
    Comparison,
    Judged,
    Rules,
    Summary,
    Verdict,
)
from kvbench.analysis.gate import BROKEN, Gate, likely_renames
from kvbench.report.tables import Table
from kvbench.store import Run
from kvbench.units import format_ratio, format_seconds, format_share

MOST_CELLS = 20
"""Cells, and kinds of changes, that a terminal shows of one table."""
_MOST_REASON = 200
_WORST_FIRST: tuple[Verdict, ...] = ("SLOWER", "UNSURE", "FASTER", "SAME")
_HASH = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """Two runs, and what is to be said of them."""

    base: Run
    new: Run
    gate: Gate
    notes: tuple[str, ...] = ()
    """What a reader has to know beside the verdicts, a sentence each."""


def counted(count: int, what: str, plural: str = "") -> str:
    """A number of things: "1 cell", "2 cells"."""
    return f"{count:,} {what if count == 1 else plural or what + 's'}"


def conclusion(gate: Gate) -> str:
    """The whole comparison on one line, the worst first."""
    comparison = gate.comparison
    judged, slower, strategies = comparison.judged, comparison.slower, gate.slower_strategies
    parts = []
    if slower or strategies:
        words = [counted(len(strategies), "strategy", "strategies")] if strategies else []
        words.append(f"{counted(len(slower), 'cell')} of {len(judged):,}")
        parts.append(f"SLOWER: {', '.join(words)}")
    if gate.lost:
        fates = Counter(each.status for each in gate.lost)
        words = [f"{count:,} {status}" for status, count in fates.items()]
        parts.append(f"LOST: {counted(len(gate.lost), 'cell')} ({', '.join(words)})")
    if gate.broken:
        parts.append(f"FAILED: {counted(len(gate.broken), 'new cell')}")
    if not parts:
        words = [f"{count:,} {verdict}" for verdict, count in tally(comparison).items() if count]
        parts.append(f"No regression: {', '.join(words)} of {counted(len(judged), 'cell')}")
    allowed = len(comparison.lost) - len(gate.lost)
    if allowed:
        parts.append(f"{counted(allowed, 'cell')} lost, which is allowed")
    return "; ".join(parts)


def tally(comparison: Comparison) -> dict[Verdict, int]:
    """How many cells have each verdict."""
    counts = Counter(each.verdict for each in comparison.judged)
    return {verdict: counts[verdict] for verdict in get_args(Verdict)}


def named(run: Run) -> str:
    """A run with the code that it measured, as "results/ab/a (main, 1a2b3c4)"."""
    info = run.info
    commit = (info.environment.git_commit or "")[:_HASH]
    if commit and info.environment.git_dirty:
        commit += " and changes"
    code = ", ".join(filter(None, (info.tree, commit)))
    return f"{run.folder} ({code})" if code else str(run.folder)


def sides(compared: Compared) -> str:
    """What was held against what, and where the new one was measured."""
    info = compared.new.info
    return (
        f"base {named(compared.base)}, new {named(compared.new)}; "
        f"{info.environment.device_name}, {info.created[:10]}"
    )


def subject(strategy: str, phase: str, clock: str, cache: str = "hot") -> str:
    """A strategy, with its phase, clock and cache where they are not the usual ones."""
    unusual = [phase] if phase != "run" else []
    unusual += [f"{clock} clock"] if clock != "wall" else []
    unusual += [cache] if cache != "hot" else []
    return ", ".join([strategy, *unusual])


def _of_cell(each: Judged | Change) -> str:
    cell = each.cell
    return subject(cell.strategy, cell.phase, cell.clock, cell.cache)


def place(each: Judged | Change) -> str:
    """A cell's case on one line; its op is in the strategy's name."""
    axes = each.cell.case.axes()
    return " ".join(f"{name}={value}" for name, value in axes.items() if name != "op")


def _worst_first(each: Judged | Summary) -> tuple[int, float]:
    return _WORST_FIRST.index(each.verdict), -each.ratio.median


def summary_table(comparison: Comparison) -> Table:
    """Every strategy over all of its cells, the worst first."""
    return Table(
        "Strategies: geometric mean of new time over base time",
        ("strategy", "cells", "new / base", "verdict"),
        tuple(
            (
                subject(each.strategy, each.phase, each.clock),
                str(each.cells),
                format_ratio(each.ratio.median, each.ratio.low, each.ratio.high),
                each.verdict,
            )
            for each in sorted(comparison.summaries, key=_worst_first)
        ),
        f"In brackets: {format_share(CONFIDENCE)} interval.",
    )


def telling(comparison: Comparison) -> list[Judged]:
    """The cells that differ, or may differ by much, the worst first."""
    effect = 1 + comparison.rules.least_effect
    found = [
        each
        for each in comparison.judged
        if each.verdict in {"SLOWER", "FASTER"}
        or (each.verdict == "UNSURE" and not 1 / effect < each.ratio.median < effect)
    ]
    return sorted(found, key=_worst_first)


def cells_table(comparison: Comparison, most: int | None = MOST_CELLS) -> Table | None:
    """The cells that differ, or may by much; None if there is none.

    Args:
        comparison: Of two runs.
        most: So many at most; all if None.
    """
    found = telling(comparison)
    if not found:
        return None
    return Table(
        f"Cells that differ, or may by more than {format_share(comparison.rules.least_effect)}",
        ("strategy", "case", "base", "new", "new / base", "verdict"),
        tuple(
            (
                _of_cell(each),
                place(each),
                format_seconds(each.base_s),
                format_seconds(each.new_s),
                format_ratio(each.ratio.median, each.ratio.low, each.ratio.high),
                f"{each.verdict}: {each.why}" if each.why else each.verdict,
            )
            for each in found[:most]
        ),
        " ".join(
            filter(
                None,
                (
                    # Else a reader would divide the two, and wonder.
                    "Ratios are of samples of one round, times the medians of all."
                    if comparison.interleaved
                    else "",
                    left_out(len(found), most),
                ),
            )
        ),
    )


def left_out(count: int, most: int | None) -> str:
    """How many rows a table does not show; "" if all are there."""
    more = 0 if most is None else count - most
    return f"{more:,} of {count:,} are left out; --json has them all." if more > 0 else ""


def changes_table(title: str, changes: Sequence[Change], most: int | None = MOST_CELLS) -> Table:
    """Cells that one run alone has, those of one strategy and fate together.

    Args:
        title: Of the table.
        changes: The cells.
        most: So many lines at most; all if None.
    """
    kinds: dict[tuple[str, str, str], list[Change]] = {}
    for each in changes:
        kinds.setdefault((each.cell.strategy, each.status, each.reason), []).append(each)
    # What is broken comes before what is only not there.
    lines = sorted(kinds.items(), key=lambda kind: (kind[0][1] not in BROKEN, -len(kind[1])))
    return Table(
        title,
        ("strategy", "cells", "the other run", "as in", "reason"),
        tuple(
            (strategy, str(len(own)), status, place(own[0]), shortened(reason))
            for (strategy, status, reason), own in lines[:most]
        ),
        left_out(len(lines), most),
    )


def shortened(reason: str) -> str:
    """A reason on one line of a table's length."""
    line = " ".join(reason.split())
    return line if len(line) <= _MOST_REASON else f"{line[: _MOST_REASON - 1]}…"


def change_tables(gate: Gate, most: int | None = MOST_CELLS) -> list[Table]:
    """What was lost, what is new and broken, and what is new."""
    comparison = gate.comparison
    found = [
        (f"Lost: timed in the base alone ({len(comparison.lost):,})", comparison.lost),
        (f"Wrong or failed in the new run alone ({len(gate.broken):,})", gate.broken),
        (f"New: timed in the new run alone ({len(comparison.new):,})", comparison.new),
    ]
    return [changes_table(title, changes, most) for title, changes in found if changes]


def commands(compared: Compared, most: int = MOST_CELLS) -> list[str]:
    """What broke, each with the command that measures it again, a strategy once."""
    repros = {(row.case, row.strategy): row.repro for row in compared.new.results}
    gate = compared.gate
    found = {
        each.cell.strategy: each
        for each in reversed((*gate.lost, *gate.broken))
        if each.status in BROKEN
    }
    return [
        f"{name} {each.status}: {each.reason}\n  {repros[each.cell.case, name]}"
        for name, each in list(reversed(found.items()))[:most]
    ]


def explanation(comparison: Comparison) -> list[str]:
    """The verdicts' counts, the noise, and the rule that made the verdicts, a sentence each."""
    rules = comparison.rules
    counts = ", ".join(f"{count:,} {verdict}" for verdict, count in tally(comparison).items())
    return [f"Cells: {counts}.", _noise(comparison), _rule(rules, len(comparison.judged))]


def _noise(comparison: Comparison) -> str:
    noise = f"Two runs of the same code differ by {format_share(comparison.noise)} in a cell"
    pairs = comparison.processes
    if comparison.interleaved and pairs > 1:
        how = f"of a pair of processes; {pairs} took turns"
    else:
        how = "estimated from how the cells scatter"
    return f"{noise} (one standard deviation, {how})."


def _rule(rules: Rules, cells: int) -> str:
    return (
        f"SLOWER and FASTER: significant (p under {rules.significance:g} after correction for "
        f"{counted(cells, 'cell')}), by {format_share(rules.least_effect)} or more, and by more "
        f"than {format_share(FLOOR_SHARE)} of an empty call. SAME: the whole "
        f"{format_share(CONFIDENCE)} interval is within {format_share(rules.least_effect)}. "
        "UNSURE: neither."
    )


def renames(gate: Gate) -> list[str]:
    """Strategies that seem to have another name now, and what to do then."""
    return [
        f"{old} is gone and {new} has the very same cells: if it was renamed, "
        f"--rename {old}={new} compares them."
        for old, new in likely_renames(gate.comparison)
    ]


def sentences(compared: Compared) -> list[str]:
    """All that is to be said beside the tables."""
    gate = compared.gate
    return [*renames(gate), *compared.notes, *explanation(gate.comparison)]


def tables(compared: Compared, most: int | None = MOST_CELLS) -> list[Table]:
    """All tables, in the order in which they are read."""
    comparison = compared.gate.comparison
    cells = cells_table(comparison, most)
    found: Iterable[Table] = [cells] if cells else []
    head = [summary_table(comparison)] if comparison.summaries else []
    return [*head, *found, *change_tables(compared.gate, most)]
