"""A store whose calls come back: one that hangs is given up after a time, as if the store could not be reached.

Invariant: no caller waits longer than the limit says; what a call that was given up still does is no harm, as
no blob has two contents and no two attempts use one name: a create is then of unknown outcome, and a download that
comes late leaves nothing behind.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Final, Generic, TypeVar

from statebackend import means
from statebackend.stores.fsspec_store import find_store, open_store
from statebackend.stores.store import (
    BlobInfo,
    BlobNotFound,
    BlobStore,
    BlobStoreError,
    Creation,
    StoreUnavailable,
    UnknownOutcome,
)
from statebackend.stores.store_calls import StoreCalls, count

_SLOWEST: Final = 1 << 20
"""Bytes in a second that an upload gets in addition to the limit of a call."""
_MOST_HANGING: Final = 64
"""So many calls that were given up may still hang; while they do, others are refused at once."""

_UNFINISHED: Final = ".unfinished-"

_Answer = TypeVar("_Answer")


def open_limited(uri: str, seconds: float) -> BlobStore:
    """Open the store that a URI names (see `open_store`); no call waits longer than `seconds`, nor does this one."""
    return LimitedStore(_limited(f"open {uri}", lambda: open_store(uri), seconds), seconds)


def find_limited(uri: str, seconds: float) -> BlobStore:
    """Open the store at a place where something is already (see `find_store`), with the limit of `open_limited`."""
    return LimitedStore(_limited(f"find {uri}", lambda: find_store(uri), seconds), seconds)


def find_limited_later(uri: str, seconds: float) -> BlobStore:
    """Make a limited store without a call now: the first call looks for it in its own time, and fails if it is absent.

    So a caller that has other things to do, as an event loop has, does not wait for it.
    """
    return LimitedStore(_Later(uri, seconds), seconds)


class LimitedStore:
    """A `BlobStore` in front of another one. `seconds` is the limit for one call; larger data get more time.

    A download is given up when nothing more has come in that time. Each call is made in a thread of its own kind,
    which does not keep the process alive.
    """

    def __init__(self, store: BlobStore | _Later, seconds: float) -> None:
        self._behind = store
        self._seconds = seconds

    def __repr__(self) -> str:
        return repr(self._behind)

    @property
    def _store(self) -> BlobStore:
        """Return the store, for the threads that make calls."""
        return self._behind.found() if isinstance(self._behind, _Later) else self._behind

    def create(self, path: str, data: bytes) -> Creation:
        """Make the blob if the path is free. See `BlobStore.create`.

        If the call is given up, the blob may be made yet.
        """
        return self._limited(f"create {path}", lambda: self._store.create(path, data), lost=UnknownOutcome)

    def write(self, path: str, data: bytes) -> None:
        """Make the blob under a path used for nothing else. See `BlobStore.write`."""
        self._limited(f"write {path}", lambda: self._store.write(path, data), len(data))

    def read(self, path: str) -> bytes:
        """Return the whole content. See `BlobStore.read`."""
        return self._limited(f"read {path}", lambda: self._store.read(path))

    def stat(self, path: str) -> BlobInfo:
        """Return the size. See `BlobStore.stat`."""
        return self._limited(f"stat {path}", lambda: self._store.stat(path))

    def list(self, folder: str = "") -> tuple[BlobInfo, ...]:
        """Return all blobs below the folder, sorted by path. See `BlobStore.list`."""
        return self._limited(f"list {folder or 'everything'}", lambda: self._store.list(folder))

    def delete(self, path: str) -> None:
        """Make sure that there is no such blob. See `BlobStore.delete`."""
        self._limited(f"delete {path}", lambda: self._store.delete(path))

    def remove_leftovers(self) -> int:
        """Remove what dead writers left, without a limit of time. See `BlobStore.remove_leftovers`."""
        return self._store.remove_leftovers()

    def upload(self, source: Path, path: str) -> None:
        """Copy a local file into the store. See `BlobStore.upload`."""
        size = source.stat().st_size if source.exists() else 0
        self._limited(f"upload {path}", lambda: self._store.upload(source, path), size)

    def download(self, path: str, target: Path) -> None:
        """Copy the blob into a local file. See `BlobStore.download`.

        The thread that waits gives the file its name, so that it cannot come late.
        """
        new = target.with_name(f"{_UNFINISHED}{means.token_hex(8)}")

        def clear() -> None:
            new.unlink(missing_ok=True)

        try:
            self._limited(
                f"download {path} to {target}",
                lambda: self._store.download(path, new),
                progress=lambda: _bytes_coming(target.parent),
                if_late=clear,
            )
            new.replace(target)
        except OSError as error:
            raise StoreUnavailable(f"could not download {path} to {target} from {self}: {error}") from error
        finally:
            clear()

    def _limited(
        self,
        action: str,
        call: Callable[[], _Answer],
        size: int = 0,
        *,
        lost: type[BlobStoreError] = StoreUnavailable,
        progress: Callable[[], int] = lambda: 0,
        if_late: Callable[[], object] = lambda: None,
    ) -> _Answer:
        limit, kind, began = self._seconds + size / _SLOWEST, action.partition(" ")[0], means.monotonic()
        failed = True
        try:
            answer = _limited(f"{action} in {self}", call, limit, lost=lost, progress=progress, if_late=if_late)
            failed = False
        except BlobNotFound:
            failed = False  # the store has answered
            raise
        finally:
            count(kind, StoreCalls(1, int(failed), 1000 * (means.monotonic() - began)))
        return answer


class _Later:
    """A store that is found when it is first asked for."""

    def __init__(self, uri: str, seconds: float) -> None:
        self._uri = uri
        self._patience = seconds / 2
        self._store: BlobStore | None = None
        self._finding = means.Lock()

    def __repr__(self) -> str:
        return self._uri if self._store is None else repr(self._store)

    def found(self) -> BlobStore:
        """Return the store, or raise what `find_store` raises."""
        if self._store is None:
            alone = self._finding.acquire(timeout=self._patience)  # one that takes longer hangs, and others may not
            try:
                if self._store is None:
                    self._store = find_store(self._uri)
            finally:
                if alone:
                    self._finding.release()
        return self._store


def _limited(
    action: str,
    call: Callable[[], _Answer],
    limit: float,
    *,
    lost: type[BlobStoreError] = StoreUnavailable,
    progress: Callable[[], int] = lambda: 0,
    if_late: Callable[[], object] = lambda: None,
) -> _Answer:
    callers = _CALLERS()
    if callers.hanging >= _MOST_HANGING:
        raise StoreUnavailable(
            f"could not {action}: {_MOST_HANGING} calls that were made before hang still; it is not asked"
        )
    made = _Call(call, if_late, callers)
    callers.make(made)
    known = 0
    while not made.done.wait(limit):
        came = progress()
        if came == known and made.give_up():
            raise lost(f"could not {action}: there was no answer in {limit:g} s; it may be done yet")
        known = came
    return made.answer()


class _Call(Generic[_Answer]):
    """A call in another thread, for which one waits until it is done or given up: one of the two."""

    def __init__(self, call: Callable[[], _Answer], if_late: Callable[[], object], callers: _Callers) -> None:
        self._call = call
        self._callers = callers
        self._if_late = if_late
        self._answer: _Answer | None = None
        self._error: BaseException | None = None
        self._given_up = False
        self._lock = means.Lock()
        self.done = means.Event()

    def make(self) -> None:
        """Make the call, in the other thread."""
        try:
            self._answer = self._call()
        except BaseException as error:  # whatever it is, it is raised where one waits for the answer
            self._error = error
        with self._lock:
            self.done.set()
        if self._given_up:
            self._if_late()
            self._callers.came_back()

    def give_up(self) -> bool:
        """Stop waiting for the call; False if it is done."""
        with self._lock:
            if self.done.is_set():
                return False
            self._given_up = True
            self._callers.left_hanging()
        return True

    def answer(self) -> _Answer:
        """Return the answer of the call, or raise its error, once it is done."""
        if self._error is not None:
            try:
                raise self._error
            finally:
                self._error = None  # else the error would hold on to itself by its own traceback
        return self._answer  # type: ignore[return-value]  # None only where that is the answer


class _Callers:
    """The threads that make calls, of all stores in a process: as many as there are calls at once.

    A call is made with the priority of the thread that waits for it: a thread inherits its starter's, and keeps it.
    """

    def __init__(self) -> None:
        self._lock = means.Lock()
        self._idle: defaultdict[int, list[means.SimpleQueue[_Call[object]]]] = defaultdict(list)  # by their niceness
        self.hanging = 0

    def make(self, call: _Call[_Answer]) -> None:
        """Have the call made at once."""
        niceness = means.getpriority(os.PRIO_PROCESS, 0)
        with self._lock:
            idle = self._idle[niceness]
            caller = idle.pop() if idle else None
        if caller is None:
            caller = means.SimpleQueue()
            means.Thread(target=self._run, args=(caller, niceness), name="store", daemon=True).start()
        caller.put(call)  # type: ignore[arg-type]

    def left_hanging(self) -> None:
        """Count one more call that was given up and hangs."""
        with self._lock:
            self.hanging += 1

    def came_back(self) -> None:
        """Count one such call less."""
        with self._lock:
            self.hanging -= 1

    def _run(self, calls: means.SimpleQueue[_Call[object]], niceness: int) -> None:
        while True:
            calls.get().make()
            with self._lock:
                self._idle[niceness].append(calls)


_CALLERS: Final = means.OncePerProcess(_Callers)


def _bytes_coming(folder: Path) -> int:
    """Return a number that changes as long as anything comes into the folder.

    It may come in another download: then, too, the store does not hang.
    """
    try:
        return sum(file.stat().st_size for file in folder.glob(f"{_UNFINISHED}*"))
    except OSError:  # one has just got its name
        return -1
