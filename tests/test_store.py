"""A run's folder: written row by row, read back whole, and what can go wrong with it."""

import dataclasses
import errno
import json
import os
import resource
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
from drawn import cases
from hypothesis import given
from hypothesis import strategies as st
from made import SAMPLES_S, contents, environment, measurement, result, run_folder, run_info

from kvbench.errors import StoreError
from kvbench.results import SCHEMA_VERSION, Result, Resumption
from kvbench.store import ROWS_FILE, RUN_FILE, RunWriter, load, reserve
from kvbench.timing.rounds import StoppingRule

ROWS = tuple(result(samples_s=[sample * n for sample in SAMPLES_S], seq_len=n) for n in (1, 2, 3))


@pytest.fixture
def folder(tmp_path) -> Path:
    return run_folder(tmp_path / "run", ROWS)


def message_of(action, *arguments) -> str:
    with pytest.raises(StoreError) as raised:
        action(*arguments)
    message = str(raised.value)
    assert len(message.splitlines()) == 1
    return message


def rewrite_line(folder: Path, number: int, line: bytes) -> None:
    path = folder / ROWS_FILE
    lines = path.read_bytes().split(b"\n")
    lines[number - 1] = line
    path.write_bytes(b"\n".join(lines))


def changed_row(row: int, **changes) -> bytes:
    """A row's line with some of its fields replaced; a dotted name reaches into one."""
    with tempfile.TemporaryDirectory() as scratch:
        whole = run_folder(Path(scratch) / "run", ROWS)
        fields = json.loads((whole / ROWS_FILE).read_bytes().splitlines()[row])
    for name, value in changes.items():
        *outer, last = name.split("__")
        target = fields
        for part in outer:
            target = target[part]
        target[last] = value
    return json.dumps(fields).encode()


def test_a_run_reads_back_as_written(folder):
    run = load(folder)
    assert run.folder == folder
    assert run.info == run_info()
    assert run.results == ROWS
    assert run.warnings == ()


def test_a_run_of_before_trees_were_compared_reads_back(folder):
    old = json.loads((folder / RUN_FILE).read_bytes())
    assert {old.pop("interleaved"), old.pop("tree")} == {None}
    (folder / RUN_FILE).write_text(json.dumps(old))
    for number, line in enumerate((folder / ROWS_FILE).read_bytes().splitlines(), start=1):
        row = json.loads(line)
        assert row["measurement"].pop("processes") == []
        rewrite_line(folder, number, json.dumps(row).encode())
    run = load(folder)
    assert (run.info, run.results) == (run_info(), ROWS)


def test_a_run_that_was_measured_in_turns_reads_back(tmp_path):
    row = dataclasses.replace(ROWS[0], measurement=measurement(processes=(2, 3)))
    run = load(run_folder(tmp_path / "run", [row], interleaved="together", tree="main"))
    assert (run.info.interleaved, run.info.tree) == ("together", "main")
    assert run.results == (row,)


@given(
    st.lists(
        st.tuples(
            cases(), st.lists(st.floats(1e-12, 1e6), min_size=1, max_size=20), st.text(min_size=1)
        ),
        max_size=4,
    )
)
def test_no_digit_of_a_sample_is_lost(drawn):
    rows = []
    for number, (case, samples, reason) in enumerate(drawn):
        fields = {"case": case, "strategy": f"write.{number}", "phase": "run", "repro": reason}
        fields |= {"cache": "hot"}
        timed = {"status": "ok", "measurement": measurement(samples)}
        rows.append(Result(**fields, clock="wall", **timed))
        rows.append(Result(**fields, clock="enqueue", status="failed", reason=reason))
    with tempfile.TemporaryDirectory() as scratch:
        run = load(run_folder(Path(scratch) / "run", rows))
    assert run.results == tuple(rows)
    assert run.warnings == ()


def test_each_row_is_a_line_on_disk_as_soon_as_append_returns(tmp_path):
    with RunWriter(tmp_path / "run", run_info()) as writer:
        assert load(writer.folder).results == ()
        for count, row in enumerate(ROWS, start=1):
            writer.append(row)
            data = (writer.folder / ROWS_FILE).read_bytes()
            assert data.count(b"\n") == count
            assert data.endswith(b"\n")
            assert load(writer.folder).results == ROWS[:count]


