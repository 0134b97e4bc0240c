"""What the gather costs: gather + attention beside attention that reads blocks in place."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib.axes import Axes as Panel
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from kvbench.analysis.gathering import beside_gathering
from kvbench.report.frames import framed
from kvbench.report.palette import ink_on
from kvbench.report.panels import by_clock, chunks, named_settings, numbered, provenance
from kvbench.report.setting import describe
from kvbench.report.style import bar_of, look, part, styled
from kvbench.results import RunInfo
from kvbench.units import format_seconds

_FREE = ("seq_len", "batch")
_TITLE = "Attention over a paged cache: gather + attention, and reading blocks in place"
_GROUP_WIDTH = 0.84
_HEIGHT_IN = 2.8
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
        keys = [
            Patch(**part("gather"), label="gather"),
            Patch(**part("attention"), label="attention over the copies"),
            *(Patch(**bar_of(name), label=name.partition(".")[2]) for name in others),
        ]
        title = by_clock(_TITLE, clock)
        figure = framed(title, page.subtitle, footnote, _HEIGHT_IN, keys)
        panels = figure.subplots(1, len(page.batches), sharey=True, squeeze=False)[0]
        for panel, batch in zip(panels, page.batches, strict=True):
            _draw(panel, page.rows[page.rows["batch"] == batch], others)
            panel.set_title(f"batch {batch}", loc="left")
            panel.set_xlabel("seq_len (context); time of 100 %")
        panels[0].set_ylabel("time, % of gather + attention")
        highest = max(100.0, 100 * float(page.rows["ratio"].max()))
        reached = 100 * float(page.rows["ratio_high"].max())
        # An interval is shown whole, unless it would leave the bars no more than half.
        panels[0].set_ylim(0, max(1.08 * highest, min(1.03 * reached, 2 * highest)))
    return figure


def gather_share_alt(page: Shares) -> str:
    """The figure in a sentence."""
    largest = page.rows[page.rows["seq_len"] == page.rows["seq_len"].max()]
    least = largest.loc[largest["ratio"].idxmin()]
    shares = page.rows["share"].dropna()
    return (
        f"{_TITLE}, bars by seq_len and batch ({page.subtitle}): the gather is "
        f"{100 * shares.min():.0f} to {100 * shares.max():.0f} % of the fastest that gathers, and "
        f"at seq_len {least['seq_len']:,} and batch {least['batch']} {least['strategy']} takes "
        f"{100 * least['ratio']:.0f} % of it."
    )


def _draw(panel: Panel, rows: pd.DataFrame, others: Sequence[str]) -> None:
    contexts = sorted(set(rows["seq_len"]))
    width = _GROUP_WIDTH / (1 + len(others))
    labels = []
    for place, context in enumerate(contexts):
        here = rows[rows["seq_len"] == context].set_index("strategy")
        left = place - _GROUP_WIDTH / 2 + width / 2
        reference = here.loc[here["reference"].iloc[0]]
        share = float(reference["share"])
        panel.bar(left, 100 * share, width, **part("gather"))
        panel.bar(left, 100 * (1 - share), width, bottom=100 * share, **part("attention"))
        gathered, rest = (part(name)["facecolor"] for name in ("gather", "attention"))
        _number(panel, left, 100 * share, gathered, rest)
        labels.append(f"{context:,}\n{format_seconds(reference['median_s'])}")
        for number, name in enumerate(others, 1):
            if name not in here.index:
                continue
            own, x = here.loc[name], left + number * width
            middle, low, high = (100 * float(own[f"ratio{end}"]) for end in ("", "_low", "_high"))
            panel.bar(x, middle, width, **bar_of(name))
            panel.errorbar(x, middle, [[middle - low], [high - middle]], color="#808080", lw=0.8)
            _number(panel, x, middle, look().colour(name), look().background)
    panel.set_xticks(range(len(contexts)), labels)
    panel.grid(visible=False, axis="x")
    panel.set_axisbelow(True)


def _number(panel: Panel, x: float, height: float, own: str, above: str) -> None:
    """Write a bar's height into it, or above it where it is low.

    Args:
        panel: The panel.
        x: The bar's middle.
        height: Its own.
        own: Its colour.
        above: The colour of what is above it.
    """
    inside = height >= _ROOM
    behind = own if inside else above
    hatched = look().patterned and behind != look().background
    panel.text(
        x,
        height / 2 if inside else height + 1,
        f"{height:.0f}",
        ha="center",
        va="center" if inside else "bottom",
        fontsize=look().small_pt,
        color=ink_on(behind),
        bbox={"facecolor": behind, "edgecolor": "none", "pad": 1.0} if hatched else None,
    )
