"""What the gather costs: gather + attention beside attention that reads blocks in place."""

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib.axes import Axes as Panel
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from kvbench.analysis.gathering import beside_gathering
from kvbench.report.panels import FOOTNOTE_COLUMNS, chunks, named_settings, numbered, provenance
from kvbench.report.setting import describe
from kvbench.report.style import WIDTH_IN, colour, styled
from kvbench.results import RunInfo
from kvbench.units import format_seconds

_FREE = ("seq_len", "batch")
_GATHER_COLOUR = "#0072B2"
_ATTENTION_COLOUR = "#9CC9E8"
_GROUP_WIDTH = 0.84
_HEIGHT_IN = 4.0
_TITLE_IN = 0.4
_ROOM = 12
"""Per cent of the reference that a bar has to be high to have its number inside."""


@dataclass(frozen=True, slots=True)
class Shares:
    """The rows of one figure: a setting's, as `beside_gathering` gives them."""

    name: str
    subtitle: str
    rank: tuple[int, int]
    batches: tuple[int, ...]
    rows: pd.DataFrame


def pages(frame: pd.DataFrame, clock: str) -> Iterator[Shares]:
    """One page for each setting of the axes that no panel shows, three batch sizes on each.

    Args:
        frame: Rows of the op attend.
        clock: The clock of all times.
    """
    beside = beside_gathering(frame, clock)
    is_in_place = (beside["strategy"] != beside["reference"]).to_numpy()

    def shows(places: npt.NDArray[np.intp]) -> bool:
        return bool(is_in_place[places].any())

    for stem, shared, far, places in named_settings(beside, _FREE, shows):
        rows = beside.take(places)
        for number, batches in enumerate(chunks(np.unique(rows["batch"]))):
            yield Shares(
                name=numbered(stem, number),
                subtitle=describe(shared, ("head_dim", "num_kv_heads")),
                rank=(far, number),
                batches=batches,
                rows=rows[rows["batch"].isin(batches)],
            )


def gather_share_figure(page: Shares, clock: str, info: RunInfo) -> Figure:
    """Bars by context, a panel for each batch: the time of gather + attention is 100 %.

    The first bar of each group is the fastest attention that gathers, the gather's own part below;
    the others read blocks in place. Whiskers are intervals of ratios within rounds.

    Args:
        page: The rows.
        clock: Their clock.
        info: The run's device and date.
    """
    others = sorted(set(page.rows["strategy"]) - set(page.rows["reference"]))
    references = sorted(name.partition(".")[2] for name in set(page.rows["reference"]))
    footnote = (
        f"{provenance(info, clock)}. 100 %: the fastest attention that gathers ("
        f"{' or '.join(references)}), whose time is below, and whose gather is timed by itself as "
        "well. Median ratio within rounds with its 95 % interval."
    )
    with styled():
        figure = Figure(figsize=(WIDTH_IN, _HEIGHT_IN), layout="constrained")
        panels = figure.subplots(1, len(page.batches), sharey=True, squeeze=False)[0]
        title = "Attention over a paged cache: gather + attention, and reading blocks in place"
        # The third line is the legend's.
        figure.suptitle(f"{title}\n{page.subtitle}\n ", fontsize=10.5, x=0.01, ha="left")
        figure.supxlabel(
            textwrap.fill(footnote, FOOTNOTE_COLUMNS),
            fontsize=7.5,
            color="#404040",
            x=0.01,
            ha="left",
        )
        for panel, batch in zip(panels, page.batches, strict=True):
            _draw(panel, page.rows[page.rows["batch"] == batch], others)
            panel.set_title(f"batch {batch}", loc="left")
            panel.set_xlabel("seq_len (context); time of 100 %")
        panels[0].set_ylabel("time, % of gather + attention")
        keys = [
            Patch(color=_GATHER_COLOUR, label="gather"),
            Patch(color=_ATTENTION_COLOUR, label="attention over the copies"),
            *(Patch(color=colour(name), label=name.partition(".")[2]) for name in others),
        ]
        figure.legend(
            handles=keys,
            loc="upper left",
            bbox_to_anchor=(0.0, 1 - _TITLE_IN / _HEIGHT_IN),
            ncols=len(keys),
            fontsize=8.5,
            frameon=False,
        )
        highest = max(100.0, 100 * float(page.rows["ratio"].max()))
        panels[0].set_ylim(0, 1.08 * highest)  # whatever an interval reaches up to
    return figure


def _draw(panel: Panel, rows: pd.DataFrame, others: Sequence[str]) -> None:
    contexts = sorted(set(rows["seq_len"]))
    width = _GROUP_WIDTH / (1 + len(others))
    labels = []
    for place, context in enumerate(contexts):
        here = rows[rows["seq_len"] == context].set_index("strategy")
        left = place - _GROUP_WIDTH / 2 + width / 2
        reference = here.loc[here["reference"].iloc[0]]
        share = float(reference["share"])
        panel.bar(left, 100 * share, width, color=_GATHER_COLOUR)
        panel.bar(left, 100 * (1 - share), width, bottom=100 * share, color=_ATTENTION_COLOUR)
        _number(panel, left, 100 * share)
        labels.append(f"{context:,}\n{format_seconds(reference['median_s'])}")
        for number, name in enumerate(others, 1):
            if name not in here.index:
                continue
            own, x = here.loc[name], left + number * width
            middle, low, high = (100 * float(own[f"ratio{end}"]) for end in ("", "_low", "_high"))
            panel.bar(x, middle, width, color=colour(name))
            panel.errorbar(x, middle, [[middle - low], [high - middle]], color="#808080", lw=0.8)
            _number(panel, x, middle)
    panel.set_xticks(range(len(contexts)), labels)
    panel.grid(visible=False, axis="x")
    panel.set_axisbelow(True)


def _number(panel: Panel, x: float, height: float) -> None:
    """Write a bar's height into it, or above it where it is low."""
    inside = height >= _ROOM
    panel.text(
        x,
        height / 2 if inside else height + 1,
        f"{height:.0f}",
        ha="center",
        va="center" if inside else "bottom",
        fontsize=7.5,
        color="white" if inside else "#202020",
    )
