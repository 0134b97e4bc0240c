"""What `kvbench doctor` prints."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from kvbench.analysis.calibration import (
    LEAST_FOUND,
    MOST_FALSE_ALARMS,
    ROUNDS,
    SHORTEST_FOUND_S,
    SLOWED_BY,
    Calibration,
)
from kvbench.diagnosis import Finding
from kvbench.report.tables import Table
from kvbench.units import format_seconds


class Floor(Protocol):
    """`timing.clocks.Floor`, by its meaning: this room knows no torch."""

    @property
    def sample_s(self) -> float:
        """What a sample takes beyond its calls, in seconds."""
        ...

    @property
    def call_s(self) -> float:
        """What each call adds, in seconds."""
        ...

    def at(self, calls: int) -> float:
        """Per call, in samples of so many calls."""
        ...


def findings_table(findings: Sequence[Finding]) -> Table:
    """What of the machine makes timings untrustworthy."""
    return Table(
        "This machine",
        ("what", "found", "verdict", "advice"),
        tuple((f.subject, f.value, f.verdict, f.advice) for f in findings),
    )


def floors_table(floors: Mapping[str, Floor]) -> Table:
    """The least that each clock can tell."""
    return Table(
        "Floors: an empty call, by each clock",
        ("clock", "per call", "per sample", "one call resolved from"),
        tuple(
            (
                name,
                format_seconds(floor.call_s),
                format_seconds(floor.sample_s),
                format_seconds(2 * floor.at(1)),
            )
            for name, floor in floors.items()
        ),
    )


def calibration_table(calibration: Calibration) -> Table:
    """False alarms and misses of the A/A trial, beside what may be."""
    cells, long_enough = len(calibration.trials), len(calibration.long_enough)
    alarms, found = calibration.false_alarms, calibration.found
    widths = sorted(trial.same.relative_half_width for trial in calibration.trials)
    return Table(
        f"A/A trial: a strategy against its copy, {ROUNDS} rounds, 95 % intervals of the ratio",
        ("what", "measured", "expected"),
        (
            (
                "copies told apart (false alarms)",
                f"{alarms} of {cells} ({100 * alarms / max(cells, 1):.1f} %)",
                f"at most {100 * MOST_FALSE_ALARMS:.1f} %",
            ),
            (
                f"copies slowed by {100 * SLOWED_BY:.0f} % found, of calls over "
                f"{format_seconds(SHORTEST_FOUND_S)}",
                f"{found} of {long_enough} ({100 * found / max(long_enough, 1):.1f} %)",
                f"at least {100 * LEAST_FOUND:.0f} %",
            ),
            (
                "half-width of the intervals, median",
                f"{100 * widths[len(widths) // 2]:.1f} %" if widths else "not measured",
                "the least difference that one comparison can show",
            ),
        ),
    )
