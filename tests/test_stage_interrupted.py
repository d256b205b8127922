"""A stage with a slow function: its turns end in time, and markers find it in the middle of rows and of timers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from secrets import token_hex
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from snapshot.cut.frames import LATEST, Data, End, Frame, Marker, MarkerMode, Watermark
from snapshot.host.net.rows_wire import RowsWire
from snapshot.host.partition.channel_state import stored
from snapshot.host.partition.opening import StatePlacement, open_state
from snapshot.host.partition.stage_clock import StageClock, process_clock
from snapshot.host.partition.stage_run import StageRun
from snapshot.host.partition.state_cache import StateCache
from snapshot.host.partition.tree_files import TreeFiles
from snapshot.host.protocol.messages import Role
from snapshot.host.protocol.options import HostOptions
from snapshot.ids import Copy
from snapshot.operators.function_operator import KeyedProcess, Process
from snapshot.operators.keyed_function import ProcessContext
from snapshot.operators.operator import Input
from snapshot.operators.rows import Rows
from snapshot.program.plan import Edge, Exchange, Stage, ToEdge
from statebackend.files import FileSet
from statebackend.ids import Attempt, Generation, Incarnation, Uid
from statebackend.keygroups import range_of
from statebackend.keys.columns import key_column
from statebackend.keys.types import KeyType
from statebackend.snapshots.uploads import Durable
from statebackend.states.declarations import ValueState
from statebackend.stores.memory_store import MemoryStore
from tests.test_stage_run import FIRST, OWN, PARTS, Reports, Valve, Wire

SCHEMA = pa.schema([("n", pa.int64()), ("k", pa.int64())])
WIRE = RowsWire(SCHEMA, timed=True)
IN = Edge(Uid("source"), Uid("stage"), 0, 0, Exchange.KEYED, SCHEMA, True, ("k",))
OUT = Edge(Uid("stage"), Uid("sink"), 0, 0, Exchange.FORWARD, SCHEMA, True, ())
A, B = (IN.channel(sender, OWN) for sender in IN.senders(OWN, 2))
ALIGNED, UNALIGNED = Marker(FIRST, MarkerMode.ALIGNED), Marker(FIRST, MarkerMode.UNALIGNED)
GROUPS = key_column(pa.array(range(1000)), KeyType.of(pa.int64())).groups(128)
OWN_KEYS = [key for key in range(1000) if GROUPS[key] < 64]
"""Of two partitions, the first one's: a key for each number."""
CALL = 20
"""What each call of the function takes; a turn is not longer than that at all."""


class Clock:
    """Time passes in calls of the function alone."""

    now = 0


CLOCK = StageClock(process_clock().now, lambda: float(Clock.now))


class Slow(KeyedProcess):
    """Gives each number, and when its time has come the negative of it."""

    number = ValueState(int, default=0)

    def on_event(self, event: Any, ctx: ProcessContext) -> None:
        Clock.now += CALL
        self.number.set(event.n)
        assert ctx.timestamp is not None
        ctx.timer(ctx.timestamp)
        ctx.emit(event)

    def on_timer(self, at: int, ctx: ProcessContext) -> None:
        Clock.now += CALL
        ctx.emit((-self.number.get(), ctx.key))


SLOW = Process(Slow(), (Input(SCHEMA, ("k",), True),), SCHEMA)


