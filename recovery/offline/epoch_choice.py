"""Choose the epoch that something is made of, or started from, and say what is given up for it.

Invariant: the job goes back behind output, also of epochs that were removed since, only if repeated output is
accepted. A newest epoch that is damaged is passed over by the rules by which a job starts (`recovery.decisions.start`).
One that a running job has removed while it was looked at is not taken for damaged.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from recovery.decisions.start import ACCEPT_DUPLICATES, Fault, GivenUp, StartFresh, given_up_for, in_words
from recovery.driver.claim import StartRefused, way_back, whole_files
from recovery.driver.tree.manifests import without_output
from recovery.offline.job_tree import NEWEST, FoundEpoch, JobTree, NoSuchEpoch, UnusableEpoch
from recovery.offline.stopped_job import StoppedJob
from snapshot.journal.entries import Rewound
from snapshot.journal.state import OutputMade
from snapshot.tree.layout import SHARED
from snapshot.tree.manifest import ForeignJob, Manifest, check_job
from statebackend.errors import SavepointError
from statebackend.ids import Epoch
from statebackend.stores.patience import Patience
from statebackend.stores.store import StoreUnavailable

_PATIENCE: Final = 10.0
_LOOKS: Final = 20


class OutputWouldRepeat(SavepointError):
    """The job has made output after the epoch, which would be made once more; say if that is accepted."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """An epoch, and what a job that goes on from it gives up. `tree` is what it was found in."""

    tree: JobTree
    found: FoundEpoch
    given_up: GivenUp

    @property
    def epoch(self) -> Epoch:
        """Return the epoch's id."""
        return self.found.record.epoch

    @property
    def gives_up(self) -> tuple[Epoch, ...]:
        """Return the complete epochs after this one."""
        return self.given_up.epochs

    @property
    def repeats(self) -> OutputMade:
        """Return the output made after this epoch."""
        return self.given_up.repeats

    @property
    def manifest(self) -> Manifest:
        """Return what is still to be restored and committed: the manifest without output known to be committed."""
        record, manifest = self.found.record, self.found.manifest
        return manifest if record.awaits_commit else without_output(manifest, held=True)


def choose(tree: JobTree, which: str = NEWEST, *, accept_duplicates: bool = False) -> Chosen:
    """Return the chosen epoch; the newest is the one that the job would come back to if it were started now.

    Raises `NoSuchEpoch`, `UnusableEpoch`, `StartRefused` if nothing sound is left, and `OutputWouldRepeat`. The job may
    run: if it has meanwhile removed the epochs that cannot be used, the tree is looked at anew.
    """
    for _ in range(_LOOKS):
        try:
            chosen = _choose(tree, which, accept_duplicates=accept_duplicates)
        except (UnusableEpoch, StartRefused) as error:
            unusable = error.unusable if isinstance(error, StartRefused) else frozenset((error.epoch,))
            now = tree.look_again()
            if _still_usable(now, unusable):
                raise
        else:
            unusable = frozenset(error.epoch for error in chosen.found.passed_over)
            now = tree.look_again() if unusable else tree
            if _still_usable(now, unusable):
                return chosen
        tree = now
    raise StoreUnavailable(f"{tree.uri}: the job removes its epochs more quickly than they can be read; try again")


def _still_usable(tree: JobTree, epochs: frozenset[Epoch]) -> bool:
    return epochs <= {record.epoch for record in tree.state.usable}


def _choose(tree: JobTree, which: str, *, accept_duplicates: bool) -> Chosen:
    if which == NEWEST:
        return _newest(tree, accept_duplicates=accept_duplicates)
    found = tree.find(which)
    epoch = found.record.epoch
    missing = sorted(found.manifest.references() - whole_files(tree.store.list(SHARED), (found.manifest,)))
    if missing:
        raise UnusableEpoch(epoch, f"{Fault.FILES_MISSING.value}: {', '.join(missing[:3])}")
    given_up = given_up_for(tree.state, found.record)
    if given_up.repeats.epochs and not accept_duplicates:
        raise OutputWouldRepeat(
            f"{tree.uri}: {in_words(given_up.repeats, epoch)} may be committed and would be made once more; go on from "
            f"the newest epoch, or accept the repeated output ({ACCEPT_DUPLICATES})"
        )
    return Chosen(tree, found, given_up)


def go_back(job: StoppedJob, which: str = NEWEST, *, accept_duplicates: bool = False) -> Chosen:
    """Choose an epoch, and give up those after it, so that it is the job's newest. Raises what `choose` does."""
    chosen = choose(job.tree, which, accept_duplicates=accept_duplicates)
    if chosen.given_up.is_anything:
        job.propose(Rewound(job.generation, chosen.found.record.epoch))
    return chosen


def _newest(tree: JobTree, *, accept_duplicates: bool) -> Chosen:
    state = tree.state
    try:
        way = way_back(
            tree.store, tree.uri, state, state.generation, Patience(_PATIENCE), accept_duplicates=accept_duplicates
        )
    except StartRefused as error:
        if tree.is_older_copy and not error.unusable:  # nothing is damaged
            raise OutputWouldRepeat(str(error)) from error
        raise
    if isinstance(way.decision, StartFresh):
        raise NoSuchEpoch(f"{tree.uri}: job {tree.birth.job} has no complete epoch yet")
    restore = way.decision
    record = next(record for record in state.usable if record.epoch == restore.epoch)
    skipped = [UnusableEpoch(one.epoch, f"{one.fault.value} ({one.detail})") for one in restore.skipped]
    newer = tuple(error for error in reversed(skipped) if error.epoch > restore.epoch)
    manifest = way.sound[record.epoch]
    try:
        check_job(manifest, tree.birth.job, record.manifest)
    except ForeignJob as error:
        raise UnusableEpoch(record.epoch, str(error)) from error
    return Chosen(tree, FoundEpoch(record, manifest, newer), restore.gives_up)
