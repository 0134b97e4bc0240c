"""What is said of a comparison: sentences, tables, Markdown, JSON."""

import dataclasses
import json
import re

import pytest
from made import environment, measurement, result, run_info, sweep_rows

from kvbench import cli_compare
from kvbench.analysis import comparison as judge
from kvbench.analysis.comparison import Rules, compare
from kvbench.analysis.gate import gate, likely_renames, nothing_compared, refuse_renames
from kvbench.errors import InputError
from kvbench.report import comparison as report
from kvbench.report import comparison_json
from kvbench.report.comparison import Compared
from kvbench.report.comparison_json import as_json
from kvbench.report.comparison_markdown import MOST_BYTES, markdown
from kvbench.results import Resumption
from kvbench.sessions import other_machine, other_settings, other_versions
from kvbench.store import Run
from kvbench.sweep.ab import LABELS, PROCESSES
from kvbench.units import format_ratio, format_share

SEQ_LENS = (1, 8, 64)
ROWS = sweep_rows(SEQ_LENS)


def times(row, factor):
    """A row whose times are all so many times longer."""
    samples = [factor * seconds for seconds in row.measurement.samples_s]
    return dataclasses.replace(row, measurement=measurement(samples))


def changed(strategy, change, rows=ROWS, **fields):
    """Rows with those of a strategy, and of cases with such fields, replaced."""
    return [
        change(row)
        if row.strategy == strategy
        and all(getattr(row.case, name) == value for name, value in fields.items())
        else row
        for row in rows
    ]


def failed(row, status="failed", reason="it [broke]"):
    return dataclasses.replace(row, status=status, reason=reason, measurement=None)


def without(strategy, rows=ROWS):
    return [row for row in rows if row.strategy != strategy]


def called(name, rows, new):
    return changed(name, lambda row: dataclasses.replace(row, strategy=new), rows)


def compared(base, new, rules=None, *, allow_lost=False, notes=(), tmp_path="runs", **info):
    found = compare(base, new, rules or Rules(), interleaved=False, control=0.0)
    runs = [
        Run(f"{tmp_path}/{name}", run_info(**info), tuple(rows), ())
        for name, rows in (("base", base), ("new", new))
    ]
    judged = gate(found, base, new, allow_lost=allow_lost)
    return Compared(base=runs[0], new=runs[1], gate=judged, notes=tuple(notes))


def concluded(*arguments, **options):
    return report.conclusion(compared(*arguments, **options).gate)


def test_a_conclusion_says_the_worst_first():
    assert concluded(ROWS, ROWS) == "No regression: 12 SAME of 12 cells"
    faster = changed("write.loop", lambda row: times(row, 0.5))
    assert concluded(ROWS, faster) == "No regression: 3 FASTER, 9 SAME of 12 cells"
    slower = changed("write.loop", lambda row: times(row, 2))
    assert concluded(ROWS, slower) == "SLOWER: 1 strategy, 3 cells of 12"
    lost = without("write.indexing", slower)
    assert concluded(ROWS, lost) == "SLOWER: 1 strategy, 3 cells of 9; LOST: 3 cells (3 missing)"
    assert concluded(ROWS, lost, allow_lost=True) == (
        "SLOWER: 1 strategy, 3 cells of 9; 3 cells lost, which is allowed"
    )
    broken = changed("write.loop", failed, seq_len=8)
    assert concluded(ROWS, broken) == "LOST: 1 cell (1 failed)"
    assert concluded(ROWS, broken, allow_lost=True) == "LOST: 1 cell (1 failed)"


def test_what_is_new_and_wrong_stops_a_gate_and_what_was_so_before_does_not():
    wrong = [*ROWS, result("write.new", status="incorrect", reason="a bit")]
    found = compared(ROWS, wrong)
    assert found.gate.regressed
    assert report.conclusion(found.gate) == "FAILED: 1 new cell"
    assert not compared(wrong, wrong).gate.regressed
    assert not compared(wrong, ROWS).gate.regressed
    unsupported = [*ROWS, result("write.new", status="unsupported")]
    assert not compared(ROWS, unsupported).gate.regressed


def test_what_was_refused_and_now_fails_stops_a_gate():
    before = [*ROWS, result("write.new", status="unsupported")]
    after = [*ROWS, result("write.new", status="crashed")]
    assert [each.status for each in compared(before, after).gate.broken] == ["crashed"]


def test_what_fails_by_one_clock_alone_stops_a_gate_that_looks_at_it():
    def rows(status):
        graph = failed(dataclasses.replace(ROWS[0], clock="graph"), status)
        return [*ROWS, graph]

    def broken(*clocks):
        found = compared(rows("unsupported"), rows("failed"), Rules(clocks=clocks))
        return [each.cell.clock for each in found.gate.broken]

    assert broken() == broken("wall", "graph") == ["graph"]
    assert broken("wall") == []


