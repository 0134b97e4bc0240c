"""Did it get slower? Verdicts of known differences and known noise."""

import dataclasses
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made import measurement, result, run_info

from kvbench.analysis import comparison
from kvbench.analysis.comparison import NOISE_OF_FEW, Rules, compare, controls
from kvbench.analysis.gate import Gate
from kvbench.cases import Case
from kvbench.results import CopyBandwidth

PAIRS, ROUNDS = 5, 20


def timed(samples_s, strategy="write.loop", *, processes=(), floor_s=1e-9, **fields):
    row = result(strategy, (1.0,), **fields)
    known = measurement(samples_s, processes=tuple(processes), floor_s=floor_s)
    return dataclasses.replace(row, measurement=known)


def noisy(rng, factor=1.0, *, base_s=1e-4, process=0.01, within=0.03):
    """One row's samples by several processes: each has its own speed, and its own hiccups."""
    logs = np.repeat(rng.normal(0, process, PAIRS), ROUNDS) + rng.normal(0, within, PAIRS * ROUNDS)
    hiccups = 1 + (rng.random(PAIRS * ROUNDS) < 0.03) * rng.exponential(1, PAIRS * ROUNDS)
    return (base_s * factor * np.exp(logs) * hiccups).tolist()


def both(rng, factors, seq_lens=(1, 64, 512), **noise):
    """Rows of a base and of a new run, in turns, each strategy slowed by its factor."""
    rows = ([], [])
    for (strategy, factor), seq_len in itertools.product(factors.items(), seq_lens):
        for side, by in zip(rows, (1.0, factor), strict=True):
            samples = noisy(rng, by, base_s=1e-6 * (10 + seq_len), **noise)
            side.append(timed(samples, strategy, processes=(ROUNDS,) * PAIRS, seq_len=seq_len))
    return rows


def judge(base, new, *, interleaved=True, control=0.0, **rules):
    return compare(base, new, Rules(**rules), interleaved=interleaved, control=control)


def regressed(comparison):
    return Gate(comparison=comparison, broken=(), allow_lost=False).regressed


def strategies_of(count):
    return {f"write.s{number}": 1.0 for number in range(count)}


# A difference that is there, and one that isn't.


def test_like_and_like_are_the_same():
    base, new = both(np.random.default_rng(0), strategies_of(12), process=0.003)
    found = judge(base, new)
    assert {each.verdict for each in found.judged} == {"SAME"}
    assert {each.verdict for each in found.summaries} == {"SAME"}
    assert not regressed(found)
    assert (found.interleaved, found.processes) == (True, PAIRS)
    # Of two processes, and of two medians of 20 samples.
    expected = np.sqrt(2) * np.hypot(0.003, 1.2533 * 0.03 / np.sqrt(ROUNDS))
    assert found.noise == pytest.approx(expected, rel=0.2)


@pytest.mark.parametrize(("factor", "verdict"), [(1.1, "SLOWER"), (1 / 1.1, "FASTER")])
def test_a_tenth_is_found_and_nobody_else_is_blamed(factor, verdict):
    factors = strategies_of(12) | {"write.s3": factor}
    base, new = both(np.random.default_rng(0), factors)
    found = judge(base, new)
    changed = [each for each in found.judged if each.verdict == verdict]
    assert {each.cell.strategy for each in changed} == {"write.s3"}
    (summary,) = (each for each in found.summaries if each.verdict != "SAME")
    assert (summary.strategy, summary.verdict, summary.cells) == ("write.s3", verdict, 3)
    assert summary.ratio.median == pytest.approx(factor, rel=0.03)
    assert summary.ratio.low < factor < summary.ratio.high
    assert regressed(found) is (verdict == "SLOWER")


def test_what_is_significant_but_small_is_the_same():
    factors = strategies_of(8) | {"write.s3": 1.02}
    base, new = both(np.random.default_rng(0), factors, process=0.0005, within=0.002)
    found = judge(base, new)
    (slow,) = (each for each in found.summaries if each.strategy == "write.s3")
    assert (slow.verdict, slow.p_value < 1e-6) == ("SAME", True)
    (slow,) = (s for s in judge(base, new, least_effect=0.01).summaries if s.verdict != "SAME")
    assert (slow.strategy, slow.verdict) == ("write.s3", "SLOWER")


