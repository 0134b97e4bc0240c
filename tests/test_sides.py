"""The processes of `kvbench ab`: what is said to them and by them, and what becomes of them."""

import dataclasses
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import msgspec
import psutil
import pytest
from made import result
from made_sides import MACHINE, SETTINGS, Heard, ready, refusal, start, stub
from test_measure import SMALL, Write

from kvbench.analysis.statistics import Estimate, median_interval
from kvbench.errors import KvbenchError
from kvbench.strategies import registry
from kvbench.sweep import messages, side, sides
from kvbench.sweep.messages import (
    PROTOCOL,
    Failed,
    Measure,
    Rows,
    Sample,
    Sampled,
    Sampling,
    SetUp,
    Step,
    Took,
    Unknown,
)
from kvbench.sweep.sides import Side, SideEnded, SubjectFailed
from kvbench.sweep.trees import Tree
from kvbench.timing import rounds

SET_UP = SetUp(
    protocol=PROTOCOL, settings=SETTINGS, patterns=("write.*",), files=("/a b.py",), machine=MACHINE
)
SAMPLES = rounds.Sampling((1e-6, 1 / 3e6), 8, Estimate(7e-7, 1 / 3e6, 1e-6), "rounds")
TO_SIDE = (
    SET_UP,
    msgspec.structs.replace(SET_UP, machine=None, patterns=(), files=()),
    Measure(case=SMALL, strategies=("write.loop", "write.ünï")),
    Sample(subject=3, calls=1024),
    Sampled(outcomes=(SAMPLES, None)),
)
FROM_SIDE = (
    ready(strategies=("write.loop",), unmatched={"x": "why"}, files={"write.loop": "/a b.py"}),
    Unknown(error="not this"),
    Step(strategy="write.loop", step="check"),
    Step(strategy=None, step="done"),
    Sampling(clock="wall", least_calls=2, subjects=(("write.loop", "run", None),)),
    Took(seconds=1 / 3e6),
    Failed(status="unsupported", reason="line\nbreak"),
    Rows(rows=(result(), result(status="failed"))),
    messages.Refused(error="no", lost_device=True),
)


@pytest.mark.parametrize("message", TO_SIDE, ids=lambda message: type(message).__name__)
def test_what_a_side_is_told_arrives(message):
    line = messages.encode(message)
    assert b"\n" not in line
    assert messages.decode_to_side(line) == message
    with pytest.raises(messages.UNREADABLE):
        messages.decode_from_side(line)


@pytest.mark.parametrize("message", FROM_SIDE, ids=lambda message: type(message).__name__)
def test_what_a_side_says_arrives(message):
    line = messages.encode(message)
    assert b"\n" not in line
    assert messages.decode_from_side(line) == message
    with pytest.raises(messages.UNREADABLE):
        messages.decode_to_side(line)


def test_every_message_is_tried_above():
    assert {type(message) for message in TO_SIDE} == set(messages.ToSide.__args__)
    assert {type(message) for message in FROM_SIDE} == set(messages.FromSide.__args__)


def test_a_message_of_a_later_kvbench_may_say_more():
    line = messages.encode(Took(seconds=0.5)).replace(b"{", b'{"joules":3,', 1)
    assert messages.decode_from_side(line) == Took(seconds=0.5)


NO_MESSAGE = (
    b"",
    b"hello",
    b"3",
    b"null",
    b"{}",
    b'{"type":"Thought"}',
    b'{"type":"Took"}',
    b'{"type":"Took","seconds":"1"}',
    b'{"type":"Took","seconds":1',
    b'{"type":"Refused","error":"\xff"}',
    b"\xff\xfe",
    messages.encode(FROM_SIDE[7]).replace(b'"median_s":', b'"median_s":-'),
)


@pytest.mark.parametrize("line", NO_MESSAGE)
def test_what_is_no_message_is_refused(line):
    for decode in (messages.decode_from_side, messages.decode_to_side):
        with pytest.raises(messages.UNREADABLE):
            decode(line)


# What the lead makes of processes that are not what it expects.


def test_an_older_tree_is_told_from_one_that_fails(tmp_path):
    assert refusal(tmp_path, None) == (
        "base: its kvbench is from before `kvbench ab`: expected one that has kvbench.sweep.side"
    )


def interpreter(path: Path, *lines: str) -> Tree:
    path.write_text("\n".join(["#!/bin/sh", *lines, ""]))
    path.chmod(0o755)
    return Tree("base", path, path.parent, None, installed=True)


