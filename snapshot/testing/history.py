"""The events of one run, as an observer outside of it saw them, and which of them could have caused which.

Invariant: records are in an order that could have been real time, so a cause comes before its effect,
and a message is named by the place (`at`) of the record of its sending.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple, TypeVar, overload


class Violation(AssertionError):
    """A history breaks a promise; the message says how, with names.

    `at` are the places in the history that show it, and `cut` is the cut it is about, if any: a diagram highlights
    both.
    """

    def __init__(self, message: str, at: Collection[int] = (), cut: Cut | None = None) -> None:
        super().__init__(message)
        self.at = tuple(at)
        self.cut = cut


T = TypeVar("T")


class Kind(Enum):
    """The subject of a record."""

    STARTED = "started"
    ACTED = "acted"
    RECEIVED = "received"
    BROKEN = "broken"
    SENT = "sent"
    NOTED = "noted"
    SAVED = "saved"
    CRASHED = "crashed"
    LOST = "lost"
    CUT = "cut"
    PAUSED = "paused"
    RESUMED = "resumed"


STIMULI = frozenset({Kind.STARTED, Kind.ACTED, Kind.RECEIVED, Kind.BROKEN})
"""The kinds that make a process do something; the records of its effects follow at once."""

OUTSIDE = frozenset({Kind.LOST, Kind.CUT, Kind.PAUSED, Kind.RESUMED})
"""The acts of the network or the scheduler; no process knows of them, so nothing happens before or after them."""

_EFFECTS = frozenset({Kind.SENT, Kind.NOTED, Kind.SAVED, Kind.LOST})  # a message may be lost as it is sent


class Record(NamedTuple):
    """One thing that happened, at place `at` of its history.

    `payload` is the message, the action, the remark, or what was saved or found at a start. `cause` is the record at
    another process that led to this one: the sending of what is received or lost, the crash that broke a link.
    """

    at: int
    process: str
    incarnation: int
    kind: Kind
    peer: str | None = None
    payload: object = None
    cause: int | None = None

    def __str__(self) -> str:
        """Return a line for people, such as `#12 p1 received 5 from p0`."""
        return f"#{self.at} {self.process} {self.what}"

    @property
    def what(self) -> str:
        """Return in words what happened, without the process that it happened to."""
        match self.kind:
            case Kind.SENT:
                return f"sent {self.payload} to {self.peer}"
            case Kind.RECEIVED:
                return f"received {self.payload} from {self.peer}"
            case Kind.LOST:
                return f"lost {self.payload} on its way to {self.peer}"
            case Kind.BROKEN:
                return f"lost its connection to {self.peer}"
            case Kind.CUT:
                return f"was cut off from {self.peer}"
            case Kind.STARTED if self.payload is not None:
                return f"started from {self.payload}"
            case Kind.ACTED | Kind.NOTED | Kind.SAVED:
                return f"{self.kind.name.lower()}: {self.payload}"
            case _:
                return self.kind.name.lower()


@dataclass(frozen=True, slots=True, order=True)
class Channel:
    """The FIFO way from one process to another."""

    sender: str
    receiver: str

    def __str__(self) -> str:
        return f"{self.sender}→{self.receiver}"


@dataclass(frozen=True, slots=True)
class Cut:
    """A line across a history: what of it is in the past of a snapshot, and what the snapshot recorded.

    `frontier` names for each process the place of its last record inside the cut, -1 if none is inside. A cut that a
    message brings about, such as a marker, lies before the arrival of that message (`History.before`). `states`
    and `channels` are what the protocol recorded, if the checker that is asked needs it.
    """

    frontier: Mapping[str, int]
    states: Mapping[str, object] = field(default_factory=dict)
    channels: Mapping[Channel, Sequence[object]] = field(default_factory=dict)
    name: str = "the cut"

    def includes(self, record: Record) -> bool:
        """True if the record is in the past of the cut. A process that the cut does not name is wholly outside."""
        return record.at <= self.frontier.get(record.process, -1)


class History(Sequence[Record]):
    """The records of one run in their order, with happened-before among them.

    Process order runs through crashes, because stable storage carries what was known before. What the network
    or the scheduler does (`OUTSIDE`) has no place in happened-before.
    """

    def __init__(self, processes: Iterable[str]) -> None:
        self.processes = tuple(processes)
        self._number = {name: number for number, name in enumerate(self.processes)}
        self._records: list[Record] = []
        self._clocks: list[tuple[int, ...]] = []

    def __len__(self) -> int:
        return len(self._records)

    def __iter__(self) -> Iterator[Record]:
        return iter(self._records)

    @overload
    def __getitem__(self, index: int) -> Record: ...
    @overload
    def __getitem__(self, index: slice) -> list[Record]: ...
    def __getitem__(self, index: int | slice) -> Record | list[Record]:
        return self._records[index]

    def __str__(self) -> str:
        return "\n".join(map(str, self._records))

    def append(
        self,
        process: str,
        incarnation: int,
        kind: Kind,
        peer: str | None = None,
        payload: object = None,
        cause: int | None = None,
    ) -> int:
        """Record an event that happens now; return the index of the record."""
        records = self._records
        index = len(records)
        records.append(Record(index, process, incarnation, kind, peer, payload, cause))
        return index

    def among(self, processes: Iterable[str]) -> History:
        """Return the history of these processes, which have all its records, without a place for others."""
        same = History(processes)
        same._records = self._records
        return same

    def of(self, process: str, *kinds: Kind) -> list[Record]:
        """Return the records of a process in their order; only those of `kinds`, if any are named."""
        return [r for r in self._records if r.process == process and (not kinds or r.kind in kinds)]

    def kinds(self, *kinds: Kind) -> list[Record]:
        """Return the records of these kinds, of all processes."""
        return [record for record in self._records if record.kind in kinds]

    def notes(self, of: type[T]) -> list[tuple[Record, T]]:
        """Return the remarks of this type that processes made, each with its record."""
        return [
            (record, record.payload)
            for record in self._records
            if record.kind is Kind.NOTED and isinstance(record.payload, of)
        ]

    def stimulus(self, record: Record) -> Record:
        """Return the start, action or arrival whose handling the record is part of; a stimulus is its own.

        Raises `ValueError` for a record that is not part of the handling of anything.
        """
        for index in range(record.at, -1, -1):
            earlier = self._records[index]
            if earlier.process == record.process and earlier.kind in STIMULI:
                return earlier
            if earlier.kind not in _EFFECTS:
                break
        raise ValueError(f"{record} is not part of the handling of anything")

    def before(self, record: Record) -> int:
        """Return the place just before the record's stimulus: a frontier that leaves all of its handling outside."""
        return self.stimulus(record).at - 1

    def effects(self, stimulus: Record) -> list[Record]:
        """Return what the process did in handling this; a message that was lost as it was sent counts with its loss."""
        effects = []
        for at in range(stimulus.at + 1, len(self._records)):
            record = self._records[at]
            if record.process != stimulus.process or record.kind not in _EFFECTS:
                break
            effects.append(record)
        return effects

    def clock(self, record: Record) -> tuple[int, ...]:
        """Return the record's vector clock: for each process, how many of its events are in the record's past.

        The record itself counts. `ValueError` for what happens outside of all processes.
        """
        if record.kind in OUTSIDE:
            raise ValueError(f"{record} is nothing that a process knows of")
        self._advance_clocks()
        return self._clocks[record.at]

    def happened_before(self, first: Record, second: Record) -> bool:
        """True if `first` could have caused `second`: Lamport's order; never true of a record and itself."""
        own = self._number[first.process]
        return first.at != second.at and self.clock(first)[own] <= self.clock(second)[own]

    def concurrent(self, first: Record, second: Record) -> bool:
        """True if neither of two different records could have caused the other."""
        return (
            first.at != second.at
            and not self.happened_before(first, second)
            and not self.happened_before(second, first)
        )

    def _advance_clocks(self) -> None:
        """Compute the clocks of the records since the last time; few histories are ever asked for any."""
        clocks = self._clocks
        if len(clocks) == len(self._records):
            return
        latest = [(0,) * len(self.processes)] * len(self.processes)
        for record, clock in zip(self._records, clocks, strict=False):
            if record.kind not in OUTSIDE:
                latest[self._number[record.process]] = clock
        for record in self._records[len(clocks) :]:
            own = self._number[record.process]
            clock = latest[own]
            if record.kind not in OUTSIDE:
                ticked = list(clock)
                ticked[own] += 1
                if record.cause is not None:
                    ticked = list(map(max, ticked, clocks[record.cause]))
                clock = latest[own] = tuple(ticked)
            clocks.append(clock)
