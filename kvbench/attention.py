"""What attention over a context is, in float64, and how far from it an implementation may be.

Query t of T stands at position p = length - T + t and sees positions max(0, p - window + 1) to p;
one that sees nothing gives 0. A score is scale * q . k, bounded by a soft cap if there is one; the
output is the sum of V weighted with the softmax of the scores.

The tolerance is derived, for each element of the output. An implementation has scores and sums in
float32, and may round weights, what it makes of codes, and the output to its dtype, once each. With
u the unit roundoff of the dtype, e = 2**-24 that of float32, n the tokens seen and D = head_dim:

- a score s = scale * q . k is off by ds = scale * sum |q||k| * ((D + 4) e + u if quantised), and by
  4 e * cap if it is capped, which makes no error larger;
- a weight exp(s), divided by the sum of weights, is off by a factor of 1 + g with
  g = expm1(ds) + (n + 8 + 2 |s - max|) e + 2 u: its exponent, n additions, its own rounding (or
  what cutting digits off does), and that of V if quantised; and by the dtype's smallest number;
- so the output, sum p v, is off by sum p g |v| + |out| sum p g, and by 2 u |out| for itself.

Terms of second order are covered by one eighth on top.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from kvbench.cases import Case

Array = npt.NDArray[Any]

UNIT_ROUNDOFFS = {"fp32": 2.0**-24, "fp16": 2.0**-11, "bf16": 2.0**-8}
_SMALLEST = {"fp32": 2.0**-126, "fp16": 2.0**-24, "bf16": 2.0**-126}
"""What is next to zero may be off by it: fp16 has no smaller number, the others' may count as 0."""
_FLOAT32 = 2.0**-24
_SECOND_ORDER = 9 / 8
_SCORES_AT_ONCE = 1 << 20


@dataclass(frozen=True, slots=True, eq=False)
class Right:
    """What an attention's output should be, and how far each element may be from it."""

    output: Array
    """float64 [queries, num_heads, value_head_dim]."""
    tolerance: Array
    """As output."""

    def wrong(self, actual: Array) -> npt.NDArray[np.bool_]:
        """Where an output, of the same shape, is out of tolerance, or no number."""
        with np.errstate(invalid="ignore"):
            wrong: npt.NDArray[np.bool_] = ~(np.abs(actual - self.output) <= self.tolerance)
        return wrong


def attend(query: Array, key: Array, value: Array, case: Case, length: int) -> Right:
    """The attention of one sequence's queries over its context.

    Args:
        query: float64 [query_len, num_heads, head_dim].
        key: K of the positions from `case.first_visible(length)` to the end of the context, float64
            [positions, num_kv_heads, head_dim].
        value: V of the same, float64 [positions, num_kv_heads, value_head_dim].
        case: Heads, scale, window, cap and dtype.
        length: Positions in the context.
    """
    shape = (*query.shape[:2], value.shape[2])
    right = Right(np.zeros(shape), np.zeros(shape))
    group = query.shape[1] // key.shape[1]
    rows = max(_SCORES_AT_ONCE // max(len(key) * group, 1), 1)
    # The positions of queries that see anything.
    first_query = max(len(query) - length, 0)
    for kv_head in range(key.shape[1]):
        heads = slice(kv_head * group, (kv_head + 1) * group)
        for start in range(first_query, len(query), rows):
            some = slice(start, min(start + rows, len(query)))
            positions = np.arange(some.start, some.stop) + length - len(query)
            right.output[some, heads], right.tolerance[some, heads] = _attend(
                query[some, heads], key[:, kv_head], value[:, kv_head], positions, case, length
            )
    return right


def _attend(
    query: Array, key: Array, value: Array, positions: Array, case: Case, length: int
) -> tuple[Array, Array]:
    """Output and tolerance of queries [queries, heads, head_dim] that share one head of K and V."""
    flat, unit = query.reshape(-1, query.shape[2]), UNIT_ROUNDOFFS[case.dtype]
    scores = case.softmax_scale * (flat @ key.T)
    products = case.softmax_scale * (np.abs(flat) @ np.abs(key).T)
    off = products * ((flat.shape[1] + 4) * _FLOAT32 + (unit if case.quantised else 0))
    if case.soft_cap:
        scores = case.soft_cap * np.tanh(scores / case.soft_cap)
        off += 4 * _FLOAT32 * case.soft_cap
    at = np.arange(case.first_visible(length), length)
    own = np.repeat(positions, query.shape[1])[:, np.newaxis]
    seen = at <= own
    if case.sliding_window:
        seen &= at > own - case.sliding_window
    scores = np.where(seen, scores, -np.inf)
    below = scores - scores.max(axis=1, keepdims=True)
    weights = np.exp(below)
    weights /= weights.sum(axis=1, keepdims=True)
    counts = seen.sum(axis=1, keepdims=True)
    with np.errstate(over="ignore", invalid="ignore"):  # a weight of 0 has no factor
        factors = np.expm1(off) + (counts + 8 - 2 * below) * _FLOAT32 + 2 * unit
        errors = np.where(weights > 0, weights * factors, 0.0)
    errors += seen * _SMALLEST[case.dtype] * weights.max(axis=1, keepdims=True)
    output = weights @ value
    tolerance = errors @ np.abs(value) + np.abs(output) * errors.sum(axis=1, keepdims=True)
    tolerance = _SECOND_ORDER * (tolerance + 2 * unit * np.abs(output)) + _SMALLEST[case.dtype]
    shape = (*query.shape[:2], value.shape[1])
    return output.reshape(shape), tolerance.reshape(shape)
