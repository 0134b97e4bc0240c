"""Triton's own form of a kernel, before it is any GPU's: where it reads and writes, and under what.

The text of TTIR is read into the values that its operations give, each with those that it is made
of: what an address or a mask depends on is then found by walking back.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

_OPERATION = re.compile(r'^(?:(%[\w.-]+)(?::(\d+))? = )?"?([\w.]+)"?(.*)$')
_ARGUMENT = re.compile(r"%([A-Za-z_]\w*): ([^ ,)]+)")
_VALUE = re.compile(r"%[\w.-]+(?:#\d+)?")
_LOCATION = re.compile(r" loc\((#loc\d*|unknown)\)\s*$")
_CONSTANT = re.compile(r"arith\.constant (?:dense<)?(-?\d+|true|false)")
_ELEMENT = re.compile(r"i(\d+)>*$")
_REGIONS = ("scf.for", "scf.if", "tt.reduce", "tt.func", "module")
_SHAPING = frozenset(
    f"tt.{name}" for name in ("splat", "broadcast", "expand_dims", "reshape", "trans", "unsplat")
) | {"ttg.convert_layout"}
"""Operations that give the numbers that they take, in another shape."""
_PLAIN = frozenset({"arith", "math", "tt", "ttg", "scf"})


@dataclass(eq=False, slots=True)
class Value:
    """What an operation gives, or an argument."""

    operation: str
    """Its name, as "arith.muli"; "argument" of an argument."""
    text: str
    """Its line, without where it comes from; the name of an argument."""
    line: str = ""
    """Where it comes from, as "offsets.py:32"; "" where that is unknown."""
    operands: "list[Value]" = field(default_factory=list)

    @property
    def bits(self) -> int:
        """Of an element that it gives, if that is an integer; else 0."""
        found = _ELEMENT.search(self.text)
        return int(found[1]) if found else 0

    @property
    def constant(self) -> int | None:
        """What it is everywhere, if it is an integer that is written down."""
        found = _CONSTANT.search(self.text)
        if self.operation != "arith.constant" or not found:
            return None
        return {"true": 1, "false": 0}[found[1]] if found[1].isalpha() else int(found[1])

    def walk(self, stops: Callable[["Value"], bool] = lambda _: False) -> Iterator["Value"]:
        """This value and all that it depends on; of what `stops` nothing that is behind it."""
        seen: set[int] = set()
        pending = [self]
        while pending:
            value = pending.pop()
            if id(value) in seen:
                continue
            seen.add(id(value))
            yield value
            if not stops(value):
                pending += value.operands


class UnreadableError(Exception):
    """The text is no TTIR that is understood here; the message has the line."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel's TTIR."""

    accesses: tuple[Value, ...]
    """Its loads and stores, in their order: pointer, (value,) mask, other."""


def pointer_of(access: Value) -> Value:
    """Where a load or store goes."""
    return access.operands[0]


def mask_of(access: Value) -> Value | None:
    """Under what a load or store happens; None: always."""
    at = 2 if access.operation == "tt.store" else 1
    return access.operands[at] if len(access.operands) > at else None


def other_of(load: Value) -> Value | None:
    """What a load gives where its mask says no."""
    return load.operands[2] if len(load.operands) > 2 else None  # noqa: PLR2004 - pointer, mask


def tensors_of(access: Value) -> set[str]:
    """The names of the arguments that a load or store may go to."""
    return {
        value.text
        for value in pointer_of(access).walk(stops=lambda v: v.operation == "tt.load")
        if value.operation == "argument" and value.line == "pointer"
    }


def plain(value: Value) -> Value:
    """A value without what gives it another shape or more bits."""
    while value.operation in _SHAPING or value.operation in {"arith.extsi", "arith.extui"}:
        value = value.operands[0]
    return value


def conjuncts(mask: Value) -> Iterator[Value]:
    """Conditions that all have to hold for a mask to."""
    pending = [mask]
    while pending:
        value = plain(pending.pop())
        if value.operation == "arith.andi":
            pending += value.operands
        else:
            yield value


