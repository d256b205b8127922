"""The status of a run: one immutable value, put together from its events and its partitions' figures.

Invariant: a status is consistent in itself, and as of the last event that the driver has told. A rate of rows
is over the last five seconds or so; a partition that begins anew begins at nothing.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Final

from recovery import events as log
from snapshot.host.protocol.messages import Figures, Followed, SinkFigures, StageFigures
from snapshot.ids import Member
from statebackend import means
from statebackend.ids import Epoch, Generation, Incarnation, Partition, Uid
from statebackend.stores.store_calls import StoreCalls

_KEPT = 100
_RATE_OVER: Final = 5.0
"""Seconds over which a rate is, or so."""


class RunState(Enum):
    """The state of a run."""

    STARTING = "starting"
    """The job is claimed, its processes come, its state is restored."""
    RUNNING = "running"
    RECOVERING = "recovering"
    """Something failed, and everything goes back to the last complete epoch."""
    FINISHED = "finished"
    """All input was processed, and all output is committed."""
    STOPPED = "stopped"
    """Its user stopped it."""
    FAILED = "failed"
    """It is over, and was not meant to be."""

    @property
    def over(self) -> bool:
        """True if no other state follows."""
        return self in (RunState.FINISHED, RunState.STOPPED, RunState.FAILED)


@dataclass(frozen=True, slots=True)
class Rate:
    """Rows per second."""

    rows_in: float
    rows_out: float


@dataclass(frozen=True, slots=True)
class StageWork:
    """The work of a stage in one partition, in all attempts of a run: rows that were processed again count again."""

    rows_in: int = 0
    rows_out: int = 0
    late_rows: int = 0
    bad_rows: int = 0
    busy_ms: float = 0.0
    """For how long it worked; the next two add up with it to the time in which it could have worked."""
    blocked_ms: float = 0.0
    """For how long it could not, because an output was full."""
    idle_ms: float = 0.0
    bytes_out: Mapping[Uid, int] = field(default_factory=dict)
    """The bytes of rows that went out to each stage after it."""
    resent_rows: int = 0
    """Rows that it sent again, as they were not acknowledged."""

    def more(self, before: StageFigures | None, now: StageFigures, ran_ms: float) -> StageWork:
        """Add what was done between two figures of one attempt, in `ran_ms`; `before` is None for its first ones."""
        known = before or _NOTHING_DONE
        busy, blocked = _grown(known.busy_ms, now.busy_ms), _grown(known.blocked_ms, now.blocked_ms)
        return StageWork(
            self.rows_in + int(_grown(known.rows_in, now.rows_in)),
            self.rows_out + int(_grown(known.rows_out, now.rows_out)),
            self.late_rows + int(_grown(known.late_rows, now.late_rows)),
            self.bad_rows + int(_grown(known.bad_rows, now.bad_rows)),
            self.busy_ms + busy,
            self.blocked_ms + blocked,
            self.idle_ms + max(0.0, ran_ms - busy - blocked),
            {
                to: self.bytes_out.get(to, 0) + int(_grown(known.bytes_out.get(to, 0), size))
                for to, size in now.bytes_out.items()
            },
            self.resent_rows + int(_grown(known.resent_rows, now.resent_rows)),
        )


def _grown(before: float, now: float) -> float:
    """Return by how much a figure has grown; nothing if another member tells it now, which may be behind."""
    return max(0.0, now - before)


_NOTHING_DONE: Final = StageFigures(0, 0, None, 0, 0, 0.0)


@dataclass(frozen=True, slots=True)
class RunStatus:
    """The status of a run. `epochs` and `recoveries` are the newest hundred, oldest first."""

    job: str
    state: RunState
    parallelism: int
    scheme: str = ""
    """The name of the recovery scheme."""
    generation: Generation | None = None
    incarnation: Incarnation | None = None
    roles: Mapping[str, Member | None] = field(default_factory=dict)
    """The processes that are there, and the role of each; the others stand by."""
    primaries: Mapping[Partition, Member] = field(default_factory=dict)
    """The member of each partition that decides what a round of its sources has, and writes to its sinks."""
    pids: Mapping[str, str] = field(default_factory=dict)
    """The host and process id of each process that is there."""
    executors: Mapping[str, str] = field(default_factory=dict)
    """The Spark executor of each process that is there and has one: as host and process id."""
    complete: Epoch | None = None
    """The last complete epoch."""
    committed: Epoch | None = None
    in_flight: tuple[Epoch, ...] = ()
    epochs: tuple[log.EpochCompleted, ...] = ()
    completed_at: float | None = None
    """The time when an epoch was completed last, in seconds since 1970."""
    abandoned: int = 0
    abandoned_in_a_row: int = 0
    """Since the last complete epoch."""
    trouble: str = ""
    """Why the newest epoch was abandoned, if none was completed since; or what else does not work just now."""
    skipped: int = 0
    restarts: int = 0
    restarted_alone: int = 0
    """Times that a partition restarted while all others went on."""
    recoveries: tuple[log.Recovered, ...] = ()
    orphans: int = 0
    """Files that attempts had uploaded before they failed, and that were deleted."""
    orphan_bytes: int = 0
    failure: str = ""
    """The last failure."""
    figures: Mapping[Partition, Figures] = field(default_factory=dict)
    """The newest of each partition of the current attempt."""
    work: Mapping[Partition, Mapping[Uid, StageWork]] = field(default_factory=dict)
    """The work of each stage in each partition, in all attempts of this run."""
    commits: Mapping[Partition, Mapping[Uid, SinkFigures]] = field(default_factory=dict)
    """The commits of each sink in each partition, in all attempts of this run; those that are pending now."""
    store_calls: Mapping[Partition, Mapping[str, StoreCalls]] = field(default_factory=dict)
    """The calls of each partition's processes to the store, by their kind, in all attempts of this run."""
    rates: Mapping[Uid, Rate] = field(default_factory=dict)
    """The rows per second that each stage takes in and gives out, all partitions together."""
    standbys: Mapping[str, Followed] = field(default_factory=dict)
    """The last answer of each process that follows epochs: the epoch that it has, and its cost."""

    @property
    def workers(self) -> Mapping[str, Partition | None]:
        """Return the processes that are there, and which partition each has; the others stand by."""
        return {worker: None if role is None else role.partition for worker, role in self.roles.items()}

    @property
    def redundancy(self) -> int:
        """Return the number of processes of that partition which has the fewest; 0 while one has none."""
        there = Counter(role.partition for role in self.roles.values() if role is not None)
        return min((there[Partition(index)] for index in range(self.parallelism)), default=0)

    @property
    def rows_in(self) -> Mapping[Uid, int]:
        """Return how many rows each stage has taken in this attempt, summed over all partitions."""
        return self._totals(lambda stage: stage.rows_in)

    @property
    def rows_out(self) -> Mapping[Uid, int]:
        """Return how many rows each stage has given out in this attempt, summed over all partitions."""
        return self._totals(lambda stage: stage.rows_out)

    @property
    def late_rows(self) -> Mapping[Uid, int]:
        """Return how many rows came too late to each stage in this attempt, summed over all partitions.

        They were dropped, or given to the side output for them.
        """
        return self._totals(lambda stage: stage.late_rows)

    @property
    def bad_rows(self) -> Mapping[Uid, int]:
        """Return how many lines or records each source has left out in this attempt, summed over all partitions.

        These do not fit the source's schema, and its `on_bad` says to leave them out.
        """
        return self._totals(lambda stage: stage.bad_rows)

    @property
    def watermarks(self) -> Mapping[Uid, int | None]:
        """Return how far each stage is in event time, in ms since 1970, by its partition that is furthest behind.

        None while a partition of the stage has no watermark, as in a stream without event time.
        """
        found: dict[Uid, int | None] = {}
        for figures in self.figures.values():
            for uid, stage in figures.stages.items():
                at = None if stage.watermark is None else stage.watermark.timestamp
                known = found.get(uid, at)
                found[uid] = None if known is None or at is None else min(known, at)
        return found

    def _totals(self, of: Callable[[StageFigures], int]) -> Mapping[Uid, int]:
        totals: dict[Uid, int] = {}
        for figures in self.figures.values():
            for uid, stage in figures.stages.items():
                totals[uid] = totals.get(uid, 0) + of(stage)
        return totals


