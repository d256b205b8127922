"""A partition's part in an epoch: acknowledged once, when every subtask has cut and all that it owes is durable."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from snapshot.cut.participant import (
    Acknowledge,
    Decline,
    EpochGivenUp,
    Part,
    PartDurable,
    PartFailed,
    Participant,
    ParticipantEvent,
    SubtaskContent,
    SubtaskCut,
)
from statebackend.ids import Epoch, Generation, Uid

SOURCE, COUNT, SINK = Uid("source"), Uid("count"), Uid("sink")
FILES, TRANSACTIONS, CHANNELS = Part.FILES, Part.TRANSACTIONS, Part.CHANNELS


def epoch(number: int) -> Epoch:
    return Epoch(Generation(1), number)


def cut(number: int, uid: Uid, *owes: Part) -> SubtaskCut[str]:
    return SubtaskCut(epoch(number), uid, f"{uid} at {number}", frozenset(owes))


def durable(number: int, uid: Uid, part: Part) -> PartDurable[str]:
    return PartDurable(epoch(number), uid, part, f"{part.name} of {uid} at {number}")


def content(number: int, uid: Uid, *parts: Part) -> SubtaskContent[str]:
    return SubtaskContent(f"{uid} at {number}", {part: f"{part.name} of {uid} at {number}" for part in parts})


def two(restored: int = 0) -> Participant[str]:
    return Participant([SOURCE, COUNT], epoch(restored))


def test_an_epoch_is_acknowledged_when_all_have_cut_if_nobody_owes_anything() -> None:
    participant = two()
    assert participant.handle(cut(1, COUNT)) == []
    assert list(participant.in_flight) == [epoch(1)]
    assert participant.handle(cut(1, SOURCE)) == [
        Acknowledge(epoch(1), {COUNT: content(1, COUNT), SOURCE: content(1, SOURCE)})
    ]
    assert not participant.in_flight


def test_an_epoch_is_not_acknowledged_before_all_that_is_owed_is_durable() -> None:
    participant = two()
    participant.handle(cut(1, COUNT, FILES, TRANSACTIONS, CHANNELS))
    assert participant.handle(durable(1, COUNT, CHANNELS)) == []
    assert participant.handle(durable(1, COUNT, FILES)) == []
    assert participant.handle(cut(1, SOURCE)) == []
    assert participant.handle(durable(1, COUNT, TRANSACTIONS)) == [
        Acknowledge(epoch(1), {SOURCE: content(1, SOURCE), COUNT: content(1, COUNT, FILES, TRANSACTIONS, CHANNELS)})
    ]


def test_what_is_owed_by_one_is_not_paid_by_another() -> None:
    participant = two()
    participant.handle(cut(1, SOURCE, FILES))
    participant.handle(cut(1, COUNT, FILES))
    assert participant.handle(durable(1, COUNT, FILES)) == []
    assert len(participant.handle(durable(1, SOURCE, FILES))) == 1


def test_a_later_epoch_may_be_acknowledged_first() -> None:
    participant: Participant[str] = Participant([COUNT])
    participant.handle(cut(1, COUNT, FILES))
    participant.handle(cut(2, COUNT, FILES))
    assert participant.handle(durable(2, COUNT, FILES)) == [Acknowledge(epoch(2), {COUNT: content(2, COUNT, FILES)})]
    assert participant.handle(durable(1, COUNT, FILES)) == [Acknowledge(epoch(1), {COUNT: content(1, COUNT, FILES)})]


def test_an_epoch_that_one_subtask_cannot_contribute_to_is_declined_once() -> None:
    participant = two()
    participant.handle(cut(1, COUNT, FILES))
    assert participant.handle(PartFailed(epoch(1), COUNT, "disk full")) == [Decline(epoch(1), COUNT, "disk full")]
    assert not participant.in_flight
    late: list[ParticipantEvent[str]] = [
        PartFailed(epoch(1), SOURCE, "too"),
        durable(1, COUNT, FILES),
        cut(1, SOURCE),
        EpochGivenUp(epoch(1)),
    ]
    assert [participant.handle(event) for event in late] == [[], [], [], []]
    assert not participant.in_flight


def test_an_epoch_may_be_declined_before_anybody_has_cut_it() -> None:
    participant = two()
    assert participant.handle(PartFailed(epoch(1), COUNT, "skipped")) == [Decline(epoch(1), COUNT, "skipped")]
    assert participant.handle(cut(1, SOURCE)) + participant.handle(cut(1, COUNT)) == []


def test_an_epoch_that_was_given_up_is_neither_acknowledged_nor_declined() -> None:
    participant = two()
    participant.handle(cut(1, SOURCE))
    assert participant.handle(EpochGivenUp(epoch(1))) == []
    assert not participant.in_flight
    assert participant.handle(PartFailed(epoch(1), COUNT, "late")) == []
    assert participant.handle(EpochGivenUp(epoch(2))) == []
    assert participant.handle(cut(2, SOURCE)) + participant.handle(cut(2, COUNT)) == []


def test_epochs_up_to_a_complete_one_are_over() -> None:
    participant = two()
    participant.handle(cut(1, SOURCE))
    participant.handle(cut(2, SOURCE))
    participant.handle(cut(2, COUNT))
    participant.handle(cut(3, SOURCE))
    participant.completed(epoch(2))
    assert list(participant.in_flight) == [epoch(3)]
    assert participant.handle(cut(1, COUNT)) == []
    assert len(participant.handle(cut(3, COUNT))) == 1
    participant.completed(epoch(2))
    assert participant.handle(PartFailed(epoch(3), COUNT, "late")) == []


def test_epochs_up_to_the_restored_one_are_over() -> None:
    participant = two(restored=3)
    assert participant.handle(PartFailed(epoch(3), COUNT, "late")) == []
    assert participant.handle(PartFailed(epoch(4), COUNT, "x")) == [Decline(epoch(4), COUNT, "x")]


@given(st.permutations([(uid, part) for uid in (SOURCE, COUNT, SINK) for part in (None, FILES, CHANNELS)]))
def test_in_any_order_the_acknowledgement_comes_with_the_last_that_was_owed(
    order: list[tuple[Uid, Part | None]],
) -> None:
    """A part that comes before its subtask's cut is left for after it, as the caller owes."""
    participant: Participant[str] = Participant([SOURCE, COUNT, SINK])
    has_cut: set[Uid] = set()
    events: list[ParticipantEvent[str]] = []
    for uid, part in order:
        if uid not in has_cut:
            has_cut.add(uid)
            events.append(cut(1, uid, FILES, CHANNELS))
        if part is not None:
            events.append(durable(1, uid, part))
    said = [participant.handle(event) for event in events]
    assert said[:-1] == [[]] * (len(events) - 1)
    assert said[-1] == [Acknowledge(epoch(1), {uid: content(1, uid, FILES, CHANNELS) for uid in (SOURCE, COUNT, SINK)})]
