"""The decisions on which the members of a partition agree, as data.

Invariant: what the sources of a partition hand out, and where an epoch is cut between that, follows from the decisions
that were taken, in their order, and from the contents of the splits.
"""

from __future__ import annotations

from dataclasses import dataclass

from snapshot.cut.frames import Marker
from snapshot.cut.pauses import Then
from snapshot.tree.manifest import SplitPosition
from statebackend.ids import Uid


@dataclass(frozen=True, slots=True)
class SourceRound:
    """A round of one source has the rows up to here; the others that were read come later."""

    uid: Uid
    number: int
    ends: tuple[tuple[str, int], ...]
    """For each split of which rows come: how many rows of it have been handed out in the attempt with this round."""
    splits: tuple[str, ...]
    """The splits that are being read at the end of the round."""


@dataclass(frozen=True, slots=True)
class SourceEnd:
    """A source has ended; the end closes the round of this number.

    It may end where a drain found it, so `positions` say how far its splits were read: another member has read further.
    """

    uid: Uid
    number: int
    positions: tuple[SplitPosition, ...] = ()


@dataclass(frozen=True, slots=True)
class MarkerBehind:
    """An epoch is cut behind all that was decided before; `then` says how sources go on."""

    marker: Marker
    then: Then


Decision = SourceRound | SourceEnd | MarkerBehind
