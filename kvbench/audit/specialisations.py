"""Every form in which the GPU preset has Triton compile the kernels, found by planning its cases.

Nothing is compiled, and tensors have no memory. Of strategies that choose a tile by measuring,
every tile that they choose from counts: which one a GPU will be fastest with is not known.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from kvbench.audit.simulated import Wanted, simulated_gpu
from kvbench.audit.targets import TARGETS
from kvbench.axes import Axes, expand_all
from kvbench.cases import Case
from kvbench.kernels.report import KERNELS
from kvbench.kernels.tiles import MEASURED_ELEMENTS, tiles_of
from kvbench.presets import get_preset
from kvbench.strategies import registry
from kvbench.strategies.base import Strategy
from kvbench.workload import build

_PRESET = "gpu"
_BESIDE = tuple(
    Axes.parse(grid.split())
    for grid in (
        # Kernels, formats and layouts that the preset has none of, each in one shape.
        "op=write,read seq_len=128 cache_dtype=fp8_e4m3,fp8_e5m2,int8 kv_scale=per_head,per_token",
        "op=write,read seq_len=128 layout=MLA,x-packed,HND cache_dtype=auto,fp8_e4m3",
        "op=write,read seq_len=128 num_kv_heads=5 head_dim=40",
        "op=write,read seq_len=128 num_kv_heads=1 head_dim=64",
        "op=index seq_len=300 batch=5 lengths=equal padding=3 slot_dtype=int32 block_size=17",
        "op=attend seq_len=8192 batch=64 num_heads=32 layout=HND,x-packed lengths=equal",
        "op=attend seq_len=8192 batch=64 num_heads=16 layout=MLA lengths=equal",
        "op=attend seq_len=8192 batch=64 num_heads=32 cache_dtype=int8 kv_scale=per_token "
        "lengths=equal",
    )
)
_META = torch.device("meta")
_BITS = re.compile(r"\d+")
_CODES = {3: "fp8_e4m3", 2: "fp8_e5m2", 0: "int8"}


@dataclass(frozen=True, slots=True, eq=False)
class Specialisation:
    """A kernel as Triton compiles it for some kind of arguments."""

    kernel: str
    name: str
    """What tells it from the others of its kernel, in words."""
    signature: Mapping[str, str]
    constants: Mapping[Any, Any]
    attributes: Mapping[Any, Any]
    warps: int
    stages: int
    """Turns of a loop whose loads are under way at once."""

    @property
    def wanted(self) -> Wanted:
        """As Triton takes it, for any target."""
        options = {"num_warps": self.warps, "num_stages": self.stages}
        function = functions()[self.kernel]
        return Wanted(function, "", self.signature, self.constants, self.attributes, options)

    @property
    def known(self) -> dict[str, Any]:
        """Its compile-time constants, and the arguments that it is compiled for as 1, by name."""
        names = list(self.signature)
        return {names[at]: value for (at, *_), value in self.constants.items()}

    @property
    def itemsizes(self) -> dict[str, int]:
        """Bytes of an element of each tensor."""
        kinds = {name: kind for name, kind in self.signature.items() if kind.startswith("*")}
        return {name: int(_BITS.findall(kind)[-1]) // 8 for name, kind in kinds.items()}


def functions() -> dict[str, Any]:
    """Triton's form of every kernel, by name."""
    return {kernel.name: kernel.compiled for kernel in KERNELS}


def audited_cases() -> tuple[tuple[Case, bool], ...]:
    """Each case that kernels are planned for, and whether all tiles of it count."""
    preset = get_preset(_PRESET).cases()
    beside = [case for case in expand_all(_BESIDE) if case not in preset]
    return (*((case, True) for case in preset), *((case, False) for case in beside))


def specialisations(backend: str) -> tuple[Specialisation, ...]:
    """The distinct ones of a backend of Triton, in the order in which cases ask for them.

    Args:
        backend: "cuda" or "hip". What its targets have in common, all of them are asked.
    """
    registry.load_builtin()
    strategies = [each for each in registry.all_strategies() if "triton" in each.name]
    target = next(each for each in TARGETS.values() if each.backend == backend)
    with simulated_gpu(target) as gpu:
        for case, all_tiles in audited_cases():
            for strategy in strategies:
                if strategy.op == case.op and strategy.supports(case, _META) is None:
                    _plan(strategy, case, all_tiles=all_tiles)
    return tuple(named(gpu.compiled))


def _plan(strategy: Strategy, case: Case, *, all_tiles: bool) -> None:
    workload = build(case, _META)
    tried = MEASURED_ELEMENTS if all_tiles and case.op != "index" else MEASURED_ELEMENTS[:1]
    for elements in tried:
        with tiles_of(elements):
            prepared = strategy.prepare(workload)
            if case.op == "index":  # it is compiled when it is launched
                strategy.run(workload, prepared)


def named(wanted: Iterable[Wanted]) -> Iterator[Specialisation]:
    """What launches asked Triton for, each with a name that no other of its kernel has."""
    seen: Counter[tuple[str, str]] = Counter()
    for each in wanted:
        made = Specialisation(
            each.function.fn.__name__.strip("_"),
            "",
            each.signature,
            each.constants,
            each.attributes,
            each.options["num_warps"],
            each.options["num_stages"],
        )
        name = _describe(made)
        seen[made.kernel, name] += 1
        if seen[made.kernel, name] > 1:  # other alignments, or strides, of what is named alike
            name = f"{name} ({seen[made.kernel, name]})"
        yield replace(made, name=name)


def _describe(made: Specialisation) -> str:
    known, kinds = made.known, made.signature
    if "BLOCK_SIZE" in known and "SUMMED" in known:
        ones = [name for name in ("sequences", "chunks") if known.get(name) == 1]
        single = "".join(f", 1 {name.removesuffix('s')}" for name in ones)
        return f"blocks of {known['BLOCK_SIZE']}, {kinds['slot_mapping'].strip('*')}{single}"
    if "SPLITS" in known:
        dtype = kinds["output"].strip("*")
        return f"{known['NUM_HEADS']} heads x {known['OUT_DIM']} {dtype}, {known['SPLITS']} parts"
    dims = "+".join(str(known[f"{half}_DIM"]) for half in ("KEY", "VALUE"))
    code = ""
    if known.get("CODE") is not None:
        code = f" in {_CODES[known['CODE']]} {known['SCALE']}"
    if known["KEY_PACK"] != known["KEY_DIM"]:
        code += ", x-packed"
    if "GROUP" in known:
        heads = f"{known['KV_HEADS'] * known['GROUP']}/{known['KV_HEADS']} heads"
        tile = f"{known['ROWS']} rows x {known['TOKENS']} tokens"
        split = ", split" if known["SPLIT"] else ""
        return f"{heads} x {dims} {kinds['query'].strip('*')}{code}, {tile}{split}"
    tile = f"{known['TOKENS']} tokens x {known['BLOCK']}"
    return f"{known['NUM_HEADS']} heads x {dims} {kinds['key'].strip('*')}{code}, {tile}"
