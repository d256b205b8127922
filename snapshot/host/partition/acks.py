"""The acknowledgements of one partition in one attempt: what its stages sent, and what they owe to those that sent.

Invariant: what a stage with a source or with state has sent, it can send again until it is acknowledged. Event time and
the end of a stage with state leave it only after all that was sent before them is acknowledged, so that what is sent
again is not late. No rule is decided here: see `snapshot.cut.acks`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from itertools import takewhile
from typing import Final

from snapshot.cut.acks import (
    NO_TIME,
    Acker,
    Anchors,
    Basket,
    HeldAcks,
    Ids,
    MalformedAcks,
    Pending,
    Readings,
    Root,
    anchors_bytes,
    parse_anchors,
    parse_words,
    words_bytes,
)
from snapshot.cut.frames import Boundary, Data, Frame, Marker
from snapshot.host.flow.allowances import UNLIMITED, Allowance
from snapshot.host.net.event_loop import EventLoop, Timer
from snapshot.host.partition.router import Outlet, SendingEnd
from snapshot.ids import ChannelId, Member, numbered_from
from snapshot.program.plan import Plan, Stage
from snapshot.tree.frozen_json import JsonLike
from statebackend import means
from statebackend.ids import Epoch, Incarnation, Partition, Uid

_ACKS: Final = Uid("#acks")
"""Both ends of the channels on which acknowledgements travel; no operator can have this name."""
_NO_ROOM: Final = Allowance(0, 0)
_LOOKS: Final = 8
"""Looks for overdue frames, in the time after which a frame is sent again."""
_AT_ONCE: Final = 1 << 20
"""So many bytes, about, are sent again at once on a channel because their time is over."""


class Anchored:
    """Rows with their anchors, on a channel within a process."""

    __slots__ = ("anchors", "data")

    def __init__(self, anchors: Anchors, data: Data) -> None:
        self.anchors = anchors
        self.data = data


def with_anchors(data: Data, anchors: Anchors, *, local: bool) -> Data:
    """Return a frame as it travels."""
    if local:
        return Data(Anchored(anchors, data), data.size, data.rows)
    assert isinstance(data.payload, bytes | bytearray | memoryview)
    payload = anchors_bytes(anchors) + bytes(data.payload)
    return Data(payload, len(payload), data.rows)


def parted(data: Data) -> tuple[Anchors, Data]:
    """Return the anchors and the rows of a frame that has come; raise `MalformedAcks` if it has none."""
    if isinstance(data.payload, Anchored):
        return data.payload.anchors, data.payload.data
    if not isinstance(data.payload, bytes | bytearray | memoryview):
        raise MalformedAcks(f"a payload of type {type(data.payload).__name__} has no anchors")
    anchors, rows = parse_anchors(memoryview(data.payload))
    return anchors, Data(rows, len(rows), data.rows)


class StageAcks:
    """One stage of the partition: what it has sent, and what it owes."""

    def __init__(self, stage: Stage, index: int, acks: PartitionAcks, timeout: float, max_pending: int | None) -> None:
        self.uid = stage.uid
        self.readings: Readings[JsonLike] = Readings()
        self._acks = acks
        self._index = index
        self._is_source = stage.source is not None
        self._keeps = stage.source is not None or stage.operator is not None
        self._has_sinks = bool(stage.sinks)
        self._holds = bool(stage.sinks) or stage.operator is not None
        self._max_pending = max_pending
        self._basket = Basket()
        self._held = HeldAcks()
        self._acker: Acker[tuple[AckOutlet, Data] | None] = Acker(timeout)
        self._later: OrderedDict[tuple[int, AckOutlet, type[Frame]], Frame] = OrderedDict()
        """Frames that wait until all before their place is acknowledged, in order; on a channel one of each kind."""
        self._read_from = 0  # the place after all that was sent and not read: a predecessor's, or a cut's

    # --- what comes in ------------------------------------------------------------------------------------------------

    def took(self, anchors: Anchors) -> None:
        """Take note that a frame is worked on."""
        self._basket.took(anchors)

    def had(self, anchors: Anchors) -> None:
        """Acknowledge a frame of which a complete epoch has all that follows from it."""
        self._acks.owe(dict.fromkeys(anchors.roots, anchors.id))

    @property
    def is_at_work(self) -> bool:
        """True if frames were taken whose results may not all have gone out."""
        return bool(self._basket)

    def worked(self) -> None:
        """Take note that all that follows from the frames that were taken has gone out, or is in the state."""
        values = self._basket.empty()
        if self._holds:
            self._held.add(values)
        else:
            self._acks.owe(values)

    def cut(self, epoch: Epoch) -> None:
        """Take note that the stage was cut."""
        self._held.cut(epoch)

    def completed(self, epoch: Epoch) -> None:
        """Acknowledge what the epoch has, as it is complete."""
        self._acks.owe(self._held.completed(epoch))

    # --- what goes out ------------------------------------------------------------------------------------------------

    def give(self, outlet: AckOutlet, data: Data) -> None:
        """Send rows, as a root of their own unless they follow from frames whose senders can send them again.

        Those that a source has not read are what the partition had sent when it was cut.
        """
        if self._keeps or not self._basket:
            root, id = self._acks.new_root(self._index), self._acks.new_id()
            pending = self._acker.sent((outlet, data), data.rows, root, id, outlet.time)
            if self._is_source and not self.readings.is_open:
                self._read_from = self._acker.next
            pending.went_out = outlet.send(data, Anchors(id, (root,)))
        else:
            id = self._acks.new_id()
            anchors = Anchors(id, self._basket.roots)
            self._basket.gave(id)
            outlet.send(data, anchors)

    def give_again(self, outlet: AckOutlet, data: Data) -> None:
        """Send what the partition had sent when it was cut."""
        self.give(outlet, data)
        self._acker.resent += data.rows

    def in_order(self, outlet: AckOutlet, frame: Frame) -> None:
        """Let a watermark or an end go out when all before it is acknowledged: a source waits for what it has read."""
        awaited = self._read_from if self._is_source else self._acker.next
        if not self._later and self._acker.oldest >= awaited:
            outlet.say(frame)
        else:
            self._later[self._acker.next, outlet, type(frame)] = frame

    def kept(self, outlet: AckOutlet) -> tuple[Data, ...]:
        """Return what a cut has of frames on a channel that are not acknowledged; positions say what it has read."""
        some = takewhile(lambda pending: not self._is_source or pending.place < self._read_from, self._acker.pending)
        contents = (pending.content for pending in some)
        return tuple(content[1] for content in contents if content is not None and content[0] is outlet)

    @property
    def holds(self) -> bool:
        """True if the stage acknowledges what it takes when an epoch is complete, and hands no root on."""
        return self._holds

    @property
    def is_full(self) -> bool:
        """True if so much is not acknowledged that nothing more is to be sent."""
        return self._max_pending is not None and self._acker.rows >= self._max_pending

    @property
    def waits(self) -> bool:
        """True if something is not acknowledged that a source has read."""
        return bool(self.readings)

    @property
    def is_source(self) -> bool:
        """True if the stage begins with a source."""
        return self._is_source

    @property
    def sent(self) -> int:
        """Return the place of the next frame that is sent."""
        return self._acker.next

    @property
    def acknowledged(self) -> int:
        """Return the place of the oldest frame that is not acknowledged."""
        return self._acker.oldest

    @property
    def resent(self) -> int:
        """Return how many rows were sent again."""
        return self._acker.resent

    def gone_out(self) -> None:
        """Take note that all has gone out that follows from what the source has read."""
        if self.readings.is_open:
            if self._has_sinks:  # the rows that its own sinks have are safe with the next epoch
                root, id = self._acks.new_root(self._index), self._acks.new_id()
                self._acker.sent(None, 0, root, id, NO_TIME)
                self._held.add({root: id})
            self.readings.close(self._acker.next)
            self.readings.acked(self._acker.oldest)

    def acked(self, number: int, value: int) -> None:
        """Take an acknowledgement; let out what waited for it alone."""
        if not self._acker.acked(number, value):
            return
        oldest = self._acker.oldest
        self.readings.acked(oldest)
        while self._later and next(iter(self._later))[0] <= oldest:
            (_, outlet, _), frame = self._later.popitem(last=False)
            outlet.say(frame)

    # --- what is sent again -------------------------------------------------------------------------------------------

    def send_overdue(self, now: float) -> None:
        """Send again what was not acknowledged in time, if what was sent before has left, and as far as there is room.

        A receiver that is only slow would else be given more and more.
        """
        overdue = [(pending, content[0]) for pending in self._acker.overdue(now) if (content := pending.content)]
        free = {outlet for _, outlet in overdue if not outlet.bytes}
        for pending, outlet in overdue:
            if outlet in free and outlet.takes_more:
                pending.times += 1
                self._send_again(pending)

    def send_all(self, to: AckOutlet) -> None:
        """Send again what is not acknowledged on a channel, in order, as its receiver is another process now."""
        for pending in self._acker.pending:
            if pending.content is not None and pending.content[0] is to:
                pending.times = 0
                self._send_again(pending)

    def _send_again(self, pending: Pending[tuple[AckOutlet, Data] | None]) -> None:
        assert pending.content is not None, "it waits for an epoch of this process, and cannot be lost"
        outlet, data = pending.content
        root, id = self._acks.new_root(self._index), self._acks.new_id()
        self._acker.sent_again(pending, root, id, outlet.time)
        pending.went_out = outlet.send(data, Anchors(id, (root,))) or pending.went_out


class AckOutlet:
    """The way to one receiver: the process that has its role now, and the next one when that is lost.

    A receiver that `holds` what it takes loses it only with its process, and the next one is sent all that is not
    acknowledged. One that hands roots on knows nothing of what gets lost after it: a clock finds that out.
    """

    def __init__(self, channel: ChannelId, ends: Sequence[SendingEnd], stage: StageAcks, *, holds: bool) -> None:
        self.id = channel
        """The channel's id."""
        self._stage = stage
        self._holds = holds
        self._end = ends[0] if ends else None
        self._local = channel.sender == channel.receiver
        self._put = 0  # rows, as the stage counts them
        self._sent = 0  # rows, as the receiver does
        self._said: dict[type[Frame], Frame] = {}
        self._without = 0  # bytes that were to be sent while no process was there

    @property
    def bytes(self) -> int:
        """Return how many bytes wait to be taken, or for a process that takes them."""
        return self._without if self._end is None else self._end.bytes

    @property
    def time(self) -> float:
        """Return when a root is sent that goes out now."""
        return NO_TIME if self._holds else means.monotonic()

    @property
    def takes_more(self) -> bool:
        """True if there is a process that takes something again."""
        end = self._end
        return end is not None and end.bytes < _AT_ONCE and self._sent < end.allowed.rows

    @property
    def allowed(self) -> Allowance:
        """Return how many rows may be put: none while too many are not acknowledged."""
        if self._stage.is_full and not self._stage.is_source:
            return _NO_ROOM
        if self._end is None or self._end.allowed.rows == UNLIMITED.rows:
            return UNLIMITED
        allowed = self._end.allowed
        return Allowance(allowed.rows + self._put - self._sent, allowed.window)

    def put(self, frame: Frame) -> tuple[Data, ...]:
        """Send a frame; a marker goes no further, and finds what is not acknowledged."""
        match frame:
            case Data():
                self._put += frame.rows
                self._stage.give(self, frame)
            case Marker():
                return self._stage.kept(self)
            case Boundary():
                pass
            case _:
                self._stage.in_order(self, frame)
        return ()

    def put_again(self, data: Data) -> None:
        """Send what the partition had sent when it was cut: no router has counted it."""
        self._stage.give_again(self, data)

    def send(self, data: Data, anchors: Anchors) -> bool:
        """Send rows to the process that is there, if there is one; return True if so."""
        if self._end is None:
            self._without += data.size
            return False
        self._sent += data.rows
        self._end.put(with_anchors(data, anchors, local=self._local))
        return True

    def say(self, frame: Frame) -> None:
        """Send a watermark or an end, now and to each process that has the role later."""
        self._said[type(frame)] = frame
        if self._end is not None:
            self._end.put(frame)

    def drop(self, receiver: Member) -> None:
        """Send nothing more to a process that is gone."""
        if self._end is not None and self._end.copy.receiver == receiver:
            self._end = None

    def join(self, end: SendingEnd) -> None:
        """Send to this process from now on: first what is not acknowledged, then what was said last."""
        self._end, self._sent, self._without = end, 0, 0
        self._stage.send_all(self)
        for frame in self._said.values():
            end.put(frame)


