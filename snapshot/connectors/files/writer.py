"""Files of a sink in one partition: when rows become files, what a transaction's payload says of them, their commit.

Invariant: a row is in one file, and in the payload of each epoch until that file is committed: as a piece that
waits, or in a staged file. Transactions are prepared in their order, as each has what its predecessor held back.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from itertools import count, groupby
from typing import Final, cast

import pyarrow as pa

from snapshot.connectors.files.folder import Folder, StagedFile, open_folder
from snapshot.connectors.files.formats import EXTENSIONS, Unsayable, WrittenFormat, encoded, refuse_unsayable
from snapshot.connectors.files.held_rows import HeldPiece, decoded_pieces, encoded_pieces, rows_of, with_rows
from snapshot.connectors.files.hive_folders import divided, is_folder, too_long
from snapshot.connectors.files.names import LONGEST_NAME, file_name, is_of
from snapshot.connectors.staging.payloads import MADE_BY, PLACE, BadPayload, PayloadFields, read_held, read_payload
from snapshot.connectors.staging.pieces import Pieces, SealedPieces
from snapshot.epochs.transaction_events import CommitOutcome
from snapshot.ids import TransactionId
from snapshot.operators.rows import Rows
from snapshot.program.sink import CommitAnswer, Sealed, SinkContext, SinkError, Staging, UnwritableRow
from snapshot.tree.frozen_json import NULL, Json, JsonLike
from snapshot.tree.manifest import CommitPayload
from statebackend import means

KIND: Final = "ToFiles"
"""As payloads name the sink."""
MOST_FOLDERS: Final = 10_000
"""Folders of one file's rows; more are taken for a mistake."""


@dataclass(frozen=True, slots=True)
class FilePlace:
    """The place of files, and their form."""

    root: str
    listed: bool
    format: WrittenFormat
    folders: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Held:
    """Rows of a schema that wait for their file at a place, the oldest since then."""

    place: FilePlace
    schema: str
    since_ms: int
    pieces: tuple[HeldPiece, ...]

    @property
    def size(self) -> int:
        return sum(piece.size for piece in self.pieces)


