"""A report as one HTML file: nothing is fetched, the same run gives the same bytes.

Text and tables stand in the file; charts and the list of rows are made by the scripts in `web`, of
the data that `payload` gives. A strategy's name, a reason and a path are a user's: they go into the
page as text, escaped by Jinja, or as data, which can't end its script element.
"""

import base64
import hashlib
import importlib.resources
import re
from collections.abc import Iterator, Mapping
from typing import Any, assert_never

import jinja2
import pandas as pd
from markdown_it import MarkdownIt
from markupsafe import Markup

from kvbench.report.document import Chart, Details, Document, Part, Rows, Section, Text
from kvbench.report.payload import payload, to_json
from kvbench.report.tables import Table
from kvbench.store import Run

_SCRIPTS = (
    *("data.js", "dom.js", "units.js", "theme.js", "address.js", "markers.js", "filters.js"),
    *("line_settings.js", "line_points.js", "line_context.js", "lines.js", "stacks.js"),
    *("shares.js", "fastest.js", "tables.js", "rows.js", "chart.js", "main.js"),
)
"""In this order: each uses what is above it."""
_STYLES = ("page.css", "parts.css", "print.css")

_CHARTS = {
    "launch-overhead": (
        "{op}: time per call",
        "Where a line is flat, calling costs what it costs whatever is moved; where it rises with "
        "a slope of 1, the work does.",
    ),
    "speedup": (
        "{op}: speed-up",
        "How many times faster than {reference}, from the ratios within each round.",
    ),
    "bandwidth": (
        "{op}: bandwidth",
        "The least bytes that a call has to move, by the time that it took. Dashed: the best copy "
        "measured in the same run.",
    ),
    "fastest": (
        "{op}: which strategy is fastest",
        "Each cell has the colour of the strategy whose step costs least.",
    ),
    "layers": (
        "{op}: cost of a step by its layers",
        "A step prepares once and runs once a layer: what a prepare costs is spread thinner the "
        "more layers there are.",
    ),
    "breakdown": (
        "{op}: what a call's time is made of",
        "By the fit of time = call + launches + bytes / bandwidth; the mark is what was measured.",
    ),
    "gather-share": (
        "{op}: gather + attention, and reading blocks in place",
        "What a gather takes of an attention, and what attentions take that need none.",
    ),
    "tokens-per-second": (
        "{op}: tokens per second",
        "Whole decode steps: one token for each sequence.",
    ),
    "amortisation": (
        "{op}: what prepare, write and attend take",
        "Of each token and layer; what is prepared once a step is spread over its layers.",
    ),
}
"""The heading that a chart begins with, and how to read it.

Where a name is in braces, it is the op's: its own, and that of the strategy that is 1.
"""

_MARKDOWN = MarkdownIt("zero").enable(["emphasis", "backticks", "link", "list", "escape"])
"""What `document.Text` may have; HTML in it stays text."""

_WHOLE = re.compile(
    r"(\([^()]* to [^()]*\)(?: [%µ\w/]+)?|\b\d[\d.,]* (?:%|[nµm]?s|[kMGT]?i?B(?:/s)?)(?!\w))"
)
"""What stays on one line: an interval with its unit, a number with its own."""
_LONG_TEXT = 40
"""Characters of a cell that has no room beside others on a phone: its row becomes a card."""
_TEXT_COLUMNS = 4
"""So many columns of text have no room beside each other there either."""


def html(document: Document, run: Run, frame: pd.DataFrame, layers: int) -> str:
    """A report as one HTML file.

    Args:
        document: What it says.
        run: The run that it is of.
        frame: The run's rows (`analysis.frame.to_frame`).
        layers: Layers of a step, where the page asks for nothing else.
    """
    # In here: what is imported above is read in no time, the library's is 5 MB.
    from plotly.offline import get_plotlyjs  # noqa: PLC0415

    scripts = [Markup(script) for script in (get_plotlyjs(), *map(_web, _SCRIPTS))]  # noqa: S704
    hashes = " ".join(f"'sha256-{_digest(script)}'" for script in scripts)
    data = {
        **payload(run, frame, layers),
        "how": {kind: words for kind, (_, words) in _CHARTS.items()},
    }
    references = {op: of["reference"] for op, of in data["ops"].items()}
    names = _Names({"top", "run-data", "theme", *(s.anchor for s in document.sections)})
    return _template().render(
        title=document.title,
        lead=_inline(document.lead),
        sections=[_section(section, names, references) for section in document.sections],
        policy=f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'",
        styles=[Markup(_web(name)) for name in _STYLES],  # noqa: S704 - ours
        # Its only "<" are escaped by `to_json`.
        data=Markup(to_json(data)),  # noqa: S704
        scripts=scripts,
    )


