"""The requests of the journal's machines to storage, and the answers.

Invariant: a machine has at most one request outstanding, and each is answered by exactly one event. A request
that storage failed to serve is made again by the host; a create whose answer was lost is `OutcomeUnknown`.
"""

from __future__ import annotations

from dataclasses import dataclass

from snapshot.journal.entries import JournalError


class UnexpectedEvent(JournalError):
    """An event that answers nothing that was asked: a bug in the host."""


@dataclass(frozen=True, slots=True)
class CreateEntry:
    """Create the entry's object if it is absent; answer `Created`, `AlreadyThere` or `OutcomeUnknown`."""

    number: int
    data: bytes


@dataclass(frozen=True, slots=True)
class CreateSummary:
    """Create the summary's object if it is absent; answer `Created`, `AlreadyThere` or `OutcomeUnknown`."""

    floor: int
    data: bytes


@dataclass(frozen=True, slots=True)
class ReadEntry:
    """Read an entry's object; answer `EntryRead`."""

    number: int


@dataclass(frozen=True, slots=True)
class ReadFloor:
    """List the journal; answer `FloorRead` with the highest floor, and with the entries that are there.

    The floor must be the highest of some moment after the request. Where a listing is not atomic, it still is: a
    summary is deleted only when two newer ones are there.
    """


@dataclass(frozen=True, slots=True)
class ReadSummary:
    """Read a summary's object; answer `SummaryRead`."""

    floor: int


@dataclass(frozen=True, slots=True)
class ListJournal:
    """List all entries and summaries; answer `JournalListed`."""


@dataclass(frozen=True, slots=True)
class DeleteEntry:
    """Delete an entry's object, or find it absent; answer `Deleted`."""

    number: int


@dataclass(frozen=True, slots=True)
class DeleteSummary:
    """Delete a summary's object, or find it absent; answer `Deleted`."""

    floor: int


@dataclass(frozen=True, slots=True)
class Created:
    """The object was absent, and is now what was asked for."""


@dataclass(frozen=True, slots=True)
class AlreadyThere:
    """The object existed and is unchanged. It may be the asker's own, from a create whose answer was lost."""


@dataclass(frozen=True, slots=True)
class OutcomeUnknown:
    """The create may have happened, may not, and may yet happen."""


@dataclass(frozen=True, slots=True)
class EntryRead:
    """The bytes of the entry's object; none if there is no such object."""

    data: bytes | None


@dataclass(frozen=True, slots=True)
class FloorRead:
    """The highest floor among the summaries, 0 if there is none; and the numbers of entries that were listed.

    Some of the entries that are created or deleted meanwhile may be listed, whatever their order.
    """

    floor: int
    entries: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class SummaryRead:
    """The bytes of the summary's object; none if it has been deleted."""

    data: bytes | None


@dataclass(frozen=True, slots=True)
class JournalListed:
    """The numbers of all entry objects and the floors of all summaries."""

    entries: frozenset[int]
    floors: frozenset[int]


@dataclass(frozen=True, slots=True)
class Deleted:
    """The object is not there."""


CreateAnswer = Created | AlreadyThere | OutcomeUnknown
