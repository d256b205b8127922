"""From frozen changes to durable file sets: what of a partition's state may be acknowledged.

Invariant: the file set of an epoch is reported only when every file that it names is durable, those of
earlier epochs included, whether these were completed, abandoned or failed. So an abandoned epoch loses nothing: its
delta is in the file set of the next. And nothing that was written from a cut or from files takes their place before
they are durable themselves.

A state that does the same as another one, and uploads nothing, holds its changes until the epoch is complete with the
other one's file set, which it adopts: that has all that was frozen up to there. What was frozen since goes on top.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from statebackend.errors import StoreError
from statebackend.files import FileKind, FileRef, FileSet
from statebackend.ids import NO_EPOCH, Epoch
from statebackend.keygroups import KeyGroupRange, without


@dataclass(frozen=True, slots=True)
class Persist:
    """Write what was frozen for this epoch to the store, in the background; answer with `persisted` or `failed`."""

    epoch: Epoch


@dataclass(frozen=True, slots=True)
class Emptied:
    """A consolidation found no key in these groups at this epoch."""

    ranges: tuple[KeyGroupRange, ...]
    epoch: Epoch


@dataclass(frozen=True, slots=True)
class Merged:
    """A run of deltas that were durable, and the one delta that says the same; see `FileSet.merged`."""

    paths: frozenset[str]
    file: FileRef


@dataclass(frozen=True, slots=True)
class Persisted:
    """The files that are in the store now, and those that the file set may leave out because of them."""

    files: tuple[FileRef, ...] = ()
    """The delta of the epoch, and bases of this epoch or of earlier ones."""
    emptied: tuple[Emptied, ...] = ()
    merged: tuple[Merged, ...] = ()
    renews: bool = False
    """True if the deltas repeat the whole content of those of earlier epochs."""
    since: Epoch = NO_EPOCH
    """See `Durable`."""


class UploadsError(StoreError, ValueError):
    """An answer that would let something count before what it was made of is durable: a bug of the caller."""


@dataclass(frozen=True, slots=True)
class Durable:
    """This is the state at the epoch, and all of it is in the store."""

    epoch: Epoch
    files: FileSet
    since: Epoch = NO_EPOCH
    """The sets of later epochs name, beside files of this one, only files that get their names after this epoch is cut:
    all that has an older name and is not in `files` has been left out for good."""


@dataclass(frozen=True, slots=True)
class NotDurable:
    """The epoch must be declined; what was frozen for it goes with the next one."""

    epoch: Epoch
    reason: str


@dataclass(slots=True)
class _Frozen:
    settled: bool = False
    """True if the epoch's acknowledgement was decided: possible, or declined."""
    failed: bool = False
    changes: Persisted | None = None
    """None until it is durable."""


