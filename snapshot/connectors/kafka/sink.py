"""A topic of Kafka, in which the records of an epoch appear when it is complete, in one transaction per partition.

Invariant: rows wait in the job's tree as finished records, so that every commit, by any program, writes the same bytes;
a transaction of Kafka is open only while a commit is under way, never while rows come.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from secrets import token_hex
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from snapshot.connectors.kafka.commit import KafkaCommits
from snapshot.connectors.kafka.examination import Expectation, examined
from snapshot.connectors.kafka.records import RecordFormat, RecordShape
from snapshot.connectors.kafka.sink_client import OURS, KafkaClients, Setting, largest_record
from snapshot.connectors.kafka.slot import Undelivered, produce
from snapshot.connectors.kafka.tokens import About, producer_of
from snapshot.connectors.staging.payloads import MADE_BY
from snapshot.connectors.staging.staged_rows import StagedRows
from snapshot.connectors.staging.table_fit import column_of
from snapshot.epochs.transaction_events import Committable, parse_transaction_id, transaction_id
from snapshot.ids import JobId, TransactionId
from snapshot.operators.rows import Rows
from snapshot.program.sink import Abilities, CommitAnswer, Sealed, SinkContext, SinkError, SinkWriter, UnwritableRow
from snapshot.tree.manifest import CommitPayload
from statebackend.ids import Attempt, Generation, Incarnation, Partition, Uid

if TYPE_CHECKING:
    from confluent_kafka import Producer


@dataclass(frozen=True, slots=True)
class ToKafka:
    """A sink that writes a record for each row to a topic. `bootstrap` are the brokers to ask first, `host:port,...`.

    A record's key is the column `key`: texts and bytes as they are, anything else as JSON. Its value is the column
    `value`, texts or bytes; or, without one, all columns but the following ones, in the `format`: a JSON object, in
    which NaN and infinities are refused, an Avro datum without a header (its schema is
    `snapshot.connectors.kafka.avro.avro_schema_of`), or an Arrow stream, of which each record holds many rows.
    `headers` is a column of maps, `partition` of numbers (null: the key decides), `timestamp` of times; a row whose
    `tombstone` is true has no value, so that a compacted topic forgets its key.

    `options` are settings of librdkafka for all clients, such as those of TLS and SASL; they are not printed, and not
    written to the job's tree. A row whose record is larger than their `message.max.bytes` (1 MB by default) is an error
    when it comes; the topic's max.message.bytes has to allow as much. `create` makes a topic that is missing, with so
    many partitions.

    Exactly-once: the rows of an epoch are committed, partition by partition, each in one transaction with a token, by a
    producer with the transactional id `epochcut/<job>/<uid>/<partition>`; the tokens are in consumer groups whose names
    begin with `epochcut/<job>/<uid>/`. Readers with `isolation.level=read_committed` see each row once. A commit has to
    be done in `transaction_timeout` seconds (the broker's transaction.max.timeout.ms allows 900 by default). A broker
    forgets tokens after its offsets.retention.minutes (7 days by default); a commit that is asked for later, as after
    going back to an old savepoint, fails with a reason unless its token is still there. `tokens_kept` says how many
    seconds that is, if the broker does not tell us.

    What was prepared is committed to brokers of the list that it was prepared for: a `bootstrap` that shares none with
    it is refused until that is done, as it may be another cluster. Give both lists where one cluster has got new names.
    So is another topic, unless the former one is allowed by name (`accept_places`).

    Let `transaction_timeout` be longer than a broker may be away. What has timed out meanwhile is ended while the
    broker starts, and Kafka 4.3 was seen to do that before it knew its topics (one node, 3 s): it wrote no abort, and
    the next transaction of the producer showed those records as well.

    With `exactly_once=False` records are sent as rows come, and rows since the last complete epoch again after a
    rollback.
    """

    bootstrap: str
    topic: str
    key: str | None = None
    value: str | None = None
    format: RecordFormat = "json"
    headers: str | None = None
    partition: str | None = None
    timestamp: str | None = None
    tombstone: str | None = None
    options: Mapping[str, Setting] = field(default_factory=dict, repr=False)
    create: int | None = None
    transaction_timeout: float = 60.0
    tokens_kept: float | None = None
    exactly_once: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", column_of("key", self.key))

    @property
    def abilities(self) -> Abilities:
        """Declare that tokens can be read, as they are written with the rows.

        A producer's open transaction dies with it, so nothing is kept prepared.
        """
        return Abilities(reads_tokens=True)

    def check(self, schema: pa.Schema) -> Sequence[str]:
        """Report missing columns and wrong types, settings that contradict, and libraries that are not installed."""
        problems = list(self._shape.unsuitable(schema))
        if find_spec("confluent_kafka") is None:
            problems.append("Kafka's client is not installed; pip install 'epochcut[kafka]'")
        if self.format == "avro" and find_spec("fastavro") is None:
            problems.append("Avro is not installed; pip install 'epochcut[avro]'")
        problems += [
            f"the option {name!r} is set by the sink; leave it out" for name in sorted(OURS & set(self.options))
        ]
        if self.create is not None and self.create < 1:
            problems.append(f"a topic has partitions; but create is {self.create}")
        if self.transaction_timeout < 1:
            problems.append(f"transaction_timeout is {self.transaction_timeout:g} s; give commits a second at least")
        return problems

    def examine(self, job: JobId, uid: Uid, schema: pa.Schema) -> Sequence[str]:  # noqa: ARG002
        """Report brokers that cannot be reached, lack the topic, or refuse the steps of a commit; writes no records."""
        timeout = self.transaction_timeout if self.exactly_once else None
        expected = Expectation(self.topic, self.create, timeout, self.tokens_kept is None)
        anyone = transaction_id(job, uid, Incarnation(Generation(0), Attempt(0)), Partition(0), 0)
        return list(examined(self._clients, expected, producer_of(anyone).rpartition("/")[0]))

    def open(self, context: SinkContext) -> SinkWriter:
        """Open the sink in a partition."""
        kind, timeout = ToKafka.__name__, self.transaction_timeout
        commits = KafkaCommits(kind, self.topic, self._clients, timeout, self.tokens_kept, context)
        if self.exactly_once:
            return _StagingWriter(self.topic, self._shape, context, commits)
        return _SendingWriter(self.topic, self._shape, context, commits, self._clients)

    def recover(self, job: JobId, uid: Uid, older_than: Incarnation, named: Collection[TransactionId]) -> None:
        """Do nothing: rows wait in the job's tree, so none are left in Kafka.

        A transaction that a dead process has left open belongs to a commit, which is asked for again. The process that
        commits takes over the transactional id in the committable, which aborts the open transaction, even if its
        partition no longer exists. If the commit is given up instead, the broker aborts it after `transaction_timeout`.
        """

    @property
    def _clients(self) -> KafkaClients:
        return KafkaClients(self.bootstrap, dict(self.options))

    @property
    def _shape(self) -> RecordShape:
        columns = (self.headers, self.partition, self.timestamp, self.tombstone)
        return RecordShape(self.key, self.value, self.format, *columns, largest=largest_record(self.options))


class _StagingWriter:
    """Keeps the records of the current transaction, and commits what was prepared before."""

    def __init__(self, topic: str, shape: RecordShape, context: SinkContext, commits: KafkaCommits) -> None:
        self._topic = topic
        self._shape = shape
        self._uid = context.uid
        self._commits = commits
        self._rows = StagedRows(context.uid, context.staging)
        self._producer = ""
        self._writer = token_hex(8)
        self._number = 0
        self._first: int | None = None
        self._has_rows = False

    def begin(self, transaction: TransactionId) -> None:
        """Begin with no records."""
        self._producer = producer_of(transaction)
        self._number = parse_transaction_id(transaction).n
        if self._first is None:
            self._first = self._number
        self._has_rows = False
        self._rows.begin()

    def write(self, rows: Rows) -> None:
        """Keep the rows as records; `SinkError` for one that cannot be one."""
        if len(rows):
            self._rows.write(Rows(encoded(self._shape, rows, self._uid)))
            self._has_rows = True

    def seal(self) -> Sealed:
        """Hand over the records."""
        assert self._first is not None
        sealed_at, bootstrap = int(time.time() * 1000), self._commits.clients.bootstrap
        about = About(self._topic, self._producer, self._first, sealed_at, self._writer, bootstrap)
        if self._has_rows:
            self._first = self._number + 1
        return self._rows.seal({MADE_BY: ToKafka.__name__, **about.json()})

    def commit(self, transaction: TransactionId, payload: CommitPayload) -> CommitAnswer:
        """Write the records and the token, unless the token is there."""
        return self._commits.commit(transaction, payload)

    def commit_together(self, due: Sequence[Committable[CommitPayload]]) -> CommitAnswer:
        """Commit the first transaction, together with following ones that fit in the same transaction of Kafka."""
        return self._commits.commit_together(due)

    def close(self) -> None:
        """Forget what is not prepared, and let the producer go."""
        self._rows.close()
        self._commits.close()


class _SendingWriter:
    """Sends records as rows come; commits what was prepared before, when the sink was exactly-once."""

    def __init__(
        self, topic: str, shape: RecordShape, context: SinkContext, commits: KafkaCommits, clients: KafkaClients
    ) -> None:
        self._topic = topic
        self._shape = shape
        self._uid = context.uid
        self._commits = commits
        self._undelivered = Undelivered()
        self._producer: Producer = clients.plain_producer(self._undelivered)

    def begin(self, transaction: TransactionId) -> None:
        """Do nothing: records are sent without transactions."""

    def write(self, rows: Rows) -> None:
        """Send the rows; `SinkError` if records were not delivered, of these or earlier ones."""
        if len(rows):
            produce(self._producer, self._topic, encoded(self._shape, rows, self._uid), self._undelivered)
        if self._undelivered.reason is not None:
            raise SinkError(f"sink {self._uid}: topic {self._topic!r}: {self._undelivered.reason}")

    def seal(self) -> Sealed:
        """Close the transaction; its records have to arrive before the epoch is complete."""
        return _Sent(self._producer, self._undelivered)

    def commit(self, transaction: TransactionId, payload: CommitPayload) -> CommitAnswer:
        """Write the records and the token, unless the token is there."""
        return self._commits.commit(transaction, payload)

    def close(self) -> None:
        """Drop the records that are not sent; their rows come again."""
        self._producer.purge()
        self._commits.close()


@dataclass(frozen=True, slots=True, eq=False)
class _Sent:
    """Records that were sent."""

    producer: Producer
    undelivered: Undelivered

    def prepare(self) -> None:
        """Wait until the records have arrived; `SinkError` if some have not."""
        left = self.producer.flush(_ARRIVE)
        if self.undelivered.reason is not None:
            raise SinkError(self.undelivered.reason)
        if left:
            raise SinkError(f"{left} records have not arrived after {_ARRIVE:g} s")


_ARRIVE: Final = 30.0
"""Seconds until an epoch whose records do not arrive is declined."""


def encoded(shape: RecordShape, rows: Rows, uid: Uid) -> pa.RecordBatch:
    """Encode rows as records; `UnwritableRow` if a row cannot be one."""
    try:
        return shape.encode(rows.batch)
    except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
        raise UnwritableRow(f"sink {uid}: a row cannot be written as a record of Kafka: {error}") from error
