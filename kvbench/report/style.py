"""How every plot looks: one colour per strategy, sizes that read at a README's width."""

import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import matplotlib as mpl

from kvbench.report.palette import FAMILIES, FLOORS, MARKERS, OTHER_MARKER, OTHERS

FLOOR_COLOUR = FLOORS[0]
WIDTH_IN = 8.8
"""A README shows about 880 pixels: 100 to an inch, so that 9 points are 12.5 pixels."""

_RC: Any = {
    "axes.edgecolor": "#404040",
    "axes.grid": True,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlesize": 9.5,
    "figure.constrained_layout.use": True,
    "figure.dpi": 200,
    "figure.facecolor": "white",
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "grid.alpha": 0.35,
    "grid.linewidth": 0.5,
    "lines.linewidth": 1.6,
    "lines.markersize": 3.5,
    "savefig.dpi": 200,
    "svg.fonttype": "none",
    "svg.hashsalt": "kvbench",
}


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

    Of a step the marker is its write's, and a dashed line has another write than its attention.
    """
    looks: dict[str, Any] = {"color": colour(strategy), "marker": marker(strategy)}
    write, _, attend = strategy.partition(".")[2].rpartition("+")
    if write:
        looks["marker"] = marker(f"write.{write}")
        looks["linestyle"] = "-" if write == _family(strategy) else "--"
    if attend != _family(strategy):
        looks |= {"linewidth": 0.9, "markerfacecolor": "white", "markersize": 4.5}
    return looks


@contextmanager
def styled() -> Iterator[None]:
    """Figures made inside look like kvbench's; outside nothing changes."""
    with mpl.rc_context(_RC):
        yield
