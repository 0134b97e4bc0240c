"""Times that the launch-overhead model gives for a GPU that nobody has measured.

The model is the one that `analysis.fit` fits to measured rows: time = a + b * launches + bytes /
bandwidth. Here its three constants come from outside, and no result is a measurement:

- Launches are those that fake CUDA tensors tell (`sweep.launches.foretold`).
- b, the cost of a launch, is an assumption: by default the range that the teaching series names.
- The bandwidth is the vendor's own figure, all of it. No copy reaches that, so the bytes' part is
  the least that it can be: which share a kernel reaches is what a measurement is for. Whoever knows
  a better figure gives it. What comes out of the L2 cache can be faster still.
- Bytes are the least that the op moves, and for an attention that gathers first the copies as well:
  written once, read once.
- a, what a call costs before it launches anything, is not known and taken for 0.

Host and device work at the same time where launches are queued; then the time is nearer the larger
of the two parts than their sum, and the sum is at most twice as long. Waiting for the device is
counted, not timed.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from kvbench.analysis.crossover import last_crossing
from kvbench.analysis.frame import CASE_FIELDS
from kvbench.cases import ONCE_A_STEP, WHOLE_STEPS, Case
from kvbench.errors import InputError, unknown
from kvbench.results import LaunchCounts, Phase

Floats = npt.NDArray[np.float64]

_PER_SECOND = 1e6
"""Microseconds."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU and its published memory bandwidth."""

    title: str
    bandwidth_bytes_per_s: float
    source: str
    """The vendor's document that has the figure, and where it is."""
    hip: bool = False
    """Whether it is AMD's."""


GPUS: Mapping[str, Gpu] = {
    "h100": Gpu(
        "H100 SXM",
        3.35e12,
        "NVIDIA, H100 Tensor Core GPU, specifications of the H100 SXM: "
        "https://www.nvidia.com/en-us/data-center/h100/",
    ),
    "h200": Gpu(
        "H200 SXM",
        4.8e12,
        "NVIDIA, H200 Tensor Core GPU, specifications: "
        "https://www.nvidia.com/en-us/data-center/h200/",
    ),
    "a100": Gpu(
        "A100 SXM 80 GB",
        2.039e12,
        "NVIDIA, A100 Tensor Core GPU data sheet, A100 80GB SXM: "
        "https://www.nvidia.com/content/dam/en-zz/Solutions/Data-Center/a100/pdf/"
        "nvidia-a100-datasheet-us-nvidia-1758950-r4-web.pdf",
    ),
    "l4": Gpu(
        "L4",
        300e9,
        "NVIDIA, L4 Tensor Core GPU, specifications: https://www.nvidia.com/en-us/data-center/l4/",
    ),
    "rtx4090": Gpu(
        "GeForce RTX 4090",
        1.008e12,
        "NVIDIA, Ada GPU architecture white paper, GeForce RTX 4090 (384 bits at 21 Gbit/s): "
        "https://images.nvidia.com/aem-dam/Solutions/geforce/ada/nvidia-ada-gpu-architecture.pdf",
    ),
    "b200": Gpu(
        "B200",
        8e12,
        "NVIDIA, DGX B200 data sheet, 64 TB/s of its eight GPUs together: "
        "https://resources.nvidia.com/en-us-dgx-systems/dgx-b200-datasheet",
    ),
    "mi300x": Gpu(
        "Instinct MI300X",
        5.3e12,
        "AMD, Instinct MI300X accelerator, peak memory bandwidth: "
        "https://www.amd.com/en/products/accelerators/instinct/mi300/mi300x.html",
        hip=True,
    ),
}
"""By the name that it is asked for by."""

SERIES_LAUNCH_US = "5:20"
"""What the teaching series says that a launch costs."""


@dataclass(frozen=True, slots=True)
class Premises:
    """What a prediction rests on besides launches and bytes."""

    name: str
    """For files: "h100", or the bandwidth's own."""
    title: str
    """For people."""
    bandwidth_bytes_per_s: float
    bandwidth_source: str
    launch_low_s: float
    """Seconds of a launch, the least assumed."""
    launch_high_s: float
    """And the most."""
    launch_source: str
    hip: bool = False
    """Whether the GPU is AMD's."""


