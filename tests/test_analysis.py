"""Frames of rows, the cost of a step, the ranking and the speed-ups: exact on synthetic rows."""

import dataclasses
import math
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made import measurement, result, sweep_rows

from kvbench.analysis.frame import CASE_FIELDS, main_group, settings_of, timed, to_frame, unusual
from kvbench.analysis.ranking import Standing, rank, step_costs
from kvbench.analysis.speedup import comparable, speedups
from kvbench.analysis.statistics import ratio_interval
from kvbench.cases import Case
from kvbench.results import Measurement

UNTIMED = ("unsupported", "incorrect", "failed", "over budget", "does not fit", "checked")


def row(strategy, seconds, seq_len=8, phase="run", **case_fields):
    """A row whose every sample is the same."""
    return result(strategy, [seconds] * 5, seq_len=seq_len, phase=phase, **case_fields)


def test_a_row_becomes_a_line_with_every_field_of_case_and_measurement():
    case_fields = {"seq_len": 24, "batch": 3, "padding": 2, "kv_input": "fused_qkv"}
    one = result("write.loop", (2e-6, 1e-6, 3e-6), phase="prepare", repro="again", **case_fields)
    (line,) = to_frame([one]).to_dict("records")
    for fields in (Case, Measurement):
        for field in dataclasses.fields(fields):
            source = one.case if fields is Case else one.measurement
            assert line[field.name] == getattr(source, field.name)
    assert line["tokens"] == 72
    assert line["least_bytes"] == one.case.nbytes == 4 * 72 * 8 * 128 * 2
    assert (line["strategy"], line["phase"], line["status"]) == ("write.loop", "prepare", "ok")
    assert line["repro"] == "again"


def test_lines_have_the_order_of_the_rows():
    rows = sweep_rows(seq_lens=(64, 1, 8))
    frame = to_frame(rows)
    assert list(frame["seq_len"]) == [r.case.seq_len for r in rows]
    assert list(frame["strategy"]) == [r.strategy for r in rows]


@pytest.mark.parametrize("status", UNTIMED)
def test_what_was_not_measured_is_missing_and_never_zero(status):
    frame = to_frame([result("write.loop", status=status, reason="why"), result("write.indexing")])
    first = frame.iloc[0]
    names = [field.name for field in dataclasses.fields(Measurement)]
    assert [name for name in names if not _missing(first[name])] == []
    for name in ("median_s", "low_s", "high_s", "floor_s", "nbytes"):
        assert math.isnan(first[name])
        assert frame[name].dtype == np.float64
    assert first["reason"] == "why"
    assert _missing(frame.iloc[1]["reason"])


def _missing(value) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value))


def test_the_bytes_of_a_prepare_are_missing():
    prepare = dataclasses.replace(result(), measurement=measurement(nbytes=None))
    assert math.isnan(to_frame([prepare, result()])["nbytes"][0])


def test_rows_of_equal_cases_become_the_lines_that_each_would_become_alone():
    rows = [
        *sweep_rows(seq_lens=(8, 1), kv_heads=(2, 8), seed=2**70),
        *sweep_rows(seq_lens=(8, 1), batch=0),
        result("write.triton", status="checked"),
    ]
    frame = to_frame([rows[i] for i in (5, 0, 5, 11, -1, 3, 0)])
    alone = [to_frame([rows[i]]).iloc[0] for i in (5, 0, 5, 11, -1, 3, 0)]
    for (_, line), own in zip(frame.iterrows(), alone, strict=True):
        assert line.drop("samples_s").fillna("none").equals(own.drop("samples_s").fillna("none"))
        assert line["samples_s"] == own["samples_s"]


def test_no_rows_make_an_empty_frame_with_the_same_columns():
    assert list(to_frame([]).columns) == list(to_frame([result()]).columns)


