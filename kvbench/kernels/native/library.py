"""The library's functions, found once in a process."""

import ctypes
import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from kvbench.kernels.native import build

_OPENMP = ("GOMP_parallel", "omp_get_thread_num", "omp_get_num_threads")
"""The names are GNU's; LLVM's and Intel's runtimes have them too, on Linux."""


@dataclass(frozen=True, slots=True)
class Library:
    """The functions of move.cpp.

    They are called without the interpreter's lock: taking it back costs some 40 ns, and an engine's
    other threads run while megabytes are moved.
    """

    copy: Callable[..., int]
    """Of a plan, key, value, key_pool and value_pool, as addresses."""
    convert: Callable[..., int]
    """Of the same, then key_scale and value_scale."""
    streams: bool
    """Whether it has streaming stores on this machine."""


def unsupported(device: torch.device) -> str | None:
    """None if the C++ kernels run on this device, else why not. The first call may build them."""
    if device.type != "cpu":
        return "C++ for the CPU's own memory"
    found = _library()
    return found if isinstance(found, str) else None


def library() -> Library:
    """The library.

    Raises:
        BuildError: There is none; the message is the reason.
    """
    found = _library()
    if isinstance(found, str):
        raise build.BuildError(found)
    return found


@functools.cache
def _library() -> Library | str:
    try:
        return build.load(_open)
    except build.BuildError as error:
        return str(error)


def _open(path: Path) -> Library:
    loaded = ctypes.CDLL(str(path))
    address = ctypes.c_void_p
    loaded.kvbench_use_openmp.argtypes = [address] * len(_OPENMP)
    loaded.kvbench_use_openmp.restype = None
    loaded.kvbench_use_openmp(*_openmp())
    for function, operands in ((loaded.kvbench_copy, 5), (loaded.kvbench_convert, 7)):
        function.argtypes = [address] * operands
        function.restype = ctypes.c_int64
    return Library(loaded.kvbench_copy, loaded.kvbench_convert, bool(loaded.kvbench_streams()))


def _openmp() -> list[int | None]:
    """The functions of the OpenMP runtime that PyTorch works with.

    A second runtime would have threads of its own, which wait for work where the first one's do
    theirs. What PyTorch depends on is found through its own library, wherever that came from.
    """
    runtime = ctypes.CDLL(torch._C.__file__)  # noqa: SLF001 - it has no other name
    try:
        return [ctypes.cast(getattr(runtime, name), ctypes.c_void_p).value for name in _OPENMP]
    except AttributeError as error:
        raise build.BuildError(f"PyTorch's OpenMP runtime: {error}") from error
