"""Which core a thread begins on.

Two processes that take turns each stay on the core where they were last: whatever slows one core
down for a while (another guest of the machine on its sibling, say) would then slow one of them.
"""

import os


def move_to_core(number: int) -> None:
    """Let this thread go on with one of the cores that it may use; it may leave it again.

    Where the system has no such call, nothing is done.

    Args:
        number: Of the core among those that it may use, counted round.
    """
    if not hasattr(os, "sched_setaffinity"):
        return
    usable = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {sorted(usable)[number % len(usable)]})
    os.sched_setaffinity(0, usable)  # threads that it starts are not to share that core
