"""Figures to files."""

from pathlib import Path

from matplotlib.figure import Figure

from kvbench.errors import StoreError
from kvbench.report.style import styled


def save_figure(figure: Figure, folder: Path, name: str) -> tuple[Path, Path]:
    """Save a figure as PNG and SVG; the same figure always gives the same bytes.

    Raises:
        StoreError: The folder can't be written to.
    """
    png, svg = folder / f"{name}.png", folder / f"{name}.svg"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with styled():
            figure.savefig(png, metadata={"Software": None})
            figure.savefig(svg, metadata={"Date": None, "Creator": None})
    except OSError as error:
        raise StoreError(f"plots folder {str(folder)!r}: {error.strerror}") from error
    return png, svg
