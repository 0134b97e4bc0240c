"""A GPU for Triton that is not there: what a launch needs compiled is found, and written down."""

import ctypes
import itertools
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from kvbench.audit.targets import Target


@dataclass(frozen=True, slots=True)
class Launched:
    """A launch: which kernel, how many programs, with what."""

    kernel: str
    grid: tuple[int, int, int]
    arguments: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Wanted:
    """A specialisation of a kernel that a launch asks Triton to compile."""

    function: Any
    """Triton's."""
    key: str
    """Triton's: what tells it from the others of the function."""
    signature: Mapping[str, str]
    """The type of each argument, "constexpr" of a constant."""
    constants: Mapping[Any, Any]
    """By where they are among the arguments."""
    attributes: Mapping[Any, Any]
    """What is known of arguments, as multiples of 16, by where they are."""
    options: Mapping[str, Any]

    def compile(self, target: Target) -> Any:  # noqa: ANN401 - Triton's
        """Compile it for an architecture."""
        source = ASTSource(self.function, self.signature, self.constants, self.attributes)
        return triton.compile(source, target=gpu_target(target), options=dict(self.options))


def gpu_target(target: Target) -> GPUTarget:
    """A target as Triton has it."""
    return GPUTarget(target.backend, target.arch, target.warp_threads)


_DEVICES = itertools.count()


@dataclass
class SimulatedGpu:
    """Stands in for Triton's driver."""

    target: Target
    make: Callable[[Wanted], Any] | None = None
    """What gives a compiled kernel; None: there is none, launches are written down all the same."""
    launches: list[Launched] = field(default_factory=list)
    compiled: list[Any] = field(default_factory=list)
    """What `make` gave, or else what was wanted."""
    device: int = field(default_factory=_DEVICES.__next__)
    """Triton keeps compiled kernels by device: each simulation is one by itself."""

    # What Triton asks its driver.

    def get_current_target(self) -> GPUTarget:
        """As Triton's driver."""
        return gpu_target(self.target)

    def get_current_device(self) -> int:
        """As Triton's driver."""
        return self.device

    def get_current_stream(self, device: int) -> int:
        """As Triton's driver."""
        return device

    def launcher_cls(self, source: Any, metadata: Any) -> Callable[..., None]:  # noqa: ANN401, ARG002
        """As Triton's driver: what launches a compiled kernel."""
        return _launcher(self, source.fn.__name__)

    @property
    def utils(self) -> SimpleNamespace:
        """As Triton's driver: what loads a compiled kernel, and what a GPU has."""
        return SimpleNamespace(
            load_binary=lambda name, *_: (ctypes.c_void_p(), name, 0, 0, 1024),
            get_device_properties=lambda _: {"max_shared_mem": self.target.block_shared_bytes},
        )

    def compile(self, wanted: Wanted) -> Any:  # noqa: ANN401 - Triton's compiled kernel, or ours
        """What Triton gets for a compiled kernel."""
        made = self.make(wanted) if self.make is not None else None
        self.compiled.append(made or wanted)
        return made or _Uncompiled(self, wanted.function.fn.__name__)


_UNUSED = 6
"""What a launch is given before a kernel's arguments: a stream, the kernel, hooks."""


def _launcher(gpu: SimulatedGpu, kernel: str) -> Callable[..., None]:
    def launch(x: int, y: int, z: int, *rest: object) -> None:
        gpu.launches.append(Launched(kernel, (x, y, z), rest[_UNUSED:]))

    return launch


class _Uncompiled:
    """Stands in for a compiled kernel."""

    function = packed_metadata = None

    def __init__(self, gpu: SimulatedGpu, kernel: str) -> None:
        self._gpu, self._kernel = gpu, kernel
        self.run = _launcher(gpu, kernel)

    def __getitem__(self, grid: tuple[int, int, int]) -> Callable[..., None]:
        return lambda *arguments: self._gpu.launches.append(Launched(self._kernel, grid, arguments))

    def launch_metadata(self, *_: object) -> None:
        """As Triton's compiled kernels: none."""


@contextmanager
def simulated_gpu(
    target: Target, make: Callable[[Wanted], Any] | None = None
) -> Iterator[SimulatedGpu]:
    """Inside, Triton finds a GPU of that architecture, whose kernels nothing runs.

    Tensors are those of any device but a CPU, whose kernels are interpreted: "meta" takes no
    memory.

    Args:
        target: The architecture.
        make: See `SimulatedGpu`.
    """
    gpu = SimulatedGpu(target, make)

    def compile_for_gpu(
        self: Any,  # noqa: ANN401
        key: str,
        signature: Any,  # noqa: ANN401
        device: int,
        constants: Any,  # noqa: ANN401
        options: Any,  # noqa: ANN401
        attributes: Any,  # noqa: ANN401
        warmup: bool,  # noqa: FBT001 - as Triton's own
    ) -> Any:  # noqa: ANN401
        del warmup
        kernel = gpu.compile(Wanted(self, key, signature, constants, attributes, options.__dict__))
        self.device_caches[device][0][key] = kernel
        return kernel

    with ExitStack() as stack:
        stack.enter_context(replaced(driver, "_active", gpu))
        stack.enter_context(replaced(JITFunction, "_do_compile", compile_for_gpu))
        stack.enter_context(
            replaced(
                triton.compiler.compiler, "max_shared_mem", lambda _: target.block_shared_bytes
            )
        )
        yield gpu


@contextmanager
def replaced(owner: Any, name: str, value: object) -> Iterator[None]:  # noqa: ANN401
    """Inside, an attribute is another."""
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)
