"""The colour and the marker of each family of strategies, on white and on a dark background.

The first are Okabe and Ito's, told apart with any colour vision, where these are dark enough: a
line needs a contrast of 3:1 to what is behind it. So many families can't all be told apart by
everybody: markers, names at the ends of lines and widths do it as well.
"""

from typing import Literal, get_args

Style = Literal["docs", "paper", "dark"]
"""Where a plot is to be shown; see `style.styled`."""
STYLES: tuple[Style, ...] = get_args(Style)

LEAST_CONTRAST_OF_TEXT = 4.5
"""What WCAG 2 asks for at level AA of text that is not large."""

BACKGROUNDS = ("#FFFFFF", "#16191D")
"""Light and dark, as in each pair below."""

FLOORS = ("#595959", "#BDBDBD")
"""Of what is no strategy's: the copy, and what is said of it."""

FAMILIES = {
    "loop": ("#D55E00", "#FF7F2A"),
    "indexing": ("#0072B2", "#4AA8FF"),
    "slot_mapping": ("#009E73", "#2EC495"),
    "triton": ("#CC6FA4", "#F08CC4"),
    "block_slices": ("#6B2C00", "#C97C4C"),
    "index_put": ("#00574A", "#8FE3C8"),
    "index_copy": ("#A67C00", "#FFCF4D"),
    "index_select": ("#A67C00", "#FFCF4D"),
    "scatter": ("#2A9BD6", "#7FE0FF"),
    "gather": ("#2A9BD6", "#7FE0FF"),
    "blocks": ("#8A8A8A", "#8C8C8C"),
    "compile": ("#4B0092", "#A873FF"),
    "native": ("#000000", "#F0F0F0"),
    "cuda": ("#5F6B00", "#A8A832"),
    "streams": ("#7C6BC9", "#B7A6F2"),
    # Ways of an attention alone.
    "flex": ("#C026A8", "#FF5AE0"),
    "enable_gqa": ("#E0203A", "#FF4D5E"),
    # Ways of an index alone.
    "numpy": ("#0072B2", "#4AA8FF"),
    "torch": ("#009E73", "#2EC495"),
    "pinned": ("#A67C00", "#FFCF4D"),
}
OTHERS = (("#1B4F72", "#8FB8D8"), ("#B22222", "#FF8A8A"), ("#404080", "#B0B0F0"))
"""Of families that are not kvbench's own."""

MARKERS = {
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
OTHER_MARKER = "v"

PARTS = {
    "prepare": ("#44597A", "#8DA6CC"),
    "write": ("#B5835A", "#D9A87C"),
    "attend": ("#7B96C1", "#5A7196"),
    "gather": ("#44597A", "#8DA6CC"),
    "attention": ("#7B96C1", "#5A7196"),
    "call": ("#44597A", "#8DA6CC"),
    "launches": ("#B5835A", "#D9A87C"),
    "bytes": ("#7B96C1", "#5A7196"),
    "both": ("#7D6E63", "#B3A79B"),
}
"""Of the parts of a time, which are no strategies: slate, tan and pale slate."""

HATCHES = ("", "/////", ".....", "xxxxx", "-----", "\\\\\\\\\\", "+++++", "ooo")
"""For bars that are told apart without colours."""

DASHES: tuple[tuple[float, ...], ...] = (
    (),
    (6, 1.2),
    (4, 1, 1, 1),
    (9, 1.2, 3, 1.2),
    (2.5, 0.8),
    (6, 1, 1, 1, 1, 1),
    (12, 1.5),
)
"""Dashes and gaps in widths of a line, for lines that are told apart without colours: none is the
even dots of a prepare or the dashes of the copy."""


def luminance(colour: str) -> float:
    """How bright a colour is, 0 (black) to 1 (white), as WCAG 2 defines it.

    Args:
        colour: As "#RRGGBB".
    """
    parts = (int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5))
    red, green, blue = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4  # noqa: PLR2004 - sRGB
        for part in parts
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    """The contrast of two colours as WCAG 2 defines it, 1 (none) to 21 (black on white)."""
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def legible(colour: str, background: str) -> str:
    """A colour that text can have: mixed with black or white as far as it needs for 4.5:1."""
    ink = ink_on(background)
    for share in range(0, 100, 5):
        mixed = _mixed(colour, ink, share / 100)
        if contrast(mixed, background) >= LEAST_CONTRAST_OF_TEXT:
            return mixed
    return ink


def _mixed(colour: str, other: str, share: float) -> str:
    pairs = ((int(colour[n : n + 2], 16), int(other[n : n + 2], 16)) for n in (1, 3, 5))
    return "#" + "".join(f"{round(one + share * (two - one)):02X}" for one, two in pairs)


def ink_on(colour: str) -> str:
    """Black or white, whichever is the more legible on a colour."""
    return max("#000000", "#FFFFFF", key=lambda ink: contrast(ink, colour))
