"""Machines and GPUs of a Ray cluster, and what runs on each: a host with a worker of its own.

Ray is optional: `pip install '.[ray]'` in a clone. Everything that knows Ray is in this file.
"""

import dataclasses
import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch

from kvbench.cases import Case
from kvbench.errors import InputError, KvbenchError
from kvbench.results import Result
from kvbench.strategies.base import Strategy
from kvbench.sweep.bench import Machine, Settings
from kvbench.sweep.measure import one_line
from kvbench.sweep.survive import survive
from kvbench.sweep.worker import Portable, Worker, unpack

_ID_DIGITS = 8
"""Of a node's id: enough to tell nodes apart."""
_REACH_S = 10.0
"""How long to wait for a cluster to be reached."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a host can be: a whole GPU, or a whole node where the CPU is measured."""

    node_id: str
    host: str
    """The node's name, and of its id what tells it from another of that name."""
    cpus: float
    gpus: int
    number: int
    """Which of the node's GPUs, as a count alone: Ray picks one that is free."""

    def __str__(self) -> str:
        return f"{self.host} GPU {self.number}" if self.gpus else self.host


class Host:
    """A Ray actor: measures cases in a worker process of its own, and outlives that.

    Args:
        settings: How to measure.
        portable: The strategies.
        hang_s: The longest that a step may take.
        host: What to call the machine.
    """

    def __init__(
        self, settings: Settings, portable: Sequence[Portable], hang_s: float, host: str
    ) -> None:
        self._settings = settings
        self._portable = portable
        self._hang_s = hang_s
        self._host = host

    def examine(self) -> Machine | str:
        """What was found out about the device, or why it can't be measured on."""
        try:
            self._strategies: list[Strategy] = unpack(self._portable)
            self._worker = Worker(self._settings, self._strategies, self._hang_s)
            machine = self._worker.machine
        except KvbenchError as error:
            return str(error)
        here = dataclasses.replace(machine.environment, host=self._host)
        return dataclasses.replace(machine, environment=here)

    def measure(self, case: Case) -> list[Result] | str:
        """A case's rows, or why this host can measure no more."""
        try:
            return survive(case, self._strategies, self._settings, self._worker)
        except KvbenchError as error:
            return str(error)


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back from a host."""

    place: Place
    case: Case | None
    """What it was to measure; None if it was to be examined."""
    value: Machine | list[Result] | str
    """What it found, or why it is lost."""


class Cluster:
    """A Ray cluster that this process is connected to.

    Args:
        ray: The module, connected.
    """

    def __init__(self, ray: Any) -> None:  # noqa: ANN401 - a module
        self._ray = ray
        self._hosts: dict[Place, Any] = {}
        self._pending: dict[Any, tuple[Place, Case | None]] = {}

    def device(self, name: str) -> torch.device:
        """The device that each host measures on: "auto" is a GPU, if the cluster has any.

        Raises:
            InputError: It names one of several, which is Ray's to choose.
        """
        if name == "auto":
            gpus = any(node["Resources"].get("GPU", 0) >= 1 for node in self._nodes())
            return torch.device("cuda:0" if gpus else "cpu")
        if name not in {"cpu", "cuda"}:
            raise InputError(f"device {name!r} with --ray: expected auto, cpu or cuda")
        return torch.device("cuda:0" if name == "cuda" else name)

    def places(self, device: torch.device) -> list[Place]:
        """Where hosts can be at this moment, in a fixed order."""
        found = []
        for node in sorted(self._nodes(), key=lambda node: str(node["NodeID"])):
            node_id = node["NodeID"]
            host = f"{node['NodeManagerHostname']}/{node_id[:_ID_DIGITS]}"
            cpus, gpus = (float(node["Resources"].get(kind, 0)) for kind in ("CPU", "GPU"))
            if device.type == "cpu" and cpus >= 1:
                found.append(Place(node_id, host, cpus, 0, 0))
            elif device.type != "cpu":
                share = cpus // gpus if gpus else 0
                found += [Place(node_id, host, share, 1, n) for n in range(int(gpus))]
        return found

    def _nodes(self) -> list[dict[str, Any]]:
        return [node for node in self._ray.nodes() if node["Alive"]]

    def open(
        self, place: Place, settings: Settings, strategies: Sequence[Strategy], hang_s: float
    ) -> None:
        """Start a host, and let it find out about its device. It waits for what others hold."""
        affinity = import_module("ray.util.scheduling_strategies").NodeAffinitySchedulingStrategy
        actor = self._ray.remote(Host).options(
            num_cpus=place.cpus,
            num_gpus=place.gpus,
            max_restarts=0,
            scheduling_strategy=affinity(node_id=place.node_id, soft=False),
        )
        portable = [_anywhere(Portable.of(strategy)) for strategy in strategies]
        self._hosts[place] = actor.remote(settings, portable, hang_s, str(place))
        self._pending[self._hosts[place].examine.remote()] = (place, None)

    def close(self, place: Place) -> None:
        """End a host. What it was to do is forgotten."""
        self._ray.kill(self._hosts.pop(place))
        self._pending = {ref: what for ref, what in self._pending.items() if what[0] != place}

    def submit(self, place: Place, case: Case) -> None:
        """Let a host measure a case."""
        self._pending[self._hosts[place].measure.remote(case)] = (place, case)

    def busy(self) -> bool:
        """Whether any answer is still to come."""
        return bool(self._pending)

    def answers(self, wait_s: float) -> Iterator[Answer]:
        """What has come back, after waiting for something to. A host without a value is gone."""
        ready, _ = self._ray.wait(list(self._pending), num_returns=len(self._pending), timeout=0)
        if not ready:
            ready, _ = self._ray.wait(list(self._pending), num_returns=1, timeout=wait_s)
        for ref in ready:
            place, case = self._pending.pop(ref)
            value: Machine | list[Result] | str
            try:
                value = self._ray.get(ref)
            except self._ray.exceptions.RayError as error:
                # A node that died, or a host that was ended; what a strategy does is no error here.
                value = one_line(getattr(error, "cause", None) or error)
                self._ray.kill(self._hosts.pop(place))  # if it lives on, it would keep its GPU
            yield Answer(place, case, value)

    def is_open(self, place: Place) -> bool:
        """Whether a host is there, as far as is known."""
        return place in self._hosts


def _no_cluster(address: str, what: str) -> InputError:
    return InputError(
        f"Ray at {address!r}: {what}; expected the address of a running cluster, as auto or "
        "HOST:6379, or local"
    )


def _refuse_silence(address: str) -> None:
    """Ray itself tries for minutes to reach an address where nobody listens."""
    host, colon, port = address.rpartition("/")[2].rpartition(":")
    if not colon:
        if address not in {"auto", "local"}:
            raise _no_cluster(address, "no port")
        return
    try:
        socket.create_connection((host, int(port)), timeout=_REACH_S).close()
    except (OSError, ValueError) as error:
        raise _no_cluster(address, str(error)) from error


def _anywhere(portable: Portable) -> Portable:
    """A host works in a folder of its own: a file has to be there under the same absolute path."""
    file = portable.file
    return portable if file is None else dataclasses.replace(portable, file=file.absolute())


@contextmanager
def connect(address: str) -> Iterator[Cluster]:
    """A connection to a Ray cluster, until the context ends; its hosts end with it.

    Args:
        address: As Ray takes it: "auto", "HOST:6379", or "local" for a cluster of this machine.

    Raises:
        InputError: Ray is not installed, or nothing answers there.
    """
    if find_spec("ray") is None:
        raise InputError(
            "--ray: Ray is not installed; expected it, as by pip install '.[ray]' in a clone"
        )
    _refuse_silence(address)
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    ray = import_module("ray")
    own = {"include_dashboard": False} if address == "local" else {}
    try:
        ray.init(address=address, log_to_driver=False, logging_level="ERROR", **own)
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise _no_cluster(address, " ".join(str(error).split())) from error
    try:
        yield Cluster(ray)
    finally:
        ray.shutdown()
