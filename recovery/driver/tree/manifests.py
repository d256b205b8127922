"""Between what the partitions say of an epoch and the manifest that stands for it, both ways.

Invariant: nothing reaches a restore but through a manifest; what the receiver of a channel noted comes before
what the marker overtook at its sender, as it was sent before it; and the roles of all partitions together hold all
that the epoch does, once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from recovery.decisions.restore import plan_restore
from recovery.driver.tree.splits import SplitDealer, SplitRules, enumerator_json, enumerator_splits
from snapshot.epochs.coordinator_events import Publish
from snapshot.epochs.transaction_events import Committable
from snapshot.host.partition.source_run import read_to
from snapshot.host.protocol.messages import Acknowledgement, Role
from snapshot.ids import ChannelId, JobId, TransactionId
from snapshot.program.plan import Plan, ToSink
from snapshot.program.source import Source
from snapshot.tree.frozen_json import NULL, Json, JsonLike
from snapshot.tree.manifest import (
    ChannelState,
    CommitPayload,
    Inline,
    JournalEnd,
    Manifest,
    ManifestKind,
    OperatorSnapshot,
    StoredFile,
    SubtaskSnapshot,
)
from statebackend.files import FileSet
from statebackend.ids import NO_EPOCH, Partition, Uid
from statebackend.keygroups import range_of

Overtaken = Mapping[ChannelId, ChannelState]

NO_ENDS: Final[Mapping[Uid, Mapping[str, JsonLike]]] = {}
"""Every split is read to its end."""


# --- into the manifest -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DriversPart:
    """The driver's own part of an epoch: unassigned splits, places of broadcast state, key types."""

    job: JobId
    max_parallelism: int
    created_at: int
    enumerators: Mapping[Uid, Json]
    broadcast: Mapping[Uid, StoredFile | Inline]
    notes: Json = NULL
    key_types: Mapping[Uid, str] = field(default_factory=dict)


def manifest_of(publish: Publish[Acknowledgement], part: DriversPart, journal: JournalEnd | None = None) -> Manifest:
    """Return the manifest of an epoch that all partitions have acknowledged, for a journal with this end."""
    acknowledged = [publish.contents[partition] for partition in sorted(publish.contents)]
    overtaken = {state.channel: state for one in acknowledged for state in one.overtaken}
    operators = (
        OperatorSnapshot(
            uid,
            len(acknowledged),
            tuple(_with_overtaken(uid, one.subtasks[uid], overtaken) for one in acknowledged),
            _unassigned(part.enumerators.get(uid, NULL), [one.subtasks[uid] for one in acknowledged]),
            part.broadcast.get(uid),
            part.key_types.get(uid, ""),
        )
        for uid in sorted(acknowledged[0].subtasks)
    )
    return Manifest(
        job=part.job,
        epoch=publish.epoch,
        attempt=publish.incarnation.attempt,
        kind=ManifestKind.SAVEPOINT if publish.savepoint else ManifestKind.CHECKPOINT,
        max_parallelism=part.max_parallelism,
        created_at=part.created_at,
        operators=tuple(operators),
        parent=NO_EPOCH if publish.base is None else publish.base,
        notes=part.notes,
        journal=journal,
    )


def _unassigned(enumerator: Json, subtasks: Sequence[SubtaskSnapshot]) -> Json:
    """Return the splits that no partition had at its cut: some were dealt out between the trigger and a cut."""
    if enumerator == NULL:
        return NULL
    read = {position.split for subtask in subtasks for position in subtask.positions}
    return enumerator_json(split for split in enumerator_splits(enumerator) if split not in read)


def key_types_of(plan: Plan) -> Mapping[Uid, str]:
    """Return the name of the key type of each operator with keyed state."""
    return {uid: operator.inputs[0].key_type.name for uid, operator in plan.keyed.items()}


def broadcast_states(publish: Publish[Acknowledgement]) -> Mapping[Uid, bytes]:
    """Return the broadcast state of each operator that has some: the first partition's, as all have the same."""
    return publish.contents[Partition(0)].broadcast


