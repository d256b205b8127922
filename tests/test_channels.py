"""Frames over a socket, and within a partition: their order, what overtakes what, who is held up, and how it breaks."""

from __future__ import annotations

import random
import socket
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from snapshot.cut.frames import Data, End, Frame, Marker, MarkerMode, Watermark
from snapshot.cut.seals import RecordWriter
from snapshot.cut.wire import Buffer, Encoder, OverLong, encode
from snapshot.host.flow.allowances import FIRST, UNLIMITED, Allowance
from snapshot.host.net.channels import LocalChannel, ReceivingChannel, SendingChannel
from snapshot.host.net.event_loop import EventLoop
from snapshot.host.protocol.options import HostOptions
from snapshot.ids import ChannelId, Copy
from statebackend.ids import Attempt, Epoch, Generation, Incarnation, Partition, Uid
from tests.connections import FAR, NEAR, sealed

LIMIT = 10.0
US = Incarnation(Generation(3), Attempt(2))
OLDER = Incarnation(Generation(3), Attempt(1))
CHANNEL = Copy(ChannelId(Uid("clicks"), Uid("count"), Partition(0), Partition(1)))
SMALL = HostOptions(socket_buffer=16 << 10, channel_buffer=64 << 10, max_frame=1 << 20)


def data(number: int, size: int = 8) -> Data:
    return Data(number.to_bytes(8, "big") + bytes(size - 8), size)


def marker(number: int = 1, mode: MarkerMode = MarkerMode.UNALIGNED) -> Marker:
    return Marker(Epoch(US.generation, number), mode)


def numbers(frames: Sequence[Frame]) -> list[int | str]:
    """What the frames are, in short: the numbers of data, and the kind of everything else."""
    return [
        int.from_bytes(bytes(memoryview(frame.payload)[:8]), "big")
        if isinstance(frame, Data) and isinstance(frame.payload, bytes | bytearray)
        else type(frame).__name__
        for frame in frames
    ]


@dataclass
class Road:
    """Both ends of a channel in one loop, and what they told. Nothing arrives before `receive`."""

    loop: EventLoop
    stack: ExitStack
    options: HostOptions = SMALL
    ordered: bool = False
    arrived: list[Frame] = field(default_factory=list)
    sent: list[Frame] = field(default_factory=list)
    drained: list[int] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    on_frame: Callable[[Frame], object] = lambda frame: None

    def __post_init__(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self.near = self.stack.enter_context(socket.create_connection(listener.getsockname()))
            self.far = self.stack.enter_context(listener.accept()[0])
        self.far.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self.options.socket_buffer)

    def sending(self) -> SendingChannel:
        channel = SendingChannel(
            self.loop,
            sealed(self.near, self.far)[0],
            CHANNEL,
            US,
            lambda: self.drained.append(channel.bytes),
            self.broken.append,
            ordered=self.ordered,
            options=self.options,
            tap=self.sent.append,
        )
        self.stack.callback(channel.close)
        return channel

    def receiving(self) -> ReceivingChannel:
        channel = ReceivingChannel(
            self.loop,
            sealed(self.near, self.far)[1],
            CHANNEL,
            US,
            self._take,
            self.broken.append,
            options=self.options,
        )
        self.stack.callback(channel.close)
        return channel

    def local(self) -> LocalChannel:
        channel = LocalChannel(
            self.loop,
            CHANNEL,
            self._take,
            lambda: self.drained.append(channel.bytes),
            ordered=self.ordered,
            options=self.options,
            tap=self.sent.append,
        )
        return channel

    def until(self, true: Callable[[], bool]) -> None:
        assert self.loop.run(true, LIMIT), f"it did not happen: {len(self.arrived)} arrived, broken: {self.broken}"

    def turns(self, count: int = 5) -> None:
        for _ in range(count):
            self.loop.run_once(0)

    def _take(self, channel: Copy, frame: Frame) -> None:
        assert channel == CHANNEL
        self.arrived.append(frame)
        self.on_frame(frame)


@pytest.fixture
def road() -> Iterator[Road]:
    loop = EventLoop()
    with ExitStack() as stack:
        stack.callback(loop.close)
        yield Road(loop, stack)


def filled(road: Road, channel: SendingChannel, first: int = 0) -> int:
    """Put data of 30 kB until the kernel takes no more; how many there are."""
    number = first
    while channel.bytes < 200_000:
        channel.put(data(number, 30_000))
        number += 1
        road.turns(2)
    return number


