"""The sender's queue of a channel: what an unaligned marker goes ahead of, and that it reports exactly that."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from snapshot.cut.aligner import Aligner, Arrived, Cut, InFlight, Proceed, Process
from snapshot.cut.frames import Data, End, Frame, Marker, MarkerMode, Watermark
from snapshot.cut.outbox import Outbox
from snapshot.ids import ChannelId
from statebackend.ids import Epoch, Generation, Partition, Uid

D1, D2, D3 = Data("one", 1), Data("two", 20), Data("three", 300)


def marker(number: int, mode: MarkerMode = MarkerMode.UNALIGNED) -> Marker:
    return Marker(Epoch(Generation(1), number), mode)


def filled(*frames: Frame, ordered: bool = False) -> Outbox:
    outbox = Outbox(ordered=ordered)
    for frame in frames:
        outbox.put(frame)
    return outbox


def taken(outbox: Outbox) -> list[Frame]:
    return [outbox.take() for _ in range(len(outbox))]


def test_frames_leave_in_the_order_in_which_they_were_put() -> None:
    aligned = marker(1, MarkerMode.ALIGNED)
    frames: list[Frame] = [D1, Watermark(1), aligned, D2, marker(2, MarkerMode.AT_LEAST_ONCE), D3, End()]
    assert taken(filled(*frames)) == frames


def test_an_unaligned_marker_overtakes_data_and_watermarks_and_reports_the_data() -> None:
    outbox = filled(D1, Watermark(1), D2)
    assert outbox.put(marker(1)) == (D1, D2)
    assert outbox.put(D3) == ()
    assert taken(outbox) == [marker(1), D1, Watermark(1), D2, D3]


def test_what_the_network_has_taken_is_not_overtaken() -> None:
    outbox = filled(D1, D2)
    assert outbox.take() == D1
    assert outbox.put(marker(1)) == (D2,)


@pytest.mark.parametrize("mode", MarkerMode)
def test_no_marker_overtakes_another(mode: MarkerMode) -> None:
    outbox = filled(D1, marker(1, mode), D2)
    behind = [D1] if mode is MarkerMode.UNALIGNED else []
    assert outbox.put(marker(2)) == (*behind, D2)
    ahead = [] if mode is MarkerMode.UNALIGNED else [D1]
    assert taken(outbox) == [*ahead, marker(1, mode), marker(2), *behind, D2]


def test_on_an_ordered_channel_nothing_is_overtaken() -> None:
    outbox = filled(D1, ordered=True)
    assert outbox.put(marker(1)) == ()
    assert taken(outbox) == [D1, marker(1)]


def test_a_marker_behind_the_end_is_dropped_and_overtakes_nothing() -> None:
    outbox = filled(D1, End())
    assert outbox.put(marker(1)) == ()
    assert taken(outbox) == [D1, End()]
    assert outbox.put(marker(2)) == ()
    assert len(outbox) == 0


@pytest.mark.parametrize("frame", [D1, Watermark(1), End()], ids=lambda frame: type(frame).__name__)
def test_nothing_but_a_marker_may_be_put_behind_the_end(frame: Frame) -> None:
    with pytest.raises(ValueError, match="cannot be sent: the channel has ended"):
        filled(End()).put(frame)


def test_the_bytes_that_wait_are_those_of_the_data() -> None:
    outbox = filled(D1, Watermark(1), D2, marker(1), D3)
    assert outbox.bytes == 321
    assert outbox.take() == marker(1)
    assert outbox.bytes == 321
    assert [outbox.take(), outbox.bytes] == [D1, 320]
    taken(outbox)
    assert outbox.bytes == 0


def test_taking_from_an_empty_outbox_is_an_error() -> None:
    with pytest.raises(IndexError):
        Outbox().take()


STEPS = st.lists(
    st.sampled_from(["data", "data", "data", "watermark", "take", "take", "process", "marker", "savepoint"])
)


@given(STEPS, STEPS)
def test_with_the_receiver_every_epoch_has_all_that_was_sent_before_its_marker_in_order(
    ones: list[str], others: list[str]
) -> None:
    """Processed at the cut, recorded by the receiver, overtaken in the sender: together exactly what was put."""
    a, b = (ChannelId(Uid("up"), Uid("down"), Partition(sender), Partition(0)) for sender in (0, 1))
    outboxes = {a: Outbox(), b: Outbox()}
    aligner = Aligner(outboxes)
    put: dict[ChannelId, list[Data]] = {a: [], b: []}
    sent_before: dict[tuple[ChannelId, int], list[Data]] = {}
    overtaken: dict[tuple[ChannelId, int], list[Data]] = {}
    processed: dict[ChannelId, list[Data]] = {a: [], b: []}
    at_cut: dict[tuple[ChannelId, int], list[Data]] = {}
    complete: list[int] = []

    def receive(event: Arrived | Proceed) -> None:
        for instruction in aligner.handle(event):
            match instruction:
                case Process(of, Data() as data):
                    processed[of].append(data)
                case Cut(marker):
                    at_cut.update({(of, marker.epoch.number): list(done) for of, done in processed.items()})
                    if marker.mode is not MarkerMode.UNALIGNED:
                        complete.append(marker.epoch.number)
                case InFlight(epoch, channels):
                    for of, frames in channels:
                        at_cut[of, epoch.number] += frames
                    complete.append(epoch.number)
                case _:
                    pass

    def step(of: ChannelId, name: str) -> None:
        match name:
            case "data":
                put[of].append(Data((of.sender, len(put[of])), 1))
                outboxes[of].put(put[of][-1])
            case "watermark":
                outboxes[of].put(Watermark(0))
            case "take" if len(outboxes[of]):
                receive(Arrived(of, outboxes[of].take()))
            case "process":
                receive(Proceed())
            case _:
                pass

    epochs = 0
    for one, other in zip(ones, others, strict=False):
        for of, name in ((a, one), (b, other)):
            step(of, name)
            if name in ("marker", "savepoint"):
                epochs += 1
                mode = MarkerMode.UNALIGNED if name == "marker" else MarkerMode.ALIGNED
                for every, outbox in outboxes.items():
                    sent_before[every, epochs] = list(put[every])
                    overtaken[every, epochs] = list(outbox.put(marker(epochs, mode)))
    while not aligner.idle or any(len(outbox) for outbox in outboxes.values()):
        for of in outboxes:
            step(of, "take")
        step(a, "process")
    assert processed == put
    for number in complete:
        for of in outboxes:
            assert at_cut[of, number] + overtaken[of, number] == sent_before[of, number]
    assert len(complete) == len(set(complete))
    assert not epochs or epochs in complete
