"""A model read from a GGUF file is the one that was written there, and its tokens are its own.

SmolLM2's tokens are those of transformers, by this, where transformers 5.24 is installed:

    file = Path("models/SmolLM2-135M-Instruct.Q4_1.gguf")
    where = {"pretrained_model_name_or_path": file.parent, "gguf_file": file.name}
    tokenizer = AutoTokenizer.from_pretrained(**where)
    model = AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32)
    for prompt in PROMPTS:
        chat = tokenizer.apply_chat_template(
            [{"role": "user", "content": prompt}], add_generation_prompt=True, tokenize=False
        )
        ids = tokenizer(chat, add_special_tokens=False, return_tensors="pt").input_ids
        said = model.generate(ids, max_new_tokens=24, do_sample=False)
        print(ids[0].tolist(), said[0, ids.shape[1]:].tolist())
"""

import functools
import os
import subprocess
import sys
from pathlib import Path

import gguf as library
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from made_gguf import (
    CONTROL,
    F16,
    F32,
    HEAD_DIM,
    HEADS,
    KV_HEADS,
    LAYERS,
    Q8_0,
    TOKENS,
    tensors,
    write_gguf,
)
from test_imports import blocked

from kvbench.engine import gguf, plain
from kvbench.engine.generation import Engine
from kvbench.engine.model import decoder
from kvbench.engine.paged import PagedCache
from kvbench.engine.tokenizer import Numbers, Tokenizer
from kvbench.errors import InputError
from kvbench.strategies import registry

ROOT = Path(__file__).parents[1]
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    return write_gguf(tmp_path_factory.mktemp("model") / "small.gguf")


@functools.cache
def tokenizer_of(path):
    return Tokenizer(gguf.read(path).metadata)


def rows_apart(weight, heads):
    """Row by row: that of pair p and half h of a head is at h * head_dim / 2 + p."""
    half = HEAD_DIM // 2
    found = np.empty_like(weight)
    for head in range(heads):
        for pair in range(half):
            for side in range(2):
                found[head * HEAD_DIM + side * half + pair] = weight[
                    head * HEAD_DIM + 2 * pair + side
                ]
    return found


@pytest.mark.parametrize("kind", [F32, F16, Q8_0], ids=lambda kind: kind.name)
@pytest.mark.parametrize("tied", [True, False])
def test_weights_come_back_exactly_as_the_decoder_pairs_them(tmp_path, kind, tied):
    written = tensors(tied=tied)
    file = gguf.read(write_gguf(tmp_path / "m.gguf", written, kind))
    found = file.weights(torch.float32)
    assert file.config.tied_embeddings == tied
    assert len(found) == len(written)

    def kept(name):
        weight = written[f"{name}.weight"]
        if weight.ndim > 1 and kind != F32:
            weight = library.quants.dequantize(library.quants.quantize(weight, kind), kind)
        return weight

    for layer in range(LAYERS):
        for theirs, ours, heads in (
            ("attn_q", "self_attn.q_proj", HEADS),
            ("attn_k", "self_attn.k_proj", KV_HEADS),
        ):
            weight = rows_apart(kept(f"blk.{layer}.{theirs}"), heads)
            assert np.array_equal(found.pop(f"layers.{layer}.{ours}.weight"), weight)
        for theirs, ours in (
            ("attn_norm", "input_layernorm"),
            ("attn_v", "self_attn.v_proj"),
            ("attn_output", "self_attn.o_proj"),
            ("ffn_norm", "post_attention_layernorm"),
            ("ffn_gate", "mlp.gate_proj"),
            ("ffn_up", "mlp.up_proj"),
            ("ffn_down", "mlp.down_proj"),
        ):
            weight = kept(f"blk.{layer}.{theirs}")
            assert np.array_equal(found.pop(f"layers.{layer}.{ours}.weight"), weight)
    whole = {"token_embd": "embed_tokens", "output_norm": "norm", "output": "lm_head"}
    for theirs, ours in whole.items():
        if theirs != "output" or not tied:
            assert np.array_equal(found.pop(f"{ours}.weight"), kept(theirs))
    assert found == {}


