"""`kvbench audit`: what compilers made of the kernels, for GPUs that need not be here."""

import importlib.util
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console

from kvbench.console import err, refuse_unwritable, show, width_of_output
from kvbench.errors import InputError

if TYPE_CHECKING:
    from kvbench.report.tables import Table


@click.command()
@click.option(
    "--target",
    "targets",
    multiple=True,
    metavar="NAME",
    help="sm_80, sm_89, sm_90, sm_100, sm_120 or gfx942. Repeatable; all by default.",
)
@click.option("--kernel", metavar="GLOB", help='Of these kernels alone, as attend or "*scatter*".')
@click.option("--all", "show_all", is_flag=True, help="A line for every specialisation.")
@click.option("--markdown", is_flag=True, help="Print Markdown instead.")
@click.option(
    "--json",
    "json_file",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write every finding as JSON, too.",
)
@click.option(
    "--compare",
    "compared",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Say where findings of Triton's kernels differ from those of an earlier --json.",
)
def audit(
    targets: tuple[str, ...],
    kernel: str | None,
    show_all: bool,  # noqa: FBT001 - a flag of click's
    markdown: bool,  # noqa: FBT001 - a flag of click's
    json_file: Path | None,
    compared: Path | None,
) -> None:
    """Compile the kernels for GPUs that need not be here, and read their machine code.

    Every Triton kernel in every form that the GPU preset asks for, and the CUDA C++ kernels where
    nvcc or NVRTC is. Exit code 1: a register is spilled, an access is narrower than it may be, an
    offset overflows, a padding slot is not guarded, or findings are not those of --compare.
    """
    if importlib.util.find_spec("triton") is None:
        raise InputError("the package triton is not installed; expected it, as it compiles kernels")
    import triton

    from kvbench.audit import cuda, record
    from kvbench.audit.findings import stale_gaps
    from kvbench.audit.run import audit as run
    from kvbench.audit.run import select_kernels
    from kvbench.audit.targets import get_targets
    from kvbench.report import machine_code
    from kvbench.report.progress import Meter

    chosen, names = get_targets(targets), select_kernels(kernel)
    if json_file is not None:
        refuse_unwritable(json_file)
    before = record.read(compared) if compared is not None else None
    with Meter(err, 0, "kernels") as meter:
        found = run(chosen, names, meter.expect, meter.advance)
    now = record.Record(triton.__version__, cuda.compiler(), found.findings)
    if json_file is not None:
        record.write(now, json_file)
    if found.findings:
        make = machine_code.every_table if show_all else machine_code.worst_table
        _show(make(found.findings), markdown=markdown)
    for line in (
        *machine_code.property_lines(found.findings),
        *machine_code.gap_lines(found.findings),
        *machine_code.missing_lines(found.missing),
    ):
        click.echo(f"- {line}" if markdown else line)
    faults = [
        *(f"fault: {line}" for line in machine_code.fault_lines(found.findings)),
        *(f"fault: {line}" for line in stale_gaps(found.findings)),
    ]
    if before is not None:
        changes = record.differences(before, now, names)
        faults += [f"out of date, {compared}: {line}" for line in changes]
    for line in faults:
        click.echo(line, err=True)
    sys.exit(1 if faults else 0)


_WIDTH = 200
"""Of a table where there is no terminal to fit: it has many columns."""


def _show(table: "Table", *, markdown: bool) -> None:
    if markdown:
        show(table, markdown=True)
        return
    width = width_of_output(_WIDTH)
    Console(highlight=False, emoji=False, width=width).print(table.rich())
