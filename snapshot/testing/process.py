"""The contract of a protocol under test: events in, effects out, and steps that it may take by itself.

Invariant: a process touches nothing but its own attributes. Whatever it wants done it says, so that a
simulation can do it, delay it, or crash the process half-way through it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

ORDINARY = 4
"""The weight of a delivery or an action that nothing prefers."""


@dataclass(frozen=True, slots=True)
class Action:
    """A step that a process may take by itself: emit a record, start a snapshot, let a timer fire.

    The scheduler takes it when it likes, the more often the greater `weight`; a delivery has `ORDINARY`. Those with
    `drain` are also taken after the schedule has run out, so they must come to an end; the others are optional.
    """

    name: str
    argument: object = None
    weight: int = ORDINARY
    drain: bool = True

    def __str__(self) -> str:
        return self.name if self.argument is None else f"{self.name} {self.argument}"


@dataclass(frozen=True, slots=True)
class Started:
    """The process begins, or begins again after a crash, knowing only what it has saved."""

    saved: object | None = None


@dataclass(frozen=True, slots=True)
class Received:
    """A message has arrived."""

    sender: str
    message: object


@dataclass(frozen=True, slots=True)
class Acted:
    """The process takes one of the actions that it has offered."""

    action: Action


@dataclass(frozen=True, slots=True)
class Broken:
    """The connection to `peer` is gone, since the peer crashed or the link was cut.

    It comes behind whatever of the peer's messages still arrives. What was sent to the peer on the old connection,
    up to this event, may not have arrived; what is sent from now on goes over a new one.
    """

    peer: str


Event: TypeAlias = Started | Received | Acted | Broken


@dataclass(frozen=True, slots=True)
class Send:
    """Put a message on the channel to `to`."""

    to: str
    message: object


@dataclass(frozen=True, slots=True)
class Note:
    """Remark something, such as a cut that is taken; it has no effect but to be in the history for a checker."""

    what: object


@dataclass(frozen=True, slots=True)
class Save:
    """Replace what this process finds again when it is started after a crash."""

    value: object


Effect: TypeAlias = Send | Note | Save


class Process(Protocol):
    """The contract of a process under test: it handles events and returns actions; it does nothing by itself.

    It must be deterministic, and may keep what it likes in its attributes: a crash drops the object.
    """

    def handle(self, event: Event) -> Iterable[Effect]:
        """Take the event in; return what to do, in this order. A crash may cut it short at any point."""
        ...

    def actions(self) -> Sequence[Action]:
        """Return the steps that could be taken now; called only after `handle`, so they depend on the state alone."""
        ...
