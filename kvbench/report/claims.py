"""The claims of the teaching series, each beside what a run measured, with the correction in words.

The series (step 14: a loop over tokens; 14_1: `pool[physical_blocks, slots] = K`; 14_2: the gather)
states them for a GPU. What a run on a CPU can't measure is said to be predicted, or left open.
"""

import pandas as pd

from kvbench.analysis.fit import Fit, fit_run
from kvbench.analysis.frame import CASE_FIELDS, main_group, timed
from kvbench.analysis.gathering import beside_gathering
from kvbench.analysis.statistics import median_interval
from kvbench.report.tables import Table
from kvbench.results import RunInfo
from kvbench.units import format_bandwidth, format_bytes, format_seconds_interval, significant

_TOKENS = 512
"""The size that the series makes its claims for."""

_CLAIM = ("claim", "what the run says", "so")


def claims_table(frame: pd.DataFrame, info: RunInfo) -> Table:
    """Each claim, what the run says of it, and the correction.

    Args:
        frame: Rows of a run.
        info: What holds for all of them.
    """
    claims = (
        _launches_claim(frame),
        _loop_claim(frame),
        _cost_claim(frame, info),
        _saved_claim(frame),
        _copy_claim(frame),
    )
    return Table("The claims of the teaching series", _CLAIM, claims)


def _row(frame: pd.DataFrame, strategy: str, seq_len: int) -> pd.Series | None:
    """A strategy's row of that size, in the setting that most strategies of its op share."""
    op = strategy.partition(".")[0]
    runs = timed(frame[(frame["op"] == op) & (frame["batch"] == 1)])
    if runs.empty:
        return None
    _, rows = main_group(runs, ("seq_len",))
    found = rows[(rows["seq_len"] == seq_len) & (rows["strategy"] == strategy)]
    return None if found.empty else found.iloc[0]


def _launches(row: pd.Series | None) -> str:
    if row is None or pd.isna(row["launches"]):
        return "not in this run"
    return f"{row['launches']:,.0f}"


def _source(*rows: pd.Series | None) -> str:
    sources = {row["launches_source"] for row in rows if row is not None}
    return "/".join(sorted(map(str, sources))) or "not measured"


def _launches_claim(frame: pd.DataFrame) -> tuple[str, str, str]:
    loop = _row(frame, "write.loop", _TOKENS)
    indexing = _row(frame, "write.indexing", _TOKENS)
    hoisted = _row(frame, "write.slot_mapping", _TOKENS)
    fused = frame[(frame["strategy"] == "write.triton") & frame["launches"].notna()]
    fused_row = None if fused.empty else fused.iloc[0]
    return (
        "“seq_len launches become one”",
        f"at {_TOKENS} tokens: loop {_launches(loop)}, indexing {_launches(indexing)}, "
        f"slot_mapping {_launches(hoisted)}, triton {_launches(fused_row)} "
        f"({_source(loop, indexing, hoisted, fused_row)})",
        "K and V are two assignments a token, so 2 x seq_len; indexing still builds its index and "
        "scatters K and V apart; one launch takes a fused kernel",
    )


def _loop_claim(frame: pd.DataFrame) -> tuple[str, str, str]:
    few, many = 1, _TOKENS
    grown = []
    for strategy in ("write.loop", "write.indexing", "write.slot_mapping"):
        first, last = _row(frame, strategy, few), _row(frame, strategy, many)
        if first is not None and last is not None:
            ratio = last["median_s"] / first["median_s"]
            grown.append(f"{strategy.partition('.')[2]} {significant(ratio)}x")
    return (
        "“the Python loop over tokens is gone”",
        f"time at {many} tokens over time at {few}: {', '.join(grown) or 'not in this run'}",
        "gone from the write, and from the index too as long as one sequence is written; a batch "
        "still loops over its sequences unless the mapping is built for all of them at once",
    )


def _cost_claim(frame: pd.DataFrame, info: RunInfo) -> tuple[str, str, str]:
    fits = {fit.name: fit for fit in fit_run(frame, "write") if isinstance(fit, Fit)}
    fit = fits.get("write.loop")
    if fit is None or fit.per_launch_s is None:
        measured = "not identified by this run"
    else:
        term = fit.per_launch_s
        measured = (
            f"{format_seconds_interval(term.value, term.low, term.high)} per assignment of the loop"
        )
    on_cpu = info.environment.device == "cpu"
    return (
        "“5 to 20 µs a launch”",
        measured,
        "here it is a CPU's cost of one assignment through Python and the dispatcher; what a GPU "
        "launch adds to that is not measured by this run"
        if on_cpu
        else "the cost of one launch as the host sees it, Python and the dispatcher included",
    )


def _saved_claim(frame: pd.DataFrame) -> tuple[str, str, str]:
    loop = _row(frame, "write.loop", _TOKENS)
    indexing = _row(frame, "write.indexing", _TOKENS)
    if loop is None or indexing is None or loop[["launches"]].isna().any():
        return ("“about 511 launches saved at seq_len 512”", "not in this run", "")
    saved = loop["launches"] - indexing["launches"]
    # Of one case, so of the same rounds.
    rounds = [a - b for a, b in zip(loop["samples_s"], indexing["samples_s"], strict=True)]
    time = median_interval(rounds)
    return (
        "“about 511 launches saved at seq_len 512”",
        f"{saved:,.0f} saved ({_source(loop, indexing)}), and "
        f"{format_seconds_interval(time.median, time.low, time.high)} per layer",
        f"511 counts K alone and takes the index for free: the loop makes "
        f"{_launches(loop)}, indexing {_launches(indexing)}",
    )


def _copy_claim(frame: pd.DataFrame) -> tuple[str, str, str]:
    loop = _row(frame, "read.loop", _TOKENS)
    indexing = _row(frame, "read.indexing", _TOKENS)
    parts = []
    for row in (loop, indexing):
        if row is not None:
            rate = format_bandwidth(row["least_bytes"] / row["median_s"])
            parts.append(f"{row['strategy'].partition('.')[2]} {rate}")
    size = "" if indexing is None else f"{format_bytes(indexing['least_bytes'] / 2)} written anew; "
    return (
        "“no extra copy”",
        f"at {_TOKENS} tokens: {size}{', '.join(parts) or 'not in this run'}{_attention(frame)}",
        "the gather is the copy: every call allocates and fills K and V of all cached tokens, as "
        "torch.cat does for the loop; only attention that reads the blocks in place has none",
    )


def _attention(frame: pd.DataFrame) -> str:
    """What the gather is of the largest attention that was measured with and without one."""
    beside = beside_gathering(frame[frame["op"] == "attend"])
    in_place = beside[beside["strategy"] != beside["reference"]]
    if in_place.empty:
        return ""
    _, rows = main_group(in_place, ("seq_len", "batch"))
    best = rows.sort_values(["tokens", "median_s"], ascending=[False, True]).iloc[0]
    alike = (beside[list(CASE_FIELDS)] == best[list(CASE_FIELDS)]).all(axis=1)
    gathering = beside[alike & (beside["strategy"] == best["reference"])].iloc[0]
    return (
        f"; of attention over {best['batch']:,} x {best['seq_len']:,} cached tokens the gather is "
        f"{100 * gathering['share']:.0f} %, and {best['strategy']} in place takes "
        f"{100 * best['ratio']:.0f} % of both"
    )
