"""Rows that stream into PostgreSQL while their epoch runs, in a transaction that is prepared with it.

Invariant: the event loop talks to no server: a thread does, with one connection, transaction after transaction.
The rows of a transaction are kept until it is prepared, unless they are many: so when the connection breaks, another
one is given all of them; rows that were let go in part fail the attempt, which makes them again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final

import psycopg
import pyarrow as pa

from snapshot.connectors.sql.postgres_columns import copy_rows
from snapshot.connectors.sql.postgres_prepared import gid_of, is_prepared, prepare, rolled_back_if_over
from snapshot.connectors.sql.postgres_session import Connection, Sessions, execute, passes, words
from snapshot.connectors.sql.postgres_target import Tokens
from snapshot.connectors.sql.postgres_types import unwritable
from snapshot.connectors.sql.staged import StagedChanges
from snapshot.connectors.staging.commit_tokens import Token, TokenLives
from snapshot.connectors.staging.direct_rows import BATCH, WAITING
from snapshot.connectors.staging.payloads import MADE_BY, PLACE
from snapshot.connectors.staging.sql_statements import quoted
from snapshot.connectors.staging.staged_rows import StagedRows, in_chunks
from snapshot.ids import TransactionId
from snapshot.operators.rows import Rows
from snapshot.program.sink import CommitAnswer, Sealed, SinkContext, SinkError, Staging, UnwritableRow
from snapshot.tree.frozen_json import Json, JsonLike
from snapshot.tree.manifest import CommitPayload
from statebackend.ids import Uid

KEPT: Final = 64 << 20
"""Bytes of a transaction that are kept until it is prepared."""
_BEGIN: Final = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE"


@dataclass(slots=True, eq=False)
class _Transaction:
    """Rows on their way into one transaction. The event loop adds, the thread takes."""

    token: Token
    rows: list[pa.RecordBatch] = field(default_factory=list)
    """All of them, unless some were let go."""
    taken: int = 0
    """The number of `rows` that the server has been given."""
    size: int = 0
    waiting: int = 0
    """Bytes that the thread was not asked to take."""
    whole: bool = True
    begun: bool = False
    broken: str = ""
    """The fault of the connection; empty if there is none."""
    writing: Future[None] | None = None
    settled: tuple[str, ...] = ()
    payload: CommitPayload | None = None

    def let_go(self) -> None:
        """Forget the rows that the server has."""
        self.whole = False
        del self.rows[: self.taken]
        self.taken = 0

    def prepared(self, kind: str, place: Mapping[str, JsonLike]) -> None:
        """Record that the server has all rows and keeps the prepared transaction: make the payload, forget the rows."""
        about = {"gid": gid_of(self.token), "nonce": self.token.nonce, "settled": list(self.settled)}
        self.payload = CommitPayload(Json.of({MADE_BY: kind, PLACE: place, **about}))
        self.rows = []

    def stage(self, kind: str, place: Mapping[str, JsonLike], staging: Staging, uid: Uid) -> None:
        """Store the rows in the job's tree, as the server has none of them."""
        staged = StagedRows(uid, staging)
        staged.begin()
        for batch in self.rows:
            staged.write(Rows(batch))
        about = StagedChanges(place, (), "", self.token, self.settled)
        self.payload = staged.seal({MADE_BY: kind, **about.stored()}).prepare()
        staged.close()
        self.rows = []


