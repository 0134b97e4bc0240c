"""Which strategy is the fastest where, and by how much it beats the next."""

import numpy as np
import pandas as pd

from kvbench.analysis.frame import CASE_FIELDS, settings_of
from kvbench.analysis.ranking import step_costs
from kvbench.analysis.statistics import ratio_interval
from kvbench.errors import InputError

_KEYS = list(CASE_FIELDS)


def fastest(frame: pd.DataFrame, op: str, layers: int, axis: str) -> pd.DataFrame:
    """The winner of every case in which two strategies or more were timed.

    Args:
        frame: Rows of a run.
        op: The op.
        layers: Layers of a step, whose cost is compared (see `ranking.step_costs`).
        axis: The case field that goes with seq_len, as "block_size".

    Returns:
        One row per setting of the other fields, value of `axis` and seq_len, in this order, the
        main setting first (see `frame.settings_of`): the case's fields and queries_per_kv_head;
        winner and winner_s, the strategy whose step costs least and its seconds; runner_up, the
        next; ratio, ratio_low and ratio_high, the median of the runner-up's cost over the winner's
        within rounds and its interval; tied, whether the interval reaches down to 1.

    Raises:
        InputError: `axis` is no field of a case that may vary beside seq_len.
    """
    if axis not in CASE_FIELDS or axis in {"op", "seq_len"}:
        raise InputError(f"axis {axis!r}: expected a field of a case beside op and seq_len")
    costs = step_costs(frame[(frame["op"] == op) & (frame["tokens"] > 0)], layers)
    costs = costs.sort_values("step_s", kind="stable")
    place = costs.groupby(_KEYS, sort=False).cumcount()
    columns = ["strategy", "step_s", "step_samples_s"]
    first = costs.loc[place == 0, [*_KEYS, "queries_per_kv_head", *columns]]
    both = first.merge(costs.loc[place == 1, [*_KEYS, *columns]], on=_KEYS, suffixes=("", "_next"))
    both = both.sort_values([axis, "seq_len"], kind="stable", ignore_index=True)
    if not both.empty:
        found = settings_of(both, ("seq_len", axis))
        both = both.take(np.concatenate([np.sort(places) for _, places in found]))
    ratios = [
        ratio_interval(slower, faster)
        for slower, faster in zip(both["step_samples_s_next"], both["step_samples_s"], strict=True)
    ]
    return (
        both[[*_KEYS, "queries_per_kv_head"]]
        .assign(
            winner=both["strategy"],
            winner_s=both["step_s"],
            runner_up=both["strategy_next"],
            ratio=np.array([each.median for each in ratios], dtype=float),
            ratio_low=np.array([each.low for each in ratios], dtype=float),
            ratio_high=np.array([each.high for each in ratios], dtype=float),
            tied=np.array([each.low <= 1 for each in ratios], dtype=bool),
        )
        .reset_index(drop=True)
    )
