"""Time to live: when a value that is not refreshed ends, in event or in processing time.

Invariant: the payload of a state with a time to live begins with the expiry (8 bytes, milliseconds), and what
has expired is invisible from that moment on, whether or not it was removed already.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Final, Literal

from statebackend.durations import Duration, milliseconds
from statebackend.entries import BrokenEntry
from statebackend.states.key_context import NO_WATERMARK, KeyContext

EXPIRY: Final = struct.Struct(">q")
"""The stored form of an expiry."""

NEVER: Final = (1 << 63) - 1
"""The expiry of what was written before there was a watermark: it counts only once it is written again."""

TimeKind = Literal["event", "processing"]
"""The clock that counts: the operator's watermark, or the clock of the host that drives it."""


@dataclass(frozen=True, slots=True)
class Ttl:
    """The time for which values of a state live: `ValueState(str, ttl=Ttl("1h"))`.

    `time` says whether the watermark counts ("event") or the clock ("processing"); `refresh` whether writing alone
    begins a value's time anew, or reading as well.
    """

    lives: Duration = field(compare=False)
    time: TimeKind = "processing"
    refresh: Literal["write", "read_and_write"] = "write"
    milliseconds: int = field(init=False, repr=False)
    """The same in milliseconds."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "milliseconds", milliseconds(self.lives, "ttl"))
        if not 0 < self.milliseconds < NEVER:
            raise ValueError(f"a time to live of {self.milliseconds} ms is none: expected at least 1")
        if self.time not in ("event", "processing") or self.refresh not in ("write", "read_and_write"):
            raise ValueError(
                f"a time to live in {self.time!r} time, refreshed by {self.refresh!r}: expected 'event' or "
                f"'processing', and 'write' or 'read_and_write'"
            )

    @property
    def refreshed_by_reading(self) -> bool:
        """True if reading a value begins its time anew."""
        return self.refresh == "read_and_write"

    def now(self, context: KeyContext) -> int:
        """Return the present time, of the kind that counts."""
        return context.watermark if self.time == "event" else context.processing_time

    def expiry(self, context: KeyContext) -> int:
        """Return when a value that is written now expires."""
        now = self.now(context)
        return NEVER if now == NO_WATERMARK else min(now + self.milliseconds, NEVER)


def expiry_of(payload: bytes) -> int:
    """Return the expiry at the beginning of a payload with a time to live; raise `BrokenEntry` if it is cut short."""
    try:
        return int(EXPIRY.unpack_from(payload)[0])
    except struct.error:
        raise BrokenEntry(f"a payload has no expiry: {payload[:100].hex()}") from None


def alive(payload: bytes, now: int) -> bool:
    """True if a payload of a state with a time to live is still visible at this time."""
    return expiry_of(payload) > now
