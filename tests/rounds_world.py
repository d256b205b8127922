"""Three stages of replicated partitions: what rounds, first copies of channels and joiners have to bear.

Invariant: what a stage makes of its input depends on the order of all that it was given, so that any difference between
two replicas shows in what they hand on and in what they note.
"""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from snapshot.cut.frames import Boundary, Data, End, Frame, Marker, MarkerMode, Watermark
from snapshot.ids import ChannelId
from snapshot.replication.first_copy import FirstCopy
from snapshot.replication.rounds import MarkerReached, Round, Rounds, Share
from snapshot.testing.schedule import Schedule
from statebackend.ids import NO_EPOCH, Epoch, Generation, Partition, Uid

Row = tuple[int, ...]
KINDS = ("source", "middle", "end")
_MOST_STEPS = 5_000
_SIZES = ((1, 1), (1, 2), (2, 1), (2, 2), (3, 1), (1, 3), (2, 3), (3, 2))


class Member(NamedTuple):
    """One replica of a partition, which runs all stages."""

    partition: int
    replica: int


class Copy(NamedTuple):
    """A channel between two members."""

    channel: ChannelId
    sender: int
    receiver: int


def channel(kind: str, sender: int, receiver: int) -> ChannelId:
    after = KINDS[KINDS.index(kind) + 1]
    return ChannelId(Uid(kind), Uid(after), Partition(sender), Partition(receiver))


@dataclass
class Stage:
    """One stage of one member; `state` is None while it is awaited, and else folds all that was given, in its order."""

    kind: str
    member: Member
    rounds: Rounds
    first: dict[ChannelId, FirstCopy[int]]
    script: deque[Round | Marker]
    listeners: list[list[int]]
    """The replicas of each partition to which copies go."""
    state: int | None
    noted: list[object] = field(default_factory=list)
    unsent: dict[int, list[Row]] = field(default_factory=dict)
    ended: bool = False


