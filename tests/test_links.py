"""The links of processes with each other: all stand before anything begins, and members come and go later."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from secrets import token_bytes

import pyarrow as pa
import pytest

from snapshot.cut.frames import Data, Frame, Watermark
from snapshot.host.links import (
    Broken,
    Joined,
    LinkNews,
    Links,
    NotConnected,
    PeerBroken,
    Ready,
    Receiving,
    Sending,
    Way,
)
from snapshot.host.net.connection_kinds import ChannelOf, ConnectionKind, PeerOf
from snapshot.host.net.event_loop import EventLoop
from snapshot.host.net.handshake_io import Proved
from snapshot.host.net.listener import Listener
from snapshot.host.protocol.messages import Address, Deploy
from snapshot.host.protocol.options import HostOptions
from snapshot.host.protocol.wiring import ByArrival
from snapshot.ids import ChannelId, Copy, JobId, Member, Replica
from snapshot.program.plan import Edge, Exchange, Plan, Stage, ToEdge
from snapshot.replication.agreement import Commit, View
from statebackend.ids import Attempt, Generation, Incarnation, Partition, Uid

LIMIT = 20.0
JOB = JobId("job")
SECRET = token_bytes(32)
INCARNATION = Incarnation(Generation(1), Attempt(1))
SCHEMA = pa.schema([("n", pa.int64())])
EDGE = Edge(Uid("a"), Uid("b"), 0, 0, Exchange.KEYED, SCHEMA, False, ("n",))
PLAN = Plan((Stage(Uid("a"), (), {None: (ToEdge(EDGE),)}), Stage(Uid("b"), (EDGE,), {})), 128)
FIRST, SECOND = Member(Partition(0)), Member(Partition(1))
LATER = Member(Partition(1), Replica(1))
OPTIONS = HostOptions(connect_timeout=300)


def channel(sender: Member, receiver: Member) -> ChannelId:
    return EDGE.channel(sender.partition, receiver.partition)


def way(kind: ConnectionKind) -> Way:
    assert isinstance(kind, ChannelOf | PeerOf)
    return kind.copy if isinstance(kind, ChannelOf) else kind.peering


class Process:
    """One process: its port, and its links once it is deployed; frames that came, and what it was told."""

    def __init__(self, loop: EventLoop, member: Member, folder: Path) -> None:
        self.member = member
        self.told: list[LinkNews] = []
        self.came: list[tuple[Copy, Frame]] = []
        self.sending: dict[Copy, Sending] = {}
        self.receiving: dict[Copy, Receiving] = {}
        self.links: Links | None = None
        self.heard: list[tuple[Replica, object]] = []
        self._early: list[tuple[Way, Proved]] = []
        self._loop = loop
        self._folder = folder
        self._listener = Listener(
            loop,
            "127.0.0.1",
            SECRET,
            judge=self._judge,
            on_connection=self._connected,
            on_refused=lambda _peer, _reason: None,
        )
        self.address = self._listener.address

    def _judge(self, kind: ConnectionKind) -> str:
        return "" if self.links is None or self.links.expects(way(kind)) else "it is not expected"

    def _connected(self, proved: Proved, kind: ConnectionKind, _peer: str) -> None:
        if self.links is None:
            self._early.append((way(kind), proved))
        else:
            self.links.accept(way(kind), proved)

    def deploy(self, peers: dict[Member, Address], view: View | None) -> None:
        deploy = Deploy(
            INCARNATION,
            0,
            JobId("job"),
            None,
            self.member,
            2,
            peers,
            b"",
            {},
            ByArrival(),
            OPTIONS,
            "",
            str(self._folder),
            view=view,
        )
        self.links = Links(deploy, PLAN, SECRET, self._loop, self._hear, self._arrived, lambda: None)
        for copy, proved in self._early:
            self.links.accept(copy, proved)

    def _arrived(self, copy: Copy, frame: Frame) -> None:
        self.came.append((copy, frame))

    def _hear(self, said: LinkNews) -> None:
        self.told.append(said)
        match said:
            case Ready():
                assert self.links is not None
                self.sending = {end.copy: end for ends in self.links.begin_sending().values() for end in ends}
                self.links.begin_agreeing(lambda by, message: self.heard.append((by, message)))
                self.receiving = dict(self.links.begin_receiving())
            case Joined(_, sending, receiving):
                self.sending |= {end.copy: end for end in sending.values()}
                self.receiving |= receiving
            case _:
                pass

    def send(self, to: Member, number: int) -> None:
        """Send a frame on the channel to this member."""
        self.sending[Copy(channel(self.member, to), self.member.replica, to.replica)].put(Watermark(number))

    @property
    def numbers(self) -> dict[Member, list[int]]:
        """What has come from whom."""
        found: dict[Member, list[int]] = {}
        for copy, frame in self.came:
            assert isinstance(frame, Watermark)
            found.setdefault(copy.sender, []).append(frame.timestamp)
        return found

    def close(self) -> None:
        if self.links is not None:
            self.links.close()
        self._listener.close()


class Group:
    """Processes on one loop."""

    def __init__(self, folder: Path) -> None:
        self.loop = EventLoop()
        self.folder = folder
        self.processes: dict[Member, Process] = {}

    def start(self, *members: Member, view: View | None = None) -> list[Process]:
        """Add processes, and deploy each with all that are there."""
        added = [Process(self.loop, member, self.folder) for member in members]
        self.processes |= {process.member: process for process in added}
        peers = {process.member: process.address for process in self.processes.values()}
        for process in added:
            process.deploy(peers, view)
        return added

    def until(self, seen: Callable[[], bool]) -> None:
        assert self.loop.run(seen, LIMIT), "what the test waits for did not happen"

    def close(self) -> None:
        for process in self.processes.values():
            process.close()
        self.loop.close()


@pytest.fixture
def group(tmp_path: Path) -> Iterator[Group]:
    group = Group(tmp_path)
    yield group
    group.close()


def stand(group: Group) -> tuple[Process, Process]:
    first, second = group.start(FIRST, SECOND)
    group.until(lambda: first.told == [Ready()] and second.told == [Ready()])
    return first, second


def test_all_members_are_connected_with_each_other_and_with_themselves(group: Group) -> None:
    first, second = stand(group)
    for process in (first, second):
        for to in (FIRST, SECOND):
            process.send(to, process.member.partition * 10 + to.partition)
    wanted = {FIRST: {FIRST: [0], SECOND: [10]}, SECOND: {FIRST: [1], SECOND: [11]}}
    group.until(lambda: {process.member: process.numbers for process in (first, second)} == wanted)


def test_a_member_that_comes_later_gets_what_is_sent_from_then_on_and_the_others_go_on(group: Group) -> None:
    first, second = stand(group)
    first.send(SECOND, 1)
    (later,) = group.start(LATER)
    assert first.links is not None
    first.links.expect(LATER, later.address)
    group.until(lambda: later.told == [Ready()] and len(first.told) == 2)
    joined = first.told[-1]
    assert isinstance(joined, Joined)
    assert joined.member == LATER
    first.send(SECOND, 2)
    first.send(LATER, 2)
    later.send(FIRST, 3)
    second.send(FIRST, 4)
    group.until(lambda: len(second.came) == 2 and len(later.came) == 1 and len(first.came) == 2)
    assert second.numbers == {FIRST: [1, 2]}
    assert later.numbers == {FIRST: [2]}
    assert first.numbers == {LATER: [3], SECOND: [4]}
    assert second.told == [Ready()], "members of one partition have nothing to do with each other"


def test_a_member_that_is_dropped_is_heard_no_more_and_its_end_is_no_failure(group: Group) -> None:
    first, second = stand(group)
    (later,) = group.start(LATER)
    assert first.links is not None
    first.links.expect(LATER, later.address)
    group.until(lambda: later.told == [Ready()] and len(first.told) == 2)
    later.send(FIRST, 1)
    first.links.drop(LATER)
    group.until(lambda: any(isinstance(said, Broken) for said in later.told))
    second.send(FIRST, 2)
    group.until(lambda: bool(first.came))
    assert first.numbers == {SECOND: [2]}
    assert [type(said) for said in first.told] == [Ready, Joined]
    assert not first.links.expects(Copy(channel(LATER, FIRST), LATER.replica, FIRST.replica))


def test_a_member_that_cannot_be_reached_later_changes_nothing_for_the_others(group: Group) -> None:
    first, second = stand(group)
    gone = Process(group.loop, LATER, group.folder)
    gone.close()
    assert first.links is not None
    first.links.expect(LATER, gone.address)
    group.until(lambda: len(first.told) == 2)
    assert isinstance(first.told[-1], NotConnected)
    assert first.told[-1].member == LATER
    first.send(SECOND, 1)
    group.until(lambda: second.numbers == {FIRST: [1]})


def test_nothing_stands_when_a_member_of_the_deployment_cannot_be_reached(group: Group) -> None:
    gone = Process(group.loop, SECOND, group.folder)
    gone.close()
    group.processes[SECOND] = gone
    (first,) = group.start(FIRST)
    group.until(lambda: bool(first.told))
    assert [type(said) for said in first.told] == [NotConnected]
    assert first.links is not None
    assert not first.links.expects(Copy(channel(SECOND, FIRST)))


def test_the_end_of_a_process_breaks_all_connections_with_it(group: Group) -> None:
    first, second = stand(group)
    assert second.links is not None
    second.links.close()
    group.until(lambda: sum(isinstance(said, Broken) for said in first.told) == 2)
    assert {said.copy for said in first.told if isinstance(said, Broken)} == {
        Copy(channel(FIRST, SECOND)),
        Copy(channel(SECOND, FIRST)),
    }
    assert second.told == [Ready()], "nothing comes after it was closed"
    assert all(not isinstance(frame, Data) for _, frame in first.came)


def in_view(group: Group) -> tuple[Process, Process]:
    """Return two members of one partition that are peers."""
    view = View(1, frozenset((Replica(0), Replica(1))), frozenset((Replica(0), Replica(1))), Replica(0))
    first, second = group.start(SECOND, LATER, view=view)
    group.until(lambda: first.told == [Ready()] and second.told == [Ready()])
    return first, second


def test_members_of_one_partition_are_peers_if_there_is_a_view_of_them(group: Group) -> None:
    first, second = in_view(group)
    assert first.links is not None
    assert second.links is not None
    first.links.tell_peer(LATER.replica, Commit(1, 7))
    second.links.tell_peer(SECOND.replica, Commit(1, 8))
    group.until(lambda: bool(first.heard and second.heard))
    assert second.heard == [(SECOND.replica, Commit(1, 7))]
    assert first.heard == [(LATER.replica, Commit(1, 8))]
    assert not first.sending or all(copy.receiver == SECOND for copy in first.sending), "there is no channel"


def test_a_peer_that_is_gone_is_named(group: Group) -> None:
    first, second = in_view(group)
    assert second.links is not None
    second.links.close()
    group.until(lambda: any(isinstance(said, PeerBroken) for said in first.told))
    assert [said.member for said in first.told if isinstance(said, PeerBroken)] == [LATER]


def test_a_peer_that_is_dropped_is_not_told_of_again(group: Group) -> None:
    first, second = in_view(group)
    assert first.links is not None
    first.links.drop(LATER)
    group.until(lambda: any(isinstance(said, PeerBroken) for said in second.told))
    assert first.told == [Ready()]
