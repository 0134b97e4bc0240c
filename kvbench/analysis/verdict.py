"""What bounds a cell: the host that hands work over, or the device that does it."""

from collections.abc import Mapping

import numpy as np
import pandas as pd

from kvbench.analysis.fit import Fit
from kvbench.analysis.frame import CASE_FIELDS

MOST = 2 / 3
"""Share of a CPU call's predicted time that one part must have to bound it."""
LEAST_R_SQUARED = 0.8
"""Of a fit that verdicts are taken from: one that explains less says nothing of a cell."""
NEARLY = 0.9
"""Share of the wall time from which another clock's time is taken to be all of it."""
SMALL = 0.5
"""Share of the wall time up to which the device's is small."""


def cpu_verdicts(runs: pd.DataFrame, fits: Mapping[str, Fit]) -> "pd.Series[str]":
    """overhead-bound, bandwidth-bound or mixed, from the fitted model of each row's strategy.

    Args:
        runs: Timed rows with the columns strategy, launches and least_bytes.
        fits: Fits by strategy; rows of strategies without one are missing.
    """
    verdicts: list[str | None] = []
    for strategy, launches, nbytes in zip(
        runs["strategy"], runs["launches"], runs["least_bytes"], strict=True
    ):
        fit = fits.get(strategy)
        if fit is None:
            verdicts.append(None)
            continue
        overhead = fit.overhead(np.array([float(launches)]))[0]
        moving = fit.moving(np.array([float(nbytes)]))[0]
        verdicts.append(_of_parts(overhead, moving))
    return pd.Series(verdicts, index=runs.index, dtype=object)


def _of_parts(overhead: float, moving: float) -> str | None:
    total = overhead + moving
    if not total > 0:  # nor where it is not known
        return None
    if overhead >= MOST * total:
        return "overhead-bound"
    return "bandwidth-bound" if moving >= MOST * total else "mixed"


def device_verdicts(rows: pd.DataFrame) -> pd.DataFrame:
    """dispatch-bound, device-bound or mixed, from the clocks of each cell of an accelerator.

    Args:
        rows: Timed rows of the phase run, of the clocks wall, enqueue and device.

    Returns:
        One row per case and strategy that has all three clocks, with the column verdict.
    """
    keys = [*CASE_FIELDS, "strategy"]
    times = rows.pivot_table(index=keys, columns="clock", values="median_s", observed=True)
    if not {"wall", "enqueue", "device"} <= set(times.columns):
        return pd.DataFrame(columns=[*keys, "verdict"])
    times = times.dropna(subset=["wall", "enqueue", "device"])
    dispatch = (times["enqueue"] >= NEARLY * times["wall"]) & (
        times["device"] <= SMALL * times["wall"]
    )
    busy = times["device"] >= NEARLY * times["wall"]
    verdict = np.select([dispatch, busy], ["dispatch-bound", "device-bound"], "mixed")
    return times.assign(verdict=verdict).reset_index()[[*keys, "verdict"]]
