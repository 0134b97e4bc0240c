"""Two trees measured in turns: rounds of both sides, what ends in them, and the two runs."""

import dataclasses
import json
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import msgspec
import psutil
import pytest
from made import measurement, result, run_folder
from made_git import commit, git, isolated
from made_sides import (
    AFTER,
    CHECK,
    MACHINE,
    PREPARE,
    SAMPLE,
    SETTINGS,
    TIMED,
    EndsError,
    Simulated,
    World,
    ends,
    measured,
)

from kvbench.analysis.comparison import Rules, compare
from kvbench.analysis.statistics import median_interval
from kvbench.cases import Case
from kvbench.errors import InputError, KvbenchError, StoreError
from kvbench.store import Run, load
from kvbench.sweep import ab, messages
from kvbench.sweep.ab import ROUNDS, AbPlan, run_ab
from kvbench.sweep.interleave import Interleaved, joined
from kvbench.sweep.sides import Side
from kvbench.sweep.trees import Tree, tree
from kvbench.timing.rounds import StoppingRule

CASE = Case(op="write", seq_len=3)
OTHER = Case(op="write", seq_len=8)
NAMES = ("write.one", "write.two")
RULE = StoppingRule(relative_half_width=-1.0, min_rounds=2, max_rounds=6, cell_seconds=60.0)


@pytest.fixture
def world() -> World:
    return World(strategies={"a": NAMES, "b": NAMES})


@pytest.fixture
def outcome() -> Interleaved:
    return Interleaved(SETTINGS, RULE, {})


def measure(outcome: Interleaved, world: World, *cases: Case, pairs: int = 1) -> None:
    """Each case in so many pairs of fresh processes."""
    for _ in range(pairs):
        sides = world.pair()
        for case in cases or (CASE,):
            outcome.measure(case, sides, world.strategies)


def status(outcome: Interleaved, label: str, case: Case = CASE) -> list[dict[str, str]]:
    return measured(outcome.rows[label], case)


OK = dict.fromkeys(NAMES, "ok")


def in_rounds(world: World, count: int, rounds: int = 6) -> list[Counter]:
    """The last samples, by rounds of so many subjects."""
    taken = [(label, name, phase) for label, _, _, name, phase, _ in world.samples]
    last = taken[-count * rounds :]
    return [Counter(last[at : at + count]) for at in range(0, len(last), count)]


def test_every_round_has_one_sample_of_each_subject_of_both_sides(outcome, world):
    measure(outcome, world)
    every = Counter((label, name, phase) for label in "ab" for name in NAMES for phase in TIMED)
    assert in_rounds(world, len(every)) == [every] * 6
    for label in "ab":
        assert status(outcome, label) == [OK]
        [rows] = outcome.rows[label][CASE]
        assert [(row.strategy, row.phase) for row in rows] == [
            (name, phase) for name in NAMES for phase in TIMED
        ]
        assert {len(row.measurement.samples_s) for row in rows} == {6}


def test_the_order_of_a_round_is_not_that_of_the_sides(outcome, world):
    measure(outcome, world)
    labels = "".join(sample[0] for sample in world.samples[-48:])
    assert "ab" in labels
    assert "ba" in labels
    assert labels != "aaaabbbb" * 6


def test_all_pairs_of_processes_take_as_many_calls(outcome, world):
    world.seconds = {("a", "write.one"): 1e-6, ("b", "write.one"): 1.1e-6}
    measure(outcome, world)
    first = calls_of(world)
    assert first["a", "write.one"] == first["b", "write.one"] > 100
    world.samples.clear()
    # What is faster now is no reason for other samples than those of the same row before.
    world.seconds = {("a", "write.one"): 1e-8}
    measure(outcome, world)
    assert {calls for *_, calls in world.samples} == set(first.values())
    assert calls_of(world) == first
    # One more than its samples: nothing was looked for.
    assert Counter(sample[3] for sample in world.samples)["write.one"] == 4 * (6 + 1)


def calls_of(world: World) -> dict[tuple[str, str], int]:
    """Of the last sample of each."""
    return {(label, name): calls for label, _, _, name, _, calls in world.samples}


