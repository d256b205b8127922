"""The start of a generation: claim the job, look at what is there, and decide from which epoch it goes on.

Invariant: a journal that is damaged, or has lost entries, is refused before anything is written. What the
decision depends on is looked at when the claim is won, so that no older driver adds to it; what is decided is what
`recovery.decisions.start` says, and nothing else is written to the journal.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Final

from recovery.decisions.start import (
    Condition,
    FoundManifest,
    Observed,
    Refuse,
    Restore,
    StartFresh,
    decide,
)
from recovery.driver.settings.job import JobSettings
from recovery.driver.settings.program_fit import check_ignored, compare
from recovery.driver.tree.evidence import examine
from recovery.driver.tree.identity import JobOnItsWay, bear
from recovery.driver.tree.manifests import known_in, reading_in, without_operators, without_output
from recovery.driver.tree.owned import DamagedBroadcast, JournalInDoubt, Tree, propose, read_broadcast
from snapshot.journal.entries import Claimed, Rewound
from snapshot.journal.machine import Reason
from snapshot.journal.state import NO_OUTPUT, JournalState, OutputMade
from snapshot.journal.store import StoredJournal
from snapshot.journal.writer import Forgotten, JournalWriter, Refused, Won
from snapshot.program.source import Available, AvailableNow, Source
from snapshot.tree.layout import SHARED
from snapshot.tree.manifest import DamagedManifest, Manifest, NewerManifest, check_job
from snapshot.tree.manifest_json import decode, digest
from statebackend.errors import JobError
from statebackend.ids import Epoch, Generation, Uid
from statebackend.stores.patience import Patience
from statebackend.stores.store import BlobInfo, BlobNotFound, BlobStore

_CLAIMS: Final = 20


class StartRefused(JobError):
    """The job cannot go on from what is in its tree; the message lists every reason. Only the claim was made.

    `unusable` are the complete epochs that cannot be used.
    """

    def __init__(self, text: str, unusable: Iterable[Epoch] = ()) -> None:
        super().__init__(text)
        self.unusable = frozenset(unusable)


@dataclass(frozen=True, slots=True)
class Start:
    """A generation that was claimed, and from what it goes on."""

    generation: Generation
    tree: Tree
    epoch: Epoch | None
    replay: tuple[Epoch, ...]
    skipped: tuple[str, ...]
    repeats: OutputMade
    """Output that is made once more, as was accepted."""
    found: Mapping[Uid, Available]
    """The splits of the sources that the epoch does not know."""


@dataclass(frozen=True, slots=True)
class WayBack:
    """The epoch that a start of a job goes on from, and the manifests of all its epochs that can be read."""

    decision: StartFresh | Restore
    sound: Mapping[Epoch, Manifest]


@dataclass(slots=True)
class _Manifests:
    sound: dict[Epoch, Manifest] = field(default_factory=dict)
    found: list[FoundManifest] = field(default_factory=list)


def claim(
    store: BlobStore,
    settings: JobSettings,
    driver: str,
    patience: Patience | None = None,
    damaged: Mapping[str, str] = MappingProxyType({}),
) -> Start:
    """Take the job, as its next generation; block meanwhile. A crash leaves a claim that the next start supersedes.

    `damaged` are files that are known not to be as they were written, and what is wrong with them.

    A new job is born first, when its sources have been looked at. `DamagedTree`, `WrongJob` and what a source of a new
    job raises come before anything is written. `StartRefused`, `ProgramDoesNotFit` or what a new source raises if the
    job cannot go on. A store that does not do what it is asked is asked again as long as `patience` says.
    """
    patience = patience or Patience()
    newborn, seen = settings.newborn, None
    if newborn is not None:
        seen = _look_at_sources(settings, None)
        patience.ask(lambda: bear(store, newborn, settings.store))
    journal = StoredJournal(store, patience)
    examined = examine(store, settings.store, journal, patience)
    writer = JournalWriter(examined.state)
    generation = claim_next(journal, writer, driver)
    way, broadcasts = _sound_way_back(store, settings, writer.state, generation, patience, damaged, examined.shared)
    epoch: Epoch | None = None
    replay: tuple[Epoch, ...] = ()
    skipped: tuple[str, ...] = ()
    repeats = NO_OUTPUT
    match way.decision:
        case StartFresh():
            pass
        case Restore(to, epochs, gives_up, unusable):
            if gives_up.is_anything:
                _rewind(journal, writer, Rewound(generation, to))
            epoch, replay = to, epochs
            skipped = tuple(f"{one.epoch}: {one.fault.value} ({one.detail})" for one in unusable)
            repeats = gives_up.repeats
    manifest = None if epoch is None else without_operators(way.sound[epoch], settings.options.ignore_state)
    if manifest is not None and epoch not in replay:  # the journal says that all it names is committed
        manifest = without_output(manifest, held=True)
    if manifest is not None:
        check_job(manifest, settings.job, settings.store)
        check_ignored(way.sound[manifest.epoch], settings.options.ignore_state, unsettled=bool(replay))
        fit = compare(settings.plan, manifest, unsettled=bool(replay))
        fit.check(allow_non_restored_state=settings.options.allow_non_restored_state)
    restored = {} if manifest is None else {manifest.epoch: manifest}
    tree = Tree(store, writer, generation, way.sound, broadcasts, patience, restored)
    sources = _look_at_sources(settings, manifest) if seen is None else seen
    return Start(generation, tree, epoch, replay, skipped, repeats, sources)


def _sound_way_back(
    store: BlobStore,
    settings: JobSettings,
    state: JournalState,
    generation: Generation,
    patience: Patience,
    damaged: Mapping[str, str],
    listed: Sequence[BlobInfo],
) -> tuple[WayBack, dict[Epoch, dict[Uid, bytes]]]:
    """Return from which epoch the job goes on, and the epoch's broadcast state.

    The driver reads the broadcast state itself, and so finds it damaged.
    """
    known = dict(damaged)
    while True:
        way = way_back(
            store,
            settings.store,
            state,
            generation,
            patience,
            accept_duplicates=settings.options.accept_duplicates,
            listed=listed,
            damaged=known,
        )
        if isinstance(way.decision, StartFresh):
            return way, {}
        manifest = without_operators(way.sound[way.decision.epoch], settings.options.ignore_state)
        try:
            return way, {manifest.epoch: patience.ask(partial(read_broadcast, store, manifest))}
        except DamagedBroadcast as error:
            if error.path in known:
                raise
            known[error.path] = error.fault


def way_back(
    store: BlobStore,
    uri: str,
    state: JournalState,
    generation: Generation,
    patience: Patience,
    *,
    accept_duplicates: bool = False,
    listed: Sequence[BlobInfo] | None = None,
    damaged: Mapping[str, str] = MappingProxyType({}),
) -> WayBack:
    """Decide from which epoch a generation goes on, as the journal and the store are now; write nothing.

    `damaged` is as for `claim`. `listed` are the shared files, if they were listed before; they are listed anew unless
    all is there that is needed.
    `StartRefused` with every reason if it cannot. It counts for good only if the generation was claimed before.
    """
    manifests = _look(store, state, patience)
    present = None if listed is None else whole_files(listed, manifests.sound.values())
    if present is None or not all(found.files <= present for found in manifests.found):
        present = whole_files(patience.ask(lambda: store.list(SHARED)), manifests.sound.values())
    observed = Observed(state, generation, tuple(manifests.found), present, accept_duplicates, damaged)
    match decide(observed):
        case Refuse(hindrances, unusable):
            reasons = "\n".join(f"  {hindrance.why.value}: {hindrance.text}" for hindrance in hindrances)
            details = "".join(f"\n  epoch {one.epoch}: {one.fault.value} ({one.detail})" for one in unusable)
            text = f"the job cannot go on from {uri}:\n{reasons}{details}"
            raise StartRefused(text, (one.epoch for one in unusable))
        case decision:
            return WayBack(decision, manifests.sound)


def whole_files(listed: Iterable[BlobInfo], manifests: Iterable[Manifest]) -> frozenset[str]:
    """Return the paths of the listed files, but for those that are not as long as the manifests say.

    A file that is cut short is as good as missing. One that was changed in place is found when it is read (see
    `recovery.driver.tree.damage`).
    """
    sizes = {file.path: file.size for manifest in manifests for file in manifest.files()}
    return frozenset(info.path for info in listed if sizes.get(info.path, info.size) == info.size)


def claim_next(journal: StoredJournal, writer: JournalWriter, driver: str) -> Generation:
    """Claim the generation after the newest; raise `JournalInDoubt` if that cannot be had or told.

    Raise `JobOnItsWay` if the job was moved away, or will be when the move is gone on with.
    """
    for _ in range(_CLAIMS):
        generation = Generation(writer.state.generation + 1)
        match propose(journal, writer, Claimed(generation, driver)):
            case Won():
                return generation
            case Refused(refusal) if refusal.reason is Reason.CLOSED:
                raise JobOnItsWay(writer.state.moved_to)
            case Forgotten(number):
                raise JournalInDoubt(f"whether the claim is the journal's entry {number} cannot be told any more")
            case _:
                pass  # another start was quicker: the next number
    raise JournalInDoubt(f"{_CLAIMS} other starts of the job were quicker; start one driver only")


def _look(store: BlobStore, state: JournalState, patience: Patience) -> _Manifests:
    manifests = _Manifests()
    for record in state.retained:
        try:
            data = patience.ask(partial(store.read, record.manifest))
            manifest = decode(data, record.manifest)
        except BlobNotFound:
            found = FoundManifest(record.epoch, Condition.MISSING, record.manifest)
        except NewerManifest as error:
            found = FoundManifest(record.epoch, Condition.NEWER, str(error))
        except DamagedManifest as error:
            found = FoundManifest(record.epoch, Condition.DAMAGED, str(error))
        else:
            manifests.sound[record.epoch] = manifest
            found = FoundManifest(record.epoch, Condition.SOUND, digest=digest(data), files=manifest.references())
        if record.usable:
            manifests.found.append(found)
    return manifests


def _rewind(journal: StoredJournal, writer: JournalWriter, rewound: Rewound) -> None:
    outcome = propose(journal, writer, rewound)
    if not isinstance(outcome, Won):
        raise JournalInDoubt(f"the job could not be taken back to epoch {rewound.to}: {outcome}")


def _look_at_sources(settings: JobSettings, manifest: Manifest | None) -> dict[Uid, Available]:
    return {uid: _available(settings, uid, source, manifest) for uid, source in settings.plan.sources.items()}


def _available(settings: JobSettings, uid: Uid, source: Source, manifest: Manifest | None) -> Available:
    is_known = manifest is not None and any(operator.uid == uid for operator in manifest.operators)
    first = () if is_known else tuple(source.discover(settings.parallelism))
    if not settings.options.available_now or not isinstance(source, AvailableNow):
        return Available(first)
    reading = {**reading_in(manifest, uid), **dict.fromkeys(first)}
    there = source.available(known_in(manifest, uid) | set(first), reading)
    return Available((*first, *there.new), there.ends)
