"""Continuous batching: requests come and go, prompts go in by chunks, and blocks may run out."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from kvbench.engine.blocks import BlockManager, Table
from kvbench.engine.model import Decoder
from kvbench.engine.paged import PagedCache, Span, Watch
from kvbench.errors import InputError


@dataclass(eq=False, slots=True)
class Request:
    """A prompt, and what has become of it."""

    number: int
    prompt: tuple[int, ...]
    most_new: int
    """Tokens to generate, at most."""
    stops: frozenset[int] = frozenset()
    """Tokens that end it; the last of `generated`, if it was one."""
    generated: list[int] = field(default_factory=list)
    table: Table = field(default_factory=Table)
    computed: int = 0
    """Tokens whose K and V are in the cache."""
    reached: int = 0
    """As many as were, at most, whenever its blocks were taken away."""
    shared: int = 0
    """Tokens that it found there and never computed: those of others."""
    preempted: int = 0
    """Times that its blocks were taken away, to be computed again."""

    @property
    def tokens(self) -> list[int]:
        """The prompt and what was generated."""
        return [*self.prompt, *self.generated]

    @property
    def done(self) -> bool:
        """Whether nothing more is generated."""
        ended = bool(self.generated) and self.generated[-1] in self.stops
        return ended or len(self.generated) >= self.most_new


@dataclass(frozen=True, slots=True)
class StepDone:
    """What one step did."""

    new_tokens: int
    """Tokens that went through the model."""
    sequences: int
    advanced: tuple[Request, ...]
    """Those that have one token more."""


class Engine:
    """Generates for several requests at once, each token the most likely one.

    Requests are served in the order of their arrival. In a step each that is running computes one
    token, or a chunk of its prompt. Where blocks run out the last that came gives its own back and
    computes its tokens again later (vLLM's preemption by recomputation).

    Args:
        model: The decoder.
        cache: Its paged cache.
        chunk: Tokens of a prompt that one step takes, at most.
        most_tokens: Tokens of all requests that one step takes, at most.
        sharing: Whether requests share the blocks of a common prefix.
    """

    def __init__(
        self,
        model: Decoder,
        cache: PagedCache,
        *,
        chunk: int = 256,
        most_tokens: int = 1024,
        sharing: bool = True,
    ) -> None:
        for name, value in (("chunk", chunk), ("most_tokens", most_tokens)):
            if value < 1:
                raise InputError(f"{name}={value}: expected 1 or more")
        self._model, self._cache = model, cache
        self._chunk, self._most_tokens = chunk, most_tokens
        self.blocks = BlockManager(cache.num_blocks, cache.block_size, sharing=sharing)
        self._waiting: deque[Request] = deque()
        self._running: list[Request] = []
        self._requests = 0

    def add(
        self, prompt: Sequence[int], most_new: int, stops: frozenset[int] = frozenset()
    ) -> Request:
        """Ask for the tokens that follow a prompt.

        Raises:
            InputError: The prompt is empty, has a token that the model doesn't, or has no room in
                the whole cache together with what is to be generated.
        """
        vocabulary = self._model.config.vocab_size
        if not prompt:
            raise InputError("the prompt is empty; expected a token or more")
        for token in prompt:
            if not 0 <= token < vocabulary:
                raise InputError(f"token {token}: expected one from 0 to {vocabulary - 1}")
        if most_new < 1:
            raise InputError(f"{most_new} tokens to generate: expected 1 or more")
        # The last token is given out; its K and V are never needed.
        needed = self.blocks.blocks_for(len(prompt) + most_new - 1)
        if needed > self.blocks.num_blocks:
            raise InputError(
                f"a prompt of {len(prompt)} tokens and {most_new} new ones take {needed} blocks "
                f"of {self.blocks.block_size}; expected up to {self.blocks.num_blocks}, which the "
                "cache has"
            )
        request = Request(self._requests, tuple(prompt), most_new, stops)
        self._requests += 1
        self._waiting.append(request)
        return request

    def cancel(self, request: Request) -> None:
        """Forget a request, whatever it has come to."""
        if request in self._running:
            self._running.remove(request)
            self.blocks.end(request.table)
        elif request in self._waiting:
            self._waiting.remove(request)

    @property
    def busy(self) -> bool:
        """Whether any request is not done."""
        return bool(self._running or self._waiting)

    def step(self, watch: Watch | None = None) -> StepDone:
        """Take every request that has its turn one step further.

        Args:
            watch: Around the parts of the step that are the cache's.
        """
        counts = self._schedule()
        # Those with equally many new tokens next to each other, as attentions take them.
        batch = sorted(counts, key=lambda request: counts[request])
        if not batch:
            return StepDone(0, 0, ())
        spans = [Span(r.table.blocks, r.computed, counts[r]) for r in batch]
        device = self._cache.device
        tokens = [t for r in batch for t in r.tokens[r.computed : r.computed + counts[r]]]
        positions = [p for r in batch for p in range(r.computed, r.computed + counts[r])]
        ends, rows, total = [], [], 0
        for request in batch:
            total += counts[request]
            if request.computed + counts[request] == len(request.tokens):
                ends.append(request)
                rows.append(total - 1)
        logits = self._model(
            torch.tensor(tokens, device=device),
            torch.tensor(positions, device=device),
            self._cache.step(spans, watch),
            torch.tensor(rows, dtype=torch.int64, device=device),
        )
        likeliest = logits.argmax(-1).tolist()
        for request in batch:
            request.computed += counts[request]
            self.blocks.publish(request.table, request.tokens, request.computed)
        for request, token in zip(ends, likeliest, strict=True):
            request.generated.append(token)
            if request.done:
                self._running.remove(request)
                self.blocks.end(request.table)
        return StepDone(len(tokens), len(batch), tuple(ends))

    def run(self) -> None:
        """Step until every request is done."""
        while self.busy:
            self.step()

    def _schedule(self) -> dict[Request, int]:
        """How many new tokens each request of this step has; their blocks are theirs already."""
        counts: dict[Request, int] = {}
        left, waiting = self._most_tokens, len(self._waiting)
        for request in list(self._running):
            # One before may have needed its blocks.
            if left and request in self._running:
                left -= self._give(request, counts, left)
        preempted = len(self._waiting) > waiting  # who has just given way is not let in again
        while left and self._waiting and not preempted:
            request = self._waiting[0]
            request.table = self.blocks.begin(request.tokens)
            request.computed = request.table.published * self.blocks.block_size
            request.shared += max(request.computed - request.reached, 0)
            count = min(len(request.tokens) - request.computed, self._chunk, left)
            if not self.blocks.grow(request.table, request.computed + count):
                self.blocks.end(request.table)
                break
            self._running.append(self._waiting.popleft())
            counts[request] = count
            left -= count
        return counts

    def _give(self, request: Request, counts: dict[Request, int], left: int) -> int:
        """Room for a running request's next tokens, taken from the last that came if need be."""
        count = min(len(request.tokens) - request.computed, self._chunk, left)
        while not self.blocks.grow(request.table, request.computed + count):
            last = self._running.pop()
            self.blocks.end(last.table)
            last.reached, last.computed = max(last.reached, last.computed), 0
            last.preempted += 1
            self._waiting.appendleft(last)
            if last is request:
                return 0
            counts.pop(last, None)
        counts[request] = count
        return count
