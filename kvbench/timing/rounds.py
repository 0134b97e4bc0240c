"""Interleaved sampling: every subject once a round, in an order drawn anew, until it's enough.

Drift (a clock that steps down, a neighbour that wakes up) then hits all subjects alike, and the
ratio within a round stays honest.
"""

import gc
import math
import random
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from kvbench.analysis.statistics import Estimate, median_interval
from kvbench.results import StoppedBy
from kvbench.timing.clocks import Clock

K = TypeVar("K", bound=Hashable)

_CHECKED_ROUNDS_GROWTH = 1.4
_ABOUT_AS_FAST = 1.5
_LONGEST_ALIKE = 16
"""Times the usual length of a sample: no longer does one get to have as many calls as another."""
_READINGS = 3
_RESAMPLES_WHILE_SAMPLING = 499


@dataclass(frozen=True, slots=True)
class StoppingRule:
    """When a case's sampling ends: precise enough, or out of time, or out of rounds."""

    relative_half_width: float = 0.02
    """Precise enough: every subject's interval is within this share of its median."""
    min_rounds: int = 10
    max_rounds: int = 100
    cell_seconds: float = 0.2
    """Most seconds of sampling per subject, min_rounds permitting."""
    sample_seconds: float = 5e-4
    """Least length of a sample: calls are repeated to fill it."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """One subject's samples."""

    samples_s: tuple[float, ...]
    calls_per_sample: int
    estimate: Estimate
    stopped_by: StoppedBy


class SubjectError(Exception):
    """A subject raised while it was sampled; the cause is what it raised.

    Args:
        subject: Its name.
    """

    def __init__(self, subject: Hashable) -> None:
        super().__init__(subject)
        self.subject = subject


def calls_for(
    clock: Clock, call: Callable[[], object], sample_seconds: float, most: int | None = None
) -> int:
    """The calls that fill a sample, a power of two but no more than `most`.

    Two strategies that are equally fast must get equally long samples: the median of longer ones
    holds more of the machine's hiccups, and the two would seem to differ. So the number is coarse,
    and taken from the shortest of several readings. Finding it warms the call up.
    """
    clock.sample(call, clock.least_calls)
    calls = clock.least_calls
    while most is None or calls < most:
        shortest = min(clock.sample(call, calls) for _ in range(_READINGS)) * calls
        if shortest >= sample_seconds:
            break
        calls = min(calls * 2, most or calls * 2)
    return calls


def equal_calls(found: Mapping[K, tuple[float, int]]) -> dict[K, int]:
    """The calls of each subject, those that are about as fast having as many.

    Two that lie on either side of a power of two would else get samples of which one is twice as
    long as the other.

    Args:
        found: By subject, seconds per call and calls.
    """
    calls: dict[K, int] = {}
    faster_s, faster_calls = 0.0, 0
    for name, (per_call_s, own) in sorted(found.items(), key=lambda item: item[1][0]):
        calls[name] = faster_calls if per_call_s < _ABOUT_AS_FAST * faster_s else own
        faster_s, faster_calls = per_call_s, calls[name]
    return calls


def sample_those_that_work(
    subjects: Mapping[K, Callable[[], object]],
    clock: Clock,
    rule: StoppingRule,
    seed: int,
    on_failure: Callable[[K, BaseException], object],
    **options: Any,  # noqa: ANN401 - sample_rounds' own
) -> dict[K, Sampling]:
    """Sample all subjects but those that raise, which are told of.

    The rest are then sampled anew, so that their rounds stay complete.

    Args:
        subjects: As for `sample_rounds`.
        clock: As there.
        rule: As there.
        seed: As there.
        on_failure: Called with a subject and what it raised.
        **options: As there.
    """
    left = dict(subjects)
    while left:
        try:
            return sample_rounds(left, clock, rule, seed, **options)
        except SubjectError as failure:
            subject = next(name for name in left if name == failure.subject)
            del left[subject]
            on_failure(subject, failure.__cause__ or failure)
    return {}


