"""The inlet of a stage whose partition takes its input in rounds.

Invariant: what it hands on, and in which order, is a function of what the channels contain. So every marker is cut at
and sent on, also that of an epoch which was given up meanwhile: when that is heard is not in the channels.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Sequence

from snapshot.cut.aligner import Aligner, Arrived, Proceed, Triggered
from snapshot.cut.frames import Data, End, Frame
from snapshot.host.flow.inlets import Gating, Instruction, LastRows, RoundBegan, RoundOver, Said
from snapshot.ids import ChannelId, Copy
from snapshot.replication.first_copy import FirstCopy
from snapshot.replication.positions import elements
from snapshot.replication.rounds import MarkerReached, Round, Rounds, Share
from statebackend.ids import Epoch

_PROCEED = Proceed()


class RoundInlet:
    """Hands on one round after the other: the rows of each input, then event times and ends, then that it is over.

    A channel may come in several copies, of replicas of its sender: what one of them has brought is dropped when it
    comes from another one, without being decoded.
    About `most` bytes may be queued, and as much more as the rounds have that are awaited.
    """

    def __init__(
        self,
        channels: Collection[ChannelId],
        ordered: Iterable[ChannelId],
        restored: Epoch,
        most: int,
        last_rows: LastRows,
    ) -> None:
        del ordered  # no marker overtakes anything
        self._first: dict[ChannelId, FirstCopy[Copy]] = {channel: FirstCopy((), restored) for channel in channels}
        self._restored = restored
        self._last_rows = last_rows
        self._rounds = Rounds(tuple(channels))
        self._aligner = Aligner(channels, restored=restored)
        self._most = most
        self._paused: set[Copy] = set()
        self._todo: deque[tuple[ChannelId, Frame]] = deque()
        self._bytes = 0
        self._number: int | None = None
        self._last: ChannelId | None = None
        self.round = 0
        """The number of the round that is being handed on, or was last."""

    def connect(self, copies: Iterable[Copy]) -> None:
        """Expect these copies, from the beginning of their channels on."""
        for copy in copies:
            self._first[copy.channel].join(copy, self._restored)

    def join(self, copies: Iterable[Copy], epoch: Epoch) -> None:
        """Expect these copies as well, from this epoch's marker on, to which all channels have just come."""
        for copy in copies:
            self._first[copy.channel].join(copy, epoch)

    def go_on(self, ended: Iterable[ChannelId]) -> None:
        """Expect nothing of these channels, which had ended before."""
        for channel in ended:
            self._rounds.without(channel)
            self._aligner.handle(Arrived(channel, End()))
            self._aligner.handle(_PROCEED)

    @property
    def ended(self) -> Collection[ChannelId]:
        """Return the channels whose end was handed on."""
        return self._rounds.ended

    def drop(self, copy: Copy) -> None:
        """Expect nothing more from a copy, whose sender is gone."""
        self._first[copy.channel].drop(copy)
        self._paused.discard(copy)

    def arrived(self, copy: Copy, frame: Frame) -> Sequence[Instruction]:
        """Take of a frame that has come in what no other copy has brought."""
        new = self._first[copy.channel].take(copy, frame)
        if new:
            if isinstance(frame, Data) and new < elements(frame):
                frame = self._last_rows(copy.channel, frame, new)
            self._rounds.arrived(copy.channel, frame)
        return ()

    def told(self, said: Said) -> Sequence[Instruction]:
        """Take what was said of an epoch: only if nothing comes in any more does it matter when it was said."""
        return self._aligner.handle(said) if isinstance(said, Triggered) else ()

    def proceed(self) -> Sequence[Instruction]:
        """Go on to the next frame, or close the round."""
        if not self._todo and self._number is None:
            return self._take()
        if self._todo:
            channel, frame = self._todo.popleft()
            self._last = channel
            if isinstance(frame, Data):
                self._bytes -= frame.size
            return [*self._aligner.handle(Arrived(channel, frame)), *self._aligner.handle(_PROCEED)]
        number, self._number, self._last = self._number, None, None
        return () if number is None else (RoundOver(number),)

    def _take(self) -> Sequence[Instruction]:
        match self._rounds.take():
            case Round(number, shares):
                self.round = self._number = number
                self._todo.extend(_in_order(shares))
                self._bytes = sum(data.size for share in shares for data in share.data)
                return (RoundBegan(),)
            case MarkerReached(marker, channels):
                self._todo.extend((channel, marker) for channel in channels)
            case None:
                pass
        return ()

    @property
    def idle(self) -> bool:
        """True if the next round is not complete."""
        return not self._todo and self._number is None and not self._rounds.is_known

    @property
    def has_more_rows(self) -> bool:
        """True if more rows of the same input follow in the same round."""
        if not self._todo or self._last is None:
            return False
        (channel, frame), last = self._todo[0], self._last
        return isinstance(frame, Data) and (channel.source, channel.port) == (last.source, last.port)

    @property
    def cuts_anywhere(self) -> bool:
        """Return False: a cut comes between two rounds."""
        return False

    @property
    def aligning(self) -> bool:
        """Return False: a marker is handed on when it has come on all channels."""
        return False

    def unreached(self, epoch: Epoch) -> Collection[ChannelId]:
        """Return the channels whose marker is awaited, if the epoch is not cut yet."""
        return frozenset(self._aligner.unreached(epoch)) - frozenset(self._rounds.at_marker)

    def gating(self, copies: Iterable[Copy]) -> Gating:
        """Read no more while too much is queued, but from channels that owe what is to come next."""
        pause, resume = [], []
        for copy in copies:
            channel, paused = copy.channel, copy in self._paused
            most = self._most // 2 if paused else self._most
            wanted = self._rounds.is_wanted(channel, most - self._bytes)
            if wanted and paused:
                self._paused.discard(copy)
                resume.append(copy)
            elif not wanted and not paused:
                self._paused.add(copy)
                pause.append(copy)
        return Gating(pause, resume)

    @property
    def queued_bytes(self) -> int:
        """Return how many bytes of rows have come and were not handed on."""
        return self._rounds.bytes + self._bytes

    @property
    def held_back(self) -> Collection[ChannelId]:
        """Return the channels that stand at a marker which others have not come to."""
        return self._rounds.at_marker


def _in_order(shares: Sequence[Share]) -> Iterable[tuple[ChannelId, Frame]]:
    for share in shares:
        yield from ((share.channel, data) for data in share.data)
    for share in shares:
        yield from ((share.channel, watermark) for watermark in share.watermarks)
        if share.ended:
            yield share.channel, End()
