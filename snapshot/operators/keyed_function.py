"""Functions of one row at a time with state for each key: what their classes declare, and how they are run.

Invariant: while a function is called, its declared states are about the key of the row or of the timer that it
is called for; what it emits goes on in the order in which it was emitted, with the event time of what it was called
for; and its instance keeps nothing that a restored one would lack, but what it sets in `open`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, repeat
from types import MappingProxyType
from typing import Any, Final, Literal, NoReturn, TypeAlias, cast

import numpy as np
import pyarrow as pa

from snapshot.cut.frames import EARLIEST
from snapshot.operators.operator import Operator, OperatorContext
from snapshot.operators.row_class import Row, RowLike, batch_of, rows_of, shown, values_of
from snapshot.operators.rows import Rows, Times
from statebackend.errors import ProgramError
from statebackend.ids import Partition, Uid
from statebackend.keys.structs import StructKey
from statebackend.keys.times import DateKey, TimestampKey
from statebackend.keys.types import BinaryKey, BooleanKey, DecimalKey, IntegerKey, KeyType, NullKey, StringKey
from statebackend.random_state import KeyedRandom, RandomHandle
from statebackend.states.declarations import Declaration
from statebackend.states.timer_state import Timers, TimerState
from statebackend.states.value_state import CachedState

_NOTHING: Final[Mapping[str, object]] = MappingProxyType({})

EVENT_TIMERS: Final = "timers in event time"
PROCESSING_TIMERS: Final = "timers in processing time"
"""Under which names timers are kept: no attribute of a class can be called so."""

_AT_ONCE: Final = 2048
"""The state of so many rows is read at once, and what so many timers emit goes on at once."""

_UNASKED: Final = 32
"""After so many rows at most it is asked whether it is time to stop; first after one, then after twice as many."""

_NO_EVENT_TIME: Final = (
    "the rows of this stream have no event time, so ctx.timestamp is None: give them one with with_event_time(...) "
    "near the source, or use ctx.processing_timer(ctx.processing_time + ...)"
)

_DECLARE_RANDOM: Final = (
    "how much each key has drawn has to be in its state, or a replay would draw other numbers: declare "
    "`chance = RandomState()` in the class"
)
_NO_KEY_DRAWS: Final = "there is no key here whose numbers these would be"

_SAMPLED: Final = 16
"""The number of keys of which one is looked up, to see whether the state of all is in memory."""


class WithoutTimers(ProgramError, TypeError):
    """A timer was asked for by a function that has no `on_timer`."""


class WithoutRandom(ProgramError, TypeError):
    """Random numbers were drawn by a function that does not declare them."""


class WithoutEventTime(ProgramError, TypeError):
    """A timer in event time was asked for in a stream whose rows have no event times."""


class NoKeyHere(ProgramError, LookupError):
    """State or a timer of a key was asked for by a function that is called for a row without a key."""


class UnknownSide(ProgramError, LookupError):
    """A row was emitted to a side output that is not declared."""


@dataclass(frozen=True, slots=True)
class OpenContext:
    """The place where a function is opened."""

    uid: Uid
    partition: Partition
    parallelism: int


class ProcessContext:
    """The facts about a function's call, and the actions it can take. The same object in every call: do not keep it."""

    __slots__ = {  # noqa: RUF023  # help() shows the texts of a dict

        "_label": "",
        "_sides": "",
        "key": """The current key: the value of its column, or a tuple of several. None where there is no key.

It is the same in every call, as state has it: a struct is a tuple, a time with a zone is in UTC, -0.0 is 0.0.""",
        "timestamp": """The event time in milliseconds since 1970, which what is emitted has as well: that of the row;
the time for which an event timer was set; when a processing timer fires, the watermark, or the processing time as long
as there is none.

None in a stream without event times. It is also None for a control row without, though other rows have some: what is
emitted then has the time that it would have when a processing timer fires.""",
        "watermark": """The event time up to which everything has been seen, in milliseconds since 1970; rows with an
earlier one are late. It moves between batches of rows, never within one.""",
        "processing_time": """Milliseconds since 1970, as they were when this batch of rows came, the timer fired or
`on_window` was called.""",
        "random": """The random numbers of the current key, a `random.Random`, if the class declares a `RandomState`:
the n-th draw of a key is always the same, also after a roll-back and a rescale. See `RandomState`.""",
        "firing": """In `on_timer`, in which time the timer was set: "event" or "processing".""",
        "emit": """emit(row): give a row to the main output: a tuple or list by position, or a mapping by column.""",
        "timer": """timer(at): have `on_timer` called for this key when the watermark has come to `at`, in milliseconds
since 1970; once, however often it is asked for. A timer for a time that has passed fires with the next watermark; after
the end of all input there is none. Rows of the time `at` itself, and late ones, may still come after the call. In
a stream without event times it is refused.""",
        "delete_timer": """delete_timer(at): take back this key's event timer for this time; there need not be one.""",
        "processing_timer": """processing_timer(at): have `on_timer` called for this key at this processing time, in
milliseconds since 1970, or as soon as possible after it.""",
        "delete_processing_timer": """delete_processing_timer(at): take back this key's processing timer for this time;
there need not be one.""",
    }  # fmt: skip

    key: Any
    timestamp: int | None
    watermark: int
    processing_time: int
    random: KeyedRandom
    firing: Literal["event", "processing"] | None
    emit: Callable[[RowLike], None]
    timer: Callable[[int], None]
    delete_timer: Callable[[int], None]
    processing_timer: Callable[[int], None]
    delete_processing_timer: Callable[[int], None]

    def __init__(
        self,
        label: str,
        sides: Mapping[str, Collected],
        emit: Callable[[RowLike], None],
        states: Mapping[str, object],
    ) -> None:
        self._label, self._sides, self.emit = label, sides, emit
        declared = (state.random for state in states.values() if isinstance(state, RandomHandle))
        self.random = next(declared, None) or cast("KeyedRandom", _NoRandom(WithoutRandom, label, _DECLARE_RANDOM))
        self.key = self.timestamp = self.firing = None
        self.watermark, self.processing_time = EARLIEST, 0
        self.timer = self.delete_timer = self.processing_timer = self.delete_processing_timer = self._no_timers

    def emit_to(self, side: str, row: RowLike) -> None:
        """Give a row to a side output; `UnknownSide` if it is not declared."""
        collected = self._sides.get(side)
        if collected is None:
            declared = ", ".join(self._sides) or "there is none"
            raise UnknownSide(f"{self._label}: side output {side!r} is not declared (declared: {declared})")
        collected.rows.append(row)
        collected.times.append(self.timestamp)

    def refuse_timers(self) -> None:
        """Refuse all timers with `NoKeyHere`, as there is no key that could have one."""
        self.timer = self.delete_timer = self.processing_timer = self.delete_processing_timer = self._no_key

    def _no_key(self, at: int) -> None:
        raise NoKeyHere(f"{self._label}: a timer at {at} is asked for where there is no key")

    def refuse_event_timers(self) -> None:
        """Refuse event timers with `WithoutEventTime`, as there is no event time in which one could fire."""
        self.timer = self.delete_timer = self._no_event_time

    def _no_event_time(self, at: int) -> None:
        raise WithoutEventTime(f"{self._label}: a timer at {at} is asked for, and {_NO_EVENT_TIME}")

    def _no_timers(self, at: int) -> None:
        raise WithoutTimers(
            f"{self._label}: a timer at {at} is asked for, and the class has no method on_timer(self, at, ctx)"
        )


