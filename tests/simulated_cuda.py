"""A CUDA device that is not there: torch's own code for one runs, its work is done by this CPU.

Tensors made on "cuda" lie in this machine's memory and say that they are on the device; tensors of
both sides can't be mixed. What they are worked on with is written down as the device's activities,
with the times that this CPU took. Streams run at once, one after the other. A graph holds what was
called while it was captured, executes none of it until it is replayed, and refuses to wait.

What stands in for torch.cuda takes what that takes: a test holds the two against each other. It is
for strategies that are made of torch's ops; Triton has `simulated_gpu`.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Self

import pytest
import torch
import torch._dynamo  # else it is imported while torch.Event, from which it derives, is another
from torch.autograd import DeviceType
from torch.autograd.profiler_util import FunctionEvent
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

DEVICE = torch.device("cuda:0")
NOT_PERMITTED = "CUDA error: operation not permitted when stream is capturing"
_NO_WORK = {"device", "detach", "lift_fresh", "resize_", "set_", "_unsafe_view", "alias"}
_MIXED = {"copy_", "__getitem__", "__setitem__", "__get__", "index_put_"}
"""What takes tensors of both sides: copies, and indices."""
_SEVERAL = {"cumsum": 2, "repeat_interleave": 3}
"""Ops that are several kernels, as on a GPU they are believed to be: a scan has two."""
_US = 1e6


@dataclass
class SimulatedCuda:
    """The device: what it did, and how it should misbehave."""

    blind: bool = False
    """The profiler sees nothing of the device, as without the permission to."""
    unprofiled: str = ""
    """What the profiler raises when it starts."""
    skew_s: float = 0.0
    """What events' times are off by."""
    uncapturable: str = ""
    """What a capture raises when it ends."""
    forgetful: bool = False
    """Graphs hold nothing."""
    free: int = 1 << 28
    total: int = 1 << 30
    reserved: int = 3 << 20
    allocated: int = 1 << 20
    l2: int | None = 1 << 14
    count: int = 1

    current: int = 0
    """The current device."""
    stream: int = 0
    streams: int = 1
    log: list[tuple[str, int]] = field(default_factory=list)
    """What was launched, and on which stream; also waits, of the host and between streams."""
    activities: list[tuple[str, float, float]] = field(default_factory=list)
    """Names, starts and ends: in seconds of this machine's clock."""
    waits: list[tuple[str, float]] = field(default_factory=list)
    working: bool = False
    graph: "_Graph | None" = None
    undo: list[tuple[torch.Tensor, torch.Tensor]] = field(default_factory=list)

    def launch(self, name: str, start: float, end: float) -> None:
        """Something that the device did."""
        for _ in range(_SEVERAL.get(name, 1)):
            self.log.append((name, self.stream))
            if self.graph is None:
                self.activities.append((name, start, end))

    def wait(self, name: str = "cudaStreamSynchronize") -> None:
        """The host waits for the device."""
        if self.graph is not None:
            raise RuntimeError(NOT_PERMITTED)
        self.waits.append((name, time.perf_counter()))
        self.log.append((name, self.stream))