class Rates:
    """Takes the totals of all partitions that these tell now and then. Times are in seconds."""

    def __init__(self) -> None:
        self._seen: dict[Partition, deque[tuple[float, Mapping[Uid, StageFigures]]]] = {}

    def begin_anew(self) -> None:
        """Forget all totals: they begin at zero again."""
        self._seen.clear()

    def told(self, now: float, partition: Partition, stages: Mapping[Uid, StageFigures]) -> None:
        """Take the totals that a partition has told."""
        seen = self._seen.setdefault(partition, deque())
        seen.append((now, stages))
        while len(seen) > 2 and now - seen[1][0] >= _RATE_OVER:
            seen.popleft()

    def now(self) -> Mapping[Uid, Rate]:
        """Return the rates of each stage, summed over all partitions."""
        rates: dict[Uid, Rate] = {}
        for seen in self._seen.values():
            (began, before), (ended, after) = seen[0], seen[-1]
            for uid, stage in after.items():
                first, known = before.get(uid), rates.get(uid, Rate(0.0, 0.0))
                if first is None or ended <= began:
                    rates[uid] = known
                    continue
                seconds = ended - began
                rates[uid] = Rate(
                    known.rows_in + (stage.rows_in - first.rows_in) / seconds,
                    known.rows_out + (stage.rows_out - first.rows_out) / seconds,
                )
        return rates


