"""Times that contradict their neighbours: something else had the machine while they were taken.

All samples of a case are taken within a few seconds. Another process that has a core meanwhile
makes them all longer alike, and their interval stays narrow: it tells of the rounds, not of the
minute. What gives such a time away is that more tokens take less.
"""

from typing import Any

import numpy as np
import pandas as pd

from kvbench.analysis.frame import settings_of

LEAST = 3.0
"""Times as long as a call of more tokens, from which on a call is doubted. A change of algorithm
within a strategy makes some 1.8; a core that somebody else has, tens and hundreds."""


def doubtful(frame: pd.DataFrame) -> pd.DataFrame:
    """Timed rows that took at least `LEAST` times as long as the same with more tokens.

    Of those with more tokens the quickest counts: neighbours may both be disturbed. A time that is
    mostly the clock's own contradicts nothing.

    Args:
        frame: Rows of a run.

    Returns:
        Those rows in their order, with the columns larger (that other seq_len) and ratio (of the
        medians).
    """
    ok = frame[(frame["status"] == "ok") & (frame["tokens"] > 0)]
    found: list[tuple[Any, int, float]] = []
    for _, own in ok.groupby(["strategy", "phase", "clock"], sort=False):
        # Arrays: there are thousands of lines, and to take one's rows takes all of its columns.
        seq_lens, medians, resolved = (
            own[name].to_numpy() for name in ("seq_len", "median_s", "resolved")
        )
        for _, places in settings_of(own, ("seq_len",)):
            line = places[np.argsort(seq_lens[places], kind="stable")]
            quickest = -1  # of the larger ones
            for place in line[::-1]:
                if quickest >= 0 and medians[place] >= LEAST * medians[quickest]:
                    ratio = float(medians[place] / medians[quickest])
                    found.append((own.index[place], int(seq_lens[quickest]), ratio))
                if resolved[place] and (quickest < 0 or medians[place] < medians[quickest]):
                    quickest = place
    found.sort()
    rows = ok.loc[[place for place, _, _ in found]]
    return rows.assign(
        larger=pd.Series([larger for _, larger, _ in found], rows.index, "int64"),
        ratio=pd.Series([ratio for _, _, ratio in found], rows.index, "float64"),
    )
