"""The tree of a job: where everything lies, and what a path that was found there is.

Invariant: `parse(path_of(item)) == item`, and a path that this module would not have built is foreign (`parse`
gives None), so that a clean-up touches nothing that others put there. All paths are relative: a tree can be moved.

    journal/0000000042.json                             an entry of the journal
    journal/summary-0000000040.json                     what the journal said up to and including 40
    epochs/<epoch>-<generation>-<nonce>/manifest.json   a manifest, published or not
    epochs/ended-0000000042.json                        how far the journal had come when a driver ended
    shared/<generation>-<partition>-<attempt>-<n>.sst   state; likewise .channel, .staged and .broadcast
    job.json                                            the job's name, which no clean-up touches
    moved.json                                          in its place, where the job has been moved to
    unfinished/<number>-<n>.json                        while a tree is made there, which is no job yet
    journal/repair.json                                 while the journal is repaired, which nobody reads then
    aside/<number>/...                                  what repairs have put aside; no clean-up touches it
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from typing import Final

from statebackend.ids import Attempt, Epoch, Generation, Incarnation, Partition

JOURNAL: Final = "journal"
EPOCHS: Final = "epochs"
SHARED: Final = "shared"
JOB: Final = "job.json"
MOVED: Final = "moved.json"
UNFINISHED: Final = "unfinished"
"""The mark of a tree that is being made. It is foreign to the layout, so that no clean-up touches it."""
REPAIR: Final = f"{JOURNAL}/repair.json"
ASIDE: Final = "aside"

_NUMBER = r"(0|[1-9][0-9]*)"
_NONCE = re.compile(r"[0-9a-z]{1,64}")
_ENTRY = re.compile(JOURNAL + r"/([0-9]{10})\.json")
_SUMMARY = re.compile(JOURNAL + r"/summary-([0-9]{10})\.json")
_MANIFEST = re.compile(EPOCHS + rf"/({_NUMBER}-{_NUMBER})-([0-9a-z]{{1,64}})/manifest\.json")
_ENDED = re.compile(EPOCHS + r"/ended-([0-9]{10})\.json")
_SHARED = re.compile(SHARED + rf"/{_NUMBER}-{_NUMBER}-{_NUMBER}-{_NUMBER}\.([a-z]+)")


class Content(Enum):
    """The content of a shared file; the value is the ending of its name."""

    STATE = "sst"
    """Sorted entries of keyed state."""
    CHANNEL = "channel"
    """In-flight data of a cut that was spilled."""
    STAGED = "staged"
    """Rows of a sink that wait in the snapshot for their commit."""
    BROADCAST = "broadcast"
    """Broadcast state of an operator, as it is in all partitions."""


@dataclass(frozen=True, slots=True, order=True)
class JournalEntry:
    """A numbered entry of the journal; names sort like numbers."""

    number: int

    def __post_init__(self) -> None:
        _check_journal_number(self.number)


@dataclass(frozen=True, slots=True, order=True)
class JournalSummary:
    """The state of the journal up to and including entry `number`. At or below it, no entry counts any more."""

    number: int

    def __post_init__(self) -> None:
        _check_journal_number(self.number)


@dataclass(frozen=True, slots=True, order=True)
class ManifestFile:
    """A manifest. The nonce makes its name unique."""

    epoch: Epoch
    nonce: str

    def __post_init__(self) -> None:
        if self.epoch.generation < 1 or self.epoch.number < 0:
            raise ValueError(f"{self.epoch} has no manifest: it is no epoch that was ever triggered")
        if not _NONCE.fullmatch(self.nonce):
            raise ValueError(f"nonce {self.nonce!r}: expected 1 to 64 of 0-9 and a-z")


@dataclass(frozen=True, slots=True)
class SharedFile:
    """A file that the manifests of any number of epochs may refer to. Its name is never used again.

    The writer owes that `number` rises within its incarnation and partition, whatever the content.
    """

    incarnation: Incarnation
    partition: Partition
    number: int
    content: Content

    def __post_init__(self) -> None:
        if min(self.incarnation.generation, self.incarnation.attempt, self.partition, self.number) < 0:
            raise ValueError(f"{self} has a negative number in its name")


@dataclass(frozen=True, slots=True, order=True)
class EndNoted:
    """That a driver ended when the journal had come so far. It lies apart from the journal, whose end it proves."""

    number: int

    def __post_init__(self) -> None:
        _check_journal_number(self.number)


TreeItem = JournalEntry | JournalSummary | ManifestFile | EndNoted | SharedFile


def path_of(item: TreeItem) -> str:
    """Return the item's path, relative to the tree."""
    match item:
        case JournalEntry(number):
            return f"{JOURNAL}/{number:010}.json"
        case JournalSummary(number):
            return f"{JOURNAL}/summary-{number:010}.json"
        case ManifestFile(epoch, nonce):
            return f"{EPOCHS}/{epoch}-{nonce}/manifest.json"
        case EndNoted(number):
            return f"{EPOCHS}/ended-{number:010}.json"
        case SharedFile(Incarnation(generation, attempt), partition, number, content):
            return f"{SHARED}/{generation}-{partition}-{attempt}-{number}.{content.value}"


def parse(path: str) -> TreeItem | None:
    """Return the item at a path relative to the tree; None if the path is foreign to the layout."""
    if match := _ENTRY.fullmatch(path):
        return JournalEntry(int(match[1]))
    if match := _SUMMARY.fullmatch(path):
        return JournalSummary(int(match[1]))
    if match := _MANIFEST.fullmatch(path):
        generation = Generation(int(match[3]))
        return ManifestFile(Epoch(generation, int(match[2])), match[4]) if generation else None
    if match := _ENDED.fullmatch(path):
        return EndNoted(int(match[1]))
    if (match := _SHARED.fullmatch(path)) and match[5] in _CONTENTS:
        incarnation = Incarnation(Generation(int(match[1])), Attempt(int(match[3])))
        return SharedFile(incarnation, Partition(int(match[2])), int(match[4]), _CONTENTS[match[5]])
    return None


_CONTENTS = {content.value: content for content in Content}


def _check_journal_number(number: int) -> None:
    if not 0 <= number < 10**10:
        raise ValueError(f"journal number {number} is out of bounds: 0 to 9999999999")
