"""Strategies under torch.compile: right in chosen cases, and compiled once for all sizes.

Each kind of heads, dtypes and strides is compiled anew, in a second or more: these are a few cases
of each kind of graph instead of drawn ones. `kvbench check` has the whole grid.
"""

import shutil
import sysconfig

import pytest
import torch
from torch._dynamo.utils import counters

from kvbench.cases import Case
from kvbench.kernels import compiled
from kvbench.kernels.compiled import Compiled
from kvbench.strategies import registry
from kvbench.sweep.checking import check_case
from kvbench.sweep.launches import predicted

CPU = torch.device("cpu")
ROWS = {"num_heads": 2, "num_kv_heads": 2, "head_dim": 16, "block_size": 4}
LATENT = {"layout": "MLA", "num_kv_heads": 1, "head_dim": 80, "block_size": 4}

pytestmark = pytest.mark.skipif(
    compiled.unsupported(CPU) is not None, reason=str(compiled.unsupported(CPU))
)


def graphs():
    """Graphs compiled by this process so far."""
    return counters["stats"]["unique_graphs"]


def is_right(case):
    return check_case(case, registry.get(f"{case.op}.compile"), CPU) == ("checked", "")


CHOSEN = {
    "tokens without a block, padding": {"batch": 3, "missing_blocks": 1, "padding": 2, **ROWS},
    "slices of one projection": {"kv_input": "fused_qkv", "padding": 3, "dtype": "fp32", **ROWS},
    "heads outermost": {"kv_input": "head_major", "padding": 3, "slot_dtype": "int32", **ROWS},
    "latent rows": {"kv_input": "fused_qkv", **LATENT},
    "codes, a scale a head": {"cache_dtype": "int8", "kv_scale": "per_head", **ROWS},
    "codes, a scale a token": {"cache_dtype": "fp8_e4m3", "kv_scale": "per_token", **ROWS},
}
OF_WRITES = ("missing_blocks", "padding", "kv_input")


@pytest.mark.parametrize("fields", CHOSEN.values(), ids=CHOSEN)
def test_a_compiled_write_and_a_compiled_read_are_right_and_compile_once(fields):
    of_reads = {name: value for name, value in fields.items() if name not in OF_WRITES}
    for op, own in (("write", fields), ("read", of_reads)):
        assert is_right(Case(op=op, seq_len=7, start_pos=5, **own))
        before = graphs()
        assert is_right(Case(op=op, seq_len=40, start_pos=6, **own))
        if op == "read":
            assert is_right(Case(op=op, seq_len=23, output="given", **own))
        assert graphs() == before


@pytest.mark.parametrize("op", ["write", "read"])
def test_no_size_is_compiled_for_but_one_token(op):
    # A head size of its own: nothing of it was compiled before.
    shape = {"num_heads": 3, "num_kv_heads": 3, "head_dim": 24}
    before = graphs()
    for tokens, block_size, batch in ((5, 4, 1), (8, 4, 1), (300, 16, 1), (2, 8, 1), (3, 16, 9)):
        assert is_right(Case(op=op, seq_len=tokens, block_size=block_size, batch=batch, **shape))
    assert graphs() == before + 1
    for block_size in (4, 16):
        assert is_right(Case(op=op, seq_len=1, block_size=block_size, **shape))
    assert graphs() == before + 2
    assert is_right(Case(op=op, seq_len=0, **shape))
    # fp16 and bf16 are moved alike, as integers of two bytes.
    assert is_right(Case(op=op, seq_len=9, dtype="fp16", **shape))
    assert graphs() == before + 2


def test_a_prediction_is_not_made_and_spoils_nothing():
    # PyTorch never compiles a function that it was refused once.
    case = Case(op="write", seq_len=3, num_kv_heads=1, num_heads=1, head_dim=8)
    strategy = registry.get("write.compile")
    for phase in ("run", "prepare"):
        assert predicted(strategy, case, phase) is None
    assert is_right(case)
    assert predicted(strategy, case, "run") is None
    assert is_right(case)


def test_too_many_kinds_are_an_error_and_never_run_uncompiled(monkeypatch):
    monkeypatch.setattr(compiled, "_MOST_VARIANTS", 1)

    def double(rows):
        return rows * 2

    doubled = Compiled(double)
    with torch._dynamo.config.patch(recompile_limit=1):
        doubled.ready(torch.ones(3, 2, 2))
        assert doubled(torch.ones(5, 2, 2)).sum() == 40
        with pytest.raises(Exception, match="Hard failure due to fullgraph=True"):
            doubled.ready(torch.ones(3, 2, 4))


def test_operands_are_left_alone_until_they_are_called_with():
    slots, pool, rows = torch.arange(5) + 2, torch.zeros(9, 2, 4), torch.ones(5, 2, 4)

    def put(rows, pool, slots):
        pool[slots] = rows

    stored = Compiled(put)
    stored.ready(rows, pool, slots)
    assert pool.eq(0).all()
    stored(rows, pool, slots)
    assert pool.sum(dim=(1, 2)).tolist() == [0, 0, 8, 8, 8, 8, 8, 0, 0]


def test_without_a_compiler_it_is_unsupported_and_says_what_is_missing(monkeypatch, tmp_path):
    monkeypatch.setattr(sysconfig, "get_path", lambda _: str(tmp_path))
    assert "Python.h" in compiled.unsupported(CPU)
    monkeypatch.setenv("CXX", "no-such-compiler")
    monkeypatch.setattr(shutil, "which", {"g++": "g++"}.get)
    reason = "torch.compile: there is no C++ compiler 'no-such-compiler' (CXX names another)"
    assert compiled.unsupported(CPU) == reason
    case = Case(op="read", seq_len=1)
    assert check_case(case, registry.get("read.compile"), CPU) == ("unsupported", reason)


def test_a_layout_without_flat_slots_is_refused_before_anything_is_compiled():
    before = graphs()
    for op in ("write", "read"):
        status, reason = check_case(
            Case(op=op, seq_len=1, layout="HND"), registry.get(f"{op}.compile"), CPU
        )
        assert (status, reason.partition(":")[0]) == ("unsupported", "layout HND")
    assert graphs() == before