def test_what_is_large_but_not_sure_is_unsure():
    factors = strategies_of(8) | {"write.s3": 1.1}
    base, new = both(np.random.default_rng(0), factors, process=0.1)
    found = judge(base, new)
    assert {each.verdict for each in found.judged} == {"UNSURE"}
    assert not regressed(found)
    assert {each.why for each in found.judged} <= {
        "not significant among so many cells",
        "the interval reaches beyond 5%",
    }


@pytest.mark.parametrize(("floor_s", "verdict"), [(7.9e-7, "SLOWER"), (8.1e-7, "UNSURE")])
def test_less_than_a_quarter_of_an_empty_call_is_the_clock_s(floor_s, verdict):
    steady = [1e-6, 1.001e-6] * 50
    slower = [sample * 1.2 for sample in steady]
    rows = [
        [timed(samples, processes=(ROUNDS,) * PAIRS, floor_s=floor_s)]
        for samples in (steady, slower)
    ]
    (judged,) = judge(*rows).judged
    assert judged.verdict == verdict
    assert ("quarter of an empty call" in judged.why) == (verdict == "UNSURE")


def test_one_process_that_was_slow_is_no_difference():
    base, new = both(np.random.default_rng(0), strategies_of(8), process=0.002)
    slow = np.array(new[0].measurement.samples_s)
    slow[:ROUNDS] *= 1.6
    new[0] = timed(slow.tolist(), new[0].strategy, processes=(ROUNDS,) * PAIRS, seq_len=1)
    assert judge(base, new).judged[0].verdict == "UNSURE"


def disturbed(rng, rows, pairs):
    """Rows whose samples of some pairs of processes were taken while others used the machine."""
    found = []
    for row in rows:
        samples = np.array(row.measurement.samples_s)
        for pair in pairs:
            part = slice(pair * ROUNDS, (pair + 1) * ROUNDS)
            samples[part] *= np.exp(np.abs(rng.normal(0, 1.5, ROUNDS)))
        kept = {"processes": row.measurement.processes, "seq_len": row.case.seq_len}
        found.append(timed(samples.tolist(), row.strategy, **kept))
    return found


def test_pairs_that_the_machine_disturbed_neither_hide_a_tenth_nor_make_one():
    rng = np.random.default_rng(0)
    base, new = both(rng, strategies_of(12) | {"write.s3": 1.1}, process=0.01)
    found = judge(disturbed(rng, base, (0, 3)), disturbed(rng, new, (0, 3)))
    assert [s.strategy for s in found.summaries if s.verdict == "SLOWER"] == ["write.s3"]
    assert {each.cell.strategy for each in found.slower} <= {"write.s3"}
    (slow,) = (s for s in found.summaries if s.strategy == "write.s3")
    assert slow.ratio.median == pytest.approx(1.1, rel=0.03)


def test_cells_that_go_together_are_not_taken_for_many_that_agree():
    """A process that is slow at one strategy is so in all of its cases."""
    rng = np.random.default_rng(0)
    alarms = 0
    for _ in range(10):
        rows = ([], [])
        for number, side in itertools.product(range(12), rows):
            own = rng.normal(0, 0.03, PAIRS)
            for seq_len in range(1, 9):
                logs = np.repeat(own, ROUNDS) + rng.normal(0, 0.01, PAIRS * ROUNDS)
                kept = {"processes": (ROUNDS,) * PAIRS, "seq_len": seq_len}
                side.append(timed((1e-4 * np.exp(logs)).tolist(), f"write.s{number}", **kept))
        found = judge(*rows)
        alarms += sum(summary.verdict in {"SLOWER", "FASTER"} for summary in found.summaries)
    assert alarms <= 1


def test_what_is_significant_alone_is_not_among_two_hundred():
    df = np.full(200, 60.0)
    t_values = np.append(np.linspace(-2, 2, 199), 3.5)
    alone = comparison._adjusted(t_values[-1:], df[-1:])
    among = comparison._adjusted(t_values, df)
    assert alone[0] < 0.001
    assert among[-1] == pytest.approx(200 * alone[0])
    assert among[-1] > 0.01


# Twenty times the same, ten times a tenth slower.


def test_of_twenty_comparisons_of_like_with_like_one_at_most_finds_a_slowdown():
    rng = np.random.default_rng(1)
    alarms = 0
    for _ in range(20):
        process = float(rng.uniform(0.003, 0.05))
        found = judge(*both(rng, strategies_of(16), process=process, within=2 * process))
        alarms += len(found.slower) + sum(s.verdict == "SLOWER" for s in found.summaries)
    assert alarms <= 1