def test_a_failure_is_known_as_one_by_whichever_clock_is_compared():
    """A strategy that failed has one row, of the first clock."""
    base = [dataclasses.replace(row, clock=clock) for row in ROWS for clock in ("wall", "device")]
    new = [
        row if row.strategy != "write.loop" else failed(row)
        for row in base
        if row.strategy != "write.loop" or row.clock == "wall"
    ]
    found = compared(base, new, Rules(clocks=("device",)), allow_lost=True)
    assert report.conclusion(found.gate) == "LOST: 3 cells (3 failed)"


def test_a_run_without_any_scatter_is_like_itself():
    still = [dataclasses.replace(row, measurement=measurement([1e-5] * 5)) for row in ROWS]
    assert concluded(still, still) == "No regression: 12 SAME of 12 cells"


def test_nothing_is_compared_where_no_cell_is_in_both():
    assert nothing_compared(compared(ROWS, sweep_rows(SEQ_LENS, op="read")).gate)
    assert nothing_compared(compared([], ROWS).gate)
    assert not nothing_compared(compared(ROWS, ROWS).gate)
    # All of it was refused or failed: that is something to say, unless it is allowed.
    for status, allowed in (("unsupported", True), ("failed", False)):
        rows = [failed(row, status) for row in ROWS]
        assert not nothing_compared(compared(ROWS, rows).gate)
        assert nothing_compared(compared(ROWS, rows, allow_lost=True).gate) == allowed


def test_a_renamed_strategy_is_found_by_its_cells():
    renamed = called("write.loop", ROWS, "write.lop")
    assert likely_renames(compared(ROWS, renamed).gate.comparison) == (("write.loop", "write.lop"),)
    fewer = [row for row in renamed if (row.strategy, row.case.seq_len) != ("write.lop", 8)]
    assert likely_renames(compared(ROWS, fewer).gate.comparison) == ()
    # What is still there in one cell was not renamed.
    both = [*renamed, next(row for row in ROWS if row.strategy == "write.loop")]
    assert likely_renames(compared(ROWS, both).gate.comparison) == ()
    told = report.sentences(compared(ROWS, renamed))
    assert "--rename write.loop=write.lop" in told[0]


def test_of_several_new_names_the_nearest_is_taken_once():
    base = called("write.indexing", ROWS, "write.b_old")
    base = called("write.loop", base, "write.a_old")
    new = called("write.b_old", called("write.a_old", base, "write.a_new"), "write.b_new")
    assert dict(likely_renames(compared(base, new).gate.comparison)) == {
        "write.a_old": "write.a_new",
        "write.b_old": "write.b_new",
    }


@pytest.mark.parametrize(
    ("renamed", "words"),
    [
        ((("b", "c"),), "strategy of the base: 'b'"),
        ((("a", "q"),), "strategy of the new run: 'q'"),
        ((("a", "c"), ("a", "d")), "each strategy of the base once"),
        ((("a", "c"),), "would both be c"),
    ],
)
def test_renames_that_mean_nothing_are_refused(renamed, words):
    with pytest.raises(InputError, match=re.escape(words)):
        refuse_renames(Rules(renamed=renamed), {"a", "c"}, {"c", "d"})


def test_two_strategies_may_change_names():
    refuse_renames(Rules(renamed=(("a", "c"), ("c", "a"))), {"a", "c"}, {"a", "c"})


def test_the_worst_come_first_and_what_is_left_out_is_counted():
    rows = sweep_rows(range(1, 60), strategies=("loop", "indexing"))
    factors = {row.case.seq_len: 1 + row.case.seq_len / 10 for row in rows}
    slower = changed("write.loop", lambda row: times(row, factors[row.case.seq_len]), rows)
    table = report.cells_table(compared(rows, slower).gate.comparison)
    assert [row[1] for row in table.rows[:2]] == ["seq_len=59", "seq_len=58"]
    assert len(table.rows) == report.MOST_CELLS
    everything = report.cells_table(compared(rows, slower).gate.comparison, None)
    left = len(everything.rows) - report.MOST_CELLS
    assert table.note == (f"{left} of {len(everything.rows)} are left out; --json has them all.")
    assert everything.note == ""
    summary = report.summary_table(compared(rows, slower).gate.comparison)
    assert [row[0] for row in summary.rows] == ["write.loop", "write.indexing"]


def test_strategies_are_named_with_what_is_unusual_alone():
    assert report.subject("write.a", "run", "wall") == "write.a"
    assert report.subject("write.a", "prepare", "device", "cold") == (
        "write.a, prepare, device clock, cold"
    )


