"""The window operator of the simulated job, with keyed state, timers and a sink.

Invariant: state, timers and output change together, record by record; what changed since the last cut is
what the next delta holds, deletions included.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from recovery.testing.messages import Role
from recovery.testing.stream import END_OF_TIME, Item, RecordId, Row, Stream, group_of
from snapshot.cut.frames import Watermark
from snapshot.cut.watermarks import Watermarks
from statebackend.files import Clear, Clip, FileKind, FileSet, Take, restore_plan
from statebackend.ids import KeyGroup
from statebackend.keygroups import KeyGroupRange, joined


@dataclass(frozen=True, slots=True, order=True)
class StateKey:
    """The subject of a state's entry: a key, and the end of a window, or 0 for what belongs to the key alone."""

    kind: str
    key: int
    window_end: int = 0


Value = tuple[RecordId, ...] | None
"""None is a tombstone: the entry was deleted."""

State = dict[StateKey, tuple[RecordId, ...]]

IDS = "ids"
"""All records of a key so far, kept for the checks: what the state really contains."""
FIRED = "fired"
"""The ends of a key's windows that were emitted, likewise; as (end, 0), to be a value like the others."""
WINDOW = "window"
TIMER = "timer"


@dataclass(frozen=True, slots=True)
class StateFile:
    """The content of one file: its entries, and the key groups it speaks of."""

    kind: FileKind
    ranges: tuple[KeyGroupRange, ...]
    entries: dict[StateKey, Value]

    def __str__(self) -> str:
        return f"{self.kind.value} of {len(self.entries)}"


def group_range(group: KeyGroup) -> KeyGroupRange:
    """Return the range of one group."""
    return KeyGroupRange(group, KeyGroup(group + 1))


class WindowOperator:
    """The state of one partition in one attempt, and the rows that it emits."""

    def __init__(self, stream: Stream, role: Role, state: State, watermarks: Watermarks) -> None:
        self._stream = stream
        self._range = role.files.range
        self._state = state
        self._dirty: dict[StateKey, Value] = {}
        self._watermarks = watermarks
        self._slice = 0
        self._flushed = False
        self.rows: list[Row] = []
        for item in role.in_flight:
            self.take(item)

    @property
    def watermark(self) -> int | None:
        """Return the event time up to which windows are closed."""
        if self._flushed:
            return END_OF_TIME
        current = self._watermarks.current
        return current.timestamp if current is not None else None

    def take(self, item: Item) -> None:
        """Add a record to its window, and set the window's timer."""
        end = self._stream.window_end(item.timestamp)
        self._append(StateKey(IDS, item.key), item.id)
        self._append(StateKey(WINDOW, item.key, end), item.id)
        self._set(StateKey(TIMER, item.key, end), ())

    def advance(self, watermark: Watermark | None) -> None:
        """Advance event time if there is a new watermark, and emit and delete the windows that end by then."""
        if watermark is not None:
            self._fire(watermark.timestamp)

    def flush(self) -> None:
        """End event time, as all input has ended."""
        self._flushed = True
        self._fire(END_OF_TIME)

    def freeze(self, *, consolidate: bool) -> list[StateFile]:
        """Return what is to be written for this cut: the delta, and perhaps a base for one slice of the key groups."""
        files = []
        if self._dirty:
            ranges = joined(group_range(group_of(key.key)) for key in self._dirty)
            files.append(StateFile(FileKind.DELTA, ranges, self._dirty))
            self._dirty = {}
        if consolidate:
            files += self._consolidated()
        return files

    def _consolidated(self) -> list[StateFile]:
        half = max(1, len(self._range) // 2)
        first = self._range.first + (self._slice % 2) * (len(self._range) - half)
        self._slice += 1
        groups = KeyGroupRange(KeyGroup(first), KeyGroup(first + half))
        entries: dict[StateKey, Value] = {k: value for k, value in self._state.items() if group_of(k.key) in groups}
        return [StateFile(FileKind.BASE, (groups,), entries)] if entries else []

    def _fire(self, time: int) -> None:
        due = sorted(key for key in self._state if key.kind == TIMER and key.window_end <= time)
        for timer in due:
            window = StateKey(WINDOW, timer.key, timer.window_end)
            # A timer without its window can only come from a broken restore; its row shows it.
            self.rows.append(Row(timer.key, timer.window_end, tuple(sorted(self._state.get(window, ())))))
            self._append(StateKey(FIRED, timer.key), (timer.window_end, 0))
            self._delete(timer)
            self._delete(window)

    def _append(self, key: StateKey, id: RecordId) -> None:
        self._set(key, (*self._state.get(key, ()), id))

    def _set(self, key: StateKey, value: tuple[RecordId, ...]) -> None:
        self._state[key] = value
        self._dirty[key] = value

    def _delete(self, key: StateKey) -> None:
        self._state.pop(key, None)
        self._dirty[key] = None


def load(files: FileSet, contents: Mapping[str, StateFile]) -> State:
    """Return the state that a file set stands for, given what is in its files."""
    entries: dict[StateKey, Value] = {}
    for step in restore_plan(files):
        match step:
            case Clear(ranges):
                entries = {key: value for key, value in entries.items() if not _is_in(key, ranges)}
            case Take(file):
                entries.update(contents[file.path].entries)
            case Clip(keep):
                entries = {key: value for key, value in entries.items() if _is_in(key, keep)}
    return {key: value for key, value in entries.items() if value is not None}


def _is_in(key: StateKey, ranges: tuple[KeyGroupRange, ...]) -> bool:
    return any(group_of(key.key) in item for item in ranges)
