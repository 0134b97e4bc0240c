"""Small GGUF files, written by the library's own writer."""

from pathlib import Path

import gguf
import numpy as np
from gguf import GGMLQuantizationType

LAYERS, HIDDEN, HEADS, KV_HEADS, HEAD_DIM, INNER = 2, 32, 4, 2, 8, 64
_OWN = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
_OTHER = iter(range(0x100, 0x200))
LETTERS = tuple(chr(byte if byte in _OWN else next(_OTHER)) for byte in range(0x100))
"""GPT-2's letter for each byte."""
CONTROL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MERGES = ("h e", "l l", "he ll", "hell o", "Ġ w", "1 2", "12 3", "Ã ¼")
TOKENS = (*CONTROL, *LETTERS, *(merge.replace(" ", "") for merge in MERGES), "<think>")
TYPES = (*[3] * len(CONTROL), *[1] * (len(TOKENS) - len(CONTROL) - 1), 4)
TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + ' ' + message['content'] "
    "+ '<|im_end|>' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>' }}{% endif %}"
)
KEYS = {
    "llama.block_count": LAYERS,
    "llama.context_length": 100,
    "llama.embedding_length": HIDDEN,
    "llama.feed_forward_length": INNER,
    "llama.attention.head_count": HEADS,
    "llama.attention.head_count_kv": KV_HEADS,
    "llama.rope.freq_base": 5000.0,
    "llama.rope.dimension_count": HEAD_DIM,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "smollm",
    "tokenizer.ggml.tokens": list(TOKENS),
    "tokenizer.ggml.token_type": list(TYPES),
    "tokenizer.ggml.merges": list(MERGES),
    "tokenizer.ggml.bos_token_id": 1,
    "tokenizer.ggml.eos_token_id": 2,
    "tokenizer.ggml.add_bos_token": False,
    "tokenizer.chat_template": TEMPLATE,
}
F32, F16, Q8_0 = (GGMLQuantizationType[name] for name in ("F32", "F16", "Q8_0"))


def tensors(seed: int = 0, *, tied: bool = True) -> dict[str, np.ndarray]:
    """Random weights by their names in GGUF; rows of Q and K in GGUF's order."""
    shapes = {"token_embd": (len(TOKENS), HIDDEN), "output_norm": (HIDDEN,)}
    if not tied:
        shapes["output"] = (len(TOKENS), HIDDEN)
    for layer in range(LAYERS):
        for name, shape in {
            "attn_norm": (HIDDEN,),
            "attn_q": (HEADS * HEAD_DIM, HIDDEN),
            "attn_k": (KV_HEADS * HEAD_DIM, HIDDEN),
            "attn_v": (KV_HEADS * HEAD_DIM, HIDDEN),
            "attn_output": (HIDDEN, HEADS * HEAD_DIM),
            "ffn_norm": (HIDDEN,),
            "ffn_gate": (INNER, HIDDEN),
            "ffn_up": (INNER, HIDDEN),
            "ffn_down": (HIDDEN, INNER),
        }.items():
            shapes[f"blk.{layer}.{name}"] = shape
    rng = np.random.default_rng(seed)
    return {
        f"{name}.weight": rng.standard_normal(shape).astype(np.float32) / HIDDEN**0.5
        for name, shape in shapes.items()
    }


def write_gguf(path, weights=None, kind=F32, architecture="llama", without=(), **keys) -> Path:
    """A file of those weights and keys; a key's dots are written as two underscores."""
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in {**KEYS, **{k.replace("__", "."): v for k, v in keys.items()}}.items():
        if key not in without:
            add = {
                bool: writer.add_bool,
                int: writer.add_uint32,
                float: writer.add_float32,
                str: writer.add_string,
                list: writer.add_array,
            }[type(value)]
            add(key, value)
    for name, weight in (tensors() if weights is None else weights).items():
        own = kind if weight.ndim > 1 and weight.dtype == np.float32 else None
        packed = weight if own in {None, F32} else gguf.quants.quantize(weight, own)
        writer.add_tensor(name, packed, raw_dtype=own)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
