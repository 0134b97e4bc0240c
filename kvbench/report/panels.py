"""Small multiples over block size and KV heads, shared by the plots over seq_len."""

import itertools
import math
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib.axes import Axes as Panel
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from kvbench.analysis.frame import groups
from kvbench.report.setting import describe
from kvbench.report.style import WIDTH_IN
from kvbench.results import RunInfo

FREE = ("seq_len", "block_size", "num_kv_heads")
_FOOTNOTE_COLUMNS = 128
_MOST_PER_SIDE = 3
_PANEL_HEIGHT_IN = 2.7
_HEADER_IN = 0.75
_LABEL_GAP = 0.075
"""Least distance of two labels, as a share of the panel's height."""


@dataclass(frozen=True, slots=True)
class Page:
    """The rows of one figure."""

    name: str
    """Distinguishes the figure's file; "" for the run's main one."""
    subtitle: str
    """What all rows share."""
    rows: pd.DataFrame
    block_sizes: tuple[int, ...]
    kv_heads: tuple[int, ...]


def pages(frame: pd.DataFrame) -> Iterator[Page]:
    """Cut the timed rows of one op into figures: one per setting of the axes that no panel shows.

    A setting with a single seq_len has no curve and no page. More than three block sizes or head
    counts go on more pages.
    """
    main: dict[str, object] | None = None
    # A logarithmic axis has no 0, and an empty batch no bytes.
    for shared, rows in groups(frame[frame["tokens"] > 0], FREE):
        if rows["seq_len"].nunique() < 2:  # noqa: PLR2004 - a line needs two points
            continue
        main = main or shared
        differs = [name for name in shared if shared[name] != main[name]]
        stem = "-".join(f"{name}-{shared[name]}" for name in differs)
        columns = _chunks(sorted(rows["block_size"].unique()))
        lines = _chunks(sorted(rows["num_kv_heads"].unique()))
        for number, (blocks, heads) in enumerate(itertools.product(columns, lines)):
            part = rows[rows["block_size"].isin(blocks) & rows["num_kv_heads"].isin(heads)]
            name = stem if number == 0 else f"{stem}-{number + 1}".lstrip("-")
            yield Page(name, describe(shared, ("head_dim", "block_order")), part, blocks, heads)


def _chunks(values: Sequence[int]) -> list[tuple[int, ...]]:
    count = math.ceil(len(values) / _MOST_PER_SIDE)
    return [tuple(int(v) for v in chunk) for chunk in np.array_split(np.array(values), count)]


def make_panels(
    page: Page, title: str, footnote: str
) -> tuple[Figure, Iterator[tuple[Panel, int, int]]]:
    """An empty figure of the page's panels.

    Returns:
        The figure, and each panel with its block size and number of KV heads.
    """
    rows, columns = len(page.kv_heads), len(page.block_sizes)
    height = _HEADER_IN + rows * _PANEL_HEIGHT_IN * (1.35 if rows == columns == 1 else 1)
    figure = Figure(figsize=(WIDTH_IN, height), layout="constrained")
    panels = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    figure.suptitle(f"{title}\n{page.subtitle}", fontsize=10.5, x=0.01, ha="left")
    figure.supxlabel(
        textwrap.fill(footnote, _FOOTNOTE_COLUMNS), fontsize=7.5, color="#404040", x=0.01, ha="left"
    )
    for axis in panels[-1]:
        axis.set_xlabel("seq_len (tokens per sequence)")

    def walk() -> Iterator[tuple[Panel, int, int]]:
        for (i, heads), (j, block) in itertools.product(
            enumerate(page.kv_heads), enumerate(page.block_sizes)
        ):
            panel = panels[i][j]
            title = f"block size {block}"
            if not (page.rows["op"] == "index").all():  # it moves no heads
                title += f", {heads} KV heads"
            panel.set_title(title, loc="left")
            yield panel, block, heads

    return figure, walk()


