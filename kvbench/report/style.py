"""How every plot looks: one colour per strategy, sizes that read at a README's width."""

import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import matplotlib as mpl

# Okabe and Ito's palette, told apart with any colour vision. Yellow is too pale for a line.
_FAMILY_COLOURS = {
    "loop": "#D55E00",
    "indexing": "#0072B2",
    "slot_mapping": "#009E73",
    "triton": "#CC79A7",
    # Shades for the ways that are kin to these, darker or lighter; markers tell them apart as well.
    "block_slices": "#8C3D00",
    "index_put": "#66C2A5",
    "index_copy": "#E69F00",
    "index_select": "#E69F00",
    "scatter": "#56B4E9",
    "gather": "#56B4E9",
    "blocks": "#7F7F7F",
    "compile": "#4B0092",
    "native": "#000000",
    "cuda": "#B8A000",
    "streams": "#A6761D",
    # Ways of an attention alone.
    "flex": "#D55E00",
    "enable_gqa": "#B22222",
    # Ways of an index alone.
    "numpy": "#0072B2",
    "torch": "#009E73",
    "pinned": "#E69F00",
}
_OTHER_COLOURS = ("#1B4F72", "#B22222", "#404080")
_MARKERS = {
    "loop": "o",
    "indexing": "s",
    "slot_mapping": "D",
    "triton": "^",
    "block_slices": "p",
    "index_put": "d",
    "index_copy": "X",
    "index_select": "X",
    "scatter": "P",
    "gather": "P",
    "blocks": "h",
    "compile": "*",
    "native": ">",
    "cuda": "H",
    "streams": "<",
    "flex": "D",
    "enable_gqa": "v",
    "numpy": "s",
    "torch": "D",
    "pinned": "P",
}

FLOOR_COLOUR = "#595959"
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


def colour(strategy: str) -> str:
    """A strategy's colour in every plot: that of its family, the same for reads and writes."""
    family = _family(strategy)
    other = _OTHER_COLOURS[zlib.crc32(family.encode()) % len(_OTHER_COLOURS)]
    return _FAMILY_COLOURS.get(family, other)


def marker(strategy: str) -> str:
    """A strategy's marker, so that colour is not all that tells lines apart."""
    return _MARKERS.get(_family(strategy), "v")


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
