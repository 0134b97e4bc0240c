"""What has to hold of a kernel's addresses and masks, seen in its TTIR: faults, a line each.

Slots and blocks come from memory: a pool's offset is such a number times a stride, and a negative
one is that of padding. Both are the same for every GPU, as what follows TTIR keeps its meaning.
"""

from collections.abc import Iterator

from kvbench.audit.ttir import (
    Kernel,
    Value,
    conjuncts,
    mask_of,
    other_of,
    plain,
    pointer_of,
    tensors_of,
)

_SLOTS, _BLOCKS, _LENGTHS = "slot_mapping", "block_table", "lengths"
"""Arguments that say where tokens are, and how many a context has."""
_PRODUCTS = frozenset({"arith.muli", "arith.shli"})
_WIDE = 64


def address_faults(kernel: Kernel) -> tuple[str, ...]:
    """Products of an offset that a large pool overflows.

    A stride, a slot or a block is multiplied in 64 bits, and what came of it is never cut: a pool
    of 2**31 elements fits a GPU, whatever dimension is the outermost.
    """
    return tuple(dict.fromkeys(fault for each in kernel.accesses for fault in _narrow(each)))


def _narrow(access: Value) -> Iterator[str]:
    for value in pointer_of(access).walk(stops=_is_load):
        is_product, is_cut = value.operation in _PRODUCTS, value.operation == "arith.trunci"
        if not (is_product or is_cut) or value.bits >= _WIDE:
            continue
        if is_product and not any(_grows(each) for each in value.operands):
            continue
        if is_cut and not any(
            each.operation in _PRODUCTS and _grows(each) for each in value.walk(stops=_is_load)
        ):
            continue
        what = "a product" if is_product else "what is left of a product"
        tensors = ", ".join(sorted(tensors_of(access)))
        yield f"{value.line}: {what} in an offset of {tensors} has {value.bits} bits; expected 64"


def _is_load(value: Value) -> bool:
    return value.operation == "tt.load"


def _grows(value: Value) -> bool:
    """Whether a factor is as large as a pool lets it be: a stride, or what was looked up."""
    for each in value.walk(stops=_is_load):
        if each.operation == "argument" and each.text.endswith("_stride"):
            return True
        if _is_load(each) and tensors_of(each) & {_SLOTS, _BLOCKS}:
            return True
    return False


def padding_faults(kernel: Kernel) -> tuple[str, ...]:
    """Loads and stores that a padding slot, or a token past the last, could slip through to.

    Where slots are given: what is stored, and what is loaded from a slot, is so only where its slot
    is 0 or more; and tokens past the last have a negative slot. Where a table of blocks is given:
    only positions inside the context are loaded, or what is past it is left out. Where slots are
    made: a block that is none makes a negative slot.
    """
    return tuple(dict.fromkeys(fault for each in kernel.accesses for fault in _unguarded(each)))


def _unguarded(access: Value) -> Iterator[str]:
    tensors, sources = tensors_of(access), _sources(pointer_of(access))
    name, mask = ", ".join(sorted(tensors)), mask_of(access)
    what = f"{access.line}: a {access.operation.removeprefix('tt.')} of {name}"
    is_store = access.operation == "tt.store"
    conditions = list(conjuncts(mask)) if mask is not None else []
    if is_store and _SLOTS in tensors:
        if not _is_padded(access.operands[1]):
            yield f"{what}: a block that is none makes no negative slot"
    elif not is_store and _SLOTS in tensors:
        other = other_of(access)
        told = plain(other).constant if other is not None else None
        if mask is None or told is None or told >= 0:
            yield f"{what}: tokens past the last have no negative slot"
    elif _SLOTS in sources or (is_store and _loads_slots(access)):
        if not any(_says_slot_is_there(each) for each in conditions):
            yield f"{what}: its mask does not ask for a slot of 0 or more"
    elif _BLOCKS in sources and not (
        any(_says_inside(each) for each in conditions) or _is_left_out(access)
    ):
        yield f"{what}: its mask does not end with the context"


def _sources(value: Value) -> set[str]:
    """The tensors that a value's numbers were looked up in."""
    loads = (each for each in value.walk(stops=_is_load) if _is_load(each))
    return {name for each in loads for name in tensors_of(each)}


def _loads_slots(access: Value) -> bool:
    """Whether a store is one of a kernel that is given slots."""
    mask = mask_of(access)
    return any(_SLOTS in _all_sources(each) for each in (access.operands[1], mask) if each)


def _all_sources(value: Value) -> set[str]:
    return {name for each in value.walk() if _is_load(each) for name in tensors_of(each)}


def _says_slot_is_there(condition: Value) -> bool:
    """Slot >= 0, of a slot as it was loaded; or slot > -1."""
    if condition.operation != "arith.cmpi":
        return False
    slot, least = map(plain, condition.operands)
    if not _is_load(slot) or _SLOTS not in tensors_of(slot) or least.constant is None:
        return False
    return (" sge," in condition.text and least.constant >= 0) or (
        " sgt," in condition.text and least.constant >= -1
    )


def _says_inside(condition: Value) -> bool:
    """Position < end, of an end that comes from the contexts' lengths."""
    if condition.operation != "arith.cmpi" or not (
        " slt," in condition.text or " sle," in condition.text
    ):
        return False
    return _LENGTHS in _sources(condition.operands[1])


def _is_left_out(load: Value) -> bool:
    """Whether what a load gives past the context's end is left out, and its block is one of it.

    Slots that lie side by side are loaded together, some of which are past the end: the block that
    they lie in is that of a position that a loop over the context is at.
    """
    is_chosen = [
        each.operation == "arith.select" and any(map(_says_inside, conjuncts(each.operands[0])))
        for each in load.users
    ]
    blocks = [
        each
        for each in pointer_of(load).walk(stops=_is_load)
        if _is_load(each) and _BLOCKS in tensors_of(each)
    ]
    return bool(is_chosen) and all(is_chosen) and all(map(_is_of_context, blocks))


def _is_of_context(block: Value) -> bool:
    """Whether a block is looked up for positions inside the context alone."""
    mask = mask_of(block)
    if mask is not None:
        return any(map(_says_inside, conjuncts(mask)))
    ends = [v.end for v in pointer_of(block).walk(stops=_is_load) if v.end is not None]
    return any(_LENGTHS in _sources(end) for end in ends)


def _is_padded(slots: Value) -> bool:
    """Whether slots are -1 where a block is negative."""
    chosen = plain(slots)
    if chosen.operation == "arith.trunci":
        chosen = plain(chosen.operands[0])
    if chosen.operation != "arith.select":
        return False
    condition, negative, _ = map(plain, chosen.operands)
    if condition.operation != "arith.cmpi" or " slt," not in condition.text:
        return False
    block, zero = map(plain, condition.operands)
    return (
        _is_load(block)
        and _BLOCKS in tensors_of(block)
        and zero.constant == 0
        and (negative.constant or 0) < 0
    )
