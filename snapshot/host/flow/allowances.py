"""The number of rows that senders may have under way to a stage: as many as it works off in a fraction of a second.

Invariant: what a channel is allowed is a number of rows from its beginning on, which counts what has been
processed and so many more; a channel with nothing under way may always send. So a marker that waits behind rows waits
for about as long as they take at the pace of the last ones, however slow they are; and a stage for which the buffers in
bytes are the tighter bound says so once, and then nothing.

It is Flink's flow control by credits with its "buffer debloating", in rows.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from snapshot.host.flow.pace import Cost
from snapshot.ids import ChannelId

_NO_END: Final = 2**63 - 1

_SECONDS: Final = 0.25
"""For so long a stage has something to do with all that may be under way to it."""
_QUICK: Final = 50e-6
_SECONDS_OF_QUICK: Final = 1.0
"""If rows take no more than 50 us each, so many may be under way that the stage has something to do for longer: it
takes many of them to make a batch worth its cost, and while another partition writes files or waits for a core, senders
that go on to all partitions would else stand still.
"""
_SAMPLE: Final = 0.02
"""Its pace is looked at when it has worked for so long, or has processed half of what may be under way."""
_PLENTY: Final = 1 << 16
"""A channel that could be allowed so many rows is not limited."""
_WHILE_OPENING: Final = 512
"""The rows that each sender may have under way while the stage's state is being opened, so that neither it nor its
other receivers must wait for that. It is little, as the stage's pace may be unknown."""
_WINDOWS_WHILE_OPENING: Final = 4
"""So many windows of the last attempt may be under way meanwhile: about what a second of work is."""
_PART: Final = 4
"""A sender is told when it may send a quarter of its window more than it knows of, and waits for that rather than send
fewer rows at once.
"""


@dataclass(frozen=True, slots=True)
class Allowance:
    """The number of rows that a sender may send on a channel."""

    rows: int
    """So many, counted from the first one of the channel."""
    window: int
    """So many may be under way."""

    def room(self, put: int) -> int:
        """Return how many more rows may be put after `put` rows; 0 if it is better to wait for more room."""
        left = self.rows - put
        return left if left * _PART >= self.window else 0


UNLIMITED: Final = Allowance(_NO_END, 0)
FIRST: Final = Allowance(64, 64)
"""The allowance of a sender that has not heard anything yet."""


class Allowances:
    """Those of one stage for its channels. It is told what is processed and how long that took, and says what to tell
    whom.
    """

    def __init__(self, channels: Collection[ChannelId]) -> None:
        self._processed = dict.fromkeys(channels, 0)
        self._told = dict.fromkeys(channels, FIRST.rows)
        self._touched: set[ChannelId] = set()
        self._window = self._window_told = FIRST.window
        self._rows = 0
        self._seconds = 0.0
        self._cost = Cost(_SECONDS)

    @property
    def window(self) -> int:
        """Return how many rows each sender may have under way; 0 while the stage's pace is not known."""
        return self._window if self._cost.per_row else 0

    @property
    def taken(self) -> Mapping[ChannelId, int]:
        """Return how many rows of each channel were processed."""
        return dict(self._processed)

    def go_on(self, taken: Mapping[ChannelId, int]) -> None:
        """Begin where another process is that has processed so many rows."""
        self._processed.update(taken)
        self._told = {channel: rows + FIRST.rows for channel, rows in self._processed.items()}

    def told(self, channel: ChannelId) -> Allowance:
        """Return what the senders of a channel were told last."""
        rows = self._told[channel]
        return UNLIMITED if rows == _NO_END else Allowance(rows, self._window_told)

    def opening(self, before: int = 0) -> None:
        """Let senders go on while the state is being opened and nothing is processed; the last attempt's `window` was
        `before`, if that is known.
        """
        self._window = min(before * _WINDOWS_WHILE_OPENING, _NO_END) or _WHILE_OPENING

    def processed(self, channel: ChannelId, rows: int) -> None:
        """Count rows of this channel as processed."""
        self._processed[channel] += rows
        self._rows += rows
        self._touched.add(channel)

    def begin_anew(self, channel: ChannelId) -> None:
        """Count a channel's rows from now on: another process sends on it."""
        self._processed[channel], self._told[channel] = 0, FIRST.rows
        self._touched.add(channel)

    def worked(self, seconds: float) -> None:
        """Add time in which the stage was busy, with these rows, with timers, or waiting for room."""
        self._seconds += seconds
        if self._rows and (self._seconds >= _SAMPLE or self._rows * 2 >= self._window):
            self._cost.took(self._rows, self._seconds)
            self._rows, self._seconds = 0, 0.0
            self._window = self._wanted()

    def news(self) -> Mapping[ChannelId, Allowance]:
        """Return the new allowances that senders have to be told, by channel."""
        changed = not self._window_told <= 2 * self._window <= 4 * self._window_told
        if not changed and not self._touched:
            return {}
        if changed:
            self._window_told = self._window
        found: dict[ChannelId, Allowance] = {}
        for channel in self._told if changed else sorted(self._touched):
            endless = self._window == _NO_END
            allowed = UNLIMITED if endless else Allowance(self._processed[channel] + self._window, self._window)
            more = allowed.rows - self._told[channel]
            if changed or more < 0 or (more and more * _PART >= self._window):
                found[channel] = allowed
                self._told[channel] = allowed.rows
        self._touched.clear()
        return found

    def _wanted(self) -> int:
        per_row = self._cost.per_row
        seconds = _SECONDS_OF_QUICK if per_row <= _QUICK else _SECONDS
        rows = int(seconds / per_row / len(self._processed)) if per_row else _PLENTY
        if rows >= _PLENTY or (self._window == _NO_END and rows >= _PLENTY // 2):
            return _NO_END
        return max(1, rows)