class _NoRandom:
    """The stand-in for random numbers where there are none."""

    def __init__(self, error: type[ProgramError], label: str, why: str) -> None:
        self._error, self._label, self._why = error, label, why

    def __getattr__(self, name: str) -> NoReturn:
        raise self._error(f"{self._label}: ctx.random.{name} is used, and {self._why}")


class Collected:
    """Rows for a side output, with their event times."""

    __slots__ = ("rows", "schema", "times")

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema
        self.rows: list[RowLike] = []
        self.times: list[int | None] = []


class KeyedFunction:
    """The base of classes with state for each key. Write one as a subclass of `KeyedProcess` or its like.

    Attributes of the class that are declarations, such as `clicks = ValueState(int, default=0)`, are states: in every
    call `self.clicks` is the state of the current key. An instance is plain data that is pickled with the program, and
    every partition works with its own copy; what it shall remember belongs into declared states.
    """

    def states(self) -> Mapping[str, Declaration[Any]]:
        """Return the declared states by name: the attributes that are declarations. Override it to declare others."""
        found: dict[str, Declaration[Any]] = {}
        for members in (*map(vars, reversed(type(self).__mro__)), vars(self)):
            found = {name: declared for name, declared in found.items() if name not in members}
            found.update((name, member) for name, member in members.items() if isinstance(member, Declaration))
        return found

    def open(self, ctx: OpenContext, /) -> None:
        """Open connections, models and the like; called once in each partition before all else. There is no key yet."""

    def on_timer(self, at: int, ctx: Any, /) -> None:
        """Handle a timer for `at` that fires, with its key. A class that does not override it can set no timers."""

    def close(self) -> None:
        """Release what `open` took; called when the attempt is over, unless its process was killed."""