class PartitionAcks:
    """All stages of a partition. `poke` is called when an acknowledgement lets a stage go on.

    After `timeout` seconds a frame is sent again; a stage may have `max_pending` rows that are not acknowledged.
    """

    def __init__(
        self,
        incarnation: Incarnation,
        own: Member,
        parallelism: int,
        plan: Plan,
        loop: EventLoop,
        timeout: float,
        max_pending: int | None,
    ) -> None:
        self._own = own
        self._loop = loop
        self._timeout = timeout
        self._stages = [StageAcks(stage, index, self, timeout, max_pending) for index, stage in enumerate(plan.stages)]
        self._of = {stage.uid: stage for stage in self._stages}
        others = [Partition(other) for other in range(parallelism) if other != own.partition]
        self.beside = [
            *(ChannelId(_ACKS, _ACKS, own.partition, other) for other in others),
            *(ChannelId(_ACKS, _ACKS, other, own.partition) for other in others),
        ]
        """The channels of acknowledgements that begin or end here."""
        self._ends: dict[Partition, SendingEnd] = {}
        self._owed: dict[Root, int] = {}
        self._sent = numbered_from(own.replica) * len(self._stages)
        seed = blake2b(f"{incarnation} {own}".encode(), digest_size=8).digest()
        self._ids = Ids(int.from_bytes(seed, "big"))
        self._poke: Callable[[], object] = lambda: None
        self._timer: Timer | None = None

    def of(self, uid: Uid) -> StageAcks:
        """Return the acknowledgements of a stage."""
        return self._of[uid]

    @property
    def resent(self) -> Mapping[Uid, int]:
        """Return how many rows each stage has sent again."""
        return {uid: stage.resent for uid, stage in self._of.items()}

    def new_id(self) -> int:
        """Return the id of a frame."""
        return self._ids.next()

    def new_root(self, index: int) -> Root:
        """Return a root of the stage with this index; its number says which stage it is of."""
        self._sent += len(self._stages)
        return Root(self._own, self._sent + index)

    def outlet(self, channel: ChannelId, ends: Sequence[SendingEnd]) -> Outlet | None:
        """Return the way to a channel's receiver; None if it is one of acknowledgements."""
        if channel.source == _ACKS:
            for end in ends:
                self._ends[channel.receiver] = end
            return None
        return AckOutlet(channel, ends, self._of[channel.source], holds=self._of[channel.target].holds)

    def owns(self, channel: ChannelId) -> bool:
        """True if acknowledgements travel on the channel."""
        return channel.source == _ACKS

    # --- acknowledgements on their way --------------------------------------------------------------------------------

    def begin(self, poke: Callable[[], object]) -> None:
        """Look from now on whether there is something to be sent again."""
        self._poke = poke
        self._look()

    def _look(self) -> None:
        now = means.monotonic()
        for stage in self._stages:
            stage.send_overdue(now)
        self._timer = self._loop.call_at(now + self._timeout / _LOOKS, self._look)

    def owe(self, values: Mapping[Root, int]) -> None:
        """Acknowledge to the owners of roots, at the next `tell`."""
        for root, value in values.items():
            self._owed[root] = self._owed.get(root, 0) ^ value

    def tell(self) -> None:
        """Send what is owed; what this process owes to itself counts at once."""
        while self._owed:
            owed, self._owed = self._owed, {}
            words: dict[Member, dict[int, int]] = {}
            for root, value in owed.items():
                if root.owner == self._own:
                    self._acked(root.number, value)
                else:
                    words.setdefault(root.owner, {})[root.number] = value
            for owner, some in words.items():
                end = self._ends.get(owner.partition)
                if end is not None and end.copy.receiver == owner:  # else its roots are gone with it
                    data = words_bytes(some)
                    end.put(Data(data, len(data)))

    def arrived(self, frame: Frame) -> None:
        """Take what other processes acknowledge."""
        if isinstance(frame, Data):
            assert isinstance(frame.payload, bytes | bytearray | memoryview)
            for number, value in parse_words(memoryview(frame.payload)):
                self._acked(number, value)

    def _acked(self, number: int, value: int) -> None:
        self._stages[number % len(self._stages)].acked(number, value)
        self._poke()

    def completed(self, epoch: Epoch) -> None:
        """Acknowledge what a complete epoch has."""
        for stage in self._stages:
            stage.completed(epoch)
        self.tell()

    def left(self, member: Member) -> None:
        """Tell nothing more to a process that is gone: its roots are gone with it."""
        end = self._ends.get(member.partition)
        if end is not None and end.copy.receiver == member:
            del self._ends[member.partition]

    def joined(self, sending: Mapping[ChannelId, SendingEnd]) -> None:
        """Acknowledge to this process from now on what is of it."""
        for channel, end in sending.items():
            if self.owns(channel):
                self._ends[channel.receiver] = end

    def close(self) -> None:
        """Send nothing again any more."""
        if self._timer is not None:
            self._timer.cancel()
