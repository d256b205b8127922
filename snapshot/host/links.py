"""The connections of one process in one attempt: they come and go with the members at their other ends.

Invariant: the connections with a member are handed over together, when all of them stand, in the loop's thread.
After `drop` of a member nothing comes of it any more, and after `close` nothing at all. State is opened at the same
time as the first ones are made, and not waited for (`opening`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeAlias

from snapshot import fail_points
from snapshot.fail_points import reached
from snapshot.host.faults.injector import Line
from snapshot.host.net.channels import LocalChannel, OnFrame, ReceivingChannel, SendingChannel
from snapshot.host.net.connection_kinds import ChannelOf, PeerOf
from snapshot.host.net.connector import Connector
from snapshot.host.net.control import ControlConnection
from snapshot.host.net.event_loop import EventLoop
from snapshot.host.net.handshake_io import Proved
from snapshot.host.net.liveness import break_if_silent
from snapshot.host.net.tls import TlsSide
from snapshot.host.protocol.messages import Address, Deploy
from snapshot.ids import ChannelId, Copy, Member, Peering, Replica
from snapshot.program.plan import Plan
from snapshot.replication.agreement import Message
from snapshot.replication.decisions import Decision

Sending: TypeAlias = SendingChannel | LocalChannel
Receiving: TypeAlias = ReceivingChannel | LocalChannel
PeerLink: TypeAlias = ControlConnection[Message[Decision], Message[Decision]]
Way: TypeAlias = Copy | Peering
"""A connection between two processes: a channel's, or that of two members of a partition with each other."""


@dataclass(frozen=True, slots=True)
class Ready:
    """All members of the deployment are connected: `begin_sending` and `begin_receiving` may be called."""


@dataclass(frozen=True, slots=True)
class Joined:
    """A member that has come later is connected; it may be sent to, and what it sends arrives from now on."""

    member: Member
    sending: Mapping[ChannelId, Sending]
    receiving: Mapping[Copy, Receiving]


@dataclass(frozen=True, slots=True)
class NotConnected:
    """A member could not be reached. Nothing is connected any more if it was one of the deployment."""

    member: Member
    reason: str


@dataclass(frozen=True, slots=True)
class Broken:
    """A connection has broken; `forged` if its bytes were changed on the way."""

    copy: Copy
    reason: str
    forged: bool


@dataclass(frozen=True, slots=True)
class PeerBroken:
    """The connection with another member of the own partition has broken; all channels stand as they did."""

    member: Member
    reason: str


LinkNews = Ready | Joined | NotConnected | Broken | PeerBroken


@dataclass(slots=True)
class _Peer:
    """A member on its way: the connections that it lacks, and those that stand."""

    address: Address
    connecting: dict[Way, Connector] = field(default_factory=dict)
    expected: set[Way] = field(default_factory=set)
    outgoing: dict[Way, Proved] = field(default_factory=dict)
    incoming: dict[Way, Proved] = field(default_factory=dict)

    @property
    def complete(self) -> bool:
        return len(self.outgoing) == len(self.connecting) and len(self.incoming) == len(self.expected)

    def close(self) -> None:
        for connecting in self.connecting.values():
            connecting.cancel()
        for proved in (*self.outgoing.values(), *self.incoming.values()):
            proved.sock.close()


