"""The journal in real stores: races between processes, paused drivers, compaction under a reader, lost answers."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from snapshot.journal.entries import Claimed, Completed
from snapshot.journal.state import EMPTY, JournalState
from snapshot.journal.store import StoredJournal, fresh_nonce
from snapshot.journal.writer import JournalWriter, Won
from snapshot.tree.layout import JournalEntry, JournalSummary
from statebackend.ids import Epoch, Generation
from statebackend.stores.fsspec_store import open_store
from statebackend.stores.patience import BRIEF, PAUSES, Patience
from statebackend.stores.store import BlobInfo, BlobStore, Creation, StoreUnavailable, UnknownOutcome
from statebackend.testing.blob_store import OpenStore

from .journal_drivers import (
    PassedOn,
    Point,
    Start,
    check_race,
    check_that_a_paused_driver_changes_nothing,
    claim_until_won,
    journal_places,
    race_of_processes,
)

G1 = Generation(1)


@pytest.fixture
def open_disk(tmp_path: Path) -> OpenStore:
    return partial(open_store, str(tmp_path / "root"))


@pytest.fixture(params=["disk", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> BlobStore:
    return open_store(str(tmp_path) if request.param == "disk" else f"memory:/{tmp_path}")


def no_sleep(seconds: float) -> None:
    raise AssertionError(f"nothing failed, but it would have slept for {seconds} s")


def brief(sleep: Callable[[float], object]) -> Patience:
    return Patience(BRIEF, sleep)


def impatient() -> Patience:
    return brief(no_sleep)


def complete(journal: StoredJournal, writer: JournalWriter) -> None:
    epoch = Epoch(G1, writer.state.newest_complete.number + 1)
    body = Completed(epoch, f"epochs/{epoch}-x/manifest.json", "sha256:00", has_committables=False)
    assert isinstance(journal.propose(writer, fresh_nonce(), body), Won)


def started(store: BlobStore, epochs: int) -> tuple[StoredJournal, JournalWriter]:
    """A journal with a claim and some epochs."""
    journal, writer = StoredJournal(store, impatient()), JournalWriter(EMPTY)
    assert isinstance(journal.propose(writer, fresh_nonce(), Claimed(G1, "driver-1")), Won)
    for _ in range(epochs):
        complete(journal, writer)
    return journal, writer


# --- races and pauses


def test_of_32_processes_that_claim_each_gets_a_generation_of_its_own_and_knows_it(open_disk: OpenStore) -> None:
    check_race(race_of_processes(open_disk, 32), StoredJournal(open_disk()).read())


def test_of_16_threads_that_claim_in_memory_each_gets_a_generation_of_its_own(tmp_path: Path) -> None:
    open_memory = partial(open_store, f"memory:/{tmp_path}")
    Start.barrier = threading.Barrier(16)
    with ThreadPoolExecutor(16) as threads:
        races = [threads.submit(claim_until_won, open_memory, f"driver-{racer}") for racer in range(16)]
    check_race([race.result() for race in races], StoredJournal(open_memory()).read())


@pytest.mark.parametrize("compacted", [True, False], ids=["number free again", "number taken"])
@pytest.mark.parametrize("point", Point, ids=lambda point: point.name.lower())
def test_a_driver_that_comes_back_after_another_has_claimed_publishes_and_commits_nothing(
    open_disk: OpenStore, tmp_path: Path, point: Point, compacted: bool
) -> None:
    check_that_a_paused_driver_changes_nothing(open_disk, tmp_path / "target.db", point, compacted=compacted)


# --- compaction


def test_what_is_read_is_what_was_written_before_and_after_a_compaction(store: BlobStore) -> None:
    journal, writer = started(store, 5)
    assert journal.read() == writer.state
    journal.compact(writer.state, 0)
    assert journal_places(store) == {JournalSummary(6)}
    assert journal.read() == writer.state
    complete(journal, writer)
    assert journal_places(store) == {JournalSummary(6), JournalEntry(7)}
    assert journal.read() == writer.state


class _Meanwhile(PassedOn):
    """Does something before one of the calls that a reader makes."""

    def __init__(self, store: BlobStore, at: int, something: Callable[[], None]) -> None:
        super().__init__(store)
        self._calls, self._at, self._something = 0, at, something
        self.done = False

    def _count(self) -> None:
        if self._calls == self._at:
            self._something()
            self.done = True
        self._calls += 1

    def read(self, path: str) -> bytes:
        self._count()
        return super().read(path)

    def list(self, folder: str = "") -> tuple[BlobInfo, ...]:
        self._count()
        return super().list(folder)


def _read_while_compacting(store: BlobStore, at: int) -> tuple[JournalState, bool]:
    journal, writer = started(store, 4)
    complete_and_compact = _Meanwhile(store, at, lambda: _complete_and_compact(journal, writer))
    before = writer.state
    read = StoredJournal(complete_and_compact, impatient()).read()
    assert read in (before, writer.state)
    return read, complete_and_compact.done


def _complete_and_compact(journal: StoredJournal, writer: JournalWriter) -> None:
    complete(journal, writer)
    journal.compact(writer.state, 0)


@pytest.mark.parametrize("place", ["disk", "memory"])
def test_a_compaction_at_any_point_of_a_read_is_not_noticed(place: str, tmp_path: Path) -> None:
    numbers = []
    for at in range(100):
        folder = tmp_path / str(at)
        read, met = _read_while_compacting(open_store(str(folder) if place == "disk" else f"memory:/{folder}"), at)
        if not met:
            break
        numbers.append(read.number)
    assert numbers == [6] * 8, "a listing, five entries, the end and a listing; what was begun late counts as well"


def test_a_reader_never_goes_back_while_a_writer_completes_and_compacts(store: BlobStore) -> None:
    journal, writer = started(store, 1)

    def write() -> None:
        for _ in range(40):
            _complete_and_compact(journal, writer)

    with ThreadPoolExecutor(1) as threads:
        writing = threads.submit(write)
        done = False
        while not done:
            done = writing.done()
            known = writer.state.number
            read = StoredJournal(store, impatient()).read()
            assert known <= read.number <= writer.state.number + 1, "the newest may count before its writer knows"
            assert read.newest_complete.number == read.number - 1
    writing.result()
    assert journal.read() == writer.state


# --- a store that fails


class _Forgetful(PassedOn):
    """Does what it is asked, or nothing, and loses the answers to the first creates."""

    def __init__(self, store: BlobStore, lost: int, *, does_it: bool) -> None:
        super().__init__(store)
        self._lost, self._does_it = lost, does_it
        self.creates = 0

    def create(self, path: str, data: bytes) -> Creation:
        self.creates += 1
        if self.creates > self._lost:
            return super().create(path, data)
        if self._does_it:
            super().create(path, data)
        raise UnknownOutcome(f"the answer for {path} was lost")


@pytest.mark.parametrize(("does_it", "creates"), [(True, 1), (False, 4)])
def test_a_proposal_whose_answers_are_lost_is_won_once(store: BlobStore, does_it: bool, creates: int) -> None:
    forgetful, slept, writer = _Forgetful(store, 3, does_it=does_it), list[float](), JournalWriter(EMPTY)
    nonce = fresh_nonce()
    outcome = StoredJournal(forgetful, brief(slept.append)).propose(writer, nonce, Claimed(G1, "driver-1"))
    assert isinstance(outcome, Won)
    assert (outcome.entry.number, outcome.entry.nonce) == (1, nonce)
    assert forgetful.creates == creates
    assert slept == list(PAUSES[: min(creates, 3)])
    assert journal_places(store) == {JournalEntry(1)}
    assert StoredJournal(store).read() == writer.state


@pytest.mark.parametrize("does_it", [True, False])
def test_a_compaction_whose_answers_are_lost_is_done_once(store: BlobStore, does_it: bool) -> None:
    _, writer = started(store, 3)
    StoredJournal(_Forgetful(store, 3, does_it=does_it), brief(lambda _: None)).compact(writer.state, 0)
    assert journal_places(store) == {JournalSummary(4)}
    assert StoredJournal(store).read() == writer.state


def test_a_store_that_never_answers_a_create_is_not_asked_for_ever(store: BlobStore) -> None:
    slept = list[float]()
    journal = StoredJournal(_Forgetful(store, 1000, does_it=False), brief(slept.append))
    with pytest.raises(UnknownOutcome, match="journal/0000000001"):
        journal.propose(JournalWriter(EMPTY), fresh_nonce(), Claimed(G1, "driver-1"))
    assert slept == pytest.approx(PAUSES)
    assert StoredJournal(store).read() == EMPTY


class _Unavailable(PassedOn):
    """Cannot be reached for the first calls of each kind."""

    def __init__(self, store: BlobStore, failures: int) -> None:
        super().__init__(store)
        self._failures = failures
        self._calls: dict[str, int] = {}

    def _fail(self, call: str) -> None:
        self._calls[call] = self._calls.get(call, 0) + 1
        if self._calls[call] <= self._failures:
            raise StoreUnavailable(f"no {call}")

    def create(self, path: str, data: bytes) -> Creation:
        self._fail("create")
        return super().create(path, data)

    def read(self, path: str) -> bytes:
        self._fail("read")
        return super().read(path)

    def list(self, folder: str = "") -> tuple[BlobInfo, ...]:
        self._fail("list")
        return super().list(folder)

    def delete(self, path: str) -> None:
        self._fail("delete")
        super().delete(path)


def test_what_is_unavailable_for_a_while_is_asked_for_again(store: BlobStore) -> None:
    slept = list[float]()
    _, writer = started(store, 3)
    for _ in range(2):
        StoredJournal(_Unavailable(store, len(PAUSES)), brief(slept.append)).compact(writer.state, 0)
        assert StoredJournal(_Unavailable(store, len(PAUSES)), brief(slept.append)).read() == writer.state
        complete(StoredJournal(_Unavailable(store, len(PAUSES)), brief(slept.append)), writer)
    assert len(slept) >= 2 * 7 * len(PAUSES), "list, create and delete; list and read; create and list"
    assert StoredJournal(store).read() == writer.state


@pytest.mark.parametrize("ask", ["read", "propose", "compact"])
def test_what_stays_unavailable_is_raised_and_the_journal_says_the_same(store: BlobStore, ask: str) -> None:
    slept = list[float]()
    _, writer = started(store, 3)
    said = writer.state
    journal = StoredJournal(_Unavailable(store, len(PAUSES) + 1), brief(slept.append))
    asks: dict[str, Callable[[], object]] = {
        "read": journal.read,
        "propose": partial(complete, journal, writer),
        "compact": partial(journal.compact, said, 0),
    }
    with pytest.raises(StoreUnavailable, match="no create" if ask == "propose" else "no list"):
        asks[ask]()
    assert slept == pytest.approx(PAUSES)
    assert StoredJournal(store).read() == said


def test_a_nonce_is_drawn_anew_each_time() -> None:
    assert len({fresh_nonce() for _ in range(1000)}) == 1000
