"""The members of every partition in one attempt: who has gone, who has come, who stands for a partition.

Invariant: of one partition there is one view at a time, and each has a larger number than the one before; a member that
has left a partition never comes back to it, as each that comes has a number of its own; and the primary is in sync, so
that it has all that was ever decided.
"""

from __future__ import annotations

from dataclasses import dataclass

from snapshot.ids import Member, Replica
from snapshot.replication.agreement import View
from statebackend.ids import Partition


@dataclass(frozen=True, slots=True)
class Lost:
    """A member is gone, or cannot go on."""

    member: Member


@dataclass(frozen=True, slots=True)
class Suspected:
    """In the view of this number, a member says that it cannot reach another one of its partition."""

    by: Member
    of: Member
    view: int


@dataclass(frozen=True, slots=True)
class Entered:
    """A member that was never there is connected with the others of its partition; it is not in sync yet."""

    member: Member


@dataclass(frozen=True, slots=True)
class CaughtUp:
    """In the view of this number, the primary says that a member has all that was decided, and waits for it."""

    member: Member
    view: int


@dataclass(frozen=True, slots=True)
class NewView:
    """Tell the members of the partition that these are all from now on."""

    partition: Partition
    view: View


@dataclass(frozen=True, slots=True)
class Drop:
    """Let this member go: its peers do without it."""

    member: Member


@dataclass(frozen=True, slots=True)
class Collapse:
    """No member of the partition is left that has all that was decided: the attempt is over."""

    partition: Partition


Event = Lost | Suspected | Entered | CaughtUp
Instruction = NewView | Drop | Collapse


class Membership:
    """The members of one attempt, which begins with as many replicas of each partition.

    The partitions' first primaries have different numbers, as far as there are so many.
    """

    def __init__(self, parallelism: int, replicas: int) -> None:
        members = frozenset(Replica(number) for number in range(replicas))
        self._views = {
            Partition(partition): View(1, members, members, Replica(partition % replicas))
            for partition in range(parallelism)
        }
        self._last = dict.fromkeys(self._views, replicas - 1)

    def view(self, partition: Partition) -> View:
        """Return the newest view of a partition's members."""
        return self._views[partition]

    def next_of(self, partition: Partition) -> Member:
        """Return a member of the partition that has never been."""
        self._last[partition] += 1
        return Member(partition, Replica(self._last[partition]))

    @property
    def members(self) -> tuple[Member, ...]:
        """Return all members of all partitions."""
        views = self._views.items()
        return tuple(Member(partition, replica) for partition, view in views for replica in sorted(view.members))

    def stands_for(self, member: Member) -> bool:
        """True if the member is the primary of its partition."""
        return self._views[member.partition].primary == member.replica

    @property
    def redundancy(self) -> int:
        """Return the number of members in sync of that partition which has the fewest: all of these but one may go."""
        return min(len(view.in_sync) for view in self._views.values())

    def handle(self, event: Event) -> list[Instruction]:
        """Return what follows from an event; nothing if it is known, or is about a view that is over."""
        match event:
            case Lost(member):
                return self._without(member)
            case Suspected(by, of, number):
                view = self._views[by.partition]
                heard = number == view.number and by.replica in view.in_sync and by.partition == of.partition
                if not heard or by == of or of.replica not in view.members:
                    return []
                return [Drop(of), *self._without(of)]
            case Entered(member):
                view = self._views[member.partition]
                return [self._changed(member.partition, view.members | {member.replica}, view.in_sync, view.primary)]
            case CaughtUp(member, number):
                view = self._views[member.partition]
                if number != view.number or member.replica not in view.members - view.in_sync:
                    return []
                in_sync = view.in_sync | {member.replica}
                return [self._changed(member.partition, view.members, in_sync, view.primary)]

    def _without(self, member: Member) -> list[Instruction]:
        partition, view = member.partition, self._views[member.partition]
        if member.replica not in view.members:
            return []
        members, in_sync = view.members - {member.replica}, view.in_sync - {member.replica}
        if not in_sync:
            return [Collapse(partition)]
        primary = view.primary if view.primary in in_sync else min(in_sync)
        return [self._changed(partition, members, in_sync, primary)]

    def _changed(
        self, partition: Partition, members: frozenset[Replica], in_sync: frozenset[Replica], primary: Replica
    ) -> NewView:
        made = View(self._views[partition].number + 1, members, in_sync, primary)
        self._views[partition] = made
        return NewView(partition, made)
