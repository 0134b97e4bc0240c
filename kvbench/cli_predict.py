"""`kvbench predict`: what the launch-overhead model gives for a GPU that nobody has rented."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from kvbench.axes import override_all
from kvbench.console import refuse_other_run, say, show
from kvbench.errors import InputError
from kvbench.options import LAYERS_OPTION, cell_options, given_axes
from kvbench.presets import PREDICTED_GRIDS

if TYPE_CHECKING:  # imported where needed: `kvbench --help` should not wait for torch
    from kvbench.analysis.prediction import Foretold


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
@cell_options
@LAYERS_OPTION
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
    files: tuple[Path, ...],
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
    overrides = given_axes(axes, ops)
    cases = override_all(PREDICTED_GRIDS, overrides)
    overrides.refuse_without_effect(cases)
    if folder is not None:
        refuse_other_run(folder, None)

    from kvbench.cases import Case
    from kvbench.report import prediction
    from kvbench.strategies import registry
    from kvbench.sweep.launches import foretold

    registry.load_builtin()
    for file in files:
        registry.load_file(file)
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
    show(prediction.premises_table(given), markdown=markdown)
    for table in prediction.tables(frame, given, layers):
        show(table, markdown=markdown)
    untold = prediction.untold_table(told)
    if untold is not None:
        show(untold, markdown=markdown)
    writes = registry.select(["write.loop", "write.indexing", "write.slot_mapping", "write.triton"])
    claimed, beside = (
        [foretold(each, Case(op="write", seq_len=size), "run", hip=given.hip) for each in writes]
        for size in (prediction.TOKENS, 1)
    )
    show(prediction.claims_table(claimed, beside, given), markdown=markdown)
    if folder is not None:
        from kvbench.report.save import save_figure

        drawn = False
        for name, figure in prediction.figures(frame, given):
            drawn = True
            for path in save_figure(figure, folder, name):
                say(str(path))
        if not drawn:
            say("No plots: nothing is predicted at two or more values of seq_len.")


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
