"""Timers against a set: whatever is registered, deleted, cut and restored, those due come once and in order."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count, islice
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from statebackend.backends.row_store import RowStore
from statebackend.entries import StateId, timer
from statebackend.ids import KeyGroup, Uid
from statebackend.keygroups import KeyGroupRange
from statebackend.keys.types import KeyType
from statebackend.states import timer_state
from statebackend.states.key_context import ForeignKey, KeyContext
from statebackend.states.timer_state import Timer, TimerService, TimerTimeError
from tests.test_row_store import IN_MEMORY, everything, heap, settle

STATE = StateId(7)
INT = KeyType.of(int)
MAX_PARALLELISM = 8


def context(first: int = 0, end: int = MAX_PARALLELISM) -> KeyContext:
    groups = KeyGroupRange(KeyGroup(first), KeyGroup(end))
    return KeyContext(Uid("clicks"), INT, MAX_PARALLELISM, groups)


def order(one: Timer) -> tuple[bytes, bytes]:
    """What timers come by: time, key, namespace."""
    name = timer(one.group, STATE, one.time, one.key, one.namespace)
    return name[7:], name


@pytest.fixture
def short_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two timers of a group are kept in memory, so that most are not."""
    monkeypatch.setattr(timer_state, "_FEWEST", 2)
    monkeypatch.setattr(timer_state, "_MOST", 2)


class Clock:
    """A service in a partition, by number keys."""

    def __init__(self, rows: RowStore) -> None:
        self.context = context()
        self.rows = rows
        self.service = TimerService(self.context, rows, STATE)

    def at(self, key: int | None, time: int, namespace: bytes = b"") -> Timer:
        self.context.set_key(key)
        self.context.set_namespace(namespace)
        return Timer(time, self.context.canonical, namespace, self.context.group)

    def register(self, key: int | None, time: int, namespace: bytes = b"") -> Timer:
        wanted = self.at(key, time, namespace)
        self.service.register(time)
        return wanted

    def delete(self, key: int | None, time: int, namespace: bytes = b"") -> Timer:
        unwanted = self.at(key, time, namespace)
        self.service.delete(time)
        return unwanted


@pytest.fixture
def clock(tmp_path: Path) -> Iterator[Clock]:
    backend = heap(tmp_path / "backend")
    yield Clock(RowStore(backend))
    backend.close()


# --- one thing at a time


def test_timers_come_in_the_order_of_their_times_and_are_gone_then(clock: Clock) -> None:
    wanted = [clock.register(key, time) for key, time in [(1, 30), (2, -10), (3, 20), (1, 10), (None, 0)]]
    assert clock.service.next_time() == -10
    due = list(clock.service.due(20))
    assert [one.time for one in due] == [-10, 0, 10, 20]
    assert set(due) < set(wanted)
    assert clock.service.next_time() == 30
    assert list(clock.service.due(29)) == []
    assert [one.time for one in clock.service.due(1 << 70)] == [30]
    assert clock.service.next_time() is None
    assert everything(clock.rows) == {}


def test_a_timer_that_is_registered_twice_comes_once(clock: Clock) -> None:
    clock.register(1, 10)
    assert clock.service.next_time() == 10
    wanted = [clock.register(1, 10), clock.register(1, 10, b"window")]
    assert list(clock.service.due(10)) == wanted


def test_a_deleted_timer_does_not_come(clock: Clock) -> None:
    clock.register(1, 10)
    clock.register(2, 10)
    clock.delete(1, 10)
    clock.delete(3, 10)
    assert [one.key for one in clock.service.due(10)] == [INT.encode(2)]
    assert everything(clock.rows) == {}


def test_timers_of_the_same_time_come_in_the_same_order_at_any_parallelism(tmp_path: Path) -> None:
    orders = []
    for parts in ([(0, 8)], [(0, 3), (3, 8)]):
        backend = heap(tmp_path / str(len(parts)))
        contexts = [context(*part) for part in parts]
        services = [TimerService(one, RowStore(backend), STATE) for one in contexts]
        for key in range(50):
            for owner, service in zip(contexts, services, strict=True):
                owner.set_key(key)
                try:
                    service.register(5)
                except ForeignKey:
                    continue
        orders.append([list(service.due(5)) for service in services])
        backend.close()
    [[whole], split] = orders
    assert len(whole) == 50
    assert sum(map(len, split)) == 50
    assert all(part == [one for one in whole if one in part] for part in split)


def test_what_is_registered_while_firing_comes_in_the_same_call_if_it_is_due_and_what_is_deleted_does_not(
    clock: Clock,
) -> None:
    clock.register(1, 10)
    clock.register(2, 20)
    came = []
    for one in clock.service.due(20):
        came.append((one.time, one.key))
        if one.time == 10:
            clock.delete(2, 20)
            clock.register(3, 5)
            clock.register(3, 21)
    assert came == [(10, INT.encode(1)), (5, INT.encode(3))]
    assert clock.service.next_time() == 21


