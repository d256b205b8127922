"""A store that fails, hangs or is slow for a while: calls come back, and are made again as long as patience lasts."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from queue import SimpleQueue

import pytest

from statebackend.means import OncePerProcess
from statebackend.stores import limited_store
from statebackend.stores.fsspec_store import open_store
from statebackend.stores.limited_store import LimitedStore, find_limited_later, open_limited
from statebackend.stores.local_store import LocalStore
from statebackend.stores.patience import PAUSES, Patience
from statebackend.stores.store import (
    BlobInfo,
    BlobNotFound,
    BlobStore,
    BlobStoreError,
    Creation,
    StoreUnavailable,
    UnknownOutcome,
)
from statebackend.stores.store_calls import since, store_calls
from statebackend.testing.blob_store import CHECKS, OpenStore
from tests.wrapped_store import WrappedStore

PATIENCE = 20.0


class Hanging(WrappedStore):
    """Hangs at the gate while that is closed, before or behind what it does."""

    def __init__(self, store: BlobStore) -> None:
        super().__init__(store)
        self.gate = threading.Event()
        self.came_back = threading.Semaphore(0)
        self.behind = False

    def _hang(self, call: Callable[[], object]) -> None:
        if self.behind:
            call()
        self.gate.wait(PATIENCE)
        if not self.behind:
            call()
        self.came_back.release()

    def create(self, path: str, data: bytes) -> Creation:
        made: list[Creation] = []
        self._hang(lambda: made.append(super(Hanging, self).create(path, data)))
        return made[0]

    def read(self, path: str) -> bytes:
        self._hang(lambda: None)
        return super().read(path)

    def download(self, path: str, target: Path) -> None:
        self._hang(lambda: super(Hanging, self).download(path, target))


@pytest.fixture
def hanging(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hanging]:
    callers = OncePerProcess(limited_store._Callers)  # what hung in other tests is not counted
    monkeypatch.setattr(limited_store, "_CALLERS", callers)
    store = Hanging(LocalStore(tmp_path / "store"))
    yield store
    store.gate.set()


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_a_store_with_a_limit_keeps_the_promise(check: Callable[[OpenStore], None], tmp_path: Path) -> None:
    check(lambda: LimitedStore(open_store(str(tmp_path)), PATIENCE))


def test_a_call_that_hangs_is_given_up(hanging: Hanging) -> None:
    with pytest.raises(StoreUnavailable, match=r"could not read a in .*no answer in 0.05 s"):
        LimitedStore(hanging, 0.05).read("a")


def test_calls_are_counted_with_those_that_fail_but_what_is_not_there_is_an_answer(hanging: Hanging) -> None:
    before = store_calls()
    with pytest.raises(StoreUnavailable):
        LimitedStore(hanging, 0.05).read("a")
    hanging.gate.set()
    limited = LimitedStore(hanging.store, PATIENCE)
    limited.write("b", b"content")
    assert limited.read("b") == b"content"
    with pytest.raises(BlobNotFound):
        limited.read("c")
    made = since(before, store_calls())
    assert {kind: (one.calls, one.errors) for kind, one in made.items() if one.calls} == {
        "read": (3, 1),
        "write": (1, 0),
    }
    assert made["read"].ms >= 50


def test_a_store_that_hangs_while_it_is_opened_is_given_up(hanging: Hanging, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limited_store, "open_store", lambda uri: hanging.read(uri))
    with pytest.raises(StoreUnavailable, match=r"could not open here: there was no answer in 0.05 s"):
        open_limited("here", 0.05)


def test_a_store_that_is_looked_for_later_is_looked_for_by_the_first_call_and_again_until_it_is_there(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "store"
    late = find_limited_later(str(folder), PATIENCE)
    with pytest.raises(StoreUnavailable, match="there is no such folder"):
        late.read("a")
    LocalStore(folder).write("a", b"content")
    assert late.read("a") == b"content"


def test_a_store_that_hangs_while_it_is_looked_for_is_given_up_and_may_be_found_by_the_next_call(
    hanging: Hanging, monkeypatch: pytest.MonkeyPatch
) -> None:
    finding: list[Callable[[], object]] = [lambda: hanging.read("a"), lambda: hanging.store]
    monkeypatch.setattr(limited_store, "find_store", lambda uri: finding.pop(0)())
    late = find_limited_later("here", 0.2)
    with pytest.raises(StoreUnavailable, match=r"could not list everything in here: there was no answer in 0.2 s"):
        late.list()
    assert isinstance(late, LimitedStore)
    late._seconds = PATIENCE
    assert late.list() == ()


@pytest.mark.parametrize("behind", [False, True])
def test_a_create_that_hangs_is_of_unknown_outcome_and_may_be_done_late(hanging: Hanging, behind: bool) -> None:
    hanging.behind = behind
    limited = LimitedStore(hanging, 0.05)
    with pytest.raises(UnknownOutcome, match="may be done yet"):
        limited.create("a", b"first")
    assert bool(hanging.store.list()) is behind
    hanging.gate.set()
    assert hanging.came_back.acquire(timeout=PATIENCE)
    assert hanging.store.read("a") == b"first"
    assert LimitedStore(hanging, PATIENCE).create("a", b"second") is Creation.EXISTED


def test_a_download_that_comes_late_leaves_nothing(
    hanging: Hanging, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    back = threading.Event()
    monkeypatch.setattr(limited_store._CALLERS(), "came_back", back.set)
    hanging.store.write("a", b"content")
    with pytest.raises(StoreUnavailable, match="could not download a"):
        LimitedStore(hanging, 0.05).download("a", tmp_path / "here")
    hanging.gate.set()
    assert back.wait(PATIENCE)
    assert [file.name for file in tmp_path.iterdir()] == ["store"]


def test_a_call_is_made_with_the_priority_of_whoever_makes_it_whoever_made_one_before(tmp_path: Path) -> None:
    priorities: SimpleQueue[int] = SimpleQueue()

    class Noting(WrappedStore):
        def list(self, folder: str = "") -> tuple[BlobInfo, ...]:
            priorities.put(os.getpriority(os.PRIO_PROCESS, 0))
            return ()

    def stand_back_and_call() -> None:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), usual + 1)
        limited.list()

    usual = os.getpriority(os.PRIO_PROCESS, 0)
    limited = LimitedStore(Noting(LocalStore(tmp_path)), PATIENCE)
    thread = threading.Thread(target=stand_back_and_call)
    thread.start()
    thread.join()
    limited.list()
    assert [priorities.get_nowait(), priorities.get_nowait()] == [usual + 1, usual]


class Dripping(WrappedStore):
    """A download of which a little comes whenever one looks, three times."""

    def __init__(self, store: BlobStore, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(store)
        self.looked = threading.Semaphore(0)
        coming = limited_store._bytes_coming

        def look(folder: Path) -> int:
            size = coming(folder)
            self.looked.release()
            return size

        monkeypatch.setattr(limited_store, "_bytes_coming", look)

    def download(self, path: str, target: Path) -> None:
        with target.open("wb") as file:
            for part in range(3):
                file.write(bytes([part]))
                file.flush()
                assert self.looked.acquire(timeout=PATIENCE)


def test_a_download_that_goes_on_is_not_given_up_however_long_it_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Dripping(LocalStore(tmp_path / "store"), monkeypatch)
    LimitedStore(store, 0.1).download("a", tmp_path / "here")
    assert (tmp_path / "here").read_bytes() == b"\0\1\2"


def test_a_store_in_which_many_calls_hang_is_not_asked_until_they_come_back(
    hanging: Hanging, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limited_store, "_MOST_HANGING", 2)
    limited = LimitedStore(hanging, 0.02)
    for _ in range(2):
        with pytest.raises(StoreUnavailable, match="no answer"):
            limited.read("a")
    with pytest.raises(StoreUnavailable, match="2 calls that were made before hang still"):
        limited.read("a")
    assert hanging.calls["read"] == 0
    hanging.store.write("a", b"content")
    hanging.gate.set()
    for _ in range(2):
        assert hanging.came_back.acquire(timeout=PATIENCE)
    Patience(PATIENCE).ask(partial(limited.read, "a"))


FORKED = """
import os, sys
from pathlib import Path
from statebackend.stores.limited_store import LimitedStore
from statebackend.stores.local_store import LocalStore

