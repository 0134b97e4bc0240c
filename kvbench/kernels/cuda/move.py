"""The launch of `move.cu`: operands checked, strides in bytes, the widest vector, compiled once."""

import ctypes
import functools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import torch

from kvbench.cases import Case
from kvbench.kernels.cuda import nvrtc
from kvbench.kernels.plan import Operand, Plan
from kvbench.kernels.recording import is_pretending, pretended
from kvbench.kernels.rows import check_operands

SOURCE = Path(__file__).with_name("move.cu")
"""The kernels."""
VECTORS = {
    16: "uint4",
    8: "uint2",
    4: "unsigned int",
    2: "unsigned short",
    1: "unsigned char",
}
"""The type of a vector, by its bytes."""
SLOTS = {torch.int64: "long long", torch.int32: "int"}
"""The type of a slot."""
THREADS = 256


class Half(ctypes.Structure):
    """K or V: struct Half of move.cu, field by field."""

    _fields_ = (
        ("rows", ctypes.c_void_p),
        ("pool", ctypes.c_void_p),
        ("row_token", ctypes.c_longlong),
        ("row_head", ctypes.c_longlong),
        ("pool_block", ctypes.c_longlong),
        ("pool_slot", ctypes.c_longlong),
        ("pool_head", ctypes.c_longlong),
        ("vectors", ctypes.c_int),
        ("head_vectors", ctypes.c_int),
    )


class Move(ctypes.Structure):
    """The kernels' one parameter: struct Move of move.cu, field by field."""

    _fields_ = (
        ("key", Half),
        ("value", Half),
        ("slot_mapping", ctypes.c_void_p),
        ("slot_mapping_stride", ctypes.c_longlong),
        ("tokens", ctypes.c_longlong),
        ("block_size", ctypes.c_int),
    )


class Function(Protocol):
    """A compiled kernel."""

    def bind(self, blocks: int, threads: tuple[int, int], move: Move) -> Callable[[], None]:
        """Its launch: what `move` holds when it is called is what it works on."""


def unsupported(case: Case, device: torch.device) -> str | None:
    """None if the kernels do this case on this device, else why not."""
    if device.type != "cuda" or torch.version.hip is not None:
        return f"device {device.type}: CUDA C++ is for NVIDIA GPUs alone"
    if case.quantised:
        return f"cache_dtype {case.cache_dtype}: this kernel copies bytes, it does not convert"
    if case.layout == "x-packed":
        return "layout x-packed: the elements of a head don't lie side by side"
    if not is_pretending() and nvrtc.library() is None:
        return "NVRTC (libnvrtc.so) is not installed: there is nothing to compile CUDA C++ with"
    return None


def plan_move(
    kernel: str,
    key: torch.Tensor,
    value: torch.Tensor,
    key_pool: torch.Tensor,
    value_pool: torch.Tensor,
    slot_mapping: torch.Tensor,
) -> Plan:
    """Plan a launch for a step: `run(key, value, key_pool, value_pool)` then moves a layer's rows.

    Args:
        kernel: "scatter_kv", rows to slots; or "gather_kv", slots to rows.
        key: [rows, num_kv_heads, key_dim], rows >= len(slot_mapping); the elements of a head lie
            side by side, all else has any strides.
        value: [rows, num_kv_heads, value_dim], with strides of its own.
        key_pool: [num_blocks, block_size, num_kv_heads, key_dim], as key.
        value_pool: As key_pool, of value's dim.
        slot_mapping: int32 or int64 [tokens], any stride. Negative slots are skipped.

    Raises:
        ValueError: Shapes or dtypes don't go together, or the elements of a head lie apart.
        nvrtc.CompilationError: The kernel can't be compiled for the GPU.
    """
    check_operands(key, value, key_pool, value_pool, slot_mapping)
    names = ("key", "value", "key_pool", "value_pool")
    layer = (key, value, key_pool, value_pool)
    for name, tensor in zip(names, layer, strict=True):
        if tensor.stride(-1) != 1 and tensor.shape[-1] > 1:
            raise ValueError(f"{name}'s last stride is {tensor.stride(-1)}; expected 1")
    operands = tuple(map(Operand.of, names, layer))
    launch = pretended(kernel)
    if launch is None and len(slot_mapping) == 0:
        return Plan(operands, lambda *_: None)
    return Plan(operands, launch or _launch(kernel, layer, slot_mapping))


