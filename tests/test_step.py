"""One decode step of a model: right with any pair, found out with any fault, and what it costs."""

import dataclasses
import pickle

import numpy as np
import pytest
import torch
from drawn import steps
from hypothesis import given, settings
from made import result, run_info

from kvbench import decoding, oracle
from kvbench.analysis.frame import to_frame
from kvbench.analysis.ranking import step_costs
from kvbench.analysis.steps import per_token_and_layer, split, throughput
from kvbench.axes import Axes, expand_all
from kvbench.cases import VOCABULARY, Case
from kvbench.engine.sizes import config_of
from kvbench.errors import InputError
from kvbench.filling import fill
from kvbench.presets import CHECK_GRIDS
from kvbench.report.plots import sketches
from kvbench.report.steps import split_table, throughput_table
from kvbench.report.tables import ranking_table, times_table
from kvbench.strategies import registry
from kvbench.strategies.step.pairs import DEFAULT_PAIRS, Step, StepCache, pair
from kvbench.sweep.checking import check_case
from kvbench.sweep.measure import Bench, measure_case
from kvbench.timing.clocks import Floor, WallClock
from kvbench.timing.rounds import StoppingRule
from kvbench.workload import build, needed_bytes

registry.load_builtin()
CPU = torch.device("cpu")
SMALL = {"num_heads": 4, "num_kv_heads": 2, "head_dim": 16, "num_layers": 3, "block_size": 4}
CASE = Case(op="step", seq_len=23, batch=3, dtype="fp32", **SMALL)


# Every pair is right.


@pytest.mark.parametrize("way", DEFAULT_PAIRS)
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_a_pair_is_right_or_says_why_not(way, dtype):
    strategy = registry.get(f"step.{way}")
    # Whole blocks, as some attentions ask for.
    case = Case(op="step", seq_len=32, batch=2, lengths="equal", dtype=dtype, **SMALL)
    case = dataclasses.replace(case, block_size=16)
    status, reason = check_case(case, strategy, CPU)
    assert status == ("checked" if strategy.supports(case, CPU) is None else "unsupported"), reason
    assert reason == (strategy.supports(case, CPU) or "")


def test_the_pairs_that_are_registered_do_most_of_what_is_checked_by_default():
    cases = [case for case in expand_all(CHECK_GRIDS) if case.op == "step"]
    assert {case.layout for case in cases} == {"NHD", "HND", "NHD-KV", "HND-KV", "x-packed"}
    for way in ("native+native", "loop+sdpa_loop", "indexing+native"):
        strategy = registry.get(f"step.{way}")
        assert [strategy.supports(case, CPU) for case in cases] == [None] * len(cases)
        for case in cases[::3]:
            assert check_case(case, strategy, CPU) == ("checked", "")


@settings(max_examples=15, deadline=None)
@given(steps(most_tokens=60))
def test_any_step_is_right(case):
    for way in ("native+native", "indexing+sdpa_indexing"):
        assert check_case(case, registry.get(f"step.{way}"), CPU) == ("checked", "")


@pytest.mark.parametrize("fields", [{"batch": 0}, {"seq_len": 0}], ids=str)
def test_a_step_without_a_token_does_nothing(fields):
    case = dataclasses.replace(CASE, **fields)
    assert check_case(case, registry.get("step.native+native"), CPU) == ("checked", "")


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"layout": "MLA", "num_kv_heads": 1, "head_dim": 80}, "layout MLA: the model has"),
        ({"head_dim": 5}, "head_dim 5: rotary embedding"),
        ({"layout": "HND"}, "write.slot_mapping: layout HND"),
    ],
    ids=str,
)
def test_what_a_model_or_a_half_does_not_do_is_said(fields, reason):
    case = dataclasses.replace(CASE, **fields)
    assert registry.get("step.slot_mapping+native").supports(case, CPU).startswith(reason)
    build(case, CPU)


# A fault of any kind is found.


class _OfAnotherLayer(StepCache):
    """The right layer in `first`, which layer 1's is taken for."""

    def write(self, layer, key, value):
        super().write(0 if layer == 1 else layer, key, value)


class _ReadsAnotherLayer(StepCache):
    def read(self, layer, query):
        return super().read(0 if layer == 1 else layer, query)


