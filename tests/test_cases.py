"""Case, the axes of a sweep and its presets."""

import dataclasses

import msgspec
import numpy as np
import pytest
import torch
from drawn import cases
from hypothesis import given
from hypothesis import strategies as st

from kvbench import oracle, workload
from kvbench.axes import AXES, Axes, expand_all
from kvbench.cases import OPS, WRITE_ONLY, Case
from kvbench.errors import InputError
from kvbench.presets import CHECK_GRIDS, PRESETS, get_preset


def values_of(text: str) -> tuple[int | str, ...]:
    (axis,) = Axes.parse([text]).values
    assert axis[0] == text.partition("=")[0].strip()
    return axis[1]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("seq_len=1:8192:*2", tuple(2**i for i in range(14))),
        ("num_kv_heads=1:8:+1", (1, 2, 3, 4, 5, 6, 7, 8)),
        ("seq_len=3:10:+3", (3, 6, 9)),
        ("seq_len=3:9:+3", (3, 6, 9)),
        ("seq_len=3:100:*3", (3, 9, 27, 81)),
        ("seq_len=0:4:+2", (0, 2, 4)),
        ("seq_len=5:5:+1", (5,)),
        ("seq_len=5:5:*2", (5,)),
        ("seq_len=7", (7,)),
        ("seq_len=7,1:8:*2,3", (7, 1, 2, 4, 8, 3)),
        ("seq_len=1:4:*2,1:4:+1", (1, 2, 4, 3)),
        ("seq_len=2,2,1,2", (2, 1)),
        (" seq_len = 1 , 2 , 4:8:*2 ", (1, 2, 4, 8)),
        ("seq_len=1:10000:+1", tuple(range(1, 10_001))),
        ("op=read", ("read",)),
        ("block_order= strided ,sequential", ("strided", "sequential")),
        ("dtype=fp16,bf16,fp32", ("fp16", "bf16", "fp32")),
        ("dtype=float32,float16,bfloat16", ("fp32", "fp16", "bf16")),
        ("dtype=float,half,fp16", ("fp32", "fp16")),
    ],
)
def test_axis_values_are_exactly(text, expected):
    assert values_of(text) == expected


@given(st.integers(0, 50), st.integers(0, 200), st.integers(1, 60))
def test_a_step_range_holds_both_ends_and_every_step_between(first, more, step):
    assert values_of(f"seq_len={first}:{first + more}:+{step}") == tuple(
        range(first, first + more + 1, step)
    )


@given(st.integers(1, 50), st.integers(0, 5000), st.integers(2, 9))
def test_a_factor_range_holds_every_power_that_is_not_above_its_last(first, more, factor):
    powers = (first * factor**i for i in range(20))
    expected = tuple(power for power in powers if power <= first + more)
    assert values_of(f"seq_len={first}:{first + more}:*{factor}") == expected