def test_run_json_is_there_before_any_row(tmp_path):
    with RunWriter(tmp_path / "run", run_info(seed=7)) as writer:
        assert json.loads((writer.folder / RUN_FILE).read_bytes())["seed"] == 7


def test_a_last_line_cut_anywhere_costs_that_row_alone(folder):
    path = folder / ROWS_FILE
    whole = path.read_bytes()
    start = whole.rindex(b"\n", 0, -1) + 1
    for end in range(start + 1, len(whole)):
        path.write_bytes(whole[:end])
        run = load(folder)
        assert run.results == ROWS[:2]
        (warning,) = run.warnings
        assert f"{path}: line 3 is torn after {end - start} bytes" in warning
        assert path.read_bytes() == whole[:end]


def test_rows_that_end_with_a_whole_line_give_no_warning(folder):
    path = folder / ROWS_FILE
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:2]))
    assert load(folder).results == ROWS[:2]
    assert load(folder).warnings == ()


BROKEN_LINES = {
    "cut": changed_row(1)[:100],
    "not JSON": b"status: ok",
    "empty": b"",
    "a list": b"[]",
    "not UTF-8": changed_row(1).replace(b"write.loop", b"write.l\xffop"),
    "a number for a text": changed_row(1, strategy=3),
    "a text for a number": changed_row(1, measurement__median_s="fast"),
    "null for a sample": changed_row(1, measurement__samples_s=[1e-5, None]),
    "an unknown status": changed_row(1, status="fine"),
    "a time of 0": changed_row(1, measurement__samples_s=[1e-5, 0.0]),
    "no samples": changed_row(1, measurement__samples_s=[]),
    "ok without a measurement": changed_row(1, measurement=None),
    "failed with a measurement": changed_row(1, status="failed", reason="it raised"),
    "a case that can't be": changed_row(1, case__block_size=0),
    "an unknown op": changed_row(1, case__op="attended"),
}


@pytest.mark.parametrize("line", BROKEN_LINES.values(), ids=BROKEN_LINES)
def test_a_line_that_is_no_row_is_named(folder, line):
    rewrite_line(folder, 2, line)
    before = contents(folder)
    message = message_of(load, folder)
    assert f"{folder / ROWS_FILE}: line 2" in message
    assert contents(folder) == before


def test_a_broken_line_says_what_is_wrong_with_it(folder):
    rewrite_line(folder, 2, changed_row(1, measurement__median_s="fast"))
    assert "Expected `float`, got `str` - at `$.measurement.median_s`" in message_of(load, folder)


def test_rows_of_one_case_share_it_however_it_is_written(folder):
    lines = (folder / ROWS_FILE).read_bytes().splitlines()
    backwards = json.loads(lines[0])
    backwards |= {"case": dict(reversed(backwards["case"].items())), "clock": "graph"}
    lines += [lines[0].replace(b'"wall"', b'"enqueue"'), json.dumps(backwards).encode()]
    (folder / ROWS_FILE).write_bytes(b"".join(line + b"\n" for line in lines))
    first, *_, same, other = load(folder).results
    assert first == ROWS[0]
    assert {dataclasses.replace(row, clock="wall") for row in (same, other)} == {first}
    assert same.case is first.case
    assert same.repro is first.repro


def test_a_case_is_checked_in_whichever_line_it_is(folder):
    lines = (folder / ROWS_FILE).read_bytes().splitlines()
    wrong = lines[0].replace(b'"block_size":16', b'"block_size":0')
    (folder / ROWS_FILE).write_bytes(b"".join(line + b"\n" for line in (*lines, wrong)))
    message = message_of(load, folder)
    assert f"line {len(lines) + 1} is no row" in message
    assert "block_size=0: expected an integer, 1 or more" in message


def test_a_row_of_a_session_that_there_was_not_is_refused(folder):
    path = folder / ROWS_FILE
    path.write_bytes(path.read_bytes().replace(b'"session":0', b'"session":1', 1))
    message = message_of(load, folder)
    assert "line 1 is of session 1; expected one of those in run.json, 0 to 0" in message


def test_a_row_that_is_there_twice_is_refused(folder):
    with RunWriter.resume(folder)[0] as writer:
        writer.begin_session(Resumption(created="", command="", environment=environment()))
    path = folder / ROWS_FILE
    path.write_bytes(path.read_bytes() + changed_row(1) + b"\n")
    message = message_of(load, folder)
    assert message.startswith(f"{path}: line 4 measures what line 2 does (write.")
    path.write_bytes(path.read_bytes().replace(b'"session": 0', b'"session": 1'))
    assert len(load(folder).results) == len(ROWS)  # another session's is the later one


