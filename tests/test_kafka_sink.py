"""Records of Kafka are what their rows say, and tokens say exactly what was committed; all that needs no broker."""

from __future__ import annotations

import io
import json
import pickle
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import BrokerMetadata, ClusterMetadata, ConfigEntry, ConfigResource, TopicMetadata
from hypothesis import given
from hypothesis import strategies as st

from snapshot.connectors.kafka import examination as kafka_examine
from snapshot.connectors.kafka.avro import avro_schema_of
from snapshot.connectors.kafka.records import RecordFormat, RecordShape
from snapshot.connectors.kafka.sink import ToKafka
from snapshot.connectors.kafka.sink_client import KafkaClients
from snapshot.connectors.kafka.tokens import (
    group_of,
    may_be_forgotten,
    may_be_of_one_cluster,
    producer_of,
)
from snapshot.connectors.staging.committed import Committed
from snapshot.epochs.transaction_events import CommitOutcome, Committable, transaction_id
from snapshot.ids import JobId, TransactionId
from snapshot.operators.rows import Rows
from snapshot.program.sink import CommitsTogether, SinkError
from snapshot.testing.sinks import SCHEMA, SinkBench, SinkTrial, attempt, write
from snapshot.tree.frozen_json import JsonLike
from snapshot.tree.manifest import CommitPayload
from statebackend.ids import Epoch, Generation, Partition, Uid

HEADERS = pa.map_(pa.string(), pa.string())
AT = datetime(2026, 1, 2, 3, 4, 5, 678000, UTC)
ROWS = pa.record_batch(
    {
        "id": pa.array([7, 8], pa.int64()),
        "name": pa.array(["é", None]),
        "raw": pa.array([b"\x00\xff", None]),
        "at": pa.array([AT, None], pa.timestamp("us", "UTC")),
        "to": pa.array([1, None], pa.int64()),
        "tags": pa.array([[("a", "b")], None], HEADERS),
        "gone": pa.array([False, True]),
    }
)


def texts(rows: pa.RecordBatch, shape: RecordShape) -> list[tuple[object, object]]:
    assert list(shape.unsuitable(rows.schema)) == []
    return [(record["key"], record["value"]) for record in shape.encode(rows).to_pylist()]


def written(sink: ToKafka, rows: Rows) -> CommitPayload:
    """What is prepared of the rows."""
    bench = SinkBench(SinkTrial(sink, lambda _: []))
    writer = bench.writer()
    writer.begin(bench.name())
    try:
        writer.write(rows)
        payload = writer.seal().prepare()
    finally:
        writer.close()
    assert payload is not None
    return payload


def test_a_value_is_a_json_object_of_all_columns_and_a_key_has_its_own_bytes() -> None:
    rows = ROWS.select(["id", "name"])
    assert texts(rows, RecordShape(key="name")) == [
        ("é".encode(), '{"id":7,"name":"é"}'.encode()),
        (None, b'{"id":8,"name":null}'),
    ]
    assert [key for key, _ in texts(rows, RecordShape(key="id"))] == [b"7", b"8"]
    assert [key for key, _ in texts(rows, RecordShape())] == [None, None]


def test_a_key_that_is_no_text_is_json_and_bytes_stay_bytes() -> None:
    rows = pa.record_batch({"k": [{"a": 1, "b": "x"}, None], "raw": [b"\xff", None]})
    assert [key for key, _ in texts(rows, RecordShape(key="k", value="raw"))] == [b'{"a":1,"b":"x"}', None]
    assert [key for key, _ in texts(rows, RecordShape(key="raw", value="raw"))] == [b"\xff", None]


