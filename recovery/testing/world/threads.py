"""Threads and what they share, as `threading` and `queue` have them, in the simulated world.

Invariant: each keeps the contract of its namesake as far as the product uses it; those that wait get what they
wait for in the order in which they came.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from queue import Empty, Full
from types import TracebackType
from typing import Any, Generic, TypeVar

from recovery.testing.world.kernel import Task, World

T = TypeVar("T")


class SimLock:
    """A lock that any thread may release; `RLock` below counts."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._holder: Task | None = None
        self._locked = False
        self._waiting: deque[Task] = deque()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Take the lock, and return True; or return False if that took too long."""
        world = self._world
        world.preemptible()
        if self._locked:
            if not blocking:
                return False
            task = world.current
            assert task is not None, "outside of all threads a lock is never waited for"
            self._waiting.append(task)
            if not world.park(None if timeout < 0 else timeout) and task in self._waiting:
                self._waiting.remove(task)
                return False
        self._locked, self._holder = True, world.current
        return True

    def release(self) -> None:
        """Give the lock to the thread that has waited longest, if there is one."""
        self._world.check()
        if not self._locked:
            raise RuntimeError("release unlocked lock")
        self._holder = None
        if self._waiting:
            self._world.unpark(self._waiting.popleft())
        else:
            self._locked = False

    def locked(self) -> bool:
        """True if a thread has it."""
        return self._locked

    def let_go(self) -> int:
        """Give it up at once, and return how often it was taken."""
        self.release()
        return 1

    def take_back(self, _depth: int) -> None:
        """Take it as often as it was."""
        self.acquire()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.release()


class SimRLock(SimLock):
    """A lock that its thread may take again."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._depth = 0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Take the lock, perhaps once more. See `SimLock.acquire`."""
        if self._locked and self._holder is self._world.current:
            self._depth += 1
            return True
        if not super().acquire(blocking, timeout):
            return False
        self._depth = 1
        return True

    def release(self) -> None:
        """Give it up as often as it was taken."""
        self._world.check()
        if self._holder is not self._world.current:
            raise RuntimeError("cannot release un-acquired lock")
        self._depth -= 1
        if not self._depth:
            super().release()

    def let_go(self) -> int:
        """Give it up at once, and return how often it was taken."""
        depth, self._depth = self._depth, 0
        super().release()
        return depth

    def take_back(self, depth: int) -> None:
        """Take it as often as it was."""
        super().acquire()
        self._depth = depth


class SimCondition:
    """A condition variable with a lock of its own, or a given one."""

    def __init__(self, world: World, lock: SimLock | None = None) -> None:
        self._world = world
        self._lock = lock or SimRLock(world)
        self._waiting: deque[Task] = deque()
        self.acquire = self._lock.acquire
        self.release = self._lock.release

    def __enter__(self) -> bool:
        return self._lock.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._lock.release()

    def wait(self, timeout: float | None = None) -> bool:
        """Let go of the lock until notified; return False after `timeout` seconds."""
        task, lock = self._world.current, self._lock
        assert task is not None, "outside of all threads nothing is waited for"
        self._waiting.append(task)
        depth = lock.let_go()
        came = self._world.park(timeout)
        if not came and task in self._waiting:
            self._waiting.remove(task)
        lock.take_back(depth)
        return came

    def wait_for(self, predicate: Callable[[], T], timeout: float | None = None) -> T:
        """Wait until the predicate is true, and return its value; or after `timeout` seconds as it is then."""
        world = self._world
        until = None if timeout is None else world.now + timeout
        while not (found := predicate()):
            left = None if until is None else until - world.now
            if left is not None and left <= 0:
                break
            self.wait(left)
        return found

    def notify(self, n: int = 1) -> None:
        """Wake as many of those that wait."""
        self._world.check()
        for _ in range(min(n, len(self._waiting))):
            self._world.unpark(self._waiting.popleft())

    def notify_all(self) -> None:
        """Wake all that wait."""
        self.notify(len(self._waiting))


