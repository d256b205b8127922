"""The rows of a transaction in pieces: those that are full are stored while further rows come, the rest at `prepare`.

Invariant: a piece that was stored keeps its place and is not stored again; memory holds the rows of the others,
so that a piece that could not be stored is tried again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Generic, TypeVar

import pyarrow as pa

from snapshot.operators.rows import Rows
from snapshot.program.sink import SinkError
from statebackend.ids import Uid
from statebackend.thread_pool import Task, ThreadPool

_UNDER_WAY: Final = 2
"""Full pieces that may wait to be stored before `write` waits with them."""

Stored = TypeVar("Stored")
"""The record of a piece that is stored."""
StorePiece = Callable[[int, Sequence[pa.RecordBatch]], Stored]
"""Stores a piece, given its number in the transaction, as a whole; may be called again after it raised."""


@dataclass(slots=True, eq=False)
class _Piece(Generic[Stored]):
    number: int
    batches: list[pa.RecordBatch] = field(default_factory=list)
    size: int = 0
    rows: int = 0
    stored: tuple[Stored] | None = None
    ahead: Task[None] | None = None

    def store(self, store: StorePiece[Stored]) -> None:
        """Store the rows, once."""
        if self.stored is None:
            self.stored = (store(self.number, self.batches),)
            self.batches = []


@dataclass(frozen=True, slots=True, eq=False)
class SealedPieces(Generic[Stored]):
    """All pieces of a transaction that takes no more rows."""

    pieces: Sequence[_Piece[Stored]]
    store: StorePiece[Stored]

    @property
    def rows(self) -> int:
        """Return the number of rows in all pieces."""
        return sum(piece.rows for piece in self.pieces)

    @property
    def has_full(self) -> bool:
        """True if some pieces were full, and so are stored ahead."""
        return any(piece.ahead is not None for piece in self.pieces)

    @property
    def tail(self) -> Sequence[pa.RecordBatch]:
        """Return the rows after the last full piece."""
        return [batch for piece in self.pieces if piece.ahead is None for batch in piece.batches]

    @property
    def tail_size(self) -> int:
        """Return the size in memory of the rows after the last full piece."""
        return sum(piece.size for piece in self.pieces if piece.ahead is None)

    def stored(self) -> Sequence[Stored]:
        """Store the pieces that are not stored yet, and return all in order.

        An error means that some are not stored now.
        """
        return self._stored(self.pieces)

    def full(self) -> Sequence[Stored]:
        """Store the full pieces that are not stored yet, and return all full ones in order.

        An error means that some are not stored now.
        """
        return self._stored([piece for piece in self.pieces if piece.ahead is not None])

    def _stored(self, pieces: Sequence[_Piece[Stored]]) -> Sequence[Stored]:
        found = []
        for piece in pieces:
            if piece.ahead is not None:
                piece.ahead.error()  # if it failed, it is tried again here
            piece.store(self.store)
            assert piece.stored is not None
            found.append(piece.stored[0])
        return found


class Pieces(Generic[Stored]):
    """The rows of a sink in one partition, transaction after transaction. The event loop calls everything here."""

    def __init__(self, uid: Uid, piece_bytes: int) -> None:
        self._uid = uid
        self._piece_bytes = piece_bytes
        self._pieces: list[_Piece[Stored]] = []
        self._store: StorePiece[Stored] | None = None
        self._thread: ThreadPool | None = None

    def begin(self, store: StorePiece[Stored]) -> None:
        """Begin another transaction, whose pieces `store` stores."""
        self._pieces, self._store = [], store

    def write(self, rows: Rows) -> None:
        """Keep the rows; `SinkError` if full pieces cannot be stored.

        Waits if they are stored more slowly than they fill.
        """
        if not len(rows):
            return
        if not self._pieces or self._pieces[-1].size >= self._piece_bytes:
            self._pieces.append(_Piece(len(self._pieces)))
        piece = self._pieces[-1]
        piece.batches.append(rows.batch)
        piece.size += rows.size
        piece.rows += len(rows)
        if piece.size >= self._piece_bytes:
            self._store_ahead(piece)

    def seal(self) -> SealedPieces[Stored]:
        """Hand over the pieces of the current transaction, stored or not."""
        assert self._store is not None, "a transaction was begun"
        pieces, self._pieces = self._pieces, []
        return SealedPieces(tuple(pieces), self._store)

    def close(self) -> None:
        """Forget the pieces that are not stored; one that is being stored is left to itself."""
        self._pieces = []
        if self._thread is not None:
            self._thread.close(drop=True)

    def _store_ahead(self, full: _Piece[Stored]) -> None:
        assert self._store is not None, "a transaction was begun"
        under_way = [piece for piece in self._pieces if piece.ahead is not None and piece.stored is None]
        if len(under_way) >= _UNDER_WAY:
            ahead = under_way[0].ahead
            assert ahead is not None
            if (error := ahead.error()) is not None:
                raise SinkError(f"sink {self._uid}: its rows could not be stored: {error}") from error
        self._thread = self._thread or ThreadPool(1, f"pieces-{self._uid}")
        full.ahead = self._thread.submit(partial(full.store, self._store))
