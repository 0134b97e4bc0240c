"""The workflows of .github: linted, true to the commands that they name, and careful of the runner.

Their expressions are evaluated and their scripts run here, as far as that goes without GitHub.
"""

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from commands import consoles, split_commands, wrong
from ruamel.yaml import YAML

ROOT = Path(__file__).parents[1]
GITHUB = ROOT / ".github"
WORKFLOWS = sorted((GITHUB / "workflows").glob("*.yml"))
SCRIPTS = sorted((GITHUB / "scripts").iterdir())
GUIDE = ROOT / "docs" / "gpu-runner.md"
TARGETS = re.findall(r"^\.PHONY: (\S+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
BIN = Path(sys.executable).parent

each_workflow = pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)


def read(path: Path) -> dict:
    return YAML(typ="safe", pure=True).load(path.read_text())


def jobs(path: Path) -> dict[str, dict]:
    return read(path)["jobs"]


def scripts(path: Path) -> list[str]:
    """What the workflow's steps run."""
    return [step["run"] for job in jobs(path).values() for step in job["steps"] if "run" in step]


def ended(*command: str | Path, **options) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)


# The linters, and that they find what is wrong.


def schema_faults(path: Path) -> str:
    done = ended(BIN / "check-jsonschema", "--builtin-schema", "vendor.github-workflows", path)
    return "" if done.returncode == 0 else done.stdout + done.stderr


def audit(*arguments: str | Path) -> set[str]:
    """The names of zizmor's findings, by its strictest persona."""
    options = ("--offline", "--no-progress", "--persona", "auditor", "--format", "json")
    done = ended(BIN / "zizmor", *options, "--strict-collection", *arguments)
    return {finding["ident"] for finding in json.loads(done.stdout)}


def doctored(tmp_path: Path, name: str, old: str, new: str) -> Path:
    """A copy of a workflow with one thing changed."""
    text = (GITHUB / "workflows" / name).read_text()
    assert old in text
    path = tmp_path / ".github" / "workflows" / name
    path.parent.mkdir(parents=True)
    path.write_text(text.replace(old, new, 1))
    return path


def test_the_workflows_are_those_that_the_guide_speaks_of():
    assert [path.name for path in WORKFLOWS] == ["gpu.yml", "move-baseline.yml", "tests.yml"]


@each_workflow
def test_a_workflow_fits_the_schema(path):
    assert schema_faults(path) == ""


def test_the_auditor_finds_nothing():
    assert audit("--config", GITHUB / "zizmor.yml", GITHUB) == set()


def test_what_the_auditor_is_told_to_ignore_is_all_there():
    rules = read(GITHUB / "zizmor.yml")["rules"]
    assert audit("--no-config", GITHUB) == set(rules) == {"self-hosted-runner", "artipacked"}


def test_a_key_that_does_not_exist_is_found(tmp_path):
    path = doctored(tmp_path, "tests.yml", "timeout-minutes: 60", "timeout: 60")
    assert "timeout" in schema_faults(path)


@pytest.mark.parametrize(
    ("name", "old", "new", "finding"),
    [
        ("gpu.yml", '"$BASE"', "${{ github.head_ref }}", "template-injection"),
        ("gpu.yml", "@08c6903cd8c0fde910a37f88322edcfb5dd907a8", "@v5", "unpinned-uses"),
        ("gpu.yml", "pull_request:", "pull_request_target:", "dangerous-triggers"),
        ("tests.yml", "contents: read", "contents: write", "excessive-permissions"),
        ("tests.yml", "persist-credentials: false", "fetch-depth: 1", "artipacked"),
    ],
)
def test_what_is_unsafe_is_found(tmp_path, name, old, new, finding):
    path = doctored(tmp_path, name, old, new)
    assert finding in audit("--config", GITHUB / "zizmor.yml", path)


# The scripts of the steps, and the commands in them.


@each_workflow
def test_steps_run_in_a_bash_that_fails_with_its_pipes(path):
    # Named, it is run as `bash --noprofile --norc -eo pipefail`; the default has no pipefail.
    assert read(path)["defaults"] == {"run": {"shell": "bash"}}
    assert not any("shell" in step for job in jobs(path).values() for step in job["steps"])


