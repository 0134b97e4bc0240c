"""A comparison as Markdown, for a comment on a pull request or the summary of a job.

What comes from strategies (names, reasons, commands) is shown as code: nobody is mentioned, and no
markup in a reason is taken for ours.
"""

import dataclasses

from kvbench.report.comparison import (
    Compared,
    commands,
    conclusion,
    sentences,
    sides,
    tables,
)
from kvbench.report.tables import Table

MOST_BYTES = 65_000
"""Of a comment GitHub takes 65,536 characters; the rest is for what a workflow writes around it."""
_AS_CODE = {"strategy", "case", "as in", "reason"}
"""Columns whose text is not ours."""
_NOTE_BYTES = 300


def markdown(compared: Compared, most_bytes: int = MOST_BYTES) -> str:
    """The conclusion as a heading, the strategies, and the details folded away.

    Args:
        compared: The two runs.
        most_bytes: So long at most: rows of tables are cut from their ends, which is said.
    """
    head = f"### {conclusion(compared.gate)}\n\n{_quoted(sides(compared))}\n"
    told = "\n".join(f"- {_quoted(text)}" for text in sentences(compared))
    tail = _details("How it was judged", told)
    again = commands(compared)
    if again:
        tail = _details("Commands that fail again", "\n".join(map(_fenced, again))) + tail
    room = most_bytes - _bytes(head + tail) - _NOTE_BYTES
    parts = [head]
    cut = []
    # Each is read before the next one: what is left of the room is for those behind it.
    for index, table in enumerate(tables(compared, None)):
        text, rows = _fitting(_as_code(table), room, folded=index > 0)
        room -= _bytes(text)
        parts.append(text)
        if rows:
            cut.append(f"{rows:,} of {len(table.rows):,} rows of “{table.title}”")
    parts.append(tail)
    if cut:
        parts.append(f"\nCut, since a comment takes no more: {', '.join(cut)}.\n")
    return "\n".join(part for part in parts if part)


def _bytes(text: str) -> int:
    return len(text.encode()) + 1  # and the line's end


def _code(text: str) -> str:
    """Text that is shown as it is, in the middle of a line."""
    line = " ".join(text.replace("`", "'").split())
    return f"`{line}`" if line else ""


def _fenced(text: str) -> str:
    return f"```text\n{text.replace('`', chr(39))}\n```"


def _quoted(text: str) -> str:
    """A sentence of ours with words of others in it."""
    for sign, safe in (("&", "&amp;"), ("<", "&lt;"), ("@", "&#64;"), ("#", "&#35;")):
        text = text.replace(sign, safe)
    return " ".join(text.replace("*", "\\*").split())


def _as_code(table: Table) -> Table:
    rows = tuple(
        tuple(
            _code(cell) if name in _AS_CODE else cell
            for name, cell in zip(table.header, row, strict=True)
        )
        for row in table.rows
    )
    return dataclasses.replace(table, rows=rows)


def _fitting(table: Table, room: int, *, folded: bool) -> tuple[str, int]:
    """A table in so many bytes, and how many of its rows were cut; "" if no row fits."""
    fewest, most = 0, len(table.rows)
    while fewest < most:
        middle = (fewest + most + 1) // 2
        if _bytes(_shown(table, middle, folded=folded)) <= room:
            fewest = middle
        else:
            most = middle - 1
    text = _shown(table, fewest, folded=folded) if fewest else ""
    return text, len(table.rows) - fewest


def _shown(table: Table, rows: int, *, folded: bool) -> str:
    text = dataclasses.replace(table, rows=table.rows[:rows]).markdown()
    if not folded:
        return f"{text}\n"
    _, _, body = text.partition("\n\n")
    return _details(table.title, body)


def _details(title: str, body: str) -> str:
    return f"<details><summary>{title}</summary>\n\n{body}\n\n</details>\n"
