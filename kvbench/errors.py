"""The one exception family. A user's mistake is one line that names the value and the expected."""

import difflib
from collections.abc import Iterable


class KvbenchError(Exception):
    """Anything that kvbench tells its user in one line instead of a traceback."""


class InputError(KvbenchError):
    """The user gave something that can't be used: an axis, a name, a device, a folder."""


class StoreError(KvbenchError):
    """A run folder can't be read or written as asked."""


class StrategyError(KvbenchError):
    """A strategy raised where nothing goes on without it."""


def unknown(kind: str, name: str, choices: Iterable[str]) -> InputError:
    """The error for a name that is none of `choices`, with the nearest one if any is near.

    Args:
        kind: What the name should have named, as "axis" or "strategy".
        name: The name as given.
        choices: Every name that would have been taken.
    """
    known = sorted(choices)
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    return InputError(f"unknown {kind} {name!r}{hint}; expected one of: {', '.join(known)}")
