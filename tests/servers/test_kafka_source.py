"""A real broker's records are read once and exactly, from any offset, whatever happens to the broker meanwhile."""

from __future__ import annotations

import json
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from secrets import token_hex

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import NewPartitions

import recovery
from recovery.events import Stalled
from snapshot import EventTime, Kafka, Stream, ToDriver, Tumbling
from snapshot.connectors.kafka import source_client as kafka_client
from snapshot.connectors.kafka.formats import KafkaFormat
from snapshot.connectors.kafka.source_client import split_of
from snapshot.program.source import (
    Batch,
    Exhausted,
    Later,
    Reader,
    SourceError,
    SourceVanished,
    SplitContext,
)
from snapshot.testing.sources import CHECKS, read_through
from snapshot.tree.frozen_json import JsonLike
from statebackend.ids import Attempt, Partition

from .kafka import KafkaServer, running_kafka

SCHEMA = pa.schema([("n", pa.int64()), ("kafka_offset", pa.int64())])
NUMBER = pa.schema([("n", pa.int64())])
LIMIT = 30.0


def producer(server: KafkaServer, **settings: str) -> Producer:
    return Producer({"bootstrap.servers": server.bootstrap, **server.client_settings, **settings})


def put(server: KafkaServer, topic: str, numbers: Sequence[int], partition: int = 0, at: int | None = None) -> None:
    """Numbers as JSON objects, one after the other; `at` is their time."""
    writer = producer(server)
    put_with(writer, topic, numbers, partition, at)
    assert writer.flush(LIMIT) == 0


def put_with(writer: Producer, topic: str, numbers: Sequence[int], partition: int = 0, at: int | None = None) -> None:
    for number in numbers:
        writer.produce(topic, json.dumps({"n": number}).encode(), partition=partition, timestamp=at or 0)


def add_partitions(server: KafkaServer, topic: str, count: int) -> None:
    admin = server.admin()  # its end would be that of the request
    admin.create_partitions([NewPartitions(topic, count)])[topic].result(LIMIT)


def transactional(server: KafkaServer) -> Producer:
    writer = producer(server, **{"transactional.id": token_hex(4)})
    writer.init_transactions(LIMIT)
    return writer


def source_of(server: KafkaServer, topic: str | Sequence[str] | re.Pattern[str], format: KafkaFormat = "json") -> Kafka:
    return Kafka(server.bootstrap, topic, format, SCHEMA, options=server.client_settings)


def opened(source: Kafka, split: str, position: JsonLike = None) -> Reader:
    return source.open(SplitContext("in", split, position, Partition(0), Attempt(1)))


def numbers(source: Kafka, split: str, position: JsonLike = None) -> list[object]:
    return [row["n"] for row in read_through(source, split, position).rows]


def read_until(reader: Reader, wanted: Callable[[list[object], JsonLike], bool]) -> tuple[list[object], JsonLike]:
    """The numbers that come, and where they end, until they are what is wanted."""
    found: list[object] = []
    position: JsonLike = None
    give_up = time.monotonic() + LIMIT
    while not wanted(found, position):
        assert time.monotonic() < give_up, f"only {found} came, up to {position}"
        reading = reader.read(100)
        if isinstance(reading, Batch):
            found += reading.rows.column("n").to_pylist()
            position = reading.position
    return found, position


# --- the promises of a source -----------------------------------------------------------------------------------------


def as_arrow(first: int) -> bytes:
    """A stream of three rows in two batches."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, NUMBER) as writer:
        for some in ([first, first + 1], [first + 2]):
            writer.write_batch(pa.RecordBatch.from_pydict({"n": some}, NUMBER))
    return bytes(sink.getvalue())


def as_avro(number: int) -> bytes:
    """A union's second branch, and the number in zigzag."""
    return b"\x02" + bytes([number << 1])


VALUES: dict[str, Callable[[int], bytes]] = {
    "json": lambda n: json.dumps({"n": n}).encode(),
    "arrow": lambda n: as_arrow(n * 3),
    "avro": as_avro,
    "raw": lambda n: str(n).encode(),
}


