"""The epochs of a partition that has another member: only its primary speaks of them."""

from __future__ import annotations

from itertools import count

import pytest

from snapshot.cut.participant import Part
from snapshot.host.partition.epoch_tracker import EpochTracker
from snapshot.host.partition.stage_news import StageCut
from snapshot.host.protocol.messages import Acknowledgement, Declining, FromWorker
from statebackend.files import FileSet
from statebackend.ids import Attempt, Epoch, Generation, Incarnation, Partition, Uid
from statebackend.keygroups import KeyGroupRange
from statebackend.snapshots.uploads import Durable

COUNT, OTHER = Uid("count"), Uid("other")
HERE = Incarnation(Generation(1), Attempt(1)), Partition(0)


class Shadow:
    """A mute tracker of two operators, of which one is keyed."""

    def __init__(self) -> None:
        self.said: list[FromWorker] = []
        numbers = count()
        self.tracker = EpochTracker(*HERE, (COUNT, OTHER), None, lambda: next(numbers), self.said.append, mute=True)

    def cut(self, number: int, *uids: Uid) -> None:
        for uid in uids or (COUNT, OTHER):
            owes = {uid: frozenset({Part.FILES} if uid == COUNT else ())}
            self.tracker.cut(uid, StageCut(epoch(number), False, (), None, None, {}, 0.0), owes)

    def durable(self, number: int) -> None:
        files = Durable(epoch(number), FileSet(KeyGroupRange.of_all(8)), epoch(number))
        self.tracker.durable(epoch(number), COUNT, Part.FILES, files)


def epoch(number: int) -> Epoch:
    return Epoch(Generation(1), number)


@pytest.fixture
def shadow() -> Shadow:
    return Shadow()


def test_a_shadow_says_nothing_of_its_epochs_and_awaits_nothing(shadow: Shadow) -> None:
    shadow.cut(1)
    shadow.durable(1)
    shadow.cut(2)
    shadow.tracker.failed(epoch(2), COUNT, "the disk is full")
    assert shadow.said == []
    assert shadow.tracker.pending(lambda uid, _: uid) == []


def test_after_it_has_taken_over_it_acknowledges_what_it_cuts(shadow: Shadow) -> None:
    shadow.cut(1)
    shadow.tracker.completed(epoch(1))
    shadow.tracker.speak()
    assert shadow.said == []
    shadow.cut(2)
    shadow.durable(2)
    (said,) = shadow.said
    assert isinstance(said, Acknowledgement)
    assert said.epoch == epoch(2)


@pytest.mark.parametrize("before", [(COUNT,), (OTHER,), (COUNT, OTHER)])
def test_an_epoch_that_it_has_cut_before_and_that_is_not_over_is_declined_once(
    shadow: Shadow, before: tuple[Uid, ...]
) -> None:
    shadow.cut(1)
    shadow.tracker.given_up(epoch(1))
    shadow.cut(2, *before)
    shadow.tracker.speak()
    for uid in {COUNT, OTHER} - set(before):
        shadow.cut(2, uid)
    shadow.durable(2)
    (said,) = shadow.said
    assert isinstance(said, Declining)
    assert said.epoch == epoch(2)
    shadow.cut(3)
    shadow.durable(3)
    assert isinstance(shadow.said[-1], Acknowledgement)


def test_an_epoch_that_begins_before_it_takes_over_and_is_cut_after_that_is_acknowledged(shadow: Shadow) -> None:
    shadow.tracker.alignment_began(COUNT, epoch(1))
    shadow.tracker.speak()
    shadow.cut(1)
    shadow.durable(1)
    (said,) = shadow.said
    assert isinstance(said, Acknowledgement)
