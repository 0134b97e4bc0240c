"""Case, one point of a sweep, and Axes, the sweep itself. Torch-free: results open anywhere.

An axis is written `name=values`, values being a comma list of single values and ranges whose ends
are both included: `seq_len=1:8192:*2`, `num_kv_heads=1:8:+1`, `block_size=16,32`.
"""

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from kvbench.errors import InputError, unknown

OPS = ("write", "read")
BLOCK_ORDERS = ("sequential", "shuffled", "strided")
LENGTHS = ("equal", "ragged", "holes")
KV_INPUTS = ("contiguous", "fused_qkv")
DTYPE_BYTES: Mapping[str, int] = {"fp32": 4, "fp16": 2, "bf16": 2}
_DTYPE_ALIASES = {
    "float32": "fp32",
    "float": "fp32",
    "float16": "fp16",
    "half": "fp16",
    "bfloat16": "bf16",
}
_MOST_VALUES_PER_AXIS = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One point of a sweep: everything that decides which bytes move where.

    Raises:
        InputError: A field has a value that no cache could have; the message names it.
    """

    op: str
    """"write" stores new tokens' K/V in the pool; "read" gathers cached tokens' K/V from it."""
    seq_len: int
    """Tokens written to, or read from, each sequence (on average, if lengths differ)."""
    batch: int = 1
    """Sequences handled by one call. 0 is an empty batch."""
    start_pos: int = 0
    """Position of the first token written or read in the first sequence."""
    lengths: str = "ragged"
    """"equal": every sequence starts at start_pos and has seq_len tokens. "ragged": the first
    starts at start_pos, the others up to two blocks later, and pairs of sequences trade tokens,
    so that lengths differ with seq_len as their mean, and none is empty. "holes": as ragged, and
    every second sequence is empty. A batch of one is the same in all three. The total is always
    batch * seq_len."""
    padding: int = 0
    """Rows of K/V past the last token that belong to no token (a CUDA graph's padding): their
    slot is -1, and they are written nowhere. Writing only."""
    kv_input: str = "contiguous"
    """"contiguous" K and V, or slices of one "fused_qkv" projection, whose token stride is larger
    than a row. Writing only."""
    block_size: int = 16
    """Tokens per block (a page)."""
    num_heads: int = 8
    """Query heads; a multiple of num_kv_heads."""
    num_kv_heads: int = 8
    """K/V heads, as stored in the pool."""
    head_dim: int = 128
    """Elements per head."""
    dtype: str = "bf16"
    """"fp32", "fp16" or "bf16", of K, V and the pool alike."""
    block_order: str = "shuffled"
    """How a sequence's blocks lie in the pool: "sequential" one after the other, "shuffled" at
    random, "strided" every second block."""
    seed: int = 0
    """Decides every random choice: lengths, starts, block order, data."""

    def __post_init__(self) -> None:
        _one_of("op", self.op, OPS)
        _one_of("dtype", self.dtype, DTYPE_BYTES)
        _one_of("block_order", self.block_order, BLOCK_ORDERS)
        _one_of("lengths", self.lengths, LENGTHS)
        _one_of("kv_input", self.kv_input, KV_INPUTS)
        for name, least in _LEAST.items():
            _at_least(name, getattr(self, name), least)
        if self.num_heads % self.num_kv_heads:
            raise InputError(
                f"num_heads={self.num_heads} with num_kv_heads={self.num_kv_heads}: "
                "expected num_heads to be a multiple of num_kv_heads"
            )
        for name in WRITE_ONLY if self.op != "write" else ():
            if getattr(self, name) != _DEFAULTS[name]:
                raise InputError(
                    f"{name}={getattr(self, name)} with op={self.op}: expected "
                    f"{_DEFAULTS[name]}, only a write takes rows of K and V"
                )

    @property
    def tokens(self) -> int:
        """Tokens that one call moves, over all sequences."""
        return self.batch * self.seq_len

    @property
    def row_bytes(self) -> int:
        """Bytes of one token's K (its V has as many)."""
        return self.num_kv_heads * self.head_dim * DTYPE_BYTES[self.dtype]

    @property
    def nbytes(self) -> int:
        """The least traffic of one call: each K and V byte read once and written once.

        Padding moves nothing, and indices (8 bytes a token at most) are not counted.
        """
        return 2 * 2 * self.tokens * self.row_bytes

    def label(self) -> str:
        """The case on one line, for people: every field as name=value."""
        return " ".join(f"{name}={value}" for name, value in self.fields().items())

    def fields(self) -> dict[str, int | str]:
        """Field values by name, in order of declaration."""
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}


