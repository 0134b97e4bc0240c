"""The only place that scales seconds and bytes for people. Storage is SI, unscaled."""

from decimal import Decimal

_TIME_STEPS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (0.0, "ns"))
_BYTE_STEPS = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"), (0, "B"))
_RATE_STEPS = ((1e9, "GB/s"), (1e6, "MB/s"), (1e3, "kB/s"), (0.0, "B/s"))

MICROSECONDS_PER_SECOND = 1e6
BYTES_PER_GB = 1e9


def significant(value: float, digits: int = 3) -> str:
    """`value` to so many significant digits, never in scientific notation."""
    return f"{Decimal(f'{value:#.{digits}g}'):f}".rstrip(".")


def _step(value: float, steps: tuple[tuple[float, str], ...]) -> tuple[float, str]:
    """The largest unit in which a value is 1 or more as it is shown: 999.9 µs are 1.00 ms."""
    return next(
        (step for step in steps if step[0] and float(significant(value / step[0])) >= 1), steps[-1]
    )


def format_seconds(seconds: float) -> str:
    """A time for people: 3 significant digits with the unit that suits it, as "12.3 µs"."""
    if seconds == 0:
        return "0 s"
    scale, unit = _step(abs(seconds), _TIME_STEPS)
    return f"{significant(seconds / (scale or 1e-9))} {unit}"


def format_seconds_interval(seconds: float, low: float, high: float) -> str:
    """A time with its interval, in one unit: "6.30 (5.05 to 7.41) µs"."""
    scale, unit = _step(max(abs(seconds), abs(high)), _TIME_STEPS)
    values = [significant(t / (scale or 1e-9)) if t else "0" for t in (seconds, low, high)]
    return f"{values[0]} ({values[1]} to {values[2]}) {unit}"


def format_seconds_range(low: float, high: float) -> str:
    """Two times in one unit, "5.30 to 20.3 µs"; one time where they are alike."""
    if low == high:
        return format_seconds(low)
    scale, unit = _step(abs(high), _TIME_STEPS)
    least, most = (significant(t / (scale or 1e-9)) if t else "0" for t in (low, high))
    return f"{least} {unit}" if least == most else f"{least} to {most} {unit}"


def format_bytes(nbytes: float) -> str:
    """A size for people in powers of 1024, as "64.0 MiB"."""
    scale, unit = _step(abs(nbytes), _BYTE_STEPS)
    return f"{nbytes:.0f} B" if unit == "B" else f"{significant(nbytes / scale)} {unit}"


def format_bandwidth(bytes_per_s: float) -> str:
    """A rate for people in powers of 1000, as vendors state it: "12.3 GB/s"."""
    scale, unit = _step(abs(bytes_per_s), _RATE_STEPS)
    return f"{significant(bytes_per_s / (scale or 1.0))} {unit}"


def format_ratio(ratio: float, low: float, high: float) -> str:
    """A ratio with its interval, as "1.12x (1.10 to 1.14)"."""
    return f"{significant(ratio)}x ({significant(low)} to {significant(high)})"


def format_share(share: float) -> str:
    """A share for people, in percent to at most two significant digits, as "5 %" and "0.37 %"."""
    return f"{Decimal(f'{100 * share:.2g}'):f} %"


def format_duration(seconds: float) -> str:
    """A waiting time for people: "45 s", "3 min 05 s", "2 h 10 min"."""
    whole = max(0, round(seconds))
    if whole < 60:  # noqa: PLR2004 - seconds in a minute
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:  # noqa: PLR2004 - minutes in an hour
        return f"{minutes} min {rest:02d} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min"
