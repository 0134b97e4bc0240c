"""Where one strategy begins to beat another."""

import numpy as np
import pytest

from kvbench.analysis.crossover import crossover

SIZES = [1, 2, 4, 8, 16, 32]


def noisy(medians, spread=0.01, rounds=40, seed=0):
    rng = np.random.default_rng(seed)
    return [m * rng.lognormal(0, spread, rounds) for m in medians]


def test_the_change_of_sides_is_interpolated_in_the_logarithms():
    # Ratios n / 6 cross 1 at 6, between 4 and 8.
    found = crossover("a", "b", SIZES, noisy([n / 6 for n in SIZES]))
    assert found.kind == "from"
    assert found.seq_len == pytest.approx(6, rel=0.02)
    assert found.low <= found.seq_len <= found.high
    assert found.high / found.low < 1.1


def test_a_wider_spread_gives_a_wider_interval():
    narrow = crossover("a", "b", SIZES, noisy([n / 6 for n in SIZES], 0.01))
    wide = crossover("a", "b", SIZES, noisy([n / 6 for n in SIZES], 0.3))
    assert wide.high / wide.low > narrow.high / narrow.low


def test_the_last_change_counts():
    found = crossover("a", "b", SIZES, noisy([2, 2, 0.5, 0.5, 2, 2], 0.001))
    assert 8 < found.seq_len < 16


@pytest.mark.parametrize(("ratio", "kind"), [(2.0, "always"), (0.5, "never")])
def test_one_that_is_always_or_never_faster_has_no_crossover(ratio, kind):
    found = crossover("a", "b", SIZES, noisy([ratio] * 6))
    assert (found.kind, found.seq_len, found.low, found.high) == (kind, None, None, None)


def test_faster_by_the_medians_alone_is_not_always():
    # At the first size it is a toss-up.
    found = crossover("a", "b", SIZES, noisy([1.001, 2, 2, 2, 2, 2], 0.05, seed=3))
    assert found.kind == "from"
    assert found.low == 1
    assert found.high > 1


def test_an_interval_that_reaches_past_the_sizes_says_so():
    # The last size is a toss-up: in a share of the resamples it never wins for good.
    found = crossover("a", "b", SIZES, noisy([0.5, 0.5, 0.5, 0.5, 0.5, 1.005], 0.05))
    assert found.kind == "never" or found.high == float("inf")