class OnDevice(torch.Tensor):
    """A tensor of the device; so is what is computed with it."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func == torch.Tensor.device.__get__:
            return DEVICE
        if func == torch.Tensor.is_cuda.__get__:
            return True
        return super().__torch_function__(func, types, args, kwargs or {})


def _is_cuda(device: object) -> bool:
    return device is not None and torch.device(device).type == "cuda"


def _faking() -> bool:
    """Whether launches are being predicted: fake tensors need no device."""
    return torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE) is not None


class _Front(TorchFunctionMode):
    """Makes tensors on the device, moves them there and back, and sees that sides are kept."""

    def __init__(self, gpu: SimulatedCuda) -> None:
        super().__init__()
        self.gpu = gpu

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if _faking():
            return func(*args, **kwargs)
        kwargs.pop("pin_memory", None)
        name = getattr(func, "__name__", "")
        if func is torch.Tensor.to:
            return self._to(*args, **kwargs)
        if func is torch.Tensor.cpu:
            return self._to(args[0], "cpu")
        if func is torch.Tensor.copy_ and len({isinstance(t, OnDevice) for t in args[:2]}) == 2:
            self._across(args[1], non_blocking=kwargs.get("non_blocking", False))
            return func(*args, **kwargs)
        asked = kwargs.get("device")
        given = [each for each in tree_flatten((args, kwargs))[0] if isinstance(each, torch.Tensor)]
        ours = [each for each in given if isinstance(each, OnDevice)]
        if _is_cuda(asked):
            kwargs["device"] = "cpu"
            if func is torch.tensor:
                self._across(torch.empty(0), non_blocking=False)
        elif not ours:
            return func(*args, **kwargs)
        if func in {torch.Tensor.numpy, torch.Tensor.__array__}:
            raise TypeError(f"can't convert {DEVICE} device type tensor to numpy")
        strangers = [t for t in given if not isinstance(t, OnDevice) and t.dim()]
        if ours and strangers and name not in _MIXED:
            raise RuntimeError("Expected all tensors to be on the same device, but found two")
        with self._working():
            made = func(*args, **kwargs)
        return made.as_subclass(OnDevice) if isinstance(made, torch.Tensor) else made

    @contextmanager
    def _working(self) -> Iterator[None]:
        before, self.gpu.working = self.gpu.working, True
        try:
            yield
        finally:
            self.gpu.working = before

    def _across(self, source: torch.Tensor, *, non_blocking: bool) -> None:
        now = time.perf_counter()
        way = "DtoH" if isinstance(source, OnDevice) else "HtoD"
        if not non_blocking:
            self.gpu.wait()
        self.gpu.launch(f"Memcpy {way}", now, time.perf_counter())

    def _to(self, tensor, *args, non_blocking=False, **kwargs):
        wanted = kwargs.pop("device", None)
        if wanted is None and args and isinstance(args[0], str | torch.device):
            wanted, args = args[0], args[1:]
        side = tensor.device if wanted is None else torch.device(wanted)
        if side.type == tensor.device.type:
            rest = (*args, *kwargs.values())
            if not rest or (rest == (tensor.dtype,)):
                return tensor
            with self._working():
                return tensor.to(*args, **kwargs)
        self._across(tensor, non_blocking=non_blocking)
        copied = tensor.as_subclass(torch.Tensor).to(*args, **{**kwargs, "copy": True})
        return copied.as_subclass(OnDevice if side.type == "cuda" else torch.Tensor)


def _written(func: Any, args: tuple, kwargs: dict) -> list[torch.Tensor]:
    """The arguments that an op changes."""
    changed = []
    for place, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            changed.append(args[place] if place < len(args) else kwargs.get(argument.name))
    return [each for each in tree_flatten(changed)[0] if isinstance(each, torch.Tensor)]


class _Back(TorchDispatchMode):
    """Does the device's work, and writes it down."""

    def __init__(self, gpu: SimulatedCuda) -> None:
        super().__init__()
        self.gpu = gpu

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func._schema.name.partition("::")[2]
        idle = func.is_view or name in _NO_WORK or "empty" in name
        with torch._C.DisableTorchFunction():  # whose tensors these are has been looked at
            if idle or not self.gpu.working:
                return func(*args, **(kwargs or {}))
            return self._work(name, func, args, kwargs or {})

    def _work(self, name, func, args, kwargs):
        gpu = self.gpu
        if name in {"_local_scalar_dense", "equal", "nonzero"}:
            gpu.wait()
            gpu.launch("Memcpy DtoH", time.perf_counter(), time.perf_counter())
            return func(*args, **kwargs)
        written = _written(func, args, kwargs)
        if gpu.graph is not None:
            gpu.undo += [(each, each.clone()) for each in written]
        start = time.perf_counter()
        made = func(*args, **kwargs)
        gpu.launch(_named(name, args), start, time.perf_counter())
        if gpu.graph is not None:
            gpu.graph.calls.append((_named(name, args), func, args, kwargs, made, bool(written)))
        return made


