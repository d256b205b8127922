"""What one epoch costs the driver, in CPU time, from the trigger to the plan of what the epoch before leaves behind.

Invariant: inside the measure is everything that the driver does for an epoch by itself, and the real code does
it: the coordinator's machine with every trigger, acknowledgement and commit report; the regrouping of acknowledgements
into a manifest with all its checks; its bytes and digest; the journal's entries with what admits and folds them; the
references of the epoch and the removal plan. Outside is what carries bytes: the network, the store, and the decoding of
acknowledgements, which is reported beside it, because it costs several times as much as all the rest: a participant
writes its part as it stands in the manifest, and decoding it checks that and keeps the text.

Each partition acknowledges one source (two splits), one keyed operator (three files, of which one is new in each epoch
and takes the place of the oldest) and one sink (one committable). No two messages share an object, as none do that came
over a network. The collector of cycles runs as it does in any process.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from statistics import median
from typing import TypeVar

from recovery.decisions.cleanup import EpochFiles, ObservedTree, plan_removal
from snapshot.cut.frames import Watermark
from snapshot.epochs.coordinator import Coordinator
from snapshot.epochs.coordinator_events import (
    Acknowledged,
    AttemptStarted,
    Committed,
    Complete,
    CoordinatorEvent,
    CoordinatorInstruction,
    Publish,
    Published,
    RecordCommitted,
    RemoveOlder,
    Ticked,
    Trigger,
)
from snapshot.epochs.coordinator_options import CoordinatorOptions
from snapshot.epochs.transaction_events import Committable, transaction_id
from snapshot.ids import JobId
from snapshot.journal.entries import Body, Claimed, Completed, Entry, Nonce, Removed
from snapshot.journal.entries import Committed as CommittedEntry
from snapshot.journal.entry_json import encode_entry
from snapshot.journal.machine import apply
from snapshot.journal.state import EMPTY, JournalState
from snapshot.tree.frozen_json import Json
from snapshot.tree.layout import Content, ManifestFile, SharedFile, path_of
from snapshot.tree.manifest import (
    CommitPayload,
    Manifest,
    ManifestKind,
    OperatorSnapshot,
    SplitPosition,
    SubtaskSnapshot,
)
from snapshot.tree.manifest_json import decode_subtask, digest, encode, encode_subtask
from statebackend.files import FileKind, FileRef, FileSet
from statebackend.ids import NO_EPOCH, Attempt, Epoch, Generation, Incarnation, Partition, Uid
from statebackend.keygroups import LARGEST_MAX_PARALLELISM, KeyGroupRange, range_of
from tests.bench.figures import RUNS, Figure, figure, progress

WORKLOAD = "coordinator"
SIZES = (1_000, 5_000, 10_000, 20_000)
COMPARED = 10_000
"""The number of partitions of the figure that is compared over time."""

_JOB = JobId("clicks")
_INCARNATION = Incarnation(Generation(3), Attempt(1))
_SINK, _SOURCE, _KEYED = Uid("archive"), Uid("clicks"), Uid("count")
_FILES = 3
_AT_A_TIME = 100
_WARM_UP = 4  # epochs, until every partition refers to as many files as it keeps

Acknowledgement = Mapping[Uid, SubtaskSnapshot]
Event = CoordinatorEvent[Acknowledgement]
_Result = TypeVar("_Result")


class Part:
    """The names of the parts of an epoch's work."""

    MACHINE = "machine"
    MANIFEST = "manifest"
    ENCODE = "encode"
    REMOVAL = "removal_plan"
    JOURNAL = "journal"
    DECODE = "decode_acknowledgements"

    INSIDE = (MACHINE, MANIFEST, ENCODE, REMOVAL, JOURNAL)
    ALL = (*INSIDE, DECODE)


# --- what the participants say; outside the measure -------------------------------------------------------------------


def acknowledgement_of(message: dict[Uid, bytes], partition: Partition, epoch: Epoch) -> Event:
    """What the coordinator is told when a participant's message has come in."""
    content = {uid: decode_subtask(data, f"the acknowledgement of {uid}") for uid, data in message.items()}
    return Acknowledged(replace(epoch), replace(_INCARNATION), partition, content, True)


