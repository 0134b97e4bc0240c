"""Bandwidth: how fast a call moves the bytes that it has to move, a line per strategy."""

import pandas as pd
from matplotlib.axes import Axes as Panel
from matplotlib.figure import Figure

from kvbench.analysis.frame import timed
from kvbench.report.alternative import of_lines
from kvbench.report.curves import mark_cache
from kvbench.report.panels import (
    Ends,
    Page,
    by_clock,
    copy_key,
    draw_line,
    drawn_panels,
    key_of,
    provenance,
)
from kvbench.report.style import look, styled
from kvbench.results import RunInfo
from kvbench.units import BYTES_PER_GB as GB
from kvbench.units import format_bandwidth

_TITLES = {
    "write": "Writing K/V into a paged cache: bandwidth",
    "read": "Reading K/V from a paged cache: bandwidth",
    "attend": "Attention over a paged cache: bandwidth",
}


def bandwidth_figure(page: Page, op: str, clock: str, info: RunInfo) -> Figure:
    """The least bytes of a call over its time, by seq_len, log-log.

    Bands are the medians' intervals. The dashed line is the copy bandwidth measured in the same
    run: what bytes that are out of the cache can be moved at.

    Args:
        page: Rows of one op and clock.
        op: The op.
        clock: The clock.
        info: The run's bandwidth, device and date.
    """
    footnote = (
        f"{provenance(info, clock)}; the least bytes that a call must move (each read or written "
        "once) over its median time, with the 95 % interval. Dashed: a copy, out of the cache, in "
        "the same run."
    )

    def draw(panel: Panel, block: int, heads: int) -> Ends:
        return _draw(panel, timed(page.of(block, heads), "run", clock), info)

    with styled():
        runs = sorted(set(timed(page.rows, "run", clock)["strategy"]))
        copy = f"copy, {format_bandwidth(info.copy_bandwidth.bytes_per_s)}"
        keys = [*map(key_of, runs), copy_key(copy)]
        return drawn_panels(page, by_clock(_title(op), clock), footnote, keys, "GB/s", draw)


def bandwidth_alt(page: Page, op: str, clock: str) -> str:
    """The figure in a sentence."""
    runs = timed(page.rows, "run", clock)
    rates = runs.assign(rate=runs["least_bytes"] / runs["median_s"])
    shown = Page(page.name, page.subtitle, rates, page.block_sizes, page.kv_heads)
    return of_lines(_title(op), shown, "rate", format_bandwidth, highest=True)


def _title(op: str) -> str:
    return _TITLES.get(op, f"{op}: bandwidth")


def _draw(panel: Panel, rows: pd.DataFrame, info: RunInfo) -> Ends:
    ends: list[tuple[float, float, str, str]] = []
    for strategy, own in rows.groupby("strategy", sort=True):
        points, name = own.sort_values("seq_len"), str(strategy)
        x = points["seq_len"].to_numpy(dtype=float)
        nbytes = points["least_bytes"].to_numpy(dtype=float)
        # The longest time is the least bandwidth.
        middle, low, high = (
            nbytes / points[f"{end}_s"].to_numpy() / GB for end in ("median", "high", "low")
        )
        draw_line(panel, name, x, middle, low, high)
        ends.append((x[-1], middle[-1], name.partition(".")[2], look().colour(name)))
    sizes = rows.drop_duplicates("seq_len").sort_values("seq_len")
    if len(sizes):
        x = sizes["seq_len"].to_numpy(dtype=float)
        copy = info.copy_bandwidth.bytes_per_s
        floor = look().floor
        panel.plot([x[0], x[-1]], [copy / GB] * 2, color=floor, linestyle="--", linewidth=1.1)
        ends.append((x[-1], copy / GB, f"copy, {format_bandwidth(copy)}", floor))
        mark_cache(panel, x, sizes["least_bytes"].to_numpy(dtype=float), info, below=True)
    return ends
