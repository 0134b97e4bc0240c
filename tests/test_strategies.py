"""Every strategy against the oracle, the interface that they share, and their registry."""

import importlib.util
import pickle
import random

import numpy as np
import pytest
import torch
from drawn import KV_OPS, cases
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.profiler import ProfilerActivity, profile

from kvbench import oracle
from kvbench.axes import expand_all
from kvbench.cases import LAYOUTS, OPS, OUTPUTS, Case
from kvbench.errors import InputError, StrategyError
from kvbench.filling import fill
from kvbench.kernels.native import library
from kvbench.kernels.tiles import default_tiles
from kvbench.presets import CHECK_GRIDS
from kvbench.strategies import registry
from kvbench.strategies.base import Strategy, why_unsupported, why_untimed
from kvbench.strategies.step.pairs import DEFAULT_PAIRS
from kvbench.sweep.checking import check_all, check_case
from kvbench.workload import build

CPU = torch.device("cpu")

# Without Triton its strategies are unsupported, as those in C++ are without a compiler; all that is
# here must pass.
MISSING = [
    ending
    for ending, is_here in (
        (".triton", importlib.util.find_spec("triton") is not None),
        (".native", library.unsupported(CPU) is None),
    )
    if not is_here
]
# CUDA C++ is for NVIDIA GPUs alone: test_cuda has it as plain C++.
ELSEWHERE = (*MISSING, ".cuda", ".streams")
STRATEGIES = [
    s for s in registry.all_strategies() if s.op in KV_OPS and not s.name.endswith(ELSEWHERE)
]
"""Those that move K and V; test_index.py and test_attend.py have the others."""
INTERPRETED = [s for s in STRATEGIES if s.name.endswith(".triton")]
# Each kind of heads and dtype is compiled anew, which takes seconds. test_compiled.py has chosen
# cases, `kvbench check` has all: whatever draws cases here leaves these out.
COMPILED = [s for s in STRATEGIES if s.name.endswith(".compile")]
TIMED = [s for s in STRATEGIES if s not in INTERPRETED and s not in COMPILED]
DRAWN = [s for s in STRATEGIES if s not in COMPILED]

# Flat slots lie on one axis in the other layouts alone.
NOT_FLAT = ("HND", "NHD-KV", "HND-KV", "x-packed")
OVER_FLAT_SLOTS = {
    *("write.slot_mapping", "write.index_put", "write.index_copy", "write.scatter"),
    *("read.slot_mapping", "read.index_select", "read.gather"),
    *("write.compile", "read.compile"),
}
TAKES_64_BITS = {"write.index_copy", "write.scatter", "read.gather"}
ALWAYS_ALLOCATES = {"read.indexing", "read.slot_mapping"}
DECODES_APART = {"read.loop", "read.index_select", "read.gather", "read.blocks"}
"""What gathers codes first can't decode them into a given output without a tensor between."""

CHUNKS = 24
GRID = expand_all(CHECK_GRIDS)


def each(strategies):
    return pytest.mark.parametrize("strategy", strategies, ids=lambda s: s.name)


def layouts_of(strategy):
    refused = NOT_FLAT if strategy.name in OVER_FLAT_SLOTS else ()
    return [layout for layout in LAYOUTS if layout not in refused]


def drawn_case(data, strategy, **fixed):
    """A case that a strategy supports."""
    name = strategy.name
    fixed["layout"] = data.draw(st.sampled_from(layouts_of(strategy)))
    if strategy.op == "read":
        outputs = OUTPUTS[:1] if name in ALWAYS_ALLOCATES else OUTPUTS
        fixed["output"] = data.draw(st.sampled_from(outputs))
        if fixed["output"] == "given" and name in DECODES_APART:
            fixed["cache_dtype"] = "auto"
        if fixed["output"] == "given" and name == "read.blocks":
            # Whole blocks alone: the least of the sizes that are drawn, so that there are many.
            fixed |= {"block_size": 1}
    if name in TAKES_64_BITS:
        fixed["slot_dtype"] = "int64"
    return data.draw(cases(op=strategy.op, **fixed))


def refusals(strategy, case):
    """What the reasons begin with for which a strategy may refuse a case."""
    name, given = strategy.name, case.output == "given"
    found = []
    if case.layout not in layouts_of(strategy):
        found.append(f"layout {case.layout}: ")
    if given and name in ALWAYS_ALLOCATES:
        found.append("output=given: ")
    if given and case.quantised and name in DECODES_APART:
        found.append(f"output=given with cache_dtype={case.cache_dtype}: ")
    if given and name == "read.blocks" and not fills_its_blocks(case):
        found.append("output=given: whole blocks")
    if case.slot_dtype == "int32" and name in TAKES_64_BITS:
        found.append("slot_dtype=int32: ")
    return tuple(found)