def test_a_number_that_json_does_not_have_is_refused_unless_its_row_is_a_tombstone() -> None:
    rows = pa.record_batch({"id": [7, 8], "x": [0.5, float("nan")], "gone": [False, True]})
    shape = RecordShape(key="id", tombstone="gone")
    assert texts(rows, shape) == [(b"7", b'{"id":7,"x":0.5}'), (b"8", None)]
    with pytest.raises(ValueError, match=r"the column 'x' has one; the row is \{'id': 8"):
        texts(rows, RecordShape(key="id"))
    with pytest.raises(ValueError, match="the column 'x' has one"):
        texts(rows, RecordShape(key="x", tombstone="gone"))


def test_a_column_of_bytes_is_the_value_and_a_null_a_tombstone() -> None:
    assert texts(ROWS, RecordShape(key="id", value="raw")) == [(b"7", b"\x00\xff"), (b"8", None)]


def test_columns_with_another_use_are_not_in_the_value() -> None:
    rows = ROWS.drop_columns(["raw"])
    shape = RecordShape(key="id", headers="tags", partition="to", timestamp="at", tombstone="gone")
    first, second = shape.encode(rows).to_pylist()
    assert first["value"] == '{"id":7,"name":"é"}'.encode()
    assert first["headers"] == [("a", b"b")]
    assert (first["partition"], first["timestamp"]) == (1, int(AT.timestamp() * 1000))
    assert (second["key"], second["value"], second["headers"]) == (b"8", None, None)
    assert (second["partition"], second["timestamp"]) == (-1, 0)


def test_milliseconds_are_a_timestamp_too() -> None:
    rows = pa.record_batch({"id": [1], "at": [1234]})
    assert RecordShape(timestamp="at").encode(rows).column("timestamp").to_pylist() == [1234]


def test_avro_is_read_back_with_the_schema_of_the_rows() -> None:
    from fastavro import parse_schema, schemaless_reader

    shape = RecordShape(key="id", format="avro", tombstone="gone")
    [(_, first), (_, second)] = texts(ROWS, shape)
    assert second is None
    assert isinstance(first, bytes)
    parsed = parse_schema(json.loads(avro_schema_of(ROWS.drop_columns(["gone"]).schema)))
    expected = {**ROWS.drop_columns(["gone"]).to_pylist()[0], "tags": {"a": "b"}}
    assert schemaless_reader(io.BytesIO(first), parsed, None) == expected


@pytest.mark.parametrize("rows", [1, 3, 40_000])
def test_arrow_holds_many_rows_in_a_record(rows: int) -> None:
    batch = pa.record_batch({"id": list(range(rows)), "name": ["x" * 10] * rows})
    values = [value for _, value in texts(batch, RecordShape(format="arrow"))]
    read = [pa.ipc.open_stream(value).read_all() for value in values]
    assert pa.concat_tables(read).to_pylist() == batch.to_pylist()
    assert (len(values) == 1) == (rows <= 3)
    assert all(isinstance(value, bytes) and len(value) < 300_000 for value in values)


def test_arrow_puts_few_rows_that_are_large_into_a_record_and_many_that_are_small() -> None:
    texts_of_rows = ["small" * 20] * 1_000 + ["large" * 40_000] * 20 + ["small" * 20] * 1_000
    batch = pa.record_batch({"name": texts_of_rows})
    values = [value for _, value in texts(batch, RecordShape(format="arrow"))]
    read = [pa.ipc.open_stream(value).read_all() for value in values]
    assert pa.concat_tables(read).column("name").to_pylist() == texts_of_rows
    assert all(isinstance(value, bytes) and len(value) < 600_000 for value in values)
    assert len(values) < 60
    few = RecordShape(format="arrow", largest=250_000).encode(batch).column("value").to_pylist()
    assert all(len(value) < 250_000 for value in few)


@pytest.mark.parametrize("format", ["json", "avro", "arrow"])
def test_a_row_whose_record_no_producer_takes_is_refused_when_it_comes(format: RecordFormat) -> None:
    rows = Rows(pa.record_batch({"row": ["small", "x" * 1_000_000]}))
    key = None if format == "arrow" else "row"
    sink = ToKafka("nowhere:1", "t", key=key, format=format)
    with pytest.raises(SinkError, match=r"sink the/sink: .* has [12]000\d\d\d bytes, and .* message.max.bytes"):
        written(sink, rows)
    payload = written(replace(sink, options={"message.max.bytes": "3000000"}), rows)
    assert payload.staged


