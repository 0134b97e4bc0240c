"""`kvbench generate` as a user meets it, and what it says of its own time."""

import functools
import re
from dataclasses import replace

import pytest
import torch
from called import call
from made_gguf import TOKENS, tensors, write_gguf

from kvbench.cases import LAYOUTS
from kvbench.engine import plain
from kvbench.engine.config import SIZES, ModelConfig, random_sizes
from kvbench.engine.generation import Engine
from kvbench.engine.model import Decoder, random_decoder
from kvbench.engine.paged import PagedCache
from kvbench.engine.serving import Stopwatch, serve
from kvbench.engine.timeline import TimedStep, Timeline
from kvbench.errors import InputError
from kvbench.report.generation import Saying, printable, split_table, times_table
from kvbench.report.tables import MISSING
from kvbench.strategies import registry

CPU = torch.device("cpu")
RANDOM = ("--random", "--device", "cpu", "--max-tokens", "5")


@pytest.fixture
def generate(monkeypatch, capsys):
    return functools.partial(call, monkeypatch, capsys, "generate")


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    return write_gguf(tmp_path_factory.mktemp("model") / "small.gguf")


def said_by_plain(prompt, count=5, seed=0, **sizes):
    config = replace(SIZES["tiny"], **sizes)
    model = random_decoder(config, seed, torch.float32, CPU)
    return " ".join(map(str, plain.generate(model, list(prompt.encode()), count)))


def rows(out):
    cells = [[c.strip() for c in line.split("│")[1:-1]] for line in out.splitlines()]
    return {row[0]: row[1:] for row in cells if row}


def refused(ended, *parts):
    (line,) = ended.err.splitlines()
    assert line.startswith("error: ")
    assert [part for part in parts if part not in line] == []
    assert (ended.code, ended.out) == (2, "")


def test_a_prompt_is_answered_by_what_the_plain_model_says_and_timed(generate):
    ended = generate(*RANDOM, "-p", "hello")
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.splitlines()[0] == said_by_plain("hello")
    assert "random tiny: 2 layers, 4 heads over 2 KV heads of 16, fp32 on cpu" in ended.out
    assert "write.index_put and attend.sdpa_indexing, 1 block of 16, NHD" in ended.out
    found = rows(ended.out)
    assert found["time to first token"][1] == "1 request"
    assert found["time per output token"][1] == "median, least and most of 2 tokens"
    assert found["prompt tokens per second"][1] == "5 tokens until the last first token"
    assert found["tokens generated"] == ["5", "5 steps"]
    assert found["preemptions"][0] == "0"
    shares = [float(found[part][1].removesuffix(" %")) for part in list(found)[-5:]]
    assert sum(shares[:4]) == pytest.approx(100, abs=0.3)
    assert shares[4] == 100


def test_several_prompts_are_a_batch(generate):
    prompts = ("hello", "a longer one than that", "x")
    ended = generate(*RANDOM, *(word for p in prompts for word in ("-p", p)))
    assert ended.out.splitlines()[:3] == [
        f"[{number}] {said_by_plain(prompt)}" for number, prompt in enumerate(prompts, 1)
    ]
    found = rows(ended.out)
    assert found["time to first token"][1] == "median, least and most of 3 requests"
    assert found["tokens generated"] == ["15", "5 steps"]


@pytest.mark.parametrize(
    "options",
    [
        ("--write", "loop", "--attend", "read.slot_mapping"),
        ("--write", "write.block_slices", "--attend", "attend.sdpa_loop"),
        ("--attend", "blocks", "--block-size", 3, "--chunk", 2),
        ("--blocks", 9, "--block-size", 2),
        ("--no-sharing", "--raw"),
        *(("--layout", layout, "--write", "indexing") for layout in LAYOUTS if layout != "MLA"),
    ],
    ids=lambda options: " ".join(map(str, options)),
)
def test_options_change_no_word(generate, options):
    ended = generate(*RANDOM, "-p", "one prompt", *options)
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.splitlines()[0] == said_by_plain("one prompt")