def premises(gpu: str | None, bandwidth_gb_per_s: float | None, launch_us: str | None) -> Premises:
    """The premises from what a user gave: a GPU's name or a bandwidth, and a launch's cost.

    Args:
        gpu: One of `GPUS`.
        bandwidth_gb_per_s: Instead, in units of 1e9 bytes per second.
        launch_us: Microseconds of a launch, "10", or a range, "5:20"; the series' range if None.

    Raises:
        InputError: A GPU that is none, a bandwidth or a cost that none has, both or neither.
    """
    if (gpu is None) == (bandwidth_gb_per_s is None):
        raise InputError(
            f"expected one of --gpu and --bandwidth; GPUs that are known: {', '.join(GPUS)}"
        )
    low_s, high_s = _launch_cost(launch_us or SERIES_LAUNCH_US)
    by = (
        "ASSUMED: the range that the teaching series (step 14_1) names; not measured"
        if launch_us is None
        else "ASSUMED: as given with --launch-us"
    )
    if gpu is not None:
        known = GPUS.get(gpu.lower())
        if known is None:
            raise unknown("GPU", gpu, GPUS)
        rate, source = known.bandwidth_bytes_per_s, known.source
        return Premises(gpu.lower(), known.title, rate, source, low_s, high_s, by, known.hip)
    given = bandwidth_gb_per_s or 0.0
    if not (math.isfinite(given) and given > 0):
        raise InputError(f"bandwidth {given:g} GB/s: expected a finite number above 0")
    title = f"a GPU of {given:g} GB/s"
    given_by = "ASSUMED: as given with --bandwidth"
    return Premises(f"{given:g}GBps", title, given * 1e9, given_by, low_s, high_s, by)


def _launch_cost(text: str) -> tuple[float, float]:
    """Seconds, least and most, from microseconds as "10" or "5:20"."""
    form = f"launch cost {text!r}: expected microseconds, 0 or more, as 10 or 5:20"
    try:
        costs = [float(piece) for piece in text.split(":")]
    except ValueError:
        raise InputError(form) from None
    if not all(math.isfinite(cost) and cost >= 0 for cost in costs):
        raise InputError(form)
    low, high = costs[0], costs[-1]
    if len(costs) > 2 or low > high:  # noqa: PLR2004 - least and most
        raise InputError(f"{form}, the smaller first")
    return low / _PER_SECOND, high / _PER_SECOND


@dataclass(frozen=True, slots=True)
class Foretold:
    """What a strategy's phase would launch, or why that is not known: never both."""

    strategy: str
    case: Case
    phase: Phase
    counts: LaunchCounts | None
    reason: str = ""
    """Why there are none."""
    assumption: str = ""
    """What had to be assumed for them."""
    copies: bool = False
    """Whether it attends over copies that it gathers first."""

    def __post_init__(self) -> None:
        if (self.counts is None) != bool(self.reason):
            raise InputError(
                f"{self.strategy} {self.phase}: expected launches, or the reason why there are none"
            )

    @property
    def nbytes(self) -> int:
        """The least that the phase moves: 0 for a prepare, which moves no K or V."""
        if self.phase == "prepare":
            return 0
        return self.case.nbytes + (copied_bytes(self.case) if self.copies else 0)


def copied_bytes(case: Case) -> int:
    """What an attention over copies moves beside the least: each copied row is written and read."""
    if case.op == "step":
        return 2 * case.num_layers * case.tokens * case.row_bytes
    return 2 * case.moved()[0] * case.row_bytes


def predict_s(
    launches: Floats, nbytes: Floats, launch_s: float, bandwidth_bytes_per_s: float
) -> Floats:
    """Seconds per call by the model, a = 0."""
    return launch_s * launches + nbytes / bandwidth_bytes_per_s


def predictions(told: Iterable[Foretold], given: Premises) -> pd.DataFrame:
    """A line per strategy, case and phase with its case's fields; missing where nothing is told.

    Columns: strategy, phase, launches, synchronizations, nbytes (of this strategy), least_bytes (of
    the case), moving_s (the bytes alone), low_s and high_s (at the least and the most that a launch
    is assumed to cost), reason, assumption.
    """
    rows = []
    for each in told:
        case, counts = each.case, each.counts
        rows.append(
            {
                **case.fields(),
                "queries_per_kv_head": case.num_heads // case.num_kv_heads,
                "tokens": case.tokens,
                "least_bytes": case.nbytes,
                "strategy": each.strategy,
                "phase": each.phase,
                "launches": math.nan if counts is None else counts.launches,
                "synchronizations": math.nan if counts is None else counts.synchronizations,
                "nbytes": each.nbytes,
                "reason": each.reason,
                "assumption": each.assumption,
            }
        )
    frame = pd.DataFrame(rows, columns=list(_COLUMNS))
    launches, nbytes = (frame[name].to_numpy(dtype=np.float64) for name in ("launches", "nbytes"))
    rate = given.bandwidth_bytes_per_s
    return frame.assign(
        moving_s=nbytes / rate,
        low_s=predict_s(launches, nbytes, given.launch_low_s, rate),
        high_s=predict_s(launches, nbytes, given.launch_high_s, rate),
    )


