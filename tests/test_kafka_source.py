"""What Kafka's records are as rows, and what a Kafka source says of its arguments; no broker is needed."""

from __future__ import annotations

import io
import json
import pickle
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from decimal import Decimal

import fastavro
import pyarrow as pa
import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import TopicPartition as Place
from hypothesis import given
from hypothesis import strategies as st

from snapshot import Avro, Kafka
from snapshot.connectors.kafka.avro import CONFLUENT_HEADER, avro_schema_of
from snapshot.connectors.kafka.columns import Headers
from snapshot.connectors.kafka.formats import RAW, BadRecord, Decoded, OnBad, RecordDecoder
from snapshot.connectors.kafka.reader import OnGap
from snapshot.connectors.kafka.source_client import OURS, KafkaSplit, TopicPartition, Topics, split_of
from snapshot.program.source import Batch, Later, Reader, SplitContext, WrongPosition
from snapshot.tree.frozen_json import JsonLike
from statebackend.ids import Attempt, Partition

SCHEMA = pa.schema([("n", pa.int64()), ("name", pa.string())])
TIMED = 1


@dataclass(frozen=True)
class Made:
    """A record as the client library would give it."""

    held: bytes | None
    at: int = 0
    of: bytes | None = None
    time: tuple[int, int] = (TIMED, 1_700_000_000_123)
    more: Headers = None
    wrong: KafkaError | None = None

    def error(self) -> KafkaError | None:
        return self.wrong

    def value(self) -> bytes | None:
        return self.held

    def key(self) -> bytes | None:
        return self.of

    def offset(self) -> int:
        return self.at

    def timestamp(self) -> tuple[int, int]:
        return self.time

    def headers(self) -> Headers:
        return self.more

    def topic(self) -> str:
        return "clicks"

    def partition(self) -> int:
        return 3


def records(values: Sequence[bytes | None]) -> list[Made]:
    return [Made(value, 100 + place) for place, value in enumerate(values)]


def rows(decoded: Decoded) -> list[dict[str, object]]:
    decoded.rows.validate(full=True)
    found: list[dict[str, object]] = decoded.rows.to_pylist()
    return found


def json_of(*objects: object) -> list[bytes | None]:
    return [json.dumps(each).encode() for each in objects]


def stream_of(*batches: Mapping[str, Sequence[object]], schema: pa.Schema = SCHEMA) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        for batch in batches:
            writer.write_batch(pa.RecordBatch.from_pydict(batch, schema))
    return bytes(sink.getvalue())


# --- JSON -------------------------------------------------------------------------------------------------------------


def test_objects_become_rows_by_name() -> None:
    values = json_of({"name": "a", "n": 1}, {"n": 2, "more": [1]}, {})
    assert rows(RecordDecoder("json", SCHEMA, "fail").decoded(records(values))) == [
        {"n": 1, "name": "a"},
        {"n": 2, "name": None},
        {"n": None, "name": None},
    ]


def test_an_object_may_be_spread_over_lines_and_have_space_around_it() -> None:
    values = [json.dumps({"n": 1, "name": "}\n{"}, indent=2).encode(), b' {"n": 2}\n\n', b'{"n": 3}']
    assert [row["n"] for row in rows(RecordDecoder("json", SCHEMA, "fail").decoded(records(values)))] == [1, 2, 3]


def test_a_record_without_a_value_has_null_in_all_columns() -> None:
    for format, value in (("json", b'{"n": 7}'), ("arrow", stream_of({"n": [7], "name": [None]}))):
        decoding = RecordDecoder("json" if format == "json" else "arrow", SCHEMA, "fail")
        assert [row["n"] for row in rows(decoding.decoded(records([value, None, value])))] == [7, None, 7]


@pytest.mark.parametrize(
    "bad",
    [
        b"",
        b"   ",
        b"[1]",
        b"7",
        b'{"n": 1} {"n": 2}',
        b'{"n": 1',
        b'{"n": "seven"}',
        b'{"n": 1}}',
        b"\xff\xfe",
        b'{"name": "\xff"}',
        b'{"n": {"n": 1}',
    ],
)
def test_the_record_that_does_not_fit_is_named_and_all_others_are_kept(bad: bytes) -> None:
    values: list[bytes | None] = [*json_of(*({"n": n} for n in range(50))), bad, *json_of({"n": 50})]
    with pytest.raises(BadRecord) as raised:
        RecordDecoder("json", SCHEMA, "fail").decoded(records(values))
    assert raised.value.record.offset() == 150
    kept = RecordDecoder("json", SCHEMA, "skip").decoded(records(values))
    assert [row["n"] for row in rows(kept)] == list(range(51))
    assert kept.bad == 1
    assert kept.why.startswith("the record at offset 150 does not fit: ")
    assert kept.ends is not None
    assert kept.ends.tolist() == [*range(1, 51), 50, 51]


