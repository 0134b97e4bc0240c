"""What a launch needs, worked out once a step.

A plan is made of the tensors of one layer and then serves every layer, whose tensors are others of
the same kind.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from kvbench.kernels.tiles import Tile


@dataclass(frozen=True, slots=True)
class Operand:
    """What a tensor is like that a plan was made with."""

    name: str
    shape: torch.Size
    strides: tuple[int, ...]
    dtype: torch.dtype

    @classmethod
    def of(cls, name: str, tensor: torch.Tensor) -> "Operand":
        """Of a tensor."""
        return cls(name, tensor.shape, tensor.stride(), tensor.dtype)


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """One launch, but for a layer's own tensors."""

    operands: tuple[Operand, ...]
    """key, value, key_pool, value_pool, and key_scale, value_scale where pools are quantised."""
    launch: Callable[..., None]
    tile: Tile | None = None
    """What a program moves at a time, where that was chosen."""

    def run(self, *tensors: torch.Tensor) -> None:
        """Launch the kernel on a layer's tensors.

        Args:
            tensors: As `operands`: of the shapes, strides and dtypes that the plan was made with.

        Raises:
            ValueError: One is unlike the one that the plan was made with.
        """
        for operand, tensor in zip(self.operands, tensors, strict=True):
            if (
                tensor.stride() != operand.strides
                or tensor.shape != operand.shape
                or tensor.dtype is not operand.dtype
            ):
                now = Operand.of(operand.name, tensor)
                raise ValueError(f"{now}; expected one as the plan was made with, {operand}")
        self.launch(*tensors)