@pytest.mark.parametrize("name", [ROWS_FILE, RUN_FILE])
def test_what_is_nested_too_deeply_is_refused(folder, name):
    path = folder / name
    deep = b"[" * 100_000 + b"]" * 100_000
    path.write_bytes(path.read_bytes().replace(b"{", b'{"deep":' + deep + b",", 1))
    assert str(path) in message_of(load, folder)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("layers", 0),
        ("layers", -1),
        ("layers", 2**63),
        ("launch_floor_s", -1.0),
        ("floors_s", {"wall": -1.0}),
        ("copy_bandwidth", {"bytes_per_s": 0.0, "nbytes": 1, "how": "copy_"}),
    ],
)
def test_a_run_json_that_no_machine_can_have_is_refused(folder, field, value):
    path = folder / RUN_FILE
    path.write_text(json.dumps({**json.loads(path.read_text()), field: value}))
    assert f"{path} is torn or no run: " in message_of(load, folder)


def test_a_name_that_is_too_long_is_no_run(tmp_path):
    assert "name too long" in message_of(load, tmp_path / ("r" * 300))


def test_what_a_row_lacks_is_said_as_of_a_whole_row(folder):
    row = json.loads(changed_row(1))
    del row["case"]
    rewrite_line(folder, 2, json.dumps(row).encode())
    assert "Object missing required field `case`" in message_of(load, folder)


@pytest.mark.parametrize("version", [SCHEMA_VERSION + 1, 0, "1", None])
def test_another_schema_version_is_refused(folder, version):
    path = folder / RUN_FILE
    path.write_text(json.dumps({**json.loads(path.read_text()), "schema_version": version}))
    message = message_of(load, folder)
    assert str(path) in message
    assert f"schema version {version!r}" in message
    assert f"reads version {SCHEMA_VERSION}" in message


def test_run_json_without_a_version_is_refused(folder):
    (folder / RUN_FILE).write_text('{"seed": 0}')
    assert "schema version None" in message_of(load, folder)


def test_run_json_cut_anywhere_is_refused(folder):
    path = folder / RUN_FILE
    # Without its last line break it is whole.
    whole = path.read_bytes().rstrip()
    for end in range(0, len(whole), 7):
        path.write_bytes(whole[:end])
        message = message_of(load, folder)
        assert str(path) in message
        assert "torn" in message


@pytest.mark.parametrize(
    "text", ["[]", "3", '{"schema_version": 1}', '{"schema_version": 1, "seed": "x"}']
)
def test_a_run_json_that_is_something_else_is_refused(folder, text):
    (folder / RUN_FILE).write_text(text)
    message = message_of(load, folder)
    assert str(folder / RUN_FILE) in message
    assert "no run" in message


def test_no_run_json(folder):
    (folder / RUN_FILE).unlink()
    message = message_of(load, folder)
    assert str(folder) in message
    assert f"no {RUN_FILE}" in message


def test_no_rows(folder):
    (folder / ROWS_FILE).unlink()
    message = message_of(load, folder)
    assert str(folder) in message
    assert ROWS_FILE in message


def test_no_folder(tmp_path):
    assert str(tmp_path / "nowhere") in message_of(load, tmp_path / "nowhere")


def test_the_folder_of_a_sweep_over_a_cluster_names_its_runs(tmp_path):
    for kind in ("l4", "h100"):
        run_folder(tmp_path / kind, [])
    message = message_of(load, tmp_path)
    assert message.endswith(f"expected {tmp_path / 'h100'} or {tmp_path / 'l4'}")


def test_a_file_is_no_run(tmp_path):
    (tmp_path / "file").touch()
    assert str(tmp_path / "file") in message_of(load, tmp_path / "file")


def claim(folder, rows=0):
    reserve(folder, rows).release()


def test_claim_makes_the_folder_and_leaves_nothing_in_it(tmp_path):
    claim(tmp_path / "a" / "b")
    assert list((tmp_path / "a" / "b").iterdir()) == []
    claim(tmp_path / "a" / "b")


