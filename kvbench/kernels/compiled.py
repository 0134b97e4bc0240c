"""Indexing over flat slots under torch.compile: one graph stores, or loads, both K and V.

What a model fixes (heads, their size, dtypes, strides within a row) is fixed in the compiled code.
What changes from step to step (tokens, slots) is not, so that no size is compiled for anew. One row
alone is code of its own: PyTorch takes a size of 1 for fixed.

Rows and slots that are moved as they are come as integers (`quantisation.as_integers`): Inductor
takes fp16 and bf16 through float32, which changes NaN.
"""

import functools
import importlib.util
import os
import shutil
import sys
import sysconfig
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from kvbench.quantisation import decode, encode, token_scales

_MOST_VARIANTS = 4096
"""Of one function. PyTorch's own limit is 8; a sweep has more kinds of heads."""
_LENGTHS = (256, 512, 1024)
"""First sizes of the tensors that code is compiled with, the least first: Inductor picks block
sizes and threads by them, and they should not depend on which case came first."""

Operand = torch.Tensor | None


class Compiled:
    """A function of tensors, compiled for each kind of them ahead of its calls.

    Tensors of one dimension (slots, rows, scales of tokens) and of three (rows, flat slots) have a
    first size that changes; those of two (scales that are given) have fixed sizes.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._ready: set[tuple[Any, ...]] = set()

    def ready(self, *operands: Operand) -> None:
        """Compile what a call with such tensors needs, unless it is there; they are left alone.

        Raises:
            TypeError: Fake tensors, which predict launches: what Inductor makes of a graph is not
                known from its ops, and a graph that was refused once is never compiled.
            RuntimeError: It can't be compiled as one graph. There is no falling back.
        """
        if any(hasattr(operand, "fake_mode") for operand in operands):
            raise TypeError(
                "torch.compile: what Inductor makes of a graph is not known from its ops"
            )
        kinds = tuple(map(_kind, operands))
        if kinds in self._ready:
            return
        found = {len(t) for t in operands if t is not None and not _is_fixed(t)} - {1}
        lengths = {1: 1, **dict(zip(sorted(found), _LENGTHS, strict=False))}
        with quiet():
            _compile(self._function)(*(_stand_in(operand, lengths) for operand in operands))
        self._ready.add(kinds)

    def __call__(self, *operands: Operand) -> Any:
        """Call it."""
        return _compile(self._function)(*operands)


@contextmanager
def quiet() -> Iterator[None]:
    """Compile without the warnings that are PyTorch's own business."""
    with warnings.catch_warnings():
        # What torch.compile imports uses what PyTorch itself deprecates.
        warnings.simplefilter("ignore", DeprecationWarning)
        yield


def configure() -> None:
    """Set what torch.compile has one setting of for all functions."""
    import torch._dynamo.config as dynamo  # noqa: PLC0415 - slow to import
    import torch._inductor.config as inductor  # noqa: PLC0415 - slow to import

    # Beyond it the function would run as it is, were it not for fullgraph, which raises.
    dynamo.recompile_limit = max(dynamo.recompile_limit, _MOST_VARIANTS)
    dynamo.accumulated_recompile_limit = max(dynamo.accumulated_recompile_limit, _MOST_VARIANTS)
    inductor.compile_threads = 1  # no processes beside what is timed


@functools.cache
def _compile(function: Callable[..., Any]) -> Callable[..., Any]:
    configure()
    return torch.compile(function, fullgraph=True, dynamic=True)


def _is_fixed(tensor: torch.Tensor) -> bool:
    return tensor.dim() == 2


def _heads_outermost(tensor: torch.Tensor) -> bool:
    return tensor.dim() > 1 and tensor.stride(0) < tensor.stride(1)


def _kind(tensor: Operand) -> tuple[Any, ...] | None:
    if tensor is None:
        return None
    sizes = tuple(tensor.shape[0 if _is_fixed(tensor) else 1 :])
    strides = None if _heads_outermost(tensor) else tensor.stride()
    return sizes, strides, tensor.dtype, tensor.device, len(tensor) == 1


