"""Times, sizes and rates for people."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbench.units import (
    format_bandwidth,
    format_bytes,
    format_duration,
    format_seconds,
    significant,
)

# Half a unit of the third digit of 1.00, and a little for the halves that binary can't hold.
HALF_A_DIGIT = 0.005 * 1.001


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0.00"),
        (1.0, "1.00"),
        (1.005, "1.00"),
        (12.345, "12.3"),
        (99.96, "100"),
        (123.4, "123"),
        (1234.0, "1230"),
        (45_678_901.0, "45700000"),
        (0.00123, "0.00123"),
    ],
)
def test_three_digits_are_kept(value, text):
    assert significant(value) == text


def test_the_number_of_digits_can_be_chosen():
    assert [significant(1234.5678, digits) for digits in (1, 2, 5, 6)] == [
        "1000",
        "1200",
        "1234.6",
        "1234.57",
    ]


@given(st.floats(1e-12, 1e15))
def test_a_number_is_never_scientific_and_reads_back_to_three_digits(value):
    text = significant(value)
    assert re.fullmatch(r"\d+(\.\d+)?", text)
    assert float(text) == pytest.approx(value, rel=HALF_A_DIGIT)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0 s"),
        (31.8e-9, "31.8 ns"),
        (1e-6, "1.00 µs"),
        (12.34e-6, "12.3 µs"),
        (1e-3, "1.00 ms"),
        (0.25, "250 ms"),
        (1.0, "1.00 s"),
        (90.0, "90.0 s"),
    ],
)
def test_times_have_the_unit_that_suits_them(seconds, text):
    assert format_seconds(seconds) == text


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.00 KiB"),
        (65_536, "64.0 KiB"),
        (1 << 20, "1.00 MiB"),
        (3 << 29, "1.50 GiB"),
        (1 << 40, "1020 GiB"),
    ],
)
def test_sizes_are_in_powers_of_1024(nbytes, text):
    assert format_bytes(nbytes) == text


def test_rates_are_in_powers_of_1000():
    assert format_bandwidth(28_385_454_862.3) == "28.4 GB/s"
    assert format_bandwidth(4.8e12) == "4800 GB/s"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-3, "0 s"),
        (0.4, "0 s"),
        (45.2, "45 s"),
        (59.6, "1 min 00 s"),
        (185, "3 min 05 s"),
        (3599.6, "1 h 00 min"),
        (7800, "2 h 10 min"),
        (100_000, "27 h 46 min"),
    ],
)
def test_waiting_times_read_like_a_clock(seconds, text):
    assert format_duration(seconds) == text


UNITS = {
    "s": 1.0,
    "ms": 1e-3,
    "µs": 1e-6,
    "ns": 1e-9,
    "B/s": 1,
    "kB/s": 1e3,
    "MB/s": 1e6,
    "GB/s": 1e9,
    "B": 1,
    "KiB": 1 << 10,
    "MiB": 1 << 20,
    "GiB": 1 << 30,
}


def read_back(text: str) -> float:
    number, unit = text.split(" ")
    return float(number) * UNITS[unit]


@given(st.floats(1e-12, 1e9))
def test_a_time_reads_back_to_three_digits(seconds):
    assert read_back(format_seconds(seconds)) == pytest.approx(seconds, rel=HALF_A_DIGIT)


@given(st.integers(1, 1 << 60))
def test_a_size_reads_back_to_three_digits(nbytes):
    assert read_back(format_bytes(nbytes)) == pytest.approx(nbytes, rel=HALF_A_DIGIT)


@given(st.floats(1, 1e15))
def test_a_rate_reads_back_to_three_digits(bytes_per_s):
    text = format_bandwidth(bytes_per_s)
    assert read_back(text) == pytest.approx(bytes_per_s, rel=HALF_A_DIGIT)


@given(st.floats(0, 1e6))
def test_a_waiting_time_says_as_much_as_its_smallest_unit(seconds):
    text = format_duration(seconds)
    parts = re.findall(r"(\d+) (s|min|h)", text)
    said = sum(int(n) * {"s": 1, "min": 60, "h": 3600}[unit] for n, unit in parts)
    # From an hour on the seconds are left out.
    assert said <= round(seconds) < said + (60 if "h" in text else 1)


@pytest.mark.parametrize(
    ("format_", "value", "text"),
    [
        (format_seconds, 0.99949e-3, "999 µs"),
        (format_seconds, 0.9996e-3, "1.00 ms"),
        (format_seconds, 0.9996, "1.00 s"),
        (format_seconds, 0.3e-9, "0.300 ns"),
        (format_bandwidth, 999.7e6, "1.00 GB/s"),
        (format_bytes, 1023.9 * 1024, "1.00 MiB"),
        (format_bytes, 1000 * 1024, "1000 KiB"),
        (format_bytes, 12, "12 B"),
    ],
)
def test_the_unit_is_that_of_what_is_shown(format_, value, text):
    assert format_(value) == text
