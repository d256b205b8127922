"""Rows and tokens in tables of a PostgreSQL database: written together in one transaction, which is committed once.

Invariant: each commit of a committable inserts its token first; a second one waits there until the first is committed
or gone, and then finds the token. While a commit is under way it shares a lock on the row that says which attempt is
the newest, and that row only rises: from when a later attempt has raised it, none that is older can commit anything,
though its token has been deleted since. So the fence is that row, and no lock outlives its transaction.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import numpy as np
import psycopg
import pyarrow as pa
import pyarrow.compute as pc

from snapshot.connectors.sql.postgres_columns import copy_rows
from snapshot.connectors.sql.postgres_session import Connection, execute, target_error
from snapshot.connectors.sql.staged import StagedChanges
from snapshot.connectors.staging.commit_tokens import TargetError, Token, overtaken, to_forget, token_of
from snapshot.connectors.staging.sql_statements import TableStatements, TokenStatements, column, listed, quoted
from snapshot.connectors.staging.staged_rows import in_chunks, last_of_each, parted
from snapshot.epochs.token_commit import TargetAnswer
from snapshot.ids import JobId, TransactionId
from snapshot.program.sink import SinkError
from statebackend.ids import Incarnation, Uid

_CHANGED: Final = "epochcut_changed"
_DELETED: Final = "epochcut_deleted"
_GONE: Final = "epochcut_gone"
_PLACE: Final = "epochcut_place"


@contextmanager
def transaction(connection: Connection) -> Iterator[None]:
    """Run the block in a transaction: commit it in the end, or roll back."""
    execute(connection, "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE")
    try:
        yield
    except psycopg.Error:
        raise  # the connection is given up, and with it the transaction
    except BaseException:
        execute(connection, "ROLLBACK")
        raise
    execute(connection, "COMMIT")


def put(connection: Connection, table: str, rows: pa.Table, key: Sequence[str], deleted: str) -> None:
    """Put rows, or changes by key, into a table, within the current transaction."""
    if not key:
        copy_rows(connection, quoted(table), rows)
        return
    kept, gone = parted(last_of_each(rows, key), deleted)
    placed = kept.append_column(_PLACE, pa.array(np.arange(len(kept))))
    _copy(connection, table, _CHANGED, placed.filter(pc.invert(gone)))
    _copy(connection, table, _DELETED, placed.filter(gone).select([*key, _PLACE]))
    # The columns of the table may find more keys equal than Arrow does: of these, too, the last counts.
    keys, columns = listed(key), tuple(kept.column_names)
    put_or_gone = " UNION ALL ".join(
        f"SELECT {keys}, {_PLACE}, {is_gone} AS {_GONE} FROM {name}"
        for name, is_gone in ((_CHANGED, "false"), (_DELETED, "true"))
    )
    last = f"SELECT DISTINCT ON ({keys}) * FROM ({put_or_gone}) AS changes ORDER BY {keys}, {_PLACE} DESC"
    of_last = f"{_PLACE} IN (SELECT {_PLACE} FROM ({last}) AS last WHERE NOT {_GONE})"
    values = f"SELECT {listed(columns)} FROM {_CHANGED} WHERE {of_last}"
    execute(connection, TableStatements(table, columns, tuple(key)).put(values))
    if pc.any(gone).as_py():
        same = " AND ".join(f"target.{column(name)} = last.{column(name)}" for name in key)
        delete = f"DELETE FROM {quoted(table)} AS target USING ({last}) AS last"
        execute(connection, f"{delete} WHERE last.{_GONE} AND {same}")
    execute(connection, f"DROP TABLE {_CHANGED}, {_DELETED}")


def _copy(connection: Connection, table: str, name: str, placed: pa.Table) -> None:
    """Copy rows with their places to a table of this transaction's own, with the columns' types of another."""
    columns = listed([one for one in placed.column_names if one != _PLACE])
    made = f"SELECT {columns}, 0::bigint AS {_PLACE} FROM {quoted(table)} LIMIT 0"
    execute(connection, f"CREATE TEMP TABLE {name} ON COMMIT DROP AS {made}")
    if len(placed):
        copy_rows(connection, name, placed)


@dataclass(frozen=True, slots=True)
class Tokens:
    """The tokens of a sink, as one of its attempts sees them, in the table beside another one."""

    job: JobId
    uid: Uid
    ours: Incarnation
    beside: str

    @property
    def statements(self) -> TokenStatements:
        """Return the statements on the table of tokens."""
        return TokenStatements(self.beside, "%s")

    def raise_fence(self, connection: Connection) -> None:
        """Stop older attempts from committing; waits for commits that are under way."""
        fence = self._fence(connection, "")
        if fence is None or fence < (self.ours.generation, self.ours.attempt):
            statement = self.statements.raise_fence
            execute(connection, statement, self.job, self.uid, self.ours.generation, self.ours.attempt)

    def overtaken(self, connection: Connection, hold: bool = False) -> str | None:
        """Return why this attempt is over; None if it is not.

        With `hold`, it cannot become so before the end of the transaction.
        """
        fence = self._fence(connection, " FOR SHARE" if hold else "")
        return overtaken(fence, self.ours, self.job, self.uid, self.statements.table)

    def add(self, connection: Connection, token: Token) -> bool:
        """Insert a token; False if it is there.

        Waits for another committer that is about to insert the same.
        """
        made_by = token.made_by
        values = (self.job, self.uid, token.text, made_by.generation, made_by.attempt)
        return execute(connection, self.statements.add, *values).rowcount == 1

    def has(self, connection: Connection, token: Token) -> bool:
        """True if the token is committed."""
        return execute(connection, self.statements.find, self.job, self.uid, token.text).fetchone() is not None

    def forget(self, connection: Connection, texts: Collection[str]) -> None:
        """Delete tokens."""
        for text in texts:
            execute(connection, self.statements.forget, self.job, self.uid, text)

    def begin_attempt(self, connection: Connection, named: Collection[TransactionId]) -> None:
        """Fence older attempts off, and delete the tokens that no commit will ask for.

        Raises `SinkError` if this attempt is fenced itself.
        """
        self.raise_fence(connection)
        if (reason := self.overtaken(connection)) is not None:
            raise SinkError(reason)
        rows = execute(connection, self.statements.every, self.job, self.uid).fetchall()
        tokens = [token_of(self.job, self.uid, str(text)) for [text] in rows]
        self.forget(connection, [token.text for token in to_forget(tokens, self.ours, named)])

    def _fence(self, connection: Connection, how: str) -> tuple[int, int] | None:
        row = execute(connection, self.statements.fence + how, self.job, self.uid).fetchone()
        return None if row is None else (int(row[0]), int(row[1]))


class StagedCommit:
    """One committable whose rows are staged, at its database."""

    def __init__(
        self, connection: Connection, dsn: str, tokens: Tokens, staged: StagedChanges, rows: Iterator[pa.RecordBatch]
    ) -> None:
        self._connection = connection
        self._dsn = dsn
        self._tokens = tokens
        self._staged = staged
        self._rows = rows

    def fence(self) -> None:
        """Raise the fence to this attempt, so that no older one commits anything from now on."""
        with self._errors():
            self._tokens.raise_fence(self._connection)

    def has_token(self) -> bool:
        """True if the committable's token is committed."""
        with self._errors():
            return self._tokens.has(self._connection, self._staged.token)

    def write(self) -> None:
        """Write token and rows, and delete the tokens that no commit will ask for again."""
        with self._errors(), transaction(self._connection):
            if (reason := self._tokens.overtaken(self._connection, hold=True)) is not None:
                raise TargetError(TargetAnswer.FENCED, reason)
            if not self._tokens.add(self._connection, self._staged.token):
                raise TargetError(TargetAnswer.UNKNOWN, "another committer was faster")
            for chunk in in_chunks(self._rows):
                put(self._connection, self._staged.table, chunk, self._staged.key, self._staged.deleted)
            self._tokens.forget(self._connection, self._staged.settled)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except psycopg.Error as error:
            self._connection.close()
            raise target_error(error, self._dsn) from error
