"""Sweeps over a cluster, with simulated hosts: whoever is lost, every case is measured."""

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from made import contents, environment, measurement, run_info

from kvbench.axes import Axes
from kvbench.cases import Case
from kvbench.errors import InputError, KvbenchError, StoreError
from kvbench.results import CopyBandwidth, Result
from kvbench.store import RunWriter, load
from kvbench.strategies import registry
from kvbench.sweep.bench import Machine
from kvbench.sweep.cluster import Answer, Cluster, Host, Place, connect
from kvbench.sweep.fleet import FleetEnded, Told, run_fleet
from kvbench.sweep.runner import Plan
from kvbench.sweep.worker import WorkerEnded
from kvbench.timing.clocks import Floor

registry.load_builtin()

GPU = torch.device("cuda:0")
LOST = "ActorDiedError: its node died"


def plan(batches: int = 6, **fields) -> Plan:
    return Plan(
        **{
            "cases": Axes.parse(["op=write", f"batch=1:{batches}:+1", "seq_len=3"]).expand(),
            "strategies": registry.select(["write.loop", "write.slot_mapping"]),
            "device": GPU,
            "command": "kvbench run",
            "preset": None,
            "seed": 0,
            "cell_seconds": 0.05,
            "call_budget_s": 1.0,
            "layers": 32,
            "clocks": ("wall",),
            "cache": "hot",
            **fields,
        }
    )


def place(name: str, number: int = 0) -> Place:
    return Place(name, name, 4, 1, number)


def machine(at: Place, device_name: str = "Made GPU", **fields) -> Machine:
    return Machine(
        environment=environment(
            device="cuda:0", device_name=device_name, host=str(at), gpu={"driver": "1"}, **fields
        ),
        copy_bandwidth=CopyBandwidth(bytes_per_s=1e12, nbytes=1 << 30, how="torch copy_"),
        cache_bytes=1 << 20,
        floors={"wall": Floor(call_s=1e-8, sample_s=1e-8)},
        launch_floor_s=1e-6,
    )


class Simulated:
    """A cluster whose hosts answer in turn.

    Args:
        machines: What each place is found to be; a text is why it takes no part.
        dies: Asked with a place and a case whether the host is lost in the middle of it.
    """

    def __init__(
        self,
        machines: dict[Place, Machine | str],
        dies: Callable[[Place, Case], bool] = lambda *_: False,
    ) -> None:
        self.machines = machines
        self.dies = dies
        self.there = list(machines)
        self.opened: set[Place] = set()
        self.queue: deque[tuple[Place, Case | None]] = deque()
        self.measured: list[tuple[Place, Case]] = []
        self.most_at_once: Counter[Place] = Counter()

    def places(self, device):
        assert device == GPU
        return self.there

    def open(self, place, _settings, strategies, _hang_s):
        self.strategies = strategies
        self.opened.add(place)
        self.queue.append((place, None))

    def close(self, place):
        self.opened.remove(place)

    def submit(self, place, case):
        assert place in self.opened
        assert place not in [other for other, _ in self.queue], "one case at a time"
        self.queue.append((place, case))

    def busy(self):
        return bool(self.queue)

    def is_open(self, place):
        return place in self.opened

    def answers(self, _wait_s):
        at, case = self.queue.popleft()
        if case is None:
            yield Answer(at, None, self.machines[at])
            return
        if self.dies(at, case):
            self.opened.discard(at)
            yield Answer(at, case, LOST)
            return
        self.measured.append((at, case))
        yield Answer(at, case, rows(case, self.strategies))


def rows(case: Case, strategies) -> list[Result]:
    return [
        Result(
            case=case,
            strategy=strategy.name,
            phase=phase,
            clock="wall",
            cache="hot",
            status="ok",
            measurement=measurement(),
            repro="kvbench run",
        )
        for strategy in strategies
        for phase in (("run", "prepare") if strategy.has_prepare() else ("run",))
    ]


def sweep(hosts: Simulated, folder, the_plan: Plan | None = None, **options) -> FleetEnded:
    hosts.notes = []
    told = Told(on_note=hosts.notes.append)
    return run_fleet(the_plan or plan(), hosts, folder, told, **options)


def batches(folder, status: str = "ok") -> Counter[int]:
    return Counter(
        row.case.batch
        for row in load(folder).results
        if row.strategy == "write.loop" and row.status == status
    )


