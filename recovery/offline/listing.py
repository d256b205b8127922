"""The contents of a tree, for people: its job, its epochs, and one epoch in full.

Invariant: only what is there is told. An epoch whose manifest cannot be used is listed with its problem; only
one that a running job removes meanwhile is left out.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from recovery.decisions.notes import Origin, from_json
from recovery.driver.settings.program_fit import held_by
from recovery.driver.tree.address import JobNotRunning, NotAllowed, home_of, read_for
from recovery.offline.job_tree import NEWEST, JobTree, NoSuchEpoch, UnusableEpoch
from snapshot.host.protocol.messages import PartitionCost
from snapshot.journal.entries import Pinner
from snapshot.journal.state import EpochRecord, EpochState
from snapshot.tree.frozen_json import NULL
from snapshot.tree.manifest import Inline, Manifest, ManifestKind, OperatorSnapshot, StoredFile, SubtaskSnapshot
from statebackend.files import FileRef
from statebackend.ids import Epoch, Generation, Partition, Uid

_LOOKS: Final = 5


@dataclass(frozen=True, slots=True)
class EpochLine:
    """An epoch in a list. Sizes are in bytes: of all that it refers to, and of what its own generation and number made.

    `problem` says why it cannot be used; then nothing is known that its manifest would say.
    """

    epoch: Epoch
    kind: ManifestKind | None
    state: EpochState
    pins: tuple[str, ...]
    created_at: int | None
    parallelism: int | None
    full_bytes: int | None
    new_bytes: int | None
    files: int | None
    program: str = ""
    origin: Origin | None = None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class ListedJob:
    """A job and its epochs, oldest first. `driver` is who claimed it last; `pid` is its driver, if it runs here.

    `given_up` are epochs behind which the job went back, and which a clean-up has not taken yet.
    """

    uri: str
    name: str
    job: str
    max_parallelism: int
    generation: Generation
    driver: str
    pid: int | None
    epochs: tuple[EpochLine, ...]
    problem: str = ""


@dataclass(frozen=True, slots=True)
class PartInFull:
    """One partition of an operator in an epoch: bytes and files of its keyed state, rows in flight, what is pending."""

    partition: Partition
    key_groups: str
    files: int
    state_bytes: int
    splits: int
    in_flight_bytes: int
    pending_transactions: int
    watermark: int | None


@dataclass(frozen=True, slots=True)
class OperatorInFull:
    """One operator in an epoch. `holds` says in words what it keeps there."""

    uid: Uid
    parallelism: int
    holds: tuple[str, ...]
    broadcast_bytes: int
    unassigned_splits: bool
    parts: tuple[PartInFull, ...]


@dataclass(frozen=True, slots=True)
class FileInFull:
    """A file that an epoch refers to. `shared_with` are the other epochs of the tree that do, too."""

    path: str
    size: int
    epoch: Epoch | None
    kind: str
    key_groups: str
    shared_with: tuple[Epoch, ...]


@dataclass(frozen=True, slots=True)
class EpochInFull:
    """All that is known of one epoch. `took` is empty if no running job has taken it, or an older version did."""

    job: str
    line: EpochLine
    parent: Epoch
    manifest: str
    digest: str
    operators: tuple[OperatorInFull, ...]
    files: tuple[FileInFull, ...]
    took: tuple[PartitionCost, ...]
    passed_over: tuple[str, ...] = ()


def list_job(tree: JobTree, looks: int = _LOOKS) -> ListedJob:
    """Return the job and the epochs that it has, including those given up when it went back.

    If a running job removes some of them meanwhile, the tree is looked at anew, up to `looks` times; then they are left
    out.
    """
    found = [_line(tree, record)[0] for record in tree.state.retained]
    if None in found and looks > 1:
        return list_job(tree.look_again(), looks - 1)
    lines = tuple(line for line in found if line is not None)
    birth, state = tree.birth, tree.state
    return ListedJob(
        tree.uri,
        birth.name,
        birth.job,
        birth.max_parallelism,
        state.generation,
        state.driver,
        _running_here(tree),
        lines,
    )


def show_epoch(tree: JobTree, epoch: str = NEWEST) -> EpochInFull:
    """Return one epoch in full; a newest one that cannot be used is passed over, and named in the result."""
    found = tree.find(epoch, fall_back=True)
    if found.record not in tree.state.epochs:
        tree = tree.look_again()  # it has become the newest since
    manifest = found.manifest
    others = {
        record.epoch: other.references()
        for record in tree.state.retained
        if record.epoch != manifest.epoch and (other := _line(tree, record)[1]) is not None
    }
    return EpochInFull(
        tree.birth.job,
        _described(tree, found.record, manifest),
        manifest.parent,
        found.record.manifest,
        found.record.digest,
        tuple(_operator(operator) for operator in manifest.operators),
        tuple(_files(manifest, others)),
        from_json(manifest.notes).took,
        tuple(map(str, found.passed_over)),
    )


def _line(tree: JobTree, record: EpochRecord) -> tuple[EpochLine | None, Manifest | None]:
    """Return an epoch's line, and its manifest if it can be used; two Nones if the epoch was removed meanwhile."""
    try:
        manifest = tree.manifest(record)
    except NoSuchEpoch:
        return None, None
    except UnusableEpoch as error:
        line = EpochLine(
            record.epoch, None, record.state, _pins(tree, record.epoch), None, None, None, None, None,
            problem=error.reason,
        )  # fmt: skip
        return line, None
    return _described(tree, record, manifest), manifest