@pytest.mark.parametrize("format", ["json", "arrow", "avro", "raw"])
def test_a_source_keeps_its_promises(kafka_server: KafkaServer, format: KafkaFormat) -> None:
    """With transactions that were aborted between the others, and at the end."""
    topic = kafka_server.make_topic(2)
    writer = transactional(kafka_server)
    for some, commit in ((range(9), True), (range(100), False), (range(9, 20), True), (range(5), False)):
        writer.begin_transaction()
        for number in some:
            writer.produce(topic, VALUES[str(format)](number % 50), partition=number % 2)
        writer.flush(LIMIT)
        if commit:
            writer.commit_transaction(LIMIT)
        else:
            writer.abort_transaction(LIMIT)
    schema = pa.schema([("n", pa.string()), ("kafka_offset", pa.int64())]) if format == "raw" else SCHEMA
    source = replace(source_of(kafka_server, topic, format), schema=schema, stop="latest")
    for check in CHECKS:
        check(source)
    expected = range(60) if format == "arrow" else range(20)
    found = [int(str(n)) for split in source.discover(1) for n in numbers(source, split)]
    assert sorted(found) == list(expected)


def test_a_source_without_an_end_keeps_its_promises(kafka_server: KafkaServer) -> None:
    topic = kafka_server.make_topic()
    put(kafka_server, topic, range(8))
    for check in CHECKS:
        check(source_of(kafka_server, topic))


# --- where it begins and ends -----------------------------------------------------------------------------------------


def test_where_a_partition_begins_is_decided_once(kafka_server: KafkaServer) -> None:
    topic = kafka_server.make_topic()
    put(kafka_server, topic, [0, 1], at=1_700_000_000_000)
    put(kafka_server, topic, [2, 3], at=1_700_000_001_000)
    source = source_of(kafka_server, topic)
    with Consumer({"bootstrap.servers": kafka_server.bootstrap, "group.id": topic}) as group:
        group.commit(offsets=[TopicPartition(topic, 0, 3)], asynchronous=False)
    first = {
        "earliest": source.discover(1),
        "latest": replace(source, start="latest").discover(1),
        "in time": replace(source, start=datetime.fromtimestamp(1_700_000_000.5, UTC)).discover(1),
        "too late": replace(source, start=datetime.fromtimestamp(1_800_000_000, UTC)).discover(1),
        "committed": replace(source, start="committed", group=topic).discover(1),
        "never committed": replace(source, start="committed", group=token_hex(4)).discover(1),
        "bounded": replace(source, stop="latest").discover(1),
    }
    put(kafka_server, topic, [4, 5])
    read = {name: numbers(source, split) for name, [split] in first.items()}
    assert read == {
        "earliest": [0, 1, 2, 3, 4, 5],
        "latest": [4, 5],
        "in time": [2, 3, 4, 5],
        "too late": [4, 5],
        "committed": [3, 4, 5],
        "never committed": [0, 1, 2, 3, 4, 5],
        "bounded": [0, 1, 2, 3],
    }


def test_each_run_reads_up_to_where_partitions_end_when_it_starts_and_the_next_one_goes_on(
    kafka_server: KafkaServer, tmp_path: Path
) -> None:
    topic = kafka_server.make_topic(2)
    program = Stream.read(source_of(kafka_server, topic), uid="in").write(ToDriver(), uid="out")

    def read() -> list[int]:
        run = recovery.run(
            program,
            checkpoints=tmp_path / "tree",
            local=tmp_path / "local",
            every="50ms",
            available_now=True,
            progress=False,
        )
        run.wait(LIMIT)
        return sorted(int(str(row["n"])) for row in run.rows("out"))

    writer = transactional(kafka_server)
    writer.begin_transaction()
    put_with(writer, topic, range(10))
    writer.commit_transaction(LIMIT)
    writer.begin_transaction()
    put_with(writer, topic, [99])
    writer.flush(LIMIT)
    writer.abort_transaction(LIMIT)  # what is last is no record
    assert read() == list(range(10))
    put(kafka_server, topic, [10, 11], partition=1)
    add_partitions(kafka_server, topic, 3)
    put(kafka_server, topic, [12], partition=2)
    assert read() == [10, 11, 12]
    assert read() == []


def test_what_there_is_now_is_not_asked_of_a_topic_that_was_made_again(kafka_server: KafkaServer) -> None:
    topic = kafka_server.make_topic()
    put(kafka_server, topic, range(3))
    source, split = source_of(kafka_server, topic), f"{topic}/0 from 0"
    there = source.available([split], {split: {"offset": 2}})
    assert (there.new, there.ends) == ((), {split: 3})
    put(kafka_server, topic, [3])
    reader = source.open(SplitContext("in", split, {"offset": 2}, Partition(0), Attempt(1), until=3))
    assert read_until(reader, lambda found, _: len(found) == 1)[0] == [2]
    assert isinstance(reader.read(10), Exhausted)
    reader.close()
    with pytest.raises(SourceError, match=r"is at offset 5, and the partition ends at 4: its topic was made again"):
        source.available([split], {split: {"offset": 5}})


