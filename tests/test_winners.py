"""Which strategy wins in each band of sizes, by how much, and whether that is sure."""

import math

import pytest
from made import result, sweep_rows

from kvbench.analysis.frame import to_frame
from kvbench.analysis.winners import bands

LAYERS = 32


def loop_s(tokens: int) -> float:
    """As made.STRATEGY_TIMES_S has it."""
    return LAYERS * (1e-6 + 5e-6 * tokens)


def slot_mapping_s(tokens: int) -> float:
    return (LAYERS + 0.5) * (1e-5 + 4e-9 * tokens)


def row(strategy: str, scale: float, seq_len: int = 8, **fields):
    """A strategy whose rounds all take so many times 10 µs."""
    return result(strategy, [scale * 1e-5] * 8, seq_len=seq_len, **fields)


def test_bands_end_where_sizes_do_and_name_the_sizes_that_there_are():
    frame = to_frame(sweep_rows(seq_lens=(1, 8, 16, 17, 256, 4096, 8192)))
    assert [(band.low, band.high, band.cases) for band in bands(frame, "write", LAYERS)] == [
        (1, 16, 3),
        (17, 256, 2),
        (4096, 4096, 1),
        (8192, 8192, 1),
    ]


def test_tokens_are_those_of_the_whole_batch():
    frame = to_frame(sweep_rows(seq_lens=(1,), batch=64))
    (band,) = bands(frame, "write", LAYERS)
    assert (band.low, band.high) == (64, 64)


def test_the_winner_has_the_least_mean_and_the_margin_is_the_geometric_mean_of_ratios():
    (band,) = bands(to_frame(sweep_rows(seq_lens=(1, 8))), "write", LAYERS)
    assert (band.winner, band.runner_up) == ("write.slot_mapping", "write.loop")
    expected = math.sqrt(loop_s(1) / slot_mapping_s(1) * loop_s(8) / slot_mapping_s(8))
    assert band.margin.median == pytest.approx(expected)
    # Noise that is the same in a round is none in a ratio within it.
    assert band.margin.high - band.margin.low == pytest.approx(0, abs=1e-9)
    assert band.fastest == 1  # one token is the loop's
    assert band.least == pytest.approx(loop_s(1) / slot_mapping_s(1))
    # At 8 tokens another than the runner-up is the quickest that is left.
    indexing_s = LAYERS * (4e-5 + 5e-9 * 8)
    assert band.most == pytest.approx(indexing_s / slot_mapping_s(8))
    assert band.tied == ()


def test_what_its_interval_can_not_tell_apart_is_tied():
    twins = [
        result("write.a", [1e-5, 1.1e-5, 0.9e-5, 1e-5, 1.2e-5, 1e-5, 1e-5, 0.8e-5]),
        result("write.b", [1.1e-5, 1e-5, 1e-5, 0.9e-5, 1e-5, 1.3e-5, 1.1e-5, 1e-5]),
        row("write.c", 3),
    ]
    (band,) = bands(to_frame(twins), "write", 1)
    assert (band.winner, band.tied) == ("write.a", ("write.b",))
    assert band.margin.low <= 1 <= band.margin.high


def test_the_interval_over_cases_is_that_of_their_mean():
    """Of independent intervals that are alike, the mean of n logarithms has 1/sqrt(n) the width."""

    rows = [
        one
        for seq_len in (1, 2, 3, 4)
        for one in (
            result("write.a", [1e-5] * 16, seq_len=seq_len),
            result("write.b", [2e-5, 2.2e-5] * 8, seq_len=seq_len),
        )
    ]
    alone = bands(to_frame(rows[:2]), "write", 1)[0].margin
    four = bands(to_frame(rows), "write", 1)[0].margin
    assert math.log(four.high / four.low) == pytest.approx(math.log(alone.high / alone.low) / 2)


def test_cases_that_lack_a_strategy_are_left_out_and_counted():
    rows = [
        row("write.a", 1, 1),
        row("write.b", 2, 1),
        row("write.a", 9, 2),  # would make the mean
        result("write.b", None, seq_len=2, status="over budget"),
    ]
    (band,) = bands(to_frame(rows), "write", 1)
    assert (band.winner, band.cases, band.left_out, band.shared) == ("write.a", 1, 1, True)
    assert (band.low, band.high) == (1, 1)  # of a size that was left out nothing is said
    assert band.margin.median == pytest.approx(2)


def test_a_strategy_alone_has_nobody_to_be_ahead_of():
    (band,) = bands(to_frame([row("write.a", 1)]), "write", 1)
    assert math.isnan(band.least)
    assert (band.winner, band.runner_up, band.margin, band.tied) == ("write.a", None, None, ())


def test_strategies_without_a_case_in_common_have_no_margin():
    (band,) = bands(to_frame([row("write.a", 1, 1), row("write.b", 1, 2)]), "write", 1)
    assert (band.runner_up, band.margin, band.shared) == (None, None, False)


@pytest.mark.parametrize("op", ["read", "write"])
def test_nothing_timed_has_no_bands(op):
    rows = [result("write.a", None, status="unsupported"), row("write.a", 1, batch=0)]
    assert bands(to_frame(rows), op, 1) == []
