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
_PREPARING = 1000
"""The version of the data that is there while a strategy prepares: none that it is judged by."""
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

    It prepares once, as an engine does for a step, and runs once for each version of the data, as
    in each layer: a result kept from an earlier call, made in advance, or found in memory that an
    earlier call freed, is right at most once.

    Returns:
        "" if every bit is right, else the first mismatch, in words.
    """
    fill(workload, _PREPARING)
    tensors = {
        "key": workload.key,
        "value": workload.value,
        "key_pool": workload.key_pool,
        "value_pool": workload.value_pool,
    }
    before = {name: bits(tensor) for name, tensor in tensors.items()}
    prepared = strategy.prepare(workload)
    for name, tensor in tensors.items():
        if not np.array_equal(bits(tensor), before[name]):
            return f"prepare changed {name}; expected it to leave tensors alone"
    for version in versions:
        mismatch = recheck(strategy, workload, prepared, version)
        if mismatch:
            return mismatch
    return ""


def recheck(strategy: Strategy, workload: Workload, prepared: object, version: int) -> str:
    """Run a strategy once more with what it prepared earlier, and compare.

    Returns:
        "" if every bit is right, else the first mismatch, in words.
    """
    fill(workload, version)
    return _check_run(strategy, workload, prepared)


def _check_run(strategy: Strategy, workload: Workload, prepared: object) -> str:
    places = token_slots(workload)
    inputs = {"key": workload.key, "value": workload.value}
    pools = {"key_pool": workload.key_pool, "value_pool": workload.value_pool}
    rows = {name: bits(tensor) for name, tensor in inputs.items()}
    before = {name: bits(tensor) for name, tensor in pools.items()}

    output = strategy.run(workload, prepared)

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
    return _compare_outputs(output, pools, before, places)


def _compare_outputs(
    output: object,
    pools: dict[str, torch.Tensor],
    before: dict[str, Bits],
    places: list[tuple[int, int]],
) -> str:
    if not isinstance(output, tuple) or len(output) != len(before):
        size = f" of {len(output)}" if isinstance(output, tuple) else ""
        return f"run returned a {type(output).__name__}{size}; expected a tuple (K, V) from a read"
    dtype = next(iter(pools.values())).dtype
    for name, tensor, pool in zip(("K", "V"), output, before.values(), strict=True):
        expected = gathered(pool, places)
        if not isinstance(tensor, torch.Tensor):
            return f"{name} is {type(tensor).__name__}; expected a tensor"
        if tuple(tensor.shape) != expected.shape or tensor.dtype != dtype:
            return (
                f"{name} is {tensor.dtype} of shape {list(tensor.shape)}; expected "
                f"{dtype} of shape {list(expected.shape)}"
            )
        for pool_name, pool_tensor in pools.items():
            if tensor.numel() and _shares_memory(tensor, pool_tensor):
                return f"{name} is a view of {pool_name}; expected rows of its own from a read"
        actual = bits(tensor)
        if not np.array_equal(actual, expected):
            token, head, dim = _first_difference(actual, expected)
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
    block, slot, head, dim = _first_difference(actual, expected)
    tokens = [token for token, place in enumerate(places) if place == (block, slot)]
    where = f"{name} block {block}, slot {slot}, head {head}, element {dim}"
    got, wanted = _hex(actual[block, slot, head, dim]), _hex(expected[block, slot, head, dim])
    if not tokens:
        return f"{where} belongs to no token but was written: {got}; expected {wanted}"
    if np.array_equal(actual[block, slot], before[block, slot]):
        return f"{where} was not written: expected token {tokens[0]}'s {wanted}"
    return f"{where} is {got}; expected token {tokens[0]}'s {wanted}"


def _first_difference(actual: Bits, expected: Bits) -> tuple[int, ...]:
    flat = int(np.argmax(actual != expected))  # the first True
    return tuple(int(i) for i in np.unravel_index(flat, actual.shape))


def _shares_memory(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()


def _hex(value: np.integer) -> str:
    digits = 2 * value.dtype.itemsize
    return f"0x{int(value) & (16**digits - 1):0{digits}x}"