def test_topics_are_named_or_matched_and_new_partitions_are_read_from_their_beginning(
    kafka_server: KafkaServer,
) -> None:
    one, other = kafka_server.make_topic(2), kafka_server.make_topic()
    put(kafka_server, one, [1])
    assert source_of(kafka_server, [other, one]).discover(1) == sorted(
        [f"{one}/0 from 0", f"{one}/1 from 0", f"{other}/0 from 0"]
    )
    source = replace(source_of(kafka_server, re.compile(f"{one}|__consumer.*|no-such")), start="latest")
    known = source.discover(1)
    assert known == [f"{one}/0 from 1", f"{one}/1 from 0"]
    assert source.discover_new(known) == []
    add_partitions(kafka_server, one, 3)
    put(kafka_server, one, [2], partition=2)
    until = time.monotonic() + LIMIT
    while not (new := source.discover_new(known)):
        assert time.monotonic() < until
    assert new == [f"{one}/2 from 0"]
    assert numbers(source, new[0]) == [2]
    none = re.compile("no-such-topic-.*")
    assert source_of(kafka_server, none).discover(1) == []
    with pytest.raises(SourceVanished, match="no topic matches"):
        replace(source_of(kafka_server, none), stop="latest").discover(1)
    with pytest.raises(SourceVanished, match="no topic 'no-such-topic'"):
        source_of(kafka_server, "no-such-topic").discover(1)


def test_what_an_open_transaction_wrote_is_not_read_and_not_missed(kafka_server: KafkaServer) -> None:
    topic = kafka_server.make_topic()
    writer = transactional(kafka_server)
    writer.begin_transaction()
    put_with(writer, topic, [1, 2])
    writer.flush(LIMIT)
    put(kafka_server, topic, [3])
    source = source_of(kafka_server, topic)
    [split] = source.discover(1)
    [bounded] = replace(source, stop="latest").discover(1)
    [late] = replace(source, start="latest").discover(1)
    reader = opened(source, split)
    assert isinstance(reader.read(10), Later)
    writer.commit_transaction(LIMIT)
    assert read_until(reader, lambda found, _: len(found) == 3)[0] == [1, 2, 3]
    reader.close()
    assert numbers(source, bounded) == [], "nothing was decided when it began"
    assert numbers(source, late) == [1, 2, 3], "and so nothing of it is missed"


def test_a_position_is_behind_what_will_never_be_read(kafka_server: KafkaServer) -> None:
    topic = kafka_server.make_topic()
    writer = transactional(kafka_server)
    for commit in (True, False):
        writer.begin_transaction()
        put_with(writer, topic, range(5))
        writer.flush(LIMIT)
        if commit:
            writer.commit_transaction(LIMIT)
        else:
            writer.abort_transaction(LIMIT)
    source = source_of(kafka_server, topic)
    [split] = source.discover(1)
    reader = opened(source, split)
    found, position = read_until(reader, lambda _, position: position == {"offset": 12})
    assert (found, position) == (list(range(5)), {"offset": 12})
    reader.close()
    assert numbers(source, split, {"offset": 6}) == [], "from the middle of what was aborted"


# --- what goes wrong --------------------------------------------------------------------------------------------------


def test_records_that_were_deleted_before_they_were_read_are_an_error_or_a_gap(kafka_server: KafkaServer) -> None:
    topic = kafka_server.make_topic()
    put(kafka_server, topic, range(10))
    source = source_of(kafka_server, topic)
    [split] = source.discover(1)
    where = TopicPartition(topic, 0, 6)
    admin = kafka_server.admin()
    admin.delete_records([where])[where].result(LIMIT)
    with pytest.raises(SourceError, match=rf"next record of {topic}/0 is at offset 2, .* still there is at 6.*on_gap"):
        read_until(opened(source, split, {"offset": 2}), lambda found, _: bool(found))
    reader = opened(replace(source, on_gap="skip"), split, {"offset": 2, "row": 1})
    assert read_until(reader, lambda found, _: len(found) == 4)[0] == [6, 7, 8, 9]
    reader.close()


def test_a_topic_that_was_made_again_is_not_read_as_if_it_were_the_same(kafka_server: KafkaServer) -> None:
    topic = kafka_server.make_topic()
    put(kafka_server, topic, range(3))
    source = source_of(kafka_server, topic)
    [split] = source.discover(1)
    with pytest.raises(SourceError, match="made again under the same name"):
        read_until(opened(replace(source, on_gap="skip"), split, {"offset": 50}), lambda found, _: bool(found))


