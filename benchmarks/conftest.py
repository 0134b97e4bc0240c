"""What pytest and pytest-benchmark are told of kvbench: options, the machine, where files go."""

import re
import shlex
import warnings
from pathlib import Path
from typing import Any

import pytest
from pytest_benchmark.logger import PytestBenchmarkWarning
from suite import PRESET, Suite, seconds, unlike

from kvbench import devices
from kvbench.benchmark_json import KEY, builtins_of, info_of, rows_of
from kvbench.environment import fingerprint
from kvbench.errors import InputError, StoreError
from kvbench.strategies import registry

_SUITE = pytest.StashKey[Suite]()
_STORAGE = "file://./.benchmarks"
"""Where pytest-benchmark saves to if nobody says where."""

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
    # What pytest-benchmark has to say is said: as an error it would end the session half-way.
    kind = PytestBenchmarkWarning
    config.addinivalue_line("filterwarnings", f"default::{kind.__module__}.{kind.__name__}")
    warnings.filterwarnings("default", category=kind)  # pytest has read its own for this already
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


@pytest.hookimpl(tryfirst=True)
def pytest_benchmark_compare_machine_info(
    config: pytest.Config,
    benchmarksession: Any,
    machine_info: dict[str, Any],
    compared_benchmark: dict[str, Any],
) -> None:
    """Warn of what keeps times from being compared; another commit is what it is done for."""
    try:
        saved = info_of(compared_benchmark["machine_info"], Path("machine_info"))
    except StoreError as error:
        found = [str(error)]
    else:
        found = unlike(saved, config.stash[_SUITE].info) if saved else ["no rows of kvbench"]
    if found:
        text = f"Compared with a saved run that is not like this one: {', '.join(found)}"
        benchmarksession.logger.warning(text)
    # pytest-benchmark wants all facts alike, and clock rates differ in any two sessions; what it
    # then does fails where the storage is outside of the working directory.
    compared_benchmark["machine_info"] = machine_info
