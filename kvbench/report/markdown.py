"""A report in Markdown, as a repository shows it: figures lie beside it, rows in a CSV file."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kvbench.report.document import Chart, ChartKind, Details, Document, Part, Rows, Text
from kvbench.report.tables import Table


@dataclass(frozen=True, slots=True)
class Picture:
    """A figure's file, and what it says to who can't see it."""

    address: str
    """From the report, as "plots/write-speedup.png"."""
    alt: str


Pictures = Mapping[tuple[ChartKind, str], Sequence[Picture]]
"""By a chart's kind and op; a run with very many figures has not drawn all."""

_MARKUP, _ESCAPED = re.compile(r"([\\`*<\[\]])"), r"\\\1"
"""What would be markup in the words of a figure: a strategy's name is a user's."""


def markdown(document: Document, pictures: Pictures, rows: str) -> str:
    """The document in GitHub's Markdown.

    Args:
        document: What to write.
        pictures: The figures that there are.
        rows: The address of the CSV file with every row.
    """
    contents = "\n".join(f"- [{s.title}](#{s.anchor})" for s in document.sections)
    parts = [f"# {document.title}", document.lead, contents]
    for section in document.sections:
        parts += [f'<a id="{section.anchor}"></a>', f"## {section.title}"]
        parts += [_part(part, pictures, rows) for part in section.parts]
    return "\n\n".join(part for part in parts if part) + "\n"


def _part(part: Part, pictures: Pictures, rows: str) -> str:
    match part:
        case Text(text):
            return text
        case Table():
            return part.markdown()
        case Chart(kind, op):
            found = pictures.get((kind, op), ())
            return "\n\n".join(f"![{_MARKUP.sub(_ESCAPED, p.alt)}]({p.address})" for p in found)
        case Rows():
            return f"[{rows}]({rows}) has them all; times are in seconds."
        case Details(summary, parts):
            inner = "\n\n".join(filter(None, (_part(inner, pictures, rows) for inner in parts)))
            return f"<details>\n<summary>{summary}</summary>\n\n{inner}\n\n</details>"
