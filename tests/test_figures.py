"""Nothing of a figure is cut off, no two of its words overlap, and every axis has a unit."""

import itertools
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree as ET

import pytest
from made import result, run_info, sweep_rows
from made_report import attend_rows
from matplotlib.backends.backend_agg import FigureCanvasAgg, RendererAgg
from matplotlib.colors import to_hex
from matplotlib.lines import Line2D
from matplotlib.text import Text
from matplotlib.transforms import Bbox

from kvbench.analysis.frame import to_frame
from kvbench.report.fastest import _mark
from kvbench.report.frames import caption_of, framed
from kvbench.report.palette import BACKGROUNDS, STYLES, contrast
from kvbench.report.plots import MOST_PANELS, most_telling, sketches
from kvbench.report.save import save_figure
from kvbench.report.style import colour, line, look, styled
from kvbench.store import load
from kvbench.strategies import registry

ROOT = Path(__file__).parents[1]
DPI = 100
"""Words have about the same place in a figure at any; so many are enough to lay them out by."""
SLACK = 1.0
"""Pixels by which boxes may overlap: letters do not fill them."""


@pytest.fixture(scope="module")
def reference() -> SimpleNamespace:
    run = load(ROOT / "results" / "reference-cpu")
    found = sketches(to_frame(run.results), run.info)
    drawn = most_telling(found)
    return SimpleNamespace(
        all=found, drawn=drawn, figures={sketch.name: sketch.draw() for sketch in drawn}
    )


class Blind(RendererAgg):
    """Measures words as the real one does, and paints nothing, which would take longest."""

    def __init__(self, width: float, height: float, dpi: float) -> None:
        super().__init__(width, height, dpi)
        for name in ("path", "markers", "path_collection", "quad_mesh", "text", "image"):
            setattr(self, f"draw_{name}", lambda *_, **__: None)


def words_of(figure, monkeypatch) -> list[tuple[str, Bbox]]:
    """What is written in a figure as it is drawn, each with its box in pixels."""
    figure.set_dpi(DPI)
    FigureCanvasAgg(figure)
    renderer = Blind(figure.bbox.width, figure.bbox.height, DPI)
    seen: dict[int, Text] = {}
    real = Text.draw

    def draw(text, *arguments, **more):
        if text.get_visible() and text.get_text().strip():
            seen[id(text)] = text
        return real(text, *arguments, **more)

    with monkeypatch.context() as patched:
        patched.setattr(Text, "draw", draw)
        figure.draw(renderer)
    return [(text.get_text(), Text.get_window_extent(text, renderer)) for text in seen.values()]


def flaws(figure, monkeypatch) -> Iterator[str]:
    words = words_of(figure, monkeypatch)
    assert words
    page = figure.bbox
    for text, box in words:
        if min(box.x0 - page.x0, box.y0 - page.y0, page.x1 - box.x1, page.y1 - box.y1) < -SLACK:
            yield f"{text!r} is cut off: {box} of {page}"
    for (one, its), (other, others) in itertools.combinations(words, 2):
        wide = min(its.x1, others.x1) - max(its.x0, others.x0)
        high = min(its.y1, others.y1) - max(its.y0, others.y0)
        if wide > SLACK and high > SLACK:
            yield f"{one!r} and {other!r} overlap by {wide:.1f} x {high:.1f} pixels"


def flawed(figures, monkeypatch) -> dict[str, list[str]]:
    found = {name: list(flaws(figure, monkeypatch)) for name, figure in figures}
    return {name: own for name, own in found.items() if own}


def test_no_word_of_the_reference_run_is_cut_off_or_overlaps_another(reference, monkeypatch):
    assert flawed(reference.figures.items(), monkeypatch) == {}


def test_no_word_of_its_main_figures_is_cut_off_in_a_paper(reference, monkeypatch):
    main = (sketch for sketch in reference.drawn if sketch.rank == (0, 0, 0))
    assert flawed(((sketch.name, sketch.draw("paper")) for sketch in main), monkeypatch) == {}


