"""How long the rest of a sweep takes, from the cases that are done. Torch-free.

Cases of a sweep differ by orders of magnitude: a mean over those done is wrong by as much while few
are. What a case takes is fitted instead: a fixed part, a part per token, which is what loops and
interpreters take, and a part per byte.
"""

import time
from collections.abc import Sequence

import numpy as np
from scipy.optimize import nnls

from kvbench.cases import Case


class Remaining:
    """The time that cases take which are not done yet.

    Args:
        cases: All of them.
    """

    def __init__(self, cases: Sequence[Case]) -> None:
        self._left = {case: _features(case) for case in cases}
        self._done: list[tuple[float, float, float]] = []
        self._seconds: list[float] = []
        self._since = time.monotonic()

    def done(self, case: Case, seconds: float | None = None) -> float:
        """Note what a case took.

        Args:
            case: One of those left.
            seconds: What it took; the time since the last one was done if None.

        Returns:
            Seconds that the rest will take.
        """
        now = time.monotonic()
        self._seconds.append(now - self._since if seconds is None else seconds)
        self._since = now
        self._done.append(self._left.pop(case))
        return self.seconds()

    def seconds(self) -> float:
        """What the cases left will take."""
        if not self._left:
            return 0.0
        done, seconds = np.array(self._done), np.array(self._seconds)
        largest = done.max(axis=0)
        # What a case takes varies in proportion to it: each residual counts relative to its time.
        factors, _ = nnls(done / largest / seconds[:, np.newaxis], np.ones(len(seconds)))
        # On a busy machine some take tens of times as long: no residual is more than their whole
        # time, so that the fit passes over them. Their share of the time is kept instead.
        passed_over = seconds.sum() / (done / largest @ factors).sum()
        return float((np.array(list(self._left.values())) / largest @ factors).sum() * passed_over)


def _features(case: Case) -> tuple[float, float, float]:
    return 1.0, 1.0 + case.tokens, 1.0 + case.nbytes
