"""From a cut to durable files, in the background: written, linked locally, uploaded, taken by the local backend.

Invariant: the thread that owns the state never waits here for a disk or a store; an epoch is reported durable
only when the store has all its files; the backend takes a delta only after its file is whole and linked; and one
thread writes all files, so that a base is made of a backend that nothing changes meanwhile.

A shadow, a state that does the same as another one elsewhere, the primary, uploads nothing: it holds its deltas in
local files until it hears with which file set of the primary an epoch is complete, and adopts that. A delta of a shadow
refers to no keys that a former cut of its own has kept, as no set that it adopts has those.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from queue import Empty

from statebackend import entries as naming
from statebackend import fail_points, means
from statebackend.backends.backend import Backend, BackendError, LocalDiskError
from statebackend.backends.unused_memory import give_back
from statebackend.errors import StoreError
from statebackend.fail_points import reached
from statebackend.files import FileKind, FileRef, FileSet
from statebackend.ids import NO_EPOCH, Epoch
from statebackend.keygroups import KeyGroupRange, without
from statebackend.snapshots.adoption import Completions
from statebackend.snapshots.consolidation import Consolidate, Merge, Planner, Policy
from statebackend.snapshots.cuttable import Clearable, Cuttable, Frozen
from statebackend.snapshots.ingestion import Due, Ingestion, unmentioned
from statebackend.snapshots.local_files import LocalFiles
from statebackend.snapshots.state_files import NotLinked, StateFiles
from statebackend.snapshots.transfer import UPLOADS_AT_ONCE, Upload, upload_all
from statebackend.snapshots.uploads import Durable, Emptied, Merged, NotDurable, Persisted, Uploads
from statebackend.stores.store import BlobStore
from statebackend.thread_pool import PoolClosed, ThreadPool


class EpochOrder(StoreError, ValueError):
    """A cut for an epoch that is not later than the last one, or than what was restored; nothing was cut."""


@dataclass(slots=True)
class _Delta:
    frozen: Frozen
    writing: bool = False
    written: bool = False
    files: tuple[FileRef, ...] = ()
    """The files of the cut, once they are written; none if nothing had changed."""
    since: Epoch = NO_EPOCH
    """See `Durable`."""
    stored: bool = False
    taken: bool = False
    """True if the backend has it, or takes it as soon as it can."""
    released: bool = False
    given_up: bool = False


@dataclass(frozen=True, slots=True)
class _Written:
    epoch: Epoch
    files: tuple[FileRef, ...]
    since: Epoch
    uploading: _Attempt | None
    """By which its upload was begun; None if it was not."""


@dataclass(frozen=True, slots=True)
class _NotWritten:
    epoch: Epoch
    reason: str


@dataclass(frozen=True, slots=True)
class _Stored:
    epoch: Epoch


@dataclass(frozen=True, slots=True)
class _Failed:
    epoch: Epoch
    reason: str


@dataclass(frozen=True, slots=True)
class _Taken:
    epochs: tuple[Epoch, ...]


@dataclass(frozen=True, slots=True)
class _NotTaken:
    reason: str


@dataclass(frozen=True, slots=True)
class _NotPlanned:
    """Nothing was begun, and a rewriting that is under way is not answered by it."""

    reason: str


@dataclass(frozen=True, slots=True)
class _Rewritten:
    """The rewritten files that are in the store; fewer, or none, if the rewriting failed."""

    changes: Persisted
    epoch: Epoch
    """No epoch before this one may name it."""
    made: tuple[FileRef, ...]
    """All files that were written, also if they are good for nothing now."""
    reason: str | None = None


_Result = _Written | _NotWritten | _Stored | _Failed | _Taken | _NotTaken | _NotPlanned | _Rewritten


@dataclass(frozen=True, slots=True, eq=False)
class _Attempt:
    """The work for the store, which ends with a rewind or another role: none of it begins afterwards, and its later
    results are not heard.
    """

    began: Epoch
    """The newest epoch of which it has begun with files: a backend that lacks that has nothing to replace them with."""
    planner: Planner
    uploaders: ThreadPool


@dataclass(slots=True, eq=False)
class _Rewriting:
    """The key groups that are still to be rewritten, and those that were."""

    steps: deque[Consolidate | Merge]
    epoch: Epoch = NO_EPOCH
    """That of the newest step."""
    bases: list[FileRef] = field(default_factory=list)
    emptied: list[Emptied] = field(default_factory=list)
    merges: list[Merged] = field(default_factory=list)

    @property
    def made(self) -> tuple[FileRef, ...]:
        """Return all files that were made."""
        return (*self.bases, *(merge.file for merge in self.merges))


@dataclass(frozen=True, slots=True)
class _Said:
    result: _Result
    attempt: _Attempt | None
    """By which it was begun; None for what counts in any other, too."""
    delta: _Delta | None = None
    """The cut of which it is, if it counts as long as that was not given up."""


@dataclass(frozen=True, slots=True)
class PersisterStatistics:
    """The work that the background has done and has before it."""

    epochs_pending: int
    uploaded_bytes: int
    bases: int
    merges: int
    trouble: str | None
    """The last fault in work that no epoch waits for; the work is tried again."""


class Persister:
    """The background of one partition's keyed state, until it is closed.

    One thread owns it and calls all methods. `wake`, if given, is called from background threads whenever there is
    something for `poll` to find. A crash at any point leaves in the store files that no complete epoch names.
    """

    def __init__(
        self,
        state: Cuttable,
        backend: Backend,
        restored: FileSet,
        files: StateFiles,
        *,
        store: BlobStore,
        local: LocalFiles,
        policy: Policy,
        wake: Callable[[], None] | None = None,
        unused: int | None = None,
    ) -> None:
        """Begin with the restored files.

        If `unused` is given, unused memory of more bytes than that goes back to the system after a cut.
        """
        self._state = state
        self._backend = backend
        self._files = files
        self._store = store
        self._local = local
        self._wake = wake
        self._unused = unused
        self._policy = policy
        self._uploads = Uploads(restored)
        self._is_primary = True
        self._alone = False
        """True if the next cut may not refer to keys that a former one has kept: no adopted set has them."""
        self._completions = Completions()
        self._newest_complete = max((file.epoch for file in restored.files), default=NO_EPOCH)
        self._deltas: dict[Epoch, _Delta] = {}
        self._groups = restored.range
        self._linked = {file.path: file for file in restored.files}
        self._heard_of = set(self._linked)
        self._last_cut = max((file.epoch for file in restored.files), default=None)
        self._behind = False
        self._handed_up_to = NO_EPOCH
        self._rewritten: _Rewritten | None = None
        self._rewritten_size = 0
        self._rewrite_due: Epoch | None = None
        self._rewriting_since: Epoch | None = None
        """From the begin of a rewriting until its files are in a set, or are given up: an epoch that was cut before it.
        Only the thread for the disk has it."""
        self._uploaded_bytes = self._bases = self._merges = 0
        self._trouble: str | None = None
        self._counting = means.Lock()
        self._results: means.SimpleQueue[_Said] = means.SimpleQueue()
        self._disk = ThreadPool(1, "epochcut-disk")
        self._attempt = self._new_attempt(restored)
        self._ingestion = Ingestion(backend, files, restored.range, self._attempt.began)

    def _new_attempt(self, files: FileSet) -> _Attempt:
        began = max((file.epoch for file in files.files), default=NO_EPOCH)
        return _Attempt(began, Planner(self._policy, began), ThreadPool(UPLOADS_AT_ONCE, "epochcut-upload"))

    @property
    def files(self) -> FileSet:
        """Return all files that are durable without a gap."""
        return self._uploads.files

    def statistics(self) -> PersisterStatistics:
        """Return what was done so far."""
        return PersisterStatistics(len(self._deltas), self._uploaded_bytes, self._bases, self._merges, self._trouble)

    # --- called by the owner of the state -----------------------------------------------------------------------------

    def cut(self, epoch: Epoch) -> None:
        """Make the state as it is now the epoch's; everything else happens in the background. Takes milliseconds.

        Raise `EpochOrder` if the epoch does not follow on the last one: a declined epoch is not cut again, the next one
        is.
        """
        last = self._last_cut
        if last is not None and (epoch <= last or epoch.number <= last.number):
            raise EpochOrder(f"epoch {epoch} cannot be cut after {last}: epochs rise, and their numbers with them")
        self._last_cut = epoch
        alone = self._alone or not self._is_primary or bool(self._completions)
        self._deltas[epoch], self._alone = _Delta(self._state.freeze(epoch.number, alone=alone)), False
        reached(fail_points.DELTA_FROZEN)
        for due in self._uploads.freeze(epoch):
            self._persist(due.epoch, self._deltas[due.epoch])

    def _persist(self, epoch: Epoch, delta: _Delta) -> None:
        if not delta.written:
            if not delta.writing:  # else it is seen to when it is written
                delta.writing = True
                self._disk.submit(partial(self._write, self._attempt if self._is_primary else None, epoch, delta))
        elif self._is_primary:
            self._begin_upload(self._attempt, epoch, delta.files)
        else:
            self._uploads.hold(epoch)

    def become_shadow(self) -> None:
        """Upload nothing from now on, but hold it: the primary does the same, and `completed` brings its files.

        What is on its way into the store is given up, and not reported.
        """
        if self._is_primary:
            self._is_primary = False
            self._end_attempt(self._uploads.files)
            self._disk.submit(self._forget_rewriting)
            for epoch, delta in self._deltas.items():
                if delta.written:
                    self._uploads.hold(epoch)

    def become_primary(self) -> None:
        """Upload from the next cut on, and with it what is held and no adopted set has."""
        if not self._is_primary:
            self._is_primary = True
            self._end_attempt(self._uploads.files)

    def _end_attempt(self, files: FileSet) -> None:
        ended, self._attempt = self._attempt, self._new_attempt(files)
        ended.uploaders.close(drop=True)
        self._rewritten, self._rewritten_size, self._rewrite_due = None, 0, None

    def poll(self, timeout: float = 0) -> list[Durable | NotDurable]:
        """Return what became of epochs since the last call.

        It waits up to `timeout` seconds for the first news of any kind.
        """
        answers: list[Durable | NotDurable] = []
        if not timeout and self._results.empty():  # as it nearly always is, and an exception costs more
            return answers
        with suppress(Empty):
            answers += self._hear(self._results.get(block=timeout > 0, timeout=timeout or None))
            while True:
                answers += self._hear(self._results.get_nowait())
        return answers

    def _hear(self, said: _Said) -> Sequence[Durable | NotDurable]:
        if said.attempt not in (None, self._attempt) or (said.delta is not None and said.delta.given_up):
            return ()
        return self._handle(said.result)

    def completed(self, epoch: Epoch, files: FileSet | None = None) -> None:
        """Note that the epoch is complete: no rollback goes back beyond it. Its changes go into the backend.

        `files` is the set with which it is complete, if that may be another state's. It is adopted as soon as what was
        cut here up to the epoch is in local files, if need be not before the epoch is cut here.
        """
        if files is None or self._uploads.reported(epoch) == files:
            self._complete(epoch)
        elif epoch > self._newest_complete:
            self._completions.come(epoch, files)
            self._adopt()

    def _adopt(self) -> None:
        """Adopt the sets that need wait no longer."""
        unwritten = next((epoch for epoch, delta in self._deltas.items() if not delta.written), None)
        for epoch, files in self._completions.due(self._last_cut, unwritten):
            if not self._uploads.has_reported_since(epoch):
                self._uploads.adopt(epoch, files)
                self._alone = True
                for known in [known for known in self._deltas if known <= epoch]:
                    self._deltas[known].stored = True
                    self._settle(known)
            self._complete(epoch)

    def _complete(self, epoch: Epoch) -> None:
        self._newest_complete = max(self._newest_complete, epoch)
        self._state.completed(epoch.number)
        self._uploads.completed(epoch)
        self._take(epoch)
        pinned = self._uploads.pinned() | self._not_in_a_set()
        gone = self._heard_of - pinned
        self._heard_of -= gone
        self._disk.submit(partial(self._forget, gone))

    def take_early(self) -> None:
        """Bring what was written into the backend although its epoch is not complete, as memory is short."""
        if self._deltas:
            self._take(max(self._deltas))

    def cut_since(self, epoch: Epoch, files: FileSet) -> list[Frozen] | None:
        """Return what was cut after this epoch, whose file set is this one, the oldest first.

        None if there is no way back to it: it was not reported as durable, an epoch after it was completed, the files
        are others than were reported, or the backend takes, or has, what was cut after it. A shadow adopts the files,
        if it has cut the epoch and that is in local files.
        """
        if not self._is_primary:
            self.completed(epoch, files)
        if self._uploads.reported(epoch) != files or self._handed_up_to > epoch:
            return None
        return [delta.frozen for known, delta in self._deltas.items() if known > epoch]

    def rewind(self, epoch: Epoch, files: FileSet, names: Callable[[], str], given_up: Clearable) -> None:
        """Go on from this epoch, which is complete; `cut_since` has said that there is a way back to it.

        The caller owes that the state is as it was then. Cuts since then are cleared in the background, and so is
        `given_up`. Uploads under way are left to themselves.
        """
        self._end_attempt(files)
        self._completions.forget()
        self._newest_complete = max(self._newest_complete, epoch)
        for later in [known for known in self._deltas if known > epoch]:
            delta = self._deltas.pop(later)
            delta.given_up = True
            self._disk.submit(delta.frozen.clear)
        self._disk.submit(given_up.clear)
        self._uploads = Uploads(files)
        self._last_cut = max(epoch, self._last_cut or epoch)
        self._take(epoch)
        waiting = [file for delta in self._deltas.values() for file in delta.files]
        linked = {file.path: file for file in (*files.files, *waiting)}
        self._heard_of = set(linked)
        self._disk.submit(partial(self._begin_anew, linked, names))

    def close(self, *, leave_uploads: bool = False) -> None:
        """Stop the background: writes and uploads under way are finished, those that wait are given up.

        With `leave_uploads` the uploads under way are not waited for; they come to an end unheard.
        """
        self._disk.close(drop=True, wait=True)
        self._attempt.uploaders.close(drop=True, wait=not leave_uploads)
        self._files.close()

    def _take(self, up_to: Epoch) -> None:
        due: list[Due] = []
        for epoch, delta in self._deltas.items():
            if epoch > up_to or not delta.written:
                break
            if not delta.taken:
                delta.taken, self._handed_up_to = True, epoch
                due.append(Due(epoch, delta.files, delta.frozen.renews))
        if due or self._behind:
            self._behind = False
            self._disk.submit(partial(self._ingest, due))

    def _not_in_a_set(self) -> set[str]:
        files = [file for delta in self._deltas.values() for file in delta.files]
        made = self._rewritten.made if self._rewritten is not None else ()
        return {file.path for file in (*files, *made)}

    def _handle(self, result: _Result) -> Sequence[Durable | NotDurable]:
        match result:
            case _Written(epoch, files, since, uploading):
                self._written(epoch, files, since, uploading)
            case _NotWritten(epoch, reason):
                self._deltas[epoch].writing = False
                return self._uploads.failed(epoch, reason)
            case _Stored(epoch):
                return self._stored(epoch)
            case _Failed(epoch, reason):
                return self._uploads.failed(epoch, reason) if self._uploads.awaits(epoch) else ()
            case _Taken(epochs):
                for epoch in epochs:
                    delta = self._deltas[epoch]
                    self._state.release(delta.frozen)
                    delta.released = True
                    self._disk.submit(delta.frozen.clear)
                    self._settle(epoch)
            case _NotTaken(reason):
                self._trouble, self._behind = reason, True
            case _NotPlanned(reason):
                self._trouble = reason
            case _Rewritten():
                self._rewritten = result
                self._heard_of.update(file.path for file in result.made)
                self._trouble = result.reason or self._trouble
        return ()

    def _written(self, epoch: Epoch, files: tuple[FileRef, ...], since: Epoch, uploading: _Attempt | None) -> None:
        delta = self._deltas[epoch]
        delta.writing, delta.written, delta.files, delta.since = False, True, files, since
        self._heard_of.update(file.path for file in files)
        if uploading is not self._attempt:  # it was cut in another role
            self._uploads.hold(epoch, uploading=self._is_primary)
            if self._is_primary:
                self._begin_upload(self._attempt, epoch, files)
        self._adopt()

    def _stored(self, epoch: Epoch) -> list[Durable]:
        if not self._uploads.awaits(epoch):
            return []
        delta = self._deltas[epoch]
        delta.stored = True
        changes = _changes(delta, self._groups)
        rewritten = self._rewritten
        if rewritten is not None and rewritten.epoch <= epoch:
            also = rewritten.changes
            files, emptied = (*changes.files, *also.files), (*changes.emptied, *also.emptied)
            changes = replace(changes, files=files, emptied=emptied, merged=also.merged)
            self._rewritten, self._rewrite_due = None, epoch
            self._rewritten_size = sum(file.size for file in also.files)
            self._bases += len(also.files)
            self._merges += len(also.merged)
        durable = self._uploads.persisted(epoch, changes)
        if durable:
            newest = durable[-1].epoch
            self._consider(newest, sum(_size_of(self._deltas.get(one.epoch)) for one in durable))
        self._settle(epoch)
        return durable

    def _settle(self, epoch: Epoch) -> None:
        """Forget a delta that is in the store and in the backend."""
        delta = self._deltas[epoch]
        if delta.stored and delta.released:
            del self._deltas[epoch]

    def _consider(self, epoch: Epoch, changed: int) -> None:
        """Ask the planner whether files should be rewritten, now that so many bytes have come into the set."""
        answered = None
        if self._rewrite_due is not None and self._rewrite_due <= epoch:
            answered, self._rewrite_due = self._rewritten_size, None
        cut, files = self._last_cut or epoch, self._uploads.files
        self._disk.submit(partial(self._plan, self._attempt, cut, files, changed, answered))

    # --- in the background: one thread for the disk -------------------------------------------------------------------
    # Whatever goes wrong is told, or an epoch would wait for ever; a panic in RocksDB's library is no `Exception`.

    def _tell(self, result: _Result, attempt: _Attempt | None = None, delta: _Delta | None = None) -> None:
        self._results.put(_Said(result, attempt, delta))
        if self._wake is not None:
            with suppress(Exception):  # `poll` finds it all the same, and what comes next must be done
                self._wake()

    def _write(self, attempt: _Attempt | None, epoch: Epoch, delta: _Delta) -> None:
        """Write what was cut, and begin its upload if an attempt is given."""
        if delta.given_up:
            return
        frozen = delta.frozen
        try:
            kind = FileKind.BASE if frozen.is_all else FileKind.DELTA
            files = self._files.write_all(frozen.entries(), self._groups, epoch, kind, frozen.size)
            self._linked.update({file.path: file for file in files})
            reached(fail_points.DELTA_WRITTEN)
        except BaseException as error:
            self._tell(_NotWritten(epoch, _text(error)), delta=delta)
            return
        # A rewriting that begins from now on gives its files younger names than the cut of this epoch is.
        since = epoch if self._rewriting_since is None else min(self._rewriting_since, epoch)
        self._tell(_Written(epoch, files, since, attempt), delta=delta)
        frozen.written()  # its uploads may take long, or fail for as long as the store does
        if attempt is not None:
            self._begin_upload(attempt, epoch, files)

    def _begin_upload(self, attempt: _Attempt, epoch: Epoch, files: tuple[FileRef, ...]) -> None:
        try:
            attempt.uploaders.submit(partial(self._upload, attempt, epoch, files))
        except PoolClosed:  # the attempt has ended meanwhile
            return
        except RuntimeError as error:  # there is no thread for it
            self._tell(_Failed(epoch, _text(error)), attempt)

    def _ingest(self, due: Sequence[Due]) -> None:
        """Bring cuts into the backend. None gets in before an older one that did not: that is tried first."""
        self._ingestion.due.extend(due)
        taken: list[Epoch] = []
        reason = None
        try:
            reached(fail_points.BEFORE_INGEST)
            while self._ingestion.due:
                taken.append(self._ingestion.take_next())
            reached(fail_points.AFTER_INGEST)
        except BaseException as error:
            listed = ", ".join(str(cut.epoch) for cut in self._ingestion.due)
            reason = f"epochs {listed} did not get into the local backend: {_text(error)}"
        if taken:
            self._tell(_Taken(tuple(taken)))
        if reason is not None:
            self._tell(_NotTaken(reason))
        if self._unused is not None:
            give_back(self._unused)

    def _plan(self, attempt: _Attempt, cut: Epoch, files: FileSet, changed: int, answered: int | None) -> None:
        if attempt is not self._attempt:
            return
        try:
            if answered is not None:
                attempt.planner.answered(answered)
                self._rewriting_since = None
            steps = attempt.planner.changed(files, changed, self._ingestion.taken_up_to)
        except Exception as error:
            reason = f"what to rewrite could not be planned: {_text(error)}"
            self._tell(_NotPlanned(reason), attempt)
            return
        if steps:
            self._rewriting_since = cut
            self._rewrite(attempt, _Rewriting(deque(steps)))

    def _rewrite(self, attempt: _Attempt, rewriting: _Rewriting) -> None:
        """Do one step.

        The next one is a task of its own: neither an epoch's files nor the end of the job need wait for all of them.
        """
        if attempt is not self._attempt:
            return
        reason = None
        epoch = rewriting.epoch = self._ingestion.taken_up_to
        made = len(rewriting.made)
        try:
            self._ingestion.take_waiting()
            if epoch < attempt.began:
                raise BackendError(f"the local backend does not have yet what was cut up to {attempt.began}")
            self._rewrite_one(rewriting)
        except BaseException as error:
            rewriting.steps.clear()
            reason = f"files could not be rewritten at epoch {epoch}: {_text(error)}"
        self._linked.update({file.path: file for file in rewriting.made[made:]})
        if rewriting.steps:
            with suppress(PoolClosed):  # it is being closed
                self._disk.submit(partial(self._rewrite, attempt, rewriting))
            return
        changes = Persisted(tuple(rewriting.bases), tuple(rewriting.emptied), tuple(rewriting.merges))
        with suppress(PoolClosed):  # the attempt has ended meanwhile
            attempt.uploaders.submit(partial(self._upload_rewritten, attempt, changes, epoch, rewriting.made, reason))

    def _rewrite_one(self, rewriting: _Rewriting) -> None:
        match rewriting.steps.popleft():
            case Consolidate(groups):
                base = self._write_base(groups, rewriting.epoch)
                rewriting.bases += [] if base is None else [base]
                empty = without((groups,), () if base is None else base.ranges)
                rewriting.emptied += [Emptied(empty, rewriting.epoch)] if empty else []
            case Merge(run):
                # What is linked no more has been replaced since it was asked for.
                merged = self._files.merged(run) if all(file.path in self._linked for file in run) else None
                if merged is not None:
                    rewriting.merges.append(Merged(frozenset(file.path for file in run), merged))
        if not rewriting.steps:
            reached(fail_points.BASE_WRITTEN)

    def _write_base(self, groups: KeyGroupRange, epoch: Epoch) -> FileRef | None:
        """Write all there is of these groups in the backend as one file, which takes its place there too."""
        live = self._backend.scan(*naming.bounds(groups))
        base = self._files.write(self._state.settled(live, epoch.number), epoch, FileKind.BASE, size=0)
        reached(fail_points.BASE_LINKED)
        with self._files.links(() if base is None else (base,)) as paths:
            self._backend.rebase([groups], paths[0] if paths else None)
        return base

    def _forget(self, paths: set[str]) -> None:
        for path in paths:
            self._linked.pop(path, None)
        with suppress(LocalDiskError):  # what stays is removed next time
            self._local.keep(self._linked.values())
            reached(fail_points.LINKS_PRUNED)

    def _forget_rewriting(self) -> None:
        self._rewriting_since = None

    def _begin_anew(self, linked: dict[str, FileRef], names: Callable[[], str]) -> None:
        """Begin the next attempt: links to other files go, whichever attempt has made them."""
        self._files.call_by(names)
        self._linked, self._rewriting_since = linked, None
        self._forget(set())

    # --- in the background: threads for the store ---------------------------------------------------------------------

    def _upload(self, attempt: _Attempt, epoch: Epoch, files: Sequence[FileRef]) -> None:
        try:
            self._put(files)
            reached(fail_points.DELTA_UPLOADED)
        except BaseException as error:
            self._tell(_Failed(epoch, _text(error)), attempt)
            return
        self._tell(_Stored(epoch), attempt)

    def _upload_rewritten(
        self, attempt: _Attempt, changes: Persisted, epoch: Epoch, made: tuple[FileRef, ...], reason: str | None
    ) -> None:
        try:
            self._put(made)
            reached(fail_points.BASE_UPLOADED)
        except BaseException as error:
            changes, reason = Persisted(), f"rewritten files of epoch {epoch} could not be uploaded: {_text(error)}"
        self._tell(_Rewritten(changes, epoch, made, reason), attempt)

    def _put(self, files: Sequence[FileRef]) -> None:
        upload_all(self._store, [Upload(self._local_copy(file), file.path) for file in files])
        with self._counting:
            self._uploaded_bytes += sum(file.size for file in files)

    def _local_copy(self, file: FileRef) -> Path:
        local = self._local.find(file)
        if local is None:
            raise NotLinked(f"the local copy of {file.path} of epoch {file.epoch} has gone before it was uploaded")
        return local


def _changes(delta: _Delta, groups: KeyGroupRange) -> Persisted:
    """Return what an epoch adds; if that is all there is, groups that it does not speak of have nothing else."""
    files = delta.files
    if not files or files[0].kind is FileKind.DELTA:
        return Persisted(files, renews=delta.frozen.renews, since=delta.since)
    empty = unmentioned(files, groups)
    return Persisted(files, (Emptied(empty, files[0].epoch),) if empty else (), since=delta.since)


def _text(error: BaseException) -> str:
    return str(error) or repr(error)


def _size_of(delta: _Delta | None) -> int:
    """Return how many bytes of a delta stay in a backend until a base takes their place."""
    return 0 if delta is None else round(delta.frozen.lasting * sum(file.size for file in delta.files))
