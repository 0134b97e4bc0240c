"""The code that a side of `kvbench ab` measures: a revision, a folder, or an interpreter.

A revision is unpacked into a folder of its own, as `git archive` gives it: no checkout is touched.
"""

import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from kvbench.errors import InputError

_GIT_S = 120.0


@dataclass(frozen=True, slots=True)
class Tree:
    """Where a side's code is, and what runs it."""

    name: str
    """As the user named it."""
    python: Path
    """The interpreter."""
    folder: Path
    """Where its process runs."""
    commit: str | None
    """The revision's; None of a folder or an interpreter."""
    prefix: Path = Path()
    """What the current folder is in the tree: strategy files are looked for there first."""
    installed: bool = False
    """Whether the code is what the interpreter has installed, and nothing of the folder."""

    def environment(self) -> dict[str, str]:
        """The environment of its process: modules are looked for in the folder first.

        An interpreter that the user named has what is installed there, and nothing of the current
        folder's.
        """
        found = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        if self.installed:
            return found | {"PYTHONSAFEPATH": "1"}
        others = os.environ.get("PYTHONPATH")
        folders = [self.folder, *(map(Path, others.split(os.pathsep)) if others else [])]
        # They may be relative to the current folder, and its process runs in another.
        return found | {"PYTHONPATH": os.pathsep.join(str(each.absolute()) for each in folders)}

    def has_code(self) -> bool:
        """Whether it has a kvbench; without one its process would take whatever is installed."""
        return self.installed or (self.folder / "kvbench" / "__init__.py").is_file()

    def own(self, path: Path) -> Path | None:
        """A file of the user's as the tree has it; None if it doesn't."""
        found = self.folder / self.prefix / path
        return found if found.is_file() else None


def strategy_files(trees: Sequence[Tree], files: Sequence[Path]) -> list[dict[Path, Path]]:
    """Where each tree has the user's files of strategies, with what the user called them.

    A file that a tree lacks and another has is new, or gone: no other takes its place. What is in
    no tree, or is named by its whole path, is the same for all.

    Args:
        trees: Those that are measured.
        files: As the user named them.

    Raises:
        InputError: A file is nowhere.
    """
    found: list[dict[Path, Path]] = [{} for _ in trees]
    for file in files:
        own = [tree.own(file) for tree in trees]
        if not any(own):
            if not file.is_file():
                raise InputError(
                    f"strategy file {str(file)!r}: neither in "
                    f"{' nor in '.join(tree.name for tree in trees)} nor in the current folder; "
                    "expected a Python file"
                )
            own = [file.absolute()] * len(trees)
        for of_tree, path in zip(found, own, strict=True):
            if path is not None:
                of_tree[path] = file
    return found


def refuse_without_code(trees: Sequence[Tree], files: Sequence[Path]) -> None:
    """Refuse a tree that has nothing to measure: its times would be those of what is installed.

    Without a kvbench trees are compared by their strategies: one of them then has a file of these.

    Args:
        trees: Those that are to be measured.
        files: The user's files of strategies, as the user named them.

    Raises:
        InputError: A tree has no kvbench, and none has a file of its own.
    """
    if any(tree.own(file) for tree in trees for file in files if not file.is_absolute()):
        return
    for each in trees:
        if not each.has_code():
            raise InputError(
                f"{each.name!r}: no folder kvbench in it; expected a tree of kvbench, or one that "
                "has a file of --load"
            )


@contextmanager
def tree(name: str) -> Iterator[Tree]:
    """The code that a user named, for as long as it is needed.

    Args:
        name: A folder, a Python interpreter, or a revision of the repository that the current
            folder is in. What has a separator in it and exists is no revision; "." is the working
            tree.

    Raises:
        InputError: It is none of these.
    """
    path = Path(name)
    here = Path(sys.executable)
    exists = bool(name) and path.exists()
    as_path = exists and (os.sep in name or name in {os.curdir, os.pardir})
    commit = None if as_path or (exists and shutil.which("git") is None) else _commit(name)
    if commit is not None:
        folder = Path(tempfile.mkdtemp(prefix="kvbench-ab-"))
        try:
            yield Tree(name, here, folder, commit, prefix=_unpack(commit, folder))
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    elif exists and path.is_dir():
        yield Tree(name, here, path.resolve(), None)
    elif exists and path.is_file() and os.access(path, os.X_OK):
        # Not resolved: the interpreter of an environment is a link to another's.
        yield Tree(name, path.absolute(), Path.cwd(), None, installed=True)
    else:
        raise InputError(
            f"{name!r}: expected a revision of the repository in the current folder, the folder "
            "of a tree, or a Python interpreter"
        )


def _commit(revision: str) -> str | None:
    found = _git("rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}")
    return found.decode().strip() if found else None


def _unpack(commit: str, folder: Path) -> Path:
    """Unpack a commit, and say what the current folder is in it."""
    # From the repository's top: archive gives the current folder's part alone otherwise.
    top = _git("rev-parse", "--show-toplevel")
    packed = _git("archive", "--format=tar", commit, where=_path(top) if top else None)
    if packed is None:
        raise InputError(f"revision {commit}: git can't unpack it; expected a whole repository")
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        # As git's own checkout does, with links that lead out of it.
        archive.extractall(folder, filter="tar")
    return Path(_path(_git("rev-parse", "--show-prefix") or b""))


def _path(printed: bytes) -> str:
    return os.fsdecode(printed.removesuffix(b"\n"))


def _git(*arguments: str, where: str | None = None) -> bytes | None:
    """What git prints; None if it fails.

    Raises:
        InputError: There is no git, or it does not answer.
    """
    try:
        done = subprocess.run(  # noqa: S603 - no shell, and a revision can't be taken for an option
            ["git", *arguments],  # noqa: S607 - whichever git the user has
            cwd=where,
            capture_output=True,
            check=False,
            timeout=_GIT_S,
        )
    except FileNotFoundError as error:
        raise InputError("no git on this machine; expected it for a revision") from error
    except subprocess.TimeoutExpired as error:
        raise InputError(f"git {arguments[0]}: expected an answer in {_GIT_S:g} s") from error
    return done.stdout if done.returncode == 0 else None
