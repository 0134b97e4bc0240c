"""The pages: their commands are run, their links followed, their messages looked up in the code.

Commands that would take long are run with smaller axes, which stand here; what is not run at all is
held against the command line, and the reason stands here, too.
"""

import ast
import filecmp
import fnmatch
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import get_args
from urllib.parse import urlsplit

import pytest
from called import Ended, call
from cogapp import Cog
from commands import consoles, split_commands, wrong

from kvbench import cli, cli_report
from kvbench.analysis.frame import to_frame
from kvbench.axes import AXES
from kvbench.report import style
from kvbench.report.csv import save_rows
from kvbench.report.document import ChartKind
from kvbench.report.markdown import markdown
from kvbench.report.plots import most_telling, sketches
from kvbench.report.save import save_figure
from kvbench.report.sections import compose
from kvbench.store import load
from kvbench.strategies import registry
from kvbench.timing import bandwidth

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.glob("*.md")), ROOT / "results" / "README.md"]
MARKDOWN = [*PAGES, *sorted((ROOT / "results").glob("reference-*/*.md"))]
RUNS = sorted((ROOT / "results").glob("reference-*"))


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


each_page = pytest.mark.parametrize("page", PAGES, ids=name)
each_text = pytest.mark.parametrize("page", MARKDOWN, ids=name)


def prose(page: Path) -> str:
    """A page's text without its blocks of code and what cog reads."""
    text = re.sub(r"<!--.*?-->", "", page.read_text(), flags=re.DOTALL)
    return re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)


def blocks(page: Path, language: str) -> list[str]:
    text = re.sub(r"<!--.*?-->", "", page.read_text(), flags=re.DOTALL)
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


# Commands.

NOT_RUN = {
    "git *": "of another repository, or the clone that this is",
    "cd *": "into that clone",
    "./*": "of GitHub's runner",
    "sudo *": "changes the machine",
    "nvidia-smi *": "needs an NVIDIA GPU",
    "numactl *": "starts GitHub's runner",
    "taskset *": "starts GitHub's runner",
    "python3 -m venv *": "installs from the network",
    "*.venv/bin/pip install *": "installs from the network",
    "*/pytest *": "the suite's own tests run it: test_benchmark_suite.py",
    "*/pytest-benchmark *": "of files that a run of the suite leaves: test_benchmark_suite.py",
    "kvbench ab *": "starts ten processes on two revisions; test_ab.py runs it on small trees",
    "kvbench compare results/*-ab-*": "of what `kvbench ab` leaves; test_ab.py compares it",
    "kvbench compare results/ab/*": "of what `kvbench ab` leaves; test_ab.py compares it",
    "kvbench *--ray *": "starts, or needs, a cluster; test_ray.py has one",
    "kvbench generate *": "needs a model that is fetched; test_generate.py makes one",
    "kvbench audit *": "compiles for minutes; test_audit.py does one kernel of each",
    "kvbench *--device cuda *": "needs a GPU",
    "kvbench *--device cuda": "needs a GPU",
}
"""Commands that are only parsed, as patterns, and why."""

