"""Waiting until a process leaves the cores to others, as the system shows its threads."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from kvbench.timing import idle
from kvbench.timing.idle import LONGEST_S, wait_until_idle


@dataclass
class Tasks:
    """The threads of this process in a folder, and the time that it waits for them."""

    folder: Path
    now_s: float = 0.0
    slept_s: list[float] = field(default_factory=list)
    happens: list[Callable] = field(default_factory=list)
    """What the threads do in each wait, in turn."""

    def set(self, number: int, state: str, name: bytes = b"python") -> None:
        task = self.folder / str(number)
        task.mkdir(exist_ok=True)
        (task / "stat").write_bytes(b"%d (%b) %b 1 2 R R\n" % (number, name, state.encode()))

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.slept_s.append(seconds)
        self.now_s += seconds
        if self.happens:
            self.happens.pop(0)()


@pytest.fixture
def tasks(tmp_path, monkeypatch) -> Tasks:
    made = Tasks(tmp_path / "task")
    made.folder.mkdir()
    monkeypatch.setattr(idle, "_TASKS", made.folder)
    monkeypatch.setattr(idle, "time", made)
    made.set(threading.get_native_id(), "R")  # it is the one that looks
    return made


def test_who_is_idle_is_not_waited_for(tasks):
    for number, state in enumerate("SDTZIt", start=1):
        tasks.set(number, state)
    wait_until_idle()
    assert tasks.slept_s == []


@pytest.mark.parametrize(
    "name", [b"python", b"a b", b"pool) S 1", b"(R)", b") R ", b"", b"\xc3", b"a\nb"]
)
def test_a_thread_that_runs_is_waited_for_whatever_its_name(tasks, name):
    tasks.set(1, "R", name)
    tasks.set(2, "S", b") R 1")
    tasks.happens = [lambda: None, lambda: None, lambda: tasks.set(1, "S", name)]
    wait_until_idle()
    assert len(tasks.slept_s) == 3


def test_every_thread_is_waited_for(tasks):
    tasks.set(1, "R")
    tasks.set(2, "R")
    tasks.happens = [
        lambda: tasks.set(1, "S"),
        lambda: tasks.set(3, "R"),
        lambda: tasks.set(2, "S"),
        lambda: tasks.set(3, "S"),
    ]
    wait_until_idle()
    assert len(tasks.slept_s) == 4


def test_a_thread_that_has_ended_is_not_waited_for(tasks):
    tasks.set(1, "R")
    tasks.happens = [(tasks.folder / "1" / "stat").unlink]
    wait_until_idle()
    assert len(tasks.slept_s) == 1


@pytest.mark.parametrize("limit_s", [0.0, 0.01, LONGEST_S])
def test_a_thread_that_goes_on_is_waited_for_no_longer_than_the_limit(tasks, limit_s):
    tasks.set(1, "R")
    wait_until_idle(limit_s)
    assert limit_s <= tasks.now_s <= limit_s + 1e-3


def test_where_threads_are_not_shown_it_waits_a_while(tasks, monkeypatch):
    monkeypatch.setattr(idle, "_TASKS", tasks.folder / "none")
    wait_until_idle()
    wait_until_idle(0.001)
    assert tasks.slept_s == [0.02, 0.001]


def test_this_process_comes_to_rest():
    go_on = threading.Event()
    waiting = threading.Thread(target=go_on.wait)
    waiting.start()
    try:
        wait_until_idle(60.0)
    finally:
        go_on.set()
        waiting.join()
