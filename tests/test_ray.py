"""A sweep over a real Ray cluster of two nodes, one of which is killed half-way."""

import os
import subprocess
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from kvbench.store import ROWS_FILE, Run, load

# One cluster serves all of them.
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("ray")]

CASES = 16
PATIENCE_S = 400

SLEEPS = """
import time

from kvbench.pool import flat_slots_view, slot_mapping
from kvbench.strategies.base import Strategy
from kvbench.strategies.registry import register


@register
class Sleeps(Strategy):
    name = "write.sleeps"
    op = "write"
    summary = "right, and slow enough that there is something to interrupt"

    def run(self, workload, prepared):
        if workload.device.type == "cpu":
            time.sleep(0.005)
        slots = slot_mapping(
            workload.block_tables, workload.starts, workload.lengths, workload.block_size
        )
        flat_slots_view(workload.key_pool)[slots] = workload.key
        flat_slots_view(workload.value_pool)[slots] = workload.value
"""


@dataclass
class Done:
    """What came of the run."""

    code: int
    out: str
    err: str
    killed: str
    """The id of the node that was killed."""
    rows_before: int
    """Lines on disk at that moment."""
    run: Run


@pytest.fixture(scope="module")
def done(tmp_path_factory) -> Iterator[Done]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Ray's own, while it is imported and started
        from ray.cluster_utils import Cluster  # noqa: PLC0415

        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
        nodes = [cluster.add_node(num_cpus=1) for _ in range(2)]
    scratch = tmp_path_factory.mktemp("ray")
    (scratch / "sleeps.py").write_text(SLEEPS)
    words = ["run", "--ray", cluster.address, "-a", f"batch=1:{CASES}:+1", "-a", "op=write"]
    words += ["-a", "seq_len=3", "-a", "num_kv_heads=1", "-a", "head_dim=8", "-o", "out"]
    words += ["-s", "write.slot_mapping", "-s", "write.sleeps", "--load", "sleeps.py"]
    process = subprocess.Popen(
        [sys.executable, "-m", "kvbench", *words, "--cell-seconds", "0.3"],
        cwd=scratch,
        env={**os.environ, "COLUMNS": "200"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        before = wait_for_both(scratch / "out", process)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            cluster.remove_node(nodes[1], allow_graceful=False)
        out, err = process.communicate(timeout=PATIENCE_S)
        (folder,) = [path.parent for path in (scratch / "out").glob(f"*/{ROWS_FILE}")]
        yield Done(process.returncode, out, err, nodes[1].node_id, before, load(folder))
    finally:
        process.kill()
        cluster.shutdown()


def wait_for_both(out: Path, process: subprocess.Popen[str]) -> int:
    """Wait until each of two hosts has written rows; how many there are."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline and process.poll() is None:
        for path in out.glob(f"*/{ROWS_FILE}"):
            sessions = Counter(row.session for row in load(path.parent).results)
            if len(sessions) == 2:
                return sessions.total()
        time.sleep(0.05)
    raise AssertionError(process.communicate())


def test_the_loss_of_a_node_costs_no_row(done):
    assert (done.code, done.err) == (0, "")
    ok = Counter((row.case.batch, row.strategy, row.phase) for row in done.run.results)
    assert set(ok.values()) == {1}
    assert len(ok) == CASES * 3
    assert {row.status for row in done.run.results} == {"ok"}


def test_it_was_lost_in_the_middle_and_that_was_said(done):
    assert done.rows_before < CASES * 3
    assert "was lost" in done.out
    assert done.killed[:8] in done.out


def test_the_rows_of_each_node_tell_it(done):
    info = done.run.info
    hosts = [info.environment.host, *(other.environment.host for other in info.resumptions)]
    assert len(set(hosts)) == 2
    by_session = Counter(row.session for row in done.run.results)
    assert set(by_session) == {0, 1}


def test_nobody_there_is_a_mistake_of_one_line(tmp_path):
    words = ["run", "--ray", "127.0.0.1:1", "-a", "seq_len=3", "-o", str(tmp_path / "out")]
    process = subprocess.run(
        [sys.executable, "-m", "kvbench", *words], capture_output=True, text=True, check=False
    )
    assert process.returncode == 2
    assert process.stderr.startswith("error: Ray at '127.0.0.1:1': ")
    assert process.stderr.count("\n") == 1
    assert not (tmp_path / "out").exists()
