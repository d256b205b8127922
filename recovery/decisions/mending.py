"""Decide how a tree with a damaged journal is mended: a pure function of what was found in it.

Invariant: an epoch whose output may be committed, as anything says that is left, is never left behind unless
its owner accepts repeated output, nor is what the job may have made elsewhere since this tree was copied; what is taken
for complete has a manifest that can be read, and all its files. The journal that is made has a later generation than
any that may still be alive somewhere, and a number above all that such a one could write in a while.

Why the newest manifest counts as complete, where its entry may be among those that are lost: if it was complete, its
output may be committed, and going back behind it would make that once more; if it was not, all partitions had
acknowledged it, so it is a cut like any other, and its output is committed once. Should a later start have gone back
behind it and aborted its output before it died as well, then its sink refuses the commit, and says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from typing import Final

from recovery.decisions.losses import Remains, Unreadable, generation_of, proofs_of_loss, to_read
from recovery.decisions.notes import COPY, MOVE, Origin, from_json
from snapshot.journal.entries import (
    Claimed,
    Closed,
    Committed,
    Completed,
    Entry,
    Nonce,
    PinId,
    Pinned,
    Pinner,
    Removed,
    Rewound,
    Unpinned,
)
from snapshot.journal.machine import folded
from snapshot.journal.state import EMPTY, EpochRecord, EpochState, JournalState, Pin, with_assumed_output
from snapshot.tree.layout import EndNoted, ManifestFile, parse
from snapshot.tree.manifest import Manifest, ManifestKind
from statebackend.ids import NO_EPOCH, Epoch, Generation

NUMBERS_SKIPPED: Final = 10_000
"""So many entries a driver that still runs somewhere would have to write before it could miss the new journal."""
GENERATIONS_SKIPPED: Final = 10
"""So many claims may be lost that have left nothing else."""


@dataclass(frozen=True, slots=True)
class FoundManifest:
    """A manifest that is there. `digest` is that of its bytes."""

    path: str
    item: ManifestFile
    content: Manifest | Unreadable
    digest: str = ""

    @property
    def epoch(self) -> Epoch:
        """Return the epoch in the manifest's name."""
        return self.item.epoch


@dataclass(frozen=True, slots=True)
class Found:
    """All that is in a tree. `torn` are entries that cannot be read, `torn_floors` summaries; with the reasons."""

    listed: tuple[str, ...]
    entries: Mapping[int, Entry]
    torn: Mapping[int, str]
    summaries: Mapping[int, JournalState]
    torn_floors: Mapping[int, str]
    manifests: tuple[FoundManifest, ...]


@dataclass(frozen=True, slots=True)
class Damage:
    """The lost or unusable parts of a journal, in sentences. `tail`: its newest entries may be among them."""

    sentences: tuple[str, ...]
    gaps: tuple[range, ...]
    tail: bool


@dataclass(frozen=True, slots=True)
class Mended:
    """The journal as it is to be: `state`, but for the number at which it stands and its nonce.

    `newest` is where the job goes on; none if no epoch was ever complete. `made_anew` are epochs whose entries are
    derived from their manifests, `given_up` those that were complete, or may have been, and cannot be used. `aside` are
    manifests that must not be taken for complete any more. `number` is the least that the journal must begin at.
    """

    state: JournalState
    number: int
    newest: Epoch | None
    made_anew: tuple[Epoch, ...]
    given_up: tuple[Epoch, ...]
    aside: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CannotMend:
    """The reason why a tree cannot be mended; `accepting` if it can once repeated output is accepted."""

    reason: str
    accepting: bool = False


def damage_of(found: Found, *, entries_lost: bool = False) -> Damage | None:
    """Return what is wrong with the journal; None if nothing is. `entries_lost`: its owner knows it lost its newest."""
    floor, base, entries = _left(found)
    state = _folded(base, entries, ())
    beyond = frozenset(to_read(state, found.listed))
    contents = {one.item: one.content for one in found.manifests if one.item in beyond}
    proofs = proofs_of_loss(state, Remains(found.listed, contents))
    gaps = tuple(_gaps(found, floor))
    last = max((number for number in found.entries if number > floor), default=floor)
    tail = entries_lost or bool(proofs) or any(gap.stop > last for gap in gaps)
    if not gaps and not tail:
        return None
    sentences = [f"summary {number} cannot be read: {why}" for number, why in sorted(found.torn_floors.items())]
    sentences += [
        f"entry {number} cannot be read: {why}" for number, why in sorted(found.torn.items()) if number > floor
    ]
    for gap in gaps:
        absent = [number for number in (gap[0], gap[-1]) if number not in found.torn]
        if absent:
            few = f"entry {gap[0]} is" if len(gap) == 1 else f"of the entries {gap[0]} to {gap[-1]} some or all are"
            sentences.append(f"{few} missing")
    if not found.entries and not found.summaries:
        sentences.append("there is no entry that can be read")
    sentences += proofs
    if entries_lost and not proofs:
        sentences.append("its newest entries are said to be lost")
    return Damage(tuple(dict.fromkeys(sentences)), gaps, tail)


