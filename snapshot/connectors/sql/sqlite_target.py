"""One SQLite file as a target: opened, asked what it has, and written to in one transaction with a token.

Invariant: a transaction holds the file's only write lock from before the token is looked for until rows and
token are committed, so that of two committers one waits and then finds the token. An error of the file is an answer. A
column is only written with what it gives back unchanged.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from snapshot.connectors.sql.staged import StagedChanges
from snapshot.connectors.staging.commit_tokens import TargetError, overtaken, to_forget, token_of
from snapshot.connectors.staging.sql_statements import TableStatements, TokenStatements, column, quoted
from snapshot.connectors.staging.staged_rows import in_chunks, last_of_each, parted
from snapshot.connectors.staging.table_fit import FoundTable, TableColumn
from snapshot.epochs.token_commit import TargetAnswer
from snapshot.ids import JobId, TransactionId
from snapshot.program.sink import SinkError
from statebackend.ids import Incarnation, Uid

_PARTS: Final = (("INT", "INTEGER"), ("CHAR", "TEXT"), ("CLOB", "TEXT"), ("TEXT", "TEXT"), ("BLOB", "BLOB"))
_REALS: Final = ("REAL", "FLOA", "DOUB")


def affinity(declared: str) -> str:
    """Return the affinity that SQLite derives from a declared type."""
    name = declared.upper()
    for part, kind in _PARTS:
        if part in name:
            return kind
    if any(part in name for part in _REALS):
        return "REAL"
    return "NUMERIC" if name else "BLOB"


def affinities(type: pa.DataType) -> tuple[str, ...]:
    """Return the column affinities that keep values of a type, the best first; none if SQLite cannot hold them."""
    if pa.types.is_dictionary(type):
        type = type.value_type
    if pa.types.is_uint64(type):
        return ()
    if pa.types.is_boolean(type) or pa.types.is_integer(type):
        return ("INTEGER", "NUMERIC", "BLOB")
    if pa.types.is_floating(type):
        return ("REAL", "NUMERIC", "BLOB")
    if pa.types.is_string(type) or pa.types.is_large_string(type) or pa.types.is_decimal(type):
        return ("TEXT", "BLOB")
    if pa.types.is_timestamp(type) or pa.types.is_date(type) or pa.types.is_time(type):
        return ("TEXT", "NUMERIC", "BLOB")
    if pa.types.is_binary(type) or pa.types.is_large_binary(type) or pa.types.is_fixed_size_binary(type):
        return ("BLOB",)
    return ()


def takes(type: pa.DataType, declared: str) -> bool:
    """True if a column declared like this returns values of the type unchanged."""
    return affinity(declared) in affinities(type)


def values_of(rows: pa.Table) -> Iterator[tuple[object, ...]]:
    """Return the rows' values as SQLite takes them; those that it has no type for as text, times in ISO 8601."""
    return zip(*(_values(column) for column in rows.columns), strict=True)


def _values(column: pa.ChunkedArray) -> list[object]:
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if pa.types.is_temporal(column.type) or pa.types.is_decimal(column.type):
        column = column.cast(pa.string())
    values: list[object] = column.to_pylist()
    return values


def found_table(connection: sqlite3.Connection, table: str) -> FoundTable:
    """Return the table as SQLite describes it; without columns if there is none."""
    described = connection.execute(f"PRAGMA table_xinfo({quoted(table)})").fetchall()
    key = [str(row[1]) for row in described if row[5]]
    unique = {frozenset(key)} if key else set()
    for _, index, is_unique, _, partial in connection.execute(f"PRAGMA index_list({quoted(table)})").fetchall():
        if is_unique and not partial:
            names = [row[2] for row in connection.execute(f"PRAGMA index_info({column(index)})")]
            unique.add(frozenset(map(str, names)))
    columns = tuple(_described(*row[1:7], only=len(key) == 1) for row in described)
    return FoundTable(columns, frozenset(unique))


def _described(
    name: str, declared: str, not_null: int, default: str | None, place: int, hidden: int, *, only: bool
) -> TableColumn:
    """Return a column of the table; `only` is true if the key has a single column.

    If that is an integer, SQLite numbers the rows with it.
    """
    numbers = only and place > 0 and declared.upper() == "INTEGER"
    return TableColumn(name, declared, not (not_null or numbers), numbers or default is not None, hidden == 0)


PATIENCE: Final = 5.0
"""Seconds to wait for another writer's lock."""
UNSAFE: Final = ("off", "memory")
"""Journals that do not outlive a crash, so that half a transaction may be left."""

_PASSING: Final = {
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_NOMEM,
    sqlite3.SQLITE_INTERRUPT,
    sqlite3.SQLITE_PROTOCOL,
}