class FileWriter:
    """The sink in a partition. Rows wait for their file until the oldest has waited `roll_ms`, or all take
    `roll_bytes`; if `roll_ms` is 0, until their epoch's cut alone.
    """

    def __init__(
        self, place: FilePlace, roll_bytes: int, roll_ms: int, context: SinkContext, now_ms: Callable[[], int]
    ) -> None:
        self._place = place
        self._roll_bytes, self._roll_ms = roll_bytes, roll_ms
        self._context = context
        self._now_ms = now_ms
        self._storing = _Storing(place, _digest(context.schema), open_folder(place.root, place.listed), context.staging)
        self._files: Pieces[Sequence[StagedFile]] = Pieces(context.uid, roll_bytes)
        self._order = _Order()
        self._since: int | None = None
        self._waiting = 0
        self._at_once = False

    def take_over(self, held: Sequence[CommitPayload]) -> None:
        """Take over the rows that wait.

        Those that wait for another place, or have other columns, become files there at once; `UnusableOutput` for
        another place that was not allowed.
        """
        found: list[_Held] = []
        for payload in held:
            found += read_held(KIND, self._context, payload, partial(_held_in, payload, self._place.root))
        self._order.held = _joined(found)
        if not found:
            return
        self._since = min(one.since_ms for one in found)
        self._waiting = sum(one.size for one in found)
        self._at_once = any((one.place, one.schema) != (self._place, self._storing.schema) for one in found)

    def no_more_rows(self) -> None:
        """Stop holding rows back."""
        self._roll_ms = 0

    def begin(self, transaction: TransactionId) -> None:
        """Begin with no file, under a nonce of its own."""
        stage = _Stage(transaction, means.token_hex(8))
        if len(stage.name(10**9, EXTENSIONS[self._place.format])) > LONGEST_NAME:
            raise SinkError(
                f"sink {self._context.uid}: files cannot be named after transaction {transaction}: their names would "
                f"have more than {LONGEST_NAME} characters. Give the job and the sink shorter names"
            )
        self._stage = stage

        storing = self._storing  # not the writer: its thread has to end when nobody has the writer any more

        def store(number: int, batches: Sequence[pa.RecordBatch]) -> Sequence[StagedFile]:
            return stage.rows(storing.folder, storing.place, number, pa.Table.from_batches(batches))

        self._files.begin(store)

    def write(self, rows: Rows) -> None:
        """Keep the rows; begin to write a file if there are enough.

        Waits if files are written more slowly than they fill. `UnwritableRow` for a value that no folder can be named
        after, or that the format has no way to say.
        """
        try:
            refuse_unsayable(self._place.format, rows.batch.drop_columns(list(self._place.folders)))
        except Unsayable as error:
            raise UnwritableRow(f"sink {self._context.uid}: {error}") from None
        for column in self._place.folders:
            if value := too_long(column, rows.batch.column(column)):
                raise UnwritableRow(
                    f"sink {self._context.uid}: no folder can have a name as long as {column}={value[:200]}..."
                )
        if self._roll_ms and self._since is None and len(rows):
            self._since = self._now_ms()
        self._files.write(rows)

    def seal(self) -> Sealed:
        """Hand over the files, written or not, or the rows that wait for theirs."""
        files = self._files.seal()
        self._waiting += files.tail_size
        wait = not self._at_once and not files.has_full and self._waits()
        sealed = _SealedFiles(self._order, self._storing, files, self._stage, (self._since or 0) if wait else None)
        if not wait:
            self._since, self._waiting, self._at_once = None, 0, False
        self._order.waiting.append(sealed)
        return sealed

    def _waits(self) -> bool:
        if not self._roll_ms or self._waiting >= self._roll_bytes:
            return False
        return self._since is None or self._now_ms() - self._since < self._roll_ms

    def commit(self, transaction: TransactionId, payload: CommitPayload) -> CommitAnswer:
        """Publish the files that are not visible yet."""
        found = read_payload(
            KIND, self._context, transaction, payload, partial(_committed_in, transaction, self._place.root)
        )
        if isinstance(found, CommitAnswer):
            return found
        already = True
        for committed in found:
            try:
                published = self._storing.folder_at(committed.root, committed.listed).publish(committed.files)
            except BadPayload as error:
                return CommitAnswer(CommitOutcome.FAILED, f"transaction {transaction}: {error}")
            except Exception as error:  # what storage raises has no common ancestor, and none of it says what happened
                reason = f"the files in {committed.root} could not be made visible now: {error}"
                return CommitAnswer(CommitOutcome.RETRY_LATER, reason)
            if published.missing:
                return CommitAnswer(
                    CommitOutcome.FAILED,
                    f"{', '.join(published.missing)} of transaction {transaction} is neither staged nor visible in "
                    f"{committed.root}; if a reader has taken it away after it appeared, put it back and start again",
                )
            already = already and published.already
        return CommitAnswer(CommitOutcome.ALREADY_COMMITTED if already else CommitOutcome.COMMITTED)

    def close(self) -> None:
        """Start no more files; the one that is being written, and all staged ones, are left to `recover`."""
        self._files.close()


