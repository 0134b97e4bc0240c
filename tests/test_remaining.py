"""How long the rest takes, told from what is done."""

import itertools
import random
from collections import Counter

import pytest

from kvbench.analysis.remaining import Remaining
from kvbench.axes import Axes
from kvbench.cases import Case
from kvbench.presets import get_preset
from kvbench.sweep.order import in_order, shard_of

CASES = Axes.parse(["op=write,read", "seq_len=1:8192:*2", "batch=1,4"]).expand()


def takes(case: Case) -> float:
    """A machine that copies 2 GB/s, writes twice as slowly as it reads, and needs 2 s a case."""
    each = {"write": 60, "read": 30, "attend": 90, "index": 5, "step": 60}[case.op]
    return 2.0 + case.nbytes * each / 2e9 + case.tokens * 1e-3


@pytest.mark.parametrize("cases", [CASES, get_preset("cpu").cases(Axes(()))])
@pytest.mark.parametrize("seed", range(20))
def test_after_the_first_tenth_the_rest_is_known(cases, seed):
    order = in_order(cases, seed)
    tenth = len(order) // 10
    remaining = Remaining(order)
    noise = random.Random(seed)  # noqa: S311 - reproducible, not secret
    for case in order[:tenth]:
        left = remaining.done(case, takes(case) * noise.uniform(0.8, 1.25))
    assert left == pytest.approx(sum(map(takes, order[tenth:])), rel=0.3)


@pytest.mark.parametrize("seed", range(10))
def test_cases_that_a_busy_machine_makes_tens_of_times_as_long_count(seed):
    order = in_order(CASES, seed)
    noise = random.Random(seed)  # noqa: S311 - reproducible, not secret
    seconds = [takes(case) * noise.choice((1, 1, 30)) for case in order]
    half = len(order) // 2
    remaining = Remaining(order)
    for case, took in zip(order[:half], seconds, strict=False):
        left = remaining.done(case, took)
    assert sum(seconds[half:]) / 3 < left < 3 * sum(seconds[half:])


def test_nothing_is_left_in_the_end_and_time_is_taken_from_case_to_case(monkeypatch):
    now = [100.0]
    monkeypatch.setattr("kvbench.analysis.remaining.time.monotonic", lambda: now[0])
    cases = CASES[:3]
    remaining = Remaining(cases)
    for case in cases:
        now[0] += 5.0
        left = remaining.done(case)
    assert left == 0.0
    assert remaining._seconds == [5.0, 5.0, 5.0]


def test_the_first_case_alone_gives_a_number():
    remaining = Remaining(get_preset("cpu").cases(Axes(())))
    case = next(iter(remaining._left))
    assert remaining.done(case, 1.0) > 0


@pytest.mark.parametrize("count", [1, 2, 3, 8, 10])
def test_shards_have_every_case_once_and_equal_shares_of_the_bytes(count):
    cases = get_preset("gpu").cases(Axes(()))
    shards = [shard_of(cases, 5, number, count) for number in range(1, count + 1)]
    assert sorted(map(str, itertools.chain(*shards))) == sorted(map(str, cases))
    sizes = [sum(case.nbytes for case in shard) for shard in shards]
    shapes = Counter[tuple[object, ...]]()
    for case in cases:
        shapes[case.shape()] += case.nbytes
    assert max(sizes) - min(sizes) <= max(shapes.values()), "a shape is not cut"
    numbers = [len(shard) for shard in shards]
    assert max(numbers) <= 1.4 * min(numbers)


def test_the_order_is_random_and_the_seed_decides_it():
    assert in_order(CASES, 1) == in_order(CASES, 1)
    assert in_order(CASES, 1) != in_order(CASES, 2)
    assert sorted(map(str, in_order(CASES, 1))) == sorted(map(str, CASES))
    firsts = {in_order(CASES, seed)[0].seq_len for seed in range(40)}
    assert len(firsts) >= 8
