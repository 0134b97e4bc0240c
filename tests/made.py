"""Synthetic rows and runs: sensible defaults, everything else overridden by name."""

import itertools
import statistics
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from kvbench.cases import Case
from kvbench.results import (
    SCHEMA_VERSION,
    CopyBandwidth,
    Environment,
    LaunchCounts,
    Measurement,
    Result,
    RunInfo,
)
from kvbench.store import RunWriter

SAMPLES_S = (1.1e-5, 1e-5, 1.2e-5, 1e-5, 0.9e-5)


def measurement(samples_s: Iterable[float] = SAMPLES_S, **fields) -> Measurement:
    samples = tuple(samples_s)
    shown = samples or SAMPLES_S
    return Measurement(
        **{
            "samples_s": samples,
            "calls_per_sample": 50,
            "median_s": statistics.median(shown),
            "low_s": min(shown),
            "high_s": max(shown),
            "confidence": 0.95,
            "stopped_by": "rounds",
            "floor_s": 3e-8,
            "allocates": False,
            "page_faults": None,
            "nbytes": 65536,
            "copy_share": 0.5,
            "first_call_s": 2e-3,
            **fields,
        }
    )


def predicted_launches(strategy: str, phase: str, fields: dict) -> LaunchCounts | None:
    """What the built-in strategies launch, so that synthetic rows look like real ones."""
    family = strategy.partition(".")[2]
    tokens = fields["seq_len"] * fields.get("batch", 1)
    kernels = {"loop": 2 * tokens, "indexing": 6, "slot_mapping": 2, "triton": 1, "cuda": 1}.get(
        family
    )
    if kernels is None:
        return None
    uploads = int(family == "indexing" or phase == "prepare")
    return LaunchCounts(
        kernels=0 if phase == "prepare" else kernels,
        memcpys=uploads,
        synchronizations=uploads,
        source="predicted",
    )


def result(
    strategy: str = "write.loop",
    samples_s: Iterable[float] | None = SAMPLES_S,
    *,
    phase: str = "run",
    clock: str = "wall",
    launches: LaunchCounts | None = None,
    status: str = "ok",
    reason: str | None = None,
    repro: str = "kvbench run",
    **case_fields,
) -> Result:
    """A row; its op is what the strategy's name begins with, its status "ok" has the samples."""
    fields = {"op": strategy.partition(".")[0], "seq_len": 8, **case_fields}
    ok = status == "ok"
    return Result(
        case=Case(**fields),
        strategy=strategy,
        phase=phase,
        clock=clock,
        cache="hot",
        status=status,
        reason=reason if ok else reason or f"{status} for a reason",
        measurement=measurement(samples_s) if ok and samples_s is not None else None,
        launches=launches or predicted_launches(strategy, phase, fields),
        repro=repro,
    )


def environment(**fields) -> Environment:
    return Environment(
        **{
            "kvbench": "0.1.0",
            "git_commit": None,
            "git_dirty": None,
            "python": "3.11.2",
            "torch": "2.13.0",
            "triton": "3.7.1",
            "os": "Linux",
            "architecture": "x86_64",
            "cpu": "Made CPU",
            "usable_cpus": 2,
            "torch_threads": 1,
            "memory_bytes": 8 << 30,
            "last_level_cache_bytes": 32 << 20,
            "cpu_governor": None,
            "device": "cpu",
            "device_name": "Made CPU",
            "device_memory_bytes": None,
            "device_runtime": None,
            "gpu": {},
            **fields,
        }
    )


def run_info(**fields) -> RunInfo:
    return RunInfo(
        **{
            "schema_version": SCHEMA_VERSION,
            "created": "2026-01-02T03:04:05+00:00",
            "command": "kvbench run",
            "preset": None,
            "seed": 0,
            "cell_seconds": 0.05,
            "call_budget_s": 1.0,
            "layers": 32,
            "cache": "hot",
            "environment": environment(),
            "copy_bandwidth": CopyBandwidth(bytes_per_s=12e9, nbytes=1 << 29, how="torch copy_"),
            "floors_s": {"wall": 3e-8},
            "launch_floor_s": 2e-6,
            **fields,
        }
    )


STRATEGY_TIMES_S = {"loop": (1e-6, 5e-6), "indexing": (4e-5, 5e-9), "slot_mapping": (1e-5, 4e-9)}
"""(fixed, per token) seconds of a call."""