def mend(found: Found, damage: Damage, *, accept_duplicates: bool = False) -> Mended | CannotMend:
    """Return what the journal is to say, or why nothing can be made of it."""
    _, base, entries = _left(found)
    if base.moved_to or any(isinstance(entry.body, Closed) for entry in entries):
        return CannotMend("the job was moved away, or was to be; its journal is closed")
    known = {record.epoch for record in base.epochs} | {
        entry.body.epoch for entry in entries if isinstance(entry.body, Completed)
    }
    possible = tuple(one for one in found.manifests if one.epoch not in known and _fits(one, base, entries, damage))
    anew = _made_anew(possible, known, _named(base, entries, found.manifests), found.listed)
    state = _folded(base, entries, anew)
    files = frozenset(found.listed)
    unusable = [record for record in state.usable if not _is_sound(record, found.manifests, files)]
    newest = max((record.epoch for record in state.usable if record not in unusable), default=None)
    behind = {record.epoch for record in unusable if newest is None or record.epoch > newest}
    behind |= {one.epoch for one in possible if one.epoch > (newest or NO_EPOCH)}
    behind |= {epoch for epoch in _proved(base, entries) if epoch > (newest or NO_EPOCH)}
    if newest is None and (behind or state.epochs or known):
        named = ", ".join(map(str, sorted(behind or known)))
        return CannotMend(
            f"no epoch is sound: {named} cannot be used; bring the files back that are lost, or begin anew"
        )
    if behind and not accept_duplicates:
        named = ", ".join(map(str, sorted(behind)))
        return CannotMend(
            f"epoch {newest} is the newest that can be used, but the output of {named} may be committed and would be "
            "made once more; bring the files back that are lost, or accept that (--accept-duplicates)",
            accepting=True,
        )
    if newest is None and any("shared/" in path for path in found.listed) and not accept_duplicates:
        return CannotMend(
            "there is no manifest, so no epoch was ever complete, unless all manifests are lost as well; then all "
            "output would be made once more: empty the place, or accept that (--accept-duplicates)",
            accepting=True,
        )
    copied = _copied_from(found, newest)
    if copied and not accept_duplicates:
        return CannotMend(
            f"this tree is a copy of epoch {newest}, made of {copied}, and its journal, which said what output the job "
            "has made elsewhere since, is lost; all of that would be made once more: go on there, or accept it "
            "(--accept-duplicates)",
            accepting=True,
        )
    state = _settled(state, newest, frozenset(unusable), {one.epoch for one in anew})
    later = _newest_generation(found, state) + 1 + (GENERATIONS_SKIPPED if damage.tail else 0)
    pins = _pins(state, found.manifests, entries)
    state = replace(state, pins=pins, removals=(), generation=Generation(later))
    kept = {record.manifest for record in state.epochs}
    aside = tuple(one.path for one in possible if one.path not in kept and one.epoch > (newest or NO_EPOCH))
    made = tuple(one.epoch for one in anew if one.path in kept)
    return Mended(state, _last_number(found) + NUMBERS_SKIPPED, newest, made, tuple(sorted(behind)), aside)


def _left(found: Found) -> tuple[int, JournalState, list[Entry]]:
    """Return where the journal begins, what it says there, and the entries after that which can be read."""
    floor = max(found.summaries, default=0)
    entries = [found.entries[number] for number in sorted(found.entries) if number > floor]
    return floor, found.summaries.get(floor, EMPTY), entries


def newest_claim(found: Found) -> Generation:
    """Return the latest generation that is known to have claimed the job, as far as the journal can be read."""
    _, base, entries = _left(found)
    claims = (entry.body.generation for entry in entries if isinstance(entry.body, Claimed))
    return max(chain(claims, [base.generation]))


