"""A report as HTML: one file, safe with whatever a run holds, and true to its numbers."""

import base64
import hashlib
import importlib.resources
import json
import math
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pandas as pd
import pytest
from made import result, sweep_rows
from made_report import (
    HOSTILE,
    UNTIMED,
    attend_rows,
    document,
    gpu_rows,
    hostile_rows,
    page_of,
    run_of,
    step_rows,
    unresolved,
)

from kvbench.analysis.breakdown import broken_down
from kvbench.analysis.fastest import fastest
from kvbench.analysis.frame import to_frame
from kvbench.analysis.gathering import beside_gathering
from kvbench.analysis.speedup import speedups
from kvbench.analysis.steps import split, throughput
from kvbench.report.document import Chart, Document, Section, Text
from kvbench.report.html import html
from kvbench.report.palette import BACKGROUNDS
from kvbench.report.payload import payload, to_json
from kvbench.report.style import colour, marker
from kvbench.report.tables import Table

ROOT = Path(__file__).parents[1]
WEB = importlib.resources.files("kvbench.report") / "web"


class Page(HTMLParser):
    """Elements with their attributes, and the text of each, in order."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.texts: list[str] = []
        self._in = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))
        self._in = tag
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag):  # noqa: ARG002 - whichever ends
        self._in = ""

    def handle_data(self, data):
        if self._in == "script":
            self.scripts[-1] += data
        elif self._in != "style":
            self.texts.append(data)

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.found if name == tag]

    def ids(self) -> list[str]:
        return [a["id"] for _, a in self.found if "id" in a]

    @property
    def text(self) -> str:
        return "".join(self.texts)


@pytest.fixture(scope="module")
def gpu_text() -> str:
    return page_of(gpu_rows())


@pytest.fixture(scope="module")
def gpu_page(gpu_text) -> Page:
    return Page(gpu_text)


@pytest.fixture(scope="module")
def hostile_page() -> Page:
    return Page(page_of(hostile_rows(), " ".join(HOSTILE)))


def data_of(page: Page) -> dict:
    (place,) = [i for i, a in enumerate(page.all("script")) if a.get("id") == "run-data"]
    return json.loads(page.scripts[place])


SAME = """
import sys
sys.path.insert(0, "tests")
from made_report import gpu_rows, page_of
import hashlib
print(hashlib.sha256(page_of(gpu_rows()).encode()).hexdigest())
"""


@pytest.mark.parametrize("seed", ["1", "2"])
def test_the_same_run_gives_the_same_bytes(gpu_text, seed):
    done = subprocess.run(
        [sys.executable, "-c", SAME],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
        env={"PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)},
    )
    assert done.stdout.strip() == hashlib.sha256(gpu_text.encode()).hexdigest()


def test_nothing_is_fetched(gpu_text, gpu_page):
    fetching = {"src", "srcset", "data", "poster", "action", "formaction", "background", "ping"}
    for tag, attributes in gpu_page.found:
        assert not fetching & set(attributes), tag
    assert [a["href"] for a in gpu_page.all("link")] == ["data:,"]
    assert not {"iframe", "object", "embed", "img", "base"} & {tag for tag, _ in gpu_page.found}
    (style,) = re.findall(r"<style>(.*?)</style>", gpu_text, re.DOTALL)
    assert "url(" not in style
    assert "@import" not in style


def test_only_the_scripts_of_the_page_may_run(gpu_page):
    policies = [a["content"] for a in gpu_page.all("meta") if "http-equiv" in a]
    (policy,) = policies
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == "'none'"
    assert "connect-src" not in rules
    run = [
        script
        for script, attributes in zip(gpu_page.scripts, gpu_page.all("script"), strict=True)
        if attributes.get("type") != "application/json"
    ]
    digests = [base64.b64encode(hashlib.sha256(s.encode()).digest()).decode() for s in run]
    assert rules["script-src"].split() == [f"'sha256-{digest}'" for digest in digests]


def test_no_script_could_end_its_element():
    scripts = [path.read_text() for path in WEB.iterdir() if path.name.endswith(".js")]
    assert len(scripts) > 10
    for script in scripts:
        assert "</script" not in script.lower()
        assert "<!--" not in script


def test_every_script_and_style_is_part_of_the_page(gpu_text):
    for path in WEB.iterdir():
        if path.name.endswith((".js", ".css")):
            assert path.read_text() in gpu_text, path.name


def test_names_reasons_and_commands_stay_text(hostile_page):
    assert len(hostile_page.all("script")) == len(Page(page_of(sweep_rows())).all("script"))
    assert not hostile_page.all("img")
    assert not hostile_page.all("b")
    assert not [a for a in hostile_page.all("a") if str(a["href"]).startswith("https:")]
    assert not [1 for _, a in hostile_page.found if any(name.startswith("on") for name in a)]
    for text in HOSTILE:
        assert text in hostile_page.text
    data = data_of(hostile_page)
    names = [strategy["name"] for strategy in data["strategies"]]
    assert [f"write.{text}" for text in HOSTILE] == names[1:]
    assert data["rows"]["reason"]["values"] == list(HOSTILE)


def test_data_cannot_end_its_script_element():
    text = to_json({"a": "</script><!--<script>", "b": "\u2028"})
    assert "<" not in text
    assert json.loads(text) == {"a": "</script><!--<script>", "b": "\u2028"}


def test_a_number_that_json_does_not_have_is_an_error():
    with pytest.raises(ValueError, match="Out of range"):
        to_json({"a": math.nan})


def test_every_part_is_there(gpu_page):
    text = gpu_page.text
    for words in ("A report", "The answer", "and beyond", "12.3 µs", "A note", "Inside."):
        assert words in text
    assert "<b>no markup</b>" in text
    assert {"strong", "code", "li", "nav"} <= {tag for tag, _ in gpu_page.found}
    assert len(gpu_page.all("table")) == 3
    assert len([a for a in gpu_page.all("details") if a.get("class") == "more"]) == 1
    frame = to_frame(gpu_rows())
    wanted = [
        (part.kind, part.op)
        for section in document(frame).sections
        for part in section.parts
        if isinstance(part, Chart)
    ]
    charts = [a for a in gpu_page.all("figure") if a.get("class") == "chart"]
    assert [(a["data-kind"], a["data-op"]) for a in charts] == wanted
    assert {a["data-kind"] for a in charts} >= {"fastest", "layers", "amortisation"}
    assert len([a for a in gpu_page.all("div") if a.get("class") == "rows"]) == 1


def test_anchors_are_unique_and_the_contents_lead_to_them(gpu_page):
    ids = gpu_page.ids()
    assert len(set(ids)) == len(ids)
    links = [a["href"][1:] for a in gpu_page.all("a") if str(a["href"]).startswith("#")]
    assert set(links) <= set(ids)
    assert {"answer", "write", "read", "skipped", "all"} <= set(links)


def test_what_is_there_twice_has_two_names():
    run = run_of(sweep_rows())
    frame = to_frame(run.results)
    twice = (Chart("speedup", "write"), Chart("speedup", "write"))
    made = Document("Twice", "", (Section("write-speedup", "Twice", twice),))
    ids = Page(html(made, run, frame, 32)).ids()
    assert {"write-speedup", "write-speedup-2", "write-speedup-3"} <= set(ids)


def test_a_link_to_a_script_stays_text():
    run = run_of(sweep_rows())
    made = Document("T", "[a](javascript:alert(1))", (Section("s", "S", (Text("[b](data:x)"),)),))
    page = Page(html(made, run, to_frame(run.results), 32))
    assert all(str(a["href"]).startswith("#") for a in page.all("a"))


def test_numbers_are_aligned_right_and_headers_have_a_scope(gpu_page):
    heads = gpu_page.all("th")
    assert all(a["scope"] == "col" for a in heads)
    assert [a.get("class") for a in heads[:2]] == [None, "number"]


def page_with(*parts) -> Page:
    run = run_of(sweep_rows())
    made = Document("T", "", (Section("s", "S", parts),))
    return Page(html(made, run, to_frame(run.results), 32))


def test_a_speed_up_says_what_it_is_over(gpu_page):
    assert "How many times faster than write.loop, from" in gpu_page.text
    assert "How many times faster than step.loop+sdpa_loop, from" in gpu_page.text
    assert "{" not in gpu_page.text


def test_a_pair_of_names_may_be_broken_and_reads_the_same():
    page = page_with(Table("T", ("strategy", "a"), (("step.a+b", "1 + 2"), ("<i>+j", "3"))))
    assert len(page.all("wbr")) == 1
    assert "step.a+b" in page.text
    assert "<i>+j" in page.text


def test_an_interval_and_a_number_keep_their_units_on_their_line():
    text = "a + b: 13.9 (13.0 to 15.0) µs"
    page = page_with(
        Table("T", ("strategy", "a", "b"), (("loop, 79.2 µs", text, "4.34x (4.33 to 4.35)"),))
    )
    assert text in page.text
    found = html(
        Document("T", "", (Section("s", "S", (Table("T", ("a",), ((text,), ("5 of 9 %",))),)),)),
        run_of(sweep_rows()),
        to_frame(sweep_rows()),
        32,
    )
    assert '<td>a + b: 13.9 <span class="whole">(13.0 to 15.0) µs</span></td>' in found
    assert '5 of <span class="whole">9 %</span>' in found


def test_only_a_table_that_has_no_room_on_a_phone_is_cards():
    numbers = Table("T", ("strategy", "64"), (("write.loop", "1.00 ms"), ("", "2.00 ms")))
    words = Table("U", ("op", "", "why"), (("read", "a", "w" * 50), ("", "", "too")))
    page = page_with(numbers, words)
    found = [a["class"] for a in page.all("table")]
    assert found == ["sortable", "sortable cards"]
    labels = [(a.get("data-label"), a.get("data-above")) for a in page.all("td") if "role" in a]
    # What stands for the cell above it says so; a column without a name gives none.
    assert labels[:3] == [("op", None), (None, None), ("why", None)]
    assert labels[3:] == [("op", "read"), (None, "a"), ("why", None)]


# What the page draws is what the run has.


def shown(rows, **info):
    run = run_of(rows, **info)
    frame = to_frame(run.results)
    return payload(run, frame, 32), frame


@pytest.fixture(scope="module")
def gpu():
    """The data of the page, and the frame that it is of."""
    return shown(gpu_rows())


def word(column: dict, row: int) -> str | None:
    place = column["of"][row]
    return None if place < 0 else column["values"][place]


def test_rows_have_the_values_of_the_frame():
    data, frame = shown([*gpu_rows(), unresolved(result(seq_len=3))])
    rows = data["rows"]
    for name in ("median_s", "low_s", "high_s", "launches", "nbytes", "copy_share"):
        wanted = [None if math.isnan(value) else value for value in frame[name].astype(float)]
        assert rows[name] == wanted
    for name in ("phase", "clock", "status", "reason", "repro", "stopped_by"):
        found = [word(rows[name], row) for row in range(len(frame))]
        assert found == [None if pd.isna(value) else value for value in frame[name]]
    names = [data["strategies"][number]["name"] for number in rows["strategy"]]
    assert names == list(frame["strategy"])
    assert rows["samples"] == [len(s) if isinstance(s, tuple) else None for s in frame["samples_s"]]
    assert rows["resolved"][-1] == 0
    assert rows["resolved"][0] == 1


def test_cases_have_the_values_of_the_frame(gpu):
    data, frame = gpu
    cases = data["cases"]
    for name, column in cases["fields"].items():
        found = [column["values"][column["of"][case]] for case in data["rows"]["case"]]
        assert found == list(frame[name])
    assert [cases["tokens"][case] for case in data["rows"]["case"]] == list(frame["tokens"])
    assert {"seq_len", "block_size", "batch", "block_order", "num_layers"} <= set(cases["fields"])
    # What is alike in all of them has no filter, and is said once.
    assert "head_dim" not in cases["fields"]
    assert data["constant"]["head_dim"] == 128
    assert "seed" not in data["constant"]


def test_the_page_has_the_colours_that_strategies_are_told_apart_on():
    style = (WEB / "page.css").read_text()
    papers = re.findall(r"--paper: (#\w+);", style)
    assert [paper.upper() for paper in papers] == [BACKGROUNDS[0], *[BACKGROUNDS[1]] * 2]


def test_a_strategy_has_the_looks_of_its_figures(gpu):
    data, _ = gpu
    for strategy in data["strategies"]:
        name = strategy["name"]
        assert strategy["light"] == colour(name)
        assert strategy["dark"] == colour(name, dark=True)
    looks = {strategy["name"]: strategy for strategy in data["strategies"]}
    assert looks["write.loop"]["marker"] == marker("write.loop")
    assert looks["attend.sdpa_loop"]["hollow"]
    assert not looks["attend.native"]["hollow"]


@pytest.mark.parametrize("clock", ["wall", "enqueue", "device"])
def test_speed_ups_are_those_of_the_analysis(clock, gpu):
    data, frame = gpu
    wanted = speedups(frame[frame["op"] == "write"], "write.loop", clock)
    columns = data["ops"]["write"]["speedups"]
    names = ("speedup", "speedup_low", "speedup_high")
    found = zip(columns["row"], *(columns[name] for name in names), strict=True)
    of_clock = [each for row, *each in found if word(data["rows"]["clock"], row) == clock]
    assert len(wanted) > 10
    assert of_clock == wanted[list(names)].to_numpy().tolist()


def test_without_a_loop_the_strategy_of_most_cases_is_1():
    rows = sweep_rows(strategies=("indexing",), seq_lens=(1, 8))
    data, _ = shown([*rows, *sweep_rows(strategies=("slot_mapping",))])
    assert data["ops"]["write"]["reference"] == "write.slot_mapping"
    data, _ = shown([*attend_rows(), *step_rows(2)])
    assert data["ops"]["attend"]["reference"] == "attend.sdpa_loop"
    assert data["ops"]["step"]["reference"] == "step.loop+sdpa_loop"


def test_winners_are_those_of_the_analysis(gpu):
    data, frame = gpu
    for op in ("write", "step", "index"):
        wanted = fastest(frame, op, 32, "block_size")
        found = data["ops"][op]["fastest"]
        assert [word(found["winner"], i) for i in range(len(wanted))] == list(wanted["winner"])
        assert [word(found["runner_up"], i) for i in range(len(wanted))] == list(
            wanted["runner_up"]
        )
        assert found["ratio"] == list(wanted["ratio"])
        assert found["tied"] == [int(flag) for flag in wanted["tied"]]
        seq_len = data["cases"]["fields"]["seq_len"]
        of_case = [seq_len["values"][seq_len["of"][case]] for case in found["case"]]
        assert of_case == list(wanted["seq_len"])


def test_parts_of_a_call_are_those_of_the_analysis():
    rows = [*sweep_rows(seq_lens=(1, 8, 64), kv_heads=(1, 8), strategies=("loop", "indexing"))]
    data, frame = shown(rows)
    wanted, _ = broken_down(frame, "write")
    assert len(wanted) >= 6
    found = data["ops"]["write"]["breakdown"]
    for name in ("call_s", "launches_s", "bytes_s", "rest_s"):
        assert found[name] == pytest.approx(list(wanted[name]))
    assert found["split"] == [int(flag) for flag in wanted["split"]]


def test_a_strategy_without_a_fit_has_the_reason():
    data, _ = shown(sweep_rows(seq_lens=(1, 8)))
    assert "expected 6 or more" in data["ops"]["write"]["without_fit"]["write.loop"]


def test_steps_and_gathers_are_those_of_the_analysis(gpu):
    data, frame = gpu
    assert data["rates"]["tokens_per_s"] == list(throughput(frame)["tokens_per_s"])
    assert data["parts"]["rest_s"] == list(split(frame)["rest_s"])
    wanted = beside_gathering(frame[frame["op"] == "attend"])
    assert data["shares"]["ratio"] == list(wanted["ratio"])
    assert [share for share in data["shares"]["share"] if share is not None] == list(
        wanted["share"].dropna()
    )


def test_the_setting_of_an_op_is_that_of_most_rows():
    rows = [*sweep_rows(block_sizes=(64,)), *sweep_rows(seq_lens=(1, 8, 64, 512))]
    data, _ = shown(rows)
    assert data["ops"]["write"]["setting"] == {"block_size": 16}


def test_a_run_of_which_nothing_was_timed_is_a_page():
    rows = [result("write.loop", None, status="failed", reason=UNTIMED)]
    data = data_of(Page(page_of(rows)))
    assert data["rows"]["median_s"] == [None]
    assert data["ops"]["write"]["reference"] is None
    assert data["rows"]["reason"]["values"] == [UNTIMED]


def test_the_library_does_not_slow_what_does_not_need_it():
    code = "import sys, kvbench.cli, kvbench.report.html; print('plotly' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert done.stdout == "False\n"
