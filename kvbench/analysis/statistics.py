"""Medians and their intervals."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import stats

CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class Estimate:
    """A median with the ends of its interval."""

    median: float
    low: float
    high: float

    @property
    def relative_half_width(self) -> float:
        """Half the interval's width, as a share of the median."""
        return (self.high - self.low) / 2 / self.median


def median_interval(
    samples: Sequence[float] | npt.NDArray[np.float64],
    *,
    confidence: float = CONFIDENCE,
    resamples: int = 1999,
    seed: int = 0,
) -> Estimate:
    """The median of samples with its percentile-bootstrap interval.

    The percentile method, because BCa's correction breaks down on the median of ties.

    Args:
        samples: Two or more samples.
        confidence: Of the interval.
        resamples: Bootstrap resamples.
        seed: Of the resampling; the same samples always give the same interval.
    """
    values = np.asarray(samples, dtype=np.float64)
    interval = stats.bootstrap(
        (values,),
        np.median,
        confidence_level=confidence,
        n_resamples=resamples,
        method="percentile",
        rng=np.random.default_rng(seed),
    ).confidence_interval
    median = float(np.median(values))
    # Interpolated percentiles can miss the value that they interpolate by a rounding.
    low = max(min(float(interval.low), median), float(values.min()))
    high = min(max(float(interval.high), median), float(values.max()))
    return Estimate(median, low, high)


def ratio_interval(
    numerators: Sequence[float], denominators: Sequence[float], *, confidence: float = CONFIDENCE
) -> Estimate:
    """The median of the ratios within each round, with its exact interval.

    Two strategies sampled in the same round met the same machine; the ratio of their medians would
    mix rounds. The interval is that of the quantile test (a sign test turned round): whatever the
    ratios' distribution, it misses the median at most as often as it says. A bootstrap of 40 ratios
    misses 5 to 6 times in 100. With fewer than 6 rounds no such interval exists, and the range of
    all ratios is given.

    Args:
        numerators: Samples of one strategy, one per round.
        denominators: Samples of the other, of the same rounds.
        confidence: Of the interval.
    """
    ratios = np.asarray(numerators, dtype=np.float64) / np.asarray(denominators, dtype=np.float64)
    low, high = _median_ranks(len(ratios), confidence)
    ordered = np.sort(ratios)
    middle = len(ordered) // 2
    # np.median would take longer than all the rest.
    median = (ordered[middle] + ordered[-middle - 1]) / 2
    return Estimate(float(median), float(ordered[low]), float(ordered[high]))


@functools.lru_cache(maxsize=1024)
def _median_ranks(count: int, confidence: float) -> tuple[int, int]:
    """Which of so many ordered values, from 0, end the quantile test's interval of their median.

    They depend on the number alone, so that the test's own interval of 0, 1, 2, … is theirs.
    """
    interval = stats.quantile_test(np.arange(count)).confidence_interval(confidence)
    low, high = np.where(np.isfinite(interval), interval, [0, count - 1])
    return int(low), int(high)
