"""Runs and documents of reports: every kind of part, every kind of chart, and names that bite."""

import dataclasses
from pathlib import Path
from typing import get_args

import pandas as pd
from made import SHARE_OF_WALL, large_rows, result, run_info, sweep_rows

from kvbench.analysis.frame import to_frame
from kvbench.report.document import Chart, ChartKind, Details, Document, Rows, Section, Text
from kvbench.report.html import html
from kvbench.report.tables import Table
from kvbench.results import Result, RunInfo
from kvbench.store import Run

NOISE = (1.02, 1.0, 0.99, 1.01, 1.0)
"""Of as many rounds as `sweep_rows` has."""
HOSTILE = (
    "</script><script>document.title='taken'</script>",
    "<img src=x onerror=\"document.title='taken'\">",
    "%{y} &lt;b&gt; $x^2$ <b>bold</b> <a href='https://example.org'>link</a>",
    "<!--<script>",
)
"""What a user's file could name a strategy, or say as a reason."""
UNTIMED = "one call would take about 3.2 s, over the 1 s a call may take"


def times(seconds: float) -> tuple[float, ...]:
    return tuple(seconds * noise for noise in NOISE)


def attend_rows(**fields) -> list[Result]:
    """Attentions over three contexts: two that gather, with their gathers, and one in place."""
    rows = []
    for seq_len in (64, 512, 4096):
        at = {"seq_len": seq_len, **fields}
        rows += [
            result("attend.sdpa_loop", times(2e-7 * seq_len), **at),
            result("attend.sdpa_loop", times(1.4e-7 * seq_len), phase="gather", **at),
            result("attend.sdpa_native", times(1e-7 * seq_len), **at),
            result("attend.sdpa_native", times(2e-8 * seq_len), phase="gather", **at),
            result("attend.native", times(5e-8 * seq_len), **at),
        ]
    return rows


def step_rows(num_layers: int, **fields) -> list[Result]:
    """Whole steps of two pairs, over two contexts, with all of their parts."""
    rows = []
    for seq_len in (64, 1024):
        at = {"seq_len": seq_len, "num_layers": num_layers, **fields}
        for name, factor in (("step.loop+sdpa_loop", 3.0), ("step.native+native", 1.0)):
            seconds = factor * num_layers * 1e-4 * (1 + seq_len / 1000)
            parts = {"run": 1.0, "write": 0.2, "attend": 0.5}
            rows += [
                result(name, times(share * seconds), phase=phase, **at)
                for phase, share in parts.items()
            ]
            rows.append(result(name, times(2e-4), phase="prepare", **at))
    return rows


def gpu_rows() -> list[Result]:
    """By three clocks: writes and reads in two orders of blocks, attentions, indices and steps."""
    sizes = {"seq_lens": (1, 8, 64, 512), "block_sizes": (16, 64), "kv_heads": (8,)}
    return [
        *large_rows(576, samples=8, **sizes),
        *attend_rows(),
        *attend_rows(batch=4),
        *sweep_rows(op="index", seq_lens=(1, 64)),
        *sweep_rows(op="index", seq_lens=(1, 64), batch=4),
        *step_rows(1),
        *step_rows(8),
        result("write.loop", None, status="over budget", reason=UNTIMED, seq_len=8192),
        result("write.triton", None, status="unsupported", reason="no <GPU> here", seq_len=64),
    ]


def hostile_rows() -> list[Result]:
    """A sweep of strategies whose names, reasons and commands are markup and script."""
    rows = sweep_rows(strategies=("loop",))
    for text in HOSTILE:
        name = f"write.{text}"
        rows += [
            result(name, times(2e-6 * seq_len), seq_len=seq_len, repro=f"kvbench run -s '{name}'")
            for seq_len in (1, 8, 64)
        ]
        rows.append(result(name, None, status="failed", reason=text, seq_len=512))
    return rows


def run_of(rows: list[Result], **info) -> Run:
    return Run(Path("results/made"), made_info(**info), tuple(rows), ())


def made_info(**info) -> RunInfo:
    return run_info(**{"floors_s": dict.fromkeys(SHARE_OF_WALL, 3e-8), **info})


def document(frame: pd.DataFrame, text: str = "") -> Document:
    """Every kind of part, and every kind of chart for each op that has rows.

    Args:
        frame: The rows of a run.
        text: What is said wherever something can be said.
    """
    ops = list(dict.fromkeys(frame["op"]))
    kinds = get_args(ChartKind)
    steps = {"tokens-per-second", "amortisation"}
    charts = [
        Section(
            op,
            f"{op.capitalize()} {text}",
            tuple(
                Chart(kind, op)
                for kind in kinds
                if (kind not in steps or op == "step")
                and (kind != "gather-share" or op == "attend")
            ),
        )
        for op in ops
    ]
    table = Table(
        f"Winners {text}",
        ("strategy", "time", "", "why"),
        (
            ("write.loop", "12.3 µs", "1", text),
            ("write.native", "980 ns", "2", "it is"),
            ("", "1.20 ms", "3", "again"),
            ("write.indexing", "—", "4", "not timed"),
        ),
        f"A note {text}",
    )
    answer = Text(
        "**write.native** wins, by `kvbench run`; see [the method](docs/method.md).\n\n"
        "- up to 64 tokens\n- and beyond\n\n<b>no markup</b>"
    )
    return Document(
        f"A report {text}",
        "Of a **made** CPU",
        (
            Section("answer", "The answer", (answer, table, table)),
            *charts,
            Section(
                "skipped", "Not timed", (Details(f"Reasons {text}", (Text("Inside."), table)),)
            ),
            Section("all", "Every row", (Rows(),)),
        ),
    )


def chart_of_each_kind(frame: pd.DataFrame) -> Document:
    """Every kind of part once, and every kind of chart."""
    whole = document(frame)
    ops = {"gather-share": "attend", "tokens-per-second": "step", "amortisation": "step"}
    charts = tuple(Chart(kind, ops.get(kind, "write")) for kind in get_args(ChartKind))
    others = [section for section in whole.sections if section.anchor not in set(frame["op"])]
    return dataclasses.replace(whole, sections=(others[0], Section("c", "C", charts), *others[1:]))


def small_rows() -> list[Result]:
    """Few rows of which every kind of chart has something to show."""
    return [
        *sweep_rows(seq_lens=(1, 8, 64), kv_heads=(1, 8), strategies=("loop", "slot_mapping")),
        *attend_rows(),
        *step_rows(1),
        *step_rows(8),
    ]


def page_of(rows: list[Result], text: str = "", **info) -> str:
    """The HTML of a run."""
    run = run_of(rows, **info)
    frame = to_frame(run.results)
    return html(document(frame, text), run, frame, run.info.layers)


def unresolved(row: Result) -> Result:
    """The row with a clock whose floor is its own time."""
    assert row.measurement is not None
    slow = dataclasses.replace(row.measurement, floor_s=row.measurement.median_s)
    return dataclasses.replace(row, measurement=slow)
