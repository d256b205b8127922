"""An observer that sees all that a simulated job does to its store and its target, and holds it to its promises.

Invariant: it knows the journal as it truly is, and goes by what is written, shown and deleted alone, not by what the
driver or a partition believes. It objects in the moment in which a promise is broken, but for what complete epochs
hold, which `check_cuts` reads when the history is over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from recovery.decisions.restarts import Cause
from recovery.events import AnyEvent, AttemptFailed, GaveUp
from recovery.testing.checks.cut import EpochFacts
from recovery.testing.checks.journal import JournalTruth
from recovery.testing.programs.drawn import DrawnProgram
from recovery.testing.programs.target import Shown
from recovery.testing.programs.truth import Terms
from snapshot.cut.frames import LATEST
from snapshot.epochs.transaction_events import Committable
from snapshot.ids import TransactionId
from snapshot.journal.entries import Claimed, Committed, Completed, Entry, Rewound
from snapshot.testing.history import Violation
from snapshot.tree.frozen_json import NULL
from snapshot.tree.layout import ManifestFile, SharedFile, parse
from snapshot.tree.manifest import CommitPayload, Manifest, OperatorSnapshot
from snapshot.tree.manifest_json import decode, digest
from statebackend.ids import Epoch, Generation, Incarnation, Uid

MEANT: Final = "as the simulation likes"
"""Part of the message of every error that a simulation raises in user functions and sources."""


@dataclass(frozen=True, slots=True)
class CompleteEpoch:
    """An epoch in the moment in which it was complete: its manifest, and the bytes of its files."""

    path: str
    manifest: Manifest
    blobs: Mapping[str, bytes]


@dataclass(frozen=True, slots=True)
class Sweep:
    """A driver begins to look for what attempts before its own have left, after so many writes to the store."""

    attempt: Incarnation
    newest_complete: Epoch
    writes: int

    def finds(self, path: str) -> bool:
        """True if an object is of an attempt that was over then."""
        match parse(path):
            case SharedFile(incarnation):
                return incarnation < self.attempt
            case ManifestFile(epoch):
                passed = epoch.number <= self.newest_complete.number
                return passed or epoch.generation < self.attempt.generation
            case _:
                return False


@dataclass(slots=True)
class Met:
    """The events of a history, counted, for the record of what was explored."""

    epochs: int = 0
    generations: int = 0
    removed: int = 0
    rewound: int = 0
    shown: int = 0
    savepoints: int = 0


class JobObserver:
    """The truth about one simulated job. `exactly_once` is false in at-least-once mode: then only losses are errors.

    `objects` is what the store has; it is set when there is a store.
    """

    def __init__(self, drawn: DrawnProgram, *, exactly_once: bool = True) -> None:
        self._drawn = drawn
        self._exactly_once = exactly_once and drawn.exactly_once
        self.drained = False
        """True if the job was ever told to drain."""
        self.accepting: dict[str, bool] = {}
        """True for each driver, by the name of its process, that was told that output may be made again."""
        self.lost: set[str] = set()
        """The manifests that the store has lost, so that a removal could not say what belonged to their epochs."""
        self.objects: Mapping[str, bytes] = {}
        self.journal = JournalTruth()
        self.completed: list[Epoch] = []
        """The complete epochs that were not given up."""
        self.epochs: dict[Epoch, CompleteEpoch] = {}
        self.met = Met()
        self.objected: Callable[[AssertionError], object] = lambda _: None
        """Called with what the job itself would otherwise take for an error of its target or its store."""
        self._writes: dict[str, int] = {}
        """The number of writes before each object was last written."""
        self._sweep: Sweep | None = None
        """The last look of a driver for leftovers that came to its end."""
        self._committable: set[TransactionId] = set()
        self._committed: set[TransactionId] = set()
        self._given_up: set[TransactionId] = set()
        drawn.target.observe = lambda shown: self.held(lambda: self._showing(shown))

    def held(self, check: Callable[[], object]) -> None:
        """Make a check whose objection the job must not hear alone."""
        try:
            check()
        except AssertionError as violation:
            self.objected(violation)
            raise

    def listing(self, folder: str, *, by: str) -> None:
        """Observe that a process asks which objects there are: that changes nothing."""

    # --- what the store is told to do ---------------------------------------------------------------------------------

    def creating(self, path: str, data: bytes, *, by: str) -> None:
        """Observe that an object is about to be created, where there is none."""
        entry = self.journal.creating(path, data, self.objects)
        if entry is not None:
            self._entered(entry, by)

    def writing(self, path: str, data: bytes, existing: bytes | None, *, by: str) -> None:
        """Observe that an object is about to be written, over `existing` if there is one."""
        if existing is not None and existing != data:
            raise Violation(f"{by} overwrites {path}")
        self._writes[path] = len(self._writes)

    def deleting(self, path: str, *, by: str) -> None:
        """Observe that an existing object is about to be deleted: no retained epoch may need it."""
        self.journal.deleting(path, self.objects)
        for record in self.journal.state.retained:
            if path == record.manifest or path in self.epochs[record.epoch].blobs:
                raise Violation(f"{by} deletes {path}, and epoch {record.epoch} needs it")

    def _entered(self, entry: Entry, by: str) -> None:
        match entry.body:
            case Claimed():
                self.met.generations += 1
            case Completed():
                self._completed(entry.body)
            case Committed(epoch=epoch):
                self._check_committed(epoch)
            case Rewound():
                self._went_back(entry.body, by)
            case _:
                pass

    # --- an epoch is complete -----------------------------------------------------------------------------------------

    def _completed(self, body: Completed) -> None:
        data = self.objects.get(body.manifest)
        if data is None or digest(data) != body.digest:
            raise Violation(f"epoch {body.epoch} is complete without its manifest")
        manifest = decode(data, body.manifest)
        missing = [path for path in manifest.references() if path not in self.objects]
        if missing:
            raise Violation(f"epoch {body.epoch} is complete and names {missing}, which the store does not have")
        self._check_output_is_carried(manifest)
        self._check_time(manifest)
        self.completed.append(body.epoch)
        blobs = {path: self.objects[path] for path in manifest.references()}
        self.epochs[body.epoch] = CompleteEpoch(body.manifest, manifest, blobs)
        self._committable |= _transactions(manifest)
        self.met.epochs += 1

    def _check_output_is_carried(self, manifest: Manifest) -> None:
        """Check that what earlier epochs carry is committed, or carried by this one: nothing else would commit it."""
        dropped = self._committable - self._committed - self._given_up - _transactions(manifest)
        if dropped:
            raise Violation(f"epoch {manifest.epoch} does not carry {sorted(dropped)}, which is not committed")

    def _check_time(self, manifest: Manifest) -> None:
        """Check that event time does not go back in an operator, nor is lost, from one complete epoch to the next."""
        if not self.completed:
            return
        before = self.epochs[self.completed[-1]].manifest
        known = _times(before)
        for uid, now in _times(manifest).items():
            if now < known.get(uid, now):
                raise Violation(f"epoch {manifest.epoch} has {uid} at the time {now}; it was at {known[uid]} before")
        goes_on = {operator.uid for operator in before.operators if operator.uid in known and not _ends(operator)}
        for operator in manifest.operators:
            if operator.uid in goes_on and any(one.watermark is None for one in operator.subtasks):
                raise Violation(f"epoch {manifest.epoch} does not know the time of {operator.uid} any more")

    def _check_committed(self, epoch: Epoch) -> None:
        """Check that what is journalled as committed is: the rest would be lost once the epoch is removed."""
        carried = (_transactions(self.epochs[one].manifest) for one in self.completed if one <= epoch)
        missing = frozenset().union(*carried) - self._committed - self._given_up
        if missing:
            raise Violation(f"epoch {epoch} is journalled as committed, and {sorted(missing)} is not")

    def _went_back(self, body: Rewound, by: str) -> None:
        """Give epochs up, whose output is made again, if that was accepted."""
        again = {
            one.transaction
            for epoch in self.completed
            for one in _committables(self.epochs[epoch].manifest)
            if one.sealed_in > body.to
        }
        if again and not self.accepting.get(by):
            raise Violation(f"the job goes back to {body.to} and repeats {sorted(again)}, which was not accepted")
        self._given_up |= again
        self.met.rewound += 1
        self.completed = [epoch for epoch in self.completed if epoch <= body.to]

    # --- what the target is told to do --------------------------------------------------------------------------------

    def _showing(self, shown: Shown) -> None:
        """Check that rows that become visible are carried by a complete epoch, and become visible once."""
        self.met.shown += len(shown.rows)
        if shown.transaction is None:
            return
        if shown.transaction in self._committed:
            raise Violation(f"transaction {shown.transaction} is committed twice, with {len(shown.rows)} rows")
        if shown.transaction not in self._committable:
            raise Violation(f"transaction {shown.transaction} is committed, and no complete epoch carries it")
        self._committed.add(shown.transaction)

    # --- what the driver reports --------------------------------------------------------------------------------------

    def heard(self, event: AnyEvent, *, generation: Generation | None) -> None:
        """Check that the driver that has the job reports no failure that only a broken promise explains.

        A driver that has claimed nothing yet has no generation, and may fail to.
        """
        if generation is None or generation != self.journal.state.generation:
            return
        match event:
            case AttemptFailed(cause=Cause.UNUSABLE.value, reason=reason):
                raise Violation(f"an attempt cannot be restored: {reason}")
            case AttemptFailed(cause=Cause.PROGRAM.value, reason=reason) if MEANT not in reason:
                raise Violation(f"a function fails: {reason}\n{event.traceback}")
            case AttemptFailed(cause=Cause.FORGED.value, reason=reason):
                raise Violation(f"bytes are changed on their way: {reason}")
            case GaveUp(reason=reason) if MEANT not in reason:
                raise Violation(f"the job gives up: {reason}")
            case _:
                pass

    # --- looking for leftovers ----------------------------------------------------------------------------------------

    def sweeping(self, attempt: Incarnation, newest_complete: Epoch) -> Sweep:
        """Observe that a driver, which knows of this epoch, begins to look for what earlier attempts have left."""
        return Sweep(attempt, newest_complete, len(self._writes))

    def swept(self, sweep: Sweep) -> None:
        """Observe that it has looked, and has deleted all that it found."""
        if sweep.attempt.generation == self.journal.state.generation:
            self._sweep = sweep

    # --- the end ------------------------------------------------------------------------------------------------------

    @property
    def _terms(self) -> Terms:
        return Terms(self._exactly_once and not self._given_up, self.drained)

    @property
    def all_is_read(self) -> bool:
        """True if the newest complete epoch has all rows of all sources: a job that was drained may have more to do."""
        newest = self.epochs[self.completed[-1]].manifest if self.completed else None
        operators = {} if newest is None else {operator.uid: operator for operator in newest.operators}
        for uid, source in self._drawn.shape.sources.items():
            subtasks = operators[Uid(uid)].subtasks if Uid(uid) in operators else ()
            ended = {at.split for subtask in subtasks for at in subtask.positions if at.position == NULL}
            if len(ended) < len(source.splits):
                return False
        return True

    def check_cuts(self, scratch: Path) -> None:
        """Check what each complete epoch holds. `scratch` is a local folder that is used, and emptied."""
        plan = self._drawn.plan
        for epoch, found in self.epochs.items():
            facts = EpochFacts(found.manifest, plan, found.blobs, scratch / str(epoch))
            try:
                self._drawn.shape.check_cut(facts, self._terms)
            except Violation:
                raise
            except Exception as error:
                raise Violation(f"epoch {epoch} cannot be read: {type(error).__name__}: {error}") from error
            finally:
                facts.close()

    def check_end(self, *, complete: bool) -> None:
        """Check the output and the files when the history is over; `complete` if the job came to its end by itself."""
        self._drawn.shape.check_output(self._drawn.output, self._terms, complete=complete)
        state = self.journal.state
        if complete and (waiting := self._committable - self._committed - self._given_up):
            raise Violation(f"the job is over, and {sorted(waiting)} was never committed")
        for record in state.retained:
            kept = self.epochs[record.epoch]
            if any(self.objects.get(path) != data for path, data in kept.blobs.items()):
                raise Violation(f"epoch {record.epoch} cannot be restored any more: its files are gone or changed")
        self._check_leaks()

    def _check_leaks(self) -> None:
        """Check that nothing is left that the last look for leftovers should have found."""
        sweep, retained, removals = self._sweep, self.journal.state.retained, self.journal.state.removals
        needed = {record.manifest for record in retained}
        needed.update(*(self.epochs[record.epoch].blobs for record in retained))
        needed.update(*((*removal.files, *removal.manifests) for removal in removals))  # they may go at any time
        needed.update(*(kept.blobs for kept in self.epochs.values() if kept.path in self.lost))
        if sweep is None:
            return
        for path in self.objects:
            if path not in needed and sweep.finds(path) and self._writes.get(path, sweep.writes) < sweep.writes:
                raise Violation(f"no epoch refers to {path}, which was there when attempt {sweep.attempt} looked")


def _committables(manifest: Manifest) -> Iterator[Committable[CommitPayload]]:
    for operator in manifest.operators:
        for subtask in operator.subtasks:
            yield from subtask.committables


def _times(manifest: Manifest) -> dict[Uid, int]:
    """Return how far event time is in each operator with state; its end, after which it begins anew, is left out."""
    found: dict[Uid, int] = {}
    for operator in manifest.operators:
        known = [one.watermark.timestamp for one in operator.subtasks if one.watermark is not None]
        if operator.subtasks[0].state is not None and len(known) == operator.parallelism and min(known) < LATEST:
            found[operator.uid] = min(known)
    return found


def _ends(operator: OperatorSnapshot) -> bool:
    """True if event time is at its end in one of the operator's partitions."""
    return any(one.watermark is not None and one.watermark.timestamp >= LATEST for one in operator.subtasks)


def _transactions(manifest: Manifest) -> frozenset[TransactionId]:
    return frozenset(one.transaction for one in _committables(manifest))