@each_workflow
def test_the_scripts_of_steps_are_bash(path):
    for script in scripts(path):
        done = ended("bash", "-n", "-c", script)
        assert (done.returncode, done.stderr) == (0, ""), script


def test_what_is_no_bash_is_found():
    assert ended("bash", "-n", "-c", "if true; then echo").returncode != 0


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_a_script_is_bash_and_can_be_started(path):
    assert os.access(path, os.X_OK)
    assert ended("bash", "-n", path).returncode == 0


def guided() -> list[list[str]]:
    """The commands in the consoles of the guide."""
    return [words for line in consoles(GUIDE) for words in split_commands(line)]


NAMED = [
    words for path in WORKFLOWS for script in scripts(path) for words in split_commands(script)
]


def called(*names: str) -> list[list[str]]:
    """What follows the program in each distinct call of it."""
    found = [words[1:] for words in [*NAMED, *guided()] if words[0] in names]
    return [list(words) for words in dict.fromkeys(map(tuple, found))]


KVBENCH = called("kvbench", ".venv/bin/kvbench")


def test_every_command_of_the_package_is_looked_at():
    assert {arguments[0] for arguments in KVBENCH} >= {"ab", "compare", "doctor", "plot"}


@pytest.mark.parametrize("arguments", KVBENCH, ids=" ".join)
def test_kvbench_has_what_workflows_and_guide_call(arguments):
    assert wrong(arguments) == ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["measure"], "No such command"),
        (["doctor", "--gate"], "No such option"),
        (["plot"], "Missing argument"),
        (["run", "--preset", "tiny"], "no preset tiny"),
    ],
)
def test_what_kvbench_has_not_is_found(arguments, message):
    assert message in wrong(arguments)


def test_make_has_every_target_that_is_named():
    named = {word for words in called("make") for word in words if "=" not in word}
    assert {"setup", "bench-regress", "check-exhaustive", "test-slow"} <= named <= set(TARGETS)


def test_every_file_and_marker_that_steps_name_is_there():
    programs = {words[0] for words in NAMED if words[0].startswith((".github/", ".ci/"))}
    assert programs == {".ci/run", *(f".github/scripts/{path.name}" for path in SCRIPTS)}
    assert all((ROOT / program).is_file() for program in programs)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert called(".venv/bin/pytest") == [["-m", "gpu"]]
    assert any(m.startswith("gpu:") for m in project["tool"]["pytest"]["ini_options"]["markers"])


# Who may write, and whose code runs where.


@each_workflow
def test_moving_the_baseline_alone_may_write(path):
    granted = [read(path)["permissions"], *(j.get("permissions", {}) for j in jobs(path).values())]
    assert all(isinstance(permissions, dict) for permissions in granted)
    writes = [
        name for permissions in granted for name, kind in permissions.items() if kind != "read"
    ]
    assert writes == (["contents"] if path.stem == "move-baseline" else [])
    assert "secrets" not in path.read_text()


def self_hosted() -> dict[str, dict]:
    found = {
        f"{path.name}: {name}": job
        for path in WORKFLOWS
        for name, job in jobs(path).items()
        if not str(job["runs-on"]).startswith("ubuntu-")
    }
    assert found
    return found


def test_one_job_at_a_time_runs_on_a_gpu_and_none_that_waits_is_dropped():
    for name, job in self_hosted().items():
        assert job["runs-on"] == ["self-hosted", "linux", "gpu", "kvbench"], name
        assert job["concurrency"] == {
            "group": "gpu-runner",
            "cancel-in-progress": False,
            "queue": "max",
        }, name
        # What waits for a person would hold the group meanwhile.
        assert "environment" not in job, name


def test_the_guide_names_what_the_workflows_ask_for():
    guide = GUIDE.read_text()
    gpu = jobs(GITHUB / "workflows" / "gpu.yml")
    upload = gpu["measure"]["steps"][-1]["with"]
    asked = [
        *gpu["measure"]["runs-on"],
        gpu["measure"]["concurrency"]["group"],
        gpu["approve"]["environment"],
        *re.findall(r"vars\.(\w+)", gpu["measure"]["if"]),
    ]
    assert "GPU_RUNNER" in asked
    assert all(f"`{name}`" in guide for name in asked)
    assert f"kept for {upload['retention-days']} days" in " ".join(guide.split())
    assert f"*Actions → {read(GITHUB / 'workflows' / 'move-baseline.yml')['name']} →" in guide


