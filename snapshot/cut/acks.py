"""Acknowledgements of what left a stage: Storm's acker by exclusive or, and what a receiver owes to the senders.

A frame that leaves a stage which can give it again is a root. Its value begins as the frame's id. A stage that keeps
nothing hands a root on: its acknowledgement is the exclusive or of the ids of the frames that came in with the root and
of those that went out with it. A stage that keeps something acknowledges the id alone, when a complete epoch has what
followed from the frame. So the value is 0 when all that followed is kept somewhere, whatever the order of the words.

Invariant: a root is forgotten only when its value is 0; what a stage has in an epoch that is not complete is never
acknowledged; a frame that is sent again is another root, so that late words of the former one count for nothing.
"""

from __future__ import annotations

import struct
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import inf
from typing import Final, Generic, TypeVar

from snapshot.ids import Member, Replica
from statebackend.errors import JobError
from statebackend.ids import Epoch, Partition

_HEAD: Final = struct.Struct(">QII")
_ROOT: Final = struct.Struct(">IIQ")
_WORD: Final = struct.Struct(">QQ")
_WHOLE: Final = (1 << 64) - 1
_STEP: Final = 0x9E3779B97F4A7C15

NO_TIME: Final = inf
"""The time at which a root is sent that is not to be sent again, however long its acknowledgement takes."""

Content = TypeVar("Content")
Position = TypeVar("Position")


class MalformedAcks(JobError, ValueError):
    """Bytes that are no anchors, or no acknowledgements."""


@dataclass(frozen=True, slots=True, order=True)
class Root:
    """A frame that is to be acknowledged, or be sent again by its owner: the process that sent it first."""

    owner: Member
    number: int


@dataclass(frozen=True, slots=True)
class Anchors:
    """The id of a frame, and the roots that it has its rows from."""

    id: int
    roots: tuple[Root, ...]


def anchors_bytes(anchors: Anchors) -> bytes:
    """Return anchors as they stand before a frame's rows: a multiple of 16 bytes, so that these stay aligned."""
    roots = (_ROOT.pack(root.owner.partition, root.owner.replica, root.number) for root in anchors.roots)
    return b"".join((_HEAD.pack(anchors.id, len(anchors.roots), 0), *roots))


def parse_anchors(data: memoryview) -> tuple[Anchors, memoryview]:
    """Return the anchors before a frame's rows, and these; raise `MalformedAcks` if there are none."""
    if len(data) < _HEAD.size:
        raise MalformedAcks(f"{len(data)} bytes are too few for a frame with its id")
    id, count, zero = _HEAD.unpack_from(data)
    end = _HEAD.size + count * _ROOT.size
    if zero or len(data) < end:
        raise MalformedAcks(f"{len(data)} bytes have no place for {count} roots before the rows")
    roots = tuple(
        Root(Member(Partition(partition), Replica(replica)), number)
        for partition, replica, number in _ROOT.iter_unpack(data[_HEAD.size : end])
    )
    return Anchors(id, roots), data[end:]


def words_bytes(words: Mapping[int, int]) -> bytes:
    """Return acknowledgements to one owner as they are sent: the value of each root."""
    return b"".join(_WORD.pack(number, value) for number, value in words.items())


def parse_words(data: memoryview) -> Iterator[tuple[int, int]]:
    """Yield the roots of acknowledgements, with their values; raise `MalformedAcks` if there are none."""
    if len(data) % _WORD.size:
        raise MalformedAcks(f"{len(data)} bytes are no whole number of acknowledgements")
    yield from _WORD.iter_unpack(data)


class Ids:
    """Ids that look random, all different for one seed: 64 bits each, and never 0."""

    def __init__(self, seed: int) -> None:
        self._state = seed & _WHOLE

    def next(self) -> int:
        """Return the next one (splitmix64)."""
        while True:
            self._state = (self._state + _STEP) & _WHOLE
            mixed = self._state
            mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _WHOLE
            mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _WHOLE
            mixed ^= mixed >> 31
            if mixed:
                return mixed


# --- what a receiver owes --------------------------------------------------------------------------------------------


class Basket:
    """The frames that a stage works on together, and those that went out meanwhile."""

    def __init__(self) -> None:
        self._values: dict[Root, int] = {}

    def __bool__(self) -> bool:
        """True if a frame was taken in since it was emptied."""
        return bool(self._values)

    @property
    def roots(self) -> tuple[Root, ...]:
        """Return the roots that a frame which goes out now may have rows from."""
        return tuple(self._values)

    def took(self, anchors: Anchors) -> None:
        """Take note of a frame that came in."""
        for root in anchors.roots:
            self._values[root] = self._values.get(root, 0) ^ anchors.id

    def gave(self, id: int) -> None:
        """Take note of a frame that went out with this id, anchored to `roots`."""
        for root in self._values:
            self._values[root] ^= id

    def empty(self) -> Mapping[Root, int]:
        """Return what is to be acknowledged, when all that follows from what was taken in has gone out."""
        values, self._values = self._values, {}
        return values


