"""From which seq_len on one strategy beats another."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
import pandas as pd

from kvbench.analysis.statistics import CONFIDENCE

Floats = npt.NDArray[np.float64]
_RESAMPLES = 400


@dataclass(frozen=True, slots=True)
class Crossover:
    """Where the faster of two strategies changes for the last time."""

    strategy: str
    other: str
    kind: Literal["from", "always", "never"]
    """"from": `strategy` is faster from seq_len on. "always": at every size measured, in the whole
    interval. "never": not at the largest size."""
    seq_len: float | None
    low: float | None
    """Lower end of the interval; the smallest size measured if the resamples go below it."""
    high: float | None
    """Upper end of the interval; inf if in that share of resamples it never wins for good."""


def crossover(
    strategy: str, other: str, seq_lens: Sequence[int], ratios: Sequence[Floats], *, seed: int = 0
) -> Crossover:
    """Find the last change of sides, between sizes by interpolation in the logarithms.

    Args:
        strategy: The one that is asked about.
        other: The one it is held against.
        seq_lens: Ascending sizes.
        ratios: For each size, the in-round ratios other / strategy: above 1, strategy is faster.
        seed: Of the bootstrap.
    """
    sizes = np.log(np.asarray(seq_lens, dtype=np.float64))
    medians = np.array([np.median(r) for r in ratios])
    point = last_crossing(sizes, np.log(medians))
    rng = np.random.default_rng(seed)
    resampled = np.column_stack(
        [np.median(r[rng.integers(0, len(r), (_RESAMPLES, len(r)))], axis=1) for r in ratios]
    )
    draws = np.sort([last_crossing(sizes, np.log(row)) for row in resampled])
    tail = round((1 - CONFIDENCE) / 2 * _RESAMPLES)
    low, high = draws[tail], draws[-tail - 1]
    if point == -np.inf and high == -np.inf:
        return Crossover(strategy, other, "always", None, None, None)
    if point == -np.inf:
        # Faster at every size by the medians, but not surely: from the first size, if at all there.
        point = sizes[0]
    if point == np.inf:
        return Crossover(strategy, other, "never", None, None, None)
    first = float(seq_lens[0])
    return Crossover(
        strategy,
        other,
        "from",
        float(np.exp(point)),
        max(float(np.exp(low)), first),
        float(np.exp(high)),
    )


def last_crossing(sizes: Floats, logs: Floats) -> float:
    """log(seq_len) from which all ratios are above 1; -inf if always, inf if never.

    Args:
        sizes: log(seq_len), ascending.
        logs: The logarithm of the ratio at each size.
    """
    losing = np.flatnonzero(logs <= 0)
    if len(losing) == 0:
        return -np.inf
    last = int(losing[-1])
    if last == len(logs) - 1:
        return np.inf
    share = -logs[last] / (logs[last + 1] - logs[last])
    return float(sizes[last] + share * (sizes[last + 1] - sizes[last]))


def crossovers(runs: pd.DataFrame) -> list[Crossover]:
    """Every pair of strategies in rows that differ in seq_len and strategy alone.

    A pair is reported once, from the side of the one that wins at the largest size.
    """
    table = {
        str(name): own.set_index("seq_len")["samples_s"].sort_index()
        for name, own in runs.groupby("strategy", sort=True)
    }
    found = []
    names = sorted(table)
    for i, one in enumerate(names):
        for two in names[i + 1 :]:
            shared = table[one].index.intersection(table[two].index).sort_values()
            if len(shared) < 2:  # noqa: PLR2004 - a change of sides needs two sizes
                continue
            ratios = [np.asarray(table[two][n]) / np.asarray(table[one][n]) for n in shared]
            wins = np.median(ratios[-1]) > 1
            pair = (one, two) if wins else (two, one)
            sided = ratios if wins else [1 / r for r in ratios]
            found.append(crossover(*pair, [int(n) for n in shared], sided))
    return found