class _NotWritten(StepCache):
    def write(self, layer, key, value):
        if layer != 1:
            super().write(layer, key, value)


class _Swapped(StepCache):
    def write(self, layer, key, value):
        super().write(layer, value, key)


class _OtherSequence(StepCache):
    def read(self, layer, query):
        return super().read(layer, query.roll(1, 0))


class _TooLate(StepCache):
    """Attends, and only then writes."""

    def attend(self, layer, query, key, value):
        output = self.read(layer, query)
        self.write(layer, key, value)
        return output


def broken(cache=StepCache, **methods):
    """A pair with another cache, or with other methods."""
    whole = pair(registry.get("write.indexing"), registry.get("attend.sdpa_indexing"))

    def run(self, workload, prepared):
        held = cache(self, workload, prepared)
        return workload.model(workload.tokens, prepared.positions, held)

    return type("Broken", (whole,), {"run": run, **methods})()


def _one_slot_off(self, workload):
    own = Step.prepare(self, workload)
    starts = [max(start - 1, 0) for start in own.writing.starts]
    writing = dataclasses.replace(own.writing, starts=starts)
    return dataclasses.replace(own, writing=writing, written=self.writing.prepare(writing))


def _a_token_short(self, workload):
    own = Step.prepare(self, workload)
    lengths = [length - 1 for length in own.attending.lengths]
    attending = dataclasses.replace(own.attending, lengths=lengths)
    prepared = self.attending.prepare(attending)
    return dataclasses.replace(own, attending=attending, attended=prepared)


def _position_off(self, workload):
    own = Step.prepare(self, workload)
    return dataclasses.replace(own, positions=own.positions + 1)


def _stale():
    """A prepare that keeps the index of the first step."""
    kept = []

    def prepare(self, workload):
        kept.append(kept[0] if kept else Step.prepare(self, workload))
        return kept[0]

    return prepare


def _without_a_layer(self, workload, prepared):
    model, cache = workload.model, StepCache(self, workload, prepared)
    turn = model.rotary.at(prepared.positions)
    with torch.no_grad():
        hidden = model.embed_tokens(workload.tokens)
        for number, layer in enumerate(model.layers):
            if number != 1:
                hidden = layer(hidden, turn, cache)
        return model.lm_head(model.norm(hidden))


def _unordered(self, workload, prepared):
    return Step.run(self, workload, prepared).roll(1, 0)


def _of_memory_kept(self, workload, prepared):
    layers = prepared.writing.key_pool, prepared.writing.value_pool
    assert len(layers[0]) == len(workload.layers[0].key)
    first = dataclasses.replace(workload.layers[0], key=layers[0], value=layers[1])
    kept = dataclasses.replace(workload, layers=(first, *workload.layers[1:]))
    return Step.run(self, kept, prepared)


FAULTS = {
    "writes another layer's pool": lambda: broken(_OfAnotherLayer),
    "reads another layer's pool": lambda: broken(_ReadsAnotherLayer),
    "does not write a layer": lambda: broken(_NotWritten),
    "writes V for K": lambda: broken(_Swapped),
    "attends for another sequence": lambda: broken(_OtherSequence),
    "attends before it writes": lambda: broken(_TooLate),
    "writes one slot off": lambda: broken(prepare=_one_slot_off),
    "leaves the new token out": lambda: broken(prepare=_a_token_short),
    "turns by another position": lambda: broken(prepare=_position_off),
    "keeps an index": lambda: broken(prepare=_stale()),
    "leaves a layer out": lambda: broken(run=_without_a_layer),
    "gives another sequence's logits": lambda: broken(run=_unordered),
    "keeps the pools that it was prepared with": lambda: broken(run=_of_memory_kept),
}


@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found(fault, dtype):
    case = dataclasses.replace(CASE, dtype=dtype)
    assert oracle.check(broken(), build(case, CPU)) == ""
    assert oracle.check(FAULTS[fault](), build(case, CPU)) != ""


