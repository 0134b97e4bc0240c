"""Measuring in a process of its own, so that what ends it does not end the run.

An illegal address poisons a CUDA context, a fault in native code ends the process, a loop may never
end. The runner feeds a worker one case at a time; before each step the worker writes down in shared
memory which strategy is next, so that the runner knows whom to blame.
"""

import ctypes
import multiprocessing
import os
import pickle
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import psutil
import torch

from kvbench.cases import Case
from kvbench.errors import KvbenchError
from kvbench.results import Result, Status
from kvbench.strategies import registry
from kvbench.strategies.base import Strategy
from kvbench.sweep.bench import Machine, Settings, examine, set_up
from kvbench.sweep.checking import kernel_notes
from kvbench.sweep.measure import DeviceLostError, measure_case
from kvbench.units import format_duration

# Unix alone has it.
resource: Any = import_module("resource") if find_spec("resource") else None

_SPAWN = multiprocessing.get_context("spawn")  # a forked CUDA context does not work
_LOOK_EVERY_S = 0.2
_MEMORY_SHARE = 0.9
"""Of the memory that is free when a worker starts: what it may take more on a CPU."""
_NOBODY = -1
_MOST_FRUITLESS = 3
_START_S = 300.0
"""The longest that a process may take to start: it imports torch, and measures a copy."""
_LAST_WORDS_S = 5.0
_SET_PDEATHSIG = 1


class WorkerEnded(KvbenchError):  # noqa: N818 - it says what became of the worker
    """A worker's process ended, or was ended, in the middle of a case."""

    def __init__(self, index: int | None, status: Status, reason: str) -> None:
        super().__init__(reason)
        self.index = index
        """Of the strategies of the case, the one whose turn it was; None if it was nobody's."""
        self.status: Status = status


@dataclass(frozen=True, slots=True)
class Portable:
    """A strategy as it can be handed to another process."""

    name: str
    file: Path | None
    pickled: bytes | None
    """Where no registry has it."""

    @classmethod
    def of(cls, strategy: Strategy) -> "Portable":
        """A strategy by its name where the other process can look it up, else itself."""
        file = registry.file_of(strategy)
        built_in = type(strategy).__module__.startswith("kvbench.strategies.")
        if registry.is_registered(strategy) and (file is not None or built_in):
            return cls(strategy.name, file, None)
        return cls(strategy.name, None, pickle.dumps(strategy))


class Worker:
    """A process that measures cases, and is replaced when it ends.

    Args:
        settings: How to measure.
        strategies: All that cases may be measured with.
        hang_s: The longest that a single step may take; a worker that takes longer is killed.
    """

    def __init__(self, settings: Settings, strategies: Sequence[Strategy], hang_s: float) -> None:
        self._settings = settings
        self._portable = [Portable.of(strategy) for strategy in strategies]
        self._names = [strategy.name for strategy in strategies]
        self._hang_s = hang_s
        self._machine: Machine | None = None
        self._fruitless = 0
        self._start()

    def _start(self) -> None:
        self._marker = _SPAWN.RawArray("d", [_NOBODY, time.monotonic()])
        self._pipe, theirs = _SPAWN.Pipe()
        self._process = _SPAWN.Process(
            target=_serve,
            args=(theirs, self._marker, self._settings, self._portable, self._machine, os.getpid()),
            name="kvbench-worker",
            daemon=True,
        )
        self._process.start()
        self._ready = False
        theirs.close()

    @property
    def machine(self) -> Machine:
        """What the first worker found out about the device.

        Raises:
            WorkerEnded: The worker ended before it knew.
        """
        if self._machine is None:
            try:
                self._machine = self._receive(max(self._hang_s, _START_S))
                self._ready = True
            except EOFError:
                raise WorkerEnded(*self._epitaph()) from None
            except _Hung as hung:
                self.stop()
                raise WorkerEnded(None, "hung", str(hung)) from None
        return self._machine

    @property
    def pid(self) -> int | None:
        """Of the process as it is now."""
        return self._process.pid

    def measure(self, case: Case, strategies: Sequence[Strategy]) -> list[Result]:
        """A case's rows.

        Raises:
            WorkerEnded: The process ended; there is a fresh one already.
        """
        _ = self.machine  # it is the first thing that the first worker says
        indices = [self._names.index(strategy.name) for strategy in strategies]
        try:
            if not self._ready:
                self._receive(max(self._hang_s, _START_S))
                self._ready = True
            self._touch()
            self._pipe.send((case, indices))
            rows: list[Result] = self._receive(self._hang_s)
        except (EOFError, BrokenPipeError, ConnectionResetError):
            end = WorkerEnded(*self._epitaph())
        except DeviceLostError as error:
            end = WorkerEnded(self._turn(), "crashed", str(error))
        except _Hung as hung:
            end = WorkerEnded(self._turn(), "hung", str(hung))
        else:
            self._fruitless = 0
            return rows
        self.stop()
        self._fruitless = self._fruitless + 1 if end.index is None else 0
        if self._fruitless == _MOST_FRUITLESS:
            raise KvbenchError(
                f"{_MOST_FRUITLESS} processes in a row ended before any strategy's turn, the last: "
                f"{end}; expected a device that works"
            )
        self._start()
        raise end

    def notes(self) -> tuple[str, ...]:
        """What the process, which may have replaced others, has to say of its kernels."""
        if not self._ready:
            return ()
        try:
            self._touch()
            self._pipe.send(None)
            notes: tuple[str, ...] = self._receive(self._hang_s)
        except (EOFError, BrokenPipeError, ConnectionResetError, _Hung) as error:
            return (f"what became of the kernels is not known: the worker ended ({error!r})",)
        return notes

    def stop(self) -> None:
        """End the process, whatever it is doing."""
        self._process.kill()
        self._process.join()
        self._pipe.close()

    def _receive(self, limit_s: float) -> Any:  # noqa: ANN401 - a Machine, or rows
        while not self._pipe.poll(_LOOK_EVERY_S):
            if not self._process.is_alive() and not self._pipe.poll(0):
                raise EOFError
            since = time.monotonic() - self._marker[1]
            if since > limit_s:
                raise _Hung(
                    f"no sign of life for {format_duration(since)}, over the "
                    f"{format_duration(limit_s)} that a step may take; it was ended"
                )
        answer = self._pipe.recv()
        if isinstance(answer, Exception):
            raise answer
        return answer

    def _touch(self) -> None:
        self._marker[0], self._marker[1] = _NOBODY, time.monotonic()

    def _turn(self) -> int | None:
        index = int(self._marker[0])
        return None if index == _NOBODY else index

    def _epitaph(self) -> tuple[int | None, Status, str]:
        index = self._turn()
        self._process.join(_LAST_WORDS_S)
        if self._process.exitcode is None:  # it closed the pipe and lives on
            return index, "crashed", "the process that it ran in no longer answers; it was ended"
        how = how_ended(self._process.exitcode)
        return index, "crashed", f"the process that it ran in ended by {how}"


