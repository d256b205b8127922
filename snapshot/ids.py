"""The names that only the cut needs: who is cut, which process has which part in it, and over which channel it hears.

Invariant: an id is a value, ordered and hashable, and `str` of it is what logs and errors say.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NewType

from statebackend.ids import Partition, Uid

JobId = NewType("JobId", str)
"""The name of a job, fixed when it is born. A fork is another job: its id differs from its origin's."""

TransactionId = NewType("TransactionId", str)
"""The name of one sink transaction; never used twice, not by a rewound or forked job either."""


@dataclass(frozen=True, slots=True, order=True)
class SubtaskId:
    """One operator in one partition: what acknowledges an epoch."""

    uid: Uid
    partition: Partition

    def __str__(self) -> str:
        return f"{self.uid}/{self.partition}"


Replica = NewType("Replica", int)
"""The number of a process among those that have one partition; never used twice in an attempt."""

ONLY: Final = Replica(0)
"""The replica of a partition that one process has."""


def numbered_from(replica: Replica) -> int:
    """Return the number from which a replica counts the files and transactions that it names.

    Two replicas of a partition never have one name for two things, and one alone counts from 0.
    """
    return replica << 32


def replica_of(number: int) -> Replica:
    """Return the replica that counts this number: the inverse of `numbered_from`."""
    return Replica(number >> 32)


@dataclass(frozen=True, slots=True, order=True)
class Member:
    """The role of one process in an attempt: a partition, and which of its replicas."""

    partition: Partition
    replica: Replica = ONLY

    def __str__(self) -> str:
        return f"{self.partition}.{self.replica}"


@dataclass(frozen=True, slots=True, order=True)
class ChannelId:
    """One FIFO channel: from a partition of the operator `source` to a partition of the operator `target`.

    `port` tells the edges apart where two operators are joined by more than one, as in a self-join.
    """

    source: Uid
    target: Uid
    sender: Partition
    receiver: Partition
    port: int = 0

    def __str__(self) -> str:
        port = f"#{self.port}" if self.port else ""
        return f"{self.source}/{self.sender}->{self.target}/{self.receiver}{port}"


@dataclass(frozen=True, slots=True, order=True)
class Copy:
    """The way of a channel from one process to another: between a member of its sender and one of its receiver."""

    channel: ChannelId
    sent_by: Replica = ONLY
    heard_by: Replica = ONLY

    @property
    def sender(self) -> Member:
        """Return the member that sends."""
        return Member(self.channel.sender, self.sent_by)

    @property
    def receiver(self) -> Member:
        """Return the member that receives."""
        return Member(self.channel.receiver, self.heard_by)

    def __str__(self) -> str:
        if self.sent_by == self.heard_by == ONLY:
            return str(self.channel)
        return f"{self.channel} from replica {self.sent_by} to {self.heard_by}"


@dataclass(frozen=True, slots=True, order=True)
class Peering:
    """The connection of two members of a partition with each other, from the one that makes it to the other."""

    partition: Partition
    made_by: Replica
    taken_by: Replica

    @property
    def sender(self) -> Member:
        """Return the member that makes the connection."""
        return Member(self.partition, self.made_by)

    @property
    def receiver(self) -> Member:
        """Return the member that takes it."""
        return Member(self.partition, self.taken_by)

    def __str__(self) -> str:
        return f"{self.sender} with {self.receiver}"