def provenance(info: RunInfo, clock: str) -> str:
    """Where a figure's numbers come from: machine, software, day, clock, caches."""
    environment = info.environment
    return (
        f"{environment.device_name}, {environment.usable_cpus} CPUs, torch {environment.torch}, "
        f"{info.created[:10]}; {clock} clock, {info.cache} caches"
    )


def launches_label(points: pd.DataFrame) -> str:
    """How a line's launches are written behind its name: "7", "2/token"; "" if not known."""
    launches, tokens = points["launches"], points["tokens"]
    if launches.isna().any() or points.empty:
        return ""
    if launches.nunique() == 1:
        return f" ({launches.iloc[0]:.0f})"
    per_token = launches / tokens.where(tokens > 0)
    if per_token.nunique() == 1:
        return f" ({per_token.iloc[0]:.3g}/token)"
    return f" ({launches.min():,.0f} to {launches.max():,.0f})"


def log_axes(panel: Panel, seq_lens: Sequence[int]) -> None:
    """Make it log-log, with room for labels right of the last point, and ticks in plain numbers."""
    first, last = min(seq_lens), max(seq_lens)
    panel.set_xscale("log", base=2)
    panel.set_yscale("log")
    span = math.log(last / first) or 1.0
    panel.set_xlim(first * 0.85, last * math.exp(0.42 * span))
    ticks = sorted(seq_lens)[:: 3 if len(seq_lens) > 8 else 1]  # noqa: PLR2004 - legible
    panel.set_xticks(ticks, [f"{t:,}" for t in ticks])
    panel.xaxis.set_minor_formatter(NullFormatter())
    low, high = panel.get_ylim()
    # Within two decades powers of ten alone leave a reader without a scale.
    subs = (1.0,) if high / low > 100 else (1.0, 2.0, 5.0)  # noqa: PLR2004
    panel.yaxis.set_major_locator(LogLocator(10, subs=subs, numticks=12))
    panel.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:,.10g}"))
    panel.yaxis.set_minor_formatter(NullFormatter())


def label_ends(panel: Panel, ends: Sequence[tuple[float, float, str, str]]) -> None:
    """Write each line's name at its end, moved apart where they would overlap.

    Args:
        panel: A panel with its final limits.
        ends: (x, y, text, colour) of each line's last point, in data units.
    """
    to_axes = panel.transData + panel.transAxes.inverted()
    spots = sorted(
        ((*to_axes.transform((x, y)), text, colour) for x, y, text, colour in ends),
        key=lambda spot: spot[1],
    )
    heights = spread([spot[1] for spot in spots], _LABEL_GAP)
    for (x, y, text, colour), height in zip(spots, heights, strict=True):
        panel.annotate(
            text,
            xy=(x, y),
            xytext=(x + 0.025, height),
            xycoords="axes fraction",
            textcoords="axes fraction",
            color=colour,
            fontsize=8.5,
            va="center",
            arrowprops={"arrowstyle": "-", "color": colour, "lw": 0.5, "shrinkA": 0, "shrinkB": 0},
        )


def spread(wanted: Sequence[float], gap: float) -> list[float]:
    """Positions at least `gap` apart, in the order wanted, moved as little as can be.

    Neighbours that are too close form a pile, centred on the mean of what they wanted; piles that
    then overlap are joined.

    Args:
        wanted: Ascending positions.
        gap: Least distance.
    """
    piles: list[list[float]] = []
    for position in wanted:
        piles.append([position])
        while len(piles) > 1 and _bottom(piles[-1], gap) < _top(piles[-2], gap) + gap:
            piles[-2:] = [piles[-2] + piles[-1]]
    return [_bottom(pile, gap) + i * gap for pile in piles for i in range(len(pile))]


def _bottom(pile: Sequence[float], gap: float) -> float:
    return sum(pile) / len(pile) - gap * (len(pile) - 1) / 2


def _top(pile: Sequence[float], gap: float) -> float:
    return sum(pile) / len(pile) + gap * (len(pile) - 1) / 2
