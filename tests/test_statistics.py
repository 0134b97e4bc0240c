"""The median's interval: what it promises, and what it is good for."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kvbench.analysis.statistics import CONFIDENCE, Estimate, median_interval, ratio_interval

samples_s = st.lists(st.floats(1e-9, 1e3), min_size=2, max_size=40)


@example(value=539.3792063018742, count=2)
@given(st.floats(1e-9, 1e3), st.integers(2, 60))
def test_constant_samples_have_an_interval_of_no_width(value, count):
    assert median_interval([value] * count) == Estimate(value, value, value)


@example(samples=[1.0, 640.9230070846589])
@given(samples_s)
def test_the_interval_holds_the_median_and_lies_within_the_samples(samples):
    estimate = median_interval(samples)
    assert estimate.median == np.median(samples)
    assert min(samples) <= estimate.low <= estimate.median <= estimate.high <= max(samples)


@given(samples_s, st.integers(-30, 30))
def test_another_unit_gives_the_same_interval(samples, power):
    # Powers of two, which scale floats exactly.
    factor = 2.0**power
    one, other = median_interval(samples), median_interval([s * factor for s in samples])
    assert (other.median, other.low, other.high) == (
        one.median * factor,
        one.low * factor,
        one.high * factor,
    )


@given(samples_s)
def test_the_same_samples_always_have_the_same_interval(samples):
    assert median_interval(samples) == median_interval(tuple(samples))
    assert median_interval(samples) == median_interval(np.array(samples))


def test_another_seed_resamples_anew():
    samples = np.random.default_rng(0).lognormal(size=31)
    intervals = {median_interval(samples, resamples=99, seed=seed) for seed in range(5)}
    assert len(intervals) > 1
    assert len({interval.median for interval in intervals}) == 1


def test_half_the_width_is_a_share_of_the_median():
    assert Estimate(2.0, 1.9, 2.3).relative_half_width == pytest.approx(0.1)
    assert Estimate(2.0, 2.0, 2.0).relative_half_width == 0


@pytest.mark.parametrize("count", [10, 30])
def test_the_interval_covers_the_true_median_about_as_often_as_it_says(count):
    rng = np.random.default_rng(1)
    draws = 600
    covered = 0
    for _ in range(draws):
        # Skewed to the right, as times are; the median is 1.
        estimate = median_interval(rng.lognormal(0, 0.5, count), resamples=599)
        covered += estimate.low <= 1 <= estimate.high
    # The bootstrap of a median is a little off for few samples: a band that knows that.
    assert CONFIDENCE - 0.03 <= covered / draws <= CONFIDENCE + 0.035


def test_more_confidence_is_a_wider_interval():
    samples = np.random.default_rng(2).lognormal(size=25)
    narrow, wide = (median_interval(samples, confidence=c) for c in (0.5, 0.99))
    assert wide.low < narrow.low <= narrow.high < wide.high


def test_more_samples_make_the_interval_narrower():
    rng = np.random.default_rng(3)
    few, many = (median_interval(rng.lognormal(size=n)) for n in (20, 2000))
    assert many.relative_half_width < few.relative_half_width / 4


TRUE_RATIO = 1.2


def drifting_pair(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Two strategies on a machine whose speed drifts by a factor of two and jumps once."""
    rng = np.random.default_rng(seed)
    rounds = 40
    drift = np.exp(np.cumsum(rng.normal(0, 0.1, rounds))) * np.where(np.arange(rounds) < 20, 1, 2)
    slow, fast = (rng.lognormal(0, 0.01, rounds) * drift for _ in range(2))
    return slow * TRUE_RATIO, fast


def test_ratios_within_rounds_find_what_a_drift_hides():
    found = 0
    for seed in range(100):
        slow, fast = drifting_pair(seed)
        ratio = ratio_interval(slow, fast)
        assert ratio.median == pytest.approx(TRUE_RATIO, rel=0.01)
        apart, base = median_interval(slow), median_interval(fast)
        assert ratio.high - ratio.low < (apart.high / base.low - apart.low / base.high) / 10
        found += ratio.low <= TRUE_RATIO <= ratio.high
    assert found >= 88


@given(samples_s, st.integers(-20, 20))
def test_a_constant_ratio_is_found_exactly(samples, power):
    factor = 2.0**power
    assert ratio_interval([s * factor for s in samples], samples) == Estimate(
        factor, factor, factor
    )


def test_rounds_that_do_not_match_are_refused():
    with pytest.raises(ValueError, match="broadcast"):
        ratio_interval([1.0, 2.0, 3.0], [1.0, 2.0])
