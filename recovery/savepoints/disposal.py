"""Letting a savepoint go: its pins are lifted, and the next clean-up takes it away.

Invariant: the newest epoch of a job stays, pinned or not, as the job comes back to it. Any process may lift a
pin; one that is lifted already is no error. Pins of the other kind than was asked for stay.
"""

from __future__ import annotations

from dataclasses import dataclass

from recovery.driver.tree.address import NotAllowed
from recovery.driver.tree.owned import JournalInDoubt, propose
from recovery.offline.job_tree import JobTree, NoSuchEpoch, journal_of
from recovery.offline.stopped_job import JobRuns, refuse_if_it_runs
from snapshot.journal.entries import Pinner, Unpinned
from snapshot.journal.machine import Reason
from snapshot.journal.writer import Forgotten, JournalWriter, Refused
from statebackend.ids import Epoch


@dataclass(frozen=True, slots=True)
class Disposed:
    """The lifted pins, and those that the epoch has still. `runs`: the job runs on this host, and removes the epoch
    itself; so it is if this user may not ask whether it runs.
    """

    epoch: Epoch
    pins: tuple[str, ...]
    left: tuple[str, ...]
    runs: bool


def dispose(tree: JobTree, epoch: str, *, readers: bool = False, dry_run: bool = False) -> Disposed:
    """Lift the pins of the savepoint; or, with `readers`, those that readers have left, and not the savepoint's own.

    An epoch that was given up when the job went back is found by its number. `NoSuchEpoch` if no such pin is there.
    """
    found = tree.record(epoch, given_up=True).epoch
    pinner = Pinner.READER if readers else Pinner.SAVEPOINT
    of_epoch = [pin for pin in tree.state.pins if pin.epoch == found]
    pins = [pin.pin for pin in of_epoch if pin.pinner is pinner]
    if not pins:
        raise NoSuchEpoch(f"{tree.uri}: epoch {found} is not pinned {_other(readers, bool(of_epoch))}")
    runs = _runs(tree)
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
    left = tuple(pin.pin for pin in of_epoch if pin.pinner is not pinner)
    return Disposed(found, tuple(pins), left, runs)


def _other(readers: bool, pinned: bool) -> str:
    if not pinned:
        return "at all, so it goes when newer ones have taken its place"
    return "by a reader, but as a savepoint (no --readers)" if readers else "as a savepoint, but by readers (--readers)"


def _runs(tree: JobTree) -> bool:
    try:
        refuse_if_it_runs(tree)
    except (JobRuns, NotAllowed):
        return True
    return False