def test_a_record_that_does_not_fit_is_named(kafka_server: KafkaServer) -> None:
    topic = kafka_server.make_topic()
    writer = producer(kafka_server)
    for value in (b'{"n": 1}', b'{"n": 2', b'{"n": 3}'):
        writer.produce(topic, value, b"key", partition=0)
    writer.flush(LIMIT)
    source = source_of(kafka_server, topic)
    [split] = source.discover(1)
    with pytest.raises(SourceError, match=rf"offset 1 of {topic}/0 does not fit.*\{{\"n\": 2'.*on_bad"):
        numbers(source, split)
    assert numbers(replace(source, on_bad="skip"), split) == [1, 3]
    left_out = [batch for batch in read_through(replace(source, on_bad="skip"), split).batches if batch.bad]
    assert sum(batch.bad for batch in left_out) == 1
    assert "the record at offset 1 does not fit" in left_out[0].why
    schema = pa.schema([*SCHEMA, ("kafka_error", pa.string())])
    kept = read_through(replace(source, on_bad="column", schema=schema), split).rows
    assert [(row["n"], row["kafka_offset"], row["kafka_error"] is None) for row in kept] == [
        (1, 0, True),
        (None, 1, False),
        (3, 2, True),
    ]


@pytest.fixture(scope="module")
def restarted_kafka_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaServer]:
    """A broker that tests kill, and start again before they end."""
    with running_kafka(tmp_path_factory.mktemp("restarted")) as server:
        yield server


