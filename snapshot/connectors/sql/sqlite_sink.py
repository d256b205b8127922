"""Rows for a table of an SQLite file: staged until their epoch is complete, then written in one transaction.

Invariant: rows and the token of their transaction are committed together, under the file's only write lock.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import pyarrow as pa

from snapshot.connectors.sql.sqlite_target import (
    UNSAFE,
    SqliteCommit,
    Who,
    affinities,
    begin_attempt,
    found_table,
    journal_of,
    opened,
    put,
    takes,
    target_error,
    transaction,
)
from snapshot.connectors.sql.staged import StagedChanges, StagedTableWriter
from snapshot.connectors.staging.commit_tokens import TokenLives, commit_by_token
from snapshot.connectors.staging.direct_rows import DirectRows
from snapshot.connectors.staging.payloads import PayloadFields, read_payload
from snapshot.connectors.staging.sql_statements import TokenStatements
from snapshot.connectors.staging.staged_rows import UNREADABLE, staged_batches, unreadable
from snapshot.connectors.staging.table_fit import Wanted, columns_of, create_table, key_faults, misfits
from snapshot.epochs.token_commit import TargetAnswer
from snapshot.epochs.transaction_events import CommitOutcome
from snapshot.ids import JobId, TransactionId
from snapshot.program.sink import Abilities, CommitAnswer, SinkContext, SinkWriter
from snapshot.tree.frozen_json import JsonLike
from snapshot.tree.manifest import CommitPayload
from statebackend.ids import Incarnation, Uid

Journal = Literal["delete", "truncate", "persist", "wal", "off"]
_JOURNALS: Final = ("delete", "truncate", "persist", "wal", "off")


@dataclass(frozen=True, slots=True)
class ToSQLite:
    """A sink that writes a table of the SQLite file at `path`, which all partitions and the driver see on a disk of
    this machine: file locks of network file systems are not to be relied on.

    Rows go to columns of the same names. With `key`, one column or several, for which the table has a primary key or a
    unique index, a row replaces the one with its key, as the table compares keys, and the last one of a transaction
    counts; rows whose column `deleted` is true delete instead. `create` makes the file and the table if they are
    missing. Beside it is a table `epochcut_commits`, a row for each transaction that may be asked for again; who
    deletes rows there may get output twice. What was prepared for another file or table, as the program's has changed
    since, is committed there if that is allowed by name (`accept_places`), and else refused.

    One partition commits at a time; others, and strangers who write, are waited for. While the file cannot be written
    for lack of room or because of others, commits are tried again; what SQLite refuses for good stops the job, with the
    rows kept in the job's tree. Values that SQLite has no type for, such as times and decimals, are text; a float that
    is no number is null.

    `journal` is how SQLite keeps what it needs to roll back; a file in WAL mode stays so. With "off" there are no
    transactions, so that output cannot be exactly-once. With `exactly_once=False`, rows are written as they come, and
    again after a rollback.
    """

    path: str
    table: str
    key: str | tuple[str, ...] = ()
    deleted: str = ""
    create: bool = False
    exactly_once: bool = True
    journal: Journal = "delete"

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", self.path if _nowhere(self.path) else str(Path(self.path).absolute()))
        object.__setattr__(self, "key", columns_of("key", self.key))

    @property
    def keys(self) -> tuple[str, ...]:
        """Return the columns that make up the key; none if rows are appended."""
        return columns_of("key", self.key)

    @property
    def abilities(self) -> Abilities:
        """Declare that tokens can be read, if the journal lets SQLite roll back what was half written."""
        return Abilities(reads_tokens=self.journal not in UNSAFE)

    def check(self, schema: pa.Schema) -> Sequence[str]:
        """Report paths that are no file, unknown journals, keys that the rows lack, and types without a column."""
        problems = key_faults(schema, self._wanted)
        if _nowhere(self.path):
            problems.append(f"{self.path!r} is no file that other processes see")
        if self.journal not in _JOURNALS:
            problems.append(f"the journal is {self.journal!r}; known are {', '.join(_JOURNALS)}")
        for field in self._wanted.written(schema):
            if not affinities(field.type):
                problems.append(f"SQLite has no column for {field.name!r} of {field.type}; cast it in the stream")
        return problems

    def examine(self, job: JobId, uid: Uid, schema: pa.Schema) -> Sequence[str]:  # noqa: ARG002
        """Report a file that cannot be opened, written or rolled back, a missing table, and columns that do not fit.

        Makes the table of tokens, and what `create` asks for.
        """
        if not self.create and not Path(self.path).exists():
            return [f"there is no file {self.path}; make it, or use create=True"]
        try:
            with opened(self.path, self.journal, self.create) as connection:
                mode = journal_of(connection)
                if self.exactly_once and mode in UNSAFE:
                    return [
                        f"{self.path} is written with journal_mode={mode}: SQLite could not roll back what a crash "
                        f"left half written; use journal='delete' or 'wal'"
                    ]
                with transaction(connection):
                    return self._examine_table(connection, schema)
        except sqlite3.Error as error:
            return [f"{target_error(self.path, error)}"]

    def open(self, context: SinkContext) -> SinkWriter:
        """Open the sink in a partition."""
        commits = _Commits(self, context)
        if self.exactly_once:
            kind, keys = ToSQLite.__name__, self.keys
            return StagedTableWriter(context, kind, self.place, keys, self.deleted, commits.lives, commits.commit)

        def write(rows: pa.Table) -> None:
            with opened(self.path, self.journal) as connection, transaction(connection):
                put(connection, self.table, rows, self.keys, self.deleted)

        return DirectRows(context.uid, write, commits.commit, lambda: None)

    def recover(self, job: JobId, uid: Uid, older_than: Incarnation, named: Collection[TransactionId]) -> None:
        """Fence older attempts off, and delete tokens that no commit will ask for; rows are not in the file yet."""
        if self.exactly_once:
            with opened(self.path, self.journal) as connection:
                begin_attempt(connection, self.table, Who(job, uid, older_than), named)

    @property
    def place(self) -> dict[str, JsonLike]:
        """Return the path of the file and the name of the table, as payloads store them."""
        return {"path": self.path, "table": self.table}

    @property
    def _wanted(self) -> Wanted:
        return Wanted(self.table, self.keys, self.deleted)

    def _examine_table(self, connection: sqlite3.Connection, schema: pa.Schema) -> Sequence[str]:
        if self.create:
            connection.execute(create_table(self._wanted, schema, lambda type: affinities(type)[0]))
        found = found_table(connection, self.table)
        if not found.columns:
            return [f"{self.path} has no table {self.table}; make it, or use create=True"]
        if self.exactly_once:
            connection.execute(TokenStatements(self.table, "?").create)
        return misfits(schema, self._wanted, found, takes)


class _Commits:
    """Commits of one sink in one partition, in a background thread."""

    def __init__(self, sink: ToSQLite, context: SinkContext) -> None:
        self._sink = sink
        self._context = context
        self.lives = TokenLives(context)

    def commit(self, transaction: TransactionId, payload: CommitPayload) -> CommitAnswer:
        """Write rows and token, or find the token, in the file that the rows are for."""
        context = self._context

        def read(fields: PayloadFields) -> StagedChanges:
            return StagedChanges.read(transaction, fields.own_object(self._sink.place), fields)

        staged = read_payload(ToSQLite.__name__, context, transaction, payload, read)
        if isinstance(staged, CommitAnswer):
            return staged
        path = str(staged.place["path"])
        self.lives.asked()
        who = Who(context.job, context.uid, context.incarnation)
        rows = staged.checked(staged_batches(payload, context.staging))
        try:
            with opened(path, self._sink.journal) as connection:
                answer = commit_by_token(SqliteCommit(connection, path, who, staged, rows))
        except UNREADABLE as error:
            return unreadable(error)
        except sqlite3.Error as error:
            refused = target_error(path, error)
            outcome = CommitOutcome.FAILED if refused.answer is TargetAnswer.REFUSED else CommitOutcome.RETRY_LATER
            return CommitAnswer(outcome, str(refused))
        if answer.outcome in (CommitOutcome.COMMITTED, CommitOutcome.ALREADY_COMMITTED):
            self.lives.committed(staged.token)
            self.lives.forgotten(staged.settled)
        return answer


def _nowhere(path: str) -> bool:
    return path in ("", ":memory:")
