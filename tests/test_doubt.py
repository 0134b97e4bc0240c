"""Times that contradict those of other sizes."""

import pytest
from made import result, sweep_rows
from made_report import run_of, unresolved

from kvbench.analysis.doubt import doubtful
from kvbench.analysis.frame import to_frame
from kvbench.report.machine import doubt_table, doubts
from kvbench.report.sections import compose


def row(seq_len: int, scale: float, strategy: str = "write.a", **fields):
    return result(strategy, [scale * 1e-5] * 5, seq_len=seq_len, repro=f"again {seq_len}", **fields)


def found(*rows) -> list[tuple[str, int, int, float]]:
    frame = doubtful(to_frame(rows))
    columns = (frame[name] for name in ("strategy", "seq_len", "other", "ratio"))
    return [(s, n, m, pytest.approx(r)) for s, n, m, r in zip(*columns, strict=True)]


def test_more_tokens_in_a_third_of_the_time_or_less_are_doubted():
    assert found(row(1, 1), row(8, 7), row(64, 2)) == [("write.a", 8, 64, 3.5)]
    assert found(row(64, 2), row(8, 6), row(1, 1)) == [("write.a", 8, 64, 3)]


def test_of_disturbed_neighbours_both_are_found():
    rows = [row(1, 1), row(8, 90), row(64, 100), row(512, 3), row(4096, 20)]
    assert found(*rows) == [("write.a", 8, 512, 30), ("write.a", 64, 512, 100 / 3)]


def test_a_time_that_grew_far_more_than_the_tokens_is_doubted_and_those_behind_it():
    rows = [row(1, 1), row(16, 1.2), row(64, 1550), row(256, 1420)]
    assert found(*rows) == [
        ("write.a", 64, 16, 1550 / 1.2),
        ("write.a", 256, 16, 1420 / 1.2),
    ]


def test_tokens_may_each_be_far_dearer_where_they_no_longer_fit():
    assert found(row(1024, 1), row(4096, 159)) == []
    assert found(row(1024, 1), row(4096, 160)) == [("write.a", 4096, 1024, 160)]


@pytest.mark.parametrize(
    ("times", "doubted"),
    [
        ((1, 1, 1), []),
        ((5, 1.8, 1.8), []),
        ((1, 5, 100), []),
        ((2.9, 7, 1), [8]),
        ((3, 7, 1), [1, 8]),
    ],
)
def test_less_than_that_is_what_strategies_do(times, doubted):
    assert [seq_len for _, seq_len, _, _ in found(*map(row, (1, 8, 64), times))] == doubted


@pytest.mark.parametrize(
    "other",
    [{"strategy": "write.b"}, {"phase": "prepare"}, {"clock": "device"}, {"block_size": 64}],
)
def test_only_what_differs_in_nothing_else_is_held_against_each_other(other):
    assert found(row(1, 9), row(8, 1, **other)) == []


def test_what_was_not_timed_is_no_neighbour():
    assert found(row(1, 9), result("write.a", None, seq_len=8, status="failed")) == []
    assert found() == []
    assert found(*sweep_rows()) == []


def test_doubtful_times_are_told_with_how_to_measure_them_again():
    table = doubt_table(doubtful(to_frame([row(8, 500), row(64, 2)])))
    assert table.rows == (
        ("write.a", "run", "wall", "op=write seq_len=8", "5.00 ms", "20.0 µs at 64", "again 8"),
    )
    assert doubt_table(doubtful(to_frame(sweep_rows()))) is None


def test_of_many_doubtful_times_a_terminal_has_those_that_are_contradicted_most():
    rows = [row(8, 500), row(16, 900), row(32, 700), row(64, 2)]
    table = doubt_table(doubtful(to_frame(rows)), 2)
    assert [line[3] for line in table.rows] == ["op=write seq_len=16", "op=write seq_len=32"]
    assert table.note.endswith("The report has 1 more.")
    assert "The report" not in doubt_table(doubtful(to_frame(rows)), 3).note


def test_how_much_times_are_contradicted_is_counted_beyond_what_more_tokens_take():
    # 60 times as long for each token is half as much over its limit as 9 times as long.
    rows = [row(1, 1), row(512, 512 * 60), row(1024, 512 * 60 / 9)]
    frame = to_frame(rows)
    assert sorted(doubtful(frame)["seq_len"]) == [512]
    other = [row(1, 1, block_size=64), row(4096, 4096 * 60, block_size=64)]
    both = doubtful(to_frame([*rows, *other]))
    assert [line[3] for line in doubt_table(both, 1).rows] == ["op=write seq_len=512"]


def test_that_times_are_to_be_doubted_is_said_first():
    rows = [row(8, 500), row(16, 900), row(64, 2)]
    run, frame = run_of(rows), to_frame(rows)
    assert doubts(doubtful(frame), frame).startswith("2 of 3 times are to be doubted: others")
    first, *_ = compose(run, frame, 32).sections[0].parts
    assert first.markdown == f"**{doubts(doubtful(frame), frame)}**"
    one = to_frame([row(8, 500), row(64, 2)])
    assert doubts(doubtful(one), one).startswith("1 of 2 times is to be doubted: ")
    assert doubts(doubtful(to_frame(sweep_rows())), to_frame(sweep_rows())) == ""


def test_a_time_that_is_mostly_the_clock_s_own_contradicts_nothing():
    assert found(row(1, 3), unresolved(row(8, 1))) == []
    assert found(unresolved(row(1, 3)), row(8, 1)) == [("write.a", 1, 8, 3)]