class Uploads:
    """The frozen changes of one state in one attempt, on top of the file set that it was restored from.

    The caller owes: epochs frozen in rising order, and one answer to every `Persist`. What a consolidation or a merge
    wrote goes with the answer of any epoch. A crash loses this; files that no complete epoch names are then orphans.
    """

    def __init__(self, restored: FileSet) -> None:
        self._files = restored
        self._reached = max((file.epoch for file in restored.files), default=NO_EPOCH)
        self._began = self._reached
        self._first: Epoch | None = None
        self._frozen: dict[Epoch, _Frozen] = {}
        self._restorable: dict[Epoch, FileSet] = {self._reached: restored}
        self._replaced: list[Emptied] = []
        """The groups that were last written whole, or found empty, with the epoch; each group once."""

    @property
    def files(self) -> FileSet:
        """Return all that is durable without a gap: the restored set and what the epochs since then changed."""
        return self._files

    def pinned(self) -> frozenset[str]:
        """Return the paths of files that must stay where they are, also locally.

        They are those of `files`, those that will be in it once earlier epochs are durable, and those of every set
        that a rollback may still go back to: of the newest complete epoch and of all that were reported after it.
        """
        pinned = {file.path for files in (self._files, *self._restorable.values()) for file in files.files}
        for changes in (frozen.changes for frozen in self._frozen.values()):
            if changes is not None:
                pinned.update(file.path for file in changes.files)
                pinned.update(merged.file.path for merged in changes.merged)
        return frozenset(pinned)

    def freeze(self, epoch: Epoch) -> list[Persist]:
        """Note a cut, and return what to persist: for earlier epochs that failed once more, and for this one."""
        failed = [earlier for earlier, frozen in self._frozen.items() if frozen.failed]
        for earlier in failed:
            self._frozen[earlier].failed = False
        self._frozen[epoch] = _Frozen()
        if self._first is None:
            self._first = epoch
        return [Persist(due) for due in [*failed, epoch]]

    def persisted(self, epoch: Epoch, changes: Persisted) -> list[Durable]:
        """Note that the changes frozen for this epoch are in the store, and whatever was rewritten meanwhile.

        Raise `UploadsError` if a base or an emptying is of a later epoch than this one, or a merge of files that are
        not durable yet. It takes effect together with this epoch, so after all earlier ones. A base may be older than
        another base or an emptying that has replaced some of its groups meanwhile: it is not valid there, and if that
        is everywhere it is left out.
        """
        rewritten = [*((file.path, file.epoch) for file in changes.files)]
        rewritten += [(f"the emptying of {emptied.ranges}", emptied.epoch) for emptied in changes.emptied]
        for what, made in rewritten:
            if made > epoch:
                raise UploadsError(f"{what} is of epoch {made} and cannot come with the earlier epoch {epoch}")
        for merged in changes.merged:
            if merged.file.epoch > self._reached:
                raise UploadsError(
                    f"{merged.file.path} merges files up to epoch {merged.file.epoch}, but only those up to "
                    f"{self._reached} are durable; merge files of `files` alone"
                )
        self._frozen[epoch].changes = changes
        return self._report()

    def completed(self, epoch: Epoch) -> None:
        """Unpin files that only earlier epochs need, as no rollback goes further back than to this one."""
        kept = max((known for known in self._restorable if known <= epoch), default=epoch)
        for earlier in [known for known in self._restorable if known < kept]:
            del self._restorable[earlier]

    def reported(self, epoch: Epoch) -> FileSet | None:
        """Return the set that was reported for an epoch; for one before all that were frozen, the set it began with.

        None if that was never known, or no rollback goes back so far.
        """
        if self._first is not None and epoch >= self._first:
            return self._restorable.get(epoch)
        return self._restorable.get(self._began) if epoch >= self._began else None

    def failed(self, epoch: Epoch, reason: str) -> list[NotDurable]:
        """Note that this epoch's changes are not durable: neither it nor a later epoch can be acknowledged now."""
        self._frozen[epoch].failed = True
        declined = [later for later, frozen in self._frozen.items() if later >= epoch and not frozen.settled]
        for later in declined:
            self._frozen[later].settled = True
        return [NotDurable(later, f"persisting what epoch {epoch} changed failed: {reason}") for later in declined]

    def hold(self, epoch: Epoch, *, uploading: bool = False) -> None:
        """Note that this epoch is not to be reported; its changes go with the next one, unless they are `uploading`."""
        frozen = self._frozen.get(epoch)
        if frozen is not None and frozen.changes is None:
            frozen.settled, frozen.failed = True, not uploading

    def awaits(self, epoch: Epoch) -> bool:
        """True if this epoch's changes are not durable yet, and no file set was adopted that has them."""
        frozen = self._frozen.get(epoch)
        return frozen is not None and frozen.changes is None

    def has_reported_since(self, epoch: Epoch) -> bool:
        """True if `files` has changes that were frozen after this epoch."""
        return self._reached > epoch

    def adopt(self, epoch: Epoch, files: FileSet) -> None:
        """Go on from the set with which this epoch is complete, which another state of the same content has reported.

        The caller owes that all up to the epoch was frozen here, nothing after it was reported, and that what was
        frozen after it refers to no file of this state's own.
        """
        for known in [known for known in self._frozen if known <= epoch]:
            del self._frozen[known]
        self._files = files
        self._reached = self._began = epoch
        self._first = None if self._first is None else epoch
        self._restorable = {epoch: files}
        self._replaced = []

    def _report(self) -> list[Durable]:
        durable: list[Durable] = []
        for epoch, frozen in list(self._frozen.items()):
            if frozen.changes is None:
                break
            self._files = self._apply(frozen.changes)
            self._reached = epoch
            del self._frozen[epoch]
            if not frozen.settled:
                self._restorable[epoch] = self._files
                durable.append(Durable(epoch, self._files, frozen.changes.since))
        return durable

    def _apply(self, changes: Persisted) -> FileSet:
        files = self._files.renewed() if changes.renews else self._files
        for file in sorted(changes.files, key=lambda file: file.restore_order):
            if file.kind is FileKind.DELTA:
                files = files.added(file)
            elif valid := self._replace(file.ranges, file.epoch):
                files = files.consolidated(replace(file, ranges=valid))
        for emptied in changes.emptied:
            files = files.emptied(self._replace(emptied.ranges, emptied.epoch), emptied.epoch)
        for merged in changes.merged:
            files = files.merged(merged.paths, merged.file)
        return files

    def _replace(self, ranges: tuple[KeyGroupRange, ...], epoch: Epoch) -> tuple[KeyGroupRange, ...]:
        """Note that these groups were written anew at this epoch; return those where that is the newest."""
        for newer in self._replaced:
            if newer.epoch > epoch:
                ranges = without(ranges, newer.ranges)
        older = [Emptied(without(known.ranges, ranges), known.epoch) for known in self._replaced]
        self._replaced = [known for known in [*older, Emptied(ranges, epoch)] if known.ranges]
        return ranges
