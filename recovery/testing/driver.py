"""A driver process of the simulated job: dormant until it starts or takes over, then one generation after the other.

Invariant: a driver that is started again knows nothing but that it was started before, so that it reuses no
nonce and no request number. Two drivers may believe that the job is theirs; the journal says who is right.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from recovery.testing.generation import DriverPlan, GenerationRun, Means
from recovery.testing.messages import FromPartition, Hello, WhoIsThere
from recovery.testing.observer import Observer
from recovery.testing.requests import Answer, Requests
from recovery.testing.worker import STORE, TARGET
from snapshot.testing.process import Acted, Action, Broken, Effect, Event, Received, Save, Send, Started


class Driver:
    """One driver process."""

    def __init__(self, name: str, plan: DriverPlan, observer: Observer, *, starts: bool) -> None:
        self._starts = starts
        self._plan = plan
        self._effects: list[Effect] = []
        self._means = Means(name, 0, observer, Requests(STORE, 0), Requests(TARGET, 0), self._effects, set())
        self._run: GenerationRun | None = None
        self._looks = 0

    def handle(self, event: Event) -> Iterable[Effect]:
        """Pass an event to its handler."""
        match event:
            case Started(saved):
                self._start(saved if isinstance(saved, int) else 0)
            case Acted(action):
                self._act(action)
            case Received(sender, message):
                self._received(sender, message)
            case Broken(peer):
                self._broken(peer)
        effects, self._effects[:] = list(self._effects), []
        return effects

    def actions(self) -> Sequence[Action]:
        """Return the ways to take over, or what the running generation may do, and time-outs."""
        own = self._ways_in() if self._run is None else self._run.actions()
        return [*own, *self._means.store.actions(), *self._means.target.actions()]

    def _start(self, boots: int) -> None:
        first_id = boots * 1_000_000
        self._means.boots = boots
        self._means.store = Requests(STORE, first_id)
        self._means.target = Requests(TARGET, first_id)
        self._effects.append(Save(boots + 1))
        if self._starts or boots:
            self._take_over()

    def _ways_in(self) -> list[Action]:
        if self._plan.person is None:
            return [Action("take over", weight=2, drain=False)]
        return [Action("look for a savepoint")] if self._looks < self._plan.person.looks else []

    def _take_over(self, *, from_savepoint: bool = False) -> None:
        self._effects += [Send(worker, WhoIsThere()) for worker in self._plan.workers]
        self._run = GenerationRun(self._plan, self._means, from_savepoint=from_savepoint)
        self._run.begin()

    def _act(self, action: Action) -> None:
        if action.name == f"time out of {STORE}" and isinstance(action.argument, int):
            self._means.store.time_out(action.argument)
        elif action.name == f"time out of {TARGET}" and isinstance(action.argument, int):
            self._means.target.time_out(action.argument)
        elif self._run is None and self._plan.person is not None:
            self._looks += 1
            if self._means.observer.has_savepoint(self._plan.person.behind):
                self._take_over(from_savepoint=True)
        elif self._run is None:
            self._take_over()
        else:
            self._run.act(action)

    def _received(self, sender: str, message: object) -> None:
        match message:
            case Answer():
                (self._means.store if sender == STORE else self._means.target).answered(message)
            case Hello():
                self._means.there.add(sender)
                if self._run is not None:
                    self._run.appeared(sender)
            case FromPartition():
                if self._run is not None:
                    self._run.reported(sender, message)
            case _:
                raise TypeError(f"{message} is nothing that one says to a driver")

    def _broken(self, peer: str) -> None:
        if peer == STORE:
            self._means.store.broken()
        elif peer == TARGET:
            self._means.target.broken()
        else:
            self._means.there.discard(peer)
            if self._run is not None:
                self._run.lost(peer)
