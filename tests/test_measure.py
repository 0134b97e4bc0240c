"""Measuring a case and a sweep: every status is reached, with its reason."""

import dataclasses
import mmap
import shlex
import time
from collections import Counter

import pytest
import torch
from drawn import KV_OPS, cases
from hypothesis import given
from torch.nn.functional import scaled_dot_product_attention

from kvbench.axes import Axes
from kvbench.blocks import place
from kvbench.cases import OPS, Case
from kvbench.errors import StoreError
from kvbench.pool import flat_slots_view, slot_mapping
from kvbench.store import load
from kvbench.strategies import registry
from kvbench.strategies.base import Strategy
from kvbench.sweep import measure, runner
from kvbench.sweep.measure import Bench, measure_case, observe, repro
from kvbench.sweep.order import in_order
from kvbench.sweep.runner import Plan, run_sweep
from kvbench.timing import bandwidth
from kvbench.timing.accelerator import Activity, Trace
from kvbench.timing.clocks import Floor, GraphClock, WallClock
from kvbench.timing.rounds import StoppingRule
from kvbench.units import format_bytes
from kvbench.workload import required_bytes

CHECKS = 3
"""Runs of a check: one for each version of the data, and one with other block tables."""
TINY = {"seq_len": 5, "num_heads": 1, "num_kv_heads": 1, "head_dim": 4, "dtype": "fp32"}
SMALL = Case(op="write", **TINY)


class Write(Strategy):
    """Right, and counts its calls; the others go wrong in one way each."""

    name = "write.right"
    op = "write"
    summary = "writes over flat slots"

    def __init__(self) -> None:
        self.calls = Counter()
        self.tokens = []

    def prepare(self, workload):
        self.calls["prepare"] += 1
        return slot_mapping(
            workload.block_tables, workload.starts, workload.lengths, workload.block_size
        )

    def run(self, workload, prepared):
        self.calls["run"] += 1
        self.tokens.append(workload.case.tokens)
        tokens = len(prepared)
        flat_slots_view(workload.key_pool)[prepared] = workload.key[:tokens]
        flat_slots_view(workload.value_pool)[prepared] = workload.value[:tokens]


class Read(Strategy):
    name = "read.right"
    op = "read"
    summary = "reads over flat slots, with the index built in every call"

    def run(self, workload, prepared):
        del prepared
        slots = slot_mapping(
            workload.block_tables, workload.starts, workload.lengths, workload.block_size
        )
        return flat_slots_view(workload.key_pool)[slots], flat_slots_view(workload.value_pool)[
            slots
        ]


class Index(Strategy):
    name = "index.right"
    op = "index"
    summary = "keeps a buffer on the device"

    def prepare(self, workload):
        return torch.empty(workload.mapped_rows, dtype=workload.slot_dtype)

    def run(self, workload, prepared):
        return prepared.copy_(torch.from_numpy(workload.slot_mapping()))


class Attend(Strategy):
    name = "attend.right"
    op = "attend"
    summary = "gathers one sequence, then attends"
    parts = ("gather",)

    def run_part(self, part, workload, prepared):  # noqa: ARG002
        slots = torch.from_numpy(workload.slot_mapping())
        pools = workload.key_pool, workload.value_pool
        return tuple(pool.flatten(0, 1)[slots].transpose(0, 1) for pool in pools)

    def run(self, workload, prepared):
        key, value = self.run_part("gather", workload, prepared)
        query = workload.query.transpose(0, 1)
        return scaled_dot_product_attention(query, key, value).transpose(0, 1).contiguous()


class NativeStep(Strategy):
    name = "step.native+native"
    op = "step"
    summary = "has the name of a pair"

    def run(self, workload, prepared):
        raise NotImplementedError


class Unsupported(Write):
    name = "write.unsupported"

    def supports(self, case, device):
        return f"not at block size {case.block_size} on {device}"


class Wrong(Write):
    name = "write.wrong"

    def run(self, workload, prepared):
        super().run(workload, prepared)
        # A bit, not a number: adding 1 to a large one changes nothing.
        workload.value_pool.view(torch.uint8).view(-1)[-1] ^= 1


