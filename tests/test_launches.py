"""Launch counts, predicted from the op stream of fake CUDA tensors."""

import dataclasses
import subprocess
import sys

import pytest
import torch
from drawn import cases
from hypothesis import given, settings

from kvbench.cases import Case
from kvbench.results import LaunchCounts
from kvbench.strategies import registry
from kvbench.strategies.base import Strategy
from kvbench.sweep.launches import ONE_KERNEL, foretold, predicted
from kvbench.timing.launches import fake_cuda, predict_launches
from kvbench.workload import build

CPU = torch.device("cpu")
ONE = Case(op="write", seq_len=128)


def counts(strategy: str, case: Case, phase: str = "run") -> tuple[int, int, int]:
    found = predicted(registry.select([strategy])[0], case, phase)
    assert found is not None
    assert found.source == "predicted"
    return found.kernels, found.memcpys, found.synchronizations


@pytest.mark.parametrize("seq_len", [1, 16, 100, 4096])
def test_the_teaching_write_is_seven_launches_one_of_them_the_upload(seq_len):
    # arange, upload of the table, floor divide, index, remainder, two index_put_; the upload of a
    # list in pageable memory waits for the stream.
    assert counts("write.indexing", dataclasses.replace(ONE, seq_len=seq_len)) == (6, 1, 1)


@pytest.mark.parametrize("seq_len", [0, 1, 17, 1000])
def test_the_loop_is_two_launches_a_token(seq_len):
    case = dataclasses.replace(ONE, seq_len=seq_len)
    kernels, memcpys, waits = counts("write.loop", case)
    assert (kernels + memcpys, waits) == (2 * seq_len, 0)


@pytest.mark.parametrize("batch", [1, 3, 8])
@pytest.mark.parametrize("op", ["write", "read"])
def test_the_fused_kernel_is_one_launch_for_any_batch(op, batch):
    case = dataclasses.replace(ONE, op=op, batch=batch)
    assert counts(f"{op}.triton", case) == (1, 0, 0)
    assert counts(f"{op}.slot_mapping", case) == (2, 0, 0)
    # Once a step the mapping is uploaded.
    assert counts(f"{op}.triton", case, "prepare") == (0, 1, 1)


def test_the_index_of_a_batch_is_built_sequence_by_sequence():
    # Five launches each, two concatenations, two scatters.
    case = dataclasses.replace(ONE, batch=3, lengths="equal")
    assert counts("write.indexing", case) == (4 * 3 + 2 + 2, 3, 3)


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize(
    "strategy",
    ["write.index_put", "write.index_copy", "write.scatter", "read.index_select", "read.gather"],
)
def test_one_op_over_a_slot_mapping_is_a_launch_each_for_k_and_v(strategy, batch):
    op = strategy.partition(".")[0]
    case = Case(op=op, seq_len=128, batch=batch)
    assert counts(strategy, case) == (2, 0, 0)
    assert counts(strategy, case, "prepare") == (0, 1, 1)
    if op == "read":
        assert counts(strategy, dataclasses.replace(case, output="given")) == (2, 0, 0)


@pytest.mark.parametrize("strategy", ["write.block_slices", "read.block_slices"])
@pytest.mark.parametrize(("start", "tokens", "blocks"), [(0, 128, 8), (15, 2, 2), (3, 13, 1)])
def test_a_slice_of_each_block_is_a_copy_each_for_k_and_v(strategy, start, tokens, blocks):
    case = Case(op=strategy.partition(".")[0], seq_len=tokens, start_pos=start)
    assert counts(strategy, case) == (0, 2 * blocks, 0)
    # Rows of one head lie apart where heads are outermost: a kernel copies what no memcpy can.
    assert counts(strategy, dataclasses.replace(case, layout="HND")) == (2 * blocks, 0, 0)


