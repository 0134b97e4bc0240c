"""Sampling in rounds, the wall clock, and the copy that bandwidth is held against."""

import gc
import itertools
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kvbench.timing import bandwidth, clocks, rounds
from kvbench.timing.clocks import WallClock, floor
from kvbench.timing.rounds import Sampling, StoppingRule, SubjectError, calls_for, sample_rounds

STEADY = StoppingRule(min_rounds=6, max_rounds=50, cell_seconds=10.0, sample_seconds=1e-3)


@dataclass
class SimulatedClock:
    """A clock in simulated time. Each subject has its own seconds per call, in turn."""

    least_calls = 1

    name: str = "simulated"
    now_s: float = 0.0
    cycles: dict[Callable, itertools.cycle] = field(default_factory=dict)
    taken: list[tuple[Callable, int]] = field(default_factory=list)

    def subject(self, *seconds_per_call: float, does: Callable = lambda: None) -> Callable:
        def call() -> None:
            does()

        self.cycles[call] = itertools.cycle(seconds_per_call)
        return call

    def sample(self, call: Callable, calls: int) -> float:
        call()
        seconds = next(self.cycles[call])
        self.now_s += seconds * calls
        self.taken.append((call, calls))
        return seconds

    def most_calls(self, launches: int) -> None:
        del launches


@pytest.fixture
def clock(monkeypatch) -> SimulatedClock:
    simulated = SimulatedClock()
    # The deadline is in the same time.
    monkeypatch.setattr(rounds, "time", SimpleNamespace(perf_counter=lambda: simulated.now_s))
    return simulated


def noisy(clock: SimulatedClock, count: int) -> dict[str, Callable]:
    """Subjects whose median's interval never gets narrow."""
    return {f"s{i}": clock.subject(1e-3, 3e-3) for i in range(count)}


def rounds_taken(clock: SimulatedClock, subjects: dict[str, Callable], count: int) -> list[list]:
    """The names of every round, in the order they were sampled in."""
    names = {call: name for name, call in subjects.items()}
    order = [names[call] for call, _ in clock.taken][-count * len(subjects) :]
    return [order[i : i + len(subjects)] for i in range(0, len(order), len(subjects))]


def test_every_subject_is_sampled_once_a_round(clock):
    subjects = noisy(clock, 4)
    found = sample_rounds(subjects, clock, STEADY, seed=0)
    count = len(found["s0"].samples_s)
    assert count == 50
    assert [sorted(order) for order in rounds_taken(clock, subjects, count)] == [
        sorted(subjects)
    ] * count


def test_all_subjects_have_as_many_samples_as_rounds(clock):
    subjects = {**noisy(clock, 2), "steady": clock.subject(5e-3), "quick": clock.subject(1e-7)}
    found = sample_rounds(subjects, clock, STEADY, seed=0)
    assert list(found) == list(subjects)
    assert {len(sampling.samples_s) for sampling in found.values()} == {50}
    assert len({sampling.stopped_by for sampling in found.values()}) == 1


def orders(clock: SimulatedClock, seed: int) -> list[list[str]]:
    clock.taken.clear()
    subjects = noisy(clock, 3)
    sample_rounds(subjects, clock, STEADY, seed)
    return rounds_taken(clock, subjects, 50)


def test_the_order_varies_from_round_to_round_and_comes_from_the_seed(clock):
    first = orders(clock, 1)
    assert {tuple(order) for order in first} == set(itertools.permutations(("s0", "s1", "s2")))
    assert orders(clock, 1) == first
    assert orders(clock, 2) != first


def test_samples_are_kept_in_the_order_of_the_rounds(clock):
    # Each sample taken of it is a microsecond longer than the last.
    subject = clock.subject(*(n * 1e-6 for n in range(1000, 1100)))
    found = sample_rounds({"grows": subject}, clock, STEADY, seed=0)["grows"]
    first = found.samples_s[0]
    assert found.samples_s == pytest.approx(
        [first + n * 1e-6 for n in range(len(found.samples_s))], abs=1e-12
    )


def test_sampling_stops_as_soon_as_it_is_precise(clock):
    found = sample_rounds({"steady": clock.subject(1e-3)}, clock, STEADY, seed=0)["steady"]
    assert found == Sampling((1e-3,) * 6, found.calls_per_sample, found.estimate, "precision")
    assert found.estimate.relative_half_width == 0


def test_one_imprecise_subject_keeps_all_going(clock):
    subjects = {"steady": clock.subject(1e-3), **noisy(clock, 1)}
    found = sample_rounds(subjects, clock, STEADY, seed=0)
    assert found["steady"].stopped_by == "rounds"
    assert len(found["steady"].samples_s) == 50


