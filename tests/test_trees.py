"""What a side of `kvbench ab` measures: revisions unpacked, folders, interpreters."""

import os
import shutil
import sys
from pathlib import Path

import pytest
from made import contents
from made_git import commit, git, isolated

from kvbench.errors import InputError
from kvbench.sweep import trees
from kvbench.sweep.trees import Tree, refuse_without_code, strategy_files, tree

HERE = Path(sys.executable)


@pytest.fixture
def repository(tmp_path, monkeypatch) -> Path:
    """Two commits and a change that is in neither; "models" is a branch and a folder."""
    isolated(monkeypatch)
    folder = tmp_path / "repository"
    (folder / "kernels").mkdir(parents=True)
    (folder / "models").mkdir()
    git(folder, "init", "--quiet", "--initial-branch", "main")
    (folder / "kernels" / "ours.py").write_text("first\n")
    (folder / "models" / "kept").write_text("kept\n")
    (folder / "script").write_text("#!/bin/sh\n")
    (folder / "script").chmod(0o755)
    (folder / "inside").symlink_to("kernels/ours.py")
    (folder / "outside").symlink_to("/usr/share/nothing/here")
    commit(folder, "First")
    git(folder, "tag", "v1")
    git(folder, "tag", "--annotate", "--message", "Second", "v1-annotated")
    (folder / "kernels" / "ours.py").write_text("second\n")
    commit(folder, "Second")
    git(folder, "branch", "models")
    git(folder, "branch", "feature/fast")
    (folder / "kernels" / "ours.py").write_text("changed\n")
    (folder / "untracked").write_text("untracked\n")
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def unpacked(tmp_path, monkeypatch) -> Path:
    """The folder that revisions are unpacked into, which is empty again afterwards."""
    folder = tmp_path / "unpacked"
    folder.mkdir()
    monkeypatch.setattr(trees.tempfile, "tempdir", str(folder))
    yield folder
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("HEAD", "second\n"),
        ("main", "second\n"),
        ("feature/fast", "second\n"),
        ("HEAD~1", "first\n"),
        ("v1", "first\n"),
        ("v1-annotated", "first\n"),
    ],
)
def test_a_revision_is_unpacked_as_it_was_committed(repository, unpacked, name, words):
    before = contents(repository)
    with tree(name) as found:
        assert found.folder.parent == unpacked
        assert (found.name, found.python, found.installed) == (name, HERE, False)
        assert found.commit == git(repository, "rev-parse", f"{name}^{{commit}}")
        assert (found.folder / "kernels" / "ours.py").read_text() == words
        assert not (found.folder / "untracked").exists()
        assert os.access(found.folder / "script", os.X_OK)
        assert not os.access(found.folder / "models" / "kept", os.X_OK)
        assert (found.folder / "inside").read_text() == words
        assert (found.folder / "outside").readlink() == Path("/usr/share/nothing/here")
    assert not found.folder.exists()
    assert contents(repository) == before
    assert git(repository, "status", "--porcelain") == "M kernels/ours.py\n?? untracked"
    assert git(repository, "worktree", "list").count("\n") == 0


def test_a_short_hash_is_a_revision(repository, unpacked):
    short = git(repository, "rev-parse", "--short", "HEAD~1")
    with tree(short) as found:
        assert found.commit == git(repository, "rev-parse", "HEAD~1")
        assert found.folder.parent == unpacked


@pytest.mark.usefixtures("unpacked")
def test_of_a_revision_all_is_unpacked_from_any_folder_of_the_repository(repository, monkeypatch):
    monkeypatch.chdir(repository / "kernels")
    with tree("HEAD~1") as found:
        assert (found.folder / "models" / "kept").exists()
        # What is here now is not what was measured under this name then.
        assert found.own(Path("ours.py")).read_text() == "first\n"
        assert found.own(Path("../models/kept")).samefile(found.folder / "models" / "kept")


@pytest.mark.usefixtures("repository")
def test_what_was_unpacked_is_gone_after_an_error(unpacked):
    def interrupt() -> None:
        with tree("HEAD"):
            assert len(list(unpacked.iterdir())) == 1
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupt()


@pytest.mark.usefixtures("repository")
def test_what_could_not_be_unpacked_is_gone(unpacked, monkeypatch):
    def full(*_, **__):
        raise OSError("the disk is full")

    monkeypatch.setattr(trees.tarfile, "open", full)
    with pytest.raises(OSError, match="full"), tree("HEAD"):
        pass
    assert unpacked.exists()


def test_a_folder_is_measured_where_it_is(repository):
    for name in (".", "kernels/", str(repository / "kernels"), "./models"):
        with tree(name) as found:
            assert found == Tree(name, HERE, (repository / name).resolve(), None)


@pytest.mark.usefixtures("unpacked")
def test_of_a_branch_and_a_folder_of_one_name_a_separator_tells(repository):
    with tree("models") as branch, tree("models/") as folder, tree("kernels") as no_branch:
        assert branch.commit == git(repository, "rev-parse", "models")
        assert (folder.commit, folder.folder) == (None, repository / "models")
        assert (no_branch.commit, no_branch.folder) == (None, repository / "kernels")