def test_sides_may_offer_different_strategies(outcome, world):
    world.strategies = {"a": ("write.one", "write.gone"), "b": ("write.one", "write.new")}
    measure(outcome, world, pairs=2)
    assert status(outcome, "a") == [{"write.one": "ok", "write.gone": "ok"}] * 2
    assert status(outcome, "b") == [{"write.one": "ok", "write.new": "ok"}] * 2
    assert {sum(counts.values()) for counts in in_rounds(world, 8)} == {8}


def test_a_side_may_have_nothing_to_measure(outcome, world):
    world.strategies = {"a": (), "b": NAMES}
    measure(outcome, world)
    assert status(outcome, "a") == [{}]
    assert status(outcome, "b") == [OK]
    assert [label for label, _, _ in world.begun] == ["b"]


@pytest.mark.parametrize(
    "clocks",
    [
        {"a": ("wall", "device"), "b": ("wall", "enqueue", "device")},
        {"a": ("enqueue", "graph"), "b": ("wall", "device", "events")},
        {"a": ("wall", "sundial"), "b": ("wall", "graph")},
        {"a": ("wall",), "b": ("wall", "sundial")},
    ],
)
def test_sides_may_have_different_clocks(outcome, world, clocks):
    world.clocks = clocks
    measure(outcome, world)
    for label in "ab":
        [rows] = outcome.rows[label][CASE]
        assert {row.status for row in rows} == {"ok"}
        assert Counter(row.clock for row in rows) == dict.fromkeys(clocks[label], 4)
    # What both have, they use together: every round has both sides'.
    for common in set(clocks["a"]) & set(clocks["b"]):
        labels = [label for label, _, clock, *_ in world.samples if clock == common]
        rounds = [Counter(labels[at : at + 8]) for at in range(len(labels) - 48, len(labels), 8)]
        assert rounds == [{"a": 4, "b": 4}] * 6


def test_what_raises_on_one_side_has_its_row_there_and_all_else_goes_on(outcome, world):
    def fate(label: str, _: Case, name: str, step: str) -> None:
        if (label, name, step) == ("b", "write.two", SAMPLE) and len(world.samples) >= 20:
            raise ValueError("nothing fits")

    world.fate = fate
    measure(outcome, world)
    assert status(outcome, "a") == [OK]
    assert status(outcome, "b") == [{"write.one": "ok", "write.two": "failed"}]
    assert world.starts == {"a": 1, "b": 1}
    [rows] = outcome.rows["b"][CASE]
    assert {row.reason for row in rows if row.strategy == "write.two"} == {"nothing fits"}
    assert {sum(counts.values()) for counts in in_rounds(world, 6)} == {6}
    left = {("b", "write.one"), ("a", "write.one"), ("a", "write.two")}
    assert {(label, name) for label, name, _ in in_rounds(world, 6)[0]} == left


def test_what_fails_its_check_is_not_sampled(outcome, world):
    def fate(label: str, _: Case, name: str, step: str) -> None:
        if (label, name, step) == ("a", "write.one", CHECK):
            raise ValueError("a bit is wrong")

    world.fate = fate
    measure(outcome, world)
    assert status(outcome, "a") == [{"write.one": "failed", "write.two": "ok"}]
    assert status(outcome, "b") == [OK]