def test_what_is_not_asked_for_stays(clock: Clock) -> None:
    for key in range(5):
        clock.register(key, key)
    assert [one.time for one in islice(clock.service.due(9), 2)] == [0, 1]
    assert [one.time for one in clock.service.due(9)] == [2, 3, 4]


def test_two_services_do_not_see_each_others_timers(clock: Clock) -> None:
    other = TimerService(clock.context, clock.rows, StateId(8))
    clock.register(1, 10)
    assert other.next_time() is None


def test_a_time_that_does_not_fit_is_refused(clock: Clock) -> None:
    clock.register(1, (1 << 63) - 1)
    clock.register(1, -(1 << 63))
    with pytest.raises(TimerTimeError, match="clicks: a timer at 9223372036854775808 is out of bounds"):
        clock.register(1, 1 << 63)
    assert [one.time for one in clock.service.due(1 << 63)] == [-(1 << 63), (1 << 63) - 1]


def test_a_timer_of_another_partitions_key_is_refused(clock: Clock) -> None:
    narrow = context(0, 1)
    service = TimerService(narrow, clock.rows, STATE)
    foreign = next(key for key in count() if clock.at(key, 0).group != 0)
    narrow.set_key(foreign)
    with pytest.raises(ForeignKey):
        service.register(1)


@pytest.mark.usefixtures("short_windows")
def test_only_the_next_few_timers_are_kept_in_memory(clock: Clock) -> None:
    clock.service = TimerService(clock.context, clock.rows, STATE)
    assert clock.service.next_time() is None
    wanted = [clock.register(key, (key * 7919) % 1000) for key in range(1000)]
    kept = [len(window.next) for window in clock.service._windows.values()]
    assert max(kept) <= 4
    assert list(clock.service.due(1000)) == sorted(wanted, key=order)


@pytest.mark.usefixtures("short_windows")
def test_a_first_timer_that_is_set_and_taken_back_again_and_again_leaves_nothing(clock: Clock) -> None:
    clock.service = TimerService(clock.context, clock.rows, STATE)
    clock.register(1, 1000)
    for time in range(500):
        assert clock.service.next_time() == 1000
        clock.register(1, time)
        clock.delete(1, time)
    assert len(clock.service._heads) < 100


# --- anything


class AgainstASet(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(mkdtemp(dir=IN_MEMORY))
        self.backend = heap(self.folder / "backend")
        self.clock = Clock(RowStore(self.backend))
        self.model: set[Timer] = set()
        self.epoch = 0

    def teardown(self) -> None:
        self.backend.close()
        rmtree(self.folder)

    KEYS = st.none() | st.integers(0, 12)
    TIMES = st.integers(-20, 20)
    NAMESPACES = st.sampled_from([b"", b"", b"w"])
    CALLS = st.tuples(st.booleans(), KEYS, TIMES, NAMESPACES)

    def call(self, register: bool, key: int | None, time: int, namespace: bytes) -> None:
        if register:
            self.model.add(self.clock.register(key, time, namespace))
        else:
            self.model.discard(self.clock.delete(key, time, namespace))

    @rule(calls=st.lists(CALLS, max_size=12))
    def calls(self, calls: list[tuple[bool, int | None, int, bytes]]) -> None:
        for call in calls:
            self.call(*call)

    @rule(until=TIMES, meanwhile=st.lists(st.none() | CALLS, max_size=6))
    def fire(self, until: int, meanwhile: list[tuple[bool, int | None, int, bytes] | None]) -> None:
        calls = iter(meanwhile)
        for came in self.clock.service.due(until):
            assert came == min(self.model, key=order)
            assert came.time <= until
            self.model.remove(came)
            call = next(calls, None)
            if call is not None:
                self.call(*call)
        assert not any(one.time <= until for one in self.model)

    @rule()
    def next_time(self) -> None:
        assert self.clock.service.next_time() == min((one.time for one in self.model), default=None)

    @rule(taken=st.booleans())
    def cut(self, taken: bool) -> None:
        self.epoch += 1
        rows = self.clock.rows
        rows.freeze()
        if taken:
            while rows._frozen:
                self.epoch += 1
                settle(rows, self.backend, rows._frozen[0], self.epoch, self.folder)

    @rule()
    def restart(self) -> None:
        self.clock = Clock(self.clock.rows)

    @invariant()
    def the_rows_are_the_timers(self) -> None:
        expected = {timer(one.group, STATE, one.time, one.key, one.namespace) for one in self.model}
        assert everything(self.clock.rows).keys() == expected


@pytest.mark.usefixtures("short_windows")
def test_timers_are_those_of_a_set_with_short_windows() -> None:
    run_state_machine_as_test(AgainstASet, settings=settings(stateful_step_count=40))


def test_timers_are_those_of_a_set() -> None:
    run_state_machine_as_test(AgainstASet, settings=settings(stateful_step_count=25))
