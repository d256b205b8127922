"""One thread that waits for sockets and times, and calls what was asked for; used by partitions and by the driver.

Invariant: every callback runs in the thread that runs the loop, one at a time, and none runs inside the call
that asked for it; work that would hold the loop up is done by threads beside it. In one turn, first sockets are served,
then times that have come, then what was to be called soon: what has already arrived counts before a time limit that
would give it up.
"""

from __future__ import annotations

import heapq
import itertools
import selectors
import socket
from collections import deque
from collections.abc import Callable
from typing import Final, TypeVar

from statebackend import means
from statebackend.thread_pool import ThreadPool

Call = Callable[[], object]
Outcome = TypeVar("Outcome")

_BELLS: Final = 4096
_SCRATCH: Final = 256 << 10
_TIMERS: Final = 1024
"""From so many timers on it is worth looking which of them were cancelled."""


class Timer:
    """A call that is due at a time; `cancel` takes it back, also when it has been made already."""

    __slots__ = ("_call",)

    def __init__(self, call: Call) -> None:
        self._call: Call | None = call

    def cancel(self) -> None:
        """Cancel the call."""
        self._call = None

    @property
    def is_cancelled(self) -> bool:
        """True if no call will be made at its time."""
        return self._call is None

    def fire(self) -> None:
        """Make the call, once; only the loop uses this."""
        call, self._call = self._call, None
        if call is not None:
            call()


class KeepingSocket(socket.socket):  # noqa: TID251 - for TLS alone, which is not simulated
    """A socket that may keep bytes of its own, which no selector sees: the loop looks after them.

    `on_kept` is called whenever bytes are kept that the kernel did not take.
    """

    on_kept: Call | None = None

    @property
    def holds_arrived(self) -> bool:
        """True if a read may give bytes that the kernel does not hold, until a read raises `BlockingIOError`."""
        raise NotImplementedError

    @property
    def unsent(self) -> int:
        """Return how many bytes the socket has taken that the kernel has not."""
        raise NotImplementedError

    def push(self) -> None:
        """Offer kept bytes to the kernel; the next read or send raises what goes wrong."""
        raise NotImplementedError


class Watch:
    """The callbacks of the loop for a socket. There are none at first: say `reading(True)`.

    To say the same twice costs nothing. `close` it before the socket is closed.
    """

    __slots__ = ("_events", "_keeper", "_kept", "_on_readable", "_on_writable", "_registered", "_selector", "_sock")

    def __init__(
        self,
        selector: selectors.BaseSelector,
        kept: dict[Watch, None],
        sock: means.socket,
        on_readable: Call,
        on_writable: Call,
    ) -> None:
        self._selector = selector
        self._kept = kept
        self._sock = sock
        self._keeper = sock if isinstance(sock, KeepingSocket) else None
        self._on_readable = on_readable
        self._on_writable = on_writable
        self._events = 0
        self._registered = 0

    def reading(self, wanted: bool) -> None:
        """Begin or stop to call `on_readable`, again and again, while there are bytes to read or the peer is gone."""
        self._want(self._events | selectors.EVENT_READ if wanted else self._events & ~selectors.EVENT_READ)

    def writing(self, wanted: bool) -> None:
        """Begin or stop to call `on_writable`, again and again, while the kernel would take bytes."""
        self._want(self._events | selectors.EVENT_WRITE if wanted else self._events & ~selectors.EVENT_WRITE)

    def reroute(self, through: Callable[[means.socket], means.socket]) -> means.socket:
        """Leave the socket to `through`, serve the one that it returns in the same way, and return that."""
        events = self._events
        self.close()
        self._sock = through(self._sock)
        self._keeper = self._sock if isinstance(self._sock, KeepingSocket) else None
        self._want(events)
        return self._sock

    @property
    def unsent(self) -> int:
        """Return how many bytes the socket has taken that the kernel has not; closing the socket loses them."""
        return 0 if self._keeper is None else self._keeper.unsent

    def close(self) -> None:
        """Call neither any more, not even for what was noticed already; may be called twice."""
        self._events = 0
        self._register(0)
        if self._keeper is not None and self._keeper.on_kept == self._look_after:  # and not of a watch that came later
            self._keeper.on_kept = None

    def serve(self, events: int) -> None:
        """Make the calls that are still wanted; only the loop uses this."""
        if self._keeper is not None and events & selectors.EVENT_WRITE:
            self._keeper.push()
            if self._keeper.unsent:
                events &= ~selectors.EVENT_WRITE
        if events & self._events & selectors.EVENT_READ:
            self._on_readable()
        if events & self._events & selectors.EVENT_WRITE:
            self._on_writable()
        if self._keeper is not None and self._registered:
            self._look_after()

    def _want(self, events: int) -> None:
        if events == self._events:
            return
        self._events = events
        if self._keeper is None:
            self._register(events)
        else:
            self._look_after()

    def _look_after(self) -> None:
        """Offer kept bytes to the kernel, and have those read, if wanted, that have arrived without an event."""
        keeper = self._keeper
        if keeper is None:
            return
        keeper.on_kept = self._look_after
        self._register(self._events | (selectors.EVENT_WRITE if keeper.unsent else 0))
        if self._events & selectors.EVENT_READ and keeper.holds_arrived:
            self._kept[self] = None

    def _register(self, events: int) -> None:
        if events == self._registered:
            return
        if not events:
            self._selector.unregister(self._sock)
        elif not self._registered:
            self._selector.register(self._sock, events, self)
        else:
            self._selector.modify(self._sock, events, self)
        self._registered = events


