"""The two ends of a channel between partitions, on a socket of its own; and a channel within a partition, without one.

Invariant: frames come out in the order in which they went in, but for unaligned markers, which overtake what
waits in front of them as `Outbox` says; what the kernel has begun to take is not overtaken. Callbacks are called by the
loop, never inside `put`, `pause`, `resume` or `close`, and none after `close`.

Plain sockets, and not Arrow Flight: no marker could overtake what waits in its queues, whose size is not ours to bound,
its writes block a thread, and it takes a fifth to a half more CPU time (`make bench ONLY=channels`).
"""

from __future__ import annotations

import socket
import struct
from collections import deque
from collections.abc import Callable
from typing import Final

from snapshot.cut.frames import Data, End, Frame
from snapshot.cut.outbox import Outbox
from snapshot.cut.seals import ForgedRecord, RecordReader, RecordWriter, UnusableRecord
from snapshot.cut.wire import Buffer, Decoder, Encoder, ForgedFrame, OverLong, WireError
from snapshot.host.flow.allowances import FIRST, Allowance
from snapshot.host.net.event_loop import EventLoop
from snapshot.host.net.handshake_io import Proved
from snapshot.host.net.liveness import break_if_silent
from snapshot.host.protocol.options import HostOptions
from snapshot.ids import Copy
from statebackend import means
from statebackend.ids import Incarnation

OnFrame = Callable[[Copy, Frame], object]
Tap = Callable[[Frame], object]

_EAGER: Final = 64 << 10
"""From so much on it is not worth waiting for more to send with it."""
_AT_ONCE: Final = 512 << 10
"""The number of bytes that are offered to the kernel in one call, about."""
_MOST_BUFFERS: Final = 128
_ALLOWANCE: Final = struct.Struct(">QQ")
_PER_TURN: Final = 1 << 20
"""The number of bytes that a channel hands on in one turn of the loop, about, before others have their turn."""


class _Waiting:
    """The frames that wait on a channel, and who is told when they have become few."""

    def __init__(self, loop: EventLoop, ordered: bool, options: HostOptions, on_drained: Callable[[], object]) -> None:
        self.outbox = Outbox(ordered=ordered)
        self.begun = 0  # bytes of a frame that has left the outbox, and not been taken whole
        self.closed = False
        self._loop = loop
        self._options = options
        self._low = options.channel_buffer // 2
        self._on_drained = on_drained

    @property
    def bytes(self) -> int:
        return self.outbox.bytes + self.begun

    def put(self, frame: Frame) -> tuple[Data, ...]:
        most = self._options.max_frame
        if isinstance(frame, Data) and frame.size > most:
            raise OverLong(f"data of {frame.size} bytes cannot be sent; a frame has at most {most}")
        return self.outbox.put(frame)

    def sank(self, before: int) -> None:
        if before > self._low >= self.bytes:
            self._loop.call_soon(self._tell)

    def _tell(self) -> None:
        if not self.closed:
            self._on_drained()


