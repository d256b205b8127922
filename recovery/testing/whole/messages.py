"""The messages between driver and processes, as a history has them: sent, and received.

Invariant: they travel as they are, and are only noted.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from recovery.testing.whole.job import Job
from recovery.testing.world.network import End
from recovery.testing.world.sockets import SimSocket
from snapshot.host.net.control import ControlConnection
from snapshot.host.protocol.messages import Figures
from snapshot.testing.history import Kind

_NOT_TOLD: Final = Figures
"""Messages that come all the time, and mean nothing to the protocol."""


@contextmanager
def noted_messages(job: Job) -> Iterator[None]:
    """Note each control message in the history of the job, while the block lasts, when it is sent and received."""
    sending, receiving = ControlConnection.send, ControlConnection._hand_on
    under_way: dict[End, deque[tuple[int, str] | None]] = {}
    history = job.history

    def send(self: ControlConnection[Any, Any], message: Any) -> None:
        end = _end_of(self)
        if end is not None and end.other is not None:
            noted = None
            if not isinstance(message, _NOT_TOLD):
                owner, name = end.owner, type(message).__name__
                noted = history.append(owner.name, owner.incarnation, Kind.SENT, end.peer_name, name), name
            under_way.setdefault(end.other, deque()).append(noted)
        sending(self, message)

    def hand_on(self: ControlConnection[Any, Any], pickled: bytes) -> None:
        end = _end_of(self)
        if end is not None and under_way.get(end):
            noted = under_way[end].popleft()
            if noted is not None:
                at, name = noted
                owner = end.owner
                history.append(owner.name, owner.incarnation, Kind.RECEIVED, end.peer_name, name, at)
        receiving(self, pickled)

    try:
        ControlConnection.send, ControlConnection._hand_on = send, hand_on  # type: ignore[method-assign]
        yield
    finally:
        ControlConnection.send, ControlConnection._hand_on = sending, receiving  # type: ignore[method-assign]


def _end_of(connection: ControlConnection[Any, Any]) -> End | None:
    sock: object = connection._sock
    return sock.end if isinstance(sock, SimSocket) and not connection._closed else None
