"""A coordinator in a loop: events one after the other, time before each, and what it says done before the next.

Invariant: an event that comes while another is being handled waits for its turn; the coordinator hears of the
time when it wants to, and before whatever happens at a later one; a trace has all that it was told and said.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from snapshot.epochs import coordinator_events as events
from snapshot.epochs.coordinator import Coordinator, CoordinatorState
from snapshot.epochs.trace import TraceWriter
from snapshot.host.net.event_loop import EventLoop, Timer
from snapshot.host.protocol.messages import Acknowledgement
from statebackend.ids import Incarnation

Event = events.CoordinatorEvent[Acknowledgement]
Instruction = events.CoordinatorInstruction[Acknowledgement]


class CoordinatorLoop:
    """Between a loop and a coordinator; `carry_out` does an instruction, and is told which event led to it."""

    def __init__(
        self,
        loop: EventLoop,
        coordinator: Coordinator[Acknowledgement],
        carry_out: Callable[[Instruction, Event], object],
        trace: TraceWriter | None,
    ) -> None:
        self._loop = loop
        self._coordinator = coordinator
        self._carry_out = carry_out
        self._trace = trace
        self._waiting: deque[Event] = deque()
        self._handling = False
        self._closed = False
        self._ticked = -1
        self._timer: Timer | None = None
        self._due: int | None = None

    @property
    def incarnation(self) -> Incarnation:
        """Return the incarnation of the current attempt."""
        return self._coordinator.incarnation

    @property
    def is_running(self) -> bool:
        """True if the current attempt runs."""
        return self._coordinator.state is CoordinatorState.RUNNING

    def tell(self, *happened: Event) -> None:
        """Tell the coordinator of events, after all that is being handled already, and of the time before each.

        Then wait for the time when it wants to hear of that again.
        """
        self._waiting += happened
        if self._handling or self._closed:
            return
        self._handling = True
        try:
            while (event := self._next()) is not None:
                instructions = self._coordinator.handle(event)
                if self._trace is not None:
                    self._trace.add(event, instructions)
                for instruction in instructions:
                    if not self._closed:
                        self._carry_out(instruction, event)
        finally:
            self._handling = False
        self._wait()

    def close(self) -> None:
        """Tell it nothing more, and do nothing more of what it said."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()

    def _next(self) -> Event | None:
        if self._closed:
            return None
        now = int(self._loop.now() * 1000)
        if now > self._ticked:
            self._ticked = now
            return events.Ticked(now)
        return self._waiting.popleft() if self._waiting else None

    def _wait(self) -> None:
        due = self._coordinator.deadline
        if self._closed or self._due == due:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._due = due
        self._timer = self._loop.call_at(due / 1000, self._tick)

    def _tick(self) -> None:
        self._due = None
        self.tell()
