"""Who is the fastest where, and where a call's time goes: exact values, then the figures."""

import re

import pandas as pd
import pytest
from made import result, run_info, sweep_rows
from matplotlib.colors import to_hex

from kvbench.analysis.breakdown import broken_down
from kvbench.analysis.fastest import fastest
from kvbench.analysis.fit import Refusal
from kvbench.analysis.frame import to_frame
from kvbench.errors import InputError
from kvbench.report.breakdown import breakdown_figure, breakdown_pages, reasons
from kvbench.report.fastest import fastest_figure, fastest_pages
from kvbench.report.layers import LAYERS, few, layers_figure, layers_pages, per_layer
from kvbench.report.plots import sketches
from kvbench.report.style import colour
from kvbench.results import LaunchCounts

ROUNDS = (1.0, 2.0, 0.5, 1.5, 4.0, 1.25)
"""How slow the machine was in each round."""


def times(seconds: float) -> list[float]:
    return [seconds * each for each in ROUNDS]


def three(loop_s: float, indexing_s: float, mapped_s: float, once_s: float, **fields):
    return [
        result("write.loop", times(loop_s), **fields),
        result("write.indexing", times(indexing_s), **fields),
        result("write.slot_mapping", times(mapped_s), **fields),
        result("write.slot_mapping", times(once_s), phase="prepare", **fields),
    ]


def test_the_winner_of_a_cell_is_that_of_a_step_and_its_margin_that_within_rounds():
    rows = three(8e-6, 4e-6, 1e-6, 6e-6)
    (one,) = fastest(to_frame(rows), "write", 1, "block_size").to_dict("records")
    # Of one layer prepare is too much; of many it is nothing.
    assert (one["winner"], one["runner_up"]) == ("write.indexing", "write.slot_mapping")
    assert one["winner_s"] == pytest.approx(4e-6 * 1.375)  # the median of the rounds
    assert (one["ratio"], one["ratio_low"], one["ratio_high"]) == pytest.approx((7 / 4,) * 3)
    assert one["tied"] is False
    (many,) = fastest(to_frame(rows), "write", 32, "block_size").to_dict("records")
    assert (many["winner"], many["runner_up"]) == ("write.slot_mapping", "write.indexing")
    assert many["winner_s"] == pytest.approx((6e-6 + 32e-6) * 1.375)
    assert many["ratio"] == pytest.approx(128 / 38)


def test_two_whose_ratio_may_be_one_are_tied():
    rows = [
        result("write.loop", [4e-6, 4e-6, 4e-6, 4e-6, 4e-6]),
        result("write.indexing", [5e-6, 5e-6, 5e-6, 5e-6, 3e-6]),
    ]
    (cell,) = fastest(to_frame(rows), "write", 1, "block_size").to_dict("records")
    assert (cell["winner"], cell["tied"]) == ("write.loop", True)
    ratio = tuple(cell[f"ratio{end}"] for end in ("", "_low", "_high"))
    assert ratio == pytest.approx((1.25, 0.75, 1.25))


def test_cells_are_ordered_by_setting_axis_and_size_and_need_two_strategies():
    rows = [
        *three(8e-6, 4e-6, 1e-6, 6e-6, seq_len=8, block_size=64),
        *three(8e-6, 4e-6, 1e-6, 6e-6, seq_len=64),
        *three(8e-6, 4e-6, 1e-6, 6e-6, seq_len=8),
        *three(8e-6, 4e-6, 1e-6, 6e-6, seq_len=8, dtype="fp32"),
        result("write.loop", times(1e-6), seq_len=512),
        result("write.loop", None, status="failed", seq_len=1),
        result("write.indexing", times(1e-6), seq_len=1),
        *three(8e-6, 4e-6, 1e-6, 6e-6, seq_len=0),
        result("read.loop", times(1e-6), seq_len=64),
    ]
    cells = fastest(to_frame(rows), "write", 1, "block_size")
    found = list(cells[["dtype", "block_size", "seq_len"]].itertuples(index=False, name=None))
    assert found == [("bf16", 16, 8), ("bf16", 16, 64), ("bf16", 64, 8), ("fp32", 16, 8)]
    assert list(cells.index) == [0, 1, 2, 3]
    assert cells["tied"].dtype == bool


