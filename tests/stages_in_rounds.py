"""Whole programs in rounds: the real stages of every partition, on channels and a clock that a test holds in its hands.

Invariant: the rounds of sources are the same in every run where partitions have one member; all else is chance: in
which order stages work and for how long, when they are interrupted, into which frames rows are cut, and how long frames
are on their way. With several members it is chance as well how long they take to agree, and when one of them is killed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from random import Random
from secrets import token_hex
from typing import Any

import pyarrow as pa

from recovery.replication.membership import Lost, Membership, NewView
from snapshot import Program
from snapshot.cut.frames import Data, End, Frame, Marker, MarkerMode
from snapshot.host.flow.allowances import UNLIMITED, Allowance
from snapshot.host.links import copies
from snapshot.host.net.rows_wire import RowsWire
from snapshot.host.partition.opening import StatePlacement, open_state
from snapshot.host.partition.parts import StageParts
from snapshot.host.partition.router import FanOut
from snapshot.host.partition.source_agreement import SourceAgreement
from snapshot.host.partition.stage_clock import StageClock
from snapshot.host.partition.stage_run import StageRun
from snapshot.host.partition.stage_source import Pacing
from snapshot.host.partition.state_cache import StateCache
from snapshot.host.partition.tree_files import TreeFiles
from snapshot.host.protocol.messages import Role, SinkFigures
from snapshot.host.protocol.options import HostOptions
from snapshot.host.protocol.wiring import InRounds
from snapshot.host.wiring import stage_parts
from snapshot.ids import ChannelId, Copy, Member, Replica
from snapshot.operators.rows import Rows, joined
from snapshot.program.plan import Plan
from snapshot.program.source import Batch, Exhausted, Later, Reading, SplitContext
from snapshot.replication.agreement import Message
from snapshot.replication.decisions import Decision
from statebackend.files import FileSet
from statebackend.ids import Attempt, Epoch, Generation, Incarnation, Partition, Uid
from statebackend.keygroups import range_of
from statebackend.stores.memory_store import MemoryStore

TICK = 5
START = 1_700_000_000_000
"""The time at which a run begins, in milliseconds: the beginning of a tick."""


class Clock:
    """The driver's clock as each partition knows it, and time that passes while work is done."""

    def __init__(self, random: Random, members: Sequence[Member]) -> None:
        self._random = random
        self.now = dict.fromkeys(members, START)
        self._worked = 0.0

    def monotonic(self) -> float:
        self._worked += self._random.choice((0.0, 0.0, 0.0, 0.005, 0.05))
        return self._worked


@dataclass(frozen=True)
class Due:
    """A source of rows that are due at certain times: `rows` are numbers of milliseconds since the start, with rows."""

    schema: pa.Schema
    rows: tuple[tuple[int, tuple[object, ...]], ...]
    splits: int
    bounded: bool = True
    blocking: bool = False
    on_demand: bool = False
    discover_every: float | None = None
    now: Callable[[], int] | None = None
    is_late: Callable[[], bool] = lambda: False
    """True if rows that are due cannot be read yet."""

    def check(self) -> Sequence[str]:
        return ()

    def discover(self, parallelism: int) -> Sequence[str]:
        return [str(split) for split in range(self.splits)]

    def open(self, context: SplitContext) -> DueReader:
        assert self.now is not None
        split = int(context.split)
        return DueReader(self, [row for at, row in enumerate(self.rows) if at % self.splits == split], self.now)


class DueReader:
    def __init__(self, source: Due, rows: list[tuple[int, tuple[object, ...]]], now: Callable[[], int]) -> None:
        self._source, self._rows, self._now, self._at = source, rows, now, 0

    def read(self, most: int) -> Reading:
        if self._at == len(self._rows):
            return Exhausted()
        some = [row for at, row in self._rows[self._at : self._at + most] if START + at < self._now()]
        if not some or self._source.is_late():
            return Later(self._now() / 1000)
        self._at += len(some)
        columns = zip(*some, strict=True)
        arrays = [pa.array(c, field.type) for c, field in zip(columns, self._source.schema, strict=True)]
        return Batch(pa.record_batch(arrays, schema=self._source.schema), self._at)

    def close(self) -> None:
        pass