def test_two_halves_of_an_object_in_two_records_are_two_bad_records() -> None:
    values: list[bytes | None] = [b'{"n": 1, "name": {', b"}}", b'{"n": 1,', b'"name": "x"}', b'{"n": 2}{"n":', b"3}"]
    kept = RecordDecoder("json", SCHEMA, "skip").decoded(records([*values, b'{"n": 4}']))
    assert rows(kept) == [{"n": 4, "name": None}]
    assert kept.bad == 6


@pytest.mark.parametrize("halves", [(b'{"n":', b"3}"), (b'{"name": "}', b'{"}'), (b'{"n": {}', b"{}}")])
@pytest.mark.parametrize("between", [b"\n", b" \n"])
def test_an_object_too_many_in_one_record_does_not_hide_one_that_is_cut_off(
    between: bytes, halves: tuple[bytes, bytes]
) -> None:
    values: list[bytes | None] = [b'{"n": 1}' + between + b'{"n": 2}', *halves, b'{"n": 4}']
    kept = RecordDecoder("json", SCHEMA, "skip").decoded(records(values))
    assert rows(kept) == [{"n": 4, "name": None}]


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


@given(st.lists(st.dictionaries(st.sampled_from(("x", "y")), ANYTHING)), st.sampled_from((None, 1)))
def test_values_of_json_never_move_to_the_row_of_another_record(
    objects: list[dict[str, object]], indent: int | None
) -> None:
    """Whatever lies beside the column that is read."""
    values: list[bytes | None] = [
        json.dumps({**each, "n": n}, indent=indent, ensure_ascii=bool(n % 2)).encode(errors="surrogatepass")
        for n, each in enumerate(objects)
    ]
    decoded = RecordDecoder("json", pa.schema([("n", pa.int64())]), "skip").decoded(records(values))
    ends = decoded.ends.tolist() if decoded.ends is not None else list(range(1, len(objects) + 1))
    before = 0
    for n, end in enumerate(ends):
        if end > before:
            assert decoded.rows.column("n")[before].as_py() == n
        before = end


# --- what Kafka keeps beside the value --------------------------------------------------------------------------------

BESIDE = pa.schema(
    [
        ("n", pa.int64()),
        ("kafka_topic", pa.string()),
        ("kafka_partition", pa.int32()),
        ("kafka_offset", pa.int64()),
        ("kafka_timestamp", pa.timestamp("us")),
        ("kafka_key", pa.string()),
        ("kafka_value", pa.binary()),
        ("kafka_headers", pa.list_(pa.struct([("name", pa.string()), ("value", pa.binary())]))),
    ]
)


def test_what_kafka_keeps_is_in_columns_of_their_own() -> None:
    record = Made(b'{"n": 1}', 7, b"key", more=[("a", b"x"), ("a", None)])
    [row] = rows(RecordDecoder("json", BESIDE, "fail").decoded([record]))
    assert row == {
        "n": 1,
        "kafka_topic": "clicks",
        "kafka_partition": 3,
        "kafka_offset": 7,
        "kafka_timestamp": datetime(2023, 11, 14, 22, 13, 20, 123_000),
        "kafka_key": "key",
        "kafka_value": b'{"n": 1}',
        "kafka_headers": [{"name": "a", "value": b"x"}, {"name": "a", "value": None}],
    }


def test_headers_may_be_a_map() -> None:
    schema = pa.schema([("kafka_headers", pa.map_(pa.string(), pa.binary()))])
    both = [Made(b"", more=[("a", b"x")]), Made(b"", more={"b": "y"})]
    found = rows(RecordDecoder("raw", schema, "fail").decoded(both))
    assert [row["kafka_headers"] for row in found] == [[("a", b"x")], [("b", b"y")]]


