"""A second stream of a device, for work that may go on beside that of the current one."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

NO_STREAMS = "a CPU has no streams: its calls end one after the other"


class Side:
    """A stream beside the current one of a tensor's device.

    Fake tensors, which stand in where launches are predicted, and a CPU's have none: what is called
    beside is called in turn.

    Args:
        tensor: Any of those that will be worked on.
    """

    def __init__(self, tensor: torch.Tensor) -> None:
        self._module: Any = None
        if tensor.device.type != "cpu" and not isinstance(tensor, FakeTensor):
            self._module = torch.get_device_module(tensor.device)
            self._stream = self._module.Stream(device=tensor.device)

    @contextmanager
    def beside(self) -> Iterator[None]:
        """Inside, work goes to the second stream, which begins where the current one is by now.

        What comes after `join` waits for it. Both are events in a graph that is captured meanwhile.
        Memory that is allocated inside belongs to the second stream: allocate outside.
        """
        if self._module is None:
            yield
            return
        self._stream.wait_stream(self._module.current_stream())
        with self._module.stream(self._stream):
            yield

    def join(self) -> None:
        """Let the current stream wait for what went to the second."""
        if self._module is not None:
            self._module.current_stream().wait_stream(self._stream)