def fills_its_blocks(case):
    starts, lengths = case.sequences()
    return not any(position % case.block_size for position in (*starts, *lengths))


def is_expected(strategy, case, outcome):
    """Whether a check ended as it should."""
    expected = refusals(strategy, case)
    if not expected:
        return outcome == ("checked", "")
    return outcome[0] == "unsupported" and outcome[1].startswith(expected)


def faults(chosen, device):
    return [
        (strategy.name, outcome, case.label())
        for case in chosen
        for strategy in DRAWN
        if strategy.op == case.op
        and not is_expected(strategy, case, outcome := check_case(case, strategy, device))
    ]


def result_of(strategy, workload):
    """All that a call leaves behind, in numbers: storages and scales after it, what it returned."""
    output = strategy.run(workload, strategy.prepare(workload))
    tensors = [*workload.tensors().values(), *(output or ())]
    if not workload.case.quantised:
        return [oracle.bits(tensor) for tensor in tensors]
    # A NaN that arithmetic has made may have any payload.
    return [tensor.float().numpy(force=True) for tensor in tensors]


def alike(result, expected):
    return len(result) == len(expected) and all(
        np.array_equal(*pair, equal_nan=pair[0].dtype.kind == "f")
        for pair in zip(result, expected, strict=True)
    )


# Against the oracle.


@each(TIMED)
@settings(max_examples=150)
@given(data=st.data())
def test_strategy_is_right_in_any_case(strategy, data):
    assert check_case(drawn_case(data, strategy), strategy, CPU) == ("checked", "")


@each(INTERPRETED)
@settings(max_examples=30)
@given(data=st.data())
def test_kernel_of_strategy_is_right_in_any_case(strategy, data):
    case = drawn_case(data, strategy, most_tokens=12)
    assert check_case(case, strategy, CPU) == ("checked", "")


