"""A paged cache for every layer of a model, written and attended over by strategies.

A strategy prepares once a step and runs once a layer. Writes take all new tokens of a step at once.
An attention takes sequences with equally many queries at once: those that decode, then each size of
prompt chunk.
"""

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol

import torch

from kvbench import pool
from kvbench.cases import Case
from kvbench.engine.config import ModelConfig
from kvbench.errors import InputError, KvbenchError, StrategyError
from kvbench.workload import TORCH_DTYPES, Workload

Part = Literal["index", "write", "attend"]
"""What a cache does in a step: prepare, and the two that each layer has."""
Watch = Callable[[Part], AbstractContextManager[object]]


class Does(Protocol):
    """A strategy, as a cache needs it: see `strategies.base.Strategy`."""

    name: ClassVar[Any]
    op: ClassVar[Any]

    def supports(self, case: Case, device: torch.device) -> str | None:
        """None, or why not."""
        ...

    def prepare(self, workload: Workload) -> Any:  # noqa: ANN401 - the strategy's own
        """What is done once a step."""
        ...

    def run(self, workload: Workload, prepared: Any) -> Any:  # noqa: ANN401 - the strategy's own
        """What is done once a layer."""
        ...


@dataclass(frozen=True, slots=True)
class Span:
    """The new tokens of one sequence in one step."""

    block_table: list[int]
    """Of the sequence, to the last new token or further."""
    start: int
    """Tokens of the sequence that are in the cache already."""
    count: int
    """New ones, at least 1."""


@dataclass(frozen=True, slots=True)
class _Group:
    """Sequences with equally many new tokens, next to each other in a step."""

    tokens: slice
    workload: Workload
    prepared: Any


class PagedCache:
    """Pools of blocks for every layer.

    Args:
        config: The model's sizes.
        num_blocks: Of each layer's pools.
        block_size: Tokens per block.
        write: A strategy of the op write.
        attend: A strategy of the op attend.
        dtype: Of K and V, "fp32", "fp16" or "bf16".
        layout: Of the pools; not MLA, which is another model's.
        device: Where they are.

    Raises:
        InputError: A strategy doesn't do it; the message has its reason.
    """

    def __init__(
        self,
        config: ModelConfig,
        num_blocks: int,
        *,
        block_size: int,
        write: Does,
        attend: Does,
        dtype: str,
        device: torch.device,
        layout: str = "NHD",
    ) -> None:
        self.config, self.block_size, self.device = config, block_size, device
        self.num_blocks = num_blocks
        self._write, self._attend = write, attend
        shape: dict[str, Any] = {
            "seq_len": 3,
            "batch": 2,
            "block_size": block_size,
            "num_heads": config.num_heads,
            "num_kv_heads": config.num_kv_heads,
            "head_dim": config.head_dim,
            "dtype": dtype,
            "layout": layout,
        }
        # Of these, strategies use the sizes of heads and blocks: sequences are in a step's lists.
        self._writing, self._attending = Case(op="write", **shape), Case(op="attend", **shape)
        for strategy, case in ((write, self._writing), (attend, self._attending)):
            if strategy.op != case.op:
                raise InputError(f"strategy {strategy.name!r}: expected one of the op {case.op}")
            for each in (
                case,
                dataclasses.replace(case, query_len=2) if attend is strategy else case,
            ):
                with _named(strategy):
                    reason = strategy.supports(each, device)
                if reason is not None:
                    raise InputError(f"strategy {strategy.name!r} can't serve this model: {reason}")
        self._pools = [
            pool.allocate(self._writing, num_blocks, TORCH_DTYPES[dtype], device)
            for _ in range(config.num_layers)
        ]

    def step(self, spans: Sequence[Span], watch: Watch | None = None) -> "Step":
        """Prepare a step.

        Args:
            spans: One for each sequence; those with equally many new tokens next to each other.
            watch: Around each part of the step that is the cache's.
        """
        return Step(self, spans, watch or (lambda _: nullcontext()))

    def workload(self, spans: Iterable[Span], op: Literal["write", "attend"]) -> Workload:
        """What a strategy prepares a step for: tensors of the shapes that every layer has."""
        spans = list(spans)
        count, case = spans[0].count, self._writing if op == "write" else self._attending
        tokens = sum(span.count for span in spans)
        if op == "attend":
            case = dataclasses.replace(case, query_len=count)
        rows = tokens if op == "write" else 0
        queries = tokens if op == "attend" else 0
        first, config = self._pools[0], self.config
        key, value = (
            torch.empty(
                (rows, config.num_kv_heads, config.head_dim),
                dtype=first.key.dtype,
                device=self.device,
            )
            for _ in range(2)
        )
        return Workload(
            case=case,
            device=self.device,
            query=torch.empty(
                (queries, config.num_heads, config.head_dim),
                dtype=first.key.dtype,
                device=self.device,
            ),
            key=pool.as_slots(key, first.key),
            value=value,
            key_pool=first.key,
            value_pool=first.value,
            storages=first.storages,
            key_scale=None,
            value_scale=None,
            outputs=None,
            starts=[span.start if op == "write" else 0 for span in spans],
            lengths=[span.count if op == "write" else span.start + span.count for span in spans],
            block_tables=[span.block_table for span in spans],
        )

    def layer(self, layer: int) -> pool.Pools:
        """A layer's pools."""
        return self._pools[layer]

    @property
    def strategies(self) -> tuple[Does, Does]:
        """Of the write and of the attention."""
        return self._write, self._attend


