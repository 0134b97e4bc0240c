"""The command line, called in this process as a user would call it."""

import sys
from dataclasses import dataclass

from kvbench import cli, console


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    code: int
    out: str
    err: str


def call(monkeypatch, capsys, *arguments: object) -> Ended:
    """Run the command, on a wide terminal."""
    for each in (console.out, console.err):
        monkeypatch.setattr(each, "width", 200)
    monkeypatch.setattr(sys, "argv", ["kvbench", *map(str, arguments)])
    capsys.readouterr()
    code = 0
    try:
        cli.main()
    except SystemExit as end:
        code = end.code
    return Ended(code, *capsys.readouterr())


def refused(ended: Ended, *parts: str) -> None:
    """A mistake of the user's: one line that names it, and nothing else."""
    (line,) = ended.err.splitlines()
    assert line.startswith("error: ")
    assert [part for part in parts if part not in line] == []
    assert (ended.code, ended.out) == (2, "")