@pytest.mark.parametrize("layout", LAYOUTS)
@each(STRATEGIES)
def test_a_strategy_refuses_the_layouts_that_it_cannot_do_and_says_why(strategy, layout):
    shape = {"num_kv_heads": 1} if layout == "MLA" else {}
    case = Case(op=strategy.op, seq_len=1, layout=layout, **shape)
    reason = strategy.supports(case, CPU)
    if layout in layouts_of(strategy):
        assert reason is None
    else:
        assert reason.startswith(f"layout {layout}: ")
    assert check_case(case, strategy, CPU) == (
        ("unsupported", reason) if reason else ("checked", "")
    )


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_all_strategies_but_compiled_ones_are_right_in_a_third_of_the_check_grids(chunk, cpu):
    # Drawn, since every third case would leave values of an axis out; `make check-exhaustive`
    # does all of them.
    third = random.Random(0).sample(GRID, len(GRID) // 3)  # noqa: S311 - reproducible, not secret
    assert faults(third[chunk::CHUNKS], cpu) == []


@pytest.mark.gpu
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_all_strategies_but_compiled_ones_are_right_in_the_check_grids_on_a_gpu(chunk, gpu):
    with default_tiles():
        assert faults(GRID[chunk::CHUNKS], gpu) == []


@pytest.mark.parametrize("op", KV_OPS)
@settings(max_examples=20)
@given(data=st.data())
def test_strategies_of_an_op_but_compiled_ones_agree_on_every_number(op, data):
    workload = build(data.draw(cases(op=op, most_tokens=8)), CPU)
    results = {}
    for strategy in DRAWN:
        if strategy.op == op and not refusals(strategy, workload.case):
            # Scales that are powers of two: in quantised cases too one result is right.
            fill(workload, 1)
            results[strategy.name] = result_of(strategy, workload)
    if op == "write" or workload.case.output == "allocated":
        assert len(results) >= 2
    first = next(iter(results.values()))
    assert [name for name, result in results.items() if not alike(result, first)] == []


@each(DRAWN)
@settings(max_examples=15)
@given(data=st.data())
def test_what_prepare_returned_serves_every_layer(strategy, data):
    workload = build(drawn_case(data, strategy, most_tokens=6), CPU)
    fill(workload, 0)
    prepared = strategy.prepare(workload)
    assert [oracle.recheck(strategy, workload, prepared, layer) for layer in (1, 2)] == ["", ""]


@each(DRAWN)
@settings(max_examples=15)
@given(data=st.data())
def test_a_strategy_keeps_nothing_of_one_workload_for_another(strategy, data):
    workloads = [build(drawn_case(data, strategy, most_tokens=6), CPU) for _ in range(2)]
    # Both are prepared before either runs.
    prepared = [strategy.prepare(workload) for workload in workloads]
    for workload, its_own in zip(workloads, prepared, strict=True):
        assert oracle.recheck(strategy, workload, its_own, 0) == ""
    assert vars(strategy) == {}


@pytest.mark.parametrize("cache_dtype", ["auto", "fp8_e4m3"])
@each([s for s in STRATEGIES if s.op == "read" and s not in INTERPRETED])
def test_with_given_outputs_nothing_as_large_as_them_is_made_on_the_way(strategy, cache_dtype):
    case = Case(op="read", seq_len=128, output="given", cache_dtype=cache_dtype)
    if refusals(strategy, case):
        pytest.skip(strategy.supports(case, CPU))
    workload = build(case, CPU)
    fill(workload)
    prepared = strategy.prepare(workload)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        strategy.run(workload, prepared)
    # C++ into what is given leaves no event at all; a tensor made on the way would.
    largest = max((event.self_cpu_memory_usage for event in seen.events()), default=0)
    assert largest < workload.outputs[0].nbytes / 2


# The interface.

EVERY_STRATEGY = {
    "write.block_slices": {"has_prepare": False},
    "write.compile": {"has_prepare": True},
    "write.cuda": {"has_prepare": True},
    "write.index_copy": {"has_prepare": True},
    "write.index_put": {"has_prepare": True},
    "write.indexing": {"has_prepare": False},
    "write.loop": {"has_prepare": False},
    "write.native": {"has_prepare": True},
    "write.scatter": {"has_prepare": True},
    "write.slot_mapping": {"has_prepare": True},
    "write.streams": {"has_prepare": True},
    "write.triton": {"has_prepare": True},
    "read.block_slices": {"has_prepare": False},
    "read.blocks": {"has_prepare": True},
    "read.compile": {"has_prepare": True},
    "read.cuda": {"has_prepare": True},
    "read.gather": {"has_prepare": True},
    "read.index_select": {"has_prepare": True},
    "read.indexing": {"has_prepare": False},
    "read.loop": {"has_prepare": False},
    "read.native": {"has_prepare": True},
    "read.slot_mapping": {"has_prepare": True},
    "read.streams": {"has_prepare": True},
    "read.triton": {"has_prepare": True},
    "attend.enable_gqa": {"has_prepare": True},
    "attend.flex": {"has_prepare": True},
    "attend.native": {"has_prepare": True},
    "attend.sdpa_block_slices": {"has_prepare": True},
    "attend.sdpa_blocks": {"has_prepare": True},
    "attend.sdpa_compile": {"has_prepare": True},
    "attend.sdpa_cuda": {"has_prepare": True},
    "attend.sdpa_gather": {"has_prepare": True},
    "attend.sdpa_index_select": {"has_prepare": True},
    "attend.sdpa_indexing": {"has_prepare": True},
    "attend.sdpa_loop": {"has_prepare": True},
    "attend.sdpa_native": {"has_prepare": True},
    "attend.sdpa_slot_mapping": {"has_prepare": True},
    "attend.sdpa_streams": {"has_prepare": True},
    "attend.sdpa_triton": {"has_prepare": True},
    "attend.triton": {"has_prepare": True},
    "index.loop": {"has_prepare": False},
    "index.numpy": {"has_prepare": False},
    "index.pinned": {"has_prepare": True},
    "index.torch": {"has_prepare": True},
    "index.triton": {"has_prepare": True},
    **{f"step.{way}": {"has_prepare": True} for way in sorted(DEFAULT_PAIRS)},
}


def test_built_in_strategies_say_what_they_do_per_step_and_whether_they_allocate():
    told = {
        strategy.name: {"has_prepare": strategy.has_prepare()}
        for strategy in registry.all_strategies()
    }
    assert told == EVERY_STRATEGY


def test_all_strategies_come_by_op_and_then_by_name():
    names = [strategy.name for strategy in registry.all_strategies()]
    assert names == list(EVERY_STRATEGY)


@each(registry.all_strategies())
def test_a_strategy_is_named_after_its_op_and_summed_up_in_one_line(strategy):
    assert strategy.op in OPS
    assert strategy.name.startswith(f"{strategy.op}.")
    assert len(strategy.summary.splitlines()) == 1
    assert type(strategy).__doc__


@each(registry.all_strategies())
def test_a_strategy_says_why_it_is_not_timed_or_is(strategy):
    reason = strategy.untimed(CPU)
    if strategy.name.endswith("triton"):
        assert "interpreter" in reason
    else:
        assert reason is None


@each(INTERPRETED)
def test_without_triton_its_strategies_are_unsupported_and_say_why(strategy, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)  # noqa: ARG005
    case = Case(op=strategy.op, seq_len=1)
    reason = "the package triton is not installed"
    assert strategy.supports(case, CPU) == reason
    assert check_case(case, strategy, CPU) == ("unsupported", reason)


class Toy(Strategy):
    name = "write.toy"
    op = "write"
    summary = "nothing"

    def run(self, workload, prepared):
        del workload, prepared
        raise RuntimeError("no\n  such slot")


def test_a_strategy_that_raises_has_failed_in_one_line():
    outcome = check_case(Case(op="write", seq_len=1), Toy(), CPU)
    assert outcome == ("failed", "RuntimeError: no such slot")


def test_a_strategy_needs_no_more_than_a_run():
    toy = Toy()
    assert toy.supports(Case(op="write", seq_len=1), CPU) is None
    assert toy.untimed(CPU) is None
    assert toy.prepare(build(Case(op="write", seq_len=1), CPU)) is None
    assert not toy.has_prepare()


# The registry.


def names(selected):
    return [strategy.name for strategy in selected]


@pytest.mark.parametrize(
    ("patterns", "expected"),
    [
        ([], list(EVERY_STRATEGY)),
        (["*"], list(EVERY_STRATEGY)),
        (["read.loop"], ["read.loop"]),
        (["read.loop", "write.loop", "read.loop"], ["write.loop", "read.loop"]),
        (["*.loop"], ["write.loop", "read.loop", "index.loop"]),
        (["read.*", "[!i]*.loop"], ["write.loop", *(n for n in EVERY_STRATEGY if n[0] == "r")]),
        (["write.[lt]*"], ["write.loop", "write.triton"]),
    ],
    ids=str,
)
def test_patterns_select_each_strategy_once_in_the_order_of_all(patterns, expected):
    assert names(registry.select(patterns)) == expected


@pytest.mark.parametrize(
    ("patterns", "message"),
    [
        (["write.lop"], r"unknown strategy 'write.lop' \(did you mean 'write.loop'\?\); expected"),
        (["*", "raed.triton"], r"'raed.triton' \(did you mean 'read.triton'\?\)"),
        (["READ.loop"], r"'READ.loop' \(did you mean 'read.loop'\?\)"),
        (["attned.*"], r"unknown strategy 'attned.\*'.*expected one of: attend.enable_gqa, "),
        ([""], r"unknown strategy ''; expected one of: attend.enable_gqa"),
    ],
    ids=str,
)
def test_a_pattern_that_selects_nothing_is_an_error_with_the_nearest_name(patterns, message):
    with pytest.raises(InputError, match=message):
        registry.select(patterns)


def test_register_gives_the_class_back_and_makes_it_known(strategies):
    assert registry.register(Toy) is Toy
    assert isinstance(strategies["write.toy"], Toy)
    assert names(registry.select(["write.t*"])) == ["write.toy", "write.triton"]


def test_a_name_is_registered_once(strategies):
    registry.register(Toy)
    first = strategies["write.toy"]
    with pytest.raises(InputError, match=r"'write.toy' is registered twice; expected a unique"):
        registry.register(Toy)
    assert strategies["write.toy"] is first


def test_an_op_that_is_none_is_refused(strategies):
    class Wrong(Toy):
        name = "copy.toy"
        op = "copy"

    with pytest.raises(InputError, match=r"op of strategy 'copy.toy'.*'copy'.*step, write"):
        registry.register(Wrong)
    assert "copy.toy" not in strategies


def test_loading_the_built_in_strategies_again_changes_nothing():
    before = registry.all_strategies()
    registry.load_builtin()
    assert registry.all_strategies() == before


USER_FILE = """
from kvbench.strategies.base import Strategy
from kvbench.strategies.registry import register

@register
class Mine(Strategy):
    name = "write.mine"
    op = "write"
    summary = "mine"

    def run(self, workload, prepared):
        pass
"""


def test_a_file_of_the_user_s_own_registers_its_strategies(tmp_path, strategies):
    path = tmp_path / "mine.py"
    path.write_text(USER_FILE)
    registry.load_file(path)
    assert names(registry.select(["write.mine"])) == ["write.mine"]
    assert len(strategies) == len(EVERY_STRATEGY) + 1


def test_a_read_of_the_user_s_own_can_be_attended_over(tmp_path, strategies):
    path = tmp_path / "mine.py"
    text = USER_FILE.replace("write", "read").replace("pass", "return READ.run(workload, None)")
    found = "from kvbench.strategies import registry\nREAD = registry.get('read.loop')"
    path.write_text(f"{found}\n{text}")
    registry.load_file(path)
    mine = strategies["attend.sdpa_mine"]
    assert registry.file_of(mine) == path
    case = Case(op="attend", seq_len=5, num_heads=2, num_kv_heads=1, head_dim=16)
    assert check_case(case, mine, CPU) == ("checked", "")


def test_an_attention_over_a_read_can_be_handed_to_another_process():
    pickled = pickle.dumps(registry.get("attend.sdpa_loop"))
    again = pickle.loads(pickled)  # noqa: S301 - our own
    assert (again.name, again.reading.name) == ("attend.sdpa_loop", "read.loop")


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("mine.py", None, "expected a Python file"),
        ("mine.txt", USER_FILE, "expected a Python file"),
        ("mine.py", "import nowhere_to_be_found", "ModuleNotFoundError: No module named 'nowhere"),
        ("mine.py", "1 / 0", "ZeroDivisionError: division by zero"),
        ("mine.py", "def", "SyntaxError"),
        ("mine.py", "", "registers nothing; expected a class under @kvbench.strategies.registry"),
        ("mine.py", USER_FILE.replace("write.mine", "write.loop"), "'write.loop' is registered"),
        ("mine.py", USER_FILE.replace('op = "write"', 'op = "w"'), "op of strategy 'write.mine'"),
        ("mine.py", USER_FILE.replace('"mine"', "None"), "Mine: summary=None: expected a text"),
        ("mine.py", USER_FILE.replace('"write.mine"', "5"), "Mine: name=5: expected a text"),
        ("mine.py", USER_FILE.replace("(Strategy)", ""), "expected a class that derives from"),
    ],
    ids=str,
)
def test_a_file_that_cannot_be_used_is_one_line(tmp_path, name, text, message):
    path = tmp_path / name
    if text is not None:
        path.write_text(text)
    with pytest.raises(InputError) as raised:
        registry.load_file(path)
    assert message in str(raised.value)
    assert len(str(raised.value).splitlines()) == 1


