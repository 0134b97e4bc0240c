"""A write and an attention in a model: one decode step through all of its layers.

Both prepare once a step, for all layers. What else a layer does, projections, rotary embedding,
feed-forward, is PyTorch's own in every pair.
"""

import dataclasses
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from kvbench import pool
from kvbench.cases import ATTEND_ONLY, DEFAULTS, Case
from kvbench.errors import InputError
from kvbench.results import Part
from kvbench.strategies import registry
from kvbench.strategies.base import Strategy
from kvbench.workload import Workload

DEFAULT_PAIRS = (
    # As the teaching code does both, in the order in which it grows quicker.
    *("loop+sdpa_loop", "indexing+sdpa_indexing", "slot_mapping+sdpa_slot_mapping"),
    # PyTorch's other ways, and what its compiler makes of them.
    *("index_put+sdpa_index_select", "index_copy+enable_gqa", "compile+sdpa_compile"),
    "index_put+flex",
    # Kernels: for all of it, and for one half each.
    *("native+native", "triton+triton", "cuda+sdpa_cuda"),
    *("indexing+native", "native+sdpa_native"),
)
"""The pairs that are there without being asked for."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """What a step's layers have in common."""

    positions: torch.Tensor
    """Of the tokens that are fed, int64 [batch]."""
    writing: Workload
    """The step's lists, as a write of its new tokens."""
    written: Any
    """What the write prepared."""
    attending: Workload
    """The same, as an attend over its contexts."""
    attended: Any


class StepCache:
    """The K and V of one step's sequences in every layer: a `engine.model.Cache`."""

    def __init__(self, step: "Step", workload: Workload, prepared: Prepared) -> None:
        self._step, self._layers, self._prepared = step, workload.layers, prepared

    def write(self, layer: int, key: torch.Tensor, value: torch.Tensor) -> None:
        """Store the new tokens' rows, K in the shape of the pool's slots."""
        pools, once = self._layers[layer], self._prepared
        workload = dataclasses.replace(
            once.writing,
            key=key,
            value=value,
            key_pool=pools.key,
            value_pool=pools.value,
            storages=pools.storages,
        )
        self._step.writing.run(workload, once.written)

    def read(self, layer: int, query: torch.Tensor) -> torch.Tensor:
        """Attend over the contexts."""
        pools, once = self._layers[layer], self._prepared
        workload = dataclasses.replace(
            once.attending,
            query=query,
            key_pool=pools.key,
            value_pool=pools.value,
            storages=pools.storages,
        )
        output: torch.Tensor = self._step.attending.run(workload, once.attended)  # type: ignore[assignment]
        return output

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> torch.Tensor:
        """As `engine.model.Cache`."""
        self.write(layer, pool.as_slots(key, self._layers[layer].key), value)
        return self.read(layer, query)


