"""The same model without a paged cache: what every strategy's tokens are held against."""

from collections.abc import Sequence

import torch
from torch.nn.functional import scaled_dot_product_attention

from kvbench.engine.model import Decoder


class Contiguous:
    """A cache of one sequence: K and V of each layer, one tensor that grows."""

    def __init__(self) -> None:
        self._layers: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> torch.Tensor:
        """As `model.Cache`."""
        if layer in self._layers:
            before = self._layers[layer]
            key, value = (torch.cat(pair) for pair in zip(before, (key, value), strict=True))
        self._layers[layer] = key, value
        new, cached = len(query), len(key)
        # Token t of the new ones sees all before them, and the new ones up to itself.
        seen = torch.ones(new, cached, dtype=torch.bool, device=query.device)
        output = scaled_dot_product_attention(
            query.transpose(0, 1),
            key.transpose(0, 1),
            value.transpose(0, 1),
            attn_mask=seen.tril(cached - new),
            enable_gqa=query.shape[1] != key.shape[1],
        )
        return output.transpose(0, 1)


def generate(model: Decoder, prompt: Sequence[int], count: int) -> list[int]:
    """The next tokens, each the most likely one."""
    cache, device = Contiguous(), next(model.parameters()).device
    found: list[int] = []
    new, start = list(prompt), 0
    while len(found) < count:
        positions = torch.arange(start, start + len(new), device=device)
        last = torch.tensor([len(new) - 1], device=device)
        logits = model(torch.tensor(new, device=device), positions, cache, last)
        start += len(new)
        new = [int(logits[0].argmax())]
        found += new
    return found
