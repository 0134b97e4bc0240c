"""What each strategy hands to a GPU in one call, as a table."""

from collections.abc import Sequence
from typing import Any

import pandas as pd

from kvbench.analysis.frame import main_group
from kvbench.report.setting import describe
from kvbench.report.tables import MISSING, Table, describe_launches
from kvbench.results import LaunchCounts

_PHASES = ("run", "prepare")
_COLUMNS = 3
_TELLING = (1, 512)
"""One token, and the size that the series counts at; the last column is the largest measured."""


def launches_table(frame: pd.DataFrame, op: str) -> Table | None:
    """Launches of a call by seq_len in the run's main setting; None if none is known.

    Args:
        frame: Rows of a run.
        op: The op.
    """
    known = frame[(frame["op"] == op) & frame["launches"].notna() & frame["phase"].isin(_PHASES)]
    known = known[known["tokens"] > 0]
    if known.empty:
        return None
    shared, rows = main_group(known, ("seq_len",))
    sizes = _sizes(sorted({int(n) for n in rows["seq_len"]}))
    lines = []
    for strategy, own in rows.groupby("strategy", sort=True):
        for phase in _PHASES:
            # Every clock's row of a case has the same counts.
            by_size = own[own["phase"] == phase].drop_duplicates("seq_len").set_index("seq_len")
            if not by_size.empty:
                counts = (_words(by_size, size) for size in sizes)
                sources = "/".join(sorted(set(by_size["launches_source"])))
                lines.append((str(strategy), phase, *counts, sources))
    return Table(
        f"{op}: what a call launches on a GPU, by seq_len ({describe(shared)})",
        ("strategy", "phase", *(f"{n:,}" for n in sizes), "known by"),
        tuple(lines),
        "counted: by the profiler on this device. predicted: from the ops that the strategy sends "
        "to fake CUDA tensors. A strategy that is not here has no count.",
    )


def _sizes(found: Sequence[int]) -> list[int]:
    if len(found) <= _COLUMNS:
        return list(found)
    telling = [size for size in _TELLING if size in found]
    return sorted({*telling, found[0], found[-1]})


def _words(by_size: pd.DataFrame, seq_len: int) -> str:
    if seq_len not in by_size.index:
        return MISSING
    row: Any = by_size.loc[seq_len]
    return describe_launches(
        LaunchCounts(
            kernels=int(row["kernels"]),
            memcpys=int(row["memcpys"]),
            synchronizations=int(row["synchronizations"]),
            source=row["launches_source"],
        )
    )
