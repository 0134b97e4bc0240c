"""What a report says of a run: its sections, its answer, its tables, in Markdown and as rows."""

import csv
import dataclasses
import re

import pytest
from made import environment, measurement, result, run_info, sweep_rows
from markdown_it import MarkdownIt

from kvbench.analysis.frame import to_frame
from kvbench.analysis.statistics import Estimate
from kvbench.analysis.winners import Band
from kvbench.errors import StoreError
from kvbench.report.answer import answer_table, answers, basis, plain, sentences
from kvbench.report.csv import COLUMNS, save_rows
from kvbench.report.document import Chart, Details, Document, Rows, Section, Text
from kvbench.report.launches import launches_table
from kvbench.report.machine import busy, environment_table, found_table, quality_table, warnings_of
from kvbench.report.markdown import Picture, markdown
from kvbench.report.sections import compose
from kvbench.report.tables import Table
from kvbench.results import Finding, LaunchCounts, Resumption
from kvbench.store import Run


def band(winner="a", runner_up="b", margin=(2.0, 1.9, 2.1), tied=(), low=1, high=16, **fields):
    usual = {"cases": 3, "left_out": 0, "fastest": 3, "lacking": (), "least": 2.0, "most": 2.0}
    return Band(
        low=low,
        high=high,
        winner=f"write.{winner}",
        runner_up=None if runner_up is None else f"write.{runner_up}",
        margin=None if margin is None else Estimate(*margin),
        tied=tuple(f"write.{name}" for name in tied),
        **{**usual, **fields},
    )


def run_of(rows, tmp_path, **info) -> Run:
    return Run(folder=tmp_path, info=run_info(**info), results=tuple(rows), warnings=())


def charts_of(rows, tmp_path) -> list[tuple[str, str]]:
    document = compose(run_of(rows, tmp_path), to_frame(rows), 32)
    parts = [part for section in document.sections for part in section.parts]
    return [(part.kind, part.op) for part in parts if isinstance(part, Chart)]


def test_one_winner_at_every_size_is_said_once():
    later = band(margin=(3.5, 3.4, 3.6), low=17, high=256, least=1.5, most=6)
    assert sentences({"write": [band(), later]}) == (
        "- **write**: `a` is the fastest at every size measured (1 to 256 tokens): the next, `b`, "
        "takes 2.00 to 3.50x as long (case by case the quickest other takes 1.50 to 6.00x)."
    )


def test_a_terminal_gets_the_answer_without_markup():
    found = {"write": [band()]}
    assert plain(sentences(found)) == (
        "- write: a is the fastest at every size measured (1 to 16 tokens): the next, b, takes "
        "2.00x as long."
    )
    assert "step of 7 layers" in basis(found, 7)
    assert basis({"index": [band()], "step": [band()]}, 7) == "By the cost of a step"


def test_a_winner_that_loses_a_case_is_the_fastest_on_average():
    found = {"write": [band(), band(fastest=2, low=17, high=256)]}
    assert sentences(found).startswith(
        "- **write**: `a` is the fastest on average at all sizes measured (1 to 256 tokens): "
    )


def test_a_winner_that_loses_a_case_by_medians_alone_is_the_fastest_or_tied():
    found = {"write": [band(least=0.1), band(low=17, high=256)]}
    assert sentences(found).startswith(
        "- **write**: `a` is the fastest, or tied, at every size measured (1 to 256 tokens): "
    )


def test_winners_that_change_are_said_with_their_sizes():
    found = {
        "read": [band("a"), band("c", "a", low=17, high=256), band("c", "b", low=512, high=512)]
    }
    assert sentences(found) == (
        "- **read**: `a` at 1 to 16 tokens: the next, `b`, takes 2.00x as long; `c` at 17 to 512 "
        "tokens: the next, `a` or `b`, takes 2.00x as long."
    )


