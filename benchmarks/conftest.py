"""What pytest and pytest-benchmark are told of kvbench: options, the machine, where files go."""

import dataclasses
import re
import shlex
import warnings
from pathlib import Path
from typing import Any

import pytest
from pytest_benchmark.logger import PytestBenchmarkWarning
from suite import PRESET, Suite, seconds

from kvbench import devices
from kvbench.benchmark_json import KEY, builtins_of, info_of, rows_of
from kvbench.environment import fingerprint
from kvbench.errors import InputError, StoreError
from kvbench.results import RunInfo
from kvbench.sessions import differences
from kvbench.strategies import registry

_SUITE = pytest.StashKey[Suite]()
_STORAGE = "file://./.benchmarks"
"""Where pytest-benchmark saves to if nobody says where."""
_FACTS_DIFFER = "Benchmark machine_info is different"
"""It wants all facts alike, though clock rates and times differ in any two sessions."""
_WARNINGS = (
    # What pytest-benchmark has to say is said: as an error it would end the session half-way.
    f"default::{PytestBenchmarkWarning.__module__}.{PytestBenchmarkWarning.__name__}",
    f"ignore:{_FACTS_DIFFER}",
)

registry.load_builtin()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("kvbench")
    group.addoption(
        "--kvbench-device",
        default="auto",
        metavar="NAME",
        help='Where to measure, as "cpu" or "cuda:1"; the first accelerator by default.',
    )
    group.addoption(
        "--kvbench-load",
        action="append",
        default=[],
        type=Path,
        metavar="FILE.py",
        help="A Python file that registers strategies of your own. Repeatable.",
    )
    group.addoption(
        "--kvbench-cell-seconds",
        default=PRESET.cell_seconds,
        type=seconds,
        metavar="S",
        help="Most seconds of sampling per strategy, case and phase (default: %(default)s).",
    )


def pytest_configure(config: pytest.Config) -> None:
    for line in _WARNINGS:
        config.addinivalue_line("filterwarnings", line)
    # pytest has read its own already for what is configured after this: the saved run is opened.
    warnings.filterwarnings("default", category=PytestBenchmarkWarning)
    warnings.filterwarnings("ignore", _FACTS_DIFFER, PytestBenchmarkWarning)
    if config.getoption("benchmark_cprofile"):
        raise pytest.UsageError(
            "--benchmark-cprofile: pytest-benchmark is given samples here, it makes no calls; "
            "expected a profiler around `kvbench run --in-process`"
        )
    try:
        device = devices.resolve(config.getoption("kvbench_device", "auto"))
        for file in config.getoption("kvbench_load", []):
            registry.load_file(file)
    except InputError as error:
        raise pytest.UsageError(str(error)) from error
    config.stash[_SUITE] = Suite(
        device=device,
        cell_seconds=config.getoption("kvbench_cell_seconds", PRESET.cell_seconds),
        command=shlex.join(["pytest", *config.invocation_params.args]),
    )
    # Before pytest-benchmark looks: times of different devices are not to be compared.
    if config.option.benchmark_storage == _STORAGE:
        name = re.sub(r"[^a-z0-9]+", "-", fingerprint(device).device_name.lower()).strip("-")
        config.option.benchmark_storage = f"{_STORAGE}/{device.type}-{name}"


def pytest_collection_finish(session: pytest.Session) -> None:
    session.config.stash[_SUITE].selected = [
        (
            item.callspec.params["strategy"],
            item.callspec.params["phase"],
            item.callspec.params["case"],
        )
        for item in session.items
        if "suite" in getattr(item, "fixturenames", ())
    ]


@pytest.fixture(scope="session")
def suite(pytestconfig: pytest.Config) -> Suite:
    return pytestconfig.stash[_SUITE]


def pytest_benchmark_update_machine_info(
    config: pytest.Config, machine_info: dict[str, Any]
) -> None:
    machine_info[KEY] = builtins_of(config.stash[_SUITE].info)


def pytest_benchmark_update_json(config: pytest.Config, output_json: dict[str, Any]) -> None:
    output_json[KEY] = {"rows": rows_of(config.stash[_SUITE].other_rows())}


def pytest_benchmark_compare_machine_info(
    config: pytest.Config, benchmarksession: Any, compared_benchmark: dict[str, Any]
) -> None:
    """Warn of what keeps times from being compared; another commit is what it is done for."""
    try:
        saved = info_of(compared_benchmark["machine_info"], Path("machine_info"))
    except StoreError as error:
        found = [str(error)]
    else:
        found = _differences(config.stash[_SUITE].info, saved) if saved else ["no rows of kvbench"]
    if found:
        text = f"Compared with a saved run that is not like this one: {', '.join(found)}"
        benchmarksession.logger.warning(text)


def _differences(info: RunInfo, saved: RunInfo) -> list[str]:
    here, there = info.environment, saved.environment
    same_code = {name: getattr(here, name) for name in ("kvbench", "git_commit", "git_dirty")}
    found = differences(dataclasses.replace(there, **same_code), here, same_device=True)
    if saved.cell_seconds != info.cell_seconds:
        found.append(f"cell_seconds {saved.cell_seconds!r} (here {info.cell_seconds!r})")
    return found
