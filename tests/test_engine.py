"""A model says the same under every pair of strategies, whatever becomes of its blocks."""

import functools
import random

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kvbench.engine import plain
from kvbench.engine.blocks import BlockManager
from kvbench.engine.config import ModelConfig
from kvbench.engine.generation import Engine
from kvbench.engine.model import decoder, random_decoder
from kvbench.engine.paged import PagedCache, Span
from kvbench.errors import InputError, StrategyError
from kvbench.strategies import registry

registry.load_builtin()
CPU = torch.device("cpu")
SIZES = {
    "vocab_size": 97,
    "num_layers": 2,
    "hidden_size": 32,
    "num_heads": 4,
    "num_kv_heads": 2,
    "head_dim": 16,
    "intermediate_size": 48,
}
CONFIG = ModelConfig(**SIZES)
NEW = 9


@functools.cache
def model():
    return random_decoder(CONFIG, 3, torch.float32, CPU)


def words(count, seed):
    rng = random.Random(seed)  # noqa: S311 - reproducible, not secret
    return tuple(rng.randrange(CONFIG.vocab_size) for _ in range(count))


HEAD = words(13, 0)
ALONE = (words(11, 1),)
RAGGED = tuple(
    HEAD[:shared] + words(own, own) for shared, own in ((13, 1), (0, 3), (13, 9), (8, 2))
)
BATCHES = {"alone": ALONE, "ragged": (*RAGGED, HEAD)}


@functools.cache
def expected(prompt, count=NEW):
    return plain.generate(model(), prompt, count)


def engine(write="write.index_put", attend="attend.sdpa_indexing", blocks=60, size=4, **options):
    cache = PagedCache(
        CONFIG,
        blocks,
        block_size=size,
        write=registry.get(write),
        attend=registry.get(attend),
        dtype="fp32",
        device=CPU,
        layout=options.pop("layout", "NHD"),
    )
    return Engine(model(), cache, **options)


def serve(served, prompts, count=NEW):
    requests = [served.add(prompt, count) for prompt in prompts]
    served.run()
    assert served.blocks.free == served.blocks.num_blocks
    return requests


def pairs():
    """Each write with each attention that runs here at all.

    Each kind of rows is compiled anew, and interpreted kernels are slow: of these one pair each.
    """
    for write in registry.select(["write.*"]):
        for attend in registry.select(["attend.*"]):
            slow = [s.name for s in (write, attend) if s.name.endswith(("compile", "triton"))]
            one = write.name == "write.index_put" or attend.name == "attend.sdpa_indexing"
            if not slow or (one and len(slow) == 1):
                yield pytest.param(write, attend, id=f"{write.name}+{attend.name}")


@pytest.mark.parametrize(("write", "attend"), list(pairs()))
def test_every_pair_of_strategies_says_what_the_plain_model_says(write, attend):
    try:
        served = engine(write.name, attend.name, chunk=5, most_tokens=13)
    except InputError as refusal:
        pytest.skip(str(refusal))
    interpreted = attend.untimed(CPU) or write.untimed(CPU)
    for prompts in BATCHES.values():
        count = 3 if interpreted else NEW
        requests = serve(served, prompts, count)
        assert [r.generated for r in requests] == [expected(p, count) for p in prompts]


@pytest.mark.parametrize("layout", ["NHD", "HND", "NHD-KV", "HND-KV", "x-packed"])
@pytest.mark.parametrize("size", [1, 3, 16])
def test_the_layout_and_the_size_of_blocks_change_no_word(layout, size):
    served = engine("write.indexing", "attend.sdpa_loop", 120, size, layout=layout)
    requests = serve(served, RAGGED)
    assert [r.generated for r in requests] == [expected(p) for p in RAGGED]


@pytest.mark.parametrize("chunk", [1, 3, 7, 64])
@pytest.mark.parametrize("most_tokens", [1, 5, 64])
@pytest.mark.parametrize("sharing", [True, False])
def test_chunks_of_any_size_and_shared_prefixes_change_no_word(chunk, most_tokens, sharing):
    served = engine(chunk=chunk, most_tokens=most_tokens, sharing=sharing)
    requests = serve(served, RAGGED)
    assert [r.generated for r in requests] == [expected(p) for p in RAGGED]
    assert any(r.shared for r in serve(served, RAGGED)) == sharing


