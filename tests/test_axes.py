"""The axes of a sweep, and its presets."""

import dataclasses
import re

import pytest
from drawn import cases
from hypothesis import given
from hypothesis import strategies as st

from kvbench.axes import AXES, Axes, expand_all, override_all
from kvbench.blocks import place
from kvbench.cases import DEFAULTS, LEAST, NEW_TOKENS_ONLY, OF_POOLS, OPS, WORDS, Case
from kvbench.errors import InputError
from kvbench.presets import CHECK_GRIDS, PRESETS, get_preset
from kvbench.workload import required_bytes


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
        ("dtype=float32,fp32", ("fp32",)),
        ("cache_dtype=auto,int8", ("auto", "int8")),
        ("cache_dtype=fp8", ("fp8_e4m3",)),
        ("cache_dtype=fp8_e4m3fn,float8_e4m3fn,fp8_e4m3", ("fp8_e4m3",)),
        ("cache_dtype=float8_e5m2,fp8_e5m2", ("fp8_e5m2",)),
        ("layout=nhd,hnd,mla", ("NHD", "HND", "MLA")),
        (
            "layout=NHD,HND,NHD-KV,HND-KV,x-packed,MLA",
            ("NHD", "HND", "NHD-KV", "HND-KV", "x-packed", "MLA"),
        ),
        ("kv_scale=per_tensor,per_head,per_token", ("per_tensor", "per_head", "per_token")),
        ("kv_input=head_major", ("head_major",)),
        ("block_order=churned", ("churned",)),
        ("padding_slots=absent,negative", ("absent", "negative")),
        ("slot_dtype=int32,int64", ("int32", "int64")),
        ("shared_blocks=0:2:+1", (0, 1, 2)),
        ("rope_dim=32,64", (32, 64)),
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
        (["op=wirte"], ["axis op", "'wirte'", "did you mean 'write'?", "read, step, write"]),
        (
            ["block_order=random"],
            ["axis block_order", "'random'", "churned, sequential, shuffled, strided"],
        ),
        (["lengths=raged"], ["axis lengths", "did you mean 'ragged'?"]),
        (["kv_input=qkv"], ["axis kv_input", "'qkv'", "contiguous, fused_qkv, head_major"]),
        (["cache_dtype=fp16"], ["axis cache_dtype", "'fp16'", "auto, fp8_e4m3, fp8_e5m2, int8"]),
        (["layout=NDH"], ["axis layout", "'NDH'", "did you mean 'NHD'?", "x-packed"]),
        (["kv_scale=per_row"], ["axis kv_scale", "'per_row'", "per_head, per_tensor, per_token"]),
        (["padding_slots=-1"], ["axis padding_slots", "'-1'", "absent, negative"]),
        (["slot_dtype=uint32"], ["axis slot_dtype", "'uint32'", "int32, int64"]),
        (["rope_dim=0"], ["rope_dim=0", "an integer, 1 or more"]),
        (["shared_blocks=-1"], ["shared_blocks=-1", "an integer, 0 or more"]),
        (["missing_blocks=-1"], ["missing_blocks=-1", "an integer, 0 or more"]),
        (["table_padding=x"], ["axis table_padding", "'x'", "not an integer"]),
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


def test_axes_that_do_not_go_together_are_refused_when_they_meet():
    axes = Axes.parse(["num_heads=8", "num_kv_heads=4,3"])
    with pytest.raises(InputError, match="num_heads=8 with num_kv_heads=3: expected num_heads"):
        axes.expand()


def test_axes_not_named_have_their_default():
    assert Axes.parse([]).expand() == (
        Case(op="write", seq_len=128),
        Case(op="read", seq_len=128),
        Case(op="attend", seq_len=128),
        Case(op="index", seq_len=128),
        Case(op="step", seq_len=128),
    )


def test_num_heads_follows_num_kv_heads_unless_it_is_named():
    follows = Axes.parse(["op=write,read", "num_kv_heads=1,3,32"]).expand()
    assert {(case.num_heads, case.num_kv_heads) for case in follows} == {(1, 1), (3, 3), (32, 32)}
    named = Axes.parse(["op=write,read", "num_kv_heads=1,3", "num_heads=6"]).expand()
    assert {(case.num_heads, case.num_kv_heads) for case in named} == {(6, 1), (6, 3)}