def test_a_strategy_whose_prepare_failed_wins_nothing():
    rows = three(8e-6, 4e-6, 1e-6, 6e-6)
    rows[3] = result("write.slot_mapping", None, status="failed", phase="prepare")
    (cell,) = fastest(to_frame(rows), "write", 32, "batch").to_dict("records")
    assert (cell["winner"], cell["runner_up"]) == ("write.indexing", "write.loop")


def test_nothing_timed_has_no_cells_and_all_columns():
    cells = fastest(to_frame([result("write.loop")]), "write", 32, "block_size")
    assert cells.empty
    assert {"winner", "winner_s", "runner_up", "ratio", "tied", "seq_len"} <= set(cells.columns)


@pytest.mark.parametrize("axis", ["block_sze", "seq_len", "op", "tokens"])
def test_an_axis_that_is_none_is_refused(axis):
    with pytest.raises(InputError, match=f"axis '{axis}': expected a field of a case"):
        fastest(to_frame(sweep_rows()), "write", 32, axis)


def grid(**fields):
    """The loop wins at 8, indexing at 64 by far, and of blocks of 64 they are tied at 8."""
    at = {"num_heads": 8, **fields}
    return [
        *(result("write.loop", times(2e-6), seq_len=8, block_size=b, **at) for b in (16, 64)),
        *(result("write.loop", times(90e-6), seq_len=64, block_size=b, **at) for b in (16, 64)),
        result("write.indexing", times(3e-6), seq_len=8, block_size=16, **at),
        result("write.indexing", [2.1e-6] * 6, seq_len=8, block_size=64, **at),
        *(result("write.indexing", times(3e-6), seq_len=64, block_size=b, **at) for b in (16, 64)),
    ]


def shown(panel):
    """The words of each cell and the colour that it has, by its place."""
    faces = {
        (round(box.get_x() + 0.5), round(box.get_y() + 0.5)): to_hex(box.get_facecolor()).upper()
        for box in panel.patches
        if 0.5 < box.get_height() < 1 and box.get_linewidth() == 0 and box.get_width() == 1
    }
    words = {}
    for text in panel.texts:
        words.setdefault(tuple(map(round, text.get_position())), []).append(text.get_text())
    return words, faces


def test_a_cell_has_the_colour_of_its_winner_and_says_by_how_much():
    (page,) = fastest_pages(to_frame(grid()), "write", 32)
    assert (page.name, page.axis, page.panels) == ("", "block_size", (8,))
    (panel,) = fastest_figure(page, "write", run_info()).axes
    words, faces = shown(panel)
    assert words == {
        (0, 0): ["loop 1.5x", "indexing"],
        (1, 0): ["indexing 30x", "loop"],
        (0, 1): ["indexing tied", "loop"],
        (1, 1): ["indexing 30x", "loop"],
    }
    loop, indexing = colour("write.loop"), colour("write.indexing")
    assert faces == {(0, 0): loop, (1, 0): indexing, (0, 1): indexing, (1, 1): indexing}
    assert [label.get_text() for label in panel.get_xticklabels()] == ["8", "64"]
    assert [label.get_text() for label in panel.get_yticklabels()] == ["16", "64"]
    assert (panel.get_ylabel(), panel.get_title(loc="left")) == ("block size", "8 KV heads")


def test_heads_are_panels_of_block_sizes_or_lines_without_any_and_batches_have_a_figure():
    both = [*grid(), *grid(num_kv_heads=2)]
    pages = fastest_pages(to_frame(both), "write", 32)
    # Other query heads per KV head are another setting.
    assert [page.name for page in pages] == ["", "queries_per_kv_head-4"]
    assert [(page.axis, page.panels) for page in pages] == [
        ("block_size", (8,)),
        ("block_size", (2,)),
    ]
    heads = [*grid(num_heads=8, num_kv_heads=8), *grid(num_heads=2, num_kv_heads=2)]
    (page,) = fastest_pages(to_frame(heads), "write", 32)
    assert (page.axis, page.panels) == ("block_size", (2, 8))
    alone = [row for row in heads if row.case.block_size == 16]
    (page,) = fastest_pages(to_frame(alone), "write", 32)
    assert (page.axis, page.panels) == ("num_kv_heads", ())
    assert page.subtitle == "block size 16, bf16, batch 1, head_dim 128"
    found = fastest_pages(to_frame([*grid(), *grid(batch=4)]), "write", 32)
    names = [(page.name, page.axis, page.rank) for page in found]
    assert names[0] == ("", "block_size", (0, 0))
    assert ("over-batch", "batch", (0, 1)) in names
    one_line = [row for row in grid() if row.case.block_size == 16]
    assert fastest_pages(to_frame(one_line), "write", 32) == []


