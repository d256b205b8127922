"""Placing the partitions of each attempt: as soon as there are processes enough, and it is sure that the job is ours.

Invariant: one attempt is deployed at a time, the newest that the coordinator wants; what a roll-back asks to be
confirmed is confirmed before anything is restored. At the start of a job processes that come before others open state
meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from recovery.driver.attempts.environment import Environment, JobRecord
from recovery.driver.attempts.run import AttemptRun
from recovery.driver.attempts.standbys import Standbys
from recovery.driver.settings.job import JobSettings
from recovery.driver.tree.owned import Tree
from recovery.schemes.placing import place
from recovery.schemes.scheme import Processes
from snapshot.epochs.coordinator_events import RollBack
from snapshot.host.protocol.messages import Drain, Hello
from snapshot.ids import Member
from snapshot.program.source import Available
from statebackend.ids import Epoch, Generation, Incarnation, Partition, Uid

_ASK_AGAIN: Final = 1.0


@dataclass(frozen=True, slots=True)
class Deployed:
    """Every partition has been given to a process, to go on from where the roll-back says."""

    attempt: AttemptRun
    roll_back: RollBack


@dataclass(frozen=True, slots=True)
class Overtaken:
    """A newer generation has claimed the job."""

    by: Generation


class Deployment:
    """The attempts of one generation. `tell` is called in the loop's thread.

    `found` is what the sources had at the start that the first epoch has not.
    """

    def __init__(
        self,
        settings: JobSettings,
        environment: Environment,
        record: JobRecord,
        tree: Tree,
        found: Mapping[Uid, Available],
        standbys: Standbys,
        tell: Callable[[Deployed | Overtaken], object],
    ) -> None:
        self._settings = settings
        self._environment = environment
        self._workers = environment.workers
        self._loop = environment.loop
        self._record = record
        self._tree = tree
        self._found = found
        self._standbys = standbys
        self._tell = tell
        self._wanted: Incarnation | None = None
        self._to_deploy: RollBack | None = None
        self._not_before = 0.0
        self._before: dict[str, Member] = {}
        self._early: dict[str, Member] = {}
        self._slots: dict[Member, int] = {}
        self._move: tuple[str, Member] | None = None
        self._closed = False
        self.attempt: AttemptRun | None = None
        """The deployed attempt; None between two attempts."""
        self.short_since: float | None = None
        """Since which time of the loop a deployment waits for processes."""

    @property
    def ever(self) -> bool:
        """True if there ever was an attempt."""
        return bool(self._slots)

    @property
    def roles(self) -> Mapping[str, Member]:
        """Return which role each process has; empty if no attempt is deployed."""
        return {} if self.attempt is None else self.attempt.deployed

    def member_of(self, worker: str) -> Member | None:
        """Return the role that a process has, or had in the attempt before; None if it has none."""
        return (self._before if self.attempt is None else self.attempt.deployed).get(worker)

    def roll_back(self, roll_back: RollBack, not_before: float) -> None:
        """Give up the attempt, and begin this one; deploy nothing before `not_before`, a time of the loop."""
        self._drop()
        self._not_before = not_before
        if not_before > self._loop.now():
            self._loop.call_at(not_before, self.deploy_if_possible)
        self._wanted = roll_back.incarnation
        self._to_deploy = None if roll_back.confirm_first else roll_back
        self.deploy_if_possible()
        self._confirm_claim(roll_back)

    def hand_over(self, partition: Partition, worker: str) -> None:
        """Give the partition to this process with the next roll-back, if the process is there then."""
        self._move = worker, Member(partition)

    def deploy_if_possible(self) -> None:
        """Give every partition to a process, if there are enough of them and it is time."""
        self.replace_if_possible()
        roll_back = self._to_deploy
        if roll_back is None or self._closed or self._loop.now() < self._not_before:
            return
        there = self._workers.there
        standbys, before = self._standbys, self._before if self.ever else self._early
        chosen = self._record.scheme.place(Processes(there, before, self._slots, standbys.ready, standbys.only))
        if chosen is None:
            self.short_since = self._loop.now() if self.short_since is None else self.short_since
            if roll_back.epoch is not None and not self.ever:
                self._begin_early(there)
            return
        self._to_deploy = self.short_since = None
        self._slots = {member: there[worker].slot for member, worker in chosen.items()}
        environment, record = self._environment, self._record
        aside, trouble = environment.threads.aside, environment.reporting.trouble
        processes = {member: there[worker] for member, worker in chosen.items()}
        attempt = AttemptRun(
            self._settings, self._workers, aside, self._loop, self._tree, trouble, roll_back, processes
        )
        self.attempt = attempt
        attempt.deploy(self._found, record.failures.suspects, record.windows, record.scheme.view)
        self._standbys.look(attempt.deployed)
        self._tell(Deployed(attempt, roll_back))

    def replace(self, partition: Partition, epoch: Epoch | None) -> bool:
        """Have a partition that has lost its process restart alone; return False if it has not."""
        if self.attempt is None or not self.attempt.replaces(partition, epoch):
            return False
        self.replace_if_possible()
        return True

    def replace_if_possible(self) -> None:
        """Give partitions that restart alone to processes, as far as there are any without a role."""
        attempt, standbys = self.attempt, self._standbys
        if attempt is None or self._closed:
            return
        for partition, waiting in attempt.awaited.items():
            free = {worker: hello for worker, hello in self._workers.there.items() if worker not in attempt.deployed}
            processes = Processes(free, {}, self._slots, standbys.ready, standbys.only)
            placed = place((waiting.successor,), processes)
            if placed is not None:
                worker = placed[waiting.successor]
                self._slots[waiting.successor] = free[worker].slot
                careful = partition in self._record.failures.suspects
                attempt.restart(waiting, free[worker], careful=careful)
                if self._record.endings.draining:
                    self._workers.send(worker, Drain(attempt.incarnation))
                standbys.look(attempt.deployed)
        if self._to_deploy is None:
            waits = bool(attempt.awaited)
            self.short_since = (self.short_since or self._loop.now()) if waits else None

    def _begin_early(self, there: Mapping[str, Hello]) -> None:
        """Have the processes that came first open state while others are still starting, which takes as long.

        Not if there will be more processes than partitions: roles are best decided when all processes are there.
        """
        if self._settings.scheme.standbys:
            return
        self._early = {worker: member for worker, member in self._early.items() if worker in there}
        for worker, hello in there.items():
            member = Member(Partition(hello.slot))
            is_free = member.partition < self._settings.parallelism and member not in self._early.values()
            if worker not in self._early and is_free:
                self._early[worker] = member
                self._standbys.begin_early(worker, member.partition)

    def close(self) -> None:
        """Give up the attempt, and deploy no other: the generation is over."""
        self._closed = True
        self._drop()

    def _drop(self) -> None:
        if self.attempt is not None:
            self._before = dict(self.attempt.deployed)
            if self._move is not None:
                worker, moved = self._move
                self._before = {had: at for had, at in self._before.items() if at != moved} | {worker: moved}
            self.attempt.close()
            self.attempt = None
        self._move = None

    def _confirm_claim(self, roll_back: RollBack) -> None:
        def confirmed(newest: Generation | BaseException) -> None:
            if self._closed or roll_back.incarnation != self._wanted:
                return
            if isinstance(newest, BaseException):
                self._environment.reporting.trouble("reading who has claimed the job", newest)
                self._loop.call_at(self._loop.now() + _ASK_AGAIN, lambda: self._confirm_claim(roll_back))
            elif newest > self._tree.generation:
                self._tell(Overtaken(newest))
            elif roll_back.confirm_first:
                self._to_deploy = roll_back
                self.deploy_if_possible()

        self._environment.threads.confirming.submit(self._tree.newest_claim, confirmed)
