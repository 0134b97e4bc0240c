"""What the gather costs an attention: ratios within rounds, the table and the figure of them."""

from dataclasses import replace

import pandas as pd
import pytest
from made import result, run_info

from kvbench.analysis.frame import to_frame
from kvbench.analysis.gathering import beside_gathering
from kvbench.report.attention import gather_table
from kvbench.report.claims import claims_table
from kvbench.report.gathering import gather_share_figure, pages
from kvbench.report.plots import sketches
from kvbench.report.style import line

ROUNDS = (1.0, 2.0, 0.5, 1.5, 4.0, 1.25)
"""How slow the machine was in each round."""


def times(seconds: float) -> list[float]:
    return [seconds * each for each in ROUNDS]


def rows_of(seq_len=128, batch=1, gather_s=3e-3, native_s=2e-3, **fields):
    at = {"seq_len": seq_len, "batch": batch, "num_heads": 32, "lengths": "equal", **fields}
    return [
        result("attend.sdpa_loop", times(20e-3), **at),
        result("attend.sdpa_loop", times(15e-3), phase="gather", **at),
        result("attend.sdpa_native", times(10e-3), **at),
        result("attend.sdpa_native", times(gather_s), phase="gather", **at),
        result("attend.sdpa_native", times(1e-5), phase="prepare", **at),
        result("attend.native", times(native_s), **at),
        result("attend.flex", None, status="unsupported", **at),
    ]


def test_the_reference_is_the_fastest_that_gathers_and_ratios_are_those_within_rounds():
    beside = beside_gathering(to_frame(rows_of())).set_index("strategy")
    assert list(beside.index) == ["attend.sdpa_native", "attend.native"]
    assert set(beside["reference"]) == {"attend.sdpa_native"}
    share = beside.loc["attend.sdpa_native", ["share", "share_low", "share_high"]]
    assert list(share) == pytest.approx([0.3] * 3)  # however slow the machine was
    ratio = beside.loc["attend.native", ["ratio", "ratio_low", "ratio_high"]]
    assert list(ratio) == pytest.approx([0.2] * 3)
    assert beside.loc["attend.sdpa_native", "ratio"] == 1
    assert pd.isna(beside.loc["attend.native", "share"])


def test_each_case_has_its_own_reference():
    slower = [r for r in rows_of(seq_len=256) if r.strategy != "attend.sdpa_native"]
    beside = beside_gathering(to_frame([*rows_of(), *slower]))
    found = beside.groupby("seq_len")["reference"].agg(lambda names: set(names).pop())
    assert dict(found) == {128: "attend.sdpa_native", 256: "attend.sdpa_loop"}


def test_what_gathers_is_not_in_place_though_its_gather_was_not_timed():
    rows = rows_of()
    failed = result("attend.sdpa_loop", None, status="failed", phase="gather", seq_len=128)
    fields = {"case": rows[1].case, "phase": "gather"}
    rows[1] = replace(failed, **fields)
    beside = beside_gathering(to_frame(rows))
    assert list(beside["strategy"]) == ["attend.sdpa_native", "attend.native"]


def test_without_a_gather_there_is_nothing_to_compare_with():
    rows = [r for r in rows_of() if r.phase != "gather"]
    assert beside_gathering(to_frame(rows)).empty
    assert gather_table(to_frame(rows)) is None
    assert list(pages(to_frame(rows), "wall")) == []
    assert gather_table(to_frame([result("write.loop")])) is None


def test_the_table_has_a_line_per_case_in_the_order_of_batch_and_context():
    rows = [*rows_of(batch=8), *rows_of(seq_len=64), *rows_of()]
    table = gather_table(to_frame(rows))
    assert [line[:2] for line in table.rows] == [("1", "64"), ("1", "128"), ("8", "128")]
    assert table.rows[0][2:] == (
        *("sdpa_native, 13.8 ms", "30 %", "native, 2.75 ms", "5.00x (5.00 to 5.00)", "50 %"),
    )


def test_a_case_in_which_nothing_reads_in_place_says_so_and_so_does_a_run():
    bare = [r for r in rows_of(seq_len=64) if r.strategy != "attend.native"]
    table = gather_table(to_frame([*rows_of(), *bare]))
    assert table.rows[0][4:] == ("—", "—", "—")
    assert gather_table(to_frame(bare)) is None
    assert list(pages(to_frame(bare), "wall")) == []


def test_the_figure_has_a_panel_per_batch_and_bars_as_high_as_their_times():
    rows = [*rows_of(), *rows_of(seq_len=512, gather_s=5e-3, native_s=12e-3), *rows_of(batch=8)]
    (page,) = pages(to_frame(rows), "wall")
    figure = gather_share_figure(page, "wall", run_info())
    first, second = figure.axes
    assert first.get_title(loc="left") == "batch 1"
    assert second.get_title(loc="left") == "batch 8"
    heights = [round(bar.get_height()) for bar in first.patches]
    assert heights == [30, 70, 20, 50, 50, 120]
    assert [text.get_text() for text in first.texts] == ["30", "20", "50", "120"]
    assert first.get_ylim()[1] > 120
    assert [label.get_text().split("\n")[0] for label in first.get_xticklabels()] == ["128", "512"]
    texts = [text.get_text() for text in figure.legends[0].get_texts()]
    assert texts == ["gather", "attention over the copies", "native"]


def test_an_interval_is_shown_whole():
    uneven = [
        each * factor for each, factor in zip(times(1e-2), (1, 1, 1, 1.9, 1.9, 1.9), strict=True)
    ]
    fields = {"seq_len": 128, "num_heads": 32, "lengths": "equal"}
    rows = [row for row in rows_of() if row.strategy != "attend.native"]
    (page,) = pages(to_frame([*rows, result("attend.native", uneven, **fields)]), "wall")
    (panel,) = gather_share_figure(page, "wall", run_info()).axes
    reached = 100 * page.rows["ratio_high"].max()
    assert 1.08 * 145 < reached < panel.get_ylim()[1]


def test_other_settings_have_figures_of_their_own_and_every_figure_its_name():
    rows = [*rows_of(), *rows_of(seq_len=512), *rows_of(dtype="fp32"), *rows_of(batch=2)]
    found = {page.name: page for page in pages(to_frame(rows), "wall")}
    assert found.keys() == {"", "dtype-fp32"}
    assert found[""].batches == (1, 2)
    names = {sketch.name for sketch in sketches(to_frame(rows), run_info())}
    assert {"attend-gather-share", "attend-gather-share-dtype-fp32"} <= names


def test_a_gather_looks_like_its_read_yet_not_the_same():
    assert line("attend.sdpa_loop")["color"] == line("read.loop")["color"]
    assert line("attend.sdpa_loop") != line("attend.loop") == line("read.loop")


def test_the_claim_of_no_copy_is_held_against_the_largest_attention():
    rows = [*rows_of(), *rows_of(seq_len=512, gather_s=5e-3, native_s=1e-3)]
    claim = claims_table(to_frame(rows), run_info()).rows[-1]
    assert claim[0] == "“no extra copy”"
    assert claim[1].endswith(
        "; of attention over 1 x 512 cached tokens the gather is 50 %, and attend.native in place "
        "takes 10 % of both"
    )
