"""The audit: every kernel for every target, over two processes."""

import fnmatch
import multiprocessing
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from typing import Self

from kvbench.audit import cuda
from kvbench.audit.compiling import compile_all
from kvbench.audit.findings import CUDA_PREFIX, Finding, Missing
from kvbench.audit.specialisations import Specialisation, functions, specialisations
from kvbench.audit.targets import Target
from kvbench.errors import InputError, unknown
from kvbench.kernels import jit

_PROCESSES = 2
_PARTS = 3
"""Of what is compiled for a target: enough that no process is long without work at the end."""


@dataclass(frozen=True, slots=True)
class Audit:
    """What was found."""

    findings: tuple[Finding, ...]
    """By target, then by kernel."""
    missing: tuple[Missing, ...]


def select_kernels(pattern: str | None) -> tuple[str, ...]:
    """The kernels that a pattern names, Triton's and CUDA's; None: all.

    Raises:
        InputError: It names none; the message has the nearest name.
    """
    known = (*functions(), *(CUDA_PREFIX + kernel for kernel in cuda.KERNELS))
    found = tuple(each for each in known if fnmatch.fnmatchcase(each, pattern or "*"))
    if not found:
        raise unknown("kernel", pattern or "", known)
    return found


def audit(
    targets: Sequence[Target],
    kernels: Sequence[str],
    expect: Callable[[int], None] = lambda _: None,
    done: Callable[[str], None] = lambda _: None,
) -> Audit:
    """Compile kernels for targets, and read what became of them.

    Args:
        targets: What for.
        kernels: Which, of `select_kernels`.
        expect: Told how many kernels there will be.
        done: Called for each that is done, with its target and its name.

    Raises:
        InputError: TRITON_INTERPRET is set: there is nothing to compile.
        KvbenchError: A compiler or a disassembler refuses one.
    """
    if jit.interpreting():
        raise InputError("TRITON_INTERPRET is set: expected it unset, as kernels are compiled")
    moving = tuple(each for each in cuda.KERNELS if CUDA_PREFIX + each in kernels)
    triton_s = frozenset(kernels) & functions().keys()
    findings: list[Finding] = []
    missing: list[Missing] = []
    total = 0
    with _Workers(many=len(targets) > 1) as workers:
        # What takes longest comes first, and processes begin while the rest is planned.
        for backend in dict.fromkeys(target.backend for target in targets):
            of_backend = [target for target in targets if target.backend == backend]
            every = specialisations(backend) if triton_s else ()
            planned = [each for each in every if each.kernel in triton_s]
            for target in of_backend:
                parts = [_Part(target, tuple(planned[at::_PARTS])) for at in range(_PARTS)]
                parts += [_Part(target, (), moving)]
                for part in parts:
                    total += part.size
                    workers.take(part)
        expect(total)
        for part, found in workers.done():
            if isinstance(found, Missing):
                missing.append(found)
            else:
                findings += found
            for name in part.names:
                done(f"{part.target.name} {name}")
    order = {target.name: at for at, target in enumerate(targets)}
    names = {name: at for at, name in enumerate(kernels)}
    return Audit(
        tuple(sorted(findings, key=lambda f: (order[f.target], names[f.kernel], f.specialisation))),
        tuple(sorted(missing, key=lambda m: order[m.target])),
    )


@dataclass(frozen=True, slots=True)
class _Part:
    """What one process does at a time: Triton's kernels, or CUDA's."""

    target: Target
    specialisations: tuple[Specialisation, ...]
    cuda: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """Of its kernels."""
        return tuple(each.kernel for each in self.specialisations) + self.cuda

    @property
    def size(self) -> int:
        """How many kernels it has."""
        return len(self.names)


_Done = tuple[_Part, tuple[Finding, ...] | Missing]


class _Workers:
    """Processes that parts are given to; none for one target, as they take seconds to begin."""

    def __init__(self, *, many: bool) -> None:
        # Not forked: PyTorch has threads.
        context = multiprocessing.get_context("spawn")
        self._pool = None
        if many:
            # Ctrl-C is for the one that waits: what is being compiled is done with in seconds.
            ignored = (signal.SIGINT, signal.SIG_IGN)
            self._pool = ProcessPoolExecutor(_PROCESSES, context, signal.signal, ignored)
        self._parts: list[_Part] = []
        self._taken: list[Future[_Done]] = []

    def take(self, part: _Part) -> None:
        """Begin with a part, or put it off until `done`."""
        if not part.size:
            return
        if self._pool is not None:
            self._taken.append(self._pool.submit(_compiled, part))
        else:
            self._parts.append(part)

    def done(self) -> Iterator[_Done]:
        """Parts as they get done."""
        yield from map(_compiled, self._parts)
        for each in as_completed(self._taken):
            yield each.result()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)


def _compiled(part: _Part) -> _Done:
    if part.cuda:
        return part, cuda.compile_cuda(part.target, part.cuda)
    return part, compile_all(part.specialisations, part.target)
