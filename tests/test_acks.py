"""A frame counts as acknowledged when all that followed from it is kept in a complete epoch, and never before."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from snapshot.cut.acks import (
    NO_TIME,
    Acker,
    Anchors,
    Basket,
    HeldAcks,
    Ids,
    MalformedAcks,
    Readings,
    Root,
    anchors_bytes,
    parse_anchors,
    parse_words,
    words_bytes,
)
from snapshot.cut.aligner import AllEnded, ChannelEnded, Process
from snapshot.cut.frames import Data, End
from snapshot.host.flow.inlets import Dropped, Flush
from snapshot.host.partition.ack_inlet import AckInlet
from snapshot.host.partition.acks import with_anchors
from snapshot.ids import ChannelId, Copy, Member, Replica
from statebackend.ids import Epoch, Generation, Partition, Uid

OWNER = Member(Partition(1), Replica(2))
numbers = st.integers(min_value=0, max_value=2**64 - 1)
small = st.integers(min_value=0, max_value=2**32 - 1)
roots = st.builds(Root, st.builds(Member, small.map(Partition), small.map(Replica)), numbers)


def epoch(number: int) -> Epoch:
    return Epoch(Generation(1), number)


def root(number: int) -> Root:
    return Root(OWNER, number)


# --- as it travels ---------------------------------------------------------------------------------------------------


@given(numbers, st.lists(roots, max_size=5).map(tuple), st.binary(max_size=100))
def test_a_frame_comes_out_with_its_anchors_and_rows(id: int, some: tuple[Root, ...], rows: bytes) -> None:
    head = anchors_bytes(Anchors(id, some))
    assert len(head) % 16 == 0
    anchors, rest = parse_anchors(memoryview(head + rows))
    assert (anchors, bytes(rest)) == (Anchors(id, some), rows)


@given(st.dictionaries(numbers, numbers, max_size=10))
def test_acknowledgements_come_out_as_they_went_in(words: dict[int, int]) -> None:
    assert dict(parse_words(memoryview(words_bytes(words)))) == words


@given(st.binary(max_size=40))
def test_bytes_that_are_no_anchors_are_refused_or_read_within_their_bounds(data: bytes) -> None:
    try:
        anchors, rest = parse_anchors(memoryview(data))
    except MalformedAcks:
        return
    assert len(anchors_bytes(anchors)) + len(rest) == len(data)


def test_half_an_acknowledgement_is_refused() -> None:
    with pytest.raises(MalformedAcks, match="17 bytes"):
        list(parse_words(memoryview(bytes(17))))


def test_ids_of_one_seed_differ() -> None:
    ids = Ids(7)
    assert len({ids.next() for _ in range(10_000)} - {0}) == 10_000


# --- a network of stages ---------------------------------------------------------------------------------------------


@dataclass
class Network:
    """An owner of roots, two stages that hand on and two that keep, and all that is on its way between them.

    `at_large` has, for each root, the ids of the frames of it that are not kept in a complete epoch.
    """

    acker: Acker[int] = field(default_factory=lambda: Acker(10.0))
    ids: Ids = field(default_factory=lambda: Ids(1))
    now: float = 0.0
    number: int = 0
    frames: list[tuple[Anchors, int]] = field(default_factory=list)
    words: list[dict[Root, int]] = field(default_factory=list)
    baskets: list[Basket] = field(default_factory=lambda: [Basket(), Basket()])
    taken: list[list[Anchors]] = field(default_factory=lambda: [[], []])
    held: list[HeldAcks] = field(default_factory=lambda: [HeldAcks(), HeldAcks()])
    kept: list[list[Anchors]] = field(default_factory=lambda: [[], []])
    cuts: list[dict[int, list[Anchors]]] = field(default_factory=lambda: [{}, {}])
    epoch: int = 0
    at_large: dict[Root, set[int]] = field(default_factory=dict)

    def send(self) -> None:
        """Send a root."""
        new, id = self._root(), self.ids.next()
        self.acker.sent(self.number, 1, new, id, self.now)
        self._at_large(Anchors(id, (new,)))

    def send_again(self, random: Random) -> None:
        """Send a root again; what there is of it as it was is of no use."""
        for pending in self.acker.overdue(self.now):
            new, id = self._root(), self.ids.next()
            self.acker.sent_again(pending, new, id, self.now)
            self._at_large(Anchors(id, (new,)))

    def deliver(self, random: Random, *, lose: bool) -> None:
        """Let a frame come to a stage that hands on, or to one that keeps it, or get lost."""
        if not self.frames:
            return
        anchors, hops = self.frames.pop(random.randrange(len(self.frames)))
        if lose:
            return
        stage = random.randrange(2)
        if hops and random.random() < 0.6:
            self.baskets[stage].took(anchors)
            self.taken[stage].append(anchors)
        else:
            self.held[stage].add(dict.fromkeys(anchors.roots, anchors.id))
            self.kept[stage].append(anchors)

    def hand_on(self, random: Random) -> None:
        """Let a stage that hands on send what follows, in some frames, and empty its basket."""
        stage = random.randrange(2)
        basket = self.baskets[stage]
        for _ in range(random.randrange(3) if basket else 0):
            anchors = Anchors(self.ids.next(), basket.roots)
            basket.gave(anchors.id)
            self._at_large(anchors, hops=0)
        self.words.append(dict(basket.empty()))
        for anchors in self.taken[stage]:
            self._safe(anchors)
        self.taken[stage] = []

    def take_epoch(self, random: Random, *, completes: bool) -> None:
        """Cut both stages that keep; if the epoch completes, they acknowledge."""
        self.epoch += 1
        for stage in range(2):
            self.held[stage].cut(epoch(self.epoch))
            self.cuts[stage][self.epoch] = self.kept[stage]
            self.kept[stage] = []
        if completes:
            for stage in range(2):
                for anchors in (one for some in self.cuts[stage].values() for one in some):
                    self._safe(anchors)
                self.cuts[stage] = {}
                self.words.append(dict(self.held[stage].completed(epoch(self.epoch))))

    def hear(self, random: Random) -> None:
        """Let words come to the owner."""
        if self.words:
            for one, value in self.words.pop(random.randrange(len(self.words))).items():
                if self.acker.acked(one.number, value):
                    assert not self.at_large[one], "a root is acknowledged, and not all of it is kept"

    def _root(self) -> Root:
        self.number += 1
        return root(self.number)

    def _at_large(self, anchors: Anchors, hops: int = 1) -> None:
        self.frames.append((anchors, hops))
        for one in anchors.roots:
            self.at_large.setdefault(one, set()).add(anchors.id)

    def _safe(self, anchors: Anchors) -> None:
        for one in anchors.roots:
            self.at_large[one].discard(anchors.id)


@given(st.integers(min_value=0, max_value=2**32), st.booleans())
def test_a_root_is_done_with_when_all_of_it_is_kept_and_not_before(seed: int, losses: bool) -> None:
    random, network = Random(seed), Network()
    for _ in range(random.randrange(60)):
        network.now += random.random() * 4
        match random.randrange(6):
            case 0:
                network.send()
            case 1:
                network.deliver(random, lose=losses and random.random() < 0.3)
            case 2:
                network.hand_on(random)
            case 3:
                network.take_epoch(random, completes=random.random() < 0.6)
            case 4:
                network.hear(random)
            case _:
                network.send_again(random)
    while network.acker.oldest < network.acker.next:  # nothing is lost any more
        network.now += 11
        network.send_again(random)
        while network.frames or any(network.baskets):
            network.deliver(random, lose=False)
            network.hand_on(random)
        network.take_epoch(random, completes=True)
        while network.words:
            network.hear(random)
    assert network.acker.rows == 0


# --- the owner -------------------------------------------------------------------------------------------------------


def test_a_word_about_a_root_as_it_was_before_it_was_sent_again_counts_for_nothing() -> None:
    acker: Acker[str] = Acker(1.0)
    acker.sent("rows", 3, root(1), 77, now=0.0).went_out = True
    (pending,) = acker.overdue(1.0)
    acker.sent_again(pending, root(2), 88, now=1.0)
    assert not acker.acked(1, 77)
    assert (acker.rows, acker.resent) == (3, 3)
    assert acker.acked(2, 88)
    assert (acker.rows, acker.oldest) == (0, 1)


def test_what_is_not_overdue_is_not_sent_again() -> None:
    acker: Acker[str] = Acker(1.0)
    acker.sent("first", 1, root(1), 5, now=0.0)
    acker.sent("second", 1, root(2), 6, now=0.5)
    assert [pending.content for pending in acker.overdue(1.2)] == ["first"]


def test_a_root_has_twice_the_time_each_time_that_it_was_sent_again_because_that_was_over() -> None:
    """A receiver that needs longer than the time would else never acknowledge the newest one."""
    acker: Acker[str] = Acker(1.0)
    acker.sent("rows", 1, root(1), 5, now=0.0)
    (pending,) = acker.overdue(1.0)
    pending.times += 1
    acker.sent_again(pending, root(2), 6, now=1.0)
    assert not list(acker.overdue(2.9))
    assert list(acker.overdue(3.0)) == [pending]


def test_a_root_without_a_time_is_never_sent_again_because_of_it() -> None:
    acker: Acker[str] = Acker(1.0)
    acker.sent("rows", 1, root(1), 5, now=NO_TIME)
    assert not list(acker.overdue(1e300))


def test_rows_count_as_sent_again_only_if_they_had_gone_out() -> None:
    acker: Acker[str] = Acker(1.0)
    pending = acker.sent("rows", 3, root(1), 5, now=0.0)
    acker.sent_again(pending, root(2), 6, now=1.0)
    assert acker.resent == 0
    pending.went_out = True
    acker.sent_again(pending, root(3), 7, now=2.0)
    assert acker.resent == 3


def test_the_oldest_place_is_that_of_the_first_root_that_is_not_acknowledged() -> None:
    acker: Acker[None] = Acker(1.0)
    for number in range(3):
        acker.sent(None, 1, root(number), number + 1, now=0.0)
    assert acker.acked(1, 2)
    assert acker.oldest == 0
    assert acker.acked(0, 1)
    assert acker.oldest == 2


# --- what a source has read ------------------------------------------------------------------------------------------


def test_a_split_is_read_again_from_its_first_row_that_is_not_acknowledged() -> None:
    readings: Readings[int | None] = Readings()
    readings.read("a", 0)
    readings.read("a", 4)
    readings.read("b", None)
    readings.close(2)
    readings.read("a", 8)
    assert readings.positions() == {"a": 0, "b": None}
    readings.acked(2)
    assert readings.positions() == {"a": 8}
    readings.close(2)  # nothing of it went out: a filter took it
    readings.acked(2)
    assert not readings


def test_rows_that_may_not_all_have_gone_out_are_not_forgotten() -> None:
    readings: Readings[int | None] = Readings()
    readings.read("a", 0)
    readings.acked(100)
    assert readings.positions() == {"a": 0}


# --- what a receiver owes --------------------------------------------------------------------------------------------


def test_an_epoch_that_was_given_up_acknowledges_with_the_next_one_that_is_complete() -> None:
    held = HeldAcks()
    held.add({root(1): 5})
    held.cut(epoch(1))
    held.add({root(2): 6})
    held.cut(epoch(2))
    held.add({root(3): 7})
    assert held.completed(epoch(2)) == {root(1): 5, root(2): 6}
    assert held.completed(epoch(2)) == {}
    held.cut(epoch(3))
    assert held.completed(epoch(3)) == {root(3): 7}


# --- the inputs of a stage -------------------------------------------------------------------------------------------


class Owes:
    """A stage that notes what it took, and what it acknowledged at once."""

    def __init__(self) -> None:
        self.noted: list[tuple[str, int]] = []
        self.is_at_work = False

    def took(self, anchors: Anchors) -> None:
        self.noted.append(("took", anchors.id))
        self.is_at_work = True

    def had(self, anchors: Anchors) -> None:
        self.noted.append(("had", anchors.id))

    def worked(self) -> None:
        self.noted.append(("worked", 0))
        self.is_at_work = False


FIRST, SECOND = (ChannelId(Uid("a"), Uid("b"), Partition(sender), Partition(0)) for sender in (0, 1))


def rows_of(id: int, count: int = 1) -> Data:
    return with_anchors(Data(b"rows", 4, count), Anchors(id, (root(id),)), local=False)


def test_what_follows_from_frames_goes_out_before_they_are_acknowledged() -> None:
    stage: Any = Owes()
    inlet = AckInlet([FIRST, SECOND], 1_000, lambda _: stage)
    inlet.arrived(Copy(FIRST), rows_of(1))
    inlet.arrived(Copy(SECOND), rows_of(2))
    assert [type(one) for one in (*inlet.proceed(), *inlet.proceed())] == [Process, Process]
    (flush,) = inlet.proceed()
    assert stage.noted == [("took", 1), ("took", 2)]
    assert isinstance(flush, Flush)
    flush.then()
    assert stage.noted[-1] == ("worked", 0)
    assert inlet.idle


def test_a_channel_that_is_there_only_since_too_much_is_queued_is_not_read_from_either() -> None:
    stage: Any = Owes()
    inlet = AckInlet([FIRST, SECOND], 100, lambda _: stage)
    inlet.connect([Copy(FIRST)])
    inlet.arrived(Copy(FIRST), with_anchors(Data(bytes(100), 100, 1), Anchors(1, (root(1),)), local=False))
    assert set(inlet.gating([Copy(FIRST)]).pause) == {Copy(FIRST)}
    gating = inlet.gating([Copy(FIRST), Copy(SECOND)])
    assert (set(gating.pause), set(gating.resume)) == ({Copy(SECOND)}, set())
    inlet.proceed()
    gating = inlet.gating([Copy(FIRST), Copy(SECOND)])
    assert (set(gating.pause), set(gating.resume)) == (set(), {Copy(FIRST), Copy(SECOND)})


def test_rows_that_come_after_an_end_are_acknowledged_and_make_room_for_more() -> None:
    """Another process with the sender's role sends them again; what it sent before was kept here."""
    stage: Any = Owes()
    inlet = AckInlet([FIRST, SECOND], 1_000, lambda _: stage)
    inlet.arrived(Copy(FIRST), End())
    assert list(inlet.proceed()) == [ChannelEnded(FIRST)]
    assert list(inlet.arrived(Copy(FIRST), rows_of(7, count=3))) == [Dropped(FIRST, 3)]
    assert stage.noted == [("had", 7)]
    inlet.arrived(Copy(FIRST), End())
    inlet.arrived(Copy(SECOND), End())
    assert list(inlet.proceed()) == [ChannelEnded(SECOND), AllEnded()]
