"""Regression benchmarks: every strategy that can be timed here, in a few telling cases.

`make bench-regress` runs them; pytest-benchmark stores and compares (`--benchmark-autosave`,
`--benchmark-compare`). A strategy is proved correct before it is timed.
"""

import pytest
import torch

from kvbench import devices, oracle
from kvbench.axes import Axes
from kvbench.cases import Case
from kvbench.filling import fill
from kvbench.strategies import registry
from kvbench.strategies.base import Strategy
from kvbench.workload import build

DEVICE = devices.resolve("auto")
CASES = Axes.parse(["seq_len=1,128,2048"]).expand()

registry.load_builtin()


def _cells() -> list[tuple[Strategy, Case]]:
    return [
        (strategy, case)
        for strategy in registry.all_strategies()
        for case in CASES
        if case.op == strategy.op
    ]


@pytest.mark.parametrize(
    ("strategy", "case"),
    _cells(),
    ids=[f"{strategy.name}-{case.seq_len}" for strategy, case in _cells()],
)
def test_run(benchmark, strategy: Strategy, case: Case) -> None:
    reason = strategy.supports(case, DEVICE) or strategy.untimed(DEVICE)
    if reason:
        pytest.skip(reason)
    workload = build(case, DEVICE)
    assert oracle.check(strategy, workload) == ""
    fill(workload)
    prepared = strategy.prepare(workload)

    def run() -> None:
        strategy.run(workload, prepared)
        devices.synchronize(DEVICE)

    benchmark.group = f"{case.op} seq_len={case.seq_len}"
    benchmark.extra_info.update(
        case=case.fields(), device=str(DEVICE), torch=str(torch.__version__), nbytes=case.nbytes
    )
    benchmark(run)
