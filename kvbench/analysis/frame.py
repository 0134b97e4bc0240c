"""Rows as a DataFrame: one line per row, a column per field of Case, Result and Measurement."""

import dataclasses
from collections.abc import Iterable

import pandas as pd

from kvbench.cases import Case
from kvbench.results import Measurement, Result

CASE_FIELDS = tuple(f.name for f in dataclasses.fields(Case))
_MEASUREMENT_FIELDS = tuple(f.name for f in dataclasses.fields(Measurement))
_COLUMNS = (
    *CASE_FIELDS,
    "tokens",
    "least_bytes",
    "strategy",
    "phase",
    "status",
    "reason",
    "repro",
    *_MEASUREMENT_FIELDS,
)


def to_frame(results: Iterable[Result]) -> pd.DataFrame:
    """The rows of a run. A row that was not timed has missing values, never zeros."""
    lines = []
    for result in results:
        m = result.measurement
        times = [None if m is None else getattr(m, name) for name in _MEASUREMENT_FIELDS]
        case = result.case
        lines.append(
            (
                *(getattr(case, name) for name in CASE_FIELDS),
                case.tokens,
                case.nbytes,
                result.strategy,
                result.phase,
                result.status,
                result.reason,
                result.repro,
                *times,
            )
        )
    frame = pd.DataFrame(lines, columns=list(_COLUMNS))
    numeric = ["median_s", "low_s", "high_s", "floor_s", "nbytes", "calls_per_sample"]
    frame[numeric] = frame[numeric].astype("float64")
    return frame


def timed(frame: pd.DataFrame, phase: str = "run") -> pd.DataFrame:
    """The rows of one phase that have a measurement."""
    return frame[(frame["status"] == "ok") & (frame["phase"] == phase)]


def groups(
    frame: pd.DataFrame, free: Iterable[str]
) -> list[tuple[dict[str, object], pd.DataFrame]]:
    """Rows grouped by every case field but the `free` ones, the group with most rows first.

    num_heads is free with num_kv_heads: it follows it in most sweeps, and no copy depends on it.

    Returns:
        The fields that all rows of the group share, and the group's rows.
    """
    fixed = [name for name in CASE_FIELDS if name not in {*free, "num_heads"}]
    found = [
        (dict(zip(fixed, key, strict=True)), rows)
        for key, rows in frame.groupby(fixed, sort=False, observed=True)
    ]
    return sorted(found, key=lambda group: -len(group[1]))
