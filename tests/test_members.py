"""Members: processes with one partition have ways to the others, and names for what they write, of their own."""

from __future__ import annotations

from secrets import token_bytes, token_hex
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from snapshot.cut.frames import Boundary, Data, Frame
from snapshot.epochs.transaction_events import Begin, parse_transaction_id
from snapshot.epochs.transactions import Transactions
from snapshot.host.flow.allowances import Allowance
from snapshot.host.links import copies
from snapshot.host.net.connection_kinds import ChannelOf, kind_bytes, parse_kind
from snapshot.host.partition.router import FanOut
from snapshot.host.partition.tree_files import TreeFiles
from snapshot.host.process.worker import Worker
from snapshot.host.protocol.messages import Address, FromWorker, Suspects, ViewIs
from snapshot.ids import ChannelId, Copy, JobId, Member, Replica, numbered_from
from snapshot.replication.agreement import View
from snapshot.tree.manifest import CommitPayload
from statebackend.ids import Attempt, Generation, Incarnation, Partition, Uid
from statebackend.stores.memory_store import MemoryStore

INCARNATION = Incarnation(Generation(1), Attempt(2))
MEMBERS = [Member(Partition(partition), Replica(replica)) for partition in range(2) for replica in range(3)]
OWN = MEMBERS[1]
ALL = frozenset(member.replica for member in MEMBERS)


def channel(sender: int, receiver: int) -> ChannelId:
    return ChannelId(Uid("a"), Uid("b"), Partition(sender), Partition(receiver))


def test_a_channel_to_another_partition_goes_from_every_member_to_every_member() -> None:
    to = copies(channel(0, 1), MEMBERS, OWN)
    by = copies(channel(1, 0), MEMBERS, OWN)
    assert [(copy.sender, copy.receiver) for copy in to] == [(OWN, member) for member in MEMBERS[3:]]
    assert [(copy.sender, copy.receiver) for copy in by] == [(member, OWN) for member in MEMBERS[3:]]


def test_a_channel_within_a_partition_goes_from_a_member_to_itself_alone() -> None:
    assert copies(channel(0, 0), MEMBERS, OWN) == (Copy(channel(0, 0), OWN.replica, OWN.replica),)


def test_every_way_is_the_same_seen_from_both_of_its_ends() -> None:
    ways = {
        member: {copy for ends in ((0, 1), (1, 0)) for copy in copies(channel(*ends), MEMBERS, member)}
        for member in MEMBERS
    }
    for member, own in ways.items():
        assert own == {copy for some in ways.values() for copy in some if member in (copy.sender, copy.receiver)}


def test_a_connection_says_which_processes_it_is_between() -> None:
    kind = ChannelOf(Copy(channel(0, 1), Replica(2), Replica(7)), INCARNATION)
    assert parse_kind(kind_bytes(kind)) == kind
    assert str(kind) == f"channel a/0->b/1 from replica 2 to 7 of {INCARNATION}"


def test_with_one_process_for_each_partition_a_way_is_called_as_its_channel_is() -> None:
    assert str(Copy(channel(0, 1))) == "a/0->b/1"


@pytest.mark.parametrize("replica", [0, 1, 2])
def test_a_replica_names_files_and_transactions_by_numbers_of_its_own(replica: int) -> None:
    files = TreeFiles(MemoryStore(token_hex(8)), INCARNATION, Partition(3), Replica(replica))
    first = numbered_from(Replica(replica))
    machine: Transactions[CommitPayload] = Transactions(
        JobId("job"), Uid("out"), INCARNATION, Partition(3), first=first
    )
    opened = machine.begin()[0]
    assert isinstance(opened, Begin)
    assert parse_transaction_id(opened.transaction).n == replica * 2**32
    assert files.state_name().endswith(f"-{replica * 2**32 + 1}.sst")
    assert files.put(pa.py_buffer(b"rows")).path != files.put(pa.py_buffer(b"rows")).path


class End:
    """The sending end to one process, with bytes that it has not taken."""

    def __init__(self, replica: int) -> None:
        self.copy = Copy(channel(0, 1), heard_by=Replica(replica))
        self.id = self.copy.channel
        self.bytes = 0
        self.allowed = Allowance(10, 10)
        self.frames: list[Frame] = []

    def put(self, frame: Frame) -> tuple[Data, ...]:
        self.frames.append(frame)
        return ()


def test_all_processes_with_a_role_are_given_what_is_sent_to_it_until_they_are_gone() -> None:
    first, second = End(0), End(1)
    both = FanOut([first, second])
    both.put(Boundary(1))
    both.drop(first.copy.receiver)
    both.put(Boundary(2))
    assert (first.frames, second.frames) == ([Boundary(1)], [Boundary(1), Boundary(2)])


def test_the_quickest_process_of_a_role_says_whether_there_is_room_until_another_is_far_behind() -> None:
    first, second = End(0), End(1)
    both = FanOut([first, second], lag=100)
    first.bytes, second.bytes, second.allowed = 5, 100, Allowance(500, 100)
    assert (both.bytes, both.allowed.rows) == (5, 500)
    second.bytes = 170
    assert both.bytes == 70, "its memory is bounded"


def test_a_member_that_cannot_be_reached_is_named_again_in_each_view_that_has_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class InView:
        view = View(1, ALL, ALL, Replica(0))

        def told(self, said: ViewIs) -> None:
            self.view = said.view

        def close(self) -> None:
            pass

    worker, told = Worker(Address("127.0.0.1", 1), token_bytes(32), 0, 0), list[FromWorker]()
    monkeypatch.setattr(worker, "_tell", told.append)
    monkeypatch.setattr(worker, "_attempt", InView())
    monkeypatch.setattr(worker, "_incarnation", INCARNATION)
    deploy: Any = SimpleNamespace(incarnation=INCARNATION, member=OWN)
    worker._suspect(deploy, MEMBERS[2], "the link broke")
    for number, left in ((2, ALL - {Replica(0)}), (3, frozenset((OWN.replica,)))):
        worker._told(ViewIs(INCARNATION, View(number, left, left, OWN.replica)))
    worker._wind_up()
    partition, own, of = OWN.partition, OWN.replica, MEMBERS[2].replica
    assert told == [Suspects(INCARNATION, partition, view, own, of, "the link broke") for view in (1, 2)]
