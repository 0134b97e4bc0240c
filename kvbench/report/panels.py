"""Small multiples over block size and KV heads, shared by the plots over seq_len."""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib.axes import Axes as Panel
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.markers import TICKLEFT
from matplotlib.patches import PathPatch
from matplotlib.path import Path
from matplotlib.text import Text
from matplotlib.ticker import FuncFormatter, Locator, LogLocator, NullFormatter, NullLocator

from kvbench.analysis.frame import settings_of, unusual
from kvbench.report.frames import framed, renderer_of, width_in
from kvbench.report.palette import legible
from kvbench.report.setting import describe, kv_heads
from kvbench.report.style import line, look
from kvbench.results import RunInfo

Floats = npt.NDArray[np.float64]

FREE = ("seq_len", "block_size", "num_kv_heads")
_MOST_PER_SIDE = 3
_PANEL_HEIGHT_IN = 2.7
_LABEL_EM = 1.44
"""Least distance of two labels, over the size of their font."""
FRAME_IN = 0.8
"""Of a panel's height, the most that is above and below its axes."""
_MOST_OF_WIDTH = 0.4
"""Of a panel's width, for names at the ends of its lines."""
_BETWEEN_TICKS = 0.15
"""Of a number's height: the least room between two of them."""
_OTHER_LABELS = 3
"""Lines with a name besides those of the strategies: the copy, a prepare or two."""

_OVER = "seq_len (tokens per sequence)"

Ends = Sequence[tuple[float, float, str, str]]
"""(x, y, text, colour) of the last point of each line of a panel, in data units."""


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

    def of(self, block_size: int, kv_heads: int) -> pd.DataFrame:
        """The rows of one panel."""
        here = (self.rows["block_size"] == block_size) & (self.rows["num_kv_heads"] == kv_heads)
        return self.rows[here]


@dataclass(frozen=True, slots=True)
class Outline:
    """What a page will show, before its rows are taken."""

    name: str
    """The page's."""
    subtitle: str
    """The page's."""
    rank: tuple[int, int]
    """The less, the more it tells: 0 for the run's main setting, else 1 and how many fields do not
    have a case's default; then which of its setting's pages it is, from 0."""
    block_sizes: tuple[int, ...]
    kv_heads: tuple[int, ...]
    places: npt.NDArray[np.intp]
    """Which rows of the frame are the setting's."""

    def page(self, frame: pd.DataFrame) -> Page:
        """The page; `frame` is what the outline was made of."""
        rows = frame.take(self.places)
        shown = rows["block_size"].isin(self.block_sizes)
        shown &= rows["num_kv_heads"].isin(self.kv_heads)
        return Page(self.name, self.subtitle, rows[shown], self.block_sizes, self.kv_heads)


def named_settings(
    frame: pd.DataFrame, free: Sequence[str], shown: Callable[[npt.NDArray[np.intp]], bool]
) -> Iterator[tuple[str, dict[str, object], int, npt.NDArray[np.intp]]]:
    """The settings of a frame that have a figure.

    Args:
        frame: The rows.
        free: The axes that a figure shows.
        shown: Whether there is anything to show of a setting's rows.

    Yields:
        What distinguishes the figure's file, "" for the first one's; the setting; 0 for the first,
        else 1 and how many fields do not have a case's default; and which rows are its own.
    """
    main: dict[str, object] | None = None
    for shared, places in settings_of(frame, free) if len(frame) else ():
        if not shown(places):
            continue
        main = main or shared
        differs = [name for name in shared if shared[name] != main[name]]
        stem = "-".join(f"{name}-{shared[name]}" for name in differs)
        yield stem, shared, 0 if shared is main else 1 + unusual(shared), places


def numbered(stem: str, number: int) -> str:
    """The name of a setting's page, from 0."""
    return stem if number == 0 else f"{stem}-{number + 1}".lstrip("-")