def test_what_kafka_does_not_know_is_null() -> None:
    [row] = rows(RecordDecoder("json", BESIDE, "fail").decoded([Made(None, time=(0, -1))]))
    assert (row["kafka_timestamp"], row["kafka_key"], row["kafka_value"], row["kafka_headers"]) == (
        None,
        None,
        None,
        [],
    )


def test_a_source_may_have_no_column_of_the_values() -> None:
    keys = pa.schema([("kafka_key", pa.binary())])
    assert rows(RecordDecoder("json", keys, "fail").decoded([Made(b"no JSON", of=b"k")])) == [{"kafka_key": b"k"}]


def test_a_bad_record_is_a_row_with_what_is_wrong_if_there_is_a_column_for_it() -> None:
    schema = pa.schema([*BESIDE, ("kafka_error", pa.string())])
    good, bad, no_text = Made(b'{"n": 1}', 7), Made(b"oh", 8, b"k"), Made(b'{"n": 2}', 9, b"\xff")
    found = rows(RecordDecoder("json", schema, "column").decoded([good, bad, no_text]))
    assert [(row["n"], row["kafka_offset"], row["kafka_key"]) for row in found] == [
        (1, 7, None),
        (None, 8, "k"),
        (None, 9, None),
    ]
    first, second, third = (row["kafka_error"] for row in found)
    assert first is None
    assert "not a JSON object" in str(second)
    assert "UTF8" in str(third)
    assert found[1]["kafka_value"] == b"oh"


# --- the other formats ------------------------------------------------------------------------------------------------


def test_raw_values_are_bytes_or_texts() -> None:
    assert rows(RecordDecoder("raw", RAW, "fail").decoded(records([b"\xff", None]))) == [
        {"value": b"\xff"},
        {"value": None},
    ]
    texts = pa.schema([("text", pa.string())])
    assert rows(RecordDecoder("raw", texts, "skip").decoded(records([b"a", b"\xff", b"b"]))) == [
        {"text": "a"},
        {"text": "b"},
    ]


def test_a_record_of_arrow_has_any_number_of_rows() -> None:
    three = stream_of({"n": [1, 2], "name": ["a", "b"]}, {"n": [3], "name": [None]})
    schema = pa.schema([*SCHEMA, ("kafka_offset", pa.int64())])
    decoded = RecordDecoder("arrow", schema, "fail").decoded(records([three, stream_of(), three]))
    assert [(row["n"], row["kafka_offset"]) for row in rows(decoded)] == [
        (1, 100), (2, 100), (3, 100), (1, 102), (2, 102), (3, 102),
    ]  # fmt: skip
    assert decoded.ends is not None
    assert decoded.ends.tolist() == [3, 3, 6]


def test_one_record_of_arrow_is_not_copied() -> None:
    value = stream_of({"n": list(range(1000)), "name": [None] * 1000})
    decoded = RecordDecoder("arrow", SCHEMA, "fail").decoded(records([value]))
    base = pa.py_buffer(value).address
    assert base <= decoded.rows.column("n").buffers()[1].address < base + len(value)


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (b"", "empty stream|Tried reading schema"),
        (b"\x00" * 20, "."),
        (stream_of(schema=pa.schema([("n", pa.int64())])), "no column 'name'"),
        (stream_of(schema=pa.schema([("n", pa.int32()), ("name", pa.string())])), "'n' is int32"),
        (stream_of({"n": [1] * 100, "name": ["x"] * 100})[:-500], "."),
    ],
)
def test_an_arrow_stream_that_does_not_fit_is_named(value: bytes, problem: str) -> None:
    good = stream_of({"n": [1], "name": ["a"]})
    with pytest.raises(BadRecord, match=problem) as raised:
        RecordDecoder("arrow", SCHEMA, "fail").decoded(records([good, good, value, good]))
    assert raised.value.record.offset() == 102


