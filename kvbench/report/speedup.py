"""Speed-up over the loop: how many times faster, from ratios within each round."""

import pandas as pd
from matplotlib.axes import Axes as Panel
from matplotlib.figure import Figure

from kvbench.report.alternative import of_lines
from kvbench.report.panels import (
    Ends,
    Page,
    by_clock,
    draw_line,
    drawn_panels,
    key_of,
    provenance,
)
from kvbench.report.style import line, look, styled
from kvbench.results import RunInfo
from kvbench.units import significant


def speedup_figure(page: Page, op: str, reference: str, clock: str, info: RunInfo) -> Figure:
    """Speed-up over `reference` by seq_len, log-log, with the interval of the paired ratio.

    Args:
        page: Rows with the columns of `analysis.speedup.speedups`.
        op: The op.
        reference: The strategy that is 1.
        clock: The clock of all rows.
        info: The run's device and date.
    """
    footnote = (
        f"{provenance(info, clock)}; median ratio within rounds with its 95 % interval; "
        "run alone, without prepare."
    )

    def draw(panel: Panel, block: int, heads: int) -> Ends:
        rows = page.of(block, heads)
        # As far as the panel's own lines go: further on it would strike through their names.
        first, last = float(rows["seq_len"].min()), float(rows["seq_len"].max())
        panel.plot([first, last], [1, 1], **{**line(reference), "marker": ""})
        lines = rows[rows["strategy"] != reference].groupby("strategy", sort=True)
        return [
            (last, 1.0, f"{reference} = 1", look().colour(reference)),
            *(_draw_line(panel, str(name), own) for name, own in lines),
        ]

    with styled():
        others = sorted(set(page.rows["strategy"]) - {reference})
        keys = [*map(key_of, others), key_of(reference, f"{reference} = 1")]
        title = by_clock(_title(op, reference), clock)
        return drawn_panels(page, title, footnote, keys, "times faster", draw)


def speedup_alt(page: Page, op: str, reference: str) -> str:
    """The figure in a sentence."""

    def words(ratio: float) -> str:
        return f"{significant(ratio)}x"

    return of_lines(_title(op, reference), page, "speedup", words, highest=True)


def _title(op: str, reference: str) -> str:
    return f"{op}: speed-up over {reference}"


def _draw_line(panel: Panel, strategy: str, rows: pd.DataFrame) -> tuple[float, float, str, str]:
    points = rows.sort_values("seq_len")
    x = points["seq_len"].to_numpy(dtype=float)
    y, low, high = (points[f"speedup{end}"].to_numpy() for end in ("", "_low", "_high"))
    draw_line(panel, strategy, x, y, low, high)
    return x[-1], y[-1], strategy.partition(".")[2], look().colour(strategy)
