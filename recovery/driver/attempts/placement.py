"""Which process gets which partition: whoever had it keeps it, and a lost one goes to whoever is nearest to its state,
and of those to one on the executor that has the fewest partitions.

What always holds: every partition has one process and no process two; the same processes and the same history give
the same placement.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from snapshot.host.protocol.messages import Hello
from statebackend.ids import Epoch, Partition


def place(
    there: Mapping[str, Hello],
    before: Mapping[str, Partition],
    slots: Mapping[Partition, int],
    parallelism: int,
    ready: Mapping[str, Epoch],
    only: Mapping[str, Partition] | None = None,
) -> Sequence[str] | None:
    """Return the process of each partition, or None while there are too few processes.

    `before` is what the processes did in the attempt before, `slots` which slot each partition was in last: the task
    that is started again in a slot finds the files of the one that was there. `ready` says which epoch a process has
    ready, `only` of which partition alone, if not of all.
    """
    if len(there) < parallelism:
        return None
    placed = {partition: worker for worker, partition in before.items() if worker in there and partition < parallelism}
    free = [worker for worker in there if worker not in placed.values()]
    for partition in (Partition(index) for index in range(parallelism)):
        if partition not in placed:
            slot = slots.get(partition, partition)
            has = {w: ready[w] for w in free if w in ready and (only or {}).get(w, partition) == partition}
            newest = max(has.values(), default=None)
            nearest = free if newest is None else [worker for worker in free if has.get(worker) == newest]
            crowds = Counter(there[worker].dies_with for worker in placed.values())
            chosen = min(nearest, key=lambda worker: (crowds[there[worker].dies_with], there[worker].slot != slot))
            free.remove(chosen)
            placed[partition] = chosen
    return [placed[Partition(index)] for index in range(parallelism)]
