"""The moment of a fault: now, after a time, or so long after something has happened to an epoch.

Invariant: a moment is known from what was heard and from nothing else; one that cannot come any more is refused
as soon as that is known.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from typing import Final

from recovery.events import AnyEvent, EpochAbandoned, EpochCompleted, EpochTriggered
from statebackend.durations import NotADuration, in_words, milliseconds
from statebackend.errors import JobError, OptionError
from statebackend.ids import Epoch


class NotAMoment(OptionError, ValueError):
    """The text names no moment."""

    def __init__(self, given: str, why: str = "") -> None:
        super().__init__(
            f"{given!r} is no moment{why and f': {why}'}; write now, +3s, epoch:17, epoch:17+0.3s, "
            "epoch:17:triggered+50ms or epoch:next+0.3s"
        )


class MomentPassed(JobError):
    """The moment will not come any more; the message says why."""


class Mark(Enum):
    """A step in the life of an epoch."""

    TRIGGERED = "triggered"
    COMPLETE = "complete"


@dataclass(frozen=True, slots=True)
class After:
    """So many milliseconds from now on."""

    offset: int

    def __str__(self) -> str:
        return f"{in_words(self.offset)} from now" if self.offset else "now"


@dataclass(frozen=True, slots=True)
class AtEpoch:
    """So many milliseconds after the epoch of this number is triggered or complete; None: the next one that is."""

    number: int | None
    mark: Mark
    offset: int

    def __str__(self) -> str:
        which = "the next epoch" if self.number is None else f"epoch {self.number}"
        return f"{in_words(self.offset)} after {which} is {self.mark.value}"


Moment = After | AtEpoch

_EPOCH: Final = re.compile(r"epoch:([0-9]{1,18}|next)(?::(triggered|complete))?(?:\+(.+))?")


def parse_moment(text: str) -> Moment:
    """Parse a moment as people write it; raise `NotAMoment` for anything else."""
    try:
        if text == "now":
            return After(0)
        if text.startswith("+"):
            return After(milliseconds(text[1:]))
        found = _EPOCH.fullmatch(text)
        if found is not None:
            number = None if found[1] == "next" else int(found[1])
            return AtEpoch(number, Mark(found[2] or "complete"), milliseconds(found[3]) if found[3] else 0)
    except NotADuration as error:
        raise NotAMoment(text, str(error)) from error
    raise NotAMoment(text)


class Alarm:
    """Says when a moment has come. Times are in seconds of any one clock; `complete` is the epoch that is now."""

    def __init__(self, moment: Moment, now: float, complete: Epoch | None) -> None:
        self._moment = moment
        self.due: float | None = None
        """The time when it comes; None as long as that is not known."""
        match moment:
            case After(offset):
                self.due = now + offset / 1000
            case AtEpoch(number=int(number)) if complete is not None and complete.number >= number:
                raise MomentPassed(f"epoch {number} is over already: epoch {complete.number} is complete")
            case AtEpoch():
                pass

    def heard(self, event: AnyEvent, now: float) -> None:
        """Take an event of the job; raise `MomentPassed` if the moment will not come any more."""
        moment = self._moment
        if self.due is not None or not isinstance(moment, AtEpoch):
            return
        match event:
            case EpochTriggered(epoch=epoch):
                reached: Mark | None = Mark.TRIGGERED
            case EpochCompleted(epoch=epoch):
                reached = Mark.COMPLETE
            case EpochAbandoned(epoch=epoch):
                reached = None
            case _:
                return
        if reached is moment.mark and moment.number in (None, epoch.number):
            self.due = now + moment.offset / 1000
        elif moment.number is not None and _is_missed(moment.number, moment.mark, epoch.number, reached):
            raise MomentPassed(f"epoch {moment.number} will not be {moment.mark.value}: it was given up, or was before")


def _is_missed(wanted: int, mark: Mark, number: int, reached: Mark | None) -> bool:
    """True if the mark will not come: epochs reach it in order, and one that is given up (None) never completes."""
    if reached is None:
        return mark is Mark.COMPLETE and number == wanted
    return reached is mark and number > wanted
