"""The acts of the processes of a simulated job, noted as steps of `Epochs.tla`, `Commit.tla` and `Retention.tla`.

Invariant: a step is noted before anything is said of what is wrong with it, so that a specification sees it, too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from recovery.testing import simulated_job
from recovery.testing.checks.cut import EpochFacts
from recovery.testing.checks.observer import JobObserver
from recovery.testing.programs.drawn import DrawnProgram
from recovery.testing.programs.target import Shown
from recovery.testing.whole.job import Job
from snapshot.ids import ChannelId
from snapshot.journal.entries import Claimed, Committed, Completed, Entry, Pinned, Removed, Rewound, Unpinned
from snapshot.journal.entry_json import decode_entry
from snapshot.testing.tla import Step
from snapshot.tree.layout import JournalEntry, parse
from snapshot.tree.manifest import Manifest
from snapshot.tree.manifest_json import decode
from statebackend.ids import Attempt, Epoch, Incarnation, Uid


@dataclass(eq=False)
class Node:
    """A stage of a partition in one attempt, with the channels that end there and the splits that its source knows."""

    number: int
    attempt: Incarnation
    partition: int
    ins: set[int] = field(default_factory=set)
    source: Uid | None = None


class Notes:
    """What happens inside of the processes of one run, in its order, each with its place in the history."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self.job: Job | None = None
        self.nodes: list[Node] = []
        self.channels: dict[tuple[Incarnation, ChannelId], dict[str, object]] = {}
        self.attempts: dict[Incarnation, int] = {}
        """The attempts that were begun, each with its parallelism."""
        self.splits: dict[str, set[int]] = {}
        """The splits of each source."""
        self.empty: set[int] = set()
        """The transactions that had no rows."""
        self._numbers: dict[object, int] = {}
        self._edges: dict[object, int] = {}

    def add(self, action: str, **fields: object) -> None:
        """Note a step that happens now."""
        history = self.job.history if self.job is not None else ()
        self.steps.append(Step(action, fields, len(history) - 1 if history else 0))

    def named(self, name: object) -> int:
        """Return a number for a transaction, a path, a process or a position; equal names have equal numbers."""
        return self._numbers.setdefault(name, len(self._numbers))

    def edge(self, channel: ChannelId) -> int:
        """Return a number for the edge of the program that a channel is of, from 1 on."""
        return self._edges.setdefault((channel.source, channel.target, channel.port), len(self._edges) + 1)

    @property
    def edges(self) -> int:
        """Return how many edges there are."""
        return len(self._edges)

    def split(self, source: Uid, split: str) -> int:
        """Return a number for a split of a source."""
        number = self.named((source, split))
        self.splits.setdefault(str(source), set()).add(number)
        return number

    def channel(self, attempt: Incarnation, channel: ChannelId) -> int:
        """Return a number for a channel of an attempt, from 1 on."""
        key = (attempt, channel)
        if key not in self.channels:
            self.channels[key] = {
                "number": len(self.channels) + 1, "of": 0, "to": 0, "ordered": False, "edge": self.edge(channel),
            }  # fmt: skip
        number = self.channels[key]["number"]
        assert isinstance(number, int)
        return number

    def positions(self, source: Uid, positions: Mapping[str, object]) -> set[tuple[int, int]]:
        """Return how far splits are read."""
        return {(self.split(source, split), self.named(("at", str(at)))) for split, at in positions.items()}


