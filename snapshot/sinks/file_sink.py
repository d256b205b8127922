"""Files that appear when their epoch is complete: staged where nobody reads, made visible in one step at commit.

What always holds: the names of a transaction's files follow from its id and from a nonce that is drawn when it is
begun, and stand in its payload: whoever commits it, however often and after whichever crash, gives the same files the
same names, and a transaction that is made again under the same id has others. Readers see whole files only.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from secrets import token_hex

import pyarrow as pa

from snapshot.frozen_json import NULL, Json, JsonLike
from snapshot.ids import JobId, TransactionId
from snapshot.manifest import CommitPayload
from snapshot.program.rows import Rows
from snapshot.program.sink import Abilities, CommitAnswer, Sealed, SinkContext, SinkError, SinkWriter
from snapshot.sinks.file_formats import EXTENSIONS, WrittenFormat, encoded, unsuitable
from snapshot.sinks.folder import StagedFile, open_folder, unwritable
from snapshot.sinks.origins import MADE_BY, of_another_kind
from snapshot.sinks.pieces import Pieces, SealedPieces
from snapshot.sources.location import everywhere
from snapshot.transaction_events import CommitOutcome, may_be_aborted, parse_transaction_id
from statebackend.ids import Incarnation, Uid

_LONGEST_NAME = 255
"""Bytes that a file's name may have on the usual file systems."""
_NAME = re.compile(
    r"part-(?P<transaction>(?:[A-Za-z0-9_~-]|\.[0-9a-f]{2})+?)(?:-(?P<nonce>[0-9a-f]{16}))?"
    r"-(?P<number>0|[1-9][0-9]*)\.[a-z]+"
)
_UNSAFE = re.compile(r"[^A-Za-z0-9_/-]")


def file_name(transaction: TransactionId, number: int, extension: str, nonce: str = "") -> str:
    """The name of the n-th file of the transaction that was begun with this nonce; no two have the same. Without one
    are files that have a nonce elsewhere in their name, and those in payloads that know none.
    """
    escaped = _UNSAFE.sub(lambda match: "".join(f".{byte:02x}" for byte in match[0].encode()), transaction)
    return f"part-{escaped.replace('/', '~')}{f'-{nonce}' if nonce else ''}-{number}.{extension}"


def transaction_of(name: str) -> TransactionId | None:
    """Whose file has this name; None if `file_name` did not make it, so that it is not ours to touch."""
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    parts = re.split(r"\.([0-9a-f]{2})", match["transaction"].replace("~", "/"))
    try:
        text = b"".join(
            bytes.fromhex(part) if place % 2 else part.encode() for place, part in enumerate(parts)
        ).decode()
        parse_transaction_id(text)
    except ValueError:
        return None
    transaction = TransactionId(text)
    extension = name.rpartition(".")[2]
    made = file_name(transaction, int(match["number"]), extension, match["nonce"] or "")
    return transaction if made == name else None


@dataclass(frozen=True, slots=True)
class ToFiles:
    """A sink that writes a folder of files, one per epoch and partition with rows:
    `part-<transaction>-<nonce>-<n>.<format>`.

    A file appears when its epoch is complete, as a whole, and is never changed. Readers ignore names that begin with a
    dot, as most do. Rows wait in memory until their epoch's cut, or until they take `roll_bytes` there: then they
    become a file of their own while further rows come. Two such files of a partition may be under way at a time.

    `uri` is a folder of a local (or mounted) file system that all partitions and the driver see, where a file is
    staged in `.staged` and renamed at commit; `s3://<bucket>/<prefix>`, where it is an upload in parts that is
    completed at commit, so that the key and its secret are to be given as `storage_options`, and a rule of the bucket
    that aborts uploads has to leave them for longer than the job may be down;
    `webhdfs://<user>@<name node>:<port>/<path>`, where it is renamed; or `memory://` within one process. A commit finds
    its files at the uri that they were written to, even if the program's has changed since. What came to nothing there
    stays until `recovery sinks abort` is run with the former program.
    Files of the newest epoch must not be moved away before the next epoch is complete: a driver that starts in
    between could not tell whether they were committed, and stops.

    With `listed`, `uri` may be of any storage that fsspec knows, and no file appears: `snapshot.committed_files(uri)`
    says which ones are committed. A recovery lists all of them.
    """

    uri: str
    format: WrittenFormat = "parquet"
    roll_bytes: int = 64 << 20
    listed: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "uri", everywhere(self.uri))

    @property
    def exactly_once(self) -> bool:
        """Files appear at commit."""
        return True

    @property
    def abilities(self) -> Abilities:
        """A staged file stays."""
        return Abilities(keeps_prepared=True)

    def check(self, schema: pa.Schema) -> Sequence[str]:
        """Unknown formats and file systems, libraries that are missing, and columns that the format cannot hold."""
        problems = list(unwritable(self.uri, self.listed))
        if self.roll_bytes < 1:
            problems.append(f"roll_bytes is {self.roll_bytes}; it must be at least 1")
        if self.format not in EXTENSIONS:
            return [*problems, f"files cannot be written as {self.format!r}; known are {', '.join(EXTENSIONS)}"]
        return [*problems, *unsuitable(self.format, schema)]

    def examine(self, job: JobId, uid: Uid, schema: pa.Schema) -> Sequence[str]:  # noqa: ARG002
        """Storage that is down, refuses the credentials or has no such bucket, and folders that cannot be written."""
        return [f"sink {uid}: {problem}" for problem in open_folder(self.uri, self.listed).problems()]

    def open(self, context: SinkContext) -> SinkWriter:
        """Open it in a partition."""
        return _Writer(self, context)

    def recover(self, job: JobId, uid: Uid, older_than: Incarnation, named: Collection[TransactionId]) -> None:
        """Delete the staged files of this sink that are leftovers. A crash leaves the others to the next recovery;
        those at a `uri` that the program had before are left to `recovery sinks abort` with that program.
        """

        def may_go(name: str) -> bool:
            transaction = transaction_of(name)
            if transaction is None:
                return False
            made = parse_transaction_id(transaction)
            return (made.job, made.sink) == (job, uid) and may_be_aborted(transaction, older_than, named)

        folder = open_folder(self.uri, self.listed)
        for file in folder.leftovers(may_go):
            folder.drop(file)


