"""What became of Triton's kernels in this process: how often compiled, and in which tiles."""

from collections.abc import Iterable

from kvbench.kernels import tuning
from kvbench.kernels.attend import attend_kernel
from kvbench.kernels.attend_merge import merge_attend_kernel
from kvbench.kernels.gather import gather_kv_kernel
from kvbench.kernels.gather_quantised import gather_quantised_kv_kernel
from kvbench.kernels.jit import Kernel
from kvbench.kernels.scatter import scatter_kv_kernel
from kvbench.kernels.scatter_quantised import scatter_quantised_kv_kernel
from kvbench.kernels.slot_mapping import map_slots_kernel

KERNELS = (
    scatter_kv_kernel,
    gather_kv_kernel,
    scatter_quantised_kv_kernel,
    gather_quantised_kv_kernel,
    attend_kernel,
    merge_attend_kernel,
    map_slots_kernel,
)
"""Every kernel of this package."""


def kernel_lines(kernels: Iterable[Kernel] = KERNELS) -> tuple[str, ...]:
    """A line for each kernel that was compiled, and for each choice of a tile; none on a CPU."""
    compiled = [(kernel.name, kernel.compilations) for kernel in kernels]
    lines = [f"{name}: {count} compilations" for name, count in compiled if count]
    for choice in tuning.choices():
        fastest = choice.milliseconds[choice.tile]
        slower = ", ".join(
            f"{tile} {milliseconds / fastest:.2f}x"
            for tile, milliseconds in choice.milliseconds.items()
            if tile != choice.tile
        )
        lines.append(f"{choice.kernel}, {choice.rows}: {choice.tile} (slower: {slower})")
    return tuple(lines)
