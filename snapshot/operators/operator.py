"""The contract of an operator: keyed state, rows of one or two inputs, event time and timers, in one thread.

Invariant: all that an operator knows of the past is in its declared state (and, for control streams, in its
broadcast state), so that a restored one goes on as if nothing had happened.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol, TypeAlias, runtime_checkable

import pyarrow as pa

from snapshot.operators.rows import Rows
from statebackend.ids import Partition, Uid
from statebackend.keyed_state import KeyedState
from statebackend.keys.types import KeyType
from statebackend.states.declarations import Declaration

Per: TypeAlias = Literal["record", "batch", "end"]
"""The moments at which an aggregate gives results: a row for each of its input, for each key of a batch, or for each
key when all input has ended."""


class Emit(Protocol):
    """The exit of an operator's rows: on down its chain, in the order in which they are given."""

    def __call__(self, rows: Rows, side: str | None = None) -> None:
        """Pass rows on to the main output, or to a side output; do nothing for no rows."""


@dataclass(frozen=True, slots=True, eq=False)
class Input:
    """Rows that come to an operator. `keys` are the columns that together are the key; none for a control stream."""

    schema: pa.Schema
    keys: tuple[str, ...]
    timed: bool
    """True if the rows have event times."""

    @property
    def key_type(self) -> KeyType:
        """Return the type of the key: of the one column, or of all together."""
        types = tuple(self.schema.field(name).type for name in self.keys)
        return KeyType.of(types[0] if len(types) == 1 else types)


Note = Callable[[str], object]
"""Is told what is about to be called, for the case that the process does not come back from it."""


def name_of(function: object) -> str:
    """Return the name of a function, a class or an instance for messages."""
    name = getattr(function, "__name__", None) or type(function).__name__
    return "lambda" if name == "<lambda>" else str(name)


def never() -> bool:
    """Return False."""
    return False


@dataclass(frozen=True, slots=True, eq=False)
class OperatorContext:
    """The place where an operator is opened. `state` has its declared states; `broadcast` is what it gave into the cut
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
    clock: Callable[[], int]
    """Returns the processing time of the stage in milliseconds since 1970, for rows; `wake` gives the time itself. An
    operator knows no other time."""
    broadcast: bytes | None = None
    note: Callable[[], Note | None] = lambda: None
    """Returns the function to tell before a call that is not about a row; None if such calls are not noted now."""
    overdue: Callable[[], bool] = never
    """True if it is time to return from `rows`, `watermark` or `wake` after the call of the user's function that was
    made last: another stage wants to work, or a marker waits."""


class Operator(ABC):
    """An operator in one partition. The event loop's thread calls it, one call at a time; an exception of the user's
    functions goes through as it is, and the attempt fails with it.
    """

    late: int = 0
    """The number of rows that came too late in this attempt, whether they were dropped or given to a side output."""

    @abstractmethod
    def rows(self, input: int, rows: Rows) -> int | None:
        """Take rows of an input: all of them, or only the first ones, at least one, when `overdue` says so.

        Returns how many were taken; None for all. The caller gives those that are left again, before any later ones of
        this input.
        """

    @abstractmethod
    def watermark(self, timestamp: int) -> bool | None:
        """Move event time to `timestamp`, and fire timers and windows up to it. The operator calls `state.advance`.

        The caller sends the watermark on when this returns. At the end of bounded input it is `LATEST`. Returns False
        if `overdue` said that it is time before all had fired: then it is called again, with this time or a later one,
        and perhaps the state is cut or rows are given before that; a restored operator is told the time again.
        """

    def wakes_at(self) -> int | None:
        """Return the processing time in milliseconds at which to call `wake`; None for never. Asked after each call."""
        return None

    def wake(self, now: int) -> object:  # noqa: B027, most wait for no time
        """Move processing time to `now` and fire timers up to it; `wakes_at` then gives the time of any left over."""

    def before_cut(self) -> None:  # noqa: B027, most lack nothing
        """Put into the state what it lacks; it is cut right after this call. Nothing can be emitted."""

    def broadcast(self) -> bytes | None:
        """Return the broadcast state for the cut, the same in all partitions; None for an operator without."""
        return None

    def end(self) -> None:  # noqa: B027, most have given all by then
        """Emit the final results: no row comes any more before the job is started again.

        Called once, after the last row; event time may be at its end by then. A restored operator is called again.
        """

    def close(self) -> None:  # noqa: B027, most hold nothing
        """Release what is held, such as by a function of the user: the attempt is over, in whichever way.

        Called once, by the event loop's thread. Nothing can be emitted.
        """


@runtime_checkable
class TakingBatches(Protocol):
    """A step or an operator whose function is called for whole batches, which are not to be taken apart."""

    takes_batches: ClassVar[bool]


class KeyedOperator(Protocol):
    """An operator as it stands in a program: plain data that can be pickled and printed."""

    @property
    def label(self) -> str:
        """Return what it does, in a few words for people: `process(CountClicks)`, `sum(count) in 5 s windows`."""

    @property
    def inputs(self) -> tuple[Input, ...]:
        """Return its inputs; the first is keyed."""

    @property
    def states(self) -> Mapping[str, Declaration[Any]]:
        """Return the keyed states that it declares."""

    @property
    def output(self) -> pa.Schema:
        """Return the schema of its main output."""

    @property
    def timed(self) -> bool:
        """True if its output has event times."""

    @property
    def sides(self) -> Mapping[str, pa.Schema]:
        """Return the schemas of its side outputs by name."""

    def check(self) -> Sequence[str]:
        """Return the problems that can be found without running it, each a sentence."""

    def open(self, context: OperatorContext) -> Operator:
        """Open it in a partition."""


class Transform(Protocol):
    """A step without state, such as a map or a filter, as it stands in a program."""

    @property
    def label(self) -> str:
        """Return what it does, for people: `map(parse)`."""

    @property
    def output(self) -> pa.Schema:
        """Return the schema of the rows that come out."""

    def check(self) -> Sequence[str]:
        """Return the problems that can be found without running it, each a sentence."""

    def open(self) -> Apply:
        """Make it ready in a partition."""


class Apply(Protocol):
    """A transform at work. Rows that come out keep the event time of those that went in."""

    def __call__(self, rows: Rows) -> Sequence[Rows]:
        """Return the rows that these become, in order; nothing at all if there are none."""
