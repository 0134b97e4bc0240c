"""Pages, figures and tables of synthetic runs."""

import dataclasses
import io
import itertools
import re
from collections import Counter
from types import SimpleNamespace
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made import environment, measurement, result, run_info, sweep_rows
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex
from rich.console import Console

from kvbench.analysis.frame import to_frame
from kvbench.analysis.speedup import speedups
from kvbench.cases import OPS
from kvbench.errors import StoreError
from kvbench.report import progress
from kvbench.report.curves import launch_overhead_figure
from kvbench.report.palette import FLOORS, legible
from kvbench.report.panels import pages, spread
from kvbench.report.plots import most_telling, sketches
from kvbench.report.progress import Meter
from kvbench.report.save import save_figure
from kvbench.report.speedup import speedup_figure
from kvbench.report.style import colour, line, marker
from kvbench.report.tables import (
    MISSING,
    Table,
    check_table,
    environment_line,
    first_calls_table,
    ranking_table,
    times_table,
    untimed_table,
)
from kvbench.strategies import registry


def pages_of(*rows):
    return list(pages(to_frame([row for part in rows for row in part])))


def test_a_sweep_over_panels_alone_is_one_page_without_a_suffix():
    (page,) = pages_of(sweep_rows(block_sizes=(16, 64), kv_heads=(1, 8)))
    assert page.name == ""
    assert (page.block_sizes, page.kv_heads) == ((16, 64), (1, 8))
    assert len(page.rows) == 3 * 2 * 2 * 4


def test_each_setting_that_no_panel_shows_is_a_page_named_by_what_differs():
    found = pages_of(
        sweep_rows(seq_lens=(1, 8), dtype="fp32"),
        sweep_rows(seq_lens=(1, 8, 64)),
        sweep_rows(seq_lens=(1, 8), dtype="fp16", batch=4, lengths="equal"),
    )
    assert [page.name for page in found] == [
        "",
        "dtype-fp32",
        "batch-4-lengths-equal-dtype-fp16",
    ]
    assert [set(page.rows["dtype"]) for page in found] == [{"bf16"}, {"fp32"}, {"fp16"}]
    assert found[0].subtitle == "bf16, batch 1, head_dim 128, shuffled blocks"
    assert found[2].subtitle == "fp16, batch 4, equal lengths, head_dim 128, shuffled blocks"


def test_a_subtitle_says_what_is_out_of_the_ordinary():
    (page,) = pages_of(
        sweep_rows(start_pos=7, padding=3, kv_input="fused_qkv", block_order="strided")
    )
    for part in ("start_pos 7", "3 padding rows", "fused_qkv input", "strided blocks"):
        assert part in page.subtitle


def test_a_setting_with_a_single_seq_len_has_no_page():
    assert pages_of(sweep_rows(seq_lens=(8,))) == []
    (page,) = pages_of(sweep_rows(seq_lens=(8,), dtype="fp32"), sweep_rows(seq_lens=(1, 8)))
    assert set(page.rows["dtype"]) == {"bf16"}


@pytest.mark.parametrize(
    ("block_sizes", "kv_heads", "count"),
    [((8, 16, 32), (1, 2, 4), 1), ((8, 16, 32, 64), (8,), 2), ((8,), (1, 2, 4, 8, 16, 32, 64), 3)],
)
def test_more_than_three_a_side_go_on_more_pages(block_sizes, kv_heads, count):
    found = pages_of(sweep_rows(block_sizes=block_sizes, kv_heads=kv_heads))
    assert [page.name for page in found] == ["", *(str(n + 1) for n in range(1, count))]
    assert all(len(page.block_sizes) <= 3 and len(page.kv_heads) <= 3 for page in found)
    shown = [(b, h) for page in found for b in page.block_sizes for h in page.kv_heads]
    assert sorted(shown) == sorted((b, h) for b in block_sizes for h in kv_heads)
    for page in found:
        assert set(page.rows["block_size"]) == set(page.block_sizes)
        assert set(page.rows["num_kv_heads"]) == set(page.kv_heads)
    assert sum(len(page.rows) for page in found) == len(block_sizes) * len(kv_heads) * 12


@given(
    st.sets(st.sampled_from([1, 2, 4, 8, 16, 32, 64]), min_size=1),
    st.sets(st.sampled_from(["bf16", "fp32"]), min_size=1),
    st.sets(st.sampled_from([1, 4]), min_size=1),
)
def test_pages_have_names_of_their_own(block_sizes, dtypes, batches):
    found = pages_of(
        *(
            sweep_rows(
                seq_lens=(1, 8), block_sizes=block_sizes, strategies=("loop",), dtype=d, batch=b
            )
            for d in dtypes
            for b in batches
        )
    )
    names = [page.name for page in found]
    assert len(set(names)) == len(names)
    assert names[0] == ""


