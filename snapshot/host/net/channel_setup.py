"""From a deployment to the moment when a partition can begin: its channels are connected.

Invariant: exactly one of `on_ready` and `on_failed` is called, once, in the loop's thread, unless it is closed
before; what comes after that is closed as it comes. State is opened at the same time, and not waited for (`opening`).
"""

from __future__ import annotations

from collections.abc import Callable
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
from snapshot.ids import ChannelId
from snapshot.program.plan import Plan


@dataclass(frozen=True, slots=True)
class Connections:
    """All that a partition needs to begin: a connection for each channel from and to another partition."""

    outgoing: dict[ChannelId, Proved]
    incoming: dict[ChannelId, Proved]


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
        self._expected_out, self._expected_in = _channels(plan, deploy)
        self._connecting = {
            channel: Connector(
                loop,
                deploy.peers[channel.receiver],
                secret,
                ChannelOf(channel, deploy.incarnation),
                partial(self._connected, channel),
                self._not_connected,
                seconds=deploy.options.connect_timeout / 1000,
                tls=tls,
            )
            for channel in self._expected_out
        }
        loop.call_soon(self._ready_if_all_is_there)

    def accept(self, channel: ChannelId, proved: Proved) -> None:
        """Take a channel that ends here and that another partition has connected."""
        if self._over or channel not in self._expected_in:
            proved.sock.close()
            return
        self._connections.incoming[channel] = proved
        self._ready_if_all_is_there()

    def expects(self, channel: ChannelId) -> bool:
        """True if this channel ends here and is not connected yet."""
        return channel in self._expected_in and channel not in self._connections.incoming

    def close(self) -> None:
        """Give the set-up up, and close all connections that were opened for it."""
        if self._over:
            return
        self._over = True
        for connecting in self._connecting.values():
            connecting.cancel()
        for proved in (*self._connections.outgoing.values(), *self._connections.incoming.values()):
            proved.sock.close()

    def _connected(self, channel: ChannelId, proved: Proved) -> None:
        self._connections.outgoing[channel] = proved
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


def _channels(plan: Plan, deploy: Deploy) -> tuple[set[ChannelId], set[ChannelId]]:
    """Return the channels to other partitions that begin here, and those from other partitions that end here."""
    own, parallelism = deploy.partition, deploy.parallelism
    edges = [edge for stage in plan.stages for edge in stage.edges]
    outgoing = {edge.channel(own, to) for edge in edges for to in edge.receivers(own, parallelism) if to != own}
    incoming = {edge.channel(by, own) for edge in edges for by in edge.senders(own, parallelism) if by != own}
    return outgoing, incoming
