"""Histories of the whole simulated job, as steps of `Epochs.tla` and `Commit.tla`.

Invariant: what is noted changes nothing of what happens, so that a schedule gives the history that it gives
when it is not watched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any

from pytest import MonkeyPatch

from recovery.testing import job, windows
from recovery.testing.attempt import PartitionAttempt
from recovery.testing.generation import GenerationRun
from recovery.testing.manifests import committables_of, in_flight_of, positions_of, splits_of, window_parts_of
from recovery.testing.messages import WINDOWS, Acknowledgement, AssignSplit, Deploy, HasCommitted, Payload
from recovery.testing.observer import Observer
from recovery.testing.requests import Request
from recovery.testing.source import SourceSubtask
from recovery.testing.stream import MAX_PARALLELISM, Item, RecordId, Row, Stream, group_of
from recovery.testing.target import AbortOthers
from recovery.testing.windows import IDS, StateFile
from snapshot.cut import aligner as align
from snapshot.cut.frames import Data, End, Frame, Marker, MarkerMode
from snapshot.cut.participant import Part
from snapshot.epochs.coordinator_events import Publish
from snapshot.epochs.coordinator_events import Trigger as TriggerNow
from snapshot.epochs.transaction_events import Begin, Prepared, Seal, SinkCut, TransactionEvent
from snapshot.ids import TransactionId
from snapshot.journal.entries import Claimed, Committed, Completed, Entry, Pinned, Removed, Rewound, Unpinned
from snapshot.journal.state import OutputMade
from snapshot.testing import History, Kind, Record, Schedule, Violation
from snapshot.testing.search import Run
from snapshot.testing.tla import Step, Trace
from snapshot.tree.manifest import Manifest
from snapshot.tree.manifest_json import decode
from statebackend.files import FileSet
from statebackend.ids import NO_EPOCH, Epoch, Incarnation
from statebackend.keygroups import owner_of

SPECIFICATIONS = {
    name: frozenset(actions.split())
    for name, actions in {
        "Epochs": "Claim GoBack Deploy Boot Follow Restore HandOut Assigned Trigger Emit EndSource Mark Process Cut "
        "GiveUp Acknowledge Complete",
        "Commit": "Claim GoBack Trigger Take Begin Seal Prepare Acknowledge Decide Complete Accept Commit AbortOthers "
        "Settle Note End",
        "Retention": "Write Complete Pin Unpin Remove Delete",
    }.items()
}
"""The actions that each specification sees."""


@dataclass
class Notes:
    """What happens inside of the processes of one run, each with its place in the history."""

    schedule: Schedule
    stream: Stream = field(default_factory=lambda: Stream(0, 0, 0))
    exactly: bool = True
    steps: list[Step] = field(default_factory=list)
    places: dict[tuple[Incarnation, str | None], int] = field(default_factory=dict)
    """Which partition of an attempt a worker has."""
    _entries: dict[object, int] = field(default_factory=dict)
    _names: dict[object, int] = field(default_factory=dict)

    def named(self, name: object) -> int:
        """Return a number for a transaction, a path or a pin; equal names have equal numbers."""
        return self._names.setdefault(name, len(self._names))

    def add(self, action: str, **fields: object) -> None:
        """Note a step that happens now."""
        history = self.schedule.history
        self.steps.append(Step(action, fields, len(history) - 1 if history else 0))

    def entries(self, state: Mapping[Any, Any]) -> set[int]:
        """Return a number for each entry of a state; equal entries have equal numbers."""
        return {self._entries.setdefault((key, value), len(self._entries)) for key, value in state.items()}

    def read(self, positions: Iterable[tuple[int, int]]) -> dict[int, int]:
        """Return how far each split was read, -1 for those that are not."""
        return {**dict.fromkeys(range(self.stream.splits), -1), **dict(positions)}


def number(id: RecordId) -> int:
    """Return a record as a number, from which the specification computes its split and place."""
    return id[0] * 100 + id[1] + 1


def _seen(state: Mapping[Any, Any]) -> set[int]:
    return {number(id) for key, ids in state.items() if key.kind == IDS for id in ids}


class Witness(Observer):
    """Notes what the journal says, before the observer says what is wrong with it."""

    def __init__(self, notes: Notes, stream: Stream, *, exactly_once: bool) -> None:
        super().__init__(stream, exactly_once=exactly_once)
        notes.stream, notes.exactly = stream, exactly_once
        self._notes = notes

    def _entered(self, entry: Entry) -> None:
        match entry.body:
            case Claimed(generation):
                self._notes.add("Claim", generation=int(generation))
            case Rewound(by, to):
                self._notes.add("GoBack", generation=int(by), epoch=to)
            case Committed(epoch=epoch):
                self._notes.add("Note", epoch=epoch)
            case Pinned(pin, epoch):
                self._notes.add("Pin", pin=self._notes.named(pin), epoch=epoch)
            case Unpinned(pin):
                self._notes.add("Unpin", pin=self._notes.named(pin))
            case Removed(epochs=epochs):
                self._notes.add("Remove", epochs=set(epochs))
            case Completed(epoch, path):
                data = self.objects.get(path)
                if isinstance(data, bytes):
                    self._note_complete(epoch, decode(data, path), path)
            case _:
                pass
        super()._entered(entry)

    def _note_complete(self, epoch: Epoch, manifest: Manifest, path: str) -> None:
        entries: set[int] = set()
        for _, files in window_parts_of(manifest):
            entries |= self._notes.entries(self._loaded(files))
        self._notes.add(
            "Complete",
            attempt=Incarnation(epoch.generation, manifest.attempt),
            epoch=epoch,
            entries=entries,
            inFlight={number(item.id) for item in in_flight_of(manifest, self._notes.stream)},
            read=self._notes.read(positions_of(manifest)),
            spare=set(splits_of(manifest, self._notes.stream).unassigned),
            txs={(self._notes.named(one.transaction), one.sealed_in) for one in committables_of(manifest)},
            files={self._notes.named(one) for one in (path, *manifest.references())},
        )

    def writing(self, path: str, data: object, existing: object | None) -> None:
        content = data if isinstance(data, bytes) else str(data)
        self._notes.add("Write", path=self._notes.named(path), content=self._notes.named((path, content)))
        super().writing(path, data, existing)

    def deleting(self, path: str) -> None:
        self._notes.add("Delete", path=self._notes.named(path))
        super().deleting(path)

    def committing(self, transaction: TransactionId, rows: tuple[Row, ...]) -> None:
        self._notes.add("Commit", tx=self._notes.named(transaction))
        super().committing(transaction, rows)

    def asks(self, back: Rewound, told: OutputMade, *, accepts: bool) -> None:
        if accepts:
            self._notes.add("Accept", generation=int(back.by), epoch=back.to)
        super().asks(back, told, accepts=accepts)

    def check_output(self) -> None:
        self._notes.add("End")
        super().check_output()

    def _loaded(self, files: FileSet) -> Mapping[Any, Any]:
        found = {file.path: self.objects.get(file.path) for file in files.files}
        contents = {path: content for path, content in found.items() if isinstance(content, StateFile)}
        return windows.load(files, contents) if len(contents) == len(found) else {}


@contextmanager
def watched(notes: Notes) -> Iterator[None]:
    """Note what the partitions of the next job do."""
    with MonkeyPatch.context() as patch:
        patch.setattr(job, "Observer", lambda stream, exactly_once: Witness(notes, stream, exactly_once=exactly_once))
        _watch_operators(patch, notes)
        _watch_sources(patch, notes)
        _watch_transactions(patch, notes)
        yield


def _watch_operators(patch: MonkeyPatch, notes: Notes) -> None:
    began, ran, carried, ended, given = (
        PartitionAttempt.__init__,
        PartitionAttempt._run,
        PartitionAttempt._carry_out_alignment,
        PartitionAttempt.over,
        PartitionAttempt.assigned,
    )

    def begin(self: PartitionAttempt, deploy: Deploy, around: Any) -> None:
        notes.add("Follow", worker=deploy.workers[deploy.role.partition], attempt=deploy.incarnation)
        began(self, deploy, around)

    def run(self: PartitionAttempt) -> None:
        state = windows.load(self._role.files, self._loaded)
        in_flight = {number(item.id) for item in self._role.in_flight}
        notes.add(
            "Restore",
            **_whose(self),
            entries=notes.entries(state),
            inFlight=in_flight,
            held=_seen(state) | in_flight,
            read=notes.read(self._role.positions.items()),
            watermark=max(-1, self._role.window_watermark),
        )
        notes.add("Take", **_whose(self), txs={notes.named(one.transaction) for one in self._role.committables})
        ran(self)
        self._source.__dict__["attempt"] = self

    def carry_out(self: PartitionAttempt, instruction: align.AlignerInstruction) -> None:
        assert self._operator is not None
        match instruction:
            case align.Process(channel, Data(Item() as item)):
                notes.add("Process", **_whose(self), **{"from": int(channel.sender)}, record=number(item.id))
            case align.Cut(marker):
                state = self._operator._state
                notes.add(
                    "Cut",
                    **_whose(self),
                    epoch=marker.epoch,
                    unaligned=marker.mode is MarkerMode.UNALIGNED,
                    entries=notes.entries(state),
                    held=_seen(state),
                    watermark=max(-1, self._operator.watermark or -1),
                )
            case align.Missed(epoch):
                notes.add("GiveUp", **_whose(self), epoch=epoch)
            case _:
                pass
        carried(self, instruction)

    def over(self: PartitionAttempt, epoch: Epoch, *, complete: bool) -> None:
        if not complete:
            notes.add("GiveUp", **_whose(self), epoch=epoch)
        ended(self, epoch, complete=complete)

    def assigned(self: PartitionAttempt, split: int | None) -> None:
        if split is not None:
            notes.add("Assigned", **_whose(self), split=split)
        given(self, split)

    patch.setattr(PartitionAttempt, "__init__", begin)
    patch.setattr(PartitionAttempt, "_run", run)
    patch.setattr(PartitionAttempt, "_carry_out_alignment", carry_out)
    patch.setattr(PartitionAttempt, "over", over)
    patch.setattr(PartitionAttempt, "assigned", assigned)


def _watch_sources(patch: MonkeyPatch, notes: Notes) -> None:
    one, all_ = SourceSubtask._put, SourceSubtask._put_on_all

    def put(self: SourceSubtask, item: Item) -> None:
        to = int(owner_of(group_of(item.key), self._parallelism, MAX_PARALLELISM))
        notes.add("Emit", **_whose(self.__dict__["attempt"]), to=to, record=number(item.id))
        one(self, item)

    def put_on_all(self: SourceSubtask, frame: Frame) -> Any:
        match frame:
            case Marker(epoch):
                notes.add("Mark", **_whose(self.__dict__["attempt"]), epoch=epoch)
            case End():
                notes.add("EndSource", **_whose(self.__dict__["attempt"]))
            case _:
                pass
        return all_(self, frame)

    patch.setattr(SourceSubtask, "_put", put)
    patch.setattr(SourceSubtask, "_put_on_all", put_on_all)


def _watch_transactions(patch: MonkeyPatch, notes: Notes) -> None:
    told, carried, decided = (
        PartitionAttempt._transaction,
        PartitionAttempt._carry_out_transaction,
        GenerationRun._carry_out,
    )

    def transaction(self: PartitionAttempt, event: TransactionEvent[Payload]) -> None:
        match event:
            case SinkCut(epoch):
                self.__dict__["sealing"] = epoch
            case Prepared(transaction):
                notes.add("Prepare", **_whose(self), tx=notes.named(transaction))
            case _:
                pass
        told(self, event)

    def carry_out(self: PartitionAttempt, instruction: object) -> None:
        match instruction:
            case Begin(transaction):
                notes.add("Begin", **_whose(self), tx=notes.named(transaction))
            case Seal(transaction):
                empty = not self._sink._rows[transaction]
                epoch = self.__dict__["sealing"]
                notes.add("Seal", **_whose(self), tx=notes.named(transaction), epoch=epoch, empty=empty)
            case _:
                pass
        carried(self, instruction)

    def decide(self: GenerationRun, instruction: Any) -> None:
        match instruction:
            case TriggerNow(marker):
                assert self._coordinator is not None
                notes.add("Trigger", attempt=self._coordinator.incarnation, epoch=marker.epoch)
            case Publish():
                notes.add("Decide", attempt=instruction.incarnation, epoch=instruction.epoch)
            case _:
                pass
        decided(self, instruction)

    patch.setattr(PartitionAttempt, "_transaction", transaction)
    patch.setattr(PartitionAttempt, "_carry_out_transaction", carry_out)
    patch.setattr(GenerationRun, "_carry_out", decide)


def _whose(attempt: PartitionAttempt) -> dict[str, object]:
    return {"attempt": attempt.incarnation, "partition": int(attempt.partition)}


# --- from notes and records to a trace -------------------------------------------------------------------------------


def trace(run: Run, schedule: Schedule, name: str = "a history of the job") -> tuple[Trace, Violation | None]:
    """Run one history; return it for the specifications, and what its own checks have found."""
    notes, violation = Notes(schedule), None
    with watched(notes):
        try:
            run(schedule)
        except Violation as found:
            violation = found
    history = schedule.history
    assert history is not None
    steps = [*_of_records(history, notes), *notes.steps]
    steps.sort(key=lambda step: step.at or 0)  # stable: what a record is comes before what was noted after it
    return _numbered(steps, notes, history, name), violation


def _of_records(history: History, notes: Notes) -> Iterator[Step]:
    deployed: set[object] = set()
    for record in history:
        for step in _of_record(record, notes):
            attempt = step.fields.get("attempt")
            if step.action != "Deploy" or attempt not in deployed:
                yield step
            if step.action == "Deploy":
                deployed.add(attempt)


def _of_record(record: Record, notes: Notes) -> Iterator[Step]:
    match record.kind, record.payload:
        case Kind.STARTED, _ if record.process in job.WORKERS:
            yield Step("Boot", {"worker": record.process}, record.at)
        case Kind.SENT, Deploy(incarnation, epoch, role):
            notes.places[incarnation, record.peer] = int(role.partition)
            yield Step("Deploy", {"attempt": incarnation, "epoch": epoch or NO_EPOCH}, record.at)
        case Kind.SENT, AssignSplit(incarnation, int() as split):
            partition = notes.places[incarnation, record.peer]
            yield Step("HandOut", {"attempt": incarnation, "partition": partition, "split": split}, record.at)
        case Kind.SENT, Acknowledgement(incarnation, partition, epoch, subtasks):
            fields = {"attempt": incarnation, "partition": int(partition), "epoch": epoch}
            committables = subtasks[WINDOWS].parts[Part.TRANSACTIONS]
            assert isinstance(committables, tuple)
            txs = {notes.named(one.transaction) for one in committables}
            yield Step("Acknowledge", {**fields, "txs": txs}, record.at)
        case Kind.SENT, HasCommitted(incarnation, partition, epoch):
            yield Step("Settle", {"attempt": incarnation, "partition": int(partition), "epoch": epoch}, record.at)
        case Kind.RECEIVED, Request(_, AbortOthers(before, keep)):
            yield Step("AbortOthers", {"attempt": before, "keep": {notes.named(one) for one in keep}}, record.at)
        case _:
            pass


def _numbered(steps: list[Step], notes: Notes, history: History, name: str) -> Trace:
    """Give attempts and epochs numbers, in their order."""
    sizes: dict[Incarnation, int] = {}
    for record in history.kinds(Kind.SENT):
        if isinstance(record.payload, Deploy):
            sizes[record.payload.incarnation] = len(record.payload.workers)
    attempts = sorted({one for step in steps for one in step.fields.values() if isinstance(one, Incarnation)})
    numbers = {attempt: number for number, attempt in enumerate(attempts, start=1)}

    def plain(value: object) -> object:
        match value:
            case Incarnation():
                return numbers[value]
            case Epoch():
                return value.generation * 1000 + value.number
            case set():
                return {plain(one) for one in value}
            case tuple():
                return tuple(map(plain, value))
            case _:
                return value

    made = [Step(step.action, {key: plain(one) for key, one in step.fields.items()}, step.at) for step in steps]
    config = {
        "exactly": notes.exactly,
        "splits": set(range(notes.stream.splits)),
        "attempts": [{"generation": one.generation, "size": sizes.get(one, 1)} for one in attempts],
        "generations": max((one.generation for one in attempts), default=0) + 20,
        "workers": set(job.WORKERS),
    }
    return Trace(made, config, history, name)


def only(trace: Trace, actions: frozenset[str]) -> Trace:
    """Return the trace with the steps of these actions alone."""
    return Trace([step for step in trace.steps if step.action in actions], trace.config, trace.history, trace.name)


def schedules(count: int, seed: int, size: int = 400) -> Iterator[Schedule]:
    """Yield schedules that follow from the seed, of any length."""
    random = Random(seed)
    for _ in range(count):
        yield Schedule(random.randbytes(random.randrange(size)))


def traces(count: int, seed: int = 0, run: Callable[[Schedule], object] = job.run) -> list[Trace]:
    """Return as many honest histories of a job; raise what their own checks find."""
    found = []
    for schedule in schedules(count, seed):
        made, violation = trace(run, schedule)
        if violation is not None:
            raise violation
        found.append(made)
    return found
