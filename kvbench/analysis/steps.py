"""Whole decode steps: tokens per second, and where a step's time goes."""

import numpy as np
import pandas as pd

from kvbench.analysis.frame import CASE_FIELDS, timed
from kvbench.analysis.ranking import step_costs
from kvbench.analysis.statistics import ratio_interval

_KEYS = [*CASE_FIELDS, "strategy"]
PARTS = ("prepare", "write", "attend", "rest")
"""What a step's time is made of: once a step, then that of all layers."""


def throughput(frame: pd.DataFrame) -> pd.DataFrame:
    """Timed steps with the tokens that they give in a second: one for each sequence.

    Args:
        frame: Rows of a run.

    Returns:
        What `step_costs` gives of steps that have tokens, with the columns tokens_per_s,
        tokens_per_s_low and tokens_per_s_high: the median over rounds, and its interval.
    """
    costs = step_costs(frame[(frame["op"] == "step") & (frame["tokens"] > 0)], 1)
    rates = [
        ratio_interval([batch] * len(samples), samples)
        for batch, samples in zip(costs["batch"], costs["step_samples_s"], strict=True)
    ]
    return costs.assign(
        tokens_per_s=[rate.median for rate in rates],
        tokens_per_s_low=[rate.low for rate in rates],
        tokens_per_s_high=[rate.high for rate in rates],
    )


def split(frame: pd.DataFrame) -> pd.DataFrame:
    """Where the time of a step goes, one row per case and strategy that has all of it timed.

    Args:
        frame: Rows of a run.

    Returns:
        The rows of phase run of steps, with the columns prepare_s, write_s, attend_s and rest_s:
        seconds of a whole step. The rest is the median of what is left in each round; as parts are
        timed by themselves it may be less than nothing where it is small.
    """
    steps = frame[(frame["op"] == "step") & (frame["tokens"] > 0)]
    joined = timed(steps)
    for phase in ("prepare", "write", "attend"):
        own = timed(steps, phase)[[*_KEYS, "median_s", "samples_s"]]
        own = own.rename(columns={"median_s": f"{phase}_s", "samples_s": f"{phase}_samples_s"})
        joined = joined.merge(own, on=_KEYS)
    rests = [
        float(np.median(np.asarray(run) - np.asarray(write) - np.asarray(attend)))
        for run, write, attend in zip(
            *(joined[name] for name in ("samples_s", "write_samples_s", "attend_samples_s")),
            strict=True,
        )
    ]
    dropped = [f"{phase}_samples_s" for phase in ("prepare", "write", "attend")]
    return joined.drop(columns=dropped).assign(rest_s=pd.Series(rests, joined.index, "float64"))


def per_token_and_layer(rows: pd.DataFrame) -> pd.DataFrame:
    """What `split` gives, in seconds for each token and layer: a step's index, spread over layers.

    Args:
        rows: What `split` gives.
    """
    shares = rows["batch"] * rows["num_layers"]
    return rows.assign(**{f"{part}_s": rows[f"{part}_s"] / shares for part in PARTS})
