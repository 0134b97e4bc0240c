"""write.native and read.native against `copy_` of the same bytes, and against every other strategy.

`python benchmarks/native.py` prints, for each number of tokens, the ratio of a call's time to that
of two `copy_` from contiguous to contiguous memory, and whether the target is met. All subjects of
a size are sampled in interleaved rounds, and a ratio is the median of those within a round, with
its 95 % interval. The targets are for two cores; the reads that are held against `copy_` go into
tensors that are there already, as `copy_` does.
"""

from collections.abc import Callable, Mapping

import click
import torch
from rich.console import Console

from kvbench import oracle
from kvbench.analysis.statistics import Estimate, ratio_interval
from kvbench.cases import Case
from kvbench.devices import cpu_cache_bytes
from kvbench.filling import fill
from kvbench.report.tables import MISSING, Table
from kvbench.strategies import registry
from kvbench.timing.clocks import WallClock
from kvbench.timing.rounds import Sampling, StoppingRule, sample_rounds
from kvbench.units import format_bytes, format_seconds, significant
from kvbench.workload import Workload, build

CPU = torch.device("cpu")
TARGETS = {
    "write": {1: 1.0, 128: 0.85, 1024: 0.85, 8192: 0.75},
    "read": {1: 1.0, 128: 1.0, 1024: 1.0, 8192: 0.7},
}
COPY, GIVEN = "copy_", "native into given tensors"

Samples = Mapping[str, Sampling]


def copies(workload: Workload) -> Callable[[], None]:
    """Two copies, contiguous to contiguous, that move what the case moves."""
    tokens = workload.case.tokens
    pools = (workload.key_pool, workload.value_pool)
    sources = [torch.ones((tokens, *p.shape[2:]), dtype=p.dtype) for p in pools]
    targets = [torch.zeros_like(source) for source in sources]

    def copy() -> None:
        for target, source in zip(targets, sources, strict=True):
            target.copy_(source)

    return copy


def into_given(workload: Workload) -> Callable[[], None]:
    """A read by read.native without the allocation of what it gives."""
    plan = registry.get("read.native").prepare(workload)
    pools = (workload.key_pool, workload.value_pool)
    outputs = [torch.zeros((plan.tokens, *p.shape[2:]), dtype=p.dtype) for p in pools]
    return lambda: plan.run(*outputs, *pools)


def subjects(workload: Workload) -> dict[str, Callable[[], object]]:
    """What is measured: the copies, and every strategy that is right and can be timed here."""
    op = workload.case.op
    calls: dict[str, Callable[[], object]] = {COPY: copies(workload)}
    for strategy in registry.select([f"{op}.*"]):
        if strategy.supports(workload.case, CPU) or strategy.untimed(CPU):
            continue
        mismatch = oracle.check(strategy, workload)
        if mismatch:
            raise click.ClickException(f"{strategy.name}: {mismatch}")
        prepared = strategy.prepare(workload)
        calls[strategy.name] = lambda s=strategy, p=prepared: s.run(workload, p)
    fill(workload)
    if op == "read":
        calls[GIVEN] = into_given(workload)
    return calls


def ratio(samples: Samples, one: str, other: str) -> Estimate:
    return ratio_interval(samples[one].samples_s, samples[other].samples_s)


def verdict(found: Estimate, most: float) -> str:
    """Whether a ratio is at most so much: what its interval says."""
    if found.high <= most:
        return "met"
    return "missed" if found.low > most else "unsure"


def words(found: Estimate) -> str:
    low, high = significant(found.low), significant(found.high)
    return f"{significant(found.median)}x ({low} to {high})"


def row(op: str, tokens: int, samples: Samples) -> tuple[str, ...]:
    native = f"{op}.native"
    held = GIVEN if op == "read" else native
    to_copy = ratio(samples, held, COPY)
    target = TARGETS[op].get(tokens)
    # A read that allocates is held against others that do.
    others = [name for name in samples if name not in {COPY, GIVEN, native}]
    nearest = min(others, key=lambda name: samples[name].estimate.median)
    worst = max((ratio(samples, native, name) for name in others), key=lambda r: r.high)
    return (
        f"{tokens:,}",
        format_seconds(samples[COPY].estimate.median),
        format_seconds(samples[held].estimate.median),
        words(to_copy),
        MISSING if target is None else f"at most {target:.2f}x",
        MISSING if target is None else verdict(to_copy, target),
        nearest,
        words(ratio(samples, native, nearest)),
        verdict(worst, 1.0),
    )


@click.command()
@click.option("--tokens", default="1,128,1024,8192", show_default=True, help="Sizes.")
@click.option("--dtypes", default="fp32,bf16", show_default=True, help="Of K and V.")
@click.option("--seconds", default=0.5, show_default=True, help="Of sampling, for each subject.")
@click.option("--threads", default=2, show_default=True, help="PyTorch's; targets are for 2.")
@click.option("--seed", default=0, show_default=True, help="Of blocks and rounds.")
def main(tokens: str, dtypes: str, seconds: float, threads: int, seed: int) -> None:
    """Time the native strategies against copies and against every other strategy."""
    torch.set_num_threads(threads)
    registry.load_builtin()
    for op in TARGETS:
        reason = registry.get(f"{op}.native").supports(Case(op=op, seq_len=1), CPU)
        if reason is not None:
            raise click.ClickException(f"{op}.native: {reason}")
    cache = cpu_cache_bytes()
    size = "not known" if cache is None else format_bytes(cache)
    out = Console(soft_wrap=True)
    out.print(
        f"{threads} threads; last-level cache {size}; met, missed or unsure by the 95 % interval "
        "of the median ratio within a round"
    )
    rule = StoppingRule(relative_half_width=0.0, max_rounds=400, cell_seconds=seconds)
    header = ("tokens", "copy_", "native", "native / copy_", "target", "is")
    header += ("next fastest", "native / it", "as fast as all")
    for op in TARGETS:
        for dtype in dtypes.split(","):
            rows = []
            for count in map(int, tokens.split(",")):
                workload = build(Case(op=op, seq_len=count, dtype=dtype, seed=seed), CPU)
                rows.append(
                    row(op, count, sample_rounds(subjects(workload), WallClock(CPU), rule, seed))
                )
            title = f"{op}, {dtype}, 8 heads x 128, blocks of 16, shuffled"
            out.print(Table(title, header, tuple(rows)).rich())


if __name__ == "__main__":
    main()
