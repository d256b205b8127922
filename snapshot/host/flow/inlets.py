"""The order in which a stage takes what comes on its channels, and which of them it reads.

Invariant: an inlet says what is to be done next, as the aligner does, and does nothing itself.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from snapshot.cut.aligner import Aborted, Aligner, AlignerInstruction, AlignmentTimedOut, Triggered
from snapshot.cut.frames import Data, Frame
from snapshot.ids import ChannelId, Copy
from statebackend.ids import Epoch

_FOR_MARKERS: Final = 4
"""So many times the input's buffer may be queued while a marker that overtakes is awaited."""

Said = Triggered | AlignmentTimedOut | Aborted
"""The words of the coordinator and of the clock about an epoch."""


@dataclass(frozen=True, slots=True)
class Gating:
    """The ways of channels not to read from now, and those to read from again."""

    pause: Collection[Copy]
    resume: Collection[Copy]


_AS_BEFORE: Final = Gating((), ())


@dataclass(frozen=True, slots=True)
class RoundBegan:
    """A round follows, which has to be closed on the outputs before receivers take anything of it."""


@dataclass(frozen=True, slots=True)
class RoundOver:
    """All of a round was handed on: when everything that follows from it is done, close it on the outputs."""

    number: int


@dataclass(frozen=True, slots=True)
class Flush:
    """Let all go out that follows from what was handed on, then call `then`."""

    then: Callable[[], object]


@dataclass(frozen=True, slots=True)
class Dropped:
    """So many rows that came on a channel are not handed on, as they were before: the sender may send as many more."""

    channel: ChannelId
    rows: int


Instruction = AlignerInstruction | RoundBegan | RoundOver | Flush | Dropped
"""Something to do next."""


class Inlet(Protocol):
    """The inputs of one stage in one attempt. The caller carries out instructions in order, before the next call."""

    def connect(self, copies: Iterable[Copy]) -> None:
        """Expect these ways of channels, from their beginning on."""

    def join(self, copies: Iterable[Copy], epoch: Epoch) -> None:
        """Expect these ways of channels as well, whose first frame is that behind this epoch's marker."""

    def go_on(self, ended: Iterable[ChannelId]) -> None:
        """Begin where another process is, to which nothing more comes on these channels."""

    @property
    def ended(self) -> Collection[ChannelId]:
        """Return the channels whose end was handed on."""

    def drop(self, copy: Copy) -> None:
        """Expect nothing more from this way of a channel, which has others."""

    def arrived(self, copy: Copy, frame: Frame) -> Sequence[Instruction]:
        """Take a frame that has come in."""

    def told(self, said: Said) -> Sequence[Instruction]:
        """Take what was said of an epoch."""

    def proceed(self) -> Sequence[Instruction]:
        """Go on to the next thing in order, as the operator is ready for it."""

    @property
    def idle(self) -> bool:
        """True if `proceed` would do nothing now."""

    @property
    def has_more_rows(self) -> bool:
        """True if `proceed` would hand on rows that those may be worked on with which it handed on last."""

    @property
    def round(self) -> int:
        """Return the number of the round that is being handed on; 0 where there are no rounds."""

    @property
    def cuts_anywhere(self) -> bool:
        """True if a cut may come between rows that were handed on, and is complete as it is made."""

    @property
    def aligning(self) -> bool:
        """True if a marker is here of an epoch that cannot be cut yet."""

    def unreached(self, epoch: Epoch) -> Collection[ChannelId]:
        """Return the channels whose marker is awaited, if the epoch is not cut yet."""

    def gating(self, copies: Iterable[Copy]) -> Gating:
        """Return from which of these ways nothing is to be read now, and from which again."""

    @property
    def queued_bytes(self) -> int:
        """Return how many bytes of rows have come and were not handed on."""

    @property
    def held_back(self) -> Collection[ChannelId]:
        """Return the channels that an alignment holds back."""


LastRows = Callable[[ChannelId, Data, int], Data]
"""Returns as many of the last rows of data that came on a channel."""

MakeInlet = Callable[[Collection[ChannelId], Iterable[ChannelId], Epoch, int, LastRows], Inlet]
"""Makes the inlet of these channels, in the plan's order; then come those of them whose rows no marker may overtake,
the epoch that the attempt starts from, how many bytes may be queued, about, and a function that cuts data."""


class ArrivalInlet(Aligner):
    """Takes frames as they come, of channels with one sender each: those that have something take turns.

    About `most` bytes may be queued.
    """

    def __init__(
        self,
        channels: Collection[ChannelId],
        ordered: Iterable[ChannelId],
        restored: Epoch,
        most: int,
        last_rows: LastRows,
    ) -> None:
        super().__init__(channels, ordered=ordered, restored=restored)
        del last_rows  # all that comes is taken
        self._most = most
        self._paused: set[ChannelId] = set()

    def connect(self, copies: Iterable[Copy]) -> None:
        """Expect one way of each channel."""

    def join(self, copies: Iterable[Copy], epoch: Epoch) -> None:
        """Refuse, as a channel has one way."""
        raise AssertionError(f"channels have one way each, and {list(copies)} would join at {epoch}")

    def go_on(self, ended: Iterable[ChannelId]) -> None:
        """Refuse, as no other process has the same inputs."""
        raise AssertionError(f"no other process has these inputs, with {list(ended)} at their end")

    @property
    def ended(self) -> Collection[ChannelId]:
        """Return nothing, as no other process asks for it."""
        return ()

    def drop(self, copy: Copy) -> None:
        """Refuse, as a channel has one way."""
        raise AssertionError(f"channel {copy} has no other way")

    def arrived(self, copy: Copy, frame: Frame) -> Sequence[Instruction]:
        """Take a frame that has come in."""
        return self._arrived(copy.channel, frame)

    def told(self, said: Said) -> Sequence[Instruction]:
        """Take what was said of an epoch."""
        return self.handle(said)

    def proceed(self) -> Sequence[Instruction]:
        """Go on to the next frame."""
        return self._proceed()

    @property
    def has_more_rows(self) -> bool:
        """True if `proceed` would hand on rows."""
        return isinstance(self.next, Data)

    @property
    def round(self) -> int:
        """Return 0, as there are no rounds."""
        return 0

    @property
    def cuts_anywhere(self) -> bool:
        """Return False: a cut comes after all rows that were handed on."""
        return False

    def gating(self, copies: Iterable[Copy]) -> Gating:
        """Read no more from channels that an alignment holds back, and from none while too much is queued.

        A marker that overtakes would wait behind what is not read, so where one is awaited several times as much may
        be queued. If all that is queued is held back, only what is read from the other channels can ever release it.
        """
        held, awaited, read_on, queued = self.held_back, self.awaited, self.idle, self.queued_bytes
        pause, resume = [], []
        for copy in copies:
            channel, paused = copy.channel, copy.channel in self._paused
            most = self._most * (_FOR_MARKERS if channel in awaited else 1)
            wanted = channel not in held and (read_on or queued < (most // 2 if paused else most))
            if wanted and paused:
                self._paused.discard(channel)
                resume.append(copy)
            elif not wanted and not paused:
                self._paused.add(channel)
                pause.append(copy)
        return Gating(pause, resume) if pause or resume else _AS_BEFORE