def test_timed_keeps_the_measured_rows_of_one_phase():
    rows = [
        row("write.loop", 1e-6),
        row("write.slot_mapping", 2e-6),
        row("write.slot_mapping", 3e-6, phase="prepare"),
        result("write.triton", status="checked"),
    ]
    frame = to_frame(rows)
    assert list(timed(frame)["median_s"]) == [1e-6, 2e-6]
    assert list(timed(frame, "prepare")["median_s"]) == [3e-6]


def test_settings_are_of_what_is_not_free_and_the_largest_is_first():
    rows = [
        *(row("write.loop", 1e-6, n, dtype="fp32") for n in (1, 2)),
        *(row("write.loop", 1e-6, n, dtype="bf16") for n in (1, 2, 4)),
        row("write.loop", 1e-6, 1, dtype="fp16"),
    ]
    frame = to_frame(rows)
    found = settings_of(frame, ("seq_len",))
    assert [(shared["dtype"], list(frame["seq_len"].iloc[places])) for shared, places in found] == [
        ("bf16", [1, 2, 4]),
        ("fp32", [1, 2]),
        ("fp16", [1]),
    ]
    assert set(found[0][0]) == {*CASE_FIELDS, "queries_per_kv_head"} - {"seq_len", "num_heads"}
    assert [unusual(shared) for shared, _ in found] == [0, 1, 1]
    shared, own = main_group(frame, ("seq_len",))
    assert (shared, list(own.index)) == (found[0][0], [2, 3, 4])


def test_query_heads_do_not_part_a_sweep_over_kv_heads():
    rows = [row("write.loop", 1e-6, num_kv_heads=n, num_heads=n) for n in (1, 8, 32)]
    assert len(settings_of(to_frame(rows), ("num_kv_heads",))) == 1
    assert len(settings_of(to_frame(rows), ())) == 3


def test_a_step_is_one_prepare_and_a_run_for_each_layer():
    rows = [
        row("write.slot_mapping", 2e-6),
        row("write.slot_mapping", 50e-6, phase="prepare"),
        row("write.loop", 4e-6),
    ]
    costs = step_costs(to_frame(rows), layers=10).set_index("strategy")
    assert costs["prepare_s"].to_dict() == {"write.slot_mapping": 50e-6, "write.loop": 0.0}
    assert costs["step_s"].to_dict() == pytest.approx(
        {"write.slot_mapping": 70e-6, "write.loop": 40e-6}
    )


def test_a_step_is_added_up_within_each_round():
    rows = [
        result("write.slot_mapping", (1e-6, 2e-6, 4e-6)),
        result("write.slot_mapping", (8e-6, 16e-6, 32e-6), phase="prepare"),
    ]
    (samples,) = step_costs(to_frame(rows), layers=3)["step_samples_s"]
    assert list(samples) == pytest.approx([11e-6, 22e-6, 44e-6])


def test_the_prepare_of_another_case_is_not_taken():
    rows = [
        row("write.slot_mapping", 1e-6, 1),
        row("write.slot_mapping", 1e-6, 2),
        row("write.slot_mapping", 7e-6, 1, phase="prepare"),
        row("write.slot_mapping", 9e-6, 2, phase="prepare"),
    ]
    costs = step_costs(to_frame(rows), layers=1)
    assert dict(zip(costs["seq_len"], costs["prepare_s"], strict=True)) == {1: 7e-6, 2: 9e-6}
    assert len(costs) == 2


def test_a_step_has_no_cost_where_its_run_was_not_timed():
    rows = [
        result("write.slot_mapping", status="failed"),
        row("write.slot_mapping", 7e-6, phase="prepare"),
    ]
    assert step_costs(to_frame(rows), layers=1).empty


def test_the_ranking_is_exact():
    rows = [
        row("write.loop", 1e-6, 1),
        row("write.indexing", 2e-6, 1),
        row("write.loop", 16e-6, 8),
        row("write.indexing", 1e-6, 8),
        row("read.loop", 1e-9, 1),
    ]
    # Slow-downs: the loop 1 and 16, indexing 2 and 1.
    assert rank(to_frame(rows), "write", layers=4) == [
        Standing("write.indexing", cases=2, fastest=1, slowdown=pytest.approx(2**0.5), worst=2.0),
        Standing("write.loop", cases=2, fastest=1, slowdown=pytest.approx(4.0), worst=16.0),
    ]
    assert rank(to_frame(rows), "read", layers=4) == [Standing("read.loop", 1, 1, 1.0, 1.0)]


