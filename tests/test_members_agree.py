"""Members of a partition in rounds: what they take, send and give to sinks is the same, whoever is killed when."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from snapshot.cut.aligner import Process
from snapshot.cut.frames import Boundary, Data, Frame, Marker, MarkerMode
from snapshot.cut.pauses import Then
from snapshot.host.flow.inlets import Instruction, RoundOver
from snapshot.host.flow.round_inlet import RoundInlet
from snapshot.host.partition.agreed_source import AgreedSource
from snapshot.host.partition.parts import StageParts
from snapshot.host.partition.source_agreement import SourceAgreement
from snapshot.host.partition.source_run import at_its_beginning
from snapshot.host.partition.stage_clock import round_clock
from snapshot.host.partition.stage_source import Pacing
from snapshot.host.protocol.options import HostOptions
from snapshot.ids import ChannelId, Copy, Member, Replica
from snapshot.program.plan import Stage
from snapshot.replication.agreement import Acknowledge, Append, Message, View
from snapshot.replication.decisions import Decision, SourceEnd, SourceRound
from statebackend.errors import JobError
from statebackend.ids import NO_EPOCH, Attempt, Epoch, Generation, Partition, Uid
from tests.stages_in_rounds import START, TICK, Job, played
from tests.test_reproducible import MARKS, UNTIL, due, program

_SEEDS = range(4)
_STAGES = count()


def kills(seed: int, count: int) -> Sequence[int]:
    random = Random(seed)
    return [random.randrange(UNTIL) for _ in range(count)]


def check_equal(job: Job) -> None:
    """Check that all living members have done the same, and those that were killed the beginning of it."""
    dead = {(member.partition, member.replica) for member in job.killed}
    for name, by_replica in job.outputs().items():
        longest = max(by_replica.values(), key=len)
        partition = int(name.split("->")[0].rpartition("/")[2])
        for replica, said in by_replica.items():
            if (partition, replica) in dead:
                assert said[:-1] == longest[: len(said) - 1] or not said, f"{name}: {replica} differed before its death"
            else:
                assert said == longest, f"{name}: replica {replica} differs"


def living(job: Job) -> list[Member]:
    """Return one living member of each partition."""
    return list({member.partition: member for member in job.clock.now}.values())


@pytest.mark.parametrize(("partitions", "replicas"), [(1, 2), (2, 2), (2, 3)])
@pytest.mark.parametrize("seed", _SEEDS)
def test_members_do_the_same_whoever_is_killed_when(tmp_path: Path, partitions: int, replicas: int, seed: int) -> None:
    deaths = kills(seed, seed % (partitions * (replicas - 1) + 1))
    with played(program(), partitions, seed, tmp_path, UNTIL, MARKS, replicas=replicas, kills=deaths) as job:
        assert len(job.killed) == len(deaths)
        check_equal(job)
        for uid in ("windows-out", "delayed-out", "counted-out", "batches-out"):
            for member in living(job):
                said = job.sinks[Uid(uid), member].said
                assert [one.number for one in said if isinstance(one, Epoch)] == [1, 2, 3], "a marker did not come"
                assert said[-1] == "end"
        rows = [row for member in living(job) for _, row in job.sinks[Uid("delayed-out"), member].came]
    totals: dict[int, int] = {}
    for _, (key, amount, _) in due(1).rows:
        assert isinstance(key, int)
        assert isinstance(amount, int)
        totals[key] = totals.get(key, 0) + amount
    found: dict[int, int] = {}
    for row in rows:
        found[row["key"]] = max(found.get(row["key"], 0), row["total"])
    assert found == totals, "a row of the first source is lost, or was taken twice"


def test_of_a_frame_that_another_copy_has_brought_in_part_the_rest_is_taken() -> None:
    channel = ChannelId(Uid("in"), Uid("here"), Partition(0), Partition(1))
    first, second = Copy(channel, Replica(0)), Copy(channel, Replica(1))

    def last_rows(_: ChannelId, frame: Data, count: int) -> Data:
        assert isinstance(frame.payload, str)
        return rows(frame.payload[-count:])

    def rows(letters: str) -> Data:
        return Data(letters, len(letters), len(letters))

    inlet = RoundInlet([channel], (), NO_EPOCH, 1 << 20, last_rows)
    inlet.connect([first, second])
    for copy, frame in (
        (first, rows("ab")), (second, rows("a")), (second, rows("bcd")), (first, rows("cd")), (first, Boundary(1)),
        (first, rows("e")), (second, Boundary(1)), (second, rows("ef")), (first, rows("f")), (first, Boundary(2)),
    ):  # fmt: skip
        inlet.arrived(copy, frame)
    taken: list[object] = []
    while not inlet.idle:
        for said in inlet.proceed():
            match said:
                case Process(_, Data(payload)):
                    taken.append(payload)
                case RoundOver(number):
                    taken.append(number)
                case _:
                    pass
    assert taken == ["ab", "cd", 1, "e", "f", 2]


class TakesAll(RoundInlet):
    """Takes what each copy brings."""

    def arrived(self, copy: Copy, frame: Frame) -> Sequence[Instruction]:
        self._rounds.arrived(copy.channel, frame)
        return ()


class HandsOutAll(AgreedSource):
    """Hands out all that was read, whatever was decided."""

    def _hand_out_next(self) -> None:
        match self._decided and self._decided[0]:
            case SourceRound(uid, number, ends, splits) if self._rows.has(dict(ends)):
                everything = tuple(self._rows.ends())
                self._decided[0] = SourceRound(uid, number, everything, splits)
            case _:
                pass
        super()._hand_out_next()


class HasOwnSplits(AgreedSource):
    """Announces event time by the splits that it reads itself."""

    def _hand_out_next(self) -> None:
        super()._hand_out_next()
        self._splits = self.splits.splits


def with_inlet(inlet: type[RoundInlet]) -> Callable[[StageParts], StageParts]:
    return lambda parts: replace(parts, inlet=inlet)


def with_source(source: type[AgreedSource]) -> Callable[[StageParts], StageParts]:
    def changed(parts: StageParts) -> StageParts:
        def pacing(*given: Any) -> Pacing:
            made = parts.pacing(*given)
            assert isinstance(made, AgreedSource)
            made.__class__ = source
            return made

        return replace(parts, pacing=pacing)

    return changed


def clock_of_its_own(parts: StageParts) -> StageParts:
    """Let processing time begin for each stage when it is made."""
    return replace(parts, clock=lambda: round_clock(TICK, START + next(_STAGES) * TICK))


@pytest.mark.parametrize(
    "wrong",
    [
        with_inlet(TakesAll),
        with_source(HandsOutAll),
        with_source(HasOwnSplits),
        clock_of_its_own,
    ],
    ids=["takes all", "hands out all", "own splits", "own clock"],
)
def test_a_member_that_goes_its_own_way_is_found(tmp_path: Path, wrong: Callable[[StageParts], StageParts]) -> None:
    for seed in range(8):
        try:
            with played(program(), 2, seed, tmp_path, UNTIL, MARKS, wrong, replicas=2, kills=kills(seed, 2)) as job:
                check_equal(job)
        except (AssertionError, JobError, LookupError, pa.ArrowInvalid):
            return
    raise AssertionError("eight runs were right")


class Mine:
    """The source of one of two members; from the other one it hears what a test says."""

    def __init__(self, own: Replica, leads: Replica) -> None:
        uid, self.peers, self.now = Uid("numbers"), frozenset((Replica(0), Replica(1))), START
        self.proposed: list[Decision] = []
        self.cuts: list[Marker] = []
        self.agreement = SourceAgreement(own, View(1, self.peers, self.peers, leads))
        self.agreement.connect(self._sent, self.cuts.append, lambda: None)
        source = replace(due(1, splits=1), now=lambda: self.now)
        role = SimpleNamespace(positions={}, ends={}, watermark=None)
        placement: Any = SimpleNamespace(role=role, partition=Partition(0), options=HostOptions())
        self.source = AgreedSource(
            Stage(uid, (), {}, source=source), source, placement, Attempt(1), lambda: None, round_clock(TICK, START),
            tick=TICK, driver_time=lambda: self.now, agreement=self.agreement,
        )  # fmt: skip
        self.source.splits.assign(["0"], last=True)

    def _sent(self, _to: Replica, message: Message[Decision]) -> None:
        if isinstance(message, Append):
            self.proposed += message.decisions


@pytest.mark.parametrize("more", [(), (SourceEnd(Uid("numbers"), 2),)], ids=["goes on", "ends"])
def test_a_member_that_comes_to_lead_reads_what_was_decided_however_late_it_is(more: tuple[SourceEnd, ...]) -> None:
    mine = Mine(Replica(1), leads=Replica(0))
    mine.agreement.heard(Replica(0), Append(1, 0, (SourceRound(Uid("numbers"), 1, (("0", 3),), ("0",)), *more)))
    left = mine.peers - {Replica(0)}
    mine.agreement.viewed(View(2, left, left, Replica(1)))
    assert mine.agreement.leads
    mine.now += 50 * TICK
    rows = [batch for _ in range(4) if (batch := mine.source.read(100)) is not None]
    assert sum(map(len, rows)) == 3


def test_a_member_that_leads_and_is_late_at_each_turn_proposes_rows_all_the_same() -> None:
    mine = Mine(Replica(0), leads=Replica(0))
    for _ in range(3):
        mine.now += 50 * TICK
        mine.source.read(100)
    assert any(isinstance(one, SourceRound) and one.ends for one in mine.proposed)


FIRST = Marker(Epoch(Generation(1), 1), MarkerMode.ALIGNED, False)


def test_a_member_that_leads_holds_no_source_for_an_epoch_that_was_over_before_its_marker_was_placed() -> None:
    mine = Mine(Replica(0), leads=Replica(0))
    mine.source.over(FIRST.epoch, complete=False)
    mine.agreement.triggered(FIRST, Then.PAUSE)
    for _ in range(3):
        mine.now += 50 * TICK
        mine.source.read(100)
    assert any(isinstance(one, SourceRound) and one.ends for one in mine.proposed)


def test_a_member_that_comes_to_lead_places_a_marker_behind_an_end_whose_rows_it_had_not_read() -> None:
    mine = Mine(Replica(1), leads=Replica(0))
    uid, left = Uid("numbers"), mine.peers - {Replica(0)}
    mine.agreement.heard(Replica(0), Append(1, 0, (SourceRound(uid, 1, (("0", 3),), ("0",)), SourceEnd(uid, 2))))
    mine.agreement.viewed(View(2, left, left, Replica(1)))
    mine.agreement.triggered(FIRST)
    mine.now += 50 * TICK
    for _ in range(6):
        mine.source.read(100)
        mine.source.closes()
    assert mine.cuts == [FIRST]


def test_a_split_that_is_assigned_after_a_drained_source_has_ended_is_left_to_another_run() -> None:
    mine = Mine(Replica(0), leads=Replica(0))
    mine.source.drain()
    mine.now += 2 * TICK
    mine.source.read(100)
    assert isinstance(mine.proposed[-1], SourceEnd)
    mine.source.splits.assign(["1"], last=True)
    mine.agreement.triggered(FIRST, Then.READ_ON)
    mine.now += 2 * TICK
    mine.source.read(100)
    for peer in mine.peers - {Replica(0)}:
        mine.agreement.heard(peer, Acknowledge(1, len(mine.proposed)))
    while mine.source.marker() is None:
        mine.source.read(100)
        mine.source.closes()
    assert at_its_beginning("1") in mine.source.positions()
    assert [at.split for at in mine.source.positions()] == ["0", "1"]
