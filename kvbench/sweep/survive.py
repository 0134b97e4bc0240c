"""A case's rows, whatever its strategies do to the process that measures them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from kvbench.cases import Case
from kvbench.results import Result, Status
from kvbench.strategies.base import Strategy
from kvbench.strategies.registry import file_of
from kvbench.sweep.bench import Machine, Settings
from kvbench.sweep.measure import repro_of
from kvbench.sweep.worker import WorkerEnded


class Measurer(Protocol):
    """What measures cases: this process, or one that may end without ending the run."""

    @property
    def machine(self) -> Machine:
        """What was found out about the device."""
        ...

    def measure(self, case: Case, strategies: Sequence[Strategy]) -> list[Result]:
        """A case's rows.

        Raises:
            WorkerEnded: The process ended; there is a fresh one.
        """
        ...

    def notes(self) -> tuple[str, ...]:
        """What there is to say of the kernels that were compiled, a line each."""
        ...

    def stop(self) -> None:
        """Let go of what it holds."""
        ...


def survive(
    case: Case, strategies: Sequence[Strategy], settings: Settings, measurer: Measurer
) -> list[Result]:
    """A case's rows: a strategy that ends the process is left out from then.

    The others are measured anew without it, so that their rounds stay complete.

    Args:
        case: The case.
        strategies: All that the measurer knows, in its order; those of other ops are passed over.
        settings: How the measurer measures.
        measurer: Who measures.
    """
    left = [strategy for strategy in strategies if strategy.op == case.op]
    rows: list[Result] = []
    while True:
        try:
            return rows + (measurer.measure(case, left) if left else [])
        except WorkerEnded as end:
            blamed = left if end.index is None else [strategies[end.index]]
            rows += [
                lost(case, each.name, file_of(each), settings, end.status, str(end))
                for each in blamed
            ]
            left = [strategy for strategy in left if strategy not in blamed]


def lost(
    case: Case, strategy: str, file: Path | None, settings: Settings, status: Status, reason: str
) -> Result:
    """The row of a strategy, of a file or built in, whose process ended."""
    return Result(
        case=case,
        strategy=strategy,
        phase="run",
        clock="wall",
        cache=settings.cache,
        status=status,
        reason=reason,
        repro=repro_of(case, strategy, file, settings.device, settings.options()),
    )
