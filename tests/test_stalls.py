"""What makes no progress is told, with what it waits for, once; what has nothing to do is not."""

from __future__ import annotations

import json
import pickle
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import recovery
from recovery import events as log
from snapshot import PAUSE, Collection, Stream, ToDriver
from snapshot.cut.participant import Part, PartDurable, Participant, SubtaskCut
from snapshot.host.net.event_loop import EventLoop
from snapshot.host.partition.stalls import (
    LoopWatch,
    MalformedWord,
    PendingEpoch,
    StallWatch,
    parse_stalled,
    stalled_bytes,
)
from snapshot.host.protocol.messages import StageFigures, Stalled
from snapshot.operators.row_class import Row
from statebackend.ids import Attempt, Epoch, Generation, Incarnation, Partition, Uid

US = Incarnation(Generation(1), Attempt(1))
COUNT = Uid("count")
SEVENTH = Epoch(Generation(1), 7)
IDLE = StageFigures(rows_in=10, rows_out=10, watermark=None, queued_bytes=0, held_back=0, blocked_ms=0.0)
PATIENCE = 60.0


def watch() -> StallWatch:
    return StallWatch(US, Partition(1), 10.0)


def told(watch: StallWatch, now: float, figures: StageFigures) -> list[str]:
    return [
        f"{stalled.uid} {stalled.seconds:g}: {stalled.waits_for}" for stalled in watch.look(now, {COUNT: figures}, ())
    ]


@pytest.mark.parametrize(
    ("figures", "blocked_ms", "why"),
    [
        (replace(IDLE, queued_bytes=5), 0, "nothing that is known: it has 5 bytes of input"),
        (replace(IDLE, queued_bytes=5, held_back=2), 0, "markers: an alignment holds back 2 of its channels"),
        (replace(IDLE, queued_bytes=5), 400, "room: those to whom it sends take nothing"),
        (replace(IDLE, waits_for="the brokers"), 0, "the brokers"),
    ],
)
def test_an_operator_that_does_not_move_is_told_of_once(figures: StageFigures, blocked_ms: float, why: str) -> None:
    watched = watch()
    said = [told(watched, now, replace(figures, blocked_ms=blocked_ms * now)) for now in (0.0, 5.0, 10.0, 15.0, 60.0)]
    assert said == [[], [], [f"count 10: {why}"], [], []]


def test_an_operator_that_has_moved_and_stops_again_is_told_of_again() -> None:
    watched, stuck = watch(), replace(IDLE, queued_bytes=5)
    for now, figures, count in ((0, stuck, 0), (10, stuck, 1), (12, replace(stuck, rows_in=11), 0)):
        assert len(told(watched, now, figures)) == count
    assert not told(watched, 21, replace(stuck, rows_in=11))
    assert len(told(watched, 22, replace(stuck, rows_in=11))) == 1


def test_who_has_nothing_to_do_does_not_stall_and_its_time_begins_with_its_input() -> None:
    watched = watch()
    for now in (0.0, 100.0, 200.0):
        assert not told(watched, now, IDLE)
    assert not told(watched, 209.0, replace(IDLE, queued_bytes=1))
    assert told(watched, 210.0, replace(IDLE, queued_bytes=1))


def test_an_epoch_that_is_not_acknowledged_is_told_of_once_with_all_that_it_waits_for() -> None:
    watched = watch()
    pending = [PendingEpoch(SEVENTH, 5.0, {COUNT: "its files", Uid("out"): "its sink"})]
    assert not watched.look(14.9, {}, pending)
    assert watched.look(15.0, {}, pending) == [
        Stalled(US, Partition(1), COUNT, 10.0, "its files", SEVENTH),
        Stalled(US, Partition(1), Uid("out"), 10.0, "its sink", SEVENTH),
    ]
    assert not watched.look(16.0, {}, pending)


def test_a_partition_knows_for_whom_an_epoch_waits() -> None:
    participant: Participant[str] = Participant([COUNT, Uid("out")])
    assert participant.awaited(SEVENTH) == {COUNT: (), "out": ()}
    participant.handle(SubtaskCut(SEVENTH, COUNT, "cut", frozenset({Part.FILES})))
    assert participant.awaited(SEVENTH) == {COUNT: [Part.FILES], "out": ()}
    participant.handle(SubtaskCut(SEVENTH, Uid("out"), "cut", frozenset()))
    assert participant.awaited(SEVENTH) == {COUNT: [Part.FILES]}
    participant.handle(PartDurable(SEVENTH, COUNT, Part.FILES, "files"))
    assert participant.awaited(SEVENTH) == {}


