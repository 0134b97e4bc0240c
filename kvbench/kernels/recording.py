"""Kernels written down instead of launched, for predicting launches. It needs no Triton."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_recorded: ContextVar[list[str] | None] = ContextVar("recorded", default=None)
_pretending: ContextVar[bool] = ContextVar("pretending", default=False)


@contextmanager
def recording() -> Iterator[list[str]]:
    """Inside, kernels are not launched; their names are put on the list that is given."""
    names: list[str] = []
    token = _recorded.set(names)
    try:
        yield names
    finally:
        _recorded.reset(token)


@contextmanager
def pretending() -> Iterator[None]:
    """Inside, there is no device: kernels are not compiled, and not launched."""
    token = _pretending.set(True)
    try:
        yield
    finally:
        _pretending.reset(token)


def is_pretending() -> bool:
    """Whether there is no device: what compiles for one need not be there."""
    return _pretending.get()


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


def pretended(name: str) -> Callable[..., None] | None:
    """A launch of the kernel of that name where there is no device; None where there may be one.

    While launches are recorded it writes the name down, else it does nothing.
    """
    if not _pretending.get():
        return None

    def launch(*_: object) -> None:
        names = _recorded.get()
        if names is not None:
            names.append(name)

    return launch