class Standing:
    """The stage with two senders and one receiver; as a cut left it, if there is one."""

    def __init__(self, folder: Path, before: Standing | None = None) -> None:
        self.store: MemoryStore = before.store if before is not None else MemoryStore(token_hex(8))
        self.folder = folder
        attempt = Attempt(1 if before is None else 2)
        files = TreeFiles(self.store, Incarnation(Generation(1), attempt), OWN)
        role = Role(FileSet(range_of(OWN, 2, 128))) if before is None else before.role()
        options = HostOptions(batch_rows=100, state_backend="heap")
        placement = StatePlacement(Uid("stage"), OWN, 2, 128, role, options, self.store, files, folder)
        self.files = files
        self.state = open_state(SLOW, placement, None, StateCache(), lambda: None).state
        stage = Stage(Uid("stage"), (IN,), {None: (ToEdge(OUT),)}, operator=SLOW)
        self.out = Wire(OUT.channel(OWN, OWN))
        self.reports = Reports()
        senders = {channel: Valve() for channel in (A, B)}
        epoch = None if before is None else FIRST
        sending = {self.out.id: self.out}
        self.run = StageRun(
            stage,
            placement,
            epoch,
            sending,
            {},
            self.reports,
            lambda: None,
            attempt,
            replace(PARTS, clock=lambda: CLOCK),
        )
        self.run.inputs.connect({Copy(channel): valve for channel, valve in senders.items()})
        self.run.begin()
        self.run.open(self.state)
        self.sent: list[object] = []

    def role(self) -> Role:
        """What the cut has of it, with all that was in flight."""
        (cut,) = self.reports.cuts
        found: FileSet | None = None
        while found is None:
            found = next((news.files for news in self.state.poll() if isinstance(news, Durable)), None)
        received = self.reports.recorded.get(FIRST, {})
        return Role(found, watermark=cut.watermark, channels=stored(received, self.files, 1 << 20, self.run.encoded))

    def turn(self) -> bool:
        """One turn, which has time for one call."""
        done = self.run.work(float(Clock.now + 1))
        self.run.outputs.flush()
        self._take()
        return done

    def turns(self) -> int:
        """Turn by turn until nothing is left to do; how many they are."""
        count = 0
        while True:
            before = Clock.now
            if not self.turn():
                return count
            assert Clock.now - before <= CALL, "a turn made more than one call"
            count += 1

    def _take(self) -> None:
        for _ in range(len(self.out.outbox)):
            frame = self.out.outbox.take()
            self.sent.append(numbers(frame) if isinstance(frame, Data) else frame)

    @property
    def numbers(self) -> list[int]:
        return [n for some in self.sent if isinstance(some, list) for n in some]

    def before(self, marker: Marker) -> list[int]:
        return [n for some in self.sent[: self.sent.index(marker)] if isinstance(some, list) for n in some]

    @property
    def others(self) -> list[object]:
        """Frames that are no data."""
        return [frame for frame in self.sent if not isinstance(frame, list)]

    def close(self) -> None:
        self.run.close()
        self.state.close()


def numbers(frame: Data) -> list[int]:
    rows = frame.payload if isinstance(frame.payload, Rows) else WIRE.decode(frame)
    found: list[int] = rows.batch.column(0).to_pylist()
    return found


def data(*some: int, at: int = 5) -> Data:
    keys = [OWN_KEYS[n] for n in some]
    batch = pa.record_batch([pa.array(some, pa.int64()), pa.array(keys, pa.int64())], schema=SCHEMA)
    return WIRE.encode(Rows(batch, np.full(len(some), at, dtype=np.int64)))


@pytest.fixture
def standing(tmp_path: Path) -> Iterator[Standing]:
    standing = Standing(tmp_path)
    yield standing
    standing.close()


def test_a_turn_ends_with_the_call_in_which_its_time_is_over(standing: Standing) -> None:
    standing.run.arrived(Copy(A), data(1, 2, 3))
    sent = []
    while standing.turn():
        sent.append(list(standing.numbers))
    assert [1] in sent
    assert [1, 2] in sent
    assert sorted(standing.numbers) == [1, 2, 3]


