"""What all commands say things with: standard output and error, tables, progress."""

import datetime
import errno
import io
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console

from kvbench.errors import InputError
from kvbench.store import ROWS_FILE, RUN_FILE, Run, has_run, load, without

if TYPE_CHECKING:  # imported where needed: `kvbench --help` should not wait for pandas
    from kvbench.report.tables import Table


def width_of_output(otherwise: int) -> int | None:
    """The width that tables have to fit, None being the terminal's own.

    Args:
        otherwise: In a log or a pipe, which have none: what tables then take at most.
    """
    on_terminal = sys.stdout is not None and sys.stdout.isatty()  # closed, it is None
    return None if on_terminal or "COLUMNS" in os.environ else otherwise


_WIDTH = 120
_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}
out = Console(highlight=False, emoji=False, width=width_of_output(_WIDTH))
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


def print_all_characters() -> None:
    """Let standard output escape what its encoding lacks, as standard error does."""
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")


def output_is_lost(error: OSError) -> bool:
    """Whether it is standard output that took nothing, as on a full disk; it is then let go of.

    Files that kvbench writes say so themselves, and what opens a file has its name in the error.
    """
    if error.filename is not None or error.errno not in _NO_ROOM:
        return False
    # What is left in it would fail once more when Python ends.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return True


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


def refuse_unwritable(file: Path) -> None:
    """Before anything is measured: a report that has no place to go to would be lost.

    Raises:
        InputError: It can't be written, or is a run's own.
    """
    try:
        there = next((each for each in (file, *file.parents) if each.exists()), Path())
    except OSError as error:  # as of a name that is too long
        raise unwritable(file, error) from error
    if file.is_dir() or (there != file and not there.is_dir()) or not os.access(there, os.W_OK):
        raise InputError(f"report {str(file)!r}: expected a file that can be written")
    if file.name in {RUN_FILE, ROWS_FILE} and has_run(file.parent):
        raise InputError(f"report {str(file)!r}: it is a run's own; expected another file")


def refuse_other_run(folder: Path, run: Path | None) -> None:
    """Before something made of a run is put where another run lies, and would be taken for its own.

    Args:
        folder: Where it is to go.
        run: The run that it is of; None if it is of none.

    Raises:
        InputError: There is another run.
    """
    if has_run(folder) and (run is None or folder.resolve() != run.resolve()):
        whose = "holds a run" if run is None else "is another run's"
        raise InputError(f"folder {str(folder)!r} {whose}; expected one without a run")


def unwritable(file: Path, error: OSError) -> InputError:
    """That a report can't be written, and why."""
    return InputError(
        f"report {str(file)!r}: {error.strerror}; expected a file that can be written"
    )


def new_folder(what: str) -> Path:
    """Where a run goes for which no folder was named."""
    stamp = datetime.datetime.now().astimezone().strftime("%Y-%m-%d-%H%M%S")
    return Path("results") / f"{stamp}-{what}"


def command_line() -> str:
    """The command as it was given; bytes of a path that are no text are escaped."""
    words = [word.encode("utf-8", "backslashreplace").decode() for word in sys.argv[1:]]
    return shlex.join(["kvbench", *words])