@pytest.mark.slow
@pytest.mark.parametrize("style", STYLES)
def test_no_word_of_any_figure_of_the_reference_run_is_cut_off(reference, style, monkeypatch):
    figures = ((sketch.name, sketch.draw(style)) for sketch in reference.all)
    assert flawed(figures, monkeypatch) == {}


FAMILIES = ("loop", "indexing", "slot_mapping", "index_put", "a_rather_long_name_of_a_strategy")


def dense():
    """Three by three panels, long names, fast and slow ones, and a setting with a long title."""
    fields = {"dtype": "fp16", "layout": "HND", "lengths": "equal", "batch": 8, "padding": 3}
    return sweep_rows(
        seq_lens=(1, 4, 16, 64, 256, 1024, 4096),
        block_sizes=(8, 16, 128),
        kv_heads=(1, 8, 32),
        strategies=FAMILIES,
        **fields,
        start_pos=17,
        block_order="strided",
        kv_input="fused_qkv",
    )


def alike():
    """Strategies that all take as long."""
    rows = []
    for n in (1, 64):
        for family in (*FAMILIES, *"abcdef"):
            rows.append(result(f"write.{family}", [1e-5] * 5, seq_len=n))
            rows.append(result(f"write.{family}", [2e-5] * 5, seq_len=n, phase="prepare"))
    return rows


MADE = {"dense": dense, "alike": alike, "two points": lambda: sweep_rows(seq_lens=(512, 513))}


@pytest.mark.parametrize(
    "style", [pytest.param(s, marks=() if s == "docs" else pytest.mark.slow) for s in STYLES]
)
@pytest.mark.parametrize("rows", MADE.values(), ids=MADE)
def test_no_word_of_a_made_run_is_cut_off_or_overlaps_another(rows, style, monkeypatch):
    found = sketches(to_frame(rows()), run_info())
    assert {"launch-overhead", "bandwidth", "layers"} <= {sketch.kind for sketch in found}
    main = (sketch for sketch in found if sketch.rank == (0, 0, 0))
    assert flawed(((sketch.name, sketch.draw(style)) for sketch in main), monkeypatch) == {}


def test_a_flaw_is_found(monkeypatch):
    with styled():
        figure = framed("Title", "Subtitle", "Footnote", 2.0)
        panel = figure.subplots()
        panel.text(0.5, 0.5, "one")
        panel.text(0.5, 0.5, "other")
        figure.text(0.99, 0.5, "far out")
    found = list(flaws(figure, monkeypatch))
    assert len(found) == 2
    assert "'far out' is cut off" in found[0]
    assert "'one' and 'other' overlap" in found[1]


def drawn_of(rows, name: str, style="docs"):
    found = {sketch.name: sketch for sketch in sketches(to_frame(rows), run_info())}
    return found[name].draw(style), found[name].alt


def test_the_name_of_the_lowest_line_is_above_the_axis(monkeypatch):
    # Several that end low, on a figure without a copy below them.
    times = {"a": (9e-6, 4.5e-6), "b": (8e-6, 4.2e-6), "loop": (1e-2, None)}
    rows = [
        result(f"write.{family}", [seconds] * 5, phase=phase, clock="enqueue", seq_len=n)
        for family, pair in times.items()
        for phase, seconds in zip(("run", "prepare"), pair, strict=True)
        for n in (1, 64)
        if seconds
    ]
    figure, _ = drawn_of(rows, "write-launch-overhead-enqueue")
    (panel,) = figure.axes
    boxes = [box for text, box in words_of(figure, monkeypatch) if text == "prepare"]
    assert boxes
    assert all(box.y0 >= panel.get_window_extent().y0 - SLACK for box in boxes)


def test_what_moves_no_keys_and_values_is_not_held_against_a_copy():
    rows = sweep_rows()
    rows += [replace(row, clock="enqueue") for row in rows] + sweep_rows(op="index")
    said = {}
    for name in ("write-launch-overhead", "write-launch-overhead-enqueue", "index-launch-overhead"):
        figure, _ = drawn_of(rows, name)
        names = [text.get_text() for text in figure.axes[0].texts]
        said[name] = (
            any(text.startswith("copy") for text in names),
            "Dashed" in caption_of(figure),
        )
    assert said["write-launch-overhead"] == (True, True)
    assert said["write-launch-overhead-enqueue"] == said["index-launch-overhead"] == (False, False)


