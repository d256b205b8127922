"""The events that a coordinator is told, and the instructions that it gives to its host.

Invariant: an event or instruction is an immutable value that carries all it needs, so a recorded trace of
events can be replayed through the machine, and its instructions compared.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Generic, TypeVar

from snapshot.cut.frames import Marker
from statebackend.ids import Epoch, Generation, Incarnation, Partition

Content = TypeVar("Content")
"""The content of an acknowledgement; the coordinator passes it on to the manifest unread."""


# --- events: what the host reports -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Ticked:
    """Time has come to `now`, in milliseconds of a clock that never goes back.

    It is reported before whatever happens at a later time, as pauses and time-outs are measured from the last one.
    """

    now: int


@dataclass(frozen=True, slots=True)
class SavepointRequested:
    """A savepoint is asked for, whatever the interval, the pause and the epochs in flight say.

    It is triggered at once, or skipped if no attempt is running: then the caller asks again. While a `last` one is in
    flight, and when it is complete, none is triggered because of the interval: it would say the same.
    """

    last: bool = False


@dataclass(frozen=True, slots=True)
class EpochRequested:
    """An epoch is wanted now, whatever the interval, the pause and the epochs in flight say: all input has ended.

    What is said of `SavepointRequested` holds for it, too. Behind the last one there is none, unless it is the last one
    that is asked for again.
    """

    last: bool = False


@dataclass(frozen=True, slots=True)
class AttemptStarted:
    """These participants are connected, restored, and wait for markers."""

    incarnation: Incarnation
    participants: frozenset[Partition]


@dataclass(frozen=True, slots=True)
class AttemptBroken:
    """A participant of the attempt is lost or has failed."""

    incarnation: Incarnation
    reason: str


@dataclass(frozen=True, slots=True)
class ContributorChanged:
    """Another process acknowledges for a partition from now on, in the same attempt: the one that did so is gone.

    Of the epochs in flight only the one that is being published can still be complete, as nothing else of them is to be
    had. None is triggered until it is known where the new contributor begins, and if it is `absent`, as it has yet to
    restore that, until it is back.
    """

    incarnation: Incarnation
    partition: Partition
    absent: bool = False


@dataclass(frozen=True, slots=True)
class ContributorBack:
    """The process that was absent has restored its partition, and takes part in epochs."""

    incarnation: Incarnation
    partition: Partition


@dataclass(frozen=True, slots=True)
class Acknowledged(Generic[Content]):
    """A participant's part of an epoch is durable: all that `content` names survives any crash."""

    epoch: Epoch
    incarnation: Incarnation
    partition: Partition
    content: Content
    has_committables: bool


@dataclass(frozen=True, slots=True)
class Declined:
    """A participant cannot contribute to an epoch."""

    epoch: Epoch
    incarnation: Incarnation
    partition: Partition
    reason: str


@dataclass(frozen=True, slots=True)
class Published:
    """The epoch's entry is in the journal: it is complete, whatever happens from now on."""

    epoch: Epoch


@dataclass(frozen=True, slots=True)
class PublishFailed:
    """It is certain that the epoch's entry is not in the journal and never will be."""

    epoch: Epoch
    reason: str


@dataclass(frozen=True, slots=True)
class Fenced:
    """A newer generation has claimed the job: this one is over."""

    by: Generation


@dataclass(frozen=True, slots=True)
class Committed:
    """A participant has committed everything that it acknowledged up to this epoch.

    Participants without a sink report it as well: after a restore they alone know that they have none.
    """

    epoch: Epoch
    incarnation: Incarnation
    partition: Partition


@dataclass(frozen=True, slots=True)
class CommitFailed:
    """A target refuses a committable for good."""

    epoch: Epoch
    incarnation: Incarnation
    partition: Partition
    reason: str


CoordinatorEvent = (
    Ticked
    | SavepointRequested
    | EpochRequested
    | AttemptStarted
    | AttemptBroken
    | ContributorChanged
    | ContributorBack
    | Acknowledged[Content]
    | Declined
    | Published
    | PublishFailed
    | Fenced
    | Committed
    | CommitFailed
)


# --- instructions: what the host does --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Trigger:
    """Cut the split enumerators' state and, in the same step, send `marker` to every participant."""

    marker: Marker
    participants: frozenset[Partition]


class SkipReason(Enum):
    """The reason why an interval passed without an epoch."""

    IN_FLIGHT = "as many epochs are in flight as may be"
    NOT_RUNNING = "no attempt is running"
    PROMOTING = "a partition's primary has changed, and an epoch is being published"
    ABSENT = "a partition is being restored"


@dataclass(frozen=True, slots=True)
class Skipped:
    """An epoch was due and was not triggered."""

    reason: SkipReason


class AbandonReason(Enum):
    """The reason why an epoch was given up."""

    TIMED_OUT = "it took longer than the time-out"
    DECLINED = "a participant declined it"
    SUBSUMED = "a later epoch was complete first"
    PUBLISH_FAILED = "it could not be published"
    ATTEMPT_BROKEN = "its attempt broke"
    CONTRIBUTOR_CHANGED = "a partition's primary has changed"


@dataclass(frozen=True, slots=True)
class Abandon:
    """Tell all participants that the epoch will not be; while the attempt runs on, nothing of it is discarded."""

    epoch: Epoch
    reason: AbandonReason
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Publish(Generic[Content]):
    """Write the manifest, then propose the journal's entry; answer with `Published`, `PublishFailed` or `Fenced`.

    If it cannot be found out whether the entry is there, the host ends the process: the next start will see. A
    savepoint is taken when its pin is in the journal as well, and it is reported only after that. `base` is the epoch
    that was the last complete one when this was triggered.
    """

    epoch: Epoch
    base: Epoch | None
    incarnation: Incarnation
    savepoint: bool
    contents: Mapping[Partition, Content]
    has_committables: bool


@dataclass(frozen=True, slots=True)
class Complete:
    """Tell all participants that the epoch is complete: they commit, and may forget what it made durable."""

    epoch: Epoch


@dataclass(frozen=True, slots=True)
class Promote:
    """Let the new contributor of a partition begin at this epoch, the last complete one (None: there is none).

    It commits what the epoch carries, and takes part in all later epochs.
    """

    partition: Partition
    epoch: Epoch | None


@dataclass(frozen=True, slots=True)
class RecordCommitted:
    """Write into the journal that everything up to this epoch is committed."""

    epoch: Epoch


@dataclass(frozen=True, slots=True)
class RemoveOlder:
    """Remove older epochs: keep the newest `retain` complete ones, and all from `oldest_base` on.

    `oldest_base` is the complete epoch that the oldest epoch in flight was triggered on: a participant may still
    acknowledge with files that only that one names.
    """

    retain: int
    oldest_base: Epoch | None


@dataclass(frozen=True, slots=True)
class RollBack:
    """Restore every participant from `epoch` (None: from the beginning) as this incarnation, then report it started.

    Meanwhile read the journal, and report `Fenced` if there is a newer claim: a fenced driver would otherwise try for
    ever to restore what its successor has removed. If `confirm_first`, read it before anything is restored.
    """

    epoch: Epoch | None
    incarnation: Incarnation
    confirm_first: bool


@dataclass(frozen=True, slots=True)
class Stop:
    """End the job, and keep what is in the store and what is prepared in the targets."""

    reason: str


CoordinatorInstruction = (
    Trigger
    | Skipped
    | Abandon
    | Publish[Content]
    | Complete
    | Promote
    | RecordCommitted
    | RemoveOlder
    | RollBack
    | Stop
)
