"""What each op means, written for reading, and the check of a strategy against it.

The slot arithmetic and the layouts here are the oracle's own, so that a mistake in `pool` can't
hide. The whole pool is compared bit for bit, slots that belong to no token included; what
arithmetic has gone into (codes, scales and rows of quantised pools, the output of an attention)
within derived tolerances; what a whole model's step gives within a measured one (see `decoding`).
"""

import dataclasses
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from kvbench.attention import Array, Right, attend
from kvbench.cases import VOCABULARY, Case
from kvbench.decoding import RightStep, distances, right_step, tolerance
from kvbench.filling import fill
from kvbench.formats import numbers, right_codes, right_rows, right_scales
from kvbench.pool import Pools
from kvbench.strategies.base import Strategy
from kvbench.workload import Workload

T = TypeVar("T")
Bits = npt.NDArray[np.integer]
Place = tuple[int, int]
"""A physical block and a slot in it."""

_PREPARING = 1000
"""The version of the data that is there while a strategy prepares: none that it is judged by."""
_SLOT_TYPES = {"int32": torch.int32, "int64": torch.int64}
_BIT_TYPES = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def bits(tensor: torch.Tensor) -> Bits:
    """A tensor's elements as integers of their size, copied to the host: NaN equals itself."""
    integers = tensor.contiguous().view(_BIT_TYPES[tensor.element_size()])
    return integers.to("cpu", copy=True).numpy()


def token_places(workload: Workload) -> list[Place | None]:
    """Where every token lives, sequence after sequence; None without a block to live in."""
    places: list[Place | None] = []
    for table, start, length in zip(
        workload.block_tables, workload.starts, workload.lengths, strict=True
    ):
        for position in range(start, start + length):
            block, slot = divmod(position, workload.block_size)
            places.append((table[block], slot) if table[block] >= 0 else None)
    return places


def pools(case: Case, storages: Sequence[Bits]) -> dict[str, Bits]:
    """The K and the V of every slot, [num_blocks, block_size, num_kv_heads, dim], in any layout."""
    first, last = storages[0], storages[-1]
    match case.layout:
        case "NHD":
            key, value = first, last
        case "HND":
            key, value = first.swapaxes(1, 2), last.swapaxes(1, 2)
        case "NHD-KV":
            key, value = first[:, 0], first[:, 1]
        case "HND-KV":
            key = first[:, :, :, : case.head_dim].swapaxes(1, 2)
            value = first[:, :, :, case.head_dim :].swapaxes(1, 2)
        case "x-packed":
            # [N, H, D/x, B, x] to [N, B, H, D/x, x], and its last two to one.
            n, h, packs, b, x = first.shape
            key = np.moveaxis(first, 3, 1).reshape(n, b, h, packs * x)
            value = np.moveaxis(last, 3, 1)
        case "MLA":
            latent = first[:, :, np.newaxis, :]
            key = latent[..., : case.head_dim - case.rope_dim]
            value = latent[..., case.head_dim - case.rope_dim :]
    return {"key_pool": key, "value_pool": value}


def written(pool: Bits, rows: Bits, places: Sequence[Place | None]) -> Bits:
    """The pool after a write: each token's row in its slot, everything else as it was."""
    after = pool.copy()
    for token, place in enumerate(places):
        if place is not None:
            after[place] = rows[token]
    return after


def gathered(pool: Bits, places: Sequence[Place | None]) -> Bits:
    """The rows of a read, [tokens, num_kv_heads, head_dim], sequence after sequence."""
    rows = np.zeros((len(places), *pool.shape[2:]), dtype=pool.dtype)
    for token, place in enumerate(places):
        if place is not None:
            rows[token] = pool[place]
    return rows


