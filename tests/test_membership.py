"""The membership of partitions: views follow one another, the primary has everything, and no member comes back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recovery.replication.membership import (
    CaughtUp,
    Collapse,
    Drop,
    Entered,
    Event,
    Lost,
    Membership,
    NewView,
    Suspected,
)
from snapshot.ids import Member, Replica
from snapshot.replication.agreement import View
from statebackend.ids import Partition

sizes = st.tuples(st.integers(1, 3), st.integers(1, 3))


def member(partition: int, replica: int) -> Member:
    return Member(Partition(partition), Replica(replica))


def replicas(*numbers: int) -> frozenset[Replica]:
    return frozenset(map(Replica, numbers))


def test_first_primaries_are_spread() -> None:
    membership = Membership(3, 2)
    assert [membership.view(Partition(index)).primary for index in range(3)] == [0, 1, 0]
    assert membership.stands_for(member(1, 1))
    assert not membership.stands_for(member(1, 0))


def test_the_loss_of_a_shadow_leaves_the_primary() -> None:
    made = View(2, replicas(0, 2), replicas(0, 2), Replica(0))
    assert Membership(1, 3).handle(Lost(member(0, 1))) == [NewView(Partition(0), made)]


def test_the_loss_of_the_primary_gives_its_role_to_the_first_in_sync() -> None:
    made = View(2, replicas(1, 2), replicas(1, 2), Replica(1))
    assert Membership(1, 3).handle(Lost(member(0, 0))) == [NewView(Partition(0), made)]


def test_the_loss_of_all_is_the_end() -> None:
    membership = Membership(2, 2)
    membership.handle(Lost(member(1, 0)))
    assert membership.redundancy == 1
    assert membership.handle(Lost(member(1, 1))) == [Collapse(Partition(1))]


def test_a_member_that_has_entered_counts_when_it_is_in_sync() -> None:
    membership = Membership(1, 2)
    membership.handle(Lost(member(0, 1)))
    membership.handle(Entered(joins := membership.next_of(Partition(0))))
    assert membership.redundancy == 1, "the loss of the other one would be the end"
    membership.handle(CaughtUp(joins, membership.view(Partition(0)).number))
    assert membership.redundancy == 2


def test_the_first_of_two_that_suspect_each_other_stays() -> None:
    membership = Membership(1, 2)
    first, second = member(0, 0), member(0, 1)
    made = View(2, replicas(1), replicas(1), Replica(1))
    assert membership.handle(Suspected(second, first, 1)) == [Drop(first), NewView(Partition(0), made)]
    assert membership.handle(Suspected(first, second, 1)) == []
    assert membership.stands_for(second)


@pytest.mark.parametrize("by", [member(0, 0), member(1, 1), member(0, 1)])
def test_a_suspicion_of_oneself_or_by_a_stranger_or_of_an_older_view_is_nothing(by: Member) -> None:
    membership = Membership(2, 3)
    membership.handle(Lost(member(0, 2)))
    assert membership.handle(Suspected(by, member(0, 0), 1)) == []
    assert membership.view(Partition(0)).members == replicas(0, 1)
    if by != member(0, 1):
        assert membership.handle(Suspected(by, member(0, 0), 2)) == []


def came_or_caught_up(membership: Membership, partition: Partition, what: str) -> Event:
    """Return the event that a new member is there, or that the newest one has caught up."""
    view = membership.view(partition)
    if what == "enter":
        return Entered(membership.next_of(partition))
    return CaughtUp(Member(partition, max(view.members)), view.number)


def test_a_member_that_comes_is_in_sync_when_the_primary_says_so_in_the_present_view() -> None:
    membership = Membership(1, 2)
    membership.handle(Lost(member(0, 1)))
    new = membership.next_of(Partition(0))
    assert new == member(0, 2), "no number is used twice"
    there = View(3, replicas(0, 2), replicas(0), Replica(0))
    assert membership.handle(Entered(new)) == [NewView(Partition(0), there)]
    assert membership.handle(CaughtUp(new, 2)) == []
    in_sync = View(4, replicas(0, 2), replicas(0, 2), Replica(0))
    assert membership.handle(CaughtUp(new, 3)) == [NewView(Partition(0), in_sync)]
    assert membership.handle(Lost(member(0, 0))) == [
        NewView(Partition(0), View(5, replicas(2), replicas(2), new.replica))
    ]


def test_a_member_that_is_not_in_sync_stands_for_nothing() -> None:
    membership = Membership(1, 1)
    membership.handle(Entered(membership.next_of(Partition(0))))
    assert membership.handle(Lost(member(0, 0))) == [Collapse(Partition(0))]


@given(sizes, st.data())
def test_whatever_is_said_views_rise_and_no_member_that_has_left_comes_back(
    size: tuple[int, int], data: st.DataObject
) -> None:
    parallelism, count = size
    membership = Membership(parallelism, count)
    known = [member(partition, replica) for partition in range(parallelism) for replica in range(count)]
    one = st.sampled_from(known)
    events: st.SearchStrategy[Event] = st.builds(Lost, one) | st.builds(Suspected, one, one, st.integers(1, 4))
    gone: set[Member] = set()
    for drawn in data.draw(st.lists(events | st.sampled_from(["enter", "catch up"]), max_size=12)):
        event = came_or_caught_up(membership, known[0].partition, drawn) if isinstance(drawn, str) else drawn
        before = {Partition(index): membership.view(Partition(index)) for index in range(parallelism)}
        said = membership.handle(event)
        for instruction in said:
            match instruction:
                case NewView(partition, view):
                    old = before[partition]
                    assert view.number == old.number + 1
                    assert view.primary in view.in_sync <= view.members
                    if isinstance(event, Entered):
                        assert view.members - old.members == {event.member.replica}
                        assert view.in_sync == old.in_sync, "it has not what was decided before"
                    elif isinstance(event, CaughtUp):
                        assert view.members == old.members
                        assert view.in_sync - old.in_sync == {event.member.replica}
                    else:
                        assert view.members < old.members
                        assert len(view.members) == len(old.members) - 1
                        assert view.in_sync <= old.in_sync, "no member is in sync that was not"
                    assert view.primary == old.primary or old.primary not in view.members
                    gone |= {Member(partition, replica) for replica in old.members - view.members}
                case Collapse(partition):
                    assert len(before[partition].in_sync) == 1
                    return
                case Drop(dropped):
                    assert isinstance(event, Suspected)
                    assert dropped == event.of
        if isinstance(event, Lost):
            assert bool(said) == (event.member.replica in before[event.member.partition].members)
        for left in gone:
            assert left.replica not in membership.view(left.partition).members
            assert not membership.stands_for(left)
        assert membership.redundancy >= 1
