"""The sizes of a decoder. Torch-free."""

from dataclasses import dataclass

from kvbench.cases import at_least
from kvbench.errors import InputError


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