@pytest.mark.parametrize("label", ["a", "b"])
@pytest.mark.parametrize("step", [CHECK, PREPARE, SAMPLE, AFTER])
@pytest.mark.parametrize("clock", ["wall", "device"])
def test_who_ends_its_process_is_left_out_on_its_side_alone(outcome, world, label, step, clock):
    name = "write.one" if step in {CHECK, AFTER} else "write.two"
    # Where one side has a clock more, the other is not in the same step when it ends.
    world.clocks = {"a": tuple(dict.fromkeys(("wall", clock))), "b": ("wall",)}
    world.fate = ends(label, name, step)
    sides = world.pair()
    for case in (CASE, OTHER):
        outcome.measure(case, sides, world.strategies)
    other = "ab".replace(label, "")
    [survivor] = set(NAMES) - {name}
    for case in (CASE, OTHER):
        assert status(outcome, label, case) == [{name: "crashed", survivor: "ok"}]
        assert status(outcome, other, case) == [OK]
    assert world.starts == {label: 3, other: 1}
    [row] = [row for row in outcome.rows[label][CASE][0] if row.strategy == name]
    assert (row.case, row.phase, row.clock, row.reason) == (CASE, "run", "wall", "it ended")
    # Begun anew on both, so that rounds are whole: the last ones have all that is left.
    assert [(each, names) for each, case, names in world.begun if case == CASE][-2:] == [
        ("a", (survivor,) if label == "a" else NAMES),
        ("b", (survivor,) if label == "b" else NAMES),
    ]
    world.begun.clear()
    measure(outcome, world)
    assert world.starts == {label: 4, other: 2}
    assert [names for each, _, names in world.begun if each == label] == [(survivor,)]
    assert status(outcome, label) == [{name: "crashed", survivor: "ok"}] * 2
    [row] = [row for row in joined(outcome.rows[label][CASE]) if row.strategy == name]
    assert row.status == "crashed"


def test_the_row_of_who_ended_has_the_command_that_measures_it_again(outcome, world):
    world.files = {"write.one": "our kernels.py"}
    world.fate = ends("a", "write.one", SAMPLE)
    measure(outcome, world)
    [row] = [row for row in outcome.rows["a"][CASE][0] if row.strategy == "write.one"]
    assert row.repro.startswith("kvbench run ")
    assert " -s write.one " in row.repro
    assert " --load 'our kernels.py' " in row.repro


def test_who_ends_its_process_while_the_other_side_gives_up_is_left_out_too(outcome, world):
    one, two = ends("a", "write.one", SAMPLE), ends("b", "write.two", AFTER, reason="it too")

    def fate(*happening: object) -> None:
        one(*happening)
        two(*happening)

    world.fate = fate
    measure(outcome, world)
    assert status(outcome, "a") == [{"write.one": "crashed", "write.two": "ok"}]
    assert status(outcome, "b") == [{"write.two": "crashed", "write.one": "ok"}]
    assert world.starts == {"a": 2, "b": 2}


def test_whose_turn_it_was_in_a_case_before_does_not_matter(outcome, world):
    def fate(label: str, case: Case, _: str, step: str) -> None:
        if (label, case, step) == ("a", CASE, CHECK):
            raise ValueError("a bit is wrong")
        if (label, case, step) == ("a", OTHER, "build"):
            raise EndsError("no room")

    world.fate = fate
    measure(outcome, world, CASE, OTHER)
    assert status(outcome, "a") == [dict.fromkeys(NAMES, "failed")]
    assert status(outcome, "a", OTHER) == [dict.fromkeys(NAMES, "crashed")]
    assert world.starts == {"a": 2, "b": 1}


@pytest.mark.parametrize("label", ["a", "b"])
def test_where_it_was_nobodys_turn_all_are_left_out_of_the_case(outcome, world, label):
    def fate(where: str, case: Case, _: str, step: str) -> None:
        if (where, case, step) == (label, CASE, "build"):
            raise EndsError("no room")

    world.fate = fate
    other = "ab".replace(label, "")
    for pair in (1, 2):
        measure(outcome, world, CASE, OTHER)
        assert status(outcome, label) == [dict.fromkeys(NAMES, "crashed")] * pair
        assert status(outcome, other) == status(outcome, label, OTHER) == [OK] * pair
    # Once replaced, and not asked again for a case that ends it.
    assert world.starts == {label: 3, other: 2}


def test_who_can_not_be_replaced_ends_it_all(outcome, world):
    dies = ends("a", "write.one", SAMPLE)

    def fate(label: str, case: Case, name: str, step: str) -> None:
        if step == "start" and world.starts[label] > 1:
            raise EndsError("no such device")
        dies(label, case, name, step)

    world.fate = fate
    with pytest.raises(KvbenchError, match="tree: no such device"):
        measure(outcome, world)
    assert world.living == ["b"]


