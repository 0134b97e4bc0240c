"""What a generation was, and what it took, step by step. Torch-free."""

from collections.abc import Mapping
from dataclasses import dataclass

from kvbench.engine.config import ModelConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What generates."""

    model: str
    config: ModelConfig
    dtype: str
    device: str
    threads: int
    """Of torch, on the host."""
    write: str
    attend: str
    layout: str
    blocks: int
    block_size: int
    load_s: float
    """Reading or drawing the weights, and allocating the cache."""
    warm_s: float | None
    """The warm-up before; None if there was none."""


@dataclass(frozen=True, slots=True)
class TimedStep:
    """One step of an engine."""

    duration_s: float
    new_tokens: int
    """Tokens that went through the model."""
    sequences: int
    said: int
    """Sequences that have one token more."""
    parts_s: Mapping[str, float] | None
    """Time in each part that is the cache's, over all layers; None if it was not taken apart."""

    @property
    def decodes(self) -> bool:
        """Whether each sequence had one token to compute, and has one more."""
        return self.new_tokens == self.sequences == self.said


@dataclass(frozen=True, slots=True)
class Timeline:
    """A generation for several requests, on a clock that stands still between steps."""

    steps: tuple[TimedStep, ...]
    firsts_s: tuple[float, ...]
    """When each request had its first token, in the order of the requests."""
    gaps_s: tuple[float, ...]
    """Between one token of a request and its next, where no step between was taken apart."""
    prompt_tokens: int
    shared_tokens: int
    """Tokens of requests that others had in the cache, so that they were not computed again."""
    generated_tokens: int
    preemptions: int

    @property
    def taken_apart(self) -> tuple[TimedStep, ...]:
        """The decode steps whose parts were timed."""
        return tuple(s for s in self.steps if s.decodes and s.parts_s is not None)

    @property
    def undisturbed(self) -> tuple[TimedStep, ...]:
        """The decode steps whose parts were not timed."""
        return tuple(s for s in self.steps if s.decodes and s.parts_s is None)
