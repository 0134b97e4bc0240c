"""A strategy's run as a captured graph replays it, so that the oracle judges what is timed."""

from kvbench.strategies.base import Strategy
from kvbench.timing.accelerator import Accelerator
from kvbench.workload import Workload


class Replay:
    """Runs what a strategy launched once, with the same tensors, and no Python of the strategy's.

    Args:
        strategy: Whose run is captured.
        workload: With which tensors.
        prepared: What the strategy prepared for them.
        accelerator: Captures.

    Raises:
        RuntimeError: The run can't be captured.
    """

    def __init__(
        self, strategy: Strategy, workload: Workload, prepared: object, accelerator: Accelerator
    ) -> None:
        self._output: object = None

        def call() -> None:
            # What the captured call returned is what each replay fills anew.
            self._output = strategy.run(workload, prepared)

        self._replay = accelerator.capture(call)

    def run(self, workload: Workload, prepared: object) -> object:  # noqa: ARG002 - as captured
        """Replay; what a read returns are the tensors of the capture."""
        self._replay()
        return self._output