def test_an_unaligned_cut_in_the_middle_of_a_batch_has_the_rest_of_it_as_in_flight_data(standing: Standing) -> None:
    for channel, frame in ((A, data(1, 2, 3)), (B, data(4, 5))):
        standing.run.arrived(Copy(channel), frame)
    standing.turn()  # takes in what there is
    while len(standing.numbers) < 2:
        standing.turn()
    standing.run.arrived(Copy(B), data(6))
    for channel in (A, B):
        standing.run.arrived(Copy(channel), UNALIGNED)
    recorded = standing.reports.recorded[FIRST]
    assert [cut.unaligned for cut in standing.reports.cuts] == [True]
    assert {channel: [numbers(frame) for frame in some] for channel, some in recorded.items()} == {
        A: [[3]],
        B: [[4, 5], [6]],
    }
    standing._take()
    assert standing.numbers == [1, 2]
    assert standing.others[-1] == UNALIGNED, "what was given before is in front of the marker, and nothing more"


def test_an_aligned_cut_waits_for_the_rows_in_front_of_its_marker_and_no_others(standing: Standing) -> None:
    for channel, frame in ((A, data(1, 2, 3)), (A, ALIGNED), (A, data(7)), (B, data(4, 5)), (B, ALIGNED), (B, data(8))):
        standing.run.arrived(Copy(channel), frame)
    while not standing.reports.cuts:
        assert standing.turn()
    standing._take()
    assert sorted(standing.before(ALIGNED)) == [1, 2, 3, 4, 5]
    standing.turns()
    assert sorted(standing.numbers) == [1, 2, 3, 4, 5, 7, 8]


def fill(standing: Standing, *some: int) -> None:
    standing.run.arrived(Copy(A), data(*some))
    for channel in (A, B):
        standing.run.arrived(Copy(channel), Watermark(1))
    standing.turns()
    standing.sent.clear()


def test_rows_behind_a_watermark_wait_until_all_its_timers_have_fired_and_so_does_the_watermark(
    standing: Standing,
) -> None:
    fill(standing, 1, 2, 3)
    for channel in (A, B):
        standing.run.arrived(Copy(channel), Watermark(5))
    standing.run.arrived(Copy(A), data(9, at=8))
    assert standing.turns() >= 4
    assert sorted(standing.numbers[:3]) == [-3, -2, -1]
    assert standing.numbers[3:] == [9]
    place = standing.sent.index(Watermark(5))
    assert all(some == [9] for some in standing.sent[place:] if isinstance(some, list))
    assert standing.others == [Watermark(5)]


@pytest.mark.parametrize("marker", [ALIGNED, UNALIGNED])
def test_a_cut_while_timers_fire_leaves_those_that_are_left_and_the_time_as_it_was(
    standing: Standing, tmp_path: Path, marker: Marker
) -> None:
    fill(standing, 1, 2, 3)
    for channel in (A, B):
        standing.run.arrived(Copy(channel), Watermark(5))
        standing.run.arrived(Copy(channel), data(10 + (channel == B), at=8))
    while not standing.numbers:
        standing.turn()
    for channel in (A, B):
        standing.run.arrived(Copy(channel), marker)
    while not standing.reports.cuts:
        assert standing.turn()
    standing._take()
    before = standing.before(marker)
    assert len([n for n in before if n < 0]) == 1, "the timers did not hold up the marker"
    assert standing.reports.cuts[0].watermark == Watermark(1)
    assert Watermark(5) not in standing.others
    restored = Standing(tmp_path / "restored", standing)
    for channel in (A, B):
        restored.run.arrived(Copy(channel), Watermark(5))  # as its senders do, which had announced it
    restored.turns()
    assert sorted(before + restored.numbers) == [-3, -2, -1, 10, 11]
    assert restored.others == [Watermark(1), Watermark(5)]
    restored.close()


def test_a_later_watermark_counts_for_what_fires_already(standing: Standing) -> None:
    fill(standing, 1, 2)
    for channel in (A, B):
        standing.run.arrived(Copy(channel), Watermark(5))
    while not standing.numbers:
        standing.turn()
    for channel in (A, B):
        standing.run.arrived(Copy(channel), ALIGNED)
        standing.run.arrived(Copy(channel), Watermark(7))
    standing.turns()
    assert standing.others[0] == ALIGNED
    assert standing.others[-1] == Watermark(7)
    assert sorted(standing.numbers) == [-2, -1]


