"""The commits of one partition of a sink at Pravega: the log of them is read, and one after the other is added.

Invariant: an intent that is found is settled before anything else; nothing is committed whose intent is not in the log,
and no intent is recorded before all its rows are in the transaction's segments.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa

from snapshot.connectors.pravega.address import Access, Host
from snapshot.connectors.pravega.calls import CallFailed, Calls, Status
from snapshot.connectors.pravega.commit_log import CommitLog, Intent, Known, Piece
from snapshot.connectors.pravega.controller import Controller, Made, Segment, TransactionState
from snapshot.connectors.pravega.routing import routed
from snapshot.connectors.pravega.segment_store import SegmentConnection, StoreFailed, framed
from snapshot.connectors.staging.commit_tokens import TargetError
from snapshot.epochs.token_commit import TargetAnswer

REACH: Final = 10.0
"""Seconds in which a controller or a segment store answers, or cannot be reached."""
_LONG_LOG: Final = 256 << 10
"""Bytes of records, after which all but the last are dropped."""
_PART: Final = 8 << 20
"""Bytes of records that are sent to the segments in one go."""
_FRESH: Final = 240.0
"""Seconds for which a slot is kept: shorter than what segment stores are shown is valid, 600 s by default."""
_REFUSED: Final = (Status.INVALID_ARGUMENT, Status.PERMISSION_DENIED, Status.UNAUTHENTICATED, Status.UNIMPLEMENTED)


@dataclass(frozen=True, slots=True)
class PravegaClients:
    """Makes clients of one scope."""

    access: Access
    scope: str

    def controller(self) -> Controller:
        """Make a client of the controller, which connects when it is first asked."""
        return Controller(Calls(self.access, REACH), self.scope)

    def store(self, host: Host, token: str) -> SegmentConnection:
        """Connect to a segment store."""
        return SegmentConnection(self.access, host, token, REACH)


class SegmentStores:
    """Connections to the segment stores that have segments of a stream, made when they are first needed."""

    def __init__(self, clients: PravegaClients, controller: Controller, token: str = "") -> None:
        self._clients = clients
        self._controller = controller
        self.token = token
        """The proof of who this is, for the servers."""
        self._connections: dict[Host, SegmentConnection] = {}
        self._hosts: dict[Segment, Host] = {}

    def of(self, segment: Segment) -> SegmentConnection:
        """Return the connection to the segment's store."""
        if segment not in self._hosts:
            self._hosts[segment] = self._controller.host_of(segment)
        host = self._hosts[segment]
        if host not in self._connections:
            self._connections[host] = self._clients.store(host, self.token)
        return self._connections[host]

    def close(self) -> None:
        """Let all connections go."""
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()
        self._hosts.clear()