def test_headers_are_part_of_a_record() -> None:
    headers = pa.array([[("a", "x" * 999_000)], [], [("b", "x" * 600_000), ("c", "x" * 600_000)]], HEADERS)
    rows = pa.record_batch({"id": [1, 2, 3], "tags": headers})
    shape = RecordShape(key="id", headers="tags")
    for some in (rows.slice(0, 2), rows.slice(1, 1)):
        assert len(shape.encode(some)) == len(some)
    with pytest.raises(ValueError, match="the record with the key '3' has 12000"):
        shape.encode(rows.slice(1, 2))


@pytest.mark.parametrize(
    ("shape", "problem"),
    [
        (RecordShape(key="nobody", value="raw"), "key: there is no column 'nobody'; there are: id, name, raw"),
        (RecordShape(value="id"), "the value cannot be in the column 'id' of int64; it takes texts or bytes"),
        (RecordShape(key="tags", value="raw"), "the key cannot be in the column 'tags'"),
        (RecordShape(value="raw", headers="name"), "it takes maps from texts"),
        (RecordShape(value="raw", partition="name"), "it takes whole numbers"),
        (RecordShape(value="raw", timestamp="name"), "it takes timestamps"),
        (RecordShape(key="id", value="raw", tombstone="name"), "it takes booleans"),
        (RecordShape(value="raw", tombstone="gone"), "tombstone needs a key"),
        (RecordShape(key="id", format="arrow"), "has no key, headers"),
        (RecordShape(value="raw", format="xml"), "known are json, avro, arrow"),  # type: ignore[arg-type]
        (RecordShape(headers="tags"), "jsonl cannot hold the column 'raw' of binary"),
    ],
    ids=str,
)
def test_what_no_record_can_be_made_of_is_found_before_rows_come(shape: RecordShape, problem: str) -> None:
    [said] = shape.unsuitable(ROWS.schema)
    assert problem in said


def test_avro_refuses_types_that_it_does_not_have() -> None:
    schema = pa.schema([pa.field("at", pa.timestamp("ns"))])
    [said] = RecordShape(format="avro").unsuitable(schema)
    assert "timestamp[ns]" in said


def test_a_row_that_is_no_record_fails_with_the_sinks_name() -> None:
    sink = ToKafka("nowhere:1", "t", partition="to")
    with pytest.raises(SinkError, match=r"sink the/sink: a row cannot be written as a record of Kafka: .*4294967296"):
        written(sink, Rows(pa.record_batch({"row": ["x"], "to": [1 << 32]})))


# --- tokens -----------------------------------------------------------------------------------------------------------

numbers = st.integers(0, 60)


@given(st.lists(st.tuples(numbers, st.integers(0, 5))))
def test_a_token_holds_exactly_what_was_committed(steps: list[tuple[int, int]]) -> None:
    committed, truth = Committed(), set[int]()
    for first, more in steps:
        committed = committed.with_range(first, first + more)
        truth |= set(range(first, first + more + 1))
        assert {number for number in range(70) if number in committed} == truth
        assert Committed.parse(str(committed)) == committed
    assert all(one[1] + 1 < other[0] for one, other in zip(committed.ranges, committed.ranges[1:], strict=False))


def test_a_token_stays_short_while_transactions_are_committed_in_order() -> None:
    committed = Committed()
    for number in range(100_000, 100_500):
        committed = committed.with_range(number, number)
    assert str(committed) == "100000-100499"


