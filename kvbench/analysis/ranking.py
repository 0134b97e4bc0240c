"""Which strategy is fastest, and by how much."""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from kvbench.analysis.frame import CASE_FIELDS, timed
from kvbench.analysis.statistics import ratio_interval
from kvbench.cases import ONCE_A_STEP, WHOLE_STEPS


@dataclass(frozen=True, slots=True)
class Standing:
    """How one strategy did over the cases of one op."""

    strategy: str
    cases: int
    """Cases that its figures are taken from."""
    fastest: int
    """Cases in which its step was the fastest, or the interval of the ratio includes 1."""
    slowdown: float
    """Geometric mean of its step cost over the fastest one's, over those cases."""
    worst: float
    """The largest of these ratios."""


def step_costs(frame: pd.DataFrame, layers: int) -> pd.DataFrame:
    """One row per case and timed strategy with the cost of a step: prepare + layers * run.

    What a step does once (`cases.ONCE_A_STEP`) costs its run alone: what it prepared was on the
    device before the step. A whole step (`cases.WHOLE_STEPS`) costs prepare + run, which has all of
    its layers.

    Adds the columns prepare_s (0 for a strategy that has none: it does nothing once per step),
    step_s, and step_samples_s, the step's cost in every round.
    """
    keys = [*CASE_FIELDS, "strategy"]
    runs = timed(frame, "run")
    prepares = frame[(frame["phase"] == "prepare") & ~frame["op"].isin(ONCE_A_STEP)]
    failed = prepares[prepares["status"] != "ok"]
    if not failed.empty:
        # A step whose prepare isn't known has no cost: missing is missing, not 0.
        unknown = pd.MultiIndex.from_frame(failed[keys])
        runs = runs[~pd.MultiIndex.from_frame(runs[keys]).isin(unknown)]
    known = timed(prepares, "prepare")[[*keys, "median_s", "samples_s"]]
    joined = runs.merge(known, on=keys, how="left", suffixes=("", "_prepare"))
    calls = np.where(joined["op"].isin((*ONCE_A_STEP, *WHOLE_STEPS)), 1, layers)
    steps = []
    for run, prepare, times in zip(
        joined["samples_s"], joined["samples_s_prepare"], calls, strict=True
    ):
        once = np.asarray(prepare) if isinstance(prepare, tuple) else 0.0
        steps.append(once + times * np.asarray(run))
    prepare_s = joined["median_s_prepare"].fillna(0.0)
    return joined.drop(columns=["median_s_prepare", "samples_s_prepare"]).assign(
        prepare_s=prepare_s,
        step_s=prepare_s + calls * joined["median_s"],
        step_samples_s=pd.Series(steps, index=joined.index, dtype=object),
    )


def of_shared_cases(costs: pd.DataFrame) -> pd.DataFrame:
    """The rows of the cases in which all strategies were timed; all rows where there are none.

    Args:
        costs: What `step_costs` gives.
    """
    strategies = costs["strategy"].nunique()
    shared = costs.groupby(list(CASE_FIELDS))["strategy"].transform("nunique") == strategies
    return costs[shared] if shared.any() else costs


def rank(frame: pd.DataFrame, op: str, layers: int) -> list[Standing]:
    """The strategies of an op, the one with the least slowdown first.

    Args:
        frame: Rows of a run.
        op: The op.
        layers: Layers of a step.
    """
    return standings(step_costs(frame[frame["op"] == op], layers))


def standings(costs: pd.DataFrame) -> list[Standing]:
    """How each strategy did, the one with the least slowdown first.

    Means are over the cases in which all of them were timed, so that one that was too slow for the
    large cases doesn't gain by missing them; over each one's own cases where there are none.

    Args:
        costs: What `step_costs` gives for the rows of one op.
    """
    costs = of_shared_cases(costs)
    ratios: dict[str, list[float]] = {}
    fastest: dict[str, int] = {}
    cases = costs.groupby(list(CASE_FIELDS), sort=False)
    best = costs.loc[cases["step_s"].transform("idxmin")]
    columns = ["strategy", "step_s", "step_samples_s"]
    for name, step_s, samples_s, best_name, best_s, best_samples_s in zip(
        *(costs[column] for column in columns), *(best[column] for column in columns), strict=True
    ):
        ratios.setdefault(name, []).append(step_s / best_s)
        tied = name == best_name or ratio_interval(samples_s, best_samples_s).low <= 1
        fastest[name] = fastest.get(name, 0) + tied
    found = [
        Standing(
            strategy=name,
            cases=len(values),
            fastest=fastest[name],
            slowdown=float(np.exp(np.mean(np.log(values)))),
            worst=float(max(values)),
        )
        for name, values in ratios.items()
    ]
    return sorted(found, key=lambda standing: standing.slowdown)