def test_an_interpreter_without_kvbench_is_told(tmp_path):
    tree = interpreter(tmp_path / "bare", f'exec {sys.executable} -S "$@"')
    with pytest.raises(KvbenchError) as raised:
        start(tree).ready()
    assert str(raised.value) == (
        f"base: no kvbench for '{tmp_path / 'bare'}'; expected one installed"
    )


def test_what_ends_before_it_has_heard_anything_is_told(tmp_path):
    started = start(interpreter(tmp_path / "ends", "echo no such luck >&2"), ["x" * 10] * 50_000)
    with pytest.raises(KvbenchError) as raised:
        started.ready()
    assert str(raised.value) == (
        "base: the process that it ran in ended by exit code 0: no such luck"
    )


@pytest.mark.parametrize("content", [None, b"\x7fELF nonsense"])
def test_what_can_not_be_started_is_told(tmp_path, content):
    python = tmp_path / "python"
    if content is not None:
        python.write_bytes(content)
        python.chmod(0o755)
    with pytest.raises(KvbenchError) as raised:
        start(Tree("base", python, tmp_path, None))
    assert str(raised.value).startswith(f"base: '{python}' can't be started: ")
    assert str(raised.value).endswith("; expected a Python interpreter")


SAYS = "sys.stdout.buffer.write({line!r} + b'\\n'); sys.stdout.flush(); time.sleep(60)\n"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b"hello", "'hello'; expected an answer in the protocol of `kvbench ab` (DecodeError"),
        (b"\xff" * 100, f"{chr(0xFFFD) * 60!r}; expected an answer in the protocol"),
        (b'{"type":"Took"}', "; expected an answer in the protocol of `kvbench ab` (Validation"),
    ],
)
def test_an_answer_that_is_none_is_shown(tmp_path, line, said):
    message = refusal(tmp_path, SAYS.format(line=line))
    assert message.startswith("base: its process said ")
    assert said in message
    assert len(message.splitlines()) == 1


def test_an_answer_to_another_question_is_no_answer(tmp_path):
    message = refusal(tmp_path, SAYS.format(line=messages.encode(Took(seconds=1.0))))
    assert message == "base: its process answered Took; expected Ready"


def test_who_is_silent_is_ended(tmp_path, monkeypatch):
    monkeypatch.setattr(sides, "_START_S", 0.05)
    message = refusal(tmp_path, "time.sleep(60)", hang_s=0.1)
    assert message.startswith("base: no sign of life for 0 s, the longest that a step may take")


STARTS_SLOWLY = "time.sleep(0.3); os.write(1, (HERE / 'said').read_bytes()); time.sleep(60)"


@pytest.mark.parametrize(("start_s", "hang_s"), [(20.0, 0.01), (0.01, 20.0)])
def test_to_start_may_take_longer_than_a_step(tmp_path, monkeypatch, start_s, hang_s):
    monkeypatch.setattr(sides, "_START_S", start_s)
    tree = stub(tmp_path, STARTS_SLOWLY, said=messages.encode(ready()) + b"\n")
    with ending(start(tree, hang_s=hang_s)) as started:
        assert started.ready() == ready()


def test_interrupted_while_it_starts_it_is_ended(tmp_path, monkeypatch):
    before = psutil.Process().children()

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Side, "_say", interrupt)
    tree = stub(tmp_path, "time.sleep(60)")
    with pytest.raises(KeyboardInterrupt):
        start(tree)
    assert psutil.Process().children() == before


@pytest.mark.parametrize(
    ("does", "how"),
    [
        ("sys.exit('first\\n  last words  \\n')", "exit code 1: last words"),
        ("os._exit(3)", "exit code 3"),
        ("os.kill(os.getpid(), 9)", "signal 9 (SIGKILL)"),
        ("1 / 0", "exit code 1: ZeroDivisionError: division by zero"),
        ("sys.stderr.write('x\\n' * 10**6 + 'last'); sys.exit(5)", "exit code 5: last"),
        ("sys.stdout.write('{\"type\":'); sys.exit(6)", "exit code 6"),
        # A process of its own, which holds the pipe, is no sign of life.
        ("os.fork() or time.sleep(60); os._exit(7)", "exit code 7"),
    ],
)
def test_who_ends_is_given_an_epitaph(tmp_path, does, how):
    message = refusal(tmp_path, does)
    assert message == f"base: the process that it ran in ended by {how}"


