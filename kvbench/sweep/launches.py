"""Launches of a strategy's phase: counted on a GPU, predicted elsewhere."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import torch

from kvbench.analysis.prediction import Foretold
from kvbench.cases import OF_CONTEXTS, Case
from kvbench.kernels.recording import pretending
from kvbench.results import LaunchCounts, Phase
from kvbench.strategies.base import Strategy, why_unsupported
from kvbench.timing.accelerator import Accelerator
from kvbench.timing.launches import FusedAttention, fake_cuda, predict_launches
from kvbench.workload import Workload, build

_NARROW = 16
"""Elements: a multiple of every layout's packs."""


def predicted(strategy: Strategy, case: Case, phase: Phase) -> LaunchCounts | None:
    """What the phase would launch on a GPU; None if fake tensors can't run the strategy.

    Writes' and reads' launches don't depend on a row's width: cases that differ in it share one.
    """
    counts, _, _ = _predicted(strategy, _narrow(case), phase, fused=False)
    return counts


def foretold(strategy: Strategy, case: Case, phase: Phase, *, hip: bool = False) -> Foretold:
    """What the phase would launch on a GPU, or why that can't be told.

    Torch's attention is taken for one kernel; where that was needed, it is said.

    Args:
        strategy: The strategy.
        case: The case.
        phase: The phase.
        hip: Whether the GPU is AMD's, where some strategies are refused.
    """
    copies = "gather" in getattr(strategy, "attending", strategy).parts
    reason = _refused(strategy, case, hip=hip)
    if reason is not None:
        return Foretold(strategy.name, case, phase, None, reason=reason, copies=copies)
    counts, reason, assumed = _predicted(strategy, _narrow(case), phase, fused=True)
    return Foretold(
        strategy.name,
        case,
        phase,
        counts,
        reason=reason,
        assumption=ONE_KERNEL if assumed else "",
        copies=copies,
    )


ONE_KERNEL = (
    "torch's attention is taken for one fused kernel; where it splits the context, as for few "
    "sequences, it launches another that merges"
)
"""What is assumed of scaled_dot_product_attention."""


def _refused(strategy: Strategy, case: Case, *, hip: bool) -> str | None:
    """Why the strategy can't do the case on a GPU, whatever is installed on this machine."""
    version: Any = torch.version
    own = version.hip
    version.hip = "predicted" if hip else None
    try:
        with pretending():
            return why_unsupported(strategy, case, torch.device("cuda"))
    finally:
        version.hip = own


def _narrow(case: Case) -> Case:
    """The case with rows as narrow as can be, where no launch depends on their width.

    Attention that is split over contexts, and then merged, is split by how many heads there are.
    """
    if not case.has_pools or case.op in OF_CONTEXTS:
        return case
    heads = min(case.num_kv_heads, 2)  # rows of one head may be contiguous where others aren't
    return dataclasses.replace(
        case,
        num_heads=heads,
        num_kv_heads=heads,
        rope_dim=_NARROW if case.layout == "MLA" else case.rope_dim,
        head_dim=2 * _NARROW,
        # Of codes it matters whether rows are float32 already.
        dtype=case.dtype if case.quantised else "fp32",
    )


def method_of(strategy: Strategy, phase: Phase) -> Callable[[Workload, Any], object]:
    """What a phase other than prepare calls; run where it is prepare."""
    if phase == "run" or phase == "prepare":  # noqa: PLR1714 - what is left is a part
        return strategy.run
    return functools.partial(strategy.run_part, phase)


@functools.lru_cache(maxsize=4096)
def _predicted(
    strategy: Strategy, case: Case, phase: Phase, *, fused: bool
) -> tuple[LaunchCounts | None, str, bool]:
    """The launches, or None with the reason; and whether torch's attention was taken as fused."""
    attention = FusedAttention() if fused else None
    try:
        with fake_cuda(attention):
            workload = build(case, torch.device("cuda"))
            if phase == "prepare":
                counts = predict_launches(lambda: strategy.prepare(workload))
            else:
                prepared = strategy.prepare(workload)
                method = method_of(strategy, phase)
                counts = predict_launches(lambda: method(workload, prepared))
    except Exception as error:  # noqa: BLE001 - a strategy may do what fake tensors can't; then it's not known
        first, *_ = str(error).strip().splitlines() or [""]
        return None, first or f"fake tensors can't run it: {type(error).__name__}", False
    return counts, "", attention is not None and attention.calls > 0


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