def _named(name: str, args: tuple) -> str:
    if name == "copy_":
        same = args[0].dtype == args[1].dtype and args[0].shape == args[1].shape
        return "Memcpy DtoD" if same and all(t.is_contiguous() for t in args[:2]) else name
    return "Memcpy DtoD" if name == "clone" and args[0].is_contiguous() else name


class _Event:
    def __init__(
        self,
        enable_timing=False,  # noqa: FBT002 - as torch's
        blocking=False,  # noqa: FBT002
        interprocess=False,  # noqa: FBT002
        external=False,  # noqa: FBT002
    ) -> None:
        del blocking, interprocess, external
        self.timing, self.at = enable_timing, None

    def record(self, stream=None) -> None:
        del stream
        self.at = time.perf_counter()

    def wait(self, stream=None) -> None:
        del stream

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        self.gpu.wait("cudaEventSynchronize")

    def elapsed_time(self, end_event) -> float:
        if not (self.timing and end_event.timing) or self.at is None or end_event.at is None:
            raise RuntimeError("Both events must be created with argument 'enable_timing=True'.")
        return (end_event.at - self.at + self.gpu.skew_s) * 1e3


class _Stream:
    def __init__(self, device=None, priority=0, **kwargs) -> None:
        del device, priority, kwargs
        self.number = self.gpu.streams
        self.gpu.streams += 1

    @classmethod
    def numbered(cls, number: int) -> "_Stream":
        stream = cls.__new__(cls)
        stream.number = number
        return stream

    def wait_stream(self, stream) -> None:
        self.gpu.log.append((f"{self.number} waits for {stream.number}", self.gpu.stream))


class _Graph:
    """A captured graph: the calls, with their arguments and what they made."""

    def __init__(self, keep_graph=False) -> None:  # noqa: FBT002 - as torch's
        del keep_graph
        self.calls: list[tuple] = []

    def replay(self) -> None:
        for name, func, args, kwargs, made, in_place in self.calls:
            start = time.perf_counter()
            with torch._C.DisableTorchFunction():
                again = func(*args, **kwargs)
                if not in_place:
                    for old, new in zip(tree_flatten(made)[0], tree_flatten(again)[0], strict=True):
                        old.copy_(new)
            self.gpu.launch(name, start, time.perf_counter())


class _Profile:
    """torch.profiler.profile, of the simulated device's work, in torch's own events."""

    def __init__(self, *, activities=None) -> None:
        self.wanted = {each.name for each in activities or ()}

    def __enter__(self) -> Self:
        if self.gpu.unprofiled:
            raise RuntimeError(self.gpu.unprofiled)
        self.start = time.perf_counter()
        self.first = len(self.gpu.activities), len(self.gpu.waits), len(self.gpu.spans)
        return self

    def __exit__(self, *_: object) -> None:
        # It waits for the device itself.
        self.gpu.wait("cudaDeviceSynchronize")

    def events(self) -> list[FunctionEvent]:
        work, waits, spans = self.first
        found = [self._event(*span) for span in self.gpu.spans[spans:]]
        found += [self._event(name, at, at) for name, at in self.gpu.waits[waits:]]
        if "CUDA" in self.wanted and not self.gpu.blind:
            device = {"device_type": DeviceType.CUDA, "is_user_annotation": False}
            found += [self._event(*each, **device) for each in self.gpu.activities[work:]]
            # What the host calls a span is shown on the device as well.
            annotated = {**device, "is_user_annotation": True}
            found += [self._event(*span, **annotated) for span in self.gpu.spans[spans:]]
        return found

    def _event(self, name: str, start: float, end: float, **options: Any) -> FunctionEvent:
        return FunctionEvent(
            id=0,
            name=name,
            thread=0,
            start_us=(start - self.start) * _US,
            end_us=(end - self.start) * _US,
            **options,
        )


def _bound(kind: type, gpu: SimulatedCuda) -> type:
    """The class, whose instances know their device."""
    return type(kind.__name__.removeprefix("_"), (kind,), {"gpu": gpu})