@pytest.mark.parametrize(
    ("texts", "names"),
    [
        (["block_sze=16"], ["axis 'block_sze'", "did you mean 'block_size'?", "head_dim"]),
        (["layers=2"], ["axis 'layers'", "expected one of: batch, block_order"]),
        (["seq_len=1", "seq_len=2"], ["axis seq_len is given twice", "seq_len=A,B"]),
        (["seq_len"], ["'seq_len'", "expected name=values"]),
        (["seq_len="], ["'seq_len='", "expected name=values"]),
        (["seq_len=  "], ["'seq_len=  '", "expected name=values"]),
        ([""], ["''", "expected name=values"]),
        (["block_size=0"], ["block_size=0", "an integer, 1 or more"]),
        (["block_size=-16"], ["block_size=-16", "an integer, 1 or more"]),
        (["seq_len=-1"], ["seq_len=-1", "an integer, 0 or more"]),
        (["block_size=0:4:+1"], ["block_size=0", "an integer, 1 or more"]),
        (["block_size=1.5"], ["axis block_size", "'1.5'", "not an integer"]),
        (["block_size=16,x"], ["axis block_size", "'x'", "not an integer"]),
        (["seq_len=1,,2"], ["axis seq_len", "''", "not an integer"]),
        (["seq_len=1:y:*2"], ["axis seq_len", "'y'", "not an integer"]),
        (["seq_len=1:8:*2.0"], ["axis seq_len", "'2.0'", "not an integer"]),
        (["seq_len=1:8"], ["axis seq_len", "'1:8'", "first:last:*factor or first:last:+step"]),
        (["seq_len=1:8:2"], ["axis seq_len", "'1:8:2'", "first:last:*factor"]),
        (["seq_len=1:8:*2:+1"], ["axis seq_len", "'1:8:*2:+1'", "first:last:*factor"]),
        (["seq_len=1:8:"], ["axis seq_len", "'1:8:'", "first:last:*factor"]),
        (["seq_len=8:1:*2"], ["axis seq_len", "'8:1:*2'", "first <= last"]),
        (["seq_len=8:1:+2"], ["axis seq_len", "'8:1:+2'", "first <= last"]),
        (["seq_len=1:8:*1"], ["axis seq_len", "'1:8:*1'", "a factor of 2 or more"]),
        (["seq_len=0:8:*2"], ["axis seq_len", "'0:8:*2'", "a factor of 2 or more from 1 or more"]),
        (["seq_len=1:8:+0"], ["axis seq_len", "'1:8:+0'", "a step of 1 or more"]),
        (["seq_len=1:8:+-1"], ["axis seq_len", "'1:8:+-1'", "a step of 1 or more"]),
        (["seq_len=1:10001:+1"], ["'1:10001:+1'", "more than 10000 values", "a larger step"]),
        (["seq_len=0:9999999999:+1"], ["'0:9999999999:+1'", "more than 10000 values"]),
        (["dtype=fp8"], ["axis dtype", "'fp8'", "bf16, fp16, fp32"]),
        (["dtype=fp16,"], ["axis dtype", "''", "bf16, fp16, fp32"]),
        (["op=wirte"], ["axis op", "'wirte'", "did you mean 'write'?", "read, write"]),
        (["block_order=random"], ["axis block_order", "'random'", "sequential, shuffled, strided"]),
        (["lengths=raged"], ["axis lengths", "did you mean 'ragged'?"]),
        (["kv_input=qkv"], ["axis kv_input", "'qkv'", "contiguous, fused_qkv"]),
    ],
    ids=str,
)
def test_a_bad_axis_is_one_line_that_names_value_and_expected(texts, names):
    with pytest.raises(InputError) as raised:
        Axes.parse(texts)
    message = str(raised.value)
    assert len(message.splitlines()) == 1
    assert [name for name in names if name not in message] == []


@given(
    st.one_of(
        st.text(),
        st.builds("=".join, st.tuples(st.sampled_from(tuple(AXES)), st.text())),
        st.builds("seq_len={}".format, st.text("0123456789:*+-,. ", max_size=12)),
    )
)
def test_any_text_is_either_an_axis_or_a_one_line_error(text):
    try:
        ((name, values),) = Axes.parse([text]).values
    except InputError as error:
        assert len(str(error).splitlines()) == 1  # noqa: PT017 - both outcomes are right
    else:
        assert name in AXES
        assert len(set(values)) == len(values) > 0