class EventLoop:
    """Runs in the thread that calls `run` or `run_once`; but for `wake`, only that thread may use it.

    What a callback raises comes out of `run_once`; all other callbacks are still due, and the loop can go on.
    """

    def __init__(self) -> None:
        self._selector = means.selector()
        self._kept: dict[Watch, None] = {}
        """Watches of sockets that have something to read that the selector does not see."""
        self._timers: list[tuple[float, int, Timer]] = []
        self._most_timers = _TIMERS
        self._order = itertools.count()
        self._soon: deque[Call] = deque()
        self._longest = 0.0
        self.busy_since: float | None = None
        """Since when it is in the calls of one turn; None while it waits. Any thread may look."""
        self._woken = False
        self.scratch: Final = memoryview(bytearray(_SCRATCH))
        """Memory that a callback may read into; when it returns, another may."""
        self._bell, self._button = means.socketpair()
        self._bell.setblocking(False)
        self._button.setblocking(False)
        self.watch(self._bell, self._answer).reading(True)

    def watch(self, sock: means.socket, on_readable: Call, on_writable: Call = lambda: None) -> Watch:
        """Serve a non-blocking socket, which stays the caller's; only one watch of a socket may want something."""
        return Watch(self._selector, self._kept, sock, on_readable, on_writable)

    def now(self) -> float:
        """Return the time of `time.monotonic` in seconds, which `call_at` goes by."""
        return means.monotonic()

    def call_at(self, when: float, call: Call) -> Timer:
        """Call when it is this time, or up to about a millisecond later if the loop is free then."""
        timer = Timer(call)
        if len(self._timers) >= self._most_timers:
            self._forget_cancelled()
        heapq.heappush(self._timers, (when, next(self._order), timer))
        return timer

    def call_soon(self, call: Call) -> None:
        """Call at the end of this turn; if it is asked for in the end of a turn, at the end of the next."""
        self._soon.append(call)

    def wake(self, call: Call | None = None) -> None:
        """End the loop's wait, from any thread, and let it make this call; do nothing if the loop is closed."""
        if call is not None:
            self._soon.append(call)
        if not self._woken:
            self._woken = True
            try:
                self._button.send(b"\0")
            except OSError:  # closed; or so many bells wait unheard that one more says nothing new
                return

    def run_once(self, timeout: float | None = None) -> None:
        """Run one turn: wait until there is something to do, at most for `timeout` seconds, and do it."""
        ready = self._selector.select(self._patience(timeout))
        self.busy_since = began = means.monotonic()
        try:
            for key, events in ready:
                key.data.serve(events)
            if self._kept:
                self._serve_kept()
            self._fire_timers()
            for _ in range(len(self._soon)):
                self._soon.popleft()()
        finally:
            self.busy_since = None
            self._longest = max(self._longest, means.monotonic() - began)

    def run(self, until: Callable[[], bool], timeout: float | None = None) -> bool:
        """Turn until `until()`, asked before each turn, is true, or for `timeout` seconds; return whether it was."""
        deadline = None if timeout is None else means.monotonic() + timeout
        while not until():
            left = None if deadline is None else deadline - means.monotonic()
            if left is not None and left <= 0:
                return False
            self.run_once(left)
        return True

    def take_longest_gap_ms(self) -> float:
        """Return the longest time that the callbacks of one turn took since the last call of this, in milliseconds."""
        longest, self._longest = self._longest, 0.0
        return longest * 1000

    def close(self) -> None:
        """Drop all calls; sockets that were watched stay open."""
        self._soon.clear()
        self._timers.clear()
        self._selector.close()
        self._bell.close()
        self._button.close()

    def _patience(self, timeout: float | None) -> float | None:
        if self._soon or self._kept:
            return 0.0
        if not self._timers:
            return timeout
        next_timer = max(0.0, self._timers[0][0] - means.monotonic())
        return next_timer if timeout is None else min(timeout, next_timer)

    def _serve_kept(self) -> None:
        for watch in list(self._kept):
            del self._kept[watch]
            watch.serve(selectors.EVENT_READ)

    def _forget_cancelled(self) -> None:
        """Drop cancelled timers, as a far call that is put off again and again would fill the memory until then."""
        self._timers = [entry for entry in self._timers if not entry[2].is_cancelled]
        heapq.heapify(self._timers)
        self._most_timers = max(_TIMERS, 2 * len(self._timers))

    def _fire_timers(self) -> None:
        now = means.monotonic()
        while self._timers and self._timers[0][0] <= now:
            heapq.heappop(self._timers)[2].fire()

    def _answer(self) -> None:
        self._bell.recv(_BELLS)
        self._woken = False  # before the calls are made: who comes in between rings again


class Background:
    """Threads that do work for a loop in the order in which it was submitted. They do not keep the process alive."""

    def __init__(self, loop: EventLoop, threads: int, name: str = "background") -> None:
        self._loop = loop
        self._pool = ThreadPool(threads, name)
        self._closed = False

    def submit(self, work: Callable[[], Outcome], then: Callable[[Outcome | BaseException], object]) -> None:
        """Do the work in a thread; `then` is called in the loop with its result, or with what it raised.

        After `close` neither happens.
        """

        def told() -> None:
            outcome: Outcome | BaseException
            try:
                outcome = work()
            except BaseException as error:  # whatever it is, whoever waits for the outcome must hear of it
                outcome = error
            self._loop.wake(lambda: None if self._closed else then(outcome))

        if self._closed:
            return
        try:
            self._pool.submit(told)
        except RuntimeError as error:  # no thread can be started for it
            failure = error
            self._loop.wake(lambda: None if self._closed else then(failure))

    def close(self) -> None:
        """Begin nothing more and tell nothing more; work that is under way is not waited for."""
        self._closed = True
        self._pool.close(drop=True)
