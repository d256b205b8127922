"""Records appear in a topic when their epoch is complete, each once, whatever dies: against a real broker."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

import recovery
from snapshot import Collection, Stream
from snapshot.connectors.kafka import commit as kafka_commit
from snapshot.connectors.kafka import slot as kafka_slot
from snapshot.connectors.kafka.sink import ToKafka
from snapshot.connectors.kafka.sink_client import KafkaClients, told_apart
from snapshot.connectors.kafka.slot import Slot, TokenPlace
from snapshot.connectors.kafka.tokens import group_of
from snapshot.connectors.staging.commit_tokens import TargetError
from snapshot.connectors.staging.committed import Committed
from snapshot.epochs.token_commit import TargetAnswer
from snapshot.epochs.transaction_events import CommitOutcome, Committable, parse_transaction_id
from snapshot.operators.rows import Rows
from snapshot.program.sink import CommitsTogether, SinkError
from snapshot.testing.sink_machine import sink_machine
from snapshot.testing.sinks import CHECKS, SCHEMA, SinkBench, SinkEnvironment, SinkTrial, some, write
from snapshot.tree.frozen_json import Json, JsonLike
from snapshot.tree.manifest import CommitPayload, StoredFile
from statebackend.ids import Epoch, Generation
from statebackend.snapshots.transfer import MissingFile
from tests.servers.kafka import KafkaServer

COMMITTED, ALREADY = CommitOutcome.COMMITTED, CommitOutcome.ALREADY_COMMITTED
LEVELS = ("read_committed", "read_uncommitted")
EPOCH = Epoch(Generation(1), 1)
RETRY, FAILED = CommitOutcome.RETRY_LATER, CommitOutcome.FAILED


def trial(server: KafkaServer, sink: ToKafka) -> SinkTrial:
    def visible(_: SinkEnvironment) -> Sequence[str]:
        return [json.loads(record.value or b"{}")["row"] for record in server.records(sink.topic)]

    return SinkTrial(sink, visible, elsewhere=["another-topic", "127.0.0.1:1", "epochcut/others/out/0"])


@dataclass(slots=True)
class Interrupted(SinkEnvironment):
    """Staged files; something happens when the second one of a commit is asked for."""

    happens: Callable[[], None] | None = None
    asked: list[StoredFile] = field(default_factory=list)

    def get(self, file: StoredFile) -> bytes:
        self.asked.append(file)
        if len(self.asked) == 2 and self.happens is not None:
            happens, self.happens = self.happens, None
            happens()
        return super(Interrupted, self).get(file)  # slots make another class of it


class Story:
    """A transaction of two parts, and what happens in the middle of its commit."""

    def __init__(self, server: KafkaServer, sink: ToKafka) -> None:
        self.server = server
        self.topic = sink.topic
        self.bench = SinkBench(trial(server, sink))
        self.environment = self.bench.environment = Interrupted()
        (self.transaction, payload, rows), (_, other, more) = self.bench.prepared(), self.bench.prepared()
        self.rows = rows + more
        value = Json.of({**said(payload), "rows": len(self.rows)})
        self.payload = replace(payload, value=value, staged=payload.staged + other.staged)
        self.before = self.ends()

    def ends(self) -> tuple[int, int]:
        """Where readers of committed records get to in partition 0, and where its log ends."""
        committed, all_there_is = (self.server.ends(self.topic, [0], level)[0] for level in LEVELS)
        return committed, all_there_is

    def await_records(self) -> None:
        """Wait until the first records are in the log, and see that no reader has them."""
        await_that(lambda: self.ends()[1] > self.before[1])
        at_once = self.server.records(self.topic, decided=False)
        assert not any(self.bench.job in str(record.value) for record in at_once)

    def commit(self) -> tuple[CommitOutcome, str]:
        writer = self.bench.writer()
        self.environment.asked.clear()
        answer = writer.commit(self.transaction, self.payload)
        writer.close()
        return answer.outcome, answer.reason


def await_that(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    give_up = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < give_up
        threading.Event().wait(0.05)


@pytest.fixture(scope="session")
def topic(kafka_server: KafkaServer) -> str:
    return kafka_server.make_topic(2)


@pytest.fixture
def own_topic(kafka_server: KafkaServer) -> str:
    return kafka_server.make_topic()


# --- the kit ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("check", CHECKS)
def test_it_passes_the_kit(check: Callable[[SinkTrial], None], kafka_server: KafkaServer, topic: str) -> None:
    bad = [ToKafka(kafka_server.bootstrap, "nowhere"), ToKafka(kafka_server.bootstrap, topic, transaction_timeout=1e6)]
    good = trial(kafka_server, ToKafka(kafka_server.bootstrap, topic, key="row"))
    check(replace(good, bad=bad))


def test_any_order_of_events_and_crashes_shows_each_row_once(kafka_server: KafkaServer, topic: str) -> None:
    machine = sink_machine(trial(kafka_server, ToKafka(kafka_server.bootstrap, topic, key="row")))
    few = settings(max_examples=3, stateful_step_count=12, deadline=None, database=None)
    run_state_machine_as_test(machine, settings=few)


# --- in the middle of a commit ----------------------------------------------------------------------------------------


def test_what_the_broker_aborts_for_its_age_is_committed_by_the_next_try(
    kafka_server: KafkaServer, own_topic: str
) -> None:
    story = Story(kafka_server, ToKafka(kafka_server.bootstrap, own_topic, key="row", transaction_timeout=1.0))

    def grow_old() -> None:
        story.await_records()
        await_that(lambda: len(set(story.ends())) == 1)  # readers stop before it until it is aborted

    story.environment.happens = grow_old
    outcome, reason = story.commit()
    assert outcome is RETRY
    assert "aborts what takes longer than transaction_timeout=1" in reason
    assert story.commit() == (COMMITTED, "")
    story.bench.expect(story.rows, "the next try commits")


def test_a_committer_that_is_overtaken_writes_nothing(kafka_server: KafkaServer, own_topic: str) -> None:
    story = Story(kafka_server, ToKafka(kafka_server.bootstrap, own_topic, key="row"))

    def overtake() -> None:
        assert story.bench.settle(story.transaction, story.payload, 2).outcome is COMMITTED

    story.environment.happens = overtake
    outcome, reason = story.commit()
    assert outcome is RETRY
    assert "fenced" in reason or "epoch" in reason
    assert story.commit() == (ALREADY, "")
    story.bench.expect(story.rows, "what two commit at once is there once")


def test_a_commit_whose_answer_got_lost_is_not_done_again(
    kafka_server: KafkaServer, own_topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    story, commit = Story(kafka_server, ToKafka(kafka_server.bootstrap, own_topic, key="row")), Slot.commit

    def lose_the_answer(*arguments: object) -> None:
        commit(*arguments)  # type: ignore[arg-type]
        raise TargetError(TargetAnswer.UNKNOWN, "the connection is gone")

    with monkeypatch.context() as patch:
        patch.setattr(Slot, "commit", lose_the_answer)
        assert story.commit() == (RETRY, "the connection is gone")
    assert story.commit() == (ALREADY, "")
    story.bench.expect(story.rows, "its rows are there once")


class NeverSent:
    """A producer whose client waits for ever with the token, as librdkafka does for a broker that was away."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer
        self.goes_on = threading.Event()
        self.ended = threading.Event()

    def __getattr__(self, name: str) -> object:
        return getattr(self._producer, name)

    def send_offsets_to_transaction(self, *arguments: Any) -> None:
        try:
            assert self.goes_on.wait(60)
            self._producer.send_offsets_to_transaction(*arguments)
        finally:
            self.ended.set()


