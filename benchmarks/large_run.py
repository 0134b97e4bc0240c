"""What opening a large run takes: seconds of each step, and the most memory until then.

`python benchmarks/large_run.py` makes a run of 100,000 synthetic rows, which look like a GPU's, and
opens it as `kvbench rank` and `kvbench plot` do. `--clock wall` makes rows that look like a CPU's:
of more cases, and of more settings. No time in them was measured.
"""

import resource
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from kvbench.analysis.frame import to_frame
from kvbench.cases import OPS
from kvbench.report.plots import most_telling, sketches
from kvbench.report.save import save_figure
from kvbench.report.tables import ranking_table, times_table, untimed_table
from kvbench.store import ROWS_FILE, load

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from made import SHARE_OF_WALL, environment, large_rows, run_folder


@contextmanager
def step(name: str) -> Iterator[None]:
    started, cpu = time.perf_counter(), time.process_time()
    yield
    seconds, cpu_s = time.perf_counter() - started, time.process_time() - cpu
    # KiB on Linux; bytes on macOS.
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (
        1 << 20 if sys.platform == "darwin" else 1 << 10
    )
    click.echo(f"{name:<28} {seconds:7.2f} s ({cpu_s:.2f} s of CPU), peak RSS {peak:,.0f} MiB")


@click.command()
@click.option("--rows", default=100_000, show_default=True, type=click.IntRange(min=1))
@click.option("--clock", "clocks", multiple=True, default=tuple(SHARE_OF_WALL), show_default=True)
@click.option("--all", "everything", is_flag=True, help="Draw every figure.")
def main(rows: int, clocks: tuple[str, ...], *, everything: bool) -> None:
    """Make a run of so many rows and print what opening it takes."""
    with tempfile.TemporaryDirectory() as scratch:
        with step("imports and making the run"):
            folder = run_folder(
                Path(scratch) / "run",
                large_rows(rows, clocks=clocks),
                environment=environment(device="cpu" if clocks == ("wall",) else "cuda:0"),
            )
        size = (folder / ROWS_FILE).stat().st_size
        click.echo(f"{rows:,} rows, {size / (1 << 20):,.0f} MiB")
        with step("load"):
            run = load(folder)
        with step("frame"):
            frame = to_frame(run.results)
        with step("tables"):
            for op in OPS:
                ranking_table(frame, op, run.info.layers)
                times_table(frame, op, run.info.layers)
            untimed_table(frame)
        with step("plots"):
            found = sketches(frame, run.info)
            drawn = found if everything else most_telling(found)
            for sketch in drawn:
                save_figure(sketch.draw(), folder / "plots", sketch.name)
        click.echo(f"{len(drawn)} of {len(found)} figures")


if __name__ == "__main__":
    main()