def test_a_case_that_a_tree_does_not_know_wholly_is_not_supported(outcome, world, monkeypatch):
    wanted = dataclasses.replace(CASE, layout="HND")
    decode = messages.decode_to_side

    def decode_older(line: bytes) -> object:
        fields = json.loads(line)
        fields.get("case", {}).pop("layout", None)
        return decode(json.dumps(fields).encode())

    monkeypatch.setattr(messages, "decode_to_side", decode_older)
    measure(outcome, world, wanted)
    for label in "ab":
        [rows] = outcome.rows[label][wanted]
        assert {(row.case, row.status, row.reason) for row in rows} == {
            (wanted, "unsupported", "this tree does not know layout as asked")
        }
        assert not any(row.measurement for row in rows)
    # Where the axis has the value that all had before there was one, nothing is different.
    measure(outcome, world, CASE)
    assert status(outcome, "a") == [OK]


# All processes' rows as one.


def timed(*samples_s: float, name: str = "write.one", phase: str = "run", **fields):
    estimate = median_interval(samples_s)
    whole = {
        "median_s": estimate.median,
        "low_s": estimate.low,
        "high_s": estimate.high,
        "copy_share": 1e-6 / estimate.median,
        **fields,
    }
    made = result(name, phase=phase)
    return dataclasses.replace(made, measurement=measurement(samples_s, **whole))


def test_samples_are_joined_in_the_order_of_the_processes():
    processes = [[timed(3.0, 1.0, 2.0)], [timed(9.0, 8.0)], [timed(4.0, 4.0, 4.0, 4.0)]]
    [row] = joined(processes)
    found = row.measurement
    assert found.samples_s == (3.0, 1.0, 2.0, 9.0, 8.0, 4.0, 4.0, 4.0, 4.0)
    assert found.processes == (3, 2, 4)
    estimate = median_interval(found.samples_s)
    assert (found.median_s, found.low_s, found.high_s) == (4.0, estimate.low, estimate.high)
    assert found.copy_share == pytest.approx(1e-6 / 4.0)
    assert dataclasses.replace(row, measurement=None, status="failed", reason="-") == (
        dataclasses.replace(processes[0][0], measurement=None, status="failed", reason="-")
    )


def test_what_has_no_share_of_a_copy_gets_none():
    [row] = joined([[timed(1.0, 2.0, copy_share=None)]] * 2)
    assert row.measurement.copy_share is None


def test_rows_are_joined_by_strategy_and_phase():
    rows = [
        [timed(n, n, name=name, phase=phase) for name in NAMES for phase in TIMED]
        for n in (1.0, 2.0)
    ]
    rows[1].reverse()
    rows[1] = [rows[1][at] for at in (1, 0, 3, 2)]  # the strategies in another order
    found = joined(rows)
    assert [(row.strategy, row.phase) for row in found] == [
        (name, phase) for name in NAMES for phase in TIMED
    ]
    assert {row.measurement.samples_s for row in found} == {(1.0, 1.0, 2.0, 2.0)}


@pytest.mark.parametrize("at", [0, 1, 2])
def test_what_one_process_could_not_time_is_not_timed(at):
    good = [timed(1.0, 1.0), timed(1.0, 1.0, phase="prepare")]
    processes = [good, good, good]
    crashed = result(status="crashed", strategy="write.one")
    processes[at] = [crashed]
    assert joined(processes) == [crashed]
    failed = result(status="failed", strategy="write.one")
    processes[at] = [failed, good[1]]
    run, prepare = joined(processes)
    assert run == failed
    assert prepare.measurement.processes == (2, 2, 2)


def test_of_nothing_nothing_is_joined():
    assert joined([]) == joined([[], []]) == []


# The two runs.


@pytest.fixture
def trees(tmp_path) -> tuple[Tree, Tree]:
    return tuple(
        Tree(name, Path("python"), tmp_path, commit)
        for name, commit in (("main", "c0ffee"), (".", None))
    )


