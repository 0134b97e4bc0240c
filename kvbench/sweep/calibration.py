"""Can this machine tell a difference, and does it see none where there is none?

Two copies of one strategy are measured against each other (A/A), and against a copy that is made
slower by a known share. False alarms and misses are counted over many cells.
"""

import functools
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from kvbench.analysis.statistics import Estimate, ratio_interval
from kvbench.cases import Axes, Case
from kvbench.strategies.base import Strategy
from kvbench.timing.clocks import Clock
from kvbench.timing.rounds import StoppingRule, sample_rounds
from kvbench.workload import build, fill

SLOWED_BY = 0.10
MOST_FALSE_ALARMS = 0.075
"""Of the 95 % intervals that may exclude 1 where there is no difference."""
LEAST_FOUND = 0.95
"""Of the slowed copies that must be found."""
SHORTEST_FOUND_S = 20e-6
"""Calls shorter than this are left out of that: a tenth of them is near the clock's own noise."""

# A fixed number of rounds: stopping when an interval looks good would bias what is calibrated.
_RULE = StoppingRule(min_rounds=40, max_rounds=40, cell_seconds=1e9)

CASES = Axes.parse(
    ["seq_len=1:512:*2", "block_size=16,64", "num_kv_heads=2,8", "head_dim=64,128"]
).expand()


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

    @property
    def passed(self) -> bool:
        """Whether both shares are within their limits."""
        return (
            bool(self.trials)
            and self.false_alarms <= MOST_FALSE_ALARMS * len(self.trials)
            and self.found >= LEAST_FOUND * len(self.long_enough)
        )


def slowed(call: Callable[[], object], by_s: float) -> Callable[[], object]:
    """The call, followed by so many seconds of waiting."""
    by_ns = round(by_s * 1e9)

    def slow() -> object:
        result = call()
        until = time.perf_counter_ns() + by_ns
        while time.perf_counter_ns() < until:
            pass
        return result

    return slow


def trial(strategy: Strategy, case: Case, clock: Clock, device: torch.device) -> CellTrial:
    """Measure one strategy in one case against a copy and a slowed copy of itself."""
    workload = build(case, device)
    fill(workload)
    prepared = strategy.prepare(workload)
    call = functools.partial(strategy.run, workload, prepared)
    pilot = sample_rounds({"pilot": call}, clock, StoppingRule(min_rounds=5, max_rounds=5), 0)
    base_s = pilot["pilot"].estimate.median
    subjects: dict[str, Callable[[], object]] = {
        "one": call,
        "two": functools.partial(strategy.run, workload, prepared),
        "slow": slowed(call, base_s * SLOWED_BY),
    }
    samplings = sample_rounds(subjects, clock, _RULE, case.seed)
    one, two, slow = (samplings[name].samples_s for name in subjects)
    return CellTrial(
        case,
        strategy.name,
        samplings["one"].estimate.median,
        ratio_interval(two, one),
        ratio_interval(slow, one),
    )


def calibrate(
    strategies: Sequence[Strategy],
    clock: Clock,
    device: torch.device,
    cells: int,
    on_cell: Callable[[CellTrial], None],
    *,
    seed: int = 0,
) -> Calibration:
    """Run the trials of so many cells, drawn from all strategies that are timed here.

    Args:
        strategies: The strategies.
        clock: What measures.
        device: Where.
        cells: How many cells.
        on_cell: Called after each cell.
        seed: Of the draw.
    """
    pairs = [
        (strategy, case)
        for strategy in strategies
        for case in CASES
        if case.op == strategy.op
        and strategy.supports(case, device) is None
        and strategy.untimed(device) is None
    ]
    rng = random.Random(seed)  # noqa: S311 - reproducible, not secret
    drawn = rng.sample(pairs, min(cells, len(pairs)))
    trials = []
    for strategy, case in drawn:
        trials.append(trial(strategy, case, clock, device))
        on_cell(trials[-1])
    return Calibration(tuple(trials))
