"""One participant's part in each epoch of an attempt: from its subtasks' cuts to its acknowledgement.

Invariant: an epoch is acknowledged once, and only when every subtask of the participant has cut it and all
that its subtasks owe for it (files, prepared transactions, channel state) is durable. An epoch that one subtask
cannot contribute to is declined once.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Generic, TypeVar

from statebackend.ids import NO_EPOCH, Epoch, Uid

Content = TypeVar("Content")


class Part(Enum):
    """A part that a subtask may owe for an epoch after it has cut."""

    FILES = "its keyed state"
    TRANSACTIONS = "its sink's prepared transactions"
    CHANNELS = "what was in flight on its inputs and outputs"


@dataclass(frozen=True, slots=True)
class SubtaskCut(Generic[Content]):
    """A subtask has cut: `content` is what it noted in that moment (positions, watermark), `owes` what will follow."""

    epoch: Epoch
    uid: Uid
    content: Content
    owes: frozenset[Part]


@dataclass(frozen=True, slots=True)
class PartDurable(Generic[Content]):
    """A part that was owed has become durable, and this is what it is."""

    epoch: Epoch
    uid: Uid
    part: Part
    content: Content


@dataclass(frozen=True, slots=True)
class PartFailed:
    """A subtask cannot contribute to the epoch: its marker was skipped, or a part could not be made durable."""

    epoch: Epoch
    uid: Uid
    reason: str


@dataclass(frozen=True, slots=True)
class EpochGivenUp:
    """The coordinator has abandoned the epoch."""

    epoch: Epoch


ParticipantEvent = SubtaskCut[Content] | PartDurable[Content] | PartFailed | EpochGivenUp


@dataclass(frozen=True, slots=True)
class SubtaskContent(Generic[Content]):
    """All of one subtask that belongs to an epoch."""

    at_cut: Content
    parts: Mapping[Part, Content]


@dataclass(frozen=True, slots=True)
class Acknowledge(Generic[Content]):
    """Tell the coordinator that the participant's part of the epoch is durable."""

    epoch: Epoch
    subtasks: Mapping[Uid, SubtaskContent[Content]]


@dataclass(frozen=True, slots=True)
class Decline:
    """Tell the coordinator that the participant cannot contribute to the epoch."""

    epoch: Epoch
    uid: Uid
    reason: str


ParticipantInstruction = Acknowledge[Content] | Decline


@dataclass(slots=True)
class _Progress(Generic[Content]):
    uncut: set[Uid]
    at_cut: dict[Uid, Content] = field(default_factory=dict)
    owed: set[tuple[Uid, Part]] = field(default_factory=set)
    parts: dict[tuple[Uid, Part], Content] = field(default_factory=dict)


class Participant(Generic[Content]):
    """The epochs in flight of one partition's subtasks, in one attempt that began from `restored`.

    The caller owes: a subtask cuts each epoch once at most and reports no part before its cut. Parts may come in any
    order, also those of a later epoch first. A crash loses this; the attempt is then over for all partitions.
    """

    def __init__(self, subtasks: Collection[Uid], restored: Epoch = NO_EPOCH) -> None:
        self._subtasks = frozenset(subtasks)
        self._progress: dict[Epoch, _Progress[Content]] = {}
        self._over: set[Epoch] = set()
        self._floor = restored  # every epoch up to here is over

    @property
    def in_flight(self) -> Collection[Epoch]:
        """Return the epochs that at least one subtask has cut and that are neither acknowledged nor declined."""
        return self._progress.keys()

    def handle(self, event: ParticipantEvent[Content]) -> list[ParticipantInstruction[Content]]:
        """Take an event; return what to do about it, which is at most one instruction."""
        if event.epoch <= self._floor or event.epoch in self._over:
            return []
        match event:
            case SubtaskCut(epoch, uid, content, owes):
                progress = self._progress.setdefault(epoch, _Progress(set(self._subtasks)))
                progress.uncut.remove(uid)
                progress.at_cut[uid] = content
                progress.owed |= {(uid, part) for part in owes}
                return self._acknowledge_if_done(epoch, progress)
            case PartDurable(epoch, uid, part, content):
                progress = self._progress[epoch]
                progress.owed.remove((uid, part))
                progress.parts[uid, part] = content
                return self._acknowledge_if_done(epoch, progress)
            case PartFailed(epoch, uid, reason):
                self._end(epoch)
                return [Decline(epoch, uid, reason)]
            case EpochGivenUp(epoch):
                self._end(epoch)
                return []

    def awaited(self, epoch: Epoch) -> Mapping[Uid, Collection[Part]]:
        """Return the subtasks that an epoch still waits for, each with the parts that it owes.

        A subtask that has not cut yet has none. The result is empty if the epoch is acknowledged, declined or over.
        """
        if epoch <= self._floor or epoch in self._over:
            return {}
        progress = self._progress.get(epoch)
        if progress is None:
            return dict.fromkeys(sorted(self._subtasks), ())
        owed = {
            uid: sorted((part for owner, part in progress.owed if owner == uid), key=str)
            for uid in sorted({owner for owner, _ in progress.owed})
        }
        return {**dict.fromkeys(sorted(progress.uncut), ()), **owed}

    def _acknowledge_if_done(self, epoch: Epoch, progress: _Progress[Content]) -> list[ParticipantInstruction[Content]]:
        if progress.uncut or progress.owed:
            return []
        self._end(epoch)
        subtasks = {
            uid: SubtaskContent(at_cut, {part: c for (owner, part), c in progress.parts.items() if owner == uid})
            for uid, at_cut in progress.at_cut.items()
        }
        return [Acknowledge(epoch, subtasks)]

    def _end(self, epoch: Epoch) -> None:
        self._progress.pop(epoch, None)
        self._over.add(epoch)

    def completed(self, epoch: Epoch) -> None:
        """Note that the coordinator has announced an epoch as complete: nothing up to it is asked for any more."""
        self._floor = max(self._floor, epoch)
        self._over = {over for over in self._over if over > self._floor}
        for older in [older for older in self._progress if older <= self._floor]:
            del self._progress[older]