def test_another_clock_than_the_wall_s_is_in_the_title():
    rows = [*sweep_rows(), *attend_rows()]
    rows += [replace(row, clock="device") for row in rows]
    for name in (
        "write-launch-overhead",
        "write-bandwidth",
        "write-speedup",
        "attend-gather-share",
    ):
        titles = [
            caption_of(drawn_of(rows, f"{name}{clock}")[0]).splitlines()[0]
            for clock in ("", "-device")
        ]
        assert titles[1] == f"{titles[0]}, device clock"


def test_a_sentence_is_of_the_panel_that_it_names():
    rows = [
        result(f"write.{family}", [factor * 1e-5] * 5, seq_len=n, block_size=block)
        for n in (1, 64)
        for family, block, factor in (("a", 16, 1), ("b", 16, 2), ("a", 64, 4), ("b", 64, 0.5))
    ]
    _, alt = drawn_of(rows, "write-launch-overhead")
    assert "2 panels by block size, 2 lines" in alt
    assert "of block size 16 lowest is at seq_len 1 write.a with 10.0 µs" in alt


def test_a_legend_has_as_few_lines_as_have_room():
    def lines(count):
        keys = [Line2D([], [], label=f"strategy {number}") for number in range(count)]
        with styled():
            figure = framed("T", "S", "F", 2.0, keys)
        (legend,) = figure.legends
        FigureCanvasAgg(figure).draw()
        return sorted(
            Counter(round(text.get_window_extent().y0) for text in legend.get_texts()).values()
        )

    assert lines(6) == [6]
    # As even as can be: a single name would begin a line of its own.
    assert lines(9) == [4, 5]


def test_an_empty_cell_is_explained_where_there_is_one():
    rows = [row for block in (16, 64) for row in sweep_rows(block_sizes=(block,), seq_lens=(1, 8))]
    figure, _ = drawn_of(rows, "write-fastest")
    assert "Empty" not in caption_of(figure)
    figure, _ = drawn_of([*rows, *sweep_rows(seq_lens=(64,))], "write-fastest")
    assert "Empty: fewer than two strategies were timed." in caption_of(figure)


UNITS = {
    "launch-overhead": "µs per call",
    "speedup": "times faster",
    "bandwidth": "GB/s",
    "fastest": "block size|KV heads|batch",
    "layers": "µs per layer",
    "breakdown": "",  # strategies; its unit is the other axis'
    "gather-share": "time, % of gather [+] attention",
    "tokens-per-second": "tokens per second",
    "amortisation": "µs per token\nand layer",
}


def test_every_figure_of_the_reference_run_has_units_and_a_sentence(reference):
    assert {sketch.kind for sketch in reference.drawn} == set(UNITS)
    for sketch in reference.drawn:
        figure = reference.figures[sketch.name]
        panels = [panel for panel in figure.axes if panel.get_visible()]
        ylabels = {panel.get_ylabel() for panel in panels} - {""}
        assert all(re.fullmatch(UNITS[sketch.kind], label) for label in ylabels), sketch.name
        assert bool(ylabels) == bool(UNITS[sketch.kind])
        xlabels = {panel.get_xlabel() for panel in panels} - {""}
        for label in xlabels:
            assert re.match(r"seq_len|layers|% of the median time", label), sketch.name
        assert xlabels
        assert sketch.alt.endswith(".")
        assert "\n" not in sketch.alt
        assert sketch.alt.startswith(caption_of(figure).splitlines()[0])
        assert "nan" not in sketch.alt


