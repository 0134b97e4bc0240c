"""Did it get slower? Two runs' cells held against each other. Pure functions of rows.

A difference is called one only if it is all of these: significant after correction for the number
of cells, larger than the least effect that matters, and larger than what the clock itself takes.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
from scipy import optimize, stats

from kvbench.analysis.moderation import moderate
from kvbench.analysis.statistics import Estimate
from kvbench.cases import Case
from kvbench.results import CacheState, Measurement, Phase, Result, RunInfo

Array = npt.NDArray[np.float64]

Verdict = Literal["SLOWER", "FASTER", "SAME", "UNSURE"]
"""SAME: the whole interval is within the least effect. UNSURE: neither that nor a difference."""

LEAST_EFFECT = 0.05
SIGNIFICANCE = 0.01
"""Share of comparisons of like with like that may call anything different."""
CONFIDENCE = 0.95
FLOOR_SHARE = 0.25
"""Of a clock's own time for an empty call: a smaller difference is the clock's."""
_EFFICIENCY = 0.37
"""Of `_scatter`: it knows as much as a standard deviation of so large a share of the cells."""
_FEW_CELLS = 8
NOISE_OF_FEW = 0.05
"""Of runs that have too few cells in common to see from them how much runs differ."""
_LEAST_ERROR = 1e-6
"""Of a cell's ratio: a part in a million is less than any clock tells apart. A run compared with
itself has no scatter at all, by which nothing could be divided."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What counts as a difference."""

    least_effect: float = LEAST_EFFECT
    """As a share: 0.05 is 5 %."""
    significance: float = SIGNIFICANCE
    clocks: tuple[str, ...] = ()
    """Those that are compared; all if none."""
    renamed: tuple[tuple[str, str], ...] = ()
    """Strategies of the base that have another name in the new run, as (old, new)."""


@dataclass(frozen=True, slots=True)
class Cell:
    """What has one time in a run."""

    case: Case
    strategy: str
    phase: Phase
    clock: str
    cache: CacheState


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """One cell that both runs timed."""

    cell: Cell
    base_s: float
    """Median of the base."""
    new_s: float
    ratio: Estimate
    """New time over base time, with its interval."""
    p_value: float
    """Adjusted for all cells of the comparison."""
    verdict: Verdict
    why: str
    """Of UNSURE: what was missing; else ""."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """A strategy over all of its cells of one phase and clock."""

    strategy: str
    phase: Phase
    clock: str
    cells: int
    ratio: Estimate
    """Geometric mean of new over base."""
    p_value: float
    """Adjusted for all strategies."""
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class Change:
    """A cell that one run timed and the other did not."""

    cell: Cell
    status: str
    """What the other run says: a Status, or "missing"."""
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """All that is to be said of two runs."""

    judged: tuple[Judged, ...]
    """In the order of the base's rows."""
    summaries: tuple[Summary, ...]
    lost: tuple[Change, ...]
    """Timed in the base alone: missing, failed, wrong or refused in the new run."""
    new: tuple[Change, ...]
    """Timed in the new run alone."""
    rules: Rules
    interleaved: bool
    """Whether both were measured in turns."""
    processes: int
    """Pairs of processes that differences were found to agree between; 1 of runs apart."""
    noise: float
    """How much two runs of the same code differ in a cell, as a share: one standard deviation of
    what a pair of processes gives."""

    @property
    def slower(self) -> tuple[Judged, ...]:
        """The cells that got slower."""
        return tuple(each for each in self.judged if each.verdict == "SLOWER")


def controls(base: RunInfo, new: RunInfo) -> float:
    """How far two runs' machines differ, by what no strategy has a part in.

    Returns:
        The larger of the logarithms of the ratios of a copy's speed and of an empty launch's time;
        no sign.
    """
    pairs = [
        (base.copy_bandwidth.bytes_per_s, new.copy_bandwidth.bytes_per_s),
        (base.launch_floor_s, new.launch_floor_s),
    ]
    return max(abs(float(np.log(one / other))) for one, other in pairs)


