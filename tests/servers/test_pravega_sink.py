"""Events appear in a stream when their epoch is complete, each once, whatever dies: against a real Pravega."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from secrets import token_hex

import pyarrow as pa
import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

import recovery
from snapshot import Collection, Stream
from snapshot.connectors.pravega import slot as pravega_slot
from snapshot.connectors.pravega.calls import CallFailed, Status
from snapshot.connectors.pravega.commit_log import log_of
from snapshot.connectors.pravega.controller import Controller, TransactionState
from snapshot.connectors.pravega.segment_store import SegmentConnection, StoreFailed
from snapshot.connectors.pravega.sink import ToPravega
from snapshot.connectors.pravega.slot import SegmentStores, Slot
from snapshot.epochs.transaction_events import CommitOutcome
from snapshot.ids import JobId
from snapshot.testing.sink_machine import sink_machine
from snapshot.testing.sinks import CHECKS, SCHEMA, SinkBench, SinkEnvironment, SinkTrial, some, write
from statebackend.ids import Uid
from tests.servers.postgres_proxy import Proxy
from tests.servers.pravega import SCOPE, PravegaServer, running_guarded_pravega
from tests.servers.pravega_reader import events

COMMITTED, ALREADY = CommitOutcome.COMMITTED, CommitOutcome.ALREADY_COMMITTED
RETRY, FAILED = CommitOutcome.RETRY_LATER, CommitOutcome.FAILED


def trial(server: PravegaServer, sink: ToPravega) -> SinkTrial:
    def visible(_: SinkEnvironment) -> Sequence[str]:
        return [json.loads(event)["row"] for event in server.events(sink.stream)]

    return SinkTrial(sink, visible, elsewhere=["another-stream", "tcp://127.0.0.1:1", "epochcut-commits-others-0"])


@pytest.fixture(scope="session")
def stream(pravega_server: PravegaServer) -> str:
    return pravega_server.make_stream()


@pytest.mark.parametrize("check", CHECKS)
def test_it_passes_the_kit(check: Callable[[SinkTrial], None], pravega_server: PravegaServer, stream: str) -> None:
    at = pravega_server.controller
    bad = [
        ToPravega(at, SCOPE, "nowhere"),
        ToPravega(at, "nowhere", "nowhere"),
        ToPravega(at, SCOPE, stream, transaction_timeout=1e6),
        ToPravega("tcp://127.0.0.1:1", SCOPE, stream),
    ]
    proxy = Proxy(int(at.rpartition(":")[2]))
    good = trial(pravega_server, ToPravega(f"tcp://127.0.0.1:{proxy.port}", SCOPE, stream, key="row"))
    check(replace(good, bad=bad, disturb=proxy.cut))
    proxy.close()


def test_any_order_of_events_and_crashes_shows_each_row_once(pravega_server: PravegaServer, stream: str) -> None:
    machine = sink_machine(trial(pravega_server, ToPravega(pravega_server.controller, SCOPE, stream, key="row")))
    few = settings(max_examples=3, stateful_step_count=12, deadline=None, database=None)
    run_state_machine_as_test(machine, settings=few)


# --- in the middle of a commit ----------------------------------------------------------------------------------------


class Story:
    """A transaction that is prepared, and the steps of its commit, which a test interrupts."""

    def __init__(self, server: PravegaServer, stream: str) -> None:
        self.stream = stream
        self.bench = SinkBench(trial(server, ToPravega(server.controller, SCOPE, stream, key="row")))
        self.transaction, self.payload, self.rows = self.bench.prepared()

    def commit(self, incarnation: int = 1) -> tuple[CommitOutcome, str]:
        writer = self.bench.writer(incarnation)
        answer = writer.commit(self.transaction, self.payload)
        writer.close()
        return answer.outcome, answer.reason

    def expect(self, rows: Sequence[str], promise: str) -> None:
        self.bench.expect(list(rows), promise)


@pytest.fixture
def story(pravega_server: PravegaServer) -> Story:
    return Story(pravega_server, pravega_server.make_stream())


def dies(*_: object) -> TransactionState:
    raise CallFailed(Status.UNAVAILABLE, "the process has died here")


def test_what_was_noted_and_not_committed_is_committed_by_the_process_that_finds_the_note(
    story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Controller, "commit", dies)
        outcome, reason = story.commit()
    assert outcome is RETRY
    assert "the process has died here" in reason
    story.expect([], "what is noted is not visible")
    assert story.commit(2) == (ALREADY, "")
    story.expect(story.rows, "what was noted is committed, and not written again")


def test_what_pravega_has_aborted_after_it_was_noted_is_written_again(
    story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    def aborted(controller: Controller, stream: str, transaction: int) -> TransactionState:
        assert controller.abort(stream, transaction) is TransactionState.ABORTED  # as when its lease is over
        raise CallFailed(Status.UNAVAILABLE, "the process has died here")

    with monkeypatch.context() as patch:
        patch.setattr(Controller, "commit", aborted)
        assert story.commit()[0] is RETRY
    assert story.commit(2) == (COMMITTED, "")
    story.expect(story.rows, "what was aborted is written again")


def test_a_transaction_that_is_aborted_while_it_is_committed_is_tried_again(
    story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Controller, "commit", Controller.abort)
        outcome, reason = story.commit()
    assert outcome is RETRY
    assert "Pravega has aborted transaction" in reason
    assert story.commit() == (COMMITTED, "")
    story.expect(story.rows, "the next try commits")


def test_a_commit_whose_answer_got_lost_is_not_done_again(story: Story, monkeypatch: pytest.MonkeyPatch) -> None:
    commit = Controller.commit

    def loses_the_answer(controller: Controller, stream: str, transaction: int) -> TransactionState:
        assert commit(controller, stream, transaction) is TransactionState.COMMITTED
        raise CallFailed(Status.UNAVAILABLE, "the process has died here")

    with monkeypatch.context() as patch:
        patch.setattr(Controller, "commit", loses_the_answer)
        assert story.commit()[0] is RETRY
    assert story.commit(2) == (ALREADY, "")
    story.expect(story.rows, "its rows are there once")


def test_a_committer_that_is_overtaken_commits_nothing(story: Story, monkeypatch: pytest.MonkeyPatch) -> None:
    written, overtaken = Slot._written, list[int]()

    def and_is_overtaken(slot: Slot, batches: Iterable[pa.RecordBatch], lease: float) -> int:
        transaction = written(slot, batches, lease)
        if not overtaken:
            overtaken.append(transaction)
            assert story.bench.settle(story.transaction, story.payload, 2).outcome is COMMITTED
        return transaction

    monkeypatch.setattr(Slot, "_written", and_is_overtaken)
    outcome, reason = story.commit()
    assert outcome is RETRY
    assert "another process has added to the log" in reason
    assert story.commit() == (ALREADY, "")
    story.expect(story.rows, "what two commit at once is there once")


def test_rows_are_not_written_again_if_pravega_has_forgotten_what_became_of_them(
    story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Controller, "commit", dies)
        assert story.commit()[0] is RETRY
        patch.setattr(Controller, "commit", lambda *_: TransactionState.UNKNOWN)
        outcome, reason = story.commit(2)
    assert outcome is FAILED
    assert "Pravega does not know any more whether transaction" in reason
    assert "so nothing was written" in reason


def test_a_log_that_is_long_is_shortened_and_still_knows_what_was_committed(
    pravega_server: PravegaServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pravega_slot, "_LONG_LOG", 0)
    sink = ToPravega(pravega_server.controller, SCOPE, pravega_server.make_stream())
    bench = SinkBench(trial(pravega_server, sink))
    prepared = bench.prepared_one_after_the_other(3)
    for one in prepared:
        bench.settle(one.transaction, one.payload)
    slot = Slot(sink._clients, sink.stream, log_of(prepared[0].transaction, sink.stream))
    assert slot._kept.start > 0
    slot.close()
    for one in prepared:
        bench.settle(one.transaction, one.payload, 2)
    bench.expect([row for one in prepared for row in one.rows], "nothing is forgotten or repeated")


def test_many_small_batches_cost_one_answer_of_each_segment(
    pravega_server: PravegaServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    append, asked = SegmentConnection.append, list[int]()

    def counted(connection: SegmentConnection, segment: str, events: Sequence[bytes]) -> None:
        asked.append(len(events))
        append(connection, segment, events)

    bench = SinkBench(trial(pravega_server, ToPravega(pravega_server.controller, SCOPE, pravega_server.make_stream())))
    writer, transaction, rows = bench.writer(), bench.name(), bench.rows(100)
    writer.begin(transaction)
    for row in rows:
        write(writer, [row])
    payload = some(writer.seal().prepare(), transaction)
    monkeypatch.setattr(SegmentConnection, "append", counted)
    assert writer.commit(transaction, payload).outcome is COMMITTED
    writer.close()
    assert asked == [len(rows)]
    bench.expect(rows, "all of them are there")


def test_a_stream_that_is_no_log_is_refused(story: Story, pravega_server: PravegaServer) -> None:
    sink = story.bench.sink()
    assert isinstance(sink, ToPravega)
    slot = Slot(sink._clients, story.stream, log_of(story.transaction, story.stream))
    assert slot._stores.of(slot._segment).append_at(slot._segment.name, b"something else", 0)
    slot.close()
    outcome, reason = story.commit()
    assert outcome is FAILED
    assert "is for records of commits, but has something else at its end" in reason


# --- passwords and certificates ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def guarded_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PravegaServer]:
    with running_guarded_pravega(tmp_path_factory.mktemp("guarded")) as server:
        yield server


def test_rows_are_committed_to_a_server_that_wants_a_password_and_speaks_tls(guarded_server: PravegaServer) -> None:
    sink = ToPravega(guarded_server.controller, SCOPE, guarded_server.make_stream(), options=guarded_server.options)
    bench = SinkBench(SinkTrial(sink, lambda _: []))
    transaction, payload, rows = bench.prepared()
    assert bench.settle(transaction, payload).outcome is COMMITTED
    assert bench.settle(transaction, payload, 2).outcome is ALREADY
    controller = sink._clients.controller()
    [segment], token = controller.segments(sink.stream)
    stores = SegmentStores(sink._clients, controller, token)
    found = stores.of(segment).read(segment.name, stores.of(segment).extent(segment.name))
    assert [json.loads(event)["row"] for event in found] == rows
    stores.token = ""
    stores.close()
    with pytest.raises(StoreFailed, match="AUTH_TOKEN_CHECK_FAILED"):
        stores.of(segment).extent(segment.name)
    stores.close()
    controller.close()


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"password": "another"}, "with UNAUTHENTICATED"),
        ({"user": ""}, "with UNAUTHENTICATED: Authentication failed"),
        ({"certificates": ""}, "certificate verify failed: self-signed certificate"),
        ({"certificates": "nowhere.pem"}, "No such file or directory"),
    ],
)
def test_what_a_server_refuses_is_found_before_anything_starts(
    changed: Mapping[str, str], problem: str, guarded_server: PravegaServer
) -> None:
    options = {**guarded_server.options, **changed}
    sink = ToPravega(guarded_server.controller, SCOPE, "usable", options=options)
    [found] = sink.examine(JobId("job"), Uid("out"), SCHEMA)
    assert problem in found
    assert guarded_server.options["password"] not in found


def test_a_server_that_speaks_tls_is_not_asked_without(guarded_server: PravegaServer) -> None:
    address = guarded_server.controller.replace("tls://", "tcp://")
    [found] = ToPravega(address, SCOPE, "usable").examine(JobId("job"), Uid("out"), SCHEMA)
    assert "does not answer" in found


# --- jobs -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("exactly_once", [True, False])
def test_a_job_writes_every_row_to_all_segments_of_a_stream_that_it_makes(
    exactly_once: bool, pravega_server: PravegaServer, tmp_path: Path
) -> None:
    sink = ToPravega(
        pravega_server.controller, f"made-{token_hex(4)}", "here", key="row", create=3, exactly_once=exactly_once
    )
    rows = [{"row": f"row {number}"} for number in range(1000)]
    program = Stream.read(Collection(rows, SCHEMA), uid="rows").write(sink, uid="out")
    recovery.run(program, checkpoints=tmp_path, parallelism=2, progress=False).wait(120)
    found = [json.loads(event) for event in events(sink.controller, sink.scope, sink.stream)]
    assert sorted(found, key=str) == sorted(rows, key=str)
    controller = sink._clients.controller()
    segments, token = controller.segments(sink.stream)
    stores = SegmentStores(sink._clients, controller, token)
    assert len(segments) == 3
    assert all(stores.of(one).extent(one.name).end > 0 for one in segments)
    stores.close()
    controller.close()
