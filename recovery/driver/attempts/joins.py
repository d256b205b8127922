"""The members that come later: a partition that has lost one is given another while the rest goes on.

Invariant: no rule is decided here. Which member a partition lacks, and which process is for it, the scheme says;
what follows when is decided by `Joining`, and carried out here. One member joins at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from recovery import events as log
from recovery.driver.attempts.deployment import Deployment
from recovery.driver.attempts.environment import Environment, JobRecord
from recovery.driver.attempts.run import AttemptRun
from recovery.driver.attempts.standbys import Standbys
from recovery.replication import joining
from recovery.replication.joining import Joining
from recovery.schemes.scheme import Processes, Rejoins
from snapshot.host.net.event_loop import Timer
from snapshot.host.protocol.messages import (
    Admitted,
    Drain,
    Expect,
    Expecting,
    Forget,
    Hello,
    InSync,
    Reached,
    StandDown,
    StandsAt,
    ViewIs,
)
from snapshot.ids import Member
from snapshot.replication.agreement import View
from statebackend import means
from statebackend.ids import NO_EPOCH, Epoch, Partition

OfJoins = Expecting | Reached | StandsAt | InSync | Admitted

_AGAIN: Final = 0.2
"""Seconds until a join is tried again that was given up, the first time; twice as long after each further one."""
_LONGEST: Final = 10.0
_ASK: Final = 1.0
"""Seconds after which the epoch that is waited for is asked for again."""
_OVERDUE: Final = 60.0
"""Seconds after which a join is given up whose epoch is not complete."""
_BEFORE_ITS_EPOCH: Final = (joining.Step.EXPECTED, joining.Step.CONNECTING, joining.Step.WAITING)


@dataclass(slots=True, eq=False)
class _Join:
    """A join under way."""

    machine: Joining
    scheme: Rejoins
    attempt: AttemptRun
    worker: str
    hello: Hello
    began: float
    overdue: Timer
    stands: StandsAt | None = None
    asking: Timer | None = None
    connected: float = 0.0
    complete: float = 0.0

    @property
    def member(self) -> Member:
        return self.machine.member


class Joins:
    """The joins of one generation. `may` says whether one may begin now, `ask` asks for an epoch."""

    def __init__(
        self,
        environment: Environment,
        record: JobRecord,
        deployment: Deployment,
        standbys: Standbys,
        may: Callable[[], bool],
        ask: Callable[[], object],
    ) -> None:
        self._environment = environment
        self._workers = environment.workers
        self._loop = environment.loop
        self._record = record
        self._deployment = deployment
        self._standbys = standbys
        self._may = may
        self._ask = ask
        self._join: _Join | None = None
        self._newest: Epoch = NO_EPOCH
        self._lacks: dict[Partition, float] = {}
        """Since when of the loop's time partitions have lacked a member."""
        self._pause = _AGAIN
        self._not_before = 0.0
        self._timer: Timer | None = None
        self._unfit = ""
        """The process that could not join of late: another one is tried first."""

    def close(self) -> None:
        """Begin nothing any more."""
        self._over()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def attempt_over(self) -> None:
        """Forget what was under way, as all members begin anew."""
        self._over()
        self._lacks.clear()
        self._pause, self._not_before = _AGAIN, 0.0

    # --- beginning ----------------------------------------------------------------------------------------------------

    def look(self) -> None:
        """Begin a join if a partition lacks a member, there is a process for it, and none is under way."""
        scheme, attempt = self._record.scheme, self._deployment.attempt
        if not isinstance(scheme, Rejoins) or attempt is None or self._join is not None or not self._may():
            return
        wait = self._not_before - self._loop.now()
        if wait > 0:
            self._look_at(self._not_before)
            return
        there = self._workers.there
        processes = Processes(there, ready=self._standbys.ready, only=self._standbys.only, last=self._unfit)
        found = scheme.joiner(processes, attempt.deployed)
        if found is None:
            return
        member, worker = found
        now = self._loop.now()
        overdue = self._loop.call_at(now + _OVERDUE, self._is_overdue)
        machine = Joining(member, tuple(attempt.deployed.values()))
        self._join = _Join(machine, scheme, attempt, worker, there[worker], now, overdue)
        self._note(log.Joining(at=means.wall(), member=member, worker=worker))
        expect = Expect(attempt.incarnation, member, there[worker].address, self._newest)
        self._workers.send_all(expect, list(attempt.deployed))

    def _look_at(self, when: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(when, self.look)

    # --- what happens -------------------------------------------------------------------------------------------------

    def is_joining(self, member: Member) -> bool:
        """True if the member is on its way and has not begun."""
        return self._join is not None and self._join.member == member and not self._has_begun

    def reported(self, worker: str, message: OfJoins) -> None:
        """Take what a process says of a join."""
        join = self._join
        if join is None or join.attempt.incarnation != message.incarnation:
            return
        by = join.member if worker == join.worker else join.attempt.deployed.get(worker)
        if by is None:
            return
        match message:
            case Expecting(member=member) if member == join.member:
                self._happened(joining.Expects(by))
            case Reached(member=member, problem="") if member == join.member:
                self._happened(joining.Connected(by))
            case Reached(member=member, problem=problem) if member == join.member and not self._has_begun:
                self._unfit = join.worker
                self._happened(joining.Hindered(f"{by}: {problem}"))
            case StandsAt(epoch=epoch, stages=stages) if (
                epoch == join.machine.behind and by.partition == join.member.partition
            ):
                join.stands = message
                self._happened(joining.Stands(epoch, any(stage.ending for stage in stages.values())))
            case Admitted(member=member) if member == join.member:
                self._happened(joining.Admitted(by))
            case InSync(partition=partition, replica=replica, view=number) if Member(partition, replica) == join.member:
                self._in_sync(join, number)

    def triggered(self, epoch: Epoch) -> bool:
        """Take note that an epoch is being triggered; return True if its marker is to admit those that wait."""
        self._newest = epoch
        self._look_whether_it_may()
        join = self._join
        if join is None:
            return False
        return joining.Mark() in join.machine.handle(joining.Triggered(epoch))

    def over(self, epoch: Epoch, *, complete: bool) -> None:
        """Take note that an epoch is complete, or was given up."""
        self._happened(joining.Over(epoch, complete))

    def restored(self, member: Member) -> bool:
        """Take note that a member has its state; return False if it is none that has joined."""
        if self._join is None or self._join.member != member:
            return False
        self._happened(joining.Restored())
        return True

    def gone(self, member: Member, reason: str, *, is_there: bool) -> None:
        """Take note that a member is gone, whose loss is masked; its process may be there still, and soon be lost."""
        join = self._join
        self._lacks.setdefault(member.partition, self._loop.now())
        if is_there:
            self._not_before = max(self._not_before, self._loop.now() + _AGAIN)
        if join is not None and join.member == member and self._has_begun:
            self._over()
            self._put_off()
        else:
            self._happened(joining.Gone(member, reason))
        self._standbys.look(self._deployment.roles)  # its process may live on
        self.look()

    def lost(self, worker: str, reason: str) -> None:
        """Take note that a process without a role is gone, or cannot have the one that it was to have."""
        if self._join is not None and self._join.worker == worker and not self._has_begun:
            self._unfit = worker
            self._happened(joining.Hindered(reason))

    def hindered(self, reason: str) -> None:
        """Give up the join that has not begun."""
        self._happened(joining.Hindered(reason))

    @property
    def restoring(self) -> Epoch | None:
        """Return the epoch whose files a member that joins still needs, however many are complete by now."""
        return None if self._join is None else self._join.machine.restoring

    def is_entering(self, member: Member) -> bool:
        """True if the member goes on already, and is not one like the others yet."""
        return self._join is not None and self._join.member == member and self._has_begun

    @property
    def _has_begun(self) -> bool:
        return self._join is not None and self._join.machine.step in (joining.Step.BEGUN, joining.Step.OVER)

    def _is_overdue(self) -> None:
        if self._join is not None and not self._has_begun:
            self._unfit = self._join.worker
        self._happened(joining.Hindered(f"it was not there after {_OVERDUE:.0f} s"))

    # --- what follows -------------------------------------------------------------------------------------------------

    def _happened(self, event: joining.Event) -> None:
        join = self._join
        if join is None:
            return
        for instruction in join.machine.handle(event):
            match instruction:
                case joining.Deploy():
                    view = self._record.scheme.view(join.member.partition)
                    assert view is not None
                    join.attempt.connect(join.hello, join.member, view)
                case joining.Enter():
                    join.connected = self._loop.now()
                    self._tell_view(join, join.scheme.entered(join.member))
                    self._loop.call_soon(lambda: self._ask_for(join))
                case joining.Begin(_, given_up):
                    self._begin(join, given_up)
                case joining.Done():
                    self._done(join)
                case joining.GiveUp(reason):
                    self._give_up(join, reason)
                case joining.Mark():
                    raise AssertionError("an epoch is triggered by `triggered` alone")

    def _ask_for(self, join: _Join) -> None:
        """Ask for an epoch, again and again until one is triggered; for none if the job is about to end."""
        self._look_whether_it_may()
        if join is self._join and join.machine.step is joining.Step.WAITING:
            join.asking = self._loop.call_at(self._loop.now() + _ASK, lambda: self._ask_for(join))
            self._ask()

    def _look_whether_it_may(self) -> None:
        """Give up a join for which there will be no epoch: behind the last one of a job nothing comes."""
        if self._join is not None and self._join.machine.step in _BEFORE_ITS_EPOCH and not self._may():
            self._happened(joining.Hindered("the job is about to end, or goes back to an epoch"))

    def _tell_view(self, join: _Join, view: View) -> None:
        join.attempt.tell_members(join.member.partition, ViewIs(join.attempt.incarnation, view))

    def _begin(self, join: _Join, given_up: tuple[Epoch, ...]) -> None:
        join.complete = self._loop.now()
        view, stands = self._record.scheme.view(join.member.partition), join.stands
        assert view is not None
        assert stands is not None
        join.attempt.join(join.worker, join.member, view, stands, given_up)
        if self._record.endings.draining:
            self._workers.send(join.worker, Drain(join.attempt.incarnation))
        self._standbys.look(join.attempt.deployed)

    def _in_sync(self, join: _Join, number: int) -> None:
        view = join.scheme.caught_up(join.member, number)
        if view is not None:
            self._tell_view(join, view)
            self._happened(joining.InSync())

    def _done(self, join: _Join) -> None:
        self._over()
        self._pause, self._unfit = _AGAIN, ""
        partition, now = join.member.partition, self._loop.now()
        lacked = self._lacks.pop(partition, join.began)
        left = sum(member.partition == partition for member in join.attempt.deployed.values())
        marks = log.JoinMarks(
            connected=(join.connected - join.began) * 1000,
            complete=(join.complete - join.began) * 1000,
            joined=(now - join.began) * 1000,
        )
        self._note(
            log.RedundancyRestored(
                at=means.wall(),
                member=join.member,
                worker=join.worker,
                left=left,
                lacked_ms=max(0.0, (join.began - lacked) * 1000),
                marks=marks,
            )
        )
        self.look()

    def _give_up(self, join: _Join, reason: str) -> None:
        self._over()
        incarnation, member = join.attempt.incarnation, join.member
        view = join.scheme.not_joining(member)
        self._workers.send(join.worker, StandDown(incarnation, f"it does not join: {reason}"))
        self._workers.send_all(Forget(incarnation, member), list(join.attempt.deployed))
        if view is not None:
            self._tell_view(join, view)
        self._note(log.NotJoined(at=means.wall(), member=member, reason=reason))
        self._standbys.lost(join.worker)  # what it had ready is closed
        self._standbys.look(self._deployment.roles)
        self._put_off()
        self.look()

    def _put_off(self) -> None:
        self._not_before = self._loop.now() + self._pause
        self._pause = min(2 * self._pause, _LONGEST)

    def _over(self) -> None:
        join, self._join = self._join, None
        if join is not None:
            join.overdue.cancel()
            if join.asking is not None:
                join.asking.cancel()

    def _note(self, event: log.AnyEvent) -> None:
        self._environment.reporting.event(event)