class HeldAcks:
    """The acknowledgements that a stage owes when an epoch is complete that has what they are about."""

    def __init__(self) -> None:
        self._since: dict[Root, int] = {}
        self._cut: dict[Epoch, dict[Root, int]] = {}

    def add(self, values: Mapping[Root, int]) -> None:
        """Hold these until the next epoch that is cut is complete."""
        _merge(self._since, values.items())

    def cut(self, epoch: Epoch) -> None:
        """Take note that the epoch has all that was added until now."""
        self._cut[epoch], self._since = self._since, {}

    def completed(self, epoch: Epoch) -> Mapping[Root, int]:
        """Return what is to be acknowledged as the epoch is complete; it has what epochs have that were given up."""
        due: dict[Root, int] = {}
        for older in [other for other in self._cut if other <= epoch]:
            _merge(due, self._cut.pop(older).items())
        return due


def _merge(into: dict[Root, int], values: Iterable[tuple[Root, int]]) -> None:
    for root, value in values:
        into[root] = into.get(root, 0) ^ value


# --- what a sender waits for -----------------------------------------------------------------------------------------


@dataclass(slots=True)
class Pending(Generic[Content]):
    """A root that is not acknowledged yet; `place` is its place in the order in which roots were sent first.

    It was sent again so many `times` because its time was over, each of which gives it twice the time.
    """

    place: int
    content: Content
    rows: int
    root: Root
    value: int
    due: float
    times: int = 0
    went_out: bool = False
    """True if a process was there to which it was sent."""


class Acker(Generic[Content]):
    """The roots of one stage of a process, in order. Times are in seconds.

    A root has a number, and a new one whenever it is sent again. It has no time if it is sent at `NO_TIME`.
    """

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._pending: OrderedDict[int, Pending[Content]] = OrderedDict()
        self._places: dict[int, int] = {}
        self.next = 0
        """The place of the next root."""
        self.rows = 0
        """The rows that are not acknowledged."""
        self.resent = 0
        """The rows that went out again, so that a receiver may have had them twice."""

    @property
    def oldest(self) -> int:
        """Return the place of the oldest root that is not acknowledged: `next` if all are."""
        return next(iter(self._pending), self.next)

    @property
    def pending(self) -> Iterator[Pending[Content]]:
        """Yield all that is not acknowledged, in order."""
        yield from list(self._pending.values())

    def sent(self, content: Content, rows: int, root: Root, id: int, now: float) -> Pending[Content]:
        """Take note of a new root."""
        pending = Pending(self.next, content, rows, root, id, now + self._timeout)
        self._pending[self.next] = pending
        self._places[root.number] = self.next
        self.next += 1
        self.rows += rows
        return pending

    def sent_again(self, pending: Pending[Content], root: Root, id: int, now: float) -> None:
        """Take note that a root was sent again, as another one in the same place."""
        del self._places[pending.root.number]
        self._places[root.number] = pending.place
        pending.root, pending.value, pending.due = root, id, now + self._timeout * 2**pending.times
        if pending.went_out:
            self.resent += pending.rows

    def acked(self, number: int, value: int) -> bool:
        """Take an acknowledgement; return True if the root is done with by it. One of a former root counts nothing."""
        place = self._places.get(number)
        if place is None:
            return False
        pending = self._pending[place]
        pending.value ^= value
        if pending.value:
            return False
        del self._pending[place], self._places[number]
        self.rows -= pending.rows
        return True

    def overdue(self, now: float) -> Iterator[Pending[Content]]:
        """Yield the roots whose time is over, in order: they are to be sent again."""
        yield from [pending for pending in self._pending.values() if pending.due <= now]


@dataclass(slots=True)
class _Group(Generic[Position]):
    """Rows that were read one after the other, and the position of each split before them."""

    before: dict[str, Position]
    end: int | None = None


class Readings(Generic[Position]):
    """The rows of a source that are not acknowledged: groups of readings, each with all that followed from it."""

    def __init__(self) -> None:
        self._groups: deque[_Group[Position]] = deque()

    @property
    def is_open(self) -> bool:
        """True if rows were read whose frames may not all have gone out."""
        return bool(self._groups) and self._groups[-1].end is None

    def read(self, split: str, before: Position) -> None:
        """Take note that rows of a split were read, which had this position before."""
        if not self.is_open:
            self._groups.append(_Group({}))
        self._groups[-1].before.setdefault(split, before)

    def close(self, next_place: int) -> None:
        """Take note that all that followed from what was read has gone out, in places before this one."""
        if self.is_open:
            self._groups[-1].end = next_place

    def acked(self, oldest: int) -> None:
        """Forget what is acknowledged: all that went out before this place."""
        while self._groups and (end := self._groups[0].end) is not None and end <= oldest:
            self._groups.popleft()

    def __bool__(self) -> bool:
        """True if rows are not acknowledged."""
        return bool(self._groups)

    def positions(self) -> dict[str, Position]:
        """Return where each split is to be read again from, if rows of it are not acknowledged."""
        found: dict[str, Position] = {}
        for group in self._groups:
            for split, before in group.before.items():
                found.setdefault(split, before)
        return found