ONCE = Counter(range(1, 7))


def test_machines_of_one_kind_share_a_run_and_stay_apart_in_it(tmp_path):
    hosts = Simulated({place(name): machine(place(name)) for name in "ab"})
    ended = sweep(hosts, tmp_path)
    assert ended == FleetEnded((tmp_path / "made-gpu",), 6, 0, "complete")
    assert batches(tmp_path / "made-gpu") == ONCE
    run = load(tmp_path / "made-gpu")
    hosts_of = [run.info.environment.host, *(r.environment.host for r in run.info.resumptions)]
    assert hosts_of == ["a GPU 0", "b GPU 0"]
    by = {case.batch: str(at) for at, case in hosts.measured}
    assert {row.case.batch: hosts_of[row.session] for row in run.results} == by
    assert set(by.values()) == {"a GPU 0", "b GPU 0"}
    assert run.info.resumptions[0].copy_bandwidth.bytes_per_s == 1e12


def test_the_gpus_of_a_node_are_hosts_of_their_own(tmp_path):
    hosts = Simulated({place("a", number): machine(place("a", number)) for number in range(3)})
    assert sweep(hosts, tmp_path).why == "complete"
    assert len({at for at, _ in hosts.measured}) == 3


def test_another_kind_of_machine_measures_everything_into_a_run_of_its_own(tmp_path):
    kinds = {
        place("a"): machine(place("a")),
        place("b"): machine(place("b"), "Other GPU"),
        place("c"): machine(place("c"), torch="2.11.0"),
    }
    ended = sweep(Simulated(kinds), tmp_path)
    names = ["made-gpu", "other-gpu", "made-gpu-2"]
    assert ended == FleetEnded(tuple(tmp_path / name for name in names), 18, 0, "complete")
    for name in names:
        assert batches(tmp_path / name) == ONCE
    assert load(tmp_path / "made-gpu-2").info.environment.torch == "2.11.0"


def test_what_a_lost_host_was_measuring_another_measures(tmp_path):
    dead: set[Place] = set()

    def dies(at: Place, _) -> bool:
        if at.host == "b" and not dead:
            dead.add(at)
            hosts.there.remove(at)
            return True
        return False

    hosts = Simulated({place(name): machine(place(name)) for name in "ab"}, dies)
    assert sweep(hosts, tmp_path).why == "complete"
    assert batches(tmp_path / "made-gpu") == ONCE
    assert f"b GPU 0 was lost: {LOST}" in hosts.notes


def test_a_host_that_comes_back_takes_part_again_as_a_session_of_its_own(tmp_path):
    died = []

    def dies(at: Place, _) -> bool:
        died.append(at)
        return len(died) == 1

    hosts = Simulated({place("a"): machine(place("a"))}, dies)
    assert sweep(hosts, tmp_path).why == "complete"
    assert batches(tmp_path / "made-gpu") == ONCE
    assert {row.session for row in load(tmp_path / "made-gpu").results} == {1}


def test_a_case_that_costs_two_hosts_is_given_up_and_the_others_are_measured(tmp_path, monkeypatch):
    monkeypatch.setattr("kvbench.sweep.fleet._LOOK_EVERY_S", 0.0)
    poison = plan().in_order()[2]
    hosts = Simulated(
        {place(name): machine(place(name)) for name in "ab"}, lambda _, case: case == poison
    )
    assert sweep(hosts, tmp_path).why == "complete"
    assert batches(tmp_path / "made-gpu") == ONCE - Counter([poison.batch])
    assert batches(tmp_path / "made-gpu", "crashed") == Counter([poison.batch])
    row = next(r for r in load(tmp_path / "made-gpu").results if r.status == "crashed")
    assert row.reason == f"2 hosts were lost while they measured this case, the last: {LOST}"
    assert "batch=" in row.repro or poison.batch == 1


def test_a_place_whose_hosts_are_always_lost_is_left_alone(tmp_path, monkeypatch):
    monkeypatch.setattr("kvbench.sweep.fleet._LOOK_EVERY_S", 0.0)
    lost = []

    def dies(at: Place, _) -> bool:
        lost.append(at)
        return at.host == "b"

    hosts = Simulated({place(name): machine(place(name)) for name in "ab"}, dies)
    assert sweep(hosts, tmp_path, plan(batches=30)).why == "complete"
    assert sum(at.host == "b" for at in lost) == 3
    rows = [row for row in load(tmp_path / "made-gpu").results if row.strategy == "write.loop"]
    assert len(rows) == 30


