"""Rounds: the order in which a stage takes its input is a function of what its channels contain."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from snapshot.cut.frames import Boundary, Data, End, Frame, Marker, MarkerMode, Watermark
from snapshot.ids import ChannelId
from snapshot.replication.first_copy import FirstCopy
from snapshot.replication.positions import Position
from snapshot.replication.rounds import MarkerReached, MarkersDiffer, OutOfRound, Round, Rounds, Share
from snapshot.testing.schedule import Schedule
from snapshot.testing.search import Run, check, search
from statebackend.errors import JobError
from statebackend.ids import Epoch, Generation, Partition, Uid
from tests.rounds_world import World, check_members

A, B = (ChannelId(Uid("in"), Uid("here"), Partition(sender), Partition(0)) for sender in (0, 1))


def marker(number: int) -> Marker:
    return Marker(Epoch(Generation(1), number), MarkerMode.ALIGNED)


def rows(*names: str) -> Data:
    return Data(names, len(names), len(names))


def taken(rounds: Rounds) -> list[object]:
    """Take all that is known to come next: a round as its number with its rows, a marker as it is."""
    found: list[object] = []
    while (item := rounds.take()) is not None:
        match item:
            case Round(number, shares):
                found.append((number, *(name for share in shares for data in share.data for name in data.payload)))  # type: ignore[attr-defined]
            case MarkerReached(marker):
                found.append(marker)
    return found


def told(*frames: tuple[ChannelId, Frame], channels: Sequence[ChannelId] = (A, B)) -> Rounds:
    rounds = Rounds(channels)
    for channel, frame in frames:
        rounds.arrived(channel, frame)
    return rounds


def test_a_round_comes_when_every_channel_has_closed_one_and_in_the_order_of_channels() -> None:
    rounds = told((B, rows("b1", "b2")), (B, Boundary(7)), (A, rows("a1")))
    assert taken(rounds) == []
    assert rounds.owes(A)
    assert not rounds.owes(B)
    rounds.arrived(A, Boundary(7))
    assert taken(rounds) == [(7, "a1", "b1", "b2")]


def test_a_channel_that_leaves_numbers_out_lets_the_smaller_rounds_of_others_go_first() -> None:
    rounds = told((A, rows("a")), (A, Boundary(9)), (B, rows("b")), (B, Boundary(3)))
    assert taken(rounds) == [(3, "b")]
    rounds.arrived(B, Boundary(8))
    assert taken(rounds) == [(8,)]
    rounds.arrived(B, Boundary(9))
    assert taken(rounds) == [(9, "a")]


def test_a_marker_waits_for_the_rounds_of_others_that_stand_in_front_of_theirs() -> None:
    rounds = told((A, Boundary(1)), (A, marker(5)), (B, Boundary(1)), (B, rows("b")), (B, Boundary(2)))
    assert taken(rounds) == [(1,), (2, "b")]
    assert list(rounds.at_marker) == [A]
    rounds.arrived(B, marker(5))
    assert taken(rounds) == [marker(5)]


def test_an_ended_channel_counts_no_more_neither_for_rounds_nor_for_markers() -> None:
    rounds = told((A, rows("a")), (A, End(1)), (B, Boundary(1)), (B, marker(5)), (B, Boundary(2)), (B, End(3)))
    assert taken(rounds) == [(1, "a"), marker(5), (2,), (3,)]
    assert rounds.is_over


def test_a_share_has_the_watermarks_and_the_end_of_its_channel() -> None:
    rounds = told((A, Watermark(1)), (A, rows("a")), (A, Watermark(2)), (A, End(4)), channels=[A])
    assert rounds.take() == Round(4, (Share(A, (rows("a"),), (Watermark(1), Watermark(2)), ended=True),))


def test_bytes_count_what_has_come_and_was_not_taken() -> None:
    rounds = told((A, Data(None, 100, 1)), (A, Boundary(1)), (B, Data(None, 20, 1)))
    assert rounds.bytes == 120
    rounds.arrived(B, Boundary(2))
    rounds.take()
    assert rounds.bytes == 20


def test_a_channel_that_owes_a_round_is_read_however_much_waits() -> None:
    rounds = told((A, Data(None, 100, 1)), (A, Boundary(1)), (A, Data(None, 1000, 1)))
    assert not rounds.is_wanted(A, 1000)
    assert rounds.is_wanted(B, 1000)


def test_a_channel_of_empty_rounds_is_not_read_without_end() -> None:
    rounds = Rounds([A, B])
    number = 0
    while rounds.is_wanted(A, 1000):
        number += 1
        rounds.arrived(A, Boundary(number))
    assert number < 1000


@pytest.mark.parametrize(
    "frames", [(Boundary(2), Boundary(2)), (End(1), rows("a")), (rows("a"), marker(1)), (Watermark(1), marker(1))]
)
def test_a_sender_that_breaks_its_rounds_is_named(frames: tuple[Frame, Frame]) -> None:
    rounds = told((A, frames[0]))
    with pytest.raises(OutOfRound, match="in/0->here/0"):
        rounds.arrived(A, frames[1])


def test_markers_of_different_epochs_are_refused_with_the_channels_that_stand_at_them() -> None:
    rounds = told((A, marker(1)), (B, marker(2)))
    with pytest.raises(MarkersDiffer, match=r"in/0->here/0 at 1-1, in/1->here/0 at 2-1"):
        rounds.take()


@st.composite
def contents(draw: st.DrawFn) -> list[Frame]:
    frames: list[Frame] = []
    number = 0
    for at in range(draw(st.integers(1, 5))):
        for _ in range(draw(st.integers(0, 3))):
            frames.append(Data((at, len(frames)), 1, 1))
        number += draw(st.integers(1, 3))
        frames.append(Boundary(number))
    frames[-1] = End(number)
    return frames


@given(contents(), contents(), st.data())
def test_whatever_channel_is_heard_first_the_same_rounds_come(
    a: list[Frame], b: list[Frame], data: st.DataObject
) -> None:
    expected = told(*((A, frame) for frame in a), *((B, frame) for frame in b))
    whole = [expected.take() for _ in range(20)]
    rounds, found, rest = Rounds([A, B]), [], {A: list(a), B: list(b)}
    while any(rest.values()):
        channel = data.draw(st.sampled_from([channel for channel, frames in rest.items() if frames]))
        rounds.arrived(channel, rest[channel].pop(0))
        if data.draw(st.booleans()) and (item := rounds.take()) is not None:
            found.append(item)
    while (item := rounds.take()) is not None:
        found.append(item)
    assert found == [item for item in whole if item is not None]


# --- with replicas, kills and joiners ---------------------------------------------------------------------------------


class TakesOverlapsWhole(FirstCopy[int]):
    def take(self, copy: int, frame: Frame) -> int:
        return frame.rows if super().take(copy, frame) and isinstance(frame, Data) else int(not isinstance(frame, Data))


class TakesOlderSegments(FirstCopy[int]):
    def take(self, copy: int, frame: Frame) -> int:
        at = self._copies[copy]
        if at.segment < self._at.segment:
            self._copies[copy] = Position(self._at.segment, at.element)
        return super().take(copy, frame)


class ReadsCopiesThatAreAhead(FirstCopy[int]):
    def is_wanted(self, copy: int) -> bool:
        return True


class TakesWhatIsThere(Rounds):
    def owes(self, channel: ChannelId) -> bool:
        return self._owing.issuperset(self._live)

    def take(self) -> Round | MarkerReached | None:
        owing, live = self._owing, self._live
        self._owing, self._live = set(), {channel: None for channel in live if channel not in owing}
        found = super().take()
        self._live = {channel: None for channel in live if channel in owing or channel in self._live}
        self._owing |= owing
        return found


class HeedsNoMarker(Rounds):
    """Lets the marker of one channel pass in front of the rounds that others have left before theirs."""

    def take(self) -> Round | MarkerReached | None:
        if self._owing or not self._live:
            return None
        if any(isinstance(self._lines[channel].waiting[0], Marker) for channel in self._live):
            for channel in self._live:
                waiting = self._lines[channel].waiting
                found = next((item for item in waiting if isinstance(item, Marker)), None)
                if found is None:
                    return super().take()
                waiting.remove(found)
                waiting.appendleft(found)
        return super().take()


def histories(
    first_copy: type[FirstCopy[int]] = FirstCopy, rounds: type[Rounds] = Rounds, bugs: Collection[str] = ()
) -> Run:
    """Return one history of replicas after another, in which an error that a machine raises is a broken promise."""

    def run(schedule: Schedule) -> None:
        world = World(schedule, first_copy, rounds, bugs)
        try:
            world.run()
        except JobError as error:
            raise AssertionError(str(error)) from error
        check_members(world)

    return run


def test_replicas_and_joiners_take_the_same_whatever_fails_and_none_waits_for_ever() -> None:
    check(histories(), histories=150, size=400)


@pytest.mark.parametrize("machine", [TakesOverlapsWhole, TakesOlderSegments, ReadsCopiesThatAreAhead])
def test_a_first_copy_that_is_wrong_is_found(machine: type[FirstCopy[int]]) -> None:
    assert search(histories(first_copy=machine), histories=2000, size=400, shrink=False) is not None


@pytest.mark.parametrize("machine", [TakesWhatIsThere, HeedsNoMarker])
def test_rounds_that_are_wrong_are_found(machine: type[Rounds]) -> None:
    assert search(histories(rounds=machine), histories=2000, size=400, shrink=False) is not None


@pytest.mark.parametrize("bug", ["an owed channel is paused", "a joiner hears the marker"])
def test_a_host_that_is_wrong_is_found(bug: str) -> None:
    assert search(histories(bugs=[bug]), histories=2000, size=400, shrink=False) is not None
