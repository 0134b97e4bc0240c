"""A comparison as JSON: one object, nothing rounded.

Fields:

- `schema_version`: of this object; a field whose meaning changes, or that goes, gives it another.
- `conclusion`: one line for people. `regressed`: whether the exit code is 1.
- `rules`: `least_effect`, `significance`, `clocks` (those compared; all if empty), `renamed` (pairs
  of old and new names), `allow_lost`, `confidence` of all intervals.
- `noise`: how much two runs of the same code differ in a cell, as a share: one standard deviation.
- `interleaved`: whether both were measured in turns. `processes`: pairs of processes.
- `counts`: cells by verdict.
- `base`, `new`: `folder`, `tree` (as it was named to `kvbench ab`), `commit`, `dirty`, `created`,
  `device`, `device_name`, `command`.
- `summaries`: `strategy`, `phase`, `clock`, `cells`, `ratio` of new over base with the ends `low`
  and `high` of its interval, `p_value` (corrected), `verdict`.
- `cells`: those that both timed: `case` (its fields), `strategy`, `phase`, `clock`, `cache`,
  `base_s` and `new_s` (medians, in seconds), `ratio`, `low`, `high`, `p_value`, `verdict`, `why`
  (of UNSURE), `repro` (the command that measures the new one again).
- `lost`, `new_cells`: what one run alone timed; `broken`: what is wrong or failed in the new run
  and was not timed in the base. `case`, `strategy`, `phase`, `clock`, `cache`; `status` and
  `reason` of the run that has no time ("missing" if it has no row); `repro`, the new run's if it
  has a row, else the base's.
- `likely_renames`: pairs of names whose cells are the very same.
- `notes`: sentences for people.
"""

from collections.abc import Iterable
from typing import Any

import msgspec

from kvbench.analysis.comparison import CONFIDENCE, Cell, Change, Judged, Summary
from kvbench.analysis.gate import likely_renames
from kvbench.cases import Case
from kvbench.report.comparison import Compared, conclusion, tally
from kvbench.results import Result
from kvbench.store import Run

SCHEMA_VERSION = 1


def as_json(compared: Compared) -> str:
    """The object, indented, with a line's end."""
    encoded = msgspec.json.encode(_object(compared))
    return msgspec.json.format(encoded, indent=2).decode() + "\n"


def _object(compared: Compared) -> dict[str, Any]:
    gate = compared.gate
    comparison, rules = gate.comparison, gate.comparison.rules
    names = dict(rules.renamed)
    repros = _repros(compared.base.results, names) | _repros(compared.new.results, {})
    return {
        "schema_version": SCHEMA_VERSION,
        "conclusion": conclusion(gate),
        "regressed": gate.regressed,
        "rules": {
            "least_effect": rules.least_effect,
            "significance": rules.significance,
            "clocks": rules.clocks,
            "renamed": rules.renamed,
            "allow_lost": gate.allow_lost,
            "confidence": CONFIDENCE,
        },
        "noise": comparison.noise,
        "interleaved": comparison.interleaved,
        "processes": comparison.processes,
        "counts": tally(comparison),
        "base": _side(compared.base),
        "new": _side(compared.new),
        "summaries": [_summary(each) for each in comparison.summaries],
        "cells": [_judged(each, repros) for each in comparison.judged],
        "lost": [_change(each, repros) for each in comparison.lost],
        "new_cells": [_change(each, repros) for each in comparison.new],
        "broken": [_change(each, repros) for each in gate.broken],
        "likely_renames": likely_renames(comparison),
        "notes": compared.notes,
    }


Repros = dict[tuple[Case, str], str]


def _repros(rows: Iterable[Result], names: dict[str, str]) -> Repros:
    return {(row.case, names.get(row.strategy, row.strategy)): row.repro for row in rows}


def _side(run: Run) -> dict[str, Any]:
    environment = run.info.environment
    return {
        "folder": str(run.folder),
        "tree": run.info.tree,
        "commit": environment.git_commit,
        "dirty": environment.git_dirty,
        "created": run.info.created,
        "device": environment.device,
        "device_name": environment.device_name,
        "command": run.info.command,
    }


def _cell(cell: Cell) -> dict[str, Any]:
    return {
        "case": cell.case.fields(),
        "strategy": cell.strategy,
        "phase": cell.phase,
        "clock": cell.clock,
        "cache": cell.cache,
    }


def _ratio(each: Judged | Summary) -> dict[str, Any]:
    ratio = each.ratio
    return {
        "ratio": ratio.median,
        "low": ratio.low,
        "high": ratio.high,
        "p_value": each.p_value,
        "verdict": each.verdict,
    }


def _judged(each: Judged, repros: Repros) -> dict[str, Any]:
    return {
        **_cell(each.cell),
        "base_s": each.base_s,
        "new_s": each.new_s,
        **_ratio(each),
        "why": each.why,
        "repro": repros[each.cell.case, each.cell.strategy],
    }


def _summary(each: Summary) -> dict[str, Any]:
    return {
        "strategy": each.strategy,
        "phase": each.phase,
        "clock": each.clock,
        "cells": each.cells,
        **_ratio(each),
    }


def _change(each: Change, repros: Repros) -> dict[str, Any]:
    return {
        **_cell(each.cell),
        "status": each.status,
        "reason": each.reason,
        "repro": repros[each.cell.case, each.cell.strategy],
    }