def test_sampling_stops_in_the_first_round_that_ends_after_its_time(clock):
    subjects = noisy(clock, 2)
    rule = StoppingRule(min_rounds=2, max_rounds=1000, cell_seconds=0.05, sample_seconds=1e-9)
    found = sample_rounds(subjects, clock, rule, seed=0)
    assert {sampling.stopped_by for sampling in found.values()} == {"time"}
    assert {sampling.calls_per_sample for sampling in found.values()} == {1}
    per_round = [sum(times) for times in zip(*(s.samples_s for s in found.values()), strict=True)]
    # The time is per subject.
    assert sum(per_round) >= 2 * rule.cell_seconds - 1e-9
    assert sum(per_round[:-1]) < 2 * rule.cell_seconds


@pytest.mark.parametrize("least", [2, 3, 10])
def test_the_least_rounds_are_made_though_there_is_no_time(clock, least):
    rule = StoppingRule(min_rounds=least, max_rounds=1000, cell_seconds=0.0)
    found = sample_rounds(noisy(clock, 2), clock, rule, seed=0)
    assert {(s.stopped_by, len(s.samples_s)) for s in found.values()} == {("time", least)}


def test_the_rounds_run_out(clock):
    found = sample_rounds(noisy(clock, 1), clock, STEADY, seed=0)["s0"]
    assert (found.stopped_by, len(found.samples_s)) == ("rounds", STEADY.max_rounds)


def test_the_estimate_is_that_of_the_samples(clock):
    found = sample_rounds(noisy(clock, 1), clock, STEADY, seed=0)["s0"]
    assert set(found.samples_s) == {1e-3, 3e-3}
    assert (found.estimate.low, found.estimate.high) == (1e-3, 3e-3)


def test_all_samples_of_a_subject_have_as_many_calls(clock):
    subjects = {"quick": clock.subject(1e-6), "slow": clock.subject(1e-2)}
    found = sample_rounds(subjects, clock, STEADY, seed=0)
    sampled = clock.taken[-2 * 6 :]
    for name, call in subjects.items():
        assert {calls for c, calls in sampled if c is call} == {found[name].calls_per_sample}
    assert found["quick"].calls_per_sample >= 1000
    assert found["slow"].calls_per_sample == 1


@pytest.fixture
def collector():
    enabled = gc.isenabled()
    gc.enable()
    yield
    (gc.enable if enabled else gc.disable)()


@pytest.mark.usefixtures("collector")
def test_no_garbage_is_collected_while_sampling(clock):
    seen = []
    subject = clock.subject(1e-3, does=lambda: seen.append(gc.isenabled()))
    sample_rounds({"subject": subject}, clock, STEADY, seed=0)
    assert set(seen) == {False}
    assert gc.isenabled()


@pytest.mark.usefixtures("collector")
@pytest.mark.parametrize("last", [1, 5])
def test_collecting_begins_again_when_a_subject_raises(clock, last):
    calls = itertools.count(1)

    def fail() -> None:
        if next(calls) == last:
            raise RuntimeError("out of luck")

    subject = clock.subject(1e-3, does=fail)
    with pytest.raises(SubjectError) as failure:
        sample_rounds({"subject": subject}, clock, STEADY, seed=0)
    assert failure.value.subject == "subject"
    assert str(failure.value.__cause__) == "out of luck"
    assert gc.isenabled()


@pytest.mark.usefixtures("collector")
def test_a_collector_that_was_off_stays_off(clock):
    gc.disable()
    sample_rounds({"subject": clock.subject(1e-3)}, clock, STEADY, seed=0)
    assert not gc.isenabled()


durations_s = st.floats(1e-9, 1.0)


@given(durations_s, st.floats(1e-5, 1e-2))
def test_calls_fill_a_sample_and_less_than_two(seconds_per_call, sample_seconds):
    clock = SimulatedClock()
    calls = calls_for(clock, clock.subject(seconds_per_call), sample_seconds)
    assert calls.bit_count() == 1
    assert calls * seconds_per_call >= sample_seconds
    assert calls == 1 or calls / 2 * seconds_per_call < sample_seconds


@given(durations_s, st.integers(1, 2000))
def test_no_sample_has_more_calls_than_its_clock_takes(seconds_per_call, most):
    clock = SimulatedClock()
    call = clock.subject(seconds_per_call)
    calls = calls_for(clock, call, 5e-4, most)
    assert calls == min(calls_for(clock, call, 5e-4), most)
    assert calls_for(clock, call, 1e-9, most) == 1


@given(durations_s, st.floats(2, 1000))
def test_a_hiccup_does_not_shorten_a_sample(seconds_per_call, longer):
    clock = SimulatedClock()
    steady = clock.subject(seconds_per_call)
    hiccups = clock.subject(seconds_per_call, seconds_per_call * longer, seconds_per_call)
    assert calls_for(clock, hiccups, 5e-4) == calls_for(clock, steady, 5e-4)


