"""A worker of the simulated job: a process that takes one partition of one attempt at a time.

Invariant: it follows the newest incarnation that it has heard of and refuses whatever carries an older one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from recovery.testing.attempt import Environment, PartitionAttempt, WorkerPlan
from recovery.testing.messages import (
    AssignSplit,
    Deploy,
    EpochIsOver,
    Failed,
    Hello,
    OnChannel,
    TriggerEpoch,
    WhoIsThere,
)
from recovery.testing.requests import Answer, Requests
from snapshot.testing.process import Acted, Action, Broken, Effect, Event, Received, Save, Send, Started
from statebackend.ids import Attempt, Generation, Incarnation

STORE = "store"
TARGET = "target"
_NEVER = Incarnation(Generation(0), Attempt(0))


class Worker:
    """One worker process."""

    def __init__(self, drivers: Collection[str], plan: WorkerPlan) -> None:
        self._drivers = drivers
        self._plan = plan
        self._incarnation = _NEVER
        self._driver = ""
        self._workers: tuple[str, ...] = ()
        self._attempt: PartitionAttempt | None = None
        self._ahead: list[OnChannel] = []
        self._effects: list[Effect] = []
        self._store = Requests(STORE, 0)
        self._target = Requests(TARGET, 0)

    def handle(self, event: Event) -> Iterable[Effect]:
        """Pass an event to its handler."""
        match event:
            case Started(saved):
                boots = saved if isinstance(saved, int) else 0
                self._store = Requests(STORE, boots * 1_000_000)
                self._target = Requests(TARGET, boots * 1_000_000)
                self._effects.append(Save(boots + 1))
                self._effects += [Send(driver, Hello()) for driver in self._drivers]
            case Received(sender, message):
                self._received(sender, message)
            case Acted(action):
                self._act(action)
            case Broken(peer):
                self._broken(peer)
        effects, self._effects[:] = list(self._effects), []
        return effects

    def actions(self) -> Sequence[Action]:
        """Return what the worker's partition may do, and time-outs."""
        actions = self._attempt.actions() if self._attempt is not None else []
        return [*actions, *self._store.actions(), *self._target.actions()]

    def _received(self, sender: str, message: object) -> None:
        match message:
            case WhoIsThere():
                self._effects.append(Send(sender, Hello()))
            case Answer():
                (self._store if sender == STORE else self._target).answered(message)
            case Deploy():
                self._deploy(sender, message)
            case OnChannel():
                self._frame(message)
            case TriggerEpoch() | EpochIsOver() | AssignSplit():
                if message.incarnation == self._incarnation and self._attempt is not None:
                    self._from_driver(self._attempt, message)
            case _:
                raise TypeError(f"{message} is nothing that one says to a worker")

    def _deploy(self, driver: str, deploy: Deploy) -> None:
        if deploy.incarnation <= self._incarnation:
            return
        self._incarnation = deploy.incarnation
        self._driver = driver
        self._workers = deploy.workers
        environment = Environment(driver, self._store, self._target, self._effects, self._plan)
        self._attempt = PartitionAttempt(deploy, environment)
        ahead, self._ahead = self._ahead, []
        for message in ahead:
            self._frame(message)

    def _from_driver(self, attempt: PartitionAttempt, message: TriggerEpoch | EpochIsOver | AssignSplit) -> None:
        match message:
            case TriggerEpoch(_, marker):
                attempt.triggered(marker)
            case EpochIsOver(_, epoch, complete):
                attempt.over(epoch, complete=complete)
            case AssignSplit(_, split):
                attempt.assigned(split)

    def _frame(self, message: OnChannel) -> None:
        if message.incarnation > self._incarnation:
            self._ahead.append(message)
        elif message.incarnation == self._incarnation and self._attempt is not None:
            self._attempt.arrived(message.channel, message.frame)

    def _act(self, action: Action) -> None:
        if isinstance(action.argument, int) and action.name == f"time out of {STORE}":
            self._store.time_out(action.argument)
        elif isinstance(action.argument, int) and action.name == f"time out of {TARGET}":
            self._target.time_out(action.argument)
        elif self._attempt is not None:
            self._attempt.act(action)

    def _broken(self, peer: str) -> None:
        if peer == STORE:
            self._store.broken()
        elif peer == TARGET:
            self._target.broken()
        elif peer in self._drivers:
            if peer == self._driver:
                self._attempt = None
            self._effects.append(Send(peer, Hello()))
        elif peer in self._workers and self._attempt is not None:
            partition = self._attempt.partition
            self._attempt = None
            self._effects.append(Send(self._driver, Failed(self._incarnation, partition, f"lost {peer}")))
