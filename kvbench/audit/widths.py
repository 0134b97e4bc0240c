"""How wide accesses to K and V may be: what alignment permits, by rule."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from kvbench.audit.accesses import VECTOR_BYTES, Access
from kvbench.audit.findings import Fault
from kvbench.audit.ttir import Kernel, tensors_of

ROWS, POOLS = ("key", "value"), ("key_pool", "value_pool")
_PARTIAL = "partial"
DATA = (*ROWS, *POOLS, _PARTIAL)
"""Tensors whose bytes are what a kernel is for: rows of K and V, the slots of pools, and what
splits of an attention found. Others, slots and scales, queries and output, are few beside them."""


def permitted_bytes(
    tensor: str, itemsizes: Mapping[str, int], constants: Mapping[str, Any], threads: int
) -> int:
    """The widest access to a tensor that a kernel's constants permit.

    A thread's elements lie side by side where the last stride is 1 (it is a constant then); an
    access to them may be as wide as all other strides are multiples of (STEP), as a piece of a row
    is (WIDTH), and as much as a tile has for each thread. Where rows and codes differ in size, a
    thread that moves 16 bytes of rows has as many codes.

    Args:
        tensor: One of `DATA`.
        itemsizes: Bytes of an element of each tensor.
        constants: The kernel's compile-time constants, and arguments that are 1.
        threads: Of a program.
    """
    half = "VALUE" if tensor.startswith("value") else "KEY"
    itemsize = itemsizes[tensor]
    if tensor == _PARTIAL:
        return _merged(itemsize, constants, threads)
    attends = "ROWS" in constants
    step = constants[f"{half}_POOL_STEP" if attends or tensor in POOLS else f"{half}_STEP"]
    is_adjacent = constants.get(f"{tensor}_dim_stride") == 1
    if attends:
        is_adjacent = is_adjacent or bool(constants[f"{half}_ADJACENT"])
        # K is loaded a piece of its head at a time.
        head = constants["PIECE"] if half == "KEY" else constants["VALUE_PADDED"]
        tile = constants["TOKENS"] * head
        # Codes are loaded as the operands that they become are laid out, 16 bytes each.
        most = min(max(tile // threads, 1), VECTOR_BYTES // max(itemsizes["query"], itemsize))
    else:
        step = min(step, constants[f"{half}_WIDTH"])
        most = VECTOR_BYTES // max(itemsizes[half.lower()], itemsize)
    elements = min(step, _power_of_two(most)) if is_adjacent else 1
    return min(elements * itemsize, VECTOR_BYTES)


def _merged(itemsize: int, constants: Mapping[str, Any], threads: int) -> int:
    """Sums of parts, a row of OUT_DIM behind another."""
    is_merging = "SPLITS" in constants
    row = constants["SPLITS"] * constants["BLOCK"] if is_merging else constants["OUT_PADDED"]
    tile = constants["ROWS"] * row
    elements = math.gcd(constants["OUT_DIM"], VECTOR_BYTES // itemsize)
    return min(elements, _power_of_two(max(tile // threads, 1))) * itemsize


def _power_of_two(number: int) -> int:
    return 1 << (number.bit_length() - 1)


def data_accesses(
    kernel: Kernel, accesses: tuple[Access, ...]
) -> list[tuple[Access, tuple[str, ...]]]:
    """Accesses to K and V, and the tensors that they may be to; by the lines that they come from.

    One whose line is no load's or store's in TTIR is taken for one to all of them.
    """
    known: dict[tuple[str, str], set[str]] = {}
    for each in kernel.accesses:
        kind = each.operation.removeprefix("tt.")
        known.setdefault((kind, each.line), set()).update(tensors_of(each))
    everything = {name for names in known.values() for name in names}
    found = []
    for access in accesses:
        names = known.get((access.kind, access.line), everything)
        data = tuple(name for name in DATA if name in names)
        if data:
            found.append((access, data))
    return found


def width_faults(
    moved: Iterable[tuple[Access, tuple[str, ...]]], permitted: Mapping[str, int]
) -> tuple[Fault, ...]:
    """Accesses that are narrower than alignment permits, counted by kind, width and tensors.

    Args:
        moved: As `data_accesses` gives them.
        permitted: As `permitted_bytes`, of each tensor.
    """
    counts: Counter[tuple[str, int, tuple[str, ...], int]] = Counter()
    for access, names in moved:
        least = min(permitted[name] for name in names)
        if access.nbytes < least:
            counts[access.kind, access.nbytes, names, least] += 1
    return tuple(
        Fault(
            "widths",
            f"{count} {kind}s of {' or '.join(names)} are {nbytes} bytes wide; expected {least}",
        )
        for (kind, nbytes, names, least), count in counts.items()
    )