limited = LimitedStore(LocalStore(Path(sys.argv[1])), 20.0)
limited.write("a", b"content")
child = os.fork()
if not child:
    os._exit(0 if limited.read("a") == b"content" else 1)
os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_forked_process_makes_calls_in_threads_of_its_own(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-W", "ignore", "-c", FORKED, str(tmp_path)], check=True, timeout=PATIENCE)


# --- patience


def test_what_is_unavailable_is_asked_again_with_pauses_that_grow_until_the_time_is_over() -> None:
    slept: list[float] = []
    waited: list[float] = []
    asked: list[None] = []

    def ask() -> None:
        asked.append(None)
        raise StoreUnavailable(f"the {len(asked)}th time")

    patience = Patience(20, slept.append, waiting=lambda seconds, _: waited.append(seconds))
    with pytest.raises(StoreUnavailable, match=f"the {len(PAUSES) + 5}th time"):
        patience.ask(ask)
    assert slept == pytest.approx([*PAUSES, 4, 4, 4, 20 - sum(PAUSES) - 12])
    assert waited == pytest.approx([sum(slept[:n]) for n in range(len(slept))], abs=0.1)


def test_who_is_told_that_a_store_answers_again_is_told_after_how_long() -> None:
    fails = iter(range(3))
    answered: list[float] = []
    patience = Patience(20, lambda _: None, answered=answered.append)

    def ask() -> str:
        if next(fails, None) is not None:
            raise StoreUnavailable("not now")
        return "done"

    assert patience.ask(ask) == patience.ask(ask) == "done"
    assert answered == [pytest.approx(sum(PAUSES[:3]), abs=0.1)]


def test_an_answer_is_no_failure_whatever_it_is() -> None:
    def ask() -> None:
        raise UnknownOutcome("who knows")

    with pytest.raises(UnknownOutcome):
        Patience(20, lambda _: pytest.fail("it slept")).ask(ask)


def test_who_waits_for_a_store_stops_when_nobody_wants_the_answer_any_more() -> None:
    told = threading.Event()
    patience = Patience(PATIENCE * 10, waiting=lambda *_: told.set())
    ended: list[BlobStoreError] = []

    def ask() -> None:
        raise StoreUnavailable("not now")

    def wait() -> None:
        try:
            patience.ask(ask)
        except BlobStoreError as error:
            ended.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    assert told.wait(PATIENCE)
    patience.give_up()
    thread.join(PATIENCE)
    assert [str(error) for error in ended] == ["not now"]
