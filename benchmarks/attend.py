"""attend.native against a gather followed by torch's attention, and against a pure read of K and V.

`python benchmarks/attend.py` prints, for each dtype, how many times as long as attend.native the
fastest of the other ways take, and what share of the bandwidth of reading it reaches: the bytes of
K and V that are seen, by the time of the fastest read of as many bytes by torch, on as many
threads. All subjects are sampled in interleaved rounds, and a ratio is the median of those within a
round, with its 95 % interval; so the fastest time of each is told, which a neighbour on the machine
disturbs least. The targets are for two cores and a context that no cache has room for.
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
from kvbench.strategies.base import Strategy
from kvbench.timing.clocks import WallClock
from kvbench.timing.rounds import Sampling, StoppingRule, sample_rounds
from kvbench.units import format_bytes, format_seconds, significant
from kvbench.workload import Workload, build

CPU = torch.device("cpu")
NATIVE = "attend.native"
TARGETS = {"fp32": 3.0, "bf16": 8.0}
"""Times as long that the fastest gather takes."""
READ_SHARE = 0.6
READS: dict[str, Callable[[torch.Tensor], object]] = {
    "sum": torch.sum,
    "amax": torch.amax,
    "vector_norm": torch.linalg.vector_norm,
    "dot": lambda numbers: torch.dot(numbers, numbers),
}
"""What reads every byte of a tensor of float32 once, and gives a number."""
MOST_GATHERS = 3
"""Gathers that are checked and sampled: the fastest in a few calls of each."""

Samples = Mapping[str, Sampling]


def reads(workload: Workload) -> dict[str, Callable[[], object]]:
    """Reads of as many bytes as the case has of K and V, by several functions of torch."""
    case = workload.case
    nbytes = case.nbytes - case.query_bytes
    numbers = torch.ones(max(nbytes // 4, 1))
    return {f"read by {name}": lambda r=read: r(numbers) for name, read in READS.items()}


def gathers(case: Case) -> list[Strategy]:
    """The strategies that copy K and V, then attend over the copy."""
    return [
        strategy
        for strategy in registry.select(["attend.*"])
        if "gather" in strategy.parts
        and strategy.supports(case, CPU) is None
        and strategy.untimed(CPU) is None
    ]


def call_of(strategy: Strategy, workload: Workload) -> Callable[[], object]:
    """A strategy's run, after its output has been held against the right one.

    Raises:
        click.ClickException: It is wrong.
    """
    mismatch = oracle.check(strategy, workload)
    if mismatch:
        raise click.ClickException(f"{strategy.name}: {mismatch}")
    prepared = strategy.prepare(workload)
    return lambda: strategy.run(workload, prepared)


def fastest(strategies: list[Strategy], workload: Workload, most: int) -> list[Strategy]:
    """The fastest strategies, by the best of three calls."""
    clock = WallClock(CPU)

    def seconds(strategy: Strategy) -> float:
        prepared = strategy.prepare(workload)
        return min(clock.sample(lambda: strategy.run(workload, prepared), 1) for _ in range(3))

    took = {strategy: seconds(strategy) for strategy in strategies}
    return sorted(took, key=lambda strategy: took[strategy])[:most]


def verdict(found: Estimate, least: float) -> str:
    """Whether a ratio is at least so much: what its interval says."""
    if found.low >= least:
        return "met"
    return "missed" if found.high < least else "unsure"


def words(found: Estimate, suffix: str) -> str:
    low, high = significant(found.low), significant(found.high)
    return f"{significant(found.median)}{suffix} ({low} to {high})"


def share(found: Estimate) -> Estimate:
    """In per cent."""
    return Estimate(100 * found.median, 100 * found.low, 100 * found.high)


def rows(dtype: str, samples: Samples) -> list[tuple[str, ...]]:
    """A row for each subject, the fastest gather and the fastest read with their targets."""

    def median(name: str) -> float:
        return samples[name].estimate.median

    def ratio(name: str) -> Estimate:
        return ratio_interval(samples[name].samples_s, samples[NATIVE].samples_s)

    others = sorted((name for name in samples if name != NATIVE), key=median)
    first_read = next(name for name in others if name in {f"read by {read}" for read in READS})
    first_gather = next((name for name in others if name.startswith("attend.")), None)
    made = []
    for name in (NATIVE, *others):
        own = samples[name]
        told = [name, format_seconds(min(own.samples_s)), format_seconds(median(name))]
        target = is_met = MISSING
        found = ratio(name)
        if name == first_read:
            told.append(words(share(found), " % of its bandwidth"))
            target, is_met = f"at least {READ_SHARE:.0%}", verdict(found, READ_SHARE)
        else:
            told.append(MISSING if name == NATIVE else words(found, "x as long"))
        if name == first_gather and dtype in TARGETS:
            target, is_met = f"at least {TARGETS[dtype]:.0f}x", verdict(found, TARGETS[dtype])
        made.append((*told, target, is_met))
    return made


@click.command()
@click.option("--dtypes", default="fp32,bf16", show_default=True, help="Of queries, K and V.")
@click.option("--batch", default=8, show_default=True, help="Sequences.")
@click.option("--context", default=4096, show_default=True, help="Tokens of each.")
@click.option("--seconds", default=4.0, show_default=True, help="Of sampling, for each subject.")
@click.option("--threads", default=2, show_default=True, help="PyTorch's; targets are for 2.")
@click.option("--seed", default=0, show_default=True, help="Of blocks and rounds.")
def main(dtypes: str, batch: int, context: int, seconds: float, threads: int, seed: int) -> None:
    """Time attend.native against gathers and against pure reads."""
    torch.set_num_threads(threads)
    registry.load_builtin()
    native = registry.get(NATIVE)
    cache = cpu_cache_bytes()
    size = "not known" if cache is None else format_bytes(cache)
    out = Console(soft_wrap=True)
    out.print(
        f"{threads} threads; last-level cache {size}; met, missed or unsure by the 95 % interval "
        f"of the median ratio to {NATIVE} within a round"
    )
    rule = StoppingRule(relative_half_width=0.0, max_rounds=400, cell_seconds=seconds)
    header = ("subject", "fastest", "median", f"to {NATIVE}", "target", "is")
    for dtype in dtypes.split(","):
        case = Case(
            op="attend",
            seq_len=context,
            batch=batch,
            num_heads=32,
            num_kv_heads=8,
            head_dim=128,
            block_size=16,
            lengths="equal",
            dtype=dtype,
            block_order="shuffled",
            seed=seed,
        )
        reason = native.supports(case, CPU)
        if reason is not None:
            raise click.ClickException(f"{NATIVE}: {reason}")
        workload = build(case, CPU)
        fill(workload)
        chosen = [native, *fastest(gathers(case), workload, MOST_GATHERS)]
        calls = {each.name: call_of(each, workload) for each in chosen} | reads(workload)
        fill(workload)
        samples = sample_rounds(calls, WallClock(CPU), rule, seed)
        title = (
            f"{dtype}, batch {batch}, context {context:,}, 32 query heads over 8 x 128, "
            f"blocks of 16, shuffled: {format_bytes(case.nbytes)}"
        )
        out.print(Table(title, header, tuple(rows(dtype, samples))).rich())


if __name__ == "__main__":
    main()