def curve_of(rows, op="write", **info):
    (page,) = pages(to_frame(rows))
    return launch_overhead_figure(page, op, "wall", run_info(**info))


def figures_of(rows):
    return {sketch.name: sketch.draw() for sketch in sketches(to_frame(rows), run_info())}


def lines_of(panel):
    """(colour, style, xs) of each line that has data."""
    return [
        (to_hex(line.get_color()).upper(), line.get_linestyle(), list(line.get_xdata()))
        for line in panel.lines
        if len(line.get_xdata()) > 2
    ]


def test_a_curve_is_a_line_per_strategy_a_dotted_prepare_and_the_copy():
    figure = curve_of(sweep_rows())
    (panel,) = figure.axes
    xs = [1.0, 8.0, 64.0]
    assert sorted(lines_of(panel)) == sorted(
        [
            (colour("write.loop"), "-", xs),
            (colour("write.indexing"), "-", xs),
            (colour("write.slot_mapping"), "-", xs),
            (colour("write.slot_mapping"), ":", xs),
            (FLOORS[0], "--", xs),
        ]
    )
    assert len(panel.collections) == 3  # the bands of the runs


def test_a_curve_is_drawn_in_microseconds_of_the_median():
    rows = [
        result("write.loop", (1e-6, 2e-6, 4e-6), seq_len=1),
        result("write.loop", (30e-6, 10e-6, 20e-6), seq_len=8),
    ]
    (panel,) = curve_of(rows).axes
    assert list(panel.lines[0].get_ydata()) == pytest.approx([2.0, 20.0])
    assert panel.get_ylabel() == "µs per call"
    band = panel.collections[0].get_paths()[0].vertices[:, 1]
    assert {round(float(y), 6) for y in band} == {1.0, 4.0, 10.0, 30.0}


def test_the_copy_is_the_bytes_at_the_bandwidth_of_the_run():
    (panel,) = curve_of(sweep_rows()).axes
    (copy,) = (line for line in panel.lines if line.get_linestyle() == "--")
    assert list(copy.get_ydata()) == pytest.approx(
        [4 * n * 8 * 128 * 2 / 12e9 * 1e6 for n in (1, 8, 64)]
    )


def test_every_line_is_named_at_its_end():
    (panel,) = curve_of(sweep_rows()).axes
    assert Counter(text.get_text() for text in panel.texts) == Counter(
        ["loop (2/token)", "indexing (7)", "slot_mapping (2)", "prepare", "copy, 12.0 GB/s"]
    )
    by_name = {text.get_text(): to_hex(text.get_color()).upper() for text in panel.texts}
    for name, strategy in (("loop (2/token)", "write.loop"), ("prepare", "write.slot_mapping")):
        assert by_name[name] == legible(colour(strategy), "#FFFFFF")


def test_many_lines_make_a_panel_taller_and_keep_their_names_within_it():
    families = ("loop", "indexing", *"abcdefghijklm")
    rows = sweep_rows(strategies=families, block_sizes=(16, 64), kv_heads=(8, 32))
    prepares = [
        dataclasses.replace(row, phase="prepare") for row in rows if row.strategy[-1] in "abc"
    ]
    few, many = curve_of(sweep_rows()), curve_of([*rows, *prepares])
    assert many.get_figheight() > few.get_figheight()
    for panel in many.axes:
        named = [text for text in panel.texts if text.get_text().partition(" ")[0] in families]
        assert len(named) == len(families)
        heights = sorted(text.get_position()[1] for text in named)
        assert heights[0] > -0.1
        assert heights[-1] < 1.1
        # More than two are told by their colours.
        assert not [text for text in panel.texts if text.get_text() == "prepare"]
        assert len([line for line in panel.lines if line.get_linestyle() == ":"]) >= 3


def test_a_pair_that_was_not_swept_leaves_its_place_empty_and_its_neighbours_labelled():
    rows = sweep_rows(block_sizes=(16, 64), kv_heads=(1, 8))
    rows = [r for r in rows if (r.case.block_size, r.case.num_kv_heads) != (64, 8)]
    first, above, beside, none = curve_of(rows).axes
    assert [panel.axison for panel in (first, above, beside, none)] == [True, True, True, False]
    assert not none.get_title(loc="left")
    assert [bool(panel.get_xlabel()) for panel in (first, above, beside)] == [False, True, True]
    assert [label.get_visible() for label in above.get_xticklabels()].count(True) > 1
    assert not any(label.get_visible() for label in first.get_xticklabels())


