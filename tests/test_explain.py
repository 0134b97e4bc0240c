"""Verdicts, the fit's tables and the claims, from rows whose meaning is known."""

import numpy as np
import pandas as pd
import pytest
from made import measurement, result, run_info

from kvbench.analysis.fit import Fit, fit_run
from kvbench.analysis.frame import to_frame
from kvbench.analysis.verdict import cpu_verdicts, device_verdicts
from kvbench.report.claims import claims_table
from kvbench.report.explain import crossover_table, fit_table, refusals_table, verdict_table

CALL_S, LAUNCH_S, BANDWIDTH = 2e-5, 5e-6, 2e10
SIZES = (1, 8, 64, 512, 4096)
LAUNCHES = {"loop": lambda n: 2 * n, "indexing": lambda _: 7, "slot_mapping": lambda _: 2}


def model_rows(op="write", sizes=SIZES, noise=0.0):
    """Rows of three strategies that cost exactly what the model says, and 1 % noise on demand."""
    rng = np.random.default_rng(0)
    rows = []
    for family, launches in LAUNCHES.items():
        for n in sizes:
            for heads in (8, 32):
                nbytes = 4 * n * heads * 256
                exact = CALL_S + LAUNCH_S * launches(n) + nbytes / BANDWIDTH
                samples = tuple(exact * rng.lognormal(0, noise, 9)) if noise else (exact,) * 9
                rows.append(
                    result(
                        f"{op}.{family}", samples, seq_len=n, num_heads=heads, num_kv_heads=heads
                    )
                )
    return rows


def test_the_fit_of_a_run_finds_the_constants_of_its_loop():
    fits = {fit.name: fit for fit in fit_run(to_frame(model_rows()), "write")}
    loop, joint = fits["write.loop"], fits["write, all jointly"]
    for fit in (loop, joint):
        assert isinstance(fit, Fit)
        assert fit.per_launch_s.value == pytest.approx(LAUNCH_S, rel=1e-3)
        assert fit.bandwidth_bytes_per_s.value == pytest.approx(BANDWIDTH, rel=1e-3)
    assert fits["write.slot_mapping"].overhead_s.value == pytest.approx(CALL_S + 2 * LAUNCH_S)
    assert fit_run(to_frame(model_rows()), "read") == []


def test_a_cpu_cell_is_bound_by_the_part_that_has_two_thirds_of_its_time():
    frame = to_frame(model_rows())
    fits = {fit.name: fit for fit in fit_run(frame, "write")}
    verdict = cpu_verdicts(frame, fits)
    for row, found in zip(frame.itertuples(), verdict, strict=True):
        overhead = CALL_S + LAUNCH_S * row.launches
        share = overhead / (overhead + row.least_bytes / BANDWIDTH)
        expected = "overhead-bound" if share >= 2 / 3 else "mixed"
        assert found == ("bandwidth-bound" if share <= 1 / 3 else expected)
    assert set(verdict) == {"overhead-bound", "mixed", "bandwidth-bound"}


def test_without_a_fit_there_is_no_verdict():
    frame = to_frame(model_rows())
    assert cpu_verdicts(frame, {}).isna().all()


@pytest.mark.parametrize(
    ("enqueue", "device", "expected"),
    [
        (9.5e-5, 2e-5, "dispatch-bound"),
        (1e-5, 9.5e-5, "device-bound"),
        (5e-5, 6e-5, "mixed"),
        (9.5e-5, 7e-5, "mixed"),
    ],
)
def test_a_device_cell_is_bound_by_the_clock_that_is_the_wall_clock(enqueue, device, expected):
    times = {"wall": 1e-4, "enqueue": enqueue, "device": device}
    frame = to_frame(
        [result("write.indexing", (s,) * 5, clock=clock) for clock, s in times.items()]
    )
    assert list(device_verdicts(frame)["verdict"]) == [expected]


def test_a_device_cell_without_all_three_clocks_has_no_verdict():
    frame = to_frame([result("write.indexing", clock="wall"), result("write.loop", clock="device")])
    assert device_verdicts(frame).empty


def test_the_tables_of_a_fit_say_what_was_found():
    frame = to_frame(model_rows(noise=0.01))
    fits = {row[0]: row for row in fit_table("write", fit_run(frame, "write")).rows}
    assert fits["write.loop"][2].startswith(("5.0", "4.9"))
    assert "a + b: " in fits["write.slot_mapping"][1]
    crossings = {(row[0], row[1]): row[2] for row in crossover_table(frame, "write").rows}
    # Seven launches against 2 n: the loop loses from 3.5 tokens on.
    assert 2 < float(crossings["write.indexing", "write.loop"]) < 8
    assert crossings["write.slot_mapping", "write.indexing"] == "always, at every size measured"
    bounds = verdict_table(frame, "write", fit_run(frame, "write"))
    assert ("write.loop", "overhead-bound", "seq_len 1 to 4,096") in bounds.rows
    assert fit_table("read", fit_run(frame, "read")) is None
    assert crossover_table(frame, "read") is None
    assert verdict_table(frame, "read", fit_run(frame, "read")) is None


