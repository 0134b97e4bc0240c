"""Which core a thread begins on."""

import os

import pytest

from kvbench.timing.cores import move_to_core


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system has no such call")
@pytest.mark.parametrize(("number", "core"), [(0, 1), (1, 4), (2, 7), (3, 1), (7, 4)])
def test_a_thread_is_moved_and_may_leave_again(monkeypatch, number, core):
    usable = {4, 7, 1}
    asked = []
    monkeypatch.setattr(os, "sched_getaffinity", lambda thread: {0: set(usable)}[thread])
    monkeypatch.setattr(os, "sched_setaffinity", lambda *given: asked.append(given))
    move_to_core(number)
    assert asked == [(0, {core}), (0, usable)]


def test_what_it_may_use_is_what_it_was():
    before = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
    move_to_core(1)
    after = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
    assert after == before


def test_where_there_is_no_such_call_nothing_is_done(monkeypatch):
    monkeypatch.delattr(os, "sched_setaffinity", raising=False)
    move_to_core(1)
