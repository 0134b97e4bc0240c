"""Did it get slower? A test per strategy, case and phase of the preset "regress".

On a GPU it is "regress-gpu", which has larger cases, too.

`make bench-regress` runs them. kvbench's clocks do the measuring, as in `kvbench run --preset
regress`: the selected strategies of a case are proved correct, timed in interleaved rounds, and
checked again, in this process. Each test then hands its samples, seconds per call by the wall
clock, to pytest-benchmark, which saves and compares them. Its own options of how to measure
(`--benchmark-max-time`, `--benchmark-min-rounds`, …) therefore have no effect; `--kvbench-device`,
`--kvbench-load` and `--kvbench-cell-seconds` do.

With `--benchmark-disable`, the default of a bare `pytest`, strategies are checked, nothing is
timed.
"""

import pytest
from suite import RecordedClock, cell_id, cells, extra_info, settle, timed

CLOCK = RecordedClock()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    # Words and numbers: pytest-benchmark writes a test's parameters to its file.
    found = cells()
    metafunc.parametrize(
        ("strategy", "phase", "case"), found, ids=[cell_id(each) for each in found]
    )


# A test that fails has no time, and pytest-benchmark would warn of it.
@pytest.mark.filterwarnings("ignore:Benchmark fixture was not used")
@pytest.mark.benchmark(timer=CLOCK)
def test_time(benchmark, suite, strategy: str, phase: str, case: str) -> None:
    cell = (strategy, phase, case)
    if not benchmark.enabled:
        status, reason = suite.check(cell)
        if status != "checked":
            settle(status, reason, suite.repro(cell))
        return
    rows = suite.rows(cell)
    row = timed(rows)
    benchmark.group = f"{case} {phase}"
    benchmark.extra_info.update(extra_info(rows))
    CLOCK.replay(benchmark, row.measurement.samples_s)
    suite.hand_over(cell)