def compare(
    base: Iterable[Result],
    new: Iterable[Result],
    rules: Rules,
    *,
    interleaved: bool,
    control: float,
) -> Comparison:
    """Hold the rows of a new run against those of a base.

    Args:
        base: Rows of the base.
        new: Rows of the new run.
        rules: What counts as a difference.
        interleaved: Whether both were measured in turns, so that samples of one number belong
            together.
        control: What `controls` gives, which is part of the noise of runs apart.
    """
    names = dict(rules.renamed)
    olds = _cells(base, rules, names)
    news = _cells(new, rules, {})
    both = [cell for cell, row in olds.items() if row.measurement and _timed(news.get(cell))]
    timings = [_timing(olds[cell], news[cell], interleaved=interleaved) for cell in both]
    judged: tuple[Judged, ...] = ()
    summaries: tuple[Summary, ...] = ()
    noise = 0.0
    if both:
        groups = _strategies(both)
        if max(len(timing.logs) for timing in timings) > 1:
            known = _of_pairs(timings, list(groups.values()))
        else:
            known = _of_cells_apart(timings, control)
        judged = _judge(both, known, olds, news, rules)
        summaries = _summarise(groups, known, rules)
        noise = known.noise
    return Comparison(
        judged=judged,
        summaries=summaries,
        lost=_changes(olds, news),
        new=_changes(news, olds),
        rules=rules,
        interleaved=interleaved,
        processes=max((len(timing.logs) for timing in timings), default=1),
        noise=noise,
    )


def _cells(rows: Iterable[Result], rules: Rules, names: Mapping[str, str]) -> dict[Cell, Result]:
    return {
        Cell(row.case, names.get(row.strategy, row.strategy), row.phase, row.clock, row.cache): row
        for row in rows
        # A strategy that failed has a row of the first clock alone, whatever was asked for.
        if not rules.clocks or row.clock in rules.clocks or row.measurement is None
    }


def _timed(row: Result | None) -> bool:
    return row is not None and row.measurement is not None


def _changes(those: Mapping[Cell, Result], others: Mapping[Cell, Result]) -> tuple[Change, ...]:
    """The cells timed among those alone, with what became of them among the others."""
    # A strategy that wasn't timed has one row, of the phase run and the first clock.
    said = {(cell.case, cell.strategy): row for cell, row in others.items() if not _timed(row)}
    found = []
    for cell, row in those.items():
        if not _timed(row) or _timed(others.get(cell)):
            continue
        other = others.get(cell) or said.get((cell.case, cell.strategy))
        status, reason = ("missing", "") if other is None else (other.status, other.reason or "")
        found.append(Change(cell, status, reason))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class _Timing:
    """What is known of one ratio."""

    logs: Array
    """Logarithm of new over base, one per pair of processes."""
    errors: Array
    """Standard error of each that the samples within the pair tell of."""


@dataclass(frozen=True, slots=True)
class _Known:
    """What is known of many ratios: an array each, one value per ratio."""

    logs: Array
    errors: Array
    """Standard errors."""
    df: Array
    """Their degrees of freedom."""
    noise: float
    """Standard deviation of what one pair of processes gives."""
    common: float = 0.0
    """Variance that all of them have in common: a mean does not lessen it."""
    design: float = 1.0
    """How many times the variance of a mean over a strategy's cells is what it would be if they did
    not go together (the design effect of cluster sampling)."""


def _timing(old: Result, new: Result, *, interleaved: bool) -> _Timing:
    base, other = old.measurement, new.measurement
    assert base is not None  # noqa: S101 - both are timed
    assert other is not None  # noqa: S101 - both are timed
    if interleaved and base.processes == other.processes:
        ratios = np.log(np.array(other.samples_s) / np.array(base.samples_s))
        parts = np.split(ratios, np.cumsum(base.processes)[:-1])
        return _Timing(
            np.array([np.median(part) for part in parts]),
            np.array([_error_of_median(part) for part in parts]),
        )
    known = [_alone(each) for each in (base, other)]
    log = known[1][0] - known[0][0]
    return _Timing(np.array([log]), np.array([np.hypot(known[0][1], known[1][1])]))


def _alone(measurement: Measurement) -> tuple[float, float]:
    """The median of one run's logarithms, and its standard error."""
    logs = np.log(np.array(measurement.samples_s))
    error = _error_of_median(logs)
    if len(measurement.processes) > 1:
        # Samples of one process are not as many witnesses of the next as they are.
        parts = np.split(logs, np.cumsum(measurement.processes)[:-1])
        spread = float(np.std([np.median(part) for part in parts], ddof=1))
        error = max(error, spread / math.sqrt(len(parts)))
    return float(np.median(logs)), error


def _error_of_median(values: Array) -> float:
    """Standard error of a median, from the middle half: single hiccups do not widen it."""
    quarter, three = np.percentile(values, [25, 75])
    # sqrt(pi / 2) and the quartiles' distance of a normal distribution.
    return float(1.2533 * (three - quarter) / 1.349 / np.sqrt(len(values)))