class Witness(JobObserver):
    """Notes what the journal, the store and the target say, before the observer says what is wrong with it."""

    def __init__(self, notes: Notes, drawn: DrawnProgram, *, exactly_once: bool) -> None:
        super().__init__(drawn, exactly_once=exactly_once)
        self._notes = notes
        self.plan = drawn.plan
        for uid, source in drawn.shape.sources.items():
            for split in range(len(source.splits)):
                notes.split(Uid(uid), str(split))

    def _note_entry(self, entry: Entry, by: str) -> None:
        notes = self._notes
        match entry.body:
            case Claimed(generation):
                notes.add("Claim", generation=int(generation))
            case Rewound(generation, to):
                if self.accepting.get(by):
                    notes.add("Accept", generation=int(generation), epoch=to)
                notes.add("GoBack", generation=int(generation), epoch=to)
            case Committed(epoch=epoch):
                notes.add("Note", epoch=epoch)
            case Pinned(pin, epoch):
                notes.add("Pin", pin=notes.named(pin), epoch=epoch)
            case Unpinned(pin):
                notes.add("Unpin", pin=notes.named(pin))
            case Removed(epochs=epochs):
                notes.add("Remove", epochs=set(epochs))
            case Completed(epoch, path):
                if path in self.objects:
                    self._note_complete(epoch, decode(self.objects[path], path), path)
                else:
                    nothing: dict[str, object] = {name: set() for name in ("flight", "back", "read", "spare", "txs")}
                    attempt = Incarnation(epoch.generation, Attempt(1))
                    notes.add("Complete", attempt=attempt, epoch=epoch, files={notes.named(path)}, **nothing)
            case _:
                pass

    def _note_complete(self, epoch: Epoch, manifest: Manifest, path: str) -> None:
        notes, attempt = self._notes, manifest.incarnation
        rows = self._in_flight(manifest)
        subtasks = [(operator.uid, one) for operator in manifest.operators for one in operator.subtasks]
        back: Counter[int] = Counter()
        for channel, count in rows.items():
            back[notes.edge(channel)] += count
        notes.add(
            "Complete",
            attempt=attempt,
            epoch=epoch,
            flight={(notes.channel(attempt, channel), count) for channel, count in rows.items() if count},
            back={(edge, count) for edge, count in back.items() if count},
            read=set().union(
                *(notes.positions(uid, {at.split: at.position.text for at in one.positions}) for uid, one in subtasks)
            ),
            spare={
                notes.split(operator.uid, split)
                for operator in manifest.operators
                for split in _unassigned(operator.enumerator.value())
            },
            txs={(notes.named(at.transaction), at.sealed_in) for _, one in subtasks for at in one.committables},
            files={notes.named(one) for one in (path, *manifest.references())},
        )

    def _in_flight(self, manifest: Manifest) -> Mapping[ChannelId, int]:
        blobs = {path: self.objects[path] for path in manifest.references() if path in self.objects}
        if len(blobs) < len(manifest.references()):
            return {}
        return EpochFacts(manifest, self.plan, blobs, simulated_job.SHARED_MEMORY / "unused").rows_in_flight()

    def writing(self, path: str, data: bytes, existing: bytes | None, *, by: str) -> None:
        self._note_write(path, data)
        super().writing(path, data, existing, by=by)

    def creating(self, path: str, data: bytes, *, by: str) -> None:
        place = parse(path)
        if not isinstance(place, JournalEntry):
            self._note_write(path, data)
        elif place.number > self.journal.state.number:
            self._note_write(path, data)
            self._note_entry(decode_entry(place.number, data), by)
        # else a create that hung takes effect after its entry was compacted, where nothing is read any more
        super().creating(path, data, by=by)

    def _note_write(self, path: str, data: bytes) -> None:
        self._notes.add("Write", path=self._notes.named(path), content=self._notes.named((path, data)))

    def deleting(self, path: str, *, by: str) -> None:
        self._notes.add("Delete", path=self._notes.named(path))
        super().deleting(path, by=by)

    def _showing(self, shown: Shown) -> None:
        if shown.transaction is not None:
            self._notes.add("Commit", tx=self._notes.named(shown.transaction))
        super()._showing(shown)

    def check_end(self, *, complete: bool) -> None:
        self._notes.add("Over")
        super().check_end(complete=complete)


def _unassigned(enumerator: object) -> Sequence[str]:
    splits = enumerator.get("unassigned", ()) if isinstance(enumerator, Mapping) else enumerator
    return [str(split) for split in splits] if isinstance(splits, list | tuple) else []
