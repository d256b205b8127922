"""The state of a job's journal at one of its entries: generation, complete epochs, pins, what may be deleted.

Invariant: epochs stand in rising order, and at least one of them is usable from the first completion on; a
pin names an epoch that is not removed. How much output the job made after any epoch that it may come back to is known
exactly, though the epochs that made it were removed and forgotten: each record has the count as of its completion.
States are made by the fold in `snapshot.journal.machine`, or read from a summary.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from snapshot.journal.entries import Nonce, PinId, Pinner
from statebackend.ids import NO_EPOCH, Epoch, Generation

NO_GENERATION = Generation(0)
"""Before the first claim."""

NONCES_KEPT = 256
"""The number of the newest entries whose nonces a state remembers. A writer that hears nothing while more entries than
these are written and compacted may not learn the fate of its own."""


class EpochState(Enum):
    """The progress of a complete epoch."""

    COMPLETE = "complete"
    COMMITTED = "committed"
    GIVEN_UP = "given up"
    REMOVED = "removed"


@dataclass(frozen=True, slots=True)
class OutputMade:
    """Output of a job: of how many complete epochs it is, and the newest of them. An epoch that only carries output of
    earlier ones is none of them, nor is one that was given up.

    For `assumed` of these epochs it was never noted whether they had output: a journal of an older program has
    forgotten them, so they count.
    """

    epochs: int = 0
    newest: Epoch = NO_EPOCH
    assumed: int = 0

    def and_of(self, epoch: Epoch) -> OutputMade:
        """Return this output and that of one more epoch, which is newer."""
        return OutputMade(self.epochs + 1, epoch, self.assumed)

    def since(self, earlier: OutputMade) -> OutputMade:
        """Return what was added to `earlier`, which is the output that there was at some moment before."""
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
        """True if the job may come back to the epoch."""
        return self.state in (EpochState.COMPLETE, EpochState.COMMITTED)

    @property
    def awaits_commit(self) -> bool:
        """True if the epoch has committables that are not known to be committed, and shall be."""
        return self.state is EpochState.COMPLETE and self.has_committables


@dataclass(frozen=True, slots=True)
class Pin:
    """A pin that keeps an epoch from being removed."""

    pin: PinId
    epoch: Epoch
    pinner: Pinner


@dataclass(frozen=True, slots=True)
class Removal:
    """The files that the entry at `number` allows to delete."""

    number: int
    epochs: tuple[Epoch, ...]
    files: tuple[str, ...]
    manifests: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class JournalState:
    """The fold of the entries 1 to `number`.

    `epochs` are in rising order, and so are `removals`; both forget what was removed when the state is summarised, or
    earlier if it is carried out. `newest_complete` outlives its epoch, so that no epoch id is used twice. `nonces` are
    those of the newest entries, the last of them that of the entry at `number`. `moved_to` is where the job goes on, if
    the journal is closed. `made_elsewhere` is output that the job made after the newest of these epochs, in the tree
    from which this one was copied; a rewind, with which a start goes back to that epoch all the same, forgets it.
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
        """Return all output that the job has made, without what was given up."""
        usable = self.usable
        made = usable[-1].output if usable else NO_OUTPUT
        elsewhere = self.made_elsewhere
        if not elsewhere.epochs:
            return made
        return OutputMade(made.epochs + elsewhere.epochs, elsewhere.newest, made.assumed + elsewhere.assumed)

    @property
    def newest_usable(self) -> Epoch:
        """Return the newest epoch that the job may come back to; `NO_EPOCH` if there is none."""
        usable = self.usable
        return usable[-1].epoch if usable else NO_EPOCH

    def output_after(self, record: EpochRecord) -> OutputMade:
        """Return what the job made after a usable epoch, and would make once more if it went on from there.

        It counts epochs that were removed since, and leaves out those that were given up: the job was already allowed
        to go back to before them.
        """
        return self.output.since(record.output)

    @property
    def retained(self) -> tuple[EpochRecord, ...]:
        """Return the epochs whose files must be kept: all but the removed, oldest first."""
        return tuple(record for record in self.epochs if record.state is not EpochState.REMOVED)

    @property
    def usable(self) -> tuple[EpochRecord, ...]:
        """Return the epochs that the job may come back to, oldest first."""
        return tuple(record for record in self.epochs if record.usable)

    @property
    def pinned(self) -> frozenset[Epoch]:
        """Return the epochs that a pin keeps from being removed."""
        return frozenset(pin.epoch for pin in self.pins)

    def remembers(self, number: int) -> bool:
        """True if the nonce of the entry at this number is still known."""
        return self.number - len(self.nonces) < number <= self.number

    def number_of(self, nonce: Nonce) -> int | None:
        """Return the number of the entry with this nonce; None if there is none, or it is not remembered."""
        if nonce not in self.nonces:
            return None
        return self.number - len(self.nonces) + 1 + self.nonces.index(nonce)

    def without_removals(self, up_to: int) -> JournalState:
        """Return the state without the removals up to this entry, which are carried out, and without their epochs."""
        gone = {epoch for removal in self.removals if removal.number <= up_to for epoch in removal.epochs}
        return replace(
            self,
            epochs=tuple(record for record in self.epochs if record.epoch not in gone),
            removals=tuple(removal for removal in self.removals if removal.number > up_to),
        )

    def summarised(self) -> JournalState:
        """Return the state without the removed epochs, as a summary keeps it; due once their files are deleted."""
        return replace(self, epochs=self.retained, removals=())


def with_assumed_output(records: tuple[EpochRecord, ...]) -> tuple[EpochRecord, ...]:
    """Return the records with output assumed for removed epochs, of which the journal says only that they were.

    Each counts as if it had had output: otherwise output could be made twice without warning. For what an older program
    wrote, and for a journal that was repaired. A number that no record has may be of an epoch that was removed, or
    never was complete.
    """
    known: list[EpochRecord] = []
    output, number = NO_OUTPUT, 0
    for record in records:
        if record.usable:
            between = range(number + 1, record.epoch.number)
            size = max(0, between.stop - between.start)  # its `len` fails for what a damaged journal may say
            missing = size - sum(other.epoch.number in between for other in records)
            if known and missing:
                output = OutputMade(output.epochs + missing, record.epoch, output.assumed + missing)
            output = output.and_of(record.epoch) if record.has_committables else output
            number = record.epoch.number
        known.append(replace(record, output=output))
    return tuple(known)


EMPTY = JournalState()
"""The journal of a job that was never started."""
