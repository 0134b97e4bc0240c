"""What reading blocks in place saves an attention, as a table."""

from typing import Any

import pandas as pd

from kvbench.analysis.frame import main_group
from kvbench.analysis.gathering import beside_gathering
from kvbench.report.setting import describe
from kvbench.report.tables import MISSING, Table
from kvbench.units import format_ratio, format_seconds

_FREE = ("seq_len", "batch")


def gather_table(frame: pd.DataFrame) -> Table | None:
    """The fastest attention that gathers beside the fastest that does not, a line per case.

    In the run's main setting; None if no case has both.

    Args:
        frame: The rows of a run.
    """
    beside = beside_gathering(frame[frame["op"] == "attend"])
    if beside.empty:
        return None
    shared, rows = main_group(beside, _FREE)
    others = rows[rows["strategy"] != rows["reference"]]
    lines = []
    for at, own in rows.groupby(["batch", "seq_len"], sort=True):
        place: Any = at
        lines.append((*(f"{n:,}" for n in place), *_line(own)))
    if others.empty:
        return None
    return Table(
        f"attend: gather + attention, and the fastest in place ({describe(shared)})",
        (
            *("batch", "context", "fastest that gathers", "gather's share"),
            *("fastest in place", "times faster", "of copy bandwidth"),
        ),
        tuple(lines),
        "Over 100 % of the copy bandwidth: from the cache, or since reading alone is quicker.",
    )


def _line(own: pd.DataFrame) -> tuple[str, ...]:
    """What one case's rows say."""
    is_reference = own["strategy"] == own["reference"]
    reference, in_place = own[is_reference].iloc[0], own[~is_reference]
    words = _way(reference), _percent(reference["share"])
    if in_place.empty:
        return *words, *[MISSING] * 3
    best = in_place.sort_values("median_s").iloc[0]
    # Of times, so that the larger end is the smaller ratio's.
    faster, low, high = (1 / best[f"ratio{end}"] for end in ("", "_high", "_low"))
    times = format_ratio(faster, low, high)
    return *words, _way(best), times, _percent(best["copy_share"])


def _way(row: pd.Series) -> str:
    return f"{row['strategy'].partition('.')[2]}, {format_seconds(row['median_s'])}"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"