def test_sizes_are_those_of_the_keys(small):
    file = gguf.read(small)
    config = file.config
    assert (file.name, file.context_length, config.vocab_size) == ("small", 100, len(TOKENS))
    assert (config.num_layers, config.num_heads, config.num_kv_heads) == (2, 4, 2)
    assert (config.hidden_size, config.head_dim, config.intermediate_size) == (32, 8, 64)
    assert (config.rope_theta, config.rms_norm_eps) == (5000, pytest.approx(1e-5))
    assert file.weights(torch.bfloat16)["norm.weight"].dtype == torch.bfloat16


def test_turning_neighbours_is_turning_what_is_half_a_head_apart():
    """What GGUF's rows are written for, in complex numbers, against `model.rotate`."""
    from kvbench.engine.config import ModelConfig  # noqa: PLC0415
    from kvbench.engine.model import Rotary, rotate  # noqa: PLC0415

    generator = torch.Generator().manual_seed(1)
    weight = torch.randn(HEADS * HEAD_DIM, 32, generator=generator)
    hidden = torch.randn(5, 32, generator=generator)
    positions = torch.tensor([0, 1, 2, 50, 99])
    sizes = {"vocab_size": 1, "num_layers": 1, "hidden_size": 32, "intermediate_size": 1}
    config = ModelConfig(
        **sizes, num_heads=HEADS, num_kv_heads=KV_HEADS, head_dim=HEAD_DIM, rope_theta=5000.0
    )
    pairs = (hidden @ weight.T).view(5, HEADS, HEAD_DIM // 2, 2)
    frequencies = 5000.0 ** -(torch.arange(0, HEAD_DIM, 2) / HEAD_DIM)
    angles = positions[:, None, None] * frequencies
    turned = torch.view_as_complex(pairs) * torch.polar(torch.ones_like(angles), angles)
    ours = hidden @ gguf.half_a_head_apart(weight, HEADS).T
    found = rotate(ours.view(5, HEADS, HEAD_DIM), Rotary(config).at(positions))
    assert torch.allclose(found, torch.cat((turned.real, turned.imag), -1), atol=1e-5)


def without(name):
    return {n: w for n, w in tensors().items() if n != name}


def with_one(name, weight):
    return {**tensors(), name: weight}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"architecture": "qwen2"}, "general.architecture is 'qwen2'; expected 'llama'"),
        ({"without": ["llama.block_count"]}, "llama.block_count is missing"),
        ({"without": ["llama.context_length"]}, "llama.context_length is missing"),
        ({"llama__block_count": "two"}, "llama.block_count is 'two'; expected an integer"),
        ({"llama__block_count": 3}, "tensor blk.2.attn_norm.weight is missing"),
        ({"llama__block_count": 2**32 - 1}, "tensor blk.2.attn_norm.weight is missing"),
        ({"llama__block_count": 1}, "tensor blk.1.attn_k.weight is none that this decoder has"),
        ({"llama__block_count": 0}, "num_layers=0: expected an integer, 1 or more"),
        ({"llama__attention__head_count": 0}, "attention.head_count is 0; expected 1 or more"),
        ({"llama__attention__head_count_kv": 3}, "num_heads=4 with num_kv_heads=3"),
        ({"llama__attention__head_count_kv": [2, 2]}, "head_count_kv is .*; expected an integer"),
        ({"llama__rope__dimension_count": 4}, "llama.rope.dimension_count is 4; expected 8"),
        ({"llama__attention__value_length": 4}, "attention.value_length is 4; expected 8"),
        ({"llama__rope__scaling__type": "yarn"}, "rope.scaling.type is 'yarn'; expected none"),
        ({"llama__expert_count": 8}, "llama.expert_count is 8; expected a model without experts"),
        ({"weights": without("token_embd.weight")}, "tensor token_embd.weight is missing"),
        ({"weights": without("blk.1.ffn_up.weight")}, "tensor blk.1.ffn_up.weight is missing"),
        (
            {"weights": with_one("rope_freqs.weight", np.ones(4, np.float32))},
            "tensor rope_freqs.weight is none that this decoder has",
        ),
        (
            {"weights": with_one("blk.0.attn_q.weight", np.ones((32, 16), np.float32))},
            r"tensor blk.0.attn_q.weight has shape \[32, 16\]; expected \[32, 32\]",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_another_model_is_refused_in_one_line(tmp_path, changes, said):
    path = write_gguf(tmp_path / "m.gguf", **changes)
    with pytest.raises(InputError, match=said) as refusal:
        gguf.read(path)
    assert str(path) in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_a_type_that_is_not_dequantised_is_refused_by_name(tmp_path):
    weights = with_one("output_norm.weight", np.ones(32, np.int32))
    file = gguf.read(write_gguf(tmp_path / "m.gguf", weights))
    with pytest.raises(InputError, match=r"output_norm.weight is of type I32, .* expected F32"):
        file.weights(torch.float32)


def test_what_is_no_file_is_refused_in_one_line(tmp_path):
    for path, said in (
        (tmp_path / "none.gguf", "No such file"),
        (tmp_path, "Is a directory"),
    ):
        with pytest.raises(InputError, match=f"{said}.*; expected a GGUF file"):
            gguf.read(path)
    for content in (b"", b"GGUF", b"some text that is no model at all"):
        path = tmp_path / "text.gguf"
        path.write_bytes(content)
        with pytest.raises(InputError, match=r"is no GGUF file, or is torn .*; expected a whole"):
            gguf.read(path)


def test_a_file_torn_anywhere_is_refused(small, tmp_path):
    content = small.read_bytes()
    path = tmp_path / "torn.gguf"
    # Every byte of the head is too many; the data's last is the one that matters.
    for length in (*range(0, 12_000, 397), len(content) // 2, len(content) - 1):
        path.write_bytes(content[:length])
        with pytest.raises(InputError, match=r"is no GGUF file, or is torn|model file"):
            gguf.read(path)


@given(data=st.data())
def test_a_file_with_wrong_bytes_is_read_or_refused(small, data):
    content = bytearray(small.read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, 1500) | st.integers(0, len(content) - 1))
        content[at] = data.draw(st.integers(0, 255))
    path = small.with_name("wrong.gguf")
    path.write_bytes(content)
    try:
        file = gguf.read(path)
        Tokenizer(file.metadata)
        file.weights(torch.float32)
    except InputError as refusal:
        assert "\n" not in str(refusal)  # noqa: PT017 - most are refused, not all


@pytest.mark.parametrize("package", ["gguf", "tokenizers"])
def test_a_package_that_is_not_installed_is_named(small, package):
    code = """
import sys
from pathlib import Path
from kvbench.engine import gguf
from kvbench.engine.tokenizer import Tokenizer
try:
    Tokenizer(gguf.read(Path(sys.argv[1])).metadata)
except Exception as error:
    print(type(error).__name__, error)
"""
    done = subprocess.run(
        [sys.executable, "-c", blocked(package) + code, small],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    )
    assert done.stdout.startswith(f"InputError model file {str(small)!r}")
    assert f"the package {package}, which is not here" in done.stdout


def test_tokens_are_merged_by_their_ranks_within_the_words_of_the_cut(small):
    tokenizer = tokenizer_of(small)

    def words(text):
        return [TOKENS[token] for token in tokenizer.encode(text, chat=False)]

    assert words("hello w") == ["hello", "Ġw"]
    assert words("ü") == ["Ã¼"]
    assert words("123") == ["1", "2", "3"]  # each digit is a word
    assert words("he<|im_end|>ll<think>o") == ["he", "<|im_end|>", "ll", "<think>", "o"]


@pytest.mark.parametrize(
    ("cut", "words"),
    [
        ("gpt-2", ["123"]),
        ("smollm", ["1", "2", "3"]),
        ("starcoder", ["1", "2", "3"]),
        ("llama-bpe", ["123"]),
        ("default", ["123"]),
    ],
)
def test_the_cut_is_the_one_that_the_file_names(tmp_path, cut, words):
    tokenizer = tokenizer_of(write_gguf(tmp_path / "m.gguf", tokenizer__ggml__pre=cut))
    tokens = tokenizer.encode("123", chat=False)
    assert [TOKENS[token] for token in tokens] == words


@given(text=st.text())
def test_a_text_comes_back_and_no_piece_of_it_is_a_broken_character(small, text):
    tokenizer = tokenizer_of(small)
    text = functools.reduce(lambda left, mark: left.replace(mark, ""), CONTROL, text)
    stream = tokenizer.stream()
    pieces = [stream.add(token) for token in tokenizer.encode(text, chat=False)]
    assert "".join(pieces) == text
    assert stream.end() == ""
    assert all("\ufffd" not in piece for piece in pieces) or "\ufffd" in text


def test_half_a_character_at_the_end_is_said_to_be_one(small):
    tokenizer = tokenizer_of(small)
    first, *_ = tokenizer.encode("é", chat=False)
    stream = tokenizer.stream()
    assert stream.add(first) == ""
    assert stream.add(2) == ""  # <|im_end|> is not printed
    assert stream.end() == "\ufffd"


def test_a_chat_template_goes_around_a_prompt(small, tmp_path):
    tokenizer = tokenizer_of(small)
    tokens = tokenizer.encode("hello", chat=True)
    words = [TOKENS[token] for token in tokens]
    assert (words[0], words[-3:]) == ("<|im_start|>", ["hello", "<|im_end|>", "<|im_start|>"])
    assert tokenizer.encode("hello", chat=False) == [TOKENS.index("hello")]
    key = "tokenizer.chat_template"
    bare = tokenizer_of(write_gguf(tmp_path / "m.gguf", without=[key]))
    assert bare.encode("hello", chat=True) == [TOKENS.index("hello")]
    assert tokenizer.stops == {2}


def test_a_first_token_is_put_before_where_the_file_says_so(tmp_path):
    tokenizer = tokenizer_of(write_gguf(tmp_path / "m.gguf", tokenizer__ggml__add_bos_token=True))
    assert tokenizer.encode("hello", chat=False) == [1, TOKENS.index("hello")]
    assert tokenizer.encode("hello", chat=True).count(1) == 2  # the template's own


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"tokenizer__ggml__model": "llama"}, "tokenizer.ggml.model is 'llama'; expected 'gpt2'"),
        ({"tokenizer__ggml__pre": "tekken"}, "tokenizer.ggml.pre is 'tekken'; expected one of: "),
        ({"without": ["tokenizer.ggml.tokens"]}, "tokens is missing; expected a list, each text"),
        ({"without": ["tokenizer.ggml.merges"]}, "merges is missing; expected a list, each text"),
        ({"tokenizer__ggml__tokens": [1, 2]}, r"tokens is \[1, 2\]; expected a list, each text"),
        ({"tokenizer__ggml__token_type": [1]}, "token_type has 1 entries; expected 268"),
        ({"tokenizer__ggml__merges": ["no way"]}, "merges doesn't fit its tokens"),
        ({"tokenizer__ggml__eos_token_id": 999}, "eos_token_id is 999; expected 0 to 267"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_another_tokenizer_is_refused_in_one_line(tmp_path, changes, said):
    file = gguf.read(write_gguf(tmp_path / "m.gguf", **changes))
    with pytest.raises(InputError, match=said):
        Tokenizer(file.metadata)


@pytest.mark.parametrize(
    "template",
    ["{{ messages[3].content }}", "{% if %}", "{{ raise_exception('no') }}", "{{ 1 / 0 }}"],
)
def test_a_template_that_fails_is_one_line(tmp_path, template):
    path = write_gguf(tmp_path / "m.gguf", tokenizer__chat_template=template)
    with pytest.raises(InputError, match="its chat template fails"):
        tokenizer_of(path).encode("hello", chat=True)


def test_a_template_runs_in_a_sandbox(tmp_path):
    template = "{{ messages.__class__.__base__.__subclasses__() }}"
    path = write_gguf(tmp_path / "m.gguf", tokenizer__chat_template=template)
    with pytest.raises(InputError, match="its chat template fails"):
        tokenizer_of(path).encode("hello", chat=True)


def test_text_that_has_no_tokens_is_refused_and_not_left_out(tmp_path):
    tokens = list(TOKENS)
    tokens[tokens.index("x")] = "xx"
    tokenizer = tokenizer_of(write_gguf(tmp_path / "m.gguf", tokenizer__ggml__tokens=tokens))
    with pytest.raises(InputError, match="its tokens can't spell the prompt 'a x'"):
        tokenizer.encode("a x", chat=False)
    with pytest.raises(InputError, match="is no UTF-8"):
        tokenizer.encode("\udcff", chat=False)


def test_a_prompt_that_is_no_utf8_is_named_as_the_user_wrote_it(tmp_path):
    template = "<|im_start|>You are asked: {{ messages[0].content }}"
    path = write_gguf(tmp_path / "m.gguf", tokenizer__chat_template=template)
    with pytest.raises(InputError, match=r"^prompt '\\udcff' is no UTF-8"):
        tokenizer_of(path).encode("\udcff", chat=True)


def test_a_model_without_words_takes_bytes_and_says_numbers():
    assert Numbers().encode("é", chat=True) == [0xC3, 0xA9]
    stream = Numbers().stream()
    assert "".join(map(stream.add, (7, 250))) + stream.end() == "7 250"


MODEL = Path(os.environ.get("KVBENCH_MODEL", ROOT / "models/SmolLM2-135M-Instruct.Q4_1.gguf"))


def numbers(text):
    return tuple(map(int, text.split()))


PROMPTS = {
    "Why does a language model keep a cache of keys and values?": (
        numbers("4898 1072 253 1789 1743 1446 253 13842 282 8889 284 2396 47"),
        numbers(
            "49 1789 1743 8211 253 13842 282 8889 284 2396 975 357 "
            "2925 253 1909 1217 476 60 16899 48505 18 355 476 60"
        ),
    ),
    "Write a haiku about the sea.": (
        numbers("19161 253 421 30614 563 260 3426 30"),
        numbers(
            "504 6147 282 260 3426 28 253 13879 6122 28 198 49 "
            "9154 303 5082 282 260 10393 28 198 49 13151 282 260"
        ),
    ),
    "What is 17 + 25?\nÜbung: 1234 Äpfel 🍎": (
        numbers(
            "1780 314 216 33 39 1232 216 34 37 47 198 142 246 82 2280 42 "
            "216 33 34 35 36 5549 222 96 34520 15107 231 232"
        ),
        numbers(
            "33 39 1232 216 34 37 446 216 35 34 30 198 "
            "198 1348 314 253 8170 1183 282 253 7132 3905 338 553"
        ),
    ),
}
"""A prompt's own tokens, and the 24 that follow it: see this file's docstring."""
BEFORE = numbers(
    "1 9690 198 2683 359 253 5356 5646 11173 3365 3511 308 34519 28 7018 411 407 19712 8182 2 198 "
    "1 4093 198"
)
AFTER = numbers("2 198 1 520 9531 198")
"""The template's."""


@pytest.fixture(scope="module")
def smollm():
    if not MODEL.is_file():
        pytest.skip(f"{MODEL.name} is not here: make model, or KVBENCH_MODEL=FILE.gguf")
    file = gguf.read(MODEL)
    weights = file.weights(torch.float32)
    return Tokenizer(file.metadata), decoder(file.config, weights, torch.float32, CPU)


def test_smollm_says_what_transformers_makes_it_say(smollm):
    tokenizer, model = smollm
    for prompt, (own, following) in PROMPTS.items():
        tokens = tokenizer.encode(prompt, chat=True)
        assert tuple(tokens) == (*BEFORE, *own, *AFTER)
        assert tuple(plain.generate(model, tokens, 24)) == following


@pytest.mark.parametrize(
    ("write", "attend"),
    [
        ("index_put", "read.indexing"),
        ("native", "native"),
        ("block_slices", "sdpa_blocks"),
        ("indexing", "read.slot_mapping"),
    ],
)
def test_smollm_says_the_same_under_every_pair(smollm, write, attend):
    tokenizer, model = smollm
    writes, attends = registry.find("write", write), registry.find("attend", attend)
    try:
        cache = PagedCache(
            model.config,
            18,
            block_size=16,
            write=writes,
            attend=attends,
            dtype="fp32",
            device=CPU,
        )
    except InputError as refusal:
        pytest.skip(str(refusal))
    engine = Engine(model, cache, chunk=29)
    requests = [engine.add(tokenizer.encode(prompt, chat=True), 24) for prompt in PROMPTS]
    engine.run()
    assert [tuple(r.generated) for r in requests] == [said for _, said in PROMPTS.values()]
    assert requests[2].shared == 0  # all began at once
