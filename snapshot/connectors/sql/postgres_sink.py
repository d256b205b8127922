"""Rows for a table of a PostgreSQL database, in transactions that the server keeps prepared, or staged with a token.

Invariant: rows are visible when their epoch is complete, all of a transaction at once, and once; the password
is in nothing that is printed or stored.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Literal

import pyarrow as pa

from snapshot.connectors.sql.postgres_types import declared_for, unwritable
from snapshot.connectors.sql.staged import StagedChanges, StagedTableWriter
from snapshot.connectors.staging.commit_tokens import TokenLives, commit_by_token
from snapshot.connectors.staging.direct_rows import DirectRows
from snapshot.connectors.staging.payloads import PayloadFields, for_another_place, place_text, read_payload
from snapshot.connectors.staging.staged_rows import UNREADABLE, staged_batches, unreadable
from snapshot.connectors.staging.table_fit import Wanted, columns_of, key_faults
from snapshot.epochs.transaction_events import CommitOutcome
from snapshot.ids import JobId, TransactionId
from snapshot.program.sink import Abilities, CommitAnswer, SinkContext, SinkWriter
from snapshot.tree.frozen_json import JsonLike
from snapshot.tree.manifest import CommitPayload
from statebackend.ids import Incarnation, Uid

if TYPE_CHECKING:
    from snapshot.connectors.sql.postgres_prepared import PreparedCommit
    from snapshot.connectors.sql.postgres_session import Connection, Sessions

Mode = Literal["prepared", "staged"]
_DONE = (CommitOutcome.COMMITTED, CommitOutcome.ALREADY_COMMITTED)


@dataclass(frozen=True, slots=True)
class ToPostgres:
    """A sink that writes a table of the database that `dsn` names; `table` may have a schema before a dot.

    `dsn` is what libpq understands. Its password is not printed, but it is in the program; libpq also takes it from a
    password file or the environment of all processes. Rows go to columns of the same names. Types that do not fit are
    found when the job starts. A text that is longer than its column, or no uuid where it should be one, is refused by
    the server like a row that violates a constraint, and so in each attempt: look at such texts in the stream.
    `create` makes the table if it is missing. Beside it is a table `epochcut_commits`, a row for each transaction that
    may be asked for again; who deletes rows there may get output twice.

    With mode "prepared", rows are sent while their epoch runs, in a transaction that the server keeps from the epoch's
    cut until its commit. That needs the setting `max_prepared_transactions`, two or more for each partition; a commit
    has to be by the same role, in the same database. A transaction that is open or prepared locks the table against
    changes of its columns, and keeps dead rows from being cleared away. Up to 64 MiB of an epoch's rows are kept, so
    that a server that restarts costs no attempt; they are staged when the server can keep no more transactions.

    With mode "staged", rows are staged in the job's tree, and written by one transaction at commit. It is always so
    with `key`, one column or several, for which the table has a primary key or a unique index: a row replaces the one
    with its key, as the table compares keys, and the last one of a transaction counts; rows whose column `deleted` is
    true delete instead.

    What was prepared is committed where it was meant to go: a dsn with another database, or that names none of the
    servers of before, is refused until that is done. Name both where one server has got another name. So is another
    table, unless the former one is allowed by name (`accept_places`).

    With `exactly_once=False`, rows are written as they come, in batches, and again after a rollback.
    """

    dsn: str = field(repr=False)
    table: str
    key: str | tuple[str, ...] = ()
    deleted: str = ""
    create: bool = False
    mode: Mode = "prepared"
    exactly_once: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", columns_of("key", self.key))

    @property
    def keys(self) -> tuple[str, ...]:
        """Return the columns that make up the key; none if rows are appended."""
        return columns_of("key", self.key)

    @property
    def abilities(self) -> Abilities:
        """Declare that the server keeps prepared transactions and that tokens can be read."""
        return Abilities(keeps_prepared=True, reads_tokens=True)

    def check(self, schema: pa.Schema) -> Sequence[str]:
        """Report a missing library, an unreadable dsn or mode, keys that the rows lack, and types without a column."""
        problems = key_faults(schema, self._wanted)
        if self.mode not in ("prepared", "staged"):
            problems.append(f"the mode is {self.mode!r}; known are prepared and staged")
        for one in self._wanted.written(schema):
            if not declared_for(one.type):
                problems.append(f"PostgreSQL has no column for {one.name!r} of {one.type}; cast it in the stream")
        if find_spec("psycopg") is None:
            return [*problems, "PostgreSQL is written with psycopg, which is missing: pip install 'epochcut[postgres]'"]
        from snapshot.connectors.sql.postgres_session import dsn_faults

        return [*problems, *dsn_faults(self.dsn)]

    def examine(self, job: JobId, uid: Uid, schema: pa.Schema) -> Sequence[str]:
        """Report an unreachable or refusing server, a missing table, privilege or setting, and columns that do not fit.

        Makes the table of tokens, and what `create` asks for.
        """
        import psycopg

        from snapshot.connectors.sql.postgres_examination import Examined
        from snapshot.connectors.sql.postgres_session import connect, dsn_faults, words

        if faults := dsn_faults(self.dsn):
            return faults
        try:
            with connect(self.dsn) as connection:
                examined = Examined(job, uid, connection, self._wanted, self.exactly_once, self._is_staged)
                return examined.faults(schema, self.create)
        except psycopg.Error as error:
            return [words(error, self.dsn)]

    def open(self, context: SinkContext) -> SinkWriter:
        """Open the sink in a partition."""
        from snapshot.connectors.sql.postgres_appends import PreparedAppends
        from snapshot.connectors.sql.postgres_session import Sessions, place_of
        from snapshot.connectors.sql.postgres_target import put, transaction

        kind, place = ToPostgres.__name__, {**place_of(self.dsn), "table": self.table}
        sessions = Sessions(self.dsn)
        commits = _Commits(self, context, sessions)
        if not self.exactly_once:

            def write(rows: pa.Table) -> None:
                with sessions.session() as connection, transaction(connection):
                    put(connection, self.table, rows, self.keys, self.deleted)

            return DirectRows(context.uid, write, commits.commit, sessions.close)
        if self._is_staged:
            key, deleted = self.keys, self.deleted
            return StagedTableWriter(
                context, kind, place, key, deleted, commits.lives, commits.commit, sessions.close, unwritable
            )
        return PreparedAppends(context, sessions, kind, place, commits.lives, commits.commit)

    def recover(self, job: JobId, uid: Uid, older_than: Incarnation, named: Collection[TransactionId]) -> None:
        """Fence older attempts off, and roll back their prepared transactions that no epoch names.

        Deletes the tokens that no commit will ask for.
        """
        from snapshot.connectors.sql.postgres_prepared import abort_leftovers
        from snapshot.connectors.sql.postgres_session import connect
        from snapshot.connectors.sql.postgres_target import Tokens

        with connect(self.dsn) as connection:
            if self.exactly_once:
                Tokens(job, uid, older_than, self.table).begin_attempt(connection, named)
            abort_leftovers(connection, job, uid, older_than, named)

    @property
    def _is_staged(self) -> bool:
        return self.mode == "staged" or bool(self.key)

    @property
    def _wanted(self) -> Wanted:
        return Wanted(self.table, self.keys, self.deleted)


class _Commits:
    """Commits of one sink in one partition, in a background thread: of either kind, whatever the program says now."""

    def __init__(self, sink: ToPostgres, context: SinkContext, sessions: Sessions) -> None:
        self._sink = sink
        self._context = context
        self._sessions = sessions
        self.lives = TokenLives(context)

    def commit(self, transaction: TransactionId, payload: CommitPayload) -> CommitAnswer:
        """Commit a prepared transaction, or write staged rows with their token, or find the token."""
        import psycopg

        from snapshot.connectors.sql.postgres_session import passes, words

        found = read_payload(ToPostgres.__name__, self._context, transaction, payload, partial(self._read, transaction))
        if isinstance(found, CommitAnswer):
            return found
        self.lives.asked()
        try:
            with self._sessions.session() as connection:
                return self._commit(connection, payload, found)
        except UNREADABLE as error:
            return unreadable(error)
        except psycopg.Error as error:
            outcome = CommitOutcome.RETRY_LATER if passes(error) else CommitOutcome.FAILED
            return CommitAnswer(outcome, words(error, self._sink.dsn))

    def _read(self, transaction: TransactionId, fields: PayloadFields) -> PreparedCommit | StagedChanges | CommitAnswer:
        from snapshot.connectors.sql.postgres_prepared import PreparedCommit
        from snapshot.connectors.sql.postgres_session import address, may_be_one_place, place_of

        dsn, table = self._sink.dsn, self._sink.table
        ours: dict[str, JsonLike] = {**place_of(dsn), "table": table}
        theirs = fields.place_like(ours)
        if not may_be_one_place(theirs, dsn):
            advice = "if it is the same server, name both in the dsn, as in host=former,present"
            return for_another_place(transaction, place_text(theirs), address(dsn), advice)
        place = fields.own_object(ours, lambda theirs: theirs["table"] == table)
        if "gid" in fields.fields:
            return PreparedCommit.read(transaction, str(place["table"]), fields)
        return StagedChanges.read(transaction, place, fields)

    def _commit(
        self, connection: Connection, payload: CommitPayload, found: PreparedCommit | StagedChanges
    ) -> CommitAnswer:
        from snapshot.connectors.sql.postgres_prepared import commit_prepared
        from snapshot.connectors.sql.postgres_target import StagedCommit, Tokens

        context, dsn = self._context, self._sink.dsn
        tokens = Tokens(context.job, context.uid, context.incarnation, found.table)
        if isinstance(found, StagedChanges):
            rows = found.checked(staged_batches(payload, context.staging))
            answer = commit_by_token(StagedCommit(connection, dsn, tokens, found, rows))
        else:
            answer = commit_prepared(connection, dsn, tokens, found)
        if answer.outcome in _DONE:
            self.lives.committed(found.token)
            self.lives.forgotten(found.settled)
        return answer
