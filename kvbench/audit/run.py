"""The audit: every kernel for every target, over two processes."""

import fnmatch
import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

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
    plans = {backend: specialisations(backend) for backend in {t.backend for t in targets}}
    parts = [
        _Part(target, tuple(s for s in plans[target.backend] if s.kernel in kernels)[at::_PARTS])
        for target in targets
        for at in range(_PARTS)
    ]
    moving = tuple(each for each in cuda.KERNELS if CUDA_PREFIX + each in kernels)
    parts += [_Part(target, (), moving) for target in targets if moving]
    parts = [part for part in parts if part.specialisations or part.cuda]
    expect(sum(max(len(part.specialisations), len(part.cuda)) for part in parts))
    findings: list[Finding] = []
    missing: list[Missing] = []
    for part, found in _done(parts):
        if isinstance(found, Missing):
            missing.append(found)
        else:
            findings += found
        for name in [each.kernel for each in part.specialisations] or part.cuda:
            done(f"{part.target.name} {name}")
    order = {target.name: at for at, target in enumerate(targets)}
    names = {name: at for at, name in enumerate(kernels)}
    return Audit(
        tuple(sorted(findings, key=lambda f: (order[f.target], names[f.kernel], f.specialisation))),
        tuple(sorted(missing, key=lambda m: order[m.target])),
    )


@dataclass(frozen=True, slots=True)
class _Part:
    """What one process does at a time."""

    target: Target
    specialisations: tuple[Specialisation, ...]
    cuda: tuple[str, ...] = ()


def _done(
    parts: Sequence[_Part],
) -> Iterator[tuple[_Part, tuple[Finding, ...] | Missing]]:
    """Parts as they get done. A few are not worth processes, which take seconds to start."""
    if len(parts) <= _PARTS:
        yield from map(_compiled, parts)
        return
    # Not forked: PyTorch has threads.
    with multiprocessing.get_context("spawn").Pool(_PROCESSES) as pool:
        yield from pool.imap_unordered(_compiled, parts)


def _compiled(part: _Part) -> tuple[_Part, tuple[Finding, ...] | Missing]:
    if part.cuda:
        return part, cuda.compile_cuda(part.target, part.cuda)
    return part, compile_all(part.specialisations, part.target)
