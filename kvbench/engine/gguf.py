"""A Llama-style model from a GGUF file: its sizes, its weights and its metadata.

GGUF is llama.cpp's format. The library `gguf` takes files apart and dequantises; what is read here
is what its parts mean to `model.Decoder`. A file is refused where this decoder would not compute
what the model's makers meant.
"""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

from kvbench.engine.config import ModelConfig
from kvbench.engine.model import Decoder
from kvbench.errors import InputError

T = TypeVar("T", int, float, str, bool, list[str], list[int])

_EMBEDDING, _OUTPUT = "token_embd.weight", "output.weight"
_NAMES = {
    _EMBEDDING: "embed_tokens.weight",
    "output_norm.weight": "norm.weight",
    _OUTPUT: "lm_head.weight",
}
"""GGUF's names, and those of `Decoder`."""
_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_KINDS = {int: "an integer", float: "a number", str: "text", bool: "true or false"}
_TORN = (ValueError, LookupError, ArithmeticError, TypeError, MemoryError, RecursionError)
"""What the library's reader trips over in a file that is torn or is something else."""


class Metadata:
    """The keys of a file and their values, each checked when it is asked for."""

    def __init__(self, path: Path, fields: Mapping[str, Any]) -> None:
        self.path = path
        self._fields = fields

    def __contains__(self, key: str) -> bool:
        return key in self._fields

    def get(self, key: str, kind: type[T], default: T | None = None) -> T:
        """The value of a key.

        Args:
            key: As "llama.block_count".
            kind: Of the value; int does for float.
            default: Where there is no such key; None if there has to be one.

        Raises:
            InputError: There is no such key, or its value is of another kind.
        """
        if key not in self._fields:
            if default is None:
                raise self.refusal(f"{key} is missing")
            return default
        value = self._value(key)
        if kind is float and type(value) is int:
            value = float(value)
        if type(value) is not kind:
            raise self.refusal(f"{key} is {value!r:.40}; expected {_KINDS[kind]}")
        return value

    def items(self, key: str, kind: type[int] | type[str]) -> list[Any]:
        """The value of a key that has a list of them.

        Raises:
            InputError: As `get`.
        """
        values = self._value(key) if key in self._fields else None
        if not isinstance(values, list) or not all(type(value) is kind for value in values):
            found = "missing" if values is None else f"{values!r:.40}"
            raise self.refusal(f"{key} is {found}; expected a list, each {_KINDS[kind]}")
        return values

    def _value(self, key: str) -> Any:  # noqa: ANN401 - whatever the file has
        try:
            return self._fields[key].contents()
        except _TORN as error:
            raise self.refusal(f"{key} can't be read ({error})") from error

    def refusal(self, what: str) -> InputError:
        """The error for a file that can't be used."""
        return InputError(f"model file {str(self.path)!r}: {what}")


@dataclass(frozen=True, slots=True)
class ModelFile:
    """A model in a GGUF file, whose tensors are all there in their shapes."""

    metadata: Metadata
    config: ModelConfig
    context_length: int
    """Tokens of a sequence that the model was made for."""
    _tensors: Mapping[str, Any]

    @property
    def name(self) -> str:
        """The file's, without its ending."""
        return self.metadata.path.stem

    def weights(self, dtype: torch.dtype) -> dict[str, torch.Tensor]:
        """The weights, dequantised, by their names in `Decoder`.

        Raises:
            InputError: A tensor is of a type that the library doesn't dequantise.
        """
        from gguf.quants import dequantize  # noqa: PLC0415 - an optional package

        found = {}
        for theirs, ours in _names(self.config):
            tensor = self._tensors[theirs]
            try:
                values = dequantize(tensor.data, tensor.tensor_type)
            except (NotImplementedError, *_TORN) as error:
                raise self.metadata.refusal(
                    f"{theirs} is of type {tensor.tensor_type.name}, which the library gguf does "
                    "not dequantise; expected F32, F16, BF16, Q8_0, Q4_0, Q4_K or another that "
                    "it does"
                ) from error
            weight = torch.tensor(np.asarray(values)).to(dtype)
            if ".attn_q." in theirs:
                weight = half_a_head_apart(weight, self.config.num_heads)
            elif ".attn_k." in theirs:
                weight = half_a_head_apart(weight, self.config.num_kv_heads)
            found[ours] = weight
        return found


