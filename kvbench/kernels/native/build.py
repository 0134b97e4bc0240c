"""Shared libraries, built from the sources in this folder when they are first used, then cached.

The name of a cached file is a hash of what it was built from and a hash of what is in it, so that
neither a stale file nor a broken one is taken. It gets that name when it is complete: processes may
build at the same time.
"""

import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TypeVar

from platformdirs import user_cache_path

from kvbench.errors import KvbenchError

T = TypeVar("T")

SOURCES = Path(__file__).parent
_COMPILERS = ("c++", "g++", "clang++")
_FLAGS = ("-std=c++17", "-O3", "-fPIC", "-shared")
EXACT = ("-ffp-contract=off", "-fno-trapping-math")
"""A product and a sum round apart, as they are written. What no one sees, exception flags, need not
be right: else there are no vectors of choices between numbers."""
FUSED = ("-ffp-contract=fast", "-fno-trapping-math")
"""A product and a sum round once, where the processor does both at once."""
_NATIVE = "-march=native"
_TIMEOUT_S = 300


class BuildError(KvbenchError):
    """There is no library; the message is the reason."""


def cache_folder() -> Path:
    """Where built libraries are kept: $XDG_CACHE_HOME/kvbench, or what the system has for it."""
    return user_cache_path("kvbench")


def compiler() -> list[str]:
    """The C++ compiler as the beginning of a command: $CXX, else the first of a few names.

    Raises:
        BuildError: There is none.
    """
    named = shlex.split(os.environ.get("CXX", ""))
    for command in [named] if named else [[name] for name in _COMPILERS]:
        found = shutil.which(command[0])
        if found is not None:
            return [found, *command[1:]]
    if named:
        raise BuildError(f"the C++ compiler {named[0]!r} of $CXX is not here")
    raise BuildError(f"no C++ compiler: none of {', '.join(_COMPILERS)} is here, nor is $CXX set")


def load(
    open_library: Callable[[Path], T],
    source: str = "move.cpp",
    rounding: Sequence[str] = EXACT,
) -> T:
    """Open a library, after building it if it is not in the cache, or is and can't be opened.

    Args:
        open_library: Opens the file of that name.
        source: The file that includes all that the library is made of.
        rounding: EXACT or FUSED.

    Raises:
        BuildError: It can't be built, kept or opened.
    """
    if sys.platform != "linux":
        raise BuildError(f"the C++ kernels are for Linux; this is {sys.platform}")
    command = compiler()
    flags, macros = _flags(command, rounding)
    key = _hash([repr((command, flags, source)).encode(), macros, *_sources()])
    folder = cache_folder()
    for path in _cached(folder, key):
        try:
            return open_library(path)
        except OSError:
            path.unlink(missing_ok=True)  # whole, and yet of no use here: built anew
    path = _built([*command, *flags, str(SOURCES / source)], folder, key)
    try:
        return open_library(path)
    except OSError as error:
        raise BuildError(f"the library that was built can't be loaded: {error}") from error


def _sources() -> list[bytes]:
    return [path.read_bytes() for path in sorted(SOURCES.glob("*.[ch]pp"))]


def _flags(command: list[str], rounding: Sequence[str]) -> tuple[list[str], bytes]:
    """The flags that the compiler takes, and its macros with them: its version, the CPU's features.

    Raises:
        BuildError: It doesn't work.
    """
    for native in ([_NATIVE], []):
        flags = [*_FLAGS, *rounding, *native]
        done = _run([*command, *flags, "-dM", "-E", "-x", "c++", os.devnull])
        if done.returncode == 0:
            return flags, done.stdout
    raise _failed(command, done)


def _cached(folder: Path, key: str) -> Iterable[Path]:
    """The files of that key that are as they were written."""
    for path in sorted(folder.glob(f"{key}-*.so")):
        try:
            whole = path.stem == f"{key}-{_hash([path.read_bytes()])}"
        except OSError:
            continue  # another process has removed it
        # To map what is cut off would end the process when it is run.
        if whole:
            yield path


def _built(command: list[str], folder: Path, key: str) -> Path:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix="building-") as scratch:
            built = Path(scratch) / "library.so"
            done = _run([*command, "-o", str(built)])
            if done.returncode != 0:
                raise _failed(command, done)
            return built.replace(folder / f"{key}-{_hash([built.read_bytes()])}.so")
    except OSError as error:
        raise BuildError(
            f"no place for the built library in {folder} ({error.strerror}); "
            "XDG_CACHE_HOME names another"
        ) from error


def _run(command: list[str]) -> "subprocess.CompletedProcess[bytes]":
    try:
        return subprocess.run(  # noqa: S603 - the user's compiler, on our sources
            command, capture_output=True, check=False, timeout=_TIMEOUT_S
        )
    except subprocess.TimeoutExpired as error:
        raise BuildError(f"{command[0]} took longer than {_TIMEOUT_S} s") from error
    except OSError as error:
        raise BuildError(f"{command[0]} can't be run: {error.strerror}") from error


def _failed(command: list[str], done: "subprocess.CompletedProcess[bytes]") -> BuildError:
    lines = done.stderr.decode(errors="replace").splitlines()
    first = next((line for line in lines if "error" in line), None)
    said = first or next((line for line in lines if line.strip()), f"exit status {done.returncode}")
    return BuildError(f"{command[0]} failed: {said.strip()}")


def _hash(parts: Iterable[bytes]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "little") + part)
    return digest.hexdigest()[:32]
