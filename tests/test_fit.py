"""The launch-overhead model, on rows whose constants are known."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made import result
from test_fastest import launching

from kvbench.analysis import fit as fit_module
from kvbench.analysis.fit import (
    _RESAMPLES,
    MOST_CONDITION,
    Fit,
    Refusal,
    _identifiable,
    _resampled,
    _solve,
    fit_model,
    fit_run,
)
from kvbench.analysis.frame import to_frame

TOKENS = np.array([1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192], dtype=float)


def grid(row_bytes=(2048.0, 8192.0)):
    tokens = np.concatenate([TOKENS for _ in row_bytes])
    nbytes = np.concatenate([4 * TOKENS * row for row in row_bytes])
    return tokens, nbytes


@given(
    call=st.floats(1e-6, 5e-5),
    launch=st.floats(2e-6, 2e-5),
    bandwidth=st.floats(5e9, 5e11),
)
def test_known_constants_are_recovered_exactly_from_exact_rows(call, launch, bandwidth):
    tokens, nbytes = grid()
    seconds = call + launch * 2 * tokens + nbytes / bandwidth
    fit = fit_model("loop", 2 * tokens, nbytes, seconds)
    assert isinstance(fit, Fit)
    assert fit.per_call_s.value == pytest.approx(call, rel=0.01)
    assert fit.per_launch_s.value == pytest.approx(launch, rel=0.01)
    assert fit.r_squared > 0.999


@pytest.mark.parametrize("seed", range(5))
def test_known_constants_are_recovered_within_5_percent_from_noisy_rows(seed):
    # Eight rows per point with 5 % noise, as a sweep over heads, blocks and dtypes has.
    rng = np.random.default_rng(seed)
    tokens, nbytes = grid((512.0, 2048.0, 8192.0, 32768.0) * 8)
    call, launch, bandwidth = 2e-5, 5e-6, 2e10
    exact = call + launch * 2 * tokens + nbytes / bandwidth
    fit = fit_model("loop", 2 * tokens, nbytes, exact * rng.lognormal(0, 0.05, len(exact)))
    assert isinstance(fit, Fit)
    assert fit.per_call_s.value == pytest.approx(call, rel=0.05)
    assert fit.per_launch_s.value == pytest.approx(launch, rel=0.05)
    assert fit.bandwidth_bytes_per_s.value == pytest.approx(bandwidth, rel=0.05)
    for term, true in ((fit.per_launch_s, launch), (fit.bandwidth_bytes_per_s, bandwidth)):
        assert term.low <= term.value <= term.high
        assert term.low * 0.97 <= true <= term.high * 1.03
    assert fit.rank == 3


def test_one_launch_count_gives_one_overhead_and_says_that_it_is_both():
    tokens, nbytes = grid()
    fit = fit_model("fused", np.full_like(tokens, 2.0), nbytes, 3e-5 + nbytes / 1e10)
    assert isinstance(fit, Fit)
    assert (fit.per_call_s, fit.per_launch_s) == (None, None)
    assert fit.overhead_s.value == pytest.approx(3e-5, rel=1e-6)
    assert fit.bandwidth_bytes_per_s.value == pytest.approx(1e10, rel=1e-6)
    np.testing.assert_allclose(fit.predict(np.array([2.0]), np.array([1e6])), 3e-5 + 1e-4)


def test_a_loop_at_fixed_bytes_per_token_is_refused_with_its_condition():
    tokens, nbytes = grid((2048.0,))
    fit = fit_model("loop", 2 * tokens, nbytes, 1e-5 + 1e-5 * tokens)
    assert isinstance(fit, Refusal)
    assert "launches and bytes grow together" in fit.reason
    assert fit.rank == 2


def test_nearly_fixed_bytes_per_token_are_refused_too():
    tokens, nbytes = grid((2048.0, 2050.0))
    fit = fit_model("loop", 2 * tokens, nbytes, 1e-5 + 1e-5 * tokens)
    assert isinstance(fit, Refusal)
    assert fit.condition > 200


def test_too_few_cells_and_bytes_that_never_vary_are_refused():
    few = fit_model("few", [1, 2, 3], [1e3, 2e3, 5e3], [1e-5, 2e-5, 3e-5])
    same = fit_model("same", list(range(1, 9)), [1e3] * 8, [1e-5] * 8)
    assert isinstance(few, Refusal)
    assert "3 cells" in few.reason
    assert isinstance(same, Refusal)
    flat = fit_model("flat", TOKENS, 4 * TOKENS, [1e-5] * len(TOKENS))
    assert isinstance(flat, Refusal)
    assert flat.reason == "every cell takes as long; expected times that vary"
    assert "as many bytes" in same.reason


def test_no_term_is_negative_even_where_the_best_unbounded_fit_has_one():
    tokens, nbytes = grid()
    falling = 1e-4 / np.sqrt(tokens)
    fit = fit_model("odd", 2 * tokens, nbytes, falling)
    assert isinstance(fit, Fit)
    assert fit.per_launch_s.value >= 0
    assert fit.bandwidth_bytes_per_s is None or fit.bandwidth_bytes_per_s.value > 0
    assert fit.r_squared < 0.5  # and it says that it explains little


def test_errors_are_relative_so_that_short_calls_count():
    # One cell of 10 ms that is off by 2 % would outweigh every short one in absolute terms.
    tokens, nbytes = grid()
    seconds = 2e-5 + 5e-6 * 2 * tokens + nbytes / 2e10
    seconds[-1] *= 1.02
    fit = fit_model("loop", 2 * tokens, nbytes, seconds)
    assert isinstance(fit, Fit)
    assert fit.per_call_s.value == pytest.approx(2e-5, rel=0.02)


def test_resamples_that_cannot_tell_the_terms_apart_have_no_part_in_the_interval():
    """One cell alone has other launches: a third of all resamples are without it."""
    launches = np.array([2.0] * 9 + [500.0])
    nbytes = np.array([2.0**n for n in range(10, 20)])
    matrix = np.column_stack([np.ones(10), launches, nbytes]) / 1e-4
    draws = _resampled(matrix, np.random.default_rng(0))
    assert draws.shape == (_RESAMPLES, 3)
    rng = np.random.default_rng(0)
    samples = [matrix[rng.integers(0, 10, 10)] for _ in range(10 * _RESAMPLES)]
    judged = [_identifiable(sample) for sample in samples]
    good = [rank == 3 and condition <= MOST_CONDITION for rank, condition in judged]
    kept = list(itertools.compress(samples, good))[:_RESAMPLES]
    np.testing.assert_array_equal(draws, [_solve(sample) for sample in kept])
    assert good[:_RESAMPLES].count(False) > 0.2 * _RESAMPLES


def test_cells_of_which_hardly_any_resample_identifies_the_model_are_refused(monkeypatch):
    tokens, nbytes = grid()
    answers = iter([(3, 5.0)])  # all cells do; no resample
    monkeypatch.setattr(fit_module, "_identifiable", lambda _: next(answers, (2, 1e16)))
    found = fit_model("loop", 2 * tokens, nbytes, 1e-5 + nbytes / 1e10)
    assert isinstance(found, Refusal)
    assert "fewer than one in 10 resamples of the cells tell launches and bytes apart" in str(
        found.reason
    )


def test_a_call_whose_gather_is_known_to_launch_ever_more_is_not_taken_to_launch_as_often():
    rows = []
    for phase in ("run", "gather"):
        for n in (16, 64, 256, 1024, 4096, 8192):
            counts = launching(n // 16) if phase == "gather" else None
            for strategy in ("attend.mine", "attend.other"):
                grown = strategy == "attend.mine"
                own = counts if grown or counts is None else launching(2)
                row = result(strategy, [1e-6 * n] * 5, seq_len=n, phase=phase, launches=own)
                rows.append(row)
    fits = {fit.name: fit for fit in fit_run(to_frame(rows), "attend")}
    assert fits["attend.mine"].reason.startswith("its launches grow with the case")
    assert isinstance(fits["attend.other"], Fit)


def test_of_whole_steps_launches_that_are_not_known_are_not_taken_for_as_many():
    rows = [
        result("step.mine+native", [1e-5 * layers] * 5, seq_len=n, num_layers=layers)
        for n in (8, 64, 512)
        for layers in (1, 2, 4)
    ]
    (refused,) = fit_run(to_frame(rows), "step")
    assert isinstance(refused, Refusal)
    assert refused.reason.startswith("every layer launches")
