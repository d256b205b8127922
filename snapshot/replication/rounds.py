"""The order in which a stage takes what comes on its channels: whole rounds, and markers between two of them.

Invariant: the rounds that come out, and the markers between them, are a function of what the channels contain; neither
the frames into which rows were cut nor the order in which channels were heard changes anything.

Each sender closes rounds with numbers that rise between two markers, and may leave numbers out: a boundary closes all
rounds up to its own. As soon as every channel that has not ended has something at its head, a round or a marker, it is
known what comes next: the channels' rounds of the smallest number; or the cut, when all heads are its marker. A channel
whose head is the marker is held back while others have rounds left in front of theirs; so behind a marker numbers may
come again.

All of that has been Borealis' "SUnion" (Balazinska et al., "Fault-Tolerance in the Borealis Distributed Stream
Processing System", TODS 2008), whose buckets are of the users' timestamps; these are cut by the sources.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, assert_never

from snapshot.cut.frames import Boundary, Data, End, Frame, Marker, Watermark
from snapshot.ids import ChannelId
from statebackend.errors import JobError

_MANY_ROUNDS: Final = 64
"""So many closed rounds of a channel that sends little may wait."""
_NONE: Final = -1


class OutOfRound(JobError):
    """A channel went on after its end, or closed a round that it had closed before: its sender is broken."""


class MarkersDiffer(JobError):
    """Channels stand at the markers of different epochs: a sender has left one out, and waiting would not end."""


@dataclass(frozen=True, slots=True)
class Share:
    """All that a channel has in one round, in its order; `ended` if nothing follows it."""

    channel: ChannelId
    data: tuple[Data, ...]
    watermarks: tuple[Watermark, ...]
    ended: bool


@dataclass(frozen=True, slots=True)
class Round:
    """Everything that is to be done next, and then closed with a boundary of this number on every output.

    The shares are in the order in which the channels were given.
    """

    number: int
    shares: tuple[Share, ...]


@dataclass(frozen=True, slots=True)
class MarkerReached:
    """Every channel that has not ended stands at this marker, between two rounds."""

    marker: Marker
    channels: tuple[ChannelId, ...]


@dataclass(frozen=True, slots=True)
class _Closed:
    number: int
    share: Share
    size: int


@dataclass(slots=True)
class _Line:
    """A channel: the round that is open, and what waits in front of it."""

    channel: ChannelId
    data: list[Data] = field(default_factory=list)
    watermarks: list[Watermark] = field(default_factory=list)
    size: int = 0
    waiting: deque[_Closed | Marker] = field(default_factory=deque)
    last: int = _NONE
    """The number of the last round that was closed, since the last marker."""
    ended: bool = False

    def close(self, number: int, *, ended: bool) -> None:
        if number <= self.last:
            raise OutOfRound(f"channel {self.channel} closed round {number} after round {self.last}")
        share = Share(self.channel, tuple(self.data), tuple(self.watermarks), ended)
        self.waiting.append(_Closed(number, share, self.size))
        self.data, self.watermarks, self.size = [], [], 0
        self.last, self.ended = number, ended


class Rounds:
    """The channels of one stage in one attempt, given in the order in which their rows are taken within a round.

    The caller owes: frames of a channel in their order, and that what `take` returns is done before it asks again.
    """

    def __init__(self, channels: Sequence[ChannelId]) -> None:
        self._lines = {channel: _Line(channel) for channel in channels}
        self._live = dict.fromkeys(channels)
        self._owing = set(channels)
        self._bytes = 0

    def without(self, channel: ChannelId) -> None:
        """Expect nothing of a channel that had ended before."""
        self._lines[channel].ended = True
        del self._live[channel]
        self._owing.discard(channel)

    @property
    def ended(self) -> Sequence[ChannelId]:
        """Return the channels of which nothing more comes."""
        return [channel for channel in self._lines if channel not in self._live]

    def arrived(self, channel: ChannelId, frame: Frame) -> None:
        """Take a frame that has come in on a channel; raise `OutOfRound` if it cannot come there."""
        line = self._lines[channel]
        if line.ended:
            raise OutOfRound(f"channel {channel} delivered {type(frame).__name__} after its end")
        match frame:
            case Data():
                line.data.append(frame)
                line.size += frame.size
                self._bytes += frame.size
                return
            case Watermark():
                line.watermarks.append(frame)
                return
            case Boundary(number):
                line.close(number, ended=False)
            case End(number):
                line.close(number, ended=True)
            case Marker():
                if line.data or line.watermarks:
                    raise OutOfRound(f"channel {channel} delivered the marker of {frame.epoch} inside a round")
                line.waiting.append(frame)
                line.last = _NONE
            case _:
                assert_never(frame)
        self._owing.discard(channel)

    def take(self) -> Round | MarkerReached | None:
        """Return what comes next; None while that is not known, or nothing comes any more."""
        if not self.is_known:
            return None
        heads = {channel: self._lines[channel].waiting[0] for channel in self._live}
        rounds = [head.number for head in heads.values() if isinstance(head, _Closed)]
        if not rounds:
            return self._marker()
        number = min(rounds)
        shares = []
        for channel, head in heads.items():
            if isinstance(head, _Closed) and head.number == number:
                self._next(channel)
                self._bytes -= head.size
                shares.append(head.share)
                if head.share.ended:
                    del self._live[channel]
                    self._owing.discard(channel)
        return Round(number, tuple(shares))

    @property
    def is_known(self) -> bool:
        """True if it is known what comes next."""
        return bool(self._live) and not self._owing

    def owes(self, channel: ChannelId) -> bool:
        """True if nothing can come next before more has come on this channel: so it has to be read."""
        return channel in self._owing

    def is_wanted(self, channel: ChannelId, most: int) -> bool:
        """True if the channel is to be read, where `most` bytes may wait in all channels together."""
        if channel in self._owing:
            return True
        return self._bytes < most and len(self._lines[channel].waiting) < _MANY_ROUNDS

    @property
    def is_over(self) -> bool:
        """True if every channel has ended, and all that came on them was taken."""
        return not self._live

    @property
    def bytes(self) -> int:
        """Return how many bytes of data have arrived and were not taken yet."""
        return self._bytes

    @property
    def at_marker(self) -> Sequence[ChannelId]:
        """Return the channels that a marker holds back."""
        return [c for c in self._live if (w := self._lines[c].waiting) and isinstance(w[0], Marker)]

    def _marker(self) -> MarkerReached:
        markers = {channel: self._next(channel) for channel in self._live}
        found = {marker for marker in markers.values() if isinstance(marker, Marker)}
        if len({marker.epoch for marker in found}) > 1:
            stand = ", ".join(f"{channel} at {m.epoch}" for channel, m in markers.items() if isinstance(m, Marker))
            raise MarkersDiffer(f"channels stand at the markers of different epochs: {stand}; restart the attempt")
        return MarkerReached(found.pop(), tuple(self._live))

    def _next(self, channel: ChannelId) -> _Closed | Marker:
        waiting = self._lines[channel].waiting
        head = waiting.popleft()
        if not waiting:
            self._owing.add(channel)
        return head