FEW = "-s *.loop -s attend.sdpa_loop -s step.loop+sdpa_loop"
SMALL = {
    "kvbench run *": "--in-process --device cpu --cell-seconds 0.005",
    "kvbench run *--preset *": "-a op=write -a seq_len=1,8 -a batch=1 -a block_size=16 "
    "-a num_kv_heads=2 -a head_dim=16 -a block_order=shuffled -a dtype=fp32",
    "kvbench run *--time-budget *": "--time-budget 0",
    "kvbench run --op attend *": "-a seq_len=8,16 -a batch=1 -a num_heads=8 -a dtype=bf16",
    "kvbench run *op=attend*": "-a seq_len=8,16 -a head_dim=16 -a batch=1",
    "kvbench run *--op step *": "-a seq_len=8,16 -a batch=1 -a num_layers=1",
    "kvbench run *op=step*": "-a seq_len=8 -a num_layers=1,2",
    "kvbench run *op=index*": "-a seq_len=1,8 -a batch=1",
    "kvbench run *op=write*": "-a seq_len=1,8 -a head_dim=16",
    "kvbench run *op=read*": "-a seq_len=1,8 -a head_dim=16",
    "kvbench run *seq_len=512 *": "-a seq_len=512",
    "kvbench run *seq_len=1,512 *": "-a seq_len=1,512",
    "kvbench run *seq_len=1 *": "-a seq_len=1,8 -a batch=2",
    "kvbench run *seq_len=1:512:*": "-a seq_len=1,4,8",
    "kvbench run *num_kv_heads=1:8:*": "-a num_kv_heads=1,2",
    "kvbench check --load *": "-a op=write -a seq_len=1,20 -a head_dim=4 -a layout=NHD,HND "
    "-a slot_dtype=int64,int32",
    "kvbench check -s *": "-a op=write -a seq_len=1,20 -a head_dim=4",
    "kvbench predict --gpu *": "--op write -a seq_len=1,64",
    "kvbench predict --bandwidth *": "-a seq_len=128,256 -a num_heads=8",
    "kvbench doctor": "--device cpu --calibrate 2",
}
"""What is appended, in this order, to commands that match; an axis replaces that of its name."""
ENDINGS = {
    "kvbench doctor*": (0, 1),  # a trial of two cells fails by chance
    "kvbench compare *": (0, 1),  # a handful of samples finds a difference by chance
}
"""Exit codes of commands that may end otherwise than by 0."""


def typed() -> Iterator[tuple[Path, list[str]]]:
    """Every command of every page in words, `kvbench` for its path."""
    for page in PAGES:
        for line in consoles(page):
            for words in split_commands(line):
                while words and re.fullmatch(r"\w+=\S*", words[0]):
                    words = words[1:]  # noqa: PLW2901 - what is set for the command
                if words[0] == ".venv/bin/kvbench":
                    words = ["kvbench", *words[1:]]  # noqa: PLW2901
                yield page, words


TYPED = list(typed())


def fits(words: list[str], pattern: str) -> bool:
    return fnmatch.fnmatchcase(" ".join(words), pattern)


def only_parsed(words: list[str]) -> bool:
    return any(fits(words, pattern) for pattern in NOT_RUN)


def appended(words: list[str], text: str) -> list[str]:
    """The command with more options; an axis that it has gives way to one of that name."""
    ((*options,),) = split_commands(text)
    found = list(words)
    for axis in (option for option in options if re.match(r"\w+=", option)):
        key = axis.partition("=")[0] + "="
        at = next((i for i, word in enumerate(found) if word.startswith(key)), None)
        if at is not None:
            del found[at - 1 : at + 1]
    return [*found, *options]


def small(words: list[str]) -> list[str]:
    found = words
    for pattern, text in SMALL.items():
        if fits(words, pattern):
            found = appended(found, text)
    if words[1] in {"run", "check"} and "-s" not in found:
        found = appended(found, FEW)
    return found


@pytest.fixture
def kvbench_(tmp_path, monkeypatch, capsys):
    """The command in this process, in a folder as a reader has it whose environment is set up.

    What a command registers is forgotten after it.
    """
    for file in ("Makefile", "pyproject.toml", "requirements.txt", "docs/my_strategy.py"):
        (tmp_path / file).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / file, tmp_path / file)
        os.utime(tmp_path / file, (1, 1))  # older than the environment
    (tmp_path / "results").mkdir()
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv" / ".ready").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(bandwidth, "_CPU_BYTES", 1 << 16)
    monkeypatch.setitem(style._RC, "savefig.dpi", 30)
    monkeypatch.setattr(cli, "missing_for_html", lambda: "the page")  # a second for each run
    builtin = dict(registry._STRATEGIES)

    def kvbench_(*arguments: str) -> Ended:
        monkeypatch.setattr(registry, "_STRATEGIES", dict(builtin))
        return call(monkeypatch, capsys, *arguments)

    return kvbench_


