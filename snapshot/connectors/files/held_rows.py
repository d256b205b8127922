"""Rows that a sink holds back until there are enough of them: in pieces in the job's tree, which each epoch names.

Invariant: a piece is stored once and never changed. With any number of epochs the pieces stay few, as the last
ones are merged while there are many of a size; a row is written anew once for each eightfold of epochs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from snapshot.connectors.staging.staged_rows import batches_in
from snapshot.program.sink import Staging
from snapshot.tree.frozen_json import JsonLike
from snapshot.tree.manifest import StoredFile

_MERGED: Final = 8
"""Pieces of a size that become one."""


@dataclass(frozen=True, slots=True)
class HeldPiece:
    """Rows of so many transactions. `size` is what they take as Arrow batches in memory."""

    file: StoredFile
    size: int
    transactions: int


def with_rows(
    pieces: Sequence[HeldPiece], rows: Sequence[pa.RecordBatch], size: int, staging: Staging
) -> tuple[HeldPiece, ...]:
    """Store one more transaction's rows, merged with the last pieces if it is time."""
    merged = pieces[len(pieces) - to_merge([piece.transactions for piece in pieces]) :]
    buffer = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="lz4")
    with pa.ipc.new_stream(buffer, rows[0].schema, options=options) as stream:
        stream.write_table(pa.Table.from_batches([*rows_of(merged, staging), *rows]).combine_chunks())
    stored = HeldPiece(
        staging.put(buffer.getvalue()),
        size + sum(piece.size for piece in merged),
        1 + sum(piece.transactions for piece in merged),
    )
    return (*pieces[: len(pieces) - len(merged)], stored)


def to_merge(transactions: Sequence[int]) -> int:
    """Return how many of the last pieces to merge with the next one, which is of one transaction.

    `transactions` counts those of each piece.
    """
    merged, size = 0, 1
    while True:
        last = transactions[max(len(transactions) - merged - _MERGED + 1, 0) : len(transactions) - merged]
        if len(last) < _MERGED - 1 or max(last) > size:
            return merged
        merged, size = merged + len(last), size + sum(last)


def rows_of(pieces: Iterable[HeldPiece], staging: Staging) -> list[pa.RecordBatch]:
    """Read the rows again; raises what the store raises, and `DamagedFile` or `MissingFile`."""
    found: list[pa.RecordBatch] = []
    for piece in pieces:
        found += batches_in(piece.file, staging.get(piece.file))
    return found


def encoded_pieces(pieces: Sequence[HeldPiece]) -> list[JsonLike]:
    """Return what a payload says of the pieces, beside their files."""
    return [[piece.size, piece.transactions] for piece in pieces]


def decoded_pieces(stored: Sequence[JsonLike], files: Sequence[StoredFile]) -> tuple[HeldPiece, ...]:
    """Return the pieces of a payload; `ValueError` for anything else."""
    pieces = []
    for about, file in zip(stored, files, strict=True):
        match about:
            case [int(size), int(transactions)]:
                pieces.append(HeldPiece(file, size, transactions))
            case other:
                raise ValueError(f"{other!r} says nothing of a piece")
    return tuple(pieces)
