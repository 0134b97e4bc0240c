"""Tables that explain a run: the fitted model, what bounds each cell, the crossovers."""

import itertools
import math
from collections.abc import Sequence

import pandas as pd

from kvbench.analysis.crossover import Crossover, crossovers
from kvbench.analysis.fit import MOST_CONDITION, Fit, Refusal, Term
from kvbench.analysis.frame import CASE_FIELDS, main_group, main_pools, timed
from kvbench.analysis.verdict import LEAST_R_SQUARED, cpu_verdicts, device_verdicts
from kvbench.cases import ONCE_A_STEP
from kvbench.report.setting import describe
from kvbench.report.tables import MISSING, Table
from kvbench.units import format_seconds_interval, significant


def _seconds(term: Term | None) -> str:
    if term is None:
        return MISSING
    if term.value == term.high == 0:
        return "0, at its bound"  # no term may be negative; an interval would say nothing
    return format_seconds_interval(term.value, term.low, term.high)


def _bandwidth(term: Term | None) -> str:
    if term is None:
        return MISSING
    high = significant(term.high / 1e9) if math.isfinite(term.high) else "no bound"
    return f"{significant(term.value / 1e9)} ({significant(term.low / 1e9)} to {high}) GB/s"


def _fit_line(fit: Fit | Refusal) -> tuple[str, ...]:
    if isinstance(fit, Refusal):
        return (fit.name, *["refused"] * 3, *[MISSING] * 3, str(fit.cells))
    call = _seconds(fit.per_call_s)
    if fit.overhead_s is not None:
        call = f"a + b: {_seconds(fit.overhead_s)}"
    return (
        fit.name,
        call,
        _seconds(fit.per_launch_s),
        _bandwidth(fit.bandwidth_bytes_per_s),
        f"{fit.r_squared:.3f}",
        f"{100 * fit.median_relative_error:.3g} %",
        f"{fit.rank} / {significant(fit.condition)}",
        str(fit.cells),
    )


def fit_table(op: str, fits: Sequence[Fit | Refusal]) -> Table | None:
    """The model of each strategy of an op, as `fit.fit_run` has them; None if there is none."""
    if not fits:
        return None
    return Table(
        f"{op}: time = a + b x launches + bytes / bandwidth",
        (
            "strategy",
            "a, per call",
            "b, per launch",
            "bandwidth",
            "R²",
            "median error",
            "rank / condition",
            "cells",
        ),
        tuple(map(_fit_line, fits)),
        "R² is of the logarithms of the times: from a fit of under "
        f"{LEAST_R_SQUARED:g} no verdict is taken, and one of under 0 says less than their mean. "
        "Rank / condition: how many of a, b and bandwidth the cells tell apart, and how well "
        f"(refused over {MOST_CONDITION:g}). a + b: every call makes as many launches, or it is "
        "not known how many, and they are taken to be as many. A bandwidth over the plain copy's "
        "is a cache's.",
    )


def refusals_table(op: str, fits: Sequence[Fit | Refusal]) -> Table | None:
    """The strategies that the run can't fit, and why; None if it fits all."""
    because: dict[tuple[str, str], list[str]] = {}
    for fit in fits:
        if isinstance(fit, Refusal):
            joint = "" if fit.name.startswith(f"{op}.") else fit.name  # on a line of its own
            because.setdefault((fit.reason, joint), []).append(fit.name)
    if not because:
        return None
    rows = tuple((", ".join(names), reason) for (reason, _), names in because.items())
    return Table(f"{op}: not fitted", ("strategy", "because"), rows)


def _size(seq_len: float) -> str:
    return f"{seq_len:,.0f}" if seq_len >= 100 else significant(seq_len)  # noqa: PLR2004


def _crossover_line(found: Crossover) -> tuple[str, str, str, str]:
    if found.kind != "from" or found.seq_len is None:
        return (found.strategy, found.other, f"{found.kind}, at every size measured", MISSING)
    assert found.low is not None  # noqa: S101 - a crossover has an interval
    assert found.high is not None  # noqa: S101 - a crossover has an interval
    high = _size(found.high) if math.isfinite(found.high) else "beyond the largest size"
    return (found.strategy, found.other, _size(found.seq_len), f"{_size(found.low)} to {high}")


def crossover_table(frame: pd.DataFrame, op: str) -> Table | None:
    """From which seq_len on which strategy wins, in the run's main setting; run alone."""
    runs = timed(frame[frame["op"] == op])
    if runs.empty:
        return None
    shared, rows = main_group(runs, ("seq_len",))
    lines = tuple(map(_crossover_line, crossovers(rows)))
    if not lines:
        return None
    return Table(
        f"{op}: from which seq_len on the first beats the second ({describe(shared)})",
        ("strategy", "beats", "from seq_len", "95 % interval"),
        lines,
    )


def verdict_table(frame: pd.DataFrame, op: str, fits: Sequence[Fit | Refusal]) -> Table | None:
    """What bounds each strategy by seq_len in the run's main setting; None if it isn't known."""
    runs = main_pools(timed(frame[frame["op"] == op]))
    if runs.empty:
        return None
    on_device = (frame["clock"] == "device").any()
    if op in ONCE_A_STEP and not on_device:
        return None  # what grows with its bytes is the host's arithmetic, no bandwidth
    if on_device:
        of_op = frame[(frame["op"] == op) & (frame["status"] == "ok") & (frame["phase"] == "run")]
        verdicts = runs.merge(device_verdicts(of_op), on=[*CASE_FIELDS, "strategy"])
    else:
        good = {
            fit.name: fit
            for fit in fits
            if isinstance(fit, Fit) and fit.r_squared >= LEAST_R_SQUARED
        }
        verdicts = runs.assign(verdict=cpu_verdicts(runs, good))
    if verdicts.empty or verdicts["verdict"].isna().all():
        return None
    _, rows = main_group(verdicts, ("seq_len",))
    table = rows.pivot_table(
        index="strategy", columns="seq_len", values="verdict", aggfunc="first", observed=True
    )
    lines = []
    for strategy, row in table.iterrows():
        # Neighbouring sizes of one verdict make a line; a verdict that comes back, another.
        for verdict, stretch in itertools.groupby(row.dropna().items(), key=lambda item: item[1]):
            sizes = [f"{int(str(size)):,}" for size, _ in stretch]
            span = sizes[0] if len(sizes) == 1 else f"{sizes[0]} to {sizes[-1]}"
            lines.append((str(strategy), str(verdict), f"seq_len {span}"))
    return Table(f"{op}: what bounds a call", ("strategy", "verdict", "at"), tuple(lines))