def test_frames_of_all_kinds_and_sizes_arrive_as_they_were_put(road: Road) -> None:
    chance = random.Random(3)
    frames: list[Frame] = [Watermark(5), Data(b"", 0), marker(1, MarkerMode.ALIGNED)]
    frames += [data(number, chance.choice((8, 100, 5_000, 300_000))) for number in range(150)]
    frames += [marker(2, MarkerMode.AT_LEAST_ONCE), Watermark(9, idle=True), End()]
    sending = road.sending()
    road.receiving()
    for frame in frames:
        sending.put(frame)
    road.until(lambda: bool(road.arrived) and isinstance(road.arrived[-1], End))
    assert road.arrived == frames
    assert road.sent == frames
    assert sending.bytes == 0


@given(st.lists(st.integers(0, 40_000), max_size=12), st.integers(4096, 30_000))
def test_payloads_of_any_lengths_survive_small_sockets(lengths: list[int], buffer: int) -> None:
    loop = EventLoop()
    with ExitStack() as stack:
        road = Road(loop, stack, HostOptions(socket_buffer=buffer, max_frame=1 << 20))
        sending = road.sending()
        road.receiving()
        frames: list[Frame] = [Data(random.Random(length).randbytes(length), length) for length in lengths]
        for frame in [*frames, End()]:
            sending.put(frame)
        road.until(lambda: bool(road.arrived) and isinstance(road.arrived[-1], End))
        assert road.arrived == [*frames, End()]
    loop.close()


def test_a_payload_may_be_any_buffer(road: Road) -> None:
    sending = road.sending()
    road.receiving()
    words = memoryview(struct.pack("4q", 1, 2, 3, 4)).cast("q")
    sending.put(Data(words, 32))
    sending.put(Data(bytearray(b"rows"), 4))
    road.until(lambda: len(road.arrived) == 2)
    assert road.arrived == [Data(words.tobytes(), 32), Data(b"rows", 4)]


def test_an_unaligned_marker_overtakes_what_waits_and_not_what_the_kernel_has_begun(road: Road) -> None:
    sending = road.sending()
    last = filled(road, sending)
    begun = len(road.sent)
    assert 0 < begun < last
    overtaken = sending.put(marker())
    assert numbers(overtaken) == list(range(begun, last))
    sending.put(End())
    road.receiving()
    road.until(lambda: bool(road.arrived) and isinstance(road.arrived[-1], End))
    order = [*range(begun), "Marker", *range(begun, last), "End"]
    assert numbers(road.arrived) == order
    assert numbers(road.sent) == order


def test_on_an_ordered_channel_a_marker_waits_for_its_turn(road: Road) -> None:
    road.ordered = True
    sending = road.sending()
    last = filled(road, sending)
    assert sending.put(marker()) == ()
    road.receiving()
    road.until(lambda: Marker in map(type, road.arrived))
    assert numbers(road.arrived) == [*range(last), "Marker"]


def test_bytes_are_all_that_the_kernel_has_not_taken_and_draining_is_told_once_each_time(road: Road) -> None:
    sending = road.sending()
    receiving = road.receiving()
    receiving.pause()
    last = filled(road, sending)
    in_kernel = 30_000 * last - sending.bytes
    assert 0 < in_kernel < 30_000 * last
    assert road.drained == []
    receiving.resume()
    road.until(lambda: len(road.arrived) == last)
    road.until(lambda: bool(road.drained))
    road.turns()
    assert len(road.drained) == 1
    assert road.drained[0] <= 32 << 10
    assert sending.bytes == 0
    receiving.pause()
    filled(road, sending)
    receiving.resume()
    road.until(lambda: len(road.drained) == 2)


def test_draining_is_never_told_inside_put(road: Road) -> None:
    road.options = HostOptions(channel_buffer=10)
    sending = road.sending()
    sending.put(data(1, 100_000))
    assert sending.bytes < 100_000
    assert road.drained == []
    road.receiving()
    road.until(lambda: bool(road.drained))


def test_nothing_is_handed_on_while_paused_and_everything_after_it_in_order(road: Road) -> None:
    sending = road.sending()
    receiving = road.receiving()
    road.on_frame = lambda frame: receiving.pause() if isinstance(frame, Marker) else None
    frames: list[Frame] = [data(1), marker(1, MarkerMode.ALIGNED), data(2), marker(2, MarkerMode.ALIGNED), data(3)]
    for frame in frames:
        sending.put(frame)
    road.until(lambda: len(road.arrived) == 2)
    road.turns()
    assert road.arrived == frames[:2]
    sending.put(data(4))
    receiving.resume()
    assert road.arrived == frames[:2], "not inside resume"
    road.until(lambda: len(road.arrived) == 4)
    road.turns()
    assert road.arrived == frames[:4]
    receiving.resume()
    road.until(lambda: len(road.arrived) == 6)
    assert numbers(road.arrived[4:]) == [3, 4]