class World:
    """A few partitions of a few replicas each; a schedule says how they go on, fail and join.

    `first_copy` and `rounds` make the machines, and `bugs` says what the world itself does wrongly.
    """

    def __init__(
        self,
        schedule: Schedule,
        first_copy: Callable[[Collection[int], Epoch], FirstCopy[int]] = FirstCopy,
        rounds: Callable[[list[ChannelId]], Rounds] = Rounds,
        bugs: Collection[str] = (),
    ) -> None:
        self.schedule, self.first_copy, self.rounds, self.bugs = schedule, first_copy, rounds, bugs
        self.partitions, self.replicas = _SIZES[schedule.number(len(_SIZES))]
        self.room = 1 + schedule.number(4)
        self.kills = schedule.number(self.replicas)
        joins = schedule.flag()
        self.joiner = Member(schedule.number(self.partitions), self.replicas) if joins else None
        self.joined = False
        self.dead: set[Member] = set()
        self.stages: dict[tuple[str, Member], Stage] = {}
        self.copies: dict[Copy, deque[Frame]] = {}
        self.states: dict[tuple[str, int], int] = {}
        """What each stage of the joiner's partition had at the marker."""
        self.scripts = [self._script(partition) for partition in range(self.partitions)]
        for partition in range(self.partitions):
            for replica in range(self.replicas):
                self._start(Member(partition, replica), NO_EPOCH, self.scripts[partition])

    def _script(self, partition: int) -> list[Round | Marker]:
        """Return what the source of a partition says: some numbers are left out, and the marker stands somewhere."""
        last, marker = 1 + self.schedule.number(6), 1 + self.schedule.number(4)
        if self.joiner is not None:
            last = max(last, marker + 1)
        found: list[Round | Marker] = []
        for number in range(1, last + 1):
            if number in (marker, last) or self.schedule.number(3):
                rows = tuple((partition, number, n) for n in range(self.schedule.number(4)))
                data = (Data(rows, len(rows), len(rows)),) if rows else ()
                found.append(Round(number, (Share(channel("source", 0, 0), data, (), ended=number == last),)))
            if number == marker:
                found.append(Marker(Epoch(Generation(1), 1), MarkerMode.ALIGNED))
        return found

    def _start(self, member: Member, began: Epoch, script: list[Round | Marker]) -> None:
        everywhere = list(range(self.replicas))
        senders = [*everywhere, self.replicas] if began != NO_EPOCH else everywhere
        for kind, before in zip(KINDS, (None, *KINDS), strict=False):
            channels = (
                [channel(before, sender, member.partition) for sender in range(self.partitions)] if before else []
            )
            first = {
                c: self.first_copy(senders if c.sender == member.partition else everywhere, began) for c in channels
            }
            listeners = [senders if receiver == member.partition else everywhere for receiver in range(self.partitions)]
            listeners = [list(replicas) for replicas in listeners] if kind != "end" else []
            state = None if before and began != NO_EPOCH else 0
            rounds, items = self.rounds(channels), deque(() if before else script)
            self.stages[kind, member] = Stage(kind, member, rounds, first, items, listeners, state)

    # --- the schedule's choices ---------------------------------------------------------------------------------------

    def run(self) -> None:
        """Run until nothing is left to do."""
        for step in range(_MOST_STEPS):
            if self.kills and not self.schedule.exhausted and self.schedule.number(64) == 63:
                self._kill()
            doers: list[Copy | Stage] = [*self.copies, *self.stages.values()]
            first = step if self.schedule.exhausted else self.schedule.number(256)
            for at in range(len(doers)):
                if self._does(doers[(first + at) % len(doers)]):
                    break
            else:
                return
        raise AssertionError("the members do not come to an end")

    def _does(self, doer: Copy | Stage) -> bool:
        """Do the next thing of a copy or a stage; return False if it has none."""
        if isinstance(doer, Copy):
            if not (self.copies[doer] and self._is_read(doer)):
                return False
            self._deliver(doer)
        else:
            if doer.member in self.dead or doer.ended or not self._has(doer) or self._is_full(doer):
                return False
            self._work(doer)
        return True

    def _is_read(self, copy: Copy) -> bool:
        stage = self._receiver(copy)
        if stage is None:
            return False
        if "an owed channel is paused" in self.bugs and stage.rounds.bytes >= self.room:
            return False
        return stage.first[copy.channel].is_wanted(copy.sender) and stage.rounds.is_wanted(copy.channel, self.room)

    def _receiver(self, copy: Copy) -> Stage | None:
        member = Member(copy.channel.receiver, copy.receiver)
        if member in self.dead:
            return None
        return self.stages.get((copy.channel.target, member))

    def _has(self, stage: Stage) -> bool:
        if not stage.first:
            return bool(stage.script)
        if stage.state is None:
            return (stage.kind, stage.member.partition) in self.states
        return not any(stage.rounds.owes(each) for each in stage.first) and not stage.rounds.is_over

    def _is_full(self, stage: Stage) -> bool:
        """True if that copy has no room which has most, to some partition; a joiner is not waited for."""
        for receiver, replicas in enumerate(stage.listeners):
            of = channel(stage.kind, stage.member.partition, receiver)
            waiting = [
                len(self.copies.get(Copy(of, stage.member.replica, replica), ()))
                for replica in replicas
                if Member(receiver, replica) not in self.dead and replica < self.replicas
            ]
            if waiting and min(waiting) >= self.room:
                return True
        return False

    def _kill(self) -> None:
        """Let a member die that is not the last of its partition; the ends of what it has sent may be lost."""
        alive = [
            stage.member for stage in self.stages.values() if stage.kind == "end" and stage.member not in self.dead
        ]
        others = [m for m in alive if any(o != m and o.partition == m.partition for o in alive if o != self.joiner)]
        self.kills -= 1
        if not others:
            return
        dead = others[self.schedule.number(len(others))]
        self.dead.add(dead)
        for copy, frames in self.copies.items():
            if (copy.channel.sender, copy.sender) == dead:
                for _ in range(self.schedule.number(len(frames) + 1)):
                    frames.pop()

    # --- work ---------------------------------------------------------------------------------------------------------

    def _deliver(self, copy: Copy) -> None:
        frame, stage = self.copies[copy].popleft(), self._receiver(copy)
        assert stage is not None
        new = stage.first[copy.channel].take(copy.sender, frame)
        if not new:
            return
        if isinstance(frame, Data):
            assert isinstance(frame.payload, tuple)
            frame = Data(frame.payload[-new:], new, new)
        stage.rounds.arrived(copy.channel, frame)

    def _work(self, stage: Stage) -> None:
        if stage.state is None:
            stage.state = self.states[stage.kind, stage.member.partition]
            return
        item = stage.rounds.take() if stage.first else stage.script.popleft()
        match item:
            case Round(number, shares):
                self._round(stage, number, shares)
            case Marker() as marker:
                self._mark(stage, marker)
            case MarkerReached(marker):
                self._mark(stage, marker)
            case None:
                raise AssertionError("nothing is known to come next, though no channel owes anything")

    def _round(self, stage: Stage, number: int, shares: tuple[Share, ...]) -> None:
        for share in shares:
            for data in share.data:
                assert isinstance(data.payload, tuple)
                for row in data.payload:
                    stage.state = zlib.crc32(repr((stage.state, row)).encode())
                    stage.noted.append(row)
                    if stage.listeners:
                        to = zlib.crc32(repr(row[:3]).encode()) % self.partitions
                        stage.unsent.setdefault(to, []).append((*row[:3], stage.state) if stage.first else row)
        stage.noted.append((number, [watermark for share in shares for watermark in share.watermarks]))
        self._send(stage, Watermark(number))
        is_over = stage.rounds.is_over if stage.first else shares[0].ended
        stage.ended = is_over
        self._send(stage, End(number) if is_over else Boundary(number))

    def _mark(self, stage: Stage, marker: Marker) -> None:
        stage.noted.append(marker)
        if self.joiner is not None:
            assert stage.state is not None
            if stage.member.partition == self.joiner.partition:
                self.states.setdefault((stage.kind, stage.member.partition), stage.state)
            if not self.joined:
                self._join(self.joiner, marker)
            if "a joiner hears the marker" in self.bugs:
                self._listen(stage, self.joiner)
        self._send(stage, marker)
        if self.joiner is not None:
            self._listen(stage, self.joiner)

    def _join(self, joiner: Member, marker: Marker) -> None:
        self.joined = True
        for stage in self.stages.values():
            for of, first in stage.first.items():
                if of.sender == joiner.partition:
                    first.join(joiner.replica, marker.epoch)
        script = self.scripts[joiner.partition]
        self._start(joiner, marker.epoch, script[script.index(marker) + 1 :])

    def _listen(self, stage: Stage, joiner: Member) -> None:
        if stage.listeners and joiner.replica not in stage.listeners[joiner.partition]:
            stage.listeners[joiner.partition].append(joiner.replica)

    # --- what is sent -------------------------------------------------------------------------------------------------

    def _send(self, stage: Stage, frame: Frame) -> None:
        """Send all rows that wait, cut as it happens, then this frame."""
        for receiver, replicas in enumerate(stage.listeners):
            of = channel(stage.kind, stage.member.partition, receiver)
            for each in (*self._cut(stage.unsent.pop(receiver, [])), frame):
                for replica in replicas:
                    copy = Copy(of, stage.member.replica, replica)
                    self.copies.setdefault(copy, deque()).append(each)

    def _cut(self, rows: list[Row]) -> Iterator[Data]:
        while rows:
            some = 1 + self.schedule.number(len(rows))
            yield Data(tuple(rows[:some]), some, some)
            rows = rows[some:]


def check_members(world: World) -> None:
    """Check that replicas that live have noted the same, joiners what follows the marker, and all to their end."""
    alive = [stage for stage in world.stages.values() if stage.member not in world.dead]
    for kind in KINDS:
        for partition in range(world.partitions):
            of = [stage for stage in alive if stage.kind == kind and stage.member.partition == partition]
            for stage in of:
                assert stage.ended, f"{kind} of {stage.member} waits for ever"
                noted = of[0].noted
                if stage.member == world.joiner:
                    at = next(at for at, item in enumerate(noted) if isinstance(item, Marker)) + 1
                    noted = noted[at:]
                assert stage.noted == noted, f"{kind} of {stage.member} differs from {of[0].member}"
