"""The model of a step's case: as wide as its heads, random weights from its seed."""

import functools

import torch
from torch._subclasses.fake_tensor import FakeTensor

from kvbench.cases import VOCABULARY, Case
from kvbench.engine.config import ModelConfig
from kvbench.engine.model import Decoder, random_decoder


def config_of(case: Case) -> ModelConfig:
    """The sizes of a case's model.

    Raises:
        InputError: It can't be a model: a head of an odd size can't be turned by pairs.
    """
    return ModelConfig(
        vocab_size=VOCABULARY,
        num_layers=case.num_layers,
        hidden_size=case.hidden_size,
        num_heads=case.num_heads,
        num_kv_heads=case.num_kv_heads,
        head_dim=case.head_dim,
        intermediate_size=case.intermediate_size,
    )


def model_of(case: Case, dtype: torch.dtype, device: torch.device) -> Decoder | None:
    """The model of a case, kept until another is asked for; None for heads of an odd size."""
    if case.head_dim % 2:
        return None
    needed = config_of(case), case.seed, dtype, device
    if isinstance(torch.empty(0, device=device), FakeTensor):
        return random_decoder(*needed)  # without memory: nothing that a real one could be
    return _model(*needed)


@functools.lru_cache(maxsize=1)
def _model(config: ModelConfig, seed: int, dtype: torch.dtype, device: torch.device) -> Decoder:
    return random_decoder(config, seed, dtype, device)