def _of_pairs(timings: Sequence[_Timing], groups: Sequence[Sequence[int]]) -> _Known:
    """What several pairs of processes tell of each ratio, at least one of them more than one.

    A pair counts as much as it is sure (as in a random-effects meta-analysis: DerSimonian and
    Laird, 1986): one that the machine disturbed has samples far apart, and little weight. What
    pairs differ by beyond their samples is common to all ratios; what a ratio's own differ by
    beyond that widens its error.

    Args:
        timings: Of each ratio.
        groups: Which ratios are a strategy's.
    """
    most = max(len(timing.logs) for timing in timings)
    logs, squares = np.zeros((2, len(timings), most))
    there = np.zeros((len(timings), most), dtype=bool)
    for row, timing in enumerate(timings):
        there[row, : len(timing.logs)] = True
        logs[row, : len(timing.logs)] = timing.logs
        squares[row, : len(timing.logs)] = np.square(timing.errors) + _LEAST_ERROR**2
    df = there.sum(axis=1) - 1.0

    def weighted(between: float) -> tuple[Array, Array, Array]:
        """Means, the sums of their weights, and what pairs differ by over what they should."""
        weights = np.where(there, 1 / (squares + between**2), 0.0)
        sums = weights.sum(axis=1)
        means = (weights * logs).sum(axis=1) / sums
        spread = (weights * np.square(logs - means[:, np.newaxis])).sum(axis=1)
        return means, sums, spread / np.maximum(df, 1)

    expected = stats.chi2.median(df[df > 0]) / df[df > 0]

    def too_far(between: float) -> float:
        """Whether half of the ratios' pairs differ by more than this explains."""
        return float(np.median(weighted(between)[2][df > 0] / expected)) - 1

    between = 0.0
    if too_far(0.0) > 0:
        between = float(optimize.brentq(too_far, 0.0, 2 * float(np.ptp(logs)) + 1.0))
    means, sums, spread = weighted(between)
    moderated = moderate(spread, df)
    # That a few pairs happen to agree does not make them surer than they should be.
    errors = np.sqrt(np.maximum(moderated.variances, 1.0) / sums)
    noise = float(np.sqrt(np.median(squares[there]) + between**2))
    residuals = np.where(there, (logs - means[:, np.newaxis]), 0.0)
    residuals /= np.sqrt(
        (squares + between**2) * np.maximum(moderated.variances, 1.0)[:, np.newaxis]
    )
    design = _design_effect(residuals[:, : int(df.min()) + 1], groups)
    return _Known(means, errors, moderated.df, noise, design=design)


def _design_effect(residuals: Array, groups: Sequence[Sequence[int]]) -> float:
    """How many times a strategy's mean varies between pairs as much as cells on their own would.

    A process may be slow at all that one kernel does, whatever the case.

    Args:
        residuals: What each pair of a cell differs by from its cell, in standard deviations.
        groups: Which cells are a strategy's.
    """
    pairs = residuals.shape[1]
    several = [each for each in groups if len(each) > 1]
    if pairs == 1 or not several:
        return 1.0
    sums = [residuals[each].sum(axis=0) / np.sqrt(len(each)) for each in several]
    # Of pairs about their own mean; the median, since a disturbed strategy tells of no other.
    usual = float(stats.chi2.median(1)) * (1 - 1 / pairs)
    return float(max(np.median(np.square(sums)) / usual, 1.0))


def _of_cells_apart(timings: Sequence[_Timing], control: float) -> _Known:
    """What one pair tells of each cell's ratio.

    Nothing in it tells how much the next pair would differ, but what the cells differ by among each
    other: most code is the same in both. What moved them all alike is not in that; if the machine
    did it, then it moved the controls, too.
    """
    logs = np.array([timing.logs[0] for timing in timings])
    inner = np.array([timing.errors[0] for timing in timings])
    noise = _scatter(logs) if len(logs) >= _FEW_CELLS else NOISE_OF_FEW
    noise = float(np.hypot(noise, control))
    errors = np.maximum(np.hypot(inner, noise), _LEAST_ERROR)
    df = np.full(len(logs), max(_EFFICIENCY * len(logs), 3.0))
    return _Known(logs, errors, df, noise, common=control**2)


