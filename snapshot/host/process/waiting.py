"""A process that is connected to all members of an attempt, and waits for the epoch from which it is one of them.

Invariant: what it keeps is all that each of them has sent behind the marker of that epoch, in order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from snapshot.cut.frames import Data, Frame
from snapshot.host.partition.router import SendingEnd
from snapshot.host.partition.stage_inputs import ReceivingEnd
from snapshot.host.partition.too_far_behind import MOST_KEPT
from snapshot.host.protocol.messages import Deploy
from snapshot.ids import ChannelId, Copy, Replica
from snapshot.program.plan import Plan
from snapshot.replication.agreement import Message
from snapshot.replication.decisions import Decision


@dataclass(slots=True, eq=False)
class WaitingToJoin:
    """The role that the process is to have, its connections, and all that has come on them."""

    deploy: Deploy
    plan: Plan
    sending: Mapping[ChannelId, Sequence[SendingEnd]]
    receiving: Mapping[Copy, ReceivingEnd]
    frames: list[tuple[Copy, Frame]] = field(default_factory=list)
    said: list[tuple[Replica, Message[Decision]]] = field(default_factory=list)
    """The messages of the other members of the partition."""
    size: int = 0

    def keep(self, copy: Copy, frame: Frame) -> bool:
        """Keep a frame; return False if that is too much by now."""
        self.frames.append((copy, frame))
        self.size += frame.size if isinstance(frame, Data) else 0
        return self.size <= MOST_KEPT
