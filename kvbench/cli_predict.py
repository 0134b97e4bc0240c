"""`kvbench predict`: what the launch-overhead model gives for a GPU that nobody has rented."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console

from kvbench.axes import Axes, override_all
from kvbench.errors import InputError
from kvbench.presets import PREDICTED_GRIDS
from kvbench.store import has_run

if TYPE_CHECKING:  # imported where needed: `kvbench --help` should not wait for torch
    from kvbench.analysis.prediction import Foretold
    from kvbench.report.tables import Table


@click.command()
@click.option("--gpu", metavar="NAME", help="h100, h200, a100, l4, rtx4090, b200 or mi300x.")
@click.option(
    "--bandwidth",
    type=float,
    metavar="GB/s",
    help="Of another GPU, or the part of a GPU's that you have seen it reach.",
)
@click.option(
    "--launch-us",
    metavar="US",
    help="Microseconds that a launch costs, as 10, or a range, as 5:20: an assumption. By default "
    "the range that the teaching series names, 5:20.",
)
@click.option(
    "-a",
    "--axis",
    "axes",
    multiple=True,
    metavar="NAME=VALUES",
    help="An axis and its values, as seq_len=1:8192:*2 or block_size=16,32. Repeatable.",
)
@click.option("--op", "ops", metavar="NAMES", help="Of these ops alone, as write,read.")
@click.option(
    "-s",
    "--strategy",
    "patterns",
    multiple=True,
    metavar="NAME",
    help='A strategy, or a pattern as "write.*". Repeatable; all by default.',
)
@click.option(
    "--layers",
    type=click.IntRange(min=1),
    default=32,
    show_default=True,
    help="Layers of a step: its cost is prepare + layers x run (of an index, one run).",
)
@click.option(
    "-o",
    "--out",
    "folder",
    type=click.Path(path_type=Path),
    help="Folder for the curves, as PNG and SVG; without it there are tables alone.",
)
@click.option("--markdown", is_flag=True, help="Print the tables as Markdown.")
def predict(
    gpu: str | None,
    bandwidth: float | None,
    launch_us: str | None,
    axes: tuple[str, ...],
    ops: str | None,
    patterns: tuple[str, ...],
    layers: int,
    folder: Path | None,
    *,
    markdown: bool,
) -> None:
    """Predict what a GPU would take, from counted launches and published bandwidth.

    Nothing is measured, and no GPU is needed: launches x their cost + bytes / bandwidth. The cost
    of a launch is an assumption. All that is printed or drawn says PREDICTED.
    """
    from kvbench.analysis.prediction import predictions, premises

    given = premises(gpu, bandwidth, launch_us)
    overrides = Axes.parse((*axes, *([f"op={ops}"] if ops is not None else [])))
    cases = override_all(PREDICTED_GRIDS, overrides)
    overrides.refuse_without_effect(cases)
    if folder is not None and has_run(folder):
        raise InputError(
            f"folder {str(folder)!r} holds a run; expected another: a prediction is no result"
        )

    from kvbench.cases import Case
    from kvbench.report import prediction
    from kvbench.strategies import registry
    from kvbench.sweep.launches import foretold

    registry.load_builtin()
    strategies = registry.select(patterns)
    told = [
        foretold(strategy, case, phase, hip=given.hip)
        for case in cases
        for strategy in strategies
        if strategy.op == case.op
        for phase in strategy.phases()
        if phase in {"run", "prepare"}
    ]
    _refuse_untold(told)
    frame = predictions(told, given)
    _show(prediction.premises_table(given), markdown=markdown)
    for table in prediction.tables(frame, given, layers):
        _show(table, markdown=markdown)
    untold = prediction.untold_table(told)
    if untold is not None:
        _show(untold, markdown=markdown)
    writes = registry.select(["write.loop", "write.indexing", "write.slot_mapping", "write.triton"])
    claimed, beside = (
        [foretold(each, Case(op="write", seq_len=size), "run", hip=given.hip) for each in writes]
        for size in (prediction.TOKENS, 1)
    )
    _show(prediction.claims_table(claimed, beside, given), markdown=markdown)
    if folder is not None:
        from kvbench.report.save import save_figure

        for name, figure in prediction.figures(frame, given):
            for path in save_figure(figure, folder, name):
                click.echo(str(path))


def _refuse_untold(told: "list[Foretold]") -> None:
    runs = [each for each in told if each.phase == "run"]
    if not runs:
        raise InputError(
            "nothing to predict: none of these strategies does any of these cases' ops"
        )
    if all(each.counts is None for each in runs):
        raise InputError(
            "nothing can be predicted: "
            + "; ".join(dict.fromkeys(f"{each.strategy}: {each.reason}" for each in runs))
        )


def _show(table: "Table", *, markdown: bool) -> None:
    if markdown:
        click.echo(f"{table.markdown()}\n")
        return
    width = None if sys.stdout.isatty() else 160
    Console(highlight=False, emoji=False, width=width).print(table.rich())
