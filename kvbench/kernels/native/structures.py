"""What the plans of the C++ kernels have in common: fields, and formats by their numbers."""

import ctypes

import torch

ROW_FORMATS = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}
"""As kRowFormats in codes.hpp."""
CODE_FORMATS = {torch.int8: 0, torch.float8_e4m3fn: 1, torch.float8_e5m2: 2}
"""As kCodeFormats in codes.hpp."""
SCALE_BYTES = 4


def integers(names: str) -> list[tuple[str, type[ctypes.c_int64]]]:
    """Fields of a structure that are Int in C++."""
    return [(name, ctypes.c_int64) for name in names.split()]


def check_memory(*tensors: torch.Tensor) -> None:
    """Refuse memory that is not here. A tensor without any stands for one that will be.

    Raises:
        ValueError: A tensor is on another device.
    """
    for tensor in tensors:
        if tensor.device.type not in {"cpu", "meta"}:
            raise ValueError(f"a tensor is on {tensor.device}; expected the CPU")
