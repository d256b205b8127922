"""All that a stage is besides its keyed state at a marker, for a process that goes on from there as its peers do.

Invariant: it is the same in all members of a partition, and nothing else tells a member that has it from one that has
been there from the beginning. It is in no manifest: after a roll-back all members begin anew, and alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from snapshot.cut.frames import Watermark
from snapshot.cut.watermarks import Watermarks
from snapshot.ids import ChannelId
from snapshot.replication.decisions import SourceEnd


@dataclass(frozen=True, slots=True)
class SplitTimes:
    """The event times of one split, or of a source that reads none."""

    latest: int | None = None
    quiet: int = 0


@dataclass(frozen=True, slots=True)
class BranchTimes:
    """The event times of one branch behind a source; the fields are those of `EventTimes`."""

    current: Watermark | None
    splits: Mapping[str, SplitTimes]
    ended: int | None
    without_splits: SplitTimes
    asked_at: int | None


@dataclass(frozen=True, slots=True)
class TimesNow:
    """The event times of a source, by branch."""

    branches: tuple[BranchTimes, ...]
    current: Watermark | None


@dataclass(frozen=True, slots=True)
class InputsNow:
    """The inputs of a stage."""

    watermarks: Watermarks
    ended: tuple[ChannelId, ...]
    """The channels of which nothing more comes."""
    taken: Mapping[ChannelId, int]
    """The number of rows that were processed of each channel in the attempt."""


@dataclass(frozen=True, slots=True)
class SourceNow:
    """The source of a stage."""

    times: TimesNow | None
    splits: tuple[str, ...]
    """The splits that were being read at the end of the last round."""
    handed_out: Mapping[str, int] = field(default_factory=dict)
    """The number of rows that were handed out of each split in the attempt."""
    end: SourceEnd | None = None
    """The end that was agreed on; None before it."""


@dataclass(frozen=True, slots=True)
class StageNow:
    """A stage that has just cut."""

    inputs: InputsNow
    put: Mapping[ChannelId, int]
    """The number of rows that each channel was given in the attempt."""
    announced: Watermark | None
    had_ended: bool
    """Event time was at its end in the epoch that the attempt started from, and has not gone on since."""
    time: int
    """The event time that its operator knows of."""
    clock: int
    """The processing time."""
    source: SourceNow | None
    ended: bool
    """All its input has ended, and so have its outputs."""
    ending: bool
    """All its input has ended, and what follows from that is not done: no process can go on from here."""
