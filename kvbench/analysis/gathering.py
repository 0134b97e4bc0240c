"""What a gather costs an attention: its own share, and what reading blocks in place takes instead.

In every case the reference is the fastest attention that gathers. All ratios are those within the
rounds of the case.
"""

import math
from collections.abc import Sequence

import pandas as pd

from kvbench.analysis.frame import CASE_FIELDS, timed
from kvbench.analysis.statistics import Estimate, ratio_interval

_KEYS = list(CASE_FIELDS)


def beside_gathering(frame: pd.DataFrame, clock: str = "wall") -> pd.DataFrame:
    """Attentions that gather nothing, and the fastest that does, of every case that has both parts.

    Args:
        frame: Rows of the op attend.
        clock: The clock of all times.

    Returns:
        The rows of phase run of the reference and of what gathers nothing, with the columns
        reference (a strategy), share, share_low and share_high (the gather's part of the
        reference's run, 0 to 1; missing in other rows), and ratio, ratio_low and ratio_high (of the
        row's time to the reference's, 1 in its own row).
    """
    runs = timed(frame, clock=clock)
    gathers = timed(frame, "gather", clock)[[*_KEYS, "strategy", "samples_s"]]
    both = runs.merge(gathers, on=[*_KEYS, "strategy"], how="left", suffixes=("", "_gather"))
    gathering = both[both["samples_s_gather"].notna()]
    fastest = gathering.loc[gathering.groupby(_KEYS, sort=False)["median_s"].idxmin()]
    base = fastest[[*_KEYS, "strategy", "samples_s"]].rename(
        columns={"strategy": "reference", "samples_s": "samples_s_base"}
    )
    joined = both.merge(base, on=_KEYS)
    # One that gathers is none in place, though its gather has no time of this clock.
    gather = set(frame.loc[frame["phase"] == "gather", "strategy"])
    in_place = ~joined["strategy"].isin(gather)
    shown = in_place | (joined["strategy"] == joined["reference"])
    joined = joined[shown].reset_index(drop=True)
    ratios = [
        ratio_interval(own, base)
        for own, base in zip(joined["samples_s"], joined["samples_s_base"], strict=True)
    ]
    shares = [
        ratio_interval(gather, own) if is_reference else None
        for gather, own, is_reference in zip(
            joined["samples_s_gather"],
            joined["samples_s"],
            joined["strategy"] == joined["reference"],
            strict=True,
        )
    ]
    return joined.drop(columns=["samples_s_base", "samples_s_gather"]).assign(
        **_columns("share", shares), **_columns("ratio", ratios)
    )


def _columns(what: str, estimates: Sequence[Estimate | None]) -> dict[str, list[float]]:
    """An estimate's median and ends, by the names of their columns; missing ones are NaN."""
    none = Estimate(math.nan, math.nan, math.nan)
    found = [none if estimate is None else estimate for estimate in estimates]
    return {
        what: [estimate.median for estimate in found],
        f"{what}_low": [estimate.low for estimate in found],
        f"{what}_high": [estimate.high for estimate in found],
    }
