"""Commands that show a run to people: its figures and its report."""

import shlex
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from kvbench.console import load_run, out, refuse_other_run, say
from kvbench.errors import InputError, StoreError
from kvbench.files import replace_file
from kvbench.options import LAYERS_OF_RUN_OPTION, WITHOUT_OPTION
from kvbench.report.palette import STYLES, Style
from kvbench.store import PLOTS_FOLDER, Run

if TYPE_CHECKING:  # imported where needed: `kvbench --help` waits for neither pandas nor matplotlib
    from collections.abc import Sequence

    import pandas as pd

    from kvbench.report.document import ChartKind
    from kvbench.report.markdown import Pictures
    from kvbench.report.plots import Sketch

HTML_FILE = "report.html"
MARKDOWN_FILE = "report.md"
TABLE_FILE = "rows.csv"
_HTML_NEEDS = ("plotly", "jinja2", "markdown_it")
"""Modules that a run can be measured, ranked and plotted without."""


@click.command()
@click.argument("folder", metavar="RUN", type=click.Path(path_type=Path))
@click.option(
    "-o",
    "--out",
    "target",
    type=click.Path(path_type=Path),
    help="Where to; RUN/plots by default, or RUN/plots-STYLE.",
)
@click.option(
    "--style",
    type=click.Choice(STYLES),
    default="docs",
    show_default=True,
    help="docs: for a page on white. dark: for a dark one. paper: 7 inches wide, as PDF too, told "
    "apart without colours, heading and provenance in a text beside each figure.",
)
@LAYERS_OF_RUN_OPTION
@WITHOUT_OPTION
@click.option(
    "--all",
    "everything",
    is_flag=True,
    help="Draw every figure; without it, of a run with many, those that tell most.",
)
def plot(
    folder: Path,
    target: Path | None,
    style: Style,
    layers: int | None,
    left_out: tuple[str, ...],
    *,
    everything: bool,
) -> None:
    """Draw a run as PNG and SVG.

    Curves of time per call over seq_len (launch overhead), speed-ups, bandwidths, who is fastest
    where, the cost of a step over layers, what the fitted model says a call's time goes to; of
    attentions what a gather costs, of whole steps tokens per second.
    """
    from kvbench.analysis.frame import to_frame

    to = target or _plots_folder(folder, style)
    refuse_other_run(to, folder)
    done = load_run(folder, left_out)
    frame = to_frame(done.results)
    save_plots(done, frame, to, style, layers=layers, everything=everything, left_out=left_out)


def _plots_folder(run: Path, style: Style) -> Path:
    """Of each style its own: the docs' plots are not those of another."""
    return run / (PLOTS_FOLDER if style == "docs" else f"{PLOTS_FOLDER}-{style}")


@click.command()
@click.argument("folder", metavar="RUN", type=click.Path(path_type=Path))
@click.option(
    "-o", "--out", "target", type=click.Path(path_type=Path), help="Where to; into RUN by default."
)
@click.option(
    "--only",
    type=click.Choice(["html", "markdown"]),
    help="One of the two; both by default.",
)
@LAYERS_OF_RUN_OPTION
@WITHOUT_OPTION
def report(
    folder: Path,
    target: Path | None,
    only: Literal["html", "markdown"] | None,
    layers: int | None,
    left_out: tuple[str, ...],
) -> None:
    """Write a run's report: the answer, its charts, its tables, and how to measure it again.

    report.html is one file that needs no network, with charts to ask questions of. report.md is for
    repositories, with figures in plots/ and every row in rows.csv.
    """
    from kvbench.analysis.frame import to_frame

    refuse_other_run(target or folder, folder)
    done = load_run(folder, left_out)
    frame = to_frame(done.results)
    write_report(done, frame, target or folder, layers or done.info.layers, only, left_out)


def write_report(
    done: Run,
    frame: "pd.DataFrame",
    target: Path,
    layers: int,
    only: Literal["html", "markdown"] | None = None,
    left_out: "Sequence[str]" = (),
) -> None:
    """Write the report of a run, and say where it lies.

    Args:
        done: The run.
        frame: Its rows.
        target: The folder of the report.
        layers: Layers of a step.
        only: Which of the two; both if None.
        left_out: What `done` is without, as patterns.
    """
    from kvbench.report.csv import save_rows
    from kvbench.report.markdown import markdown
    from kvbench.report.sections import compose

    document = compose(done, frame, layers, left_out)
    if only != "html":
        drawn = save_plots(done, frame, target / PLOTS_FOLDER, layers=layers, left_out=left_out)
        save_rows(frame, target / TABLE_FILE)
        _write(target / MARKDOWN_FILE, markdown(document, _pictures(drawn), TABLE_FILE))
    if only != "markdown":
        missing = missing_for_html()
        if missing:
            raise InputError(
                f"{HTML_FILE}: {missing} is not installed; expected it, or --only markdown"
            )
        from kvbench.report.html import html

        _write(target / HTML_FILE, html(document, done, frame, layers))


def save_plots(
    done: Run,
    frame: "pd.DataFrame",
    folder: Path,
    style: Style = "docs",
    *,
    layers: int | None = None,
    everything: bool = False,
    left_out: "Sequence[str]" = (),
) -> "list[Sketch]":
    """Draw a run's figures, all or those that tell most, and say where they lie.

    Args:
        done: The run.
        frame: Its rows.
        folder: Where to.
        style: How they look.
        layers: Layers of a step; the run's if None.
        everything: Draw all, however many.
        left_out: What `done` is without, as patterns.

    Returns:
        Those that were drawn.
    """
    from kvbench.report.plots import most_telling, sketches
    from kvbench.report.progress import Meter
    from kvbench.report.save import save_figure

    layers = layers or done.info.layers
    found = sketches(frame, replace(done.info, layers=layers))
    drawn = found if everything else most_telling(found)
    paths: list[Path] = []
    with Meter(out, len(drawn), "figures") as meter:
        for sketch in drawn:
            paths += save_figure(sketch.draw(style), folder, sketch.name, style)
            meter.advance(sketch.name)
    if not paths:
        say("No plots: no strategy was timed at two or more values of seq_len.")
    else:
        endings = ", ".join(dict.fromkeys(path.suffix[1:].upper() for path in paths))
        say(f"{len(drawn)} figures ({endings}) in {folder}")
    if len(drawn) < len(found):
        words = ["kvbench", "plot", str(done.folder), "--all"]
        words += [word for pattern in left_out for word in ("--without", pattern)]
        if layers != done.info.layers:
            words += ["--layers", str(layers)]
        if style != "docs":
            words += ["--style", style]
        if folder != _plots_folder(done.folder, style):
            words += ["-o", str(folder)]
        say(
            f"{len(found) - len(drawn)} of {len(found)} figures are left out, those farthest from "
            f"a case's defaults; `{shlex.join(words)}` draws all"
        )
    return drawn


def missing_for_html() -> str | None:
    """A package without which there is no HTML, where it is not installed."""
    return next((name for name in _HTML_NEEDS if find_spec(name) is None), None)


def _pictures(drawn: "Sequence[Sketch]") -> "Pictures":
    from kvbench.report.markdown import Picture

    found: dict[tuple[ChartKind, str], list[Picture]] = {}
    for sketch in drawn:
        picture = Picture(f"{PLOTS_FOLDER}/{sketch.name}.png", sketch.alt)
        found.setdefault((sketch.kind, sketch.op), []).append(picture)
    return found


def _write(path: Path, text: str) -> None:
    try:
        replace_file(path, text.encode())
    except OSError as error:
        raise StoreError(f"{str(path)!r}: {error.strerror}") from error
    say(str(path))
