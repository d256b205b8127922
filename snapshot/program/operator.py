"""What an operator is: keyed state, rows of one or two inputs, event time and timers; in one thread of one partition.

What always holds: all that an operator knows of the past is in its declared state (and, for control streams, in its
broadcast state), so that a restored one goes on as if nothing had happened.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, runtime_checkable

import pyarrow as pa

from snapshot.program.rows import Rows
from statebackend.ids import Partition, Uid
from statebackend.keyed_state import KeyedState
from statebackend.keys.types import KeyType
from statebackend.states.declarations import Declaration


class Emit(Protocol):
    """Where an operator's rows go: on down its chain, in the order in which they are given."""

    def __call__(self, rows: Rows, side: str | None = None) -> None:
        """Rows of the main output, or of a side output. Nothing is done for no rows."""


@dataclass(frozen=True, slots=True, eq=False)
class Input:
    """Rows that come to an operator. `keys` are the columns that together are the key; none for a control stream."""

    schema: pa.Schema
    keys: tuple[str, ...]
    timed: bool
    """Whether the rows have event times."""

    @property
    def key_declared(self) -> object:
        """What `KeyType.of` takes: the type of the one key column, or a tuple of them."""
        types = tuple(self.schema.field(name).type for name in self.keys)
        return types[0] if len(types) == 1 else types


Note = Callable[[str], object]
"""Is told what is about to be called, for the case that the process does not come back from it."""


def wall_clock() -> int:
    """The processing time: milliseconds since 1970."""
    return time.time_ns() // 1_000_000


def never() -> bool:
    """False."""
    return False


@dataclass(frozen=True, slots=True, eq=False)
class OperatorContext:
    """Where an operator is opened. `state` has the states that it declared; `broadcast` is what it gave into the cut
    that the attempt starts from, None if it starts from nothing.
    """

    uid: Uid
    partition: Partition
    parallelism: int
    key_type: KeyType
    state: KeyedState
    emit: Emit
    watermark: int
    """The event time up to which everything has been seen: `EARLIEST` before the first watermark."""
    broadcast: bytes | None = None
    clock: Callable[[], int] = wall_clock
    """What time it is for an operator that takes rows; `wake` says it itself."""
    note: Callable[[], Note | None] = lambda: None
    """Whom to tell of a call that is not about a row before it is made, if anybody wants to know now."""
    overdue: Callable[[], bool] = never
    """True if it is time to return from `rows`, `watermark` or `wake` after the call of the user's function that was
    made last: somebody else wants to work, or a marker waits."""


class Operator(Protocol):
    """An operator in one partition. The event loop's thread calls it, one call at a time; an exception of the user's
    functions goes through as it is, and the attempt fails with it.
    """

    def rows(self, input: int, rows: Rows) -> int | None:
        """Take rows of an input: all of them, or return how many of the first ones, one at least, when `overdue` says
        that it is time. The caller gives those that are left again, before any later ones of this input.
        """

    def watermark(self, timestamp: int) -> bool | None:
        """Event time is `timestamp` now; timers and windows up to it fire. `state.advance` is the operator's to call.

        The caller sends the watermark on when this returns. At the end of bounded input it is `LATEST`. Returns False
        if `overdue` said that it is time before all had fired: then it is called again, with this time or a later one,
        and perhaps the state is cut or rows are given before that; a restored operator is told the time again.
        """

    def wakes_at(self) -> int | None:
        """The processing time in milliseconds at which `wake` is wanted; None for never. Asked after every call."""

    def wake(self, now: int) -> object:
        """Processing time is `now`; timers up to it fire. Those for which it was too late are what `wakes_at` says."""

    def broadcast(self) -> bytes | None:
        """The broadcast state as it is now, for the cut; None for an operator without. The same in all partitions."""


@runtime_checkable
class Closing(Protocol):
    """An operator that wants to know when its attempt is over, because a function of the user holds something."""

    def close(self) -> None:
        """The attempt is over, in whichever way; called once, by the event loop's thread. Nothing can be emitted."""


@runtime_checkable
class Cutting(Protocol):
    """An operator that has something to put into its state before it is cut."""

    def before_cut(self) -> None:
        """The state is cut right after this call. Nothing can be emitted."""


@runtime_checkable
class Ending(Protocol):
    """An operator that has something to say when all input of a run has ended."""

    def end(self) -> None:
        """Emit what is to be said when no row comes any more before the job is started again.

        Called once, behind the last row; event time may be at its end by then. A restored operator is told again.
        """


@runtime_checkable
class TakingBatches(Protocol):
    """A step or an operator whose function is called for whole batches, which are not to be taken apart."""

    takes_batches: ClassVar[bool]


@runtime_checkable
class CountingLate(Protocol):
    """An operator to which rows may come too late."""

    @property
    def late(self) -> int:
        """How many did in this attempt, whether they were dropped or given to a side output."""


class KeyedOperator(Protocol):
    """An operator as it stands in a program: plain data that can be pickled and printed."""

    @property
    def label(self) -> str:
        """What it does, in a few words for people: `process(CountClicks)`, `sum(count) in 5 s windows`."""

    @property
    def inputs(self) -> tuple[Input, ...]:
        """What it takes; the first is keyed."""

    @property
    def states(self) -> Mapping[str, Declaration[Any]]:
        """The keyed states that it declares."""

    @property
    def output(self) -> pa.Schema:
        """What its main output is of."""

    @property
    def timed(self) -> bool:
        """Whether its output has event times."""

    @property
    def sides(self) -> Mapping[str, pa.Schema]:
        """Its side outputs."""

    def check(self) -> Sequence[str]:
        """What is wrong with it as far as can be told without running; each problem is a sentence."""

    def open(self, context: OperatorContext) -> Operator:
        """Open it in a partition."""


class Transform(Protocol):
    """A step without state, such as a map or a filter, as it stands in a program."""

    @property
    def label(self) -> str:
        """What it does, for people: `map(parse)`."""

    @property
    def output(self) -> pa.Schema:
        """What comes out."""

    def check(self) -> Sequence[str]:
        """What is wrong with it as far as can be told without running; each problem is a sentence."""

    def open(self) -> Apply:
        """Make it ready in a partition."""


class Apply(Protocol):
    """A transform at work. Rows that come out keep the event time of those that went in."""

    def __call__(self, rows: Rows) -> Sequence[Rows]:
        """What becomes of these rows, in order; none at all if nothing does."""
