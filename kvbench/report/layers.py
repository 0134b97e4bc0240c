"""Where hoisting pays: the cost of a step per layer, over the layers of a model."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib.axes import Axes as Panel
from matplotlib.figure import Figure

from kvbench.analysis.frame import timed
from kvbench.analysis.ranking import step_costs
from kvbench.analysis.statistics import ratio_interval
from kvbench.report.alternative import ends as ends_of
from kvbench.report.frames import framed
from kvbench.report.panels import (
    draw_line,
    finish,
    key_of,
    log_axes,
    named_settings,
    provenance,
)
from kvbench.report.setting import describe
from kvbench.report.style import styled
from kvbench.results import RunInfo
from kvbench.units import MICROSECONDS_PER_SECOND as US
from kvbench.units import format_seconds

LAYERS = tuple(2**n for n in range(8))
_TICKS = (1, 2, 8, 32, 128)
_PANEL_IN = 2.6
_FLAT = 1.5
"""The least ratio of an axis' ends: below it noise would look like a finding."""


@dataclass(frozen=True, slots=True)
class LayersPage:
    """The rows of one figure: runs and prepares of a setting at a few seq_lens."""

    name: str
    """Distinguishes the figure's file; "" for the run's main one."""
    subtitle: str
    rank: tuple[int, int]
    """As `panels.Outline.rank`."""
    seq_lens: tuple[int, ...]
    rows: pd.DataFrame


def layers_pages(frame: pd.DataFrame) -> Iterator[LayersPage]:
    """One page for each setting in which something is prepared once a step.

    Args:
        frame: Rows of one op.
    """
    rows = frame[frame["tokens"] > 0]
    rows = pd.concat([timed(rows, phase) for phase in ("run", "prepare")])
    prepared = (rows["phase"] == "prepare").to_numpy()

    def shows(places: npt.NDArray[np.intp]) -> bool:
        return bool(prepared[places].any())

    for stem, shared, far, places in named_settings(rows, ("seq_len",), shows):
        own = rows.take(places)
        seq_lens = few(own.loc[own["phase"] == "run", "seq_len"])
        shown = own[own["seq_len"].isin(seq_lens)]
        yield LayersPage(stem, describe(shared, ("head_dim",)), (far, 0), seq_lens, shown)


def few(values: "pd.Series[int]") -> tuple[int, ...]:
    """The least, the middle one and the most of some values; fewer if there are no three."""
    known = sorted({int(value) for value in values})
    return tuple(dict.fromkeys((known[0], known[len(known) // 2], known[-1]))) if known else ()


def per_layer(rows: pd.DataFrame) -> pd.DataFrame:
    """The cost of a step per layer: (prepare + L x run) / L.

    Args:
        rows: Runs and prepares.

    Returns:
        One row per case, strategy and number of layers, with the columns layers, layer_s,
        layer_low_s and layer_high_s: the median over rounds, in seconds, and its interval.
    """
    parts = []
    for layers in LAYERS:
        costs = step_costs(rows, layers)
        found = [
            ratio_interval(samples, [layers] * len(samples)) for samples in costs["step_samples_s"]
        ]
        parts.append(
            costs.assign(
                layers=layers,
                layer_s=[each.median for each in found],
                layer_low_s=[each.low for each in found],
                layer_high_s=[each.high for each in found],
            )
        )
    return pd.concat(parts, ignore_index=True)


def layers_figure(page: LayersPage, op: str, info: RunInfo) -> Figure:
    """The cost of a step per layer over its layers, log-log: a panel for each seq_len.

    A line falls as far as prepare is shared by more layers, and is flat where run is all.

    Args:
        page: The rows.
        op: The op.
        info: The run's device and date.
    """
    footnote = (
        f"{provenance(info, 'wall')}; median over rounds with its 95 % interval. A line falls "
        "where prepare, paid once a step, is shared by more layers; what prepares nothing is flat. "
        "Each panel has a scale of its own."
    )
    costs = per_layer(page.rows)
    last = costs[costs["layers"] == LAYERS[-1]].groupby("strategy")["layer_s"].max()
    with styled():
        keys = [key_of(str(name)) for name in last.sort_values(ascending=False).index]
        figure = framed(_title(op), page.subtitle, footnote, _PANEL_IN, keys)
        panels = figure.subplots(1, len(page.seq_lens), sharex=True, squeeze=False)[0]
        for panel, seq_len in zip(panels, page.seq_lens, strict=True):
            _draw(panel, costs[costs["seq_len"] == seq_len])
            _not_too_flat(panel)
            log_axes(panel, LAYERS)
            panel.set_xticks(_TICKS, [str(n) for n in _TICKS])
            panel.set_title(f"seq_len {seq_len:,}", loc="left")
            panel.set_xlabel("layers L of a step")
        panels[0].set_ylabel("µs per layer")
        finish(figure, ())
    return figure


def layers_alt(page: LayersPage, op: str) -> str:
    """The figure in a sentence."""
    seq_len = page.seq_lens[0]
    costs = per_layer(page.rows[page.rows["seq_len"] == seq_len])
    lowest = ends_of(costs, "layers", "layer_s", format_seconds)
    sizes = ", ".join(f"{n:,}" for n in page.seq_lens)
    return (
        f"{_title(op)}, for seq_len {sizes}, {costs['strategy'].nunique()} lines each "
        f"({page.subtitle}): of seq_len {seq_len:,} {lowest}."
    )


def _title(op: str) -> str:
    return f"{op}: cost of a step per layer, (prepare + L x run) / L, over its layers L"


def _draw(panel: Panel, costs: pd.DataFrame) -> None:
    for strategy, own in costs.groupby("strategy", sort=True):
        points, name = own.sort_values("layers"), str(strategy)
        x = points["layers"].to_numpy(dtype=float)
        y, low, high = (points[f"layer{end}_s"].to_numpy() * US for end in ("", "_low", "_high"))
        draw_line(panel, name, x, y, low, high)


def _not_too_flat(panel: Panel) -> None:
    low, high = panel.get_ylim()
    if 0 < low < high < low * _FLAT:
        middle = (low * high) ** 0.5
        panel.set_ylim(middle / _FLAT**0.5, middle * _FLAT**0.5)
