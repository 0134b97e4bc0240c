"""Who is the fastest where: a cell for each seq_len and block size, KV heads or batch."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib.axes import Axes as Panel
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle
from matplotlib.transforms import Transform, offset_copy

from kvbench.analysis.fastest import fastest
from kvbench.cases import ONCE_A_STEP, WHOLE_STEPS
from kvbench.report.alternative import most_of
from kvbench.report.frames import Key, framed, width_in
from kvbench.report.palette import ink_on
from kvbench.report.panels import chunks, named_settings, numbered, provenance
from kvbench.report.setting import describe, kv_heads
from kvbench.report.style import line, look, styled
from kvbench.results import RunInfo

_GRID = ("block_size", "num_kv_heads")
_WORDS = {"block_size": "block size", "num_kv_heads": "KV heads", "batch": "batch"}
_MOST_COLUMNS = 16
"""Of cells that have room for their numbers."""
_CELL_IN = 0.44
_PANEL_FRAME_IN = 0.32
_AXIS_IN = 0.3
_STRIP = 0.34
"""Of a cell's height, what is the runner-up's."""
_FRAME, _FRAME_UP = 0.055, 0.085
"""Of a cell's width and height: the frame that is left of a tied one."""
_MARK_IN = 0.1
"""Of a marker and the room beside it."""
_LEFT_IN = 0.6
"""Left of the cells, at least."""
_ONE_DECIMAL_FROM, _NO_DECIMALS_FROM = 1.095, 9.95


@dataclass(frozen=True, slots=True)
class Cells:
    """The rows of one figure, as `analysis.fastest.fastest` gives them."""

    name: str
    """Distinguishes the figure's file; "" for the run's main one."""
    subtitle: str
    rank: tuple[int, int]
    """As `panels.Outline.rank`."""
    axis: str
    """The field whose values are the lines of cells."""
    panels: tuple[int, ...]
    """Numbers of KV heads, of which each has a panel; none for a single panel of all rows."""
    layers: int
    rows: pd.DataFrame


def fastest_pages(frame: pd.DataFrame, op: str, layers: int) -> list[Cells]:
    """One page for each setting with two block sizes or numbers of KV heads, or batches, or more.

    Args:
        frame: Rows of a run.
        op: The op.
        layers: Layers of a step.
    """
    cells = fastest(frame, op, layers, "block_size")
    if cells["winner"].nunique() + cells["runner_up"].nunique() == 0:
        return []
    found = list(_grids(cells, layers))
    return [*found, *_batches(cells, layers, later=bool(found))]


def _grids(cells: pd.DataFrame, layers: int) -> Iterator[Cells]:
    free = ("seq_len", *_GRID)
    values = {name: cells[name].to_numpy() for name in free}

    def shows(places: npt.NDArray[np.intp]) -> bool:
        counts = {name: len(np.unique(own[places])) for name, own in values.items()}
        return counts["seq_len"] > 1 and max(counts[name] for name in _GRID) > 1

    for stem, shared, far, places in named_settings(cells, free, shows):
        rows = cells.take(places)
        several = rows["block_size"].nunique() > 1
        axis = "block_size" if several else "num_kv_heads"
        heads = chunks(np.unique(rows["num_kv_heads"])) if several else [()]
        for number, panels in enumerate(heads):
            shown = rows[rows["num_kv_heads"].isin(panels)] if panels else rows
            known = {**shared} if several else {**shared, "block_size": rows["block_size"].iloc[0]}
            name = numbered(stem, number)
            said = describe(known, ("head_dim",))
            yield Cells(name, said, (far, number), axis, panels, layers, shown)


def _batches(cells: pd.DataFrame, layers: int, *, later: bool) -> Iterator[Cells]:
    free = ("seq_len", "batch")
    values = {name: cells[name].to_numpy() for name in free}

    def shows(places: npt.NDArray[np.intp]) -> bool:
        return all(len(np.unique(own[places])) > 1 for own in values.values())

    for stem, shared, far, places in named_settings(cells, free, shows):
        name = "-".join(filter(None, ("over-batch", stem))) if later else stem
        said = describe(shared, ("head_dim",))
        rows = cells.take(places)
        yield Cells(name, said, (far, int(later)), "batch", (), layers, rows)