def has_timers(function: KeyedFunction) -> bool:
    """True if the class has an `on_timer` of its own."""
    return type(function).on_timer is not KeyedFunction.on_timer


def states_of(function: KeyedFunction) -> Mapping[str, Declaration[Any]]:
    """Return the states that the function declares, and its timers."""
    declared = dict(function.states())
    if has_timers(function):
        declared |= {EVENT_TIMERS: Timers("event"), PROCESSING_TIMERS: Timers("processing")}
    return declared


Handler: TypeAlias = Callable[[Row, Any], object]
"""`on_event` and its like, bound to the instance."""


@dataclass(frozen=True, slots=True, eq=False)
class Outputs:
    """The outputs of a function, and its name in messages."""

    label: str
    main: pa.Schema
    sides: Mapping[str, pa.Schema]
    timed: bool


class FunctionRun(Operator):
    """A function at work in one partition: it is fed rows with their keys, and its timers fire."""

    def __init__(
        self,
        function: KeyedFunction,
        context: OperatorContext,
        outputs: Outputs,
        shared: Mapping[str, object] = _NOTHING,
    ) -> None:
        """Open a copy of the function; `shared` are the attributes that it has besides its states."""
        self.label: Final = outputs.label
        self.function: Final = copy.copy(function)
        self._context, self._outputs = context, outputs
        self._main: list[RowLike] = []
        self._sides = {name: Collected(schema) for name, schema in outputs.sides.items()}
        state = context.state
        self.states: Final[dict[str, object]] = {name: state[name] for name in function.states()}
        self.ctx: Final = ProcessContext(outputs.label, self._sides, self._main.append, self.states)
        self._event_timers: TimerState | None = None
        self._processing_timers: TimerState | None = None
        if has_timers(function):
            self._open_timers(state[EVENT_TIMERS], state[PROCESSING_TIMERS])
        self.bind({**self.states, **shared})
        cached = [opened.parts() for opened in self.states.values() if isinstance(opened, CachedState)]
        self._prefetched = [values for _, _, values in cached]
        self._addresses = cached[0][0].addresses if cached else None
        self.advance(context.watermark)
        self.function.open(OpenContext(context.uid, context.partition, context.parallelism))

    def _open_timers(self, event: TimerState, processing: TimerState) -> None:
        self._event_timers, self._processing_timers = event, processing
        ctx = self.ctx
        ctx.timer, ctx.delete_timer = event.register, event.delete
        if not self._outputs.timed:
            ctx.refuse_event_timers()
        ctx.processing_timer, ctx.delete_processing_timer = processing.register, processing.delete

    def bind(self, attributes: Mapping[str, object]) -> None:
        """Set attributes of the instance, even of a frozen one."""
        for name, value in attributes.items():
            object.__setattr__(self.function, name, value)

    def feed(self, handler: Handler, columns: Sequence[str], rows: Rows) -> int:
        """Call the handler for each row, with its key in these columns, until `overdue`; return for how many."""
        self._look_at_the_clock()
        batch, ctx, main = rows.batch, self.ctx, self._main
        keys = keys_of(batch, columns, self._context.key_type)
        events = rows_of(batch)
        times: Iterator[int | None] = repeat(None) if rows.times is None else iter(rows.times.tolist())
        set_key, ends = self._context.state.set_key, cast("list[int]", [])
        ended, overdue, unasked = ends.append, self._context.overdue, 1
        key: object = None
        event: Row = None
        calls = zip(keys, events, times, strict=False)
        try:
            while len(ends) < len(keys):
                if len(ends) % _AT_ONCE == 0:
                    self._prefetch(keys[len(ends) : len(ends) + _AT_ONCE])
                for key, event, ctx.timestamp in islice(calls, min(unasked, _AT_ONCE - len(ends) % _AT_ONCE)):
                    set_key(key)
                    ctx.key = key
                    handler(event, ctx)
                    ended(len(main))
                if overdue():
                    break
                unasked = min(2 * unasked, _UNASKED)
        except BaseException as error:
            error.add_note(f"in {self._outputs.label}, for the key {shown(key)} and the row {shown(event)}")
            if rows.times is None and isinstance(error, TypeError) and "NoneType" in str(error):
                error.add_note(_NO_EVENT_TIME)
            raise
        self._flush(None if rows.times is None else rows.times[: len(ends)], ends)
        return len(ends)

    def feed_unkeyed(self, handler: Handler, rows: Rows) -> int:
        """Call the handler for each row, without a key, until `overdue`; return for how many.

        If the rows have no event times, what it emits has the current one.
        """
        self._look_at_the_clock()
        ctx, main, ends = self.ctx, self._main, cast("list[int]", [])
        timers = (ctx.timer, ctx.delete_timer, ctx.processing_timer, ctx.delete_processing_timer)
        ctx.refuse_timers()
        ctx.key, drawn = None, ctx.random
        ctx.random = cast("KeyedRandom", _NoRandom(NoKeyHere, self.label, _NO_KEY_DRAWS))
        times: Iterator[int | None] = repeat(None) if rows.times is None else iter(rows.times.tolist())
        event: Row = None
        try:
            for event, ctx.timestamp in zip(rows_of(rows.batch), times, strict=False):
                handler(event, ctx)
                ends.append(len(main))
                if self._context.overdue():
                    break
        except BaseException as error:
            error.add_note(f"in {self._outputs.label}, for the row {shown(event)}")
            raise
        ctx.timer, ctx.delete_timer, ctx.processing_timer, ctx.delete_processing_timer = timers
        ctx.random = drawn
        times_of_all = None if rows.times is None else rows.times[: len(ends)]
        if times_of_all is None and self._outputs.timed:
            times_of_all = np.full(len(ends), self._event_time, dtype=np.int64)
            for side in self._sides.values():
                side.times[:] = [self._event_time] * len(side.rows)
        self._flush(times_of_all, ends)
        return len(ends)

    @property
    def _event_time(self) -> int:
        """Return the event time of what is emitted now, if neither a row nor an event timer gives another."""
        return self.ctx.watermark if self.ctx.watermark > EARLIEST else self.ctx.processing_time

    def advance(self, watermark: int) -> None:
        """Move event time to this watermark."""
        self._context.state.advance(watermark=watermark)
        self.ctx.watermark = max(self.ctx.watermark, watermark)

    def watermark(self, timestamp: int) -> bool:
        """Move event time to `timestamp` and fire timers up to it, until `overdue`; true if none of them is left."""
        self.advance(timestamp)
        if self._event_timers is None:
            return True
        self._look_at_the_clock()
        return self._fire(self._event_timers, "event")

    def close(self) -> None:
        """Close the function."""
        self.function.close()

    def wakes_at(self) -> int | None:
        """Return the time of the next processing timer; None if there is none."""
        return None if self._processing_timers is None else self._processing_timers.next_time()

    def wake(self, now: int) -> None:
        """Move processing time to `now` and fire timers up to it, until `overdue`."""
        self._clock_says(now)
        if self._processing_timers is not None:
            self._fire(self._processing_timers, "processing")

    def _look_at_the_clock(self) -> None:
        self._clock_says(self._context.clock())

    def _clock_says(self, now: int) -> None:
        ctx = self.ctx
        if now > ctx.processing_time:
            ctx.processing_time = now
            self._context.state.advance(processing_time=now)

    def _prefetch(self, keys: Sequence[object]) -> None:
        """Read at once what the state's caches lack of these keys.

        Where a sample is all there, few are lacking, and looking for each of them would cost more than it saves.
        """
        if self._addresses is None:
            return
        sample = self._addresses(keys[::_SAMPLED])
        lacking = [values for values in self._prefetched if not all(map(values.young.__contains__, sample))]
        if lacking:
            addresses = self._addresses(keys)
            for values in lacking:
                values.prefetch(addresses)

    def _fire(self, timers: TimerState, kind: Literal["event", "processing"]) -> bool:
        """Fire the timers that are due, until `overdue`; return True if all have fired. Those left over stay due."""
        ctx, main, on_timer = self.ctx, self._main, self.function.on_timer
        timed = self._outputs.timed
        times: list[int] = []
        ends: list[int] = []
        ctx.firing = kind
        note = self._context.note()
        overdue, all_fired = self._context.overdue, True
        for fired in timers.due():
            at = fired.time if kind == "event" else self._event_time
            ctx.key, ctx.timestamp = fired.key, at if timed else None
            if note is not None:
                note(f"the timer in {kind} time at {fired.time} of the key {shown(fired.key)}")
            try:
                on_timer(fired.time, ctx)
            except BaseException as error:
                error.add_note(
                    f"in {self._outputs.label}, for the timer in {kind} time at {fired.time} of the key "
                    f"{shown(fired.key)}"
                )
                raise
            times.append(at)
            ends.append(len(main))
            if len(ends) >= _AT_ONCE:
                self._flush(np.array(times, dtype=np.int64), ends)
                times.clear()
                ends.clear()
            if overdue():
                all_fired = False
                break
        ctx.firing = None
        self._flush(np.array(times, dtype=np.int64), ends)
        return all_fired

    def _flush(self, times: Times | None, ends: Sequence[int]) -> None:
        """Emit what was collected; `ends` says how many rows there were after each call that had one of the times."""
        outputs, emit, main = self._outputs, self._context.emit, self._main
        if main:
            batch = batch_of(main, outputs.main, outputs.label)
            emitted = None
            if outputs.timed and times is not None:
                bounds = np.array([0, *ends], dtype=np.int64)
                emitted = np.repeat(times, bounds[1:] - bounds[:-1])
            main.clear()
            emit(Rows(batch, emitted))
        for name, collected in self._sides.items():
            if collected.rows:
                batch = batch_of(collected.rows, collected.schema, f"{outputs.label}, side output {name!r}")
                given = np.array(collected.times, dtype=np.int64) if outputs.timed else None
                collected.rows.clear()
                collected.times.clear()
                emit(Rows(batch, given), name)


def keys_of(batch: pa.RecordBatch, columns: Sequence[str], key_type: KeyType) -> list[Any]:
    """Return the keys of the rows as `KeyType.decode` has them: values of the one column, or tuples of several."""
    parts = [values_of(batch.column(name)) for name in columns]
    keys = parts[0] if len(parts) == 1 else list(zip(*parts, strict=True))
    return keys if _comes_decoded(key_type) else [key_type.decode(key_type.encode(key)) for key in keys]


def _comes_decoded(key_type: KeyType) -> bool:
    """True if the values of a column are in plain Python as `KeyType.decode` gives them."""
    match key_type:
        case IntegerKey() | BooleanKey() | StringKey() | BinaryKey() | DecimalKey() | DateKey() | NullKey():
            return True
        case TimestampKey():
            return not key_type.zoned and key_type.unit != "ns"
        case StructKey():
            return key_type.names is None and all(map(_comes_decoded, key_type.fields))
        case _:
            return False
