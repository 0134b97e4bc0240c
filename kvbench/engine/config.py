"""The sizes of a decoder. Torch-free."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass

from kvbench.cases import at_least
from kvbench.errors import InputError, unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """A Llama-style decoder: RMSNorm, rotary embedding, shared KV heads, SwiGLU.

    Raises:
        InputError: Sizes that don't go together; the message names them.
    """

    vocab_size: int
    num_layers: int
    hidden_size: int
    num_heads: int
    """Query heads; a multiple of num_kv_heads."""
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    """Of the feed-forward network."""
    rope_theta: float = 10_000.0
    """Base of the rotary embedding's wavelengths."""
    rms_norm_eps: float = 1e-5
    tied_embeddings: bool = True
    """Whether the output's matrix is that of the embedding."""

    def __post_init__(self) -> None:
        for name in (
            *("vocab_size", "num_layers", "hidden_size", "num_heads", "num_kv_heads"),
            *("head_dim", "intermediate_size"),
        ):
            at_least(name, getattr(self, name), 1)
        if self.num_heads % self.num_kv_heads:
            raise InputError(
                f"num_heads={self.num_heads} with num_kv_heads={self.num_kv_heads}: "
                "expected num_heads to be a multiple of num_kv_heads"
            )
        if self.head_dim % 2:
            raise InputError(
                f"head_dim={self.head_dim}: expected an even number: rotary embedding turns pairs"
            )

    @property
    def parameters(self) -> int:
        """Weights of the decoder."""
        heads = (2 * self.num_heads + 2 * self.num_kv_heads) * self.head_dim
        layer = self.hidden_size * (heads + 3 * self.intermediate_size + 2)
        embeddings = 1 if self.tied_embeddings else 2
        return self.num_layers * layer + self.hidden_size * (1 + embeddings * self.vocab_size)


SIZES = {
    "tiny": ModelConfig(
        vocab_size=256,
        num_layers=2,
        hidden_size=64,
        num_heads=4,
        num_kv_heads=2,
        head_dim=16,
        intermediate_size=128,
    ),
    "smollm2-135m": ModelConfig(
        vocab_size=49_152,
        num_layers=30,
        hidden_size=576,
        num_heads=9,
        num_kv_heads=3,
        head_dim=64,
        intermediate_size=1536,
        rope_theta=100_000.0,
    ),
    "llama-3.2-1b": ModelConfig(
        vocab_size=128_256,
        num_layers=16,
        hidden_size=2048,
        num_heads=32,
        num_kv_heads=8,
        head_dim=64,
        intermediate_size=8192,
        rope_theta=500_000.0,
    ),
}
"""Sizes by name, for models of random weights. Each vocabulary has room for any byte."""
_BYTES = 256


def random_sizes(name: str, changes: Iterable[str]) -> ModelConfig:
    """The sizes of a model of random weights.

    Args:
        name: Of `SIZES`.
        changes: As "num_layers=4".

    Raises:
        InputError: There is no such name or size, one is given twice, or they don't go together.
    """
    if name not in SIZES:
        raise unknown("sizes", name, SIZES)
    sizes = asdict(SIZES[name])
    settable = [field for field, value in sizes.items() if type(value) is int]
    changed: set[str] = set()
    for change in changes:
        field, _, text = change.partition("=")
        if field in changed:
            raise InputError(f"size {change!r}: {field} is given twice; expected it once")
        changed.add(field)
        if field not in settable:
            raise unknown("size", field, settable)
        if not text.isascii() or not text.isdecimal():
            raise InputError(f"size {change!r}: expected {field}=N with an integer, 1 or more")
        sizes[field] = int(text)
    if sizes["vocab_size"] < _BYTES:
        raise InputError(
            f"vocab_size={sizes['vocab_size']}: expected {_BYTES} or more: prompts are bytes"
        )
    return ModelConfig(**sizes)
