"""Options that several commands take, and the sweep that they ask for."""

import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar, get_args

import click

from kvbench.axes import Axes
from kvbench.cases import MOST, Case
from kvbench.presets import Preset
from kvbench.results import CacheState

F = TypeVar("F", bound=Callable[..., Any])

_AXIS_HELP = "An axis and its values, as seq_len=1:8192:*2 or block_size=16,32. Repeatable."
_STRATEGY_HELP = 'A strategy, or a pattern as "write.*". Repeatable; all by default.'


class Finite(click.FloatRange):
    """A range of numbers; NaN, which compares with none, is outside of it."""

    def convert(
        self, value: float, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """The number.

        Raises:
            click.BadParameter: It is none, or not in the range.
        """
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value!r} is no finite number", param, ctx)
        return number


class Layers(click.IntRange):
    """How many layers a step has: not more than any machine holds.

    Its help need not name a limit that nobody comes near, as a range's would.
    """

    def __init__(self) -> None:
        super().__init__(min=1)

    def convert(self, value: int, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """The number.

        Raises:
            click.BadParameter: It is none, or not in the range.
        """
        number = int(super().convert(value, param, ctx))
        if number > MOST:
            self.fail(f"{number} is more than {MOST}", param, ctx)
        return number


LAYERS = Layers()
DEVICE_OPTION = click.option(
    "--device", default="auto", show_default=True, help='"cpu", "cuda", "cuda:1", …'
)
WITHOUT_OPTION = click.option(
    "--without",
    "left_out",
    multiple=True,
    metavar="PATTERN",
    help='Leave strategies out, as if they had not been measured: a name or a glob, as "*.native". '
    "Repeatable.",
)
LOAD_OPTION = click.option(
    "--load",
    "files",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="FILE.py",
    help="A Python file that registers strategies of your own. Repeatable.",
)


def all_of(options: Iterable[Callable[[F], F]], command: F) -> F:
    """A command with several options; the last of them is the first in its help."""
    for option in options:
        command = option(command)
    return command


LAYERS_OPTION = click.option(
    "--layers",
    type=LAYERS,
    default=32,
    show_default=True,
    help="Layers of a step: its cost is prepare + layers x run (of an index, one run).",
)


LAYERS_OF_RUN_OPTION = click.option(
    "--layers", type=LAYERS, help="Layers of a step; the run's by default."
)


def cell_options(command: F) -> F:
    """Which strategies in which cases: axes, ops, strategies, the user's own."""
    return all_of(
        (
            click.option(
                "-a", "--axis", "axes", multiple=True, metavar="NAME=VALUES", help=_AXIS_HELP
            ),
            click.option("--op", "ops", metavar="NAMES", help="Of these ops alone, as write,read."),
            click.option(
                "-s", "--strategy", "patterns", multiple=True, metavar="NAME", help=_STRATEGY_HELP
            ),
            LOAD_OPTION,
        ),
        command,
    )


def sweep_options(command: F) -> F:
    """What is measured, and where."""
    return DEVICE_OPTION(cell_options(command))


def measuring_options(command: F) -> F:
    """How it is measured."""
    return all_of(
        (
            click.option(
                "--hang-after",
                "hang_s",
                type=Finite(min=1),
                default=300.0,
                show_default=True,
                metavar="SECONDS",
                help="The longest that a step may take before its process is ended.",
            ),
            click.option(
                "--seed",
                type=click.IntRange(min=0),
                default=0,
                show_default=True,
                help="Decides data, block order and the order of measuring.",
            ),
            LAYERS_OPTION,
            click.option(
                "--clock",
                "clock_names",
                multiple=True,
                metavar="NAME",
                help="enqueue, device or graph, beside wall. Repeatable; all that the device has "
                "by default.",
            ),
            click.option(
                "--cache",
                type=click.Choice(get_args(CacheState)),
                default="hot",
                show_default=True,
                help="Caches before each call: hot (same buffers), cold (flushed), rotated (many "
                "buffers).",
            ),
            click.option(
                "--call-budget",
                "call_budget_s",
                type=Finite(min=0.001),
                default=1.0,
                show_default=True,
                help="Most seconds that one call may take; slower strategies get a row that says "
                "so.",
            ),
            click.option(
                "--cell-seconds",
                type=Finite(min=0.001),
                help="Most seconds of sampling per strategy, case and phase.",
            ),
        ),
        command,
    )


def given_axes(axes: Iterable[str], ops: str | None, seed: int = 0) -> Axes:
    """The axes of -a, and those of --op and --seed where no -a names them."""
    given = Axes.parse((*axes, *([f"op={ops}"] if ops is not None else [])))
    if seed and "seed" not in dict(given.values):
        return given.override(Axes((("seed", (seed,)),)))
    return given


def chosen_sweep(
    named: Preset | None, given: Axes, suited: Preset, *, by_axes: bool
) -> tuple[Preset | None, tuple[Case, ...]]:
    """The preset of a sweep, if it has one, and its cases.

    Args:
        named: That of --preset.
        given: The axes that were given.
        suited: What is taken where neither a preset nor axes were named.
        by_axes: Whether axes were named with -a: they are a sweep of their own.

    Raises:
        InputError: An axis has no effect on any case.
    """
    chosen = named if named or by_axes else suited
    cases = chosen.cases(given) if chosen else given.expand()
    given.refuse_without_effect(cases)
    return chosen, cases
