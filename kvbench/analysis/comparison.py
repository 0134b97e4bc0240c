"""Did it get slower? Two runs' cells held against each other. Pure functions of rows.

A difference is called one only if it is all of these: significant after correction for the number
of cells, larger than the least effect that matters, and larger than what the clock itself takes.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
from scipy import stats

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
        The largest of the logarithms of the ratios of a copy's speed, of an empty launch and of an
        empty call by the wall clock; no sign.
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
    judged, noise = _judge(both, timings, olds, news, rules, control)
    return Comparison(
        judged=judged,
        summaries=_summarise(both, timings, rules, control, noise),
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
    """What is known of one cell's ratio."""

    logs: Array
    """Logarithm of new over base, one per pair of processes."""
    error: float
    """Standard error of their mean that the samples within the processes tell of."""


def _timing(old: Result, new: Result, *, interleaved: bool) -> _Timing:
    base, other = old.measurement, new.measurement
    assert base is not None  # noqa: S101 - both are timed
    assert other is not None  # noqa: S101 - both are timed
    if interleaved and base.processes == other.processes:
        ratios = np.log(np.array(other.samples_s) / np.array(base.samples_s))
        parts = np.split(ratios, np.cumsum(base.processes)[:-1])
        errors = [_error_of_median(part) for part in parts]
        medians = np.array([np.median(part) for part in parts])
        return _Timing(medians, float(np.sqrt(np.sum(np.square(errors)))) / len(parts))
    logs = [np.log(np.array(each.samples_s)) for each in (base, other)]
    error = float(np.hypot(_error_of_median(logs[0]), _error_of_median(logs[1])))
    return _Timing(np.array([np.median(logs[1]) - np.median(logs[0])]), error)


def _error_of_median(values: Array) -> float:
    """Standard error of a median, from the middle half: single hiccups do not widen it."""
    quarter, three = np.percentile(values, [25, 75])
    # sqrt(pi / 2) and the quartiles' distance of a normal distribution.
    return float(1.2533 * (three - quarter) / 1.349 / np.sqrt(len(values)))


def _errors(timings: Sequence[_Timing], control: float) -> tuple[Array, Array, float]:
    """Standard errors of the cells' ratios, their degrees of freedom, and the noise of a pair."""
    counts = np.array([len(timing.logs) for timing in timings], dtype=np.float64)
    if counts.max(initial=0) > 1:
        spread = np.array(
            [np.var(t.logs, ddof=1) if len(t.logs) > 1 else 0.0 for t in timings], dtype=np.float64
        )
        moderated = moderate(spread, counts - 1)
        # That a few pairs happen to agree does not make them surer than their samples are.
        inner = np.array([timing.error for timing in timings])
        errors = np.maximum(np.sqrt(moderated.variances / counts), inner)
        return errors, moderated.df, float(np.sqrt(moderated.typical))
    # Of one pair nothing tells how much the next would differ, but what the cells differ by among
    # each other: most code is the same in both. What moved them all alike is not in that; if the
    # machine did it, then it moved the controls, too.
    logs = np.array([timing.logs[0] for timing in timings])
    inner = np.array([timing.error for timing in timings])
    noise = NOISE_OF_FEW
    if len(logs) >= _FEW_CELLS:
        noise = _scatter(logs)
    noise = float(np.hypot(noise, control))
    errors = np.maximum(np.hypot(inner, noise), _LEAST_ERROR)
    return errors, np.full(len(logs), max(_EFFICIENCY * len(logs), 3.0)), noise


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


def _judge(
    both: Sequence[Cell],
    timings: Sequence[_Timing],
    olds: Mapping[Cell, Result],
    news: Mapping[Cell, Result],
    rules: Rules,
    control: float,
) -> tuple[tuple[Judged, ...], float]:
    if not both:
        return (), 0.0
    errors, df, noise = _errors(timings, control)
    means = np.array([timing.logs.mean() for timing in timings])
    p_values = _adjusted(means / errors, df)
    half = stats.t.ppf(0.5 + CONFIDENCE / 2, df) * errors
    judged = []
    for index, cell in enumerate(both):
        base, new = olds[cell].measurement, news[cell].measurement
        assert base is not None  # noqa: S101 - both are timed
        assert new is not None  # noqa: S101 - both are timed
        ratio = _estimate(means[index], half[index])
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
    return tuple(judged), noise


def _adjusted(t_values: Array, df: Array) -> Array:
    """Two-sided p-values, corrected for their number (Benjamini and Hochberg)."""
    adjusted: Array = stats.false_discovery_control(2 * stats.t.sf(np.abs(t_values), df))
    return adjusted


def _estimate(mean: float, half: float) -> Estimate:
    return Estimate(*(float(np.exp(each)) for each in (mean, mean - half, mean + half)))


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
    both: Sequence[Cell],
    timings: Sequence[_Timing],
    rules: Rules,
    control: float,
    noise: float,
) -> tuple[Summary, ...]:
    groups: dict[tuple[str, Phase, str], list[_Timing]] = {}
    for cell, timing in zip(both, timings, strict=True):
        groups.setdefault((cell.strategy, cell.phase, cell.clock), []).append(timing)
    if not groups:
        return ()
    means = [_mean_of(group, noise, control) for group in groups.values()]
    errors, df, _ = _errors(means, 0.0)
    if max(len(mean.logs) for mean in means) == 1:
        # The noise is in the errors already, and is no more to be seen from so few.
        errors = np.maximum([mean.error for mean in means], _LEAST_ERROR)
    logs = np.array([mean.logs.mean() for mean in means])
    p_values = _adjusted(logs / errors, df)
    half = stats.t.ppf(0.5 + CONFIDENCE / 2, df) * errors
    found = []
    for index, ((strategy, phase, clock), group) in enumerate(groups.items()):
        ratio = _estimate(logs[index], half[index])
        found.append(
            Summary(
                strategy=strategy,
                phase=phase,
                clock=clock,
                cells=len(group),
                ratio=ratio,
                p_value=float(p_values[index]),
                verdict=_verdict(ratio, float(p_values[index]), rules)[0],
            )
        )
    return tuple(found)


def _mean_of(group: Sequence[_Timing], noise: float, control: float) -> _Timing:
    """A strategy's mean over its cells, by pair of processes where there are several."""
    pairs = min(len(timing.logs) for timing in group)
    logs = np.mean([timing.logs[:pairs] for timing in group], axis=0)
    # The controls' part of the noise is the same in all cells: means do not lessen it.
    own = max(noise**2 - control**2, 0.0)
    variance = np.mean([timing.error**2 + own for timing in group]) / len(group) + control**2
    return _Timing(logs, float(np.sqrt(variance)))