@given(st.lists(st.floats(1e-9, 1.0), min_size=1, max_size=20))
def test_the_calls_of_a_sample_are_found_whatever_the_noise(seconds_per_call):
    clock = SimulatedClock()
    calls = calls_for(clock, clock.subject(*seconds_per_call), 5e-4)
    assert 1 <= calls <= 10 * 5e-4 * 1.1 / min(seconds_per_call) + 2


def test_a_clock_too_coarse_for_one_call_still_fills_a_sample():
    class Coarse:
        """Ticks once a millisecond: a few calls of a microsecond take no time at all."""

        name = "coarse"
        least_calls = 1

        def sample(self, call: Callable, calls: int) -> float:
            call()
            return calls // 1000 * 1e-3 / calls

    assert calls_for(Coarse(), lambda: None, 5e-4) >= 1000


def test_the_wall_clock_counts_calls_and_gives_seconds_of_one(monkeypatch, cpu):
    now = SimpleNamespace(ns=10**18)
    counted = Counter()

    def call() -> None:
        counted["calls"] += 1
        now.ns += 250

    monkeypatch.setattr(clocks, "time", SimpleNamespace(perf_counter_ns=lambda: now.ns))
    assert WallClock(cpu).sample(call, 8) == 250e-9
    assert counted["calls"] == 8
    assert WallClock(cpu).sample(call, 1) == 250e-9
    assert counted["calls"] == 9


def test_the_wall_clock_waits_for_the_device_before_it_starts_and_before_it_stops(monkeypatch, cpu):
    events = []
    times = iter((0, 4000))

    def now() -> int:
        events.append("clock")
        return next(times)

    monkeypatch.setattr(clocks, "time", SimpleNamespace(perf_counter_ns=now))
    monkeypatch.setattr(clocks, "synchronize", lambda _: events.append("wait"))
    assert WallClock(cpu).sample(lambda: events.append("call"), 2) == 2e-6
    assert events == ["wait", "clock", "call", "call", "wait", "clock"]


def test_the_floor_is_an_empty_call_and_far_below_a_call_that_works(cpu):
    clock = WallClock(cpu)
    numbers = list(range(20_000))
    empty = floor(clock, samples=9)
    assert 0 < empty.call_s < clock.sample(lambda: sum(numbers), 20) / 10
    # A sample of one call holds the readings whole, one of many shares them.
    assert empty.at(1) > empty.at(1000) > empty.call_s


def test_the_floor_tells_a_sample_from_its_calls():
    class Listed:
        name = "listed"
        least_calls = 1

        def __init__(self) -> None:
            self.hiccups = itertools.cycle((0.0, 0.0, 5.0))

        def most_calls(self, _: object) -> None:
            return None

        def sample(self, call: Callable, calls: int) -> float:
            call()
            return 2.0 + 300.0 / calls + next(self.hiccups)

    found = floor(Listed(), samples=9)
    assert (found.call_s, found.sample_s) == (pytest.approx(2.0), pytest.approx(300.0))
    assert found.at(10) == pytest.approx(32.0)


@pytest.fixture
def small_buffers(monkeypatch) -> int:
    size = (1 << 16) + 13
    monkeypatch.setattr(bandwidth, "_CPU_BYTES", size)
    return size


def test_the_best_copy_is_taken_and_named(monkeypatch, cpu, small_buffers):
    now = SimpleNamespace(ns=0)
    made = Counter()

    def copy(how: str, *times_ns: int) -> tuple[str, Callable]:
        left = itertools.cycle(times_ns)

        def call() -> None:
            made[how] += 1
            now.ns += next(left)

        return how, call

    copies = [copy("first", 4000), copy("best", 9000, 2000, 5000), copy("last", 3000)]
    monkeypatch.setattr(bandwidth, "_copies", lambda *_: iter(copies))
    monkeypatch.setattr(bandwidth, "time", SimpleNamespace(perf_counter_ns=lambda: now.ns))
    best = bandwidth.measure_copy_bandwidth(cpu)
    assert best.how == "best"
    assert best.nbytes == 2 * small_buffers
    assert best.bytes_per_s == pytest.approx(2 * small_buffers / 2e-6)
    assert len(set(made.values())) == 1
    assert made["best"] > 1


def test_every_copy_copies_every_byte(monkeypatch, cpu):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    source = torch.arange(10_007).to(torch.uint8)
    target = torch.empty_like(source)
    hows = []
    with bandwidth.ThreadPoolExecutor(3) as pool:
        for how, copy in bandwidth._copies(target, source, pool):
            target.zero_()
            copy()
            assert torch.equal(target, source)
            hows.append(how)
    assert cpu == source.device
    assert hows == ["torch copy_", "memmove, 1 thread", "memmove, 3 threads"]


