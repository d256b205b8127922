"""The options of a coordinator; a set of them that contradicts itself cannot be made."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from snapshot.cut.frames import MarkerMode
from statebackend.errors import OptionError


class ContradictingOptions(OptionError, ValueError):
    """Options that cannot all be meant; the message names them and says what to change."""


class Rhythm(Enum):
    """The way in which epochs that are due by the clock follow each other; one that is asked for begins at once."""

    OVERLAPPING = "overlapping"
    """One that is due while the most epochs are in flight is skipped."""
    ONE_BY_ONE = "one by one"
    """One that is due while another is in flight begins when that is over; the first one begins with the attempt."""
    WITH_REST = "with rest"
    """As one by one, but the first is due after an interval, and the time between two is at least as long as the one
    before took: sources that stand still while an epoch is in flight do so for half of the time at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorOptions:
    """The rule by which epochs are taken and how long they may take; all times are in milliseconds."""

    interval: int = 1_000
    """From one trigger to the next."""
    timeout: int = 60_000
    """An epoch that is not acknowledged by all in this time is given up."""
    min_pause: int = 0
    """From the publication of an epoch to the next trigger at least."""
    max_in_flight: int = 2
    """At this many epochs in flight a trigger is skipped and counted."""
    tolerated_failures: int | None = None
    """More failed epochs in a row than this break the attempt; None: never."""
    retain: int = 1
    """Complete epochs that are kept."""
    mode: MarkerMode = MarkerMode.ALIGNED
    alignment_timeout: int | None = None
    """An aligned epoch whose alignment takes longer turns unaligned; None: never."""
    rhythm: Rhythm = Rhythm.OVERLAPPING

    def __post_init__(self) -> None:
        for name, least in (("interval", 1), ("timeout", 1), ("min_pause", 0), ("max_in_flight", 1), ("retain", 1)):
            if getattr(self, name) < least:
                raise ContradictingOptions(f"{name} is {getattr(self, name)}; it must be at least {least}")
        if self.tolerated_failures is not None and self.tolerated_failures < 0:
            raise ContradictingOptions(f"tolerated_failures is {self.tolerated_failures}; it cannot be negative")
        if self.rhythm is not Rhythm.OVERLAPPING and self.max_in_flight > 1:
            raise ContradictingOptions(
                f"max_in_flight is {self.max_in_flight}, and the scheme takes one epoch after the other; leave it out"
            )
        if self.min_pause and self.max_in_flight > 1:
            raise ContradictingOptions(
                f"min_pause is {self.min_pause} ms and max_in_flight {self.max_in_flight}: a pause after each epoch "
                "leaves room for one epoch at a time only; set max_in_flight to 1 or min_pause to 0"
            )
        if self.alignment_timeout is not None:
            self._check_alignment_timeout(self.alignment_timeout)

    def _check_alignment_timeout(self, alignment_timeout: int) -> None:
        if self.mode is not MarkerMode.ALIGNED:
            raise ContradictingOptions(
                f"alignment_timeout is set, but in mode {self.mode.value} nothing is aligned; leave it out, or set "
                "the mode to aligned"
            )
        if not 0 <= alignment_timeout < self.timeout:
            raise ContradictingOptions(
                f"alignment_timeout is {alignment_timeout} ms; it must be at least 0 and shorter than the epoch's "
                f"timeout of {self.timeout} ms, or the epoch is given up before it can turn unaligned"
            )
