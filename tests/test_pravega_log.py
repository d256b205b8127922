"""The log of commits, the records' hashes, and the messages of Pravega's protocols: without a server."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from snapshot.connectors.pravega import commit_log, segment_store
from snapshot.connectors.pravega.address import Access, Host, access_to
from snapshot.connectors.pravega.commit_log import MOST_WRITERS, CommitLog, Intent, Known, Piece, log_of
from snapshot.connectors.pravega.controller import Segment
from snapshot.connectors.pravega.messages import message, parsed
from snapshot.connectors.pravega.routing import place_of, routed
from snapshot.connectors.pravega.segment_store import SegmentConnection, StoreFailed, events_in, framed
from snapshot.epochs.transaction_events import transaction_id
from snapshot.ids import JobId
from statebackend.ids import Attempt, Generation, Incarnation, Partition, Uid

WHOLE = st.integers(-(1 << 63), (1 << 63) - 1)


def piece(writer: int, number: int, sealed_at: int = 0, first: int | None = None) -> Piece:
    return Piece(f"1-{writer}/{writer:016x}", number if first is None else first, number, sealed_at)


def committed(log: CommitLog, piece: Piece) -> CommitLog:
    return log.begun(Intent(piece, 7)).settled(True)


# --- the log ----------------------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9), st.booleans())))
def test_a_log_knows_what_was_committed_and_nothing_else(steps: list[tuple[int, int, bool]]) -> None:
    log, done = CommitLog(), set()
    for writer, number, succeeds in steps:
        log = log.begun(Intent(piece(writer, number), 7))
        assert CommitLog.decode(log.encode()) == log
        log = log.settled(succeeds)
        assert CommitLog.decode(log.encode()) == log
        done |= {(writer, number)} if succeeds else set()
    for writer in range(4):
        for number in range(10):
            expected = Known.COMMITTED if (writer, number) in done else Known.MISSING
            assert log.knows(piece(writer, number)) is expected


def test_what_lies_between_two_transactions_with_rows_needs_no_range_of_its_own() -> None:
    log = committed(committed(CommitLog(), piece(1, 4, first=0)), piece(1, 9, first=5))
    assert b'["0-9",0]' in log.encode()


def test_writers_that_committed_long_ago_are_forgotten_and_never_taken_for_unknown_ones() -> None:
    log = CommitLog()
    for writer in range(MOST_WRITERS + 2):
        log = committed(log, piece(writer, 0, sealed_at=100 + writer))
    assert len(log.writers) == MOST_WRITERS
    assert [log.knows(piece(writer, 0, 100 + writer)) for writer in (0, 1)] == [Known.FORGOTTEN] * 2
    assert log.knows(piece(2, 0, 102)) is Known.COMMITTED
    assert log.knows(piece(1, 1, sealed_at=102)) is Known.MISSING  # sealed after the last commit that was forgotten


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 1), st.integers(0, 3)), min_size=9, max_size=30),
    st.integers(1, 2),
    st.integers(0, 3),
)
def test_no_clock_has_a_piece_written_twice_or_one_of_a_newer_attempt_refused(
    asked: list[tuple[int, int, int]], most: int, clock: int
) -> None:
    """Pieces are asked for in any order, by writers in any order, whatever their clocks say."""
    log, sealed = CommitLog(), dict[tuple[int, int], int]()
    done = set[Piece]()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(commit_log, "MOST_WRITERS", most)
        for writer, number, sealed_at in asked:
            one = piece(writer, number, sealed.setdefault((writer, number), sealed_at))
            known = log.knows(one)
            assert known is not (Known.MISSING if one in done else Known.COMMITTED)
            if known is Known.MISSING:
                log = committed(log, one)
                done.add(one)
            assert CommitLog.decode(log.encode()) == log
            assert log.knows(piece(3, 0, sealed_at=clock)) is Known.MISSING


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{}",
        b"[]",
        b'{"writers":{},"forgotten":[-1,-1,-1]}',
        b'{"writers":{}, "forgotten":[-1,-1,-1],"intent":null}',
        b'{"writers":{},"forgotten":-1,"intent":null}',
        b'{"writers":{"1-1/a":["2-1",0]},"forgotten":[-1,-1,-1],"intent":null}',
        b'{"writers":{"a":["1-2",0]},"forgotten":[-1,-1,-1],"intent":null}',
        b'{"writers":{},"forgotten":[-1,-1,-1],"intent":[1]}',
        b'{"writers":{},"forgotten":[-1,-1,-1],"intent":["a",0,0,0,"00000000000000000000000000000007"]}',
    ],
)
def test_what_is_no_record_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="a record of commits is not"):
        CommitLog.decode(data)


def test_each_partition_of_each_sink_of_each_job_has_a_log_of_its_own_for_each_stream() -> None:
    places = [("a-b", "c", 0, "s"), ("a", "b-c", 0, "s"), ("a-b", "c", 1, "s"), ("a-b", "c", 0, "t")]
    names = {
        log_of(transaction_id(JobId(job), Uid(uid), we, Partition(partition), 3), stream)
        for job, uid, partition, stream in places
        for we in (Incarnation(Generation(1), Attempt(0)), Incarnation(Generation(2), Attempt(5)))
    }
    assert len(names) == len(places)
    assert all(name.replace("-", "").isalnum() for name in names)


# --- segments ---------------------------------------------------------------------------------------------------------


def test_keys_have_the_hashes_that_other_clients_give_them() -> None:
    said_by_java = {
        "": 0.24117842791623523,
        "a": 0.9433912753816884,
        "key": 0.8449093464660018,
        "käse": 0.6279365264629875,
        "\U0001f600": 0.7750255912171164,
    }
    assert {key: place_of(key) for key in said_by_java} == said_by_java


@given(st.lists(st.tuples(st.none() | st.text(max_size=2), st.binary(max_size=3))), st.integers(1, 5))
def test_events_of_a_key_are_in_one_segment_and_in_order(events: list[tuple[str | None, bytes]], number: int) -> None:
    segments = [Segment("s", "t", id, id / number, (id + 1) / number) for id in range(number)]
    found = routed(events, segments)
    assert sorted(one for some in found.values() for one in some) == sorted(event for _, event in events)
    for key in {key for key, _ in events} - {None}:
        assert key is not None
        [home] = [one for one in segments if one.low <= place_of(key) < one.high]
        of_key = [event for other, event in events if other == key]
        left = iter(found[home])
        assert all(event in left for event in of_key)


@given(st.lists(st.binary(max_size=9)))
def test_events_come_back_from_a_segment(events: list[bytes]) -> None:
    data = b"".join(map(framed, events))
    assert events_in(data) == events
    if data:
        with pytest.raises(StoreFailed):
            events_in(data[:-1])


@pytest.mark.parametrize("answers", [[1, 2, 3], [3], [1, 3], [1, 1, 3], [2, 3]])
def test_an_answer_of_a_store_is_for_all_blocks_up_to_the_event_that_it_names(
    answers: Sequence[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    with answering(answers, monkeypatch) as connection:
        connection.append("s/t/0", [b"a", b"b", b"c"])


@pytest.mark.parametrize("answers", [[], [1, 2], [1, 1, 1], [0, 2]])
def test_an_append_whose_last_event_is_not_answered_for_is_not_done(
    answers: Sequence[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        answering(answers, monkeypatch) as connection,
        pytest.raises(StoreFailed, match="it closed the connection"),
    ):
        connection.append("s/t/0", [b"a", b"b", b"c"])


@contextmanager
def answering(answers: Sequence[int], monkeypatch: pytest.MonkeyPatch) -> Iterator[SegmentConnection]:
    """A connection with a block for each event, on which these numbers of events come as answers, and then no more."""
    ours, theirs = socket.socketpair()
    hello, set_up = (-127, struct.pack(">ii", 16, 5)), (2, b"")
    appended = [(7, struct.pack(">16sqqqq", b"", number, 0, 0, 0)) for number in answers]
    for kind, answer in (hello, set_up, *appended):
        theirs.sendall(struct.pack(">ii", kind, len(answer)) + answer)
    theirs.shutdown(socket.SHUT_WR)
    monkeypatch.setattr(Access, "connect", lambda *_: ours)
    monkeypatch.setattr(segment_store, "_BLOCK", 1)
    connection = SegmentConnection(access_to("tcp://host:1", {}), Host("host", 1), "", 10.0)
    with theirs, closing(connection):
        yield connection


# --- messages and addresses -------------------------------------------------------------------------------------------


@given(WHOLE, st.text(), WHOLE)
def test_a_message_says_what_was_put_into_it(number: int, text: str, inner: int) -> None:
    found = parsed(message((1, number), (2, text), (3, message((1, inner))), (3, message((1, 5))), (200, 7)))
    assert (found.number(1), found.text(2), found.number(200)) == (number, text, 7)
    assert [one.number(1) for one in found.all(3)] == [inner, 5]
    assert (found.number(4), found.text(5), found.fraction(6), found.all(7)) == (0, "", 0.0, [])


@given(st.binary(max_size=30))
def test_what_is_no_message_is_refused_and_hangs_nobody(data: bytes) -> None:
    try:
        found = parsed(data)
    except ValueError:
        return
    assert all(values for values in found.values.values())


def test_an_address_names_controllers_and_whether_they_are_trusted() -> None:
    access = access_to("tls://one:9090,[::1]:9091", {"user": "u", "password": "hush"})
    assert access.controllers == (Host("one", 9090), Host("::1", 9091))
    assert access.tls
    assert access.headers == {"authorization": "Basic dTpodXNo"}
    assert "hush" not in repr(access)
    for wrong in ("one:9090", "http://one:9090", "tcp://one", "tcp://", "tcp://one:9090/scope"):
        with pytest.raises(ValueError, match="is no address of a controller, such as tcp://host:9090"):
            access_to(wrong, {})


@pytest.mark.parametrize(
    "address", ["tcp://u:hush@one:9090", "tls://one:1,u:hush@two:2", "u:hush@one", "tcp://hush@one:1"]
)
def test_a_password_in_an_address_is_refused_and_not_repeated(address: str) -> None:
    with pytest.raises(ValueError, match=r"an address with a user is no address .* password are options") as told:
        access_to(address, {})
    assert "hush" not in str(told.value)
