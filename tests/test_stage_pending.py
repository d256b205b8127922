"""A stage whose keyed state is still being opened: what comes waits, within bounds, and is processed in its order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from secrets import token_hex
from typing import Any

import pytest

from snapshot.cut.frames import EARLIEST, LATEST, Boundary, End, Frame, Marker, MarkerMode, Watermark
from snapshot.cut.watermarks import Watermarks
from snapshot.host.partition import stage_inputs
from snapshot.host.partition.channel_state import stored
from snapshot.host.partition.failures import kind_of
from snapshot.host.partition.opening import StatePlacement, open_state
from snapshot.host.partition.parts import StageParts
from snapshot.host.partition.stage_run import StageRun
from snapshot.host.partition.state_cache import StateCache
from snapshot.host.partition.too_far_behind import TooFarBehind
from snapshot.host.partition.tree_files import TreeFiles
from snapshot.host.protocol.messages import FailureKind, Role
from snapshot.host.protocol.options import HostOptions
from snapshot.host.protocol.stage_now import InputsNow, StageNow
from snapshot.host.protocol.wiring import InRounds
from snapshot.host.wiring import stage_parts
from snapshot.ids import Copy
from snapshot.operators.operator import Input, Operator, OperatorContext
from snapshot.operators.rows import Rows
from snapshot.program.plan import Stage, ToEdge
from statebackend.files import FileSet
from statebackend.ids import Attempt, Epoch, Generation, Incarnation, Uid
from statebackend.keyed_state import KeyedState
from statebackend.keygroups import range_of
from statebackend.stores.memory_store import MemoryStore
from tests.planned_operator import Planned
from tests.test_replicated_state import KEYS, Pair, count_in, epoch, paths, settle
from tests.test_stage_run import (
    FAR,
    FIRST,
    IN,
    OUT,
    OWN,
    PARTS,
    SCHEMA,
    A,
    Reports,
    Valve,
    Wire,
    number,
    wired,
)

IN_ROUNDS = stage_parts(InRounds(5), lambda: 0)


def at_the_beginning() -> StageNow:
    """Return where a stage with one sender and one receiver begins."""
    return StageNow(
        InputsNow(Watermarks((A,)), (), {A: 0}),
        {OUT.channel(OWN, OWN): 0},
        None,
        had_ended=False,
        time=EARLIEST,
        clock=0,
        source=None,
        ended=False,
        ending=False,
    )


class Echo(Operator):
    """An operator that gives what it takes, and notes it."""

    def __init__(self, context: OperatorContext, taken: list[list[int]]) -> None:
        self._emit = context.emit
        self._taken = taken
        self.time = context.watermark

    def rows(self, input: int, rows: Rows) -> None:
        self._taken.append(rows.batch.column(0).to_pylist())
        self._emit(rows)

    def watermark(self, timestamp: int) -> None:
        self.time = timestamp


class Held:
    """A keyed stage with one sender and one receiver, before its state is there; two rows were in flight to it."""

    def __init__(
        self,
        folder: Path,
        batch_rows: int = 1,
        parts: StageParts = PARTS,
        watermark: Watermark | None = Watermark(5),  # noqa: B008
        now: StageNow | None = None,
        timed: bool = False,
        **options: Any,
    ) -> None:
        store = MemoryStore(token_hex(8))
        files = TreeFiles(store, Incarnation(Generation(1), Attempt(1)), OWN)
        in_flight = stored({A: [number(1), number(2)]}, files, 1 << 20, wired)
        groups = range_of(OWN, 1, 128)
        role = Role(FileSet(groups), watermark=watermark, channels=in_flight if parts is PARTS else ())
        chosen = replace(HostOptions(batch_rows=batch_rows, state_backend="heap"), **options)
        placement = StatePlacement(Uid("stage"), OWN, 1, 128, role, chosen, store, files, folder)
        self.taken: list[list[int]] = []
        inputs = (Input(SCHEMA, ("n",), timed=False),)
        operator = Planned(lambda context: Echo(context, self.taken), inputs, SCHEMA)
        self.state: KeyedState = open_state(operator, placement, None, StateCache(), lambda: None).state
        edge = replace(IN, timed=timed)
        stage = Stage(Uid("stage"), (edge,), {None: (ToEdge(OUT),)}, operator=operator)
        self.out = Wire(OUT.channel(OWN, OWN))
        self.reports = Reports()
        self.run = StageRun(
            stage,
            placement,
            FIRST,
            {self.out.id: self.out},
            {},
            self.reports,
            lambda: None,
            Attempt(2),
            parts,
            now,
        )
        self.valve = Valve()
        self.run.inputs.connect({Copy(A): self.valve})
        self.run.begin()

    def open(self) -> None:
        self.run.open(self.state)

    def work(self) -> None:
        while self.run.work(FAR):
            pass
        self.run.outputs.flush()

    def round(self, number_of_it: int, rows: int) -> None:
        for n in range(rows):
            self.run.arrived(Copy(A), number(n))
        self.run.arrived(Copy(A), Boundary(number_of_it))


@pytest.fixture
def held(tmp_path: Path) -> Iterator[Held]:
    held = Held(tmp_path, input_buffer=4 * number(0).size)
    yield held
    held.run.close()
    held.state.close()


def test_what_comes_before_the_state_waits_and_comes_behind_what_was_in_flight(held: Held) -> None:
    held.run.arrived(Copy(A), number(3))
    held.work()
    before = held.run.pending, held.out.taken()
    held.open()
    held.run.arrived(Copy(A), number(4))
    held.work()
    assert before == (True, [Watermark(5)]), "only the event time of the epoch goes on"
    assert (held.run.pending, held.out.taken()) == (False, [1, 2, 3, 4])


def test_no_more_waits_for_the_state_than_may_be_queued(held: Held) -> None:
    for n in range(10, 14):
        held.run.arrived(Copy(A), number(n))
        held.work()
        full = not held.valve.open
        assert full == (n == 13)
    held.open()
    held.work()
    assert held.valve.open


def test_input_that_ends_before_the_state_is_there_ends_the_stage_afterwards(held: Held) -> None:
    held.run.arrived(Copy(A), number(10))
    held.run.arrived(Copy(A), End())
    held.work()
    ended = held.reports.ended
    held.open()
    held.work()
    assert (ended, held.reports.ended, held.run.ended) == (False, True, True)
    assert held.out.taken()[-3:] == [10, Watermark(LATEST), End()]


def test_a_stage_that_waits_for_its_state_has_nothing_to_do_by_the_clock(held: Held) -> None:
    held.run.arrived(Copy(A), number(10))
    assert not held.run.work(FAR)
    assert held.run.next_due() == float("inf")
    assert held.run.figures().queued_bytes == number(10).size


def test_an_epoch_is_cut_with_all_that_waited_for_the_state(held: Held) -> None:
    second = Marker(Epoch(Generation(1), 2), MarkerMode.ALIGNED)
    held.run.arrived(Copy(A), number(10))
    held.open()
    held.run.arrived(Copy(A), second)
    held.run.arrived(Copy(A), number(11))
    held.work()
    assert [cut.epoch for cut in held.reports.cuts] == [second.epoch]
    assert held.out.taken()[-3:] == [10, second, 11]


def test_what_waited_for_the_state_is_processed_in_one_batch(tmp_path: Path) -> None:
    held = Held(tmp_path, batch_rows=100)
    for n in range(3, 50):
        held.run.arrived(Copy(A), number(n))
    held.open()
    held.work()
    held.run.close()
    held.state.close()
    assert held.taken == [list(range(1, 50))], "in flight were two batches"


def test_what_comes_in_one_batch_ends_at_a_marker(tmp_path: Path) -> None:
    held = Held(tmp_path, batch_rows=100)
    held.open()
    for frame in (number(3), number(4), Marker(Epoch(Generation(1), 2), MarkerMode.ALIGNED), number(5), number(6)):
        held.run.arrived(Copy(A), frame)
    held.work()
    sent = held.out.taken()
    held.run.close()
    held.state.close()
    assert held.taken == [[1, 2, 3, 4], [5, 6]]
    assert [type(frame) for frame in sent] == [Watermark, int, Marker, int], "the marker comes between the two"


def test_a_state_hears_of_the_epochs_that_were_complete_before_it_was_there(tmp_path: Path, held: Held) -> None:
    pair = Pair(tmp_path, "heap")
    pair.count()
    pair.complete(1, first := pair.cut(1))
    joins = pair.opened("joins", first)
    joins.become_shadow()
    pair.count(KEYS[:10])
    second = pair.cut(2)
    held.run.completed(epoch(2), second)
    held.run.open(joins)
    count_in(joins, KEYS[:10])
    joins.cut(epoch(2))
    settle(joins)
    joins.become_primary()
    count_in(joins, KEYS[:5])
    third = joins.snapshot(epoch(3))
    assert paths(second) < paths(third), "it goes on from the files of the epoch, as others may be deleted"
    assert pair.restored(third) == {key: 3 if key in KEYS[:5] else 2 if key in KEYS[:10] else 1 for key in KEYS}
    held.run.close()
    joins.close()
    pair.close()


@pytest.mark.parametrize("restored", [None, Watermark(5), Watermark(LATEST)])
@pytest.mark.parametrize("heard", [(), (Watermark(7),), (Watermark(LATEST),)])
def test_an_operator_that_joins_opens_at_the_event_time_of_its_peers(
    tmp_path: Path, restored: Watermark | None, heard: tuple[Watermark, ...]
) -> None:
    marker = Marker(Epoch(Generation(1), 2), MarkerMode.ALIGNED, admits=True)
    frames: tuple[Frame, ...] = (*heard, Boundary(1), marker)
    peer = Held(tmp_path / "peer", parts=IN_ROUNDS, watermark=restored, timed=True)
    peer.open()
    for frame in frames:
        peer.run.arrived(Copy(A), frame)
    peer.work()
    (cut,) = peer.reports.cuts
    joins = Held(tmp_path / "joins", parts=IN_ROUNDS, watermark=cut.watermark, now=cut.now, timed=True)
    joins.open()
    operators = peer.run.operator.operator, joins.run.operator.operator
    times = [operator.time for operator in operators if isinstance(operator, Echo)]
    begun = EARLIEST if restored is None or restored.timestamp == LATEST else restored.timestamp
    knew = restored == Watermark(LATEST) == next(iter(heard), None)
    assert times == [heard[0].timestamp if heard and not knew else begun] * 2
    for one in (peer, joins):
        one.run.close()
        one.state.close()


def test_a_stage_that_joins_keeps_all_until_it_has_caught_up_and_then_no_more_than_others(tmp_path: Path) -> None:
    joins = Held(tmp_path, parts=IN_ROUNDS, now=at_the_beginning(), input_buffer=4 * number(0).size)
    for number_of_it in range(1, 4):
        joins.round(number_of_it, rows=10)
        joins.work()
        assert joins.valve.open, "or its senders would wait for it, and with them the job"
    joins.open()
    joins.work()
    for number_of_it in (4, 5):
        joins.round(number_of_it, rows=10)
    joins.run.work(0)
    full = not joins.valve.open
    joins.work()
    joins.run.close()
    joins.state.close()
    assert full
    assert sum(map(len, joins.taken)) == 50


def test_a_stage_that_joins_fails_rather_than_keep_more_than_it_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stage_inputs, "MOST_KEPT", 4 * number(0).size)
    joins = Held(tmp_path, parts=IN_ROUNDS, now=at_the_beginning())
    joins.round(1, rows=4)
    joins.work()
    joins.round(2, rows=1)
    with pytest.raises(TooFarBehind, match="the other members go on") as error:
        joins.work()
    assert kind_of(error.value) is FailureKind.RESOURCE
    joins.run.close()
    joins.state.close()
