"""The contents of an epoch: every operator's state, positions, watermarks, in-flight data and committables.

Invariant: a manifest names every partition of every operator exactly once, the key groups of a keyed operator
all have an owner, every reference is relative to the tree, and nothing in it is younger than its epoch. The rules
are checked whenever a `Manifest` is made, by `check_manifest`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import chain, pairwise
from operator import attrgetter
from typing import NoReturn, TypeVar

from snapshot.cut.frames import Watermark
from snapshot.epochs.transaction_events import Committable
from snapshot.ids import ChannelId, JobId, SubtaskId
from snapshot.tree.frozen_json import NULL, Json
from statebackend.errors import StoreError
from statebackend.files import FileRef, FileSet, check_file
from statebackend.ids import NO_EPOCH, Attempt, Epoch, Incarnation, KeyGroup, Partition, Uid
from statebackend.keygroups import KeyGroupRange, boundaries

_PATHS: Callable[[SubtaskSnapshot], tuple[str, ...]] = attrgetter("paths")
_COMMITTABLES: Callable[[SubtaskSnapshot], tuple[Committable[CommitPayload], ...]] = attrgetter("committables")
_Name = TypeVar("_Name", str, ChannelId)


class ManifestError(StoreError, ValueError):
    """A fault of a manifest that stops all work with it."""


class InvalidManifest(ManifestError):
    """A manifest that contradicts itself."""


class DamagedManifest(ManifestError):
    """Bytes that are not a manifest as it was written; the message says in which file and where in it."""


class PointsOutside(DamagedManifest):
    """A manifest that refers to something that is not a file of its tree."""


class NewerManifest(ManifestError):
    """A manifest of a format version that this program does not know."""


class ForeignJob(ManifestError):
    """A manifest of another job than the one that was asked for."""


class ManifestKind(Enum):
    """The purpose of an epoch."""

    CHECKPOINT = "checkpoint"
    """For recovery: it goes when newer epochs have taken its place."""
    SAVEPOINT = "savepoint"
    """For people: it stays until they remove it."""


@dataclass(frozen=True, slots=True, order=True)
class StoredFile:
    """A file that holds something else than keyed state. `checksum` is `<algorithm>:<hex digits>`."""

    path: str
    size: int
    checksum: str

    def __post_init__(self) -> None:
        check_file(self.path, self.size, self.checksum)


@dataclass(frozen=True, slots=True, order=True)
class Inline:
    """A few bytes that are in the manifest itself."""

    data: bytes


@dataclass(frozen=True, slots=True)
class ChannelState:
    """The frames in flight on a channel at the cut, first to last. They are processed before any new input."""

    channel: ChannelId
    parts: tuple[StoredFile | Inline, ...]


@dataclass(frozen=True, slots=True)
class SplitPosition:
    """The position at which the reading of a source's split goes on."""

    split: str
    position: Json


@dataclass(frozen=True, slots=True)
class CommitPayload:
    """The data with which a sink commits a transaction, and the rows that it has staged in the tree until then.

    A `held` one is not committed: it has rows that the sink's next transaction takes over.
    """

    value: Json
    staged: tuple[StoredFile, ...] = ()
    held: bool = False


@dataclass(frozen=True, slots=True)
class SubtaskSnapshot:
    """One operator's part of the cut in one partition.

    `state` is None unless the operator is keyed; its range is the partition's key groups. `positions` and
    `channels` are ordered by split and by channel; `committables` are in the order in which they were sealed. A
    `watermark` at the end of event time says that what follows from the end was done before the cut.

    What a manifest has to know of thousands of them at once is noted when one is made: `paths` are those of all files
    that it refers to, `newest` is the latest epoch that it mentions, and `written` is its canonical form, if
    `manifest_json` has read it from that. A changed copy notes its own, and has not been written yet.
    """

    partition: Partition
    state: FileSet | None = None
    positions: tuple[SplitPosition, ...] = ()
    watermark: Watermark | None = None
    channels: tuple[ChannelState, ...] = ()
    committables: tuple[Committable[CommitPayload], ...] = ()
    paths: tuple[str, ...] = field(init=False, repr=False, compare=False)
    newest: Epoch | None = field(init=False, repr=False, compare=False)
    written: bytes | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        files = self.state.files if self.state is not None else ()
        if any(one.split >= other.split for one, other in pairwise(self.positions)):
            raise InvalidManifest(f"partition {self.partition}: the splits are not in order, or one has two positions")
        paths = [file.path for file in files] + [file.path for file in _stored(self)]
        epochs = [file.epoch for file in files[-1:]] + [item.sealed_in for item in self.committables]
        object.__setattr__(self, "paths", tuple(paths))
        object.__setattr__(self, "newest", max(epochs, default=None))

    def remember(self, written: bytes) -> None:
        """Keep `written` as the canonical form; the caller owes that it is."""
        object.__setattr__(self, "written", written)