def test_what_only_a_write_has_is_at_its_default_in_reads_and_makes_them_no_more():
    texts = [
        "missing_blocks=0,1",
        "padding=0,4",
        "padding_slots=negative,absent",
        "kv_input=contiguous,fused_qkv",
    ]
    expanded = Axes.parse(texts).expand()
    fields = ("missing_blocks", "padding", "padding_slots", "kv_input")
    writes = {tuple(getattr(case, f) for f in fields) for case in expanded if case.op == "write"}
    assert len(writes) == 16
    assert [case for case in expanded if case.op == "read"] == [Case(op="read", seq_len=128)]
    assert {*NEW_TOKENS_ONLY, "kv_input"} == set(fields)
    indices = [case for case in expanded if case.op == "index"]
    assert len(indices) == 8
    assert {case.kv_input for case in indices} == {"contiguous"}


def test_what_k_and_v_are_like_makes_no_more_indices():
    texts = ["op=index", "seq_len=3", "layout=HND,MLA,x-packed", "head_dim=80,128", "dtype=fp32"]
    texts += ["num_kv_heads=1,8", "num_heads=16", "rope_dim=32", "cache_dtype=int8,auto"]
    texts += ["kv_scale=per_head", "kv_input=fused_qkv", "output=given"]
    assert Axes.parse(texts).expand() == (Case(op="index", seq_len=3),)
    assert {text.partition("=")[0] for text in texts[2:]} == set(OF_POOLS)


def test_what_only_a_read_has_is_at_its_default_in_writes():
    expanded = Axes.parse(["output=allocated,given", "seq_len=2"]).expand()
    assert [(case.op, case.output) for case in expanded] == [
        ("write", "allocated"),
        ("read", "allocated"),
        ("read", "given"),
        ("attend", "allocated"),
        ("index", "allocated"),
        ("step", "allocated"),
    ]
    assert expanded[2].label() == "op=read seq_len=2 output=given"


def test_scales_are_at_their_default_without_codes_and_make_no_more_cases():
    expanded = Axes.parse(
        ["op=read", "cache_dtype=auto,int8", "kv_scale=per_tensor,per_head,per_token"]
    ).expand()
    assert [(case.cache_dtype, case.kv_scale) for case in expanded] == [
        ("auto", "per_tensor"),
        ("int8", "per_tensor"),
        ("int8", "per_head"),
        ("int8", "per_token"),
    ]


def test_rope_dim_is_at_its_default_outside_mla_and_makes_no_more_cases():
    expanded = Axes.parse(["op=read", "layout=HND,MLA", "rope_dim=32,64"]).expand()
    assert [(case.layout, case.rope_dim) for case in expanded] == [
        ("HND", 64),
        ("MLA", 32),
        ("MLA", 64),
    ]


@pytest.mark.parametrize(
    ("named", "shape"),
    [
        ([], (1, 1, 576, 64)),
        (["head_dim=320"], (1, 1, 320, 64)),
        (["num_heads=128"], (128, 1, 576, 64)),
        (["num_kv_heads=1", "rope_dim=32"], (1, 1, 576, 32)),
    ],
    ids=str,
)
def test_an_mla_pool_has_one_head_of_512_and_64_unless_it_is_named(named, shape):
    (case,) = Axes.parse(["op=read", "layout=MLA", *named]).expand()
    assert (case.num_heads, case.num_kv_heads, case.head_dim, case.rope_dim) == shape


def test_the_shape_of_mla_is_not_that_of_the_other_layouts_in_a_sweep():
    expanded = Axes.parse(["op=read", "layout=MLA,NHD"]).expand()
    shapes = [(c.layout, c.num_heads, c.num_kv_heads, c.head_dim) for c in expanded]
    assert shapes == [("MLA", 1, 1, 576), ("NHD", 8, 8, 128)]


def test_a_number_of_heads_that_is_named_stays_for_mla_to_refuse():
    with pytest.raises(InputError, match="num_kv_heads=8 with layout=MLA: expected 1"):
        Axes.parse(["layout=NHD,MLA", "num_kv_heads=8"]).expand()


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


def test_expand_all_joins_grids_that_differ_in_what_has_no_meaning():
    grids = [Axes.parse(["op=read", f"padding={padding}"]) for padding in (0, 3)]
    assert expand_all(grids) == (Case(op="read", seq_len=128),)


@given(cases())
def test_a_case_is_what_its_fields_as_axes_expand_to(case):
    assert Axes.parse(f"{name}={value}" for name, value in case.fields().items()).expand() == (
        case,
    )
    assert Axes.parse(case.label().split()).expand() == (case,)


def test_every_field_of_a_case_is_an_axis_of_numbers_or_of_words():
    assert list(AXES) == [field.name for field in dataclasses.fields(Case)]
    assert set(AXES) == set(LEAST) ^ set(WORDS) == set(DEFAULTS)


