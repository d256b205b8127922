"""Who sees everything in a simulated job and speaks up when a promise is broken.

What always holds: it knows the journal as it truly is, entry by entry in the order of their creation, and looks at
every epoch in the moment in which it becomes complete: whether all that it names is there, and whether it is a state
that a sequential run could have been in.
"""

from __future__ import annotations

from collections import Counter, defaultdict

from recovery.testing.manifests import in_flight_of, positions_of, splits_of, transactions_of, window_parts_of
from recovery.testing.stream import RecordId, Row, Stream
from recovery.testing.truth import JournalTruth
from recovery.testing.windows import FIRED, IDS, TIMER, WINDOW, State, StateFile, StateKey, load
from snapshot.ids import TransactionId
from snapshot.journal_entries import Committed, Completed, Entry
from snapshot.manifest import Manifest
from snapshot.manifest_json import decode, digest
from snapshot.testing.checkers import check_exactly_once
from snapshot.testing.violation import Violation
from statebackend.ids import Epoch, Generation, Incarnation


class Observer(JournalTruth):
    """The truth about one simulated job. `exactly_once` is false in at-least-once mode: then only losses are errors."""

    def __init__(self, stream: Stream, *, exactly_once: bool) -> None:
        super().__init__()
        self._stream = stream
        self._exactly_once = exactly_once
        self.rows: list[Row] = []
        """What readers of the target see."""
        self.completed: list[Epoch] = []
        self._manifests: dict[Epoch, Manifest] = {}
        self._triggered: set[Epoch] = set()
        self._committable: set[TransactionId] = set()
        self._committed: set[TransactionId] = set()

    # --- what the store is told to do -----------------------------------------------------------------------------

    def _entered(self, entry: Entry) -> None:
        super()._entered(entry)
        match entry.body:
            case Completed():
                self._completed(entry.body)
            case Committed(epoch=epoch):
                self._check_committed(epoch)
            case _:
                pass

    def _check_committed(self, epoch: Epoch) -> None:
        """What is journalled as committed is: nobody would commit the rest once the epoch is removed."""
        carried = (transactions_of(self._manifests[one]) for one in self.completed if one <= epoch)
        missing = frozenset().union(*carried) - self._committed
        if missing:
            raise Violation(f"epoch {epoch} is journalled as committed, and {sorted(missing)} is not")

    def deleting(self, path: str) -> None:
        """An object is deleted; nothing may need it."""
        super().deleting(path)
        for record in self.journal.retained:
            if path == record.manifest or path in self._manifests[record.epoch].references():
                raise Violation(f"{path} is deleted, and epoch {record.epoch} needs it")

    # --- what drivers believe ---------------------------------------------------------------------------------------

    def triggered(self, epoch: Epoch) -> None:
        """A driver triggers an epoch; its id is new."""
        if epoch in self._triggered:
            raise Violation(f"epoch id {epoch} is used twice")
        self._triggered.add(epoch)

    def failed(self, incarnation: Incarnation, reason: str) -> None:
        """A partition could not be restored or go on; of the current generation nothing is missing."""
        if incarnation.generation == self.journal.generation and "is not there" in reason:
            raise Violation(reason)

    def stopped(self, generation: Generation, reason: str) -> None:
        """A coordinator ends its generation; nothing but a newer claim is a reason here."""
        if generation == self.journal.generation:
            raise Violation(f"generation {generation} stops: {reason}")

    # --- what the target is told to do ------------------------------------------------------------------------------

    def committing(self, transaction: TransactionId, rows: tuple[Row, ...]) -> None:
        """A transaction becomes visible; a complete epoch carries it, and it happens once."""
        if transaction in self._committed:
            raise Violation(f"transaction {transaction} is committed twice, with {len(rows)} rows")
        if transaction not in self._committable:
            raise Violation(f"transaction {transaction} is committed, and no complete epoch carries it")
        self._committed.add(transaction)

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
        """What an earlier epoch carries is committed, or carried by this one: nothing else would commit it."""
        dropped = self._committable - self._committed - transactions_of(manifest)
        if dropped:
            raise Violation(f"epoch {manifest.epoch} does not carry {sorted(dropped)}, which is not committed")

    def _check_time(self, manifest: Manifest) -> None:
        """Event time does not go back from one complete epoch to the next."""
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
        """The state and what is in flight are exactly what was read before the cut; windows are as time says."""
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
        """Every window that a record fell into was either emitted, or is there with its timer and its time to come."""
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

    def check_output(self) -> None:
        """All has come to rest: every window was emitted once, with all its records."""
        if self._exactly_once:
            check_exactly_once(self._stream.expected(), self.rows)
            return
        wanted = {id for row in self._stream.expected() for id in row.records}
        lost = wanted - {id for row in self.rows for id in row.records}
        if lost:
            raise Violation(f"the output has lost {sorted(lost)}")
