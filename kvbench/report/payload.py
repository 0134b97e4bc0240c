"""A run as the data of its page: columns, each word once, statistics done.

The page draws and filters; it computes no statistic but sums and quotients of what is here.
"""

import dataclasses
import json
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd

from kvbench.analysis.breakdown import broken_down
from kvbench.analysis.fastest import fastest
from kvbench.analysis.frame import CASE_FIELDS, main_group, timed
from kvbench.analysis.gathering import beside_gathering
from kvbench.analysis.speedup import loop_of, speedups
from kvbench.analysis.steps import PARTS, split, throughput
from kvbench.cases import (
    DEFAULTS,
    OF_POOLS,
    ONCE_A_STEP,
    OPS,
    WHOLE_STEPS,
    without_meaning,
)
from kvbench.report.palette import PARTS as PARTS_COLOURS
from kvbench.report.style import colour, line
from kvbench.store import Run

Json = dict[str, Any]

_HELD = tuple("queries_per_kv_head" if name == "num_heads" else name for name in CASE_FIELDS)
"""num_heads follows num_kv_heads in most sweeps; what is held is their quotient."""
_ALWAYS_SAID = ("batch", "block_size", "num_kv_heads", "head_dim", "dtype", "layout", "block_order")
"""Fields that a reader has to know even where they have their default."""


def payload(run: Run, frame: pd.DataFrame, layers: int) -> Json:
    """The data of a run's page.

    Args:
        run: The run.
        frame: Its rows (`analysis.frame.to_frame`).
        layers: Layers of a step, where the page asks for nothing else.
    """
    info = run.info
    rows = frame.reset_index(drop=True)
    rows = rows.assign(
        row=np.arange(len(rows)),
        case=rows.groupby(list(CASE_FIELDS), sort=False, observed=True).ngroup(),
    )
    names = list(dict.fromkeys(rows["strategy"]))
    fields = [name for name in _HELD if name != "op" and rows[name].nunique() > 1]
    on_cpu = info.environment.device == "cpu"
    return {
        "layers": layers,
        "copy_bytes_per_s": info.copy_bandwidth.bytes_per_s,
        "cache_bytes": info.environment.last_level_cache_bytes if on_cpu else None,
        "constant": {
            name: _plain(rows[name].iloc[0])
            for name in _HELD
            if len(rows)
            and name not in {"op", *fields}
            and (name in _ALWAYS_SAID or rows[name].iloc[0] != _usual(name))
        },
        "parts_of_a_time": PARTS_COLOURS,
        "strategies": [_looks(name) for name in names],
        "cases": _cases(rows, fields),
        "rows": _rows(rows, names),
        "ops": {op: _of_op(rows, op, fields, layers) for op in OPS if (rows["op"] == op).any()},
        "rates": _columns(
            throughput(rows), ("row", "tokens_per_s", "tokens_per_s_low", "tokens_per_s_high")
        ),
        "parts": _columns(split(rows), ("row", *(f"{part}_s" for part in PARTS))),
        "shares": _shares(rows),
    }


def to_json(data: Json) -> str:
    """Data as JSON that may stand in a script element: nothing in it can end that.

    Raises:
        ValueError: A number is not finite.
    """
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    # Everything that HTML knows in a script begins with it. JSON has it in strings alone.
    return text.replace("<", "\\u003c")


def _usual(name: str) -> object:
    """A field's default; None where it has none."""
    usual = 1 if name == "queries_per_kv_head" else DEFAULTS[name]
    return None if usual is dataclasses.MISSING else usual


def _looks(strategy: str) -> Json:
    looks = line(strategy)
    return {
        "name": strategy,
        "light": looks["color"],
        "dark": colour(strategy, dark=True),
        "marker": looks["marker"],
        "dashed": looks.get("linestyle") == "--",
        "hollow": "markerfacecolor" in looks,
    }


def _cases(rows: pd.DataFrame, fields: Sequence[str]) -> Json:
    cases = rows.drop_duplicates("case")
    columns = {}
    for name in fields:
        values = sorted(cases[name].unique())
        places = {value: place for place, value in enumerate(values)}
        columns[name] = {
            "values": [_plain(value) for value in values],
            # What goes without saying.
            "usual": None if name in _ALWAYS_SAID else _plain(_usual(name)),
            "of": [places[value] for value in cases[name]],
        }
    return {
        "op": [OPS.index(op) for op in cases["op"]],
        "fields": columns,
        **_columns(cases, ("batch", "num_layers", "tokens", "least_bytes")),
    }


def _rows(rows: pd.DataFrame, names: Sequence[str]) -> Json:
    samples = [len(s) if isinstance(s, tuple) else None for s in rows["samples_s"]]
    words = ("phase", "clock", "cache", "status", "stopped_by", "launches_source")
    return {
        "case": rows["case"].tolist(),
        "strategy": _numbered(rows["strategy"], names),
        **{name: _words(rows[name]) for name in (*words, "reason", "repro")},
        "samples": samples,
        "resolved": [None if pd.isna(flag) else int(flag) for flag in rows["resolved"]],
        **_columns(rows, ("median_s", "low_s", "high_s", "launches", "nbytes", "copy_share")),
    }


