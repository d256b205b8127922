"""Files that appear when their epoch is complete: staged under hidden names, renamed at commit.

What always holds: the names of a transaction's files follow from its id, so that whoever commits it, however often and
after whichever crash, gives the same files the same names; and readers see whole files only.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

import pyarrow as pa

from snapshot.frozen_json import Json
from snapshot.ids import JobId, TransactionId
from snapshot.manifest import CommitPayload
from snapshot.program.rows import Rows
from snapshot.program.sink import Abilities, CommitAnswer, Sealed, SinkContext, SinkError, SinkWriter
from snapshot.sinks.file_formats import EXTENSIONS, WrittenFormat, encoded, unsuitable
from snapshot.sinks.folder import KNOWN, Folder, open_folder
from snapshot.sources.location import everywhere, protocol_of
from snapshot.transaction_events import CommitOutcome, may_be_aborted, parse_transaction_id
from statebackend.ids import Incarnation, Uid

_LONGEST_NAME = 255
"""Bytes that a file's name may have on the usual file systems."""
_UNDER_WAY = 2
"""Files of a writer that may wait to be written before `write` waits with them."""
_NAME = re.compile(r"part-(?P<transaction>(?:[A-Za-z0-9_~-]|\.[0-9a-f]{2})+)-(?P<number>0|[1-9][0-9]*)\.[a-z]+")
_UNSAFE = re.compile(r"[^A-Za-z0-9_/-]")


def file_name(transaction: TransactionId, number: int, extension: str) -> str:
    """The name of the n-th file of a transaction; no two have the same."""
    escaped = _UNSAFE.sub(lambda match: "".join(f".{byte:02x}" for byte in match[0].encode()), transaction)
    return f"part-{escaped.replace('/', '~')}-{number}.{extension}"


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
    return transaction if file_name(transaction, int(match["number"]), extension) == name else None


@dataclass(frozen=True, slots=True)
class ToFiles:
    """A sink that writes a folder of files: `part-<transaction>-<n>.<format>`, one per epoch and partition with rows.

    A file appears when its epoch is complete, as a whole, and is never changed. Readers ignore names that begin with a
    dot, as most do. Rows wait in memory until their epoch's cut, or until they take `roll_bytes` there: then they
    become a file of their own while further rows come. Two such files of a partition may be under way at a time.

    `uri` is a folder of a local (or mounted) file system that all partitions and the driver see, or `memory://` within
    one process. A commit finds its files at the uri that they were written to, even if the program's has changed since.
    Files of the newest epoch must not be moved away before the next epoch is complete: a driver that starts in
    between could not tell whether they were committed, and stops.
    """

    uri: str
    format: WrittenFormat = "parquet"
    roll_bytes: int = 64 << 20

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
        """Unknown formats and file systems, and columns that the format cannot hold."""
        problems = []
        protocol = protocol_of(self.uri)
        if protocol not in KNOWN:
            problems.append(
                f"files at {self.uri} could not appear as a whole: {protocol}:// has no rename in one step; "
                f"use a folder of a local or mounted file system"
            )
        if self.roll_bytes < 1:
            problems.append(f"roll_bytes is {self.roll_bytes}; it must be at least 1")
        if self.format not in EXTENSIONS:
            return [*problems, f"files cannot be written as {self.format!r}; known are {', '.join(EXTENSIONS)}"]
        return [*problems, *unsuitable(self.format, schema)]

    def examine(self, job: JobId, uid: Uid, schema: pa.Schema) -> Sequence[str]:  # noqa: ARG002
        """There is nothing to look at."""
        return []

    def open(self, context: SinkContext) -> SinkWriter:
        """Open it in a partition."""
        return _Writer(self, context)

    def recover(self, job: JobId, uid: Uid, older_than: Incarnation, named: Collection[TransactionId]) -> None:
        """Delete the staged files of this sink that are leftovers. A crash leaves the others to the next recovery."""
        folder = open_folder(self.uri)
        for file in folder.staged():
            transaction = transaction_of(file)
            if transaction is None:
                continue
            made = parse_transaction_id(transaction)
            if (made.job, made.sink) == (job, uid) and may_be_aborted(transaction, older_than, named):
                folder.drop(file)


