"""What all commands say things with: standard output and error, tables, progress."""

import datetime
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console

from kvbench.store import Run, load, without

if TYPE_CHECKING:  # imported where needed: `kvbench --help` should not wait for pandas
    from kvbench.report.tables import Table

# In a log or a pipe there is no width to fit; tables then take what they need, within reason.
_WIDTH = None if sys.stdout.isatty() or "COLUMNS" in os.environ else 120
out = Console(highlight=False, emoji=False, width=_WIDTH)
err = Console(stderr=True, highlight=False, emoji=False)


class Interrupted(Exception):  # noqa: N818 - what the user did
    """Ctrl-C, and what to do to go on."""


def say(text: str, console: Console = out) -> None:
    """A line of text, as it is: not wrapped, and brackets are no markup."""
    console.print(text, soft_wrap=True, markup=False)


def show(table: "Table", *, markdown: bool) -> None:
    """A table on standard output."""
    if markdown:
        click.echo(f"{table.markdown()}\n")
    else:
        out.print(table.rich())


def meter_of(total: int, console: Console = out) -> Any:  # noqa: ANN401 - a Meter, see the import
    """Progress over so many cases, to use in a `with`."""
    from kvbench.report.progress import Meter

    return Meter(console, total)


def warn_of(run: Run) -> Run:
    """The run itself; what was passed over while reading it is said on standard error."""
    for warning in run.warnings:
        say(f"warning: {warning}", err)
    return run


def load_run(folder: Path, left_out: Sequence[str] = ()) -> Run:
    """A run's folder, read back, without the strategies that are left out."""
    return without(warn_of(load(folder)), left_out)


def load_any(path: Path) -> Run:
    """A run's folder, or a JSON file of pytest-benchmark, read back."""
    from kvbench import benchmark_json

    return warn_of(benchmark_json.load(path)) if path.is_file() else load_run(path)


def new_folder(what: str) -> Path:
    """Where a run goes for which no folder was named."""
    stamp = datetime.datetime.now().astimezone().strftime("%Y-%m-%d-%H%M%S")
    return Path("results") / f"{stamp}-{what}"


def command_line() -> str:
    """The command as it was given."""
    return shlex.join(["kvbench", *sys.argv[1:]])
