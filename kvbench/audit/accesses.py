"""Accesses to global memory in compiled code: how many bytes each thread moves at a time."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

VECTOR_BYTES = 16
"""The widest access of a thread."""

_BITS = 8


@dataclass(frozen=True, slots=True)
class Access:
    """One instruction."""

    kind: Literal["load", "store"]
    nbytes: int
    line: str = ""
    """Of the source that it was made from, as "scatter.py:76"; "" where that is unknown."""


# SASS. Loads, stores, copies from global to shared memory, and (bulk) tensor copies.
_SASS = re.compile(r"\b(LDGSTS|LDG|STG|LD|ST|LDL|STL|UBLKCP|UTMALDG|UTMASTG|REDG?|ATOMG?)\b(\S*)")
_SASS_INSTRUCTION = re.compile(r"^\s+/\*[0-9a-f]{4,}\*/\s+(.*?);", re.MULTILINE)
_SASS_WIDTHS = {"U8": 1, "S8": 1, "U16": 2, "S16": 2, "64": 8, "128": 16, "256": 32}
_SASS_NBYTES = 4
"""Of an access that names no width."""


@dataclass(frozen=True, slots=True)
class Sass:
    """What NVIDIA's machine code does with memory."""

    accesses: tuple[Access, ...]
    """To global memory; an asynchronous copy is a load."""
    local_loads: int
    """Bytes of a thread that instructions load from local memory: registers that were spilled, and
    arrays that are in none."""
    local_stores: int
    others: tuple[str, ...]
    """Instructions on global memory that are neither: atomics, bulk and tensor copies."""


def read_sass(text: str) -> Sass:
    """Of a disassembly, each instruction on a line of its own."""
    accesses, others, local = [], [], Counter[str]()
    for instruction in _SASS_INSTRUCTION.findall(text):
        found = _SASS.search(instruction)
        if found is None:
            continue
        name, modifiers = found.groups()
        widths = [_SASS_WIDTHS[m] for m in modifiers.split(".") if m in _SASS_WIDTHS]
        nbytes = widths[-1] if widths else _SASS_NBYTES
        if name in {"LDL", "STL"}:
            local[name] += nbytes
        elif name in {"LDG", "LDGSTS", "LD"}:
            accesses.append(Access("load", nbytes))
        elif name in {"STG", "ST"}:
            accesses.append(Access("store", nbytes))
        else:
            others.append(name + modifiers)
    return Sass(tuple(accesses), local["LDL"], local["STL"], tuple(others))


_Reader = Callable[[str], tuple[Literal["load", "store"], int] | None]

# PTX and amdgcn name the source line of what follows, and who called it.
_LINE = re.compile(r"^\s*\.loc\s.*?(?://|;) (\S+?\.\w+):(\d+):\d+")
_PTX_ACCESS = re.compile(r"\b(ld|st)\.(\S+)")
_PTX_VECTOR = re.compile(r"v(\d)$")
_PTX_BITS = re.compile(r"[busf](\d+)$")
_PTX_COPY = re.compile(r"cp\.async\.c[ag]\.shared\S*\s+\[[^]]*\],\s*\[[^]]*\],\s*(0x[0-9a-f]+|\d+)")


def read_ptx(text: str) -> tuple[Access, ...]:
    """Accesses to global memory in PTX, each with its line."""
    return tuple(_with_lines(text, _ptx_access))


def _ptx_access(line: str) -> tuple[Literal["load", "store"], int] | None:
    copied = _PTX_COPY.search(line)
    if copied:
        return "load", int(copied[1], 0)
    found = _PTX_ACCESS.search(line)
    if found is None:
        return None
    parts = found[2].split(".")
    if "global" not in parts:
        return None
    bits = _PTX_BITS.search(parts[-1])
    count = next((int(m[1]) for m in map(_PTX_VECTOR.match, parts) if m), 1)
    if bits is None:
        return None
    return ("load" if found[1] == "ld" else "store"), int(bits[1]) // _BITS * count


_AMDGCN_ACCESS = re.compile(r"^\s+(?:buffer|global|flat)_(load|store)_(\w+)")
_AMDGCN_NBYTES = {
    "ubyte": 1,
    "sbyte": 1,
    "byte": 1,
    "ushort": 2,
    "sshort": 2,
    "short": 2,
    "dword": 4,
    "dwordx2": 8,
    "dwordx3": 12,
    "dwordx4": 16,
}


def read_amdgcn(text: str) -> tuple[Access, ...]:
    """Accesses to global memory in AMD's assembly, each with its line."""
    return tuple(_with_lines(text, _amdgcn_access))


def _amdgcn_access(line: str) -> tuple[Literal["load", "store"], int] | None:
    found = _AMDGCN_ACCESS.match(line)
    if found is None:
        return None
    width = found[2].removesuffix("_hi").removesuffix("_d16").removeprefix("lds_")
    return ("load" if found[1] == "load" else "store"), _AMDGCN_NBYTES[width]


def _with_lines(text: str, read: _Reader) -> Iterator[Access]:
    line = ""
    for each in text.splitlines():
        place = _LINE.match(each)
        if place:
            known = place[2] != "0"  # 0 is what a compiler says of what it made by itself
            line = f"{place[1].rpartition('/')[2]}:{place[2]}" if known else ""
            continue
        found = read(each)
        if found:
            yield Access(*found, line)


def widths_of(accesses: Iterable[Access], kind: Literal["load", "store"]) -> Mapping[int, int]:
    """How many instructions of a kind there are of each width in bytes, the narrowest first."""
    counts = Counter(each.nbytes for each in accesses if each.kind == kind)
    return dict(sorted(counts.items()))


def vector_share(accesses: Iterable[Access]) -> float | None:
    """The share of the bytes that accesses of 16 bytes move; None if there is no access."""
    moved = [each.nbytes for each in accesses]
    wide = sum(nbytes for nbytes in moved if nbytes >= VECTOR_BYTES)
    return wide / sum(moved) if moved else None