def test_a_strategy_has_the_same_colour_in_every_panel_and_plot():
    rows = sweep_rows(block_sizes=(16, 64), kv_heads=(1, 8))
    frame = to_frame(rows)
    (page,) = pages(frame)
    (ratios,) = pages(speedups(frame, "write.loop"))
    curves = launch_overhead_figure(page, "write", "wall", run_info())
    speed = speedup_figure(ratios, "write", "write.loop", "wall", run_info())
    reads = curve_of(sweep_rows(op="read"), op="read")
    assert len(curves.axes) == len(speed.axes) == 4
    for name in ("loop", "indexing", "slot_mapping"):
        expected = colour(f"write.{name}")
        for panel in (*curves.axes, *reads.axes):
            assert expected in [c for c, style, _ in lines_of(panel) if style == "-"]
    for panel in speed.axes:
        assert sorted(c for c, _, _ in lines_of(panel)) == sorted(
            [colour("write.indexing"), colour("write.slot_mapping")]
        )


def test_builtin_strategies_are_told_apart_by_colour_and_by_marker():
    named = [strategy.name for strategy in registry.all_strategies()]
    for op in OPS:
        whole = [name for name in named if name.startswith(op)]
        if op == "step":  # a pair has the colour of one half, and the marker of the other
            looks = [str(sorted(line(name).items())) for name in whole]
            assert len(set(looks)) == len(looks) > len({colour(name) for name in whole})
            continue
        # Those that gather are apart from those that don't by their width and hollow markers.
        gathering = [name for name in whole if name.startswith("attend.sdpa_")]
        for of_op in (gathering, [name for name in whole if name not in gathering]):
            assert len({colour(name) for name in of_op} | {FLOORS[0]}) == len(of_op) + 1
            assert len({marker(name) for name in of_op}) == len(of_op)
        assert all(line(name) != line(other) for name in gathering for other in of_op)
    # A way of doing both has one colour; so have two ops that do each other's work.
    assert colour("write.loop") == colour("read.loop")
    assert colour("write.scatter") == colour("read.gather")


def test_panels_say_what_they_show():
    figure = curve_of(sweep_rows(block_sizes=(16, 64), kv_heads=(1, 8)))
    assert [panel.get_title(loc="left") for panel in figure.axes] == [
        "block size 16, 1 KV head",
        "block size 64, 1 KV head",
        "block size 16, 8 KV heads",
        "block size 64, 8 KV heads",
    ]
    first = figure.axes[0].lines[0]
    assert list(first.get_xdata()) == [1.0, 8.0, 64.0]


def test_an_untimed_strategy_has_no_line():
    rows = [
        *sweep_rows(strategies=("loop",)),
        *(result("write.triton", status="checked", seq_len=n) for n in (1, 8, 64)),
    ]
    (panel,) = curve_of(rows).axes
    assert colour("write.triton") not in [c for c, _, _ in lines_of(panel)]
    assert "triton" not in [text.get_text() for text in panel.texts]


@pytest.mark.parametrize(
    ("cache", "device", "marked"),
    [
        (256 << 10, "cpu", True),
        (256 << 10, "cuda:0", False),
        (1 << 40, "cpu", False),
        (1, "cpu", False),
        (None, "cpu", False),
    ],
)
def test_the_cpu_cache_is_marked_where_the_bytes_outgrow_it(cache, device, marked):
    # 8, 64 and 512 KiB.
    info = {"environment": environment(last_level_cache_bytes=cache, device=device)}
    (panel,) = curve_of(sweep_rows(), **info).axes
    texts = [text.get_text().strip() for text in panel.texts]
    assert ("fits 256 KiB cache" in texts) == marked
    vertical = [line for line in panel.lines if len(set(line.get_xdata())) == 1]
    assert [line.get_xdata()[0] for line in vertical] == ([pytest.approx(32.0)] if marked else [])


def test_a_run_has_curves_for_each_op_and_speed_ups_where_the_loop_was_timed():
    rows = [*sweep_rows(), *sweep_rows(op="read", strategies=("indexing",))]
    found = figures_of(rows)
    assert list(found) == [
        "write-launch-overhead",
        "write-bandwidth",
        "write-speedup",
        "write-layers",
        "read-launch-overhead",
        "read-bandwidth",
    ]