def _of_op(rows: pd.DataFrame, op: str, fields: Sequence[str], layers: int) -> Json:
    own = rows[rows["op"] == op]
    runs = timed(own)
    reference = _reference(runs, op)
    found = fastest(own, op, layers, "block_size")
    parts, refused = broken_down(own, op)
    return {
        "once_a_step": op in ONCE_A_STEP,
        "whole_step": op in WHOLE_STEPS,
        "silent": _silent(own, op),
        "setting": {} if runs.empty else _setting(runs, fields),
        "reference": reference,
        "speedups": _per_clock(own, lambda clock: speedups(own, reference, clock))
        if reference
        else None,
        "fastest": _fastest(rows, found),
        "breakdown": {
            **_columns(parts, ("row", "call_s", "launches_s", "bytes_s", "rest_s")),
            "split": [int(flag) for flag in parts["split"]],
        },
        "without_fit": {fit.name: fit.reason for fit in refused},
    }


def _silent(own: pd.DataFrame, op: str) -> list[str]:
    """The fields that have no meaning for an op."""
    found = set(OF_POOLS) if op == "index" else set()
    pools = own[["layout", "cache_dtype"]].drop_duplicates().itertuples(index=False)
    meanings = [set(without_meaning(op, layout, cache_dtype)) for layout, cache_dtype in pools]
    if op == "index":
        found.add("queries_per_kv_head")
    return sorted(found | set.intersection(*meanings))


def _reference(runs: pd.DataFrame, op: str) -> str | None:
    """The strategy that is 1: the op's loop; without one, that which has the most cases."""
    counts = runs["strategy"].value_counts()
    if counts.empty:
        return None
    return loop_of(op, set(counts.index)) or str(min(counts[counts == counts.max()].index))


def _setting(runs: pd.DataFrame, fields: Iterable[str]) -> Json:
    """The values that most rows share of the fields that vary."""
    full = runs[runs["tokens"] > 0]
    shared, _ = main_group(full if len(full) else runs, ("seq_len",))
    return {name: _plain(shared[name]) for name in fields if name in shared}


def _per_clock(own: pd.DataFrame, of: Callable[[str], pd.DataFrame]) -> Json:
    """Speed-ups by every clock, one after the other."""
    clocks = dict.fromkeys(own.loc[own["status"] == "ok", "clock"])
    found = pd.concat([of(clock) for clock in clocks])
    return _columns(found, ("row", "speedup", "speedup_low", "speedup_high"))


def _fastest(rows: pd.DataFrame, found: pd.DataFrame) -> Json:
    numbers = rows.drop_duplicates("case")[[*CASE_FIELDS, "case"]]
    joined = found[[name for name in found if name != "case"]].merge(numbers, on=list(CASE_FIELDS))
    return {
        **_columns(joined, ("case", "winner_s", "ratio", "ratio_low", "ratio_high")),
        "winner": _words(joined["winner"]),
        "runner_up": _words(joined["runner_up"]),
        "tied": [int(flag) for flag in joined["tied"]],
    }


def _shares(rows: pd.DataFrame) -> Json:
    """What the gather is of an attention, and what others take beside it, by every clock.

    Not by the time to hand the work over, which says nothing of what the gather takes.
    """
    attends = rows[rows["op"] == "attend"]
    clocks = dict.fromkeys(attends.loc[attends["status"] == "ok", "clock"])
    found = [beside_gathering(attends, clock) for clock in clocks if clock != "enqueue"]
    joined = pd.concat(found) if found else beside_gathering(attends)
    names = [f"{what}{end}" for what in ("share", "ratio") for end in ("", "_low", "_high")]
    return {**_columns(joined, ("row", *names)), "reference": _words(joined["reference"])}


def _columns(frame: pd.DataFrame, names: Iterable[str]) -> Json:
    return {name: [_plain(value) for value in frame[name].tolist()] for name in names}


def _plain(value: Any) -> Any:  # noqa: ANN401 - whatever a column holds
    """A number or a word as JSON has them: whole numbers without a point, None where missing."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float):
        if math.isnan(value) or math.isinf(value):
            return None
        return int(value) if value.is_integer() else value
    return value


def _words(column: "pd.Series[Any]") -> Json:
    """A column of words: each once, and which one a row has; -1 where it has none."""
    words = [word for word in dict.fromkeys(column) if not pd.isna(word)]
    return {"values": words, "of": _numbered(column, words)}


def _numbered(column: Iterable[Any], words: Sequence[str]) -> list[int]:
    places = {word: place for place, word in enumerate(words)}
    return [-1 if pd.isna(word) else places[word] for word in column]
