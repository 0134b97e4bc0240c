"""What a row may be, and that it survives JSON."""

import dataclasses
import math
from typing import get_args

import msgspec
import pytest
from drawn import cases
from hypothesis import given
from hypothesis import strategies as st
from made import SAMPLES_S, measurement, result, run_info

from kvbench.errors import InputError
from kvbench.results import LaunchCounts, Measurement, Result, RunInfo, Status

UNTIMED = tuple(status for status in get_args(Status) if status != "ok")

times_s = st.floats(min_value=0, exclude_min=True, allow_infinity=False)


def test_ok_needs_a_measurement():
    with pytest.raises(InputError, match=r"status 'ok': expected a measurement"):
        result(status="ok", samples_s=None)


def test_ok_has_no_reason():
    with pytest.raises(InputError, match=r"status 'ok': expected a reason"):
        result(status="ok", reason="because")


@pytest.mark.parametrize("status", UNTIMED)
def test_any_other_status_has_no_measurement(status):
    row = result(status=status)
    with pytest.raises(InputError, match=rf"status '{status}': expected a measurement"):
        dataclasses.replace(row, measurement=measurement())


@pytest.mark.parametrize("status", UNTIMED)
def test_any_other_status_needs_a_reason(status):
    row = result(status=status)
    with pytest.raises(InputError, match=rf"status '{status}': expected a reason"):
        dataclasses.replace(row, reason=None)


def test_there_are_statuses_besides_ok():
    assert set(UNTIMED) >= {"unsupported", "incorrect", "failed", "over budget", "does not fit"}


@pytest.mark.parametrize("field", ["samples_s", "median_s", "low_s", "high_s", "floor_s"])
@pytest.mark.parametrize("time", [math.nan, math.inf, -math.inf, 0.0, -0.0, -1e-6])
def test_no_time_that_is_no_time(field, time):
    value = (*SAMPLES_S[:2], time, *SAMPLES_S[2:]) if field == "samples_s" else time
    whole = {"median_s": 1e-5, "low_s": 1e-5, "high_s": 1e-5, field: value}
    with pytest.raises(InputError) as raised:
        measurement(**whole)
    assert repr(time) in str(raised.value)
    assert "expected a finite number above 0" in str(raised.value)


@pytest.mark.parametrize("time", [math.nan, math.inf, -1e-6])
def test_a_first_call_takes_a_finite_time_or_none_is_known(time):
    with pytest.raises(InputError, match=f"first_call_s={time!r}: expected a finite number, 0"):
        measurement(first_call_s=time)
    assert measurement(first_call_s=0.0).first_call_s == 0.0
    assert measurement(first_call_s=None).first_call_s is None


any_times = st.lists(st.one_of(times_s, st.floats(), st.just(1e308)), min_size=1, max_size=6)


@given(any_times)
def test_a_measurement_is_refused_for_one_bad_time_and_for_no_other_reason(samples):
    whole = {"median_s": 1e-5, "low_s": 1e-5, "high_s": 1e-5}
    if all(math.isfinite(time) and time > 0 for time in samples):
        assert measurement(samples, **whole).samples_s == tuple(samples)
    else:
        with pytest.raises(InputError, match="expected a finite number above 0"):
            measurement(samples, **whole)


def test_no_measurement_without_samples():
    with pytest.raises(InputError, match="expected at least one sample"):
        measurement(())


@pytest.mark.parametrize(
    "row", [measurement(), result(), run_info()], ids=lambda r: type(r).__name__
)
def test_rows_are_frozen(row):
    name = dataclasses.fields(row)[0].name
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(row, name, getattr(row, name))


def test_launches_are_kernels_and_copies():
    counts = LaunchCounts(kernels=5, memcpys=2, synchronizations=1, source="counted")
    assert counts.launches == 7


def round_trip(value):
    return msgspec.json.decode(msgspec.json.encode(value), type=type(value))


@given(cases(), st.lists(times_s, min_size=1), st.tuples(times_s, times_s, times_s, times_s))
def test_a_timed_row_survives_json_to_the_last_bit(case, samples, others):
    median_s, low_s, high_s, floor_s = others
    low_s, median_s, high_s = sorted((low_s, median_s, high_s))
    timed = measurement(samples, median_s=median_s, low_s=low_s, high_s=high_s, floor_s=floor_s)
    row = dataclasses.replace(result(), case=case, measurement=timed)
    back = round_trip(row)
    assert back == row
    assert isinstance(back, Result)
    assert isinstance(back.measurement, Measurement)


@given(cases(), st.sampled_from(UNTIMED), st.text(min_size=1))
def test_an_untimed_row_survives_json(case, status, reason):
    row = dataclasses.replace(result(status=status), case=case, reason=reason)
    assert round_trip(row) == row


@pytest.mark.parametrize("processes", [(), (5,), (2, 3), (1,) * 5])
def test_samples_of_several_processes_are_told_apart(processes):
    timed = measurement(processes=processes)
    assert round_trip(timed) == timed
    assert timed.processes == processes


@pytest.mark.parametrize("processes", [(4,), (6,), (2, 2), (5, 0), (6, -1), (3, 3, -1)])
def test_every_sample_is_from_one_process(processes):
    with pytest.raises(InputError) as raised:
        measurement(processes=processes)
    assert str(raised.value) == f"processes={processes!r}: expected the samples of each, 5 in all"


@pytest.mark.parametrize("preset", [None, "cpu"])
def test_what_holds_for_a_run_survives_json(preset):
    info = run_info(preset=preset, floors_s={"wall": 1 / 3}, interleaved="ab", tree="HEAD~1")
    assert round_trip(info) == info
    assert isinstance(round_trip(info), RunInfo)


def test_a_median_outside_its_interval_is_refused():
    with pytest.raises(InputError, match="expected it within its interval"):
        measurement(median_s=2e-5, low_s=1e-5, high_s=1.5e-5)


def test_a_sample_of_no_calls_is_refused():
    with pytest.raises(InputError, match="calls_per_sample=0"):
        measurement(calls_per_sample=0)