def commit_report(partition: Partition, epoch: Epoch) -> Event:
    """What the coordinator is told once a participant has committed."""
    return Committed(replace(epoch), replace(_INCARNATION), partition)


def message_of(partition: Partition, epoch: Epoch, partitions: int) -> dict[Uid, bytes]:
    """What a participant sends for an epoch."""
    groups = range_of(partition, partitions, LARGEST_MAX_PARALLELISM)
    watermark = Watermark(1_700_000_000_000 + epoch.number)
    splits = sorted(f"topic-{2 * partition + which}" for which in range(2))
    positions = tuple(SplitPosition(split, Json.of({"offset": 1_000 * epoch.number})) for split in splits)
    transaction = transaction_id(_JOB, _SINK, _INCARNATION, partition, epoch.number)
    payload = CommitPayload(Json.of({"staged": f"rows-{partition}-{epoch.number}", "rows": 1_000}))
    committable = Committable(transaction, epoch, payload)
    parts = {
        _SINK: SubtaskSnapshot(partition, watermark=watermark, committables=(committable,)),
        _SOURCE: SubtaskSnapshot(partition, positions=positions, watermark=watermark),
        _KEYED: SubtaskSnapshot(partition, state=_state(epoch, partition, groups), watermark=watermark),
    }
    return {uid: encode_subtask(part) for uid, part in parts.items()}


def _state(epoch: Epoch, partition: Partition, groups: KeyGroupRange) -> FileSet:
    numbers = range(max(1, epoch.number - _FILES + 1), epoch.number + 1)
    return FileSet.of(groups, (_file(Epoch(epoch.generation, number), partition, groups) for number in numbers))


def _file(epoch: Epoch, partition: Partition, groups: KeyGroupRange) -> FileRef:
    path = path_of(SharedFile(_INCARNATION, partition, epoch.number, Content.STATE))
    checksum = f"sha256:{partition:032x}{epoch.number:032x}"
    return FileRef(path, (groups,), epoch, FileKind.DELTA, 4096 + partition, checksum)


# --- what the driver does; inside the measure -------------------------------------------------------------------------


@dataclass(slots=True)
class Driver:
    """Does for each epoch what a driver does, and sums up the CPU seconds of each part."""

    partitions: int
    now: int = 0
    journal: JournalState = EMPTY
    references: dict[Epoch, frozenset[str]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(Part.ALL, 0.0))
    manifest: bytes = b""
    removed: Removed | None = None
    coordinator: Coordinator[Acknowledgement] = field(init=False)

    def __post_init__(self) -> None:
        for generation in range(1, _INCARNATION.generation + 1):
            self._write(Claimed(Generation(generation), "driver:1"))
        self.coordinator = Coordinator(CoordinatorOptions(), _INCARNATION.generation, now=self.now)
        everybody = frozenset(map(Partition, range(self.partitions)))
        self.coordinator.handle(AttemptStarted(_INCARNATION, everybody))

    def epoch(self) -> None:
        """One epoch, from its trigger to the plan of what the one before leaves behind."""
        self.now += 1_000
        (trigger,) = self._handle([Ticked(self.now)])
        assert isinstance(trigger, Trigger)
        epoch = trigger.marker.epoch
        (publish,) = self._handle_all(lambda partition: self._acknowledgement(partition, epoch))
        assert isinstance(publish, Publish)
        self._publish(publish)
        assert self._handle([Published(epoch)]) == [Complete(epoch)]
        committed, removal = self._handle_all(lambda partition: commit_report(partition, epoch))
        assert isinstance(committed, RecordCommitted)
        assert isinstance(removal, RemoveOlder)
        self._timed(Part.JOURNAL, lambda: self._write(CommittedEntry(epoch.generation, committed.epoch)))
        self._remove_older(removal)

    def _acknowledgement(self, partition: Partition, epoch: Epoch) -> Event:
        message = message_of(partition, epoch, self.partitions)
        return self._timed(Part.DECODE, lambda: acknowledgement_of(message, partition, epoch))

    def _handle_all(self, event: Callable[[Partition], Event]) -> list[CoordinatorInstruction[Acknowledgement]]:
        """An event from each participant, as many at a time as might wait in the sockets of a busy driver."""
        instructions: list[CoordinatorInstruction[Acknowledgement]] = []
        for first in range(0, self.partitions, _AT_A_TIME):
            some = map(Partition, range(first, min(first + _AT_A_TIME, self.partitions)))
            instructions += self._handle([event(partition) for partition in some])
        return instructions

    def _handle(self, events: list[Event]) -> list[CoordinatorInstruction[Acknowledgement]]:
        handle = self.coordinator.handle
        return self._timed(Part.MACHINE, lambda: [instruction for event in events for instruction in handle(event)])

    def _publish(self, publish: Publish[Acknowledgement]) -> None:
        manifest = self._timed(Part.MANIFEST, lambda: manifest_of(publish))
        self.manifest = self._timed(Part.ENCODE, lambda: encode(manifest))
        sealed = self._timed(Part.ENCODE, lambda: digest(self.manifest))
        path = path_of(ManifestFile(publish.epoch, "0" * 16))
        completed = Completed(publish.epoch, path, sealed, publish.has_committables)
        self._timed(Part.JOURNAL, lambda: self._write(completed))
        self.references[publish.epoch] = self._timed(Part.REMOVAL, manifest.references)

    def _remove_older(self, asked: RemoveOlder) -> None:
        known = tuple(EpochFiles(epoch, files) for epoch, files in self.references.items())
        observed = ObservedTree(self.journal, known)
        self.removed = self._timed(Part.REMOVAL, lambda: plan_removal(observed, _INCARNATION.generation, asked.retain))
        if self.removed is not None:
            removed = self.removed
            self._timed(Part.JOURNAL, lambda: self._write(removed))
            for epoch in removed.epochs:
                del self.references[epoch]

    def _write(self, body: Body) -> None:
        number = self.journal.number + 1
        entry = Entry(number, Nonce(f"nonce-{number}"), body)
        encode_entry(entry)
        self.journal = apply(self.journal, entry).summarised()

    def _timed(self, part: str, work: Callable[[], _Result]) -> _Result:
        began = time.process_time()
        result = work()
        self.seconds[part] += time.process_time() - began
        return result


