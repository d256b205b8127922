"""The messages between driver and workers of the simulated job.

Invariant: whatever concerns an attempt carries its incarnation, so that what is older can be refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from recovery.testing.stream import Item, Row
from snapshot.cut.frames import EARLIEST, Frame, Marker
from snapshot.cut.participant import Part, SubtaskContent
from snapshot.epochs.transaction_events import Committable
from snapshot.ids import ChannelId
from statebackend.files import FileSet
from statebackend.ids import Epoch, Incarnation, Partition, Uid

SOURCE = Uid("source")
WINDOWS = Uid("windows")


@dataclass(frozen=True, slots=True)
class Payload:
    """The data with which a transaction is committed: its producer, and its rows if the target does not keep them."""

    producer: str
    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True)
class SourceCut:
    """A source's part of an epoch: where it stands in its splits, its watermark, and what its marker overtook."""

    positions: Mapping[int, int]
    watermark: int
    overtaken: Mapping[ChannelId, tuple[Item, ...]]


@dataclass(frozen=True, slots=True)
class WindowCut:
    """The window operator's note in the moment of its cut; files, rows and channel state follow."""

    watermark: int


# --- driver to worker ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class WhoIsThere:
    """Every living process may say so."""


@dataclass(frozen=True, slots=True)
class Role:
    """All that one partition starts an attempt from."""

    partition: Partition
    files: FileSet
    positions: Mapping[int, int] = field(default_factory=dict)
    source_watermark: int = EARLIEST
    window_watermark: int = EARLIEST
    in_flight: tuple[Item, ...] = ()
    committables: tuple[Committable[Payload], ...] = ()


@dataclass(frozen=True, slots=True)
class Deploy:
    """Take this role in this attempt, restored from `epoch`; `workers` are the names of all, by partition."""

    incarnation: Incarnation
    epoch: Epoch | None
    role: Role
    workers: tuple[str, ...]

    def __str__(self) -> str:
        return f"deploy {self.incarnation} partition {self.role.partition} of {len(self.workers)} from {self.epoch}"


@dataclass(frozen=True, slots=True)
class TriggerEpoch:
    """An epoch begins."""

    incarnation: Incarnation
    marker: Marker

    def __str__(self) -> str:
        return f"trigger {self.marker.epoch}"


@dataclass(frozen=True, slots=True)
class EpochIsOver:
    """An epoch is complete, or abandoned."""

    incarnation: Incarnation
    epoch: Epoch
    complete: bool

    def __str__(self) -> str:
        return f"{self.epoch} is {'complete' if self.complete else 'abandoned'}"


@dataclass(frozen=True, slots=True)
class AssignSplit:
    """Read this split from its beginning; None: there are no more."""

    incarnation: Incarnation
    split: int | None

    def __str__(self) -> str:
        return f"split {self.split}"


# --- worker to driver ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Hello:
    """A worker is there, and does nothing for this driver."""


@dataclass(frozen=True, slots=True)
class FromPartition:
    """The messages of a partition in an attempt."""

    incarnation: Incarnation
    partition: Partition


@dataclass(frozen=True, slots=True)
class Restored(FromPartition):
    """The partition is restored and runs."""


@dataclass(frozen=True, slots=True)
class WantsSplit(FromPartition):
    """The partition's source has nothing to read."""


@dataclass(frozen=True, slots=True)
class AllEnded(FromPartition):
    """All input of the partition is processed."""


@dataclass(frozen=True, slots=True)
class Failed(FromPartition):
    """The partition cannot go on in this attempt."""

    reason: str


@dataclass(frozen=True, slots=True)
class Acknowledgement(FromPartition):
    """The partition's part of an epoch is durable."""

    epoch: Epoch
    subtasks: Mapping[Uid, SubtaskContent[object]]

    def __str__(self) -> str:
        return f"ack {self.epoch}"

    @property
    def has_committables(self) -> bool:
        """True if there is anything to commit when the epoch is complete."""
        return bool(self.subtasks[WINDOWS].parts[Part.TRANSACTIONS])


@dataclass(frozen=True, slots=True)
class Declining(FromPartition):
    """The partition cannot contribute to an epoch."""

    epoch: Epoch
    reason: str


@dataclass(frozen=True, slots=True)
class HasCommitted(FromPartition):
    """The partition has committed everything up to an epoch."""

    epoch: Epoch


@dataclass(frozen=True, slots=True)
class CannotCommit(FromPartition):
    """The target refuses a committable for good."""

    epoch: Epoch
    reason: str


# --- worker to worker ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OnChannel:
    """One frame on a channel of an attempt."""

    incarnation: Incarnation
    channel: ChannelId
    frame: Frame

    def __str__(self) -> str:
        match self.frame:
            case Marker(epoch):
                return f"marker {epoch}"
            case _:
                return str(getattr(self.frame, "payload", self.frame))
