"""Settings and fixtures of the whole suite."""

import pytest
import torch
from hypothesis import HealthCheck, settings

from kvbench import diagnosis
from kvbench.strategies import registry

settings.register_profile(
    "kvbench",
    deadline=None,  # Triton's interpreter takes milliseconds per program, more under load
    max_examples=60,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("kvbench")

# pytest-xdist runs a worker per core: more threads in each would only get in each other's way.
torch.set_num_threads(1)

# At import, so that test files can be parametrised over strategies.
registry.load_builtin()


@pytest.fixture(autouse=True)
def strategies():
    """The registry's strategies: what a test adds to them, even by asking, is gone after it."""
    # Not by the fixture monkeypatch, which would then undo a test's own changes last of all.
    with pytest.MonkeyPatch.context() as patch:
        known = dict(registry._STRATEGIES)
        patch.setattr(registry, "_STRATEGIES", known)
        patch.setattr(registry, "_FILES", dict(registry._FILES))
        yield known


@pytest.fixture(autouse=True)
def short_look():
    """Runs in a test's own process look at the machine for a moment, not for a second."""
    with pytest.MonkeyPatch.context() as patch:  # as above
        patch.setattr(diagnosis, "_WINDOW_S", 0.01)
        yield


@pytest.fixture(scope="session")
def cpu() -> torch.device:
    return torch.device("cpu")


@pytest.fixture(scope="session")
def gpu() -> torch.device:
    device = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if device is None:
        pytest.skip("no GPU here")
    return device