_COLUMNS = (
    *(*CASE_FIELDS, "queries_per_kv_head", "tokens", "least_bytes", "strategy", "phase"),
    *("launches", "synchronizations", "nbytes", "reason", "assumption"),
)


def step_ranges(frame: pd.DataFrame, layers: int) -> pd.DataFrame:
    """The runs of `predictions` with a step's range: prepare + layers * run.

    As `analysis.ranking.step_costs`: what a step does once costs its run alone, and a whole step
    prepare + run. Adds the columns step_low_s and step_high_s, missing where either part is.
    """
    keys = [*CASE_FIELDS, "strategy"]
    runs = frame[frame["phase"] == "run"]
    prepares = frame[frame["phase"] == "prepare"][[*keys, "low_s", "high_s", "launches"]]
    joined = runs.merge(prepares, on=keys, how="left", suffixes=("", "_prepare"), indicator=True)
    calls = np.where(joined["op"].isin((*ONCE_A_STEP, *WHOLE_STEPS)), 1, layers)
    none = (joined["_merge"] == "left_only") | joined["op"].isin(ONCE_A_STEP)
    return joined.drop(columns="_merge").assign(
        **{
            f"step_{end}": joined[f"{end}_prepare"].mask(none, 0.0) + calls * joined[end]
            for end in ("low_s", "high_s")
        }
    )


@dataclass(frozen=True, slots=True)
class Alike:
    """Strategies that the model can't tell apart: the same launches and bytes at every size."""

    strategies: tuple[str, ...]
    rows: pd.DataFrame
    """Of the first of them, by seq_len."""


def alike(runs: pd.DataFrame) -> list[Alike]:
    """Runs that differ in seq_len and strategy alone, those of one curve put together."""
    found: dict[tuple[object, ...], list[tuple[str, pd.DataFrame]]] = {}
    for name, own in runs.groupby("strategy", sort=True):
        rows = own.sort_values("seq_len")
        curve = tuple(rows[["seq_len", "launches", "nbytes"]].itertuples(index=False, name=None))
        found.setdefault(curve, []).append((str(name), rows))
    return [Alike(tuple(name for name, _ in group), group[0][1]) for group in found.values()]


@dataclass(frozen=True, slots=True)
class Range:
    """Sizes at the least and the most that a launch is assumed to cost.

    0 is every size that was asked about, inf none of them.
    """

    at_low: float
    at_high: float


def outlasting(rows: pd.DataFrame, given: Premises) -> Range:
    """From which seq_len on moving the bytes takes longer than the launches.

    Args:
        rows: Of one strategy and setting, by seq_len.
        given: The premises.
    """
    moving = rows["moving_s"].to_numpy(dtype=np.float64)
    launches = rows["launches"].to_numpy(dtype=np.float64)
    sizes = rows["seq_len"].to_numpy(dtype=np.float64)
    return Range(
        *(
            _from(sizes, moving, cost * launches)
            for cost in (given.launch_low_s, given.launch_high_s)
        )
    )


@dataclass(frozen=True, slots=True)
class Crossing:
    """Where one group of strategies begins to be faster than another."""

    faster: Alike
    slower: Alike
    seq_len: Range


def crossings(groups: Sequence[Alike]) -> list[Crossing]:
    """Every pair, from the side of the one that wins at the largest size that both have."""
    found = []
    for i, one in enumerate(groups):
        for two in groups[i + 1 :]:
            joined = one.rows.merge(two.rows, on="seq_len", suffixes=("_one", "_two"))
            if joined.empty:
                continue
            last = joined.iloc[-1]
            sides = ("one", "two") if last["high_s_one"] <= last["high_s_two"] else ("two", "one")
            sizes = joined["seq_len"].to_numpy(dtype=np.float64)
            ends = [
                _from(sizes, *(joined[f"{end}_{side}"].to_numpy() for side in reversed(sides)))
                for end in ("low_s", "high_s")
            ]
            pair = (one, two) if sides[0] == "one" else (two, one)
            found.append(Crossing(*pair, Range(*ends)))
    return found


def _from(sizes: Floats, times: Floats, others: Floats) -> float:
    """The size from which `times` are longer than `others`: 0 if at all sizes, inf if never.

    Between two sizes by interpolation in the logarithms: exact for powers, as launches of a loop
    and bytes of rows are.
    """
    with np.errstate(divide="ignore"):  # what costs nothing is left behind at every size
        logs = np.log(times) - np.log(others)
    return float(np.exp(last_crossing(np.log(sizes), logs)))


def of_case(told: Sequence[Foretold], strategy: str, phase: Phase = "run") -> LaunchCounts | None:
    """The launches of a strategy's phase among those told; None if there are none."""
    for each in told:
        if (each.strategy, each.phase) == (strategy, phase):
            return each.counts
    return None