def test_every_job_ends():
    assert all(job["timeout-minutes"] <= 90 for path in WORKFLOWS for job in jobs(path).values())


OURS, FORK = "owner/kvbench", "somebody/kvbench"


def event(name: str, repository: str = OURS, action: str = "synchronize", label: str = "") -> dict:
    """The values that conditions ask for, by their names; whatever isn't there is empty."""
    values = {"github.event_name": name, "github.repository": OURS, "github.ref": "refs/heads/main"}
    if name == "pull_request":
        values |= {
            "github.event.action": action,
            "github.event.label.name": label,
            "github.event.pull_request.head.repo.full_name": repository,
        }
    if name != "pull_request" or repository == OURS:
        values["vars.GPU_RUNNER"] = "yes"  # GitHub gives a fork's pull request no variables
    return values


def holds(condition: str, values: dict[str, str], *, cancelled: bool = False) -> bool:
    """Whether a job's condition is true; what is used of GitHub's language is nearly Python's."""
    text = condition.replace("&&", " and ").replace("||", " or ")
    text = re.sub(r"!(?!=)", " not ", text)
    text = re.sub(r"\b(?:github|vars|needs)(?:\.\w+)+", lambda name: f"value('{name[0]}')", text)
    names = {"value": lambda name: values.get(name, ""), "cancelled": lambda: cancelled}
    return bool(eval(" ".join(text.split()), {"__builtins__": {}}, names))  # noqa: S307 - our own file


def measured(values: dict[str, str], *, approved: str = "success", cancelled: bool = False) -> bool:
    """Whether the GPU is reached; `approved` is how approving ends where it is asked for."""
    gpu = jobs(GITHUB / "workflows" / "gpu.yml")
    asked = holds(gpu["approve"]["if"], values)
    values = {**values, "needs.approve.result": approved if asked else "skipped"}
    return holds(gpu["measure"]["if"], values, cancelled=cancelled)


@pytest.mark.parametrize(
    "values",
    [
        event("schedule"),
        event("workflow_dispatch"),
        event("pull_request"),
        event("pull_request", action="opened"),
        event("pull_request", action="labeled", label="gpu"),
        event("pull_request", FORK, "labeled", "gpu"),
    ],
)
def test_what_may_run_on_the_gpu_does(values):
    assert measured(values)
    assert not measured(values, cancelled=True)


@pytest.mark.parametrize("repository", [FORK, ""])  # none: the fork was deleted
@pytest.mark.parametrize("action", ["opened", "reopened", "synchronize"])
def test_code_of_a_fork_does_not_run_unasked(repository, action):
    assert not measured(event("pull_request", repository, action))
    # A label is for one push: the next push comes without.
    assert not measured(event("pull_request", repository, action, "gpu"))
    # Nor where a fork sees the variables.
    assert not measured({**event("pull_request", repository, action), "vars.GPU_RUNNER": "yes"})


@pytest.mark.parametrize("approved", ["failure", "cancelled", "skipped", ""])
def test_code_of_a_fork_does_not_run_unless_a_reviewer_lets_it(approved):
    labelled = event("pull_request", FORK, "labeled", "gpu")
    assert not measured(labelled, approved=approved)
    assert not measured({**labelled, "vars.GPU_RUNNER": "yes"}, approved=approved)
    assert jobs(GITHUB / "workflows" / "gpu.yml")["approve"]["environment"] == "gpu"


@pytest.mark.parametrize("repository", [OURS, FORK])
def test_another_label_starts_nothing(repository):
    assert not measured(event("pull_request", repository, "labeled", "documentation"))


@pytest.mark.parametrize("name", ["schedule", "pull_request", "workflow_dispatch"])
def test_without_a_runner_nothing_waits_for_one(name):
    assert not measured({**event(name), "vars.GPU_RUNNER": ""})