def _with_overtaken(uid: Uid, subtask: SubtaskSnapshot, overtaken: Overtaken) -> SubtaskSnapshot:
    mine = {
        channel: state
        for channel, state in overtaken.items()
        if channel.target == uid and channel.receiver == subtask.partition and state.parts
    }
    if not mine:
        return subtask  # as it came, in the form in which it is written
    received = {state.channel: state.parts for state in subtask.channels}
    channels = (
        ChannelState(channel, (*received.get(channel, ()), *(mine[channel].parts if channel in mine else ())))
        for channel in sorted({*received, *mine})
    )
    return replace(subtask, channels=tuple(channels))


# --- out of the manifest ---------------------------------------------------------------------------------------------


def roles_from(
    manifest: Manifest | None,
    plan: Plan,
    parallelism: int,
    broadcast: Mapping[Uid, bytes],
    ends: Mapping[Uid, Mapping[str, JsonLike]] = NO_ENDS,
) -> tuple[Mapping[Uid, Role], ...]:
    """Return what each operator of each partition starts from: nothing if the epoch does not know the operator.

    `ends` is how far the sources' splits are read that do not end by themselves.

    The caller owes that the plan fits the manifest (`recovery.driver.settings.program_fit`).
    """
    known = {} if manifest is None else {operator.uid: operator for operator in manifest.operators}
    keyed = plan.keyed
    restores = {uid: plan_restore(known[uid], parallelism, plan.max_parallelism) for uid in plan.uids if uid in known}

    def role(uid: Uid, partition: Partition) -> Role:
        role = _role(restores[uid][partition], broadcast.get(uid)) if uid in restores else Role()
        if uid in ends:
            role = replace(role, ends=ends[uid])
        if uid in keyed and role.state is None:
            return replace(role, state=FileSet(range_of(partition, parallelism, plan.max_parallelism)))
        return role

    return tuple({uid: role(uid, Partition(index)) for uid in plan.uids} for index in range(parallelism))


def states_in(manifest: Manifest | None, plan: Plan, parallelism: int) -> Mapping[Uid, tuple[FileSet, ...]]:
    """Return the keyed state of all partitions, for each operator that has some in the epoch."""
    keyed = plan.keyed
    found: dict[Uid, tuple[FileSet, ...]] = {}
    for operator in () if manifest is None else manifest.operators:
        if operator.uid in keyed:
            parts = plan_restore(operator, parallelism, plan.max_parallelism)
            states = tuple(part.state for part in parts if part.state is not None)
            if len(states) == parallelism:
                found[operator.uid] = states
    return found


def without_operators(manifest: Manifest, uids: Collection[Uid]) -> Manifest:
    """Return the same epoch as if it knew nothing of these operators."""
    if not uids:
        return manifest
    return replace(manifest, operators=tuple(one for one in manifest.operators if one.uid not in uids))


def without_output(manifest: Manifest, *, held: bool = False) -> Manifest:
    """Return the same epoch with nothing to commit; with `held`, the rows that its sinks hold back stay."""

    def kept(subtask: SubtaskSnapshot) -> SubtaskSnapshot:
        return replace(subtask, committables=tuple(one for one in subtask.committables if held and one.payload.held))

    operators = (
        replace(one, subtasks=tuple(map(kept, one.subtasks)))
        if any(subtask.committables for subtask in one.subtasks)
        else one
        for one in manifest.operators
    )
    return replace(manifest, operators=tuple(operators))


def _role(subtask: SubtaskSnapshot, broadcast: bytes | None) -> Role:
    return Role(
        subtask.state,
        {at.split: at.position for at in subtask.positions},
        subtask.watermark,
        subtask.channels,
        subtask.committables,
        broadcast,
    )


def sinks_of(plan: Plan) -> dict[Uid, ToSink]:
    """Return the sinks of a plan."""
    return {sink.uid: sink for stage in plan.stages for sink in stage.sinks}


