"""CUDA C++ to machine code by NVRTC, NVIDIA's compiler as a library. No GPU is needed for it.

`torch.cuda._compile_kernel` does this and more, but asks for the headers of a CUDA toolkit
(CUDA_HOME) even where a source includes none, which a machine with torch from PyPI need not have;
and the launches that it gives take integers of 32 bits alone.
"""

import ctypes
import functools
import importlib.util
from pathlib import Path

_MAJOR_VERSIONS = ("13", "12")


class CompilationError(Exception):
    """NVRTC refused a source; the message is its log."""


@functools.cache
def library() -> ctypes.CDLL | None:
    """NVRTC, where the system has it or a package from PyPI brought it; None where neither did."""
    for major in _MAJOR_VERSIONS:
        name = f"libnvrtc.so.{major}"
        for path in (name, *map(str, _packaged(name))):
            try:
                # It opens this one by its name, and does not look beside itself.
                for built_in in sorted(Path(path).parent.glob("libnvrtc-builtins.so.*")):
                    ctypes.CDLL(str(built_in), mode=ctypes.RTLD_GLOBAL)
                return ctypes.CDLL(path)
            except OSError:  # not there: the next place
                continue
    return None


def _packaged(name: str) -> list[Path]:
    """Where NVIDIA's packages have a library, in nvidia/cuda_nvrtc/lib or nvidia/cu13/lib."""
    spec = importlib.util.find_spec("nvidia")
    folders = spec.submodule_search_locations if spec is not None else None
    return [path for folder in folders or () for path in sorted(Path(folder).glob(f"*/lib/{name}"))]


def compile_kernel(source: str, expression: str, architecture: str) -> tuple[bytes, str]:
    """Machine code for one instance of a kernel template.

    Args:
        source: CUDA C++, with no includes.
        expression: The kernel, as "scatter_kv<uint4, long long, 8>".
        architecture: As "sm_90".

    Returns:
        The code (a cubin), and the kernel's name in it.

    Raises:
        CompilationError: NVRTC can't compile it.
        OSError: There is no NVRTC.
    """
    nvrtc = library()
    if nvrtc is None:
        raise OSError(f"libnvrtc.so is not here; expected version {' or '.join(_MAJOR_VERSIONS)}")
    nvrtc.nvrtcGetErrorString.restype = ctypes.c_char_p
    program = ctypes.c_void_p()
    name = expression.encode()
    _check(
        nvrtc,
        nvrtc.nvrtcCreateProgram(
            ctypes.byref(program), source.encode(), b"kernel.cu", 0, None, None
        ),
    )
    try:
        _check(nvrtc, nvrtc.nvrtcAddNameExpression(program, name))
        options = [f"--gpu-architecture={architecture}".encode(), b"--std=c++17"]
        given = (ctypes.c_char_p * len(options))(*options)
        if nvrtc.nvrtcCompileProgram(program, len(options), given) != 0:
            raise CompilationError(_bytes_of(nvrtc, program, "ProgramLog").decode().strip("\0\n"))
        lowered = ctypes.c_char_p()
        _check(nvrtc, nvrtc.nvrtcGetLoweredName(program, name, ctypes.byref(lowered)))
        code = _bytes_of(nvrtc, program, "CUBIN")
        return code, (lowered.value or b"").decode()
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))


def _bytes_of(nvrtc: ctypes.CDLL, program: ctypes.c_void_p, what: str) -> bytes:
    size = ctypes.c_size_t()
    _check(nvrtc, nvrtc[f"nvrtcGet{what}Size"](program, ctypes.byref(size)))
    buffer = ctypes.create_string_buffer(size.value)
    _check(nvrtc, nvrtc[f"nvrtcGet{what}"](program, buffer))
    return buffer.raw


def _check(nvrtc: ctypes.CDLL, result: int) -> None:
    if result != 0:
        raise CompilationError(f"NVRTC: {nvrtc.nvrtcGetErrorString(result).decode()}")