def test_a_paused_receiver_holds_up_its_sender(road: Road) -> None:
    sending = road.sending()
    receiving = road.receiving()
    receiving.pause()
    last = filled(road, sending)
    road.turns(20)
    assert sending.bytes >= 200_000
    receiving.pause()
    receiving.resume()
    receiving.resume()
    road.until(lambda: len(road.arrived) == last)
    assert numbers(road.arrived) == list(range(last))


def test_one_busy_channel_leaves_turns_to_others(road: Road) -> None:
    road.options = HostOptions()
    sending = road.sending()
    road.receiving()
    for number in range(40):
        sending.put(data(number, 100_000))
    most = before = 0
    while len(road.arrived) < 40:
        road.loop.run_once(LIMIT)
        most, before = max(most, len(road.arrived) - before), len(road.arrived)
    assert most <= 14


def test_a_sender_that_dies_inside_a_frame_is_a_broken_channel(road: Road) -> None:
    road.receiving()
    road.near.sendall(b"".join(encode(data(1), US)) + b"".join(encode(data(2), US))[:-3])
    road.near.close()
    road.until(lambda: bool(road.broken))
    assert numbers(road.arrived) == [1]
    assert road.broken == [
        "CutShort: channel clicks/0->count/1, frame at byte 36: the connection ended after 5 of 8 payload bytes"
    ]


def test_a_sender_that_closes_between_frames_without_an_end_is_a_broken_channel(road: Road) -> None:
    sending = road.sending()
    road.receiving()
    sending.put(data(1))
    road.until(lambda: len(road.arrived) == 1)
    sending.close()
    sending.close()
    road.until(lambda: bool(road.broken))
    assert road.broken == ["the sender closed it before its end"]


def test_after_the_end_both_may_go_without_a_word(road: Road) -> None:
    sending = road.sending()
    receiving = road.receiving()
    sending.put(End())
    road.until(lambda: road.arrived == [End()])
    receiving.close()
    road.turns()
    sending.close()
    road.turns()
    assert road.broken == []


def test_a_sender_may_go_after_the_end_without_a_word(road: Road) -> None:
    sending = road.sending()
    road.receiving()
    sending.put(End())
    road.until(lambda: road.arrived == [End()])
    sending.close()
    road.turns()
    assert road.broken == []


def test_a_receiver_that_goes_before_the_end_is_a_broken_channel(road: Road) -> None:
    sending = road.sending()
    receiving = road.receiving()
    sending.put(data(1))
    road.until(lambda: len(road.arrived) == 1)
    receiving.close()
    road.until(lambda: bool(road.broken))
    sending.put(data(2))
    sending.put(data(3, 100_000))
    road.turns()
    assert road.broken == ["the receiver closed it"]


def test_a_receiver_that_goes_while_much_waits_is_told_once_and_not_inside_put(road: Road) -> None:
    sending = road.sending()
    filled(road, sending)
    road.far.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    road.far.close()
    for number in range(50):
        sending.put(data(number, 10_000))
    assert road.broken == []
    road.until(lambda: bool(road.broken))
    road.turns()
    assert len(road.broken) == 1


def test_what_the_receiver_allows_comes_to_the_sender_who_may_be_waiting_for_it(road: Road) -> None:
    sending, receiving = road.sending(), road.receiving()
    assert sending.allowed == FIRST
    receiving.allow(Allowance(100, 80))
    road.until(lambda: bool(road.drained))
    assert sending.allowed == Allowance(100, 80)
    receiving.allow(Allowance(90, 10))
    receiving.allow(UNLIMITED)
    road.until(lambda: sending.allowed == UNLIMITED)
    receiving.allow(Allowance(95, 10))
    told = len(road.drained)
    road.until(lambda: sending.allowed.rows == 95)
    assert len(road.drained) == told, "to be allowed less is nothing to go on for"
    assert road.broken == []


def test_of_words_that_come_in_pieces_the_last_whole_one_counts(road: Road) -> None:
    sending = road.sending()
    writer = RecordWriter(FAR)
    words = b"".join(writer.record(struct.pack(">QQ", rows, 7)) for rows in (70, 80, 90))
    for piece in (words[:5], words[5:41], words[41:106]):
        road.far.sendall(piece)
        road.turns()
    assert sending.allowed == Allowance(80, 7)
    road.far.sendall(words[106:])
    road.until(lambda: sending.allowed == Allowance(90, 7))


