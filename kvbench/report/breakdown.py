"""Where a call's time goes by the fitted model: the call, its launches, its bytes."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib.axes import Axes as Panel
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from kvbench.analysis.breakdown import broken_down
from kvbench.analysis.fit import Refusal
from kvbench.report.frames import framed
from kvbench.report.layers import few
from kvbench.report.panels import named_settings, provenance
from kvbench.report.setting import describe
from kvbench.report.style import look, part, styled
from kvbench.results import RunInfo
from kvbench.units import format_seconds

_PARTS = {"call": "per call", "launches": "launches", "bytes": "bytes"}
_BAR_IN = 0.2
_FRAME_IN = 0.75
_LEAST_IN = 1.4
_MOST_SHARE = 200.0
"""Per cent that the axis reaches to: of a model that says more the bar is cut, and says so."""


@dataclass(frozen=True, slots=True)
class BreakdownPage:
    """The rows of one figure, as `analysis.breakdown.broken_down` gives them."""

    name: str
    """Distinguishes the figure's file; "" for the run's main one."""
    subtitle: str
    rank: tuple[int, int]
    """As `panels.Outline.rank`."""
    seq_lens: tuple[int, ...]
    rows: pd.DataFrame
    refused: tuple[Refusal, ...]


def breakdown_pages(frame: pd.DataFrame, op: str) -> Iterator[BreakdownPage]:
    """One page for each setting with two sizes or more, of strategies that have a fit.

    Args:
        frame: Rows of a run.
        op: The op.
    """
    parts, refused = broken_down(frame, op)
    seq_lens = parts["seq_len"].to_numpy()

    def shows(places: npt.NDArray[np.intp]) -> bool:
        return len(np.unique(seq_lens[places])) > 1

    for stem, shared, far, places in named_settings(parts, ("seq_len",), shows):
        own = parts.take(places)
        sizes = few(own["seq_len"])
        shown = own[own["seq_len"].isin(sizes)]
        subtitle = describe(shared, ("head_dim",))
        yield BreakdownPage(stem, subtitle, (far, 0), sizes, shown, refused)


def breakdown_figure(page: BreakdownPage, op: str, info: RunInfo) -> Figure:
    """Stacked bars, a panel for each seq_len: the model's parts in % of the measured median.

    Times of strategies are decades apart: as shares all can be read, and the measured median, the
    mark at 100 %, is in words at the right.

    Args:
        page: The rows.
        op: The op.
        info: The run's device and date.
    """
    footnote = (
        f"{provenance(info, 'wall')}. The model: time = a per call + b x launches + bytes / "
        "bandwidth, fitted to all sizes of a strategy. At 100 % the measured median, whose time is "
        "at the right: what is short of it, or beyond, the model does not explain."
    )
    if not page.rows["split"].all():
        footnote += (
            " Where every call launches as much, or it is not known how much, both are one part."
        )
    if page.refused:
        footnote += f" Not fitted: {reasons(page.refused)}."
    names = _fastest_first(page)
    with styled():
        height = max(_LEAST_IN, len(names) * _BAR_IN + _FRAME_IN)
        figure = framed(_title(op), page.subtitle, footnote, height, _keys(page.rows))
        panels = figure.subplots(1, len(page.seq_lens), sharex=True, sharey=True, squeeze=False)[0]
        for panel, seq_len in zip(panels, page.seq_lens, strict=True):
            _draw(panel, page.rows[page.rows["seq_len"] == seq_len], names)
            panel.set_title(f"seq_len {seq_len:,}", loc="left")
            panel.set_xlabel("% of the median time")
        modelled = page.rows[["call_s", "launches_s", "bytes_s"]].sum(axis="columns")
        most = 100 * float((modelled / page.rows["median_s"]).max())
        panels[0].set_xlim(0, min(max(104.0, 1.04 * most), _MOST_SHARE))
        panels[0].set_ylim(len(names) - 0.4, -0.6)
        panels[0].set_yticks(range(len(names)), [name.partition(".")[2] for name in names])
    return figure


def breakdown_alt(page: BreakdownPage, op: str) -> str:
    """The figure in a sentence."""
    largest = page.rows[page.rows["seq_len"] == page.seq_lens[-1]]
    shares = (largest["bytes_s"] / largest["median_s"]).median()
    sizes = ", ".join(f"{n:,}" for n in page.seq_lens)
    return (
        f"{_title(op)}, stacked bars for seq_len {sizes}, {page.rows['strategy'].nunique()} "
        f"strategies ({page.subtitle}): at seq_len {page.seq_lens[-1]:,} bytes are "
        f"{100 * shares:.0f} % of the measured time in the median of the strategies."
    )


def reasons(refused: Sequence[Refusal]) -> str:
    """Why strategies have no fit, in short: "loop (launches and bytes grow together)"."""
    names: dict[str, list[str]] = {}
    for refusal in refused:
        why = re.split(r" \(|; ", refusal.reason, maxsplit=1)[0]
        names.setdefault(why, []).append(refusal.name.partition(".")[2])
    return "; ".join(f"{', '.join(sorted(own))} ({why})" for why, own in names.items())


def _title(op: str) -> str:
    return f"{op}: what a call's time goes to by the fitted model"


def _fastest_first(page: BreakdownPage) -> list[str]:
    """By the size that most strategies have."""
    sizes = page.rows["seq_len"].value_counts(sort=True)
    at = page.rows[page.rows["seq_len"] == sizes.index[0]].sort_values("median_s")
    rest = sorted(set(page.rows["strategy"]) - set(at["strategy"]))
    return [*at["strategy"], *rest]


def _keys(rows: pd.DataFrame) -> list[Patch | Line2D]:
    apart, joined = bool(rows["split"].any()), not bool(rows["split"].all())
    keys: list[Patch | Line2D] = []
    if apart:
        keys += [Patch(**part(name), label=_PARTS[name]) for name in ("call", "launches")]
    if joined:
        keys.append(Patch(**part("both"), label="per call + launches"))
    keys.append(Patch(**part("bytes"), label=_PARTS["bytes"]))
    mark: dict[str, Any] = {
        "linestyle": "none",
        "marker": "|",
        "markersize": 9,
        "markeredgewidth": 1.6,
    }
    return [*keys, Line2D([], [], color=look().ink, label="measured median", **mark)]


def _draw(panel: Panel, rows: pd.DataFrame, names: Sequence[str]) -> None:
    now = look()
    for _, row in rows.iterrows():
        y, left = names.index(row["strategy"]), 0.0
        for name in _PARTS:
            width = 100 * float(row[f"{name}_s"] / row["median_s"])
            filled = part(name if row["split"] or name != "call" else "both")
            panel.barh(y, width, 0.72, left=left, **filled)
            left += width
        for width, own in ((3.2, now.background), (1.6, now.ink)):  # on any bar it is seen
            panel.plot([100], [y], marker="|", markersize=10, markeredgewidth=width, color=own)
        said = format_seconds(float(row["median_s"]))
        if left > _MOST_SHARE:
            said += f" ({left:.0f} %)"
        panel.text(
            1.02,
            y,
            said,
            transform=panel.get_yaxis_transform(),
            va="center",
            fontsize=now.small_pt,
            color=now.ink,
        )
    panel.grid(visible=False, axis="y")
    panel.set_axisbelow(True)
    panel.tick_params(axis="y", length=0)