@pytest.mark.parametrize(
    ("bands", "said"),
    [
        ([band(tied=["b", "c"])], "(1 to 16 tokens), not to be told from `b` or `c`."),
        (
            [band(tied=["b"]), band(low=17, high=20)],
            "takes 2.00x as long (at some sizes not to be told from `b`).",
        ),
        ([band(runner_up=None, margin=None, low=4, high=4)], "measured (4 tokens)."),
    ],
)
def test_doubt_is_said(bands, said):
    assert sentences({"write": bands}).endswith(said)


def test_the_table_of_the_answer_has_a_line_per_op_and_band():
    found = {
        "write": [
            band(fastest=2, left_out=1, lacking=("write.c", "write.d")),
            band(tied=["b"], low=20, high=20, cases=1, fastest=1),
        ],
        "read": [band(runner_up=None, margin=None), band(margin=(1.06, 1.04, 1.08))],
    }
    table = answer_table(found, 32)
    assert table.rows == (
        ("write", "1 to 16", "a", "sure", "2.00x (1.90 to 2.10)", "b", "2 of 3 cases"),
        ("write", "20", "a", "tied with b", "2.00x (1.90 to 2.10)", "b", "1 of 1 case"),
        ("read", "1 to 16", "a", "nothing to compare with", "—", "—", "3 of 3 cases"),
        ("read", "1 to 16", "a", "by little", "1.06x (1.04 to 1.08)", "b", "3 of 3 cases"),
    )
    assert "by the wall clock: prepare + 32 x run" in table.note
    assert table.note.endswith("left out: 1, for want of write.c or write.d.")


def test_who_is_judged_by_other_cases_than_the_next_is_not_surely_the_fastest():
    found = {"write": [band(), band(shared=False, low=20, high=30), band(runner_up=None, low=40)]}
    assert [line[3] for line in answer_table(found, 32).rows] == [
        "sure",
        "unsure: no case has them all",
        "nothing to compare with",
    ]
    assert "At 20 to 30 tokens no case has a time of every strategy" in sentences(found)
    assert "no case" not in sentences({"write": [band()]})


def test_answers_are_of_the_ops_that_were_timed():
    frame = to_frame([*sweep_rows(op="read"), result("write.a", None, status="failed")])
    assert list(answers(frame, 32)) == ["read"]


def test_launches_are_told_at_the_telling_sizes_with_how_they_are_known():
    rows = sweep_rows(seq_lens=(1, 64, 512, 4096))
    table = launches_table(to_frame(rows), "write")
    assert table.header == ("strategy", "phase", "1", "512", "4,096", "known by")
    assert table.rows == (
        (
            "write.indexing",
            "run",
            *["6 kernels, 1 memcpy, waits once"] * 3,
            "predicted",
        ),
        ("write.loop", "run", "2 kernels", "1,024 kernels", "8,192 kernels", "predicted"),
        ("write.slot_mapping", "run", *["2 kernels"] * 3, "predicted"),
        ("write.slot_mapping", "prepare", *["1 memcpy, waits once"] * 3, "predicted"),
    )


def test_a_counted_launch_is_not_called_predicted_and_a_missing_size_is_missing():
    def counts(kernels):
        return LaunchCounts(kernels=kernels, memcpys=0, synchronizations=0, source="counted")

    rows = [
        result("write.a", seq_len=1, launches=counts(3)),
        result("write.a", seq_len=8, launches=counts(3)),
        result("write.b", seq_len=8, launches=counts(0)),
    ]
    table = launches_table(to_frame(rows), "write")
    assert table.rows == (
        ("write.a", "run", "3 kernels", "3 kernels", "counted"),
        ("write.b", "run", "—", "nothing", "counted"),
    )
    assert launches_table(to_frame([result("write.a")]), "write") is None


