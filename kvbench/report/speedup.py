"""Speed-up over the loop: how many times faster, from ratios within each round."""

import pandas as pd
from matplotlib.axes import Axes as Panel
from matplotlib.figure import Figure

from kvbench.report.panels import Page, finish, log_axes, make_panels, provenance
from kvbench.report.style import colour, marker, styled
from kvbench.results import RunInfo


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
    seq_lens = sorted({int(n) for n in page.rows["seq_len"]})
    with styled():
        figure, panels = make_panels(page, f"{op}: speed-up over {reference}", footnote)
        drawn = []
        for panel, block, heads in panels:
            rows = page.rows[
                (page.rows["block_size"] == block) & (page.rows["num_kv_heads"] == heads)
            ]
            # As far as the panel's own lines go: further on it would strike through their names.
            first, last = float(rows["seq_len"].min()), float(rows["seq_len"].max())
            panel.plot([first, last], [1, 1], color=colour(reference))
            ends = [(last, 1.0, f"{reference} = 1", colour(reference))]
            others = rows[rows["strategy"] != reference].groupby("strategy", sort=True)
            ends += [_draw_line(panel, str(name), line) for name, line in others]
            log_axes(panel, seq_lens)
            drawn.append((panel, ends))
        for panel, _ in drawn[:: len(page.block_sizes)]:
            panel.set_ylabel("times faster")
        finish(figure, drawn)
    return figure


def _draw_line(panel: Panel, strategy: str, rows: pd.DataFrame) -> tuple[float, float, str, str]:
    points = rows.sort_values("seq_len")
    x = points["seq_len"].to_numpy(dtype=float)
    y = points["speedup"].to_numpy()
    panel.plot(x, y, marker=marker(strategy), color=colour(strategy))
    panel.fill_between(
        x,
        points["speedup_low"].to_numpy(),
        points["speedup_high"].to_numpy(),
        color=colour(strategy),
        alpha=0.25,
        linewidth=0,
    )
    return x[-1], y[-1], strategy.partition(".")[2], colour(strategy)
