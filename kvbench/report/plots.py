"""Every figure of a run, by file name, and which of them tell most."""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from kvbench.analysis.speedup import comparable, loop_of, speedups
from kvbench.cases import OPS, WHOLE_STEPS
from kvbench.report import (
    bandwidth,
    breakdown,
    curves,
    fastest,
    gathering,
    layers,
    speedup,
    step_figures,
)
from kvbench.report.document import ChartKind
from kvbench.report.palette import Style
from kvbench.report.panels import Outline, Page, outlines
from kvbench.report.style import styled
from kvbench.results import RunInfo

MOST_PANELS = 110
"""Of the figures that a run draws unasked, each with one more for what is around its panels: a
panel takes some 0.1 s to draw and save."""


_MOVING = ("write", "read", "attend")
"""Ops that move K and V, once a layer."""


@dataclass(frozen=True, slots=True)
class Sketch:
    """A figure that is yet to be drawn."""

    name: str
    """Of its files, without their endings: OP-KIND[-CLOCK][-SETTING]."""
    op: str
    kind: ChartKind
    clock: str
    panels: int
    rank: tuple[int, int, int]
    """The less, the more it tells: its `Outline`'s, then the place of its clock."""
    make: Callable[[], Figure]
    """Draws it in the style around."""
    tell: Callable[[], str]

    def draw(self, style: Style = "docs") -> Figure:
        """The figure in a style."""
        with styled(style):
            return self.make()

    @property
    def alt(self) -> str:
        """One sentence for who can't see it: what it shows, and what is seen first."""
        return self.tell() if self.clock == "wall" else f"By the {self.clock} clock: {self.tell()}"


def sketches(frame: pd.DataFrame, info: RunInfo) -> list[Sketch]:
    """Every figure that a run has, op by op; of most ops by every clock.

    Launch-overhead curves, bandwidths, and the speed-up over the loop; who is fastest where, what a
    step costs per layer, and what a call's time goes to by the fit. Of attentions what the gather
    costs those that gather. Of whole steps tokens per second instead, and what prepare costs each
    layer.

    Args:
        frame: The rows of a run.
        info: What holds for all of them.
    """
    found: list[Sketch] = []
    ok = frame[frame["status"] == "ok"]
    clocks = list(dict.fromkeys(ok["clock"]))
    for op in OPS:
        own = ok[ok["op"] == op]
        for place, clock in enumerate(clocks):
            rows = own[own["clock"] == clock]
            if op in WHOLE_STEPS:
                found += _steps(rows, place, info) if clock == "wall" else ()
                continue
            words = _Words(op, clock, place, info)
            found += _over_seq_len(words, rows)
            if op == "attend" and clock != "enqueue":
                found += _shares(words, rows)
        if "wall" in clocks:
            # A prepare that failed leaves its strategy without a step's cost: `frame`, not `own`.
            whole = frame[(frame["op"] == op) & (frame["clock"] == "wall")]
            found += _of_steps(_Words(op, "wall", clocks.index("wall"), info), whole)
    return found


@dataclass(frozen=True, slots=True)
class _Words:
    """What the figures of an op by a clock have in common."""

    op: str
    clock: str
    place: int
    """Of the clock."""
    info: RunInfo

    def sketch(
        self,
        kind: ChartKind,
        name: str,
        panels: int,
        rank: tuple[int, int],
        make: Callable[[], Figure],
        tell: Callable[[], str],
    ) -> Sketch:
        suffix = "" if self.clock == "wall" else self.clock
        return Sketch(
            name="-".join(filter(None, (self.op, kind, suffix, name))),
            op=self.op,
            kind=kind,
            clock=self.clock,
            panels=panels,
            rank=(*rank, self.place),
            make=make,
            tell=tell,
        )