def test_a_reader_waits_for_a_broker_that_is_gone_and_says_so(
    restarted_kafka_server: KafkaServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = restarted_kafka_server
    topic = server.make_topic()
    put(server, topic, range(5))
    source = source_of(server, topic)
    [split] = source.discover(1)
    reader = opened(source, split)
    found, _ = read_until(reader, lambda found, _: len(found) == 5)
    server.kill()
    said = ""
    until = time.monotonic() + LIMIT
    while not said:
        assert time.monotonic() < until
        reading = reader.read(10)
        said = reading.why if isinstance(reading, Later) else ""
    assert server.bootstrap in said
    monkeypatch.setattr(kafka_client, "_PATIENCE", 0.5)
    with pytest.raises(SourceError, match="start the brokers"):
        source.discover(1)
    server.start()
    while said:
        assert time.monotonic() < until + LIMIT
        reading = reader.read(10)
        said = reading.why if isinstance(reading, Later) else ""
    put(server, topic, range(5, 8))
    found += read_until(reader, lambda found, _: len(found) == 3)[0]
    reader.close()
    assert found == list(range(8)), "each once"


def test_a_wrong_password_is_an_error_and_not_shown(guarded_kafka_server: KafkaServer) -> None:
    topic = guarded_kafka_server.make_topic()
    put(guarded_kafka_server, topic, [1])
    source = source_of(guarded_kafka_server, topic)
    [split] = source.discover(1)
    assert numbers(source, split) == [1]
    wrong = replace(source, options={**source.options, "sasl.password": "wr0ng"})
    began = time.monotonic()
    with pytest.raises(SourceError, match=r"refuse this client.*check the credentials") as raised:
        wrong.discover(1)
    assert time.monotonic() - began < 10, "waiting would not help"
    assert "wr0ng" not in str(raised.value)
    with pytest.raises(SourceError, match="refuse this client"):
        read_until(opened(wrong, split), lambda found, _: bool(found))


# --- in a job ---------------------------------------------------------------------------------------------------------


def test_a_job_reads_partitions_that_are_made_while_it_runs(kafka_server: KafkaServer, tmp_path: Path) -> None:
    topic = kafka_server.make_topic()
    put(kafka_server, topic, range(10))
    source = replace(source_of(kafka_server, topic), start="latest", grows="100ms")
    program = Stream.read(source, uid="in").write(ToDriver(), uid="out")
    with recovery.run(
        program, checkpoints=tmp_path / "tree", local=tmp_path / "local", every="100ms", progress=False
    ) as run:
        run.savepoint()  # it has begun, and so it has looked where the topic ends
        put(kafka_server, topic, range(10, 20))
        found = run.rows("out")
        seen = Counter(next(found)["n"] for _ in range(10))
        add_partitions(kafka_server, topic, 2)
        put(kafka_server, topic, range(20, 30), partition=1)
        seen.update(next(found)["n"] for _ in range(10))
        run.drain()
        seen.update(row["n"] for row in found)
    assert seen == Counter(range(10, 30))


def test_a_partition_without_records_does_not_hold_event_time_back(kafka_server: KafkaServer, tmp_path: Path) -> None:
    topic = kafka_server.make_topic(3)
    put(kafka_server, topic, [1, 1], partition=0, at=1_700_000_000_000)
    put(kafka_server, topic, [1, 1], partition=0, at=1_700_000_010_000)
    schema = pa.schema([("n", pa.int64()), ("kafka_timestamp", pa.timestamp("ms"))])
    source = replace(source_of(kafka_server, topic), schema=schema)
    program = (
        Stream.read(source, uid="in", event_time=EventTime("kafka_timestamp", idle_after="200ms"))
        .key_by("n")
        .window(Tumbling("1s"))
        .count(uid="count")
        .write(ToDriver(), uid="out")
    )
    with recovery.run(
        program, checkpoints=tmp_path / "tree", local=tmp_path / "local", every="100ms", progress=False
    ) as run:
        window = next(run.rows("out"))
        run.cancel()
    assert (window["count"], window["window_start"]) == (2, datetime(2023, 11, 14, 22, 13, 20))


def test_a_partition_that_is_ahead_makes_no_record_of_another_late(kafka_server: KafkaServer, tmp_path: Path) -> None:
    topic, began = kafka_server.make_topic(2), 1_700_000_000_000
    put(kafka_server, topic, [1], partition=1, at=began)
    put(kafka_server, topic, [1], partition=1, at=began + 60_000)
    schema = pa.schema([("n", pa.int64()), ("kafka_timestamp", pa.timestamp("ms"))])
    source = replace(source_of(kafka_server, topic), schema=schema)
    records = Stream.read(source, uid="in", event_time=EventTime("kafka_timestamp"))
    counts = records.key_by("n").window(Tumbling("1s")).count(uid="count").write(ToDriver(), uid="counts")
    with recovery.run(
        counts + records.write(ToDriver(), uid="read"),
        checkpoints=tmp_path / "tree",
        local=tmp_path / "local",
        every="100ms",
        progress=False,
    ) as run:
        read = run.rows("read")
        assert [next(read)["n"] for _ in range(2)] == [1, 1]
        put(kafka_server, topic, [1, 1], partition=0, at=began)
        put(kafka_server, topic, [1], partition=0, at=began + 30_000)
        window = next(run.rows("counts"))
        run.cancel()
    assert (window["count"], window["window_start"]) == (3, datetime(2023, 11, 14, 22, 13, 20))


def test_a_job_whose_broker_is_gone_reports_it_and_goes_on(restarted_kafka_server: KafkaServer, tmp_path: Path) -> None:
    server = restarted_kafka_server
    topic = server.make_topic(2)
    put(server, topic, range(5))
    program = Stream.read(replace(source_of(server, topic), grows="200ms"), uid="in").write(ToDriver(), uid="out")
    with recovery.run(
        program,
        checkpoints=tmp_path / "tree",
        local=tmp_path / "local",
        every="100ms",
        progress=False,
        advanced={"report_stall_after": "1s"},
    ) as run:
        found = run.rows("out")
        seen = [next(found)["n"] for _ in range(5)]
        server.kill()
        told = threading.Event()
        until = time.monotonic() + LIMIT
        while not any(isinstance(event, Stalled) and event.uid == "in" for event in run.events):
            assert time.monotonic() < until
            told.wait(0.05)
        server.start()
        put(server, topic, range(5, 10), partition=1)
        seen += [next(found)["n"] for _ in range(5)]
        assert not run.status().restarts, "waiting is no failure"
        run.drain()
    stalled = next(event for event in run.events if isinstance(event, Stalled))
    assert server.bootstrap in stalled.waits_for
    assert topic in stalled.waits_for
    assert sorted(map(str, seen)) == sorted(map(str, range(10)))


def test_a_reader_can_be_closed_while_it_waits(kafka_server: KafkaServer) -> None:
    source = source_of(kafka_server, kafka_server.make_topic())
    [split] = source.discover(1)
    assert split_of(split) is not None
    reader = opened(source, split)
    assert isinstance(reader.read(1), Later)
    reader.close()
    stopped = replace(source, stop="latest")
    [empty] = stopped.discover(1)
    reader = opened(stopped, empty)
    assert isinstance(reader.read(1), Exhausted)
    reader.close()