def check(
    strategy: Strategy, workload: Workload, *, versions: tuple[int, ...] | None = None
) -> str:
    """Run a strategy and compare everything it touched, and everything it should not have.

    It prepares once, as an engine does for a step, and runs once for each version of the data, as
    in each layer: a result kept from an earlier call, made in advance, or found in memory that an
    earlier call freed, is right at most once. The last version is another layer's, whose pools and
    inputs lie elsewhere: what holds on to the tensors that it was prepared with is wrong there.
    Then it does another step of the same case, with other block tables: an index kept from the step
    before is wrong there.

    An index depends on no tensor's data but on the scheduler's lists: it is prepared and run for
    two sets of them in turn, of the same case and shape.

    Returns:
        "" if every bit is right, else the first mismatch, in words.
    """
    if workload.case.op == "index":
        return _check_by_turns(strategy, workload)
    prepared, mismatch = _prepare(strategy, workload)
    if mismatch:
        return mismatch
    if versions is None:
        versions = (0, 1, 2) if workload.case.quantised else (0, 1)
    for version in versions[:-1]:
        mismatch = recheck(strategy, workload, prepared, version)
        if mismatch:
            return mismatch
    mismatch = recheck(strategy, _another_layer(workload), prepared, versions[-1])
    if mismatch:
        plain = recheck(strategy, workload, prepared, versions[-1])
        return plain or f"in another layer, whose tensors lie elsewhere: {mismatch}"
    step = _mirrored(workload)
    mismatch = recheck(strategy, step, strategy.prepare(step), versions[0])
    return f"in a second step, with other block tables: {mismatch}" if mismatch else ""


