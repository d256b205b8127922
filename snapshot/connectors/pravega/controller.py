"""A client of the controller: streams and their segments, transactions and their states.

Invariant: a transaction is decided by the controller alone, which has said COMMITTING or ABORTING before anything of it
can be seen; neither becomes the other.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from snapshot.connectors.pravega.address import Host
from snapshot.connectors.pravega.calls import CallFailed, Calls, Status
from snapshot.connectors.pravega.messages import Fields, message, parsed

_SERVICE: Final = "/io.pravega.controller.stream.api.grpc.v1.ControllerService/"
_NO_TIME: Final = -(1 << 63)
"""The time of a commit whose writer notes none."""
_LOW: Final = (1 << 64) - 1
_PAUSES: Final = (0.002, 0.005, 0.01, 0.02, 0.05)
"""Seconds between two looks at a transaction that is being committed or aborted; the last one again and again."""


class TransactionState(IntEnum):
    """The states of a transaction."""

    UNKNOWN = 0
    OPEN = 1
    COMMITTING = 2
    COMMITTED = 3
    ABORTING = 4
    ABORTED = 5


class Made(IntEnum):
    """The controller's answer when a stream or scope is to be made."""

    NEW = 0
    FAILED = 1
    EXISTS = 2
    NO_SCOPE = 3
    INVALID_NAME = 4


@dataclass(frozen=True, slots=True)
class Segment:
    """A part of a stream for the keys whose hashes are in [low, high)."""

    scope: str
    stream: str
    id: int
    low: float
    high: float

    @property
    def name(self) -> str:
        """Return the name by which segment stores know it."""
        return f"{self.scope}/{self.stream}/{self.id & 0xFFFFFFFF}.#epoch.{self.id >> 32}"

    def of_transaction(self, transaction: int) -> str:
        """Return the name of the segment of a transaction that becomes part of this one."""
        return f"{self.name}#transaction.{transaction:032x}"


@dataclass(frozen=True, slots=True)
class Begun:
    """A transaction that is open: its number, its segments, and what segment stores want to be shown."""

    transaction: int
    segments: Sequence[Segment]
    token: str


class Controller:
    """The controller for one scope. Every method may raise `CallFailed`."""

    def __init__(self, calls: Calls, scope: str) -> None:
        self._calls = calls
        self._scope = scope

    def close(self) -> None:
        """Let the connection go."""
        self._calls.close()

    def has_scope(self) -> bool:
        """True if the scope is there."""
        return bool(self._ask("checkScopeExists", message((1, self._scope))).number(1))

    def has_stream(self, stream: str) -> bool:
        """True if the stream is there."""
        return bool(self._ask("checkStreamExists", self._stream(stream)).number(1))

    def make_scope(self) -> Made:
        """Make the scope; the answer may also be that it exists, or that its name is none."""
        made = self._ask("createScope", message((1, self._scope))).number(1)
        return {0: Made.NEW, 2: Made.EXISTS, 3: Made.INVALID_NAME}.get(made, Made.FAILED)

    def make_stream(self, stream: str, segments: int) -> Made:
        """Make a stream with so many segments, whose number does not change by itself."""
        config = message((1, self._stream(stream)), (2, message((4, segments))), (3, b""))
        made = self._ask("createStream", config).number(1)
        return Made(made) if made in set(Made) else Made.FAILED

    def segments(self, stream: str) -> tuple[Sequence[Segment], str]:
        """Return the segments that take events now, and what segment stores want to be shown."""
        found = self._ask("getCurrentSegments", self._stream(stream))
        return [_segment(one) for one in found.all(1)], found.text(2)

    def host_of(self, segment: Segment) -> Host:
        """Return the segment store that has a segment now."""
        found = self._ask("getURI", message((1, self._stream(segment.stream)), (2, segment.id)))
        return Host(found.text(1), found.number(2))

    def truncate(self, stream: str, cut: Mapping[int, int]) -> bool:
        """Drop what is before these offsets of segments; false if the controller does not do it now."""
        entries = [(2, message((1, segment), (2, offset))) for segment, offset in cut.items()]
        return self._ask("truncateStream", message((1, self._stream(stream)), *entries)).number(1) == 0

    # --- transactions -------------------------------------------------------------------------------------------------

    def begin(self, stream: str, lease: float) -> Begun:
        """Open a transaction, which is aborted if it is not decided in `lease` seconds."""
        found = self._ask("createTransaction", message((1, self._stream(stream)), (2, int(lease * 1000))))
        id = found.inner(1)
        number = (id.number(1) & _LOW) << 64 | id.number(2) & _LOW
        return Begun(number, [_segment(one) for one in found.all(2)], found.text(3))

    def commit(self, stream: str, transaction: int) -> TransactionState:
        """Commit a transaction that is open, and return its state when it is decided and done.

        One that was decided before is left as it is.
        """
        request = (*self._transaction(stream, transaction), (3, ""), (4, _NO_TIME))
        self._ask("commitTransaction", message(*request))  # whether it did says the state
        return self._decided(stream, transaction)

    def abort(self, stream: str, transaction: int) -> TransactionState:
        """Abort a transaction that is open, and return its state when it is decided and done."""
        self._ask("abortTransaction", message(*self._transaction(stream, transaction)))
        return self._decided(stream, transaction)

    def state(self, stream: str, transaction: int) -> TransactionState:
        """Return the state; UNKNOWN also of one that the controller has forgotten."""
        found = self._ask("checkTransactionState", message(*self._transaction(stream, transaction))).number(1)
        return TransactionState(found) if found in set(TransactionState) else TransactionState.UNKNOWN

    def _decided(self, stream: str, transaction: int, seconds: float = 10.0) -> TransactionState:
        give_up, tries = time.monotonic() + seconds, 0
        while True:
            state = self.state(stream, transaction)
            if state in (TransactionState.COMMITTED, TransactionState.ABORTED, TransactionState.UNKNOWN):
                return state
            if time.monotonic() > give_up:
                reason = f"transaction {transaction:032x} on {self._scope}/{stream} is {state.name} after {seconds:g} s"
                raise CallFailed(Status.DEADLINE_EXCEEDED, reason)
            time.sleep(_PAUSES[min(tries, len(_PAUSES) - 1)])
            tries += 1

    def _transaction(self, stream: str, transaction: int) -> tuple[tuple[int, bytes], tuple[int, bytes]]:
        id = message((1, transaction >> 64), (2, transaction & _LOW))
        return (1, self._stream(stream)), (2, id)

    def _stream(self, stream: str) -> bytes:
        return message((1, self._scope), (2, stream))

    def _ask(self, method: str, request: bytes) -> Fields:
        try:
            return parsed(self._calls.call(_SERVICE + method, request))
        except ValueError as error:
            raise CallFailed(Status.INTERNAL, f"the controller's answer to {method} is not one: {error}") from error


def _segment(range: Fields) -> Segment:
    id = range.inner(1)
    stream = id.inner(1)
    return Segment(stream.text(1), stream.text(2), id.number(2), range.fraction(2), range.fraction(3))
