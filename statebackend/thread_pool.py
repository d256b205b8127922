"""Threads that do work beside the one that hands it to them.

Invariant: work begins in the order in which it was handed over, and each piece of it ends once: with a result, with an
error, or with `PoolClosed` if it never began.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from queue import Empty
from typing import Any, Generic, TypeVar
from weakref import ref

from statebackend import means
from statebackend.errors import JobError

_Result = TypeVar("_Result")


class PoolClosed(JobError, RuntimeError):
    """The pool was closed before the work began."""


class Task(Generic[_Result]):
    """Work that was handed to a pool. Any thread may ask for its outcome, and waits for that."""

    __slots__ = ("_call", "_ended", "_error", "_result")

    def __init__(self, call: Callable[[], _Result]) -> None:
        self._call: Callable[[], _Result] | None = call
        self._ended = means.Event()
        self._result: _Result | None = None
        self._error: BaseException | None = None

    @property
    def is_done(self) -> bool:
        """True if the work has ended, in whatever way."""
        return self._ended.is_set()

    def error(self) -> BaseException | None:
        """Wait for the end of the work, and return what it raised."""
        self._ended.wait()
        return self._error

    def result(self) -> _Result:
        """Wait for the end of the work, and return its result or raise what it raised."""
        self._ended.wait()
        if self._error is not None:
            raise self._error
        return self._result  # type: ignore[return-value]  # None only where that is the result

    def do(self) -> None:
        """Do the work, and say nothing yet; only the pool calls this."""
        call, self._call = self._call, None
        assert call is not None, "work is done once"
        try:
            self._result = call()
        except BaseException as error:  # whatever it is, the thread goes on, and the outcome is the caller's to ask for
            self._error = error

    def end(self) -> None:
        """Tell the outcome to the threads that wait for it; only the pool calls this."""
        self._ended.set()

    def drop(self) -> None:
        """End the work without doing it; only the pool calls this."""
        self._call, self._error = None, PoolClosed("the pool of threads was closed before this began")
        self.end()


_Work = Task[Any] | None
"""None ends a thread."""


class ThreadPool:
    """As many threads as there is work for at once, up to `most`; they do not keep the process alive.

    A pool that is dropped without `close` does what waits, and ends.
    """

    def __init__(self, most: int, name: str) -> None:
        self._most = most
        self._name = name
        self._work: means.SimpleQueue[_Work] = means.SimpleQueue()
        self._idle: deque[None] = deque()
        """One for each thread that has nothing to do."""
        self._lock = means.Lock()
        self._threads: list[means.Thread] = []
        self._closed = False
        self._dropped = ref(self, partial(_ended, self._work, self._threads))
        """Ends the threads when the pool is dropped; they keep it until then."""

    def submit(self, call: Callable[[], _Result]) -> Task[_Result]:
        """Have a thread call this; raise `PoolClosed` after `close`."""
        task = Task(call)
        with self._lock:
            if self._closed:
                raise PoolClosed(f"the threads {self._name} take no more work")
            if self._idle:
                self._idle.pop()
            elif len(self._threads) < self._most:
                self._begin_thread()
            self._work.put(task)
        return task

    def close(self, *, drop: bool = False, wait: bool = False) -> None:
        """Take no more work. With `drop` nothing more begins; with `wait` return when nothing is being done."""
        with self._lock:
            self._closed = True
            if drop:
                self._drop_waiting()
            _end(self._work, self._threads)
        if wait:
            for thread in self._threads:
                thread.join()

    def _begin_thread(self) -> None:
        name = f"{self._name}-{len(self._threads)}"
        thread = means.Thread(target=_do_all, args=(self._work, self._idle, self._dropped), name=name, daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the system gives no more
            if not self._threads:
                raise
        else:
            self._threads.append(thread)

    def _drop_waiting(self) -> None:
        with suppress(Empty):
            while True:
                task = self._work.get_nowait()
                if task is not None:
                    task.drop()


def _do_all(work: means.SimpleQueue[_Work], idle: deque[None], _dropped: ref[ThreadPool]) -> None:
    """Do what is handed over until the end; not a method, as the thread of a pool must not keep the pool."""
    while (task := work.get()) is not None:
        task.do()
        idle.append(None)  # before the outcome is told: what is asked for then needs no other thread
        task.end()
        del task  # it may hold much, and the next one may be long in coming


def _ended(work: means.SimpleQueue[_Work], threads: list[means.Thread], _: ref[ThreadPool]) -> None:
    _end(work, threads)


def _end(work: means.SimpleQueue[_Work], threads: list[means.Thread]) -> None:
    for _ in threads:
        work.put(None)