def _described(tree: JobTree, record: EpochRecord, manifest: Manifest) -> EpochLine:
    sizes = {path: size for path, size, _ in _sized(manifest)}
    fresh = {path for path, _, made in _sized(manifest) if made is None or made == manifest.epoch}
    notes = from_json(manifest.notes)
    return EpochLine(
        epoch=record.epoch,
        kind=manifest.kind,
        state=record.state,
        pins=_pins(tree, record.epoch),
        created_at=manifest.created_at,
        parallelism=max((operator.parallelism for operator in manifest.operators), default=0),
        full_bytes=sum(sizes.values()),
        new_bytes=sum(sizes[path] for path in fresh),
        files=len(sizes),
        program=notes.program,
        origin=notes.origin,
    )


def _operator(operator: OperatorSnapshot) -> OperatorInFull:
    broadcast = operator.broadcast
    return OperatorInFull(
        operator.uid,
        operator.parallelism,
        tuple(held_by(operator)),
        0 if broadcast is None else _size(broadcast),
        operator.enumerator != NULL,
        tuple(map(_part, operator.subtasks)),
    )


def _part(subtask: SubtaskSnapshot) -> PartInFull:
    files = () if subtask.state is None else subtask.state.files
    return PartInFull(
        partition=subtask.partition,
        key_groups="" if subtask.state is None else str(subtask.state.range),
        files=len(files),
        state_bytes=sum(file.size for file in files),
        splits=len(subtask.positions),
        in_flight_bytes=sum(_size(part) for channel in subtask.channels for part in channel.parts),
        pending_transactions=len(subtask.committables),
        watermark=None if subtask.watermark is None else subtask.watermark.timestamp,
    )


def _files(manifest: Manifest, others: Mapping[Epoch, frozenset[str]]) -> Iterable[FileInFull]:
    by_path = {file.path: file for file in _state_files(manifest)}
    for path, size, _ in sorted(set(_sized(manifest))):
        shared = tuple(epoch for epoch in sorted(others) if path in others[epoch])
        file = by_path.get(path)
        if file is None:
            yield FileInFull(path, size, None, path.rpartition(".")[2], "", shared)
        else:
            yield FileInFull(path, size, file.epoch, file.kind.value, ", ".join(map(str, file.ranges)), shared)


def _sized(manifest: Manifest) -> list[tuple[str, int, Epoch | None]]:
    """Return each file with its size and, for keyed state, the epoch that it was made for; some more than once."""
    found: list[tuple[str, int, Epoch | None]] = [(file.path, file.size, file.epoch) for file in _state_files(manifest)]
    for operator in manifest.operators:
        parts = [operator.broadcast] if operator.broadcast is not None else []
        for subtask in operator.subtasks:
            parts += [part for channel in subtask.channels for part in channel.parts]
            parts += [file for one in subtask.committables for file in one.payload.staged]
        found += [(part.path, part.size, None) for part in parts if isinstance(part, StoredFile)]
    return found


def _state_files(manifest: Manifest) -> list[FileRef]:
    subtasks = (subtask for operator in manifest.operators for subtask in operator.subtasks)
    return [file for subtask in subtasks if subtask.state is not None for file in subtask.state.files]


def _size(part: StoredFile | Inline) -> int:
    return part.size if isinstance(part, StoredFile) else len(part.data)


def _pins(tree: JobTree, epoch: Epoch) -> tuple[str, ...]:
    return tuple(
        pin.pin if pin.pinner is Pinner.READER else "savepoint" for pin in tree.state.pins if pin.epoch == epoch
    )


def _running_here(tree: JobTree) -> int | None:
    try:
        pid = read_for(home_of(tree.birth.job), tree.uri).pid
        os.kill(pid, 0)
    except (JobNotRunning, NotAllowed, OSError):
        return None
    return pid
