"""What a report says, apart from how it is written: HTML, or Markdown with figures beside it."""

from dataclasses import dataclass
from typing import Literal

from kvbench.report.tables import Table

ChartKind = Literal[
    "launch-overhead",
    "speedup",
    "bandwidth",
    "fastest",
    "layers",
    "breakdown",
    "gather-share",
    "tokens-per-second",
    "amortisation",
]
"""What a chart shows. Figures of a kind have it in their names (`report.plots.Sketch.kind`)."""


@dataclass(frozen=True, slots=True)
class Text:
    """Paragraphs and lists, in Markdown of **strong**, `code`, [links](address) and "- " alone."""

    markdown: str


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart of one op: in HTML one to ask questions of, in Markdown the run's figures of it."""

    kind: ChartKind
    op: str


@dataclass(frozen=True, slots=True)
class Rows:
    """Every row of the run, with its command: filtered in HTML, a CSV file beside Markdown."""


@dataclass(frozen=True, slots=True)
class Details:
    """What is folded away until it is asked for."""

    summary: str
    parts: "tuple[Part, ...]"


Part = Text | Table | Chart | Rows | Details


@dataclass(frozen=True, slots=True)
class Section:
    """One heading and what stands under it."""

    anchor: str
    """Its address in the document, as "answer"."""
    title: str
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Document:
    """A report of one run, the answer first."""

    title: str
    lead: str
    """One paragraph below the title, as a Text's: whose machine, what was measured, when."""
    sections: tuple[Section, ...]