def test_a_run_of_few_panels_draws_all_it_has():
    rows = [*sweep_rows(), *sweep_rows(seq_lens=(1, 8), dtype="fp32", strategies=("loop",))]
    found = sketches(to_frame(rows), run_info())
    assert most_telling(found) == found
    assert {sketch.name: sketch.panels for sketch in found} == {
        **{f"write-{kind}": 1 for kind in ("launch-overhead", "bandwidth", "speedup")},
        **{f"write-{kind}-dtype-fp32": 1 for kind in ("launch-overhead", "bandwidth", "speedup")},
        "write-layers": 3,
    }


def many_settings():
    """By two clocks, 2 x 2 panels of 12 settings, the usual one neither first nor the largest."""
    rows = []
    for dtype, batch, layout in itertools.product(
        ("fp32", "bf16"), (8, 1), ("x-packed", "HND", "NHD")
    ):
        seq_lens = (1, 8, 64) if (dtype, batch, layout) == ("bf16", 1, "HND") else (1, 8)
        fields = {"dtype": dtype, "batch": batch, "layout": layout, "seq_lens": seq_lens}
        rows += sweep_rows(block_sizes=(16, 64), kv_heads=(1, 8), strategies=("loop",), **fields)
    return [*rows, *(dataclasses.replace(row, clock="device") for row in rows)]


def test_of_many_figures_the_main_ones_come_first_then_those_nearest_to_the_defaults():
    every = sketches(to_frame(many_settings()), run_info())
    found = [sketch for sketch in every if sketch.kind in {"launch-overhead", "speedup"}]
    assert len(found) == 2 * 2 * 12
    names = [sketch.name for sketch in found]

    def picked(figures):
        chosen = most_telling(found, 5 * figures)  # four panels, and one for the rest
        assert chosen == [sketch for sketch in found if sketch in chosen]
        assert len(chosen) == figures
        return {sketch.name for sketch in chosen}

    wall = {"write-launch-overhead", "write-speedup"}
    main = wall | {f"{name}-device" for name in wall}
    near = {f"{name}-layout-NHD" for name in main}  # NHD is the default; most rows are HND's
    assert picked(1) == {"write-launch-overhead"}
    assert picked(2) == wall
    assert picked(4) == main
    assert picked(8) == main | near
    # One step from the defaults: another layout, batch or dtype.
    others = {
        f"{name}-{setting}"
        for name in main
        for setting in ("layout-x-packed", "batch-8-layout-NHD", "dtype-fp32-layout-NHD")
    }
    assert picked(20) == main | near | others
    assert picked(48) == set(names)


def test_one_figure_there_is_however_few_panels_are_asked_for():
    found = sketches(to_frame(many_settings()), run_info())
    assert [sketch.name for sketch in most_telling(found, 0)] == ["write-launch-overhead"]
    assert most_telling([], 0) == []


def test_figures_of_other_settings_have_names_that_say_them():
    rows = [*sweep_rows(), *sweep_rows(seq_lens=(1, 8), dtype="fp32", strategies=("loop",))]
    assert [sketch.name for sketch in sketches(to_frame(rows), run_info())] == [
        "write-launch-overhead",
        "write-launch-overhead-dtype-fp32",
        "write-bandwidth",
        "write-bandwidth-dtype-fp32",
        "write-speedup",
        "write-speedup-dtype-fp32",
        "write-layers",
    ]


def test_an_attention_is_held_against_the_loop_that_gathers_for_it():
    rows = sweep_rows(op="attend", strategies=("sdpa_loop", "native"))
    assert "attend-speedup" in figures_of(rows)
    others = sweep_rows(op="attend", strategies=("sdpa_indexing", "native"))
    assert "attend-speedup" not in figures_of(others)


def test_speed_ups_are_drawn_as_they_are():
    rows = [
        *(result("write.loop", [8e-6] * 5, seq_len=n) for n in (1, 8)),
        result("write.indexing", [4e-6] * 5, seq_len=1),
        result("write.indexing", [1e-6] * 5, seq_len=8),
    ]
    (page,) = pages(speedups(to_frame(rows), "write.loop"))
    (panel,) = speedup_figure(page, "write", "write.loop", "wall", run_info()).axes
    by_colour = {to_hex(line.get_color()).upper(): list(line.get_ydata()) for line in panel.lines}
    assert by_colour[colour("write.indexing")] == pytest.approx([2.0, 8.0])
    assert by_colour[colour("write.loop")] == [1, 1]
    assert {text.get_text() for text in panel.texts} == {"write.loop = 1", "indexing"}


