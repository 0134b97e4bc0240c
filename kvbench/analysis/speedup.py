"""Speed-up over a reference strategy, from the ratios within each round."""

from collections.abc import Collection

import pandas as pd

from kvbench.analysis.frame import CASE_FIELDS, timed
from kvbench.analysis.statistics import ratio_interval

_LOOPS = ("loop", "sdpa_loop", "loop+sdpa_loop")
"""The loop over tokens, and what is made of it."""


def loop_of(op: str, strategies: Collection[str]) -> str | None:
    """The strategy of an op that speed-ups are over, its loop; None where it is not among these."""
    return next((name for name in (f"{op}.{loop}" for loop in _LOOPS) if name in strategies), None)


def comparable(frame: pd.DataFrame, reference: str, clock: str = "wall") -> pd.DataFrame:
    """Every timed run of the cases in which the reference was timed.

    Args:
        frame: Rows of one op.
        reference: The strategy that is 1.
        clock: The clock of both.
    """
    runs = timed(frame, clock=clock)
    keys = list(CASE_FIELDS)
    return runs.merge(runs[runs["strategy"] == reference][keys], on=keys)


def speedups(frame: pd.DataFrame, reference: str, clock: str = "wall") -> pd.DataFrame:
    """Every timed run with its speed-up over `reference` in the same case.

    Args:
        frame: Rows of one op.
        reference: The strategy that is 1.
        clock: The clock of both.

    Returns:
        The rows that are `comparable`, with the columns speedup, speedup_low and speedup_high.
    """
    runs = comparable(frame, reference, clock)
    keys = list(CASE_FIELDS)
    base = runs[runs["strategy"] == reference][[*keys, "samples_s"]]
    joined = runs.merge(base, on=keys, suffixes=("", "_base"))
    estimates = [
        ratio_interval(base, own)
        for base, own in zip(joined["samples_s_base"], joined["samples_s"], strict=True)
    ]
    return joined.drop(columns="samples_s_base").assign(
        speedup=[e.median for e in estimates],
        speedup_low=[e.low for e in estimates],
        speedup_high=[e.high for e in estimates],
    )