def outlines(frame: pd.DataFrame) -> Iterator[Outline]:
    """Cut the timed rows of one op into figures: one per setting of the axes that no panel shows.

    A setting with a single seq_len has no curve and no page. More than three block sizes or head
    counts go on more pages.
    """
    # A logarithmic axis has no 0, and an empty batch no bytes.
    full = np.flatnonzero(frame["tokens"] > 0)
    axes = {name: frame[name].to_numpy() for name in FREE}

    def is_line(found: npt.NDArray[np.intp]) -> bool:
        return len(np.unique(axes["seq_len"][full[found]])) > 1

    for stem, shared, far, found in named_settings(frame.take(full), FREE, is_line):
        places = full[found]
        columns = chunks(np.unique(axes["block_size"][places]))
        lines = chunks(np.unique(axes["num_kv_heads"][places]))
        for number, (blocks, heads) in enumerate(itertools.product(columns, lines)):
            subtitle = describe(shared, ("head_dim", "block_order"))
            yield Outline(numbered(stem, number), subtitle, (far, number), blocks, heads, places)


def pages(frame: pd.DataFrame) -> Iterator[Page]:
    """The pages of the timed rows of one op (see `outlines`), the main one first."""
    return (outline.page(frame) for outline in outlines(frame))


def chunks(values: npt.NDArray[np.int64]) -> list[tuple[int, ...]]:
    """Values in parts for one side of a page each, as even as can be."""
    count = math.ceil(len(values) / _MOST_PER_SIDE)
    return [tuple(int(v) for v in chunk) for chunk in np.array_split(values, count)]


def make_panels(
    page: Page, title: str, footnote: str, keys: Sequence[Line2D] = ()
) -> tuple[Figure, Iterator[tuple[Panel, int, int]]]:
    """An empty figure of the page's panels.

    Args:
        page: The page.
        title: What is shown.
        footnote: Where the numbers come from, and how to read them.
        keys: A line for each that will be named at its end, with the name. Where these would take
            too much of a panel's width they become a legend, and `finish` names none.

    Returns:
        The figure, and each panel with its block size and number of KV heads.
    """
    rows, columns = len(page.kv_heads), len(page.block_sizes)
    labels = page.rows["strategy"].nunique() + _OTHER_LABELS
    least = _PANEL_HEIGHT_IN * (1.35 if rows == columns == 1 else 1)
    height = rows * max(least, labels * label_in() + FRAME_IN)
    room = _MOST_OF_WIDTH * look().width_in / columns
    wide = any(width_in(str(key.get_label()), look().name_pt) > room for key in keys)
    figure = framed(title, page.subtitle, footnote, height, keys if wide else ())
    panels = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)

    def walk() -> Iterator[tuple[Panel, int, int]]:
        for (i, heads), (j, block) in itertools.product(
            enumerate(page.kv_heads), enumerate(page.block_sizes)
        ):
            panel = panels[i][j]
            title = f"block size {block}"
            if not (page.rows["op"] == "index").all():  # it moves no heads
                title += f", {kv_heads(heads)}"
            panel.set_title(title, loc="left")
            yield panel, block, heads

    return figure, walk()


def drawn_panels(
    page: Page,
    title: str,
    footnote: str,
    keys: Sequence[Line2D],
    quantity: str,
    draw: Callable[[Panel, int, int], Ends],
) -> Figure:
    """A whole figure over seq_len, log-log: panels, lines, and their names at their ends.

    Args:
        page: The page.
        title: As for `make_panels`.
        footnote: As there.
        keys: As there.
        quantity: What the vertical axes show, with its unit.
        draw: Draws the lines of a panel, given its block size and number of KV heads.
    """
    seq_lens = sorted({int(n) for n in page.rows["seq_len"]})
    figure, panels = make_panels(page, title, footnote, keys)
    drawn = []
    lowest: dict[int, Panel] = {}
    leftmost: dict[int, Panel] = {}
    for panel, block, heads in panels:
        if page.of(block, heads).empty:  # a sweep need not have every pair
            panel.set_axis_off()
            panel.set_title("", loc="left")
            continue
        ends = draw(panel, block, heads)
        log_axes(panel, seq_lens)
        drawn.append((panel, ends))
        lowest[block] = panel
        leftmost.setdefault(heads, panel)
    for panel in lowest.values():
        panel.set_xlabel(_OVER)
        panel.xaxis.set_tick_params(labelbottom=True)
    for panel in leftmost.values():
        panel.set_ylabel(quantity)
        panel.yaxis.set_tick_params(labelleft=True)
    finish(figure, drawn)
    return figure


