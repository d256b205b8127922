"""The scheduler of the simulated world: threads that are greenlets, in processes that crash and pause, on one clock.

Invariant: one thread runs at a time, until it waits or yields; what runs next, and when, follows from the order in
which threads became ready and from `Chance` alone, so the same schedule gives the same history. Time passes while
threads run, a little for each turn, and when no thread can run it leaps to the next thing that is due. A thread
of a process that has crashed never runs again; it is unwound after the history is over, when none of its acts has any
effect.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from enum import Enum, auto
from itertools import count
from random import Random
from typing import Final
from zlib import crc32

from greenlet import GreenletExit, getcurrent, greenlet

Call = Callable[[], object]

TURN: Final = 20e-6
"""Seconds that one turn of a thread takes, so that threads that never wait do not stop the time."""
_GLANCE: Final = 1e-6
"""Seconds between two looks at a clock."""
_EPOCH: Final = 1_700_000_000.0
"""The time of day at which a world begins, in seconds since 1970."""
_KILLED: Final = -9


class Over(GreenletExit):  # type: ignore[misc]  # it has no types
    """The history is over: whatever a thread does now has no effect."""


class Task:
    """A thread of a process."""

    __slots__ = ("done", "greenlet", "ident", "joining", "mark", "name", "parked", "process")

    def __init__(self, process: SimProcess, ident: int, name: str) -> None:
        self.process = process
        self.ident = ident
        self.mark = ident.to_bytes(8)
        """Stands for its turns in the history's checksum."""
        self.name = name
        self.greenlet: greenlet | None = None
        self.parked = 0
        """The number of its present wait; 0 if it does not wait."""
        self.done = False
        self.joining: list[Task] = []

    def __repr__(self) -> str:
        return f"{self.process.name}/{self.name}"


class SimProcess:
    """A process: its threads, and its clocks. `host` is its address, which it keeps when it is started again."""

    def __init__(self, world: World, name: str, host: str, pid: int, incarnation: int) -> None:
        self.world = world
        self.name = name
        self.host = host
        self.pid = pid
        self.incarnation = incarnation
        self.random = Random(f"{name}/{incarnation}")
        self.tasks: list[Task] = []
        self.alive = True
        self.paused = False
        self.held: list[Task] = []
        """The threads that can run as soon as the process is resumed."""
        self.exit_code: int | None = None
        self.on_exit: list[Callable[[int], object]] = []
        """Called in no thread when the process ends, or has crashed."""
        self.on_gone: list[Call] = []
        """Called before `on_exit`: what the kernel does with the sockets and locks of the process."""
        self.local: dict[object, object] = {}
        """Objects of which there is one in each process, by their makers."""
        self.behind = 0.0
        """Seconds that its time of day is behind the world's."""
        self.rate = 1.0
        """The speed of its steady clock."""
        self._began = 1000.0 * pid, world.now

    def __repr__(self) -> str:
        return f"{self.name} ({self.pid})"

    def steady(self) -> float:
        """Return the time of its steady clock, which has nothing to do with that of other processes."""
        time, since = self._began
        return time + (self.world.now - since) * self.rate

    def run_at(self, rate: float) -> None:
        """Let its steady clock go at this speed from now on."""
        self._began = self.steady(), self.world.now
        self.rate = rate

    def wall(self) -> float:
        """Return its time of day, in seconds since 1970."""
        return _EPOCH + self.world.now - self.behind


class Rest(Enum):
    """The reason for which `World.run` has returned."""

    DONE = auto()
    FAILED = auto()
    LATE = auto()
    """The time limit has come."""
    STUCK = auto()
    """Nothing can ever happen again: every thread waits for another one."""
    ENDLESS = auto()
    """Too many turns were made."""


