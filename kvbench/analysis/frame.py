"""Rows as a DataFrame: one line per row, a column per field of Case, Result and Measurement."""

import dataclasses
from collections.abc import Iterable

import pandas as pd

from kvbench.cases import Case
from kvbench.results import LaunchCounts, Measurement, Result

CASE_FIELDS = tuple(f.name for f in dataclasses.fields(Case))
_DEFAULTS = {f.name: f.default for f in dataclasses.fields(Case)}
_MEASUREMENT_FIELDS = tuple(f.name for f in dataclasses.fields(Measurement))
_COLUMNS = (
    *CASE_FIELDS,
    "queries_per_kv_head",
    "tokens",
    "least_bytes",
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
                case.num_heads // case.num_kv_heads,
                case.tokens,
                case.nbytes,
                result.strategy,
                result.phase,
                result.clock,
                result.cache,
                result.status,
                result.reason,
                result.repro,
                *_launches(result.launches),
                None if m is None else m.resolved,
                *times,
            )
        )
    frame = pd.DataFrame(lines, columns=list(_COLUMNS))
    numeric = [
        *("median_s", "low_s", "high_s", "floor_s", "nbytes", "copy_share", "calls_per_sample"),
        "first_call_s",
        *("kernels", "memcpys", "synchronizations", "launches"),
    ]
    frame[numeric] = frame[numeric].astype("float64")
    return frame


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
    return frame if frame.empty else groups(frame, others)[0][1]


def groups(
    frame: pd.DataFrame, free: Iterable[str]
) -> list[tuple[dict[str, object], pd.DataFrame]]:
    """Rows grouped by every case field but the `free` ones, the group with most rows first.

    Of groups of one size the one nearest to a case's defaults is first, whatever the rows' order.

    num_heads follows num_kv_heads in most sweeps: what is held is the query heads per KV head.

    Returns:
        The fields that all rows of the group share, and the group's rows.
    """
    held = ["queries_per_kv_head" if name == "num_heads" else name for name in CASE_FIELDS]
    fixed = [name for name in held if name not in set(free)]
    found = [
        (dict(zip(fixed, key, strict=True)), rows)
        for key, rows in frame.groupby(fixed, sort=False, observed=True)
    ]

    def place(group: tuple[dict[str, object], pd.DataFrame]) -> tuple[int, int, str]:
        shared, rows = group
        unusual = sum(_DEFAULTS.get(name, value) != value for name, value in shared.items())
        return -len(rows), unusual, str(shared)

    return sorted(found, key=place)