def how_ended(code: int) -> str:
    """A process's exit code in words; a negative one is a signal's."""
    if code < 0:
        with suppress(ValueError):
            return f"signal {-code} ({signal.Signals(-code).name})"
    return f"exit code {code}"


class _Hung(Exception):  # noqa: N818 - internal
    pass


def _serve(
    pipe: Connection,
    marker: Any,  # noqa: ANN401 - a shared array
    settings: Settings,
    portable: Sequence[Portable],
    machine: Machine | None,
    runner: int,
) -> None:
    """The worker's process: answer with the machine, then with the rows of each case sent."""
    die_with(runner)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it is the runner that is interrupted
    limit_memory(settings.device)
    try:
        strategies = unpack(portable)
        if machine is None:
            machine = examine(settings)
        pipe.send(machine)  # ready
        position = {id(strategy): index for index, strategy in enumerate(strategies)}

        def on_step(strategy: Strategy | None, step: str) -> None:
            del step
            marker[0] = _NOBODY if strategy is None else position[id(strategy)]
            marker[1] = time.monotonic()

        bench = set_up(settings, machine, on_step)
        while True:
            asked = pipe.recv()
            if asked is None:
                pipe.send(kernel_notes(torch.device(settings.device)))
                continue
            case, indices = asked
            pipe.send(measure_case(case, [strategies[i] for i in indices], bench))
    except EOFError:
        return  # the runner is done
    except Exception as error:
        with suppress(OSError):
            pipe.send(error if _can_travel(error) else KvbenchError(f"worker: {error!r}"))
        raise


def _can_travel(error: Exception) -> bool:
    try:
        return isinstance(pickle.loads(pickle.dumps(error)), type(error))  # noqa: S301 - our own
    except Exception:  # noqa: BLE001 - whatever keeps it from travelling
        return False


def unpack(portable: Sequence[Portable]) -> list[Strategy]:
    """The strategies, in this process.

    Raises:
        InputError: A file that registers some is not here, or fails.
    """
    registry.load_builtin()
    for file in dict.fromkeys(each.file for each in portable):
        if file is not None:
            registry.load_file(file)
    return [
        registry.get(each.name) if each.pickled is None else pickle.loads(each.pickled)  # noqa: S301
        for each in portable
    ]


def die_with(runner: int) -> None:
    """Let the system end this process when the runner's ends, however that ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SET_PDEATHSIG, signal.SIGKILL)
        # Of two that want memory, let it be the worker that is ended.
        with suppress(OSError):
            Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
    if os.getppid() != runner:
        sys.exit()  # it has ended already


def limit_memory(device: str) -> None:
    """On a CPU let an allocation fail, rather than have the system end a process of its choice."""
    if resource is None or device != "cpu":
        return
    own = psutil.Process().memory_info()
    free = psutil.virtual_memory().available
    limit = int(getattr(own, "data", own.vms) + _MEMORY_SHARE * free)
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    if hard == resource.RLIM_INFINITY or limit < hard:
        resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))
