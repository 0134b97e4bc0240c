"""Predictions: the model's exact values, what they rest on, and that none looks measured."""

import dataclasses
import math
import re

import pytest
import torch

from kvbench import cli
from kvbench.analysis.prediction import (
    GPUS,
    Foretold,
    Premises,
    Range,
    alike,
    copied_bytes,
    crossings,
    outlasting,
    predictions,
    premises,
    step_ranges,
)
from kvbench.cases import Case
from kvbench.errors import InputError
from kvbench.presets import PREDICTED_GRIDS
from kvbench.report import prediction
from kvbench.results import LaunchCounts
from kvbench.strategies import registry
from kvbench.sweep.launches import ONE_KERNEL, foretold, predicted

GIVEN = Premises("x", "a GPU", 1e12, "a data sheet", 5e-6, 20e-6, "ASSUMED: by a test")
SIZES = (1, 8, 64, 512, 4096)


def counts(launches: int, waits: int = 0) -> LaunchCounts:
    return LaunchCounts(kernels=launches, memcpys=0, synchronizations=waits, source="predicted")


def told(way: str, launches, sizes=SIZES, op="write", phase="run", **fields) -> list[Foretold]:
    cases = [Case(op=op, seq_len=n, **fields) for n in sizes]
    return [
        Foretold(f"{op}.{way}", case, phase, counts(launches(case.seq_len)), copies=False)
        for case in cases
    ]


LOOP = told("loop", lambda n: 2 * n)
SEVEN = told("indexing", lambda _: 7)
TWO = told("slot_mapping", lambda _: 2)
TOO = told("index_put", lambda _: 2)


@pytest.fixture(scope="module")
def all_told() -> list[Foretold]:
    """Every built-in strategy and phase, at one size."""
    registry.load_builtin()
    found = []
    for strategy in registry.all_strategies():
        lengths = "equal" if strategy.op in {"attend", "step"} else "ragged"
        layers = {"num_layers": 2} if strategy.op == "step" else {}
        case = Case(op=strategy.op, seq_len=512, lengths=lengths, **layers)
        found += [foretold(strategy, case, phase) for phase in strategy.phases()]
    return found


def test_a_call_is_launches_times_their_cost_and_bytes_over_bandwidth():
    frame = predictions([*LOOP, *SEVEN], GIVEN)
    for row in frame.itertuples():
        nbytes = 4 * row.seq_len * 8 * 128 * 2  # K and V are read and written
        launches = 2 * row.seq_len if row.strategy == "write.loop" else 7
        assert (row.launches, row.nbytes) == (launches, nbytes)
        assert row.low_s == pytest.approx(launches * 5e-6 + nbytes / 1e12, rel=1e-12)
        assert row.high_s == pytest.approx(launches * 20e-6 + nbytes / 1e12, rel=1e-12)


def test_a_step_is_prepare_and_as_many_runs_as_layers():
    once = told("slot_mapping", lambda _: 1, phase="prepare")
    steps = step_ranges(predictions([*LOOP, *TWO, *once], GIVEN), 32)
    for row in steps.itertuples():
        prepare = 0 if row.strategy == "write.loop" else 5e-6
        assert row.step_low_s == pytest.approx(prepare + 32 * row.low_s, rel=1e-12)
    # What is not told is missing, not 0.
    case = TWO[0].case
    lost = Foretold("write.slot_mapping", case, "prepare", None, reason="nobody knows")
    steps = step_ranges(predictions([TWO[0], lost], GIVEN), 32)
    assert math.isnan(steps["step_low_s"].iloc[0])
    # An index is done once a step, and what it prepares before it.
    index = [
        *told("torch", lambda _: 14, op="index"),
        *told("torch", lambda _: 3, op="index", phase="prepare"),
    ]
    steps = step_ranges(predictions(index, GIVEN), 32)
    assert (steps["step_low_s"] == steps["low_s"]).all()


def test_bytes_outlast_launches_where_both_take_as_long():
    rows = predictions(TWO, GIVEN)
    found = outlasting(rows, GIVEN)
    per_token = 4 * 8 * 128 * 2 / 1e12
    assert found.at_low == pytest.approx(2 * 5e-6 / per_token)
    assert found.at_high == math.inf  # at 4,883 tokens, where nobody asked
    short = dataclasses.replace(GIVEN, launch_high_s=10e-6)
    assert outlasting(rows, short).at_high == pytest.approx(2 * 10e-6 / per_token)
    # As many launches as tokens: bytes never catch up, and launches that cost nothing never count.
    assert outlasting(predictions(LOOP, GIVEN), GIVEN) == Range(math.inf, math.inf)
    free = dataclasses.replace(GIVEN, launch_low_s=0.0, launch_high_s=0.0)
    assert outlasting(predictions(TWO, free), free) == Range(0.0, 0.0)


