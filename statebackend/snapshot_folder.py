"""Snapshots of one operator in a store, without a stream host: as in an ordinary PySpark job.

Invariant: a snapshot is there as a whole or not at all, whatever dies when; the newest one can be restored; and
of any number of runs of a job only the one that began last completes anything. The rules are in `snapshot_log`; here
they are carried out.

    folder = SnapshotFolder(open_store("s3://bucket/counts"), "counts")
    generation = folder.begin()                      # in the driver, once per run
    snapshot, epoch = folder.latest(), folder.next_epoch(generation)
    ...                                              # in tasks: fetch snapshot.file_set(range), work, and write files
    folder.complete(epoch, parts, note="batch 7")    # named by SnapshotFolder.names(generation, partition, attempt)
    folder.clean(keep=2)

Rows reach the partition that owns their key by `Operator.owners_of`, which says for each key the number of that
partition: a column to repartition by. `examples/visits_in_spark.py` is such a job.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from itertools import count
from typing import Final, TypeVar

from statebackend import fail_points, means
from statebackend.fail_points import reached
from statebackend.files import FileSet
from statebackend.ids import Attempt, Epoch, Generation, Partition
from statebackend.snapshots.snapshot_log import (
    LOG,
    SHARED,
    Entry,
    ForeignSnapshot,
    Kept,
    Kind,
    NoSuchSnapshot,
    Part,
    Snapshot,
    claimed,
    completed,
    counts,
    decode,
    encode,
    entry_number,
    entry_path,
    garbage,
    generation_of,
    missing,
    nothing,
    removed,
    state_path,
)
from statebackend.stores.store import BlobNotFound, BlobStore, Creation, UnknownOutcome

_ASK_AGAIN: Final = 5
"""The number of times that a create whose answer is lost is repeated, before that is an error."""

_Answer = TypeVar("_Answer")


def _number(part: tuple[int, FileSet]) -> int:
    return part[0]


class _Overtaken(Exception):
    """Others have gone on meanwhile; what was read or created counts no longer."""


class SnapshotFolder:
    """The snapshots of a job below the root of a store. One object is used by one thread; any number may be open.

    Every call raises what the store raises, and `DamagedSnapshot`, `NewerSnapshot` or `ForeignSnapshot` for a folder
    that is not as this program would have written it for this job. A crash inside leaves the folder as before the
    call or as after it, and files that a later `clean` deletes.
    """

    def __init__(self, store: BlobStore, job: str) -> None:
        self._store = store
        self._job = job
        self._last_epoch = 0
        self._known: dict[str, Snapshot] = {}

    def begin(self) -> Generation:
        """Begin a run: from now on, runs that began before complete nothing any more.

        Raises `ForeignSnapshot` where there are files of state without a log: they are not this job's to clean.
        """
        claim = self._append(self._claim)[1]
        reached(fail_points.RUN_BEGUN)
        return claim.generation

    @staticmethod
    def names(generation: int, partition: int, attempt: int) -> Callable[[], str]:
        """Return a function that gives the files of one task their paths in the store, never the same path twice.

        The caller owes an attempt that no other task of this run and partition has: Spark's `taskAttemptId`, not its
        `attemptNumber`, which begins at 0 again in every stage.
        """
        numbers = count()
        run = Generation(generation), Partition(partition), Attempt(attempt)
        return lambda: state_path(*run, next(numbers))

    def next_epoch(self, generation: Generation) -> Epoch:
        """Return an epoch for what this run does next, later than all complete ones and all given out here."""
        self._last_epoch = max(self._last_epoch, self._newest().newest.number) + 1
        return Epoch(generation, self._last_epoch)

    def complete(
        self, epoch: Epoch, parts: Mapping[int, FileSet] | Mapping[Partition, FileSet], *, note: str = ""
    ) -> None:
        """Make these parts the snapshot of the epoch; their files are all in the store. The only commit point.

        Readers of the snapshot get the `note` with it: in `foreachBatch` the number of the batch, so that a batch that
        Spark gives again, after a crash, is known by `int(folder.latest().note)` and not taken in twice.

        Raises `FencedRun` if a newer run has begun, `RefusedSnapshot` for parts that are no snapshot, or name files
        that may be deleted at any time. After `UnknownOutcome` it may be complete or not: doing it again with the same
        parts tells. The caller owes that a run does not name a file again that its newest complete snapshot did not
        need any more.
        """
        ordered = tuple(Part(Partition(partition), files) for partition, files in sorted(parts.items(), key=_number))

        def follow(state: Entry, nonce: str) -> Entry:
            return completed(state, nonce, epoch, ordered, self._inherited(state, epoch, ordered), note)

        if self._newest().newest == epoch:
            known = self.read(epoch)
            if (known.parts, known.note) == (ordered, note):
                return
        entry = self._append(follow)[1]
        reached(fail_points.SNAPSHOT_COMPLETED)
        self._known[entry.nonce] = entry.snapshot()

    def latest(self) -> Snapshot | None:
        """Return the newest complete snapshot, or None if there never was one."""
        return self._settled(lambda state: self._snapshot(state, state.kept[-1]) if state.kept else None)

    def epochs(self) -> tuple[Epoch, ...]:
        """Return the epochs whose snapshots are kept, the newest last."""
        return tuple(kept.epoch for kept in self._newest().kept)

    def read(self, epoch: Epoch) -> Snapshot:
        """Return the snapshot of this epoch; raise `NoSuchSnapshot` if it is not kept."""

        def find(state: Entry) -> Snapshot:
            for kept in state.kept:
                if kept.epoch == epoch:
                    return self._snapshot(state, kept)
            listed = ", ".join(str(kept.epoch) for kept in state.kept) or "none"
            raise NoSuchSnapshot(f"{self._job} has no snapshot of epoch {epoch}; kept are: {listed}")

        return self._settled(find)

    def clean(self, keep: int = 2) -> None:
        """Remove all but the newest snapshots, and then every file that no run will need any more.

        Any process may do it at any time. A restore of a snapshot that is removed meanwhile gets `MissingFile`; a newer
        one is there to take. What a run has uploaded and not completed is deleted when the next run has begun.
        """
        for path in self._settled(lambda _: self._remove(keep)):
            self._store.delete(path)
            reached(fail_points.GARBAGE_DELETED)
        self._store.remove_leftovers()

    def _remove(self, keep: int) -> list[str]:
        """Remove snapshots from the log; return what may be deleted now, in order."""
        before, state = self._append(lambda state, nonce: removed(state, nonce, keep))
        reached(fail_points.SNAPSHOTS_REMOVED)
        gone = tuple(kept for kept in before.kept if kept not in state.kept)
        kept_paths, removed_paths = self._paths(state, state.kept), self._paths(before, gone)
        stored = [info.path for info in self._store.list(SHARED)]
        # Entries go one clean-up late: a listing must be overtaken by two to miss the newest entry.
        entries = {entry_path(number) for number in self._numbers() if number <= before.floor}
        needed = {entry_path(kept.number) for kept in state.kept}
        return [*garbage(state, stored, kept_paths, removed_paths), *sorted(entries - needed)]

    def _claim(self, state: Entry, nonce: str) -> Entry:
        if not state.number and self._store.list(SHARED):
            raise ForeignSnapshot(
                f"{self._store} holds files in {SHARED}/ that are not of snapshots of {self._job!r}, as it has no "
                f"{LOG}/; give every job a folder of its own"
            )
        return claimed(state, nonce)

    # --- the log -----------------------------------------------------------------------------------------------------

    def _append(self, follow: Callable[[Entry, str], Entry]) -> tuple[Entry, Entry]:
        """Bring what follows on the newest entry into the log; return the one before it, and it."""

        def bring(state: Entry) -> tuple[Entry, Entry]:
            entry = follow(state, means.token_hex(16))
            if not (self._create(entry) and counts(entry, self._newest())):
                raise _Overtaken
            return state, entry

        return self._settled(bring)

    def _settled(self, attempt: Callable[[Entry], _Answer]) -> _Answer:
        """Return what `attempt` gives for the newest entry; ask again whenever other runs have gone on meanwhile."""
        while True:
            with suppress(_Overtaken):
                return attempt(self._newest())

    def _create(self, entry: Entry) -> bool:
        """True if the entry is at its number now, also if the answer to an earlier try was lost."""
        path, data = entry_path(entry.number), encode(entry)
        for remaining in reversed(range(_ASK_AGAIN)):
            try:
                return self._store.create(path, data) is Creation.CREATED or self._content(entry.number) == data
            except UnknownOutcome:
                if not remaining:
                    raise
        raise AssertionError("the last try returns or raises")

    def _newest(self) -> Entry:
        while True:
            number = max(self._numbers(), default=0)
            if number == 0:
                return nothing(self._job)
            data = self._content(number)
            if data is not None:
                return decode(self._job, number, data)

    def _numbers(self) -> list[int]:
        numbers = (entry_number(info.path) for info in self._store.list(LOG))
        return [number for number in numbers if number is not None]

    def _content(self, number: int) -> bytes | None:
        try:
            return self._store.read(entry_path(number))
        except BlobNotFound:
            return None

    def _snapshot(self, state: Entry, kept: Kept) -> Snapshot:
        """Return a snapshot that the state keeps; raise `_Overtaken` if it is gone and there is a newer state."""
        if kept.nonce not in self._known:
            data = self._content(kept.number)
            entry = None if data is None else decode(self._job, kept.number, data)
            if entry is None or (entry.kind, entry.nonce) != (Kind.COMPLETED, kept.nonce):
                if self._newest().number != state.number:
                    raise _Overtaken
                raise missing(self._job, kept)
            self._known = {item.nonce: self._known[item.nonce] for item in state.kept if item.nonce in self._known}
            self._known[kept.nonce] = entry.snapshot()
        return self._known[kept.nonce]

    def _paths(self, state: Entry, snapshots: Iterable[Kept]) -> frozenset[str]:
        return frozenset().union(*(self._snapshot(state, kept).paths for kept in snapshots))

    def _inherited(self, state: Entry, epoch: Epoch, parts: tuple[Part, ...]) -> frozenset[str]:
        """Return files of kept snapshots, from the newest on until all that the parts take from earlier runs are there.

        Older snapshots are not read then, so damage to them does no harm.
        """
        paths = {file.path for part in parts for file in part.files.files}
        earlier = {path for path in paths if (generation_of(path) or epoch.generation) < epoch.generation}
        found = frozenset[str]()
        for kept in reversed(state.kept):
            if earlier <= found:
                break
            found |= self._snapshot(state, kept).paths
        return found
