"""One generation from its options on: a model, its prompts, a cache that suits them, a clock."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from kvbench.cases import DTYPE_BYTES
from kvbench.devices import free_bytes, synchronize
from kvbench.engine import gguf
from kvbench.engine.config import ModelConfig, random_sizes
from kvbench.engine.generation import Engine, Request
from kvbench.engine.model import Decoder, decoder, random_decoder
from kvbench.engine.paged import Does, PagedCache
from kvbench.engine.serving import serve
from kvbench.engine.timeline import Setting, Timeline
from kvbench.engine.tokenizer import Numbers, Speaks, Stream, Tokenizer
from kvbench.errors import InputError
from kvbench.units import format_bytes
from kvbench.workload import TORCH_DTYPES

_WARM_TOKENS = 3
"""Generated before the clock runs: of a prompt, then of steps with one token each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a user chooses beside the model, the prompts and the strategies."""

    max_tokens: int
    block_size: int
    blocks: int | None
    """None: as many as all prompts need."""
    chunk: int
    dtype: str
    layout: str
    seed: int
    chat: bool
    sharing: bool
    warm_up: bool


@dataclass(frozen=True, slots=True)
class Source:
    """A model whose weights are not loaded yet."""

    name: str
    config: ModelConfig
    context_length: int | None
    """Tokens that a sequence may have; None if there is no limit."""
    speaks: Speaks
    load: Callable[[Settings, torch.device], Decoder]


def open_model(path: Path) -> Source:
    """The model of a GGUF file.

    Raises:
        InputError: The file can't be used; the message says why.
    """
    file = gguf.read(path)
    tokenizer = Tokenizer(file.metadata)
    if tokenizer.size != file.config.vocab_size:
        raise file.metadata.refusal(
            f"its tokenizer has {tokenizer.size} tokens; expected {file.config.vocab_size}, as "
            "its embedding has"
        )

    def load(settings: Settings, device: torch.device) -> Decoder:
        dtype = TORCH_DTYPES[settings.dtype]
        return decoder(file.config, file.weights(dtype), dtype, device)

    return Source(file.name, file.config, file.context_length, tokenizer, load)


def random_model(sizes: str, changes: Sequence[str]) -> Source:
    """A model of random weights.

    Args:
        sizes: A name of `config.SIZES`.
        changes: Of single sizes, as "num_layers=4".

    Raises:
        InputError: There are no such sizes, or they don't go together.
    """
    config = random_sizes(sizes, changes)

    def load(settings: Settings, device: torch.device) -> Decoder:
        return random_decoder(config, settings.seed, TORCH_DTYPES[settings.dtype], device)

    name = f"random {', '.join((sizes, *changes))}"
    return Source(name, config, None, Numbers(), load)


class Generation:
    """Requests that have not begun, of a model that is loaded."""

    def __init__(
        self,
        setting: Setting,
        engine: Engine,
        requests: Sequence[Request],
        streams: Sequence[Stream],
        wait: Callable[[], None],
    ) -> None:
        self.setting = setting
        self._engine, self._requests, self._wait = engine, requests, wait
        self._streams = dict(zip(requests, streams, strict=True))

    def run(self, hear: Callable[[int, str], None]) -> Timeline:
        """Generate.

        Args:
            hear: Told of the number of a prompt, from 0, and of what was said to it.
        """

        def on_token(request: Request, token: int) -> None:
            stream = self._streams[request]
            hear(request.number, stream.add(token) + (stream.end() if request.done else ""))

        return serve(self._engine, self._requests, self._wait, on_token)


def begin(
    source: Source,
    settings: Settings,
    write: Does,
    attend: Does,
    prompts: Sequence[str],
    device: torch.device,
) -> Generation:
    """Load a model, and warm it up on its prompts.

    Raises:
        InputError: A prompt is too long, blocks or memory are too few, or a strategy doesn't serve
            the model.
    """
    config, speaks = source.config, source.speaks
    encoded = [speaks.encode(prompt, chat=settings.chat) for prompt in prompts]
    for tokens in encoded:
        if source.context_length and len(tokens) + settings.max_tokens > source.context_length:
            raise InputError(
                f"a prompt of {len(tokens)} tokens and {settings.max_tokens} new ones; expected "
                f"{source.context_length} in all, for which the model was made"
            )
    size = settings.block_size
    # The last token is given out; its K and V are never needed.
    needed = sum(-(-(len(tokens) + settings.max_tokens - 1) // size) for tokens in encoded)
    blocks = settings.blocks or needed
    _check_fits(config, blocks * size, settings.dtype, device)
    begun = time.perf_counter()
    cache = PagedCache(
        config,
        blocks,
        block_size=size,
        write=write,
        attend=attend,
        dtype=settings.dtype,
        device=device,
        layout=settings.layout,
    )
    model = source.load(settings, device)
    loaded = time.perf_counter()

    def engine() -> Engine:
        # More than the default where a chunk alone would be.
        most = max(settings.chunk, 1024)
        return Engine(
            model, cache, chunk=settings.chunk, most_tokens=most, sharing=settings.sharing
        )

    served = engine()
    requests = [served.add(tokens, settings.max_tokens, speaks.stops) for tokens in encoded]
    if settings.warm_up:
        warming = engine()  # an engine of its own: nothing is found in the cache afterwards
        for tokens in encoded:
            warming.add(tokens, min(_WARM_TOKENS, settings.max_tokens))
        warming.run()
    setting = Setting(
        model=source.name,
        config=config,
        dtype=settings.dtype,
        device=str(device),
        threads=torch.get_num_threads(),
        write=write.name,
        attend=attend.name,
        layout=settings.layout,
        blocks=blocks,
        block_size=size,
        load_s=loaded - begun,
        warm_s=time.perf_counter() - loaded if settings.warm_up else None,
    )
    streams = [speaks.stream() for _ in requests]
    return Generation(setting, served, requests, streams, lambda: synchronize(device))


def _check_fits(config: ModelConfig, slots: int, dtype: str, device: torch.device) -> None:
    width = DTYPE_BYTES[dtype]
    weights = config.parameters * width
    pools = 2 * config.num_layers * slots * config.num_kv_heads * config.head_dim * width
    free = free_bytes(device)
    if weights + pools > free:
        raise InputError(
            f"weights of {format_bytes(weights)} and a cache of {format_bytes(pools)}; expected "
            f"{format_bytes(free)} in all, which {device} has free"
        )