def test_strategies_of_one_curve_are_one_line_and_pairs_cross_where_their_launches_do():
    groups = alike(predictions([*LOOP, *SEVEN, *TWO, *TOO], GIVEN))
    assert [group.strategies for group in groups] == [
        ("write.index_put", "write.slot_mapping"),
        ("write.indexing",),
        ("write.loop",),
    ]
    found = {
        (each.faster.strategies[0], each.slower.strategies[0]): each.seq_len
        for each in crossings(groups)
    }
    assert found["write.index_put", "write.indexing"] == Range(0.0, 0.0)
    seven = found["write.indexing", "write.loop"]
    assert seven.at_low == pytest.approx(3.5, rel=0.01)  # bytes are next to nothing here
    assert seven.at_high == pytest.approx(3.5, rel=0.01)
    assert found["write.index_put", "write.loop"].at_low == pytest.approx(1.0)


@pytest.mark.parametrize("op", ["attend", "step"])
def test_an_attention_over_copies_moves_them_twice(op):
    case = Case(op=op, seq_len=512, num_layers=8, lengths="equal")
    rows = 512 * 8 * (128 + 128) * 2
    assert copied_bytes(case) == 2 * rows * (8 if op == "step" else 1)
    plain = Foretold(f"{op}.a", case, "run", counts(1))
    copying = dataclasses.replace(plain, copies=True)
    assert copying.nbytes - plain.nbytes == copied_bytes(case)
    assert dataclasses.replace(copying, phase="prepare").nbytes == 0


def test_a_phase_has_launches_or_a_reason_never_both():
    case = TWO[0].case
    for found, reason in ((None, ""), (counts(1), "why")):
        with pytest.raises(InputError, match="expected launches, or the reason"):
            Foretold("write.a", case, "run", found, reason=reason)


def test_every_strategy_and_phase_is_told_or_has_a_reason_by_name(all_told):
    for each in all_told:
        name = f"{each.strategy} {each.phase}"
        native, compiled = "native" in each.strategy, re.search("compile|flex", each.strategy)
        if native and each.counts is None:
            assert "C++ for the CPU's own memory" in each.reason, name
        elif compiled:
            assert each.reason == (
                "torch.compile: what Inductor makes of a graph is not known from its ops"
            ), name
        elif re.search("triton", each.strategy) and each.counts is None:
            assert "triton" in each.reason, name
        else:
            assert each.counts is not None, f"{name}: {each.reason}"
        assert not (native and each.counts is not None), name


def test_what_needs_torchs_attention_says_what_is_assumed_of_it(all_told):
    for each in all_told:
        sdpa = re.search("sdpa|enable_gqa", each.strategy)
        needed = sdpa and each.phase in {"run", "attend"} and each.counts is not None
        assert each.assumption == (ONE_KERNEL if needed else ""), (each.strategy, each.phase)
    # Without the assumption there is no prediction.
    assert (
        predicted(registry.get("attend.sdpa_loop"), Case(op="attend", seq_len=512), "run") is None
    )


def test_attention_over_copies_is_its_gather_and_what_attends():
    # One fused kernel. Its output's heads lie within its rows, so that a decode whose heads share
    # one of K and V puts them side by side again.
    for heads, kernels in ((8, 3), (32, 4)):
        case = Case(op="attend", seq_len=512, num_heads=heads, num_kv_heads=8, lengths="equal")
        found = foretold(registry.get("attend.sdpa_index_select"), case, "run")
        assert found.counts.launches == kernels
        assert found.copies
    assert not foretold(registry.get("attend.triton"), case, "run").copies


def test_launches_of_a_split_attention_depend_on_how_many_heads_there_are():
    strategy = registry.get("attend.triton")
    if strategy.supports(Case(op="attend", seq_len=8), torch.device("cuda")) is not None:
        pytest.skip("no Triton here")
    few = Case(op="attend", seq_len=512, batch=64, num_heads=8, num_kv_heads=2, lengths="equal")
    many = dataclasses.replace(few, num_heads=128, num_kv_heads=32)
    assert [predicted(strategy, case, "run").launches for case in (few, many)] == [2, 1]


def test_what_is_installed_here_does_not_matter_and_amd_has_no_cuda_cpp():
    strategy, case = registry.get("write.cuda"), Case(op="write", seq_len=512)
    assert foretold(strategy, case, "run").counts.launches == 1
    assert "NVIDIA GPUs alone" in foretold(strategy, case, "run", hip=True).reason
    quantised = dataclasses.replace(case, cache_dtype="fp8_e4m3")
    assert "copies bytes" in foretold(strategy, quantised, "run").reason