def _gaps(found: Found, floor: int) -> Iterator[range]:
    """Yield the ranges of numbers above the floor without a readable entry, up to the last that was used."""
    expected = floor + 1
    for number in sorted(number for number in found.entries if number > floor):
        if number > expected:
            yield range(expected, number)
        expected = number + 1
    last = _last_number(found)
    if last >= expected:
        yield range(expected, last + 1)


def _last_number(found: Found) -> int:
    """Return the highest number of which something says that it was used."""
    ends = (item.number for item in map(parse, found.listed) if isinstance(item, EndNoted))
    said = (
        one.content.journal.number
        for one in found.manifests
        if isinstance(one.content, Manifest) and one.content.journal is not None
    )
    return max(chain(found.entries, found.torn, found.summaries, found.torn_floors, ends, said), default=0)


def _fits(one: FoundManifest, base: JournalState, entries: Iterable[Entry], damage: Damage) -> bool:
    """True if the entry of this epoch may be among those that are lost.

    Generations and epochs rise in a journal, and the entry came after what its manifest says the journal had.
    """
    low, high = base.number, None
    if one.epoch <= base.newest_complete or one.epoch.generation < base.generation:
        return False
    for entry in entries:
        match entry.body:
            case Claimed(generation=generation):
                before = generation <= one.epoch.generation
            case Completed(epoch=epoch):
                before = epoch < one.epoch
            case _:
                continue
        if before:
            low = entry.number
        elif high is None:
            high = entry.number
    if isinstance(one.content, Manifest) and one.content.journal is not None:
        low = max(low, one.content.journal.number)
    if high is None and damage.tail:
        return True
    return any(max(gap.start, low + 1) < (gap.stop if high is None else min(gap.stop, high)) for gap in damage.gaps)


def _named(base: JournalState, entries: Iterable[Entry], manifests: Iterable[FoundManifest]) -> frozenset[Epoch]:
    """Return the epochs that something besides their own entries says were complete."""
    named = {pin.epoch for pin in base.pins}
    for entry in entries:
        match entry.body:
            case Committed(epoch=epoch) | Pinned(epoch=epoch) | Rewound(to=epoch):
                named.add(epoch)
            case _:
                pass
    for one in manifests:
        if isinstance(one.content, Manifest):
            named.add(one.content.parent)
            if one.content.journal is not None:
                named.add(one.content.journal.complete)
    return frozenset(named)


def _proved(base: JournalState, entries: Iterable[Entry]) -> frozenset[Epoch]:
    """Return the epochs that the journal itself says were complete, though their own entries may be lost.

    Epochs that a later rewind gave up are left out.
    """
    proved = {pin.epoch for pin in base.pins}
    for entry in entries:
        match entry.body:
            case Completed(epoch=epoch) | Committed(epoch=epoch) | Pinned(epoch=epoch):
                proved.add(epoch)
            case Removed(epochs=epochs):
                proved.update(epochs)
            case Rewound(to=to):
                proved = {epoch for epoch in proved if epoch <= to} | {to}
            case _:
                pass
    return frozenset(proved)


def _copied_from(found: Found, newest: Epoch | None) -> str:
    """Return where the job was copied from, or an empty text.

    It is empty if the job has gone on since, or if the journal with which the copy began is left: that alone knew what
    the job made elsewhere.
    """
    if found.summaries or 1 in found.entries:
        return ""
    contents = (one.content for one in found.manifests if one.epoch == newest)
    origins = [from_json(content.notes).origin for content in contents if isinstance(content, Manifest)]
    return next((uri for origin in origins if (uri := _first_copied_from(origin))), "")


def _first_copied_from(origin: Origin | None) -> str:
    while origin is not None and origin.how == MOVE:
        origin = origin.before
    return origin.uri if origin is not None and origin.how == COPY else ""


def _made_anew(
    possible: Iterable[FoundManifest], known: Iterable[Epoch], named: frozenset[Epoch], listed: Iterable[str]
) -> tuple[FoundManifest, ...]:
    """Return the epochs to take for complete: those that something says to be, the newest, and savepoints.

    Any other one is in the way of nothing: a later epoch has all that it had.
    """
    files = frozenset(listed)
    whole = sorted((one for one in possible if _is_whole(one, files)), key=lambda one: one.epoch)
    newest = max(known, default=NO_EPOCH)
    return tuple(
        one
        for one in whole
        if one.epoch in named
        or (one is whole[-1] and one.epoch > newest)
        or (isinstance(one.content, Manifest) and one.content.kind is ManifestKind.SAVEPOINT)
    )


