"""Moves to other executors: looks for room, has a state opened there, and hands it over, as `moves` decides.

Invariant: there is one process at most beyond those that the job needs, and it is sent away when it is not
needed; whatever is under way when the attempt breaks is dropped, and the roll-back takes what process it finds.
"""

from __future__ import annotations

from collections.abc import Callable
from math import isfinite
from typing import Final

from recovery.driver.attempts.deployment import Deployment
from recovery.driver.attempts.environment import Environment
from recovery.driver.attempts.moves import Crew, HandOver, Look, Prepare, Rebalancing, Recall
from recovery.driver.attempts.standbys import Standbys
from recovery.driver.settings.job import JobSettings
from recovery.events import Moved, WorkerLost
from snapshot.host.net.event_loop import Timer
from snapshot.host.protocol.messages import Hello
from statebackend import means
from statebackend.ids import Epoch

_ASK_AGAIN: Final = 0.5


class Rebalancer:
    """The moves of one generation. `may_move` is asked before each step.

    `tell` hears, in the loop's thread, of a partition that is to be handed over, and of what has happened.
    """

    def __init__(
        self,
        settings: JobSettings,
        environment: Environment,
        standbys: Standbys,
        deployment: Deployment,
        may_move: Callable[[], bool],
        tell: Callable[[HandOver | Moved | WorkerLost], object],
    ) -> None:
        self._settings = settings
        self._loop = environment.loop
        self._workers = environment.workers
        self._scouting = environment.scouting
        """None if the launcher cannot look for room."""
        self._standbys = standbys
        self._deployment = deployment
        self._may_move = may_move
        self._tell = tell
        self._closed = False
        self._rule = Rebalancing()
        self._looks = 0
        self._one_more = False
        """There is a slot more than the job needs."""
        self._on_its_way: Callable[[Epoch | None], Moved] | None = None
        self._timer: Timer | None = None

    def runs(self, epoch: Epoch | None) -> None:
        """Report the move that this attempt completes, if any: all partitions are restored, as this epoch has them."""
        self._rule.runs(self._loop.now())
        moved, self._on_its_way = self._on_its_way, None
        if moved is not None:
            told = moved(epoch)
            role = self._deployment.roles.get(told.worker)
            if role is not None and role.partition == told.partition:  # and was not lost on the way
                self._tell(told)
        self._dismiss_who_is_too_many()
        self.look()

    def broken(self) -> None:
        """Drop the move that is under way, as a failure has ended the attempt."""
        if not self._rule.idle and self._scouting is not None:
            self._scouting.recall()
        self._rule.broken()
        self._on_its_way = None
        self._disarm()

    def wants(self, hello: Hello) -> bool:
        """Take a process that was launched to look and has come; return True if it is to stay."""
        came = self._rule.came(self._loop.now(), hello.dies_with, hello.worker, self._crew())
        self._one_more = self._one_more or came
        return came

    def appeared(self) -> None:
        """Take note that a process is there, and free."""
        self._dismiss_who_is_too_many()
        self.look()

    def lost(self, worker: str) -> None:
        """Take note that a process is gone."""
        self._rule.lost(self._loop.now(), worker)
        self.look()

    def look(self) -> None:
        """Do what is to be done now; to be called when something has happened that may matter."""
        self._disarm()
        if not self._settings.scheme.spread or self._closed:
            return
        if not self._may_move():
            self._call_again(self._loop.now() + _ASK_AGAIN)
            return
        newest = self._standbys.newest
        ready = [worker for worker, epoch in self._standbys.ready.items() if epoch == newest]
        match self._rule.step(self._loop.now(), self._crew(), ready):
            case Look(tasks):
                self._send_scouts(tasks)
            case Recall():
                if self._scouting is not None:
                    self._scouting.recall()
            case Prepare(worker, partition):
                self._standbys.prepare((worker, partition))
                self.look()
            case HandOver() as move:
                self._hand_over(move)
            case None:
                if self._rule.idle:
                    self._standbys.prepare(None)
                    self._dismiss_who_is_too_many()
        due = self._rule.next_step
        if due is not None and isfinite(due):
            self._call_again(due)

    def close(self) -> None:
        """Take no step any more: the generation is over."""
        self._closed = True
        self._disarm()

    def _send_scouts(self, tasks: int) -> None:
        self._looks += 1
        number = self._looks

        def over() -> None:
            if number == self._looks:
                self._rule.nobody_else(self._loop.now())
                self.look()

        if self._scouting is None or self._one_more:
            self._loop.call_soon(over)
        else:
            self._scouting.scout(tasks, lambda: self._loop.wake(over))

    def _hand_over(self, move: HandOver) -> None:
        worker, partition = move.worker, move.partition
        began, crew = self._loop.now(), self._crew()
        left = crew.placed[partition]
        self._on_its_way = lambda epoch: Moved(
            at=means.wall(),
            partition=partition,
            worker=worker,
            executor=crew.executors[worker],
            left=crew.executors[left],
            epoch=epoch,
            took_ms=(self._loop.now() - began) * 1000,
        )
        if self._one_more:
            self._standbys.leave_out(left)
        self._tell(move)

    def _dismiss_who_is_too_many(self) -> None:
        """Let one process go, if there is one too many and no move is under way.

        Processes that fail and come back do not change how many there are to be.
        """
        there, roles, needed = self._workers.there, self._deployment.roles, self._settings.processes
        if not self._one_more or not self._rule.idle or len(there) <= needed or not roles or self._scouting is None:
            return
        crew = self._crew()
        ready, crowds = self._standbys.ready, crew.crowds
        worker = max(crew.free, key=lambda worker: (worker not in ready, crowds[crew.executors[worker]]), default=None)
        if worker is not None:
            self._one_more = False
            slot, reason = there[worker].slot, "it was let go, as another executor has its place"
            self._scouting.retire(slot)
            self._workers.dismiss(worker, reason)
            self._standbys.dismissed(worker, roles)
            self._tell(WorkerLost(at=means.wall(), worker=worker, partition=None, reason=reason))

    def _crew(self) -> Crew:
        there, roles = self._workers.there, self._deployment.roles
        placed = {member.partition: worker for worker, member in roles.items() if worker in there}
        free = [worker for worker in there if worker not in roles]
        return Crew(placed, free, {worker: hello.dies_with for worker, hello in there.items()})

    def _call_again(self, when: float) -> None:
        self._disarm()
        self._timer = self._loop.call_at(when, self.look)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
