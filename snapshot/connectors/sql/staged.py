"""Rows for a database that wait in the job's tree, and are written in one transaction together with their token.

Invariant: a payload names the database, the table and the token that its rows were written for, and the commit
uses those, even if the program names others by then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from snapshot.connectors.staging.commit_tokens import Token, TokenLives, token_of
from snapshot.connectors.staging.payloads import MADE_BY, NONCE, PLACE, BadPayload, PayloadFields
from snapshot.connectors.staging.staged_rows import StagedRows
from snapshot.epochs.transaction_events import parse_transaction_id
from snapshot.ids import TransactionId
from snapshot.operators.rows import Rows
from snapshot.program.sink import CommitAnswer, Sealed, SinkContext, UnwritableRow
from snapshot.tree.frozen_json import JsonLike
from snapshot.tree.manifest import CommitPayload


@dataclass(frozen=True, slots=True)
class StagedChanges:
    """The content of a payload beside the rows. `place` names the table, and where it is."""

    place: Mapping[str, JsonLike]
    key: tuple[str, ...]
    deleted: str
    token: Token
    settled: tuple[str, ...]
    """Tokens that may be deleted together with this commit."""

    @classmethod
    def read(cls, transaction: TransactionId, place: Mapping[str, JsonLike], fields: PayloadFields) -> StagedChanges:
        """Read what `stored` has written, for a place that was checked."""
        fields.number("rows", 1)
        token = Token(transaction, fields.text("nonce", NONCE))
        return cls(place, fields.texts("key"), fields.text("deleted"), token, settled_in(transaction, fields))

    @property
    def table(self) -> str:
        """Return the name of the table that the rows are for."""
        return str(self.place["table"])

    def stored(self) -> dict[str, JsonLike]:
        """Return what the payload says beside the rows; `read` reads it."""
        key, settled = list(self.key), list(self.settled)
        return {
            PLACE: self.place, "key": key, "deleted": self.deleted, "nonce": self.token.nonce, "settled": settled
        }  # fmt: skip

    def checked(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows; `BadPayload` if they lack a column of the key, or the one that marks deletions."""
        for batch in batches:
            for name in (*self.key, *([self.deleted] if self.deleted else [])):
                if batch.schema.names.count(name) != 1:
                    raise BadPayload(f"the rows have no column {name[:80]!r}")
            if self.deleted and not pa.types.is_boolean(batch.schema.field(self.deleted).type):
                raise BadPayload(f"the column {self.deleted[:80]!r} does not say what is deleted")
            yield batch


def settled_in(transaction: TransactionId, fields: PayloadFields) -> tuple[str, ...]:
    """Read which tokens of the transaction's sink may be deleted."""
    made, settled = parse_transaction_id(transaction), fields.texts("settled")
    for text in settled:
        if not NONCE.fullmatch(token_of(made.job, made.sink, text).nonce):
            raise BadPayload(f"settled has {text[:80]!r}")
    return settled


class StagedTableWriter:
    """A writer that stages the rows of a table.

    `commit` commits them, and `close` is called in the end. `kind` and `place` go into each payload: the kind of the
    sink, and where the table is. `unwritable` returns why a commit of these rows would fail.
    """

    def __init__(
        self,
        context: SinkContext,
        kind: str,
        place: Mapping[str, JsonLike],
        key: Sequence[str],
        deleted: str,
        lives: TokenLives,
        commit: Callable[[TransactionId, CommitPayload], CommitAnswer],
        close: Callable[[], None] = lambda: None,
        unwritable: Callable[[pa.RecordBatch], str] = lambda _: "",
    ) -> None:
        self._uid = context.uid
        self._rows = StagedRows(context.uid, context.staging)
        self._kind, self._place = kind, place
        self._key, self._deleted = tuple(key), deleted
        self._lives = lives
        self._commit = commit
        self._close = close
        self._unwritable = unwritable
        self._token: Token | None = None

    def begin(self, transaction: TransactionId) -> None:
        """Draw a token."""
        self._token = Token.new(transaction)
        self._rows.begin()

    def write(self, rows: Rows) -> None:
        """Keep the rows, or store them; `UnwritableRow` for one without a key, or that the commit would fail with."""
        if fault := self._unwritable(rows.batch):
            raise UnwritableRow(f"sink {self._uid}: {fault}")
        for name in self._key:
            if rows.batch.column(name).null_count:
                raise UnwritableRow(
                    f"sink {self._uid}: a row has no {name!r}, which is of its key; drop null keys before key_by, or, "
                    "where state has one already, by a filter right before the sink"
                )
        self._rows.write(rows)

    def seal(self) -> Sealed:
        """Hand over the rows, with the facts that their committer needs."""
        assert self._token is not None, "a transaction was begun"
        about = StagedChanges(self._place, self._key, self._deleted, self._token, tuple(self._lives.settled))
        return self._rows.seal({MADE_BY: self._kind, **about.stored()})

    def commit(self, transaction: TransactionId, payload: CommitPayload) -> CommitAnswer:
        """Write rows and token, unless the token is there."""
        return self._commit(transaction, payload)

    def close(self) -> None:
        """Forget what is not prepared."""
        self._rows.close()
        self._close()
