"""What one call would take, before it is made: a loop over a million tokens is not run to see."""

import dataclasses
import time
from dataclasses import dataclass

import torch

from kvbench.cases import WHOLE_STEPS, Case
from kvbench.devices import synchronize
from kvbench.filling import fill
from kvbench.strategies.base import Strategy, why_unsupported, why_untimed
from kvbench.sweep.first_call import FirstCall
from kvbench.workload import build

_PROBES = (8, 32)
"""Tokens of the two calls that a time is extrapolated from, where a strategy does these."""
_STEP_PROBES = (64, 512)
"""Of a step: the fixed part of its time is large, and so is what it varies by."""
_INTERPRETED_STEP_PROBES = (2, 8)
"""Of a step that is never timed: a kernel that is interpreted is slow from the first token on."""
_REPEATS = 3
_REPEATS_END_S = 0.05
_STEP_REPEATS_END_S = 0.2


_KNOWN: dict[tuple[Strategy, Case, torch.device], float] = {}
"""The shortest run of each probe: the cases of a sweep share most of theirs."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """What is known of a case's call before it is made."""

    call_s: float
    first_call_s: float
    """The longest first prepare and run that it took to find out; 0 if nothing had to be run."""


def estimate(strategy: Strategy, case: Case, device: torch.device) -> Estimate:
    """The expected time of one run, from two small ones: fixed cost and cost per token.

    Cases of up to the larger probe's size are estimated as nothing: they are simply run.
    """
    if case.tokens <= max(_probe_tokens(strategy, case, device)):
        return Estimate(0.0, 0.0)
    probes = _probes(strategy, case, device)
    if probes is None or case.tokens <= probes[1].tokens:
        return Estimate(0.0, 0.0)
    (short, first), (long, second) = (_probe(strategy, probe, device) for probe in probes)
    few, many = (probe.tokens for probe in probes)
    per_token = max(long - short, 0.0) / (many - few)
    return Estimate(long + per_token * (case.tokens - many), max(first, second))


def _probes(strategy: Strategy, case: Case, device: torch.device) -> tuple[Case, Case] | None:
    """Two small cases like this one that the strategy does; None if it does no small one.

    What it does may depend on the lengths, as where only whole blocks fit an output.
    """
    few, many = (_probe_case(case, n) for n in _probe_tokens(strategy, case, device))
    blocks = [
        dataclasses.replace(few, batch=1, seq_len=count * case.block_size) for count in (1, 4)
    ]
    for pair in ((few, many), (blocks[0], blocks[1])):
        if all(why_unsupported(strategy, probe, device) is None for probe in pair):
            return pair
    return None  # run without knowing: what takes too long is ended


def _probe_tokens(strategy: Strategy, case: Case, device: torch.device) -> tuple[int, int]:
    if case.op not in WHOLE_STEPS:
        return _PROBES
    return _STEP_PROBES if why_untimed(strategy, device) is None else _INTERPRETED_STEP_PROBES


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


def _probe(strategy: Strategy, case: Case, device: torch.device) -> tuple[float, float]:
    """The shortest of a few runs, and what the first call took if it had to be made."""
    known = _KNOWN.get((strategy, case, device))
    if known is not None:
        return known, 0.0
    workload = build(case, device)
    fill(workload)
    first = FirstCall(strategy, device)  # it may compile
    prepared = first.prepare(workload)
    first.run(workload, prepared)
    shortest, spent = float("inf"), 0.0
    for _ in range(_REPEATS):
        synchronize(device)
        start = time.perf_counter()
        strategy.run(workload, prepared)
        synchronize(device)
        elapsed = time.perf_counter() - start
        shortest, spent = min(shortest, elapsed), spent + elapsed
        if spent > (_STEP_REPEATS_END_S if case.op in WHOLE_STEPS else _REPEATS_END_S):
            break
    _KNOWN[strategy, case, device] = shortest
    return shortest, first.seconds