def test_the_error_of_a_file_names_the_file(tmp_path):
    path = tmp_path / "mine.py"
    for text in ("1 / 0", "", USER_FILE.replace("write.mine", "write.loop")):
        path.write_text(text)
        with pytest.raises(InputError) as raised:
            registry.load_file(path)
        assert str(path) in str(raised.value), text


@pytest.mark.parametrize("method", ["supports", "untimed"])
@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("1 / 0", "failed: ZeroDivisionError: division by zero"),
        ("return True", "returned True; expected None or the reason why not"),
    ],
)
def test_a_strategy_that_can_not_say_what_it_can_is_named(tmp_path, strategies, method, body, why):
    path = tmp_path / "mine.py"
    path.write_text(f"{USER_FILE}\n    def {method}(self, *_):\n        {body}\n")
    registry.load_file(path)
    mine = strategies["write.mine"]
    case = Case(op="write", seq_len=5)
    said = f"strategy 'write.mine': {method} {why}"
    with pytest.raises(StrategyError) as raised:
        why_unsupported(mine, case, CPU) or why_untimed(mine, CPU)
    assert str(raised.value) == said
    report = check_all([case], [mine], CPU, lambda _: None)
    assert report.counts == {"write.mine": {"failed": 1}}
    assert said in report.faults[0]


def test_a_strategy_that_ends_the_process_has_failed(tmp_path, strategies):
    path = tmp_path / "mine.py"
    path.write_text(USER_FILE.replace("pass", "raise SystemExit(3)"))
    registry.load_file(path)
    status, why = check_case(Case(op="write", seq_len=5), strategies["write.mine"], CPU)
    assert (status, why) == ("failed", "SystemExit: 3")


def test_a_folder_is_no_strategy_file(tmp_path):
    with pytest.raises(InputError, match="expected a Python file"):
        registry.load_file(tmp_path)


@pytest.mark.parametrize("name", ["loop", "write.", "read.loop2", "writes.loop"])
def test_a_name_that_is_not_its_ops_is_refused(name):
    cls = type("Named", (Strategy,), {"name": name, "op": "write", "summary": "", "run": print})
    with pytest.raises(InputError, match=r"begins with 'write\.'"):
        registry.register(cls)
