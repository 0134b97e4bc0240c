"""The answer of a run in words and in one table: who wins, where, by how much, how surely."""

from collections.abc import Sequence

import pandas as pd

from kvbench.analysis.comparison import LEAST_EFFECT
from kvbench.analysis.winners import Band, bands
from kvbench.cases import ONCE_A_STEP, OPS, WHOLE_STEPS
from kvbench.report.tables import MISSING, Table
from kvbench.units import format_ratio, significant

_HEADER = (
    "op",
    "tokens of a call",
    "fastest",
    "certainty",
    "the next takes",
    "the next",
    "fastest or tied in",
)
_MOST_TIED = 2
"""Strategies named in a cell; of more it is said how many."""


def answers(frame: pd.DataFrame, layers: int) -> dict[str, list[Band]]:
    """The bands of every op that was timed.

    Args:
        frame: Rows of a run.
        layers: Layers of a step.
    """
    found = {op: bands(frame, op, layers) for op in OPS}
    return {op: own for op, own in found.items() if own}


def answer_table(found: dict[str, list[Band]], layers: int) -> Table:
    """A line per op and band of sizes.

    Args:
        found: What `answers` gives.
        layers: The layers of a step that it was asked for.
    """
    left_out = sum(band.left_out for own in found.values() for band in own)
    names = dict.fromkeys(name for own in found.values() for band in own for name in band.lacking)
    lacking = (
        f" Cases in which not every strategy of the band was timed are left out: {left_out}, for "
        f"want of {_listed(list(names))}."
        if left_out
        else ""
    )
    return Table(
        "The fastest by op and size",
        _HEADER,
        tuple(_line(op, band) for op, own in found.items() for band in own),
        f"By the cost of a step by the wall clock: prepare + {layers} x run of a write, read or "
        "attend; of an index one run; of a step all of it. Geometric means over the cases of a "
        "band; in brackets the 95 % interval over rounds. By little: that interval begins less "
        f"than {100 * LEAST_EFFECT:.0f} % above 1, so that another run may not show it again. "
        "Tied: it has 1 in it. Ratios are taken within rounds and the fastest is found by medians, "
        f"so that of two that are tied the next can have a ratio under 1x.{lacking}",
    )


def _line(op: str, band: Band) -> tuple[str, ...]:
    next_one, takes = MISSING, MISSING
    if band.runner_up is not None and band.margin is not None:
        next_one = _way(band.runner_up)
        takes = format_ratio(band.margin.median, band.margin.low, band.margin.high)
    return (
        op,
        _sizes(band),
        _way(band.winner),
        _certainty(band),
        takes,
        next_one,
        f"{band.fastest:,} of {band.cases:,} case{'s' * (band.cases != 1)}",
    )


def _certainty(band: Band) -> str:
    if not band.shared:
        return "unsure: no case has them all"
    if band.runner_up is None:
        return "nothing to compare with"
    if not band.tied:
        return "sure" if band.margin is None or band.margin.low >= 1 + LEAST_EFFECT else "by little"
    names = [_way(name) for name in band.tied]
    if len(names) > _MOST_TIED:
        return f"tied with {len(names)} others"
    return f"tied with {' and '.join(names)}"


def sentences(found: dict[str, list[Band]]) -> str:
    """The answer as a list in Markdown, a point per op.

    Args:
        found: What `answers` gives.
    """
    return "\n".join(f"- **{op}**: {_sentence(own)}{_unshared(own)}" for op, own in found.items())


def basis(found: dict[str, list[Band]], layers: int) -> str:
    """What the answer goes by, in words.

    Args:
        found: What `answers` gives.
        layers: The layers of a step that it was asked for.
    """
    if set(found) <= {*ONCE_A_STEP, *WHOLE_STEPS}:
        return "By the cost of a step"
    return f"By the cost of a step of {layers} layers (prepare once, run {layers} times)"


def plain(markdown: str) -> str:
    """What `sentences` gives, for a terminal."""
    return markdown.replace("**", "").replace("`", "")


def _unshared(own: Sequence[Band]) -> str:
    spans = [f"{_sizes(band)} tokens" for band in own if not band.shared]
    if not spans:
        return ""
    return (
        f" At {_listed(spans)} no case has a time of every strategy: each is judged by its own, "
        "and another may be faster."
    )


def _sentence(own: Sequence[Band]) -> str:
    winners = list(dict.fromkeys(band.winner for band in own))
    if len(winners) == 1:
        # A band's winner may lose some of its cases.
        where = "on average at all sizes measured"
        near = any(band.tied for band in own)
        if all(band.fastest == band.cases for band in own):
            where = "at every size measured"
            near |= any(band.least < 1 for band in own)  # a case that it lost by medians alone
        tied = ", or tied," if near else ""
        said = f"`{_way(winners[0])}` is the fastest{tied} {where} ({_span(own)} tokens)"
        return f"{said}{_ahead(own)}."
    parts: list[list[Band]] = []
    for band in own:
        if parts and parts[-1][0].winner == band.winner:
            parts[-1].append(band)
        else:
            parts.append([band])
    return "; ".join(f"`{_way(p[0].winner)}` at {_span(p)} tokens{_ahead(p)}" for p in parts) + "."


def _ahead(own: Sequence[Band]) -> str:
    """How far ahead, over several bands; "" where there is nobody else."""
    rivals = list(dict.fromkeys(_way(b.runner_up) for b in own if b.runner_up is not None))
    margins = [band.margin for band in own if band.margin is not None]
    if not margins:
        return ""
    tied = list(dict.fromkeys(f"`{_way(name)}`" for band in own for name in band.tied))
    if tied and all(band.tied for band in own):
        return f", not to be told from {_listed(tied)}"
    times = _times([m.median for m in margins])
    single = _times([end for band in own for end in (band.least, band.most)])
    remarks = []
    if sum(band.cases for band in own) > 1 and single != times:
        remarks.append(f"case by case the quickest other takes {single}")
    if tied:
        remarks.append(f"at some sizes not to be told from {_listed(tied)}")
    said = f": the next, {_listed([f'`{name}`' for name in rivals])}, takes {times} as long"
    return f"{said} ({'; '.join(remarks)})" if remarks else said


def _times(ratios: Sequence[float]) -> str:
    low, high = (significant(end(ratios)) for end in (min, max))
    return f"{low}x" if low == high else f"{low} to {high}x"


def _listed(names: Sequence[str]) -> str:
    *others, last = names
    return f"{', '.join(others)} or {last}" if others else last


def _span(own: Sequence[Band]) -> str:
    low, high = own[0].low, own[-1].high
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def _sizes(band: Band) -> str:
    return _span([band])


def _way(strategy: str) -> str:
    return strategy.partition(".")[2]