def test_whole_blocks_are_concatenated_where_sequences_do_not_fill_them():
    # Two selections, and two concatenations where there is something to leave out in between.
    one = Case(op="read", seq_len=100, start_pos=3)
    assert counts("read.blocks", one) == (2, 0, 0)
    full = Case(op="read", seq_len=64, batch=3, lengths="equal")
    assert counts("read.blocks", full) == (2, 0, 0)
    assert counts("read.blocks", dataclasses.replace(full, output="given")) == (2, 0, 0)
    assert counts("read.blocks", dataclasses.replace(full, seq_len=65)) == (4, 0, 0)
    assert counts("read.blocks", full, "prepare") == (0, 1, 1)


@pytest.mark.parametrize(("blocks", "kernels"), [(1, 2), (128, 2), (129, 4), (300, 6)])
def test_the_read_loop_slices_without_a_launch_and_concatenates_128_blocks_at_once(blocks, kernels):
    case = Case(op="read", seq_len=16 * blocks)
    assert counts("read.loop", case) == (kernels, 0, 0)


@settings(max_examples=15)
@given(case=cases())
def test_every_builtin_strategy_for_a_gpu_has_a_prediction_unless_it_is_compiled(case):
    for strategy in registry.all_strategies():
        if strategy.name.endswith(("compile", ".flex", "+flex")):
            continue  # what Inductor makes of a graph is not known from its ops
        if strategy.op == "step" and strategy.attending.parts:
            continue  # nor what torch's attention launches
        if strategy.op == case.op and strategy.supports(case, CPU) is None:
            refused = strategy.supports(case, torch.device("cuda"))
            # What torch's attention launches depends on the backend that it chooses.
            phase = "gather" if strategy.op == "attend" and strategy.parts else "run"
            assert (predicted(strategy, case, phase) is None) == (refused is not None)


def test_what_torchs_attention_launches_is_not_predicted_but_its_gather_is():
    case = Case(op="attend", seq_len=20, batch=2, lengths="equal")
    strategy = registry.get("attend.enable_gqa")
    assert predicted(strategy, case, "run") is None
    assert predicted(strategy, case, "gather") == LaunchCounts(
        kernels=2, memcpys=0, synchronizations=0, source="predicted"
    )


def test_rows_of_any_width_share_a_prediction():
    narrow = dataclasses.replace(ONE, head_dim=1, num_kv_heads=1, num_heads=1)
    wide = dataclasses.replace(ONE, head_dim=256, num_kv_heads=32, num_heads=32, dtype="fp32")
    assert counts("write.indexing", narrow) == counts("write.indexing", wide)


def predict(call):
    with fake_cuda():
        workload = build(ONE, torch.device("cuda"))
        return predict_launches(lambda: call(workload))


def test_views_and_allocations_launch_nothing():
    found = predict(lambda w: (w.key_pool.view(-1, 8, 128)[3:9, 0], torch.empty_like(w.key)))
    assert (found.kernels, found.memcpys, found.synchronizations) == (0, 0, 0)


def test_reading_a_value_back_is_a_memcpy_and_a_wait():
    with fake_cuda():
        index = torch.zeros(3, dtype=torch.int64, device="cuda")
        # Fake memory has no value to give: torch says so, after the op was counted.
        with pytest.raises(Exception, match="local_scalar_dense"):
            predict_launches(index[0].item)


def test_copies_are_memcpys_where_they_are_dense_and_kernels_where_they_are_not():
    dense = predict(lambda w: w.key_pool[0].copy_(w.value_pool[1]))
    strided = predict(lambda w: w.key_pool[0, :, 0].copy_(w.value_pool[1, :, 0]))
    converted = predict(lambda w: w.key_pool[0].copy_(w.value_pool[1].float()))
    assert (dense.kernels, dense.memcpys) == (0, 1)
    assert (strided.kernels, strided.memcpys) == (1, 0)
    assert (converted.kernels, converted.memcpys) == (2, 0)


@pytest.mark.parametrize(
    ("key", "shape"),
    [
        ((..., 0), (10, 16, 8)),
        ((0, ..., slice(0, 4)), (16, 8, 4)),
        ((None, 3), (1, 16, 8, 128)),
        ((slice(2, 5), slice(None), 1), (3, 16, 128)),
    ],
)
def test_indexing_syntax_gives_the_views_that_pytorch_gives(key, shape):
    assert tuple(torch.empty(10, 16, 8, 128)[key].shape) == shape
    with fake_cuda():
        pool = torch.empty(10, 16, 8, 128, device="cuda")
        seen = []
        found = predict_launches(lambda: seen.append(tuple(pool[key].shape)))
    assert (seen, found.launches) == ([shape], 0)


