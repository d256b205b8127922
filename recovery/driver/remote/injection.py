"""Faults in a running job, as the driver brings them about: it finds out who is meant, and tells that process.

Invariant: each order is answered once: when the process has said that it does it, when it is gone, which is as
good, or with the reason why it cannot be; a fault of the driver itself is answered before it happens.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from recovery.driver.attempts.workers import Workers
from recovery.driver.remote.commands import Reply
from recovery.driver.report.status import RunStatus
from recovery.events import AnyEvent, EpochCompleted, FaultInjected, WorkerLost
from recovery.inject.report import Injected
from recovery.inject.targets import (
    AllOf,
    Anything,
    ExecutorOf,
    Kind,
    LinkBetween,
    NoSuchTarget,
    Order,
    PrimaryOf,
    ReplicaAt,
    StandbyAt,
    Target,
    TheDriver,
    WorkerOf,
    member_at,
    members_of,
    standby_at,
    worker_of,
)
from snapshot.host.faults.injector import stop_for
from snapshot.host.protocol.messages import Address, BreakInside, Cut, Delay, Fault, Inject, Kill, Links, Stop
from snapshot.host.protocol.messages import Injected as SaidByWorker
from statebackend import means
from statebackend.errors import JobError
from statebackend.ids import Epoch


class NotInjected(JobError):
    """The process that was told cannot bring the fault about; the message has its reason."""


@dataclass(frozen=True, slots=True)
class _Pending:
    worker: str
    injected: Injected
    reply: Reply


class _LastOf:
    """Answers an order to several processes with the last of their answers, or the first that is an error."""

    def __init__(self, awaited: int, reply: Reply) -> None:
        self._awaited = awaited
        self._reply = reply
        self._error: Exception | None = None

    def answer(self, answer: object) -> None:
        """Take the answer of one of them."""
        self._awaited -= 1
        if isinstance(answer, Exception) and self._error is None:
            self._error = answer
        if not self._awaited:
            self._reply(answer if self._error is None else self._error)


class Injection:
    """Brings faults about. `note` hears of them; `before_own` is called with what is to be done to the driver itself,
    and does it when all answers are on their way.
    """

    def __init__(
        self,
        workers: Workers,
        status: Callable[[], RunStatus],
        note: Callable[[FaultInjected], object],
        before_own: Callable[[Callable[[], object]], object],
    ) -> None:
        self._workers = workers
        self._status = status
        self._note = note
        self._before_own = before_own
        self._pending: dict[int, _Pending] = {}
        self._last = 0
        self._complete: tuple[Epoch, float] | None = None

    def inject(self, order: Order, by: str, reply: Reply) -> None:
        """Bring the fault about, and answer `report.Injected`, or else `NoSuchTarget` or `NotInjected`."""
        try:
            if isinstance(order.target, TheDriver):
                self._note(FaultInjected(at=means.wall(), order=str(order), worker=None, partition=None, by=by))
                reply(self._injected(order, None, means.getpid()))
                self._before_own(_own_fault(order))
                return
            workers = self._all(order.target)
            fault = self._fault(order)
        except NoSuchTarget as error:
            reply(error)
            return
        last = _LastOf(len(workers), reply)
        for worker in workers:
            self._last += 1
            injected = self._injected(order, worker, self._workers.there[worker].pid)
            self._pending[self._last] = _Pending(worker, injected, last.answer)
            partition = injected.partition
            self._note(FaultInjected(at=injected.at, order=str(order), worker=worker, partition=partition, by=by))
            self._workers.send(worker, Inject(self._last, fault))

    def said(self, worker: str, said: SaidByWorker) -> None:
        """Answer the order that this process has answered."""
        pending = self._pending.get(said.number)
        if pending is not None and pending.worker == worker:
            del self._pending[said.number]
            pending.reply(
                NotInjected(f"{pending.injected.order}: {said.problem}") if said.problem else pending.injected
            )

    def event(self, event: AnyEvent) -> None:
        """Note a completed epoch; answer the orders to a process that is gone, which answers no more."""
        match event:
            case EpochCompleted(epoch=epoch, at=at):
                self._complete = epoch, at
            case WorkerLost(worker=worker):
                for number in [number for number, one in self._pending.items() if one.worker == worker]:
                    pending = self._pending.pop(number)
                    pending.reply(pending.injected)
            case _:
                pass

    def _injected(self, order: Order, worker: str | None, pid: int) -> Injected:
        now, status = means.wall(), self._status()
        since = None if self._complete is None else (now - self._complete[1]) * 1000
        partition = None if worker is None else status.workers.get(worker)
        return Injected(order, now, worker, pid, partition, status.complete, since)

    def _all(self, target: Target) -> Sequence[str]:
        """Return the processes that the fault is to happen to."""
        if not isinstance(target, AllOf):
            return (self._who(target),)
        status = self._status()
        members = members_of(target.partition, status.roles, status.parallelism)
        there = [members[member] for member in sorted(members) if members[member] in self._workers.there]
        if not there:
            raise NoSuchTarget(f"the processes of {target} have just gone")
        return there

    def _who(self, target: Target) -> str:
        status = self._status()
        match target:
            case ReplicaAt(member):
                worker = member_at(member, member.partition, status.roles, status.parallelism)
            case PrimaryOf(partition):
                primary = status.primaries.get(partition)
                worker = member_at(primary, partition, status.roles, status.parallelism)
            case WorkerOf(partition) | ExecutorOf(partition) | LinkBetween(one=partition):
                worker = worker_of(partition, status.roles, status.parallelism)
            case StandbyAt(index):
                worker = standby_at(index, status.roles)
            case TheDriver() | Anything() | AllOf():
                raise NoSuchTarget(f"{target} is no process of the job")
        if worker not in self._workers.there:
            raise NoSuchTarget(f"the process of {target} has just gone")
        return worker

    def _fault(self, order: Order) -> Fault:
        lasting, executor = order.lasting or 0, isinstance(order.target, ExecutorOf)
        match order.kind:
            case Kind.KILL:
                return Kill(executor)
            case Kind.STOP:
                return Stop(lasting, executor)
            case Kind.CUT:
                return Cut(self._links(order.target), lasting)
            case Kind.BREAK:
                return BreakInside(self._links(order.target))
            case Kind.DELAY:
                return Delay(self._links(order.target), lasting, order.by or 0)

    def _links(self, target: Target) -> Links:
        match target:
            case LinkBetween(_, None):
                return Links(driver=True)
            case LinkBetween(_, int(other)):
                return Links(frozenset([self._address(WorkerOf(other))]))
            case _:
                return Links(None, driver=True)

    def _address(self, target: WorkerOf) -> Address:
        return self._workers.there[self._who(target)].address


def _own_fault(order: Order) -> Callable[[], object]:
    if order.kind is Kind.STOP and order.lasting is not None:
        lasting = order.lasting / 1000
        return lambda: stop_for(lasting)
    return lambda: means.kill(means.getpid(), signal.SIGKILL)
