"""From a deployment to the moment when a partition can begin: its channels are connected.

Invariant: exactly one of `on_ready` and `on_failed` is called, once, in the loop's thread, unless it is closed
before; what comes after that is closed as it comes. State is opened at the same time, and not waited for (`opening`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial

from snapshot import fail_points
from snapshot.fail_points import reached
from snapshot.host.net.connection_kinds import ChannelOf
from snapshot.host.net.connector import Connector
from snapshot.host.net.event_loop import EventLoop
from snapshot.host.net.handshake_io import Proved
from snapshot.host.net.tls import TlsSide
from snapshot.host.protocol.messages import Deploy, Failed, FailureKind
from snapshot.ids import ChannelId, Copy, Member
from snapshot.program.plan import Plan


@dataclass(frozen=True, slots=True)
class Connections:
    """All that a member needs to begin: a connection for each channel from and to another one."""

    outgoing: dict[Copy, Proved]
    incoming: dict[Copy, Proved]


class ChannelSetup:
    """One partition on its way into an attempt."""

    def __init__(
        self,
        deploy: Deploy,
        plan: Plan,
        secret: bytes,
        loop: EventLoop,
        on_ready: Callable[[Connections], object],
        on_failed: Callable[[Failed], object],
        tls: TlsSide | None = None,
    ) -> None:
        self._deploy = deploy
        self._on_ready = on_ready
        self._on_failed = on_failed
        self._connections = Connections({}, {})
        self._over = False
        self._expected_out, self._expected_in = _copies(plan, deploy)
        self._connecting = {
            copy: Connector(
                loop,
                deploy.peers[copy.receiver],
                secret,
                ChannelOf(copy, deploy.incarnation),
                partial(self._connected, copy),
                self._not_connected,
                seconds=deploy.options.connect_timeout / 1000,
                tls=tls,
            )
            for copy in sorted(self._expected_out)
        }
        loop.call_soon(self._ready_if_all_is_there)

    def accept(self, copy: Copy, proved: Proved) -> None:
        """Take a channel that ends here and that another process has connected."""
        if self._over or copy not in self._expected_in:
            proved.sock.close()
            return
        self._connections.incoming[copy] = proved
        self._ready_if_all_is_there()

    def expects(self, copy: Copy) -> bool:
        """True if this way of a channel ends here and is not connected yet."""
        return copy in self._expected_in and copy not in self._connections.incoming

    def close(self) -> None:
        """Give the set-up up, and close all connections that were opened for it."""
        if self._over:
            return
        self._over = True
        for connecting in self._connecting.values():
            connecting.cancel()
        for proved in (*self._connections.outgoing.values(), *self._connections.incoming.values()):
            proved.sock.close()

    def _connected(self, copy: Copy, proved: Proved) -> None:
        self._connections.outgoing[copy] = proved
        self._ready_if_all_is_there()

    def _not_connected(self, reason: str) -> None:
        if not self._over:
            self.close()
            deploy = self._deploy
            self._on_failed(Failed(deploy.incarnation, deploy.partition, FailureKind.CHANNEL, reason))

    def _ready_if_all_is_there(self) -> None:
        connections = self._connections
        if (
            not self._over
            and len(connections.outgoing) == len(self._expected_out)
            and len(connections.incoming) == len(self._expected_in)
        ):
            self._over = True
            reached(fail_points.JOINED)
            self._on_ready(connections)


def copies(channel: ChannelId, peers: Collection[Member], own: Member) -> tuple[Copy, ...]:
    """Return the ways of a channel that begin or end in a member: to itself alone, or else from or to all others."""
    sender, receiver = channel.sender, channel.receiver
    if sender == receiver:
        return (Copy(channel, own.replica, own.replica),)
    if sender == own.partition:
        return tuple(Copy(channel, own.replica, peer.replica) for peer in peers if peer.partition == receiver)
    return tuple(Copy(channel, peer.replica, own.replica) for peer in peers if peer.partition == sender)


def _copies(plan: Plan, deploy: Deploy) -> tuple[set[Copy], set[Copy]]:
    """Return the ways of channels that begin here and end in other partitions, and of those the other way round."""
    own, parallelism = deploy.partition, deploy.parallelism
    edges = [edge for stage in plan.stages for edge in stage.edges]
    begin = [edge.channel(own, to) for edge in edges for to in edge.receivers(own, parallelism) if to != own]
    end = [edge.channel(by, own) for edge in edges for by in edge.senders(own, parallelism) if by != own]
    outgoing, incoming = (
        {copy for channel in channels for copy in copies(channel, deploy.peers, deploy.member)}
        for channels in (begin, end)
    )
    return outgoing, incoming