class _Writer:
    """The sink in a partition: a file is a piece of its transaction."""

    def __init__(self, sink: ToFiles, context: SinkContext) -> None:
        self._sink = sink
        self._uid = context.uid
        self._folder = open_folder(sink.uri, sink.listed)
        self._files: Pieces[StagedFile] = Pieces(context.uid, sink.roll_bytes)

    def begin(self, transaction: TransactionId) -> None:
        """Begin with no file, under a nonce of its own."""
        folder, format, extension = self._folder, self._sink.format, EXTENSIONS[self._sink.format]
        nonce = token_hex(8)
        if len(file_name(transaction, 10**6, extension, nonce)) > _LONGEST_NAME:
            raise SinkError(
                f"sink {self._uid}: files cannot be named after transaction {transaction}: their names would have more "
                f"than {_LONGEST_NAME} characters. Give the job and the sink shorter names"
            )

        def stage(number: int, batches: Sequence[pa.RecordBatch]) -> StagedFile:
            data = encoded(format, pa.Table.from_batches(batches))
            return folder.stage(file_name(transaction, number, extension, nonce), data)

        self._files.begin(stage)

    def write(self, rows: Rows) -> None:
        """Keep the rows; begin to write a file if there are enough. Waits if files are written more slowly than they
        fill.
        """
        self._files.write(rows)

    def seal(self) -> Sealed:
        """Hand over the files, written or not."""
        return _SealedFiles(self._files.seal(), self._sink)

    def commit(self, transaction: TransactionId, payload: CommitPayload) -> CommitAnswer:
        """Publish the files, those that are not visible yet."""
        if (refusal := of_another_kind(ToFiles.__name__, transaction, payload)) is not None:
            return refusal
        committed = _committed_in(payload)
        try:
            folder = self._folder if committed.is_of(self._sink) else open_folder(committed.root, committed.listed)
            published = folder.publish(committed.files)
        except Exception as error:  # what storage raises has no common ancestor, and none of it says what happened
            reason = f"the files in {committed.root} could not be made visible now: {error}"
            return CommitAnswer(CommitOutcome.RETRY_LATER, reason)
        if published.missing:
            return CommitAnswer(
                CommitOutcome.FAILED,
                f"{', '.join(published.missing)} of transaction {transaction} is neither staged nor visible in "
                f"{committed.root}; if a reader has taken it away after it appeared, put it back and start again",
            )
        return CommitAnswer(CommitOutcome.ALREADY_COMMITTED if published.already else CommitOutcome.COMMITTED)

    def close(self) -> None:
        """Begin to write no more files; the one that is being written, and all staged ones, are left to `recover`."""
        self._files.close()


@dataclass(frozen=True, slots=True, eq=False)
class _SealedFiles:
    """The files of a sealed transaction."""

    files: SealedPieces[StagedFile]
    sink: ToFiles

    def prepare(self) -> CommitPayload | None:
        """Write what is not written yet."""
        files = self.files.stored()
        return _Committed(self.sink.uri, self.sink.listed, files).payload() if files else None


@dataclass(frozen=True, slots=True)
class _Committed:
    """What a payload says: where the files are, how readers find them there, and which they are."""

    root: str
    listed: bool
    files: Sequence[StagedFile]

    def is_of(self, sink: ToFiles) -> bool:
        """Whether the sink as it is now would write there."""
        return (self.root, self.listed) == (sink.uri, sink.listed)

    def payload(self) -> CommitPayload:
        """As it is stored: a file that has no ticket is its name."""
        files: list[JsonLike] = [
            file.name if file.ticket == NULL else {"name": file.name, "ticket": file.ticket.value()}
            for file in self.files
        ]
        about: dict[str, JsonLike] = {"root": self.root, "listed": self.listed, "files": files}
        return CommitPayload(Json.of({MADE_BY: ToFiles.__name__, **about}))


def _committed_in(payload: CommitPayload) -> _Committed:
    match payload.value.value():
        case {"root": str(root), "files": list(files), **more}:
            return _Committed(root, more.get("listed") is True, [_staged_file(file) for file in files])
        case other:
            raise ValueError(f"{other!r} is no payload of files")


def _staged_file(stored: JsonLike) -> StagedFile:
    match stored:
        case str(name):
            return StagedFile(name)
        case {"name": str(name), "ticket": ticket}:
            return StagedFile(name, Json.of(ticket))
        case other:
            raise ValueError(f"{other!r} is no staged file")
