"""Every row of a run as a CSV file: for a spreadsheet, or to be searched where it is shown."""

from pathlib import Path

import pandas as pd

from kvbench.analysis.frame import CASE_FIELDS
from kvbench.errors import StoreError
from kvbench.files import replace_file

COLUMNS = (
    "phase",
    "clock",
    "cache",
    "status",
    "median_s",
    "low_s",
    "high_s",
    "launches",
    "launches_source",
    "nbytes",
    "copy_share",
    "stopped_by",
    "resolved",
    "reason",
    "repro",
)
"""What stands on a line behind the case's fields."""


def columns(frame: pd.DataFrame) -> list[str]:
    """Strategy, op and seq_len, the case's other fields that vary in the run, then `COLUMNS`.

    Args:
        frame: The rows of a run.
    """
    varying = [name for name in CASE_FIELDS if frame[name].nunique() > 1]
    return [*dict.fromkeys(("strategy", "op", "seq_len", *varying)), *COLUMNS]


def save_rows(frame: pd.DataFrame, path: Path) -> None:
    """Write a line per row of the run, times in seconds and at full precision.

    What was not measured is empty, never 0.

    Args:
        frame: The rows of a run.
        path: The file; its folder is made if it is missing.

    Raises:
        StoreError: It can't be written.
    """
    try:
        replace_file(
            path, frame.to_csv(columns=columns(frame), index=False, lineterminator="\n").encode()
        )
    except OSError as error:
        raise StoreError(f"{str(path)!r}: {error.strerror}") from error
