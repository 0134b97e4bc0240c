"""A Llama-style decoder, small and plain. What it does with K and V is a `Cache`'s matter.

It is given the tokens of a step as one row, [tokens], whichever sequences they are of: only
attention knows which tokens belong together.
"""

from collections.abc import Mapping
from typing import Protocol

import torch
from torch import nn
from torch.nn import functional

from kvbench.engine.config import ModelConfig
from kvbench.errors import InputError


class Cache(Protocol):
    """The K and V of a step's sequences, in every layer."""

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> torch.Tensor:
        """Store the new tokens' K and V, then attend over all that their sequences have.

        Args:
            layer: From 0.
            query: [tokens, num_heads, head_dim].
            key: [tokens, num_kv_heads, head_dim].
            value: As key.

        Returns:
            [tokens, num_heads, head_dim].
        """
        ...


class Rotary:
    """Rotary embedding: pairs of elements, half a head apart, turn with a token's position."""

    def __init__(self, config: ModelConfig) -> None:
        # A number even where weights have no memory yet.
        pairs = torch.arange(0, config.head_dim, 2, device="cpu").float() / config.head_dim
        self._frequencies = config.rope_theta**-pairs

    def place(self, device: torch.device) -> None:
        """Upload once what every step needs."""
        self._frequencies = self._frequencies.to(device)

    def at(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosine and sine, float32 [tokens, 1, head_dim / 2]."""
        angles = positions.float().unsqueeze(1) * self._frequencies.to(positions.device)
        return angles.cos().unsqueeze(1), angles.sin().unsqueeze(1)


def rotate(heads: torch.Tensor, turn: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """Turn the heads of tokens, [tokens, heads, head_dim], in float32."""
    cosine, sine = turn
    first, second = heads.float().chunk(2, -1)
    turned = torch.cat((first * cosine - second * sine, second * cosine + first * sine), -1)
    return turned.to(heads.dtype)


class RMSNorm(nn.Module):
    """Root mean square normalisation, in float32."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(config.hidden_size))
        self._eps = config.rms_norm_eps

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """[tokens, hidden_size]."""
        wide = hidden.float()
        normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self._eps)
        return self.weight * normed.to(hidden.dtype)


class PagedMultiHeadAttention(nn.Module):
    """Attention whose K and V are in a cache: project, turn, store and attend, project."""

    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__()
        self._config, self._layer = config, layer
        queries, keys = (n * config.head_dim for n in (config.num_heads, config.num_kv_heads))
        self.q_proj = nn.Linear(config.hidden_size, queries, bias=False)
        self.k_proj = nn.Linear(config.hidden_size, keys, bias=False)
        self.v_proj = nn.Linear(config.hidden_size, keys, bias=False)
        self.o_proj = nn.Linear(queries, config.hidden_size, bias=False)

    def forward(
        self, hidden: torch.Tensor, turn: tuple[torch.Tensor, torch.Tensor], cache: Cache
    ) -> torch.Tensor:
        """[tokens, hidden_size]."""
        config = self._config
        # With all their sizes named: there may be no tokens.
        queries = (len(hidden), config.num_heads, config.head_dim)
        keys = (len(hidden), config.num_kv_heads, config.head_dim)
        query = rotate(self.q_proj(hidden).view(queries), turn)
        key = rotate(self.k_proj(hidden).view(keys), turn)
        value = self.v_proj(hidden).view(keys)
        attended = cache.attend(self._layer, query, key, value)
        output: torch.Tensor = self.o_proj(attended.flatten(1))
        return output


class SwiGLU(nn.Module):
    """The feed-forward network."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """[tokens, hidden_size]."""
        gated = functional.silu(self.gate_proj(hidden)) * self.up_proj(hidden)
        output: torch.Tensor = self.down_proj(gated)
        return output


class Layer(nn.Module):
    """Attention and feed-forward, each normalised before and added to what came in."""

    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config)
        self.self_attn = PagedMultiHeadAttention(config, layer)
        self.post_attention_layernorm = RMSNorm(config)
        self.mlp = SwiGLU(config)

    def forward(
        self, hidden: torch.Tensor, turn: tuple[torch.Tensor, torch.Tensor], cache: Cache
    ) -> torch.Tensor:
        """[tokens, hidden_size]."""
        hidden = hidden + self.self_attn(self.input_layernorm(hidden), turn, cache)
        output: torch.Tensor = hidden + self.mlp(self.post_attention_layernorm(hidden))
        return output


class Decoder(nn.Module):
    """The whole model. The names of its weights are those of Hugging Face's Llama."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Layer(config, layer) for layer in range(config.num_layers))
        self.norm = RMSNorm(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        if config.tied_embeddings:
            self.lm_head.weight = self.embed_tokens.weight
        self.rotary = Rotary(config)

    @torch.no_grad()
    def forward(
        self,
        tokens: torch.Tensor,
        positions: torch.Tensor,
        cache: Cache,
        rows: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """The logits of a step's tokens.

        Args:
            tokens: Integers, [tokens].
            positions: Of each token in its sequence, [tokens].
            cache: What the sequences have so far, and will have with these.
            rows: Which tokens' logits are wanted; all if None.

        Returns:
            [rows, vocab_size].
        """
        hidden, turn = self.embed_tokens(tokens), self.rotary.at(positions)
        for layer in self.layers:
            hidden = layer(hidden, turn, cache)
        if rows is not None:
            hidden = hidden[rows]
        logits: torch.Tensor = self.lm_head(self.norm(hidden))
        return logits


def random_decoder(
    config: ModelConfig, seed: int, dtype: torch.dtype, device: torch.device
) -> Decoder:
    """A decoder of random weights, the same for a seed on every machine."""
    generator = torch.Generator().manual_seed(seed % 2**63)  # any seed fits
    with torch.device("meta"):
        model = Decoder(config)
    weights = {}
    for name, parameter in model.named_parameters():
        if name.endswith("norm.weight"):
            weights[name] = torch.ones(parameter.shape)
        elif device.type == "meta":  # shapes alone: there is nothing to draw
            weights[name] = parameter.detach()
        else:  # of a size that keeps what goes through a layer as large as it was
            scale = parameter.shape[-1] ** -0.5
            weights[name] = torch.randn(parameter.shape, generator=generator) * scale
    return decoder(config, weights, dtype, device)


def decoder(
    config: ModelConfig,
    weights: Mapping[str, torch.Tensor],
    dtype: torch.dtype,
    device: torch.device,
) -> Decoder:
    """A decoder of given weights, by their names in `Decoder`.

    Raises:
        InputError: One is missing, too many, or of another shape.
    """
    with torch.device("meta"):
        model = Decoder(config)
    expected = dict(model.named_parameters())
    for name, parameter in expected.items():
        if name not in weights:
            raise InputError(f"weights of the model: {name} is missing")
        if weights[name].shape != parameter.shape:
            raise InputError(
                f"weights of the model: {name} has shape {list(weights[name].shape)}; "
                f"expected {list(parameter.shape)}"
            )
    unknown = sorted(set(weights) - set(expected))
    if unknown:
        raise InputError(f"weights of the model: {unknown[0]} is none of a decoder's")
    placed = {name: weights[name].to(device, dtype) for name in expected}
    if config.tied_embeddings:
        placed["lm_head.weight"] = placed["embed_tokens.weight"]
    model.load_state_dict(placed, assign=True)
    model.rotary.place(device)
    if config.tied_embeddings:
        model.lm_head.weight = model.embed_tokens.weight  # one again, and not two alike
    return model.eval()
