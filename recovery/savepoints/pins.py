"""Epochs kept while somebody reads them: a pin in the journal, which any process may write, and which is lifted after.

What always holds: between `pinned` and its end no clean-up removes the epoch. What was done meanwhile stays done, also
if the pin could not be lifted. A reader that is killed, or whose store is away at its end, leaves its pin, which keeps
its epoch until somebody lifts it (`recovery dispose --readers`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from secrets import token_hex

from recovery.driver.tree import JournalInDoubt, propose
from recovery.savepoints.job_tree import JobTree, NoSuchEpoch, journal_of
from snapshot.journal_entries import Body, JournalError, PinId, Pinned, Pinner, Unpinned
from snapshot.journal_writer import JournalWriter, Refused, Won
from statebackend.ids import Epoch
from statebackend.stores.store import StoreError


@contextmanager
def pinned(tree: JobTree, epoch: Epoch) -> Iterator[None]:
    """Keep an epoch while it is read. `NoSuchEpoch` if it is not there any more, `JournalInDoubt` if none can tell.

    Nothing is raised because the pin cannot be lifted, or was by somebody else.
    """
    pin = PinId(f"reader-{epoch}-{token_hex(8)}")
    try:
        _write(tree, Pinned(pin, epoch, Pinner.READER))
        yield
    finally:  # also of a pin that was interrupted: it may be there
        with suppress(JournalInDoubt, JournalError, StoreError, NoSuchEpoch):
            _write(tree, Unpinned(pin))


def _write(tree: JobTree, body: Body) -> None:
    journal = journal_of(tree.store)
    outcome = propose(journal, JournalWriter(journal.read()), body)
    match outcome:
        case Won():
            return
        case Refused(refusal):
            raise NoSuchEpoch(f"{tree.uri}: {refusal.text}")
        case _:
            raise JournalInDoubt(f"{tree.uri}: whether {body} is in the journal cannot be told: {outcome}")