def _over_seq_len(words: _Words, rows: pd.DataFrame) -> Iterator[Sketch]:
    """Curves, bandwidths of what moves K and V, and speed-ups where there is a loop."""
    op, clock, info = words.op, words.clock, words.info
    runs = rows[rows["phase"] == "run"]
    yield from _outlined(
        words,
        "launch-overhead",
        rows,
        lambda page: curves.launch_overhead_figure(page, op, clock, info),
        lambda page: curves.launch_overhead_alt(page, op, clock),
    )
    # The time to hand work over, and an index of slots, move no K and V.
    if op in _MOVING and clock != "enqueue":
        yield from _outlined(
            words,
            "bandwidth",
            runs,
            lambda page: bandwidth.bandwidth_figure(page, op, clock, info),
            lambda page: bandwidth.bandwidth_alt(page, op, clock),
        )
    reference = loop_of(op, set(rows["strategy"]))
    if reference is not None:

        def paired(page: Page) -> Page:
            return dataclasses.replace(page, rows=speedups(page.rows, reference, clock))

        yield from _outlined(
            words,
            "speedup",
            comparable(rows, reference, clock),
            lambda page: speedup.speedup_figure(paired(page), op, reference, clock, info),
            lambda page: speedup.speedup_alt(paired(page), op, reference),
        )


def _outlined(
    words: _Words,
    kind: ChartKind,
    rows: pd.DataFrame,
    make: Callable[[Page], Figure],
    tell: Callable[[Page], str],
) -> Iterator[Sketch]:
    def taken(outline: Outline, then: Callable[[Page], Any]) -> Any:  # noqa: ANN401 - as `then` gives
        return then(outline.page(rows))

    for outline in outlines(rows):
        yield words.sketch(
            kind,
            outline.name,
            len(outline.block_sizes) * len(outline.kv_heads),
            outline.rank,
            functools.partial(taken, outline, make),
            functools.partial(taken, outline, tell),
        )


def _shares(words: _Words, rows: pd.DataFrame) -> Iterator[Sketch]:
    for page in gathering.pages(rows, words.clock):
        yield words.sketch(
            "gather-share",
            page.name,
            len(page.batches),
            page.rank,
            functools.partial(gathering.gather_share_figure, page, words.clock, words.info),
            functools.partial(gathering.gather_share_alt, page),
        )


def _of_steps(words: _Words, rows: pd.DataFrame) -> Iterator[Sketch]:
    """What the costs of steps tell, and the fit."""
    op, info = words.op, words.info
    for cells in fastest.fastest_pages(rows, op, info.layers):
        yield words.sketch(
            "fastest",
            cells.name,
            len(cells.panels) or 1,
            cells.rank,
            functools.partial(fastest.fastest_figure, cells, op, info),
            functools.partial(fastest.fastest_alt, cells, op),
        )
    if op in WHOLE_STEPS:
        return
    for page in layers.layers_pages(rows) if op in _MOVING else ():
        yield words.sketch(
            "layers",
            page.name,
            len(page.seq_lens),
            page.rank,
            functools.partial(layers.layers_figure, page, op, info),
            functools.partial(layers.layers_alt, page, op),
        )
    for parts in breakdown.breakdown_pages(rows, op):
        yield words.sketch(
            "breakdown",
            parts.name,
            len(parts.seq_lens),
            parts.rank,
            functools.partial(breakdown.breakdown_figure, parts, op, info),
            functools.partial(breakdown.breakdown_alt, parts, op),
        )


def _steps(rows: pd.DataFrame, place: int, info: RunInfo) -> Iterator[Sketch]:
    words = _Words("step", "wall", place, info)
    for rates in step_figures.throughput_pages(rows):
        yield words.sketch(
            "tokens-per-second",
            rates.name,
            len(rates.panels),
            rates.rank,
            functools.partial(step_figures.throughput_figure, rates, info),
            functools.partial(step_figures.throughput_alt, rates),
        )
    for parts in step_figures.amortisation_pages(rows):
        yield words.sketch(
            "amortisation",
            parts.name,
            len(parts.panels),
            parts.rank,
            functools.partial(step_figures.amortisation_figure, parts, info),
            functools.partial(step_figures.amortisation_alt, parts),
        )


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