def fastest_figure(page: Cells, op: str, info: RunInfo) -> Figure:
    """Cells in the winner's colour with how many times what it takes the runner-up takes.

    A strip below has the runner-up's colour. Where the interval of the ratio reaches down to 1 they
    are tied: the cell is hollow, and says so.

    Args:
        page: The rows.
        op: The op.
        info: The run's device and date.
    """
    seq_lens = _shown(sorted({int(n) for n in page.rows["seq_len"]}))
    left_out = page.rows["seq_len"].nunique() - len(seq_lens)
    values = sorted({int(n) for n in page.rows[page.axis]})
    footnote = (
        f"{provenance(info, 'wall')}. In each cell the fastest, with the runner-up's cost over its "
        "own (median ratio within rounds); in the strip below it the runner-up. Hollow: tied, the "
        "95 % interval of the ratio reaches down to 1."
    )
    if left_out:
        footnote += f" {left_out} of {left_out + len(seq_lens)} values of seq_len are left out."
    panels = page.panels or (None,)
    if page.rows["seq_len"].isin(seq_lens).sum() < len(panels) * len(values) * len(seq_lens):
        footnote += " Empty: fewer than two strategies were timed."
    height = len(panels) * (_PANEL_FRAME_IN + len(values) * _CELL_IN) + _AXIS_IN
    rows = page.rows[page.rows["seq_len"].isin(seq_lens)]
    names = list(dict.fromkeys([*rows["winner"], *rows["runner_up"]]))
    with styled():
        keys = [_key(name) for name in names]
        figure = framed(_title(op, page.layers), page.subtitle, footnote, height, keys)
        axes = figure.subplots(len(panels), 1, sharex=True, squeeze=False)[:, 0]
        for panel, heads in zip(axes, panels, strict=True):
            own = rows if heads is None else rows[rows["num_kv_heads"] == heads]
            _draw(panel, own, page.axis, seq_lens, values)
            if heads is not None:
                panel.set_title(kv_heads(heads), loc="left")
        axes[-1].set_xlabel("seq_len (tokens per sequence)")
    return figure


def fastest_alt(page: Cells, op: str) -> str:
    """The figure in a sentence."""
    tied = int(page.rows["tied"].sum())
    return (
        f"{_title(op, page.layers)}: cells over seq_len and {_WORDS[page.axis]} "
        f"({page.subtitle}), of {len(page.rows):,} cells {most_of(list(page.rows['winner']))}, "
        f"{tied or 'none'} of them tied with the next."
    )


def _title(op: str, layers: int) -> str:
    if op in (*ONCE_A_STEP, *WHOLE_STEPS):
        return f"{op}: the fastest, and by how much"
    return f"{op}: the fastest in a step of {layers} layers, and by how much"


def _shown(values: Sequence[int]) -> list[int]:
    if len(values) <= _MOST_COLUMNS:
        return list(values)
    places = np.linspace(0, len(values) - 1, _MOST_COLUMNS).round().astype(int)
    return [values[place] for place in places]


def _key(name: str) -> Key:
    own = look().colour(name)
    mark = Line2D([], [], **_mark(name, own, 5.0))
    label = name.partition(".")[2]
    return Patch(facecolor=own, edgecolor=look().muted, linewidth=0.4, label=label), mark


def _mark(name: str, behind: str, size: float) -> dict[str, Any]:
    """A strategy's marker as its lines have it, hollow where these are.

    Args:
        name: The strategy.
        behind: The colour that it is drawn on.
        size: In points.
    """
    looks, ink = line(name), ink_on(behind)
    hollow = "markerfacecolor" in looks
    return {
        "marker": looks["marker"],
        "color": ink,
        "markerfacecolor": behind if hollow else ink,
        "markeredgewidth": 0.8 if hollow else 0.0,
        "linestyle": "none",
        "markersize": size,
    }


