"""The thread that keeps a job's slots filled: it does what `Slots` says, when it is time.

Invariant: from `release` on nothing is launched any more but scouts that were given out before; what the
launcher is asked to do is asked for by one thread, one thing after the other, and that thread lives on whatever the
launcher raises.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from recovery.driver.launchers.launch_rules import Cancel, Launch, Slots
from statebackend import means


class Launching(Protocol):
    """The actions of a launcher."""

    def launch(self, launch: Launch) -> None:
        """Begin this launch; raises if it cannot. `Keeper.ended` is told later, in any thread, when it has ended."""

    def cancel(self, number: int) -> None:
        """End the launch, with all its processes."""


class Keeper:
    """`again` is how long a launch has to bring another process by itself (see `Slots`). Any thread may call it.

    `trouble` is told why processes had to be started again.
    """

    def __init__(
        self, launching: Launching, processes: int, again: float, trouble: Callable[[str], object], what: str
    ) -> None:
        self._launching = launching
        self._trouble = trouble
        self._what = what
        self._slots = Slots(processes, again, means.monotonic())
        self._changed = means.Condition()
        self._released = False
        self._thread = means.Thread(target=self._run, name="launches", daemon=True)

    def begin(self) -> None:
        """Launch them all; to be called once."""
        self._thread.start()

    def ended(self, launch: Launch, how: str) -> None:
        """Take note that a launch has ended; if it counted, another one follows."""
        with self._changed:
            counted = self._slots.ended(launch.number, means.monotonic()) and not self._released
            self._changed.notify()
        if counted:
            self._trouble(f"the {self._what} in slot {launch.slot} {how}")

    def appeared(self, number: int, worker: str) -> bool:
        """Take a process of this launch that has come; return False if it is one too many."""
        with self._changed:
            counts = self._slots.appeared(number, worker)
            self._changed.notify()
        return counts

    def scouts(self) -> Launch | None:
        """Return a launch that the launcher begins itself (see `Slots.scouts`); None from `release` on."""
        with self._changed:
            return None if self._released else self._slots.scouts()

    def keep(self, scouts: Launch, worker: str) -> None:
        """Keep one of the scouts."""
        with self._changed:
            self._slots.keep(scouts, worker, means.monotonic())
            self._changed.notify()

    def retire(self, slot: int) -> None:
        """Give up a slot that is not needed any more."""
        with self._changed:
            self._slots.retire(slot, means.monotonic())
            self._changed.notify()

    def lost(self, worker: str, *, silent: bool) -> None:
        """Take note that a process is not there any more; `silent` if it only gives no sign of life."""
        with self._changed:
            self._slots.lost(worker, means.monotonic(), silent=silent)
            self._changed.notify()

    @property
    def released(self) -> bool:
        """True if nothing is launched any more."""
        return self._released

    def release(self) -> None:
        """Launch nothing again, and cancel nothing; return at once."""
        with self._changed:
            self._released = True
            self._changed.notify()

    def join(self) -> None:
        """Wait, after `release`, for what is being launched at the moment."""
        self._thread.join()

    def _run(self) -> None:
        while steps := self._next_steps():
            for step in steps:
                match step:
                    case Launch():
                        self._launch(step)
                    case Cancel(number):
                        self._cancel(number)

    def _launch(self, launch: Launch) -> None:
        try:
            self._launching.launch(launch)
        except Exception as error:  # such as too many processes or threads
            self.ended(launch, f"cannot be started, which is tried again: {type(error).__name__}: {error}")

    def _cancel(self, number: int) -> None:
        try:
            self._launching.cancel(number)
        except Exception as error:
            self._trouble(f"a {self._what} that is not needed cannot be ended: {type(error).__name__}: {error}")

    def _next_steps(self) -> list[Launch | Cancel]:
        """Wait until there is something to do, and return it; return nothing if there never will be."""
        with self._changed:
            while not self._released:
                steps = self._slots.step(means.monotonic())
                if steps:
                    return steps
                due = self._slots.next_step
                self._changed.wait(None if due is None else max(0.0, due - means.monotonic()))
        return []