def sweep_rows(
    seq_lens: Iterable[int] = (1, 8, 64),
    block_sizes: Iterable[int] = (16,),
    kv_heads: Iterable[int] = (8,),
    strategies: Iterable[str] = tuple(STRATEGY_TIMES_S),
    op: str = "write",
    **case_fields,
) -> list[Result]:
    """Rows of a sweep with the shape of a real one; slot_mapping has a prepare as well."""
    rows = []
    for seq_len, block_size, heads, family in itertools.product(
        seq_lens, block_sizes, kv_heads, strategies
    ):
        fields = {
            "num_heads": heads,
            "num_kv_heads": heads,
            "block_size": block_size,
            "seq_len": seq_len,
            **case_fields,
        }
        fixed, each = STRATEGY_TIMES_S.get(family, (2e-5, 6e-9))
        base = fixed + each * seq_len
        samples = tuple(base * noise for noise in (1.02, 1.0, 0.99, 1.01, 1.0))
        rows.append(result(f"{op}.{family}", samples, **fields))
        if family == "slot_mapping":
            once = tuple(sample / 2 for sample in samples)
            rows.append(result(f"{op}.{family}", once, phase="prepare", **fields))
    return rows


_LARGE_SETTINGS = {
    "layout": ("NHD", "HND", "NHD-KV", "HND-KV"),
    "cache_dtype": ("auto", "fp8_e4m3"),
    "dtype": ("bf16", "fp16", "fp32"),
    "batch": (1, 8),
    "block_order": ("shuffled", "sequential"),
    "op": ("write", "read"),
}
"""What the settings of a large run differ in, each field's default first."""
SHARE_OF_WALL = {"wall": 1.0, "enqueue": 0.7, "device": 0.9}
"""The clocks of a large run on a GPU, each with its share of the wall time."""
_LARGE_STRATEGIES = (*STRATEGY_TIMES_S, "triton")
_MOST_CALL_S = 0.02


def large_rows(
    count: int,
    *,
    seq_lens: Iterable[int] = tuple(2**n for n in range(14)),
    block_sizes: Iterable[int] = (16, 8, 32, 64),
    kv_heads: Iterable[int] = (8, 1, 32),
    clocks: Iterable[str] = tuple(SHARE_OF_WALL),
    samples: int = 30,
) -> Iterator[Result]:
    """So many rows of a real run's kind, one at a time: settings, strategies, phases and clocks.

    The loop takes too long for the largest cases, for reasons that differ, and does no fp8.
    """
    rng = np.random.default_rng(0)
    sizes = list(itertools.product(seq_lens, block_sizes, kv_heads))
    settings = itertools.product(*_LARGE_SETTINGS.values())
    rows = (
        row
        for values in settings
        for size in sizes
        for row in _large_case(
            dict(zip(_LARGE_SETTINGS, values, strict=True)), size, tuple(clocks), samples, rng
        )
    )
    return itertools.islice(rows, count)


def _large_case(
    setting: dict,
    size: tuple[int, int, int],
    clocks: tuple[str, ...],
    samples: int,
    rng: np.random.Generator,
) -> Iterator[Result]:
    seq_len, block_size, heads = size
    numbers = {"seq_len": seq_len, "block_size": block_size}
    fields = {**setting, **numbers, "num_heads": heads, "num_kv_heads": heads}
    case = Case(**fields)
    axes = " ".join(f"-a {name}={value}" for name, value in case.fields().items())
    for family in _LARGE_STRATEGIES:
        strategy = f"{case.op}.{family}"
        repro = f"kvbench run {axes} -s {strategy} --device cuda --cache hot --cell-seconds 0.5"
        fixed, each = STRATEGY_TIMES_S.get(family, (8e-6, 3e-9))
        call_s = fixed + each * case.tokens * (1 + heads / 32)
        phases = ("run", "prepare") if family in {"slot_mapping", "triton"} else ("run",)
        for phase, clock in itertools.product(phases, clocks):
            status, reason, times = "ok", None, None
            if family == "loop" and case.quantised:
                status, reason = "unsupported", f"{case.cache_dtype} pools are not for a loop"
            elif call_s > _MOST_CALL_S:
                status, reason = "over budget", f"one call would take about {call_s:.3g} s"
            else:
                base = call_s * SHARE_OF_WALL[clock] * (0.5 if phase == "prepare" else 1.0)
                times = (base * rng.lognormal(0.02, 0.05, samples)).tolist()
                ordered, quarter = sorted(times), samples // 4
                ends = {"low_s": ordered[quarter], "high_s": ordered[-quarter - 1]}
            launches = predicted_launches(strategy, phase, fields)
            yield Result(
                case=case,
                strategy=strategy,
                phase=phase,
                clock=clock,
                cache="hot",
                status=status,
                reason=reason,
                measurement=None if times is None else measurement(times, **ends),
                launches=launches,
                repro=repro,
            )


def run_folder(folder: Path, rows: Iterable[Result], **info) -> Path:
    """A run on disk."""
    with RunWriter(folder, run_info(**info)) as writer:
        for row in rows:
            writer.append(row)
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    """Every file below a folder with its bytes."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