def test_an_empty_batch_of_tokens_can_be_drawn():
    # `-a seq_len=0,1,8` is a sweep like any other; 0 has no place on a logarithmic axis.
    found = figures_of(sweep_rows(seq_lens=(0, 1, 8, 64)))
    kinds = ("launch-overhead", "bandwidth", "speedup", "layers")
    assert set(found) == {f"write-{kind}" for kind in kinds}


def test_query_heads_do_not_mix_in_one_line():
    rows = [*sweep_rows(num_heads=8), *sweep_rows(num_heads=16, seq_lens=(1, 8))]
    drawn = 0
    for name, figure in figures_of(rows).items():
        for panel in figure.axes:
            for _, _, xs in lines_of(panel):
                assert len(set(xs)) == len(xs), name
                drawn += 1
    assert drawn > 0


ascending = st.lists(st.floats(-1, 2), max_size=12).map(sorted)


@given(ascending, st.floats(0.001, 0.5))
def test_labels_keep_their_order_and_their_distance(wanted, gap):
    placed = spread(wanted, gap)
    assert len(placed) == len(wanted)
    assert all(b - a >= gap * (1 - 1e-6) - 1e-12 for a, b in itertools.pairwise(placed))


@given(st.lists(st.floats(0.11, 1), max_size=12), st.floats(-1, 1))
def test_labels_that_are_far_enough_apart_stay_where_they_are(steps, first):
    wanted = [first]
    for step in steps:
        wanted.append(wanted[-1] + step)
    assert spread(wanted, 0.1) == pytest.approx(wanted, abs=1e-12)


@given(ascending.filter(bool), st.floats(0.001, 0.5))
def test_labels_are_moved_about_their_middle(wanted, gap):
    placed = spread(wanted, gap)
    assert sum(placed) == pytest.approx(sum(wanted), abs=1e-9)


def test_labels_that_overlap_form_a_pile():
    assert spread([0.5, 0.5, 0.5], 0.1) == pytest.approx([0.4, 0.5, 0.6])
    assert spread([0.0, 0.5, 0.52, 1.0], 0.1) == pytest.approx([0.0, 0.46, 0.56, 1.0])
    assert spread([], 0.1) == []


def test_a_figure_is_saved_as_png_and_svg_the_same_bytes_each_time(tmp_path):
    saved = []
    for folder in ("one", "two"):
        paths = save_figure(curve_of(sweep_rows()), tmp_path / folder / "plots", "curve")
        assert [path.name for path in paths] == ["curve.png", "curve.svg"]
        saved.append([path.read_bytes() for path in paths])
    png, svg = saved[0]
    assert png.startswith(b"\x89PNG\r\n")
    assert saved[1] == [png, svg]


def test_a_figure_can_be_saved_again_and_is_the_same(tmp_path):
    figure = curve_of(sweep_rows())
    first = [path.read_bytes() for path in save_figure(figure, tmp_path, "one")]
    assert [path.read_bytes() for path in save_figure(figure, tmp_path, "two")] == first


def test_nothing_of_a_figure_is_cut_off_and_no_panel_lies_on_another():
    rows = sweep_rows(block_sizes=(16, 64), kv_heads=(1, 8))
    figure = curve_of(rows)
    figure.set_dpi(200)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    renderer = canvas.get_renderer()
    boxes = [panel.get_tightbbox(renderer) for panel in figure.axes]
    for box in boxes:
        assert figure.bbox.x0 <= box.x0 < box.x1 <= figure.bbox.x1
        assert figure.bbox.y0 <= box.y0 < box.y1 <= figure.bbox.y1
    for one, two in itertools.combinations(boxes, 2):
        assert not one.overlaps(two)


def test_minor_ticks_are_drawn_where_the_axis_has_none_of_its_own():
    rows = [result("write.loop", [s] * 5, seq_len=n) for n, s in ((1, 2e-6), (8, 3e-3))]
    figure = curve_of(rows)
    (panel,) = figure.axes
    (ticks,) = figure.artists
    low, high = panel.get_ylim()
    expected = [
        step * 10.0**decade
        for decade in range(-3, 6)
        for step in range(2, 10)
        if low <= step * 10.0**decade <= high
    ]
    assert list(ticks.get_ydata()) == pytest.approx(expected)
    assert list(panel.yaxis.get_minorticklocs()) == []


def test_svg_has_text_as_text(tmp_path):
    _, path = save_figure(curve_of(sweep_rows()), tmp_path, "curve")
    root = ET.parse(path).getroot()  # noqa: S314 - our own file
    texts = {
        "".join(node.itertext()).strip() for node in root.iter("{http://www.w3.org/2000/svg}text")
    }
    assert {"slot_mapping (2)", "copy, 12.0 GB/s", "µs per call"} <= texts
    assert "seq_len (tokens per sequence)" in texts