def test_of_what_the_network_does_not_take_the_last_word_goes_on(road: Road) -> None:
    sending, receiving = road.sending(), road.receiving()
    road.far.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    sending._watch.reading(False)  # so that nobody takes what is said
    rows = 0
    while not receiving._unsaid:
        rows += 1
        receiving.allow(Allowance(rows, 1))
    for more in range(1, 9):
        receiving.allow(Allowance(rows + more, 1))
    assert len(receiving._unsaid) <= len(RecordWriter(FAR).record(bytes(16)))
    sending._watch.reading(True)
    road.until(lambda: sending.allowed.rows == rows + 8)


def test_an_end_that_was_read_counts_though_the_sender_went_without_hearing_what_it_was_allowed(road: Road) -> None:
    sending, receiving = road.sending(), road.receiving()
    sending._watch.reading(False)
    sending.put(data(1))
    receiving.allow(Allowance(100, 1))
    sending.put(End())
    road.until(lambda: len(road.arrived) == 2)
    sending.close()  # with words that it has not read, so the connection is reset
    road.turns()
    receiving.allow(Allowance(200, 1))
    road.turns()
    assert road.broken == []


def test_a_channel_within_a_partition_is_allowed_rows_at_once(road: Road) -> None:
    channel = road.local()
    channel.allow(Allowance(70, 10))
    assert (channel.allowed, road.drained) == (Allowance(70, 10), [])
    road.turns(1)
    assert len(road.drained) == 1


def test_frames_of_a_former_attempt_break_the_channel_and_are_not_handed_on(road: Road) -> None:
    road.receiving()
    road.near.sendall(b"".join(encode(data(1), OLDER)))
    road.until(lambda: bool(road.broken))
    assert road.arrived == []
    assert road.broken[0].startswith("FromZombie: channel clicks/0->count/1")


def test_frames_behind_the_end_break_the_channel(road: Road) -> None:
    road.receiving()
    said = Encoder(US, seals=NEAR).encode([End(), data(1)])
    road.near.sendall(b"".join(buffer for buffers, _ in said for buffer in buffers))
    road.until(lambda: bool(road.broken))
    assert road.arrived == [End()]
    assert road.broken == ["Data came behind the end"]


def test_a_marker_that_somebody_on_the_path_adds_breaks_the_channel_and_is_not_handed_on(road: Road) -> None:
    sending = road.sending()
    road.receiving()
    sending.put(data(1))
    sending.put(Watermark(5))
    road.until(lambda: len(road.arrived) == 2)
    road.near.sendall(b"".join(encode(marker(), US)) + bytes(16))
    road.until(lambda: bool(road.broken))
    assert numbers(road.arrived) == [1, "Watermark"]
    assert road.broken[0].startswith("ForgedFrame: channel clicks/0->count/1, frame at byte 80: it does not carry")
    assert road.broken[0].endswith("it was changed on the network; turn on tls")


def test_an_allowance_that_somebody_on_the_path_says_breaks_the_channel_and_allows_nothing(road: Road) -> None:
    sending, receiving = road.sending(), road.receiving()
    receiving.allow(Allowance(70, 10))
    road.until(lambda: sending.allowed == Allowance(70, 10))
    road.far.sendall(RecordWriter(NEAR).record(struct.pack(">QQ", 2**40, 2**40)))
    road.until(lambda: bool(road.broken))
    assert sending.allowed == Allowance(70, 10)
    assert road.broken[0].startswith("ForgedRecord: message 1 of 16 bytes does not carry the connection's seal")


def test_random_bytes_break_the_channel_by_name(road: Road) -> None:
    road.receiving()
    road.near.sendall(random.Random(5).randbytes(1000))
    road.until(lambda: bool(road.broken))
    assert road.arrived == []


def test_what_is_too_long_is_refused_when_it_is_put_and_the_channel_goes_on(road: Road) -> None:
    sending = road.sending()
    road.receiving()
    with pytest.raises(OverLong, match="at most 1048576"):
        sending.put(data(1, (1 << 20) + 1))
    sending.put(data(2, 1 << 20))
    road.until(lambda: numbers(road.arrived) == [2])


def test_nothing_is_told_after_the_close(road: Road) -> None:
    sending = road.sending()
    receiving = road.receiving()
    sending.put(data(1, 100_000))
    road.far.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    receiving.close()
    sending.put(data(2, 100_000))
    sending.close()
    road.turns()
    assert (road.broken, road.arrived, road.drained) == ([], [], [])