class Step(Strategy):
    """A decode step whose K and V one strategy writes and another attends over.

    Subclasses have both.
    """

    op: ClassVar[str] = "step"
    parts: ClassVar[tuple[Part, ...]] = ("write", "attend")
    writing: ClassVar[Strategy]
    attending: ClassVar[Strategy]

    def __reduce__(self) -> tuple[object, ...]:
        """Another process makes the class anew: it is no module's attribute."""
        return _of, (self.writing, self.attending)

    def supports(self, case: Case, device: torch.device) -> str | None:
        """What both halves do, in a model of this kind."""
        if case.layout == "MLA":
            return "layout MLA: the model has K and V, no latent rows"
        if case.head_dim % 2:
            return f"head_dim {case.head_dim}: rotary embedding turns pairs of elements"
        for strategy, own in ((self.writing, _writing(case)), (self.attending, _attending(case))):
            reason = strategy.supports(own, device)
            if reason is not None:
                return f"{strategy.name}: {reason}"
        return None

    def untimed(self, device: torch.device) -> str | None:
        """What either half says."""
        for strategy in (self.writing, self.attending):
            reason = strategy.untimed(device)
            if reason is not None:
                return f"{strategy.name}: {reason}"
        return None

    @torch.no_grad()
    def prepare(self, workload: Workload) -> Prepared:
        """What both prepare, and the positions of the tokens."""
        w, first = workload, workload.layers[0]
        last = [length - 1 for length in w.lengths]
        own: dict[str, Any] = {
            "key_pool": first.key,
            "value_pool": first.value,
            "storages": first.storages,
            "tokens": None,
            "layers": (),
            "model": None,
        }
        writing = dataclasses.replace(
            w, case=_writing(w.case), starts=last, lengths=[1] * len(last), **own
        )
        attending = dataclasses.replace(w, case=_attending(w.case), **own)
        return Prepared(
            torch.tensor(last, dtype=torch.int64, device=w.device),
            writing,
            self.writing.prepare(writing),
            attending,
            self.attending.prepare(attending),
        )

    @torch.no_grad()
    def run(self, workload: Workload, prepared: Prepared) -> torch.Tensor:
        """The model's logits of the tokens, [batch, VOCABULARY]."""
        model, tokens = workload.model, workload.tokens
        assert model is not None and tokens is not None  # noqa: S101, PT018 - a step has both
        cache = StepCache(self, workload, prepared)
        logits: torch.Tensor = model(tokens, prepared.positions, cache)
        return logits

    @torch.no_grad()
    def run_part(self, part: Part, workload: Workload, prepared: Prepared) -> object:
        """All layers' writes, or all their attentions, of the workload's own rows."""
        cache = StepCache(self, workload, prepared)
        layers = range(len(workload.layers))
        if part == "write":
            for layer in layers:
                cache.write(layer, workload.key, workload.value)
            return None
        return tuple(cache.read(layer, workload.query) for layer in layers)


def _others(case: Case, op: str) -> dict[str, Any]:
    """A step's case as another op's, but for where its tokens are."""
    return {**case.fields(), "op": op, "num_layers": DEFAULTS["num_layers"]}


def _writing(case: Case) -> Case:
    """The write of a step's new tokens, as strategies are asked about it."""
    own = {"seq_len": min(case.seq_len, 1), "start_pos": max(case.seq_len - 1, 0)}
    return Case(**{**_others(case, "write"), **own})


def _attending(case: Case) -> Case:
    """The attend over a step's contexts."""
    return Case(**{**_others(case, "attend"), **{name: DEFAULTS[name] for name in ATTEND_ONLY}})


def pair(writing: Strategy, attending: Strategy) -> type[Step]:
    """The step of a write and an attention, as a class of its own."""
    way = "+".join(strategy.name.partition(".")[2] for strategy in (writing, attending))
    summary = f"a model's decode step, with {writing.name} and {attending.name}"
    fields = {"name": f"step.{way}", "writing": writing, "attending": attending}
    fields |= {"summary": summary, "__doc__": f"{summary}.", "__module__": __name__}
    return type(f"Step_{way}", (Step,), fields)


def _of(writing: Strategy, attending: Strategy) -> Step:
    return pair(writing, attending)()


def register_pair(name: str) -> None:
    """Register the pair of a name, step.WRITE+ATTEND, unless it is registered already.

    Raises:
        InputError: It has no two halves, or there is no strategy of one; the message names it.
    """
    if registry.knows(name):
        return
    write, plus, attend = name.removeprefix("step.").partition("+")
    if not plus:
        raise InputError(f"strategy {name!r}: expected step.WRITE+ATTEND, as step.native+native")
    registry.register(pair(registry.get(f"write.{write}"), registry.get(f"attend.{attend}")))


def register_default_pairs() -> None:
    """Register the pairs of `DEFAULT_PAIRS`."""
    for way in DEFAULT_PAIRS:
        register_pair(f"step.{way}")
