"""One kernel, two forms: compiled for a GPU's tensors, interpreted for a CPU's.

Triton decides when a kernel is decorated, by an environment variable for the whole process. Here
both forms exist side by side, so that a process needs no variable set beforehand. A function that a
kernel calls has two forms as well, and each form of the kernel sees its own; Triton's own jitted
helpers (tl.cdiv, tl.zeros) have the compiled form alone, so that kernels here can't call them.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import numpy as np
import torch
import triton
from triton.runtime import driver
from triton.runtime.interpreter import InterpretedFunction

from kvbench.kernels.recording import pretended, recorder_of

ALIGNMENT = 16
"""Bytes: Triton compiles a kernel for pointers that are multiples of it, or for any."""


_UNSPECIALISED = (
    "tokens",
    "splits",
    "block_size",
    *(f"{d}_stride" for d in ("token", "block", "head", "pack", "sequence")),
)
"""Ends of the names of integers that kernels are not specialised on.

Triton compiles a kernel anew for an integer that is 1, and for one that is no multiple of 16: of
those that grow with the sequence (the number of tokens; strides of head-major K and V) that would
be up to three kernels for what is one. What accesses need to know of strides they are told by a
constant (see `offsets`)."""


@dataclass(frozen=True, slots=True)
class Arguments:
    """What a kernel is called with, in the order of its parameters."""

    tensors: tuple[torch.Tensor, ...]
    """Those that each layer has of its own, then those of all layers."""
    numbers: tuple[int | float, ...]
    constants: Mapping[str, Any]
    """Compile-time constants by name."""


class Kernel:
    """A Triton kernel that picks its form by the device of its tensors.

    Args:
        fn: The kernel.
        helpers: The functions that it calls, and those that they call.
    """

    def __init__(self, fn: Callable[..., Any], *helpers: Callable[..., Any]) -> None:
        self.fn, self.helpers = fn, helpers
        self.name = fn.__name__.strip("_")
        self.parameters = fn.__code__.co_varnames[: fn.__code__.co_argcount]
        self.constants = tuple(name for name in self.parameters if name.isupper())
        unspecialised = [n for n in self.parameters if n.endswith(_UNSPECIALISED)]
        kernel = functools.partial(triton.jit, do_not_specialize=unspecialised)
        self.compiled = _form(fn, helpers, triton.jit, kernel)
        self.interpreted = _form(fn, helpers, InterpretedFunction)

    def on(self, device: torch.device) -> Any:
        """The form for tensors on `device`, to be launched as form[grid](...)."""
        recorder = recorder_of(self.name)
        if recorder is not None:
            return recorder
        return _Quiet(self.interpreted) if is_interpreted(device) else self.compiled

    def bind(
        self,
        arguments: Arguments,
        grid: tuple[int, int],
        warps: int,
        layer: int,
        stages: int | None = None,
    ) -> Callable[..., None]:
        """Compile the kernel, and put everything into its launch that layers have in common.

        Triton's own launcher looks at every argument anew in each call, to find the compiled kernel
        that they need. Here it is found once: the launch that results does nothing in Python but
        look at where its tensors begin.

        Args:
            arguments: Those of any layer.
            grid: Programs along both axes.
            warps: Warps of a program.
            layer: How many of the tensors each layer has of its own.
            stages: Of how many turns of a loop loads are under way at once; None: Triton's own
                number, for a kernel that loads in no loop.

        Returns:
            The launch, to be called with a layer's own tensors: of the dtypes and strides of those
            in `arguments`, which is for the caller to see to. It raises ValueError for one that
            begins at no multiple of 16 bytes where that in `arguments` does.
        """
        launch = pretended(self.name)
        if launch is not None:
            return launch
        tensors = tuple(map(as_bytes, arguments.tensors))
        common = (*tensors[layer:], *arguments.numbers)
        constants = arguments.constants  # not the arguments: a layer's tensors are not to be kept
        if is_interpreted(tensors[0].device):
            form = _Quiet(self.interpreted)[grid]
            return lambda *own: form(*map(as_bytes, own), *common, **constants)
        # The options are those that Triton's tuner gives, so that they are the same kernel to it.
        config = triton.Config({}, num_warps=warps)
        if stages is not None:
            # An AMD GPU's loads wait in registers for the turn before: with more than two, tiles
            # would fill its 64 KiB of shared memory.
            is_amd = driver.active.get_current_target().backend == "hip"
            config.num_stages = min(stages, 2) if is_amd else stages
        options = config.all_kwargs()
        compiled = self.compiled.warmup(
            *tensors, *arguments.numbers, grid=grid, **constants, **options
        )
        rest = (*common, *constants.values())
        return _Direct(compiled[*grid, 1], tensors[:layer], rest)

    @property
    def compilations(self) -> int:
        """How many times this process has compiled it, or taken it from Triton's cache."""
        caches = getattr(self.compiled, "device_caches", {})
        return sum(len(kernels) for kernels, *_ in caches.values())


class _Direct:
    """A compiled kernel with all its arguments but a layer's own tensors."""

    def __init__(
        self,
        launch: Callable[..., None],
        planned: Sequence[torch.Tensor],
        rest: tuple[Any, ...],
    ) -> None:
        self._launch, self._rest = launch, rest
        self._aligned = [tensor.data_ptr() % ALIGNMENT == 0 for tensor in planned]

    def __call__(self, *own: torch.Tensor) -> None:
        for tensor, aligned in zip(own, self._aligned, strict=True):
            if aligned and tensor.data_ptr() % ALIGNMENT:
                raise ValueError(
                    f"a tensor begins at {tensor.data_ptr():#x}; expected a multiple of "
                    f"{ALIGNMENT} bytes, as in the layer that was planned with"
                )
        self._launch(*own, *self._rest)


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
    decorate_kernel: Callable[[Any], Any] | None = None,
) -> Any:
    """A function and its helpers in one form, in a namespace where their names mean that form."""
    namespace: dict[str, Any] = {}
    for each in (*helpers, fn):
        copy = FunctionType(each.__code__, namespace, each.__name__, each.__defaults__)
        copy.__annotations__ = each.__annotations__
        copy.__module__, copy.__qualname__ = each.__module__, each.__qualname__
        namespace |= {n: v for n, v in each.__globals__.items() if n not in namespace}
        make = decorate_kernel if each is fn and decorate_kernel is not None else decorate
        namespace[each.__name__] = make(copy)
    return namespace[fn.__name__]


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor of fp8 as its bytes, as kernels take it: see `codes`; any other as it is."""
    fp8 = tensor.dtype in {torch.float8_e4m3fn, torch.float8_e5m2}
    return tensor.view(torch.uint8) if fp8 else tensor


def is_interpreted(device: torch.device) -> bool:
    """Whether kernels on this device's tensors are interpreted."""
    return device.type == "cpu" or interpreting()


def interpreting() -> bool:
    """Whether the environment makes even the compiled form an interpreted one."""
    return bool(triton.knobs.runtime.interpret)