WIDE = pa.schema(
    [
        pa.field("flag", pa.bool_()),
        pa.field("small", pa.int16(), nullable=False),
        pa.field("large", pa.int64()),
        pa.field("real", pa.float64()),
        pa.field("text", pa.string()),
        pa.field("bytes", pa.binary()),
        pa.field("day", pa.date32()),
        pa.field("at", pa.timestamp("us", "UTC")),
        pa.field("local", pa.timestamp("ms")),
        pa.field("price", pa.decimal128(9, 2)),
        pa.field("list", pa.list_(pa.int64())),
        pa.field("inner", pa.struct([("a", pa.int32()), ("b", pa.struct([("a", pa.string())]))])),
        pa.field("map", pa.map_(pa.string(), pa.int64())),
    ]
)
WIDE_ROW = {
    "flag": True,
    "small": -3,
    "large": 2**60,
    "real": 0.1,
    "text": "é",
    "bytes": b"\x00\xff",
    "day": date(2026, 2, 28),
    "at": datetime(2026, 2, 28, 12, 30, 0, 1, tzinfo=UTC),
    "local": datetime(2026, 2, 28, 12, 30, 0, 1000),
    "price": Decimal("12.34"),
    "list": [1, None],
    "inner": {"a": 1, "b": {"a": "x"}},
    "map": {"k": 1},
}


def avro(schema: str, *written: Mapping[str, object]) -> list[bytes | None]:
    values: list[bytes | None] = []
    for row in written:
        file = io.BytesIO()
        fastavro.schemaless_writer(file, fastavro.parse_schema(json.loads(schema)), row)
        values.append(file.getvalue())
    return values


def test_avro_is_read_by_the_schema_that_follows_from_the_columns() -> None:
    nothing = {**dict.fromkeys(WIDE.names), "small": 0}
    values = [*avro(avro_schema_of(WIDE), WIDE_ROW, nothing)]
    found = rows(RecordDecoder("avro", WIDE, "fail").decoded(records(values)))
    assert found == [{**WIDE_ROW, "map": [("k", 1)]}, nothing]


def test_avro_of_another_schema_is_read_by_that_one_behind_a_header() -> None:
    fields = [{"name": "name", "type": "string"}, {"name": "more", "type": "int"}, {"name": "n", "type": "long"}]
    schema = json.dumps({"type": "record", "name": "click", "fields": fields})
    [value] = avro(schema, {"name": "a", "more": 1, "n": 7})
    assert value is not None
    decoding = RecordDecoder(Avro(schema, skip=CONFLUENT_HEADER), SCHEMA, "fail")
    assert rows(decoding.decoded(records([b"\x00\x00\x00\x00\x07" + value]))) == [{"n": 7, "name": "a"}]
    with pytest.raises(BadRecord):
        decoding.decoded(records([value[:3]]))


def lengths(values: Sequence[bytes | None]) -> dict[str, list[int | None]]:
    return {"n": [None if value is None else len(value) for value in values], "name": [None for _ in values]}


def one_too_few(values: Sequence[bytes | None]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"n": [1] * (len(values) - 1), "name": ["x"] * (len(values) - 1)}, SCHEMA)


def another_column(values: Sequence[bytes | None]) -> dict[str, list[int]]:
    return {"m": [1 for _ in values]}


def not_nine(values: Sequence[bytes | None]) -> dict[str, list[object]]:
    if b"9" in values:
        raise KeyError("nine")
    return {"n": [int(value or 0) for value in values], "name": [None for _ in values]}


def test_a_function_makes_columns_of_values() -> None:
    assert [row["n"] for row in rows(RecordDecoder(lengths, SCHEMA, "fail").decoded(records([b"aa", None, b""])))] == [
        2,
        None,
        0,
    ]
    kept = RecordDecoder(not_nine, SCHEMA, "skip").decoded(records([b"1", b"9", b"x", b"2"]))
    assert [row["n"] for row in rows(kept)] == [1, 2]
    with pytest.raises(BadRecord, match="gave 0 rows"):
        RecordDecoder(one_too_few, SCHEMA, "fail").decoded(records([b"a", b"b"]))
    with pytest.raises(BadRecord, match="gave no column 'n'; it gave m"):
        RecordDecoder(another_column, SCHEMA, "fail").decoded(records([b"a"]))


@pytest.mark.parametrize("on_bad", ["fail", "skip"])
def test_a_null_where_none_may_be_is_a_bad_record(on_bad: OnBad) -> None:
    strict = pa.schema([pa.field("n", pa.int64(), nullable=False)])
    decoding = RecordDecoder("json", strict, on_bad)
    values: list[bytes | None] = [b'{"n": 1}', b"{}", None]
    if on_bad == "skip":
        assert rows(decoding.decoded(records(values))) == [{"n": 1}]
    else:
        with pytest.raises(BadRecord, match=r"must not be null|required field was absent"):
            decoding.decoded(records(values))


