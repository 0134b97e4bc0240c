"""K and V rows into their slots and back, by the C++ kernels, on a CPU.

A plan is made once a step: it has checked shapes and slots, and holds what the layers share. A call
then takes a layer's tensors, and from them addresses alone.
"""

import ctypes
import functools

import numpy as np
import numpy.typing as npt
import torch

from kvbench.devices import cpu_cache_bytes
from kvbench.kernels.native.library import library
from kvbench.kernels.native.structures import (
    CODE_FORMATS,
    ROW_FORMATS,
    SCALE_BYTES,
    check_memory,
    integers,
)
from kvbench.kernels.rows import (
    Slots,
    check_operands,
    check_scales,
    joined,
    scale_strides,
)

BYTES_PER_THREAD = 1 << 18
"""Bytes read and written for which another thread pays. Starting a team takes about 2 µs; measured,
a second thread pays from 0.4 to 0.5 MiB on."""
STREAMED_SHARE = 0.75
"""Bytes read and written, as a share of the last-level cache, from which streaming stores pay: what
a call leaves behind would push itself out. Measured, they pay from 24 to 28 MiB on with 32 MiB of
cache; glibc's memcpy has the same share."""

_ELEMENT_BYTES = (1, 2, 4)
_CODE_WORK = 8
"""Converting a byte takes about so many times as long as copying one."""


class _Side(ctypes.Structure):
    """As Side in move.cpp."""

    _fields_ = integers(
        "heads packs pack row_token row_head row_pack row_element "
        "pool_block pool_slot pool_head pool_pack pool_element scale_block scale_slot scale_head"
    )


class _Plan(ctypes.Structure):
    """As Plan in move.cpp."""

    _fields_ = (
        ("key", _Side),
        ("value", _Side),
        ("slots", ctypes.c_void_p),
        *integers("slot_bytes slot_stride tokens block_size num_slots write element_bytes"),
        *integers("streaming threads"),
        ("bounds", ctypes.c_void_p),
        *integers("row_format code_format per_token"),
    )


