"""Sessions at work in one partition: what rows extend, begin and join, which rows are late, what fires.

Invariant: a session gives its results when time has come to its end, once more whenever a later row changes
it, and is gone when time is past its end by the allowed lateness. For every session there is a timer, at its end or
earlier, or if it gave its results at the time when it will be gone. For whose keys it is how late, after partitions
that had come to different times were made into one, is in the state.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Generic, Protocol, TypeAlias, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from snapshot.cut.frames import EARLIEST, LATEST
from snapshot.operators.keyed_function import keys_of
from snapshot.operators.operator import Input, Operator, OperatorContext
from snapshot.operators.rows import Rows, keys_in
from snapshot.operators.windows.keys import GroupTimes
from snapshot.operators.windows.kinds import Session
from snapshot.operators.windows.operator import LATE, Lateness
from snapshot.operators.windows.sessions import BatchSessions, Piece, SequenceCodec, united
from statebackend.keys.columns import KeyColumn, canonical_column
from statebackend.states.aggregates import AggregateTable
from statebackend.states.codec_shapes import TupleCodec
from statebackend.states.codecs import Codec, IntCodec
from statebackend.states.declarations import Declaration, ValueState
from statebackend.states.namespaces import NO_NAMESPACE, Window
from statebackend.states.timer_state import Timers, TimerState
from statebackend.states.value_state import ValueHandle
from statebackend.tables.values.aggregations import Count

C = TypeVar("C")

_SESSIONS: Final = "sessions of keys"
_TIMERS: Final = "timers of sessions"
_GROUPS: Final = "times of key groups"
"""Under which names they are kept: no attribute of a class can be called so."""

_AT_ONCE: Final = 4096
"""The key groups of so many results are noted together."""

_NEW: Final = -1

Kept: TypeAlias = "tuple[tuple[int, int, C], ...]"
"""The sessions of a key: start, end and content."""


@dataclass(frozen=True, slots=True, eq=False)
class Given(Generic[C]):
    """A result: of this key, in these times."""

    key: object
    span: Window
    content: C


class SessionContents(Protocol[C]):
    """The contents of sessions."""

    at_once: ClassVar[int]
    """So many results are given together at most, but for what one batch of rows changes: one, if it is a call of the
    user's function, which may take its time.
    """

    def merged(self, rows: Rows, groups: NDArray[np.int64], kept: Sequence[Sequence[C]]) -> list[C]:
        """Return for each group what its kept sessions have come to together, and then with its rows, in order.

        `groups` has the group of each row.
        """

    def give(self, results: Sequence[Given[C]]) -> None:
        """Emit results, at least one; `flush` is called after the last of several calls."""

    def flush(self) -> None:
        """Emit what was collected."""

    def advance(self, watermark: int) -> None:
        """Move event time to this watermark for what follows."""

    def close(self) -> None:
        """Release what is held, as the attempt is over."""


def session_states(kind: Session, content: Codec[C]) -> Mapping[str, Declaration[Any]]:
    """Return the states that an operator over sessions declares."""
    sessions: Codec[Any] = TupleCodec([_any(IntCodec()), _any(IntCodec()), _any(content)])
    groups = {_GROUPS: AggregateTable(keys=Count())} if kind.time == "event" else {}
    return {_SESSIONS: ValueState(SequenceCodec(sessions), default=()), _TIMERS: Timers(kind.time), **groups}


def _any(codec: Any) -> Codec[object]:
    found: Codec[object] = codec
    return found


@dataclass(slots=True, eq=False)
class _Change(Generic[C]):
    """The change of a key: sessions with a content, or with the number of a group that is still to be merged."""

    key: object
    now: int
    """The event time for it."""
    sessions: list[tuple[int, int, int, C | None]]


class SessionOperator(Operator, Generic[C]):
    """The sessions of a partition. `late` is how many rows came too late, to whatever became of them."""

    def __init__(
        self,
        kind: Session,
        lateness: Lateness,
        contents: SessionContents[C],
        input: Input,
        context: OperatorContext,
    ) -> None:
        self._kind, self._lateness, self._contents, self._keys = kind, lateness, contents, input.keys
        self._state, self._emit, self._clock = context.state, context.emit, context.clock
        self._overdue = context.overdue
        self._sessions: ValueHandle[Kept[C]] = context.state[_SESSIONS]
        self._timers: TimerState = context.state[_TIMERS]
        self._now = context.watermark if kind.time == "event" else EARLIEST
        self._groups = GroupTimes(context.state[_GROUPS], context) if kind.time == "event" else None
        self.late = 0
        self._state.advance(watermark=context.watermark)

    # --- taking rows --------------------------------------------------------------------------------------------------

    def rows(self, input: int, rows: Rows) -> None:
        """Take rows into their sessions."""
        del input
        if not len(rows):
            return
        times = rows.times
        if self._kind.time == "processing":
            self._now = max(self._now, self._clock())
            times = np.full(len(rows), self._now, dtype=np.int64)
        assert times is not None
        found = BatchSessions.of(self._state.keys(keys_in(rows.batch, self._keys)), times, self._kind.gap)
        keys = keys_of(rows.batch.select(self._keys).take(pa.array(found.first_row)), self._keys, self._state.key_type)
        self._state.set_namespace(NO_NAMESPACE)
        self._sessions.prefetch(keys)
        kept: list[list[C]] = []
        group_of = np.full(len(found), _NEW, dtype=np.int64)
        changes = list(self._changes(keys, self._times_of(keys), found, group_of, kept))
        groups = group_of[found.of_row]
        late = groups == _NEW
        if late.any():
            self._late(rows.where(late))
            rows, groups = rows.where(~late), groups[~late]
        if kept:
            self._apply(changes, self._contents.merged(rows, groups, kept))

    def _times_of(self, keys: Sequence[object]) -> list[int]:
        """Return the time for each of these keys."""
        if self._groups is None or not self._groups.ahead(self._now):
            return [self._now] * len(keys)
        times: list[int] = self._groups.of(self._column(keys), self._now).tolist()
        return times

    def _column(self, keys: Iterable[object]) -> KeyColumn:
        key_type = self._state.key_type
        return canonical_column([key_type.encode(key) for key in keys], key_type)

    def _changes(
        self,
        keys: Sequence[object],
        times: Sequence[int],
        found: BatchSessions,
        group_of: NDArray[np.int64],
        kept: list[list[C]],
    ) -> Iterator[_Change[C]]:
        """Yield the change of each key whose sessions change.

        Writes into `group_of` the group of each session of the batch that is not late, and into `kept` the contents
        that the sessions of each group had before.
        """
        starts, ends, code = found.starts.tolist(), found.ends.tolist(), found.of_key.tolist()
        first = 0
        while first < len(keys):
            end = first + 1
            while end < len(keys) and code[end] == code[first]:
                end += 1
            self._state.set_key(keys[first])
            before = self._sessions.get()
            pieces = [Piece(one[0], one[1], _NEW - 1 - at) for at, one in enumerate(before)]
            pieces += [Piece(starts[at], ends[at], at) for at in range(first, end)]
            now = times[first]
            change = _Change[C](keys[first], now, [])
            changed = False
            for group in united(pieces):
                span = (min(piece.start for piece in group), max(piece.end for piece in group))
                new = [piece.content for piece in group if piece.content >= 0]
                old = [before[_NEW - 1 - piece.content] for piece in group if piece.content < 0]
                if not new:
                    change.sessions.append((*span, _NEW, old[0][2]))
                elif self._gone_at(span[1]) > now:
                    changed = True
                    group_of[new] = len(kept)
                    change.sessions.append((*span, len(kept), None))
                    kept.append([one[2] for one in old])
                    if not any(one[1] > now for one in old):
                        self._timers.register(self._next_time(span[1], now))
            if changed:
                yield change
            first = end

    def _apply(self, changes: Sequence[_Change[C]], merged: Sequence[C]) -> None:
        """Keep the new contents of the sessions, and give the results of changed ones that have ended by now."""
        again: list[Given[C]] = []
        for change in changes:
            sessions: list[tuple[int, int, Any]] = []
            for start, end, group, content in change.sessions:
                sessions.append((start, end, content if group == _NEW else merged[group]))
                if group != _NEW and end <= change.now:
                    again.append(Given(change.key, Window(start, end), merged[group]))
            self._state.set_key(change.key)
            self._sessions.set(tuple(sessions))
        if again:
            self._contents.give(again)
            self._gave([given.key for given in again])

    def _gave(self, keys: Sequence[object]) -> None:
        """Note that the results of these keys were given."""
        self._contents.flush()
        if keys and self._groups is not None and not self._groups.complete:
            self._groups.gave(self._column(keys), self._now)

    def _late(self, rows: Rows) -> None:
        self.late += len(rows)
        if self._lateness.side:
            self._emit(rows, LATE)

    # --- time ---------------------------------------------------------------------------------------------------------

    def watermark(self, timestamp: int) -> bool:
        """Give the results of sessions that end by then; at the end of event time also those of processing time.

        Returns False if `overdue` came before all had given them.
        """
        self._state.advance(watermark=timestamp)
        self._contents.advance(timestamp)
        if self._kind.time == "event":
            return self._fire(timestamp)
        return timestamp < LATEST or self._fire(timestamp, goes_on=True)

    def wakes_at(self) -> int | None:
        """Return the time of the next timer of sessions of processing time; None if there is none."""
        return None if self._kind.time == "event" else self._timers.next_time()

    def wake(self, now: int) -> None:
        """Give the results of sessions of processing time that end by then."""
        self._state.advance(processing_time=now)
        if self._kind.time == "processing":
            self._fire(now)

    def _fire(self, now: int, *, goes_on: bool = False) -> bool:
        """Give the results of what ends by now, until `overdue`; return True if nothing of it is left.

        What is left has a timer. Time comes to `now`, or to that of the last timer that has fired; unless the clock
        `goes_on`.
        """
        reached, is_left = now, False
        results: list[Given[C]] = []
        keys: list[object] = []
        for fired in self._timers.due(now):
            left: list[tuple[int, int, C]] = []
            for session in self._sessions.get():
                start, end, content = session
                if end == fired.time:
                    results.append(Given(fired.key, Window(start, end), content))
                if self._gone_at(end) > fired.time:
                    self._timers.register(self._next_time(end, fired.time))
                    left.append(session)
            if left:
                self._sessions.set(tuple(left))
            else:
                self._sessions.clear()
            if len(results) >= self._contents.at_once:
                self._contents.give(results)
                keys += [given.key for given in results]
                results.clear()
            if len(keys) >= _AT_ONCE:
                self._gave(keys)
                keys.clear()
            if self._overdue():
                reached, is_left = fired.time, True
                break
        if results:
            self._contents.give(results)
        self._gave([*keys, *(given.key for given in results)])
        if not goes_on:
            self._now = max(self._now, reached)
        return not is_left

    def _next_time(self, end: int, now: int) -> int:
        """Return when something next happens to a session that ends then: it gives its results, or is forgotten."""
        return end if end > now else self._gone_at(end)

    def _gone_at(self, end: int) -> int:
        """Return when a session that ends then is forgotten."""
        return min(end + self._lateness.allowed, LATEST)

    def before_cut(self) -> None:
        """Write down the times of key groups."""
        if self._groups is not None:
            self._groups.before_cut(self._now)

    def close(self) -> None:
        """Close the contents, as the attempt is over."""
        self._contents.close()