def test_what_is_shared_is_found_and_not_computed_again():
    served = engine()
    first = served.add(HEAD, 1)
    assert served.step().new_tokens == len(HEAD)
    assert first.generated == expected(HEAD, 1)
    again = served.add((*HEAD, 5), 1)
    assert served.step().new_tokens == len(HEAD) + 1 - 12  # three blocks of four
    assert again.shared == 12
    assert again.generated == expected((*HEAD, 5), 1)


def test_where_blocks_run_out_the_last_that_came_gives_way_and_says_the_same():
    # Room for two of the four, at their longest.
    served = engine(blocks=12, sharing=False)
    requests = serve(served, RAGGED)
    assert [r.generated for r in requests] == [expected(p) for p in RAGGED]
    assert requests[0].preempted == 0
    assert any(r.preempted for r in requests)


def test_stop_tokens_end_a_request():
    words_of = expected(ALONE[0])
    served = engine()
    request = served.add(ALONE[0], NEW, frozenset({words_of[2]}))
    served.run()
    assert request.generated == words_of[: words_of.index(words_of[2]) + 1]


@pytest.mark.parametrize(
    ("prompt", "count", "said"),
    [
        ((), 1, "the prompt is empty"),
        ((97,), 1, "token 97: expected one from 0 to 96"),
        ((1,), 0, "0 tokens to generate: expected 1 or more"),
        ((1,) * 20, 30, "a prompt of 20 tokens and 30 new ones take 13 blocks of 4; expected up"),
    ],
    ids=str,
)
def test_what_cannot_be_served_is_refused_in_one_line_and_changes_nothing(prompt, count, said):
    served = engine(blocks=12)
    with pytest.raises(InputError, match=said):
        served.add(prompt, count)
    assert not served.busy
    request = served.add((1,) * 20, 29)  # the most that there is room for
    served.run()
    assert request.generated == expected((1,) * 20, 29)


def test_a_strategy_that_cannot_serve_a_model_is_refused_with_its_reason():
    with pytest.raises(InputError, match=r"'attend.enable_gqa' can't serve this model: "):
        engine(attend="attend.enable_gqa")
    with pytest.raises(InputError, match=r"'attend.native': expected one of the op write"):
        engine(write="attend.native")


def test_a_strategy_that_raises_is_named_in_one_line(monkeypatch):
    served = engine("write.loop", "attend.sdpa_loop")
    served.add(HEAD, 1)

    def run(*_):
        raise RuntimeError("no more")

    monkeypatch.setattr(type(registry.get("write.loop")), "run", run)
    with pytest.raises(StrategyError, match=r"'write.loop' failed: RuntimeError: no more"):
        served.run()


def test_a_strategy_that_cannot_say_what_it_supports_is_named_in_one_line(monkeypatch):
    def supports(*_):
        raise RuntimeError("no idea")

    monkeypatch.setattr(type(registry.get("write.loop")), "supports", supports)
    with pytest.raises(StrategyError, match=r"'write.loop' failed: RuntimeError: no idea"):
        engine("write.loop", "attend.sdpa_loop")


@pytest.mark.parametrize(
    ("output", "said"),
    [
        (lambda _: None, "returned NoneType; expected torch.float32 of shape"),
        (lambda query: query[:, :1], r"returned torch.float32 of shape \[\d+, 1, "),
        (lambda query: query.half(), "returned torch.float16 of shape"),
    ],
)
def test_what_is_no_output_of_an_attention_is_refused(monkeypatch, output, said):
    served = engine("write.loop", "attend.sdpa_loop")
    served.add(HEAD, 1)
    attention = type(registry.get("attend.sdpa_loop"))
    monkeypatch.setattr(attention, "run", lambda _, workload, __: output(workload.query))
    with pytest.raises(StrategyError, match=f"'attend.sdpa_loop' {said}"):
        served.run()


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"num_layers": 0}, "num_layers=0: expected an integer, 1 or more"),
        ({"num_heads": 3}, "num_heads=3 with num_kv_heads=2: expected num_heads to be a multiple"),
        ({"head_dim": 15}, "head_dim=15: expected an even number"),
    ],
    ids=str,
)
def test_sizes_that_do_not_go_together_are_one_line(fields, said):
    with pytest.raises(InputError, match=said):
        ModelConfig(**{**SIZES, **fields})


