"""What the fitted model says that a call's time goes to: the call, its launches, its bytes."""

import pandas as pd

from kvbench.analysis.fit import Fit, Refusal, fit_run, fitted


def broken_down(frame: pd.DataFrame, op: str) -> tuple[pd.DataFrame, tuple[Refusal, ...]]:
    """The calls of an op that has fits, each with the parts of the model of its strategy.

    Args:
        frame: Rows of a run.
        op: The op.

    Returns:
        The rows that are `fit.fitted`, of strategies that have a fit, with the columns call_s,
        launches_s and bytes_s, the model's seconds of each part; rest_s, the measured median less
        their sum, below 0 where the model says too much; and split: where it is False, the cells
        can't tell a call from its launches, call_s is of both and launches_s is 0. Then the
        strategies that have none, with the reason.
    """
    runs, fits = fitted(frame, op), fit_run(frame, op)
    known = {fit.name: fit for fit in fits if isinstance(fit, Fit)}
    parts = [
        _parts(known[str(name)], own)
        for name, own in runs.groupby("strategy", sort=True)
        if name in known
    ]
    strategies = set(runs["strategy"])
    refused = tuple(fit for fit in fits if isinstance(fit, Refusal) and fit.name in strategies)
    nothing = _parts(None, runs.iloc[:0])
    return (pd.concat(parts, ignore_index=True) if parts else nothing), refused


def _parts(fit: Fit | None, rows: pd.DataFrame) -> pd.DataFrame:
    if fit is None:
        return rows.assign(call_s=0.0, launches_s=0.0, bytes_s=0.0, rest_s=0.0, split=True)
    launches, nbytes = (
        rows[name].to_numpy(dtype="float64") for name in ("launches", "least_bytes")
    )
    split = fit.overhead_s is None
    overhead = fit.overhead(launches)
    call = fit.overhead(0 * launches)
    moving = fit.moving(nbytes)
    return rows.assign(
        call_s=call,
        launches_s=overhead - call,
        bytes_s=moving,
        rest_s=rows["median_s"].to_numpy() - overhead - moving,
        split=split,
    )
