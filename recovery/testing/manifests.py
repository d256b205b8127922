"""Between what the simulated job's partitions say of an epoch and the manifest that stands for it, both ways.

Invariant: the manifest is the real one, with all its rules; nothing reaches a restore but through it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

from recovery.decisions.restore import plan_restore
from recovery.testing.attempt import JOB
from recovery.testing.messages import SOURCE, WINDOWS, Acknowledgement, Payload, Role, SourceCut, WindowCut
from recovery.testing.stream import MAX_PARALLELISM, Item, Row, Stream, group_of
from snapshot.cut.frames import EARLIEST, Watermark
from snapshot.cut.participant import Part
from snapshot.epochs.coordinator_events import Publish
from snapshot.epochs.splits import SplitEnumerator
from snapshot.epochs.transaction_events import Committable
from snapshot.ids import ChannelId, TransactionId
from snapshot.tree.frozen_json import Json, JsonLike
from snapshot.tree.manifest import (
    ChannelState,
    CommitPayload,
    Inline,
    Manifest,
    ManifestKind,
    OperatorSnapshot,
    SplitPosition,
    SubtaskSnapshot,
)
from statebackend.files import FileSet
from statebackend.ids import NO_EPOCH, Partition
from statebackend.keygroups import range_of

Channels = dict[ChannelId, tuple[Item, ...]]


# --- into the manifest -----------------------------------------------------------------------------------------------


def manifest_of(publish: Publish[Acknowledgement], unassigned: tuple[int, ...]) -> Manifest:
    """Build the manifest of an epoch that all partitions have acknowledged."""
    acknowledged = [publish.contents[partition] for partition in sorted(publish.contents)]
    overtaken: Channels = {}
    for one in acknowledged:
        overtaken.update(_source_cut(one).overtaken)
    parallelism = len(acknowledged)
    return Manifest(
        job=JOB,
        epoch=publish.epoch,
        attempt=publish.incarnation.attempt,
        kind=ManifestKind.SAVEPOINT if publish.savepoint else ManifestKind.CHECKPOINT,
        max_parallelism=MAX_PARALLELISM,
        created_at=0,
        operators=(
            OperatorSnapshot(SOURCE, parallelism, tuple(map(_source, acknowledged)), Json.of(list(unassigned))),
            OperatorSnapshot(WINDOWS, parallelism, tuple(_windows(one, overtaken) for one in acknowledged)),
        ),
        parent=NO_EPOCH if publish.base is None else publish.base,
    )


def _source_cut(acknowledged: Acknowledgement) -> SourceCut:
    cut = acknowledged.subtasks[SOURCE].at_cut
    assert isinstance(cut, SourceCut)
    return cut


def _source(acknowledged: Acknowledgement) -> SubtaskSnapshot:
    cut = _source_cut(acknowledged)
    positions = (SplitPosition(f"{split:04}", Json.of(at)) for split, at in sorted(cut.positions.items()))
    return SubtaskSnapshot(acknowledged.partition, positions=tuple(positions), watermark=Watermark(cut.watermark))


def _windows(acknowledged: Acknowledgement, overtaken: Channels) -> SubtaskSnapshot:
    content = acknowledged.subtasks[WINDOWS]
    assert isinstance(content.at_cut, WindowCut)
    files, committables = content.parts[Part.FILES], content.parts[Part.TRANSACTIONS]
    assert isinstance(files, FileSet)
    assert isinstance(committables, tuple)
    received = content.parts.get(Part.CHANNELS, {})
    assert isinstance(received, dict)
    mine = {channel: items for channel, items in overtaken.items() if channel.receiver == acknowledged.partition}
    return SubtaskSnapshot(
        acknowledged.partition,
        files,
        watermark=Watermark(content.at_cut.watermark),
        channels=tuple(_channel_state(channel, received, mine) for channel in sorted({*received, *mine})),
        committables=tuple(
            Committable(one.transaction, one.sealed_in, CommitPayload(_payload(one.payload))) for one in committables
        ),
    )


def _channel_state(channel: ChannelId, received: Channels, overtaken: Channels) -> ChannelState:
    """Join what the receiver has recorded with what the marker overtook at the sender, which was sent later."""
    parts = (part for part in (received.get(channel, ()), overtaken.get(channel, ())) if part)
    return ChannelState(channel, tuple(Inline(json.dumps([item.id for item in part]).encode()) for part in parts))


def _payload(payload: Payload) -> Json:
    rows: list[JsonLike] = [[row.key, row.window_end, [list(id) for id in row.records]] for row in payload.rows]
    return Json.of({"producer": payload.producer, "rows": rows})


# --- out of the manifest ---------------------------------------------------------------------------------------------


def roles_from(manifest: Manifest | None, parallelism: int, stream: Stream) -> tuple[Role, ...]:
    """Return what each partition starts from at this parallelism."""
    if manifest is None:
        ranges = (range_of(Partition(index), parallelism, MAX_PARALLELISM) for index in range(parallelism))
        return tuple(Role(Partition(index), FileSet(groups)) for index, groups in enumerate(ranges))
    source, windows = (plan_restore(operator, parallelism, manifest.max_parallelism) for operator in manifest.operators)
    return tuple(_role(*parts, stream) for parts in zip(source, windows, strict=True))


def _role(source: SubtaskSnapshot, windows: SubtaskSnapshot, stream: Stream) -> Role:
    assert windows.state is not None
    return Role(
        windows.partition,
        windows.state,
        _positions(source.positions),
        _timestamp(source.watermark),
        _timestamp(windows.watermark),
        tuple(item for item in _items(windows.channels, stream) if group_of(item.key) in windows.state.range),
        tuple(Committable(one.transaction, one.sealed_in, _rows(one.payload)) for one in windows.committables),
    )


def _timestamp(watermark: Watermark | None) -> int:
    return EARLIEST if watermark is None else watermark.timestamp


def _positions(positions: Iterable[SplitPosition]) -> dict[int, int]:
    return {int(position.split): int(position.position.text) for position in positions}


def _items(channels: Iterable[ChannelState], stream: Stream) -> Iterator[Item]:
    for channel in channels:
        for part in channel.parts:
            assert isinstance(part, Inline)
            yield from (stream.item(split, index) for split, index in json.loads(part.data))


def _rows(payload: CommitPayload) -> Payload:
    value = json.loads(payload.value.text)
    rows = (Row(key, end, tuple((split, index) for split, index in ids)) for key, end, ids in value["rows"])
    return Payload(value["producer"], tuple(rows))


def splits_of(manifest: Manifest | None, stream: Stream) -> SplitEnumerator[int]:
    """Return the assignment of splits as the epoch has it; at the beginning no split is assigned."""
    if manifest is None:
        return SplitEnumerator((), range(stream.splits))
    unassigned = json.loads(manifest.operators[0].enumerator.text)
    return SplitEnumerator((split for split, _ in positions_of(manifest)), unassigned)


def positions_of(manifest: Manifest) -> list[tuple[int, int]]:
    """Return every assigned split and how far it was read."""
    return [item for subtask in manifest.operators[0].subtasks for item in _positions(subtask.positions).items()]


def in_flight_of(manifest: Manifest, stream: Stream) -> list[Item]:
    """Return all channel state."""
    return [item for subtask in manifest.operators[1].subtasks for item in _items(subtask.channels, stream)]


def window_parts_of(manifest: Manifest) -> Iterator[tuple[int, FileSet]]:
    """Yield the watermark and the state of each partition."""
    for subtask in manifest.operators[1].subtasks:
        assert subtask.state is not None
        yield _timestamp(subtask.watermark), subtask.state


def transactions_of(manifest: Manifest | None) -> frozenset[TransactionId]:
    """Return the transactions that the epoch carries."""
    return frozenset() if manifest is None else frozenset(one.transaction for one in committables_of(manifest))


def committables_of(manifest: Manifest) -> list[Committable[CommitPayload]]:
    """Return the committables that the epoch carries."""
    return [committable for subtask in manifest.operators[1].subtasks for committable in subtask.committables]