def recipe(words: list[str]) -> list[list[str]]:
    """What a make target would run, in an environment that is set up."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("MAKE", "MFLAGS"))}
    done = subprocess.run(
        ["make", "-n", *words[1:]],  # noqa: S607 - whichever make there is
        capture_output=True,
        text=True,
        check=False,
        env=clean,
    )
    assert (done.returncode, done.stderr) == (0, ""), words
    return [line for line in split_commands(done.stdout) if line[0] == ".venv/bin/kvbench"]


def try_out(kvbench_, words: list[str]) -> None:
    """Run a command, small, as far as it is to be run; else see that it would be understood."""
    if words[0] == "make":
        for line in recipe(words):
            if len(words) > 1 and words[1] == "bench":
                try_out(kvbench_, ["kvbench", *line[1:]])
    elif only_parsed(words):
        assert words[0] != "kvbench" or wrong(words[1:]) == "", words
    elif words[0].endswith("/python"):
        compile((ROOT / words[1]).read_text(), words[1], "exec")
    else:
        assert words[0] == "kvbench", f"{words}: say in NOT_RUN why it can't be run"
        ended = kvbench_(*small(words)[1:])
        codes = next((c for pattern, c in ENDINGS.items() if fits(words, pattern)), (0,))
        assert (ended.code in codes, ended.err) == (True, ""), (small(words), ended)
        assert ended.out


LONG = {DOCS / "axes.md", DOCS / "claims.md", DOCS / "strategies.md"}
"""Pages with so many runs that their commands are tried by `make test-slow`."""


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(p, marks=pytest.mark.slow if p in LONG else ())
        for p in PAGES
        if p in {page for page, _ in TYPED}
    ],
    ids=name,
)
def test_the_commands_of_a_page_can_be_typed_one_after_the_other(page, kvbench_):
    for words in (words for own, words in TYPED if own == page):
        try_out(kvbench_, words)


@pytest.mark.slow
def test_the_example_of_a_strategy_is_right_in_every_case(kvbench_):
    ended = kvbench_(
        "check", "--load", "docs/my_strategy.py", "-s", "write.mine", "--device", "cpu"
    )
    assert (ended.code, ended.err) == (0, "")


@pytest.mark.parametrize("pattern", [*NOT_RUN, *SMALL, *ENDINGS])
def test_nothing_is_excused_that_no_page_has(pattern):
    bench = [["kvbench", "run", *words[-1][5:].split()] for _, words in TYPED if "bench" in words]
    assert any(fits(words, pattern) for words in [*bench, *(words for _, words in TYPED)])


def test_a_command_that_is_none_is_found(kvbench_):
    for words in (["kvbench", "measure"], ["kvbench", "run", "--fast"], ["rm", "-r", "results"]):
        with pytest.raises(AssertionError):
            try_out(kvbench_, words)
    with pytest.raises(AssertionError):
        try_out(kvbench_, ["make", "everything"])


@each_page
def test_commands_stand_in_consoles_alone(page):
    languages = re.findall(r"^```(\w*)\n.*?^```$", page.read_text(), re.DOTALL | re.MULTILINE)
    assert set(languages) <= {"console", "python", "text"}


@each_page
def test_python_on_a_page_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for number, block in enumerate(blocks(page, "python")):
        exec(compile(block, f"{name(page)}, block {number}", "exec"), {})  # noqa: S102 - our own


# Links.

_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^()\s]+(?:\([^()\s]*\))?[^()\s]*)\)")


def links(page: Path) -> list[tuple[bool, str, str]]:
    """(whether it is an image, text, target) of every link."""
    text = re.sub(r"`[^`]*`", lambda code: code[0].replace("[", " ").replace("]", " "), prose(page))
    return [(bool(mark), text, target) for mark, text, target in _LINK.findall(text)]


def anchors(page: Path) -> set[str]:
    """The addresses of a page's headings, as GitHub makes them, and those that it names itself."""
    named = re.findall(r'<a id="([\w-]+)"></a>', page.read_text())
    found: dict[str, int] = dict.fromkeys(named, 0)
    for heading in re.findall(r"^#{1,6} +(.*?)(?: +#+)?$", prose(page), re.MULTILINE):
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        words = re.sub(r"[*`]", "", words).strip().lower()
        slug = re.sub(r"[^\w\- ]", "", words).replace(" ", "-")
        count = found[slug] = found.get(slug, -1) + 1
        if count:
            found[f"{slug}-{count}"] = 0
    return set(found)


