"""What a job's journal says at one of its entries: generation, complete epochs, pins, what may be deleted.

What always holds: epochs stand in rising order, and at least one of them is usable from the first completion on; a
pin names an epoch that is not removed. How much output the job made after any epoch that it may come back to is known
exactly, though the epochs that made it were removed and forgotten: each record has the count as of its completion.
States are made by the fold in `snapshot.journal`, or read from a summary.
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
class OutputMade:
    """Output of a job: of how many complete epochs it is, and the newest of them. An epoch that only carries output of
    earlier ones is none of them, nor is one that was given up.

    Of `assumed` of these epochs nobody has noted whether they had output: a journal of an older program has forgotten
    them, so they count.
    """

    epochs: int = 0
    newest: Epoch = NO_EPOCH
    assumed: int = 0

    def and_of(self, epoch: Epoch) -> OutputMade:
        """The same and the output of one more epoch, which is newer."""
        return OutputMade(self.epochs + 1, epoch, self.assumed)

    def since(self, earlier: OutputMade) -> OutputMade:
        """What was added to `earlier`, which is what there was at some moment before."""
        added = self.epochs - earlier.epochs
        return OutputMade(added, self.newest, self.assumed - earlier.assumed) if added else NO_OUTPUT


NO_OUTPUT = OutputMade()


@dataclass(frozen=True, slots=True)
class EpochRecord:
    """A complete epoch, as the journal knows it. `output` is what the job had made up to its completion, its own
    included.
    """

    epoch: Epoch
    manifest: str
    digest: str
    has_committables: bool
    output: OutputMade
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
    `made_elsewhere` is output that the job made after the newest of these epochs, in the tree from which this one was
    copied; a rewind, with which somebody goes back to that epoch all the same, forgets it.
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
    made_elsewhere: OutputMade = NO_OUTPUT

    @property
    def output(self) -> OutputMade:
        """All output that the job has made, but for what was given up."""
        usable = self.usable
        made = usable[-1].output if usable else NO_OUTPUT
        elsewhere = self.made_elsewhere
        if not elsewhere.epochs:
            return made
        return OutputMade(made.epochs + elsewhere.epochs, elsewhere.newest, made.assumed + elsewhere.assumed)

    @property
    def newest_usable(self) -> Epoch:
        """The newest epoch that the job may come back to; `NO_EPOCH` if there is none."""
        usable = self.usable
        return usable[-1].epoch if usable else NO_EPOCH

    def output_after(self, record: EpochRecord) -> OutputMade:
        """What the job made after an epoch that it may come back to, and would make once more if it went on from there.

        It counts epochs that were removed since, and leaves out those that were given up: going back behind them was
        allowed before.
        """
        return self.output.since(record.output)

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


def with_assumed_output(records: tuple[EpochRecord, ...]) -> tuple[EpochRecord, ...]:
    """The records of a journal that says no more of removed epochs than that they were: they count as if each had had
    output, as nobody may find out otherwise by seeing it twice.

    For what an older program wrote, and for a journal that was repaired. A number that no record has may be of an epoch
    that was removed, or never was complete.
    """
    known: list[EpochRecord] = []
    output, number = NO_OUTPUT, 0
    for record in records:
        if record.usable:
            between = range(number + 1, record.epoch.number)
            missing = len(between) - sum(other.epoch.number in between for other in records)
            if known and missing:
                output = OutputMade(output.epochs + missing, record.epoch, output.assumed + missing)
            output = output.and_of(record.epoch) if record.has_committables else output
            number = record.epoch.number
        known.append(replace(record, output=output))
    return tuple(known)


EMPTY = JournalState()
"""The journal of a job that was never started."""
