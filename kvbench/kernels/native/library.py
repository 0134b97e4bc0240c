"""The libraries' functions, found once in a process."""

import ctypes
import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import torch

from kvbench.kernels.native import build

T = TypeVar("T")

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


@dataclass(frozen=True, slots=True)
class Attention:
    """The functions of attend.cpp, called without the interpreter's lock."""

    plan: Callable[..., int]
    """Of a plan: the bytes that each thread needs."""
    attend: Callable[..., int]
    """Of a plan, query, key_pool, value_pool, key_scale, value_scale and output, as addresses."""


def unsupported(device: torch.device) -> str | None:
    """None if the C++ kernels run on this device, else why not. The first call may build them."""
    return _unsupported(device, _library)


def attention_unsupported(device: torch.device) -> str | None:
    """As `unsupported`, of attend.cpp."""
    return _unsupported(device, _attention)


def library() -> Library:
    """The library.

    Raises:
        BuildError: There is none; the message is the reason.
    """
    return _there(_library())


def attention() -> Attention:
    """The library of attend.cpp.

    Raises:
        BuildError: There is none; the message is the reason.
    """
    return _there(_attention())


def _unsupported(device: torch.device, found: Callable[[], object]) -> str | None:
    if device.type != "cpu":
        return "C++ for the CPU's own memory"
    reason = found()
    return reason if isinstance(reason, str) else None


def _there(found: T | str) -> T:
    if isinstance(found, str):
        raise build.BuildError(found)
    return found


@functools.cache
def _library() -> Library | str:
    try:
        return build.load(_open)
    except build.BuildError as error:
        return str(error)


@functools.cache
def _attention() -> Attention | str:
    try:
        return build.load(_open_attention, "attend.cpp", build.FUSED)
    except build.BuildError as error:
        return str(error)


def _open(path: Path) -> Library:
    loaded = _loaded(path)
    return Library(
        _function(loaded.kvbench_copy, 5),
        _function(loaded.kvbench_convert, 7),
        bool(loaded.kvbench_streams()),
    )


def _open_attention(path: Path) -> Attention:
    loaded = _loaded(path)
    return Attention(_function(loaded.kvbench_attend_plan, 1), _function(loaded.kvbench_attend, 7))


def _loaded(path: Path) -> ctypes.CDLL:
    loaded = ctypes.CDLL(str(path))
    loaded.kvbench_use_openmp.argtypes = [ctypes.c_void_p] * len(_OPENMP)
    loaded.kvbench_use_openmp.restype = None
    loaded.kvbench_use_openmp(*_openmp())
    return loaded


def _function(function: "ctypes._NamedFuncPointer", operands: int) -> Callable[..., int]:
    function.argtypes = [ctypes.c_void_p] * operands
    function.restype = ctypes.c_int64
    return function


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