def test_the_baseline_moves_by_what_is_on_main_alone():
    condition = jobs(GITHUB / "workflows" / "move-baseline.yml")["move"]["if"]
    assert holds(condition, event("workflow_dispatch"))
    assert not holds(condition, {**event("workflow_dispatch"), "github.ref": "refs/heads/other"})


def test_the_comparison_decides_and_what_it_found_is_kept_either_way():
    steps = jobs(GITHUB / "workflows" / "gpu.yml")["measure"]["steps"]
    by_id = {step["id"]: step for step in steps if "id" in step}
    assert [name for name, step in by_id.items() if "continue-on-error" in step] == ["doctor"]
    (summary,) = [step for step in steps if "GITHUB_STEP_SUMMARY" in step.get("run", "")]
    (upload,) = [step for step in steps if "upload-artifact" in step.get("uses", "")]
    assert steps[-2:] == [summary, upload]
    assert summary["if"] == upload["if"] == "${{ always() }}"
    (compare,) = split_commands(by_id["compare"]["run"])
    for option in ("-o", "--markdown", "--json"):
        assert compare[compare.index(option) + 1] in upload["with"]["path"].split()


# The scripts, in a repository of their own.


class Repository:
    """A clone, and the origin that it pushes to; both have a commit on main and one beside it."""

    def __init__(self, folder: Path) -> None:
        self.origin, self.clone = folder / "origin", folder / "clone"
        who = {
            f"GIT_{role}_{what}": "somebody"
            for role in ("AUTHOR", "COMMITTER")
            for what in ("NAME", "EMAIL")
        }
        kept = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
        self.environment = {
            **kept,
            **who,
            "GIT_CONFIG_GLOBAL": os.devnull,
            "GIT_CONFIG_SYSTEM": os.devnull,
        }
        folder.mkdir()
        self.git("init", "--quiet", "--bare", "--initial-branch=main", self.origin, at=folder)
        self.git("clone", "--quiet", self.origin, self.clone, at=folder)
        self.git("switch", "--quiet", "--orphan", "main")
        self.first = self.commit("first")
        self.git("push", "--quiet", "origin", "main")
        self.git("switch", "--quiet", "-c", "beside")
        self.beside = self.commit("beside")
        self.git("push", "--quiet", "origin", "beside")
        self.git("switch", "--quiet", "main")
        self.second = self.commit("second")
        self.git("push", "--quiet", "origin", "main")

    def git(self, *arguments: str | Path, at: Path | None = None) -> str:
        done = ended("git", *arguments, cwd=at or self.clone, env=self.environment)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def commit(self, message: str) -> str:
        self.git("commit", "--quiet", "--allow-empty", "-m", message)
        return self.git("rev-parse", "HEAD")

    def script(self, name: str, *arguments: str | Path, **variables: str):
        return ended(
            GITHUB / "scripts" / name, *arguments, cwd=self.clone,
            env={**self.environment, **variables},
        )  # fmt: skip

    def baseline(self) -> str:
        """The commit that the tag is on, here and on origin; "" where there is none."""
        here, there = (
            self.git("for-each-ref", "--format=%(*objectname)", "refs/tags/gpu-baseline", at=at)
            for at in (self.clone, self.origin)
        )
        assert here == there
        return here


@pytest.fixture
def repository(tmp_path) -> Repository:
    return Repository(tmp_path / "repository")


def test_the_baseline_moves_with_its_reason_and_says_from_where(repository):
    done = repository.script("move-baseline", repository.first, "The first release")
    assert (done.returncode, done.stderr) == (0, "")
    assert repository.baseline() == repository.first
    assert f"from `nowhere` to `{repository.first}`" in done.stdout

    reason = "#12: a slower copy\nis the price of 64-bit slots; `$(exit 1)`"
    done = repository.script("move-baseline", "main", reason)
    assert (done.returncode, done.stderr) == (0, "")
    assert repository.baseline() == repository.second
    assert f"from `{repository.first}` to `{repository.second}`" in done.stdout
    assert "> #12: a slower copy\n> is the price" in done.stdout
    message = repository.git(
        "for-each-ref", "--format=%(taggername): %(contents)", "refs/tags", at=repository.origin
    )
    assert message == f"somebody: {reason}"


