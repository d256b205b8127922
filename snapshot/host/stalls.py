"""What makes no progress in a partition, and what it waits for: told once for each time, and nothing is done about it.

What always holds: it is told from what was seen, at two looks that are so far apart; whoever has nothing to do does not
stall.
"""

from __future__ import annotations

import pickle
import struct
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, cast

from snapshot.host.event_loop import EventLoop
from snapshot.host.messages import StageFigures, Stalled
from statebackend.ids import Epoch, Incarnation, Partition, Uid

_HEAD: Final = struct.Struct(">cI")
_WORD: Final = b"!"
_MOST: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class PendingEpoch:
    """An epoch that a partition has heard of at this time and not acknowledged, and for what of whom it waits."""

    epoch: Epoch
    since: float
    waits_for: Mapping[Uid, str]


@dataclass(slots=True)
class _Seen:
    figures: StageFigures
    progress_at: float
    told: bool = False


class StallWatch:
    """Looks at one partition in one attempt. `after` is in seconds."""

    def __init__(self, incarnation: Incarnation, partition: Partition, after: float) -> None:
        self._incarnation = incarnation
        self._partition = partition
        self._after = after
        self._stages: dict[Uid, _Seen] = {}
        self._told: set[Epoch] = set()

    def look(self, now: float, stages: Mapping[Uid, StageFigures], pending: Sequence[PendingEpoch]) -> list[Stalled]:
        """What has made no progress for so long, and was not told of yet."""
        found = [stalled for uid, figures in stages.items() if (stalled := self._stage(now, uid, figures))]
        self._told &= {each.epoch for each in pending}
        for each in pending:
            if now - each.since >= self._after and each.epoch not in self._told:
                self._told.add(each.epoch)
                found += [self._stalled(uid, now - each.since, why, each.epoch) for uid, why in each.waits_for.items()]
        return found

    def _stage(self, now: float, uid: Uid, figures: StageFigures) -> Stalled | None:
        seen = self._stages.get(uid)
        if seen is None or _has_moved(seen.figures, figures):
            self._stages[uid] = _Seen(figures, now)
            return None
        before, seen.figures = seen.figures, figures
        why = _what_holds_up(before, figures)
        if not why:
            seen.progress_at, seen.told = now, False
        if seen.told or not why or now - seen.progress_at < self._after:
            return None
        seen.told = True
        return self._stalled(uid, now - seen.progress_at, why)

    def _stalled(self, uid: Uid, seconds: float, why: str, epoch: Epoch | None = None) -> Stalled:
        return Stalled(self._incarnation, self._partition, uid, seconds, why, epoch)


def _has_moved(before: StageFigures, now: StageFigures) -> bool:
    return (before.rows_in, before.rows_out, before.watermark) != (now.rows_in, now.rows_out, now.watermark)


def _what_holds_up(before: StageFigures, now: StageFigures) -> str:
    """Why a stage that has not moved could not; nothing if it had nothing to do."""
    if now.held_back:
        return f"markers: an alignment holds back {now.held_back} of its channels"
    if now.blocked_ms > before.blocked_ms:
        return "room: those to whom it sends take nothing"
    if now.waits_for:
        return now.waits_for
    return f"nothing that is known: it has {now.queued_bytes} bytes of input" if now.queued_bytes else ""


class LoopWatch:
    """Whether one call holds up a loop; asked from another thread than the loop's. `whose` says for whom it works."""

    def __init__(
        self, loop: EventLoop, thread: int, whose: Callable[[], tuple[Incarnation, Partition, Uid | None] | None]
    ) -> None:
        self._loop = loop
        self._thread = thread
        self._whose = whose
        self._told = 0.0
        self.after = 60.0
        """In seconds."""

    def look(self) -> Stalled | None:
        """What has not returned for so long, with where it is, once for each time."""
        since = self._loop.busy_since
        if since is None or since == self._told or time.monotonic() - since < self.after:
            return None
        whose, frame = self._whose(), sys._current_frames().get(self._thread)
        if whose is None or frame is None:
            return None
        self._told = since
        stack = "".join(traceback.format_stack(frame))
        return Stalled(*whose, time.monotonic() - since, "one call to return; see its stack", None, stack)


def word_of(stalled: Stalled) -> bytes:
    """What is said of it between two beats."""
    data = pickle.dumps(stalled)
    return _HEAD.pack(_WORD, len(data)) + data


class Words:
    """Takes apart what comes with beats. Nothing is unpickled that did not come from a peer who knows the secret."""

    def __init__(self) -> None:
        self._arrived = bytearray()

    def feed(self, data: bytes) -> list[Stalled]:
        """What was said; `ValueError` if it makes no sense."""
        self._arrived += data
        found: list[Stalled] = []
        while start := self._arrived.find(_WORD) + 1:
            del self._arrived[: start - 1]
            if len(self._arrived) < _HEAD.size:
                return found
            length = cast("int", _HEAD.unpack_from(self._arrived)[1])
            if length > _MOST:
                raise ValueError(f"a word of {length} bytes between beats")
            if len(self._arrived) < _HEAD.size + length:
                return found
            word = pickle.loads(bytes(self._arrived[_HEAD.size : _HEAD.size + length]))
            del self._arrived[: _HEAD.size + length]
            found.append(cast("Stalled", word))
        self._arrived.clear()
        return found