def test_the_ranking_depends_on_the_layers_that_share_a_prepare():
    rows = [
        row("write.indexing", 3e-6),
        row("write.slot_mapping", 1e-6),
        row("write.slot_mapping", 10e-6, phase="prepare"),
    ]
    frame = to_frame(rows)
    shallow, deep = rank(frame, "write", layers=1), rank(frame, "write", layers=10)
    assert [(s.strategy, s.fastest) for s in shallow] == [
        ("write.indexing", 1),
        ("write.slot_mapping", 0),
    ]
    assert shallow[1].slowdown == pytest.approx(11 / 3)
    assert [(s.strategy, s.fastest) for s in deep] == [
        ("write.slot_mapping", 1),
        ("write.indexing", 0),
    ]
    assert deep[1].slowdown == pytest.approx(30 / 20)


def test_strategies_that_the_noise_does_not_part_are_tied():
    noise = (1.0, 1.1, 0.9, 1.05, 0.95, 1.0, 1.02, 0.98)
    rows = [
        result("write.indexing", [1e-6] * 8),
        result("write.slot_mapping", [1.01e-6 * n for n in noise]),
        result("write.loop", [2e-6 * n for n in noise]),
    ]
    found = {s.strategy: s.fastest for s in rank(to_frame(rows), "write", layers=2)}
    assert found == {"write.indexing": 1, "write.slot_mapping": 1, "write.loop": 0}


def test_a_small_difference_that_every_round_shows_is_no_tie():
    drift = (1.0, 3.0, 2.0, 5.0, 1.5, 4.0, 2.5, 1.2)
    rows = [
        result("write.indexing", [1e-6 * d for d in drift]),
        result("write.loop", [1.01e-6 * d for d in drift]),
    ]
    found = {s.strategy: s.fastest for s in rank(to_frame(rows), "write", layers=2)}
    assert found == {"write.indexing": 1, "write.loop": 0}


def test_strategies_are_ranked_over_the_cases_that_all_were_timed_in():
    # A loop too slow for the large case gains nothing by missing it, nor does the other.
    rows = [
        row("write.loop", 1e-6, 1),
        row("write.indexing", 2e-6, 1),
        result("write.loop", seq_len=8, status="over budget"),
        row("write.indexing", 3e-6, 8),
    ]
    found = {s.strategy: s for s in rank(to_frame(rows), "write", layers=1)}
    assert found["write.loop"] == Standing("write.loop", 1, 1, 1.0, 1.0)
    assert found["write.indexing"] == Standing("write.indexing", 1, 0, 2.0, 2.0)


def test_without_a_shared_case_each_is_ranked_over_its_own():
    rows = [row("write.loop", 1e-6, 1), row("write.indexing", 3e-6, 8)]
    found = {s.strategy: s.cases for s in rank(to_frame(rows), "write", layers=1)}
    assert found == {"write.loop": 1, "write.indexing": 1}


def test_a_step_whose_prepare_failed_has_no_cost():
    failed = result("write.slot_mapping", phase="prepare", status="failed")
    rows = [result("write.slot_mapping"), failed, result("write.loop")]
    assert list(step_costs(to_frame(rows), 4)["strategy"]) == ["write.loop"]


def test_a_strategy_that_was_never_timed_is_not_ranked():
    rows = [row("write.loop", 1e-6), result("write.triton", status="checked")]
    assert [s.strategy for s in rank(to_frame(rows), "write", layers=1)] == ["write.loop"]


