"""An observer that sees everything in a simulated job and raises an error when a promise is broken.

Invariant: it knows the journal as it truly is, entry by entry in the order of their creation, and looks at every epoch
in the moment in which it becomes complete: whether all that it names is there, and whether it is a state that a
sequential run could have been in. When the job goes back it knows which output is made once more, whatever the journal
has forgotten, and whether that was accepted.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from itertools import pairwise

from recovery.testing.manifests import (
    committables_of,
    in_flight_of,
    positions_of,
    splits_of,
    transactions_of,
    window_parts_of,
)
from recovery.testing.stream import RecordId, Row, Stream
from recovery.testing.truth import JournalTruth
from recovery.testing.windows import FIRED, IDS, TIMER, WINDOW, State, StateFile, StateKey, load
from snapshot.ids import TransactionId
from snapshot.journal.entries import Committed, Completed, Entry, Rewound
from snapshot.journal.state import OutputMade
from snapshot.testing.checkers import check_exactly_once
from snapshot.testing.history import Violation
from snapshot.tree.layout import ManifestFile, SharedFile, parse
from snapshot.tree.manifest import Manifest
from snapshot.tree.manifest_json import decode, digest
from statebackend.ids import NO_EPOCH, Epoch, Generation, Incarnation


@dataclass(frozen=True, slots=True)
class Sweep:
    """A driver has begun to delete what attempts before this one have left, after so many writes to the store.

    It is `blind` while it cannot read the manifest of an epoch that is kept, whose files are unknown then.
    """

    attempt: Incarnation
    newest_complete: Epoch
    writes: int
    blind: bool

    def finds(self, path: str) -> bool:
        """True if an object is of an attempt that was over then, unless it was written later."""
        match parse(path):
            case _ if self.blind:
                return False
            case SharedFile(incarnation):
                return incarnation < self.attempt
            case ManifestFile(epoch):
                is_passed = epoch.number <= self.newest_complete.number
                return epoch.generation < self.attempt.generation or is_passed
            case _:
                return False


class Observer(JournalTruth):
    """The truth about one simulated job. `exactly_once` is false in at-least-once mode: then only losses are errors."""

    def __init__(self, stream: Stream, *, exactly_once: bool) -> None:
        super().__init__()
        self._stream = stream
        self._exactly_once = exactly_once
        self.rows: list[Row] = []
        """The rows that readers of the target see."""
        self.completed: list[Epoch] = []
        """The complete epochs that were not given up."""
        self.asked = 0
        """The number of questions whether output may be made once more."""
        self.asked_of_removed = 0
        """The number of these questions about output that the journal alone knew of: no epoch that had it was there any
        more."""
        self._manifests: dict[Epoch, Manifest] = {}
        self._triggered: set[Epoch] = set()
        self._writes: dict[str, int] = {}
        """The number of writes before each of these objects was last written."""
        self._sweep: Sweep | None = None
        self._committable: set[TransactionId] = set()
        self._committed: dict[TransactionId, tuple[Row, ...]] = {}
        self.repeated = 0
        """The number of transactions that were given up after that was accepted: their rows are there once more."""
        self._accepted: set[Rewound] = set()
        self._given_up: set[TransactionId] = set()

    # --- what the store is told to do -----------------------------------------------------------------------------

    def _entered(self, entry: Entry) -> None:
        super()._entered(entry)
        match entry.body:
            case Completed():
                self._completed(entry.body)
            case Committed(epoch=epoch):
                self._check_committed(epoch)
            case Rewound():
                self._went_back(entry.body)
            case _:
                pass

    def _went_back(self, body: Rewound) -> None:
        """Give epochs up, and check that a person has accepted that output of their own is made again."""
        again = {
            one.transaction
            for epoch in self.completed
            for one in committables_of(self._manifests[epoch])
            if one.sealed_in > body.to
        }
        if again and body not in self._accepted:
            raise Violation(f"the job goes back to {body.to} and repeats {sorted(again)}, which was not accepted")
        self._given_up |= again
        self.repeated += len(again)
        self.completed = [epoch for epoch in self.completed if epoch <= body.to]

    def _check_committed(self, epoch: Epoch) -> None:
        """Check that what is journalled as committed is: the rest would be lost once the epoch is removed."""
        carried = (transactions_of(self._manifests[one]) for one in self.completed if one <= epoch)
        missing = frozenset().union(*carried) - self._committed.keys()
        if missing:
            raise Violation(f"epoch {epoch} is journalled as committed, and {sorted(missing)} is not")

    def writing(self, path: str, data: object, existing: object | None) -> None:
        """Record that an object is written, and in which order."""
        super().writing(path, data, existing)
        self._writes[path] = len(self._writes)

    def deleting(self, path: str) -> None:
        """Check that no retained epoch needs an object that is deleted."""
        super().deleting(path)
        for record in self.journal.retained:
            if path == record.manifest or path in self._manifests[record.epoch].references():
                raise Violation(f"{path} is deleted, and epoch {record.epoch} needs it")

    # --- what drivers believe ---------------------------------------------------------------------------------------

    def triggered(self, epoch: Epoch) -> None:
        """Check that the id of an epoch that a driver triggers is new."""
        if epoch in self._triggered:
            raise Violation(f"epoch id {epoch} is used twice")
        self._triggered.add(epoch)

    def sweeping(self, attempt: Incarnation, newest_complete: Epoch, *, blind: bool) -> None:
        """Record that a driver lists the store, to delete what attempts before this one have left."""
        if attempt.generation == self.journal.generation:
            self._sweep = Sweep(attempt, newest_complete, len(self._writes), blind)

    def failed(self, incarnation: Incarnation, reason: str) -> None:
        """Check that nothing of the current generation is missing if a partition could not be restored or go on."""
        if incarnation.generation == self.journal.generation and "is not there" in reason:
            raise Violation(reason)

    def stopped(self, generation: Generation, reason: str) -> None:
        """Check that a coordinator ends its generation for no other reason than a newer claim."""
        if generation == self.journal.generation:
            raise Violation(f"generation {generation} stops: {reason}")

    def asks(self, back: Rewound, told: OutputMade, *, accepts: bool) -> None:
        """Check that a driver that asks to make output once more tells of all of it, and of no more."""
        if back.by != self.journal.generation:
            return  # the job has gone on without it
        self.asked += 1
        course, after = [NO_EPOCH, *self.completed], []
        for before, epoch in pairwise(course):
            newest = max((one.sealed_in for one in committables_of(self._manifests[epoch])), default=NO_EPOCH)
            if epoch > back.to and newest > before:
                after.append(epoch)
        if (told.epochs, told.newest) != (len(after), after[-1] if after else NO_EPOCH):
            raise Violation(f"to go back to {back.to} repeats the output of {after}, and a person is told of {told}")
        self.asked_of_removed += not {record.epoch for record in self.journal.usable} & set(after)
        if accepts:
            self._accepted.add(back)

    # --- what the target is told to do ------------------------------------------------------------------------------

    def committing(self, transaction: TransactionId, rows: tuple[Row, ...]) -> None:
        """Check that a transaction that becomes visible is carried by a complete epoch, and is committed only once."""
        if transaction in self._committed:
            raise Violation(f"transaction {transaction} is committed twice, with {len(rows)} rows")
        if transaction not in self._committable:
            raise Violation(f"transaction {transaction} is committed, and no complete epoch carries it")
        self._committed[transaction] = rows

    # --- an epoch is complete ---------------------------------------------------------------------------------------

    def _completed(self, body: Completed) -> None:
        data = self.objects.get(body.manifest)
        if not isinstance(data, bytes) or digest(data) != body.digest:
            raise Violation(f"epoch {body.epoch} is complete without its manifest")
        manifest = decode(data, body.manifest)
        missing = [path for path in manifest.references() if path not in self.objects]
        if missing:
            raise Violation(f"epoch {body.epoch} is complete and names {missing}, which the store does not have")
        self._check_output_is_carried(manifest)
        self._check_time(manifest)
        self.completed.append(body.epoch)
        self._manifests[body.epoch] = manifest
        self._committable |= transactions_of(manifest)
        self._check_splits(manifest)
        self._check_records(manifest)

    def _check_output_is_carried(self, manifest: Manifest) -> None:
        """Check that what earlier epochs carry is committed, or carried by this one: nothing else would commit it."""
        dropped = self._committable - self._committed.keys() - self._given_up - transactions_of(manifest)
        if dropped:
            raise Violation(f"epoch {manifest.epoch} does not carry {sorted(dropped)}, which is not committed")

    def _check_time(self, manifest: Manifest) -> None:
        """Check that event time does not go back from one complete epoch to the next."""
        before = (
            [watermark for watermark, _ in window_parts_of(self._manifests[self.completed[-1]])]
            if self.completed
            else []
        )
        now = [watermark for watermark, _ in window_parts_of(manifest)]
        if before and min(now) < min(before):
            raise Violation(f"epoch {manifest.epoch} has watermarks {now}, the epoch before had {before}")

    def _check_splits(self, manifest: Manifest) -> None:
        assigned = list(positions_of(manifest))
        check_exactly_once(
            range(self._stream.splits),
            [split for split, _ in assigned] + list(splits_of(manifest, self._stream).unassigned),
            f"who reads which split in epoch {manifest.epoch}",
        )

    def _check_records(self, manifest: Manifest) -> None:
        """Check that state and records in flight are exactly what was read before the cut, and windows fit the time."""
        held: list[RecordId] = [item.id for item in in_flight_of(manifest, self._stream)]
        for watermark, files in window_parts_of(manifest):
            contents = {file.path: self._file(file.path) for file in files.files}
            state = load(files, contents)
            held += [id for key, ids in state.items() if key.kind == IDS for id in ids]
            if self._exactly_once:
                self._check_windows(manifest.epoch, state, watermark)
        read = list(self._stream.ids(dict(positions_of(manifest))))
        if self._exactly_once:
            check_exactly_once(read, held, f"the state at epoch {manifest.epoch}")
        elif Counter(read) - Counter(held):
            raise Violation(f"epoch {manifest.epoch} has lost {sorted((Counter(read) - Counter(held)).elements())}")

    def _check_windows(self, epoch: Epoch, state: State, watermark: int) -> None:
        """Check that every window with a record was emitted, or is there with its timer and its time to come."""
        expected: dict[StateKey, list[RecordId]] = defaultdict(list)
        for key, ids in state.items():
            emitted = {end for end, _ in state.get(StateKey(FIRED, key.key), ())}
            for split, index in ids if key.kind == IDS else ():
                end = self._stream.window_end(self._stream.item(split, index).timestamp)
                if end not in emitted:
                    expected[StateKey(WINDOW, key.key, end)].append((split, index))
        windows = {key: sorted(ids) for key, ids in state.items() if key.kind == WINDOW}
        timers = {StateKey(WINDOW, key.key, key.window_end) for key in state if key.kind == TIMER}
        if windows != {key: sorted(ids) for key, ids in expected.items()} or timers != set(expected):
            raise Violation(
                f"epoch {epoch} holds windows {sorted(windows)} and timers {sorted(timers)}; "
                f"a sequential run holds {sorted(expected)}"
            )
        overdue = [key for key in expected if key.window_end <= watermark]
        if overdue:
            raise Violation(f"epoch {epoch} has watermark {watermark} and still holds {overdue}")

    def _file(self, path: str) -> StateFile:
        file = self.objects[path]
        assert isinstance(file, StateFile)
        return file

    # --- the end ----------------------------------------------------------------------------------------------------

    def check_leaks(self) -> None:
        """Check, at rest, that what no epoch needs is gone, except what was written after the newest driver looked."""
        sweep = self._sweep
        if sweep is None:
            raise Violation("the newest driver has never looked for what attempts before its own have left")
        needed = {record.manifest for record in self.journal.retained}
        needed.update(*(self._manifests[record.epoch].references() for record in self.journal.retained))
        left = [path for path, before in self._writes.items() if before < sweep.writes and path in self.objects]
        leaked = [path for path in left if path not in needed and sweep.finds(path)]
        if leaked:
            raise Violation(f"no epoch refers to {leaked}, which were there when attempt {sweep.attempt} looked")

    def check_output(self) -> None:
        """Check, at rest, that every window was emitted once, with all its records.

        It was emitted once more for each time that its row was given up.
        """
        if self._exactly_once:
            given_up = [row for one in self._given_up for row in self._committed.get(one, ())]
            check_exactly_once(self._stream.expected(), list((Counter(self.rows) - Counter(given_up)).elements()))
            return
        wanted = {id for row in self._stream.expected() for id in row.records}
        lost = wanted - {id for row in self.rows for id in row.records}
        if lost:
            raise Violation(f"the output has lost {sorted(lost)}")
