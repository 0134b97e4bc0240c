"""K and V on two streams: right wherever they run, and only where there are streams timed."""

from types import SimpleNamespace

import pytest
import torch
from drawn import cases
from hypothesis import given

from kvbench import oracle
from kvbench.cases import Case
from kvbench.kernels import streams
from kvbench.kernels.streams import Side
from kvbench.strategies import registry
from kvbench.sweep.launches import predicted
from kvbench.workload import build

registry.load_builtin()
CPU, GPU = torch.device("cpu"), torch.device("cuda")
NAMES = ("write.streams", "read.streams")


@given(cases(cache_dtype="auto", layout="NHD"))
def test_the_work_is_right(case):
    strategy = registry.get(f"{case.op}.streams")
    assert strategy.supports(case, GPU) is None
    # A CPU does the same one after the other; it is the device that it is refused for.
    assert oracle.check(strategy, build(case, CPU)) == ""


@pytest.mark.parametrize("name", NAMES)
def test_a_cpu_is_refused(name):
    case = Case(op=name.partition(".")[0], seq_len=8)
    assert registry.get(name).supports(case, CPU) == streams.NO_STREAMS


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("seq_len", [1, 512])
def test_both_streams_have_one_launch(name, seq_len):
    case = Case(op=name.partition(".")[0], seq_len=seq_len)
    counts = predicted(registry.get(name), case, "run")
    assert (counts.kernels, counts.memcpys, counts.synchronizations) == (2, 0, 0)


class Main:
    def __init__(self, log):
        self.log = log

    def __str__(self):
        return "main"

    def wait_stream(self, _):
        self.log.append("main waits for side")


class Order:
    """A device's module that notes which stream waits for which, and where work goes."""

    def __init__(self) -> None:
        self.log = []
        self.now = "main"

    def Stream(self, device):  # noqa: N802, ARG002 - as torch has it
        return SimpleNamespace(wait_stream=lambda other: self.log.append(f"side waits for {other}"))

    def current_stream(self):
        return Main(self.log)

    def stream(self, _):
        order = self

        class Inside:
            def __enter__(self):
                order.now = "side"

            def __exit__(self, *_):
                order.now = "main"

        return Inside()


def test_the_second_stream_begins_after_and_is_joined_before(monkeypatch):
    order = Order()
    monkeypatch.setattr(streams.torch, "get_device_module", lambda _: order)
    side = Side(SimpleNamespace(device=torch.device("cuda:0")))
    with side.beside():
        order.log.append(f"V on {order.now}")
    order.log.append(f"K on {order.now}")
    side.join()
    assert order.log == ["side waits for main", "V on side", "K on main", "main waits for side"]
