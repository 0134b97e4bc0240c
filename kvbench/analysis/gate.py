"""What a comparison means for a gate: what broke or was renamed, and whether to stop."""

import dataclasses
import difflib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from kvbench.analysis.comparison import Cell, Change, Comparison, Rules
from kvbench.errors import InputError, unknown
from kvbench.results import RETRIED, Result, Status

MISSING = "missing"
"""The status of a cell that the other run has no row of."""
BROKEN: frozenset[str] = frozenset[Status]({"incorrect", *RETRIED})
"""What no option excuses: the code is wrong, or it failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """A comparison, and what counts against the new run."""

    comparison: Comparison
    broken: tuple[Change, ...]
    """What is wrong or failed in the new run and was no such thing in the base, which did not time
    it either: cells of a new strategy, or of one that was refused before."""
    allow_lost: bool
    """Whether cells may be lost that are missing or were refused; those that broke may not."""

    @property
    def lost(self) -> tuple[Change, ...]:
        """The lost cells that count."""
        lost = self.comparison.lost
        return tuple(each for each in lost if not self.allow_lost or each.status in BROKEN)

    @property
    def slower_strategies(self) -> tuple[str, ...]:
        """The strategies that got slower over all of their cells, by any phase and clock."""
        found = [each for each in self.comparison.summaries if each.verdict == "SLOWER"]
        return tuple(dict.fromkeys(each.strategy for each in found))

    @property
    def regressed(self) -> bool:
        """Whether to stop: something got slower, was lost, or broke."""
        return bool(self.comparison.slower or self.slower_strategies or self.lost or self.broken)


def gate(
    comparison: Comparison, base: Iterable[Result], new: Iterable[Result], *, allow_lost: bool
) -> Gate:
    """What counts against the new run.

    Args:
        comparison: Of the two.
        base: Rows of the base.
        new: Rows of the new run.
        allow_lost: Whether cells may be lost.
    """
    rules = comparison.rules
    names = dict(rules.renamed)
    before = [dataclasses.replace(row, strategy=_renamed(row, names)) for row in base]
    timed = {_cell(row) for row in before if row.status == "ok"}  # these are lost, if they are
    broken = {(row.case, row.strategy) for row in before if row.status in BROKEN}
    rows = list(new)
    works = {(row.case, row.strategy) for row in rows if row.status == "ok"}
    found = []
    for row in rows:
        key = (row.case, row.strategy)
        # What fails by one clock alone is of no concern if that isn't compared.
        other_clock = rules.clocks and row.clock not in rules.clocks and key in works
        new_fault = row.status in BROKEN and key not in broken and _cell(row) not in timed
        if new_fault and not other_clock:
            found.append(Change(_cell(row), row.status, row.reason or ""))
    return Gate(comparison=comparison, broken=tuple(found), allow_lost=allow_lost)


def _renamed(row: Result, names: Mapping[str, str]) -> str:
    return names.get(row.strategy, row.strategy)


def _cell(row: Result) -> Cell:
    return Cell(row.case, row.strategy, row.phase, row.clock, row.cache)


def nothing_compared(gate: Gate) -> bool:
    """Whether nothing was held against anything: no cell of one run is a cell of the other."""
    if gate.comparison.judged:
        return False
    return not gate.regressed or all(each.status == MISSING for each in gate.comparison.lost)


def likely_renames(comparison: Comparison) -> tuple[tuple[str, str], ...]:
    """Strategies that the new run lacks, each with a new one that has the very same cells."""
    lost, new = (_strange(changes, comparison) for changes in (comparison.lost, comparison.new))
    found: list[tuple[str, str]] = []
    for name, cells in lost.items():
        taken = {other for _, other in found}
        alike = [other for other, own in new.items() if own == cells and other not in taken]
        # Of several the one that is spelt most like it.
        found += [(name, other) for other in difflib.get_close_matches(name, alike, 1, 0.0)]
    return tuple(found)


def _strange(
    changes: Sequence[Change], comparison: Comparison
) -> dict[str, frozenset[tuple[object, ...]]]:
    """The cells of each strategy that the other run has no row of at all."""
    shared = {each.cell.strategy for each in comparison.judged}
    shared |= {each.cell.strategy for each in changes if each.status != MISSING}
    found: dict[str, set[tuple[object, ...]]] = {}
    for change in changes:
        cell = change.cell
        if cell.strategy not in shared:
            own = found.setdefault(cell.strategy, set())
            own.add((cell.case, cell.phase, cell.clock, cell.cache))
    return {name: frozenset(cells) for name, cells in found.items()}


def refuse_renames(rules: Rules, olds: Collection[str], news: Collection[str]) -> None:
    """Refuse renames that mean nothing.

    Args:
        rules: With the renames.
        olds: The strategies of the base.
        news: Those of the new run.

    Raises:
        InputError: A name is none of these, or two strategies of the base would have one name.
    """
    names = dict(rules.renamed)
    if len(names) < len(rules.renamed):
        raise InputError(f"--rename {_said(rules)}: expected each strategy of the base once")
    for old, new in rules.renamed:
        if old not in olds:
            raise unknown("strategy of the base:", old, olds)
        if new not in news:
            raise unknown("strategy of the new run:", new, news)
    owners: dict[str, str] = {}
    for name in olds:
        other = owners.setdefault(names.get(name, name), name)
        if other != name:
            raise InputError(
                f"--rename {_said(rules)}: {other} and {name} of the base would both be "
                f"{names.get(name, name)}; expected a name for each"
            )


def _said(rules: Rules) -> str:
    return " ".join(f"{old}={new}" for old, new in rules.renamed)