@pytest.mark.parametrize(
    ("output", "message"),
    [
        (lambda _: None, "run returned a NoneType"),
        (lambda logits: logits[:, :-1], f"expected torch.float32 of shape [3, {VOCABULARY}]"),
        (lambda logits: logits.double(), "the logits are torch.float64"),
        (lambda logits: logits * 1.0001, "the logits, sequence"),
        (lambda logits: logits.fill_(torch.nan), "inf of its norm from what is right"),
    ],
)
def test_what_a_step_gives_has_to_be_its_logits(output, message):
    whole = registry.get("step.native+native")
    run = {"run": lambda self, w, p: output(Step.run(self, w, p))}
    strategy = type("Broken", (type(whole),), run)()
    assert message in oracle.check(strategy, build(CASE, CPU))


def test_what_the_workload_has_may_not_be_changed():
    def run(self, workload, prepared):
        logits = Step.run(self, workload, prepared)
        workload.tokens.add_(1)
        return logits

    assert "tokens was changed" in oracle.check(broken(run=run), build(CASE, CPU))


@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
def test_right_steps_are_well_within_what_they_may_be_off(dtype):
    case = dataclasses.replace(CASE, dtype=dtype, seq_len=200, num_layers=4)
    for way in ("native+native", "indexing+sdpa_indexing"):
        strategy = registry.get(f"step.{way}")
        workload = build(case, CPU)
        fill(workload, 3)

        def context(layer, sequence, workload=workload):
            positions = torch.arange(workload.lengths[sequence] - 1)
            blocks = torch.tensor(workload.block_tables[sequence])[positions // case.block_size]
            pools = workload.layers[layer]
            found = (p[blocks, positions % case.block_size] for p in (pools.key, pools.value))
            return tuple(rows.double().numpy() for rows in found)

        right = decoding.right_step(workload, context)
        logits = strategy.run(workload, strategy.prepare(workload)).double().numpy()
        apart = decoding.distances(logits, right.logits).max()
        assert apart <= decoding.tolerance(case, case.num_layers) / 2
        assert [rows.shape for rows in right.keys] == [(3, 2, 16)] * 4


# Names.


def test_any_pair_is_made_when_it_is_asked_for_by_its_name():
    name = "step.scatter+sdpa_block_slices"
    assert name not in {s.name for s in registry.all_strategies()}
    (strategy,) = registry.select([name])
    assert (strategy.writing.name, strategy.attending.name) == (
        "write.scatter",
        "attend.sdpa_block_slices",
    )
    assert registry.get(name) is strategy
    assert registry.is_registered(strategy)
    again = pickle.loads(pickle.dumps(strategy))  # noqa: S301 - its own
    assert (again.name, again.writing.name) == (name, "write.scatter")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("step.indexin+native", "unknown strategy 'write.indexin' (did you mean 'write.indexing'?"),
        ("step.native+nativ", "unknown strategy 'attend.nativ' (did you mean 'attend.native'?"),
        ("step.native", "unknown strategy 'step.native'"),
        ("step.na*+nat?ve2", "unknown strategy 'step.na*+nat?ve2'"),
    ],
)
def test_a_pair_of_which_a_half_is_unknown_names_it(name, message):
    for find in (registry.get, lambda name: registry.select([name])):
        with pytest.raises(InputError) as raised:
            find(name)
        assert message in str(raised.value)


def test_a_pattern_finds_the_pairs_that_are_registered():
    found = {s.name for s in registry.select(["step.*+native"])}
    assert {"step.native+native", "step.indexing+native"} <= found


# Cases and workloads.


@pytest.mark.parametrize("fields", [{}, {"num_layers": 1, "head_dim": 64}, {"num_kv_heads": 4}])
def test_a_case_knows_the_weights_of_its_model(fields):
    case = dataclasses.replace(CASE, **fields)
    model = build(case, CPU).model
    assert sum(p.numel() for p in model.parameters()) == case.weights
    assert config_of(case).intermediate_size % 64 == 0


def test_the_bytes_of_a_step_are_weights_and_slots_and_logits():
    case = Case(op="step", seq_len=7, batch=2, lengths="equal", dtype="bf16", **SMALL)
    row = 2 * 16 * 2 * 2  # K and V, two heads, two bytes
    assert case.nbytes == 2 * case.weights + 3 * 14 * row + 2 * VOCABULARY * 2
    assert case.written_bytes == 3 * 2 * 2 * row
    assert case.attended_bytes == 3 * (14 * row + 2 * 2 * 4 * 16 * 2)
    assert 0 < case.least_bytes < needed_bytes(case, 1 << 40)