class SimEvent:
    """A flag that threads wait for."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._set = False
        self._waiting: list[Task] = []

    def is_set(self) -> bool:
        """True if it was set."""
        self._world.check()
        return self._set

    def set(self) -> None:
        """Set it, and wake all that wait."""
        self._world.check()
        self._set = True
        waiting, self._waiting = self._waiting, []
        for task in waiting:
            self._world.unpark(task)
        self._world.preemptible()

    def clear(self) -> None:
        """Take it back."""
        self._set = False

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is set; return False after `timeout` seconds."""
        if not self._set:
            task = self._world.current
            assert task is not None, "outside of all threads nothing is waited for"
            self._waiting.append(task)
            if not self._world.park(timeout) and task in self._waiting:
                self._waiting.remove(task)
        return self._set


class SimQueue(Generic[T]):
    """A queue between threads: with `maxsize` one that can be full."""

    def __init__(self, world: World, maxsize: int = 0) -> None:
        self._world = world
        self._most = maxsize
        self._items: deque[T] = deque()
        self._getting: deque[Task] = deque()
        self._putting: deque[Task] = deque()

    def put(self, item: T, block: bool = True, timeout: float | None = None) -> None:
        """Add an item; raise `Full` if there is no room for it in time.

        None ends a thread of a pool. Python's collector may say that, in the middle of anything, also after the end of
        the history: no other thread goes on then, and nothing is raised.
        """
        world, by_a_thread = self._world, item is not None
        if by_a_thread:
            world.check()
        until = None if timeout is None else world.now + timeout
        while self._most and len(self._items) >= self._most:
            self._wait(self._putting, block, until, Full)
        self._items.append(item)
        if self._getting:
            world.unpark(self._getting.popleft())
        if by_a_thread:
            world.preemptible()

    def get(self, block: bool = True, timeout: float | None = None) -> T:
        """Take the oldest item; raise `Empty` if there is none in time."""
        world = self._world
        world.check()
        until = None if timeout is None else world.now + timeout
        while not self._items:
            self._wait(self._getting, block, until, Empty)
        item = self._items.popleft()
        if self._putting:
            world.unpark(self._putting.popleft())
        return item

    def put_nowait(self, item: T) -> None:
        """Add an item if there is room now."""
        self.put(item, block=False)

    def get_nowait(self) -> T:
        """Take an item if there is one now."""
        return self.get(block=False)

    def empty(self) -> bool:
        """True if it has no item."""
        return not self._items

    def qsize(self) -> int:
        """Return how many items it has."""
        return len(self._items)

    def _wait(self, waiting: deque[Task], block: bool, until: float | None, too_late: type[Exception]) -> None:
        world = self._world
        task = world.current
        left = None if until is None else until - world.now
        if not block or task is None or (left is not None and left <= 0):
            raise too_late
        waiting.append(task)
        if not world.park(left) and task in waiting:
            waiting.remove(task)


class SimThread:
    """A thread of the process that makes it."""

    def __init__(
        self,
        world: World,
        target: Callable[..., object] | None = None,
        name: str = "thread",
        args: Iterable[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        daemon: bool | None = None,
    ) -> None:
        self._world = world
        self._call = target
        self._args, self._kwargs = tuple(args), dict(kwargs or {})
        self._task: Task | None = None
        self.name = name
        self.daemon = bool(daemon)
        self.native_id = None

    @property
    def ident(self) -> int | None:
        """Return its number; None until it is started."""
        return None if self._task is None else self._task.ident

    def start(self) -> None:
        """Let it run."""
        self._world.check()
        if self._task is not None:
            raise RuntimeError("threads can only be started once")
        self._task = self._world.spawn(self._world.process, self.run, self.name)

    def run(self) -> None:
        """Do what it is for."""
        if self._call is not None:
            self._call(*self._args, **self._kwargs)

    def is_alive(self) -> bool:
        """True if it is started and not over."""
        return self._task is not None and not self._task.done

    def join(self, timeout: float | None = None) -> None:
        """Wait until it is over, at most for so long."""
        if self._task is None:
            raise RuntimeError("cannot join thread before it is started")
        self._world.join(self._task, timeout)