def _draw(
    panel: Panel, rows: pd.DataFrame, axis: str, seq_lens: Sequence[int], values: Sequence[int]
) -> None:
    room = (look().width_in - _LEFT_IN) / len(seq_lens) - _LEFT_IN / 2
    names = {name.partition(".")[2] for name in (*rows["winner"], *rows["runner_up"])}
    named = all(width_in(f"{name} 1.00x", look().small_pt) < room for name in names)
    for _, row in rows.iterrows():
        x, y = seq_lens.index(row["seq_len"]), values.index(row[axis])
        _draw_cell(panel, x, y, row, named=named)
    panel.set_xlim(-0.5, len(seq_lens) - 0.5)
    panel.set_ylim(len(values) - 0.5, -0.5)  # the first above, as one reads
    panel.set_xticks(range(len(seq_lens)), [f"{n:,}" for n in seq_lens])
    panel.set_yticks(range(len(values)), [f"{n:,}" for n in values])
    panel.set_ylabel(_WORDS[axis])
    panel.tick_params(length=0)
    panel.grid(visible=False)
    for spine in panel.spines.values():
        spine.set_visible(False)


def _draw_cell(panel: Panel, x: float, y: float, row: "pd.Series[Any]", *, named: bool) -> None:
    winner, runner_up, tied = str(row["winner"]), str(row["runner_up"]), bool(row["tied"])
    now = look()
    own, next_own = now.colour(winner), now.colour(runner_up)
    behind = now.background if tied else own
    top, bottom = y - 0.5, y + 0.5 - _STRIP
    boxes = (
        (top, 1 - _STRIP, own),
        (bottom, _STRIP, next_own),
    )
    for start, height, filled in boxes:
        panel.add_patch(Rectangle((x - 0.5, start), 1, height, facecolor=filled, linewidth=0))
    if tied:
        panel.add_patch(
            Rectangle(
                (x - 0.5 + _FRAME, top + _FRAME_UP),
                1 - 2 * _FRAME,
                1 - _STRIP - 2 * _FRAME_UP,
                facecolor=behind,
                linewidth=0,
            )
        )
    for start, height, width in ((top, 1, 1.6), (bottom, 0, 0.6)):  # around it, above the strip
        panel.add_patch(
            Rectangle(
                (x - 0.5, start),
                1,
                height,
                facecolor="none",
                edgecolor=now.background,
                linewidth=width,
            )
        )
    said = "tied" if tied else _times(float(row["ratio"]))
    if named:
        said = f"{winner.partition('.')[2]} {said}"
    _write(panel, (x, y - _STRIP / 2), winner, said, behind)
    said = runner_up.partition(".")[2] if named else ""
    _write(panel, (x, bottom + _STRIP / 2), runner_up, said, next_own)


def _write(panel: Panel, at: tuple[float, float], name: str, said: str, behind: str) -> None:
    """A strategy's marker and what is said of it, in the middle of a part of a cell."""
    size = look().small_pt
    wide = width_in(said, size)
    x, y = at
    if said:
        panel.text(
            x,
            y,
            said,
            transform=_beside(panel, _MARK_IN / 2),
            ha="center",
            va="center",
            fontsize=size,
            color=ink_on(behind),
        )
    place = _beside(panel, -wide / 2 - _MARK_IN / 2 if said else 0.0)
    panel.plot([x], [y], transform=place, **_mark(name, behind, 4.0))


def _beside(panel: Panel, inches: float) -> Transform:
    """Where data are, so many inches right of it, however wide a cell is."""
    figure: Any = panel.figure
    return offset_copy(panel.transData, figure, x=inches, units="inches")


def _times(ratio: float) -> str:
    if ratio >= _NO_DECIMALS_FROM:
        return f"{ratio:.0f}x"
    return f"{ratio:.1f}x" if ratio >= _ONE_DECIMAL_FROM else f"{ratio:.2f}x"
