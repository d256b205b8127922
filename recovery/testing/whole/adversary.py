"""The adversary of a simulated job: what befalls it, and when, as the schedule says.

Invariant: each fault is a few bytes, of which the first says how many turns of threads pass before it; when the bytes
are used up all faults are taken back, and nothing happens any more but the job itself.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Final, TypeVar

from recovery.driver.attempts.requests import Cancelled
from recovery.driver.driver import Driver
from recovery.testing.checks.observer import MEANT
from recovery.testing.checks.visitors import clean, read_newest
from recovery.testing.programs.target import Disturbance
from recovery.testing.whole.job import CLEANER, DRIVERS, READER, VISITORS, Job
from recovery.testing.world.kernel import SimProcess
from recovery.testing.world.network import Link
from recovery.testing.world.store import StoreTrouble
from snapshot.testing.history import Kind
from snapshot.testing.schedule import Schedule
from snapshot.tree.layout import JOURNAL
from statebackend import means

_T = TypeVar("_T")


class Act(Enum):
    """The kinds of acts of the adversary."""

    PREEMPT = "a thread loses the processor"
    CRASH = "a process crashes"
    CRASH_AT = "a process crashes at a fail point"
    PAUSE = "a process is paused"
    PAUSE_AT = "a process is paused at a fail point"
    CUT = "a link is cut"
    SLOW = "a link is slow"
    STORE = "a call of the store goes wrong"
    STORE_AWAY = "the store is away"
    TARGET = "a call of the target goes wrong"
    TARGET_SLOW = "a call of the target takes long"
    TARGET_AWAY = "the target is away"
    DISK = "the local disk fails"
    FUNCTION = "a function fails"
    CLOCK = "a clock jumps"
    RATE = "a clock goes wrong"
    SAVEPOINT = "a savepoint is asked for"
    STOP = "a stop is asked for"
    DRAIN = "the job is drained"
    CANCEL = "the job is cancelled"
    TAKE_OVER = "a second driver is started"
    HANG = "a driver hangs at its journal, and another one is started"
    LOSE = "a machine is lost"
    DAMAGE = "manifests are lost"
    READ = "a reader comes"
    CLEAN = "a clean-up comes"


_WEIGHTS: Final = {
    Act.PREEMPT: 4, Act.CRASH: 4, Act.CRASH_AT: 8, Act.PAUSE: 2, Act.PAUSE_AT: 3, Act.CUT: 3, Act.SLOW: 2, Act.STORE: 8,
    Act.STORE_AWAY: 2, Act.TARGET: 4, Act.FUNCTION: 3, Act.CLOCK: 1, Act.RATE: 1, Act.SAVEPOINT: 3, Act.STOP: 3,
    Act.CANCEL: 1, Act.TAKE_OVER: 2, Act.LOSE: 1, Act.TARGET_SLOW: 3, Act.TARGET_AWAY: 2,
    Act.DRAIN: 1, Act.READ: 2, Act.CLEAN: 2, Act.DISK: 3, Act.DAMAGE: 2, Act.HANG: 3,
}  # fmt: skip
_ACTS: Final = tuple(_WEIGHTS)
_WHILES: Final = (0.05, 0.5, 3.0, 12.0)
"""Seconds for which a fault lasts: less than a heartbeat, more, until a process is lost, until calls are given up."""
_LONG: Final = _WHILES[2:]
_JUMPS: Final = (0.5, -0.5, 3600.0, -3600.0)
_RATES: Final = (1.0, 0.9, 1.1)
_TROUBLES: Final = (
    StoreTrouble.FAILS, StoreTrouble.LOSES_ANSWER, StoreTrouble.SLOW, StoreTrouble.HANGS, StoreTrouble.IS_LOST
)  # fmt: skip
_PLACES: Final = ("", JOURNAL)
"""The folders whose calls are counted until one goes wrong."""
_DISK_ERRORS: Final = (errno.ENOSPC, errno.EIO)
_PATIENT: Final = 160
"""The greater, the fewer turns pass between two acts."""


class Meant(ValueError):
    """A function fails because the schedule says so."""


@dataclass(slots=True)
class _Waiting:
    """An act that waits for the n-th of something."""

    left: int
    act: Callable[[SimProcess], object]


class Adversary:
    """Acts on the job while it runs. Visitors of its tree are left alone: of those that crash a pin would stay."""

    def __init__(self, job: Job, schedule: Schedule) -> None:
        self._job = job
        self._schedule = schedule
        self._next = 0
        self.over_at: float | None = None
        """The time of the last fault, once the schedule is used up."""
        self._at_points: list[_Waiting] = []
        self._at_calls: list[tuple[_Countdown, StoreTrouble, str]] = []
        self._hanging: list[tuple[_Countdown, float]] = []
        self._visitors_are_slow = False
        self._at_target: list[tuple[_Countdown, Disturbance]] = []
        self._slow_target: list[tuple[_Countdown, float]] = []
        self._at_functions: list[_Countdown] = []
        self._at_disk: list[tuple[_Countdown, int]] = []
        self._away_until = self._target_away_until = 0.0
        job.world.on_turn = self._turn
        job.reached = self._reached
        job.server.trouble = self._trouble
        job.drawn.target.disturb = self._disturb
        job.drawn.fail_by(self._fail)
        job.means.disk = self._use_disk
        self._plan_next(0)

    # --- when ---------------------------------------------------------------------------------------------------------

    def _turn(self, turns: int) -> None:
        while self.over_at is None and turns >= self._next:
            chosen = self._schedule.choose([_WEIGHTS[act] for act in _ACTS])
            if chosen is None:
                self.end()
                return
            self._act(_ACTS[chosen])
            self._plan_next(turns)

    def _plan_next(self, turns: int) -> None:
        gap = self._schedule.number(256)
        self._next = turns + 1 + gap * gap // _PATIENT

    def end(self) -> None:
        """Take all faults back, and let nothing go wrong any more."""
        job = self._job
        self.over_at = job.world.now
        for waiting in (self._at_points, self._at_calls, self._at_target, self._slow_target, self._at_functions):
            waiting.clear()
        self._at_disk.clear()
        self._hanging.clear()
        self._visitors_are_slow = False
        self._away_until = self._target_away_until = 0.0
        self._restore(job.network.links.values())
        for process in job.alive:
            process.run_at(1.0)
            self._resume(process)

    # --- what ---------------------------------------------------------------------------------------------------------

    def _act(self, act: Act) -> None:
        job = self._job
        alive = [process for process in job.alive if process.name not in VISITORS]
        if not alive:
            return
        job.met[act.value] += 1
        match act:
            case Act.PREEMPT:
                job.world.preempt_in(1 + self._schedule.number(16))
            case Act.CRASH:
                job.world.end(self._one_of(alive))
            case Act.CRASH_AT:
                self._at_points.append(_Waiting(1 + self._schedule.number(64), job.world.end))
            case Act.PAUSE:
                self._pause(self._one_of(_WHILES), self._one_of(alive))
            case Act.PAUSE_AT:
                seconds = self._one_of(_WHILES)
                self._at_points.append(_Waiting(1 + self._schedule.number(64), partial(self._pause, seconds)))
            case Act.CUT:
                self._cut()
            case Act.SLOW:
                seconds, ways = self._one_of(_WHILES), self._ways()
                for link in ways:
                    link.slower = (0.02, 0.3)[self._schedule.number(2)]
                job.world.after(seconds, partial(self._restore, ways))
            case Act.STORE:
                trouble, below = self._one_of(_TROUBLES), self._one_of(_PLACES)
                self._at_calls.append((_Countdown(1 + self._schedule.number(24)), trouble, below))
            case Act.STORE_AWAY:
                self._away_until = job.world.now + self._one_of(_WHILES)
            case Act.TARGET:
                fate = (Disturbance.LOST, Disturbance.REFUSED)[self._schedule.number(2)]
                self._at_target.append((_Countdown(1 + self._schedule.number(8)), fate))
            case Act.TARGET_SLOW:
                seconds = self._one_of(_WHILES)
                self._slow_target.append((_Countdown(1 + self._schedule.number(8)), seconds))
            case Act.TARGET_AWAY:
                self._target_away_until = job.world.now + self._one_of(_WHILES)
            case Act.FUNCTION:
                self._at_functions.append(_Countdown(1 + self._schedule.number(64)))
            case Act.DISK:
                code = self._one_of(_DISK_ERRORS)
                self._at_disk.append((_Countdown(1 + self._schedule.number(64)), code))
            case Act.CLOCK:
                self._one_of(alive).behind += self._one_of(_JUMPS)
            case Act.RATE:
                self._one_of(alive).run_at(self._one_of(_RATES))
            case Act.SAVEPOINT:
                self._ask(lambda driver: driver.savepoint())
            case Act.STOP:
                savepoint = self._schedule.flag()
                self._ask(lambda driver: driver.ask(lambda generation: generation.stop(savepoint=savepoint)))
            case Act.DRAIN:
                self._ask(lambda driver: job.drain(driver))
            case Act.CANCEL:
                self._ask(lambda driver: driver.ask(lambda generation: generation.cancel(Cancelled("as asked"))))
            case Act.TAKE_OVER:
                self._take_over()
            case Act.HANG:
                seconds = self._one_of(_LONG)
                self._hanging.append((_Countdown(1 + self._schedule.number(32)), seconds))
            case Act.LOSE:
                job.lose_machine(self._one_of(alive))
            case Act.DAMAGE:
                job.lose_manifests(1 + self._schedule.number(4), accepts=self._schedule.flag())
            case Act.READ | Act.CLEAN:
                self._visitors_are_slow = self._schedule.flag()
                name, visit = (READER, read_newest) if act is Act.READ else (CLEANER, clean)
                job.start_visitor(name, visit)

    def _take_over(self) -> None:
        """Start a driver beside the one that is there, unless there are two."""
        gone = [name for name in DRIVERS if name not in {process.name for process in self._job.alive}]
        if gone and not self._job.finished:
            self._job.start_driver(gone[0])

    def _cut(self) -> None:
        seconds, ways = self._one_of(_WHILES), self._ways()
        for link in ways:
            self._job.network.cut(link)
            self._job.history.append(link.sender, 0, Kind.CUT, link.receiver)
        self._job.world.after(seconds, partial(self._restore, ways))

    def _restore(self, links: Iterable[Link]) -> None:
        for link in links:
            link.slower = 0.0
            self._job.network.heal(link)

    def _ways(self) -> list[Link]:
        """Return the ways between two processes, in both directions or in one."""
        names = list(dict.fromkeys(process.name for process in self._job.alive))
        one, other = self._one_of(names), self._one_of(names)
        there, back = self._job.network.link(one, other), self._job.network.link(other, one)
        return [] if one == other else [[there, back], [there], [back]][self._schedule.number(3)]

    def _pause(self, seconds: float, process: SimProcess) -> None:
        if not process.paused and process.alive and self.over_at is None:
            self._job.world.pause(process)
            self._job.note(process, Kind.PAUSED)
            self._job.world.after(seconds, lambda: self._resume(process))

    def _resume(self, process: SimProcess) -> None:
        if process.paused and process.alive:
            self._job.world.resume(process)
            self._job.note(process, Kind.RESUMED)

    def _ask(self, what: Callable[[Driver], object]) -> None:
        """Have a thread of a driver's process ask for this."""
        running = self._job.running
        if running:
            process, driver = self._one_of(running)
            self._job.world.spawn(process, lambda: what(driver), "request")

    def _one_of(self, options: Sequence[_T]) -> _T:
        return options[self._schedule.number(len(options))]

    # --- where it is asked --------------------------------------------------------------------------------------------

    def _reached(self, _: str) -> None:
        process = self._job.world.process
        if process.name in VISITORS:
            return
        due = [waiting for waiting in self._at_points if waiting.left <= 1]
        self._at_points = [waiting for waiting in self._at_points if waiting.left > 1]
        for waiting in self._at_points:
            waiting.left -= 1
        for waiting in due:
            waiting.act(process)
        if process.paused:
            self._job.world.pass_on()

    def _trouble(self, process: SimProcess, action: str, path: str) -> StoreTrouble:
        if self._job.world.now < self._away_until:
            return StoreTrouble.FAILS
        if self._visitors_are_slow and process.name in VISITORS:
            return StoreTrouble.SLOW
        if self._hanging and process.name in DRIVERS and path.startswith(JOURNAL):
            self._perhaps_hang(process)
        for waiting in list(self._at_calls):
            countdown, trouble, below = waiting
            if path.startswith(below) and countdown.comes():
                self._at_calls.remove(waiting)
                self._job.note(self._job.world.process, Kind.NOTED, f"{action} {path}: {trouble.name.lower()}")
                return trouble
        return StoreTrouble.NONE

    def _perhaps_hang(self, driver: SimProcess) -> None:
        """Pause a driver before this call of the store, and have another one take over meanwhile."""
        for waiting in list(self._hanging):
            countdown, seconds = waiting
            if countdown.comes():
                self._hanging.remove(waiting)
                self._pause(seconds, driver)
                self._take_over()

    def _disturb(self, what: str) -> Disturbance:
        job, takes = self._job, 0.0
        for late in list(self._slow_target):
            countdown, seconds = late
            if countdown.comes():
                self._slow_target.remove(late)
                job.note(job.world.process, Kind.NOTED, f"{what} at the target takes {seconds:g} s")
                takes = seconds
        means.sleep(takes)
        if job.world.now < self._target_away_until:
            return Disturbance.REFUSED
        for waiting in list(self._at_target):
            countdown, fate = waiting
            if countdown.comes():
                self._at_target.remove(waiting)
                job.note(job.world.process, Kind.NOTED, f"{what} at the target: {fate.name.lower()}")
                return fate
        return Disturbance.NONE

    def _use_disk(self, what: str) -> None:
        for waiting in list(self._at_disk):
            countdown, code = waiting
            if countdown.comes():
                self._at_disk.remove(waiting)
                self._job.note(self._job.world.process, Kind.NOTED, f"{what}: {errno.errorcode[code]}")
                raise OSError(code, f"the disk fails, {MEANT}")

    def _fail(self, what: str) -> None:
        for countdown in list(self._at_functions):
            if countdown.comes():
                self._at_functions.remove(countdown)
                raise Meant(f"{what} fails, {MEANT}")


@dataclass(slots=True, eq=False)
class _Countdown:
    left: int

    def comes(self) -> bool:
        """Count one, and return True if it is the one that was waited for."""
        self.left -= 1
        return self.left <= 0