class PreparedAppends:
    """A writer that appends to one table. `kind` and `place` go into each payload: which sink makes it, and which table
    it is for.
    """

    def __init__(
        self,
        context: SinkContext,
        sessions: Sessions,
        kind: str,
        place: Mapping[str, JsonLike],
        lives: TokenLives,
        commit: Callable[[TransactionId, CommitPayload], CommitAnswer],
    ) -> None:
        self._uid = context.uid
        self._staging = context.staging
        self._sessions = sessions
        self._kind, self._place = kind, place
        self._table = str(place["table"])
        self._tokens = Tokens(context.job, context.uid, context.incarnation, self._table)
        self._lives = lives
        self._commit = commit
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"rows-{context.uid}")
        self._connection: Connection | None = None
        self._current: _Transaction | None = None
        self._failure = ""
        self._closed = False

    # --- in the event loop --------------------------------------------------------------------------------------------

    def begin(self, transaction: TransactionId) -> None:
        """Draw a token; the server hears of it with the first rows."""
        self._current = _Transaction(Token.new(transaction))

    def write(self, rows: Rows) -> None:
        """Have the rows sent when there are enough of them; waits if they come faster than the server takes them."""
        self._check()
        if not len(rows):
            return
        if fault := unwritable(rows.batch):
            raise UnwritableRow(f"sink {self._uid}: {fault}")
        current = self._current
        assert current is not None, "a transaction was begun"
        current.rows.append(rows.batch)
        current.size += rows.size
        current.waiting += rows.size
        if current.waiting < BATCH:
            return
        if current.writing is None or current.writing.done():
            self._hand_over(current)
        elif current.waiting >= WAITING:
            current.writing.result()
            self._hand_over(current)
        if current.broken and current.size > KEPT + WAITING:
            self._failure = f"its rows cannot wait any longer: {current.broken}"
            self._check()

    def seal(self) -> Sealed:
        """Have the rest sent, and the transaction prepared."""
        self._check()
        current, self._current = self._current, None
        assert current is not None, "a transaction was begun"
        if current.size:
            current.settled = tuple(self._lives.settled)
            current.writing = self._thread.submit(self._send, current, True)
        return _SealedAppends(self, current)

    def close(self) -> None:
        """Send nothing more; the server rolls back what is not prepared."""
        self._closed = True
        self._thread.submit(self._hang_up)
        self._thread.shutdown(wait=False)
        self._sessions.close()

    def _hand_over(self, current: _Transaction) -> None:
        current.waiting = 0
        current.writing = self._thread.submit(self._send, current, False)

    def _check(self) -> None:
        if self._failure:
            raise SinkError(f"sink {self._uid}: {self._failure}")

    # --- in threads ---------------------------------------------------------------------------------------------------

    def commit(self, transaction: TransactionId, payload: CommitPayload) -> CommitAnswer:
        """Commit a prepared transaction."""
        return self._commit(transaction, payload)

    def prepare(self, sealed: _Transaction) -> CommitPayload | None:
        """Wait until the transaction is prepared; if the connection broke, do all of it again over another one."""
        if sealed.writing is None:
            return None
        sealed.writing.result()
        if sealed.payload is None:
            self._check()
            self._again(sealed)
        return sealed.payload

    def _send(self, transaction: _Transaction, last: bool) -> None:
        """Send the server the rows that it does not have; with `last`, prepare the transaction."""
        if self._closed or self._failure or transaction.broken:
            return
        try:
            if self._connection is None:
                self._connection = self._sessions.connect()
            if not transaction.begun:
                execute(self._connection, _BEGIN)
                transaction.begun = True
            end = len(transaction.rows)
            for chunk in in_chunks(transaction.rows[transaction.taken : end]):
                copy_rows(self._connection, quoted(self._table), chunk)
            transaction.taken = end
            if last:
                self._prepare(self._connection, transaction)
            elif transaction.size > KEPT:
                transaction.let_go()
        except psycopg.Error as error:
            self._hang_up()
            self._failed(transaction, error)

    def _again(self, transaction: _Transaction) -> None:
        if not transaction.whole:
            raise SinkError(f"sink {self._uid}: {transaction.broken}")
        try:
            with self._sessions.session() as connection:
                if is_prepared(connection, transaction.token):
                    self._look_back(connection, transaction)
                else:
                    execute(connection, _BEGIN)
                    for chunk in in_chunks(transaction.rows):
                        copy_rows(connection, quoted(self._table), chunk)
                    self._prepare(connection, transaction)
        except psycopg.errors.OutOfMemory:  # which is what the server says when it has as many as it may
            transaction.stage(self._kind, self._place, self._staging, self._uid)
        except psycopg.Error as error:
            self._failed(transaction, error)
            raise SinkError(f"sink {self._uid}: {transaction.broken}") from error
        self._check()

    def _prepare(self, connection: Connection, transaction: _Transaction) -> None:
        prepare(connection, self._tokens, transaction.token)
        self._look_back(connection, transaction)

    def _look_back(self, connection: Connection, transaction: _Transaction) -> None:
        """Make the payload of the prepared transaction, or fail if a later attempt has begun."""
        overtaken = rolled_back_if_over(connection, self._tokens, transaction.token)
        if overtaken is None:
            transaction.prepared(self._kind, self._place)
        else:
            self._failure = overtaken

    def _failed(self, transaction: _Transaction, error: psycopg.Error) -> None:
        """Note an error of the connection, and fail if it does not pass or if not all rows are still here.

        Otherwise the rows can be sent again over another connection.
        """
        transaction.broken = words(error, self._sessions.dsn)
        if not passes(error) or not transaction.whole:
            self._failure = transaction.broken

    def _hang_up(self) -> None:
        if self._connection is not None:
            self._sessions.give_up(self._connection)
            self._connection = None


@dataclass(frozen=True, slots=True, eq=False)
class _SealedAppends:
    """A transaction that takes no more rows."""

    writer: PreparedAppends
    transaction: _Transaction

    def prepare(self) -> CommitPayload | None:
        """Have the transaction prepared, unless it is."""
        return self.writer.prepare(self.transaction)