def label_in() -> float:
    """The least distance of two names at the ends of lines, in inches."""
    return look().name_pt * _LABEL_EM / 72


def provenance(info: RunInfo, clock: str) -> str:
    """Where a figure's numbers come from: machine, software, day, clock, caches."""
    environment = info.environment
    return (
        f"{environment.device_name}, {environment.usable_cpus} CPUs, torch {environment.torch}, "
        f"{info.created[:10]}; {clock} clock, {info.cache} caches"
    )


def by_clock(title: str, clock: str) -> str:
    """A title that says which clock is meant; of the wall's, as of most figures, it is not said."""
    return title if clock == "wall" else f"{title}, {clock} clock"


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
    """Make it log-log, with ticks in plain numbers, and room for names right of the last point."""
    first, last = min(seq_lens), max(seq_lens)
    panel.set_xscale("log", base=2)
    panel.set_yscale("log")
    span = math.log(last / first) or 1.0
    grid = panel.get_gridspec()
    room = 0.42 if grid is not None and grid.ncols > 1 else 0.25  # of its length, for names
    named = not panel.figure.legends
    panel.set_xlim(first * 0.85, last * (math.exp(room * span) if named else 1.18))
    ticks = sorted(seq_lens)[:: 3 if len(seq_lens) > 8 else 1]  # noqa: PLR2004 - legible
    panel.set_xticks(ticks, [f"{t:,}" for t in ticks])
    panel.xaxis.set_minor_formatter(NullFormatter())
    low, high = panel.get_ylim()
    # Within two decades powers of ten alone leave a reader without a scale.
    subs = (1.0,) if high / low > 100 else (1.0, 2.0, 5.0)  # noqa: PLR2004
    panel.yaxis.set_major_locator(LogLocator(10, subs=subs, numticks=12))
    panel.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:,.10g}"))
    panel.yaxis.set_minor_formatter(NullFormatter())


def key_of(strategy: str, label: str = "") -> Line2D:
    """A strategy's line, for a legend, by the strategy's name without its op if no other."""
    return Line2D([], [], label=label or strategy.partition(".")[2], **line(strategy))


def copy_key(label: str) -> Line2D:
    """The line of a copy, for a legend."""
    return Line2D([], [], label=label, color=look().floor, linestyle="--", linewidth=1.1)


def draw_line(
    panel: Panel, strategy: str, x: Floats, middle: Floats, low: Floats, high: Floats
) -> None:
    """Draw a strategy's line with the band of its interval, all of one length."""
    panel.plot(x, middle, **line(strategy))
    panel.fill_between(x, low, high, color=look().colour(strategy), alpha=0.25, linewidth=0)


def finish(figure: Figure, drawn: Sequence[tuple[Panel, Ends]]) -> None:
    """Lay the figure out and name the lines at their ends; nothing may be added afterwards.

    A figure with a legend has the names there.

    Args:
        figure: What `make_panels` gave, with all of its lines.
        drawn: Its panels with the ends of their lines.
    """
    named = [(panel, _names(panel, ends)) for panel, ends in drawn if not figure.legends]
    shown = [panel for panel in figure.axes if panel.axison]
    minor = [(panel, panel.yaxis.get_minor_locator()) for panel in shown]
    for panel, _ in minor:
        panel.yaxis.set_minor_locator(NullLocator())
    engine = figure.get_layout_engine()
    if engine is not None:
        engine.execute(figure)
    figure.set_layout_engine("none")
    # How far apart names have to be is known once a panel has its height.
    for panel, names in named:
        _place(panel, names)
    for panel, locator in minor:
        _mark_minor_ticks(figure, panel, locator)
    _thin_ticks(figure)