class World:
    """Threads, processes and time. `chance` draws the order of threads where order is free; None keeps it as it is.

    `on_turn` is called before each turn, with the number of turns so far, outside of all threads.
    """

    def __init__(self, chance: Random | None = None) -> None:
        self.now = 0.0
        self.turns = 0
        self.digest = 0
        """A checksum of all that has happened."""
        self.failure: AssertionError | None = None
        self.processes: list[SimProcess] = []
        self.current: Task | None = None
        self.chance = chance
        self.on_turn: Callable[[int], object] = lambda _: None
        self._ready: deque[Task] = deque()
        self._due: list[tuple[float, int, Call]] = []
        self._order = count()
        self._idents = count(1 << 48)
        self._waits = count(1)
        self._pids = count(100)
        self._hub: greenlet | None = None
        self._over = False
        self._preempt = 0

    # --- processes and threads ----------------------------------------------------------------------------------------

    def start(self, name: str, host: str, main: Call, on_exit: Callable[[int], object] | None = None) -> SimProcess:
        """Start a process, which ends when `main` returns, with the code that it returns if that is a number."""
        incarnation = sum(1 for other in self.processes if other.name == name)
        process = SimProcess(self, name, host, next(self._pids), incarnation)
        self.processes.append(process)
        if on_exit is not None:
            process.on_exit.append(on_exit)

        def run() -> None:
            code = main()
            self.end(process, code if isinstance(code, int) else 0)

        self.spawn(process, run, "main")
        return process

    def spawn(self, process: SimProcess, call: Call, name: str) -> Task:
        """Start a thread of the process. An error that it raises is the world's failure."""
        task = Task(process, next(self._idents), name)

        def body() -> None:
            try:
                call()
            except GreenletExit:
                pass
            except BaseException as error:
                self.fail(error)
            task.done = True
            for other in task.joining:
                self.unpark(other)

        task.greenlet = greenlet(body, self._hub)
        process.tasks.append(task)
        self._make_ready(task)
        return task

    def end(self, process: SimProcess, code: int = _KILLED) -> None:
        """Let the process be gone: its threads stop where they are, also the one that calls this."""
        if process.alive:
            process.alive = False
            process.exit_code = code
            self.note(f"{process.name} ended {code}")
            for call in (*process.on_gone, *(lambda told=told: told(code) for told in process.on_exit)):
                call()
        if self.current is not None and self.current.process is process:
            self.never()

    def pause(self, process: SimProcess) -> None:
        """Let no thread of the process run."""
        process.paused = True

    def resume(self, process: SimProcess) -> None:
        """Let its threads run again."""
        process.paused = False
        held, process.held = process.held, []
        for task in held:
            self._make_ready(task)

    @property
    def process(self) -> SimProcess:
        """Return the process whose thread runs."""
        assert self.current is not None, "no simulated thread runs"
        return self.current.process

    # --- waiting, for the thread that runs ----------------------------------------------------------------------------

    def park(self, seconds: float | None = None) -> bool:
        """Wait until `unpark`, and return True; or False after so many seconds of the process's clock."""
        self.check()
        task = self.current
        assert task is not None
        if seconds is not None and seconds <= 0:
            self.pass_on()
            return False
        number = task.parked = next(self._waits)
        if seconds is not None:
            self.at(self.now + seconds / task.process.rate, lambda: self._time_out(task, number))
        self._switch()
        return task.parked >= 0

    def pass_on(self) -> None:
        """Let the other threads that can run have their turn first."""
        self.check()
        task = self.current
        assert task is not None
        self._make_ready(task)
        self._switch()

    def preemptible(self) -> None:
        """Stand at a place where a thread may lose the processor, as after a lock is released: chance decides."""
        self.check()
        if self._preempt:
            self._preempt -= 1
            if not self._preempt and self.current is not None:
                self.pass_on()
        elif self.chance is not None and self.current is not None and self.chance.random() < 1 / 64:
            self.pass_on()

    def preempt_in(self, places: int) -> None:
        """Take the processor from whichever thread comes to the n-th such place from now on."""
        self._preempt = places

    def never(self) -> None:
        """Stop this thread for good."""
        self.check()
        self._switch()

    def check(self) -> None:
        """Raise `Over` in a thread if the history is over."""
        if self._over and self.current is not None:
            raise Over

    def join(self, task: Task, seconds: float | None) -> None:
        """Wait until the thread is over, at most for so long."""
        if not task.done and self.current is not None:
            task.joining.append(self.current)
            self.park(seconds)
            if self.current in task.joining:
                task.joining.remove(self.current)

    # --- for everything -----------------------------------------------------------------------------------------------

    def unpark(self, task: Task) -> None:
        """End the thread's wait, if it waits."""
        if task.parked > 0:
            task.parked = 0
            self._make_ready(task)

    def at(self, when: float, call: Call) -> None:
        """Call at this time of the world, in no thread."""
        heapq.heappush(self._due, (when, next(self._order), call))

    def after(self, seconds: float, call: Call) -> None:
        """Call after so many seconds of the world, in no thread."""
        self.at(self.now + seconds, call)

    def steady(self) -> float:
        """Return the time of the steady clock of the process whose thread looks at it."""
        task = self.current
        assert task is not None, "no simulated thread runs"
        if self._over:
            raise Over
        self.now += _GLANCE
        return task.process.steady()

    def glance(self) -> None:
        """Let the moment pass that a look at a clock takes: a loop that waits for a time comes to its end."""
        self.now += _GLANCE

    def note(self, what: str) -> None:
        """Count this as a part of the history, in its checksum."""
        self.digest = crc32(what.encode(), self.digest)

    def fail(self, error: BaseException) -> None:
        """End the history with this error; the first one counts. A thread that calls this never returns."""
        if self.failure is None and not self._over:
            if isinstance(error, AssertionError):
                self.failure = error
            else:
                where = "" if self.current is None else f" in {self.current}"
                self.failure = AssertionError(f"{type(error).__name__}{where}: {error}")
                self.failure.__cause__ = error
        if self.current is not None:
            self.never()

    def run(self, until: Callable[[], bool], seconds: float, turns: int) -> Rest:
        """Let things happen until `until()`, a failure, this time of the world, or so many turns altogether."""
        hub = self._hub = getcurrent()
        for process in self.processes:
            for task in process.tasks:
                if task.greenlet is not None and not task.greenlet.dead:
                    task.greenlet.parent = hub
        due, ready, chance = self._due, self._ready, self.chance
        while self.failure is None:
            if until():
                return Rest.DONE
            if self.turns >= turns:
                return Rest.ENDLESS
            if self.now >= seconds:
                return Rest.LATE
            if due and due[0][0] <= self.now:
                heapq.heappop(due)[2]()
            elif ready:
                if chance is not None and len(ready) > 1 and chance.random() < 0.25:
                    ready.rotate(-chance.randrange(len(ready)))
                self._turn(ready.popleft())
            elif due:
                self.now = due[0][0]
            else:
                return Rest.STUCK
        return Rest.FAILED

    def close(self) -> None:
        """End the history, and unwind all threads, whose acts have no effect any more."""
        self._over = True
        self._hub = getcurrent()
        for process in self.processes:
            for task in process.tasks:
                green, self.current = task.greenlet, task
                if green is not None and not green.dead:
                    green.parent = self._hub
                    green.throw(Over())
                task.greenlet = None
        self.current = None
        self._ready.clear()
        self._due.clear()

    def _turn(self, task: Task) -> None:
        """Let the thread run until it waits or yields."""
        process = task.process
        if self._stands_still(process, task):
            return
        self.turns += 1
        self.now += TURN
        self.on_turn(self.turns)
        if self._stands_still(process, task):
            return
        self.digest = crc32(task.mark, self.digest)
        self.current = task
        assert task.greenlet is not None
        task.greenlet.switch()
        self.current = None

    def _stands_still(self, process: SimProcess, task: Task) -> bool:
        """True if the process has crashed, or is paused, for which the thread is kept."""
        if process.alive and process.paused:
            process.held.append(task)
        return process.paused or not process.alive

    def _make_ready(self, task: Task) -> None:
        self._ready.append(task)

    def _time_out(self, task: Task, number: int) -> None:
        if task.parked == number:
            task.parked = -1
            self._make_ready(task)

    def _switch(self) -> None:
        assert self._hub is not None
        self._hub.switch()
        self.check()