def dead(page: Path, target: str) -> str:
    """What is wrong with a link, "" if nothing."""
    parts = urlsplit(target)
    if parts.scheme or parts.netloc:
        return "" if parts.scheme == "https" and "." in parts.netloc else "expected https"
    path = (page.parent / parts.path).resolve() if parts.path else page
    if not path.is_relative_to(ROOT) or not path.exists():
        return "no such file"
    if parts.fragment and parts.fragment not in anchors(path):
        return f"no such heading among {sorted(anchors(path))}"
    return ""


@each_text
def test_no_link_is_dead(page):
    for _, text, target in links(page):
        assert dead(page, target) == "", f"[{text}]({target})"


@each_text
def test_every_image_says_what_it_shows(page):
    texts = [text for image, text, _ in links(page) if image]
    assert all(len(text.split()) > 2 for text in texts)
    assert len(set(texts)) == len(texts)
    assert "<img" not in prose(page)


def test_links_that_are_dead_are_found(tmp_path):
    page = DOCS / "README.md"
    assert dead(page, "nothing.md") == "no such file"
    assert dead(page, "../../etc/passwd") == "no such file"
    assert "no such heading" in dead(page, "cli.md#kvbench-walk")
    assert dead(page, "http://example.org") == "expected https"
    assert dead(page, "cli.md#kvbench-run") == ""
    made = tmp_path / "made.md"
    made.write_text(
        "# A `b`, c?\n\n## Twice\n\n## Twice\n\n```text\n# none\n```\n\n![](x_(1).png)\n"
    )
    assert anchors(made) == {"a-b-c", "twice", "twice-1"}
    assert links(made) == [(True, "", "x_(1).png")]


def test_the_index_names_every_page():
    named = {(DOCS / target).resolve() for _, _, target in links(DOCS / "README.md")}
    assert {*PAGES} - {DOCS / "README.md"} <= named


def test_the_readme_leads_to_every_page():
    named = {(ROOT / target.partition("#")[0]).resolve() for _, _, target in links(PAGES[0])}
    assert {*PAGES} - {PAGES[0], DOCS / "README.md"} <= named


# What there is, is told.


def test_every_command_axis_and_strategy_is_told_of():
    told = (DOCS / "cli.md").read_text()
    assert [c for c in cli.cli.commands if f"\n## kvbench {c}\n" not in told] == []
    told = (DOCS / "axes.md").read_text()
    assert [axis for axis in AXES if f"| `{axis}` |" not in told] == []
    told = (DOCS / "strategies.md").read_text()
    named = [s.name for s in registry.all_strategies() if not s.name.startswith("attend.sdpa_")]
    assert [strategy for strategy in named if f"| `{strategy}` |" not in told] == []
    assert "| `attend.sdpa_*` |" in told


def test_help_is_told_whatever_the_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setattr(sys, "path", list(sys.path))
    try:
        assert Cog().main(["cog", "--check", "-I", str(DOCS), str(DOCS / "cli.md")]) == 0
    finally:
        sys.modules.pop("tables", None)


