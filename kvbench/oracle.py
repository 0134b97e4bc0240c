"""What each op means, written for reading, and the check of a strategy against it.

The slot arithmetic here is the oracle's own, so that a mistake in `pool` can't hide. The whole
pool is compared bit for bit, slots that belong to no token included.
"""

import numpy as np
import numpy.typing as npt
import torch

from kvbench.strategies.base import Strategy
from kvbench.workload import Workload, fill

Bits = npt.NDArray[np.integer]
_BIT_TYPES = {2: torch.int16, 4: torch.int32}


def bits(tensor: torch.Tensor) -> Bits:
    """A tensor's elements as integers of their size, copied to the host: NaN equals itself."""
    integers = tensor.contiguous().view(_BIT_TYPES[tensor.element_size()])
    return integers.to("cpu", copy=True).numpy()


def token_slots(workload: Workload) -> list[tuple[int, int]]:
    """The (physical block, slot in it) of every token, sequence after sequence."""
    places = []
    for table, start, length in zip(
        workload.block_tables, workload.starts, workload.lengths, strict=True
    ):
        for position in range(start, start + length):
            block, slot = divmod(position, workload.block_size)
            places.append((table[block], slot))
    return places


def written(pool: Bits, rows: Bits, places: list[tuple[int, int]]) -> Bits:
    """The pool after a write: each token's row in its slot, everything else as it was."""
    after = pool.copy()
    for token, (block, slot) in enumerate(places):
        after[block, slot] = rows[token]
    return after


def gathered(pool: Bits, places: list[tuple[int, int]]) -> Bits:
    """The rows of a read, [tokens, num_kv_heads, head_dim], sequence after sequence."""
    rows = np.empty((len(places), *pool.shape[2:]), dtype=pool.dtype)
    for token, (block, slot) in enumerate(places):
        rows[token] = pool[block, slot]
    return rows


def check(strategy: Strategy, workload: Workload, *, versions: tuple[int, ...] = (0, 1)) -> str:
    """Run a strategy and compare everything it touched, and everything it should not have.

    It runs once for each version of the data: a result kept from an earlier call, or found in
    memory that an earlier call freed, is right at most once.

    Returns:
        "" if every bit is right, else the first mismatch, in words.
    """
    for version in versions:
        fill(workload, version)
        mismatch = _check_once(strategy, workload)
        if mismatch:
            return mismatch
    return ""


def _check_once(strategy: Strategy, workload: Workload) -> str:
    places = token_slots(workload)
    inputs = {"key": workload.key, "value": workload.value}
    pools = {"key_pool": workload.key_pool, "value_pool": workload.value_pool}
    rows = {name: bits(tensor) for name, tensor in inputs.items()}
    before = {name: bits(tensor) for name, tensor in pools.items()}

    output = strategy.run(workload, strategy.prepare(workload))

    for name, tensor in inputs.items():
        if not np.array_equal(bits(tensor), rows[name]):
            return f"{name} was changed; expected it to be read only"
    if workload.case.op == "write":
        if output is not None:
            return f"run returned {type(output).__name__}; expected None from a write"
        for (pool_name, tensor), row in zip(pools.items(), rows.values(), strict=True):
            expected = written(before[pool_name], row, places)
            mismatch = _compare_pool(pool_name, bits(tensor), expected, before[pool_name], places)
            if mismatch:
                return mismatch
        return ""
    for pool_name, tensor in pools.items():
        if not np.array_equal(bits(tensor), before[pool_name]):
            return f"{pool_name} was changed; expected a read to leave it alone"
    return _compare_outputs(output, workload, before, places)


def _compare_outputs(
    output: object, workload: Workload, before: dict[str, Bits], places: list[tuple[int, int]]
) -> str:
    if not isinstance(output, tuple) or len(output) != len(before):
        return f"run returned {type(output).__name__}; expected a tuple (K, V) from a read"
    for name, tensor, pool in zip(("K", "V"), output, before.values(), strict=True):
        expected = gathered(pool, places)
        if not isinstance(tensor, torch.Tensor):
            return f"{name} is {type(tensor).__name__}; expected a tensor"
        if tuple(tensor.shape) != expected.shape or tensor.dtype != workload.key_pool.dtype:
            return (
                f"{name} is {tensor.dtype} of shape {list(tensor.shape)}; expected "
                f"{workload.key_pool.dtype} of shape {list(expected.shape)}"
            )
        actual = bits(tensor)
        if not np.array_equal(actual, expected):
            token, head, dim = map(int, np.argwhere(actual != expected)[0])
            block, slot = places[token]
            return (
                f"{name} of token {token} (block {block}, slot {slot}), head {head}, element "
                f"{dim} is {_hex(actual[token, head, dim])}; "
                f"expected {_hex(expected[token, head, dim])}"
            )
    return ""


def _compare_pool(
    name: str, actual: Bits, expected: Bits, before: Bits, places: list[tuple[int, int]]
) -> str:
    if np.array_equal(actual, expected):
        return ""
    block, slot, head, dim = map(int, np.argwhere(actual != expected)[0])
    tokens = [token for token, place in enumerate(places) if place == (block, slot)]
    where = f"{name} block {block}, slot {slot}, head {head}, element {dim}"
    got, wanted = _hex(actual[block, slot, head, dim]), _hex(expected[block, slot, head, dim])
    if not tokens:
        return f"{where} belongs to no token but was written: {got}; expected {wanted}"
    if np.array_equal(actual[block, slot], before[block, slot]):
        return f"{where} was not written: expected token {tokens[0]}'s {wanted}"
    return f"{where} is {got}; expected token {tokens[0]}'s {wanted}"


def _hex(value: np.integer) -> str:
    digits = 2 * value.dtype.itemsize
    return f"0x{int(value) & (16**digits - 1):0{digits}x}"
