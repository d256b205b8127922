"""The job's tree in the hands of one generation: its journal, its manifests, and what it removes.

Invariant: all that is written comes from one thread, one after the other, in the order in which it was asked
for; an epoch's manifest is known here as soon as its entry is won.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from recovery.decisions.cleanup import EpochFiles, Fate, InFlight, NamedFrom, ObservedTree, classify, plan_removal
from recovery.decisions.losses import end_of
from recovery.driver.tree.manifests import DriversPart, broadcast_states, manifest_of
from snapshot import fail_points
from snapshot.epochs.coordinator_events import Publish
from snapshot.fail_points import reached
from snapshot.host.protocol.messages import Acknowledgement
from snapshot.journal.entries import Body, Committed, Completed, PinId, Pinned, Pinner, Removed
from snapshot.journal.state import JournalState
from snapshot.journal.store import StoredJournal, fresh_nonce
from snapshot.journal.writer import Fenced, Forgotten, JournalWriter, Outcome, Refused, Won
from snapshot.tree.layout import EPOCHS, SHARED, Content, EndNoted, ManifestFile, SharedFile, parse, path_of
from snapshot.tree.manifest import Inline, Manifest, StoredFile, only_carries
from snapshot.tree.manifest_json import digest, encode
from statebackend import means
from statebackend.errors import JobError, StoreError
from statebackend.ids import Epoch, Generation, Incarnation, Partition, Uid
from statebackend.stores.patience import Patience
from statebackend.stores.store import BlobNotFound, BlobStore, BlobStoreError

_BROADCASTS_KEPT: Final = 2
_INLINE: Final = 64 << 10
"""Broadcast state up to this size is put into the manifest itself; a larger one gets a file of its own."""


class JournalInDoubt(StoreError):
    """It is not known what became of an entry, however long the store was asked.

    The driver ends, and the next start reads what counts.
    """


class FencedOff(JobError):
    """A newer driver has claimed the job, so this one is over."""

    def __init__(self, by: Generation) -> None:
        super().__init__(f"generation {by} has claimed the job: another driver was started for it")
        self.by = by


@dataclass(frozen=True, slots=True)
class PublicationFailed:
    """The epoch's entry is not in the journal, and never will be."""

    epoch: Epoch
    reason: str


@dataclass(frozen=True, slots=True)
class PublicationDone:
    """The epoch is complete; `pinned` if it is a savepoint, `output` if it has output of its own to commit."""

    epoch: Epoch
    state: JournalState
    pinned: bool
    named_from: NamedFrom
    output: bool


@dataclass(frozen=True, slots=True)
class CommitNoted:
    """The journal says that all is committed up to the epoch."""

    epoch: Epoch
    state: JournalState


@dataclass(frozen=True, slots=True)
class Removal:
    """The files that may be deleted now; `number` is the journal's entry that says so."""

    number: int
    epochs: tuple[Epoch, ...]
    paths: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RemovalDone:
    """The journal after a removal, and the files that may be deleted, if any."""

    state: JournalState
    removal: Removal | None


@dataclass(frozen=True, slots=True)
class RemovalsForgotten:
    """The journal after carried-out removals were taken out of it."""

    state: JournalState


@dataclass(frozen=True, slots=True)
class Swept:
    """Orphans that were deleted, how many bytes they had, and how many unfinished files of writers that died.

    `unexplained` are those that stay, as the manifest of a retained epoch cannot be read.
    """

    files: int
    bytes: int
    unfinished: int
    unexplained: int


