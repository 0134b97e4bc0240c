"""Titles name everything that is unusual, and tables keep kinds of pools apart."""

from collections import Counter

import pytest
from made import result, sweep_rows

from kvbench.analysis.fit import fit_run
from kvbench.analysis.frame import CASE_FIELDS, main_pools, to_frame
from kvbench.cases import DTYPE_BYTES, LAYOUTS, QUANTISED_BYTES
from kvbench.report.setting import describe
from kvbench.report.tables import matrix_table

UNUSUAL = {
    "batch": 3,
    "start_pos": 35,
    "shared_blocks": 2,
    "missing_blocks": 1,
    "table_padding": 4,
    "padding": 5,
    "padding_slots": "absent",
    "kv_input": "head_major",
    "output": "given",
    "block_size": 17,
    "num_kv_heads": 2,
    "head_dim": 96,
    "dtype": "fp16",
    "cache_dtype": "int8",
    "layout": "x-packed",
    "block_order": "churned",
    "slot_dtype": "int32",
    "seed": 77,
}


def shared_of(**fields):
    frame = to_frame([result(start_pos=fields.pop("start_pos", 0), **fields)])
    return {**frame.iloc[0][list(CASE_FIELDS)].to_dict(), "queries_per_kv_head": 1}


@pytest.mark.parametrize("name", UNUSUAL)
def test_a_title_names_every_field_that_is_unusual(name):
    fields = {name: UNUSUAL[name]}
    if name == "num_kv_heads":
        fields["num_heads"] = fields[name]
    if name == "output":
        fields["strategy"] = "read.loop"
    if name == "shared_blocks":
        fields["start_pos"] = 32
    usual = shared_of()
    for left_out in ("op", "seq_len", "num_heads"):
        del usual[left_out]
    unusual = {key: value for key, value in shared_of(**fields).items() if key in usual}
    assert describe(unusual) != describe(usual)
    assert str(UNUSUAL[name]) in describe(unusual)


def test_a_quantised_pool_is_named_with_its_scales():
    shared = shared_of(cache_dtype="fp8_e4m3", kv_scale="per_token", layout="HND")
    for name in ("op", "seq_len", "num_heads", "block_size", "num_kv_heads"):
        del shared[name]
    assert describe(shared) == "bf16, fp8_e4m3 pool scaled per token, batch 1, HND layout"


def test_the_usual_case_in_full():
    shared = shared_of()
    for name in ("op", "seq_len", "num_heads"):
        del shared[name]
    assert describe(shared) == "block size 16, 8 KV heads, bf16, batch 1"


def test_one_head_is_no_heads_and_thousands_have_commas():
    shared = shared_of(num_heads=1, num_kv_heads=1, seq_len=4096)
    for name in ("op", "num_heads"):
        del shared[name]
    said = describe(shared, ("seq_len",))
    assert "1 KV head," in said
    assert "seq_len 4,096" in said


def test_the_main_pools_are_those_of_most_rows_and_of_the_usual_kind_where_that_ties():
    usual = sweep_rows()
    hnd = sweep_rows(layout="HND", seq_lens=(1, 8, 64, 512))
    codes = sweep_rows(cache_dtype="int8", kv_scale="per_token")
    assert set(main_pools(to_frame([*codes, *usual]))["cache_dtype"]) == {"auto"}
    assert set(main_pools(to_frame([*usual, *hnd, *codes]))["layout"]) == {"HND"}
    # Rows of every other kind of case stay together.
    both = sweep_rows(block_sizes=(16, 64), kv_heads=(1, 8))
    assert len(main_pools(to_frame([*both, *codes]))) == len(both)


def test_a_fit_holds_for_one_kind_of_pool():
    usual = sweep_rows(kv_heads=(1, 8, 32))
    slow = sweep_rows(layout="x-packed", seq_lens=(2, 16))
    assert fit_run(to_frame([*usual, *slow]), "write") == fit_run(to_frame(usual), "write")


def test_the_matrix_has_no_blank():
    cells = {
        ("write.a", "NHD", "bf16"): Counter(checked=4),
        ("write.a", "HND", "bf16"): Counter({"no such strides": 2}),
        ("write.a", "MLA", "int8"): Counter({"checked": 1, "incorrect": 2, "no such strides": 3}),
        ("read.b", "NHD", "bf16"): Counter({"another reason": 1}),
    }
    table, reasons = matrix_table(cells)
    assert table.header == ("strategy", "layout", *DTYPE_BYTES, *QUANTISED_BYTES)
    assert [row[:2] for row in table.rows] == [
        (name, layout) for name in ("write.a", "read.b") for layout in LAYOUTS
    ]
    lines = {row[:2]: dict(zip(table.header, row, strict=True)) for row in table.rows}
    assert lines["write.a", "NHD"]["bf16"] == "4 pass"
    assert lines["write.a", "HND"]["bf16"] == "no [1]"
    assert lines["write.a", "MLA"]["int8"] == "1 pass, 2 INCORRECT, no [1]"
    assert lines["read.b", "NHD"]["bf16"] == "no [2]"
    assert lines["read.b", "MLA"]["fp32"] == "not in these cases"
    assert reasons == ("[1] no such strides", "[2] another reason")
    assert all(all(row) for row in table.rows)