def test_what_broke_names_its_command_once():
    new = changed("write.loop", failed)
    new = [
        dataclasses.replace(row, repro="kvbench run again")
        if (row.strategy, row.case.seq_len) == ("write.loop", 1)
        else row
        for row in new
    ]
    assert report.commands(compared(ROWS, new)) == [
        "write.loop failed: it [broke]\n  kvbench run again"
    ]
    assert report.commands(compared(ROWS, without("write.loop"))) == []


def test_the_rule_and_the_noise_are_said():
    told = report.explanation(compared(ROWS, ROWS, Rules(least_effect=0.2)).gate.comparison)
    assert told[0] == "Cells: 0 SLOWER, 0 FASTER, 12 SAME, 0 UNSURE."
    assert "p under 0.01 after correction for 12 cells" in told[2]
    assert "by 20 % or more" in told[2]


@pytest.mark.parametrize(
    ("share", "text"), [(0.05, "5 %"), (0.0123, "1.2 %"), (0.00012, "0.012 %"), (1.5, "150 %")]
)
def test_shares_are_in_percent(share, text):
    assert format_share(share) == text


def test_ratios_have_their_interval():
    assert format_ratio(1.1234, 1.1, 1.14) == "1.12x (1.10 to 1.14)"


# Markdown.


def test_markdown_begins_with_the_conclusion_and_folds_the_details():
    slower = changed("write.loop", lambda row: times(row, 2))
    text = markdown(compared(ROWS, without("write.indexing", slower), notes=("A note.",)))
    assert text.splitlines()[0] == (
        "### SLOWER: 1 strategy, 3 cells of 9; LOST: 3 cells (3 missing)"
    )
    before, _, folded = text.partition("<details>")
    assert "| `write.loop` | 3 | 2.00x" in before
    for words in ("<summary>Cells that differ", "<summary>Lost: timed", "- A note."):
        assert words in f"<details>{folded}"
    assert text.count("<details>") == text.count("</details>") == 3
    assert "Cut," not in text


HOSTILE = "no <b> | `tick` @somebody #12\nsecond line </details>"


def test_what_strategies_say_is_no_markup():
    new = changed("write.loop", lambda row: failed(row, reason=HOSTILE))
    text = markdown(compared(ROWS, new, notes=("by @somebody in <b>",), tree="@me/x"))
    (line,) = (line for line in text.splitlines() if line.startswith("| `write.loop`"))
    assert line.endswith("| `no <b> \\| 'tick' @somebody #12 second line </details>` |")
    outside = re.sub(r"`[^`\n]*`", "", re.sub(r"```.*?```", "", text, flags=re.DOTALL))
    assert "@" not in outside
    assert outside.count("</details>") == text.count("<details>")
    assert "<b>" not in outside


def test_markdown_fits_a_comment_and_says_what_was_cut():
    rows = sweep_rows(range(1, 400), strategies=("loop", "indexing"), batch=3)
    new = changed(
        "write.indexing", lambda row: failed(row, reason=f"{row.case.seq_len}" * 90), rows
    )
    new = changed("write.loop", lambda row: times(row, 2), new)
    found = compared(rows, new)
    text = markdown(found)
    assert 0.9 * MOST_BYTES < len(text.encode()) <= MOST_BYTES
    assert "Cut, since a comment takes no more: " in text
    cut = sum(int(n) for n in re.findall(r"(\d+) of [\d,]+ rows of “", text))
    shown = len(re.findall(r"^\| `write", text, re.MULTILINE))
    assert shown + cut == sum(len(table.rows) for table in report.tables(found, None))
    assert text.count("<details>") == text.count("</details>")
    tiny = markdown(found, 3000)
    assert len(tiny.encode()) <= 3000
    assert tiny.startswith("### SLOWER")


# JSON.


def test_json_has_everything_unrounded():
    slower = changed("write.loop", lambda row: times(row, 2 / 3))
    new = [*without("write.indexing", slower), result("write.new", status="incorrect")]
    found = compared(ROWS, new, notes=("A note.",), tree="main")
    told = json.loads(as_json(found))
    comparison = found.gate.comparison
    assert told["conclusion"] == report.conclusion(found.gate)
    assert told["regressed"] is True
    assert told["base"]["folder"] == "runs/base"
    assert (told["new"]["tree"], told["new"]["device"]) == ("main", "cpu")
    assert [cell["ratio"] for cell in told["cells"]] == [
        each.ratio.median for each in comparison.judged
    ]
    cell, judged = told["cells"][0], comparison.judged[0]
    assert cell["case"] == judged.cell.case.fields()
    assert (cell["low"], cell["high"]) == (judged.ratio.low, judged.ratio.high)
    assert (cell["base_s"], cell["new_s"]) == (judged.base_s, judged.new_s)
    assert cell["repro"] == "kvbench run"
    assert sum(told["counts"].values()) == len(told["cells"]) == 9
    assert {each["status"] for each in told["lost"]} == {"missing"}
    assert [(each["strategy"], each["status"]) for each in told["broken"]] == [
        ("write.new", "incorrect")
    ]
    assert told["notes"] == ["A note."]