def test_a_strategy_that_is_a_tenth_slower_is_found_ten_times_of_ten():
    rng = np.random.default_rng(2)
    for attempt in range(10):
        slow = f"write.s{attempt}"
        found = judge(*both(rng, strategies_of(16) | {slow: 1.1}, process=0.012, within=0.04))
        assert regressed(found)
        assert {each.cell.strategy for each in found.slower} <= {slow}
        assert [s.strategy for s in found.summaries if s.verdict == "SLOWER"] == [slow]


# Runs that were not measured in turns.


def apart(rng, factors, shift=1.0, count=40):
    rows = ([], [])
    for number, factor in enumerate(factors):
        for side, by in zip(rows, (1.0, shift * factor), strict=True):
            samples = 1e-4 * by * np.exp(rng.normal(0, 0.02, count))
            side.append(timed(samples.tolist(), f"write.s{number}"))
    return rows


def test_of_runs_apart_the_noise_is_what_most_cells_differ_by():
    rng = np.random.default_rng(0)
    factors = np.exp(rng.normal(0, 0.02, 40))
    factors[7] = 1.25
    found = judge(*apart(rng, factors), interleaved=False)
    assert found.noise == pytest.approx(0.02, rel=0.3)
    assert [each.cell.strategy for each in found.slower] == ["write.s7"]
    assert (found.interleaved, found.processes) == (False, 1)


def test_that_half_of_the_cells_changed_is_no_noise():
    rng = np.random.default_rng(0)
    factors = np.exp(rng.normal(0, 0.02, 40))
    factors[:20] *= np.repeat([2.0, 3.0], 10)
    found = judge(*apart(rng, factors), interleaved=False)
    assert found.noise < 0.06  # the range of those that are left
    assert {each.cell.strategy for each in found.slower} == {f"write.s{n}" for n in range(20)}


@pytest.mark.parametrize(("processes", "verdict"), [((20,) * 5, "UNSURE"), ((), "SLOWER")])
def test_of_runs_apart_samples_of_one_process_are_one_witness(processes, verdict):
    """Three slow processes of five move a median of all samples as a slower strategy does."""
    base, new = apart(np.random.default_rng(0), [1.0] * 20, count=100)
    slow = np.array(new[0].measurement.samples_s)
    slow[:60] *= 1.6
    new[0] = timed(slow.tolist(), "write.s0", processes=processes)
    base[0] = timed(base[0].measurement.samples_s, "write.s0", processes=processes)
    assert judge(base, new, interleaved=False).judged[0].verdict == verdict


def test_a_slowdown_of_everything_is_the_machine_s_if_the_controls_say_so():
    rng = np.random.default_rng(0)
    rows = apart(rng, np.exp(rng.normal(0, 0.01, 40)), shift=1.2)
    assert len(judge(*rows, interleaved=False).slower) == 40
    quiet = judge(*rows, interleaved=False, control=0.2)
    assert {each.verdict for each in quiet.judged} == {"UNSURE"}
    assert {each.verdict for each in quiet.summaries} == {"UNSURE"}


def test_of_few_cells_apart_the_noise_is_assumed():
    rows = apart(np.random.default_rng(0), [1.0, 1.12, 1.0])
    found = judge(*rows, interleaved=False)
    assert found.noise == NOISE_OF_FEW
    assert found.slower == ()
    assert judge(*apart(np.random.default_rng(0), [1.0, 3.0, 1.0]), interleaved=False).slower


def test_samples_belong_together_only_where_the_processes_match():
    rng = np.random.default_rng(0)
    base, new = both(rng, {"write.loop": 1.0}, seq_lens=(1,))
    new = [timed(new[0].measurement.samples_s[:40], processes=(20, 20), seq_len=1)]
    assert judge(base, new).processes == 1


def test_controls_are_what_no_strategy_has_a_part_in():
    base = run_info()
    assert controls(base, base) == 0
    slower = CopyBandwidth(bytes_per_s=10e9, nbytes=1 << 29, how="torch copy_")
    assert controls(base, run_info(copy_bandwidth=slower)) == pytest.approx(np.log(1.2))
    launch = run_info(launch_floor_s=1e-6)
    assert controls(base, launch) == controls(launch, base) == pytest.approx(np.log(2))


# What one run alone has.