def test_layers_have_blocks_of_their_own_and_contexts_unlike_each_other():
    workload = build(CASE, CPU)
    fill(workload)
    blocks = [len(layer.key) for layer in workload.layers]
    assert blocks == [len(workload.key_pool) // 3] * 3
    places = oracle.token_places(workload)
    first, second, _ = (layer.key for layer in workload.layers)
    last = np.cumsum(workload.lengths) - 1
    for token, place in enumerate(places):
        is_new = token in last
        assert bool(first[place].isnan().all()) == is_new
        assert is_new or not torch.equal(first[place], second[place])


def test_workloads_of_a_case_share_one_model_and_another_seed_has_another():
    one, two = build(CASE, CPU).model, build(CASE, CPU).model
    assert one is two
    other = build(dataclasses.replace(CASE, seed=1), CPU).model
    assert not torch.equal(one.lm_head.weight, other.lm_head.weight)


def test_a_step_has_no_holes_and_a_sweep_of_them_has_its_default():
    with pytest.raises(InputError, match="lengths=holes with op=step"):
        dataclasses.replace(CASE, lengths="holes")
    (case,) = Axes.parse(["op=step", "lengths=holes"]).expand()
    assert case == Case(op="step", seq_len=128)


def test_parts_write_the_workloads_rows_and_attend_for_its_queries():
    strategy, workload = registry.get("step.native+native"), build(CASE, CPU)
    fill(workload)
    prepared = strategy.prepare(workload)
    strategy.run_part("write", workload, prepared)
    for layer in workload.layers:
        for row, (table, length) in enumerate(
            zip(workload.block_tables, workload.lengths, strict=True)
        ):
            place = table[(length - 1) // 4], (length - 1) % 4
            assert torch.equal(layer.key[place], workload.key[row])
            assert torch.equal(layer.value[place], workload.value[row])
    outputs = strategy.run_part("attend", workload, prepared)
    assert [output.shape for output in outputs] == [(3, 4, 16)] * 3
    assert all(output.isfinite().all() for output in outputs)
    assert not torch.equal(outputs[0], outputs[1])


# Rows.


def test_a_step_is_timed_whole_and_by_its_parts():
    bench = Bench(
        device=CPU,
        clocks=(WallClock(CPU),),
        floors_s={"wall": Floor(0.0, 3e-8)},
        rule=StoppingRule(min_rounds=4, max_rounds=4, cell_seconds=5.0, sample_seconds=2e-5),
        call_budget_s=1.0,
        copy_bytes_per_s=1e10,
    )
    rows = measure_case(CASE, [registry.get("step.native+native")], bench)
    assert {row.phase: row.measurement.nbytes for row in rows} == {
        "run": CASE.nbytes,
        "prepare": None,
        "write": CASE.written_bytes,
        "attend": CASE.attended_bytes,
    }
    assert set(registry.get("step.native+native").phases()) == {row.phase for row in rows}


ROUNDS = (1.0, 2.0, 0.5, 1.5, 4.0, 1.25)
"""How slow the machine was in each round."""


def times(seconds):
    return [seconds * each for each in ROUNDS]


def rows_of(way="native+native", run_s=4e-3, prepare_s=1e-3, **fields):
    at = {"seq_len": 64, "batch": 2, "num_layers": 4, **fields}
    phases = {"run": run_s, "prepare": prepare_s, "write": 4e-4, "attend": 8e-4}
    return [
        result(f"step.{way}", times(seconds), phase=phase, **at)
        for phase, seconds in phases.items()
    ]


def test_a_step_costs_prepare_and_one_run_however_many_layers_are_asked_about():
    for layers in (1, 32):
        costs = step_costs(to_frame(rows_of()), layers)
        assert list(costs["step_s"]) == pytest.approx([5e-3 * np.median(ROUNDS)])
        assert list(costs["step_samples_s"][0]) == pytest.approx(times(5e-3))


def test_tables_and_rankings_are_of_whole_steps():
    frame = to_frame([*rows_of(), *rows_of("loop+sdpa_loop", run_s=9e-3, prepare_s=1e-3)])
    ranking = ranking_table(frame, "step", 32)
    assert ranking.title == "step: cost of a step (prepare + run, which has all layers)"
    assert [row[:2] for row in ranking.rows] == [
        ("step.native+native", "1.00x the fastest"),
        ("step.loop+sdpa_loop", "2.00x the fastest"),
    ]
    by_name = dict(times_table(frame, "step", 32).rows)
    assert by_name["step.native+native"] == "5.50 ms"
    assert by_name["step.native+native, with prepare"] == "6.87 ms"


def test_tokens_per_second_are_of_prepare_and_run():
    rates = throughput(to_frame(rows_of()))
    middle = 2 / 5e-3 / np.median(ROUNDS)
    assert rates["tokens_per_s"][0] == pytest.approx(middle, rel=0.1)
    low, high = rates["tokens_per_s_low"][0], rates["tokens_per_s_high"][0]
    assert low == pytest.approx(2 / 5e-3 / 4.0)
    assert high == pytest.approx(2 / 5e-3 / 0.5)
    assert throughput(to_frame([result("write.loop")])).empty


def test_the_split_of_a_step_adds_up_and_is_spread_over_tokens_and_layers():
    frame = to_frame(rows_of())
    (whole,) = split(frame).to_dict("records")
    middle = np.median(ROUNDS)
    parts = {"prepare": 1e-3, "write": 4e-4, "attend": 8e-4, "rest": 2.8e-3}
    assert {part: whole[f"{part}_s"] / middle for part in parts} == pytest.approx(parts)
    (each,) = per_token_and_layer(split(frame)).to_dict("records")
    assert each["prepare_s"] == pytest.approx(whole["prepare_s"] / 8)
    lacking = [row for row in rows_of() if row.phase != "attend"]
    assert split(to_frame(lacking)).empty
    assert split_table(to_frame(lacking)) is None


def test_the_throughput_table_is_by_batch_and_context_the_fastest_first():
    rows = [
        *rows_of(),
        *rows_of("loop+sdpa_loop", run_s=9e-3),
        *rows_of(seq_len=512, run_s=19e-3),
        *rows_of(batch=8),
    ]
    table = throughput_table(to_frame(rows))
    assert table.header == ("batch", "strategy", "64", "512")
    assert [row[:2] for row in table.rows] == [
        ("2", "step.native+native"),
        ("2", "step.loop+sdpa_loop"),
        ("8", "step.native+native"),
    ]
    assert table.rows[1][3] == "—"
    assert table.rows[0][3].endswith("(25.0 to 200)")
    assert throughput_table(to_frame([result("write.loop")])) is None


def test_the_split_table_shows_prepare_spread_over_more_and_more_layers():
    rows = [row for layers in (1, 4, 16) for row in rows_of(num_layers=layers)]
    table = split_table(to_frame(rows))
    assert [row[:3] for row in table.rows] == [
        ("step.native+native", "1", "688 µs"),
        ("", "4", "172 µs"),
        ("", "16", "43.0 µs"),
    ]
    assert table.header[-1] == "prepare's share"
    assert table.rows[0][-1] == "20.0 %"


def test_a_run_of_steps_has_figures_of_tokens_per_second_and_of_layers():
    rows = [
        *(row for n in (64, 512) for b in (1, 8) for row in rows_of(seq_len=n, batch=b)),
        *rows_of("loop+sdpa_loop", seq_len=512),
        *(row for layers in (1, 16) for row in rows_of(num_layers=layers)),
    ]
    found = {sketch.name: sketch for sketch in sketches(to_frame(rows), run_info())}
    assert list(found) == ["step-tokens-per-second", "step-amortisation"]
    rates = found["step-tokens-per-second"].draw()
    assert [panel.get_title(loc="left") for panel in rates.axes] == [
        "batch 1",
        "batch 2",
        "batch 8",
    ]
    assert [len(panel.lines) for panel in rates.axes] == [1, 1, 1]
    layers = found["step-amortisation"].draw()
    (panel,) = layers.axes
    assert panel.get_title(loc="left") == "native\n+native"
    assert [text.get_text() for text in panel.get_xticklabels()] == ["1", "16"]
    heights = [bar.get_height() for bar in panel.patches]
    assert heights[0] == pytest.approx(16 * heights[1])  # prepare
