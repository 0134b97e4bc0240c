"""What a figure shows, in one sentence, for who can't see it."""

from collections.abc import Callable, Sequence

import pandas as pd

from kvbench.report.panels import Page
from kvbench.report.setting import kv_heads


def of_lines(
    what: str,
    page: Page,
    column: str,
    words: Callable[[float], str],
    *,
    highest: bool = False,
) -> str:
    """Of a figure with a line for each strategy: who is lowest at its first panel's ends.

    Of several panels it is said which that is: in the others another may be, or go lower.

    Args:
        what: What is drawn, over seq_len.
        page: The rows, one for each point.
        column: What is drawn of them.
        words: A value of it for people.
        highest: Whether the highest is the best.
    """
    block, heads = page.block_sizes[0], page.kv_heads[0]
    rows = page.rows[(page.rows["block_size"] == block) & (page.rows["num_kv_heads"] == heads)]
    if rows.empty:
        rows = page.rows
    count = len(page.block_sizes) * len(page.kv_heads)
    over = {"block size": page.block_sizes, "KV heads": page.kv_heads}
    several = [name for name, values in over.items() if len(values) > 1]
    where = f"{_counted(count, 'panel')} by {' and '.join(several)}, " if several else ""
    first = {"block size": f"block size {block}", "KV heads": kv_heads(heads)}
    which = f"of {' and '.join(first[name] for name in several)} " if several else ""
    lines = _counted(page.rows["strategy"].nunique(), "line")
    return (
        f"{what} over seq_len, {where}{lines} ({page.subtitle}): "
        f"{which}{ends(rows, 'seq_len', column, words, highest=highest)}."
    )


def ends(
    rows: pd.DataFrame,
    axis: str,
    column: str,
    words: Callable[[float], str],
    *,
    highest: bool = False,
) -> str:
    """Which strategy is lowest, or highest, at the least and at the most of an axis."""
    extremes = []
    for value in dict.fromkeys((rows[axis].min(), rows[axis].max())):
        here = rows[rows[axis] == value]
        best = here.loc[here[column].idxmax() if highest else here[column].idxmin()]
        extremes.append(f"at {axis} {value:,} {best['strategy']} with {words(best[column])}")
    return f"{'highest' if highest else 'lowest'} is {' and '.join(extremes)}"


def most_of(names: Sequence[str]) -> str:
    """How often each name is among these, the most frequent first: "a in 3, b in 1"."""
    counts = pd.Series(list(names)).value_counts(sort=True)
    return ", ".join(f"{name} in {count:,}" for name, count in counts.items())


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