def test_an_axis_says_its_default_and_what_it_expects():
    said = {name: (axis.default, axis.expected) for name, axis in AXES.items()}
    assert said["cache_dtype"] == ("auto", "auto, fp8_e4m3, fp8_e5m2, int8")
    assert said["op"] == ("write,read,attend,index,step", "write, read, attend, index, step")
    assert said["num_heads"][0] == "as num_kv_heads"
    assert said["rope_dim"] == ("64", "integers from 1, as 1,8 or 1:64:*2")


@pytest.mark.parametrize("preset", PRESETS.values(), ids=PRESETS)
def test_a_preset_expands_to_cases_of_all_ops_each_once(preset):
    expanded = preset.cases()
    assert {case.op for case in expanded} == set(OPS)
    assert len(set(expanded)) == len(expanded)
    assert get_preset(preset.name) is preset
    assert len(preset.summary.splitlines()) == 1


def test_overrides_reach_every_grid_of_a_preset():
    expanded = PRESETS["cpu"].cases(Axes.parse(["seq_len=3", "dtype=fp16"]))
    assert {(case.seq_len, case.dtype) for case in expanded if case.has_pools} == {(3, "fp16")}
    assert {case.seq_len for case in expanded if not case.has_pools} == {3}
    # Grids that have become alike are joined.
    assert len(set(expanded)) == len(expanded)


@pytest.mark.parametrize("ops", [("write",), ("index",), ("index", "read")])
def test_of_a_preset_s_ops_some_may_be_taken_and_each_keeps_the_axes_that_it_has(ops):
    for preset in PRESETS.values():
        some = preset.cases(Axes.parse([f"op={','.join(ops)}"]))
        assert set(some) == {case for case in preset.cases() if case.op in ops}


def test_an_op_that_no_grid_has_is_refused():
    grids = [Axes.parse(["op=read"]), Axes.parse(["op=read,write", "batch=2"])]
    with pytest.raises(InputError, match=r"axis op=index: expected one of read, which the sweep"):
        override_all(grids, Axes.parse(["op=index"]))
    assert override_all(grids, Axes.parse(["op=index,write"])) == (
        Case(op="write", seq_len=128, batch=2),
    )


def test_an_unknown_preset_is_an_error_with_the_nearest():
    with pytest.raises(InputError, match=r"preset 'smok' \(did you mean 'smoke'\?\); expected one"):
        get_preset("smok")


def test_the_check_grids_reach_every_value_of_every_word_axis():
    expanded = expand_all(CHECK_GRIDS)
    for axis, words in WORDS.items():
        assert {getattr(case, axis) for case in expanded} == set(words)


# Axes over grids, and axes that do nothing.


@pytest.mark.parametrize(
    ("texts", "named"),
    [
        (["kv_scale=per_head"], "axis kv_scale=per_head has no effect with cache_dtype=auto"),
        (["rope_dim=8,16"], "axis rope_dim=8,16 has no effect with layout=NHD"),
        (["op=read", "padding=3"], "axis padding=3 has no effect with op=read"),
    ],
)
def test_an_axis_that_means_nothing_in_any_case_is_refused(texts, named):
    axes = Axes.parse(texts)
    with pytest.raises(InputError, match=re.escape(named)):
        axes.refuse_without_effect(axes.expand())


def test_an_axis_that_means_something_in_one_case_is_taken():
    for texts in (["padding=3"], ["kv_scale=per_head", "cache_dtype=auto,int8"], ["rope_dim=64"]):
        axes = Axes.parse(texts)
        axes.refuse_without_effect(axes.expand())


def test_points_of_a_grid_that_do_not_go_with_an_override_are_left_out():
    grids = [
        Axes.parse(["op=write,read", t, "num_kv_heads=1,8"])
        for t in ("head_dim=16,576", "head_dim=33")
    ]
    found = override_all(grids, Axes.parse(["layout=MLA"]))
    # 16 has no room for a k_pe of 64, 33 neither, and MLA has one head.
    assert {(case.head_dim, case.num_kv_heads) for case in found} == {(576, 1)}
    with pytest.raises(InputError, match="head_dim=33 with layout=MLA"):
        override_all(grids[1:], Axes.parse(["layout=MLA", "num_kv_heads=1"]))
    assert override_all(grids, Axes(())) == expand_all(grids)


def test_no_number_is_beyond_any_machine():
    with pytest.raises(InputError, match=r"seq_len=9{30}: expected \d+ or less"):
        Axes.parse(["seq_len=" + 30 * "9"])


@given(cases())
def test_the_least_bytes_of_a_case_are_no_more_than_it_needs(case):
    assert case.least_bytes <= required_bytes(case, place(case)) + 40 * (
        sum(len(table) + 2 for table in place(case).block_tables)
    )