def test_a_machine_that_cannot_be_measured_on_is_said_and_left_out(tmp_path):
    hosts = Simulated({place("a"): machine(place("a")), place("b"): "no clock named 'device'"})
    assert sweep(hosts, tmp_path).why == "complete"
    assert "b GPU 0 takes no part: no clock named 'device'" in hosts.notes
    assert {at for at, _ in hosts.measured} == {place("a")}


@pytest.mark.parametrize("machines", [{}, {place("a"): "broken"}])
def test_without_any_machine_there_is_an_error(machines, tmp_path):
    with pytest.raises(KvbenchError, match="no machine of the cluster could be measured on"):
        sweep(Simulated(machines), tmp_path)


def test_a_cluster_that_is_gone_leaves_the_rest_for_a_resumed_run(tmp_path):
    def dies(*_) -> bool:
        gone = len(hosts.measured) == 2
        if gone:
            hosts.there = []
        return gone

    hosts = Simulated({place("a"): machine(place("a"))}, dies)
    ended = sweep(hosts, tmp_path)
    assert (ended.measured, ended.left, ended.why) == (2, 4, "no machine left")
    later = Simulated({place("z"): machine(place("z"))})
    assert sweep(later, tmp_path, resume=True).why == "complete"
    assert len(later.measured) == 4
    assert batches(tmp_path / "made-gpu") == ONCE


def test_the_time_budget_ends_it_and_a_resumed_run_goes_on(tmp_path):
    hosts = Simulated({place("a"): machine(place("a"))})
    ended = sweep(hosts, tmp_path, time_budget_s=0.0)
    assert (ended.measured, ended.left, ended.why) == (0, 6, "time budget")
    assert sweep(hosts, tmp_path, resume=True).why == "complete"


def test_a_resumed_run_finds_its_kind_and_says_what_is_another(tmp_path):
    sweep(Simulated({place("a"): machine(place("a"))}), tmp_path)
    before = contents(tmp_path / "made-gpu")
    hosts = Simulated({place("a"): machine(place("a"), torch="2.11.0")})
    ended = sweep(hosts, tmp_path, resume=True)
    assert ended.folders == (tmp_path / "made-gpu-2",)
    assert any("is of another kind: torch '2.13.0' (here '2.11.0')" in n for n in hosts.notes)
    assert contents(tmp_path / "made-gpu") == before


def test_other_limits_are_refused(tmp_path):
    sweep(Simulated({place("a"): machine(place("a"))}), tmp_path)
    with pytest.raises(StoreError, match=r"cell_seconds 0.05 \(here 0.5\)"):
        sweep(
            Simulated({place("a"): machine(place("a"))}),
            tmp_path,
            plan(cell_seconds=0.5),
            resume=True,
        )


def test_a_folder_in_use_and_a_run_of_one_machine_are_refused(tmp_path):
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(StoreError, match="other files"):
        sweep(Simulated({}), tmp_path)
    RunWriter(tmp_path / "run", run_info()).__exit__(None, None, None)
    with pytest.raises(StoreError, match="holds the run of one machine"):
        sweep(Simulated({}), tmp_path / "run", resume=True)


@given(
    deaths=st.sets(st.tuples(st.sampled_from("abc"), st.integers(1, 6)), max_size=6),
    kinds=st.lists(st.sampled_from(["Made GPU", "Other GPU"]), min_size=3, max_size=3),
)
def test_whoever_is_lost_every_case_has_its_rows_once_on_every_kind_that_lasts(
    deaths, kinds, tmp_path_factory
):
    left = set(deaths)

    def dies(at: Place, case: Case) -> bool:
        key = (at.host, case.batch)
        hosts.most_at_once[at] += 1
        if key in left:
            left.remove(key)
            hosts.there = [other for other in hosts.there if other != at]
            return True
        return False

    hosts = Simulated(
        {place(name): machine(place(name), kind) for name, kind in zip("abc", kinds, strict=True)},
        dies,
    )
    folder = tmp_path_factory.mktemp("fleet")
    ended = sweep(hosts, folder)
    total = Counter[int]()
    for each in ended.folders:
        found = batches(each) + batches(each, "crashed")
        assert not found - ONCE
        total += found
    assert total.total() == ended.measured
    assert ended.measured + ended.left == 6 * len(ended.folders)
    if ended.why == "complete":
        assert ended.left == 0