def test_every_gpu_has_the_vendors_figure_and_its_source():
    figures = {name: gpu.bandwidth_bytes_per_s for name, gpu in GPUS.items()}
    assert figures == {
        "h100": 3.35e12,
        "h200": 4.8e12,
        "a100": 2.039e12,
        "l4": 300e9,
        "rtx4090": 1.008e12,
        "b200": 8e12,
        "mi300x": 5.3e12,
    }
    for name, gpu in GPUS.items():
        vendor = "AMD" if gpu.hip else "NVIDIA"
        assert gpu.source.startswith(vendor), name
        assert re.search(r"https://[\w.]*(nvidia|amd)\.com/", gpu.source), name


def test_the_launch_cost_is_an_assumption_and_says_so():
    series, own = premises("H100", None, None), premises(None, 1500.0, "7.5")
    assert (series.launch_low_s, series.launch_high_s) == (5e-6, 20e-6)
    assert series.launch_source.startswith("ASSUMED: the range that the teaching series")
    assert (own.launch_low_s, own.launch_high_s) == (7.5e-6, 7.5e-6)
    assert own.bandwidth_bytes_per_s == 1.5e12
    assert own.bandwidth_source == "ASSUMED: as given with --bandwidth"


def claims() -> dict[str, tuple[str, str]]:
    ways = [registry.get(f"write.{way}") for way in ("loop", "indexing", "slot_mapping", "triton")]
    many, one = (
        [foretold(way, Case(op="write", seq_len=n), "run") for way in ways] for n in (512, 1)
    )
    table = prediction.claims_table(many, one, GIVEN)
    assert "PREDICTED — not measured" in table.title
    return {claim: (said, source) for claim, said, source in table.rows}


def test_the_claims_are_those_of_the_series_with_counted_launches():
    found = claims()
    become, _ = found["“seq_len launches become one”"]
    assert "loop 1,024, indexing 7, slot_mapping 2" in become
    saved, source = found["“about 511 launches saved at seq_len 512”"]
    # 1,024 - 7, at 5 and at 20 µs.
    assert "1,017 by indexing (5.08 to 20.3 ms a layer)" in saved
    assert "1,022 by slot_mapping (5.11 to 20.4 ms a layer)" in saved
    assert "511 counts K alone" in source
    cost, source = found["“5 to 20 µs a launch”"]
    assert cost.startswith("nothing: it is taken as 5.00 to 20.0 µs")
    assert "5.12 to 20.5 ms a layer" in cost
    assert source.startswith("ASSUMED")
    assert "loop 512x, indexing 1x" in found["“the Python loop over tokens is gone”"][0]
    # 4 MiB at 1e12 bytes per second.
    copied, _ = found["“no extra copy”"]
    assert "4.00 MiB more" in copied
    assert "4.19 µs a layer" in copied


def texts(figure) -> list[str]:
    panels = [text.get_text() for panel in figure.axes for text in panel.texts]
    return [figure.get_suptitle(), figure.get_supxlabel(), *panels]


def test_every_title_caption_and_file_says_that_nothing_was_measured():
    frame = predictions([*LOOP, *SEVEN, *TWO, *TOO], GIVEN)
    tables = [
        prediction.premises_table(GIVEN),
        *prediction.tables(frame, GIVEN, 32),
        prediction.untold_table([Foretold("write.a", TWO[0].case, "run", None, reason="why")]),
    ]
    assert len(tables) == 4
    for table in tables:
        assert "PREDICTED — not measured" in table.title
    (name, figure), *others = prediction.figures(frame, GIVEN)
    assert (name, others) == ("PREDICTED-write-x", [])
    title, caption, *inside = texts(figure)
    assert "PREDICTED — not measured" in title
    assert caption.startswith("PREDICTED — not measured")
    for part in ("a data sheet", "ASSUMED: by a test", "Launches x 5.00 to 20.0 µs"):
        assert part in caption.replace("\n", " ")
    assert "index_put, slot_mapping (2)" in inside
    assert "PREDICTED" in inside
    assert any(text.startswith("loop (2/token)") for text in inside)
    (panel,) = figure.axes
    assert panel.get_ylabel() == "predicted µs per call"
    # A measured line is solid, and has markers.
    assert {line.get_linestyle() for line in panel.lines} == {"--", "-."}
    assert {line.get_marker() for line in panel.lines} == {"None"}


