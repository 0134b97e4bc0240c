"""What a sweep would do, without doing it."""

from collections import Counter
from dataclasses import dataclass

from kvbench.devices import free_bytes
from kvbench.strategies.base import why_unsupported, why_untimed
from kvbench.sweep.bench import select_clocks
from kvbench.sweep.runner import Plan
from kvbench.units import format_bytes
from kvbench.workload import needed_bytes


@dataclass(frozen=True, slots=True)
class Forecast:
    """The cells of a sweep, and how long sampling takes at most."""

    cells: dict[str, Counter[str]]
    """By strategy: how many cells are to be timed or checked ("to do"), and of the others how many
    for each reason."""
    largest_bytes: int
    """The most memory that a case needs which fits."""
    at_most_s: float
    """If no cell is precise enough before its time is over. Checks and set-up come on top."""


def forecast(plan: Plan) -> Forecast:
    """Look ahead: what each strategy supports, what fits, how long it takes at most."""
    free = free_bytes(plan.device)
    clocks = len(select_clocks(plan.device, plan.clocks))
    cells: dict[str, Counter[str]] = {s.name: Counter() for s in plan.strategies}
    largest, seconds = 0, 0.0
    for case in plan.cases:
        needed = needed_bytes(case, free)
        fits = needed <= free
        largest = max(largest, needed if fits else 0)
        for strategy in plan.strategies_for(case):
            reason = why_unsupported(strategy, case, plan.device)
            if not fits:
                reason = f"does not fit in the {format_bytes(free)} that are free"
            cells[strategy.name][reason or "to do"] += 1
            if reason is None and why_untimed(strategy, plan.device) is None:
                seconds += plan.cell_seconds * len(strategy.phases()) * clocks
    return Forecast(cells, largest, seconds)
