"""Figures to files."""

from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_pdf import FigureCanvasPdf
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from kvbench.errors import StoreError
from kvbench.report.frames import caption_of
from kvbench.report.palette import Style
from kvbench.report.style import styled


def save_figure(figure: Figure, folder: Path, name: str, style: Style = "docs") -> tuple[Path, ...]:
    """Save a figure that is laid out; the same figure always gives the same bytes.

    Args:
        figure: The figure.
        folder: Where to; made if it is missing.
        name: Of the files, without their endings.
        style: What the figure was drawn in.

    Returns:
        A PNG and an SVG file; in the style "paper" a PDF, and a text that is to be its caption.

    Raises:
        StoreError: The folder can't be written to.
    """
    png, svg, pdf, txt = (folder / f"{name}.{ending}" for ending in ("png", "svg", "pdf", "txt"))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with styled(style) as look:
            # `Figure.savefig` would draw each file twice, the first time to lay it out.
            figure.set_dpi(mpl.rcParams["savefig.dpi"])
            canvas: Any = FigureCanvasAgg(figure)
            canvas.print_png(png, metadata={"Software": None})
            canvas = FigureCanvasSVG(figure)
            canvas.print_svg(svg, metadata={"Date": None, "Creator": None})
            if look.headed:
                return png, svg
            canvas = FigureCanvasPdf(figure)
            undated = {"CreationDate": None, "Creator": None, "Producer": None}
            canvas.print_pdf(pdf, metadata=undated)
            txt.write_text(f"{caption_of(figure)}\n", encoding="utf-8")
    except OSError as error:
        raise StoreError(f"plots folder {str(folder)!r}: {error.strerror}") from error
    return png, svg, pdf, txt
