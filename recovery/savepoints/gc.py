"""Taking away files without a reference: everything is classified first, then the oldest goes first.

Invariant: nothing is deleted that a retained epoch or a pin refers to, nor what the present generation may be
about to refer to; so it is safe beside a running job, and an interrupted clean-up is just done again. A job that is
taken over lets epochs go only if its newest one is sound.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from recovery.decisions.cleanup import EpochFiles, Fate, ObservedTree, classify, plan_removal
from recovery.offline import fail_points
from recovery.offline.epoch_choice import choose
from recovery.offline.fail_points import reached
from recovery.offline.job_tree import JobTree, NoSuchEpoch, UnusableEpoch
from recovery.offline.stopped_job import StoppedJob, refuse_if_it_runs, take_over
from snapshot.journal.entries import Entry, Pinner
from snapshot.journal.machine import apply
from snapshot.journal.state import EpochRecord, JournalState, Pin
from snapshot.journal.store import fresh_nonce
from snapshot.tree.layout import JOB, ManifestFile, SharedFile, parse
from statebackend.ids import Epoch, Generation
from statebackend.stores.store import BlobInfo, StoreUnavailable

_LOOKS = 50


@dataclass(frozen=True, slots=True)
class Doomed:
    """A file that is not needed, and why it may go."""

    path: str
    size: int
    why: Fate


@dataclass(frozen=True, slots=True)
class CleanupPlan:
    """A plan of a clean-up. `doomed` are in the order in which they are to be deleted; the rest stays, with its sizes.

    `pinned_by_readers` are pins that perhaps no reader uses any more: a reader that was killed leaves one. `lets_go`
    are the epochs that a job lets go when it is taken over.
    """

    job: str
    doomed: tuple[Doomed, ...]
    needed: int
    needed_bytes: int
    in_flight_possible: int
    unexplained: int
    foreign: tuple[str, ...]
    pinned_by_readers: tuple[Pin, ...]
    lets_go: tuple[Epoch, ...] = ()

    @property
    def doomed_bytes(self) -> int:
        """Return the number of bytes that deleting the doomed files frees."""
        return sum(file.size for file in self.doomed)


@dataclass(frozen=True, slots=True)
class Cleaned:
    """The deleted files; `leftovers` are unfinished files of writers that died, `let_go` the epochs that went."""

    job: str
    files: int
    bytes: int
    leftovers: int
    let_go: tuple[Epoch, ...] = ()


def plan_cleanup(tree: JobTree) -> CleanupPlan:
    """Plan what may be deleted now; the tree is read anew: journal, manifests and listing, in this order."""
    now, references = _look(tree)
    return _planned(now, now.state, references)


def plan_take_over(tree: JobTree, job_folder: Path | None = None) -> CleanupPlan:
    """Plan what could be deleted if the job were taken over now, without doing any of it; raises as `let_go` does."""
    refuse_if_it_runs(tree, job_folder)
    now, references = _look(tree)
    _check_newest(now)
    generation = Generation(now.state.generation + 1)
    claimed = replace(now.state, generation=generation)
    removed = plan_removal(ObservedTree(claimed, references), generation, 1)
    if removed is None:
        return _planned(now, claimed, references)
    after = apply(claimed, Entry(claimed.number + 1, fresh_nonce(), removed))
    return replace(_planned(now, after, references), lets_go=removed.epochs)


def take_over_and_plan(tree: JobTree, job_folder: Path | None = None) -> CleanupPlan:
    """Take the job over, let its older epochs go, and plan what may be deleted then.

    Raises `JobRuns`, and as `let_go` does; a newest epoch that is not sound is noticed before anything is claimed.
    """
    refuse_if_it_runs(tree, job_folder)
    _check_newest(tree)
    gone = let_go(take_over(tree, "gc", job_folder=job_folder))
    return replace(plan_cleanup(tree), lets_go=gone)


def clean_up(tree: JobTree, plan: CleanupPlan, deleted: Callable[[Doomed], object] = lambda _: None) -> Cleaned:
    """Delete what the plan names, in its order. Doing it again, also by several at once, does no harm."""
    for file in plan.doomed:
        tree.store.delete(file.path)
        reached(fail_points.GARBAGE_COLLECTED)
        deleted(file)
    return Cleaned(plan.job, len(plan.doomed), plan.doomed_bytes, tree.store.remove_leftovers(), plan.lets_go)


def let_go(job: StoppedJob, keep: int = 1) -> tuple[Epoch, ...]:
    """Let go all epochs of a job that was taken over except the newest, the pinned and those that are not committed.

    What they leave is named in the journal, and goes with the next clean-up. Returns the epochs that went.
    `UnusableEpoch`, or `StartRefused`, if the job could not come back to the newest one: then all stay.
    """
    tree = job.tree
    _check_newest(tree)
    references = tuple(EpochFiles(record.epoch, _references(tree, record)) for record in tree.state.retained)
    removed = plan_removal(ObservedTree(tree.state, references), job.generation, keep)
    if removed is None:
        return ()
    job.propose(removed)
    return removed.epochs


def _check_newest(tree: JobTree) -> None:
    """Raise `UnusableEpoch` if the job would not come back to its newest epoch, as it then needs those before it."""
    if not tree.state.usable:
        return
    chosen = choose(tree, accept_duplicates=tree.is_older_copy).found
    if chosen.passed_over:
        newest = chosen.passed_over[0]
        raise UnusableEpoch(
            newest.epoch,
            f"{newest.reason}; no epoch before it is let go, as the job would come back to {chosen.record.epoch}: "
            "repair it, or start the job, which goes back",
        )


def _planned(now: JobTree, state: JournalState, references: tuple[EpochFiles, ...]) -> CleanupPlan:
    """Plan what may be deleted if the journal says this."""
    retained = {record.epoch for record in state.retained}
    references = tuple(one for one in references if one.epoch in retained)
    listed = {info.path: info for info in now.store.list()}
    classified = classify(ObservedTree(state, references, tuple(listed)))
    removable = [_doomed(listed[path], Fate.REMOVABLE) for path in classified.of(Fate.REMOVABLE)]
    orphaned = [_doomed(listed[path], Fate.ORPHANED) for path in sorted(classified.of(Fate.ORPHANED), key=_age)]
    needed = classified.of(Fate.NEEDED)
    return CleanupPlan(
        now.birth.job,
        (*removable, *orphaned),
        len(needed),
        sum(listed[path].size for path in needed),
        len(classified.of(Fate.IN_FLIGHT_POSSIBLE)),
        len(classified.of(Fate.UNEXPLAINED)),
        tuple(path for path in classified.of(Fate.FOREIGN) if path != JOB),
        tuple(pin for pin in state.pins if pin.pinner is Pinner.READER),
    )


def _look(tree: JobTree) -> tuple[JobTree, tuple[EpochFiles, ...]]:
    """Read the journal, and then the references of all epochs that it retains.

    All that later epochs of the job refer to is of the present generation, or of the newest of the retained epochs, so
    none of these may have been removed before it was read.
    """
    for _ in range(_LOOKS):
        now = tree.look_again()
        try:
            return now, tuple(EpochFiles(record.epoch, _references(now, record)) for record in now.state.retained)
        except NoSuchEpoch:
            continue  # the running job was quicker
    raise StoreUnavailable(f"{tree.uri}: the job removes its epochs more quickly than they can be read; try again")


def _references(tree: JobTree, record: EpochRecord) -> frozenset[str] | None:
    try:
        return tree.manifest(record).references()
    except UnusableEpoch:
        return None


def _doomed(info: BlobInfo, why: Fate) -> Doomed:
    return Doomed(info.path, info.size, why)


def _age(path: str) -> tuple[Generation, str]:
    match parse(path):
        case ManifestFile(epoch=epoch):
            return epoch.generation, path
        case SharedFile(incarnation=incarnation):
            return incarnation.generation, path
        case _:
            raise ValueError(f"{path} is not a file of a generation")