@settings(max_examples=15)  # each ranks twice, a bootstrap per strategy and case
@given(st.integers(0, 10**6), st.integers(1, 100))
def test_the_order_of_the_rows_does_not_matter(seed, layers):
    rows = sweep_rows(seq_lens=(1, 64))
    shuffled = rows.copy()
    random.Random(seed).shuffle(shuffled)  # noqa: S311 - reproducible, not secret
    plain, other = (rank(to_frame(r), "write", layers) for r in (rows, shuffled))
    assert [s.strategy for s in other] == [s.strategy for s in plain]
    for one, two in zip(plain, other, strict=True):
        assert (two.cases, two.fastest, two.worst) == (one.cases, one.fastest, one.worst)
        assert two.slowdown == pytest.approx(one.slowdown)


def test_speed_ups_are_ratios_within_rounds():
    rows = [
        result("write.loop", (8e-6, 16e-6, 80e-6)),
        result("write.indexing", (2e-6, 4e-6, 20e-6)),
    ]
    found = speedups(to_frame(rows), "write.loop").set_index("strategy")
    for name in ("speedup", "speedup_low", "speedup_high"):
        assert found[name].to_dict() == pytest.approx({"write.loop": 1.0, "write.indexing": 4.0})


def test_a_speed_up_lies_in_its_interval():
    rows = [
        result("write.loop", (8e-6, 9e-6, 7e-6, 8e-6)),
        result("write.indexing", (2e-6, 1e-6, 4e-6, 2e-6)),
    ]
    found = speedups(to_frame(rows), "write.loop").set_index("strategy").loc["write.indexing"]
    assert found["speedup"] == pytest.approx(4.0)
    assert found["speedup_low"] < 4.0 < found["speedup_high"]


def test_speed_ups_are_against_the_reference_in_the_same_case():
    rows = [
        row("write.loop", 4e-6, 1),
        row("write.loop", 90e-6, 8),
        row("write.indexing", 2e-6, 1),
        row("write.indexing", 3e-6, 8),
        row("write.indexing", 1e-6, 64),
        row("write.slot_mapping", 1e-6, 1, phase="prepare"),
        result("write.triton", seq_len=1, status="checked"),
    ]
    found = speedups(to_frame(rows), "write.loop")
    lines = zip(found["strategy"], found["seq_len"], found["speedup"], strict=True)
    assert {(name, n): value for name, n, value in lines} == pytest.approx(
        {
            ("write.loop", 1): 1.0,
            ("write.loop", 8): 1.0,
            ("write.indexing", 1): 2.0,
            ("write.indexing", 8): 30.0,
        }
    )


def test_the_median_ratio_is_that_of_the_sorted_ratios_whatever_their_number():
    for count in range(1, 12):
        numerators = np.random.default_rng(count).lognormal(size=count)
        found = ratio_interval(numerators, np.ones(count))
        assert found.median == np.median(numerators)


def test_without_the_reference_there_is_no_speed_up():
    frame = to_frame([row("write.indexing", 1e-6)])
    assert speedups(frame, "write.loop").empty
    assert comparable(frame, "write.loop").empty


def test_what_a_step_does_once_costs_its_run_whatever_the_layers_and_the_prepare():
    rows = [
        row("index.torch", 9e-6),
        row("index.torch", 500e-6, phase="prepare"),
        row("index.numpy", 6e-6),
        row("write.slot_mapping", 2e-6),
        row("write.slot_mapping", 50e-6, phase="prepare"),
    ]
    for layers in (1, 10):
        costs = step_costs(to_frame(rows), layers).set_index("strategy")
        assert costs["step_s"].to_dict() == pytest.approx(
            {"index.torch": 9e-6, "index.numpy": 6e-6, "write.slot_mapping": 50e-6 + layers * 2e-6}
        )
        assert costs["prepare_s"]["index.torch"] == 0
        standings = rank(to_frame(rows), "index", layers)
        assert [(s.strategy, s.slowdown) for s in standings] == [
            ("index.numpy", 1.0),
            ("index.torch", pytest.approx(1.5)),
        ]
    rows[1] = result("index.torch", phase="prepare", status="failed")
    assert set(step_costs(to_frame(rows), 2)["strategy"]) == {
        *("index.torch", "index.numpy", "write.slot_mapping"),
    }
