"""Strategies by name."""

import fnmatch
import importlib
import importlib.util
import pkgutil
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from kvbench.cases import OPS
from kvbench.errors import InputError, unknown
from kvbench.strategies import attend, index, read, step, write
from kvbench.strategies.base import Strategy

_STRATEGIES: dict[str, Strategy] = {}
_FILES: dict[str, Path] = {}
"""The files that strategies of the user's own came from, by strategy."""


def register(cls: type[Strategy]) -> type[Strategy]:
    """Class decorator: make a strategy known by its name.

    Raises:
        InputError: It is no strategy, or lacks a name, an op or a summary; the name is taken or
            isn't the op's, or the op is none.
    """
    if not (isinstance(cls, type) and issubclass(cls, Strategy)):
        raise InputError(f"{cls!r}: expected a class that derives from Strategy")
    for field in ("name", "op", "summary"):
        if not isinstance(getattr(cls, field, None), str):
            found = getattr(cls, field, None)
            raise InputError(f"strategy {cls.__name__}: {field}={found!r}: expected a text")
    if cls.op not in OPS:
        raise unknown(f"op of strategy {cls.name!r}:", cls.op, OPS)
    if not cls.name.startswith(f"{cls.op}.") or cls.name == f"{cls.op}.":
        raise InputError(f"strategy {cls.name!r}: expected a name that begins with '{cls.op}.'")
    if cls.name in _STRATEGIES:
        raise InputError(f"strategy {cls.name!r} is registered twice; expected a unique name")
    _STRATEGIES[cls.name] = cls()
    return cls


def load_builtin() -> None:
    """Register every strategy of this package; those already registered stay as they are."""
    for package in (write, read, index, attend, step):
        for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
            importlib.import_module(module.name)
    _attend_over_reads()
    _pairs().register_default_pairs()


def _pairs() -> Any:  # noqa: ANN401 - a module that imports this one
    return importlib.import_module(f"{step.__name__}.pairs")


def _make_pair(name: str) -> None:
    """Make the step of any write and any attention that is asked for by its whole name."""
    if name.startswith("step.") and "+" in name and not set(name) & set("*?["):
        _pairs().register_pair(name)


def _attend_over_reads() -> None:
    importlib.import_module(f"{attend.__name__}.sdpa").register_over_reads()


def load_file(path: Path) -> None:
    """Run a Python file that registers strategies of the user's own.

    Raises:
        InputError: There is no such file, it fails, or it registers nothing.
    """
    before = dict(_STRATEGIES)
    name = f"kvbench_user_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if not path.is_file() or spec is None or spec.loader is None:
        raise InputError(f"strategy file {str(path)!r}: expected a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # as import does: dataclasses and pickles look a class up there
    try:
        spec.loader.exec_module(module)
        _attend_over_reads()  # those of the user's own, too
    except (Exception, SystemExit) as error:
        # All or nothing: a file that failed half-way leaves no strategy behind.
        _STRATEGIES.clear()
        _STRATEGIES.update(before)
        what = str(error) if isinstance(error, InputError) else f"{type(error).__name__}: {error}"
        raise InputError(f"strategy file {str(path)!r}: {what}") from error
    _FILES.update(dict.fromkeys(set(_STRATEGIES) - set(before), path))
    if before == _STRATEGIES:
        raise InputError(
            f"strategy file {str(path)!r} registers nothing; expected a class under "
            "@kvbench.strategies.registry.register"
        )


def file_of(strategy: Strategy) -> Path | None:
    """The file that a strategy was loaded from; None if it is built in."""
    return _FILES.get(strategy.name)


def get(name: str) -> Strategy:
    """The registered strategy of that name; a step of any pair is made then (see `select`).

    Raises:
        InputError: There is none; the message has the nearest name.
    """
    _make_pair(name)
    if name not in _STRATEGIES:
        raise unknown("strategy", name, _STRATEGIES)
    return _STRATEGIES[name]


def knows(name: str) -> bool:
    """Whether a strategy of that name is registered."""
    return name in _STRATEGIES


def find(op: str, name: str) -> Strategy:
    """The strategy of an op by any of its names.

    Args:
        op: As "attend".
        name: The strategy's; or without its op, as "native"; or, for an attention, that of the
            read that goes before it, as "read.indexing" or "indexing". An op's own "native" comes
            before the attention that gathers by `read.native`.

    Raises:
        InputError: There is none of that op; the message has the nearest name.
    """
    bare = name.removeprefix("read.") if op == "attend" else name
    wanted = [name, *([f"{op}.{name}"] if "." not in name else [])]
    if op == "attend":
        wanted.append(f"attend.sdpa_{bare}")
    known = [strategy.name for strategy in all_strategies() if strategy.op == op]
    for each in wanted:
        if each in known:
            return _STRATEGIES[each]
    raise unknown(f"strategy of the op {op}", name, known)


def is_registered(strategy: Strategy) -> bool:
    """Whether this very strategy is known by its name."""
    return _STRATEGIES.get(strategy.name) is strategy


def all_strategies() -> tuple[Strategy, ...]:
    """Every registered strategy, ops in their order, then by name."""
    return tuple(sorted(_STRATEGIES.values(), key=lambda s: (OPS.index(s.op), s.name)))


def select(patterns: Iterable[str]) -> tuple[Strategy, ...]:
    """The strategies that any pattern names: a name, or a glob as "write.*". None means all.

    A step of any pair is made where its whole name is asked for, as step.WRITE+ATTEND.

    Raises:
        InputError: A pattern names no strategy; the message has the nearest name.
    """
    wanted = list(patterns)
    for pattern in wanted:
        _make_pair(pattern)
    known = all_strategies()
    for pattern in wanted:
        if not any(fnmatch.fnmatchcase(s.name, pattern) for s in known):
            raise unknown("strategy", pattern, _STRATEGIES)
    return tuple(
        s for s in known if not wanted or any(fnmatch.fnmatchcase(s.name, p) for p in wanted)
    )
