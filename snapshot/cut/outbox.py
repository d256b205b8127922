"""The frames that a subtask has sent on one channel and the network has not taken; an unaligned marker overtakes here.

Invariant: frames leave in the order in which they were put, but for an unaligned marker, which goes ahead
of data and watermarks, never of another marker, and reports the data that it overtook: its channel state.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from snapshot.cut.frames import Data, End, Frame, Marker, MarkerMode


class Outbox:
    """The sender's queue of one channel.

    `ordered` channels (broadcast, forward, rebalance) are never overtaken, as their state could not be split at a
    rescale. On a restore, what was overtaken is replayed behind what the receiver recorded of the same channel: it
    was sent later. Overtaken watermarks are not recorded; a restored subtask announces its watermark first of all.
    """

    def __init__(self, *, ordered: bool = False) -> None:
        self._ordered = ordered
        self._frames: deque[Frame] = deque()
        self._bytes = 0
        self._ended = False

    def __len__(self) -> int:
        return len(self._frames)

    def __iter__(self) -> Iterator[Frame]:
        """Iterate over the waiting frames, in the order in which they would be taken now."""
        return iter(self._frames)

    @property
    def bytes(self) -> int:
        """Return how many bytes of data wait for the network; the host stops producing when this grows too large."""
        return self._bytes

    def put(self, frame: Frame) -> tuple[Data, ...]:
        """Queue a frame; return the data that it overtook, which is none unless it is an unaligned marker.

        A marker after the end is dropped: to the receiver, the end stands for all markers to come.
        """
        if self._ended:
            if isinstance(frame, Marker):
                return ()
            raise ValueError(f"{frame} cannot be sent: the channel has ended")
        self._ended = isinstance(frame, End)
        if isinstance(frame, Marker) and frame.mode is MarkerMode.UNALIGNED and not self._ordered:
            return self._overtake(frame)
        if isinstance(frame, Data):
            self._bytes += frame.size
        self._frames.append(frame)
        return ()

    def take(self) -> Frame:
        """Remove and return the next frame for the network; raise `IndexError` if there is none."""
        frame = self._frames.popleft()
        if isinstance(frame, Data):
            self._bytes -= frame.size
        return frame

    def _overtake(self, marker: Marker) -> tuple[Data, ...]:
        overtaken: deque[Frame] = deque()
        while self._frames and not isinstance(self._frames[-1], Marker):
            overtaken.appendleft(self._frames.pop())
        self._frames.append(marker)
        self._frames.extend(overtaken)
        return tuple(frame for frame in overtaken if isinstance(frame, Data))