def plan(**fields) -> AbPlan:
    return AbPlan(
        **{
            "cases": (CASE, OTHER),
            "patterns": (),
            "files": (),
            "settings": SETTINGS,
            "processes": 3,
            "hang_s": 20.0,
            "command": "kvbench ab main .",
            "preset": None,
            "seed": 0,
            "layers": 32,
            **fields,
        }
    )


@pytest.mark.parametrize("processes", [1, 2, 5])
def test_all_pairs_of_processes_together_take_the_time_of_a_cell(processes):
    rule = plan(processes=processes).rule
    assert rule.cell_seconds * processes == pytest.approx(SETTINGS.cell_seconds)
    # It never stops because it looks precise: a good moment would be no fair one.
    assert rule.relative_half_width < 0
    assert rule.max_rounds == ROUNDS


@pytest.fixture
def simulated(world, monkeypatch) -> World:
    monkeypatch.setattr(ab, "Side", world.side)
    return world


def test_two_runs_are_written_that_belong_together(simulated, trees, tmp_path):
    told = []
    ended = run_ab(plan(), trees, tmp_path / "out", lambda *done: told.append(done))
    assert ended == ab.Ended((tmp_path / "out" / "a", tmp_path / "out" / "b"), 3, "complete")
    base, new = (load(folder) for folder in ended.folders)
    assert base.info.interleaved == new.info.interleaved
    assert len(base.info.interleaved) == 32
    assert (base.info.tree, new.info.tree) == ("main", ".")
    assert base.info.environment.git_commit == "c0ffee"
    assert base.info.environment.git_dirty is False
    assert new.info.environment == MACHINE.environment
    assert base.info.command == "kvbench ab main ."
    for run in (base, new):
        assert Counter(row.case for row in run.results) == {CASE: 4, OTHER: 4}
        assert {row.measurement.processes for row in run.results} == {(ROUNDS,) * 3}
    assert sorted(number for number, _ in told) == [0, 0, 1, 1, 2, 2]
    assert {case for _, case in told} == {CASE, OTHER}
    assert simulated.starts == {"a": 3, "b": 3}
    assert simulated.living == []


def test_what_is_about_to_be_measured_is_told(simulated, trees, tmp_path):
    simulated.strategies = {"a": NAMES[:1], "b": NAMES}
    told = []
    read = Case(op="read", seq_len=3)
    run_ab(
        plan(cases=(CASE, read, OTHER), processes=2),
        trees,
        tmp_path / "out",
        on_begin=lambda cases, strategies: told.append((set(cases), dict(strategies))),
    )
    assert told == [({CASE, OTHER}, {"a": NAMES[:1], "b": NAMES})] * 2


def test_who_is_first_takes_turns(simulated, trees, tmp_path):
    run_ab(plan(), trees, tmp_path / "out")
    first = [label for label, case, _ in simulated.begun if case == CASE]
    assert first == ["a", "b", "b", "a", "a", "b"]


def test_the_cases_are_in_another_order_in_each_pair(simulated, trees, tmp_path):
    cases = tuple(Case(op="write", seq_len=n) for n in range(1, 7))
    run_ab(plan(cases=cases, processes=2), trees, tmp_path / "out")
    order = [case for label, case, _ in simulated.begun if label == "a"]
    assert sorted(order[:6], key=lambda case: case.seq_len) == list(cases)
    assert order[:6] != order[6:]
    rows = load(tmp_path / "out" / "a").results
    assert list(dict.fromkeys(row.case for row in rows)) == list(cases)


def test_cases_that_nobody_does_are_refused(simulated, trees, tmp_path):
    with pytest.raises(InputError) as raised:
        run_ab(plan(cases=(Case(op="read", seq_len=3),)), trees, tmp_path / "out")
    assert str(raised.value) == (
        "nothing to measure: none of these strategies does any of these cases' ops; expected "
        "strategies of: read"
    )
    assert simulated.living == []


