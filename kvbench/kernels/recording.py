"""Kernels written down instead of launched, for predicting launches. It needs no Triton."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_recorded: ContextVar[list[str] | None] = ContextVar("recorded", default=None)


@contextmanager
def recording() -> Iterator[list[str]]:
    """Inside, kernels are not launched; their names are put on the list that is given."""
    names: list[str] = []
    token = _recorded.set(names)
    try:
        yield names
    finally:
        _recorded.reset(token)


class Recorder:
    """Stands in for a kernel: form[grid](...) writes its name down."""

    def __init__(self, name: str, names: list[str]) -> None:
        self._name, self._names = name, names

    def __getitem__(self, grid: object) -> Callable[..., None]:
        return lambda *_, **__: self._names.append(self._name)


def recorder_of(name: str) -> Recorder | None:
    """What stands in for the kernel of that name while launches are recorded; else None."""
    names = _recorded.get()
    return None if names is None else Recorder(name, names)