@pytest.mark.parametrize("tag", [False, True])
@pytest.mark.parametrize(
    ("revision", "reason", "message"),
    [
        ("second", "", "no reason"),
        ("second", " \t\n", "no reason"),
        ("beside", "Faster", "expected a commit on main"),
        ("origin/beside", "Faster", "expected a commit on main"),
        ("nothing", "Faster", "revision 'nothing': expected a commit"),
        ("", "Faster", "revision '': expected a commit"),
        ("--all", "Faster", "revision '--all': expected a commit"),
        ("HEAD:", "Faster", "revision 'HEAD:': expected a commit"),
    ],
)
def test_what_is_refused_leaves_the_baseline_alone(repository, tag, revision, reason, message):
    if tag:
        repository.script("move-baseline", repository.first, "The first release")
    before = repository.baseline()
    revision = {"second": repository.second, "beside": repository.beside}.get(revision, revision)
    done = repository.script("move-baseline", revision, reason)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
    assert repository.baseline() == before == (repository.first if tag else "")


def test_a_baseline_is_not_moved_to_where_it_is(repository):
    repository.script("move-baseline", "main", "The first release")
    done = repository.script("move-baseline", repository.second, "Once more")
    assert done.returncode == 2
    assert f"gpu-baseline is on {repository.second} already" in done.stderr


def test_a_baseline_that_somebody_moved_meanwhile_is_left_to_them(repository):
    repository.script("move-baseline", repository.first, "The first release")
    seen = repository.git("rev-parse", "gpu-baseline")
    repository.script("move-baseline", repository.second, "Theirs")
    theirs = repository.git("rev-parse", "gpu-baseline")
    repository.git("update-ref", "refs/tags/gpu-baseline", seen)
    third = repository.commit("third")
    repository.git("push", "--quiet", "origin", "main")
    assert repository.script("move-baseline", third, "Ours").returncode != 0
    assert repository.git("rev-parse", "gpu-baseline", at=repository.origin) == theirs
    assert repository.git("rev-parse", "gpu-baseline") == seen


def test_a_pull_request_is_held_against_where_it_left_its_branch(repository):
    repository.git("switch", "--quiet", "--detach", repository.beside)
    done = repository.script("revisions", BASE_BRANCH="main")
    assert done.stdout == f"base={repository.first}\nhead={repository.beside}\n"


def test_main_is_held_against_the_baseline(repository):
    repository.script("move-baseline", repository.first, "The first release")
    done = repository.script("revisions", BASE_BRANCH="")
    assert done.stdout == f"base={repository.first}\nhead={repository.second}\n"


@pytest.mark.parametrize(
    ("branch", "message"),
    [("", "no tag gpu-baseline"), ("gone", "expected a full checkout")],
)
def test_a_base_that_is_not_there_is_named(repository, branch, message):
    done = repository.script("revisions", BASE_BRANCH=branch)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr


def summary(folder: Path, **variables: str) -> str:
    done = ended(
        GITHUB / "scripts" / "summary", folder, env={"PATH": os.environ["PATH"], **variables}
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_a_summary_has_the_comparison_and_what_the_doctor_said(tmp_path):
    (tmp_path / "ab.md").write_text("| cell | verdict |\n")
    (tmp_path / "doctor.txt").write_text("GPU clocks: not held\n")
    text = summary(tmp_path, BASE="aaa", HEAD="bbb", DOCTOR="failure", COMPARE="failure")
    assert "Base `aaa`, head `bbb`." in text
    assert "**it failed, so trust" in text
    assert "| cell | verdict |\n" in text
    assert "GPU clocks: not held\n" in text
    assert "There is no comparison" not in text


@pytest.mark.parametrize(
    ("variables", "outcome"),
    [({"DOCTOR": "success", "COMPARE": "failure"}, "failure"), ({}, "nothing")],
)
def test_a_summary_says_that_there_is_no_comparison(tmp_path, variables, outcome):
    (tmp_path / "ab.md").touch()  # begun, and never written
    text = summary(tmp_path, **variables)
    assert f'There is no comparison**: its step ended with "{outcome}"' in text
    assert ("its trial passed" in text) == ("DOCTOR" in variables)