def test_the_seed_the_sizes_and_the_length_do(generate):
    ended = generate("--random", "tiny", "--device", "cpu", "-p", "a", "--seed", 3, "--size",
                     "num_layers=1", "--size", "hidden_size=48", "--max-tokens", 2)  # fmt: skip
    assert ended.out.splitlines()[0] == said_by_plain("a", 2, seed=3, num_layers=1, hidden_size=48)
    assert "random tiny, num_layers=1, hidden_size=48: 1 layer," in ended.out


def test_any_seed_is_taken(generate):
    ended = generate(*RANDOM, "-p", "a", "--max-tokens", 2, "--seed", 2**90)
    assert ended.code == 0
    assert "prompt tokens per second" in ended.out


def test_without_a_warm_up_only_what_is_printed_is_computed(generate, monkeypatch):
    expected, calls = said_by_plain("a"), []
    forward = Decoder.forward
    monkeypatch.setattr(Decoder, "forward", lambda *a, **o: calls.append(1) or forward(*a, **o))
    warm = generate(*RANDOM, "-p", "a")
    assert len(calls) == 3 + 5
    assert re.search(r"Loading took .*, warming up \d", warm.out)
    cold = generate(*RANDOM, "-p", "a", "--no-warm-up")
    assert len(calls) == 3 + 5 + 5
    assert cold.out.splitlines()[0] == expected
    assert "s, not warmed up." in cold.out


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_weights_and_cache_are_of_the_dtype(generate, dtype):
    ended = generate(*RANDOM, "-p", "a", "--dtype", dtype)
    assert (ended.code, ended.err) == (0, "")
    assert f"{dtype} on cpu" in ended.out


def test_with_too_few_blocks_one_gives_way_and_says_the_same(generate):
    prompts = ("one prompt", "two prompts")
    words = [word for p in prompts for word in ("-p", p)]
    # Room for both to begin, and for one to end: 9 blocks for each.
    sizes = ("--blocks", 12, "--block-size", 2, "--max-tokens", 8)
    ended = generate("--random", "--device", "cpu", *words, *sizes)
    assert ended.out.splitlines()[:2] == [
        f"[{number}] {said_by_plain(prompt, 8)}" for number, prompt in enumerate(prompts, 1)
    ]
    assert int(rows(ended.out)["preemptions"][0]) >= 1


def test_a_prefix_is_shared_where_it_is_in_the_cache(generate):
    head = "the same head of sixteen letters and more of it"
    words = ("-p", head + "!", "-p", head + "?", "--chunk", 16, "--block-size", 4, "--blocks", 16)
    found = rows(generate(*RANDOM, *words).out)
    # The second gives way with 32 tokens computed, and finds 44 of the first's when it is back.
    assert int(found["prompt tokens shared"][0]) == 44 - 32
    found = rows(generate(*RANDOM, *words, "--no-sharing").out)
    assert found["prompt tokens shared"][0] == "0"


def test_a_model_file_speaks_its_own_words(generate, small):
    ended = generate("--model", small, "-p", "hello", "--max-tokens", 7, "--device", "cpu")
    assert (ended.code, ended.err) == (0, "")
    assert "\nsmall: 2 layers, 4 heads over 2 KV heads of 8" in ended.out
    raw = generate("--model", small, "-p", "hello", "--max-tokens", 7, "--device", "cpu", "--raw")
    of = "prompt tokens per second"
    assert rows(raw.out)[of][1].startswith("1 tokens")
    assert int(rows(ended.out)[of][1].split()[0]) > 3  # the template's, too


