"""Decide whether a journal has lost its newest entries, by the files beside it: a pure function of a listing.

Invariant: a tree that only crashed is never taken for one that lost entries, however many crashes, fenced
drivers and failed writes it has seen; a journal that has lost two or more completions is always found out.

Why that is so. A generation writes no file before its claim is in the journal, so a file of a later generation than the
journal knows proves that a claim is lost. A manifest is written before its epoch's entry and says how far the journal
had come, so one that says more than the journal has proves that entries are lost; all manifests that crashes and failed
writes leave say no more than there is. A driver that ends notes how far the journal had come. And the newest complete
epoch is only removed when a later one is complete.

What cannot be told: a manifest that says just as much as the journal has is what a driver leaves that died before it
entered the epoch, and what is left if that entry, with all after it, was lost before any later manifest was written.
Then the tree counts as one that crashed, and `recovery verify` names the epoch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from snapshot.journal.state import JournalState
from snapshot.tree.layout import EPOCHS, SHARED, EndNoted, ManifestFile, SharedFile, parse, path_of
from snapshot.tree.manifest import JournalEnd, Manifest
from statebackend.ids import NO_EPOCH, Epoch, Generation, Incarnation

_SHARED: Final = f"{SHARED}/"


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A manifest that is there, and cannot be read as one."""

    reason: str


@dataclass(frozen=True, slots=True)
class Remains:
    """The files of a tree beside its journal: `beyond` are the manifests that `to_read` names.

    It was listed before the journal was read, so that what a driver does meanwhile is not taken for a loss.
    """

    listed: tuple[str, ...]
    beyond: Mapping[ManifestFile, Manifest | Unreadable]


def end_of(state: JournalState) -> JournalEnd:
    """Return how far the journal has come."""
    usable = state.usable
    return JournalEnd(state.number, usable[-1].epoch if usable else NO_EPOCH)


def to_read(state: JournalState, listed: Iterable[str]) -> tuple[ManifestFile, ...]:
    """Return the manifests to look into: of the newest generation, and of later epochs than the journal knows."""
    found = (parse(path) for path in listed if path.startswith(EPOCHS))
    return tuple(
        sorted(
            item
            for item in found
            if isinstance(item, ManifestFile)
            and item.epoch.generation == state.generation
            and item.epoch > state.newest_complete
        )
    )


def proofs_of_loss(state: JournalState, remains: Remains) -> tuple[str, ...]:
    """Return what proves that entries after the journal's newest were there, in sentences; empty if nothing does."""
    if state.moved_to:  # its files are being taken away
        return ()
    telling = (path for path in remains.listed if not _is_of_known_generation(path, state.generation))
    found = [item for item in map(parse, telling) if item is not None]
    proofs = [_of_later_generations(state, found), _of_an_end(state, found)]
    proofs += [_of_manifest(state, item, content) for item, content in remains.beyond.items()]
    proofs.append(_of_removed_epochs(state, remains))
    return tuple(proof for proof in proofs if proof)


def generation_of(item: object) -> Generation | None:
    """Return the generation that has named a file; None for what is of no generation."""
    match item:
        case ManifestFile(epoch=Epoch(generation=generation)):
            return generation
        case SharedFile(incarnation=Incarnation(generation=generation)):
            return generation
        case _:
            return None


def _is_of_known_generation(path: str, generation: Generation) -> bool:
    """True if the path is a shared file that tells nothing. There may be a hundred thousand; few need parsing."""
    made_by = path.removeprefix(_SHARED).partition("-")[0] if path.startswith(_SHARED) else ""
    return made_by.isdecimal() and int(made_by) <= generation


def _of_later_generations(state: JournalState, found: Iterable[object]) -> str:
    later = [(generation, item) for item in found if (generation := generation_of(item) or 0) > state.generation]
    if not later:
        return ""
    _, item = max(later, key=lambda one: one[0])
    assert isinstance(item, ManifestFile | SharedFile)
    generations = sorted({generation for generation, _ in later})
    claims = "the claim of generation " if len(generations) == 1 else "the claims of generations "
    return f"{path_of(item)} is there, and {claims}{', '.join(map(str, generations))} is not in the journal"


def _of_an_end(state: JournalState, found: Iterable[object]) -> str:
    ends = [item for item in found if isinstance(item, EndNoted) and item.number > state.number]
    if not ends:
        return ""
    return f"a driver ended when the journal had {max(ends).number} entries ({path_of(max(ends))})"


def _of_manifest(state: JournalState, item: ManifestFile, content: Manifest | Unreadable) -> str:
    match content:
        case Unreadable(reason):  # a store has whole objects or none, so no crash leaves this
            return f"the manifest of epoch {item.epoch}, which the journal does not know, cannot be read: {reason}"
        case Manifest(journal=JournalEnd(number, complete)) if number > state.number:
            return f"{path_of(item)} was written when the journal had {number} entries, with epoch {complete} complete"
        case Manifest(parent=parent) if parent > state.newest_complete:
            return f"{path_of(item)} is based on epoch {parent}, which was complete"
        case _:
            return ""


def _of_removed_epochs(state: JournalState, remains: Remains) -> str:
    """Return the proof that a later epoch's entry is lost: epochs are removed only when a later one is complete."""
    listed = frozenset(remains.listed)
    gone = [record.epoch for record in state.usable if record.manifest not in listed]
    if not gone or not remains.beyond:
        return ""
    newest = max(remains.beyond)
    return (
        f"epoch {gone[-1]} has been removed, and {path_of(newest)} is there: epochs are removed when later ones are "
        "complete"
    )
