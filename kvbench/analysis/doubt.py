"""Times that contradict their neighbours: something else had the machine while they were taken.

All samples of a case are taken within a few seconds. Another process that has a core meanwhile
makes them all longer alike, and their interval stays narrow: it tells of the rounds, not of the
minute. What gives such a time away is that more tokens take less, or that it grew far more than the
tokens did.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from kvbench.analysis.frame import settings_of

Sizes = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Known = npt.NDArray[np.bool_]

LEAST = 3.0
"""Times as long as a call of more tokens, from which on a call is doubted. A change of algorithm
within a strategy makes some 1.8; a core that somebody else has, tens and hundreds."""
JUMP = 40.0
"""Times as long for each token as a call of fewer tokens, from which on a call is doubted. What no
longer fits a cache, and is mapped page by page, makes each of more tokens some 20 times dearer."""


def doubtful(frame: pd.DataFrame) -> pd.DataFrame:
    """Timed rows that others of their line, the same but for seq_len, contradict.

    A time at least `LEAST` times that of more tokens, of which the quickest counts; or, for each
    token, at least `JUMP` times that of fewer, of which the quickest counts. Neighbours may both be
    disturbed. A time that is mostly the clock's own contradicts nothing.

    Args:
        frame: Rows of a run.

    Returns:
        Those rows in their order, with the columns other (the seq_len that contradicts) and ratio
        (of the medians).
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
            sizes, times, known = seq_lens[line], medians[line], resolved[line].astype(bool)
            for number, place in enumerate(line):
                other = _against(number, sizes, times, known)
                if other is not None:
                    ratio = float(times[number] / times[other])
                    found.append((own.index[place], int(sizes[other]), ratio))
    found.sort()
    rows = ok.loc[[place for place, _, _ in found]]
    return rows.assign(
        other=pd.Series([other for _, other, _ in found], rows.index, "int64"),
        ratio=pd.Series([ratio for _, _, ratio in found], rows.index, "float64"),
    )


def _against(number: int, sizes: Sizes, times: Floats, known: Known) -> int | None:
    """Which time of a line contradicts one of them; None if none does.

    Args:
        number: The one, in the order of sizes.
        sizes: Ascending seq_lens.
        times: The median of each.
        known: Whether each is more than the clock's own.
    """
    larger = np.flatnonzero(known[number + 1 :]) + number + 1
    if len(larger):
        quickest = int(larger[np.argmin(times[larger])])
        if times[number] >= LEAST * times[quickest]:
            return quickest
    fewer = np.flatnonzero(known[:number])
    if len(fewer):
        each = times / sizes
        quickest = int(fewer[np.argmin(each[fewer])])
        if each[number] >= JUMP * each[quickest]:
            return quickest
    return None