def test_plots_that_can_not_be_written_are_said(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="plots folder") as raised:
        save_figure(curve_of(sweep_rows()), tmp_path / "file" / "plots", "curve")
    assert str(tmp_path / "file" / "plots") in str(raised.value)


TABLE = Table(
    "Times [all]",
    ("strategy [x]", "[8]", "16"),
    (("write.loop [bold]", "1.00 µs", "2.00 µs"), ("a[0]", MISSING, "3.00 ms")),
)


def test_markdown_has_a_title_a_header_a_rule_and_a_line_for_each_row():
    assert TABLE.markdown().splitlines() == [
        "**Times [all]**",
        "",
        "| strategy [x] | [8] | 16 |",
        "| --- | ---: | ---: |",
        "| write.loop [bold] | 1.00 µs | 2.00 µs |",
        f"| a[0] | {MISSING} | 3.00 ms |",
    ]


def shown(table, width=200) -> str:
    console = Console(file=io.StringIO(), width=width)
    console.print(table.rich())
    return console.file.getvalue()


def test_brackets_are_text_in_a_terminal_too():
    text = shown(TABLE)
    for cell in ("Times [all]", "strategy [x]", "[8]", "write.loop [bold]", "a[0]", MISSING):
        assert cell in text


def test_numbers_are_aligned_right_in_a_terminal():
    line = next(line for line in shown(TABLE).splitlines() if "a[0]" in line)
    cells = line.strip("│").split("│")
    assert cells[0].startswith(" a[0] ")
    assert cells[1].endswith(f" {MISSING} ")
    assert cells[2] == " 3.00 ms "


def test_long_first_calls_are_a_table_a_case_counted_once_whatever_its_clocks():
    def row(strategy, seconds, **fields):
        return dataclasses.replace(
            result(strategy, **fields), measurement=measurement(first_call_s=seconds)
        )

    rows = [
        row("write.compile", 2.5),
        row("write.compile", 2.5, clock="device"),
        row("write.compile", 1.0, seq_len=64),
        row("write.compile", 0.9, seq_len=512),
        row("write.triton", 1.5),
        row("write.loop", None),
        result("write.scatter", status="failed"),
    ]
    table = first_calls_table(to_frame(rows))
    assert table.title == "First calls of 1.00 s or more (compiling, loading), in no sample"
    assert table.rows == (
        ("write.compile", "2", "2.50 s", "3.50 s"),
        ("write.triton", "1", "1.50 s", "1.50 s"),
    )
    assert first_calls_table(to_frame(rows[3:4])) is None
    assert first_calls_table(to_frame([])) is None


def test_the_ranking_is_a_table():
    rows = [
        result("write.loop", [4e-6] * 5),
        result("write.slot_mapping", [1e-6] * 5),
        result("write.slot_mapping", [6e-6] * 5, phase="prepare"),
    ]
    table = ranking_table(to_frame(rows), "write", 2)
    assert table.title == "write: cost of a step of 2 layers (prepare + 2 x run)"
    assert table.rows == (
        ("write.loop", "1.00x the fastest", "1.00x", "1", "1"),
        ("write.slot_mapping", "1.00x the fastest", "1.00x", "1", "1"),
    )


def test_times_are_a_table_by_seq_len_and_what_is_missing_is_said():
    rows = [
        result("write.loop", [4e-6] * 5, seq_len=1),
        result("write.loop", [40e-6] * 5, seq_len=8),
        result("write.slot_mapping", [1e-6] * 5, seq_len=1),
        result("write.slot_mapping", [6e-6] * 5, seq_len=1, phase="prepare"),
        result("write.slot_mapping", seq_len=8, status="failed"),
    ]
    table = times_table(to_frame(rows), "write", 3)
    assert table.header == ("strategy", "1", "8")
    assert table.rows == (
        ("write.loop", "4.00 µs", "40.0 µs"),
        ("write.slot_mapping", "1.00 µs", MISSING),
        ("write.slot_mapping, with prepare", "3.00 µs", MISSING),
    )
    assert "block size 16, 8 KV heads, bf16, batch 1" in table.title


def test_times_are_of_the_main_setting_and_of_so_many_columns():
    rows = [
        *sweep_rows(seq_lens=range(1, 21), strategies=("loop",)),
        *sweep_rows(seq_lens=(3,), strategies=("loop",), dtype="fp32"),
    ]
    table = times_table(to_frame(rows), "write", 1)
    assert table.header == ("strategy", "1", "5", "9", "12", "16", "20")
    assert len(table.rows) == 1


