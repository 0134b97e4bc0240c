"""One kernel, two forms: compiled for a GPU's tensors, interpreted for a CPU's.

Triton decides when a kernel is decorated, by an environment variable for the whole process. Here
both forms exist side by side, so that a process needs no variable set beforehand. An interpreted
kernel can call builtins only: Triton's own jitted helpers (tl.cdiv, tl.zeros) are compiled ones.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
import triton
from triton.runtime.interpreter import InterpretedFunction

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


class _Recorder:
    """Stands in for a kernel: form[grid](...) writes its name down."""

    def __init__(self, name: str, names: list[str]) -> None:
        self._name, self._names = name, names

    def __getitem__(self, grid: object) -> Callable[..., None]:
        return lambda *_, **__: self._names.append(self._name)


class Kernel:
    """A Triton kernel that picks its form by the device of its tensors."""

    def __init__(self, fn: Callable[..., None]) -> None:
        self.fn = fn
        self.compiled = triton.jit(fn)
        self.interpreted = InterpretedFunction(fn)

    def on(self, device: torch.device) -> Any:
        """The form for tensors on `device`, to be launched as form[grid](...)."""
        names = _recorded.get()
        if names is not None:
            return _Recorder(self.fn.__name__, names)
        return self.interpreted if device.type == "cpu" else self.compiled


def interpreting() -> bool:
    """Whether the environment makes even the compiled form an interpreted one."""
    return bool(triton.knobs.runtime.interpret)
