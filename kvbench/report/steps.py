"""Whole decode steps as tables: tokens per second, and what a step's index costs each layer."""

from typing import Any

import pandas as pd

from kvbench.analysis.frame import main_group
from kvbench.analysis.steps import PARTS, per_token_and_layer, split, throughput
from kvbench.report.setting import describe
from kvbench.report.tables import MISSING, Table, spaced
from kvbench.units import format_seconds, significant

_FREE = ("seq_len", "batch")


def throughput_table(frame: pd.DataFrame) -> Table | None:
    """Tokens per second by batch and context, in the run's main setting; None if there are none.

    Of each batch the pair that is fastest over the longest context comes first.

    Args:
        frame: The rows of a run.
    """
    rates = throughput(frame)
    if rates.empty:
        return None
    shared, rows = main_group(rates, _FREE)
    contexts = spaced(sorted(set(rows["seq_len"])))
    lines = []
    for batch, of_batch in rows.groupby("batch", sort=True):
        # A pair that was too slow for the longest context comes after all that were not.
        by_context = of_batch.pivot_table(
            index="strategy", columns="seq_len", values="tokens_per_s", aggfunc="first"
        ).sort_index(axis="columns", ascending=False)
        order = by_context.sort_values(list(by_context.columns), ascending=False).index
        for strategy in order:
            own = of_batch[of_batch["strategy"] == strategy].set_index("seq_len")
            cells = (_rate(own, context) for context in contexts)
            lines.append((f"{batch:,}", str(strategy), *cells))
    return Table(
        f"step: tokens per second by context ({describe(shared)})",
        ("batch", "strategy", *(f"{n:,}" for n in contexts)),
        tuple(lines),
        "Of a whole step, prepare and all layers. In brackets: 95 % interval.",
    )


def _rate(own: pd.DataFrame, context: int) -> str:
    if context not in own.index:
        return MISSING
    row: Any = own.loc[context]
    middle, low, high = (significant(row[f"tokens_per_s{end}"]) for end in ("", "_low", "_high"))
    return f"{middle} ({low} to {high})"


def split_table(frame: pd.DataFrame) -> Table | None:
    """Where a step's time goes for each token and layer, by the layers of the model.

    In the context and batch of which most was measured; None if there is none.

    Args:
        frame: The rows of a run.
    """
    parts = split(frame)
    if parts.empty:
        return None
    shared, rows = main_group(per_token_and_layer(parts), ("num_layers",))
    lines = []
    for strategy, own in rows.groupby("strategy", sort=True):
        for number, (_, row) in enumerate(own.sort_values("num_layers").iterrows()):
            once = row["prepare_s"] / sum(row[f"{part}_s"] for part in PARTS)
            name = "" if number else str(strategy)
            times = (format_seconds(row[f"{part}_s"]) for part in PARTS)
            lines.append((name, f"{row['num_layers']:,}", *times, f"{100 * once:.1f} %"))
    return Table(
        f"step: time for each token and layer ({describe(shared)})",
        ("strategy", "layers", *PARTS, "prepare's share"),
        tuple(lines),
        "prepare is paid once a step: spread over its layers. Parts are timed by themselves; the "
        "rest of a step is what is left.",
    )
