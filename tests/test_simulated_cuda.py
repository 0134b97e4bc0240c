"""The simulated device: it behaves as CUDA does, where what is tried on it relies on that."""

import inspect

import pytest
import torch
from simulated_cuda import DEVICE, SimulatedCuda, simulated_cuda, stand_ins


@pytest.fixture
def cuda():
    with simulated_cuda() as gpu:
        yield gpu


def names(gpu) -> list[str]:
    return [name for name, _, _ in gpu.activities]


OWN = {name: getattr(torch.cuda, name) for name in stand_ins(SimulatedCuda())}
"""What torch has under the same names; taken before anything stands in for it."""


@pytest.mark.parametrize("name", [name for name in OWN if name != "_sleep"])
def test_what_stands_in_takes_nothing_that_torch_does_not_take(name):
    stand_in = stand_ins(SimulatedCuda())[name]
    taken = inspect.signature(stand_in).parameters
    own = inspect.signature(OWN[name]).parameters
    assert list(taken) == list(own)[: len(taken)]


@pytest.mark.parametrize("name", ["Event", "Stream", "CUDAGraph"])
def test_the_methods_that_stand_in_are_torch_s(name):
    kind = stand_ins(SimulatedCuda())[name]
    ours = {each for each in vars(kind.__base__) if not each.startswith("_")} - {"numbered"}
    assert ours
    for each in ours:
        assert callable(getattr(OWN[name], each)), each


def test_tensors_of_the_device_say_so_and_so_does_what_is_computed_with_them(cuda):
    made = torch.ones(3, device=DEVICE)
    assert made.device == (made + 1).device == made[1:].device == DEVICE
    assert made.is_cuda
    assert torch.ones(3).device.type == "cpu"
    assert names(cuda) == ["ones", "add"]


def test_views_and_allocations_are_no_work(cuda):
    torch.empty(4, 3, device=DEVICE).view(-1)[2:].unsqueeze(0)
    assert cuda.activities == []


def test_a_move_is_a_memcpy_that_the_host_waits_for_unless_told_otherwise(cuda):
    there = torch.arange(4).to(DEVICE)
    assert names(cuda) == ["Memcpy HtoD"]
    assert len(cuda.waits) == 1
    torch.arange(4).to(DEVICE, non_blocking=True)
    assert len(cuda.waits) == 1
    back = there.cpu()
    assert back.device.type == "cpu"
    assert back.tolist() == [0, 1, 2, 3]
    assert len(cuda.waits) == 2
    there.fill_(7)
    assert back.tolist() == [0, 1, 2, 3]


def test_tensors_of_both_sides_are_not_mixed(cuda):
    with pytest.raises(RuntimeError, match="same device"):
        torch.ones(3, device=DEVICE) + torch.ones(3)
    with pytest.raises(TypeError, match="to numpy"):
        torch.ones(3, device=DEVICE).numpy()
    assert (torch.ones(3, device=DEVICE) * torch.tensor(2.0)).device == DEVICE
    assert cuda.activities


def test_a_value_is_read_back_by_a_memcpy_and_a_wait(cuda):
    made = torch.ones(1, device=DEVICE)
    before = len(cuda.waits)
    assert made.item() == 1.0
    assert len(cuda.waits) == before + 1
    assert names(cuda)[-1] == "Memcpy DtoH"


def captured(call):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph


@pytest.mark.usefixtures("cuda")
def test_a_capture_runs_nothing_and_a_replay_does_with_the_data_that_is_there_then():
    source, target = torch.ones(3, device=DEVICE), torch.zeros(3, device=DEVICE)
    made = []
    graph = captured(lambda: (made.append(source * 2), target.add_(source)))
    assert target.tolist() == [0, 0, 0]
    source.fill_(5)
    graph.replay()
    assert made[0].tolist() == [10, 10, 10]
    assert target.tolist() == [5, 5, 5]
    graph.replay()
    assert target.tolist() == [10, 10, 10]


@pytest.mark.usefixtures("cuda")
@pytest.mark.parametrize(
    "waits",
    [
        lambda: torch.ones(1, device=DEVICE).item(),
        lambda: torch.arange(3).to(DEVICE),
        lambda: torch.tensor([1, 2], device=DEVICE),
        lambda: torch.accelerator.synchronize(DEVICE),
    ],
)
def test_what_waits_is_not_captured(waits):
    with pytest.raises(RuntimeError, match="not permitted when stream is capturing"):
        captured(waits)
    assert captured(lambda: torch.ones(3, device=DEVICE)).calls