class Links:
    """All channels from and to this process. Members of one partition have none with each other, but if there is a view
    of them they are peers: two have one connection, which the younger one makes.

    After `Ready` the caller owes `begin_sending`, `begin_agreeing`, then `begin_receiving`, once each. `on_frame` and
    `on_drained` are as for channels.
    """

    def __init__(
        self,
        deploy: Deploy,
        plan: Plan,
        secret: bytes,
        loop: EventLoop,
        tell: Callable[[LinkNews], object],
        on_frame: OnFrame,
        on_drained: Callable[[], object],
        tls: TlsSide | None = None,
        beside: Sequence[ChannelId] = (),
    ) -> None:
        """Connect; `beside` are channels from and to this process that are not of the plan."""
        self._deploy = deploy
        self._secret = secret
        self._loop = loop
        self._tell = tell
        self._on_frame = on_frame
        self._on_drained = on_drained
        self._tls = tls
        self._own = own = deploy.member
        partition, parallelism = own.partition, deploy.parallelism
        self._begin = {
            edge.channel(partition, to): edge.ordered
            for stage in plan.stages
            for edge in stage.edges
            for to in edge.receivers(partition, parallelism)
        }
        """The channels that begin here, and whether no marker may overtake their rows."""
        self._end = [
            edge.channel(by, partition)
            for stage in plan.stages
            for edge in stage.inputs
            for by in edge.senders(partition, parallelism)
        ]
        self._begin.update((channel, True) for channel in beside if channel.sender == partition)
        self._end += [channel for channel in beside if channel.receiver == partition]
        self._addresses = {member: address for member, address in deploy.peers.items() if member != own}
        self._peers: dict[Member, _Peer] = {}
        self._sending: dict[Copy, Sending] = {}
        self._receiving: dict[Copy, Receiving] = {}
        self._began = False
        self._closed = False
        self._agreeing: dict[Replica, PeerLink] = {}
        self._on_message: Callable[[Replica, Message[Decision]], object] = lambda _peer, _message: None
        for member, address in self._addresses.items():
            self._peers[member] = _Peer(address, expected={*self._copies_from(member), *self._peerings(member, own)})
        for copy in sorted(copy for member in self._peers for copy in self._copies_to(member)):
            self._connect(copy)
        for member in self._peers:
            for peering in self._peerings(own, member):
                self._connect(peering)
        loop.call_soon(self._begin_if_all_are_there)

    def _copies_to(self, member: Member) -> list[Copy]:
        channels = [channel for channel in self._begin if channel.receiver == member.partition != channel.sender]
        return [copy for channel in channels for copy in self._copies(channel, (member,))]

    def _copies_from(self, member: Member) -> list[Copy]:
        channels = [channel for channel in self._end if channel.sender == member.partition != channel.receiver]
        return [copy for channel in channels for copy in self._copies(channel, (member,))]

    def _copies(self, channel: ChannelId, members: Collection[Member]) -> Sequence[Copy]:
        return copies(channel, members, self._own)

    def _peerings(self, made_by: Member, taken_by: Member) -> list[Peering]:
        """Return the connection that one member of this partition makes to another one, if it does."""
        partition = self._own.partition
        if self._deploy.view is None or not made_by.partition == taken_by.partition == partition:
            return []
        younger = made_by.replica > taken_by.replica
        return [Peering(partition, made_by.replica, taken_by.replica)] if younger else []

    # --- members come and go --------------------------------------------------------------------------------------

    def expect(self, member: Member, address: Address) -> None:
        """Connect a member that comes later, and whose number no other had.

        `Joined` or `NotConnected` follows, or `Ready` if that was not said yet. A member of the same partition makes
        the connection on which the two agree.
        """
        self._addresses[member] = address
        expected: set[Way] = {*self._copies_from(member), *self._peerings(member, self._own)}
        self._peers[member] = _Peer(address, expected=expected)
        for copy in sorted(self._copies_to(member)):
            self._connect(copy)
        self._loop.call_soon(lambda: self._stands(member))

    def drop(self, member: Member) -> None:
        """Close all connections with a member that is gone, whether they stand already or not."""
        peer = self._peers.pop(member, None)
        if peer is not None:
            peer.close()
        self._addresses.pop(member, None)
        if not self._began:
            self._loop.call_soon(self._begin_if_all_are_there)
        for copy in [copy for copy in self._sending if copy.receiver == member]:
            self._sending.pop(copy).close()
        for copy in [copy for copy in self._receiving if copy.sender == member]:
            self._receiving.pop(copy).close()
        if member.partition == self._own.partition and member.replica in self._agreeing:
            self._agreeing.pop(member.replica).close()

    def has_another(self, member: Member, but: Collection[Member] = ()) -> bool:
        """True if another process with the role of this member's partition has not been dropped, `but` for these."""
        return any(
            other != member and other.partition == member.partition and other not in self._peers and other not in but
            for other in self._addresses
        )

    def expects(self, way: Way) -> bool:
        """True if this connection ends here and does not stand yet."""
        peer = self._peers.get(way.sender)
        return peer is not None and way in peer.expected and way not in peer.incoming

    def accept(self, way: Way, proved: Proved) -> None:
        """Take a connection that ends here and that another process has made."""
        if not self.expects(way):
            proved.sock.close()
            return
        self._peers[way.sender].incoming[way] = proved
        self._stands(way.sender)

    def close(self) -> None:
        """Close all connections, and those that are on their way."""
        self._closed = True
        for peer in self._peers.values():
            peer.close()
        self._peers.clear()
        for end in (*self._sending.values(), *self._receiving.values(), *self._agreeing.values()):
            end.close()
        self._agreeing.clear()
        self._sending.clear()
        self._receiving.clear()

    def _connect(self, way: Way) -> None:
        deploy, peer = self._deploy, self._peers[way.receiver]
        incarnation = deploy.incarnation
        peer.connecting[way] = Connector(
            self._loop,
            peer.address,
            self._secret,
            ChannelOf(way, incarnation) if isinstance(way, Copy) else PeerOf(way, incarnation),
            partial(self._connected, way),
            partial(self._not_connected, way.receiver),
            seconds=deploy.options.connect_timeout / 1000,
            tls=self._tls,
        )

    def _connected(self, way: Way, proved: Proved) -> None:
        self._peers[way.receiver].outgoing[way] = proved
        self._stands(way.receiver)

    def _not_connected(self, member: Member, reason: str) -> None:
        if self._closed or member not in self._peers:
            return
        if self._began:
            self.drop(member)
        else:
            self.close()
        self._tell(NotConnected(member, reason))

    def _stands(self, member: Member) -> None:
        if self._began:
            self._join_if_complete(member)
        else:
            self._begin_if_all_are_there()

    def _begin_if_all_are_there(self) -> None:
        if not self._closed and not self._began and all(peer.complete for peer in self._peers.values()):
            self._began = True
            reached(fail_points.JOINED)
            self._tell(Ready())

    def _join_if_complete(self, member: Member) -> None:
        peer = self._peers.get(member)
        if peer is not None and peer.complete and not self._closed:
            self._agree_with(member, peer)
            sending = {copy.channel: self._sender(copy) for copy in self._copies_to(member)}
            receiving = {copy: self._receiver(copy) for copy in self._copies_from(member)}
            del self._peers[member]
            self._tell(Joined(member, sending, receiving))

    # --- the ends of channels -------------------------------------------------------------------------------------

    def begin_sending(self) -> Mapping[ChannelId, Sequence[Sending]]:
        """Return the sending ends of every channel that begins here, one to each member with its receiver's role."""
        members = self._addresses.keys()
        return {channel: [self._sender(copy) for copy in self._copies(channel, members)] for channel in self._begin}

    def begin_agreeing(self, on_message: Callable[[Replica, Message[Decision]], object]) -> None:
        """Take messages of the other members of the partition from now on, also of those that come later."""
        self._on_message = on_message
        for member, peer in self._peers.items():
            self._agree_with(member, peer)

    def tell_peer(self, to: Replica, message: Message[Decision]) -> None:
        """Send a message to another member of the partition; nothing happens if it is not connected any more."""
        link = self._agreeing.get(to)
        if link is not None:
            link.send(message)

    def _agree_with(self, member: Member, peer: _Peer) -> None:
        for way, proved in (*peer.outgoing.items(), *peer.incoming.items()):
            if isinstance(way, Peering):
                break_if_silent(proved.sock, self._deploy.options.channel_timeout)
                hear, broken = partial(self._on_message, member.replica), partial(self._peer_broken, member)
                self._agreeing[member.replica] = ControlConnection(self._loop, proved, hear, broken)

    def _peer_broken(self, member: Member, reason: str) -> None:
        if self._agreeing.pop(member.replica, None) is not None:
            self._tell(PeerBroken(member, reason))

    def begin_receiving(self) -> Mapping[Copy, Receiving]:
        """Return the receiving ends of every channel that ends here; frames arrive from now on."""
        members = self._addresses.keys()
        ends = {copy: self._receiver(copy) for channel in self._end for copy in self._copies(channel, members)}
        self._peers.clear()
        return ends

    @property
    def lines(self) -> Iterator[Line]:
        """Yield the connections that stand, for faults that a person asks for."""
        for copy, end in (*self._sending.items(), *self._receiving.items()):
            other = copy.receiver if copy.sender == self._own else copy.sender
            if other != self._own and not isinstance(end, LocalChannel):
                yield Line(self._addresses[other], end)
        for replica, link in self._agreeing.items():
            yield Line(self._addresses[Member(self._own.partition, replica)], link)

    def address_of(self, member: Member) -> Address | None:
        """Return where a member listens; None if it is not known, or gone."""
        return self._addresses.get(member)

    def _sender(self, copy: Copy) -> Sending:
        deploy, ordered = self._deploy, self._begin[copy.channel]
        if copy.receiver == self._own:
            end: Sending = LocalChannel(
                self._loop, copy, self._on_frame, self._on_drained, ordered=ordered, options=deploy.options
            )
        else:
            end = SendingChannel(
                self._loop,
                self._peers[copy.receiver].outgoing.pop(copy),
                copy,
                deploy.incarnation,
                self._on_drained,
                partial(self._broken, copy),
                ordered=ordered,
                options=deploy.options,
            )
        self._sending[copy] = end
        return end

    def _receiver(self, copy: Copy) -> Receiving:
        local = self._sending.get(copy)
        if isinstance(local, LocalChannel):
            return local
        end = ReceivingChannel(
            self._loop,
            self._peers[copy.sender].incoming.pop(copy),
            copy,
            self._deploy.incarnation,
            self._on_frame,
            partial(self._broken, copy),
            options=self._deploy.options,
        )
        self._receiving[copy] = end
        return end

    def _broken(self, copy: Copy, reason: str) -> None:
        ends = (self._sending.get(copy), self._receiving.get(copy))
        self._tell(Broken(copy, reason, forged=any(end is not None and end.was_forged for end in ends)))


def copies(channel: ChannelId, members: Collection[Member], own: Member) -> Sequence[Copy]:
    """Return the ways of a channel that begin or end in a member: to itself alone, or else from or to all others."""
    sender, receiver = channel.sender, channel.receiver
    if sender == receiver:
        return (Copy(channel, own.replica, own.replica),)
    if sender == own.partition:
        return tuple(Copy(channel, own.replica, member.replica) for member in members if member.partition == receiver)
    return tuple(Copy(channel, member.replica, own.replica) for member in members if member.partition == sender)
