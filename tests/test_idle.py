"""Waiting until the other threads of this process sleep, and no longer than that."""

import threading
import time
from types import SimpleNamespace

import pytest

from kvbench.timing import idle


@pytest.fixture
def clock(monkeypatch):
    """Time that only sleeping takes."""
    now = SimpleNamespace(s=0.0, slept=[])

    def sleep(seconds):
        now.slept.append(seconds)
        now.s += seconds

    monkeypatch.setattr(idle, "time", SimpleNamespace(monotonic=lambda: now.s, sleep=sleep))
    return now


@pytest.fixture
def threads(tmp_path, monkeypatch):
    """A process whose threads' states a test writes, by thread."""
    monkeypatch.setattr(idle, "_TASKS", tmp_path)

    def say(**states):
        for name, state in states.items():
            folder = tmp_path / name.removeprefix("t")
            folder.mkdir(exist_ok=True)
            (folder / "stat").write_text(f"1 (a (strange) R name) {state} 0 0\n")

    return say


def test_where_all_sleep_nothing_is_waited_for(clock, threads):
    threads(t1="S", t2="D", t3="Z")
    idle.wait_until_idle()
    assert clock.slept == []


def test_a_thread_that_runs_is_waited_for_until_it_sleeps(clock, threads, monkeypatch):
    threads(t1="S", t2="R")
    looks = []

    def running(tasks, own, look=idle._running):
        looks.append(own)
        if len(looks) == 4:
            threads(t2="S")
        return look(tasks, own)

    monkeypatch.setattr(idle, "_running", running)
    idle.wait_until_idle()
    assert len(looks) == 4
    assert 0 < clock.s < idle.LONGEST_S


def test_a_thread_that_works_on_is_waited_for_no_longer_than_the_limit(clock, threads):
    threads(t2="R")
    idle.wait_until_idle(0.01)
    assert 0.01 <= clock.s < 0.011


def test_this_thread_is_not_waited_for(clock, threads):
    threads(**{f"t{threading.get_native_id()}": "R"})
    idle.wait_until_idle()
    assert clock.slept == []


def test_a_thread_that_has_ended_meanwhile_is_no_longer_there(clock, threads, tmp_path):
    threads(t1="S")
    (tmp_path / "7").mkdir()
    idle.wait_until_idle()
    assert clock.slept == []


def test_where_threads_are_not_seen_a_while_is_waited(clock, tmp_path, monkeypatch):
    monkeypatch.setattr(idle, "_TASKS", tmp_path / "none")
    idle.wait_until_idle()
    idle.wait_until_idle(0.001)
    assert clock.slept == [idle._WHERE_UNSEEN_S, 0.001]


@pytest.mark.skipif(not idle._TASKS.exists(), reason="threads' states are Linux's")
def test_a_real_thread_that_sleeps_is_not_waited_for():
    ended = threading.Event()
    thread = threading.Thread(target=ended.wait)
    thread.start()
    try:
        own = str(threading.get_native_id())
        deadline = time.monotonic() + 10
        state = idle._TASKS / str(thread.native_id)
        while any(idle._running([state], own)) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert list(idle._running([state], own)) == [False]
    finally:
        ended.set()
        thread.join()
