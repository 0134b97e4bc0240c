"""What is predicted for a GPU, as tables and curves: nothing was measured, and all says so."""

import itertools
import math
from collections.abc import Iterator, Sequence

import pandas as pd
from matplotlib.axes import Axes as Panel
from matplotlib.figure import Figure

from kvbench.analysis.frame import CASE_FIELDS, settings_of
from kvbench.analysis.prediction import (
    Alike,
    Foretold,
    Premises,
    Range,
    alike,
    copied_bytes,
    crossings,
    of_case,
    outlasting,
    step_ranges,
)
from kvbench.cases import ONCE_A_STEP, OPS, WHOLE_STEPS, Case
from kvbench.report.panels import (
    Ends,
    Page,
    drawn_panels,
    launches_label,
    pages,
)
from kvbench.report.setting import describe
from kvbench.report.style import look, styled
from kvbench.report.tables import MISSING, Table
from kvbench.units import MICROSECONDS_PER_SECOND as US
from kvbench.units import (
    format_bandwidth,
    format_bytes,
    format_seconds_range,
    significant,
)

MARK = "PREDICTED — not measured"
"""In every title and caption."""
FILE_MARK = "PREDICTED"
"""At the head of every file's name."""

TOKENS = 512
"""The size that the series makes its claims for, and the one that tables show if they can."""
_CLAIMED_SAVED = 511
_MOST_NAMED = 26
"""Letters of the names at the end of a curve that several share; of more the first alone."""
_LEAST_SHARE = 0.01
"""Of the lowest curve's end: bytes that take less would stretch the axis for nothing."""


def premises_table(given: Premises) -> Table:
    """What every number rests on."""
    cost = format_seconds_range(given.launch_low_s, given.launch_high_s)
    return Table(
        f"{MARK}: what it rests on",
        ("of", "is", "from"),
        (
            (
                "launches",
                "counted",
                "the ops that a strategy sends to fake CUDA tensors"
                + ("; ASSUMED: PyTorch for ROCm has the same" if given.hip else ""),
            ),
            ("a launch", cost, given.launch_source),
            (
                "bandwidth",
                f"{format_bandwidth(given.bandwidth_bytes_per_s)}, {given.title}",
                given.bandwidth_source,
            ),
            ("bytes", "the least", "each byte read or written once, copies of a gather as well"),
            (
                "a call itself",
                "0",
                "ASSUMED: what it costs before its first launch is not known",
            ),
        ),
        "A call is launches x cost + bytes / bandwidth. No kernel reaches all of the bandwidth. "
        "Where host and device overlap, a call takes half of that at the least; out of the L2 "
        "cache bytes come faster.",
    )


def tables(frame: pd.DataFrame, given: Premises, layers: int) -> Iterator[Table]:
    """The tables of every op and setting.

    Args:
        frame: What `analysis.prediction.predictions` gives.
        given: The premises.
        layers: Layers of a step.
    """
    full = frame[frame["tokens"] > 0]
    for op in OPS:
        own = full[full["op"] == op]
        runs = own[(own["phase"] == "run") & own["launches"].notna()]
        for shared, places in settings_of(runs, ("seq_len",)) if len(runs) else ():
            setting = runs.take(places)
            found = own.merge(setting[[*CASE_FIELDS]].drop_duplicates(), on=list(CASE_FIELDS))
            yield _costs_table(op, shared, found, given, layers)
            pairs = _crossings_table(op, shared, setting, given)
            if pairs is not None:
                yield pairs


