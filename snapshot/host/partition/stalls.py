"""Parts of a partition that make no progress, and what they wait for: reported once for each time, never acted upon.

Invariant: it is told from what was seen, at two looks that are so far apart; a stage with nothing to do does not stall.
"""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from snapshot.host.net.event_loop import EventLoop
from snapshot.host.protocol.messages import StageFigures, Stalled
from statebackend import means
from statebackend.errors import JobError
from statebackend.ids import Attempt, Epoch, Generation, Incarnation, Partition, Uid

_LONGEST: Final = 1e10
"""No process has run for so many seconds."""


class MalformedWord(JobError):
    """The bytes between two beats make no sense."""


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
        """Return the stages and epochs that have made no progress for `after` seconds and were not told of yet."""
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
    """Return why a stage that has not moved could not; empty if it had nothing to do."""
    if now.held_back:
        return f"markers: an alignment holds back {now.held_back} of its channels"
    if now.blocked_ms > before.blocked_ms:
        return "room: those to whom it sends take nothing"
    if now.waits_for:
        return now.waits_for
    return f"nothing that is known: it has {now.queued_bytes} bytes of input" if now.queued_bytes else ""


class LoopWatch:
    """A watch for calls that hold up a loop, asked from another thread. `whose` says for whom the loop works."""

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
        """Return what call has not returned for `after` seconds, with its stack; None if none, or told already."""
        since = self._loop.busy_since
        if since is None or since == self._told or means.monotonic() - since < self.after:
            return None
        whose, frame = self._whose(), sys._current_frames().get(self._thread)
        if whose is None or frame is None:
            return None
        self._told = since
        stack = "".join(traceback.format_stack(frame))
        return Stalled(*whose, means.monotonic() - since, "one call to return; see its stack", None, stack)


def stalled_bytes(stalled: Stalled) -> bytes:
    """Encode a stall as what is said between two beats."""
    incarnation, epoch = stalled.incarnation, stalled.epoch
    fields = [
        "stalled",
        incarnation.generation,
        incarnation.attempt,
        stalled.partition,
        stalled.uid,
        stalled.seconds,
        stalled.waits_for,
        None if epoch is None else [epoch.generation, epoch.number],
        stalled.stack,
    ]
    return json.dumps(fields).encode()


def parse_stalled(said: bytes) -> Stalled:
    """Read what `stalled_bytes` wrote; raise `MalformedWord` for anything else."""
    try:
        fields: object = json.loads(said)
    except (ValueError, RecursionError) as error:
        raise MalformedWord(f"{said[:100]!r} is not JSON: {error}") from error
    match fields:
        case [
            "stalled",
            int(generation),
            int(attempt),
            int(partition),
            None | str() as uid,
            int() | float() as seconds,
            str(why),
            None | [int(), int()] as epoch,
            str(stack),
        ] if 0 <= seconds <= _LONGEST:
            return Stalled(
                Incarnation(Generation(generation), Attempt(attempt)),
                Partition(partition),
                None if uid is None else Uid(uid),
                seconds,
                why,
                None if epoch is None else Epoch(Generation(epoch[0]), epoch[1]),
                stack,
            )
        case _:
            raise MalformedWord(f"{said[:100]!r} does not say what makes no progress")