def test_the_environment_has_every_field_and_what_differs_in_later_sessions():
    info = run_info(
        environment=environment(gpu={"driver": "1.2", "mig": None}, git_dirty=True),
        resumptions=(
            Resumption(
                created="later", command="kvbench run --resume", environment=environment(torch="9")
            ),
        ),
    )
    lines = dict(environment_table(info).rows)
    assert lines["GPU driver"] == "1.2"
    assert lines["GPU mig"] == lines["cpu governor"] == "not known"
    assert lines["memory"] == "8.00 GiB"
    assert lines["git dirty"] == "yes"
    assert lines["an empty call, wall"] == "30.0 ns"
    assert lines["session 2, torch"] == "9"
    assert lines["session 2"] == "later: kvbench run --resume"
    assert "session 2, cpu" not in lines


def test_warnings_are_those_of_every_session_and_what_is_fine_is_none():
    bad = Finding("Load of others", "7 on 2 CPUs", "warning", "Wait.")
    fine = Finding("Swap", "0 B in use", "fine", "")
    info = run_info(findings=(fine, bad))
    assert warnings_of(info).endswith(":\n\n- **Load of others**: 7 on 2 CPUs. Wait.")
    assert found_table(info).rows[0] == ("Swap", "0 B in use", "fine", "")
    assert warnings_of(run_info(findings=(fine,))).startswith("Nothing that was looked at")
    later = Resumption(created="", command="", environment=environment(), findings=(bad,))
    both = warnings_of(run_info(findings=(bad,), resumptions=(later,)))
    assert both.count("Load of others") == 2
    assert "(session 2)" in both


def test_a_later_session_s_machine_has_only_what_differs_whatever_else_it_has():
    """A GPU's lines come in between, which the first machine has none of."""
    later = environment(gpu={"driver": "1.2"}, host="b")
    info = run_info(
        environment=environment(gpu={}, host="a"),
        resumptions=(Resumption(created="later", command="", environment=later),),
    )
    told = [line for line in environment_table(info).rows if line[0].startswith("session 2, ")]
    assert told == [("session 2, GPU driver", "1.2"), ("session 2, host", "b")]


def test_what_could_not_be_read_is_not_said_to_be_fine():
    fine = Finding("Swap", "0 B in use", "fine", "")
    unknown = Finding("CPU governor", "no /sys", "unknown", "Find it out.")
    assert warnings_of(run_info(findings=(fine, unknown))) == (
        "Nothing that was looked at when the run began disturbs timings. Not known: CPU governor."
    )
    assert "nothing could be read" in warnings_of(run_info(findings=(unknown,)))
    assert "disturbs timings is not known" in warnings_of(run_info(findings=(unknown,)))


def test_what_is_no_finding_is_not_listed_as_one():
    dirty = environment(git_dirty=True)
    fine = Finding("Swap", "0 B in use", "fine", "")
    assert "was found when the run began" not in warnings_of(run_info(environment=dirty))
    assert warnings_of(run_info(environment=dirty, findings=(fine,))).startswith("Nothing that")


def test_changes_that_no_commit_has_are_told_of_whichever_session_had_them():
    def later(**fields):
        return (Resumption(created="", command="", environment=environment(**fields)),)

    assert "no commit has" in warnings_of(run_info(resumptions=later(git_dirty=True)))
    assert "no commit has" not in warnings_of(run_info(resumptions=later(git_dirty=False)))


def test_a_machine_that_somebody_else_had_is_told_of_first(tmp_path):
    load = Finding("Load of others", "7 on 2 CPUs", "warning", "Wait.")
    taken = Finding("Busy processes", "make 99%", "warning", "End them.")
    assert busy(run_info(findings=(load,))) == busy(run_info()) == ""
    said = busy(run_info(findings=(load, taken)))
    assert said.startswith("This machine was busy when the run began (Busy processes: make 99%).")
    assert "OMP_NUM_THREADS=1" in said
    rows = sweep_rows()
    first, *_ = compose(run_of(rows, tmp_path, findings=(taken,)), to_frame(rows), 32).sections
    assert first.parts[0] == Text(f"**{said}**")


def test_what_was_not_looked_at_is_not_said_to_be_fine():
    old = run_info(environment=environment(git_dirty=True))
    assert old.findings is None
    assert "not looked at" in warnings_of(old)
    assert "no commit has" in warnings_of(old)
    assert found_table(old) is None