def test_who_closes_the_pipe_and_lives_on_is_ended(tmp_path, monkeypatch):
    monkeypatch.setattr(sides, "_LAST_WORDS_S", 0.1)
    message = refusal(tmp_path, "os.close(1); time.sleep(60)")
    assert message == "base: the process that it ran in no longer answers; it was ended"


def test_who_refuses_is_heard(tmp_path):
    line = messages.encode(messages.Refused(error="no such device"))
    assert refusal(tmp_path, SAYS.format(line=line)) == "base: no such device"


SLOWLY = """
whole = (HERE / "said").read_bytes()
size = max(1, len(whole) // 7)
for start in range(0, len(whole), size):
    os.write(1, whole[start:start + size])
    time.sleep(0.002)
time.sleep(60)
"""


def test_lines_are_heard_whole_however_they_arrive(tmp_path):
    unmatched = {str(number): "x" * 1000 for number in range(4000)}
    large, step = ready(unmatched=unmatched), Step(strategy="write.loop", step="check")
    said = [large, step, step, Rows(rows=(result(),))]
    lines = b"".join(messages.encode(each) + b"\n" for each in said)
    with ending(start(stub(tmp_path, SLOWLY, said=lines))) as started:
        assert started.ready() == large
        assert started.next() == said[-1]
        assert started._turn == "write.loop"


class ending(closing):  # noqa: N801 - a context manager, named as others are
    """Ends a side in the end."""

    def __exit__(self, *_: object) -> None:
        self.thing.stop()


def test_what_a_side_has_started_ends_with_it(tmp_path):
    with_child = "os.fork() or time.sleep(60); print(os.getpid(), flush=True); time.sleep(60)"
    started = start(stub(tmp_path, with_child))
    with ending(started):
        [child] = children_of(started)
    assert ended(child)
    started.stop()  # once more does nothing


def ended(process: psutil.Process) -> bool:
    deadline = time.monotonic() + 20
    while process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def children_of(started: Side) -> list[psutil.Process]:
    started._line(20.0)  # it has one now
    return psutil.Process(started._process.pid).children()


def test_a_side_does_not_hear_what_interrupts_the_lead(tmp_path):
    with ending(start(stub(tmp_path, "time.sleep(60)"))) as started:
        assert os.getpgid(started._process.pid) != os.getpgid(0)


TALKS = """
for line in (HERE / "said").read_bytes().splitlines():
    sys.stdin.readline()
    os.write(1, line + b"\\n")
os.kill(os.getpid(), 9)
"""


def talking(folder: Path, *said: messages.FromSide) -> Side:
    """A side that answers so, whatever it is told, and then ends."""
    lines = b"".join(messages.encode(each) + b"\n" for each in said)
    return start(stub(folder, TALKS, said=lines))


WAITS = Sampling(clock="wall", least_calls=1, subjects=(("write.loop", "run", None),))


def test_whose_turn_it_was_is_known(tmp_path):
    failed = Failed(status="failed", reason="why not")
    with ending(talking(tmp_path, ready(), WAITS, Took(seconds=2.5), failed)) as started:
        started.ready()
        assert started.begin(SMALL, ["write.loop"]) == WAITS
        assert started.sample(0, "write.loop", 4) == 2.5
        with pytest.raises(SubjectFailed, match="why not"):
            started.sample(0, "write.loop", 4)
        with pytest.raises(SideEnded, match=r"signal 9 \(SIGKILL\)") as raised:
            started.sample(0, "write.other", 4)
    assert (raised.value.strategy, raised.value.status) == ("write.other", "crashed")
    assert raised.value.side is started


def test_it_is_nobodys_turn_when_a_case_begins(tmp_path):
    with ending(talking(tmp_path, ready())) as started:
        started.ready()
        with pytest.raises(SideEnded) as raised:
            started.begin(SMALL, ["write.loop"])
    assert raised.value.strategy is None


def test_a_lost_device_ends_the_process_and_a_refusal_is_a_failure(tmp_path):
    for lost, status in ((True, "crashed"), (False, "failed")):
        refused = messages.Refused(error="an illegal address", lost_device=lost)
        with ending(talking(tmp_path / status, ready(), WAITS, refused)) as started:
            started.ready()
            started.begin(SMALL, ["write.loop"])
            with pytest.raises(SideEnded, match="an illegal address") as raised:
                started.sample(0, "write.loop", 1)
        assert (raised.value.strategy, raised.value.status) == ("write.loop", status)


