"""Letting a savepoint go: its pins are lifted, and whoever cleans up next takes it away.

What always holds: the newest epoch of a job stays, pinned or not, as the job comes back to it. Any process may lift a
pin; one that is lifted already is no error.
"""

from __future__ import annotations

from dataclasses import dataclass

from recovery.driver.tree import JournalInDoubt, propose
from recovery.savepoints.job_tree import JobTree, NoSuchEpoch, journal_of
from recovery.savepoints.stopped_job import JobRuns, refuse_if_it_runs
from snapshot.journal import Reason
from snapshot.journal_entries import Pinner, Unpinned
from snapshot.journal_writer import Forgotten, JournalWriter, Refused
from statebackend.ids import Epoch


@dataclass(frozen=True, slots=True)
class Disposed:
    """Which pins were lifted. `runs`: the job runs on this host, and removes the epoch itself."""

    epoch: Epoch
    pins: tuple[str, ...]
    runs: bool


def dispose(tree: JobTree, which: str, *, readers: bool = False, dry_run: bool = False) -> Disposed:
    """Lift the savepoint's pins, and with `readers` those that readers have left.

    `NoSuchEpoch` if it is pinned by nobody.
    """
    epoch = tree.record(which).epoch
    kinds = {Pinner.SAVEPOINT, Pinner.READER} if readers else {Pinner.SAVEPOINT}
    pins = [pin.pin for pin in tree.state.pins if pin.epoch == epoch and pin.pinner in kinds]
    if not pins:
        raise NoSuchEpoch(f"{tree.uri}: epoch {epoch} is not pinned, so it goes when newer ones have taken its place")
    if not dry_run:
        journal = journal_of(tree.store)
        writer = JournalWriter(journal.read())
        for pin in pins:
            match propose(journal, writer, Unpinned(pin)):
                case Forgotten(number):
                    raise JournalInDoubt(f"whether entry {number} lifts pin {pin} cannot be told any more; do it again")
                case Refused(refusal) if refusal.reason is not Reason.NO_SUCH_PIN:
                    raise JournalInDoubt(refusal.text)
                case _:
                    pass
    return Disposed(epoch, tuple(pins), _runs(tree))


def _runs(tree: JobTree) -> bool:
    try:
        refuse_if_it_runs(tree)
    except JobRuns:
        return True
    return False
