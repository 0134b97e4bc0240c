"""The A/A trial, on clocks whose noise is known."""

import time

import pytest

from kvbench.analysis.calibration import Calibration, CellTrial
from kvbench.analysis.statistics import Estimate
from kvbench.cases import Case
from kvbench.errors import InputError
from kvbench.strategies import registry
from kvbench.sweep.calibration import calibrate, slowed
from kvbench.timing.clocks import WallClock

CASE = Case(op="write", seq_len=8)
INCLUDES_ONE = Estimate(1.0, 0.98, 1.02)
ABOVE_ONE = Estimate(1.1, 1.08, 1.12)


def cell(same=INCLUDES_ONE, slow=ABOVE_ONE, median_s=1e-4):
    return CellTrial(CASE, "write.loop", median_s, same, slow)


def test_false_alarms_and_misses_are_counted():
    trials = (
        cell(),
        cell(same=ABOVE_ONE),
        cell(same=Estimate(0.9, 0.8, 0.99)),
        cell(slow=INCLUDES_ONE),
        cell(slow=INCLUDES_ONE, median_s=1e-6),  # too short to count as a miss
    )
    found = Calibration(trials)
    assert (found.false_alarms, len(found.long_enough), found.found) == (2, 4, 3)


@pytest.mark.parametrize(
    ("alarms", "misses", "passed"), [(15, 10, True), (16, 10, False), (15, 11, False)]
)
def test_the_limits_are_7_5_and_95_percent(alarms, misses, passed):
    # Of 200 cells: 15 false alarms are 7.5 %, 10 misses leave 95 %.
    trials = [cell() for _ in range(200 - alarms - misses)]
    trials += [cell(same=ABOVE_ONE)] * alarms + [cell(slow=INCLUDES_ONE)] * misses
    assert Calibration(tuple(trials)).passed is passed


def test_no_trial_passes_nothing():
    assert not Calibration(()).passed
    assert not Calibration((cell(median_s=1e-6),)).passed


def test_over_few_cells_only_what_chance_would_hardly_do_is_a_fault():
    # Of 24 cells without any difference 2 false alarms are nothing unusual, 6 are.
    calm = [cell() for _ in range(22)]
    assert Calibration((*calm, *[cell(same=ABOVE_ONE)] * 2)).passed
    assert Calibration((*calm, *[cell(same=ABOVE_ONE)] * 6)).faults() == (
        "differences are seen where there are none",
    )
    assert Calibration((*calm, *[cell(slow=INCLUDES_ONE)] * 6)).faults() == (
        "differences of 10% are missed",
    )


def test_more_cells_than_there_are_are_refused(cpu):
    with pytest.raises(InputError, match="cells: expected up to"):
        calibrate(registry.all_strategies(), WallClock(cpu), cpu, 10**6, print)


def test_a_slowed_copy_takes_at_least_that_much_longer_and_gives_the_same():
    start = time.perf_counter()
    assert slowed(lambda: "result", 0.01)() == "result"
    assert time.perf_counter() - start >= 0.01


def test_cells_are_drawn_from_the_strategies_that_are_timed_here(cpu):
    seen = []
    found = calibrate(registry.all_strategies(), WallClock(cpu), cpu, 3, seen.append, seed=1)
    assert found.trials == tuple(seen)
    assert len(seen) == 3
    assert not any("triton" in trial.strategy for trial in seen)
