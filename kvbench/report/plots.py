"""Every figure of a run, by file name."""

import itertools
from collections.abc import Iterator

import pandas as pd
from matplotlib.figure import Figure

from kvbench.analysis.speedup import speedups
from kvbench.cases import OPS
from kvbench.report.curves import launch_overhead_figure
from kvbench.report.panels import pages
from kvbench.report.speedup import speedup_figure
from kvbench.results import RunInfo


def figures(frame: pd.DataFrame, info: RunInfo) -> Iterator[tuple[str, Figure]]:
    """The launch-overhead curves of every op by every clock, and its speed-up over the loop.

    Args:
        frame: The rows of a run.
        info: What holds for all of them.

    Yields:
        A file name without its ending, and the figure.
    """
    ok = frame[frame["status"] == "ok"]
    for op, clock in itertools.product(OPS, dict.fromkeys(ok["clock"])):
        rows = ok[(ok["op"] == op) & (ok["clock"] == clock)]
        suffix = "" if clock == "wall" else clock
        for page in pages(rows):
            name = "-".join(filter(None, (op, "launch-overhead", suffix, page.name)))
            yield name, launch_overhead_figure(page, op, clock, info)
        reference = f"{op}.loop"
        if reference in set(rows["strategy"]):
            for page in pages(speedups(rows, reference, clock)):
                name = "-".join(filter(None, (op, "speedup", suffix, page.name)))
                yield name, speedup_figure(page, op, reference, clock, info)