def stand_ins(gpu: SimulatedCuda) -> dict[str, Any]:
    """What takes the place of torch.cuda's own, by name."""
    stream_kind = _bound(_Stream, gpu)

    @contextmanager
    def on_stream(stream) -> Iterator[None]:
        before, gpu.stream = gpu.stream, stream.number
        try:
            yield
        finally:
            gpu.stream = before

    @contextmanager
    def graph(cuda_graph, pool=None, stream=None, capture_error_mode="global") -> Iterator[None]:
        del pool, capture_error_mode
        gpu.graph, gpu.undo = cuda_graph, []
        try:
            with on_stream(stream or stream_kind()):
                yield
            if gpu.uncapturable:
                raise RuntimeError(gpu.uncapturable)
        finally:
            gpu.graph = None
            with torch._C.DisableTorchFunction():  # no work of the device
                for changed, before in reversed(gpu.undo):
                    changed.copy_(before)
        if gpu.forgetful:
            cuda_graph.calls.clear()

    def get_device_properties(device=None) -> SimpleNamespace:
        del device
        return SimpleNamespace(
            name="Simulated GPU",
            total_memory=gpu.total,
            L2_cache_size=gpu.l2,
            multi_processor_count=4,
            shared_memory_per_multiprocessor=1 << 17,
            uuid="00000000-0000-0000-0000-000000000000",
        )

    return {
        "Event": _bound(_Event, gpu),
        "Stream": stream_kind,
        "CUDAGraph": _bound(_Graph, gpu),
        "graph": graph,
        "stream": on_stream,
        "current_stream": lambda device=None: stream_kind.numbered(gpu.stream),  # noqa: ARG005
        "is_current_stream_capturing": lambda: gpu.graph is not None,
        "get_device_properties": get_device_properties,
        "mem_get_info": lambda device=None: (gpu.free, gpu.total),  # noqa: ARG005
        "memory_reserved": lambda device=None: gpu.reserved,  # noqa: ARG005
        "memory_allocated": lambda device=None: gpu.allocated,  # noqa: ARG005
        "synchronize": lambda device=None: gpu.wait("cudaDeviceSynchronize"),  # noqa: ARG005
        "_sleep": lambda cycles: gpu.launch(f"sleep {cycles}", *[time.perf_counter()] * 2),
    }


def _torch_event(gpu: SimulatedCuda) -> Callable[..., _Event]:
    kind = _bound(_Event, gpu)

    def event(device=None, *, enable_timing=False, blocking=False, interprocess=False) -> _Event:
        del device
        return kind(enable_timing, blocking, interprocess)

    return event


class _Generator(torch.Generator):
    def __new__(cls, device="cpu"):
        made = super().__new__(cls, "cpu")
        made.lies_on = torch.device(device)
        return made

    @property
    def device(self) -> torch.device:
        return self.lies_on


@contextmanager
def simulated_cuda(**options: Any) -> Iterator[SimulatedCuda]:
    """Inside, there is a CUDA device of that kind."""
    gpu = SimulatedCuda(**options)
    gpu.spans = []

    @contextmanager
    def record_function(name: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        gpu.spans.append((name, start, time.perf_counter()))

    accelerator = {
        "current_accelerator": lambda check_available=False: torch.device("cuda"),  # noqa: ARG005
        "device_count": lambda: gpu.count,
        "set_device_index": lambda device: setattr(gpu, "current", device),
        "synchronize": lambda device=None: gpu.wait("cudaDeviceSynchronize"),  # noqa: ARG005
    }
    with pytest.MonkeyPatch.context() as patch, _Back(gpu), _Front(gpu):
        for name, stand_in in stand_ins(gpu).items():
            patch.setattr(torch.cuda, name, stand_in)
        for name, stand_in in accelerator.items():
            patch.setattr(torch.accelerator, name, stand_in)
        patch.setattr(torch.profiler, "profile", _bound(_Profile, gpu))
        patch.setattr(torch.profiler, "record_function", record_function)
        patch.setattr(torch, "Event", _torch_event(gpu))
        patch.setattr(torch, "Generator", _Generator)
        yield gpu