def test_a_folder_that_holds_something_is_left_alone(simulated, trees, tmp_path):
    run_folder(tmp_path / "out", [result()])
    with pytest.raises(StoreError, match="holds another run"):
        run_ab(plan(), trees, tmp_path / "out")
    assert simulated.starts == {}


def test_nobody_else_writes_to_the_folder_meanwhile(simulated, trees, tmp_path):
    def another(*_: object) -> None:
        with pytest.raises(StoreError, match="another kvbench is writing to it"):
            run_ab(plan(), trees, tmp_path / "out")

    run_ab(plan(processes=1), trees, tmp_path / "out", another)
    assert simulated.starts == {"a": 1, "b": 1}
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"a", "b"}


def interrupts(at: int, error: BaseException) -> Callable:
    seen = []

    def on_case(*case: object) -> None:
        seen.append(case)
        if len(seen) == at:
            raise error

    return on_case


def test_interrupted_before_all_cases_were_measured_nothing_is_written(simulated, trees, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        run_ab(plan(), trees, tmp_path / "out", interrupts(1, KeyboardInterrupt()))
    assert simulated.living == []
    assert list((tmp_path / "out").iterdir()) == []
    run_ab(plan(processes=1), trees, tmp_path / "out")  # it is free


def statuses(folder: Path) -> list[tuple[Run, set[str], set[tuple[int, ...]]]]:
    runs = [load(folder / label) for label in ab.LABELS]
    return [
        (run, {row.status for row in run.results}, {r.measurement.processes for r in run.results})
        for run in runs
    ]


def test_interrupted_later_what_there_is_is_written(simulated, trees, tmp_path):
    ended = run_ab(plan(), trees, tmp_path / "out", interrupts(3, KeyboardInterrupt()))
    assert (ended.processes, ended.why) == (1, "interrupted")
    assert simulated.living == []
    for run, found, processes in statuses(tmp_path / "out"):
        assert len(run.results) == 8
        assert found == {"ok"}
        assert processes == {(ROUNDS,), (ROUNDS, ROUNDS)}


def test_what_can_not_start_later_does_not_cost_what_was_measured(simulated, trees, tmp_path):
    def fate(label: str, _: Case, __: str, step: str) -> None:
        if (label, step) == ("b", "start") and simulated.starts["b"] == 2:
            raise EndsError("no such device")

    simulated.fate = fate
    with pytest.raises(KvbenchError, match=r"\.: no such device"):
        run_ab(plan(), trees, tmp_path / "out")
    assert simulated.living == []
    for _, found, processes in statuses(tmp_path / "out"):
        assert (found, processes) == ({"ok"}, {(ROUNDS,)})


@pytest.mark.parametrize("label", ["a", "b"])
def test_what_can_not_start_at_first_leaves_nothing(simulated, trees, tmp_path, label):
    simulated.fate = ends(label, "", "start", reason="no such device")
    with pytest.raises(KvbenchError, match="no such device"):
        run_ab(plan(), trees, tmp_path / "out")
    assert simulated.living == []
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.usefixtures("simulated")
def test_a_pattern_has_to_name_something_in_one_tree(trees, tmp_path, monkeypatch):
    unmatched = {"a": {"write.new": "unknown strategy 'write.new'", "x": "unknown 'x'"}, "b": {}}

    def ready(side: Simulated) -> messages.Ready:
        return msgspec.structs.replace(Side.ready(side), unmatched=unmatched[side.label])

    monkeypatch.setattr(Simulated, "ready", ready)
    run_ab(plan(processes=1), trees, tmp_path / "one")
    unmatched["b"] = {"x": "unknown 'x'"}
    with pytest.raises(InputError, match="unknown 'x'"):
        run_ab(plan(processes=1), trees, tmp_path / "both")


def test_a_file_of_neither_tree_is_refused_before_anything_starts(simulated, trees, tmp_path):
    with pytest.raises(InputError, match=r"strategy file 'ours\.py': neither in main"):
        run_ab(plan(files=(Path("ours.py"),)), trees, tmp_path / "out")
    assert simulated.starts == {}
    assert not (tmp_path / "out").exists()


# Real processes.

OURS = """
import ctypes
import os
import sys
import time
from pathlib import Path

from kvbench.pool import flat_slots_view, slot_mapping
from kvbench.strategies.base import Strategy
from kvbench.strategies.registry import register
from kvbench.timing import bandwidth

bandwidth._CPU_BYTES = 1 << 16  # a start then takes little
HERE = Path(__file__).parent


class Ours(Strategy):
    op = "write"
    summary = "waits"
    waits_s = 2e-4

    def misbehave(self):
        pass

    def run(self, workload, prepared):
        if workload.device.type == "cpu":  # and not when launches are predicted
            self.misbehave()
        end = time.perf_counter() + self.waits_s
        where = slot_mapping(
            workload.block_tables, workload.starts, workload.lengths, workload.block_size
        )
        flat_slots_view(workload.key_pool)[where] = workload.key
        flat_slots_view(workload.value_pool)[where] = workload.value
        while time.perf_counter() < end:
            pass


@register
class Chatters(Ours):
    name = "write.chatters"

    def misbehave(self):
        print("hello")
        os.write(1, b"hello\\n")
        assert not sys.stdin.read()


@register
class Waits(Ours):
    name = "write.waits"
    waits_s = {waits_s}
"""
TINY = Case(op="write", seq_len=5, num_heads=1, num_kv_heads=1, head_dim=4, dtype="fp32")
FILE = Path("kernels/ours.py")
MEASURED = dataclasses.replace(SETTINGS, cell_seconds=0.5, call_budget_s=1.0)


def write_strategies(folder: Path, waits_s: float, more: str = "") -> None:
    (folder / FILE).parent.mkdir(parents=True, exist_ok=True)
    (folder / FILE).write_text(OURS.format(waits_s=waits_s) + more)


def real(**fields) -> AbPlan:
    return plan(
        **{"cases": (TINY,), "files": (FILE,), "settings": MEASURED, "processes": 1, **fields}
    )


OURS_ALONE = ("write.chatters", "write.waits")


def verdicts(folder: Path) -> dict[str, str]:
    """Of the runs of a strategy, by the comparison of both sides."""
    base, new = (load(folder / label) for label in ab.LABELS)
    # One machine, whatever each side made of it from so small a copy.
    found = compare(base.results, new.results, Rules(), interleaved=True, control=0.0)
    return {each.cell.strategy: each.verdict for each in found.judged if each.cell.phase == "run"}


def test_the_strategy_that_waits_longer_in_one_tree_is_slower_and_no_other(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_strategies(tmp_path / "old", 2e-4)
    write_strategies(tmp_path / "new", 8e-4)
    with tree("old/") as base, tree("new/") as new:
        run_ab(real(patterns=OURS_ALONE), (base, new), tmp_path / "out")
    found = verdicts(tmp_path / "out")
    assert found.pop("write.waits") == "SLOWER"
    assert "SLOWER" not in found.values()
    assert set(found) == {"write.chatters"}
    for label in ab.LABELS:
        for row in load(tmp_path / "out" / label).results:
            assert row.status == "ok"
            assert f"--load {FILE} " in row.repro


@pytest.fixture
def kernels(tmp_path, monkeypatch) -> Path:
    """A repository that has strategies alone: its last commit waits longer; its tree no longer."""
    isolated(monkeypatch)
    folder = tmp_path / "repository"
    folder.mkdir()
    git(folder, "init", "--quiet", "--initial-branch", "main")
    write_strategies(folder, 2e-4)
    commit(folder, "First")
    only_new = "\n\n@register\nclass New(Ours):\n    name = 'write.new'\n"
    write_strategies(folder, 8e-4, only_new)
    commit(folder, "Second")
    write_strategies(folder, 1.0)
    monkeypatch.chdir(folder)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("where", [".", "kernels"])
def test_each_revisions_own_strategies_are_measured(kernels, monkeypatch, where):
    monkeypatch.chdir(kernels / where)
    file = FILE.relative_to("." if where == "." else where)
    with ExitStack() as stack:
        trees = [stack.enter_context(tree(name)) for name in ("HEAD~1", "main")]
        # Of built-in ones the same code is measured on both sides.
        patterns = (*OURS_ALONE, "write.new", "write.slot_mapping")
        asked = real(patterns=patterns, files=(file,), processes=2)
        ended = run_ab(asked, trees, kernels / "out")
    found = verdicts(kernels / "out")
    assert found.pop("write.waits") == "SLOWER"
    assert "SLOWER" not in found.values()
    assert set(found) == {"write.chatters", "write.slot_mapping"}
    runs = [load(folder) for folder in ended.folders]
    assert [run.info.environment.git_commit for run in runs] == [
        git(kernels, "rev-parse", name) for name in ("HEAD~1", "HEAD")
    ]
    only = [{row.strategy for row in run.results} for run in runs]
    assert only[1] - only[0] == {"write.new"}
    for run in runs:
        for row in run.results:
            assert len(row.measurement.processes) == 2
            assert (f"--load {file} " in row.repro) == (row.strategy != "write.slot_mapping")


HOSTILE = """

@register
class Hostile(Ours):
    name = "write.hostile"
    calls = 0

    def misbehave(self):
        self.calls += 1
        if self.calls > 50:
            {does}
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("does", "status", "reason"),
    [
        ("ctypes.string_at(0)", "crashed", "the process that it ran in ended by signal 11 (SIGSEG"),
        ("sys.exit('enough')", "crashed", "process that it ran in ended by exit code 1: enough"),
        ("time.sleep(600)", "hung", "no sign of life for 5 s, the longest that a step may take"),
        # It is not the end of what the lead says.
        ("raise EOFError('no more')", "failed", "EOFError: no more"),
    ],
)
def test_what_one_trees_strategy_does_costs_it_alone(tmp_path, monkeypatch, does, status, reason):
    monkeypatch.chdir(tmp_path)
    write_strategies(tmp_path / "old", 2e-4, HOSTILE.format(does="pass"))
    write_strategies(tmp_path / "new", 2e-4, HOSTILE.format(does=does))
    with tree("old/") as base, tree("new/") as new:
        asked = real(patterns=(*OURS_ALONE, "write.hostile"), hang_s=5.0)
        run_ab(asked, (base, new), tmp_path / "out")
    old, new = (load(tmp_path / "out" / label).results for label in ab.LABELS)
    assert {row.status for row in old} == {"ok"}
    fates = {row.strategy: row for row in new if row.phase == "run"}
    hostile = fates.pop("write.hostile")
    assert hostile.status == status
    assert reason in hostile.reason
    assert f"--load {FILE} " in hostile.repro
    assert {row.status for row in fates.values()} == {"ok"}


LEAD = """
import sys
from pathlib import Path
sys.path[:0] = sys.argv[1:2]
from test_ab import HOSTILE, OURS_ALONE, real
from kvbench.sweep.ab import run_ab
from kvbench.sweep.trees import tree

with tree("old/") as base, tree("new/") as new:
    run_ab(real(patterns=("write.hostile",), hang_s=600.0), (base, new), Path("out"))
"""


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_process_is_left_when_the_lead_is_gone(tmp_path, number):
    touches = "(HERE / 'here').touch(), time.sleep(600)"
    write_strategies(tmp_path / "old", 2e-4, HOSTILE.format(does="pass"))
    write_strategies(tmp_path / "new", 2e-4, HOSTILE.format(does=touches))
    command = [sys.executable, "-c", LEAD, str(Path(__file__).parent)]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.DEVNULL) as lead:
        wait_for((tmp_path / "new" / FILE.parent / "here").exists)
        sides = psutil.Process(lead.pid).children()
        lead.send_signal(number)
        assert lead.wait(60) != 0
    assert len(sides) == 2
    for side in sides:
        wait_for(lambda side=side: not side.is_running() or side.status() == "zombie")


def wait_for(holds: Callable[[], bool], limit_s: float = 120.0) -> None:
    deadline = time.monotonic() + limit_s
    while not holds():
        assert time.monotonic() < deadline, "it never held"
        time.sleep(0.05)