@dataclass(frozen=True, slots=True)
class _Storing:
    """The way in which rows are stored: files of the program's place, files of a former place, or pieces that wait."""

    place: FilePlace
    schema: str
    folder: Folder
    staging: Staging

    def folder_at(self, root: str, listed: bool) -> Folder:
        """Return the program's folder, or the one that it had when the rows were written."""
        return self.folder if (root, listed) == (self.place.root, self.place.listed) else open_folder(root, listed)

    def stored(
        self, files: SealedPieces[Sequence[StagedFile]], stage: _Stage, since_ms: int | None, held: Sequence[_Held]
    ) -> _Outcome:
        """Store the rows: as files, with those that wait, or as one more piece that waits since then."""
        if since_ms is not None:
            if files.tail:
                pieces = held[0].pieces if held else ()
                pieces = with_rows(pieces, files.tail, files.tail_size, self.staging)
                held = (_Held(self.place, self.schema, since_ms, pieces),)
            return _Outcome(_waiting_payload(held) if held else None, tuple(held))
        full = files.full()
        staged = {self.place: [file for files in full for file in files]}
        numbers = count(len(full))
        rows = [(one.place, batch) for one in held for batch in rows_of(one.pieces, self.staging)]
        rows += [(self.place, batch) for batch in files.tail]
        for (place, _), batches in groupby(rows, key=lambda row: (row[0], row[1].schema)):
            table = pa.Table.from_batches([batch for _, batch in batches])
            folder = self.folder_at(place.root, place.listed)
            staged.setdefault(place, []).extend(stage.rows(folder, place, next(numbers), table))
        committed = [_Committed(place.root, place.listed, files) for place, files in staged.items() if files]
        return _Outcome(_payload(committed) if committed else None, ())


@dataclass(frozen=True, slots=True)
class _Outcome:
    """The prepared part of a transaction, and the part that waits after it."""

    payload: CommitPayload | None
    held: tuple[_Held, ...]


@dataclass(slots=True, eq=False)
class _SealedFiles:
    """A sealed transaction; its rows wait since then, or become files."""

    order: _Order
    storing: _Storing
    files: SealedPieces[Sequence[StagedFile]] | None
    stage: _Stage
    since_ms: int | None
    outcome: _Outcome | None = None

    def prepare(self) -> CommitPayload | None:
        """Write what is not written yet."""
        return self.order.prepared(self)

    def store(self, held: Sequence[_Held]) -> tuple[_Held, ...]:
        """Store the rows, with those that wait, and return the rows that wait afterwards."""
        assert self.files is not None
        self.outcome = self.storing.stored(self.files, self.stage, self.since_ms, held)
        self.files = None
        return self.outcome.held


class _Order:
    """Sealed transactions in their order, and what waits after the last one that is prepared. Threads prepare them."""

    def __init__(self) -> None:
        self.held: tuple[_Held, ...] = ()
        self.waiting: deque[_SealedFiles] = deque()
        self._one_at_a_time = means.Lock()

    def prepared(self, sealed: _SealedFiles) -> CommitPayload | None:
        """Prepare a transaction, after those before it; each takes the rows that its predecessor leaves waiting."""
        with self._one_at_a_time:
            while sealed.outcome is None:
                self.held = self.waiting[0].store(self.held)
                self.waiting.popleft()
            return sealed.outcome.payload


@dataclass(frozen=True, slots=True)
class _Stage:
    """A transaction that stages files; `nonce` tells it from one that is made again under its id."""

    transaction: TransactionId
    nonce: str

    def name(self, number: int, extension: str) -> str:
        """Return the name of the file with this number."""
        return file_name(self.transaction, number, extension, self.nonce)

    def rows(self, folder: Folder, place: FilePlace, number: int, rows: pa.Table) -> Sequence[StagedFile]:
        """Stage rows: a file, or one for each folder that they are for."""
        extension = EXTENSIONS[place.format]
        if not place.folders:
            return [folder.stage(self.name(number, extension), encoded(place.format, rows))]
        staged = []
        for index, (values, part) in enumerate(divided(rows, place.folders)):
            if index == MOST_FOLDERS:
                raise SinkError(
                    f"rows of one file are for more than {MOST_FOLDERS:,} folders by {', '.join(place.folders)}; "
                    f"partition by columns with fewer values"
                )
            name = self.name(number * MOST_FOLDERS + index, extension)
            staged.append(folder.stage(f"{values}/{name}", encoded(place.format, part)))
        return staged