def test_of_very_many_sizes_some_are_left_out_and_said():
    rows = sweep_rows(seq_lens=range(1, 21), block_sizes=(16, 64))
    (page,) = fastest_pages(to_frame(rows), "write", 32)
    figure = fastest_figure(page, "write", run_info())
    assert len(figure.axes[0].get_xticklabels()) == 16
    # Of so many there is room for the numbers alone.
    assert all(re.fullmatch(r"[\d.]+x|tied", text.get_text()) for text in figure.axes[0].texts)
    assert "4 of 20 values of seq_len are left out" in figure.get_label()


def test_layers_share_what_is_prepared():
    costs = per_layer(to_frame(three(8e-6, 4e-6, 1e-6, 6e-6)))
    assert tuple(sorted(set(costs["layers"]))) == LAYERS == (1, 2, 4, 8, 16, 32, 64, 128)
    mapped = costs[costs["strategy"] == "write.slot_mapping"].set_index("layers")
    loop = costs[costs["strategy"] == "write.loop"]
    assert list(loop["layer_s"]) == pytest.approx([8e-6 * 1.375] * 8)
    for layers in LAYERS:
        assert mapped.loc[layers, "layer_s"] == pytest.approx((6e-6 / layers + 1e-6) * 1.375)
        low, high = mapped.loc[layers, ["layer_low_s", "layer_high_s"]]
        assert (low, high) == pytest.approx(
            ((6e-6 / layers + 1e-6) * 0.5, (6e-6 / layers + 1e-6) * 4)
        )


def test_layers_are_drawn_at_the_least_a_middle_and_the_largest_size():
    rows = [row for n in (1, 2, 8, 64, 512) for row in three(8e-6, 4e-6, 1e-6, 6e-6, seq_len=n)]
    (page,) = layers_pages(to_frame(rows))
    assert page.seq_lens == (1, 8, 512)
    figure = layers_figure(page, "write", run_info())
    titles = [panel.get_title(loc="left") for panel in figure.axes]
    assert titles == ["seq_len 1", "seq_len 8", "seq_len 512"]
    for panel in figure.axes:
        assert [len(line.get_xdata()) for line in panel.lines] == [8, 8, 8]
    assert "(prepare + L x run) / L" in figure.get_suptitle()
    flat = [row for row in rows if row.strategy != "write.slot_mapping"]
    assert list(layers_pages(to_frame(flat))) == []


def test_few_are_the_ends_and_the_middle():
    assert few(pd.Series([8, 1, 64, 1])) == (1, 8, 64)
    assert few(pd.Series([8, 1])) == (1, 8)
    assert few(pd.Series([8])) == (8,)
    assert few(pd.Series([], dtype=int)) == ()


CALL_S, LAUNCH_S, BYTES_PER_S = 5e-6, 2e-6, 1e10


def launching(count: int) -> LaunchCounts:
    return LaunchCounts(kernels=count, memcpys=0, synchronizations=0, source="predicted")


def modelled(strategy: str, launches, **fields):
    """Rows of a strategy whose times are the model's own."""
    rows = []
    for n, heads in ((n, h) for n in (8, 64, 512, 4096) for h in (1, 8, 32)):
        case = {"seq_len": n, "num_heads": heads, "num_kv_heads": heads, **fields}
        nbytes = 4 * n * heads * 128 * 2
        seconds = CALL_S + LAUNCH_S * launches(n) + nbytes / BYTES_PER_S
        rows.append(result(strategy, [seconds] * 5, launches=launching(launches(n)), **case))
    return rows