@contextmanager
def _named(strategy: Does) -> Iterator[None]:
    """What a strategy raises inside names it, in one line."""
    try:
        yield
    except KvbenchError:
        raise
    except (Exception, SystemExit) as error:
        what = f"{type(error).__name__}: {error}"
        raise StrategyError(f"strategy {strategy.name!r} failed: {what}") from error


def _refuse_output(attend: Does, output: object, query: torch.Tensor) -> None:
    """Refuse what is no attention's output: the model would fail on it, and blame itself."""
    expected = f"{query.dtype} of shape {list(query.shape)}"
    if not isinstance(output, torch.Tensor):
        found = type(output).__name__
    elif output.shape != query.shape or output.dtype != query.dtype:
        found = f"{output.dtype} of shape {list(output.shape)}"
    else:
        return
    raise StrategyError(f"strategy {attend.name!r} returned {found}; expected {expected}")


class Step:
    """One step's index, prepared once and used in every layer: a `model.Cache`."""

    def __init__(self, cache: PagedCache, spans: Sequence[Span], watch: Watch) -> None:
        self._cache, self._watch = cache, watch
        write, attend = cache.strategies
        self._groups: list[_Group] = []
        with watch("index"):
            self._writing = cache.workload(spans, "write")
            with _named(write):
                self._written = write.prepare(self._writing)
            first = 0
            for count, alike in itertools.groupby(spans, lambda span: span.count):
                workload = cache.workload(alike, "attend")
                last = first + count * len(workload.lengths)
                with _named(attend):
                    prepared = attend.prepare(workload)
                self._groups.append(_Group(slice(first, last), workload, prepared))
                first = last

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> torch.Tensor:
        """As `model.Cache`."""
        pools = self._cache.layer(layer)
        write, attend = self._cache.strategies
        of_layer: dict[str, Any] = {
            "key_pool": pools.key,
            "value_pool": pools.value,
            "storages": pools.storages,
        }
        with self._watch("write"), _named(write):
            rows = pool.as_slots(key, pools.key)
            workload = dataclasses.replace(self._writing, key=rows, value=value, **of_layer)
            write.run(workload, self._written)
        with self._watch("attend"), _named(attend):
            outputs = []
            for group in self._groups:
                new = dataclasses.replace(group.workload, query=query[group.tokens], **of_layer)
                outputs.append(attend.run(new, group.prepared))
                _refuse_output(attend, outputs[-1], new.query)
            return outputs[0] if len(outputs) == 1 else torch.cat(outputs)
