"""A stage and time: event times of a source from several columns, and timers that are still set at the end."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from secrets import token_hex

import pyarrow as pa

from snapshot import Stream, ToDriver, Tumbling
from snapshot.connectors.memory.collection import Collection
from snapshot.cut.frames import Data, End, Watermark
from snapshot.host.partition.opening import StatePlacement, open_state
from snapshot.host.partition.source_times import SourceTimes
from snapshot.host.partition.stage_run import StageRun
from snapshot.host.partition.state_cache import StateCache
from snapshot.host.partition.tree_files import TreeFiles
from snapshot.host.protocol.messages import Role
from snapshot.host.protocol.options import HostOptions
from snapshot.ids import ChannelId, Copy
from snapshot.operators.operator import Input, Operator, OperatorContext
from snapshot.operators.rows import Rows
from snapshot.program.plan import Edge, EventTime, Exchange, Stage, Step, ToEdge
from statebackend.files import FileSet
from statebackend.ids import Attempt, Generation, Incarnation, Partition, Uid
from statebackend.keygroups import range_of
from statebackend.stores.memory_store import MemoryStore
from tests.planned_operator import Planned
from tests.test_stage_run import FAR, PARTS, Reports, Wire

OWN = Partition(0)
NUMBERS = pa.schema([("n", pa.int64())])
TWO_TIMES = pa.schema([("seen", pa.int64()), ("made", pa.int64())])
IN = Edge(Uid("source"), Uid("stage"), 0, 0, Exchange.KEYED, NUMBERS, False, ("n",))
OUT = Edge(Uid("stage"), Uid("next"), 0, 0, Exchange.FORWARD, NUMBERS, False)


def placement_of(uid: Uid, folder: Path) -> StatePlacement:
    files = TreeFiles(MemoryStore(token_hex(8)), Incarnation(Generation(1), Attempt(1)), OWN)
    role = Role(state=FileSet(range_of(OWN, 1, 128)))
    options = HostOptions(state_backend="heap")
    return StatePlacement(uid, OWN, 1, 128, role, options, MemoryStore(token_hex(8)), files, folder)


class Ringing(Operator):
    """An operator that wants to be woken at once, again and again, and then gives a row."""

    def __init__(self, context: OperatorContext) -> None:
        self._emit = context.emit

    def rows(self, input: int, rows: Rows) -> None:
        pass

    def watermark(self, timestamp: int) -> None:
        pass

    def wakes_at(self) -> int | None:
        return 0

    def wake(self, now: int) -> None:
        self._emit(Rows(pa.record_batch([pa.array([1])], schema=NUMBERS)))


def test_a_timer_that_is_still_set_when_all_input_has_ended_sends_nothing_behind_the_end(tmp_path: Path) -> None:
    operator = Planned(Ringing, (Input(NUMBERS, ("n",), timed=False),), NUMBERS)
    placement = placement_of(Uid("stage"), tmp_path)
    state = open_state(operator, placement, None, StateCache(), lambda: None).state
    stage = Stage(Uid("stage"), (IN,), {None: (ToEdge(OUT),)}, operator=operator)
    wire = Wire(OUT.channel(OWN, OWN))
    run = StageRun(stage, placement, None, {wire.id: wire}, {}, Reports(), lambda: None, Attempt(1), PARTS)
    run.begin()
    run.open(state)
    run.work(0)
    run.outputs.flush()
    before = wire.taken()
    run.arrived(Copy(IN.channel(OWN, OWN)), End())
    while run.work(FAR) and not run.ended:
        pass
    taken = wire.taken()
    worked = run.work(0)
    run.outputs.flush()
    assert before == [1], "it is woken while there is input"
    assert taken[-1] == End()
    assert not worked
    assert wire.taken() == []
    assert run.next_due() == float("inf")
    run.close()
    state.close()


def test_branches_of_one_source_have_their_event_times_from_their_own_columns(tmp_path: Path) -> None:
    rows = [(1_000 + n, n) for n in range(3)]
    edges = {name: Edge(Uid("source"), Uid(name), 0, 0, Exchange.FORWARD, TWO_TIMES, True) for name in TWO_TIMES.names}
    steps = tuple(Step(None, EventTime(name), (ToEdge(edge),)) for name, edge in edges.items())
    stage = Stage(Uid("source"), (), {None: steps}, source=Collection(rows, TWO_TIMES))
    wires = {name: Wire(edge.channel(OWN, OWN)) for name, edge in edges.items()}
    sending: dict[ChannelId, Wire] = {wire.id: wire for wire in wires.values()}
    placement = placement_of(stage.uid, tmp_path)
    run = StageRun(
        stage, replace(placement, role=Role()), None, sending, {}, Reports(), lambda: None, Attempt(1), PARTS
    )
    run.begin()
    assert run.source is not None
    run.source.assign(["0"], last=True)
    run.work(0)
    run.outputs.flush()
    times: dict[str, list[int]] = {}
    watermarks: dict[str, list[int]] = {}
    for name, wire in wires.items():
        frames = [wire.outbox.take() for _ in range(len(wire.outbox))]
        some = [frame.payload for frame in frames if isinstance(frame, Data)]
        times[name] = [time for one in some if isinstance(one, Rows) and one.times is not None for time in one.times]
        watermarks[name] = [frame.timestamp for frame in frames if isinstance(frame, Watermark)]
    assert times == {"seen": [1_000, 1_001, 1_002], "made": [0, 1, 2]}
    assert watermarks == {"seen": [2], "made": [2]}, "what is early for one branch is not late for the other"
    run.close()


def test_branches_that_declare_their_event_time_alike_do_not_make_rows_of_each_other_late(tmp_path: Path) -> None:
    rows = Stream.read(Collection([(60_000, 0), (70_000, 10_000)], TWO_TIMES), uid="source")
    late = rows.map(lambda row: (row.seen,), schema={"at": int}).with_event_time("at")
    early = rows.map(lambda row: (row.made,), schema={"at": int}).with_event_time("at")
    program = late.union(early).key_by("at").window(Tumbling("5s")).count(uid="count").write(ToDriver(), uid="out")
    stage = next(stage for stage in program.plan(128).stages if stage.uid == "source")
    wires = [Wire(edge.channel(OWN, OWN)) for edge in stage.edges]
    placement = replace(placement_of(stage.uid, tmp_path), role=Role(), options=HostOptions(batch_rows=1))
    run = StageRun(
        stage,
        placement,
        None,
        {wire.id: wire for wire in wires},
        {},
        Reports(),
        lambda: None,
        Attempt(1),
        PARTS,
    )
    run.begin()
    assert run.source is not None
    run.source.assign(["0"], last=True)
    run.work(0)
    run.outputs.flush()
    taken = [wire.taken() for wire in wires]
    run.close()
    assert taken == [[60_000, Watermark(0)], [0, Watermark(0)]]


def test_a_source_announces_no_time_before_each_branch_has_one_and_never_goes_back() -> None:
    early, late = Step(None, EventTime("made"), ()), Step(None, EventTime("seen", idle_after="10ms"), ())
    times = SourceTimes([early, late], Watermark(5))
    batch = pa.record_batch([pa.array([100]), pa.array([7])], schema=TWO_TIMES)
    assert times.watermark(["0"], 0) is None
    stamped = [times.stamped(step, "0", Rows(batch), 0).times for step in (early, late)]
    assert [some.tolist() for some in stamped if some is not None] == [[7], [100]]
    assert times.watermark(["0"], 1) == Watermark(7)
    older = pa.record_batch([pa.array([200]), pa.array([3])], schema=TWO_TIMES)
    times.stamped(early, "0", Rows(older), 2)
    assert times.watermark(["0"], 2) is None
