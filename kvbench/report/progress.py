"""Progress of long work with the time it still needs: a bar on a terminal, lines elsewhere."""

import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
)
from rich.text import Text

from kvbench.units import format_duration

_LINE_EVERY_S = 20.0


class _Left(ProgressColumn):
    """What a meter says is left, counted down between two cases."""

    def __init__(self, meter: "Meter") -> None:
        super().__init__()
        self._meter = meter

    def render(self, task: Task) -> Text:
        """A duration, once there is something to tell it from."""
        del task
        left = self._meter.left_s()
        return Text("" if left is None else f"about {format_duration(left)} left")


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
        self._started = self._said = self._advanced = time.monotonic()
        self._left_s: float | None = None
        self._bar: Progress | None = None
        if console.is_terminal:
            self._bar = Progress(
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn(f"{what}, elapsed"),
                TimeElapsedColumn(),
                _Left(self),
                TextColumn("{task.description}"),
                console=console,
                transient=True,
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
        """So many cases there will be; the time before the first one doesn't count."""
        self._total = total
        if not self._done:
            self._started = self._said = self._advanced = time.monotonic()
        if self._bar:
            self._bar.update(self._task, total=total)

    def advance(self, description: str, left_s: float | None = None) -> None:
        """One case more is done.

        Args:
            description: Which.
            left_s: What the others take; if None, as long on average as those that are done.
        """
        self._done += 1
        self._advanced = time.monotonic()
        elapsed = self._advanced - self._started
        mean = elapsed / self._done
        self._left_s = mean * (self._total - self._done) if left_s is None else left_s
        if self._bar:
            self._bar.update(self._task, advance=1, description=description)
            return
        if self._advanced - self._said >= _LINE_EVERY_S:
            self._said = self._advanced
            self._console.print(
                f"{self._done} of {self._total} {self._what}, {format_duration(elapsed)} elapsed, "
                f"about {format_duration(self._left_s)} left"
            )

    def left_s(self) -> float | None:
        """Seconds that are left at this moment; None before the first case is done."""
        if self._left_s is None:
            return None
        return max(self._left_s - (time.monotonic() - self._advanced), 0.0)
