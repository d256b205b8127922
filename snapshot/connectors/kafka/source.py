"""Topics of Kafka: each partition is a split, read from an exact offset, so that a rollback reads the same rows again.

Invariant: where a partition is begun is decided once, when it is found, and is part of its split's name; how
far it was read is in the job's epochs and nowhere else.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from importlib.util import find_spec
from re import Pattern
from typing import Final, Literal, TypeAlias, get_args

import pyarrow as pa

from snapshot.connectors.kafka.avro import avro_schema_of
from snapshot.connectors.kafka.columns import ERROR, column_problems, is_kafkas
from snapshot.connectors.kafka.formats import FORMATS, RAW, KafkaFormat, OnBad, RecordDecoder
from snapshot.connectors.kafka.reader import KafkaReader, OnGap, begin
from snapshot.connectors.kafka.source_client import (
    EARLIEST,
    LATEST,
    OURS,
    Client,
    Cluster,
    KafkaSplit,
    Options,
    TopicPartition,
    Topics,
    is_among,
    settings,
    settings_problem,
    split_of,
)
from snapshot.program.source import Available, Reader, SourceError, SourceVanished, SplitContext, WrongPosition
from snapshot.tree.frozen_json import JsonLike
from statebackend.columns import arrow_schema
from statebackend.durations import Duration, milliseconds

Start: TypeAlias = "Literal['earliest', 'latest', 'committed'] | datetime"

_SOON: Final = 50
"""Milliseconds for which a broker waits for more before it says that there is nothing, where a partition ends."""
_STARTS: Final = ("earliest", "latest", "committed")


@dataclass(frozen=True, slots=True)
class Kafka:
    """A source of the records in one topic or several, or in all whose whole name a pattern matches.

    The columns are those of `schema`. One whose name begins with `kafka_` is what Kafka keeps beside the value:
    `kafka_key`, `kafka_timestamp`, `kafka_topic`, `kafka_partition`, `kafka_offset`, `kafka_headers`, `kafka_value`.
    The others are found by name in the value, whose `format` is

    - "raw": the value itself, as bytes or text, in the one column there is;
    - "json": an object in UTF-8; what the schema does not have is left out, what the object lacks is null;
    - "avro": a datum without a header, of the Avro schema that follows from the columns; for another schema, or to skip
      a header, give an `Avro`;
    - "arrow": an Arrow IPC stream, of any number of rows;
    - or a function, known by import or by value, that makes columns (or a record batch) of a list of values.

    A record without a value has null in all of them.

    A partition begins at `start` when the source is new to the job: at its earliest or latest record, at the first of a
    time, or where `group` has committed (at the earliest if it has not). That is decided once. How far it was read is
    in the job's epochs; no consumer group is joined, and nothing is committed to one. Partitions that are found later,
    also those of a topic that is added to the program, are read from their earliest record; `grows` says how often to
    look. A topic cannot be taken out of the program while the job reads partitions of it. With `stop`, a partition ends
    where it ended when the job began, and so does the job. Only what was committed is read, unless `options` say
    another `isolation.level`.

    A record that does not fit is an error, or left out, or has what is wrong in the column `kafka_error` and null in
    the others. Records that were deleted before they were read are an error as well, unless `on_gap` is "skip". When
    brokers do not answer, the source waits for them, and this is reported as a stall after a while.

    `options` are settings of librdkafka, such as credentials; they are not printed, and not stored. Needs the extra
    `kafka`. Each partition of a topic costs a consumer: about five threads, and up to 16 MB of what is read ahead
    (`queued.max.messages.kbytes`).
    """

    bootstrap: str
    topic: Topics
    format: KafkaFormat = "raw"
    schema: pa.Schema = RAW
    start: Start = "earliest"
    stop: Literal["latest"] | None = None
    grows: Duration | None = "10s"
    on_bad: OnBad = "fail"
    on_gap: OnGap = "fail"
    group: str | None = None
    options: Options = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "schema", arrow_schema(self.schema))
        if self.grows is not None:
            milliseconds(self.grows, "grows")

    @property
    def bounded(self) -> bool:
        """True if the source stops where its partitions ended when the job began."""
        return self.stop is not None

    @property
    def blocking(self) -> bool:
        """Return True: each partition is read by a thread of its own."""
        return True

    @property
    def on_demand(self) -> bool:
        """Return False: all partitions are read side by side."""
        return False

    @property
    def discover_every(self) -> float | None:
        """Return how often to look for new partitions, in seconds; None if they are not looked for."""
        return None if self.grows is None or self.bounded else milliseconds(self.grows) / 1000

    @property
    def why_it_may_differ(self) -> str:
        """Return why two readers may give other rows from the same position on; empty if they give the same."""
        if self.on_gap == "fail":
            return ""
        return f"with on_gap={self.on_gap!r} two readers may go on behind different gaps; say on_gap='fail'"

    def check(self) -> Sequence[str]:
        """Return what is wrong with the arguments, and which client libraries are not installed."""
        problems = [*self._format_problems(), *column_problems(self.schema), *self._choice_problems()]
        if not self.topic:
            problems.append("no topic is named")
        ours = sorted(OURS & set(self.options))
        if ours:
            problems.append(f"the options {', '.join(ours)} are the source's own; use its other arguments")
        if find_spec("confluent_kafka") is None:
            return [*problems, "Kafka needs its client library: pip install 'epochcut[kafka]'"]
        problem = settings_problem(self._settings(ends=self.bounded))
        return problems if problem is None else [*problems, f"Kafka's client refuses its settings: {problem}"]

    def discover(self, parallelism: int) -> Sequence[str]:  # noqa: ARG002
        """Name all partitions, with where each begins and ends; blocks until the brokers have answered."""
        with self._cluster() as cluster:
            found = cluster.partitions(self.topic)
            starts = self._starts(cluster, found)
            stops = cluster.offsets(found, LATEST) if self.bounded else {}
        if not found and self.discover_every is None:
            raise SourceVanished(f"{self._where}: no topic matches the pattern, and it would not be looked for again")
        return [KafkaSplit(of, starts[of], stops.get(of)).name for of in found]

    def discover_new(self, known: Collection[str]) -> Sequence[str]:
        """Return the partitions that the job does not know yet, each from its earliest record on."""
        with self._cluster() as cluster:
            return [split.name for split in self._new(cluster, known)]

    def unavailable(self) -> Sequence[str]:
        """Refuse `stop`, as it ends partitions for good."""
        if self.stop is None:
            return ()
        return (
            f"stop={self.stop!r} ends each partition for good where it ended when the job was born; leave it out: "
            "available_now=True ends a run at what is there now, and the next one goes on from there",
        )

    def available(self, known: Collection[str], reading: Mapping[str, JsonLike]) -> Available:
        """Return the partitions that are new, and where all of them end now."""
        begun = [self._split(self._where, name) for name in reading]
        with self._cluster() as cluster:
            new = self._new(cluster, known)
            splits = [*new, *begun]
            ends = cluster.offsets([split.of for split in splits], LATEST)
        for split in splits:
            offset, _ = begin(self._where, split, reading.get(split.name))
            if offset > ends[split.of]:
                raise SourceError(
                    f"{self._where}: the next record of {split.of} is at offset {offset}, and the partition ends at "
                    f"{ends[split.of]}: its topic was made again under the same name, or its brokers have lost what "
                    f"they had. Give the source a new uid to read it from its beginning"
                )
        return Available(tuple(split.name for split in new), {split.name: ends[split.of] for split in splits})

    def _new(self, cluster: Cluster, known: Collection[str]) -> list[KafkaSplit]:
        splits = {split.of for split in map(split_of, known) if split is not None}
        found = [of for of in cluster.partitions(self.topic) if of not in splits]
        starts = cluster.offsets(found, EARLIEST)
        return [KafkaSplit(of, starts[of]) for of in found]

    def _cluster(self) -> Cluster:
        return Cluster(self._where, self._settings(ends=self.bounded))

    def open(self, context: SplitContext) -> Reader:
        """Open a partition; `WrongPosition` for one of another topic, as a job's tree leads to no other."""
        where = f"source {context.uid}"
        split = self._split(where, context.split)
        if isinstance(context.until, int):
            split = replace(split, stop=context.until)
        client = Client(where, self._settings(ends=split.stop is not None))
        try:
            decoding = RecordDecoder(self.format, self.schema, self.on_bad)
            return KafkaReader(client, decoding, split, context.position, self.on_gap)
        except BaseException:
            client.close()
            raise

    def _split(self, where: str, name: str) -> KafkaSplit:
        split = split_of(name)
        if split is None:
            raise WrongPosition(
                f"{where}: {name!r} is no partition of Kafka; it was another source when the job was born. Give the "
                f"source a new uid"
            )
        if not is_among(self.topic, split.of.topic):
            raise WrongPosition(
                f"{where}: the job reads {name!r}, and the program names other topics ({self._where}). Name that topic "
                f"as well, or give the source a new uid; if the job's tree was changed from outside, put it back"
            )
        return split

    def _settings(self, *, ends: bool) -> dict[str, object]:
        # That nothing comes after control records, a consumer is told when its request has waited for more.
        sooner: Options = {"fetch.wait.max.ms": _SOON} if ends else {}
        return settings(self.bootstrap, self.group, {**sooner, **self.options})

    @property
    def _where(self) -> str:
        topics = self.topic.pattern if isinstance(self.topic, Pattern) else self.topic
        return f"Kafka's {topics if isinstance(topics, str) else ', '.join(topics)}"

    def _starts(self, cluster: Cluster, found: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        match self.start:
            case "earliest":
                return cluster.offsets(found, EARLIEST)
            case "latest":
                return cluster.offsets(found, LATEST)
            case "committed":
                return {**cluster.offsets(found, EARLIEST), **cluster.committed(found)}
            case at:
                return cluster.offsets(found, int(at.timestamp() * 1000))

    def _format_problems(self) -> Iterator[str]:
        data = pa.schema([column for column in self.schema if not is_kafkas(column)])
        if not callable(self.format) and self.format not in FORMATS:
            yield f"records cannot be read as {self.format!r}; known are {', '.join(FORMATS)}, or give a function"
        elif self.format == "raw":
            if len(data) > 1 or any(column.type not in (pa.binary(), pa.string()) for column in data):
                yield f"a raw value is one column, of bytes or text; the schema has {', '.join(map(str, data))}"
        elif self.schema is RAW:
            yield f"records of format {self.format!r} need a schema: the columns to read, and their types"
        elif self.format == "avro":
            if find_spec("fastavro") is None:
                yield "Avro needs a library: pip install 'epochcut[avro]'"
            try:
                avro_schema_of(data)
            except ValueError as error:
                yield str(error)
        if self.on_bad == "column":
            if ERROR not in self.schema.names:
                yield f"on_bad='column' needs a column {ERROR!r} of strings in the schema"
            for column in data:
                if not column.nullable:
                    yield f"the column {column.name!r} must not be null, and is where a record does not fit"

    def _choice_problems(self) -> Iterator[str]:
        if isinstance(self.start, datetime):
            if self.start.tzinfo is None:
                yield f"the start {self.start} has no time zone; give it one, such as datetime.UTC"
        elif self.start not in _STARTS:
            yield f"the start is {self.start!r}; it can be {', '.join(_STARTS)}, or a datetime"
        elif self.start == "committed" and self.group is None:
            yield "to start from what was committed, say by which group"
        for name, given, known in (
            ("stop", self.stop, ("latest", None)),
            ("on_bad", self.on_bad, get_args(OnBad)),
            ("on_gap", self.on_gap, get_args(OnGap)),
        ):
            if given not in known:
                yield f"{name} is {given!r}; it can be {' or '.join(map(repr, known))}"