def _another_layer(workload: Workload) -> Workload:
    """The same step with tensors of the same shapes and strides, in memory of their own."""
    copies: dict[int, torch.UntypedStorage] = {}

    def copied(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in copies:
            copies[storage.data_ptr()] = storage.clone()  # type: ignore[no-untyped-call]
        own = copies[storage.data_ptr()]
        empty = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
        return empty.set_(own, tensor.storage_offset(), tensor.shape, tensor.stride())

    w = workload
    return dataclasses.replace(
        w,
        query=copied(w.query),
        key=copied(w.key),
        value=copied(w.value),
        key_pool=copied(w.key_pool),
        value_pool=copied(w.value_pool),
        storages=tuple(copied(storage) for storage in w.storages),
        key_scale=None if w.key_scale is None else copied(w.key_scale),
        value_scale=None if w.value_scale is None else copied(w.value_scale),
        outputs=w.outputs and (copied(w.outputs[0]), copied(w.outputs[1])),
        tokens=None if w.tokens is None else copied(w.tokens),
        layers=tuple(
            Pools(tuple(map(copied, layer.storages)), copied(layer.key), copied(layer.value))
            for layer in w.layers
        ),
    )


def _mirrored(workload: Workload) -> Workload:
    """The same case with the pool's last block for its first, and so on."""
    last = len(workload.storages[0]) // max(len(workload.layers), 1) - 1
    return dataclasses.replace(
        workload,
        block_tables=[
            [last - block if block >= 0 else block for block in table]
            for table in workload.block_tables
        ],
    )


def _check_by_turns(strategy: Strategy, workload: Workload) -> str:
    steps = []
    for each in (workload, _elsewhere(workload)):
        prepared, mismatch = _prepare(strategy, each)
        if mismatch:
            return mismatch
        steps.append((each, prepared))
    for version, (each, prepared) in enumerate((*steps, *steps)):
        mismatch = recheck(strategy, each, prepared, version)
        if mismatch:
            return mismatch
    return ""


def _elsewhere(workload: Workload) -> Workload:
    """As many tokens of the same case, at other positions and in other blocks.

    The sequences change places, each block gives way to its neighbour, and what can begins one
    position earlier. No slot is larger than the largest before, unless block 0 was in use.
    """
    blocks = [block for table in workload.block_tables for block in table if block >= 0]
    step = -1 if min(blocks, default=0) > 0 else 1
    return dataclasses.replace(
        workload,
        starts=[max(start - 1, 0) for start in reversed(workload.starts)],
        lengths=workload.lengths[::-1],
        block_tables=[
            [block + step if block >= 0 else block for block in table]
            for table in reversed(workload.block_tables)
        ],
    )


def _prepare(strategy: Strategy, workload: Workload) -> tuple[object, str]:
    fill(workload, _PREPARING)
    before = {name: bits(tensor) for name, tensor in workload.tensors().items()}
    lists = _lists(workload)
    prepared = strategy.prepare(workload)
    if _lists(workload) != lists:
        return prepared, "prepare changed the scheduler's lists; expected it to leave them alone"
    for name, tensor in workload.tensors().items():
        if not np.array_equal(bits(tensor), before[name]):
            return prepared, f"prepare changed {name}; expected it to leave tensors alone"
    return prepared, ""


class Runs(Protocol):
    """What does an op: a strategy, or the replay of one."""

    def run(self, workload: Workload, prepared: Any) -> object:  # noqa: ANN401 - the strategy's own
        """As Strategy.run."""
        ...


def recheck(  # noqa: PLR0911 - each thing that can be wrong is said
    strategy: Runs, workload: Workload, prepared: object, version: int
) -> str:
    """Run a strategy once more with what it prepared earlier, and compare.

    Returns:
        "" if every bit is right, else the first mismatch, in words.
    """
    fill(workload, version)
    places = token_places(workload)
    before = _State(workload)
    output = strategy.run(workload, prepared)
    after = _State(workload)
    for name, lists in before.lists.items():
        if after.lists[name] != lists:
            return f"{name} was changed; expected the scheduler's lists to be left alone"
    for name in before.fixed:
        if not np.array_equal(after.fixed[name], before.fixed[name]):
            return f"{name} was changed; expected it to be read only"
    if workload.case.op == "step":
        return _check_step(workload, before, after, output, version)
    if workload.case.op == "write":
        if output is not None:
            return f"run returned {type(output).__name__}; expected None from a write"
        return _check_write(workload.case, before, after, places)
    for name in before.cache:
        if not np.array_equal(after.cache[name], before.cache[name]):
            return f"{name} was changed; expected a {workload.case.op} to leave it alone"
    return _check_output(workload, before, output, places, version)


def _check_output(
    workload: Workload,
    before: "_State",
    output: object,
    places: Sequence[Place | None],
    version: int,
) -> str:
    match workload.case.op:
        case "index":
            return _check_index(workload, output, places)
        case "attend":
            return _check_attend(workload, before, output, version)
    return _check_read(workload, before, output, places)


def _lists(workload: Workload) -> dict[str, list[int] | list[list[int]]]:
    """A copy of the scheduler's lists."""
    return {
        "block_tables": [list(table) for table in workload.block_tables],
        "starts": list(workload.starts),
        "lengths": list(workload.lengths),
    }


class _State:
    """The bits of everything a strategy is given, at one moment."""

    def __init__(self, workload: Workload) -> None:
        case = workload.case
        self.lists = _lists(workload)
        query = {"query": bits(workload.query)}
        if workload.tokens is not None:
            query["tokens"] = bits(workload.tokens)
        self.rows = {
            "key": bits(workload.key).reshape(-1, case.num_kv_heads, case.key_dim),
            "value": bits(workload.value).reshape(-1, case.num_kv_heads, case.value_dim),
        }
        self.scales: dict[str, Bits] = {}
        if workload.key_scale is not None and workload.value_scale is not None:
            self.scales = {
                "key_scale": bits(workload.key_scale),
                "value_scale": bits(workload.value_scale),
            }
        self.cache = pools(case, [bits(storage) for storage in workload.storages])
        self.fixed = query | self.rows
        if case.kv_scale == "per_token":
            self.cache |= self.scales  # [num_blocks, block_size]: a write stores them
        else:
            self.fixed |= self.scales

    def scale(self, pool_name: str) -> Bits:
        """The scales of a quantised pool."""
        return self.scales[pool_name.replace("_pool", "_scale")]


def _check_write(case: Case, before: _State, after: _State, places: Sequence[Place | None]) -> str:
    for name, found in after.cache.items():
        stored = gathered(found, places)
        rows = before.rows[name.partition("_")[0]][: len(places)]
        if name.endswith("_scale"):
            values = numbers(rows, case.dtype)
            right = right_scales(values, stored.view(np.float32), case.cache_dtype)
            expected: Bits = right.view(np.int32)
        elif case.quantised:
            scale = _spread(case, after.scale(name), places)
            expected = right_codes(numbers(rows, case.dtype), scale, stored, case.cache_dtype)
        else:
            expected = rows
        mismatch = _compare_pool(
            name, found, written(before.cache[name], expected, places), before.cache[name], places
        )
        if mismatch:
            return mismatch
    return ""


def _spread(case: Case, scale: Bits, places: Sequence[Place | None]) -> npt.NDArray[np.float32]:
    """The scales of tokens' rows, in a shape that goes with [tokens, num_kv_heads, dim]."""
    if case.kv_scale == "per_token":
        scale = gathered(scale, places)[:, np.newaxis]
    return scale.view(np.float32)[:, :, np.newaxis]


def _check_read(  # noqa: PLR0911 - each thing that can be wrong is said
    workload: Workload, before: _State, output: object, places: Sequence[Place | None]
) -> str:
    case = workload.case
    if not isinstance(output, tuple) or len(output) != 2:  # noqa: PLR2004 - K and V
        size = f" of {len(output)}" if isinstance(output, tuple) else ""
        return f"run returned a {type(output).__name__}{size}; expected a tuple (K, V) from a read"
    given = workload.outputs or (None, None)
    for name, tensor, like, target in zip(
        ("K", "V"), output, (workload.key, workload.value), given, strict=True
    ):
        if not isinstance(tensor, torch.Tensor):
            return f"{name} is {type(tensor).__name__}; expected a tensor"
        shape = [len(places), *like.shape[1:]]
        heads = [len(places), case.num_kv_heads, like.shape[1:].numel() // case.num_kv_heads]
        if tensor.device != workload.key_pool.device:
            return f"{name} is on {tensor.device}; expected {workload.key_pool.device}"
        if list(tensor.shape) not in (shape, heads) or tensor.dtype != workload.dtype:
            return (
                f"{name} is {tensor.dtype} of shape {list(tensor.shape)}; expected "
                f"{workload.dtype} of shape {shape}"
            )
        if target is not None and _at(tensor) != _at(target):
            return f"{name} is not the tensor given for it: {_at(tensor)}; expected {_at(target)}"
        pool_name = {"K": "key_pool", "V": "value_pool"}[name]
        if tensor.numel() and any(_shares_memory(tensor, s) for s in workload.storages):
            return f"{name} is a view of {pool_name}; expected rows of its own from a read"
        expected = gathered(before.cache[pool_name], places)
        actual = bits(tensor).reshape(expected.shape)
        if case.quantised:
            scale = _spread(case, before.scale(pool_name), places)
            expected = right_rows(expected, scale, actual, case.cache_dtype, case.dtype)
        if not np.array_equal(actual, expected):
            token, head, dim = _first_difference(actual, expected)
            return (
                f"{name} of token {token} {_where(places[token])}, head {head}, element "
                f"{dim} is {_hex(actual[token, head, dim])}; "
                f"expected {_hex(expected[token, head, dim])}"
            )
    return ""


def _check_attend(workload: Workload, before: _State, output: object, version: int) -> str:
    if not isinstance(output, torch.Tensor):
        return f"run returned a {type(output).__name__}; expected a tensor from an attend"
    case, query = workload.case, workload.query
    shape = [len(query), case.num_heads, case.value_head_dim]
    if output.device != query.device:
        return f"the output is on {output.device}; expected {query.device}"
    if list(output.shape) != shape or output.dtype != workload.dtype:
        return (
            f"the output is {output.dtype} of shape {list(output.shape)}; expected "
            f"{workload.dtype} of shape {shape}"
        )
    if not output.is_contiguous():
        return (
            f"the output has strides {list(output.stride())}; expected it contiguous, as the "
            "projection that follows takes it"
        )
    right = _kept(workload, before, version, lambda: _right_attention(workload, before))
    actual = numbers(bits(output), case.dtype).astype(np.float64)
    wrong = right.wrong(actual)
    if not wrong.any():
        return ""
    # The worst says most; all that is no number is.
    with np.errstate(invalid="ignore"):
        distance = np.abs(actual - right.output) / right.tolerance
    at = np.unravel_index(int(np.argmax(np.nan_to_num(distance, nan=np.inf))), actual.shape)
    row, head, element = (int(i) for i in at)
    sequence, query_token = divmod(row, case.query_len)
    return (
        f"the output of sequence {sequence} (context {workload.lengths[sequence]}), query "
        f"{query_token}, head {head}, element {element} is {actual[at]:.6g}; expected "
        f"{right.output[at]:.6g} within {right.tolerance[at]:.2g} "
        f"({np.count_nonzero(wrong)} of {wrong.size} elements are wrong)"
    )


_RIGHT: "OrderedDict[object, Any]" = OrderedDict()
"""The last few right outputs: the strategies of a case share them, and they take float64."""
_RIGHT_KEPT = 4


def _kept(workload: Workload, before: _State, version: int, find: Callable[[], T]) -> T:
    """What is right, which depends on the case, the lists and the data's version; found once."""
    key = (workload.case, workload.device, version, repr(before.lists))
    if key not in _RIGHT:
        while len(_RIGHT) >= _RIGHT_KEPT:
            _RIGHT.popitem(last=False)
        _RIGHT[key] = find()
    found: T = _RIGHT[key]
    return found


def _right_attention(workload: Workload, before: _State) -> Right:
    case = workload.case
    queries = numbers(before.fixed["query"], case.dtype).astype(np.float64)
    shape = (len(queries), case.num_heads, case.value_head_dim)
    whole = Right(np.zeros(shape), np.zeros(shape))
    for sequence, length in enumerate(workload.lengths):
        rows = slice(sequence * case.query_len, (sequence + 1) * case.query_len)
        table, first = workload.block_tables[sequence], case.first_visible(length)
        positions = np.arange(first, length)
        at = np.asarray(table, dtype=np.int64)[positions // case.block_size]
        place = at, positions % case.block_size
        key, value = (_values(case, before, name, place) for name in ("key_pool", "value_pool"))
        if case.layout == "MLA":  # the latent row is K, the part of it that is kv_c is V
            key, value = np.concatenate((key, value), axis=2), key
        right = attend(queries[rows], key, value, case, length)
        whole.output[rows], whole.tolerance[rows] = right.output, right.tolerance
    return whole


def _values(
    case: Case, before: _State, pool_name: str, place: tuple[Bits, Bits]
) -> npt.NDArray[np.float64]:
    """What the slots of a pool stand for, [slots, num_kv_heads, dim]."""
    rows = before.cache[pool_name][place]
    if not case.quantised:
        return numbers(rows, case.dtype).astype(np.float64)
    scale = before.scale(pool_name).view(np.float32).astype(np.float64)
    if case.kv_scale == "per_token":
        scale = scale[place][:, np.newaxis]
    product: npt.NDArray[np.float64] = numbers(rows, case.cache_dtype) * scale[:, :, np.newaxis]
    return product


def _check_step(
    workload: Workload, before: _State, after: _State, output: object, version: int
) -> str:
    case, layers = workload.case, workload.case.num_layers
    if not isinstance(output, torch.Tensor):
        return f"run returned a {type(output).__name__}; expected logits, a tensor, from a step"
    shape, device = [len(workload.lengths), VOCABULARY], workload.key_pool.device
    if output.device != device:
        return f"the logits are on {output.device}; expected {device}"
    if list(output.shape) != shape or output.dtype != workload.dtype:
        return (
            f"the logits are {output.dtype} of shape {list(output.shape)}; expected "
            f"{workload.dtype} of shape {shape}"
        )
    blocks, slots = _new_slots(workload)
    right = _kept(workload, before, version, lambda: _right_step(workload, before))
    for name, found in after.cache.items():
        count = len(found) // layers
        expected = before.cache[name].copy()
        for layer in range(layers):
            at = blocks + layer * count, slots
            expected[at] = found[at]
        mismatch = _compare_pool(name, found, expected, before.cache[name], [])
        if mismatch:
            return f"of {layers} layers of {count} blocks: {mismatch}"
        rows = right.keys if name == "key_pool" else right.values
        for layer in range(layers):
            actual = numbers(found[blocks + layer * count, slots], case.dtype).astype(np.float64)
            mismatch = _compare_rows(f"{name} of layer {layer}", actual, rows[layer], case, layer)
            if mismatch:
                return mismatch
    logits = numbers(bits(output), case.dtype).astype(np.float64)
    return _compare_rows("the logits", logits, right.logits, case, layers)


def _new_slots(workload: Workload) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Where each sequence's last token lives: the block, of a layer's own, and the slot in it."""
    places = [
        (table[(length - 1) // workload.block_size], (length - 1) % workload.block_size)
        for table, length in zip(workload.block_tables, workload.lengths, strict=True)
    ]
    blocks, slots = np.array(places, dtype=np.int64).reshape(-1, 2).T
    return blocks, slots


def _compare_rows(
    what: str,
    actual: npt.NDArray[np.float64],
    right: npt.NDArray[np.float64],
    case: Case,
    layers: int,
) -> str:
    """Rows that are so many attentions away from what is known exactly."""
    apart, limit = distances(actual, right), tolerance(case, layers)
    if not (apart > limit).any():
        return ""
    sequence = int(np.argmax(apart))
    return (
        f"{what}, sequence {sequence}: {apart[sequence]:.2g} of its norm from what is right; "
        f"expected {limit:.2g} or less ({np.count_nonzero(apart > limit)} of {len(apart)} rows are "
        "wrong)"
    )


def _right_step(workload: Workload, before: _State) -> RightStep:
    case = workload.case

    def context(layer: int, sequence: int) -> tuple[Array, Array]:
        positions = np.arange(workload.lengths[sequence] - 1)
        table = np.asarray(workload.block_tables[sequence], dtype=np.int64)
        found = []
        for pool_name in ("key_pool", "value_pool"):
            pool = before.cache[pool_name]
            own = pool[layer * (len(pool) // case.num_layers) :]
            rows = own[table[positions // case.block_size], positions % case.block_size]
            found.append(numbers(rows, case.dtype).astype(np.float64))
        return found[0], found[1]

    return right_step(workload, context)


def _check_index(workload: Workload, output: object, places: Sequence[Place | None]) -> str:
    """A slot mapping: each token's slot, and any negative number for what has none."""
    if not isinstance(output, torch.Tensor):
        return f"run returned a {type(output).__name__}; expected a tensor of slots from an index"
    device = workload.key_pool.device
    if output.device != device:
        return f"the slot mapping is on {output.device}; expected {device}"
    case = workload.case
    padding = case.padding if case.padding_slots == "negative" else 0
    rows, dtype = [len(places) + padding], _SLOT_TYPES[case.slot_dtype]
    if list(output.shape) != rows or output.dtype != dtype:
        return (
            f"the slot mapping is {output.dtype} of shape {list(output.shape)}; expected {dtype} "
            f"of shape {rows}"
        )
    slots = output.tolist()
    for row, (slot, place) in enumerate(zip(slots, [*places, *[None] * padding], strict=True)):
        what = f"token {row} {_where(place)}" if row < len(places) else f"row {row}, padding,"
        if place is None:
            if slot >= 0:
                return f"the slot of {what} is {slot}; expected a negative one"
            continue
        block, offset = place
        expected = block * case.block_size + offset
        if slot != expected:
            return f"the slot of {what} is {slot}; expected {expected}"
    return ""


def _where(place: Place | None) -> str:
    return "without a block" if place is None else f"(block {place[0]}, slot {place[1]})"


def _compare_pool(
    name: str, actual: Bits, expected: Bits, before: Bits, places: Sequence[Place | None]
) -> str:
    if np.array_equal(actual, expected):
        return ""
    block, slot, *at = _first_difference(actual, expected)
    tokens = [token for token, place in enumerate(places) if place == (block, slot)]
    inner = "".join(f", {what} {i}" for what, i in zip(("head", "element"), at, strict=False))
    where = f"{name} block {block}, slot {slot}{inner}"
    index = (block, slot, *at)
    got, wanted = _hex(actual[index]), _hex(expected[index])
    if not tokens:
        return f"{where} belongs to no token but was written: {got}; expected {wanted}"
    if np.array_equal(actual[block, slot], before[block, slot]):
        return f"{where} was not written: expected token {tokens[0]}'s {wanted}"
    return f"{where} is {got}; expected token {tokens[0]}'s {wanted}"


def _first_difference(actual: Bits, expected: Bits) -> tuple[int, ...]:
    flat = int(np.argmax(actual != expected))  # the first True
    return tuple(int(i) for i in np.unravel_index(flat, actual.shape))


def _at(tensor: torch.Tensor) -> str:
    return f"{list(tensor.shape)} of strides {list(tensor.stride())} at {tensor.data_ptr():#x}"


def _shares_memory(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()


def _hex(value: np.integer) -> str:
    digits = 2 * value.dtype.itemsize
    return f"0x{int(value) & (16**digits - 1):0{digits}x}"