def test_what_was_timed_and_is_no_more_makes_the_gate_speak():
    base = [result(seq_len=1), result(seq_len=2), result(seq_len=3), result(seq_len=4)]
    new = [
        result(seq_len=1),
        result(seq_len=2, status="failed", reason="RuntimeError: no"),
        result(seq_len=3, status="over budget", reason="too slow"),
    ]
    found = judge(base, new, interleaved=False)
    assert [each.cell.case.seq_len for each in found.judged] == [1]
    assert [(c.cell.case.seq_len, c.status, c.reason) for c in found.lost] == [
        (2, "failed", "RuntimeError: no"),
        (3, "over budget", "too slow"),
        (4, "missing", ""),
    ]
    assert regressed(found)
    back = judge(new, base, interleaved=False)
    assert [each.cell.case.seq_len for each in back.new] == [2, 3, 4]
    assert (back.lost, regressed(back)) == ((), False)


def test_a_strategy_s_one_row_says_what_became_of_all_its_phases():
    base = [result(), result(phase="prepare")]
    new = [result(status="crashed", reason="signal 11")]
    lost = judge(base, new, interleaved=False).lost
    assert [(each.cell.phase, each.status) for each in lost] == [
        ("run", "crashed"),
        ("prepare", "crashed"),
    ]


def test_what_was_never_timed_is_not_lost():
    refused = result(status="unsupported")
    assert judge([refused], [], interleaved=False).lost == ()


def test_a_new_name_is_a_lost_strategy_unless_it_is_said():
    base, new = [result("write.old")], [result("write.new")]
    found = judge(base, new, interleaved=False)
    assert (len(found.lost), len(found.new), found.judged) == (1, 1, ())
    assert regressed(found)
    said = judge(base, new, interleaved=False, renamed=(("write.old", "write.new"),))
    assert (said.lost, said.new) == ((), ())
    assert [each.cell.strategy for each in said.judged] == ["write.new"]


def test_clocks_and_phases_and_cache_states_are_cells_of_their_own():
    base = [result(), result(clock="device"), result(phase="prepare")]
    found = judge(base, base, interleaved=False)
    assert len(found.judged) == len(found.summaries) == 3
    only = judge(base, base, interleaved=False, clocks=("wall",))
    assert {each.cell.clock for each in only.judged} == {"wall"}
    assert only.lost == ()  # what isn't compared isn't missed
    cold = [dataclasses.replace(row, cache="cold") for row in base]
    assert len(judge(base, cold, interleaved=False).lost) == 3


def test_nothing_in_common_is_nothing_judged():
    found = judge([], [], interleaved=False)
    assert (found.judged, found.summaries, regressed(found)) == ((), (), False)


# Whatever the samples.

times = st.floats(1e-8, 1.0)


@settings(max_examples=40)
@given(st.data())
def test_a_comparison_turned_round_says_the_opposite(data):
    pairs = data.draw(st.integers(1, 4))
    cells = data.draw(st.integers(1, 4))
    rows = ([], [])
    for number, side in itertools.product(range(cells), rows):
        samples = data.draw(st.lists(times, min_size=3 * pairs, max_size=3 * pairs))
        side.append(timed(samples, f"write.s{number}", processes=(3,) * pairs))
    one, other = judge(*rows), judge(*reversed(rows))
    opposite = {"SLOWER": "FASTER", "FASTER": "SLOWER"}
    for here, there in zip(one.judged, other.judged, strict=True):
        assert here.ratio.low <= here.ratio.median <= here.ratio.high
        assert 0 <= here.p_value <= 1
        assert there.ratio.median == pytest.approx(1 / here.ratio.median)
        assert there.p_value == pytest.approx(here.p_value, abs=1e-9)
        if "quarter" not in here.why + there.why:
            assert there.verdict == opposite.get(here.verdict, here.verdict)


@given(st.lists(times, min_size=2, max_size=30), st.booleans())
def test_a_run_held_against_itself_has_not_changed(samples, interleaved):
    row = timed(samples, processes=(len(samples),))
    found = judge([row], [row], interleaved=interleaved)
    assert found.judged[0].ratio.median == 1
    assert found.judged[0].verdict in {"SAME", "UNSURE"}
    assert not regressed(found)


def test_a_cell_names_its_case():
    (judged,) = judge([result(seq_len=9)], [result(seq_len=9)], interleaved=False).judged
    assert judged.cell.case == Case(op="write", seq_len=9)
