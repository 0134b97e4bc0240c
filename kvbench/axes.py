"""Axes, a sweep, and how it is written. Torch-free.

An axis is written `name=values`, values being a comma list of single values and ranges whose ends
are both included: `seq_len=1:8192:*2`, `num_kv_heads=1:8:+1`, `block_size=16,32`.
"""

import itertools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from kvbench.cases import DEFAULTS, LEAST, OPS, WORDS, Case, at_least, one_of, without_meaning
from kvbench.errors import InputError, unknown

_MOST_VALUES_PER_AXIS = 10_000
_ALIASES: Mapping[str, Mapping[str, str]] = {
    "dtype": {
        "float32": "fp32",
        "float": "fp32",
        "float16": "fp16",
        "half": "fp16",
        "bfloat16": "bf16",
    },
    "cache_dtype": {
        "fp8": "fp8_e4m3",
        "fp8_e4m3fn": "fp8_e4m3",
        "float8_e4m3fn": "fp8_e4m3",
        "float8_e5m2": "fp8_e5m2",
    },
    "layout": {name.lower(): name for name in WORDS["layout"]},
}
"""Other names for values, by axis."""
_MLA_SHAPE = {"num_kv_heads": 1, "head_dim": 576}
"""The shape of an MLA pool's rows where none is named: DeepSeek's 512 + 64."""


@dataclass(frozen=True, slots=True)
class Axis:
    """What one axis of a sweep takes: how its values are read, and its defaults."""

    name: str
    parse: Callable[[str], tuple[int | str, ...]]
    default: str
    """The default values, as they would be given, or in words."""
    expected: str


