"""The order in which a stage takes what comes where frames are acknowledged: as it arrives, some frames at a time.

Invariant: a cut waits for nothing, and stands anywhere. What was taken is worked off, and all that follows from it has
gone out, before more is taken than belongs together.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final

from snapshot.cut.acks import Anchors
from snapshot.cut.aligner import AllEnded, ChannelEnded, Cut, InFlight, Process, Triggered
from snapshot.cut.frames import Data, End, Frame, Watermark
from snapshot.host.flow.inlets import Dropped, Flush, Gating, Instruction, Said
from snapshot.host.partition.acks import StageAcks, parted
from snapshot.ids import ChannelId, Copy
from statebackend.ids import Epoch, Uid

_TOGETHER: Final = 64
"""So many frames are worked on together at most: what goes out meanwhile is taken to follow from all of them."""
_NOTHING: Final[Anchors | None] = None


class AckInlet:
    """The inputs of one stage. `of` returns what a stage owes; about `most` bytes may be queued."""

    def __init__(
        self,
        channels: Collection[ChannelId],
        most: int,
        of: Callable[[Uid], StageAcks],
    ) -> None:
        self._channels = frozenset(channels)
        self._stage = of(next(iter(channels)).target) if channels else None
        self._most = most
        self._queue: deque[tuple[ChannelId, Anchors | None, Frame]] = deque()
        self._bytes = 0
        self._taken = 0  # frames that are worked on together
        self._ended: set[ChannelId] = set()
        self._is_paused = False
        self._paused: frozenset[Copy] = frozenset()

    def connect(self, copies: Iterable[Copy]) -> None:
        """Expect these ways of channels; a channel that has ended stays so, whoever has its sender's role."""

    def join(self, copies: Iterable[Copy], epoch: Epoch) -> None:
        """Refuse, as no process waits for a marker."""
        raise AssertionError(f"there are no markers, and {list(copies)} would join at {epoch}")

    def go_on(self, ended: Iterable[ChannelId]) -> None:
        """Refuse, as no other process has the same inputs."""
        raise AssertionError(f"no other process has these inputs, with {list(ended)} at their end")

    @property
    def ended(self) -> Collection[ChannelId]:
        """Return the channels whose end was handed on."""
        return self._ended

    def drop(self, copy: Copy) -> None:
        """Take what has come on it all the same: its receiver acknowledges to nobody."""
        self._paused -= {copy}

    def arrived(self, copy: Copy, frame: Frame) -> Sequence[Instruction]:
        """Take a frame that has come in; of a channel that has ended it is only acknowledged, as all of it was."""
        assert self._stage is not None
        anchors = _NOTHING
        if isinstance(frame, Data):
            anchors, frame = parted(frame)
        if copy.channel not in self._ended:
            self._queue.append((copy.channel, anchors, frame))
            self._bytes += frame.size if isinstance(frame, Data) else 0
            return ()
        return self._drop(copy.channel, anchors, frame)

    def _drop(self, channel: ChannelId, anchors: Anchors | None, frame: Frame) -> Sequence[Instruction]:
        """Acknowledge what came after an end: another process with the same role sends again what is kept here."""
        if anchors is None or self._stage is None:
            return ()
        self._stage.had(anchors)
        return (Dropped(channel, frame.rows),) if isinstance(frame, Data) else ()

    def told(self, said: Said) -> Sequence[Instruction]:
        """Cut at a trigger."""
        if isinstance(said, Triggered):
            return (Cut(said.marker), InFlight(said.marker.epoch, ()))
        return ()

    def proceed(self) -> Sequence[Instruction]:
        """Go on to the next frame, or let all out that follows from those that were taken."""
        stage = self._stage
        assert stage is not None
        if stage.is_at_work and (not self._queue or self._taken >= _TOGETHER):
            self._taken = 0
            return (Flush(stage.worked),)
        channel, anchors, frame = self._queue.popleft()
        if channel in self._ended:  # it came before the end of another process with the same role
            self._bytes -= frame.size if isinstance(frame, Data) else 0
            return self._drop(channel, anchors, frame)
        if isinstance(frame, End):
            self._ended.add(channel)
            ended = ChannelEnded(channel)
            return (ended, AllEnded()) if len(self._ended) == len(self._channels) else (ended,)
        assert isinstance(frame, Data | Watermark), f"{frame} came on {channel}, where there are no markers"
        if anchors is not None and isinstance(frame, Data):
            self._bytes -= frame.size
            self._taken += 1
            stage.took(anchors)
        return (Process(channel, frame),)

    @property
    def idle(self) -> bool:
        """True if `proceed` would do nothing now."""
        return not self._queue and (self._stage is None or not self._stage.is_at_work)

    @property
    def has_more_rows(self) -> bool:
        """True if `proceed` would hand on rows that belong to those before."""
        return bool(self._queue) and isinstance(self._queue[0][2], Data) and self._taken < _TOGETHER

    @property
    def round(self) -> int:
        """Return 0, as there are no rounds."""
        return 0

    @property
    def cuts_anywhere(self) -> bool:
        """Return True."""
        return True

    @property
    def aligning(self) -> bool:
        """Return False, as a cut waits for no marker."""
        return False

    def unreached(self, epoch: Epoch) -> Collection[ChannelId]:
        """Return no channel, as none has markers."""
        del epoch
        return ()

    def gating(self, copies: Iterable[Copy]) -> Gating:
        """Read from no channel while too much is queued, also from none that is there only since then."""
        self._is_paused = self._bytes >= (self._most // 2 if self._is_paused else self._most)
        before, self._paused = self._paused, frozenset(copies if self._is_paused else ())
        if self._paused == before:
            return Gating((), ())
        pause = tuple(copy for copy in copies if copy in self._paused and copy not in before)
        return Gating(pause, tuple(copy for copy in copies if copy in before and copy not in self._paused))

    @property
    def queued_bytes(self) -> int:
        """Return how many bytes of rows have come and were not handed on."""
        return self._bytes

    @property
    def held_back(self) -> Collection[ChannelId]:
        """Return no channel."""
        return ()
