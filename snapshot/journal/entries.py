"""The entries of a job's journal: numbered, each written once by one writer and never changed.

Invariant: an entry says which number it stands at and carries its writer's nonce, so that a writer that finds it there
can tell whether it is its own; every path in it is relative and stays in the job's tree.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from typing import NewType

from statebackend.errors import StoreError
from statebackend.files import check_path
from statebackend.ids import Epoch, Generation

Nonce = NewType("Nonce", str)
"""Names one proposal for good: drawn at random for each, and never given to another body."""

PinId = NewType("PinId", str)
"""The name of one pin. Its writer owes that no other pin ever had it."""

_NAME = re.compile(r"[A-Za-z0-9_.:-]{1,128}")
_DIGEST = re.compile(r"[a-z0-9]+:[0-9a-f]+")


class JournalError(StoreError):
    """A fault of the journal that stops all work with it."""


class DamagedJournal(JournalError):
    """An entry or a summary that cannot be what an honest writer wrote there."""


class UnderRepair(DamagedJournal):
    """A journal whose repair has begun: nothing is read or written until that is done."""


class NewerJournal(JournalError):
    """An entry or a summary in a version that this program does not know."""


class Pinner(Enum):
    """The keeper of an epoch: the one for whom it is not removed."""

    SAVEPOINT = "savepoint"
    READER = "reader"


@dataclass(frozen=True, slots=True)
class Claimed:
    """A start of the job takes the next generation; every older one is fenced from here on."""

    generation: Generation
    driver: str
    """The address of the driver, for people and for clean-ups from outside."""


@dataclass(frozen=True, slots=True)
class Completed:
    """The epoch is complete: the one commit point. All committables that its manifest names will be committed.

    `digest` is that of the manifest's bytes, `<algorithm>:<hex digits>`. `has_committables` counts those that were
    carried from earlier epochs too; `only_carried` says that there are no others: an earlier complete epoch has each.
    """

    epoch: Epoch
    manifest: str
    digest: str
    has_committables: bool
    only_carried: bool = False

    @property
    def adds_output(self) -> bool:
        """True if the epoch has output that no earlier complete epoch has."""
        return self.has_committables and not self.only_carried

    def __post_init__(self) -> None:
        if self.only_carried and not self.has_committables:
            raise ValueError(f"epoch {self.epoch} has no committables, so it carries none")
        check_path(self.manifest)
        if not _DIGEST.fullmatch(self.digest):
            raise ValueError(f"digest {self.digest!r} of epoch {self.epoch}; expected <algorithm>:<hex digits>")


@dataclass(frozen=True, slots=True)
class Committed:
    """Everything up to this epoch is committed. `by` may be a later generation than the epoch's."""

    by: Generation
    epoch: Epoch


@dataclass(frozen=True, slots=True)
class Rewound:
    """The job went back to `to`: every complete epoch after it is given up and will never be committed or restored.

    Written before anything is done that the given-up epochs contradict, such as aborting their transactions.
    """

    by: Generation
    to: Epoch


@dataclass(frozen=True, slots=True)
class Removed:
    """The epochs are gone, and the files and manifests named here may be deleted from now on, by any process.

    `files` are those that no remaining epoch refers to: the writer owes it, as the journal does not know the
    references. Oldest first, in which order they are deleted.
    """

    by: Generation
    epochs: tuple[Epoch, ...]
    files: tuple[str, ...]
    manifests: tuple[str, ...]

    def __post_init__(self) -> None:
        for path in (*self.files, *self.manifests):
            check_path(path)


@dataclass(frozen=True, slots=True)
class Pinned:
    """The epoch stays until it is unpinned, whatever the retention says. Any process may write it."""

    pin: PinId
    epoch: Epoch
    pinner: Pinner

    def __post_init__(self) -> None:
        _check_name("pin", self.pin)


@dataclass(frozen=True, slots=True)
class Unpinned:
    """The pin is lifted. Any process may write it."""

    pin: PinId

    def __post_init__(self) -> None:
        _check_name("pin", self.pin)


@dataclass(frozen=True, slots=True)
class Closed:
    """The job goes on at another place, `to`: this is the last entry for good.

    Written when all that the job has is there, and before it is made a job there: so it is never startable at both.
    """

    by: Generation
    to: str

    def __post_init__(self) -> None:
        if not self.to:
            raise ValueError("a journal is closed for a place to which the job is moved")


Body = Claimed | Completed | Committed | Rewound | Removed | Pinned | Unpinned | Closed


@dataclass(frozen=True, slots=True)
class Entry:
    """A body at its place in the journal."""

    number: int
    nonce: Nonce
    body: Body

    def __post_init__(self) -> None:
        if self.number < 1:
            raise ValueError(f"journal entries are numbered from 1, not {self.number}")
        _check_name("nonce", self.nonce)


def writer_of(body: Body) -> Generation | None:
    """Return the generation in whose name this is written; None for pins, which need no driver, and for a claim."""
    match body:
        case Completed(epoch=epoch):
            return epoch.generation
        case Committed(by=by) | Rewound(by=by) | Removed(by=by) | Closed(by=by):
            return by
        case Claimed() | Pinned() | Unpinned():
            return None


def _check_name(what: str, text: str) -> None:
    if not _NAME.fullmatch(text):
        raise ValueError(f"{what} {text!r}; expected 1 to 128 letters, digits, '_', '.', ':' and '-'")