def _is_whole(one: FoundManifest, files: frozenset[str]) -> bool:
    return isinstance(one.content, Manifest) and one.content.references() <= files


def _is_sound(record: EpochRecord, manifests: Iterable[FoundManifest], files: frozenset[str]) -> bool:
    return any(
        one.path == record.manifest and one.digest == record.digest and _is_whole(one, files) for one in manifests
    )


def _folded(base: JournalState, entries: Iterable[Entry], anew: tuple[FoundManifest, ...]) -> JournalState:
    """Return what the entries that are left say, with those that are made anew where they belong."""
    state, waiting = base, list(anew)
    for entry in entries:
        match entry.body:
            case Completed(epoch=epoch) | Committed(epoch=epoch) | Pinned(epoch=epoch) | Rewound(to=epoch):
                upto = epoch
            case Removed(epochs=epochs):
                upto = max(epochs, default=NO_EPOCH)
            case Claimed(generation=generation):
                upto = Epoch(generation, 0)
            case _:
                upto = NO_EPOCH
        while waiting and waiting[0].epoch <= upto:
            state = _with_anew(state, waiting.pop(0))
        if not _is_idle(state, entry):
            state = folded(state, entry)
    for one in waiting:
        state = _with_anew(state, one)
    return state


def _is_idle(state: JournalState, entry: Entry) -> bool:
    """True if the entry says nothing about what is left."""
    epochs = {record.epoch for record in state.retained}
    match entry.body:
        case Completed(epoch=epoch):
            return epoch in epochs
        case Pinned(pin=pin, epoch=epoch):
            return epoch not in epochs or any(other.pin == pin for other in state.pins)
        case _:
            return False


def _with_anew(state: JournalState, one: FoundManifest) -> JournalState:
    """Return the state as if the entry was there; output is assumed, as it is not known what else is lost."""
    body = Completed(one.epoch, one.path, one.digest, has_committables=True)
    return folded(state, Entry(max(state.number, 1), Nonce("anew"), body))


def _settled(
    state: JournalState, newest: Epoch | None, unusable: frozenset[EpochRecord], anew: set[Epoch]
) -> JournalState:
    """Return the state with the epochs before the newest taken for committed, and those after it for given up.

    The newest has all that is not committed of those before it; its own output is committed by the next start, unless
    the journal knows that it is.
    """

    def settled(record: EpochRecord) -> EpochRecord | None:
        if record.state in (EpochState.REMOVED, EpochState.GIVEN_UP):
            return record if record.state is EpochState.GIVEN_UP else None
        if newest is None or record.epoch > newest:
            return replace(record, state=EpochState.GIVEN_UP)
        if record.epoch < newest:  # one whose files are gone was removed, and that is lost
            return None if record in unusable else replace(record, state=EpochState.COMMITTED)
        known = record.state is EpochState.COMMITTED or (not record.has_committables and record.epoch not in anew)
        # That something before it had output is assumed, so that nobody goes back behind it without a word.
        return replace(record, has_committables=True, state=EpochState.COMMITTED if known else EpochState.COMPLETE)

    left = tuple(one for record in state.epochs if (one := settled(record)) is not None)
    return replace(state, epochs=with_assumed_output(left))  # an epoch that is lost and removed may have had some, too


def _pins(state: JournalState, manifests: Iterable[FoundManifest], entries: Iterable[Entry]) -> tuple[Pin, ...]:
    """Return the known pins on what is left, and those of savepoints, unless they are known to have been lifted."""
    lifted = {entry.body.pin for entry in entries if isinstance(entry.body, Unpinned)}
    contents = {one.path: one.content for one in manifests}
    pins = {pin.pin: pin for pin in state.pins if any(pin.epoch == record.epoch for record in state.epochs)}
    for record in state.epochs:
        content, pin = contents.get(record.manifest), PinId(f"savepoint-{record.epoch}")
        if isinstance(content, Manifest) and content.kind is ManifestKind.SAVEPOINT and pin not in lifted:
            pins.setdefault(pin, Pin(pin, record.epoch, Pinner.SAVEPOINT))
    return tuple(pins.values())


def _newest_generation(found: Found, state: JournalState) -> Generation:
    """Return the latest generation of which something is left."""
    named = (generation_of(item) or Generation(0) for item in map(parse, found.listed))
    return max(chain(named, [state.generation]))
