"""The beliefs of drivers and readers, compared with the truth as they come to them.

Invariant: the product runs as it is; what it is told is observed, and not changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from recovery.decisions.cleanup import ObservedTree
from recovery.driver.tree.owned import Swept, Tree
from recovery.testing.checks.observer import JobObserver
from snapshot.journal.entries import Body, Nonce
from snapshot.journal.state import JournalState
from snapshot.journal.store import StoredJournal
from snapshot.journal.writer import Fenced, JournalWriter, Outcome, Refused, Won


@contextmanager
def observing(observer: JobObserver) -> Iterator[None]:
    """Compare with the truth, while the block lasts, what writers and readers of the journal and sweeps come to."""
    propose, read, sweep = StoredJournal.propose, StoredJournal.read, Tree.sweep
    journal = observer.journal

    def proposed(self: StoredJournal, writer: JournalWriter, nonce: Nonce, body: Body) -> Outcome:
        outcome = propose(self, writer, nonce, body)
        match outcome:
            case Won(entry):
                observer.held(lambda: journal.won(entry))
            case Fenced() | Refused():
                observer.held(lambda: journal.lost(nonce))
            case _:
                pass
        return outcome

    def was_read(self: StoredJournal) -> JournalState:
        since = journal.state.number
        state = read(self)
        observer.held(lambda: journal.read(state, since))
        return state

    def swept(self: Tree, observed: ObservedTree, go_on: Callable[[], bool]) -> Swept:
        attempt, newest = observed.attempt, observed.journal.newest_complete
        began = None if attempt is None else observer.sweeping(attempt, newest)
        outcome = sweep(self, observed, go_on)
        if began is not None and go_on() and not outcome.unexplained:
            observer.swept(began)
        return outcome

    try:
        StoredJournal.propose, StoredJournal.read, Tree.sweep = proposed, was_read, swept  # type: ignore[method-assign]
        yield
    finally:
        StoredJournal.propose, StoredJournal.read, Tree.sweep = propose, read, sweep  # type: ignore[method-assign]