class StatusBoard:
    """Takes events and figures in the driver's thread, and shows the status to any other."""

    def __init__(self, job: str, parallelism: int, scheme: str) -> None:
        self._lock = means.Lock()
        self._rates = Rates()
        self._status = RunStatus(job, RunState.STARTING, parallelism, scheme)

    def show(self) -> RunStatus:
        """Return the status as it is now."""
        with self._lock:
            return self._status

    def figures(self, figures: Figures) -> None:
        """Take the newest figures of a partition."""
        with self._lock:
            known, partition = self._status.figures, figures.partition
            self._rates.told(means.monotonic(), partition, figures.stages)
            self._status = replace(
                self._status,
                figures={**known, partition: figures},
                work={**self._status.work, partition: _more(self._status, figures)},
                commits={**self._status.commits, partition: _commits(self._status, figures)},
                store_calls={**self._status.store_calls, partition: _store_calls(self._status, figures)},
                rates=self._rates.now(),
            )

    def followed(self, worker: str, followed: Followed) -> None:
        """Take note that a standby has got an epoch ready, or could not."""
        with self._lock:
            roles = self._status.roles
            if worker in roles and roles[worker] is None:
                self._status = replace(self._status, standbys={**self._status.standbys, worker: followed})

    def event(self, event: log.AnyEvent) -> None:
        """Bring the status up to date with this event."""
        with self._lock:
            if isinstance(event, log.Deployed):
                self._rates.begin_anew()
            self._status = _after(self._status, event)


def _more(status: RunStatus, figures: Figures) -> Mapping[Uid, StageWork]:
    """Return a partition's work with what its newest figures add to it."""
    work, before = status.work.get(figures.partition, {}), status.figures.get(figures.partition)
    ran = figures.running_ms - (0.0 if before is None else before.running_ms)
    return {
        **work,
        **{
            uid: work.get(uid, StageWork()).more(None if before is None else before.stages.get(uid), stage, ran)
            for uid, stage in figures.stages.items()
        },
    }


def _commits(status: RunStatus, figures: Figures) -> Mapping[Uid, SinkFigures]:
    """Return a partition's commits with what its newest figures add to them."""
    sums, last = status.commits.get(figures.partition, {}), status.figures.get(figures.partition)
    found = dict(sums)
    for uid, now in figures.sinks.items():
        before = SinkFigures() if last is None else last.sinks.get(uid, SinkFigures())
        known = sums.get(uid, SinkFigures())
        found[uid] = SinkFigures(
            now.pending,
            known.commits + int(_grown(before.commits, now.commits)),
            known.commit_ms + _grown(before.commit_ms, now.commit_ms),
            known.put_off + int(_grown(before.put_off, now.put_off)),
        )
    return found


def _store_calls(status: RunStatus, figures: Figures) -> Mapping[str, StoreCalls]:
    """Return the same for the calls of a partition's processes to the store."""
    sums, last = status.store_calls.get(figures.partition, {}), status.figures.get(figures.partition)
    found = dict(sums)
    for kind, now in figures.store.items():
        before = StoreCalls() if last is None else last.store.get(kind, StoreCalls())
        found[kind] = sums.get(kind, StoreCalls()) + StoreCalls(
            int(_grown(before.calls, now.calls)),
            int(_grown(before.errors, now.errors)),
            _grown(before.ms, now.ms),
        )
    return found