@pytest.mark.parametrize(
    ("fields", "names"),
    [
        ({"op": "attend"}, ["op 'attend'", "read, write"]),
        ({"dtype": "fp8"}, ["dtype 'fp8'", "bf16, fp16, fp32"]),
        ({"dtype": "float16"}, ["dtype 'float16'", "bf16, fp16, fp32"]),
        ({"block_order": "strieded"}, ["block_order", "did you mean 'strided'?"]),
        ({"lengths": "long"}, ["lengths 'long'", "equal, holes, ragged"]),
        ({"kv_input": "q"}, ["kv_input 'q'", "contiguous, fused_qkv"]),
        ({"seq_len": -1}, ["seq_len=-1", "an integer, 0 or more"]),
        ({"seq_len": 2.0}, ["seq_len=2.0", "an integer"]),
        ({"seq_len": True}, ["seq_len=True", "an integer"]),
        ({"seq_len": "4"}, ["seq_len='4'", "an integer"]),
        ({"block_size": 0}, ["block_size=0", "an integer, 1 or more"]),
        ({"head_dim": 0}, ["head_dim=0", "an integer, 1 or more"]),
        ({"num_kv_heads": 0}, ["num_kv_heads=0", "an integer, 1 or more"]),
        ({"batch": -1}, ["batch=-1", "an integer, 0 or more"]),
        ({"num_heads": 12}, ["num_heads=12", "num_kv_heads=8", "a multiple of num_kv_heads"]),
        ({"num_heads": 4}, ["num_heads=4", "num_kv_heads=8", "a multiple of num_kv_heads"]),
        ({"op": "read", "padding": 2}, ["padding=2", "op=read", "expected 0"]),
        (
            {"op": "read", "kv_input": "fused_qkv"},
            ["kv_input=fused_qkv", "op=read", "expected contiguous"],
        ),
    ],
    ids=str,
)
def test_a_bad_case_is_one_line_that_names_value_and_expected(fields, names):
    with pytest.raises(InputError) as raised:
        Case(**{"op": "write", "seq_len": 1, **fields})
    message = str(raised.value)
    assert len(message.splitlines()) == 1
    assert [name for name in names if name not in message] == []


def test_axes_that_do_not_go_together_are_refused_when_they_meet():
    axes = Axes.parse(["num_heads=8", "num_kv_heads=4,3"])
    with pytest.raises(InputError, match="num_heads=8 with num_kv_heads=3: expected num_heads"):
        axes.expand()


def test_axes_not_named_have_their_default():
    assert Axes.parse([]).expand() == (
        Case(op="write", seq_len=128),
        Case(op="read", seq_len=128),
    )


def test_num_heads_follows_num_kv_heads_unless_it_is_named():
    follows = Axes.parse(["num_kv_heads=1,3,32"]).expand()
    assert {(case.num_heads, case.num_kv_heads) for case in follows} == {(1, 1), (3, 3), (32, 32)}
    named = Axes.parse(["num_kv_heads=1,3", "num_heads=6"]).expand()
    assert {(case.num_heads, case.num_kv_heads) for case in named} == {(6, 1), (6, 3)}


def test_what_only_a_write_has_is_at_its_default_in_reads_and_makes_them_no_more():
    expanded = Axes.parse(["padding=0,4", "kv_input=contiguous,fused_qkv"]).expand()
    writes = [(case.padding, case.kv_input) for case in expanded if case.op == "write"]
    assert writes == [(0, "contiguous"), (0, "fused_qkv"), (4, "contiguous"), (4, "fused_qkv")]
    assert [case for case in expanded if case.op == "read"] == [Case(op="read", seq_len=128)]
    assert WRITE_ONLY == ("padding", "kv_input")


def test_expand_goes_through_the_axes_in_their_order_whatever_order_they_are_given_in():
    texts = ["op=read", "seq_len=2,1", "block_size=8,16"]
    expected = [(2, 8), (2, 16), (1, 8), (1, 16)]
    for given_texts in (texts, texts[::-1]):
        expanded = Axes.parse(given_texts).expand()
        assert [(case.seq_len, case.block_size) for case in expanded] == expected


def test_override_replaces_the_axes_that_it_names_and_adds_those_that_are_new():
    axes = Axes.parse(["op=read", "seq_len=1,2", "batch=3"])
    overridden = axes.override(Axes.parse(["seq_len=9", "seed=5"]))
    assert overridden.expand() == (Case(op="read", seq_len=9, batch=3, seed=5),)
    assert len(axes.expand()) == 2