@dataclass(frozen=True, slots=True)
class _Committed:
    """The content of a payload: where files are, how readers find them there, and which they are."""

    root: str
    listed: bool
    files: Sequence[StagedFile]

    def stored(self) -> dict[str, JsonLike]:
        """Return what the payload says; a file without a ticket is stored as its name."""
        files: list[JsonLike] = [
            file.name if file.ticket == NULL else {"name": file.name, "ticket": file.ticket.value()}
            for file in self.files
        ]
        return {PLACE: self.root, "listed": self.listed, "files": files}


def _payload(committed: Sequence[_Committed]) -> CommitPayload:
    first, *others = (one.stored() for one in committed)
    more: dict[str, JsonLike] = {"elsewhere": others} if others else {}
    return CommitPayload(Json.of({MADE_BY: KIND, **first, **more}))


def _committed_in(transaction: TransactionId, root: str, fields: PayloadFields) -> list[_Committed]:
    """Read the files that a payload names; each has the name that the sink gives to files of the transaction."""
    found = []
    for one in (fields, *fields.objects("elsewhere")):
        files = [_staged_file(transaction, file) for file in one.items("files")]
        if not files or len({file.name for file in files}) < len(files):
            raise BadPayload("it has no files, or one twice")
        found.append(_Committed(one.own_place(root), one.flag("listed"), files))
    return found


def _staged_file(transaction: TransactionId, stored: JsonLike) -> StagedFile:
    match stored:
        case str(name):
            file = StagedFile(name)
        case {"name": str(name), "ticket": ticket}:
            file = StagedFile(name, Json.of(ticket))
        case other:
            raise BadPayload(f"{str(other)[:80]!r} is no staged file")
    folder, slash, last = file.name.rpartition("/")
    if not is_of(transaction, last, EXTENSIONS.values()) or (slash and not is_folder(folder)):
        raise BadPayload(f"{file.name[:300]!r} is no name of a file of the transaction")
    return file


def _waiting_payload(held: Sequence[_Held]) -> CommitPayload:
    """Return a payload of held rows, which is not committed."""
    stored: list[JsonLike] = [
        {
            PLACE: one.place.root,
            "listed": one.place.listed,
            "format": one.place.format,
            "folders": list(one.place.folders),
            "schema": one.schema,
            "since": one.since_ms,
            "pieces": encoded_pieces(one.pieces),
        }
        for one in held
    ]
    files = tuple(piece.file for one in held for piece in one.pieces)
    return CommitPayload(Json.of({MADE_BY: KIND, "held": stored}), files, held=True)


def _held_in(payload: CommitPayload, root: str, fields: PayloadFields) -> list[_Held]:
    files, found = list(payload.staged), []
    for one in fields.objects("held"):
        listed, format, pieces = one.flag("listed"), one.text("format"), one.items("pieces")
        if format not in EXTENSIONS:
            raise BadPayload(f"format is {format[:80]!r}")
        place = FilePlace(one.own_place(root), listed, cast("WrittenFormat", format), one.texts("folders"))
        here, files = files[: len(pieces)], files[len(pieces) :]
        found.append(_Held(place, one.text("schema"), one.number("since"), decoded_pieces(pieces, here)))
    return found


def _joined(held: Sequence[_Held]) -> tuple[_Held, ...]:
    """Merge rows that wait for the same place, as those of partitions that have become one."""
    found: dict[tuple[FilePlace, str], _Held] = {}
    for one in held:
        kind = (one.place, one.schema)
        if (before := found.get(kind)) is not None:
            one = _Held(*kind, min(before.since_ms, one.since_ms), (*before.pieces, *one.pieces))
        found[kind] = one
    return tuple(found.values())


def _digest(schema: pa.Schema) -> str:
    return sha256(str(schema.remove_metadata()).encode()).hexdigest()[:16]
