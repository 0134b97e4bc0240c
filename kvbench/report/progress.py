"""Progress of long work with the time it still needs: a bar on a terminal, lines elsewhere."""

import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from kvbench.units import format_duration

_LINE_EVERY_S = 20.0


class Meter:
    """Counts what is done. On a terminal a bar with an ETA; in a log a line every so often.

    Args:
        console: Where to.
        total: How many there will be.
        what: Of what, in the plural.
    """

    def __init__(self, console: Console, total: int, what: str = "cases") -> None:
        self._console = console
        self._what = what
        self._total = total
        self._done = 0
        self._started = self._said = time.monotonic()
        self._bar: Progress | None = None
        if console.is_terminal:
            self._bar = Progress(
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn(f"{what}, elapsed"),
                TimeElapsedColumn(),
                TextColumn("left"),
                # Over many cases: their times differ by orders of magnitude.
                TimeRemainingColumn(),
                TextColumn("{task.description}"),
                console=console,
                transient=True,
                speed_estimate_period=120,
            )
            self._task = self._bar.add_task("", total=total)

    def __enter__(self) -> Self:
        if self._bar:
            self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar:
            self._bar.stop()

    def expect(self, total: int) -> None:
        """So many there will be."""
        self._total = total
        self._started = self._said = time.monotonic()
        if self._bar:
            self._bar.reset(self._task, total=total)

    def advance(self, description: str) -> None:
        """One more is done."""
        self._done += 1
        if self._bar:
            self._bar.update(self._task, advance=1, description=description)
            return
        now = time.monotonic()
        if now - self._said >= _LINE_EVERY_S:
            self._said = now
            elapsed = now - self._started
            left = elapsed / self._done * (self._total - self._done)
            self._console.print(
                f"{self._done} of {self._total} {self._what}, {format_duration(elapsed)} elapsed, "
                f"about {format_duration(left)} left"
            )
