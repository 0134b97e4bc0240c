"""The answer of a run: which strategy is fastest at which sizes, by how much, and how surely."""

import itertools
import math
from dataclasses import dataclass

import numpy as np
import pandas as pd

from kvbench.analysis.frame import CASE_FIELDS
from kvbench.analysis.ranking import of_shared_cases, standings, step_costs
from kvbench.analysis.statistics import Estimate, ratio_interval

ENDS = (16, 256, 4096)
"""The most tokens of a call in every band but the last, which has no end."""


@dataclass(frozen=True, slots=True)
class Band:
    """The fastest strategy of an op over the calls of one band of sizes."""

    low: int
    """Fewest tokens of a call in the cases that the figures are taken from."""
    high: int
    """Most."""
    cases: int
    """Cases that the figures are taken from: those in which every strategy was timed; all where
    there are none."""
    left_out: int
    """Cases of the band that lack a strategy."""
    lacking: tuple[str, ...]
    """The strategies that have no time in some case of the band."""
    winner: str
    """The one with the least geometric mean of step cost over the fastest's."""
    fastest: int
    """Cases in which it was the fastest, or not to be told from the fastest."""
    runner_up: str | None
    """The next one; None if there is no other."""
    margin: Estimate | None
    """The runner-up's step cost over the winner's: the geometric mean over cases, with its interval
    over rounds."""
    least: float
    """The quickest other's step cost over the winner's in the case in which that is least; under 1
    where the winner loses one."""
    most: float
    """In the case in which it is greatest. Both are NaN if there is no other."""
    tied: tuple[str, ...]
    """The strategies whose margin's interval has 1 in it: not surely slower."""
    shared: bool = True
    """Whether there are cases in which every strategy was timed. Without them each is held against
    the fastest of its own cases, which may be easier ones."""


def bands(frame: pd.DataFrame, op: str, layers: int) -> list[Band]:
    """The fastest of an op by the number of tokens of a call, the smallest calls first.

    Costs are those of a step (`ranking.step_costs`). Bands end at `ENDS`, wherever there are cases.

    Args:
        frame: Rows of a run.
        op: The op.
        layers: Layers of a step.
    """
    costs = step_costs(frame[(frame["op"] == op) & (frame["tokens"] > 0)], layers)
    numbers = np.searchsorted(ENDS, costs["tokens"].to_numpy(dtype=np.int64))
    return [_band(costs[numbers == number]) for number in np.unique(numbers)]


def _band(costs: pd.DataFrame) -> Band:
    keys = list(CASE_FIELDS)
    covered = of_shared_cases(costs)
    cases = len(covered.drop_duplicates(keys))
    every = len(costs.drop_duplicates(keys))
    counts = costs["strategy"].value_counts().sort_index()
    strategies = covered["strategy"].nunique()
    first, *others = standings(costs)
    margins = {
        other.strategy: margin
        for other in others
        if (margin := _margin(covered, first.strategy, other.strategy)) is not None
    }
    runner_up = next(iter(margins), None)
    is_winner = covered["strategy"] == first.strategy
    quickest = covered[~is_winner].groupby(keys)["step_s"].min()
    ahead = (quickest / covered[is_winner].set_index(keys)["step_s"]).dropna()
    return Band(
        low=int(covered["tokens"].min()),
        high=int(covered["tokens"].max()),
        cases=cases,
        left_out=every - cases,
        lacking=tuple(map(str, counts.index[counts < every])),
        winner=first.strategy,
        fastest=first.fastest,
        runner_up=runner_up,
        margin=None if runner_up is None else margins[runner_up],
        least=float(ahead.min()),
        most=float(ahead.max()),
        tied=tuple(name for name, margin in margins.items() if margin.low <= 1),
        shared=len(covered) == cases * strategies,
    )


def _margin(costs: pd.DataFrame, winner: str, other: str) -> Estimate | None:
    """The other's cost over the winner's in the cases that both have; None if there are none.

    The cases are those that were asked for, no sample of others: what is uncertain of their mean is
    what is uncertain of each, taken from its interval as if that were a normal distribution's.
    """
    one, two = (costs[costs["strategy"] == name] for name in (winner, other))
    both = one.merge(two[[*CASE_FIELDS, "step_samples_s"]], on=list(CASE_FIELDS))
    if both.empty:
        return None
    ratios = list(
        itertools.starmap(
            ratio_interval, zip(both["step_samples_s_y"], both["step_samples_s_x"], strict=True)
        )
    )
    mean = math.fsum(math.log(ratio.median) for ratio in ratios) / len(ratios)
    half = math.hypot(*map(_log_half_width, ratios)) / len(ratios)
    return Estimate(math.exp(mean), math.exp(mean - half), math.exp(mean + half))


def _log_half_width(ratio: Estimate) -> float:
    return math.log(ratio.high / ratio.low) / 2