class WrongLater(Write):
    """Right until it has been called too often."""

    name = "write.wrong_later"
    right_calls = CHECKS + 3

    def run(self, workload, prepared):
        super().run(workload, prepared)
        if self.calls["run"] > self.right_calls:
            workload.key_pool.zero_()


class Raises(Write):
    name = "write.raises"

    def run(self, workload, prepared):
        del workload, prepared
        raise RuntimeError("out of\nluck,\n  and of words")


class RaisesInPrepare(Raises):
    name = "write.raises_in_prepare"

    def prepare(self, workload):
        raise ValueError(f"no mapping for {workload.case.tokens} tokens")


class RaisesLater(Write):
    """Passes its check, then fails while it is timed."""

    name = "write.raises_later"

    def run(self, workload, prepared):
        super().run(workload, prepared)
        if self.calls["run"] > CHECKS + 3:
            raise RuntimeError("worn out")


class Untimed(Write):
    name = "write.untimed"

    def untimed(self, device):
        return f"its time on {device} would say nothing"


class Slow(Write):
    """A millisecond a token."""

    name = "write.slow"

    def run(self, workload, prepared):
        time.sleep(1e-3 * workload.case.tokens)
        super().run(workload, prepared)


class SlowUntimed(Slow, Untimed):
    name = "write.slow_untimed"


@pytest.fixture
def bench(cpu) -> Bench:
    rule = StoppingRule(min_rounds=4, max_rounds=4, cell_seconds=5.0, sample_seconds=2e-5)
    return Bench(
        device=cpu,
        clocks=(WallClock(cpu),),
        floors_s={"wall": Floor(0.0, 3e-8)},
        rule=rule,
        call_budget_s=1.0,
        copy_bytes_per_s=1e10,
    )


def budget(bench: Bench, call_budget_s: float) -> Bench:
    return dataclasses.replace(bench, call_budget_s=call_budget_s)


def outcomes(rows) -> dict[tuple[str, str], str]:
    return {(row.strategy, row.phase): row.status for row in rows}


def test_a_right_strategy_has_a_row_for_each_phase(bench):
    rows = measure_case(SMALL, [Write()], bench)
    assert outcomes(rows) == {("write.right", "run"): "ok", ("write.right", "prepare"): "ok"}
    for row in rows:
        assert row.case == SMALL
        assert row.reason is None
        timed = row.measurement
        assert timed.low_s <= timed.median_s <= timed.high_s
        assert min(timed.samples_s) <= timed.median_s <= max(timed.samples_s)
        assert (row.clock, timed.floor_s, timed.stopped_by) == ("wall", 3e-8, "rounds")
        assert row.cache == "hot"
        assert timed.allocates is False
    by_phase = {row.phase: row.measurement for row in rows}
    assert by_phase["run"].nbytes == SMALL.nbytes
    assert by_phase["prepare"].nbytes is None


def test_a_strategy_without_a_prepare_has_a_run_alone(bench):
    (row,) = measure_case(Case(op="read", **TINY), [Read()], bench)
    assert (row.status, row.phase) == ("ok", "run")
    assert row.measurement.allocates is True


def test_all_rows_of_a_case_have_as_many_samples(bench):
    class Second(Write):
        name = "write.second"

    rows = measure_case(SMALL, [Write(), Second()], bench)
    assert len(rows) == 4
    assert {len(row.measurement.samples_s) for row in rows} == {4}


def test_what_a_strategy_does_not_support_is_said_and_never_run(bench):
    strategy = Unsupported()
    (row,) = measure_case(SMALL, [strategy], bench)
    assert (row.status, row.reason) == ("unsupported", "not at block size 16 on cpu")
    assert strategy.calls == {}


def test_a_wrong_strategy_is_never_timed(bench):
    strategy = Wrong()
    (row,) = measure_case(SMALL, [strategy], bench)
    assert row.status == "incorrect"
    assert row.reason.startswith("value_pool block")
    assert "belongs to no token but was written" in row.reason
    assert row.measurement is None
    assert 1 <= strategy.calls["run"] <= CHECKS