def test_a_call_is_broken_down_into_the_parts_that_it_was_made_of():
    rows = [*modelled("write.loop", lambda n: 2 * n), *modelled("write.indexing", lambda _: 7)]
    parts, _ = broken_down(to_frame(rows), "write")
    assert len(parts) == len(rows)
    loop = parts[parts["strategy"] == "write.loop"]
    assert loop["split"].all()
    assert list(loop["call_s"]) == pytest.approx([CALL_S] * 12, rel=1e-6)
    assert list(loop["launches_s"]) == pytest.approx(
        [2 * n * LAUNCH_S for n in loop["seq_len"]], rel=1e-6
    )
    assert list(loop["bytes_s"]) == pytest.approx(list(loop["least_bytes"] / BYTES_PER_S), rel=1e-6)
    assert list(loop["rest_s"]) == pytest.approx([0.0] * 12, abs=1e-10)
    # What always launches as much has one overhead, and nobody can say which part is which.
    indexing = parts[parts["strategy"] == "write.indexing"]
    assert not indexing["split"].any()
    assert list(indexing["call_s"]) == pytest.approx([CALL_S + 7 * LAUNCH_S] * 12, rel=1e-6)
    assert list(indexing["launches_s"]) == [0.0] * 12


def test_what_has_no_fit_has_no_parts():
    rows = [
        *modelled("write.indexing", lambda _: 7),
        *modelled("write.loop", lambda n: 2 * n)[:3],
        *(result("write.native", times(1e-6), seq_len=n) for n in (8, 64)),
    ]
    frame = to_frame(rows)
    assert set(broken_down(frame, "write")[0]["strategy"]) == {"write.indexing"}
    assert broken_down(frame, "read")[0].empty
    pages = list(breakdown_pages(frame, "write"))
    assert [page.name for page in pages] == ["", "num_kv_heads-1", "num_kv_heads-32"]
    assert [refused.name for refused in pages[0].refused] == ["write.loop", "write.native"]
    figure = breakdown_figure(pages[0], "write", run_info())
    assert "Not fitted: loop (3 cells); native (2 cells)." in figure.get_label()


def test_bars_are_shares_of_the_measured_median():
    rows = [*modelled("write.loop", lambda n: 2 * n), *modelled("write.indexing", lambda _: 7)]
    page = next(breakdown_pages(to_frame(rows), "write"))
    figure = breakdown_figure(page, "write", run_info())
    assert [panel.get_title(loc="left") for panel in figure.axes] == [
        "seq_len 8",
        "seq_len 512",
        "seq_len 4,096",
    ]
    for panel in figure.axes:
        bars: dict[float, float] = {}
        for bar in panel.patches:
            bars[bar.get_y()] = bars.get(bar.get_y(), 0) + bar.get_width()
        assert list(bars.values()) == pytest.approx([100.0, 100.0], rel=1e-6)
        assert len(panel.texts) == 2  # the medians
    legend = [text.get_text() for text in figure.legends[0].get_texts()]
    assert legend == ["per call", "launches", "per call + launches", "bytes", "measured median"]


def test_reasons_are_short():
    refused = [
        Refusal("write.loop", 4, "launches and bytes grow together (rank 3 of 3); expected more"),
        Refusal("write.other", 4, "launches and bytes grow together (rank 2 of 3); expected more"),
        Refusal("write.few", 2, "2 cells; expected 6 or more"),
    ]
    assert reasons(refused) == ("loop, other (launches and bytes grow together); few (2 cells)")


def test_a_run_has_these_figures_by_the_wall_clock_alone():
    rows = [*modelled("write.loop", lambda n: 2 * n), *modelled("write.indexing", lambda _: 7)]
    rows += [row for n in (8, 64) for row in three(8e-6, 4e-6, 1e-6, 6e-6, seq_len=n)]
    found = sketches(to_frame(rows), run_info())
    assert {(sketch.kind, sketch.clock) for sketch in found} == {
        (kind, "wall")
        for kind in (
            *("launch-overhead", "bandwidth", "speedup", "fastest", "layers", "breakdown"),
        )
    }
    assert all(sketch.name.startswith(f"{sketch.op}-{sketch.kind}") for sketch in found)
