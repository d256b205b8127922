"""The names that only the cut needs: who is cut, and over which channel it hears from whom.

Invariant: an id is a value, ordered and hashable, and `str` of it is what logs and errors say.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NewType

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
