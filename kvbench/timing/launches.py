"""Launches predicted without a GPU: the stream of ops that a call sends to fake CUDA tensors.

A fake tensor has a shape, strides and a device, and no memory. PyTorch runs the same Python and
dispatcher code on it as on a real one, so that what reaches the dispatcher is what would have been
launched. Views launch nothing; allocations launch nothing; every other op is a kernel, or a memcpy
where PyTorch makes one. A prediction is marked as one; on a GPU it is held against the profiler.

On a build without CUDA a few entry points ask for a device guard that is not there before they
reach the dispatcher: indexing syntax, `to`, `copy_`. They are taken to the ops they stand for.
Events, and the memory of host tensors as NumPy sees it, have stand-ins.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.functional import scaled_dot_product_attention
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from kvbench.kernels.recording import pretended, pretending, recording
from kvbench.results import LaunchCounts

_ALLOCATIONS = {
    "empty",
    "empty_like",
    "empty_strided",
    "new_empty",
    "new_empty_strided",
    "resize_",
    "set_",
    "_unsafe_view",
    "device",
    "detach",
    "lift_fresh",
}
_SCAN_KERNELS = 2
"""Of CUB's scan: one that sets its state up, one that scans."""
_KERNELS = {"cumsum": _SCAN_KERNELS, "repeat_interleave": _SCAN_KERNELS + 1}
"""Kernels of ops that launch more than one. repeat_interleave begins with a cumsum."""
_CAT_INPUTS_PER_KERNEL = 128
"""Tensors that one launch of PyTorch's CatArrayBatchedCopy takes."""

_ATEN = torch.ops.aten


