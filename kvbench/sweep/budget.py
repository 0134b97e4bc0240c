"""What one call would take, before it is made: a loop over a million tokens is not run to see."""

import dataclasses
import functools
import time

import torch

from kvbench.cases import Case
from kvbench.devices import synchronize
from kvbench.strategies.base import Strategy
from kvbench.workload import build, fill

_PROBES = (8, 32)
"""Tokens of the two calls that a time is extrapolated from."""
_REPEATS = 3
_REPEATS_END_S = 0.05


def estimate_call_s(strategy: Strategy, case: Case, device: torch.device) -> float:
    """The expected time of one run, from two small ones: fixed cost and cost per token.

    Cases of up to the larger probe's size are estimated as nothing: they are simply run.
    """
    few, many = _PROBES
    if case.tokens <= many:
        return 0.0
    short, long = (_probe_s(strategy, _probe_case(case, tokens), device) for tokens in _PROBES)
    per_token = max(long - short, 0.0) / (many - few)
    return long + per_token * (case.tokens - many)


def _probe_case(case: Case, tokens: int) -> Case:
    batch = min(case.batch, tokens)
    return dataclasses.replace(
        case,
        batch=batch,
        seq_len=tokens // batch,
        start_pos=0,
        padding=0,
        lengths="equal",
        shared_blocks=0,
        missing_blocks=0,
    )


@functools.lru_cache(maxsize=1024)
def _probe_s(strategy: Strategy, case: Case, device: torch.device) -> float:
    """The shortest of a few runs; the cases of a sweep share most of their probes."""
    workload = build(case, device)
    fill(workload)
    prepared = strategy.prepare(workload)
    strategy.run(workload, prepared)  # the first call may compile
    shortest, spent = float("inf"), 0.0
    for _ in range(_REPEATS):
        synchronize(device)
        start = time.perf_counter()
        strategy.run(workload, prepared)
        synchronize(device)
        elapsed = time.perf_counter() - start
        shortest, spent = min(shortest, elapsed), spent + elapsed
        if spent > _REPEATS_END_S:
            break
    return shortest