class SendingChannel:
    """The sending end of a connection, which is this object's from now on.

    `on_drained` is called when `bytes` has sunk to half of `options.channel_buffer` or less, after it was more, and
    when the receiver has allowed more rows; `on_broken(reason)` once, if the receiver is gone. It may go when all up to
    `End` was sent.
    `tap` sees each frame when the kernel takes the first byte of it, in the order in which they travel.
    """

    def __init__(
        self,
        loop: EventLoop,
        proved: Proved,
        copy: Copy,
        incarnation: Incarnation,
        on_drained: Callable[[], object],
        on_broken: Callable[[str], object],
        *,
        ordered: bool,
        options: HostOptions,
        tap: Tap | None = None,
    ) -> None:
        self.copy, self.id = copy, copy.channel
        self._loop = loop
        self._sock = sock = proved.sock
        self._on_broken = on_broken
        self._tap = tap
        self._waiting = _Waiting(loop, ordered, options, on_drained)
        self.allowed = FIRST
        """The allowance of the receiver. The caller of `put` must keep count."""
        self._encoder = Encoder(incarnation, options.max_frame, proved.seals)
        self._said = RecordReader(proved.seals, _ALLOWANCE.size)
        self._on_drained = on_drained
        self._rest: list[Buffer] = []  # of the frame that the kernel has begun to take
        self._full = False
        self._flush_is_due = False
        self.was_forged = False
        """True if it broke because an attacker on the path changed its bytes."""
        self._ended = False
        self._open = True
        _prepare(sock, socket.SO_SNDBUF, options)
        self._watch = loop.watch(sock, self._hear, self._flush)
        self._watch.reading(True)

    @property
    def bytes(self) -> int:
        """Return how many bytes wait for the kernel; `put` sets no bound, so the caller stops when it is too much."""
        return self._waiting.bytes

    def put(self, frame: Frame) -> tuple[Data, ...]:
        """Queue a frame, and return the data that it overtook; raise `OverLong` if it exceeds `options.max_frame`.

        The payload must not change until it is sent. Little is sent at the end of the loop's turn, much at once.
        """
        overtaken = self._waiting.put(frame)
        if not self._full and self._open:
            if self._waiting.bytes >= _EAGER:
                self._flush()
            elif not self._flush_is_due:
                self._flush_is_due = True
                self._loop.call_soon(self._flush)
        return overtaken

    def reroute(self, through: Callable[[means.socket], means.socket]) -> None:
        """Switch to the socket that `through` returns for ours; do nothing if the connection is closed."""
        if self._open:
            self._sock = self._watch.reroute(through)

    def close(self) -> None:
        """Close the connection and drop what waits; may be called twice."""
        self._waiting.closed = True
        self._drop()

    def _flush(self) -> None:
        """Send until the kernel takes no more."""
        self._flush_is_due = False
        waiting = self._waiting
        before = waiting.bytes
        try:
            while self._open and (self._rest or len(waiting.outbox)):
                buffers, lengths = self._offer()
                sent = self._sock.sendmsg(buffers)
                self._took(sent, buffers, lengths)
                if sent < sum(lengths):
                    self._full = True
                    break
            else:
                self._full = False
        except BlockingIOError:
            self._full = True
        except OSError as error:
            self._fail(f"the connection broke: {error}")
            return
        if self._open:
            self._watch.writing(self._full)
            waiting.sank(before)

    def _offer(self) -> tuple[list[Buffer], list[int]]:
        """Return buffers for the kernel, and the length of what was begun and of each frame behind it."""
        buffers = list(self._rest)
        lengths = [self._waiting.begun]
        size = lengths[0]
        for encoded, length in self._encoder.encode(self._waiting.outbox):
            buffers += encoded
            lengths.append(length)
            size += length
            if size >= _AT_ONCE or len(buffers) >= _MOST_BUFFERS:
                break
        return buffers, lengths

    def _took(self, sent: int, buffers: list[Buffer], lengths: list[int]) -> None:
        """Take the frames out of the outbox that the kernel has begun to take, now that it has taken `sent` bytes."""
        end = lengths[0]
        for length in lengths[1:]:
            if sent <= end:
                break
            frame = self._waiting.outbox.take()
            self._encoder.left(frame, length)
            self._ended = isinstance(frame, End)
            if self._tap is not None:
                self._tap(frame)
            end += length
        self._waiting.begun = max(0, end - sent)
        self._rest = _between(buffers, sent, end) if sent < end else []

    def _hear(self) -> None:
        """Read the allowances, the only thing that a receiver says; the last one counts."""
        try:
            said = self._sock.recv(4096)
        except BlockingIOError:
            return
        except OSError as error:
            self._fail(f"the connection broke: {error}")
            return
        if not said:
            self._fail("the receiver closed it")
            return
        before = self.allowed
        try:
            for body in self._said.feed(said):
                self.allowed = Allowance(*_ALLOWANCE.unpack(body))
        except (UnusableRecord, struct.error) as error:
            self.was_forged = isinstance(error, ForgedRecord)
            self._fail(f"{type(error).__name__}: {error}")
            return
        if self.allowed.rows > before.rows:
            self._on_drained()

    def _fail(self, reason: str) -> None:
        if self._open:
            self._drop()
            if not self._ended or self._rest:
                self._loop.call_soon(lambda: None if self._waiting.closed else self._on_broken(reason))

    def _drop(self) -> None:
        self._open = False
        self._watch.close()
        self._sock.close()


