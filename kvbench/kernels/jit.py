"""One kernel, two forms: compiled for a GPU's tensors, interpreted for a CPU's.

Triton decides when a kernel is decorated, by an environment variable for the whole process. Here
both forms exist side by side, so that a process needs no variable set beforehand. An interpreted
kernel can call builtins only: Triton's own jitted helpers (tl.cdiv, tl.zeros) are compiled ones.
"""

from collections.abc import Callable
from typing import Any

import torch
import triton
from triton.runtime.interpreter import InterpretedFunction

from kvbench.kernels.recording import recorder_of


class Kernel:
    """A Triton kernel that picks its form by the device of its tensors."""

    def __init__(self, fn: Callable[..., None]) -> None:
        self.fn = fn
        self.compiled = triton.jit(fn)
        self.interpreted = InterpretedFunction(fn)

    def on(self, device: torch.device) -> Any:
        """The form for tensors on `device`, to be launched as form[grid](...)."""
        recorder = recorder_of(self.fn.__name__)
        if recorder is not None:
            return recorder
        return self.interpreted if device.type == "cpu" else self.compiled


def interpreting() -> bool:
    """Whether the environment makes even the compiled form an interpreted one."""
    return bool(triton.knobs.runtime.interpret)
