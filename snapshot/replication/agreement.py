"""The agreement of a partition's replicas on what each round of its sources has, led by one of them, the primary.

Invariant: no two replicas ever take different decisions for the same place, whatever fails and whichever replica is
suspected wrongly; and each replica that is in sync in the newest view has all that was ever decided, so that it may
become primary.

The primary appends decisions, and those are decided that every replica in sync has acknowledged. Views, numbered and
handed out by the driver alone, name the members, those that are in sync, and the primary. In a new view that first
sends what it has; what another one had behind that gives way. A member that was left out is waited for again *before*
the driver is asked to readmit it: when the view comes that has it in sync, it has everything. (It is what primary and
backups do in "Viewstamped Replication", with the driver in the place of the vote, as Kafka has it.)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from snapshot.ids import Replica

Decision = TypeVar("Decision")

_KEPT: Final = 1024
"""So many decisions are kept that were taken, for a member that was cut off for a while."""


@dataclass(frozen=True, slots=True)
class View:
    """The driver's word on the members of a partition."""

    number: int
    members: frozenset[Replica]
    in_sync: frozenset[Replica]
    primary: Replica


@dataclass(frozen=True, slots=True)
class Append(Generic[Decision]):
    """From the primary of a view: from this place on these decisions come, and nothing behind them."""

    view: int
    first: int
    decisions: tuple[Decision, ...]


@dataclass(frozen=True, slots=True)
class Acknowledge:
    """To the primary of a view: all decisions up to this place are here."""

    view: int
    end: int


@dataclass(frozen=True, slots=True)
class Commit:
    """From the primary of a view: all decisions up to this place are taken."""

    view: int
    end: int


Message = Append[Decision] | Acknowledge | Commit


@dataclass(frozen=True, slots=True)
class Tell(Generic[Decision]):
    """Send a message to another replica."""

    to: Replica
    message: Message[Decision]


@dataclass(frozen=True, slots=True)
class Decided(Generic[Decision]):
    """A decision is taken; they come in order, each once."""

    place: int
    decision: Decision


@dataclass(frozen=True, slots=True)
class AskToReadmit:
    """Ask the driver for a view in which this replica is in sync, as an answer to the view of this number."""

    replica: Replica
    view: int


Instruction = Tell[Decision] | Decided[Decision] | AskToReadmit


class Agreement(Generic[Decision]):
    """One replica's part in one attempt. The caller owes: messages of another replica in their order, and `linked`
    whenever there is a new connection to it, on which no message of the one before comes any more.

    One that joins later begins at the place `first`: it has all in front of that otherwise, and nothing is decided
    there again. It is given all that the primary has sent since the view in which it is a member for the first time.
    """

    def __init__(self, own: Replica, view: View, first: int = 0) -> None:
        self._own = own
        self._view = view
        self._primary = view.primary
        self._number = view.number
        self._log: list[Decision] = []
        self._first = first  # the place of the first that is kept
        self._taken = first
        self._acknowledged: dict[Replica, int] = {}
        self._asked: set[Replica] = set()

    @property
    def is_primary(self) -> bool:
        """True if this replica may propose."""
        return self._primary == self._own

    @property
    def undecided(self) -> Sequence[Decision]:
        """Return the decisions that are here and not taken yet, in their order."""
        return self._log[self._taken - self._first :]

    def propose(self, decision: Decision) -> list[Instruction[Decision]]:
        """Append a decision, as the primary."""
        place = self._end
        self._log.append(decision)
        return [*self._tell_all(Append(self._number, place, (decision,))), *self._settle()]

    def viewed(self, view: View) -> list[Instruction[Decision]]:
        """Take a view of the driver; an older one changes nothing."""
        if view.number < self._number or (view.number == self._number and view.primary != self._own):
            return []
        self._view, self._number, self._primary = view, view.number, view.primary
        self._acknowledged, self._asked = {}, set()
        if not self.is_primary:
            return []
        return [*self._tell_all(self._all()), *self._settle()]

    def linked(self, replica: Replica) -> list[Instruction[Decision]]:
        """Note a new connection: what was sent on the one before may be lost."""
        if not self.is_primary:
            return []
        self._acknowledged.pop(replica, None)
        return [Tell(replica, self._all()), Tell(replica, Commit(self._number, self._taken))]

    def heard(self, sender: Replica, message: Message[Decision]) -> list[Instruction[Decision]]:
        """Take a message of another replica; one of an older view changes nothing."""
        if message.view < self._number:
            return []
        match message:
            case Append(view, first, decisions):
                return self._appended(sender, view, first, decisions)
            case Acknowledge(view, end):
                if view == self._number and self.is_primary:
                    self._acknowledged[sender] = end
                    return self._settle()
            case Commit(view, end):
                if view == self._number and sender == self._primary:
                    return list(self._take(min(end, self._end)))
        return []

    def _appended(
        self, sender: Replica, view: int, first: int, decisions: Sequence[Decision]
    ) -> list[Instruction[Decision]]:
        if view > self._number:  # it was quicker than the driver
            self._number, self._primary = view, sender
            self._acknowledged, self._asked = {}, set()
        if sender != self._primary or first > self._end:
            return []
        skipped = max(0, self._first - first)
        self._log[max(first, self._first) - self._first :] = decisions[skipped:]
        return [Tell(sender, Acknowledge(view, self._end))]

    @property
    def _end(self) -> int:
        return self._first + len(self._log)

    def _all(self) -> Append[Decision]:
        return Append(self._number, self._first, tuple(self._log))

    def _tell_all(self, message: Message[Decision]) -> Iterator[Tell[Decision]]:
        yield from (Tell(replica, message) for replica in sorted(self._view.members - {self._own}))

    def _settle(self) -> list[Instruction[Decision]]:
        """Take what all have that must have it, and ask for those that have caught up."""
        awaited = (self._view.in_sync | self._asked) - {self._own}
        end = min([self._end, *(self._acknowledged.get(replica, 0) for replica in awaited)])
        instructions: list[Instruction[Decision]] = list(self._take(end))
        if instructions:
            instructions += self._tell_all(Commit(self._number, self._taken))
        for replica in sorted(self._view.members - self._view.in_sync - self._asked - {self._own}):
            if self._acknowledged.get(replica, -1) >= self._taken:  # it has all that was ever decided
                self._asked.add(replica)
                instructions.append(AskToReadmit(replica, self._number))
        return instructions

    def _take(self, end: int) -> Iterator[Decided[Decision]]:
        while self._taken < end:
            yield Decided(self._taken, self._log[self._taken - self._first])
            self._taken += 1
        left_over = self._taken - _KEPT - self._first
        if left_over > 0:
            del self._log[:left_over]
            self._first += left_over