def test_the_main_figure_of_every_op_and_kind_is_drawn_unasked(reference):
    first = [sketch for sketch in reference.all if sketch.rank == (0, 0, 0)]
    kinds = {(sketch.op, sketch.kind) for sketch in reference.all}
    assert {(sketch.op, sketch.kind) for sketch in first} == kinds
    assert all(sketch in reference.drawn for sketch in first)
    assert sum(sketch.panels + 1 for sketch in reference.drawn) <= MOST_PANELS


def test_a_style_is_seen_inside_of_it_alone():
    before = look()
    with styled("dark") as dark:
        assert look() == dark != before
        with styled() as same:
            assert same == dark
        with styled("paper") as paper:
            assert look() == paper
        assert look() == dark
    assert look() == before
    with styled() as docs:
        assert docs == before


@pytest.mark.parametrize("style", STYLES)
def test_a_figure_is_as_wide_as_its_style_and_text_can_be_read(style):
    drawn = sketches(to_frame(sweep_rows()), run_info())
    for sketch in drawn:
        figure = sketch.draw(style)
        with styled(style) as own:
            assert figure.get_figwidth() == own.width_in
        background = BACKGROUNDS[style == "dark"]
        assert figure.get_facecolor()[:3] == pytest.approx(rgb(background))
        for text in figure.findobj(Text):
            if text.get_text().strip() and text.get_visible():
                assert contrast(to_hex(text.get_color()), background) >= 4.5, text
                if style == "paper":
                    assert 7 <= text.get_fontsize() <= 9, text
        # The same words in every style: in a paper beside the figure instead of in it.
        assert caption_of(figure) == caption_of(sketch.draw())
        titled = figure.get_suptitle() != ""
        assert titled == (style != "paper")


def rgb(colour: str) -> tuple[float, ...]:
    return tuple(int(colour[n : n + 2], 16) / 255 for n in (1, 3, 5))


def test_lines_of_a_paper_are_told_apart_without_colours():
    names = [strategy.name for strategy in registry.all_strategies()]
    with styled("paper"):
        for op in ("write", "read", "attend", "index", "step"):
            looks = [
                str(sorted((key, value) for key, value in line(name).items() if key != "color"))
                for name in names
                if name.startswith(f"{op}.")
            ]
            assert len(set(looks)) == len(looks) > 1


def test_strategies_of_an_op_are_told_apart_in_cells_too():
    names = [strategy.name for strategy in registry.all_strategies()]
    for op in ("write", "read", "attend", "index", "step"):
        looks = [
            (colour(name), str(_mark(name, "#FFFFFF", 3.0)))
            for name in names
            if name.startswith(f"{op}.")
        ]
        assert len(set(looks)) == len(looks) > 1


@pytest.mark.parametrize("style", STYLES)
def test_text_is_text_in_every_format(style, tmp_path):
    rows = sweep_rows()
    (sketch,) = (s for s in sketches(to_frame(rows), run_info()) if s.kind == "bandwidth")
    paths = save_figure(sketch.draw(style), tmp_path, "one", style)
    endings = ["png", "svg", "pdf", "txt"] if style == "paper" else ["png", "svg"]
    assert [path.suffix[1:] for path in paths] == endings
    root = ET.parse(paths[1]).getroot()  # noqa: S314 - our own file
    words = {
        "".join(node.itertext()).strip() for node in root.iter("{http://www.w3.org/2000/svg}text")
    }
    assert {"GB/s", "slot_mapping", "copy, 12.0 GB/s", "block size 16, 8 KV heads"} <= words
    if style == "paper":
        pdf = paths[2].read_bytes()
        assert pdf.startswith(b"%PDF")
        assert b"/Type3" not in pdf  # whose letters are drawings
        assert b"CreationDate" not in pdf
        caption = paths[3].read_text(encoding="utf-8").splitlines()
        assert caption[0] == "Writing K/V into a paged cache: bandwidth"
        assert caption[1] == "bf16, batch 1, head_dim 128, shuffled blocks"
        assert caption[2].startswith("Made CPU, 2 CPUs, ")
        again = save_figure(sketch.draw(style), tmp_path / "again", "one", style)
        assert [path.read_bytes() for path in again] == [path.read_bytes() for path in paths]