def test_a_sweep_over_query_heads_has_times():
    rows = [*sweep_rows(num_heads=8), *sweep_rows(num_heads=16)]
    table = times_table(to_frame(rows), "write", 32)
    assert table.header == ("strategy", "1", "8", "64")
    assert MISSING not in {cell for row in table.rows for cell in row}


def test_nothing_timed_is_no_table():
    frame = to_frame([result("write.triton", status="checked")])
    assert times_table(frame, "write", 1) is None
    assert times_table(frame, "read", 1) is None


def test_what_was_not_timed_is_a_table_by_strategy_and_status():
    rows = [
        result("write.triton", status="checked", reason="why", seq_len=1),
        result("write.triton", status="checked", reason="why not", seq_len=2),
        result("write.loop", status="over budget", reason="[too] slow"),
        result("write.indexing"),
    ]
    table = untimed_table(to_frame(rows))
    assert table.rows == (
        ("write.loop", "wall", "over budget", "1", "[too] slow"),
        ("write.triton", "wall", "checked", "1", "why"),
        ("", "", "", "1", "why not"),
    )
    assert untimed_table(to_frame([result()])) is None


def untimed(*reasons):
    rows = [
        result("write.triton", status="unsupported", reason=reason, seq_len=number)
        for number, reason in enumerate(reasons)
    ]
    table = untimed_table(to_frame(rows))
    assert sum(int(count) for *_, count, _ in table.rows) == len(rows)
    return [(count, reason) for *_, count, reason in table.rows]


def test_unlike_reasons_are_listed_the_most_frequent_first():
    assert untimed("no HND", "no fp8", "no MLA", "no fp8", "no MLA", "no fp8") == [
        ("3", "no fp8"),
        ("2", "no MLA"),
        ("1", "no HND"),
    ]


def test_of_very_many_reasons_the_rest_are_counted():
    assert untimed(*"a" * 9, *"b" * 8, *"c" * 7, *"d" * 6, *"efggh") == [
        ("9", "a"),
        ("8", "b"),
        ("7", "c"),
        ("6", "d"),
        ("5", "and 4 more reasons"),
    ]


def test_reasons_that_differ_in_numbers_alone_are_put_together():
    slow = [f"one call would take about {time}" for time in ("1.58 s", "168 ms", "20.1 s")]
    assert untimed(*slow, "no fp8_e4m3", "no fp8_e5m2", "no fp8_e5m2") == [
        ("3", "one call would take about 1.58 s (and 2 alike, of other numbers)"),
        ("2", "no fp8_e5m2"),
        ("1", "no fp8_e4m3"),
    ]


def test_a_reason_of_run_and_prepare_is_that_of_one_case():
    rows = [
        result("write.slot_mapping", status="checked", reason="no", phase=phase)
        for phase in ("run", "prepare")
    ]
    assert untimed_table(to_frame(rows)).rows == (
        ("write.slot_mapping", "wall", "checked", "1", "no"),
    )


def test_times_say_which_part_of_the_run_they_are_of():
    main = sweep_rows(seq_lens=range(1, 9))
    assert times_table(to_frame(sweep_rows()), "write", 1).note == ""
    other = [*sweep_rows(layout="HND"), *sweep_rows(block_sizes=(64,))]
    assert times_table(to_frame([*main, *other]), "write", 1).note == (
        "Of the 42 runs timed, 24 have this setting; 18 of another block_size or layout are left "
        "out. 6 of 8 values of seq_len are shown."
    )
    one = times_table(to_frame([*main, *sweep_rows(layout="HND")]), "write", 1)
    assert "9 of another layout are left out" in one.note


def test_a_ranking_says_which_cases_it_leaves_out():
    whole = [*sweep_rows(), *sweep_rows(layout="HND")]
    assert ranking_table(to_frame(whole), "write", 1).note == ""
    less = [*whole, *sweep_rows(layout="x-packed", strategies=("loop", "indexing"))]
    less += sweep_rows(seq_lens=(512,), strategies=("indexing",))
    assert ranking_table(to_frame(less), "write", 1).note == (
        "Over the 6 cases in which every strategy was timed; 4 cases (7 timed runs) are left out, "
        "all of seq_len 512; layout x-packed among them."
    )
    apart = [*sweep_rows(strategies=("loop",)), *sweep_rows(strategies=("triton",), batch=8)]
    assert ranking_table(to_frame(apart), "write", 1).note == (
        "No case has a time of every strategy: each is ranked over its own cases."
    )


