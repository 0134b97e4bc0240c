"""Case: the values it takes, its sequences, and what it moves."""

import dataclasses
import itertools

import msgspec
import pytest
import torch
from drawn import KV_OPS, cases
from hypothesis import given
from hypothesis import strategies as st

from kvbench import workload
from kvbench.blocks import place
from kvbench.cases import (
    ATTEND_ONLY,
    CACHE_DTYPES,
    DEFAULTS,
    LAYOUTS,
    LEAST,
    LENGTHS,
    OF_POOLS,
    OPS,
    WORDS,
    Case,
    without_meaning,
)
from kvbench.errors import InputError

MLA = {"layout": "MLA", "num_heads": 1, "num_kv_heads": 1, "head_dim": 576}


@pytest.mark.parametrize(
    ("fields", "names"),
    [
        ({"op": "attended"}, ["op 'attended'", "read, step, write"]),
        ({"dtype": "fp8"}, ["dtype 'fp8'", "bf16, fp16, fp32"]),
        ({"dtype": "float16"}, ["dtype 'float16'", "bf16, fp16, fp32"]),
        ({"block_order": "strieded"}, ["block_order", "did you mean 'strided'?"]),
        ({"block_order": "churn"}, ["block_order", "did you mean 'churned'?"]),
        ({"lengths": "long"}, ["lengths 'long'", "equal, holes, ragged"]),
        ({"kv_input": "q"}, ["kv_input 'q'", "contiguous, fused_qkv, head_major"]),
        ({"layout": "nhd"}, ["layout 'nhd'", "HND, HND-KV, MLA, NHD, NHD-KV, x-packed"]),
        ({"layout": "HND_KV"}, ["layout", "did you mean 'HND-KV'?"]),
        ({"cache_dtype": "fp8"}, ["cache_dtype 'fp8'", "auto, fp8_e4m3, fp8_e5m2, int8"]),
        ({"cache_dtype": "bf16"}, ["cache_dtype 'bf16'", "auto, fp8_e4m3, fp8_e5m2, int8"]),
        (
            {"cache_dtype": "int8", "kv_scale": "per_row"},
            ["kv_scale 'per_row'", "per_head, per_tensor, per_token"],
        ),
        ({"padding_slots": "none"}, ["padding_slots 'none'", "absent, negative"]),
        ({"slot_dtype": "int16"}, ["slot_dtype 'int16'", "int32, int64"]),
        ({"seq_len": -1}, ["seq_len=-1", "an integer, 0 or more"]),
        ({"seq_len": 2.0}, ["seq_len=2.0", "an integer"]),
        ({"seq_len": True}, ["seq_len=True", "an integer"]),
        ({"seq_len": "4"}, ["seq_len='4'", "an integer"]),
        ({"shared_blocks": -1}, ["shared_blocks=-1", "an integer, 0 or more"]),
        ({"missing_blocks": -2}, ["missing_blocks=-2", "an integer, 0 or more"]),
        ({"missing_blocks": 1.5}, ["missing_blocks=1.5", "an integer, 0 or more"]),
        ({"table_padding": -1}, ["table_padding=-1", "an integer, 0 or more"]),
        ({"block_size": 0}, ["block_size=0", "an integer, 1 or more"]),
        ({"head_dim": 0}, ["head_dim=0", "an integer, 1 or more"]),
        ({"num_kv_heads": 0}, ["num_kv_heads=0", "an integer, 1 or more"]),
        ({**MLA, "rope_dim": 0}, ["rope_dim=0", "an integer, 1 or more"]),
        ({"batch": 2**20 + 1}, ["batch=1048577", "1048576 or less"]),
        ({"batch": -1}, ["batch=-1", "an integer, 0 or more"]),
        ({"num_heads": 12}, ["num_heads=12", "num_kv_heads=8", "a multiple of num_kv_heads"]),
        ({"num_heads": 4}, ["num_heads=4", "num_kv_heads=8", "a multiple of num_kv_heads"]),
        # What has no meaning where the case is.
        ({"op": "read", "padding": 2}, ["padding=2", "op=read", "expected 0"]),
        ({"op": "read", "missing_blocks": 1}, ["missing_blocks=1", "op=read", "expected 0"]),
        (
            {"op": "read", "padding_slots": "absent"},
            ["padding_slots=absent", "op=read", "expected negative"],
        ),
        (
            {"op": "read", "kv_input": "fused_qkv"},
            ["kv_input=fused_qkv", "op=read", "expected contiguous"],
        ),
        ({"output": "new"}, ["output 'new'", "allocated, given"]),
        ({"op": "write", "output": "given"}, ["output=given", "op=write", "expected allocated"]),
        ({"op": "index", "head_dim": 64}, ["head_dim=64", "op=index", "expected 128"]),
        ({"op": "index", "layout": "HND"}, ["layout=HND", "op=index", "expected NHD"]),
        ({"op": "index", "cache_dtype": "int8"}, ["cache_dtype=int8", "op=index", "expected auto"]),
        ({"op": "index", "shared_blocks": 2, "start_pos": 31}, ["op=index", "start_pos of 32"]),
        ({"rope_dim": 32}, ["rope_dim=32", "layout=NHD", "expected 64"]),
        ({"layout": "HND-KV", "rope_dim": 65}, ["rope_dim=65", "layout=HND-KV", "expected 64"]),
        ({"kv_scale": "per_head"}, ["kv_scale=per_head", "cache_dtype=auto", "per_tensor"]),
        ({"kv_scale": "per_token"}, ["kv_scale=per_token", "cache_dtype=auto", "per_tensor"]),
        # What a layout can't hold.
        (
            {"layout": "x-packed", "dtype": "fp32", "head_dim": 6},
            ["head_dim=6", "layout=x-packed", "a multiple of 4,"],
        ),
        (
            {"layout": "x-packed", "dtype": "fp16", "head_dim": 12},
            ["head_dim=12", "layout=x-packed", "a multiple of 8,"],
        ),
        (
            {"layout": "x-packed", "dtype": "bf16", "head_dim": 4},
            ["head_dim=4", "layout=x-packed", "a multiple of 8,"],
        ),
        *(
            (
                {"layout": "x-packed", "dtype": "fp32", "cache_dtype": codes, "head_dim": 24},
                ["head_dim=24", "layout=x-packed", "a multiple of 16,"],
            )
            for codes in ("fp8_e4m3", "fp8_e5m2", "int8")
        ),
        ({"layout": "MLA"}, ["num_kv_heads=8", "layout=MLA", "expected 1"]),
        (
            {**MLA, "num_heads": 2, "num_kv_heads": 2},
            ["num_kv_heads=2", "layout=MLA", "expected 1"],
        ),
        ({**MLA, "head_dim": 64}, ["head_dim=64", "layout=MLA", "rope_dim=64", "more than"]),
        (
            {**MLA, "head_dim": 100, "rope_dim": 128},
            ["head_dim=100", "layout=MLA", "rope_dim=128", "more than rope_dim"],
        ),
        ({"op": "attend", "soft_cap": 65_537}, ["soft_cap=65537", "expected 65536 or less"]),
        # A write into what sequences share.
        (
            {"shared_blocks": 1},
            ["shared_blocks=1", "op=write", "start_pos=0", "start_pos of 16 or more"],
        ),
        (
            {"shared_blocks": 3, "block_size": 8, "start_pos": 23},
            ["shared_blocks=3", "op=write", "start_pos=23", "start_pos of 24 or more"],
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


@pytest.mark.parametrize(
    "fields",
    [
        {"layout": "x-packed", "dtype": "fp32", "head_dim": 4},
        {"layout": "x-packed", "dtype": "fp16", "head_dim": 8},
        {"layout": "x-packed", "dtype": "bf16", "head_dim": 24},
        {"layout": "x-packed", "dtype": "fp32", "cache_dtype": "int8", "head_dim": 16},
        {**MLA, "head_dim": 65},
        {**MLA, "rope_dim": 575},
        {**MLA, "num_heads": 128},
        {"shared_blocks": 3, "block_size": 8, "start_pos": 24},
        {"cache_dtype": "fp8_e5m2", "kv_scale": "per_token"},
        {"op": "attend", "soft_cap": 65_536},
        # A read may begin in what is shared.
        {"op": "read", "shared_blocks": 3},
    ],
    ids=str,
)
def test_a_case_at_the_edge_of_what_is_valid_is_taken(fields):
    fields = {"op": "write", "seq_len": 1, **fields}
    taken = Case(**fields).fields()
    assert {name: taken[name] for name in fields} == fields


@given(
    st.fixed_dictionaries(
        {},
        optional={name: st.sampled_from((*words, "other")) for name, words in WORDS.items()}
        | {name: st.integers(-2, 70) for name in LEAST},
    )
)
def test_any_fields_are_a_case_or_a_one_line_error(fields):
    try:
        case = Case(**{"op": "read", "seq_len": 1, **fields})
    except InputError as error:
        assert len(str(error).splitlines()) == 1  # noqa: PT017 - both outcomes are right
    else:
        assert "other" not in case.fields().values()
        assert all(getattr(case, name) >= least for name, least in LEAST.items())


@pytest.mark.parametrize("cache_dtype", CACHE_DTYPES)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("op", OPS)
def test_a_field_without_meaning_names_what_takes_it_away(op, layout, cache_dtype):
    reasons = without_meaning(op, layout, cache_dtype)
    expected = {}
    if op == "index":  # whatever else there is to say, no K and V have a layout here
        expected = dict.fromkeys(OF_POOLS, "op=index")
    if op in {"read", "attend", "step"}:
        expected |= dict.fromkeys(("missing_blocks", "padding", "padding_slots"), f"op={op}")
    if op in {"read", "step"}:
        expected["kv_input"] = f"op={op}"
    if op not in {"read", "index"}:
        expected["output"] = f"op={op}"
    if op in {"attend", "step"}:
        expected["start_pos"] = f"op={op}"
    if op == "step":
        expected |= {"shared_blocks": "op=step", "cache_dtype": "op=step"}
    else:
        expected["num_layers"] = f"op={op}"
    if op != "attend":
        expected |= dict.fromkeys(ATTEND_ONLY, f"op={op}")
    if layout != "MLA":
        expected["rope_dim"] = f"layout={layout}"
    if cache_dtype == "auto" or op == "step":
        expected["kv_scale"] = "op=step" if op == "step" else "cache_dtype=auto"
    assert {name: why.partition(" ")[0] for name, why in reasons.items()} == expected


@given(cases())
def test_a_case_survives_json(case):
    assert msgspec.json.decode(msgspec.json.encode(case), type=Case) == case


def test_json_of_before_a_field_was_there_has_its_default():
    older = msgspec.json.encode({"op": "read", "seq_len": 1})
    assert msgspec.json.decode(older, type=Case).output == "allocated"


def test_json_with_a_value_that_no_cache_could_have_is_refused():
    with pytest.raises(InputError, match="block_size=0: expected an integer, 1 or more"):
        msgspec.json.decode(b'{"op": "read", "seq_len": 1, "block_size": 0}', type=Case)


def test_defaults_are_those_of_a_case():
    assert Case(op="read", seq_len=3).fields() == {**DEFAULTS, "op": "read", "seq_len": 3}
    assert DEFAULTS["op"] is DEFAULTS["seq_len"] is dataclasses.MISSING


# Sequences.

WITH_HOLES = tuple(op for op in OPS if op != "step")


@given(cases(ops=WITH_HOLES), st.sampled_from(LENGTHS))
def test_lengths_add_up_to_batch_times_seq_len_whatever_their_kind(case, lengths):
    starts, drawn = dataclasses.replace(case, lengths=lengths).sequences()
    assert sum(drawn) == case.batch * case.seq_len == case.tokens
    assert all(length >= 0 for length in drawn)
    assert len(starts) == len(drawn) == case.batch


@given(cases())
def test_the_first_sequence_starts_at_start_pos_and_the_others_up_to_two_blocks_later(case):
    starts, _ = case.sequences()
    assert starts[:1] == [case.start_pos][: case.batch]
    latest = case.start_pos + (0 if case.lengths == "equal" else 2 * case.block_size)
    assert all(case.start_pos <= start <= latest for start in starts)


def test_equal_sequences_all_are_as_the_case_says():
    case = Case(op="read", seq_len=7, batch=3, start_pos=5, lengths="equal")
    assert case.sequences() == ([5, 5, 5], [7, 7, 7])


def test_ragged_sequences_have_starts_and_lengths_of_their_own():
    starts, lengths = Case(op="read", seq_len=40, batch=8, lengths="ragged").sequences()
    assert len(set(starts)) > 4
    assert len(set(lengths)) > 4


@given(st.integers(1, 40), st.integers(0, 8), st.integers(0, 99))
def test_no_ragged_sequence_is_empty(seq_len, batch, seed):
    _, lengths = Case(op="read", seq_len=seq_len, batch=batch, seed=seed).sequences()
    assert all(length > 0 for length in lengths)


@given(st.integers(0, 40), st.integers(0, 8), st.integers(0, 99))
def test_of_holes_every_second_sequence_is_empty(seq_len, batch, seed):
    case = Case(op="read", seq_len=seq_len, batch=batch, seed=seed, lengths="holes")
    _, lengths = case.sequences()
    assert lengths[1::2] == [0] * (batch // 2)
    assert lengths[: batch // 2 * 2 : 2] == [2 * seq_len] * (batch // 2)
    assert lengths[batch // 2 * 2 :] == [seq_len] * (batch % 2)


@given(cases(ops=WITH_HOLES))
def test_a_batch_of_one_is_the_same_in_all_kinds_of_lengths(case):
    one = dataclasses.replace(case, batch=1)
    kinds = [dataclasses.replace(one, lengths=lengths).sequences() for lengths in LENGTHS]
    assert kinds == [([case.start_pos], [case.seq_len])] * len(LENGTHS)


def test_sequences_are_decided_by_the_seed_alone_in_any_process():
    # Pinned: a row of a stored run must be rebuilt years later as it was.
    case = Case(op="read", seq_len=5, batch=3, start_pos=2, block_size=4, seed=1)
    assert case.sequences() == ([2, 4, 3], [7, 3, 5])
    other = [dataclasses.replace(case, seed=seed, seq_len=90).sequences() for seed in range(5)]
    for one, another in itertools.combinations(other, 2):
        assert one[0] != another[0]
        assert one[1] != another[1]


# Sizes, and what one call moves.


@pytest.mark.parametrize(
    ("fields", "pack"),
    [
        ({"dtype": "fp32"}, 4),
        ({"dtype": "fp16"}, 8),
        ({"dtype": "bf16"}, 8),
        ({"dtype": "fp32", "cache_dtype": "fp8_e4m3"}, 16),
        ({"cache_dtype": "fp8_e5m2"}, 16),
        ({"cache_dtype": "int8"}, 16),
    ],
    ids=str,
)
def test_a_vector_of_x_packed_k_is_16_bytes(fields, pack):
    case = Case(op="read", seq_len=1, layout="x-packed", **fields)
    assert case.pack == pack
    assert case.cache_element_bytes * pack == 16


@pytest.mark.parametrize(
    ("fields", "nbytes"),
    [
        # K and V, each read and written: 4 x 8 heads x 128 elements x 2 bytes.
        ({"op": "write", "seq_len": 1}, 8192),
        ({"op": "write", "seq_len": 1, "padding": 9, "table_padding": 3}, 8192),
        ({"op": "read", "seq_len": 5, "batch": 3, "dtype": "fp32"}, 5 * 3 * 2 * 8192),
        # K and V of 2 bytes outside and 1 inside: 2 x 8 x 128 x (2 + 1).
        ({"op": "read", "seq_len": 1, "cache_dtype": "int8", "kv_scale": "per_head"}, 6144),
        # As above, with one scale of 4 bytes for K and one for V.
        (
            {"op": "write", "seq_len": 1, "cache_dtype": "fp8_e4m3", "kv_scale": "per_token"},
            6144 + 8,
        ),
        (
            {"op": "read", "seq_len": 3, "batch": 2, "cache_dtype": "fp8_e5m2"}
            | {"kv_scale": "per_token", "dtype": "fp32"},
            6 * (2 * 8 * 128 * 5 + 8),
        ),
        # One latent row of 576, not one for K and another for V.
        ({"op": "write", "seq_len": 1, **MLA}, 576 * 2 * 2),
        ({"op": "read", "seq_len": 2, **MLA, "num_heads": 128, "rope_dim": 32}, 2 * 576 * 2 * 2),
        ({"op": "read", "seq_len": 1, **MLA, "cache_dtype": "fp8_e4m3"}, 576 * 3),
        (
            {"op": "write", "seq_len": 1, **MLA, "cache_dtype": "fp8_e4m3"}
            | {"kv_scale": "per_token"},
            576 * 3 + 8,
        ),
        # Of 40 tokens from position 0 the 16 of the first block, or all, are written nowhere.
        ({"op": "write", "seq_len": 40, "missing_blocks": 1}, 24 * 8192),
        ({"op": "write", "seq_len": 40, "missing_blocks": 3}, 0),
        # From position 17 on, the block that is missing has 15 of the tokens.
        ({"op": "write", "seq_len": 40, "start_pos": 17, "missing_blocks": 1}, 25 * 8192),
        # Three read 40 tokens each, 32 of them in the same two blocks.
        (
            {"op": "read", "seq_len": 40, "batch": 3, "lengths": "equal", "shared_blocks": 2},
            120 * 4096 + (32 + 3 * 8) * 4096,
        ),
        # An index of 3 tokens from position 15 on: 3 slots, and the entries of blocks 0 and 1.
        ({"op": "index", "seq_len": 3, "start_pos": 15}, 5 * 8),
        ({"op": "index", "seq_len": 3, "start_pos": 15, "slot_dtype": "int32"}, 5 * 4),
        # Padding is written if it is mapped; an entry that says that there is no block is read.
        ({"op": "index", "seq_len": 1, "padding": 7, "missing_blocks": 1}, 9 * 8),
        ({"op": "index", "seq_len": 1, "padding": 7, "padding_slots": "absent"}, 2 * 8),
    ],
    ids=str,
)
def test_nbytes_by_hand(fields, nbytes):
    assert Case(**fields).nbytes == nbytes


def slots_of_tokens(case: Case) -> list[tuple[int, int]]:
    """Block and slot of every token that has them."""
    at = place(case)
    return [
        (table[position // case.block_size], position % case.block_size)
        for table, start, length in zip(at.block_tables, at.starts, at.lengths, strict=True)
        for position in range(start, start + length)
        if table[position // case.block_size] >= 0
    ]


def check_moved(case: Case) -> None:
    stored = slots_of_tokens(case)
    assert case.moved() == (len(stored), len(set(stored)))


@given(cases(ops=KV_OPS))
def test_what_a_case_moves_is_what_counting_its_slots_gives(case):
    check_moved(case)


@given(
    st.integers(0, 12), st.integers(2, 8), st.integers(0, 30), st.integers(0, 9), st.integers(0, 99)
)
def test_what_sequences_share_is_read_once(seq_len, batch, shared, start_pos, seed):
    # Short sequences that begin anywhere in a long prefix, or behind it: some end in one another.
    check_moved(
        Case(
            op="read",
            seq_len=seq_len,
            batch=batch,
            shared_blocks=shared,
            start_pos=start_pos,
            block_size=5,
            seed=seed,
        )
    )


@given(cases(op="write"), st.integers(1, 20), st.integers(0, 8), st.integers(1, 8))
def test_what_has_no_block_is_not_written(case, missing, more, block_size):
    check_moved(
        dataclasses.replace(
            case,
            missing_blocks=missing,
            block_size=block_size,
            start_pos=case.shared_blocks * block_size + more,
        )
    )


@given(cases(ops=KV_OPS))
def test_nbytes_counts_the_bytes_of_every_row_and_slot_that_moves(case):
    tensors = workload.build(dataclasses.replace(case, batch=0), torch.device("cpu"))
    slot = [tensors.key_pool[0, 0], tensors.value_pool[0, 0]]
    row_bytes = sum(part.numel() * tensors.dtype.itemsize for part in slot)
    slot_bytes = sum(part.nbytes for part in slot)
    if case.kv_scale == "per_token":
        slot_bytes += tensors.key_scale[0, 0].nbytes + tensors.value_scale[0, 0].nbytes
    assert (case.row_bytes, case.slot_bytes) == (row_bytes, slot_bytes)
    stored = slots_of_tokens(case)
    assert case.nbytes == len(stored) * row_bytes + len(set(stored)) * slot_bytes


@given(cases(op="index"))
def test_an_index_moves_its_slots_and_the_table_entries_of_its_tokens(case):
    tensors = workload.build(case, torch.device("cpu"))
    entries = {
        (sequence, position // case.block_size)
        for sequence, (start, length) in enumerate(
            zip(tensors.starts, tensors.lengths, strict=True)
        )
        for position in range(start, start + length)
    }
    slots = tensors.slot_mapping()
    assert case.nbytes == slots.nbytes + len(entries) * slots.itemsize
    assert case.moved() == (0, 0)
    assert sum(tensor.nbytes for tensor in tensors.tensors().values()) == 0
