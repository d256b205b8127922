"""Which epoch something is made of, or started from, and what is given up for it.

What always holds: what comes after the epoch is given up only if its output was never committed, or if repeated output
is accepted; a newest epoch that is damaged is passed over by the rules by which a job starts (`recovery.decision`), and
one that a running job has removed while it was looked at is not taken for damaged.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from recovery.decision import StartFresh
from recovery.driver.claim import StartRefused, way_back
from recovery.savepoints.job_tree import NEWEST, FoundEpoch, JobTree, NoSuchEpoch, UnusableEpoch
from recovery.savepoints.stopped_job import StoppedJob
from snapshot.journal_entries import Rewound
from snapshot.layout import SHARED
from snapshot.manifest import ForeignJob, Manifest, check_job
from statebackend.ids import Epoch
from statebackend.stores.patience import Patience
from statebackend.stores.store import StoreUnavailable

_PATIENCE: Final = 10.0
_LOOKS: Final = 20


class OutputWouldRepeat(Exception):
    """Epochs would be given up whose output may be committed, so that it would be made once more; say if that is
    accepted.
    """


@dataclass(frozen=True, slots=True)
class Chosen:
    """An epoch, and the complete ones after it, which a job that goes on from it gives up.

    `tree` is what it was found in.
    """

    tree: JobTree
    found: FoundEpoch
    gives_up: tuple[Epoch, ...] = ()

    @property
    def manifest(self) -> Manifest:
        """What of the epoch is still to be restored and committed: without output that is known to be committed."""
        record, manifest = self.found.record, self.found.manifest
        return manifest if record.awaits_commit else without_output(manifest)


def choose(tree: JobTree, which: str = NEWEST, *, accept_duplicates: bool = False) -> Chosen:
    """The epoch that is meant; the newest one is that to which the job would come back if it were started now.

    `NoSuchEpoch`, `UnusableEpoch`, `StartRefused` if nothing sound is left, and `OutputWouldRepeat`. The job may run:
    if it has removed meanwhile what cannot be used, that is no answer, and the tree is looked at anew.
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
    missing = sorted(found.manifest.references() - {info.path for info in tree.store.list(SHARED)})
    if missing:
        raise UnusableEpoch(epoch, f"files that it refers to are missing: {', '.join(missing[:3])}")
    behind = [record for record in tree.state.usable if record.epoch > epoch]
    repeated = [str(record.epoch) for record in behind if record.has_committables]
    if repeated and not accept_duplicates:
        raise OutputWouldRepeat(
            f"{tree.uri}: behind epoch {epoch}, the output of {', '.join(repeated)} may be committed and would be made "
            "once more; accept that (--accept-duplicates), or fork the job, which gives nothing up"
        )
    return Chosen(tree, found, tuple(record.epoch for record in behind))


def go_back(job: StoppedJob, which: str = NEWEST, *, accept_duplicates: bool = False) -> Chosen:
    """Choose, and give up what comes after the epoch; then it is the job's newest. Raises what `choose` does."""
    chosen = choose(job.tree, which, accept_duplicates=accept_duplicates)
    if chosen.gives_up:
        job.propose(Rewound(job.generation, chosen.found.record.epoch))
    return chosen


def without_output(manifest: Manifest) -> Manifest:
    """The same epoch with nothing to commit."""
    operators = (
        replace(one, subtasks=tuple(replace(subtask, committables=()) for subtask in one.subtasks))
        if any(subtask.committables for subtask in one.subtasks)
        else one
        for one in manifest.operators
    )
    return replace(manifest, operators=tuple(operators))


def _newest(tree: JobTree, *, accept_duplicates: bool) -> Chosen:
    state = tree.state
    way = way_back(
        tree.store, tree.uri, state, state.generation, Patience(_PATIENCE), accept_duplicates=accept_duplicates
    )
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