def _thin_ticks(figure: Figure) -> None:
    """Leave out of the numbers below a panel those that would overlap the one before."""
    renderer = renderer_of(figure)
    for panel in figure.axes:
        labels, end = panel.get_xticklabels(), -math.inf
        if not any(label.get_visible() for label in labels):
            continue  # one above another has its numbers below that
        for label in labels:
            box = label.get_window_extent(renderer)
            if box.x0 < end:
                label.set_text("")
            else:
                end = box.x1 + _BETWEEN_TICKS * box.height
        panel.set_xticks(panel.get_xticks(), [label.get_text() for label in labels])


def _mark_minor_ticks(figure: Figure, panel: Panel, locator: Locator) -> None:
    """Draw the minor ticks of an axis at once.

    As ticks of its own they would be five artists each, and more than half of a figure's time.
    Shorter than major ticks and without labels, they change nothing of the layout.
    """
    panel.yaxis.set_minor_locator(locator)
    heights = panel.yaxis.get_minorticklocs()
    panel.yaxis.set_minor_locator(NullLocator())
    low, high = panel.get_ylim()
    inside = heights[(heights >= low) & (heights <= high)]
    marker: Any = TICKLEFT
    ticks = Line2D(
        np.zeros_like(inside),
        inside,
        transform=panel.get_yaxis_transform(),
        linestyle="none",
        marker=marker,
        markersize=mpl.rcParams["ytick.minor.size"],
        markeredgewidth=mpl.rcParams["ytick.minor.width"],
        color=mpl.rcParams["ytick.color"],
    )
    figure.add_artist(ticks)  # a panel's own lines are its curves


@dataclass(frozen=True, slots=True)
class _Name:
    """A name at the end of a line, and where that is in the axes, from 0 to 1."""

    x: float
    y: float
    text: Text
    colour: str


def _names(panel: Panel, ends: Ends) -> list[_Name]:
    """Write each line's name at its end, the lowest first; `_place` moves them apart."""
    panel.autoscale_view()  # fixes the limits that names are placed by
    to_axes = panel.transData + panel.transAxes.inverted()
    spots = sorted(
        ((*to_axes.transform((x, y)), text, colour) for x, y, text, colour in ends),
        key=lambda spot: spot[1],
    )
    found = []
    for x, y, text, colour in spots:
        name = panel.text(
            x + 0.025,
            min(max(y, 0.0), 1.0),
            text,
            transform=panel.transAxes,
            color=legible(colour, look().background),
            fontsize=look().name_pt,
            va="center",
        )
        found.append(_Name(x, y, name, colour))
    return found


def _place(panel: Panel, names: Sequence[_Name]) -> None:
    """Move names apart where they overlap, within the panel, and tie each to its line."""
    height_in = panel.get_window_extent().height / panel.figure.dpi
    # Of the lowest name half a gap is above the axis, of the highest a quarter below the top.
    gap = min(label_in() / height_in, 1 / (len(names) - 0.25)) if names else 0.0
    heights = spread([name.y for name in names], gap)
    ceiling = 1.0 - gap / 4  # above it a name would be in the title
    for i in reversed(range(len(heights))):
        heights[i] = min(heights[i], ceiling)
        ceiling = heights[i] - gap
    floor = gap / 2  # below it a name would be struck through by the axis
    for i, height in enumerate(heights):
        heights[i] = max(height, floor)
        floor = heights[i] + gap
    for name, height in zip(names, heights, strict=True):
        name.text.set_y(height)
        # An annotation's arrow would be cut by the label's box, curve by curve, at every drawing.
        leader = Path([(name.x, name.y), (name.x + 0.02, height)])
        panel.add_artist(
            PathPatch(
                leader,
                linewidth=0.5,
                clip_on=False,
                transform=panel.transAxes,
                color=name.colour,
            )
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
