"""The marker rule of a subtask, step by step: what it says to every event, in all modes."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from snapshot.cut.aligner import (
    Aborted,
    Aligner,
    AlignerEvent,
    AlignerInstruction,
    AlignmentBegan,
    AlignmentTimedOut,
    AllEnded,
    Arrived,
    ChannelEnded,
    Cut,
    FrameAfterEnd,
    InFlight,
    Missed,
    Proceed,
    Process,
    Triggered,
    UnexpectedBoundary,
    WhyMissed,
)
from snapshot.cut.frames import Boundary, Data, End, Frame, Marker, MarkerMode, Watermark
from snapshot.ids import ChannelId
from statebackend.ids import Epoch, Generation, Partition, Uid

ALIGNED, UNALIGNED, AT_LEAST_ONCE = MarkerMode.ALIGNED, MarkerMode.UNALIGNED, MarkerMode.AT_LEAST_ONCE
SKIPPED, SUBSUMED = WhyMissed.SKIPPED, WhyMissed.SUBSUMED


def channel(sender: int) -> ChannelId:
    return ChannelId(Uid("up"), Uid("down"), Partition(sender), Partition(0))


A, B, C = channel(0), channel(1), channel(2)


def epoch(number: int) -> Epoch:
    return Epoch(Generation(1), number)


def data(name: str) -> Data:
    return Data(name, len(name))


def marker(number: int, mode: MarkerMode = ALIGNED) -> Marker:
    return Marker(epoch(number), mode)


def savepoint(number: int) -> Marker:
    return Marker(epoch(number), ALIGNED, savepoint=True)


def after(aligner: Aligner, events: Iterable[AlignerEvent]) -> list[AlignerInstruction]:
    """What it says to all of these."""
    return [instruction for event in events for instruction in aligner.handle(event)]


def arrive(aligner: Aligner, channel: ChannelId, *frames: Frame) -> list[AlignerInstruction]:
    return after(aligner, [Arrived(channel, frame) for frame in frames])


def drain(aligner: Aligner) -> list[AlignerInstruction]:
    instructions: list[AlignerInstruction] = []
    while not aligner.idle:
        instructions += aligner.handle(Proceed())
    return instructions


def processed(*frames: tuple[ChannelId, str]) -> list[AlignerInstruction]:
    return [Process(channel, data(name)) for channel, name in frames]


# --- frames without markers


def test_frames_are_processed_one_at_a_time_and_channels_take_turns() -> None:
    aligner = Aligner([A, B])
    assert arrive(aligner, A, data("a1"), data("a2"), Watermark(7)) == []
    assert arrive(aligner, B, data("b1")) == []
    assert aligner.handle(Proceed()) == processed((A, "a1"))
    assert aligner.handle(Proceed()) == processed((B, "b1"))
    assert aligner.handle(Proceed()) == processed((A, "a2"))
    assert aligner.handle(Proceed()) == [Process(A, Watermark(7))]
    assert aligner.idle
    assert aligner.handle(Proceed()) == []


def test_the_bytes_that_wait_are_counted() -> None:
    aligner = Aligner([A])
    arrive(aligner, A, data("four"), Watermark(1), data("seven.."))
    assert aligner.queued_bytes == 11
    aligner.handle(Proceed())
    assert aligner.queued_bytes == 7
    drain(aligner)
    assert aligner.queued_bytes == 0


# --- aligned


def test_an_aligned_epoch_is_cut_when_its_last_marker_is_reached() -> None:
    aligner = Aligner([A, B])
    assert arrive(aligner, A, data("a1"), marker(1), data("a2")) == [AlignmentBegan(epoch(1))]
    assert drain(aligner) == processed((A, "a1"))
    assert set(aligner.held_back) == {A}
    assert arrive(aligner, B, data("b1"), marker(1), data("b2")) == []
    assert drain(aligner) == [*processed((B, "b1")), Cut(marker(1)), *processed((A, "a2"), (B, "b2"))]
    assert not aligner.held_back


def test_with_one_channel_the_marker_is_cut_when_it_is_reached_and_not_when_it_arrives() -> None:
    aligner = Aligner([A])
    assert arrive(aligner, A, data("a1"), marker(1)) == [AlignmentBegan(epoch(1))]
    assert drain(aligner) == [*processed((A, "a1")), Cut(marker(1))]


def test_what_arrives_on_a_channel_that_is_held_back_waits() -> None:
    aligner = Aligner([A, B])
    arrive(aligner, A, marker(1))
    assert drain(aligner) == []
    assert arrive(aligner, A, data("a1"), Watermark(3)) == []
    assert aligner.idle
    assert aligner.queued_bytes == 2
    arrive(aligner, B, marker(1))
    assert drain(aligner) == [Cut(marker(1)), Process(A, data("a1")), Process(A, Watermark(3))]


def test_several_aligned_epochs_in_flight_are_cut_in_order() -> None:
    aligner = Aligner([A, B])
    assert arrive(aligner, A, marker(1), data("a1"), marker(2), data("a2")) == [
        AlignmentBegan(epoch(1)),
        AlignmentBegan(epoch(2)),
    ]
    assert drain(aligner) == []
    assert arrive(aligner, B, data("b0"), marker(1), data("b1")) == []
    assert drain(aligner) == [*processed((B, "b0")), Cut(marker(1)), *processed((A, "a1"), (B, "b1"))]
    assert arrive(aligner, B, marker(2)) == []
    assert drain(aligner) == [Cut(marker(2)), *processed((A, "a2"))]


def test_a_savepoint_is_cut_with_its_own_marker() -> None:
    aligner = Aligner([A])
    arrive(aligner, A, savepoint(1))
    assert drain(aligner) == [Cut(savepoint(1))]


# --- unaligned


def test_an_unaligned_epoch_is_cut_when_its_first_marker_arrives() -> None:
    aligner = Aligner([A, B])
    arrive(aligner, A, data("a1"))
    arrive(aligner, B, data("b1"))
    assert arrive(aligner, A, marker(1, UNALIGNED)) == [AlignmentBegan(epoch(1)), Cut(marker(1, UNALIGNED))]
    assert arrive(aligner, A, data("a2")) == []
    assert drain(aligner) == processed((A, "a1"), (B, "b1"), (A, "a2"))
    assert arrive(aligner, B, data("b2"), marker(1, UNALIGNED)) == [
        InFlight(epoch(1), ((A, (data("a1"),)), (B, (data("b1"), data("b2")))))
    ]
    assert arrive(aligner, B, data("b3")) == []
    assert drain(aligner) == processed((B, "b2"), (B, "b3"))


def test_channels_without_anything_in_flight_are_left_out_and_watermarks_are_no_data() -> None:
    aligner = Aligner([A, B])
    arrive(aligner, A, Watermark(3), marker(1, UNALIGNED))
    assert arrive(aligner, B, Watermark(4), marker(1, UNALIGNED)) == [InFlight(epoch(1), ())]


def test_the_size_of_what_is_in_flight_is_that_of_its_data() -> None:
    in_flight = InFlight(epoch(1), ((A, (data("four"), data("x"))), (B, (data("ab"),))))
    assert in_flight.size == 7


def test_two_unaligned_epochs_record_the_same_channel_at_once() -> None:
    aligner = Aligner([A, B])
    arrive(aligner, B, data("b0"))
    assert Cut(marker(1, UNALIGNED)) in arrive(aligner, A, marker(1, UNALIGNED))
    assert drain(aligner) == processed((B, "b0"))
    arrive(aligner, B, data("b1"))
    assert Cut(marker(2, UNALIGNED)) in arrive(aligner, A, data("a1"), marker(2, UNALIGNED))
    assert arrive(aligner, B, marker(1, UNALIGNED)) == [InFlight(epoch(1), ((B, (data("b0"), data("b1"))),))]
    assert arrive(aligner, B, data("b2"), marker(2, UNALIGNED)) == [
        InFlight(epoch(2), ((A, (data("a1"),)), (B, (data("b1"), data("b2")))))
    ]


def test_an_unaligned_epoch_that_overtakes_an_aligned_one_subsumes_it() -> None:
    aligner = Aligner([A, B])
    arrive(aligner, A, data("a1"), marker(1), data("a2"))
    assert arrive(aligner, A, marker(2, UNALIGNED)) == [
        AlignmentBegan(epoch(2)),
        Missed(epoch(1), SUBSUMED),
        Cut(marker(2, UNALIGNED)),
    ]
    assert arrive(aligner, B, marker(1), marker(2, UNALIGNED)) == [InFlight(epoch(2), ((A, (data("a1"), data("a2"))),))]
    assert drain(aligner) == processed((A, "a1"), (A, "a2"))


def test_an_unaligned_epoch_waits_for_a_savepoint_before_it_and_is_cut_right_after_it() -> None:
    aligner = Aligner([A, B])
    assert arrive(aligner, A, savepoint(1), data("a1"), marker(2, UNALIGNED)) == [
        AlignmentBegan(epoch(1)),
        AlignmentBegan(epoch(2)),
    ]
    arrive(aligner, B, data("b1"), savepoint(1), data("b2"))
    assert drain(aligner) == [
        *processed((B, "b1")),
        Cut(savepoint(1)),
        Cut(marker(2, UNALIGNED)),
        *processed((A, "a1"), (B, "b2")),
    ]
    assert arrive(aligner, B, marker(2, UNALIGNED)) == [InFlight(epoch(2), ((A, (data("a1"),)), (B, (data("b2"),))))]


def test_an_unaligned_epoch_waits_no_longer_for_a_savepoint_that_is_aborted() -> None:
    aligner = Aligner([A, B])
    arrive(aligner, A, savepoint(1), marker(2, UNALIGNED))
    assert aligner.handle(Aborted(epoch(1))) == [Cut(marker(2, UNALIGNED))]


def test_an_unaligned_epoch_waits_no_longer_for_a_savepoint_that_was_skipped() -> None:
    aligner = Aligner([A, B])
    arrive(aligner, A, savepoint(1), marker(3, UNALIGNED))
    aligner.handle(Aborted(epoch(2)))
    assert arrive(aligner, B, marker(2)) == [Missed(epoch(1), SKIPPED), Cut(marker(3, UNALIGNED))]


# --- unaligned, with channels that cannot be overtaken


def test_an_ordered_channel_is_cut_aligned_in_an_unaligned_epoch() -> None:
    aligner = Aligner([A, B, C], ordered=[C])
    arrive(aligner, C, data("c1"))
    arrive(aligner, B, data("b1"))
    assert arrive(aligner, A, data("a1"), marker(1, UNALIGNED), data("a2")) == [AlignmentBegan(epoch(1))]
    assert aligner.handle(Proceed()) == processed((C, "c1"))
    assert arrive(aligner, C, marker(1, UNALIGNED), data("c2")) == []
    assert aligner.handle(Proceed()) == processed((B, "b1"))
    assert aligner.handle(Proceed()) == processed((A, "a1"))
    assert aligner.handle(Proceed()) == [Cut(marker(1, UNALIGNED))]
    assert arrive(aligner, B, data("b2"), marker(1, UNALIGNED)) == [InFlight(epoch(1), ((B, (data("b2"),)),))]
    assert drain(aligner) == processed((C, "c2"), (B, "b2"), (A, "a2"))


def test_a_keyed_channel_whose_marker_was_reached_is_held_back_until_the_ordered_ones_are() -> None:
    aligner = Aligner([A, B], ordered=[B])
    arrive(aligner, A, marker(1, UNALIGNED), data("a1"))
    assert drain(aligner) == []
    assert set(aligner.held_back) == {A}
    arrive(aligner, B, data("b1"), marker(1, UNALIGNED))
    assert drain(aligner) == [
        *processed((B, "b1")),
        Cut(marker(1, UNALIGNED)),
        InFlight(epoch(1), ()),
        *processed((A, "a1")),
    ]


def test_an_ordered_channel_alone_does_not_make_its_epoch_aligned() -> None:
    aligner = Aligner([A, B], ordered=[B])
    arrive(aligner, A, data("a1"))
    assert arrive(aligner, B, marker(1, UNALIGNED)) == [AlignmentBegan(epoch(1))]
    assert aligner.handle(Proceed()) == processed((A, "a1"))
    assert drain(aligner) == [Cut(marker(1, UNALIGNED))]
    assert arrive(aligner, A, data("a2"), marker(1, UNALIGNED)) == [InFlight(epoch(1), ((A, (data("a2"),)),))]


# --- at least once


def test_at_least_once_holds_nothing_back_and_cuts_at_the_last_marker() -> None:
    aligner = Aligner([A, B])
    arrive(aligner, A, data("a1"), marker(1, AT_LEAST_ONCE), data("a2"))
    assert drain(aligner) == processed((A, "a1"), (A, "a2"))
    assert not aligner.held_back
    arrive(aligner, B, data("b1"), marker(1, AT_LEAST_ONCE), data("b2"))
    assert drain(aligner) == [*processed((B, "b1")), Cut(marker(1, AT_LEAST_ONCE)), *processed((B, "b2"))]


def test_a_savepoint_of_an_at_least_once_job_is_aligned() -> None:
    aligner = Aligner([A, B])
    arrive(aligner, A, savepoint(1), data("a1"))
    assert drain(aligner) == []
    arrive(aligner, B, savepoint(1))
    assert drain(aligner) == [Cut(savepoint(1)), *processed((A, "a1"))]


# --- aligned that turns unaligned


def test_an_aligned_epoch_turns_unaligned_when_its_time_is_up() -> None:
    aligner = Aligner([A, B])
    arrive(aligner, A, data("a1"), marker(1), data("a2"))
    arrive(aligner, B, data("b1"))
    assert aligner.handle(Proceed()) == processed((A, "a1"))
    assert aligner.handle(AlignmentTimedOut(epoch(1))) == [Cut(marker(1, UNALIGNED))]
    assert arrive(aligner, B, data("b2"), marker(1)) == [InFlight(epoch(1), ((B, (data("b1"), data("b2"))),))]
    assert drain(aligner) == processed((B, "b1"), (B, "b2"), (A, "a2"))


def test_an_epoch_that_turned_unaligned_upstream_is_unaligned_here() -> None:
    aligner = Aligner([A, B])
    arrive(aligner, A, data("a1"), marker(1))
    arrive(aligner, B, data("b1"))
    assert arrive(aligner, B, marker(1, UNALIGNED)) == [
        Cut(marker(1, UNALIGNED)),
        InFlight(epoch(1), ((A, (data("a1"),)), (B, (data("b1"),)))),
    ]


def test_an_epoch_that_turns_unaligned_still_waits_for_ordered_channels() -> None:
    aligner = Aligner([A, B, C], ordered=[B])
    arrive(aligner, A, marker(1))
    assert aligner.handle(AlignmentTimedOut(epoch(1))) == []
    arrive(aligner, B, data("b1"), marker(1))
    assert drain(aligner) == [*processed((B, "b1")), Cut(marker(1, UNALIGNED))]
    assert arrive(aligner, C, data("c1"), marker(1)) == [InFlight(epoch(1), ((C, (data("c1"),)),))]


def test_a_savepoint_never_turns_unaligned() -> None:
    aligner = Aligner([A, B])
    arrive(aligner, A, savepoint(1))
    assert aligner.handle(AlignmentTimedOut(epoch(1))) == []
    arrive(aligner, B, data("b1"), savepoint(1))
    assert drain(aligner) == [*processed((B, "b1")), Cut(savepoint(1))]


def test_an_at_least_once_epoch_never_turns_unaligned() -> None:
    aligner = Aligner([A, B])
    arrive(aligner, A, marker(1, AT_LEAST_ONCE))
    assert aligner.handle(AlignmentTimedOut(epoch(1))) == []


def test_a_time_out_after_the_cut_or_the_abort_changes_nothing() -> None:
    aligner = Aligner([A, B])
    arrive(aligner, A, marker(1))
    aligner.handle(Aborted(epoch(1)))
    assert aligner.handle(AlignmentTimedOut(epoch(1))) == []
    assert arrive(aligner, A, marker(2)) + arrive(aligner, B, marker(2)) == [AlignmentBegan(epoch(2))]
    assert drain(aligner) == [Cut(marker(2))]
    assert aligner.handle(AlignmentTimedOut(epoch(2))) == []


def test_a_time_out_of_the_older_of_two_epochs_leaves_the_younger_aligned() -> None:
    aligner = Aligner([A, B])
    arrive(aligner, A, marker(1), data("a1"), marker(2))
    arrive(aligner, B, data("b0"))
    assert aligner.handle(AlignmentTimedOut(epoch(1))) == [Cut(marker(1, UNALIGNED))]
    assert arrive(aligner, B, marker(1), data("b1"), marker(2)) == [InFlight(epoch(1), ((B, (data("b0"),)),))]
    assert drain(aligner) == [*processed((B, "b0"), (A, "a1"), (B, "b1")), Cut(marker(2))]


# --- aborted


def test_an_aborted_epoch_lets_its_channels_go() -> None:
    aligner = Aligner([A, B])
    arrive(aligner, A, marker(1), data("a1"))
    assert drain(aligner) == []
    assert aligner.handle(Aborted(epoch(1))) == []
    assert drain(aligner) == processed((A, "a1"))
    assert arrive(aligner, B, marker(1), data("b1")) == []
    assert drain(aligner) == processed((B, "b1"))


def test_an_epoch_aborted_before_its_first_marker_is_never_cut() -> None:
    aligner = Aligner([A, B])
    aligner.handle(Aborted(epoch(1)))
    assert arrive(aligner, A, marker(1)) + arrive(aligner, B, marker(1)) == []
    assert aligner.handle(Triggered(marker(1))) == []
    assert drain(aligner) == []
    assert not aligner.held_back


def test_an_abort_ends_the_recording_of_an_epoch_that_was_cut() -> None:
    aligner = Aligner([A, B])
    arrive(aligner, A, marker(1, UNALIGNED))
    assert aligner.handle(Aborted(epoch(1))) == []
    assert arrive(aligner, B, data("b1"), marker(1, UNALIGNED)) == []


def test_an_abort_leaves_the_other_epochs_alone() -> None:
    aligner = Aligner([A, B])
    arrive(aligner, A, marker(1), data("a1"), marker(2), data("a2"))
    drain(aligner)
    aligner.handle(Aborted(epoch(1)))
    assert drain(aligner) == processed((A, "a1"))
    arrive(aligner, B, marker(1), data("b1"), marker(2))
    assert drain(aligner) == [*processed((B, "b1")), Cut(marker(2)), *processed((A, "a2"))]


def test_an_epoch_stays_aborted_when_an_older_one_is_cut() -> None:
    aligner = Aligner([A, B])
    aligner.handle(Aborted(epoch(2)))
    arrive(aligner, A, marker(1))
    arrive(aligner, B, marker(1))
    assert drain(aligner) == [Cut(marker(1))]
    assert arrive(aligner, A, marker(2), data("a2")) + arrive(aligner, B, marker(2)) == []
    assert drain(aligner) == processed((A, "a2"))


# --- markers late, twice, out of order, skipped


def test_a_marker_that_comes_twice_is_counted_once() -> None:
    aligner = Aligner([A, B])
    assert arrive(aligner, A, marker(1), data("a1"), marker(1), data("a2")) == [AlignmentBegan(epoch(1))]
    assert drain(aligner) == []
    arrive(aligner, B, data("b1"))
    assert drain(aligner) == processed((B, "b1"))
    arrive(aligner, B, marker(1))
    assert drain(aligner) == [Cut(marker(1)), *processed((A, "a1"), (A, "a2"))]


def test_an_unaligned_marker_that_comes_twice_ends_the_recording_at_its_first() -> None:
    aligner = Aligner([A, B])
    arrive(aligner, B, data("b1"), marker(1, UNALIGNED), data("b2"), marker(1, UNALIGNED))
    assert arrive(aligner, A, marker(1, UNALIGNED), data("a1"), marker(1, UNALIGNED)) == [
        InFlight(epoch(1), ((B, (data("b1"),)),))
    ]


def test_a_marker_up_to_the_restored_epoch_is_late() -> None:
    aligner = Aligner([A, B], restored=epoch(5))
    assert arrive(aligner, A, marker(4), marker(5), data("a1")) == []
    assert drain(aligner) == processed((A, "a1"))
    assert aligner.handle(Triggered(marker(5))) == []
    arrive(aligner, A, marker(7))
    arrive(aligner, B, marker(7))
    assert drain(aligner) == [Cut(marker(7))]


def test_a_channel_that_goes_on_to_a_later_epoch_gives_the_earlier_one_up() -> None:
    aligner = Aligner([A, B])
    arrive(aligner, A, marker(1), data("a1"), marker(2))
    assert drain(aligner) == []
    assert arrive(aligner, B, marker(2), data("b1")) == [Missed(epoch(1), SKIPPED)]
    assert drain(aligner) == [*processed((A, "a1")), Cut(marker(2)), *processed((B, "b1"))]


def test_an_epoch_that_one_channel_has_skipped_holds_no_other_channel_back() -> None:
    aligner = Aligner([A, B])
    arrive(aligner, B, marker(2))
    assert drain(aligner) == []
    assert arrive(aligner, A, marker(1), data("a1")) == []
    assert aligner.handle(Triggered(marker(1))) == []
    assert drain(aligner) == processed((A, "a1"))
    arrive(aligner, A, marker(2))
    assert drain(aligner) == [Cut(marker(2))]


def test_a_skipped_epoch_whose_marker_still_comes_stays_given_up() -> None:
    aligner = Aligner([A, B])
    arrive(aligner, A, marker(1))
    assert arrive(aligner, B, marker(2), marker(1), data("b1")) == [
        Missed(epoch(1), SKIPPED),
        AlignmentBegan(epoch(2)),
    ]
    assert drain(aligner) == []
    arrive(aligner, A, marker(2))
    assert drain(aligner) == [Cut(marker(2)), *processed((B, "b1"))]


def test_channel_state_that_cannot_be_completed_is_reported_as_missed() -> None:
    aligner = Aligner([A, B])
    arrive(aligner, A, marker(1, UNALIGNED))
    assert arrive(aligner, B, data("b1"), marker(2, UNALIGNED)) == [
        Missed(epoch(1), SKIPPED),
        AlignmentBegan(epoch(2)),
        Cut(marker(2, UNALIGNED)),
    ]
    assert arrive(aligner, A, marker(2, UNALIGNED)) == [InFlight(epoch(2), ((B, (data("b1"),)),))]


def test_an_older_marker_does_not_end_the_recording_of_a_younger_epoch() -> None:
    aligner = Aligner([A, B])
    arrive(aligner, A, marker(1, UNALIGNED), marker(2, UNALIGNED))
    assert arrive(aligner, B, data("b1"), marker(1, UNALIGNED), data("b2")) == [
        InFlight(epoch(1), ((B, (data("b1"),)),))
    ]
    assert arrive(aligner, B, marker(2, UNALIGNED)) == [InFlight(epoch(2), ((B, (data("b1"), data("b2"))),))]


# --- channels that end


def test_a_channel_that_ended_before_is_not_waited_for() -> None:
    aligner = Aligner([A, B])
    arrive(aligner, B, data("b1"), End())
    assert drain(aligner) == [*processed((B, "b1")), ChannelEnded(B)]
    arrive(aligner, A, marker(1))
    assert drain(aligner) == [Cut(marker(1))]


def test_a_channel_that_ends_during_the_alignment_is_waited_for_until_its_end_is_reached() -> None:
    aligner = Aligner([A, B])
    arrive(aligner, A, marker(1), data("a1"))
    arrive(aligner, B, data("b1"), End())
    assert drain(aligner) == [*processed((B, "b1")), ChannelEnded(B), Cut(marker(1)), *processed((A, "a1"))]


def test_a_channel_that_ends_behind_its_marker_ends_after_the_cut() -> None:
    aligner = Aligner([A, B])
    arrive(aligner, B, marker(1), data("b1"), End())
    assert drain(aligner) == []
    arrive(aligner, A, marker(1))
    assert drain(aligner) == [Cut(marker(1)), *processed((B, "b1")), ChannelEnded(B)]


def test_one_end_may_complete_several_epochs_oldest_first() -> None:
    aligner = Aligner([A, B])
    arrive(aligner, A, marker(1, AT_LEAST_ONCE), data("a1"), marker(2, AT_LEAST_ONCE))
    assert drain(aligner) == processed((A, "a1"))
    arrive(aligner, B, End())
    assert drain(aligner) == [ChannelEnded(B), Cut(marker(1, AT_LEAST_ONCE)), Cut(marker(2, AT_LEAST_ONCE))]


def test_the_end_of_a_channel_ends_its_recording() -> None:
    aligner = Aligner([A, B])
    arrive(aligner, B, data("b1"))
    arrive(aligner, A, marker(1, UNALIGNED))
    assert arrive(aligner, B, data("b2"), End()) == [InFlight(epoch(1), ((B, (data("b1"), data("b2"))),))]
    assert drain(aligner) == [*processed((B, "b1"), (B, "b2")), ChannelEnded(B)]


def test_what_stands_before_an_end_that_was_not_reached_is_channel_state() -> None:
    aligner = Aligner([A, B])
    arrive(aligner, B, data("b1"), End())
    assert arrive(aligner, A, marker(1, UNALIGNED)) == [
        AlignmentBegan(epoch(1)),
        Cut(marker(1, UNALIGNED)),
        InFlight(epoch(1), ((B, (data("b1"),)),)),
    ]


def test_an_ordered_channel_that_ends_is_waited_for_until_its_end_is_reached() -> None:
    aligner = Aligner([A, B], ordered=[B])
    arrive(aligner, B, data("b1"), End())
    assert arrive(aligner, A, marker(1, UNALIGNED)) == [AlignmentBegan(epoch(1))]
    assert drain(aligner) == [
        *processed((B, "b1")),
        ChannelEnded(B),
        Cut(marker(1, UNALIGNED)),
        InFlight(epoch(1), ()),
    ]


def test_when_all_have_ended_that_is_said_last_and_once() -> None:
    aligner = Aligner([A, B])
    arrive(aligner, A, marker(1), End())
    arrive(aligner, B, End())
    assert drain(aligner) == [ChannelEnded(B), Cut(marker(1)), ChannelEnded(A), AllEnded()]


@pytest.mark.parametrize("hears_of_the_epoch", ["before", "behind"])
def test_what_follows_from_the_last_end_is_in_the_cut_that_it_completes(hears_of_the_epoch: str) -> None:
    aligner = Aligner([A])
    said: list[AlignerInstruction] = []
    if hears_of_the_epoch == "before":
        said += aligner.handle(Triggered(marker(1)))
    arrive(aligner, A, End())
    said += drain(aligner)
    if hears_of_the_epoch == "behind":
        said += aligner.handle(Triggered(marker(1)))
    assert said == [ChannelEnded(A), AllEnded(), Cut(marker(1))]


@pytest.mark.parametrize("frame", [data("x"), marker(1), Watermark(1), End()], ids=lambda frame: type(frame).__name__)
def test_a_frame_after_the_end_is_refused(frame: Frame) -> None:
    aligner = Aligner([A, B])
    arrive(aligner, A, End())
    with pytest.raises(FrameAfterEnd, match=r"up/0->down/0 delivered a frame after its end; restart the attempt"):
        arrive(aligner, A, frame)
    drain(aligner)
    with pytest.raises(FrameAfterEnd) as refused:
        arrive(aligner, A, frame)
    assert refused.value.channel == A


def test_a_sender_that_closes_rounds_where_none_are_taken_is_refused() -> None:
    with pytest.raises(
        UnexpectedBoundary, match="up/0->down/0 closed a round, and no rounds are taken here"
    ) as refused:
        arrive(Aligner([A, B]), A, Boundary(7))
    assert refused.value.channel == A


# --- triggers


@pytest.mark.parametrize("mode", [ALIGNED, AT_LEAST_ONCE])
def test_a_subtask_without_channels_cuts_when_it_is_triggered(mode: MarkerMode) -> None:
    aligner = Aligner([], restored=epoch(3))
    assert aligner.handle(Triggered(marker(3, mode))) == []
    assert aligner.handle(Triggered(marker(4, mode))) == [Cut(marker(4, mode))]
    assert aligner.handle(Triggered(marker(4, mode))) == []
    assert aligner.handle(Aborted(epoch(5))) == []
    assert aligner.handle(Triggered(marker(5, mode))) == []
    assert aligner.handle(Triggered(savepoint(6))) == [Cut(savepoint(6))]


def test_a_subtask_without_channels_has_nothing_in_flight_in_an_unaligned_epoch() -> None:
    aligner = Aligner([])
    assert aligner.handle(Triggered(marker(1, UNALIGNED))) == [Cut(marker(1, UNALIGNED)), InFlight(epoch(1), ())]


def test_a_subtask_whose_inputs_have_ended_cuts_when_it_is_triggered() -> None:
    aligner = Aligner([A])
    arrive(aligner, A, End())
    assert aligner.handle(Triggered(marker(1))) == []
    assert drain(aligner) == [ChannelEnded(A), AllEnded(), Cut(marker(1))]
    assert aligner.handle(Triggered(marker(2))) == [Cut(marker(2))]


@pytest.mark.parametrize("mode", [ALIGNED, UNALIGNED])
def test_to_a_subtask_with_live_inputs_a_trigger_is_a_notice(mode: MarkerMode) -> None:
    aligner = Aligner([A])
    arrive(aligner, A, data("a1"))
    assert aligner.handle(Triggered(marker(1, mode))) == []
    assert aligner.handle(AlignmentTimedOut(epoch(1))) == []
    assert drain(aligner) == processed((A, "a1"))
    assert AlignmentBegan(epoch(1)) in arrive(aligner, A, marker(1, mode))


def test_a_trigger_that_comes_after_the_markers_changes_nothing() -> None:
    aligner = Aligner([A, B])
    arrive(aligner, A, marker(1))
    assert drain(aligner) == []
    assert aligner.handle(Triggered(marker(1))) == []
    arrive(aligner, B, marker(1))
    assert drain(aligner) == [Cut(marker(1))]
    assert aligner.handle(Triggered(marker(1))) == []