class Slot:
    """Made by reading the log, which is made if it is missing, and settling what is found there.

    Every method may raise `TargetError`. After an error it is of no more use than to be closed.
    """

    def __init__(self, clients: PravegaClients, stream: str, log: str) -> None:
        self.log = log
        self._clients = clients
        self._stream = stream
        self._controller = clients.controller()
        self._stores = SegmentStores(clients, self._controller)
        self._until = time.monotonic() + _FRESH
        try:
            with told_apart(f"the log of commits, stream {log!r}, could not be read"):
                [self._segment], self._stores.token = self._log_segments()
                self._kept = self._stores.of(self._segment).extent(self._segment.name)
                self._last, self._known = self._read()
            if self._known.intent is not None:
                with told_apart(f"a transaction on stream {stream!r} that {log!r} names could not be settled"):
                    self._settle(self._known.intent)
        except BaseException:
            self.close()
            raise

    @property
    def is_fresh(self) -> bool:
        """True if what it was given to show to segment stores is certainly valid."""
        return time.monotonic() < self._until

    def knows(self, piece: Piece) -> Known:
        """Return what the log says of a piece."""
        return self._known.knows(piece)

    def commit(self, piece: Piece, batches: Iterable[pa.RecordBatch], lease: float) -> None:
        """Write the records to a transaction, record the intent to commit it, commit it, and record that.

        `TargetError` FENCED if another committer has added to the log since it was read, or if the log, which may have
        been read anew since it was asked, says by now that the piece is committed.
        """
        if self.knows(piece) is not Known.MISSING:
            raise TargetError(TargetAnswer.FENCED, f"another process has added to the log {self.log!r}")
        with told_apart(f"a transaction on stream {self._stream!r} was not committed"):
            transaction = self._written(batches, lease)
            intent = Intent(piece, transaction)
            if not self._record(self._known.begun(intent)):
                with suppress(CallFailed):  # else it is aborted when its lease ends
                    self._controller.abort(self._stream, transaction)
                raise TargetError(TargetAnswer.FENCED, f"another process has added to the log {self.log!r}")
            if not self._settle(intent):
                raise TargetError(TargetAnswer.UNKNOWN, f"Pravega has aborted transaction {transaction:032x}")

    def close(self) -> None:
        """Let the connections go."""
        self._stores.close()
        self._controller.close()

    def _written(self, batches: Iterable[pa.RecordBatch], lease: float) -> int:
        begun = self._controller.begin(self._stream, lease)
        stores = SegmentStores(self._clients, self._controller, begun.token)
        try:
            for events in _gathered(batches):
                for segment, some in routed(events, begun.segments).items():
                    stores.of(segment).append(segment.of_transaction(begun.transaction), some)
        except BaseException:
            with suppress(CallFailed):  # else it is aborted when its lease ends
                self._controller.abort(self._stream, begun.transaction)
            raise
        finally:
            stores.close()
        return begun.transaction

    def _settle(self, intent: Intent) -> bool:
        """Commit the transaction of an intent that was recorded, unless it is decided; return whether it is."""
        state = self._controller.commit(self._stream, intent.transaction)
        if state is TransactionState.UNKNOWN:
            raise TargetError(TargetAnswer.REFUSED, _unknown(self._stream, self.log, intent))
        done = state is TransactionState.COMMITTED
        if not self._record(self._known.settled(done)):
            raise TargetError(TargetAnswer.FENCED, f"another process has added to the log {self.log!r}")
        self._shorten()
        return done

    def _record(self, log: CommitLog) -> bool:
        record = log.encode()
        if not self._stores.of(self._segment).append_at(self._segment.name, record, self._kept.end):
            return False
        self._last = self._kept.end
        self._kept = replace(self._kept, end=self._last + len(framed(record)))
        self._known = log
        return True

    def _shorten(self) -> None:
        if self._kept.end - self._kept.start <= _LONG_LOG:
            return
        with suppress(CallFailed):  # the next commit tries again
            if self._controller.truncate(self.log, {self._segment.id: self._last}):
                self._kept = replace(self._kept, start=self._last)

    def _log_segments(self) -> tuple[Sequence[Segment], str]:
        try:
            return self._controller.segments(self.log)
        except CallFailed as error:
            if error.status is not Status.NOT_FOUND:
                raise
        made = self._controller.make_stream(self.log, 1)
        if made not in (Made.NEW, Made.EXISTS):
            raise CallFailed(Status.UNAVAILABLE, f"making it was answered with {made.name}")
        return self._controller.segments(self.log)

    def _read(self) -> tuple[int, CommitLog]:
        """Return the last record, and the offset at which it begins."""
        records = self._stores.of(self._segment).read(self._segment.name, self._kept)
        if not records:
            return self._kept.end, CommitLog()
        try:
            return self._kept.end - len(framed(records[-1])), CommitLog.decode(records[-1])
        except ValueError as error:
            reason = f"stream {self.log!r} is for records of commits, but has something else at its end: {error}"
            raise TargetError(TargetAnswer.REFUSED, reason) from error


def events_of(records: pa.RecordBatch) -> Sequence[tuple[str | None, bytes]]:
    """Return the keys and the bytes of records."""
    keys, values = records.column("key").to_pylist(), records.column("value").to_pylist()
    return [(None if key is None else key.decode(), value) for key, value in zip(keys, values, strict=True)]


def _gathered(batches: Iterable[pa.RecordBatch]) -> Iterator[Sequence[tuple[str | None, bytes]]]:
    """Yield the events of many batches, which may be small, in a few parts: each costs an answer of every segment."""
    part: list[tuple[str | None, bytes]] = []
    size = 0
    for records in batches:
        part += events_of(records)
        size += records.nbytes
        if size >= _PART:
            yield part
            part, size = [], 0
    if part:
        yield part


@contextmanager
def told_apart(what: str) -> Iterator[None]:
    """Turn errors of Pravega in the block into `TargetError`, which says what was to be done."""
    try:
        yield
    except CallFailed as error:
        answer = TargetAnswer.REFUSED if error.status in _REFUSED else TargetAnswer.UNKNOWN
        raise TargetError(answer, f"{what}: {error}") from error
    except StoreFailed as error:
        raise TargetError(TargetAnswer.UNKNOWN, f"{what}: {error}") from error


def _unknown(stream: str, log: str, intent: Intent) -> str:
    return (
        f"Pravega does not know any more whether transaction {intent.transaction:032x} on stream {stream!r} was "
        f"committed, as it forgets that after its transaction.ttl.hours (24 by default), so nothing was written. Look "
        f"whether its rows are in the stream: if they are, append {log!r} the record in which intent is null and the "
        f"writer {intent.piece.writer!r} has the number {intent.piece.number}; if not, the one in which intent is null"
    )
