"""Acknowledgements: what a lost process had not made durable is sent again by those that sent it, and by nobody else.

Invariant: a frame is acknowledged when a complete epoch has what followed from it, and not before; so at the loss of a
process no partition but its own does again what it did since that epoch.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from recovery.decisions.restarts import Cause
from recovery.schemes.passive import Passive, PassiveRun
from recovery.schemes.placing import place
from recovery.schemes.scheme import Broken, Processes, Replaced, TriggerPlan
from snapshot.cut.frames import MarkerMode
from snapshot.epochs.coordinator_options import ContradictingOptions, CoordinatorOptions
from snapshot.host.protocol.wiring import Wiring, WithAcks
from snapshot.ids import Member, Replica
from snapshot.program.plan import Exchange, Plan
from statebackend.durations import Duration, milliseconds
from statebackend.ids import Partition

_ALONE = (Cause.PROCESS, Cause.SILENT, Cause.CHANNEL)
"""The causes of failures that another process in its place would not have."""


@dataclass(frozen=True, slots=True)
class Acks(Passive):
    """Acknowledge frames, as Storm acknowledges tuples, and restart a lost partition alone: every row at least once.

    A stage with a source or with keyed state keeps what it has sent until it is acknowledged, and sends it again when
    the process that had it is lost, or when `timeout` is over if the receiver hands it on. A receiver with state or a
    sink acknowledges when a complete epoch has what followed from the frame; one without hands the roots on, by
    exclusive or. An epoch has no markers: each partition is cut where it is, with what it has sent and nobody has
    acknowledged, and its sources with the position of the oldest row that is not. So when a process is lost, another
    one goes on from that partition's part of the last complete epoch, and all others go on as they are.

    A stage in a partition may have `max_pending` rows that are not acknowledged; as that waits for epochs, it bounds
    the rate to about so many rows in each interval. None bounds nothing but the memory that they take.

    Rows may come twice, and are counted where they are sent again. Sinks that promise every row once are refused.
    Failures of the program, of the store and of several other kinds roll all partitions back, as `Passive` does; so
    does a partition that is lost again before an epoch is complete. `restarts` counts each restart, of one or of all.
    """

    timeout: Duration = field(default="30s", kw_only=True)
    max_pending: int | None = field(default=1_000_000, kw_only=True)

    def __post_init__(self) -> None:
        Passive.__post_init__(self)
        if milliseconds(self.timeout, "timeout") < 1:
            raise ValueError(f"timeout is {self.timeout!r}; it must be at least 1ms")
        if self.max_pending is not None and self.max_pending < 1:
            raise ValueError(f"max_pending is {self.max_pending}; it is at least 1 row, or None")

    def wiring(self, interval: int) -> Wiring:
        """Return how the partitions are wired."""
        del interval
        return WithAcks(milliseconds(self.timeout), self.max_pending)

    def check(self, options: CoordinatorOptions, plan: Plan) -> None:
        """Raise `ContradictingOptions` for markers that overtake, short times, and what needs every row once."""
        if options.mode is MarkerMode.UNALIGNED or options.alignment_timeout is not None:
            given = "mode is unaligned" if options.mode is MarkerMode.UNALIGNED else "alignment_timeout is set"
            raise ContradictingOptions(
                f"{given}, and the scheme is Acks: its epochs have no markers, which could overtake anything; leave it "
                "out"
            )
        if milliseconds(self.timeout) <= 2 * options.interval:
            raise ContradictingOptions(
                f"a frame is acknowledged when an epoch has what followed from it, and there is one each "
                f"{options.interval} ms, but timeout is {milliseconds(self.timeout)} ms: almost all would be sent "
                "again; let timeout be several times as long as every"
            )
        once = [sink.uid for stage in plan.stages for sink in stage.sinks if sink.sink.exactly_once]
        if once:
            raise ContradictingOptions(
                f"the sinks {', '.join(sorted(once))} write every row once, and the scheme is Acks, under which rows "
                "may come twice; let them write at least once, best by a key, or use another scheme"
            )
        control = [edge.target for stage in plan.stages for edge in stage.edges if edge.exchange is Exchange.BROADCAST]
        if control:
            raise ContradictingOptions(
                f"the operators {', '.join(sorted(set(control)))} have a control stream, and the scheme is Acks: all "
                "partitions restore one broadcast state, and under Acks each is cut at another place of that stream; "
                "use another scheme"
            )

    def begin(self, parallelism: int) -> AcksRun:
        """Return its decisions for one run of a job."""
        return AcksRun(parallelism)


class AcksRun(PassiveRun):
    """The decisions of `Acks` in one run of a job: who has the role of each partition now."""

    def __init__(self, parallelism: int) -> None:
        super().__init__(parallelism)
        self._parallelism = parallelism
        self._now: dict[Partition, Member] = {}

    def place(self, processes: Processes) -> dict[Member, str] | None:
        """Return the process of each partition; None while there are too few processes."""
        first = [Member(Partition(index)) for index in range(self._parallelism)]
        was = {worker: Member(member.partition) for worker, member in processes.before.items()}
        before = Processes(processes.there, was, processes.slots, processes.ready, processes.only)
        placed = place(first, before)
        if placed is None:
            return None
        self._now = {member.partition: member for member in first}
        return dict(placed)

    def lost(self, member: Member, cause: Cause) -> Replaced | Broken:
        """Restart the partition alone, unless another process would fail as this one did."""
        if cause not in _ALONE or not self.stands_for(member):
            return Broken()
        successor = Member(member.partition, Replica(member.replica + 1))
        self._now[member.partition] = successor
        return Replaced(successor)

    def stands_for(self, member: Member) -> bool:
        """True if the member has its partition's role now."""
        return self._now.get(member.partition, member) == member

    def trigger(self) -> TriggerPlan:
        """Tell all partitions."""
        return TriggerPlan(tuple(self._now.values()))