def test_an_upload_that_does_not_block_waits_for_nothing():
    host = torch.zeros(4)
    with fake_cuda():
        blocking = predict_launches(lambda: host.to(torch.device("cuda")))
        free = predict_launches(lambda: host.to(torch.device("cuda"), non_blocking=True))
    assert (blocking.memcpys, blocking.synchronizations) == (1, 1)
    assert (free.memcpys, free.synchronizations) == (1, 0)


def test_what_goes_to_another_device_can_change_its_dtype_on_the_way():
    host = torch.zeros(4)
    with fake_cuda():
        device = torch.device("cuda")
        moved = [host.to(device, torch.bfloat16), host.to(device=device, dtype=torch.bfloat16)]
        again = moved[0].to(device, torch.float32)
        assert [t.dtype for t in (*moved, again)] == [torch.bfloat16, torch.bfloat16, torch.float32]
        assert moved[0].to(device) is moved[0]


def test_a_row_out_of_bounds_is_an_error_in_a_prediction_too():
    with fake_cuda():
        workload = build(ONE, torch.device("cuda"))
        with pytest.raises(IndexError, match="out of bounds"):
            workload.key[len(workload.key)]


def test_a_strategy_that_fake_tensors_cannot_run_has_no_prediction():
    class Peeks(Strategy):
        name = "write.peeks"
        op = "write"
        summary = "reads a value back"

        def run(self, workload, _):
            workload.key_pool[0, 0, 0, 0].item()

    assert predicted(Peeks(), ONE, "run") is None


def test_attention_taken_for_one_kernel_is_said_to_be():
    case = Case(op="attend", seq_len=20, batch=2, lengths="equal")
    told = foretold(registry.get("attend.enable_gqa"), case, "run")
    assert told.assumption == ONE_KERNEL
    assert told.counts.kernels == 2 + 1
    assert foretold(registry.get("write.index_put"), ONE, "run").assumption == ""


def test_what_a_gpu_refuses_has_the_reason_for_its_launches():
    told = foretold(registry.get("write.cuda"), ONE, "run", hip=True)
    assert (told.counts, told.copies) == (None, False)
    assert "NVIDIA" in told.reason


@pytest.mark.parametrize("strategy", ["index.pinned", "index.numpy"])
def test_an_index_that_arrays_make_is_an_upload(strategy):
    case = Case(op="index", seq_len=5, batch=3, lengths="equal")
    found = foretold(registry.get(strategy), case, "run").counts
    assert found.memcpys >= 1
    # Of pinned memory nobody waits for the upload.
    assert (found.synchronizations == 0) == (strategy == "index.pinned")


_FIRST = """
import sys, torch
from kvbench.timing.launches import fake_cuda
with fake_cuda():
    torch.zeros(3, device="cuda")
from torch._dynamo.device_interface import CpuInterface
sys.exit(torch.Event not in CpuInterface.Event.__mro__)
"""


def test_torch_keeps_none_of_what_stands_in_for_a_device():
    # In a process that hasn't imported what fakes import.
    done = subprocess.run([sys.executable, "-c", _FIRST], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr


def test_what_can_t_be_an_index_is_named():
    with fake_cuda():
        pool = torch.empty(10, 16, device="cuda")
        with pytest.raises(TypeError, match="'first': expected an integer, a slice or a tensor"):
            pool["first"]


def test_work_of_the_host_is_no_launch():
    with fake_cuda():
        host = torch.arange(3)
        found = predict_launches(lambda: host.to(torch.float32))
    assert found.launches == 0


def test_what_lies_apart_is_copied_where_it_has_to_lie_together():
    found = predict(lambda w: (w.key.contiguous(), w.key.transpose(0, 1).contiguous()))
    assert (found.kernels, found.memcpys) == (1, 0)


def test_a_copy_of_what_is_dense_is_a_memcpy():
    assert predict(lambda w: w.key.clone()).memcpys == 1