def test_who_does_not_know_a_case_supports_no_strategy_in_it(tmp_path):
    with ending(talking(tmp_path, ready(), Unknown(error="dtype fp3"))) as started:
        started.ready()
        found = started.begin(SMALL, ["write.loop", "write.triton"])
    assert [(row.strategy, row.status, row.reason) for row in found.rows] == [
        (name, "unsupported", "this tree does not know such a case: dtype fp3")
        for name in ("write.loop", "write.triton")
    ]


def test_who_has_no_strategy_for_a_case_is_not_asked(tmp_path):
    with ending(talking(tmp_path, ready())) as started:
        started.ready()
        assert started.begin(SMALL, []) == Rows(rows=())


def test_commands_name_files_as_the_user_did(tmp_path):
    file = Path("our kernels.py")
    (tmp_path / file).write_text("")
    where = str(tmp_path / file)
    said = messages.encode(ready(files={"write.ours": where})) + b"\n"
    tree = stub(tmp_path, TALKS, said=said)
    with ending(Side("a", tree, SETTINGS, (), {tmp_path / file: file}, 20.0)) as started:
        started.ready()
        assert started.file_of("write.ours") == file
        assert started.file_of("write.loop") is None
        row = result(repro=f"kvbench run -s write.ours --load '{where}' --cache hot")
        named = "kvbench run -s write.ours --load 'our kernels.py' --cache hot"
        assert started.named(row).repro == named


# The side itself, in a thread of this process.


class Ours(Write):
    """Right; raises where a test says so."""

    name = "write.ours"
    fails = None

    def run(self, workload, prepared):
        if self.fails is not None:
            self.fails(self.calls["run"])
        super().run(workload, prepared)


@pytest.fixture
def ours(strategies) -> Ours:
    """The one strategy there is."""
    strategies.clear()
    return registry.get(registry.register(type("Fresh", (Ours,), {})).name)


@pytest.fixture
def lead(monkeypatch) -> Iterator[Heard]:
    """A lead whose side serves in a thread."""
    monkeypatch.setattr(registry, "load_builtin", lambda: None)
    (theirs, says), (hears, mine) = os.pipe(), os.pipe()
    ended = []

    def serve() -> None:
        with os.fdopen(theirs, "rb") as hearing, os.fdopen(mine, "wb") as saying:
            served = side.Lead(hearing, saying)
            try:
                side.serve(served, served.greeting())
            except (EOFError, KvbenchError) as error:
                ended.append(error)

    thread = threading.Thread(target=serve)
    with os.fdopen(hears, "rb") as hearing, os.fdopen(says, "wb") as saying:
        thread.start()
        yield Heard(thread, hearing, saying)
    thread.join()
    assert [type(error) for error in ended] == [EOFError]


def set_up(heard: Heard, **fields) -> messages.Ready:
    heard.say(msgspec.structs.replace(SET_UP, **{"patterns": (), "files": (), **fields}))
    return heard.hear()


def times(*, calls: int, count: int = 5) -> rounds.Sampling:
    """No clock would ever give these."""
    samples_s = tuple(1.0 + number / 64 for number in range(count))
    return rounds.Sampling(samples_s, calls, median_interval(samples_s), "rounds")


def test_a_sides_rows_have_the_samples_that_it_is_given(ours, lead):
    found = set_up(lead)
    assert (found.machine, found.strategies, found.unmatched) == (MACHINE, ("write.ours",), {})
    for _ in range(2):
        lead.say(Measure(case=SMALL, strategies=("write.ours",)))
        waits = lead.hear()
        assert waits == Sampling(
            clock="wall",
            least_calls=1,
            subjects=(("write.ours", "run", None), ("write.ours", "prepare", None)),
        )
        for calls in (1, 4):
            before = ours.calls["run"]
            lead.say(Sample(subject=0, calls=calls))
            assert lead.hear().seconds > 0
            # One before them, since the other side has used the caches.
            assert ours.calls["run"] == before + 1 + calls
        given = {"prepare": times(calls=2), "run": times(calls=4, count=7)}
        lead.say(Sampled(outcomes=tuple(given[phase] for _, phase, _ in waits.subjects)))
        rows = lead.hear().rows
        assert [(row.strategy, row.phase, row.status) for row in rows] == [
            ("write.ours", "run", "ok"),
            ("write.ours", "prepare", "ok"),
        ]
        for row in rows:
            assert row.case == SMALL
            assert row.measurement.samples_s == given[row.phase].samples_s
            assert row.measurement.calls_per_sample == given[row.phase].calls_per_sample
            assert row.measurement.processes == ()
        assert rows[0].measurement.copy_share == pytest.approx(
            SMALL.nbytes / rows[0].measurement.median_s / MACHINE.copy_bandwidth.bytes_per_s
        )