def test_a_note_is_below_the_table():
    table = dataclasses.replace(TABLE, note="Of [all] rows, 2.")
    assert table.markdown() == f"{TABLE.markdown()}\n\nOf [all] rows, 2."
    assert shown(table).rstrip().endswith("Of [all] rows, 2.")


def test_checks_are_a_table():
    counts = {"write.loop": Counter(checked=3), "write.mine": Counter(incorrect=1, failed=2)}
    table = check_table(counts, 3, "cpu")
    assert table.title == "3 cases on cpu, bit for bit"
    assert table.rows == (
        ("write.loop", "3", "0", "0", "0"),
        ("write.mine", "0", "0", "1", "2"),
    )


def test_the_environment_is_one_line():
    text = environment_line(run_info())
    assert len(text.splitlines()) == 1
    for part in ("Made CPU", "2 CPUs", "2.13.0", "2026-01-02", "12.0 GB/s (torch copy_)"):
        assert part in text
    assert "wall 30.0 ns" in text


@pytest.fixture
def clock(monkeypatch):
    now = SimpleNamespace(s=1000.0)
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: now.s))
    return now


def test_a_log_gets_a_line_now_and_then_that_says_what_is_left(clock):
    console = Console(file=io.StringIO(), width=120)
    with Meter(console, total=10) as meter:
        for _ in range(10):
            clock.s += 15
            meter.advance("write seq_len=1")
    assert console.file.getvalue().splitlines() == [
        "2 of 10 cases, 30 s elapsed, about 2 min 00 s left",
        "4 of 10 cases, 1 min 00 s elapsed, about 1 min 30 s left",
        "6 of 10 cases, 1 min 30 s elapsed, about 1 min 00 s left",
        "8 of 10 cases, 2 min 00 s elapsed, about 30 s left",
        "10 of 10 cases, 2 min 30 s elapsed, about 0 s left",
    ]


def test_quick_work_says_nothing_in_a_log(clock):
    console = Console(file=io.StringIO())
    with Meter(console, total=100) as meter:
        for _ in range(100):
            clock.s += 0.1
            meter.advance("write seq_len=1")
    assert console.file.getvalue() == ""


def test_a_terminal_gets_a_bar_that_counts_cases():
    console = Console(file=io.StringIO(), width=120, force_terminal=True)
    with Meter(console, total=3) as meter:
        for done in (1, 2, 3):
            meter.advance("write [8]")
            meter._bar.refresh()
            # The escape sequences of colours are between them.
            text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", console.file.getvalue())
            assert f"{done}/3" in text
            assert "write [8]" in text


def test_a_bar_in_a_cell_stays_in_it():
    table = Table("T", ("a|b", "c"), (("K || V", "1"),))
    header, _, row = table.markdown().splitlines()[2:]
    assert header == "| a\\|b | c |"
    assert row == "| K \\|\\| V | 1 |"


def test_of_groups_of_one_size_the_usual_one_is_the_main_one():
    odd = sweep_rows(dtype="fp32")
    usual = sweep_rows(dtype="bf16")
    for rows in (odd + usual, usual + odd):
        names = [page.name for page in pages(to_frame(rows))]
        assert names == ["", "dtype-fp32"]


# An index, which a step does once.


def test_tables_of_an_index_say_that_a_step_does_it_once():
    rows = sweep_rows(op="index", strategies=("loop", "torch"))
    rows += [result("index.torch", [1.0] * 5, phase="prepare", seq_len=n) for n in (1, 8, 64)]
    frame = to_frame(rows)
    title = ranking_table(frame, "index", 32).title
    assert title == "index: cost of a step (one run, without prepare)"
    table = times_table(frame, "index", 32)
    assert table.title == (
        "index: time per call by seq_len (block size 16, batch 1; once a step, without prepare)"
    )
    assert [line[0] for line in table.rows] == ["index.loop", "index.torch"]
    assert table.rows == times_table(frame, "index", 1).rows


def test_a_curve_of_an_index_names_no_heads_and_says_when_it_is_prepared():
    rows = sweep_rows(op="index", strategies=("loop", "slot_mapping"))
    figure = curve_of(rows, op="index")
    (panel,) = figure.axes
    assert panel.get_title(loc="left") == "block size 16"
    title, subtitle = figure._suptitle.get_text().splitlines()
    assert title == "Building the slot mapping of new tokens: time per call, once a step"
    assert subtitle == "batch 1, shuffled blocks"
    assert "Dotted: prepare, before a step." in " ".join(figure._supxlabel.get_text().split())
