"""The decisions of `Active` in one run of a job: the membership of each attempt, as the driver asks for it.

Invariant: no rule is decided here but one: a failure that every replica would have as well breaks the attempt at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from recovery.decisions.restarts import Cause
from recovery.replication.membership import (
    CaughtUp,
    Collapse,
    Drop,
    Entered,
    Event,
    Lost,
    Membership,
    NewView,
    Suspected,
)
from recovery.schemes.placing import beside, place
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
        self._partitions = tuple(map(Partition, range(parallelism)))
        self._membership = Membership(parallelism, replicas)

    def place(self, processes: Processes) -> Mapping[Member, str] | None:
        """Return the process of each member, of one partition apart; None while there are too few processes."""
        placed = place(self._members, replace(processes, before=self._renamed(processes.before)))
        if placed is not None:
            self._membership = Membership(self._parallelism, self._replicas)
        return placed

    def _renamed(self, before: Mapping[str, Member]) -> Mapping[str, Member]:
        """Let those that have joined later keep their partition, in the place of one that was lost."""
        had = set(before.values())
        lost = [member for member in self._members if member not in had]
        renamed: dict[str, Member] = {}
        for worker, member in before.items():
            places = [other for other in lost if other.partition == member.partition]
            if member not in self._members and places:
                lost.remove(places[0])
                member = places[0]
            renamed[worker] = member
        return renamed

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

    # --- members that come later --------------------------------------------------------------------------------------

    def joiner(self, processes: Processes, roles: Mapping[str, Member]) -> tuple[Member, str] | None:
        """Return a member for the partition that has the fewest, and a process apart from its peers, if there is one.

        One that has an epoch ready comes first.
        """
        counts = {each: len(self._membership.view(each).members) for each in self._partitions}
        partition = min(counts, key=lambda each: counts[each])
        if counts[partition] >= self._replicas:
            return None
        worker = beside(partition, processes, roles)
        return None if worker is None else (self._membership.next_of(partition), worker)

    def entered(self, member: Member) -> View:
        """Return the view in which the member is one of its partition, though not in sync."""
        self._membership.handle(Entered(member))
        return self._membership.view(member.partition)

    def caught_up(self, member: Member, view: int) -> View | None:
        """Return the view in which the member is in sync; None if what the primary has said is over."""
        return self._new_view(CaughtUp(member, view))

    def not_joining(self, member: Member) -> View | None:
        """Return the view without a member that does not join after all; None if it is in none."""
        return self._new_view(Lost(member))

    def _new_view(self, event: Event) -> View | None:
        views = [said.view for said in self._membership.handle(event) if isinstance(said, NewView)]
        return views[0] if views else None

    def stands_for(self, member: Member) -> bool:
        """True if the member is its partition's primary."""
        return self._membership.stands_for(member)

    def trigger(self) -> TriggerPlan:
        """Tell all members, as the word must not be lost with one; they agree on its place."""
        return TriggerPlan(self._membership.members)

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