def _scatter(logs: Array) -> float:
    """Standard deviation of the half of the cells that lie closest together.

    The scale of least median of squares (Rousseeuw and Leroy, "Robust Regression and Outlier
    Detection", 1987, with its correction for few values): up to half of the cells may have changed,
    and by whatever, without a part in it.
    """
    ordered = np.sort(logs)
    half = (len(ordered) + 1) // 2
    shortest = float(np.min(ordered[half - 1 :] - ordered[: len(ordered) - half + 1]))
    return 1.4826 * (1 + 5 / (len(ordered) - 1)) * shortest / 2


def _strategies(cells: Sequence[Cell]) -> dict[tuple[str, Phase, str], list[int]]:
    """The places of every strategy's cells, by phase and clock."""
    groups: dict[tuple[str, Phase, str], list[int]] = {}
    for index, cell in enumerate(cells):
        groups.setdefault((cell.strategy, cell.phase, cell.clock), []).append(index)
    return groups


def _judge(
    both: Sequence[Cell],
    known: _Known,
    olds: Mapping[Cell, Result],
    news: Mapping[Cell, Result],
    rules: Rules,
) -> tuple[Judged, ...]:
    p_values, ratios = _estimates(known)
    judged = []
    for index, cell in enumerate(both):
        base, new = olds[cell].measurement, news[cell].measurement
        assert base is not None  # noqa: S101 - both are timed
        assert new is not None  # noqa: S101 - both are timed
        ratio = ratios[index]
        verdict, why = _verdict(ratio, float(p_values[index]), rules)
        if verdict in {"SLOWER", "FASTER"} and not _above_floor(base, new, ratio):
            verdict, why = "UNSURE", "the difference is less than a quarter of an empty call"
        judged.append(
            Judged(
                cell=cell,
                base_s=base.median_s,
                new_s=new.median_s,
                ratio=ratio,
                p_value=float(p_values[index]),
                verdict=verdict,
                why=why,
            )
        )
    return tuple(judged)


def _adjusted(t_values: Array, df: Array) -> Array:
    """Two-sided p-values, corrected for their number (Benjamini and Hochberg)."""
    adjusted: Array = stats.false_discovery_control(2 * stats.t.sf(np.abs(t_values), df))
    return adjusted


def _estimates(known: _Known) -> tuple[Array, list[Estimate]]:
    """Adjusted p-values, and ratios with their intervals."""
    half = stats.t.ppf(0.5 + CONFIDENCE / 2, known.df) * known.errors
    ends = np.exp([known.logs, known.logs - half, known.logs + half])
    ratios = [Estimate(*map(float, each)) for each in ends.T]
    return _adjusted(known.logs / known.errors, known.df), ratios


def _above_floor(base: Measurement, new: Measurement, ratio: Estimate) -> bool:
    floor_s = max(base.floor_s, new.floor_s)
    return abs(ratio.median - 1) * base.median_s >= FLOOR_SHARE * floor_s


def _verdict(ratio: Estimate, p_value: float, rules: Rules) -> tuple[Verdict, str]:
    effect = 1 + rules.least_effect
    large = not 1 / effect < ratio.median < effect
    if p_value < rules.significance and large:
        return ("SLOWER" if ratio.median > 1 else "FASTER"), ""
    if 1 / effect <= ratio.low and ratio.high <= effect:
        return "SAME", ""
    if not large:
        return "UNSURE", f"the interval reaches beyond {rules.least_effect:.0%}"
    return "UNSURE", "not significant among so many cells"


def _summarise(
    groups: Mapping[tuple[str, Phase, str], Sequence[int]], known: _Known, rules: Rules
) -> tuple[Summary, ...]:
    """Every strategy's mean over its cells, each of which counts as much."""
    members = list(groups.values())
    sizes = np.array([len(each) for each in members])
    own = np.maximum(np.square(known.errors) - known.common, _LEAST_ERROR**2)
    variances = np.array([own[each].sum() for each in members]) / sizes**2
    means = _Known(
        logs=np.array([known.logs[each].mean() for each in members]),
        errors=np.sqrt(known.design * variances + known.common),
        df=np.array([known.df[each].min() for each in members]),
        noise=known.noise,
    )
    p_values, ratios = _estimates(means)
    return tuple(
        Summary(
            strategy=strategy,
            phase=phase,
            clock=clock,
            cells=int(sizes[index]),
            ratio=ratios[index],
            p_value=float(p_values[index]),
            verdict=_verdict(ratios[index], float(p_values[index]), rules)[0],
        )
        for index, (strategy, phase, clock) in enumerate(groups)
    )