def test_at_the_end_of_all_input_timers_fire_turn_by_turn_and_a_cut_need_not_wait_for_them(
    standing: Standing, tmp_path: Path
) -> None:
    fill(standing, 1, 2, 3)
    for channel in (A, B):
        standing.run.arrived(Copy(channel), End())
    while not standing.numbers:
        standing.turn()
    assert not standing.reports.ended
    assert not standing.run.ended
    standing.run.triggered(ALIGNED)
    assert [cut.watermark for cut in standing.reports.cuts] == [Watermark(1)]
    standing._take()
    before = list(standing.numbers)
    assert len(before) < 3
    restored = Standing(tmp_path / "restored", standing)
    for channel in (A, B):
        restored.run.arrived(Copy(channel), End())
    for one in (standing, restored):
        one.turns()
        assert (one.reports.ended, one.run.ended) == (True, True)
        assert one.others[-2:] == [Watermark(LATEST), End()]
    assert sorted(standing.numbers) == sorted(before + restored.numbers) == [-3, -2, -1]
    restored.close()


Sent = tuple[int, list[int]] | tuple[int, int]
sent = st.lists(
    st.tuples(st.integers(0, 1), st.lists(st.integers(1, 30), min_size=1, max_size=5))
    | st.tuples(st.integers(0, 1), st.integers(1, 20)),
    max_size=14,
)


@settings(max_examples=settings().max_examples // 4)
@given(
    sent, st.integers(0, 14), st.booleans(), st.lists(st.integers(0, 4), min_size=15, max_size=15), st.integers(0, 9)
)
def test_nothing_is_lost_or_twice_wherever_a_marker_finds_it(
    frames: Sequence[Sent], at: int, unaligned: bool, pauses: list[int], later: int
) -> None:
    """The marker of the one channel comes at this place, that of the other somewhat later; what is restored from the
    cut gets all that was sent behind them.
    """
    marker = UNALIGNED if unaligned else ALIGNED
    with TemporaryDirectory() as scratch:
        standing = Standing(Path(scratch) / "one")
        behind: dict[Any, list[Frame]] = {A: [], B: []}
        times = {A: 0, B: 0}
        rows = 0
        before: list[int] | None = None

        def watch() -> None:
            nonlocal before
            if before is None and standing.reports.cuts:
                standing._take()
                before = standing.before(marker)

        def play(number: int) -> None:
            for _ in range(pauses[number % len(pauses)]):
                standing.turn()
                watch()

        def say(channel: Any) -> None:
            standing.run.arrived(Copy(channel), marker)
            watch()
            behind[channel] = [Watermark(times[channel])] if times[channel] else []

        marked: set[Any] = set()
        for number, (index, what) in enumerate(frames):
            channel = (A, B)[index]
            for place, due in ((A, at), (B, at + later)):
                if number == due:
                    say(place)
                    marked.add(place)
            if isinstance(what, int):
                times[channel] = max(times[channel], what)
                frame: Frame = Watermark(times[channel])
            else:
                frame = data(*what, at=times[channel] + 3)
                rows += len(what)
            standing.run.arrived(Copy(channel), frame)
            if channel in marked:
                behind[channel].append(frame)
            play(number)
        for channel in (A, B):
            if channel not in marked:
                say(channel)
        while before is None:
            standing.turn()
            watch()
        restored = Standing(Path(scratch) / "two", standing)
        for channel in (A, B):
            for frame in (*behind[channel], End()):
                restored.run.arrived(Copy(channel), frame)
            standing.run.arrived(Copy(channel), End())
        restored.turns()
        standing.turns()
        given_rows = sorted(n for _, what in frames if isinstance(what, list) for n in what)
        for found in (standing.numbers, before + restored.numbers):
            assert sorted(n for n in found if n > 0) == given_rows
        assert {n for n in before + restored.numbers if n < 0} == {-n for n in given_rows}
        restored.close()
        standing.close()