def dealer_from(
    uid: Uid,
    source: Source,
    manifest: Manifest | None,
    roles: Sequence[Mapping[Uid, Role]],
    found: Iterable[str],
    *,
    available_now: bool = False,
) -> SplitDealer:
    """Return the dealer of a source's splits, with the splits that each partition reads as the attempt starts.

    `found` is what a look at the source found that was new to the job when it was started. With `available_now` that is
    all that there will be.
    """
    positions = [role[uid].positions for role in roles]
    reading = [[split for split, at in held.items() if at != NULL] for held in positions]
    finished = [split for held in positions for split, at in held.items() if at == NULL]
    rules = SplitRules(source.on_demand, grows=source.discover_every is not None and not available_now)
    dealer = SplitDealer(rules, reading, finished, unassigned_in(manifest, uid))
    dealer.discovered(found)
    return dealer


def unassigned_in(manifest: Manifest | None, uid: Uid) -> tuple[str, ...]:
    """Return the splits of a source that no partition reads in the epoch."""
    for operator in () if manifest is None else manifest.operators:
        if operator.uid == uid:
            return enumerator_splits(operator.enumerator)
    return ()


def reading_in(manifest: Manifest | None, uid: Uid) -> Mapping[str, JsonLike]:
    """Return the positions of a source's splits that are not at their end: None for those that were not begun."""
    begun = {split: at for (of, split), at in positions_in(manifest).items() if of == uid and at != NULL}
    return {split: read_to(at) for split, at in begun.items()} | dict.fromkeys(unassigned_in(manifest, uid))


def known_in(manifest: Manifest | None, uid: Uid) -> frozenset[str]:
    """Return all splits of a source that the epoch knows, also those that were read to their end."""
    return frozenset((*(split for of, split in positions_in(manifest) if of == uid), *unassigned_in(manifest, uid)))


def transactions_in(manifest: Manifest | None) -> dict[Uid, frozenset[TransactionId]]:
    """Return the transactions that the epoch names, of each sink."""
    operators = () if manifest is None else manifest.operators
    return {
        operator.uid: frozenset(one.transaction for subtask in operator.subtasks for one in subtask.committables)
        for operator in operators
    }


def moves_output(manifest: Manifest | None, parallelism: int) -> bool:
    """True if rows that await their commit may be another partition's than the rows of their key that follow.

    That is so if the epoch is of another number of partitions, or was made out of one that is, which an earlier
    generation sealed.
    """
    return manifest is not None and any(
        operator.parallelism != parallelism or one.sealed_in.generation < manifest.epoch.generation
        for operator in manifest.operators
        for subtask in operator.subtasks
        for one in subtask.committables
    )


def file_sets_of(manifest: Manifest | None, partition: Partition) -> Mapping[Uid, FileSet]:
    """Return the keyed state of a partition, by operator, in an epoch that was taken with as many partitions."""
    parts = _parts_of(manifest, partition)
    return {uid: part.state for uid, part in parts.items() if part.state is not None}


def committables_of(
    manifest: Manifest | None, partition: Partition
) -> Mapping[Uid, tuple[Committable[CommitPayload], ...]]:
    """Return what an epoch, taken with as many partitions, leaves to be committed in a partition, by sink."""
    return {uid: part.committables for uid, part in _parts_of(manifest, partition).items() if part.committables}


def _parts_of(manifest: Manifest | None, partition: Partition) -> dict[Uid, SubtaskSnapshot]:
    operators = () if manifest is None else manifest.operators
    return {one.uid: part for one in operators for part in one.subtasks if part.partition == partition}


def sent_by(manifest: Manifest | None, partition: Partition) -> tuple[ChannelState, ...]:
    """Return the rows that a partition had sent at its cut, and that were in flight."""
    operators = () if manifest is None else manifest.operators
    parts = (part for operator in operators for part in operator.subtasks)
    return tuple(state for part in parts for state in part.channels if state.channel.sender == partition)


def all_transactions_in(manifest: Manifest | None) -> frozenset[TransactionId]:
    """Return the transactions that the epoch names, of all sinks."""
    return frozenset().union(*transactions_in(manifest).values())


def positions_in(manifest: Manifest | None) -> Mapping[tuple[Uid, str], Json]:
    """Return how far the sources have read each of their splits."""
    return {
        (operator.uid, at.split): at.position
        for operator in (() if manifest is None else manifest.operators)
        for subtask in operator.subtasks
        for at in subtask.positions
    }