@contextmanager
def opened(path: str, journal: str, make: bool = False) -> Iterator[sqlite3.Connection]:
    """Open the file without a transaction, and close it after the block.

    A file that is in WAL mode stays so.
    """
    uri = f"{Path(path).as_uri()}?mode={'rwc' if make else 'rw'}"
    connection = sqlite3.connect(uri, uri=True, timeout=PATIENCE, isolation_level=None, check_same_thread=False)
    try:
        if journal_of(connection) != "wal":
            connection.execute(f"PRAGMA journal_mode = {journal}").fetchall()
        connection.execute("PRAGMA synchronous = EXTRA")
        yield connection
    finally:
        connection.close()


def journal_of(connection: sqlite3.Connection) -> str:
    """Return the connection's journal mode."""
    return str(connection.execute("PRAGMA journal_mode").fetchone()[0])


def target_error(path: str, error: sqlite3.Error) -> TargetError:
    """Turn an error into an answer: unknown if it may pass by itself or when there is room, else refused for good."""
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
    answer = TargetAnswer.UNKNOWN if code in _PASSING else TargetAnswer.REFUSED
    return TargetError(answer, f"{path}: {error}")


@dataclass(frozen=True, slots=True)
class Who:
    """On whose behalf something is committed."""

    job: JobId
    uid: Uid
    incarnation: Incarnation


class SqliteCommit:
    """One committable at its file."""

    def __init__(
        self, connection: sqlite3.Connection, path: str, who: Who, staged: StagedChanges, rows: Iterator[pa.RecordBatch]
    ) -> None:
        self._connection = connection
        self._path = path
        self._who = who
        self._staged = staged
        self._rows = rows
        self._tokens = TokenStatements(staged.table, "?")

    def fence(self) -> None:
        """Raise the fence to this attempt, so that no older one writes anything from now on."""
        with self._transaction():
            self._execute(self._tokens.raise_fence, *self._by)

    def has_token(self) -> bool:
        """True if the committable's token is in the file."""
        token = (self._who.job, self._who.uid, self._staged.token.text)
        with self._errors():
            return self._connection.execute(self._tokens.find, token).fetchone() is not None

    def write(self) -> None:
        """Write rows and token, and delete the tokens that no commit will ask for again."""
        with self._transaction():
            fence = self._connection.execute(self._tokens.fence, (self._who.job, self._who.uid)).fetchone()
            reason = overtaken(fence, self._who.incarnation, self._who.job, self._who.uid, self._tokens.table)
            if reason is not None:
                raise TargetError(TargetAnswer.FENCED, reason)
            made_by = self._staged.token.made_by
            token = (self._who.job, self._who.uid, self._staged.token.text, made_by.generation, made_by.attempt)
            if self._connection.execute(self._tokens.add, token).rowcount == 0:
                raise TargetError(TargetAnswer.UNKNOWN, "another committer was faster")
            for chunk in in_chunks(self._rows):
                put(self._connection, self._staged.table, chunk, self._staged.key, self._staged.deleted)
            for text in self._staged.settled:
                self._execute(self._tokens.forget, self._who.job, self._who.uid, text)

    @property
    def _by(self) -> tuple[str, str, int, int]:
        made_by = self._who.incarnation
        return self._who.job, self._who.uid, made_by.generation, made_by.attempt

    def _execute(self, statement: str, *values: object) -> None:
        self._connection.execute(statement, values)

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with self._errors(), transaction(self._connection):
            yield

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise target_error(self._path, error) from error


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Hold the file's write lock; commit in the end, or roll back."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def put(connection: sqlite3.Connection, table: str, rows: pa.Table, key: Sequence[str], deleted: str) -> None:
    """Put rows, or changes by key, into a table, within the current transaction or at once.

    Rows and deletions are written in their order, as keys that differ here may be equal to the table.
    """
    kept, gone = parted(last_of_each(rows, key) if key else rows, deleted)
    statements = TableStatements(table, tuple(kept.column_names), tuple(key))
    if not pc.any(gone).as_py():
        connection.executemany(statements.put_one("?"), values_of(kept))
        return
    changes = zip(gone.to_pylist(), values_of(kept), values_of(kept.select(list(key))), strict=True)
    for is_gone, some in groupby(changes, key=itemgetter(0)):
        if is_gone:
            connection.executemany(statements.delete_one("?"), (names for _, _, names in some))
        else:
            connection.executemany(statements.put_one("?"), (values for _, values, _ in some))


def begin_attempt(connection: sqlite3.Connection, table: str, who: Who, named: Collection[TransactionId]) -> None:
    """Fence older attempts off, and delete the tokens that no commit will ask for again.

    Raises `SinkError` if this attempt is fenced itself.
    """
    statements, sink, ours = TokenStatements(table, "?"), (who.job, who.uid), who.incarnation
    with transaction(connection):
        connection.execute(statements.raise_fence, (*sink, ours.generation, ours.attempt))
        reason = overtaken(connection.execute(statements.fence, sink).fetchone(), ours, *sink, statements.table)
        if reason is not None:
            raise SinkError(reason)
        tokens = [token_of(*sink, str(row[0])) for row in connection.execute(statements.every, sink)]
        for token in to_forget(tokens, ours, named):
            connection.execute(statements.forget, (*sink, token.text))