class ReceivingChannel:
    """The receiving end of a connection, which is this object's from now on.

    `on_frame` gets each frame, while the channel is not paused; `on_broken(reason)` is called once, if the connection
    ends before `End`, if its bytes are refused, or if the sender's machine has not reacted for
    `options.channel_timeout`, while it is not paused. Behind `End` only the end of the connection is expected.
    """

    def __init__(
        self,
        loop: EventLoop,
        proved: Proved,
        copy: Copy,
        incarnation: Incarnation,
        on_frame: OnFrame,
        on_broken: Callable[[str], object],
        *,
        options: HostOptions,
    ) -> None:
        self.copy, self.id = copy, copy.channel
        self._loop = loop
        self._sock = sock = proved.sock
        self._on_frame = on_frame
        self._on_broken = on_broken
        self._decoder = Decoder(str(copy), incarnation, options.max_frame, proved.seals)
        self._frames: deque[Frame] = deque()  # that came with the one at which we were paused
        self._writer = RecordWriter(proved.seals)
        self._unsaid = b""
        self._allowance: Allowance | None = None  # to be said
        self._paused = False
        self._resumed = False
        self.was_forged = False
        """True if it broke because an attacker on the path changed its bytes."""
        self._ended = False
        self._open = True
        self._closed = False
        _prepare(sock, socket.SO_RCVBUF, options)
        break_if_silent(sock, options.channel_timeout)
        self._watch = loop.watch(sock, self._read, self._say)
        self._watch.reading(True)

    def pause(self) -> None:
        """Call `on_frame` no more and read no more, so that the sender is held up in the end."""
        self._paused = True
        self._watch.reading(False)

    def resume(self) -> None:
        """Go on, first with frames that were read together with the last one."""
        self._paused = False
        if self._frames:
            if not self._resumed:
                self._resumed = True
                self._loop.call_soon(self._go_on)
        elif self._open:
            self._watch.reading(True)

    def allow(self, allowance: Allowance) -> None:
        """Allow the sender this much from now on; do nothing when it has ended."""
        if self._open and not self._ended:
            self._allowance = allowance
            self._say()

    def _say(self) -> None:
        try:
            while self._unsaid or self._allowance is not None:
                if self._allowance is not None and not self._unsaid:
                    said, self._allowance = self._allowance, None
                    self._unsaid = self._writer.record(_ALLOWANCE.pack(said.rows, said.window))
                self._unsaid = self._unsaid[self._sock.send(self._unsaid) :]
        except BlockingIOError:
            pass
        except OSError as error:
            self._fail(f"the connection broke: {error}")
            return
        self._watch.writing(bool(self._unsaid))

    def reroute(self, through: Callable[[means.socket], means.socket]) -> None:
        """Switch to the socket that `through` returns for ours; do nothing if the connection is closed."""
        if self._open:
            self._sock = self._watch.reroute(through)

    def close(self) -> None:
        """Close the connection; may be called twice."""
        self._closed = True
        self._drop()

    def _go_on(self) -> None:
        self._resumed = False
        self._hand_on()
        if self._open and not self._paused:
            self._watch.reading(True)

    def _hand_on(self) -> None:
        while self._frames and not self._paused and not self._closed:
            frame = self._frames.popleft()
            if self._ended:
                self._fail(f"{type(frame).__name__} came behind the end")
                return
            self._ended = isinstance(frame, End)
            self._on_frame(self.copy, frame)

    def _read(self) -> None:
        left, size, room = _PER_TURN, len(self._loop.scratch), len(self._loop.scratch)
        while left > 0 and size == room and self._open and not self._paused:
            size = self._receive()
            left -= size
            self._hand_on()

    def _receive(self) -> int:
        """Read once, and take the whole frames that came; return how many bytes were read."""
        try:
            size = self._sock.recv_into(self._loop.scratch)
            if size:
                self._frames.extend(self._decoder.feed(self._loop.scratch[:size]))
            else:
                self._finish()
        except BlockingIOError:
            return 0
        except OSError as error:
            if self._ended:  # the sender has gone without having read what it was allowed
                self._drop()
            else:
                self._fail(f"the connection broke: {error}")
            return 0
        except WireError as error:
            self.was_forged = isinstance(error, ForgedFrame)
            self._fail(f"{type(error).__name__}: {error}")
            return 0
        return size

    def _finish(self) -> None:
        """End the channel after the sender closed it; all frames were handed on, as otherwise nothing would be read."""
        self._decoder.close()
        if self._ended:
            self._drop()
        else:
            self._fail("the sender closed it before its end")

    def _fail(self, reason: str) -> None:
        if self._open:
            self._drop()
            self._loop.call_soon(lambda: None if self._closed else self._on_broken(reason))

    def _drop(self) -> None:
        self._open = False
        self._watch.close()
        self._sock.close()


