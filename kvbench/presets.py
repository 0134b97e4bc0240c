"""Named sweeps. A preset is one or more grids whose cases are joined."""

from collections.abc import Mapping
from dataclasses import dataclass

from kvbench.cases import Axes, Case, expand_all
from kvbench.errors import unknown


@dataclass(frozen=True, slots=True)
class Preset:
    """A named sweep with the time that each of its cells may take."""

    name: str
    summary: str
    grids: tuple[Axes, ...]
    cell_seconds: float
    """Most seconds of sampling for one strategy in one case and phase."""

    def cases(self, overrides: Axes | None = None) -> tuple[Case, ...]:
        """The preset's cases, with every axis that `overrides` names replaced in each grid."""
        return expand_all(g.override(overrides) if overrides else g for g in self.grids)


def _preset(name: str, summary: str, cell_seconds: float, *grids: str) -> Preset:
    return Preset(name, summary, tuple(Axes.parse(grid.split()) for grid in grids), cell_seconds)


PRESETS: Mapping[str, Preset] = {
    preset.name: preset
    for preset in (
        _preset(
            "smoke",
            "a few small cases, to see that everything works (seconds)",
            0.05,
            "seq_len=1:64:*8 block_size=16",
        ),
        _preset(
            "cpu",
            "launch-overhead curves on a machine without a GPU (under 5 minutes on two cores)",
            0.2,
            "seq_len=1:8192:*2 block_size=16,64 num_kv_heads=8,32",
            "seq_len=1:512:*8 batch=8",
            "seq_len=1:4096:*8 dtype=fp32",
        ),
        _preset(
            "gpu",
            "the full sweep for a GPU: block sizes, head counts, dtypes, decode batches",
            0.5,
            "seq_len=1:16384:*2 block_size=16,32,64 num_kv_heads=1,8,32",
            "seq_len=1:16384:*4 head_dim=64,256",
            "seq_len=1:4096:*4 batch=8,64",
            "seq_len=1 batch=1:1024:*4",
            "seq_len=1:16384:*4 dtype=fp16,fp32",
            "seq_len=1:16384:*4 block_order=sequential,strided",
        ),
    )
}
"""Every preset by name."""


def get_preset(name: str) -> Preset:
    """The preset of that name.

    Raises:
        InputError: There is none; the message names the nearest.
    """
    if name not in PRESETS:
        raise unknown("preset", name, PRESETS)
    return PRESETS[name]