def test_a_channel_that_breaks_and_is_closed_in_the_same_turn_tells_nothing(road: Road) -> None:
    sending = road.sending()
    receiving = road.receiving()
    road.far.sendall(b"hello")
    road.near.sendall(bytes(24))
    road.loop.call_at(0, sending.close)
    road.loop.call_at(0, receiving.close)
    road.turns()
    assert road.broken == []


class Stingy(socket.socket):
    """Takes no more than the first of the frames that it is offered."""

    most = 0

    def sendmsg(self, buffers: Iterable[Buffer], *_: object) -> int:  # type: ignore[override]
        return self.send(b"".join(memoryview(buffer) for buffer in buffers)[: self.most])


def test_a_frame_of_which_the_kernel_has_taken_nothing_is_overtaken_even_if_it_was_offered(road: Road) -> None:
    stingy = Stingy(fileno=road.near.detach())
    stingy.most = sum(len(part) for part in encode(data(1), US))
    road.near = road.stack.enter_context(stingy)
    sending = road.sending()
    sending.put(data(1))
    sending.put(data(2))
    road.loop.run_once(0)
    assert numbers(road.sent) == [1]
    assert numbers(sending.put(marker())) == [2]
    road.receiving()
    road.until(lambda: len(road.arrived) == 3)
    assert numbers(road.arrived) == [1, "Marker", 2]


def test_what_the_receiver_of_a_frame_raises_comes_out_of_the_loop_and_does_not_look_like_a_broken_channel(
    road: Road,
) -> None:
    sending = road.sending()
    road.receiving()

    def fail(frame: Frame) -> None:
        raise ConnectionResetError("of the user's database")

    road.on_frame = fail
    sending.put(data(1))
    with pytest.raises(ConnectionResetError, match="of the user"):
        road.until(lambda: False)
    assert road.broken == []


def test_a_local_channel_hands_on_in_order_by_the_loop_and_encodes_nothing(road: Road) -> None:
    channel = road.local()
    frames: list[Frame] = [Data(["rows", 1], 10), marker(1, MarkerMode.ALIGNED), Watermark(3), Data({2}, 5), End()]
    for frame in frames:
        channel.put(frame)
    assert road.arrived == []
    assert channel.bytes == 15
    road.until(lambda: len(road.arrived) == 5)
    assert road.arrived == road.sent == frames
    assert channel.bytes == 0


def test_on_a_paused_local_channel_frames_wait_and_are_overtaken(road: Road) -> None:
    channel = road.local()
    channel.pause()
    channel.put(data(1))
    channel.put(data(2))
    assert numbers(channel.put(marker())) == [1, 2]
    road.turns()
    assert road.arrived == []
    channel.resume()
    assert road.arrived == []
    road.until(lambda: len(road.arrived) == 3)
    assert numbers(road.arrived) == ["Marker", 1, 2]


def test_a_local_channel_that_is_paused_by_a_frame_stops_right_behind_it(road: Road) -> None:
    channel = road.local()
    road.on_frame = lambda frame: channel.pause() if isinstance(frame, Marker) else None
    for frame in (data(1), marker(1, MarkerMode.ALIGNED), data(2)):
        channel.put(frame)
    road.turns()
    assert numbers(road.arrived) == [1, "Marker"]
    channel.resume()
    road.turns()
    assert numbers(road.arrived) == [1, "Marker", 2]


def test_a_local_channel_says_once_that_it_has_drained_and_leaves_turns_to_others(road: Road) -> None:
    channel = road.local()
    for number in range(10):
        channel.put(data(number, 300_000))
    road.loop.run_once(0)
    assert len(road.arrived) == 4
    road.until(lambda: len(road.arrived) == 10)
    road.turns()
    assert road.drained == [0]


def test_a_closed_local_channel_hands_on_nothing(road: Road) -> None:
    channel = road.local()
    channel.put(data(1, 100_000))
    channel.close()
    road.turns()
    assert road.arrived == []
    assert road.drained == []


def test_a_closed_local_channel_in_which_frames_wait_lets_the_loop_rest(road: Road) -> None:
    channel = road.local()
    channel.put(data(1))
    channel.close()
    road.turns()
    fired: list[bool] = []
    road.loop.call_at(road.loop.now() + 0.02, lambda: fired.append(True))
    turns = 0
    while not fired:
        road.loop.run_once(LIMIT)
        turns += 1
    assert turns <= 3