def sample_rounds(
    subjects: Mapping[K, Callable[[], object]],
    clock: Clock,
    rule: StoppingRule,
    seed: int,
    *,
    before: Callable[[], object] | None = None,
    most_calls: Mapping[K, int | None] | None = None,
    calls: Mapping[K, int] | None = None,
    alike: Callable[[K], Hashable] = lambda name: name,
    on_turn: Callable[[K], object] = lambda _: None,
) -> dict[K, Sampling]:
    """Sample every subject once a round, in a random order, until the rule ends it.

    Args:
        subjects: What to call, by name.
        clock: What measures a call.
        rule: When to stop. All subjects stop together, so that their rounds match.
        seed: Of the order.
        before: Called before each sample, outside its time, as a flush of the cache; samples then
            have one call, since a second would find what the first left.
        most_calls: By subject, the most calls of a sample.
        calls: By subject, the calls of a sample where they are known; found for the others.
        alike: By subject, what it is one of: those that are the same get as many calls, however
            fast each is.
        on_turn: Called before each sample, outside its time, with the subject whose turn it is.

    Raises:
        SubjectError: A subject raised.
    """
    if not subjects:
        return {}
    limits = most_calls or {}
    order = list(subjects)
    rng = random.Random(seed)  # noqa: S311 - reproducible, not secret
    samples: dict[K, list[float]] = {name: [] for name in order}
    collecting = gc.isenabled()
    gc.disable()  # a collection in a sample is the harness's time, not the subject's
    try:
        most = {name: 1 if before else limits.get(name) for name in subjects}
        counts = _find_calls(
            subjects, clock, rule.sample_seconds, most, calls or {}, alike, on_turn
        )
        deadline = time.perf_counter() + rule.cell_seconds * len(order)
        rounds, next_look = 0, rule.min_rounds
        while True:
            rng.shuffle(order)
            for name in order:
                if before is not None:
                    before()
                on_turn(name)
                with _blaming(name):
                    samples[name].append(clock.sample(subjects[name], counts[name]))
            rounds += 1
            if rounds < rule.min_rounds:
                continue
            ended = _ended(samples.values(), rounds, next_look, deadline, rule)
            if ended:
                break
            if rounds == next_look:
                next_look = math.ceil(next_look * _CHECKED_ROUNDS_GROWTH)
    finally:
        if collecting:
            gc.enable()
    return {
        name: Sampling(tuple(samples[name]), counts[name], median_interval(samples[name]), ended)
        for name in subjects
    }


def _find_calls(
    subjects: Mapping[K, Callable[[], object]],
    clock: Clock,
    sample_seconds: float,
    most: Mapping[K, int | None],
    known: Mapping[K, int],
    alike: Callable[[K], Hashable],
    on_turn: Callable[[K], object],
) -> dict[K, int]:
    """The calls of each subject's samples. Finding them, or a sample of known ones, warms it up."""
    found: dict[K, tuple[float, int]] = {}
    for name, call in subjects.items():
        on_turn(name)
        with _blaming(name):
            own = known.get(name) or calls_for(clock, call, sample_seconds, most[name])
            found[name] = (clock.sample(call, own), own)
    equal = equal_calls({name: each for name, each in found.items() if name not in known})
    # A sample's first calls are slower than its last: two that are held against each other need as
    # many, even where one was in luck while they were counted.
    largest = {alike(name): count for name, count in known.items()}
    for name, count in equal.items():
        largest[alike(name)] = max(largest.get(alike(name), 0), count)
    counts = {name: known[name] for name in found if name in known}
    for name, own in equal.items():
        count = largest[alike(name)]
        if count * found[name][0] > _LONGEST_ALIKE * max(sample_seconds, own * found[name][0]):
            count = own  # so much slower that no bias could make up for it
        counts[name] = min(count, most[name] or count)
    return counts


@contextmanager
def _blaming(subject: Hashable) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        raise SubjectError(subject) from error


def _ended(
    samples: Iterable[list[float]],
    rounds: int,
    next_look: int,
    deadline: float,
    rule: StoppingRule,
) -> StoppedBy | None:
    # The bootstrap costs more than a round: look at rounds that grow apart.
    if rounds == next_look and all(
        median_interval(s, resamples=_RESAMPLES_WHILE_SAMPLING).relative_half_width
        <= rule.relative_half_width
        for s in samples
    ):
        return "precision"
    if time.perf_counter() >= deadline:
        return "time"
    if rounds >= rule.max_rounds:
        return "rounds"
    return None