def test_the_quality_of_times_is_told_by_op_and_clock():
    rows = [
        dataclasses.replace(
            result("write.a", seq_len=n),
            measurement=measurement(
                [1e-5] * 9, low_s=0.98e-5, high_s=1.02e-5, stopped_by=how, floor_s=floor
            ),
        )
        for n, how, floor in ((1, "precision", 9e-6), (2, "precision", 1e-9), (3, "time", 1e-9))
    ]
    (line,) = quality_table(to_frame(rows)).rows
    assert line == ("write", "wall", "3", "2 %", "2 %", "67 %", "33 %", "1")
    assert quality_table(to_frame([result("write.a", None, status="failed")])) is None


def test_a_report_answers_first_and_ends_with_every_row(tmp_path):
    rows = [
        *sweep_rows(seq_lens=(1, 8, 64, 512), block_sizes=(16, 64), kv_heads=(1, 8)),
        *sweep_rows(seq_lens=(1, 8, 64, 512), block_sizes=(16, 64), kv_heads=(1, 8), op="read"),
        result("write.mine", None, status="unsupported", reason="not for this"),
    ]
    document = compose(run_of(rows, tmp_path), to_frame(rows), 32)
    anchors = [section.anchor for section in document.sections]
    assert anchors == [
        "answer",
        "curves",
        "speedup",
        "bandwidth",
        "crossovers",
        "layers",
        "why",
        "launches",
        "claims",
        "machine",
        "untimed",
        "rows",
    ]
    assert charts_of(rows, tmp_path) == [
        (kind, op)
        for kind in ("launch-overhead", "speedup", "bandwidth", "fastest", "layers", "breakdown")
        for op in ("write", "read")
    ]
    assert "32 cases; 128 times, each" in document.lead
    assert "1 unsupported" in document.lead


def test_where_the_loop_has_no_time_nothing_is_told_of_speed_ups_over_it(tmp_path):
    rows = [
        *sweep_rows(strategies=("slot_mapping",)),
        result("write.loop", None, status="unsupported"),
    ]
    assert ("speedup", "write") not in charts_of(rows, tmp_path)
    assert ("speedup", "write") in charts_of(sweep_rows(), tmp_path)


def test_where_nothing_is_prepared_there_is_no_cost_to_spread_over_layers(tmp_path):
    kinds = dict(charts_of(sweep_rows(strategies=("loop", "indexing")), tmp_path))
    assert "launch-overhead" in kinds
    assert "layers" not in kinds
    assert "layers" in dict(charts_of(sweep_rows(), tmp_path))


def test_of_no_rows_it_is_not_said_that_all_were_timed(tmp_path):
    text = markdown(compose(run_of([], tmp_path), to_frame([]), 32), {}, "rows.csv")
    assert "Nothing was measured yet." in text
    assert "Everything was timed" not in text


def test_what_a_figure_says_is_text_whatever_a_strategy_is_called():
    document = Document("T", "L", (Section("a", "A", (Chart("speedup", "write"),)),))
    alt = "lowest is write.<b>]`*x[0]*"
    text = markdown(document, {("speedup", "write"): [Picture("a.png", alt)]}, "rows.csv")
    (image,) = [
        child
        for token in MarkdownIt().parse(text)
        for child in token.children or ()
        if child.type == "image"
    ]
    assert (image.content and image.attrs["src"]) == "a.png"
    assert "".join(child.content for child in image.children) == alt


def test_a_run_of_nothing_timed_has_a_report_that_says_so(tmp_path):
    rows = [result("write.a", None, status="unsupported", reason="never | <b>here</b>")]
    document = compose(run_of(rows, tmp_path), to_frame(rows), 32)
    text = markdown(document, {}, "rows.csv")
    assert "Nothing was timed in this run." in text
    assert "never \\| &lt;b>here&lt;/b>" in text