class Plan:
    """What the layers of a step share, ready to be run for each.

    Args:
        key: [rows, num_kv_heads, key_dim], any strides; or seen as the slots of an x-packed pool,
            [rows, num_kv_heads, key_dim / x, x]. Of it and of the other tensors, apart from the
            slot mapping, only shapes, strides and dtypes are looked at.
        value: [rows, num_kv_heads, value_dim], with strides of its own.
        key_pool: [num_blocks, block_size, num_kv_heads, key_dim], or x-packed
            [..., key_dim / x, x], any strides.
        value_pool: As key_pool, of value's dim.
        slot_mapping: int32 or int64 [tokens], any stride, on the CPU. Negative slots are skipped.
        write: Whether rows go into slots, or slots into rows.
        key_scale: Of a quantised pool, as in `scatter_quantised_kv`.
        value_scale: As key_scale.
        per_token: Whether each token's scale is computed from its row, and stored by a write.
        threads: As many at most; those of PyTorch by default. A small call takes fewer.
        streaming: Whether to use streaming stores; by default, where what is read and written does
            not fit the last-level cache. Never for a quantised pool, whose conversion is slower.

    Raises:
        ValueError: Shapes or dtypes don't go together, or a slot is past the pool.
        BuildError: There is no library.
    """

    __slots__ = ("_address", "_bounds", "_move", "_plan", "_slots", "tokens")

    def __init__(
        self,
        key: torch.Tensor,
        value: torch.Tensor,
        key_pool: torch.Tensor,
        value_pool: torch.Tensor,
        slot_mapping: torch.Tensor,
        *,
        write: bool,
        key_scale: torch.Tensor | None = None,
        value_scale: torch.Tensor | None = None,
        per_token: bool = False,
        threads: int | None = None,
        streaming: bool | None = None,
    ) -> None:
        check_memory(key, value, key_pool, value_pool, slot_mapping)
        quantised = key_scale is not None and value_scale is not None
        key, value = joined(key), joined(value)
        check_operands(key, value, key_pool, value_pool, slot_mapping, quantised=quantised)
        if key_scale is not None and value_scale is not None:
            scales = {"key_scale": key_scale, "value_scale": value_scale}
            check_scales(key_pool, scales, per_token=per_token)
        _check_formats(key, quantised=quantised)
        _check_slots(slot_mapping, key_pool)
        self.tokens = tokens = len(slot_mapping)
        code_size, row_size = key_pool.element_size(), key.element_size()
        moved = tokens * key.shape[1] * (key.shape[2] + value.shape[2]) * (code_size + row_size)
        work = moved * _CODE_WORK if quantised else moved
        most_threads = torch.get_num_threads() if threads is None else threads
        threads = max(1, min(most_threads, work // BYTES_PER_THREAD, tokens))
        if streaming is None:
            cache = cpu_cache_bytes()
            streaming = cache is not None and moved > STREAMED_SHARE * cache
        streaming = streaming and not quantised
        self._bounds = None
        if write and threads > 1 and not streaming:
            self._bounds = _bounds(slot_mapping.numpy(), threads)
        found = library()
        self._move = found.convert if quantised else found.copy
        self._slots = slot_mapping  # whose memory the plan points into
        self._plan = _Plan(
            key=_side(key, key_pool, key_scale, per_token=per_token),
            value=_side(value, value_pool, value_scale, per_token=per_token),
            slots=slot_mapping.data_ptr(),
            slot_bytes=slot_mapping.element_size(),
            slot_stride=slot_mapping.stride(0) * slot_mapping.element_size(),
            tokens=tokens,
            block_size=key_pool.shape[1],
            num_slots=key_pool.shape[0] * key_pool.shape[1],
            write=write,
            element_bytes=code_size,
            streaming=streaming,
            threads=threads,
            bounds=self._bounds.ctypes.data if self._bounds is not None else None,
            row_format=ROW_FORMATS[key.dtype] if quantised else 0,
            code_format=CODE_FORMATS[key_pool.dtype] if quantised else 0,
            per_token=per_token,
        )
        self._address = ctypes.addressof(self._plan)

    @property
    def threads(self) -> int:
        """Threads that a call takes."""
        return int(self._plan.threads)

    @property
    def streaming(self) -> bool:
        """Whether it uses streaming stores."""
        return bool(self._plan.streaming)

    def run(
        self,
        key: torch.Tensor,
        value: torch.Tensor,
        key_pool: torch.Tensor,
        value_pool: torch.Tensor,
        key_scale: torch.Tensor | None = None,
        value_scale: torch.Tensor | None = None,
    ) -> None:
        """Move a layer's K and V.

        Args:
            key: Of the shape, strides and dtype that were planned for, on the CPU: only its address
                is looked at. So it is with the others. Mutated unless it is a write.
            value: As key.
            key_pool: Mutated by a write.
            value_pool: As key_pool.
            key_scale: Of a plan that has scales; mutated by a write if per_token.
            value_scale: As key_scale.

        Raises:
            IndexError: The slot mapping has been changed, and a slot is past the pool.
        """
        operands = (
            self._address,
            key.data_ptr(),
            value.data_ptr(),
            key_pool.data_ptr(),
            value_pool.data_ptr(),
        )
        if key_scale is None or value_scale is None:
            beyond = self._move(*operands)
        else:
            beyond = self._move(*operands, key_scale.data_ptr(), value_scale.data_ptr())
        if beyond >= 0:
            raise self._past_the_pool(beyond)

    def _past_the_pool(self, token: int) -> IndexError:
        slot, slots = int(self._slots[token]), self._plan.num_slots
        return IndexError(f"slot_mapping[{token}] is {slot}; expected less than {slots}")


def _bounds(slots: npt.NDArray[np.integer], threads: int) -> npt.NDArray[np.int64]:
    """Slots from which on each thread writes, so that all have as many tokens, and the end.

    Blocks that are neighbours in memory go to one thread, in whatever order a sequence has them: a
    core that reads ahead of its stores past the end of a block would take lines that another core
    is writing.
    """
    bounds = np.full(threads + 1, np.iinfo(np.int64).max)
    bounds[0] = 0
    stored = slots[slots >= 0]
    if len(stored):
        ranks = np.arange(1, threads) * len(stored) // threads
        bounds[1:-1] = np.partition(stored, ranks)[ranks]
    return bounds


def _side(
    rows: torch.Tensor, pool: torch.Tensor, scale: torch.Tensor | None, *, per_token: bool
) -> _Side:
    slots = Slots.of(pool)
    scale_of = (0, 0, 0) if scale is None else scale_strides(scale, per_token=per_token)
    sizes = rows.element_size(), pool.element_size()
    return _side_of(rows.shape[1], slots, rows.stride(), scale_of, sizes)


@functools.lru_cache(maxsize=256)
def _side_of(
    heads: int,
    slots: Slots,
    row_strides: tuple[int, ...],
    scale_strides: tuple[int, ...],
    sizes: tuple[int, int],
) -> _Side:
    """The side that strides make; steps mostly have the same. All strides are in elements."""
    row_size, pool_size = sizes
    token, head, element = (stride * row_size for stride in row_strides)
    return _Side(
        heads,
        slots.dim // slots.pack,
        slots.pack,
        token,
        head,
        element * slots.pack,
        element,
        *(stride * pool_size for stride in slots.strides),
        *(stride * SCALE_BYTES for stride in scale_strides),
    )


def _check_formats(key: torch.Tensor, *, quantised: bool) -> None:
    """Refuse rows that the kernels have no code for."""
    if quantised and key.dtype not in ROW_FORMATS:
        formats = ", ".join(map(str, ROW_FORMATS))
        raise ValueError(f"key's dtype is {key.dtype}; expected one of {formats}")
    if key.element_size() not in _ELEMENT_BYTES:
        raise ValueError(f"key's elements have {key.element_size()} bytes; expected 1, 2 or 4")


def _check_slots(slot_mapping: torch.Tensor, key_pool: torch.Tensor) -> None:
    """Refuse what would be read or written out of bounds."""
    if slot_mapping.dtype not in {torch.int32, torch.int64}:
        raise ValueError(
            f"slot_mapping's dtype is {slot_mapping.dtype}; expected torch.int32 or torch.int64"
        )
    slots = key_pool.shape[0] * key_pool.shape[1]
    if len(slot_mapping) and (most := int(slot_mapping.numpy().max())) >= slots:
        raise ValueError(f"slot_mapping has slot {most}; expected less than {slots}")
