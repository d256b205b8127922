"""Decide from which epoch a new start of a job goes on: a pure function of what was found.

Invariant: the job comes back to the newest epoch to which it can without losing or repeating anything; if
there is none it stops and says why, unless its operator accepts repeated output. Nothing that is not journalled as
complete is ever restored or committed, and no complete epoch with output is passed over in silence, however long ago
it was removed: the journal counts them.

An unusable epoch does no harm once a later one is sound: the state is all in the later one, and so are the
committables, as every participant acknowledges all that it does not know to be committed, of whatever epoch. What a
later manifest does not name of the earlier one was committed before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from snapshot.journal.state import EpochRecord, JournalState, OutputMade
from statebackend.ids import Epoch, Generation

ACCEPT_DUPLICATES: Final = "accept_duplicates=True"
"""The option with which a program accepts repeated output; a command has its own."""


class Condition(Enum):
    """The condition of a complete epoch's manifest."""

    SOUND = "sound"
    MISSING = "missing"
    DAMAGED = "damaged"
    NEWER = "newer"


@dataclass(frozen=True, slots=True)
class FoundManifest:
    """The manifest of a complete epoch as it was found; all but `epoch` and `condition` only if it is sound.

    `digest` is that of the bytes found. `files` are all files that it refers to.
    """

    epoch: Epoch
    condition: Condition
    detail: str = ""
    digest: str = ""
    files: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Observed:
    """All that the decision depends on: found after our claim was won, so that no older driver adds to it.

    `manifests` has one for each usable epoch of the journal; `present` are the files that the store lists, each as long
    as it was written. `damaged` are those of which it is known what is wrong with their content: not all of them are
    looked at before a start.
    """

    journal: JournalState
    generation: Generation
    manifests: tuple[FoundManifest, ...]
    present: frozenset[str]
    accept_duplicates: bool = False
    damaged: Mapping[str, str] = field(default_factory=dict)


class Fault(Enum):
    """The reason why a complete epoch cannot be used."""

    MISSING = "its manifest is missing"
    DAMAGED = "its manifest is damaged"
    NEWER = "its manifest was written by a newer program"
    OTHER_DIGEST = "its manifest is not the one that was journalled"
    FILES_MISSING = "files that it refers to are missing or cut short"
    FILES_DAMAGED = "files that it refers to are damaged"


@dataclass(frozen=True, slots=True)
class Unusable:
    """A complete epoch that cannot be used, and why."""

    epoch: Epoch
    fault: Fault
    detail: str


@dataclass(frozen=True, slots=True)
class GivenUp:
    """The loss of a job that goes back to an epoch: the later epochs that are still there, and `repeats`, the output of
    later epochs, removed ones too, which may be committed and would be made once more.
    """

    epochs: tuple[Epoch, ...]
    repeats: OutputMade

    @property
    def is_anything(self) -> bool:
        """True if going to the epoch is going back, which the journal has to say."""
        return bool(self.epochs) or self.repeats.epochs != 0


def given_up_for(journal: JournalState, record: EpochRecord) -> GivenUp:
    """Return what the job gives up if it goes on from an epoch that it may come back to."""
    later = tuple(other.epoch for other in journal.usable if other.epoch > record.epoch)
    return GivenUp(later, journal.output_after(record))


def in_words(repeats: OutputMade, epoch: Epoch) -> str:
    """Describe, as the subject of a sentence, the output made after an epoch that would be made once more."""
    many = f"{repeats.epochs} epoch{'' if repeats.epochs == 1 else 's'}"
    which = f"the output of {many} after {epoch}, up to epoch {repeats.newest}"
    if not repeats.assumed:
        return f"{which},"
    return f"{which} ({repeats.assumed} of them removed before the journal counted, and taken for epochs with output),"


@dataclass(frozen=True, slots=True)
class StartFresh:
    """No epoch was ever complete: begin at the beginning, and abort every transaction of the job."""


@dataclass(frozen=True, slots=True)
class Restore:
    """Come back to `epoch`.

    First, if it `gives_up` anything, `Rewound` to the epoch is journalled: later ones cannot be kept. Then all
    committables that the manifest of `epoch` names are committed, each of which may be committed already, and the
    epochs of `replay` are journalled as committed, in this order; every other transaction of the job is aborted. What
    an older manifest names besides was committed before, and its target may have forgotten it: it is not asked again.
    After a crash anywhere in between, the next start decides the same for what is left. `skipped` is for the log.
    """

    epoch: Epoch
    replay: tuple[Epoch, ...]
    gives_up: GivenUp
    skipped: tuple[Unusable, ...]


class Why(Enum):
    """The reason why a start is refused."""

    NOT_CLAIMED = "our generation is not in the journal"
    FENCED = "a newer generation has claimed the job"
    MANIFEST_NEWER = "a manifest was written by a newer program"
    OUTPUT_MAY_REPEAT = "output that may be committed would be made again"
    NO_SOUND_EPOCH = "no complete epoch is sound"


@dataclass(frozen=True, slots=True)
class Hindrance:
    """One reason not to start, and what to do about it."""

    why: Why
    epochs: tuple[Epoch, ...]
    text: str


@dataclass(frozen=True, slots=True)
class Refuse:
    """Do not start, and change nothing; each reason stands for itself."""

    hindrances: tuple[Hindrance, ...]
    unusable: tuple[Unusable, ...] = ()


Decision = StartFresh | Restore | Refuse


