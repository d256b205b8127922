"""A stage whose frames are acknowledged: rows in flight, which no sender sends again, and what is sent again when."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from secrets import token_hex
from time import monotonic
from types import SimpleNamespace
from typing import Any

from snapshot.cut.acks import Anchors, Root
from snapshot.cut.frames import Data, Frame, Marker, MarkerMode, Watermark
from snapshot.host.flow.allowances import UNLIMITED, Allowance
from snapshot.host.partition.acks import AckOutlet, PartitionAcks, StageAcks, parted, with_anchors
from snapshot.host.partition.channel_state import Frames, stored
from snapshot.host.partition.opening import StatePlacement
from snapshot.host.partition.stage_run import StageRun
from snapshot.host.partition.tree_files import TreeFiles
from snapshot.host.protocol.messages import Role
from snapshot.host.protocol.options import HostOptions
from snapshot.host.protocol.wiring import WithAcks
from snapshot.host.wiring import stage_parts
from snapshot.ids import ChannelId, Copy, Member
from snapshot.operators.rows import Rows
from snapshot.program.plan import Plan, Stage, ToEdge
from statebackend.ids import Attempt, Generation, Incarnation, Partition, Uid
from statebackend.stores.memory_store import MemoryStore
from tests.test_stage_run import FAR, FIRST, IN, OUT, OWN, WIRE, A, B, Reports, Valve, number, wired

OWNER = Member(OWN)
SENDER = Member(Partition(1))
OF_SENDER = Root(SENDER, 7)


class End:
    """The sending end of a channel to the other partition."""

    def __init__(self, channel: ChannelId) -> None:
        self.id = channel
        self.copy = Copy(channel)
        self.allowed: Allowance = UNLIMITED
        self.bytes = 0
        self.frames: list[Frame] = []

    def put(self, frame: Frame) -> tuple[Data, ...]:
        self.frames.append(frame)
        return ()

    def rows(self) -> dict[int, tuple[Root, ...]]:
        """Return the roots of each row that was sent."""
        found: dict[int, tuple[Root, ...]] = {}
        for frame in self.frames:
            if isinstance(frame, Data):
                anchors, data = parted(frame)
                found.update(dict.fromkeys(values(data), anchors.roots))
        return found


def acks_of(stage: Stage, *, receiver_holds: bool = False) -> PartitionAcks:
    """Return the acknowledgements of the stage and of the one after it."""
    sinks: Any = (object(),) if receiver_holds else ()
    receiver: Any = SimpleNamespace(uid=OUT.target, source=None, operator=None, sinks=sinks)
    loop: Any = None
    return PartitionAcks(
        Incarnation(Generation(1), Attempt(1)), OWNER, 2, Plan((stage, receiver), 128), loop, 60.0, None
    )


class Acked:
    """A stage that keeps nothing, with two senders and one receiver; two rows were in flight to it."""

    def __init__(self, folder: Path) -> None:
        stage = Stage(Uid("stage"), (IN,), {None: (ToEdge(OUT),)})
        incarnation, store = Incarnation(Generation(1), Attempt(1)), MemoryStore(token_hex(8))
        files = TreeFiles(store, incarnation, OWN)
        role = Role(channels=stored({B: [number(1), number(2)]}, files, 1 << 20, wired))
        acks = acks_of(stage)
        placement = StatePlacement(stage.uid, OWN, 2, 128, role, HostOptions(batch_rows=100), store, files, folder)
        self.out = [End(OUT.channel(OWN, Partition(to))) for to in range(2)]
        outlets: Mapping[ChannelId, Any] = {end.id: acks.outlet(end.id, [end]) for end in self.out}
        self.reports = Reports()
        parts = stage_parts(WithAcks(60_000, None), lambda: 0, acks=acks)
        self.run = StageRun(stage, placement, FIRST, outlets, {}, self.reports, lambda: None, Attempt(1), parts)
        self.run.inputs.connect({Copy(A): Valve(), Copy(B): Valve()})
        self.run.begin()

    def let(self, rows: int) -> None:
        """Allow so many rows on each channel."""
        for end in self.out:
            end.allowed = Allowance(rows, 1)

    def work(self) -> None:
        while self.run.work(FAR):
            pass

    def rows(self) -> dict[int, tuple[Root, ...]]:
        """Return the roots of each row that was sent."""
        return {row: roots for end in self.out for row, roots in end.rows().items()}


def values(frame: Data) -> list[int]:
    rows = frame.payload if isinstance(frame.payload, Rows) else WIRE.decode(frame)
    found: list[int] = rows.batch.column(0).to_pylist()
    return found


def by_channel(frames: Frames) -> dict[ChannelId, list[int]]:
    return {channel: sorted(n for frame in some for n in values(frame)) for channel, some in frames.items() if some}


CUT = Marker(FIRST, MarkerMode.ALIGNED)


def test_a_cut_has_rows_that_were_in_flight_and_that_the_stage_has_not_handed_on(tmp_path: Path) -> None:
    stage = Acked(tmp_path)
    stage.let(0)
    stage.work()
    stage.run.triggered(CUT)
    assert by_channel(stage.reports.recorded[FIRST]) == {A: [1, 2]}, "the partition itself sends them from now on"
    stage.let(1 << 40)
    stage.work()
    stage.run.outputs.flush()
    assert set(stage.rows()) == {1, 2}
    stage.run.close()


def test_a_cut_has_what_followed_from_rows_that_were_handed_on_and_not_they(tmp_path: Path) -> None:
    stage = Acked(tmp_path)
    stage.work()
    stage.run.triggered(CUT)
    assert by_channel(stage.reports.recorded[FIRST]) == {}
    assert sorted(n for some in by_channel(stage.reports.cuts[0].overtaken).values() for n in some) == [1, 2]
    stage.run.close()


def test_rows_that_no_sender_has_are_the_stages_own_whatever_comes_beside_them(tmp_path: Path) -> None:
    stage = Acked(tmp_path)
    stage.run.arrived(Copy(B), with_anchors(number(3), Anchors(99, (OF_SENDER,)), local=False))
    stage.work()
    stage.run.outputs.flush()
    rows = stage.rows()
    assert set(rows) == {1, 2, 3}
    assert rows[3] == (OF_SENDER,)
    assert {root.owner for row in (1, 2) for root in rows[row]} == {OWNER}
    stage.run.close()


# --- what is sent again ----------------------------------------------------------------------------------------------


def outlet_of(*, receiver_holds: bool) -> tuple[StageAcks, AckOutlet, End]:
    """Return the way from a stage to another partition, on which a row was sent."""
    stage = Stage(Uid("stage"), (IN,), {None: (ToEdge(OUT),)})
    acks = acks_of(stage, receiver_holds=receiver_holds)
    end: Any = End(OUT.channel(OWN, Partition(1)))
    outlet = acks.outlet(end.id, [end])
    assert isinstance(outlet, AckOutlet)
    outlet.put(replace(number(1), rows=1))
    return acks.of(stage.uid), outlet, end


def in_(seconds: float) -> float:
    return monotonic() + seconds


def test_a_root_whose_time_is_over_is_sent_again_to_a_receiver_that_hands_it_on() -> None:
    stage, _, end = outlet_of(receiver_holds=False)
    stage.send_overdue(in_(59))
    assert (len(end.frames), stage.resent) == (1, 0)
    stage.send_overdue(in_(61))
    assert (len(end.frames), stage.resent) == (2, 1)


def test_a_receiver_that_holds_what_it_has_is_never_sent_it_again() -> None:
    """Its acknowledgement comes with an epoch, however long there is none."""
    stage, _, end = outlet_of(receiver_holds=True)
    stage.send_overdue(in_(1e9))
    assert (len(end.frames), stage.resent) == (1, 0)


def test_nothing_is_sent_again_while_the_receiver_has_not_taken_what_was_sent() -> None:
    stage, _, end = outlet_of(receiver_holds=False)
    end.bytes = 1
    stage.send_overdue(in_(61))
    end.bytes, end.allowed = 0, Allowance(1, 1)
    stage.send_overdue(in_(61))
    assert len(end.frames) == 1
    end.allowed = Allowance(2, 1)
    stage.send_overdue(in_(61))
    assert len(end.frames) == 2


def test_what_waits_for_a_process_fills_the_channel_and_is_not_sent_until_one_is_there() -> None:
    stage, outlet, end = outlet_of(receiver_holds=False)
    outlet.drop(end.copy.receiver)
    row = replace(number(2), rows=1)
    outlet.put(row)
    stage.send_overdue(in_(61))
    assert (len(end.frames), outlet.bytes) == (1, row.size)
    successor: Any = End(end.id)
    outlet.join(successor)
    assert (set(successor.rows()), outlet.bytes) == ({1, 2}, 0)
    assert stage.resent == 1, "the other row had never gone out"


def test_of_the_watermarks_that_wait_for_one_acknowledgement_the_last_is_said() -> None:
    stage, outlet, end = outlet_of(receiver_holds=True)
    (row,) = end.frames
    assert isinstance(row, Data)
    for timestamp in range(1, 100):
        outlet.put(Watermark(timestamp))
    anchors, _ = parted(row)
    stage.acked(anchors.roots[0].number, anchors.id)
    assert end.frames == [row, Watermark(99)]
