"""The A/A trial's outcome: false alarms and misses, and what may be of each."""

from dataclasses import dataclass

from scipy import stats

from kvbench.analysis.statistics import Estimate
from kvbench.cases import Case

ROUNDS = 80
"""Of each trial: with 40, a busy virtual machine hid a tenth in 6 of 100 cells."""
SLOWED_BY = 0.10
MOST_FALSE_ALARMS = 0.075
"""Of the 95 % intervals that may exclude 1 where there is no difference."""
EXPECTED_FALSE_ALARMS = 0.05
_CELLS_TO_JUDGE_SHARES = 160
_CHANCE = 0.01
LEAST_FOUND = 0.95
"""Of the slowed copies that must be found."""
SHORTEST_FOUND_S = 20e-6
"""Calls shorter than this are left out of that: a tenth of them is near the clock's own noise."""


@dataclass(frozen=True, slots=True)
class CellTrial:
    """One strategy in one case, against two copies of itself."""

    case: Case
    strategy: str
    median_s: float
    same: Estimate
    """Ratio of the copy's time to the strategy's, which should include 1."""
    slowed: Estimate
    """Ratio of the slowed copy's time to the strategy's, which should lie above 1."""

    @property
    def false_alarm(self) -> bool:
        """Whether the interval of the copy excludes 1."""
        return not self.same.low <= 1 <= self.same.high

    @property
    def found(self) -> bool:
        """Whether the interval of the slowed copy lies above 1."""
        return self.slowed.low > 1


@dataclass(frozen=True, slots=True)
class Calibration:
    """The trials of all cells."""

    trials: tuple[CellTrial, ...]

    @property
    def false_alarms(self) -> int:
        """Cells in which a difference was seen where there is none."""
        return sum(trial.false_alarm for trial in self.trials)

    @property
    def long_enough(self) -> tuple[CellTrial, ...]:
        """The cells in which the slowed copy has to be found."""
        return tuple(t for t in self.trials if t.median_s > SHORTEST_FOUND_S)

    @property
    def found(self) -> int:
        """Cells, of those long enough, in which the slowed copy was found."""
        return sum(trial.found for trial in self.long_enough)

    def faults(self) -> tuple[str, ...]:
        """What is wrong with this machine's comparisons, a sentence each; none if all is well.

        Over 160 cells or more the shares themselves are judged. Over fewer, chance moves them: only
        what chance would hardly do (1 in 100) is a fault.
        """
        cells, long_enough = len(self.trials), len(self.long_enough)
        if not cells:
            return ("no cell was tried",)
        found = []
        if self._too_many(self.false_alarms, cells, MOST_FALSE_ALARMS, EXPECTED_FALSE_ALARMS):
            found.append("differences are seen where there are none")
        misses = long_enough - self.found
        if not long_enough:
            found.append(f"no call was longer than {SHORTEST_FOUND_S:g} s: nothing could be missed")
        elif self._too_many(misses, long_enough, 1 - LEAST_FOUND, 1 - LEAST_FOUND):
            found.append(f"differences of {SLOWED_BY:.0%} are missed")
        return tuple(found)

    @staticmethod
    def _too_many(count: int, cells: int, most: float, expected: float) -> bool:
        if cells >= _CELLS_TO_JUDGE_SHARES:
            return count > round(most * cells, 9)
        return bool(stats.binomtest(count, cells, expected, "greater").pvalue < _CHANCE)

    @property
    def passed(self) -> bool:
        """Whether nothing is wrong."""
        return not self.faults()
