"""A stream of Pravega, in which the rows of an epoch appear when it is complete, in one transaction per partition.

Invariant: rows wait in the job's tree as finished records, so that every commit, by any program, writes the same bytes;
a transaction of Pravega is open only while a commit is under way, never while rows come.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from secrets import token_hex
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from snapshot.connectors.kafka.records import RecordFormat, RecordShape
from snapshot.connectors.pravega.address import access_to
from snapshot.connectors.pravega.calls import CallFailed
from snapshot.connectors.pravega.commits import About, PravegaCommits
from snapshot.connectors.pravega.controller import Controller, Made, Segment
from snapshot.connectors.pravega.routing import routed
from snapshot.connectors.pravega.segment_store import LARGEST_EVENT, StoreFailed
from snapshot.connectors.pravega.slot import PravegaClients, SegmentStores, events_of
from snapshot.connectors.staging.direct_rows import DirectRows
from snapshot.connectors.staging.payloads import MADE_BY
from snapshot.connectors.staging.staged_rows import StagedRows
from snapshot.connectors.staging.table_fit import column_of
from snapshot.epochs.transaction_events import parse_transaction_id
from snapshot.ids import JobId, TransactionId
from snapshot.operators.rows import Rows
from snapshot.program.sink import Abilities, CommitAnswer, Sealed, SinkContext, SinkError, SinkWriter, UnwritableRow
from snapshot.tree.frozen_json import JsonLike
from snapshot.tree.manifest import CommitPayload
from statebackend.ids import Incarnation, Uid

_OPTIONS: Final = frozenset({"user", "password", "certificates"})
_ANY: Final = 1 << 40
"""More bytes than any record has; what an event may have is said in words about events."""
_SHORTEST: Final = 10.0
"""Seconds of the shortest lease that a controller gives, unless it was told otherwise."""


@dataclass(frozen=True, slots=True)
class ToPravega:
    """A sink that writes an event for each row to a stream. `controller` is `tcp://host:port`, or `tls://...`; several
    controllers of one cluster stand with commas between them: `tcp://one:9090,two:9090`.

    The column `key` is the routing key: texts, or anything but bytes as JSON; events of a key are in its order. Without
    a key, or where it is null, events are spread over the segments. An event is the column `value`, texts or bytes; or,
    without one, all columns, in the `format`: a JSON object, in which NaN and infinities are refused, an Avro datum
    without a header, or an Arrow stream, of which each event holds many rows.

    `options` are `user` and `password`, and `certificates`, a file of those that are trusted with `tls://`; they are
    not printed, and not written to the job's tree. `create` makes a stream that is missing, and its scope, with so many
    segments.

    Exactly-once: rows wait in the snapshot. When their epoch is complete, each partition writes its rows to one
    transaction, notes in a log that it is about to commit it, commits it, and notes that it is done. So a process that
    finds the note knows that all rows are in the transaction, and commits it; or finds that Pravega has aborted it, and
    writes the rows to another. The logs are streams `epochcut-commits-...-<partition>` in the same scope, some KB each;
    do not delete them while the job may go on. A commit has to be done in `transaction_timeout` seconds, the lease of
    its transaction (10 to 600 s by the controller's defaults).

    With `exactly_once=False` events are appended as rows come, and rows since the last complete epoch again after a
    rollback.
    """

    controller: str
    scope: str
    stream: str
    key: str | None = None
    value: str | None = None
    format: RecordFormat = "json"
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    create: int | None = None
    transaction_timeout: float = 60.0
    exactly_once: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", column_of("key", self.key))

    @property
    def abilities(self) -> Abilities:
        """Declare that tokens can be read: the log of commits says what became of a transaction.

        An open transaction is aborted when its lease ends, so nothing is kept prepared.
        """
        return Abilities(reads_tokens=True)

    def check(self, schema: pa.Schema) -> Sequence[str]:
        """Report missing columns and wrong types, settings that contradict, and libraries that are not installed."""
        problems = list(self._shape.unsuitable(schema))
        if self.key in schema.names and _is_bytes(schema.field(self.key).type):
            problems.append(f"a routing key is a text, and the column {self.key!r} has bytes")
        if any(find_spec(library) is None for library in ("h2", "mmh3")):
            problems.append("what Pravega's protocols need is not installed; pip install 'epochcut[pravega]'")
        try:
            access_to(self.controller, {})
        except ValueError as error:
            problems.append(str(error))
        problems += [
            f"there is no option {name!r}; known are {', '.join(sorted(_OPTIONS))}"
            for name in sorted(set(self.options) - _OPTIONS)
        ]
        if self.create is not None and self.create < 1:
            problems.append(f"a stream has segments; but create is {self.create}")
        if self.transaction_timeout < _SHORTEST:
            given = f"transaction_timeout is {self.transaction_timeout:g} s"
            problems.append(f"{given}, and the lease of a transaction is {_SHORTEST:g} s or more")
        return problems

    def examine(self, job: JobId, uid: Uid, schema: pa.Schema) -> Sequence[str]:  # noqa: ARG002
        """Report a controller that cannot be reached, a stream that is missing, and transactions that are refused."""
        try:
            controller = self._clients.controller()
        except ValueError as error:
            return [str(error)]
        try:
            return list(self._examined(controller))
        except CallFailed as error:
            return [f"Pravega cannot be used: {error}"]
        finally:
            controller.close()

    def _examined(self, controller: Controller) -> Iterator[str]:
        name = f"{self.scope}/{self.stream}"
        if not controller.has_scope():
            if self.create is None:
                yield f"Pravega at {self.controller} has no scope {self.scope!r}; make it, or give create"
                return
            if (made := controller.make_scope()) not in (Made.NEW, Made.EXISTS):
                yield f"scope {self.scope!r} could not be made: {made.name}"
                return
        if not controller.has_stream(self.stream):
            if self.create is None:
                yield f"Pravega at {self.controller} has no stream {name}; make it, or give create"
                return
            if (made := controller.make_stream(self.stream, self.create)) not in (Made.NEW, Made.EXISTS):
                yield f"stream {name} could not be made: {made.name}"
                return
        if self.exactly_once:
            begun = controller.begin(self.stream, self.transaction_timeout)
            controller.abort(self.stream, begun.transaction)
        elif not controller.segments(self.stream)[0]:
            yield f"stream {name} is sealed, and takes no events"

    def open(self, context: SinkContext) -> SinkWriter:
        """Open the sink in a partition."""
        place: dict[str, JsonLike] = {"controller": self.controller, "scope": self.scope, "stream": self.stream}
        commits = PravegaCommits(ToPravega.__name__, place, self._clients, self.transaction_timeout, context)
        if self.exactly_once:
            return _StagingWriter(self._shape, context, commits)
        appends = _Appends(self._clients, self.stream, self._shape, context.uid)

        def close() -> None:
            appends.close()
            commits.close()

        return DirectRows(context.uid, appends.put, commits.commit, close)

    def recover(self, job: JobId, uid: Uid, older_than: Incarnation, named: Collection[TransactionId]) -> None:
        """Do nothing: rows wait in the job's tree, so none are left in Pravega.

        A transaction that a dead process has left open belongs to a commit, which is asked for again, and is committed
        by that if it was noted in the log. Else it is aborted when its lease ends.
        """

    @property
    def _clients(self) -> PravegaClients:
        return PravegaClients(access_to(self.controller, self.options), self.scope)

    @property
    def _shape(self) -> RecordShape:
        return RecordShape(self.key, self.value, self.format, largest=_ANY)


class _StagingWriter:
    """Keeps the records of the current transaction, and commits what was prepared before."""

    def __init__(self, shape: RecordShape, context: SinkContext, commits: PravegaCommits) -> None:
        self._shape = shape
        self._uid = context.uid
        self._commits = commits
        self._rows = StagedRows(context.uid, context.staging)
        self._writer = token_hex(8)
        self._number = 0
        self._first: int | None = None
        self._sealed_at = 0
        self._has_rows = False

    def begin(self, transaction: TransactionId) -> None:
        """Begin with no records."""
        self._number = parse_transaction_id(transaction).n
        if self._first is None:
            self._first = self._number
        self._has_rows = False
        self._rows.begin()

    def write(self, rows: Rows) -> None:
        """Keep the rows as records; `UnwritableRow` for one that cannot be one."""
        if len(rows):
            self._rows.write(Rows(encoded(self._shape, rows.batch, self._uid)))
            self._has_rows = True

    def seal(self) -> Sealed:
        """Hand over the records."""
        assert self._first is not None
        self._sealed_at = max(self._sealed_at, int(time.time() * 1000))  # a clock may be put back
        about = About(self._commits.place, self._first, self._sealed_at, self._writer)
        if self._has_rows:
            self._first = self._number + 1
        return self._rows.seal({MADE_BY: ToPravega.__name__, **about.json()})

    def commit(self, transaction: TransactionId, payload: CommitPayload) -> CommitAnswer:
        """Write the records and commit them, unless that was done."""
        return self._commits.commit(transaction, payload)

    def close(self) -> None:
        """Forget what is not prepared, and let the log go."""
        self._rows.close()
        self._commits.close()


class _Appends:
    """Appends rows to the segments of a stream, without transactions. One thread calls all of it."""

    def __init__(self, clients: PravegaClients, stream: str, shape: RecordShape, uid: Uid) -> None:
        self._clients = clients
        self._controller = clients.controller()
        self._stream = stream
        self._shape = shape
        self._uid = uid
        self._segments: Sequence[Segment] = ()
        self._stores: SegmentStores | None = None

    def put(self, rows: pa.Table) -> None:
        """Append the rows; `SinkError` if some may not be there."""
        try:
            if self._stores is None:
                self._segments, token = self._controller.segments(self._stream)
                self._stores = SegmentStores(self._clients, self._controller, token)
            for batch in rows.to_batches():
                events = events_of(encoded(self._shape, batch, self._uid))
                for segment, some in routed(events, self._segments).items():
                    self._stores.of(segment).append(segment.name, some)
        except (CallFailed, StoreFailed) as error:
            self._let_go()  # a segment may have been split, or have moved
            raise SinkError(f"sink {self._uid}: stream {self._stream!r}: {error}") from error

    def close(self) -> None:
        """Let the connections go."""
        self._let_go()
        self._controller.close()

    def _let_go(self) -> None:
        if self._stores is not None:
            self._stores.close()
            self._stores = None


def encoded(shape: RecordShape, rows: pa.RecordBatch, uid: Uid) -> pa.RecordBatch:
    """Encode rows as records; `UnwritableRow` if a row cannot be one."""
    try:
        records = shape.encode(rows)
        if nulls := records.column("value").null_count:
            raise ValueError(f"{nulls} of {len(records)} have no value, and an event has one")
        if (lengths := pc.max(pc.binary_length(records.column("value"))).as_py() or 0) > LARGEST_EVENT:
            raise ValueError(f"an event has {lengths} bytes, and Pravega takes {LARGEST_EVENT}")
    except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
        raise UnwritableRow(f"sink {uid}: a row cannot be written as an event of Pravega: {error}") from error
    return records


def _is_bytes(type: pa.DataType) -> bool:
    return bool(pa.types.is_binary(type) or pa.types.is_large_binary(type) or pa.types.is_fixed_size_binary(type))
