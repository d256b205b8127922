"""The connections over which a running job is asked for something, at the driver's port.

Invariant: who is connected has proved the run's secret; no connection, slow or gone, holds up the job.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from recovery.driver.remote.command_messages import (
    Answered,
    Asked,
    Declined,
    FollowEvents,
    FromDriver,
    ToCarryOut,
    Told,
)
from recovery.events import AnyEvent
from snapshot.host.net.control import ControlConnection
from snapshot.host.net.event_loop import EventLoop
from snapshot.host.net.handshake_io import Proved

Reply = Callable[[object], object]
"""Takes the answer, or the exception whose text says why there is none; once."""

_MOST_QUEUED: Final = 64 << 20
"""The bytes that may wait for a caller; one that reads more slowly is disconnected."""

_Connection = ControlConnection[FromDriver, Asked]


class Commands:
    """Serves all callers that are connected. `carry_out(command, by, reply)` does what a caller asks, now or later.

    `refuse(who, reason)` hears of a connection that was ended because of what came on it.
    """

    def __init__(
        self,
        loop: EventLoop,
        carry_out: Callable[[ToCarryOut, str, Reply], object],
        refuse: Callable[[str, str], object],
    ) -> None:
        self._loop = loop
        self._carry_out = carry_out
        self._refuse = refuse
        self._connections: dict[_Connection, None] = {}
        self._following: dict[_Connection, None] = {}

    def take(self, proved: Proved, name: str) -> None:
        """Serve a peer of this name, which has connected."""
        connection: _Connection = ControlConnection(
            self._loop,
            proved,
            lambda asked: self._asked(connection, name, asked),
            lambda reason: self._ended(connection, name, reason),
        )
        self._connections[connection] = None

    def event(self, event: AnyEvent) -> None:
        """Tell all connections that follow events of this one."""
        for connection in list(self._following):
            self._send(connection, Told(event))

    @property
    def queued_bytes(self) -> int:
        """Return how many bytes of answers have not been taken by the network yet."""
        return sum(connection.queued_bytes for connection in self._connections)

    def close(self) -> None:
        """Close all connections."""
        for connection in self._connections:
            connection.close()
        self._connections.clear()
        self._following.clear()

    def _asked(self, connection: _Connection, by: str, asked: Asked) -> None:
        reply = partial(self._answer, connection, asked.number)
        if isinstance(asked.command, FollowEvents):
            self._following[connection] = None
            reply(None)
            return
        try:
            self._carry_out(asked.command, by, reply)
        except Exception as error:  # whatever is wrong with a wish, the job goes on
            reply(error)

    def _answer(self, connection: _Connection, number: int, answer: object) -> None:
        if isinstance(answer, BaseException):
            self._send(connection, Declined(number, str(answer) or type(answer).__name__))
        else:
            self._send(connection, Answered(number, answer))

    def _send(self, connection: _Connection, message: FromDriver) -> None:
        connection.send(message)
        if connection.queued_bytes > _MOST_QUEUED:
            connection.close()
            self._gone(connection)

    def _ended(self, connection: _Connection, name: str, reason: str) -> None:
        self._gone(connection)
        if connection.was_unusable:
            self._refuse(name, reason)

    def _gone(self, connection: _Connection) -> None:
        self._connections.pop(connection, None)
        self._following.pop(connection, None)
