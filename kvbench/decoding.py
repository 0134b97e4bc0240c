"""What a decode step of a model gives: attention in float64, all else as the model itself does it.

The reference runs the case's own model, in its dtype and on its device. In every layer it takes the
context's K and V from the pools as they were before the step, adds the new token's own, attends in
float64, and rounds the output to the dtype once. So in layer 0 the new K and V are those of any
right step, bit for bit. From then on hidden states differ by the rounding of attention, which
what follows rounds again, and so do K, V and logits. How far they may be apart can't be derived: it
depends on the weights. So the limit is a measured one, of the norms of rows, and grows as the sum
of independent errors does: |row - right| <= ROUNDOFFS * u * sqrt(layers) * |right|, with u the unit
roundoff of the dtype and `layers` the attentions that went before. Right steps came to a third of
it at most, of 1 to 8 layers and contexts of 20 to 2,000 tokens; the tests hold it against faults.

Where logits are within the limit, so is the likeliest token: it is the right one, unless the right
logits of two are closer than that.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from kvbench.attention import UNIT_ROUNDOFFS, Array, attend
from kvbench.cases import Case
from kvbench.workload import TORCH_DTYPES, Workload

ROUNDOFFS = {"fp32": 40.0, "fp16": 10.0, "bf16": 10.0}
"""How many unit roundoffs of a dtype one attention may put a row off. In 16 bits it is one rounding
of the weights and one of the output, as sums are float32; in float32 sums round in every addition.
"""
Context = Callable[[int, int], tuple[Array, Array]]
"""K and V of a layer and a sequence, but for its last token, float64 [length - 1, heads, dim]."""


@dataclass(frozen=True, slots=True, eq=False)
class RightStep:
    """What a step should leave, and give."""

    keys: tuple[Array, ...]
    """Of each layer, the new tokens' K, float64 [batch, num_kv_heads, head_dim]."""
    values: tuple[Array, ...]
    """V, as keys."""
    logits: Array
    """float64 [batch, VOCABULARY]."""


def tolerance(case: Case, layers: int) -> float:
    """How far a row may be from the right one, as a share of its norm, after so many attentions."""
    return ROUNDOFFS[case.dtype] * math.sqrt(layers) * UNIT_ROUNDOFFS[case.dtype]


def distances(actual: Array, right: Array) -> Array:
    """How far each row is from the right one, as a share of its norm, [rows]; inf if no number."""
    flat, expected = (
        rows.reshape(len(rows), math.prod(rows.shape[1:])) for rows in (actual, right)
    )
    with np.errstate(invalid="ignore", over="ignore"):
        apart: Array = np.linalg.norm(flat - expected, axis=1) / np.linalg.norm(expected, axis=1)
    found: Array = np.nan_to_num(apart, nan=np.inf)
    return found


class _Reference:
    """The K and V of a step's sequences, attended over in float64: a `engine.model.Cache`."""

    def __init__(self, workload: Workload, context: Context) -> None:
        self._workload, self._context = workload, context
        self.keys: list[Array] = []
        self.values: list[Array] = []

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> torch.Tensor:
        """As `engine.model.Cache`."""
        case = self._workload.case
        queries, keys, values = (rows.double().cpu().numpy() for rows in (query, key, value))
        self.keys.append(keys)
        self.values.append(values)
        output = np.zeros((len(queries), case.num_heads, case.value_head_dim))
        for sequence, length in enumerate(self._workload.lengths):
            own = slice(sequence, sequence + 1)
            before = self._context(layer, sequence)
            whole_key, whole_value = (
                np.concatenate(pair) for pair in zip(before, (keys[own], values[own]), strict=True)
            )
            output[own] = attend(queries[own], whole_key, whole_value, case, length).output
        return torch.from_numpy(output).to(TORCH_DTYPES[case.dtype]).to(query.device)


def right_step(workload: Workload, context: Context) -> RightStep:
    """What a step of a workload should leave and give.

    Args:
        workload: Of a step: its model, tokens and lists; its pools are not looked at.
        context: What they hold.
    """
    w, reference = workload, _Reference(workload, context)
    assert w.model is not None and w.tokens is not None  # noqa: S101, PT018 - a step has both
    positions = torch.tensor([length - 1 for length in w.lengths], device=w.device)
    logits = w.model(w.tokens, positions.long(), reference)
    return RightStep(tuple(reference.keys), tuple(reference.values), logits.double().cpu().numpy())
