"""Figures to files."""

from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from kvbench.errors import StoreError
from kvbench.report.style import styled


def save_figure(figure: Figure, folder: Path, name: str) -> tuple[Path, Path]:
    """Save a figure that is laid out as PNG and SVG; the same figure always gives the same bytes.

    Raises:
        StoreError: The folder can't be written to.
    """
    png, svg = folder / f"{name}.png", folder / f"{name}.svg"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with styled():
            # `Figure.savefig` would draw each file twice, the first time to lay it out.
            figure.set_dpi(mpl.rcParams["savefig.dpi"])
            canvas: Any = FigureCanvasAgg(figure)
            canvas.print_png(png, metadata={"Software": None})
            canvas = FigureCanvasSVG(figure)
            canvas.print_svg(svg, metadata={"Date": None, "Creator": None})
    except OSError as error:
        raise StoreError(f"plots folder {str(folder)!r}: {error.strerror}") from error
    return png, svg