def _web(name: str) -> str:
    return importlib.resources.files("kvbench.report").joinpath("web", name).read_text("utf-8")


def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(_web),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("report.html.jinja")


def _digest(script: str) -> str:
    """What a Content-Security-Policy knows a script by."""
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


class _Names:
    """Names of elements, each given once."""

    def __init__(self, taken: set[str]) -> None:
        self._taken = taken

    def new(self, wanted: str) -> str:
        """The name itself, or with a number behind it."""
        name = re.sub(r"[^\w-]+", "-", wanted)
        number = 2
        found = name
        while found in self._taken:
            found, number = f"{name}-{number}", number + 1
        self._taken.add(found)
        return found


def _section(
    section: Section, names: _Names, references: Mapping[str, str | None]
) -> dict[str, Any]:
    return {
        "anchor": section.anchor,
        "title": section.title,
        "parts": list(_parts(section.parts, names, references)),
    }


def _parts(
    parts: tuple[Part, ...], names: _Names, references: Mapping[str, str | None]
) -> Iterator[dict[str, Any]]:
    """Parts as the template takes them."""
    for part in parts:
        match part:
            case Text():
                yield {"kind": "text", "html": Markup(_MARKDOWN.render(part.markdown))}  # noqa: S704
            case Table():
                yield {"kind": "table", "name": names.new("table"), **_table(part)}
            case Chart():
                title, how = _CHARTS[part.kind]
                yield {
                    "kind": "chart",
                    "name": names.new(f"{part.op}-{part.kind}"),
                    "chart": part,
                    "title": title.format(op=part.op),
                    "how": how.format(reference=references.get(part.op) or "any other"),
                }
            case Rows():
                yield {"kind": "rows", "name": names.new("rows")}
            case Details():
                inner = list(_parts(part.parts, names, references))
                yield {"kind": "details", "summary": part.summary, "parts": inner}
            case _:
                assert_never(part)


def _table(table: Table) -> dict[str, Any]:
    """A table as the template takes it: its cells know what they are called and may be broken at.

    A blank at the head of a row means what stands above it: a card says that in full.
    """
    numeric = table.numeric()
    above: list[str] = []
    rows = []
    for row in table.rows:
        head = next((i for i, cell in enumerate(row) if cell), len(row))
        above = [*above[:head], *row[head:]]
        rows.append(
            [
                {
                    "html": _breakable(cell),
                    "number": number,
                    "broken": number and (", " in cell or " (" in cell),
                    "label": label,
                    "above": above[place] if place < head else "",
                }
                for place, (cell, label, number) in enumerate(
                    zip(row, table.header, numeric, strict=True)
                )
            ]
        )
    long = any(len(cell) > _LONG_TEXT for row in table.rows for cell in row)
    return {
        "table": table,
        "numeric": numeric,
        "rows": rows,
        "cards": long or numeric.count(False) >= _TEXT_COLUMNS,
    }


def _breakable(text: str) -> Markup:
    """Text that may be broken within a pair of names, "a+b", and not within what is `_WHOLE`."""
    return Markup().join(
        Markup('<span class="whole">{}</span>').format(part)
        if place % 2
        else Markup("+<wbr>").join(re.split(r"(?<=\w)\+(?=\w)", part))
        for place, part in enumerate(_WHOLE.split(text))
    )


def _inline(markdown: str) -> Markup:
    return Markup(_MARKDOWN.renderInline(markdown))  # noqa: S704 - HTML in it stays text
