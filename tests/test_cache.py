"""Cold caches: flushes and rotations that are large enough, or say that they are not."""

import pytest

from kvbench.errors import InputError
from kvbench.timing.cache import (
    FLUSH_FACTOR,
    ROTATION_FACTOR,
    Flush,
    copies_to_rotate,
    last_level_cache_bytes,
    rotation,
)


def test_a_flush_touches_more_than_the_cache_holds(cpu):
    flush = Flush(cpu, 1 << 20)
    assert flush._buffer.numel() == FLUSH_FACTOR << 20
    flush()
    assert bool((flush._buffer == 1).all())


def test_a_flush_too_small_for_the_cache_is_refused(cpu):
    with pytest.raises(InputError, match="1048575 bytes for a cache of 1048576"):
        Flush(cpu, 1 << 20, (1 << 20) - 1)


def test_an_unknown_cache_cannot_be_flushed(cpu):
    with pytest.raises(InputError, match="doesn't say how large"):
        Flush(cpu, None)


@pytest.mark.parametrize("nbytes", [1 << 17, 100_000, 1 << 26])
def test_a_rotation_outgrows_the_cache(nbytes):
    cache = 1 << 24
    copies = copies_to_rotate(nbytes, cache)
    # The set that is used again was last used a whole rotation ago.
    assert (copies - 1) * nbytes >= ROTATION_FACTOR * cache


@pytest.mark.parametrize(
    ("nbytes", "cache", "reason"),
    [(8, 1 << 25, "sets of buffers"), (0, 1 << 25, "moves nothing"), (8, None, "doesn't say")],
)
def test_a_rotation_that_cannot_be_had_says_why(nbytes, cache, reason):
    assert reason in copies_to_rotate(nbytes, cache)


def test_calls_take_turns():
    seen = []
    call = rotation([lambda i=i: seen.append(i) for i in range(3)])
    for _ in range(7):
        call()
    assert sorted(seen[:3]) == [0, 1, 2]
    assert seen[:3] == seen[3:6]


def test_a_cpu_has_the_cache_that_the_system_reports(cpu):
    assert last_level_cache_bytes(cpu, 12345) == 12345
