"""The decisions of `Active` in one run of a job: the membership of each attempt, as the driver asks for it.

Invariant: no rule is decided here but one: a failure that every replica would have as well breaks the attempt at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from recovery.decisions.restarts import Cause
from recovery.replication.membership import Collapse, Drop, Event, Lost, Membership, NewView, Suspected
from recovery.schemes.placing import place
from recovery.schemes.scheme import Broken, Masked, Processes, TriggerPlan
from snapshot.ids import Member, Replica
from snapshot.replication.agreement import View
from statebackend.ids import Partition

_OF_ALL: Final = (Cause.PROGRAM, Cause.UNUSABLE, Cause.FORGED)
"""The causes of failures that each replica would have, or after which the network is not to be trusted."""


class ActiveRun:
    """The decisions of `Active` where each partition has several replicas."""

    def __init__(self, parallelism: int, replicas: int) -> None:
        self._parallelism = parallelism
        self._replicas = replicas
        self._members = tuple(
            Member(Partition(partition), Replica(replica))
            for replica in range(replicas)
            for partition in range(parallelism)
        )
        self._membership = Membership(parallelism, replicas)

    def place(self, processes: Processes) -> Mapping[Member, str] | None:
        """Return the process of each member, of one partition apart; None while there are too few processes."""
        placed = place(self._members, processes)
        if placed is not None:
            self._membership = Membership(self._parallelism, self._replicas)
        return placed

    def view(self, partition: Partition) -> View:
        """Return the newest view of the partition's members."""
        return self._membership.view(partition)

    def lost(self, member: Member, cause: Cause) -> Masked | Broken:
        """Mask the loss as long as another member of its partition is in sync."""
        if cause in _OF_ALL:
            return Broken()
        return self._follow(member, Lost(member)) or Masked()

    def suspected(self, by: Member, of: Member, view: int) -> Masked | Broken | None:
        """Drop a member that another one cannot reach, if that is said of the present view."""
        return self._follow(of, Suspected(by, of, view))

    def stands_for(self, member: Member) -> bool:
        """True if the member is its partition's primary."""
        return self._membership.stands_for(member)

    def trigger(self) -> TriggerPlan:
        """Tell all members, as the word must not be lost with one; they agree on its place."""
        return TriggerPlan(self._members)

    def _follow(self, member: Member, event: Event) -> Masked | Broken | None:
        was_primary = self._membership.stands_for(member)
        for instruction in self._membership.handle(event):
            match instruction:
                case NewView(_, view):
                    return Masked(view, moved=was_primary)
                case Collapse(partition):
                    return Broken(collapsed=partition)
                case Drop():
                    pass  # the driver lets go of any member whose loss is masked
        return None
