"""Git repositories of tests, whatever the user's own git is told to do."""

import os
import subprocess
from pathlib import Path

import pytest

IDENTITY = (*("-c", "user.name=A"), *("-c", "user.email=a@example.com"))


def git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", *IDENTITY, *arguments],  # noqa: S607 - whichever git there is
        cwd=folder,
        check=True,
        capture_output=True,
        text=True,
    )
    return done.stdout.strip()


def commit(folder: Path, message: str) -> str:
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", message)
    return git(folder, "rev-parse", "HEAD")


def isolated(patch: pytest.MonkeyPatch) -> None:
    """Let git, here and in what is tested, read no settings but a repository's own."""
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        patch.delenv(name)
    patch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    patch.setenv("GIT_CONFIG_NOSYSTEM", "1")
