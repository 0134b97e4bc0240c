"""What a strategy's first call takes: compiling and loading, which no sample has."""

import time
from typing import Any

import torch

from kvbench.devices import synchronize
from kvbench.strategies.base import Strategy
from kvbench.workload import Workload


class FirstCall(Strategy):
    """A strategy that does what another does, its first prepare and its first run timed."""

    def __init__(self, strategy: Strategy, device: torch.device) -> None:
        self._strategy = strategy
        self._device = device
        self._prepare_s: float | None = None
        self._run_s: float | None = None

    @property
    def seconds(self) -> float:
        """Wall time of the first prepare and the first run so far, until the device was done."""
        return (self._prepare_s or 0.0) + (self._run_s or 0.0)

    def prepare(self, workload: Workload) -> Any:  # noqa: ANN401 - the strategy's own
        """As the strategy does."""
        synchronize(self._device)
        start = time.perf_counter()
        prepared = self._strategy.prepare(workload)
        synchronize(self._device)
        if self._prepare_s is None:
            self._prepare_s = time.perf_counter() - start
        return prepared

    def run(
        self,
        workload: Workload,
        prepared: Any,  # noqa: ANN401 - the strategy's own
    ) -> tuple[torch.Tensor, torch.Tensor] | torch.Tensor | None:
        """As the strategy does."""
        synchronize(self._device)
        start = time.perf_counter()
        output = self._strategy.run(workload, prepared)
        synchronize(self._device)
        if self._run_s is None:
            self._run_s = time.perf_counter() - start
        return output