class _Launch:
    """A compiled kernel with all of its parameter but where a layer's own tensors begin."""

    def __init__(
        self, call: Callable[[], None], move: Move, width: int, slot_mapping: torch.Tensor
    ) -> None:
        self._call, self._move, self._width = call, move, width
        self._slot_mapping = slot_mapping  # `move` has its address alone: it has to live as long

    def __call__(
        self,
        key: torch.Tensor,
        value: torch.Tensor,
        key_pool: torch.Tensor,
        value_pool: torch.Tensor,
    ) -> None:
        move = self._move
        rows, pool = key.data_ptr(), key_pool.data_ptr()
        move.key.rows, move.key.pool = rows, pool
        addresses = rows | pool
        rows, pool = value.data_ptr(), value_pool.data_ptr()
        move.value.rows, move.value.pool = rows, pool
        if (addresses | rows | pool) % self._width:
            raise ValueError(
                f"a tensor begins at no multiple of {self._width} bytes; expected one, as in the "
                "layer that was planned with"
            )
        self._call()


def _launch(
    kernel: str, layer: tuple[torch.Tensor, ...], slot_mapping: torch.Tensor
) -> Callable[..., None]:
    key, value, key_pool, value_pool = layer
    halves = [_Lengths.of(key, key_pool), _Lengths.of(value, value_pool)]
    addresses = [tensor.data_ptr() for tensor in layer]
    width = math.gcd(max(VECTORS), *addresses, *(n for half in halves for n in half.all))
    move = Move(
        key=halves[0].half(width),
        value=halves[1].half(width),
        slot_mapping=slot_mapping.data_ptr(),
        slot_mapping_stride=slot_mapping.stride(0) * slot_mapping.element_size(),
        tokens=len(slot_mapping),
        block_size=key_pool.shape[1],
    )
    most = max(move.key.vectors, move.value.vectors)
    along_row = min(1 << (most - 1).bit_length(), THREADS)
    tokens = THREADS // along_row
    device = slot_mapping.device
    multiprocessors, blocks_each = holds(device)
    blocks = min(-(-len(slot_mapping) // tokens), multiprocessors * blocks_each)
    expression = f"{kernel}<{VECTORS[width]}, {SLOTS[slot_mapping.dtype]}, {blocks_each}>"
    call = compiled(expression, device).bind(blocks, (along_row, tokens), move)
    return _Launch(call, move, width, slot_mapping)


class _Lengths:
    """Lengths and strides of K or V, in bytes."""

    def __init__(self, heads: int, head: int, strides: tuple[int, ...]) -> None:
        self.heads, self.head, self.strides = heads, head, strides

    @classmethod
    def of(cls, rows: torch.Tensor, pool: torch.Tensor) -> "_Lengths":
        """Of rows and their pool; heads that lie one behind the other in both are one."""
        size = rows.element_size()
        heads, head = rows.shape[1], rows.shape[2] * size
        row_token, row_head = (n * size for n in rows.stride()[:2])
        block, slot, pool_head = (n * size for n in pool.stride()[:3])
        if row_head == pool_head == head:
            heads, head = 1, heads * head
        if heads == 1:
            row_head = pool_head = head  # whatever torch says of the stride of one head
        return cls(heads, head, (row_token, row_head, block, slot, pool_head))

    @property
    def all(self) -> tuple[int, ...]:
        """Everything that has to be a multiple of a vector."""
        return (self.head, *self.strides)

    def half(self, width: int) -> Half:
        """As the kernels take it, but for where it begins."""
        each = self.head // width
        return Half(None, None, *self.strides, self.heads * each, each)


def holds(device: torch.device) -> tuple[int, int]:
    """A GPU's multiprocessors, and the blocks that each has room for."""
    properties = torch.cuda.get_device_properties(device)
    threads = properties.max_threads_per_multi_processor
    return properties.multi_processor_count, threads // THREADS


@functools.cache
def compiled(expression: str, device: torch.device) -> Function:
    """A kernel for a GPU; compiled once in a process."""
    major, minor = torch.cuda.get_device_capability(device)
    source = SOURCE.read_text(encoding="utf-8")
    return _OnGpu(*nvrtc.compile_kernel(source, expression, f"sm_{major}{minor}"))


class _OnGpu:
    """A kernel that torch has loaded onto the current GPU."""

    def __init__(self, code: bytes, name: str) -> None:
        from torch.cuda import _utils  # noqa: PLC0415 - where there is a driver alone

        self._utils = _utils
        self._kernel = _utils._cuda_load_module(code, [name])[name]  # type: ignore[index] # noqa: SLF001
        self._driver = _utils._get_gpu_runtime_library()  # noqa: SLF001

    def bind(self, blocks: int, threads: tuple[int, int], move: Move) -> Callable[[], None]:
        """See `Function`. The driver copies the parameter before a launch returns."""
        launch, function = self._driver.cuLaunchKernel, self._kernel.func
        check, current_stream = self._utils._check_cuda, torch.cuda.current_stream  # noqa: SLF001
        parameters = (ctypes.c_void_p * 1)(ctypes.addressof(move))

        def call() -> None:
            stream = ctypes.c_void_p(current_stream().cuda_stream)
            check(launch(function, blocks, 1, 1, *threads, 1, 0, stream, parameters, None))

        return call