def _parse_integer(name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise InputError(f"axis {name}: {text!r} is not an integer") from None


def _parse_integers(name: str, text: str) -> tuple[int, ...]:
    if ":" not in text:
        value = _parse_integer(name, text)
        at_least(name, value, LEAST[name])
        return (value,)
    pieces = text.split(":")
    form = f"axis {name}: {text!r} is not a range; expected first:last:*factor or first:last:+step"
    if len(pieces) != 3 or pieces[2][:1] not in {"*", "+"}:  # noqa: PLR2004 - first:last:step
        raise InputError(form)
    first, last, step = (_parse_integer(name, piece) for piece in (*pieces[:2], pieces[2][1:]))
    at_least(name, first, LEAST[name])
    grows = step > 1 and first > 0 if pieces[2][0] == "*" else step > 0
    if not grows or last < first:
        raise InputError(
            f"{form}, first <= last, a step of 1 or more, or a factor of 2 or more from 1 or more"
        )
    values = [first]
    while True:
        following = values[-1] * step if pieces[2][0] == "*" else values[-1] + step
        if following > last:
            return tuple(values)
        if len(values) == _MOST_VALUES_PER_AXIS:
            raise InputError(
                f"axis {name}: {text!r} has more than {_MOST_VALUES_PER_AXIS} values; "
                "expected a larger step"
            )
        values.append(following)


def _integer_axis(name: str) -> Axis:
    def parse(text: str) -> tuple[int | str, ...]:
        pieces = [piece.strip() for piece in text.split(",")]
        return tuple(itertools.chain.from_iterable(_parse_integers(name, p) for p in pieces))

    expected = f"integers from {LEAST[name]}, as 1,8 or 1:64:*2"
    return Axis(name, parse, _AXIS_DEFAULTS[name], expected)


def _word_axis(name: str) -> Axis:
    aliases = _ALIASES.get(name, {})

    def parse(text: str) -> tuple[int | str, ...]:
        words = [aliases.get(w.strip(), w.strip()) for w in text.split(",")]
        for word in words:
            one_of(f"value of axis {name}", word, WORDS[name])
        return tuple(words)

    return Axis(name, parse, _AXIS_DEFAULTS[name], ", ".join(WORDS[name]))


_AXIS_DEFAULTS: Mapping[str, str] = {
    **{name: str(value) for name, value in DEFAULTS.items()},
    "op": ",".join(OPS),
    "seq_len": "128",
    "num_heads": "as num_kv_heads",
}

AXES: Mapping[str, Axis] = {
    name: _word_axis(name) if name in WORDS else _integer_axis(name) for name in DEFAULTS
}
"""Every axis of a sweep by name: the fields of a Case."""


@dataclass(frozen=True, slots=True)
class Axes:
    """A sweep: the product of the values of its axes, axes not named having their default."""

    values: tuple[tuple[str, tuple[int | str, ...]], ...]

    @classmethod
    def parse(cls, texts: Iterable[str]) -> "Axes":
        """Axes from `name=values` texts, as given to `-a`.

        Raises:
            InputError: An unknown axis, an axis given twice, or a value it can't have.
        """
        found: dict[str, tuple[int | str, ...]] = {}
        for text in texts:
            name, equals, values = text.partition("=")
            name = name.strip()
            if not equals or not values.strip():
                raise InputError(f"axis {text!r}: expected name=values, as seq_len=1:8192:*2")
            if name not in AXES:
                raise unknown("axis", name, AXES)
            if name in found:
                raise InputError(f"axis {name} is given twice; expected one list, as {name}=A,B")
            found[name] = tuple(dict.fromkeys(AXES[name].parse(values)))
        return cls(tuple(found.items()))

    def override(self, other: "Axes") -> "Axes":
        """These axes with every axis that `other` names replaced by its values there."""
        return Axes(tuple({**dict(self.values), **dict(other.values)}.items()))

    def refuse_without_effect(self, cases: Iterable[Case]) -> None:
        """Refuse an axis of which no case has any of the values: it means nothing in any of them.

        Raises:
            InputError: The message names the axis.
        """
        found = list(cases)
        if not found:
            return
        for name, values in self.values:
            if not any(getattr(case, name) in values for case in found):
                case = found[0]
                why = without_meaning(case.op, case.layout, case.cache_dtype).get(
                    name, "these axes"
                )
                raise InputError(
                    f"axis {name}={','.join(map(str, values))} has no effect with {why}; "
                    "expected axes that give it a meaning"
                )

    def expand(self, *, lenient: bool = False) -> tuple[Case, ...]:
        """Every case of the product, in a stable order, each once.

        An axis without meaning for a case has its default there (a read has no padding). Unless
        they are named, num_heads follows num_kv_heads, and an MLA pool has rows of its usual shape.

        Args:
            lenient: Leave points out whose values don't go together, unless none is left.

        Raises:
            InputError: Two axes have values that don't go together.
        """
        named = dict(self.values)
        columns = {
            name: named.get(name) or axis.parse(axis.default)
            for name, axis in AXES.items()
            if name in named or name != "num_heads"
        }
        cases: dict[Case, None] = {}
        first: InputError | None = None
        for point in itertools.product(*columns.values()):
            fields = dict(zip(columns, point, strict=True))
            if fields["layout"] == "MLA":
                fields.update({n: size for n, size in _MLA_SHAPE.items() if n not in named})
            fields.setdefault("num_heads", fields["num_kv_heads"])
            op, layout, cache_dtype = (str(fields[n]) for n in ("op", "layout", "cache_dtype"))
            for name in without_meaning(op, layout, cache_dtype):
                fields[name] = DEFAULTS[name]
            if op == "attend" and fields["kv_input"] == "sliced_v":
                fields["kv_input"] = DEFAULTS["kv_input"]  # of V alone, which it is not given
            if op == "step" and fields["lengths"] == "holes":
                fields["lengths"] = DEFAULTS["lengths"]
            try:
                cases[Case(**fields)] = None  # type: ignore[arg-type]
            except InputError as error:
                if not lenient:
                    raise
                first = first or error
        if first is not None and not cases:
            raise first
        return tuple(cases)


def override_all(grids: Iterable[Axes], other: Axes) -> tuple[Case, ...]:
    """The cases of several sweeps in which every axis that `other` names is replaced.

    Points of a grid that don't go with the new values are left out: nobody asked for them. Of a
    grid that names ops only those are taken that `other` names too: its other axes are theirs.

    Raises:
        InputError: None is left; the message is that of the first.
    """
    cases: dict[Case, None] = {}
    first: InputError | None = None
    for grid in grids:
        try:
            narrowed = _narrowed(grid, other)
            found = grid.override(narrowed).expand(lenient=bool(other.values))
        except InputError as error:
            first = first or error
            continue
        cases.update(dict.fromkeys(found))
    if first is not None and not cases:
        raise first
    return tuple(cases)


def _narrowed(grid: Axes, other: Axes) -> Axes:
    asked, had = dict(other.values).get("op"), dict(grid.values).get("op")
    if asked is None or had is None:
        return other
    ops = tuple(op for op in asked if op in had)
    if not ops:
        raise InputError(
            f"axis op={','.join(map(str, asked))}: expected one of {', '.join(map(str, had))}, "
            "which the sweep has"
        )
    return other.override(Axes((("op", ops),)))


def expand_all(grids: Iterable[Axes]) -> tuple[Case, ...]:
    """The cases of several sweeps, each case once, in the order of their first appearance."""
    return tuple(dict.fromkeys(itertools.chain.from_iterable(grid.expand() for grid in grids)))