def half_a_head_apart(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """Rows of Q or K in the order in which `model.rotate` pairs them.

    In GGUF the two rows that turn together are next to each other.

    Args:
        weight: [heads * head_dim, hidden_size].
        heads: Of Q or of K.
    """
    paired = weight.view(heads, -1, 2, weight.shape[-1])
    return paired.transpose(1, 2).reshape(weight.shape)


def read(path: Path) -> ModelFile:
    """Open a file; its weights are read when they are asked for.

    Raises:
        InputError: There is no such file, it is torn, or its model is not one that this decoder
            computes; the message names what was found and what was expected.
    """
    try:
        from gguf import GGUFReader  # noqa: PLC0415 - an optional package
    except ModuleNotFoundError as error:
        raise InputError(
            f"model file {str(path)!r}: reading it takes the package {error.name}, which is not "
            "here; expected it to be installed, as by pip install '.[engine]' in a clone"
        ) from error
    try:
        with np.errstate(all="raise"):
            reader = GGUFReader(os.fspath(path))
    except OSError as error:
        raise InputError(
            f"model file {str(path)!r}: {error.strerror or error}; expected a GGUF file"
        ) from error
    except _TORN as error:
        raise InputError(
            f"model file {str(path)!r} is no GGUF file, or is torn ({error}); expected a whole one"
        ) from error
    metadata = Metadata(path, reader.fields)
    if reader.byte_order != "I":
        raise metadata.refusal("its bytes are in the other order; expected this machine's")
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    config = _config(metadata, tensors)
    _check_tensors(metadata, config, tensors)
    return ModelFile(metadata, config, metadata.get("llama.context_length", int), tensors)


def _config(metadata: Metadata, tensors: Mapping[str, Any]) -> ModelConfig:
    architecture = metadata.get("general.architecture", str)
    if architecture != "llama":
        raise metadata.refusal(f"general.architecture is {architecture!r}; expected 'llama'")
    scaling = metadata.get("llama.rope.scaling.type", str, "none")
    if scaling != "none":
        raise metadata.refusal(f"llama.rope.scaling.type is {scaling!r}; expected none")
    experts = metadata.get("llama.expert_count", int, 0)
    if experts:
        raise metadata.refusal(f"llama.expert_count is {experts}; expected a model without experts")
    hidden, heads = (
        metadata.get(f"llama.{key}", int) for key in ("embedding_length", "attention.head_count")
    )
    if heads < 1:
        raise metadata.refusal(f"llama.attention.head_count is {heads}; expected 1 or more")
    head_dim = metadata.get("llama.attention.key_length", int, hidden // heads)
    for key in ("attention.value_length", "rope.dimension_count"):
        size = metadata.get(f"llama.{key}", int, head_dim)
        if size != head_dim:
            raise metadata.refusal(f"llama.{key} is {size}; expected {head_dim}, a head's size")
    if _EMBEDDING not in tensors:
        raise metadata.refusal(f"tensor {_EMBEDDING} is missing")
    try:
        return ModelConfig(
            vocab_size=int(tensors[_EMBEDDING].shape[-1]),
            num_layers=metadata.get("llama.block_count", int),
            hidden_size=hidden,
            num_heads=heads,
            num_kv_heads=metadata.get("llama.attention.head_count_kv", int, heads),
            head_dim=head_dim,
            intermediate_size=metadata.get("llama.feed_forward_length", int),
            rope_theta=metadata.get("llama.rope.freq_base", float, 10_000.0),
            rms_norm_eps=metadata.get("llama.attention.layer_norm_rms_epsilon", float),
            tied_embeddings=_OUTPUT not in tensors,
        )
    except InputError as error:
        if str(metadata.path) in str(error):
            raise
        raise metadata.refusal(str(error)) from error


def _names(config: ModelConfig) -> Iterator[tuple[str, str]]:
    """The tensors of a file and the weights of `Decoder`, by name."""
    for theirs, ours in _NAMES.items():
        if theirs != _OUTPUT or not config.tied_embeddings:
            yield theirs, ours
    for layer in range(config.num_layers):
        for theirs, ours in _LAYER_NAMES.items():
            yield f"blk.{layer}.{theirs}.weight", f"layers.{layer}.{ours}.weight"


def _check_tensors(metadata: Metadata, config: ModelConfig, tensors: Mapping[str, Any]) -> None:
    wanted = {}
    for theirs, ours in _names(config):
        if theirs not in tensors:  # at the first: a wrong block_count may promise any number
            raise metadata.refusal(f"tensor {theirs} is missing")
        wanted[theirs] = ours
    strange = sorted(set(tensors) - set(wanted))
    if strange:
        # Biases, scaled frequencies: left out, the model would say something else.
        raise metadata.refusal(
            f"tensor {strange[0]} is none that this decoder has; expected those of a Llama"
            " without biases and without scaled rotary embedding"
        )
    with torch.device("meta"):
        shapes = {name: list(p.shape) for name, p in Decoder(config).named_parameters()}
    for theirs, ours in wanted.items():
        found = tensors[theirs].shape.tolist()[::-1]
        if found != shapes[ours]:
            raise metadata.refusal(
                f"tensor {theirs} has shape {found}; expected {shapes[ours]} by the sizes that "
                "its keys name"
            )
