"""Launch-overhead curves: time per call over seq_len, a line per strategy."""

import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib.axes import Axes as Panel
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from kvbench.analysis.frame import timed
from kvbench.cases import ONCE_A_STEP
from kvbench.report.alternative import of_lines
from kvbench.report.panels import (
    Ends,
    Page,
    by_clock,
    copy_key,
    draw_line,
    drawn_panels,
    key_of,
    launches_label,
    provenance,
)
from kvbench.report.style import look, styled
from kvbench.results import RunInfo
from kvbench.units import MICROSECONDS_PER_SECOND as US
from kvbench.units import format_bandwidth, format_bytes, format_seconds

_MOST_NAMED_PREPARES = 2
"""More of them alike would be more names than lines can be told apart by: their colours say it."""

Floats = npt.NDArray[np.float64]

_TITLES = {
    "write": "Writing K/V into a paged cache: time per call",
    "read": "Reading K/V from a paged cache: time per call",
    "attend": "Attention over a paged cache: time per call",
    "index": "Building the slot mapping of new tokens: time per call, once a step",
}


def launch_overhead_figure(page: Page, op: str, clock: str, info: RunInfo) -> Figure:
    """Time per call over seq_len, log-log: flat is overhead, a slope of 1 is work.

    Bands are the medians' intervals. Dotted lines are prepare, paid once a step rather than once a
    layer; of what a step does once, paid before it. The dashed line is the same bytes at the copy
    bandwidth measured in the same run, where a call moves K and V: an index does not, nor does
    handing work over.

    Args:
        page: Rows of one op and clock, run and prepare.
        op: The op.
        clock: The clock.
        info: The run's bandwidth, device and clock.
    """
    source = "/".join(sorted(page.rows["launches_source"].dropna().unique())) or "not known"
    when = "before a step" if op in ONCE_A_STEP else "once a step"
    footnote = f"{provenance(info, clock)}; median with its 95 % interval. Dotted: prepare, {when}."
    moving = op not in ONCE_A_STEP and clock != "enqueue"
    if moving:
        footnote += " Dashed: the same bytes at copy speed."
    if page.rows.loc[page.rows["phase"] == "run", "launches"].notna().any():
        footnote += f" In brackets: what one call launches on a GPU, {source}."

    def draw(panel: Panel, block: int, heads: int) -> Ends:
        rows = page.of(block, heads)
        ends = _draw(panel, rows, clock)
        return [*ends, *(_draw_copy(panel, rows, info) if moving else ())]

    with styled():
        keys = _keys(page, clock)
        if moving:
            keys.append(copy_key(_copy(info)))
        return drawn_panels(page, by_clock(_title(op), clock), footnote, keys, "µs per call", draw)


def _keys(page: Page, clock: str) -> list[Line2D]:
    runs = timed(page.rows, "run", clock).groupby("strategy", sort=True)
    return [
        key_of(str(name), str(name).partition(".")[2] + launches_label(own)) for name, own in runs
    ]


def _copy(info: RunInfo) -> str:
    return f"copy, {format_bandwidth(info.copy_bandwidth.bytes_per_s)}"


def launch_overhead_alt(page: Page, op: str, clock: str) -> str:
    """The figure in a sentence."""
    runs = Page(
        page.name,
        page.subtitle,
        timed(page.rows, "run", clock),
        page.block_sizes,
        page.kv_heads,
    )
    return of_lines(_title(op), runs, "median_s", format_seconds)


def _title(op: str) -> str:
    return _TITLES.get(op, f"{op}: time per call")


def _draw(panel: Panel, rows: pd.DataFrame, clock: str) -> Ends:
    ends: list[tuple[float, float, str, str]] = []
    for strategy, line in timed(rows, "run", clock).groupby("strategy", sort=True):
        points = line.sort_values("seq_len")
        name = str(strategy)
        x = points["seq_len"].to_numpy(dtype=float)
        y, low, high = (points[f"{end}_s"].to_numpy() * US for end in ("median", "low", "high"))
        draw_line(panel, name, x, y, low, high)
        label = name.partition(".")[2] + launches_label(points)
        ends.append((x[-1], y[-1], label, look().colour(name)))
    prepares = timed(rows, "prepare", clock).groupby("strategy", sort=True)
    for strategy, line in prepares:
        points = line.sort_values("seq_len")
        x, y = points["seq_len"].to_numpy(dtype=float), points["median_s"].to_numpy() * US
        own = look().colour(str(strategy))
        panel.plot(x, y, color=own, linestyle=":", linewidth=1.2)
        if len(prepares) <= _MOST_NAMED_PREPARES:
            ends.append((x[-1], y[-1], "prepare", own))
    return ends


def _draw_copy(panel: Panel, rows: pd.DataFrame, info: RunInfo) -> Ends:
    """The same bytes at copy speed, and where they outgrow the cache."""
    sizes = rows.drop_duplicates("seq_len").sort_values("seq_len")
    if sizes.empty:
        return []
    x = sizes["seq_len"].to_numpy(dtype=float)
    nbytes = sizes["least_bytes"].to_numpy(dtype=float)
    y = nbytes / info.copy_bandwidth.bytes_per_s * US
    panel.plot(x, y, color=look().floor, linestyle="--", linewidth=1.1, zorder=1)
    mark_cache(panel, x, nbytes, info)
    return [(x[-1], y[-1], _copy(info), look().floor)]


def mark_cache(
    panel: Panel, seq_lens: Floats, nbytes: Floats, info: RunInfo, *, below: bool = False
) -> None:
    """Mark where the bytes of a call outgrow the CPU's cache.

    Left of it, beating the copy is expected: the copy goes to memory.

    Args:
        panel: With lines over seq_len.
        seq_lens: Ascending.
        nbytes: Of a call of each.
        info: The run's cache and device.
        below: Whether the words are at the panel's bottom: where lines pass by its top.
    """
    cache = info.environment.last_level_cache_bytes
    if cache is None or info.environment.device != "cpu":
        return
    if not nbytes[0] < cache < nbytes[-1]:
        return
    edge = float(np.exp(np.interp(np.log(cache), np.log(nbytes), np.log(seq_lens))))
    panel.axvline(edge, color=look().floor, linewidth=0.8, linestyle=(0, (1, 2)))
    panel.text(
        edge,
        0.015 if below else 0.985,
        f"fits {format_bytes(cache)} cache ",
        transform=panel.get_xaxis_transform(),
        ha="right",
        va="bottom" if below else "top",
        fontsize=look().small_pt,
        color=look().floor,
    )