@pytest.mark.parametrize("text", ["", "x", "1,", "3-1", "1-2,2-3x", "1,2 ", "01"])
def test_a_token_that_is_none_is_not_believed(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        Committed.parse(text)


@given(job=st.text(max_size=8), uid=st.text(max_size=8), partition=st.integers(0, 9), n=st.integers(0, 99))
def test_a_writer_has_one_group_and_a_partition_one_producer(job: str, uid: str, partition: int, n: int) -> None:
    def name(number: int, which: int, attempt_number: int) -> TransactionId:
        return transaction_id(JobId(job), Uid(uid), attempt(attempt_number), Partition(which), number)

    one = name(n, partition, 1)
    assert producer_of(one) == producer_of(name(n + 1, partition, 7))
    assert producer_of(one) != producer_of(name(n, partition + 1, 1))
    assert group_of(one, "w") == group_of(name(n + 1, partition, 1), "w")
    others = (name(n, partition, 2), name(n, partition + 1, 1))
    assert len({group_of(one, "w"), group_of(one, "v"), *(group_of(o, "w") for o in others)}) == 4
    prefix = producer_of(one).rpartition("/")[0]
    assert group_of(one, "w") == f"{prefix}/1-1-{partition}/w"


def test_tokens_of_other_sinks_have_other_names() -> None:
    one = transaction_id(JobId("a/b"), Uid("c"), attempt(1), Partition(0), 0)
    other = transaction_id(JobId("a"), Uid("b/c"), attempt(1), Partition(0), 0)
    assert producer_of(one) != producer_of(other)
    assert group_of(one, "w") != group_of(other, "w")


def test_a_token_is_trusted_to_be_missing_only_while_it_is_kept() -> None:
    assert not may_be_forgotten(sealed_at=0, now=53_000, kept=60.0)
    assert may_be_forgotten(sealed_at=0, now=55_000, kept=60.0)
    assert not may_be_forgotten(sealed_at=100_000, now=0, kept=60.0)


@pytest.mark.parametrize(
    ("former", "now", "may_be"),
    [
        ("a:1,b:2", "b:2, c:3", True),
        ("a:1", "PLAINTEXT://a:1", True),
        ("a:1,b:2", "a:2,b:1", False),
        ("", "a:1", True),
    ],
)
def test_brokers_may_be_of_one_cluster_if_two_lists_share_one(former: str, now: str, may_be: bool) -> None:
    assert may_be_of_one_cluster(former, now) is may_be
    assert may_be_of_one_cluster(now, former) is may_be


def test_what_was_prepared_for_other_brokers_is_not_committed_and_nobody_is_asked() -> None:
    bench = SinkBench(SinkTrial(ToKafka("a:1,b:2", "t", key="row"), lambda _: []))
    transaction, payload, _ = bench.prepared()
    others = SinkBench(SinkTrial(ToKafka("c:3", "t", key="row"), lambda _: []))
    others.job = bench.job
    later = others.writer()
    assert isinstance(later, CommitsTogether)
    due = Committable(transaction, Epoch(Generation(1), 1), payload)
    for answer in (later.commit(transaction, payload), later.commit_together([due, due])):
        assert answer.outcome is CommitOutcome.FAILED
        assert "are for Kafka at a:1,b:2, and its sink writes to Kafka at c:3 by now" in answer.reason
        assert "give both lists: bootstrap='c:3,a:1,b:2'" in answer.reason
    later.close()


def test_a_committable_says_who_commits_it_where_and_nothing_secret() -> None:
    sink = ToKafka("nowhere:1", "the topic", key="row", options={"sasl.password": "hush"})
    bench = SinkBench(SinkTrial(sink, lambda _: []))
    writer = bench.writer(1, partition=3)
    for rows in ([], [], ["x"], ["y"]):
        writer.begin(transaction := bench.name(1, partition=3))
        write(writer, rows)
        payload = writer.seal().prepare()
        assert (payload is None) == (not rows)
        if rows == ["x"]:
            assert said(payload)["first"] == 1
    about = said(payload)
    assert about["place"] == {"bootstrap": "nowhere:1", "topic": "the topic"}
    assert about["producer"] == producer_of(transaction) == f"epochcut/{bench.job}/the%2Fsink/3"
    assert about["first"] == 4
    assert about["writer"]
    for text in (repr(sink), str(payload), *map(str, bench.environment.stored.values())):
        assert "hush" not in text
    writer.close()


def said(payload: CommitPayload | None) -> Mapping[str, JsonLike]:
    assert payload is not None
    value = payload.value.value()
    assert isinstance(value, Mapping)
    return value


# --- the sink as it stands in a program -------------------------------------------------------------------------------


def test_it_is_plain_data() -> None:
    sink = ToKafka("a:1,b:2", "t", options={"sasl.password": "hush"})
    assert pickle.loads(pickle.dumps(sink)) == sink
    assert "a:1,b:2" in repr(sink)
    assert sink.check(SCHEMA) == []


def test_what_is_wrong_with_its_settings_is_found_by_check() -> None:
    [problem] = ToKafka("a:1", "t", options={"transactional.id": "x"}).check(SCHEMA)
    assert "'transactional.id' is set by the sink" in problem
    [problem] = ToKafka("a:1", "t", create=0).check(SCHEMA)
    assert "create is 0" in problem
    [problem] = ToKafka("a:1", "t", transaction_timeout=0.5).check(SCHEMA)
    assert "transaction_timeout is 0.5 s" in problem


def test_options_that_the_client_refuses_and_brokers_that_are_not_there_are_found_by_examine() -> None:
    job, uid = JobId("job"), Uid("out")
    [problem] = ToKafka("127.0.0.1:1", "t", options={"no.such.option": 1}).examine(job, uid, SCHEMA)
    assert "no.such.option" in problem
    [problem] = ToKafka("127.0.0.1:1", "t").examine(job, uid, SCHEMA)
    assert "Kafka at 127.0.0.1:1 cannot be reached" in problem
    assert "Connection refused" in problem


@dataclass
class Admin:
    """The client library's client that asks; each broker names some of its settings."""

    named: Mapping[int, Mapping[str, str | None]]

    def __call__(self, _: Mapping[str, object], **__: object) -> Admin:
        """The class that it stands in for."""
        return self

    def list_topics(self, **_: object) -> ClusterMetadata:
        known = ClusterMetadata()
        known.brokers = {number: BrokerMetadata() for number in self.named}
        known.topics = {"t": TopicMetadata()}
        return known

    def describe_configs(
        self, asked: Sequence[ConfigResource], **_: object
    ) -> Mapping[ConfigResource, Future[Mapping[str, ConfigEntry]]]:
        answers: dict[ConfigResource, Future[Mapping[str, ConfigEntry]]] = {}
        for resource in asked:
            named = self.named[int(resource.name)]
            answers[resource] = Future()
            answers[resource].set_result({name: ConfigEntry(name, value) for name, value in named.items()})
        return answers


KEPT = "offsets.retention.minutes"


@pytest.mark.parametrize("named", [{}, {1: {KEPT: "60"}, 2: {"log.dirs": "/"}}, {1: {KEPT: None}}], ids=str)
def test_brokers_that_do_not_say_how_long_they_keep_tokens_make_it_an_argument(
    named: Mapping[int, Mapping[str, str | None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("confluent_kafka.admin.AdminClient", Admin(named))
    with pytest.raises(KafkaException, match=KEPT):
        KafkaClients("nowhere:1", {}).offsets_kept()
    monkeypatch.setattr(kafka_examine, "_tried", lambda *_: None)  # commits are allowed
    [problem] = ToKafka("nowhere:1", "t").examine(JobId("job"), Uid("out"), SCHEMA)
    assert "give tokens_kept" in problem


def test_tokens_are_kept_as_long_as_by_the_broker_that_forgets_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("confluent_kafka.admin.AdminClient", Admin({1: {KEPT: "60"}, 2: {KEPT: "30"}}))
    assert KafkaClients("nowhere:1", {}).offsets_kept() == 1800