def made(target: str) -> str:
    """What make would do for a target."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("MAKE", "MFLAGS"))}
    command = ["make", "-n", "-C", ROOT, target]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=clean)
    return done.stdout


@pytest.mark.parametrize("target", ["check", "docs"])
def test_every_page_that_is_generated_is_looked_at(target):
    (line,) = (line for line in made(target).splitlines() if "/cog " in line)
    generated = [name(page) for page in PAGES if "[[[cog" in page.read_text()]
    assert {"README.md", "docs/cli.md"} <= set(generated) <= set(line.split())


# Messages that are quoted.


def said() -> list[str]:
    """Every string of the package, with … for what is filled in; and the Makefile."""
    found = [(ROOT / "Makefile").read_text()]
    for file in sorted((ROOT / "kvbench").rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
            if isinstance(node, ast.JoinedStr):
                parts = (p.value if isinstance(p, ast.Constant) else "…" for p in node.values)
                found.append(re.sub("…+", "…", "".join(map(str, parts))))
    return found


def quoted() -> list[str]:
    text = (DOCS / "troubleshooting.md").read_text()
    return re.findall(r"^> `(.*)`$", text, re.MULTILINE)


@pytest.fixture(scope="module")
def strings() -> list[str]:
    return said()


@pytest.mark.parametrize("message", quoted())
def test_a_message_that_is_quoted_is_one_of_the_codes(message, strings):
    assert any(message in string for string in strings)


def test_a_message_that_the_code_has_not_is_found(strings):
    assert not any("expected a larger hammer" in string for string in strings)
    assert any("axis …: … is not an integer" in string for string in strings)


def test_symptoms_are_many_and_each_has_its_cause():
    symptoms = re.split(r"^### ", prose(DOCS / "troubleshooting.md"), flags=re.MULTILINE)[1:]
    assert len(symptoms) >= 20
    assert len(quoted()) >= 20
    for symptom in symptoms:
        title, _, body = symptom.partition("\n")
        assert re.search(r"^[^>\s]", body, re.MULTILINE), title


# Figures of the committed runs.


@pytest.mark.parametrize("kind", get_args(ChartKind))
def test_how_to_read_each_kind_of_figure_is_shown_by_one(kind):
    shown = [Path(target).stem for image, _, target in links(DOCS / "reading-curves.md") if image]
    assert any(re.fullmatch(rf"(\w+)-{kind}(-.*)?", stem) for stem in shown)


DRAWING = ("matplotlib", "numpy", "pandas", "scipy")


def pinned(package: str) -> str:
    pins = (ROOT / "requirements.txt").read_text()
    return re.search(rf"^{package}==(\S+)", pins, re.MULTILINE)[1]


@pytest.mark.parametrize("run", RUNS, ids=name)
def test_committed_figures_and_reports_are_those_that_are_made(run, tmp_path):
    other = [p for p in DRAWING if importlib.metadata.version(p) != pinned(p)]
    if other:
        pytest.skip(f"drawn by other versions of {', '.join(other)} than requirements.txt has")
    done = load(run)
    frame = to_frame(done.results)
    drawn = most_telling(sketches(frame, done.info))
    committed = {path.stem for path in (run / "plots").glob("*.svg")}
    assert committed == {sketch.name for sketch in drawn}, "run: make docs"
    assert {path.stem for path in (run / "plots").glob("*.png")} == committed
    for sketch in drawn:
        _, svg = save_figure(sketch.draw(), tmp_path, sketch.name)
        same = svg.read_bytes() == (run / "plots" / svg.name).read_bytes()
        assert same, f"{sketch.name} is stale; run: make docs"
    document = compose(done, frame, done.info.layers)
    written = markdown(document, cli_report._pictures(drawn), cli_report.TABLE_FILE)
    assert written == (run / cli_report.MARKDOWN_FILE).read_text(), "stale; run: make docs"
    save_rows(frame, tmp_path / cli_report.TABLE_FILE)
    same = filecmp.cmp(*(at / cli_report.TABLE_FILE for at in (run, tmp_path)), shallow=False)
    assert same, "stale; run: make docs"