def test_a_pattern_in_a_cell_is_no_emphasis_and_code_is_as_it_is():
    table = Table("T", ("a", "b"), (("-s '*.native' -s '*.x'", "`<*>`"),))
    assert table.markdown().splitlines()[-1] == "| -s '\\*.native' -s '\\*.x' | `<*>` |"


def test_markdown_has_every_part():
    table = Table("T", ("a",), (("1",),), "N")
    document = Document(
        "Title",
        "Lead.",
        (
            Section("one", "First", (Text("said"), Chart("speedup", "write"), table)),
            Section("two", "Second", (Details("more", (table,)), Rows())),
        ),
    )
    pictures = {("speedup", "write"): [Picture("plots/a.png", "A"), Picture("plots/b.png", "B")]}
    assert markdown(document, pictures, "rows.csv") == (
        "# Title\n\nLead.\n\n- [First](#one)\n- [Second](#two)\n\n"
        '<a id="one"></a>\n\n## First\n\nsaid\n\n![A](plots/a.png)\n\n![B](plots/b.png)\n\n'
        "**T**\n\n| a |\n| ---: |\n| 1 |\n\nN\n\n"
        '<a id="two"></a>\n\n## Second\n\n'
        "<details>\n<summary>more</summary>\n\n"
        "**T**\n\n| a |\n| ---: |\n| 1 |\n\nN\n\n</details>\n\n"
        "[rows.csv](rows.csv) has them all; times are in seconds.\n"
    )


def test_a_chart_that_has_no_figure_leaves_nothing_behind():
    document = Document("T", "L", (Section("s", "S", (Chart("layers", "read"),)),))
    assert not re.search(r"!\[|\n\n\n", markdown(document, {}, "rows.csv"))


def test_rows_are_written_at_full_precision_and_what_is_missing_is_empty(tmp_path):
    rows = [
        result("write.a", [1.0000000001e-5] * 5, repro="kvbench run -a seq_len=1,2"),
        result("write.b", None, status="failed", reason='it said "no",\nand left'),
    ]
    save_rows(to_frame(rows), tmp_path / "rows.csv")
    with (tmp_path / "rows.csv").open(newline="") as file:
        one, two = csv.DictReader(file)
    assert tuple(one) == ("strategy", "op", "seq_len", *COLUMNS)
    assert (one["strategy"], one["op"], one["seq_len"]) == ("write.a", "write", "8")
    assert float(one["median_s"]) == 1.0000000001e-5
    assert one["repro"] == "kvbench run -a seq_len=1,2"
    assert (two["median_s"], two["launches"], two["resolved"]) == ("", "", "")
    assert two["reason"] == 'it said "no",\nand left'


def test_rows_have_the_fields_of_the_case_that_vary(tmp_path):
    kinds = ("bf16", "fp32")
    rows = [result("write.a", block_size=n, dtype=kind) for n in (8, 16) for kind in kinds]
    save_rows(to_frame(rows), tmp_path / "rows.csv")
    with (tmp_path / "rows.csv").open(newline="") as file:
        found = list(csv.DictReader(file))
    assert tuple(found[0]) == ("strategy", "op", "seq_len", "block_size", "dtype", *COLUMNS)
    assert [(row["block_size"], row["dtype"]) for row in found] == [
        ("8", "bf16"),
        ("8", "fp32"),
        ("16", "bf16"),
        ("16", "fp32"),
    ]


def test_rows_that_can_not_be_written_are_one_line(tmp_path):
    with pytest.raises(StoreError, match="Is a directory"):
        save_rows(to_frame([result()]), tmp_path)


def test_the_folder_of_rows_is_made_and_what_is_in_its_place_is_told(tmp_path):
    save_rows(to_frame([result()]), tmp_path / "new" / "rows.csv")
    assert (tmp_path / "new" / "rows.csv").read_text().count("\n") == 2
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match=r"rows\.csv': File exists"):
        save_rows(to_frame([result()]), tmp_path / "file" / "rows.csv")