# --- splits and arguments ---------------------------------------------------------------------------------------------


@given(
    st.from_regex(r"[A-Za-z0-9._-]{1,20}", fullmatch=True),
    st.integers(0, 2**31 - 1),
    st.integers(0, 2**63 - 1),
    st.none() | st.integers(0, 2**63 - 1),
)
def test_a_split_is_known_by_its_name(topic: str, partition: int, start: int, stop: int | None) -> None:
    split = KafkaSplit(TopicPartition(topic, partition), start, stop)
    assert split_of(split.name) == split


@pytest.mark.parametrize("name", ["", "clicks", "clicks/0", "clicks/x from 0", "clicks/0 from 1 to", "a/b/0 from 1"])
def test_what_no_split_is_called_is_no_split(name: str) -> None:
    assert split_of(name) is None


SOURCE = Kafka("127.0.0.1:1", "clicks", "json", SCHEMA)


def test_a_source_is_plain_data() -> None:
    for source in (SOURCE, replace(SOURCE, topic=re.compile("clicks-.*")), replace(SOURCE, topic=("a", "b"))):
        assert pickle.loads(pickle.dumps(source)) == source
        assert source.check() == []


def test_what_is_secret_is_not_shown() -> None:
    source = replace(SOURCE, options={"sasl.password": "s3cret", "sasl.username": "me"})
    assert "s3cret" not in repr(source)
    problems = replace(
        source, options={**source.options, "sasl.mechanism": "NONE SUCH", "security.protocol": "SASL_SSL"}
    )
    assert problems.check()
    assert "s3cret" not in str(problems.check())


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        (replace(SOURCE, topic=""), "no topic is named"),
        (replace(SOURCE, topic=()), "no topic is named"),
        (Kafka("a:1", "clicks", "json"), "'json' need a schema"),
        (Kafka("a:1", "clicks", "raw", SCHEMA), "one column, of bytes or text"),
        (replace(SOURCE, schema=pa.schema([("kafka_time", pa.int64())])), "no column 'kafka_time'"),
        (replace(SOURCE, schema=pa.schema([("kafka_key", pa.int64())])), "it can be binary or string"),
        (replace(SOURCE, start=datetime(2026, 1, 1)), "no time zone"),
        (replace(SOURCE, start="committed"), "say by which group"),
        (replace(SOURCE, on_bad="column"), "needs a column 'kafka_error'"),
        (replace(SOURCE, format="avro", schema=pa.schema([("x", pa.time64("ns"))])), "Avro has no type for time64"),
        (replace(SOURCE, options={"no.such.option": "1"}), "no.such.option"),
        *((replace(SOURCE, options={name: "1"}), "the source's own") for name in OURS),
    ],
)  # fmt: skip
def test_a_wrong_argument_is_a_sentence(wrong: Kafka, sentence: str) -> None:
    assert any(sentence in problem for problem in wrong.check()), wrong.check()


def test_a_split_or_position_of_another_source_is_refused() -> None:
    for split, position, words in (
        ("part-0.csv", None, "no partition of Kafka"),
        ("clicks/0 from 5", {"line": 3}, "no position in a partition"),
        ("clicks/0 from 5", 3, "no position in a partition"),
    ):
        with pytest.raises(WrongPosition, match=words):
            SOURCE.open(SplitContext("in", split, position, Partition(0), Attempt(1)))