def _costs_table(
    op: str, shared: dict[str, object], frame: pd.DataFrame, given: Premises, layers: int
) -> Table:
    steps = step_ranges(frame, layers)
    steps = steps[steps["launches"].notna()]
    sizes = sorted({int(n) for n in steps["seq_len"]})
    shown = TOKENS if TOKENS in sizes else sizes[len(sizes) // 2]
    once = "before a step" if op in ONCE_A_STEP else "once a step"
    step = "a step" if op in (*ONCE_A_STEP, *WHOLE_STEPS) else f"a step of {layers} layers"
    lines = []
    for strategy, own in steps.groupby("strategy", sort=True):
        at = own[own["seq_len"] == shown]
        rows = own.sort_values("seq_len")
        cells = (MISSING, MISSING, MISSING, MISSING)
        if not at.empty:
            line = at.iloc[0]
            cells = (
                _launches(line["launches_prepare"]),
                _launches(line["launches"], line["synchronizations"]),
                format_seconds_range(line["low_s"], line["high_s"]),
                MISSING
                if math.isnan(line["step_low_s"])
                else format_seconds_range(line["step_low_s"], line["step_high_s"]),
            )
        lines.append((str(strategy), *cells, _sizes(outlasting(rows, given), sizes)))
    return Table(
        f"{op}: {MARK}, on {given.title} at seq_len {shown:,} ({describe(shared)})",
        ("strategy", once, "a call launches", "a call", step, "bytes outlast launches from"),
        tuple(lines),
        "Times are for a launch of "
        f"{format_seconds_range(given.launch_low_s, given.launch_high_s)}; waiting for the device "
        "is not in them.",
    )


def _launches(count: float, waits: float = 0) -> str:
    if math.isnan(count):
        return MISSING
    text = f"{count:,.0f}"
    if not waits:
        return text
    return f"{text}, waits {'once' if waits == 1 else f'{waits:,.0f} times'}"


def _sizes(found: Range, sizes: Sequence[int]) -> str:
    """seq_len from which something holds, at the least and the most that a launch may cost."""

    def words(size: float) -> str:
        if size == 0:
            return f"{sizes[0]:,} or fewer"
        return f"beyond {sizes[-1]:,}" if math.isinf(size) else _size(size)

    low, high = map(words, sorted((found.at_low, found.at_high)))
    return low if low == high else f"{low} to {high}"


def _size(size: float) -> str:
    return f"{size:,.0f}" if size >= 100 else significant(size)  # noqa: PLR2004 - three digits


def _crossings_table(
    op: str, shared: dict[str, object], runs: pd.DataFrame, given: Premises
) -> Table | None:
    groups = alike(runs)
    sizes = sorted({int(n) for n in runs["seq_len"]})
    found = [each for each in crossings(groups) if len(sizes) > 1]
    crossing = [
        each
        for each in found
        if not {each.seq_len.at_low, each.seq_len.at_high} <= {0.0}
        and not math.isinf(min(each.seq_len.at_low, each.seq_len.at_high))
    ]
    if not crossing:
        return None
    return Table(
        f"{op}: {MARK}, from which seq_len on the first beats the second on {given.title} "
        f"({describe(shared)})",
        ("strategy", "beats", "from seq_len"),
        tuple(
            (_named(each.faster), _named(each.slower), _sizes(each.seq_len, sizes))
            for each in crossing
        ),
        f"{len(found) - len(crossing)} of {len(found)} pairs are left out: one is faster at every "
        "size that was asked about. Of strategies with the same launches and bytes the model knows "
        "no faster one: they share a line.",
    )


def _named(group: Alike) -> str:
    return ", ".join(group.strategies)


def untold_table(told: Sequence[Foretold]) -> Table | None:
    """What is not predicted and why, and what had to be assumed; None if there is neither."""
    why: dict[tuple[str, str], dict[str, None]] = {}
    for each in told:
        if each.reason:
            text = f"not predicted: {each.reason}"
        elif each.assumption:
            text = f"ASSUMED: {each.assumption}"
        else:
            continue
        why.setdefault((each.strategy, text), {})[each.phase] = None
    lines: dict[tuple[str, str], list[str]] = {}
    for (strategy, text), phases in why.items():
        lines.setdefault((text, " and ".join(phases)), []).append(strategy)
    if not lines:
        return None
    return Table(
        f"{MARK}: what can't be told, and what is assumed",
        ("what", "phases", "of"),
        tuple((*line, ", ".join(sorted(names))) for line, names in sorted(lines.items())),
    )


def claims_table(told: Sequence[Foretold], beside: Sequence[Foretold], given: Premises) -> Table:
    """The claims of the teaching series, each with what is predicted and what that rests on.

    Args:
        told: Runs of write.loop and the others at `TOKENS`.
        beside: The same at one token.
        given: The premises.
    """
    counts = {
        way: of_case(told, f"write.{way}") for way in ("loop", "indexing", "slot_mapping", "triton")
    }
    known = {way: found.launches for way, found in counts.items() if found is not None}
    listed = ", ".join(f"{way} {number:,}" for way, number in known.items())
    op_stream = "counted in the ops that go to fake CUDA tensors"
    cost = format_seconds_range(given.launch_low_s, given.launch_high_s)
    rows = [("“seq_len launches become one”", f"at {TOKENS} tokens: {listed}", op_stream)]
    firsts = {way: of_case(beside, f"write.{way}") for way in known}
    grown = ", ".join(
        f"{way} {known[way] / first.launches:,.3g}x"
        for way, first in firsts.items()
        if first is not None
    )
    rows.append(
        (
            "“the Python loop over tokens is gone”",
            f"launches at {TOKENS} tokens over those at 1: {grown}",
            op_stream,
        )
    )
    rows.append(
        (
            "“5 to 20 µs a launch”",
            f"nothing: it is taken as {cost}, which makes the loop's "
            f"{_spent(known.get('loop'), given)} a layer",
            given.launch_source,
        )
    )
    saved = ", ".join(
        f"{known['loop'] - number:,} by {way} ({_spent(known['loop'] - number, given)} a layer)"
        for way, number in known.items()
        if way != "loop" and "loop" in known
    )
    rows.append(
        (
            f"“about {_CLAIMED_SAVED} launches saved at seq_len {TOKENS}”",
            saved or "not told",
            f"the difference of the counts, a launch taken as {cost}; {_CLAIMED_SAVED} counts K "
            "alone, and takes the index for free",
        )
    )
    decode = Case(op="attend", seq_len=TOKENS, num_heads=32)
    copied = copied_bytes(decode)
    rows.append(
        (
            "“no extra copy”",
            f"the gather before an attention over {TOKENS} tokens writes and reads "
            f"{format_bytes(copied)} more than the {format_bytes(decode.nbytes)} of one in place, "
            f"{format_seconds_range(*[copied / given.bandwidth_bytes_per_s] * 2)} a layer",
            f"bytes of {decode.num_kv_heads} KV heads of {decode.head_dim} in {decode.dtype} at "
            f"{format_bandwidth(given.bandwidth_bytes_per_s)}",
        )
    )
    return Table(
        f"The claims of the teaching series: {MARK}, on {given.title}",
        ("claim", "predicted", "from"),
        tuple(rows),
    )


def _spent(launches: int | None, given: Premises) -> str:
    if launches is None:
        return "unknown time"
    return format_seconds_range(launches * given.launch_low_s, launches * given.launch_high_s)


def figures(frame: pd.DataFrame, given: Premises) -> Iterator[tuple[str, Figure]]:
    """Names of files and figures: time per call over seq_len, one for each op and setting.

    Args:
        frame: What `analysis.prediction.predictions` gives.
        given: The premises.
    """
    runs = frame[(frame["phase"] == "run") & frame["launches"].notna()]
    for op in OPS:
        for page in pages(runs[runs["op"] == op]):
            name = "-".join(part for part in (FILE_MARK, op, given.name, page.name) if part)
            yield name, curves_figure(page, op, given)


def curves_figure(page: Page, op: str, given: Premises) -> Figure:
    """The curves of the model, dashed: a band between the least and the most of a launch's cost.

    Args:
        page: Runs of one op, as `analysis.prediction.predictions` has them.
        op: The op.
        given: The premises.
    """
    cost = format_seconds_range(given.launch_low_s, given.launch_high_s)
    panels_groups = _groups(page)
    assumed = "; ".join(sorted({text for text in page.rows["assumption"] if text}))
    footnote = (
        f"{MARK}. Launches x {cost} + bytes / {format_bandwidth(given.bandwidth_bytes_per_s)}. "
        f"Launches, in brackets: of fake CUDA tensors. A launch: {given.launch_source}. Bandwidth: "
        f"{given.bandwidth_source}."
    )
    footnote += " Dots and dashes, where not too low to show: the least bytes alone, at all of it."
    if assumed:
        footnote += f" ASSUMED: {assumed}."
    shared = sorted(
        {group.strategies for groups in panels_groups.values() for group in groups},
    )
    hidden = [names for names in shared if len(names) > 1 and len(_names(names)) > _MOST_NAMED]
    if hidden:
        footnote += f" One line each: {'; '.join(map(_names, hidden))}."
    title = f"{op}: {MARK}, time per call on {given.title}"

    def draw(panel: Panel, block: int, heads: int) -> Ends:
        panel.text(
            0.42,
            0.12,
            FILE_MARK,
            transform=panel.transAxes,
            fontsize=17,
            fontweight="bold",
            color="#B22222",
            alpha=0.35,
            ha="center",  # where lines may pass, and no name is written
            va="bottom",
            zorder=0,
        )
        return _draw(panel, panels_groups[block, heads], given)

    with styled():
        return drawn_panels(page, title, footnote, (), "predicted µs per call", draw)


def _groups(page: Page) -> dict[tuple[int, int], list[Alike]]:
    found = {}
    for block, heads in itertools.product(page.block_sizes, page.kv_heads):
        own = page.of(block, heads)
        found[block, heads] = alike(own)
    return found


def _draw(panel: Panel, groups: Sequence[Alike], given: Premises) -> Ends:
    ends = []
    for group in groups:
        own = look().colour(group.strategies[0])
        x = group.rows["seq_len"].to_numpy(dtype=float)
        low, high = (group.rows[name].to_numpy() * US for name in ("low_s", "high_s"))
        for edge in (low, high):
            panel.plot(x, edge, color=own, linestyle="--", linewidth=1.2)
        panel.fill_between(x, low, high, color=own, alpha=0.08, linewidth=0)
        middle = math.sqrt(low[-1] * high[-1])
        ends.append((x[-1], middle, _label(group) + launches_label(group.rows), own))
    if groups:
        longest = max(groups, key=lambda group: len(group.rows)).rows
        x = longest["seq_len"].to_numpy(dtype=float)
        y = longest["least_bytes"].to_numpy(dtype=float) / given.bandwidth_bytes_per_s * US
        if y[-1] < _LEAST_SHARE * US * min(group.rows["low_s"].iloc[-1] for group in groups):
            return ends
        panel.plot(x, y, color=look().floor, linestyle="-.", linewidth=1.1, zorder=1)
        ends.append((x[-1], y[-1], "bytes alone", look().floor))
    return ends


def _label(group: Alike) -> str:
    names = group.strategies
    if len(names) == 1 or len(_names(names)) <= _MOST_NAMED:
        return _names(names)
    return f"{_names(names[:1])} and {len(names) - 1} alike"


def _names(strategies: Sequence[str]) -> str:
    return ", ".join(name.partition(".")[2] for name in strategies)