def test_an_interpreter_is_used_by_the_name_that_it_was_given(repository):
    link = repository / "python"
    link.symlink_to(sys.executable)
    for name in ("./python", "python", str(link), sys.executable):
        with tree(name) as found:
            assert found == Tree(name, (repository / name), repository, None, installed=True)


NONSENSE = ("--help", "-x", "--", "a b", "", "HEAD~9", "HEAD^{tree}", "v1..main", "nothing/here")


@pytest.mark.usefixtures("unpacked")
@pytest.mark.parametrize("name", [*NONSENSE, "untracked", "inside"])
def test_nonsense_is_refused_in_a_line(repository, name):
    before = contents(repository)
    with pytest.raises(InputError) as raised, tree(name):
        pass
    assert str(raised.value) == (
        f"{name!r}: expected a revision of the repository in the current folder, the folder of a "
        "tree, or a Python interpreter"
    )
    assert contents(repository) == before


@pytest.mark.parametrize("name", ["HEAD", "main", *NONSENSE])
def test_without_a_repository_there_are_no_revisions(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    with pytest.raises(InputError, match="expected a revision"), tree(name):
        pass


def test_without_git_folders_and_interpreters_are_left(repository, monkeypatch):
    monkeypatch.setenv("PATH", str(repository / "kernels"))
    assert shutil.which("git") is None
    for name in (".", "models", sys.executable):
        with tree(name) as found:
            assert found.commit is None
    with pytest.raises(InputError, match="no git on this machine; expected it for"), tree("HEAD"):
        pass


@pytest.mark.usefixtures("repository", "unpacked")
def test_git_that_does_not_answer_is_not_waited_for(monkeypatch):
    monkeypatch.setattr(trees, "_GIT_S", 0.0)
    with pytest.raises(InputError, match="git rev-parse: expected an answer in 0 s"), tree("HEAD"):
        pass


def test_modules_are_looked_for_in_the_tree_first(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    own = Tree("base", HERE, tmp_path / "base", "c0ffee")
    monkeypatch.delenv("PYTHONPATH", raising=False)
    assert own.environment() == {**os.environ, "PYTHONPATH": str(tmp_path / "base")}
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(["/elsewhere", "beside"]))
    # Its process runs in another folder, where "beside" would be another.
    wanted = [str(tmp_path / "base"), "/elsewhere", str(tmp_path / "beside")]
    assert own.environment()["PYTHONPATH"].split(os.pathsep) == wanted


@pytest.mark.parametrize("python", [HERE, Path("/usr/bin/another")])
def test_an_interpreter_has_what_is_installed_and_nothing_of_here(tmp_path, monkeypatch, python):
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    found = Tree("python", python, tmp_path, None, installed=True).environment()
    assert "PYTHONPATH" not in found
    assert found["PYTHONSAFEPATH"] == "1"


@pytest.mark.usefixtures("unpacked")
def test_a_file_is_the_trees_own_where_one_has_it(repository):
    file, new = Path("kernels/ours.py"), Path("kernels/new.py")
    (repository / new).write_text("new\n")
    with tree("HEAD") as base, tree(".") as work, tree(sys.executable) as installed:
        trees = (base, work, installed)
        assert strategy_files(trees, [file]) == [
            {base.folder / file: file},
            {repository / file: file},
            {repository / file: file},
        ]
        # It came later, or is gone by now: what is here does not stand in for it.
        assert strategy_files((base, work), [new]) == [{}, {repository / new: new}]
        # In neither, or by its whole path, it is the same for both.
        assert strategy_files((base, base), [new]) == [{repository / new: new}] * 2
        whole = repository / new
        assert strategy_files((base, work), [whole]) == [{whole: whole}] * 2


@pytest.mark.usefixtures("unpacked", "repository")
def test_a_file_that_is_nowhere_is_refused():
    with tree("HEAD") as base, tree(".") as work, pytest.raises(InputError) as raised:
        strategy_files((base, work), [Path("kernels/none.py")])
    assert str(raised.value) == (
        "strategy file 'kernels/none.py': neither in HEAD nor in . nor in the current folder; "
        "expected a Python file"
    )


def test_a_tree_that_has_nothing_to_measure_is_refused(repository):
    ours = Path("kernels/ours.py")
    with tree("HEAD") as base, tree(".") as work, tree(sys.executable) as installed:
        for trees_ in ((base, work), (installed, base)):
            with pytest.raises(InputError, match=r"'(HEAD|\.)': no folder kvbench in it; expected"):
                refuse_without_code(trees_, [ours.absolute()])
        refuse_without_code((installed, installed), [])
        refuse_without_code((base, work), [ours])  # it is the strategies that are compared
    (repository / "kvbench").mkdir()
    (repository / "kvbench" / "__init__.py").touch()
    with tree(".") as work:
        refuse_without_code((work, work), [])
