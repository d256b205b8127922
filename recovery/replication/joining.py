"""One member on its way into an attempt that goes on: connected, let in behind a marker, deployed, in sync.

Invariant: it is asked to go on from an epoch only if all members that there were when it began are there still, if all
of them were connected with it before that epoch was triggered, and if the epoch is complete; so each has sent it all
that it has sent behind the epoch's marker. Whatever else happens before that gives the join up, and nothing is lost.
It is one like the others only when all of them are behind the marker: one that is not would miss its lost peers.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum, auto

from snapshot.ids import Member
from statebackend.ids import Epoch


@dataclass(frozen=True, slots=True)
class Expects:
    """A member that is there expects the one that joins."""

    by: Member


@dataclass(frozen=True, slots=True)
class Connected:
    """All connections of a member with the one that joins stand; or, said by that one, those with all others."""

    by: Member


@dataclass(frozen=True, slots=True)
class Triggered:
    """An epoch is being triggered."""

    epoch: Epoch


@dataclass(frozen=True, slots=True)
class Stands:
    """The primary of the partition has said where all of its stages were when they cut for an epoch.

    `ending` if the input of one of them had come to its end, and what follows from that was under way.
    """

    epoch: Epoch
    ending: bool


@dataclass(frozen=True, slots=True)
class Over:
    """An epoch is complete, or was given up."""

    epoch: Epoch
    complete: bool


@dataclass(frozen=True, slots=True)
class Restored:
    """The member that joins has its state."""


@dataclass(frozen=True, slots=True)
class Admitted:
    """A member that is there sends to the one that joins, and takes what it sends: it is behind the marker."""

    by: Member


@dataclass(frozen=True, slots=True)
class InSync:
    """The partition's primary waits for the member's word in all that is decided from now on."""


@dataclass(frozen=True, slots=True)
class Gone:
    """A member that was there is gone."""

    member: Member
    reason: str


@dataclass(frozen=True, slots=True)
class Hindered:
    """A member cannot be connected, or its process is gone, or it takes too long."""

    reason: str


Event = Expects | Connected | Triggered | Stands | Over | Restored | InSync | Admitted | Gone | Hindered


@dataclass(frozen=True, slots=True)
class Deploy:
    """Tell the process its role, and the addresses of the others; it connects then, and waits."""


@dataclass(frozen=True, slots=True)
class Enter:
    """Tell the partition's members that this one is among them, though not in sync; then ask for an epoch."""


@dataclass(frozen=True, slots=True)
class Mark:
    """Let the marker of the epoch that is being triggered admit the member."""


@dataclass(frozen=True, slots=True)
class Begin:
    """Have the member go on from this epoch; `given_up` are those after it that will not be complete."""

    epoch: Epoch
    given_up: tuple[Epoch, ...]


@dataclass(frozen=True, slots=True)
class Done:
    """The member is one like the others, for all of them: any other one may be lost now."""


@dataclass(frozen=True, slots=True)
class GiveUp:
    """The member does not join: the others forget it."""

    reason: str


Instruction = Deploy | Enter | Mark | Begin | Done | GiveUp


class Step(Enum):
    """The way of a join."""

    EXPECTED = auto()
    """The others are told of it."""
    CONNECTING = auto()
    WAITING = auto()
    """It is connected, and no epoch was triggered since."""
    BEHIND_A_MARKER = auto()
    """It is given all that comes behind the marker of an epoch which is under way."""
    BEGUN = auto()
    """It goes on from there."""
    OVER = auto()


class Joining:
    """The join of `member`, while these `others` are there; each of them is to be told of it first."""

    def __init__(self, member: Member, others: Collection[Member]) -> None:
        self.member = member
        self.step = Step.EXPECTED
        self._others = frozenset(others)
        self._awaited = set(self._others)
        self._before_the_marker = set(self._others)
        self._epoch: Epoch | None = None
        self._stands = False
        self._given_up: list[Epoch] = []
        self._restored = self._in_sync = False

    @property
    def behind(self) -> Epoch | None:
        """Return the epoch behind whose marker the member is let in; None before one is triggered."""
        return self._epoch

    @property
    def restoring(self) -> Epoch | None:
        """Return the epoch whose files the member still needs; None if it needs none."""
        return self._epoch if self.step is Step.BEGUN and not self._restored else None

    def handle(self, event: Event) -> list[Instruction]:
        """Take an event; return what is to be done now, in order."""
        if self.step is Step.OVER:
            return []
        match event:
            case Expects(by):
                return self._heard(Step.EXPECTED, by)
            case Connected(by):
                return self._heard(Step.CONNECTING, by)
            case Triggered(epoch) if self.step is Step.WAITING:
                self.step, self._epoch = Step.BEHIND_A_MARKER, epoch
                return [Mark()]
            case Stands(epoch, ending) if self.step is Step.BEHIND_A_MARKER and epoch == self._epoch:
                self._stands = True
                return self._give_up("the input of a stage was about to end") if ending else []
            case Over(epoch, complete) if self.step is Step.BEHIND_A_MARKER and self._epoch is not None:
                return self._over(self._epoch, epoch, complete=complete)
            case Restored() if self.step is Step.BEGUN:
                self._restored = True
                return self._done_if_so()
            case InSync() if self.step is Step.BEGUN:
                self._in_sync = True
                return self._done_if_so()
            case Admitted(by):
                self._before_the_marker.discard(by)
                return self._done_if_so()
            case Gone(member) if self.step is Step.BEGUN:
                self._before_the_marker.discard(member)
                return self._done_if_so()
            case Gone(member, reason):
                return self._give_up(f"member {member} is gone: {reason}")
            case Hindered(reason) if self.step is not Step.BEGUN:
                return self._give_up(reason)
        return []

    def _heard(self, step: Step, by: Member) -> list[Instruction]:
        if self.step is not step:
            return []
        self._awaited.discard(by)
        if self._awaited:
            return []
        if step is Step.EXPECTED:
            self.step, self._awaited = Step.CONNECTING, {*self._others, self.member}
            return [Deploy()]
        self.step = Step.WAITING
        return [Enter()]

    def _over(self, behind: Epoch, epoch: Epoch, *, complete: bool) -> list[Instruction]:
        if epoch > behind:
            self._given_up.append(epoch)
        elif epoch == behind and not complete:
            return self._give_up(f"epoch {epoch}, from which it was to go on, was given up")
        elif epoch == behind and not self._stands:
            return self._give_up(f"the primary has not said where its stages were in epoch {epoch}")
        elif epoch == behind:
            self.step = Step.BEGUN
            return [Begin(epoch, tuple(self._given_up))]
        return []

    def _done_if_so(self) -> list[Instruction]:
        if not (self._restored and self._in_sync) or self._before_the_marker:
            return []
        self.step = Step.OVER
        return [Done()]

    def _give_up(self, reason: str) -> list[Instruction]:
        self.step = Step.OVER
        return [GiveUp(reason)]