@dataclass(frozen=True, slots=True)
class OperatorSnapshot:
    """All partitions of one operator, in order; of a source also what its enumerator has not yet assigned.

    `broadcast` is its broadcast state, which is the same in all partitions and so is kept once. `key_type` is the name
    of the type of its keys, so that a key's group is known before any file is read; empty where that is not said.
    """

    uid: Uid
    parallelism: int
    subtasks: tuple[SubtaskSnapshot, ...]
    enumerator: Json = NULL
    broadcast: StoredFile | Inline | None = None
    key_type: str = ""


@dataclass(frozen=True, slots=True)
class JournalEnd:
    """The end of a journal: the number of its newest entry, and the epoch that the job would come back to.

    A manifest says it of the journal that it is about to be entered in, so it proves that these entries were there.
    """

    number: int
    complete: Epoch


@dataclass(frozen=True, slots=True)
class Manifest:
    """One epoch of a job. `operators` are ordered by uid.

    `attempt` is the one of the epoch's generation that made it; `parent` is the complete epoch on which it is based,
    `NO_EPOCH` for a job without a past; `created_at` is in milliseconds since 1970. `notes` are for people: where the
    epoch comes from and what it took. Nothing is ever decided by them. `journal` is how far the tree's journal had come
    when the manifest was written; none in those of older programs, and of epochs brought from another tree.
    """

    job: JobId
    epoch: Epoch
    attempt: Attempt
    kind: ManifestKind
    max_parallelism: int
    created_at: int
    operators: tuple[OperatorSnapshot, ...]
    parent: Epoch = NO_EPOCH
    notes: Json = NULL
    journal: JournalEnd | None = None
    _paths: frozenset[str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_paths", check_manifest(self))

    @property
    def incarnation(self) -> Incarnation:
        """Return the incarnation that made the epoch."""
        return Incarnation(self.epoch.generation, self.attempt)

    def references(self) -> frozenset[str]:
        """Return the paths of all files without which the epoch could not be restored and committed."""
        return self._paths

    def files(self) -> Iterator[FileRef | StoredFile]:
        """Yield all files that it refers to; one that several refer to comes several times."""
        for operator in self.operators:
            if isinstance(operator.broadcast, StoredFile):
                yield operator.broadcast
            for subtask in operator.subtasks:
                yield from subtask.state.files if subtask.state is not None else ()
                yield from _stored(subtask)


def check_job(manifest: Manifest, job: JobId, where: str) -> None:
    """Refuse, with `ForeignJob`, a manifest of another job: its epochs and transactions are not this job's."""
    if manifest.job != job:
        raise ForeignJob(
            f"{where} belongs to job {manifest.job!r}, not to {job!r}; to start from it as a new job, fork it"
        )


def only_carries(manifest: Manifest, before: Epoch) -> bool:
    """True if the epoch has committables, and none of them is output of its own.

    They are output of earlier epochs, or held, so not visible yet. `before` is the newest complete epoch that the job
    has not given up: it has everything that was sealed up to it.
    """
    committables = [one for some in map(_COMMITTABLES, _subtasks(manifest)) for one in some]
    return bool(committables) and all(one.payload.held or one.sealed_in <= before for one in committables)


def check_manifest(manifest: Manifest) -> frozenset[str]:
    """Return the paths of the manifest's files; `InvalidManifest`, with uid and partition, unless all rules hold."""
    epoch = manifest.epoch
    if not manifest.job:
        raise InvalidManifest("a manifest without a job id")
    if epoch.generation < 1 or manifest.attempt < 0 or not 0 <= manifest.created_at < 2**63:
        raise InvalidManifest(
            f"epoch {epoch} of attempt {manifest.attempt}, created at {manifest.created_at}, was never triggered"
        )
    if manifest.parent >= epoch:
        raise InvalidManifest(
            f"epoch {epoch} says that it is based on {manifest.parent}, which is not older; a job that starts from "
            "another job's epoch begins with a later generation"
        )
    if not _ascending([operator.uid for operator in manifest.operators]):
        raise InvalidManifest(f"the operators of epoch {epoch} are not ordered by uid, or one is there twice")
    for operator in manifest.operators:
        _check_operator(operator, epoch, manifest.max_parallelism)
    return _check_names(manifest)


def _check_operator(operator: OperatorSnapshot, epoch: Epoch, max_parallelism: int) -> None:
    uid, parallelism = operator.uid, operator.parallelism
    try:
        bounds = boundaries(parallelism, max_parallelism)
    except ValueError as error:
        raise InvalidManifest(f"{uid}: {error}") from error
    if [subtask.partition for subtask in operator.subtasks] != list(range(parallelism)):
        raise InvalidManifest(f"{uid}: expected each of the partitions 0 to {parallelism - 1} once, in order")
    keyed = operator.subtasks[0].state is not None
    generation, number = epoch.generation, epoch.number
    for subtask, first, end in zip(operator.subtasks, bounds, bounds[1:], strict=False):
        state = subtask.state
        if keyed != (state is not None):
            raise InvalidManifest(f"{_who(uid, subtask)}: some partitions of {uid} have key groups and some have none")
        if state is not None and (state.range.first != first or state.range.end != end):
            own = KeyGroupRange(KeyGroup(first), KeyGroup(end))
            raise InvalidManifest(f"{_who(uid, subtask)} has key groups {state.range} instead of {own}")
        newest = subtask.newest
        # Comparing epochs thousands of times takes its time; nearly always two numbers say enough.
        if newest is not None and (newest.number > number or newest.generation > generation) and newest > epoch:
            _refuse_later(_who(uid, subtask), subtask, epoch)
        if subtask.channels:
            _check_channels(_who(uid, subtask), subtask.channels)


def _who(uid: Uid, subtask: SubtaskSnapshot) -> SubtaskId:
    return SubtaskId(uid, subtask.partition)


def _refuse_later(who: SubtaskId, subtask: SubtaskSnapshot, epoch: Epoch) -> NoReturn:
    for file in subtask.state.files if subtask.state is not None else ():
        if file.epoch > epoch:
            raise InvalidManifest(f"{who} has file {file.path} of a later epoch, {file.epoch}")
    late = next(committable for committable in subtask.committables if committable.sealed_in > epoch)
    raise InvalidManifest(f"{who}: transaction {late.transaction} was sealed after epoch {epoch}")


def _check_channels(who: SubtaskId, channels: tuple[ChannelState, ...]) -> None:
    if not _ascending([state.channel for state in channels]):
        raise InvalidManifest(f"{who}: the channels are not in order, or one is there twice")
    for state in channels:
        if SubtaskId(state.channel.target, state.channel.receiver) != who:
            raise InvalidManifest(f"{who} has state of channel {state.channel}, which leads elsewhere")


def _check_names(manifest: Manifest) -> frozenset[str]:
    """Refuse a transaction in two places and references to a file that disagree; return the files' paths."""
    subtasks = _subtasks(manifest)
    transactions = [committable.transaction for some in map(_COMMITTABLES, subtasks) if some for committable in some]
    if len(set(transactions)) < len(transactions):
        twice = next(name for name, times in Counter(transactions).items() if times > 1)
        raise InvalidManifest(f"transaction {twice} is there twice")
    paths = list(map(_PATHS, subtasks))
    paths.append(tuple(file.path for file in _broadcast(manifest)))
    files = frozenset(chain.from_iterable(paths))
    if len(files) < sum(map(len, paths)):  # after a rescale, partitions share files
        _check_shared(manifest)
    return files


def _check_shared(manifest: Manifest) -> None:
    files: dict[str, FileRef | StoredFile] = {}
    for subtask in _subtasks(manifest):
        for ref in subtask.state.files if subtask.state else ():
            known = files.setdefault(ref.path, ref)
            if known is not ref and not (isinstance(known, FileRef) and _is_same_file(known, ref)):
                raise InvalidManifest(f"{ref.path} is referred to twice, in ways that contradict each other")
        for file in _stored(subtask):
            if files.setdefault(file.path, file) is not file:
                raise InvalidManifest(f"{file.path} is referred to twice; in-flight data and rows are in one place")
    for file in _broadcast(manifest):
        if files.setdefault(file.path, file) is not file:
            raise InvalidManifest(f"{file.path} is referred to twice; broadcast state has a file of its own")


def _broadcast(manifest: Manifest) -> list[StoredFile]:
    return [operator.broadcast for operator in manifest.operators if isinstance(operator.broadcast, StoredFile)]


def _stored(subtask: SubtaskSnapshot) -> list[StoredFile]:
    in_flight = [part for state in subtask.channels for part in state.parts if isinstance(part, StoredFile)]
    return in_flight + [file for committable in subtask.committables for file in committable.payload.staged]


def _is_same_file(one: FileRef, other: FileRef) -> bool:
    return (one.epoch, one.kind, one.size, one.checksum) == (other.epoch, other.kind, other.size, other.checksum)


def _subtasks(manifest: Manifest) -> list[SubtaskSnapshot]:
    return [subtask for operator in manifest.operators for subtask in operator.subtasks]


def _ascending(names: Sequence[_Name]) -> bool:
    return all(one < other for one, other in pairwise(names))