epochs = st.builds(Epoch, st.builds(Generation, st.integers(1)), st.integers(0))
stalls = st.builds(
    Stalled, st.just(US), st.just(Partition(3)), st.none() | st.just(COUNT), st.floats(0, 1e9), st.text(),
    st.none() | epochs, st.text(),
)  # fmt: skip


@given(stalls)
def test_what_is_told_between_beats_is_read_as_it_was_written(stalled: Stalled) -> None:
    assert parse_stalled(stalled_bytes(stalled)) == stalled


GOOD = json.loads(stalled_bytes(Stalled(US, Partition(1), COUNT, 1.0, "why", SEVENTH, "stack")))


@pytest.mark.parametrize(
    "said",
    [
        pickle.dumps(Stalled(US, Partition(1), COUNT, 1.0, "why")),
        b"\xff",
        b"[" * 100_000,
        b"{}",
        json.dumps(GOOD[:-1]).encode(),
        *(json.dumps([*GOOD[:at], {}, *GOOD[at + 1 :]]).encode() for at in range(len(GOOD))),
        *(
            json.dumps([*GOOD[:5], seconds, *GOOD[6:]]).encode()
            for seconds in (-1, 10**400, float("inf"), float("nan"))
        ),
    ],
)
def test_what_makes_no_sense_between_beats_is_refused_by_name(said: bytes) -> None:
    with pytest.raises(MalformedWord):
        parse_stalled(said)


@pytest.fixture
def loop() -> Iterator[EventLoop]:
    loop = EventLoop()
    yield loop
    loop.close()


def test_a_call_that_does_not_return_is_told_of_with_where_it_is(loop: EventLoop) -> None:
    entered, leave = threading.Event(), threading.Event()

    def in_the_function_of_a_user() -> None:
        entered.set()
        leave.wait(PATIENCE)

    loop.call_soon(in_the_function_of_a_user)
    thread = threading.Thread(target=loop.run_once)
    thread.start()
    assert entered.wait(PATIENCE)
    assert thread.ident is not None
    watched = LoopWatch(loop, thread.ident, lambda: (US, Partition(2), COUNT))
    assert watched.look() is None
    watched.after = 0.0
    stalled = watched.look()
    assert stalled is not None
    assert (stalled.partition, stalled.uid) == (2, COUNT)
    assert "in_the_function_of_a_user" in stalled.stack
    assert watched.look() is None, "once"
    leave.set()
    thread.join(PATIENCE)
    assert watched.look() is None


class Slow:
    """A function that waits at the third row until a file is there."""

    def __init__(self, gate: Path) -> None:
        self.gate = gate

    def __call__(self, row: Row) -> bool:
        import time

        while row.n == 3 and not self.gate.exists():
            time.sleep(0.01)
        return True


def test_a_job_tells_of_a_function_that_hangs_and_goes_on_when_it_does(tmp_path: Path) -> None:
    schema = pa.schema({"k": pa.string(), "n": pa.int64()})
    rows = [item for n in range(6) for item in (("a", n), PAUSE(0.05))]
    numbers = Stream.read(Collection(rows, schema, splits=1), uid="numbers").filter(Slow(tmp_path / "gate"))
    run = recovery.run(
        numbers.key_by("k").sum("n", uid="count").write(ToDriver(), uid="out"),
        checkpoints=tmp_path / "tree",
        local=tmp_path / "local",
        every="50ms",
        parallelism=2,
        progress=False,
        advanced={"report_stall_after": "300ms"},
        launcher=recovery.LocalProcesses(),
    )
    hangs, waits = threading.Event(), threading.Event()

    def heard(event: object) -> None:
        if isinstance(event, log.Stalled):
            (hangs if event.stack else waits).set()

    run._driver.events.listen(heard)
    assert hangs.wait(PATIENCE)
    assert waits.wait(PATIENCE)
    (tmp_path / "gate").touch()
    run.wait(PATIENCE)
    assert [int(str(row["n"])) for row in run.rows("out")] == [0, 1, 3, 6, 10, 15]
    stalled = [event for event in run.events if isinstance(event, log.Stalled)]
    call = next(event for event in stalled if event.stack)
    assert call.uid == "numbers"
    assert "__call__" in call.stack
    waiting = [event for event in stalled if event.epoch is not None]
    assert any("the marker on numbers" in event.waits_for for event in waiting), [e.waits_for for e in waiting]
    assert not run.status().restarts
