"""Rows for a database that wait in the job's tree, and are written in one transaction together with their token.

What always holds: the rows of a transaction go to the table that they were meant for when they were written, under a
token that was drawn then, whatever the program says by the time they are committed. In which database that is stands in
the payload, too; its sink reads it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from snapshot.frozen_json import JsonLike
from snapshot.ids import TransactionId
from snapshot.manifest import CommitPayload
from snapshot.program.rows import Rows
from snapshot.program.sink import CommitAnswer, Sealed, SinkContext, SinkError
from snapshot.sinks.commit_tokens import Token, TokenLives
from snapshot.sinks.staged_rows import StagedRows


@dataclass(frozen=True, slots=True)
class StagedChanges:
    """What a payload says beside the rows."""

    table: str
    key: tuple[str, ...]
    deleted: str
    token: Token
    settled: tuple[str, ...]
    """Tokens that may be deleted together with this commit."""

    @classmethod
    def of(cls, transaction: TransactionId, payload: CommitPayload) -> StagedChanges:
        """Read what `stored` has written."""
        stored = payload.value.value()
        assert isinstance(stored, dict)
        key, settled = stored["key"], stored["settled"]
        assert isinstance(key, Sequence)
        assert isinstance(settled, Sequence)
        token = Token(transaction, str(stored["nonce"]))
        names = tuple(map(str, key)), tuple(map(str, settled))
        return cls(str(stored["table"]), names[0], str(stored["deleted"]), token, names[1])

    def stored(self) -> dict[str, JsonLike]:
        """What a payload says."""
        key, settled = list(self.key), list(self.settled)
        return {
            "table": self.table, "key": key, "deleted": self.deleted, "nonce": self.token.nonce, "settled": settled
        }  # fmt: skip


class StagedSql:
    """A writer that stages rows; `commit` is what commits them, and `close` is called in the end. `origin` goes into
    each payload: which sink makes it, and where the table is.
    """

    def __init__(
        self,
        context: SinkContext,
        origin: Mapping[str, JsonLike],
        table: str,
        key: Sequence[str],
        deleted: str,
        lives: TokenLives,
        commit: Callable[[TransactionId, CommitPayload], CommitAnswer],
        close: Callable[[], None] = lambda: None,
    ) -> None:
        self._uid = context.uid
        self._rows = StagedRows(context.uid, context.staging)
        self._origin = origin
        self._table, self._key, self._deleted = table, tuple(key), deleted
        self._lives = lives
        self._commit = commit
        self._close = close
        self._token: Token | None = None

    def begin(self, transaction: TransactionId) -> None:
        """Draw a token."""
        self._token = Token.new(transaction)
        self._rows.begin()

    def write(self, rows: Rows) -> None:
        """Keep the rows, or store them; `SinkError` if one has no key, which the table would refuse at the commit."""
        for name in self._key:
            if rows.batch.column(name).null_count:
                raise SinkError(f"sink {self._uid}: a row has no {name!r}, which is of its key; drop such rows before")
        self._rows.write(rows)

    def seal(self) -> Sealed:
        """Hand over the rows, with what their committer has to know."""
        assert self._token is not None, "a transaction was begun"
        about = StagedChanges(self._table, self._key, self._deleted, self._token, tuple(self._lives.settled))
        return self._rows.seal({**self._origin, **about.stored()})

    def commit(self, transaction: TransactionId, payload: CommitPayload) -> CommitAnswer:
        """Write rows and token, unless the token is there."""
        return self._commit(transaction, payload)

    def close(self) -> None:
        """Forget what is not prepared."""
        self._rows.close()
        self._close()