WRITE_ONLY = ("padding", "kv_input")
"""The fields that have a meaning only where rows of K and V are taken in."""

_DEFAULTS: Mapping[str, Any] = {f.name: f.default for f in dataclasses.fields(Case)}

_LEAST: Mapping[str, int] = {
    "seq_len": 0,
    "batch": 0,
    "start_pos": 0,
    "padding": 0,
    "block_size": 1,
    "num_heads": 1,
    "num_kv_heads": 1,
    "head_dim": 1,
    "seed": 0,
}


def _one_of(name: str, value: str, choices: Iterable[str]) -> None:
    known = list(choices)
    if value not in known:
        raise unknown(name, str(value), known)


def _at_least(name: str, value: int, least: int) -> None:
    # bool is an int to Python and a mistake to a user.
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise InputError(f"{name}={value!r}: expected an integer, {least} or more")


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
        _at_least(name, value, _LEAST[name])
        return (value,)
    pieces = text.split(":")
    form = f"axis {name}: {text!r} is not a range; expected first:last:*factor or first:last:+step"
    if len(pieces) != 3 or pieces[2][:1] not in {"*", "+"}:  # noqa: PLR2004 - first:last:step
        raise InputError(form)
    first, last, step = (_parse_integer(name, piece) for piece in (*pieces[:2], pieces[2][1:]))
    _at_least(name, first, _LEAST[name])
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

    expected = f"integers from {_LEAST[name]}, as 1,8 or 1:64:*2"
    return Axis(name, parse, _AXIS_DEFAULTS[name], expected)


def _word_axis(name: str, choices: Iterable[str], aliases: Mapping[str, str] | None = None) -> Axis:
    known = tuple(choices)

    def parse(text: str) -> tuple[int | str, ...]:
        words = [(aliases or {}).get(w.strip(), w.strip()) for w in text.split(",")]
        for word in words:
            _one_of(f"value of axis {name}", word, known)
        return tuple(words)

    return Axis(name, parse, _AXIS_DEFAULTS[name], ", ".join(known))


_AXIS_DEFAULTS: Mapping[str, str] = {
    **{name: str(value) for name, value in _DEFAULTS.items()},
    "op": ",".join(OPS),
    "seq_len": "128",
    "num_heads": "as num_kv_heads",
}

AXES: Mapping[str, Axis] = {
    axis.name: axis
    for axis in (
        _word_axis("op", OPS),
        *map(_integer_axis, ("seq_len", "batch", "start_pos")),
        _word_axis("lengths", LENGTHS),
        _integer_axis("padding"),
        _word_axis("kv_input", KV_INPUTS),
        *map(_integer_axis, ("block_size", "num_heads", "num_kv_heads", "head_dim")),
        _word_axis("dtype", DTYPE_BYTES, _DTYPE_ALIASES),
        _word_axis("block_order", BLOCK_ORDERS),
        _integer_axis("seed"),
    )
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

    def expand(self) -> tuple[Case, ...]:
        """Every case of the product, in a stable order, each once.

        An axis without meaning for a case's op has its default there (a read has no padding).
        num_heads follows num_kv_heads unless it is named.

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
        for point in itertools.product(*columns.values()):
            fields = dict(zip(columns, point, strict=True))
            fields.setdefault("num_heads", fields["num_kv_heads"])
            if fields["op"] != "write":
                fields.update({name: _DEFAULTS[name] for name in WRITE_ONLY})
            cases[Case(**fields)] = None  # type: ignore[arg-type]
        return tuple(cases)


def expand_all(grids: Iterable[Axes]) -> tuple[Case, ...]:
    """The cases of several sweeps, each case once, in the order of their first appearance."""
    return tuple(dict.fromkeys(itertools.chain.from_iterable(grid.expand() for grid in grids)))
