"""What has happened to a job is told also while the job compacts its journal."""

from __future__ import annotations

from secrets import token_hex

import pytest

from recovery.driver.tree.identity import Birth
from recovery.offline.job_tree import JobTree
from recovery.savepoints.happenings import history
from snapshot.ids import JobId
from snapshot.journal.entries import Claimed
from snapshot.journal.state import EMPTY
from snapshot.journal.store import StoredJournal, fresh_nonce
from snapshot.journal.writer import JournalWriter
from statebackend.ids import Generation
from statebackend.stores.memory_store import MemoryStore
from statebackend.stores.store import BlobInfo, StoreUnavailable
from tests.wrapped_store import WrappedStore


class Compacting(WrappedStore):
    """A store whose job compacts its journal twice after each of the next listings, as the second newest summary stays
    for readers that have just found it.
    """

    def __init__(self, times: int) -> None:
        super().__init__(MemoryStore(token_hex(8)))
        self._journal, self._writer = StoredJournal(self.store), JournalWriter(EMPTY)
        self._claim_and_compact()
        self._times = times

    def list(self, folder: str = "") -> tuple[BlobInfo, ...]:
        listed = super().list(folder)
        if self._times:
            self._times -= 1
            self._claim_and_compact()
            self._claim_and_compact()
        return listed

    def _claim_and_compact(self) -> None:
        generation = Generation(self._writer.state.generation + 1)
        self._journal.propose(self._writer, fresh_nonce(), Claimed(generation, "driver"))
        self._journal.compact(self._writer.state, 0)


def tree_in(store: WrappedStore) -> JobTree:
    return JobTree("memory://job", store, Birth("job", JobId("job"), 128), EMPTY)


def test_a_summary_that_another_has_taken_the_place_of_is_not_missed() -> None:
    [told] = history(tree_in(Compacting(times=2)))
    assert told.what.startswith("generation 5, claimed by driver; no epoch")


def test_a_summary_that_is_listed_and_never_there_is_not_looked_for_for_ever() -> None:
    with pytest.raises(StoreUnavailable, match=r"memory://job: the journal's summary is gone each time .* try again"):
        history(tree_in(Compacting(times=1000)))
