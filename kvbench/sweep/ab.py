"""`kvbench ab`: two trees measured in turns, into two runs."""

import dataclasses
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from kvbench.cases import Case
from kvbench.errors import InputError, KvbenchError
from kvbench.results import Environment, RunInfo
from kvbench.store import RunWriter, reserve
from kvbench.sweep.bench import Machine, Settings
from kvbench.sweep.interleave import Interleaved, joined
from kvbench.sweep.order import in_order
from kvbench.sweep.runner import info_of
from kvbench.sweep.sides import Side
from kvbench.sweep.trees import Tree, strategy_files
from kvbench.timing.rounds import StoppingRule

LABELS = ("a", "b")
"""Of the sides, and the folders of their runs."""
PROCESSES = 5
"""Pairs of processes."""
ROUNDS = 20
"""Of a case in one pair of processes; a fixed number, since a stop at a good moment would bias."""
_LEAST_ROUNDS = 5
_NEVER_PRECISE = -1.0

OnBegin = Callable[[Sequence[Case], Mapping[str, Sequence[str]]], None]
"""Told of the cases of a pair of processes, and of the strategies of each side by its label."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AbPlan:
    """What is measured on both sides, and how."""

    cases: tuple[Case, ...]
    patterns: tuple[str, ...]
    """Of strategies; all if none."""
    files: tuple[Path, ...]
    """The user's files of strategies, as named: each tree's own version where it has one."""
    settings: Settings
    processes: int
    hang_s: float
    command: str
    preset: str | None
    seed: int
    layers: int

    @property
    def rule(self) -> StoppingRule:
        """When a case's sampling ends in one pair of processes."""
        return StoppingRule(
            relative_half_width=_NEVER_PRECISE,
            min_rounds=_LEAST_ROUNDS,
            max_rounds=ROUNDS,
            cell_seconds=self.settings.cell_seconds / self.processes,
        )


@dataclass(frozen=True, slots=True)
class Ended:
    """How it ended."""

    folders: tuple[Path, Path]
    processes: int
    """Pairs of processes that measured all cases."""
    why: Literal["complete", "interrupted"]


def run_ab(
    plan: AbPlan,
    trees: Sequence[Tree],
    folder: Path,
    on_case: Callable[[int, Case], None] = lambda *_: None,
    on_begin: OnBegin = lambda *_: None,
) -> Ended:
    """Measure two trees in turns.

    Args:
        plan: What to measure.
        trees: The two.
        folder: Where to, as the runs "a" and "b"; new or empty.
        on_case: Called after each case with the number of the pair of processes, from 0.
        on_begin: Called when a pair of processes has started, before its first case.

    Raises:
        InputError: A pattern names no strategy of either tree, none does any of the cases, or a
            file of strategies is in neither tree nor folder.
        KvbenchError: A tree's process can't start. If pairs have measured all cases before, what
            they found is written.
        StoreError: The folder holds something, or can't be written.
        KeyboardInterrupt: Before one pair of processes had measured all cases.
    """
    files = strategy_files(trees, plan.files)
    outcome = Interleaved(plan.settings, plan.rule, {})
    machines: dict[str, Machine] = {}
    done = 0
    why: Literal["complete", "interrupted"] = "complete"
    with reserve(folder):
        try:
            for number in range(plan.processes):
                _measure_pair(plan, trees, files, number, outcome, machines, on_case, on_begin)
                done += 1
        except KeyboardInterrupt:
            if not done:
                raise
            why = "interrupted"
        except KvbenchError:
            if done:
                _write(plan, trees, folder, outcome, machines)
            raise
        _write(plan, trees, folder, outcome, machines)
    return Ended((folder / LABELS[0], folder / LABELS[1]), done, why)


def _write(
    plan: AbPlan,
    trees: Sequence[Tree],
    folder: Path,
    outcome: Interleaved,
    machines: Mapping[str, Machine],
) -> None:
    together = uuid.uuid4().hex
    for label, tree in zip(LABELS, trees, strict=True):
        info = _info(plan, tree, machines[label], together)
        with RunWriter(folder / label, info) as store:
            for case in plan.cases:
                store.append(*joined(outcome.rows[label].get(case, [])))


def _measure_pair(
    plan: AbPlan,
    trees: Sequence[Tree],
    files: Sequence[Mapping[Path, Path]],
    number: int,
    outcome: Interleaved,
    machines: dict[str, Machine],
    on_case: Callable[[int, Case], None],
    on_begin: OnBegin,
) -> None:
    """One pair of fresh processes, every case; who comes first takes turns."""
    with ExitStack() as stack:
        sides: list[Side] = []
        strategies: dict[str, tuple[str, ...]] = {}
        unmatched: dict[str, Mapping[str, str]] = {}
        pairs = list(zip(LABELS, trees, files, strict=True))
        for label, tree, own in pairs if number % 2 == 0 else reversed(pairs):
            side = Side(
                label,
                tree,
                plan.settings,
                plan.patterns,
                own,
                plan.hang_s,
                machines.get(label),
                core=number,
            )
            stack.callback(side.stop)
            # One after the other: finding out how fast the machine copies wants it alone.
            ready = side.ready()
            sides.append(side)
            machines[label], strategies[label] = ready.machine, ready.strategies
            unmatched[label] = ready.unmatched
        _refuse_unmatched(*unmatched.values())
        ops = {name.partition(".")[0] for names in strategies.values() for name in names}
        cases = [case for case in in_order(plan.cases, plan.seed + number) if case.op in ops]
        if not cases:
            raise InputError(
                "nothing to measure: none of these strategies does any of these cases' ops; "
                f"expected strategies of: {', '.join(sorted({case.op for case in plan.cases}))}"
            )
        on_begin(cases, strategies)
        for case in cases:
            of_op = {
                label: [name for name in names if name.startswith(f"{case.op}.")]
                for label, names in strategies.items()
            }
            outcome.measure(case, sides, of_op)
            on_case(number, case)


def _refuse_unmatched(one: Mapping[str, str], other: Mapping[str, str]) -> None:
    for pattern, error in one.items():
        if pattern in other:
            raise InputError(error)


def _info(plan: AbPlan, tree: Tree, machine: Machine, together: str) -> RunInfo:
    return dataclasses.replace(
        info_of(
            plan.settings,
            machine,
            command=plan.command,
            preset=plan.preset,
            seed=plan.seed,
            layers=plan.layers,
        ),
        environment=_environment(tree, machine.environment),
        interleaved=together,
        tree=tree.name,
    )


def _environment(tree: Tree, found: Environment) -> Environment:
    """What was unpacked has no history of its own: the commit is the revision's."""
    if tree.commit is None:
        return found
    return dataclasses.replace(found, git_commit=tree.commit, git_dirty=False)
