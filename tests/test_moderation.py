"""Variances of a few values, drawn towards what many have in common."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from kvbench.analysis.moderation import moderate


def drawn(rng, cells, df, prior_df, typical):
    """Sample variances whose true ones scatter as the model has it."""
    true = typical * prior_df / rng.chisquare(prior_df, cells)
    return true, true * rng.chisquare(df, cells) / df


@pytest.mark.parametrize("prior_df", [3, 10])
def test_the_prior_is_found_again(prior_df):
    rng = np.random.default_rng(0)
    _, seen = drawn(rng, 20_000, 4, prior_df, 0.02**2)
    found = moderate(seen, np.full(20_000, 4.0))
    assert found.typical == pytest.approx(0.02**2, rel=0.05)
    assert found.df == pytest.approx(4 + prior_df, rel=0.1)
    # Smyth's equation 7, with what was found.
    prior = found.df[0] - 4
    assert found.variances == pytest.approx((prior * found.typical + 4 * seen) / (prior + 4))


def test_variances_that_are_alike_become_one_with_all_that_is_known():
    rng = np.random.default_rng(0)
    seen = 0.01**2 * rng.chisquare(4, 60) / 4
    found = moderate(seen, np.full(60, 4.0))
    assert found.variances.std() < 0.1 * seen.std()
    assert found.df.min() > 40
    assert found.df.max() <= 240  # all values there are


def test_moderated_variances_are_nearer_to_the_true_ones():
    rng = np.random.default_rng(1)
    true, seen = drawn(rng, 200, 4, 6, 1e-4)
    found = moderate(seen, np.full(200, 4.0)).variances
    assert np.abs(np.log(found / true)).mean() < 0.6 * np.abs(np.log(seen / true)).mean()


def test_a_t_test_with_them_is_as_often_wrong_as_it_says():
    rng = np.random.default_rng(2)
    true, seen = drawn(rng, 20_000, 4, 5, 1e-4)
    means = rng.normal(0, np.sqrt(true / 5))
    found = moderate(seen, np.full(20_000, 4.0))
    p_values = 2 * stats.t.sf(np.abs(means) / np.sqrt(found.variances / 5), found.df)
    for level in (0.05, 0.01, 0.001):
        assert (p_values < level).mean() == pytest.approx(level, rel=0.35)


def test_one_value_has_no_variance_of_its_own_and_gets_the_typical_one():
    found = moderate(np.array([1e-4, 1e-4, 0.0]), np.array([4.0, 4.0, 0.0]))
    assert found.variances[2] == pytest.approx(found.typical)
    assert found.variances[0] == pytest.approx(found.variances[1])


@given(st.lists(st.floats(0, 1e3), min_size=1, max_size=30), st.integers(1, 9), st.integers(-8, 8))
def test_whatever_the_variances_the_result_can_be_used(values, df, power):
    seen = np.array(values) * 10.0**power
    found = moderate(seen, np.full(len(seen), float(df)))
    assert (found.variances > 0).all()
    assert np.isfinite(found.variances).all()
    assert (found.df >= 1).all()
    assert (found.df <= df * len(seen)).all()
    low, high = max(seen.min(), 1e-12), max(seen.max(), 1e-12)
    assert (found.variances >= 0.2 * low).all()
    assert (found.variances <= 5 * high).all()