def test_what_cannot_be_identified_is_refused_in_the_table():
    rows = [r for r in model_rows() if r.case.num_kv_heads == 8 and r.strategy == "write.loop"]
    more = [r for n in (2, 4) for r in model_rows(sizes=(n,)) if r.case.num_kv_heads == 8]
    frame = to_frame(rows + [r for r in more if r.strategy == "write.loop"])
    (line,) = fit_table("write", fit_run(frame, "write")).rows
    assert line[1:4] == ("refused",) * 3
    ((name, reason),) = refusals_table("write", fit_run(frame, "write")).rows
    assert name == "write.loop"
    assert reason.startswith("launches and bytes grow together")
    frame = to_frame(model_rows())
    assert refusals_table("write", fit_run(frame, "write")) is None


def test_an_unresolved_time_is_marked():
    found = to_frame([result(), result("write.indexing")])
    assert found["resolved"].all()
    short = measurement((4e-8,) * 5)
    assert not short.resolved


def claims(rows, **info) -> dict[str, tuple[str, str]]:
    table = claims_table(to_frame(rows), run_info(**info))
    return {claim: (measured, so) for claim, measured, so in table.rows}


def test_the_claims_are_held_against_the_rows():
    found = claims(model_rows(noise=0.01) + model_rows("read", noise=0.01))
    assert len(found) == 5
    launches, so = found["“seq_len launches become one”"]
    assert "loop 1,024, indexing 7, slot_mapping 2" in launches
    assert "(predicted)" in launches
    assert "2 x seq_len" in so
    saved, so = found["“about 511 launches saved at seq_len 512”"]
    assert saved.startswith("1,017 saved")
    assert "511 counts K alone" in so
    cost, _ = found["“5 to 20 µs a launch”"]
    assert cost.startswith(("5.0", "4.9"))
    assert "not measured by this run" in found["“5 to 20 µs a launch”"][1]
    copied, so = found["“no extra copy”"]
    assert "2.00 MiB written anew" in copied or "8.00 MiB written anew" in copied
    assert "the gather is the copy" in so


def test_a_loop_that_grows_a_thousandfold_is_told_without_an_exponent():
    rows = [result("write.loop", (s,) * 5, seq_len=n) for n, s in ((1, 1e-6), (512, 1.5236e-3))]
    grown, _ = claims(rows)["“the Python loop over tokens is gone”"]
    assert grown == "time at 512 tokens over time at 1: loop 1520x"


def test_a_run_without_the_rows_says_so_instead_of_a_number():
    found = claims([result("write.index_copy", seq_len=3)])
    assert all(
        "not in this run" in measured or "not identified" in measured or "not measured" in measured
        for measured, _ in found.values()
    )


def test_missing_launches_stay_missing():
    frame = to_frame([result("write.mine")])
    assert pd.isna(frame["launches"].iloc[0])
    assert frame["launches_source"].iloc[0] is None


def test_what_bounds_a_call_on_a_device_is_told_from_its_clocks():
    rows = []
    for n in (1, 64, 4096):
        times = {"wall": 1e-4, "enqueue": 9.5e-5, "device": 1e-5 if n < 4096 else 9.5e-5}
        rows += [result("write.triton", (s,) * 5, clock=c, seq_len=n) for c, s in times.items()]
    frame = to_frame(rows)
    assert verdict_table(frame, "write", fit_run(frame, "write")).rows == (
        ("write.triton", "dispatch-bound", "seq_len 1 to 64"),
        ("write.triton", "device-bound", "seq_len 4,096"),
    )


def test_claims_take_all_rows_from_one_setting():
    # The loop was measured in another setting than most: its row is not held against theirs.
    rows = [r for r in model_rows() if (r.strategy == "write.loop") == (r.case.num_kv_heads == 32)]
    saved, _ = claims(rows)["“about 511 launches saved at seq_len 512”"]
    assert saved == "not in this run"


def test_an_index_on_a_cpu_is_fitted_and_not_said_to_be_bound_by_bandwidth():
    rows = [
        result("index.loop", [2e-6 + 1e-7 * n * batch] * 9, seq_len=n, batch=batch)
        for n in SIZES
        for batch in (1, 8)
    ]
    frame = to_frame(rows)
    assert fit_table("index", fit_run(frame, "index")) is not None
    assert verdict_table(frame, "index", fit_run(frame, "index")) is None


def test_what_has_no_count_of_launches_is_fitted_as_if_it_always_made_as_many():
    mine = [
        result(
            "write.mine",
            [2e-6 + 4 * n * heads * 256 / 1e11] * 5,
            seq_len=n,
            num_heads=heads,
            num_kv_heads=heads,
        )
        for n in SIZES
        for heads in (8, 32)
    ]
    alone = [row for row in model_rows() if row.strategy == "write.loop"]
    fits = {fit.name: fit for fit in fit_run(to_frame([*mine, *alone]), "write")}
    assert fits["write.mine"].per_launch_s is None
    assert fits["write.mine"].overhead_s.value == pytest.approx(2e-6)
    assert fits["write.mine"].bandwidth_bytes_per_s.value == pytest.approx(1e11)
    # It has no part in what is fitted to the launches of several.
    assert "write, all jointly" not in fits
    joint = fit_run(to_frame([*mine, *model_rows()]), "write")[-1]
    assert joint == fit_run(to_frame(model_rows()), "write")[-1]
    assert joint.cells == 30


def test_strategies_that_are_not_fitted_for_one_reason_share_a_line():
    rows = [result(name, [1e-5] * 5, seq_len=n) for name in ("write.b", "write.a") for n in (1, 2)]
    frame = to_frame(rows)
    table = refusals_table("write", fit_run(frame, "write"))
    assert [line[0] for line in table.rows] == ["write.a, write.b"]
