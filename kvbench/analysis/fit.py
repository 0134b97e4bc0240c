"""The launch-overhead model: time = a + b * launches + bytes / bandwidth.

A call costs something to make (a), something for everything that it launches (b), and the time to
move its bytes. The three are found by least squares of relative errors, so that a call of 10 µs
counts as much as one of 10 ms, and none may be negative.

What the data can't tell apart is not told: a strategy that always makes two launches has one
overhead, and nobody can say which part of it is a and which is 2 b. A loop whose every launch moves
as many bytes in all cases has one cost per token. Columns that are (nearly) multiples of each other
are found by the rank and the condition of the scaled matrix, and the fit says which it joined or
why it refuses.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy.optimize import nnls

from kvbench.analysis.frame import main_pools, timed
from kvbench.analysis.statistics import CONFIDENCE
from kvbench.cases import WHOLE_STEPS

Floats = npt.NDArray[np.float64]

MOST_CONDITION = 200.0
"""Of the matrix with columns scaled to length 1: beyond it a 1 % error moves a term by its size."""
_RESAMPLES = 400
_MOST_DRAWS = 10
"""Draws for each resample that is kept."""
_FEWEST_CELLS = 6


@dataclass(frozen=True, slots=True)
class Term:
    """One term of the model with the ends of its bootstrap interval, over resampled cells."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Fit:
    """The model of one strategy, or of several jointly."""

    name: str
    cells: int
    per_call_s: Term | None
    """Seconds of a call before it launches anything. None if the cells can't tell it from the cost
    of launches: `overhead_s` then has both."""
    per_launch_s: Term | None
    """Seconds of each launch; None as for per_call_s."""
    overhead_s: Term | None
    """Seconds of a call and its launches, where all cells make the same number of launches, or are
    taken to, since it is not known."""
    bandwidth_bytes_per_s: Term | None
    """Bytes per second; None if moving bytes takes no time that can be seen."""
    r_squared: float
    """Share of the variance of log(time) that the model explains."""
    median_relative_error: float
    """Median of |predicted - measured| / measured."""
    rank: int
    """Of the scaled matrix: how many terms the cells can tell apart, of three."""
    condition: float
    """Of the scaled matrix that was solved."""

    def predict(self, launches: Floats, nbytes: Floats) -> Floats:
        """Seconds per call by the model."""
        return self.overhead(launches) + self.moving(nbytes)

    def overhead(self, launches: Floats) -> Floats:
        """The part of the time that is the call and its launches, in seconds."""
        if self.overhead_s is not None:
            return np.full_like(launches, self.overhead_s.value)
        call = self.per_call_s.value if self.per_call_s else 0.0
        launch = self.per_launch_s.value if self.per_launch_s else 0.0
        return call + launch * launches

    def moving(self, nbytes: Floats) -> Floats:
        """The part of the time that is moving bytes, in seconds."""
        if self.bandwidth_bytes_per_s is None:
            return np.zeros_like(nbytes)
        return nbytes / self.bandwidth_bytes_per_s.value


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a strategy has no fit."""

    name: str
    cells: int
    reason: str
    rank: int | None = None
    condition: float | None = None


def fit_model(
    name: str,
    launches: Sequence[float] | Floats,
    nbytes: Sequence[float] | Floats,
    seconds: Sequence[float] | Floats,
    *,
    seed: int = 0,
) -> Fit | Refusal:
    """Fit the model to cells.

    Args:
        name: Whose cells they are.
        launches: Launches of one call, per cell.
        nbytes: Bytes that one call moves, per cell.
        seconds: Measured seconds of one call, per cell.
        seed: Of the bootstrap over cells.

    Returns:
        The fit, or the reason why the cells can't identify it.
    """
    n, b, t = (np.asarray(v, dtype=np.float64) for v in (launches, nbytes, seconds))
    if len(t) < _FEWEST_CELLS:
        return Refusal(name, len(t), f"{len(t)} cells; expected {_FEWEST_CELLS} or more")
    constant_launches = bool(np.ptp(n) == 0)
    if np.ptp(b) == 0:
        return Refusal(name, len(t), "every cell moves as many bytes; expected them to vary")
    if np.ptp(t) == 0:
        return Refusal(name, len(t), "every cell takes as long; expected times that vary")
    columns = [np.ones_like(t), b] if constant_launches else [np.ones_like(t), n, b]
    matrix = np.column_stack(columns) / t[:, None]  # relative errors: each row divided by its time
    rank, condition = _identifiable(matrix)
    if rank < matrix.shape[1] or condition > MOST_CONDITION:
        return Refusal(
            name,
            len(t),
            f"launches and bytes grow together (rank {rank} of {matrix.shape[1]}, condition "
            f"{condition:.3g}, at most {MOST_CONDITION:.3g}); expected cells that vary the bytes "
            "per launch, as several num_kv_heads or head_dim",
            rank,
            condition,
        )
    solution = _solve(matrix)
    rng = np.random.default_rng(seed)
    draws = _resampled(matrix, rng)
    if draws is None:
        return Refusal(
            name,
            len(t),
            f"fewer than one in {_MOST_DRAWS} resamples of the cells tell launches and bytes "
            "apart; expected more cells that do",
            rank,
            condition,
        )
    tail = (1 - CONFIDENCE) / 2 * 100
    low, high = np.percentile(draws, [tail, 100 - tail], axis=0)
    terms = [
        Term(float(v), float(lo), float(hi)) for v, lo, hi in zip(solution, low, high, strict=True)
    ]
    errors = matrix @ solution - 1  # (predicted - measured) / measured
    # Times span decades and errors are relative, so variance is that of the logarithms. A fit may
    # predict 0 for a cell that costs nothing by the model: a nanosecond bounds its logarithm.
    predicted = np.log(np.maximum(matrix @ solution * t, 1e-9))
    measured = np.log(t)
    r_squared = 1 - ((predicted - measured) ** 2).sum() / ((measured - measured.mean()) ** 2).sum()
    return Fit(
        name=name,
        cells=len(t),
        per_call_s=None if constant_launches else terms[0],
        per_launch_s=None if constant_launches else terms[1],
        overhead_s=terms[0] if constant_launches else None,
        bandwidth_bytes_per_s=_reciprocal(terms[-1]),
        r_squared=float(r_squared),
        median_relative_error=float(np.median(np.abs(errors))),
        rank=rank,
        condition=condition,
    )


def _resampled(matrix: Floats, rng: np.random.Generator) -> Floats | None:
    """Solutions of resamples of the cells, [resamples, terms]; None if hardly any identifies them.

    A resample that leaves out what tells the terms apart has any solution: which one is found
    would be decided by rounding, and so by the processor.
    """
    draws: list[Floats] = []
    cells, terms = matrix.shape
    for _ in range(_MOST_DRAWS * _RESAMPLES):
        sample = matrix[rng.integers(0, cells, cells)]
        rank, condition = _identifiable(sample)
        if rank == terms and condition <= MOST_CONDITION:
            draws.append(_solve(sample))
        if len(draws) == _RESAMPLES:
            return np.array(draws)
    return None


def _solve(matrix: Floats) -> Floats:
    # Columns differ by ten orders of magnitude (seconds per byte): solve them scaled.
    scale = np.linalg.norm(matrix, axis=0)
    solution, _ = nnls(matrix / scale, np.ones(len(matrix)))
    return np.asarray(solution / scale, dtype=np.float64)


def _identifiable(matrix: Floats) -> tuple[int, float]:
    scaled = matrix / np.linalg.norm(matrix, axis=0)
    singular = np.linalg.svd(scaled, compute_uv=False)
    rank = int((singular > singular[0] * 1e-9).sum())
    return rank, float(singular[0] / singular[-1]) if singular[-1] > 0 else float("inf")


def _reciprocal(per_byte: Term) -> Term | None:
    if per_byte.value <= 0:
        return None
    low = 1 / per_byte.high
    high = 1 / per_byte.low if per_byte.low > 0 else float("inf")
    return Term(1 / per_byte.value, low, high)


def fitted(frame: pd.DataFrame, op: str) -> pd.DataFrame:
    """The rows of an op that its models are fitted to: runs by the wall clock, one row per cell.

    Of a run with several kinds of pools those of the main one. Of a strategy whose launches are
    known in some cases, these; of one of which none are known (C++ on a CPU makes none, a
    compiler's are not to be told without a GPU), all.

    Args:
        frame: Rows of a run, with the columns launches and least_bytes.
        op: The op.
    """
    runs = main_pools(timed(frame[(frame["op"] == op) & (frame["tokens"] > 0)]))
    counted = runs["launches"].notna()
    some = runs["strategy"].isin(runs.loc[counted, "strategy"].unique())
    return runs[counted | ~some]


def fit_run(frame: pd.DataFrame, op: str) -> list[Fit | Refusal]:
    """The model of every strategy of an op that was timed, and of all of them jointly.

    A strategy whose launches are not known is taken to make as many in every case: its call and
    whatever it launches are one overhead. It has no part in the joint fit. That can't be so of
    whole steps, as each layer launches, nor where a part of the call is known to launch more in one
    case than in another, as a gather that loops does.

    Args:
        frame: Rows of a run, with the columns launches and least_bytes.
        op: The op.
    """
    runs = fitted(frame, op)
    parts = frame[(frame["op"] == op) & ~frame["phase"].isin(("run", "prepare"))]
    of_parts = parts.groupby("strategy")["launches"].nunique()
    growing = set(of_parts.index[of_parts > 1])
    fits: list[Fit | Refusal] = []
    for name, own in runs.groupby("strategy", sort=True):
        unknown = own["launches"].isna().all()
        if unknown and op in WHOLE_STEPS:
            reason = "every layer launches, and how often is not known"
            fits.append(Refusal(str(name), len(own), reason))
        elif unknown and name in growing:
            reason = "its launches grow with the case, and how many a call makes is not known"
            fits.append(Refusal(str(name), len(own), reason))
        else:
            fits.append(fit_model(str(name), *_columns(own)))
    counted = runs[runs["launches"].notna()]
    if counted["strategy"].nunique() > 1:
        fits.append(fit_model(f"{op}, all jointly", *_columns(counted)))
    return fits


def _columns(rows: pd.DataFrame) -> tuple[Floats, Floats, Floats]:
    launches, nbytes, seconds = (
        rows[name].to_numpy(dtype=np.float64) for name in ("launches", "least_bytes", "median_s")
    )
    return np.nan_to_num(launches), nbytes, seconds
