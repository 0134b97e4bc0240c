"""Shards that are merged, and sessions that belong together or don't."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made import contents, environment, run_folder, run_info, sweep_rows

from kvbench.axes import Axes
from kvbench.errors import InputError, StoreError
from kvbench.results import Resumption
from kvbench.sessions import differences, differing_limits, merge
from kvbench.store import RunWriter, load
from kvbench.sweep.order import shard_of

CASES = Axes.parse(["seq_len=1:20:+1"]).expand()


@given(st.integers(1, 50), st.integers(0, 9))
def test_every_case_is_in_one_shard_and_shards_are_of_one_size(count, seed):
    shards = [shard_of(CASES, seed, number, count) for number in range(1, count + 1)]
    assert sorted(case for shard in shards for case in map(CASES.index, shard)) == list(
        range(len(CASES))
    )
    sizes = {len(shard) for shard in shards}
    assert max(sizes) - min(sizes) <= 1


def test_the_whole_is_one_shard_of_one():
    assert set(shard_of(CASES, 3, 1, 1)) == set(CASES)


@pytest.fixture
def shards(tmp_path):
    """Two runs of other lengths, on two GPUs of one kind."""
    folders = []
    for number, seq_lens in enumerate(((1, 8), (64,))):
        gpu = {"uuid": f"GPU-{number}", "driver": "580"}
        folder = tmp_path / f"shard {number}"
        folders.append(
            run_folder(
                folder,
                sweep_rows(seq_lens),
                environment=environment(device=f"cuda:{number}", gpu=gpu),
                command=f"kvbench run --shard {number + 1}/2",
            )
        )
    return [load(folder) for folder in folders]


def test_merged_shards_have_all_rows_and_each_says_which_machine_it_is_from(shards, tmp_path):
    info = merge(tmp_path / "all", shards, "kvbench merge", mixed=False)
    run = load(tmp_path / "all")
    assert run.info == info
    assert run.warnings == ()
    assert run.results == (
        *shards[0].results,
        *(dataclasses.replace(row, session=1) for row in shards[1].results),
    )
    assert info.command == "kvbench merge"
    assert info.environment.gpu["uuid"] == "GPU-0"
    (second,) = info.resumptions
    assert second.environment.gpu["uuid"] == "GPU-1"
    assert second.command == "kvbench run --shard 2/2"


def test_a_shard_that_was_resumed_brings_its_sessions(shards, tmp_path):
    folder = shards[0].folder
    later = environment(device="cuda:7", gpu={"uuid": "GPU-7", "driver": "580"})
    writer, _ = RunWriter.resume(folder)
    with writer:
        writer.begin_session(
            Resumption(created="2026-01-02T00:00:00+00:00", command="again", environment=later)
        )
        for row in sweep_rows((32,)):
            writer.append(row)
    resumed = load(folder)
    last = environment(device="cuda:9", gpu={"uuid": "GPU-9", "driver": "580"})
    third = load(run_folder(tmp_path / "third", sweep_rows((128,)), environment=last))
    merge(tmp_path / "all", [shards[1], resumed, third], "", mixed=False)
    run = load(tmp_path / "all")
    assert [each.environment.gpu["uuid"] for each in run.info.resumptions] == [
        "GPU-0",
        "GPU-7",
        "GPU-9",
    ]
    sessions = {row.case.seq_len: row.session for row in run.results}
    assert sessions == {64: 0, 1: 1, 8: 1, 32: 2, 128: 3}


def test_a_shard_that_was_resumed_elsewhere_is_of_another_kind_too(shards, tmp_path):
    writer, _ = RunWriter.resume(shards[1].folder)
    with writer:
        other = environment(torch="2.9.0", gpu={"driver": "580"})
        writer.begin_session(Resumption(created="", command="", environment=other))
    with pytest.raises(StoreError, match=r"torch '2\.13\.0' \(here '2\.9\.0'\)"):
        merge(tmp_path / "all", [shards[0], load(shards[1].folder)], "", mixed=False)
    with pytest.raises(StoreError, match="differs from its own first session: torch"):
        merge(tmp_path / "all", [load(shards[1].folder), shards[0]], "", mixed=False)


def test_shards_are_left_as_they_are(shards, tmp_path):
    before = [contents(shard.folder) for shard in shards]
    merge(tmp_path / "all", shards, "", mixed=False)
    assert [contents(shard.folder) for shard in shards] == before


def test_one_run_is_not_merged(shards, tmp_path):
    with pytest.raises(InputError, match="1 run to merge; expected two or more"):
        merge(tmp_path / "all", shards[:1], "", mixed=False)


def test_runs_of_the_same_case_are_not_merged(shards, tmp_path):
    with pytest.raises(InputError, match=r"both have rows of write\.loop in one case") as refused:
        merge(tmp_path / "all", [shards[0], shards[1], shards[0]], "", mixed=False)
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "all").exists()


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"environment": environment(torch="2.9.0")}, "torch '2.13.0' (here '2.9.0')"),
        ({"environment": environment(device_name="H200")}, "device_name 'Made CPU' (here 'H200')"),
        ({"environment": environment(gpu={"driver": "1"})}, "driver of the GPU None (here '1')"),
        ({"cache": "cold"}, "cache 'hot' (here 'cold')"),
        ({"cell_seconds": 9.0}, "cell_seconds 0.05 (here 9.0)"),
    ],
)
def test_runs_of_another_kind_are_merged_only_if_that_is_allowed(tmp_path, fields, named):
    one = load(run_folder(tmp_path / "one", sweep_rows((1,))))
    other = load(run_folder(tmp_path / "other", sweep_rows((8,)), **fields))
    with pytest.raises(StoreError) as refused:
        merge(tmp_path / "all", [one, other], "", mixed=False)
    assert named in str(refused.value)
    assert "--allow-mixed" in str(refused.value)
    merge(tmp_path / "all", [one, other], "", mixed=True)
    assert len(load(tmp_path / "all").results) == len(one.results) + len(other.results)


def test_a_run_is_resumed_on_the_very_same_device():
    one, other = (environment(device="cuda:0", gpu={"uuid": uuid}) for uuid in ("A", "B"))
    assert differences(one, one, same_device=True) == []
    assert differences(one, other, same_device=False) == []
    assert differences(one, other, same_device=True) == ["uuid of the GPU 'A' (here 'B')"]


def test_limits_that_differ_are_named():
    assert differing_limits(run_info(), run_info()) == []
    assert differing_limits(run_info(), run_info(seed=4)) == ["seed 0 (here 4)"]