def test_expand_all_keeps_each_case_once_where_it_first_appears():
    grids = [Axes.parse(["op=read", f"seq_len={values}"]) for values in ("4,2", "1:4:*2", "2,8")]
    assert [case.seq_len for case in expand_all(grids)] == [4, 2, 1, 8]
    assert expand_all([]) == ()


@given(cases())
def test_a_case_is_what_its_fields_as_axes_expand_to(case):
    assert Axes.parse(f"{name}={value}" for name, value in case.fields().items()).expand() == (
        case,
    )
    assert Axes.parse(case.label().split()).expand() == (case,)


def test_every_field_of_a_case_is_an_axis():
    assert list(AXES) == [field.name for field in dataclasses.fields(Case)]


@given(cases())
def test_a_case_survives_json(case):
    assert msgspec.json.decode(msgspec.json.encode(case), type=Case) == case


def test_json_with_a_value_that_no_cache_could_have_is_refused():
    with pytest.raises(InputError, match="block_size=0: expected an integer, 1 or more"):
        msgspec.json.decode(b'{"op": "read", "seq_len": 1, "block_size": 0}', type=Case)


@pytest.mark.parametrize("preset", PRESETS.values(), ids=PRESETS)
def test_a_preset_expands_to_cases_of_both_ops_each_once(preset):
    expanded = preset.cases()
    assert {case.op for case in expanded} == set(OPS)
    assert len(set(expanded)) == len(expanded)
    assert get_preset(preset.name) is preset
    assert len(preset.summary.splitlines()) == 1


def test_overrides_reach_every_grid_of_a_preset():
    expanded = PRESETS["cpu"].cases(Axes.parse(["seq_len=3", "dtype=fp16"]))
    assert {(case.seq_len, case.dtype) for case in expanded} == {(3, "fp16")}
    # Grids that have become alike are joined.
    assert len(set(expanded)) == len(expanded)


def test_an_unknown_preset_is_an_error_with_the_nearest():
    with pytest.raises(InputError, match=r"preset 'smok' \(did you mean 'smoke'\?\); expected one"):
        get_preset("smok")


def test_the_check_grids_reach_every_value_of_every_word_axis():
    expanded = expand_all(CHECK_GRIDS)
    for axis in ("op", "dtype", "lengths", "block_order", "kv_input"):
        assert {getattr(case, axis) for case in expanded} == set(AXES[axis].expected.split(", "))


def test_nbytes_of_one_token_by_hand():
    # K and V, each read and written: 4 x 8 heads x 128 elements x 2 bytes.
    assert Case(op="write", seq_len=1).nbytes == 8192
    assert Case(op="read", seq_len=5, batch=3, dtype="fp32").nbytes == 5 * 3 * 2 * 8192
    assert Case(op="write", seq_len=1, padding=9).nbytes == 8192


@given(cases(op="write"))
def test_nbytes_of_a_write_is_twice_the_bytes_that_change_in_both_pools(case):
    tensors = workload.build(case, torch.device("cpu"))
    places = oracle.token_slots(tensors)
    changed = 0
    for pool, rows in ((tensors.key_pool, tensors.key), (tensors.value_pool, tensors.value)):
        before = np.zeros_like(oracle.bits(pool))
        after = oracle.written(before, np.ones_like(oracle.bits(rows)), places)
        changed += np.count_nonzero(after != before) * pool.element_size()
    assert case.nbytes == 2 * changed


@given(cases(op="read"))
def test_nbytes_of_a_read_is_twice_the_bytes_of_its_result(case):
    tensors = workload.build(case, torch.device("cpu"))
    places = oracle.token_slots(tensors)
    pools = (tensors.key_pool, tensors.value_pool)
    result = sum(oracle.gathered(oracle.bits(pool), places).nbytes for pool in pools)
    assert case.nbytes == 2 * result