def test_weights_that_are_missing_strange_or_of_another_shape_are_one_line():
    weights = {n: p.detach() for n, p in model().named_parameters()}
    decoder(CONFIG, weights, torch.float32, CPU)
    norm = "layers.1.input_layernorm.weight"
    lacking = {n: p for n, p in weights.items() if n != norm}
    with pytest.raises(InputError, match=rf"{norm} is missing"):
        decoder(CONFIG, lacking, torch.float32, CPU)
    with pytest.raises(InputError, match=r"has shape \[3\]; expected \[32\]"):
        decoder(CONFIG, {**weights, norm: torch.ones(3)}, torch.float32, CPU)
    with pytest.raises(InputError, match=r"bias is none of a decoder's"):
        decoder(CONFIG, {**weights, "bias": torch.ones(3)}, torch.float32, CPU)


def test_a_block_is_found_by_what_it_holds_and_lost_when_it_is_handed_out_again():
    blocks = BlockManager(3, 2)
    first = blocks.begin((1, 2, 3))
    assert first.blocks == []
    assert blocks.grow(first, 3)
    blocks.publish(first, (1, 2, 3), 3)
    blocks.end(first)
    assert blocks.free == 3
    again = blocks.begin((1, 2, 4))
    assert (again.published, len(again.blocks), blocks.free) == (1, 1, 2)
    # All others are handed out; the shared one is held.
    other = blocks.begin((7,))
    assert blocks.grow(other, 4)
    assert not blocks.grow(other, 5)
    blocks.end(again)
    assert blocks.grow(other, 5)  # now that one, too
    blocks.end(other)
    assert blocks.begin((1, 2, 4)).blocks == []


def test_the_same_tokens_after_other_tokens_are_not_the_same():
    blocks = BlockManager(8, 2)
    table = blocks.begin((1, 2, 3, 4, 5))
    blocks.grow(table, 5)
    blocks.publish(table, (1, 2, 3, 4, 5), 5)
    assert len(blocks.begin((1, 2, 3, 4, 9)).blocks) == 2
    assert blocks.begin((3, 4, 9)).blocks == []
    assert len(blocks.begin((1, 2, 4, 4, 9)).blocks) == 1


class Arrivals(RuleBasedStateMachine):
    """Requests come, go and are cancelled at any time, in a cache that is too small for them."""

    def __init__(self):
        super().__init__()
        self.served = engine(blocks=14, size=2, chunk=3, most_tokens=8)
        self.requests = []

    @rule(
        shared=st.integers(0, 8),
        own=st.integers(1, 6),
        seed=st.integers(0, 3),
        count=st.integers(1, 6),
    )
    def add(self, shared, own, seed, count):
        self.requests.append(self.served.add(HEAD[:shared] + words(own, seed), count))

    @rule()
    def step(self):
        self.served.step()

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def cancel(self, data):
        request = data.draw(st.sampled_from(self.requests))
        self.requests.remove(request)
        self.served.cancel(request)

    @invariant()
    def what_was_said_is_what_the_plain_model_says(self):
        for request in self.requests:
            said = request.generated
            assert said == expected(request.prompt, 6)[: len(said)]

    @invariant()
    def no_block_is_held_by_nobody(self):
        held = {b for r in self.requests for b in r.table.blocks}
        assert len(held) == self.served.blocks.num_blocks - self.served.blocks.free

    def teardown(self):
        self.served.run()
        assert all(r.done for r in self.requests)
        self.what_was_said_is_what_the_plain_model_says()
        assert self.served.blocks.free == self.served.blocks.num_blocks


TestArrivals = Arrivals.TestCase
TestArrivals.settings = settings(max_examples=40, stateful_step_count=40)


def test_a_step_writes_nothing_but_its_tokens_slots():
    cache = engine().__dict__["_cache"]
    for layer in range(CONFIG.num_layers):
        for storage in cache.layer(layer).storages:
            storage.fill_(7)
    spans = [Span([5, 9], 3, 2), Span([2], 0, 2)]
    heads = [torch.randn(4, n, 16) for n in (4, 2, 2)]
    cache.step(spans).attend(1, *heads)
    written = {(5, 3), (9, 0), (2, 0), (2, 1)}
    for layer in range(CONFIG.num_layers):
        pools = cache.layer(layer)
        for found in (pools.key, pools.value):
            changed = {tuple(at) for at in (found != 7).any(-1).any(-1).nonzero().tolist()}
            assert changed == (written if layer == 1 else set())
