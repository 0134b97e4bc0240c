"""One kernel, two forms: compiled for a GPU's tensors, interpreted for a CPU's.

Triton decides when a kernel is decorated, by an environment variable for the whole process. Here
both forms exist side by side, so that a process needs no variable set beforehand. A function that a
kernel calls has two forms as well, and each form of the kernel sees its own; Triton's own jitted
helpers (tl.cdiv, tl.zeros) have the compiled form alone, so that kernels here can't call them.
"""

from collections.abc import Callable
from types import FunctionType
from typing import Any

import numpy as np
import torch
import triton
from triton.runtime.interpreter import InterpretedFunction

from kvbench.kernels.recording import recorder_of


class Kernel:
    """A Triton kernel that picks its form by the device of its tensors.

    Args:
        fn: The kernel.
        helpers: The functions that it calls, and those that they call.
    """

    def __init__(self, fn: Callable[..., Any], *helpers: Callable[..., Any]) -> None:
        self.fn = fn
        self.compiled = _form(fn, helpers, triton.jit)
        self.interpreted = _form(fn, helpers, InterpretedFunction)

    def on(self, device: torch.device) -> Any:
        """The form for tensors on `device`, to be launched as form[grid](...)."""
        recorder = recorder_of(self.fn.__name__)
        if recorder is not None:
            return recorder
        return _Quiet(self.interpreted) if device.type == "cpu" else self.compiled


class _Quiet:
    """An interpreted kernel that is as silent about NaN and overflow as a GPU."""

    def __init__(self, form: Any) -> None:
        self._form = form

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        def launch(*args: Any, **constants: Any) -> None:
            with np.errstate(all="ignore"):
                self._form[grid](*args, **constants)

        return launch


def _form(
    fn: Callable[..., Any],
    helpers: tuple[Callable[..., Any], ...],
    decorate: Callable[[Any], Any],
) -> Any:
    """A function and its helpers in one form, in a namespace where their names mean that form."""
    namespace: dict[str, Any] = {}
    for each in (*helpers, fn):
        copy = FunctionType(each.__code__, namespace, each.__name__, each.__defaults__)
        copy.__annotations__ = each.__annotations__
        copy.__module__, copy.__qualname__ = each.__module__, each.__qualname__
        namespace |= {n: v for n, v in each.__globals__.items() if n not in namespace}
        namespace[each.__name__] = decorate(copy)
    return namespace[fn.__name__]


def interpreting() -> bool:
    """Whether the environment makes even the compiled form an interpreted one."""
    return bool(triton.knobs.runtime.interpret)
