"""Deal an operator's part of an epoch out to partitions, at any parallelism.

Invariant: nothing of the epoch is left out or dealt twice. In-flight data goes to every partition whose keys may be in
it, and each keeps its own. No state is rewritten: the files are the same, seen through other ranges of key groups.
"""

from __future__ import annotations

from collections.abc import Sequence

from snapshot.cut.frames import LATEST, Watermark
from snapshot.tree.manifest import OperatorSnapshot, SubtaskSnapshot
from statebackend.files import rescaled
from statebackend.ids import Partition
from statebackend.keygroups import check_parallelism, owner_of, range_of


def plan_restore(operator: OperatorSnapshot, parallelism: int, max_parallelism: int) -> tuple[SubtaskSnapshot, ...]:
    """Deal out one operator's parts at a parallelism; each partition gets its own again if that has not changed.

    A partition commits the `committables` of its part, announces the `watermark` before anything else, unless that is
    the end of event time, and then processes what of `channels` has its own keys, each channel in order, before any new
    input.

    The caller owes that `max_parallelism` is the manifest's: it says which keys are in which group, for good.
    """
    check_parallelism(parallelism, max_parallelism)
    if parallelism == operator.parallelism:
        return operator.subtasks
    return tuple(_dealt(operator, Partition(index), parallelism, max_parallelism) for index in range(parallelism))


def _dealt(operator: OperatorSnapshot, partition: Partition, parallelism: int, max_parallelism: int) -> SubtaskSnapshot:
    parents = _parents(operator, partition, parallelism, max_parallelism)
    groups = range_of(partition, parallelism, max_parallelism)
    states = [subtask.state for subtask in operator.subtasks if subtask.state is not None]
    positions = sorted((p for subtask in operator.subtasks for p in subtask.positions), key=lambda p: p.split)
    committables = (
        committable
        for subtask in operator.subtasks
        if subtask.partition % parallelism == partition
        for committable in subtask.committables
    )
    return SubtaskSnapshot(
        partition,
        rescaled(states, groups) if states else None,
        tuple(positions[partition::parallelism]),
        earliest([subtask.watermark for subtask in parents], keyed=bool(states)),
        tuple(channel for subtask in parents for channel in subtask.channels),
        tuple(sorted(committables, key=lambda committable: committable.sealed_in)),
    )


def _parents(
    operator: OperatorSnapshot, partition: Partition, parallelism: int, max_parallelism: int
) -> Sequence[SubtaskSnapshot]:
    """Return the subtasks whose keys this partition takes over; all of them if the operator has no keys."""
    if operator.subtasks[0].state is None:
        return operator.subtasks
    groups = range_of(partition, parallelism, max_parallelism)
    owners = {owner_of(group, operator.parallelism, max_parallelism) for group in groups}
    return [operator.subtasks[owner] for owner in sorted(owners)]


def earliest(watermarks: Sequence[Watermark | None], *, keyed: bool) -> Watermark | None:
    """Return where event time goes on in what these partitions are made into: the minimum; None if one has none yet.

    In an operator with keyed state all count: a partition that is idle may owe results of windows, and take rows that
    are in flight, for which the time of another one would be too late. In others, partitions that are idle, or whose
    time is at its end, hold nothing back.
    """
    known = [watermark for watermark in watermarks if watermark is not None]
    if len(known) < len(watermarks) or not known:
        return None
    if not keyed:
        known = [watermark for watermark in known if watermark.timestamp < LATEST] or known
        known = [watermark for watermark in known if not watermark.idle] or known
    return Watermark(min(watermark.timestamp for watermark in known), idle=all(watermark.idle for watermark in known))
