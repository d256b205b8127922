"""The frames that travel on a channel: data, marker, watermark, boundary and end, all in the same FIFO stream.

Invariant: frames are immutable, and nothing but a frame ever travels on a channel, so that a marker
divides a channel's data exactly into what was sent before the cut and what was sent after it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final, TypeAlias

from statebackend.ids import Epoch

EARLIEST: Final = -(2**63)
"""The event time of which nothing is known yet: earlier than every timestamp."""

LATEST: Final = 2**63 - 1
"""The event time at the end of all input: every timer and window is due."""


class MarkerMode(Enum):
    """The treatment of a channel whose marker has arrived before the others'."""

    ALIGNED = "aligned"
    """Hold it back until the last marker is there."""
    UNALIGNED = "unaligned"
    """Cut at the first marker; what the markers overtake becomes channel state."""
    AT_LEAST_ONCE = "at-least-once"
    """Never hold back: after a restore some data counts twice, none is lost."""


@dataclass(frozen=True, slots=True)
class Data:
    """User data. The protocols look at `size` alone; the payload is opaque to them.

    The payload is bytes on a real channel (there `size` is their number) and anything at all in a simulation.
    """

    payload: object
    size: int
    rows: int = 0
    """The number of rows in it, so that it need not be decoded to count them."""


@dataclass(frozen=True, slots=True)
class Marker:
    """Divides what belongs to the epoch's cut from what does not. A savepoint's marker is always aligned.

    If it `admits`, the processes that wait to join a partition get their copies of all channels from here on.
    """

    epoch: Epoch
    mode: MarkerMode
    savepoint: bool = False
    admits: bool = False

    def __post_init__(self) -> None:
        if self.savepoint and self.mode is not MarkerMode.ALIGNED:
            raise ValueError(
                f"the marker of savepoint {self.epoch} says {self.mode.value}; a savepoint is always aligned"
            )


@dataclass(frozen=True, slots=True)
class Watermark:
    """No data with an earlier event time follows, except late data.

    `timestamp` is in milliseconds. An `idle` channel does not hold back its receiver's watermark, until
    the next watermark on it that is not idle.
    """

    timestamp: int
    idle: bool = False


@dataclass(frozen=True, slots=True)
class Boundary:
    """Closes the sender's round of this number, and all before it; see `snapshot.replication.rounds`."""

    round: int


@dataclass(frozen=True, slots=True)
class End:
    """The last frame of a channel. An ended channel takes part in no further alignment and no minimum.

    Where there are rounds it closes the sender's last one; elsewhere `round` is 0.
    """

    round: int = 0


Frame: TypeAlias = Data | Marker | Watermark | Boundary | End
