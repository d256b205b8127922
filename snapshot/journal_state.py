"""What a job's journal says at one of its entries: generation, complete epochs, pins, what may be deleted.

What always holds: epochs stand in rising order, and at least one of them is usable from the first completion on; a
pin names an epoch that is not removed. States are made by the fold in `snapshot.journal`, or read from a summary.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from snapshot.journal_entries import Nonce, PinId, Pinner
from statebackend.ids import NO_EPOCH, Epoch, Generation

NO_GENERATION = Generation(0)
"""Before the first claim."""

NONCES_KEPT = 256
"""How many of the newest entries' nonces a state remembers. A writer that hears nothing while more entries than
these are written and compacted may not learn what became of its own."""


class EpochState(Enum):
    """How far a complete epoch has come."""

    COMPLETE = "complete"
    COMMITTED = "committed"
    GIVEN_UP = "given up"
    REMOVED = "removed"


@dataclass(frozen=True, slots=True)
class EpochRecord:
    """A complete epoch, as the journal knows it."""

    epoch: Epoch
    manifest: str
    digest: str
    has_committables: bool
    state: EpochState = EpochState.COMPLETE

    @property
    def usable(self) -> bool:
        """Whether the job may come back to it."""
        return self.state in (EpochState.COMPLETE, EpochState.COMMITTED)

    @property
    def awaits_commit(self) -> bool:
        """Whether it has committables that are not known to be committed, and shall be."""
        return self.state is EpochState.COMPLETE and self.has_committables


@dataclass(frozen=True, slots=True)
class Pin:
    """What keeps an epoch from being removed."""

    pin: PinId
    epoch: Epoch
    pinner: Pinner


@dataclass(frozen=True, slots=True)
class Removal:
    """What the entry at `number` allows to be deleted."""

    number: int
    epochs: tuple[Epoch, ...]
    files: tuple[str, ...]
    manifests: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class JournalState:
    """The fold of the entries 1 to `number`.

    `epochs` are in rising order, and so are `removals`; both forget what was removed when the state is summarised, or
    earlier if it is carried out.
    `newest_complete` outlives its epoch, so that no epoch id is used twice. `nonces` are those of the newest entries,
    the last of them that of the entry at `number`. `moved_to` is where the job goes on, if the journal is closed.
    """

    number: int = 0
    generation: Generation = NO_GENERATION
    driver: str = ""
    newest_complete: Epoch = NO_EPOCH
    epochs: tuple[EpochRecord, ...] = ()
    pins: tuple[Pin, ...] = ()
    removals: tuple[Removal, ...] = ()
    nonces: tuple[Nonce, ...] = ()
    moved_to: str = ""

    @property
    def retained(self) -> tuple[EpochRecord, ...]:
        """The epochs whose files must be kept: all but the removed, oldest first."""
        return tuple(record for record in self.epochs if record.state is not EpochState.REMOVED)

    @property
    def usable(self) -> tuple[EpochRecord, ...]:
        """The epochs that the job may come back to, oldest first."""
        return tuple(record for record in self.epochs if record.usable)

    @property
    def pinned(self) -> frozenset[Epoch]:
        """The epochs that somebody keeps from being removed."""
        return frozenset(pin.epoch for pin in self.pins)

    def remembers(self, number: int) -> bool:
        """Whether the nonce of the entry at this number is still known."""
        return self.number - len(self.nonces) < number <= self.number

    def number_of(self, nonce: Nonce) -> int | None:
        """Where the entry with this nonce stands; none if it does not, or is not remembered."""
        if nonce not in self.nonces:
            return None
        return self.number - len(self.nonces) + 1 + self.nonces.index(nonce)

    def without_removals(self, up_to: int) -> JournalState:
        """The same without the removals up to this entry, which are carried out, and without their epochs."""
        gone = {epoch for removal in self.removals if removal.number <= up_to for epoch in removal.epochs}
        return replace(
            self,
            epochs=tuple(record for record in self.epochs if record.epoch not in gone),
            removals=tuple(removal for removal in self.removals if removal.number > up_to),
        )

    def summarised(self) -> JournalState:
        """The same without the removed epochs, as a summary keeps it; due once their files are deleted."""
        return replace(self, epochs=self.retained, removals=())


EMPTY = JournalState()
"""The journal of a job that was never started."""
