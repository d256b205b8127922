"""The event time of a subtask: the minimum over its inputs, and never going back.

Invariant: whenever a subtask's watermark moves, it is at most what every input that is then neither idle nor
ended has announced. So no input that keeps its own promise can make a row late here, unless it has been idle. Event
time is at its end when it is on all inputs, and not before.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from snapshot.cut.frames import EARLIEST, LATEST, Watermark
from snapshot.ids import ChannelId


class Watermarks:
    """The watermarks of a subtask's inputs. What the subtask has announced belongs into the cut, also the end of all
    input; `going_on` says from where it starts when it is restored.

    A restored subtask announces `current` to its outputs before anything else; after a rescale it starts from the
    minimum over the subtasks whose state it takes.
    """

    def __init__(self, channels: Collection[ChannelId], restored: Watermark | None = None) -> None:
        self._inputs: dict[ChannelId, Watermark | None] = dict.fromkeys(channels)
        self._current = restored

    @property
    def current(self) -> Watermark | None:
        """Return the last watermark announced; None before the first."""
        return self._current

    def advance(self, channel: ChannelId, watermark: Watermark) -> Watermark | None:
        """Take the watermark that an input announced; return the subtask's new one, or None if that stays the same."""
        self._inputs[channel] = watermark
        return self._combine()

    def end(self, channel: ChannelId) -> Watermark | None:
        """Remove an input that has ended, so that it no longer holds the others back."""
        del self._inputs[channel]
        return self._combine()

    def rest(self, channel: ChannelId) -> Watermark | None:
        """Let an input that has nothing more to say in this run hold back nothing; its event time is not at its end."""
        last = self._inputs[channel]
        return self.advance(channel, Watermark(EARLIEST if last is None else last.timestamp, idle=True))

    def _combine(self) -> Watermark | None:
        if not self._inputs or any(watermark is None for watermark in self._inputs.values()):
            return None
        known = [watermark for watermark in self._inputs.values() if watermark is not None]
        # An input whose time is at its end has ended; the others may still have rows, also those that are idle.
        known = [watermark for watermark in known if watermark.timestamp < LATEST] or known
        combined = earliest_active(known, self._current)
        if combined == self._current:
            return None
        self._current = combined
        return combined


def earliest_active(known: Sequence[Watermark], current: Watermark | None) -> Watermark:
    """Return the watermark that holds for all of these, at least one, and is not before the `current` one."""
    active = [watermark.timestamp for watermark in known if not watermark.idle]
    # When all are idle, time may move to the latest of them: nothing older can come from any.
    timestamp = min(active) if active else max(watermark.timestamp for watermark in known)
    if current is not None:
        timestamp = max(timestamp, current.timestamp)
    return Watermark(timestamp, idle=not active)


def going_on(restored: Watermark | None) -> Watermark | None:
    """Return the watermark to go on from after a cut with this one; None if event time was at its end there.

    It begins anew then: rows after an end, as from a source that was drained, must not be late.
    """
    return None if restored is None or restored.timestamp == LATEST else restored