@dataclass(slots=True, eq=False)
class _File:
    """Rows that become one file. They are kept until it is written, so that writing may be tried again."""

    name: str
    batches: list[pa.RecordBatch] = field(default_factory=list)
    size: int = 0
    written: Future[None] | None = None

    def write(self, folder: Folder, format: WrittenFormat) -> None:
        """Write the staged file, once."""
        if self.batches:
            folder.stage(self.name, encoded(format, pa.Table.from_batches(self.batches)))
            self.batches = []


class _Writer:
    """The sink in a partition: its own thread writes the files that are full before their epoch is over."""

    def __init__(self, sink: ToFiles, context: SinkContext) -> None:
        self._sink = sink
        self._uid = context.uid
        self._folder = open_folder(sink.uri)
        self._thread: ThreadPoolExecutor | None = None
        self._transaction: TransactionId | None = None
        self._files: list[_File] = []

    def begin(self, transaction: TransactionId) -> None:
        """Begin with no file."""
        if len(file_name(transaction, 10**6, EXTENSIONS[self._sink.format])) > _LONGEST_NAME:
            raise SinkError(
                f"sink {self._uid}: files cannot be named after transaction {transaction}: their names would have more "
                f"than {_LONGEST_NAME} characters. Give the job and the sink shorter names"
            )
        self._transaction, self._files = transaction, []

    def write(self, rows: Rows) -> None:
        """Keep the rows; begin to write a file if there are enough. Waits if files are written more slowly than they
        fill.
        """
        if not len(rows):
            return
        assert self._transaction is not None, "a transaction was begun"
        if not self._files or self._files[-1].size >= self._sink.roll_bytes:
            name = file_name(self._transaction, len(self._files), EXTENSIONS[self._sink.format])
            self._files.append(_File(name))
        current = self._files[-1]
        current.batches.append(rows.batch)
        current.size += rows.size
        if current.size >= self._sink.roll_bytes:
            self._write_ahead(current)

    def seal(self) -> Sealed:
        """Hand over the files, written or not."""
        files, self._files, self._transaction = self._files, [], None
        return _SealedFiles(tuple(files), self._sink, self._folder)

    def commit(self, transaction: TransactionId, payload: CommitPayload) -> CommitAnswer:
        """Rename the files, those that are not renamed yet."""
        stored = payload.value.value()
        assert isinstance(stored, dict)
        root, names = str(stored["root"]), [str(name) for name in stored["files"]]
        folder = open_folder(root)
        try:
            already = all(folder.is_published(name) for name in names)
            missing = [name for name in names if not folder.publish(name)]
        except OSError as error:
            return CommitAnswer(CommitOutcome.RETRY_LATER, f"files could not be renamed in {root}: {error}")
        if missing:
            return CommitAnswer(
                CommitOutcome.FAILED,
                f"{', '.join(missing)} of transaction {transaction} is neither staged nor visible in {root}; if a "
                f"reader has taken it away after it appeared, put it back and start again",
            )
        return CommitAnswer(CommitOutcome.ALREADY_COMMITTED if already else CommitOutcome.COMMITTED)

    def close(self) -> None:
        """Begin to write no more files; the one that is being written, and all staged ones, are left to `recover`."""
        self._files = []
        if self._thread is not None:
            self._thread.shutdown(wait=False, cancel_futures=True)

    def _write_ahead(self, full: _File) -> None:
        under_way = [file for file in self._files if file.written is not None and file.batches]
        if len(under_way) >= _UNDER_WAY:
            _wait(self._uid, under_way[0])
        self._thread = self._thread or ThreadPoolExecutor(1, thread_name_prefix=f"files-{self._uid}")
        full.written = self._thread.submit(full.write, self._folder, self._sink.format)


@dataclass(frozen=True, slots=True, eq=False)
class _SealedFiles:
    """The files of a sealed transaction."""

    files: Sequence[_File]
    sink: ToFiles
    folder: Folder

    def prepare(self) -> CommitPayload | None:
        """Write what is not written yet."""
        for file in self.files:
            if file.written is not None:
                file.written.exception()  # if it failed, it is tried again here
            file.write(self.folder, self.sink.format)
        names = [file.name for file in self.files]
        return CommitPayload(Json.of({"root": self.sink.uri, "files": names})) if names else None


def _wait(uid: Uid, file: _File) -> None:
    assert file.written is not None
    error = file.written.exception()
    if error is not None:
        raise SinkError(f"sink {uid}: the staged file {file.name} could not be written: {error}") from error