def test_a_table_of_costs_is_at_512_tokens_and_names_what_waits():
    waits = [
        dataclasses.replace(each, counts=counts(7, waits=1), strategy="write.waits")
        for each in SEVEN
    ]
    costs, pairs = prediction.tables(predictions([*LOOP, *waits, *TWO], GIVEN), GIVEN, 2)
    assert "at seq_len 512" in costs.title
    rows = {row[0]: row[1:] for row in costs.rows}
    nbytes_us = 4 * 512 * 8 * 128 * 2 / 1e12 * 1e6
    assert rows["write.loop"][1] == "1,024"
    assert rows["write.waits"][1] == "7, waits once"
    low, high = (launches * 2 + nbytes_us for launches in (5, 20))
    assert rows["write.slot_mapping"][2] == f"{low:.1f} to {high:.1f} µs"
    assert rows["write.slot_mapping"][3] == f"{2 * low:.1f} to {2 * high:.1f} µs"
    assert rows["write.loop"][4] == "beyond 4,096"
    assert ("write.waits", "write.loop", "3.50") in {
        (one, two, size.partition(" to ")[0]) for one, two, size in pairs.rows
    }


@pytest.fixture
def predict(monkeypatch, capsys):
    def call(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["kvbench", "predict", *map(str, arguments)])
        code = 0
        try:
            cli.main()
        except SystemExit as ended:
            code = ended.code or 0
        return code, *capsys.readouterr()

    return call


FEW = ("-s", "write.loop", "-s", "write.index_*", "-a", "seq_len=1:512:*8")


def test_the_command_prints_and_draws_and_leaves_no_run(predict, tmp_path):
    code, printed, said = predict("--gpu", "h100", *FEW, "--markdown", "-o", tmp_path / "out")
    assert (code, said) == (0, "")
    titles = [line for line in printed.splitlines() if line.startswith("**")]
    assert len(titles) == 4
    assert all("PREDICTED — not measured" in title for title in titles)
    assert "| write.loop | — | 1,024 |" in printed
    assert GPUS["h100"].source in printed
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "PREDICTED-write-h100.png",
        "PREDICTED-write-h100.svg",
    ]
    svg = (tmp_path / "out" / "PREDICTED-write-h100.svg").read_text()
    assert svg.count("PREDICTED") >= 3


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (("--gpu", "h10"), ("unknown GPU 'h10'", "did you mean 'h100'?")),
        ((), ("expected one of --gpu and --bandwidth", "mi300x")),
        (("--gpu", "l4", "--bandwidth", "300"), ("expected one of --gpu and --bandwidth",)),
        (("--bandwidth", "0"), ("bandwidth 0 GB/s", "above 0")),
        (("--bandwidth", "-3"), ("bandwidth -3 GB/s",)),
        (("--bandwidth", "nan"), ("bandwidth nan GB/s",)),
        (("--bandwidth", "inf"), ("bandwidth inf GB/s",)),
        (("--gpu", "l4", "--launch-us", "-1"), ("launch cost '-1'", "0 or more")),
        (("--gpu", "l4", "--launch-us", "nan"), ("launch cost 'nan'",)),
        (("--gpu", "l4", "--launch-us", "20:5"), ("launch cost '20:5'", "the smaller first")),
        (("--gpu", "l4", "--launch-us", "1:2:3"), ("launch cost '1:2:3'",)),
        (("--gpu", "l4", "--launch-us", "few"), ("launch cost 'few'", "as 10 or 5:20")),
        (("--gpu", "l4", "-s", "write.native"), ("nothing can be predicted", "write.native: C++")),
        (("--gpu", "l4", "-s", "write.*", "--op", "read"), ("nothing to predict",)),
        (("--gpu", "l4", "-a", "seq_length=3"), ("unknown axis",)),
    ],
)
def test_a_mistake_is_one_line_that_names_it(predict, arguments, parts):
    code, printed, said = predict(*arguments)
    assert (code, printed) == (2, "")
    assert said.startswith("error: ")
    assert said.count("\n") == 1
    for part in parts:
        assert part in said


def test_a_prediction_is_not_drawn_into_a_run(predict, tmp_path):
    (tmp_path / "rows.jsonl").write_text("")
    (tmp_path / "run.json").write_text("{}")
    code, _, said = predict("--gpu", "l4", *FEW, "-o", tmp_path)
    assert code == 2
    assert "holds a run; expected one without" in said


def test_a_prediction_of_one_size_says_that_there_is_nothing_to_draw(predict, tmp_path):
    code, printed, _ = predict(
        "--gpu", "l4", "-s", "write.loop", "-a", "seq_len=8", "-o", tmp_path / "drawn"
    )
    assert code == 0
    assert "No plots: nothing is predicted at two or more values of seq_len." in printed
    assert not (tmp_path / "drawn").exists()


def test_the_default_sizes_have_those_that_the_series_makes_its_claims_for():
    for grid in PREDICTED_GRIDS:
        sizes = {case.seq_len for case in grid.expand()}
        assert prediction.TOKENS in sizes