def read(text: str) -> Kernel:
    """Read the TTIR of one kernel.

    Raises:
        UnreadableError: It has an operation with a region that is not known here.
    """
    lines = _Locations(text)
    values: dict[str, Value] = {}
    accesses: list[Value] = []
    regions: list[_Region] = []
    for line in text.splitlines():
        where = _LOCATION.search(line)
        stripped = (line[: where.start()] if where else line).strip()
        if not stripped or stripped.startswith(("#", "^bb")):
            continue
        if stripped.startswith("}"):
            if not stripped.endswith("{") and regions:  # an else goes on with the same
                regions.pop()
            continue
        if stripped.startswith("tt.func"):
            for name, kind in _ARGUMENT.findall(stripped):
                values[f"%{name}"] = Value(
                    "argument", name, "pointer" if kind.startswith("!tt.ptr") else ""
                )
            regions.append(_Region("tt.func"))
            continue
        match = _OPERATION.match(stripped)
        if match is None:
            raise UnreadableError(stripped)
        result, count, operation, rest = match.groups()
        if operation.partition(".")[0] not in {*_PLAIN, "module", "ub"}:
            raise UnreadableError(stripped)
        if operation == "scf.for":
            regions.append(_for(result, int(count or 1), rest, values))
            continue
        operands = [values[name] for name in _VALUE.findall(rest) if name in values]
        made = Value(
            operation, stripped, lines.innermost(where[1]) if where else "", operands
        )
        if operation == "scf.yield":
            _yield(regions, operands)
        elif stripped.endswith("{"):
            if operation not in _REGIONS:
                raise UnreadableError(stripped)
            region = _Region(operation)
            if operation == "scf.if" and result is not None:
                region.results = [
                    Value("scf.if", stripped, operands=list(operands))
                    for _ in range(int(count or 1))
                ]
                _name(result, region.results, values)
            regions.append(region)
            if result is not None and operation == "tt.reduce":
                values[result] = made
        elif result is not None:
            _name(result, [made] * int(count or 1), values)
        if operation in {"tt.load", "tt.store"}:
            accesses.append(made)
        elif operation.startswith(("tt.atomic", "tt.descriptor", "tt.experimental")):
            raise UnreadableError(stripped)
    return Kernel(tuple(accesses))


@dataclass(slots=True)
class _Region:
    operation: str
    results: list[Value] = field(default_factory=list)
    carried: list[Value] = field(default_factory=list)
    """What a loop hands from turn to turn."""


def _name(result: str, made: list[Value], values: dict[str, Value]) -> None:
    if len(made) == 1:
        values[result] = made[0]
    for index, value in enumerate(made):
        values[f"{result}#{index}"] = value


def _for(result: str | None, count: int, rest: str, values: dict[str, Value]) -> _Region:
    """%i = %from to %end step %step iter_args(%x = %first, …)."""
    head, _, carried = rest.partition("iter_args(")
    names = re.findall(r"(%[\w.-]+) = (%[\w.-]+(?:#\d+)?)", carried.partition(")")[0])
    induction, *bounds = _VALUE.findall(head)
    start, _, step = (values[name] for name in bounds)
    values[induction] = Value("scf.for", rest, operands=[start, step])
    region = _Region("scf.for")
    firsts = [values[first] for _, first in names]  # a name may be that of an outer value
    for (name, _), first in zip(names, firsts, strict=True):
        values[name] = Value("scf.for", rest, operands=[first])
        region.carried.append(values[name])
    if result is not None:
        region.results = [Value("scf.for", rest, operands=[first]) for first in firsts[:count]]
        _name(result, region.results, values)
    return region


def _yield(regions: list[_Region], operands: list[Value]) -> None:
    region = regions[-1]
    for group in (region.carried, region.results):
        for value, given in zip(group, operands, strict=False):
            value.operands.append(given)


class _Locations:
    """Where operations come from: the function that they are written in, not who calls it."""

    def __init__(self, text: str) -> None:
        self._known = dict(re.findall(r"^(#loc\d*) = loc\((.*)\)$", text, re.MULTILINE))

    def innermost(self, name: str) -> str:
        """As "offsets.py:32"."""
        for _ in range(100):
            told = self._known.get(name, "")
            place = re.match(r'"([^"]*)":(\d+):\d+', told)
            if place:
                return f"{place[1].rpartition('/')[2]}:{place[2]}"
            inner = re.search(r"#loc\d*", told)
            if inner is None:
                return ""
            name = inner[0]
        return ""
