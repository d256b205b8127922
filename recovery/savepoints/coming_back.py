"""Which epoch something is made of, or started from, and what is given up for it.

What always holds: what comes after the epoch is given up only if its output was never committed, or if repeated output
is accepted; a newest epoch that is damaged is passed over by the rules by which a job starts (`recovery.decision`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from recovery.decision import StartFresh
from recovery.driver.claim import way_back
from recovery.savepoints.job_tree import NEWEST, FoundEpoch, JobTree, NoSuchEpoch, UnusableEpoch
from recovery.savepoints.stopped_job import StoppedJob
from snapshot.journal_entries import Rewound
from snapshot.layout import SHARED
from snapshot.manifest import Manifest
from statebackend.ids import Epoch
from statebackend.stores.patience import Patience

_PATIENCE: Final = 10.0


class OutputWouldRepeat(Exception):
    """Epochs would be given up whose output may be committed, so that it would be made once more; say if that is
    accepted.
    """


@dataclass(frozen=True, slots=True)
class Chosen:
    """An epoch, and the complete ones after it, which a job that goes on from it gives up."""

    found: FoundEpoch
    gives_up: tuple[Epoch, ...] = ()

    @property
    def manifest(self) -> Manifest:
        """What of the epoch is still to be restored and committed: without output that is known to be committed."""
        record, manifest = self.found.record, self.found.manifest
        return manifest if record.awaits_commit else without_output(manifest)


def choose(tree: JobTree, which: str = NEWEST, *, accept_duplicates: bool = False) -> Chosen:
    """The epoch that is meant; the newest one is that to which the job would come back if it were started now.

    `NoSuchEpoch`, `UnusableEpoch`, `StartRefused` if nothing sound is left, and `OutputWouldRepeat`.
    """
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
    return Chosen(found, tuple(record.epoch for record in behind))


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
    return Chosen(FoundEpoch(record, tree.manifest(record), newer), restore.gives_up)