class LocalChannel:
    """A channel from a partition to itself, both ends of it. Payloads may be anything; nothing is encoded.

    `on_drained`, `tap` and what `put` returns are as for a `SendingChannel`, `on_frame` as for a `ReceivingChannel`.
    """

    def __init__(
        self,
        loop: EventLoop,
        copy: Copy,
        on_frame: OnFrame,
        on_drained: Callable[[], object],
        *,
        ordered: bool,
        options: HostOptions,
        tap: Tap | None = None,
    ) -> None:
        self.copy, self.id = copy, copy.channel
        self.was_forged = False
        self._loop = loop
        self._on_frame = on_frame
        self._tap = tap
        self.allowed = FIRST
        """As for a `SendingChannel`."""
        self._on_drained = on_drained
        self._waiting = _Waiting(loop, ordered, options, on_drained)
        self._paused = False
        self._is_due = False

    @property
    def bytes(self) -> int:
        """Return how many bytes wait to be handed on; `put` sets no bound, so the caller stops when it is too much."""
        return self._waiting.bytes

    def put(self, frame: Frame) -> tuple[Data, ...]:
        """Queue a frame, and return the data that it overtook."""
        overtaken = self._waiting.put(frame)
        self._soon()
        return overtaken

    def pause(self) -> None:
        """Call `on_frame` no more: frames wait, and can be overtaken."""
        self._paused = True

    def resume(self) -> None:
        """Go on."""
        self._paused = False
        self._soon()

    def allow(self, allowance: Allowance) -> None:
        """Allow the sending end this much from now on."""
        more = allowance.rows > self.allowed.rows
        self.allowed = allowance
        if more:
            self._loop.call_soon(lambda: None if self._waiting.closed else self._on_drained())

    def close(self) -> None:
        """Drop what waits; may be called twice."""
        self._waiting.closed = True

    def _soon(self) -> None:
        waiting = self._waiting
        if len(waiting.outbox) and not self._is_due and not self._paused and not waiting.closed:
            self._is_due = True
            self._loop.call_soon(self._hand_on)

    def _hand_on(self) -> None:
        self._is_due = False
        waiting = self._waiting
        left = _PER_TURN
        while len(waiting.outbox) and left > 0 and not self._paused and not waiting.closed:
            before = waiting.bytes
            frame = waiting.outbox.take()
            left -= max(1, before - waiting.bytes)
            waiting.sank(before)
            if self._tap is not None:
                self._tap(frame)
            self._on_frame(self.copy, frame)
        self._soon()


def _prepare(sock: means.socket, buffer: int, options: HostOptions) -> None:
    """Keep the kernel's buffer small: a marker cannot overtake the bytes in it, and its memory is counted nowhere."""
    sock.setblocking(False)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, buffer, options.socket_buffer)


def _between(buffers: list[Buffer], start: int, end: int) -> list[Buffer]:
    """Return the bytes from offset `start` to `end`, where a buffer ends."""
    result: list[Buffer] = []
    for buffer in buffers:
        if start >= end:
            break
        size = memoryview(buffer).nbytes
        if start < size:
            result.append(memoryview(buffer).cast("B")[start:])
        start, end = max(0, start - size), end - size
    return result