def test_a_strategy_that_goes_wrong_while_it_is_timed_loses_its_times(bench):
    strategy, right = WrongLater(), Write()
    rows = measure_case(SMALL, [strategy, right], bench)
    assert outcomes(rows) == {
        ("write.wrong_later", "run"): "incorrect",
        ("write.wrong_later", "prepare"): "incorrect",
        ("write.right", "run"): "ok",
        ("write.right", "prepare"): "ok",
    }
    for row in rows[:2]:
        assert row.reason.startswith("after timing: key_pool block")
        assert row.measurement is None
    assert strategy.calls["run"] > strategy.right_calls


@pytest.mark.parametrize(
    ("strategy", "reason"),
    [
        (Raises(), "RuntimeError: out of luck, and of words"),
        (RaisesInPrepare(), "ValueError: no mapping for 5 tokens"),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_a_strategy_that_raises_has_its_message_on_one_line(bench, strategy, reason):
    rows = measure_case(SMALL, [strategy, Write()], bench)
    failed = [row for row in rows if row.strategy == strategy.name]
    assert [(row.status, row.reason) for row in failed] == [("failed", reason)]
    assert outcomes(rows)["write.right", "run"] == "ok"


def test_a_strategy_that_raises_while_it_is_timed_fails_alone(bench):
    rows = measure_case(SMALL, [RaisesLater(), Write()], bench)
    found = outcomes(rows)
    assert found["write.raises_later", "run"] == "failed"
    assert found["write.right", "run"] == "ok"
    assert found["write.right", "prepare"] == "ok"
    failed = next(row for row in rows if row.status == "failed")
    assert "RuntimeError: worn out" in failed.reason


def test_a_right_strategy_whose_time_means_nothing_is_checked(bench):
    strategy = Untimed()
    (row,) = measure_case(SMALL, [strategy], bench)
    assert (row.status, row.reason) == ("checked", "its time on cpu would say nothing")
    # Once more on fake tensors, to predict its launches.
    assert strategy.calls["run"] == CHECKS + 1


def test_a_wrong_strategy_is_wrong_though_untimed(bench):
    class WrongUntimed(Wrong, Untimed):
        name = "write.wrong_untimed"

    (row,) = measure_case(SMALL, [WrongUntimed()], bench)
    assert row.status == "incorrect"


LONG = Case(op="write", **{**TINY, "seq_len": 400})


def test_a_call_over_the_budget_is_never_made(bench):
    strategy = Slow()
    (row,) = measure_case(LONG, [strategy], budget(bench, 0.1))
    assert row.status == "over budget"
    assert "over the 100 ms a call may take" in row.reason
    said_ms = float(row.reason.partition("about ")[2].partition(" ms")[0])
    assert said_ms > 100
    assert max(strategy.tokens) <= 32


def test_the_budget_refuses_only_the_strategy_that_needs_it(bench):
    found = outcomes(measure_case(LONG, [Slow(), Write()], budget(bench, 0.1)))
    assert found["write.slow", "run"] == "over budget"
    assert found["write.right", "run"] == "ok"


def test_what_is_only_checked_has_a_tenth_of_the_budget(bench):
    strategy = SlowUntimed()
    (row,) = measure_case(LONG, [strategy], budget(bench, 1.0))
    assert row.status == "over budget"
    assert "over the 100 ms a call may take (its time on cpu would say nothing)" in row.reason
    assert max(strategy.tokens) <= 32


def test_a_case_that_does_not_fit_is_not_begun(bench, monkeypatch):
    needed = required_bytes(SMALL, place(SMALL))
    monkeypatch.setattr(measure, "free_bytes", lambda _: needed - 1)
    strategies = [Write(), Untimed()]
    rows = measure_case(SMALL, strategies, bench)
    assert outcomes(rows) == {
        ("write.right", "run"): "does not fit",
        ("write.untimed", "run"): "does not fit",
    }
    said = f"needs {format_bytes(needed)}; {format_bytes(needed - 1)} are free on cpu"
    assert {row.reason for row in rows} == {said}
    assert [strategy.calls for strategy in strategies] == [{}, {}]


def test_a_case_that_just_fits_is_measured(bench, monkeypatch):
    needed = required_bytes(SMALL, place(SMALL))
    monkeypatch.setattr(measure, "free_bytes", lambda _: needed)
    assert {row.status for row in measure_case(SMALL, [Write()], bench)} == {"ok"}


def test_a_case_without_strategies_has_no_rows(bench):
    assert measure_case(SMALL, [], bench) == []


def test_a_case_without_tokens_is_measured(bench):
    empty = Case(op="write", **{**TINY, "batch": 0})
    assert {row.status for row in measure_case(empty, [Write()], bench)} == {"ok"}


@given(cases())
def test_the_command_of_a_row_gives_the_same_case(case):
    of_op = {"write": Write, "read": Read, "index": Index, "attend": Attend, "step": NativeStep}
    strategy = of_op[case.op]()
    words = shlex.split(repro(case, strategy, torch.device("cpu")))
    assert words[:2] == ["kvbench", "run"]
    pairs = list(zip(words[2::2], words[3::2], strict=True))
    axes = Axes.parse([value for option, value in pairs if option == "-a"])
    assert axes.expand() == (case,)
    assert [pair for pair in pairs if pair[0] != "-a"] == [
        ("-s", strategy.name),
        ("--device", "cpu"),
    ]


def test_the_gather_of_an_attend_is_timed_by_itself_over_the_bytes_that_it_moves(bench):
    case = Case(op="attend", seq_len=9, num_heads=2, num_kv_heads=2, head_dim=8, dtype="fp32")
    rows = {row.phase: row.measurement for row in measure_case(case, [Attend()], bench)}
    assert rows.keys() == {"run", "gather"}
    row = 2 * 2 * 8 * 4  # K and V
    assert rows["gather"].nbytes == 2 * 9 * row  # read and written
    assert rows["run"].nbytes == 9 * row + row  # K and V are read, a query is, an output written
    assert rows["gather"].allocates


class RaisesInGather(Attend):
    name = "attend.raises_in_gather"

    def run_part(self, part, workload, prepared):  # noqa: ARG002
        raise RuntimeError("no room for copies")

    def run(self, workload, prepared):
        key, value = Attend.run_part(self, "gather", workload, prepared)
        query = workload.query.transpose(0, 1)
        return scaled_dot_product_attention(query, key, value).transpose(0, 1).contiguous()


def test_an_attend_whose_gather_raises_fails_alone(bench):
    case = Case(op="attend", seq_len=9, num_heads=2, num_kv_heads=2, head_dim=8, dtype="fp32")
    rows = measure_case(case, [RaisesInGather(), Attend()], bench)
    assert outcomes(rows) == {
        ("attend.raises_in_gather", "run"): "failed",
        ("attend.right", "run"): "ok",
        ("attend.right", "gather"): "ok",
    }


def test_every_row_has_its_command(bench):
    rows = measure_case(SMALL, [Write(), Wrong(), Raises(), Unsupported(), Untimed()], bench)
    assert len(rows) == 6
    for row in rows:
        words = shlex.split(row.repro)
        assert Axes.parse(words[i + 1] for i, w in enumerate(words) if w == "-a").expand() == (
            SMALL,
        )
        assert words[words.index("-s") + 1] == row.strategy


@pytest.fixture
def plan(cpu, monkeypatch):
    monkeypatch.setattr(bandwidth, "_CPU_BYTES", 1 << 16)

    def make(seed=0, strategies=None, axes=("seq_len=1:9:+1",)) -> Plan:
        fixed = {"op": "write,read", "num_kv_heads": 1, "head_dim": 4}
        texts = [*axes, *(f"{name}={value}" for name, value in fixed.items())]
        return Plan(
            cases=Axes.parse(texts).expand(),
            strategies=strategies or (Write(), Read(), Wrong()),
            device=cpu,
            command="kvbench run --made",
            preset="smoke",
            seed=seed,
            cell_seconds=0.002,
            call_budget_s=1.0,
            layers=3,
            clocks=("wall",),
            cache="hot",
        )

    return make


def test_a_sweep_writes_a_row_for_every_case_strategy_and_phase(plan, tmp_path):
    made = plan()
    info = run_sweep(made, tmp_path / "run", lambda *_: None).info
    run = load(tmp_path / "run")
    assert run.info == info
    assert run.warnings == ()
    expected = Counter()
    for case in made.cases:
        if case.op == "read":
            expected[case, "read.right", "run", "ok"] = 1
        else:
            expected[case, "write.right", "run", "ok"] = 1
            expected[case, "write.right", "prepare", "ok"] = 1
            expected[case, "write.wrong", "run", "incorrect"] = 1
    assert len(expected) == 9 * 4
    assert Counter((r.case, r.strategy, r.phase, r.status) for r in run.results) == expected


def test_a_run_says_how_it_was_made(plan, tmp_path, cpu):
    info = run_sweep(plan(seed=5), tmp_path / "run", lambda *_: None).info
    assert (info.command, info.preset, info.seed) == ("kvbench run --made", "smoke", 5)
    assert (info.cell_seconds, info.call_budget_s, info.layers) == (0.002, 1.0, 3)
    assert info.environment.device == str(cpu)
    assert info.copy_bandwidth.nbytes == 2 << 16
    assert info.copy_bandwidth.bytes_per_s > 0
    assert list(info.floors_s) == ["wall"]
    assert info.created.endswith("+00:00")


def order(plan: Plan, folder) -> list[Case]:
    run_sweep(plan, folder, lambda *_: None)
    return list(dict.fromkeys(row.case for row in load(folder).results))


def test_cases_are_measured_in_an_order_that_the_seed_decides(plan, tmp_path):
    one, same, other = (order(plan(seed), tmp_path / str(n)) for n, seed in enumerate((3, 3, 4)))
    cases = list(plan().cases)
    assert one == same
    assert one not in (other, cases)
    assert set(one) == set(cases)
    assert one == in_order(cases, 3)


def test_each_case_is_told_of_once_its_rows_are_on_disk(plan, tmp_path):
    made = plan()
    told = []

    def on_case(case, rows):
        assert {row.case for row in rows} == {case}
        told.append(case)
        assert load(tmp_path / "run").results[-len(rows) :] == tuple(rows)

    run_sweep(made, tmp_path / "run", on_case)
    assert Counter(told) == Counter(made.cases)


def test_what_was_measured_before_an_interruption_is_kept(plan, tmp_path):
    told = []

    def interrupt(_, rows):
        told.extend(rows)
        if len({row.case for row in told}) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_sweep(plan(), tmp_path / "run", interrupt)
    assert load(tmp_path / "run").results == tuple(told)


def test_a_strategy_gets_the_cases_of_its_op(plan):
    made = plan()
    assert made.rows() == 9 * 2 + 9
    for case in made.cases:
        assert {strategy.op for strategy in made.strategies_for(case)} == {case.op}


def test_a_folder_that_is_taken_stops_a_sweep_before_it_measures(plan, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setattr(runner, "examine", pytest.fail)
    strategy = Write()
    with pytest.raises(StoreError, match="other files"):
        run_sweep(plan(strategies=(strategy,)), tmp_path, lambda *_: None)
    assert strategy.calls == {}


def test_builtin_strategies_are_right_and_timed_unless_they_say_why_not(bench):
    for op in OPS:
        case = Case(op=op, **(TINY if op in KV_OPS else {"seq_len": 3}))
        if op == "step":
            case = Case(op=op, seq_len=3, num_heads=2, num_kv_heads=1, head_dim=16, num_layers=2)
        strategies = [s for s in registry.all_strategies() if s.op == op]
        for row in measure_case(case, strategies, bench):
            strategy = next(s for s in strategies if s.name == row.strategy)
            why = strategy.supports(case, bench.device) or strategy.untimed(bench.device)
            assert row.reason == why
            assert (row.status == "ok") == (why is None)
            assert row.status in {"ok", "checked", "unsupported"}


def test_an_index_is_timed_apart_from_what_was_there_before_its_step(bench):
    case = Case(op="index", seq_len=3, batch=2, padding=2)
    rows = {row.phase: row for row in measure_case(case, [Index()], bench)}
    assert {row.status for row in rows.values()} == {"ok"}
    assert rows["run"].measurement.nbytes == case.nbytes
    assert not rows["run"].measurement.allocates
    assert rows["prepare"].measurement.nbytes is None
    (loop,) = measure_case(case, registry.select(["index.loop"]), bench)
    assert loop.measurement.allocates


def test_slots_that_have_no_room_are_no_strategy_s_fault(bench):
    case = Case(op="index", seq_len=1, start_pos=2**31, block_size=2**20, slot_dtype="int32")
    (row,) = measure_case(case, [Index()], bench)
    assert (row.status, row.reason.partition(" ")[0]) == ("unsupported", "slot_dtype=int32")


def test_whether_a_call_allocates_is_seen_not_believed():
    tensor = torch.zeros(4)
    assert observe(lambda: torch.zeros(4)).allocates
    assert not observe(lambda: tensor).allocates
    kept = (torch.zeros(4), torch.zeros(4))
    assert observe(lambda: (torch.zeros(4), torch.zeros(4))).allocates
    assert not observe(lambda: kept).allocates
    assert not observe(lambda: None).allocates
    assert not observe(lambda: (torch.zeros(0), torch.zeros(0))).allocates


def test_a_read_into_given_tensors_allocates_nothing(bench):
    strategies = [s for s in registry.all_strategies() if s.op == "read"]
    for output, allocates in (("allocated", True), ("given", False)):
        rows = measure_case(Case(op="read", output=output, **TINY), strategies, bench)
        timed = {
            row.strategy: row.measurement for row in rows if row.phase == "run" and row.measurement
        }
        assert {name: m.allocates for name, m in timed.items()} == dict.fromkeys(timed, allocates)
        assert "read.loop" in timed


class Compiles(Write):
    """Takes a while the first time: it compiles in prepare, and loads in run."""

    name = "write.compiles"
    first_s = 0.05

    def prepare(self, workload):
        if not self.calls["prepare"]:
            time.sleep(self.first_s)
        return super().prepare(workload)

    def run(self, workload, prepared):
        if not self.calls["run"]:
            time.sleep(self.first_s)
        super().run(workload, prepared)


@pytest.mark.parametrize("tokens", [5, 100])  # 100 are estimated from fewer, which compile first
def test_a_first_call_is_told_apart_from_every_sample(bench, tokens):
    strategy = Compiles()
    case = dataclasses.replace(SMALL, seq_len=tokens)
    rows = {row.phase: row.measurement for row in measure_case(case, [strategy], bench)}
    assert rows["run"].first_call_s >= 2 * strategy.first_s
    assert rows["prepare"].first_call_s is None
    assert max(rows["run"].samples_s) < strategy.first_s
    again = measure_case(case, [strategy], bench)
    assert all((row.measurement.first_call_s or 0.0) < strategy.first_s for row in again)


def test_page_faults_of_memory_mapped_anew_are_counted():
    # Mapped here, not by malloc: a heap with room from earlier calls would need no new pages.
    size = 64 << 20

    def anew():
        torch.frombuffer(mmap.mmap(-1, size), dtype=torch.uint8).fill_(1)

    kept = torch.ones(size, dtype=torch.uint8)
    faults = observe(anew).page_faults
    assert faults > 16  # one per page of 4 KiB, or per huge page of 2 MiB
    assert observe(lambda: kept.fill_(2)).page_faults < faults / 4


class Captures:
    """A device that captures what runs on this CPU: a replay calls it again, or does less."""

    def __init__(self, *, replays=lambda call: call) -> None:
        self.replays = replays

    def synchronize(self):
        pass

    def between_events_s(self, call):
        call()
        return 1e-6

    def profile(self, call):
        call()
        return Trace((Activity("kernel", 0.0, 1e-6),), 0)

    def capture(self, call):
        call()
        return self.replays(call)


def by_graph(bench: Bench, device: Captures) -> Bench:
    clocks = (*bench.clocks, GraphClock(device))
    floors = {**bench.floors_s, "graph": Floor(0.0, 3e-8)}
    return dataclasses.replace(bench, clocks=clocks, floors_s=floors, accelerator=device)


@pytest.mark.parametrize("strategy", [Write(), Read()])
def test_a_graph_that_does_what_its_strategy_does_is_timed(strategy, bench):
    rows = measure_case(
        dataclasses.replace(SMALL, op=strategy.op), [strategy], by_graph(bench, Captures())
    )
    found = {(row.clock, row.phase): (row.status, row.reason) for row in rows}
    assert found["graph", "run"] == ("ok", None)
    assert found["wall", "run"] == ("ok", None)
    if strategy.has_prepare():
        status, reason = found["graph", "prepare"]
        assert status == "unsupported"
        assert reason == "graph clock: a replay would not read the scheduler's lists again"


@pytest.mark.parametrize("strategy", [Write(), Read()])
def test_a_graph_that_caught_nothing_is_incorrect_and_costs_its_own_row_alone(strategy, bench):
    idle = Captures(replays=lambda _: lambda: None)
    rows = measure_case(
        dataclasses.replace(SMALL, op=strategy.op), [strategy], by_graph(bench, idle)
    )
    found = {(row.clock, row.phase): row for row in rows}
    assert found["graph", "run"].status == "incorrect"
    assert found["graph", "run"].reason.startswith("replayed as a graph: ")
    assert found["wall", "run"].status == "ok"


def test_a_graph_whose_replay_fails_says_so(bench):
    def broken(call):
        calls = iter(range(10**9))

        def replay():
            call()
            if broken.strict and next(calls) == 0:
                raise RuntimeError("misaligned address")

        return replay

    broken.strict = False

    class Late(Captures):
        def capture(self, call):
            # The clock's own graph holds many calls; the check's holds one, and comes last.
            broken.strict = call.__name__ == "call"
            return super().capture(call)

    rows = measure_case(SMALL, [Write()], by_graph(bench, Late(replays=broken)))
    (row,) = [row for row in rows if (row.clock, row.phase) == ("graph", "run")]
    assert (row.status, row.reason) == (
        "failed",
        "replayed as a graph: RuntimeError: misaligned address",
    )


class WholeBlocks(Write):
    """Does nothing but whole blocks."""

    name = "write.whole_blocks"

    def supports(self, case, device):
        del device
        if any(length % case.block_size for length in case.sequences()[1]):
            return "whole blocks alone"
        return None

    def run(self, workload, prepared):
        assert all(length % workload.block_size == 0 for length in workload.lengths)
        super().run(workload, prepared)


@pytest.mark.parametrize("blocks", [1, 4, 5, 40])
def test_what_takes_whole_blocks_alone_is_probed_with_those(blocks, bench):
    case = dataclasses.replace(SMALL, seq_len=blocks * 16, block_size=16)
    rows = measure_case(case, [WholeBlocks()], bench)
    assert {row.status for row in rows} == {"ok"}
    odd = dataclasses.replace(case, seq_len=blocks * 16 + 1)
    assert [row.reason for row in measure_case(odd, [WholeBlocks()], bench)] == [
        "whole blocks alone"
    ]


def test_what_does_no_small_case_is_run_without_an_estimate(bench):
    class LargeAlone(Write):
        name = "write.large_alone"

        def supports(self, case, device):
            del device
            return None if case.tokens > 100 else "large ones alone"

    case = dataclasses.replace(SMALL, seq_len=200)
    strategy = LargeAlone()
    assert {row.status for row in measure_case(case, [strategy], bench)} == {"ok"}
    assert min(strategy.tokens) == 200


@pytest.mark.parametrize("cache_dtype", ["auto", "int8"])
def test_whole_blocks_of_given_outputs_are_timed_by_every_strategy_that_does_them(
    cache_dtype, bench
):
    case = Case(op="read", output="given", cache_dtype=cache_dtype, **{**TINY, "seq_len": 64})
    strategies = [s for s in registry.select(["read.*"]) if not s.name.endswith(".compile")]
    found = {row.strategy: row.status for row in measure_case(case, strategies, bench)}
    assert set(found.values()) <= {"ok", "checked", "unsupported"}
    assert found["read.blocks"] == ("ok" if cache_dtype == "auto" else "unsupported")
