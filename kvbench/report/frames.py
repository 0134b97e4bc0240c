"""What is around a figure's panels: heading, legend and where the numbers come from."""

import math
import textwrap
from collections.abc import Sequence
from typing import Any

from matplotlib.artist import Artist
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from kvbench.report.style import look

Key = Artist | tuple[Artist, ...]
"""Of a legend; several are drawn one on another, and the first has the label."""

_LINE = 1.25
"""Of a line of text: its height over its font's size."""
_POINTS_PER_IN = 72
_LETTER = 0.56
"""Of DejaVu Sans: the mean width of a letter over the font's size, on the safe side."""
_MARGIN_IN = 0.08


def framed(
    title: str, subtitle: str, footnote: str, panels_in: float, keys: Sequence[Key] = ()
) -> Figure:
    """An empty figure with all that is around its panels; as high as these and that.

    A style without headings keeps the words for a caption instead (see `caption_of`).

    Args:
        title: What is shown.
        subtitle: What all rows share.
        footnote: Where the numbers come from, and how to read them.
        panels_in: Height of the room for the panels, in inches.
        keys: What the legend explains, if there is to be one.
    """
    now = look()
    figure = Figure(figsize=(now.width_in, panels_in), layout="constrained")
    figure.set_label(f"{title}\n{subtitle}\n{footnote}")  # which is drawn nowhere
    heading = "\n".join([*_filled(title, now.heading_pt), *_filled(subtitle, now.heading_pt)])
    remark = "\n".join(_filled(footnote, now.small_pt))
    top_in = _MARGIN_IN if keys else 0.0
    head_in = _height_in(heading, now.heading_pt) if now.headed else top_in
    foot_in = _height_in(remark, now.small_pt) if now.headed else 0.0
    # Measured at the width it is drawn at; how high the figure is then changes nothing of it.
    legend_in = _add_legend(figure, keys) if keys else 0.0
    height = head_in + legend_in + panels_in + foot_in
    figure.set_figheight(height)
    left = _MARGIN_IN / now.width_in
    if now.headed:
        figure.suptitle(
            heading,
            fontsize=now.heading_pt,
            x=left,
            y=1 - _MARGIN_IN / height,
            ha="left",
            va="top",
        ).set_in_layout(False)
        figure.supxlabel(
            remark,
            fontsize=now.small_pt,
            color=now.muted,
            x=left,
            y=_MARGIN_IN / height,
            ha="left",
            va="bottom",
        ).set_in_layout(False)
    for legend in figure.legends:
        legend.set_bbox_to_anchor((left, 1 - head_in / height), figure.transFigure)
    engine = figure.get_layout_engine()
    if engine is not None:
        room = (0.0, foot_in / height, 1.0, 1 - (head_in + legend_in + foot_in) / height)
        engine.set(rect=room)  # type: ignore[call-arg] # a constrained layout's own
    return figure


def caption_of(figure: Figure) -> str:
    """A figure's heading and provenance, a line each."""
    return str(figure.get_label())


def width_in(text: str, size_pt: float) -> float:
    """About how wide a text is, in inches."""
    return len(text) * size_pt * _LETTER / _POINTS_PER_IN


def renderer_of(figure: Figure) -> Any:  # noqa: ANN401 - matplotlib says no more of it
    """What measures a figure's words."""
    canvas: Any = FigureCanvasAgg(figure)
    return canvas.get_renderer()


def _filled(text: str, size_pt: float) -> list[str]:
    columns = int((look().width_in - 2 * _MARGIN_IN) * _POINTS_PER_IN / (_LETTER * size_pt))
    return textwrap.wrap(text, columns)


def _height_in(text: str, size_pt: float) -> float:
    lines = text.count("\n") + 1
    return lines * size_pt * _LINE / _POINTS_PER_IN + 2 * _MARGIN_IN


def _add_legend(figure: Figure, keys: Sequence[Key]) -> float:
    """Add a legend on as few lines as the figure's width has room for; its height in inches."""
    renderer = renderer_of(figure)
    first = [key[0] if isinstance(key, tuple) else key for key in keys]
    for lines in range(1, len(keys) + 1):
        columns = math.ceil(len(keys) / lines)
        legend = figure.legend(
            handles=list(keys),
            labels=[str(key.get_label()) for key in first],
            loc="upper left",
            ncols=columns,
            fontsize=look().name_pt,
            frameon=False,
            borderaxespad=0.0,
            borderpad=0.0,
            handlelength=3.0 if look().patterned else 2.0,
            columnspacing=1.5,
        )
        legend.set_in_layout(False)
        box = legend.get_window_extent(renderer)
        if columns == 1 or box.width / figure.dpi <= look().width_in - 2 * _MARGIN_IN:
            break
        legend.remove()
    return math.ceil(100 * (box.height / figure.dpi + _MARGIN_IN)) / 100