class Line:
    """A channel whose frames are on their way for as long as chance has it; it never holds up a source."""

    def __init__(self, copy: Copy, *, of_source: bool, cut: Callable[[Data], Sequence[Data]]) -> None:
        self.copy, self.id = copy, copy.channel
        self._of_source = of_source
        self._cut = cut
        self.frames: deque[Frame] = deque()
        self.said: list[Frame] = []
        self.allowed: Allowance = UNLIMITED
        self.is_read = True

    @property
    def bytes(self) -> int:
        return 0 if self._of_source else sum(frame.size for frame in self.frames if isinstance(frame, Data))

    def put(self, frame: Frame) -> tuple[Data, ...]:
        if self.said and isinstance(self.said[-1], End):
            assert isinstance(frame, Marker)
            return ()
        frames = self._cut(frame) if isinstance(frame, Data) else (frame,)
        self.frames.extend(frames)
        self.said.extend(frames)
        return ()

    def pause(self) -> None:
        self.is_read = False

    def resume(self) -> None:
        self.is_read = True

    def allow(self, allowance: Allowance) -> None:
        if not self._of_source:
            self.allowed = allowance


class Kept:
    """A sink that keeps all batches as they come, as bytes, with the epochs between them, and when each row came.

    That is in milliseconds since the start, by the clock of the partition that is most behind.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.said: list[object] = []
        self.came: list[tuple[int, dict[str, Any]]] = []

    def begin(self) -> None:
        pass

    def rows(self, rows: Rows) -> None:
        self.said.append(as_bytes(rows))
        self.came += [(min(self._clock.now.values()) - START, row) for row in rows.batch.to_pylist()]

    def cut(self, epoch: Epoch) -> None:
        self.said.append(epoch)

    def completed(self, epoch: Epoch) -> None:
        pass

    def no_more_rows(self) -> None:
        self.said.append("end")

    @property
    def figures(self) -> SinkFigures:
        return SinkFigures()

    def close(self) -> None:
        pass


def as_bytes(rows: Rows) -> tuple[bytes, bytes | None]:
    batch = pa.Table.from_batches([rows.batch]).combine_chunks().to_batches()[0]
    clean = pa.record_batch([pa.array(column.to_pylist(), column.type) for column in batch], schema=batch.schema)
    return clean.serialize().to_pybytes(), None if rows.times is None else rows.times.tobytes()


class Job:
    """A program in so many partitions. `marks` are times at which sources are told of an epoch, `kills` those at which
    a member is killed that chance chooses among those of which a partition has others.
    """

    def __init__(
        self,
        program: Program,
        partitions: int,
        seed: int,
        folder: Path,
        marks: Sequence[int],
        changed: Callable[[StageParts], StageParts],
        replicas: int,
        kills: Sequence[int],
    ) -> None:
        self.random = random = Random(seed)
        self.plan: Plan = program.plan(16)
        self.partitions, self.marks, self.changed = partitions, list(marks), changed
        self.replicas, self._kills = replicas, sorted(kills)
        self.members = [Member(Partition(p), Replica(r)) for p in range(partitions) for r in range(replicas)]
        self.clock = Clock(random, self.members)
        self.lines: dict[Copy, Line] = {}
        self.sinks: dict[tuple[Uid, Member], Kept] = {}
        self.runs: list[tuple[Member, StageRun]] = []
        self.wires: dict[ChannelId, RowsWire] = {}
        self.closing = ExitStack()
        self.killed: list[Member] = []
        self.views = Membership(partitions, replicas)
        self._agreements: dict[Member, SourceAgreement] = {}
        self._outlets: dict[Member, list[object]] = {member: [] for member in self.members}
        self._peers: dict[tuple[Member, Member], deque[Message[Decision]]] = {}
        self._news: list[tuple[Member, Callable[[], None]]] = []  # that members will hear at some time
        self._triggered: dict[Member, list[Marker]] = {member: [] for member in self.members}
        for member in self.members:
            self._make(member, folder)
        self._receivers = {(member, channel): run for member, run in self.runs for channel in run.inputs.channels}
        for member, run in self.runs:
            ends = {copy: line for copy, line in self.lines.items() if copy.receiver == member}
            run.inputs.connect({copy: line for copy, line in ends.items() if copy.channel in run.inputs.channels})
            run.begin()

    def _make(self, member: Member, folder: Path) -> None:
        partition, store = member.partition, MemoryStore(token_hex(8))
        files = TreeFiles(store, Incarnation(Generation(1), Attempt(1)), partition)
        options = HostOptions(batch_rows=8, state_backend="heap", channel_buffer=1 << 10, input_buffer=1 << 12)

        def now() -> int:
            return self.clock.now[member]

        agreement = self._agreement(member) if self.replicas > 1 else None
        parts = self._parts(stage_parts(InRounds(TICK, self.replicas), now, START, agreement))
        for planned in self.plan.stages:
            stage = planned
            if isinstance(stage.source, Due):
                chance = self.replicas > 1
                is_late = (lambda: self.random.random() < 0.5) if chance else stage.source.is_late
                stage = replace(stage, source=replace(stage.source, now=now, is_late=is_late))
            groups = range_of(partition, self.partitions, self.plan.max_parallelism)
            role = Role(FileSet(groups))
            placement = StatePlacement(
                stage.uid, partition, self.partitions, self.plan.max_parallelism, role, options, store, files, folder
            )
            outlets: dict[ChannelId, Any] = {}
            for edge in stage.edges:
                for receiver in edge.receivers(partition, self.partitions):
                    channel = edge.channel(partition, receiver)
                    ways = copies(channel, self.members, member)
                    self.wires[channel] = wire = RowsWire(edge.schema, edge.timed)
                    of_source, cut = stage.source is not None, partial(self._cut, wire)
                    ends = [Line(copy, of_source=of_source, cut=cut) for copy in ways]
                    self.lines.update((end.copy, end) for end in ends)
                    outlets[channel] = parts.outlet(channel, ends)
            self._outlets[member] += outlets.values()
            sinks = {sink.uid: self.sinks.setdefault((sink.uid, member), Kept(self.clock)) for sink in stage.sinks}
            run = StageRun(stage, placement, None, outlets, sinks, lambda *_: None, lambda: None, Attempt(1), parts)
            self.closing.callback(run.close)
            if stage.operator is not None:
                state = open_state(stage.operator, placement, None, StateCache(), lambda: None).state
                self.closing.callback(state.close)
                run.open(state)
            if stage.source is not None and run.source is not None:
                dealt = stage.source.discover(self.partitions)
                run.source.assign(dealt[partition :: self.partitions], last=True)
            self.runs.append((member, run))

    def _agreement(self, member: Member) -> SourceAgreement:
        """Return a member's part of what is agreed on, with messages that are on their way as long as chance has it."""
        made = self._agreements[member] = SourceAgreement(member.replica, self.views.view(member.partition))

        def send(to: Replica, message: Message[Decision]) -> None:
            self._peers.setdefault((member, Member(member.partition, to)), deque()).append(message)

        def cut(marker: Marker) -> None:
            for at, run in self.runs:
                if at == member and run.source is None:
                    run.triggered(marker)

        made.connect(send, cut, lambda: None)
        return made

    def _cut(self, wire: RowsWire, frame: Data) -> Sequence[Data]:
        """Let members cut the rows of a channel into frames as they like."""
        if self.replicas == 1 or isinstance(frame.payload, Rows) or frame.rows < 2 or self.random.random() < 0.5:
            return (frame,)
        rows, at = wire.decode(frame), self.random.randrange(1, frame.rows)
        return wire.encode(rows.slice(0, at)), wire.encode(rows.slice(at, len(rows) - at))

    # --- a death ------------------------------------------------------------------------------------------------------

    def _kill_if_due(self) -> None:
        while self._kills and START + self._kills[0] <= max(self.clock.now.values()):
            del self._kills[0]
            chosen = [
                member
                for member in self.members
                if member not in self.killed and len(self.views.view(member.partition).members) > 1
            ]
            if chosen:
                self.kill(self.random.choice(chosen))

    def kill(self, dead: Member) -> None:
        """Kill a member: of what it has sent the last part is lost, and the others hear of it at some time."""
        self.killed.append(dead)
        del self.clock.now[dead]
        self.runs = [(member, run) for member, run in self.runs if member != dead]
        self._news = [(member, news) for member, news in self._news if member != dead]
        for copy, line in self.lines.items():
            if copy.receiver == dead:
                line.frames.clear()
            elif copy.sender == dead:
                for _ in range(self.random.randint(0, len(line.frames))):
                    line.frames.pop()
        for (sender, to), messages in self._peers.items():
            if to == dead:
                messages.clear()
            elif sender == dead:
                for _ in range(self.random.randint(0, len(messages))):
                    messages.pop()
        (said,) = self.views.handle(Lost(dead))
        assert isinstance(said, NewView)
        for member in self.clock.now:
            if member.partition == dead.partition:
                self._news.append((member, partial(self._agreements[member].viewed, said.view)))
            else:
                self._news.append((member, partial(self._left, member, dead)))

    def _left(self, member: Member, dead: Member) -> None:
        for outlet in self._outlets[member]:
            if isinstance(outlet, FanOut):
                outlet.drop(dead)
        for at, run in self.runs:
            if at == member:
                run.inputs.drop(dead)
        for copy, line in self.lines.items():
            if copy.sender == dead and copy.receiver == member:
                line.frames.clear()

    def _parts(self, parts: StageParts) -> StageParts:
        """Let work take as long as chance has it, but no source close its rounds earlier because of that."""

        def clock() -> StageClock:
            return replace(parts.clock(), monotonic=self.clock.monotonic)

        def pacing(*given: Any) -> Pacing:
            made = parts.pacing(*given)
            read = made.read
            made.read = lambda most: read(most + (1 << 20))  # type: ignore[method-assign]
            return made

        return self.changed(replace(parts, clock=clock, pacing=pacing))

    # --- chance -------------------------------------------------------------------------------------------------------

    def run(self, until: int) -> None:
        """Run until all have come to this time, and there is nothing left to do."""
        for _ in range(200_000):
            self._kill_if_due()
            if self._step(until):
                continue
            if all(now >= START + until for now in self.clock.now.values()):
                return
        raise AssertionError("the job does not come to rest")

    def _step(self, until: int) -> bool:
        """Do something that chance chooses; return False if nothing was left to do but to let time pass."""
        random = self.random
        lines = self._with_frames()
        if lines and random.random() < 0.5:
            line = random.choice(lines)
            for _ in range(min(len(line.frames), random.choice((1, 1, 2, 50)))):
                self._receivers[line.copy.receiver, line.id].arrived(line.copy, line.frames.popleft())
            return True
        said = [way for way, messages in self._peers.items() if messages and way[1] not in self.killed]
        if said and random.random() < 0.5:
            sender, to = random.choice(said)
            self._agreements[to].heard(sender.replica, self._peers[sender, to].popleft())
            return True
        if self._news and random.random() < 0.1:
            _, news = self._news.pop(random.randrange(len(self._news)))
            news()
            return True
        for _, run in random.sample(self.runs, len(self.runs)):
            if run.work(self.clock.monotonic() + random.choice((0.0, 0.001, 1.0))):
                return True
            if random.random() < 0.3:
                run.outputs.flush()
        if lines or said or self._news:
            return True
        for _, run in self.runs:
            run.outputs.flush()
        if self._with_frames():
            return True
        behind = [member for member, now in self.clock.now.items() if now < START + until]
        if not behind:
            return False
        member = random.choice(behind)
        if self.clock.now[member] - min(self.clock.now.values()) < 8 * TICK:
            self.clock.now[member] += TICK
            self._trigger(member)
        return True

    def _with_frames(self) -> list[Line]:
        return [
            line
            for line in self.lines.values()
            if line.frames and line.is_read and line.copy.receiver not in self.killed
        ]

    def _trigger(self, member: Member) -> None:
        """Tell all stages of a member of the epochs that are due, some of which are given up at some time."""
        told = self._triggered[member]
        while len(told) < len(self.marks) and START + self.marks[len(told)] <= self.clock.now[member]:
            marker = Marker(Epoch(Generation(1), len(told) + 1), MarkerMode.ALIGNED)
            told.append(marker)
            if self.replicas > 1:
                self._agreements[member].triggered(marker)
            for at, run in self.runs:
                if at == member and self.replicas == 1:
                    run.triggered(marker)
            if marker.epoch.number % 2:
                for _, run in self.runs:
                    if self.random.random() < 0.5:
                        run.abandoned(marker.epoch)

    # --- what came of it ----------------------------------------------------------------------------------------------

    def output(self) -> dict[str, list[object]]:
        """Return what each sink was given, and what was sent on each channel, rows as those of a round together."""
        found: dict[str, list[object]] = {f"{uid}/{at.partition}": kept.said for (uid, at), kept in self.sinks.items()}
        found.update({str(line.copy): list(self._said(line)) for line in self.lines.values()})
        return found

    def outputs(self) -> dict[str, dict[Replica, list[object]]]:
        """Return what each member's sinks were given, and what each has sent to which member, by what has to agree."""
        found: dict[str, dict[Replica, list[object]]] = {}
        for (uid, at), kept in self.sinks.items():
            found.setdefault(f"{uid}/{at.partition}", {})[at.replica] = kept.said
        for copy, line in self.lines.items():
            if copy.channel.sender != copy.channel.receiver and copy.receiver not in self.killed:
                name = f"{copy.channel} to replica {copy.heard_by}"
                found.setdefault(name, {})[copy.sent_by] = list(self._said(line))
        return found

    def _said(self, line: Line) -> Iterator[object]:
        rows: list[Rows] = []
        for frame in line.said:
            if isinstance(frame, Data):
                payload = frame.payload
                rows.append(payload if isinstance(payload, Rows) else self.wires[line.id].decode(frame))
                continue
            if rows:
                yield as_bytes(joined(rows))
                rows = []
            yield frame


@contextmanager
def played(
    program: Program,
    partitions: int,
    seed: int,
    folder: Path,
    until: int,
    marks: Sequence[int] = (),
    changed: Callable[[StageParts], StageParts] = lambda parts: parts,
    replicas: int = 1,
    kills: Sequence[int] = (),
) -> Iterator[Job]:
    """Run a program, with parts of its stages `changed`; whatever happens, everything is closed in the end."""
    job = Job(program, partitions, seed, folder, marks, changed, replicas, kills)
    with job.closing:
        job.run(until)
        yield job
