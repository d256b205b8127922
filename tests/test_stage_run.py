"""One stage with channels that the test holds in its hands: markers, data, alignment and what is recorded."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from secrets import token_hex

import pyarrow as pa
import pytest

from snapshot.cut.aligner import AlignmentBegan, Missed
from snapshot.cut.frames import Data, End, Frame, Marker, MarkerMode, Watermark
from snapshot.cut.outbox import Outbox
from snapshot.host.flow.allowances import FIRST as FIRST_ALLOWED
from snapshot.host.flow.allowances import UNLIMITED, Allowance
from snapshot.host.net.rows_wire import RowsWire
from snapshot.host.partition import channel_state
from snapshot.host.partition.channel_state import Frames, recalled, stored
from snapshot.host.partition.opening import StatePlacement
from snapshot.host.partition.stage_news import InFlight, NeedsSplit, StageCut, StageEnded, StageNews
from snapshot.host.partition.stage_run import StageRun
from snapshot.host.partition.tree_files import TreeFiles
from snapshot.host.protocol.messages import Role
from snapshot.host.protocol.options import HostOptions
from snapshot.host.protocol.wiring import ByArrival
from snapshot.host.wiring import stage_parts
from snapshot.ids import ChannelId, Copy
from snapshot.operators.operator import Operator
from snapshot.operators.rows import Rows
from snapshot.program.plan import Edge, Exchange, Stage, ToEdge
from snapshot.tree.manifest import StoredFile
from statebackend.ids import Attempt, Epoch, Generation, Incarnation, Partition, Uid
from statebackend.stores.memory_store import MemoryStore

SCHEMA = pa.schema([("n", pa.int64())])
WIRE = RowsWire(SCHEMA, timed=False)
OWN = Partition(0)
PARALLELISM = 2
FIRST = Epoch(Generation(1), 1)
SECOND = Epoch(Generation(1), 2)
IN = Edge(Uid("source"), Uid("stage"), 0, 0, Exchange.KEYED, SCHEMA, False, ("n",))
OUT = Edge(Uid("stage"), Uid("sink"), 0, 0, Exchange.KEYED, SCHEMA, False, ("n",))
A, B = (IN.channel(Partition(sender), OWN) for sender in range(PARALLELISM))
FAR = 1 << 40
PARTS = stage_parts(ByArrival(), lambda: 0)


class Wire:
    """The sending end of a channel that nobody takes from but the test."""

    def __init__(self, channel: ChannelId) -> None:
        self.id = channel
        self.outbox = Outbox()
        self.allowed = UNLIMITED

    @property
    def bytes(self) -> int:
        return self.outbox.bytes

    def put(self, frame: Frame) -> tuple[Data, ...]:
        return self.outbox.put(frame)

    def taken(self) -> list[object]:
        """What has been sent: the numbers of data, and other frames as they are."""
        return [shown(self.outbox.take()) for _ in range(len(self.outbox))]


class Valve:
    """The receiving end, as the stage governs it."""

    def __init__(self) -> None:
        self.open = True
        self.allowed = FIRST_ALLOWED

    def allow(self, allowance: Allowance) -> None:
        self.allowed = allowance

    def pause(self) -> None:
        self.open = False

    def resume(self) -> None:
        self.open = True


class Reports:
    """What the stage has said."""

    def __init__(self) -> None:
        self.cuts: list[StageCut] = []
        self.recorded: dict[Epoch, Frames] = {}
        self.missed_epochs: list[Epoch] = []
        self.aligning: list[Epoch] = []
        self.ended = False

    def __call__(self, _stage: StageRun, news: StageNews) -> None:
        match news:
            case AlignmentBegan(epoch):
                self.aligning.append(epoch)
            case StageCut():
                self.cuts.append(news)
            case InFlight(cut, frames):
                self.recorded[cut.epoch] = frames
            case Missed(epoch):
                self.missed_epochs.append(epoch)
            case StageEnded():
                self.ended = True
            case NeedsSplit():
                raise AssertionError("it has no source")


class Stood:
    """A stage that hands on what comes in, from two senders to two receivers."""

    def __init__(self, folder: Path, role: Role | None = None, own: Partition = OWN, **options: int) -> None:
        stage = Stage(Uid("stage"), (IN,), {None: (ToEdge(OUT),)})
        self.store = MemoryStore(token_hex(8))
        self.files = TreeFiles(self.store, Incarnation(Generation(1), Attempt(1)), own)
        self.options = HostOptions(batch_rows=1, **options)  # type: ignore[arg-type]
        placement = StatePlacement(
            stage.uid, own, PARALLELISM, 128, role or Role(), self.options, self.store, self.files, folder
        )
        self.out = [Wire(OUT.channel(own, Partition(to))) for to in range(PARALLELISM)]
        self.reports = Reports()
        sending = {wire.id: wire for wire in self.out}
        self.run = StageRun(stage, placement, None, sending, {}, self.reports, lambda: None, Attempt(1), PARTS)
        self.valves = {IN.channel(Partition(sender), own): Valve() for sender in range(PARALLELISM)}
        self.run.inputs.connect({Copy(channel): valve for channel, valve in self.valves.items()})
        self.run.begin()

    def sent(self) -> list[object]:
        """What all receivers together were sent: numbers in their order, then what else."""
        return [item for wire in self.out for item in wire.taken()]

    def work(self) -> None:
        while self.run.work(FAR):
            pass


def wired(_channel: ChannelId, rows: Rows) -> Data:
    return WIRE.encode(rows)


def number(n: int) -> Data:
    return WIRE.encode(Rows(pa.record_batch([pa.array([n])], schema=SCHEMA)))


def shown(frame: Frame) -> object:
    if not isinstance(frame, Data):
        return frame
    rows = frame.payload if isinstance(frame.payload, Rows) else WIRE.decode(frame)
    return rows.batch.column(0).to_pylist()[0]


def numbers(frames: Frames) -> dict[ChannelId, list[object]]:
    return {channel: [shown(frame) for frame in some] for channel, some in frames.items() if some}


@pytest.fixture
def stood(tmp_path: Path) -> Iterator[Stood]:
    stage = Stood(tmp_path)
    yield stage
    stage.run.close()


ALIGNED = Marker(FIRST, MarkerMode.ALIGNED)
UNALIGNED = Marker(FIRST, MarkerMode.UNALIGNED)


def test_an_alignment_holds_a_channel_back_until_the_marker_has_come_on_the_other(stood: Stood) -> None:
    for channel, frame in ((A, number(1)), (A, ALIGNED), (A, number(2)), (B, number(3))):
        stood.run.arrived(Copy(channel), frame)
    stood.work()
    before = stood.sent()
    assert sorted(n for n in before if isinstance(n, int)) == [1, 3]
    assert ALIGNED not in before
    assert not stood.valves[A].open
    assert stood.valves[B].open
    stood.run.arrived(Copy(B), ALIGNED)
    stood.work()
    assert [cut.epoch for cut in stood.reports.cuts] == [FIRST]
    after = [wire.taken() for wire in stood.out]
    assert all(frames[0] == ALIGNED for frames in after), "the marker goes out before what was held back"
    assert [frame for frames in after for frame in frames[1:]] == [2]
    assert stood.valves[A].open


def test_an_unaligned_marker_overtakes_what_waits_on_the_way_in_and_out(tmp_path: Path) -> None:
    stood = Stood(tmp_path, channel_buffer=1)
    stood.run.arrived(Copy(A), number(1))
    stood.work()  # the receiver takes nothing, so the stage stops with this one
    for channel, frame in ((A, number(2)), (B, number(3)), (A, UNALIGNED)):
        stood.run.arrived(Copy(channel), frame)
    stood.work()
    assert [cut.epoch for cut in stood.reports.cuts] == [FIRST]
    assert [n for some in numbers(stood.reports.cuts[0].overtaken).values() for n in some] == [1]
    assert FIRST not in stood.reports.recorded, "the other channel's marker is awaited"
    stood.run.arrived(Copy(B), number(4))
    stood.run.arrived(Copy(B), UNALIGNED)
    assert numbers(stood.reports.recorded[FIRST]) == {A: [2], B: [3, 4]}
    for wire in stood.out:
        frames = wire.taken()
        assert frames[0] == UNALIGNED, "the marker leaves before the data that it has overtaken"
    stood.work()
    stood.run.close()


def test_what_was_in_flight_is_processed_again_before_new_input(tmp_path: Path) -> None:
    before = Stood(tmp_path / "before")
    states = stored({A: [number(1), number(2)]}, before.files, 0, wired)
    after = Stood(tmp_path / "after")
    after.files = before.files
    role = Role(watermark=Watermark(5), channels=states)
    placement = StatePlacement(Uid("stage"), OWN, 1, 128, role, after.options, before.store, before.files, tmp_path)
    out = Wire(OUT.channel(OWN, OWN))
    stage = Stage(Uid("stage"), (IN,), {None: (ToEdge(OUT),)})
    run = StageRun(stage, placement, FIRST, {out.id: out}, {}, Reports(), lambda: None, Attempt(2), PARTS)
    run.inputs.connect({Copy(A): Valve()})
    run.begin()
    run.arrived(Copy(A), number(3))
    run.work(FAR)
    run.outputs.flush()
    assert out.taken() == [Watermark(5), 1, 2, 3]


def test_of_in_flight_data_a_rescaled_stage_processes_only_what_has_its_own_keys(tmp_path: Path) -> None:
    origin = Stood(tmp_path)
    states = stored({A: [number(n) for n in range(40)]}, origin.files, 1 << 20, wired)
    taken: list[object] = []
    for own in range(3):
        partition = Partition(own)
        placement = StatePlacement(
            Uid("stage"), partition, 3, 128, Role(channels=states), origin.options, origin.store, origin.files, tmp_path
        )
        wires = [Wire(OUT.channel(partition, Partition(to))) for to in range(3)]
        stage = Stage(Uid("stage"), (IN,), {None: (ToEdge(OUT),)})
        run = StageRun(
            stage, placement, FIRST, {w.id: w for w in wires}, {}, Reports(), lambda: None, Attempt(2), PARTS
        )
        run.begin()
        run.work(FAR)
        run.outputs.flush()
        mine = [item for wire in wires for item in wire.taken()]
        assert mine
        assert len(mine) < 40
        taken += mine
    assert sorted(n for n in taken if isinstance(n, int)) == list(range(40))


class Telling(Operator):
    """An operator at work that has broadcast state and counts what comes late."""

    late = 3

    def rows(self, input: int, rows: Rows) -> None: ...

    def watermark(self, timestamp: int) -> None: ...

    def broadcast(self) -> bytes | None:
        return b"the same everywhere"


def test_only_the_first_partition_writes_broadcast_state_into_a_cut(tmp_path: Path) -> None:
    said = []
    for own in range(PARALLELISM):
        stood = Stood(tmp_path, own=Partition(own))
        stood.run.operator.operator = Telling()
        stood.run.triggered(Marker(FIRST, MarkerMode.UNALIGNED))
        for channel in stood.run.inputs.channels:
            stood.run.arrived(Copy(channel), Marker(FIRST, MarkerMode.UNALIGNED))
        stood.work()
        said.append([cut.broadcast for cut in stood.reports.cuts])
    assert said == [[b"the same everywhere"], [None]]


def test_the_figures_of_a_stage_say_how_many_rows_came_too_late(stood: Stood) -> None:
    assert stood.run.figures().late_rows == 0
    stood.run.operator.operator = Telling()
    assert stood.run.figures().late_rows == 3


def test_in_flight_data_is_the_same_in_the_manifest_and_in_a_file(stood: Stood) -> None:
    frames = {A: [number(1), number(2)], B: [number(3)]}
    for inline in (0, 1 << 20):
        states = stored(frames, stood.files, inline, wired)
        found = {state.channel: recalled(state, stood.files) for state in states}
        assert numbers(found) == {A: [1, 2], B: [3]}


def test_in_flight_data_is_encoded_and_stored_piece_by_piece(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stood = Stood(tmp_path)
    monkeypatch.setattr(channel_state, "_AT_ONCE", 2 * number(1).size)
    done: list[str] = []

    def encode(channel: ChannelId, rows: Rows) -> Data:
        done.append("encoded")
        return stood.run.encoded(channel, rows)

    def put(data: bytes) -> StoredFile:
        done.append("stored")
        return put_channel(data)

    put_channel = stood.files.put_channel
    monkeypatch.setattr(stood.files, "put_channel", put)
    rows = [Data(Rows(pa.record_batch([pa.array([n])], schema=SCHEMA)), 8) for n in range(5)]
    (state,) = stored({A: rows}, stood.files, 0, encode)
    assert done == ["encoded", "encoded", "stored", "encoded", "encoded", "stored", "encoded", "stored"]
    assert len(state.parts) == 3
    assert numbers({A: recalled(state, stood.files)}) == {A: [0, 1, 2, 3, 4]}
    out = stood.out[1].id
    assert number(7).payload == stood.run.encoded(out, Rows(pa.record_batch([pa.array([7])], schema=SCHEMA))).payload


def test_too_much_that_waits_to_be_processed_closes_the_channels_until_half_of_it_is_gone(tmp_path: Path) -> None:
    stood = Stood(tmp_path, channel_buffer=1, input_buffer=number(0).size * 4)
    for n in range(6):
        stood.run.arrived(Copy(A), number(n))
    stood.work()
    assert not stood.valves[A].open
    assert not stood.valves[B].open
    for _ in range(10):
        stood.sent()  # the receivers take what is there, so that the stage can go on
        stood.work()
    assert stood.valves[A].open
    assert stood.valves[B].open


def test_a_stage_ends_when_all_that_comes_to_it_has_ended(stood: Stood) -> None:
    stood.run.arrived(Copy(A), End())
    stood.work()
    ended_before = stood.reports.ended
    stood.run.arrived(Copy(B), number(1))
    stood.run.arrived(Copy(B), End())
    stood.work()
    assert (ended_before, stood.reports.ended) == (False, True)
    frames = [wire.taken() for wire in stood.out]
    assert all(isinstance(some[-1], End) for some in frames)
    assert 1 in [item for some in frames for item in some]


def test_a_stage_whose_input_has_ended_cuts_when_it_is_told_of_the_epoch(stood: Stood) -> None:
    for channel in (A, B):
        stood.run.arrived(Copy(channel), End())
    stood.work()
    stood.run.triggered(ALIGNED)
    assert [cut.epoch for cut in stood.reports.cuts] == [FIRST]


def test_an_alignment_that_takes_too_long_turns_unaligned(stood: Stood) -> None:
    stood.run.arrived(Copy(A), ALIGNED)
    stood.run.arrived(Copy(B), number(1))
    assert stood.reports.aligning == [FIRST]
    stood.run.alignment_timed_out(FIRST)
    assert [(cut.epoch, cut.unaligned) for cut in stood.reports.cuts] == [(FIRST, True)]
    stood.run.arrived(Copy(B), ALIGNED)
    assert numbers(stood.reports.recorded[FIRST]) == {B: [1]}


def test_an_epoch_that_is_given_up_lets_its_channels_go_on(stood: Stood) -> None:
    for channel, frame in ((A, ALIGNED), (A, number(1))):
        stood.run.arrived(Copy(channel), frame)
    stood.work()
    assert stood.sent() == []
    stood.run.abandoned(FIRST)
    stood.work()
    assert stood.sent() == [1]
    stood.run.arrived(Copy(A), Marker(SECOND, MarkerMode.ALIGNED))
    stood.run.arrived(Copy(B), Marker(SECOND, MarkerMode.ALIGNED))
    stood.work()
    assert [cut.epoch for cut in stood.reports.cuts] == [SECOND]


def test_for_an_unaligned_marker_the_channels_on_which_it_is_awaited_are_read_on(tmp_path: Path) -> None:
    stood = Stood(tmp_path, channel_buffer=1, input_buffer=number(0).size * 2 - 1)
    for channel in (A, B):
        stood.run.arrived(Copy(channel), number(1))
    stood.run.arrived(Copy(A), number(2))
    stood.work()
    paused = [valve.open for valve in stood.valves.values()]
    stood.run.triggered(UNALIGNED)
    stood.work()
    read_on = [valve.open for valve in stood.valves.values()]
    stood.run.arrived(Copy(A), UNALIGNED)
    stood.work()
    one_is_here = [valve.open for valve in stood.valves.values()]
    stood.run.arrived(Copy(B), UNALIGNED)
    stood.work()
    assert one_is_here == [False, True]
    assert (paused, read_on) == ([False, False], [True, True])
    assert [valve.open for valve in stood.valves.values()] == [False, False]


def test_the_marker_that_is_awaited_is_read_however_much_is_held_back_behind_the_first(tmp_path: Path) -> None:
    stood = Stood(tmp_path, input_buffer=4 * number(0).size)
    stood.run.arrived(Copy(A), ALIGNED)
    for n in range(4):
        stood.run.arrived(Copy(A), number(n))
    stood.work()
    assert (stood.valves[A].open, stood.valves[B].open) == (False, True)
    stood.run.arrived(Copy(B), number(4))
    stood.run.work(0)
    assert stood.valves[B].open
    stood.run.arrived(Copy(B), ALIGNED)
    stood.work()
    assert [cut.epoch for cut in stood.reports.cuts] == [FIRST]
    assert stood.valves[A].open