class Tree:
    """The tree as a generation writes it, made with what was found when the generation was claimed."""

    def __init__(
        self,
        store: BlobStore,
        writer: JournalWriter,
        generation: Generation,
        manifests: Mapping[Epoch, Manifest],
        broadcasts: Mapping[Epoch, Mapping[Uid, bytes]],
        patience: Patience | None = None,
        restored: Mapping[Epoch, Manifest] | None = None,
    ) -> None:
        """Keep `patience` for what must not be left in doubt; what others repeat is given up sooner.

        `restored` are epochs of which less is to be restored than they have: this much.
        """
        self._store = store
        self._journal = StoredJournal(store, patience)
        self._brief_journal = StoredJournal(store)
        self._writer = writer
        self.generation = generation
        self._manifests = dict(manifests)
        self._restored = dict(restored or {})
        self._broadcasts = dict(broadcasts)
        self._files = 0

    @property
    def state(self) -> JournalState:
        """Return what the journal says, as far as this generation knows."""
        return self._writer.state

    def manifest(self, epoch: Epoch | None) -> Manifest | None:
        """Return what is restored of a complete epoch, None for the beginning; any thread may ask."""
        return None if epoch is None else self._restored.get(epoch, self._manifests[epoch])

    def broadcast(self, epoch: Epoch | None) -> Mapping[Uid, bytes]:
        """Return the broadcast state of the epoch that the job would go back to; any thread may ask."""
        return {} if epoch is None else self._broadcasts.get(epoch, {})

    # --- in order -----------------------------------------------------------------------------------------------------

    def propose(self, body: Body) -> Won | Refused:
        """Bring the entry into the journal; raise `FencedOff` or `JournalInDoubt` if that ends the generation."""
        outcome = propose(self._journal, self._writer, body)
        match outcome:
            case Fenced(by):
                raise FencedOff(by)
            case Forgotten(number):
                raise JournalInDoubt(f"whether the journal's entry {number} is {body} cannot be told any more")
            case Won() | Refused():
                # An entry that names no generation, such as a pin, is not fenced, but tells of a newer one.
                if self.state.generation > self.generation:
                    raise FencedOff(self.state.generation)
                return outcome

    def publish(self, publish: Publish[Acknowledgement], part: DriversPart) -> PublicationDone | PublicationFailed:
        """Write the manifest, then the entry, then the pin of a savepoint.

        `part` is the driver's own part of the epoch, without the places of broadcast state: these are chosen here.
        """
        reached(fail_points.BEFORE_PUBLISH)
        epoch, broadcast = publish.epoch, broadcast_states(publish)
        path = path_of(ManifestFile(epoch, means.token_hex(8)))
        try:
            kept = {uid: self._keep(uid, data, publish) for uid, data in broadcast.items()}
            manifest = manifest_of(publish, replace(part, broadcast=kept), end_of(self.state))
            data = encode(manifest)
            self._store.write(path, data)
        except (BlobStoreError, ValueError) as error:
            return PublicationFailed(epoch, f"its manifest could not be written: {error}")
        reached(fail_points.MANIFEST_WRITTEN)
        carried = only_carries(manifest, self.state.newest_usable)
        outcome = self.propose(Completed(epoch, path, digest(data), publish.has_committables, carried))
        if isinstance(outcome, Refused):
            return PublicationFailed(epoch, outcome.refusal.text)
        reached(fail_points.EPOCH_ENTERED)
        self._manifests[epoch] = manifest
        self._broadcasts = {**dict(list(self._broadcasts.items())[1 - _BROADCASTS_KEPT :]), epoch: dict(broadcast)}
        pinned = publish.savepoint and isinstance(
            self.propose(Pinned(PinId(f"savepoint-{epoch}"), epoch, Pinner.SAVEPOINT)), Won
        )
        numbers = {partition: said.named_from for partition, said in publish.contents.items()}
        named_from = NamedFrom(publish.incarnation, {**numbers, _beyond(publish): self._files + 1})
        return PublicationDone(epoch, self.state, pinned, named_from, publish.has_committables and not carried)

    def record_committed(self, epoch: Epoch) -> CommitNoted:
        """Note in the journal that everything up to the epoch is committed."""
        reached(fail_points.BEFORE_COMMITTED)
        self.propose(Committed(self.generation, epoch))
        reached(fail_points.COMMITTED_ENTERED)
        return CommitNoted(epoch, self.state)

    def remove(self, removed: Removed) -> RemovalDone:
        """Let go what a plan says, unless the journal does not admit it any more."""
        outcome = self.propose(removed)
        if not isinstance(outcome, Won):
            return RemovalDone(self.state, None)
        reached(fail_points.REMOVAL_ENTERED)
        paths = (*removed.files, *removed.manifests)
        return RemovalDone(self.state, Removal(outcome.entry.number, removed.epochs, paths))

    def forget_removals(self, up_to: int) -> RemovalsForgotten:
        """Forget the removals up to this entry.

        They are carried out, and the journal begins after the entry: else a long life would take more and more memory.
        """
        self._writer.forget_removals(up_to)
        return RemovalsForgotten(self.state)

    def _keep(self, uid: Uid, data: bytes, publish: Publish[Acknowledgement]) -> StoredFile | Inline:
        """Return a place for broadcast state: a file that the newest epoch has already is referred to again."""
        if len(data) <= _INLINE:
            return Inline(data)
        checksum = checksum_of(data)
        usable = self.state.usable
        newest = self._manifests.get(usable[-1].epoch) if usable else None
        for operator in newest.operators if newest is not None else ():
            known = operator.broadcast
            if operator.uid == uid and isinstance(known, StoredFile) and known.checksum == checksum:
                return known
        self._files += 1
        path = path_of(SharedFile(publish.incarnation, _beyond(publish), self._files, Content.BROADCAST))
        self._store.write(path, data)
        return StoredFile(path, len(data), checksum)

    def note_end(self) -> None:
        """Note how far the journal has come, beside it: so its end can be told from a loss."""
        note_end(self._store, self.state)

    # --- in the driver's own thread -----------------------------------------------------------------------------------

    def plan_removal(self, known: JournalState, retain: int, oldest_base: Epoch | None) -> Removed | None:
        """Return the removal of what no epoch needs any more, if there is any.

        `known` is the journal as the coordinator knew it when it asked: a later one could let go the base of an epoch
        in flight of which the coordinator had not heard.
        """
        in_flight = () if oldest_base is None else (InFlight(oldest_base, oldest_base),)
        observed = ObservedTree(known, self._all_references(known), in_flight=in_flight)
        return plan_removal(observed, self.generation, retain)

    def observed(self, known: JournalState, attempt: Incarnation, named_from: NamedFrom | None = None) -> ObservedTree:
        """Return what a sweep begun now goes by: the journal as the coordinator knows it, and the present attempt.

        `named_from` must be of an epoch that is complete in that journal.
        """
        return ObservedTree(known, self._all_references(known), attempt=attempt, named_from=named_from)

    def forget(self, epochs: tuple[Epoch, ...]) -> None:
        """Forget the manifests of these epochs, which are removed."""
        for epoch in epochs:
            self._manifests.pop(epoch, None)
            self._restored.pop(epoch, None)

    def _all_references(self, known: JournalState) -> tuple[EpochFiles, ...]:
        manifests = ((record.epoch, self._manifests.get(record.epoch)) for record in known.retained)
        return tuple(EpochFiles(epoch, None if one is None else one.references()) for epoch, one in manifests)

    # --- free: from any thread ----------------------------------------------------------------------------------------

    def newest_claim(self) -> Generation:
        """Return the generation that has the job now; an error of the store is raised at once."""
        return StoredJournal(self._store, Patience(0)).read().generation

    def delete(self, paths: tuple[str, ...]) -> None:
        """Delete what a removal names, in this order."""
        for path in paths:
            self._store.delete(path)
            reached(fail_points.BLOB_REMOVED)

    def sweep(self, observed: ObservedTree, go_on: Callable[[], bool]) -> Swept:
        """Delete orphans, as long as `go_on` says so. Doing it again does no harm.

        The tree is listed once; `observed` must be older than that.
        """
        sizes = {info.path: info.size for folder in (EPOCHS, SHARED) for info in self._store.list(folder)}
        found = classify(replace(observed, found=tuple(sizes)))
        files = size = 0
        for path in found.of(Fate.ORPHANED):
            if not go_on():
                break
            self._store.delete(path)
            reached(fail_points.ORPHAN_DELETED)
            files, size = files + 1, size + sizes[path]
        unfinished = self._store.remove_leftovers() if go_on() else 0
        return Swept(files, size, unfinished, len(found.of(Fate.UNEXPLAINED)))

    def compact(self, state: JournalState, carried_out: int) -> None:
        """Let the journal begin at this state; removals up to `carried_out` are done."""
        self._brief_journal.compact(state, carried_out)