# What knows Ray, with Ray simulated.


class Nodes:
    """Ray, as far as it tells of nodes."""

    def __init__(self, *resources: dict[str, float], dead: int = 0) -> None:
        self.all = [
            {
                "Alive": number >= dead,
                "NodeID": f"{number:02}" * 16,
                "NodeManagerHostname": "node",
                "Resources": each,
            }
            for number, each in enumerate(resources)
        ]

    def nodes(self):
        return self.all


def test_every_gpu_of_every_living_node_is_a_place_and_on_cpus_every_node():
    cluster = Cluster(Nodes({"CPU": 8, "GPU": 2}, {"CPU": 8, "GPU": 2}, {"CPU": 4}, dead=1))
    assert [(p.host[:7], p.cpus, p.gpus, p.number) for p in cluster.places(GPU)] == [
        ("node/01", 4, 1, 0),
        ("node/01", 4, 1, 1),
    ]
    cpus = cluster.places(torch.device("cpu"))
    assert [(p.host[:7], p.cpus, p.gpus) for p in cpus] == [("node/01", 8, 0), ("node/02", 4, 0)]


@pytest.mark.parametrize(
    ("name", "resources", "expected"),
    [
        ("auto", {"CPU": 2, "GPU": 1}, "cuda:0"),
        ("auto", {"CPU": 2}, "cpu"),
        ("cpu", {"CPU": 2, "GPU": 1}, "cpu"),
        ("cuda", {"CPU": 2}, "cuda:0"),
    ],
)
def test_the_device_of_the_hosts(name, resources, expected):
    assert Cluster(Nodes(resources)).device(name) == torch.device(expected)


def test_which_gpu_is_not_the_users_to_say():
    with pytest.raises(InputError, match="'cuda:1' with --ray: expected auto, cpu or cuda"):
        Cluster(Nodes({"GPU": 2})).device("cuda:1")


def test_a_host_whose_worker_does_not_start_says_why(monkeypatch):
    class Broken:
        def __init__(self, *_):
            pass

        @property
        def machine(self):
            raise WorkerEnded(None, "crashed", "no such device")

    monkeypatch.setattr("kvbench.sweep.cluster.Worker", Broken)
    assert Host(plan().settings(), [], 300.0, "a").examine() == "no such device"


class Failing(Nodes):
    """Ray, with a host that fails."""

    class exceptions:  # noqa: N801 - as Ray has it
        class RayError(Exception):
            cause = None

    def __init__(self, error: Exception) -> None:
        super().__init__({"GPU": 1})
        self.error = error
        self.killed = []

    def wait(self, refs, **_):
        return list(refs), []

    def get(self, _):
        raise self.error

    def kill(self, actor):
        self.killed.append(actor)


def test_a_host_that_fails_is_ended_and_says_what_failed():
    error = Failing.exceptions.RayError("ray::Host.measure() (pid=1)\n  File ...")
    error.cause = TypeError("a fault\nof ours")
    ray = Failing(error)
    cluster = Cluster(ray)
    at = place("a")
    cluster._hosts[at] = "host"
    cluster._pending["ref"] = (at, None)
    assert list(cluster.answers(1.0)) == [Answer(at, None, "TypeError: a fault of ours")]
    assert ray.killed == ["host"]
    assert not cluster.is_open(at)
    assert not cluster.busy()


@pytest.mark.parametrize("address", ["127.0.0.1:1", "127.0.0.1:port", "nowhere"])
def test_an_address_where_nobody_listens_is_an_error_at_once(address):
    expected = rf"Ray at '{address}': .*; expected the address"
    with pytest.raises(InputError, match=expected), connect(address):
        pass


def test_without_ray_the_error_says_how_to_get_it(monkeypatch):
    monkeypatch.setattr("kvbench.sweep.cluster.find_spec", lambda _: None)
    with pytest.raises(InputError, match=r"pip install '\.\[ray\]'"), connect("auto"):
        pass
    assert replace(place("a"), gpus=0).__str__() == "a"
