"""A member on its way into an attempt: it begins at an epoch only if all others have sent it all behind the marker."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from recovery.replication.joining import (
    Admitted,
    Begin,
    Connected,
    Deploy,
    Done,
    Enter,
    Event,
    Expects,
    GiveUp,
    Gone,
    Hindered,
    Instruction,
    InSync,
    Joining,
    Mark,
    Over,
    Restored,
    Stands,
    Step,
    Triggered,
)
from snapshot.ids import Member, Replica
from statebackend.ids import Epoch, Generation, Partition

OTHERS = [Member(Partition(0), Replica(1)), Member(Partition(1), Replica(0))]
NEW = Member(Partition(0), Replica(2))
FIRST, SECOND, THIRD = (Epoch(Generation(1), number) for number in (1, 2, 3))


def joining() -> Joining:
    return Joining(NEW, OTHERS)


def told(machine: Joining, *events: Event) -> list[Instruction]:
    return [said for event in events for said in machine.handle(event)]


def connected() -> Joining:
    machine = joining()
    assert told(machine, *map(Expects, OTHERS)) == [Deploy()]
    assert told(machine, *map(Connected, [NEW, *OTHERS])) == [Enter()]
    return machine


def test_a_member_is_connected_with_all_then_let_in_behind_a_marker_and_begins_when_the_epoch_is_complete() -> None:
    machine = connected()
    assert told(machine, Triggered(SECOND)) == [Mark()]
    assert told(machine, Triggered(THIRD)) == []
    assert told(machine, Stands(SECOND, ending=False), Over(THIRD, complete=False)) == []
    assert told(machine, Over(SECOND, complete=True)) == [Begin(SECOND, (THIRD,))]
    assert machine.restoring == SECOND
    assert told(machine, InSync(), *map(Admitted, OTHERS)) == []
    assert told(machine, Restored()) == [Done()]
    assert machine.restoring is None


def test_no_epoch_admits_a_member_that_is_not_connected_with_all() -> None:
    machine = joining()
    told(machine, *map(Expects, OTHERS), *map(Connected, OTHERS))
    assert told(machine, Triggered(FIRST)) == []
    assert told(machine, Connected(NEW)) == [Enter()]
    assert told(machine, Over(FIRST, complete=True)) == []
    assert machine.step is Step.WAITING


def test_an_epoch_that_is_given_up_or_of_which_the_primary_says_nothing_ends_the_join() -> None:
    for last in (Over(FIRST, complete=False), Over(FIRST, complete=True), Stands(FIRST, ending=True)):
        machine = connected()
        (mark, given_up) = told(machine, Triggered(FIRST), last)
        assert mark == Mark()
        assert isinstance(given_up, GiveUp)
        assert told(machine, Over(FIRST, complete=True), Triggered(SECOND)) == []


def test_a_member_that_has_begun_is_hindered_by_no_loss_of_another_one() -> None:
    machine = connected()
    told(machine, Triggered(FIRST), Stands(FIRST, ending=False), Over(FIRST, complete=True))
    assert told(machine, Hindered("another one is gone")) == []
    assert told(machine, Restored(), InSync(), *map(Admitted, OTHERS)) == [Done()]


def test_a_member_is_one_like_the_others_when_all_that_are_there_have_come_to_the_marker() -> None:
    machine = connected()
    first, second = OTHERS
    told(machine, Triggered(FIRST), Stands(FIRST, ending=False), Admitted(first), Over(FIRST, complete=True))
    assert told(machine, Restored(), InSync()) == [], "the second one would still miss its lost peer"
    assert told(machine, Gone(second, "its process is lost")) == [Done()]


def test_the_loss_of_another_member_before_it_has_begun_ends_the_join() -> None:
    machine = connected()
    assert told(machine, Triggered(FIRST), Gone(OTHERS[0], "its process is lost"))[1:] == [
        GiveUp(f"member {OTHERS[0]} is gone: its process is lost")
    ]


epochs = st.sampled_from((FIRST, SECOND, THIRD))
members = st.sampled_from([NEW, *OTHERS])
events = st.one_of(
    st.builds(Expects, st.sampled_from(OTHERS)),
    st.builds(Connected, members),
    st.builds(Triggered, epochs),
    st.builds(Stands, epochs, st.booleans()),
    st.builds(Over, epochs, st.booleans()),
    st.builds(Restored),
    st.builds(InSync),
    st.builds(Admitted, st.sampled_from(OTHERS)),
    st.builds(Gone, st.sampled_from(OTHERS), st.just("its process is lost")),
    st.builds(Hindered, st.just("someone is gone")),
)


@given(st.lists(events, max_size=40))
def test_whatever_happens_it_begins_at_most_once_and_only_behind_a_marker_that_came_after_all_connections(
    history: list[Event],
) -> None:
    machine, said, connections = joining(), list[Instruction](), set[Member]()
    deployed, missing = False, set(OTHERS)
    for event in history:
        answers = machine.handle(event)
        if deployed and isinstance(event, Connected):
            connections.add(event.by)
        deployed = deployed or Deploy() in answers
        if isinstance(event, Admitted | Gone):
            missing.discard(event.by if isinstance(event, Admitted) else event.member)
        for answer in answers:
            if isinstance(answer, Mark):
                assert connections == {NEW, *OTHERS}
            if isinstance(answer, Begin):
                assert event == Over(answer.epoch, complete=True)
                assert said == [Deploy(), Enter(), Mark()]
            if isinstance(answer, Done):
                assert not missing
            said.append(answer)
    kinds = [type(answer) for answer in said]
    assert len(kinds) == len(set(kinds)), "each step is gone once"
    assert not (Begin in kinds and GiveUp in kinds), "what has begun is not given up, and the other way round"
