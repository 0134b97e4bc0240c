"""Twenty comparisons that were measured on two cores of a machine that others used, too.

benchmarks/ab_trial.py made them: in ten, one strategy waited for a tenth of what its calls took;
everything else is the same code on both sides. Recorded are the ratios, sample by sample, so that
the judge says of them what it would have said then.
"""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
from made import measurement, result

from kvbench.analysis.comparison import Comparison, Rules, compare
from kvbench.analysis.gate import Gate

TRIAL = Path(__file__).parent / "recorded" / "ab_trial.npz"
RESOLUTION = 1e-4
SLOWED = "write.slowed"


def sides():
    """The rows of the base and of the new run, by comparison."""
    with np.load(TRIAL) as packed:
        cells, counts = json.loads(str(packed["cells"])), packed["counts"]
        logs = np.split(packed["ratios"] * RESOLUTION, np.cumsum(counts.sum(axis=1))[:-1])
    found = {}
    for cell, own, ratios in zip(cells, counts.tolist(), logs, strict=True):
        row = result(cell["strategy"], phase=cell["phase"], seq_len=cell["seq_len"])
        # Of the base all samples are its median: only ratios are looked at.
        base = np.full(len(ratios), cell["base_s"])
        kept = {"processes": tuple(own), "floor_s": cell["floor_s"]}
        for rows, times_s in zip(
            found.setdefault(cell["comparison"], ([], [])),
            (base, base * np.exp(ratios)),
            strict=True,
        ):
            timed = measurement(times_s.tolist(), **kept)
            rows.append(dataclasses.replace(row, measurement=timed))
    return found


@pytest.fixture(scope="module")
def trial() -> dict[str, Comparison]:
    """What the judge says of each comparison."""
    return {
        name: compare(base, new, Rules(), interleaved=True, control=0.0)
        for name, (base, new) in sides().items()
    }


def said(comparison, verdict):
    """The strategies of which something has a verdict: a cell, or all of them together."""
    cells = {each.cell.strategy for each in comparison.judged if each.verdict == verdict}
    return cells | {each.strategy for each in comparison.summaries if each.verdict == verdict}


def test_there_are_ten_of_each(trial):
    kinds = [name.rstrip("0123456789") for name in trial]
    assert (kinds.count("same"), kinds.count("slowed")) == (10, 10)
    assert {len(each.judged) for each in trial.values()} == {36}
    assert {each.processes for each in trial.values()} == {5}


def test_of_what_is_the_same_at_most_one_thing_is_called_slower(trial):
    false = [
        (name, strategy)
        for name, comparison in trial.items()
        for strategy in said(comparison, "SLOWER")
        if name.startswith("same") or strategy != SLOWED
    ]
    assert len(false) <= 1


def test_a_tenth_is_found_every_time(trial):
    for name, comparison in trial.items():
        if name.startswith("slowed"):
            assert SLOWED in said(comparison, "SLOWER"), name
            assert Gate(comparison=comparison, broken=(), allow_lost=False).regressed, name


def test_the_tenth_is_about_a_tenth(trial):
    # The wait is a share of what a call took inside; what it takes to be called isn't in that.
    for name, comparison in trial.items():
        (slow,) = (s for s in comparison.summaries if (s.strategy, s.phase) == (SLOWED, "run"))
        if name.startswith("slowed"):
            assert 1.05 < slow.ratio.median < 1.15, name
        else:
            assert slow.verdict in {"SAME", "UNSURE"}, name


def test_most_of_what_is_the_same_is_known_to_be(trial):
    """A judge who is sure of nothing would make no false alarm, either."""
    verdicts = [
        each.verdict
        for comparison in trial.values()
        for each in comparison.judged
        if each.cell.strategy != SLOWED
    ]
    assert verdicts.count("SAME") > 0.6 * len(verdicts)
