"""Choose a process for each member of an attempt: rules without I/O.

Invariant: each member has one process, and a process has at most one role. The same processes and the same history
give the same placement.

- A member keeps its process. A member that has lost its process goes to the process that is nearest to its state;
  among several of these, to one that does not die with another member of its partition, and to the executor with the
  fewest members.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from recovery.schemes.scheme import Processes
from snapshot.ids import Member
from statebackend.ids import Partition


def place(wanted: Sequence[Member], processes: Processes) -> Mapping[Member, str] | None:
    """Return the process of each member, in the order of `wanted`; None while there are too few processes."""
    there, ready, only = processes.there, processes.ready, processes.only
    if len(there) < len(wanted):
        return None
    placed = {member: worker for worker, member in processes.before.items() if worker in there and member in wanted}
    free = [worker for worker in there if worker not in placed.values()]
    for index, member in enumerate(wanted):
        if member not in placed:
            partition, slot = member.partition, processes.slots.get(member, index)
            has = {w: ready[w] for w in free if w in ready and only.get(w, partition) == partition}
            newest = max(has.values(), default=None)
            nearest = free if newest is None else [worker for worker in free if has.get(worker) == newest]
            with_all = Counter(there[other].dies_with for other in placed.values())
            with_its_own = Counter(there[placed[other]].dies_with for other in placed if other.partition == partition)
            chosen = min(
                nearest,
                key=lambda worker: (
                    with_its_own[there[worker].dies_with],
                    with_all[there[worker].dies_with],
                    there[worker].slot != slot,
                ),
            )
            free.remove(chosen)
            placed[member] = chosen
    return {member: placed[member] for member in wanted}


def beside(partition: Partition, processes: Processes, roles: Mapping[str, Member]) -> str | None:
    """Return a process without a role for another member of a partition; None if there is none.

    One comes first that does not die with another member of the partition, then one that has the newest epoch ready.
    The one that is to be the `last` is chosen if there is no other.
    """
    there, ready, only = processes.there, processes.ready, processes.only
    peers = Counter(
        there[worker].dies_with for worker, at in roles.items() if worker in there and at.partition == partition
    )
    others = Counter(there[worker].dies_with for worker in roles if worker in there)
    has = {worker: ready[worker] for worker in ready if only.get(worker, partition) == partition}
    newest = max(has.values(), default=None)
    free = [worker for worker in there if worker not in roles]
    return min(
        free,
        key=lambda worker: (
            worker == processes.last,
            peers[there[worker].dies_with],
            has.get(worker) != newest,
            others[there[worker].dies_with],
        ),
        default=None,
    )
