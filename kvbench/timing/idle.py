"""Waiting until this process leaves the cores to others.

The threads of an OpenMP pool spin for some milliseconds after their work, in case there is more of
it soon: whoever is measured next, in another process, would meet them on its cores.
"""

import threading
import time
from collections.abc import Iterable
from pathlib import Path

_TASKS = Path("/proc/self/task")
_LOOK_EVERY_S = 5e-4
LONGEST_S = 0.05
"""Threads that still run after so long do work of their own, which is part of what is measured."""
_WHERE_UNSEEN_S = 0.02
"""Twice what libgomp's threads spin, where a thread's state can't be seen."""


def wait_until_idle(limit_s: float = LONGEST_S) -> None:
    """Return when every other thread of this process sleeps, or after `limit_s` seconds."""
    if not _TASKS.exists():
        time.sleep(min(limit_s, _WHERE_UNSEEN_S))
        return
    own = str(threading.get_native_id())
    deadline = time.monotonic() + limit_s
    while any(_running(_TASKS.iterdir(), own)) and time.monotonic() < deadline:
        time.sleep(_LOOK_EVERY_S)


def _running(tasks: Iterable[Path], own: str) -> Iterable[bool]:
    for task in tasks:
        if task.name != own:
            try:
                stat = (task / "stat").read_bytes()
            except OSError:
                continue  # it has ended
            # The state follows the name, which is in parentheses and may have any bytes.
            yield stat.rpartition(b")")[2].split()[0] == b"R"
