"""Does `kvbench ab` see what is there, and nothing else? A trial on this machine.

    python benchmarks/ab_trial.py results/trial --pack tests/recorded/ab_trial.npz

Two trees that differ in nothing, or in one strategy that waits for a tenth of what each of its
calls took, are compared by turns. Every other strategy is the same code in both. Comparisons are
left in the folder; `--pack` writes what the judge needs of them, for the tests.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import numpy as np

from kvbench.analysis.comparison import Rules, compare
from kvbench.results import Result
from kvbench.store import load

SLOWED = "write.slowed"
SHARE = 0.1
STRATEGY = '''
"""write.index_put, each call made longer by a share of what it took."""

import time

from kvbench.strategies import registry


@registry.register
class Slowed(type(registry.get("write.index_put"))):
    name = "write.slowed"
    summary = "index_put and a wait"

    def run(self, workload, prepared):
        start = time.perf_counter_ns()
        output = super().run(workload, prepared)
        until = time.perf_counter_ns()
        until += round((until - start) * SHARE)
        while time.perf_counter_ns() < until:
            pass
        return output


SHARE = {share}
'''
STRATEGIES = (
    *(SLOWED, "write.indexing", "write.slot_mapping", "write.native"),
    *("read.indexing", "read.slot_mapping", "read.native"),
)
SWEEP = ("-a", "op=write,read", "-a", "seq_len=1,128,1024", "--device", "cpu")
SECONDS = ("--cell-seconds", "0.5")
RESOLUTION = 1e-4
"""Of the packed logarithms of ratios: a hundredth of a percent."""


def measure(folder: Path, name: str, share: float) -> None:
    """One comparison, into its folder; one that is there already is left as it is."""
    if (folder / name / "b").is_dir():
        return
    trees = []
    for label, own in (("base", 0.0), ("new", share)):
        tree = folder / "trees" / f"{label}-{own}"
        tree.mkdir(parents=True, exist_ok=True)
        (tree / "slowed.py").write_text(STRATEGY.format(share=own))
        trees.append(str(tree.resolve()))
    chosen = [word for each in STRATEGIES for word in ("-s", each)]
    command = [sys.executable, "-m", "kvbench", "ab", *trees, "--load", "slowed.py"]
    command += [*SWEEP, *SECONDS, *chosen, "-o", str(folder / name)]
    done = subprocess.run(  # noqa: S603 - our own
        command, stdout=subprocess.DEVNULL, check=False
    )
    if done.returncode not in {0, 1}:
        sys.exit(f"{' '.join(command)}: exit code {done.returncode}")


def rows(folder: Path, name: str) -> tuple[tuple[Result, ...], tuple[Result, ...]]:
    """The rows of both sides of a comparison."""
    return load(folder / name / "a").results, load(folder / name / "b").results


def verdicts(folder: Path, name: str) -> tuple[list[str], list[str], float]:
    """The cells and strategies called SLOWER, those called FASTER, and the noise."""
    found = compare(*rows(folder, name), Rules(), interleaved=True, control=0.0)
    said: dict[str, list[str]] = {"SLOWER": [], "FASTER": []}
    for each in found.judged:
        if each.verdict in said:
            cell = each.cell
            said[each.verdict].append(f"{cell.strategy} {cell.phase} {cell.case.seq_len}")
    for summary in found.summaries:
        if summary.verdict in said:
            said[summary.verdict].append(f"{summary.strategy} {summary.phase}")
    return said["SLOWER"], said["FASTER"], found.noise


def pack(folder: Path, names: list[str], path: Path) -> None:
    """Write each comparison's ratios, sample by sample, and what else the judge needs."""
    cells: list[dict[str, object]] = []
    ratios: list[np.ndarray] = []
    counts: list[tuple[int, ...]] = []
    for name in names:
        for row, other in _pairs(*rows(folder, name)):
            one, two = row.measurement, other.measurement
            logs = np.log(np.array(two.samples_s) / np.array(one.samples_s))
            # What is beyond the range is far beyond any verdict's limit, too.
            ratios.append(np.clip(np.rint(logs / RESOLUTION), -32_767, 32_767).astype(np.int16))
            counts.append(one.processes)
            fields = {"op": row.case.op, "seq_len": row.case.seq_len, "comparison": name}
            fields |= {"strategy": row.strategy, "phase": row.phase}
            fields |= {"base_s": one.median_s, "floor_s": max(one.floor_s, two.floor_s)}
            cells.append(fields)
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(
        path,
        cells=np.array(json.dumps(cells)),
        ratios=np.concatenate(ratios),
        counts=np.array(counts, dtype=np.int16),
    )


def _pairs(base: tuple[Result, ...], new: tuple[Result, ...]) -> Iterator[tuple[Result, Result]]:
    others = {(row.case, row.strategy, row.phase): row for row in new}
    for row in base:
        other = others[row.case, row.strategy, row.phase]
        if row.measurement and other.measurement:
            yield row, other


@click.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--count", default=10, show_default=True, help="Comparisons of each kind.")
@click.option("--pack", "packed", type=click.Path(path_type=Path), help="Where to pack them.")
def main(folder: Path, count: int, packed: Path | None) -> None:
    """Compare like with like, and with one strategy slowed, by turns."""
    names = []
    for number in range(1, count + 1):
        for kind, share in (("slowed", SHARE), ("same", 0.0)):
            name = f"{kind}{number:02}"
            measure(folder, name, share)
            names.append(name)
            slower, faster, noise = verdicts(folder, name)
            told = f"SLOWER {', '.join(slower) or '-'}; FASTER {', '.join(faster) or '-'}"
            click.echo(f"{name}: noise {noise:.1%}; {told}")
    false, found = 0, 0
    for name in names:
        slower = verdicts(folder, name)[0]
        slowed = [each for each in slower if each.startswith(SLOWED) and name.startswith("slowed")]
        false += len(slower) - len(slowed)
        found += bool(slowed)
    click.echo(f"{false} false SLOWER in {len(names)}; the slowed one found {found}/{count}")
    if packed is not None:
        pack(folder, names, packed)


if __name__ == "__main__":
    main()
