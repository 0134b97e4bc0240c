"""Can this machine tell a difference, and does it see none where there is none?

Two copies of one strategy are measured against each other (A/A), and against a copy that is made
slower by a known share. False alarms and misses are counted over many cells.
"""

import random
import time
from collections.abc import Callable, Sequence

import torch

from kvbench.analysis.calibration import ROUNDS, SLOWED_BY, Calibration, CellTrial
from kvbench.analysis.statistics import ratio_interval
from kvbench.axes import Axes
from kvbench.cases import Case
from kvbench.devices import synchronize
from kvbench.errors import InputError
from kvbench.filling import fill
from kvbench.strategies.base import Strategy, why_unsupported, why_untimed
from kvbench.timing.clocks import Clock
from kvbench.timing.rounds import StoppingRule, sample_rounds
from kvbench.workload import build

# A fixed number of rounds: stopping when an interval looks good would bias what is calibrated.
_RULE = StoppingRule(min_rounds=ROUNDS, max_rounds=ROUNDS, cell_seconds=1e9)

CASES = Axes.parse(
    ["seq_len=1:512:*2", "block_size=16,64", "num_kv_heads=2,8", "head_dim=64,128"]
).expand()


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

    def copy() -> Callable[[], object]:
        def call() -> object:
            result = strategy.run(workload, prepared)
            # On a device the wait of the slowed copy would hide behind work still under way.
            synchronize(device)
            return result

        return call

    call = copy()
    pilot = sample_rounds({"pilot": call}, clock, StoppingRule(min_rounds=5, max_rounds=5), 0)
    base_s = pilot["pilot"].estimate.median
    subjects: dict[str, Callable[[], object]] = {
        "one": call,
        "two": copy(),
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

    Raises:
        InputError: There are not so many cells.
    """
    pairs = [
        (strategy, case)
        for strategy in strategies
        for case in CASES
        if case.op == strategy.op
        and why_unsupported(strategy, case, device) is None
        and why_untimed(strategy, device) is None
    ]
    rng = random.Random(seed)  # noqa: S311 - reproducible, not secret
    if cells > len(pairs):
        raise InputError(f"{cells} cells: expected up to {len(pairs)}, as many as there are here")
    drawn = rng.sample(pairs, cells)
    trials = []
    for strategy, case in drawn:
        trials.append(trial(strategy, case, clock, device))
        on_cell(trials[-1])
    return Calibration(tuple(trials))