@pytest.mark.parametrize(
    ("topics", "foreign"),
    [
        ("clicks", "click"),
        (("clicks", "views"), "salaries"),
        (re.compile("clicks-.*"), "my-clicks-1"),
        (re.compile(".*"), "__consumer_offsets"),
    ],
)
def test_a_partition_of_a_topic_that_the_program_does_not_name_is_refused_before_any_broker_is_asked(
    topics: Topics, foreign: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("confluent_kafka.Consumer", None)
    source, split = replace(SOURCE, topic=topics), f"{foreign}/0 from 5"
    with pytest.raises(WrongPosition, match=rf"source in: the job reads '{split}', and the program names other topics"):
        source.open(SplitContext("in", split, None, Partition(0), Attempt(1)))
    with pytest.raises(WrongPosition, match="put it back"):
        source.available([split], {split: None})


@pytest.mark.parametrize("topics", ["clicks", ("views", "clicks"), re.compile("c.*")])
def test_a_partition_of_a_topic_that_the_program_names_is_opened(
    topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened(replace(SOURCE, topic=topics), OnePartition(), None, monkeypatch)


# --- reading a partition ----------------------------------------------------------------------------------------------


class OnePartition:
    """The client library's consumer, of a partition that is in memory. What it says of an offset comes once, before the
    record there.
    """

    def __init__(self, *held: Made) -> None:
        self.held: Sequence[Made] = held
        self.says: dict[int, Made] = {}
        self.ends: tuple[int, int] | None = None
        self.at = 0

    def __call__(self, _: Mapping[str, object]) -> OnePartition:
        """The class that it stands in for."""
        return self

    def assign(self, places: Sequence[Place]) -> None:
        [self.at] = [place.offset for place in places]

    def consume(self, most: int, _: float) -> list[Made]:
        found: list[Made] = []
        while len(found) < most:
            if said := self.says.pop(self.at, None):
                found.append(said)
            elif record := next((record for record in self.held if record.at >= self.at), None):
                found.append(record)
                self.at = record.at + 1
            else:
                break
        return found

    def get_watermark_offsets(self, place: Place, timeout: float, *, cached: bool) -> tuple[int, int]:
        if self.ends is None:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        return self.ends


def opened(source: Kafka, partition: OnePartition, position: JsonLike, patch: pytest.MonkeyPatch) -> Reader:
    patch.setattr("confluent_kafka.Consumer", partition)
    return source.open(SplitContext("in", "clicks/3 from 0", position, Partition(0), Attempt(1)))


def read(reader: Reader) -> tuple[list[int], JsonLike]:
    """The numbers that come, and where one goes on behind them."""
    reading = reader.read(100)
    assert isinstance(reading, Batch)
    return reading.rows.column("n").to_pylist(), reading.position


def in_arrow(*numbers: int) -> bytes:
    return stream_of({"n": numbers, "name": [None for _ in numbers]})


IN_ARROW = replace(SOURCE, format="arrow")


@pytest.mark.parametrize("trouble", [None, KafkaError._TRANSPORT], ids=["nothing", "an error"])
def test_rows_of_a_record_that_are_done_do_not_come_again_when_it_comes_late(
    trouble: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    partition = OnePartition()
    if trouble is not None:
        partition.says[5] = Made(None, 5, wrong=KafkaError(trouble))
    reader = opened(IN_ARROW, partition, {"offset": 5, "row": 2}, monkeypatch)
    assert isinstance(reader.read(100), Later)
    partition.held = [Made(in_arrow(0, 1, 2, 3), 5)]
    assert read(reader) == ([2, 3], {"offset": 6})


def test_no_rows_are_left_out_of_a_record_behind_one_that_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    partition = OnePartition()
    partition.says[5] = Made(None, 7, wrong=KafkaError(KafkaError._PARTITION_EOF))
    reader = opened(IN_ARROW, partition, {"offset": 5, "row": 2}, monkeypatch)
    assert read(reader) == ([], {"offset": 7})
    partition.held = [Made(in_arrow(0, 1, 2), 7)]
    assert read(reader) == ([0, 1, 2], {"offset": 8})


@pytest.mark.parametrize("on_gap", ["fail", "skip"])
@pytest.mark.parametrize("ends", [None, (0, 20), (8, 20)], ids=str)
def test_records_in_front_of_an_offset_that_is_not_found_for_a_moment_come_once(
    ends: tuple[int, int] | None, on_gap: OnGap, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those behind it come again when the partition is assigned anew."""
    partition = OnePartition(*(Made(b'{"n": %d}' % n, n) for n in range(20)))
    partition.says[10] = Made(None, 10, wrong=KafkaError(KafkaError._AUTO_OFFSET_RESET))
    partition.ends = ends
    reader = opened(replace(SOURCE, on_gap=on_gap), partition, {"offset": 5}, monkeypatch)
    readings = [reader.read(100) for _ in range(4)]
    batches = [reading.rows for reading in readings if isinstance(reading, Batch)]
    assert [n for rows in batches for n in rows.column("n").to_pylist()] == list(range(5, 20))