def test_a_client_that_never_comes_back_with_the_token_is_given_up_and_overtaken(
    kafka_server: KafkaServer, own_topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    story = Story(kafka_server, ToKafka(kafka_server.bootstrap, own_topic, key="row"))
    stuck: list[NeverSent] = []

    def made(clients: KafkaClients, *arguments: Any) -> NeverSent:
        stuck.append(NeverSent(producer(clients, *arguments)))
        return stuck[-1]

    with monkeypatch.context() as patch:
        producer = KafkaClients.producer
        patch.setattr(KafkaClients, "producer", made)
        patch.setattr(kafka_slot, "_ANSWER", 0.5)
        outcome, reason = story.commit()
    assert outcome is RETRY
    assert "has not sent the commit token" in reason
    story.bench.expect([], "nothing of it is visible")
    assert story.commit() == (COMMITTED, "")
    [late] = stuck
    late.goes_on.set()
    assert late.ended.wait(60)
    assert story.commit() == (ALREADY, "")
    story.bench.expect(story.rows, "its rows are there once, also when the first one goes on")


def test_a_broker_that_is_killed_in_the_middle_of_a_commit_has_the_rows_once(mortal_kafka_server: KafkaServer) -> None:
    """The transaction lives longer than the broker is away. One that has timed out is ended while the broker starts,
    and Kafka 4.3 may do that before it knows its topics, and then writes no abort: see the sink's description.
    """
    server = mortal_kafka_server
    sink = ToKafka(server.bootstrap, server.make_topic(), key="row", transaction_timeout=60.0)
    before = SinkBench(trial(server, sink))
    transaction, payload, _ = before.prepared()
    before.settle(transaction, payload)
    story = Story(server, sink)

    def kill() -> None:
        story.await_records()
        server.kill()

    story.environment.happens = kill
    outcome, _ = story.commit()
    assert outcome is RETRY
    [problem] = sink.examine(story.bench.job, story.bench.uid, SCHEMA)
    assert f"Kafka at {server.bootstrap} cannot be reached" in problem
    server.start()
    story.bench.recover(2, [story.transaction])
    story.bench.settle(story.transaction, story.payload, 2)
    story.bench.expect(story.rows, "its rows are there once")
    assert before.settle(transaction, payload, 2).outcome is ALREADY


def test_what_a_partition_left_open_that_is_gone_is_aborted_by_whoever_commits_for_it(
    kafka_server: KafkaServer, own_topic: str
) -> None:
    story = Story(kafka_server, ToKafka(kafka_server.bootstrap, own_topic, key="row"))
    left = story.bench.prepared_by(3)
    dead = Producer(
        {
            "bootstrap.servers": kafka_server.bootstrap,
            "transactional.id": str(said(left.payload)["producer"]),
            **kafka_server.client_settings,
        }
    )
    dead.init_transactions(20)
    dead.begin_transaction()
    dead.produce(own_topic, b'{"row":"half of it"}')
    dead.flush(20)
    committed, end = story.ends()
    assert committed < end
    writer = story.bench.writer(1, partition=1, generation=2)
    assert writer.commit(left.transaction, left.payload).outcome is COMMITTED
    writer.close()
    await_that(lambda: len(set(story.ends())) == 1)
    story.bench.expect(left.rows, "the committable's rows are there, and nothing of the dead producer")


def test_readers_see_all_of_a_transaction_or_nothing_at_every_moment(kafka_server: KafkaServer, own_topic: str) -> None:
    sink = ToKafka(kafka_server.bootstrap, own_topic, key="row")
    good: list[set[str]] = []
    bad: set[str] = set()
    seen: list[Counter[str]] = []
    looked, enough = threading.Semaphore(0), threading.Event()

    def look(*, decided: bool) -> Counter[str]:
        records = kafka_server.records(own_topic, decided=decided)
        return Counter(json.loads(record.value or b"{}")["row"] for record in records)

    def read() -> None:
        while not enough.is_set():
            seen.append(look(decided=False))
            looked.release()

    reader = threading.Thread(target=read)
    reader.start()
    try:
        for number in range(8):
            story = Story(kafka_server, sink)
            if number % 2:
                bad |= set(story.rows)
                story.environment.happens = lose_a_file
                assert story.commit()[0] is FAILED
            else:
                good.append(set(story.rows))
                assert story.commit()[0] is COMMITTED
            assert looked.acquire(timeout=60)  # as often as there is something to see
    finally:
        enough.set()
        reader.join()
    seen.append(look(decided=True))
    assert set(seen[-1]) == set[str]().union(*good)
    for rows in seen:
        assert not bad & set(rows)
        assert all(count == 1 for count in rows.values())
        assert all(transaction <= set(rows) or not transaction & set(rows) for transaction in good)


def lose_a_file() -> None:
    raise MissingFile("somebody has removed it")


# --- what is refused --------------------------------------------------------------------------------------------------


def test_a_record_that_is_too_large_for_the_topic_is_refused_by_its_key_until_there_is_room(
    kafka_server: KafkaServer,
) -> None:
    topic = kafka_server.make_topic(config={"max.message.bytes": "4000"})
    sink = ToKafka(kafka_server.bootstrap, topic, key="row")
    bench = SinkBench(trial(kafka_server, sink))
    small, large = bench.rows(1)[0], f"{bench.job}: {'x' * 5_000}"
    writer, transaction = bench.writer(), bench.name()
    writer.begin(transaction)
    write(writer, [small, large])
    payload = writer.seal().prepare()
    assert payload is not None
    answer = writer.commit(transaction, payload)
    writer.close()
    assert answer.outcome is FAILED
    assert f"the record with the key '{bench.job}: xxx" in answer.reason
    assert "MSG_SIZE_TOO_LARGE" in answer.reason
    bench.expect([], "nothing of a transaction that was refused is visible")
    make_room(kafka_server, topic)
    assert bench.settle(transaction, payload).outcome is COMMITTED
    bench.expect([small, large], "where there is room it is committed")


def test_what_piled_up_is_committed_in_one_transaction(
    kafka_server: KafkaServer, own_topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = SinkBench(trial(kafka_server, ToKafka(kafka_server.bootstrap, own_topic, key="row")))
    prepared = bench.prepared_one_after_the_other(20)
    due = [Committable(one.transaction, EPOCH, one.payload) for one in prepared]
    done: list[str] = []
    committed = Slot.commit

    def counted(slot: Slot, batches: Iterable[pa.RecordBatch], place: TokenPlace, token: Committed) -> None:
        committed(slot, batches, place, token)
        done.append(str(token))

    monkeypatch.setattr(Slot, "commit", counted)
    writer = bench.writer()
    assert writer.commit(due[0].transaction, due[0].payload).outcome is COMMITTED
    assert isinstance(writer, CommitsTogether)
    outcomes = [writer.commit_together(due[at:]).outcome for at in range(1, 20)]
    writer.close()
    assert outcomes == [COMMITTED] + [ALREADY] * 18
    numbers = [parse_transaction_id(one.transaction).n for one in due]
    assert done == [f"{numbers[0]}", f"{numbers[0]}-{numbers[-1]}"]
    bench.expect([row for one in prepared for row in one.rows], "all are there once")
    assert bench.settle(due[7].transaction, due[7].payload).outcome is ALREADY


def test_one_that_is_refused_among_those_that_piled_up_hinders_none_before_it(
    kafka_server: KafkaServer,
) -> None:
    topic = kafka_server.make_topic(config={"max.message.bytes": "4000"})
    bench = SinkBench(trial(kafka_server, ToKafka(kafka_server.bootstrap, topic, key="row")))
    writer, rows = bench.writer(), bench.rows(3)
    due = []
    for some_rows in (rows, [f"{bench.job}: {'x' * 5_000}"], bench.rows(3)):
        writer.begin(transaction := bench.name())
        write(writer, some_rows)
        due.append(Committable(transaction, EPOCH, some(writer.seal().prepare(), transaction)))
    assert isinstance(writer, CommitsTogether)
    together = writer.commit_together(due)
    assert together.outcome is RETRY
    assert together.reason.startswith("one of 3 transactions: the record with the key")
    bench.expect([], "they are in one transaction")
    assert writer.commit_together(due).outcome is COMMITTED
    assert writer.commit_together(due[1:]).outcome is RETRY
    assert writer.commit_together(due[1:]).outcome is FAILED
    writer.close()
    bench.expect(rows, "what is in front of it is committed")


def make_room(server: KafkaServer, topic: str) -> None:
    entry = ConfigEntry("max.message.bytes", "10000000", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    admin = server.admin()
    admin.incremental_alter_configs([resource])[resource].result(timeout=20)


def said(payload: CommitPayload) -> Mapping[str, JsonLike]:
    value = payload.value.value()
    assert isinstance(value, Mapping)
    return value


def sealed_long_ago(payload: CommitPayload) -> CommitPayload:
    return replace(payload, value=Json.of({**said(payload), "sealed_at": 0}))


def test_a_token_that_may_be_forgotten_is_a_failure_and_no_reason_to_write(
    kafka_server: KafkaServer, own_topic: str
) -> None:
    sink = ToKafka(kafka_server.bootstrap, own_topic, key="row")
    bench = SinkBench(trial(kafka_server, sink))
    (done, payload, rows), (unknown, other, _) = bench.prepared(), bench.prepared()
    bench.settle(done, payload)
    writer = bench.writer()
    assert writer.commit(done, sealed_long_ago(payload)).outcome is ALREADY
    answer = writer.commit(unknown, sealed_long_ago(other))
    assert answer.outcome is FAILED
    assert "cannot be told whether its 3 records are in topic" in answer.reason
    assert "168 h, offsets.retention.minutes" in answer.reason
    bench.expect(rows, "nothing is written that may be there")
    writer.close()


def test_a_token_that_expires_between_the_look_and_the_commit_leaves_no_row_out(
    kafka_server: KafkaServer, own_topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = SinkBench(trial(kafka_server, ToKafka(kafka_server.bootstrap, own_topic, key="row")))
    transaction, payload, rows = bench.prepared()
    looks = iter([False])
    monkeypatch.setattr(kafka_commit, "may_be_forgotten", lambda *_: next(looks, True))
    assert bench.settle(transaction, payload).outcome is COMMITTED
    bench.expect(rows, "what is answered for is written")


def test_a_group_to_which_somebody_else_commits_is_not_taken_for_a_token(
    kafka_server: KafkaServer, own_topic: str
) -> None:
    bench = SinkBench(trial(kafka_server, ToKafka(kafka_server.bootstrap, own_topic, key="row")))
    transaction, payload, _ = bench.prepared()
    group = {"group.id": group_of(transaction, str(said(payload)["writer"])), **kafka_server.client_settings}
    with Consumer({"bootstrap.servers": kafka_server.bootstrap, **group}) as consumer:
        consumer.commit(offsets=[TopicPartition(own_topic, 0, 5, "mine")], asynchronous=False)
    writer = bench.writer()
    answer = writer.commit(transaction, payload)
    writer.close()
    assert answer.outcome is FAILED
    assert "it has offsets that this sink did not commit: 'mine'" in answer.reason


def test_a_topic_that_is_missing_is_made_if_that_was_asked_for(kafka_server: KafkaServer) -> None:
    bench = SinkBench(trial(kafka_server, ToKafka(kafka_server.bootstrap, "made-by-the-sink")))
    sink = ToKafka(kafka_server.bootstrap, "made-by-the-sink", create=3)
    [problem] = replace(sink, create=None).examine(bench.job, bench.uid, SCHEMA)
    assert "has no topic 'made-by-the-sink'" in problem
    for _ in range(2):
        assert sink.examine(bench.job, bench.uid, SCHEMA) == []
    admin = kafka_server.admin()
    assert len(admin.list_topics("made-by-the-sink", timeout=20).topics["made-by-the-sink"].partitions) == 3


def test_a_wrong_password_is_found_before_the_job_starts_and_not_shown(guarded_kafka_server: KafkaServer) -> None:
    server = guarded_kafka_server
    sink = ToKafka(server.bootstrap, server.make_topic(), key="row", options=server.client_settings)
    bench = SinkBench(trial(server, sink))
    assert sink.examine(bench.job, bench.uid, SCHEMA) == []
    transaction, payload, rows = bench.prepared()
    assert bench.settle(transaction, payload).outcome is COMMITTED
    bench.expect(rows, "who knows the password commits")
    wrong = replace(sink, options={**sink.options, "sasl.password": "wr0ng"})
    [problem] = wrong.examine(bench.job, bench.uid, SCHEMA)
    assert "cannot be reached" in problem
    assert "_AUTHENTICATION" in problem
    assert "wr0ng" not in problem + repr(wrong)


def test_a_topic_that_is_gone_puts_a_commit_off_until_it_is_there_again(
    kafka_server: KafkaServer, own_topic: str
) -> None:
    sink = ToKafka(kafka_server.bootstrap, own_topic, key="row", options={"topic.metadata.propagation.max.ms": 500})
    bench = SinkBench(trial(kafka_server, sink))
    transaction, payload, rows = bench.prepared()
    admin = kafka_server.admin()
    admin.delete_topics([own_topic])[own_topic].result(timeout=20)
    writer = bench.writer()
    answer = writer.commit(transaction, payload)
    writer.close()
    assert answer.outcome is RETRY
    assert own_topic in answer.reason
    assert replace(sink, create=1).examine(bench.job, bench.uid, SCHEMA) == []
    assert bench.settle(transaction, payload).outcome is COMMITTED
    bench.expect(rows, "where there is the topic its rows are, once")


# --- in jobs ----------------------------------------------------------------------------------------------------------


def test_two_jobs_with_the_same_name_do_not_take_each_others_rows_for_committed(
    kafka_server: KafkaServer, own_topic: str, tmp_path: Path
) -> None:
    sink = ToKafka(kafka_server.bootstrap, own_topic, key="n")
    for number in (1, 2):
        numbers = [(number * 100 + n,) for n in range(10)]
        program = Stream.read(Collection(numbers, pa.schema([("n", pa.int64())])), uid="in").write(sink, uid="out")
        folder = tmp_path / str(number)
        with recovery.run(program, checkpoints=folder, local=folder / "local", job="same", progress=False) as run:
            run.wait()
    found = Counter(json.loads(record.value or b"{}")["n"] for record in kafka_server.records(own_topic))
    assert found == Counter([*range(100, 110), *range(200, 210)])


# --- records ----------------------------------------------------------------------------------------------------------


def test_upserts_deletions_headers_partitions_and_times_are_in_the_records(kafka_server: KafkaServer) -> None:
    topic = kafka_server.make_topic(3, {"cleanup.policy": "compact"})
    sink = ToKafka(kafka_server.bootstrap, topic, key="k", headers="h", partition="p", timestamp="t", tombstone="gone")
    rows = pa.record_batch(
        {
            "k": ["a", "b"],
            "n": [1, 2],
            "h": pa.array([[("x", "1")], None], pa.map_(pa.string(), pa.string())),
            "p": [2, 0],
            "t": [1_700_000_000_000, 1_700_000_000_001],
            "gone": [False, True],
        }
    )
    assert sink.check(rows.schema) == []
    bench = SinkBench(trial(kafka_server, sink))
    writer, transaction = bench.writer(), bench.name()
    writer.begin(transaction)
    writer.write(Rows(rows))
    payload = writer.seal().prepare()
    assert payload is not None
    assert writer.commit(transaction, payload).outcome is COMMITTED
    writer.close()
    deleted, upserted = kafka_server.records(topic)
    assert (deleted.partition, deleted.key, deleted.value) == (0, b"b", None)
    assert (upserted.partition, upserted.key, upserted.value) == (2, b"a", b'{"k":"a","n":1}')
    assert (list(upserted.headers), upserted.timestamp) == ([("x", b"1")], 1_700_000_000_000)


def test_at_least_once_rows_are_sent_as_they_come(kafka_server: KafkaServer, own_topic: str) -> None:
    options = {"message.max.bytes": 10_000_000}  # more than the topic allows
    sink = ToKafka(kafka_server.bootstrap, own_topic, key="row", options=options, exactly_once=False)
    bench = SinkBench(trial(kafka_server, sink))
    writer, rows = bench.writer(), bench.rows(5)
    writer.begin(bench.name())
    write(writer, rows)
    assert writer.seal().prepare() is None
    bench.expect(rows, "they are there before their epoch is complete")
    write(writer, ["x" * 2_000_000])
    with pytest.raises(SinkError, match="MSG_SIZE_TOO_LARGE"):
        writer.seal().prepare()
    writer.close()


def test_at_least_once_what_was_prepared_before_is_committed(kafka_server: KafkaServer, own_topic: str) -> None:
    sink = ToKafka(kafka_server.bootstrap, own_topic, key="row")
    bench = SinkBench(trial(kafka_server, sink))
    transaction, payload, rows = bench.prepared()
    later = SinkBench(trial(kafka_server, replace(sink, exactly_once=False)))
    later.environment, later.job = bench.environment, bench.job
    later.settle(transaction, payload)
    bench.expect(rows, "what an epoch carries is committed by whatever program comes next")


def test_an_error_of_the_client_that_hides_another_is_told_by_that_one() -> None:
    fenced = KafkaException(KafkaError(KafkaError._FENCED))
    with pytest.raises(TargetError, match=r"not committed: .*_FENCED") as told, told_apart("not committed"):
        raise SystemError("a result with an exception set") from fenced
    assert told.value.answer is TargetAnswer.FENCED
    with pytest.raises(SystemError), told_apart("not committed"):
        raise SystemError("another")
