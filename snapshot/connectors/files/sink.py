"""Files that appear when their epoch is complete: staged where no reader looks, made visible in one step at commit.

Invariant: the names of a transaction's files follow from its id and from a nonce that is drawn when it is begun, and
stand in its payload: each commit, after any crash, gives the same files the same names, and a transaction that is made
again under the same id has others. Readers see whole files only.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import timedelta

import pyarrow as pa

from snapshot.connectors.files.folder import everywhere, open_folder, password_faults, unwritable
from snapshot.connectors.files.formats import EXTENSIONS, WrittenFormat, unsuitable
from snapshot.connectors.files.hive_folders import unsuitable_columns
from snapshot.connectors.files.names import transaction_of
from snapshot.connectors.files.writer import FilePlace, FileWriter
from snapshot.connectors.staging.table_fit import columns_of
from snapshot.epochs.transaction_events import may_be_aborted, parse_transaction_id
from snapshot.ids import JobId, TransactionId
from snapshot.program.sink import Abilities, SinkContext, SinkWriter
from statebackend import means
from statebackend.durations import Duration, milliseconds
from statebackend.ids import Incarnation, Uid


def now_ms() -> int:
    """Return the time by which rows wait, in milliseconds since 1970, so that it goes on over restarts."""
    return means.wall_ns() // 1_000_000


@dataclass(frozen=True, slots=True)
class ToFiles:
    """A sink that writes a folder of files, one per epoch and partition with rows:
    `part-<transaction>-<nonce>-<n>.<format>`.

    A file appears when its epoch is complete, as a whole, and is never changed. Readers ignore names that begin with a
    dot, as most do. Rows wait in memory until their epoch's cut, or until they take `roll_bytes` there: then they
    become a file of their own while further rows come. Two such files of a partition may be under way at a time.

    An epoch each second makes many small files, as rows that are visible cannot be in a file that still grows. With
    `roll_every`, such as "10m", a partition's rows wait, in the snapshot, until the oldest of them has waited so long
    or all take `roll_bytes`; then they become one file at that epoch's commit. Nothing is lost or twice by that, only
    seen later: at most after `roll_every` and an epoch. Rows that wait when the input ends, or the job is drained, are
    shown then; a job that is stopped keeps them, and shows them when it is started again. By default nothing waits.

    `uri` is a folder of a local (or mounted) file system that all partitions and the driver see, where a file is
    staged in `.staged` and renamed at commit; `s3://<bucket>/<prefix>`, where it is an upload in parts that is
    completed at commit, so that the key and its secret are to be given as `storage_options`, and a rule of the bucket
    that aborts uploads has to leave them for longer than the job may be down;
    `webhdfs://<user>@<name node>:<port>/<path>`, where it is renamed; or `memory://` within one process. Files that
    were staged at another uri, as the program's has changed since, are published there if that is allowed by name
    (`accept_places`), and else refused. What came to nothing there stays until `recovery sinks abort` is run with the
    former program.
    Files of the newest epoch must not be moved away before the next epoch is complete: a driver that starts in
    between could not tell whether they were committed, and stops.

    A row with NaN or an infinity in it is refused in JSON lines, which have no such numbers, and taken in Parquet and
    CSV.

    With `partition_by`, a column or several, files are in folders of the values, such as `day=2026-01-01`, and leave
    these columns out, as Spark does: null and "" are `__HIVE_DEFAULT_PARTITION__`, what a name cannot hold is escaped,
    times are in UTC. Spark and `pyarrow.dataset(..., partitioning="hive")` bring the columns back. There is a file for
    each folder to which an epoch and partition has rows, written one after the other; what wants more than 10,000
    folders at once is refused.

    With `listed`, `uri` may be of any storage that fsspec knows, and no file appears: `snapshot.committed_files(uri)`
    says which ones are committed. A recovery lists all of them.
    """

    uri: str
    format: WrittenFormat = "parquet"
    roll_bytes: int = 64 << 20
    listed: bool = False
    partition_by: str | tuple[str, ...] = ()
    roll_every: Duration = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "uri", everywhere(self.uri))
        object.__setattr__(self, "partition_by", columns_of("partition_by", self.partition_by))
        object.__setattr__(self, "roll_every", timedelta(milliseconds=milliseconds(self.roll_every, "roll_every")))

    @property
    def roll_every_ms(self) -> int:
        """Return how long rows may wait for their file, in milliseconds."""
        return milliseconds(self.roll_every)

    @property
    def _place(self) -> FilePlace:
        return FilePlace(self.uri, self.listed, self.format, self.folders)

    @property
    def folders(self) -> tuple[str, ...]:
        """Return the columns whose values name folders."""
        return columns_of("partition_by", self.partition_by)

    @property
    def exactly_once(self) -> bool:
        """Return True: files appear at commit."""
        return True

    @property
    def abilities(self) -> Abilities:
        """Declare that the target keeps what is prepared: a staged file stays."""
        return Abilities(keeps_prepared=True)

    def check(self, schema: pa.Schema) -> Sequence[str]:
        """Report unknown formats and file systems, missing libraries, and columns that the format cannot hold."""
        if faults := password_faults(self.uri):
            return faults
        problems = list(unwritable(self.uri, self.listed))
        if self.roll_bytes < 1:
            problems.append(f"roll_bytes is {self.roll_bytes}; it must be at least 1")
        if self.format not in EXTENSIONS:
            return [*problems, f"files cannot be written as {self.format!r}; known are {', '.join(EXTENSIONS)}"]
        written = pa.schema([field for field in schema if field.name not in self.folders])
        return [*problems, *unsuitable_columns(schema, self.folders), *unsuitable(self.format, written)]

    def examine(self, job: JobId, uid: Uid, schema: pa.Schema) -> Sequence[str]:  # noqa: ARG002
        """Report storage that is down, refuses the credentials or lacks the bucket, or folders without write access."""
        return [f"sink {uid}: {problem}" for problem in open_folder(self.uri, self.listed).problems()]

    def open(self, context: SinkContext) -> SinkWriter:
        """Open the sink in a partition."""
        return FileWriter(self._place, self.roll_bytes, self.roll_every_ms, context, now_ms)

    def recover(self, job: JobId, uid: Uid, older_than: Incarnation, named: Collection[TransactionId]) -> None:
        """Delete the staged files of this sink that are leftovers.

        A crash leaves the others to the next recovery; those at a `uri` that the program had before are left to
        `recovery sinks abort` with that program.
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