@pytest.mark.parametrize("take", [claim, lambda folder: RunWriter(folder, run_info())])
def test_a_folder_with_a_run_is_refused_and_left_as_it_is(folder, take):
    before = contents(folder)
    message = message_of(take, folder)
    assert str(folder) in message
    assert "another run" in message
    assert "expected an empty or a new folder" in message
    assert contents(folder) == before


def test_a_folder_with_other_files_is_refused(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    message = message_of(claim, tmp_path)
    assert "other files" in message
    assert contents(tmp_path) == {"thesis.tex": b"years of work"}


def test_a_file_in_place_of_the_folder_is_refused(tmp_path):
    path = tmp_path / "out"
    path.write_text("kept")
    message = message_of(claim, path)
    assert str(path) in message
    assert "expected a folder to write to" in message
    assert path.read_text() == "kept"


@pytest.mark.parametrize(("rows", "refused"), [(0, False), (256, False), (257, True)])
def test_a_disk_without_room_for_all_rows_is_refused(rows, refused, tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1 << 20))
    if not refused:
        claim(tmp_path / "out", rows)
        return
    message = message_of(lambda folder: claim(folder, rows), tmp_path / "out")
    assert str(tmp_path / "out") in message
    assert "1.00 MiB are free on its disk; expected room for 257 rows, up to 1.00 MiB" in message
    claim(tmp_path / "out", rows - 1)  # the refusal held nothing


def test_a_row_takes_no_more_than_is_reckoned_with():
    """With all of its samples to the last digit, as many as are ever taken."""
    samples = [1 / 3 * 1e-5 + n * 1e-9 / 7 for n in range(StoppingRule().max_rounds)]
    case = {"layout": "NHD-KV", "block_order": "sequential", "lengths": "equal", "seed": 2**40}
    row = result("write.slot_mapping", samples, seq_len=131072, **case)
    assert len(msgspec.json.encode(row)) < 4096


def test_a_folder_below_a_file_is_refused(tmp_path):
    (tmp_path / "file").touch()
    message = message_of(claim, tmp_path / "file" / "out")
    assert str(tmp_path / "file" / "out") in message
    assert os.strerror(errno.ENOTDIR) in message


def test_a_folder_that_takes_no_files_is_refused_before_anything_is_measured(tmp_path, monkeypatch):
    # Root may write anywhere, so the refusal is simulated where the system would make it.
    def refuse(**_):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    message = message_of(claim, tmp_path / "out")
    assert str(tmp_path / "out") in message
    assert os.strerror(errno.EACCES) in message


@contextmanager
def room_for(nbytes: int) -> Iterator[None]:
    """Inside, no file grows past so many bytes: the system's own short writes and refusals."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def append_with_room_for(more: int, folder: Path) -> str:
    with RunWriter(folder, run_info()) as writer:
        writer.append(ROWS[0])
        with room_for((folder / ROWS_FILE).stat().st_size + more):
            return message_of(writer.append, ROWS[1])


def test_a_full_disk_is_said_and_earlier_rows_are_kept(tmp_path):
    message = append_with_room_for(0, tmp_path / "run")
    assert ROWS_FILE in message
    assert os.strerror(errno.EFBIG) in message
    assert "earlier rows are kept" in message
    run = load(tmp_path / "run")
    assert (run.results, run.warnings) == (ROWS[:1], ())


def test_a_row_cut_short_is_said_and_earlier_rows_are_kept(tmp_path):
    message = append_with_room_for(20, tmp_path / "run")
    assert "cut short" in message
    assert "earlier rows are kept" in message
    run = load(tmp_path / "run")
    assert run.results == ROWS[:1]
    assert "line 2 is torn after 20 bytes" in run.warnings[0]


@pytest.mark.parametrize("room", [0, 20])
def test_a_disk_without_room_for_run_json_is_said(tmp_path, room):
    with room_for(room):
        message = message_of(RunWriter, tmp_path / "run", run_info())
    assert str(tmp_path / "run") in message or RUN_FILE in message


def test_a_disk_that_fails_at_the_end_is_said(tmp_path, monkeypatch):
    def refuse(_):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    writer = RunWriter(tmp_path / "run", run_info())

    def write():
        with writer:
            writer.append(ROWS[0])
            monkeypatch.setattr(os, "fsync", refuse)

    try:
        assert os.strerror(errno.EIO) in message_of(write)
    finally:
        writer._rows.close()
    assert load(tmp_path / "run").results == ROWS[:1]
