"""Whole decode steps as figures: tokens per second over context, and prepare over layers."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib.axes import Axes as Panel
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from kvbench.analysis.steps import per_token_and_layer, split, throughput
from kvbench.report.alternative import ends
from kvbench.report.frames import framed
from kvbench.report.panels import (
    chunks,
    draw_line,
    log_axes,
    named_settings,
    numbered,
    provenance,
)
from kvbench.report.setting import describe
from kvbench.report.style import line, look, part, styled
from kvbench.results import RunInfo
from kvbench.units import MICROSECONDS_PER_SECOND as US
from kvbench.units import significant

_RATES = "Decode steps of a model: tokens per second"
_AMORTISED = "Decode steps of a model: what prepare, write and attend take of each token and layer"
_PARTS = ("prepare", "write", "attend")
_LINES_IN = 3.0
_COLUMNS = 4
_PANEL_IN = 1.9


@dataclass(frozen=True, slots=True)
class StepPage:
    """The rows of one figure."""

    name: str
    """Distinguishes the figure's file; "" for the run's main one."""
    subtitle: str
    rank: tuple[int, int]
    """As `panels.Outline.rank`."""
    rows: pd.DataFrame
    panels: tuple[object, ...]
    """What each panel shows: batches, or strategies."""


def throughput_pages(frame: pd.DataFrame) -> Iterator[StepPage]:
    """One page for each setting with two contexts or more, three batches on each.

    Args:
        frame: The rows of a run.
    """
    for stem, subtitle, far, rows in _settings(throughput(frame), "seq_len", "batch"):
        for number, batches in enumerate(chunks(np.unique(rows["batch"]))):
            shown = rows[rows["batch"].isin(batches)]
            yield StepPage(numbered(stem, number), subtitle, (far, number), shown, batches)


def amortisation_pages(frame: pd.DataFrame) -> Iterator[StepPage]:
    """One page for each setting with two numbers of layers or more.

    Args:
        frame: The rows of a run.
    """
    parts = per_token_and_layer(split(frame))
    for name, subtitle, far, rows in _settings(parts, "num_layers"):
        yield StepPage(name, subtitle, (far, 0), rows, tuple(sorted(set(rows["strategy"]))))


def _settings(
    frame: pd.DataFrame, axis: str, *free: str
) -> Iterator[tuple[str, str, int, pd.DataFrame]]:
    """Of each setting with two values of an axis: name, subtitle, how far from the main, rows."""
    values = frame[axis].to_numpy()

    def is_line(places: npt.NDArray[np.intp]) -> bool:
        return len(np.unique(values[places])) > 1

    for stem, shared, far, places in named_settings(frame, (axis, *free), is_line):
        yield stem, describe(shared), far, frame.take(places)


def throughput_figure(page: StepPage, info: RunInfo) -> Figure:
    """Tokens per second over context, log-log: a panel for each batch, a line for each pair.

    Args:
        page: One of `throughput_pages`.
        info: The run's device and date.
    """
    names = _fastest_first(page.rows)
    contexts = sorted({int(n) for n in page.rows["seq_len"]})
    footnote = (
        f"{provenance(info, 'wall')}. Of whole steps: prepare, and all layers of the model with "
        "all that is in them. Median over rounds with its 95 % interval."
    )
    with styled():
        keys = [Line2D([], [], label=name.partition(".")[2], **line(name)) for name in names]
        figure = framed(_RATES, page.subtitle, footnote, _LINES_IN, keys)
        axes = figure.subplots(1, len(page.panels), sharex=True, sharey=True, squeeze=False)[0]
        for panel, batch in zip(axes, page.panels, strict=True):
            _draw_rates(panel, page.rows[page.rows["batch"] == batch])
            panel.set_title(f"batch {batch}", loc="left")
            panel.set_xlabel("seq_len (context)")
        for panel in axes:
            log_axes(panel, contexts)
            panel.set_xlim(contexts[0] * 0.85, contexts[-1] * 1.18)
        axes[0].set_ylabel("tokens per second")
    return figure


def throughput_alt(page: StepPage) -> str:
    """The figure in a sentence."""

    def words(rate: float) -> str:
        return f"{significant(rate)} tokens per second"

    first = page.rows[page.rows["batch"] == page.panels[0]]
    said = ends(first, "seq_len", "tokens_per_s", words, highest=True)
    return (
        f"{_RATES} over seq_len, a panel for each batch, {page.rows['strategy'].nunique()} lines "
        f"({page.subtitle}): of batch {page.panels[0]} {said}."
    )


def amortisation_alt(page: StepPage) -> str:
    """The figure in a sentence."""
    shares = page.rows["prepare_s"] / page.rows[[f"{name}_s" for name in _PARTS]].sum(axis=1)
    layers = page.rows["num_layers"]
    few, many = (shares[layers == end].median() for end in (layers.min(), layers.max()))
    return (
        f"{_AMORTISED}, stacked bars over layers for {len(page.panels)} pairs ({page.subtitle}): "
        f"prepare is {100 * few:.0f} % of prepare, write and attend for layers={layers.min()} "
        f"and {100 * many:.0f} % for layers={layers.max()}, in the median of the pairs."
    )


def _fastest_first(rows: pd.DataFrame) -> list[str]:
    means = np.log(rows["tokens_per_s"]).groupby(rows["strategy"]).mean()
    return [str(name) for name in means.sort_values(ascending=False).index]


def _draw_rates(panel: Panel, rows: pd.DataFrame) -> None:
    for strategy, own in rows.groupby("strategy", sort=True):
        points, name = own.sort_values("seq_len"), str(strategy)
        x = points["seq_len"].to_numpy(dtype=float)
        y, low, high = (points[f"tokens_per_s{end}"].to_numpy() for end in ("", "_low", "_high"))
        draw_line(panel, name, x, y, low, high)


def amortisation_figure(page: StepPage, info: RunInfo) -> Figure:
    """Bars by the layers of the model: prepare's part of a layer, then write and attend.

    The rest of a layer, the same in every pair, would dwarf them.

    A panel for each pair, with a scale of its own: pairs are compared in the other figure.

    Args:
        page: One of `amortisation_pages`.
        info: The run's device and date.
    """
    lines = math.ceil(len(page.panels) / _COLUMNS)
    footnote = (
        f"{provenance(info, 'wall')}. Median times for each token and layer, without the rest of "
        "the model; prepare, paid once a step, is spread over its layers. Each panel has a scale "
        "of its own."
    )
    with styled():
        keys = [Patch(**part(name), label=name) for name in _PARTS]
        figure = framed(_AMORTISED, page.subtitle, footnote, lines * _PANEL_IN, keys)
        columns = min(_COLUMNS, len(page.panels))
        axes = figure.subplots(lines, columns, squeeze=False).flatten()
        for panel in axes[len(page.panels) :]:
            panel.set_visible(False)
        for panel, strategy in zip(axes, page.panels, strict=False):
            _draw_parts(panel, page.rows[page.rows["strategy"] == strategy])
            write, plus, attend = str(strategy).partition(".")[2].partition("+")
            panel.set_title(f"{write}\n{plus}{attend}", loc="left", fontsize=look().name_pt)
        for panel in axes[::columns]:
            panel.set_ylabel("µs per token\nand layer")
        for panel in axes[max(len(page.panels) - columns, 0) : len(page.panels)]:
            panel.set_xlabel("layers")
    return figure


def _draw_parts(panel: Panel, rows: pd.DataFrame) -> None:
    points = rows.sort_values("num_layers")
    below = np.zeros(len(points))
    for name in _PARTS:
        heights = points[f"{name}_s"].to_numpy() * US
        panel.bar(range(len(points)), heights, 0.8, bottom=below, **part(name))
        below += heights
    panel.set_xticks(range(len(points)), [f"{n:,}" for n in points["num_layers"]])
    panel.grid(visible=False, axis="x")
    panel.set_axisbelow(True)
