"""Launches of a strategy's phase: counted on a GPU, predicted elsewhere."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import torch

from kvbench.cases import Case
from kvbench.results import LaunchCounts, Phase
from kvbench.strategies.base import Strategy
from kvbench.timing.accelerator import Accelerator
from kvbench.timing.launches import fake_cuda, predict_launches
from kvbench.workload import Workload, build

_NARROW = 16
"""Elements: a multiple of every layout's packs."""


def predicted(strategy: Strategy, case: Case, phase: Phase) -> LaunchCounts | None:
    """What the phase would launch on a GPU; None if fake tensors can't run the strategy.

    No launch depends on a row's width: cases that differ in it share one prediction.
    """
    if not case.has_pools:
        return _predicted(strategy, case, phase)
    heads = min(case.num_kv_heads, 2)  # rows of one head may be contiguous where others aren't
    narrow = dataclasses.replace(
        case,
        num_heads=heads,
        num_kv_heads=heads,
        rope_dim=_NARROW if case.layout == "MLA" else case.rope_dim,
        head_dim=2 * _NARROW,
        # Of codes it matters whether rows are float32 already.
        dtype=case.dtype if case.quantised else "fp32",
    )
    return _predicted(strategy, narrow, phase)


def method_of(strategy: Strategy, phase: Phase) -> Callable[[Workload, Any], object]:
    """What a phase other than prepare calls; run where it is prepare."""
    if phase == "run" or phase == "prepare":  # noqa: PLR1714 - what is left is a part
        return strategy.run
    return functools.partial(strategy.run_part, phase)


@functools.lru_cache(maxsize=4096)
def _predicted(strategy: Strategy, case: Case, phase: Phase) -> LaunchCounts | None:
    try:
        with fake_cuda():
            workload = build(case, torch.device("cuda"))
            if phase == "prepare":
                return predict_launches(lambda: strategy.prepare(workload))
            prepared = strategy.prepare(workload)
            method = method_of(strategy, phase)
            return predict_launches(lambda: method(workload, prepared))
    except Exception:  # noqa: BLE001 - a strategy may do what fake tensors can't; then it's not known
        return None


def counted(
    strategy: Strategy, workload: Workload, phase: Phase, accelerator: Accelerator
) -> LaunchCounts | None:
    """What the phase launched on this device, by the profiler; predicted where it sees nothing."""
    prepared = strategy.prepare(workload)
    method = method_of(strategy, phase)
    method(workload, prepared)  # a first call compiles
    if phase == "prepare":
        trace = accelerator.profile(lambda: strategy.prepare(workload))
    else:
        trace = accelerator.profile(lambda: method(workload, prepared))
    expected = predicted(strategy, workload.case, phase)
    if not trace.activities and (expected is None or expected.launches):
        return expected  # the profiler may not look: its 0 would be a lie
    memcpys = sum(activity.is_memcpy for activity in trace.activities)
    return LaunchCounts(
        kernels=len(trace.activities) - memcpys,
        memcpys=memcpys,
        synchronizations=trace.synchronizations,
        source="counted",
    )