def _stand_in(tensor: Operand, lengths: dict[int, int]) -> Operand:
    """A tensor of the kind of another, its first size marked as one that changes."""
    import torch._dynamo as dynamo  # noqa: PLC0415 - slow to import

    if tensor is None:
        return None
    if _is_fixed(tensor):
        made = torch.ones_like(tensor)
        dynamo.mark_static(made)
        return made
    length, strides = lengths[len(tensor)], tensor.stride()
    if tensor.dtype in {torch.int32, torch.int64} and tensor.dim() == 1:
        made = torch.arange(length, dtype=tensor.dtype, device=tensor.device)
    else:
        if _heads_outermost(tensor):
            # A row more, as there is behind the last token where rows are padded.
            strides = (strides[0], (length + 1) * strides[0], *strides[2:])
        # No view of anything: what a view is of would be part of its kind.
        made = torch.empty_strided(
            (length, *tensor.shape[1:]), strides, dtype=tensor.dtype, device=tensor.device
        ).zero_()
    if length > 1:
        dynamo.mark_dynamic(made, 0)
    for dim in range(1, made.dim()):
        dynamo.mark_static(made, dim)
    return made


def _store(
    key: torch.Tensor,
    value: torch.Tensor,
    key_pool: torch.Tensor,
    value_pool: torch.Tensor,
    slots: torch.Tensor,
    rows: Operand,
) -> None:
    if rows is not None:
        key, value = key[rows], value[rows]
    key_pool[slots] = key
    value_pool[slots] = value


def _store_codes(
    key: torch.Tensor,
    value: torch.Tensor,
    key_pool: torch.Tensor,
    value_pool: torch.Tensor,
    key_scale: torch.Tensor,
    value_scale: torch.Tensor,
    slots: torch.Tensor,
    rows: Operand,
) -> None:
    if rows is not None:
        key, value = key[rows], value[rows]
    for values, pool, scale in ((key, key_pool, key_scale), (value, value_pool, value_scale)):
        if _is_fixed(scale):
            pool[slots] = encode(values, scale, pool.dtype)
        else:
            scales = token_scales(values, pool.dtype)
            scale[slots] = scales
            pool[slots] = encode(values, scales[:, None], pool.dtype)


def _load_into(
    key_pool: torch.Tensor,
    value_pool: torch.Tensor,
    slots: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
) -> None:
    key.copy_(key_pool[slots])
    value.copy_(value_pool[slots])


def _load_codes_into(
    key_pool: torch.Tensor,
    value_pool: torch.Tensor,
    key_scale: torch.Tensor,
    value_scale: torch.Tensor,
    slots: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
) -> None:
    for rows, pool, scale in ((key, key_pool, key_scale), (value, value_pool, value_scale)):
        scales = scale if _is_fixed(scale) else scale[slots][:, None]
        rows.copy_(decode(pool[slots], scales, rows.dtype))


store = Compiled(_store)
"""store(key, value, key_pool, value_pool, slots, rows): rows [tokens, heads, dim] into flat slots
[slots, heads, dim], as integers; slots [tokens] and, where not all rows go, `rows` [tokens]."""
store_codes = Compiled(_store_codes)
"""As `store`, into codes, with scales of K and V before the slots: [1, 1] or [1, heads] given, or
[slots], stored as well."""
load_into = Compiled(_load_into)
"""load_into(key_pool, value_pool, slots, key, value): flat slots into rows, as integers."""
load_codes_into = Compiled(_load_codes_into)
"""As `load_into`, from codes, with scales of K and V before the slots."""


def unsupported(device: torch.device) -> str | None:
    """None if torch.compile can make code for this device, else what is missing."""
    if device.type != "cpu":
        if importlib.util.find_spec("triton") is None:
            return "torch.compile: the package triton is not installed"
        return None
    compiler = os.environ.get("CXX", "clang++" if sys.platform == "darwin" else "g++")
    if shutil.which(compiler) is None:
        return f"torch.compile: there is no C++ compiler {compiler!r} (CXX names another)"
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        return "torch.compile: Python's headers are not installed (Python.h)"
    return None