def manifest_of(publish: Publish[Acknowledgement]) -> Manifest:
    """The manifest of what all partitions acknowledged: by operator instead of by partition."""
    contents = [publish.contents[partition] for partition in sorted(publish.contents)]
    return Manifest(
        job=_JOB,
        epoch=publish.epoch,
        attempt=publish.incarnation.attempt,
        kind=ManifestKind.CHECKPOINT,
        max_parallelism=LARGEST_MAX_PARALLELISM,
        created_at=1_700_000_000_000,
        operators=tuple(
            OperatorSnapshot(uid, len(contents), tuple([content[uid] for content in contents]))
            for uid in (_SINK, _SOURCE, _KEYED)
        ),
        parent=NO_EPOCH if publish.base is None else publish.base,
    )


# --- the figures ------------------------------------------------------------------------------------------------------


def measured(partitions: int, runs: int = RUNS) -> list[dict[str, float]]:
    """The CPU seconds of each part, of as many epochs one after the other in a job of this size."""
    driver = Driver(partitions)
    for _ in range(_WARM_UP):
        driver.epoch()
    result = []
    for _ in range(runs):
        driver.seconds = dict.fromkeys(Part.ALL, 0.0)
        driver.epoch()
        result.append(driver.seconds)
    return result


def figures(sizes: tuple[int, ...] = SIZES) -> Iterator[Figure]:
    """The whole of an epoch and its parts, for each number of partitions, and how the cost grows."""
    totals: dict[int, float] = {}
    for partitions in sizes:
        progress(f"coordinator: epochs of {partitions} partitions")
        runs = measured(partitions)
        whole = [1_000 * sum(run[part] for part in Part.INSIDE) for run in runs]
        totals[partitions] = median(whole)
        yield figure(WORKLOAD, f"epoch_ms_{partitions}_partitions", "ms", whole, sum(whole) / 1_000)
        for part in Part.ALL:
            parts = [1_000 * run[part] for run in runs]
            yield figure(WORKLOAD, f"{part}_ms_{partitions}_partitions", "ms", parts, sum(run[part] for run in runs))
    least, most = min(sizes), max(sizes)
    growth = totals[most] / most / (totals[least] / least)
    yield figure(WORKLOAD, f"cost_per_partition_{most}_to_{least}", "ratio", [growth], 0.0)