@pytest.mark.usefixtures("ours")
def test_of_a_flushed_cache_a_sample_is_one_call(lead):
    set_up(lead, settings=dataclasses.replace(SETTINGS, cache="cold"))
    lead.say(Measure(case=SMALL, strategies=("write.ours",)))
    waits = lead.hear()
    assert {most for _, _, most in waits.subjects} == {1}
    lead.say(Sample(subject=0, calls=1))
    assert lead.hear().seconds > 0
    lead.say(Sampled(outcomes=(None,) * len(waits.subjects)))
    assert {row.status for row in lead.hear().rows} == {"failed"}


def test_a_subject_that_raises_has_its_row_and_the_side_goes_on(ours, lead):
    set_up(lead)
    lead.say(Measure(case=SMALL, strategies=("write.ours",)))
    lead.hear()

    def fail(_: int) -> None:
        raise ValueError("nothing fits\n  together")

    ours.fails = fail
    lead.say(Sample(subject=0, calls=1))
    assert lead.hear() == Failed(status="failed", reason="ValueError: nothing fits together")
    ours.fails = None
    lead.say(Sampled(outcomes=(None, times(calls=1))))
    assert [(row.phase, row.status, row.reason) for row in lead.hear().rows] == [
        ("run", "failed", "ValueError: nothing fits together"),
        ("prepare", "ok", None),
    ]
    lead.say(Measure(case=SMALL, strategies=("write.ours",)))
    assert isinstance(lead.hear(), Sampling)
    lead.say(Sampled(outcomes=(None, None)))
    assert {row.reason for row in lead.hear().rows} == {"its samples were given up"}


@pytest.mark.usefixtures("ours")
def test_a_case_of_a_later_kvbench_is_not_known(lead):
    set_up(lead)
    asked = messages.encode(Measure(case=SMALL, strategies=("write.ours",)))
    for new in (b'"dtype":"fp3"', b'"dtype":3'):
        lead.says.write(asked.replace(b'"dtype":"fp32"', new) + b"\n")
        lead.says.flush()
        unknown = lead.hear()
        assert isinstance(unknown, Unknown)
        assert "dtype" in unknown.error
    # An axis that it does not know is passed over; the lead sees that the row's case is another.
    lead.says.write(asked.replace(b'"dtype"', b'"rotation":3,"dtype"') + b"\n")
    lead.says.flush()
    assert isinstance(lead.hear(), Sampling)
    lead.say(Sampled(outcomes=(None, None)))
    assert {row.case for row in lead.hear().rows} == {SMALL}


@pytest.mark.usefixtures("ours")
def test_patterns_that_name_nothing_here_are_told(lead):
    found = set_up(lead, patterns=("write.o*", "write.none", "read.*"))
    assert found.strategies == ("write.ours",)
    assert set(found.unmatched) == {"write.none", "read.*"}
    assert "unknown strategy 'write.none'" in found.unmatched["write.none"]


@pytest.mark.usefixtures("ours")
def test_where_no_pattern_names_anything_nothing_is_measured(lead):
    found = set_up(lead, patterns=("write.none",))
    assert (found.strategies, set(found.unmatched)) == ((), {"write.none"})


THEIRS = """
from test_measure import Write
from kvbench.strategies.registry import register

@register
class Theirs(Write):
    name = "write.theirs"
"""


@pytest.mark.usefixtures("ours")
def test_a_side_says_which_file_a_strategy_is_from(lead, tmp_path):
    file = tmp_path / "theirs.py"
    file.write_text(THEIRS)
    found = set_up(lead, files=(str(file),))
    assert found.strategies == ("write.ours", "write.theirs")
    assert found.files == {"write.theirs": str(file)}


def greet(line: bytes) -> messages.SetUp:
    with open(os.devnull, "rb+") as nothing:  # noqa: PTH123 - a file to say nothing to
        served = side.Lead(nothing, nothing)
        served._line = lambda: line
        return served.greeting()


def test_another_protocol_is_refused_whatever_it_says():
    assert greet(messages.encode(SET_UP)) == SET_UP
    for line in (b'{"type":"SetUp","protocol":2}', b'{"protocol":2,"settings":3}'):
        with pytest.raises(KvbenchError) as raised:
            greet(line)
        assert str(raised.value) == (
            "its kvbench speaks version 1 of the protocol of `kvbench ab`; expected 2"
        )
    with pytest.raises(messages.UNREADABLE):
        greet(b"hello")