def decide(observed: Observed) -> Decision:
    """Decide what this start of the job does. Equal observations give equal decisions."""
    hindrance = _not_ours(observed)
    if hindrance is not None:
        return Refuse((hindrance,))
    records = observed.journal.usable
    if not records:
        return StartFresh()
    unusable = _unusable(records, observed)
    sound = [record for record in records if record.epoch not in unusable]
    if not sound:
        return Refuse((_nothing_sound(unusable),), tuple(unusable.values()))
    newest, gives_up = sound[-1].epoch, given_up_for(observed.journal, sound[-1])
    hindrance = _in_the_way_of(newest, gives_up, unusable, observed.accept_duplicates)
    if hindrance is not None:
        return Refuse((hindrance,), tuple(unusable.values()))
    waiting = [record.epoch for record in records if record.awaits_commit and record.epoch <= newest]
    replay = [epoch for epoch in waiting if epoch not in unusable]
    if len(replay) < len(waiting) and newest not in replay:
        replay.append(newest)  # settles the unusable ones as well, which would otherwise await their commit for ever
    return Restore(newest, tuple(replay), gives_up, tuple(unusable.values()))


def _not_ours(observed: Observed) -> Hindrance | None:
    ours, newest = observed.generation, observed.journal.generation
    if newest > ours:
        text = f"generation {ours} is fenced by {newest} at {observed.journal.driver!r}; stop"
        return Hindrance(Why.FENCED, (), text)
    if newest < ours:
        text = f"generation {ours} is not claimed, {newest} is the newest; claim it before anything is decided"
        return Hindrance(Why.NOT_CLAIMED, (), text)
    return None


def _unusable(records: tuple[EpochRecord, ...], observed: Observed) -> dict[Epoch, Unusable]:
    found = {manifest.epoch: manifest for manifest in observed.manifests}
    faults = (_fault(record, found.get(record.epoch), observed.present, observed.damaged) for record in records)
    return {fault.epoch: fault for fault in faults if fault is not None}


def _fault(
    record: EpochRecord, manifest: FoundManifest | None, present: frozenset[str], damaged: Mapping[str, str]
) -> Unusable | None:
    if manifest is None:
        raise ValueError(f"nothing was observed of epoch {record.epoch}; every usable epoch is looked at first")
    match manifest.condition:
        case Condition.MISSING:
            return Unusable(record.epoch, Fault.MISSING, record.manifest)
        case Condition.DAMAGED:
            return Unusable(record.epoch, Fault.DAMAGED, manifest.detail)
        case Condition.NEWER:
            return Unusable(record.epoch, Fault.NEWER, manifest.detail)
        case Condition.SOUND:
            if manifest.digest != record.digest:
                detail = f"{record.manifest} has digest {manifest.digest}, the journal says {record.digest}"
                return Unusable(record.epoch, Fault.OTHER_DIGEST, detail)
            missing = sorted(manifest.files - present)
            if missing:
                return Unusable(record.epoch, Fault.FILES_MISSING, _some(missing))
            broken = sorted(manifest.files & damaged.keys())
            if broken:
                detail = _some([f"{path}: {damaged[path]}" for path in broken])
                return Unusable(record.epoch, Fault.FILES_DAMAGED, detail)
            return None


def _some(files: Sequence[str]) -> str:
    return ", ".join(files[:3]) + (f" and {len(files) - 3} more" if len(files) > 3 else "")


def _nothing_sound(unusable: Mapping[Epoch, Unusable]) -> Hindrance:
    return _of_a_newer_program(tuple(unusable), unusable) or _no_sound_epoch(tuple(unusable))


def _in_the_way_of(
    epoch: Epoch, gives_up: GivenUp, unusable: Mapping[Epoch, Unusable], accept_duplicates: bool
) -> Hindrance | None:
    """Return why the job may not go back to this epoch and give up the unusable ones after it; None if it may."""
    newer = _of_a_newer_program(gives_up.epochs, unusable)
    if newer is not None:
        return newer
    return _output_may_repeat(epoch, gives_up) if gives_up.repeats.epochs and not accept_duplicates else None


def _of_a_newer_program(epochs: tuple[Epoch, ...], unusable: Mapping[Epoch, Unusable]) -> Hindrance | None:
    """Return why these epochs cannot be given up: a newer program wrote one, which is no damage. Else None."""
    newer = tuple(epoch for epoch in epochs if unusable[epoch].fault is Fault.NEWER)
    return _manifest_newer(newer) if newer else None


def _manifest_newer(newer: tuple[Epoch, ...]) -> Hindrance:
    text = f"a newer program wrote the manifest of {_named(newer)}; start the job with that program"
    return Hindrance(Why.MANIFEST_NEWER, newer, text)


def _output_may_repeat(epoch: Epoch, gives_up: GivenUp) -> Hindrance:
    again = f"{in_words(gives_up.repeats, epoch)} may be committed and would be made once more"
    text = (
        f"the job could go back to epoch {epoch}, but {again}; put back what is damaged or missing, from a copy, or "
        f"accept the repeated output ({ACCEPT_DUPLICATES})"
        if gives_up.epochs
        else f"this tree is a copy of epoch {epoch}, and the job went on elsewhere after it: {again}; go on there, or "
        f"accept the repeated output ({ACCEPT_DUPLICATES})"
    )
    return Hindrance(Why.OUTPUT_MAY_REPEAT, gives_up.epochs, text)


def _no_sound_epoch(epochs: tuple[Epoch, ...]) -> Hindrance:
    text = (
        f"none of the complete epochs can be restored: {_named(epochs)}; put back what is damaged or missing of one, "
        "from a copy, or begin a new job"
    )
    return Hindrance(Why.NO_SOUND_EPOCH, epochs, text)


def _named(epochs: tuple[Epoch, ...]) -> str:
    return ("epoch " if len(epochs) == 1 else "epochs ") + ", ".join(map(str, epochs))
