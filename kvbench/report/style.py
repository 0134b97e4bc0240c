"""How every plot looks: one colour per strategy, and sizes that read where the plot is shown.

A style is where a plot is to be shown: in the docs, in a printed paper, on a dark background. What
is drawn inside of `styled(style)` has it, down to helpers that know of none; outside nothing
changes.
"""

import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any

import matplotlib as mpl

from kvbench.report.palette import (
    BACKGROUNDS,
    DASHES,
    FAMILIES,
    FLOORS,
    HATCHES,
    MARKERS,
    OTHER_MARKER,
    OTHERS,
    PARTS,
    Style,
    ink_on,
)


@dataclass(frozen=True, slots=True)
class Look:
    """What a style says beside the settings of matplotlib."""

    width_in: float
    """Of every figure."""
    dark: bool
    ink: str
    """The colour of text."""
    muted: str
    """The colour of remarks."""
    heading_pt: float
    name_pt: float
    """Of the names of lines, in panels and legends."""
    small_pt: float
    """Of remarks and numbers in cells and bars."""
    headed: bool
    """Whether heading and provenance are in the figure; else they are its caption's."""
    patterned: bool
    """Whether lines and bars are told apart by dashes and hatches as well."""

    @property
    def background(self) -> str:
        """The colour behind everything."""
        return BACKGROUNDS[self.dark]

    @property
    def floor(self) -> str:
        """The colour of what is no strategy's, as the copy."""
        return FLOORS[self.dark]

    def colour(self, strategy: str) -> str:
        """The colour of a strategy."""
        return colour(strategy, dark=self.dark)


# A README shows about 880 pixels: 100 to an inch, so that 9 points are 12.5 pixels.
_DOCS = Look(
    width_in=8.8,
    dark=False,
    ink="#000000",
    muted="#404040",
    heading_pt=10.5,
    name_pt=8.5,
    small_pt=7.5,
    headed=True,
    patterned=False,
)
_LOOKS: dict[Style, Look] = {
    "docs": _DOCS,
    # The width of the text of a page of two columns.
    "paper": Look(
        width_in=7.0,
        dark=False,
        ink="#000000",
        muted="#404040",
        heading_pt=9,
        name_pt=7.5,
        small_pt=7,
        headed=False,
        patterned=True,
    ),
    "dark": replace(_DOCS, dark=True, ink="#E8E8E8", muted="#BDBDBD"),
}

_RC: Any = {
    "axes.edgecolor": "#404040",
    "axes.grid": True,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlesize": 9.5,
    "figure.dpi": 200,
    "figure.facecolor": "white",
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "grid.alpha": 0.35,
    "grid.linewidth": 0.5,
    "hatch.linewidth": 0.6,
    "lines.linewidth": 1.6,
    "lines.markersize": 3.5,
    "pdf.fonttype": 42,  # text as text, as journals ask for
    "savefig.dpi": 200,
    "svg.fonttype": "none",
    "svg.hashsalt": "kvbench",
}
_RC_OF: dict[Style, Any] = {
    "docs": {},
    "paper": {
        "axes.labelsize": 8,
        "axes.linewidth": 0.6,
        "axes.titlesize": 8.5,
        "figure.dpi": 300,
        "font.size": 8,
        "lines.linewidth": 1.1,
        "lines.markersize": 3.0,
        "savefig.dpi": 300,
        "xtick.labelsize": 7.5,
        "xtick.major.width": 0.6,
        "ytick.labelsize": 7.5,
        "ytick.major.width": 0.6,
        "ytick.minor.width": 0.5,
    },
    "dark": {
        "axes.edgecolor": "#9A9A9A",
        "axes.facecolor": BACKGROUNDS[True],
        "axes.labelcolor": "#E8E8E8",
        "axes.titlecolor": "#E8E8E8",
        "figure.facecolor": BACKGROUNDS[True],
        "grid.alpha": 0.6,
        "grid.color": "#5A616B",
        "text.color": "#E8E8E8",
        "xtick.color": "#C8C8C8",
        "ytick.color": "#C8C8C8",
    },
}

_around: ContextVar[Style] = ContextVar("style", default="docs")


@contextmanager
def styled(style: Style | None = None) -> Iterator[Look]:
    """Figures made inside look like kvbench's; outside nothing changes.

    Args:
        style: Which; without one that of the `styled` around this, "docs" where there is none.

    Yields:
        What it says beside matplotlib's settings, as `look` does inside.
    """
    chosen = style or _around.get()
    token = _around.set(chosen)
    try:
        with mpl.rc_context({**_RC, **_RC_OF[chosen]}):
            yield _LOOKS[chosen]
    finally:
        _around.reset(token)


def look() -> Look:
    """What the style around says beside matplotlib's settings: the docs' if there is none."""
    return _LOOKS[_around.get()]


def _family(strategy: str) -> str:
    """What a strategy has in common with those of other ops; of a gather, its read's.

    Of a step's pair it is its attention's: that is the half that grows with the context.
    """
    return strategy.partition(".")[2].rpartition("+")[2].removeprefix("sdpa_")


def colour(strategy: str, *, dark: bool = False) -> str:
    """A strategy's colour in every plot: that of its family, the same for reads and writes.

    Args:
        strategy: Its name, as "write.loop".
        dark: Whether it is drawn on a dark background.
    """
    family = _family(strategy)
    other = OTHERS[zlib.crc32(family.encode()) % len(OTHERS)]
    return FAMILIES.get(family, other)[dark]


def marker(strategy: str) -> str:
    """A strategy's marker, so that colour is not all that tells lines apart."""
    return MARKERS.get(_family(strategy), OTHER_MARKER)


def line(strategy: str) -> dict[str, Any]:
    """How a strategy's line is drawn: thin, with hollow markers, if it gathers as another does.

    Of a step the marker is its write's, and a dashed line has another write than its attention. In
    a style that does without colours each family has dashes of its own.
    """
    now = look()
    looks: dict[str, Any] = {"color": now.colour(strategy), "marker": marker(strategy)}
    write, _, attend = strategy.partition(".")[2].rpartition("+")
    if write:
        looks["marker"] = marker(f"write.{write}")
        looks["linestyle"] = "-" if write == _family(strategy) else "--"
    if now.patterned:
        looks["linestyle"] = _dashes(_family(strategy))
    if attend != _family(strategy):
        looks |= {"linewidth": 0.9, "markerfacecolor": now.background, "markersize": 4.5}
    return looks


def _dashes(family: str) -> Any:  # noqa: ANN401 - a line's style is a word or a pair
    known = list(FAMILIES)
    place = known.index(family) if family in known else zlib.crc32(family.encode())
    dashes = DASHES[place % len(DASHES)]
    return (0, dashes) if dashes else "-"


def bar_of(strategy: str) -> dict[str, Any]:
    """How a strategy's bars are filled."""
    known = list(FAMILIES)
    family = _family(strategy)
    place = known.index(family) if family in known else zlib.crc32(family.encode())
    return _filled(look().colour(strategy), place)


def part(name: str) -> dict[str, Any]:
    """How bars of a part of a time are filled, as one of `palette.PARTS`."""
    place = sorted({pair[0] for pair in PARTS.values()}).index(PARTS[name][0])
    return _filled(PARTS[name][look().dark], place)


def _filled(own: str, place: int) -> dict[str, Any]:
    filled: dict[str, Any] = {"facecolor": own, "linewidth": 0}
    if look().patterned:
        filled |= {"hatch": HATCHES[place % len(HATCHES)], "edgecolor": ink_on(own)}
    return filled
