"""Every figure of a run, by file name, and which of them tell most."""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import pandas as pd
from matplotlib.figure import Figure

from kvbench.analysis.speedup import comparable, speedups
from kvbench.cases import OPS, WHOLE_STEPS
from kvbench.report.curves import launch_overhead_figure
from kvbench.report.gathering import gather_share_figure, pages
from kvbench.report.panels import Outline, outlines
from kvbench.report.speedup import speedup_figure
from kvbench.report.step_figures import (
    amortisation_figure,
    amortisation_pages,
    throughput_figure,
    throughput_pages,
)
from kvbench.results import RunInfo

MOST_PANELS = 60
"""Of the figures that a run draws unasked, each with one more for what is around its panels: a
panel takes some 0.1 s to draw and save."""


@dataclass(frozen=True, slots=True)
class Sketch:
    """A figure that is yet to be drawn."""

    name: str
    """Of its files, without their endings."""
    panels: int
    rank: tuple[int, int, int]
    """The less, the more it tells: its `Outline`'s, then the place of its clock."""
    draw: Callable[[], Figure]


def sketches(frame: pd.DataFrame, info: RunInfo) -> list[Sketch]:
    """The launch-overhead curves of every op by every clock, and its speed-up over the loop.

    Of attentions, beside the curves, what the gather costs those that gather. Of whole steps tokens
    per second instead, and what prepare costs each layer.

    Args:
        frame: The rows of a run.
        info: What holds for all of them.
    """
    found: list[Sketch] = []
    ok = frame[frame["status"] == "ok"]
    clocks = list(dict.fromkeys(ok["clock"]))
    for op, (place, clock) in itertools.product(OPS, enumerate(clocks)):
        rows = ok[(ok["op"] == op) & (ok["clock"] == clock)]
        if op in WHOLE_STEPS:
            found += _steps(rows, place, info) if clock == "wall" else ()
            continue
        draw = functools.partial(_curves, rows, op, clock, info)
        found += _sketches((op, "launch-overhead", clock), place, rows, draw)
        if op == "attend" and clock != "enqueue":
            found += _shares(rows, clock, place, info)
        reference = f"{op}.loop"
        if reference in set(rows["strategy"]):
            beside = comparable(rows, reference, clock)
            draw = functools.partial(_speedups, beside, op, reference, clock, info)
            found += _sketches((op, "speedup", clock), place, beside, draw)
    return found


def _sketches(
    words: tuple[str, str, str], place: int, rows: pd.DataFrame, draw: Callable[[Outline], Figure]
) -> Iterator[Sketch]:
    op, kind, clock = words
    suffix = "" if clock == "wall" else clock
    for outline in outlines(rows):
        yield Sketch(
            name="-".join(filter(None, (op, kind, suffix, outline.name))),
            panels=len(outline.block_sizes) * len(outline.kv_heads),
            rank=(*outline.rank, place),
            draw=functools.partial(draw, outline),
        )


def _shares(rows: pd.DataFrame, clock: str, place: int, info: RunInfo) -> Iterator[Sketch]:
    suffix = "" if clock == "wall" else clock
    for page in pages(rows, clock):
        yield Sketch(
            name="-".join(filter(None, ("attend", "gather-share", suffix, page.name))),
            panels=len(page.batches),
            rank=(*page.rank, place),
            draw=functools.partial(gather_share_figure, page, clock, info),
        )


def _steps(rows: pd.DataFrame, place: int, info: RunInfo) -> Iterator[Sketch]:
    for kind, found, draw in (
        ("tokens-per-second", throughput_pages(rows), throughput_figure),
        ("amortisation", amortisation_pages(rows), amortisation_figure),
    ):
        for page in found:
            yield Sketch(
                name="-".join(filter(None, ("step", kind, page.name))),
                panels=len(page.panels),
                rank=(*page.rank, place),
                draw=functools.partial(draw, page, info),
            )


def _curves(rows: pd.DataFrame, op: str, clock: str, info: RunInfo, outline: Outline) -> Figure:
    return launch_overhead_figure(outline.page(rows), op, clock, info)


def _speedups(
    rows: pd.DataFrame, op: str, reference: str, clock: str, info: RunInfo, outline: Outline
) -> Figure:
    page = outline.page(rows)
    page = dataclasses.replace(page, rows=speedups(page.rows, reference, clock))
    return speedup_figure(page, op, reference, clock, info)


def most_telling(found: Sequence[Sketch], most_panels: int = MOST_PANELS) -> list[Sketch]:
    """The main figures of a run, then those nearest to a case's defaults, up to so many panels.

    Args:
        found: What `sketches` gives.
        most_panels: As `MOST_PANELS`; one figure there is in any case.

    Returns:
        Those, in the order of `found`.
    """
    order = sorted(range(len(found)), key=lambda i: found[i].rank)
    panels = itertools.accumulate(found[i].panels + 1 for i in order)
    fit = sum(total <= most_panels for total in panels)
    return [found[i] for i in sorted(order[: max(fit, 1)])]


def figures(frame: pd.DataFrame, info: RunInfo) -> Iterator[tuple[str, Figure]]:
    """Every figure of a run.

    Args:
        frame: The rows of a run.
        info: What holds for all of them.

    Yields:
        A file name without its ending, and the figure.
    """
    for sketch in sketches(frame, info):
        yield sketch.name, sketch.draw()
