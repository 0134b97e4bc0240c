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
_REGIONS = frozenset({"scf.if", "tt.reduce", "module"})
_OTHER_ACCESSES = ("tt.atomic", "tt.descriptor", "tt.experimental", "tt.call")
_SHAPING = frozenset(
    f"tt.{name}" for name in ("splat", "broadcast", "expand_dims", "reshape", "trans", "unsplat")
) | {"ttg.convert_layout"}
"""Operations that give the numbers that they take, in another shape."""
_PLAIN = frozenset({"arith", "math", "tt", "ub", "scf"})


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
    end: "Value | None" = None
    """Of a loop's variable, what it is always less than."""
    users: "list[Value]" = field(default_factory=list)
    """Operations that have it for an operand."""

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
        UnreadableError: It has an operation that is not known here.
    """
    reader = _Reader(_Locations(text))
    for line in text.splitlines():
        reader.line(line)
    return Kernel(tuple(reader.accesses))


@dataclass(slots=True)
class _Region:
    """What is between braces."""

    results: list[Value] = field(default_factory=list)
    carried: list[Value] = field(default_factory=list)
    """What a loop hands from turn to turn."""

    def given(self, values: list[Value]) -> None:
        """The end of a turn, or of a branch."""
        for group in (self.carried, self.results):
            for value, each in zip(group, values, strict=False):
                value.operands.append(each)


class _Reader:
    """Reads line by line. A name means what was last given it, as regions may use one anew."""

    def __init__(self, locations: "_Locations") -> None:
        self.accesses: list[Value] = []
        self._locations = locations
        self._values: dict[str, Value] = {}
        self._regions: list[_Region] = []

    def line(self, line: str) -> None:
        """One line: an operation, or where a region begins or ends."""
        place = _LOCATION.search(line)
        text = (line[: place.start()] if place else line).strip()
        if not text or text.startswith(("#", "^bb")):
            return
        if text.startswith("}"):
            if not text.endswith("{"):  # an else goes on with what its if began
                self._regions.pop()
        elif text.startswith("tt.func"):
            self._regions.append(_Region())
            for name, kind in _ARGUMENT.findall(text):
                line = "pointer" if kind.startswith("!tt.ptr") else ""
                self._values[f"%{name}"] = Value("argument", name, line)
        else:
            self._operation(text, self._locations.innermost(place[1]) if place else "")

    def _operation(self, text: str, line: str) -> None:
        match = _OPERATION.match(text)
        if match is None:
            raise UnreadableError(text)
        result, count, operation, rest = match.groups()
        if operation == "scf.for":
            self._loop(result, rest)
            return
        operands = [self._values[name] for name in _VALUE.findall(rest) if name in self._values]
        made = [Value(operation, text, line, list(operands)) for _ in range(int(count or 1))]
        for operand in operands:
            operand.users += made
        if result is not None:
            self._name(result, made)
        if text.endswith("{"):
            if operation not in _REGIONS:
                raise UnreadableError(text)
            self._regions.append(_Region(made if operation == "scf.if" else []))
        elif operation == "scf.yield":
            self._regions[-1].given(operands)
        elif operation in {"tt.load", "tt.store"}:
            self.accesses += made
        elif operation.partition(".")[0] not in _PLAIN or operation.startswith(_OTHER_ACCESSES):
            raise UnreadableError(text)

    def _loop(self, result: str | None, rest: str) -> None:
        """%i = %from to %end step %step iter_args(%x = %first, …)."""
        head, _, carried = rest.partition("iter_args(")
        pairs = re.findall(r"(%[\w.-]+) = (%[\w.-]+(?:#\d+)?)", carried.partition(")")[0])
        induction, *bounds = _VALUE.findall(head)
        start, end, step = (self._values[name] for name in bounds)
        self._values[induction] = Value("scf.for", "", operands=[start, step], end=end)
        firsts = [self._values[first] for _, first in pairs]
        region = _Region(
            [Value("scf.for", "", operands=[first]) for first in firsts],
            [Value("scf.for", "", operands=[first]) for first in firsts],
        )
        for (name, _), value in zip(pairs, region.carried, strict=True):
            self._values[name] = value
        if result is not None:
            self._name(result, region.results)
        self._regions.append(region)

    def _name(self, result: str, made: list[Value]) -> None:
        self._values[result] = made[0]
        for index, value in enumerate(made):
            self._values[f"{result}#{index}"] = value


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
