"""Commands that are written in documents and workflows: in words, and held against the CLI."""

import re
import shlex
from pathlib import Path

import click

from kvbench import cli
from kvbench.presets import PRESETS


def consoles(page: Path) -> list[str]:
    """The lines of a page's consoles that a reader is to type, continued ones joined."""
    blocks = re.findall(r"^```console\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE)
    lines = "".join(blocks).replace("\\\n", " ").splitlines()
    return [line[2:].strip() for line in lines if line.startswith("$ ")]


def split_commands(script: str) -> list[list[str]]:
    """The commands of a script in words, without what joins them and where they write to."""
    found: list[list[str]] = []
    joined = re.sub(r"\d*>&\d+", "", script.replace("\\\n", " "))
    for line in joined.splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;<>")
        lexer.whitespace_split = True
        words: list[str] = []
        for word in [*lexer, ";"]:
            if re.fullmatch(r"[|&;]+", word):
                found += [words] if words else []
                words = []
            else:
                words.append(word)
    return [
        words[: next((i for i, w in enumerate(words) if w[0] in "<>"), None)] for words in found
    ]


def parsed(arguments: list[str]) -> click.Context:
    """A call of kvbench, parsed and not run; a click.UsageError if it does not fit the commands."""
    with click.Context(cli.cli, **cli.cli.context_settings) as group:
        name, command, rest = cli.cli.resolve_command(group, arguments)
        return command.make_context(name, rest, parent=group)


def wrong(arguments: list[str]) -> str:
    """What does not fit in a call of kvbench."""
    try:
        preset = parsed(arguments).params.get("preset")
    except click.UsageError as error:
        return error.format_message()
    return "" if preset in {None, *PRESETS} else f"no preset {preset}"
