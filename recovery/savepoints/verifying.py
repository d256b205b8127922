"""Verify a tree: every reference, every checksum, every key in its key group.

Invariant: nothing is written; everything is looked at, also behind the first fault, and what is sound is told
as well: which epochs a job could still be started from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from recovery.driver.tree.damage import fault_of
from recovery.offline.job_tree import JobTree, NoSuchEpoch, UnusableEpoch
from recovery.scratch import scratch_folder
from snapshot.tree.manifest import Manifest, StoredFile
from statebackend.backends.backend import BackendError
from statebackend.canonical.schema import KEY, KEY_GROUP
from statebackend.files import FileRef, FileSet
from statebackend.ids import Epoch, Uid
from statebackend.keys.columns import key_column
from statebackend.state_reader import StateReader, UnreadableState
from statebackend.stores.store import BlobStore, BlobStoreError
from statebackend.tables.format.blocks import BlockError

_AT_ONCE = 8

Seen = Callable[[int], object]
"""Is told how many more bytes have been looked at."""


@dataclass(frozen=True, slots=True)
class Damage:
    """Something that is not as it should be. `epochs` are those that cannot be restored because of it."""

    epochs: tuple[Epoch, ...]
    what: str
    detail: str


@dataclass(frozen=True, slots=True)
class Verified:
    """The result of a verification. A job can be started from each of the `sound` epochs.

    `doubtful` are epochs that have a manifest, and no entry in the journal: their driver died just then, as far as can
    be told, or the journal has lost its newest entries (see `recovery.decisions.losses`).
    """

    job: str
    epochs: int
    files: int
    bytes: int
    rows: int
    sound: tuple[Epoch, ...]
    damages: tuple[Damage, ...]
    doubtful: tuple[Epoch, ...] = ()


@dataclass(frozen=True, slots=True)
class ToVerify:
    """The files to verify: the manifests that can be read, each file once with the epochs that refer to it."""

    manifests: tuple[Manifest, ...]
    files: tuple[tuple[FileRef | StoredFile, tuple[Epoch, ...]], ...]
    damages: tuple[Damage, ...]

    @property
    def bytes(self) -> int:
        """Return the number of bytes that checking the files will read."""
        return sum(file.size for file, _ in self.files)


def what_to_verify(tree: JobTree, epoch: str | None = None) -> ToVerify:
    """Collect what one epoch consists of, or, if none is named, all epochs that the job could come back to."""
    records = tree.state.usable if epoch is None else (tree.record(epoch),)
    manifests, damages = [], []
    for record in records:
        try:
            manifests.append(tree.manifest(record))
        except UnusableEpoch as error:
            damages.append(Damage((record.epoch,), record.manifest, error.reason))
        except NoSuchEpoch:
            continue  # removed by the running job while we looked
    files: dict[str, FileRef | StoredFile] = {}
    users: dict[str, list[Epoch]] = {}
    for manifest in manifests:
        for file in manifest.files():
            files.setdefault(file.path, file)
            if manifest.epoch not in users.setdefault(file.path, []):
                users[file.path].append(manifest.epoch)
    return ToVerify(
        tuple(manifests), tuple((files[path], tuple(users[path])) for path in sorted(files)), tuple(damages)
    )


def verify(
    tree: JobTree, todo: ToVerify, *, keys: bool = True, scratch: Path | None = None, seen: Seen = lambda _: None
) -> Verified:
    """Verify all of it. `keys`: also open the state, count its rows, and hash the key of each anew.

    An epoch that a running job removes meanwhile is left out: it is neither damaged nor sound. What the store raises
    because it cannot be reached is raised. `scratch` is a local folder with room for the largest partition's state.
    """
    with scratch_folder("verify", scratch) as folder:
        damages = [*todo.damages, *_damaged_files(tree.store, todo, folder, seen)]
        there = _usable(tree)
        broken = {epoch for damage in damages for epoch in damage.epochs}
        counted = 0
        whole = [one for one in todo.manifests if one.epoch in there - broken]
        for uid, state, epochs in _states(whole) if keys else []:
            place = f"state of {uid}, key groups {state.range}"
            try:
                found, misplaced = _check_keys(tree.store, state, folder)
            except (BackendError, BlockError, UnreadableState, ValueError) as error:
                damages.append(Damage(epochs, place, str(error)))
                continue
            counted += found
            damages += [Damage(epochs, place, text) for text in misplaced]
    there = _usable(tree)
    damages = _of_epochs(there, damages)
    broken = {epoch for damage in damages for epoch in damage.epochs}
    sound = tuple(manifest.epoch for manifest in todo.manifests if manifest.epoch in there - broken)
    looked_at = there & {*(one.epoch for one in todo.manifests), *broken}
    return Verified(
        tree.birth.job, len(looked_at), len(todo.files), todo.bytes, counted, sound, tuple(damages), tree.doubtful
    )


def _damaged_files(store: BlobStore, todo: ToVerify, folder: Path, seen: Seen) -> list[Damage]:
    def look(one: tuple[FileRef | StoredFile, tuple[Epoch, ...]]) -> Damage | None:
        file, epochs = one
        fault = fault_of(store, file, folder)
        seen(file.size)
        return None if fault is None else Damage(epochs, file.path, fault)

    pool = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="verify")
    try:
        return [damage for damage in pool.map(look, todo.files) if damage is not None]
    finally:
        pool.shutdown(cancel_futures=True)


def _usable(tree: JobTree) -> frozenset[Epoch]:
    """Return the epochs that the job can come back to now; it may have removed some since verifying began."""
    return frozenset(record.epoch for record in tree.look_again().state.usable)


def _of_epochs(there: frozenset[Epoch], damages: Iterable[Damage]) -> list[Damage]:
    """Return the damages of these epochs, without those of other epochs alone."""
    kept = []
    for damage in damages:
        epochs = tuple(epoch for epoch in damage.epochs if epoch in there)
        if epochs:
            kept.append(Damage(epochs, damage.what, damage.detail))
    return kept


def _states(manifests: Iterable[Manifest]) -> list[tuple[Uid, FileSet, tuple[Epoch, ...]]]:
    """Return each partition's state once, with all epochs that have it."""
    found: dict[tuple[Uid, FileSet], list[Epoch]] = {}
    for manifest in manifests:
        for operator in manifest.operators:
            for subtask in operator.subtasks:
                if subtask.state is not None and subtask.state.files:
                    found.setdefault((operator.uid, subtask.state), []).append(manifest.epoch)
    return [(uid, state, tuple(epochs)) for (uid, state), epochs in found.items()]


def _check_keys(store: BlobStore, state: FileSet, folder: Path) -> tuple[int, list[str]]:
    """Count the rows of all states together, and describe what is wrong with their keys."""
    counted, wrong = 0, []
    try:
        with StateReader(state, store, folder) as reader:
            for spec in reader.states():
                misplaced = 0
                for batch in reader.batches(spec.name, expired=True):
                    counted += len(batch)
                    misplaced += _misplaced(batch, reader)
                if misplaced:
                    wrong.append(f"state {spec.name!r}: {misplaced} rows have keys of other key groups")
    except BlobStoreError as error:
        raise BlobStoreError(f"state could not be read a second time: {error}") from error
    return counted, wrong


def _misplaced(batch: pa.RecordBatch, reader: StateReader) -> int:
    keys = key_column(batch.column(KEY), reader.schema.key_type)
    groups = batch.column(KEY_GROUP).to_numpy(zero_copy_only=False)
    return int(np.count_nonzero(keys.groups(reader.schema.max_parallelism) != groups))
