"""The page of a report in a browser: what it shows, its keys, its looks, that it fetches nothing.

Needs a Chromium on the PATH; where KVBENCH_BROWSER is 1 a missing one is a failure.
"""

import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from made import sweep_rows
from made_report import (
    HOSTILE,
    chart_of_each_kind,
    document,
    gpu_rows,
    hostile_rows,
    page_of,
    run_of,
    small_rows,
    unresolved,
)
from playwright.sync_api import Browser, Locator, Page, expect, sync_playwright

from kvbench import units
from kvbench.analysis.frame import to_frame
from kvbench.analysis.ranking import step_costs
from kvbench.report.document import Document, Section
from kvbench.report.html import html
from kvbench.report.style import colour
from kvbench.report.tables import Table
from kvbench.store import load

ROOT = Path(__file__).parents[1]
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
WIDE, PHONE = {"width": 1280, "height": 900}, {"width": 360, "height": 740}
A4 = {"width": 717, "height": 1046}
"""What a browser has of a printed page, in its pixels."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        why = f"no browser: expected one of {', '.join(NAMES)}"
        if os.environ.get("KVBENCH_BROWSER") == "1":
            pytest.fail(why)
        pytest.skip(why)
    with sync_playwright() as playwright:
        # Without a sandbox, which is not to be had as root: the pages are our own.
        browser = playwright.chromium.launch(executable_path=found, chromium_sandbox=False)
        yield browser
        browser.close()


class Files(dict[str, Path]):
    """The pages of made runs, and of the reference run, each made when it is first asked for."""

    def __init__(self, folder: Path):
        super().__init__()
        self._folder = folder

    def __missing__(self, name: str) -> Path:
        path = self._folder / f"{name}.html"
        path.write_text(PAGES[name]())
        return self.setdefault(name, path)


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> Files:
    return Files(tmp_path_factory.mktemp("pages"))


def small() -> str:
    run = run_of(small_rows())
    frame = to_frame(run.results)
    return html(chart_of_each_kind(frame), run, frame, 32)


def reference() -> str:
    run = load(ROOT / "results" / "reference-cpu")
    frame = to_frame(run.results)
    return html(document(frame), run, frame, run.info.layers)


def wide_tables() -> str:
    pair = "index_put+sdpa_index_select"
    run = run_of(sweep_rows())
    words = Table(
        "The fastest",
        ("op", "fastest", "fastest or tied in", "the next", "which takes", "certainty"),
        (
            ("step", pair, "1 of 1 case", pair, "1.07x (0.445 to 2.55)", f"not told from {pair}"),
            ("", pair, "1 of 1 case", pair, "1.07x (1.01 to 1.12)", "sure"),
        ),
    )
    numbers = Table(
        "How precise",
        ("op", *(f"stopped: out of time or rounds {n}" for n in range(7))),
        tuple((op, *7 * ["1.00 ms"]) for op in ("read", "write")),
    )
    fits = Table(
        "Fits",
        ("strategy", "a, per call", "b, per launch", "bandwidth", "R²", "median error", "cells"),
        tuple(
            (name, *cells, "27.4 (19.2 to 38.4) GB/s", "0.987", "11.1 %", "427")
            for name, *cells in (
                ("write.slot_mapping", "a + b: 13.9 (13.0 to 15.0) µs", "—"),
                ("write.block_slices", "2.35 (1.09 to 3.29) µs", "4.57 (4.02 to 5.15) µs"),
            )
        ),
    )
    made = Document("Tables", "", (Section("s", "S", (words, numbers, fits)),))
    return html(made, run, to_frame(run.results), 32)


PAGES = {
    "tables": wide_tables,
    "gpu": lambda: page_of(gpu_rows()),
    "small": small,
    "unresolved": lambda: page_of([unresolved(row) for row in sweep_rows(strategies=("loop",))]),
    "empty": lambda: page_of(sweep_rows(seq_lens=(0, 1, 8))),
    "hostile": lambda: page_of(hostile_rows(), " ".join(HOSTILE)),
    "reference": reference,
}


@dataclass
class Opened:
    """Opens pages, one after the other, and notes what they fetch and what goes wrong in them.

    All in one tab: a browser's next page of the kind is a quarter of the first one's work.
    """

    page: Page
    files: Files
    faults: list[str] = field(default_factory=list)
    _address: str = ""

    def __post_init__(self):
        # What a machine with other work may take.
        self.page.set_default_timeout(20_000)
        expect.set_options(timeout=20_000)
        self.page.on("console", lambda message: self.faults.append(f"console: {message.text}"))
        self.page.on("pageerror", lambda error: self.faults.append(f"error: {error}"))
        self.page.on("request", self._requested)

    def _requested(self, request):
        if request.url.partition("#")[0] not in {self._address, "about:blank", "data:,"}:
            self.faults.append(f"request: {request.url[:100]}")

    def __call__(self, name: str, *, size=WIDE, scheme="light", behind="") -> Page:
        # Another place of the page that is there would not be loaded anew.
        self.page.goto("about:blank")
        self.page.set_viewport_size(size)
        self.page.emulate_media(media="screen", color_scheme=scheme, reduced_motion="reduce")
        self._address = self.files[name].as_uri()
        self.page.goto(self._address + behind)
        return self.page


@pytest.fixture(scope="module")
def opens(browser, files) -> Opened:
    context = browser.new_context(permissions=["clipboard-read", "clipboard-write"])
    return Opened(context.new_page(), files)


@pytest.fixture
def opened(opens) -> Iterator[Opened]:
    opens.faults.clear()
    yield opens
    assert opens.faults == []


def chart(page: Page, name: str) -> Locator:
    """A chart, drawn."""
    figure = page.locator(f"figure#{name}")
    figure.scroll_into_view_if_needed()
    expect(
        figure.locator(".plot .main-svg").first.or_(figure.locator(".why:visible"))
    ).to_be_attached()
    return figure


def draw_all(page: Page) -> None:
    for figure in page.locator("figure.chart").all():
        chart(page, figure.get_attribute("id"))


def traces(figure: Locator) -> list[dict]:
    """What is drawn, as Plotly has it."""
    return figure.locator(".plot").evaluate(
        "plot => plot.data.map(t => ({type: t.type, x: t.x, y: t.y, mode: t.mode, fill: t.fill,"
        " text: t.hovertext, colour: (t.line || t.marker || {}).color}))"
    )


def lines(figure: Locator) -> dict[str, dict]:
    """The lines that are drawn, by the name that their points say."""
    drawn = [t for t in traces(figure) if t["mode"] == "lines+markers"]
    return {t["text"][0].partition("<br>")[0]: t for t in drawn}


def choose(figure: Locator, label: str, option: str) -> None:
    figure.get_by_label(label, exact=True).select_option(label=option)


def overflow(page: Page) -> int:
    return page.evaluate(
        "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    )


def assert_accessible(page: Page) -> None:
    found = Axe().run(page).response["violations"]
    bad = [
        (each["impact"], each["id"], each["nodes"][0]["html"][:200])
        for each in found
        if each["impact"] in {"serious", "critical"}
    ]
    assert bad == []


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("gpu", WIDE),
        ("hostile", WIDE),
        ("reference", PHONE),
        ("unresolved", WIDE),
        ("empty", PHONE),
    ],
)
def test_every_chart_is_drawn_without_an_error_and_nothing_moves_or_is_fetched(opened, name, size):
    page = opened(name, size=size)
    # A page that grew between a press and its release took the button from under the finger.
    heights = "[...document.querySelectorAll('figure.chart')].map((each) => each.offsetHeight)"
    before = page.evaluate(heights)
    draw_all(page)
    assert page.evaluate(heights) == before
    title = page.title()
    assert title != "taken"
    for figure in page.locator("figure.chart").all():
        # Drawn, or with the reason why not: never neither.
        drawn, why = figure.locator(".plot:visible"), figure.locator(".why:visible")
        assert drawn.count() + why.count() == 1
        if why.count():
            assert len(why.inner_text()) > 20


@pytest.mark.parametrize(("size", "scheme"), [(WIDE, "light"), (WIDE, "dark"), (PHONE, "light")])
def test_an_accessibility_checker_finds_nothing_serious(opened, size, scheme):
    page = opened("small", size=size, scheme=scheme)
    draw_all(page)
    assert page.locator(".why:visible").count() == 0
    chart(page, "write-launch-overhead").locator(".values > summary").click()
    chart(page, "write-launch-overhead").locator(".controls:not([open]) > summary").evaluate_all(
        "all => all.forEach((summary) => summary.click())"
    )
    page.locator("details.more > summary").click()
    assert_accessible(page)


@pytest.mark.parametrize("name", ["gpu", "hostile", "reference"])
def test_a_phone_scrolls_in_one_direction(opened, name):
    page = opened(name, size=PHONE)
    assert overflow(page) == 0
    for figure in page.locator("figure.chart").all()[:8]:
        made = chart(page, figure.get_attribute("id"))
        made.locator(".controls > summary").click()
        if made.locator(".plot").is_visible():
            made.locator(".values > summary").click()
    assert overflow(page) == 0


def test_without_scripts_text_and_tables_are_there_and_it_is_said_what_is_not(browser, files):
    page = browser.new_page(java_script_enabled=False, viewport=PHONE)
    page.goto(files["gpu"].as_uri())
    expect(page.locator("table").first).to_be_visible()
    expect(
        page.get_by_text("This chart is drawn by JavaScript, which did not run").first
    ).to_be_visible()
    expect(page.get_by_text("rows.csv")).to_be_visible()
    expect(page.locator("#theme")).to_be_hidden()
    page.close()


# Charts.


def test_a_chart_shows_the_values_of_its_setting(opened):
    figure = chart(opened("gpu"), "write-launch-overhead")
    drawn = lines(figure)
    assert {"write.loop", "write.slot_mapping", "write.slot_mapping, prepare"} <= set(drawn)
    frame = to_frame(gpu_rows())
    rows = frame[
        (frame["strategy"] == "write.loop")
        & (frame["clock"] == "wall")
        & (frame["block_size"] == 16)
        & (frame["block_order"] == "shuffled")
        & (frame["status"] == "ok")
    ].sort_values("seq_len")
    assert drawn["write.loop"]["x"] == list(rows["seq_len"])
    assert drawn["write.loop"]["y"] == pytest.approx(list(1e6 * rows["median_s"]))


def test_a_chart_says_its_numbers_as_units_do(opened):
    page = opened("gpu")
    values = [1.234e-9, 5.5e-8, 9.999e-6, 1.00049e-3, 0.25, 3.3, 123.4, 98765.4]
    assert page.evaluate("values => values.map(kv.units.seconds)", values) == [
        units.format_seconds(value) for value in values
    ]
    sizes = [1, 1023, 1024, 5e6, 7e10]
    assert page.evaluate("sizes => sizes.map(kv.units.bytes)", sizes) == [
        units.format_bytes(size) for size in sizes
    ]
    assert page.evaluate("sizes => sizes.map(kv.units.bandwidth)", sizes) == [
        units.format_bandwidth(size) for size in sizes
    ]
    # What is rounded up to the next unit is said in it.
    rounded = "[999.4e-6, 999.7e-6, 0.9997].map(kv.units.seconds)"
    assert page.evaluate(rounded) == ["999 µs", "1.00 ms", "1.00 s"]
    counts = "[0, 1, 1024].map((n) => kv.units.count(n, 'launch', 'launches'))"
    assert page.evaluate(counts) == ["0 launches", "1 launch", "1,024 launches"]
    given = [6.3e-6, 5.05e-6, 1.2e-3]
    assert page.evaluate("t => kv.units.secondsInterval(...t)", given) == (
        units.format_seconds_interval(*given)
    )
    told = ["12.3 µs", "6.30 (5.05 to 7.41) ms", "1,024", "1.5x (1.2 to 1.7)", "write.loop", "—"]
    assert page.evaluate("told => told.map(kv.units.sortable)", told) == pytest.approx(
        [1.23e-5, 6.3e-3, 1024, 1.5, None, None]
    )


def test_clock_axis_and_scale_are_switched(opened):
    figure = chart(opened("gpu"), "write-launch-overhead")
    wall = lines(figure)["write.loop"]["y"]
    choose(figure, "Clock", "device")
    assert lines(figure)["write.loop"]["y"] != pytest.approx(wall)
    choose(figure, "Clock", "wall")
    choose(figure, "over", "block_size")
    assert lines(figure)["write.loop"]["x"] == [16, 64]
    assert figure.get_by_label("seq_len", exact=True).input_value()
    choose(figure, "over", "block_order")
    assert lines(figure)["write.loop"]["x"] == ["sequential", "shuffled"]
    expect(figure.get_by_label("Horizontal scale")).to_have_count(0)
    choose(figure, "over", "seq_len")
    axis = "plot => [plot.layout.xaxis.type, plot.layout.yaxis.type]"
    assert figure.locator(".plot").evaluate(axis) == ["log", "log"]
    choose(figure, "Vertical scale", "linear")
    assert figure.locator(".plot").evaluate(axis) == ["log", "linear"]
    figure.get_by_role("button", name="Reset").click()
    assert figure.locator(".plot").evaluate(axis) == ["log", "log"]
    assert lines(figure)["write.loop"]["y"] == pytest.approx(wall)


def test_speed_up_bandwidth_and_share_are_of_runs_alone(opened):
    figure = chart(opened("gpu"), "write-launch-overhead")
    choose(figure, "Show", "speed-up over write.loop")
    drawn = lines(figure)
    assert set(drawn["write.loop"]["y"]) == {1}
    assert "write.slot_mapping, prepare" not in drawn
    expect(figure.get_by_label("Phase")).to_be_disabled()
    expect(figure.get_by_role("heading")).to_have_text("write: speed-up over write.loop")
    expect(figure.locator("figcaption p")).to_contain_text("How many times faster than write.loop")
    choose(figure, "Show", "bandwidth")
    expect(figure.locator("figcaption p")).to_contain_text("The least bytes")
    choose(figure, "Show", "share of the copy's bandwidth")
    expect(figure.get_by_label("Vertical scale")).to_have_value("linear")
    assert lines(figure)["write.loop"]["y"][0] == pytest.approx(50)


def test_what_moves_no_keys_and_values_is_not_held_against_a_copy(opened):
    page = opened("gpu")
    figure = chart(page, "write-launch-overhead")
    dashed = "plot => plot.data.some((trace) => trace.line?.dash === 'dash')"
    assert figure.locator(".plot").evaluate(dashed)
    expect(figure.locator(".note")).to_contain_text("prepare, once a step. Dashed")
    choose(figure, "Clock", "enqueue")
    assert not figure.locator(".plot").evaluate(dashed)
    expect(figure.locator(".note")).not_to_contain_text("Dashed")
    # Nor is there a bandwidth of handing work over.
    choose(figure, "Show", "bandwidth")
    expect(figure.get_by_label("Clock")).to_have_value("wall")
    clocks = figure.get_by_label("Clock").locator("option").all_text_contents()
    assert clocks == ["wall", "device"]
    figure = chart(page, "index-launch-overhead")
    expect(figure.locator(".note")).to_contain_text("Dotted: prepare, before a step.")
    expect(figure.locator(".note")).not_to_contain_text("Dashed")


def test_a_step_costs_prepare_and_as_many_runs_as_are_asked_for(opened):
    figure = chart(opened("gpu"), "write-launch-overhead")
    choose(figure, "Phase", "a whole step of L layers")
    figure.get_by_label("L, layers of a step").fill("7")
    figure.get_by_label("L, layers of a step").blur()
    frame = to_frame(gpu_rows())
    costs = step_costs(frame[frame["op"] == "write"], 7)
    own = costs[
        (costs["strategy"] == "write.slot_mapping")
        & (costs["block_size"] == 16)
        & (costs["block_order"] == "shuffled")
    ].sort_values("seq_len")
    assert lines(figure)["write.slot_mapping"]["y"] == pytest.approx(list(1e6 * own["step_s"]))


def test_a_field_that_varies_has_a_filter(opened):
    figure = chart(opened("gpu"), "write-launch-overhead")
    before = lines(figure)["write.loop"]["y"]
    choose(figure, "block_order", "sequential")
    assert lines(figure)["write.loop"]["y"] != before
    # What all cases of the op share has none.
    expect(figure.get_by_label("num_kv_heads", exact=True)).to_have_count(0)
    expect(figure.locator(".note").first).to_contain_text("block_order sequential")


def test_a_setting_without_cases_says_which_has_some(opened):
    figure = chart(opened("gpu"), "attend-launch-overhead")
    figure.get_by_label("batch", exact=True).select_option(index=1)
    assert lines(figure)
    page = opened("reference")
    figure = chart(page, "write-launch-overhead")
    choose(figure, "dtype", "fp32")
    batches = figure.get_by_label("block_size", exact=True).locator("option").all_inner_texts()
    (nothing,) = [text for text in batches if text.endswith("(nothing)")]
    choose(figure, "block_size", nothing)
    expect(figure.locator(".why")).to_contain_text("Nothing was timed with")
    expect(figure.locator(".why")).to_contain_text("With ")
    for part in (".plot", ".note", ".values"):
        expect(figure.locator(part)).to_be_hidden()


def test_strategies_are_hidden_and_shown(opened):
    figure = chart(opened("gpu"), "write-launch-overhead")
    figure.get_by_role("checkbox", name="loop").uncheck()
    assert "write.loop" not in lines(figure)
    assert "write.indexing" in lines(figure)
    figure.get_by_role("button", name="None").click()
    expect(figure.locator(".why")).to_contain_text("hidden")
    figure.get_by_role("button", name="All").click()
    assert "write.loop" in lines(figure)


def test_a_zoomed_axis_stays_where_a_strategy_is_hidden(opened):
    figure = chart(opened("gpu"), "write-launch-overhead")
    plot = figure.locator(".plot")
    plot.evaluate("p => Plotly.relayout(p, {'xaxis.range': [0.2, 1.5]})")
    figure.get_by_role("checkbox", name="loop").uncheck()
    assert plot.evaluate("p => p.layout.xaxis.range") == [0.2, 1.5]
    figure.get_by_role("button", name="Reset").click()
    assert plot.evaluate("p => p.layout.xaxis.range") != [0.2, 1.5]


def test_an_unresolved_time_is_marked_and_said(opened):
    figure = chart(opened("unresolved"), "write-launch-overhead")
    rings = [t for t in traces(figure) if t["mode"] == "markers"]
    assert [len(t["x"]) for t in rings] == [3]
    assert "unresolved" in lines(figure)["write.loop"]["text"][0]


def test_what_has_no_place_on_a_logarithmic_scale_is_said(opened):
    figure = chart(opened("empty"), "write-launch-overhead")
    assert lines(figure)["write.loop"]["x"] == [1, 8]
    expect(figure.locator(".note")).to_contain_text("4 points at 0 have no place")
    choose(figure, "Horizontal scale", "linear")
    assert lines(figure)["write.loop"]["x"] == [0, 1, 8]
    choose(figure, "Show", "time per token")
    assert lines(figure)["write.loop"]["x"] == [1, 8]


def test_where_the_bytes_of_a_call_outgrow_the_cache_is_marked(opened):
    figure = chart(opened("reference"), "write-bandwidth")
    notes = figure.locator(".plot").evaluate("p => p.layout.annotations.map((a) => [a.text, a.x])")
    ((text, x),) = notes
    assert text == "fits 32.0 MiB cache"
    # 8 heads of 128 in bf16 move 8 KiB a token.
    assert 10**x == pytest.approx(4096)
    # A line of the grid is at 4096 too, and would hide a mark below it.
    assert figure.locator(".plot").evaluate("p => p.layout.shapes.map((s) => s.layer)") == ["above"]
    choose(figure, "Show", "speed-up over write.loop")
    assert not figure.locator(".plot").evaluate("p => p.layout.annotations")


def test_a_chart_has_its_values_as_a_table(opened):
    figure = chart(opened("gpu"), "write-launch-overhead")
    figure.locator(".values summary").click()
    rows = figure.locator(".values tbody tr")
    drawn = lines(figure)
    expect(rows).to_have_count(sum(len(line["x"]) for line in drawn.values()))
    first = rows.filter(has_text="write.loop").first.locator("td").all_inner_texts()
    assert first[:3] == ["write.loop", "run", "1"]
    assert float(first[3].replace(",", "")) == pytest.approx(drawn["write.loop"]["y"][0], rel=1e-3)


def test_hostile_names_are_shown_as_they_are(opened):
    page = opened("hostile")
    figure = chart(page, "write-launch-overhead")
    plot = figure.locator(".plot")
    plot.focus()
    seen = set()
    for _ in range(2 * len(HOSTILE)):
        page.keyboard.press("ArrowUp")
        seen.add(figure.locator("[aria-live]").inner_text())
    for text in HOSTILE:
        assert any(text in said for said in seen), text
        expect(figure.locator(".legend label", has_text=text)).to_have_count(1)
    # Plotly's own markup stays text, too.
    plot.evaluate(
        "p => Plotly.Fx.hover(p, [{curveNumber: p.data.findIndex(t => t.hovertext"
        " && t.hovertext[0].includes('bold')), pointNumber: 0}])"
    )
    expect(figure.locator(".hoverlayer")).to_contain_text("%{y} &lt;b&gt; $x^2$ <b>bold</b>")
    assert page.title() != "taken"


def test_a_view_can_be_shared_by_its_address(opened):
    page = opened("gpu")
    figure = chart(page, "write-launch-overhead")
    choose(figure, "block_size", "64")
    figure.get_by_role("checkbox", name="loop").uncheck()
    behind = "#" + page.url.partition("#")[2]
    assert behind.startswith("#write-launch-overhead?")
    before = lines(figure).keys()
    again = chart(opened("gpu", behind=behind), "write-launch-overhead")
    assert (
        again.get_by_label("block_size", exact=True).evaluate("s => s.selectedOptions[0].text")
        == "64"
    )
    assert "write.loop" not in lines(again)
    assert lines(again).keys() == before


@pytest.mark.parametrize(
    "behind",
    [
        "#write-launch-overhead?y=nonsense&x=none&f.block_size=99&layers=-3&hide=77.x&xscale=3",
        "#nowhere?x=1",
        "#%E0%A4%A?x=1",
    ],
)
def test_an_address_that_makes_no_sense_shows_the_usual(opened, behind):
    figure = chart(opened("gpu", behind=behind), "write-launch-overhead")
    assert "write.loop" in lines(figure)


# Keys.


def test_the_first_tab_skips_to_the_content(opened):
    page = opened("gpu")
    page.keyboard.press("Tab")
    expect(page.locator(":focus")).to_have_class("skip")
    page.keyboard.press("Enter")
    expect(page.locator("main")).to_be_focused()


def test_tab_reaches_the_settings_the_chart_and_its_legend_in_that_order(opened):
    page = opened("gpu")
    figure = chart(page, "write-launch-overhead")
    figure.locator(".controls > summary").focus()
    seen = []
    for _ in range(30):
        page.keyboard.press("Tab")
        where = figure.evaluate(
            "(figure) => { const e = document.activeElement; return !figure.contains(e) ? 'beyond'"
            " : e.closest('.controls') ? 'settings' : e.matches('.plot') ? 'chart'"
            " : e.closest('.legend') ? 'legend' : 'values' }"
        )
        if where not in seen[-1:]:
            seen.append(where)
        outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        assert outline != "none"
        if where == "beyond":
            break
    assert seen == ["settings", "chart", "legend", "values", "beyond"]


def test_arrow_keys_walk_the_points_of_a_chart(opened):
    page = opened("gpu")
    figure = chart(page, "write-launch-overhead")
    figure.locator(".plot").focus()
    said = figure.locator("[aria-live]")
    hover = figure.locator(".hoverlayer")
    page.keyboard.press("ArrowRight")
    first = said.inner_text()
    assert re.match(r"write\.\w+; seq_len 1; [\d.]+ \(", first)
    expect(hover).to_contain_text("seq_len 1")
    page.keyboard.press("ArrowRight")
    expect(said).to_contain_text("seq_len 8;")
    expect(hover).to_contain_text("seq_len 8")
    page.keyboard.press("End")
    expect(said).to_contain_text("seq_len 512;")
    page.keyboard.press("Home")
    expect(said).to_have_text(first)
    # Up and down meet every line at this place, the highest and the lowest last.
    names = {first.partition(";")[0]}
    for key in ("ArrowUp", "ArrowDown"):
        for _ in range(12):
            page.keyboard.press(key)
            names.add(said.inner_text().partition(";")[0])
    assert names == set(lines(figure))
    page.keyboard.press("Escape")
    expect(said).to_have_text("")
    expect(hover.locator("text")).to_have_count(0)


@pytest.mark.parametrize(
    "name", ["index-fastest", "step-amortisation", "attend-gather-share", "step-tokens-per-second"]
)
def test_every_kind_of_chart_is_walked(opened, name):
    page = opened("gpu")
    figure = chart(page, name)
    figure.locator(".plot").focus()
    page.keyboard.press("ArrowRight")
    first = figure.locator("[aria-live]").inner_text()
    expect(figure.locator(".hoverlayer text").first).to_be_attached()
    page.keyboard.press("ArrowRight")
    second = figure.locator("[aria-live]").inner_text()
    assert len({"", first, second}) == 3


def test_bars_of_strategies_lie_with_their_names_beside_them(opened):
    page = opened("gpu", size=PHONE)
    figure = chart(page, "step-amortisation")
    figure.locator(".controls > summary").click()
    choose(figure, "A bar for each", "strategy")
    names = ["loop+sdpa_loop", "native+native"]
    assert [trace["y"] for trace in traces(figure)] == [names] * 3
    labels = figure.locator(".ytick text")
    assert labels.all_text_contents() == names
    inside = "label => { const own = label.getBoundingClientRect(), all = label.closest('svg')"
    inside += ".getBoundingClientRect(); return own.left >= all.left && own.right <= all.right }"
    assert all(label.evaluate(inside) for label in labels.all())
    # Along a bar the arrows walk its parts, up and down its neighbours: the first is above.
    figure.locator(".plot").focus()
    said = figure.locator("[aria-live]")
    for key, text in (
        ("ArrowRight", "step.loop+sdpa_loop; prepare"),
        ("ArrowRight", "step.loop+sdpa_loop; write"),
        ("ArrowDown", "step.native+native; write"),
        ("End", "step.native+native; attend"),
        ("ArrowUp", "step.loop+sdpa_loop; attend"),
    ):
        page.keyboard.press(key)
        assert said.inner_text().startswith(text)
        expect(figure.locator(".hoverlayer text").first).to_be_attached()
    choose(figure, "A bar for each", "num_layers")
    assert [trace["x"] for trace in traces(figure)] == [["1", "8"]] * 3


def test_a_map_is_read_as_its_figure_is(opened):
    page = opened("reference")
    plot = chart(page, "step-fastest").locator(".plot")
    # 1.1x would not tell it from twice as much.
    assert "1.06x" in plot.evaluate("p => p.data[1].text")
    ticks = plot.locator(".yaxislayer-above text, .ytick text").all()
    heights = {tick.text_content(): tick.bounding_box()["y"] for tick in ticks}
    assert heights["1"] < heights["8"]
    note = chart(page, "read-fastest").locator(".note")
    expect(note).to_contain_text("In a cell: how many times as long")
    page.set_viewport_size(PHONE)
    # There a cell has no room for a number.
    expect(chart(page, "read-fastest").locator(".note")).to_contain_text("Told of a cell")


def test_a_map_over_one_field_names_no_other(opened):
    page = opened("gpu")
    figure = chart(page, "step-fastest")
    expect(figure.get_by_role("heading")).to_contain_text("over seq_len and num_layers")
    figure = chart(opened("empty"), "write-fastest")
    expect(figure.get_by_role("heading")).to_have_text(
        "write: which strategy is fastest, over seq_len"
    )
    titles = "plot => [plot.layout.xaxis.title.text, plot.layout.yaxis.title.text]"
    assert figure.locator(".plot").evaluate(titles) == ["seq_len", ""]
    expect(figure.locator(".note")).to_contain_text("block_size 16")


def test_who_comes_by_the_keyboard_sees_what_the_keys_do(opened):
    page = opened("gpu")
    figure = chart(page, "write-launch-overhead")
    clip = "e => getComputedStyle(e).clipPath"
    figure.locator(".plot").click()
    assert figure.locator(".plot-help").evaluate(clip) != "none"
    figure.get_by_role("button", name="Reset").focus()
    page.keyboard.press("Tab")
    expect(figure.locator(".plot")).to_be_focused()
    assert figure.locator(".plot-help").evaluate(clip) == "none"


def test_a_setting_that_is_changed_keeps_the_focus(opened):
    page = opened("gpu")
    figure = chart(page, "write-launch-overhead")
    figure.get_by_label("over", exact=True).focus()
    choose(figure, "over", "block_size")
    expect(figure.get_by_label("over", exact=True)).to_be_focused()


# Tables and rows.


def column(table: Locator, place: int) -> list[str]:
    return table.locator(f"tbody td:nth-child({place})").all_inner_texts()


def test_a_table_is_sorted_by_its_header(opened):
    table = opened("gpu").locator("table.sortable").first
    head = table.locator("th").nth(1)
    head.get_by_role("button").click()
    expect(head).to_have_attribute("aria-sort", "ascending")
    assert column(table, 2) == ["980 ns", "12.3 µs", "1.20 ms", "—"]
    # A blank at the head of a row meant what was above it.
    assert column(table, 1) == ["write.native", "write.loop", "write.native", "write.indexing"]
    head.get_by_role("button").click()
    expect(head).to_have_attribute("aria-sort", "descending")
    assert column(table, 2) == ["1.20 ms", "12.3 µs", "980 ns", "—"]
    other = table.locator("th").first
    other.get_by_role("button").press("Enter")
    expect(head).not_to_have_attribute("aria-sort", re.compile("."))
    assert column(table, 1) == sorted(column(table, 1))


def test_a_table_of_long_words_and_headers_fits_a_page_and_is_cards_on_a_phone(opened):
    page = opened("tables")
    tables = page.locator("table.sortable")
    wider = "t => t.offsetWidth - t.parentElement.clientWidth"
    assert [table.evaluate(wider) <= 0 for table in tables.all()] == [True, True, True]
    # An interval is on one line and what is before it on another, at the most.
    cell = tables.last.locator("td", has_text="a + b")
    lines_of = "td => (td.clientHeight - 10) / parseFloat(getComputedStyle(td).lineHeight)"
    assert round(cell.evaluate(lines_of)) <= 2
    page.set_viewport_size(A4)
    page.emulate_media(media="print")
    assert [table.evaluate(wider) <= 0 for table in tables.all()] == [True, True, True]
    page.emulate_media(media="screen")
    page = opened("tables", size=PHONE)
    words, numbers, _ = tables.all()
    assert words.evaluate(wider) <= 0
    expect(words.locator("thead")).to_be_hidden()
    expect(numbers.locator("thead")).to_be_visible()
    card = words.locator("tbody tr").last.locator("td")
    assert card.first.evaluate("td => getComputedStyle(td, '::after').content") == '"step"'
    assert card.nth(1).evaluate("td => getComputedStyle(td, '::before').content") == '"fastest: "'
    assert_accessible(page)


def test_rows_are_filtered_sorted_and_paged(opened):
    page = opened("gpu")
    rows = page.locator("#rows")
    count = len(gpu_rows())
    expect(rows.get_by_role("status")).to_have_text(f"Rows 1 to 100 of {count}.")
    rows.get_by_role("button", name="Next").click()
    expect(rows.get_by_role("status")).to_have_text(f"Rows 101 to 200 of {count}.")
    rows.get_by_label("Status", exact=True).select_option("unsupported")
    expect(rows.locator("tbody tr:visible")).to_have_count(1)
    expect(rows.locator("tbody")).to_contain_text("no <GPU> here")
    rows.get_by_label("Status", exact=True).select_option("")
    rows.get_by_label("Op", exact=True).select_option("attend")
    rows.get_by_label("Strategy", exact=True).select_option("attend.native")
    expect(rows.locator("tbody tr:visible")).to_have_count(6)
    median = rows.locator("th", has_text="median")
    median.get_by_role("button").click()
    expect(median).to_have_attribute("aria-sort", "ascending")
    place = rows.locator("th").all_inner_texts().index("median") + 1
    found = column(rows, place)
    assert found == sorted(found, key=lambda text: (text[-2:] != "µs", float(text[:-3])))
    rows.get_by_label("Op", exact=True).select_option("")
    rows.get_by_label("Strategy", exact=True).select_option("")
    rows.get_by_label("Text", exact=True).fill("no <gpu>")
    expect(rows.locator("tbody tr:visible")).to_have_count(1)
    rows.get_by_label("Text", exact=True).fill("nothing like it")
    expect(rows.get_by_role("status")).to_have_text(f"None of {count} rows has all of that.")


def test_the_command_of_a_row_is_copied(opened):
    page = opened("hostile")
    rows = page.locator("#rows")
    rows.get_by_label("Text", exact=True).fill("<!--<script>")
    rows.get_by_role("button", name="Copy command").first.click()
    expect(rows.get_by_text("Copied").first).to_be_visible()
    assert page.evaluate("navigator.clipboard.readText()") == (
        "kvbench run -s 'write.<!--<script>'"
    )


def test_the_command_of_a_row_is_shown_below_it_within_what_is_seen(opened):
    page = opened("hostile", size=PHONE)
    rows = page.locator("#rows")
    rows.get_by_label("Text", exact=True).fill("<!--<script>")
    expect(rows.get_by_role("status")).to_contain_text("4 of")
    show = rows.get_by_role("button", name="Show command").first
    expect(show).to_have_attribute("aria-expanded", "false")
    show.click()
    expect(show).to_have_attribute("aria-expanded", "true")
    command = rows.locator(".below:visible code")
    expect(command).to_have_text("kvbench run -s 'write.<!--<script>'")
    assert command.evaluate("code => code.getBoundingClientRect().right <= innerWidth")
    show.click()
    expect(command).to_have_count(0)


def test_rows_have_their_command_at_hand_and_what_all_share_in_no_column(opened):
    page = opened("gpu")
    heads = page.locator("#rows th").all_inner_texts()
    assert heads[:3] == ["strategy", "command", "phase"]
    assert "seq_len" in heads
    assert not {"head_dim", "cache", "reason"} & set(heads)
    page.locator("#rows").get_by_role("button", name="Next").click()
    last = len(gpu_rows()) // 100
    for _ in range(last - 1):
        page.locator("#rows").get_by_role("button", name="Next").click()
    # Those that were not timed are the last, with the reason in place of the times.
    lines = page.locator("#rows tbody tr:visible")
    expect(lines.last.locator("td.reason")).to_have_text("no <GPU> here")
    assert lines.last.locator("td").count() == len(heads) - 2


@pytest.mark.parametrize(
    ("query", "count"),
    [("write.loop seq_len=8192", 1), ("write loop  8192", 1), ("write.loop, seq_len=8,192", 0)],
)
def test_every_word_of_a_search_is_looked_for(opened, query, count):
    rows = opened("gpu").locator("#rows")
    rows.get_by_label("Text", exact=True).fill(query)
    said = f"Rows 1 to {count} " if count else "None of "
    expect(rows.get_by_role("status")).to_contain_text(said)


# Looks.


def test_the_button_turns_light_to_dark_and_back(opened):
    page = opened("gpu")
    figure = chart(page, "write-launch-overhead")
    paper = "getComputedStyle(document.body).backgroundColor"
    light, line = page.evaluate(paper), lines(figure)["write.loop"]["colour"]
    page.get_by_role("button", name="Use dark colours").click()
    assert page.evaluate(paper) == "rgb(22, 25, 29)"
    assert lines(figure)["write.loop"]["colour"] != line
    page.get_by_role("button", name="Use light colours").click()
    assert page.evaluate(paper) == light == "rgb(255, 255, 255)"
    assert lines(figure)["write.loop"]["colour"] == line


def test_the_system_decides_until_the_button_does(opened):
    page = opened("gpu", scheme="dark")
    paper = "getComputedStyle(document.body).backgroundColor"
    assert page.evaluate(paper) == "rgb(22, 25, 29)"
    page.get_by_role("button", name="Use light colours").click()
    assert page.evaluate(paper) == "rgb(255, 255, 255)"


def test_on_paper_all_charts_are_drawn_and_nothing_is_to_press(opened):
    page = opened("unresolved", scheme="dark")
    page.emulate_media(media="print")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    for figure in page.locator("figure.chart").all():
        expect(
            figure.locator(".plot .main-svg").first.or_(figure.locator(".why:visible"))
        ).to_be_attached()
    expect(page.locator("button:visible:not(th button)")).to_have_count(0)
    paper = "getComputedStyle(document.body).backgroundColor"
    assert page.evaluate(paper) == "rgb(255, 255, 255)"
    printed = lines(page.locator("#write-launch-overhead"))["write.loop"]["colour"]
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    page.emulate_media(media="screen", color_scheme="dark")
    assert page.evaluate(paper) == "rgb(22, 25, 29)"
    assert printed == colour("write.loop")
    shown = lines(page.locator("#write-launch-overhead"))["write.loop"]["colour"]
    assert shown == colour("write.loop", dark=True)


@pytest.mark.parametrize("section", ["all", "attend"])
def test_a_link_leads_to_its_section_though_charts_on_the_way_are_drawn_later(opened, section):
    page = opened("reference")
    page.emulate_media(reduced_motion="no-preference")
    page.locator(f".toc-wide a[href='#{section}']").click()
    top = f"document.getElementById('{section}').getBoundingClientRect().top"
    page.wait_for_function(f"Math.abs({top}) < 60")


def test_the_contents_mark_the_section_that_is_read(opened):
    page = opened("gpu")
    current = page.locator(".toc-wide a[aria-current='true']")
    for name, anchor in (("Every row", "#all"), ("Attend", "#attend")):
        page.locator(".toc-wide").get_by_role("link", name=name).click()
        expect(current).to_have_attribute("href", anchor)


def test_the_contents_stick_on_a_wide_screen_and_fold_on_a_phone(opened):
    page = opened("gpu")
    page.locator("#all").scroll_into_view_if_needed()
    expect(page.locator(".toc-wide nav")).to_be_in_viewport()
    expect(page.locator(".toc-narrow")).to_be_hidden()
    page = opened("gpu", size=PHONE)
    expect(page.locator(".toc-wide")).to_be_hidden()
    page.locator(".toc-narrow summary").click()
    page.locator(".toc-narrow").get_by_role("link", name="Every row").click()
    expect(page.locator("#all h2")).to_be_in_viewport()