class _Counter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.kernels = 0
        self.memcpys = 0
        self.synchronizations = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._count(func, args, kwargs or {})
        if func is _ATEN.copy_.default:
            return args[0]  # a fake copy changes nothing, and a loop makes thousands
        return func(*args, **(kwargs or {}))

    def _count(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        name = func._schema.name.partition("::")[2]
        if name == "_local_scalar_dense":
            self.memcpys += 1
            self.synchronizations += 1
        elif name in {"_to_copy", "copy_"}:
            self._count_copy(name, args, kwargs)
        elif func.is_view or name in _ALLOCATIONS or not _on_device(args, kwargs):
            return
        elif name == "clone" and args[0].is_contiguous():
            self.memcpys += 1
        elif name == "cat":
            self.kernels += math.ceil(len(args[0]) / _CAT_INPUTS_PER_KERNEL)
        else:
            self.kernels += _KERNELS.get(name, 1)

    def _count_copy(self, name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        if name == "_to_copy":
            source = args[0]
            device = torch.device(kwargs.get("device") or source.device)
            dtype = kwargs.get("dtype") or source.dtype
            dense = source.is_contiguous()
        else:
            target, source = args[0], args[1]
            device, dtype = target.device, target.dtype
            same_shape = target.shape == source.shape
            dense = same_shape and target.is_contiguous() and source.is_contiguous()
        if device.type == source.device.type == "cpu":
            return
        if device.type != source.device.type:
            # An upload or a download. From pageable memory, or blocking, it waits for the stream.
            self.memcpys += 1
            if not kwargs.get("non_blocking"):
                self.synchronizations += 1
        elif dense and dtype == source.dtype:
            self.memcpys += 1
        else:
            self.kernels += 1


def _on_device(args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    if "device" in kwargs and kwargs["device"] is not None:
        return torch.device(kwargs["device"]).type != "cpu"
    flat = list(kwargs.values())
    for arg in args:
        flat += arg if isinstance(arg, list | tuple) else [arg]
    return any(isinstance(a, torch.Tensor) and a.device.type != "cpu" for a in flat)


def _dense(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.is_contiguous():
        return tensor
    copied: torch.Tensor = _ATEN.clone.default(tensor)
    return copied


class _Event:
    """Stands in for torch.Event: nothing is ever under way."""

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def query(self) -> bool:
        """It has come to pass."""
        return True

    def record(self, *_: object) -> None:
        """Nothing."""

    wait = synchronize = record


def _host_memory(tensor: torch.Tensor) -> npt.NDArray[Any]:
    """Memory of a host tensor's shape, of any content: what NumPy computes launches nothing."""
    return np.zeros(tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."))


class FusedAttention:
    """The assumption that scaled_dot_product_attention is one kernel, and how often it was made.

    Its launches can't be known here: it has the kernels of a backend that PyTorch chooses by the
    device, in one piece or split over the context and merged. On fake tensors PyTorch takes the
    backend that needs no GPU, whose ops are no GPU's. Flash and memory-efficient attention are one
    kernel where they don't split, and lay their output's heads out within its rows.
    """

    def __init__(self) -> None:
        self.calls: int = 0

    def attend(
        self,
        query: torch.Tensor,
        key: torch.Tensor,  # noqa: ARG002 - as scaled_dot_product_attention takes it
        value: torch.Tensor,
        *_: object,
        **__: object,
    ) -> torch.Tensor:
        """An output of [batch, heads, rows, dim] that one kernel has made."""
        self.calls += 1
        launch = pretended("scaled_dot_product_attention")
        if launch is not None:
            launch()
        batch, heads, rows, _dim = query.shape
        return query.new_empty((batch, rows, heads, value.shape[3])).transpose(1, 2)


def _unknown(*_: object, **__: object) -> Any:
    raise NotImplementedError("what scaled_dot_product_attention launches is not predicted")


class _GuardFree(TorchFunctionMode):
    """Takes indexing syntax, `Tensor.to` and `copy_` to the ops they stand for."""

    def __init__(self, fake: FakeTensorMode, attention: FusedAttention | None) -> None:
        super().__init__()
        self._fake = fake
        self._attend = _unknown if attention is None else attention.attend
        self._rows: dict[tuple[int, int], tuple[torch.Tensor, torch.Tensor]] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        routes: dict[Any, Callable[..., Any]] = {
            torch.Tensor.__getitem__: self._index,
            torch.Tensor.__setitem__: self._assign,
            torch.Tensor.to: self._to,
            torch.Tensor.copy_: _ATEN.copy_.default,
            torch.Tensor.contiguous: _dense,
            torch.Tensor.numpy: _host_memory,
            torch.Tensor.item: _ATEN._local_scalar_dense.default,
            scaled_dot_product_attention: self._attend,
        }
        route: Any = routes.get(func, func)
        return route(*args, **(kwargs or {}))

    def _to(self, tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        target = kwargs.pop("device", None) or (args[0] if args else None)
        if not isinstance(target, torch.device | str):
            return tensor.to(*args, **kwargs)  # a change of dtype asks for no guard
        device = torch.device(target)
        dtype = kwargs.pop("dtype", None)
        dtype = dtype or next((arg for arg in args if isinstance(arg, torch.dtype)), tensor.dtype)
        if tensor.device.type == device.type:
            return tensor if dtype == tensor.dtype else tensor.to(dtype)
        fake = tensor if hasattr(tensor, "fake_mode") else self._fake.from_tensor(tensor)
        return _ATEN._to_copy.default(fake, device=device, dtype=dtype, **kwargs)

    def _index(self, tensor: torch.Tensor, key: Any) -> torch.Tensor:
        view, indices = self._views(tensor, key)
        if any(index is not None for index in indices):
            gathered: torch.Tensor = _ATEN.index.Tensor(view, indices)
            return gathered
        return view

    def _assign(self, tensor: torch.Tensor, key: Any, value: torch.Tensor) -> None:
        view, indices = self._views(tensor, key)
        if any(index is not None for index in indices):
            _ATEN.index_put_.default(view, indices, value)
        else:
            _ATEN.copy_.default(view, value)

    def _views(
        self, tensor: torch.Tensor, key: Any
    ) -> tuple[torch.Tensor, list[torch.Tensor | None]]:
        """Integers and slices as views, and the index tensors that are left for a gather."""
        indices: list[torch.Tensor | None] = []
        items = list(key) if isinstance(key, tuple) else [key]
        if any(item is Ellipsis for item in items):
            at = next(i for i, item in enumerate(items) if item is Ellipsis)
            whole = tensor.dim() - sum(item is not None for item in items) + 1
            items[at : at + 1] = [slice(None)] * whole
        dim = 0
        for item in items:
            if isinstance(item, int):
                tensor = self._select(tensor, dim, item)
                continue
            if item is None:
                tensor = _ATEN.unsqueeze.default(tensor, dim)
                indices.append(None)
            elif isinstance(item, slice):
                if item != slice(None):
                    start, stop, step = item.indices(tensor.shape[dim])
                    tensor = _ATEN.slice.Tensor(tensor, dim, start, stop, step)
                indices.append(None)
            elif isinstance(item, torch.Tensor):
                indices.append(item)
            else:
                raise TypeError(f"index {item!r}: expected an integer, a slice or a tensor")
            dim += 1
        return tensor, indices

    def _select(self, tensor: torch.Tensor, dim: int, index: int) -> torch.Tensor:
        """One row. Without memory all rows are alike: one view serves them all."""
        if not -tensor.shape[dim] <= index < tensor.shape[dim]:
            raise IndexError(f"index {index} is out of bounds for dimension {dim}")
        key = (id(tensor), dim)
        if key not in self._rows:
            # The tensor is kept as well, so that its id stays its own.
            self._rows[key] = (tensor, _ATEN.select.int(tensor, dim, 0))
        return self._rows[key][1]


@contextmanager
def fake_cuda(attention: FusedAttention | None = None) -> Iterator[FakeTensorMode]:
    """Inside, tensors made on "cuda" are fake ones, on any machine.

    Args:
        attention: The assumption about torch's attention; without it, a call of it raises.
    """
    import_module("torch._dynamo")  # fakes import it, and it derives a class from torch.Event
    event: Any = torch.Event
    torch.Event = _Event  # type: ignore[assignment,misc]
    try:
        fakes = FakeTensorMode(allow_non_fake_inputs=True)
        with pretending(), fakes as fake, _GuardFree(fake, attention):
            yield fake
    finally:
        torch.Event = event  # type: ignore[misc]


def predict_launches(call: Callable[[], object]) -> LaunchCounts:
    """What a call on fake CUDA tensors would launch. To be called inside `fake_cuda()`."""
    counter = _Counter()
    with counter, recording() as kernels:
        call()
    return LaunchCounts(
        kernels=counter.kernels + len(kernels),
        memcpys=counter.memcpys,
        synchronizations=counter.synchronizations,
        source="predicted",
    )