def _after(status: RunStatus, event: log.AnyEvent) -> RunStatus:
    match event:
        case log.Claimed(generation=generation, restores=restores):
            return replace(status, generation=generation, complete=restores)
        case log.Finished():
            return replace(status, state=RunState.FINISHED)
        case log.Stopped():
            return replace(status, state=RunState.STOPPED)
        case log.GaveUp(reason=reason):
            return replace(status, state=RunState.FAILED, failure=reason)
        case log.WorkerJoined() | log.WorkerLost() | log.Deployed() | log.Running() | log.AttemptFailed():
            return _after_attempt(status, event)
        case log.ReplicaLost(member=member):
            roles = {worker: None if at == member else at for worker, at in status.roles.items()}
            return replace(status, roles=roles)
        case log.RedundancyRestored(member=member, worker=worker):
            return replace(status, roles={**status.roles, worker: member})
        case log.PartitionLost(member=member):
            roles = {worker: None if at == member else at for worker, at in status.roles.items()}
            figures = {of: figures for of, figures in status.figures.items() if of != member.partition}
            return replace(status, roles=roles, figures=figures)
        case log.PartitionReplaced(member=member, worker=worker):
            return replace(
                status,
                roles={**status.roles, worker: member},
                primaries={**status.primaries, member.partition: member},
                restarted_alone=status.restarted_alone + 1,
            )
        case log.PrimaryMoved(member=member):
            return replace(status, primaries={**status.primaries, member.partition: member})
        case log.Recovered():
            return replace(status, recoveries=(*status.recoveries, event)[-_KEPT:])
        case log.EpochTriggered(epoch=epoch):
            return replace(status, in_flight=(*status.in_flight, epoch))
        case log.EpochCompleted(epoch=epoch, at=at):
            done = replace(status, complete=epoch, completed_at=at, epochs=(*status.epochs, event)[-_KEPT:])
            return replace(done, in_flight=_without(status.in_flight, epoch), abandoned_in_a_row=0, trouble="")
        case log.EpochAbandoned(epoch=epoch, reason=reason, detail=detail):
            return replace(
                status,
                in_flight=_without(status.in_flight, epoch),
                abandoned=status.abandoned + 1,
                abandoned_in_a_row=status.abandoned_in_a_row + 1,
                trouble=f"epoch {epoch} is abandoned: {reason}" + (f": {detail}" if detail else ""),
            )
        case log.EpochCommitted(epoch=epoch):
            return replace(status, committed=epoch)
        case log.OrphansDeleted(files=files, bytes=size):
            return replace(status, orphans=status.orphans + files, orphan_bytes=status.orphan_bytes + size)
        case log.EpochSkipped():
            return replace(status, skipped=status.skipped + 1)
        case log.WorkerDied(partition=partition, how=how):
            return replace(status, failure=f"partition {partition}: {how}")
        case log.Described() | log.PartitionRestored() | log.PeerRefused() | log.EpochsRemoved() | log.FaultInjected():
            return status
        case log.Trouble(what=what, reason=reason):
            return replace(status, trouble=f"{what}: {reason}")
        case log.Stalled() | log.NoEpochs() | log.Moved() | log.BadRows() | log.Collapsed():
            return status
        case log.Joining() | log.NotJoined():
            return status


def _after_attempt(
    status: RunStatus,
    event: log.WorkerJoined | log.WorkerLost | log.Deployed | log.Running | log.AttemptFailed,
) -> RunStatus:
    match event:
        case log.WorkerJoined(worker=worker, executor=executor, address=address, pid=pid):
            executors = {**status.executors, worker: executor} if executor else status.executors
            pids = {**status.pids, worker: f"{address.rpartition(':')[0]}, process {pid}"}
            return replace(status, roles={**status.roles, worker: None}, executors=executors, pids=pids)
        case log.WorkerLost(worker=lost):
            roles = {worker: at for worker, at in status.roles.items() if worker != lost}
            executors = {worker: at for worker, at in status.executors.items() if worker != lost}
            pids = {worker: at for worker, at in status.pids.items() if worker != lost}
            standbys = _known(status.standbys, roles)
            return replace(status, roles=roles, executors=executors, pids=pids, standbys=standbys)
        case log.Deployed(incarnation=incarnation, workers=workers, members=members, primaries=primaries):
            given = dict(zip(workers, members, strict=True))
            placed = {worker: given.get(worker) for worker in status.roles}
            standbys = _known(status.standbys, [worker for worker, at in placed.items() if at is None])
            leads = {member.partition: member for member in primaries}
            attempt = replace(status, incarnation=incarnation, roles=placed, primaries=leads)
            return replace(attempt, figures={}, standbys=standbys)
        case log.Running():
            return replace(status, state=RunState.RUNNING)
        case log.AttemptFailed(reason=reason):
            return replace(status, state=RunState.RECOVERING, restarts=status.restarts + 1, failure=reason)


def _known(standbys: Mapping[str, Followed], free: Container[str]) -> Mapping[str, Followed]:
    return {worker: said for worker, said in standbys.items() if worker in free}


def _without(epochs: tuple[Epoch, ...], gone: Epoch) -> tuple[Epoch, ...]:
    return tuple(epoch for epoch in epochs if epoch != gone)