def test_a_strategy_of_the_users_own_serves(generate, tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(
        "from kvbench.strategies import registry\n"
        "base = type(registry.get('write.index_put'))\n"
        "@registry.register\n"
        "class Mine(base):\n"
        "    name = 'write.mine'\n"
    )
    ended = generate(*RANDOM, "-p", "hello", "--load", path, "--write", "mine")
    assert "write.mine and" in ended.out
    assert ended.out.splitlines()[0] == said_by_plain("hello")
    assert "What it took" in ended.out


def test_times_that_mean_nothing_are_not_printed(generate, monkeypatch):
    write = registry.get("write.index_put")
    monkeypatch.setattr(type(write), "untimed", lambda *_: "run by hand")
    ended = generate(*RANDOM, "-p", "hello")
    assert ended.out.splitlines()[0] == said_by_plain("hello")
    assert "Times would mean nothing. write.index_put: run by hand." in ended.out
    assert "What it took" not in ended.out
    assert ended.code == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("-p", "a"), "one of --model FILE.gguf and --random"),
        (("--random", "--model", "m.gguf", "-p", "a"), "one of --model FILE.gguf and --random"),
        (("--random",), "no prompt; expected one or more"),
        (("--random", "small", "-p", "a"), "unknown sizes 'small'"),
        (("--random", "-p", "a", "--size", "layers=2"), "unknown size 'layers' (did you mean"),
        (("--random", "-p", "a", "--size", "num_layers"), "expected num_layers=N"),
        (("--random", "-p", "a", "--size", "num_layers=-1"), "expected num_layers=N"),
        (("--random", "-p", "a", "--size", "num_heads=3"), "a multiple of num_kv_heads"),
        (("--random", "-p", "a", "--size", "vocab_size=9"), "expected 256 or more"),
        (("--random", "-p", "a", "--size", "num_layers=99999999"), "which cpu has free"),
        (("--random", "-p", ""), "the prompt is empty"),
        (("--random", "-p", "a", "--write", "index_putt"), "did you mean 'write.index_put'?"),
        (("--random", "-p", "a", "--write", "read.indexing"), "unknown strategy of the op write"),
        (("--random", "-p", "a", "--attend", "write.loop"), "unknown strategy of the op attend"),
        (("--random", "-p", "a", "--attend", "enable_gqa"), "can't serve this model"),
        (("--random", "-p", "a" * 40, "--blocks", "2"), "expected up to 2, which the cache has"),
        (("--random", "-p", "a", "--device", "cuda:77"), "device 'cuda:77' is not here"),
        (("--random", "-p", "a", "--max-tokens", "0"), "--max-tokens"),
        (("--random", "-p", "a", "--layout", "MLA"), "--layout"),
        (("--model", "missing.gguf", "-p", "a"), "No such file or directory; expected a GGUF"),
        (("--model", "missing.gguf", "-p", "a", "--size", "num_layers=1"), "with --random"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_mistake_is_one_line(generate, arguments, said):
    device = () if "--device" in arguments else ("--device", "cpu")
    refused(generate(*arguments, *device), said)


def test_a_prompt_longer_than_the_model_was_made_for_is_refused(generate, small):
    words = ("--model", small, "--device", "cpu", "--raw", "-p")
    refused(generate(*words, "a" * 60, "--max-tokens", 41), "expected 100 in all")
    assert generate(*words, "a" * 60, "--max-tokens", 40).code == 0


def test_a_tokenizer_of_another_model_is_refused(generate, tmp_path):
    weights = tensors()
    weights["token_embd.weight"] = weights["token_embd.weight"][:-1]
    path = write_gguf(tmp_path / "m.gguf", weights)
    said = f"its tokenizer has {len(TOKENS)} tokens; expected {len(TOKENS) - 1}"
    refused(generate("--model", path, "-p", "a"), said)


def test_ctrl_c_ends_the_line_and_says_so(generate, monkeypatch):
    calls = []
    forward = Decoder.forward
    first_two = " ".join(said_by_plain("hello").split()[:2])

    def interrupted(*arguments, **options):
        calls.append(1)
        if len(calls) > 5:  # of 3 warm ones and 5
            raise KeyboardInterrupt
        return forward(*arguments, **options)

    monkeypatch.setattr(Decoder, "forward", interrupted)
    ended = generate(*RANDOM, "-p", "hello")
    assert ended.code == 130
    assert ended.err.strip() == "interrupted"
    assert ended.out == f"{first_two}\n"


@pytest.mark.parametrize(
    ("op", "name", "found"),
    [
        ("write", "write.loop", "write.loop"),
        ("write", "loop", "write.loop"),
        ("attend", "native", "attend.native"),
        ("attend", "read.native", "attend.sdpa_native"),
        ("attend", "sdpa_native", "attend.sdpa_native"),
        ("attend", "indexing", "attend.sdpa_indexing"),
        ("attend", "read.indexing", "attend.sdpa_indexing"),
    ],
)
def test_a_strategy_is_found_by_any_of_its_names(op, name, found):
    assert registry.find(op, name).name == found


def test_the_number_of_weights_is_the_decoders():
    for tied in (True, False):
        config = replace(SIZES["tiny"], tied_embeddings=tied)
        with torch.device("meta"):
            counted = sum(p.numel() for p in Decoder(config).parameters())
        assert config.parameters == counted
    assert SIZES["smollm2-135m"].parameters == 134_515_008


def test_sizes_by_name_are_changed_one_by_one():
    assert random_sizes("tiny", ()) == SIZES["tiny"]
    found = random_sizes("tiny", ("num_layers=7", "head_dim=32"))
    assert found == replace(SIZES["tiny"], num_layers=7, head_dim=32)
    assert isinstance(found, ModelConfig)
    with pytest.raises(InputError, match=r"'num_layers=8': num_layers is given twice"):
        random_sizes("tiny", ("num_layers=7", "num_layers=8"))


def served(*prompts, count=6, **options):
    config = SIZES["tiny"]
    cache = PagedCache(
        config,
        options.pop("blocks", 40),
        block_size=2,
        write=registry.get("write.index_put"),
        attend=registry.get("attend.sdpa_indexing"),
        dtype="fp32",
        device=CPU,
    )
    engine = Engine(random_decoder(config, 0, torch.float32, CPU), cache, **options)
    return engine, [engine.add(prompt, count) for prompt in prompts]


def test_every_second_step_after_the_first_tokens_is_taken_apart():
    engine, requests = served((1, 2, 3), (4, 5, 6, 7, 8, 9, 10, 11), chunk=3, count=7)
    told, waits = [], []
    timeline = serve(engine, requests, lambda: waits.append(1), lambda r, t: told.append((r, t)))
    for request in requests:
        assert [token for r, token in told if r is request] == request.generated
    assert timeline.generated_tokens == 14
    apart = [step.parts_s is not None for step in timeline.steps]
    assert apart[:3] == [False] * 3  # three chunks of the longer prompt
    assert apart[3:] == [n % 2 == 1 for n in range(len(apart) - 3)]
    # Two layers: around prepare, and around each write and attention.
    assert len(waits) == 2 * (1 + 2 * 2) * sum(apart)
    for step in timeline.taken_apart:
        assert set(step.parts_s) == {"index", "write", "attend"}
        assert 0 < sum(step.parts_s.values()) < step.duration_s
    total_s = sum(step.duration_s for step in timeline.steps)
    assert timeline.firsts_s[0] == timeline.steps[0].duration_s
    assert timeline.firsts_s[1] == pytest.approx(sum(s.duration_s for s in timeline.steps[:3]))
    assert sum(timeline.gaps_s) < total_s * 2
    # The first request's steps 1 and 2, then each step of either that was not taken apart.
    assert len(timeline.gaps_s) == 2 + sum(s.said for s in timeline.undisturbed)


def test_what_is_done_with_a_token_is_not_its_time():
    import time  # noqa: PLC0415

    engine, requests = served((1, 2, 3), count=4)
    timeline = serve(engine, requests, lambda: None, lambda *_: time.sleep(0.2))
    assert max(timeline.firsts_s) < 0.2
    assert max(timeline.gaps_s) < 0.2


def test_preempted_requests_are_counted_and_their_gaps_are_long():
    engine, requests = served((1, 2, 3, 4), (5, 6, 7, 8), blocks=7, count=8, sharing=False)
    timeline = serve(engine, requests, lambda: None)
    assert timeline.preemptions == sum(r.preempted for r in requests) > 0
    assert any(not step.decodes for step in timeline.steps[1:])


def test_what_a_preempted_request_finds_again_is_its_own_and_not_shared():
    engine, requests = served((1, 2, 3, 4), (5, 6, 7, 8), blocks=7, count=8)
    timeline = serve(engine, requests, lambda: None)
    assert timeline.preemptions > 0
    assert timeline.shared_tokens == 0


def test_a_stopwatch_adds_up_and_waits_before_and_after():
    waits = []
    watch = Stopwatch(lambda: waits.append(1))
    for part in ("write", "write", "index"):
        with watch(part):
            pass
    assert set(watch.parts_s) == {"write", "index"}
    assert len(waits) == 6


def made(steps, **fields):
    of = {
        "firsts_s": (0.5,),
        "gaps_s": (),
        "prompt_tokens": 100,
        "shared_tokens": 20,
        "generated_tokens": 9,
        "preemptions": 0,
    }
    return Timeline(steps=tuple(steps), **{**of, **fields})


def test_a_step_is_split_into_parts_that_add_up():
    parts = ({"index": 1e-3, "write": 2e-3, "attend": 3e-3}, {"index": 3e-3, "write": 2e-3})
    steps = [TimedStep(0.1, 50, 1, 1, None), TimedStep(0.02, 2, 2, 2, None)]
    steps += [TimedStep(0.01, 2, 2, 2, part) for part in parts]
    table = split_table(made(steps), on_gpu=False)
    assert table.rows == (
        ("index preparation", "2000", "20.0 %"),
        ("KV write", "2000", "20.0 %"),
        ("attention", "1500", "15.0 %"),
        ("the rest", "4500", "45.0 %"),
        ("a step", "10000", "100.0 %"),
    )
    assert "(mean of 2 steps)" in table.title
    assert table.note == "Every second step is taken apart; the other 1 took 20.0 ms on average."
    assert "waits for the GPU" in split_table(made(steps), on_gpu=True).note


def test_what_was_not_measured_is_missing():
    timeline = made([TimedStep(0.5, 80, 1, 1, None)])
    table = split_table(timeline, on_gpu=False)
    assert {row[1:] for row in table.rows} == {(MISSING, MISSING)}
    found = {row[0]: row[1:] for row in times_table(timeline).rows}
    assert found["time per output token"] == (MISSING, "0 tokens")
    assert found["output tokens per second"] == (MISSING, "0 decode steps")
    assert found["prompt tokens per second"][0] == "160"  # 80 that were computed, in 0.5 s


def test_times_say_of_how_many_they_are():
    gaps = tuple(0.010 + n * 1e-4 for n in range(21))
    found = {row[0]: row[1:] for row in times_table(made([], gaps_s=gaps)).rows}
    value, of = found["time per output token"]
    assert of == "median and its 95 % interval, 21 tokens"
    middle, low, high = map(float, re.findall(r"\d+\.\d+", value))
    assert (middle, value[-2:]) == (11.0, "ms")
    assert 10 < low < 11 < high < 12


def test_what_would_command_a_terminal_is_not_printed(capsys):
    assert printable("a\x1b[2Jb\r\n\tü\x9b\x7f") == "a\ufffd[2Jb\ufffd\n\tü\ufffd\ufffd"
    with Saying(1) as saying:
        saying.hear(0, "one ")
        assert capsys.readouterr().out == "one "
        saying.hear(0, "[red]two")
    assert capsys.readouterr().out == "[red]two\n"
    with Saying(2) as saying:
        saying.hear(1, "b")
        saying.hear(0, "a")
        assert capsys.readouterr().out == ""
    assert capsys.readouterr().out == "[1] a\n[2] b\n"


def test_a_refusal_names_the_op(tmp_path):
    with pytest.raises(InputError, match=r"unknown strategy of the op attend 'nativ' .*native"):
        registry.find("attend", "nativ")
    assert not list(tmp_path.iterdir())
