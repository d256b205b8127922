"""Feeding a coordinator: events one after the other, time before each, and what it says done before the next.

What always holds: an event that comes while another is being handled waits for its turn; the coordinator hears of the
time when it wants to, and before whatever happens at a later one; a trace has all that it was told and said.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from snapshot.epochs import coordinator_events as events
from snapshot.epochs.coordinator import Coordinator
from snapshot.epochs.trace import TraceWriter
from snapshot.host.net.event_loop import EventLoop, Timer
from snapshot.host.protocol.messages import Acknowledgement

Event = events.CoordinatorEvent[Acknowledgement]
Instruction = events.CoordinatorInstruction[Acknowledgement]


class Feeder:
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

    def now(self) -> int:
        """Return the coordinator's time, in milliseconds."""
        return int(self._loop.now() * 1000)

    def tell(self, event: Event) -> None:
        """Feed an event, after all that is being handled already."""
        self._waiting.append(event)
        self.feed()

    def feed(self) -> None:
        """Feed what waits, and the time; then wait for the time when the coordinator wants to hear of it."""
        if self._handling or self._closed:
            return
        self._handling = True
        try:
            while not self._closed:
                now = self.now()
                if now > self._ticked:
                    self._ticked = now
                    self._handle(events.Ticked(now))
                elif self._waiting:
                    self._handle(self._waiting.popleft())
                else:
                    break
        finally:
            self._handling = False
        self._arm()

    def close(self) -> None:
        """Feed nothing more, and do nothing more of what was said."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()

    def _handle(self, event: Event) -> None:
        instructions = self._coordinator.handle(event)
        if self._trace is not None:
            self._trace.add(event, instructions)
        for instruction in instructions:
            if not self._closed:
                self._carry_out(instruction, event)

    def _arm(self) -> None:
        due = self._coordinator.deadline
        if self._closed or self._due == due:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._due = due
        self._timer = self._loop.call_at(due / 1000, self._tick)

    def _tick(self) -> None:
        self._due = None
        self.feed()
