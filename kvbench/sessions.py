"""Whether sessions belong together: runs that are resumed, merged or compared. Torch-free."""

import dataclasses
from collections.abc import Iterable, Sequence
from pathlib import Path

from kvbench.errors import InputError, StoreError
from kvbench.results import Environment, Resumption, RunInfo
from kvbench.store import Run, RunWriter

_OF_ENVIRONMENT = (
    *("kvbench", "git_commit", "git_dirty", "python", "torch", "triton"),
    *("os", "architecture", "cpu", "device_name", "device_runtime"),
)
_OF_ONE_DEVICE = ("device", "host")
_OF_RUN = ("cache", "seed", "cell_seconds", "call_budget_s")
_OF_GPU = ("driver",)
_OF_ONE_GPU = ("uuid",)


def differences(one: Environment, other: Environment, *, same_device: bool) -> list[str]:
    """What keeps measurements in two environments from being compared, each in words.

    Args:
        one: An environment.
        other: Another.
        same_device: Whether it has to be the very same device, not only one of the same kind.
    """
    names = _OF_ENVIRONMENT + (_OF_ONE_DEVICE if same_device else ())
    found = [
        f"{name} {getattr(one, name)!r} (here {getattr(other, name)!r})"
        for name in names
        if getattr(one, name) != getattr(other, name)
    ]
    return found + [
        f"{name} of the GPU {one.gpu.get(name)!r} (here {other.gpu.get(name)!r})"
        for name in _OF_GPU + (_OF_ONE_GPU if same_device else ())
        if one.gpu.get(name) != other.gpu.get(name)
    ]


def differing_limits(info: RunInfo, other: object) -> list[str]:
    """The limits of a run that another run, or a plan, does not share, each in words."""
    return [
        f"{name} {getattr(info, name)!r} (here {getattr(other, name)!r})"
        for name in _OF_RUN
        if getattr(info, name) != getattr(other, name)
    ]


_MACHINE = ("device_name", "cpu", "architecture", "os", "usable_cpus", "torch_threads", "host")
_GPU_ITSELF = ("uuid",)
_VERSIONS = ("kvbench", "git_commit", "git_dirty", "python", "torch", "triton", "device_runtime")
_GPU_VERSIONS = ("driver",)
_SETTINGS = ("cpu_governor",)
_GPU_SETTINGS = ("max_sm_clock_mhz", "max_memory_clock_mhz", "power_limit_w", "ecc", "mig")
_LIMITS = ("cell_seconds", "call_budget_s")


def other_machine(one: Run, other: Run) -> list[str]:
    """What makes times of two runs incomparable, each in words: another machine, another cache."""
    met = _meeting(one, other)
    caches = _unlike("cache", [(one.info.cache, other.info.cache)])
    return [*_of_environments(met, _MACHINE, _GPU_ITSELF), *_other_index(met), *caches]


def other_versions(one: Run, other: Run) -> list[str]:
    """What two runs may well differ in, each in words: the code, its libraries, the limits."""
    limits = [
        _unlike(name, [(getattr(one.info, name), getattr(other.info, name))]) for name in _LIMITS
    ]
    found = _of_environments(_meeting(one, other), _VERSIONS, _GPU_VERSIONS)
    return [*found, *(each for unlike in limits for each in unlike)]


def other_settings(one: Run, other: Run) -> list[str]:
    """How the machine was set otherwise in one of two runs, each in words."""
    return _of_environments(_meeting(one, other), _SETTINGS, _GPU_SETTINGS)


def _meeting(one: Run, other: Run) -> list[tuple[Environment, Environment]]:
    """The environments that have rows of the same cases; of runs without any, the first of each."""
    sessions: dict[object, tuple[set[int], set[int]]] = {}
    for index, run in enumerate((one, other)):
        for row in run.results:
            sessions.setdefault(row.case, (set(), set()))[index].add(row.session)
    pairs = {(a, b) for own, others in sessions.values() for a in own for b in others}
    ones, others = _environments(one.info), _environments(other.info)
    return [(ones[a], others[b]) for a, b in sorted(pairs or {(0, 0)})]


def _environments(info: RunInfo) -> tuple[Environment, ...]:
    return (info.environment, *(session.environment for session in info.resumptions))


def _of_environments(
    met: Sequence[tuple[Environment, Environment]], names: Sequence[str], gpu: Sequence[str]
) -> list[str]:
    found: list[str] = []
    for name in names:
        found += _unlike(name, [(getattr(one, name), getattr(other, name)) for one, other in met])
    for name in gpu:
        pairs = [(one.gpu.get(name), other.gpu.get(name)) for one, other in met]
        found += _unlike(f"{name} of the GPU", pairs)
    return found


def _other_index(met: Sequence[tuple[Environment, Environment]]) -> list[str]:
    """Where no UUID tells devices of one machine apart, their numbers do."""
    nameless = [pair for pair in met if None in {each.gpu.get("uuid") for each in pair}]
    return _unlike("device", [(one.device, other.device) for one, other in nameless])


def _unlike(name: str, pairs: Iterable[tuple[object, object]]) -> list[str]:
    """The first pair that is none of equals, in words."""
    return [f"{name} {one!r} and {other!r}" for one, other in pairs if one != other][:1]


def merge(folder: Path, runs: Sequence[Run], command: str, *, mixed: bool) -> RunInfo:
    """Write the rows of several runs, the shards of a sweep, as one run.

    Each session of each run is one of its own, so that a row still tells which machine measured it.

    Args:
        folder: Where to; empty or new.
        runs: Two or more runs that share no case.
        command: What is noted as the run's command.
        mixed: Merge even what was measured on other machines, or with other versions or limits.

    Raises:
        InputError: There is one run alone, or two have rows of the same case and strategy.
        StoreError: The runs don't belong together, or the folder can't be written.
    """
    if len(runs) < 2:  # noqa: PLR2004 - one is merged already
        raise InputError(f"{len(runs)} run to merge; expected two or more")
    first = runs[0]
    owner: dict[tuple[object, str], int] = {}
    for number, run in enumerate(runs):
        every = [
            each
            for environment in _environments(run.info)
            for each in differences(first.info.environment, environment, same_device=False)
        ]
        found = list(dict.fromkeys([*every, *differing_limits(first.info, run.info)]))
        if found and not mixed:
            raise StoreError(
                f"run {str(run.folder)!r} differs from "
                f"{repr(str(first.folder)) if number else 'its own first session'}: "
                f"{', '.join(found)}; "
                "expected the same, or --allow-mixed"
            )
        for row in run.results:
            other = owner.setdefault((row.case, row.strategy), number)
            if other != number:
                raise InputError(
                    f"runs {str(runs[other].folder)!r} and {str(run.folder)!r} both have rows of "
                    f"{row.strategy} in one case ({row.case.label()}); expected shards of one sweep"
                )
    info = dataclasses.replace(first.info, command=command, resumptions=())
    with RunWriter(folder, info) as writer:
        for number, run in enumerate(runs):
            begun = [writer.begin_session(_as_later(run.info)) if number else 0]
            begun += map(writer.begin_session, run.info.resumptions)
            for row in run.results:
                writer.append(row, session=begun[row.session])
        return writer.info


def _as_later(info: RunInfo) -> Resumption:
    """The first session of a run as one of another run."""
    return Resumption(
        created=info.created,
        command=info.command,
        environment=info.environment,
        copy_bandwidth=info.copy_bandwidth,
        findings=info.findings,
    )