def test_every_field_of_the_json_is_documented():
    told = json.loads(as_json(compared(ROWS, without("write.loop"))))
    parts = [told, told["base"], told["rules"], told["cells"][0], told["summaries"][0]]
    parts += told["lost"][:1]
    names = {name for part in parts for name in part}
    assert {name for name in names if f"`{name}`" not in comparison_json.__doc__} == set()


def test_json_of_a_renamed_strategy_has_the_commands_of_the_new_one():
    new = called("write.loop", ROWS, "write.new")
    rules = Rules(renamed=(("write.loop", "write.new"),))
    told = json.loads(as_json(compared(ROWS, new, rules)))
    assert told["rules"]["renamed"] == [["write.loop", "write.new"]]
    assert len(told["cells"]) == 12
    assert told["lost"] == told["new_cells"] == []


def test_the_defaults_of_the_command_are_those_of_the_judge():
    options = {option.name: option.default for option in cli_compare.ab.params}
    assert options["least_effect"] == judge.LEAST_EFFECT
    assert options["significance"] == judge.SIGNIFICANCE
    assert options["processes"] == PROCESSES
    assert (cli_compare._A, cli_compare._B) == LABELS


# Whether two runs may be compared.


def run(rows=ROWS, **fields):
    return Run("run", run_info(**fields), tuple(rows), ())


GPU = {"uuid": "A", "driver": "580", "power_limit_w": 700.0}


@pytest.mark.parametrize(
    ("fields", "which", "words"),
    [
        ({"environment": environment(device_name="H200")}, 0, "device_name 'Made CPU' and 'H200'"),
        ({"environment": environment(usable_cpus=4)}, 0, "usable_cpus 2 and 4"),
        ({"environment": environment(device="cuda:1")}, 0, "device 'cpu' and 'cuda:1'"),
        ({"cache": "cold"}, 0, "cache 'hot' and 'cold'"),
        ({"environment": environment(torch="2.9.0")}, 1, "torch '2.13.0' and '2.9.0'"),
        ({"environment": environment(git_commit="abc")}, 1, "git_commit None and 'abc'"),
        ({"call_budget_s": 2.0}, 1, "call_budget_s 1.0 and 2.0"),
        ({"environment": environment(cpu_governor="powersave")}, 2, "cpu_governor None and"),
    ],
)
def test_what_differs_is_refused_or_said(fields, which, words):
    kinds = (other_machine, other_versions, other_settings)
    found = [kind(run(), run(**fields)) for kind in kinds]
    assert [len(each) for each in found] == [int(i == which) for i in range(3)]
    assert words in found[which][0]
    assert [kind(run(**fields), run(**fields)) for kind in kinds] == [[], [], []]


def test_gpus_are_told_apart_by_their_uuid():
    one = run(environment=environment(device="cuda:0", gpu=GPU))
    moved = run(environment=environment(device="cuda:1", gpu=GPU))
    assert other_machine(one, moved) == []
    other = run(environment=environment(device="cuda:0", gpu={**GPU, "uuid": "B"}))
    assert other_machine(one, other) == ["uuid of the GPU 'A' and 'B'"]
    slow = run(environment=environment(device="cuda:0", gpu={**GPU, "power_limit_w": 300.0}))
    assert other_settings(one, slow) == ["power_limit_w of the GPU 700.0 and 300.0"]
    driver = run(environment=environment(device="cuda:0", gpu={**GPU, "driver": "1"}))
    assert other_versions(one, driver) == ["driver of the GPU '580' and '1'"]


def test_sessions_meet_where_they_have_cases_in_common():
    """A merged run is compared machine by machine."""
    one, other = (environment(device=f"cuda:{i}", gpu={"uuid": str(i)}) for i in range(2))
    later = Resumption(created="", command="", environment=other)
    rows = [dataclasses.replace(row, session=int(row.case.seq_len == 8)) for row in ROWS]
    merged = run(rows, environment=one, resumptions=(later,))
    assert other_machine(merged, merged) == []
    assert other_machine(merged, run(environment=one)) == ["uuid of the GPU '1' and '0'"]
    of_one = [row for row in ROWS if row.case.seq_len != 8]
    assert other_machine(merged, run(of_one, environment=one)) == []