def propose(journal: StoredJournal, writer: JournalWriter, body: Body) -> Outcome:
    """Bring the entry into the journal; raise `JournalInDoubt` if the store leaves open whether it is there."""
    try:
        return journal.propose(writer, fresh_nonce(), body)
    except BlobStoreError as error:
        raise JournalInDoubt(
            f"the store did not say whether {body} is in the journal now, as often as it was asked (option "
            f"store_patience); start the job again when the store works: {error}"
        ) from error


def note_end(store: BlobStore, state: JournalState) -> None:
    """Note how far the journal has come, and remove the notes of earlier ends."""
    end = EndNoted(state.number)
    store.write(path_of(end), b"{}\n")  # its name says it all
    for info in store.list(EPOCHS):
        before = parse(info.path)
        if isinstance(before, EndNoted) and before < end:
            store.delete(info.path)


def read_broadcast(store: BlobStore, manifest: Manifest) -> dict[Uid, bytes]:
    """Return the broadcast state that an epoch refers to; raise `DamagedBroadcast` if it is not as it was written."""
    found: dict[Uid, bytes] = {}
    for operator in manifest.operators:
        match operator.broadcast:
            case Inline(data):
                found[operator.uid] = data
            case StoredFile() as file:
                found[operator.uid] = _read(store, file, manifest.epoch)
            case None:
                pass
    return found


class DamagedBroadcast(StoreError):
    """The broadcast state of an epoch is not as it was written: a file at `path`, and what is wrong with it."""

    def __init__(self, epoch: Epoch, path: str, fault: str) -> None:
        super().__init__(f"epoch {epoch} refers to {path}, and {fault}")
        self.path = path
        self.fault = fault


def _read(store: BlobStore, file: StoredFile, epoch: Epoch) -> bytes:
    try:
        data = store.read(file.path)
    except BlobNotFound as error:
        raise DamagedBroadcast(epoch, file.path, "it is not there") from error
    if checksum_of(data) != file.checksum:
        raise DamagedBroadcast(
            epoch, file.path, f"its content has {checksum_of(data)}, and {file.checksum} was written"
        )
    return data


def checksum_of(data: bytes) -> str:
    """Return the checksum of a file that the driver writes."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def _beyond(publish: Publish[Acknowledgement]) -> Partition:
    """Return the number under which the driver writes files, which no partition of the attempt has."""
    return Partition(len(publish.contents))
