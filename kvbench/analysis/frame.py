"""Rows as a DataFrame: one line per row, a column per field of Case, Result and Measurement."""

import dataclasses
import operator
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from kvbench.cases import Case
from kvbench.results import LaunchCounts, Measurement, Result

CASE_FIELDS = tuple(f.name for f in dataclasses.fields(Case))
_DEFAULTS = {
    "queries_per_kv_head": 1,
    **{f.name: f.default for f in dataclasses.fields(Case) if f.default is not dataclasses.MISSING},
}
_MEASUREMENT_FIELDS = tuple(f.name for f in dataclasses.fields(Measurement))
_CASE_COLUMNS = (*CASE_FIELDS, "queries_per_kv_head", "tokens", "least_bytes")
_ROW_COLUMNS = (
    "strategy",
    "phase",
    "clock",
    "cache",
    "status",
    "reason",
    "repro",
    "kernels",
    "memcpys",
    "synchronizations",
    "launches",
    "launches_source",
    "resolved",
    *_MEASUREMENT_FIELDS,
)
_measured = operator.attrgetter(*_MEASUREMENT_FIELDS)
_UNTIMED = (None,) * (1 + len(_MEASUREMENT_FIELDS))


def to_frame(results: Iterable[Result]) -> pd.DataFrame:
    """The rows of a run. A row that was not timed has missing values, never zeros."""
    rows = tuple(results)
    # Many rows have one case: what is known of it is found once.
    numbers: dict[Case, int] = {}
    owners = [numbers.setdefault(row.case, len(numbers)) for row in rows]
    cases = pd.DataFrame([_case_line(case) for case in numbers], columns=list(_CASE_COLUMNS))
    others = pd.DataFrame([_row_line(row) for row in rows], columns=list(_ROW_COLUMNS))
    frame = pd.concat([cases.take(owners).reset_index(drop=True), others], axis="columns")
    numeric = [
        *("median_s", "low_s", "high_s", "floor_s", "nbytes", "copy_share", "calls_per_sample"),
        "first_call_s",
        *("kernels", "memcpys", "synchronizations", "launches"),
    ]
    return frame.astype(dict.fromkeys(numeric, "float64"))


def _case_line(case: Case) -> tuple[object, ...]:
    return (
        *(getattr(case, name) for name in CASE_FIELDS),
        case.num_heads // case.num_kv_heads,
        case.tokens,
        case.nbytes,
    )


def _row_line(row: Result) -> tuple[object, ...]:
    m = row.measurement
    times = _UNTIMED if m is None else (m.resolved, *_measured(m))
    said = (row.strategy, row.phase, row.clock, row.cache, row.status, row.reason, row.repro)
    return (*said, *_launches(row.launches), *times)


def _launches(counts: LaunchCounts | None) -> tuple[object, ...]:
    if counts is None:
        return (None, None, None, None, None)
    return (
        counts.kernels,
        counts.memcpys,
        counts.synchronizations,
        counts.launches,
        counts.source,
    )


def timed(frame: pd.DataFrame, phase: str = "run", clock: str = "wall") -> pd.DataFrame:
    """The rows of one phase that have a measurement by one clock."""
    return frame[(frame["status"] == "ok") & (frame["phase"] == phase) & (frame["clock"] == clock)]


POOL_FIELDS = ("layout", "cache_dtype", "kv_scale")


def main_pools(frame: pd.DataFrame) -> pd.DataFrame:
    """The rows of the kind of pool that most rows have: one layout, format and kind of scales.

    Another kind moves its bytes at another speed: one bandwidth does not explain both.
    """
    others = {"queries_per_kv_head", *CASE_FIELDS} - set(POOL_FIELDS)
    return frame if frame.empty else main_group(frame, others)[1]


def main_group(frame: pd.DataFrame, free: Iterable[str]) -> tuple[dict[str, object], pd.DataFrame]:
    """The fields that the first of `settings_of` shares, and its rows.

    Args:
        frame: One row or more.
        free: As for `settings_of`.
    """
    shared, places = settings_of(frame, free)[0]
    return shared, frame.take(places)


Setting = tuple[dict[str, object], npt.NDArray[np.intp]]
"""The fields that some rows of a frame share, and which rows these are."""


def settings_of(frame: pd.DataFrame, free: Iterable[str]) -> list[Setting]:
    """The settings of every case field but the `free` ones, the one with most rows first.

    Of settings with as many rows the one nearest to a case's defaults is first, whatever the rows'
    order.

    num_heads follows num_kv_heads in most sweeps: what is held is the query heads per KV head.
    """
    held = ["queries_per_kv_head" if name == "num_heads" else name for name in CASE_FIELDS]
    fixed = [name for name in held if name not in set(free)]
    indices: Any = frame.groupby(fixed, sort=False, observed=True).indices
    found: list[Setting] = [
        (dict(zip(fixed, key, strict=True)), places) for key, places in indices.items()
    ]

    def place(setting: Setting) -> tuple[int, int, str]:
        shared, places = setting
        return -len(places), unusual(shared), str(shared)

    return sorted(found, key=place)


def unusual(shared: Mapping[str, object]) -> int:
    """How many of these fields do not have their default."""
    return sum(_DEFAULTS.get(name, value) != value for name, value in shared.items())
