"""Strategies by name."""

import fnmatch
import importlib
import importlib.util
import pkgutil
from collections.abc import Iterable
from pathlib import Path

from kvbench.cases import OPS
from kvbench.errors import InputError, unknown
from kvbench.strategies import read, write
from kvbench.strategies.base import Strategy

_STRATEGIES: dict[str, Strategy] = {}


def register(cls: type[Strategy]) -> type[Strategy]:
    """Class decorator: make a strategy known by its name.

    Raises:
        InputError: The name is taken, or the op is none.
    """
    if cls.op not in OPS:
        raise unknown(f"op of strategy {cls.name!r}:", cls.op, OPS)
    if cls.name in _STRATEGIES:
        raise InputError(f"strategy {cls.name!r} is registered twice; expected a unique name")
    _STRATEGIES[cls.name] = cls()
    return cls


def load_builtin() -> None:
    """Register every strategy of this package; those already registered stay as they are."""
    for package in (write, read):
        for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
            importlib.import_module(module.name)


def load_file(path: Path) -> None:
    """Run a Python file that registers strategies of the user's own.

    Raises:
        InputError: There is no such file, it fails, or it registers nothing.
    """
    before = set(_STRATEGIES)
    spec = importlib.util.spec_from_file_location(f"kvbench_user_{path.stem}", path)
    if not path.is_file() or spec is None or spec.loader is None:
        raise InputError(f"strategy file {str(path)!r}: expected a Python file")
    try:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"strategy file {str(path)!r}: {type(error).__name__}: {error}") from error
    if before == set(_STRATEGIES):
        raise InputError(
            f"strategy file {str(path)!r} registers nothing; expected a class under "
            "@kvbench.strategies.registry.register"
        )


def all_strategies() -> tuple[Strategy, ...]:
    """Every registered strategy, ops in their order, then by name."""
    return tuple(sorted(_STRATEGIES.values(), key=lambda s: (OPS.index(s.op), s.name)))


def select(patterns: Iterable[str]) -> tuple[Strategy, ...]:
    """The strategies that any pattern names: a name, or a glob as "write.*". None means all.

    Raises:
        InputError: A pattern names no strategy; the message has the nearest name.
    """
    wanted = list(patterns)
    known = all_strategies()
    for pattern in wanted:
        if not any(fnmatch.fnmatchcase(s.name, pattern) for s in known):
            raise unknown("strategy", pattern, _STRATEGIES)
    return tuple(
        s for s in known if not wanted or any(fnmatch.fnmatchcase(s.name, p) for p in wanted)
    )