def test_a_real_copy_has_a_bandwidth(cpu, small_buffers):
    best = bandwidth.measure_copy_bandwidth(cpu)
    assert best.bytes_per_s > 0
    assert best.nbytes == 2 * small_buffers
    assert best.how.startswith(("torch copy_", "memmove"))


def test_the_buffers_leave_room_where_memory_is_short(monkeypatch, cpu, small_buffers):
    monkeypatch.setattr(bandwidth.devices, "free_bytes", lambda _: 8000)
    best = bandwidth.measure_copy_bandwidth(cpu)
    assert best.nbytes == 2 * 1000 < 2 * small_buffers


def test_without_subjects_nothing_is_sampled(clock):
    assert sample_rounds({}, clock, STEADY, seed=0) == {}
    assert clock.taken == []


def test_subjects_that_are_about_as_fast_have_as_many_calls():
    found = {"a": (1.0e-6, 512), "b": (1.1e-6, 256), "c": (1e-4, 8), "d": (1.2e-4, 4)}
    assert rounds.equal_calls(found) == {"a": 512, "b": 512, "c": 8, "d": 8}
    assert rounds.equal_calls({}) == {}


def test_calls_that_are_known_are_used_and_not_looked_for(clock):
    subjects = {"known": clock.subject(1e-6), "found": clock.subject(1e-6)}
    found = sample_rounds(subjects, clock, STEADY, seed=0, calls={"known": 3})
    assert (found["known"].calls_per_sample, found["found"].calls_per_sample) == (3, 1024)
    of_known = [calls for call, calls in clock.taken if call is subjects["known"]]
    # One more than its samples, which warms it up.
    assert of_known == [3] * (1 + len(found["known"].samples_s))


def test_known_calls_of_others_do_not_change_what_is_found(clock):
    subjects = {"known": clock.subject(1e-6), "found": clock.subject(1.2e-6)}
    alone = sample_rounds({"found": subjects["found"]}, clock, STEADY, seed=0)
    both = sample_rounds(subjects, clock, STEADY, seed=0, calls={"known": 7})
    assert both["found"].calls_per_sample == alone["found"].calls_per_sample


def test_what_is_alike_has_as_many_calls_unless_it_takes_very_long(clock):
    times_s = {"a": 1e-6, "b": 5e-6, "slow": 1e-3, "apart": 5e-6}
    subjects = {name: clock.subject(each) for name, each in times_s.items()}
    found = sample_rounds(
        subjects, clock, STEADY, seed=0, alike=lambda name: "x" if name != "apart" else name
    )
    counts = {name: sampling.calls_per_sample for name, sampling in found.items()}
    assert counts["b"] == counts["a"] > counts["apart"]
    assert counts["slow"] == 1


def test_what_is_like_a_known_one_has_as_many_calls(clock):
    subjects = {"known": clock.subject(1e-6), "found": clock.subject(1e-6)}
    found = sample_rounds(
        subjects, clock, STEADY, seed=0, calls={"known": 2048}, alike=lambda _: "both"
    )
    assert {sampling.calls_per_sample for sampling in found.values()} == {2048}


@pytest.mark.parametrize("at", [1, 2, 30])
def test_what_raises_is_told_of_and_the_others_have_whole_rounds(clock, at):
    calls = itertools.count(1)
    error = RuntimeError("out of luck")

    def fail() -> None:
        if next(calls) == at:
            raise error

    subjects = {**noisy(clock, 2), "fails": clock.subject(1e-3, does=fail)}
    told = []
    found = rounds.sample_those_that_work(
        subjects, clock, STEADY, 0, lambda name, cause: told.append((name, cause))
    )
    assert told == [("fails", error)]
    assert list(found) == ["s0", "s1"]
    assert {len(sampling.samples_s) for sampling in found.values()} == {50}
    del subjects["fails"]
    del clock.taken[: -2 * 50]
    in_rounds = rounds_taken(clock, subjects, 50)
    assert [sorted(order) for order in in_rounds] == [["s0", "s1"]] * 50


def test_nothing_is_sampled_where_nothing_works(clock):
    def fail() -> None:
        raise RuntimeError("out of luck")

    subjects = {name: clock.subject(1e-3, does=fail) for name in ("one", "two")}
    told = []
    assert (
        rounds.sample_those_that_work(
            subjects, clock, STEADY, 0, lambda name, cause: told.append((name, str(cause)))
        )
        == {}
    )
    assert told == [("one", "out of luck"), ("two", "out of luck")]


def test_what_it_is_told_may_end_it(clock):
    def fail() -> None:
        raise RuntimeError("out of luck")

    def end(_: str, cause: BaseException) -> None:
        raise cause

    subjects = {"one": clock.subject(1e-3, does=fail), "two": clock.subject(1e-3)}
    with pytest.raises(RuntimeError, match="out of luck"):
        rounds.sample_those_that_work(subjects, clock, STEADY, 0, end)
