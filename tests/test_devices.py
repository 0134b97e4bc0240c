"""What a device has left, and in a container what that leaves."""

import psutil
import pytest
import torch

from kvbench import devices
from kvbench.devices import _Cgroup, free_bytes

CPU = torch.device("cpu")
GIB = 1 << 30


@pytest.fixture
def container(tmp_path, monkeypatch):
    """A control group whose files a test writes, on a machine with 100 GiB available."""

    def say(limit: str, used: int, stat: str) -> None:
        (tmp_path / "limit").write_text(f"{limit}\n")
        (tmp_path / "used").write_text(f"{used}\n")
        (tmp_path / "stat").write_text(stat)

    names = (tmp_path / name for name in ("limit", "used", "stat"))
    monkeypatch.setattr(devices, "_CGROUPS", (_Cgroup(*names, "inactive_file"),))
    memory = psutil.virtual_memory()._replace(available=100 * GIB)
    monkeypatch.setattr(devices.psutil, "virtual_memory", lambda: memory)
    return say


@pytest.mark.usefixtures("container")
def test_without_a_container_it_is_what_the_system_has():
    assert free_bytes(CPU) == 100 * GIB


@pytest.mark.parametrize(
    ("limit", "used", "stat", "free"),
    [
        ("max", 3 * GIB, "anon 1\n", 100 * GIB),
        (str(8 * GIB), 3 * GIB, "anon 1\n", 5 * GIB),
        (str(8 * GIB), 3 * GIB, f"anon 1\ninactive_file {GIB}\ninactive_anon 7\n", 6 * GIB),
        (str(8 * GIB), 9 * GIB, "", 0),
        (str(900 * GIB), 0, "", 100 * GIB),
        (str(2**63 - 4096), 0, "", 100 * GIB),  # as the first version says that there is no limit
    ],
)
def test_a_container_leaves_what_its_limit_leaves(container, limit, used, stat, free):
    container(limit, used, stat)
    assert free_bytes(CPU) == free
